/* line_program.h - the user's own program, in any language, asked over a pipe: one line of JSON in, one line of JSON out
 *
 * The command is run by /bin/sh and kept running. Every question is an object with an "id", and its answer is an object with the
 * same id. One line too many must not shift all later answers by one, so each is compared with the id that was asked:
 *   - an answer to an earlier id, and a line that is not a JSON object (a stray print), are skipped and counted;
 *   - an object with an id that was never asked, or what looks like an answer without an id, shows that the two are out of step:
 *     the program is killed.
 * The log says how many of each there were. It runs with the caller's rights: it is the user's own program and is not sandboxed.
 * Its standard error goes to the log of this process, or where the caller says. Closing its input asks it to end.
 *
 * Nothing that it has started outlives it, or this process (leash.h).
 *
 * One thread at a time. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define LINE_PROGRAM_LATE_S 10.0    // time limit for an answer where the settings give none

struct line_program;
/* Start command. what names it in messages ("reward program") and is borrowed. timeout_s: for an answer; 0: LINE_PROGRAM_LATE_S.
 * errors: a descriptor for its standard error, borrowed as long as it lives; 0: this process's own. Returns it for line_program_free;
 * NULL: see err. */
struct line_program *line_program_new(const char *what, const char *command, double timeout_s, int errors, struct error *err);
void line_program_free(struct line_program *p);    // asks it to end, and kills it after a second; NULL is fine
/* Give up a question within a second after *stop has become true (borrowed as long as p lives). */
void line_program_stop_by(struct line_program *p, const atomic_bool *stop);
/* A new question: the line so far, '{"id":7'. Add ',"key":value' as JSON; the closing brace is line_program_ask's. */
struct buf *line_program_question(struct line_program *p);
/* Ask the question, once; the program is started first when it is not running. On success *answer is the caller's. On
 * failure the program has been stopped, and the same question may be asked again. ERR_TIMEOUT: no answer in time;
 * ERR_CLOSED: the program ended; ERR_DATA: it has lost track, or writes line after line that is not an answer. */
MUST_USE bool line_program_ask(struct line_program *p, json_t **answer, struct error *err);
void line_program_stop(struct line_program *p, int64_t wait_ms);    // ask it to end first when wait_ms > 0; the next question starts it
bool line_program_runs(const struct line_program *p);
int64_t line_program_starts(const struct line_program *p);    // how often it was started; what it knew is lost with each
int64_t line_program_strays(const struct line_program *p);    // lines so far that were not answers
/* True for the 1st, 2nd, 4th, 8th and so on, so that a fault of every sample does not fill the log. */
bool is_worth_a_line(int64_t n);
