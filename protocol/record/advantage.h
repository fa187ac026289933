/* advantage.h - how the rewards of a group become advantages
 *
 * The trainer's rule, which screens show too. Pure; any thread. */
#pragma once
#include "protocol/record/group.h"

/* In the order of the choices of the setting 'advantages'. */
enum advantage_form {     // 'advantages'; r: rewards of the group's samples that count
    ADV_DEVIATION,        // (r - mean) / (s + 1e-4), s with n - 1: GRPO, DeepSeekMath, arXiv 2402.03300, section 4.1.2
    ADV_POPULATION,       // (r - mean) / (s + 1e-8), s with n: open-instruct's "standard", Atropos' trainer
    ADV_CENTERED,         // r - mean: Dr. GRPO, arXiv 2503.20783, section 3.2
    ADV_LEAVE_ONE_OUT,    // r - mean of the other samples: RLOO, arXiv 2402.14740, eq. 8
    ADV_BATCH,    // r - mean, then normalised over the tokens of the batch (advantage_normalise of the trainer), the penalty before that:
                  // REINFORCE++-baseline, arXiv 2501.03262, section 3.3
    ADV_DEVIATION_BATCH,    // r - mean, over the deviation of the batch's rewards + 1e-4, with n - 1 (advantage_normalise): TRL's
                            // scale_rewards batch; arXiv 2508.08221, section 4.1
    ADV_LENGTH_WEIGHTED,    // r - mean weighted by the samples' own tokens: OPO, arXiv 2505.23585, eq. 8
    ADV_OVER_MEAN,          // (r - mean) / mean, 0 unless the mean is above 0: MaxRL, arXiv 2602.02710; for rewards from 0 on
    ADV_BEST,        // of the best (r - the best other) / (s + 1e-6), s with n - 1, else 0: pass@k, arXiv 2503.19595; verl's grpo_passk
    ADV_WHITENED,    // r, then whitened over the tokens of the batch (advantage_normalise): REINFORCE++, arXiv 2501.03262, section
                     // 3.2, without discount, the penalty in the loss
};
/* Advantage of each sample of a group into adv (n_sample), that of ADV_BATCH, ADV_DEVIATION_BATCH and ADV_WHITENED before its normalisation.
 * Only samples with SCORE_OK count; the others get 0, and but for ADV_WHITENED so does a group with fewer than two that count, or with equal
 * rewards. The paths of a session count as one sample together: each has its share of the session's weight in mean and spread, so that a
 * session with many does not set the measure for the others. Only ADV_LENGTH_WEIGHTED looks at tokens: n_tok and, where there is one, mask. */
void advantage_group(double *adv, enum advantage_form form, const struct group *g);
/* Are advantages of this form normalised over the batch (advantage_normalise)? */
bool advantage_over_batch(enum advantage_form form);
/* Do samples of the group differ in reward (those that count)? */
bool group_has_spread(const struct group *g);
