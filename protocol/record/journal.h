/* journal.h - the run's record: one SQLite file that survives any kill
 *
 * Written by the controller's loop thread alone, inside transactions (journal_begin … journal_commit): what was committed
 * survives kill -9 of every process (WAL, synchronous NORMAL; a power cut may lose the last moments but never leaves a partial commit).
 * A thread of the journal folds the write-ahead log into the file, and the log is truncated when the writer rests (journal_rest),
 * so that no append waits for it. Readers (console back-fill, exporters, tools) open it read-only, in any process. Rows are copied
 * one page at a time before a callback is called, so a callback may be slow and may read the journal itself.
 *
 * Step rows are keyed by (incarnation, step). Beginning a new incarnation at step s marks every older row after s as superseded;
 * readers see only the others. seq grows with every step row, so an exporter can tail by it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/record/histogram.h"

struct journal;
/* Can run_dir hold a journal? Not when its path is too long for SQLite; the message gives the limit. */
MUST_USE bool journal_path_check(const char *run_dir, struct error *err);
/* Make or open RUN_DIR/journal.db for writing. A file made by a newer version is refused. */
struct journal *journal_open(const char *run_dir, struct error *err);
/* Open one for reading only; fails when there is none. If the run's journal is on another machine, its snapshot is opened. */
struct journal *journal_open_reader(const char *run_dir, struct error *err);
/* False when the last attempt to fold the log has failed (a full disk): err says why. Waiting for a reader is no failure. */
bool journal_folds(struct journal *j, struct error *err);
/* For the writer of a journal that is on this machine's own disk (journal_home.h), after a commit: have a copy of it made in the run's
 * folder, on the journal's thread; closing makes one, too. Does nothing for others. */
void journal_ship(struct journal *j);
/* False when the last copy could not be made: err says why; ERR_EXISTS: another machine has taken the run over. */
bool journal_ships(struct journal *j, struct error *err);
void journal_close(struct journal *j);    // NULL is fine; an open transaction is rolled back

MUST_USE bool journal_begin(struct journal *j, struct error *err);
MUST_USE bool journal_commit(struct journal *j, struct error *err);
void journal_rollback(struct journal *j);
/* For the writer, after each commit, when whoever waited for that has been answered: cuts the write-ahead log when it is long and all
 * of it is folded, and waits (at most a second) for the folding when the log has grown faster than that. Without it the log grows
 * without end. What cannot be done now is done at a later rest. */
void journal_rest(struct journal *j);

/* Begin a new incarnation of the run, which continues after optimizer step from_step; returns its number (1, 2, …), or -1. */
int64_t journal_incarnation_begin(struct journal *j, int64_t from_step, struct error *err);
/* Called for each incarnation, oldest first; returning false ends the reading. */
typedef bool journal_incarnation_fn(void *arg, int64_t incarnation, int64_t from_step);
MUST_USE bool journal_incarnations_read(struct journal *j, journal_incarnation_fn *fn, void *arg, struct error *err);

/* One step's metrics. name: borrowed texts (at most 96 bytes each); value: NAN is kept as "not known". */
struct journal_metric {
    const char *name;
    double value;
};
MUST_USE bool journal_step_add(struct journal *j, int64_t incarnation, int64_t step, double wall_s, const struct journal_metric *metric,
                               int n, struct error *err);
/* The histograms of the step that was added last, packed (histogram.h). */
MUST_USE bool journal_histograms_add(struct journal *j, const void *data, size_t len, struct error *err);
/* Those of the step with this seq that are not empty, under the names of journal_names_set. Returns how many; -1: see err. An older
 * journal has none. */
struct journal_histogram {
    const char *name;
    struct histogram h;
};
int journal_histograms_read(struct journal *j, int64_t seq, struct journal_histogram out[HISTOGRAM_N], struct error *err);
/* Called for each step row in order of seq; metric is borrowed during the call. Returning false ends the reading. */
struct journal_step {
    int64_t seq, incarnation, step;
    double wall_s;
    const struct journal_metric *metric;
    int n;
};
typedef bool journal_step_fn(void *arg, const struct journal_step *row);
/* Have journal_steps_read name metrics so (enum metric_naming of metric_names.h). */
void journal_names_set(struct journal *j, int naming);
/* Rows with seq > after_seq that are not superseded. */
MUST_USE bool journal_steps_read(struct journal *j, int64_t after_seq, journal_step_fn *fn, void *arg, struct error *err);
/* The last step that is not superseded, or, when there is none yet, the step from which the newest incarnation continues. 0: none. */
MUST_USE bool journal_last_step(struct journal *j, int64_t *step, struct error *err);
/* The furthest step that any incarnation has reached, superseded or not. 0: none. */
MUST_USE bool journal_furthest_step(struct journal *j, int64_t *step, struct error *err);

/* The number of the newest step row, superseded or not; 0: there is none. */
MUST_USE bool journal_last_seq(struct journal *j, int64_t *seq, struct error *err);

/* Number steps and events from first on, above those there are. A rebuilt journal continues above the numbers of the lost one, so
 * that readers that tail the run by seq miss nothing. */
MUST_USE bool journal_seq_begin(struct journal *j, int64_t first, struct error *err);

/* What happened to an item; each has one row, and its fate only moves forward within an incarnation. */
enum item_fate {
    ITEM_ISSUED,
    ITEM_RETURNED,
    ITEM_FILTERED,
    ITEM_STALE,
    ITEM_TRAINED,
    ITEM_STOPPED,    // its rollout step had enough shorter groups (over_sample_rate), or an operator dropped it before it was back
};
struct journal_item {
    int64_t item, prompt_row, rollout_step, weight_version;
    enum item_fate fate;
    int64_t step;                       // that trained on it, when fate is ITEM_TRAINED
    double reward_mean;                 // NAN: not known
    int64_t file_offset, file_bytes;    // in the rollout files; -1: not stored
};
MUST_USE bool journal_item_put(struct journal *j, const struct journal_item *item, struct error *err);
typedef bool journal_item_fn(void *arg, const struct journal_item *item);
int64_t journal_last_item(struct journal *j);    // the newest; -1: there is none
/* Items from first on, in order. */
MUST_USE bool journal_items_read(struct journal *j, int64_t first, journal_item_fn *fn, void *arg, struct error *err);

/* What the rubric of a prompt became with the group of an item (evolving rubrics), JSON. */
MUST_USE bool journal_rubric_put(struct journal *j, int64_t item, int64_t prompt_row, int64_t rollout_step, const char *data, size_t len,
                                 struct error *err);
/* The newest one of a prompt up to a rollout step, by the number of its item. */
MUST_USE bool journal_rubric_get(struct journal *j, int64_t prompt_row, int64_t rollout_step, struct buf *out, bool *found,
                                 struct error *err);
MUST_USE bool journal_rubrics_forget(struct journal *j, int64_t first_item, int64_t last_item, struct error *err);    // of these items

/* The audit trail: state changes, commands, knob changes, alerts, evaluations. detail is JSON or "". */
MUST_USE bool journal_event_add(struct journal *j, int64_t incarnation, int64_t step, const char *kind, const char *who, const char *text,
                                const char *detail, struct error *err);
struct journal_event {
    int64_t seq, incarnation, step;
    double wall_s;
    const char *kind, *who, *text, *detail;    // borrowed during the call
};
typedef bool journal_event_fn(void *arg, const struct journal_event *e);
/* Events with seq > after_seq; kind NULL: all. */
MUST_USE bool journal_events_read(struct journal *j, int64_t after_seq, const char *kind, journal_event_fn *fn, void *arg,
                                  struct error *err);

/* Commands are executed once: remember the answer to an id; found says whether an id is known. */
MUST_USE bool journal_command_put(struct journal *j, const char *id, const char *answer, struct error *err);
MUST_USE bool journal_command_get(struct journal *j, const char *id, struct buf *answer, bool *found, struct error *err);

/* What an agent measured on its node: figures by name (protocol/run/telemetry.h). An older journal has none. */
MUST_USE bool journal_sample_add(struct journal *j, const char *node, double wall_s, const struct journal_metric *figure, int n,
                                 struct error *err);
struct journal_sample {
    int64_t seq;
    const char *node;
    double wall_s;
    const struct journal_metric *figure;    // borrowed during the call
    int n;
};
typedef bool journal_sample_fn(void *arg, const struct journal_sample *s);
/* Samples with seq > after_seq, oldest first; false from fn ends the reading. */
MUST_USE bool journal_samples_read(struct journal *j, int64_t after_seq, journal_sample_fn *fn, void *arg, struct error *err);
/* The seq of the newest sample, 0 when there is none. */
int64_t journal_last_sample(struct journal *j);

/* Small named values: cursors of exporters, the controller's own state. value: bytes. */
MUST_USE bool journal_value_put(struct journal *j, const char *name, const void *value, size_t len, struct error *err);
MUST_USE bool journal_value_get(struct journal *j, const char *name, struct buf *value, bool *found, struct error *err);

/* An evaluation's result; detail is JSON. When a set is evaluated twice at a step, the newer result stays. */
MUST_USE bool journal_eval_put(struct journal *j, int64_t incarnation, int64_t step, const char *set, int64_t n, double mean,
                               const char *detail, struct error *err);
struct journal_eval {
    int64_t incarnation, step, n;
    const char *set, *detail;
    double mean;
};
typedef bool journal_eval_fn(void *arg, const struct journal_eval *e);
MUST_USE bool journal_evals_read(struct journal *j, journal_eval_fn *fn, void *arg, struct error *err);

/* Checkpoints by step. state: "complete", "broken", "undone" (a rollback moved it aside) or "removed". */
MUST_USE bool journal_checkpoint_put(struct journal *j, int64_t step, const char *path, const char *state, double stall_s, double write_s,
                                     struct error *err);
struct journal_checkpoint {
    int64_t step;
    const char *path, *state;
    double stall_s, write_s, wall_s;
};
typedef bool journal_checkpoint_fn(void *arg, const struct journal_checkpoint *c);
MUST_USE bool journal_checkpoints_read(struct journal *j, journal_checkpoint_fn *fn, void *arg, struct error *err);
/* Why the checkpoint of a step was made, in words, at most JOURNAL_WHY - 1 bytes; "": the journal does not say. */
#define JOURNAL_WHY 96
MUST_USE bool journal_why_put(struct journal *j, int64_t step, const char *why, struct error *err);
MUST_USE bool journal_why_get(struct journal *j, int64_t step, char why[JOURNAL_WHY], struct error *err);
