/* change.h - what an event of the journal changed, and the first optimizer step that shows it
 *
 * For the marks on charts, wherever they are drawn. Pure; any thread. */
#pragma once
#include <stdint.h>
#include <jansson.h>
#include "protocol/record/series.h"

enum change_kind {
    CHANGE_NONE,
    CHANGE_SETTINGS,
    CHANGE_RETURN,    // to a checkpoint
    CHANGE_NOTE,      // nothing, but somebody wanted it on the time line
};
struct change {
    enum change_kind kind;
    int64_t step;            // of the event
    int64_t from_step;       // the first optimizer step that it acts on; 0: not told
    int64_t from_rollout;    // or the first rollout step, from 1; 0: none
};
/* kind, step, facts: of the event; facts are its detail as JSON, or NULL. */
struct change change_read(const char *kind, int64_t step, const json_t *facts);
/* The first optimizer step that shows the change; a note has that at which it was written. rollout: the run's metric M_ROLLOUT_STEP, of
 * n_step steps. -1: the event changes nothing, or the step has not been made yet. */
int64_t change_shown(const struct change *c, const struct series *rollout, int64_t n_step);
