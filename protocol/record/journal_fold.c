#include "protocol/record/journal_fold.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/thread.h"
#include "protocol/record/journal_home.h"

#define FOLD_MS 1000                     // until a folding that a reader cut short is tried again
#define FOLD_PAGES 1024                  // of 4 KiB: growth at which the log is folded
#define SLOW_PAGES (6 * FOLD_PAGES)      // from here on folder_rest waits for the folding
#define CUT_BYTES ((int64_t)16 << 20)    // length above which a folded log is truncated

struct journal_folder {
    sqlite3 *db;            // the writer's; borrowed
    const char *path;       // of the journal; borrowed
    char home[PATH_MAX];    // where path leads; "": it is no link, and nothing is shipped
    int fold_at;            // pages of the log at which the thread is woken
    int wait_at;            // pages of the log at which folder_rest waits for the thread
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock;    // guards the fields below
    pthread_cond_t wake, folded;
    bool stop, wanted, folding, ship;
    bool is_long;              // the log has been longer than CUT_BYTES since it was truncated last
    bool may_cut;              // it is long, and the last folding left nothing in it
    int n_page;                // of the log, after the last commit
    int64_t n_fold;            // how often it has folded
    struct error why;          // why the last folding failed; code ERR_NONE: it did not
    struct error unshipped;    // the same of the last copy
};

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
static bool fold_is_due(const struct journal_folder *f)
{
    return f->wanted || f->n_page >= FOLD_PAGES || f->is_long;
}

/* Does the run's link still lead to this journal? */
static bool home_check(const struct journal_folder *f, struct error *err)
{
    char home[PATH_MAX] = "";
    return (readlink(f->path, home, sizeof home - 1) >= 0 && strcmp(home, f->home) == 0)
           || error_set(err, ERR_EXISTS, "another machine has taken the run over: '%s' leads to '%s', not to '%s'", f->path, home, f->home);
}

static bool copy_write(sqlite3 *db, const char *path, struct error *err)
{
    sqlite3 *copy = NULL;
    sqlite3_backup *b = NULL;
    int code = sqlite3_open_v2(path, &copy, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code == SQLITE_OK && (b = sqlite3_backup_init(copy, "main", db, "main"))) {
        (void)sqlite3_backup_step(b, -1);
        code = sqlite3_backup_finish(b);    // says how the step ended
    } else if (code == SQLITE_OK) {
        code = sqlite3_errcode(copy);
    }
    sqlite3_close(copy);
    return code == SQLITE_OK || error_set(err, ERR_IO, "cannot copy the journal to '%s': %s", path, sqlite3_errstr(code));
}

/* Copy all that is committed to RUN/journal.snapshot.new, then in the place of the one before; it is on the disk by then. */
static bool ship_once(const struct journal_folder *f, sqlite3 *db, struct error *err)
{
    char to[PATH_MAX], new[PATH_MAX + 8], dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s", (int)(strlen(f->path) - strlen("/journal.db")), f->path);
    if (!path_join(to, sizeof to, dir, JOURNAL_SNAPSHOT))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    snprintf(new, sizeof new, "%s.new", to);
    if (!home_check(f, err))
        return false;
    unlink(new);
    return copy_write(db, new, err) && home_check(f, err) && (rename(new, to) == 0 || error_errno(err, "cannot rename '%s'", new))
           && dir_sync(dir, err);
}

/* The lock is held but while it copies. */
static void ship(struct journal_folder *f, sqlite3 *db)
{
    struct error err = { 0 };
    f->ship = false;
    pthread_mutex_unlock(&f->lock);
    bool ok = ship_once(f, db, &err);
    pthread_mutex_lock(&f->lock);
    f->unshipped = ok ? (struct error){ 0 } : err;
}

static void *fold_run(void *arg)
{
    struct journal_folder *f = arg;
    sqlite3 *db = NULL;
    int code = sqlite3_open_v2(f->path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_exec(db, "PRAGMA synchronous=NORMAL; SELECT 1 FROM sqlite_master LIMIT 1", NULL, NULL, NULL);
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        f->why = (struct error){ 0 };
        if (code != SQLITE_OK && code != SQLITE_BUSY && code != SQLITE_LOCKED)    // busy: try again later
            error_set(&f->why, ERR_IO, "cannot fold the journal's log '%s-wal': %s", f->path, db ? sqlite3_errmsg(db) : "no memory");
        struct timespec until = clock_after(FOLD_MS);
        while (!f->stop && !f->wanted && !f->ship && pthread_cond_timedwait(&f->wake, &f->lock, &until) == 0)
            ;
        if (!f->stop && db && f->ship)
            ship(f, db);
        if (f->stop || !db || !fold_is_due(f))
            continue;
        int n_frame;
        bool whole;
        f->wanted = false;
        f->folding = true;
        pthread_mutex_unlock(&f->lock);
        code = fold_once(db, &n_frame, &whole);
        pthread_mutex_lock(&f->lock);
        f->folding = false;
        f->is_long = f->is_long || (int64_t)n_frame * 4096 > CUT_BYTES;
        f->may_cut = whole && f->is_long;
        f->n_fold++;
        pthread_cond_broadcast(&f->folded);
    }
    pthread_mutex_unlock(&f->lock);
    sqlite3_close(db);
    return NULL;
}

/* After each commit: wake the folding thread when the log has grown by FOLD_PAGES. */
static int log_grown(void *arg, UNUSED sqlite3 *db, UNUSED const char *name, int n_page)
{
    struct journal_folder *f = arg;
    if (n_page < f->fold_at - FOLD_PAGES) {    // the log started over
        f->fold_at = FOLD_PAGES;
        f->wait_at = SLOW_PAGES;
    }
    pthread_mutex_lock(&f->lock);
    f->n_page = n_page;
    if (n_page >= f->fold_at) {
        f->fold_at = n_page + FOLD_PAGES;
        f->wanted = true;
        pthread_cond_signal(&f->wake);
    }
    pthread_mutex_unlock(&f->lock);
    return SQLITE_OK;
}

/* The lock is held. Wait for a folding that begins now: while the writer waits nothing is added, so it reaches the end of the log
 * unless a reader is in the way. */
static void fold_wait(struct journal_folder *f)
{
    struct timespec until = clock_after(FOLD_MS);
    int64_t wanted = f->n_fold + 1 + f->folding;
    f->wait_at = f->n_page + FOLD_PAGES;
    f->wanted = true;
    pthread_cond_signal(&f->wake);
    while (f->n_fold < wanted && pthread_cond_timedwait(&f->folded, &f->lock, &until) == 0)
        ;
}

/* Fold what is left, and truncate the log. Does not wait for readers: with one in the way, it folds what it can and returns false. */
static bool log_truncate(struct journal_folder *f)
{
    sqlite3_busy_timeout(f->db, 0);
    return sqlite3_wal_checkpoint_v2(f->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) == SQLITE_OK;
}

void folder_rest(struct journal_folder *f, int busy_ms)
{
    pthread_mutex_lock(&f->lock);
    if (f->n_page >= f->wait_at)
        fold_wait(f);
    bool cut = f->may_cut;
    f->may_cut = false;
    pthread_mutex_unlock(&f->lock);
    if (!cut)
        return;
    cut = log_truncate(f);    // when a reader is in the way, the next folding tries again
    sqlite3_busy_timeout(f->db, busy_ms);
    pthread_mutex_lock(&f->lock);
    f->is_long = f->is_long && !cut;
    f->n_page = cut ? 0 : f->n_page;
    pthread_mutex_unlock(&f->lock);
}

void folder_ship(struct journal_folder *f)
{
    if (!f->home[0])
        return;
    pthread_mutex_lock(&f->lock);
    f->ship = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
}

bool folder_ships(struct journal_folder *f, struct error *err)
{
    pthread_mutex_lock(&f->lock);
    struct error last = f->unshipped;
    pthread_mutex_unlock(&f->lock);
    return !last.text[0] || error_set(err, last.code, "%s", last.text);
}

bool folder_folds(struct journal_folder *f, struct error *err)
{
    pthread_mutex_lock(&f->lock);
    struct error last = f->why;
    pthread_mutex_unlock(&f->lock);
    return !last.text[0] || error_set(err, last.code, "%s", last.text);
}

struct journal_folder *folder_new(sqlite3 *db, const char *path, struct error *err)
{
    struct journal_folder *f = calloc(1, sizeof *f);
    if (!f) {
        error_set(err, ERR_NO_MEMORY, "no memory for the journal '%s'", path);
        return NULL;
    }
    f->db = db;
    f->path = path;
    if (readlink(path, f->home, sizeof f->home - 1) < 0)
        f->home[0] = 0;
    f->fold_at = FOLD_PAGES;
    f->wait_at = SLOW_PAGES;
    pthread_mutex_init(&f->lock, NULL);
    clock_cond_init(&f->wake);
    clock_cond_init(&f->folded);
    int code = thread_start(&f->thread, fold_run, f);
    f->runs = code == 0;
    if (!f->runs) {    // without it the log would grow without bound
        error_set(err, ERR_NO_MEMORY, "cannot start the thread of the journal '%s': %s", path, strerror(code));
        folder_free(f);
        return NULL;
    }
    sqlite3_wal_hook(db, log_grown, f);
    return f;
}

void folder_free(struct journal_folder *f)
{
    if (!f)
        return;
    sqlite3_wal_hook(f->db, NULL, NULL);
    if (f->runs) {
        pthread_mutex_lock(&f->lock);
        f->stop = true;
        pthread_cond_signal(&f->wake);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
        struct error unshipped;
        if (f->home[0])
            (void)!ship_once(f, f->db, &unshipped);    // else the one before stays
        (void)log_truncate(f);    // SQLite does so only when no reader has the file open; journal.db alone holds all that is closed
    }
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->wake);
    pthread_cond_destroy(&f->folded);
    free(f);
}
