/* proc_stat.h - what the kernel says about a process in /proc/PID/stat (proc_pid_stat(5)). Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_stat {
    char state;            // R, S, D, Z, or T: stopped by a signal
    pid_t parent;          // 0: it has none that this process may see
    uint64_t cpu_ticks;    // in user and kernel mode, of all its threads; sysconf(_SC_CLK_TCK) a second
    int64_t n_thread;      // 0 once it has ended
    int64_t resident_pages;
};
/* False: there is no such process, or it cannot be read; *out is then all zero. */
bool proc_stat_read(pid_t pid, struct proc_stat *out);
