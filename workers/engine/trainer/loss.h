/* loss.h - advantages, masks and weights: everything of a policy loss that is decided before the forward pass
 *
 * Pure functions of groups and settings; any thread. The per-token loss itself is kernels/ops.h's policy_loss.
 *
 * An algorithm is a composition of seven choices, each a setting of its own: how rewards become advantages, whose ratio is looked at
 * (a token's or its sample's), where it is clipped, what a sum of tokens is divided by, the penalty, which log-probs are the old
 * ones, and what corrects for samples of other weights. protocol/settings/preset.c is the table of algorithms. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "protocol/record/advantage.h"
#include "protocol/record/group.h"
#include "protocol/settings/run_config.h"

/* The choices, each in the order of its setting's choices in knobs.c. */
enum loss_variation {     // 'loss_variation': what a sample's tokens are divided by
    LOSS_SAMPLE_LEVEL,    // samples of the batch x its own tokens: DeepSeekMath, eq. 3
    LOSS_TOKEN_LEVEL,     // tokens of the batch that are in the loss: DAPO, arXiv 2503.14476, eq. 8
    LOSS_CONSTANT,        // samples of the batch x a constant: Dr. GRPO, listing 1 (its MAX_TOKENS)
};
enum ratio_level {     // 'ratio_level'
    RATIO_TOKEN,       // r_t = exp(logp_t - old_t)
    RATIO_SEQUENCE,    // one for all of a sample's tokens (sequence_log_ratio)
};
enum old_logprobs {    // 'old_logprobs': what the ratio compares with
    OLD_SAMPLED,       // the log-probs recorded when the sample was drawn
    OLD_CURRENT,       // those of the weights at the beginning of the update: the ratio is 1, and rho alone corrects
};
/* What rho is, with d_t = log-prob at the beginning of the step - when sampled. */
enum rho_level {
    RHO_TOKEN,        // exp(d_t)
    RHO_SEQUENCE,     // exp(sum of d): the whole sample's
    RHO_GEOMETRIC,    // exp(mean of d)
    RHO_TV,           // mean of |exp(d_t) - 1|, twice an estimate of the total variation; masks only
    RHO_KL,           // mean of -d, an estimate of the KL of the sampler to the weights; masks only
};
/* A rule of rho: bounds, both NAN without one. */
struct rho_rule {
    double low, high;
    enum rho_level level;
};

/* What may change between steps (knobs). trainer_hyper_init_algo gives an algorithm's preset. */
struct trainer_hyper {
    enum advantage_form advantages;
    enum loss_variation loss;
    double loss_constant;    // tokens, with LOSS_CONSTANT
    enum ratio_level ratio;
    enum old_logprobs old;
    struct policy_form form;
    struct rho_rule rho_clamp, rho_mask;
    int64_t n_epoch, n_mini;    // a step passes n_epoch times over its batch, each time in n_mini updates; 0: 1
    double lr;                  // of this step, after the schedule (schedule.h)
    double weight_decay;        // decoupled; on every tensor, as ColossalAI's HybridAdam
    bool decay_matrices;        // weight decay on matrices only: none on norms and biases (torch's usual two parameter groups)
    double max_norm;            // global L2 clip; 0: no clip
    int64_t ref_every;          // steps after which the reference moves towards the policy; 0: it stays
    double ref_share;           // the part of the way that it moves then
    double skip_threshold;      // leave a sample out of the loss when one of its ratios is above; 0: never
    double teacher;             // times (logp of the reference - logp when sampled), added to a token's advantage; 0: there is no teacher
    double reward_share;        // beside a teacher: times the advantage that rewards give
    bool has_filter;            // leave groups out of the loss unless filter_low < mean accuracy < filter_high
    double filter_low, filter_high;
    bool filter_no_spread;    // leave groups out whose rewards are all equal (open-instruct's filter_zero_std_samples)
    bool mask_truncated;      // leave samples cut at max_new_tokens out of the loss (they stay in mean and spread)
    bool ppb_as_coded;        // compatibility: REINFORCE_PPB multiplies by the deviation, as ColossalChat's code does
    int64_t token_budget;     // packed tokens of a micro-batch; 0: token_budget_max
};
/* Those of optimizer step `step` (from 0) of max_steps under settings that run_config_finish has passed. */
void trainer_hyper_of(struct trainer_hyper *h, const struct run_config *c, int64_t step, int64_t max_steps);
/* Those of a run with all defaults, at the constant learning rate of the default; the budget is the trainer's. */
void trainer_hyper_init(struct trainer_hyper *h);
/* As trainer_hyper_init, with this choice of the setting 'algo'. False: it is none (err names all). */
MUST_USE bool trainer_hyper_init_algo(struct trainer_hyper *h, const char *algo, struct error *err);

/* Is sample i in the loss (lambda)? Not when left out by its verifier, or empty, or truncated under mask_truncated, or
 * in a group outside the filter's range or without spread under filter_no_spread. */
bool sample_in_loss(const struct group *g, int32_t i, const struct trainer_hyper *h);

/* What the ranks add up before anyone computes a gradient: all doubles, so that it may travel as an array. */
struct trainer_norm {
    double n_sample;      // scored samples: the denominator of the sample-level loss, masked ones included
    double n_loss_tok;    // tokens of samples in the loss: the token-level loss's denominator
    double n_tok;         // tokens of scored samples, and
    // sums and sums of squares, of their tokens' advantages (ADV_BATCH, ADV_WHITENED), or of the rewards of the n_sample (ADV_DEVIATION_BATCH)
    double sum_a, sum_a2;
};
void trainer_norm_add(struct trainer_norm *sum, const struct trainer_norm *part);
/* Share in the loss of one token of a sample of n_tok sampled tokens that is in the loss. */
double token_weight(const struct trainer_hyper *h, const struct trainer_norm *global, int64_t n_tok);
/* The second stage over the global batch. ADV_BATCH: (a - mean) / sqrt(v + 1e-8), denominators + 1e-4 as ColossalChat's; ADV_WHITENED that
 * with verl's: n in the mean, n - 1 in v; ADV_DEVIATION_BATCH: a / (s + 1e-4), s that of rewards, with n - 1; otherwise a. */
double advantage_normalise(double a, const struct trainer_hyper *h, const struct trainer_norm *global);

/* A token's advantage with what the teacher says: reward_share a + teacher (taught - sampled), whose expectation over samples is the
 * rewards' advantage less teacher times the reverse KL to the teacher. On-policy distillation as Thinking Machines, "On-Policy Distillation",
 * 2025, and verl's policy gradient of the estimator k1 have it. taught, sampled: log-probs of the token. */
double advantage_teach(double a, double taught, double sampled, const struct trainer_hyper *h);

/* Must a sample's log-probs be known before its loss (old_logprobs, ratio of the sequence, rho)? Else none of the two below is called. */
bool loss_needs_logp(const struct trainer_hyper *h);
/* Is the loss made of a reference's log-probs: by its penalty, or because the reference is a teacher? */
bool loss_needs_reference(const struct trainer_hyper *h);
/* What in the advantages is made of the log-probs recorded when sampling, in words for users. Then a group without them cannot be trained on.
 * NULL: nothing. */
const char *loss_needs_sampled(const struct trainer_hyper *h);
/* Logarithm of the ratio that a sample's n tokens share, of those whose mask (n) is 1: the mean of logp - old (GSPO, arXiv 2507.18071,
 * section 4.1), with the form gmpo of these within the form's bounds for the token's advantage (adv, n), with vespo their sum. */
double sequence_log_ratio(const struct policy_form *f, const float *logp, const float *old, const float *adv, const uint8_t *mask,
                          int64_t n);
/* What rho did, added up over tokens. */
struct rho_sums {
    double n_tok, n_clamped, n_masked;
    double rho;    // sum of the tokens' own, exp(d_t)
};
/* Off-policy correction of a sample of n tokens: the factor of each token's policy term into rho (n), from its log-probs at the beginning
 * of the step and when sampled, and adds to s. In this order:
 *   rho_clamp   rho of its level brought into [low, high]: truncated importance sampling, Yao et al., "Your Efficient RL Framework
 *               Secretly Brings You Off-Policy RL Training", 2025 (there low 0, high 2); open-instruct's rho_clamp_*
 *   rho_mask    0 where rho of its level is outside [low, high]; inside, without a clamp and with old_logprobs current, rho itself. By
 *               token: IcePop, arXiv 2510.18855, section 3 (OpenRLHF's icepop, TRL's token_mask); by sample: its product, which is the
 *               weight too (TRL's sequence_mask), or its geometric mean, where each token has its own (OpenRLHF's and NeMo-RL's
 *               seq-mask-tis). With old_logprobs sampled the ratio has rho in it already, and the factor is 1. A clamp of [1, 1] leaves
 *               out alone (verl's rollout_rs without rollout_is). TV: where it is above high, the tokens
 *               that are already moved where their advantage pushes them, d_t A_t > 0 (open-instruct's rho_mask_tv_divergence, which
 *               takes a row of packed samples for one; here it is one sample). KL: where it is above high, the tokens of A_t < 0
 *               (DeepSeek-V3.2's off-policy sequence masking, arXiv 2512.02556, eq. 9; TRL's off_policy_mask_threshold). A masked
 *               token counts in what the loss is divided by.
 * adv (n): the tokens' advantages; mask (n): those with 0 do not count and get 1. Without either rule every factor is 1. */
void rho_make(float *rho, const float *logp, const float *sampled, const float *adv, const uint8_t *mask, int64_t n,
              const struct trainer_hyper *h, struct rho_sums *s);
