/* since.h - what has happened in a run since somebody last looked at it
 *
 * For people who take turns over days. Each person's last look at each run is kept in their own home, in $XDG_STATE_HOME/rollcall/looks
 * (or ~/.local/state), a line for each run, the newest LOOKS_MAX of them: so it works for runs on other machines, too, and the run knows
 * nothing of it. A file that cannot be read or written means that nothing is told. One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/run_view.h"
#include "protocol/base/buf.h"

#define LOOKS_MAX 256
struct last_look {
    double wall_s;
    int64_t step;     // steps that were known
    int64_t event;    // id of the newest event; 0: none
};
/* The last look at the run of this view; false: there was none, or the run of that name has
 * since been started again from nothing. */
bool last_look_read(const struct run_view *m, struct last_look *out);
/* Keep what is known of the run now as the last look at it. */
void last_look_keep(const struct run_view *m, double wall_s);
/* Append lines of what has happened after a look: steps, evaluations, alarms, changes, deaths, notes, how it ended. Appends nothing when
 * nothing has. now_s: wall time. */
void since_print(const struct run_view *m, const struct last_look *l, double now_s, struct buf *out);
