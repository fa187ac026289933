/* batch.h - a run told without a screen: aligned lines for people, or JSON lines for programs
 *
 * Used by `rollcall train --batch` and `rollcall console --batch`: both push what they see, this module decides what is
 * printed when. jsonl puts JSON lines and nothing else on the output and flushes each:
 *     {"event":"step","step":n,"metrics":{NAME:value}}        unknown and infinite values are left out
 *     {"event":"finished"|"failed"|"stopped","step":n,"eval":{"SET":{"n":500,"mean":0.84}},"reason":"..."}     the last line
 * text prints a line a step (at most one every interval_s) and at the end a table of the evaluations: start, end, change.
 * Owned by one thread. A broken output never stops the caller: batch_broken tells, batch_end reports it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "protocol/base/error.h"

enum batch_format { BATCH_TEXT, BATCH_JSONL };
enum batch_outcome { BATCH_FINISHED, BATCH_FAILED, BATCH_STOPPED };
struct batch_config {
    enum batch_format format;
    double interval_s;        // least time between two step lines; 0: every step. The last step is always printed
    FILE *out;                // borrowed until batch_free
    const char *run;          // the run's name for the text's first line, or NULL; borrowed by batch_new
};
struct batch_metric {
    const char *name;         // as in protocol/run/metrics.h; borrowed
    double value;             // NAN: unknown
};
struct batch;
/* "text" or "jsonl"; ERR_USAGE names the two. */
MUST_USE bool batch_format_parse(const char *text, enum batch_format *format, struct error *err);
struct batch *batch_new(const struct batch_config *config, struct error *err);
void batch_free(struct batch *b);    // NULL is fine
/* Optimizer step `step` of max_steps (0: unknown) is done. A step not above the last one (a rollback) is told again. */
void batch_step(struct batch *b, int64_t step, int64_t max_steps, const struct batch_metric *metric, int n_metric);
/* An evaluation of a set (at most 16 different ones are kept) after `step` steps: n problems, mean score. */
void batch_eval(struct batch *b, int64_t step, const char *set, int64_t n, double mean);
/* Something an operator should read ("paused by alice"); text only, jsonl leaves it out. */
void batch_note(struct batch *b, const char *text);
bool batch_broken(const struct batch *b);    // the output could not be written; nothing more will be
/* Print the end and turn the outcome into the command's result: true when finished and all was written; false with
 * ERR_STOPPED (exit 3), ERR_INTERNAL (failed: exit 1) or ERR_IO, whose text holds the reason. reason may be NULL. */
MUST_USE bool batch_end(struct batch *b, enum batch_outcome outcome, int64_t step, const char *reason, struct error *err);
