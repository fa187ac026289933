#include "workers/engine/trainer/loss.h"
#include <math.h>
#include <string.h>
#include <strings.h>

static const char *const algo_names[] = {
    [ALGO_GRPO] = "GRPO",
    [ALGO_DAPO] = "DAPO",
    [ALGO_RLOO] = "RLOO",
    [ALGO_REINFORCE_PPB] = "REINFORCE_PPB",
};
static const char *const variation_names[] = { [LOSS_SAMPLE_LEVEL] = "sample_level", [LOSS_TOKEN_LEVEL] = "token_level" };

void trainer_hyper_init(struct trainer_hyper *h, enum algo algo)
{
    *h = (struct trainer_hyper){
        .algo = algo,
        .loss = LOSS_SAMPLE_LEVEL,
        .lr = 1e-6,
        .weight_decay = 0.01,
        .max_norm = 1.0,
        .clip_low = 0.2,
        .clip_high = 0.2,
        .beta = 0.01,
    };
    if (algo != ALGO_DAPO)
        return;
    h->loss = LOSS_TOKEN_LEVEL;
    h->clip_high = 0.28;
    h->beta = 0;
    h->skip_threshold = 20;
    h->has_filter = true;
    h->filter_low = 0.01;
    h->filter_high = 0.99;
    h->mask_truncated = true;
}

bool algo_parse(enum algo *out, const char *name, struct error *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(algo_names); i++)
        if (strcasecmp(name, algo_names[i]) == 0) {
            *out = (enum algo)i;
            return true;
        }
    return error_set(err, ERR_USAGE, "unknown algorithm '%s'; known are GRPO, DAPO, RLOO and REINFORCE_PPB", name);
}

const char *algo_name(enum algo a)
{
    return algo_names[a];
}

bool loss_variation_parse(enum loss_variation *out, const char *name, struct error *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(variation_names); i++)
        if (strcmp(name, variation_names[i]) == 0) {
            *out = (enum loss_variation)i;
            return true;
        }
    return error_set(err, ERR_USAGE, "unknown loss variation '%s'; known are sample_level and token_level", name);
}

void advantage_group(double *adv, enum algo algo, const struct group *g)
{
    double sum = 0, sq = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_sample; i++) {
        adv[i] = 0;
        if (g->sample[i].score == SCORE_OK) {
            sum += g->sample[i].reward;
            n++;
        }
    }
    if (n < 2 || !group_has_spread(g))    // equal rewards: exactly 0, whatever rounding the mean has
        return;
    double mean = sum / n;
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK)
            sq += (g->sample[i].reward - mean) * (g->sample[i].reward - mean);
    double scale = 1;
    switch (algo) {
    case ALGO_GRPO:
    case ALGO_DAPO: scale = 1 / (sqrt(sq / (n - 1)) + 1e-4); break;
    case ALGO_RLOO: scale = (double)n / (n - 1); break;    // r - mean of the others
    case ALGO_REINFORCE_PPB: break;
    }
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK)
            adv[i] = (g->sample[i].reward - mean) * scale;
}

bool group_has_spread(const struct group *g)
{
    const struct sample *first = NULL;
    for (int32_t i = 0; i < g->n_sample; i++) {
        if (g->sample[i].score != SCORE_OK)
            continue;
        if (first && g->sample[i].reward != first->reward)
            return true;
        first = &g->sample[i];
    }
    return false;
}

double group_accuracy(const struct group *g)
{
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK) {
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
    if (h->loss == LOSS_TOKEN_LEVEL)
        return 1 / global->n_loss_tok;
    return 1 / (global->n_sample * (double)n_tok);
}

double advantage_normalise(double a, const struct trainer_hyper *h, const struct trainer_norm *global)
{
    if (h->algo != ALGO_REINFORCE_PPB)
        return a;
    double n = global->n_tok + 1e-4, mean = global->sum_a / n;
    double v = (global->sum_a2 - 2 * mean * global->sum_a + mean * mean * global->n_tok) / n;
    double s = sqrt(fmax(v, 0) + 1e-8);
    return h->ppb_as_coded ? (a - mean) * s : (a - mean) / s;
}
