/* Servers: sockets that take requests, each in its own slot, and send the loop's answers. */
#include "protocol/wire/transport_parts.h"
#include <arpa/inet.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/wire/front.h"
#include "protocol/wire/tls.h"

#define VIEW_BYTES_MAX 8192
#define CHECK_MS 1000
#define SLOTS_FIRST 64    // requests that can be held before more room is made
#define PAST_MAX 4        // listeners of earlier identities with connections still open
#define SP_REQ 0x30       // SP's number for the protocol that dials ours (not all of nng's headers have it)

struct request {
    struct entry entry;
    struct server *server;
    nng_ctx ctx;
    nng_aio *aio;
    nng_msg *msg;           // the request; the loop's while it holds it
    uint32_t connection;    // that it came by
    bool sending;           // the aio is sending our answer
};
struct server {
    struct server *next;
    struct transport *transport;
    nng_socket socket;
    struct listen listen;    // of a Unix socket
    nng_tls_config *tls;     // not NULL: a listener of TLS, without a file
    struct front *front;     // of TLS: accepts for nng
    struct inner {
        nng_listener listener;
        uint16_t port;
    } inner;                        // of TLS: where nng listens on 127.0.0.1
    struct inner past[PAST_MAX];    // (n_past) those of earlier identities, oldest first: nothing new comes to them
    int n_past;
    int64_t checked_ms;          // of TLS: when connections that bypass the front were last looked for
    struct request **request;    // (n_request) owned; more are made when all are held, up to n_max
    int n_request, n_held, n_max;
};

static void request_cb(void *arg)
{
    struct request *r = arg;
    int rv = nng_aio_result(r->aio);
    if (rv == NNG_ECLOSED)
        return;
    if (r->sending || rv != 0) {
        if (r->sending && rv != 0)
            nng_msg_free(nng_aio_get_msg(r->aio));
        r->sending = false;
        nng_ctx_recv(r->ctx, r->aio);
        return;
    }
    r->msg = nng_aio_get_msg(r->aio);
    entry_push(&r->server->transport->queue, &r->entry);
}

/* A TLS connection has shown the token and greeted: the front lifts its time limit. */
static void admitted_cb(nng_pipe pipe, UNUSED nng_pipe_ev ev, void *arg)
{
    nng_sockaddr from;
    if (nng_pipe_get_addr(pipe, NNG_OPT_REMADDR, &from) == 0 && from.s_family == NNG_AF_INET)
        front_admit(((struct server *)arg)->front, ntohs(from.s_in.sa_port));
}

/* Let nng listen for TLS on a free port of 127.0.0.1, for the front. On failure out is as it was. */
static bool tls_begin(struct server *s, nng_tls_config *tls, struct inner *out, struct error *err)
{
    nng_sockaddr at;
    nng_listener l;
    int rv = tls_listen(s->socket, "tls+tcp://127.0.0.1:0", tls, &l);
    if (rv == 0 && (rv = nng_listener_get_addr(l, NNG_OPT_LOCADDR, &at)) != 0)
        nng_listener_close(l);
    if (rv != 0)
        return net_error(err, rv, "cannot listen on", "127.0.0.1");
    *out = (struct inner){ l, ntohs(at.s_in.sa_port) };
    return true;
}

/* The connections that it has accepted end with it. */
static void inner_close(struct server *s, const struct inner *in)
{
    nng_listener_close(in->listener);
    front_forget(s->front, in->port);
}

static bool server_listen(struct server *s, const char *name, struct error *err)
{
    if (!s->tls)
        return transport_listen(s->transport, &s->listen, s->socket, SP_REQ, name, err);
    if (!(s->front = front_new(name, FRONT_LIMIT_MS, err)))
        return false;
    nng_pipe_notify(s->socket, NNG_PIPE_EV_ADD_POST, admitted_cb, s);
    return tls_begin(s, s->tls, &s->inner, err) && front_start(s->front, s->inner.port, err);
}

void server_bulk(struct server *s, bool (*take)(void *ctx, int fd, const uint8_t *hello), void *ctx)
{
    front_bulk(s->front, take, ctx);
}

static void tls_tick(struct server *s)
{
    struct error err;
    int64_t now = clock_ms();
    if (now >= s->checked_ms + CHECK_MS) {
        s->checked_ms = now;
        front_check(s->front);
    }
    if (!front_is_deaf(s->front))
        return;
    log_warn("nng no longer accepts new connections from nodes; it listens again");
    inner_close(s, &s->inner);
    if (tls_begin(s, s->tls, &s->inner, &err))
        front_target(s->front, s->inner.port);
    else
        log_error("%s", err.text);
}

static void past_close(struct server *s, int n)
{
    for (int i = 0; i < n; i++)
        inner_close(s, &s->past[i]);
    s->n_past -= n;
    memmove(s->past, s->past + n, (size_t)s->n_past * sizeof *s->past);
}

bool server_identity(struct server *s, const struct join_identity *id, struct error *err)
{
    struct inner before = s->inner;
    nng_tls_config *tls = tls_config_new(id, NNG_TLS_MODE_SERVER, err);
    if (!tls)
        return false;
    if (!tls_begin(s, tls, &s->inner, err)) {
        nng_tls_config_free(tls);
        return false;
    }
    nng_tls_config_free(s->tls);
    s->tls = tls;
    front_target(s->front, s->inner.port);
    if (s->n_past == PAST_MAX)
        past_close(s, 1);
    s->past[s->n_past++] = before;
    return true;
}

void server_cut(struct server *s)
{
    past_close(s, s->n_past);
}

/* Room for n requests in all. On failure there is some of it, or none. */
static bool slots_make(struct server *s, int n, const char *name, struct error *err)
{
    int before = s->n_request, rv = 0;
    struct request **grown = realloc(s->request, (size_t)n * sizeof *grown);
    if (!grown)
        return error_set(err, ERR_NO_MEMORY, "no memory for %d requests to '%s'", n, name);
    s->request = grown;
    for (; s->n_request < n && rv == 0; s->n_request += rv == 0) {
        struct request *r = calloc(1, sizeof *r);
        if (!r)
            return error_set(err, ERR_NO_MEMORY, "no memory for %d requests to '%s'", n, name);
        r->entry.kind = ENTRY_REQUEST;
        r->server = s;
        if ((rv = nng_ctx_open(&r->ctx, s->socket)) == 0 && (rv = nng_aio_alloc(&r->aio, request_cb, r)) != 0)
            nng_ctx_close(r->ctx);
        if (rv != 0) {
            free(r);
            continue;
        }
        nng_aio_set_timeout(r->aio, NNG_DURATION_INFINITE);
        s->request[s->n_request] = r;
    }
    for (int i = before; i < s->n_request; i++)
        nng_ctx_recv(s->request[i]->ctx, s->request[i]->aio);
    return rv == 0 || net_error(err, rv, "cannot open a context for", name);
}

/* tls: NULL, or taken. */
static struct server *server_make(struct transport *t, const char *name, nng_tls_config *tls, int n_wait, struct error *err)
{
    int rv;
    struct server *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for a server");
        goto fail;
    }
    s->transport = t;
    s->n_max = n_wait;
    s->tls = tls;
    if ((rv = nng_rep0_open(&s->socket)) != 0) {
        net_error(err, rv, "cannot open a socket for", name);
        goto fail;
    }
    /* nng takes memory for a message as soon as its length arrives; visitors of the view only send short requests. */
    nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, strncmp(name, "view", 4) == 0 ? VIEW_BYTES_MAX : MSG_BYTES_MAX);
    if (!server_listen(s, name, err)) {
        nng_close(s->socket);
        front_free(s->front);
        goto fail;
    }
    s->next = t->servers;
    t->servers = s;
    if (!slots_make(s, MIN(n_wait, SLOTS_FIRST), name, err)) {
        server_free(s);
        return NULL;
    }
    return s;
fail:
    if (tls)
        nng_tls_config_free(tls);
    free(s);
    return NULL;
}

struct server *server_new(struct transport *t, const char *name, int n_wait, struct error *err)
{
    return server_make(t, name, NULL, n_wait, err);
}

struct server *server_new_tls(struct transport *t, const char *address, const struct join_identity *id, int n_wait, struct error *err)
{
    nng_tls_config *tls = tls_config_new(id, NNG_TLS_MODE_SERVER, err);
    return tls ? server_make(t, address, tls, n_wait, err) : NULL;
}

bool server_is_ours(const struct server *s)
{
    return s->tls || listen_is_ours(&s->listen);
}

static bool entry_of_server(const struct entry *e, const void *owner)
{
    return e->kind == ENTRY_REQUEST && ((const struct request *)(const void *)e)->server == owner;
}

void server_free(struct server *s)
{
    if (!s)
        return;
    struct transport *t = s->transport;
    for (struct server **at = &t->servers; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    if (!s->tls)
        listen_close(&s->listen);
    if (!server_is_ours(s)) {
        /* Closing would remove the socket file of the process that took our place. The socket stays open until the process ends. */
        log_warn("socket '%s' belongs to another process now; left alone", s->listen.name);
        return;
    }
    if (!transport_close(t, s->socket))
        return;
    for (int i = 0; i < s->n_request; i++) {
        nng_aio_stop(s->request[i]->aio);
        nng_aio_free(s->request[i]->aio);
    }
    entry_remove(&t->queue, entry_of_server, s, NULL);
    for (int i = 0; i < s->n_request; i++) {
        if (s->request[i]->msg)
            nng_msg_free(s->request[i]->msg);
        free(s->request[i]);
    }
    front_free(s->front);
    if (s->tls)
        nng_tls_config_free(s->tls);
    free(s->request);
    free(s);
}

void request_answer(struct request *r, const struct msg_out *m)
{
    nng_msg *msg = nng_msg_of(m->buf.data, m->buf.len);
    if (!msg) {
        request_drop(r);
        return;
    }
    if (r->msg)
        nng_msg_free(r->msg);
    r->msg = NULL;
    r->server->n_held--;
    r->sending = true;
    nng_aio_set_msg(r->aio, msg);
    nng_ctx_send(r->ctx, r->aio);
}

void request_refuse(struct request *r, const struct error *why)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_refuse(&m, why);
    request_answer(r, &m);
    msg_release(&m);
}

void request_drop(struct request *r)
{
    if (r->msg)
        nng_msg_free(r->msg);
    r->msg = NULL;
    r->server->n_held--;
    nng_ctx_recv(r->ctx, r->aio);    // receiving again forgets who asked
}

const struct server *request_server(const struct request *r)
{
    return r->server;
}

uint32_t request_connection(const struct request *r)
{
    return r->connection;
}

void request_event(struct request *r, struct net_event *ev)
{
    struct server *s = r->server;
    struct error err;
    r->connection = (uint32_t)nng_pipe_id(nng_msg_get_pipe(r->msg));
    if (++s->n_held == s->n_request && s->n_request < s->n_max && !slots_make(s, MIN(2 * s->n_request, s->n_max), s->listen.name, &err))
        log_warn("%s", err.text);    // later requests wait until one of these is answered
    *ev = (struct net_event){ .kind = NET_REQUEST, .request = r, .data = nng_msg_body(r->msg), .len = nng_msg_len(r->msg) };
}

void servers_tick(struct transport *t)
{
    for (struct server *s = t->servers; s; s = s->next)
        if (s->tls)
            tls_tick(s);
        else
            listen_tick(&s->listen);
}

int64_t servers_due(const struct transport *t)
{
    int64_t due = INT64_MAX;
    for (const struct server *s = t->servers; s; s = s->next)
        due = MIN(due, s->tls ? s->checked_ms + CHECK_MS : listen_due(&s->listen));
    return due;
}
