#include "workers/engine/trainer/ranks.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/collective/collective.h"
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/run/metrics.h"
#include "workers/engine/trainer/trainer.h"

#define RANK_MAX COLLECTIVE_RANK_MAX

struct ranks {
    int n_rank;
    int first, n_here;              // this process plays ranks first .. first + n_here - 1
    struct collective *c;           // with the others; NULL: all are here
    struct trainer *t[RANK_MAX];    // (n_here)
    int64_t exchange_ns;            // of the step under way, spent on adding and spreading gradients
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

struct ranks *ranks_new(struct trainer *t, struct collective *c, struct error *err)
{
    struct trainer_buffers b = trainer_buffers(t);
    struct ranks *r = ranks_alloc(err);
    if (!r)
        return NULL;
    *r = (struct ranks){ .n_rank = collective_n_rank(c), .first = collective_rank(c), .n_here = 1, .c = c, .t = { t } };
    if (r->n_rank == 1
        || (collective_offer(c, b.grad, (size_t)trainer_grad_n(t) * 4, b.grad_handle, err)
            && collective_offer(c, b.sum, (size_t)b.n_sum * 4, b.sum_handle, err)))
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
    *r = (struct ranks){ .n_rank = n, .n_here = n };
    memcpy(r->t, t, (size_t)n * sizeof *t);
    return r;
}

void ranks_free(struct ranks *r)
{
    free(r);
}

/* ---- what the ranks do together: among processes, or here */
/* all (n_rank x size_bytes) = what the ranks here (mine: n_here x size_bytes) and elsewhere give, in rank order. */
static bool gather(struct ranks *r, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    if (r->c)
        return collective_gather(r->c, mine, size_bytes, all, err);
    memcpy(all, mine, (size_t)r->n_here * size_bytes);
    return true;
}

/* Every rank's shard of the sum += the gradients of the first n_given ranks, in rank order. */
static bool round_add(struct ranks *r, int n_given, struct error *err)
{
    int64_t n = trainer_grad_n(r->t[0]), first;
    if (r->c) {
        struct trainer_buffers b = trainer_buffers(r->t[0]);
        return collective_reduce(r->c, b.sum, b.grad, n, n_given, err);
    }
    for (int o = 0; o < r->n_rank; o++) {
        int64_t m = collective_shard(n, r->n_rank, o, &first);
        for (int q = 0; q < n_given; q++)
            if (!OP(trainer_device(r->t[o]), err, axpy, .y = trainer_buffers(r->t[o]).sum, .x = trainer_buffers(r->t[q]).grad + first,
                    .n = m, .scale = 1))
                return false;
    }
    return true;
}

/* Every rank's gradient = the whole sum. */
static bool sum_spread(struct ranks *r, struct error *err)
{
    int64_t n = trainer_grad_n(r->t[0]), first;
    if (r->c) {
        struct trainer_buffers b = trainer_buffers(r->t[0]);
        return collective_all_gather(r->c, b.grad, b.sum, n, err);
    }
    for (int to = 0; to < r->n_rank; to++)
        for (int q = 0; q < r->n_rank; q++) {
            int64_t m = collective_shard(n, r->n_rank, q, &first);
            if (m > 0
                && !mem_copy(trainer_device(r->t[to]), trainer_buffers(r->t[to]).grad + first, trainer_buffers(r->t[q]).sum, (size_t)m * 4,
                             COPY_D2D, err))
                return false;
        }
    return true;
}

/* ---- the step */
/* Log-probs under the reference; and where the normalisation of advantages needs them, their sums over the whole batch. */
static bool reference_run(struct ranks *r, const struct trainer_hyper *h, struct error *err)
{
    struct trainer_norm part[RANK_MAX], all[RANK_MAX];
    int64_t n = trainer_n_reference(r->t[0]);
    for (int64_t at = 0; at < n; at += r->n_rank) {
        memset(part, 0, sizeof part);
        for (int i = 0; i < r->n_here; i++)
            if (at + r->first + i < n && !trainer_reference(r->t[i], h, at + r->first + i, &part[i], err))
                return false;
        if (h->algo != ALGO_REINFORCE_PPB)
            continue;
        if (!gather(r, part, sizeof part[0], all, err))
            return false;
        for (int i = 0; i < r->n_here; i++)
            for (int q = 0; q < r->n_rank && at + q < n; q++)
                trainer_norm_more(r->t[i], &all[q]);
    }
    return true;
}

/* One round of micro-batches, at .. at + n_rank - 1 of n. */
static bool round_run(struct ranks *r, const struct trainer_hyper *h, int64_t at, int64_t n, struct trainer_sums *sum, struct error *err)
{
    struct trainer_sums part[RANK_MAX], all[RANK_MAX];
    int n_given = (int)MIN(n - at, r->n_rank);
    memset(part, 0, sizeof part);
    for (int i = 0; i < r->n_here && r->first + i < n_given; i++) {
        if (r->n_rank > 1 && !trainer_grad_clear(r->t[i], err))
            return false;
        if (!trainer_micro(r->t[i], h, at + r->first + i, &part[i], err))
            return false;
    }
    int64_t begun = clock_ns();
    if (!gather(r, part, sizeof part[0], all, err) || (r->n_rank > 1 && !round_add(r, n_given, err)))
        return false;
    for (int q = 0; q < n_given; q++)
        trainer_sums_merge(sum, &all[q]);
    r->exchange_ns += clock_ns() - begun;
    return true;
}

/* The gradient of the batch that was begun, whole on every rank. */
static bool gradient_make(struct ranks *r, const struct trainer_hyper *h, struct trainer_sums *sum, struct error *err)
{
    int64_t n = trainer_n_micro(r->t[0]);
    *sum = (struct trainer_sums){ 0 };
    r->exchange_ns = 0;
    if (!reference_run(r, h, err))
        return false;
    for (int i = 0; i < r->n_here; i++) {
        struct trainer_buffers b = trainer_buffers(r->t[i]);
        if (r->n_rank == 1 ? !trainer_grad_clear(r->t[i], err)
                           : !OP(trainer_device(r->t[i]), err, mem_fill, .y = b.sum, .size_bytes = (size_t)b.n_sum * 4))
            return false;
    }
    for (int64_t at = 0; at < n; at += r->n_rank)
        if (!round_run(r, h, at, n, sum, err))
            return false;
    int64_t begun = clock_ns();
    bool ok = r->n_rank == 1 || sum_spread(r, err);
    r->exchange_ns += clock_ns() - begun;
    return ok;
}

static bool weights_compare(struct ranks *r, struct error *err)
{
    uint64_t mine[RANK_MAX], all[RANK_MAX];
    if (r->n_rank == 1)
        return true;
    for (int i = 0; i < r->n_here; i++)
        if (!trainer_hash(r->t[i], &mine[i], err))
            return false;
    if (!gather(r, mine, sizeof mine[0], all, err))
        return false;
    for (int q = 1; q < r->n_rank; q++)
        if (all[q] != all[0])
            return error_set(err, ERR_INTERNAL,
                             "trainer %d holds other weights than trainer 0 after step %" PRId64 " (hash %016" PRIx64 ", not %016" PRIx64
                             "): its device or memory computes wrongly",
                             q, trainer_version(r->t[0]), all[q], all[0]);
    return true;
}

bool ranks_step(struct ranks *r, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                struct error *err)
{
    bool ok = false;
    struct trainer_sums sum;
    double grad_norm = 0;
    int64_t t0 = clock_ns();
    for (int i = 0; i < r->n_here; i++)
        TRY(trainer_begin(r->t[i], groups, n_group, h, err));
    TRY(gradient_make(r, h, &sum, err));
    for (int i = 0; i < r->n_here; i++)
        TRY(trainer_apply(r->t[i], h, &grad_norm, err));
    TRY(weights_compare(r, err));
    if (metric) {
        double s = (double)(clock_ns() - t0) * 1e-9;
        trainer_metrics_make(metric, &sum, groups, n_group, h);
        metric[M_GRAD_NORM] = grad_norm;
        metric[M_TRAIN_TOK_PER_S] = sum.n_packed_tok / s;
        if (r->n_rank > 1)
            metric[M_RANKS_S] = (double)r->exchange_ns * 1e-9;
    }
    ok = true;
out:
    return ok;
}

/* ---- one rank */
bool trainer_grad(struct trainer *t, const struct trainer_hyper *h, struct trainer_sums *sums, struct error *err)
{
    struct ranks alone = { .n_rank = 1, .n_here = 1, .t = { t } };
    return gradient_make(&alone, h, sums, err);
}

bool trainer_step(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, double *metric,
                  struct error *err)
{
    struct ranks alone = { .n_rank = 1, .n_here = 1, .t = { t } };
    return ranks_step(&alone, groups, n_group, h, metric, err);
}
