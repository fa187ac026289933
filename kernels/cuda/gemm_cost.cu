/* gemm_cost.cu - timing products with cold weights, in recorded runs; what the rule of gemm.cu costs */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_few.cuh"
#include <inttypes.h>
#define RUNS 9                             // of a measurement; the median counts
#define COLD_BYTES ((int64_t)192 << 20)    // of weights used in turn, several times the second-level cache

__global__ static void noise_kernel(bf16 *x, int64_t n, uint32_t salt)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    uint32_t z = (uint32_t)i * 2654435761u + salt;
    z = (z ^ (z >> 15)) * 2246822519u;
    z = (z ^ (z >> 13)) * 3266489917u;
    x[i] = __float2bfloat16_rn((float)(int32_t)(z ^ (z >> 16)) * (1.0f / 2147483648.0f));
}
bool noise_fill(struct cuda_device *cu, bf16 *x, int64_t n, uint32_t salt, struct error *err)
{
    noise_kernel<<<blocks_for(n, 256), 256, 0, cu->stream>>>(x, n, salt);
    return launch_ok("random numbers for products", err);
}

bool cost_open(struct cuda_device *cu, struct cost_run *r, const struct linear_cost *c, int split, struct error *err)
{
    struct device *dev = &cu->base;
    int64_t w_elems = c->n_out * c->n_in, x_elems = c->n * c->n_in;
    size_t y_bytes = (size_t)(split * c->n * c->n_out) * (split > 1 ? 4 : dtype_size(c->y_dtype));
    memset(r, 0, sizeof *r);
    r->c = c;
    r->split = split;
    r->n_copy = (int)(COLD_BYTES / (2 * w_elems) + 1);
    r->w.dtype = DT_BF16;
    r->w.n_out = c->n_out;
    r->w.n_in = c->n_in;
    r->weights = (bf16 *)dev->op->mem_new(dev, (size_t)(r->n_copy * w_elems + c->n_out) * 2, "timing products", err);
    r->x = r->weights ? (bf16 *)dev->op->mem_new(dev, (size_t)x_elems * 2, "timing products", err) : NULL;
    r->y = r->x ? dev->op->mem_new(dev, y_bytes, "timing products", err) : NULL;
    if (!r->y)
        return false;
    r->bias = c->bias ? r->weights + r->n_copy * w_elems : NULL;
    return noise_fill(cu, r->weights, r->n_copy * w_elems + c->n_out, 3, err) && noise_fill(cu, r->x, x_elems, 4, err);
}
void cost_close(struct cuda_device *cu, struct cost_run *r)
{
    void *const mem[] = { r->weights, r->x, r->y };
    for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
        if (mem[i])
            cu->base.op->mem_free(&cu->base, mem[i]);
}
bool cost_call(struct cuda_device *cu, struct cost_run *r, int k, bf16 *act, struct error *err)
{
    const struct linear_cost *c = r->c;
    const bf16 *weight = r->weights + (int64_t)(k % r->n_copy) * c->n_out * c->n_in;
    if (act) {
        struct few_call few = {};
        few.weight = weight;
        few.x = r->x;
        few.bias = r->bias;
        few.y = act;
        few.rows = c->n;
        few.n_out = c->n_out;
        few.n_in = few.ldx = c->n_in;
        few.ldy = c->n_out / 2;
        few.split = 1;
        few.pair = true;
        few.act = ACT_SILU;
        return few_run(cu, &few, r->way->few - 1, err);
    }
    if (!r->way) {
        r->w.data = weight;
        struct linear_fwd a = {};
        a.y = r->y;
        a.x = r->x;
        a.w = &r->w;
        a.bias = r->bias;
        a.n = c->n;
        a.y_dtype = c->y_dtype;
        return linear_fwd_cuda(&cu->base, &a, err);
    }
    struct lt_call call = { .kind = c->y_dtype == DT_F32 ? PRODUCT_FWD_F32 : PRODUCT_FWD,
                            .rows = c->n,
                            .n_out = c->n_out,
                            .n_in = c->n_in,
                            .split = r->split,
                            .weight = weight,
                            .x = r->x,
                            .bias = r->split == 1 ? r->bias : NULL,
                            .y = r->y,
                            .x2 = NULL,
                            .ldx = c->n_in,
                            .ldy = c->n_out };
    return way_run(cu, &call, r->way, err);
}
/* Median time of one call, from recorded runs over all copies of the weight. */
static bool cost_time(struct cuda_device *cu, struct cost_run *r, double *us, struct error *err)
{
    int n_call = r->n_copy < 8 ? 8 : r->n_copy > 64 ? 64 : r->n_copy;
    float took[RUNS];
    cudaEvent_t from = NULL, to = NULL;
    struct graph *g = NULL;
    bool ok = cost_call(cu, r, 0, NULL, err) && cu->base.op->graph_begin(&cu->base, err);
    if (!ok)
        return false;
    for (int k = 0; ok && k < n_call; k++)
        ok = cost_call(cu, r, k, NULL, err);
    struct error ignored;
    g = cu->base.op->graph_end(&cu->base, ok ? err : &ignored);
    ok = ok && g && cuda_ok(cudaEventCreate(&from), "linear_cost", err) && cuda_ok(cudaEventCreate(&to), "linear_cost", err);
    for (int i = -1; ok && i < RUNS; i++) {
        ok = cuda_ok(cudaEventRecord(from, cu->stream), "linear_cost", err) && cu->base.op->graph_launch(&cu->base, g, err)
             && cuda_ok(cudaEventRecord(to, cu->stream), "linear_cost", err) && cuda_ok(cudaEventSynchronize(to), "linear_cost", err);
        if (ok && i >= 0)
            ok = cuda_ok(cudaEventElapsedTime(&took[i], from, to), "linear_cost", err);
    }
    for (int i = 1; ok && i < RUNS; i++)
        for (int j = i; j > 0 && took[j] < took[j - 1]; j--) {
            float t = took[j];
            took[j] = took[j - 1];
            took[j - 1] = t;
        }
    if (ok)
        *us = (double)took[RUNS / 2] * 1e3 / n_call;
    if (from)
        cudaEventDestroy(from);
    if (to)
        cudaEventDestroy(to);
    if (g)
        cu->base.op->graph_free(&cu->base, g);
    return ok;
}

/* --- what the rule costs --------------------------------------------------------------------------------------------- */
bool cuda_linear_cost(struct device *dev, struct linear_cost *c, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    bool ok = false;
    struct cost_run r;
    struct lt_setup setup;
    cublasLtMatmulAlgo_t found[CANDIDATES];
    if (c->n < 1 || c->n_out % 8 || c->n_in % 8 || c->n_out < 8 || c->n_in < 8)
        return error_set(err, ERR_SHAPE, "linear_cost: %" PRId64 " rows, %" PRId64 " x %" PRId64, c->n, c->n_out, c->n_in);
    if (cost_open(cu, &r, c, 1, err) && cost_time(cu, &r, &c->rule_us, err)) {
        struct lt_call call = { .kind = c->y_dtype == DT_F32 ? PRODUCT_FWD_F32 : PRODUCT_FWD,
                                .rows = c->n,
                                .n_out = c->n_out,
                                .n_in = c->n_in,
                                .split = 1,
                                .weight = r.weights,
                                .x = r.x,
                                .bias = r.bias,
                                .y = r.y,
                                .x2 = NULL,
                                .ldx = c->n_in,
                                .ldy = c->n_out };
        lt_setup_make(&setup, &call);
        int n = lt_candidates(cu, &setup, FREE_ALL, found);
        ok = n > 0 || error_set(err, ERR_UNSUPPORTED, "cuBLASLt has no algorithm for %" PRId64 " x %" PRId64, c->n_out, c->n_in);
        c->best_us = INFINITY;
        for (int i = 0; ok && i < n; i++) {
            double us = INFINITY;
            struct way way = { 0, found[i] };
            r.way = &way;
            ok = cost_time(cu, &r, &us, err);
            c->best_us = us < c->best_us ? us : c->best_us;
        }
    }
    cost_close(cu, &r);
    return ok;
}
