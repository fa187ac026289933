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

/* A rank that this process plays. */
struct rank {
    struct ranks *r;
    struct trainer *t;
    int64_t n_given;              // pieces of gradients, all ranks here: how far the places have been used in turn
    struct trainer_sums *part;    // (n_part) of its micro-batches, one a round
};
struct ranks {
    int n_rank;
    int first, n_here;             // this process plays ranks first .. first + n_here - 1
    struct collective *c;          // with the others; NULL: all are here
    struct exchange *x;            // of gradients; NULL likewise
    struct rank here[RANK_MAX];    // (n_here)
    int64_t n_part;
    struct mark **updated;               // (runs of the update)
    struct ranks_cost cost[RANK_MAX];    // (n_rank) of the last step
};

void ranks_name(int64_t round, char *out, size_t size)
{
    snprintf(out, size, "trainers-%016" PRIx64, (uint64_t)round);
}

static struct ranks *ranks_alloc(struct error *err)
{
    struct ranks *r = calloc(1, sizeof *r);
    if (!r)
        error_set(err, ERR_NO_MEMORY, "no memory for the trainers' exchange");
    return r;
}

/* ---- the gradient's way to the ranks that add it up */
/* Where this rank's gradient of a piece is, when all are here; a piece that is too long for one place has all of them. */
static float *place_here(const struct rank *k, int p)
{
    struct trainer_parts mine = trainer_parts(k->t);
    if (!mine.n_slot)
        return mine.grad + mine.piece_at[p];
    return mine.grad + (mine.piece_n[p] > mine.slot_n ? 0 : k->n_given % mine.n_slot * mine.slot_n);
}

/* Where this rank's gradient of a piece goes. */
static float *piece_begin(void *ctx, int p, struct error *err)
{
    struct rank *k = ctx;
    return k->r->x ? exchange_slot(k->r->x, p, err) : place_here(k, p);
}

/* The ranks that are here run one after the other, in rank order: each adds what it has made to the owners' shards. */
static bool piece_add_here(struct rank *k, int p, struct error *err)
{
    const float *from = place_here(k, p);
    k->n_given++;
    for (int o = 0; o < k->r->n_rank; o++) {
        struct trainer *t = k->r->here[o].t;
        struct trainer_parts own = trainer_parts(t);
        if (!OP(trainer_device(t), err, axpy, .y = own.sum + own.own_at[p], .x = from + own.own_first[p], .n = own.own_n[p], .scale = 1))
            return false;
    }
    return true;
}

static bool piece_end(void *ctx, int p, struct error *err)
{
    struct rank *k = ctx;
    return k->r->x ? exchange_give(k->r->x, p, err) : piece_add_here(k, p, err);
}

static bool carry_on(void *ctx, struct error *err)
{
    struct rank *k = ctx;
    return exchange_poll(k->r->x, err);
}

/* What another rank has where this one has p, of its share or of its shards of the weights. */
static void *peer_of(void *ctx, const void *p, int rank)
{
    const struct rank *k = ctx;
    if (k->r->c)
        return collective_peer(k->r->c, p, rank);
    struct trainer_parts mine = trainer_parts(k->t), other = trainer_parts(k->r->here[rank].t);
    if ((const char *)p >= (char *)mine.share && (const char *)p < (char *)mine.share + mine.share_bytes)
        return (char *)other.share + ((const char *)p - (char *)mine.share);
    if (mine.host && (const char *)p >= (char *)mine.host && (const char *)p < (char *)mine.host + mine.host_bytes)
        return (char *)other.host + ((const char *)p - (char *)mine.host);
    return (char *)other.weights + ((const char *)p - (char *)mine.weights);
}

/* Ask for a whole piece of the weights, of which each rank keeps its shard. Reading is as fast as writing between two cards
 * (kernels/cuda/NOTES.md), and needs no word from the other rank: shards change only while nobody computes. */
static bool weights_fetch(void *ctx, int p, void *to, struct error *err)
{
    struct rank *k = ctx;
    struct trainer_parts parts = trainer_parts(k->t);
    size_t e = dtype_size(model_dtype(trainer_model(k->t)));
    int n_rank = k->r->n_rank, rank = (int)(k - k->r->here) + k->r->first;
    int64_t n_fetched = 0;
    if (k->r->x && !exchange_fetch_begin(k->r->x, err))
        return false;
    for (int i = 0; i < n_rank; i++) {
        int q = (rank + i) % n_rank;    // not all from the same one at a time
        int64_t first, at = 0, n = collective_shard(parts.piece_n[p], n_rank, q, &first), unused;
        for (int o = 0; o < p; o++)
            at += collective_shard(parts.piece_n[o], n_rank, q, &unused);
        const char *from = peer_of(k, parts.weights, q);
        if (!lane_copy(trainer_device(k->t), EXCHANGE_FREE_LANE, (char *)to + (size_t)first * e, from + (size_t)at * e, (size_t)n * e, err))
            return false;
        n_fetched += q == rank ? 0 : n * (int64_t)e;
    }
    return !k->r->x || exchange_fetch_end(k->r->x, n_fetched, err);
}

/* Around what makes the device wait for a piece. */
static bool weights_stall(void *ctx, bool begins, struct error *err)
{
    const struct rank *k = ctx;
    return !k->r->x || exchange_stall(k->r->x, begins, err);
}

static bool reach_begin(void *ctx, struct error *err)
{
    const struct rank *k = ctx;
    return !k->r->c || collective_touch_begin(k->r->c, err);
}

static void reach_end(void *ctx)
{
    const struct rank *k = ctx;
    if (k->r->c)
        collective_touch_end(k->r->c);
}

static bool rank_add(struct ranks *r, struct trainer *t, struct error *err)
{
    struct rank *k = &r->here[r->n_here++];
    struct model_grad to = { .piece_begin = piece_begin, .piece_end = piece_end, .ctx = k };
    *k = (struct rank){ .r = r, .t = t };
    if (r->n_rank == 1)
        return true;
    trainer_grad_goes(t, &to, r->x ? carry_on : NULL);
    if (trainer_parts(t).weights)
        model_fetches(trainer_model(t), &(struct model_fetch){ weights_fetch, EXCHANGE_FREE_LANE, k, weights_stall });
    trainer_reaches(t, &(struct trainer_reach){ reach_begin, reach_end, peer_of, k });
    if (r->updated)
        return true;
    if (!(r->updated = calloc((size_t)trainer_n_run(t), sizeof *r->updated)))
        return error_set(err, ERR_NO_MEMORY, "no memory for the trainers' exchange");
    for (int i = 0; i < trainer_n_run(t); i++)
        if (!(r->updated[i] = mark_new(trainer_device(t), err)))
            return false;
    return true;
}

/* Let the others reach what they must, and begin to exchange gradients with them. */
static bool exchange_open(struct ranks *r, struct trainer *t, struct error *err)
{
    struct trainer_parts p = trainer_parts(t);
    if (!collective_offer(r->c, p.share, p.share_bytes, p.share_handle, err))
        return false;
    if (trainer_zero(t) > 0) {
        size_t bytes;
        const struct mem_handle *h;
        struct model *m = trainer_model(t);
        void *weights = NULL;
        if (p.weights)
            weights = model_kept(m, &bytes, &h);
        else if ((h = model_share(m, err)))    // as it is since the trainer was made
            weights = model_weights(m, &bytes);
        if (!h || !collective_offer(r->c, weights, bytes, h, err))
            return false;
        if (!collective_peer(r->c, p.share, r->first) || !collective_peer(r->c, weights, r->first))
            return error_set(err, ERR_UNSUPPORTED,
                             "zero_stage %d: %s cannot reach the other trainers' memory; zero_stage 0 needs no such way", trainer_zero(t),
                             trainer_device(t)->name);
    }
    if (p.host && !collective_offer_host(r->c, p.host, p.host_bytes, p.host_handle, err))
        return false;
    if (p.host && !collective_peer(r->c, p.host, r->first))
        return error_set(err, ERR_UNSUPPORTED, "%s cannot open the other trainers' host memory; without offload_optimizer it need not",
                         trainer_device(t)->name);
    struct exchange_config f = { .c = r->c,
                                 .dev = trainer_device(t),
                                 .n_piece = p.n_piece,
                                 .piece_n = p.piece_n,
                                 .sum = p.sum,
                                 .sum_at = p.own_at,
                                 .slot = p.grad,
                                 .n_slot = p.n_slot,
                                 .slot_n = p.slot_n,
                                 .slot_at = p.piece_at,
                                 .stage = p.stage };
    return (r->x = exchange_new(&f, err)) != NULL;
}

struct ranks *ranks_new(struct trainer *t, struct collective *c, struct error *err)
{
    struct ranks *r = ranks_alloc(err);
    if (!r)
        return NULL;
    *r = (struct ranks){ .n_rank = collective_n_rank(c), .first = collective_rank(c), .c = c };
    if ((r->n_rank == 1 || exchange_open(r, t, err)) && rank_add(r, t, err))
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
        if (!rank_add(r, t[i], err)) {
            ranks_free(r);
            return NULL;
        }
    return r;
}

void ranks_free(struct ranks *r)
{
    if (!r)
        return;
    exchange_free(r->x);
    for (int i = 0; r->updated && i < trainer_n_run(r->here[0].t); i++)
        mark_free(trainer_device(r->here[0].t), r->updated[i]);
    for (int i = 0; i < r->n_here; i++) {
        trainer_reaches(r->here[i].t, NULL);
        free(r->here[i].part);
    }
    free(r->updated);
    free(r);
}

/* ---- what the ranks do together: among processes, or here */
/* all (n_rank x size_bytes) = what the ranks here (mine: n_here x size_bytes) and elsewhere give, in rank order. */
static bool gather(struct ranks *r, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    if (r->x)
        return exchange_meet(r->x, mine, size_bytes, all, err);
    memcpy(all, mine, (size_t)r->n_here * size_bytes);
    return true;
}

/* Spread bytes of rank k's memory to the same place at all others, once the device is past mark. Where all are here: at once. */
static bool spread(struct rank *k, void *p, size_t size_bytes, struct mark *mark, struct error *err)
{
    struct ranks *r = k->r;
    struct device *dev = trainer_device(k->t);
    if (r->x)
        return (!mark || mark_wait(dev, mark, err)) && exchange_send(r->x, p, size_bytes, err);
    size_t bytes = 0;
    char *weights = trainer_parts(k->t).weights ? NULL : model_weights(trainer_model(k->t), &bytes);
    for (int o = 0; o < r->n_here; o++) {
        struct rank *other = &r->here[o];
        bool of_weights = weights && (char *)p >= weights && (char *)p < weights + bytes;
        char *to = of_weights ? (char *)model_weights(trainer_model(other->t), &bytes) + ((char *)p - weights) : peer_of(k, p, o);
        if (other != k && !mem_copy(dev, to, p, size_bytes, COPY_D2D, err))
            return false;
    }
    return device_sync(dev, err);
}

/* Until everything that was spread has come, everywhere. */
static bool spread_end(struct ranks *r, struct error *err)
{
    return !r->x || exchange_sent(r->x, err);
}

/* The sums of squares of all shards, on every rank. */
static bool norm_spread(struct ranks *r, struct error *err)
{
    for (int i = 0; i < r->n_here; i++) {
        struct rank *k = &r->here[i];
        struct trainer_parts p = trainer_parts(k->t);
        if (!trainer_norm_own(k->t, err) || !device_sync(trainer_device(k->t), err))
            return false;
        for (int q = 0; q < p.n_piece; q++)
            if (!spread(k, p.norm_part + p.part_at[q] + p.own_first[q] / SUMSQ_BLOCK,
                        (size_t)((p.own_n[q] + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK) * sizeof *p.norm_part, NULL, err))
                return false;
    }
    return spread_end(r, err);
}

/* Every rank's gradient = the whole sum: where each updates all weights. */
static bool sum_spread(struct ranks *r, struct error *err)
{
    for (int i = 0; i < r->n_here; i++) {
        struct rank *k = &r->here[i];
        struct trainer_parts p = trainer_parts(k->t);
        for (int q = 0; q < p.n_piece; q++)
            if (!mem_copy(trainer_device(k->t), p.grad + p.piece_at[q] + p.own_first[q], p.sum + p.own_at[q], (size_t)p.own_n[q] * 4,
                          COPY_D2D, err))
                return false;
        if (!device_sync(trainer_device(k->t), err))
            return false;
        for (int q = 0; q < p.n_piece; q++)
            if (!spread(k, p.grad + p.piece_at[q] + p.own_first[q], (size_t)p.own_n[q] * 4, NULL, err))
                return false;
    }
    return spread_end(r, err);
}

/* The same without a way to the others' memory. */
static bool apart_spread(struct ranks *r, struct error *err)
{
    struct trainer *t = r->here[0].t;
    struct trainer_parts p = trainer_parts(t);
    if (!trainer_freeze(t, err) || !device_sync(trainer_device(t), err))
        return false;
    for (int q = 0; q < p.n_piece; q++)
        if (!exchange_collect(r->x, q, p.grad + p.piece_at[q], err))
            return false;
    return trainer_norm_whole(t, err);
}

/* ---- the step */
/* Log-probs under the reference; and where the normalisation of advantages needs them, their sums over the whole batch. */
static bool reference_run(struct ranks *r, const struct trainer_hyper *h, struct error *err)
{
    struct trainer_norm part[RANK_MAX], all[RANK_MAX];
    int64_t n = trainer_n_reference(r->here[0].t);
    if (r->n_rank == 1)
        return trainer_references(r->here[0].t, h, err);
    for (int64_t at = 0; at < n; at += r->n_rank) {
        memset(part, 0, sizeof part);
        for (int i = 0; i < r->n_here; i++)
            if (at + r->first + i < n && !trainer_reference(r->here[i].t, h, at + r->first + i, &part[i], err))
                return false;
        if (h->advantages != ADV_BATCH)
            continue;
        if (!gather(r, part, sizeof part[0], all, err))
            return false;
        for (int i = 0; i < r->n_here; i++)
            for (int q = 0; q < r->n_rank && at + q < n; q++)
                trainer_norm_more(r->here[i].t, &all[q]);
    }
    return true;
}

static bool parts_reserve(struct ranks *r, int64_t n, struct error *err)
{
    for (int i = 0; i < r->n_here && n > r->n_part; i++) {
        free(r->here[i].part);
        if (!(r->here[i].part = calloc((size_t)n, sizeof *r->here[i].part))) {
            r->n_part = 0;
            return error_set(err, ERR_NO_MEMORY, "no memory for the sums of %" PRId64 " micro-batches", n);
        }
    }
    r->n_part = MAX(n, r->n_part);
    return true;
}

/* The rounds of micro-batches: of round k this rank runs micro-batch k n_rank + its own number, if there is one. */
static bool rounds_run(struct ranks *r, const struct trainer_hyper *h, int64_t n, struct error *err)
{
    if (!parts_reserve(r, (n + r->n_rank - 1) / r->n_rank, err))
        return false;
    if (r->n_rank == 1)
        return trainer_micros(r->here[0].t, h, r->here[0].part, err);
    for (int64_t at = 0; at < n; at += r->n_rank) {
        for (int i = 0; i < r->n_here && at + r->first + i < n; i++)
            if (!trainer_micro(r->here[i].t, h, at + r->first + i, &r->here[i].part[at / r->n_rank], err))
                return false;
        if (r->x && !exchange_round_end(r->x, err))
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

/* The gradient of the batch that was begun: of one rank whole, of several the shards of its sum. */
static bool gradient_make(struct ranks *r, const struct trainer_hyper *h, struct trainer_sums *sum, struct error *err)
{
    int64_t n = trainer_n_micro(r->here[0].t);
    if (!reference_run(r, h, err))
        return false;
    for (int i = 0; i < r->n_here; i++) {
        struct trainer *t = r->here[i].t;
        struct trainer_parts p = trainer_parts(t);
        if (r->n_rank == 1 ? !trainer_grad_clear(t, err)
                           : !OP(trainer_device(t), err, mem_fill, .y = p.sum, .size_bytes = (size_t)p.n_sum * 4)
                                 || !device_sync(trainer_device(t), err))
            return false;
    }
    if (r->x && !exchange_begin(r->x, n, err))
        return false;
    return rounds_run(r, h, n, err) && (!r->x || exchange_end(r->x, err)) && sums_merge(r, n, sum, err);
}

/* Clip and AdamW: each rank its shards, whose new weights are spread while it goes on with the next, or stay there; or each everything. */
static bool weights_make(struct ranks *r, const struct trainer_hyper *h, double *grad_norm, struct error *err)
{
    bool whole = trainer_zero(r->here[0].t) == 0, stay = trainer_parts(r->here[0].t).weights, apart = r->x && !exchange_reaches(r->x);
    size_t bytes;
    if (apart ? !apart_spread(r, err) : !norm_spread(r, err) || (whole && !sum_spread(r, err)))
        return false;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_norm_all(r->here[i].t, h, grad_norm, err))
            return false;
    for (int i = 0; i < r->n_here; i++) {
        struct rank *k = &r->here[i];
        for (int q = 0; q < trainer_n_run(k->t); q++)
            if (!trainer_run_apply(k->t, h, q, err) || !mark_set(trainer_device(k->t), r->updated[q], err))
                return false;
        for (int q = 0; q < trainer_n_run(k->t) && !whole && !stay; q++) {
            void *p = trainer_run_weights(k->t, q, &bytes);
            if (!spread(k, p, bytes, r->updated[q], err))
                return false;
        }
    }
    for (int i = 0; i < r->n_here && stay; i++)    // before others may read them
        if (!device_sync(trainer_device(r->here[i].t), err))
            return false;
    if (!whole && !spread_end(r, err))
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

bool ranks_weights_get(struct ranks *r, struct model *into, struct error *err)
{
    struct rank *k = &r->here[0];
    struct trainer_parts p = trainer_parts(k->t);
    struct model *m = trainer_model(k->t);
    size_t bytes, e = dtype_size(model_dtype(m));
    bool ok = true;
    if (!p.weights)
        return model_weights_copy(into, m, err);
    bool sliced = model_is_sliced(into);
    char *to = sliced ? NULL : model_weights(into, &bytes);
    if (!device_sync(trainer_device(k->t), err) || !reach_begin(k, err))    // nobody reads the old ones any more
        return false;
    if (sliced)    // from pieces that are whole for a moment
        ok = model_weights_copy(into, m, err);
    for (int i = 0; i < p.n_piece && ok && !sliced; i++)
        ok = weights_fetch(k, i, to + (size_t)p.piece_at[i] * e, err);
    ok = ok && lanes_sync(trainer_device(k->t), err);
    ok = ok && (!sliced || device_sync(trainer_device(k->t), err));
    reach_end(k);
    return ok && (sliced || model_weights_changed(into, err));
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

/* How the ranks have waited for each other, and what they sent: on every rank the same, but for its own. */
static bool costs_note(struct ranks *r, double *metric, struct error *err)
{
    struct exchange_stats s;
    struct told_cost own = { 0 }, all[RANK_MAX];
    double late_s = 0, idle_s = 0, exposed_s = 0;
    _Static_assert(sizeof own <= COLLECTIVE_GATHER_MAX, "it is gathered at once");
    if (!exchange_stats_take(r->x, &s, err))
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
    if (r->x && !exchange_stats_take(r->x, &before, err))
        return false;
    int64_t t0 = clock_ns();
    bool ok = step_make(r, groups, n_group, h, &sum, &grad_norm, err);
    if (r->x)
        exchange_stop(r->x);
    if (ok && metric) {
        double s = (double)(clock_ns() - t0) * 1e-9;
        trainer_metrics_make(metric, &sum, groups, n_group, h);
        metric[M_GRAD_NORM] = grad_norm;
        metric[M_TRAIN_TOK_PER_S] = sum.n_packed_tok / s;
        if (r->n_rank > 1) {
            metric[M_RANKS_N] = r->n_rank;
            metric[M_ZERO_STAGE] = trainer_zero(r->here[0].t);
        }
        ok = (!r->x || costs_note(r, metric, err)) && stages_note(r, metric, err);
    }
    return ok;
}

/* ---- one rank */
bool trainer_grad(struct trainer *t, const struct trainer_hyper *h, struct trainer_sums *sums, struct error *err)
{
    struct ranks alone = { .n_rank = 1, .n_here = 1, .here = { { .t = t } } };
    bool ok = gradient_make(&alone, h, sums, err);
    free(alone.here[0].part);
    return ok;
}

bool trainer_step(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                  struct error *err)
{
    struct ranks alone = { .n_rank = 1, .n_here = 1, .here = { { .t = t } } };
    bool ok = ranks_step(&alone, groups, n_group, h, metric, err);
    free(alone.here[0].part);
    return ok;
}
