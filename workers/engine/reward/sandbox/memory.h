/* memory.h - how much memory the processes of a sandbox hold, read from /proc (where no cgroup limits it)
 *
 * Counts each process's resident memory, private and shared, its swapped memory, and the largest size of its sockets'
 * buffers. Memory that no process has mapped is not seen; the system call filter keeps a program from having any. Any
 * thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
/* Do the process driver and all its descendants together hold more than limit bytes? */
bool memory_is_over(pid_t driver, int64_t limit);
