/* attn_bwd.cu - backward of causal attention over packed rows, without atomics
 *
 *   P = e^(S scale - lse);  dV = P^T dO;  dP = dO V^T;  dS = P (dP - D) scale, D = sum(dO O);  dQ = dS K;  dK = dS^T Q
 * (arXiv 2205.14135, algorithm 4). With a soft cap S scale becomes cap tanh(S scale / cap), and dS is times its slope. Two kernels instead of one, so that each sum has one owner: dK and dV belong to the block of a
 * tile of keys, which loops over the heads of the group and all later queries; dQ belongs to the block of a tile of queries. Seven
 * products instead of five, no gradient in fp32 in memory, the same bits each run. A warp owns 16 rows of the result; all operands
 * come from shared memory. */
#include <inttypes.h>
#include "kernels/cuda/attn.cuh"

template <typename T> __global__ static void dot_kernel(bwd_args a, int hd, int64_t n_work)
{
    int64_t work = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (work >= n_work)
        return;
    float sum = 0;
    for (int j = threadIdx.x % 32; j < hd; j += 32)
        sum = __fmaf_rn(to_float(((const T *)a.dout)[work * hd + j]), to_float(((const T *)a.out)[work * hd + j]), sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        a.dot[work] = sum;
}

/* The 64 rows of a tile owned by a block, and the sequence they belong to. */
struct bwd_view {
    int64_t row0, step, out_step;
    int n, first;
};
__device__ static inline bwd_view view_of(const bwd_args &a, int hd, int block)
{
    bwd_view v;
    v.row0 = a.seq[blockIdx.z];
    v.n = a.seq[blockIdx.z + 1] - (int)v.row0;
    v.step = (int64_t)(a.n_q + 2 * a.n_kv) * hd;
    v.out_step = (int64_t)a.n_q * hd;
    v.first = block * 64;
    return v;
}

/* dK, dV: this warp's 16 keys are rows, queries columns, 32 at a time. */
template <int HD, bool BOUNDS> __global__ void __launch_bounds__(128) dkdv_kernel(bwd_args a)
{
    extern __shared__ __align__(16) bf16 smem[];
    constexpr int LD = tile<HD>::LD, STEPS = tile<HD>::STEPS, COLS = tile<HD>::COLS;
    __shared__ float lse_of[64], dot_of[64];
    bwd_view v = view_of(a, HD, blockIdx.x);    // the first keys have the most queries
    if (v.first >= v.n)
        return;
    int kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.n_q / a.n_kv;
    bf16 *ks = smem, *vs = smem + ATTN_TILE * LD, *qs = smem + 2 * ATTN_TILE * LD, *ds = smem + 3 * ATTN_TILE * LD;
    const bf16 *rows = (const bf16 *)a.qkv + v.row0 * v.step;
    tile_load<HD>(ks, rows + v.first * v.step + (int64_t)(a.n_q + kv_head) * HD, v.step, v.n - v.first);
    tile_load<HD>(vs, rows + v.first * v.step + (int64_t)(a.n_q + a.n_kv + kv_head) * HD, v.step, v.n - v.first);
    float dk[COLS][4] = {}, dv[COLS][4] = {}, scale = 1.0f / sqrtf((float)HD), c = BOUNDS && a.bounds.cap > 0 ? LOG2E : LOG2E * scale;
    int key0 = v.first + warp * 16 + lane / 4;    // this lane's keys: key0 and key0 + 8
    int stop = BOUNDS ? min(v.n, v.first + 63 + a.bounds.window) : v.n;
    for (int g = 0; g < group; g++) {
        int head = kv_head * group + g;
        for (int q0 = v.first; q0 < stop; q0 += 64) {
            __syncthreads();
            tile_load<HD>(qs, rows + q0 * v.step + (int64_t)head * HD, v.step, v.n - q0);
            tile_load<HD>(ds, (const bf16 *)a.dout + (v.row0 + q0) * v.out_step + (int64_t)head * HD, v.out_step, v.n - q0);
            copy_commit();
            if (threadIdx.x < 64) {
                bool there = q0 + (int)threadIdx.x < v.n;
                int64_t at = (v.row0 + q0 + threadIdx.x) * a.n_q + head;
                lse_of[threadIdx.x] = there ? a.lse[at] * LOG2E : INFINITY;    // rows after the end have no weight
                dot_of[threadIdx.x] = there ? a.dot[at] : 0;
            }
            copy_wait<0>();
            __syncthreads();
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                float p[4][4] = {}, dp[4][4] = {};
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    uint32_t kf[4], vf[4], b[4];
                    left_load<HD>(kf, ks, warp * 16, k);
                    left_load<HD>(vf, vs, warp * 16, k);
#pragma unroll
                    for (int j = 0; j < 4; j += 2) {
                        right_rows<HD>(b, qs, half * 32 + j * 8, k);
                        mma(p[j], kf, b[0], b[1]);
                        mma(p[j + 1], kf, b[2], b[3]);
                        right_rows<HD>(b, ds, half * 32 + j * 8, k);
                        mma(dp[j], vf, b[0], b[1]);
                        mma(dp[j + 1], vf, b[2], b[3]);
                    }
                }
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int col = half * 32 + j * 8 + lane % 4 * 2 + e % 2, query = q0 + col, key = key0 + e / 2 * 8;
                        bool seen = key <= query && (!BOUNDS || key > query - a.bounds.window);
                        float slope, z = score_of<BOUNDS>(p[j][e], a.bounds, &slope);
                        float w = seen ? exp2_fast(__fmaf_rn(z, c, -lse_of[col])) : 0;
                        p[j][e] = w;
                        dp[j][e] = w * (dp[j][e] - dot_of[col]) * scale;
                        if (BOUNDS)
                            dp[j][e] *= slope;
                    }
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    uint32_t pf[4], sf[4], b[4];
                    left_from(pf, p[2 * k], p[2 * k + 1]);
                    left_from(sf, dp[2 * k], dp[2 * k + 1]);
#pragma unroll
                    for (int j = 0; j < COLS; j += 2) {
                        right_cols<HD>(b, ds, half * 2 + k, j * 8);
                        mma(dv[j], pf, b[0], b[1]);
                        mma(dv[j + 1], pf, b[2], b[3]);
                        right_cols<HD>(b, qs, half * 2 + k, j * 8);
                        mma(dk[j], sf, b[0], b[1]);
                        mma(dk[j + 1], sf, b[2], b[3]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (key0 + 8 * r >= v.n)
            continue;
        bf16 *out = (bf16 *)a.dqkv + (v.row0 + key0 + 8 * r) * v.step + (int64_t)(a.n_q + kv_head) * HD;
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            int at = j * 8 + lane % 4 * 2;
            *(uint32_t *)(out + at) = pack2(dk[j][2 * r], dk[j][2 * r + 1]);
            *(uint32_t *)(out + (int64_t)a.n_kv * HD + at) = pack2(dv[j][2 * r], dv[j][2 * r + 1]);
        }
    }
}

/* dQ: this warp's 16 queries are rows, keys columns, 32 at a time. */
template <int HD, bool BOUNDS> __global__ void __launch_bounds__(128) dq_kernel(bwd_args a)
{
    extern __shared__ __align__(16) bf16 smem[];
    constexpr int LD = tile<HD>::LD, STEPS = tile<HD>::STEPS, COLS = tile<HD>::COLS;
    bwd_view v = view_of(a, HD, gridDim.x - 1 - blockIdx.x);    // the last queries have the most keys
    if (v.first >= v.n)
        return;
    int head = blockIdx.y, kv_head = head / (a.n_q / a.n_kv), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bf16 *ks = smem, *vs = smem + ATTN_TILE * LD, *qs = smem + 2 * ATTN_TILE * LD, *ds = smem + 3 * ATTN_TILE * LD;
    const bf16 *rows = (const bf16 *)a.qkv + v.row0 * v.step;
    tile_load<HD>(qs, rows + v.first * v.step + (int64_t)head * HD, v.step, v.n - v.first);
    tile_load<HD>(ds, (const bf16 *)a.dout + (v.row0 + v.first) * v.out_step + (int64_t)head * HD, v.out_step, v.n - v.first);
    float dq[COLS][4] = {}, lse[2], dot[2], scale = 1.0f / sqrtf((float)HD), c = BOUNDS && a.bounds.cap > 0 ? LOG2E : LOG2E * scale;
    int query0 = v.first + warp * 16 + lane / 4;
    for (int r = 0; r < 2; r++) {
        bool there = query0 + 8 * r < v.n;
        int64_t at = (v.row0 + query0 + 8 * r) * a.n_q + head;
        lse[r] = there ? a.lse[at] * LOG2E : INFINITY;
        dot[r] = there ? a.dot[at] : 0;
    }
    for (int k0 = BOUNDS ? first_key(a.bounds, v.first) / 64 * 64 : 0; k0 <= v.first; k0 += 64) {
        __syncthreads();
        tile_load<HD>(ks, rows + k0 * v.step + (int64_t)(a.n_q + kv_head) * HD, v.step, v.n - k0);
        tile_load<HD>(vs, rows + k0 * v.step + (int64_t)(a.n_q + a.n_kv + kv_head) * HD, v.step, v.n - k0);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            float p[4][4] = {}, dp[4][4] = {};
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                uint32_t qf[4], df[4], b[4];
                left_load<HD>(qf, qs, warp * 16, k);
                left_load<HD>(df, ds, warp * 16, k);
#pragma unroll
                for (int j = 0; j < 4; j += 2) {
                    right_rows<HD>(b, ks, half * 32 + j * 8, k);
                    mma(p[j], qf, b[0], b[1]);
                    mma(p[j + 1], qf, b[2], b[3]);
                    right_rows<HD>(b, vs, half * 32 + j * 8, k);
                    mma(dp[j], df, b[0], b[1]);
                    mma(dp[j + 1], df, b[2], b[3]);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int key = k0 + half * 32 + j * 8 + lane % 4 * 2 + e % 2, query = query0 + e / 2 * 8;
                    bool seen = key <= query && (!BOUNDS || key > query - a.bounds.window);
                    float slope, z = score_of<BOUNDS>(p[j][e], a.bounds, &slope);
                    float w = seen ? exp2_fast(__fmaf_rn(z, c, -lse[e / 2])) : 0;
                    dp[j][e] = w * (dp[j][e] - dot[e / 2]) * scale;
                    if (BOUNDS)
                        dp[j][e] *= slope;
                }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t sf[4], b[4];
                left_from(sf, dp[2 * k], dp[2 * k + 1]);
#pragma unroll
                for (int j = 0; j < COLS; j += 2) {
                    right_cols<HD>(b, ks, half * 2 + k, j * 8);
                    mma(dq[j], sf, b[0], b[1]);
                    mma(dq[j + 1], sf, b[2], b[3]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (query0 + 8 * r >= v.n)
            continue;
        bf16 *out = (bf16 *)a.dqkv + (v.row0 + query0 + 8 * r) * v.step + (int64_t)head * HD;
#pragma unroll
        for (int j = 0; j < COLS; j++)
            *(uint32_t *)(out + j * 8 + lane % 4 * 2) = pack2(dq[j][2 * r], dq[j][2 * r + 1]);
    }
}

/* --- fp32: one warp per query and head, then one warp per key and KV head --------------------------------------------- */
template <int HD> __global__ static void dq_f32_kernel(bwd_args a)
{
    constexpr int OWN = (HD + 31) / 32;
    bwd_view v = view_of(a, HD, 0);
    int head = blockIdx.y, kv_head = head / (a.n_q / a.n_kv), lane = threadIdx.x % 32, row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= v.n)
        return;
    const float *rows = (const float *)a.qkv + v.row0 * v.step, *q = rows + row * v.step + head * HD;
    const float *dout = (const float *)a.dout + (v.row0 + row) * v.out_step + head * HD;
    int64_t at = (v.row0 + row) * a.n_q + head;
    float dq[OWN] = {}, scale = 1.0f / sqrtf((float)HD);
    int first = first_key(a.bounds, row);
    for (int k0 = first / 32 * 32; k0 <= row; k0 += 32) {
        int key = min(k0 + lane, row), width = min(32, row + 1 - k0);
        const float *k = rows + key * v.step + (a.n_q + kv_head) * HD, *val = k + a.n_kv * HD;
        float s = 0, dp = 0, slope;
        for (int j = 0; j < HD; j++) {
            s = __fmaf_rn(q[j], k[j], s);
            dp = __fmaf_rn(dout[j], val[j], dp);
        }
        float p = expf(score_exact(s * scale, a.bounds, &slope) - a.lse[at]);
        float ds = k0 + lane >= first ? p * (dp - a.dot[at]) * scale * slope : 0;
        for (int j = 0; j < width; j++) {
            float w = __shfl_sync(0xffffffffu, ds, j);
#pragma unroll
            for (int d = 0; d < OWN; d++)
                if (lane + 32 * d < HD)
                    dq[d] = __fmaf_rn(w, rows[(k0 + j) * v.step + (a.n_q + kv_head) * HD + lane + 32 * d], dq[d]);
        }
    }
#pragma unroll
    for (int d = 0; d < OWN; d++)
        if (lane + 32 * d < HD)
            ((float *)a.dqkv)[(v.row0 + row) * v.step + head * HD + lane + 32 * d] = dq[d];
}
template <int HD> __global__ static void dkdv_f32_kernel(bwd_args a)
{
    constexpr int OWN = (HD + 31) / 32;
    bwd_view v = view_of(a, HD, 0);
    int kv_head = blockIdx.y, group = a.n_q / a.n_kv, lane = threadIdx.x % 32, key = blockIdx.x * 4 + threadIdx.x / 32;
    if (key >= v.n)
        return;
    const float *rows = (const float *)a.qkv + v.row0 * v.step, *k = rows + key * v.step + (a.n_q + kv_head) * HD, *val = k + a.n_kv * HD;
    float dk[OWN] = {}, dv[OWN] = {}, scale = 1.0f / sqrtf((float)HD);
    int stop = min(v.n, key + a.bounds.window);
    for (int g = 0; g < group; g++) {
        int head = kv_head * group + g;
        for (int q0 = key; q0 < stop; q0 += 32) {
            int row = min(q0 + lane, stop - 1), width = min(32, stop - q0);
            const float *q = rows + row * v.step + head * HD, *dout = (const float *)a.dout + (v.row0 + row) * v.out_step + head * HD;
            int64_t at = (v.row0 + row) * a.n_q + head;
            float s = 0, dp = 0, slope;
            for (int j = 0; j < HD; j++) {
                s = __fmaf_rn(q[j], k[j], s);
                dp = __fmaf_rn(dout[j], val[j], dp);
            }
            float p = expf(score_exact(s * scale, a.bounds, &slope) - a.lse[at]), ds = p * (dp - a.dot[at]) * scale * slope;
            for (int j = 0; j < width; j++) {
                float wp = __shfl_sync(0xffffffffu, p, j), ws = __shfl_sync(0xffffffffu, ds, j);
#pragma unroll
                for (int d = 0; d < OWN; d++)
                    if (lane + 32 * d < HD) {
                        dk[d] = __fmaf_rn(ws, rows[(q0 + j) * v.step + head * HD + lane + 32 * d], dk[d]);
                        dv[d] = __fmaf_rn(wp, ((const float *)a.dout)[(v.row0 + q0 + j) * v.out_step + head * HD + lane + 32 * d], dv[d]);
                    }
            }
        }
    }
    float *out = (float *)a.dqkv + (v.row0 + key) * v.step + (a.n_q + kv_head) * HD;
#pragma unroll
    for (int d = 0; d < OWN; d++)
        if (lane + 32 * d < HD) {
            out[lane + 32 * d] = dk[d];
            out[a.n_kv * HD + lane + 32 * d] = dv[d];
        }
}

/* --- launching ------------------------------------------------------------------------------------------------------- */
template <int HD, bool BOUNDS>
static bool bwd_launch(struct cuda_device *cu, const bwd_args &a, const struct attn_bwd *args, int64_t max_len, struct error *err)
{
    constexpr int bytes = 4 * tile<HD>::BYTES;
    unsigned n_seq = (unsigned)args->n_seq, n_q = (unsigned)a.n_q, n_kv = (unsigned)a.n_kv;
    int64_t n_work = args->n * a.n_q;
    if (args->dtype == DT_F32) {
        dot_kernel<float><<<blocks_for(n_work, 4), 128, 0, cu->stream>>>(a, HD, n_work);
        dq_f32_kernel<HD><<<dim3(blocks_for(max_len, 4), n_q, n_seq), 128, 0, cu->stream>>>(a);
        dkdv_f32_kernel<HD><<<dim3(blocks_for(max_len, 4), n_kv, n_seq), 128, 0, cu->stream>>>(a);
        return launch_ok("attn_bwd", err);
    }
    if (cu->hopper && (HD == 64 || HD == 96 || HD == 128))
        return hopper_bwd(cu, a, BOUNDS, HD, args->n, args->n_seq, max_len, err);
    if (bytes > cu->shared_bytes)
        return error_set(err, ERR_UNSUPPORTED, "%s cannot train heads of size %d: a block needs %d KiB of shared memory and may have %d",
                         cu->base.what, HD, bytes >> 10, cu->shared_bytes >> 10);
    auto *dkdv = dkdv_kernel<HD, BOUNDS>, *dq = dq_kernel<HD, BOUNDS>;
    if (!cuda_ok(cudaFuncSetAttribute(dkdv, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attn_bwd", err)
        || !cuda_ok(cudaFuncSetAttribute(dq, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attn_bwd", err))
        return false;
    dot_kernel<bf16><<<blocks_for(n_work, 4), 128, 0, cu->stream>>>(a, HD, n_work);
    dkdv<<<dim3(blocks_for(max_len, 64), n_kv, n_seq), 128, bytes, cu->stream>>>(a);
    dq<<<dim3(blocks_for(max_len, 64), n_q, n_seq), 128, bytes, cu->stream>>>(a);
    return launch_ok("attn_bwd", err);
}
template <bool BOUNDS>
static bool bwd_by_size(struct cuda_device *cu, const bwd_args &a, const struct attn_bwd *args, int64_t max_len, struct error *err)
{
    switch (args->heads.hd) {
    case 16: return bwd_launch<16, BOUNDS>(cu, a, args, max_len, err);
    case 32: return bwd_launch<32, BOUNDS>(cu, a, args, max_len, err);
    case 64: return bwd_launch<64, BOUNDS>(cu, a, args, max_len, err);
    case 96: return bwd_launch<96, BOUNDS>(cu, a, args, max_len, err);
    case 128: return bwd_launch<128, BOUNDS>(cu, a, args, max_len, err);
    case 256: return bwd_launch<256, BOUNDS>(cu, a, args, max_len, err);
    }
    return error_set(err, ERR_SHAPE, "attn_bwd: heads of size %d; 16, 32, 64, 96, 128 and 256 are possible", args->heads.hd);
}
extern "C" bool attn_bwd_cuda(struct device *dev, const struct attn_bwd *args, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    struct attn_heads h = args->heads;
    int64_t max_len = 0;
    if (h.n_q < 1 || h.n_kv < 1 || h.n_q % h.n_kv || args->n_seq > 65535)
        return error_set(err, ERR_SHAPE, "attn_bwd: %d query heads, %d key heads, %" PRId64 " sequences", h.n_q, h.n_kv, args->n_seq);
    for (int64_t s = 0; s < args->n_seq; s++)
        max_len = args->seq_host[s + 1] - args->seq_host[s] > max_len ? args->seq_host[s + 1] - args->seq_host[s] : max_len;
    if (max_len == 0)
        return true;
    bwd_args a = { .dqkv = args->dqkv,
                   .dout = args->dout,
                   .out = args->out,
                   .qkv = args->qkv,
                   .lse = args->lse,
                   .dot = NULL,
                   .seq = args->seq,
                   .n_q = h.n_q,
                   .n_kv = h.n_kv,
                   .bounds = bounds_make(args->bounds, h.hd) };
    a.dot = (float *)cuda_scratch(cu, attn_stat_bytes(args->n, args->n_seq, h.n_q), "attn_bwd", err);
    if (!a.dot)
        return false;
    return bounds_matter(a.bounds, max_len) ? bwd_by_size<true>(cu, a, args, max_len, err) : bwd_by_size<false>(cu, a, args, max_len, err);
}
