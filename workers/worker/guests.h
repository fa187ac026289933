/* guests.h - requests over HTTP that the run's own sampler answers while the run goes on ('serve' in the run file)
 *
 * Routes, bounds and answers are those of `rollcall serve` (workers/serve). The requests are guests in the sampler's batch: they have
 * samples of their own beside the run's (run_config_serve_samples), never delay a task, and change no token of the run. While
 * the engine trains or gets new weights they wait; afterwards they continue with the weights there are then. One worker of a run serves:
 * the first that samples, or the first trainer in a run whose samples come from elsewhere. All functions are for the engine's thread; an
 * engine that does not serve has guests NULL, and they do nothing. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/engine/sampler/generator.h"
#include "workers/worker/engine_state.h"

/* Make room for requests, before the first generator, once: if this worker is the one that serves. */
MUST_USE bool guests_prepare(struct engine *e, struct error *err);
void guests_free(struct engine *e);    // ends all requests with what they have
/* The engine has a generator: continue requests in it, and begin to listen. An address that is in use is tried again (guests_look), and
 * the run goes on without. */
void guests_attach(struct engine *e);
void guests_look(struct engine *e);      // after each task: the weights may have another version
void guests_detach(struct engine *e);    // before the generator is freed
void guests_lift(struct engine *e);      // take their samples out of the generator, until the next guests_feed
bool guests_want(struct engine *e);      // could a step of the generator begin some of them?
void guests_feed(struct engine *e);      // before each step of the generator
/* After it. why: it failed; NULL: it did not. */
void guests_stepped(struct engine *e, const struct error *why);
/* generator_watch: a guest's token. */
bool guests_watch(struct engine *e, const struct drawn *d);
void guests_read_watch(void *engine, const struct read_token *t);    // generator_read_watch
