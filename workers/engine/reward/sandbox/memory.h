/* memory.h - how much memory the processes of a sandbox hold, as /proc tells (where no cgroup limits it)
 *
 * Counts what each process has resident of its own and of shared memory, or swapped out, and the buffers that its
 * sockets may hold. What no process has mapped is not seen; the system call filter keeps a program from such memory.
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
/* Do the process driver and all below it together hold more than limit bytes? */
bool memory_is_over(pid_t driver, int64_t limit);
