/* logtail.h - new lines of a run's log files, merged by their time
 *
 * Bounded: at most 64 files, 64 KiB of each at a time; what is beyond is skipped and the skip is told as a line. */
#pragma once
#include "console/fleet/model.h"
struct logtail;
struct logtail *logtail_new(const char *dir, struct error *err);
void logtail_free(struct logtail *t);
/* Take what the files have more than last time (the first time: their last 16 KiB) into m. */
void logtail_pump(struct logtail *t, struct model *m);
