/* Peers: what sends our requests, each in its own slot, and receives the answers. On this host that is a socket of nng, which is dialed and
 * dialed again here; to another host it is a dialer (dialer.h). */
#include "protocol/wire/transport_parts.h"
#include <nng/protocol/reqrep0/req.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/wire/dialer.h"

#define REDIAL_MS 3000
#define RECONNECT_LEAST_MS 20    // nng's waits between two connections, which it doubles
#define RECONNECT_MOST_MS 250
#define PAST_MS 5000      // for answers to what was asked before the peer's identity changed
#define CALLS_MAX 4096    // open at one peer

struct call {
    struct queue_entry entry;
    struct call *next;    // in the peer's list
    struct peer *peer;
    nng_msg *msg;    // the answer
    int rv;
    /* on this host */
    nng_ctx ctx;
    nng_aio *aio;
    bool receiving;    // the request is out
    /* to another one */
    struct dialer *dialer;    // of the peer, when it was asked; NULL: on this host
    struct dialed dialed;
    nng_msg *request;    // what it says; owned

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
    int n_pipe;                  // connections on this host
    int64_t unconnected_ms;      // since when there is none, on the monotonic clock
    struct dialer *dialer;       // to another host; NULL: a socket of this one
    struct join_identity *id;    // that the dialer shows; owned
    struct dialer *past;         // of the identity before, for what is still to be answered there
    int64_t past_limit_ms;       // when it is closed all the same; 0: there is none
    struct call *calls;
    int n_open;
};
static struct call *call_of(struct dialed *q)
{
    return (struct call *)(void *)((char *)q - offsetof(struct call, dialed));
}
struct pipe_entry {    // a connection of a peer's socket came or went
    struct queue_entry entry;
    int socket_id;
    int change;
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
    entry_push(&((struct transport *)arg)->queue, &e->entry);
}

static bool peer_open(struct peer *p, struct error *err)
{
    char url[URL_SIZE];
    if (!transport_url(p->transport, p->name, url, sizeof url, err))
        return false;
    int rv = nng_req0_open(&p->socket);
    if (rv != 0)
        return net_error(err, rv, "cannot open a socket for", p->name);
    nng_socket_set_size(p->socket, NNG_OPT_RECVMAXSZ, MSG_BYTES_MAX);
    nng_socket_set_ms(p->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    nng_socket_set_ms(p->socket, NNG_OPT_RECONNMINT, RECONNECT_LEAST_MS);
    nng_socket_set_ms(p->socket, NNG_OPT_RECONNMAXT, RECONNECT_MOST_MS);
    nng_pipe_notify(p->socket, NNG_PIPE_EV_ADD_POST, pipe_cb, p->transport);
    nng_pipe_notify(p->socket, NNG_PIPE_EV_REM_POST, pipe_cb, p->transport);
    rv = nng_dial(p->socket, url, NULL, NNG_FLAG_NONBLOCK);
    if (rv != 0) {
        nng_close(p->socket);
        return net_error(err, rv, "cannot dial", p->name);
    }
    p->is_open = true;
    p->n_pipe = 0;
    p->unconnected_ms = clock_ms();
    return true;
}

/* Called by the dialer's thread. */
static void dialed_tell(struct dialed *q, const void *data, size_t len)
{
    struct call *c = call_of(q);
    c->msg = data ? nng_msg_of(data, len) : NULL;
    c->rv = c->msg ? 0 : data ? NNG_ENOMEM : NNG_ECONNRESET;
    entry_push(&c->peer->transport->queue, &c->entry);
}

static struct peer *peer_make(struct transport *t, const char *name, const struct join_identity *id, struct error *err)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p || (id && !(p->id = malloc(sizeof *id)))) {
        error_set(err, ERR_NO_MEMORY, "no memory for a peer");
        goto fail;
    }
    p->transport = t;
    snprintf(p->name, sizeof p->name, "%s", name);
    if (id)
        *p->id = *id;
    if (id ? !(p->dialer = dialer_new(name, id, dialed_tell, err)) : !peer_open(p, err))
        goto fail;
    p->next = t->peers;
    t->peers = p;
    return p;
fail:
    if (p)
        free(p->id);
    free(p);
    return NULL;
}

struct peer *peer_new(struct transport *t, const char *name, struct error *err)
{
    return peer_make(t, name, NULL, err);
}

struct peer *peer_new_tls(struct transport *t, const char *address, const struct join_identity *id, struct error *err)
{
    return peer_make(t, address, id, err);
}

bool peer_is_connected(const struct peer *p)
{
    return p->dialer ? dialer_is_in(p->dialer) : p->n_pipe > 0;
}

bool peer_is_strange(const struct peer *p)
{
    return p->dialer && !dialer_is_in(p->dialer) && dialer_is_strange(p->dialer);
}

const char *peer_name(const struct peer *p)
{
    return p->name;
}

int peer_n_open(const struct peer *p)
{
    return p->n_open;
}

static void call_dial(struct call *c)
{
    c->dialer = c->peer->dialer;
    dialer_ask(c->dialer, &c->dialed);
}

/* Send msg (taken) to the peer as it is now: give the call a context on its socket, or hand it to its dialer. */
static bool call_start(struct call *c, nng_msg *msg, struct error *err)
{
    if (c->peer->dialer) {
        c->request = msg;
        c->dialed = (struct dialed){ .data = nng_msg_body(msg), .len = nng_msg_len(msg) };
        call_dial(c);
        return true;
    }
    int rv = nng_ctx_open(&c->ctx, c->peer->socket);
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
    if (c->dialer) {
        nng_msg_free(c->request);
    } else {
        nng_aio_stop(c->aio);
        nng_aio_free(c->aio);
        nng_ctx_close(c->ctx);
    }
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
    if (!c || !msg || (!p->dialer && nng_aio_alloc(&c->aio, call_cb, c) != 0)) {
        free(c);
        if (msg)
            nng_msg_free(msg);
        return error_set(err, ERR_NO_MEMORY, "no memory for a request to '%s'", p->name);
    }
    c->entry.kind = ENTRY_CALL;
    c->peer = p;
    c->tag = tag;
    c->limit_ms = clock_ms() + timeout_ms;
    c->next = p->calls;
    p->calls = c;
    p->n_open++;
    if (call_start(c, msg, err))
        return true;
    p->calls = c->next;
    p->n_open--;
    nng_aio_free(c->aio);
    free(c);
    return false;
}

/* Is something still to be answered on the past connection? */
static bool past_waits(const struct peer *p)
{
    for (const struct call *c = p->calls; c; c = c->next)
        if (c->dialer == p->past)
            return true;
    return false;
}

/* End a dialer: what it was asked gets no answer, unless it has it already. */
static void dialer_end(struct peer *p, struct dialer *d)
{
    for (struct call *c = p->calls; d && c; c = c->next)
        if (c->dialer == d && dialer_take_back(d, &c->dialed)) {
            c->rv = NNG_ECLOSED;
            entry_push(&p->transport->queue, &c->entry);
        }
    dialer_free(d);
}

static void past_close(struct peer *p)
{
    dialer_end(p, p->past);
    p->past = NULL;
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
    dialer_free(p->past);
    dialer_free(p->dialer);
    if (p->is_open)
        transport_close_begin(t, p->socket);
    if (!transport_close_end(t))
        return;
    for (struct call *c = p->calls; c; c = c->next)
        if (!c->dialer)
            nng_aio_stop(c->aio);    // its callback has finished: the call is in the queue or will never be
    entry_remove(&t->queue, entry_of_peer, p, NULL);
    while (p->calls) {
        struct call *c = p->calls;
        if (!c->dialer && !c->receiving && c->rv != 0)    // an unsent message still belongs to the aio
            nng_msg_free(nng_aio_get_msg(c->aio));
        call_free(c);
    }
    free(p->id);
    free(p);
}

/* Replace a socket that does not connect. Requests that were never sent come back through the queue
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

/* Dial with d (taken) from now on; what has not been sent goes there. Returns the dialer before. */
static struct dialer *dialer_replace(struct peer *p, struct dialer *d)
{
    struct dialer *before = p->dialer;
    p->dialer = d;
    for (struct dialed *q; (q = dialer_unsent(before));)
        call_dial(call_of(q));
    return before;
}

void peer_move(struct peer *p, const char *address)
{
    struct error err;
    struct dialer *d = dialer_new(address, p->id, dialed_tell, &err);
    if (!d) {
        log_warn("%s", err.text);
        return;
    }
    snprintf(p->name, sizeof p->name, "%s", address);
    dialer_end(p, dialer_replace(p, d));
}

bool peer_identity(struct peer *p, const struct join_identity *id, struct error *err)
{
    struct dialer *d = dialer_new(p->name, id, dialed_tell, err);
    if (!d)
        return false;
    *p->id = *id;
    past_close(p);
    p->past = dialer_replace(p, d);
    dialer_retire(p->past);
    p->past_limit_ms = clock_ms() + PAST_MS;
    return true;
}

/* A call has come back from nng or a dialer with its answer or its failure, or after its owner has stopped waiting. */
bool call_event(struct call *c, struct net_event *ev)
{
    struct peer *p = c->peer;
    if (c->rv != 0 && !c->receiving && !c->dialer) {    // never sent: it may go to the current socket
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
            ev->msg = c->msg;
            ev->data = nng_msg_body(c->msg);
            ev->len = nng_msg_len(c->msg);
            c->msg = NULL;
        }
    }
    call_free(c);
    return tell;
}

void pipe_event(struct transport *t, struct pipe_entry *e)
{
    for (struct peer *p = t->peers; p; p = p->next)
        if (p->is_open && nng_socket_id(p->socket) == e->socket_id) {
            p->n_pipe += e->change;
            p->unconnected_ms = clock_ms();
        }
    free(e);
}

static int64_t redial_due(const struct peer *p)
{
    return p->unconnected_ms + REDIAL_MS;
}

int64_t peers_due(const struct transport *t)
{
    int64_t due = INT64_MAX;
    for (const struct peer *p = t->peers; p; p = p->next) {
        bool waits = false;
        for (const struct call *c = p->calls; c; c = c->next) {
            if (!c->answered)
                due = MIN(due, c->limit_ms);
            waits = waits || !c->answered;
        }
        if (p->past_limit_ms)
            due = MIN(due, past_waits(p) ? p->past_limit_ms : 0);
        if (!p->dialer && (waits || !p->is_open) && p->n_pipe <= 0)
            due = MIN(due, redial_due(p));
    }
    return due;
}

/* An answer has not come in time: why. */
static void limit_tell(const struct peer *p, struct error *err)
{
    char step[ERROR_TEXT_BYTES];
    error_set(err, ERR_TIMEOUT, "'%s' has not answered in time%s", p->name, peer_is_connected(p) ? "" : "; it is not there");
    if (!p->dialer || dialer_is_in(p->dialer))
        return;
    dialer_step(p->dialer, step, sizeof step);
    error_set(err, ERR_TIMEOUT, "'%s' has not answered in time; it is not there (%s)", p->name, step);
}

bool peers_tick(struct transport *t, int64_t now, struct net_event *ev)
{
    for (struct peer *p = t->peers; p; p = p->next) {
        bool waits = false;
        for (struct call *c = p->calls; c; c = c->next) {
            if (!c->answered && now >= c->limit_ms) {
                *ev = (struct net_event){ .kind = NET_ANSWER, .peer = p, .tag = c->tag, .failed = true };
                limit_tell(p, &ev->err);
                c->answered = true;
                if (c->dialer && dialer_take_back(c->dialer, &c->dialed))
                    call_free(c);
                return true;
            }
            waits = waits || !c->answered;
        }
        if (p->past_limit_ms && (now >= p->past_limit_ms || !past_waits(p)))
            past_close(p);
        if (!p->dialer && (waits || !p->is_open) && p->n_pipe <= 0 && now >= redial_due(p))
            peer_reopen(p);
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
