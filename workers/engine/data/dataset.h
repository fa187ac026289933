/* dataset.h - a data set: rows with named columns, from one or several files, one prompt each
 *
 * Files are JSON lines, one JSON array, CSV or Parquet, as they are or compressed with gzip or zstd (format.h); they are named by a
 * path, a folder, a pattern, or as a data set of the hub (files.h). The roles of a row's columns are recognised, or named by the
 * run (layout.h). Opening reads every row once and fails on the first wrong one, so that no run stops in the middle; rows are
 * parsed again when requested. Only one form of the text is kept: the mapped bytes of plain files, and the decoded text of
 * compressed files and Parquet. After opening, any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "workers/engine/data/layout.h"

struct dataset;
/* Open what name names; columns may be NULL. Errors name file, line or row, and column. No rows at all is an error too. */
struct dataset *dataset_open(const char *name, const struct dataset_columns *columns, struct error *err);
/* As dataset_open; check is also called for each row (in the form that dataset_row gives). Its error fails the opening, prefixed with
 * file and line. */
typedef bool dataset_check_fn(void *arg, const json_t *row, struct error *err);
struct dataset *dataset_open_checked(const char *name, const struct dataset_columns *columns, dataset_check_fn *check, void *arg,
                                     struct error *err);
void dataset_free(struct dataset *d);
int64_t dataset_n_row(const struct dataset *d);
/* The line of row i (from 0), counted from 1: for JSON lines and CSV the line in the file, for other files the row's number. With
 * several files it is counted through all of them, as if they were one. */
int64_t dataset_line(const struct dataset *d, int64_t i);
/* Where row i is, for messages: "FILE:LINE" or "FILE, row N". Returns out. */
const char *dataset_where(const struct dataset *d, int64_t i, char *out, size_t size);
int dataset_n_file(const struct dataset *d);
const char *dataset_file(const struct dataset *d, int i);
/* The number of a file's first line among those of all, as dataset_line counts. */
int64_t dataset_file_line(const struct dataset *d, int i);
/* Row i as an object in which `messages` is a list of at least one message, or, where a text is the whole prompt, `prompt` is this text
 * and there are no `messages`; `tools` is a list of objects when there are any (both as conversation.h settles them), `gt_answer` a
 * string when there is one, and `test_cases` an object when there is one; other members as in the file. Returns it for json_decref;
 * NULL: see err. */
json_t *dataset_row(const struct dataset *d, int64_t i, struct error *err);
/* Rows whose conversation ended with the assistant's answer, which dataset_row leaves out. */
int64_t dataset_n_answered(const struct dataset *d);
/* What was recognised, for the operator: "3 Parquet files, GSM8K's layout: prompt from 'question', ...". */
void dataset_describe(const struct dataset *d, struct buf *out);
/* A 64-bit hash of the bytes of all files, in order (of compressed text after decompression): a run checks that it still has the data
 * it began with (identity.h). */
uint64_t dataset_hash(const struct dataset *d);
/* The row of one line of text, as dataset_row gives it; where ("file:line") is used in errors. */
json_t *dataset_line_parse(const char *line, size_t len, const struct dataset_columns *columns, const char *where, struct error *err);
