#include "workers/schedule/curriculum.h"
#include <math.h>

void curriculum_add(struct curriculum *c, int64_t level, const struct group_summary *group)
{
    if (level != c->level || group->n_ans == 0)
        return;
    c->n_group++;
    c->n_answer += group->n_ans;
    c->right += group->ans_sum;
}

double curriculum_share(const struct curriculum *c)
{
    return c->n_answer > 0 ? c->right / (double)c->n_answer : NAN;
}

int curriculum_decide(struct curriculum *c, const struct curriculum_rule *rule, double *share)
{
    *share = NAN;
    if (c->n_group < rule->n_group)
        return 0;
    *share = curriculum_share(c);
    int by = *share >= rule->harder && c->level + 1 < rule->n_level       ? 1
             : rule->easier > 0 && *share <= rule->easier && c->level > 0 ? -1
                                                                          : 0;
    *c = (struct curriculum){ .level = c->level + by };
    return by;
}
