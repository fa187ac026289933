/* run_last.h - how a run stands, or ended, by its journal and by what it left where the journal could not say
 *
 * For all that look at a run without its agent: the console, the list of runs, ctl. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/run/run_state.h"

struct journal;
struct run_last {
    enum run_state state;    // RUN_UNKNOWN: nothing has been said yet
    char reason[1100];
    int64_t step;    // the last optimizer step
    bool killed;     // no process of it is alive, and it did not say how it ended: its state is failed
};
/* Read it from j, the journal of the run in run_dir. live: a process of it is alive (run_lock.h), so nothing is judged that the
 * journal does not say. */
MUST_USE bool run_last_read(struct journal *j, const char *run_dir, bool live, struct run_last *last, struct error *err);
