/* watch.h - rollcall console --batch: a run told without a screen, from a feed
 *
 * Observes only. Runs on the calling thread until the run ends, or a signal ends the watching (never the run). */
#pragma once
#include "console/batch/batch.h"
#include "console/fleet/feed.h"
/* from: first step told; -1: from the newest on. As batch_end; a signal gives ERR_STOPPED. */
MUST_USE bool batch_watch(struct feed *feed, struct model *m, const struct batch_config *config, int64_t from, struct error *err);
