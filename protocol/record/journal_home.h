/* journal_home.h - a journal on this machine's own disk, for a run whose folder is on storage that several machines see
 *
 * SQLite's log is shared memory, which network file systems do not have between machines. So with `journal_dir` the journal is at
 * JOURNAL_DIR/RUN_ID.N/journal.db, RUN/journal.db is a symbolic link to it, and a copy as of each checkpoint is RUN/journal.snapshot
 * (journal_ship). When that machine is lost, the next one takes the run over from the snapshot, at a place of its own with N one higher; what
 * the lost one did after its last checkpoint is done again, with the same groups. A machine that comes back and still runs the old head
 * sees the link of another and ends (journal_ships). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define JOURNAL_SNAPSHOT "journal.snapshot"    // in the run's folder
/* For a new run: make the place under journal_dir, and the link. */
MUST_USE bool journal_home_make(const char *run_dir, const char *journal_dir, const char *run_id, struct error *err);
/* For a run that is resumed, whose lock the caller holds: if its journal is on another machine, make one here of the snapshot.
 * *taken: that was so. *step: the last one that the snapshot knows. ERR_NOT_FOUND: there is no snapshot. */
MUST_USE bool journal_home_take(const char *run_dir, const char *journal_dir, const char *run_id, bool *taken, int64_t *step,
                                struct error *err);
/* Is the run's journal on another machine (its link leads nowhere here)? */
bool journal_is_elsewhere(const char *run_dir);
