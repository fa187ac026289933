#include "workers/engine/trainer/ranks.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/settings/metrics.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/blame.h"
#include "workers/engine/trainer/ranks_impl.h"
#include "workers/engine/trainer/trainer_impl.h"

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
bool ranks_ends_do(struct rank *k, end_fn *fn, void *ctx, struct error *err)
{
    struct end_call c = { k, fn, ctx };
    return k->n_end == 1 ? fn(&k->end[0], ctx, err) : model_team_call(trainer_model(k->t), end_do, &c, err);
}
/* Call fn for the ends of all ranks here, one rank after the other. */
static bool all_ends_do(struct ranks *r, end_fn *fn, void *ctx, struct error *err)
{
    for (int i = 0; i < r->n_here; i++)
        if (!ranks_ends_do(&r->here[i], fn, ctx, err))
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

/* Does a backward pass give its gradient to be added, rather than add it itself? */
static bool ranks_add_up(const struct ranks *r)
{
    return r->n_rank > 1 || r->n_group > 1;
}

/* The other ranks' ends of its meeting go on to fail, and with them their teams; else these would wait for this device, and this rank's
 * other devices for them. */
static void device_failed(void *ctx, int q, const struct error *why)
{
    struct rank *k = ctx;
    collective_abandon(&k->end[q].c, 1, why->text);
}

/* c: by device; NULL: all ranks are here. */
static bool rank_add(struct ranks *r, struct trainer *t, struct collective *const *c, struct error *err)
{
    int i = r->n_here++;
    struct rank *k = &r->here[i];
    *k = (struct rank){ .r = r, .t = t, .index = r->first + i, .n_end = trainer_n_device(t) };
    for (int q = 0; q < k->n_end; q++)
        k->end[q] = (struct end){ .k = k, .index = q, .t = trainer_of_device(t, q), .c = c && r->n_rank > 1 ? c[q] : NULL };
    r->n_group = trainer_grad_group(t);
    if (c && k->n_end > 1)
        model_team_tell(trainer_model(t), device_failed, k);
    return !ranks_add_up(r) || ranks_ends_do(k, end_open, NULL, err);
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

static void parts_free(struct rank *k)
{
    free(k->part);
    free(k->norm);
    k->part = NULL;
    k->norm = NULL;
}

static void rank_close(struct rank *k)
{
    struct error ignored;
    if (k->n_end > 1)
        model_team_tell(trainer_model(k->t), NULL, NULL);
    for (int q = 0; q < k->n_end; q++)
        end_unsee(&k->end[q]);
    for (int q = k->n_end - 1; q >= 0 && ranks_add_up(k->r); q--)    // so that this thread drives the first device at the end
        if (device_enter(trainer_device(k->end[q].t), &ignored))
            end_close(&k->end[q]);
    parts_free(k);
}

void ranks_free(struct ranks *r)
{
    if (!r)
        return;
    if (r->n_here > 0)
        ranks_weights_let_go(r);
    for (int i = 0; i < r->n_here; i++)
        rank_close(&r->here[i]);
    extent_table_release(&r->shards);
    free(r);
}

/* ---- what the ranks do together: among processes, or here */
/* With the other ranks' first devices; NULL: all ranks are here. */
static struct exchange *exchange_first(struct ranks *r)
{
    return r->here[0].end[0].x;
}

bool ranks_gather(struct ranks *r, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    if (exchange_first(r))
        return exchange_meet(exchange_first(r), mine, size_bytes, all, err);
    memcpy(all, mine, (size_t)r->n_here * size_bytes);
    return true;
}

/* Does each rank keep its shards of the weights only? */
static bool ranks_keep_shards(const struct ranks *r)
{
    return trainer_parts(r->here[0].end[0].t).weights != NULL;
}

/* The sums of squares of this device's shards, to all ranks. */
static bool norm_spread(struct end *e, UNUSED void *ctx, struct error *err)
{
    struct trainer_parts p = trainer_parts(e->t);
    if (!trainer_norm_own(e->t, err) || !device_sync(trainer_device(e->t), err))
        return false;
    for (int q = 0; q < p.n_piece; q++)
        if (!end_shards_spread(e, q, p.norm_part + p.part_at[q], SUMSQ_BLOCK, sizeof *p.norm_part, NULL, err))
            return false;
    return true;
}

/* A team's sums are made: others may read them from now on. */
static bool sums_show(struct end *e, UNUSED void *ctx, struct error *err)
{
    uint8_t mine = 0, all[RANK_MAX];
    return trainer_freeze(e->t, err) && device_sync(trainer_device(e->t), err) && (!e->x || exchange_meet(e->x, &mine, 1, all, err));
}

/* The norm of teams: each rank puts some pieces of the whole flat order together, from all ranks' and devices' shards. */
static bool norm_spread_team(struct rank *k, struct error *err)
{
    struct trainer_parts whole = trainer_parts(k->t);    // its sums of squares are in the first device's share
    if (!trainer_norm_team(k->t, err) || !device_sync(trainer_device(k->t), err))
        return false;
    for (int q = 0; q < whole.n_piece; q++) {
        struct exchange_parts p = { .base = (char *)(whole.norm_part + whole.part_at[q]) };
        int has = trainer_norm_rank(k->t, q);
        p.size_bytes[has] = (size_t)((whole.piece_n[q] + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK) * sizeof *whole.norm_part;
        if ((has == k->index || end_is_apart(&k->end[0])) && !end_spread(&k->end[0], &p, NULL, err))
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
    return all_ends_do(r, end_spread_end, NULL, err);    // then nobody reads the others' sums any more, either
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
        if (!end_shards_spread(e, q, p.grad + p.piece_at[q], 1, 4, NULL, err))
            return false;
    return true;
}

/* Get the whole sum at once, for teams that are apart, where each rank has all weights, masters and moments. */
static bool apart_spread(struct end *e, UNUSED void *ctx, struct error *err)
{
    struct trainer_parts p = trainer_parts(e->t);
    if (!trainer_freeze(e->t, err) || !device_sync(trainer_device(e->t), err))
        return false;
    for (int q = 0; q < p.n_piece; q++)
        if (!exchange_collect(e->x, q, -1, p.grad + p.piece_at[q], err))
            return false;
    return true;
}

/* ---- the step */
static int64_t n_round(const struct ranks *r, int64_t n_micro)
{
    int64_t n = r->n_rank * r->n_group;
    return (n_micro + n - 1) / n;
}

static bool parts_reserve(struct ranks *r, int64_t rounds, struct error *err)
{
    int64_t n = rounds * r->n_group;
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

/* Micro-batches of the group that rank `index` runs in a round, of n in all: fewer where the batch ends. */
static int64_t group_n(const struct ranks *r, int index, int64_t n, int64_t round)
{
    return MAX(MIN(n - (round * r->n_rank + index) * r->n_group, r->n_group), (int64_t)0);
}

/* What of n micro-batches rank `index` runs in n_here rounds from `round` on. */
static struct micro_series series_of(const struct ranks *r, int index, int64_t n, int64_t round, int64_t n_here)
{
    struct micro_series s = { .first = (round * r->n_rank + index) * r->n_group, .run = r->n_group, .every = r->n_rank * r->n_group };
    for (int64_t i = round; i < round + n_here; i++)
        s.n += group_n(r, index, n, i);
    return s;
}

int64_t ranks_n_micro(const struct rank *k, int64_t n)
{
    int as = end_gives_always(&k->end[0]) ? 0 : k->index;    // as many as the first one
    return series_of(k->r, as, n, 0, n_round(k->r, n)).n;
}

/* Log-probs under the reference; and where the normalisation of advantages needs them, their sums over the whole batch. */
static bool reference_run(struct ranks *r, const struct trainer_hyper *h, struct error *err)
{
    struct trainer_norm part[RANK_MAX] = { { 0 } }, all[RANK_MAX];
    int64_t n = trainer_n_reference(r->here[0].t);
    if (!parts_reserve(r, n_round(r, n), err))
        return false;
    for (int i = 0; i < r->n_here; i++) {
        struct micro_series of = series_of(r, r->here[i].index, n, 0, n_round(r, n));
        if (!trainer_references(r->here[i].t, h, &of, r->here[i].norm, err))
            return false;
    }
    for (int64_t round = 0; round < n_round(r, n) && h->advantages == ADV_BATCH; round++) {
        for (int i = 0; i < r->n_here; i++) {
            part[i] = (struct trainer_norm){ 0 };
            for (int64_t m = 0; m < group_n(r, r->here[i].index, n, round); m++)
                trainer_norm_add(&part[i], &r->here[i].norm[round * r->n_group + m]);
        }
        if (!ranks_gather(r, part, sizeof part[0], all, err))
            return false;
        for (int i = 0; i < r->n_here; i++)
            for (int q = 0; q < r->n_rank; q++)
                trainer_norm_more(r->here[i].t, &all[q]);
    }
    return true;
}

/* In round k each rank runs group k n_rank + its own number, if there is one. Ranks that are processes go through their rounds each
 * by itself, and the exchange keeps the order of the sums; those that are all here take turns. */
static bool rounds_run(struct ranks *r, const struct trainer_hyper *h, int64_t n, struct error *err)
{
    int64_t all = n_round(r, n), each = r->n_here > 1 ? 1 : all;
    if (!parts_reserve(r, all, err))
        return false;
    for (int64_t round = 0; round < all; round += each)
        for (int i = 0; i < r->n_here; i++) {
            struct rank *k = &r->here[i];
            struct micro_series of = series_of(r, k->index, n, round, each);
            if (end_gives_always(&k->end[0]))
                of.n_none = ranks_n_micro(k, n) - of.n;
            if (!trainer_micros(k->t, h, &of, k->part + round * r->n_group, err))
                return false;
        }
    return true;
}

/* The sums of metrics over all micro-batches: in each group in their order, and of these in theirs. */
static bool sums_merge(struct ranks *r, int64_t n, struct trainer_sums *sum, struct error *err)
{
    struct trainer_sums part[RANK_MAX] = { { 0 } }, all[RANK_MAX];
    *sum = (struct trainer_sums){ 0 };
    for (int64_t round = 0; round < n_round(r, n); round++) {
        for (int i = 0; i < r->n_here; i++) {
            part[i] = (struct trainer_sums){ 0 };
            for (int64_t m = 0; m < group_n(r, r->here[i].index, n, round); m++)
                trainer_sums_merge(&part[i], &r->here[i].part[round * r->n_group + m]);
        }
        if (!ranks_gather(r, part, sizeof part[0], all, err))
            return false;
        for (int q = 0; q < r->n_rank && group_n(r, q, n, round) > 0; q++)
            trainer_sums_merge(sum, &all[q]);
    }
    return true;
}

static bool sums_begin(struct end *e, void *n_micro, struct error *err)
{
    return end_begin(e, *(const int64_t *)n_micro, err);
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
    if (!ranks_add_up(r))
        return trainer_grad_begin(r->here[0].t, n, err) && rounds_run(r, h, n, err) && sums_merge(r, n, sum, err);
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
        if (!end_shards_spread(e, q, own - (size_t)trainer_parts(e->t).own_first[q] * elem, 1, elem, e->updated[q], err))
            return false;
    }
    return !stay || device_sync(dev, err);    // before others may read them
}

/* The norm of the whole gradient, and where each rank updates everything the gradient itself. */
static bool sums_spread(struct ranks *r, struct error *err)
{
    bool whole = trainer_zero(r->here[0].t) == 0;
    if (!whole || !end_is_apart(&r->here[0].end[0]) || r->here[0].n_end == 1)
        return norms_spread(r, err) && (!whole || (all_ends_do(r, sum_spread, NULL, err) && all_ends_do(r, end_spread_end, NULL, err)));
    return all_ends_do(r, apart_spread, NULL, err) && trainer_norm_whole(r->here[0].t, err);
}

/* The norm of the gradient that was made, on every rank. */
static bool norm_make(struct ranks *r, const struct trainer_hyper *h, double *grad_norm, struct error *err)
{
    if (r->n_rank == 1)
        return trainer_norm_alone(r->here[0].t, h, grad_norm, err);
    if (!sums_spread(r, err))
        return false;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_norm_all(r->here[i].t, h, grad_norm, err))
            return false;
    return true;
}

/* Clip and AdamW: each rank its shards, or each everything. */
static bool weights_make(struct ranks *r, const struct trainer_hyper *h, struct error *err)
{
    if (r->n_rank == 1)
        return trainer_apply_alone(r->here[0].t, h, err);
    if (!all_ends_do(r, runs_apply, (void *)h, err) || (trainer_zero(r->here[0].t) > 0 && !all_ends_do(r, end_spread_end, NULL, err)))
        return false;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_apply_end(r->here[i].t, err))
            return false;
    return true;
}

static bool weights_compare(struct ranks *r, struct error *err)
{
    uint64_t mine[RANK_MAX], all[RANK_MAX];
    if (r->n_rank == 1 || ranks_keep_shards(r))    // of shards there is one copy
        return true;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_hash(r->here[i].t, &mine[i], err))
            return false;
    if (!ranks_gather(r, mine, sizeof mine[0], all, err))
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
    if (!ranks_keep_shards(r))
        return trainer_hash(r->here[0].t, hash, err);
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_hash(r->here[i].t, &mine[i], err))
            return false;
    if (!ranks_gather(r, mine, sizeof mine[0], all, err))
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

static bool end_pieces_pass(struct end *e, UNUSED void *ctx, struct error *err)
{
    return pieces_pass(trainer_model(e->t), trainer_parts(e->t).n_piece, err);
}

static bool team_reach(struct end *e, UNUSED void *ctx, struct error *err)
{
    return device_sync(trainer_device(e->t), err) && end_reach_begin(e, err);
}

static bool team_leave(struct end *e, UNUSED void *ctx, struct error *err)
{
    bool ok = device_sync(trainer_device(e->t), err);
    end_reach_end(e);
    model_pieces_forget(trainer_model(e->t));    // which ones are there depends on what a rank took them for
    return ok;
}

/* The weights of teams: each device brings whole pieces of its slice, into a whole model or for the other ranks. */
static bool team_weights_get(struct rank *k, struct model *into, struct error *err)
{
    struct error ignored;
    bool ok = ranks_ends_do(k, team_reach, NULL, err)
              && (into ? model_weights_copy(into, trainer_model(k->t), err) : ranks_ends_do(k, end_pieces_pass, NULL, err));
    return ranks_ends_do(k, team_leave, NULL, ok ? err : &ignored) && ok;
}

bool ranks_weights_get(struct ranks *r, struct model *into, struct error *err)
{
    struct end *end = &r->here[0].end[0];
    struct trainer *t = r->here[0].t;
    struct trainer_parts p = trainer_parts(t);
    struct model *m = trainer_model(t);
    struct device *dev = trainer_device(t);
    size_t bytes, e = dtype_size(model_dtype(m));
    bool ok = true, apart = end_is_apart(end);
    if (!ranks_keep_shards(r))
        return !into || model_weights_copy(into, m, err);
    if (!into && !apart)
        return true;
    if (r->here[0].n_end > 1)
        return team_weights_get(&r->here[0], into, err);
    bool sliced = into && model_is_sliced(into);
    char *to = into && !sliced ? model_weights(into, &bytes) : NULL;
    if (!device_sync(dev, err) || !end_reach_begin(end, err))    // nobody reads the old ones any more
        return false;
    if (sliced)    // from pieces that are whole for a moment
        ok = model_weights_copy(into, m, err);
    else if (!into)
        ok = pieces_pass(m, p.n_piece, err);
    for (int i = 0; i < p.n_piece && ok && to; i++)
        ok = end_fetch(end, i, to + (size_t)p.piece_at[i] * e, err);
    for (int i = 0; i < p.n_piece && ok && to; i++)
        ok = end_fetched(end, i, err);
    ok = ok && lanes_sync(dev, err) && device_sync(dev, err);
    end_reach_end(end);
    model_pieces_forget(m);    // on all ranks, whether they took them by that way or not
    return ok && (!to || model_weights_changed(into, err));
}

/* Find out where all shards are, once. */
static bool shards_find(struct ranks *r, struct error *err)
{
    struct rank *k = &r->here[0];
    if (r->shards.n > 0)
        return true;
    for (int q = 0; q < k->n_end; q++)
        if (!end_shards_add(&k->end[q], &r->shards, err)) {
            extent_table_release(&r->shards);
            return false;
        }
    extent_table_sort(&r->shards);
    return true;
}

bool ranks_weights_hold(struct ranks *r, const struct extents **from, struct error *err)
{
    struct rank *k = &r->here[0];
    BUG_IF(!ranks_keep_shards(r) || end_is_apart(&k->end[0]), "no rank sees all weights in the others' shards");
    bool again = ranks_weights_are_held(r);
    if (!ranks_ends_do(k, end_hold, NULL, err) || (!again && !shards_find(r, err))) {
        struct error ignored;
        if (!again)
            (void)!ranks_ends_do(k, end_let_go, NULL, &ignored);
        return false;
    }
    r->held = extent_table_all(&r->shards);
    *from = &r->held;
    return true;
}

void ranks_weights_let_go(struct ranks *r)
{
    struct error ignored;
    if (!ranks_weights_are_held(r))
        return;
    r->held = (struct extents){ 0 };
    (void)!device_sync(trainer_device(r->here[0].t), &ignored);    // what it has begun to read
    (void)!ranks_ends_do(&r->here[0], end_let_go, NULL, &ignored);
}

bool ranks_weights_are_held(const struct ranks *r)
{
    return r->held.n > 0;
}

/* An update under way: the gradient of the groups that were tried last, and its numbers. */
struct update {
    struct ranks *r;
    const struct trainer_hyper *h;
    struct trainer_sums sum;
    double grad_norm;
};

/* A gradient of these groups alone, and its norm; no weight changes. What every rank sees alike is a fault of the groups: samples that
 * cannot be (trainer_begin looks at all of them on every rank), and sums over all ranks that are not finite. */
static enum attempt gradient_try(void *ctx, const struct group *const *groups, int64_t n_group, struct error *err)
{
    struct update *u = ctx;
    struct ranks *r = u->r;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_begin(r->here[i].t, groups, n_group, u->h, err))
            return err->code == ERR_DATA || err->code == ERR_SHAPE ? ATTEMPT_FAULT : ATTEMPT_FAILED;
    u->grad_norm = 0;
    if (!gradient_make(r, u->h, &u->sum, err))
        return ATTEMPT_FAILED;
    if (!norm_make(r, u->h, &u->grad_norm, err))
        return isfinite(u->grad_norm) ? ATTEMPT_FAILED : ATTEMPT_FAULT;
    if (isfinite(u->sum.loss))
        return ATTEMPT_OK;
    error_set(err, ERR_DATA, "the loss is not finite");
    return ATTEMPT_FAULT;
}

/* One token of advantage 1, which any weights that compute at all make a finite gradient of. */
static bool weights_check(struct update *u, struct error *err)
{
    const struct trainer_hyper *was = u->h;
    struct trainer_hyper h = *was;
    struct error why;
    struct group *g = group_new(1, 1, 1, err);
    if (!g)
        return false;
    g->weight_version = trainer_version(u->r->here[0].t);
    g->has_adv = true;
    g->adv[0] = 1;
    g->sample[0] = (struct sample){ .n_tok = 1, .score = SCORE_OK };
    h.has_filter = h.filter_no_spread = false;
    h.skip_threshold = 0;
    h.form.beta = 0;
    u->h = &h;
    enum attempt a = gradient_try(u, (const struct group *const *)&g, 1, &why);
    u->h = was;
    group_free(g);
    if (a == ATTEMPT_FAILED)
        *err = why;
    return a == ATTEMPT_OK
           || (a == ATTEMPT_FAULT
               && error_set(err, ERR_DATA,
                            "the weights of step %" PRId64 " give no finite gradient whatever they are trained on; go back to a checkpoint "
                            "before it (rollback)",
                            trainer_version(u->r->here[0].t)));
}

static bool group_take_out(void *ctx, const struct group *g, const struct error *why, struct error *err)
{
    struct update *u = ctx;
    struct trainer *t = u->r->here[0].t;
    if (t->n_left == t->cap_left) {
        int64_t cap = MAX(2 * t->cap_left, (int64_t)8);
        struct left_out *more = realloc(t->left, (size_t)cap * sizeof *more);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory for what a step leaves out");
        t->left = more;
        t->cap_left = cap;
    }
    struct left_out *left = &t->left[t->n_left++];
    left->group = g;
    snprintf(left->why, sizeof left->why, "%.*s", (int)sizeof left->why - 1, why->text);
    return true;
}

int64_t trainer_left_out(const struct trainer *t, const struct left_out **left)
{
    *left = t->left;
    return t->n_left;
}

/* Copy the groups that no update of this step has left out yet; returns how many. */
static int64_t groups_left(const struct trainer *t, const struct group *const *groups, int64_t n, const struct group **out)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        bool left = false;
        for (int64_t k = 0; k < t->n_left && !left; k++)
            left = t->left[k].group == groups[i];
        if (!left)
            out[kept++] = groups[i];
    }
    return kept;
}

/* The gradient of all of these groups that one can be made of. */
static bool gradient_find(struct update *u, const struct group *const *groups, int64_t n_group, struct error *err)
{
    struct error why;
    struct blame b = { gradient_try, group_take_out, u };
    const struct trainer *t = u->r->here[0].t;
    const struct group **group = malloc((size_t)(n_group + 1) * sizeof *group);    // the trainer has it until its gradient is made
    if (!group)
        return error_set(err, ERR_NO_MEMORY, "no memory for a batch of %" PRId64 " groups", n_group);
    int64_t n = groups_left(t, groups, n_group, group);
    enum attempt a = gradient_try(u, group, n, &why);
    if (a == ATTEMPT_FAILED)
        *err = why;
    bool ok = a == ATTEMPT_OK || (a == ATTEMPT_FAULT && weights_check(u, err) && blame_find(&b, group, &n, err));
    free(group);
    return ok;
}

/* One update from these groups: a gradient of theirs alone, and new weights. */
static bool update_make(struct ranks *r, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                        struct trainer_sums *sum, double *grad_norm, struct error *err)
{
    struct update u = { .r = r, .h = h };
    if (!gradient_find(&u, groups, n_group, err))
        return false;
    for (int i = 0; i < r->n_here; i++)
        trainer_changes(r->here[i].t);
    *sum = u.sum;
    *grad_norm = u.grad_norm;
    return weights_make(r, h, err);
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
    r->here[0].t->n_left = 0;
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
        if (!trainer_reference_step(r->here[i].t, h, err) || !device_sync(trainer_device(r->here[i].t), err))
            return false;
    return true;
}

bool ranks_step(struct ranks *r, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                struct error *err)
{
    struct trainer_sums sum;
    struct exchange_stats before;    // what fetched weights for a sampler is no part of the step
    double grad_norm = 0;
    bool apart = exchange_first(r) != NULL;
    if (apart && !ranks_stats_join(&r->here[0], &before, err))
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
        metric[M_TRAIN_SHARED] = sum.n_packed_tok > 0 ? sum.n_shared_tok / sum.n_packed_tok : 0;
        if (r->n_rank > 1) {
            metric[M_RANKS_N] = r->n_rank;
            metric[M_ZERO_STAGE] = trainer_zero(r->here[0].t);
        }
        ok = (!apart || ranks_costs_note(r, metric, err)) && ranks_stages_note(r, metric, err);
    }
    return ok;
}

/* ---- one rank */
static bool alone_make(struct ranks *r, struct trainer *t, struct error *err)
{
    *r = (struct ranks){ .n_rank = 1 };
    return rank_add(r, t, NULL, err);
}

bool trainer_grad(struct trainer *t, const struct trainer_hyper *h, struct trainer_sums *sums, struct error *err)
{
    struct ranks alone;
    bool ok = alone_make(&alone, t, err) && gradient_make(&alone, h, sums, err);
    rank_close(&alone.here[0]);
    return ok;
}

bool trainer_step(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                  struct error *err)
{
    struct ranks alone;
    bool ok = alone_make(&alone, t, err) && ranks_step(&alone, groups, n_group, h, metric, err);
    rank_close(&alone.here[0]);
    return ok;
}
