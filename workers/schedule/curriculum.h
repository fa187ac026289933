/* curriculum.h - which level the prompts of a run have: harder when enough of the answers are right
 *
 * Pure. A level counts from 0. The groups of a rollout step are added when it is cut, in item order, so the level follows from what the
 * groups hold, never from when they arrive. Only groups of the present level count: with n_behind some that were opened before the last
 * change still come. After n_group of them the share of their right answers decides, and counting begins again. */
#pragma once
#include <stdint.h>
#include "protocol/record/group.h"

struct curriculum_rule {
    double harder;      // the level goes up when the share of right answers is at least this,
    double easier;      // and down when it is at most this; 0: never
    int64_t n_group;    // groups that decide
    int64_t n_level;    // levels are 0 to n_level - 1
};
struct curriculum {
    int64_t level;
    int64_t n_group, n_answer;    // of this level, since its share was last looked at; answers: samples that are known to be right or wrong
    double right;                 // and how many of these are right
};
/* A group of an item of this level; one without a sample that is known to be right or wrong does not count. */
void curriculum_add(struct curriculum *c, int64_t level, const struct group_summary *group);
/* Decide, when enough groups are there: by how much the level changes, -1, 0 or 1. *share: of right answers among them; NAN: too few. */
int curriculum_decide(struct curriculum *c, const struct curriculum_rule *rule, double *share);
/* The share of right answers so far; NAN: none is known. */
double curriculum_share(const struct curriculum *c);
