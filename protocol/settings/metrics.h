/* metrics.h - the one table of metrics: name, unit, meaning, which chart
 *
 * Names are those of ColossalChat's dashboards (train/..., metrics/..., rollout/..., eval/...), plus rollcall's own. The table
 * defines what the journal's columns mean, and drives charts, OpenMetrics help, exporters and docs. Read-only: any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
enum metric_chart {    // which chart of the overview shows it
    CHART_NONE,
    CHART_REWARD,
    CHART_KL,
    CHART_ENTROPY,
    CHART_LENGTH,
    CHART_THROUGHPUT,
    CHART_LOSS,
    CHART_GRAD,
    CHART_TIME,
};
enum metric_by {      // the one place that computes it
    BY_TRAINER,       // from the step's sums (workers/engine/trainer)
    BY_WORKER,        // what a worker's engine measures (workers/worker)
    BY_CONTROLLER,    // from the ledger, from all groups that passed through (workers/controller)
};
enum metric_id {
    M_REWARD,
    M_REWARD_STD,
    M_FORMAT_ACC,
    M_ANS_ACC,
    M_RESPONSE_LENGTH,
    M_LENGTH_P10,
    M_LENGTH_P50,
    M_LENGTH_P90,
    M_LENGTH_MAX,
    M_LENGTH_MIN,
    M_LENGTH_RIGHT,
    M_LENGTH_WRONG,
    M_TRUNCATED,
    M_NO_SPREAD,
    M_FILTERED,
    M_GROUPS,
    M_SOLVE_RATE,
    M_ALL_RIGHT,
    M_NONE_RIGHT,
    M_FILTERED_GROUPS,
    M_FILTERED_ALL_RIGHT,
    M_FILTERED_NONE_RIGHT,
    M_LEFT_OUT,
    M_LOSS,
    M_ADVANTAGES,
    M_ADVANTAGE_MIN,
    M_ADVANTAGE_MAX,
    M_LEARNING_RATE,
    M_SAMPLE_UTILIZATION,
    M_ENTROPY,
    M_OVERLENGTH,
    M_KL,
    M_GRAD_NORM,
    M_CLIP_LOW,
    M_CLIP_HIGH,
    M_RATIO_MEAN,
    M_RATIO_MAX,
    M_RHO_MEAN,
    M_RHO_CLAMPED,
    M_RHO_MASKED,
    M_SKIPPED,
    M_MICRO_BATCHES,
    M_AGE_MEAN,
    M_AGE_MAX,
    M_EXPERT_BUSIEST,
    M_EXPERT_IDLE,
    M_EXPERT_ENTROPY,
    M_SAMPLER_TRAINER_DIFF,
    M_TEMPERATURE,
    M_ROLLOUT_TOK_PER_S,
    M_TRAIN_TOK_PER_S,
    M_TRAIN_SHARED,
    M_ROLLOUT_MFU,
    M_ROLLOUT_MBU,
    M_TRAIN_MFU,
    M_GENERATE_S,
    M_SCORE_S,
    M_TRAIN_S,
    M_RANKS_N,
    M_ZERO_STAGE,
    M_RANKS_S,
    M_RANKS_IDLE_S,
    M_RANKS_EXPOSED_S,
    M_RANKS_LATE,
    M_RANKS_LATE_S,
    M_RANKS_REDUCE_S,
    M_RANKS_REDUCE_GB,
    M_RANKS_GATHER_S,
    M_RANKS_GATHER_GB,
    M_RANKS_SENT_GB,
    M_HOSTS_REDUCE_GB,
    M_HOSTS_GATHER_GB,
    M_STAGES_N,
    M_STAGES_IDLE_S,
    M_PUBLISH_S,
    M_NODES_FETCH_S,
    M_NODES_SENT_GB,
    M_NODES_DELTA_RATIO,
    M_LENT_REFUSED,
    M_IDLE_S,
    M_STEP_S,
    M_CHECKPOINT_STALL_S,
    M_CHECKPOINT_WRITE_S,
    M_BUFFER_DEPTH,
    M_LONG_PROMPTS,
    M_PUT_BACK,
    M_IDLE_SHARE,
    M_GAP_SHARE,
    M_DRAFT_ACCEPTANCE,
    M_SOLVED_PROMPTS,
    M_LEVEL,
    M_STOPPED_GROUPS,
    M_STOPPED_TOKENS,
    M_RUBRICS_ACTIVE,
    M_RUBRICS_WRITTEN,
    M_RUBRICS_FAILED,
    M_SCORE_QUEUE,
    M_SCORE_LATENCY_MS,
    M_SCORE_TIMEOUTS,
    M_SCORE_ERRORS,
    M_PATHS,
    M_ENV_COUNT,
    M_ENV_PER_MIN,
    M_ENV_WAITING,
    M_ENV_AGE,
    M_ENV_REFUSED,
    M_ENV_FULL,
    M_HOST_MEM_GIB,
    M_TOKENS_TOTAL,
    M_SAMPLES_TOTAL,
    M_ROLLOUT_STEP,
    M_EPISODE,
    METRIC_N,
};
struct metric {
    const char *name;     // "train/loss"
    const char *label;    // short, for the screen
    const char *unit;     // "" when it has none
    enum metric_chart chart;
    enum metric_by by;    // a worker sends what it and its trainer compute, and the controller adds its own
    const char *help;     // one line
};
extern const struct metric metrics[METRIC_N];
/* Find a metric's id by name, or -1 (own reward parts "reward/NAME" and "eval/SET" are not in the table). */
int metric_find(const char *name);
/* Does the controller compute it? Then no worker may send it. */
bool metric_is_controllers(const char *name);
/* Seconds per step for the time that is left, after one more step of step_s: recent steps count most. mean 0: none before it. */
double step_s_mean(double mean, double step_s);
/* The table in Markdown. */
void metrics_print_docs(struct buf *out);
