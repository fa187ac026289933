/* web.c - connections, bounds and answers
 *
 * Invariants:
 *  1. One thread, the server's, owns all connections: it reads requests (http_head.h), calls the routes, and sends answers. Others
 *     only wake it (job_news, server_wake).
 *  2. A connection has at most one request at a time. The next one is read, though it may have come, when the answer has gone.
 *  3. A job's news is looked for after `news` was cleared, and with the job's lock held. So none is lost.
 *
 * A connection's phases, and the functions that change them:
 *   PHASE_NEW, PHASE_IDLE   connection_accept, exchange_end    no byte of a request has come
 *   PHASE_HEAD              head_step                          ... a part of its head
 *   PHASE_BODY              exchange_begin                     ... its head
 *   PHASE_ANSWER            exchange_run, refusal_send         it is being answered
 *   PHASE_LEAVING           exchange_end                       all was sent that will be; it is heard until it closes, since closing
 *                                                              before would reset the connection and lose the answer (RFC 9112, 9.6)
 *   PHASE_GONE              connection_drop                    closed at the end of the turn */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/log.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "workers/http/web_parts.h"

#define SLACK 64                 // connections being pushed out, in addition to the limit; never more than that
#define PUSH_MS 500              // a connection that has waited less is not pushed out
#define PUSH_BODY_MS 2000        // ... and whose body has been coming for less
#define SLOW_BYTES_PER_MS 16     // slower, a client does not take its answer
#define LOOK_MS 200              // interval of the checks for time limits
#define LEAVE_MS 2000            // for a client to close after its last answer
#define LEAVE_BYTES (4 << 20)    // ... and to send what nobody reads
#define SEND_BYTES (1 << 20)     // in one turn of a connection
#define EVENTS_MAX 256
#define STEPS_MAX 64     // in one turn of a connection
#define TELL_MS 10000    // between two lines about what was sent away

/* ---- what is sent away */
static void away_count(struct web *h, const struct sockaddr_storage *from, enum away why)
{
    h->n_away[why]++;
    tcp_print(h->last_away, sizeof h->last_away, from);
}

static void away_tell(struct web *h, int64_t now)
{
    int64_t n = 0;
    for (int i = 0; i < AWAY_COUNT; i++)
        n += h->n_away[i];
    if (n == 0 || now < h->told_ms + TELL_MS)
        return;
    log_warn("%" PRId64 " connection%s to '%s' %s sent away, the last from %s: %" PRId64 " had sent no whole request in time, %" PRId64
             " took the answer too slowly, %" PRId64 " were too many at once",
             n, n == 1 ? "" : "s", h->config.address, n == 1 ? "was" : "were", h->last_away, h->n_away[AWAY_SILENT], h->n_away[AWAY_SLOW],
             h->n_away[AWAY_MANY]);
    memset(h->n_away, 0, sizeof h->n_away);
    h->told_ms = now;
}

/* ---- connections */
int64_t late_taking(const struct connection *c, int64_t now, size_t bytes_per_ms)
{
    bool tried = to_send(c) > 0 && c->sends_since_ms > 0;    // an answer may wait for the connection's next turn
    return !tried ? -1 : MAX(now - c->sent_ms, now - c->sends_since_ms - (int64_t)(c->n_sent / bytes_per_ms));
}

/* Close a connection for a reason of ours. One without a request, or with all of its answer, has lost nothing. */
static void connection_send_away(struct connection *c, enum away why)
{
    if (c->phase != PHASE_IDLE && c->phase != PHASE_LEAVING)
        away_count(c->web, &c->from, why);
    connection_drop(c);
}

void connection_drop(struct connection *c)
{
    if (c->phase == PHASE_GONE)
        return;
    exchange_forget(c, false);
    phase_set(c, PHASE_GONE);
    c->web->n_gone++;
}

static void connection_free(struct connection *c)
{
    struct web *h = c->web;
    exchange_forget(c, false);
    if (c->prev)
        c->prev->next = c->next;
    else
        h->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    h->n_connection--;
    h->n_gone -= c->phase == PHASE_GONE;
    h->n_at[c->place]--;
    if (c->tls)
        tls_visit_end(c->tls);
    tls_visit_free(c->tls);
    close(c->fd);
    buf_release(&c->in);
    free(c);
}

/* How long it has been a burden; below 0: it may stay. */
static int64_t burden(const struct connection *c, int64_t now)
{
    static const int64_t patience_ms[] = { [PHASE_NEW] = PUSH_MS,       [PHASE_IDLE] = PUSH_MS,    [PHASE_HEAD] = PUSH_MS,
                                           [PHASE_BODY] = PUSH_BODY_MS, [PHASE_LEAVING] = PUSH_MS, [PHASE_GONE] = INT64_MAX };
    if (c->phase == PHASE_GONE)
        return -1;
    if (c->phase == PHASE_ANSWER)
        return late_taking(c, now, PUSH_BYTES_PER_MS) - PUSH_ANSWER_MS;
    return now - c->since_ms - (c->web->config.brief ? 0 : patience_ms[c->phase]);
}

/* Make a place: of those that may be pushed out, first one without a request, and then of the address that has most connections, the
 * one that has been a burden for longest. */
static void connection_push_out(struct web *h)
{
    struct connection *out = NULL;
    int64_t now = clock_ms(), most = -1;
    for (struct connection *c = h->first; c; c = c->next) {
        int64_t ms = burden(c, now);
        bool asks = c->phase == PHASE_BODY || c->phase == PHASE_ANSWER,
             best_asks = out && (out->phase == PHASE_BODY || out->phase == PHASE_ANSWER);
        if (ms < 0)
            continue;
        bool better = !out                                       ? true
                      : asks != best_asks                        ? !asks
                      : h->n_at[c->place] != h->n_at[out->place] ? h->n_at[c->place] > h->n_at[out->place]
                                                                 : ms >= most;    // the oldest of a millisecond comes last
        if (better) {
            out = c;
            most = ms;
        }
    }
    if (out)
        connection_send_away(out, AWAY_MANY);
}

static void connection_refuse(struct web *h, int fd, const struct sockaddr_storage *from)
{
    away_count(h, from, AWAY_MANY);
    struct web_answer a = { 0 };
    struct buf answer = BUF_INIT;
    char dump[4096];
    h->config.fail(&a, 503, "too many connections are open");
    buf_fmt(&answer, "HTTP/1.1 503 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nRetry-After: 1\r\nConnection: close\r\n\r\n",
            http_status_words(503), a.type ? a.type : "application/json", a.body.len);
    buf_add(&answer, a.body.data, a.body.len);
    bool whole = !a.body.failed && !answer.failed;
    if (whole && !h->config.cert_pem && send(fd, answer.data, answer.len, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
        shutdown(fd, SHUT_WR);
        while (recv(fd, dump, sizeof dump, MSG_DONTWAIT) > 0)    // unread bytes would make close discard the answer
            ;
    }
    buf_release(&a.body);
    buf_release(&answer);
    close(fd);
}

/* Where an address is counted: a network of 64 bits is one of IPv6. */
static unsigned place_of(const struct sockaddr_storage *from)
{
    uint64_t key = 0;
    if (from->ss_family == AF_INET)
        key = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
    else if (from->ss_family == AF_INET6)
        memcpy(&key, &((const struct sockaddr_in6 *)from)->sin6_addr, sizeof key);
    return (unsigned)((key * 0x9e3779b97f4a7c15) >> 32) % PLACES;
}

static bool connection_add(struct web *h, int fd, const struct sockaddr_storage *from)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c)
        return false;
    *c = (struct connection){ .web = h, .fd = fd, .from = *from, .place = place_of(from), .next = h->first, .asked = EPOLLIN };
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = c };
    if ((h->tls && !(c->tls = tls_visit_new(h->tls, fd))) || epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) {
        tls_visit_free(c->tls);
        free(c);
        return false;
    }
    c->in.max = HTTP_HEAD_MAX + READ_BYTES;
    phase_set(c, PHASE_NEW);
    if (c->next)
        c->next->prev = c;
    h->first = c;
    h->n_connection++;
    h->n_at[c->place]++;
    return true;
}

static void listener_set(struct web *h, bool on)
{
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL };
    if (h->listens != on && epoll_ctl(h->epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, h->config.listen_fd, &e) == 0)
        h->listens = on;
}

static void connections_accept(struct web *h)
{
    struct sockaddr_storage from = { 0 };
    const int at_once = 1;
    const int64_t most = h->config.max_connections + MIN(h->config.max_connections, SLACK);
    while (h->n_connection < most || h->n_gone == 0) {    // the places of those that go are free in the next turn
        socklen_t len = sizeof from;
        int fd = accept4(h->config.listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE) {
                connection_push_out(h);
                listener_set(h, false);    // until the next look
            }
            return;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);    // a body would wait 40 ms for the client to confirm its head
        if (h->n_connection >= h->config.max_connections)
            connection_push_out(h);
        if (h->n_connection >= most)
            connection_refuse(h, fd, &from);
        else if (!connection_add(h, fd, &from))
            close(fd);
    }
}

static ssize_t connection_recv(struct connection *c, char *data, size_t len)
{
    return c->tls ? tls_visit_recv(c->tls, data, len, &c->wants_out) : recv(c->fd, data, len, MSG_DONTWAIT);
}

static ssize_t connection_send(struct connection *c, const char *data, size_t len)
{
    c->wants_out = true;
    return c->tls ? tls_visit_send(c->tls, data, len, &c->wants_out) : send(c->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Read once into `in`. False: nothing has come now, or never will. */
static bool connection_read(struct connection *c)
{
    if (c->in_at > 0) {
        memmove(c->in.data, c->in.data + c->in_at, c->in.len - c->in_at);
        c->in.len -= c->in_at;
        c->in_at = 0;
    }
    ssize_t n = connection_recv(c, c->web->scratch, MIN((size_t)READ_BYTES, c->in.max - c->in.len));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n > 0 && buf_add(&c->in, c->web->scratch, (size_t)n))
        return true;
    connection_drop(c);
    return false;
}

/* ---- one connection's turn */
/* Send what there is. False: some of it must wait, or the client has gone. */
static bool out_step(struct connection *c)
{
    size_t budget = SEND_BYTES;
    if (c->out.failed) {
        connection_drop(c);
        return false;
    }
    for (size_t left; (left = to_send(c)) > 0 && budget > 0;) {
        bool head = c->out_at < c->out.len;
        const char *data = head ? c->out.data + c->out_at : c->answer.data + c->answer_at;
        size_t len = MIN(head ? c->out.len - c->out_at : c->answer.len - c->answer_at, budget);
        if (c->sends_since_ms == 0) {
            c->sends_since_ms = c->sent_ms = clock_ms();
            c->n_sent = 0;
        }
        ssize_t n = connection_send(c, data, len);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        if (n <= 0) {
            connection_drop(c);
            return false;
        }
        *(head ? &c->out_at : &c->answer_at) += (size_t)n;
        c->n_sent += (size_t)n;
        c->sent_ms = clock_ms();
        budget -= (size_t)n;
    }
    if (to_send(c) > 0) {    // others have their turn first
        c->wants_out = true;
        return false;
    }
    c->wants_out = false;
    c->sends_since_ms = 0;
    c->out_at = c->answer_at = 0;
    buf_clear(&c->out);
    buf_release(&c->answer);
    held_set(c, 0);
    return true;
}

/* The answer has gone: the next request, or good-bye. */
static void exchange_end(struct connection *c)
{
    bool is_last = c->is_last;
    exchange_forget(c, true);
    if (!is_last) {
        if (c->in_at == c->in.len) {
            buf_release(&c->in);
            c->in_at = 0;
        }
        phase_set(c, PHASE_IDLE);
        return;
    }
    if (c->tls)
        tls_visit_end(c->tls);
    shutdown(c->fd, SHUT_WR);
    c->n_came = 0;
    phase_set(c, PHASE_LEAVING);
}

static bool leaving_step(struct connection *c)
{
    ssize_t n = recv(c->fd, c->web->scratch, READ_BYTES, MSG_DONTWAIT);    // as it comes: nobody reads it
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    c->n_came += n > 0 ? (size_t)n : 0;
    if (n <= 0 || c->n_came > LEAVE_BYTES)
        connection_drop(c);
    return c->phase != PHASE_GONE;
}

/* One step. False: it must wait. */
static bool step(struct connection *c)
{
    if (c->phase == PHASE_GONE)
        return false;
    if (to_send(c) > 0 || c->out.failed)
        return out_step(c);
    switch (c->phase) {
    case PHASE_NEW:
    case PHASE_IDLE:
    case PHASE_HEAD: return head_step(c) || connection_read(c);
    case PHASE_BODY: return body_step(c) || connection_read(c);
    case PHASE_ANSWER:
        if (!c->over && atomic_load(&c->news))
            job_look(c);
        if (c->over && to_send(c) == 0)
            exchange_end(c);
        return c->phase != PHASE_ANSWER || to_send(c) > 0;
    case PHASE_LEAVING: return leaving_step(c);
    case PHASE_GONE: break;
    }
    return false;
}

static void interest_set(struct connection *c)
{
    bool sends = to_send(c) > 0, waits = c->phase == PHASE_ANSWER && !sends;
    uint32_t want = sends ? (c->wants_out ? EPOLLOUT : EPOLLIN) : waits ? 0 : c->wants_out ? EPOLLOUT : EPOLLIN;
    if (c->phase == PHASE_ANSWER && c->job && !c->left)
        want |= EPOLLRDHUP;
    struct epoll_event e = { .events = want, .data.ptr = c };
    if (c->asked == want || c->phase == PHASE_GONE)
        return;
    c->asked = want;
    if (epoll_ctl(c->web->epoll_fd, EPOLL_CTL_MOD, c->fd, &e) != 0)
        connection_drop(c);
}

static void connection_turn(struct connection *c, uint32_t events)
{
    if (c->phase == PHASE_GONE)
        return;
    if (events & (EPOLLERR | EPOLLHUP)) {
        connection_drop(c);
        return;
    }
    if ((events & EPOLLRDHUP) && c->job && !c->left) {
        c->left = true;    // it may still read what there is
        c->web->config.leave(c->web->config.ctx, c->job);
    }
    c->again = true;
    for (int n = 0; n < STEPS_MAX && c->again; n++)
        c->again = step(c);
    if (c->again)
        atomic_store(&c->web->has_news, true);
    interest_set(c);
}

/* ---- all of them */
/* The server's thread was held up for ms, by a disk or by whoever stopped the process: no client's time passes meanwhile, since what it
 * sent has not been looked at. */
static void absence_forgive(struct web *h, int64_t ms)
{
    int64_t now = clock_ms();
    for (struct connection *c = h->first; c; c = c->next) {
        c->since_ms = MIN(now, c->since_ms + ms);
        if (c->sends_since_ms > 0) {
            c->sends_since_ms = MIN(now, c->sends_since_ms + ms);
            c->sent_ms = MIN(now, c->sent_ms + ms);
        }
    }
}

static void late_drop(struct web *h)
{
    int64_t now = clock_ms();
    const struct web_config *config = &h->config;
    const int64_t limit_ms[] = { [PHASE_NEW] = config->head_ms,
                                 [PHASE_IDLE] = config->idle_ms,
                                 [PHASE_HEAD] = config->head_ms,
                                 [PHASE_BODY] = config->body_ms,
                                 [PHASE_LEAVING] = LEAVE_MS };
    for (struct connection *c = h->first; c; c = c->next) {
        if (c->phase == PHASE_GONE)
            continue;
        if (c->phase == PHASE_ANSWER ? late_taking(c, now, SLOW_BYTES_PER_MS) > config->idle_ms : now - c->since_ms > limit_ms[c->phase])
            connection_send_away(c, c->phase == PHASE_ANSWER ? AWAY_SLOW : AWAY_SILENT);
        else if (c->phase == PHASE_IDLE && atomic_load(&h->closed))
            connection_drop(c);
    }
}

/* After a turn: those with news have theirs, and what is gone is closed. */
static void connections_sweep(struct web *h)
{
    bool has_news = atomic_exchange(&h->has_news, false);
    for (struct connection *c = h->first, *next; c; c = next) {
        next = c->next;
        if (has_news && (c->again || atomic_load(&c->news)))
            connection_turn(c, 0);
    }
    for (struct connection *c = h->first, *next; c; c = next) {
        next = c->next;
        if (c->phase == PHASE_GONE)
            connection_free(c);
    }
}

static bool stop_asked(struct web *h)
{
    pthread_mutex_lock(&h->lock);
    bool stop = h->stop;
    pthread_mutex_unlock(&h->lock);
    return stop;
}

static void *server_main(void *arg)
{
    struct web *h = arg;
    struct epoll_event event[EVENTS_MAX];
    int64_t looked = clock_ms();
    uint64_t woken;
    while (!stop_asked(h)) {
        int n = epoll_wait(h->epoll_fd, event, EVENTS_MAX, atomic_load(&h->has_news) ? 0 : LOOK_MS);
        if (n < 0 && errno != EINTR)
            log_warn("connections cannot be watched: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            if (event[i].data.ptr == h)
                (void)!read(h->wake_fd, &woken, sizeof woken);
            else if (event[i].data.ptr)
                connection_turn(event[i].data.ptr, event[i].events);
            else if (!atomic_load(&h->closed))
                connections_accept(h);
        }
        if (atomic_load(&h->closed))
            listener_set(h, false);
        int64_t past = clock_ms() - looked;
        if (past >= LOOK_MS) {
            if (past > 2 * LOOK_MS)    // a wait lasts at most LOOK_MS, so up to two of them between checks are usual
                absence_forgive(h, past - 2 * LOOK_MS);
            late_drop(h);
            away_tell(h, clock_ms());
            looked = clock_ms();
            listener_set(h, !atomic_load(&h->closed));
        }
        connections_sweep(h);
    }
    return NULL;
}

/* ---- starting and stopping */
void server_wake(struct web *h)
{
    uint64_t one = 1;
    if (write(h->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        log_warn("the server's thread could not be woken: %s", strerror(errno));    // it checks again after LOOK_MS
}

static bool server_open(struct web *h, struct error *err)
{
    struct epoll_event wakes = { .events = EPOLLIN, .data.ptr = h }, comes = { .events = EPOLLIN, .data.ptr = NULL };
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (h->wake_fd < 0 || h->epoll_fd < 0 || epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->wake_fd, &wakes) != 0
        || epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->config.listen_fd, &comes) != 0)
        return error_errno(err, "no descriptor to watch connections with");
    h->listens = true;
    if (!(h->scratch = malloc(READ_BYTES)))
        return error_set(err, ERR_NO_MEMORY, "no memory for a server");
    if (h->config.cert_pem && !(h->tls = tls_door_new(h->config.cert_pem, h->config.key_pem, err)))
        return false;
    int rv = thread_start(&h->thread, server_main, h);
    h->has_thread = rv == 0;
    return rv == 0 || error_set(err, ERR_IO, "the server's thread cannot be started: %s", strerror(rv));
}

struct web *web_new(const struct web_config *config, struct error *err)
{
    BUG_IF(!config->fail, "the server at '%s' has no words for a refusal", config->address);
    struct web *h = calloc(1, sizeof *h);
    if (!h) {
        close(config->listen_fd);
        error_set(err, ERR_NO_MEMORY, "no memory for a server");
        return NULL;
    }
    h->config = *config;
    h->wake_fd = h->epoll_fd = -1;
    h->answers_max = 2 * config->max_bodies_bytes;
    h->told_ms = clock_ms() - TELL_MS;
    if (!config->token)
        own_hosts_set(&h->hosts, config->address, config->allowed_hosts);
    pthread_mutex_init(&h->lock, NULL);
    clock_cond_init(&h->over);
    if (server_open(h, err))
        return h;
    web_free(h);
    return NULL;
}

void web_close(struct web *h)
{
    atomic_store(&h->closed, true);
    shutdown(h->config.listen_fd, SHUT_RDWR);
    server_wake(h);
}

bool web_wait(struct web *h, int64_t limit_ms)
{
    struct timespec end = clock_after(limit_ms);
    int rv = 0;
    pthread_mutex_lock(&h->lock);
    while (h->n_exchange > 0 && rv == 0)
        rv = pthread_cond_timedwait(&h->over, &h->lock, &end);
    bool over = h->n_exchange == 0;
    pthread_mutex_unlock(&h->lock);
    return over;
}

void web_free(struct web *h)
{
    if (!h)
        return;
    if (h->has_thread) {
        pthread_mutex_lock(&h->lock);
        h->stop = true;
        pthread_mutex_unlock(&h->lock);
        server_wake(h);
        pthread_join(h->thread, NULL);
        away_tell(h, INT64_MAX);
    }
    while (h->first)
        connection_free(h->first);
    BUG_IF(h->n_connection != 0 || h->n_gone != 0 || h->n_exchange != 0 || h->bodies_bytes != 0 || h->answers_bytes != 0,
           "after the last connection there are %" PRId64 " of them, %" PRId64 " going, %" PRId64
           " requests, %zu bytes of bodies and %zu of answers",
           h->n_connection, h->n_gone, h->n_exchange, h->bodies_bytes, h->answers_bytes);
    tls_door_free(h->tls);
    if (h->epoll_fd >= 0)
        close(h->epoll_fd);
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    close(h->config.listen_fd);
    pthread_cond_destroy(&h->over);
    pthread_mutex_destroy(&h->lock);
    free(h->scratch);
    free(h);
}
