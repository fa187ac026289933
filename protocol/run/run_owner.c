#include "protocol/run/run_owner.h"
#include <inttypes.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"

#define MARK ".rollcall-run"
#define MARK_MAX (PATH_MAX + 64)

bool run_id_read(const char *run_dir, char id[RUN_ID_BYTES], struct error *err)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    id[0] = 0;
    if (!path_join(path, sizeof path, run_dir, "run.id"))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir);
    if (!path_exists(path))
        return true;
    bool ok = file_read(&text, path, RUN_ID_BYTES, err);
    size_t len = ok ? strcspn(buf_text(&text), "\n") : 0;
    if (ok && (len < 16 || len >= RUN_ID_BYTES || strspn(buf_text(&text), "0123456789abcdef") != len))
        ok = error_set(err, ERR_DATA, "'%s' does not hold a run's id", path);
    if (ok)
        snprintf(id, RUN_ID_BYTES, "%.*s", (int)len, buf_text(&text));
    buf_release(&text);
    return ok;
}

bool run_id_make(const char *run_dir, char id[RUN_ID_BYTES], struct error *err)
{
    char path[PATH_MAX], line[RUN_ID_BYTES + 2];
    unsigned char bytes[12];
    if (!run_id_read(run_dir, id, err))
        return false;
    if (id[0])
        return true;
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return error_errno(err, "cannot get a random number");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    int n = snprintf(line, sizeof line, "%s\n", id);
    return (path_join(path, sizeof path, run_dir, "run.id") || error_set(err, ERR_USAGE, "the path '%s' is too long", run_dir))
           && file_write(path, line, (size_t)n, err);
}

/* The folder's mark; *found false: it has none. */
static bool mark_read(const char *path, char id[RUN_ID_BYTES], char dir[PATH_MAX], bool *found, struct error *err)
{
    struct buf text = BUF_INIT;
    *found = path_exists(path);
    if (!*found)
        return true;
    bool ok = file_read(&text, path, MARK_MAX, err);
    const char *t = buf_text(&text), *space = strchr(t, ' ');
    size_t len = space ? (size_t)(space - t) : 0;
    if (ok && (len == 0 || len >= RUN_ID_BYTES || !strchr(space, '\n')))
        ok = error_set(err, ERR_DATA, "'%s' does not name a run", path);
    if (ok) {
        snprintf(id, RUN_ID_BYTES, "%.*s", (int)len, t);
        snprintf(dir, PATH_MAX, "%.*s", (int)strcspn(space + 1, "\n"), space + 1);
    }
    buf_release(&text);
    return ok;
}

/* Find a file in folder that only a run can have left there; false: there is none. */
static bool left_find(const char *folder, char name[NAME_MAX + 1])
{
    bool found = false;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        int64_t step;
        int end = 0;
        found = (sscanf(e->d_name, "step-%" PRId64 "%n", &step, &end) == 1 && !e->d_name[end]) || strcmp(e->d_name, "groups.zst") == 0
                || strcmp(e->d_name, "log.jsonl") == 0 || strstr(e->d_name, "_training_step_");
        if (found)
            snprintf(name, NAME_MAX + 1, "%s", e->d_name);
    }
    if (d)
        closedir(d);
    return found;
}

static bool is_inside(const char *folder, const char *run_dir)
{
    size_t n = strlen(run_dir);
    return strncmp(folder, run_dir, n) == 0 && (folder[n] == '/' || !folder[n]);
}

bool folder_check(const char *folder, const char *setting, const char *run_dir, const char *id, struct error *err)
{
    char path[PATH_MAX], owner[RUN_ID_BYTES] = "", dir[PATH_MAX] = "", there[RUN_ID_BYTES], left[NAME_MAX + 1];
    bool found;
    if (!path_join(path, sizeof path, folder, MARK))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", folder);
    if (!mark_read(path, owner, dir, &found, err))
        return false;
    const char *mine = run_dir[0] ? run_dir : "this new run";
    if (!found && !id[0] && left_find(folder, left))
        return error_set(err, ERR_EXISTS, "%s '%s' holds '%s' of another run, and %s would overwrite it; give each run its own folder",
                         setting, folder, left, mine);
    if (!found)
        return true;
    if (strcmp(owner, id) != 0)
        return error_set(err, ERR_EXISTS,
                         "%s '%s' belongs to the run '%s', and '%s' would overwrite what that run saved; give each run its "
                         "own folder",
                         setting, folder, dir, mine);
    struct error none;
    bool copied = !is_inside(folder, run_dir) && strcmp(dir, run_dir) != 0 && run_id_read(dir, there, &none) && strcmp(there, id) == 0;
    return !copied
           || error_set(err, ERR_EXISTS, "%s '%s' belongs to the run '%s', and '%s' is a copy of that run; give the copy its own folder",
                        setting, folder, dir, run_dir);
}

bool folder_take(const char *folder, const char *setting, const char *run_dir, const char *id, struct error *err)
{
    char path[PATH_MAX], tmp[PATH_MAX], line[MARK_MAX], owner[RUN_ID_BYTES], dir[PATH_MAX];
    bool found;
    if (!dir_make(folder, 0755, err) || !folder_check(folder, setting, run_dir, id, err))
        return false;
    int n = snprintf(line, sizeof line, "%s %s\n", id, run_dir);
    char name[64];
    snprintf(name, sizeof name, MARK ".%d", (int)getpid());
    if (n >= (int)sizeof line || !path_join(path, sizeof path, folder, MARK) || !path_join(tmp, sizeof tmp, folder, name))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", folder);
    if (!mark_read(path, owner, dir, &found, err))
        return false;
    if (found)    // ours: the run has moved, or nothing changed
        return strcmp(dir, run_dir) == 0 || file_write(path, line, (size_t)n, err);
    if (!file_write(tmp, line, (size_t)n, err))
        return false;
    bool made = link(tmp, path) == 0;    // when two runs start at once, only one gets it
    int why = errno;
    unlink(tmp);
    if (!made && why != EEXIST)    // this file system has no hard links
        return file_write(path, line, (size_t)n, err);
    return (made || folder_check(folder, setting, run_dir, id, err)) && dir_sync(folder, err);
}
