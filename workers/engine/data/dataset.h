/* dataset.h - a data set: JSON lines, plain or compressed with gzip or zstd, one prompt a line
 *
 * A line is an object with `messages` (one message {role, content}, or a list of them) and what the reward needs:
 * `gt_answer` (a string or a number) or `test_cases` ({inputs, outputs, ...}, or that as a JSON string). With column
 * names given, or when there is no `messages` but a `question` and an `answer` (GSM8K's form), messages is one user
 * message of the question and gt_answer is the answer, what stands behind its last "####" when it has one. Blank lines
 * are passed over. Opening reads every line once and fails on the first wrong one, so that no run stops in its middle;
 * rows are parsed again when asked for, and only the text (plain files: mapped, compressed ones: in memory) is kept.
 * After opening, any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/error.h"

struct dataset;
struct dataset_columns {
    const char *prompt;    // column of the question's text; NULL or "": `messages`
    const char *answer;    // column of the answer; NULL or "": `gt_answer`
};
/* Open path; columns may be NULL. Errors name file, line and field. No rows at all is an error too, and a
 * file of another kind (Parquet, CSV, one JSON array ...) is named with the way to make JSON lines of it. */
struct dataset *dataset_open(const char *path, const struct dataset_columns *columns, struct error *err);
/* The same, and check is asked of each row, too (in the form that dataset_row gives): what it finds wrong fails the opening
 * with file and line before its words. */
typedef bool dataset_check_fn(void *arg, const json_t *row, struct error *err);
struct dataset *dataset_open_checked(const char *path, const struct dataset_columns *columns, dataset_check_fn *check, void *arg,
                                     struct error *err);
void dataset_free(struct dataset *d);
int64_t dataset_n_row(const struct dataset *d);
/* The line in the file, from 1, on which row i (from 0) stands. */
int64_t dataset_line(const struct dataset *d, int64_t i);
/* Row i as an object in which `messages` is a list of at least one message, `gt_answer` is a string when there is one,
 * and `test_cases` an object when there is one; other members as in the file. Returns it for json_decref; NULL: see
 * err. */
json_t *dataset_row(const struct dataset *d, int64_t i, struct error *err);
/* A 64-bit hash of all bytes (after decompression): a run checks that it still has the data it began with (identity.h). */
uint64_t dataset_hash(const struct dataset *d);
/* The row of one line of text, as dataset_row gives it; where ("file:line") stands in errors. */
json_t *dataset_line_parse(const char *line, size_t len, const struct dataset_columns *columns, const char *where, struct error *err);
