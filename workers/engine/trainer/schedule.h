/* schedule.h - the learning rate of an optimizer step
 *
 * Pure functions; any thread. */
#pragma once
#include <stdint.h>
struct schedule {
    enum {
        SCHEDULE_COSINE,
        SCHEDULE_LINEAR,
        SCHEDULE_CONSTANT,
    } kind;
    double min_ratio;    // floor as a share of the base rate; ColossalChat's cosine has 0.1
    int64_t n_warmup;    // steps of linear warm-up from 0 before it starts
    int64_t n_step;      // steps until the floor; from there on it stays (upstream's cosine rises again)
};
/* Rate of optimizer step k (from 0): min + (lr - min)(1 + cos(pi k / n_step)) / 2, colossal-chat's
 * CosineAnnealingWarmupLR. */
double schedule_lr(const struct schedule *s, double lr, int64_t k);
