/* format.h - the kinds of files that rows are read from: one table, one way to read them all
 *
 * A kind is recognised by what a file holds, never by its name. Reading goes twice over a file: `next` finds the rows, one after
 * the other, and `row` gives one of them as an object with named columns, in any order and from any thread, as long as the reader
 * is open. Text kinds are read in place; Parquet's rows are converted to JSON once, and then its file is no longer needed. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define DATA_ROW_BYTES_MAX ((size_t)64 << 20)

struct parquet;
/* Where a row is. */
struct row_place {
    uint64_t at;     // first byte, in the reader's text
    uint32_t len;    // bytes
    int64_t line;    // number of its line in the file, or of the row, from 1 (format's unit)
};
struct reader {
    const struct data_format *format;
    const char *text;    // the file's bytes, decompressed; borrowed until reader_finish, or reader_close where format->keeps_text
    size_t len;
    size_t at;         // first byte not looked at by next
    int64_t line;      // lines, or rows, begun
    char delimiter;    // CSV: between columns
    json_t *column;    // CSV: list of names
    struct parquet *parquet;
    struct buf built;    // Parquet: the rows as JSON; its max is the caller's
};
struct data_format {
    const char *name;     // "JSON lines", "Parquet", ...
    bool counts_lines;    // place.line is the number of a line, else of a row
    bool keeps_text;      // rows are read from the file's own bytes
    /* Is it such a file? p: after a byte order mark. Looks at the beginning only. */
    bool (*recognise)(const char *p, size_t len);
    /* Begin; messages do not name the file. What is open is left to close. NULL: nothing to do. */
    bool (*open)(struct reader *r, struct error *err);
    /* Find the next row; *done: there was none left. Messages name the place unless it is r->line. */
    bool (*next)(struct reader *r, struct row_place *at, bool *done, struct error *err);
    /* The row at a place, for json_decref. NULL: see err, which names no place. */
    json_t *(*row)(const struct reader *r, const struct row_place *at, struct error *err);
    /* After the last row: release what only next needs. NULL: nothing to do. */
    void (*finish)(struct reader *r);
    void (*close)(struct reader *r);
};
/* Start reading a file's text. built_max: most bytes of rows that have to be converted. ERR_DATA says what kind of file it is when
 * it cannot be read, and what to do. r is zeroed or closed; on failure it needs reader_close as on success. */
MUST_USE bool reader_open(struct reader *r, const char *text, size_t len, const char *path, size_t built_max, struct error *err);
MUST_USE bool reader_next(struct reader *r, struct row_place *at, bool *done, struct error *err);
json_t *reader_row(const struct reader *r, const struct row_place *at, struct error *err);
void reader_finish(struct reader *r);
void reader_close(struct reader *r);

/* The kinds; each in its own file. */
extern const struct data_format format_parquet, format_json_array, format_json_lines, format_csv;
/* One JSON text as a row: an object, or a list (Open-Reasoner-Zero's rows), which becomes the column "conversations". */
json_t *row_parse(const char *text, size_t len, struct error *err);
