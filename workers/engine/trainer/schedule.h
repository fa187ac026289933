/* schedule.h - the learning rate of an optimizer step
 *
 * Pure functions; any thread. */
#pragma once
#include <stdint.h>
enum schedule_kind {    // in the order of the choices of 'lr_schedule'
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_WSD,    // warm-up, stable, decay: MiniCPM, arXiv 2404.06395, section 4.2
};
struct schedule {
    enum schedule_kind kind;
    double min_ratio;      // floor as a share of the base rate; ColossalChat's cosine has 0.1
    int64_t n_warmup;      // steps of linear warm-up from 0 before it starts
    double decay_share;    // SCHEDULE_WSD: share of n_step at its end in which the rate falls, above 0
    int64_t n_step;        // steps until the floor; from there on it stays (upstream's cosine rises again)
};
/* Rate of optimizer step k (from 0), after n_warmup steps of lr (k + 1) / (n_warmup + 1); t = k / n_step, 1 at most:
 *   cosine     min + (lr - min)(1 + cos(pi t)) / 2, colossal-chat's CosineAnnealingWarmupLR
 *   linear     lr + (min - lr) t
 *   wsd        lr while t <= 1 - decay_share, then the cosine over what is left (transformers' get_wsd_schedule; MiniCPM's
 *              fall is exponential)
 *   constant   lr */
double schedule_lr(const struct schedule *s, double lr, int64_t k);
