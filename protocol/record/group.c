#include "protocol/record/group.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct group *group_new(int64_t n_prompt, int32_t n_sample, int64_t n_tok, struct error *err)
{
    if (n_prompt < 0 || n_sample < 0 || n_tok < 0 || n_prompt > INT32_MAX || n_tok > INT32_MAX) {
        error_set(err, ERR_SHAPE, "a rollout group of %" PRId64 " prompt tokens, %d samples and %" PRId64 " tokens is not possible",
                  n_prompt, n_sample, n_tok);
        return NULL;
    }
    size_t samples = (size_t)n_sample * sizeof(struct sample);
    size_t size = sizeof(struct group) + samples + (size_t)n_prompt * 4 + (size_t)n_tok * 21;
    struct group *g = calloc(1, size);
    if (!g) {
        error_set(err, ERR_NO_MEMORY, "no memory for a rollout group of %zu bytes", size);
        return NULL;
    }
    g->n_prompt = n_prompt;
    g->n_sample = n_sample;
    g->n_tok = n_tok;
    g->sample = (struct sample *)(g + 1);
    g->prompt = (int32_t *)(g->sample + n_sample);
    g->token = g->prompt + n_prompt;
    g->logp = (float *)(g->token + n_tok);
    g->entropy = g->logp + n_tok;
    g->newer = (int32_t *)(g->entropy + n_tok);
    g->adv = (float *)(g->newer + n_tok);
    g->mask = (uint8_t *)(g->adv + n_tok);
    memset(g->mask, 1, (size_t)n_tok);
    return g;
}

int64_t sample_n_own(const struct group *g, int32_t i)
{
    if (!g->mask)
        return g->sample[i].n_tok;
    const uint8_t *mask = g->mask + g->sample[i].first_tok;
    int64_t n = 0;
    for (int64_t t = 0; t < g->sample[i].n_tok; t++)
        n += mask[t];
    return n;
}

void group_free(struct group *g)
{
    free(g);
}

bool batch_filter_passes(const struct batch_filter *f, const struct group_summary *s)
{
    if (f->spread && !(s->reward_low < s->reward_high))
        return false;
    if (isnan(f->low) || isnan(f->high))
        return true;
    double mean = s->ans_sum / (double)s->n_ans;    // NAN without a sample that counts: it does not pass
    return mean > f->low && mean < f->high;
}
