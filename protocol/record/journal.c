/* How it stays fast and intact:
 * 1. One writer connection, one reader connection per reading process; WAL, so that neither waits for the other.
 * 2. A commit touches as few pages as possible: steps have no index except their rowid (seq, which only grows since no row is ever
 *    removed), and a step's metrics are one blob: (series id u32, value f64) pairs, little endian; names are stored once, in the
 *    table series.
 * 3. The write-ahead log is folded into the file by a thread (journal_fold.h), so that an append is an append and nothing else.
 * 4. A reader copies a page of rows and releases its snapshot before it calls back (pages_read): a callback that waits (for a full
 *    pipe, a network) does not keep the log from being folded. A reader that keeps its snapshot anyway is named
 *    (journal_wal_look). */
#include "protocol/record/journal.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/record/journal_db.h"
#include "protocol/record/journal_fold.h"
#include "protocol/record/journal_home.h"
#include "protocol/record/metric_names.h"

#define SERIES_MAX 4096    // different metric names of a run
#define NAME_MAX_BYTES 96
#define ROW_PAIR_BYTES 12

/* ---- opening ---- */

static bool series_load(struct journal *j, struct error *err)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(j->db, "SELECT id, name FROM series WHERE id>? ORDER BY id", -1, &s, NULL) != SQLITE_OK)
        return db_failed(j, "read", err);
    sqlite3_bind_int(s, 1, j->n_series);
    int code = SQLITE_DONE;
    bool ok = true;
    while (ok && (code = sqlite3_step(s)) == SQLITE_ROW) {
        if (sqlite3_column_int(s, 0) != j->n_series + 1 || j->n_series == SERIES_MAX)
            ok = error_set(err, ERR_DATA, "the journal '%s' has a broken table of series", j->path);
        else if (!(j->series[j->n_series] = strdup(column_text(s, 1))))
            ok = error_set(err, ERR_NO_MEMORY, "no memory for the journal '%s'", j->path);
        else
            j->n_series++;
    }
    ok = ok && (code == SQLITE_DONE || db_failed(j, "read", err));
    sqlite3_finalize(s);
    j->series_unread = !ok;
    return ok;
}

static struct journal *open_any(const char *run_dir, bool reader, struct error *err)
{
    struct journal *j = calloc(1, sizeof *j);
    if (!j || !(j->series = calloc(SERIES_MAX, sizeof *j->series))) {
        free(j);
        error_set(err, ERR_NO_MEMORY, "no memory for the journal of '%s'", run_dir);
        return NULL;
    }
    j->reader = reader;
    const char *name = reader && journal_is_elsewhere(run_dir) ? JOURNAL_SNAPSHOT : "journal.db";
    bool ok = path_join(j->path, sizeof j->path, run_dir, name) || error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
    if (ok && reader && !path_exists(j->path))
        ok = error_set(err, ERR_NOT_FOUND, "'%s' holds no journal; is it a run directory?", run_dir);
    ok = ok && db_open(j, err) && series_load(j, err) && (reader || (j->folder = folder_new(j->db, j->path, err)));
    if (!ok) {
        journal_close(j);
        return NULL;
    }
    return j;
}

struct journal *journal_open(const char *run_dir, struct error *err)
{
    return open_any(run_dir, false, err);
}

struct journal *journal_open_reader(const char *run_dir, struct error *err)
{
    return open_any(run_dir, true, err);
}

bool journal_folds(struct journal *j, struct error *err)
{
    return !j->folder || folder_folds(j->folder, err);    // a reader folds nothing
}

void journal_ship(struct journal *j)
{
    folder_ship(j->folder);
}

bool journal_ships(struct journal *j, struct error *err)
{
    return folder_ships(j->folder, err);
}

void journal_rest(struct journal *j)
{
    BUG_IF(j->in_transaction, "the journal's writer rests inside a transaction");
    folder_rest(j->folder, JOURNAL_BUSY_MS);
}

void journal_close(struct journal *j)
{
    if (!j)
        return;
    if (j->in_transaction)
        journal_rollback(j);
    folder_free(j->folder);
    db_close(j);
    for (int i = 0; i < j->n_series; i++)
        free(j->series[i]);
    free(j->series);
    free(j->metric);
    free(j->named);
    buf_release(&j->row);
    free(j);
}

/* ---- transactions and incarnations ---- */

bool journal_begin(struct journal *j, struct error *err)
{
    BUG_IF(j->in_transaction, "journal transactions do not nest");
    if (j->series_unread && !series_load(j, err))
        return false;
    sqlite3_stmt *s = query(j, Q_BEGIN, err);
    if (!s || !query_run(j, s, err))
        return false;
    j->in_transaction = true;
    return true;
}

bool journal_commit(struct journal *j, struct error *err)
{
    BUG_IF(!j->in_transaction, "a journal transaction ends that has not begun");
    sqlite3_stmt *s = query(j, Q_COMMIT, err);
    if (!s || !query_run(j, s, err)) {
        journal_rollback(j);
        return false;
    }
    j->in_transaction = false;
    return true;
}

void journal_rollback(struct journal *j)
{
    if (!sqlite3_get_autocommit(j->db)) {    // SQLite may have done it itself
        sqlite3_step(j->stmt[Q_ROLLBACK]);
        sqlite3_reset(j->stmt[Q_ROLLBACK]);
    }
    j->in_transaction = false;
    /* A series named in the lost transaction is no longer in the file: read the names again. */
    for (int i = 0; i < j->n_series; i++)
        free(j->series[i]);
    j->n_series = 0;
    j->series_unread = true;
}

int64_t journal_incarnation_begin(struct journal *j, int64_t from_step, struct error *err)
{
    static const enum statement forget[] = { Q_SUPERSEDE, Q_EVAL_FORGET };
    sqlite3_stmt *s;
    for (size_t i = 0; i < ARRAY_SIZE(forget); i++) {
        if (!(s = query(j, forget[i], err)))
            return -1;
        sqlite3_bind_int64(s, 1, from_step);
        if (!query_run(j, s, err))
            return -1;
    }
    if (!(s = query(j, Q_INCARNATION_ADD, err)))
        return -1;
    sqlite3_bind_int64(s, 1, from_step);
    sqlite3_bind_double(s, 2, clock_wall_s());
    return query_run(j, s, err) ? sqlite3_last_insert_rowid(j->db) : -1;
}

struct incarnation_told {
    journal_incarnation_fn *fn;
    void *arg;
};

static bool incarnation_tell(UNUSED struct journal *j, const struct row_page *p, int row, void *ctx, UNUSED bool *ok,
                             UNUSED struct error *err)
{
    const struct incarnation_told *t = ctx;
    return t->fn(t->arg, cell_i64(p, row, 0), cell_i64(p, row, 1));
}

bool journal_incarnations_read(struct journal *j, journal_incarnation_fn *fn, void *arg, struct error *err)
{
    struct incarnation_told t = { fn, arg };
    return pages_read(j, Q_INCARNATION_READ, 0, NULL, incarnation_tell, &t, err);
}

/* ---- steps ---- */

/* The id of a name, created when new; 0: see err. The search starts where the last call ended: rows name their series in the same
 * order, so the first guess is usually right. */
static uint32_t series_id(struct journal *j, const char *name, int *guess, struct error *err)
{
    for (int i = 0; i < j->n_series; i++) {
        int at = (*guess + i) % j->n_series;
        if (strcmp(j->series[at], name) == 0) {
            *guess = at + 1;
            return (uint32_t)at + 1;
        }
    }
    if (j->n_series == SERIES_MAX || strlen(name) > NAME_MAX_BYTES || !name[0]) {
        error_set(err, ERR_FULL, "the metric '%.100s' cannot be recorded: a run holds %d names of at most %d bytes", name, SERIES_MAX,
                  NAME_MAX_BYTES);
        return 0;
    }
    sqlite3_stmt *s = query(j, Q_SERIES_ADD, err);
    if (!s)
        return 0;
    char *copy = strdup(name);
    if (!copy) {
        error_set(err, ERR_NO_MEMORY, "no memory for the journal");
        return 0;
    }
    sqlite3_bind_int(s, 1, j->n_series + 1);
    bind_text(s, 2, name);
    if (!query_run(j, s, err)) {
        free(copy);
        return 0;
    }
    j->series[j->n_series++] = copy;
    *guess = j->n_series;
    return (uint32_t)j->n_series;
}

/* Write a row's blob into j->row. */
static bool row_pack(struct journal *j, const struct journal_metric *metric, int n, struct error *err)
{
    int guess = 0;
    buf_clear(&j->row);
    for (int i = 0; i < n; i++) {
        uint32_t id = series_id(j, metric[i].name, &guess, err);
        if (!id)
            return false;
        buf_add(&j->row, &id, sizeof id);
        buf_add(&j->row, &metric[i].value, sizeof metric[i].value);
    }
    return !j->row.failed || error_set(err, ERR_NO_MEMORY, "no memory for the journal");
}

bool journal_step_add(struct journal *j, int64_t incarnation, int64_t step, double wall_s, const struct journal_metric *metric, int n,
                      struct error *err)
{
    sqlite3_stmt *s = row_pack(j, metric, n, err) ? query(j, Q_STEP_ADD, err) : NULL;
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, incarnation);
    sqlite3_bind_int64(s, 2, step);
    sqlite3_bind_double(s, 3, wall_s);
    sqlite3_bind_blob(s, 4, buf_text(&j->row), (int)j->row.len, SQLITE_STATIC);
    return query_run(j, s, err);
}

/* A reader may open a journal from a version without this table. */
static bool table_there(struct journal *j, const char *name)
{
    sqlite3_stmt *s = NULL;
    bool there = sqlite3_prepare_v2(j->db, "SELECT 1 FROM sqlite_master WHERE name=?", -1, &s, NULL) == SQLITE_OK
                 && sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW;
    sqlite3_finalize(s);
    return there;
}

bool journal_histograms_add(struct journal *j, const void *data, size_t len, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_HISTOGRAM_ADD, err);
    if (!s)
        return false;
    sqlite3_bind_blob(s, 1, data, (int)len, SQLITE_STATIC);
    return query_run(j, s, err);
}

int journal_histograms_read(struct journal *j, int64_t seq, struct journal_histogram out[HISTOGRAM_N], struct error *err)
{
    struct histogram h[HISTOGRAM_N] = { 0 };
    if (!j->stmt[Q_HISTOGRAM_GET] && !table_there(j, "histogram"))
        return 0;
    sqlite3_stmt *s = query(j, Q_HISTOGRAM_GET, err);
    if (!s)
        return -1;
    sqlite3_bind_int64(s, 1, seq);
    int code = sqlite3_step(s), n = 0;
    bool ok = code != SQLITE_ROW || histograms_unpack(h, sqlite3_column_blob(s, 0), (size_t)sqlite3_column_bytes(s, 0), err);
    if (!query_done(j, s, code, err) || !ok)
        return -1;
    for (int i = 0; i < HISTOGRAM_N; i++) {
        const struct histogram_spec *spec = &histograms[i];
        bool theirs = j->naming == NAMES_OPEN_INSTRUCT && spec->open_instruct;
        if (h[i].n > 0)
            out[n++] = (struct journal_histogram){ theirs ? spec->open_instruct : spec->name, h[i] };
    }
    return n;
}

/* Unpack a row's blob into j->metric; returns how many, or -1 with err. */
static int row_unpack(struct journal *j, sqlite3_value *cell, struct error *err)
{
    const unsigned char *blob = sqlite3_value_blob(cell);
    int n = sqlite3_value_bytes(cell) / ROW_PAIR_BYTES;
    if (n > j->cap_metric) {
        struct journal_metric *more = realloc(j->metric, (size_t)n * sizeof *more);
        if (!more) {
            error_set(err, ERR_NO_MEMORY, "no memory to read the journal '%s'", j->path);
            return -1;
        }
        j->metric = more;
        j->cap_metric = n;
    }
    for (int i = 0; i < n; i++) {
        uint32_t id;
        memcpy(&id, blob + i * ROW_PAIR_BYTES, sizeof id);
        memcpy(&j->metric[i].value, blob + i * ROW_PAIR_BYTES + 4, sizeof(double));
        if (id > (uint32_t)j->n_series && !series_load(j, err))    // named since this reader last looked, or lost in a rollback
            return -1;
        if (id == 0 || id > (uint32_t)j->n_series) {
            error_set(err, ERR_DATA, "the journal '%s' names series %u of %d", j->path, id, j->n_series);
            return -1;
        }
        j->metric[i].name = j->series[id - 1];
    }
    return n;
}

struct step_told {
    journal_step_fn *fn;
    void *arg;
};

void journal_names_set(struct journal *j, int naming)
{
    j->naming = naming;
}

static bool step_rename(struct journal *j, struct journal_step *step, struct error *err)
{
    int most = step->n + METRIC_NAMES_MORE;
    if (most > j->cap_named) {
        struct journal_metric *more = realloc(j->named, (size_t)most * sizeof *more);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory to read the journal '%s'", j->path);
        j->named = more;
        j->cap_named = most;
    }
    step->n = metric_names_make((enum metric_naming)j->naming, step->step, step->metric, step->n, j->named);
    step->metric = j->named;
    return true;
}

static bool step_tell(struct journal *j, const struct row_page *p, int row, void *ctx, bool *ok, struct error *err)
{
    const struct step_told *t = ctx;
    struct journal_step step = { cell_i64(p, row, 0), cell_i64(p, row, 1), cell_i64(p, row, 2), cell_f64(p, row, 3) };
    step.n = row_unpack(j, cell(p, row, 4), err);
    step.metric = j->metric;
    *ok = step.n >= 0 && (j->naming == NAMES_ROLLCALL || step_rename(j, &step, err));
    return *ok && t->fn(t->arg, &step);
}

bool journal_steps_read(struct journal *j, int64_t after_seq, journal_step_fn *fn, void *arg, struct error *err)
{
    struct step_told t = { fn, arg };
    return pages_read(j, Q_STEP_READ, after_seq, NULL, step_tell, &t, err);
}

/* The one number that a query finds; 0: none. */
static bool number_query(struct journal *j, enum statement q, int64_t *out, struct error *err)
{
    sqlite3_stmt *s = query(j, q, err);
    if (!s)
        return false;
    int code = sqlite3_step(s);
    *out = code == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    return query_done(j, s, code, err);
}

bool journal_last_step(struct journal *j, int64_t *step, struct error *err)
{
    return number_query(j, Q_STEP_LAST, step, err);
}

bool journal_furthest_step(struct journal *j, int64_t *step, struct error *err)
{
    return number_query(j, Q_STEP_FURTHEST, step, err);
}

bool journal_last_seq(struct journal *j, int64_t *seq, struct error *err)
{
    return number_query(j, Q_STEP_LAST_SEQ, seq, err);
}

bool journal_seq_begin(struct journal *j, int64_t first, struct error *err)
{
    static const int kinds[] = { Q_SEQ_STEP, Q_SEQ_EVENT_OFF, Q_SEQ_EVENT };
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        sqlite3_stmt *s = query(j, kinds[i], err);
        if (!s)
            return false;
        if (sqlite3_bind_parameter_count(s) > 0)
            sqlite3_bind_int64(s, 1, first - 1);
        if (!query_run(j, s, err))
            return false;
    }
    return true;
}

/* ---- samples ---- */

bool journal_sample_add(struct journal *j, const char *node, double wall_s, const struct journal_metric *figure, int n, struct error *err)
{
    sqlite3_stmt *s = row_pack(j, figure, n, err) ? query(j, Q_SAMPLE_ADD, err) : NULL;
    if (!s)
        return false;
    bind_text(s, 1, node);
    sqlite3_bind_double(s, 2, wall_s);
    sqlite3_bind_blob(s, 3, buf_text(&j->row), (int)j->row.len, SQLITE_STATIC);
    return query_run(j, s, err);
}

static bool samples_there(struct journal *j)
{
    return table_there(j, "sample");
}

struct sample_told {
    journal_sample_fn *fn;
    void *arg;
};

static bool sample_tell(struct journal *j, const struct row_page *p, int row, void *ctx, bool *ok, struct error *err)
{
    const struct sample_told *t = ctx;
    struct journal_sample sample = { cell_i64(p, row, 0), cell_text(p, row, 1), cell_f64(p, row, 2) };
    sample.n = row_unpack(j, cell(p, row, 3), err);
    sample.figure = j->metric;
    *ok = sample.n >= 0;
    return *ok && t->fn(t->arg, &sample);
}

bool journal_samples_read(struct journal *j, int64_t after_seq, journal_sample_fn *fn, void *arg, struct error *err)
{
    if (!j->stmt[Q_SAMPLE_READ] && !samples_there(j))
        return true;
    struct sample_told t = { fn, arg };
    return pages_read(j, Q_SAMPLE_READ, after_seq, NULL, sample_tell, &t, err);
}

int64_t journal_last_sample(struct journal *j)
{
    struct error ignored;
    sqlite3_stmt *s = j->stmt[Q_SAMPLE_LAST] || samples_there(j) ? query(j, Q_SAMPLE_LAST, &ignored) : NULL;
    int64_t seq = s && sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    if (s)
        sqlite3_reset(s);
    return seq;
}

/* ---- rubrics ---- */

bool journal_rubric_put(struct journal *j, int64_t item, int64_t prompt_row, int64_t rollout_step, const char *data, size_t len,
                        struct error *err)
{
    sqlite3_stmt *s = query(j, Q_RUBRIC_PUT, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, item);
    sqlite3_bind_int64(s, 2, prompt_row);
    sqlite3_bind_int64(s, 3, rollout_step);
    sqlite3_bind_text(s, 4, data, (int)len, SQLITE_STATIC);
    return query_run(j, s, err);
}

bool journal_rubric_get(struct journal *j, int64_t prompt_row, int64_t rollout_step, struct buf *out, bool *found, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_RUBRIC_GET, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, prompt_row);
    sqlite3_bind_int64(s, 2, rollout_step);
    int code = sqlite3_step(s);
    buf_clear(out);
    if ((*found = code == SQLITE_ROW))
        buf_add(out, sqlite3_column_text(s, 0), (size_t)sqlite3_column_bytes(s, 0));
    return query_done(j, s, code, err) && (!out->failed || error_set(err, ERR_NO_MEMORY, "no memory to read the journal '%s'", j->path));
}

bool journal_rubrics_forget(struct journal *j, int64_t first_item, int64_t last_item, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_RUBRIC_FORGET, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, first_item);
    sqlite3_bind_int64(s, 2, last_item);
    return query_run(j, s, err);
}

/* ---- items ---- */

bool journal_item_put(struct journal *j, const struct journal_item *it, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_ITEM_PUT, err);
    if (!s)
        return false;
    const int64_t v[] = { it->item, it->prompt_row, it->rollout_step, it->weight_version, it->fate, it->step };
    for (int i = 0; i < 6; i++)
        sqlite3_bind_int64(s, i + 1, v[i]);
    if (isnan(it->reward_mean))
        sqlite3_bind_null(s, 7);
    else
        sqlite3_bind_double(s, 7, it->reward_mean);
    sqlite3_bind_int64(s, 8, it->file_offset);
    sqlite3_bind_int64(s, 9, it->file_bytes);
    return query_run(j, s, err);
}

int64_t journal_last_item(struct journal *j)
{
    struct error ignored;
    sqlite3_stmt *s = query(j, Q_ITEM_LAST, &ignored);
    int64_t item = s && sqlite3_step(s) == SQLITE_ROW && sqlite3_column_type(s, 0) != SQLITE_NULL ? sqlite3_column_int64(s, 0) : -1;
    if (s)
        sqlite3_reset(s);
    return item;
}

struct item_told {
    journal_item_fn *fn;
    void *arg;
};

static bool item_tell(UNUSED struct journal *j, const struct row_page *p, int row, void *ctx, UNUSED bool *ok, UNUSED struct error *err)
{
    const struct item_told *t = ctx;
    struct journal_item it = {
        .item = cell_i64(p, row, 0),
        .prompt_row = cell_i64(p, row, 1),
        .rollout_step = cell_i64(p, row, 2),
        .weight_version = cell_i64(p, row, 3),
        .fate = (enum item_fate)cell_i64(p, row, 4),
        .step = cell_i64(p, row, 5),
        .reward_mean = sqlite3_value_type(cell(p, row, 6)) == SQLITE_NULL ? (double)NAN : cell_f64(p, row, 6),
        .file_offset = cell_i64(p, row, 7),
        .file_bytes = cell_i64(p, row, 8),
    };
    return t->fn(t->arg, &it);
}

bool journal_items_read(struct journal *j, int64_t first, journal_item_fn *fn, void *arg, struct error *err)
{
    struct item_told t = { fn, arg };
    return pages_read(j, Q_ITEM_READ, first - 1, NULL, item_tell, &t, err);
}

/* ---- events, commands, values ---- */

bool journal_event_add(struct journal *j, int64_t incarnation, int64_t step, const char *kind, const char *who, const char *text,
                       const char *detail, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_EVENT_ADD, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, incarnation);
    sqlite3_bind_int64(s, 2, step);
    sqlite3_bind_double(s, 3, clock_wall_s());
    bind_text(s, 4, kind);
    bind_text(s, 5, who);
    bind_text(s, 6, text);
    bind_text(s, 7, detail);
    return query_run(j, s, err);
}

struct event_told {
    journal_event_fn *fn;
    void *arg;
};

static bool event_tell(UNUSED struct journal *j, const struct row_page *p, int row, void *ctx, UNUSED bool *ok, UNUSED struct error *err)
{
    const struct event_told *t = ctx;
    struct journal_event e = { cell_i64(p, row, 0),  cell_i64(p, row, 1),  cell_i64(p, row, 2),  cell_f64(p, row, 3),
                               cell_text(p, row, 4), cell_text(p, row, 5), cell_text(p, row, 6), cell_text(p, row, 7) };
    return t->fn(t->arg, &e);
}

bool journal_events_read(struct journal *j, int64_t after_seq, const char *kind, journal_event_fn *fn, void *arg, struct error *err)
{
    struct event_told t = { fn, arg };
    return pages_read(j, Q_EVENT_READ, after_seq, kind, event_tell, &t, err);
}

bool journal_command_put(struct journal *j, const char *id, const char *answer, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_COMMAND_PUT, err);
    if (!s)
        return false;
    bind_text(s, 1, id);
    bind_text(s, 2, answer);
    sqlite3_bind_double(s, 3, clock_wall_s());
    return query_run(j, s, err);
}

/* Append to out the only column of the only row for key. */
static bool one_get(struct journal *j, enum statement q, const char *key, struct buf *out, bool *found, struct error *err)
{
    sqlite3_stmt *s = query(j, q, err);
    if (!s)
        return false;
    bind_text(s, 1, key);
    int code = sqlite3_step(s);
    *found = code == SQLITE_ROW;
    bool ok = true;
    if (*found && !buf_add(out, sqlite3_column_blob(s, 0), (size_t)sqlite3_column_bytes(s, 0)))
        ok = error_set(err, ERR_NO_MEMORY, "no memory to read the journal '%s'", j->path);
    return query_done(j, s, code, err) && ok;
}

bool journal_command_get(struct journal *j, const char *id, struct buf *answer, bool *found, struct error *err)
{
    return one_get(j, Q_COMMAND_GET, id, answer, found, err);
}

bool journal_value_put(struct journal *j, const char *name, const void *value, size_t len, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_VALUE_PUT, err);
    if (!s)
        return false;
    bind_text(s, 1, name);
    sqlite3_bind_blob(s, 2, len ? value : "", (int)len, SQLITE_STATIC);
    return query_run(j, s, err);
}

bool journal_value_get(struct journal *j, const char *name, struct buf *value, bool *found, struct error *err)
{
    return one_get(j, Q_VALUE_GET, name, value, found, err);
}

/* ---- evaluations and checkpoints ---- */

bool journal_eval_put(struct journal *j, int64_t incarnation, int64_t step, const char *set, int64_t n, double mean, const char *detail,
                      struct error *err)
{
    sqlite3_stmt *s = query(j, Q_EVAL_PUT, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, step);
    bind_text(s, 2, set);
    sqlite3_bind_int64(s, 3, incarnation);
    sqlite3_bind_int64(s, 4, n);
    sqlite3_bind_double(s, 5, mean);
    bind_text(s, 6, detail);
    return query_run(j, s, err);
}

struct eval_told {
    journal_eval_fn *fn;
    void *arg;
};

static bool eval_tell(UNUSED struct journal *j, const struct row_page *p, int row, void *ctx, UNUSED bool *ok, UNUSED struct error *err)
{
    const struct eval_told *t = ctx;
    struct journal_eval e = { .step = cell_i64(p, row, 0),
                              .set = cell_text(p, row, 1),
                              .incarnation = cell_i64(p, row, 2),
                              .n = cell_i64(p, row, 3),
                              .mean = cell_f64(p, row, 4),
                              .detail = cell_text(p, row, 5) };
    return t->fn(t->arg, &e);
}

bool journal_evals_read(struct journal *j, journal_eval_fn *fn, void *arg, struct error *err)
{
    struct eval_told t = { fn, arg };
    return pages_read(j, Q_EVAL_READ, 0, NULL, eval_tell, &t, err);
}

bool journal_checkpoint_put(struct journal *j, int64_t step, const char *path, const char *state, double stall_s, double write_s,
                            struct error *err)
{
    sqlite3_stmt *s = query(j, Q_CHECKPOINT_PUT, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, step);
    bind_text(s, 2, path);
    bind_text(s, 3, state);
    sqlite3_bind_double(s, 4, stall_s);
    sqlite3_bind_double(s, 5, write_s);
    sqlite3_bind_double(s, 6, clock_wall_s());
    return query_run(j, s, err);
}

struct checkpoint_told {
    journal_checkpoint_fn *fn;
    void *arg;
};

static bool checkpoint_tell(UNUSED struct journal *j, const struct row_page *p, int row, void *ctx, UNUSED bool *ok,
                            UNUSED struct error *err)
{
    const struct checkpoint_told *t = ctx;
    struct journal_checkpoint c = { cell_i64(p, row, 0), cell_text(p, row, 1), cell_text(p, row, 2),
                                    cell_f64(p, row, 3), cell_f64(p, row, 4),  cell_f64(p, row, 5) };
    return t->fn(t->arg, &c);
}

bool journal_checkpoints_read(struct journal *j, journal_checkpoint_fn *fn, void *arg, struct error *err)
{
    struct checkpoint_told t = { fn, arg };
    return pages_read(j, Q_CHECKPOINT_READ, 0, NULL, checkpoint_tell, &t, err);
}

static void why_name(char out[64], int64_t step)
{
    snprintf(out, 64, "checkpoint_why/%" PRId64, step);
}

bool journal_why_put(struct journal *j, int64_t step, const char *why, struct error *err)
{
    char name[64];
    why_name(name, step);
    return journal_value_put(j, name, why, strlen(why), err);
}

bool journal_why_get(struct journal *j, int64_t step, char why[JOURNAL_WHY], struct error *err)
{
    struct buf text = { .max = JOURNAL_WHY };
    char name[64];
    bool found;
    why_name(name, step);
    bool ok = journal_value_get(j, name, &text, &found, err);
    snprintf(why, JOURNAL_WHY, "%s", ok && found ? buf_text(&text) : "");
    buf_release(&text);
    return ok;
}
