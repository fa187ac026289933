/* Servers: Unix sockets of nng, which take requests, each in its own slot, and send the loop's answers; and fronts (front.h), to which
 * requests of other hosts come. */
#include "protocol/wire/transport_parts.h"
#include <nng/protocol/reqrep0/rep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/log.h"
#include "protocol/wire/front.h"

#define VIEW_BYTES_MAX 8192
#define SLOTS_FIRST 64    // requests that can be held before more room is made
#define SP_REQ 0x30       // SP's number for the protocol that dials ours (not all of nng's headers have it)

struct request {
    struct queue_entry entry;
    struct server *server;
    uint64_t connection;    // that it came by: its number among those of the server
    /* of a Unix socket */
    nng_ctx ctx;
    nng_aio *aio;
    nng_msg *msg;    // the request; the loop's while it holds it
    bool sending;    // the aio is sending our answer
    /* of another host: in the server's list while the loop holds it, then freed */
    struct request *next, **at;
    struct tls_trace trace;
    size_t len;
    uint8_t data[];
};
struct server {
    struct server *next;
    struct transport *transport;
    int number;              // from 1, of the transport's servers
    struct front *front;     // of TLS; NULL: a Unix socket, of nng
    struct request *held;    // of TLS
    nng_socket socket;
    struct listen listen;
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

static struct server *server_make(struct transport *t, int n_wait, struct error *err)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for a server");
        return NULL;
    }
    s->transport = t;
    s->number = ++t->n_server;
    s->n_max = n_wait;
    return s;
}

struct server *server_new(struct transport *t, const char *name, int n_wait, struct error *err)
{
    int rv;
    struct server *s = server_make(t, n_wait, err);
    if (!s)
        return NULL;
    if ((rv = nng_rep0_open(&s->socket)) != 0) {
        net_error(err, rv, "cannot open a socket for", name);
        goto fail;
    }
    /* nng takes memory for a message as soon as its length arrives; readers of the view only send short requests. */
    nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, strncmp(name, "view", 4) == 0 ? VIEW_BYTES_MAX : MSG_BYTES_MAX);
    if (!transport_listen(t, &s->listen, s->socket, SP_REQ, name, err)) {
        nng_close(s->socket);
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
    free(s);
    return NULL;
}

/* ---- requests of other hosts ---- */

/* The front's thread. */
static bool far_hear(void *ctx, uint64_t connection, const struct tls_message *m)
{
    struct server *s = ctx;
    struct request *r = malloc(sizeof *r + m->len);
    if (!r)
        return false;
    *r = (struct request){ .entry.kind = ENTRY_REQUEST, .server = s, .connection = connection, .trace = m->trace, .len = m->len };
    memcpy(r->data, m->data, m->len);
    entry_push(&s->transport->queue, &r->entry);
    return true;
}

static void far_event(struct request *r, struct net_event *ev)
{
    struct server *s = r->server;
    r->next = s->held;
    r->at = &s->held;
    if (r->next)
        r->next->at = &r->next;
    s->held = r;
    *ev = (struct net_event){ .kind = NET_REQUEST, .request = r, .data = r->data, .len = r->len };
}

static void far_free(struct request *r)
{
    *r->at = r->next;
    if (r->next)
        r->next->at = r->at;
    free(r);
}

static bool entry_of_server(const struct queue_entry *e, const void *owner)
{
    return e->kind == ENTRY_REQUEST && ((const struct request *)(const void *)e)->server == owner;
}

static void far_forget(struct queue_entry *e)
{
    free((struct request *)(void *)e);
}

struct server *server_new_tls(struct transport *t, const char *address, const struct join_identity *id, int n_wait, struct error *err)
{
    struct server *s = server_make(t, n_wait, err);
    if (!s)
        return NULL;
    if ((s->front = front_new(address, FRONT_LIMIT_MS, err)) == NULL)
        goto fail;
    front_requests(s->front, n_wait, far_hear, s);
    if (!front_identity(s->front, id, err) || !front_start(s->front, err))
        goto fail;
    s->next = t->servers;
    t->servers = s;
    return s;
fail:
    front_free(s->front);
    free(s);
    return NULL;
}

void server_bulk(struct server *s, bool (*take)(void *ctx, int fd, const uint8_t *hello), void *ctx)
{
    front_bulk(s->front, take, ctx);
}

bool server_identity(struct server *s, const struct join_identity *id, struct error *err)
{
    return front_identity(s->front, id, err);
}

void server_cut(struct server *s)
{
    front_cut(s->front);
}

static void far_server_free(struct server *s)
{
    front_free(s->front);
    entry_remove(&s->transport->queue, entry_of_server, s, far_forget);
    while (s->held)
        far_free(s->held);
    free(s);
}

/* ---- both ---- */

bool server_is_ours(const struct server *s)
{
    return s->front || listen_is_ours(&s->listen);
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
    if (s->front) {
        far_server_free(s);
        return;
    }
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
    free(s->request);
    free(s);
}

void request_answer(struct request *r, const struct msg_out *m)
{
    if (r->server->front) {
        front_answer(r->server->front, r->connection, &r->trace, m->buf.data, m->buf.len);
        far_free(r);
        return;
    }
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
    if (r->server->front) {
        front_drop(r->server->front);
        far_free(r);
        return;
    }
    if (r->msg)
        nng_msg_free(r->msg);
    r->msg = NULL;
    r->server->n_held--;
    nng_ctx_recv(r->ctx, r->aio);    // receiving again forgets which side asked
}

const struct server *request_server(const struct request *r)
{
    return r->server;
}

uint64_t request_connection(const struct request *r)
{
    return r->connection << 8 | (uint64_t)r->server->number;
}

int64_t connection_heard_ms(const struct transport *t, uint64_t connection)
{
    for (const struct server *s = t->servers; s; s = s->next)
        if (s->front && (uint64_t)s->number == (connection & 255))
            return front_heard_ms(s->front, connection >> 8);
    return 0;
}

void request_event(struct request *r, struct net_event *ev)
{
    struct server *s = r->server;
    struct error err;
    if (s->front) {
        far_event(r, ev);
        return;
    }
    r->connection = (uint64_t)nng_pipe_id(nng_msg_get_pipe(r->msg));
    if (++s->n_held == s->n_request && s->n_request < s->n_max && !slots_make(s, MIN(2 * s->n_request, s->n_max), s->listen.name, &err))
        log_warn("%s", err.text);    // later requests wait until one of these is answered
    *ev = (struct net_event){ .kind = NET_REQUEST, .request = r, .data = nng_msg_body(r->msg), .len = nng_msg_len(r->msg) };
}

void servers_tick(struct transport *t)
{
    for (struct server *s = t->servers; s; s = s->next)
        if (!s->front)
            listen_tick(&s->listen);
}

int64_t servers_due(const struct transport *t)
{
    int64_t due = INT64_MAX;
    for (const struct server *s = t->servers; s; s = s->next)
        if (!s->front)
            due = MIN(due, listen_due(&s->listen));
    return due;
}
