#include "workers/engine/load/model_find.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/cli.h"
#include "protocol/base/digest.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/macros.h"
#include "workers/engine/hub/hub.h"
#include "workers/engine/load/gguf.h"
#include "workers/engine/load/gguf_dir.h"

#define GGUF_CACHE "rollcall/gguf"
#define PART ".part-"    // and the writer's pid, after the name of a folder that is not whole yet
#define FORM 1           // of what is converted: another number when the same file would become another folder

/* The folder that the file at path, whose real path is `real`, is converted into. */
static bool folder_name(char *out, size_t size, const char *real, struct error *err)
{
    const char *base = strrchr(real, '/');
    char cache[PATH_MAX];
    struct stat st;
    char key[128], hex[65];
    struct digest d;
    if (!cache_path(cache, sizeof cache, GGUF_CACHE))
        return error_set(err, ERR_NOT_FOUND, "no folder to convert '%s' into: set XDG_CACHE_HOME, or run 'rollcall convert %s DIR'", real,
                         real);
    if (stat(real, &st) != 0)
        return error_errno(err, "cannot read '%s'", real);
    snprintf(key, sizeof key, "%d %" PRId64 " %" PRId64 ".%09" PRId64, FORM, (int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
             (int64_t)st.st_mtim.tv_nsec);
    digest_init(&d, true);
    digest_add(&d, real, strlen(real) + 1);
    digest_add(&d, key, strlen(key));
    digest_hex(&d, hex);
    base = base ? base + 1 : real;
    int n = snprintf(out, size, "%s/%.*s-%.16s", cache, (int)MIN(strlen(base), (size_t)100), base, hex);
    return (n > 0 && (size_t)n < size) || error_set(err, ERR_IO, "the path of '%s' in the cache is too long", real);
}

/* Conversions that were killed leave "NAME.part-PID" in the cache: remove those of processes that live no more. */
static void leftovers_remove(const char *dir)
{
    char cache[PATH_MAX], path[PATH_MAX];
    snprintf(cache, sizeof cache, "%.*s", (int)(strrchr(dir, '/') - dir), dir);
    DIR *d = opendir(cache);    // the first conversion makes it
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *part = strstr(e->d_name, PART);
        int64_t pid;
        struct error why;
        if (!part || !parse_i64(part + sizeof PART - 1, &pid) || pid <= 0 || pid > INT32_MAX || pid == getpid() || kill((pid_t)pid, 0) == 0
            || errno != ESRCH || !path_join(path, sizeof path, cache, e->d_name))
            continue;
        if (!dir_remove(path, &why))
            log_warn("a killed conversion has left '%s': %s", path, why.text);
    }
    if (d)
        closedir(d);
}

static bool folder_make(const char *dir, const char *real, struct error *err)
{
    char part[PATH_MAX];
    struct error ignored;
    bool ok = false;
    if (snprintf(part, sizeof part, "%s" PART "%d", dir, (int)getpid()) >= (int)sizeof part)
        return error_set(err, ERR_IO, "the path '%s' is too long", dir);
    leftovers_remove(dir);
    TRY(dir_remove(part, err));
    TRY(gguf_convert(real, part, GGUF_KEEP_EXACT, err));
    if (rename(part, dir) != 0 && !path_is_dir(dir)) {    // another process may have been first
        error_errno(err, "cannot rename '%s' to '%s'", part, dir);
        goto out;
    }
    log_info("'%s' was converted into '%s'", real, dir);
    ok = true;
out:
    if (path_exists(part) && !dir_remove(part, &ignored))
        log_warn("'%s' is left behind: %s", part, ignored.text);
    return ok;
}

bool model_find(char *out, size_t size, const char *name, struct error *err)
{
    char real[PATH_MAX];
    size_t len = strlen(name);
    bool named = len > 5 && strcmp(name + len - 5, ".gguf") == 0 && path_exists(name)
                 && !path_is_dir(name);    // what it lacks is said then
    if (!named && !gguf_is(name))
        return hub_find(out, size, name, NULL, err);
    if (!realpath(name, real))
        return error_errno(err, "cannot find '%s'", name);
    return folder_name(out, size, real, err) && (path_is_dir(out) || folder_make(out, real, err));
}
