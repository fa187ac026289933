/* engine.h - the device's side of a worker: model, sampler, trainer and checkpoints, driven by one thread of its own
 *
 * The loop thread of the worker (worker_cmd.c) puts tasks in and takes reports out; both queues lock inside, and a report wakes
 * the loop through the function given. Nothing else is shared but the look of what it does now (engine_look).
 * A group belongs to the engine until its report, then to the loop; groups of a train task go the other way. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/run/metrics.h"
#include "protocol/run/run_config.h"
#include "protocol/run/group.h"
#include "protocol/run/run_state.h"
#include "workers/engine/publish/outlet.h"

struct task_item {
    int64_t item, row;
};
/* One task; made by the loop with task_new, owned by the engine once it is put in. */
struct task {
    struct task *next;
    enum task_kind kind;
    int64_t task, incarnation, step, version, rollout_step, max_steps;
    int64_t made;                // load, share, publish: the incarnation that made the version
    int64_t round;               // load: in which the trainers meet; train: have met (the engine's to set). 0: one trainer
    char path[4096];             // load: checkpoint or ""; save: directory of checkpoints; share, publish: file
    struct run_config config;    // as it holds for this task
    struct task_item *item;      // (n_item) of items
    int64_t n_item;
    struct group **group;    // (n_group) of train, in batch order
    int64_t n_group;
};
struct task *task_new(enum task_kind kind, struct error *err);
void task_free(struct task *t);

enum report_kind {
    REPORT_GROUP,    // a finished group that wants scores
    REPORT_DONE,     // a task has ended (save: when it is on disk)
};
struct reward_output;    // workers/engine/reward/reward.h
struct report {
    struct report *next;
    enum report_kind kind;
    /* REPORT_GROUP */
    struct group *group;    // owned
    int64_t made;           // the incarnation that made the weights that sampled it
    char *row;              // the dataset's line as JSON, for the scorer
    char *prompt_text;
    char **text;                  // (group->n_sample) decoded completions
    bool eval;                    // goes back to the engine when scored (engine_scored)
    struct reward_output *out;    // of eval: (group->n_sample) as the scorer says; owned
    /* REPORT_DONE */
    enum task_kind task_kind;
    int64_t task, incarnation, step, round;
    int64_t version;    // publish: which one
    bool ok;
    enum error_code code;    // of what went wrong
    bool left;               // not ok because another trainer has gone
    bool broken;             // load, not ok: the checkpoint is
    bool again;              // publish, not ok: the weights did not come, and may yet
    char error[512];
    double metric[METRIC_N];    // NAN: unknown
    int64_t size_bytes;
    int n_eval;
    struct {
        char set[64];
        int64_t n;
        double mean;
    } evals[EVAL_SET_MAX];
};
void report_free(struct report *r);

/* What the engine is doing, for heartbeat and scheduling. */
struct engine_look {
    char phase[32], waits_for[64];
    double progress;                    // pieces of work done: tokens, micro-batches, groups
    bool idle;                          // no task waits or runs
    bool sampling;                      // it runs items: more may be put in
    int64_t n_item;                     // items inside the sampler
    int64_t items_max;                  // most that the controller lets it hold, as of the last items
    int64_t step, version, n_row;       // of the weights; -1, 0 before the first load
    int64_t made;                       // the incarnation that made version
    int64_t round;                      // in which it has met the other trainers; 0: none
    int64_t n_running;                  // samples being decoded
    double tok_per_s;                   // decoded, of the last second or so
    int64_t shared[OUTLET_SLOT_MAX];    // (n_shared) versions that it keeps for others
    int n_shared;
    double publish_ms;    // of the last version that went or came; NAN: none
};
struct engine;
/* config is copied; device: "cpu:0", which is among the config's. wake(ctx) is called on the engine's thread when a report waits. */
struct engine *engine_new(const struct run_config *config, const char *run_dir, const char *device, int n_thread, void (*wake)(void *ctx),
                          void *ctx, struct error *err);
void engine_free(struct engine *e);                        // waits for the task that runs
void engine_put(struct engine *e, struct task *t);         // takes t
struct report *engine_take(struct engine *e);              // NULL: none waits
void engine_scored(struct engine *e, struct report *r);    // an evaluation's group with its scores; takes r
void engine_look(struct engine *e, struct engine_look *out);
/* Where the usable prompts stand in the data's file: pairs (prompt from 0, its line from 1), one for each prompt whose line is
 * not the next one after its predecessor's. Returns how many of at most max, 0 before the first load or when there are more. */
int64_t engine_lines(struct engine *e, int64_t (*pair)[2], int64_t max);
