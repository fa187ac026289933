/* lending.h - the first trainer's weights, for servers on its host that compute with the same memory ('weight_bridge_file')
 *
 * The weights are in memory that other processes may open, and a file says where (workers/engine/publish/lent_file.h). A step asks the servers
 * to let go of them when its gradient is there, and waits for requests under way at most 'engine_timeout_s'; when the weights have their new
 * version, the servers go on. A load, and so a rollback, is for them as if the trainer had been started again. On the engine's thread; where
 * nothing is lent the functions do nothing. */
#pragma once
#include "workers/worker/engine_state.h"

MUST_USE bool lending_prepare(struct engine *e, struct error *err);    // before anything takes the address of the model's weights
MUST_USE bool lending_open(struct engine *e, struct error *err);       // after a load, with what was loaded
void lending_changed(struct engine *e);                                // after an optimizer step
/* Is there no server with the lent weights? *out says for how long. Returns how many entries that is, 0 or 1. Called with engine.lock, while e
 * lends. */
int lending_unused(struct engine *e, struct engine_server *out);
void lending_free(struct engine *e);    // before the model goes
