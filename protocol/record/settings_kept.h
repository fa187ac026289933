/* settings_kept.h - the settings that a run goes on with, as its journal keeps them beside run.yaml
 *
 * run.yaml is a file that anybody can edit, and a disk can damage. The journal has each of its settings as text (value "settings"), so
 * that a difference is seen, named with both values, and asked about: `train --resume` compares before it starts anything, and the
 * controller whenever it starts. What `train --resume` itself changes it says in resume_flags.h. Any thread. */
#pragma once
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"
#include "protocol/settings/knobs.h"

struct journal;
#define SETTINGS_KEPT "settings"
/* c's settings as text by name. NULL: no memory. The caller's. */
json_t *settings_kept_make(const struct run_config *c);
/* What the journal keeps; *out NULL: nothing yet (a new run, or one of an older rollcall). The caller's. */
MUST_USE bool settings_kept_read(struct journal *j, json_t **out, struct error *err);
/* Does k have another value in c than in was? One that was does not name is new, and does not differ. */
bool setting_differs(const json_t *was, const struct knob *k, const struct run_config *c);
/* Add "NAME is VALUE (was VALUE)" to text, after ", " when it is not empty. Long values are cut after their first bytes. */
void setting_tell(struct buf *text, const json_t *was, const struct knob *k, const struct run_config *c);
/* began with the knobs that commands have changed since, as the journal has them: *out. Each counts from when it was acknowledged, also
 * where it takes effect at a later step; one that a rollback has undone does not count. Relative paths are below base_dir. */
MUST_USE bool settings_now(struct run_config *out, const struct run_config *began, struct journal *j, const char *base_dir,
                           struct error *err);
