/* loss.h - advantages, masks and weights: everything of a policy loss that is decided before the forward pass
 *
 * Pure functions of groups and settings; any thread. The per-token loss itself is kernels/ops.h's policy_loss. Formulas
 * are those of ColossalChat's distributed GRPO as intended; where its code does something else,
 * a switch says so. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/run/group.h"

enum algo {
    ALGO_GRPO,
    ALGO_DAPO,
    ALGO_RLOO,
    ALGO_REINFORCE_PPB,
};
enum loss_variation {
    LOSS_SAMPLE_LEVEL,
    LOSS_TOKEN_LEVEL,
};

/* What may change between steps (knobs). trainer_hyper_init gives an algorithm's preset. */
struct trainer_hyper {
    enum algo algo;
    enum loss_variation loss;
    double lr;                     // of this step, after the schedule (schedule.h)
    double weight_decay;           // decoupled; on every tensor, as ColossalAI's HybridAdam
    double max_norm;               // global L2 clip; 0: no clip
    double clip_low, clip_high;    // ratio is clipped to [1 - clip_low, 1 + clip_high]
    double beta;                   // KL coefficient; above 0 needs a reference model
    double skip_threshold;         // leave a sample out of the loss when one of its ratios is above; 0: never
    bool has_filter;               // leave groups out of the loss unless filter_low < mean accuracy < filter_high
    double filter_low, filter_high;
    bool mask_truncated;     // leave samples cut at max_new_tokens out of the loss (they stay in mean and spread)
    bool ppb_as_coded;       // compatibility: REINFORCE_PPB multiplies by the deviation, as ColossalChat's code does
    int64_t token_budget;    // packed tokens of a micro-batch; 0: token_budget_max
};
/* Presets: GRPO, RLOO, REINFORCE_PPB as ColossalChat's zero-bubble launcher (clip 0.2/0.2, sample level, beta 0.01), DAPO as its README (0.2/0.28,
 * token level, beta 0, filter 0.01..0.99, truncated masked, skip_threshold 20); lr 1e-6, weight decay 0.01, clip 1. */
void trainer_hyper_init(struct trainer_hyper *h, enum algo algo);
/* "GRPO", "DAPO", "RLOO", "REINFORCE_PPB"; false: unknown (err names the four). */
MUST_USE bool algo_parse(enum algo *out, const char *name, struct error *err);
const char *algo_name(enum algo a);
/* "sample_level", "token_level". */
MUST_USE bool loss_variation_parse(enum loss_variation *out, const char *name, struct error *err);

/* Advantage of each sample of a group into adv (n_sample), before REINFORCE_PPB's normalisation:
 *   GRPO, DAPO      (r - mean) / (s + 1e-4), s with n - 1 (DeepSeekMath, arXiv 2402.03300, section 4.1.2)
 *   RLOO            r - mean of the other samples (arXiv 2402.14740, eq. 8)
 *   REINFORCE_PPB   r - mean (REINFORCE++-baseline, arXiv 2501.03262, section 3.3)
 * Only samples with SCORE_OK count; the others get 0, and so does a group with fewer than two that count. */
void advantage_group(double *adv, enum algo algo, const struct group *g);
/* Is sample i in the loss (lambda)? Not when left out by its verifier, or empty, or truncated under mask_truncated, or
 * in a group outside the filter's range. */
bool sample_in_loss(const struct group *g, int32_t i, const struct trainer_hyper *h);
/* Do samples of the group differ in reward (those that count)? */
bool group_has_spread(const struct group *g);
/* Mean of ans_acc over the samples that count; NAN when none does. What filter ranges look at. */
double group_accuracy(const struct group *g);

/* What the ranks add up before anyone computes a gradient: all doubles, so that it may travel as an array. */
struct trainer_norm {
    double n_sample;         // scored samples: the denominator of the sample-level loss, masked ones included
    double n_loss_tok;       // tokens of samples in the loss: the token-level loss's denominator
    double n_tok;            // tokens of scored samples, and
    double sum_a, sum_a2;    // sums of their token advantages and squares: REINFORCE_PPB's mean and variance
};
void trainer_norm_add(struct trainer_norm *sum, const struct trainer_norm *part);
/* Share in the loss of one token of a sample of n_tok tokens that is in the loss. */
double token_weight(const struct trainer_hyper *h, const struct trainer_norm *global, int64_t n_tok);
/* REINFORCE_PPB's second stage over the global batch: (a - mean) / sqrt(v + 1e-8), denominators + 1e-4 as ColossalChat's;
 * other algorithms: a. */
double advantage_normalise(double a, const struct trainer_hyper *h, const struct trainer_norm *global);
