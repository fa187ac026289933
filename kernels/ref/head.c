/* head.c - log-probs, their gradient, the policy loss, sampling and the optimizer, as plain as their formulas */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ref/ref.h"

/* lse of z = logits / T over the live ids, and the entropy when asked for. */
static double row_lse(const float *z, int64_t n_live, double temperature, double *entropy)
{
    double max = -INFINITY, sum = 0, weighted = 0;
    for (int64_t j = 0; j < n_live; j++)
        max = MAX(max, z[j] / temperature);
    for (int64_t j = 0; j < n_live; j++) {
        double e = exp(z[j] / temperature - max);
        sum += e;
        weighted += e * (z[j] / temperature - max);
    }
    if (entropy)
        *entropy = log(sum) - weighted / sum;
    return max + log(sum);
}

static int32_t row_argmax(const float *z, int64_t n_live)
{
    int32_t best = 0;
    for (int64_t j = 1; j < n_live; j++)
        if (z[j] > z[best])
            best = (int32_t)j;
    return best;
}

bool logprob_fwd_ref(UNUSED struct device *dev, const struct logprob_fwd *a, struct error *err)
{
    int64_t n_live = a->n_live ? a->n_live : a->vocab, ld = a->ld ? a->ld : a->vocab;
    if (!logits_check("logprob_fwd", a->n, a->vocab, a->n_live, a->ld, err))
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        const float *z = a->logits + i * ld;
        double entropy, lse = row_lse(z, n_live, a->temperature, &entropy);
        if (a->logp)
            a->logp[i] = a->id[i] < 0 || a->id[i] >= n_live ? -INFINITY : (float)(z[a->id[i]] / (double)a->temperature - lse);
        if (a->entropy)
            a->entropy[i] = (float)entropy;
        if (a->lse)
            a->lse[i] = (float)lse;
        if (a->argmax)
            a->argmax[i] = row_argmax(z, n_live);
    }
    return true;
}

bool logprob_bwd_ref(UNUSED struct device *dev, const struct logprob_bwd *a, struct error *err)
{
    int64_t n_live = a->n_live ? a->n_live : a->vocab, ld = a->ld ? a->ld : a->vocab, ldd = a->ldd ? a->ldd : a->vocab;
    if (!logits_check("logprob_bwd", a->n, a->vocab, a->n_live, a->ld, err))
        return false;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->vocab; j++) {
            double p = j < n_live ? exp(a->logits[i * ld + j] / (double)a->temperature - a->lse[i]) : 0;
            double z = a->cap > 0 ? a->logits[i * ld + j] / (double)a->cap : 0;
            elem_put(a->dlogits, i * ldd + j, a->dtype, a->coef[i] * ((j == a->id[i]) - p) / a->temperature * (1 - z * z));
        }
    return true;
}

bool policy_loss_ref(UNUSED struct device *dev, const struct policy_loss *a, UNUSED struct error *err)
{
    for (int64_t i = 0; i < a->n; i++) {
        double w = a->weight[i], q = w == 0 ? 1 : exp((double)a->logp[i] - a->logp_old[i]);
        double r = w == 0 || !a->log_ratio ? q : exp(a->log_ratio[i]), rho = a->rho ? a->rho[i] : 1;
        double x = w == 0 || !a->logp_ref ? 0 : (double)a->logp_ref[i] - a->logp[i];
        struct token_term pg = policy_term(&a->form, &(struct token_point){ a->logp[i], a->logp_old[i], r, a->adv[i] }),
                          kl = kl_term(&a->form, x, q);
        double beta = a->logp_ref ? a->form.beta : 0;
        a->coef[i] = w == 0 ? 0 : (float)(w * (rho * pg.coef + beta * kl.coef));
        if (a->loss)
            a->loss[i] = w == 0 ? 0 : (float)(w * (rho * pg.loss + beta * kl.loss));
        if (a->ratio)
            a->ratio[i] = (float)r;
    }
    return true;
}

struct ranked {
    double p;
    float z;
};
static int ranked_compare(const void *x, const void *y)
{
    float a = ((const struct ranked *)x)->z, b = ((const struct ranked *)y)->z;
    return a < b ? 1 : a > b ? -1 : 0;
}

/* The smallest logit that may be drawn after top-k, then top-p of the rest, then min-p; ties stay together. */
static float row_threshold(const float *z, int64_t n_live, const struct sample_row *row, struct ranked *order)
{
    double lse = row_lse(z, n_live, row->temperature, NULL);
    for (int64_t j = 0; j < n_live; j++)
        order[j] = (struct ranked){ exp(z[j] / (double)row->temperature - lse), z[j] };
    qsort(order, (size_t)n_live, sizeof *order, ranked_compare);
    int64_t n = row->top_k > 0 && row->top_k < n_live ? row->top_k : n_live;
    while (n < n_live && order[n].z == order[n - 1].z)
        n++;
    double total = 0, reached = 0;
    for (int64_t j = 0; j < n; j++)
        total += order[j].p;
    for (int64_t j = 0; row->top_p < 1 && j < n; j++) {
        reached += order[j].p;
        if (reached >= row->top_p * total) {
            while (j + 1 < n && order[j + 1].z == order[j].z)
                j++;
            n = j + 1;
        }
    }
    while (row->min_p > 0 && n > 1 && order[n - 1].p < row->min_p * order[0].p)
        n--;
    return order[n - 1].z;
}

static const float *row_without(float *out, const float *z, int64_t n, const int32_t *ban, int32_t n_ban)
{
    memcpy(out, z, (size_t)n * sizeof *out);
    for (int32_t k = 0; k < n_ban; k++)
        if (ban[k] >= 0 && ban[k] < n)
            out[ban[k]] = -INFINITY;
    return out;
}

bool sample_fwd_ref(struct device *dev, const struct sample_fwd *a, struct error *err)
{
    int64_t n_live = a->n_live ? a->n_live : a->vocab, ld = a->ld ? a->ld : a->vocab;
    if (!logits_check("sample_fwd", a->n, a->vocab, a->n_live, a->ld, err))
        return false;
    struct ranked *order = malloc((size_t)n_live * sizeof *order);
    float *without = malloc((size_t)n_live * sizeof *without);    // a row's logits without the banned ids
    bool ok = (order && without) || error_set(err, ERR_NO_MEMORY, "sample_fwd: no memory for %" PRId64 " ids", n_live);
    for (int64_t i = 0; ok && i < a->n; i++) {
        const struct sample_row *row = &a->row[i];
        const float *z = a->logits + i * ld;
        float temperature = row->temperature > 0 ? row->temperature : 1;
        if (row->n_ban > 0)
            z = row_without(without, z, n_live, a->ban + i * SAMPLE_BAN_MAX, row->n_ban);
        int32_t id = row_argmax(z, n_live);
        if (row->temperature > 0) {
            float least = row_threshold(z, n_live, row, order);
            double total = 0, cum = 0, best = z[id] / (double)temperature;
            for (int64_t j = 0; j < n_live; j++)
                total += z[j] >= least ? exp(z[j] / (double)temperature - best) : 0;
            double target = sample_uniform(row) * total;
            for (int64_t j = 0; j < n_live && cum <= target; j++)
                if (z[j] >= least && z[j] > -INFINITY) {
                    cum += exp(z[j] / (double)temperature - best);
                    id = (int32_t)j;
                }
        }
        a->id[i] = id;
        ok = logprob_fwd_ref(dev,
                             &(struct logprob_fwd){ .logp = a->logp ? a->logp + i : NULL,
                                                    .entropy = a->entropy ? a->entropy + i : NULL,
                                                    .logits = a->logits + i * ld,
                                                    .id = a->id + i,
                                                    .n = 1,
                                                    .vocab = a->vocab,
                                                    .n_live = a->n_live,
                                                    .ld = ld,
                                                    .temperature = temperature },
                             err);
    }
    free(order);
    free(without);
    return ok;
}

bool sumsq_ref(UNUSED struct device *dev, const struct sumsq *a, UNUSED struct error *err)
{
    for (int64_t b = 0; b * SUMSQ_BLOCK < a->n; b++) {
        double sum = 0;
        for (int64_t i = b * SUMSQ_BLOCK; i < MIN(a->n, (b + 1) * SUMSQ_BLOCK); i++)
            sum += (double)a->x[i] * a->x[i];
        a->part[b] = sum;
    }
    return true;
}

bool sum_parts_ref(UNUSED struct device *dev, const struct sum_parts *a, UNUSED struct error *err)
{
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++)
        sum += a->part[i];
    *a->sum = sum;
    return true;
}

bool clip_coef_ref(UNUSED struct device *dev, const struct clip_coef *a, UNUSED struct error *err)
{
    double norm = sqrt(*a->sum) * a->grad_scale, clip = a->max_norm > 0 ? a->max_norm / (norm + 1e-6) : 1;
    *a->norm = (float)norm;
    *a->coef = (float)(a->grad_scale * (clip < 1 ? clip : 1));
    return true;
}

bool adamw_ref(UNUSED struct device *dev, const struct adamw *a, struct error *err)
{
    if (a->step < 1)
        return error_set(err, ERR_SHAPE, "adamw: step %" PRId64 "; the first is 1", a->step);
    double fix1 = 1 - pow(a->beta1, (double)a->step), fix2 = 1 - pow(a->beta2, (double)a->step);
    for (int64_t i = 0; i < a->n; i++) {
        double g = a->grad[i] * (double)(a->coef ? *a->coef : 1);
        double m = a->beta1 * (double)a->m[i] + (1 - (double)a->beta1) * g;
        double v = a->beta2 * (double)a->v[i] + (1 - (double)a->beta2) * g * g;
        double x = a->master[i] * (1 - (double)a->lr * a->decay) - a->lr * (m / fix1) / (sqrt(v / fix2) + a->eps);
        a->m[i] = (float)m;
        a->v[i] = (float)v;
        a->master[i] = (float)x;
        if (a->weight)
            elem_put(a->weight, i, a->dtype, a->master[i]);
    }
    return true;
}

bool adamw_host_ref(struct device *dev, const struct adamw_host *a, struct error *err)
{
    struct adamw step = host_adamw(a);
    return adamw_ref(dev, &step, err);
}
