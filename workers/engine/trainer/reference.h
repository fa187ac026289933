/* reference.h - a reference model that follows the policy */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
#include "workers/engine/trainer/loss.h"
#include "workers/engine/trainer/trainer.h"

/* Move the reference at the end of a step, after the trainer's version is set. Every ref_every
 * steps the reference becomes (1 - ref_share) times itself plus ref_share times the policy, in the
 * weights' type (fp32 inside, rounded once). These are open-instruct's ref_policy_update_freq and
 * alpha; ref_share 1 is TRL's sync of the reference. All ranks call it. Without a reference nothing
 * happens. */
MUST_USE bool trainer_reference_step(struct trainer *t, const struct trainer_hyper *h, struct error *err);
/* Has the reference changed since it was loaded? Then a checkpoint keeps it. */
bool trainer_reference_moved(const struct trainer *t);
/* Copy the reference out to, or in from, host memory of model_weight_bytes. Setting it without a
 * reference, or with a teacher, does nothing. */
MUST_USE bool trainer_reference_get(const struct trainer *t, void *out, struct error *err);
MUST_USE bool trainer_reference_set(struct trainer *t, const void *in, struct error *err);
