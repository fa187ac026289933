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

void advantage_group(double *adv, enum advantage_form form, const struct group *g)
{
    double sum = 0, sq = 0;
    int32_t n = 0, first;    // sessions
    for (int32_t i = 0; i < g->n_sample; i++) {
        adv[i] = 0;
        if (g->sample[i].score == SCORE_OK) {
            sum += g->sample[i].reward / session_scored(g, i, &first);
            n += first == i;
        }
    }
    if (n < 2 || !group_has_spread(g))    // equal rewards: exactly 0, whatever rounding the mean has
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
    case ADV_CENTERED:
    case ADV_BATCH: break;
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
