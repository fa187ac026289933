/* run_list.h - the runs of a folder, newest first: which are live, how the others ended
 *
 * Reads each run's journal; later calls read only those that have changed. Owned by one thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/run/run_state.h"

#define RUN_LIST_MAX 1000    // runs listed; if there are more, those that changed last

struct run_row {
    char name[96];    // its folder's
    bool live;
    enum run_state state;    // as run_last.h has it
    int64_t step;            // the last optimizer step; -1: its journal cannot be read
    int64_t changed_ns;      // when its journal was last written, since 1970
    char reason[160];        // why it ended, or why it cannot be read; ""
};
struct run_list {
    char dir[4096];
    struct run_row *row;    // (n) newest first; owned
    int n, n_cut;           // n_cut: runs beyond RUN_LIST_MAX
};
/* Read the folder, or update l when it has been filled before. ERR_NOT_FOUND: there is no such folder; ERR_NO_MEMORY. l starts
 * zeroed. */
MUST_USE bool run_list_read(struct run_list *l, const char *runs_dir, struct error *err);
void run_list_release(struct run_list *l);
