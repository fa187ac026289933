/* Peers: sockets that send our requests, each in its own slot, and receive the answers; dialing and redialing. */
#include "protocol/wire/transport_parts.h"
#include <dirent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nng/protocol/reqrep0/req.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/tcp.h"
#include "protocol/wire/tls.h"

#define REDIAL_MS 3000
#define RECONNECT_LEAST_MS 20    // nng's waits between two connections, which it doubles
#define RECONNECT_MOST_MS 250
#define STRANGE_REDIAL_MS 30000    // the same three for a peer that does not accept our token: many nodes may have an old one
#define STRANGE_LEAST_MS 2000
#define STRANGE_MOST_MS 10000
#define SILENT_MS 6000    // for a connection to another host, while requests on it go unanswered
#define ALIVE_MS 60000    // the same while the other host acknowledges packets: what was asked may be long, and the way slow
#define LOOK_MS 1000      // between two looks whether it does
#define PAST_MS 5000      // for answers to what was asked before the peer's identity changed
#define CALLS_MAX 4096    // open at one peer

struct call {
    struct queue_entry entry;
    struct call *next;    // in the peer's list
    struct peer *peer;
    nng_socket socket;    // of the peer, when it was asked
    nng_ctx ctx;
    nng_aio *aio;
    nng_msg *msg;    // the answer
    int rv;
    bool receiving;      // the request is out
    uint64_t tag;        // used by the loop only
    int64_t limit_ms;    // on the monotonic clock
    bool answered;       // the owner has been told that the limit has passed
};
struct peer {
    struct peer *next;
    struct transport *transport;
    nng_socket socket;
    bool is_open;
    char name[280];
    nng_tls_config *tls;       // NULL: a Unix socket of this host
    bool strange;              // it does not accept our identity
    int n_pipe;                // connections
    int64_t unconnected_ms;    // since when there is no connection, on the monotonic clock
    int64_t heard_ms;          // when it was connected or last answered
    int64_t looked_ms;         // when the other host was last seen to acknowledge packets
    uint16_t port;             // ours, of the last connection to another host
    nng_socket past;           // of the identity before, for what is still to be answered there
    int64_t past_limit_ms;     // when it is closed all the same; 0: there is none
    struct call *calls;
    int n_open;
};
struct pipe_entry {    // a connection of a peer's socket came or went
    struct queue_entry entry;
    int socket_id;
    int change;
    uint16_t port;    // ours, network byte order; 0: not of TCP
};

static void call_cb(void *arg)
{
    struct call *c = arg;
    int rv = nng_aio_result(c->aio);
    if (rv == 0 && !c->receiving) {
        c->receiving = true;
        nng_ctx_recv(c->ctx, c->aio);
        return;
    }
    c->rv = rv;
    c->msg = rv == 0 ? nng_aio_get_msg(c->aio) : NULL;
    entry_push(&c->peer->transport->queue, &c->entry);
}

static void pipe_cb(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
    struct pipe_entry *e = calloc(1, sizeof *e);
    if (!e)
        return;
    e->entry.kind = ENTRY_PIPE;
    e->socket_id = nng_socket_id(nng_pipe_socket(pipe));
    e->change = ev == NNG_PIPE_EV_ADD_POST ? 1 : -1;
    nng_sockaddr from;
    if (e->change > 0 && nng_pipe_get_addr(pipe, NNG_OPT_LOCADDR, &from) == 0)
        e->port = from.s_family == NNG_AF_INET ? from.s_in.sa_port : from.s_family == NNG_AF_INET6 ? from.s_in6.sa_port : 0;
    entry_push(&((struct transport *)arg)->queue, &e->entry);
}

static bool peer_open(struct peer *p, struct error *err)
{
    char url[URL_SIZE];
    if (p->tls)
        snprintf(url, sizeof url, "tls+tcp://%s", p->name);
    else if (!transport_url(p->transport, p->name, url, sizeof url, err))
        return false;
    int rv = nng_req0_open(&p->socket);
    if (rv != 0)
        return net_error(err, rv, "cannot open a socket for", p->name);
    nng_socket_set_size(p->socket, NNG_OPT_RECVMAXSZ, MSG_BYTES_MAX);
    nng_socket_set_ms(p->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    nng_socket_set_ms(p->socket, NNG_OPT_RECONNMINT, p->strange ? STRANGE_LEAST_MS : RECONNECT_LEAST_MS);
    nng_socket_set_ms(p->socket, NNG_OPT_RECONNMAXT, p->strange ? STRANGE_MOST_MS : RECONNECT_MOST_MS);
    nng_pipe_notify(p->socket, NNG_PIPE_EV_ADD_POST, pipe_cb, p->transport);
    nng_pipe_notify(p->socket, NNG_PIPE_EV_REM_POST, pipe_cb, p->transport);
    rv = tls_dial(p->socket, url, p->tls);
    if (rv != 0) {
        nng_close(p->socket);
        return net_error(err, rv, "cannot dial", p->name);
    }
    p->is_open = true;
    p->n_pipe = 0;
    p->unconnected_ms = p->heard_ms = clock_ms();
    return true;
}

/* tls: NULL, or taken. */
static struct peer *peer_make(struct transport *t, const char *name, nng_tls_config *tls, struct error *err)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p) {
        error_set(err, ERR_NO_MEMORY, "no memory for a peer");
        goto fail;
    }
    p->transport = t;
    p->tls = tls;
    snprintf(p->name, sizeof p->name, "%s", name);
    if (!peer_open(p, err))
        goto fail;
    p->next = t->peers;
    t->peers = p;
    return p;
fail:
    if (tls)
        nng_tls_config_free(tls);
    free(p);
    return NULL;
}

struct peer *peer_new(struct transport *t, const char *name, struct error *err)
{
    return peer_make(t, name, NULL, err);
}

struct peer *peer_new_tls(struct transport *t, const char *address, const struct join_identity *id, struct error *err)
{
    nng_tls_config *tls = tls_config_new(id, err);
    return tls ? peer_make(t, address, tls, err) : NULL;
}

bool peer_is_connected(const struct peer *p)
{
    return p->n_pipe > 0;
}

const char *peer_name(const struct peer *p)
{
    return p->name;
}

int peer_n_open(const struct peer *p)
{
    return p->n_open;
}

/* Give a call a context on the peer's current socket, and send msg (taken). */
static bool call_start(struct call *c, nng_msg *msg, struct error *err)
{
    c->socket = c->peer->socket;
    int rv = nng_ctx_open(&c->ctx, c->socket);
    if (rv != 0) {
        nng_msg_free(msg);
        return net_error(err, rv, "cannot ask", c->peer->name);
    }
    c->receiving = false;
    nng_aio_set_timeout(c->aio, NNG_DURATION_INFINITE);
    nng_aio_set_msg(c->aio, msg);
    nng_ctx_send(c->ctx, c->aio);
    return true;
}

static void call_free(struct call *c)
{
    for (struct call **at = &c->peer->calls; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    nng_aio_stop(c->aio);
    nng_aio_free(c->aio);
    nng_ctx_close(c->ctx);
    if (c->msg)
        nng_msg_free(c->msg);
    c->peer->n_open--;
    free(c);
}

bool peer_ask(struct peer *p, const struct msg_out *m, int64_t timeout_ms, uint64_t tag, struct error *err)
{
    if (p->n_open >= CALLS_MAX)
        return error_set(err, ERR_FULL, "%d requests to '%s' are open already", p->n_open, p->name);
    struct call *c = calloc(1, sizeof *c);
    nng_msg *msg = nng_msg_of(m->buf.data, m->buf.len);
    if (!c || !msg || nng_aio_alloc(&c->aio, call_cb, c) != 0) {
        free(c);
        if (msg)
            nng_msg_free(msg);
        return error_set(err, ERR_NO_MEMORY, "no memory for a request to '%s'", p->name);
    }
    c->entry.kind = ENTRY_CALL;
    c->peer = p;
    c->tag = tag;
    c->limit_ms = clock_ms() + timeout_ms;
    if (!call_start(c, msg, err)) {
        nng_aio_free(c->aio);
        free(c);
        return false;
    }
    c->next = p->calls;
    p->calls = c;
    p->n_open++;
    return true;
}

/* Is something still to be answered at the past socket? */
static bool past_waits(const struct peer *p)
{
    for (const struct call *c = p->calls; c; c = c->next)
        if (nng_socket_id(c->socket) == nng_socket_id(p->past))
            return true;
    return false;
}

static void past_close(struct peer *p)
{
    if (p->past_limit_ms)
        transport_close_begin(p->transport, p->past);
    p->past_limit_ms = 0;
}

static bool entry_of_peer(const struct queue_entry *e, const void *owner)
{
    return e->kind == ENTRY_CALL && ((const struct call *)(const void *)e)->peer == owner;
}

void peer_free(struct peer *p)
{
    if (!p)
        return;
    struct transport *t = p->transport;
    for (struct peer **at = &t->peers; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    past_close(p);
    if (p->is_open)
        transport_close_begin(t, p->socket);
    if (!transport_close_end(t))
        return;
    for (struct call *c = p->calls; c; c = c->next)
        nng_aio_stop(c->aio);    // its callback has finished: the call is in the queue or will never be
    entry_remove(&t->queue, entry_of_peer, p, NULL);
    while (p->calls) {
        struct call *c = p->calls;
        if (!c->receiving && c->rv != 0)    // an unsent message still belongs to the aio
            nng_msg_free(nng_aio_get_msg(c->aio));
        call_free(c);
    }
    if (p->tls)
        nng_tls_config_free(p->tls);
    free(p);
}

/* Replace a socket that does not connect, or whose connection is dead. Requests that were never sent come back through the queue
 * and are sent again. */
static void peer_reopen(struct peer *p)
{
    struct error err;
    log_debug("redialing '%s'", p->name);
    if (p->is_open)
        transport_close_begin(p->transport, p->socket);
    p->is_open = false;
    if (!peer_open(p, &err)) {
        log_warn("%s", err.text);
        p->unconnected_ms = clock_ms();
    }
}

void peer_move(struct peer *p, const char *address)
{
    snprintf(p->name, sizeof p->name, "%s", address);
    p->strange = false;
    peer_reopen(p);
}

bool peer_identity(struct peer *p, const struct join_identity *id, struct error *err)
{
    nng_tls_config *tls = tls_config_new(id, err);
    if (!tls)
        return false;
    nng_tls_config_free(p->tls);
    p->tls = tls;
    p->strange = false;
    if (p->n_pipe > 0) {
        past_close(p);
        p->past = p->socket;
        p->past_limit_ms = clock_ms() + PAST_MS;
        p->is_open = false;
    }
    peer_reopen(p);
    return true;
}

/* The number called name below the statistic s; 0: there is none. */
static uint64_t stat_value(nng_stat *s, const char *name)
{
    for (nng_stat *c = nng_stat_child(s); c; c = nng_stat_next(c))
        if (strcmp(nng_stat_name(c), name) == 0)
            return nng_stat_value(c);
    return 0;
}

bool peer_is_strange(const struct peer *p)
{
    nng_stat *all = NULL;
    bool strange = false;
    if (!p->is_open || !p->tls || p->n_pipe > 0 || nng_stats_get(&all) != 0)
        return false;
    for (nng_stat *s = nng_stat_child(all); s; s = nng_stat_next(s))    // one of each dialer, besides those of sockets
        strange = strange
                  || (strcmp(nng_stat_name(s), "dialer") == 0 && stat_value(s, "auth") > 0
                      && stat_value(s, "socket") == (uint64_t)nng_socket_id(p->socket));
    nng_stats_free(all);
    return strange;
}

/* A call has come back from nng with its answer or its failure, or after its owner has stopped waiting. */
bool call_event(struct call *c, struct net_event *ev)
{
    struct peer *p = c->peer;
    if (c->rv != 0 && !c->receiving) {    // never sent: it may go to the current socket
        nng_msg *msg = nng_aio_get_msg(c->aio);
        if (!c->answered && p->is_open) {
            nng_ctx_close(c->ctx);
            if (call_start(c, msg, &ev->err))
                return false;
        } else {
            nng_msg_free(msg);
        }
    }
    bool tell = !c->answered;
    if (tell) {
        *ev = (struct net_event){ .kind = NET_ANSWER, .peer = p, .tag = c->tag, .failed = c->rv != 0 };
        if (c->rv != 0) {
            net_error(&ev->err, c->rv, "no answer from", p->name);
        } else {
            p->heard_ms = clock_ms();
            ev->msg = c->msg;
            ev->data = nng_msg_body(c->msg);
            ev->len = nng_msg_len(c->msg);
            c->msg = NULL;
        }
    }
    call_free(c);
    return tell;
}

/* The connection to another host. Nng does not say which descriptor it has: it is the one with our port. -1: there is none. */
static int link_fd(const struct peer *p)
{
    int found = -1;
    DIR *dir = p->port && p->n_pipe > 0 ? opendir("/proc/self/fd") : NULL;
    for (const struct dirent *d; dir && found < 0 && (d = readdir(dir));) {
        int fd = d->d_name[0] == '.' ? -1 : atoi(d->d_name);
        if (fd >= 0 && tcp_port(fd) == ntohs(p->port))
            found = fd;
    }
    if (dir)
        closedir(dir);
    return found;
}

/* Where nothing is sent nothing is acknowledged: the kernel asks the other one whether it is there, and is answered though the head takes long. */
static void link_ask_kernel(const struct peer *p)
{
    int fd = link_fd(p), one = 1, gap_s = SILENT_MS / 3000, most = 127;
    if (fd < 0)
        return;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &gap_s, sizeof gap_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &gap_s, sizeof gap_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &most, sizeof most);    // when to end it is for us to say
}

void pipe_event(struct transport *t, struct pipe_entry *e)
{
    for (struct peer *p = t->peers; p; p = p->next)
        if (p->is_open && nng_socket_id(p->socket) == e->socket_id) {
            p->n_pipe += e->change;
            p->strange = p->strange && p->n_pipe <= 0;
            p->port = e->change > 0 ? e->port : p->port;
            p->unconnected_ms = p->heard_ms = clock_ms();
            if (p->tls && e->change > 0)
                link_ask_kernel(p);
        }
    free(e);
}

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
static bool link_is_alive(const struct peer *p)
{
    struct sockaddr_storage other, its;
    socklen_t len = sizeof other;
    int fd = link_fd(p);
    bool alive = false;
    if (fd < 0 || acked_ms(fd) == INT64_MAX || getpeername(fd, (struct sockaddr *)&other, &len) != 0)
        return false;
    DIR *dir = opendir("/proc/self/fd");
    for (const struct dirent *d; dir && !alive && (d = readdir(dir));) {
        int one = d->d_name[0] == '.' ? -1 : atoi(d->d_name);
        len = sizeof its;
        alive = one >= 0 && getpeername(one, (struct sockaddr *)&its, &len) == 0 && tcp_same_host(&its, &other)
                && acked_ms(one) < SILENT_MS;
    }
    if (dir)
        closedir(dir);
    return alive;
}

/* When a connection to another host must be looked at, while a request on it is late. */
static int64_t silence_due(const struct peer *p)
{
    return MAX(p->heard_ms + SILENT_MS, p->looked_ms + LOOK_MS);
}

/* It is time to look: is the connection dead? */
static bool link_is_dead(struct peer *p, int64_t now)
{
    if (now < p->heard_ms + ALIVE_MS && link_is_alive(p)) {
        p->looked_ms = now;
        return false;
    }
    if (p->n_pipe > 0)
        log_warn("'%s' has answered nothing for %" PRId64 " ms; redialing it", p->name, now - p->heard_ms);
    return true;
}

static int64_t redial_due(const struct peer *p)
{
    return p->unconnected_ms + (p->strange ? STRANGE_REDIAL_MS : REDIAL_MS);
}

int64_t peers_due(const struct transport *t)
{
    int64_t due = INT64_MAX;
    for (const struct peer *p = t->peers; p; p = p->next) {
        bool waits = false, late = false;
        for (const struct call *c = p->calls; c; c = c->next) {
            if (!c->answered)
                due = MIN(due, c->limit_ms);
            waits = waits || !c->answered;
            late = late || c->answered;
        }
        if (p->past_limit_ms)
            due = MIN(due, past_waits(p) ? p->past_limit_ms : 0);
        if (p->tls && late)
            due = MIN(due, silence_due(p));
        if ((waits || !p->is_open) && p->n_pipe <= 0)
            due = MIN(due, redial_due(p));
    }
    return due;
}

bool peers_tick(struct transport *t, int64_t now, struct net_event *ev)
{
    for (struct peer *p = t->peers; p; p = p->next) {
        bool waits = false, late = false;
        for (struct call *c = p->calls; c; c = c->next) {
            if (!c->answered && now >= c->limit_ms) {
                c->answered = true;
                *ev = (struct net_event){ .kind = NET_ANSWER, .peer = p, .tag = c->tag, .failed = true };
                error_set(&ev->err, ERR_TIMEOUT, "'%s' has not answered in time%s", p->name, p->n_pipe > 0 ? "" : "; it is not there");
                return true;
            }
            waits = waits || !c->answered;
            late = late || c->answered;
        }
        if (p->past_limit_ms && (now >= p->past_limit_ms || !past_waits(p)))
            past_close(p);
        bool dead = p->tls && late && now >= silence_due(p) && link_is_dead(p, now);
        if (dead || ((waits || !p->is_open) && p->n_pipe <= 0 && now >= redial_due(p))) {
            p->strange = peer_is_strange(p);
            peer_reopen(p);
        }
    }
    return false;
}

bool peer_call(struct peer *p, enum msg_type type, const struct msg_out *m, int64_t timeout_ms, struct msg_in *answer, struct net_event *ev,
               struct error *err)
{
    const uint64_t tag = UINT64_MAX;
    *ev = (struct net_event){ .failed = true };
    if (!peer_ask(p, m, timeout_ms, tag, err))
        return false;
    while (transport_wait(p->transport, ev, timeout_ms + 1000)) {
        if (ev->kind == NET_ANSWER && ev->peer == p && ev->tag == tag) {
            if (ev->failed) {
                *err = ev->err;
                return false;
            }
            if (msg_read_answer(answer, type, ev->data, ev->len, err))
                return true;
            net_event_release(ev);    // and ev->failed is false
            return false;
        }
        if (ev->kind == NET_REQUEST)
            request_drop(ev->request);
        net_event_release(ev);
    }
    ev->failed = true;
    return error_set(err, ERR_TIMEOUT, "'%s' has not answered in time", p->name);
}
