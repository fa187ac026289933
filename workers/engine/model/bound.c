/* bound.c - weights of which only this rank's shards are kept, and the places where whole pieces are while a run uses them
 *
 * There are two places for layers, taken in turn, and one for the embedding and the head. A piece is asked for ahead (model_ahead)
 * and comes by a lane while the device computes with the others; binding it (model_bind) makes the device wait for it. The host
 * waits for nothing, unless the bytes do not come by the lane (model_fetch's await):
 *
 *  1. What a place held before has been used when its `used` mark is reached; the lane begins after that.
 *  2. The device uses the place after its `came` mark, which the lane sets.
 *  3. All copies go by one lane, so what is asked for later arrives later.
 *
 * A pass asks for layer l + 2 (backward: l - 2) as soon as layer l is launched, so one layer travels while the next one computes, and
 * at a pass's turn its last two layers are still there. Copies of changed weights are forgotten (model_pieces_forget).
 *
 * A slice or a stage goes through the pieces that it has in this way too. Other devices also read its embedding, which stays in its place
 * while they do (rank_embed in run_team.c, table_bind in run_stages.c). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/model/choose_ahead.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/team.h"

#define PLACE_OF_ENDS 2    // of the embedding and the head

/* Where a piece goes. */
static struct piece_place *place_for(const struct kept *k, const struct model *m, int p)
{
    return (struct piece_place *)&k->place[p >= 1 && p <= m->c.n_layer ? (p - 1) % 2 : PLACE_OF_ENDS];
}

/* Elements of the longest piece that a place may hold, rounded up so that the next place is aligned. */
static int64_t place_n(const struct model *m, int i)
{
    int64_t most = 0, first;
    for (int p = 0; p < model_n_piece(m); p++) {
        bool layer = p >= 1 && p <= m->c.n_layer;
        if (layer == (i != PLACE_OF_ENDS))
            most = MAX(most, model_piece(m, p, &first));
    }
    return most;
}

size_t model_kept_bytes(const struct model *m, int64_t n_kept)
{
    int64_t n = n_kept;
    for (int i = 0; i < BOUND_N; i++)
        n += place_n(m, i);
    return (size_t)n * dtype_size(m->dtype);
}

void bound_free(struct model *m)
{
    struct kept *k = m->kept;
    struct error ignored;
    if (!k)
        return;
    (void)!lanes_sync(m->dev, &ignored);
    for (int i = 0; i < BOUND_N; i++) {
        layer_handles_free(m, &k->place[i].layer);
        weight_free(m->dev, k->place[i].head);
        mark_free(m->dev, k->place[i].used);
        mark_free(m->dev, k->place[i].came);
    }
    mem_free(m->dev, k->mem);
    free(k->cut);
    if (k->shards)
        mem_share_free(m->dev, k->shards, k->shard_bytes, &k->handle);
    free(k);
    m->kept = NULL;
    weights_form_set(m);
}

/* This rank's shard of piece p, which is whole at `from`. */
static bool shard_fill(struct model *m, int p, const char *from, struct error *err)
{
    const struct kept *k = m->kept;
    size_t e = dtype_size(m->dtype);
    int n_piece = model_n_piece(m);
    int64_t n = k->cut[p], first = k->cut[n_piece + p], at = k->cut[2 * n_piece + p];
    return n == 0 || mem_copy(m->dev, k->shards + (size_t)at * e, from + (size_t)first * e, (size_t)n * e, COPY_D2D, err);
}

/* This rank's shards, out of the whole, here or elsewhere; a model that has neither gets them later (piece_filled). */
static bool shards_fill(struct model *m, struct error *err)
{
    struct choose_ahead *ahead = model_is_elsewhere(m) ? choose_ahead_begin(m) : NULL;
    bool ok = true;
    for (int p = 0; p < model_n_piece(m) && ok; p++) {
        int64_t first;
        (void)model_piece(m, p, &first);
        ok = model_bind(m, p, err);
        const char *from = !ok ? NULL : m->weights ? model_at(m, first) : m->form->at(m, first);
        ok = ok && (!from || shard_fill(m, p, from, err));
    }
    choose_ahead_end(ahead);
    return ok && device_sync(m->dev, err);
}

static char *place_room(const struct model *m, int p, int64_t *first)
{
    (void)model_piece(m, p, first);
    return place_for(m->kept, m, p)->mem;
}

static bool place_filled(struct model *m, int p, struct error *err)
{
    // between the parts of a piece its place holds 0: it did at first, and the pieces that take turns in it are laid out alike
    return shard_fill(m, p, place_for(m->kept, m, p)->mem, err);
}

/* The places, and the handles on what will be in them. Every layer that is here has its parts at the same distances from its beginning. */
static bool places_make(struct model *m, struct kept *k, struct error *err)
{
    size_t at = 0, e = dtype_size(m->dtype), size = model_kept_bytes(m, 0);
    if (!(k->mem = mem_new(m->dev, size, "weights of the pieces in use", err))
        || !OP(m->dev, err, mem_fill, .y = k->mem, .size_bytes = size))
        return false;
    const struct layer_at *layer = &m->at[m->own.first];
    for (int i = 0; i < BOUND_N; i++) {
        struct piece_place *b = &k->place[i];
        b->piece = -1;
        b->mem = k->mem + at;
        at += (size_t)place_n(m, i) * e;
        if (!(b->used = mark_new(m->dev, err)) || !(b->came = mark_new(m->dev, err)))
            return false;
        if (i != PLACE_OF_ENDS ? !layer_handles_new(m, &b->layer, b->mem, layer->first, layer, err)
                               : !head_handle_new(m, &b->head, b->mem, m->head_at, err))
            return false;
    }
    return true;
}

bool model_keep(struct model *m, const struct model_cut *cut, struct error *err)
{
    BUG_IF(!m->form->plain, "weights that are cut already, an adapter, or a view");
    if (!config_stays_whole(&m->c, "kept in shards (zero_stage 3; 0 to 2 are possible)", err))
        return false;
    struct kept *k = calloc(1, sizeof *k);
    size_t n = (size_t)model_n_piece(m);
    if (!k || !(k->cut = calloc(3 * n, sizeof *k->cut))) {
        free(k);
        return error_set(err, ERR_NO_MEMORY, "no memory for a table of weights");
    }
    m->kept = k;
    memcpy(k->cut, cut->n, n * sizeof *k->cut);
    memcpy(k->cut + n, cut->first, n * sizeof *k->cut);
    memcpy(k->cut + 2 * n, cut->at, n * sizeof *k->cut);
    k->shard_bytes = (size_t)cut->n_kept * dtype_size(m->dtype);
    k->shards = mem_share_new(m->dev, k->shard_bytes, "shards of the weights", &k->handle, err);
    if (!k->shards || !OP(m->dev, err, mem_fill, .y = k->shards, .size_bytes = k->shard_bytes) || !shards_fill(m, err))
        return false;
    m->for_bwd = true;
    weights_free(m);
    source_free(m);    // and so the form is that of shards
    return places_make(m, k, err);
}

bool model_keeps_shards(const struct model *m)
{
    return m->kept != NULL;
}

void *model_kept(const struct model *m, size_t *size_bytes, const struct mem_handle **h)
{
    BUG_IF(!m->kept, "shards of weights that are whole");
    *size_bytes = m->kept->shard_bytes;
    *h = &m->kept->handle;
    return m->kept->shards;
}

void model_fetches(struct model *m, const struct model_fetch *fetch)
{
    BUG_IF(!m->kept, "whole weights need nothing fetched");
    m->kept->fetch = *fetch;
}

/* ---- in a run */
/* The pieces of other stages have no elements, and need no place. */
static bool piece_is_here(const struct model *m, int p)
{
    int64_t first;
    return p >= 0 && p < model_n_piece(m) && model_piece(m, p, &first) > 0;
}

void model_pieces_forget(struct model *m)
{
    for (int i = 0; i < BOUND_N; i++)
        m->kept->place[i].piece = -1;
}

static bool kept_ahead(struct model *m, int p, struct error *err)
{
    struct kept *k = m->kept;
    if (!piece_is_here(m, p))
        return true;
    struct piece_place *b = place_for(k, m, p);
    if (b->piece == p)
        return true;
    BUG_IF(!k->fetch.piece, "piece %d of the weights is wanted, and nobody brings it", p);
    b->piece = -1;
    if (!mark_set(m->dev, b->used, err) || !lane_after(m->dev, k->fetch.lane, b->used, err) || !k->fetch.piece(k->fetch.ctx, p, b->mem, err)
        || !lane_mark(m->dev, k->fetch.lane, b->came, err))
        return false;
    b->piece = p;
    b->coming = true;
    return true;
}

static bool kept_bind(struct model *m, int p, struct error *err)
{
    if (!piece_is_here(m, p))
        return true;
    struct piece_place *b = place_for(m->kept, m, p);
    if (!kept_ahead(m, p, err))
        return false;
    if (!b->coming)
        return true;
    b->coming = false;
    const struct model_fetch *f = &m->kept->fetch;
    return (!f->await || f->await(f->ctx, p, err)) && (!f->stall || f->stall(f->ctx, true, err)) && device_after(m->dev, b->came, err)
           && (!f->stall || f->stall(f->ctx, false, err)) && (!b->head || weight_refresh(m->dev, b->head, err))
           && (!b->layer.qkv || layer_handles_refresh(m, &b->layer, err));
}

const void *piece_at(const struct model *m, int p, const char *mem, int64_t at)
{
    int64_t first = 0, n = p < 0 ? 0 : model_piece(m, p, &first);
    return at >= first && at < first + n ? mem + (size_t)(at - first) * dtype_size(m->dtype) : NULL;
}

static const void *kept_at(const struct model *m, int64_t at)
{
    const void *found = NULL;
    for (int i = 0; i < BOUND_N && !found; i++)
        found = piece_at(m, m->kept->place[i].piece, m->kept->place[i].mem, at);
    return found;
}

const void *bound_at(const struct model *m, int64_t at)
{
    const void *found = m->form->at(m, at);
    BUG_IF(!found, "element %" PRId64 " of the weights is used, and its piece is not bound", at);
    return found;
}

static const void *kept_embedding(const struct model *m)
{
    const struct piece_place *b = &m->kept->place[PLACE_OF_ENDS];    // alone: other devices' threads read it, too
    BUG_IF(b->piece != 0, "the embedding is read, and piece %d is in its place", b->piece);
    return b->mem + (size_t)m->embed_at * dtype_size(m->dtype);
}

const void *model_piece_whole(struct model *m, int p, struct error *err)
{
    return model_bind(m, p, err) ? place_for(m->kept, m, p)->mem : NULL;
}

static const struct layer_w *kept_layer(const struct model *m, int64_t l)
{
    return &place_for(m->kept, m, 1 + (int)l)->layer;
}

static const struct weight *kept_head(const struct model *m)
{
    return m->kept->place[PLACE_OF_ENDS].head;
}

static bool kept_changed(struct model *m, UNUSED struct error *err)
{
    model_pieces_forget(m);
    return true;
}

static size_t kept_held(const struct model *m)
{
    return m->kept->shard_bytes + model_kept_bytes(m, 0);
}

const struct weights_form weights_shards = { .ahead = kept_ahead,
                                             .bind = kept_bind,
                                             .at = kept_at,
                                             .layer = kept_layer,
                                             .head = kept_head,
                                             .embedding = kept_embedding,
                                             .room = place_room,
                                             .filled = place_filled,
                                             .take = weights_stay,
                                             .changed = kept_changed,
                                             .held = kept_held };
