/* delta.cuh - what the kernels of the gated delta net share: where rows belong, and one token's step of a state
 *
 * A state's columns do not depend on each other. Four lanes of a warp have a column, and so a warp has eight: lane l has the rows
 * (i / 4) 16 + (l % 4) 4 + i % 4, i = 0, 1, ..., of the column l / 4. A sum over a column's rows is four chains in each lane, the tree over
 * them, and the tree over the four lanes. Nothing in it depends on the number of tokens or sequences of a call. */
#pragma once
#include <inttypes.h>
#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/delta_span.h"
}
#define DELTA_LANES 4    // of a column
#define DELTA_WARP_COLS 8

/* n is checked against what is on the host; which rows are whose is on the device. */
static inline bool delta_cuda_check(const char *op, const struct delta_seqs *of, struct delta_heads h, struct error *err)
{
    bool fits = h.n_k >= 1 && h.n_v >= 1 && h.n_v % h.n_k == 0 && h.d_k >= 1 && h.d_v >= 1 && h.d_k <= DELTA_WIDTH_MAX
                && h.d_v <= DELTA_WIDTH_MAX;
    if (!fits)
        return error_set(err, ERR_SHAPE, "%s: %d key heads of %d and %d value heads of %d; widths go up to %d", op, h.n_k, h.d_k, h.n_v,
                         h.d_v, DELTA_WIDTH_MAX);
    if (of && (of->n < 0 || of->n_seq < 0 || of->n >= INT32_MAX || (!of->seq && of->n != of->n_seq)))
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows of %" PRId64 " sequences", op, of->n, of->n_seq);
    return true;
}
/* Call fn<T, ROWS>(...) for heads of d_k, where a lane has ROWS rows of a column. */
#define BY_KEY_WIDTH(T, d_k, fn, ...) ((d_k) <= 32 ? fn<T, 8>(__VA_ARGS__) : (d_k) <= 128 ? fn<T, 32>(__VA_ARGS__) : fn<T, 64>(__VA_ARGS__))
#ifdef __CUDACC__
__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
__device__ static inline float silu_slope(float x)
{
    float s = sigmoid(x);
    return s * __fmaf_rn(x, 1.0f - s, 1.0f);
}
/* The sequence that row i belongs to. */
__device__ static inline int64_t seq_of_row(const struct delta_seqs &of, int64_t i)
{
    if (!of.seq)
        return i;
    int64_t from = 0, to = of.n_seq;    // seq[from] <= i < seq[to]
    while (to - from > 1) {
        int64_t mid = (from + to) / 2;
        if (of.seq[mid] <= i)
            from = mid;
        else
            to = mid;
    }
    return from;
}
/* The column of the input projection that channel c is. */
__device__ static inline int64_t column_of(struct delta_heads h, int64_t c)
{
    int64_t qk = (int64_t)h.n_k * h.d_k;
    if (!h.by_key)
        return c;
    return c < qk       ? delta_at(h, DELTA_Q, c / h.d_k) + c % h.d_k
           : c < 2 * qk ? delta_at(h, DELTA_K, (c - qk) / h.d_k) + c % h.d_k
                        : delta_at(h, DELTA_V, (c - 2 * qk) / h.d_v) + (c - 2 * qk) % h.d_v;
}
/* The row of a column that is a lane's i-th. */
__device__ static inline int row_of(int i)
{
    return i / 4 * 16 + (int)threadIdx.x % DELTA_LANES * 4 + i % 4;
}
/* A lane's column of a state, of which `at` is the head's element (0, column). */
template <int ROWS> __device__ static inline void column_read(float (&s)[ROWS], const float *at, struct delta_heads h)
{
    int first = row_of(0), rows = h.d_k - first;
    const float *p = at + (int64_t)first * h.d_v;
#pragma unroll
    for (int r = 0; r < ROWS; r += 4, p += 16 * (int64_t)h.d_v)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[r + e] = r * 4 + e < rows ? p[e * h.d_v] : 0;
}
template <int ROWS> __device__ static inline void column_write(float *at, const float (&s)[ROWS], struct delta_heads h)
{
    int first = row_of(0), rows = h.d_k - first;
    float *p = at + (int64_t)first * h.d_v;
#pragma unroll
    for (int r = 0; r < ROWS; r += 4, p += 16 * (int64_t)h.d_v)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (r * 4 + e < rows)
                p[e * h.d_v] = s[r + e];
}

/* What gives a token's q and k, its value and its gates. */
struct rule_in {
    const void *x, *row, *a_log, *dt_bias;
    struct delta_heads h;
};
/* N tokens of a value head, in shared memory; q and k of length 1, q divided by the root of d_k, and zeros up to 4 ROWS. */
template <int ROWS, int N, int COLS> struct __align__(16) rule_tile
{
    float q[N][4 * ROWS], k[N][4 * ROWS];
    float v[N][COLS];
    float decay[N], beta[N], kq[N];    // e^g; <k, q>
};
/* q or k of one row by a warp: as many as a lane has, and 1 / the root of the sum of squares. */
template <typename T, int M> __device__ static inline float unit_read(float (&out)[M], const T *x, int d)
{
    float square = 0;
#pragma unroll
    for (int i = 0; i < M; i++) {
        int c = (int)threadIdx.x % 32 + 32 * i;
        out[i] = c < d ? to_float(x[c]) : 0;
    }
#pragma unroll
    for (int i = 0; i < M; i++)
        square = __fmaf_rn(out[i], out[i], square);
    return 1.0f / sqrtf(warp_sum(square) + 1e-6f);
}
/* a + dt_bias and g of a token. */
template <typename T> __device__ static inline float forget_of(const rule_in &in, int64_t row, int64_t head, float *a)
{
    const T *r = (const T *)in.row + row * delta_columns(in.h);
    *a = to_float(r[delta_at(in.h, DELTA_A, head)]) + to_float(((const T *)in.dt_bias)[head]);
    return -expf(to_float(((const T *)in.a_log)[head])) * (*a > 20.0f ? *a : log1pf(expf(*a)));
}
template <typename T> __device__ static inline float beta_of(const rule_in &in, int64_t row, int64_t head)
{
    return sigmoid(to_float(((const T *)in.row)[row * delta_columns(in.h) + delta_at(in.h, DELTA_B, head)]));
}
/* Tokens first .. first + n - 1 of a head, the value's columns from `col` on, by the n_warp warps of which this is `warp`. */
template <typename T, int ROWS, int N, int COLS>
__device__ static inline void tile_load(rule_tile<ROWS, N, COLS> &t, const rule_in &in, int64_t first, int n, int64_t head, int col,
                                        int warp, int n_warp)
{
    constexpr int M = 4 * ROWS / 32;
    struct delta_heads h = in.h;
    int64_t n_c = delta_channels(h), key = head / (h.n_v / h.n_k), v_at = (int64_t)2 * h.n_k * h.d_k + head * h.d_v;
    int lane = (int)threadIdx.x % 32;
    const float q_scale = 1.0f / sqrtf((float)h.d_k);
#pragma unroll 2
    for (int i = warp; i < n; i += n_warp) {
        const T *x = (const T *)in.x + (first + i) * n_c;
        float q[M], k[M], kq = 0;
        float q_by = unit_read<T, M>(q, x + key * h.d_k, h.d_k), k_by = unit_read<T, M>(k, x + (h.n_k + key) * h.d_k, h.d_k);
#pragma unroll
        for (int j = 0; j < M; j++) {
            q[j] *= q_by * q_scale;
            k[j] *= k_by;
            t.q[i][lane + 32 * j] = q[j];
            t.k[i][lane + 32 * j] = k[j];
            kq = __fmaf_rn(k[j], q[j], kq);
        }
        kq = warp_sum(kq);
#pragma unroll
        for (int j = lane; j < COLS; j += 32)
            t.v[i][j] = col + j < h.d_v ? to_float(x[v_at + col + j]) : 0;
        if (lane == 0) {
            float a;
            t.decay[i] = expf(forget_of<T>(in, first + i, head, &a));
            t.beta[i] = beta_of<T>(in, first + i, head);
            t.kq[i] = kq;
        }
    }
}
__device__ static inline float lanes_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
/* One token: s becomes the state after it. e^g s goes to decayed, elements apart, unless NULL. Returns S'q; *lacks: v - (e^g S)'k. */
template <int ROWS, int N, int COLS>
__device__ static inline float rule_step(float (&s)[ROWS], float *lacks, const rule_tile<ROWS, N, COLS> &t, int i, int col, float *decayed,
                                         int apart)
{
    const int at = (int)threadIdx.x % DELTA_LANES * 4;
    float by_k[4] = {}, by_q[4] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        float4 k = *(const float4 *)&t.k[i][r * 4 + at], q = *(const float4 *)&t.q[i][r * 4 + at];
        by_k[0] = __fmaf_rn(s[r], k.x, by_k[0]);
        by_k[1] = __fmaf_rn(s[r + 1], k.y, by_k[1]);
        by_k[2] = __fmaf_rn(s[r + 2], k.z, by_k[2]);
        by_k[3] = __fmaf_rn(s[r + 3], k.w, by_k[3]);
        by_q[0] = __fmaf_rn(s[r], q.x, by_q[0]);
        by_q[1] = __fmaf_rn(s[r + 1], q.y, by_q[1]);
        by_q[2] = __fmaf_rn(s[r + 2], q.z, by_q[2]);
        by_q[3] = __fmaf_rn(s[r + 3], q.w, by_q[3]);
    }
    float decay = t.decay[i], kept = lanes_sum((by_k[0] + by_k[1]) + (by_k[2] + by_k[3]));
    float out = lanes_sum((by_q[0] + by_q[1]) + (by_q[2] + by_q[3]));
    *lacks = t.v[i][col] - decay * kept;
    float u = t.beta[i] * *lacks;
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        float4 k = *(const float4 *)&t.k[i][r * 4 + at];
        float kr[4] = { k.x, k.y, k.z, k.w };
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float x = decay * s[r + e];
            if (decayed)
                decayed[(r + e) * apart] = x;
            s[r + e] = __fmaf_rn(kr[e], u, x);
        }
    }
    return __fmaf_rn(u, t.kq[i], decay * out);
}
#endif
