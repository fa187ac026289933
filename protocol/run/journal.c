/* How it stays fast and whole:
 * 1. One writer connection, one reader connection a reading process; WAL, so that neither waits for the other.
 * 2. A commit touches as few pages as it can: steps have no index but their rowid (seq, which only grows since no row is ever
 *    removed), and a step's metrics are one blob: (series id u32, value f64) pairs, little endian; names stand once in the table series.
 * 3. Automatic checkpoints of the write-ahead log are off. A thread folds the log into the file with a connection of its own
 *    whenever it has grown by FOLD_PAGES (PASSIVE: it never blocks the writer), so that an append is an append and nothing else.
 *    What holds the writer up happens in journal_rest, which the writer calls where nobody waits for it: when all is folded and the
 *    log has become longer than CUT_BYTES it is cut to nothing, and a writer that is faster than the folding waits there.
 * 4. A reader copies a page of rows and lets go of its snapshot before it calls anybody: what a callback waits for (a pipe nobody
 *    reads, a network) does not keep the log from being folded. A reader that holds one all the same is named (journal_wal_look). */
#include "protocol/run/journal.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/run/spawn.h"

#define JOURNAL_VERSION 1
#define SERIES_MAX 4096    // different metric names of a run
#define NAME_MAX_BYTES 96
#define ROW_PAIR_BYTES 12
#define BUSY_MS 10000                    // how long a statement waits for another connection's lock
#define FOLD_MS 1000                     // until a folding that a reader kept from its end is tried again
#define FOLD_PAGES 1024                  // of 4 KiB: a write-ahead log that is so much longer is folded
#define SLOW_PAGES (6 * FOLD_PAGES)      // from here on journal_rest waits for the folding
#define CUT_BYTES ((int64_t)16 << 20)    // of the log, from which on it is cut once it is folded
#define PAGE_ROWS 256                    // that a reader copies at once

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
    Q_SERIES_ADD,
    Q_STEP_ADD,
    Q_STEP_READ,
    Q_STEP_LAST,
    Q_SEQ_STEP,
    Q_SEQ_EVENT,
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
    Q_SAMPLE_ADD,
    Q_SAMPLE_READ,
    Q_SAMPLE_LAST,
    Q_EVAL_READ,
    Q_EVAL_FORGET,
    Q_CHECKPOINT_PUT,
    Q_CHECKPOINT_READ,
    Q_BEGIN,
    Q_COMMIT,
    Q_ROLLBACK,
    Q_N,
};
static const char *const queries[Q_N] = {
    [Q_SERIES_ADD] = "INSERT INTO series(id, name) VALUES(?,?)",
    [Q_STEP_ADD] = "INSERT INTO step(incarnation, step, wall_s, metrics) VALUES(?,?,?,?)",
    [Q_STEP_READ] = "SELECT seq, incarnation, step, wall_s, metrics FROM step WHERE seq>? AND superseded=0 ORDER BY seq",
    [Q_STEP_LAST] = ("SELECT max(ifnull((SELECT max(step) FROM step WHERE superseded=0), 0),"
                     " ifnull((SELECT from_step FROM incarnation ORDER BY id DESC LIMIT 1), 0))"),
    [Q_SEQ_STEP] = "INSERT INTO step(seq, incarnation, step, wall_s, metrics, superseded) VALUES(?,0,0,0,x'',1)",
    [Q_SEQ_EVENT] = "INSERT INTO sqlite_sequence(name, seq) VALUES('event',?)",
    [Q_SUPERSEDE] = "UPDATE step SET superseded=1 WHERE superseded=0 AND step>?",
    [Q_INCARNATION_ADD] = "INSERT INTO incarnation(from_step, wall_s) VALUES(?,?)",
    [Q_INCARNATION_READ] = "SELECT id, from_step FROM incarnation ORDER BY id",
    [Q_SAMPLE_ADD] = "INSERT INTO sample(node, wall_s, figures) VALUES(?,?,?)",
    [Q_SAMPLE_READ] = "SELECT seq, node, wall_s, figures FROM sample WHERE seq>? ORDER BY seq",
    [Q_SAMPLE_LAST] = "SELECT max(seq) FROM sample",
    [Q_ITEM_PUT] = "INSERT OR REPLACE INTO item VALUES(?,?,?,?,?,?,?,?,?)",
    [Q_ITEM_READ] = "SELECT * FROM item WHERE item>? ORDER BY item",
    [Q_EVENT_ADD] = "INSERT INTO event(incarnation, step, wall_s, kind, who, text, detail) VALUES(?,?,?,?,?,?,?)",
    [Q_EVENT_READ] = ("SELECT seq, incarnation, step, wall_s, kind, who, text, detail FROM event"
                      " WHERE seq>?1 AND (?2 IS NULL OR kind=?2) ORDER BY seq"),
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
    sqlite3_stmt *stmt[Q_N];    // prepared when first used
    char **series;              // (n_series) names by id - 1
    int n_series;
    bool series_unread;               // the file may hold other ones: read them before use
    struct buf row;                   // the step row being built
    struct journal_metric *metric;    // (cap_metric) the row being read
    int cap_metric;
    int fold_at;    // pages of the log at which the folding thread is woken
    int wait_at;    // pages of the log at which journal_rest waits for it
    /* the folding thread */
    pthread_t folder;
    bool folder_runs;
    pthread_mutex_t lock;    // guards the fields below
    pthread_cond_t wake, folded;
    bool stop, wanted, folding;
    bool is_long;         // the log has been longer than CUT_BYTES since it was cut last
    bool may_cut;         // it is long, and the last folding has left nothing in it
    int n_page;           // of the log, after the last commit
    int64_t n_fold;       // how often it has folded
    struct error fold;    // why the last folding failed; code ERR_NONE: it did not
};

static bool db_failed(struct journal *j, const char *what, struct error *err)
{
    int code = j->db ? sqlite3_errcode(j->db) : SQLITE_NOMEM;
    enum error_code kind = code == SQLITE_NOMEM ? ERR_NO_MEMORY : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? ERR_DATA : ERR_IO;
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

/* ---- pages of rows ---- */

/* Copies of rows, so that the statement that read them holds nothing while they are looked at. */
struct page {
    sqlite3_value **value;    // (n * n_column)
    int n, cap, n_column;
};

static void page_release(struct page *p)
{
    for (int i = 0; i < p->n * p->n_column; i++)
        sqlite3_value_free(p->value[i]);
    free(p->value);
    *p = (struct page){ 0 };
}

/* Copy at most max rows of s into p, and reset s. False: nothing is in p. */
static bool page_read(struct journal *j, sqlite3_stmt *s, int max, struct page *p, struct error *err)
{
    int code;
    bool ok = true;
    *p = (struct page){ .n_column = sqlite3_column_count(s) };
    while (ok && p->n < max && (code = sqlite3_step(s)) == SQLITE_ROW) {
        if (p->n == p->cap) {
            int cap = MAX(2 * p->cap, 32);
            sqlite3_value **grown = realloc(p->value, (size_t)(cap * p->n_column) * sizeof *grown);
            ok = grown != NULL;
            p->value = grown ? grown : p->value;
            p->cap = grown ? cap : p->cap;
        }
        if (!ok)
            break;
        for (int i = 0; i < p->n_column; i++) {
            sqlite3_value *copy = sqlite3_value_dup(sqlite3_column_value(s, i));
            p->value[p->n * p->n_column + i] = copy;
            ok = ok && copy;
        }
        p->n++;
    }
    if (!ok)
        error_set(err, ERR_NO_MEMORY, "no memory to read the journal '%s'", j->path);
    else
        ok = p->n == max || code == SQLITE_DONE || db_failed(j, "read", err);
    sqlite3_reset(s);
    if (!ok)
        page_release(p);
    return ok;
}

static sqlite3_value *cell(const struct page *p, int row, int column)
{
    return p->value[row * p->n_column + column];
}

static int64_t cell_i64(const struct page *p, int row, int column)
{
    return sqlite3_value_int64(cell(p, row, column));
}

static double cell_f64(const struct page *p, int row, int column)
{
    return sqlite3_value_double(cell(p, row, column));
}

static const char *cell_text(const struct page *p, int row, int column)
{
    const char *t = (const char *)sqlite3_value_text(cell(p, row, column));
    return t ? t : "";
}

/* Called for a row of a page; false with *ok true ends the reading, with *ok false it has failed. */
typedef bool page_row_fn(struct journal *j, const struct page *p, int row, void *ctx, bool *ok, struct error *err);

/* All rows of q whose first column is beyond after, in its order, a page at a time. bind: the second parameter, a text; NULL: none. */
static bool pages_read(struct journal *j, enum statement q, int64_t after, const char *bind, page_row_fn *fn, void *ctx, struct error *err)
{
    for (bool more = true; more;) {
        struct page p;
        sqlite3_stmt *s = query(j, q, err);
        if (!s)
            return false;
        bool keyed = sqlite3_bind_parameter_count(s) > 0, ok = true;    // those without a key are few: one page takes them all
        if (keyed)
            sqlite3_bind_int64(s, 1, after);
        if (sqlite3_bind_parameter_count(s) > 1)
            bind_text(s, 2, bind);
        if (!page_read(j, s, keyed ? PAGE_ROWS : INT_MAX, &p, err))
            return false;
        more = keyed && p.n == PAGE_ROWS;
        for (int i = 0; i < p.n && ok; i++) {
            if (!fn(j, &p, i, ctx, &ok, err)) {
                more = false;
                break;
            }
            after = cell_i64(&p, i, 0);
        }
        page_release(&p);
        if (!ok)
            return false;
    }
    return true;
}

/* ---- opening ---- */

/* Fold what can be folded. *n_frame: frames of the log; *whole: all of them are in the file now. */
static int fold_once(sqlite3 *db, int *n_frame, bool *whole)
{
    int n_folded = -1;
    *n_frame = -1;
    int code = sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, n_frame, &n_folded);
    *whole = code == SQLITE_OK && *n_frame >= 0 && n_folded >= *n_frame;
    if (code == SQLITE_OK && *n_frame < 0)    // SQLite does nothing, and says so only here, on a connection that has not read yet
        code = sqlite3_exec(db, "SELECT 1 FROM sqlite_master LIMIT 1", NULL, NULL, NULL);
    return code;
}

/* A short log is left alone: the append that begins the log again after a whole folding waits for the disk, so it must be rare. */
static bool fold_is_due(const struct journal *j)
{
    return j->wanted || j->n_page >= FOLD_PAGES || j->is_long;
}

static void *fold_run(void *arg)
{
    struct journal *j = arg;
    sqlite3 *db = NULL;
    int code = sqlite3_open_v2(j->path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_exec(db, "PRAGMA synchronous=NORMAL; SELECT 1 FROM sqlite_master LIMIT 1", NULL, NULL, NULL);
    pthread_mutex_lock(&j->lock);
    while (!j->stop) {
        j->fold = (struct error){ 0 };
        if (code != SQLITE_OK && code != SQLITE_BUSY && code != SQLITE_LOCKED)    // those: later
            error_set(&j->fold, ERR_IO, "cannot fold the journal's log '%s-wal': %s", j->path, db ? sqlite3_errmsg(db) : "no memory");
        struct timespec until = clock_after(FOLD_MS);
        while (!j->stop && !j->wanted && pthread_cond_timedwait(&j->wake, &j->lock, &until) == 0)
            ;
        if (j->stop || !db || !fold_is_due(j))
            continue;
        int n_frame;
        bool whole;
        j->wanted = false;
        j->folding = true;
        pthread_mutex_unlock(&j->lock);
        code = fold_once(db, &n_frame, &whole);
        pthread_mutex_lock(&j->lock);
        j->folding = false;
        j->is_long = j->is_long || (int64_t)n_frame * 4096 > CUT_BYTES;
        j->may_cut = whole && j->is_long;
        j->n_fold++;
        pthread_cond_broadcast(&j->folded);
    }
    pthread_mutex_unlock(&j->lock);
    sqlite3_close(db);
    return NULL;
}

/* After each commit: wake the folding thread when the log has become FOLD_PAGES longer. */
static int log_grown(void *arg, UNUSED sqlite3 *db, UNUSED const char *name, int n_page)
{
    struct journal *j = arg;
    if (n_page < j->fold_at - FOLD_PAGES) {    // it has begun again
        j->fold_at = FOLD_PAGES;
        j->wait_at = SLOW_PAGES;
    }
    pthread_mutex_lock(&j->lock);
    j->n_page = n_page;
    if (n_page >= j->fold_at) {
        j->fold_at = n_page + FOLD_PAGES;
        j->wanted = true;
        pthread_cond_signal(&j->wake);
    }
    pthread_mutex_unlock(&j->lock);
    return SQLITE_OK;
}

/* The lock is held. Wait for a folding that begins now: while the writer waits nothing is added, so it reaches the end of the log
 * unless a reader stands in its way. */
static void fold_wait(struct journal *j)
{
    struct timespec until = clock_after(FOLD_MS);
    int64_t wanted = j->n_fold + 1 + j->folding;
    j->wait_at = j->n_page + FOLD_PAGES;
    j->wanted = true;
    pthread_cond_signal(&j->wake);
    while (j->n_fold < wanted && pthread_cond_timedwait(&j->folded, &j->lock, &until) == 0)
        ;
}

void journal_rest(struct journal *j)
{
    BUG_IF(j->in_transaction, "the journal's writer rests inside a transaction");
    pthread_mutex_lock(&j->lock);
    if (j->n_page >= j->wait_at)
        fold_wait(j);
    bool cut = j->may_cut;
    j->may_cut = false;
    pthread_mutex_unlock(&j->lock);
    if (!cut)
        return;
    sqlite3_busy_timeout(j->db, 0);    // a reader is not waited for: the next folding makes it possible again
    cut = sqlite3_wal_checkpoint_v2(j->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) == SQLITE_OK;
    sqlite3_busy_timeout(j->db, BUSY_MS);
    pthread_mutex_lock(&j->lock);
    j->is_long = j->is_long && !cut;
    j->n_page = cut ? 0 : j->n_page;
    pthread_mutex_unlock(&j->lock);
}

/* "process 7534 (rollcall ctl events)" */
static void process_say(int pid, char *out, size_t size)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    snprintf(out, size, "process %d", pid);
    FILE *c = fopen(path, "re");
    size_t n = c ? fread(line, 1, sizeof line - 1, c) : 0;
    if (c)
        fclose(c);
    while (n > 0 && !line[n - 1])
        n--;
    line[n] = 0;
    for (size_t i = 0; i < n; i++)
        line[i] = line[i] ? line[i] : ' ';
    if (n > 0)
        snprintf(out, size, "process %d (%.180s)", pid, line);
}

/* Who holds a lock of a reader on the log, as the kernel lists them: "1: POSIX  ADVISORY  READ 7534 fe:00:10953417 123 123". The one
 * of last time is found again when it is still there. writer: it is not in its own way. */
static void reader_find(const struct stat *shm, int writer, int last_pid, struct journal_wal *out)
{
    enum {
        READ_LOCK_FIRST = 120 + 3,
        READ_LOCK_LAST = READ_LOCK_FIRST + 4,
    };    // SQLite's wal.c, WAL_READ_LOCK
    char line[256];
    FILE *f = fopen("/proc/locks", "re");
    while (f && fgets(line, sizeof line, f)) {
        unsigned dev_major, dev_minor;
        uint64_t inode, first, last;
        int pid;
        if (sscanf(line, "%*d: POSIX %*s READ %d %x:%x:%" PRIu64 " %" PRIu64 " %" PRIu64, &pid, &dev_major, &dev_minor, &inode, &first,
                   &last)
                != 6
            || inode != shm->st_ino || dev_major != major(shm->st_dev) || dev_minor != minor(shm->st_dev) || first > READ_LOCK_LAST
            || last < READ_LOCK_FIRST || pid <= 0 || pid == getpid() || pid == writer)
            continue;
        if (!out->reader_pid || pid == last_pid)
            out->reader_pid = pid;
    }
    if (f)
        fclose(f);
    if (out->reader_pid)
        process_say(out->reader_pid, out->reader, sizeof out->reader);
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
        return error_set(err, ERR_DATA, "the journal '%s' was written by a newer rollcall (version %d; this one knows %d)", j->path,
                         version, JOURNAL_VERSION);
    return true;
}

bool journal_path_check(const char *run_dir, struct error *err)
{
    const sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    size_t max = vfs ? (size_t)vfs->mxPathname : 512, name = strlen("/journal.db-journal");    // as SQLite counts
    return strlen(run_dir) + name <= max
           || error_set(err, ERR_USAGE,
                        "the run's path has %zu bytes, and SQLite, which keeps its journal, takes at most %zu; choose a shorter "
                        "--runs-dir: '%.200s...'",
                        strlen(run_dir), max - name, run_dir);
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
    sqlite3_busy_timeout(j->db, BUSY_MS);
    if (j->reader)    // the last one to go would fold the log: that is the writer's business
        sqlite3_db_config(j->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, (int *)NULL);
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
    clock_cond_init(&j->folded);
    j->reader = reader;
    bool ok = path_join(j->path, sizeof j->path, run_dir, "journal.db") || error_set(err, ERR_IO, "the path '%s' is too long", run_dir);
    if (ok && reader && !path_exists(j->path))
        ok = error_set(err, ERR_NOT_FOUND, "'%s' holds no journal; is it a run directory?", run_dir);
    ok = ok && db_open(j, err) && series_load(j, err);
    if (!ok) {
        journal_close(j);
        return NULL;
    }
    if (reader)
        return j;
    j->fold_at = FOLD_PAGES;
    j->wait_at = SLOW_PAGES;
    sqlite3_wal_hook(j->db, log_grown, j);
    int code = pthread_create(&j->folder, NULL, fold_run, j);
    j->folder_runs = code == 0;
    if (!j->folder_runs) {    // its log would grow without end
        error_set(err, ERR_NO_MEMORY, "cannot start the thread of the journal '%s': %s", j->path, strerror(code));
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

void journal_wal_look(const char *run_dir, int last_pid, struct journal_wal *out)
{
    char path[PATH_MAX];
    struct stat st;
    *out = (struct journal_wal){ 0 };
    if (snprintf(path, sizeof path, "%s/journal.db", run_dir) < (int)sizeof path && stat(path, &st) == 0)
        out->db_bytes = st.st_size;
    if (snprintf(path, sizeof path, "%s/journal.db-wal", run_dir) < (int)sizeof path && stat(path, &st) == 0)
        out->wal_bytes = st.st_size;
    if (snprintf(path, sizeof path, "%s/journal.db-shm", run_dir) < (int)sizeof path && stat(path, &st) == 0)
        reader_find(&st, process_find(run_dir, "controller"), last_pid, out);
}

bool journal_folds(struct journal *j, struct error *err)
{
    pthread_mutex_lock(&j->lock);
    struct error last = j->fold;
    pthread_mutex_unlock(&j->lock);
    return !last.text[0] || error_set(err, last.code, "%s", last.text);
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
    pthread_cond_destroy(&j->folded);
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

struct incarnation_told {
    journal_incarnation_fn *fn;
    void *arg;
};

static bool incarnation_tell(UNUSED struct journal *j, const struct page *p, int row, void *ctx, UNUSED bool *ok, UNUSED struct error *err)
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

struct step_told {
    journal_step_fn *fn;
    void *arg;
};

static bool step_tell(struct journal *j, const struct page *p, int row, void *ctx, bool *ok, struct error *err)
{
    const struct step_told *t = ctx;
    struct journal_step step = { cell_i64(p, row, 0), cell_i64(p, row, 1), cell_i64(p, row, 2), cell_f64(p, row, 3) };
    step.n = row_unpack(j, cell(p, row, 4), err);
    step.metric = j->metric;
    *ok = step.n >= 0;
    return *ok && t->fn(t->arg, &step);
}

bool journal_steps_read(struct journal *j, int64_t after_seq, journal_step_fn *fn, void *arg, struct error *err)
{
    struct step_told t = { fn, arg };
    return pages_read(j, Q_STEP_READ, after_seq, NULL, step_tell, &t, err);
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

bool journal_seq_begin(struct journal *j, int64_t first, struct error *err)
{
    static const int kinds[] = { Q_SEQ_STEP, Q_SEQ_EVENT };
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        sqlite3_stmt *s = query(j, kinds[i], err);
        if (!s)
            return false;
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

/* A reader may meet a journal from before there were samples. */
static bool samples_there(struct journal *j)
{
    sqlite3_stmt *s = NULL;
    bool there = sqlite3_prepare_v2(j->db, "SELECT 1 FROM sqlite_master WHERE name='sample'", -1, &s, NULL) == SQLITE_OK
                 && sqlite3_step(s) == SQLITE_ROW;
    sqlite3_finalize(s);
    return there;
}

struct sample_told {
    journal_sample_fn *fn;
    void *arg;
};

static bool sample_tell(struct journal *j, const struct page *p, int row, void *ctx, bool *ok, struct error *err)
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

struct item_told {
    journal_item_fn *fn;
    void *arg;
};

static bool item_tell(UNUSED struct journal *j, const struct page *p, int row, void *ctx, UNUSED bool *ok, UNUSED struct error *err)
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

static bool event_tell(UNUSED struct journal *j, const struct page *p, int row, void *ctx, UNUSED bool *ok, UNUSED struct error *err)
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

static bool eval_tell(UNUSED struct journal *j, const struct page *p, int row, void *ctx, UNUSED bool *ok, UNUSED struct error *err)
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

static bool checkpoint_tell(UNUSED struct journal *j, const struct page *p, int row, void *ctx, UNUSED bool *ok, UNUSED struct error *err)
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
