/* environment_kind.c - the reward kind "environment": what the run's environment gave for the sample's turns */
#include <stdio.h>
#include "workers/engine/reward/kind.h"

static void environment_score(UNUSED void *self, UNUSED const struct reward_config *config, const struct reward_input *in,
                              struct reward_output *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        bool known = in[i].has_environment;
        out[i].score = known ? SCORE_OK : SCORE_ERROR;
        out[i].reward = in[i].environment_reward;
        out[i].format_acc = known;
        out[i].ans_acc = in[i].environment_acc;
        out[i].verdict = in[i].environment_acc > 0 ? VERDICT_EQUAL : VERDICT_DIFFERENT;
        snprintf(out[i].rule, sizeof out[i].rule, "%s", known ? "environment" : "there is no environment");
    }
}

const struct reward_kind reward_kind_environment = { .name = "environment", .score = environment_score };
