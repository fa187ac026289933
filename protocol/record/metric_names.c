#include "protocol/record/metric_names.h"
#include <string.h>
#include "protocol/settings/metrics.h"

enum change {
    SAME,
    REST,      // 1 - it
    ADDED,     // to the others of this name
    COPIED,    // and as the next row says, too
};
struct name_row {
    enum metric_id id;
    const char *name;
    enum change change;
};
// clang-format off
static const struct name_row open_instruct[] = {
    { M_REWARD, "scores", SAME },
    { M_ANS_ACC, "objective/verifiable_correct_rate", COPIED },
    { M_ANS_ACC, "unsolved_batch_size_ratio", REST },
    { M_RESPONSE_LENGTH, "val/sequence_lengths", SAME },
    { M_LENGTH_MAX, "val/sequence_lengths_max", SAME },
    { M_LENGTH_MIN, "val/sequence_lengths_min", SAME },
    { M_LENGTH_RIGHT, "val/sequence_lengths_solved", SAME },
    { M_LENGTH_WRONG, "val/sequence_lengths_unsolved", SAME },
    { M_GROUPS, "batch/total_prompts", SAME },
    { M_SOLVE_RATE, "batch/percent_solved_mean", SAME },
    { M_FILTERED_GROUPS, "batch/filtered_prompts", SAME },
    { M_FILTERED_ALL_RIGHT, "batch/filtered_prompts_solved", SAME },
    { M_FILTERED_NONE_RIGHT, "batch/filtered_prompts_zero", SAME },
    { M_TRUNCATED, "val/stop_rate", REST },
    { M_FILTERED, "real_batch_size_ratio", REST },
    { M_LOSS, "loss/total_avg", SAME },
    { M_KL, "objective/kl2_avg", SAME },                    // its estimator 2 is k3
    { M_ADVANTAGES, "val/advantages_mean", SAME },
    { M_ADVANTAGE_MIN, "val/advantages_min", SAME },
    { M_ADVANTAGE_MAX, "val/advantages_max", SAME },
    { M_LEARNING_RATE, "lr", SAME },
    { M_GRAD_NORM, "optim/grad_norm", SAME },
    { M_ENTROPY, "policy/entropy_avg", SAME },
    { M_CLIP_LOW, "policy/clipfrac_avg", ADDED },
    { M_CLIP_HIGH, "policy/clipfrac_avg", ADDED },
    { M_RATIO_MEAN, "val/ratio", SAME },
    { M_RHO_MEAN, "val/rho_weight", SAME },
    { M_RHO_CLAMPED, "val/rho_clipfrac", SAME },
    { M_RHO_MASKED, "val/rho_drop_frac", SAME },
    { M_AGE_MEAN, "num_steps_off_policy", SAME },
    { M_SAMPLER_TRAINER_DIFF, "debug/vllm_vs_local_logprob_diff_max", SAME },
    { M_SOLVED_PROMPTS, "batch/no_resampled_prompts", SAME },
    { M_ROLLOUT_TOK_PER_S, "val/actor_tokens_per_second", SAME },
    { M_TRAIN_TOK_PER_S, "learner_tokens_per_second_step", SAME },
    { M_ROLLOUT_MFU, "actor_mfu", SAME },
    { M_ROLLOUT_MBU, "actor_mbu", SAME },
    { M_TRAIN_MFU, "learner_mfu", SAME },
    { M_STEP_S, "time/total", SAME },
    { M_TRAIN_S, "time/training", SAME },
    { M_CHECKPOINT_STALL_S, "time/saving", SAME },
    { M_PUBLISH_S, "time/weight_sync", SAME },
    { M_IDLE_S, "time/trainer_waiting_for_data", SAME },
    { M_TOKENS_TOTAL, "val/num_total_tokens", SAME },
    { M_SAMPLES_TOTAL, "episode", COPIED },                 // samples, not passes
    { M_SAMPLES_TOTAL, "global_step", SAME },
    { M_EPISODE, "epoch", SAME },
};
static const struct name_row atropos[] = {
    { M_LEARNING_RATE, "train/lr", SAME },
    { M_RATIO_MEAN, "grpo/mean_ratio", SAME },
    { M_CLIP_LOW, "grpo/clipped_fraction", ADDED },
    { M_CLIP_HIGH, "grpo/clipped_fraction", ADDED },
    { M_STEP_S, "train/step_time", SAME },
    { M_PUBLISH_S, "train/sync_time", SAME },
    { M_IDLE_S, "train/data_fetch_time", SAME },
    { M_SAMPLER_TRAINER_DIFF, "alignment/diff_max", SAME },
};
// clang-format on

static const struct name_row *row_find(const struct name_row *row, int n, int id)
{
    for (int i = 0; i < n; i++)
        if ((int)row[i].id == id)
            return &row[i];
    return NULL;
}

static struct journal_metric *named(struct journal_metric *out, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(out[i].name, name) == 0)
            return &out[i];
    return NULL;
}

int metric_names_make(enum metric_naming naming, int64_t step, const struct journal_metric *in, int n, struct journal_metric *out)
{
    static const struct {
        const struct name_row *row;
        int n;
    } tables[] = {
        [NAMES_ROLLCALL] = { NULL, 0 },
        [NAMES_OPEN_INSTRUCT] = { open_instruct, ARRAY_SIZE(open_instruct) },
        [NAMES_ATROPOS] = { atropos, ARRAY_SIZE(atropos) },
    };
    int n_out = 0;
    for (int i = 0; i < n; i++) {
        const struct name_row *row = row_find(tables[naming].row, tables[naming].n, metric_find(in[i].name));
        if (!row) {
            out[n_out++] = in[i];
            continue;
        }
        struct journal_metric *before = row->change == ADDED ? named(out, n_out, row->name) : NULL;
        if (before)
            before->value += in[i].value;
        else
            out[n_out++] = (struct journal_metric){ row->name, row->change == REST ? 1 - in[i].value : in[i].value };
        if (row->change == COPIED)
            out[n_out++] = (struct journal_metric){ row[1].name, row[1].change == REST ? 1 - in[i].value : in[i].value };
    }
    if (naming == NAMES_OPEN_INSTRUCT)
        out[n_out++] = (struct journal_metric){ "training_step", (double)step };
    return n_out;
}
