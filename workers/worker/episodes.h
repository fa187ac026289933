/* episodes.h - samples of several turns: the model's, and between them what the environment says
 *
 * Between the engine's tasks and the generator (sampling.h). A sample whose turn has
 * ended leaves the generator's batch and waits for its environment, while the others go on. With the answer it comes back as an
 * item whose prompt is everything so far, and the prefix cache has that prompt's pages.
 *
 * The group that comes out holds exactly the ids that were drawn and, with mask 0, the ids of what was said between them. It
 * depends on the weights, the seeds and the environment's answers only, not on when they come.
 *
 * With a harness (workers/harness) what the environment says is a request of the sample's program, each sample has its own, and one that
 * does not go on from the former ones begins another path (session.h). Each path is a sample of the group, of its session's reward. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/engine/sampler/generator.h"
#include "workers/worker/engine_state.h"

struct prompt_order;                                                         // items.h
struct episodes *episodes_new(const struct engine *e, struct error *err);    // e has its prompts and its model
void episodes_free(struct episodes *s);                                      // NULL is fine
void episodes_clear(struct episodes *s);    // drop everything inside; answers still to come are ignored. NULL is fine
/* The generator's watcher; ctx is the struct episodes. */
bool episodes_watch(void *ctx, const struct drawn *d);
/* Begin an item: ask the environment how. ERR_FULL: later, there are too many inside. */
MUST_USE bool episodes_submit(struct engine *e, const struct prompt_order *o, const struct sampling *s, struct error *err);
