/* trainer_metrics.c - a step's numbers, from what its micro-batches add up and from the groups themselves */
#include "workers/engine/trainer/trainer_metrics.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include "protocol/settings/metrics.h"

/* Those of the sums of which the largest counts; all others are added. */
static const size_t largest[] = { offsetof(struct trainer_sums, ratio_max), offsetof(struct trainer_sums, logp_diff_max),
                                  offsetof(struct trainer_sums, age_max) };

void trainer_sums_merge(struct trainer_sums *sum, const struct trainer_sums *part)
{
    _Static_assert(sizeof *sum % sizeof(double) == 0, "they are added as an array of doubles");
    double before[ARRAY_SIZE(largest)];
    double *to = (double *)sum;
    const double *from = (const double *)part;
    for (size_t k = 0; k < ARRAY_SIZE(largest); k++)
        before[k] = to[largest[k] / sizeof *to];
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += from[i];
    for (size_t k = 0; k < ARRAY_SIZE(largest); k++)
        to[largest[k] / sizeof *to] = fmax(before[k], from[largest[k] / sizeof *to]);
}

static int i64_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The value that a share p of the n sorted ones do not exceed (nearest rank). */
static double percentile(const int64_t *sorted, int64_t n, double p)
{
    int64_t k = (int64_t)ceil(p * (double)n) - 1;
    return (double)sorted[MIN(MAX(k, 0), n - 1)];
}

/* Is it known whether it is right? */
static bool is_judged(const struct sample *s)
{
    return s->score == SCORE_OK && !isnan(s->ans_acc);
}

static bool is_right(const struct sample *s)
{
    return s->score == SCORE_OK && s->ans_acc > 0.5f;
}

static void length_metrics(double *metric, const struct group *const *groups, int64_t n_group, int64_t n_sample)
{
    int64_t *len = malloc((size_t)MAX(n_sample, 1) * sizeof *len), n = 0;
    double right = 0, wrong = 0, n_right = 0, n_wrong = 0;
    for (int64_t i = 0; len && i < n_group; i++)
        for (int32_t k = 0; k < groups[i]->n_sample; k++) {
            const struct sample *s = &groups[i]->sample[k];
            len[n++] = s->n_tok;
            if (!is_judged(s))
                continue;
            *(is_right(s) ? &right : &wrong) += (double)s->n_tok;
            *(is_right(s) ? &n_right : &n_wrong) += 1;
        }
    if (n > 0)
        qsort(len, (size_t)n, sizeof *len, i64_compare);
    metric[M_LENGTH_P10] = n ? percentile(len, n, 0.1) : NAN;
    metric[M_LENGTH_P50] = n ? percentile(len, n, 0.5) : NAN;
    metric[M_LENGTH_P90] = n ? percentile(len, n, 0.9) : NAN;
    metric[M_LENGTH_MIN] = n ? (double)len[0] : NAN;
    metric[M_LENGTH_RIGHT] = right / n_right;    // 0 / 0 is the NAN of "unknown"
    metric[M_LENGTH_WRONG] = wrong / n_wrong;
    free(len);
}

void trainer_metrics_make(double *metric, const struct trainer_sums *sums, const struct group *const *groups, int64_t n_group,
                          const struct trainer_hyper *h)
{
    double n = 0, n_all = 0, full = 0, used = 0, adv_sum = 0, adv_min = NAN, adv_max = NAN;
    for (int64_t i = 0; i < n_group; i++) {
        const struct group *g = groups[i];
        double *adv = malloc((size_t)MAX(g->n_sample, 1) * sizeof *adv);
        if (adv)
            advantage_group(adv, h->advantages, g);
        for (int32_t k = 0; k < g->n_sample; k++) {
            const struct sample *s = &g->sample[k];
            n_all++;
            full += g->max_new_tok > 0 && s->n_tok >= g->max_new_tok;
            used += sample_in_loss(g, k, h);
            if (s->score != SCORE_OK)
                continue;
            n++;
            adv_sum += adv ? adv[k] : NAN;
            adv_min = fmin(adv_min, adv ? adv[k] : NAN);    // the number, where the other is NAN
            adv_max = fmax(adv_max, adv ? adv[k] : NAN);
        }
        free(adv);
    }
    metric[M_ADVANTAGES] = adv_sum / n;    // 0 / 0 is the NAN of "unknown"
    metric[M_ADVANTAGE_MIN] = adv_min;
    metric[M_ADVANTAGE_MAX] = adv_max;
    metric[M_OVERLENGTH] = full / n_all;
    metric[M_SAMPLE_UTILIZATION] = (used - sums->n_skipped) / n_all;
    metric[M_SKIPPED] = sums->n_skipped / n_all;
    metric[M_MICRO_BATCHES] = sums->n_micro;
    length_metrics(metric, groups, n_group, (int64_t)n_all);
    metric[M_LOSS] = sums->loss;
    metric[M_LEARNING_RATE] = h->lr;
    metric[M_ENTROPY] = sums->entropy / sums->n_tok;
    metric[M_KL] = loss_needs_reference(h) ? sums->kl / sums->n_tok : NAN;
    metric[M_CLIP_LOW] = sums->n_clip_low / sums->n_tok;
    metric[M_CLIP_HIGH] = sums->n_clip_high / sums->n_tok;
    metric[M_RATIO_MEAN] = sums->ratio / sums->n_tok;
    metric[M_RATIO_MAX] = sums->n_tok > 0 ? sums->ratio_max : NAN;
    bool corrected = !isnan(h->rho_clamp.high) || !isnan(h->rho_mask.high);
    metric[M_RHO_MEAN] = corrected ? sums->rho.rho / sums->rho.n_tok : NAN;
    metric[M_RHO_CLAMPED] = corrected ? sums->rho.n_clamped / sums->rho.n_tok : NAN;
    metric[M_RHO_MASKED] = corrected ? sums->rho.n_masked / sums->rho.n_tok : NAN;
    metric[M_SAMPLER_TRAINER_DIFF] = sums->n_known_tok > 0 ? sums->logp_diff_max : NAN;
    metric[M_AGE_MEAN] = sums->age / sums->n_sample;
    metric[M_EXPERT_BUSIEST] = sums->n_expert_layer > 0 ? sums->expert_busiest / sums->n_expert_layer : NAN;
    metric[M_EXPERT_IDLE] = sums->n_expert_layer > 0 ? sums->expert_idle / sums->n_expert_layer : NAN;
    metric[M_EXPERT_ENTROPY] = sums->n_expert_layer > 0 ? sums->expert_entropy / sums->n_expert_layer : NAN;
    metric[M_AGE_MAX] = sums->n_sample > 0 ? sums->age_max : NAN;
}

bool trainer_histograms_make(struct histogram *h, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *hyper,
                             struct error *err)
{
    int64_t n_most = n_group, n[HISTOGRAM_N] = { 0 }, n_adv = 0;
    for (int64_t i = 0; i < n_group; i++) {
        n_most += groups[i]->n_sample;
        n_adv = MAX(n_adv, groups[i]->n_sample);
    }
    double *all = malloc((size_t)(HISTOGRAM_N * n_most + n_adv + 1) * sizeof *all), *adv = all + HISTOGRAM_N * n_most;
    if (!all)
        return error_set(err, ERR_NO_MEMORY, "no memory for histograms of %" PRId64 " samples", n_most);
    for (int64_t i = 0; i < n_group; i++) {
        const struct group *g = groups[i];
        int64_t n_judged = 0, n_right = 0;
        advantage_group(adv, hyper->advantages, g);
        for (int32_t k = 0; k < g->n_sample; k++) {
            const struct sample *s = &g->sample[k];
            enum histogram_id side = is_right(s) ? HISTOGRAM_LENGTH_RIGHT : HISTOGRAM_LENGTH_WRONG;
            all[HISTOGRAM_LENGTH * n_most + n[HISTOGRAM_LENGTH]++] = (double)s->n_tok;
            if (s->score != SCORE_OK)
                continue;
            if (is_judged(s)) {
                n_judged++;
                n_right += is_right(s);
                all[side * n_most + n[side]++] = (double)s->n_tok;
            }
            all[HISTOGRAM_REWARD * n_most + n[HISTOGRAM_REWARD]++] = s->reward;
            all[HISTOGRAM_ADVANTAGES * n_most + n[HISTOGRAM_ADVANTAGES]++] = adv[k];
        }
        if (n_judged > 0)
            all[HISTOGRAM_SOLVE_RATE * n_most + n[HISTOGRAM_SOLVE_RATE]++] = (double)n_right / (double)n_judged;
    }
    for (int i = 0; i < HISTOGRAM_N; i++)
        histogram_make(&h[i], all + i * n_most, n[i]);
    free(all);
    return true;
}
