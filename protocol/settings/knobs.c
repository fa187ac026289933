#include "protocol/settings/knobs.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/json_text.h"
#include "protocol/wire/message.h"

#define AT(field) .offset = offsetof(struct run_config, field), .size = sizeof(((struct run_config *)0)->field)
#define BIG KNOB_UNBOUNDED
#define NO_EFFECT(why) .no_effect = why, .help = "accepted, without effect: " why

// clang-format off
const struct knob knobs[] = {
    { "name", "run_name", "n", "run", KNOB_TEXT, "", AT(name), .def = "", .help = "name of the run's directory; unset: a free name is chosen" },
    { "project", "project_name", "p", "run", KNOB_TEXT, "", AT(project), .def = "GRPO", .help = "project name: wandb's, and a folder in eval_save_dir" },
    { "model", NULL, "m", "run", KNOB_PATH, "", AT(model), .def = "", .help = "model directory, .gguf file, or org/name in the Hugging Face cache" },
    { "tokenizer_path", NULL, NULL, "run", KNOB_PATH, "", AT(tokenizer_path), .def = "", .help = "take tokenizer and chat template from this directory (or org/name) in place of the model's; checkpoints keep them" },
    { "checkpoint_path", NULL, "cp", "run", KNOB_PATH, "", AT(checkpoint_path), .def = "", .help = "start this new run from a saved checkpoint" },
    { "seed", NULL, NULL, "run", KNOB_I64, "", 0, BIG, AT(seed), .def = "1", .help = "fixes prompt order and all sampling" },
    { "max_steps", NULL, NULL, "run", KNOB_I64, "step", 0, BIG, AT(max_steps), .def = "0", .applies = APPLY_NEXT_STEP, .help = "stop after this many optimizer steps; 0: after num_episodes" },
    { "max_hours", NULL, NULL, "run", KNOB_F64, "h", 0, 1e6, AT(max_hours), .def = "0", .applies = APPLY_NOW, .help = "end the run when it has gone for this long: the step that is being made is finished, and the weights are saved and evaluated as at any end. Time before a resume counts, time between does not; 0: without a limit" },
    { "num_episodes", NULL, "e", "run", KNOB_I64, "", 1, 1e6, AT(num_episodes), .def = "1", .help = "passes over the dataset; the last rollout step is filled up from the next one" },
    { "dtype", NULL, NULL, "run", KNOB_TEXT, "", .choices = "fp32|bf16|auto", AT(dtype), .def = "auto", .help = "weights and activations; auto: fp32 on CPUs, bf16 on GPUs" },
    { "devices", NULL, NULL, "run", KNOB_TEXT, "", AT(devices), .def = "auto", .help = "devices to use, e.g. cuda:0,cuda:1 or cpu:0" },
    { "weights", NULL, NULL, "run", KNOB_TEXT, "", .choices = "auto|files|copy|nccl", AT(weights), .def = "auto", .help = "how weights get to samplers on other devices: nccl (broadcast between GPUs), copy (from the trainer's memory, GPUs or CPUs of one host), files; auto: between GPUs nccl, or copy without it; otherwise files" },
    { "placement", NULL, NULL, "run", KNOB_TEXT, "", .choices = "shared|apart", AT(placement), .def = "shared", .help = "shared: each device generates and trains; apart: trainers and producers have separate devices" },
    { "threads", NULL, NULL, "run", KNOB_I64, "", 0, 256, AT(threads), .def = "0", .help = "threads of a CPU device; 0: its share of the cores" },

    { "dataset", NULL, "d", "data", KNOB_PATH, "", AT(dataset), .def = "data.jsonl", .help = "training prompts: a file (JSON lines, a JSON array, CSV or Parquet), a folder, a pattern in quotes, or ORG/NAME[:CONFIG][:SPLIT] in the Hugging Face cache ('rollcall pull --dataset' gets it)" },
    { "eval_dataset", NULL, "ed", "data", KNOB_JSON, "", AT(eval_dataset), .def = "", .help = "evaluation sets: {\"NAME\": \"FILE\"} or {\"NAME\": {\"path\":…, \"temperature\":…, \"top_p\":…, \"max_new_tokens\":…, \"n\":…, \"limit\":…, \"prompt_column\":…, \"answer_column\":…, \"prompt_template\":…}}; FILE as in 'dataset'" },
    { "prompt_column", NULL, NULL, "data", KNOB_TEXT, "", AT(prompt_column), .def = "", .help = "take the prompt from this column: a text, or messages; without it the layout is recognised ('--dry-run' says which)" },
    { "answer_column", NULL, NULL, "data", KNOB_TEXT, "", AT(answer_column), .def = "", .help = "take the answer from this column (a part of one: reward_model.ground_truth); of a text with #### in it, what comes after; without it the layout is recognised" },
    { "prompt_template", NULL, NULL, "data", KNOB_TEXT, "", AT(prompt_template), .def = "", .help = "the prompt's text, with columns in braces: \"{question}\\nThink step by step.\"; {{ and }} are braces" },
    { "long_prompt", NULL, NULL, "data", KNOB_TEXT, "", .choices = "drop|cut_left", AT(long_prompt), .def = "drop", .help = "what happens to a prompt longer than max_prompt_tokens; counted in the metrics" },
    { "max_prompt_tokens", NULL, "mpt", "data", KNOB_I64, "tok", 1, 1 << 20, AT(max_prompt_tokens), .def = "512", .help = "longest prompt, in tokens" },
    { "curriculum_levels", NULL, NULL, "data", KNOB_I64, "", 1, CURRICULUM_LEVELS_MAX, AT(curriculum_levels), .def = "1", .help = "levels of difficulty, 0 to this less 1: prompts are of the level that the share of right answers has led to (rows by their curriculum_column, an environment by the row's \"level\"); 1: no curriculum" },
    { "curriculum_start", NULL, NULL, "data", KNOB_I64, "", 0, CURRICULUM_LEVELS_MAX - 1, AT(curriculum_start), .def = "0", .help = "the level that the run begins with" },
    { "curriculum_pass_rate", NULL, NULL, "data", KNOB_F64, "", 0, 1, .above_min = true, AT(curriculum_pass_rate), .def = "0.8", .applies = APPLY_NEXT_ROLLOUT, .help = "the next level follows when at least this share of a level's answers is right" },
    { "curriculum_easier_rate", NULL, NULL, "data", KNOB_F64, "", 0, 1, AT(curriculum_easier_rate), .def = "0", .applies = APPLY_NEXT_ROLLOUT, .help = "the level before follows when at most this share is right; 0: it never becomes easier" },
    { "curriculum_groups", NULL, NULL, "data", KNOB_I64, "group", 1, 1e6, AT(curriculum_groups), .def = "64", .applies = APPLY_NEXT_ROLLOUT, .help = "groups of a level, at least, whose answers give that share; then counting begins again" },
    { "curriculum_column", NULL, NULL, "data", KNOB_TEXT, "", AT(curriculum_column), .def = "level", .help = "column of the data with the row's level, a whole number; a row without one is of every level" },
    { "shuffle", NULL, NULL, "data", KNOB_BOOL, "", AT(shuffle), .def = "true", .help = "shuffle the prompts again in each episode" },

    { "num_trainers", NULL, "t", "workers", KNOB_I64, "", 1, 64, AT(num_trainers), .def = "1", .help = "trainers (data parallel); ColossalChat's default is 2" },
    { "trainers_per_node", NULL, NULL, "workers", KNOB_I64, "", 0, 64, AT(trainers_per_node), .def = "0", .help = "trainers on each machine: the first ones on the head's, and as many on each node that joins ('listen') with devices enough for them, until there are num_trainers; 0: all are on the head's machine. All devices of a trainer (tensor_parallel_size x pipeline_parallel_size) are on one machine. They exchange bytes over TCP from CPU to CPU, by NCCL between GPUs, unencrypted. The weights are the same bytes" },
    { "num_inferencer", "num_producers", "i", "workers", KNOB_I64, "", 1, 64, AT(num_inferencer), .def = "1", .help = "producers of rollouts; ColossalChat's default is 2" },
    { "tensor_parallel_size", "tp_size", "tp", "workers", KNOB_I64, "", 1, 8, AT(tensor_parallel_size), .def = "1", .help = "devices (1, 2, 4 or 8) that each trainer, or each stage of its pipeline, computes on: each has its part of the attention heads, of the MLP and of the vocabulary, and of these the gradient and the optimizer's state. Only with the optimizer adamw, and heads of keys and values that can be shared out. A trainer's further devices are a producer's on its own device, or the last of 'devices', trainer by trainer. The first device keeps a whole copy of the weights, too, only where it samples with them alone. The weights are the same bytes, see sum_parts" },
    { "pipeline_parallel_size", "pp_size", "pp", "workers", KNOB_I64, "", 1, 8, AT(pipeline_parallel_size), .def = "1", .help = "stages (1 to 8) of layers that each trainer computes in as a pipeline: each is a device, or tensor_parallel_size of them, with some of the layers in a row, and of these the weights, gradient and the optimizer's state; at most 8 devices in all. They work on several micro-batches at a time (1F1B): with m micro-batches a step, N - 1 of m + N - 1 turns are idle. With num_trainers M there are M such pipelines. Only with the optimizer adamw (or, with tensor_parallel_size 1, adamw_8bit), and as many layers. The further devices and the whole copy as for tensor_parallel_size. The weights are the same bytes" },
    { "sequence_parallel_size", "sp_size", NULL, "workers", KNOB_I64, "", 1, 64, AT(sequence_parallel_size), .def = "1", .help = "only 1: a sequence is computed whole; recompute_full and a smaller token_budget leave room for long ones" },
    { "enable_sequence_parallelism", NULL, NULL, "workers", KNOB_BOOL, "", AT(enable_sequence_parallelism), .def = "false", .help = "only false: a trainer's devices have whole norms and residuals of every token" },
    { "zero_stage", NULL, "zero", "workers", KNOB_TEXT, "", .choices = "auto|0|1|2|3", AT(zero_stage), .def = "auto", .help = "what each of several trainers keeps of its own shards only (ZeRO): 0: nothing, 1: masters and moments, 2: gradients too, 3: weights too; auto: 1, or the next one that has room. The weights are the same bytes" },
    { "collective", NULL, NULL, "workers", KNOB_TEXT, "", .choices = "auto|ipc|local|tcp|nccl", AT(collective), .def = "auto", .help = "how several trainers exchange gradients and weights. ipc: in each other's memory; auto: the same, or local where they cannot reach it; local: through host memory; tcp: over sockets, between CPUs; nccl: bytes by NCCL, between GPUs. The weights are the same bytes" },
    { "producer_tensor_parallel_size", NULL, "ptp", "workers", KNOB_I64, "", 1, 8, AT(producer_tensor_parallel_size), .def = "1", .help = "devices (1, 2, 4 or 8) that a producer samples on: each has a part of the attention heads, of the MLP and of the vocabulary. A producer's further devices come in 'devices' after those with a worker. Other nodes sample with one device each. The samples are the same bits, see sum_parts" },
    { "sum_parts", NULL, NULL, "workers", KNOB_I64, "", 0, 8, AT(sum_parts), .def = "0", .help = "parts (1, 2, 4 or 8) in which attention's and the MLP's outputs are summed, as one fixed tree, by samplers and trainers alike. Runs with the same number give the same bits with any tensor_parallel_size and producer_tensor_parallel_size up to it. 1: in the device's own order; 0: 4 with tensor parallelism (8 on 8 devices), else 1" },
    { "ray_dir", NULL, NULL, "workers", KNOB_TEXT, "", AT(ray_dir), .def = "", NO_EFFECT("there is no Ray; 'rollcall train' starts the processes itself") },
    { "data_actor_buffer_size_limit", NULL, "cbsl", "workers", KNOB_I64, "group", -1, BIG, AT(data_actor_buffer_size_limit), .def = "-1", NO_EFFECT("'n_behind' bounds how far generation runs ahead, and with 'free_running' 'max_staleness'; what waits is on the disk") },
    { "max_length", NULL, NULL, "workers", KNOB_I64, "tok", 0, BIG, AT(max_length), .def = "0", NO_EFFECT("'max_prompt_tokens' and 'max_new_tokens' bound a sequence") },
    { "num_minibatch_during_rollout", NULL, NULL, "workers", KNOB_I64, "", 0, BIG, AT(num_minibatch_during_rollout), .def = "0", NO_EFFECT("ColossalChat does not use it either; 'inference_microbatch_size' bounds what a producer holds") },
    { "master_address", "master_addr", NULL, "workers", KNOB_TEXT, "", AT(master_address), .def = "", NO_EFFECT("processes on one host meet in the run's directory; 'listen' accepts other nodes") },
    { "master_port", NULL, NULL, "workers", KNOB_I64, "", 1, 65535, AT(master_port), .def = "29506", NO_EFFECT("processes on one host meet in the run's directory; 'listen' accepts other nodes") },
    { "trainer_rank", "rank", NULL, "workers", KNOB_I64, "", 0, BIG, AT(trainer_rank), .def = "0", NO_EFFECT("'rollcall train' starts the trainers itself and numbers them") },
    { "train_dataset_size", NULL, NULL, "workers", KNOB_I64, "", 0, BIG, AT(train_dataset_size), .def = "0", NO_EFFECT("the rows of 'dataset' are counted") },
    { "listen", NULL, NULL, "workers", KNOB_TEXT, "", AT(listen), .def = "", .help = "accept other nodes at HOST:PORT ('rollcall agent --join', with the token in RUN/sock/join); unset: none" },
    { "listen_lent", NULL, NULL, "workers", KNOB_TEXT, "", AT(listen_lent), .def = "", .help = "accept nodes at this HOST:PORT, too, that may sample and no more, with the token in RUN/sock/join-lent: a machine that is lent cannot send commands, train, or read rollouts and events; needs 'listen'" },
    { "hosts", NULL, NULL, "workers", KNOB_TEXT, "", AT(hosts), .def = "", .help = "start a node on each of these machines over ssh, which must not ask for a password: HOST, USER@HOST or HOST:DEVICES (devices there, 1), with commas between them; rollcall must be there at the same path. 'listen' is then 0.0.0.0:29506 unless set" },
    { "backend", NULL, "b", "workers", KNOB_TEXT, "", .choices = "rollcall|vllm|sglang|transformers", AT(backend), .def = "rollcall", .help = "who draws the samples: rollcall itself, or the engines at 'engine_url'; without an address, and for transformers, it is rollcall" },
    { "engine_url", NULL, NULL, "workers", KNOB_TEXT, "", AT(engine_url), .def = "", .help = "backend vllm or sglang: the engines' addresses, http://HOST:PORT, with commas between them; each is a producer, and gets each version of the weights as a directory under RUN/engine" },
    { "engine_token_file", NULL, NULL, "workers", KNOB_PATH, "", AT(engine_token_file), .def = "", .help = "send the bearer token in this file to the engines" },
    { "engine_timeout_s", NULL, NULL, "workers", KNOB_F64, "s", 0.001, 86400, AT(engine_timeout_s), .def = "600", .help = "time limit of an engine's answer to one request, which is all samples of a prompt" },
    { "engine_patience_s", NULL, NULL, "workers", KNOB_F64, "s", 0.001, 86400, AT(engine_patience_s), .def = "600", .help = "how long an engine may be away (not reachable, answering 5xx, or not at all) before the run fails; meanwhile it is asked again. With 'environments': how long a server that they ask may be without the newest weights" },
    { "engine_helper", NULL, NULL, "workers", KNOB_TEXT, "", AT(engine_helper), .def = "", .help = "a command that gives the engines a model's weights, where they cannot read RUN/engine or have a faster way: JSON lines as for programs of rewards, {\"id\", \"url\", \"dir\", \"version\"} answered by {\"id\", \"ok\": true} or {\"id\", \"error\"}; examples/engines/vllm_weights.py is vLLM's NCCL transfer" },
    { "publish_timeout_s", NULL, NULL, "workers", KNOB_F64, "s", 0.001, 86400, AT(publish_timeout_s), .def = "60", .help = "how long a trainer waits for producers to take new weights (weights copy or nccl), and they for its answer; then it is decided again who gets what" },
    { "ranks_timeout_s", NULL, NULL, "workers", KNOB_F64, "s", 0.001, 864000, AT(ranks_timeout_s), .def = "1800", .help = "how long trainers wait for each other before all return to the last checkpoint" },
    { "join_timeout_s", NULL, NULL, "workers", KNOB_F64, "s", 0, 864000, .least = 0.001, AT(join_timeout_s), .def = "1800", .applies = APPLY_NOW, .help = "how long the run waits for a node whose trainers it needs, at the start or after one was lost, before it fails; 0: without a limit" },
    { "score_timeout_s", NULL, NULL, "workers", KNOB_F64, "s", 0.001, 86400, AT(score_timeout_s), .def = "120", .help = "how long a producer waits for the scores of a group before it asks again; after six times the samples are left out" },
    { "n_behind", NULL, "nb", "workers", KNOB_I64, "rollout step", 0, 8, AT(n_behind), .def = "0", .help = "rollout steps that generation may run ahead of training" },
    { "fill_gap", NULL, NULL, "workers", KNOB_TEXT, "", .choices = "auto|off|on", AT(fill_gap), .def = "auto", .help = "when fewer than half of a rollout step's samples are left, begin with the next rollout step's, whose weights may be there already with 'n_behind' above 0: a producer that does not train has both versions in work until the older one is done. Tokens and log-probs are the same bits. It takes a second copy of the weights and of keys and values there, and room for one more version at the first trainer. auto: on GPUs with n_behind above 1, where they fit beside all else; with 1 the trainer waits for the very samples that are left, and on CPUs it gains nothing. Not with producer_tensor_parallel_size above 1, an environment or engines elsewhere, nor in the producer that answers 'serve'" },
    { "free_running", NULL, NULL, "workers", KNOB_BOOL, "", AT(free_running), .def = "false", .help = "producers never wait: new weights reach them in the middle of samples, and batches form in order of arrival; faster on long tails, but not repeatable" },
    { "max_staleness", NULL, NULL, "workers", KNOB_I64, "step", 1, 1000, AT(max_staleness), .def = "4", .help = "free_running: most optimizer steps between a group's first token and its training; older groups are left out" },

    { "inference_batch_size", NULL, "ibs", "batch sizes", KNOB_I64, "prompt", 1, 1 << 20, AT(inference_batch_size), .def = "64", .applies = APPLY_NEXT_ROLLOUT, .help = "prompts per producer in a rollout step" },
    { "inference_microbatch_size", NULL, "imbs", "batch sizes", KNOB_I64, "prompt", 1, 1 << 20, AT(inference_microbatch_size), .def = "8", .applies = APPLY_NEXT_ROLLOUT, .help = "prompts a producer holds at a time; cannot be raised above its initial value during the run" },
    { "train_batch_size", NULL, "tbs", "batch sizes", KNOB_I64, "prompt", 1, 1 << 20, AT(train_batch_size), .def = "32", .applies = APPLY_NEXT_STEP, .help = "prompts per trainer in an optimizer step" },
    { "train_minibatch_size", "minibatch_size", "tMbs", "batch sizes", KNOB_I64, "prompt", 1, 1 << 20, AT(train_minibatch_size), .def = "8", NO_EFFECT("the gradient is the mean over the whole optimizer step, however it is split; 'train_microbatch_size' or 'token_budget' sets the size of one forward and backward pass") },
    { "train_microbatch_size", NULL, "tmbs", "batch sizes", KNOB_I64, "sample", 1, 1 << 20, AT(train_microbatch_size), .def = "2", .applies = APPLY_NEXT_STEP, .help = "one forward and backward pass has room for this many of the longest samples (max_prompt_tokens + max_new_tokens); shorter samples are packed, so more of them fit" },
    { "microbatch_size", NULL, NULL, "batch sizes", KNOB_I64, "sample", 0, 1 << 20, AT(microbatch_size), .def = "0", NO_EFFECT("what goes through the stages of a pipeline at a time is a micro-batch as 'train_microbatch_size' or 'token_budget' cuts it") },
    { "token_budget", NULL, NULL, "batch sizes", KNOB_I64, "tok", 0, 1 << 24, AT(token_budget), .def = "0", .applies = APPLY_NEXT_STEP, .help = "tokens packed into one forward and backward pass; 0: train_microbatch_size decides. Cannot be raised above its initial value during the run" },
    { "grad_group", NULL, NULL, "batch sizes", KNOB_I64, "micro-batch", 1, 1024, AT(grad_group), .def = "1", .help = "micro-batches in a row that one trainer runs, and adds up, before it sends their gradient to the others: with G of them a Gth of the bytes is sent, and with fewer than G for each trainer some trainers stay idle. Runs with the same number end in the same bytes, on any number of trainers and machines. Above 1 each trainer has the whole gradient in memory at any zero_stage, and a single trainer has two" },

    { "num_generations", NULL, "g", "sampling", KNOB_I64, "sample", 2, 1024, AT(num_generations), .def = "8", .applies = APPLY_NEXT_ROLLOUT, .help = "completions for each prompt (group size)" },
    { "temperature", NULL, "temp", "sampling", KNOB_F64, "", 0, 100, .above_min = true, AT(temperature), .def = "1.0", .applies = APPLY_NEXT_ROLLOUT, .help = "sampling temperature" },
    { "temperature_end", NULL, NULL, "sampling", KNOB_F64, "", 0, 100, AT(temperature_end), .def = "0", .help = "anneal the sampling temperature to this over temperature_steps; each sample is trained at its own. 0: it stays" },
    { "temperature_steps", NULL, NULL, "sampling", KNOB_I64, "rollout step", 1, BIG, AT(temperature_steps), .def = "100", .help = "rollout steps until temperature_end is reached" },
    { "top_k", NULL, "topk", "sampling", KNOB_I64, "", 0, 1 << 20, AT(top_k), .def = "0", .applies = APPLY_NEXT_ROLLOUT, .help = "sample among the k likeliest tokens; 0: all" },
    { "top_p", NULL, "topp", "sampling", KNOB_F64, "", 0, 1, .above_min = true, AT(top_p), .def = "1.0", .applies = APPLY_NEXT_ROLLOUT, .help = "sample among the likeliest tokens that hold this much probability" },
    { "min_p", NULL, NULL, "sampling", KNOB_F64, "", 0, 1, AT(min_p), .def = "0", .applies = APPLY_NEXT_ROLLOUT, .help = "sample among tokens at least this likely relative to the likeliest" },
    { "max_new_tokens", NULL, "mnt", "sampling", KNOB_I64, "tok", 1, 1 << 20, AT(max_new_tokens), .def = "3584", .applies = APPLY_NEXT_ROLLOUT, .help = "longest completion; cannot be raised above its initial value during the run" },
    { "min_new_tokens", NULL, NULL, "sampling", KNOB_I64, "tok", 0, 1 << 20, AT(min_new_tokens), .def = "0", .applies = APPLY_NEXT_ROLLOUT, .help = "until a sample has this many tokens, no end token is drawn and no stop string ends it; log-probs stay those of all tokens. 0: off. Evaluations do without" },
    { "max_new_tokens_start", NULL, NULL, "sampling", KNOB_I64, "tok", 0, 1 << 20, AT(max_new_tokens_start), .def = "0", .help = "begin with completions of at most this many tokens, and let them grow to max_new_tokens over max_new_tokens_steps (a curriculum of lengths). 0: max_new_tokens from the start" },
    { "max_new_tokens_steps", NULL, NULL, "sampling", KNOB_I64, "rollout step", 1, BIG, AT(max_new_tokens_steps), .def = "100", .help = "rollout steps until max_new_tokens is reached" },
    { "over_sample_rate", NULL, NULL, "sampling", KNOB_F64, "", 0, 8, .least = 1e-6, AT(over_sample_rate), .def = "0", .help = "sample this share of prompts more than a rollout step needs, take the groups whose longest sample is shortest, and stop the others as soon as they are longer. It favours short answers; the stopped prompts come again in the next episode. 0: none" },
    { "speculate", NULL, NULL, "sampling", KNOB_TEXT, "", .choices = "auto|off|on", AT(speculate), .def = "auto", .help = "speculative decoding: when few samples run, guess their next tokens from the prompt and from what the group has said so far, and run the guesses along. Tokens and log-probs are the same bits; auto: while it is quicker" },
    { "system_prompt", NULL, "s", "sampling", KNOB_TEXT, "", AT(system_prompt), .def = "", .help = "system prompt; unset: the reward type's own; 'none': no system prompt" },
    { "ignore_eos", NULL, NULL, "sampling", KNOB_BOOL, "", AT(ignore_eos), .def = "false", .help = "rollouts never stop before max_new_tokens, and that does not count as cut (for profiling); evaluations stop as ever" },

    { "algo", NULL, "a", "algorithm", KNOB_TEXT, "", .choices = "GRPO|DAPO|RLOO|REINFORCE_PPB|DR_GRPO|GSPO|CISPO|SAPO|LUSPO|GMPO|VESPO|DPPO_TV|DPPO_KL|OPO|MAXRL|GRPO_PASSK|REINFORCE_PP", AT(algo), .def = "GRPO", .help = "sets what follows as the algorithm has it, where nothing else is said" },
    { "preset", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "none|open_instruct|atropos|dr_grpo|gspo|cispo|trl|verl|openrlhf", AT(preset), .def = "none", .help = "defaults of that origin: algorithm, optimizer and sizes, where nothing else is said" },
    { "advantages", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "deviation|deviation_population|centered|leave_one_out|batch|deviation_batch|length_weighted|over_mean|best|whitened", AT(advantages), .def = "deviation", .help = "reward minus the group's mean, over its deviation (of n - 1, or of n), as it is (centered; DR_GRPO), against the mean of the others (RLOO), normalised over the batch's tokens (REINFORCE_PPB), or over the deviation of the batch's rewards (deviation_batch); minus the mean of the group's tokens (length_weighted; OPO); minus the mean, over the mean (over_mean; MAXRL); of the best alone, minus the second (best; GRPO_PASSK); or the reward, whitened over the batch's tokens (whitened; REINFORCE_PP)" },
    { "ratio_level", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "token|sequence", AT(ratio_level), .def = "token", .help = "importance ratio of each token, or one of the whole response: the geometric mean (GSPO)" },
    { "clip_form", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "ppo|cispo|atropos|sapo|gpg|gmpo|vespo|dppo_tv|dppo_kl|dro", AT(clip_form), .def = "ppo", .help = "ppo: clipped tokens get no gradient; cispo: the ratio is bounded and every token keeps one; atropos: as its example trainer, for comparison; sapo: a soft gate in place of a clip; gpg: no ratio; gmpo: the geometric mean of clipped ratios; vespo: a soft weight of the whole response; dppo_tv, dppo_kl: bounds on how far a probability moves; dro: a quadratic penalty" },
    { "kl_coeff", "beta", "kl", "algorithm", KNOB_F64, "", 0, 100, AT(beta), .def = "0.01", .applies = APPLY_NEXT_STEP, .help = "weight of the KL to the frozen reference model; 0 from the start: no reference model is loaded (DAPO: 0)" },
    { "clip_eps_low", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1, AT(clip_eps_low), .def = "0.2", .applies = APPLY_NEXT_STEP, .help = "the ratio is clipped below 1 minus this" },
    { "clip_eps_high", NULL, NULL, "algorithm", KNOB_F64, "", 0, 100, AT(clip_eps_high), .def = "0.2", .applies = APPLY_NEXT_STEP, .help = "the ratio is clipped above 1 plus this (DAPO: 0.28)" },
    { "clip_dual", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e6, .least = 1, AT(clip_dual), .def = "0", .help = "dual clip of clip_form ppo: where the advantage is below 0 the ratio counts at most this much, and a token beyond gets no gradient (verl's clip_ratio_c, there 3; TRL's delta). With dppo_tv and dppo_kl the most that a ratio weighs. 0: no such bound" },
    { "sapo_temperature_pos", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, .above_min = true, AT(sapo_temperature_pos), .def = "1.0", .help = "clip_form sapo: how soon its gate closes where the advantage is above 0" },
    { "sapo_temperature_neg", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, .above_min = true, AT(sapo_temperature_neg), .def = "1.05", .help = "and where it is not" },
    { "vespo_k_pos", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, AT(vespo_k_pos), .def = "2.0", .help = "clip_form vespo, advantages from 0 on: how soon a response's weight falls where its ratio is below 1" },
    { "vespo_lambda_pos", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, .above_min = true, AT(vespo_lambda_pos), .def = "3.0", .help = "and where it is above" },
    { "vespo_k_neg", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, AT(vespo_k_neg), .def = "3.0", .help = "vespo_k_pos for advantages below 0" },
    { "vespo_lambda_neg", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, .above_min = true, AT(vespo_lambda_neg), .def = "2.0", .help = "vespo_lambda_pos for advantages below 0" },
    { "dro_beta", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, .above_min = true, AT(dro_beta), .def = "0.05", .help = "clip_form dro: weight of its quadratic penalty" },
    { "loss_variation", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "sample_level|token_level|constant", AT(loss_variation), .def = "sample_level", .applies = APPLY_NEXT_STEP, .help = "mean over samples of their token means, mean over all tokens (DAPO, CISPO), or mean over samples of their sums over loss_constant (DR_GRPO)" },
    { "loss_constant", NULL, NULL, "algorithm", KNOB_I64, "tok", 0, 1 << 24, AT(loss_constant), .def = "0", .help = "what loss_variation constant divides a sample's sum by; 0: max_new_tokens" },
    { "kl_estimator", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "k3|k1|k2|k1_ratio|k3_ratio|abs|k3+", AT(kl_estimator), .def = "k3", .help = "form of the penalty; k3_ratio is k3 times the token's ratio, whose gradient is the KL's (DeepSeek-V3.2); k3+ has the value of k3 and the gradient of k2 (verl). open-instruct's 0 to 3 are k1, k2, k3, k1_ratio" },
    { "teacher", NULL, NULL, "algorithm", KNOB_PATH, "", AT(teacher), .def = "", .help = "on-policy distillation: a model directory or org/name with the model's tokenizer, in the reference's place. Each token's advantage gets teacher_coeff times the teacher's log-prob minus the sampler's. 'kl_coeff' is 0 with it" },
    { "teacher_coeff", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, .above_min = true, AT(teacher_coeff), .def = "1.0", .help = "weight of what the teacher says about a token" },
    { "reward_coeff", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e3, AT(reward_coeff), .def = "1.0", .help = "weight of the rewards' advantages beside a teacher; 0: the teacher alone" },
    { "ref_update_steps", "ref_policy_update_freq", NULL, "algorithm", KNOB_I64, "step", 0, BIG, AT(ref_update_steps), .def = "0", .applies = APPLY_NEXT_STEP, .help = "move the reference model towards the policy each time this many optimizer steps are done; checkpoints keep it; 0: it stays as it began" },
    { "ref_update_alpha", "alpha", NULL, "algorithm", KNOB_F64, "", 0, 1, .above_min = true, AT(ref_update_alpha), .def = "0.6", .applies = APPLY_NEXT_STEP, .help = "reference = (1 - alpha) reference + alpha policy (polyak); 1: a copy. In bf16 a share below about 0.01 is lost in rounding" },
    { "update_epochs", NULL, NULL, "algorithm", KNOB_I64, "", 1, 64, AT(update_epochs), .def = "1", .help = "go over the batch of an optimizer step this many times, with an update of the weights each time; the ratio is to the log-probs recorded when sampling" },
    { "update_minibatches", NULL, NULL, "algorithm", KNOB_I64, "", 1, 1024, AT(update_minibatches), .def = "1", .help = "cut that batch into this many parts of whole groups, with an update for each; nothing is left over" },
    { "old_logprobs", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "sampled|current", AT(old_logprobs), .def = "sampled", .help = "the ratio compares with the log-probs recorded when sampling, or with those of the weights at the beginning of the update (then it is 1, and rho_clamp or rho_mask correct)" },
    { "rho_clamp", NULL, NULL, "algorithm", KNOB_RANGE, "", 0, 1e6, AT(rho_clamp), .def = "none", .applies = APPLY_NEXT_STEP, .help = "off-policy correction: weigh by the probability at the beginning of the step over that when sampled, kept in [LOW, HIGH] (truncated importance sampling). With free_running [0, 2]" },
    { "rho_clamp_level", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "token|sequence|geometric", AT(rho_clamp_level), .def = "token", .help = "of each token, of the whole response (product), or its geometric mean" },
    { "rho_mask", NULL, NULL, "algorithm", KNOB_RANGE, "", 0, 1e6, AT(rho_mask), .def = "none", .applies = APPLY_NEXT_STEP, .help = "off-policy correction: no policy loss where that weight is outside [LOW, HIGH]; without rho_clamp and with old_logprobs current it weighs inside (IcePop)" },
    { "rho_mask_level", NULL, NULL, "algorithm", KNOB_TEXT, "", .choices = "token|sequence|geometric|tv|kl", AT(rho_mask_level), .def = "token", .help = "as rho_clamp_level; tv: where the response's mean of |weight - 1| is above HIGH, the tokens that have already moved as their advantage wants; kl: where its mean of -log weight is above HIGH, those of advantages below 0 (off-policy sequence mask)" },
    { "filter_range", NULL, NULL, "algorithm", KNOB_RANGE, "", 0, 1, AT(filter_range), .def = "none", .applies = APPLY_NEXT_STEP, .help = "drop groups whose mean accuracy is not strictly inside [LOW, HIGH] (DAPO: [0.01, 0.99])" },
    { "filter_no_spread", NULL, NULL, "algorithm", KNOB_BOOL, "", AT(filter_no_spread), .def = "false", .applies = APPLY_NEXT_STEP, .help = "drop groups whose rewards are all equal, whatever the reward; with dynamic_batching the batch waits until it is full (active sampling)" },
    { "no_resampling_pass_rate", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1, AT(no_resampling_pass_rate), .def = "0", .help = "a prompt whose group was right at least this often is not sampled again in this run; 0: every prompt comes in every episode" },
    { "dynamic_batching", NULL, NULL, "algorithm", KNOB_BOOL, "", AT(dynamic_batching), .def = "true", .help = "do not count filtered groups: a batch waits until it is full without them" },
    { "filter_truncated_response", NULL, NULL, "algorithm", KNOB_BOOL, "", AT(filter_truncated_response), .def = "false", .applies = APPLY_NEXT_STEP, .help = "cut responses contribute no loss (DAPO: true)" },
    { "soft_over_length_punishment", NULL, NULL, "algorithm", KNOB_BOOL, "", AT(soft_over_length_punishment), .def = "false", .help = "lower rewards near the length limit, DAPO eq. 13 (DAPO: true)" },
    { "cache_length", NULL, NULL, "algorithm", KNOB_I64, "tok", 0, 1 << 20, AT(cache_length), .def = "0", .help = "L_cache of that punishment; 0: the smaller of 1024 and max_new_tokens / 4" },
    { "skip_threshold", NULL, NULL, "algorithm", KNOB_F64, "", 0, 1e9, AT(skip_threshold), .def = "20", .applies = APPLY_NEXT_STEP, .help = "skip a sample whose largest per-token ratio exceeds this; 0: never" },
    { "ppb_as_upstream", NULL, NULL, "algorithm", KNOB_BOOL, "", AT(ppb_as_upstream), .def = "false", .help = "REINFORCE_PPB: multiply by the standard deviation, as ColossalChat's code does, instead of dividing" },
    { "control_shuffle_rewards", NULL, NULL, "algorithm", KNOB_BOOL, "", AT(control_shuffle_rewards), .def = "false", .help = "experiment: shuffle rewards inside the batch; such a run must not learn" },

    { "optimizer", NULL, NULL, "optimizer", KNOB_TEXT, "", .choices = "adamw|adamw_8bit|adafactor", AT(optimizer), .def = "adamw", .help = "adamw: two fp32 moments per parameter; adamw_8bit: two bytes (block-wise, as bitsandbytes); adafactor: a second moment by rows and columns, no first ('zero_stage' 0). '--dry-run' shows the memory" },
    { "train_layer_indices", "train_layers_indices", NULL, "optimizer", KNOB_TEXT, "", AT(train_layer_indices), .def = "", .help = "train only these layers: 20-31, or 0-3,28 (of an adapter, its parts there); embeddings, final norm and head stay too. Unset: everything" },
    { "learning_rate", "lr", "lr", "optimizer", KNOB_F64, "", 0, 1, AT(learning_rate), .def = "1e-6", .applies = APPLY_NEXT_STEP, .help = "AdamW learning rate" },
    { "lr_schedule", NULL, NULL, "optimizer", KNOB_TEXT, "", .choices = "constant|linear|cosine|wsd", AT(lr_schedule), .def = "cosine", .applies = APPLY_NEXT_STEP, .help = "over the run's optimizer steps, after warm-up; held at its end. wsd: constant, and a cosine at the end" },
    { "lr_decay_share", NULL, NULL, "optimizer", KNOB_F64, "", 0, 1, .above_min = true, AT(lr_decay_share), .def = "0.1", .help = "share of the schedule's steps, at its end, in which wsd lets the learning rate fall" },
    { "lr_min_ratio", NULL, NULL, "optimizer", KNOB_F64, "", 0, 1, AT(lr_min_ratio), .def = "0.1", .applies = APPLY_NEXT_STEP, .help = "final learning rate, as a fraction of learning_rate" },
    { "warmup_steps", NULL, NULL, "optimizer", KNOB_I64, "step", 0, BIG, AT(warmup_steps), .def = "0", .applies = APPLY_NEXT_STEP, .help = "steps of linear warm-up" },
    { "weight_decay", NULL, NULL, "optimizer", KNOB_F64, "", 0, 10, AT(weight_decay), .def = "0.01", .applies = APPLY_NEXT_STEP, .help = "decoupled (AdamW), on what weight_decay_on says" },
    { "weight_decay_on", NULL, NULL, "optimizer", KNOB_TEXT, "", .choices = "all|matrices", AT(weight_decay_on), .def = "all", .help = "every tensor, as ColossalAI's HybridAdam, or matrices only: no decay on norms and biases" },
    { "adam_beta1", NULL, NULL, "optimizer", KNOB_F64, "", 0, 0.9999999, AT(adam_beta1), .def = "0.9", .help = "decay of the first moment" },
    { "adam_beta2", NULL, NULL, "optimizer", KNOB_F64, "", 0, 0.9999999, AT(adam_beta2), .def = "0.999", .help = "decay of the second moment" },
    { "adam_eps", NULL, NULL, "optimizer", KNOB_F64, "", 0, 1, .above_min = true, AT(adam_eps), .def = "1e-8", .help = "AdamW's epsilon" },
    { "max_norm", NULL, NULL, "optimizer", KNOB_F64, "", 0, 1e9, AT(max_norm), .def = "1.0", .applies = APPLY_NEXT_STEP, .help = "clip the global gradient norm; 0: never" },
    { "share_prompts", NULL, NULL, "optimizer", KNOB_BOOL, "", AT(share_prompts), .def = "true", .help = "compute the prompt of a group once for all of its samples that a forward and backward pass has, not for each: less work the longer prompts are against answers. Log-probs have the same bits; gradients are equal up to rounding" },
    { "recompute_full", NULL, NULL, "optimizer", KNOB_BOOL, "", AT(recompute_full), .def = "false", .help = "recompute whole blocks in the backward pass: less memory, slower" },
    { "offload_optimizer", NULL, NULL, "optimizer", KNOB_BOOL, "", AT(offload_optimizer), .def = "false", .help = "keep master weights and moments in host memory as far as they do not fit on the GPU; each GPU of a trainer its part of them, and several trainers each their shards, with zero_stage above 0" },

    { "lora_rank", "lora_r", NULL, "adapter", KNOB_I64, "", 0, 1024, AT(lora_rank), .def = "0", .help = "train a low-rank adapter of this rank on the frozen model (LoRA) instead of all weights; 0: all weights" },
    { "lora_alpha", NULL, NULL, "adapter", KNOB_F64, "", 0, 1e6, AT(lora_alpha), .def = "0", .help = "the adapter's products are multiplied by lora_alpha / lora_rank; 0: lora_alpha is twice the rank" },
    { "lora_dropout", NULL, NULL, "adapter", KNOB_F64, "", 0, 1, AT(lora_dropout), .def = "0", .help = "only 0: with dropout the trainer's log-probs would not be the sampler's" },
    { "lora_target_modules", NULL, NULL, "adapter", KNOB_TEXT, "", AT(lora_target_modules), .def = "all-linear", .help = "modules with an adapter, in every layer: a list of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj (Phi-3: qkv_proj and gate_up_proj in place of their parts), or all-linear" },
    { "lora_adapter", NULL, NULL, "adapter", KNOB_PATH, "", AT(lora_adapter), .def = "", .help = "start from this adapter, a directory as PEFT writes it, with its rank, alpha and modules, instead of a new one" },

    { "reward_type", "reward_fn_type", "rt", "reward", KNOB_TEXT, "", AT(reward_type), .def = "think_answer_tags", .help = "think_answer_tags, boxed, math, code, code_share, program:CMD, environment, verify (the verifiers that each row names in 'dataset'), verify:NAME (one for all rows), or a weighted list '0.8*boxed + 0.2*program:CMD'" },
    { "response_format_tags", NULL, NULL, "reward", KNOB_OBJECT, "", AT(response_format_tags), .def = "", .help = "tags of think_answer_tags: {\"think_start\": {\"text\": \"<think>\", \"num_occur\": 1}, \"think_end\": …, \"answer_start\": …, \"answer_end\": …}; a response ends with answer_end" },
    { "verification_reward", NULL, NULL, "reward", KNOB_F64, "", 0, 1e6, .above_min = true, AT(verification_reward), .def = "10", .help = "reward of a verifier's score of 1" },
    { "remap_verifier", NULL, NULL, "reward", KNOB_TEXT, "", AT(remap_verifier), .def = "", .help = "OLD=NEW: rows that name the verifier OLD are verified by NEW" },
    { "format_reward", NULL, NULL, "reward", KNOB_F64, "", 0, 1e6, AT(format_reward), .def = "0", .help = "reward of the format '... </think> <answer>...</answer>', without which verifiers give nothing; 0: the format does not matter" },
    { "additive_format_reward", NULL, NULL, "reward", KNOB_BOOL, "", AT(additive_format_reward), .def = "false", .help = "add format_reward to the verifiers' reward instead" },
    { "non_stop_penalty", NULL, NULL, "reward", KNOB_BOOL, "", AT(non_stop_penalty), .def = "false", .help = "a response that did not end by itself gets non_stop_penalty_value instead of the verifiers' reward" },
    { "non_stop_penalty_value", NULL, NULL, "reward", KNOB_F64, "", -1e6, 1e6, AT(non_stop_penalty_value), .def = "0", .help = "that value" },
    { "only_reward_good_outputs", NULL, NULL, "reward", KNOB_BOOL, "", AT(only_reward_good_outputs), .def = "false", .help = "verifiers reward only responses with a tool call and without a failed one" },
    { "math_symbolic", NULL, NULL, "reward", KNOB_BOOL, "", AT(math_symbolic), .def = "true", .help = "the verifiers math and strict_math also accept what is equal as mathematics, not only as text" },
    { "max_length_verifier_max_length", NULL, NULL, "reward", KNOB_F64, "tok", 1, 1e9, AT(max_length_verifier_max_length), .def = "32768", .help = "the verifiers of length: tokens too many (or too few) that lower the score by 1" },
    { "llm_judge_url", NULL, NULL, "reward", KNOB_TEXT, "", AT(llm_judge_url), .def = "", .help = "the verifiers that ask a model (judge, general-..., rubric): an OpenAI-compatible server, http://HOST:PORT/v1; reward_type judge:URL is the verifier judge with that address" },
    { "llm_judge_model", NULL, NULL, "reward", KNOB_TEXT, "", AT(llm_judge_model), .def = "", .help = "what it calls the model" },
    { "llm_judge_key_file", NULL, NULL, "reward", KNOB_PATH, "", AT(llm_judge_key_file), .def = "", .help = "send the bearer token in this file to it" },
    { "llm_judge_template", NULL, NULL, "reward", KNOB_TEXT, "", AT(llm_judge_template), .def = "", .help = "prompt of the verifier judge, with {input}, {output} and {label}; it must ask for JSON with a SCORE from 0 to 1" },
    { "apply_evolving_rubric_reward", NULL, NULL, "reward", KNOB_BOOL, "", AT(apply_evolving_rubric_reward), .def = "false", .help = "let the rubrics of the verifier rubric grow: after each group the judge writes criteria for what tells its responses apart, and later episodes are judged by them, too" },
    { "max_active_rubrics", NULL, NULL, "reward", KNOB_I64, "", 1, 16, AT(max_active_rubrics), .def = "5", .help = "such criteria of a prompt at a time; those that no longer tell responses apart make room" },
    { "cache_evolving_rubric_data_dir", NULL, NULL, "reward", KNOB_PATH, "", AT(cache_evolving_rubric_data_dir), .def = "", NO_EFFECT("the journal and the rollout file keep what the judge wrote") },
    { "llm_judge_max_tokens", NULL, NULL, "reward", KNOB_I64, "tok", 1, 1 << 20, AT(llm_judge_max_tokens), .def = "2048", .help = "longest answer of the judge" },
    { "llm_judge_max_context_length", NULL, NULL, "reward", KNOB_I64, "tok", 512, 1 << 24, AT(llm_judge_max_context_length), .def = "8192", .help = "its context; what it is shown is cut in the middle to fit" },
    { "llm_judge_temperature", NULL, NULL, "reward", KNOB_F64, "", 0, 2, AT(llm_judge_temperature), .def = "1", .help = "of its answers; criteria of a rubric are judged at 0" },
    { "llm_judge_timeout", NULL, NULL, "reward", KNOB_F64, "s", 0.001, 3600, AT(llm_judge_timeout), .def = "60", .help = "time limit of an answer" },
    { "llm_judge_budget", NULL, NULL, "reward", KNOB_I64, "request", 0, BIG, AT(llm_judge_budget), .def = "0", .help = "most requests of one scorer process, after which samples are left out; 0: no bound" },
    { "code_max_execution_time", NULL, NULL, "reward", KNOB_F64, "s", 0.001, 600, AT(code_max_execution_time), .def = "1", .help = "the verifiers of code: time limit of one test" },
    { "code_pass_rate_reward_threshold", NULL, NULL, "reward", KNOB_F64, "", 0, 1, AT(code_pass_rate_reward_threshold), .def = "0", .help = "the verifiers of code: a smaller share of passed tests scores 0" },
    { "code_apply_perf_penalty", NULL, NULL, "reward", KNOB_BOOL, "", AT(code_apply_perf_penalty), .def = "false", .help = "the verifiers of code: a passed test counts for the share of its time limit that it left" },
    { "code_verifier_api_url", NULL, "cv", "reward", KNOB_TEXT, "", AT(code_verifier_api_url), .def = "", .help = "external verifier for code, or several with commas between them, asked in turn; unset: the local sandbox. 'rollcall scorer --listen' is one" },
    { "code_verifier_key_file", NULL, NULL, "reward", KNOB_PATH, "", AT(code_verifier_key_file), .def = "", .help = "send the bearer token in this file to it" },
    { "reward_timeout_s", NULL, NULL, "reward", KNOB_F64, "s", 0.001, 3600, AT(reward_timeout_s), .def = "10", .help = "time limit for a reward program or an external verifier, and for one test of a code reward" },
    { "scorer_threads", NULL, NULL, "reward", KNOB_I64, "", 0, 256, AT(scorer_threads), .def = "0", .help = "scoring threads; 0: as many as cores" },

    { "environment", NULL, NULL, "environment", KNOB_TEXT, "", AT(environment), .def = "", .help = "program:CMD answers the model's turns, with JSON lines over a pipe; harness:CMD asks the model over HTTP, with OpenAI's client or another one, once for each sample (examples/environments/README.md); unset: one turn" },
    { "environment_reward", NULL, NULL, "environment", KNOB_TEXT, "", .choices = "last|sum", AT(environment_reward), .def = "sum", .help = "a sample's reward of 'reward_type' environment: its last turn's reward, or the sum of all" },
    { "environment_processes", NULL, NULL, "environment", KNOB_I64, "", 0, 256, AT(environment_processes), .def = "0", .help = "copies of the environment's program; 0: as many as scoring threads. With a harness: sessions at once; 0: 64" },
    { "environment_timeout_s", NULL, NULL, "environment", KNOB_F64, "s", 0.001, 3600, AT(environment_timeout_s), .def = "10", .help = "time limit for an answer of the environment" },
    { "session_timeout_s", NULL, NULL, "environment", KNOB_F64, "s", 0.001, 86400, AT(session_timeout_s), .def = "600", .help = "time limit of a harness's session, without the time that its requests take; then its program is killed and its sample left out" },
    { "session_restarts", NULL, NULL, "environment", KNOB_I64, "", 0, 100, AT(session_restarts), .def = "2", .help = "how often a session's program that fails (another exit status than 0, or a signal) is begun again; then its sample is left out" },
    { "max_turns", NULL, NULL, "environment", KNOB_I64, "turn", 1, 1000, AT(max_turns), .def = "8", .help = "turns of the model in a sample, at most; of a harness: requests of a session" },
    { "max_turn_tokens", NULL, NULL, "environment", KNOB_I64, "token", 0, 1e6, AT(max_turn_tokens), .def = "0", .help = "tokens of one turn, at most; 0: what max_new_tokens leaves, which bounds a sample's turns and all that is said between them" },

    { "environments", NULL, NULL, "environment", KNOB_OBJECT, "", AT(environments), .def = "", .help = "{\"listen\": \"HOST:PORT\"}: train on the groups that environments of Atropos post there, instead of sampling; {\"url\": \"http://HOST:PORT\"}: on the batches of that Atropos API server (--atropos-url); also \"token_file\" (needed beyond this host), or \"no_token\": true. Needs 'max_steps'" },
    { "weight_bridge_mode", NULL, NULL, "environment", KNOB_TEXT, "", .choices = "none|shared_vllm|lora_only|lora_restart", AT(weight_bridge_mode), .def = "none", .help = "with 'environments': how the inference servers at 'engine_url', which environments ask, get new weights. none: as a model's directory; lora_only, lora_restart: as an adapter, without a restart (the run trains one); shared_vllm: the weights are in memory once, the run's own server ('serve') computes with the trainer's, or, with 'weight_bridge_file', separate ones do" },
    { "weight_bridge_file", NULL, NULL, "environment", KNOB_PATH, "", AT(weight_bridge_file), .def = "", .help = "with weight_bridge_mode shared_vllm: write here where the first trainer's weights are in memory, for 'rollcall serve --shared-weights FILE' on the same host (the format of Atropos' vllm_bridge_config.json); empty: the run serves itself" },
    { "bridge_interval", "vllm_restart_interval", NULL, "environment", KNOB_I64, "step", 1, BIG, AT(bridge_interval), .def = "1", .help = "optimizer steps between two of those versions" },
    { "serve", NULL, NULL, "serving", KNOB_TEXT, "", AT(serve), .def = "", .help = "answer requests at HOST:PORT with the weights as they are being trained, as 'rollcall serve' does (workers/serve/README.md); unset: not" },
    { "serve_token_file", NULL, NULL, "serving", KNOB_PATH, "", AT(serve_token_file), .def = "", .help = "file with the bearer token that requests must bring; needed beyond this host" },
    { "serve_tls_cert", NULL, NULL, "serving", KNOB_PATH, "", AT(serve_tls_cert), .def = "", .help = "serve HTTPS with the certificate in this file (PEM)" },
    { "serve_tls_key", NULL, NULL, "serving", KNOB_PATH, "", AT(serve_tls_key), .def = "", .help = "and its key (PEM)" },
    { "allowed_hosts", NULL, NULL, "serving", KNOB_TEXT, "", AT(allowed_hosts), .def = "", .help = "more names that requests to 'serve', 'environments' and 'metrics_listen' may ask for, such as a proxy's, between commas: llm.example.org, *.example.org, or * for any; without a token, only addresses, this host's name and names without a dot are answered" },
    { "serve_samples", NULL, NULL, "serving", KNOB_I64, "sample", 0, 4096, AT(serve_samples), .def = "0", .help = "samples of requests that are drawn at once, beside the run's; 0: 16, or as many as there is room for in a run with 'environments'" },

    { "eval_interval", NULL, "ei", "evaluation and saving", KNOB_I64, "step", -1, BIG, AT(eval_interval), .def = "-1", .applies = APPLY_NOW, .help = "optimizer steps between evaluations; 0 or less: none" },
    { "eval_temperature", NULL, NULL, "evaluation and saving", KNOB_F64, "", 0, 100, AT(eval_temperature), .def = "0.6", .applies = APPLY_NOW, .help = "for evaluation sets that set none; 0: greedy" },
    { "eval_top_p", NULL, NULL, "evaluation and saving", KNOB_F64, "", 0, 1, AT(eval_top_p), .def = "0", .applies = APPLY_NOW, .help = "for evaluation sets that set none; 0: top_p" },
    { "eval_max_new_tokens", "eval_response_length", NULL, "evaluation and saving", KNOB_I64, "tok", 0, 1 << 20, AT(eval_max_new_tokens), .def = "0", .applies = APPLY_NOW, .help = "for evaluation sets that set none; 0: max_new_tokens, which is the most" },
    { "eval_at_end", NULL, NULL, "evaluation and saving", KNOB_BOOL, "", AT(eval_at_end), .def = "true", .applies = APPLY_NOW, .help = "evaluate when the run ends" },
    { "save_interval", NULL, "si", "evaluation and saving", KNOB_I64, "step", 0, BIG, AT(save_interval), .def = "100", .applies = APPLY_NOW, .help = "optimizer steps between checkpoints; 0: only at the end" },
    { "save_at_end", NULL, NULL, "evaluation and saving", KNOB_BOOL, "", AT(save_at_end), .def = "true", .applies = APPLY_NOW, .help = "save when the run ends or is stopped; false: it cannot be resumed from there (for measuring)" },
    { "save_at_episode_end", NULL, NULL, "evaluation and saving", KNOB_BOOL, "", AT(save_at_episode_end), .def = "false", .help = "also save after the step that consumes the last prompt of an episode, as ColossalChat does" },
    { "keep_checkpoints", NULL, NULL, "evaluation and saving", KNOB_I64, "", 0, 1e6, AT(keep_checkpoints), .def = "3", .applies = APPLY_NOW, .help = "complete checkpoints kept; 0: all" },
    { "journal_dir", NULL, NULL, "evaluation and saving", KNOB_PATH, "", AT(journal_dir), .def = "", .help = "folder on a disk of this machine for the run's journal, when the run's own folder is on storage that several machines see; a copy as of each checkpoint goes there, from which 'train --resume' on another machine goes on when this one is lost; unset: RUN" },
    { "save_dir", NULL, "sd", "evaluation and saving", KNOB_PATH, "", AT(save_dir), .def = "", .help = "folder for checkpoints; unset: RUN/checkpoints" },
    { "eval_save_dir", NULL, "esd", "evaluation and saving", KNOB_PATH, "", AT(eval_save_dir), .def = "", .help = "folder for evaluation files; unset: RUN/eval" },
    { "rollout_entropy", NULL, NULL, "evaluation and saving", KNOB_BOOL, "", AT(rollout_entropy), .def = "false", .help = "keep the entropy that each token was drawn at with the rollouts: the console colours tokens by it (not from an engine elsewhere)" },
    { "rollout_save_dir", NULL, "rsd", "evaluation and saving", KNOB_PATH, "", AT(rollout_save_dir), .def = "", .help = "folder for rollouts; unset: RUN/rollouts" },
    { "rollout_log_interval", NULL, NULL, "evaluation and saving", KNOB_I64, "step", 0, BIG, AT(rollout_log_interval), .def = "20", .applies = APPLY_NOW, .help = "optimizer steps between readable rollout logs; 0: none" },
    { "enable_profiling", NULL, NULL, "evaluation and saving", KNOB_BOOL, "", AT(enable_profiling), .def = "false", .help = "record each process's phases in logs/NAME.prof and each device's operations in logs/profile-DEVICE.json ('rollcall profile' puts them together for Chrome's trace viewer or Perfetto); makes rollouts of full length, as ignore_eos does" },

    { "view_group", NULL, NULL, "watching", KNOB_TEXT, "", AT(view_group), .def = "", .help = "members of this Unix group may look at the run (rollcall console, ctl status); unset: only you" },
    { "slow_s", NULL, NULL, "watching", KNOB_F64, "s", 0.001, 1e6, AT(slow_s), .def = "3", .applies = APPLY_NOW, .help = "a phase without progress for this long counts as slow" },
    { "stuck_s", NULL, NULL, "watching", KNOB_F64, "s", 0.001, 1e6, AT(stuck_s), .def = "30", .applies = APPLY_NOW, .help = "a phase without progress for this long counts as stuck" },
    { "restart_stuck_s", NULL, NULL, "watching", KNOB_F64, "s", 0, 1e6, .least = 0.001, AT(restart_stuck_s), .def = "0", .applies = APPLY_NOW, .help = "restart a process that has been stuck for this long; 0: never" },
    { "waste_alert", NULL, NULL, "watching", KNOB_I64, "sample", 0, BIG, AT(waste_alert), .def = "512", .applies = APPLY_NOW, .help = "raise an alert when this many samples in a row were left out by the verifier or were in groups outside filter_range; 0: never" },
    { "waste_limit", NULL, NULL, "watching", KNOB_I64, "sample", 0, BIG, AT(waste_limit), .def = "8192", .applies = APPLY_NOW, .help = "fail the run at this many; 0: never. A run that ends without having learned from any sample fails anyway" },
    { "disk_alert_gib", NULL, NULL, "watching", KNOB_F64, "GiB", 0, 1e9, AT(disk_alert_gib), .def = "2", .help = "raise an alert when the disk of the run, its checkpoints or its rollouts has less than this free; 0: never" },
    { "peak_tflops", NULL, NULL, "watching", KNOB_F64, "1e12/s", 0, 1e6, AT(peak_tflops), .def = "0", .help = "floating-point operations a second that a device can do at most, for perf/train_mfu and perf/rollout_mfu; 0: as 'rollcall metrics' has it for the card (bf16), else not known" },
    { "peak_gb_per_s", NULL, NULL, "watching", KNOB_F64, "GB/s", 0, 1e6, AT(peak_gb_per_s), .def = "0", .help = "the same of its memory, for perf/rollout_mbu" },
    { "heartbeat_s", NULL, NULL, "watching", KNOB_F64, "s", 0.01, 5, AT(heartbeat_s), .def = "0.5", .help = "seconds between a process's heartbeats" },
    { "telemetry_s", NULL, NULL, "watching", KNOB_F64, "s", 0.001, 86400, AT(telemetry_s), .def = "15", .help = "seconds between the samples of host and GPUs in the journal" },

    { "wandb", NULL, NULL, "exporters", KNOB_TEXT, "", .choices = "off|online|offline", AT(wandb), .def = "off", .help = "Weights & Biases; off by default, even with a key in the environment" },
    { "wandb_entity", NULL, NULL, "exporters", KNOB_TEXT, "", AT(wandb_entity), .def = "", .help = "team or user; unset: the key's own" },
    { "wandb_base_url", NULL, NULL, "exporters", KNOB_TEXT, "", AT(wandb_base_url), .def = "", .help = "server; unset: WANDB_BASE_URL or the public server" },
    { "wandb_group", "wandb_group_name", NULL, "exporters", KNOB_TEXT, "", AT(wandb_group), .def = "", .help = "group of runs" },
    { "wandb_tags", NULL, NULL, "exporters", KNOB_TEXT, "", AT(wandb_tags), .def = "", .help = "tags, separated by commas" },
    { "wandb_notes", NULL, NULL, "exporters", KNOB_TEXT, "", AT(wandb_notes), .def = "", .help = "notes" },
    { "wandb_ca", NULL, NULL, "exporters", KNOB_PATH, "", AT(wandb_ca), .def = "", .help = "file of CA certificates to trust instead of the system's" },
    { "wandb_completions", NULL, NULL, "exporters", KNOB_BOOL, "", AT(wandb_completions), .def = "false", .help = "also send tables of sampled completions, every rollout_log_interval steps" },
    { "wandb_console", NULL, NULL, "exporters", KNOB_BOOL, "", AT(wandb_console), .def = "false", .help = "also send the controller's log" },
    { "wandb_host", NULL, NULL, "exporters", KNOB_BOOL, "", AT(wandb_host), .def = "false", .help = "also send host and GPU figures" },
    { "alert_webhook_file", NULL, NULL, "exporters", KNOB_PATH, "", AT(alert_webhook_file), .def = "", .help = "send alerts, critical alarms and the run's end to the webhook whose address is in this file (it is a secret): Slack's, or any that takes JSON" },
    { "alert_webhook_format", NULL, NULL, "exporters", KNOB_TEXT, "", .choices = "auto|slack|json", AT(alert_webhook_format), .def = "auto", .help = "of the message; auto: slack for an address of hooks.slack.com, else json: {run, events: [{kind, step, time, text}]}" },
    { "metric_names", NULL, NULL, "exporters", KNOB_TEXT, "", .choices = "rollcall|open_instruct|atropos", AT(metric_names), .def = "rollcall", .help = "what exporters call metrics: names of another system where they mean the same" },
    { "tensorboard", NULL, NULL, "exporters", KNOB_BOOL, "", AT(tensorboard), .def = "false", .help = "write TensorBoard event files into RUN/export/tensorboard" },
    { "metrics_listen", NULL, NULL, "exporters", KNOB_TEXT, "", AT(metrics_listen), .def = "", .help = "serve OpenMetrics at HOST:PORT (/metrics), and the fields of open-instruct's dashboard (/api/status); unset: not served" },
    { "metrics_token_file", NULL, NULL, "exporters", KNOB_PATH, "", AT(metrics_token_file), .def = "", .help = "file with the bearer token that a scrape must bring" },
};
// clang-format on
const int n_knobs = ARRAY_SIZE(knobs);
_Static_assert(ARRAY_SIZE(knobs) <= KNOB_MAX, "KNOB_MAX is too small");

static bool name_same(const char *a, const char *b)
{
    if (!a)
        return false;
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b))
            return false;
    return *a == *b;
}

const struct knob *knob_find(const char *name, struct error *err)
{
    for (int i = 0; i < n_knobs; i++)
        if (name_same(knobs[i].name, name) || name_same(knobs[i].alias, name))
            return &knobs[i];
    const char *best = NULL;
    int best_d = 5;
    for (int i = 0; i < n_knobs; i++) {
        int d = word_distance(knobs[i].name, name);
        if (d < best_d) {
            best_d = d;
            best = knobs[i].name;
        }
    }
    if (best)
        error_set(err, ERR_USAGE, "unknown setting '%s'; did you mean '%s'?", name, best);
    else
        error_set(err, ERR_USAGE, "unknown setting '%s'; 'rollcall train --help' lists them", name);
    return NULL;
}

int knob_choice(const char *name, const char *text)
{
    struct error err;
    const struct knob *k = knob_find(name, &err);
    const char *p = k && k->choices ? k->choices : "";
    for (int i = 0; *p; i++) {
        size_t len = strcspn(p, "|");
        if (strlen(text) == len && strncmp(p, text, len) == 0)
            return i;
        p += len + (p[len] != 0);
    }
    return -1;
}

const char *knob_text(const struct knob *k, const struct run_config *c, struct buf *buf)
{
    const char *at = (const char *)c + k->offset;
    buf_clear(buf);
    knob_types[k->type].print(at, buf);
    return buf_text(buf);
}

const char *knob_bounds_text(const struct knob *k, struct buf *buf)
{
    buf_clear(buf);
    knob_types[k->type].bounds(k, buf);
    return buf_text(buf);
}

void knob_json(const struct knob *k, const struct run_config *c, struct buf *out)
{
    struct buf text = BUF_INIT;
    knob_text(k, c, &text);
    if (knob_types[k->type].json_bare)
        buf_str(out, buf_text(&text));
    else
        json_text_print(out, buf_text(&text), text.len, JSON_TEXT_UTF8);
    buf_release(&text);
}

bool knob_check(const struct knob *k, const char *text, struct error *err)
{
    void *scratch = calloc(1, k->size);
    bool ok = scratch ? knob_types[k->type].read(k, scratch, text, NULL, err)
                      : error_set(err, ERR_NO_MEMORY, "no memory to check '%s'", k->name);
    free(scratch);
    return ok;
}

bool knob_may_change(const struct knob *k, struct error *err)
{
    if (k->no_effect)
        return error_set(err, ERR_REFUSED, "'%s' has no effect: %s", k->name, k->no_effect);
    return knob_is_live(k) || error_set(err, ERR_REFUSED, "'%s' is fixed once a run has begun; start a new run to change it", k->name);
}

/* Memory is taken once, when a process starts. A setting that needs more than the run started with has to wait for a resume. */
static bool start_allows(const struct run_config *start, const struct run_config *next, struct error *err)
{
    const struct {
        const char *name;
        int64_t now, most;
    } rows[] = {
        { "max_new_tokens", next->max_new_tokens, start->max_new_tokens },
        { "inference_microbatch_size", next->inference_microbatch_size, start->inference_microbatch_size },
        { next->token_budget > 0 ? "token_budget" : "train_microbatch_size", run_config_micro_tok(next), run_config_micro_tok_max(start) },
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        if (rows[i].now <= rows[i].most)
            continue;
        if (strcmp(rows[i].name, "train_microbatch_size") == 0)
            return error_set(err, ERR_REFUSED,
                             "'train_microbatch_size' %" PRId64 " means %" PRId64 " tokens, and the run took memory for %" PRId64
                             " when it "
                             "started; stop it and give the new value to 'rollcall train --resume'",
                             next->train_microbatch_size, rows[i].now, rows[i].most);
        return error_set(err, ERR_REFUSED,
                         "'%s' cannot exceed the %" PRId64 " that the run took memory for when it started; stop it and give "
                         "the new value to 'rollcall train --resume'",
                         rows[i].name, rows[i].most);
    }
    if (next->beta > 0 && start->beta == 0)
        return error_set(err, ERR_REFUSED,
                         "'kl_coeff' was 0 when the run started, so it holds no reference model; stop it and give the new "
                         "value to 'rollcall train --resume'");
    return true;
}

bool knobs_propose(const struct run_config *start, const struct run_config *c, const char *const *name, const char *const *value, int n,
                   struct run_config *next, struct error *err)
{
    struct run_config draft = *c;
    for (int i = 0; i < n; i++) {
        const struct knob *k = knob_find(name[i], err);
        if (!k || !knob_may_change(k, err) || !run_config_set(&draft, k->name, value[i], FROM_COMMAND, NULL, err))
            return false;
    }
    /* without notes: values that would be clamped in a run file are refused here, so that the operator says what is meant */
    if (!run_config_finish(&draft, NULL, err) || !start_allows(start, &draft, err))
        return false;
    *next = draft;
    return true;
}

static const struct {
    const char *name;
    size_t offset;
} watch_knobs[] = {
    { "slow_s", offsetof(struct run_config, slow_s) },
    { "stuck_s", offsetof(struct run_config, stuck_s) },
    { "restart_stuck_s", offsetof(struct run_config, restart_stuck_s) },
};

void knobs_watch_write(const struct run_config *c, struct msg_out *m)
{
    for (size_t i = 0; i < ARRAY_SIZE(watch_knobs); i++)
        msg_f64(m, watch_knobs[i].name, *(const double *)(const void *)((const char *)c + watch_knobs[i].offset));
}

void knobs_watch_take(struct run_config *c, const struct mval *map)
{
    for (size_t i = 0; i < ARRAY_SIZE(watch_knobs); i++) {
        double *at = (double *)(void *)((char *)c + watch_knobs[i].offset);
        *at = mval_f64(mval_get(map, watch_knobs[i].name), *at);
    }
}

void knobs_print_docs(struct buf *out)
{
    static const char *const when[] = { "start", "next rollout", "next step", "at once" };
    const char *group = "";
    struct buf b = BUF_INIT;
    for (int i = 0; i < n_knobs; i++) {
        const struct knob *k = &knobs[i];
        if (strcmp(group, k->group) != 0) {
            group = k->group;
            buf_fmt(out, "\n### %s\n\n| setting | flag | default | bounds | changes | meaning |\n|---|---|---|---|---|---|\n", group);
        }
        buf_fmt(out, "| `%s`%s%s%s | `--%s`%s%s%s | `%s` | ", k->name, k->alias ? " (`" : "", k->alias ? k->alias : "",
                k->alias ? "`)" : "", k->name, k->flag ? " `-" : "", k->flag ? k->flag : "", k->flag ? "`" : "", k->def);
        for (const char *p = knob_bounds_text(k, &b); *p; p++)
            *p == '|' ? buf_str(out, "\\|") : buf_char(out, *p);
        buf_fmt(out, "%s%s | %s | ", k->unit[0] ? " " : "", k->unit, when[k->applies]);
        for (const char *p = k->help; *p; p++)
            *p == '|' ? buf_str(out, "\\|") : buf_char(out, *p);
        buf_str(out, " |\n");
    }
    buf_release(&b);
}
