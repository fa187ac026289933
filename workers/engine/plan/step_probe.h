/* step_probe.h - how long a step will take on a device, measured before the run with the sampler and the trainer's own passes
 *
 * Models of one and of two layers, with the shapes of the real one and weights of 0, run for a moment each. The difference is
 * the cost of a layer; what remains (embedding, head, sampling) is counted once. On a processor the model of two layers is enough: its
 * time is scaled by the weights in products. So nothing of the real model is loaded. */
#pragma once
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "workers/engine/model/config.h"

struct lora_config;
struct step_load {           // of one device
    int64_t n_seq;           // samples decoded at once
    int64_t group;           // of them share a prompt
    int64_t n_prompt_tok;    // tokens of a prompt
    int64_t n_new_tok;       // of a response
    int64_t token_budget;    // of a forward and backward pass
    bool recompute_block;
    const struct lora_config *lora;    // the adapter that is trained; NULL: all weights are
};
struct step_cost {
    double decode_s;     // one more token for each of n_seq samples, at the mean length of a response; on a processor after short prompts
    double prefill_s;    // per token of a prompt
    double train_s;      // per token, forward and backward
    double spread;       // by how much the median of the timed rounds of any of these was slower than the fastest: 0.1 for a tenth; 0: each
                         // could be timed only once in the time
    double teacher;      // a teacher's pass, in forward passes of the model; 0 of a probe
};
/* Measure on a device that nothing else uses. Takes about limit_s seconds, more when
 * a single round of each takes longer. ERR_NO_MEMORY: two
 * layers and the head do not fit. */
MUST_USE bool step_probe(struct step_cost *out, const struct model_config *c, struct device *dev, enum dtype dtype,
                         const struct step_load *load, double limit_s, struct error *err);
