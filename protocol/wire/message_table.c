/* The tables of messages and commands, and how they are printed; message.c uses them to write and read. */
#include "protocol/wire/message.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/cli.h"

#define FIELDS(...) ((const struct msg_field[]){ __VA_ARGS__{ .name = NULL } })
#define NO_FIELDS FIELDS()

// clang-format off
const struct msg_spec msg_specs[MSG_TYPE_COUNT] = {
    [MSG_OK] = { "ok", "", "", "the answer to a request that was accepted; its fields are those of the request's answer",
        NO_FIELDS, NO_FIELDS },
    [MSG_REFUSED] = { "refused", "", "", "the answer to a request that was not accepted",
        FIELDS({ "code", KIND_STR, false, "error_code_name: usage, refused, timeout, ..." },
               { "reason", KIND_STR, false, "one sentence" },), NO_FIELDS },
    [MSG_HEARTBEAT] = { "heartbeat", "every process", "agent", "I am alive, and this is what I am doing; every heartbeat_s seconds and at each change of phase",
        FIELDS({ "name", KIND_STR, false, "controller, worker cpu:0, scorer, agent" },
               { "pid", KIND_I64, false, "process id" },
               { "start", KIND_I64, false, "random number chosen at start; distinguishes restarts of one name" },
               { "phase", KIND_STR, false, "starting, generating, scoring, training, saving, waiting, ..." },
               { "phase_s", KIND_F64, false, "seconds since the phase began" },
               { "progress", KIND_F64, false, "grows with each piece of work done; a number that does not grow is a sign of trouble" },
               { "waits_for", KIND_STR, false, "what it waits for; empty when it is working" },
               { "gauges", KIND_MAP, true, "current figures, by name" },
               { "processes", KIND_LIST, true, "gate: those of other nodes, as in the answer to status; environments: those that post" },
               { "nodes", KIND_LIST, true, "gate: figures of other nodes, as in the answer to status" },
               { "detail", KIND_MAP, true, "controller: the run's state, as in the answer to status" },),
        FIELDS({ "order", KIND_STR, false, "go, or stop: exit" },) },
    [MSG_PUBLISH] = { "publish", "every process", "agent, controller",
        "pass body to every listener on the telemetry socket; listeners receive this message itself. Topics: step "
        "(step, time, incarnation, metrics), rollout (as a group of rollouts), event (as a row of events), process (a heartbeat). The controller accepts event and sample (node, time, figures by name) from the agent: they go into the journal, each event once by the id in its body",
        FIELDS({ "topic", KIND_STR, false, "a word" }, { "body", KIND_MAP, false, "by topic" },), NO_FIELDS },
    [MSG_STATUS] = { "status", "console, ctl", "agent", "the state of the run",
        FIELDS({ "fresh", KIND_BOOL, true, "false: do not ask the controller, use its last heartbeat" },
               { "from", KIND_I64, true, "first of the other nodes wanted, from 0, with their processes" },
               { "limit", KIND_I64, true, "most of them; absent: all" },),
        FIELDS({ "name", KIND_STR, false, "of the run" },
               { "dir", KIND_STR, false, "its directory" },
               { "state", KIND_STR, false, "starting, running, paused, stopping, finished, failed, stopped (by an operator)" },
               { "reason", KIND_STR, true, "why it failed or stopped, or what it waits for" },
               { "alert", KIND_STR, true, "what needs the operator's attention now, and after '; ' what to do about it; absent: nothing" },
               { "failure", KIND_STR, true, "why the agent has given up on the run, whatever state says" },
               { "pause_depth", KIND_STR, true, "rollouts, step or drain, when paused or pausing" },
               { "step", KIND_I64, false, "optimizer steps done" },
               { "max_steps", KIND_I64, true, "optimizer steps at which it will end" },
               { "rollout_step", KIND_I64, true, "oldest rollout step not yet trained on" },
               { "incarnation", KIND_I64, true, "grows with each return to a checkpoint" },
               { "elapsed_s", KIND_F64, true, "seconds since the run began, whatever has stopped or restarted since" },
               { "step_s", KIND_F64, true, "seconds per optimizer step, mean of the last ones" },
               { "left_s", KIND_F64, true, "estimated seconds to the end" },
               { "knobs", KIND_MAP, true, "every setting by name: number, boolean or text" },
               { "undo", KIND_STR, true, "what the command revert would do, in words; empty: nothing" },
               { "alarms", KIND_LIST, true, "the run's alarm book: {name, state, critical, metric, when, limit, steps, text, remedy, actions, step}; state is quiet, "
                                            "firing, acknowledged or muted, when as in alarms.yaml, step since when it holds" },
               { "doctor", KIND_MAP, true, "{kind, name, text, remedy}: what bounds or breaks the run, in one sentence; kind is bound, warn or crit" },
               { "lock", KIND_MAP, true, "{holder, since}: the operator who has taken the control of the run, and when, in seconds since 1970" },
               { "buffer", KIND_MAP, true, "items: issued, generating, returned, waiting, filtered, stale (free-running), trained, items (opened)" },
               { "level", KIND_MAP, true, "with curriculum_levels: {level (of the rollout step that is opened next), levels, groups (of this level, so far), of (that decide), "
                                          "answers, share (of them right; absent: none), harder, easier (shares that change it)}" },
               { "metrics", KIND_MAP, true, "of the last step, by name" },
               { "eval", KIND_MAP, true, "last evaluation: SET -> {step, n, mean}" },
               { "checkpoint", KIND_I64, true, "step of the last complete checkpoint; absent: none" },
               { "controller_s", KIND_F64, true, "seconds since the controller was last heard from" },
               { "processes", KIND_LIST, false, "{name, node, kind, plays (a worker: trainer 0, producer 0), pid, phase, phase_s, progress, "
                                                "waits_for, verdict, heard_s, restarts, cpu (processors in use), rss_mib, gauges}; "
                                                "verdict is ok, slow or stuck; a process of another node has the node's name in node, and its own name is NODE/NAME" },
               { "node", KIND_STR, true, "name of the agent's node" },
               { "host", KIND_MAP, true, "its figures by name (protocol/run/telemetry.h); unknown ones are absent" },
               { "devices", KIND_LIST, true, "{name, what, uuid, bus, state, throttle, figures, processes: [{pid, mem_bytes, "
                                             "util_percent}]}; state is ok, lost or needs reset, throttle what slows the clocks" },
               { "no_gpu", KIND_STR, true, "why there are no GPUs" },
               { "nodes", KIND_LIST, true, "{node, host, devices, no_gpu} of other nodes" },
               { "from", KIND_I64, true, "number of the first of them, from 0" },
               { "to", KIND_I64, true, "number of the next one to ask for; n_nodes: none is left" },
               { "n_nodes", KIND_I64, true, "how many other nodes there are; absent: all are here" },) },
    [MSG_KEPT] = { "kept", "console", "agent",
        "a piece of what the run keeps in its folder, for a console on another machine. Each answer has about 1 MiB at most, and more says whether there is more",
        FIELDS({ "what", KIND_STR, false, "log, samples, items or records" },
               { "files", KIND_LIST, true, "log: {name, at} of those known, at: the next byte wanted" },
               { "from", KIND_I64, true, "samples: the last number known; items: the first one wanted; -1: none, only say which is the newest" },
               { "items", KIND_LIST, true, "records: numbers of items" },),
        FIELDS({ "files", KIND_LIST, true, "log: {name, at (of the byte after text), skipped (bytes left out before text), text: whole lines}; of a new one the last 16 KiB" },
               { "samples", KIND_LIST, true, "{seq, node, time, figures: by name}, what agents have measured (protocol/run/telemetry.h)" },
               { "items", KIND_LIST, true, "{item, row, rollout_step, version, fate, step, reward_mean, kept}: as in the journal; kept: its group is in the file of groups" },
               { "records", KIND_LIST, true, "{item, record}: its group, as in the file of groups; an item without one, or with a larger one, is left out" },
               { "last", KIND_I64, true, "samples, items: number of the newest; absent: there is none" },
               { "more", KIND_BOOL, true, "there are later ones" },
               { "lines", KIND_BIN, true, "items: on which lines of the data's file the prompts are (protocol/record/prompt_lines.h)" },
               { "quarantine", KIND_BIN, true, "items: the prompts in quarantine, as in the journal" },) },
    [MSG_COMMAND] = { "command", "console, ctl", "agent, controller",
        "ask for a change; carried out once per id, answered when it has taken effect or failed",
        FIELDS({ "id", KIND_STR, false, "unique; a repeated id gets the first outcome" },
               { "command", KIND_STR, false, "a name from the table of commands" },
               { "args", KIND_MAP, true, "by command" },
               { "who", KIND_STR, false, "for the audit trail: user@host, console or ctl" },
               { "limit_s", KIND_F64, true, "give up after this many seconds (0.1 to 86400) and name the process that is late" },
               { "force", KIND_BOOL, true, "in spite of another operator's lock" },),
        FIELDS({ "effect", KIND_STR, false, "what happened, one sentence" },
               { "step", KIND_I64, false, "the optimizer step at which it takes effect" },) },
    [MSG_STEPS] = { "steps", "console, exporters", "agent, controller", "metrics of past steps, oldest first",
        FIELDS({ "from", KIND_I64, false, "first step wanted" }, { "limit", KIND_I64, true, "most steps in the answer" },),
        FIELDS({ "names", KIND_LIST, false, "names of the metrics" },
               { "step", KIND_BIN, false, "int64 (n)" }, { "time", KIND_BIN, false, "float64 (n) seconds since 1970" },
               { "value", KIND_BIN, false, "float64 (n, names), NaN where unknown" },
               { "more", KIND_BOOL, false, "there are later steps" },) },
    [MSG_EVENTS] = { "events", "console", "agent, controller", "the audit trail and other events, oldest first",
        FIELDS({ "after", KIND_I64, false, "id of the last one known; 0: from the start" },
               { "limit", KIND_I64, true, "at most this many, the newest" },),
        FIELDS({ "events", KIND_LIST, false, "{id, time, step, kind, who, text, detail (optional): JSON}" },) },
    [MSG_ROLLOUTS] = { "rollouts", "console", "agent, controller", "the newest rollout groups as text",
        FIELDS({ "limit", KIND_I64, true, "most groups" },),
        FIELDS({ "groups", KIND_LIST, false, "{item, step, line (of the data's file, from 1), prompt_text, gold, samples: as in group}, "
                                             "newest first" },) },
    [MSG_CHECKPOINTS] = { "checkpoints", "console, ctl", "agent, controller", "the checkpoints that the run can go back to", NO_FIELDS,
        FIELDS({ "checkpoints", KIND_LIST, false, "{step, state, size_bytes, pinned, why, time, path, changes}, newest first; state is whole (every file has "
                                                  "its size), broken, or start (the model the run began with); why: what it was made for; changes: those of knobs asked for since, which a "
                                                  "rollback undoes, in words" },
               { "step", KIND_I64, false, "that the run has made" },
               { "before_change", KIND_I64, true, "step of the newest one from before the last change of knobs" },) },
    [MSG_WORK] = { "work", "worker", "controller", "I am free: what next? Held open until there is something, at most 2 s",
        FIELDS({ "name", KIND_STR, false, "the worker" }, { "start", KIND_I64, false, "as in its heartbeat" },
               { "incarnation", KIND_I64, false, "the last one it was given; -1: none" },
               { "step", KIND_I64, false, "optimizer steps its weights have had; -1: nothing is loaded" },
               { "version", KIND_I64, false, "version of the weights it samples with; -1: none" },
               { "made", KIND_I64, false, "the incarnation that made version; 0: none, as for the run's first weights" },
               { "ending", KIND_I64, true, "the version whose last samples it draws beside (fill_gap); absent: none" },
               { "ending_made", KIND_I64, true, "the incarnation that made ending" },
               { "gap", KIND_BOOL, true, "fewer than half of its batch runs, and it may be given another version beside the one in work" },
               { "produces", KIND_BOOL, false, "it samples" }, { "consumes", KIND_BOOL, false, "it trains" },
               { "rank", KIND_I64, true, "its rank among the trainers" },
               { "round", KIND_I64, true, "the round in which the trainers have met; 0: it has met none" },
               { "saves", KIND_I64, true, "the last save of that round that it has done (save); 0: none" },
               { "items", KIND_I64, false, "inside its sampler, of version" },
               { "busy", KIND_BOOL, true, "it is sampling: only items, cancel, none and, with gap or free-running, publish may be answered, at once" },
               { "n_row", KIND_I64, true, "usable prompts of the dataset, once it is loaded" },
               { "n_id", KIND_I64, true, "token ids that may be drawn are below this (the tokenizer's), once the model is loaded" },
               { "lent", KIND_STR, true, "as in group" },
               { "shared", KIND_LIST, true, "versions it keeps for other samplers (weights by copy or nccl)" },
               { "keeps", KIND_I64, true, "how many of them it can keep" },
               { "servers", KIND_LIST, true, "first trainer: {name, trouble, behind_s} of each server outside the run that has not got the newest weights in time" },
               { "posted", KIND_MAP, true, "environments: {environments, per_min, waiting, age, refused, refusal (why the last one was), full} of what came" },),
        FIELDS({ "kind", KIND_STR, false, "none, load, items, train, share (keep the weights for other samplers: in path, or as the run's setting weights says), publish (sample with version from now on: from there, or the trainer's own), save, eval, cancel (drop the samples in progress), stop" },
               { "task", KIND_I64, false, "number of the task, for done; 0 with none and stop" },
               { "incarnation", KIND_I64, false, "to be sent back from now on" },
               { "step", KIND_I64, true, "load, save, eval: optimizer step; train: the step before the one to make" },
               { "path", KIND_STR, true, "load: directory; save: destination; share, publish: file, in share only when a process needs one" },
               { "round", KIND_I64, true, "load: the round in which the trainers meet, when there are several" },
               { "save", KIND_I64, true, "save: the number of the checkpoint, where all trainers bring their shards together for it" },
               { "items", KIND_LIST, true, "items: {item, row, rubrics (the newest of the row that it is judged by, as in group; absent: none)}; train: item numbers in batch order" },
               { "rollout_step", KIND_I64, true, "items" }, { "level", KIND_I64, true, "items, with curriculum_levels: of their prompts" },
               { "version", KIND_I64, true, "items, publish: version of the weights to sample with; -1: those it has" },
               { "made", KIND_I64, true, "load, share, publish: the incarnation that made version" },
               { "tails", KIND_LIST, true, "with over_sample_rate, of each rollout step with enough groups: its number, and tokens; items of it with a longer sample are stopped" },
               { "dropped", KIND_LIST, true, "items that an operator has dropped: they are sampled no further" },
               { "max_steps", KIND_I64, true, "train: optimizer steps of the whole run, for the schedule" },
               { "eval", KIND_I64, true, "eval: which evaluation it belongs to" },
               { "part", KIND_I64, true, "eval: the prompts to sample of each set: row % parts == part" }, { "parts", KIND_I64, true, "" },
               { "knobs", KIND_MAP, true, "items, train, eval: settings that differ from run.yaml for this task, as text by name" },) },
    [MSG_GROUP] = { "group", "worker", "controller", "a finished rollout group; acknowledged when it is on disk",
        FIELDS({ "incarnation", KIND_I64, false, "" }, { "item", KIND_I64, false, "" }, { "row", KIND_I64, false, "prompt, from 0, among the usable ones" },
               { "rollout_step", KIND_I64, false, "" }, { "version", KIND_I64, false, "of the weights, optimizer steps" },
               { "made", KIND_I64, true, "the incarnation that made version; a group sampled with weights that were undone since is refused" },
               { "temperature", KIND_F64, false, "" }, { "top_p", KIND_F64, false, "" }, { "top_k", KIND_I64, false, "" },
               { "max_new_tok", KIND_I64, false, "" },
               { "prompt", KIND_BIN, false, "int32 token ids" }, { "token", KIND_BIN, false, "int32, sample after sample" },
               { "logp", KIND_BIN, false, "float32, as token" },
               { "newer", KIND_BIN, true, "int32, as token: how many optimizer steps newer than version the weights that drew it are; absent: all 0" },
               { "mask", KIND_BIN, true, "bytes, as token: 1 drawn and in the loss, 0 given by an environment and only read; absent: all 1" },
               { "entropy", KIND_BIN, true, "float32, as token: entropy of the distribution it was drawn from, nat; with the run's rollout_entropy" },
               { "adv", KIND_BIN, true, "float32, as token: advantages in place of those from rewards" },
               { "no_logp", KIND_BOOL, true, "it was posted without log-probs: logp is 0, and the trainer takes those of its own weights" },
               { "samples", KIND_LIST, false, "{n_tok, seed, finish, score, reward, format_acc, ans_acc, parts, reason, text, temperature (absent: the group's), "
                                              "adv_zero (its advantage is 0), again (another path of the session that the sample before it is of)}" },
               { "prompt_text", KIND_STR, true, "" },
               { "piece", KIND_BIN, true, "uint16, as token: bytes of its sample's text that the token gave" },
               { "gold", KIND_STR, true, "the right answer: the row's, or as the verifier read it" },
               { "rubrics", KIND_STR, true, "with apply_evolving_rubric_reward: what the prompt's rubric becomes, JSON {active: [{description, weight}], judged, written, failed, why}" },
               { "sampled", KIND_MAP, true, "from a worker that only samples, what that took since its group before: generate_s, tail_s (of it, fewer than half "
                                            "of the samples ran), gap_s (absent: two versions cannot run; of it, they did), n_tok, n_draft, n_accepted, n_put_back (-1: not known), flops and bytes needed, flops_most and bytes_most possible" },
               { "gen_s", KIND_F64, true, "seconds" }, { "score_s", KIND_F64, true, "seconds from requesting scores to getting them" },
               { "verify_s", KIND_F64, true, "total seconds that the verifiers worked" },
               { "arrived", KIND_I64, true, "in the rollout file, of a group that an operator has changed: where its first record ends" },
               { "lent", KIND_STR, true, "added by the gate: the node it comes from, which may only sample; it is judged by what that node was given" },),
        NO_FIELDS },
    [MSG_STOPPED] = { "stopped", "worker", "controller", "an item was stopped because its rollout step has enough shorter groups (over_sample_rate); refused: it is wanted after all",
        FIELDS({ "item", KIND_I64, false, "" }, { "version", KIND_I64, false, "of the weights" }, { "made", KIND_I64, true, "as in group" },
               { "n_tok", KIND_I64, false, "tokens of its longest sample so far" }, { "drawn", KIND_I64, true, "of all its samples" },
               { "lent", KIND_STR, true, "as in group" },),
        NO_FIELDS },
    [MSG_FETCH] = { "fetch", "worker", "controller", "the groups of a train batch, by item; the answer may hold fewer than asked",
        FIELDS({ "name", KIND_STR, true, "as in work: trainers of one node fetch the same, and each has an answer of its own" },
               { "items", KIND_LIST, false, "item numbers" },),
        FIELDS({ "groups", KIND_LIST, false, "maps as in group, starting with the first item asked for" },) },
    [MSG_EVALUATED] = { "evaluated", "worker", "controller", "the answers to a prompt of an evaluation set",
        FIELDS({ "eval", KIND_I64, false, "as in work; of another evaluation it is not wanted any more, and forgotten" },
               { "set", KIND_STR, false, "" }, { "row", KIND_I64, false, "of the set's prompts, from 0" },
               { "n", KIND_I64, false, "prompts of the set" },
               { "samples", KIND_LIST, false, "{score: as in the answer to score, reward, format_acc, correct (both absent when the reward does not say), n_tok, finish}" },
               { "records", KIND_STR, false, "lines of JSON for the run's eval/, one for each sample" },),
        NO_FIELDS },
    [MSG_DONE] = { "done", "worker", "controller", "a task has ended; acknowledged when it is in the journal",
        FIELDS({ "name", KIND_STR, false, "the worker" }, { "task", KIND_I64, false, "" },
               { "kind", KIND_STR, false, "as in work" }, { "incarnation", KIND_I64, false, "" },
               { "step", KIND_I64, false, "optimizer steps done" }, { "ok", KIND_BOOL, false, "" },
               { "error", KIND_STR, true, "why not" }, { "code", KIND_STR, true, "the kind of error, as in a refusal" },
               { "note", KIND_STR, true, "save: what the operator should know although it succeeded" },
               { "broken", KIND_BOOL, true, "load: the checkpoint is at fault; the one before it may work" },
               { "rank", KIND_I64, true, "its rank among the trainers" }, { "round", KIND_I64, true, "load, train: the round in which it was done" },
               { "version", KIND_I64, true, "publish: version of the weights" },
               { "left", KIND_BOOL, true, "not done because another trainer has left, died or not arrived" },
               { "again", KIND_BOOL, true, "publish: the weights did not arrive; the task may be given again" },
               { "fetched", KIND_MAP, true, "publish, from a node that has just brought the weights: file_bytes, wire_bytes (received for them), s" },
               { "lines", KIND_BIN, true, "load: int64 pairs (usable prompt from 0, its line in the data's file from 1), one for each prompt that "
                                          "is not on the line after its predecessor's; empty: too many" },
               { "levels", KIND_BIN, true, "load, with curriculum_levels: a byte for each usable prompt, its level or 255 for every one; empty: no row has a level" },
               { "files", KIND_STR, true, "load, of several files: for each a line, the number of its first line among those of all, a blank, its path" },
               { "left_out", KIND_LIST, true, "train: {item, why} of each group that no finite gradient could be made of, the first 64" },
               { "n_left_out", KIND_I64, true, "train: how many they are" },
               { "metrics", KIND_MAP, true, "train: numbers by name (protocol/settings/metrics.h)" },
               { "histograms", KIND_BIN, true, "train: as protocol/record/histogram.h packs them" },
               { "eval", KIND_MAP, true, "eval: SET -> {n: prompts of the set, dropped: rows of this part that are too long}" },
               { "lent", KIND_STR, true, "as in group" },),
        NO_FIELDS },
    [MSG_SCORE] = { "score", "worker", "scorer", "score the completions of one prompt with the run's reward",
        FIELDS({ "row", KIND_STR, false, "the dataset's line, JSON" },
               { "samples", KIND_LIST, false, "{text, n_tok, finish: 0 stop, 1 length, tool_ok: a tool was called and no call failed; of a run with an environment its reward and ans_acc, and the transcript: all that the model read and drew}" },
               { "max_new_tokens", KIND_I64, true, "value they were sampled with, for the length rules; absent: the run's first value" },
               { "eval", KIND_BOOL, true, "score as evaluation does: no length rules" },),
        FIELDS({ "results", KIND_LIST, false, "as samples: {score: 1 ok, left out because the verifier 2 cannot tell, 3 ran out "
                                              "of time or 4 failed, reward, format_acc, ans_acc, parts, rule, "
                                              "pred, gold, tests: 1 byte each: 1 passed, 0 wrong answer, -1 failed, -2 no program, us}" },) },
    [MSG_TURN] = { "turn", "worker", "scorer", "what does the run's environment say to a conversation?",
        FIELDS({ "item", KIND_I64, false, "item of the run" },
               { "sample", KIND_I64, false, "number of the sample in its group" },
               { "seed", KIND_I64, false, "for the environment; the same for all samples of the item" },
               { "row", KIND_STR, false, "the dataset's line, JSON" },
               { "texts", KIND_LIST, false, "the model's turns so far, texts; none: how does it begin? To a harness, the replies to its requests, JSON" },
               { "from", KIND_STR, true, "to a harness, as the next two: NAME/START of the worker, START random" },
               { "serial", KIND_I64, true, "of the item there, never given twice" },
               { "oldest", KIND_I64, true, "no item with a serial below is sampled there any more" },),
        FIELDS({ "score", KIND_I64, false, "1 ok, or why the sample is left out: the environment 3 ran out of time or 4 failed" },
               { "reason", KIND_STR, false, "in words" },
               { "answer", KIND_STR, false, "with 1 the program's answer, JSON; examples/environments/README.md has its fields" },
               { "later", KIND_BOOL, true, "there is none yet: ask the same again" },) },
    [MSG_JOIN] = { "join", "another node", "gate", "I would like to sample for this run, or train: what do I need?",
        FIELDS({ "node", KIND_STR, false, "the node's name: letters, digits, '.', '_' and '-', at most 32" },
               { "id", KIND_STR, false, "random, kept in the node's folder: a node that returns with it gets its old place" },
               { "host", KIND_STR, false, "host name, for the operator" },
               { "device", KIND_STR, false, "kind of its devices, cpu or cuda: results have the same bits only on the same kind" },
               { "producers", KIND_I64, false, "how many devices it has" },),
        FIELDS({ "name", KIND_STR, false, "of the run" },
               { "first_trainer", KIND_I64, true, "with trainers_per_node: the rank of the first trainer that is to be there; -1: it samples only" },
               { "settings", KIND_STR, false, "its run.yaml" },
               { "hash", KIND_STR, false, "SHA-256 of settings and files, to be sent back in node" },
               { "files", KIND_LIST, false, "{name, size_bytes, hash}: what the node needs; SHA-256 in hexadecimal" },) },
    [MSG_NODE] = { "node", "another node", "gate", "I am here, and this is what my processes are doing; every heartbeat_s seconds. A node that is not heard from for "
                                                   "three of them plus slow_s is given up: its items are issued again",
        FIELDS({ "node", KIND_STR, false, "as in join" }, { "id", KIND_STR, false, "as in join" }, { "host", KIND_STR, false, "as in join" },
               { "start", KIND_I64, false, "random, new at each start; an older start of the same id is refused" },
               { "hash", KIND_STR, false, "as in the answer to join" },
               { "first_trainer", KIND_I64, true, "as in the answer to join" },
               { "devices", KIND_I64, true, "how many it has" },
               { "token", KIND_STR, true, "the name of the join token that it has (join_token_id); absent: it wants no other" },
               { "leaving", KIND_BOOL, true, "this is its last message" },
               { "reason", KIND_STR, true, "why it leaves" },
               { "processes", KIND_LIST, false, "as in the answer to status" },
               { "figures", KIND_MAP, true, "node, host, devices, no_gpu as in the answer to status" },),
        FIELDS({ "order", KIND_STR, false, "go, join (what the node holds is out of date), or stop" },
               { "reason", KIND_STR, false, "why, with join and stop" },
               { "state", KIND_STR, false, "of the run, as in the answer to status" },
               { "step", KIND_I64, false, "optimizer steps done" },
               { "knobs", KIND_MAP, true, "slow_s, stuck_s and restart_stuck_s as they are now: the node's agent watches by them" },
               { "restart", KIND_STR, true, "a process of the node that an operator wants to restart" },
               { "restart_pid", KIND_I64, true, "its process id at that time: name and pid identify the restart, which is carried out once" },
               { "token", KIND_STR, true, "the join token that has replaced its own: connect with this one from now on" },) },
    [MSG_FILE] = { "file", "another node", "gate", "a piece of a file: one of those that join listed, or weights",
        FIELDS({ "name", KIND_STR, true, "as in the answer to join; for a node with trainers, too: checkpoint/STEP-FOLDER/FILE of one of the run's, and meeting/NAME, where the trainers meet" },
               { "version", KIND_I64, true, "weights of this version" }, { "made", KIND_I64, true, "... that this incarnation made" },
               { "offset", KIND_I64, false, "bytes" }, { "n_bytes", KIND_I64, false, "at most 4 MiB" },),
        FIELDS({ "size_bytes", KIND_I64, false, "of the whole file" },
               { "stamp", KIND_I64, false, "a changed number means that the file was replaced: start over" },
               { "data", KIND_BIN, false, "shorter than asked only at the end" },) },
    [MSG_WEIGHTS] = { "weights", "another node", "gate", "I want weights over connections of their own; the answer is a ticket for them (protocol/wire/bulk.h)",
        FIELDS({ "version", KIND_I64, false, "weights of this version" }, { "made", KIND_I64, false, "... that this incarnation made" },
               { "name", KIND_STR, true, "a checkpoint's file instead, by its name as in file; it comes whole" },
               { "base_version", KIND_I64, true, "this version is here: differences from it will do" },
               { "base_made", KIND_I64, true, "... that this incarnation made" },
               { "base_key", KIND_I64, true, "... with this number for its contents" },
               { "links", KIND_BOOL, true, "blocks may come as chains of differences over versions between" },),
        FIELDS({ "name", KIND_BIN, false, "16 bytes: the ticket's name, said in the clear" },
               { "key", KIND_BIN, false, "32 bytes: the ticket's secret" },
               { "size_bytes", KIND_I64, false, "of the whole file" },
               { "file_key", KIND_I64, false, "the number for its contents; the same number means that a fetch may go on" },
               { "has_base", KIND_BOOL, false, "the head has that base with that number: blocks come as differences where they are smaller" },) },
    [MSG_GONE] = { "gone", "gate", "controller", "a node has left or is lost: issue its items again, and do not wait for its workers",
        FIELDS({ "node", KIND_STR, false, "its name" }, { "reason", KIND_STR, false, "for the journal" },), NO_FIELDS },
};
// clang-format on

// clang-format off
const struct command_spec command_specs[] = {
    { "pause", "depth", ARG_CHOICE, "step|rollouts|drain", "", "hold the run: rollouts (issue no new items), step (finish the optimizer "
                        "step), drain (finish what is in flight, save, hold)", 120, false },
    { "resume", "", ARG_NONE, "", "", "continue after a pause", 30, false },
    { "set", "values", ARG_VALUES, "", "NAME=VALUE", "change knobs, all of them or none", 60, false },
    { "revert", "", ARG_NONE, "", "", "revert the last change of knobs", 60, false },
    { "checkpoint", "", ARG_NONE, "", "", "save at the end of the optimizer step", 300, false },
    { "eval", "", ARG_NONE, "", "", "evaluate at the end of the optimizer step", 600, false },
    { "stop", "", ARG_NONE, "", "", "finish the optimizer step, save, end the run", 600, true },
    { "restart", "process", ARG_TEXT, "", "the name of a process; 'rollcall ctl status' lists them", "kill a process; its parent restarts it", 60, true },
    { "dismiss", "node", ARG_TEXT, "", "the name of a node; 'rollcall ctl status' shows them as NODE/PROCESS", "remove a node from the run; its items are issued again", 30, true },
    { "rotate-token", "token", ARG_CHOICE, "join|lent", "", "replace the token with which nodes join (join), or lent machines (lent); nodes that are connected get the new "
      "one, and the old one is accepted for another --overlap seconds (default 600)", 60, true },
    { "rollback", "to", ARG_TEXT, "", "a checkpoint's step, or 'change' for the newest from before the last change of knobs; 'rollcall ctl checkpoints' lists them",
      "go back to a checkpoint: later steps and changes of knobs are undone", 300, true },
    { "pin", "step", ARG_LINE, "", "a checkpoint's step; 'rollcall ctl checkpoints' lists them", "keep a checkpoint, whatever keep_checkpoints says", 30, false },
    { "unpin", "step", ARG_LINE, "", "a checkpoint's step", "let a pinned checkpoint be removed like others", 30, false },
    { "note", "text", ARG_TEXT, "", "a text, at most 191 bytes", "put a note on the run's time line: journal, charts, exports", 30, false },
    { "lock", "how", ARG_CHOICE, "take|force", "", "take the control of the run: others are refused (force: from whoever has it)", 30, false },
    { "unlock", "", ARG_NONE, "", "", "give the control back", 30, false },
    { "ack", "alarm", ARG_TEXT, "", "an alarm's name, or 'all'; 'rollcall ctl status' lists those that fire", "acknowledge an alarm: it is not shown until it begins again", 30, false },
    { "mute", "alarm", ARG_TEXT, "", "an alarm's name, or 'all'", "do not look at an alarm any more", 30, false },
    { "unmute", "alarm", ARG_TEXT, "", "an alarm's name, or 'all'", "look at a muted alarm again", 30, false },
    { "quarantine", "line", ARG_LINE, "", "the number of a line of the data's file, from 1", "stop issuing the prompt on this line of the data's file, from 1", 30, true },
    { "rescore", "item", ARG_NUMBER, "", "the number of an item, as the rollouts show it", "score a group again by the reward as it is now; while the group waits for training its rewards are replaced, else they are only shown", 180, true },
    { "drop", "item", ARG_NUMBER, "", "the number of an item, as the rollouts show it", "leave a group that waits for training out of the loss; one that is not back is sampled no further, and its rollout step goes on without it", 30, true },
};
// clang-format on
const int n_command_specs = ARRAY_SIZE(command_specs);

const struct command_spec *command_find(const char *name, struct error *err)
{
    const char *nearest = NULL;
    char list[256] = "";
    int best = MIN(4, (int)strlen(name));    // a word with no letter right is like none
    for (int i = 0; i < n_command_specs; i++) {
        int d = word_distance(command_specs[i].name, name);
        if (d == 0)
            return &command_specs[i];
        if (d < best) {
            best = d;
            nearest = command_specs[i].name;
        }
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", command_specs[i].name);
    }
    if (nearest)
        error_set(err, ERR_USAGE, "unknown command '%.40s'; did you mean '%s'?", name, nearest);
    else
        error_set(err, ERR_USAGE, "unknown command '%.40s'; the commands are %s", name, list);
    return NULL;
}

int64_t command_limit_ms(const struct mval *command, double otherwise_s)
{
    double s = mval_f64(mval_get(command, "limit_s"), otherwise_s);
    return (int64_t)(1000 * fmin(fmax(s, COMMAND_LIMIT_MIN_S), COMMAND_LIMIT_MAX_S));    // a NaN is the least
}

static void fields_print(struct buf *out, const char *title, const struct msg_field *f)
{
    static const char *const kinds[] = { "integer", "number", "text", "boolean", "bytes", "map", "list" };
    if (!f->name)
        return;
    buf_fmt(out, "\n| %s | kind | meaning |\n|---|---|---|\n", title);
    for (; f->name; f++)
        buf_fmt(out, "| `%s`%s | %s | %s |\n", f->name, f->optional ? " (optional)" : "", kinds[f->kind], f->help);
}

void msg_print_docs(struct buf *out)
{
    buf_str(out, "## Messages\n");
    for (int i = 0; i < MSG_TYPE_COUNT; i++) {
        const struct msg_spec *s = &msg_specs[i];
        const char *end = s->help[strlen(s->help) - 1] == '?' ? "" : ".";
        if (s->from[0])
            buf_fmt(out, "\n### `%s`: %s → %s\n%s%s\n", s->name, s->from, s->to, s->help, end);
        else
            buf_fmt(out, "\n### `%s`\n%s%s\n", s->name, s->help, end);
        fields_print(out, "field", s->request);
        fields_print(out, "answer", s->answer);
    }
    buf_str(out, "\n## Commands\n\n| command | args | what it does | default time limit, s |\n|---|---|---|---|\n");
    for (int i = 0; i < n_command_specs; i++)
        buf_fmt(out, "| `%s` | %s | %s | %g |\n", command_specs[i].name, command_specs[i].args, command_specs[i].help,
                command_specs[i].limit_s);
}
