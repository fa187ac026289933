/* run_config.h - all settings of a run, as one struct
 *
 * Filled in order from the defaults (knobs.c), the rows of the algorithm and the preset (preset.c), the run file, the command line; a
 * later source wins, and each value's source is kept. The table in knobs.c drives parsing, help, the run's own run.yaml, ctl, the console
 * and the docs. A plain value: copying it is fine; it owns no memory. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/batch_filter.h"

#define RUN_TEXT_MAX 1024    // bytes of one text setting, with its NUL
#define RUN_JSON_MAX 4096
#define KNOB_MAX 256            // most rows in the knob table
#define TRAIN_BATCH_MAX 4096    // most prompts in an optimizer step, over all trainers
#define CURRICULUM_LEVELS_MAX 100

enum knob_source {
    FROM_DEFAULT,
    FROM_PRESET,
    FROM_FILE,
    FROM_FLAG,
    FROM_COMMAND,
};

struct run_config {
    /* the run */
    char name[128];    // "" : a free name is taken
    char project[513];
    char model[RUN_TEXT_MAX];              // directory or org/name
    char checkpoint_path[RUN_TEXT_MAX];    // start a new run from this checkpoint
    int64_t seed;
    int64_t max_steps;       // optimizer steps; 0: what num_episodes gives
    double max_hours;        // 0: without a limit
    int64_t num_episodes;    // passes over the dataset
    char dtype[8];           // fp32 | bf16: weights and activations
    char devices[256];       // "auto" or a list: cpu:0,cuda:0
    char placement[16];      // shared: workers play both roles; apart: trainers and producers have separate devices
    char weights[8];         // auto | files | copy | nccl: how weights get to samplers on other devices
    int64_t threads;         // of a CPU device; 0: its share of the cores
    /* data */
    char dataset[RUN_TEXT_MAX];                   // a file, a folder, a pattern, or ORG/NAME[@REVISION][:CONFIG][:SPLIT] of the hub
    char eval_dataset[RUN_JSON_MAX];              // JSON object {name: path or {"path","temperature","n","limit"}}
    char prompt_column[64], answer_column[64];    // "" : recognised
    char prompt_template[RUN_TEXT_MAX];           // "" : the prompt's column as it is; else text with columns in braces
    char long_prompt[16];                         // drop | cut_left
    int64_t max_prompt_tokens;
    bool shuffle;
    int64_t curriculum_levels;                              // 1: off
    int64_t curriculum_start;                               // the level that the run begins with
    double curriculum_pass_rate, curriculum_easier_rate;    // shares of right answers; easier 0: never
    int64_t curriculum_groups;
    char curriculum_column[64];
    /* workers */
    int64_t num_trainers, num_inferencer;
    int64_t trainers_per_node;    // of num_trainers on each host; 0: all on the head's
    int64_t tensor_parallel_size, pipeline_parallel_size, producer_tensor_parallel_size;
    int64_t sum_parts;    // run_config_sum_parts
    int64_t sequence_parallel_size;
    bool enable_sequence_parallelism;
    char zero_stage[8];    // run_config_zero
    int64_t trainer_rank, train_dataset_size;
    char collective[8];    // run_config_collective
    char ray_dir[RUN_TEXT_MAX], master_address[128];
    char backend[16];                              // what samples: rollcall, or the external engines
    char engine_url[RUN_TEXT_MAX];                 // at these addresses, with commas between them; "": rollcall
    char engine_token_file[RUN_TEXT_MAX];          // "": they need none
    char engine_helper[RUN_TEXT_MAX];              // gives them the weights; "": they read them themselves
    double engine_timeout_s, engine_patience_s;    // of one request; until one that does not answer fails the run
    int64_t master_port;
    int64_t data_actor_buffer_size_limit, max_length, num_minibatch_during_rollout;    // ColossalChat's, without effect
    char listen[280];                                                                  // "" : no other nodes; HOST:PORT
    char listen_lent[280];                                                             // HOST:PORT of nodes that only sample; "": none
    char hosts[4096];                                                                  // to start nodes on over ssh (host_list.h)
    int64_t n_behind;
    char fill_gap[8];    // auto | off | on
    bool free_running;
    int64_t max_staleness;    // of a token in free-running mode, optimizer steps
    /* batch sizes, in prompts except for the micro-batches (samples) */
    int64_t inference_batch_size, inference_microbatch_size;
    int64_t train_batch_size, train_minibatch_size, train_microbatch_size;
    int64_t microbatch_size;
    int64_t token_budget;    // tokens of a packed micro-batch; 0: from the micro-batch size
    int64_t grad_group;      // micro-batches whose gradients are added up by themselves
    /* sampling */
    int64_t num_generations;
    double temperature, top_p, min_p;
    double temperature_end;       // 0: it stays
    int64_t temperature_steps;    // rollout steps until then
    int64_t top_k;                // 0: off
    int64_t max_new_tokens, min_new_tokens;
    int64_t max_new_tokens_start, max_new_tokens_steps;    // 0: it is the same from the start; rollout steps until then
    char system_prompt[RUN_TEXT_MAX];                      // "" : the reward type's
    char speculate[8];                                     // auto | on | off
    bool ignore_eos;                                       // force full-length responses (profiling)
    /* algorithm */
    char algo[24];          // preset.c has what they set
    char preset[24];        // none, or whose defaults are taken
    char advantages[24];    // the meaning of these choices: workers/engine/trainer/loss.h
    char ratio_level[16], clip_form[16];
    double clip_eps_low, clip_eps_high;
    double clip_dual;    // 0: off
    double sapo_temperature_pos, sapo_temperature_neg;
    double vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg;
    double dro_beta;
    char loss_variation[16];
    int64_t loss_constant;    // tokens; 0: max_new_tokens
    double beta;              // KL coefficient
    char kl_estimator[16];
    char teacher[RUN_TEXT_MAX];    // a model's directory, or ""
    double teacher_coeff, reward_coeff;
    int64_t ref_update_steps;                     // optimizer steps between updates of the reference; 0: it stays
    double ref_update_alpha;                      // the policy's share in one
    int64_t update_epochs, update_minibatches;    // an optimizer step has this many updates
    char old_logprobs[16];
    double rho_clamp[2], rho_mask[2];    // NAN: off
    char rho_clamp_level[16], rho_mask_level[16];
    double filter_range[2];    // NAN: no filter
    bool filter_no_spread;
    double no_resampling_pass_rate;       // 0: off
    char tokenizer_path[RUN_TEXT_MAX];    // run_config_tokenizer reads it
    double publish_timeout_s, ranks_timeout_s, score_timeout_s;
    double join_timeout_s;                // that a node with trainers is waited for; 0: without a limit
    double over_sample_rate;              // 0: off
    double peak_tflops, peak_gb_per_s;    // of a device; 0: by workers/engine/plan/peaks.h
    bool dynamic_batching;
    bool filter_truncated_response;
    bool soft_over_length_punishment;
    int64_t cache_length;            // tokens; 0: from max_new_tokens (reward.h)
    double skip_threshold;           // 0: off
    bool ppb_as_upstream;            // multiply by the spread instead of dividing (compatibility)
    bool control_shuffle_rewards;    // experiment: shuffle rewards between the samples of a batch; must not learn
    /* optimizer */
    char optimizer[16];               // adamw | adamw_8bit | adafactor
    char train_layer_indices[256];    // "": everything; else only these layers
    double learning_rate;
    char lr_schedule[16];    // constant | linear | cosine | wsd
    double lr_min_ratio;     // of learning_rate, at the end of the schedule
    char weight_decay_on[16];
    double lr_decay_share;    // of wsd
    int64_t warmup_steps;
    double weight_decay, adam_beta1, adam_beta2, adam_eps, max_norm;
    bool recompute_full;       // full-block recompute in training
    bool share_prompts;        // a group's prompt is computed once in training
    bool offload_optimizer;    // moments and masters in host memory (ColossalAI's HybridAdam)
    /* adapter */
    int64_t lora_rank;      // 0: all weights are trained
    double lora_alpha;      // 0: twice the rank
    double lora_dropout;    // only 0
    char lora_target_modules[256];
    char lora_adapter[RUN_TEXT_MAX];    // PEFT's directory to begin from, or ""
    /* reward */
    char reward_type[256];
    char code_verifier_api_url[RUN_TEXT_MAX], code_verifier_key_file[RUN_TEXT_MAX];
    double verification_reward, format_reward, non_stop_penalty_value, max_length_verifier_max_length;    // struct verify_options
    char llm_judge_url[RUN_TEXT_MAX], llm_judge_model[128], llm_judge_key_file[RUN_TEXT_MAX], llm_judge_template[RUN_TEXT_MAX];
    bool apply_evolving_rubric_reward;
    int64_t max_active_rubrics;
    char cache_evolving_rubric_data_dir[RUN_TEXT_MAX];    // without effect
    int64_t llm_judge_max_tokens, llm_judge_max_context_length, llm_judge_budget;
    double llm_judge_temperature, llm_judge_timeout;
    double code_max_execution_time, code_pass_rate_reward_threshold;
    bool code_apply_perf_penalty;
    bool additive_format_reward, non_stop_penalty, only_reward_good_outputs, math_symbolic;
    char remap_verifier[128], response_format_tags[RUN_TEXT_MAX];
    double reward_timeout_s;    // time limit of a reward program or the external verifier
    int64_t scorer_threads;
    /* environment */
    char environment[RUN_TEXT_MAX];    // "": none; program:CMD, harness:CMD
    char environment_reward[16];       // last | sum
    int64_t environment_processes;     // 0: as many as scoring threads, of a harness run_config_sessions
    double environment_timeout_s;
    double session_timeout_s;              // of a harness's session, without the time that its requests take
    int64_t session_restarts;              // of a harness's program that has failed
    int64_t max_turns, max_turn_tokens;    // of a sample; tokens of one turn, 0: no limit of its own
    char environments[RUN_JSON_MAX];       // "": none; JSON object {"listen" or "url", "token_file", "no_token"}
    char serve[280];                       // "": not served; HOST:PORT
    char serve_token_file[RUN_TEXT_MAX];
    char allowed_hosts[RUN_TEXT_MAX];                                  // more names of the run's HTTP servers (protocol/base/own_hosts.h)
    char serve_tls_cert[RUN_TEXT_MAX], serve_tls_key[RUN_TEXT_MAX];    // files; "": plain HTTP
    int64_t serve_samples;                                             // 0: run_config_serve_samples chooses
    char weight_bridge_mode[16];    // how servers that environments ask get the weights: none | shared_vllm | lora_only | lora_restart
    int64_t bridge_interval;        // optimizer steps
    char weight_bridge_file[RUN_TEXT_MAX];    // shared_vllm: says to servers on this host where the weights are; "": the run serves itself
    /* evaluation, saving, logging: intervals in optimizer steps */
    int64_t eval_interval;                  // <= 0: off
    double eval_temperature, eval_top_p;    // top_p 0: the run's
    int64_t eval_max_new_tokens;            // 0: the run's
    bool eval_at_end, save_at_end, save_at_episode_end;
    bool rollout_entropy;
    int64_t save_interval;       // 0: only at the end
    int64_t keep_checkpoints;    // complete ones kept; 0: all
    char journal_dir[RUN_TEXT_MAX];
    char save_dir[RUN_TEXT_MAX], eval_save_dir[RUN_TEXT_MAX], rollout_save_dir[RUN_TEXT_MAX];
    int64_t rollout_log_interval;    // optimizer steps between readable rollout logs
    bool enable_profiling;
    /* watching */
    char view_group[64];                 // "" : only the owner may look
    double slow_s, stuck_s;              // a phase without progress for this long is called slow, stuck
    double restart_stuck_s;              // 0: never restart by rule
    int64_t waste_alert, waste_limit;    // samples in a row that were wasted before an alert, before the run fails; 0: never
    double disk_alert_gib;               // free space below which an alert is raised; 0: never
    double heartbeat_s;
    double telemetry_s;    // between two samples in the journal
    /* exporters */
    char wandb[16];    // off | online | offline
    char wandb_entity[128], wandb_base_url[RUN_TEXT_MAX], wandb_group[128], wandb_tags[256], wandb_notes[RUN_TEXT_MAX];
    char wandb_ca[RUN_TEXT_MAX];
    bool wandb_completions, wandb_console, wandb_host;
    char alert_webhook_file[RUN_TEXT_MAX], alert_webhook_format[16];
    bool tensorboard;
    char metric_names[16];      // rollcall | open_instruct | atropos: of what is exported
    char metrics_listen[64];    // "" : off; host:port
    char metrics_token_file[RUN_TEXT_MAX];
    /* no settings: set in the processes of a node (protocol/run/node.h) */
    bool node_only;
    int64_t first_trainer;    // rank of the first trainer on this host: the head's 0, of a node that only samples -1
    /* no settings: options of Atropos' example trainer until run_config_finish (atropos_options.h) */
    struct {
        int64_t batch_size, accumulation, seq_len, vllm_port;    // 0: not given
        unsigned char source;                                    // of these
        uint64_t given;                                          // a bit per row of the table of options
    } atropos;
    uint64_t blocks_given;    // the same for keys of ColossalChat's blocks (colossal_blocks.h)
    /* where each value came from, by row of the knob table */
    unsigned char source[KNOB_MAX];
    char file[RUN_TEXT_MAX];    // the run file; "" : none was read
    int32_t line[KNOB_MAX];     // of that file, for a value that stands there; 0: for others
    int32_t line_now;           // while the file is read
};

/* All defaults. */
void run_config_init(struct run_config *c);
/* Read a YAML run file over c; relative paths become relative to its folder. Messages carry file:line. */
MUST_USE bool run_config_read(struct run_config *c, const char *path, struct error *err);
/* Put the run file's name and a line before the sentence of err, which names a setting that stands there. */
void run_config_place(const struct run_config *c, struct error *err);
/* One setting from text (a flag's value, NAME=VALUE of ctl). ERR_USAGE names the setting, the value and the bounds.
 * A relative path is taken relative to base_dir; NULL: the working directory. */
MUST_USE bool run_config_set(struct run_config *c, const char *name, const char *text, enum knob_source source, const char *base_dir,
                             struct error *err);
/* Apply the algorithm's presets to settings that were not given, then the size rules. Clamps are appended to notes, one per line
 * ("warning: ..." or "note: ..."); notes NULL: a value that would be clamped is refused. Values that cannot work fail with one
 * sentence that names them, and with notes the line of the run file, too. Call after all sources. */
MUST_USE bool run_config_finish(struct run_config *c, struct buf *notes, struct error *err);
/* Tokens that one forward and backward pass is filled to: token_budget, else room for train_microbatch_size of the longest samples. */
int64_t run_config_micro_tok(const struct run_config *c);
/* Tokens that one forward and backward pass has memory for: the same, or one longest sample when that is more. */
int64_t run_config_micro_tok_max(const struct run_config *c);
/* Sampling temperature of a rollout step (from 0): from temperature to temperature_end in equal parts, over temperature_steps. */
double run_config_temperature(const struct run_config *c, int64_t rollout_step);
/* Longest completion of a rollout step (from 0), in tokens: from max_new_tokens_start to max_new_tokens in equal parts, rounded down, over
 * max_new_tokens_steps. Short answers first, as DeepScaleR's stages of 8k, 16k and 24k, but without restarts. */
int64_t run_config_length(const struct run_config *c, int64_t rollout_step);
/* Does the kind of one of the reward's parts begin with this? "0.8*code + 0.2*program:./len.py" has code and program:. */
bool reward_has(const struct run_config *c, const char *kind);
/* The groups that count. */
struct batch_filter run_config_filter(const struct run_config *c);
/* The struct as YAML, every setting, absolute paths: the run directory's run.yaml. */
MUST_USE bool run_config_print(const struct run_config *c, struct buf *out, struct error *err);

/* What follows from the sizes. */
struct run_plan {
    int64_t producers, dp;
    int64_t prompts_per_rollout_step;    // inference_batch_size x producers
    int64_t prompts_opened;              // that it samples: more, with over_sample_rate
    int64_t prompts_per_train_batch;     // train_batch_size x dp
    int64_t k;                           // optimizer steps of a rollout step, without filtering
    int64_t rollout_steps;    // that num_episodes take: every prompt that often, and the last step is filled up with more of them
    int64_t total_steps;      // optimizer steps of the run
    int64_t max_age_steps;    // greatest age of a token when it is trained on, in optimizer steps
    bool on_policy;           // n_behind 0 and k 1
};
/* n_row: usable lines of the dataset. */
MUST_USE bool run_plan_make(struct run_plan *p, const struct run_config *c, int64_t n_row, struct error *err);

/* The first item that no batch up to optimizer step `step` has taken, if the sizes of p were in force from the beginning and no
 * group was filtered out; rounded up to whole rollout steps. With filtering, more items than that had been taken. */
int64_t run_plan_item_after(const struct run_plan *p, int64_t step);

/* The directory with the run's tokenizer and chat template: tokenizer_path, else the model's. */
const char *run_config_tokenizer(const struct run_config *c);

/* Prompts that a rollout step samples: inference_batch_size x producers, and over_sample_rate of that more. */
int64_t run_config_opened(const struct run_config *c);

/* Hosts that the trainers are on: with trainers_per_node more than the head's, each with as many, the last perhaps with fewer. */
int64_t run_config_n_host(const struct run_config *c);
/* Trainers on the host with trainer first; and on this host. */
int64_t run_config_trainers_at(const struct run_config *c, int64_t first);
int64_t run_config_trainers_here(const struct run_config *c);

/* What each device of this host does, by its position in the list of devices: the first of them train (run_config_trainers_here). With placement shared the
 * first num_inferencer sample; with apart, those after the trainers. These have a worker each. After them come, producer by producer, the
 * further devices that a producer's worker drives, with producer_tensor_parallel_size above 1; and at last, trainer by trainer, those of
 * the trainers, with run_config_trainer_devices above 1. A trainer that samples takes its producer's first. */
struct run_part {
    int64_t rank;             // its index among the trainers; -1: it does not train
    int64_t producer;         // its index among the producers; -1: it does not sample
    int64_t helps;            // the producer that samples on it, too, and no worker is its own; -1: none
    int64_t helps_trainer;    // the same of a trainer
};
static inline bool run_part_has_worker(const struct run_part *part)
{
    return part->helps < 0 && part->helps_trainer < 0;
}
/* Devices that a trainer computes on: tensor_parallel_size x pipeline_parallel_size. */
int64_t run_config_trainer_devices(const struct run_config *c);
/* Those that the trainers on the host with trainer first have together. */
int64_t run_config_devices_at(const struct run_config *c, int64_t first);
int64_t run_config_n_device(const struct run_config *c);    // devices that the counts and the placement need
int64_t run_config_n_worker(const struct run_config *c);    // those with a worker
/* The name of a producer's further device k, 0 <= k < producer_tensor_parallel_size - 1. */
void run_config_helper(const struct run_config *c, int64_t producer, int64_t k, char *out, size_t size);
/* The name of a further device of a trainer of this host, by its rank, 0 <= k < run_config_trainer_devices - 1. */
void run_config_trainer_helper(const struct run_config *c, int64_t rank, int64_t k, char *out, size_t size);
/* The parts in which all of the run's models sum over heads and over columns of the MLP (model_parts_set): sum_parts, or what suits
 * tensor_parallel_size and producer_tensor_parallel_size. 0: the device's own order. */
int run_config_sum_parts(const struct run_config *c);
MUST_USE bool run_config_part(const struct run_config *c, const char *device, struct run_part *part, struct error *err);
/* "trainer 0, producer 0"; returns out. */
const char *run_part_text(const struct run_part *part, char *out, size_t size);
/* What messages call a trainer: "trainer 1 (cuda:1)", or with c NULL "trainer 1"; returns out. */
const char *run_config_trainer(const struct run_config *c, int64_t rank, char *out, size_t size);
/* The file of the run's rollout groups: in rollout_save_dir, or else in RUN/rollouts. False: the path is too long. */
MUST_USE bool run_config_groups_path(const struct run_config *c, const char *run_dir, char *out, size_t size);
/* Must weights be transferred between devices? Not when every producer samples with the current weights of the trainer on its own
 * device. */
bool run_config_travels(const struct run_config *c);
/* May a worker that only samples begin with the next version of the weights while the last samples of the one before still run
 * ('fill_gap')? With auto its device decides (run_room.h). */
bool run_config_gap_possible(const struct run_config *c);
/* Does the first trainer evaluate? With `placement` apart those that only sample do all of it, where they can have the weights of one step. */
bool run_config_first_evaluates(const struct run_config *c);
/* The command of an environment that is a harness (workers/harness); NULL: it is none. */
const char *run_config_harness(const struct run_config *c);
int64_t run_config_sessions(const struct run_config *c);    // programs of a harness at once, with each scorer
/* Does the run train on what environments post (environments), to itself or to another server, and sample nothing itself? */
static inline bool run_config_posted(const struct run_config *c)
{
    return c->environments[0] != 0;
}
/* Are samples drawn by external engines (backend vllm, sglang)? Then the devices after the trainers' are called engine:0, engine:1 ... */
static inline bool run_config_external(const struct run_config *c)
{
    return strcmp(c->backend, "rollcall") != 0;
}
int64_t run_config_n_engine(const struct run_config *c);    // addresses in engine_url
/* The address of a device engine:K, without a slash at its end, into url. False: there is none, or it is longer. */
MUST_USE bool run_config_engine(const struct run_config *c, const char *device, char *url, size_t size);
/* Where posted groups come from, as 'environments' says; e holds copies. */
struct environments {
    char listen[280];                 // HOST:PORT where environments post; "": they post elsewhere, and
    char url[280];                    // batches are fetched from this Atropos API server, without a slash at its end
    char token_file[RUN_TEXT_MAX];    // the bearer token that is wanted, or sent; "": none
};
MUST_USE bool run_config_environments(const struct run_config *c, struct environments *e, struct error *err);
/* Samples of guests ('serve') that are drawn at once; in a run that samples nothing itself as many as it has room for. */
int64_t run_config_serve_samples(const struct run_config *c);
int run_config_zero(const struct run_config *c);                  // zero_stage as a number; -1: auto
const char *run_config_collective(const struct run_config *c);    // the kind of kernels/collective/collective.h
bool run_config_apart(const struct run_config *c);                // it carries bytes alone: no trainer reads another's memory
bool run_config_saves_together(const struct run_config *c);       // so that each brings its shards to the first one for a checkpoint

/* One evaluation set as eval_dataset names it. */
struct eval_set {
    char name[64];
    char path[RUN_TEXT_MAX];
    double temperature;    // 0: greedy
    double top_p;
    int64_t max_new_tokens;
    int64_t n;                                                                   // samples per prompt
    int64_t limit;                                                               // rows to use, from the first; 0: all
    char prompt_column[64], answer_column[64], prompt_template[RUN_TEXT_MAX];    // its own, else the run's
};
#define EVAL_SET_MAX 16
#define EVAL_ROW_MAX 64    // results of an evaluation: of each set, and of its pass@k
/* The sets in the order they are named; returns how many, or -1 with err. */
int run_config_eval_sets(const struct run_config *c, struct eval_set out[EVAL_SET_MAX], struct error *err);
#define EVAL_K_MAX 24    // values of k that are reported
/* The values of k reported for n samples: 1, 2, 4 ... and n; returns how many (at most EVAL_K_MAX). */
int eval_ks(int64_t n, int64_t k[EVAL_K_MAX]);
/* The name of a set's pass@k, "SET/pass_at_4", in 64 bytes; false: it does not fit. */
bool eval_pass_name(char out[64], const char *set, int64_t k);
