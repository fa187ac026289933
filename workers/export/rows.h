/* rows.h - a run's steps for exporters: each step once, even after a rollback
 *
 * Reads the journal from a cursor that survives kills (a file in RUN/export/NAME/), in the exporter's own process, so
 * that nothing here can slow training. After a rollback the run repeats steps with the same numbers; a step that was handed
 * out is not handed out again. Evaluations are separate rows, one for all sets of a step, with the mean of each as eval/SET, as
 * sent to wandb, and the time of the evaluation. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/journal.h"

/* An exporter's position; a plain value kept in its cursor file. */
struct cursor {
    int64_t seq;          // seq of the last journal row looked at
    int64_t step;         // the last step handed out
    int64_t extra;        // the exporter's own: bytes written, rows sent, ...
    int64_t eval_step;    // the last step whose evaluations were handed out; -1: none
};
#define CURSOR_START ((struct cursor){ .eval_step = -1 })
/* The run's journal, for reading, with the names that the run's metric_names gives to metrics. NULL: see err. */
struct journal *rows_open(const char *run_dir, struct error *err);
/* RUN_DIR/export/NAME/cursor; the start when there is none. Makes the folder. */
MUST_USE bool cursor_read(struct cursor *c, const char *run_dir, const char *name, struct error *err);
MUST_USE bool cursor_write(const struct cursor *c, const char *run_dir, const char *name, struct error *err);

/* Pass every new step to fn (in journal.h's form), then every new evaluation in the same form, and move the cursor in memory. When
 * fn returns false, reading stops and that row does not count as handed out. */
MUST_USE bool rows_read(struct journal *j, struct cursor *c, journal_step_fn *fn, void *arg, struct error *err);

/* Are people sent a message about this event? About alerts, and critical alarms when they begin. */
bool event_alerts(const struct journal_event *e);
/* How the run ended, from the newest state in its journal: exit code 0 finished, 3 stopped, 1 failed; -1 while it has not ended. */
int run_exit_code(struct journal *j);
/* Is the run still going? That is: its lock is held, and its journal has no end. */
bool run_goes_on(struct journal *j, const char *run_dir);
/* Wait until there may be something new: the journal's files change, or limit_ms pass. */
void rows_wait(const char *run_dir, int64_t limit_ms);
