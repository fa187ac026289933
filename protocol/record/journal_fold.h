/* journal_fold.h - folds a journal's write-ahead log into its file, so that no append waits for it
 *
 * Automatic checkpoints of the log are off. A thread folds the log over its own connection whenever it has grown by FOLD_PAGES
 * (PASSIVE: it never blocks the writer). Everything that delays the writer happens in folder_rest, which the writer calls when
 * nobody waits for it: when the whole log is folded and longer than CUT_BYTES, it is truncated, and a writer that outpaces the
 * folding waits there. One per writing connection; the writer's thread calls it. */
#pragma once
#include <sqlite3.h>
#include "protocol/base/error.h"

struct journal_folder;
/* Start the thread for the journal at path, whose writing connection is db; both are borrowed until folder_free. */
struct journal_folder *folder_new(sqlite3 *db, const char *path, struct error *err);
/* Call outside a transaction: folds what is left, unless a reader is in the way, and ends the thread. NULL is fine. */
void folder_free(struct journal_folder *f);
/* Call outside a transaction, when nobody waits for the writer. busy_ms: the writing connection's busy timeout. */
void folder_rest(struct journal_folder *f, int busy_ms);
/* Copy the journal to the run's folder soon, when it is a link to another place (journal_home.h). */
void folder_ship(struct journal_folder *f);
/* As journal_ships (journal.h). */
bool folder_ships(struct journal_folder *f, struct error *err);
/* False when the last attempt to fold has failed: err says why. Waiting for a reader is no failure. */
bool folder_folds(struct journal_folder *f, struct error *err);
