#include "workers/engine/trainer/schedule.h"
#include <math.h>

double schedule_lr(const struct schedule *s, double lr, int64_t k)
{
    const double pi = 3.14159265358979323846;
    if (k < s->n_warmup)
        return lr * (double)(k + 1) / (double)(s->n_warmup + 1);
    k -= s->n_warmup;
    double min = lr * s->min_ratio;
    double t = s->n_step <= 0 || k >= s->n_step ? 1 : (double)k / (double)s->n_step;
    double fall = fmax(t - (1 - s->decay_share), 0) / s->decay_share;    // of SCHEDULE_WSD
    switch (s->kind) {
    case SCHEDULE_COSINE: return min + (lr - min) * (1 + cos(pi * t)) / 2;
    case SCHEDULE_LINEAR: return lr + (min - lr) * t;
    case SCHEDULE_WSD: return min + (lr - min) * (1 + cos(pi * fall)) / 2;
    case SCHEDULE_CONSTANT: break;
    }
    return lr;
}
