/* training.h - the task train: one optimizer step, alone or with the other trainers */
#pragma once
#include "workers/worker/engine_state.h"

/* Make the step that t names from its groups; r->metric says how it went. */
MUST_USE bool training_run(struct engine *e, struct task *t, struct report *r, struct error *err);
