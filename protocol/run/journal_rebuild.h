/* journal_rebuild.h - a new journal for a run that has lost its own and goes on from a checkpoint
 *
 * A checkpoint holds weights, moments and the number of its step, but nothing of the run's items. So the new journal says only where the
 * run goes on: after which optimizer step, and with which item. Metrics, evaluations, events, knob changes and items of before are lost
 * to it; the old journal's files, damaged as they may be, are moved aside. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "protocol/base/error.h"

/* The journal's values that tell the controller: the optimizer step, and the first item that is opened after it. Both in decimal. */
#define REBUILD_STEP "rebuild_step"
#define REBUILD_ITEM "rebuild_item"
struct journal_rebuild {
    const char *run_dir, *checkpoint;    // the checkpoint's path
    int64_t step, item;
    const json_t *identity;    // what the run was begun with (identity.h); NULL: not known
};
/* Move RUN_DIR/journal.db and its log aside, to the first names journal.db.lost-N that are free, and make the new one. aside (PATH_MAX
 * bytes) gets the new name of the old one; "": there was none. On failure the old files may have been moved; nothing is removed or
 * written over, and the call can be made again. The caller holds the run's lock. */
MUST_USE bool journal_rebuild(const struct journal_rebuild *r, char *aside, struct error *err);
