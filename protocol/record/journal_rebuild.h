/* journal_rebuild.h - a new journal for a run that has lost its own and continues from a checkpoint
 *
 * A checkpoint holds weights, moments and the number of its step, but nothing of the run's items. So the new journal only says
 * where the run continues: after which optimizer step, and with which item. Earlier metrics, evaluations, events, knob changes and
 * items are lost; the old journal's files, even damaged ones, are moved aside. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "protocol/base/error.h"

/* The journal's values that tell the controller where to continue: the optimizer step, and the first item after it. Both in decimal. */
#define REBUILD_STEP "rebuild_step"
#define REBUILD_ITEM "rebuild_item"
struct journal_rebuild {
    const char *run_dir, *checkpoint;    // the checkpoint's path
    int64_t step, item;
    const json_t *identity;    // what the run began with (identity.h); NULL: not known
};
/* Move RUN_DIR/journal.db and its log aside, to the first free names journal.db.lost-N, and make the new one. aside (PATH_MAX
 * bytes) gets the old journal's new name; "": there was none. On failure the old files may have been moved; nothing is removed or
 * overwritten, and the call can be repeated. The caller holds the run's lock. */
MUST_USE bool journal_rebuild(const struct journal_rebuild *r, char *aside, struct error *err);
