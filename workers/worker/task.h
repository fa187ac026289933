/* task.h - what passes between the worker's loop and its engine: tasks go in, reports come out
 *
 * Plain data without a lock. A rollout group belongs to the engine until it is reported, then to the loop; the groups
 * of a train task go the other way. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "protocol/record/histogram.h"
#include "protocol/run/run_state.h"
#include "protocol/settings/metrics.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/sampler/generator.h"
#include "workers/worker/utilisation.h"

struct task_item {
    int64_t item, row;
    char *rubrics;    // evolving ones of its row, JSON as in message group; owned; NULL: none
};
/* One task; made by the loop with task_new, owned by the engine once it is put in. */
struct task {
    struct task *next;
    enum task_kind kind;
    int64_t task, incarnation, step, version, rollout_step, max_steps;
    int64_t level;                 // items: of their prompts; -1: the run has none
    int64_t made;                  // load, share, publish: the incarnation that made the version
    int64_t round;                 // load: the round in which the trainers meet; train: set by the engine. 0: one trainer
    int64_t save;                  // save: its number, where all trainers take part in it; else 0
    int64_t eval, part, n_part;    // eval: the evaluation's id, and of each set the rows with row % n_part == part
    char path[4096];               // load: checkpoint or ""; save: directory of checkpoints; share, publish: file
    struct run_config config;      // the settings that apply to this task
    struct task_item *item;        // (n_item) of items
    int64_t n_item;
    struct group **group;    // (n_group) of train, in batch order
    int64_t n_group;
};
/* An empty task of this kind. Returns it for task_free; NULL: no memory. */
struct task *task_new(enum task_kind kind, struct error *err);
void task_free(struct task *t);    // with its groups; NULL is fine

enum report_kind {
    REPORT_GROUP,      // a finished group that needs scores
    REPORT_TURN,       // a turn that the environment must answer
    REPORT_STOPPED,    // an item that was stopped: its rollout step has enough shorter groups
    REPORT_DONE,       // a task has ended (save: its checkpoint is on disk)
};
/* The evaluation set that a prompt belongs to. */
struct eval_place {
    int64_t id;    // of the evaluation; 0: the prompt is trained on
    int64_t n;     // prompts of the set
    char set[64];
};
struct eval_told {
    char set[64];
    int64_t n, n_dropped;    // prompts of the set; of this part, too long to be sampled
    int64_t *dropped;        // (n_dropped) their rows; owned
};
/* A rollout step that has enough groups: its items with a sample of more than n_tok tokens are stopped. */
struct tail {
    int64_t rollout_step, n_tok;
};
#define TAIL_MAX 16            // rollout steps that may be open at once, at least
#define DROPPED_TOLD_MAX 64    // items that were dropped, as many as a controller may tell
struct reward_output;          // workers/engine/reward/reward.h
struct turn_job;               // workers/engine/reward/environment_pool.h
#define LEFT_TOLD_MAX 64       // items that a step left out, as many as are told by name
struct left_item {
    int64_t item;
    char why[256];
};
#define REPORT_RANKS 16    // of more trainers, the others' idle time is not told by trainer
#define REPORT_STAGES 8    // as many as a pipeline may have
struct report {
    struct report *next;
    enum report_kind kind;
    /* REPORT_GROUP */
    struct group *group;    // owned
    int64_t made;           // the incarnation that made the weights it was sampled with
    char *row;              // the dataset's line as JSON, for the scorer
    char *prompt_text;
    char **text;               // (group->n_sample) decoded completions, with what an environment said
    uint16_t *piece;           // (group->n_tok) bytes of the text that a token gave
    struct sampled sampled;    // of a worker that only samples: since its group before this; n_tok 0: elsewhere
    char *rubrics;             // what the scorer says the row's rubric becomes, JSON; NULL: nothing
    char **last;               // (group->n_sample) what the reward judges: the model's last turn; borrowed from text where
                               // that is all of it
    struct eval_place eval;
    struct reward_output *out;    // of an evaluation: (group->n_sample) the scorer's answers; owned
    /* REPORT_STOPPED: with made and version */
    struct stopped_item stopped;
    /* REPORT_TURN: goes back to the engine when answered (engine_answered) */
    struct turn_job *turn;    // owned
    int64_t serial;           // of the item, among the engine's own
    /* REPORT_DONE */
    enum task_kind task_kind;
    int64_t task, incarnation, step, round;
    int64_t version;    // publish: which one
    bool ok;
    enum error_code code;                // why it failed; ERR_NONE when ok
    double rank_idle_s[REPORT_RANKS];    // (n_rank) train, of several trainers: of each, as of M_RANKS_IDLE_S
    int n_rank;
    double stage_idle_s[REPORT_STAGES];    // (n_stage) train, by a pipeline: of each stage, as of M_STAGES_IDLE_S
    int n_stage;
    bool left;      // not ok because another trainer is gone
    bool broken;    // load, not ok: the checkpoint is broken
    bool again;     // publish, not ok: the weights did not arrive; trying again may help
    char error[512];
    char note[512];                 // save, ok: what the operator should know of it
    double metric[METRIC_N];        // NAN: unknown
    struct histogram *histogram;    // (HISTOGRAM_N) train, of the first trainer: owned; NULL: none
    struct left_item *left_item;    // (n_left_item) train: what the step did without; owned
    int64_t n_left_item;
    struct eval_told *told;    // (n_told) eval: what each set is; owned
    int n_told;
};
/* A report that t has succeeded, with t's numbers and no metric. Returns it for report_free. Aborts when out of memory,
 * since the run would wait forever for a task that is not reported. */
struct report *report_new(const struct task *t);
void report_fail(struct report *r, const struct error *why);    // turn it into a failure, because of why
void report_free(struct report *r);                             // NULL is fine
