/* gap.h - the gap at the end of a rollout step: a sampler with two versions of the weights in work ('fill_gap')
 *
 * A rollout step is sampled with one version. When fewer than half of its samples are left, most of the device is idle, although items of the
 * next rollout step may wait whose version is there. So a worker that only samples has a second model with a generator, e->ending: what is in
 * work moves there to be finished, and the next version, with its items, is the engine's own. Whichever generator is empty is free for another
 * version. A group's bytes depend on its own weights and seeds alone, so they are the same with and without it.
 *
 * What it gains is what two steps take less at a time than one after the other, since samples of two versions cannot share one. So on a GPU
 * the second model has a struct device, and that is a stream, of its own: a generator leaves its step behind on the device and looks at the one
 * before, so that both steps are under way while few samples leave most of the GPU idle. A CPU computes one after the other. With n_behind 1
 * the trainer waits for the very samples that two versions slow down, so that nothing is gained on the whole (kernels/cuda/NOTES.md).
 *
 * All run on the engine's thread. Without a second generator they do nothing. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/worker/engine_state.h"

/* Make the second model, like e->model; before the device's memory is planned. */
MUST_USE bool gap_prepare(struct engine *e, struct error *err);
/* Make its generator, if it was prepared, with the settings of the engine's own. */
MUST_USE bool gap_open(struct engine *e, const struct generator_config *own, struct error *err);
void gap_end(struct engine *e);           // free both
void gap_clear(struct engine *e);         // drop the items inside
bool gap_ends(const struct engine *e);    // has it samples to finish?
/* Version is about to be taken: items in work move (*turned), and the other model is there to be filled. ERR_INTERNAL: two versions are in
 * work already. */
MUST_USE bool gap_turn(struct engine *e, int64_t version, bool *turned, struct error *err);
void gap_turn_back(struct engine *e);    // it could not be taken: the items go on where they were
void gap_close_up(struct engine *e);     // after a round: when its last item has left, its version is not in work any more
/* Add its figures to those of the engine's own generator. */
void gap_stats_add(struct engine *e, struct generator_stats *s);
/* Is one of the two free, and does fewer than half of a batch run? s: of both. */
bool gap_is_open(const struct engine *e, const struct generator_stats *s);
