/* How it stays fast and whole:
 * 1. One writer connection, one reader connection a reading process; WAL, so that neither waits for the other.
 * 2. A commit touches as few pages as it can: steps have no index but their rowid (seq, which only grows since no row is ever
 *    removed), and a step's metrics are one blob: (series id u32, value f64) pairs, little endian; names stand once in the table series.
 * 3. Automatic checkpoints of the write-ahead log are off; a thread folds it in with a connection of its own every second
 *    (PASSIVE: it never blocks the writer), so that the 99th percentile of an append is an append and nothing else. */
#include "protocol/run/journal.h"
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"

#define JOURNAL_VERSION 1
#define SERIES_MAX 4096          // different metric names of a run
#define NAME_MAX_BYTES 96
#define ROW_PAIR_BYTES 12
#define FOLD_MS 1000             // between two foldings of the write-ahead log

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS series(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);"
    "CREATE TABLE IF NOT EXISTS incarnation(id INTEGER PRIMARY KEY, from_step INTEGER NOT NULL, wall_s REAL NOT NULL);"
    "CREATE TABLE IF NOT EXISTS step(seq INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL,"
    " step INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0, wall_s REAL NOT NULL, metrics BLOB NOT NULL);"
    "CREATE TABLE IF NOT EXISTS sample(seq INTEGER PRIMARY KEY, node TEXT NOT NULL, wall_s REAL NOT NULL, figures BLOB NOT NULL);"
    "CREATE TABLE IF NOT EXISTS item(item INTEGER PRIMARY KEY, prompt_row INTEGER, rollout_step INTEGER,"
    " weight_version INTEGER, fate INTEGER, step INTEGER, reward_mean REAL, file_offset INTEGER, file_bytes INTEGER);"
    "CREATE TABLE IF NOT EXISTS event(seq INTEGER PRIMARY KEY AUTOINCREMENT, incarnation INTEGER, step INTEGER, wall_s REAL,"
    " kind TEXT, who TEXT, text TEXT, detail TEXT);"
    "CREATE TABLE IF NOT EXISTS command(id TEXT PRIMARY KEY, answer TEXT, wall_s REAL);"
    "CREATE TABLE IF NOT EXISTS value(name TEXT PRIMARY KEY, value BLOB);"
    "CREATE TABLE IF NOT EXISTS eval(step INTEGER, set_name TEXT, incarnation INTEGER, n INTEGER, mean REAL, detail TEXT,"
    " PRIMARY KEY(step, set_name));"
    "CREATE TABLE IF NOT EXISTS checkpoint(step INTEGER PRIMARY KEY, path TEXT, state TEXT, stall_s REAL, write_s REAL,"
    " wall_s REAL);";

enum statement {
    Q_SERIES_ADD, Q_STEP_ADD, Q_STEP_READ, Q_STEP_LAST, Q_SUPERSEDE, Q_INCARNATION_ADD, Q_INCARNATION_READ, Q_ITEM_PUT, Q_ITEM_READ,
    Q_ITEM_FORGET, Q_EVENT_ADD, Q_EVENT_READ, Q_COMMAND_PUT, Q_COMMAND_GET, Q_VALUE_PUT, Q_VALUE_GET, Q_EVAL_PUT,
    Q_SAMPLE_ADD, Q_SAMPLE_READ, Q_SAMPLE_LAST, Q_EVAL_READ, Q_EVAL_FORGET, Q_CHECKPOINT_PUT, Q_CHECKPOINT_READ, Q_BEGIN,
    Q_COMMIT, Q_ROLLBACK, Q_N
};
static const char *const queries[Q_N] = {
    [Q_SERIES_ADD] = "INSERT INTO series(id, name) VALUES(?,?)",
    [Q_STEP_ADD] = "INSERT INTO step(incarnation, step, wall_s, metrics) VALUES(?,?,?,?)",
    [Q_STEP_READ] = "SELECT seq, incarnation, step, wall_s, metrics FROM step WHERE seq>? AND superseded=0 ORDER BY seq",
    [Q_STEP_LAST] = "SELECT max(step) FROM step WHERE superseded=0",
    [Q_SUPERSEDE] = "UPDATE step SET superseded=1 WHERE superseded=0 AND step>?",
    [Q_INCARNATION_ADD] = "INSERT INTO incarnation(from_step, wall_s) VALUES(?,?)",
    [Q_INCARNATION_READ] = "SELECT id, from_step FROM incarnation ORDER BY id",
    [Q_SAMPLE_ADD] = "INSERT INTO sample(node, wall_s, figures) VALUES(?,?,?)",
    [Q_SAMPLE_READ] = "SELECT seq, node, wall_s, figures FROM sample WHERE seq>? ORDER BY seq",
    [Q_SAMPLE_LAST] = "SELECT max(seq) FROM sample",
    [Q_ITEM_PUT] = "INSERT OR REPLACE INTO item VALUES(?,?,?,?,?,?,?,?,?)",
    [Q_ITEM_READ] = "SELECT * FROM item WHERE item>=? ORDER BY item",
    [Q_ITEM_FORGET] = "DELETE FROM item WHERE item>=?",
    [Q_EVENT_ADD] = "INSERT INTO event(incarnation, step, wall_s, kind, who, text, detail) VALUES(?,?,?,?,?,?,?)",
    [Q_EVENT_READ] = "SELECT seq, incarnation, step, wall_s, kind, who, text, detail FROM event"
                     " WHERE seq>?1 AND (?2 IS NULL OR kind=?2) ORDER BY seq",
    [Q_COMMAND_PUT] = "INSERT OR REPLACE INTO command VALUES(?,?,?)",
    [Q_COMMAND_GET] = "SELECT answer FROM command WHERE id=?",
    [Q_VALUE_PUT] = "INSERT OR REPLACE INTO value VALUES(?,?)",
    [Q_VALUE_GET] = "SELECT value FROM value WHERE name=?",
    [Q_EVAL_PUT] = "INSERT OR REPLACE INTO eval(step, set_name, incarnation, n, mean, detail) VALUES(?,?,?,?,?,?)",
    [Q_EVAL_READ] = "SELECT step, set_name, incarnation, n, mean, detail FROM eval ORDER BY step, set_name",
    [Q_EVAL_FORGET] = "DELETE FROM eval WHERE step>?",
    [Q_CHECKPOINT_PUT] = "INSERT OR REPLACE INTO checkpoint VALUES(?,?,?,?,?,?)",
    [Q_BEGIN] = "BEGIN IMMEDIATE",
    [Q_COMMIT] = "COMMIT",
    [Q_ROLLBACK] = "ROLLBACK",
    [Q_CHECKPOINT_READ] = "SELECT step, path, state, stall_s, write_s, wall_s FROM checkpoint ORDER BY step",
};

struct journal {
    sqlite3 *db;
    char path[PATH_MAX];
    bool reader, in_transaction;
    sqlite3_stmt *stmt[Q_N];      // prepared when first used
    char **series;                // (n_series) names by id - 1
    int n_series;
    bool series_unread;           // the file may hold other ones: read them before use
    struct buf row;               // the step row being built
    struct journal_metric *metric;    // (cap_metric) the row being read
    int cap_metric;
    /* the folding thread */
    pthread_t folder;
    bool folder_runs;
    pthread_mutex_t lock;         // guards: stop
    pthread_cond_t wake;
    bool stop;
};

static bool db_failed(struct journal *j, const char *what, struct error *err)
{
    int code = j->db ? sqlite3_errcode(j->db) : SQLITE_NOMEM;
    enum error_code kind = code == SQLITE_NOMEM ? ERR_NO_MEMORY
                         : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? ERR_DATA : ERR_IO;
    return error_set(err, kind, "cannot %s the journal '%s': %s", what, j->path, j->db ? sqlite3_errmsg(j->db) : "no memory");
}

static bool db_exec(struct journal *j, const char *sql, const char *what, struct error *err)
{
    return sqlite3_exec(j->db, sql, NULL, NULL, NULL) == SQLITE_OK || db_failed(j, what, err);
}

/* The statement, reset and ready to bind; NULL: see err. */
static sqlite3_stmt *query(struct journal *j, enum statement q, struct error *err)
{
    if (!j->stmt[q] && sqlite3_prepare_v3(j->db, queries[q], -1, SQLITE_PREPARE_PERSISTENT, &j->stmt[q], NULL) != SQLITE_OK) {
        db_failed(j, "query", err);
        return NULL;
    }
    sqlite3_reset(j->stmt[q]);
    return j->stmt[q];
}

static bool query_run(struct journal *j, sqlite3_stmt *s, struct error *err)
{
    bool ok = sqlite3_step(s) == SQLITE_DONE || db_failed(j, "write", err);
    sqlite3_reset(s);
    return ok;
}

static void bind_text(sqlite3_stmt *s, int i, const char *text)
{
    sqlite3_bind_text(s, i, text, -1, SQLITE_STATIC);
}

static const char *column_text(sqlite3_stmt *s, int i)
{
    const char *t = (const char *)sqlite3_column_text(s, i);
    return t ? t : "";
}

/* After the last row of a reading statement: false with err when the database failed. */
static bool query_done(struct journal *j, sqlite3_stmt *s, int code, struct error *err)
{
    bool ok = code == SQLITE_DONE || code == SQLITE_ROW || db_failed(j, "read", err);
    sqlite3_reset(s);
    return ok;
}

/* ---- opening ---- */

static void *fold_run(void *arg)
{
    struct journal *j = arg;
    sqlite3 *db = NULL;
    if (sqlite3_open_v2(j->path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) == SQLITE_OK) {
        pthread_mutex_lock(&j->lock);
        while (!j->stop) {
            struct timespec until = clock_after(FOLD_MS);
            pthread_cond_timedwait(&j->wake, &j->lock, &until);
            pthread_mutex_unlock(&j->lock);
            sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);    // failing only means: later
            pthread_mutex_lock(&j->lock);
        }
        pthread_mutex_unlock(&j->lock);
    }
    sqlite3_close(db);
    return NULL;
}

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

static bool version_check(struct journal *j, struct error *err)
{
    sqlite3_stmt *s = NULL;
    int version = -1;
    if (sqlite3_prepare_v2(j->db, "PRAGMA user_version", -1, &s, NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
        version = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    if (version < 0)
        return db_failed(j, "open", err);
    if (version > JOURNAL_VERSION)
        return error_set(err, ERR_DATA, "the journal '%s' was written by a newer rollcall (version %d; this one knows %d)",
                         j->path, version, JOURNAL_VERSION);
    return true;
}

static bool db_open(struct journal *j, struct error *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (j->reader ? 0 : SQLITE_OPEN_CREATE);
    int code = sqlite3_open_v2(j->path, &j->db, flags, NULL);
    if (code != SQLITE_OK && j->reader) {    // a run on a read-only medium can still be looked at
        sqlite3_close(j->db);
        code = sqlite3_open_v2(j->path, &j->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL);
    }
    if (code != SQLITE_OK)
        return db_failed(j, "open", err);
    sqlite3_busy_timeout(j->db, 10000);
    if (!j->reader && !db_exec(j, "PRAGMA journal_mode=WAL", "open", err))
        return false;
    if (!db_exec(j, "PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0; PRAGMA temp_store=MEMORY", "open", err)
        || !version_check(j, err))
        return false;
    if (j->reader)
        return db_exec(j, "PRAGMA query_only=ON", "open", err);
    return db_exec(j, "BEGIN IMMEDIATE", "open", err) && db_exec(j, schema, "make", err)
        && db_exec(j, "PRAGMA user_version=1; COMMIT", "make", err)
        && query(j, Q_ROLLBACK, err);    // made now, so that it needs no memory when there is none
}

static struct journal *open_any(const char *run_dir, bool reader, struct error *err)
{
    struct journal *j = calloc(1, sizeof *j);
    if (!j || !(j->series = calloc(SERIES_MAX, sizeof *j->series))) {
        free(j);
        error_set(err, ERR_NO_MEMORY, "no memory for the journal of '%s'", run_dir);
        return NULL;
    }
    pthread_mutex_init(&j->lock, NULL);
    clock_cond_init(&j->wake);
    j->reader = reader;
    bool ok = path_join(j->path, sizeof j->path, run_dir, "journal.db")
           || error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
    if (ok && reader && !path_exists(j->path))
        ok = error_set(err, ERR_NOT_FOUND, "'%s' holds no journal; is it a run directory?", run_dir);
    ok = ok && db_open(j, err) && series_load(j, err);
    if (!ok) {
        journal_close(j);
        return NULL;
    }
    if (!reader)
        j->folder_runs = pthread_create(&j->folder, NULL, fold_run, j) == 0;
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

void journal_close(struct journal *j)
{
    if (!j)
        return;
    if (j->folder_runs) {
        pthread_mutex_lock(&j->lock);
        j->stop = true;
        pthread_cond_signal(&j->wake);
        pthread_mutex_unlock(&j->lock);
        pthread_join(j->folder, NULL);
    }
    if (j->in_transaction)
        journal_rollback(j);
    for (int i = 0; i < Q_N; i++)
        sqlite3_finalize(j->stmt[i]);
    sqlite3_close(j->db);
    for (int i = 0; i < j->n_series; i++)
        free(j->series[i]);
    free(j->series);
    free(j->metric);
    buf_release(&j->row);
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->wake);
    free(j);
}

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
    /* A series named in the lost transaction is unknown to the file again: read the names anew. */
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

bool journal_incarnations_read(struct journal *j, journal_incarnation_fn *fn, void *arg, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_INCARNATION_READ, err);
    if (!s)
        return false;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        if (!fn(arg, sqlite3_column_int64(s, 0), sqlite3_column_int64(s, 1)))
            break;
    return query_done(j, s, code, err);
}

/* ---- steps ---- */

/* The id of a name, made when new; 0: see err. Searched from where the last call ended: rows name their series in the same
 * order, so that the first guess is right. */
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
        error_set(err, ERR_FULL, "the metric '%.100s' cannot be recorded: a run holds %d names of at most %d bytes", name,
                  SERIES_MAX, NAME_MAX_BYTES);
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

/* The blob of a row into j->row. */
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

bool journal_step_add(struct journal *j, int64_t incarnation, int64_t step, double wall_s, const struct journal_metric *metric,
                      int n, struct error *err)
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

/* Unpack a row's blob into j->metric; returns how many, or -1 with err. */
static int row_unpack(struct journal *j, const unsigned char *blob, int size, struct error *err)
{
    int n = size / ROW_PAIR_BYTES;
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
        if (id > (uint32_t)j->n_series && !series_load(j, err))    // named since this reader looked, or lost by a rollback
            return -1;
        if (id == 0 || id > (uint32_t)j->n_series) {
            error_set(err, ERR_DATA, "the journal '%s' names series %u of %d", j->path, id, j->n_series);
            return -1;
        }
        j->metric[i].name = j->series[id - 1];
    }
    return n;
}

bool journal_steps_read(struct journal *j, int64_t after_seq, journal_step_fn *fn, void *arg, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_STEP_READ, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, after_seq);
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct journal_step row = { sqlite3_column_int64(s, 0), sqlite3_column_int64(s, 1), sqlite3_column_int64(s, 2),
                                    sqlite3_column_double(s, 3) };
        row.n = row_unpack(j, sqlite3_column_blob(s, 4), sqlite3_column_bytes(s, 4), err);
        row.metric = j->metric;
        if (row.n < 0) {
            sqlite3_reset(s);
            return false;
        }
        if (!fn(arg, &row))
            break;
    }
    return query_done(j, s, code, err);
}

bool journal_last_step(struct journal *j, int64_t *step, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_STEP_LAST, err);
    if (!s)
        return false;
    int code = sqlite3_step(s);
    *step = code == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    return query_done(j, s, code, err);
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

/* A reader may meet a journal from before there were samples. */
static bool samples_there(struct journal *j)
{
    sqlite3_stmt *s = NULL;
    bool there = sqlite3_prepare_v2(j->db, "SELECT 1 FROM sqlite_master WHERE name='sample'", -1, &s, NULL) == SQLITE_OK
              && sqlite3_step(s) == SQLITE_ROW;
    sqlite3_finalize(s);
    return there;
}

bool journal_samples_read(struct journal *j, int64_t after_seq, journal_sample_fn *fn, void *arg, struct error *err)
{
    if (!j->stmt[Q_SAMPLE_READ] && !samples_there(j))
        return true;
    sqlite3_stmt *s = query(j, Q_SAMPLE_READ, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, after_seq);
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct journal_sample row = { sqlite3_column_int64(s, 0), column_text(s, 1), sqlite3_column_double(s, 2) };
        row.n = row_unpack(j, sqlite3_column_blob(s, 3), sqlite3_column_bytes(s, 3), err);
        row.figure = j->metric;
        if (row.n < 0) {
            sqlite3_reset(s);
            return false;
        }
        if (!fn(arg, &row))
            break;
    }
    return query_done(j, s, code, err);
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

bool journal_items_read(struct journal *j, int64_t first, journal_item_fn *fn, void *arg, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_ITEM_READ, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, first);
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct journal_item it = {
            .item = sqlite3_column_int64(s, 0), .prompt_row = sqlite3_column_int64(s, 1),
            .rollout_step = sqlite3_column_int64(s, 2), .weight_version = sqlite3_column_int64(s, 3),
            .fate = (enum item_fate)sqlite3_column_int(s, 4), .step = sqlite3_column_int64(s, 5),
            .reward_mean = sqlite3_column_type(s, 6) == SQLITE_NULL ? (double)NAN : sqlite3_column_double(s, 6),
            .file_offset = sqlite3_column_int64(s, 7), .file_bytes = sqlite3_column_int64(s, 8),
        };
        if (!fn(arg, &it))
            break;
    }
    return query_done(j, s, code, err);
}

bool journal_items_forget(struct journal *j, int64_t first, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_ITEM_FORGET, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, first);
    return query_run(j, s, err);
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

bool journal_events_read(struct journal *j, int64_t after_seq, const char *kind, journal_event_fn *fn, void *arg,
                         struct error *err)
{
    sqlite3_stmt *s = query(j, Q_EVENT_READ, err);
    if (!s)
        return false;
    sqlite3_bind_int64(s, 1, after_seq);
    bind_text(s, 2, kind);
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct journal_event e = { sqlite3_column_int64(s, 0), sqlite3_column_int64(s, 1), sqlite3_column_int64(s, 2),
                                   sqlite3_column_double(s, 3), column_text(s, 4), column_text(s, 5), column_text(s, 6),
                                   column_text(s, 7) };
        if (!fn(arg, &e))
            break;
    }
    return query_done(j, s, code, err);
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

/* The one column of the one row that key has, appended to out. */
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

bool journal_eval_put(struct journal *j, int64_t incarnation, int64_t step, const char *set, int64_t n, double mean,
                      const char *detail, struct error *err)
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

bool journal_evals_read(struct journal *j, journal_eval_fn *fn, void *arg, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_EVAL_READ, err);
    if (!s)
        return false;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct journal_eval e = { .step = sqlite3_column_int64(s, 0), .set = column_text(s, 1),
                                  .incarnation = sqlite3_column_int64(s, 2), .n = sqlite3_column_int64(s, 3),
                                  .mean = sqlite3_column_double(s, 4), .detail = column_text(s, 5) };
        if (!fn(arg, &e))
            break;
    }
    return query_done(j, s, code, err);
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

bool journal_checkpoints_read(struct journal *j, journal_checkpoint_fn *fn, void *arg, struct error *err)
{
    sqlite3_stmt *s = query(j, Q_CHECKPOINT_READ, err);
    if (!s)
        return false;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct journal_checkpoint c = { sqlite3_column_int64(s, 0), column_text(s, 1), column_text(s, 2),
                                        sqlite3_column_double(s, 3), sqlite3_column_double(s, 4), sqlite3_column_double(s, 5) };
        if (!fn(arg, &c))
            break;
    }
    return query_done(j, s, code, err);
}
