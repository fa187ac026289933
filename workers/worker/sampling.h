/* sampling.h - what samples for the run
 *
 * That is the generator and the other one of a gap (gap.h), with the episodes of an environment (episodes.h) between them and the engine's
 * tasks where the run has one; or an external engine. All run on the engine's thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/engine/sampler/generator.h"
#include "workers/worker/engine_state.h"

/* One round: what the environment has answered, a step of the generator and of the other one (gap.h), the turns that ended. */
MUST_USE bool sampler_step(struct engine *e, struct error *err);
/* The next finished group, for group_free; NULL: none. *ending: it is the other generator's. */
struct group *sampler_poll(struct engine *e, bool *ending);
bool sampler_busy(const struct engine *e);     // can a generator go on?
bool sampler_empty(const struct engine *e);    // nothing of the run inside, nothing asked (finished groups may wait in sampler_poll)
/* As generator_stop and generator_drop_item, of what samples for the run; *ending as above. An external engine's requests are not
 * stopped, and episodes are not dropped: what comes of them is not used. */
bool sampler_stop(struct engine *e, int64_t rollout_step, int64_t n_tok, struct stopped_item *out, bool *ending);
bool sampler_drop(struct engine *e, int64_t item, struct stopped_item *out, bool *ending);
/* Show for what samples outside of the generator are waited for. */
void sampler_waits_show(struct engine *e);
/* Wait until sampler_step has something to do, or everything has ended. ERR_TIMEOUT: the environment has said nothing for wait_ms. */
MUST_USE bool sampler_wait(struct engine *e, int64_t wait_ms, struct error *err);
