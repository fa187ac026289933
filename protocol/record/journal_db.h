/* journal_db.h - one connection to a journal's database: statements, pages of copied rows
 *
 * For journal.c, which knows what the rows mean. Texts from a page are valid as long as the page. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sqlite3.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define JOURNAL_BUSY_MS 10000    // how long a statement waits for another connection's lock

enum statement {    // the text of each is in journal_db.c
    Q_SERIES_ADD,
    Q_STEP_ADD,
    Q_STEP_READ,
    Q_STEP_LAST,
    Q_STEP_FURTHEST,
    Q_STEP_LAST_SEQ,
    Q_SEQ_STEP,
    Q_SEQ_EVENT,
    Q_SEQ_EVENT_OFF,
    Q_SUPERSEDE,
    Q_INCARNATION_ADD,
    Q_INCARNATION_READ,
    Q_ITEM_PUT,
    Q_ITEM_READ,
    Q_EVENT_ADD,
    Q_EVENT_READ,
    Q_COMMAND_PUT,
    Q_COMMAND_GET,
    Q_VALUE_PUT,
    Q_VALUE_GET,
    Q_EVAL_PUT,
    Q_HISTOGRAM_ADD,
    Q_HISTOGRAM_GET,
    Q_RUBRIC_PUT,
    Q_RUBRIC_GET,
    Q_RUBRIC_FORGET,
    Q_SAMPLE_ADD,
    Q_SAMPLE_READ,
    Q_SAMPLE_LAST,
    Q_ITEM_LAST,
    Q_EVAL_READ,
    Q_EVAL_FORGET,
    Q_CHECKPOINT_PUT,
    Q_CHECKPOINT_READ,
    Q_BEGIN,
    Q_COMMIT,
    Q_ROLLBACK,
    Q_N,
};

struct journal_folder;    // journal_fold.h
struct journal_metric;    // journal.h
struct journal {
    sqlite3 *db;
    char path[PATH_MAX];
    bool reader, in_transaction;
    sqlite3_stmt *stmt[Q_N];    // prepared when first used
    char **series;              // (n_series) names by id - 1
    int n_series;
    bool series_unread;               // the file may hold more names: read them before use
    struct buf row;                   // the step row being built
    struct journal_metric *metric;    // (cap_metric) the row being read
    int cap_metric;
    int naming;                      // enum metric_naming, of the steps that are read
    struct journal_metric *named;    // (cap_named) the row being read under other names
    int cap_named;
    struct journal_folder *folder;    // of the writer; NULL: a reader
};

/* Open j->path, for reading when j->reader, and make missing tables. A newer version's file is refused. */
MUST_USE bool db_open(struct journal *j, struct error *err);
void db_close(struct journal *j);
/* Fail with SQLite's reason: "cannot WHAT the journal ...". Returns false. */
bool db_failed(struct journal *j, const char *what, struct error *err);
/* The statement, reset and ready to bind; NULL: see err. */
sqlite3_stmt *query(struct journal *j, enum statement q, struct error *err);
/* Run a statement that returns no rows. */
MUST_USE bool query_run(struct journal *j, sqlite3_stmt *s, struct error *err);
/* After the last row of a reading statement: false with err when the database failed. */
MUST_USE bool query_done(struct journal *j, sqlite3_stmt *s, int code, struct error *err);
void bind_text(sqlite3_stmt *s, int i, const char *text);
const char *column_text(sqlite3_stmt *s, int i);    // "" for NULL

/* Copies of rows, so that the statement that read them holds nothing while they are used. */
struct row_page {
    sqlite3_value **value;    // (n * n_column)
    int n, cap, n_column;
};
sqlite3_value *cell(const struct row_page *p, int row, int column);
int64_t cell_i64(const struct row_page *p, int row, int column);
double cell_f64(const struct row_page *p, int row, int column);
const char *cell_text(const struct row_page *p, int row, int column);    // "" for NULL
/* Called for each row of a page. Returning false ends the reading; with *ok false it has failed. */
typedef bool page_row_fn(struct journal *j, const struct row_page *p, int row, void *ctx, bool *ok, struct error *err);
/* All rows of q whose first column is greater than after, in its order, one page at a time. bind: the second parameter, a text;
 * NULL: none. */
MUST_USE bool pages_read(struct journal *j, enum statement q, int64_t after, const char *bind, page_row_fn *fn, void *ctx,
                         struct error *err);
