/* Makes and fills the run's directory and starts its keeper; from then on the agent runs the run. */
#include "console/train/train_parts.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "console/train/launch.h"
#include "protocol/base/file.h"
#include "protocol/record/journal.h"
#include "protocol/record/journal_home.h"
#include "protocol/run/resume_flags.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/run_owner.h"
#include "protocol/run/spawn.h"
#include "protocol/wire/nng_start.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/model/config.h"
#include "workers/engine/plan/run_room.h"

/* In a run's folder until it holds all that a run needs. */
#define STARTING "starting"

static bool is_there(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return path_join(path, sizeof path, dir, name) && path_exists(path);
}

/* Only the lock is made before the mark. */
static bool holds_only_a_lock(const char *run_dir)
{
    int fd = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    bool only = d != NULL;
    for (struct dirent *e; only && (e = readdir(d));)
        only = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || strcmp(e->d_name, "lock") == 0;
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    return only;
}

bool start_was_cut(const char *run_dir)
{
    return !is_there(run_dir, "run.yaml") && (is_there(run_dir, STARTING) || holds_only_a_lock(run_dir)) && !run_is_live(run_dir);
}

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
        if (launch_awaits(t->run_dir) || (t->config.name[0] && start_was_cut(t->run_dir)))
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

/* What the run's processes write to, and would refuse when it is a link: said here, before they are started. */
static bool links_refuse(const struct train *t, struct error *err)
{
    static const char *const names[] = { "groups.zst", "log.jsonl" };
    char path[PATH_MAX];
    bool is_link = path_join(path, sizeof path, t->run_dir, "sock") && path_is_link(path);
    for (size_t i = 0; !is_link && i < ARRAY_SIZE(names); i++)
        is_link = run_config_groups_path(&t->config, t->run_dir, path, sizeof path)
                  && snprintf(strrchr(path, '/'), sizeof "/groups.zst", "/%s", names[i]) > 0 && path_is_link(path);
    return !is_link
           || error_set(err, ERR_IO, "'%s' is a link, and runs do not write through links; put what it leads to in its place", path);
}

/* Fill the directory: folders, and run.yaml last, with which it can be resumed; remove what an earlier start left in sock/. What is there
 * from a start that was killed is made again. */
static bool dir_fill(struct train *t, struct error *err)
{
    static const char *const dirs[] = { "logs", "checkpoints", "rollouts", "eval", "export" };
    static const char *const old[] = { "ending", "ended", "orders", "lock", "lives" };
    char path[PATH_MAX], id[RUN_ID_BYTES];
    struct buf yaml = BUF_INIT;
    bool ok = false;
    TRY(links_refuse(t, err));
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
    alarm_book_print(&t->alarms, &yaml);
    TRY(!yaml.failed || error_set(err, ERR_NO_MEMORY, "no memory for the alarm book"));
    TRY(path_join(path, sizeof path, t->run_dir, "alarms.yaml") && file_write(path, yaml.data, yaml.len, err));
    buf_clear(&yaml);
    TRY(run_config_print(&t->config, &yaml, err));
    TRY(path_join(path, sizeof path, t->run_dir, "run.yaml") && file_write(path, yaml.data, yaml.len, err));
    TRY(path_join(path, sizeof path, t->run_dir, STARTING));
    unlink(path);
    ok = true;
out:
    buf_release(&yaml);
    return ok;
}

static bool starting_mark(const char *run_dir, struct error *err)
{
    char path[PATH_MAX];
    int fd = path_join(path, sizeof path, run_dir, STARTING) ? file_create(path, O_WRONLY, 0644, err) : -1;
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

bool train_start(struct train *t, struct error *err)
{
    bool made = false, ok = false;
    if (t->attached)
        return true;
    if (!nng_start(err))    // else the run would start, and nobody would watch it
        return false;
    if (!t->resume) {
        if (!dir_take(t, err))
            return false;
        bool was_there = launch_awaits(t->run_dir) || is_there(t->run_dir, STARTING);
        TRY((t->lock_fd = run_lock_take(t->run_dir, err)) >= 0);    // else the folder is another's
        made = !was_there;
        TRY(starting_mark(t->run_dir, err));
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
