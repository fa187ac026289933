/* batch.h - a run printed without a screen: aligned lines for people, or JSON lines for programs
 *
 * Used by `rollcall train --batch` and `rollcall console --batch`: both push what they see, and this module decides what is printed
 * when. jsonl writes only JSON lines and flushes each; console/tui/README.md lists the events and their fields. Unknown and
 * infinite values are left out. The last line is the run's end (finished, failed or stopped), or `left`: the run continues and only
 * the watching has ended. text prints one line per step (at most one every interval_s) and at the end a table of the evaluations:
 * start, end, change. Owned by one thread. A broken output never stops the caller: batch_broken says so, and batch_end reports it.
 * */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "protocol/base/error.h"
#include "protocol/run/run_state.h"

enum batch_format {
    BATCH_TEXT,
    BATCH_JSONL,
};
struct batch_config {
    enum batch_format format;
    double interval_s;     // least time between two step lines; 0: every step. The last step is always printed
    FILE *out;             // borrowed until batch_free
    const char *run;       // the run's name for the text's first line, or NULL; borrowed by batch_new
    const char *fields;    // metrics to tell, names between commas; NULL: the usual ones (text), all (jsonl). Borrowed until batch_free
};
struct batch_metric {
    const char *name;    // as in protocol/settings/metrics.h; borrowed
    double value;        // NAN: unknown
};
struct batch;
/* "text" or "jsonl"; ERR_USAGE names the two. */
MUST_USE bool batch_format_parse(const char *text, enum batch_format *format, struct error *err);
/* Are these names of metrics (or of the families reward/ and eval/)? ERR_USAGE names the first that is not. */
MUST_USE bool batch_fields_check(const char *fields, struct error *err);
struct batch *batch_new(const struct batch_config *config, struct error *err);
void batch_free(struct batch *b);    // NULL is fine
/* The run was going before: for elapsed_s, and it takes step_s a step, as it says itself; NAN: it does not. Before the first step. */
void batch_joins(struct batch *b, double elapsed_s, double step_s);
/* The run ends by the clock in limit_s at the latest (max_hours); NAN: it does not. For the steps printed from now on. */
void batch_ends_in(struct batch *b, double limit_s);
/* Optimizer step `step` of max_steps (0: unknown) is done. A step that is not above the last one (a rollback) is printed again. */
void batch_step(struct batch *b, int64_t step, int64_t max_steps, const struct batch_metric *metric, int n_metric);
/* An evaluation of a set (at most 16 different ones are kept for the end) after `step` steps: n problems, mean score. */
void batch_eval(struct batch *b, int64_t step, const char *set, int64_t n, double mean);
/* An evaluation that was printed before: it only counts for the table at the end. */
void batch_eval_known(struct batch *b, const char *set, int64_t n, double mean);
/* What a set that was printed began with, before the watching did. */
void batch_eval_began(struct batch *b, const char *set, double mean);
/* A row of the run's journal of events (protocol/record/journal.h), in its order: alerts, knob changes, commands, checkpoints, returns
 * and states are printed; the run's last state and evaluations are not (batch_end and batch_eval print them). detail: JSON or "".
 * */
struct batch_event {
    int64_t step;
    const char *kind, *who, *text, *detail;    // borrowed
};
void batch_event(struct batch *b, const struct batch_event *e);
/* Something that an operator should read but is not an event of the run ("the link is lost"); text only, jsonl leaves it out. */
void batch_note(struct batch *b, const char *text);
/* What bounds or breaks the run (console/fleet/doctor.h), when that has changed: a line, or an event doctor. kind: bound, warn, crit. */
/* What has bound the run, for the closing lines; "": nothing is known. */
void batch_bound(struct batch *b, const char *text);
void batch_doctor(struct batch *b, int64_t step, const char *kind, const char *text, const char *remedy);
bool batch_broken(const struct batch *b);    // the output could not be written; nothing more will be
/* Print the end and turn the run's state into the command's result. A state that is not final is printed as `left`: the run
 * continues, only the output ends. True when finished, or left, and everything was written; false with ERR_STOPPED (exit 3),
 * ERR_INTERNAL (failed: exit 1) or ERR_IO, whose text holds the reason. reason may be NULL. A reader that has closed the pipe has
 * seen what it wanted: with `left` that is not an error. */
MUST_USE bool batch_end(struct batch *b, enum run_state state, int64_t step, const char *reason, struct error *err);
