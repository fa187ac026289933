/* A connection's stages, and the functions that change them:
 *   STAGE_HELLO   visit_accept     its ClientHello is not complete yet
 *   STAGE_SHAKE   visit_shake      a handshake has begun
 *   STAGE_IN      visit_take       it has shown the token and greeted
 *                 visit_hand_over  one for large data has said hello; it is not ours any more
 * visit_drop ends it in any of them.
 *
 * What both threads use is in front_queue.h, but for the flags here, which are atomic. A connection that brings more requests than may be held
 * is left unread until one has been answered. */
#include "protocol/wire/front.h"
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "protocol/wire/bulk.h"
#include "protocol/wire/front_queue.h"

#define SHAKE_MS 1000    // for a handshake, which takes milliseconds
#define TICK_MS 250      // while a time limit is running
#define GAP_MS 1000      // between two ticks: this process was stopped or starved
#define LOG_MS 10000
#define VISITS_MAX 4096    // 1000 nodes with up to four connections each
#define STRANGERS_MAX 64
#define STRANGERS_MS 4       // of each turn, until those that are in are looked at again; a handshake takes 0.6 ms of an EPYC
#define FDS_KEPT 256         // for everything else that the process opens, connections for large data among it
#define HELLO_BYTES 16389    // the largest ClientHello, with its record's head
#define CHUNK_BYTES 65536    // read at a time
#define ROUNDS_MAX 16        // reads of one connection before the others have their turn
#define UNSENT_BYTES_MAX ((size_t)1 << 20)    // of answers: a client that leaves this much unread is not read either
#define EVENTS_MAX 64

enum stage {
    STAGE_HELLO,
    STAGE_SHAKE,
    STAGE_IN,
};
enum why {
    WHY_LATE,
    WHY_MANY,
    WHY_NO_TLS,
    WHY_NO_TOKEN,
    WHY_LEFT,
    WHY_COUNT,
};
struct visit {
    enum stage stage;
    int fd;
    uint32_t watched;         // events that epoll waits for; 0: not registered
    uint64_t connection;      // its number: at modulo VISITS_MAX, and never used again
    int64_t since_ms;         // when it was accepted
    int64_t passed_ms;        // when its ClientHello was whole
    int64_t era;              // of the identity that has let it in
    bool stalled;             // it has requests for which there is no room
    struct tls_link *link;    // from STAGE_SHAKE on
    struct sockaddr_storage from;
    size_t n_hello;
    uint8_t hello[];    // (HELLO_BYTES) of STAGE_HELLO; then given back
};
struct front {
    char address[280];
    int64_t limit_ms;    // from accept until the token is shown
    int listen_fd, epoll_fd;
    pthread_t thread;
    bool started;
    atomic_bool over;
    _Atomic(front_take *) take;    // of connections for large data; NULL: nobody takes them
    void *take_ctx;                // written before take
    struct {
        _Atomic uint64_t connection;
        _Atomic int64_t ms;    // written for that connection alone
    } heard[VISITS_MAX];       // when bytes last came by the connection in each place
    struct front_queue queue;
    /* the front's thread's: */
    struct visit *visit[VISITS_MAX];    // NULL: free
    int visits_max, strangers_max, n_visit, n_stranger;
    bool listens;    // epoll watches listen_fd
    int64_t n_accepted, seen_era, ticked_ms, logged_ms;
    int64_t n_away[WHY_COUNT];    // turned away since logged_ms
    char last_away[80];
    uint8_t chunk[CHUNK_BYTES];
};
#define ID_LISTEN VISITS_MAX
#define ID_EVENT (VISITS_MAX + 1)

/* ---- turned away ---- */

static void away_note(struct front *f, enum why why, const struct sockaddr_storage *from)
{
    if (why == WHY_LEFT)
        return;
    f->n_away[why]++;
    tcp_print(f->last_away, sizeof f->last_away, from);
}

static int64_t away_sum(const struct front *f)
{
    int64_t n = 0;
    for (int i = 0; i < WHY_COUNT; i++)
        n += f->n_away[i];
    return n;
}

static void away_tell(struct front *f, int64_t now)
{
    int64_t n = away_sum(f);
    if (n == 0 || now < f->logged_ms + LOG_MS)
        return;
    log_warn("%" PRId64 " connection%s to '%s' %s turned away, the last from %s: %" PRId64
             " had not shown the join token in %.3g s, %" PRId64 " had another one or none, %" PRId64 " did not speak TLS, %" PRId64
             " were too many at once",
             n, n == 1 ? "" : "s", f->address, n == 1 ? "was" : "were", f->last_away, f->n_away[WHY_LATE], (double)f->limit_ms / 1000,
             f->n_away[WHY_NO_TOKEN], f->n_away[WHY_NO_TLS], f->n_away[WHY_MANY]);
    memset(f->n_away, 0, sizeof f->n_away);
    f->logged_ms = now;
}

/* ---- one connection ---- */

static void visit_watch(struct front *f, int at, uint32_t events)
{
    struct visit *v = f->visit[at];
    struct epoll_event ev = { .events = events, .data.u64 = (uint64_t)at };
    if (events == v->watched)
        return;
    int op = !v->watched ? EPOLL_CTL_ADD : events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
    if (epoll_ctl(f->epoll_fd, op, v->fd, &ev) == 0)
        v->watched = events;
}

static bool visit_send(struct visit *v)
{
    return !v->link || tls_link_send(v->link, v->fd);
}

static bool is_stranger(const struct visit *v)
{
    return v && v->stage < STAGE_IN;
}

static void visit_end(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    f->n_stranger -= is_stranger(v);
    if (v->fd >= 0)
        close(v->fd);
    tls_link_free(v->link);
    free(v);
    atomic_store(&f->heard[at].ms, 0);
    f->visit[at] = NULL;
    f->n_visit--;
}

static void visit_drop(struct front *f, int at, enum why why)
{
    struct visit *v = f->visit[at];
    if (is_stranger(v))
        away_note(f, why, &v->from);
    (void)visit_send(v);    // why, in TLS's words, or a last answer
    visit_end(f, at);
}

/* Pass the whole requests on that have come. False: it is of no use any more. */
static bool requests_hear(struct front *f, struct visit *v)
{
    return front_queue_hear(&f->queue, v->connection, v->link, &v->stalled);
}

/* Bytes of its TLS have come. False: it was dropped. */
static bool visit_take(struct front *f, int at, const void *data, size_t len)
{
    struct error err = { .code = ERR_NONE };
    struct visit *v = f->visit[at];
    bool ok = tls_link_take(v->link, data, len, &err);
    if (v->stage == STAGE_SHAKE && tls_link_is_in(v->link)) {
        v->stage = STAGE_IN;
        f->n_stranger--;
    }
    ok = requests_hear(f, v) && ok;    // also those that came before its end
    if (!ok)
        visit_drop(f, at, err.code == ERR_CLOSED ? WHY_LEFT : WHY_NO_TOKEN);
    return ok;
}

static bool visit_reads(const struct visit *v)
{
    return !v->stalled && tls_link_waiting(v->link) < UNSENT_BYTES_MAX;
}

/* Send what there is to send, and wait for what is to come. */
static void visit_settle(struct front *f, int at)
{
    size_t unsent;
    struct visit *v = f->visit[at];
    if (!visit_send(v)) {
        visit_drop(f, at, WHY_LEFT);
        return;
    }
    visit_watch(f, at, (visit_reads(v) ? EPOLLIN : 0u) | (tls_link_bytes(v->link, &unsent) ? EPOLLOUT : 0u));
}

static void visit_move(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    bool more = true;
    for (int round = 0; round < ROUNDS_MAX && more && visit_reads(v); round++) {
        ssize_t n = recv(v->fd, f->chunk, sizeof f->chunk, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0) {
            visit_drop(f, at, WHY_LEFT);
            return;
        }
        atomic_store(&f->heard[at].ms, clock_ms());
        if (!visit_take(f, at, f->chunk, (size_t)n))
            return;
        more = (size_t)n == sizeof f->chunk;
    }
    visit_settle(f, at);
}

/* A whole ClientHello has arrived. */
static void visit_shake(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    bool open;
    v->link = front_queue_link(&f->queue, &v->era, &open);
    if (!v->link) {
        visit_drop(f, at, open ? WHY_MANY : WHY_NO_TOKEN);
        return;
    }
    v->stage = STAGE_SHAKE;
    v->passed_ms = clock_ms();
    if (!visit_take(f, at, v->hello, v->n_hello))
        return;
    struct visit *less = realloc(v, sizeof *v);    // without the hello
    f->visit[at] = less ? less : v;
    visit_move(f, at);
}

/* A connection for large data: its hello is whole, or will be, or it is none. The caller then waits for an answer, so nothing follows. */
static void visit_hand_over(struct front *f, int at, front_take *take)
{
    struct visit *v = f->visit[at];
    if (memcmp(v->hello, BULK_MAGIC, MIN(v->n_hello, (size_t)4)) != 0 || v->n_hello > BULK_HELLO_BYTES) {
        visit_drop(f, at, WHY_NO_TLS);
        return;
    }
    if (v->n_hello < BULK_HELLO_BYTES)
        return;
    visit_watch(f, at, 0);
    if (!take(f->take_ctx, v->fd, v->hello)) {
        visit_drop(f, at, WHY_NO_TOKEN);
        return;
    }
    v->fd = -1;
    visit_end(f, at);
}

/* The first record: RFC 5246, 6.2.1 and 7.4: type handshake, version 3.x, two bytes of length, then the message's type, client_hello. */
static void visit_hear(struct front *f, int at)
{
    static const uint8_t begins[] = { 22, 3 };
    struct visit *v = f->visit[at];
    ssize_t n = recv(v->fd, v->hello + v->n_hello, HELLO_BYTES - v->n_hello, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        visit_drop(f, at, WHY_LEFT);
        return;
    }
    v->n_hello += (size_t)n;
    front_take *take = atomic_load(&f->take);
    if (take && v->hello[0] == BULK_MAGIC[0]) {
        visit_hand_over(f, at, take);
        return;
    }
    size_t have = v->n_hello, len = have < 5 ? 0 : (size_t)v->hello[3] << 8 | v->hello[4];
    bool length_ok = have < 5 || (len >= 4 && len <= 16384), type_ok = have < 6 || v->hello[5] == 1;
    if (memcmp(v->hello, begins, MIN(have, sizeof begins)) != 0 || !length_ok || !type_ok)
        visit_drop(f, at, WHY_NO_TLS);
    else if (have >= 5 && have >= 5 + len)
        visit_shake(f, at);
}

/* The front ends: what was said last still goes to the caller. */
static void visit_flush(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    (void)visit_send(v);
    shutdown(v->fd, SHUT_WR);
    while (recv(v->fd, f->chunk, sizeof f->chunk, MSG_DONTWAIT) > 0)    // what is left unread would be answered with a reset
        ;
    visit_end(f, at);
}

/* ---- all of them ---- */

/* The oldest stranger of the address that has the most of them; -1: there is none. */
static int crowd_find(const struct front *f)
{
    int best = -1, n_best = 0;
    for (int i = 0; i < f->visits_max; i++) {
        int n = 0;
        if (!is_stranger(f->visit[i]))
            continue;
        for (int k = 0; k < f->visits_max; k++)
            n += is_stranger(f->visit[k]) && tcp_same_host(&f->visit[k]->from, &f->visit[i]->from);
        if (n > n_best || (n == n_best && f->visit[i]->connection < f->visit[best]->connection)) {
            best = i;
            n_best = n;
        }
    }
    return best;
}

/* Which connection makes room for one from this address; -1: none does. Those of the address with the most
 * strangers come into question: the oldest that has not sent its ClientHello, then the oldest, which its own address does not disturb for
 * SHAKE_MS. */
static int victim_find(const struct front *f, const struct sockaddr_storage *from)
{
    int best = crowd_find(f), silent = -1;
    for (int i = 0; best >= 0 && i < f->visits_max; i++) {
        const struct visit *v = f->visit[i];
        if (v && v->stage == STAGE_HELLO && tcp_same_host(&v->from, &f->visit[best]->from)
            && (silent < 0 || v->connection < f->visit[silent]->connection))
            silent = i;
    }
    if (best < 0 || silent >= 0)
        return silent;
    bool shakes = clock_ms() < f->visit[best]->passed_ms + SHAKE_MS;
    return shakes && tcp_same_host(&f->visit[best]->from, from) ? -1 : best;
}

static bool room_make(struct front *f, const struct sockaddr_storage *from)
{
    if (f->n_stranger < f->strangers_max && f->n_visit < f->visits_max)
        return true;
    int victim = victim_find(f, from);
    if (victim < 0)
        return false;
    visit_drop(f, victim, WHY_MANY);
    return f->n_visit < f->visits_max;
}

static void listen_watch(struct front *f, bool listens)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.u64 = ID_LISTEN };
    if (listens != f->listens && epoll_ctl(f->epoll_fd, listens ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, f->listen_fd, &ev) == 0)
        f->listens = listens;
}

static void visit_accept(struct front *f)
{
    int one = 1, idle_s = 60, gap_s = 10;
    struct sockaddr_storage from = { 0 };
    socklen_t len = sizeof from;
    int fd = accept4(f->listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            listen_watch(f, false);    // until the next tick, since it would be readable all the time
        return;
    }
    struct visit *v = room_make(f, &from) ? malloc(sizeof *v + HELLO_BYTES) : NULL;
    if (!v) {
        away_note(f, WHY_MANY, &from);
        close(fd);
        return;
    }
    int at = 0;
    while (f->visit[at])
        at++;
    *v = (struct visit){
        .fd = fd, .from = from, .since_ms = clock_ms(), .connection = (uint64_t)f->n_accepted++ * VISITS_MAX + (uint64_t)at
    };
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    tcp_suit(fd);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);    // a host that is gone says nothing: drop it after two minutes
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &gap_s, sizeof gap_s);
    f->visit[at] = v;
    atomic_store(&f->heard[at].ms, 0);
    atomic_store(&f->heard[at].connection, v->connection);
    f->n_visit++;
    f->n_stranger++;
    visit_watch(f, at, EPOLLIN);
}

/* What the loop's thread wants: answers given, connections ended, and others read again. */
static void loop_hear(struct front *f)
{
    int64_t cut_era;
    struct said *s = front_queue_take(&f->queue, &cut_era);
    for (struct said *next; s; s = next) {
        int at = (int)(s->connection % VISITS_MAX);
        struct visit *v = f->visit[at];
        next = s->next;
        if (v && v->connection == s->connection) {
            if (tls_link_say(v->link, &s->trace, s->data, s->len))
                visit_settle(f, at);
            else
                visit_drop(f, at, WHY_LEFT);
        }
        free(s);
    }
    for (int i = 0; cut_era > f->seen_era && i < f->visits_max; i++)
        if (f->visit[i] && f->visit[i]->link && f->visit[i]->era < cut_era)
            visit_drop(f, i, WHY_LEFT);
    f->seen_era = cut_era;
    if (!front_queue_room(&f->queue))
        return;
    for (int i = 0; i < f->visits_max; i++)
        if (f->visit[i] && f->visit[i]->stalled) {
            if (!requests_hear(f, f->visit[i]))
                visit_drop(f, i, WHY_LEFT);
            else if (!f->visit[i]->stalled)
                visit_move(f, i);
        }
}

/* Apply the limits. Returns whether any is running. */
static bool visits_tick(struct front *f, int64_t now)
{
    int64_t gap_ms = now - f->ticked_ms;
    f->ticked_ms = now;
    listen_watch(f, true);
    for (int i = 0; f->n_stranger > 0 && i < f->visits_max; i++) {
        struct visit *v = f->visit[i];
        if (!is_stranger(v))
            continue;
        if (gap_ms > GAP_MS) {    // its bytes were not read in that time
            v->since_ms += gap_ms;
            v->passed_ms += gap_ms;
        }
        if (now >= v->since_ms + f->limit_ms)
            visit_drop(f, i, WHY_LATE);
    }
    away_tell(f, now);
    return f->n_stranger > 0 || away_sum(f) > 0 || !f->listens;
}

static void event_take(struct front *f, uint64_t id, uint32_t events)
{
    if (id == ID_LISTEN) {
        visit_accept(f);
    } else if (id == ID_EVENT) {
        loop_hear(f);
    } else if (f->visit[id]) {    // it may have ended in this turn; looking at its successor does no harm
        int at = (int)id;
        if (f->visit[at]->stage == STAGE_HELLO)
            visit_hear(f, at);
        else if (events & EPOLLERR)    // a reset, which may show up in neither reading nor writing
            visit_drop(f, at, WHY_LEFT);
        else
            visit_move(f, at);
    }
}

/* First the others, then strangers for STRANGERS_MS, of whom epoll names the rest again after other strangers: a thousand nodes that come back
 * at once do not keep those that are in waiting. */
static void events_take(struct front *f, const struct epoll_event *ev, int n)
{
    bool strange[EVENTS_MAX];
    for (int i = 0; i < n; i++) {
        strange[i] = ev[i].data.u64 < VISITS_MAX && is_stranger(f->visit[ev[i].data.u64]);
        if (!strange[i])
            event_take(f, ev[i].data.u64, ev[i].events);
    }
    int64_t end = clock_ms() + STRANGERS_MS;
    for (int i = 0; i < n && clock_ms() <= end; i++)
        if (strange[i])
            event_take(f, ev[i].data.u64, ev[i].events);
}

static void *front_run(void *arg)
{
    struct front *f = arg;
    struct epoll_event ev[EVENTS_MAX];
    bool runs = false;
    f->ticked_ms = clock_ms();
    while (!atomic_load(&f->over)) {
        int n = epoll_wait(f->epoll_fd, ev, EVENTS_MAX, runs ? TICK_MS : -1);
        int64_t now = clock_ms();
        if (!runs)
            f->ticked_ms = now;    // the thread slept because nothing was due
        events_take(f, ev, n);
        runs = runs || f->n_stranger > 0 || away_sum(f) > 0 || !f->listens;
        if (runs && now >= f->ticked_ms + TICK_MS)
            runs = visits_tick(f, now);
    }
    loop_hear(f);
    for (int i = 0; i < f->visits_max; i++)
        if (f->visit[i])
            visit_flush(f, i);
    return NULL;
}

/* ---- for the transport ---- */

struct front *front_new(const char *address, int64_t limit_ms, struct error *err)
{
    struct rlimit fds;
    struct front *f = calloc(1, sizeof *f);
    if (!f) {
        error_set(err, ERR_NO_MEMORY, "no memory to listen on '%s'", address);
        return NULL;
    }
    snprintf(f->address, sizeof f->address, "%s", address);
    f->limit_ms = limit_ms;
    f->listen_fd = f->epoll_fd = -1;
    f->logged_ms = clock_ms() - LOG_MS;
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0 && fds.rlim_cur < fds.rlim_max) {
        struct rlimit more = { MIN(fds.rlim_max, (rlim_t)(FDS_KEPT + VISITS_MAX)), fds.rlim_max };
        if (more.rlim_cur > fds.rlim_cur && setrlimit(RLIMIT_NOFILE, &more) == 0)
            fds = more;
    }
    int64_t room = (int64_t)MIN(fds.rlim_cur, (rlim_t)100000) - FDS_KEPT;
    f->visits_max = (int)MAX(MIN(room, (int64_t)VISITS_MAX), (int64_t)6);
    f->strangers_max = MIN(f->visits_max / 3, STRANGERS_MAX);
    if (!front_queue_init(&f->queue, err) || (f->listen_fd = tcp_listen(address, err)) < 0)
        goto fail;
    f->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (f->epoll_fd < 0) {
        error_errno(err, "cannot listen on '%s'", address);
        goto fail;
    }
    return f;
fail:
    front_free(f);
    return NULL;
}

int64_t front_heard_ms(const struct front *f, uint64_t connection)
{
    int at = (int)(connection % VISITS_MAX);
    int64_t ms = atomic_load(&f->heard[at].ms);    // before the number: it may be another connection's by now
    return atomic_load(&f->heard[at].connection) == connection ? ms : 0;
}

void front_requests(struct front *f, int held_max, front_hear *hear, void *ctx)
{
    f->queue.held_max = held_max;
    f->queue.hear = hear;
    f->queue.hear_ctx = ctx;
}

bool front_start(struct front *f, struct error *err)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.u64 = ID_EVENT };
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, f->queue.event_fd, &ev) != 0)
        return error_errno(err, "cannot listen on '%s'", f->address);
    listen_watch(f, true);
    int rv = thread_start(&f->thread, front_run, f);
    f->started = rv == 0;
    return f->started || error_set(err, ERR_IO, "cannot make a thread to listen on '%s': %s", f->address, strerror(rv));
}

bool front_identity(struct front *f, const struct join_identity *id, struct error *err)
{
    struct tls_side *side = tls_side_new(id, TLS_ANSWERS, err);
    if (side)
        front_queue_identity(&f->queue, side);
    return side != NULL;
}

void front_cut(struct front *f)
{
    front_queue_cut(&f->queue);
}

void front_bulk(struct front *f, front_take *take, void *ctx)
{
    f->take_ctx = ctx;
    atomic_store(&f->take, take);
}

void front_answer(struct front *f, uint64_t connection, const struct tls_trace *trace, const void *data, size_t len)
{
    front_queue_answer(&f->queue, connection, trace, data, len);
}

void front_drop(struct front *f)
{
    front_queue_drop(&f->queue);
}

void front_free(struct front *f)
{
    if (!f)
        return;
    atomic_store(&f->over, true);
    if (f->started) {
        front_queue_wake(&f->queue);
        pthread_join(f->thread, NULL);
    }
    if (f->listen_fd >= 0)
        close(f->listen_fd);
    if (f->epoll_fd >= 0)
        close(f->epoll_fd);
    front_queue_release(&f->queue);
    free(f);
}
