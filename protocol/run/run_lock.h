/* run_lock.h - is a run alive? An open-file-description lock on RUN_DIR/lock tells, whatever was killed
 *
 * The lock belongs to the open file, not to a process: a child that inherits the descriptor keeps the run locked when its
 * parent dies, and the kernel releases it when the last copy closes. Any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
/* Lock the run; returns a descriptor to keep open (close it to unlock; close-on-exec is set), or -1: ERR_EXISTS when another
 * process has it. */
int run_lock_take(const char *run_dir, struct error *err);
/* Is it locked, or led by another machine (run_head.h)? False also when there is no such run. */
bool run_is_live(const char *run_dir);
