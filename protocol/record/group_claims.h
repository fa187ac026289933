/* group_claims.h - what a group may claim that comes from a machine which is not trusted with the run
 *
 * Such a machine samples and scores, so what it drew and what it was worth must be taken from it. All the rest is known beforehand or has
 * bounds: one sample too many, an infinite log-prob or a token that the model does not have would go into every trainer's gradient. Pure;
 * any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct mval;
struct group_claims {
    int64_t row, rollout_step;            // of the item
    int64_t version_low, version_high;    // optimizer steps of the weights that may have drawn its tokens, both included
    int64_t n_sample;
    int64_t n_prompt_max, n_tok_max;    // tokens of the prompt, and of each sample
    int64_t n_id;                       // token ids are below this; 0: none is good
    double temperature, top_p;          // that it was to be sampled with
    int64_t top_k;
};
/* Read a group from its message's map and hold it against what it may claim. A step must be able to compute with it, too (bounds.h).
 * ERR_DATA names the first claim that fails. */
MUST_USE bool group_claims_check(const struct mval *map, const struct group_claims *may, struct error *err);
