/* state.h - a trainer's weights, masters and moments on their way to checkpoints and back
 *
 * Called by the thread that drives the trainer's device. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/trainer/trainer.h"

/* State for checkpoints (checkpoint.h): the fp32 masters and both moments, in the order of the
 * table of tensors, whatever the ranks and the zero_stage. 8-bit moments are given as the floats
 * that they stand for; set from these floats they are the same bytes again. Adafactor's second
 * moment is each tensor's rows, then its columns. */
enum trainer_state_kind {
    STATE_MASTER,
    STATE_MOMENT1,
    STATE_MOMENT2,
    STATE_N,
};
/* Floats of a kind of state; 0: the optimizer has none. */
int64_t trainer_state_n(const struct trainer *t, enum trainer_state_kind kind);
/* Copy state out to host memory of trainer_state_n floats. Where trainer_gives_first, all ranks
 * call it, and only the first one gets the state; the others pass out NULL. ERR_CLOSED: the other
 * ranks, which have the other shards, are gone. */
MUST_USE bool trainer_state_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err);
/* Are the ranks apart (trainer_reach), with shards that only the first rank gets? */
bool trainer_gives_first(const struct trainer *t);
/* Setting the masters also sets the weights. Moments of what is not trained are taken as 0. */
MUST_USE bool trainer_state_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err);
/* Updates that masters and moments have seen, which Adam's bias correction counts. */
int64_t trainer_adam_step(const struct trainer *t);
void trainer_adam_step_set(struct trainer *t, int64_t n);
/* Forget the moments and start Adam from step 0 (a new stage of supervised training). */
MUST_USE bool trainer_adam_reset(struct trainer *t, struct error *err);
/* Copy the weights out to host memory of model_weight_bytes. With zero_stage 3 they come from all
 * ranks, as in trainer_state_get. */
MUST_USE bool trainer_weights_get(const struct trainer *t, void *out, struct error *err);
/* A hash of the weights, which ranks compare. With zero_stage 3 it is that of this rank's shards,
 * and the sum over the ranks is the hash of the whole. */
MUST_USE bool trainer_hash(const struct trainer *t, uint64_t *hash, struct error *err);
