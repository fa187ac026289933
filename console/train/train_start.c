/* Makes and fills the run's directory and starts its keeper; from then on the agent runs the run. */
#include "console/train/train_parts.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "console/train/launch.h"
#include "protocol/base/file.h"
#include "protocol/run/journal.h"
#include "protocol/run/journal_home.h"
#include "protocol/run/run_owner.h"
#include "protocol/run/resume_flags.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/spawn.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/model/config.h"
#include "workers/engine/plan/run_room.h"

bool dir_take(struct train *t, struct error *err)
{
    char parent[PATH_MAX], name[160];
    const char *runs = t->runs_dir ? t->runs_dir : "runs";
    if (!dir_make(runs, 0755, err))
        return false;
    if (!realpath(runs, parent))
        return error_errno(err, "cannot find '%s'", runs);
    for (int i = 1; i < 100000; i++) {
        if (t->config.name[0])
            snprintf(name, sizeof name, "%s", t->config.name);
        else
            snprintf(name, sizeof name, "run-%d", i);
        if (!path_join(t->run_dir, sizeof t->run_dir, parent, name))
            return error_set(err, ERR_USAGE, "the path of run '%s' is too long", name);
        if (!journal_path_check(t->run_dir, err))
            return false;
        if (mkdir(t->run_dir, 0755) == 0) {
            snprintf(t->config.name, sizeof t->config.name, "%.127s", name);
            return true;
        }
        if (errno != EEXIST)
            return error_errno(err, "cannot make '%s'", t->run_dir);
        if (launch_awaits(t->run_dir))
            return true;
        if (t->config.name[0])
            return error_set(err, ERR_EXISTS, "'%s' exists; choose another --name, or continue it: --resume %s", t->run_dir, t->run_dir);
    }
    return error_set(err, ERR_EXISTS, "no free name for a run under '%s'", parent);
}

/* The nearest existing folder at or above path. */
static void folder_above(char *path)
{
    while (!path_is_dir(path)) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) {
            strcpy(path, slash ? "/" : ".");
            return;
        }
        *slash = 0;
    }
}

bool room_check(const struct train *t, struct error *err)
{
    char dir[PATH_MAX];
    const double mib = 1 << 20;
    struct model_config shape;
    struct statvfs fs;
    snprintf(dir, sizeof dir, "%s",
             t->config.save_dir[0] ? t->config.save_dir
             : t->run_dir[0]       ? t->run_dir
             : t->runs_dir         ? t->runs_dir
                                   : "runs");
    folder_above(dir);
    if (!config_load(&shape, t->config.model, err))
        return false;
    if (access(dir, W_OK | X_OK) != 0)
        return error_errno(err, "cannot write in '%s'", dir);
    if (statvfs(dir, &fs) != 0)
        return error_errno(err, "cannot examine the disk of '%s'", dir);
    bool saves = t->config.save_interval > 0 || t->config.save_at_end;
    double needed = (saves ? 12 * run_n_trained(&t->config, &shape) : 0) + mib, left = (double)fs.f_bavail * (double)fs.f_frsize;
    return left >= needed
           || error_set(err, ERR_IO,
                        "no space for a run on the disk of '%s': %.1f MiB are left, and one checkpoint of this "
                        "model and the journal take %.1f MiB",
                        dir, left / mib, needed / mib);
}

/* Fill the directory: run.yaml and folders; remove what an earlier start left in sock/. */
static bool dir_fill(struct train *t, struct error *err)
{
    static const char *const dirs[] = { "logs", "checkpoints", "rollouts", "eval", "export" };
    static const char *const old[] = { "ending", "ended", "orders", "lock" };
    char path[PATH_MAX], id[RUN_ID_BYTES];
    struct buf yaml = BUF_INIT;
    bool ok = false;
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
        TRY(path_join(path, sizeof path, t->run_dir, dirs[i]) && dir_make(path, 0755, err));
    TRY(folders_take(t, err) && identity_write(t->run_dir, t->identity, err));
    if (!t->resume && t->config.journal_dir[0])
        TRY(run_id_read(t->run_dir, id, err) && journal_home_make(t->run_dir, t->config.journal_dir, id, err));
    TRY(path_join(path, sizeof path, t->run_dir, "sock") && dir_make(path, 0700, err));
    for (size_t i = 0; i < ARRAY_SIZE(old); i++) {
        snprintf(path, sizeof path, "%.4000s/sock/%s", t->run_dir, old[i]);
        unlink(path);
    }
    run_weights_remove(t->run_dir);
    TRY(run_failure_prepare(t->run_dir, err));
    TRY(t->flags.len == 0 || resume_flags_write(t->run_dir, &t->flags, err));
    TRY(run_config_print(&t->config, &yaml, err));
    TRY(path_join(path, sizeof path, t->run_dir, "run.yaml") && file_write(path, yaml.data, yaml.len, err));
    buf_clear(&yaml);
    alarm_book_print(&t->alarms, &yaml);
    TRY(!yaml.failed || error_set(err, ERR_NO_MEMORY, "no memory for the alarm book"));
    TRY(path_join(path, sizeof path, t->run_dir, "alarms.yaml") && file_write(path, yaml.data, yaml.len, err));
    ok = true;
out:
    buf_release(&yaml);
    return ok;
}

bool train_start(struct train *t, struct error *err)
{
    bool made = false, ok = false;
    if (t->attached)
        return true;
    if (!t->resume) {
        if (!dir_take(t, err))
            return false;
        made = !launch_awaits(t->run_dir);
        TRY((t->lock_fd = run_lock_take(t->run_dir, err)) >= 0);
    }
    TRY(room_check(t, err) && (!t->from_checkpoint || kept_rebuild(t, err)) && dir_fill(t, err));
    TRY(process_spawn("agent", t->run_dir, "keeper", t->lock_fd, true, err) > 0);
    ok = true;
out:
    if (t->lock_fd >= 0)
        close(t->lock_fd);    // the keeper holds the lock now
    t->lock_fd = -1;
    if (!ok && made) {
        struct error why;
        if (!dir_remove(t->run_dir, &why))
            fprintf(stderr, "%s\n", why.text);
    }
    return ok;
}
