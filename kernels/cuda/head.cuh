/* head.cuh - statistics of a row of logits, as logprob_fwd and sample_fwd compute them
 *
 * HEAD_THREADS threads per row; element j always belongs to thread j / 4 mod HEAD_THREADS (or j mod HEAD_THREADS when rows are not
 * 16-byte multiples), so a row's sums depend on its length alone: equal bits in both. */
#pragma once
#include <inttypes.h>
#include "kernels/cuda/cuda.h"
#define HEAD_THREADS 512
#define HEAD_WARPS (HEAD_THREADS / 32)

/* block_sum and block_max over the first HEAD_THREADS threads of a block, whose others have ended. */
__device__ static inline float head_sum(float x, float *tmp)
{
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0)
        tmp[threadIdx.x / 32] = x;
    __syncthreads();
    float all = 0;
    for (int i = 0; i < HEAD_WARPS; i++)
        all += tmp[i];
    __syncthreads();
    return all;
}
__device__ static inline float head_max(float x, float *tmp)
{
    x = warp_max(x);
    if (threadIdx.x % 32 == 0)
        tmp[threadIdx.x / 32] = x;
    __syncthreads();
    float all = tmp[0];
    for (int i = 1; i < HEAD_WARPS; i++)
        all = fmaxf(all, tmp[i]);
    __syncthreads();
    return all;
}

struct row_stat {
    float top;         // largest z = logit inv_t
    float sum;         // of e^(z - top)
    float weighted;    // of e^(z - top) (z - top)
};
/* The largest logit, and the lowest index that has it. */
struct row_top {
    float x;
    int id;
};
/* A row's statistics and its largest logit, from one pass over it. */
struct row_seen {
    row_stat stat;
    row_top best;
};
#define SEE_EACH 16    // elements that a thread reads before it works on them
/* What a thread has seen of a row: sums are of e^(z - best.x inv_t). */
struct own_seen {
    row_top best;
    float sum, weighted;
};
/* Bring sums from below a largest z to one that is d lower than what it is then: d of 0 or less. */
__device__ static void seen_lower(own_seen &s, float d)
{
    float shrink = expf(d);
    s.weighted = (s.weighted + s.sum * fmaxf(d, -87.0f)) * shrink;
    s.sum *= shrink;
}
/* Add elements, missing ones -inf; their ids are id(k), rising. */
template <typename F> __device__ static void seen_add(own_seen &s, const float (&x)[SEE_EACH], float inv_t, F id)
{
    float most = x[0];
#pragma unroll
    for (int k = 1; k < SEE_EACH; k++)
        most = fmaxf(most, x[k]);
    if (most > s.best.x) {
        seen_lower(s, __fmaf_rn(s.best.x, inv_t, -(most * inv_t)));
#pragma unroll
        for (int k = SEE_EACH - 1; k >= 0; k--)
            if (x[k] == most)
                s.best = row_top{ most, (int)id(k) };
    }
    if (s.best.x == -INFINITY && most == -INFINITY)
        return;
    float top = s.best.x * inv_t;
#pragma unroll
    for (int k = 0; k < SEE_EACH; k++) {
        float d = __fmaf_rn(x[k], inv_t, -top), e = expf(d);
        s.sum += e;
        s.weighted = __fmaf_rn(e, fmaxf(d, -87.0f), s.weighted);
    }
}
/* The lowest id of the block's that is the best of its thread, whose best logit is the block's highest. */
__device__ static int best_id(row_top own, float highest, int *tmp)
{
    int best = __reduce_min_sync(0xffffffffu, own.x == highest ? own.id : INT32_MAX);
    if (threadIdx.x % 32 == 0)
        tmp[threadIdx.x / 32] = best;
    __syncthreads();
    best = tmp[0];
    for (int w = 1; w < HEAD_WARPS; w++)
        best = min(best, tmp[w]);
    __syncthreads();
    return best == INT32_MAX ? 0 : best;
}
__device__ static row_seen row_see(const float *__restrict__ z, int64_t n, bool wide, float inv_t, float *tmp)
{
    own_seen s = { { -INFINITY, INT32_MAX }, 0, 0 };
    float x[SEE_EACH];
    if (wide) {
        int64_t n4 = n / 4 * 4;
        for (int64_t j0 = (int64_t)threadIdx.x * 4; j0 < n4; j0 += HEAD_THREADS * SEE_EACH) {
#pragma unroll
            for (int g = 0; g < SEE_EACH / 4; g++) {
                int64_t j = j0 + g * HEAD_THREADS * 4;
                float4 v = j < n4 ? *(const float4 *)(z + j) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
                x[4 * g] = v.x, x[4 * g + 1] = v.y, x[4 * g + 2] = v.z, x[4 * g + 3] = v.w;
            }
            seen_add(s, x, inv_t, [&](int k) { return j0 + k / 4 * HEAD_THREADS * 4 + k % 4; });
        }
        if (threadIdx.x < n - n4) {
#pragma unroll
            for (int k = 0; k < SEE_EACH; k++)
                x[k] = k ? -INFINITY : z[n4 + threadIdx.x];
            seen_add(s, x, inv_t, [&](int) { return n4 + threadIdx.x; });
        }
    } else {
        for (int64_t j0 = threadIdx.x; j0 < n; j0 += HEAD_THREADS * SEE_EACH) {
#pragma unroll
            for (int k = 0; k < SEE_EACH; k++)
                x[k] = j0 + k * HEAD_THREADS < n ? z[j0 + k * HEAD_THREADS] : -INFINITY;
            seen_add(s, x, inv_t, [&](int k) { return j0 + k * HEAD_THREADS; });
        }
    }
    row_seen r;
    r.best.x = head_max(s.best.x, tmp);
    r.best.id = best_id(s.best, r.best.x, (int *)tmp);
    r.stat.top = r.best.x * inv_t;
    seen_lower(s, __fmaf_rn(s.best.x, inv_t, -r.stat.top));
    r.stat.sum = head_sum(s.sum, tmp);
    r.stat.weighted = head_sum(s.weighted, tmp);
    return r;
}
__device__ static float stat_lse(const row_stat &r)
{
    return r.top + logf(r.sum);
}
__device__ static float stat_entropy(const row_stat &r)
{
    return logf(r.sum) - r.weighted / r.sum;
}
__device__ static float stat_logp(const row_stat &r, const float *z, int64_t id, int64_t n, float inv_t)
{
    return id < 0 || id >= n ? -INFINITY : __fmaf_rn(z[id], inv_t, -stat_lse(r));
}
static inline bool logits_ok(const char *op, int64_t n, int64_t vocab, int64_t n_live, int64_t ld, struct error *err)
{
    if (n < 0 || n > INT32_MAX || vocab < 1 || vocab > INT32_MAX || n_live < 0 || n_live > vocab || (ld && ld < vocab))
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows of %" PRId64 " logits, %" PRId64 " live, %" PRId64 " apart", op, n, vocab,
                         n_live, ld);
    return true;
}
