/* controller.h - the controller's state; owned by its loop thread, which nothing here locks against
 *
 * A part of the state has its struct, its header and its file, and is changed by its own functions:
 *
 *   run            run_state.c     the state machine, and when the run ends
 *   open           opening.c       building the state from run directory and journal
 *   answers        answers.c       sent once the journal has what they say; events.c: into the journal and to listeners
 *   orders         orders.c        what operators want; outcomes.c: how their commands ended
 *   changes        changes.c       knobs changed while the run goes; resumed.c: settings given at resume
 *   workers        workers.c       which there are; facts.c, decide.c, give.c: what each gets next; reports.c: what they have done
 *   rounds         rounds.c        how several trainers stay together
 *   lineage        lineage.c       which incarnation made which step; returning.c: going back to an earlier one
 *   weights        weights.c       where each version can be had
 *   ledger         ledger.c        what becomes of every item; schedule.c: the same in the journal; prompt_order.c: which prompt it is
 *   groups         groups.c        rollout groups that come and go; storage.c: on their way to the disk; recent.c: the last ones;
 *                  lent_groups.c   those of machines that may only sample
 *   amending       amending.c      groups that an operator changes: dropping.c, rescoring.c
 *   checkpoints    checkpoints.c   which there are, which is wanted; rollback.c: going back to one when an operator wants it
 *   evals          evals.c         the same for evaluations; eval_sets.c: their answers; evaluating.c: among the other work
 *   metrics        step_metrics.c  the numbers of a step; counts.c, waste.c: of the whole run
 *   alarms         alarms.c        what the run is watched for, and what follows
 *   doctor         doctor.c        what bounds or breaks the run, in one sentence
 *   questions      status.c, history.c, data_lines.c
 *   the loop       controller_cmd.c
 *
 * Invariants:
 * 1. What is answered is committed: handlers queue answers (answer_later), the loop commits the journal, then sends them.
 * 2. step counts optimizer steps that are in the journal and not superseded; the trainer's weights have had just as many, or the
 *    trainer is told to load.
 * 3. Several trainers are in one round, or not in step (rounds.h).
 * 4. A version of the weights is known by its step and the incarnation that made it (lineage.h). What was sampled with a version that is
 *    not of the present line is refused, and a sampler that holds one takes the present one before it continues.
 * 5. Only controller_return and a rollback change incarnation, and only state_set changes state:
 *      starting -> running             first trainer is in step                     workers.c, run_begin
 *      running <-> paused              command, when its depth is reached           orders.c
 *      running, paused -> stopping     command stop, or the last step is done       run_state.c, run_tick
 *      stopping -> running             the trainer died and is back before the end  returning.c, controller_return
 *                                      or an operator goes back                     rollback.c
 *      stopping -> finished | stopped  everything due is saved and evaluated        run_state.c, run_tick
 *      stopping -> failed              nothing was learned                          run_state.c, run_conclude
 *      any -> failed                   a task failed for good, the journal cannot be written, a process keeps dying, or nothing
 *                                      can be learned from what comes (groups.c, waste_look) */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/run/journal.h"
#include "protocol/run/knobs.h"
#include "protocol/run/rollout_file.h"
#include "protocol/run/run_config.h"
#include "protocol/run/run_state.h"
#include "workers/controller/alarms.h"
#include "workers/controller/answers.h"
#include "workers/controller/changes.h"
#include "workers/controller/checkpoints.h"
#include "workers/controller/counts.h"
#include "workers/controller/doctor.h"
#include "workers/controller/dropping.h"
#include "workers/controller/evals.h"
#include "workers/controller/events.h"
#include "workers/controller/ledger.h"
#include "workers/controller/lineage.h"
#include "workers/controller/orders.h"
#include "workers/controller/data_lines.h"
#include "workers/controller/recent.h"
#include "workers/controller/rescoring.h"
#include "workers/controller/resumed.h"
#include "workers/controller/returning.h"
#include "workers/controller/rollout_log.h"
#include "workers/controller/rounds.h"
#include "workers/controller/rubrics.h"
#include "workers/controller/schedule.h"
#include "workers/controller/solved.h"
#include "workers/controller/step_metrics.h"
#include "workers/controller/storage.h"
#include "workers/controller/tails.h"
#include "workers/controller/workers.h"
#include "workers/process/process.h"

#define BATCH_MAX TRAIN_BATCH_MAX    // groups of a train batch

struct controller {
    struct process process;
    struct server *server;
    struct run_config config;    // run.yaml
    struct run_config now;       // with all changes
    int64_t started_ms;

    /* where the run stands */
    enum run_state state;
    char reason[1024];    // why it is so; "": as planned
    int64_t step, max_steps, incarnation;
    int64_t loading_step;    // where a load that is under way leads; -1: none
    int64_t next_task;

    /* what is kept of it */
    struct journal *journal;
    bool in_transaction;
    bool ship_due;             // after the next commit: a copy of the journal for other machines
    struct answers answers;    // that wait for its commit
    struct storage *storage;
    struct rollout_file *rollouts;
    struct rollout_log *log;    // the readable one
    char rollout_path[4200];

    /* the schedule */
    int64_t n_row;            // usable prompts; 0: no worker has loaded the data yet
    int64_t n_id;             // token ids that may be drawn are below this; 0: no trainer has said so yet
    struct ledger *ledger;    // NULL until then
    struct data_lines lines;
    struct solved solved;
    int64_t rebuild_step, rebuild_item;    // where a journal that was made again begins (journal_rebuild.h); 0: it never was

    struct workers workers;
    struct rounds rounds;
    struct lineage lineage;
    struct orders orders;
    struct changes changes;
    struct resumed *resumed;    // NULL: no settings were given at resume, or they are changes now
    struct checkpoints checkpoints;
    struct evals evals;
    struct step_metrics metrics;
    struct counts counts;
    struct recent recent;
    struct alarms alarms;
    struct doctor doctor;
    struct rescoring rescoring;
    struct dropping dropping;
    bool difference_told;    // between an external engine's log-probs and the trainer's (reports.c)
};

/* ---- opening.c ---- */
MUST_USE bool controller_open(struct controller *c, const char *run_dir, struct error *err);
void controller_close(struct controller *c);
/* Small numbers in the journal, by name; get: otherwise when there is none. */
MUST_USE bool number_get(struct controller *c, const char *name, int64_t otherwise, int64_t *out, struct error *err);
MUST_USE bool number_put(struct controller *c, const char *name, int64_t v, struct error *err);

/* ---- run_state.c ---- */
void state_set(struct controller *c, enum run_state state, const char *who, const char *text);
void run_fail(struct controller *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool run_is_over(const struct controller *c);
bool evaluated_at(const struct controller *c, int64_t step);    // are the last results of all evaluation sets of this step?
void save_if_due(struct controller *c, bool episode_ends);      // is the last step to be saved by the settings?
void run_tick(struct controller *c);                            // each turn of the loop: is it to stop, has it ended?
