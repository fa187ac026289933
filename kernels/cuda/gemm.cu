/* gemm.cu - matrix products: cuBLASLt under the rule that a row's bits never depend on the batch, and a plain kernel
 *
 * The rule (measured on an H200 with cuBLASLt 13.1): with every reduction scheme forbidden, all algorithms offered add up in
 * the same order, except ids 13 and 16. For narrow deep weights the heuristic would choose those or slow ones, so such weights get
 * a fixed split of K: S strided products into fp32 partials, added in order by the next kernel. S depends only on the weight.
 * gemm_choose.cu chooses an algorithm for each (shape, rows rounded up to a power of two), among gemm_lt.cu's and the kernels of
 * gemm_few.cu. Backward products need no such rule, only the same bits in each run: those of the heuristic's choice without in-place reduction
 * for each power of two of rows; where devices have slices of the weights, an algorithm that keeps the order, too. Where rows are many,
 * gemm_faster.cu finds the fastest algorithm of these bits. What none of these can take goes to gemm_plain.cu.
 *
 * A weight with parts has that many strided products, added as a tree. So has linear_bwd_tree, one product for each group of rows of each part,
 * unless gemm_tree.cu adds them in its registers. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_few.cuh"
#include "kernels/cuda/meet.cuh"
#include <inttypes.h>

/* y (rows, n_out) = sum of S fp32 partials (S, rows, n_out) in order, + bias. */
template <typename Y>
__global__ static void split_sum_kernel(Y *__restrict__ y, int64_t ldy, const float *__restrict__ part, const bf16 *__restrict__ bias,
                                        int64_t rows, int64_t n_out, int split)
{
    int64_t k = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4, i = k / n_out, j = k % n_out;
    if (i >= rows)
        return;
    float sum[4] = { 0, 0, 0, 0 }, v[4];
    if (bias)
        load_v<bf16, 4>(sum, bias + j);
    for (int s = 0; s < split; s++) {
        load_v<float, 4>(v, part + (s * rows + i) * n_out + j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] += v[e];
    }
    store_v<Y, 4>(y + i * ldy + j, sum);
}

/* y (n, d) = the x as a balanced tree, + bias: V elements a thread. Reads 4 n_x bytes and writes one y per element. */
template <typename Y, typename B, int V> __global__ static void tree_sum_kernel(struct tree_sum a)
{
    int64_t k = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, i = k / a.d, j = k % a.d;
    next_start();
    before_wait();
    if (i >= a.n)
        return;
    float x[SUM_PARTS_MAX][V], bias[V];
#pragma unroll
    for (int p = 0; p < SUM_PARTS_MAX; p++)
        if (p < a.n_x)
            load_v<float, V>(x[p], a.x[p] + i * a.ldx + j);
#pragma unroll
    for (int step = 1; step < SUM_PARTS_MAX; step *= 2)
#pragma unroll
        for (int p = 0; p < SUM_PARTS_MAX; p += 2 * step)
            if (p + step < a.n_x)
#pragma unroll
                for (int e = 0; e < V; e++)
                    x[p][e] += x[p + step][e];
    if (a.bias) {
        load_v<B, V>(bias, (const B *)a.bias + j);
#pragma unroll
        for (int e = 0; e < V; e++)
            x[0][e] += bias[e];
    }
    store_v<Y, V>((Y *)a.y + i * a.ldy + j, x[0]);
}
template <typename Y, typename B> static bool tree_launch(struct cuda_device *cu, const struct tree_sum *a, struct error *err)
{
    bool wide = a->d % 4 == 0 && a->ldx % 4 == 0 && a->ldy % 4 == 0;
    return launch_early(cu, wide ? tree_sum_kernel<Y, B, 4> : tree_sum_kernel<Y, B, 1>, blocks_for(a->n * a->d, (wide ? 4 : 1) * 256), 256,
                        0, "tree_sum", err, *a);
}
__global__ static void meet_kernel(struct step_meeting m, uint32_t *late)
{
    next_start();
    before_wait();
    devices_meet(m, 0, late);
}
/* Wait for the other devices, or leave that and the sum to the norm that comes next. */
static bool tree_meet(struct cuda_device *cu, const struct tree_sum *a, bool *left, struct error *err)
{
    if (a->for_norm && a->ldx == a->d && a->ldy == a->d && a->y_dtype == a->dtype && norm_is_few(a->n, a->d, a->d)) {
        *left = true;
        cu->unfinished = unfinished{ a->y, NULL, a->bias, a->n_x, {}, *a->meet };
        memcpy(cu->unfinished.x, a->x, sizeof cu->unfinished.x);
        return true;
    }
    return launch_early(cu, meet_kernel, 1, 32, 0, "tree_sum", err, *a->meet, cu->late);
}
extern "C" bool tree_sum_cuda(struct device *dev, const struct tree_sum *args, struct error *err)
{
    struct tree_sum a = *args;
    struct cuda_device *cu = cuda_of(dev);
    bool left = false;
    a.ldx = a.ldx ? a.ldx : a.d;
    a.ldy = a.ldy ? a.ldy : a.d;
    cu->unfinished.y = NULL;
    if (!tree_sum_check(&a, err))
        return false;
    if (a.n == 0)
        return true;
    if (a.meet && (!tree_meet(cu, &a, &left, err) || left))
        return left;
    return a.y_dtype == DT_BF16 ? tree_launch<bf16, bf16>(cu, &a, err)
           : a.dtype == DT_BF16 ? tree_launch<float, bf16>(cu, &a, err)
                                : tree_launch<float, float>(cu, &a, err);
}
/* The parts of a product, one after the other in memory. */
static bool parts_sum(struct device *dev, const struct linear_fwd *a, const float *part, int64_t ldy, struct error *err)
{
    const struct weight *w = a->w;
    struct tree_sum sum = {};
    sum.y = a->y;
    sum.bias = a->bias;
    sum.n_x = w->parts;
    sum.n = a->n;
    sum.d = w->n_out;
    sum.ldy = ldy;
    sum.y_dtype = a->y_dtype;
    sum.dtype = w->dtype;
    for (int p = 0; p < w->parts; p++)
        sum.x[p] = part + p * a->n * w->n_out;
    return tree_sum_cuda(dev, &sum, err);
}

/* Nothing to prepare: products read the weight directly, and product_choose or their first use chooses algorithms. */
bool cuda_weight_init(struct device *, struct weight *, struct error *)
{
    return true;
}

void cuda_weight_release(struct device *, struct weight *)
{
}

bool cuda_weight_refresh(struct device *, struct weight *, struct error *)
{
    return true;
}

/* linear_fwd over k columns from first on by the plain kernel, without bias. */
static struct plain_product plain_fwd(const struct linear_fwd *a, int64_t ldx, int64_t first, int64_t k, void *c, enum dtype c_dtype,
                                      int64_t ldc)
{
    const struct weight *w = a->w;
    size_t at = (size_t)first * dtype_size(w->dtype);
    struct plain_product p = {};
    p.c = c;
    p.c_dtype = c_dtype;
    p.dtype = w->dtype;
    p.ldc = ldc;
    p.a = (const char *)a->x + at;
    p.b = (const char *)w->data + at;
    p.am = ldx;
    p.ak = 1;
    p.bn = w->n_in;
    p.bk = 1;
    p.m = a->n;
    p.n = w->n_out;
    p.k = k;
    return p;
}

/* linear_fwd in parts by the plain kernel. */
static bool plain_parts(struct device *dev, const struct linear_fwd *a, int64_t ldx, int64_t ldy, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    const struct weight *w = a->w;
    int64_t k = w->n_in / w->parts;
    float *part = a->in_parts ? (float *)a->y
                              : (float *)cuda_scratch(cu, (size_t)w->parts * (size_t)a->n * (size_t)w->n_out * 4, "linear_fwd", err);
    if (!part)
        return false;
    for (int i = 0; i < w->parts; i++) {
        struct plain_product p = plain_fwd(a, ldx, i * k, k, part + i * a->n * w->n_out, DT_F32, w->n_out);
        if (!plain_run(cu, &p, "linear_fwd", err))
            return false;
    }
    return a->in_parts || parts_sum(dev, a, part, ldy, err);
}

static bool plain_whole(struct cuda_device *cu, const struct linear_fwd *a, int64_t ldx, int64_t ldy, struct error *err)
{
    struct plain_product p = plain_fwd(a, ldx, 0, a->w->n_in, a->y, a->y_dtype, ldy);
    p.bias = a->bias;
    return plain_run(cu, &p, "linear_fwd", err);
}

bool fwd_by_plan(struct device *dev, const struct linear_fwd *a, struct gemm_plan *p, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    const struct weight *w = a->w;
    struct lt_call call = { .kind = p->kind,
                            .rows = a->n,
                            .n_out = w->n_out,
                            .n_in = w->n_in,
                            .split = p->split,
                            .weight = w->data,
                            .x = a->x,
                            .bias = p->split == 1 ? a->bias : NULL,
                            .y = a->y,
                            .ldx = a->ldx,
                            .ldy = a->ldy };
    float *part = NULL;
    if (p->split > 1) {
        part = a->in_parts ? (float *)a->y
                           : (float *)cuda_scratch(cu, (size_t)p->split * (size_t)a->n * (size_t)w->n_out * 4, "linear_fwd", err);
        if (!part)
            return false;
        call.y = part;
        call.ldy = w->n_out;
    }
    int bucket = row_bucket(a->n);
    struct way *way = &p->way[bucket];
    if (!p->known[bucket] && !way->few && !cu->base.recording) {
        p->known[bucket] = true;
        lt_faster(cu, &call, FREE_NOT, &way->algo);
    }
    if (a->for_gate && way->few > 1 && !part && a->y_dtype == DT_BF16) {    // the first form is too narrow for both
        cu->gate = *a;
        return true;
    }
    if (!way_run(cu, &call, way, err))
        return false;
    if (!part || w->parts > 1)
        return !part || a->in_parts || parts_sum(dev, a, part, a->ldy, err);
    int most = a->n > TIMED_ROWS ? 2 : NORM_PARTS_MAX;    // more parts of many rows take the norm's registers
    if (a->for_norm && a->y_dtype == DT_BF16 && a->ldy == w->n_out && p->split <= most) {
        cu->unfinished = unfinished{ a->y, part, a->bias, p->split };
        return true;
    }
    unsigned grid = blocks_for(a->n * w->n_out, 4 * 256);
    if (a->y_dtype == DT_F32)
        split_sum_kernel<float><<<grid, 256, 0, cu->stream>>>((float *)a->y, a->ldy, part, (const bf16 *)a->bias, a->n, w->n_out, p->split);
    else
        split_sum_kernel<bf16><<<grid, 256, 0, cu->stream>>>((bf16 *)a->y, a->ldy, part, (const bf16 *)a->bias, a->n, w->n_out, p->split);
    return launch_ok("linear_fwd", err);
}

extern "C" bool linear_fwd_cuda(struct device *dev, const struct linear_fwd *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    const struct weight *w = a->w;
    int64_t ldx = a->ldx ? a->ldx : w->n_in, ldy = a->ldy ? a->ldy : w->n_out;
    cu->unfinished.y = NULL;
    cu->gate.y = NULL;
    if (a->n == 0)
        return true;
    struct gemm_plan *p = NULL;
    if (fits_lt(w) && ldx % 8 == 0 && ldy % 8 == 0) {    // a slice of an odd vocabulary's rows is computed as the whole is
        p = plan_ready(cu, a->y_dtype == DT_F32 ? PRODUCT_FWD_F32 : PRODUCT_FWD, w->n_out, w->n_in, w->parts, a->bias != NULL, err);
        if (!p)
            return false;
    }
    if (!p || p->plain)
        return w->parts > 1 ? plain_parts(dev, a, ldx, ldy, err) : plain_whole(cu, a, ldx, ldy, err);
    struct linear_fwd full = *a;
    bool done = false;
    full.ldx = ldx;
    full.ldy = ldy;
    return (a->in_parts || (w->parts <= 1 && p->split <= 2) || fwd_in_registers(cu, &full, p, &done, err))
           && (done || fwd_by_plan(dev, &full, p, err));
}

bool cuda_gate_run(struct cuda_device *cu, const struct swiglu_fwd *a, struct error *err)
{
    struct linear_fwd gate = cu->gate;
    const struct weight *w = gate.w;
    cu->gate.y = NULL;
    struct gemm_plan *p = plan_ready(cu, PRODUCT_FWD, w->n_out, w->n_in, w->parts, gate.bias != NULL, err);
    if (!p)
        return false;
    struct few_call few = {};
    few.weight = w->data;
    few.x = gate.x;
    few.bias = gate.bias;
    few.y = a->y;
    few.rows = gate.n;
    few.n_out = w->n_out;
    few.n_in = w->n_in;
    few.ldx = gate.ldx ? gate.ldx : w->n_in;
    few.ldy = a->f;
    few.split = 1;
    few.pair = true;
    few.act = a->act;
    return few_run(cu, &few, p->way[row_bucket(gate.n)].few - 1, err);
}

/* A backward product: the heuristic's best for this power of two of rows, requested once. */
static bool bwd_run(struct cuda_device *cu, const struct lt_call *call, const char *op, struct error *err)
{
    struct gemm_plan *p = plan_ready(cu, call->kind, call->n_out, call->n_in, call->any_cut, false, err);
    struct lt_setup setup;
    int bucket = row_bucket(call->rows);
    if (!p)
        return false;
    lt_setup_make(&setup, call);
    if (!p->known[bucket]) {
        struct lt_call full = *call;
        struct lt_setup ask;
        cublasLtMatmulAlgo_t found[CANDIDATES];
        full.rows = (int64_t)1 << bucket;
        lt_setup_make(&ask, &full);
        if (lt_candidates(cu, &ask, call->any_cut ? FREE_NOT : FREE_ORDER, found) == 0)
            return error_set(err, ERR_UNSUPPORTED, "%s: cuBLASLt has no algorithm for %" PRId64 " x %" PRId64, op, call->n_out, call->n_in);
        p->way[bucket].algo = found[0];
        p->known[bucket] = true;
        lt_faster(cu, call, call->any_cut ? FREE_NOT : FREE_ORDER, &p->way[bucket].algo);
    }
    return lt_ok(lt_multiply(cu, &setup, &p->way[bucket].algo), op, err);
}

extern "C" bool linear_bwd_x_cuda(struct device *dev, const struct linear_bwd_x *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    const struct weight *w = a->w;
    int64_t n_k = a->n_k ? a->n_k : w->n_out, ldx = a->ldx ? a->ldx : w->n_in, lddy = a->lddy ? a->lddy : n_k;
    const char *data = (const char *)w->data + (size_t)(a->first * w->n_in) * dtype_size(w->dtype);
    if (a->n == 0)
        return true;
    if ((a->n_k == 0 && !fits_lt(w)) || w->dtype == DT_F32 || w->n_in % 8 || n_k % 8 || a->first % 8 || ldx % 8 || lddy % 8) {
        struct plain_product p = { .c = a->dx,
                                   .c_dtype = a->f32 ? DT_F32 : w->dtype,
                                   .dtype = w->dtype,
                                   .ldc = ldx,
                                   .a = a->dy,
                                   .b = data,
                                   .bias = NULL,
                                   .am = lddy,
                                   .ak = 1,
                                   .bn = 1,
                                   .bk = w->n_in,
                                   .m = a->n,
                                   .n = w->n_in,
                                   .k = n_k,
                                   .accumulate = a->accumulate };
        return plain_run(cu, &p, "linear_bwd_x", err);
    }
    struct lt_call call = { .kind = a->f32 ? PRODUCT_BWD_X_F32 : PRODUCT_BWD_X,
                            .rows = a->n,
                            .n_out = n_k,
                            .n_in = w->n_in,
                            .split = 1,
                            .weight = data,
                            .x = a->dy,
                            .bias = NULL,
                            .y = a->dx,
                            .x2 = NULL,
                            .ldx = lddy,
                            .ldy = ldx,
                            .accumulate = a->accumulate,
                            .any_cut = w->parts > 0 };
    return bwd_run(cu, &call, "linear_bwd_x", err);
}

/* linear_bwd_tree part by part. */
bool bwd_by_parts(struct device *dev, const struct linear_bwd_tree *a, struct error *err)
{
    static const struct tree_ways ways = { linear_bwd_x_cuda, tree_sum_cuda, mem_fill_cuda };
    return linear_bwd_tree_steps(dev, a, &ways, err);
}
bool cuda_rows_sum(struct cuda_device *cu, float *y, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t d, struct error *err);
extern "C" bool linear_bwd_w_cuda(struct device *dev, const struct linear_bwd_w *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    int64_t ldx = a->ldx ? a->ldx : a->n_in, lddy = a->lddy ? a->lddy : a->n_out;
    if (a->n == 0)
        return !a->set || cuda_ok(cudaMemsetAsync(a->dw, 0, (size_t)(a->n_out * a->n_in) * 4, cu->stream), "linear_bwd_w", err);
    if (a->dbias && !cuda_rows_sum(cu, a->dbias, a->dy, a->dtype, lddy, a->n, a->n_out, err))
        return false;
    if (a->dtype == DT_F32 || a->n_out % 8 || a->n_in % 8 || ldx % 8 || lddy % 8) {
        struct plain_product p = { .c = a->dw,
                                   .c_dtype = DT_F32,
                                   .dtype = a->dtype,
                                   .ldc = a->n_in,
                                   .a = a->dy,
                                   .b = a->x,
                                   .bias = NULL,
                                   .am = 1,
                                   .ak = lddy,
                                   .bn = 1,
                                   .bk = ldx,
                                   .m = a->n_out,
                                   .n = a->n_in,
                                   .k = a->n,
                                   .accumulate = !a->set };
        return plain_run(cu, &p, "linear_bwd_w", err);
    }
    struct lt_call call = { .kind = PRODUCT_BWD_W,
                            .rows = a->n,
                            .n_out = a->n_out,
                            .n_in = a->n_in,
                            .split = 1,
                            .weight = NULL,
                            .x = a->x,
                            .bias = NULL,
                            .y = a->dw,
                            .x2 = a->dy,
                            .ldx = ldx,
                            .ldy = lddy,
                            .accumulate = !a->set,
                            .any_cut = a->any_cut };
    return bwd_run(cu, &call, "linear_bwd_w", err);
}
