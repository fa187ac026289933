/* run_lock.h - is a run alive? An open-file-description lock on RUN_DIR/lock says so, whatever was killed
 *
 * The lock belongs to the open file, not to a process: a child that inherits the descriptor keeps the run locked when its
 * parent dies, and the kernel frees it with the last of them. Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
/* Take the run for us; returns a descriptor to keep open (close it to let go; close-on-exec is set), or -1: ERR_EXISTS when
 * another process has it. */
int run_lock_take(const char *run_dir, struct error *err);
/* Does somebody hold it? False also when there is no such run. */
bool run_is_live(const char *run_dir);
