/* What the settings want after a step. */
#include <inttypes.h>
#include <stdio.h>
#include "workers/controller/controller.h"

void save_if_due(struct controller *c, bool episode_ends)
{
    char why[64];
    snprintf(why, sizeof why, c->now.save_interval == 1 ? "every step" : "every %" PRId64 " steps", c->now.save_interval);
    if (c->now.save_interval > 0 && c->step % c->now.save_interval == 0)
        checkpoints_want(&c->checkpoints, c->step, why);
    if (c->config.save_at_episode_end && episode_ends)
        checkpoints_want(&c->checkpoints, c->step, "an episode has ended");
}

bool evaluated_at(const struct controller *c, int64_t step)
{
    struct error err;
    struct eval_set set[EVAL_SET_MAX];
    int n = run_config_eval_sets(&c->config, set, &err);
    for (int i = 0; i < n; i++)
        if (!evals_have(&c->evals, set[i].name, step))
            return false;
    return true;
}
