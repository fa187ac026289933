/* loading.h - the task load: data, weights, sampler and trainer on the device, and the meeting of the trainers */
#pragma once
#include "workers/worker/engine_state.h"

/* Load t's checkpoint, or the first weights when it names none. After a failure the caller unloads; r->broken: the checkpoint
 * is broken. */
MUST_USE bool loading_run(struct engine *e, struct task *t, struct report *r, struct error *err);
/* Free what a load has put on the device; the prompts stay. */
void loading_undo(struct engine *e);
/* Leave the other trainers, so that they no longer wait for this one; they meet again with the next load. */
void trainers_leave(struct engine *e);
/* Leave them after a failure, which they are told. */
void trainers_give_up(struct engine *e, const struct error *why);
