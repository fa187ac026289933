/* secret.h - keys that come in the environment, and how they stay out of core files
 *
 * A core file holds a process's environment, stack and heap. So keys are moved to memory that is not dumped, the environment's own
 * copy is wiped (/proc/PID/environ shows none), processes that need no key are started without, and those that work with one make
 * no core file at all. */
#pragma once
#include <stdbool.h>

/* Move the keys in the environment out of what a core file holds; getenv and children still find them. Once, first thing in main,
 * before there is a thread. */
void secret_env_hide(void);
/* Is this entry of environ ("NAME=value") a key? */
bool secret_env_is(const char *entry);
/* No core file of this process from now on, and no debugger of others: it works with a key. */
void secret_process(void);
