/* machine.h - what the machine that this process runs on has. Any thread. */
#pragma once
#include <stddef.h>

/* Bytes; SIZE_MAX: the kernel does not say. Both are bounded by the control groups (version 1 and 2) that the process is in, as in a
 * container or a Slurm job: where one of them is full, the kernel kills, however much the machine has. */
struct machine_memory {
    size_t total;
    /* What it can still give without swapping, as the kernel estimates it; memory that only caches files counts as free. What the kernel
     * promises beyond that it need not keep: a process that takes too much is killed, its calls do not fail. */
    size_t available;
};
struct machine_memory machine_memory(void);
/* As machine_memory, with proc/ and sys/ below root instead of below /: for tests. */
struct machine_memory machine_memory_in(const char *root);
