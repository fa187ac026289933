/* delta_rule_bwd.cu - the gated delta rule backward
 *
 * Formulas: kernels/ref/delta_rule.c. In four kernels, none of which depends on what else is in the call:
 *  1. rule_fwd_kernel keeps the state before every DELTA_KEEP-th token.
 *  2. A block takes BACK_COLS columns of a value head of a sequence from its last kept state to its first. It runs the tokens after a kept
 *     state again, to keep those before every `seg`-th token, and then each seg tokens once more, whose states fit shared memory, before it
 *     goes back over these. What it adds to the gradients by q, k, beta and g is a part of a sum over columns.
 *  3. A warp adds the parts of a row's key head, heads and blocks of columns in their order, and passes on through the norms and gates.
 *  4. A block adds what all rows give a head's A_log, or its dt_bias.
 * Blocks of the second are as many as the device runs at once, and take pieces in turn: the states of step 2 then are few. */
#include "kernels/cuda/delta_rule.cuh"
#define BACK_WARPS 8
#define BACK_THREADS (32 * BACK_WARPS)
#define BACK_COLS (BACK_WARPS * DELTA_WARP_COLS)
static_assert(BACK_COLS == DELTA_BACK_COLS, "as ops.h says");
#define SEG_MAX 8    // tokens whose states are in shared memory at once

struct rule_bwd {
    struct delta_rule_bwd a;    // of.slot NULL
    float *kept;                // of step 1
    float *again;               // (blocks)(DELTA_KEEP / seg, rounded up)(ROWS, BACK_THREADS)
    float *part;                // (n, n_v, blocks of columns)(2, d_k): gradients by q and k before their norms
    float *part2;               // (n, n_v, blocks of columns)(2): by beta and by g
    float *terms;               // (2, n_v, n): what a row gives A_log and dt_bias
    int seg, n_cb;
};
static __host__ __device__ inline rule_in in_of(const struct delta_rule_bwd &a)
{
    return { a.x, a.row, a.a_log, a.dt_bias, a.heads };
}
/* A block's shared memory. */
template <int ROWS> struct back_room {
    rule_tile<ROWS, SEG_MAX, BACK_COLS> tile;
    float part[2][BACK_WARPS][2][4 * ROWS];    // by turns of tokens
    float part2[2][BACK_WARPS][2];
    float dout[SEG_MAX][BACK_COLS], lacks[SEG_MAX][BACK_THREADS];
};

/* Sums over the eight lanes that have the same rows: each is left with ROWS / 8 of them, those from *at on. */
template <int ROWS> __device__ static inline int columns_sum(float (&v)[ROWS])
{
    int at = 0;
#pragma unroll
    for (int half = ROWS / 2, mask = 16; mask >= 4; half /= 2, mask /= 2) {
        bool upper = threadIdx.x & mask;
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++)
            if (i < half) {
                float keep = upper ? v[i + half] : v[i], give = upper ? v[i] : v[i + half];
                v[i] = keep + __shfl_xor_sync(0xffffffffu, give, mask);
            }
        at += upper ? half : 0;
    }
    return at;
}
/* One token back: ds, the gradient by the state after it, becomes that by the state before. */
template <int ROWS>
__device__ static inline void step_back(float (&ds)[ROWS], back_room<ROWS> &room, const float *decayed, int i, int col, int turn, float *dv)
{
    const int at = (int)threadIdx.x % DELTA_LANES * 4, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const rule_tile<ROWS, SEG_MAX, BACK_COLS> &t = room.tile;
    float dout = room.dout[i][col], lacks = room.lacks[i][threadIdx.x], beta = t.beta[i], decay = t.decay[i], u = beta * lacks;
    float by_k[4] = {}, dq[ROWS], dk[ROWS], dg = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        float4 k4 = *(const float4 *)&t.k[i][r * 4 + at], q4 = *(const float4 *)&t.q[i][r * 4 + at];
        float k[4] = { k4.x, k4.y, k4.z, k4.w }, q[4] = { q4.x, q4.y, q4.z, q4.w };
#pragma unroll
        for (int e = 0; e < 4; e++) {
            ds[r + e] = __fmaf_rn(q[e], dout, ds[r + e]);
            by_k[e] = __fmaf_rn(ds[r + e], k[e], by_k[e]);
        }
    }
    float du = lanes_sum((by_k[0] + by_k[1]) + (by_k[2] + by_k[3]));
    *dv = beta * du;
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        float4 k4 = *(const float4 *)&t.k[i][r * 4 + at];
        float k[4] = { k4.x, k4.y, k4.z, k4.w };
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float x = decayed[(r + e) * BACK_THREADS];
            dq[r + e] = __fmaf_rn(k[e], u, x) * dout;
            dk[r + e] = __fmaf_rn(ds[r + e], u, -(x * *dv));
            ds[r + e] = __fmaf_rn(-k[e], *dv, ds[r + e]);
            dg = __fmaf_rn(ds[r + e], x, dg);
            ds[r + e] *= decay;
        }
    }
    int from = columns_sum<ROWS>(dq);
    columns_sum<ROWS>(dk);
#pragma unroll
    for (int e = 0; e < ROWS / 8; e++) {
        int c = row_of(from + e);
        room.part[turn][warp][0][c] = dq[e];
        room.part[turn][warp][1][c] = dk[e];
    }
    float dbeta = warp_sum(threadIdx.x % DELTA_LANES == 0 ? du * lacks : 0.0f);
    dg = warp_sum(dg);
    if (lane == 0) {
        room.part2[turn][warp][0] = dbeta;
        room.part2[turn][warp][1] = dg;
    }
}
/* What the warps of a block have of token `row`, in their order. */
template <int ROWS>
__device__ static inline void parts_write(const rule_bwd &b, const back_room<ROWS> &room, int64_t row, int64_t head, int cb, int turn)
{
    int d_k = b.a.heads.d_k;
    int64_t at = (row * b.a.heads.n_v + head) * b.n_cb + cb;
    for (int i = (int)threadIdx.x; i < 2 * d_k; i += BACK_THREADS) {
        float sum = 0;
        for (int w = 0; w < BACK_WARPS; w++)
            sum += room.part[turn][w][i >= d_k][i % d_k];
        b.part[at * 2 * d_k + i] = sum;
    }
    if (threadIdx.x < 2) {
        float sum = 0;
        for (int w = 0; w < BACK_WARPS; w++)
            sum += room.part2[turn][w][threadIdx.x];
        b.part2[at * 2 + threadIdx.x] = sum;
    }
}
/* The tokens from i0 of sequence p on, n of them, whose first state is in s, by which they are kept before every b.seg-th. */
template <typename T, int ROWS>
__device__ static inline void states_again(float (&s)[ROWS], const rule_bwd &b, back_room<ROWS> &room, float *again, int64_t first, int n,
                                           int64_t head, int col0)
{
    for (int i0 = 0;; i0 += b.seg) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            again[(i0 / b.seg * ROWS + r) * BACK_THREADS] = s[r];
        if (i0 + b.seg >= n)
            break;
        __syncthreads();
        tile_load<T>(room.tile, in_of(b.a), first + i0, b.seg, head, col0, (int)threadIdx.x / 32, BACK_WARPS);
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < b.seg; i++) {
            float lacks;
            rule_step(s, &lacks, room.tile, i, (int)threadIdx.x / DELTA_LANES, (float *)NULL, 0);
        }
    }
}
template <typename T, int ROWS> __global__ static void __launch_bounds__(BACK_THREADS, 1) rule_bwd_kernel(rule_bwd b)
{
    extern __shared__ uint4 rule_shared[];
    back_room<ROWS> &room = *(back_room<ROWS> *)rule_shared;
    float *decayed = (float *)(&room + 1) + threadIdx.x;    // (seg)(ROWS, BACK_THREADS), a thread's own
    struct delta_heads h = b.a.heads;
    int64_t n_s = (int64_t)h.d_k * h.d_v, n_c = delta_channels(h);
    int in_block = (int)threadIdx.x / DELTA_LANES, n_again = (DELTA_KEEP + b.seg - 1) / b.seg;
    bool own = threadIdx.x % DELTA_LANES == 0;
    float *again = b.again + (int64_t)blockIdx.x * n_again * ROWS * BACK_THREADS + threadIdx.x;
    int64_t n_job = b.a.of.n_seq * h.n_v * b.n_cb;
    for (int64_t job = blockIdx.x; job < n_job; job += gridDim.x) {
        int cb = (int)(job % b.n_cb), col0 = cb * BACK_COLS, j = col0 + in_block;
        int64_t head = job / b.n_cb % h.n_v;
        delta_span p = delta_span_of(&b.a.of, h, job / b.n_cb / h.n_v);
        float ds[ROWS] = {};
        for (int64_t m = (p.end - p.first + DELTA_KEEP - 1) / DELTA_KEEP - 1; m >= 0; m--) {
            int64_t first = p.first + m * DELTA_KEEP;
            int n = (int)min(p.end - first, (int64_t)DELTA_KEEP);
            float s[ROWS] = {};
            if (m > 0 && j < h.d_v)
                column_read(s, b.kept + (kept_at(p, m * DELTA_KEEP) * h.n_v + head) * n_s + j, h);
            states_again<T, ROWS>(s, b, room, again, first, n, head, col0);
            for (int i0 = (n - 1) / b.seg * b.seg; i0 >= 0; i0 -= b.seg) {
                int here = min(b.seg, n - i0);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    s[r] = again[(i0 / b.seg * ROWS + r) * BACK_THREADS];
                __syncthreads();
                tile_load<T>(room.tile, in_of(b.a), first + i0, here, head, col0, (int)threadIdx.x / 32, BACK_WARPS);
                for (int i = (int)threadIdx.x; i < here * BACK_COLS; i += BACK_THREADS) {
                    int col = i % BACK_COLS;
                    int64_t at = ((first + i0 + i / BACK_COLS) * h.n_v + head) * h.d_v + col0 + col;
                    room.dout[i / BACK_COLS][col] = col0 + col < h.d_v ? to_float(((const T *)b.a.dout)[at]) : 0;
                }
                __syncthreads();
#pragma unroll 1
                for (int i = 0; i < here; i++)
                    rule_step(s, &room.lacks[i][threadIdx.x], room.tile, i, in_block, decayed + i * ROWS * BACK_THREADS, BACK_THREADS);
#pragma unroll 1
                for (int i = here - 1; i >= 0; i--) {
                    int64_t row = first + i0 + i;
                    float dv;
                    step_back<ROWS>(ds, room, decayed + i * ROWS * BACK_THREADS, i, in_block, i & 1, &dv);
                    if (own && j < h.d_v)
                        ((T *)b.a.dx)[row * n_c + (int64_t)2 * h.n_k * h.d_k + head * h.d_v + j] = from_float<T>(dv);
                    __syncthreads();    // parts of the other turn are read before the next one of these
                    parts_write<ROWS>(b, room, row, head, cb, i & 1);
                }
            }
            __syncthreads();
        }
    }
}

/* A warp is a row's key head. */
#define ROWS_WARPS 4
template <typename T, int ROWS> __global__ static void __launch_bounds__(32 * ROWS_WARPS) rule_rows_kernel(rule_bwd b)
{
    constexpr int M = 4 * ROWS / 32;
    struct delta_heads h = b.a.heads;
    int64_t at = (int64_t)blockIdx.x * ROWS_WARPS + threadIdx.x / 32, row = at / h.n_k, key = at % h.n_k, n_c = delta_channels(h);
    int lane = (int)threadIdx.x % 32, n_part = h.n_v / h.n_k * b.n_cb;
    if (row >= b.a.of.n)
        return;
    const float *part = b.part + (row * h.n_v * b.n_cb + key * n_part) * 2 * h.d_k;
#pragma unroll
    for (int of_k = 0; of_k < 2; of_k++) {
        int64_t first = row * n_c + (of_k ? h.n_k + key : key) * h.d_k;
        float unit[M], d[M] = {}, dot = 0, scale = of_k ? 1.0f : 1.0f / sqrtf((float)h.d_k);
        float by = unit_read<T, M>(unit, (const T *)b.a.x + first, h.d_k);
#pragma unroll
        for (int i = 0; i < M; i++) {
            int c = lane + 32 * i;
            if (c < h.d_k)
                for (int k = 0; k < n_part; k++)
                    d[i] += part[(k * 2 + of_k) * h.d_k + c];
            unit[i] *= by;
            dot = __fmaf_rn(unit[i], d[i], dot);
        }
        dot = warp_sum(dot);
#pragma unroll
        for (int i = 0; i < M; i++)
            if (lane + 32 * i < h.d_k)
                ((T *)b.a.dx)[first + lane + 32 * i] = from_float<T>(by * scale * __fmaf_rn(-unit[i], dot, d[i]));
    }
    for (int i = lane; i < h.n_v / h.n_k; i += 32) {
        int64_t head = key * (h.n_v / h.n_k) + i, ld = delta_columns(h);
        float dbeta = 0, dg = 0, a, g = forget_of<T>(in_of(b.a), row, head, &a), beta = beta_of<T>(in_of(b.a), row, head);
        for (int k = 0; k < b.n_cb; k++) {
            dbeta += b.part2[((row * h.n_v + head) * b.n_cb + k) * 2];
            dg += b.part2[((row * h.n_v + head) * b.n_cb + k) * 2 + 1];
        }
        float da = dg * -expf(to_float(((const T *)b.a.a_log)[head])) * sigmoid(a);
        ((T *)b.a.drow)[row * ld + delta_at(h, DELTA_B, head)] = from_float<T>(dbeta * beta * (1.0f - beta));
        ((T *)b.a.drow)[row * ld + delta_at(h, DELTA_A, head)] = from_float<T>(da);
        b.terms[head * b.a.of.n + row] = dg * g;
        b.terms[(h.n_v + head) * b.a.of.n + row] = da;
    }
}
__global__ static void __launch_bounds__(256) rule_terms_kernel(rule_bwd b)
{
    __shared__ float tmp[33];
    float sum = 0, *to = blockIdx.y ? b.a.ddt_bias : b.a.da_log;
    const float *x = b.terms + (blockIdx.y * gridDim.x + blockIdx.x) * b.a.of.n;
    if (!to)
        return;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < b.a.of.n; i += 256)
        sum += x[i];
    sum = block_sum(sum, tmp);
    if (threadIdx.x == 0)
        to[blockIdx.x] += sum;
}

static size_t take(size_t *at, int64_t n_float)
{
    size_t from = *at;
    *at += ((size_t)n_float * sizeof(float) + 255) & ~(size_t)255;
    return from;
}
template <typename T, int ROWS> static bool bwd_launch(struct cuda_device *cu, const struct delta_rule_bwd *a, struct error *err)
{
    struct delta_heads h = a->heads;
    int64_t n = a->of.n, state_bytes = (int64_t)ROWS * BACK_THREADS * sizeof(float);
    rule_bwd b = { *a, (float *)a->room, NULL, NULL, NULL, NULL, 0, (int)delta_back_parts(h) };
    b.a.of.slot = NULL;    // each sequence begins with zeros
    b.seg = (int)MIN((cu->shared_bytes - (int64_t)sizeof(back_room<ROWS>)) / state_bytes, (int64_t)SEG_MAX);
    if (!a->room)
        return error_set(err, ERR_SHAPE, "delta_rule_bwd: no room for states");
    if (b.seg < 1)
        return error_set(err, ERR_UNSUPPORTED,
                         "%s cannot train a gated delta net with keys of %d: a block may have %d KiB of shared memory", cu->base.what,
                         h.d_k, cu->shared_bytes >> 10);
    int64_t n_block = MIN(a->of.n_seq * h.n_v * b.n_cb, (int64_t)cu->n_sm), n_again = (DELTA_KEEP + b.seg - 1) / b.seg;
    size_t size = 0, again = take(&size, n_block * n_again * ROWS * BACK_THREADS), part2 = take(&size, n * h.n_v * b.n_cb * 2);
    size_t terms = take(&size, 2 * h.n_v * n);
    char *scratch = (char *)cuda_scratch(cu, size, "delta_rule_bwd", err);
    if (!scratch)
        return false;
    b.part = b.kept + n / DELTA_KEEP * h.n_v * h.d_k * h.d_v;
    b.again = (float *)(scratch + again);
    b.part2 = (float *)(scratch + part2);
    b.terms = (float *)(scratch + terms);
    rule_fwd f = { in_of(b.a), NULL, b.kept, b.a.of };
    int shared = (int)(sizeof(back_room<ROWS>) + (size_t)b.seg * (size_t)state_bytes);
    auto *back = rule_bwd_kernel<T, ROWS>;
    if (!cuda_ok(cudaFuncSetAttribute(back, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "delta_rule_bwd", err)
        || !cuda_rule_fwd(cu, &f, a->dtype, "delta_rule_bwd", err))
        return false;
    back<<<(unsigned)n_block, BACK_THREADS, shared, cu->stream>>>(b);
    rule_rows_kernel<T, ROWS><<<blocks_for(n * h.n_k, ROWS_WARPS), 32 * ROWS_WARPS, 0, cu->stream>>>(b);
    rule_terms_kernel<<<dim3((unsigned)h.n_v, 2), 256, 0, cu->stream>>>(b);
    return launch_ok("delta_rule_bwd", err);
}
template <typename T> static bool bwd_run(struct cuda_device *cu, const struct delta_rule_bwd *a, struct error *err)
{
    return BY_KEY_WIDTH(T, a->heads.d_k, bwd_launch, cu, a, err);
}
extern "C" bool delta_rule_bwd_cuda(struct device *dev, const struct delta_rule_bwd *a, struct error *err)
{
    if (!delta_cuda_check("delta_rule_bwd", &a->of, a->heads, err))
        return false;
    return a->of.n == 0 || BY_TYPE(a->dtype, bwd_run, cuda_of(dev), a, err);
}
