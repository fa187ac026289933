/* logtail.h - new lines of a run's log files, merged by their time
 *
 * Bounded: at most 64 files, 64 KiB of each at a time; anything more is skipped, and a line says so. */
#pragma once
#include "console/fleet/run_view.h"
struct logtail;
struct logtail *logtail_new(const char *dir, struct error *err);
void logtail_free(struct logtail *t);
/* Add to m what the files have gained since the last call (at the first call: their last 16 KiB). */
void logtail_pump(struct logtail *t, struct run_view *m);
