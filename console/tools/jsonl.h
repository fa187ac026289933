/* jsonl.h - the tools' input: one JSON object per line, from a file or standard input
 *
 * Blank lines are skipped. Messages start with FILE:LINE ("standard input:3: ..."). One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <jansson.h>
#include "protocol/base/error.h"

#define JSONL_LINE_MAX ((size_t)64 << 20)    // most bytes of a line

struct jsonl {
    FILE *in;
    const char *name;    // borrowed; what messages call the input
    char *line;          // owned
    size_t line_cap;
    int64_t number;    // number of the last line read, from 1
};
/* Open path, or standard input when it is NULL. */
MUST_USE bool jsonl_open(struct jsonl *j, const char *path, struct error *err);
void jsonl_close(struct jsonl *j);
/* The next object as a new reference; *row is NULL at the end. ERR_DATA names line and column. */
MUST_USE bool jsonl_next(struct jsonl *j, json_t **row, struct error *err);
/* Put "FILE:LINE: " before err's message. Returns false. */
bool jsonl_wrap(const struct jsonl *j, int64_t number, struct error *err);

/* Fields of a row; ERR_DATA names the field. */
MUST_USE bool row_i64(const json_t *row, const char *field, int64_t min, int64_t max, int64_t *out, struct error *err);
MUST_USE bool row_f64(const json_t *row, const char *field, double *out, struct error *err);
/* The list of token ids in field, each at least 0; *id is malloc'd for the caller. */
MUST_USE bool row_ids(const json_t *row, const char *field, int32_t **id, int64_t *n, struct error *err);
/* Print a line of JSON; a newline is added unless it ends in one. DEL and C1 control characters, which JSON allows but a terminal
 * would interpret, are written as escapes. */
MUST_USE bool json_line_print(const char *json, FILE *out);
