#include "console/bench/bench_step.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/mix64.h"

#define DEVIATION 0.02f    // of weights; Qwen2.5's matrices have 0.01 to 0.05

/* A number of a nearly normal distribution: four uniform ones of 16 bits together. */
static float normal_draw(uint64_t *seed)
{
    uint64_t r = mix64_next(seed);
    int sum = (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff) + (int)(r >> 48) - 2 * 0xffff;
    return (float)sum / (65536.0f * 0.57735f);    // four uniform numbers have the deviation sqrt(4 / 12)
}

bool adam_steps_take(void *before, void *after, size_t n_byte, enum dtype dtype, int64_t n_step, double lr, struct error *err)
{
    uint64_t seed = 1;
    bool ok = false;
    int64_t n = (int64_t)(n_byte / dtype_size(dtype));
    float *state[4] = { 0 };    // master, two moments, gradient
    struct device *dev = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(state); i++)
        if (!(state[i] = calloc((size_t)n, sizeof(float)))) {
            error_set(err, ERR_NO_MEMORY, "no memory for the optimizer of %" PRId64 " weights", n);
            goto out;
        }
    TRY(dev = device_new("cpu:0", 0, err));
    for (int64_t i = 0; i < n; i++)
        state[0][i] = DEVIATION * normal_draw(&seed);
    for (int64_t s = 1; s <= n_step; s++) {
        for (int64_t i = 0; i < n; i++)
            state[3][i] = 1e-4f * normal_draw(&seed);
        memcpy(before, after, n_byte);
        TRY(OP(dev, err, adamw, .weight = after, .master = state[0], .m = state[1], .v = state[2], .grad = state[3], .n = n, .step = s,
               .lr = (float)lr, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .dtype = dtype)
            && device_sync(dev, err));
    }
    ok = true;
out:
    device_free(dev);
    for (size_t i = 0; i < ARRAY_SIZE(state); i++)
        free(state[i]);
    return ok;
}
