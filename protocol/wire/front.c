/* A connection's stages, and the functions that change them:
 *   STAGE_HELLO   visit_accept     its ClientHello is not complete yet; nng does not know of it
 *   STAGE_SHAKE   visit_pass_on    nng has it
 *   STAGE_IN      visits_admit     nng reports that it has shown the token
 *                 visit_hand_over  one for large data has said hello; it is not ours any more
 *   STAGE_LEAVES  visit_drop       the caller's side is closed; nng has been told by the end of its input, and closes its side
 * A connection to nng is never reset while nng negotiates: nng 1.5 mistakes a hang-up there for its own closing and accepts nothing
 * more. */
#include "protocol/wire/front.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/tcp.h"
#include "protocol/wire/bulk.h"

#define LEAVE_MS 5000    // time for nng to close its side
#define DEAF_MS 4000     // normally nng answers a ClientHello in milliseconds
#define SHAKE_MS 1000    // for a handshake, which takes milliseconds
#define TICK_MS 250      // while a time limit is running
#define GAP_MS 1000      // between two ticks: this process was stopped or starved
#define LOG_MS 10000
#define VISITS_MAX 4096    // 1000 nodes with up to four connections each
#define STRANGERS_MAX 64
#define FDS_EACH 3         // the caller's, ours to nng, nng's
#define FDS_KEPT 256       // for everything else that the process opens, connections for large data among it
#define WAY_BYTES 65536    // more than the largest ClientHello, 16384 + 5
#define ROUNDS_MAX 16      // reads of one connection before the others have their turn
#define PORTS 65536
#define EVENTS_MAX 64

enum stage {
    STAGE_HELLO,
    STAGE_SHAKE,
    STAGE_IN,
    STAGE_LEAVES,
};
enum why {
    WHY_LATE,
    WHY_MANY,
    WHY_NO_TLS,
    WHY_NO_TOKEN,
    WHY_LEFT,
    WHY_COUNT,
};
struct way {
    uint8_t byte[WAY_BYTES];
    size_t begin, end;        // bytes waiting to be sent
    bool any, ended, told;    // something has arrived; nothing more will; the other side has been told so
};
struct end {
    int fd;              // -1: closed
    uint32_t watched;    // events that epoll waits for; 0: not registered
};
struct visit {
    enum stage stage;
    struct end caller, nng;
    uint16_t port;        // our port on 127.0.0.1, by which nng knows us
    uint16_t target;      // nng's
    int64_t n;            // how many were accepted before it; there may be many in a millisecond
    int64_t since_ms;     // when it was accepted, or began to leave
    int64_t passed_ms;    // when it was passed on to nng
    bool answered;        // nng has answered
    struct sockaddr_storage from;
    struct way in, out;    // to nng, and from nng
};
struct front {
    char address[280];
    int64_t limit_ms;    // from accept until the token is shown
    int listen_fd, epoll_fd, event_fd;
    pthread_t thread;
    bool started;
    atomic_bool over, deaf;
    atomic_int target;               // nng's port
    _Atomic(front_take *) take;      // of connections for large data; NULL: nobody takes them
    void *take_ctx;                  // written before take
    atomic_uchar admitted[PORTS];    // ports that have shown the token
    atomic_uchar ours[PORTS];        // ports of our connections to nng
    atomic_uchar ended[PORTS];       // ports at which nng has been told to listen no more
    atomic_bool any_ended;           // since the last look
    uint8_t nngs[PORTS];             // the loop thread's: ports at which nng listens
    uint8_t stray[PORTS];            // the loop thread's: ports that were not ours at the last look
    /* the front's thread's: */
    struct visit *visit[VISITS_MAX];    // NULL: free
    int visits_max, strangers_max, n_visit;
    bool listens;    // epoll watches listen_fd
    int64_t n_accepted, ticked_ms, logged_ms, answered_ms;
    int64_t n_away[WHY_COUNT];    // turned away since logged_ms
    char last_away[80];
};
#define ID_LISTEN (2 * VISITS_MAX)
#define ID_EVENT (2 * VISITS_MAX + 1)

/* ---- addresses ---- */

static uint16_t port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *))
{
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    return name(fd, (struct sockaddr *)&a, &len) == 0 && len == sizeof a && a.sin_family == AF_INET ? ntohs(a.sin_port) : 0;
}

static int our_name(int fd, struct sockaddr *a, socklen_t *len)
{
    return getsockname(fd, a, len);
}

static int their_name(int fd, struct sockaddr *a, socklen_t *len)
{
    return getpeername(fd, a, len);
}

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

static void end_watch(struct front *f, struct end *e, uint32_t events, int id)
{
    struct epoll_event ev = { .events = events, .data.u64 = (uint64_t)id };
    if (e->fd < 0 || events == e->watched)
        return;
    int op = !e->watched ? EPOLL_CTL_ADD : events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
    if (epoll_ctl(f->epoll_fd, op, e->fd, &ev) == 0)
        e->watched = events;
}

static void end_close(struct end *e)
{
    if (e->fd >= 0)
        close(e->fd);
    *e = (struct end){ .fd = -1 };
}

static void visit_watch(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    bool room_in = !v->in.ended && v->in.end < WAY_BYTES, room_out = !v->out.ended && v->out.end < WAY_BYTES;
    end_watch(f, &v->caller, (room_in ? EPOLLIN : 0u) | (v->out.begin < v->out.end ? EPOLLOUT : 0u), 2 * at);
    end_watch(f, &v->nng, (room_out ? EPOLLIN : 0u) | (v->in.begin < v->in.end ? EPOLLOUT : 0u), 2 * at + 1);
}

static void visit_end(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    end_close(&v->caller);
    end_close(&v->nng);
    if (v->port)
        atomic_store(&f->ours[v->port], 0);
    free(v);
    f->visit[at] = NULL;
    f->n_visit--;
}

static void visit_drop(struct front *f, int at, enum why why)
{
    struct visit *v = f->visit[at];
    if (v->stage < STAGE_IN)
        away_note(f, why, &v->from);
    if (v->stage == STAGE_HELLO || v->stage == STAGE_LEAVES) {
        visit_end(f, at);
        return;
    }
    end_close(&v->caller);
    shutdown(v->nng.fd, SHUT_WR);
    v->stage = STAGE_LEAVES;
    v->since_ms = clock_ms();
    end_watch(f, &v->nng, EPOLLIN, 2 * at + 1);
}

/* Move what can be moved from one socket to the other. False: one of them failed; broken says which. */
static bool way_move(struct way *w, int from, int to, int *broken)
{
    for (int round = 0; round < ROUNDS_MAX; round++) {
        bool moved = false;
        if (w->begin > 0 && w->end == WAY_BYTES) {
            memmove(w->byte, w->byte + w->begin, w->end - w->begin);
            w->end -= w->begin;
            w->begin = 0;
        }
        if (!w->ended && w->end < WAY_BYTES) {
            ssize_t n = recv(from, w->byte + w->end, WAY_BYTES - w->end, MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN && errno != EINTR) {
                *broken = from;
                return false;
            }
            w->ended = n == 0;
            w->end += n > 0 ? (size_t)n : 0;
            moved = n > 0;
            w->any = w->any || moved;
        }
        if (w->begin < w->end) {
            ssize_t n = send(to, w->byte + w->begin, w->end - w->begin, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN && errno != EINTR) {
                *broken = to;
                return false;
            }
            w->begin += n > 0 ? (size_t)n : 0;
            moved = moved || n > 0;
            if (w->begin == w->end)
                w->begin = w->end = 0;
        }
        if (w->ended && w->begin == w->end && !w->told) {
            shutdown(to, SHUT_WR);
            w->told = true;
        }
        if (!moved)
            break;
    }
    return true;
}

static void visit_move(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    int broken = -1;
    bool whole = way_move(&v->in, v->caller.fd, v->nng.fd, &broken) && way_move(&v->out, v->nng.fd, v->caller.fd, &broken);
    bool by_nng = v->out.ended || broken == v->nng.fd;
    if (!v->answered && (v->out.any || by_nng)) {
        v->answered = true;
        f->answered_ms = clock_ms();
    }
    if (!whole || (v->in.told && v->out.told))
        visit_drop(f, at, by_nng && !v->in.ended ? WHY_NO_TOKEN : WHY_LEFT);
    else
        visit_watch(f, at);
}

/* A whole ClientHello has arrived: pass it to nng. */
static void visit_pass_on(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    int one = 1;
    v->target = (uint16_t)atomic_load(&f->target);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(v->target), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    v->nng.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (v->nng.fd < 0 || (connect(v->nng.fd, (const struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS)) {
        visit_drop(f, at, WHY_MANY);
        return;
    }
    setsockopt(v->nng.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    v->port = port_of(v->nng.fd, our_name);
    atomic_store(&f->admitted[v->port], 0);
    atomic_store(&f->ours[v->port], 1);
    v->stage = STAGE_SHAKE;
    v->passed_ms = clock_ms();
    visit_move(f, at);
}

/* A connection for large data: its hello is whole, or will be, or it is none. The caller then waits for an answer, so nothing follows. */
static void visit_hand_over(struct front *f, int at, front_take *take)
{
    struct visit *v = f->visit[at];
    size_t n = v->in.end;
    if (memcmp(v->in.byte, BULK_MAGIC, MIN(n, (size_t)4)) != 0 || n > BULK_HELLO_BYTES) {
        visit_drop(f, at, WHY_NO_TLS);
        return;
    }
    if (n < BULK_HELLO_BYTES)
        return;
    end_watch(f, &v->caller, 0, 2 * at);
    if (!take(f->take_ctx, v->caller.fd, v->in.byte)) {
        visit_drop(f, at, WHY_NO_TOKEN);
        return;
    }
    v->caller.fd = -1;
    visit_end(f, at);
}

/* The first record: RFC 5246, 6.2.1 and 7.4: type handshake, version 3.x, two bytes of length, then the message's type, client_hello. */
static void visit_hear(struct front *f, int at)
{
    static const uint8_t begins[] = { 22, 3 };
    struct visit *v = f->visit[at];
    struct way *w = &v->in;
    ssize_t n = recv(v->caller.fd, w->byte + w->end, WAY_BYTES - w->end, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        visit_drop(f, at, WHY_LEFT);
        return;
    }
    w->end += (size_t)n;
    front_take *take = atomic_load(&f->take);
    if (take && w->byte[0] == BULK_MAGIC[0]) {
        visit_hand_over(f, at, take);
        return;
    }
    size_t len = w->end < 5 ? 0 : (size_t)w->byte[3] << 8 | w->byte[4];
    bool length_ok = w->end < 5 || (len >= 4 && len <= 16384), type_ok = w->end < 6 || w->byte[5] == 1;
    if (memcmp(w->byte, begins, MIN(w->end, sizeof begins)) != 0 || !length_ok || !type_ok)
        visit_drop(f, at, WHY_NO_TLS);
    else if (w->end >= 5 && w->end >= 5 + len)
        visit_pass_on(f, at);
}

/* The connection is leaving: keep reading until nng has closed its side. */
static void visit_see_off(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    ssize_t n = recv(v->nng.fd, v->out.byte, WAY_BYTES, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        visit_end(f, at);
}

/* The front ends, and nng has closed its side: what it wrote before, such as a last answer, still goes to the caller. */
static void visit_flush(struct front *f, int at)
{
    struct visit *v = f->visit[at];
    int broken;
    if (v->stage == STAGE_SHAKE || v->stage == STAGE_IN) {
        way_move(&v->in, v->caller.fd, v->nng.fd, &broken);    // what is left unread would be answered with a reset
        way_move(&v->out, v->nng.fd, v->caller.fd, &broken);
    }
    visit_end(f, at);
}

/* ---- all of them ---- */

static bool is_stranger(const struct visit *v)
{
    return v && v->stage < STAGE_IN;
}

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
        if (n > n_best || (n == n_best && f->visit[i]->n < f->visit[best]->n)) {
            best = i;
            n_best = n;
        }
    }
    return best;
}

/* Which connection makes room for one from this address; -1: none does. Of the address with the most strangers it is the oldest that has
 * not sent its ClientHello, then the oldest, which its own address does not disturb for SHAKE_MS. */
static int victim_find(const struct front *f, const struct sockaddr_storage *from)
{
    int best = crowd_find(f), silent = -1;
    for (int i = 0; best >= 0 && i < f->visits_max; i++) {
        const struct visit *v = f->visit[i];
        if (v && v->stage == STAGE_HELLO && tcp_same_host(&v->from, &f->visit[best]->from) && (silent < 0 || v->n < f->visit[silent]->n))
            silent = i;
    }
    if (best < 0 || silent >= 0)
        return silent;
    bool shakes = clock_ms() < f->visit[best]->passed_ms + SHAKE_MS;
    return shakes && tcp_same_host(&f->visit[best]->from, from) ? -1 : best;
}

static bool room_make(struct front *f, const struct sockaddr_storage *from)
{
    int n = 0;
    for (int i = 0; i < f->visits_max; i++)
        n += is_stranger(f->visit[i]);
    if (n < f->strangers_max && f->n_visit < f->visits_max)
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
    struct visit *v = room_make(f, &from) ? malloc(sizeof *v) : NULL;
    if (!v) {
        away_note(f, WHY_MANY, &from);
        close(fd);
        return;
    }
    memset(v, 0, offsetof(struct visit, in));
    v->in.begin = v->in.end = v->out.begin = v->out.end = 0;
    v->in.ended = v->in.told = v->in.any = v->out.ended = v->out.told = v->out.any = false;
    v->caller.fd = fd;
    v->nng.fd = -1;
    v->from = from;
    v->n = f->n_accepted++;
    v->since_ms = clock_ms();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    tcp_suit(fd);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);    // a host that is gone says nothing: drop it after two minutes
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &gap_s, sizeof gap_s);
    int at = 0;
    while (f->visit[at])
        at++;
    f->visit[at] = v;
    f->n_visit++;
    end_watch(f, &v->caller, EPOLLIN, 2 * at);
}

static void visits_admit(struct front *f)
{
    for (int i = 0; i < f->visits_max; i++)
        if (f->visit[i] && f->visit[i]->stage == STAGE_SHAKE && atomic_exchange(&f->admitted[f->visit[i]->port], 0))
            f->visit[i]->stage = STAGE_IN;
}

/* End the connections to ports that are no more. nng may take for ever (transport.c, 5), and who had an ended token is to be out. */
static void visits_cut(struct front *f)
{
    int broken;
    if (!atomic_exchange(&f->any_ended, false))
        return;
    for (int i = 0; i < f->visits_max; i++) {
        struct visit *v = f->visit[i];
        if (!v || (v->stage != STAGE_SHAKE && v->stage != STAGE_IN) || !atomic_load(&f->ended[v->target]))
            continue;
        way_move(&v->out, v->nng.fd, v->caller.fd, &broken);    // a last answer
        visit_drop(f, i, WHY_LEFT);
    }
}

/* Apply the limits. Returns whether any is running. */
static bool visits_tick(struct front *f)
{
    bool runs = false;
    int64_t now = clock_ms(), gap_ms = now - f->ticked_ms;
    f->ticked_ms = now;
    listen_watch(f, true);
    for (int i = 0; i < f->visits_max; i++) {
        struct visit *v = f->visit[i];
        if (!v || v->stage == STAGE_IN)
            continue;
        runs = true;
        if (gap_ms > GAP_MS) {    // nng's threads did not run in that time either
            v->since_ms += gap_ms;
            v->passed_ms += gap_ms;
        }
        if (v->stage == STAGE_SHAKE && !v->answered && now >= v->passed_ms + DEAF_MS && f->answered_ms < v->passed_ms)
            atomic_store(&f->deaf, true);
        if (now >= v->since_ms + (v->stage == STAGE_LEAVES ? LEAVE_MS : f->limit_ms))
            visit_drop(f, i, WHY_LATE);
    }
    away_tell(f, now);
    return runs || away_sum(f) > 0 || !f->listens;
}

static void event_take(struct front *f, uint64_t id, uint32_t events)
{
    uint64_t n;
    if (id == ID_LISTEN) {
        visit_accept(f);
    } else if (id == ID_EVENT) {
        ssize_t got = read(f->event_fd, &n, sizeof n);
        (void)got;
    } else if (f->visit[id / 2]) {    // it may have ended in this turn; looking at its successor does no harm
        int at = (int)(id / 2);
        switch (f->visit[at]->stage) {
        case STAGE_HELLO: visit_hear(f, at); break;
        case STAGE_SHAKE:
        case STAGE_IN:
            if (events & EPOLLERR)    // a reset, which may show up in neither reading nor writing
                visit_drop(f, at, id % 2 ? WHY_NO_TOKEN : WHY_LEFT);
            else
                visit_move(f, at);
            break;
        case STAGE_LEAVES: visit_see_off(f, at); break;
        }
    }
}

static void *front_run(void *arg)
{
    struct front *f = arg;
    struct epoll_event ev[EVENTS_MAX];
    bool runs = false;
    f->ticked_ms = clock_ms();
    while (!atomic_load(&f->over)) {
        int n = epoll_wait(f->epoll_fd, ev, EVENTS_MAX, runs ? TICK_MS : -1);
        if (!runs)
            f->ticked_ms = clock_ms();    // the thread slept because nothing was due
        for (int i = 0; i < n; i++)
            event_take(f, ev[i].data.u64, ev[i].events);
        visits_admit(f);
        visits_cut(f);
        runs = visits_tick(f);
    }
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
    f->listen_fd = f->epoll_fd = f->event_fd = -1;
    f->logged_ms = clock_ms() - LOG_MS;
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0 && fds.rlim_cur < fds.rlim_max) {
        struct rlimit more = { MIN(fds.rlim_max, (rlim_t)(FDS_KEPT + FDS_EACH * VISITS_MAX)), fds.rlim_max };
        if (more.rlim_cur > fds.rlim_cur && setrlimit(RLIMIT_NOFILE, &more) == 0)
            fds = more;
    }
    int64_t room = ((int64_t)MIN(fds.rlim_cur, (rlim_t)100000) - FDS_KEPT) / FDS_EACH;
    f->visits_max = (int)MAX(MIN(room, (int64_t)VISITS_MAX), (int64_t)6);
    f->strangers_max = MIN(f->visits_max / 3, STRANGERS_MAX);
    if ((f->listen_fd = tcp_listen(address, err)) < 0)
        goto fail;
    f->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    f->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->epoll_fd < 0 || f->event_fd < 0) {
        error_errno(err, "cannot listen on '%s'", address);
        goto fail;
    }
    return f;
fail:
    front_free(f);
    return NULL;
}

bool front_start(struct front *f, uint16_t port, struct error *err)
{
    sigset_t all, before;
    struct epoll_event ev = { .events = EPOLLIN, .data.u64 = ID_EVENT };
    front_target(f, port);
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, f->event_fd, &ev) != 0)
        return error_errno(err, "cannot listen on '%s'", f->address);
    listen_watch(f, true);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);    // signals are for the loop's thread
    int rv = pthread_create(&f->thread, NULL, front_run, f);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    f->started = rv == 0;
    return f->started || error_set(err, ERR_IO, "cannot make a thread to listen on '%s': %s", f->address, strerror(rv));
}

static void front_wake(struct front *f)
{
    uint64_t one = 1;
    ssize_t n = write(f->event_fd, &one, sizeof one);
    (void)n;
}

void front_bulk(struct front *f, front_take *take, void *ctx)
{
    f->take_ctx = ctx;
    atomic_store(&f->take, take);
}

void front_admit(struct front *f, uint16_t port)
{
    atomic_store(&f->admitted[port], 1);
    front_wake(f);
}

bool front_is_deaf(const struct front *f)
{
    return atomic_load(&f->deaf);
}

void front_target(struct front *f, uint16_t port)
{
    f->nngs[port] = 1;
    atomic_store(&f->ended[port], 0);
    atomic_store(&f->target, port);
    atomic_store(&f->deaf, false);
}

void front_forget(struct front *f, uint16_t port)
{
    f->nngs[port] = 0;
    atomic_store(&f->ended[port], 1);
    atomic_store(&f->any_ended, true);
    front_wake(f);
}

void front_check(struct front *f)
{
    uint8_t now[PORTS] = { 0 };
    DIR *dir = opendir("/proc/self/fd");
    for (const struct dirent *d; dir && (d = readdir(dir));) {
        /* A copy: nng may close its own descriptor, and the number may be reused for another connection. */
        int fd = d->d_name[0] == '.' ? -1 : fcntl(atoi(d->d_name), F_DUPFD_CLOEXEC, 0);
        uint16_t port = fd >= 0 && f->nngs[port_of(fd, our_name)] ? port_of(fd, their_name) : 0;
        if (port && !atomic_load(&f->ours[port])) {
            now[port] = 1;
            if (f->stray[port] && shutdown(fd, SHUT_RD) == 0)    // seen twice: it is not one that is just being made
                log_warn("a process on this host connected to nng directly, not through '%s'; its connection is closed", f->address);
        }
        if (fd >= 0)
            close(fd);
    }
    if (dir)
        closedir(dir);
    memcpy(f->stray, now, sizeof now);
}

void front_free(struct front *f)
{
    if (!f)
        return;
    atomic_store(&f->over, true);
    if (f->started) {
        front_wake(f);
        pthread_join(f->thread, NULL);
    }
    const int fds[] = { f->listen_fd, f->epoll_fd, f->event_fd };
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(f);
}
