#include "protocol/record/bounds.h"
#include <inttypes.h>
#include <math.h>
#include "protocol/record/group.h"

static const struct {
    const char *name;
    double low, high;
} bounds[] = {
    [BOUND_LOGP] = { "log-prob", -40, 0.5 },    // a log-prob is at most 0, but large logits are rounded
    [BOUND_REWARD] = { "reward", -1e9, 1e9 },
    [BOUND_ADVANTAGE] = { "advantage", -1e9, 1e9 },
    [BOUND_TEMPERATURE] = { "temperature", 1e-3, 1e3 },
    [BOUND_SHARE] = { "share", 0, 1 },
};

bool bound_holds(enum bound b, double v)
{
    return v >= bounds[b].low && v <= bounds[b].high;
}

bool bound_check(enum bound b, double v, struct error *err)
{
    return bound_holds(b, v)
           || error_set(err, ERR_DATA, "the %s %g is not from %g to %g", bounds[b].name, v, bounds[b].low, bounds[b].high);
}

bool bound_id_check(int64_t id, int64_t n_id, struct error *err)
{
    return (id >= 0 && id < n_id) || error_set(err, ERR_DATA, "the token %" PRId64 " is none of the tokenizer's %" PRId64, id, n_id);
}

static bool ids_check(const int32_t *id, int64_t n, int64_t n_id, const char *what, struct error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!bound_id_check(id[i], n_id, err))
            return error_wrap(err, "token %" PRId64 " of its %s", i, what);
    return true;
}

static bool token_check(const struct group *g, int64_t i, struct error *err)
{
    double logp = (double)g->logp[i], adv = g->has_adv ? (double)g->adv[i] : 0;
    if (!g->mask[i])    // nothing is computed with it
        return logp == 0 || error_set(err, ERR_DATA, "the log-prob %g belongs to a token that was not sampled", logp);
    if (!bound_check(BOUND_LOGP, logp, err) || !bound_check(BOUND_ADVANTAGE, adv, err))
        return false;
    return fabs(adv) * exp(-logp) <= BOUND_GRADIENT
           || error_set(err, ERR_DATA, "the advantage %g and the log-prob %g make a gradient that cannot be computed", adv, logp);
}

/* NAN is a share that is not known. */
static bool share_check(double v, struct error *err)
{
    return isnan(v) || bound_check(BOUND_SHARE, v, err);
}

static bool score_check(const struct sample *s, struct error *err)
{
    if (s->score != SCORE_OK)
        return true;
    return bound_check(BOUND_REWARD, s->reward, err) && share_check((double)s->format_acc, err) && share_check((double)s->ans_acc, err);
}

bool group_bounds_check(const struct group *g, int64_t n_id, struct error *err)
{
    if (!ids_check(g->prompt, g->n_prompt, n_id, "prompt", err) || !ids_check(g->token, g->n_tok, n_id, "samples", err))
        return false;
    for (int64_t i = 0; i < g->n_tok; i++)
        if (!token_check(g, i, err))
            return error_wrap(err, "token %" PRId64 " of its samples", i);
    for (int32_t i = 0; i < g->n_sample; i++)
        if (!score_check(&g->sample[i], err))
            return error_wrap(err, "sample %d", (int)i);
    return true;
}
