/* machine.h - what the machine that this process runs on has. Any thread. */
#pragma once
#include <stddef.h>

/* Bytes; SIZE_MAX: the kernel does not say. */
struct machine_memory {
    size_t total;
    /* What it can still give without swapping, as the kernel estimates it. What the kernel promises beyond that it need not keep: a process
     * that takes too much is killed, its calls do not fail. */
    size_t available;
};
struct machine_memory machine_memory(void);
