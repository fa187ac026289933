/* evaluation.h - the task eval: samples a part of the prompts of all evaluation sets
 *
 * The sets are opened each time. Each prompt's answers go to the scorer and from there to the controller, which counts them; what is
 * sampled for a prompt does not depend on the part it is in. */
#pragma once
#include "workers/worker/engine_state.h"

/* Sample part t->part of all sets of t's settings. After a failure the caller drops the sampler's items. */
MUST_USE bool evaluation_run(struct engine *e, struct task *t, struct report *r, struct error *err);
