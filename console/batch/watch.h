/* watch.h - rollcall console --batch: a run printed without a screen, from a feed
 *
 * Observes only. Runs on the calling thread until the run ends, or a signal ends the watching (never the run). */
#pragma once
#include "console/batch/batch.h"
#include "console/fleet/feed.h"
struct watch_options {
    int64_t from;         // first step told; -1: from the newest on
    bool plain;           // carry out what is typed on standard input, line by line (plain.h), until its end
    bool once;            // tell how the run stands now, and leave
    const char *until;    // leave when this has come: an event's kind ("eval", "checkpoint", "alert" ...) or "step=N"; NULL: never
};
/* As batch_end; a signal gives ERR_STOPPED. With until: ERR_NOT_FOUND when the run is over before it has come. */
MUST_USE bool batch_watch(struct feed *feed, struct run_view *m, const struct batch_config *config, const struct watch_options *options,
                          struct error *err);
/* Is this a word for until? ERR_USAGE lists them. */
MUST_USE bool watch_until_check(const char *until, struct error *err);
