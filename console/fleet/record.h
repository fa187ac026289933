/* record.h - a feed from a run without processes, from what it left on disk
 *
 * Steps, events, evaluations, settings, the newest rollouts and the logs, read once from the run's folder. It takes no commands. */
#pragma once
#include "console/fleet/feed.h"
/* For replay.h. The run's end and its logs, as record_new reads them; the settings it was started with. */
MUST_USE bool record_read(struct run_view *m, const char *run_dir, int64_t now_ns, struct error *err);
MUST_USE bool record_settings(struct run_view *m, const char *run_dir, int64_t now_ns, struct error *err);
/* Also for it. Make the changes of settings that an event's facts (JSON) hold. */
void record_changes(struct run_view *m, const char *facts, int64_t now_ns);
/* Add a kept group to m: offset and bytes as the journal has them, step: that trained on it, which the group itself does not say. A
 * damaged or missing one is left out: 'rollcall doctor' reports it, not a screen. */
void record_group(struct run_view *m, const char *path, int64_t offset, int64_t bytes, int64_t step);
/* Read the run in run_dir into m. Fails when its journal cannot be read. A run whose journal records no end (its machine or its
 * processes were killed) is shown as failed, with what to do. */
struct feed *record_new(const char *run_dir, struct run_view *m, int64_t now_ns, struct error *err);
