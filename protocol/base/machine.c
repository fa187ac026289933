#include "protocol/base/machine.h"
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/macros.h"

/* Files of a control group's memory; kernel.org, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. */
static const struct group_files {
    const char *mount, *limit, *usage, *cache;    // cache: of memory.stat, what the kernel drops first; no limit: "max", or near 2^63
} versions[] = {
    { "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file" },
    { "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file" },
};

/* The number in a file, alone or (key) after a word at the begin of a line. */
static bool number_read(const char *folder, const char *file, const char *key, uint64_t *out)
{
    char path[PATH_MAX], line[256];
    bool found = false;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    size_t len = key ? strlen(key) : 0;
    while (f && !found && fgets(line, sizeof line, f))
        found = (!key || strncmp(line, key, len) == 0) && sscanf(line + len, " %" SCNu64, out) == 1;
    if (f)
        fclose(f);
    return found;
}

/* Bound m by a group and by all above it. path: of the group below its mount; it need not be seen there, as in a container, whose own
 * group is then the mount itself. */
static void group_bound(const char *root, const struct group_files *files, char *path, struct machine_memory *m)
{
    char folder[PATH_MAX];
    for (bool more = true; more;) {
        uint64_t limit, usage, cache = 0;
        int n = snprintf(folder, sizeof folder, "%s%s%s", root, files->mount, path);
        if (n < (int)sizeof folder && number_read(folder, files->limit, NULL, &limit) && limit < (uint64_t)1 << 62
            && number_read(folder, files->usage, NULL, &usage)) {
            number_read(folder, "memory.stat", files->cache, &cache);
            usage -= MIN(cache, usage);
            m->total = MIN(m->total, (size_t)limit);
            m->available = MIN(m->available, (size_t)(limit - MIN(usage, limit)));
        }
        char *last = strrchr(path, '/');
        more = last != NULL;
        if (last)
            *last = 0;
    }
}

/* A line of /proc/self/cgroup, "4:cpu,memory:/path" or "0::/path". */
static void groups_bound(const char *root, char *line, struct machine_memory *m)
{
    char *kinds = strchr(line, ':'), *path = kinds ? strchr(++kinds, ':') : NULL;
    if (!path)
        return;
    *path++ = 0;
    path[strcspn(path, "\n")] = 0;
    bool memory = false;
    for (char *at = kinds; *at && !memory; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        memory = strcspn(at, ",") == 6 && strncmp(at, "memory", 6) == 0;
    if (memory || !kinds[0])
        group_bound(root, &versions[!memory], strcmp(path, "/") == 0 ? path + 1 : path, m);
}

struct machine_memory machine_memory_in(const char *root)
{
    struct machine_memory m = { SIZE_MAX, SIZE_MAX };
    char line[PATH_MAX], path[PATH_MAX];
    uint64_t kib;
    snprintf(path, sizeof path, "%s/proc", root);
    if (number_read(path, "meminfo", "MemTotal:", &kib))
        m.total = (size_t)kib * 1024;
    if (number_read(path, "meminfo", "MemAvailable:", &kib))
        m.available = (size_t)kib * 1024;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        groups_bound(root, line, &m);
    if (f)
        fclose(f);
    return m;
}

struct machine_memory machine_memory(void)
{
    return machine_memory_in("");
}
