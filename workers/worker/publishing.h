/* publishing.h - the tasks share and publish: new weights from the first trainer to the samplers
 *
 * share: the first trainer keeps its weights available under their version. publish: a sampler adopts a version. */
#pragma once
#include "workers/worker/engine_state.h"

/* Prepare to send weights through memory, once; what an earlier load has shared is no longer valid. Needs e->model. */
MUST_USE bool publishing_prepare(struct engine *e, struct error *err);
/* e->copy, where there is one, = the weights of the last step. Trainers that are apart all call it at once, whether they have one or not. */
MUST_USE bool own_copy_fill(struct engine *e, struct error *err);
/* into (the sampler's) = the same weights, out of a whole copy where there is one: shards of trainers that are apart come with it only. */
MUST_USE bool own_weights_copy(struct engine *e, struct model *into, struct error *err);
/* Before weights that were shared change or go: as publication_withdraw; after it, whatever came of it, nobody awaits that other trainers'
 * shards stay. */
MUST_USE bool publishing_withdraw(struct engine *e, struct error *err);
void publishing_forget(struct engine *e);    // when they have been withdrawn and are about to be freed: where they lie
MUST_USE bool share_run(struct engine *e, struct task *t, struct report *r, struct error *err);
/* Sample with t's version from now on; free-running, in the middle of sampling. r->again: the weights did not arrive, and
 * trying again may help. */
MUST_USE bool publish_run(struct engine *e, struct task *t, struct report *r, struct error *err);
