#include "workers/node/relay.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"

#define ASK_MS 10000    // until a request counts as lost and is sent again
#define AGAIN_MS 100
#define SLOWEST_BYTES_PER_MS 16    // of a link over which a long request is not sent again while it is on its way: 128 kbit/s

/* A free place; more are made when there is none. */
static struct relay *place_find(struct relays *rs, struct error *err)
{
    for (int i = 0; i < rs->n; i++)
        if (!rs->relay[i].request && !rs->relay[i].open)
            return &rs->relay[i];
    int n = MIN(MAX(2 * rs->n, 32), RELAYS_MAX);
    struct relay *grown = rs->n < RELAYS_MAX ? realloc(rs->relay, (size_t)n * sizeof *grown) : NULL;
    if (!grown) {
        error_set(err, ERR_FULL, "%d requests are waiting already", rs->n);
        return NULL;
    }
    memset(grown + rs->n, 0, (size_t)(n - rs->n) * sizeof *grown);
    struct relay *first = &grown[rs->n];
    rs->relay = grown;
    rs->n = n;
    return first;
}

/* Time that the bytes of a request may take, beside all else. */
static int64_t bytes_ms(const struct msg_out *msg)
{
    return (int64_t)msg->buf.len / SLOWEST_BYTES_PER_MS;
}

/* A request that its asker has given up and asks again: it need not be sent twice. NULL: there is none. What another asker asks in
 * the same words has an answer of its own. */
static struct relay *on_its_way(const struct relays *rs, const struct peer *to, const struct request *r, enum msg_type type,
                                const struct msg_out *msg)
{
    for (int i = 0; i < rs->n; i++) {
        struct relay *x = &rs->relay[i];
        if (x->open && x->request && x->to == to && x->type == type && request_connection(x->request) == request_connection(r)
            && x->msg.buf.len == msg->buf.len && memcmp(x->msg.buf.data, msg->buf.data, msg->buf.len) == 0)
            return x;
    }
    return NULL;
}

bool relay_add(struct relays *rs, struct peer *to, struct request *r, enum msg_type type, const struct msg_out *msg, int64_t limit_ms,
               const char *owner, struct error *err)
{
    struct relay *x = on_its_way(rs, to, r, type, msg);
    if (x) {
        request_drop(x->request);
        x->request = r;
        return true;
    }
    if (!(x = place_find(rs, err)))
        return false;
    struct buf b = x->msg.buf;    // keep its memory for the next one
    *x = (struct relay){ .to = to, .type = type, .msg = { .buf = b }, .limit_ms = clock_ms() + limit_ms + bytes_ms(msg) };
    x->msg.buf.max = MSG_BYTES_MAX;
    snprintf(x->owner, sizeof x->owner, "%s", owner);
    buf_clear(&x->msg.buf);
    if (!buf_add(&x->msg.buf, msg->buf.data, msg->buf.len))
        return error_set(err, ERR_NO_MEMORY, "no memory to pass on %zu bytes", msg->buf.len);
    x->request = r;
    return true;
}

void relay_again(struct relay *x)
{
    x->again_ms = clock_ms() + AGAIN_MS;
}

struct relay *relay_answered(struct relays *rs, const struct net_event *ev)
{
    if (ev->tag < RELAY_TAG || ev->tag >= RELAY_TAG + (uint64_t)rs->n)
        return NULL;
    struct relay *x = &rs->relay[ev->tag - RELAY_TAG];
    if (ev->peer != x->to)
        return NULL;
    x->open = false;
    if (!x->request)
        return NULL;
    if (!ev->failed)
        return x;
    relay_again(x);
    return NULL;
}

struct request *relay_take(struct relay *x)
{
    struct request *r = x->request;
    x->request = NULL;
    if (x->msg.buf.cap > (size_t)1 << 20)
        msg_release(&x->msg);
    return r;
}

void relays_drop(struct relays *rs, const char *owner)
{
    for (int i = 0; i < rs->n; i++)
        if (rs->relay[i].request && strcmp(rs->relay[i].owner, owner) == 0)
            request_drop(relay_take(&rs->relay[i]));
}

void relay_end(struct relay *x, const struct net_event *ev)
{
    struct msg_out m = MSG_OUT_INIT;
    struct request *r = relay_take(x);
    if (buf_add(&m.buf, ev->data, ev->len))
        request_answer(r, &m);
    else
        request_drop(r);
    msg_release(&m);
}

int64_t relays_due(const struct relays *rs)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < rs->n; i++)
        if (rs->relay[i].request && !rs->relay[i].open)
            due = MIN(due, rs->relay[i].again_ms);
    return due;
}

void relays_tick(struct relays *rs)
{
    struct error err;
    int64_t now = clock_ms();
    for (int i = 0; i < rs->n; i++) {
        struct relay *x = &rs->relay[i];
        if (!x->request || x->open || now < x->again_ms)
            continue;
        if (now >= x->limit_ms) {
            request_drop(relay_take(x));
            continue;
        }
        x->open = peer_ask(x->to, &x->msg, MIN(x->limit_ms - now, ASK_MS + bytes_ms(&x->msg)), RELAY_TAG + (uint64_t)i, &err);
        x->again_ms = now + AGAIN_MS;
    }
}

int64_t relays_bytes(const struct relays *rs)
{
    int64_t n = 0;
    for (int i = 0; i < rs->n; i++)
        if (rs->relay[i].request)
            n += (int64_t)rs->relay[i].msg.buf.len;
    return n;
}

void relays_release(struct relays *rs)
{
    for (int i = 0; i < rs->n; i++)
        msg_release(&rs->relay[i].msg);
    free(rs->relay);
    *rs = (struct relays){ 0 };
}
