/* run_room.h - what a run's settings ask of a device, before anything is loaded
 *
 * The worker makes its trainer's and its sampler's settings here, and so does `train --dry-run`, which plans the memory of a device
 * with them (memory_plan.h) from the model's config.json alone. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/plan/holdings.h"
#include "workers/engine/plan/memory_plan.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/trainer/trainer.h"

struct lora_config;
struct model_config;
/* The type of weights and activations on such a device: what 'dtype' says, with auto bf16 on GPUs. */
enum dtype run_dtype(const struct run_config *c, enum device_kind kind);
/* The adapter that the run trains, its base set; rank 0: it trains all weights. ERR_USAGE, or as lora_config_load. */
MUST_USE bool run_adapter(const struct run_config *c, struct lora_config *lora, struct error *err);
/* How many parameters it trains; 0: they cannot be counted. */
double run_n_trained(const struct run_config *c, const struct model_config *shape);

/* The settings of the trainer of this rank on dev; zero_stage is 0 as yet. */
struct trainer_settings run_trainer_settings(const struct run_config *c, int64_t rank, const struct device *dev);
/* The sampler's configuration, without its model, tokenizer, memory and version. */
struct generator_config run_generator_config(const struct run_config *c);

/* What weights that travel through memory take, in bytes; 0 where they do not. */
struct run_publication {
    int n_kept;       // versions for other samplers
    size_t kept;      // of the first trainer's device, beside its weights, for these
    size_t held;      // of each of a producer's devices: its weights, or its slice of them
    size_t staged;    // of its first device: a version that comes while it samples
};
struct run_room {
    struct run_publication publication;    // whoever the part is
    struct memory_plan plan;               // with the zero_stage that is set, or with auto the lowest from 1 on that has room
    size_t copy;                           // host memory from which the first trainer writes checkpoints; of other parts 0
    size_t have;                           // bytes free on the device
    size_t state_bytes[SUM_PARTS_MAX];     // as in struct trainer_settings
    bool fits;
    bool fills_gap;             // 'fill_gap' is on, or auto comes to that here; the rest is of that
    struct plan_short lacks;    // where it does not: which of the trainer's devices; need with the reserve
    char nearest[160];          // where it does not: a clause about what would
};
/* What stage q of the trainer's pipeline takes of its device, or of that of its devices which has most. */
struct run_stage {
    int64_t first, end;    // its layers
    bool has_embedding;
    size_t kept;          // weights, also of a reference, gradient, masters and moments that are there
    size_t activation;    // of n_set micro-batches, and what one works in
    int n_set;
};
/* What each of the pipeline_parallel_size stages needs on a device like dev. zero_stage is that of several trainers; state_bytes is as in
 * struct trainer_settings, and NULL means the least with offload. */
MUST_USE bool run_stages_room(struct run_stage out[], const struct run_config *c, int zero_stage, const size_t *state_bytes,
                              struct device *dev, struct error *err);
/* Have the stages' devices (dev, stage after stage) room for them, but for the first stage, of whose first device run_room_plan knows all? On
 * CPUs always. With zero_stage auto what it may take at most counts. ERR_NO_MEMORY names the first that has not. Nothing of the stages is on
 * them yet. */
MUST_USE bool run_stages_fit(const struct run_config *c, struct device *const *dev, struct error *err);
/* What a trainer of the run takes on a device like dev at each zero_stage that is possible, into out[0] to out[*most]; activations and host
 * memory aside, for nothing is offloaded here. *whole_bytes: a whole copy of the weights. */
MUST_USE bool run_trainer_room(struct trainer_memory out[ZERO_MAX + 1], int *most, size_t *whole_bytes, const struct run_config *c,
                               struct device *dev, struct error *err);
/* The weights that a part holds on devices like dev, with their bytes; zero_stage: of several trainers. */
MUST_USE bool run_holdings(struct holdings *out, const struct run_config *c, const struct run_part *part, int zero_stage,
                           struct device *dev, struct error *err);
/* Does the part's trainer have several devices, each with state in host memory as far as it has too little room? */
bool run_devices_differ(const struct run_config *c, const struct device *dev);
/* Plan what part of a run (trainer, producer or both) takes of dev, on which nothing of it is yet. have (run_config_trainer_devices): bytes
 * free on its trainer's devices, have[0] unused; NULL unless run_devices_differ. With 'fill_gap' auto the gap is filled on GPUs
 * with n_behind above 1 where what that takes fits beside a plan that is the same in all else. */
MUST_USE bool run_room_plan(struct run_room *out, const struct run_config *c, const struct run_part *part, struct device *dev,
                            const size_t *have, struct error *err);
/* Has this machine `have` bytes for the masters and moments that n_trainer trainers keep in its memory, each_bytes each? ERR_NO_MEMORY
 * says how many are missing. */
MUST_USE bool run_host_fits(size_t each_bytes, int64_t n_trainer, size_t have, struct error *err);
