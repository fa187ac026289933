/* machine.h - what the machine that this process runs on has. Any thread. */
#pragma once
#include <stddef.h>

/* Bytes of memory that it can still give without swapping, as the kernel estimates it; SIZE_MAX: it does not say. What the kernel promises
 * beyond that it need not keep: a process that takes too much is killed, its calls do not fail. */
size_t machine_memory_available(void);
