/* rope.cuh - rotation of one head of a row, by one warp: the same in rope_fwd and in decoding's attention
 *
 * Lane l has the pairs l, l + 32, ... of the head's hd / 2. */
#pragma once
#include "kernels/cuda/cuda.h"

/* What a norm multiplies by, given its weight. */
__device__ static inline float norm_weight(float w, enum norm_form form)
{
    return form == NORM_GEMMA ? 1.0f + w : w;
}
/* The two dimensions of pair j, of hd / 2: those that turn together, or two of those that stay. */
struct pair {
    int lo, hi;
    bool turns;
};
__device__ static inline pair pair_of(int j, int hd, int rot)
{
    int half = rot / 2;
    return j < half ? pair{ j, half + j, true } : pair{ half + j, hd / 2 + j, false };
}
/* Turn a pair by the angle with cosine c and sine s: as written, whatever is around it, since the same pair is turned in several kernels. */
__device__ static inline void pair_turn(float &lo, float &hi, float c, float s)
{
    float x = lo, y = hi;
    lo = __fmaf_rn(x, c, -__fmul_rn(y, s));
    hi = __fmaf_rn(y, c, __fmul_rn(x, s));
}
/* N pairs of head h of a row of qkv, in; missing ones are 0. */
template <int N, typename T> __device__ static inline void head_load(float (&lo)[N], float (&hi)[N], const T *in, int hd, int rot)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N; k++) {
        int j = lane + 32 * k;
        pair p = pair_of(j, hd, rot);
        lo[k] = j < hd / 2 ? to_float(in[p.lo]) : 0;
        hi[k] = j < hd / 2 ? to_float(in[p.hi]) : 0;
    }
}
/* Cosines and sines of position pos; false when it has none. */
template <int N> __device__ static inline bool head_angles(float (&c)[N], float (&s)[N], const rope_fwd &a, int64_t pos)
{
    int half = a.rot / 2, lane = threadIdx.x % 32;
    if (pos < 0 || pos >= a.n_pos)
        return false;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (lane + 32 * k < half) {
            c[k] = a.cos[pos * half + lane + 32 * k];
            s[k] = a.sin[pos * half + lane + 32 * k];
        }
    return true;
}
/* q/k norm, then rotation by the angles of the row's position, if it has any. */
template <typename T, int N>
__device__ static inline void head_turn(float (&lo)[N], float (&hi)[N], const rope_fwd &a, int h, const float (&c)[N], const float (&s)[N],
                                        bool turns)
{
    int n_q = a.heads.n_q, n_kv = a.heads.n_kv, hd = a.heads.hd, half = hd / 2, lane = threadIdx.x % 32;
    const T *norm = (const T *)(h < n_q ? a.q_norm : h < n_q + n_kv ? a.k_norm : NULL);
    if (norm) {
        float square = 0;
#pragma unroll
        for (int k = 0; k < N; k++)
            square = __fmaf_rn(hi[k], hi[k], __fmaf_rn(lo[k], lo[k], square));
        float rstd = 1.0f / sqrtf(warp_sum(square) / (float)hd + a.eps);
#pragma unroll
        for (int k = 0; k < N; k++) {
            int j = lane + 32 * k;
            pair p = pair_of(j, hd, a.rot);
            lo[k] = j < half ? lo[k] * rstd * norm_weight(to_float(norm[p.lo]), a.form) : 0;
            hi[k] = j < half ? hi[k] * rstd * norm_weight(to_float(norm[p.hi]), a.form) : 0;
        }
    }
    if (h >= n_q + n_kv || !turns)
        return;
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (lane + 32 * k >= a.rot / 2)
            break;
        pair_turn(lo[k], hi[k], c[k], s[k]);
    }
}
template <typename T, int N> __device__ static inline void head_store(T *out, const float (&lo)[N], const float (&hi)[N], int hd, int rot)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N; k++) {
        int j = lane + 32 * k;
        if (j >= hd / 2)
            break;
        pair p = pair_of(j, hd, rot);
        out[p.lo] = from_float<T>(lo[k]);
        out[p.hi] = from_float<T>(hi[k]);
    }
}
/* Where K (or, h counting on, V) of a row goes in the pool, or NULL. */
template <typename T> __device__ static inline T *head_slot(const rope_fwd &a, int h, int64_t slot)
{
    if (!a.kv || h < a.heads.n_q || slot < 0)
        return NULL;
    int64_t page = slot / CUDA_PAGE_TOK, tok = slot % CUDA_PAGE_TOK;    // K of all heads, then V of all heads
    return (T *)a.kv + ((page * 2 * a.heads.n_kv + (h - a.heads.n_q)) * CUDA_PAGE_TOK + tok) * a.heads.hd;
}
