#include "workers/engine/sampler/sampling.h"
#include <inttypes.h>
#include <string.h>

bool sampling_check(const struct sampling *s, struct error *err)
{
    if (!(s->temperature >= 0) || s->temperature > 100)
        return error_set(err, ERR_USAGE, "temperature is %g; it must be between 0 (greedy) and 100", (double)s->temperature);
    if (!(s->top_p > 0) || s->top_p > 1)
        return error_set(err, ERR_USAGE, "top_p is %g; it must be above 0 and at most 1", (double)s->top_p);
    if (s->top_k < 0)
        return error_set(err, ERR_USAGE, "top_k is %d; it must be 0 (off) or more", s->top_k);
    if (!(s->min_p >= 0) || s->min_p > 1)
        return error_set(err, ERR_USAGE, "min_p is %g; it must be between 0 (off) and 1", (double)s->min_p);
    if (s->max_new_tok < 1)
        return error_set(err, ERR_USAGE, "the most new tokens are %" PRId64 "; it must be at least 1", s->max_new_tok);
    if (s->min_new_tok < 0 || s->min_new_tok > s->max_new_tok)
        return error_set(err, ERR_USAGE, "the fewest new tokens are %" PRId64 "; it must be between 0 (off) and the most, %" PRId64,
                         s->min_new_tok, s->max_new_tok);
    if (s->n_stop_token < 0 || s->n_stop_token > SAMPLING_STOP_TOKENS_MAX)
        return error_set(err, ERR_USAGE, "there are %d stop tokens; at most %d are possible", s->n_stop_token, SAMPLING_STOP_TOKENS_MAX);
    if (memchr(s->stop_string, 0, sizeof s->stop_string) == NULL)
        return error_set(err, ERR_USAGE, "the stop string is longer than %d bytes", SAMPLING_STOP_STRING_MAX);
    return true;
}

void sampling_add_stop(struct sampling *s, int32_t id)
{
    for (int32_t i = 0; i < s->n_stop_token; i++)
        if (s->stop_token[i] == id)
            return;
    if (id >= 0 && s->n_stop_token < SAMPLING_STOP_TOKENS_MAX)
        s->stop_token[s->n_stop_token++] = id;
}
