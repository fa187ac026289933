/* experts.cu - choosing experts for rows, the list of pairs by expert, and the sum of what experts give
 *
 * A row is a warp or a block, and its sums are trees that depend only on its length. The list of pairs is made without atomics: each
 * expert's block counts the pairs before its own, and places its own in their order. */
#include "kernels/cuda/cuda.h"
#include <inttypes.h>
#define ROUTE_WARPS 4
#define LIST_WARPS 32
#define PAIR_THREADS 128
#define ALL 0xffffffffu

static bool sizes_ok(const char *op, int64_t n_expert, int64_t k, struct error *err)
{
    return (n_expert >= 1 && n_expert <= ROUTE_EXPERTS_MAX && k >= 1 && k <= n_expert)
           || error_set(err, ERR_SHAPE, "%s: %" PRId64 " of %" PRId64 " experts; up to %d are possible", op, k, n_expert,
                        ROUTE_EXPERTS_MAX);
}

/* --- choosing --------------------------------------------------------------------------------------------------------- */
/* The scores of a row whose expert lane + 32 i is a lane's i-th, over the experts of `in`, bits of i. */
template <int PER> __device__ static inline void scores_get(float (&s)[PER], const float (&logit)[PER], uint32_t in, enum route_kind kind)
{
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++)
        most = in >> i & 1 ? fmaxf(most, logit[i]) : most;
    most = warp_max(most);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        float x = kind == ROUTE_SIGMOID ? 1.0f / (1.0f + expf(-logit[i])) : expf(logit[i] - most);
        s[i] = in >> i & 1 ? x : 0;
        sum += s[i];
    }
    if (kind == ROUTE_SIGMOID)
        return;
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < PER; i++)
        s[i] /= sum;
}
/* A lane's sum over its experts of `in`, and over the lanes. */
template <int PER> __device__ static inline float sum_of(const float (&s)[PER], uint32_t in)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++)
        sum += in >> i & 1 ? s[i] : 0;
    return warp_sum(sum);
}
/* A number in whose order floats are; equal zeros are equal, and a NaN is below all. */
__device__ static inline uint32_t order_of(float x)
{
    uint32_t u = __float_as_uint(x == 0 ? 0.0f : x);
    return isnan(x) ? 0 : u >> 31 ? ~u : u | 1u << 31;
}
template <int PER> __device__ static inline void row_load(float (&v)[PER], uint32_t *there, const float *row, int n)
{
    *there = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int e = (int)threadIdx.x % 32 + 32 * i;
        v[i] = e < n ? row[e] : 0;
        *there |= (uint32_t)(e < n) << i;
    }
}
/* The k of a row with the largest values, among equals the lower id: bits of a lane's experts. */
template <int PER> __device__ static inline uint32_t largest_get(const float (&value)[PER], uint32_t there, int k)
{
    int lane = (int)threadIdx.x % 32;
    uint32_t chosen = 0;
    for (int j = 0; j < k; j++) {
        uint64_t best = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            uint64_t key = (uint64_t)order_of(value[i]) << 32 | (uint32_t) ~(lane + 32 * i);
            if ((there & ~chosen) >> i & 1 && key > best)
                best = key;
        }
#pragma unroll
        for (int w = 16; w > 0; w /= 2) {
            uint64_t other = __shfl_xor_sync(ALL, best, w);
            best = other > best ? other : best;
        }
        int e = (int)~(uint32_t)best;
        if (e % 32 == lane)
            chosen |= 1u << e / 32;
    }
    return chosen;
}
template <int PER> __global__ static void route_fwd_kernel(struct route_fwd a)
{
    int64_t row = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, before = 0;
    bool over_chosen = a.kind == ROUTE_SOFTMAX && a.normalise;
    float logit[PER], score[PER], value[PER];
    uint32_t there;
    next_start();
    before_wait();
    if (row >= a.n)
        return;
    row_load<PER>(logit, &there, a.logits + row * a.n_expert, (int)a.n_expert);
    scores_get<PER>(score, logit, there, a.kind);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        value[i] = a.kind == ROUTE_SOFTMAX && !a.bias ? logit[i] : score[i];
        if (a.bias && there >> i & 1)
            value[i] += a.bias[lane + 32 * i];
    }
    uint32_t chosen = largest_get<PER>(value, there, (int)a.k);
    if (over_chosen)
        scores_get<PER>(score, logit, chosen, a.kind);
    float by = a.normalise && !over_chosen ? sum_of<PER>(score, chosen) + 1e-20f : 1.0f;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        bool own = chosen >> i & 1;
        uint32_t all = __ballot_sync(ALL, own);
        int64_t at = row * a.k + before + __popc(all & ((1u << lane) - 1));
        if (own) {
            a.expert[at] = lane + 32 * i;
            a.weight[at] = score[i] / by * a.scale;
        }
        before += __popc(all);
    }
}
/* The formulas are those of kernels/ref/experts.c. */
template <typename T, int PER> __global__ static void route_bwd_kernel(struct route_bwd a)
{
    int64_t row = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    bool over_chosen = a.kind == ROUTE_SOFTMAX && a.normalise, over_all = a.kind == ROUTE_SOFTMAX && !a.normalise;
    float logit[PER], score[PER], g[PER], dots[PER];
    uint32_t there, chosen = 0;
    if (row >= a.n)
        return;
    row_load<PER>(logit, &there, a.logits + row * a.n_expert, (int)a.n_expert);
#pragma unroll
    for (int i = 0; i < PER; i++)
        g[i] = 0;
    for (int j = 0; j < a.k; j++) {
        int e = a.expert[row * a.k + j];
        float dw = a.scale * a.dweight[row * a.k + j];
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (e == lane + 32 * i) {
                g[i] = dw;
                chosen |= 1u << i;
            }
    }
    scores_get<PER>(score, logit, over_chosen ? chosen : there, a.kind);
    float by = a.kind == ROUTE_SIGMOID && a.normalise ? sum_of<PER>(score, chosen) + 1e-20f : 1.0f;
#pragma unroll
    for (int i = 0; i < PER; i++)
        dots[i] = g[i] * score[i] / by;
    float dot = sum_of<PER>(dots, chosen);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        float s = score[i], dl = over_all ? -s * dot : 0;
        if (chosen >> i & 1)
            dl = a.kind == ROUTE_SOFTMAX ? s * (g[i] - dot) : s * (1.0f - s) * (g[i] - (a.normalise ? dot : 0.0f)) / by;
        if (there >> i & 1)
            ((T *)a.dlogits)[row * a.n_expert + lane + 32 * i] = from_float<T>(dl);
    }
}
extern "C" bool route_fwd_cuda(struct device *dev, const struct route_fwd *a, struct error *err)
{
    auto *kernel = a->n_expert <= 64 ? route_fwd_kernel<2> : a->n_expert <= 128 ? route_fwd_kernel<4> : route_fwd_kernel<32>;
    if (!sizes_ok("route_fwd", a->n_expert, a->k, err))
        return false;
    return a->n == 0 || launch_early(cuda_of(dev), kernel, blocks_for(a->n, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, "route_fwd", err, *a);
}
template <typename T> static bool route_bwd_run(struct cuda_device *cu, const struct route_bwd *a, struct error *err)
{
    auto *kernel = a->n_expert <= 64 ? route_bwd_kernel<T, 2> : a->n_expert <= 128 ? route_bwd_kernel<T, 4> : route_bwd_kernel<T, 32>;
    kernel<<<blocks_for(a->n, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, cu->stream>>>(*a);
    return launch_ok("route_bwd", err);
}
extern "C" bool route_bwd_cuda(struct device *dev, const struct route_bwd *a, struct error *err)
{
    if (!sizes_ok("route_bwd", a->n_expert, a->k, err))
        return false;
    return a->n == 0 || BY_TYPE(a->dtype, route_bwd_run, cuda_of(dev), a, err);
}

/* --- the list ----------------------------------------------------------------------------------------------------------- */
/* A block is an expert, and each of its warps has a range of the pairs. */
__global__ static void __launch_bounds__(32 * LIST_WARPS) group_rows_kernel(struct group_rows a)
{
    __shared__ int less_of[LIST_WARPS], own_of[LIST_WARPS];
    int expert = (int)blockIdx.x, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_warp = (int)blockDim.x / 32;
    int pairs = (int)(a.n * a.k), each = (pairs + 32 * n_warp - 1) / (32 * n_warp) * 32;
    int from = min(warp * each, pairs), to = min(from + each, pairs), less = 0, own = 0;
    next_start();
    before_wait();
#pragma unroll 4
    for (int p = from + lane; p < to; p += 32) {
        less += a.expert[p] < expert;
        own += a.expert[p] == expert;
    }
    less = __reduce_add_sync(ALL, less);
    own = __reduce_add_sync(ALL, own);
    if (lane == 0) {
        less_of[warp] = less;
        own_of[warp] = own;
    }
    __syncthreads();
    int at = 0, all = 0;
    for (int w = 0; w < n_warp; w++) {
        at += less_of[w] + (w < warp ? own_of[w] : 0);
        all += own_of[w];
    }
    if (threadIdx.x == 0) {
        a.first[expert] = at;    // the first warp has none of its expert's before it
        if (expert == a.n_expert - 1)
            a.first[a.n_expert] = pairs;
        if (a.load)
            a.load[expert] += all;
    }
    for (int first = from; first < to; first += 32) {
        int p = first + lane;
        bool here = p < to && a.expert[p] == expert;
        uint32_t found = __ballot_sync(ALL, here);
        if (here) {
            int place = at + __popc(found & ((1u << lane) - 1));
            a.place[p] = place;
            a.row[place] = p / (int)a.k;
        }
        at += __popc(found);
    }
}
extern "C" bool group_rows_cuda(struct device *dev, const struct group_rows *a, struct error *err)
{
    if (!sizes_ok("group_rows", a->n_expert, a->k, err))
        return false;
    if (a->n * a->k >= INT32_MAX / 2)
        return error_set(err, ERR_SHAPE, "group_rows: %" PRId64 " rows for %" PRId64 " experts each in one call", a->n, a->k);
    int warps = (int)MIN((a->n * a->k + 127) / 128, (int64_t)LIST_WARPS);    // four steps each, and more only where pairs are many
    return launch_early(cuda_of(dev), group_rows_kernel, dim3((unsigned)a->n_expert), dim3((unsigned)(32 * MAX(warps, 1))), 0, "group_rows",
                        err, *a);
}

/* --- the sum ------------------------------------------------------------------------------------------------------------ */
template <typename T, int V> __global__ static void combine_fwd_kernel(struct combine_fwd a)
{
    int64_t i = blockIdx.x, j = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
    float sum[V] = {}, x[V];
    next_start();
    before_wait();
    if (j >= a.d)
        return;
#pragma unroll 4
    for (int64_t p = i * a.k; p < (i + 1) * a.k; p++) {
        float w = a.weight ? a.weight[p] : 1.0f;
        load_v<T, V>(x, (const T *)a.x + a.place[p] * a.d + j);
#pragma unroll
        for (int e = 0; e < V; e++)
            sum[e] = __fmaf_rn(w, x[e], sum[e]);
    }
    store_v<T, V>((T *)a.y + i * a.d + j, sum);
}
template <typename T> static bool combine_fwd_run(struct cuda_device *cu, const struct combine_fwd *a, struct error *err)
{
    int v = a->d % 8 == 0 ? 8 : 1;
    return launch_early(cu, v == 8 ? combine_fwd_kernel<T, 8> : combine_fwd_kernel<T, 1>,
                        dim3((unsigned)a->n, blocks_for(a->d, v * PAIR_THREADS)), PAIR_THREADS, 0, "combine_fwd", err, *a);
}
extern "C" bool combine_fwd_cuda(struct device *dev, const struct combine_fwd *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, combine_fwd_run, cuda_of(dev), a, err);
}
template <typename T, int V> __global__ static void combine_bwd_kernel(struct combine_bwd a)
{
    __shared__ float tmp[33];
    int64_t p = blockIdx.x, at = a.place[p] * a.f;
    float sum = 0, w = a.weight[p], x[V], dx[V];
    for (int64_t j = (int64_t)threadIdx.x * V; j < a.f; j += (int64_t)blockDim.x * V) {
        load_v<T, V>(x, (const T *)a.x + at + j);
        load_v<T, V>(dx, (const T *)a.dx + at + j);
#pragma unroll
        for (int e = 0; e < V; e++) {
            sum = __fmaf_rn(dx[e], x[e], sum);
            x[e] *= w;
            dx[e] *= w;
        }
        store_v<T, V>((T *)a.x + at + j, x);
        store_v<T, V>((T *)a.dx + at + j, dx);
    }
    sum = block_sum(sum, tmp);
    if (threadIdx.x == 0)
        a.dweight[p] = sum;
}
template <typename T> static bool combine_bwd_run(struct cuda_device *cu, const struct combine_bwd *a, struct error *err)
{
    auto *kernel = a->f % 8 == 0 ? combine_bwd_kernel<T, 8> : combine_bwd_kernel<T, 1>;
    kernel<<<(unsigned)(a->n * a->k), PAIR_THREADS, 0, cu->stream>>>(*a);
    return launch_ok("combine_bwd", err);
}
extern "C" bool combine_bwd_cuda(struct device *dev, const struct combine_bwd *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, combine_bwd_run, cuda_of(dev), a, err);
}
