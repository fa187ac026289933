/* trainer_metrics.h - a step's numbers
 *
 * Micro-batches add up struct trainer_sums; from these and from the groups themselves come the
 * metrics and the histograms of a step. Pure functions; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/record/group.h"
#include "protocol/record/histogram.h"
#include "workers/engine/trainer/loss.h"

/* What a micro-batch's forward pass adds up: all doubles. Fields ending in _max merge by maximum,
 * the others by sum. Merged in the order of the micro-batches they are the same bytes for any
 * number of ranks. */
struct trainer_sums {
    double loss;                       // divided by the batch's counts: the sum is the loss
    double kl;                         // sum over tokens; 0 without a reference
    double entropy;                    // sum over tokens
    double n_sample;                   // samples run forward
    double n_tok;                      // their tokens
    double n_known_tok;                // tokens that came with a log-prob
    double n_clip_low, n_clip_high;    // tokens without gradient because clipped
    double ratio;                      // sum over tokens
    double ratio_max;
    // Largest |logp now - logp when sampled| among groups that the present weights sampled: 0.
    double logp_diff_max;
    struct rho_sums rho;    // of the off-policy correction; zeros without one
    double n_skipped;       // samples dropped by skip_threshold
    double age;             // sum over samples of optimizer steps since they were sampled
    double age_max;
    double n_packed_tok;    // prompt and completion tokens of the samples run
    double n_shared_tok;    // prompt tokens that were computed with another sample of the group
    double n_micro;         // micro-batches
    // Sums over micro-batches and layers with experts, of which there are n_expert_layer:
    double n_expert_layer;
    double expert_busiest;    // largest share of the rows that one expert has
    double expert_idle;       // share of the experts that have none
    double expert_entropy;    // of the rows over the experts, divided by the logarithm of their number
};
void trainer_sums_merge(struct trainer_sums *sum, const struct trainer_sums *part);

/* A step's numbers from the sums over all micro-batches and from all groups consumed since the last
 * step (those outside the filter too). Writes the trainer's own entries (BY_TRAINER of
 * protocol/settings/metrics.h's table) into metric (METRIC_N), except M_GRAD_NORM and times, and nothing
 * else. A mean over tokens is NAN when no token was run. */
void trainer_metrics_make(double *metric, const struct trainer_sums *sums, const struct group *const *groups, int64_t n_group,
                          const struct trainer_hyper *h);

/* How the samples of these groups are spread, into h (HISTOGRAM_N), as histogram.h's table names
 * it. A sample is right when its ans_acc is above a half. False: no memory. */
MUST_USE bool trainer_histograms_make(struct histogram *h, const struct group *const *groups, int64_t n_group,
                                      const struct trainer_hyper *hyper, struct error *err);
