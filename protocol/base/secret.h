/* secret.h - keys that come in the environment, and how they stay out of core files
 *
 * A core file holds a process's environment, stack and heap. So keys are moved to memory that is not dumped, the environment's own
 * copy is wiped (/proc/PID/environ shows none), processes that need no key are started without one, and those that use one write no
 * core file at all. */
#pragma once
#include <stdbool.h>

/* Move the environment's keys to memory that core files leave out; getenv and children still find them. Call once, first thing in
 * main, before there are threads. */
void secret_env_hide(void);
/* Is this entry of environ ("NAME=value") a key? */
bool secret_env_is(const char *entry);
/* From now on this process writes no core file, and unprivileged debuggers cannot attach to it: it uses a key. */
void secret_process(void);
