/* outside.h - a worker whose samples are drawn by somebody else's inference engine ('backend' vllm or sglang)
 *
 * Its device is called engine:K, by the place of the engine's address in 'engine_url'. It has the model in host memory only to
 * write each version of the weights into a directory that the engine reads. All else (prompts, rewards, groups) is as with an own
 * sampler. On the engine's thread. */
#pragma once
#include "workers/worker/engine_state.h"

/* Its client, with the first load. */
MUST_USE bool outside_open(struct engine *e, struct error *err);
/* Has the engine gone, while the run has others? Then its items are better drawn by those. It gets more when it is back. */
bool outside_gives_up(struct engine *e);
/* The task publish: t's weights, into a directory and from there into the engine. Returns when the engine has them. */
MUST_USE bool outside_publish(struct engine *e, const struct task *t, struct error *err);
