/* step.h - a batch's way to its gradient, as one rank goes it
 *
 * ranks.h has the whole step. It begins one on every rank with the same groups, and says which of
 * the batch's micro-batches each rank runs. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "workers/engine/trainer/loss.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/trainer_metrics.h"

/* The next update is number `update` (from 0) of the step that makes version + 1. */
void trainer_update_set(struct trainer *t, int64_t version, int64_t update);

/* Begin a step. groups are the whole batch; they are borrowed until its gradient is made. ERR_DATA,
 * ERR_SHAPE: a sample is at fault, on every rank alike; err names its item. */
MUST_USE bool trainer_begin(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                            struct error *err);
int64_t trainer_n_micro(const struct trainer *t);    // micro-batches of the batch that was begun
/* Micro-batches of the batch that are run under the reference; 0: there is no penalty. */
int64_t trainer_n_reference(const struct trainer *t);
/* The micro-batches of the batch that a rank runs: `run` in a row from `first` on, then `run` from
 * first + every, and so on, n of them. A model in stages works on several at once. */
struct micro_series {
    int64_t first, run, every, n;
    // Micro-batches of one token with a gradient of 0, run after the n others. A rank without a
    // micro-batch in the last round runs them. So it asks for the same pieces of kept weights as
    // the other ranks, which wait for its shards.
    int64_t n_none;
};
static inline int64_t micro_of(const struct micro_series *s, int64_t i)    // the i-th of them
{
    return s->first + i / s->run * s->every + i % s->run;
}
/* Run micro-batches under the reference, which trainer_micros needs on the same rank. part (n) gets
 * what the tokens of each micro-batch add to the batch's sums of token advantages (ADV_BATCH). The
 * caller then gives every rank the parts of all micro-batches, in their order
 * (trainer_norm_more). */
MUST_USE bool trainer_references(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_norm *part,
                                 struct error *err);
void trainer_norm_more(struct trainer *t, const struct trainer_norm *part);
/* Run forward and backward of each micro-batch, in their order. Each one is added to the gradient
 * in one addition per element. part is (n). */
MUST_USE bool trainer_micros(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_sums *part,
                             struct error *err);
/* Begin a gradient that n_micro micro-batches are added up in. The first one is written over what
 * is there; with none it is cleared. */
MUST_USE bool trainer_grad_begin(struct trainer *t, int64_t n_micro, struct error *err);
/* Take the seconds that trainer_stages shows. Waits for the stages' devices, and begins to measure
 * again. */
MUST_USE bool trainer_stages_measure(struct trainer *t, struct error *err);
