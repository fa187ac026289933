/* hyper_of.h - an algorithm's preset, in tests */
#pragma once
#include "workers/engine/trainer/loss.h"

static void hyper_of(struct trainer_hyper *h, const char *algo)
{
    struct error err = { 0 };
    if (!trainer_hyper_init_algo(h, algo, &err))
        fail_msg("%s", err.text);
}
