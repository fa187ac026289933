#include "console/simulate/crowd_links.h"
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/tcp.h"
#include "protocol/wire/tls_link.h"

#define LOOKUP_MS 10000
#define AGAIN_MS 250    // until a lost one is dialed again
#define TICK_MS 20
#define EVENTS_MAX 64

struct crowd_link {
    bool begun, connecting;
    int fd;    // -1: none
    struct tls_link *tls;
    uint32_t watched;
    int64_t again_ms;                // when it is dialed again
    int64_t asked_ms[CROWD_TAGS];    // 0: not open
};
struct crowd_links {
    struct addrinfo *address;
    struct tls_side *side;
    struct crowd_link *link;    // (n) owned
    int64_t n, limit_ms, ticked_ms;
    int epoll_fd;
    bool strange;
    uint8_t chunk[1 << 16];
};

static void link_close(struct crowd_link *k)
{
    if (k->fd >= 0)
        close(k->fd);
    tls_link_free(k->tls);
    k->fd = -1;
    k->tls = NULL;
    k->watched = 0;
}

struct crowd_links *crowd_links_new(const char *address, const struct join_identity *id, int64_t n, int64_t limit_ms, struct error *err)
{
    char host[280];
    const char *port = tcp_host(address, host, sizeof host);
    struct crowd_links *l = calloc(1, sizeof *l);
    if (!l || !(l->link = calloc((size_t)n, sizeof *l->link))) {
        free(l);
        error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " connections", n);
        return NULL;
    }
    l->n = n;
    l->limit_ms = limit_ms;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (int64_t i = 0; i < n; i++)
        l->link[i].fd = -1;
    if (l->epoll_fd < 0)
        error_errno(err, "cannot wait for connections");
    else if (!port || !host[0])
        error_set(err, ERR_USAGE, "'%s' is not HOST:PORT", address);
    else if ((l->address = tcp_lookup(host, port, "the head", LOOKUP_MS, err)) && (l->side = tls_side_new(id, TLS_ASKS, err)))
        return l;
    crowd_links_free(l);
    return NULL;
}

void crowd_links_free(struct crowd_links *l)
{
    if (!l)
        return;
    for (int64_t i = 0; i < l->n; i++)
        link_close(&l->link[i]);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    if (l->address)
        freeaddrinfo(l->address);
    tls_side_free(l->side);
    free(l->link);
    free(l);
}

static void link_watch(struct crowd_links *l, int64_t i)
{
    size_t len;
    struct crowd_link *k = &l->link[i];
    uint32_t events = EPOLLIN | (k->connecting || tls_link_bytes(k->tls, &len) ? EPOLLOUT : 0u);
    struct epoll_event ev = { .events = events, .data.u64 = (uint64_t)i };
    if (events != k->watched && epoll_ctl(l->epoll_fd, k->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, k->fd, &ev) == 0)
        k->watched = events;
}

void crowd_link_dial(struct crowd_links *l, int64_t i)
{
    int one = 1;
    struct crowd_link *k = &l->link[i];
    const struct addrinfo *a = l->address;
    k->begun = true;
    k->again_ms = clock_ms() + AGAIN_MS;
    k->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    k->tls = k->fd >= 0 ? tls_link_new(l->side) : NULL;
    if (!k->tls || (connect(k->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS)) {
        link_close(k);
        return;
    }
    setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    k->connecting = true;
    link_watch(l, i);
}

bool crowd_link_is_in(const struct crowd_links *l, int64_t i)
{
    return l->link[i].tls && tls_link_is_in(l->link[i].tls);
}

bool crowd_links_are_strange(const struct crowd_links *l)
{
    return l->strange;
}

static bool link_send(struct crowd_links *l, int64_t i)
{
    bool ok = tls_link_send(l->link[i].tls, l->link[i].fd);
    if (ok)
        link_watch(l, i);
    return ok;
}

bool crowd_link_ask(struct crowd_links *l, int64_t i, int tag, const struct msg_out *m)
{
    struct crowd_link *k = &l->link[i];
    const struct tls_trace trace = { { 0x80, 0, 0, (uint8_t)tag }, 4 };
    if (!crowd_link_is_in(l, i) || k->asked_ms[tag] || !tls_link_say(k->tls, &trace, m->buf.data, m->buf.len))
        return false;
    k->asked_ms[tag] = clock_ms();
    (void)link_send(l, i);    // what is broken is seen when it is read
    return true;
}

/* The connection has gone, and with it all that was asked there. */
static bool link_lose(struct crowd_links *l, int64_t i, crowd_take *take, void *ctx)
{
    struct crowd_link *k = &l->link[i];
    bool ok = true;
    link_close(k);
    k->again_ms = clock_ms() + AGAIN_MS;
    for (int tag = 0; tag < CROWD_TAGS; tag++)
        if (k->asked_ms[tag]) {
            k->asked_ms[tag] = 0;
            ok = take(ctx, &(struct crowd_answer){ .link = i, .tag = tag, .failed = true }) && ok;
        }
    return ok;
}

/* Take the whole answers that have come. *broken: what came is none. */
static bool answers_take(struct crowd_links *l, int64_t i, bool *broken, crowd_take *take, void *ctx)
{
    struct error err;
    struct tls_message m;
    struct crowd_link *k = &l->link[i];
    bool came;
    while (!(*broken = !tls_link_next(k->tls, &m, &came, &err)) && came) {
        int tag = m.trace.byte[3];
        if (tag >= CROWD_TAGS || !k->asked_ms[tag])
            continue;
        k->asked_ms[tag] = 0;
        if (!take(ctx, &(struct crowd_answer){ .link = i, .tag = tag, .data = m.data, .len = m.len }))
            return false;
    }
    return true;
}

static bool link_move(struct crowd_links *l, int64_t i, crowd_take *take, void *ctx)
{
    struct error err;
    struct crowd_link *k = &l->link[i];
    bool broken = false;
    k->connecting = false;
    ssize_t n = recv(k->fd, l->chunk, sizeof l->chunk, MSG_DONTWAIT);
    if (n > 0) {
        bool shaken = tls_link_is_in(k->tls), ok = tls_link_take(k->tls, l->chunk, (size_t)n, &err);
        l->strange = l->strange || (!shaken && !ok && err.code == ERR_REFUSED);
        if (!answers_take(l, i, &broken, take, ctx))
            return false;
        broken = broken || !ok;
    } else {
        broken = n == 0 || (errno != EAGAIN && errno != EINTR);
    }
    return link_send(l, i) && !broken ? true : link_lose(l, i, take, ctx);
}

/* Dial what is lost, and give up what is late. */
static bool links_tick(struct crowd_links *l, int64_t now, crowd_take *take, void *ctx)
{
    bool ok = true;
    for (int64_t i = 0; i < l->n && ok; i++) {
        struct crowd_link *k = &l->link[i];
        bool late = false;
        for (int tag = 0; tag < CROWD_TAGS; tag++)
            late = late || (k->asked_ms[tag] && now > k->asked_ms[tag] + l->limit_ms);
        if (late)
            ok = link_lose(l, i, take, ctx);
        else if (k->begun && k->fd < 0 && now >= k->again_ms)
            crowd_link_dial(l, i);
    }
    l->ticked_ms = now;
    return ok;
}

bool crowd_links_turn(struct crowd_links *l, int timeout_ms, crowd_take *take, void *ctx)
{
    struct epoll_event ev[EVENTS_MAX];
    int64_t now = clock_ms();
    if (now >= l->ticked_ms + TICK_MS && !links_tick(l, now, take, ctx))
        return false;
    int n = epoll_wait(l->epoll_fd, ev, EVENTS_MAX, (int)MIN((int64_t)timeout_ms, (int64_t)TICK_MS));
    for (int e = 0; e < n; e++) {
        int64_t i = (int64_t)ev[e].data.u64;
        if (l->link[i].fd >= 0 && !link_move(l, i, take, ctx))
            return false;
    }
    return true;
}
