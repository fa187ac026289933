/* run_end.h - what a console reads from the journal of a run that nobody answers for any more
 *
 * The agent of a run that is over stays until the connected consoles have had their last answers, but not for ever, and it may have been
 * killed. What a console has missed then is in the journal, for everybody who may read it. */
#pragma once
#include "console/fleet/model.h"
/* Bring m up to the end of run_dir's journal: steps, events, and state with reason when the run is over by its own account; else they stay.
 * Reads the whole of it once. Fails when there is no journal, or it is not ours to read; m keeps what it had, or a part more. */
MUST_USE bool run_end_read(struct model *m, const char *run_dir, struct error *err);
