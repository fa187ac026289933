#include "protocol/record/journal_home.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/record/journal.h"

/* Where the run's link leads; "": it has none. */
static void link_read(const char *run_dir, char to[PATH_MAX])
{
    char path[PATH_MAX];
    ssize_t n = path_join(path, sizeof path, run_dir, "journal.db") ? readlink(path, to, PATH_MAX - 1) : -1;
    to[n > 0 ? n : 0] = 0;
}

/* The number N of a journal's place, from where the link leads; 0: none. JOURNAL_DIR may have RUN_ID in it, too. */
static int64_t number_of(const char *to, const char *run_id)
{
    int64_t n = 0;
    for (const char *id = to; (id = strstr(id, run_id)); id++) {
        int end = 0;
        if (sscanf(id + strlen(run_id), ".%" SCNd64 "/journal.db%n", &n, &end) == 1 && end > 0 && !id[strlen(run_id) + (size_t)end])
            return n;
    }
    return 0;
}

/* JOURNAL_DIR/RUN_ID.N/journal.db, whose folder is made. */
static bool place_make(const char *journal_dir, const char *run_id, int64_t n, char to[PATH_MAX], struct error *err)
{
    char folder[PATH_MAX], real[PATH_MAX];
    if (!dir_make(journal_dir, 0755, err))
        return false;
    if (!realpath(journal_dir, real))
        return error_errno(err, "cannot find '%s'", journal_dir);
    if (snprintf(folder, sizeof folder, "%.3800s/%.64s.%" PRId64, real, run_id, n) >= (int)sizeof folder
        || !journal_path_check(folder, err))
        return error_set(err, ERR_USAGE, "the path of 'journal_dir' '%s' is too long", journal_dir);
    return dir_make(folder, 0700, err)
           && (path_join(to, PATH_MAX, folder, "journal.db") || error_set(err, ERR_USAGE, "the path '%s' is too long", folder));
}

/* RUN/journal.db leads to `to` from now on. */
static bool link_make(const char *run_dir, const char *to, struct error *err)
{
    char path[PATH_MAX], new[PATH_MAX];
    if (!path_join(path, sizeof path, run_dir, "journal.db") || !path_join(new, sizeof new, run_dir, "journal.db.new"))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    unlink(new);
    return (symlink(to, new) == 0 && rename(new, path) == 0) || error_errno(err, "cannot link '%s' to '%s'", path, to);
}

bool journal_home_make(const char *run_dir, const char *journal_dir, const char *run_id, struct error *err)
{
    char to[PATH_MAX];
    return place_make(journal_dir, run_id, 1, to, err) && link_make(run_dir, to, err);
}

bool journal_is_elsewhere(const char *run_dir)
{
    char to[PATH_MAX];
    link_read(run_dir, to);
    return to[0] && !path_exists(to);
}

/* The copy goes on where the snapshot ends: above all numbers that the lost journal may have reached, and in an incarnation of its own. */
static bool copy_begin(const char *folder, const char *from, int64_t *step, struct error *err)
{
    char text[PATH_MAX + 200], number[32];
    bool ok = false;
    int64_t incarnation;
    struct journal *j = journal_open(folder, err);
    TRY(j && journal_last_step(j, step, err) && journal_begin(j, err));
    TRY(journal_seq_begin(j, (int64_t)(clock_wall_s() * 1000), err));    // as journal_rebuild.c
    TRY((incarnation = journal_incarnation_begin(j, *step, err)) > 0);
    int n = snprintf(number, sizeof number, "%" PRId64, incarnation);
    TRY(journal_value_put(j, "incarnation", number, (size_t)n, err));
    snprintf(text, sizeof text,
             "the run goes on here after step %" PRId64 " of the journal's snapshot: its journal '%.3000s' is on another machine", *step,
             from);
    TRY(journal_event_add(j, incarnation, *step, "alert", "train --resume", text, "", err));
    ok = journal_commit(j, err);
out:
    journal_close(j);
    return ok;
}

bool journal_home_take(const char *run_dir, const char *journal_dir, const char *run_id, bool *taken, int64_t *step, struct error *err)
{
    char from[PATH_MAX], to[PATH_MAX], snapshot[PATH_MAX], folder[PATH_MAX];
    struct buf copy = BUF_INIT;
    *taken = false;
    if (!journal_is_elsewhere(run_dir))
        return true;
    link_read(run_dir, from);
    if (!path_join(snapshot, sizeof snapshot, run_dir, JOURNAL_SNAPSHOT) || !path_exists(snapshot))
        return error_set(err, ERR_NOT_FOUND,
                         "the journal of '%s' is '%s' on another machine, which has left no " JOURNAL_SNAPSHOT
                         " here; resume it there, or add "
                         "--from-checkpoint",
                         run_dir, from);
    if (!journal_dir[0])
        return error_set(err, ERR_USAGE,
                         "the journal of '%s' is '%s' on another machine; --journal-dir says where this machine is to keep it", run_dir,
                         from);
    bool ok = place_make(journal_dir, run_id, number_of(from, run_id) + 1, to, err) && file_read(&copy, snapshot, (size_t)1 << 40, err)
              && file_write(to, copy.data, copy.len, err);
    buf_release(&copy);
    snprintf(folder, sizeof folder, "%.*s", (int)(strlen(to) - strlen("/journal.db")), to);
    *taken = ok && copy_begin(folder, from, step, err) && link_make(run_dir, to, err);    // the link last: until then nothing is taken
    return *taken;
}
