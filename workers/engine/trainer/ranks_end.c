/* ranks_end.c - a device of a rank and the same device of the other ranks: where its gradient goes, whose weights it reads, what it spreads
 *
 * Ranks that are processes exchange by exchange.h; those that one process plays copy and add at once. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/model/model.h"
#include "workers/engine/trainer/ranks_impl.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/update.h"
#include "workers/engine/pass/pass.h"

/* Where this device's gradient of a piece is, when all are here; a piece that is too long for one place has all of them. */
static float *place_here(const struct end *e, int p)
{
    struct trainer_parts mine = trainer_parts(e->t);
    if (!mine.n_slot)
        return mine.grad + mine.piece_at[p];
    return mine.grad + (mine.piece_n[p] > mine.slot_n ? 0 : e->n_given % mine.n_slot * mine.slot_n);
}

/* Where this device's gradient of a piece goes: after the first micro-batch of a group it is added to what is there. */
static float *piece_begin(void *ctx, int p, bool *adds, struct error *err)
{
    struct end *e = ctx;
    BUG_IF(e->made[p], "piece %d of a group that has not been given yet", p);
    *adds = e->n_made[p] % e->k->r->n_group > 0;
    return e->x && !*adds ? exchange_slot(e->x, p, err) : place_here(e, p);
}

/* The ranks that are here run one after the other, in rank order: each adds what it has made to the owners' shards; one that is alone, whose
 * shards are whole pieces, to its own. */
static bool piece_add_here(struct end *e, int p, struct error *err)
{
    const struct ranks *r = e->k->r;
    const float *from = place_here(e, p);
    e->n_given++;
    for (int o = 0; o < r->n_rank; o++) {
        struct trainer *t = r->here[o].end[e->index].t;
        struct trainer_parts own = trainer_parts(t);
        if (!OP(trainer_device(t), err, axpy, .y = own.sum + own.own_at[p], .x = from + own.own_first[p], .n = own.own_n[p], .scale = 1))
            return false;
    }
    return true;
}

/* Give what is made as far as it is in turn. A group that is cut short by the end of the batch is made early, before the late first piece
 * of an earlier one (model_late_piece). */
static bool made_give(struct end *e, struct error *err)
{
    for (int p;;) {
        if (!exchange_turn(e->x, &p, err))
            return false;
        if (p < 0 || !e->made[p])
            return true;
        e->made[p] = false;
        if (!exchange_give(e->x, p, err))
            return false;
    }
}

static bool piece_end(void *ctx, int p, struct error *err)
{
    struct end *e = ctx;
    int64_t n = ++e->n_made[p];
    if (n % e->k->r->n_group > 0 && n < e->n_micro)
        return true;
    if (!e->x)
        return piece_add_here(e, p, err);
    e->made[p] = true;
    return made_give(e, err);
}

static bool carry_on(void *ctx, struct error *err)
{
    struct end *e = ctx;
    return exchange_poll(e->x, err);
}

/* What the same device of another rank has where this one has p, of its share or of its shards of the weights. */
static void *peer_of(void *ctx, const void *p, int rank)
{
    const struct end *e = ctx;
    if (e->c)
        return collective_peer(e->c, p, rank);
    struct trainer_parts mine = trainer_parts(e->t), other = trainer_parts(e->k->r->here[rank].end[e->index].t);
    if ((const char *)p >= (char *)mine.share && (const char *)p < (char *)mine.share + mine.share_bytes)
        return (char *)other.share + ((const char *)p - (char *)mine.share);
    if (mine.host && (const char *)p >= (char *)mine.host && (const char *)p < (char *)mine.host + mine.host_bytes)
        return (char *)other.host + ((const char *)p - (char *)mine.host);
    return (char *)other.weights + ((const char *)p - (char *)mine.weights);
}

bool end_is_apart(const struct end *e)
{
    return e->x && !exchange_reaches(e->x);
}

bool end_gives_always(const struct end *e)
{
    return end_is_apart(e) && trainer_parts(e->t).weights;
}

/* Where rank q's shard of a piece of the weights begins among its shards, in elements; it is `n` of the piece's elements from `first` on. */
static int64_t shard_at(const struct end *e, int p, int q, int64_t *first, int64_t *n)
{
    struct trainer_parts parts = trainer_parts(e->t);
    int n_rank = e->k->r->n_rank;
    int64_t at = 0, unused;
    for (int o = 0; o < p; o++)
        at += collective_shard(parts.piece_n[o], n_rank, q, &unused);
    *n = collective_shard(parts.piece_n[p], n_rank, q, first);
    return at;
}

/* Where this device sees that shard. */
static const char *shard_of(const struct end *e, int p, int q, int64_t *first, int64_t *n)
{
    int64_t at = shard_at(e, p, q, first, n);
    return (const char *)peer_of((void *)e, trainer_parts(e->t).weights, q) + (size_t)at * dtype_size(model_dtype(trainer_model(e->t)));
}

/* Where the first device sees what rank q has of this device's weights. Another process's memory is seen by the device that has opened it alone.
 * ERR_CLOSED: that process has gone. */
static const void *first_sees(struct end *e, int q, const struct extent_part *part, struct error *err)
{
    struct device *first = trainer_device(e->k->end[0].t);
    if (!e->c || e->index == 0 || q == e->k->index)
        return peer_of(e, trainer_parts(e->t).weights, q);
    if (!e->seen && !(e->seen = calloc((size_t)e->k->r->n_rank, sizeof *e->seen))) {
        error_set(err, ERR_NO_MEMORY, "no memory for a table of the trainers' shards");
        return NULL;
    }
    if (!e->seen[q] && !(e->seen[q] = mem_share_open(first, &part->handle, part->size_bytes, err)) && err->code != ERR_UNSUPPORTED)
        err->code = ERR_CLOSED;
    return e->seen[q];
}

bool end_shards_add(struct end *e, struct extent_table *t, struct error *err)
{
    struct trainer_parts parts = trainer_parts(e->t);
    size_t size = dtype_size(model_dtype(trainer_model(e->t)));
    const struct ranks *r = e->k->r;
    const struct model *whole = trainer_model(e->k->t);
    for (int q = 0; q < r->n_rank; q++) {
        const struct mem_handle *h;
        struct extent_part part = { .dev = q == e->k->index ? trainer_device(e->t) : NULL };
        BUG_IF(t->n_part == EXTENT_PART_MAX, "shards in more than %d parts of memory", EXTENT_PART_MAX);
        (void)model_kept(trainer_model(e->c ? e->t : r->here[q].end[e->index].t), &part.size_bytes, &h);
        part.handle = *(e->c ? collective_handle(e->c, parts.weights, q) : h);
        if (!(part.mem = first_sees(e, q, &part, err)))
            return false;
        t->part[t->n_part] = part;
        for (int p = 0; p < parts.n_piece; p++) {
            int64_t first, n, in_part = shard_at(e, p, q, &first, &n);
            first += parts.piece_at[p];
            struct extent run = { .of = area_run((size_t)first * size, (size_t)n * size), .part = t->n_part, .at = (size_t)in_part * size };
            if (n > 0
                && !(e->k->n_end > 1 ? extent_table_add_slice(t, whole, e->index, first, n, t->n_part, run.at, err)
                                     : extent_table_add(t, &run, err)))
                return false;
        }
        t->n_part++;
    }
    return true;
}

void end_unsee(struct end *e)
{
    size_t bytes;
    const struct mem_handle *h;
    for (int q = 0; e->seen && q < e->k->r->n_rank; q++)
        if (e->seen[q]) {
            (void)model_kept(trainer_model(e->t), &bytes, &h);    // as long on all ranks
            mem_share_close(trainer_device(e->k->end[0].t), e->seen[q], bytes);
        }
    free(e->seen);
    e->seen = NULL;
}

bool end_hold(struct end *e, UNUSED void *ctx, struct error *err)
{
    if (!device_sync(trainer_device(e->t), err) || !end_reach_begin(e, err))
        return false;
    if (e->held)
        end_reach_end(e);
    e->held = true;
    return true;
}

bool end_let_go(struct end *e, UNUSED void *ctx, UNUSED struct error *err)
{
    if (e->held)
        end_reach_end(e);
    e->held = false;
    return true;
}

/* Ask for a whole piece of the weights, of which each rank keeps its shard. Reading is as fast as writing between two cards
 * (kernels/cuda/NOTES.md), and needs no word from the other rank: shards change only while nobody computes. */
bool end_fetch(void *ctx, int p, void *to, struct error *err)
{
    struct end *end = ctx;
    struct trainer_parts parts = trainer_parts(end->t);
    size_t e = dtype_size(model_dtype(trainer_model(end->t)));
    int n_rank = end->k->r->n_rank, rank = end->k->index;
    int64_t n_fetched = 0;
    if (end_is_apart(end))
        return exchange_fetch(end->x, p, (char *)parts.weights + (size_t)parts.own_at[p] * e, to, e, err);
    if (end->x && !exchange_fetch_begin(end->x, err))
        return false;
    for (int i = 0; i < n_rank; i++) {
        int q = (rank + i) % n_rank;    // not all from the same one at a time
        int64_t first, n;
        const char *from = shard_of(end, p, q, &first, &n);
        if (!lane_copy(trainer_device(end->t), EXCHANGE_FREE_LANE, (char *)to + (size_t)first * e, from, (size_t)n * e, err))
            return false;
        n_fetched += q == rank ? 0 : n * (int64_t)e;
    }
    return !end->x || exchange_fetch_end(end->x, n_fetched, err);
}

/* Until the device may be made to wait for a piece: its bytes are there, or on a lane. */
bool end_fetched(void *ctx, int p, struct error *err)
{
    const struct end *e = ctx;
    return !end_is_apart(e) || exchange_await(e->x, p, err);
}

/* Around what makes the device wait for a piece. */
static bool weights_stall(void *ctx, bool begins, struct error *err)
{
    const struct end *e = ctx;
    return !e->x || exchange_stall(e->x, begins, err);
}

bool end_reach_begin(void *ctx, struct error *err)
{
    const struct end *e = ctx;
    return !e->c || end_is_apart(e) || collective_touch_begin(e->c, err);
}

void end_reach_end(void *ctx)
{
    const struct end *e = ctx;
    if (e->c && !end_is_apart(e))
        collective_touch_end(e->c);
}

/* Where the ranks are apart: bring what each has at mine to the first one. */
static bool reach_first(void *ctx, const void *mine, const size_t *size_bytes, void *stage, size_t each, struct error *err)
{
    const struct end *e = ctx;
    return exchange_to_first(e->x, mine, size_bytes, stage, each, err);
}

/* Where the ranks are apart: the sum of a piece to one of them. */
static bool collect(void *ctx, int p, int at, float *to, struct error *err)
{
    const struct end *e = ctx;
    return exchange_collect(e->x, p, at, to, err);
}

/* Let the others reach what they must, and begin to exchange gradients with them. */
static bool exchange_open(struct end *e, struct error *err)
{
    struct trainer *t = e->t;
    struct trainer_parts p = trainer_parts(t);
    int rank = e->k->index;
    if (!collective_offer(e->c, p.share, p.share_bytes, p.share_handle, err))
        return false;
    bool apart = !collective_peer(e->c, p.share, rank);
    if (trainer_zero(t) > 0 && !apart) {
        size_t bytes;
        const struct mem_handle *h;
        struct model *m = trainer_model(t);
        void *weights = NULL;
        if (p.weights)
            weights = model_kept(m, &bytes, &h);
        else if ((h = model_share(m, err)))    // as it is since the trainer was made
            weights = model_weights(m, &bytes);
        if (!h || !collective_offer(e->c, weights, bytes, h, err))
            return false;
        if (!collective_peer(e->c, weights, rank))
            return error_set(err, ERR_UNSUPPORTED, "%s cannot reach the other trainers' weights; 'collective' local does without",
                             trainer_device(t)->name);
    }
    if (p.host && !apart && !collective_offer_host(e->c, p.host, p.host_bytes, p.host_handle, err))
        return false;
    if (p.host && !apart && !collective_peer(e->c, p.host, rank))
        return error_set(err, ERR_UNSUPPORTED, "%s cannot open the other trainers' host memory; without offload_optimizer it need not",
                         trainer_device(t)->name);
    struct exchange_config f = { .c = e->c,
                                 .dev = trainer_device(t),
                                 .n_piece = p.n_piece,
                                 .piece_n = p.piece_n,
                                 .sum = p.sum,
                                 .sum_at = p.own_at,
                                 .slot = p.grad,
                                 .n_slot = p.n_slot,
                                 .slot_n = p.slot_n,
                                 .slot_at = p.piece_at,
                                 .stage = p.stage,
                                 .every = apart && p.weights,
                                 .late = p.late / (int)e->k->r->n_group,
                                 .n_rank_host = trainer_n_rank_host(t) };
    return (e->x = exchange_new(&f, err)) != NULL;
}

bool end_open(struct end *e, UNUSED void *ctx, struct error *err)
{
    struct model_grad to = { .piece_begin = piece_begin, .piece_end = piece_end, .ctx = e };
    int n = trainer_n_run(e->t), n_piece = trainer_parts(e->t).n_piece;
    e->n_made = calloc((size_t)n_piece, sizeof *e->n_made);
    e->made = calloc((size_t)n_piece, sizeof *e->made);
    if (!e->n_made || !e->made)
        return error_set(err, ERR_NO_MEMORY, "no memory for the trainers' exchange");
    if (e->c && !exchange_open(e, err))
        return false;
    trainer_grad_goes(e->k->t, e->index, &to, e->x ? carry_on : NULL);
    if (e->k->r->n_rank == 1)
        return true;
    if (trainer_parts(e->t).weights)
        model_fetches(trainer_model(e->t), &(struct model_fetch){ end_fetch, EXCHANGE_FREE_LANE, e, weights_stall, end_fetched });
    struct trainer_reach reach = { .begin = end_reach_begin, .end = end_reach_end, .ctx = e };
    if (end_is_apart(e)) {
        reach.first = reach_first;
        reach.collect = collect;
    } else {
        reach.peer = peer_of;
    }
    trainer_reaches(e->t, &reach);
    if (!(e->updated = calloc((size_t)n, sizeof *e->updated)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the trainers' exchange");
    for (int i = 0; i < n; i++)
        if (!(e->updated[i] = mark_new(trainer_device(e->t), err)))
            return false;
    return true;
}

bool end_begin(struct end *e, int64_t n_micro, struct error *err)
{
    struct trainer_parts p = trainer_parts(e->t);
    struct device *dev = trainer_device(e->t);
    int64_t n_group = e->k->r->n_group;
    e->n_micro = ranks_n_micro(e->k, n_micro);
    memset(e->n_made, 0, (size_t)p.n_piece * sizeof *e->n_made);
    memset(e->made, 0, (size_t)p.n_piece * sizeof *e->made);
    return OP(dev, err, mem_fill, .y = p.sum, .size_bytes = (size_t)p.n_sum * 4) && device_sync(dev, err)
           && (!e->x || exchange_begin(e->x, (n_micro + n_group - 1) / n_group, err));
}

void end_close(struct end *e)
{
    exchange_free(e->x);
    free(e->n_made);
    free(e->made);
    for (int i = 0; e->updated && i < trainer_n_run(e->t); i++)
        mark_free(trainer_device(e->t), e->updated[i]);
    free(e->updated);
    trainer_reaches(e->t, NULL);
}

/* Where all ranks are here: to the same place at the others. */
static bool spread_here(struct end *e, char *p, size_t size_bytes, struct error *err)
{
    struct ranks *r = e->k->r;
    struct device *dev = trainer_device(e->t);
    size_t bytes = 0;
    char *weights = trainer_parts(e->t).weights ? NULL : model_weights(trainer_model(e->t), &bytes);
    for (int o = 0; o < r->n_here; o++) {
        struct end *other = &r->here[o].end[e->index];
        bool of_weights = weights && p >= weights && p < weights + bytes;
        char *to = of_weights ? (char *)model_weights(trainer_model(other->t), &bytes) + (p - weights) : peer_of(e, p, o);
        if (other != e && !mem_copy(dev, to, p, size_bytes, COPY_D2D, err))
            return false;
    }
    return device_sync(dev, err);
}

bool end_spread(struct end *e, const struct exchange_parts *p, struct mark *mark, struct error *err)
{
    int own = e->k->index;
    if (e->x)
        return (!mark || mark_wait(trainer_device(e->t), mark, err)) && exchange_share(e->x, p, err);
    return spread_here(e, p->base + p->at[own], p->size_bytes[own], err);
}

bool end_shards_spread(struct end *e, int q, void *base, int64_t n_elem, size_t entry_bytes, struct mark *mark, struct error *err)
{
    struct exchange_parts p = { .base = base };
    int n_rank = e->k->r->n_rank;
    for (int o = 0; o < n_rank; o++) {
        int64_t first, n = collective_shard(trainer_parts(e->t).piece_n[q], n_rank, o, &first);
        p.at[o] = (size_t)(first / n_elem) * entry_bytes;
        p.size_bytes[o] = (size_t)((n + n_elem - 1) / n_elem) * entry_bytes;
    }
    return end_spread(e, &p, mark, err);
}

bool end_spread_end(struct end *e, UNUSED void *ctx, struct error *err)
{
    return !e->x || exchange_sent(e->x, err);
}
