/* publishing.h - the tasks share and publish: new weights from the first trainer to the samplers
 *
 * share: the first trainer keeps its weights available under their version. publish: a sampler takes a version over. */
#pragma once
#include "workers/worker/engine_state.h"

/* Prepare for weights that go through memory, once; what an earlier load has shared counts no longer. Needs e->model. */
MUST_USE bool publishing_prepare(struct engine *e, struct error *err);
MUST_USE bool share_run(struct engine *e, struct task *t, struct report *r, struct error *err);
/* Sample with t's version from now on; free-running, in the middle of what is being sampled. r->again: the weights did not
 * come, and trying again may help. */
MUST_USE bool publish_run(struct engine *e, struct task *t, struct report *r, struct error *err);
