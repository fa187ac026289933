#include "workers/engine/trainer/ranks.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/collective/collective.h"
#include "kernels/collective/exchange.h"
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/run/metrics.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer.h"

#define RANK_MAX COLLECTIVE_RANK_MAX

/* A device of a rank, which exchanges with the same device of the other ranks. */
struct end {
    struct rank *k;
    int index;                // among the rank's devices
    struct trainer *t;        // k's, or of its device (trainer_of_device)
    struct collective *c;     // with the others; NULL: all are here
    struct exchange *x;       // of gradients; NULL likewise, or one rank
    int64_t n_given;          // pieces of gradients, all ranks here: how far the places have been used in turn
    struct mark **updated;    // (runs of the update)
};
/* A rank that this process plays. */
struct rank {
    struct ranks *r;
    struct trainer *t;
    int index, n_end;
    struct end end[SUM_PARTS_MAX];
    struct trainer_sums *part;    // (n_part) of its micro-batches, one a round
    struct trainer_norm *norm;    // (n_part) likewise, under the reference
};
struct ranks {
    int n_rank;
    int first, n_here;             // this process plays ranks first .. first + n_here - 1
    struct rank here[RANK_MAX];    // (n_here)
    int64_t n_part;
    struct ranks_cost cost[RANK_MAX];    // (n_rank) of the last step
};

/* What is asked of each device of a rank, on the thread that drives it. */
typedef bool end_fn(struct end *e, void *ctx, struct error *err);
struct end_call {
    struct rank *k;
    end_fn *fn;
    void *ctx;
};
static bool end_do(void *ctx, int q, struct error *err)
{
    const struct end_call *c = ctx;
    return c->fn(&c->k->end[q], c->ctx, err);
}
static bool ends_do(struct rank *k, end_fn *fn, void *ctx, struct error *err)
{
    struct end_call c = { k, fn, ctx };
    return k->n_end == 1 ? fn(&k->end[0], ctx, err) : model_team_call(trainer_model(k->t), end_do, &c, err);
}
/* Of all ranks here, one after the other. */
static bool all_ends_do(struct ranks *r, end_fn *fn, void *ctx, struct error *err)
{
    for (int i = 0; i < r->n_here; i++)
        if (!ends_do(&r->here[i], fn, ctx, err))
            return false;
    return true;
}

void ranks_name(int64_t round, int device, char *out, size_t size)
{
    int n = snprintf(out, size, "trainers-%016" PRIx64, (uint64_t)round);
    if (device > 0)
        snprintf(out + n, size - (size_t)n, "-%d", device);
}

static struct ranks *ranks_alloc(struct error *err)
{
    struct ranks *r = calloc(1, sizeof *r);
    if (!r)
        error_set(err, ERR_NO_MEMORY, "no memory for the trainers' exchange");
    return r;
}

/* ---- the gradient's way to the ranks that add it up */
/* Where this device's gradient of a piece is, when all are here; a piece that is too long for one place has all of them. */
static float *place_here(const struct end *e, int p)
{
    struct trainer_parts mine = trainer_parts(e->t);
    if (!mine.n_slot)
        return mine.grad + mine.piece_at[p];
    return mine.grad + (mine.piece_n[p] > mine.slot_n ? 0 : e->n_given % mine.n_slot * mine.slot_n);
}

/* Where this device's gradient of a piece goes. */
static float *piece_begin(void *ctx, int p, struct error *err)
{
    struct end *e = ctx;
    return e->x ? exchange_slot(e->x, p, err) : place_here(e, p);
}

/* The ranks that are here run one after the other, in rank order: each adds what it has made to the owners' shards. */
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

static bool piece_end(void *ctx, int p, struct error *err)
{
    struct end *e = ctx;
    return e->x ? exchange_give(e->x, p, err) : piece_add_here(e, p, err);
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

/* Do the ranks reach each other's memory? Those that this process plays do. */
static bool is_apart(const struct end *e)
{
    return e->x && !exchange_reaches(e->x);
}

/* Does a rank without a micro-batch in the last round run and give all the same, since the others need its shards of the weights? */
static bool gives_always(const struct end *e)
{
    return is_apart(e) && trainer_parts(e->t).weights;
}

/* Ask for a whole piece of the weights, of which each rank keeps its shard. Reading is as fast as writing between two cards
 * (kernels/cuda/NOTES.md), and needs no word from the other rank: shards change only while nobody computes. */
static bool weights_fetch(void *ctx, int p, void *to, struct error *err)
{
    struct end *end = ctx;
    struct trainer_parts parts = trainer_parts(end->t);
    size_t e = dtype_size(model_dtype(trainer_model(end->t)));
    int n_rank = end->k->r->n_rank, rank = end->k->index;
    int64_t n_fetched = 0;
    if (is_apart(end))
        return exchange_fetch(end->x, p, (char *)parts.weights + (size_t)parts.own_at[p] * e, to, e, err);
    if (end->x && !exchange_fetch_begin(end->x, err))
        return false;
    for (int i = 0; i < n_rank; i++) {
        int q = (rank + i) % n_rank;    // not all from the same one at a time
        int64_t first, at = 0, n = collective_shard(parts.piece_n[p], n_rank, q, &first), unused;
        for (int o = 0; o < p; o++)
            at += collective_shard(parts.piece_n[o], n_rank, q, &unused);
        const char *from = peer_of(end, parts.weights, q);
        if (!lane_copy(trainer_device(end->t), EXCHANGE_FREE_LANE, (char *)to + (size_t)first * e, from + (size_t)at * e, (size_t)n * e,
                       err))
            return false;
        n_fetched += q == rank ? 0 : n * (int64_t)e;
    }
    return !end->x || exchange_fetch_end(end->x, n_fetched, err);
}

/* Until the device may be made to wait for a piece: its bytes are there, or on a lane. */
static bool weights_await(void *ctx, int p, struct error *err)
{
    const struct end *e = ctx;
    return !is_apart(e) || exchange_await(e->x, p, err);
}

/* Around what makes the device wait for a piece. */
static bool weights_stall(void *ctx, bool begins, struct error *err)
{
    const struct end *e = ctx;
    return !e->x || exchange_stall(e->x, begins, err);
}

static bool reach_begin(void *ctx, struct error *err)
{
    const struct end *e = ctx;
    return !e->c || is_apart(e) || collective_touch_begin(e->c, err);
}

static void reach_end(void *ctx)
{
    const struct end *e = ctx;
    if (e->c && !is_apart(e))
        collective_touch_end(e->c);
}

/* Where the ranks are apart: bring what each has at mine to the first one. */
static bool reach_first(void *ctx, const void *mine, const size_t *size_bytes, void *stage, size_t each, struct error *err)
{
    const struct end *e = ctx;
    return exchange_to_first(e->x, mine, size_bytes, stage, each, err);
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
                                 .late = p.late };
    return (e->x = exchange_new(&f, err)) != NULL;
}

static bool end_open(struct end *e, UNUSED void *ctx, struct error *err)
{
    struct model_grad to = { .piece_begin = piece_begin, .piece_end = piece_end, .ctx = e };
    int n = trainer_n_run(e->t);
    if (e->c && !exchange_open(e, err))
        return false;
    trainer_grad_goes(e->k->t, e->index, &to, e->x ? carry_on : NULL);
    if (trainer_parts(e->t).weights)
        model_fetches(trainer_model(e->t), &(struct model_fetch){ weights_fetch, EXCHANGE_FREE_LANE, e, weights_stall, weights_await });
    struct trainer_reach reach = { .begin = reach_begin, .end = reach_end, .ctx = e };
    if (is_apart(e))
        reach.first = reach_first;
    else
        reach.peer = peer_of;
    trainer_reaches(e->t, &reach);
    if (!(e->updated = calloc((size_t)n, sizeof *e->updated)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the trainers' exchange");
    for (int i = 0; i < n; i++)
        if (!(e->updated[i] = mark_new(trainer_device(e->t), err)))
            return false;
    return true;
}

/* c: by device; NULL: all ranks are here. */
static bool rank_add(struct ranks *r, struct trainer *t, struct collective *const *c, struct error *err)
{
    int i = r->n_here++;
    struct rank *k = &r->here[i];
    *k = (struct rank){ .r = r, .t = t, .index = r->first + i, .n_end = trainer_n_device(t) };
    for (int q = 0; q < k->n_end; q++)
        k->end[q] = (struct end){ .k = k, .index = q, .t = trainer_of_device(t, q), .c = c && r->n_rank > 1 ? c[q] : NULL };
    return r->n_rank == 1 || ends_do(k, end_open, NULL, err);
}

struct ranks *ranks_new(struct trainer *t, struct collective *const *c, struct error *err)
{
    struct ranks *r = ranks_alloc(err);
    if (!r)
        return NULL;
    *r = (struct ranks){ .n_rank = collective_n_rank(c[0]), .first = collective_rank(c[0]) };
    if (rank_add(r, t, c, err))
        return r;
    ranks_free(r);
    return NULL;
}

struct ranks *ranks_new_here(struct trainer *const *t, int n, struct error *err)
{
    BUG_IF(n < 1 || n > RANK_MAX, "%d ranks in one process", n);
    struct ranks *r = ranks_alloc(err);
    if (!r)
        return NULL;
    *r = (struct ranks){ .n_rank = n };
    for (int i = 0; i < n; i++)
        if (!rank_add(r, t[i], NULL, err)) {
            ranks_free(r);
            return NULL;
        }
    return r;
}

static void end_close(struct end *e)
{
    exchange_free(e->x);
    for (int i = 0; e->updated && i < trainer_n_run(e->t); i++)
        mark_free(trainer_device(e->t), e->updated[i]);
    free(e->updated);
    trainer_reaches(e->t, NULL);
}

static void parts_free(struct rank *k)
{
    free(k->part);
    free(k->norm);
    k->part = NULL;
    k->norm = NULL;
}

void ranks_free(struct ranks *r)
{
    struct error ignored;
    if (!r)
        return;
    for (int i = 0; i < r->n_here; i++) {
        struct rank *k = &r->here[i];
        for (int q = k->n_end - 1; q >= 0; q--)    // so that this thread drives the first device at the end
            if (device_enter(trainer_device(k->end[q].t), &ignored))
                end_close(&k->end[q]);
        parts_free(k);
    }
    free(r);
}

/* ---- what the ranks do together: among processes, or here */
/* With the other ranks' first devices; NULL: all ranks are here. */
static struct exchange *exchange_first(struct ranks *r)
{
    return r->here[0].end[0].x;
}

/* all (n_rank x size_bytes) = what the ranks here (mine: n_here x size_bytes) and elsewhere give, in rank order. */
static bool gather(struct ranks *r, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    if (exchange_first(r))
        return exchange_meet(exchange_first(r), mine, size_bytes, all, err);
    memcpy(all, mine, (size_t)r->n_here * size_bytes);
    return true;
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

/* Spread what each rank has of a device's memory that is laid out alike on all, once the device is past mark (NULL: it is). */
static bool spread(struct end *e, const struct exchange_parts *p, struct mark *mark, struct error *err)
{
    int own = e->k->index;
    if (e->x)
        return (!mark || mark_wait(trainer_device(e->t), mark, err)) && exchange_share(e->x, p, err);
    return spread_here(e, p->base + p->at[own], p->size_bytes[own], err);
}

/* Of piece q each rank has its shard. What is spread begins at base for the whole piece, and has entry_bytes for every n_elem elements. */
static bool shards_spread(struct end *e, int q, void *base, int64_t n_elem, size_t entry_bytes, struct mark *mark, struct error *err)
{
    struct exchange_parts p = { .base = base };
    int n_rank = e->k->r->n_rank;
    for (int o = 0; o < n_rank; o++) {
        int64_t first, n = collective_shard(trainer_parts(e->t).piece_n[q], n_rank, o, &first);
        p.at[o] = (size_t)(first / n_elem) * entry_bytes;
        p.size_bytes[o] = (size_t)((n + n_elem - 1) / n_elem) * entry_bytes;
    }
    return spread(e, &p, mark, err);
}

/* Until everything that was spread has come, everywhere. */
static bool spread_end(struct end *e, UNUSED void *ctx, struct error *err)
{
    return !e->x || exchange_sent(e->x, err);
}

/* The sums of squares of this device's shards, to all ranks. */
static bool norm_spread(struct end *e, UNUSED void *ctx, struct error *err)
{
    struct trainer_parts p = trainer_parts(e->t);
    if (!trainer_norm_own(e->t, err) || !device_sync(trainer_device(e->t), err))
        return false;
    for (int q = 0; q < p.n_piece; q++)
        if (!shards_spread(e, q, p.norm_part + p.part_at[q], SUMSQ_BLOCK, sizeof *p.norm_part, NULL, err))
            return false;
    return true;
}

/* A team's sums are made: others may read them from now on. */
static bool sums_show(struct end *e, UNUSED void *ctx, struct error *err)
{
    uint8_t mine = 0, all[RANK_MAX];
    return trainer_freeze(e->t, err) && device_sync(trainer_device(e->t), err) && (!e->x || exchange_meet(e->x, &mine, 1, all, err));
}

/* The same of teams: each rank puts some pieces of the whole flat order together, from all ranks' and devices' shards. */
static bool norm_spread_team(struct rank *k, struct error *err)
{
    struct trainer_parts whole = trainer_parts(k->t);    // its sums of squares are in the first device's share
    if (!trainer_norm_team(k->t, err) || !device_sync(trainer_device(k->t), err))
        return false;
    for (int q = 0; q < whole.n_piece; q++) {
        struct exchange_parts p = { .base = (char *)(whole.norm_part + whole.part_at[q]) };
        p.size_bytes[k->index] = (size_t)((whole.piece_n[q] + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK) * sizeof *whole.norm_part;
        if (trainer_norm_has(k->t, q) && !spread(&k->end[0], &p, NULL, err))
            return false;
    }
    return true;
}

/* The sums of squares of the whole gradient, on every rank. */
static bool norms_spread(struct ranks *r, struct error *err)
{
    bool team = r->here[0].n_end > 1;
    if (!all_ends_do(r, team ? sums_show : norm_spread, NULL, err))
        return false;
    for (int i = 0; i < r->n_here && team; i++)
        if (!norm_spread_team(&r->here[i], err))
            return false;
    return all_ends_do(r, spread_end, NULL, err);    // then nobody reads the others' sums any more, either
}

/* Every rank's gradient = the whole sum: where each updates all weights. */
static bool sum_spread(struct end *e, UNUSED void *ctx, struct error *err)
{
    struct trainer_parts p = trainer_parts(e->t);
    struct device *dev = trainer_device(e->t);
    for (int q = 0; q < p.n_piece; q++)
        if (!mem_copy(dev, p.grad + p.piece_at[q] + p.own_first[q], p.sum + p.own_at[q], (size_t)p.own_n[q] * 4, COPY_D2D, err))
            return false;
    if (!device_sync(dev, err))
        return false;
    for (int q = 0; q < p.n_piece; q++)
        if (!shards_spread(e, q, p.grad + p.piece_at[q], 1, 4, NULL, err))
            return false;
    return true;
}

/* Of teams that are apart, which have all weights, masters and moments: the whole sum at once. */
static bool apart_spread(struct end *e, UNUSED void *ctx, struct error *err)
{
    struct trainer_parts p = trainer_parts(e->t);
    if (!trainer_freeze(e->t, err) || !device_sync(trainer_device(e->t), err))
        return false;
    for (int q = 0; q < p.n_piece; q++)
        if (!exchange_collect(e->x, q, p.grad + p.piece_at[q], err))
            return false;
    return true;
}

/* ---- the step */
static int64_t n_round(const struct ranks *r, int64_t n_micro)
{
    return (n_micro + r->n_rank - 1) / r->n_rank;
}

static bool parts_reserve(struct ranks *r, int64_t n, struct error *err)
{
    for (int i = 0; i < r->n_here && n > r->n_part; i++) {
        struct rank *k = &r->here[i];
        parts_free(k);
        k->part = calloc((size_t)n, sizeof *k->part);
        k->norm = calloc((size_t)n, sizeof *k->norm);
        if (!k->part || !k->norm) {
            r->n_part = 0;
            return error_set(err, ERR_NO_MEMORY, "no memory for the sums of %" PRId64 " micro-batches", n);
        }
    }
    r->n_part = MAX(n, r->n_part);
    return true;
}

/* What of n micro-batches this rank runs in n_here rounds from `round` on. */
static struct micro_series series_of(const struct rank *k, int64_t n, int64_t round, int64_t n_here)
{
    int64_t n_rank = k->r->n_rank, first = round * n_rank + k->index;
    return (struct micro_series){ first, n_rank, MIN(n_here, first < n ? (n - first + n_rank - 1) / n_rank : 0) };
}

/* Log-probs under the reference; and where the normalisation of advantages needs them, their sums over the whole batch. */
static bool reference_run(struct ranks *r, const struct trainer_hyper *h, struct error *err)
{
    struct trainer_norm part[RANK_MAX] = { { 0 } }, all[RANK_MAX];
    int64_t n = trainer_n_reference(r->here[0].t);
    if (!parts_reserve(r, n_round(r, n), err))
        return false;
    for (int i = 0; i < r->n_here; i++) {
        struct micro_series of = series_of(&r->here[i], n, 0, n_round(r, n));
        if (!trainer_references(r->here[i].t, h, &of, r->here[i].norm, err))
            return false;
    }
    for (int64_t at = 0; at < n && h->advantages == ADV_BATCH; at += r->n_rank) {
        for (int i = 0; i < r->n_here; i++)
            part[i] = r->here[i].norm[at / r->n_rank];
        if (!gather(r, part, sizeof part[0], all, err))
            return false;
        for (int i = 0; i < r->n_here; i++)
            for (int q = 0; q < r->n_rank && at + q < n; q++)
                trainer_norm_more(r->here[i].t, &all[q]);
    }
    return true;
}

/* Of round k each rank runs micro-batch k n_rank + its own number, if there is one. Ranks that are processes go through their rounds each
 * by itself, and the exchange keeps the order of the sums; those that are all here take turns. */
static bool rounds_run(struct ranks *r, const struct trainer_hyper *h, int64_t n, struct error *err)
{
    int64_t all = n_round(r, n), each = r->n_here > 1 ? 1 : all;
    if (!parts_reserve(r, all, err))
        return false;
    for (int64_t round = 0; round < all; round += each)
        for (int i = 0; i < r->n_here; i++) {
            struct micro_series of = series_of(&r->here[i], n, round, each);
            if (!trainer_micros(r->here[i].t, h, &of, r->here[i].part + round, err)
                || (gives_always(&r->here[i].end[0]) && of.n < each && !trainer_micro_none(r->here[i].t, err)))
                return false;
        }
    return true;
}

/* The sums of metrics over all micro-batches, in their order. */
static bool sums_merge(struct ranks *r, int64_t n, struct trainer_sums *sum, struct error *err)
{
    struct trainer_sums part[RANK_MAX] = { { 0 } }, all[RANK_MAX];
    *sum = (struct trainer_sums){ 0 };
    for (int64_t at = 0; at < n; at += r->n_rank) {
        for (int i = 0; i < r->n_here; i++)
            part[i] = r->here[i].part[at / r->n_rank];
        if (!gather(r, part, sizeof part[0], all, err))
            return false;
        for (int64_t q = 0; q < MIN(n - at, r->n_rank); q++)
            trainer_sums_merge(sum, &all[q]);
    }
    return true;
}

static bool sums_begin(struct end *e, void *n_micro, struct error *err)
{
    struct trainer_parts p = trainer_parts(e->t);
    struct device *dev = trainer_device(e->t);
    return OP(dev, err, mem_fill, .y = p.sum, .size_bytes = (size_t)p.n_sum * 4) && device_sync(dev, err)
           && (!e->x || exchange_begin(e->x, *(const int64_t *)n_micro, err));
}

static bool sums_end(struct end *e, UNUSED void *ctx, struct error *err)
{
    return !e->x || exchange_end(e->x, err);
}

/* The gradient of the batch that was begun: of one rank whole, of several the shards of its sum. */
static bool gradient_make(struct ranks *r, const struct trainer_hyper *h, struct trainer_sums *sum, struct error *err)
{
    int64_t n = trainer_n_micro(r->here[0].t);
    if (!reference_run(r, h, err))
        return false;
    if (r->n_rank == 1)
        return trainer_grad_clear(r->here[0].t, err) && rounds_run(r, h, n, err) && sums_merge(r, n, sum, err);
    return all_ends_do(r, sums_begin, &n, err) && rounds_run(r, h, n, err) && all_ends_do(r, sums_end, NULL, err)
           && sums_merge(r, n, sum, err);
}

/* AdamW of a device's runs, whose new weights are spread while it goes on with the next, or stay there. */
static bool runs_apply(struct end *e, void *hyper, struct error *err)
{
    const struct trainer_hyper *h = hyper;
    struct device *dev = trainer_device(e->t);
    bool whole = trainer_zero(e->t) == 0, stay = trainer_parts(e->t).weights;
    size_t bytes, elem = dtype_size(model_dtype(trainer_model(e->t)));
    if (!trainer_apply_begin(e->k->t, e->index, err))
        return false;
    for (int q = 0; q < trainer_n_run(e->t); q++)
        if (!trainer_run_apply(e->t, h, q, err) || !mark_set(dev, e->updated[q], err))
            return false;
    for (int q = 0; q < trainer_n_run(e->t) && !whole && !stay; q++) {
        char *own = trainer_run_weights(e->t, q, &bytes);
        if (!shards_spread(e, q, own - (size_t)trainer_parts(e->t).own_first[q] * elem, 1, elem, e->updated[q], err))
            return false;
    }
    return !stay || device_sync(dev, err);    // before others may read them
}

/* The norm of the whole gradient, and where each rank updates everything the gradient itself. */
static bool sums_spread(struct ranks *r, struct error *err)
{
    if (!is_apart(&r->here[0].end[0]) || r->here[0].n_end == 1)
        return norms_spread(r, err)
               && (trainer_zero(r->here[0].t) > 0 || (all_ends_do(r, sum_spread, NULL, err) && all_ends_do(r, spread_end, NULL, err)));
    return all_ends_do(r, apart_spread, NULL, err) && trainer_norm_whole(r->here[0].t, err);
}

/* Clip and AdamW: each rank its shards, or each everything. */
static bool weights_make(struct ranks *r, const struct trainer_hyper *h, double *grad_norm, struct error *err)
{
    if (!sums_spread(r, err))
        return false;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_norm_all(r->here[i].t, h, grad_norm, err))
            return false;
    if (!all_ends_do(r, runs_apply, (void *)h, err) || (trainer_zero(r->here[0].t) > 0 && !all_ends_do(r, spread_end, NULL, err)))
        return false;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_apply_end(r->here[i].t, err))
            return false;
    return true;
}

static bool weights_compare(struct ranks *r, struct error *err)
{
    uint64_t mine[RANK_MAX], all[RANK_MAX];
    if (r->n_rank == 1 || trainer_parts(r->here[0].t).weights)    // of shards there is one copy
        return true;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_hash(r->here[i].t, &mine[i], err))
            return false;
    if (!gather(r, mine, sizeof mine[0], all, err))
        return false;
    for (int q = 1; q < r->n_rank; q++)
        if (all[q] != all[0])
            return error_set(err, ERR_INTERNAL,
                             "trainer %d holds other weights than trainer 0 after step %" PRId64 " (hash %016" PRIx64 ", not %016" PRIx64
                             "): its device or memory computes wrongly",
                             q, trainer_version(r->here[0].t), all[q], all[0]);
    return true;
}

bool ranks_hash(struct ranks *r, uint64_t *hash, struct error *err)
{
    uint64_t mine[RANK_MAX], all[RANK_MAX];
    if (!trainer_parts(r->here[0].t).weights)
        return trainer_hash(r->here[0].t, hash, err);
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_hash(r->here[i].t, &mine[i], err))
            return false;
    if (!gather(r, mine, sizeof mine[0], all, err))
        return false;
    *hash = 0;
    for (int q = 0; q < r->n_rank; q++)
        *hash += all[q];
    return true;
}

/* All pieces, one after the other, for a rank that needs none: the others need its shards. */
static bool pieces_pass(struct model *m, int n_piece, struct error *err)
{
    for (int p = 0; p < n_piece; p++)
        if (!model_piece_whole(m, p, err))
            return false;
    return true;
}

bool ranks_weights_get(struct ranks *r, struct model *into, struct error *err)
{
    struct end *end = &r->here[0].end[0];
    struct trainer *t = r->here[0].t;
    struct trainer_parts p = trainer_parts(t);
    struct model *m = trainer_model(t);
    struct device *dev = trainer_device(t);
    size_t bytes, e = dtype_size(model_dtype(m));
    bool ok = true, apart = is_apart(end);
    if (!p.weights)
        return !into || model_weights_copy(into, m, err);
    if (!into && !apart)
        return true;
    bool sliced = into && model_is_sliced(into);
    char *to = into && !sliced ? model_weights(into, &bytes) : NULL;
    if (!device_sync(dev, err) || !reach_begin(end, err))    // nobody reads the old ones any more
        return false;
    if (sliced)    // from pieces that are whole for a moment
        ok = model_weights_copy(into, m, err);
    else if (!into)
        ok = pieces_pass(m, p.n_piece, err);
    for (int i = 0; i < p.n_piece && ok && to; i++)
        ok = weights_fetch(end, i, to + (size_t)p.piece_at[i] * e, err);
    for (int i = 0; i < p.n_piece && ok && to; i++)
        ok = weights_await(end, i, err);
    ok = ok && lanes_sync(dev, err) && device_sync(dev, err);
    reach_end(end);
    model_pieces_forget(m);    // on all ranks, whether they took them by that way or not
    return ok && (!to || model_weights_changed(into, err));
}

/* One update from these groups: a gradient of theirs alone, and new weights. */
static bool update_make(struct ranks *r, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                        struct trainer_sums *sum, double *grad_norm, struct error *err)
{
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_begin(r->here[i].t, groups, n_group, h, err))
            return false;
    if (!gradient_make(r, h, sum, err))
        return false;
    for (int i = 0; i < r->n_here; i++)
        trainer_changes(r->here[i].t);
    return (r->n_rank == 1 ? trainer_apply(r->here[0].t, h, grad_norm, err) : weights_make(r, h, grad_norm, err));
}

/* All updates of a step: n_epoch times over the batch, each time in n_mini parts of whole groups in their order, as even as they can be; no
 * group is left over (PPO, arXiv 1707.06347, algorithm 1). Counts are summed over the updates, loss and norm are their mean. */
static bool step_make(struct ranks *r, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                      struct trainer_sums *sum, double *grad_norm, struct error *err)
{
    int64_t version = trainer_version(r->here[0].t), n_mini = MAX(MIN(h->n_mini, n_group), (int64_t)1),
            n_epoch = MAX(h->n_epoch, (int64_t)1);
    *sum = (struct trainer_sums){ 0 };
    *grad_norm = 0;
    for (int64_t u = 0; u < n_epoch * n_mini; u++) {
        int64_t m = u % n_mini, from = n_group * m / n_mini, to = n_group * (m + 1) / n_mini;
        struct trainer_sums part = { 0 };
        double norm = 0;
        for (int i = 0; i < r->n_here; i++)
            trainer_update_set(r->here[i].t, version, u);
        if (!update_make(r, groups + from, to - from, h, &part, &norm, err))
            return false;
        trainer_sums_merge(sum, &part);
        *grad_norm += norm / (double)(n_epoch * n_mini);
    }
    sum->loss /= (double)(n_epoch * n_mini);
    sum->n_skipped /= (double)n_epoch;
    for (int i = 0; i < r->n_here; i++)
        trainer_update_set(r->here[i].t, version + 1, 0);
    if (!weights_compare(r, err))
        return false;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_reference_step(r->here[i].t, h, err))
            return false;
    return true;
}

/* What every rank tells the others of its step. */
struct told_cost {
    double reduce_s, gather_s, reduce_gb, gather_gb;
    struct ranks_cost own;
    float late_s[RANK_MAX];    // that it waited for this rank to compute
};

/* The rank that the others have waited for longest, and how long one of them did; -1: nobody waited. */
static int late_find(const struct told_cost *all, int n_rank, double *late_s)
{
    int late = -1;
    double most = 0;
    for (int q = 0; q < n_rank; q++) {
        double sum = 0, longest = 0;
        for (int r = 0; r < n_rank; r++) {
            sum += (double)all[r].late_s[q];
            longest = MAX(longest, (double)all[r].late_s[q]);
        }
        if (sum > most) {
            most = sum;
            late = q;
            *late_s = longest;
        }
    }
    return late;
}

static bool stats_take(struct end *e, void *stats, struct error *err)
{
    return exchange_stats_take(e->x, (struct exchange_stats *)stats + e->index, err);
}

/* Of all devices of the rank since the last such call: what they sent together, and the longest of their times, which run beside each
 * other. */
static bool stats_join(struct rank *k, struct exchange_stats *s, struct error *err)
{
    struct exchange_stats each[SUM_PARTS_MAX];
    *s = (struct exchange_stats){ 0 };
    if (!ends_do(k, stats_take, each, err))
        return false;
    for (int q = 0; q < k->n_end; q++) {
        const struct exchange_stats *e = &each[q];
        s->reduce_bytes += e->reduce_bytes;
        s->gather_bytes += e->gather_bytes;
        s->reduce_s = MAX(s->reduce_s, e->reduce_s);
        s->gather_s = MAX(s->gather_s, e->gather_s);
        s->exposed_s = MAX(s->exposed_s, e->exposed_s);
        s->late_sum_s = MAX(s->late_sum_s, e->late_sum_s);
        for (int o = 0; o < k->r->n_rank; o++)
            s->late_s[o] = MAX(s->late_s[o], e->late_s[o]);
    }
    return true;
}

/* How the ranks have waited for each other, and what they sent: on every rank the same, but for its own. */
static bool costs_note(struct ranks *r, double *metric, struct error *err)
{
    struct exchange_stats s;
    struct told_cost own = { 0 }, all[RANK_MAX];
    double late_s = 0, idle_s = 0, exposed_s = 0;
    _Static_assert(sizeof own <= COLLECTIVE_GATHER_MAX, "it is gathered at once");
    if (!stats_join(&r->here[0], &s, err))
        return false;
    own.reduce_s = s.reduce_s;
    own.gather_s = s.gather_s;
    own.reduce_gb = (double)s.reduce_bytes * 1e-9;
    own.gather_gb = (double)s.gather_bytes * 1e-9;
    own.own = (struct ranks_cost){ .idle_s = s.late_sum_s, .exposed_s = s.exposed_s };
    for (int q = 0; q < r->n_rank; q++)
        own.late_s[q] = (float)s.late_s[q];
    if (!gather(r, &own, sizeof own, all, err))
        return false;
    for (int q = 0; q < r->n_rank; q++) {
        r->cost[q] = all[q].own;
        idle_s = MAX(idle_s, all[q].own.idle_s);
        exposed_s = MAX(exposed_s, all[q].own.exposed_s);
    }
    int late = late_find(all, r->n_rank, &late_s);
    metric[M_RANKS_S] = own.own.idle_s + own.own.exposed_s;
    metric[M_RANKS_IDLE_S] = idle_s;
    metric[M_RANKS_EXPOSED_S] = exposed_s;
    if (late >= 0) {
        metric[M_RANKS_LATE] = late;
        metric[M_RANKS_LATE_S] = late_s;
    }
    metric[M_RANKS_REDUCE_S] = own.reduce_s;
    metric[M_RANKS_GATHER_S] = own.gather_s;
    metric[M_RANKS_REDUCE_GB] = own.reduce_gb;
    metric[M_RANKS_GATHER_GB] = own.gather_gb;
    metric[M_RANKS_SENT_GB] = own.reduce_gb + own.gather_gb;
    return true;
}

/* How the stages of the trainer's pipeline have waited for each other. */
static bool stages_note(struct ranks *r, double *metric, struct error *err)
{
    struct trainer *t = r->here[0].t;
    const double *idle_s;
    double most = 0;
    int n = trainer_stages(t, &idle_s);
    if (!trainer_stages_measure(t, err))
        return false;
    for (int q = 0; q < n; q++)
        most = MAX(most, idle_s[q]);
    if (n > 0) {
        metric[M_STAGES_N] = n;
        metric[M_STAGES_IDLE_S] = most;
    }
    return true;
}

int ranks_costs(const struct ranks *r, const struct ranks_cost **cost)
{
    *cost = r->cost;
    return r->n_rank;
}

bool ranks_step(struct ranks *r, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                struct error *err)
{
    struct trainer_sums sum;
    struct exchange_stats before;    // what fetched weights for a sampler is no part of the step
    double grad_norm = 0;
    bool apart = exchange_first(r) != NULL;
    if (apart && !stats_join(&r->here[0], &before, err))
        return false;
    int64_t t0 = clock_ns();
    bool ok = step_make(r, groups, n_group, h, &sum, &grad_norm, err);
    for (int q = 0; q < r->here[0].n_end && apart; q++)
        exchange_stop(r->here[0].end[q].x);
    if (ok && metric) {
        double s = (double)(clock_ns() - t0) * 1e-9;
        trainer_metrics_make(metric, &sum, groups, n_group, h);
        metric[M_GRAD_NORM] = grad_norm;
        metric[M_TRAIN_TOK_PER_S] = sum.n_packed_tok / s;
        if (r->n_rank > 1) {
            metric[M_RANKS_N] = r->n_rank;
            metric[M_ZERO_STAGE] = trainer_zero(r->here[0].t);
        }
        ok = (!apart || costs_note(r, metric, err)) && stages_note(r, metric, err);
    }
    return ok;
}

/* ---- one rank */
static void alone_make(struct ranks *r, struct trainer *t)
{
    struct error none;
    *r = (struct ranks){ .n_rank = 1 };
    BUG_IF(!rank_add(r, t, NULL, &none), "a rank that is alone exchanges nothing");
}

bool trainer_grad(struct trainer *t, const struct trainer_hyper *h, struct trainer_sums *sums, struct error *err)
{
    struct ranks alone;
    alone_make(&alone, t);
    bool ok = gradient_make(&alone, h, sums, err);
    parts_free(&alone.here[0]);
    return ok;
}

bool trainer_step(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                  struct error *err)
{
    struct ranks alone;
    alone_make(&alone, t);
    bool ok = ranks_step(&alone, groups, n_group, h, metric, err);
    parts_free(&alone.here[0]);
    return ok;
}
