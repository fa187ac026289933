#include "console/bench/bench_adapter.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "kernels/ops.h"
#include "workers/engine/model/lora.h"

/* (n) values of dtype, uniform in +-bound. */
static void uniform_fill(void *out, enum dtype dtype, int64_t n, double bound, uint64_t *rng)
{
    for (int64_t i = 0; i < n; i++) {
        *rng = *rng * 6364136223846793005u + 1442695040888963407u;
        float v = (float)(bound * ((double)(*rng >> 40) / 8388608.0 - 1));
        if (dtype == DT_F32)
            ((float *)out)[i] = v;
        else
            ((uint16_t *)out)[i] = bf16_from_f32(v);
    }
}

bool bench_adapter(struct model *m, int64_t rank, bool train, struct error *err)
{
    bool ok = false;
    char *values = NULL;
    size_t bytes, e = dtype_size(model_dtype(m));
    uint64_t rng = 1;
    struct lora_config c = { .rank = rank, .alpha = 2 * (double)rank };
    if (rank == 0)
        return true;
    if (rank < 0 || rank > LORA_RANK_MAX)
        return error_set(err, ERR_USAGE, "--lora-rank is %" PRId64 "; it must be 0 to %d", rank, LORA_RANK_MAX);
    TRY(lora_targets_parse(&c, "all-linear", err) && model_lora_new(m, &c, 1, train, err));
    char *weights = model_weights(m, &bytes);
    if (!(values = calloc(bytes, 1))) {
        error_set(err, ERR_NO_MEMORY, "no memory for an adapter");
        goto out;
    }
    for (int64_t i = 0; i < model_n_tensor(m); i++) {
        const struct tensor *t = model_tensor(m, i);
        uniform_fill(values + (size_t)t->offset * e, model_dtype(m), t->n_elem, 1 / sqrt((double)tensor_cols(t)), &rng);
    }
    TRY(mem_copy(model_device(m), weights, values, bytes, COPY_H2D, err) && device_sync(model_device(m), err));
    ok = model_weights_changed(m, err);
out:
    free(values);
    return ok;
}
