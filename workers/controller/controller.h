/* controller.h - the controller's state, shared by the files of this folder; owned by its loop thread
 *
 * controller_cmd.c   the loop: events in, journal, answers out; the heartbeat's detail
 * run_state.c        building the state from run directory and journal; returning to a checkpoint; ending
 * work.c             what workers ask and report: work, group, fetch, done
 * orders.c           what operators ask: command, steps, events, rollouts, checkpoints
 * counts.c           what is counted over all lives of the controller: totals, and groups in a row that gave nothing
 * storage.c          the disk under the run: groups that are synced before they are noted; the journal's log
 * waste.c            groups in a row that nothing can be learned from
 *
 * Invariants:
 * 1. What is answered is committed: handlers queue answers (answer_later), the loop commits the journal, then sends them.
 * 2. step counts optimizer steps that are in the journal and not superseded; the trainer's weights have had just as many, or the
 *    trainer is told to load.
 * 3. Several trainers are in one round, or not in step: a round is a meeting of theirs (kernels/collective), it ends for all when one
 *    dies, leaves or lives anew, and then all load the same checkpoint and meet in the next. A step that one of them has been told to
 *    make is given to all of them, whatever else is wanted meanwhile, since they wait for each other in it.
 * 4. A version is known by its number of optimizer steps and by the incarnation that made it (version_made): after a return its
 *    number may come again with other weights. What was sampled with a version that is not of the present line is refused, and who
 *    holds one takes the present one before it goes on.
 * 5. Only controller_return changes incarnation, and only state_set changes state:
 *      starting -> running             first worker has loaded                      work.c, done_load
 *      running <-> paused              command, when its depth is reached           orders.c, orders_tick
 *      running, paused -> stopping     command stop, or the last step is done       orders.c, work.c
 *      stopping -> running             the trainer died and is back before the end  run_state.c, controller_return
 *      stopping -> finished | stopped  everything due is saved and evaluated        run_state.c, run_tick
 *      stopping -> failed              nothing was learned                          run_state.c, run_conclude
 *      any -> failed                   a task failed for good, the journal cannot be written, a process keeps dying, or nothing
 *                                      can be learned from what comes (work.c, waste_look) */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/run/knobs.h"
#include "protocol/run/metrics.h"
#include "protocol/run/run_config.h"
#include "protocol/run/journal.h"
#include "protocol/run/run_state.h"
#include "workers/controller/ledger.h"
#include "workers/controller/rollout_log.h"
#include "workers/controller/waste.h"
#include "workers/process/process.h"
#include "workers/engine/publish/outlet.h"
#include "protocol/run/rollout_file.h"

#define WORKER_MAX 64
#define HOLD_MS 2000                 // a request for work is held open so long
#define RECENT_MAX 16                // groups kept as bytes for the operator's screen
#define BATCH_MAX TRAIN_BATCH_MAX    // groups of a train batch
#define CHECKPOINT_MAX 256           // remembered
#define COUNT_MAX 16                 // numbers in totals and waste

enum pause_depth {
    PAUSE_NONE,
    PAUSE_ROLLOUTS,
    PAUSE_STEP,
    PAUSE_DRAIN,
};

struct worker {
    char name[64];
    int64_t start;                       // its life; 0: the slot is free
    int64_t incarnation, step, items;    // items: inside its sampler
    int64_t version, made;               // of the weights it samples with: optimizer steps, and the incarnation that made them so
    bool produces, consumes, busy;
    int64_t rank;                  // among the trainers; -1
    int64_t round, given_round;    // it has met the other trainers in; it was told to meet them in
    int64_t task;                  // given and not reported; 0: none
    enum task_kind task_kind;      // TASK_NONE when there is none
    int64_t task_step;
    int64_t shared[OUTLET_SLOT_MAX];    // (n_shared) versions that it keeps for others, as it said last
    int n_shared, n_again;              // n_again: weights that did not come, in a row
    struct request *held;               // a request for work that waits
    int64_t held_ms, heard_ms;
};
struct line_part {
    int64_t incarnation, from;    // it made the steps beyond from, up to the next part's
};
struct knob_change {
    int64_t step, rollout_step;    // from when on it holds
    const struct knob *knob;
    char value[RUN_TEXT_MAX];
    char before[RUN_TEXT_MAX];
    int64_t group;    // changes of one command
};
struct checkpoint_row {
    int64_t step;
    char path[4096];
    bool complete;
};
struct eval_row {
    char set[64];
    int64_t step, n;
    double mean;
};
/* Settings given at resume, until they have become changes of knobs. */
struct resumed {
    struct run_config was, wanted;    // run.yaml before, and with them
    bool given[KNOB_MAX];
};
struct pending_command {
    struct request *request;
    char id[128], name[32], who[128];
    enum pause_depth depth;
    int64_t step;    // checkpoint, eval: of which step
    int64_t limit_ms;
};
struct answer {
    struct request *request;
    struct msg_out msg;
};
/* Of all groups that have come, each counted once in the transaction that keeps it; returning to an earlier step takes none away. */
struct totals {
    int64_t n_tok, n_sample, n_timeout, n_error;
    int64_t n_wasted;    // samples of groups that nothing could be learned from (waste.h)
};
/* Of the groups that came since something. */
struct score_sums {
    double wait_s;        // that groups waited for their scores
    double response_s;    // that responses did
    double verify_s;      // that verifiers worked
    int64_t n;            // responses
};
struct controller {
    struct process process;
    struct server *server;
    struct journal *journal;
    bool in_transaction;
    struct rollout_file *rollouts;
    struct rollout_log *log;    // the readable one
    char rollout_path[4200], checkpoint_dir[4200];
    struct run_config config;    // run.yaml
    struct run_config now;       // with all changes
    struct ledger *ledger;       // NULL until n_row is known
    int64_t n_row;
    int64_t rebuild_step, rebuild_item;    // where a journal that was made again begins (journal_rebuild.h); 0: it never was
    struct buf lines;                      // where the prompts stand (prompt_lines.h)
    bool lines_told;
    struct buf line_files;    // of data in several files: first lines and paths, as done has them
    enum run_state state;
    enum pause_depth pause;    // wanted
    char reason[1024];
    bool stop_wanted;
    int64_t step, max_steps, incarnation, next_task;
    struct line_part *line;    // (n_line) who made the steps that are not undone; from grows
    int64_t n_line, line_cap;
    int64_t loading_step;    // where a load that is under way leads; -1: none
    /* several trainers; the first two are in the journal */
    int64_t round;      // the meeting they are in or are to be in; 0: none yet, or one trainer
    int64_t begun;      // the optimizer step that one of them has been told to make: then all are; -1
    bool round_open;    // nobody has been seen in it
    struct worker worker[WORKER_MAX];
    int n_worker;
    /* saving and evaluating */
    int64_t save_wanted, saving;    // optimizer step; -1: none
    int64_t eval_wanted, evaluating;
    double save_stall_s, save_write_s;
    struct checkpoint_row *checkpoint;    // (n_checkpoint) newest last
    int n_checkpoint;
    struct eval_row eval[EVAL_SET_MAX];
    int n_eval;
    struct knob_change *change;    // (n_change)
    int64_t n_change, change_cap, change_group;
    struct resumed *resumed;    // NULL: none were given, or they are changes now
    struct pending_command pending[32];
    int n_pending;
    struct answer *answer;    // (n_answer) to be sent after the commit
    int n_answer, answer_cap;
    /* the last groups, as their messages */
    struct buf recent[RECENT_MAX];
    int64_t recent_item[RECENT_MAX], n_recent, rollout_ms;
    /* the last step's numbers, and sums since it */
    struct journal_metric metric[96];
    char metric_name[96][96];
    int n_metric;
    int64_t worked_ms;    // when work_tick was called last
    int64_t started_ms, step_ms, ended_ms;
    double step_s_mean;
    double host_mem_bytes;    // of the run's processes, as last sampled; 0: not yet
    struct totals total;
    int64_t count_kept[COUNT_MAX];         // total and waste as the journal has them (counts.c)
    struct score_sums scored;              // since the last step
    int64_t storage_ms, log_told_bytes;    // when the journal's log was looked at; how long it was when an alert said so, 0: none did
    bool fold_told;                        // that it cannot be folded
    int log_reader_pid;                    // that read the log at the last look; 0: nobody did
    struct waste waste;                    // up to the last group that came
    struct storage *storage;               // storage.c's own
};

/* run_state.c */
MUST_USE bool controller_open(struct controller *c, const char *run_dir, struct error *err);
void controller_close(struct controller *c);
/* How far the run goes, from max_steps or num_episodes as they are now. */
MUST_USE bool length_set(struct controller *c, struct error *err);
MUST_USE bool ledger_prepare(struct controller *c, int64_t n_row, struct error *err);    // once n_row is known
MUST_USE bool state_save(struct controller *c, struct error *err);                       // ledger state, cursors
/* Small numbers in the journal, by name; get: otherwise when there is none. */
MUST_USE bool number_get(struct controller *c, const char *name, int64_t otherwise, int64_t *out, struct error *err);
MUST_USE bool number_put(struct controller *c, const char *name, int64_t v, struct error *err);
void state_set(struct controller *c, enum run_state state, const char *who, const char *text);
void run_fail(struct controller *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool run_is_over(const struct controller *c);
/* The newest step that can be returned to, its checkpoint's path ("" for the start). */
int64_t return_target(struct controller *c, char path[4096]);
/* The same, also further back than the ledger keeps in reach: its items are then read from the journal again. -1: there is none. */
int64_t return_find(struct controller *c, char path[4096]);
MUST_USE bool controller_return(struct controller *c, int64_t step, struct error *err);
/* The incarnation that made version, or will; 0: none, the weights the run began with. */
int64_t version_made(const struct controller *c, int64_t version);
/* Records of groups that were marked lost in the ledger: what is still needed of them is sampled again; n, where and why: for the alert. */
MUST_USE bool groups_lost(struct controller *c, int64_t n, const struct error *why, struct error *err);
/* All trainers go back to the newest step that can be returned to; several of them meet anew. False: the run has failed. */
bool trainers_return(struct controller *c, char path[4096]);
MUST_USE bool step_begin(struct controller *c, struct error *err);        // a trainer is told to make the next step
bool step_is_open(const struct controller *c);                            // a trainer has been told to make it, and it is not done
MUST_USE bool ledger_advance(struct controller *c, struct error *err);    // cut and open what can be
void run_tick(struct controller *c);
/* The settings as they hold for optimizer step `step` and rollout step `rollout_step` (INT64_MAX: all changes). */
void config_at(const struct controller *c, int64_t step, int64_t rollout_step, struct run_config *out);
void knobs_write(const struct controller *c, int64_t step, int64_t rollout_step, struct msg_out *m);    // the changed ones
MUST_USE bool changes_save(struct controller *c, struct error *err);
/* Into the journal and to the listeners: text is for people, detail (JSON or "") for programs, by kind as in
 * protocol/wire/README.md. */
void event_add(struct controller *c, const char *kind, const char *who, const char *text, const char *detail);
/* The same with an object; takes facts. NULL: there are none, or there was no memory for them. */
void event_add_facts(struct controller *c, const char *kind, const char *who, const char *text, json_t *facts);
void publish(struct controller *c, const char *topic, void (*body)(struct controller *c, struct msg_out *m));
MUST_USE bool transaction(struct controller *c, struct error *err);    // begin one if none is open

/* counts.c */
/* total and waste as the journal has them. A run that was over begins a new row: its operator has seen to the cause. */
MUST_USE bool counts_load(struct controller *c, struct error *err);
/* Put what has changed of them into the journal, in the open transaction. */
MUST_USE bool counts_keep(struct controller *c, struct error *err);
void totals_add(struct controller *c, const struct group_summary *group);

/* work.c */
void work_asked(struct controller *c, struct request *r, const struct msg_in *in);
void group_came(struct controller *c, struct request *r, const struct msg_in *in, const void *data, size_t len);
/* What storage_put was given is on disk: the group belongs to the run. sum: with its place in the file. */
void group_note(struct controller *c, struct request *r, const struct msg_in *in, const struct group_summary *sum, const void *data,
                size_t len);
void fetch_asked(struct controller *c, struct request *r, const struct msg_in *in);
void done_came(struct controller *c, struct request *r, const struct msg_in *in);
void gone_told(struct controller *c, struct request *r, const struct msg_in *in);
/* The file that version's weights are shared in. */
void weights_path(const struct controller *c, int64_t version, char *out, size_t size);
bool work_tick(struct controller *c);    // answer held requests that can be; true: it has freed what others may take, so call it again
int64_t work_due(const struct controller *c);    // these three: when the tick must be called next, on the monotonic clock
int64_t workers_in_task(const struct controller *c, enum task_kind kind);

/* orders.c */
void command_came(struct controller *c, struct request *r, const struct msg_in *in);
void steps_asked(struct controller *c, struct request *r, const struct msg_in *in);
void events_asked(struct controller *c, struct request *r, const struct msg_in *in);
/* The line of the data's file that a prompt stands on, as field line; nothing when it is not known. */
void line_write(const struct controller *c, struct msg_out *m, const struct mval *row);
/* Where the prompts stand, as a worker has told after loading; kept in the journal. */
MUST_USE bool lines_take(struct controller *c, const struct mval *told, const struct mval *files, struct error *err);
void rollouts_asked(struct controller *c, struct request *r, const struct msg_in *in);
void orders_tick(struct controller *c);
int64_t orders_due(const struct controller *c);
/* Look whether settings were given at resume: then now is as it was without them. */
MUST_USE bool orders_resumed_read(struct controller *c, struct error *err);
/* ... and make them changes, from where the run goes on; once the ledger is there. A proposal that cannot be fails the run. */
MUST_USE bool orders_resumed_apply(struct controller *c, struct error *err);
void orders_restore(struct controller *c);    // what pause or stop was wanted before this controller began
void orders_refuse_all(struct controller *c, const char *why);

/* storage.c */
MUST_USE bool storage_open(struct controller *c, struct error *err);    // once c->rollouts is open
void storage_close(struct controller *c);
/* Append a group to the rollout file; r is answered by group_note once it is on disk, and taken on success only. A group of an item that
 * is on its way already is not appended again. */
MUST_USE bool storage_put(struct controller *c, struct request *r, int64_t item, const struct group_summary *sum, const void *data,
                          size_t len, struct error *err);
void storage_note(struct controller *c);    // each turn of the loop: note what has reached the disk
void storage_tick(struct controller *c);    // each turn of the loop; looks once a second
int64_t storage_due(const struct controller *c);

/* controller_cmd.c */
void answer_later(struct controller *c, struct request *r, struct msg_out *m);    // takes m
void refuse_later(struct controller *c, struct request *r, const struct error *why);
void ok_later(struct controller *c, struct request *r);
MUST_USE bool item_write(struct controller *c, const struct ledger_item *i, struct error *err);
MUST_USE bool ledger_step_done(struct controller *c, int64_t batch, struct error *err);
