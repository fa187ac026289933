/* training.h - the task train: one optimizer step, alone or with the other trainers */
#pragma once
#include "workers/worker/engine_state.h"

/* Take the step that t names, with its groups; r->metric gets its metrics. */
MUST_USE bool training_run(struct engine *e, struct task *t, struct report *r, struct error *err);
