/* library.c - see library.h */
#include "protocol/base/library.h"
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEEDED_MAX 8    // libraries that one may lack and packages hold
#define DEPTH_MAX 4     // and theirs in turn
#define NAME_BYTES 128

/* Seen from the executable's folder: environments, Debian's system Python, 64-bit folders of other distributions, and pip's --target. */
#define PACKAGES_N 3
static const char *const packages_at[PACKAGES_N] = { "../lib/python3*/*-packages/", "../lib64/python3*/*-packages/", "../" };

/* All paths of the packages' folders that have `rel`, a pattern. False: none; out holds nothing to free then. */
static bool packages_glob(const char *rel, glob_t *out)
{
    char self[PATH_MAX + 1], pattern[2 * PATH_MAX + 256];
    ssize_t len = readlink("/proc/self/exe", self, PATH_MAX);
    char *slash = len > 0 ? memrchr(self, '/', (size_t)len) : NULL;
    size_t n = 0;
    int flags = 0;
    if (!slash)
        return false;
    for (const char *p = self; p <= slash; p++) {    // characters of the folder's name that a pattern would read
        if (strchr("*?[\\", *p))
            pattern[n++] = '\\';
        pattern[n++] = *p;
    }
    for (int i = 0; i < PACKAGES_N; i++, flags = GLOB_APPEND) {
        snprintf(pattern + n, sizeof pattern - n, "%s%s", packages_at[i], rel);
        glob(pattern, flags, NULL, out);
    }
    if (out->gl_pathc > 0)
        return true;
    globfree(out);
    return false;
}

/* What brings the missing library: a sentence's second half. */
static void remedy(const char *missing, char *out, size_t size)
{
    glob_t found = { 0 };
    bool wheel = packages_glob("rollcall-*.dist-info", &found);
    if (wheel)
        globfree(&found);
    snprintf(out, size, "%s%s brings it; LD_LIBRARY_PATH may name its folder", wheel ? "\"pip install 'rollcall[cuda]'\" or " : "",
             strncmp(missing, "libnccl", 7) == 0 ? "NVIDIA's package libnccl2" : "NVIDIA's CUDA toolkit");
}

static void *open_deep(const char *name, int depth, struct error *err);

/* The library out of NVIDIA's packages. NULL: why names the file that is there and does not open; it has no code where there is none. */
static void *package_open(const char *name, int depth, struct error *why)
{
    char rel[NAME_BYTES + 32];
    glob_t found = { 0 };
    void *lib = NULL;
    if ((size_t)snprintf(rel, sizeof rel, "nvidia/*/lib/%s", name) >= sizeof rel || strpbrk(name, "*?[\\") || !packages_glob(rel, &found))
        return NULL;
    for (size_t i = 0; !lib && i < found.gl_pathc; i++)
        lib = open_deep(found.gl_pathv[i], depth + 1, why);
    globfree(&found);
    return lib;
}

static void *open_deep(const char *name, int depth, struct error *err)
{
    char missing[NAME_BYTES] = "", how[256];
    struct error package = { 0 };
    for (int i = 0; i < NEEDED_MAX; i++) {
        void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (lib)
            return lib;
        /* "libNAME.so.N: cannot open ..." is of a file that is not there; where one is, its whole path stands there. */
        const char *why = dlerror();
        size_t n = strcspn(why, ":");
        if (memchr(why, '/', n) || n >= sizeof missing) {
            error_set(err, ERR_UNSUPPORTED, "%s", why);
            return NULL;
        }
        bool again = strncmp(missing, why, n) == 0 && !missing[n];
        snprintf(missing, sizeof missing, "%.*s", (int)n, why);
        void *needed = again || depth >= DEPTH_MAX ? NULL : package_open(missing, depth, &package);
        if (needed && strcmp(missing, name) == 0)
            return needed;
        if (!needed)
            break;
    }
    if (package.code) {
        *err = package;
        return NULL;
    }
    remedy(missing, how, sizeof how);
    error_set(err, ERR_NOT_FOUND, "%s is not on this machine: %s", missing, how);
    return NULL;
}

void *library_open(const char *name, struct error *err)
{
    return open_deep(name, 0, err);
}

void *library_open_nccl(struct error *err)
{
    const char *path = getenv("RC_NCCL");
    return library_open(path && path[0] ? path : "libnccl.so.2", err);
}

struct search {
    const char *start;
    char *out;
    size_t size;
};

static int search_at(struct dl_phdr_info *info, UNUSED size_t size, void *arg)
{
    struct search *s = arg;
    const char *slash = strrchr(info->dlpi_name, '/');
    return slash && strncmp(slash + 1, s->start, strlen(s->start)) == 0
           && (size_t)snprintf(s->out, s->size, "%s", info->dlpi_name) < s->size;
}

bool library_where(const char *start, char *out, size_t size)
{
    struct search s = { start, out, size };
    return dl_iterate_phdr(search_at, &s) != 0;
}
