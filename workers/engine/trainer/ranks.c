#include "workers/engine/trainer/ranks.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels/collective/collective.h"
#include "protocol/base/clock.h"
#include "protocol/run/metrics.h"
#include "workers/engine/trainer/trainer.h"

#define FORWARD 1     // passes over a token, in forwards: the reference is run forward,
#define TRAINED 3     // the policy forward and backward

void ranks_name(int64_t round, char *out, size_t size)
{
    snprintf(out, size, "trainers-%016" PRIx64, (uint64_t)round);
}

/* Tokens to be computed, times passes. A group without any still counts: somebody has to have it. */
static int64_t group_cost(const struct group *g, const struct trainer_hyper *h, double *adv)
{
    int64_t cost = 1;
    advantage_group(adv, h->algo, g);
    for (int32_t k = 0; k < g->n_sample; k++) {
        const struct sample *s = &g->sample[k];
        if (s->score != SCORE_OK || s->n_tok == 0)
            continue;
        bool gradient = sample_in_loss(g, k, h) && (h->beta > 0 || h->algo == ALGO_REINFORCE_PPB || adv[k] != 0);
        cost += (g->n_prompt + s->n_tok - 1) * ((h->beta > 0 ? FORWARD : 0) + (gradient ? TRAINED : 0));
    }
    return cost;
}

void ranks_cut(const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, int n_rank, int64_t *first)
{
    int32_t most = 1;
    for (int64_t i = 0; i < n_group; i++)
        most = MAX(most, groups[i]->n_sample);
    int64_t *before = calloc((size_t)n_group + 1, sizeof *before);    // cost of the groups before i
    double *adv = calloc((size_t)most, sizeof *adv);
    BUG_IF(!before || !adv, "no memory to cut a batch of %" PRId64 " groups", n_group);
    for (int64_t i = 0; i < n_group; i++)
        before[i + 1] = before[i] + group_cost(groups[i], h, adv);
    first[0] = 0;
    for (int r = 1; r <= n_rank; r++) {
        int64_t i = first[r - 1], want = before[n_group] * r / n_rank;
        while (i < n_group && before[i] + before[i + 1] < 2 * want)    // the cut after group i is nearer than the one before it
            i++;
        first[r] = r == n_rank ? n_group : i;
    }
    free(before);
    free(adv);
}

static bool weights_compare(const struct trainer *t, struct collective *c, struct error *err)
{
    uint64_t mine, all[COLLECTIVE_RANK_MAX];
    if (!trainer_hash(t, &mine, err) || !collective_gather(c, &mine, sizeof mine, all, err))
        return false;
    for (int q = 1; q < collective_n_rank(c); q++)
        if (all[q] != all[0])
            return error_set(err, ERR_INTERNAL, "trainer %d holds other weights than trainer 0 after step %" PRId64 " (hash %016" PRIx64
                             ", not %016" PRIx64 "): its device or memory computes wrongly", q, trainer_version(t), all[q], all[0]);
    return true;
}

bool ranks_step(struct trainer *t, struct collective *c, const struct group *const *groups, int64_t n_group,
                const struct trainer_hyper *h, double *metric, struct error *err)
{
    bool ok = false;
    int rank = collective_rank(c), n_rank = collective_n_rank(c);
    int64_t first[COLLECTIVE_RANK_MAX + 1];
    struct trainer_norm norm, norms[COLLECTIVE_RANK_MAX], global = { 0 };
    struct trainer_sums sums, parts[COLLECTIVE_RANK_MAX], sum = { 0 };
    double grad_norm;
    int64_t t0 = clock_ns(), t1;
    ranks_cut(groups, n_group, h, n_rank, first);
    TRY(trainer_begin(t, groups + first[rank], first[rank + 1] - first[rank], h, &norm, err));
    TRY(collective_gather(c, &norm, sizeof norm, norms, err));
    for (int q = 0; q < n_rank; q++)
        trainer_norm_add(&global, &norms[q]);
    TRY(trainer_grad(t, h, &global, &sums, err));
    t1 = clock_ns();
    TRY(collective_gather(c, &sums, sizeof sums, parts, err));
    for (int q = 0; q < n_rank; q++)
        trainer_sums_merge(&sum, &parts[q]);
    TRY(collective_sum(c, trainer_grad_at(t), trainer_grad_n(t), err));
    t1 = clock_ns() - t1;
    TRY(trainer_apply(t, h, &grad_norm, err));
    TRY(weights_compare(t, c, err));
    double s = (double)(clock_ns() - t0) * 1e-9;
    trainer_metrics_make(metric, &sum, groups, n_group, h);
    metric[M_GRAD_NORM] = grad_norm;
    metric[M_TRAIN_S] = s;
    metric[M_TRAIN_TOK_PER_S] = sum.n_packed_tok / s;
    metric[M_RANKS_S] = (double)t1 * 1e-9;
    ok = true;
out:
    return ok;
}
