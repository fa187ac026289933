#include "workers/engine/trainer/loss.h"
#include <math.h>

/* Mean of ans_acc over the samples that count and where it is known; NAN when none does. What filter ranges look at. */
static double group_accuracy(const struct group *g)
{
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK && !isnan(g->sample[i].ans_acc)) {
            sum += (double)g->sample[i].ans_acc;
            n++;
        }
    return n ? sum / n : NAN;
}

bool sample_in_loss(const struct group *g, int32_t i, const struct trainer_hyper *h)
{
    const struct sample *s = &g->sample[i];
    if (s->score != SCORE_OK || s->n_tok == 0 || (h->mask_truncated && s->finish == FINISH_LENGTH))
        return false;
    if (h->filter_no_spread && !group_has_spread(g))
        return false;
    if (!h->has_filter)
        return true;
    double acc = group_accuracy(g);
    return acc > h->filter_low && acc < h->filter_high;
}

void trainer_norm_add(struct trainer_norm *sum, const struct trainer_norm *part)
{
    sum->n_sample += part->n_sample;
    sum->n_loss_tok += part->n_loss_tok;
    sum->n_tok += part->n_tok;
    sum->sum_a += part->sum_a;
    sum->sum_a2 += part->sum_a2;
}

double token_weight(const struct trainer_hyper *h, const struct trainer_norm *global, int64_t n_tok)
{
    switch (h->loss) {
    case LOSS_TOKEN_LEVEL: return 1 / global->n_loss_tok;
    case LOSS_CONSTANT: return 1 / (global->n_sample * h->loss_constant);
    case LOSS_SAMPLE_LEVEL: break;
    }
    return 1 / (global->n_sample * (double)n_tok);
}

/* The variance of n numbers with these sums, by n - 1. */
static double variance(const struct trainer_norm *of, double n)
{
    return n > 1 ? fmax(of->sum_a2 - of->sum_a * of->sum_a / n, 0) / (n - 1) : 0;
}

double advantage_normalise(double a, const struct trainer_hyper *h, const struct trainer_norm *global)
{
    if (h->advantages == ADV_WHITENED)
        return (a - global->sum_a / global->n_tok) / sqrt(variance(global, global->n_tok) + 1e-8);
    if (h->advantages == ADV_DEVIATION_BATCH)
        return a / (sqrt(variance(global, global->n_sample)) + 1e-4);
    if (h->advantages != ADV_BATCH)
        return a;
    double n = global->n_tok + 1e-4, mean = global->sum_a / n;
    double v = (global->sum_a2 - 2 * mean * global->sum_a + mean * mean * global->n_tok) / n;
    double s = sqrt(fmax(v, 0) + 1e-8);
    return h->ppb_as_coded ? (a - mean) * s : (a - mean) / s;
}

double advantage_teach(double a, double taught, double sampled, const struct trainer_hyper *h)
{
    return h->teacher > 0 ? h->reward_share * a + h->teacher * (taught - sampled) : a;
}

bool loss_needs_logp(const struct trainer_hyper *h)
{
    return h->ratio == RATIO_SEQUENCE || h->old == OLD_CURRENT || !isnan(h->rho_clamp.high) || !isnan(h->rho_mask.high);
}

const char *loss_needs_sampled(const struct trainer_hyper *h)
{
    return h->teacher > 0                                   ? "what a teacher says of a token"
           : h->advantages == ADV_BATCH && h->form.beta > 0 ? "the penalty of REINFORCE_PPB"
                                                            : NULL;
}

bool loss_needs_reference(const struct trainer_hyper *h)
{
    return h->form.beta > 0 || h->teacher > 0;
}

double sequence_log_ratio(const struct policy_form *f, const float *logp, const float *old, const float *adv, const uint8_t *mask,
                          int64_t n)
{
    double sum = 0, n_own = 0;
    for (int64_t t = 0; t < n; t++) {
        if (!mask[t])
            continue;
        struct token_point p = { .logp = (double)logp[t], .old = (double)old[t], .r = 1, .adv = (double)adv[t] };
        int side = f->clip == CLIP_GMPO ? policy_bound(f, &p) : 0;
        sum += side > 0 ? (double)f->clip_high : side < 0 ? -(double)f->clip_low : p.logp - p.old;
        n_own++;
    }
    return f->clip == CLIP_VESPO ? sum : sum / n_own;
}

/* rho of token t by level; d, tv: sum of d and mean of |exp(d) - 1| of the sample of n tokens. */
static double rho_of(enum rho_level level, double d_t, double d, double tv, int64_t n)
{
    switch (level) {
    case RHO_TOKEN: return exp(d_t);
    case RHO_SEQUENCE: return exp(d);
    case RHO_GEOMETRIC: return exp(d / (double)n);
    case RHO_KL: return -d / (double)n;
    case RHO_TV: break;
    }
    return tv;
}

/* What a token inside rho_mask's range is weighed by, where no clamp says so. Those that mask by a mean still weigh each token by its
 * own. */
static double mask_weight(const struct trainer_hyper *h, double d_t, double d)
{
    if (isnan(h->rho_mask.high) || h->old != OLD_CURRENT || h->rho_mask.level == RHO_TV || h->rho_mask.level == RHO_KL)
        return 1;
    return h->rho_mask.level == RHO_SEQUENCE ? exp(d) : exp(d_t);
}

/* Is a token of this advantage left out where the rule's rho is r? Those of TV and KL look at which tokens, too. */
static bool rule_masks(const struct rho_rule *rule, double r, double d_t, double adv)
{
    switch (rule->level) {
    case RHO_TV: return r > rule->high && d_t * adv > 0;
    case RHO_KL: return r > rule->high && adv < 0;
    case RHO_TOKEN:
    case RHO_SEQUENCE:
    case RHO_GEOMETRIC: break;
    }
    return r < rule->low || r > rule->high;
}

void rho_make(float *rho, const float *logp, const float *sampled, const float *adv, const uint8_t *mask, int64_t n,
              const struct trainer_hyper *h, struct rho_sums *s)
{
    const struct rho_rule *clamp = &h->rho_clamp, *cut = &h->rho_mask;
    double d = 0, tv = 0;
    int64_t n_own = 0;
    for (int64_t t = 0; t < n; t++)
        n_own += mask[t];
    for (int64_t t = 0; t < n; t++) {
        if (!mask[t])
            continue;
        double d_t = (double)logp[t] - (double)sampled[t];
        d += d_t;
        tv += fabs(exp(d_t) - 1) / (double)n_own;
    }
    for (int64_t t = 0; t < n; t++) {
        rho[t] = 1;
        if (!mask[t])
            continue;
        double d_t = (double)logp[t] - (double)sampled[t], factor = mask_weight(h, d_t, d);
        if (!isnan(clamp->high)) {
            double r = rho_of(clamp->level, d_t, d, tv, n_own);
            factor = r < clamp->low ? clamp->low : r > clamp->high ? clamp->high : r;
            s->n_clamped += factor != r;
        }
        if (!isnan(cut->high)) {
            bool out = rule_masks(cut, rho_of(cut->level, d_t, d, tv, n_own), d_t, (double)adv[t]);
            factor = out ? 0 : factor;
            s->n_masked += out;
        }
        rho[t] = (float)factor;
        s->rho += exp(d_t);
    }
    s->n_tok += (double)n_own;
}
