#include "workers/engine/load/model_find.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
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
#define PART ".part-"         // and the writer's pid, after the name of a folder that is not whole yet
#define KEPT_MAX 8            // folders of converted files, besides those in use
#define KEPT_S (24 * 3600)    // after its last start a folder is kept for so long, in use or not
#define FORM 1                // of what is converted: another number when the same file would become another folder

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
static void leftovers_remove(const char *cache)
{
    char path[PATH_MAX];
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

/* Does a process of this user have a file of the folder mapped? */
static bool folder_mapped(const char *dir)
{
    bool found = false;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        char path[64], line[PATH_MAX + 128];
        int64_t pid;
        FILE *f;
        if (!parse_i64(e->d_name, &pid))
            continue;
        snprintf(path, sizeof path, "/proc/%" PRId64 "/maps", pid);
        if (!(f = fopen(path, "re")))
            continue;
        while (!found && fgets(line, sizeof line, f)) {
            const char *at = strstr(line, dir);
            found = at && at[strlen(dir)] == '/';
        }
        fclose(f);
    }
    if (d)
        closedir(d);
    return found;
}

struct kept {
    char name[NAME_MAX + 1];
    time_t used;
};

static int kept_compare(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    return x->used != y->used ? (x->used < y->used ? -1 : 1) : strcmp(x->name, y->name);
}

/* The folders of converted files in the cache, those whose last start is longest ago first; for free. */
static struct kept *kept_list(const char *cache, size_t *n)
{
    struct kept *list = NULL;
    DIR *d = opendir(cache);
    *n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[PATH_MAX];
        struct stat st;
        struct kept *grown;
        if (e->d_name[0] == '.' || strstr(e->d_name, PART) || !path_join(path, sizeof path, cache, e->d_name) || lstat(path, &st) != 0
            || !S_ISDIR(st.st_mode) || !(grown = realloc(list, (*n + 1) * sizeof *list)))
            continue;
        list = grown;
        snprintf(list[*n].name, sizeof list->name, "%s", e->d_name);
        list[(*n)++].used = st.st_mtime;
    }
    if (d)
        closedir(d);
    if (list)
        qsort(list, *n, sizeof *list, kept_compare);
    return list;
}

/* Keep the cache within KEPT_MAX folders: remove the one whose last start is longest ago first, never one in use. What is removed takes a
 * name that no other process looks for before its files go. */
static void cache_trim(const char *cache)
{
    size_t n, left;
    struct kept *list = kept_list(cache, &n);
    left = n;
    for (size_t i = 0; i < n && left > KEPT_MAX; i++) {
        char path[PATH_MAX], gone[PATH_MAX];
        struct error why;
        double unused_s = difftime(time(NULL), list[i].used);
        if (unused_s < KEPT_S || !path_join(path, sizeof path, cache, list[i].name) || folder_mapped(path)
            || snprintf(gone, sizeof gone, "%s" PART "%d", path, (int)getpid()) >= (int)sizeof gone || rename(path, gone) != 0)
            continue;
        left--;
        if (dir_remove(gone, &why))
            log_info("'%s' was removed: it was last used %.0f days ago, and the newest %d converted models are kept", path,
                     unused_s / 86400, KEPT_MAX);
        else
            log_warn("'%s' is left behind: %s", gone, why.text);
    }
    free(list);
}

static bool folder_make(const char *dir, const char *real, struct error *err)
{
    char part[PATH_MAX], cache[PATH_MAX];
    struct error ignored;
    bool ok = false;
    if (snprintf(part, sizeof part, "%s" PART "%d", dir, (int)getpid()) >= (int)sizeof part)
        return error_set(err, ERR_IO, "the path '%s' is too long", dir);
    snprintf(cache, sizeof cache, "%.*s", (int)(strrchr(dir, '/') - dir), dir);
    leftovers_remove(cache);
    TRY(dir_remove(part, err));
    TRY(gguf_convert(real, part, GGUF_KEEP_EXACT, err));
    if (rename(part, dir) != 0 && !path_is_dir(dir)) {    // another process may have been first
        error_errno(err, "cannot rename '%s' to '%s'", part, dir);
        goto out;
    }
    log_info("'%s' was converted into '%s'", real, dir);
    cache_trim(cache);
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
    if (!folder_name(out, size, real, err))
        return false;
    if (!path_is_dir(out))
        return folder_make(out, real, err);
    utimensat(AT_FDCWD, out, NULL, 0);    // the time of its last start, for cache_trim; another user's stays as it is
    return true;
}
