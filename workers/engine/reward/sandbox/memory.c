#include "workers/engine/reward/sandbox/memory.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/macros.h"

#define TREE_MAX 512    // processes looked at
/* Largest size of a socket's buffer: the kernel's default for net.core.wmem_default, which a program cannot raise,
 * since setsockopt is not allowed. */
#define SOCKET_BYTES (208 << 10)

/* The driver and all processes below it: everything inside, since orphans become the driver's. Returns how many. */
static int tree_list(pid_t driver, pid_t out[TREE_MAX])
{
    int n = 1;
    out[0] = driver;
    for (int i = 0; i < n; i++) {
        char path[320], text[4096];
        snprintf(path, sizeof path, "/proc/%d/task", (int)out[i]);
        DIR *tasks = opendir(path);
        for (struct dirent *d; tasks && (d = readdir(tasks));) {
            if (d->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)out[i], d->d_name);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
            if (fd >= 0)
                close(fd);
            text[got > 0 ? got : 0] = 0;
            char *at = text, *end;
            for (long pid = strtol(at, &end, 10); end != at && n < TREE_MAX; pid = strtol(at, &end, 10)) {
                out[n++] = (pid_t)pid;
                at = end;
            }
        }
        if (tasks)
            closedir(tasks);
    }
    return n;
}

/* Sum of the lines of /proc/PID/file that begin with one of names, in bytes; -1: cannot be read. */
static int64_t proc_sum(pid_t pid, const char *file, const char *const names[3])
{
    char path[64], line[256];
    int64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    while (fgets(line, sizeof line, f)) {
        size_t n = strcspn(line, ":");
        for (int i = 0; i < 3; i++)
            if (n == strlen(names[i]) && memcmp(line, names[i], n) == 0)
                sum += strtoll(line + n + 1, NULL, 10) * 1024;
    }
    fclose(f);
    return sum;
}

/* Sockets among a process's descriptors. */
static int64_t sockets_count(pid_t pid)
{
    char path[320], target[16];
    int64_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *fds = opendir(path);
    for (struct dirent *d; fds && (d = readdir(fds));) {
        ssize_t got = d->d_name[0] == '.' ? 0 : readlinkat(dirfd(fds), d->d_name, target, sizeof target);
        n += got > 7 && memcmp(target, "socket:", 7) == 0;
    }
    if (fds)
        closedir(fds);
    return n;
}

bool memory_is_over(pid_t driver, int64_t limit)
{
    static const char *const resident[] = { "RssAnon", "RssShmem", "VmSwap" }, *const shares[] = { "Pss_Anon", "Pss_Shmem", "SwapPss" };
    pid_t pid[TREE_MAX];
    int n = tree_list(driver, pid);
    int64_t rough = 0, exact = 0;
    for (int i = 0; i < n; i++)    // a shared socket counts for each process; no program needs thousands
        rough += MAX(proc_sum(pid[i], "status", resident), 0) + sockets_count(pid[i]) * SOCKET_BYTES;
    /* Shared pages count for each process. Proportional shares cost the kernel more to report. */
    for (int i = 0; i < n && rough > limit; i++) {
        int64_t share = proc_sum(pid[i], "smaps_rollup", shares);
        exact += share >= 0 ? share : MAX(proc_sum(pid[i], "status", resident), 0);
        exact += sockets_count(pid[i]) * SOCKET_BYTES;
    }
    return rough > limit && exact > limit;
}
