/* controller.h - the controller's state; owned by its loop thread, which nothing here locks against
 *
 * A part of the state has its struct, its header and its file, and is changed by its own functions:
 *
 *   run            run_state.c     its state; run_end.c: when the run stops, and what it ends as; due.c: what settings want after a step;
 *                  time_used.c     how long it has gone
 *   open           opening.c       building the state from run directory and journal; numbers.c: numbers in the journal
 *   answers        answers.c       sent once the journal has what they say; events.c: into the journal and to listeners
 *   orders         orders.c        what operators want; outcomes.c: how their commands ended
 *   changes        changes.c       knobs changed while the run goes; resumed.c: settings given at resume
 *   workers        workers.c       what they ask; roster.c: which there are; facts.c, decide.c, give.c: what each gets next; reports.c: what
 *                                  they have done
 *   rounds         rounds.c        how several trainers stay together
 *   lineage        lineage.c       which incarnation made which step; returning.c: going back to an earlier one
 *   weights        weights.c       where each version can be had
 *   ledger         ledger.c        what becomes of every item; schedule.c: the same in the journal; prompt_order.c: which prompt it is
 *                  levels.c        how difficult prompts are by now; curriculum.c: the rule
 *   groups         groups.c        rollout groups that come and go; storage.c: on their way to the disk; recent.c: the last ones;
 *                  lent_groups.c   those of machines that may only sample
 *   amending       amending.c      groups that an operator changes: dropping.c, rescoring.c
 *   checkpoints    checkpoints.c   which there are, which is wanted; rollback.c: going back to one when an operator wants it
 *   evals          evals.c         the same for evaluations; eval_sets.c: their answers; evaluating.c: among the other work
 *   metrics        step_metrics.c  the numbers of a step; counts.c, waste.c: of the whole run
 *   alarms         alarms.c        what the run is watched for, and what follows
 *   doctor         doctor.c        what bounds or breaks the run, in one sentence
 *   missing        missing.c       trainers of other nodes that have not come
 *   servers        servers.c       outside the run, from which environments draw: which have not got the weights
 *   questions      status.c, history.c, data_lines.c
 *   the loop       controller_cmd.c; check.c: do the invariants hold after a turn?
 *
 * In workers/schedule, which does not know this state: checkpoints, curriculum, decide, eval_sets, evals, ledger, lineage, prompt_order, rollout_log,
 * waste.
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
 *      running, paused -> stopping     command stop, the last step is done, or      run_end.c, run_tick
 *                                      max_hours are over
 *      stopping -> running             the trainer died and is back before the end  returning.c, controller_return
 *                                      or an operator goes back                     rollback.c
 *      stopping -> finished | stopped  everything due is saved and evaluated        run_end.c, run_tick
 *      stopping -> failed              nothing was learned                          run_end.c, run_conclude
 *      any -> failed                   a task failed for good, the journal cannot be written, a process keeps dying, or nothing
 *                                      can be learned from what comes (groups.c, waste_look) */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/record/journal.h"
#include "protocol/record/rollout_file.h"
#include "protocol/run/run_state.h"
#include "protocol/settings/knobs.h"
#include "protocol/settings/run_config.h"
#include "workers/controller/alarms.h"
#include "workers/controller/answers.h"
#include "workers/controller/changes.h"
#include "workers/controller/counts.h"
#include "workers/controller/data_lines.h"
#include "workers/controller/doctor.h"
#include "workers/controller/dropping.h"
#include "workers/controller/events.h"
#include "workers/controller/levels.h"
#include "workers/controller/missing.h"
#include "workers/controller/numbers.h"
#include "workers/controller/orders.h"
#include "workers/controller/posted.h"
#include "workers/controller/recent.h"
#include "workers/controller/rescoring.h"
#include "workers/controller/resumed.h"
#include "workers/controller/returning.h"
#include "workers/controller/rounds.h"
#include "workers/controller/rubrics.h"
#include "workers/controller/schedule.h"
#include "workers/controller/servers.h"
#include "workers/controller/solved.h"
#include "workers/controller/step_metrics.h"
#include "workers/controller/storage.h"
#include "workers/controller/tails.h"
#include "workers/controller/workers.h"
#include "workers/process/process.h"
#include "workers/schedule/checkpoints.h"
#include "workers/schedule/evals.h"
#include "workers/schedule/ledger.h"
#include "workers/schedule/lineage.h"
#include "workers/schedule/rollout_log.h"

#define BATCH_MAX TRAIN_BATCH_MAX    // groups of a train batch

struct controller {
    struct process process;
    struct server *server;
    struct run_config config;    // run.yaml
    struct run_config now;       // with all changes
    int64_t started_ms;
    double elapsed_before_s;    // since the run's first event when this controller started; 0: it begins
    int64_t used_before_ms;     // for how long earlier controllers of this run went
    int64_t used_kept_ms;       // clock_ms when the run's whole time was last put into the journal

    /* where the run stands */
    enum run_state state;
    char reason[1024];                       // why it is so; "": as planned
    void (*ending)(struct controller *c);    // state_set calls it before it tells that the run is over,
    void (*ended)(struct controller *c);     // and this one afterwards
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
    struct levels levels;
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
    struct posted posted;
    struct servers servers;
    struct missing missing;
    bool difference_told;    // between an external engine's log-probs and the trainer's (reports.c)
};

/* ---- opening.c ---- */
MUST_USE bool controller_open(struct controller *c, const char *run_dir, struct error *err);
void controller_close(struct controller *c);

/* ---- run_state.c ---- */
void state_set(struct controller *c, enum run_state state, const char *who, const char *text);
void run_fail(struct controller *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool run_is_over(const struct controller *c);

/* ---- time_used.c ---- */
double run_used_s(const struct controller *c);    // for how long the run's controllers have gone, without the time between them
MUST_USE bool run_used_keep(struct controller *c, struct error *err);    // put that into the journal
void run_used_note(struct controller *c);                                // likewise; a failure is only logged

/* ---- due.c ---- */
bool evaluated_at(const struct controller *c, int64_t step);    // are the last results of all evaluation sets of this step?
void save_if_due(struct controller *c, bool episode_ends);      // is the last step to be saved by the settings?

/* ---- check.c ---- */
void controller_check(const struct controller *c);    // in test builds: do the invariants hold? Ends the process if not

/* ---- run_end.c ---- */
void run_tick(struct controller *c);    // each turn of the loop: is it to stop, has it ended?
