/* checkpoint_folder.c - the checkpoints of one folder: the newest, a broken one out of the way, old ones gone */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/lora_config.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/checkpoint_parts.h"

static int step_compare_down(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps of the directories named step-N, newest first, into *steps (free). */
static bool steps_list(const char *dir, int64_t **steps, int64_t *n, struct error *err)
{
    int64_t cap = 0;
    *steps = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? true : error_errno(err, "cannot list '%s'", dir);
    for (struct dirent *e; (e = readdir(d));) {
        int64_t step;
        int end = 0;
        if (sscanf(e->d_name, "step-%" PRId64 "%n", &step, &end) != 1 || e->d_name[end] || step < 0)
            continue;
        if (*n == cap) {
            cap = cap ? cap * 2 : 64;
            int64_t *more = realloc(*steps, (size_t)cap * sizeof *more);
            if (!more) {
                closedir(d);
                free(*steps);
                *steps = NULL;
                return error_set(err, ERR_NO_MEMORY, "no memory to list '%s'", dir);
            }
            *steps = more;
        }
        (*steps)[(*n)++] = step;
    }
    closedir(d);
    if (*n > 0)
        qsort(*steps, (size_t)*n, sizeof **steps, step_compare_down);
    return true;
}

/* Is the checkpoint run's, or nobody's? */
static bool belongs_to(const char *path, const char *run)
{
    char owner[64];
    struct error broken;
    return !run || (checkpoint_owner(path, owner, &broken) && (!owner[0] || strcmp(owner, run) == 0));
}

/* Where dir's checkpoint of step and its manifest are. */
static bool step_paths(const char *dir, int64_t step, char path[CHECKPOINT_PATH], char manifest[CHECKPOINT_PATH], struct error *err)
{
    char name[64];
    snprintf(name, sizeof name, "step-%06" PRId64, step);
    return checkpoint_join(path, dir, name, err) && checkpoint_join(manifest, path, "state/manifest.json", err);
}

bool checkpoint_last(const char *dir, const char *run, int64_t *step, struct error *err)
{
    int64_t *steps, n;
    *step = -1;
    if (!steps_list(dir, &steps, &n, err))
        return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < n && *step < 0; i++) {
        char path[CHECKPOINT_PATH], manifest[CHECKPOINT_PATH];
        ok = step_paths(dir, steps[i], path, manifest, err);
        if (ok && path_exists(manifest) && belongs_to(path, run))
            *step = steps[i];
    }
    free(steps);
    return ok;
}

bool checkpoint_newest_whole(const char *dir, const char *run, char path[4096], int64_t *step, struct buf *broken, struct error *err)
{
    int64_t *steps, n, found;
    *step = -1;
    if (!steps_list(dir, &steps, &n, err))
        return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < n && *step < 0; i++) {
        char name[64], why[sizeof err->text + CHECKPOINT_PATH + 16];
        struct error bad;
        snprintf(name, sizeof name, "step-%06" PRId64, steps[i]);
        ok = checkpoint_join(path, dir, name, err);
        if (ok && checkpoint_verify(path, &found, &bad)) {
            *step = belongs_to(path, run) ? found : -1;
        } else if (ok) {
            snprintf(why, sizeof why, "%s: %s\n", path, bad.text);
            ok = buf_str(broken, why) || error_set(err, ERR_NO_MEMORY, "no memory to look through '%s'", dir);
        }
    }
    free(steps);
    return ok;
}

bool checkpoint_set_aside(const char *dir, const char *run, int64_t step, struct error *err)
{
    int64_t *steps, n;
    if (!steps_list(dir, &steps, &n, err))
        return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < n && steps[i] > step; i++) {
        char name[64], path[CHECKPOINT_PATH], manifest[CHECKPOINT_PATH], owner[64], aside[CHECKPOINT_PATH];
        struct error unread;
        ok = step_paths(dir, steps[i], path, manifest, err);
        if (!ok || (run && path_exists(manifest) && checkpoint_owner(path, owner, &unread) && owner[0] && strcmp(owner, run) != 0))
            continue;
        for (int k = 1, wide = 1; ok && wide; k++) {
            snprintf(name, sizeof name, "step-%06" PRId64 ".broken-%d", steps[i], k);
            ok = checkpoint_join(aside, dir, name, err);
            wide = path_exists(aside);
        }
        ok = ok && (rename(path, aside) == 0 || error_errno(err, "cannot move '%s' to '%s'", path, aside));
    }
    free(steps);
    return ok && dir_sync(dir, err);
}

bool checkpoint_pin(const char *path, bool pinned, struct error *err)
{
    char file[CHECKPOINT_PATH], manifest[CHECKPOINT_PATH];
    if (!checkpoint_join(file, path, "state/pinned", err) || !checkpoint_join(manifest, path, "state/manifest.json", err))
        return false;
    if (!pinned)
        return unlink(file) == 0 || errno == ENOENT || error_errno(err, "cannot remove '%s'", file);
    if (!file_write(file, "", 0, err))
        return false;
    return path_exists(manifest) || error_set(err, ERR_NOT_FOUND, "'%s' is not complete, or has just been removed", path);
}

bool checkpoint_is_pinned(const char *path)
{
    char file[CHECKPOINT_PATH];
    struct error err;
    return checkpoint_join(file, path, "state/pinned", &err) && path_exists(file);
}

/* Remove a checkpoint. One that has been moved elsewhere and linked back keeps its files there: only the link goes, and is noted. */
static bool checkpoint_drop(const char *path, struct buf *links, struct error *err)
{
    bool noted = !path_is_link(path) || buf_fmt(links, "%s%s", links->len ? ", " : "", path);
    return dir_remove(path, err) && (noted || error_set(err, ERR_NO_MEMORY, "no memory to note that '%s' was a link", path));
}

/* Remove what a rollback has moved aside, unless it is pinned. */
static bool undone_remove(const char *dir, const char *run, struct buf *links, struct error *err)
{
    DIR *d = opendir(dir);
    bool ok = d || error_errno(err, "cannot list '%s'", dir);
    for (struct dirent *e; ok && (e = readdir(d));) {
        int64_t step;
        int k, end = 0;
        char path[CHECKPOINT_PATH];
        if (sscanf(e->d_name, "step-%" PRId64 ".undone-%d%n", &step, &k, &end) != 2 || e->d_name[end])
            continue;
        ok = checkpoint_join(path, dir, e->d_name, err)
             && (!belongs_to(path, run) || checkpoint_is_pinned(path) || checkpoint_drop(path, links, err));
    }
    if (d)
        closedir(d);
    return ok;
}

bool checkpoint_prune(const char *dir, int64_t keep, const char *run, struct buf *links, struct error *err)
{
    int64_t *steps, n;
    if (keep <= 0)
        return true;
    if (!steps_list(dir, &steps, &n, err))
        return false;
    bool ok = true;
    int64_t complete = 0;
    for (int64_t i = 0; ok && i < n; i++) {
        char path[CHECKPOINT_PATH], manifest[CHECKPOINT_PATH];
        ok = step_paths(dir, steps[i], path, manifest, err);
        if (!ok || !path_exists(manifest))    // not ours to judge: leave what is not a checkpoint
            continue;
        if (!belongs_to(path, run) || checkpoint_is_pinned(path))
            continue;
        if (++complete > keep)
            ok = checkpoint_drop(path, links, err);
    }
    free(steps);
    return ok && (complete < keep || undone_remove(dir, run, links, err));
}

bool checkpoint_config_check(const char *path, const char *model, struct error *err)
{
    struct model_config have, come;
    char what[700];
    if (lora_dir_is(path))    // it has no config.json: its base is this run's model
        return true;
    snprintf(what, sizeof what, "the checkpoint '%.500s'", path);
    if (!config_load(&have, model, err) || !config_load(&come, path, err))
        return false;
    return config_same(&have, &come, what, err)
           || error_wrap(err, "'checkpoint_path' continues with the model '%.200s'; give the checkpoint as the 'model' to take it whole",
                         model);
}
