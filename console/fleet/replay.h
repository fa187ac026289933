/* replay.h - a run that is over, as it was after any of its steps: charts, evaluations, events, rollouts, logs, checkpoints, settings
 *
 * Owned by the feed of a record (record.h). All steps and events are kept a second time, groups are read from their file. */
#pragma once
#include "console/fleet/run_view.h"

struct replay;
/* Read the run again, whole. Returns the replay. */
struct replay *replay_new(const char *run_dir, int64_t now_ns, struct error *err);
void replay_free(struct replay *r);
int64_t replay_last(const struct replay *r);    // the run's last step
/* Make m show the run after `step`, 0 to the last one. */
void replay_show(struct replay *r, struct run_view *m, int64_t step, int64_t now_ns);
