/* profile.h - with enable_profiling: a timeline of where the device's time goes, from the first load to the worker's end */
#pragma once
#include "workers/worker/engine_state.h"

MUST_USE bool profile_start(struct engine *e, struct error *err);    // does nothing when it runs already or was not asked for
/* Write logs/profile-DEVICE.json of the run, if there is a timeline. A failure is logged. */
void profile_write(struct engine *e);
