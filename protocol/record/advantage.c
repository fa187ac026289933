#include "protocol/record/advantage.h"
#include <math.h>

/* The samples of i's session that count, of which *first is the first; without `again` i alone. */
static int32_t session_scored(const struct group *g, int32_t i, int32_t *first)
{
    int32_t from = i, n = 0;
    while (from > 0 && g->sample[from].again)
        from--;
    *first = -1;
    for (int32_t k = from; k < g->n_sample && (k == from || g->sample[k].again); k++) {
        bool counts = g->sample[k].score == SCORE_OK;
        if (counts && n++ == 0)
            *first = k;
    }
    return n;
}

/* Mean reward of the group's tokens. */
static double mean_by_length(const struct group *g)
{
    double sum = 0, n = 0;
    for (int32_t i = 0; i < g->n_sample; i++) {
        if (g->sample[i].score != SCORE_OK)
            continue;
        double own = (double)sample_n_own(g, i);
        sum += own * g->sample[i].reward;
        n += own;
    }
    return n > 0 ? sum / n : 0;
}

static bool same_session(const struct group *g, int32_t a, int32_t b)
{
    for (int32_t k = a < b ? a : b; k++ < (a < b ? b : a);)
        if (!g->sample[k].again)
            return false;
    return true;
}

/* The best get what they are above the best of the other sessions, times scale. */
static void best_only(double *adv, const struct group *g, double scale)
{
    int32_t best = -1, next = -1;
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK && (best < 0 || g->sample[i].reward > g->sample[best].reward))
            best = i;
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK && !same_session(g, i, best) && (next < 0 || g->sample[i].reward > g->sample[next].reward))
            next = i;
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK)
            adv[i] = g->sample[i].reward == g->sample[best].reward ? (g->sample[best].reward - g->sample[next].reward) * scale : 0;
}

void advantage_group(double *adv, enum advantage_form form, const struct group *g)
{
    double sum = 0, sq = 0;
    int32_t n = 0, first;    // sessions
    for (int32_t i = 0; i < g->n_sample; i++) {
        adv[i] = form == ADV_WHITENED && g->sample[i].score == SCORE_OK ? g->sample[i].reward : 0;
        if (g->sample[i].score == SCORE_OK) {
            sum += g->sample[i].reward / session_scored(g, i, &first);
            n += first == i;
        }
    }
    if (form == ADV_WHITENED || n < 2 || !group_has_spread(g))    // equal rewards: exactly 0, whatever rounding the mean has
        return;
    double mean = sum / n;
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK)
            sq += (g->sample[i].reward - mean) * (g->sample[i].reward - mean) / session_scored(g, i, &first);
    double scale = 1;
    switch (form) {
    case ADV_DEVIATION: scale = 1 / (sqrt(sq / (n - 1)) + 1e-4); break;
    case ADV_POPULATION: scale = 1 / (sqrt(sq / n) + 1e-8); break;
    case ADV_LEAVE_ONE_OUT: scale = (double)n / (n - 1); break;    // r - mean of the others
    case ADV_LENGTH_WEIGHTED: mean = mean_by_length(g); break;
    case ADV_OVER_MEAN: scale = mean > 0 ? 1 / mean : 0; break;
    case ADV_BEST: best_only(adv, g, 1 / (sqrt(sq / (n - 1)) + 1e-6)); return;
    case ADV_CENTERED:
    case ADV_DEVIATION_BATCH:
    case ADV_WHITENED:
    case ADV_BATCH: break;
    }
    for (int32_t i = 0; i < g->n_sample; i++)
        if (g->sample[i].score == SCORE_OK)
            adv[i] = (g->sample[i].reward - mean) * scale;
}

bool advantage_over_batch(enum advantage_form form)
{
    return form == ADV_BATCH || form == ADV_DEVIATION_BATCH || form == ADV_WHITENED;
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
