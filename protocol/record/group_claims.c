#include "protocol/record/group_claims.h"
#include <inttypes.h>
#include <math.h>
#include "protocol/record/bounds.h"
#include "protocol/record/group_msg.h"

static bool settings_check(const struct group *g, const struct group_claims *may, struct error *err)
{
    if (g->prompt_row != may->row || g->rollout_step != may->rollout_step)
        return error_set(err, ERR_DATA, "it is of prompt %" PRId64 " and rollout step %" PRId64 ", its item of %" PRId64 " and %" PRId64,
                         g->prompt_row, g->rollout_step, may->row, may->rollout_step);
    if (g->weight_version < may->version_low || g->weight_version > may->version_high)
        return error_set(err, ERR_DATA, "version %" PRId64 " is none of %" PRId64 " to %" PRId64, g->weight_version, may->version_low,
                         may->version_high);
    if (g->temperature != (float)may->temperature || g->top_p != (float)may->top_p || g->top_k != may->top_k)
        return error_set(err, ERR_DATA, "it was sampled with temperature %g, top_p %g and top_k %d instead of %g, %g and %" PRId64,
                         (double)g->temperature, (double)g->top_p, (int)g->top_k, may->temperature, may->top_p, may->top_k);
    return true;
}

static bool sizes_check(const struct group *g, const struct group_claims *may, struct error *err)
{
    if (g->n_sample != may->n_sample)
        return error_set(err, ERR_DATA, "it has %d samples instead of %" PRId64, (int)g->n_sample, may->n_sample);
    if (g->n_prompt > may->n_prompt_max)
        return error_set(err, ERR_DATA, "its prompt has %" PRId64 " tokens; %" PRId64 " are the most", g->n_prompt, may->n_prompt_max);
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].n_tok > may->n_tok_max)
            return error_set(err, ERR_DATA, "sample %d has %" PRId64 " tokens; %" PRId64 " are the most", (int)i, g->sample[i].n_tok,
                             may->n_tok_max);
    return true;
}

static bool tokens_check(const struct group *g, const struct group_claims *may, struct error *err)
{
    for (int64_t i = 0; i < g->n_tok; i++) {
        if (g->newer[i] < 0 || g->newer[i] > may->version_high - g->weight_version)
            return error_set(err, ERR_DATA, "token %" PRId64 " of its samples is of version %" PRId64 " + %d, which is none yet", i,
                             g->weight_version, (int)g->newer[i]);
        if (g->has_entropy && !isfinite(g->entropy[i]))
            return error_set(err, ERR_DATA, "token %" PRId64 " of its samples has entropy %g", i, (double)g->entropy[i]);
    }
    return true;
}

/* Only a posted group has these. */
static bool own_check(const struct group *g, struct error *err)
{
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].temperature != 0 || g->sample[i].adv_zero || g->sample[i].again)
            return error_set(err, ERR_DATA, "sample %d has a temperature or an advantage of its own, or is of a session", (int)i);
    return (!g->has_adv || error_set(err, ERR_DATA, "it has advantages of its own"))
           && (!g->no_logp || error_set(err, ERR_DATA, "it has no log-probs"));
}

/* A number of seconds, or of anything else that is summed up. -1 stands for one that is not known. */
static bool is_amount(const struct mval *map, const char *name)
{
    double v = mval_f64(mval_get(map, name), 0);
    return v >= -1 && v < 1e30;
}

static bool amounts_check(const struct mval *map, struct error *err)
{
    static const char *const times[] = { "gen_s", "score_s", "verify_s" };
    static const char *const sampled[] = { "generate_s", "tail_s",     "gap_s", "n_tok",      "n_draft", "n_accepted",
                                           "n_put_back", "flops_most", "flops", "bytes_most", "bytes" };
    for (size_t i = 0; i < ARRAY_SIZE(times); i++)
        if (!is_amount(map, times[i]))
            return error_set(err, ERR_DATA, "its '%s' is %g", times[i], mval_f64(mval_get(map, times[i]), 0));
    const struct mval *told = mval_get(map, "sampled");
    for (size_t i = 0; i < ARRAY_SIZE(sampled); i++)
        if (!is_amount(told, sampled[i]))
            return error_set(err, ERR_DATA, "its '%s' is %g", sampled[i], mval_f64(mval_get(told, sampled[i]), 0));
    return mval_i64(mval_get(map, "arrived"), 0) == 0 || error_set(err, ERR_DATA, "it says when it arrived");
}

bool group_claims_check(const struct mval *map, const struct group_claims *may, struct error *err)
{
    struct group *g = group_read(map, err);
    bool ok = g && settings_check(g, may, err) && sizes_check(g, may, err) && group_bounds_check(g, may->n_id, err)
              && tokens_check(g, may, err) && own_check(g, err) && amounts_check(map, err);
    group_free(g);
    return ok;
}
