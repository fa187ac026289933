/* The disk under the run. The journal's log is folded by a thread of the journal; who keeps it from that is named here, long before the
 * disk is full. */
#include <inttypes.h>
#include <stdio.h>
#include "protocol/base/clock.h"
#include "workers/controller/controller.h"

#define LOOK_MS 1000
#define LOG_TOLD_BYTES ((int64_t)32 << 20)    // twice what it is cut at: somebody is in the way; told again at each doubling
#define LOG_MAX_BYTES ((int64_t)4 << 30)      // tens of thousands of steps

void storage_tick(struct controller *c)
{
    struct journal_wal wal;
    struct error err;
    char text[640];
    int64_t now = clock_ms();
    if (now - c->storage_ms < LOOK_MS || run_is_over(c))
        return;
    c->storage_ms = now;
    bool folds = journal_folds(c->journal, &err);
    if (!folds && !c->fold_told)
        event_add(c, "alert", "controller", err.text, "");
    c->fold_told = !folds;
    journal_wal_look(c->process.run_dir, &wal);
    if (wal.wal_bytes < LOG_TOLD_BYTES) {
        c->log_told_bytes = 0;
    } else if (wal.wal_bytes >= LOG_MAX_BYTES) {
        run_fail(c, "the journal's log '%.400s/journal.db-wal' has %" PRId64 " MiB and cannot be folded: %s has been reading it all the "
                 "time; end that, then go on with --resume", c->process.run_dir, wal.wal_bytes >> 20, wal.reader_pid ? wal.reader : "a process");
    } else if (wal.reader_pid && wal.wal_bytes >= 2 * c->log_told_bytes) {
        snprintf(text, sizeof text, "the journal's log has %" PRId64 " MiB and cannot be folded: %s has been reading it all the time; end that",
                 wal.wal_bytes >> 20, wal.reader);
        event_add(c, "alert", "controller", text, "");
        c->log_told_bytes = wal.wal_bytes;
    }
}
