/* data_lines.h - on which line of the data each prompt stands, as a worker reports after loading it; and prompts in quarantine
 *
 * Lines count over all files of the data. Both are in the journal. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct controller;
struct ledger;
struct msg_out;
struct mval;
struct data_lines {
    struct buf
        pairs;    // where the prompts stand (protocol/record/prompt_lines.h); empty: they stand in too many places, or nothing is known yet
    bool told;    // a worker has reported them, in this run or before a resume
    struct buf files;    // of data in several files: "LINE PATH\n" for each, with its first line; empty: there is one
};
void lines_release(struct data_lines *l);
MUST_USE bool lines_load(struct controller *c, struct error *err);
/* A worker has loaded the data and reports this; NULL: its report has no such field. */
MUST_USE bool lines_take(struct controller *c, const struct mval *pairs, const struct mval *files, struct error *err);
/* Where a prompt stands, for people: "line 7 ('PATH', line or row 3)", "prompt 6 of the data" when that is not known. Returns out. */
const char *row_place(const struct controller *c, int64_t row, char *out, size_t size);
/* The line that a prompt stands on, as field line; nothing when it is not known. */
void line_write(const struct controller *c, struct msg_out *m, const struct mval *row);
/* The prompt on a line is issued no more, in this run and whenever it is resumed. text: says so. */
MUST_USE bool quarantine_add(struct controller *c, int64_t line, struct buf *text, struct error *err);
MUST_USE bool quarantine_load(struct controller *c, struct ledger *l, struct error *err);    // forbid what was put there
