#include "workers/node/weights_fetch.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/node/bulk/bulk_fetch.h"
#include "workers/engine/publish/publication.h"

#define OFFER_LIMIT_MS 10000
#define AGAIN_MS 200
#define STALL_MS 30000    // without a block, while the gate answers: no bulk connection gets through
#define STALL_OFFERS 3
#define WEIGHTS_MAX ((int64_t)1 << 42)

struct weights_fetch {
    struct weights_fetch_config config;
    char path[4200], base_path[4200], spare_path[4200];    // "": none
    char name[160];                                        // "": of weights
    char what[200];                                        // for messages
    bool has_base;
    uint64_t base_key;
    bool asking, needs_offer;
    int64_t again_ms;
    struct bulk_fetch *bulk;    // NULL: no offer yet, or pieces
    struct fetch *pieces;       // NULL: not in pieces
    int64_t moved_ms, moved_bytes;
    int n_offer;    // since then
    enum fetch_state state;
    struct error err;
};

static bool file_key(const char *path, uint64_t *key)
{
    struct file_map map;
    struct error none;
    if (!file_map_open(&map, path, &none))
        return false;
    bool ok = weights_file_key(map.data, map.size_bytes, key);
    file_map_close(&map);
    return ok;
}

struct weights_fetch *weights_fetch_new(const struct weights_fetch_config *config, struct error *err)
{
    struct weights_fetch *w = calloc(1, sizeof *w);
    if (!w) {
        error_set(err, ERR_NO_MEMORY, "no memory to fetch '%s'", config->path);
        return NULL;
    }
    w->config = *config;
    snprintf(w->path, sizeof w->path, "%s", config->path);
    snprintf(w->base_path, sizeof w->base_path, "%s", config->base_path ? config->base_path : "");
    snprintf(w->spare_path, sizeof w->spare_path, "%s", config->spare_path ? config->spare_path : "");
    w->config.path = w->path;
    w->config.base_path = w->base_path;
    snprintf(w->name, sizeof w->name, "%s", config->name ? config->name : "");
    w->config.name = w->name;
    if (config->name)
        snprintf(w->what, sizeof w->what, "'%s'", w->name);
    else
        snprintf(w->what, sizeof w->what, "weights of version %" PRId64, config->version);
    w->has_base = config->base_path && file_key(w->base_path, &w->base_key);
    w->needs_offer = true;
    w->moved_ms = clock_ms();
    return w;
}

void weights_fetch_free(struct weights_fetch *w)
{
    if (!w)
        return;
    bulk_fetch_free(w->bulk);
    fetch_free(w->pieces);
    free(w);
}

static void failed(struct weights_fetch *w, const struct error *why)
{
    w->state = FETCH_FAILED;
    w->err = *why;
}

/* From now on in pieces, from the beginning. */
static void pieces_begin(struct weights_fetch *w, const char *why)
{
    struct error err;
    const struct weights_fetch_config *c = &w->config;
    log_warn("%s: over TLS in pieces, since %s", w->what, why);
    bulk_fetch_free(w->bulk);
    w->bulk = NULL;
    w->needs_offer = false;
    w->pieces = fetch_new(w->name[0] ? w->name : NULL, c->made, c->version, w->path, WEIGHTS_MAX, c->stream, c->n_stream, c->tag, &err);
    if (!w->pieces)
        failed(w, &err);
}

/* ---- offers */

static void offer_ask(struct weights_fetch *w)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_WEIGHTS);
    msg_i64(&m, "version", w->config.version);
    msg_i64(&m, "made", w->config.made);
    if (w->name[0])
        msg_str(&m, "name", w->name);
    if (w->has_base) {
        msg_i64(&m, "base_version", w->config.base_version);
        msg_i64(&m, "base_made", w->config.base_made);
        msg_i64(&m, "base_key", (int64_t)w->base_key);
        msg_bool(&m, "links", true);
    }
    w->asking = msg_finish(&m, &err) && peer_ask(w->config.head, &m, OFFER_LIMIT_MS, w->config.tag + FETCH_TAGS, &err);
    w->again_ms = clock_ms() + AGAIN_MS;
    msg_release(&m);
}

static bool offer_read(struct bulk_offer *o, const struct mval *root, struct error *err)
{
    size_t n_name = 0, n_key = 0;
    const void *name = mval_bin(mval_get(root, "name"), &n_name), *key = mval_bin(mval_get(root, "key"), &n_key);
    if (!name || !key || n_name != sizeof o->ticket.name || n_key != sizeof o->ticket.key)
        return error_set(err, ERR_DATA, "the gate's ticket for weights has a name of %zu and a key of %zu bytes", n_name, n_key);
    *o = (struct bulk_offer){ .size_bytes = mval_i64(mval_get(root, "size_bytes"), 0),
                              .key = (uint64_t)mval_i64(mval_get(root, "file_key"), 0),
                              .has_base = mval_bool(mval_get(root, "has_base"), false) };
    memcpy(o->ticket.name, name, n_name);
    memcpy(o->ticket.key, key, n_key);
    return true;
}

static void offer_take(struct weights_fetch *w, const struct bulk_offer *o)
{
    struct error err;
    struct bulk_fetch_config c = { .address = w->config.address,
                                   .path = w->path,
                                   .base_path = w->has_base ? w->base_path : NULL,
                                   .spare_path = w->spare_path[0] ? w->spare_path : NULL,
                                   .plain = w->name[0] != 0,
                                   .size_max = WEIGHTS_MAX,
                                   .wake = w->config.wake,
                                   .ctx = w->config.ctx };
    w->n_offer++;
    w->needs_offer = false;
    if (w->bulk && !bulk_fetch_again(w->bulk, w->config.address, o, &err)) {
        log_warn("%s; it is fetched from the beginning", err.text);
        bulk_fetch_free(w->bulk);
        w->bulk = NULL;
    }
    if (!w->bulk && !(w->bulk = bulk_fetch_new(&c, o, &err)))
        failed(w, &err);
}

bool weights_fetch_answered(struct weights_fetch *w, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    struct bulk_offer o;
    if (ev->kind != NET_ANSWER || ev->tag != w->config.tag + FETCH_TAGS)
        return w->pieces && fetch_answered(w->pieces, ev);
    w->asking = false;
    if (ev->failed || !w->needs_offer)
        return true;
    if (!msg_read_answer(&in, MSG_WEIGHTS, ev->data, ev->len, &err)) {
        /* a gate that does not know this message, or such files, or cannot offer this one */
        if (err.code == ERR_DATA || err.code == ERR_UNSUPPORTED || (w->name[0] && err.code == ERR_NOT_FOUND))
            pieces_begin(w, err.text);
        else if (err.code != ERR_FULL)
            failed(w, &err);
        return true;
    }
    if (offer_read(&o, in.root, &err))
        offer_take(w, &o);
    else
        failed(w, &err);
    explicit_bzero(&o, sizeof o);
    msg_in_release(&in);
    return true;
}

/* ---- as time passes */

static void bulk_look(struct weights_fetch *w)
{
    struct error why;
    switch (bulk_fetch_state(w->bulk, &why)) {
    case BULK_FETCH_GOES: break;
    case BULK_FETCH_DONE: w->state = FETCH_DONE; break;
    case BULK_FETCH_FAILED: failed(w, &why); break;
    case BULK_FETCH_NO_BASE:
        log_warn("the weights of version %" PRId64 " here are not what they should be, so version %" PRId64 " comes whole: %s",
                 w->config.base_version, w->config.version, why.text);
        w->has_base = false;
        w->needs_offer = true;
        break;
    case BULK_FETCH_CUT:
        log_debug("%s: interrupted: %s", w->what, why.text);
        w->needs_offer = true;
        w->again_ms = clock_ms() + AGAIN_MS;
        break;
    }
}

static bool is_stalled(struct weights_fetch *w, int64_t now)
{
    struct weights_fetch_look look;
    weights_fetch_look(w, &look);
    if (look.done_bytes != w->moved_bytes) {
        w->moved_bytes = look.done_bytes;
        w->moved_ms = now;
        w->n_offer = 0;
    }
    return now >= w->moved_ms + STALL_MS && w->n_offer >= STALL_OFFERS;
}

void weights_fetch_tick(struct weights_fetch *w)
{
    int64_t now = clock_ms();
    if (w->state != FETCH_GOES)
        return;
    if (w->bulk && !w->needs_offer)
        bulk_look(w);
    if (w->state == FETCH_GOES && !w->pieces && is_stalled(w, now))
        pieces_begin(w, "connections for large data bring nothing, but the gate answers");
    if (w->state == FETCH_GOES && w->needs_offer && !w->asking && now >= w->again_ms)
        offer_ask(w);
    if (!w->pieces)
        return;
    fetch_tick(w->pieces);
    w->state = fetch_state(w->pieces, &w->err);
}

int64_t weights_fetch_due(const struct weights_fetch *w)
{
    if (w->state != FETCH_GOES)
        return clock_ms();
    if (w->pieces)
        return fetch_due(w->pieces);
    int64_t stall = w->n_offer >= STALL_OFFERS ? w->moved_ms + STALL_MS : INT64_MAX;
    return MIN(stall, w->needs_offer && !w->asking ? w->again_ms : INT64_MAX);
}

enum fetch_state weights_fetch_state(const struct weights_fetch *w, struct error *err)
{
    if (w->state == FETCH_FAILED)
        *err = w->err;
    return w->state;
}

void weights_fetch_look(const struct weights_fetch *w, struct weights_fetch_look *out)
{
    struct bulk_fetch_look look = { 0 };
    *out = (struct weights_fetch_look){ 0 };
    if (w->pieces) {
        out->done_bytes = out->wire_bytes = fetch_bytes(w->pieces, &out->size_bytes);
        return;
    }
    if (w->bulk)
        bulk_fetch_look(w->bulk, &look);
    *out = (struct weights_fetch_look){ .done_bytes = look.done_bytes, .size_bytes = look.size_bytes, .wire_bytes = look.wire_bytes };
}
