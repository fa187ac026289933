/* run_end.h - what a console reads from the journal of a run whose agent is gone
 *
 * The agent of a finished run stays until the connected consoles have had their last answers, but not for ever, and it may have
 * been killed. What a console then lacks is in the journal, for everybody who may read it. */
#pragma once
#include "console/fleet/run_view.h"
/* Bring m up to the end of run_dir's journal: steps and events, and the state with its reason if the journal has the run's end.
 * Reads all of it once. Fails when there is no journal or we may not read it; m keeps what it had, perhaps with some additions. */
MUST_USE bool run_end_read(struct run_view *m, const char *run_dir, struct error *err);
