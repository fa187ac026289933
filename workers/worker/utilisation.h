/* utilisation.h - what share of its devices' peak a worker has used (MFU and bandwidth), for a step's metrics
 *
 * Counted are the operations that the model needs, not those that were done: what is computed again in a backward pass, or for a prompt
 * that was put back, is no use. Owned by the engine's thread. */
#pragma once
#include <stdint.h>

struct engine;
struct group;
/* What sampling has taken, and needed of what its devices could have done in that time. */
struct sampled {
    double generate_s, tail_s;    // as in struct sampler_work
    double gap_s;                 // the same; NAN: two versions cannot be in work here
    int64_t n_tok, n_draft, n_accepted;
    int64_t n_put_back;          // -1: an external engine does not say
    double flops, flops_most;    // NAN: not known
    double bytes, bytes_most;
};
/* What this worker's sampler has done since e->work was cleared. */
void sampled_make(const struct engine *e, struct sampled *out);
/* The shares of the step just made and of the sampling before it, into metric (METRIC_N): NAN where a peak is not known (peaks.h has none,
 * the weights are not bf16, and no setting gives one), or nothing was sampled here. metric[M_TRAIN_TOK_PER_S] and M_TRAIN_SHARED are there
 * already. */
void utilisation_make(const struct engine *e, const struct group *const *groups, int64_t n_group, double *metric);
