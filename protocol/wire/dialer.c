/* A connection's steps, and the functions that change them:
 *   STEP_REST      link_lose      there is none; the next attempt is due at due_ms
 *   STEP_LOOKUP    dial           a name server is asked for the address
 *   STEP_CONNECT   address_next   one of its numbers is being connected to; when that fails, the next one is
 *   STEP_SHAKE     link_begin     the handshake
 *   STEP_IN        link_take      requests go out and answers come in
 *
 * What both threads use is guarded by the lock. tell is called with it held, so that after dialer_free nobody is told. A thread in a lookup,
 * which cannot be interrupted, is left behind with the struct; one anywhere else ends at once and is waited for. */
#include "protocol/wire/dialer.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/mix64.h"
#include "protocol/base/tcp.h"
#include "protocol/base/thread.h"
#include "protocol/wire/tls_link.h"

#define LOOKUP_MS 10000
#define CONNECT_MS 3000    // for each number that the name stands for
#define SHAKE_MS 10000
#define PAUSE_LEAST_MS 20    // before another attempt; doubled each time
#define PAUSE_MOST_MS 250
#define STRANGE_LEAST_MS 2000    // the same two for a side that does not accept our token: many nodes may have an old one
#define STRANGE_MOST_MS 10000
#define SILENT_MS 6000    // without an answer, while requests have passed their limits
#define ALIVE_MS 60000    // the same while the other host acknowledges packets: what was asked may be long, and the way slow
#define LOOK_MS 1000      // between two looks whether it does
#define CHUNK_BYTES 65536
#define UNSENT_BYTES_MAX ((size_t)1 << 20)    // in the link; more requests wait outside

enum step {
    STEP_REST,
    STEP_LOOKUP,
    STEP_CONNECT,
    STEP_SHAKE,
    STEP_IN,
};
struct dialer {
    char address[280], host[280];
    const char *port;    // within address
    struct tls_side *side;
    dialer_tell *tell;
    int event_fd;    // readable when the loop's thread wants something
    pthread_t thread;
    atomic_bool in, strange;
    pthread_mutex_t lock;            // guards: the next group
    struct dialed *first, **last;    // not sent yet
    struct dialed *sent;             // without an answer
    enum step step;                  // written by the dialer's thread alone
    char why[ERROR_TEXT_BYTES];      // the last connection failed; "": none has
    bool over, left_behind, retired;
    bool late;    // one that was sent has passed its limit since the last answer
    /* the dialer's thread's */
    struct addrinfo *addresses, *at;
    int fd;
    struct tls_link *link;
    uint32_t n_asked;
    int64_t due_ms;       // when the step has taken too long, or the next one begins
    int64_t pause_ms;     // before the next attempt
    int64_t heard_ms;     // when it was connected or last answered
    int64_t looked_ms;    // when the other host was last seen to acknowledge packets
    uint8_t chunk[CHUNK_BYTES];
};

static bool is_set(struct dialer *d, const bool *flag)
{
    pthread_mutex_lock(&d->lock);
    bool set = *flag;
    pthread_mutex_unlock(&d->lock);
    return set;
}

static void step_set(struct dialer *d, enum step step, int64_t due_ms)
{
    pthread_mutex_lock(&d->lock);
    d->step = step;
    pthread_mutex_unlock(&d->lock);
    d->due_ms = due_ms;
}

/* ---- one connection ---- */

/* Between half of the pause and all of it: those that lost the other side at the same moment do not all come back at the same. */
static int64_t pause_next(struct dialer *d)
{
    bool strange = atomic_load(&d->strange);
    int64_t least = strange ? STRANGE_LEAST_MS : PAUSE_LEAST_MS, most = strange ? STRANGE_MOST_MS : PAUSE_MOST_MS;
    int64_t pause = MIN(MAX(d->pause_ms, least), most);
    d->pause_ms = 2 * pause;
    return pause / 2 + (int64_t)(mix64((uint64_t)clock_ns() ^ (uintptr_t)d) % (uint64_t)(pause / 2 + 1));
}

static void link_close(struct dialer *d)
{
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
    tls_link_free(d->link);
    d->link = NULL;
    if (d->addresses)
        freeaddrinfo(d->addresses);
    d->addresses = d->at = NULL;
    atomic_store(&d->in, false);
}

/* There is no connection any more: what was asked there gets no answer. */
static void link_lose(struct dialer *d, const char *why)
{
    if (d->link && tls_link_is_strange(d->link))
        atomic_store(&d->strange, true);
    link_close(d);
    int64_t pause = pause_next(d);
    log_debug("'%s': %s; dialing again in %" PRId64 " ms", d->address, why, pause);
    pthread_mutex_lock(&d->lock);
    snprintf(d->why, sizeof d->why, "%s", why);
    d->late = false;
    for (struct dialed *q; !d->over && (q = d->sent);) {
        d->sent = q->next;
        d->tell(q, NULL, 0);
    }
    d->step = STEP_REST;
    d->due_ms = clock_ms() + pause;
    pthread_mutex_unlock(&d->lock);
}

static void link_lose_errno(struct dialer *d, const char *what, int code)
{
    char why[200];
    snprintf(why, sizeof why, "%s: %s", what, strerror(code));
    link_lose(d, why);
}

/* Begin to connect to the next number of the address. */
static void address_next(struct dialer *d, int code)
{
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
    for (; d->at; d->at = d->at->ai_next) {
        d->fd = socket(d->at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (d->fd >= 0 && (connect(d->fd, d->at->ai_addr, d->at->ai_addrlen) == 0 || errno == EINPROGRESS)) {
            d->at = d->at->ai_next;
            step_set(d, STEP_CONNECT, clock_ms() + CONNECT_MS);
            return;
        }
        code = errno;
        if (d->fd >= 0)
            close(d->fd);
        d->fd = -1;
    }
    link_lose_errno(d, "no TCP connection", code);
}

static void dial(struct dialer *d)
{
    struct error err;
    step_set(d, STEP_LOOKUP, INT64_MAX);
    d->addresses = d->at = tcp_lookup(d->host, d->port, "the head", LOOKUP_MS, &err);
    if (d->addresses)
        address_next(d, EADDRNOTAVAIL);
    else
        link_lose(d, err.text);
}

/* Where nothing is sent nothing is acknowledged: the kernel asks the other one whether it is there, and is answered though the head takes long. */
static void connection_tune(int fd)
{
    int one = 1, gap_s = SILENT_MS / 3000, most = 127;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    tcp_suit(fd);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &gap_s, sizeof gap_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &gap_s, sizeof gap_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &most, sizeof most);    // when to end it is for us to say
}

/* It is connected, or that has failed. */
static void link_begin(struct dialer *d)
{
    int code = 0;
    socklen_t len = sizeof code;
    if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &code, &len) != 0)
        code = errno;
    if (code != 0) {
        address_next(d, code);
        return;
    }
    connection_tune(d->fd);
    if ((d->link = tls_link_new(d->side)))
        step_set(d, STEP_SHAKE, clock_ms() + SHAKE_MS);
    else
        link_lose(d, "no memory for TLS");
}

/* Tell the owners of the requests whose answers have come whole. */
static bool answers_tell(struct dialer *d, struct error *err)
{
    struct tls_message m;
    bool came;
    while (tls_link_next(d->link, &m, &came, err)) {
        if (!came)
            return true;
        uint32_t id = (uint32_t)m.trace.byte[0] << 24 | (uint32_t)m.trace.byte[1] << 16 | (uint32_t)m.trace.byte[2] << 8 | m.trace.byte[3];
        d->heard_ms = clock_ms();
        pthread_mutex_lock(&d->lock);
        d->late = false;
        for (struct dialed **at = &d->sent; *at && m.trace.len == 4; at = &(*at)->next)
            if ((*at)->id == id) {
                struct dialed *q = *at;
                *at = q->next;
                d->tell(q, m.data, m.len);
                break;
            }
        pthread_mutex_unlock(&d->lock);
    }
    return false;
}

static void link_in(struct dialer *d)
{
    d->heard_ms = clock_ms();
    d->pause_ms = 0;
    atomic_store(&d->strange, false);
    atomic_store(&d->in, true);
    pthread_mutex_lock(&d->lock);
    d->why[0] = 0;
    pthread_mutex_unlock(&d->lock);
    step_set(d, STEP_IN, INT64_MAX);
}

/* Read what has come. */
static void link_take(struct dialer *d)
{
    struct error err;
    ssize_t n = recv(d->fd, d->chunk, sizeof d->chunk, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        link_lose_errno(d, "the connection has ended", n == 0 ? ECONNRESET : errno);
        return;
    }
    bool ok = tls_link_take(d->link, d->chunk, (size_t)n, &err);
    if (d->step == STEP_SHAKE && tls_link_is_in(d->link))
        link_in(d);
    struct error why;
    if (!answers_tell(d, &why)) {    // also those that came before its end
        link_lose(d, why.text);
    } else if (!ok) {
        bool told = tls_link_send(d->link, d->fd);    // why, in TLS's words
        (void)told;
        link_lose(d, err.text);
    }
}

/* Put requests into the link, and send what it has. */
static void link_say(struct dialer *d)
{
    bool ok = true;
    while (ok && d->step == STEP_IN && tls_link_waiting(d->link) < UNSENT_BYTES_MAX) {
        pthread_mutex_lock(&d->lock);
        struct dialed *q = d->over ? NULL : d->first;
        if (!q) {
            pthread_mutex_unlock(&d->lock);
            break;
        }
        q->id = ++d->n_asked | 0x80000000u;
        struct tls_trace trace = { { (uint8_t)(q->id >> 24), (uint8_t)(q->id >> 16), (uint8_t)(q->id >> 8), (uint8_t)q->id }, 4 };
        if ((ok = tls_link_say(d->link, &trace, q->data, q->len))) {
            d->first = q->next;
            if (!d->first)
                d->last = &d->first;
            q->next = d->sent;
            d->sent = q;
        }
        pthread_mutex_unlock(&d->lock);
        ok = ok && tls_link_send(d->link, d->fd);
    }
    if (!ok || !tls_link_send(d->link, d->fd))
        link_lose(d, "the connection is broken, or there is no memory for what goes there");
}

/* ---- is it dead? ---- */

/* When the other side has acknowledged a packet last, in ms ago; INT64_MAX: this is no connection that goes on. */
static int64_t acked_ms(int fd)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    bool goes_on = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_ESTABLISHED;
    return goes_on ? (int64_t)info.tcpi_last_ack_recv : INT64_MAX;
}

/* Does the connection go on, and has the other host acknowledged packets lately? It counts, too, on our other connections there: on a narrow way
 * a few hundred KiB of one of them hold up the packets of all. */
static bool other_host_is_alive(const struct dialer *d)
{
    struct sockaddr_storage other, its;
    socklen_t len = sizeof other;
    bool alive = false;
    if (acked_ms(d->fd) == INT64_MAX || getpeername(d->fd, (struct sockaddr *)&other, &len) != 0)
        return false;
    DIR *dir = opendir("/proc/self/fd");
    for (const struct dirent *e; dir && !alive && (e = readdir(dir));) {
        int one = e->d_name[0] == '.' ? -1 : atoi(e->d_name);
        len = sizeof its;
        alive = one >= 0 && getpeername(one, (struct sockaddr *)&its, &len) == 0 && tcp_same_host(&its, &other)
                && acked_ms(one) < SILENT_MS;
    }
    if (dir)
        closedir(dir);
    return alive;
}

/* When a connection on which a request is late must be looked at; INT64_MAX: none is. */
static int64_t silence_due(struct dialer *d)
{
    return d->step == STEP_IN && is_set(d, &d->late) ? MAX(d->heard_ms + SILENT_MS, d->looked_ms + LOOK_MS) : INT64_MAX;
}

static void silence_look(struct dialer *d, int64_t now)
{
    if (now < d->heard_ms + ALIVE_MS && other_host_is_alive(d)) {
        d->looked_ms = now;
        return;
    }
    log_warn("'%s' has answered nothing for %" PRId64 " ms; redialing it", d->address, now - d->heard_ms);
    link_lose(d, "it has answered nothing for too long");
}

/* ---- the thread ---- */

/* What is due by the clock. */
static void tick(struct dialer *d)
{
    int64_t now = clock_ms();
    if (now >= silence_due(d))
        silence_look(d, now);
    if (now < d->due_ms)
        return;
    if (d->step == STEP_REST && is_set(d, &d->retired))
        d->due_ms = INT64_MAX;
    else if (d->step == STEP_REST)
        dial(d);
    else if (d->step == STEP_CONNECT)
        address_next(d, ETIMEDOUT);
    else if (d->step == STEP_SHAKE)
        link_lose(d, "the other side has not shown the join token in time");
}

static void turn(struct dialer *d)
{
    size_t len;
    uint64_t n;
    short wants = d->step == STEP_CONNECT ? POLLOUT : POLLIN;
    if (d->link && tls_link_bytes(d->link, &len))
        wants |= POLLOUT;
    struct pollfd p[] = { { .fd = d->event_fd, .events = POLLIN }, { .fd = d->fd, .events = wants } };
    int64_t due = MIN(d->due_ms, silence_due(d)), wait = MAX(due - clock_ms(), (int64_t)0);
    poll(p, 2, due == INT64_MAX ? -1 : (int)MIN(wait, (int64_t)60000));
    if (p[0].revents)
        (void)!read(d->event_fd, &n, sizeof n);
    if (d->fd >= 0 && p[1].revents && d->step == STEP_CONNECT)
        link_begin(d);
    else if (d->link && (p[1].revents & ~POLLOUT))
        link_take(d);
    if (d->link)
        link_say(d);
    tick(d);
}

static void dialer_release(struct dialer *d)
{
    if (d->event_fd >= 0)
        close(d->event_fd);
    tls_side_free(d->side);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static void *dialer_run(void *arg)
{
    struct dialer *d = arg;
    while (!is_set(d, &d->over))
        turn(d);
    link_close(d);
    if (d->left_behind)
        dialer_release(d);
    return NULL;
}

/* ---- for the transport ---- */

struct dialer *dialer_new(const char *address, const struct join_identity *id, dialer_tell *tell, struct error *err)
{
    struct dialer *d = calloc(1, sizeof *d);
    int rv;
    if (!d) {
        error_set(err, ERR_NO_MEMORY, "no memory to dial '%s'", address);
        return NULL;
    }
    snprintf(d->address, sizeof d->address, "%s", address);
    d->tell = tell;
    d->last = &d->first;
    d->fd = -1;
    pthread_mutex_init(&d->lock, NULL);
    d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->port = tcp_host(d->address, d->host, sizeof d->host);
    TRY(d->event_fd >= 0 || error_errno(err, "cannot dial '%s'", address));
    TRY(d->port || error_set(err, ERR_USAGE, "'%s' is not HOST:PORT", address));
    TRY(d->side = tls_side_new(id, TLS_ASKS, err));
    rv = thread_start(&d->thread, dialer_run, d);
    TRY(rv == 0 || error_set(err, ERR_IO, "cannot make a thread to dial '%s': %s", address, strerror(rv)));
    return d;
out:
    dialer_release(d);
    return NULL;
}

bool dialer_is_in(const struct dialer *d)
{
    return atomic_load(&d->in);
}

bool dialer_is_strange(const struct dialer *d)
{
    return atomic_load(&d->strange);
}

void dialer_step(struct dialer *d, char *out, size_t size)
{
    static const char *const words[] = { [STEP_REST] = "waiting to dial again",
                                         [STEP_LOOKUP] = "looking its name up",
                                         [STEP_CONNECT] = "connecting to it",
                                         [STEP_SHAKE] = "waiting for it to show the join token",
                                         [STEP_IN] = "connected" };
    pthread_mutex_lock(&d->lock);
    snprintf(out, size, "%s%s%s", words[d->step], d->why[0] ? "; before that: " : "", d->why);
    pthread_mutex_unlock(&d->lock);
}

static void wake(struct dialer *d)
{
    uint64_t one = 1;
    (void)!write(d->event_fd, &one, sizeof one);    // fails only when the counter is full, and then it is readable anyway
}

void dialer_ask(struct dialer *d, struct dialed *q)
{
    q->next = NULL;
    pthread_mutex_lock(&d->lock);
    *d->last = q;
    d->last = &q->next;
    pthread_mutex_unlock(&d->lock);
    wake(d);
}

static bool list_take(struct dialed **list, const struct dialed *q)
{
    for (struct dialed **at = list; *at; at = &(*at)->next)
        if (*at == q) {
            *at = q->next;
            return true;
        }
    return false;
}

bool dialer_take_back(struct dialer *d, struct dialed *q)
{
    pthread_mutex_lock(&d->lock);
    bool had = list_take(&d->first, q);
    for (d->last = &d->first; *d->last;)
        d->last = &(*d->last)->next;
    if (!had && (had = list_take(&d->sent, q)))
        d->late = true;
    pthread_mutex_unlock(&d->lock);
    wake(d);
    return had;
}

struct dialed *dialer_unsent(struct dialer *d)
{
    pthread_mutex_lock(&d->lock);
    struct dialed *q = d->first;
    if (q && !(d->first = q->next))
        d->last = &d->first;
    pthread_mutex_unlock(&d->lock);
    return q;
}

void dialer_retire(struct dialer *d)
{
    pthread_mutex_lock(&d->lock);
    d->retired = true;
    pthread_mutex_unlock(&d->lock);
}

void dialer_free(struct dialer *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->over = true;
    d->first = d->sent = NULL;
    d->last = &d->first;
    d->left_behind = d->step == STEP_LOOKUP;
    bool joins = !d->left_behind;
    pthread_t thread = d->thread;
    if (!joins)
        pthread_detach(thread);
    pthread_mutex_unlock(&d->lock);
    if (!joins)
        return;    // it has the struct now
    wake(d);
    pthread_join(thread, NULL);
    dialer_release(d);
}
