/* Publishers and subscribers: what is sent to all listeners, and may be lost. */
#include "protocol/wire/transport_parts.h"
#include <nng/protocol/pubsub0/pub.h>
#include <nng/protocol/pubsub0/sub.h>
#include <stdlib.h>
#include <string.h>

#define TOPIC_MAX 32
#define SP_SUB 0x21    // SP's number for the protocol that dials ours (not all of nng's headers have it)

struct publisher {
    struct publisher *next;
    struct transport *transport;
    nng_socket socket;
    struct listen listen;
};
struct subscriber {
    struct transport *transport;
    nng_socket socket;
    nng_aio *aio;
};
struct heard {
    struct queue_entry entry;
    const struct subscriber *subscriber;
    nng_msg *msg;
};

struct publisher *publisher_new(struct transport *t, const char *name, struct error *err)
{
    int rv;
    struct publisher *p = calloc(1, sizeof *p);
    if (!p) {
        error_set(err, ERR_NO_MEMORY, "no memory for a publisher");
        return NULL;
    }
    if ((rv = nng_pub0_open(&p->socket)) != 0) {
        net_error(err, rv, "cannot open a socket for", name);
        goto fail;
    }
    nng_socket_set_int(p->socket, NNG_OPT_SENDBUF, 1024);
    if (!transport_listen(t, &p->listen, p->socket, SP_SUB, name, err)) {
        nng_close(p->socket);
        goto fail;
    }
    p->transport = t;
    p->next = t->publishers;
    t->publishers = p;
    return p;
fail:
    free(p);
    return NULL;
}

void publisher_free(struct publisher *p)
{
    if (!p)
        return;
    for (struct publisher **at = &p->transport->publishers; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    listen_close(&p->listen);
    if (transport_close(p->transport, p->socket))
        free(p);
}

void publisher_send(struct publisher *p, const char *topic, const void *data, size_t len)
{
    nng_msg *m = nng_msg_of(topic, strlen(topic) + 1);    // with its NUL
    if (!m)
        return;
    if (nng_msg_append(m, data, len) != 0 || nng_sendmsg(p->socket, m, NNG_FLAG_NONBLOCK) != 0)
        nng_msg_free(m);
}

int publisher_n_listener(const struct publisher *p)
{
    return listen_n_open(&p->listen);
}

static void heard_cb(void *arg)
{
    struct subscriber *s = arg;
    struct entry_queue *q = &s->transport->queue;
    int rv = nng_aio_result(s->aio);
    if (rv == NNG_ECLOSED)
        return;
    if (rv == 0) {
        nng_msg *m = nng_aio_get_msg(s->aio);
        struct heard *h = NULL;
        if (entry_room(q) && (h = calloc(1, sizeof *h))) {
            h->entry.kind = ENTRY_HEARD;
            h->subscriber = s;
            h->msg = m;
            entry_push(q, &h->entry);
        } else {
            nng_msg_free(m);
        }
    }
    nng_recv_aio(s->socket, s->aio);
}

struct subscriber *subscriber_new(struct transport *t, const char *name, struct error *err)
{
    char url[URL_SIZE];
    int rv;
    struct subscriber *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for a subscriber");
        return NULL;
    }
    s->transport = t;
    if (!transport_url(t, name, url, sizeof url, err))
        goto fail;
    if ((rv = nng_sub0_open(&s->socket)) != 0) {
        net_error(err, rv, "cannot open a socket for", name);
        goto fail;
    }
    nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, MSG_BYTES_MAX);
    nng_socket_set_int(s->socket, NNG_OPT_RECVBUF, 8192);
    nng_socket_set_ms(s->socket, NNG_OPT_RECONNMINT, 20);
    nng_socket_set_ms(s->socket, NNG_OPT_RECONNMAXT, 250);
    nng_socket_set(s->socket, NNG_OPT_SUB_SUBSCRIBE, "", 0);
    if ((rv = nng_aio_alloc(&s->aio, heard_cb, s)) != 0 || (rv = nng_dial(s->socket, url, NULL, NNG_FLAG_NONBLOCK)) != 0) {
        net_error(err, rv, "cannot listen to", name);
        nng_close(s->socket);
        nng_aio_free(s->aio);
        goto fail;
    }
    nng_aio_set_timeout(s->aio, NNG_DURATION_INFINITE);
    nng_recv_aio(s->socket, s->aio);
    return s;
fail:
    free(s);
    return NULL;
}

static bool entry_of_subscriber(const struct queue_entry *e, const void *owner)
{
    return e->kind == ENTRY_HEARD && ((const struct heard *)(const void *)e)->subscriber == owner;
}

void heard_free(struct queue_entry *e)
{
    struct heard *h = (void *)e;
    nng_msg_free(h->msg);
    free(h);
}

void subscriber_free(struct subscriber *s)
{
    if (!s)
        return;
    if (!transport_close(s->transport, s->socket))
        return;
    nng_aio_stop(s->aio);
    nng_aio_free(s->aio);
    entry_remove(&s->transport->queue, entry_of_subscriber, s, heard_free);
    free(s);
}

void heard_event(struct heard *h, struct net_event *ev)
{
    *ev = (struct net_event){ .kind = NET_HEARD, .data = nng_msg_body(h->msg), .len = nng_msg_len(h->msg), .msg = h->msg };
    free(h);
}

bool heard_split(const struct net_event *ev, char *topic, size_t size, const void **data, size_t *len)
{
    const char *nul = memchr(ev->data, 0, MIN(ev->len, (size_t)TOPIC_MAX));
    if (!nul || (size_t)(nul - (const char *)ev->data) >= size)
        return false;
    size_t n = (size_t)(nul - (const char *)ev->data);
    memcpy(topic, ev->data, n + 1);
    *data = nul + 1;
    *len = ev->len - n - 1;
    return true;
}

void publishers_tick(struct transport *t)
{
    for (struct publisher *p = t->publishers; p; p = p->next)
        listen_tick(&p->listen);
}

int64_t publishers_due(const struct transport *t)
{
    int64_t due = INT64_MAX;
    for (const struct publisher *p = t->publishers; p; p = p->next)
        due = MIN(due, listen_due(&p->listen));
    return due;
}
