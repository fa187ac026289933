#include "protocol/record/advantage.h"
#include <math.h>

void advantage_group(double *adv, enum advantage_form form, const struct group *g)
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
