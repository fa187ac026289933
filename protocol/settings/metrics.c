#include "protocol/settings/metrics.h"
#include <string.h>

// clang-format off
const struct metric metrics[METRIC_N] = {
    [M_REWARD] = { "metrics/reward", "reward", "", CHART_REWARD, BY_CONTROLLER, "mean reward of all groups consumed since the last step, including filtered ones" },
    [M_REWARD_STD] = { "metrics/reward_std", "reward std", "", CHART_NONE, BY_CONTROLLER, "standard deviation of those rewards" },
    [M_FORMAT_ACC] = { "metrics/format_acc", "format", "", CHART_REWARD, BY_CONTROLLER, "share of those samples in the right format" },
    [M_ANS_ACC] = { "metrics/ans_acc", "accuracy", "", CHART_REWARD, BY_CONTROLLER, "share of those samples with the right answer" },
    [M_RESPONSE_LENGTH] = { "metrics/response_length", "length", "tok", CHART_LENGTH, BY_CONTROLLER, "mean response length" },
    [M_LENGTH_P10] = { "metrics/response_length_p10", "length p10", "tok", CHART_NONE, BY_TRAINER, "10th percentile of response length" },
    [M_LENGTH_P50] = { "metrics/response_length_p50", "length p50", "tok", CHART_NONE, BY_TRAINER, "median response length" },
    [M_LENGTH_P90] = { "metrics/response_length_p90", "length p90", "tok", CHART_LENGTH, BY_TRAINER, "90th percentile of response length" },
    [M_LENGTH_MAX] = { "metrics/response_length_max", "length max", "tok", CHART_NONE, BY_CONTROLLER, "longest response" },
    [M_LENGTH_MIN] = { "metrics/response_length_min", "length min", "tok", CHART_NONE, BY_TRAINER, "shortest response of the groups trained on" },
    [M_LENGTH_RIGHT] = { "metrics/response_length_right", "length right", "tok", CHART_NONE, BY_TRAINER, "mean length of their right answers" },
    [M_LENGTH_WRONG] = { "metrics/response_length_wrong", "length wrong", "tok", CHART_NONE, BY_TRAINER, "mean length of their wrong answers" },
    [M_TRUNCATED] = { "metrics/truncated_ratio", "cut", "", CHART_NONE, BY_CONTROLLER, "share of responses cut at max_new_tokens" },
    [M_NO_SPREAD] = { "metrics/no_spread_ratio", "no spread", "", CHART_NONE, BY_CONTROLLER, "share of groups whose rewards are all equal" },
    [M_FILTERED] = { "metrics/filtered_ratio", "filtered", "", CHART_NONE, BY_CONTROLLER, "share of groups that filter_range or filter_no_spread left out" },
    [M_GROUPS] = { "metrics/groups", "groups", "group", CHART_NONE, BY_CONTROLLER, "groups consumed since the last step, including filtered ones" },
    [M_SOLVE_RATE] = { "metrics/solve_rate", "solve rate", "", CHART_NONE, BY_CONTROLLER, "mean over those groups of their share of right answers" },
    [M_ALL_RIGHT] = { "metrics/all_right_ratio", "all right", "", CHART_NONE, BY_CONTROLLER, "share of those groups whose answers are all right" },
    [M_NONE_RIGHT] = { "metrics/none_right_ratio", "none right", "", CHART_NONE, BY_CONTROLLER, "share of those groups without a right answer" },
    [M_FILTERED_GROUPS] = { "metrics/filtered_groups", "filtered groups", "group", CHART_NONE, BY_CONTROLLER, "groups that filter_range or filter_no_spread left out" },
    [M_FILTERED_ALL_RIGHT] = { "metrics/filtered_all_right", "filtered, right", "group", CHART_NONE, BY_CONTROLLER, "of these, groups whose answers are all right" },
    [M_FILTERED_NONE_RIGHT] = { "metrics/filtered_none_right", "filtered, wrong", "group", CHART_NONE, BY_CONTROLLER, "of these, groups without a right answer" },
    [M_LEFT_OUT] = { "metrics/left_out_ratio", "left out", "", CHART_NONE, BY_CONTROLLER, "share of samples whose verifier failed or could not tell" },
    [M_LOSS] = { "train/loss", "loss", "", CHART_LOSS, BY_TRAINER, "policy loss of the optimizer step" },
    [M_ADVANTAGES] = { "train/advantages", "advantage", "", CHART_NONE, BY_TRAINER, "mean advantage (near 0)" },
    [M_ADVANTAGE_MIN] = { "train/advantages_min", "advantage min", "", CHART_NONE, BY_TRAINER, "smallest advantage" },
    [M_ADVANTAGE_MAX] = { "train/advantages_max", "advantage max", "", CHART_NONE, BY_TRAINER, "largest advantage" },
    [M_LEARNING_RATE] = { "train/learning_rate", "lr", "", CHART_NONE, BY_TRAINER, "learning rate of the step" },
    [M_SAMPLE_UTILIZATION] = { "train/sample_utilization", "used", "", CHART_NONE, BY_TRAINER, "share of consumed samples that contributed a loss" },
    [M_ENTROPY] = { "train/entropy", "entropy", "nat", CHART_ENTROPY, BY_TRAINER, "mean entropy of the policy over the trained tokens, at the sampling temperature" },
    [M_OVERLENGTH] = { "train/overlength_samples_ratio", "over-length", "", CHART_NONE, BY_TRAINER, "share of consumed samples at least max_new_tokens long" },
    [M_KL] = { "train/kl", "KL", "nat", CHART_KL, BY_TRAINER, "k3 estimate of the KL to the reference model or the teacher, mean over the trained tokens; only with kl_coeff above 0 or a teacher" },
    [M_GRAD_NORM] = { "train/grad_norm", "grad norm", "", CHART_GRAD, BY_TRAINER, "global gradient norm before clipping" },
    [M_CLIP_LOW] = { "train/clip_low_ratio", "clip low", "", CHART_NONE, BY_TRAINER, "share of tokens clipped below" },
    [M_CLIP_HIGH] = { "train/clip_high_ratio", "clip high", "", CHART_NONE, BY_TRAINER, "share of tokens clipped above" },
    [M_RATIO_MEAN] = { "train/ratio_mean", "ratio", "", CHART_NONE, BY_TRAINER, "mean importance ratio" },
    [M_RATIO_MAX] = { "train/ratio_max", "ratio max", "", CHART_NONE, BY_TRAINER, "largest importance ratio" },
    [M_RHO_MEAN] = { "train/rho_mean", "rho", "", CHART_NONE, BY_TRAINER, "mean probability of a token at the beginning of the step over that when sampled; only with rho_clamp or rho_mask" },
    [M_RHO_CLAMPED] = { "train/rho_clamped_ratio", "rho clamped", "", CHART_NONE, BY_TRAINER, "share of tokens whose correction rho_clamp has bounded" },
    [M_RHO_MASKED] = { "train/rho_masked_ratio", "rho masked", "", CHART_NONE, BY_TRAINER, "share of tokens that rho_mask has left out" },
    [M_SKIPPED] = { "train/skipped_ratio", "skipped", "", CHART_NONE, BY_TRAINER, "share of samples beyond skip_threshold" },
    [M_MICRO_BATCHES] = { "train/micro_batches", "micro-batches", "", CHART_NONE, BY_TRAINER, "forward and backward passes in the step, all trainers together" },
    [M_AGE_MEAN] = { "train/age_mean", "age", "step", CHART_NONE, BY_TRAINER, "mean age of the trained tokens, in optimizer steps" },
    [M_AGE_MAX] = { "train/age_max", "age max", "step", CHART_NONE, BY_TRAINER, "greatest age of a trained token" },
    [M_EXPERT_BUSIEST] = { "experts/busiest_share", "busiest expert", "", CHART_NONE, BY_TRAINER, "largest share of a layer's rows that one expert of a mixture has, mean over layers and micro-batches; even is 1 / experts" },
    [M_EXPERT_IDLE] = { "experts/idle_share", "idle experts", "", CHART_NONE, BY_TRAINER, "share of a layer's experts that no row of a micro-batch chose, mean over layers and micro-batches" },
    [M_EXPERT_ENTROPY] = { "experts/load_entropy", "load entropy", "", CHART_NONE, BY_TRAINER, "entropy of a layer's rows over its experts, divided by the logarithm of their number, mean over layers and micro-batches; even is 1" },
    [M_SAMPLER_TRAINER_DIFF] = { "train/sampler_trainer_diff", "sampler diff", "nat", CHART_KL, BY_TRAINER, "largest difference of log-probs between sampler and trainer, on tokens sampled by the current weights: 0 unless something is wrong, or an external engine samples" },
    [M_TEMPERATURE] = { "rollout/temperature", "temperature", "", CHART_NONE, BY_WORKER, "sampling temperature" },
    [M_ROLLOUT_TOK_PER_S] = { "perf/rollout_tok_per_s", "rollout", "tok/s", CHART_THROUGHPUT, BY_WORKER, "tokens sampled per second of generating; where no trainer samples, by all producers together" },
    [M_TRAIN_TOK_PER_S] = { "perf/train_tok_per_s", "train", "tok/s", CHART_THROUGHPUT, BY_TRAINER, "tokens trained on per second of training, including prompts" },
    [M_TRAIN_SHARED] = { "perf/train_shared_share", "shared", "", CHART_NONE, BY_TRAINER, "share of these tokens that were computed together with the same ones of another sample (share_prompts)" },
    [M_ROLLOUT_MFU] = { "perf/rollout_mfu", "rollout MFU", "", CHART_NONE, BY_WORKER, "share of the devices' peak rate that sampling needed on the first trainer's worker, or of all producers where no trainer samples; the peaks are those of 'rollcall metrics', or peak_tflops and peak_gb_per_s" },
    [M_ROLLOUT_MBU] = { "perf/rollout_mbu", "rollout MBU", "", CHART_NONE, BY_WORKER, "share of the memory's peak bandwidth: weights once a decode step, keys and values of each running sample" },
    [M_TRAIN_MFU] = { "perf/train_mfu", "train MFU", "", CHART_NONE, BY_WORKER, "share of the trainers' peak rate that forward and backward passes needed, what is computed twice counted once" },
    [M_GENERATE_S] = { "time/generate_s", "generate", "s", CHART_TIME, BY_WORKER, "time spent generating since the last step; where no trainer samples, on average of the producers" },
    [M_SCORE_S] = { "time/score_s", "score", "s", CHART_TIME, BY_CONTROLLER, "time that the groups received since the last step waited for their scores" },
    [M_TRAIN_S] = { "time/train_s", "train", "s", CHART_TIME, BY_WORKER, "time of forward, backward and update" },
    [M_RANKS_N] = { "train/ranks", "trainers", "", CHART_NONE, BY_TRAINER, "trainers that share each step; this and the following eleven only with several" },
    [M_ZERO_STAGE] = { "train/zero_stage", "zero stage", "", CHART_NONE, BY_TRAINER, "what each of them keeps its shards of (zero_stage), as chosen" },
    [M_RANKS_S] = { "time/ranks_s", "ranks", "s", CHART_NONE, BY_TRAINER, "time of a step that the first trainer stood still for the others or for what they exchange" },
    [M_RANKS_IDLE_S] = { "time/ranks_idle_s", "ranks idle", "s", CHART_NONE, BY_TRAINER, "time that a trainer stood still for others that had not computed their part: of the one with most of it; time/ranks_idle_s/N is trainer N's" },
    [M_RANKS_EXPOSED_S] = { "time/ranks_exposed_s", "ranks exposed", "s", CHART_NONE, BY_TRAINER, "time that a trainer stood still for gradients and weights on their way, communication that no computing hid: of the one with most of it" },
    [M_RANKS_LATE] = { "train/late_rank", "late rank", "", CHART_NONE, BY_TRAINER, "number of the trainer that the others waited for longest" },
    [M_RANKS_LATE_S] = { "time/late_rank_s", "late by", "s", CHART_NONE, BY_TRAINER, "the longest that another trainer stood still for that one to compute" },
    [M_RANKS_REDUCE_S] = { "time/ranks_reduce_s", "reduce", "s", CHART_NONE, BY_TRAINER, "time that the first trainer's device copied gradients to their owners and added up its own share, mostly beside computing" },
    [M_RANKS_REDUCE_GB] = { "perf/ranks_reduce_gb", "reduced", "GB", CHART_NONE, BY_TRAINER, "gradients that the first trainer sent to others in a step" },
    [M_RANKS_GATHER_S] = { "time/ranks_gather_s", "gather", "s", CHART_NONE, BY_TRAINER, "time that the first trainer's device copied what all need of a shard: sums (zero_stage 0), new weights (1 and 2), weights to compute with (3)" },
    [M_RANKS_GATHER_GB] = { "perf/ranks_gather_gb", "gathered", "GB", CHART_NONE, BY_TRAINER, "the same in bytes to or from other trainers, in a step" },
    [M_RANKS_SENT_GB] = { "perf/ranks_sent_gb", "ranks sent", "GB", CHART_NONE, BY_TRAINER, "both of these" },
    [M_HOSTS_REDUCE_GB] = { "perf/hosts_reduce_gb", "between hosts", "GB", CHART_NONE, BY_TRAINER, "gradients that trainers sent to trainers on other machines in a step, all together; this and the next only with trainers on several machines" },
    [M_HOSTS_GATHER_GB] = { "perf/hosts_gather_gb", "gathered between hosts", "GB", CHART_NONE, BY_TRAINER, "the same of what time/ranks_gather_s names" },
    [M_STAGES_N] = { "train/stages", "stages", "", CHART_NONE, BY_TRAINER, "devices that the trainer's pipeline has; this and the following one only with several" },
    [M_STAGES_IDLE_S] = { "time/stages_idle_s", "stages idle", "s", CHART_NONE, BY_TRAINER, "time of making the gradient, and the reference's log-probs, that a stage's device stood still for the others: of the one with most of it; time/stages_idle_s/N is stage N's" },
    [M_PUBLISH_S] = { "time/publish_s", "publish", "s", CHART_NONE, BY_WORKER, "time to hand the new weights to the producers" },
    [M_NODES_FETCH_S] = { "time/nodes_fetch_s", "fetch", "s", CHART_NONE, BY_CONTROLLER, "time until new weights were on another node, the longest since the last step; this and the next two only with nodes" },
    [M_NODES_SENT_GB] = { "perf/nodes_sent_gb", "sent to nodes", "GB", CHART_NONE, BY_CONTROLLER, "bytes of new weights that went over the network to other nodes since the last step" },
    [M_NODES_DELTA_RATIO] = { "perf/nodes_delta_ratio", "delta ratio", "", CHART_NONE, BY_CONTROLLER, "how many times more these weights are than the bytes that were sent for them, as differences from the version before" },
    [M_LENT_REFUSED] = { "rollout/lent_refused", "lent refused", "group", CHART_NONE, BY_CONTROLLER, "groups of lent machines that were refused so far, because their items were not wanted or had not been given to that machine, or they claimed what cannot be; only with listen_lent" },
    [M_IDLE_S] = { "time/idle_s", "idle", "s", CHART_NONE, BY_WORKER, "time the trainer waited for groups, without pauses" },
    [M_STEP_S] = { "time/step_s", "step", "s", CHART_TIME, BY_CONTROLLER, "wall time since the last optimizer step, without pauses" },
    [M_CHECKPOINT_STALL_S] = { "time/checkpoint_stall_s", "save stall", "s", CHART_NONE, BY_WORKER, "time training paused for the last checkpoint" },
    [M_CHECKPOINT_WRITE_S] = { "time/checkpoint_write_s", "save write", "s", CHART_NONE, BY_WORKER, "time to write and hash the last checkpoint in the background" },
    [M_BUFFER_DEPTH] = { "rollout/buffer_depth", "buffer", "group", CHART_NONE, BY_CONTROLLER, "groups waiting to be trained on" },
    [M_SOLVED_PROMPTS] = { "rollout/solved_prompts", "solved", "", CHART_NONE, BY_CONTROLLER, "prompts that are not sampled again (no_resampling_pass_rate)" },
    [M_LEVEL] = { "rollout/level", "level", "", CHART_NONE, BY_CONTROLLER, "level of difficulty that the newest prompts of the step had; only with curriculum_levels" },
    [M_LONG_PROMPTS] = { "rollout/long_prompts", "long prompts", "", CHART_NONE, BY_WORKER, "prompts dropped or cut for their length so far" },
    [M_PUT_BACK] = { "rollout/put_back", "put back", "", CHART_NONE, BY_WORKER, "times since the last step that a sample lost its pages of keys and values because they had run out, to go on later; it only costs time" },
    [M_IDLE_SHARE] = { "rollout/idle_share", "idle share", "", CHART_NONE, BY_WORKER, "share of the time spent generating in which fewer than half as many samples ran, of whatever version, as at most of one: a long tail" },
    [M_GAP_SHARE] = { "rollout/gap_share", "gap share", "", CHART_NONE, BY_CONTROLLER, "share of the time spent generating in which samples of two versions of the weights ran: the next rollout step's in the tail of the one before (fill_gap); only where that can be" },
    [M_DRAFT_ACCEPTANCE] = { "rollout/draft_acceptance", "drafts accepted", "", CHART_NONE, BY_WORKER, "share of the guesses at next tokens (speculate) that came true; only while there are some" },
    [M_STOPPED_GROUPS] = { "rollout/stopped_groups", "stopped", "group", CHART_NONE, BY_CONTROLLER, "groups since the last step that were stopped, or came too late, because shorter ones were enough; this and the next only with over_sample_rate" },
    [M_STOPPED_TOKENS] = { "rollout/stopped_tokens", "stopped tokens", "tok", CHART_NONE, BY_CONTROLLER, "tokens that had been drawn for them" },
    [M_RUBRICS_ACTIVE] = { "evolving_rubrics/active", "rubrics", "", CHART_NONE, BY_CONTROLLER, "mean number of evolving criteria by which the groups that came since the last step were judged; this and the next two only with apply_evolving_rubric_reward" },
    [M_RUBRICS_WRITTEN] = { "evolving_rubrics/written", "rubrics written", "", CHART_NONE, BY_CONTROLLER, "criteria that the judge has written for them" },
    [M_RUBRICS_FAILED] = { "evolving_rubrics/failed", "rubrics failed", "group", CHART_NONE, BY_CONTROLLER, "of these, groups for which it wrote none because it failed, or its budget was used up" },
    [M_SCORE_QUEUE] = { "score/queue", "score queue", "", CHART_NONE, BY_CONTROLLER, "mean number of responses that waited for their scores since the last step" },
    [M_SCORE_LATENCY_MS] = { "score/latency_ms", "score latency", "ms", CHART_NONE, BY_CONTROLLER, "mean time the verifier worked on each response received since the last step" },
    [M_SCORE_TIMEOUTS] = { "score/timeouts", "score time-outs", "", CHART_NONE, BY_CONTROLLER, "responses left out so far because their verifier ran out of time" },
    [M_SCORE_ERRORS] = { "score/errors", "score errors", "", CHART_NONE, BY_CONTROLLER, "responses left out so far because their verifier failed" },
    [M_PATHS] = { "harness/paths", "paths", "", CHART_NONE, BY_CONTROLLER, "mean number of paths of a session of the groups consumed since the last step: 1 where each request goes on from the one before; only with a harness" },
    [M_ENV_COUNT] = { "env/count", "environments", "", CHART_NONE, BY_CONTROLLER, "registered environments that take part; this and the following only in a run with environments" },
    [M_ENV_PER_MIN] = { "env/groups_per_min", "env groups", "", CHART_NONE, BY_CONTROLLER, "groups that environments posted in the last minute" },
    [M_ENV_WAITING] = { "env/waiting", "env waiting", "group", CHART_NONE, BY_CONTROLLER, "posted groups that no item has got yet" },
    [M_ENV_AGE] = { "env/age", "env age", "step", CHART_NONE, BY_CONTROLLER, "mean age of those groups, in optimizer steps since the weights that drew them" },
    [M_ENV_REFUSED] = { "env/refused", "env refused", "", CHART_NONE, BY_CONTROLLER, "faulty posts since the door was opened (answered with 422)" },
    [M_ENV_FULL] = { "env/full", "env full", "group", CHART_NONE, BY_CONTROLLER, "groups since then for which there was no room (answered with 503)" },
    [M_HOST_MEM_GIB] = { "host/mem_gib", "host mem", "GiB", CHART_NONE, BY_CONTROLLER, "resident memory of the run's processes on the head node" },
    [M_TOKENS_TOTAL] = { "rollout/tokens_total", "tokens", "tok", CHART_NONE, BY_CONTROLLER, "tokens sampled so far" },
    [M_SAMPLES_TOTAL] = { "rollout/samples_total", "samples", "", CHART_NONE, BY_CONTROLLER, "completions sampled so far" },
    [M_ROLLOUT_STEP] = { "rollout/step", "rollout step", "", CHART_NONE, BY_CONTROLLER, "rollout step of the newest group trained on" },
    [M_EPISODE] = { "rollout/episode", "episode", "", CHART_NONE, BY_CONTROLLER, "pass over the dataset" },
};
// clang-format on

int metric_find(const char *name)
{
    for (int i = 0; i < METRIC_N; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return i;
    return -1;
}

bool metric_is_controllers(const char *name)
{
    int i = metric_find(name);
    return i >= 0 && metrics[i].by == BY_CONTROLLER;
}

double step_s_mean(double mean, double step_s)
{
    if (!(step_s > 0))
        return mean;
    return mean > 0 ? 0.8 * mean + 0.2 * step_s : step_s;
}

void metrics_print_docs(struct buf *out)
{
    static const char *const by[] = { [BY_TRAINER] = "trainer", [BY_WORKER] = "worker", [BY_CONTROLLER] = "controller" };
    buf_str(out, "| metric | unit | computed by | meaning |\n|---|---|---|---|\n");
    for (int i = 0; i < METRIC_N; i++)
        buf_fmt(out, "| `%s` | %s | %s | %s |\n", metrics[i].name, metrics[i].unit, by[metrics[i].by], metrics[i].help);
}
