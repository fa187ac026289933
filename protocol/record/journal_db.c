#include "protocol/record/journal_db.h"
#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include "protocol/record/journal.h"

#define JOURNAL_VERSION 1
#define PAGE_ROWS 256                  // rows that a reader copies at once
#define VALUE_MAX_BYTES (256 << 20)    // of a text or blob; ours have a few MiB at most

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS series(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);"
    "CREATE TABLE IF NOT EXISTS incarnation(id INTEGER PRIMARY KEY, from_step INTEGER NOT NULL, wall_s REAL NOT NULL);"
    "CREATE TABLE IF NOT EXISTS step(seq INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL,"
    " step INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0, wall_s REAL NOT NULL, metrics BLOB NOT NULL);"
    "CREATE TABLE IF NOT EXISTS histogram(seq INTEGER PRIMARY KEY, data BLOB NOT NULL);"    // of the step with this seq
    "CREATE TABLE IF NOT EXISTS rubric(item INTEGER PRIMARY KEY, prompt_row INTEGER NOT NULL, rollout_step INTEGER NOT NULL, data TEXT NOT NULL);"
    "CREATE INDEX IF NOT EXISTS rubric_row ON rubric(prompt_row, item);"
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

static const char *const queries[Q_N] = {
    [Q_SERIES_ADD] = "INSERT INTO series(id, name) VALUES(?,?)",
    [Q_STEP_ADD] = "INSERT INTO step(incarnation, step, wall_s, metrics) VALUES(?,?,?,?)",
    [Q_STEP_READ] = "SELECT seq, incarnation, step, wall_s, metrics FROM step WHERE seq>? AND superseded=0 ORDER BY seq",
    [Q_STEP_LAST] = ("SELECT max(ifnull((SELECT max(step) FROM step WHERE superseded=0), 0),"
                     " ifnull((SELECT from_step FROM incarnation ORDER BY id DESC LIMIT 1), 0))"),
    [Q_STEP_FURTHEST] = ("SELECT max(ifnull((SELECT max(step) FROM step), 0),"
                         " ifnull((SELECT max(from_step) FROM incarnation), 0))"),
    [Q_STEP_LAST_SEQ] = "SELECT ifnull(max(seq), 0) FROM step",
    [Q_SEQ_STEP] = "INSERT INTO step(seq, incarnation, step, wall_s, metrics, superseded) VALUES(?,0,0,0,x'',1)",
    [Q_SEQ_EVENT] = "INSERT INTO sqlite_sequence(name, seq) VALUES('event',?)",
    [Q_SEQ_EVENT_OFF] = "DELETE FROM sqlite_sequence WHERE name='event'",
    [Q_SUPERSEDE] = "UPDATE step SET superseded=1 WHERE superseded=0 AND step>?",
    [Q_INCARNATION_ADD] = "INSERT INTO incarnation(from_step, wall_s) VALUES(?,?)",
    [Q_INCARNATION_READ] = "SELECT id, from_step FROM incarnation ORDER BY id",
    [Q_HISTOGRAM_ADD] = "INSERT OR REPLACE INTO histogram(seq, data) SELECT max(seq), ? FROM step",
    [Q_HISTOGRAM_GET] = "SELECT data FROM histogram WHERE seq=?",
    [Q_RUBRIC_PUT] = "INSERT OR REPLACE INTO rubric(item, prompt_row, rollout_step, data) VALUES(?,?,?,?)",
    [Q_RUBRIC_GET] = "SELECT data FROM rubric WHERE prompt_row=? AND rollout_step<=? ORDER BY item DESC LIMIT 1",
    [Q_RUBRIC_FORGET] = "DELETE FROM rubric WHERE item BETWEEN ? AND ?",
    [Q_SAMPLE_ADD] = "INSERT INTO sample(node, wall_s, figures) VALUES(?,?,?)",
    [Q_SAMPLE_READ] = "SELECT seq, node, wall_s, figures FROM sample WHERE seq>? ORDER BY seq",
    [Q_SAMPLE_LAST] = "SELECT max(seq) FROM sample",
    [Q_ITEM_LAST] = "SELECT max(item) FROM item",
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

/* Why the system refused what SQLite asked of it; 0: it did not, or that is unknown. */
static int system_errno(sqlite3 *db, int last)
{
    int code = sqlite3_extended_errcode(db);
    if ((code & 0xff) != SQLITE_IOERR && (code & 0xff) != SQLITE_CANTOPEN)
        return 0;
    int why = sqlite3_system_errno(db);
    return why == 0 && code == SQLITE_IOERR_WRITE ? last : why;    // SQLite 3.40 forgets that of a commit's write
}

bool db_failed(struct journal *j, const char *what, struct error *err)
{
    int last = errno, code = j->db ? sqlite3_errcode(j->db) : SQLITE_NOMEM;
    enum error_code kind = code == SQLITE_NOMEM ? ERR_NO_MEMORY : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? ERR_DATA : ERR_IO;
    errno = j->db ? system_errno(j->db, last) : 0;
    if (errno != 0)    // says more than "disk I/O error"
        return error_errno(err, "cannot %s the journal '%s': %s", what, j->path, sqlite3_errmsg(j->db));
    return error_set(err, kind, "cannot %s the journal '%s': %s", what, j->path, j->db ? sqlite3_errmsg(j->db) : "no memory");
}

static bool db_exec(struct journal *j, const char *sql, const char *what, struct error *err)
{
    return sqlite3_exec(j->db, sql, NULL, NULL, NULL) == SQLITE_OK || db_failed(j, what, err);
}

sqlite3_stmt *query(struct journal *j, enum statement q, struct error *err)
{
    if (!j->stmt[q] && sqlite3_prepare_v3(j->db, queries[q], -1, SQLITE_PREPARE_PERSISTENT, &j->stmt[q], NULL) != SQLITE_OK) {
        db_failed(j, "query", err);
        return NULL;
    }
    sqlite3_reset(j->stmt[q]);
    return j->stmt[q];
}

bool query_run(struct journal *j, sqlite3_stmt *s, struct error *err)
{
    bool ok = sqlite3_step(s) == SQLITE_DONE || db_failed(j, "write", err);
    sqlite3_reset(s);
    return ok;
}

void bind_text(sqlite3_stmt *s, int i, const char *text)
{
    sqlite3_bind_text(s, i, text, -1, SQLITE_STATIC);
}

const char *column_text(sqlite3_stmt *s, int i)
{
    const char *t = (const char *)sqlite3_column_text(s, i);
    return t ? t : "";
}

bool query_done(struct journal *j, sqlite3_stmt *s, int code, struct error *err)
{
    bool ok = code == SQLITE_DONE || code == SQLITE_ROW || db_failed(j, "read", err);
    sqlite3_reset(s);
    return ok;
}

/* ---- pages of rows ---- */

static void page_release(struct row_page *p)
{
    for (int i = 0; i < p->n * p->n_column; i++)
        sqlite3_value_free(p->value[i]);
    free(p->value);
    *p = (struct row_page){ 0 };
}

/* Copy at most max rows of s into p, and reset s. False: p is empty. */
static bool page_read(struct journal *j, sqlite3_stmt *s, int max, struct row_page *p, struct error *err)
{
    int code;
    bool ok = true;
    *p = (struct row_page){ .n_column = sqlite3_column_count(s) };
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

sqlite3_value *cell(const struct row_page *p, int row, int column)
{
    return p->value[row * p->n_column + column];
}

int64_t cell_i64(const struct row_page *p, int row, int column)
{
    return sqlite3_value_int64(cell(p, row, column));
}

double cell_f64(const struct row_page *p, int row, int column)
{
    return sqlite3_value_double(cell(p, row, column));
}

const char *cell_text(const struct row_page *p, int row, int column)
{
    const char *t = (const char *)sqlite3_value_text(cell(p, row, column));
    return t ? t : "";
}

bool pages_read(struct journal *j, enum statement q, int64_t after, const char *bind, page_row_fn *fn, void *ctx, struct error *err)
{
    for (bool more = true; more;) {
        struct row_page p;
        sqlite3_stmt *s = query(j, q, err);
        if (!s)
            return false;
        bool keyed = sqlite3_bind_parameter_count(s) > 0, ok = true;    // tables without a key are small: one page holds all rows
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

/* A journal that comes from elsewhere is data: nothing in it is to run. A view can take the place of a table and never end, a trigger can
 * change what we write, and an expression (of a column, a check, a default or an index) can take a gigabyte for each row. Ours has none of
 * these: a parenthesis is opened once for a table or index, and once for a key of several columns. */
static const char
    foreign[] = "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE '%virtual%' OR sql LIKE '%where%'"
                " OR length(sql) - length(replace(sql, '(', ''))"
                " > 1 + (length(sql) - length(replace(sql, 'PRIMARY KEY(', ''))) / length('PRIMARY KEY(') LIMIT 1";

static bool schema_check(struct journal *j, struct error *err)
{
    sqlite3_stmt *s = NULL;
    char what[160] = "";
    sqlite3_db_config(j->db, SQLITE_DBCONFIG_DEFENSIVE, 1, (int *)NULL);
    sqlite3_db_config(j->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, (int *)NULL);
    sqlite3_db_config(j->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, (int *)NULL);
    sqlite3_db_config(j->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, (int *)NULL);
    sqlite3_limit(j->db, SQLITE_LIMIT_LENGTH, VALUE_MAX_BYTES);
    if (sqlite3_prepare_v2(j->db, foreign, -1, &s, NULL) != SQLITE_OK)
        return db_failed(j, "open", err);
    if (sqlite3_step(s) == SQLITE_ROW)
        snprintf(what, sizeof what, "%.20s '%.100s'", (const char *)sqlite3_column_text(s, 0), (const char *)sqlite3_column_text(s, 1));
    sqlite3_finalize(s);
    return !what[0] || error_set(err, ERR_DATA, "the journal '%s' has the %s, which rollcall does not make; it is not read", j->path, what);
}

bool db_open(struct journal *j, struct error *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (j->reader ? 0 : SQLITE_OPEN_CREATE);
    int code = sqlite3_open_v2(j->path, &j->db, flags, NULL);
    if (code != SQLITE_OK && j->reader) {    // a run on a read-only medium can still be looked at
        sqlite3_close(j->db);
        code = sqlite3_open_v2(j->path, &j->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL);
    }
    if (code != SQLITE_OK)
        return db_failed(j, "open", err);
    sqlite3_busy_timeout(j->db, JOURNAL_BUSY_MS);
    if (!schema_check(j, err))
        return false;
    if (j->reader)    // the last connection to close would fold the log: that is the writer's job
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
           && query(j, Q_ROLLBACK, err);    // prepared now, so that it needs no memory later when there may be none
}

void db_close(struct journal *j)
{
    for (int i = 0; i < Q_N; i++)
        sqlite3_finalize(j->stmt[i]);
    sqlite3_close(j->db);
}
