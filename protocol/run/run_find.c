#include "protocol/run/run_find.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/run/run_lock.h"

bool run_find(const char *given, const char *runs_dir, char *out, size_t size, struct error *err)
{
    char path[PATH_MAX], real[PATH_MAX], list[600] = "";
    int n_live = 0, n = 0;
    if (given) {
        if (!path_is_dir(given) || !realpath(given, real) || strlen(real) >= size)
            return error_set(err, ERR_NOT_FOUND, "there is no run directory '%.400s'", given);
        if (path_join(path, sizeof path, real, "run.yaml") && !path_exists(path) && errno == ENOENT)    // others may not look into it
            return error_set(err, ERR_NOT_FOUND, "'%.400s' is not a run: it has no run.yaml; name a run's own directory, such as runs/NAME",
                             given);
        snprintf(out, size, "%s", real);
        return true;
    }
    const char *dir = runs_dir ? runs_dir : "runs";
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.' || !path_join(path, sizeof(path), dir, e->d_name) || !path_is_dir(path))
            continue;
        n++;
        if (!run_is_live(path) || !realpath(path, real) || strlen(real) >= size)
            continue;
        if (n_live++ == 0)
            snprintf(out, size, "%s", real);
        size_t at = strlen(list);
        snprintf(list + at, sizeof(list) - at, "%s%.200s", at ? ", " : "", path);
    }
    if (d)
        closedir(d);
    if (n_live == 1)
        return true;
    if (n_live > 1)
        return error_set(err, ERR_USAGE, "%d runs are live; name one: %s", n_live, list);
    return error_set(err, ERR_NOT_FOUND, "no run is live under '%.200s'%s; start one with 'rollcall train', or name its directory", dir,
                     n ? "" : " (it holds none)");
}
