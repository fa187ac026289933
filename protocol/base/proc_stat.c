#include "protocol/base/proc_stat.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool proc_stat_read(pid_t pid, struct proc_stat *out)
{
    char path[64], line[1024];
    struct proc_stat s = { 0 };
    uint64_t user, kernel;
    int parent;
    *out = s;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = pid > 0 ? fopen(path, "re") : NULL;
    if (!f)
        return false;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    const char *name_end = strrchr(line, ')');    // the name may contain anything
    if (!name_end
        || sscanf(name_end + 1,
                  " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64 " %*d %*d %*d %*d %" SCNd64 " %*d %*u %*u %" SCNd64,
                  &s.state, &parent, &user, &kernel, &s.n_thread, &s.resident_pages)
               != 6)
        return false;
    s.parent = (pid_t)parent;
    s.cpu_ticks = user + kernel;
    *out = s;
    return true;
}
