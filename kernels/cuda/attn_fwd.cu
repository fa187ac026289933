/* attn_fwd.cu - causal attention: packed rows, queries over KV pages, and decode
 *
 * bf16: prefill and training run one block of 64 queries of a head, each warp 16 of them against all tiles, with two tiles of K and
 * V in flight; decode runs one block per sequence and KV head, with the heads of the group as rows of one 16-row tile, and the four
 * warps share a tile's keys and then the head's columns. Both sum every element in the order of attn.cuh, so a query's result has
 * the same bits in both. fp32: one warp per query and head, 32 keys at a time, for tests and small models. */
#include <inttypes.h>
#include "kernels/cuda/attn.cuh"

struct fwd_args {
    void *out;
    float *lse;
    const void *qkv, *kv;
    const int32_t *seq;       // first query row of each sequence (n_seq + 1), or NULL: row s
    const int32_t *kv_len;    // paged; NULL: as many keys as queries
    const int32_t *page;
    int64_t max_page;
    int n_q, n_kv;
};

/* The sequence of this block: false when it has no row here. */
struct seq_view {
    int64_t row0;
    int n_row, kv_len;
};
__device__ static inline seq_view seq_of(const fwd_args &a, int s)
{
    seq_view v;
    v.row0 = a.seq ? a.seq[s] : s;
    v.n_row = a.seq ? a.seq[s + 1] - (int)v.row0 : 1;
    v.kv_len = a.kv_len ? a.kv_len[s] : v.n_row;
    if (v.kv_len < v.n_row)    // 0: absent
        v.n_row = 0;
    return v;
}
template <int HD> __device__ static inline kv_source source_of(const fwd_args &a, const seq_view &v, int s, int kv_head)
{
    kv_source src;
    if (a.kv_len) {
        src.k = (const bf16 *)a.kv + (int64_t)kv_head * ATTN_TILE * HD;
        src.v = src.k + (int64_t)a.n_kv * ATTN_TILE * HD;
        src.step = HD;
        src.page = a.page + (int64_t)s * a.max_page;
        src.page_elems = (int64_t)2 * a.n_kv * ATTN_TILE * HD;
    } else {
        src.step = (int64_t)(a.n_q + 2 * a.n_kv) * HD;
        src.k = (const bf16 *)a.qkv + v.row0 * src.step + (int64_t)(a.n_q + kv_head) * HD;
        src.v = src.k + (int64_t)a.n_kv * HD;
        src.page = NULL;
        src.page_elems = 0;
    }
    return src;
}

template <int HD> __global__ void __launch_bounds__(128) attn_fwd_kernel(fwd_args a)
{
    extern __shared__ __align__(16) bf16 smem[];
    constexpr int LD = tile<HD>::LD, STEPS = tile<HD>::STEPS, COLS = tile<HD>::COLS;
    int s = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    seq_view view = seq_of(a, s);
    int q0 = (gridDim.x - 1 - blockIdx.x) * 64;    // the longest rows first
    if (q0 >= view.n_row)
        return;
    kv_source src = source_of<HD>(a, view, s, head / (a.n_q / a.n_kv));
    constexpr int STAGE = 2 * ATTN_TILE * LD;    // K, then V
    int64_t q_step = (int64_t)(a.n_q + 2 * a.n_kv) * HD;
    const bf16 *q = (const bf16 *)a.qkv + view.row0 * q_step + (int64_t)head * HD;
    int n_row = min(64, view.n_row - q0), first_pos = view.kv_len - view.n_row + q0, n_tile = (first_pos + n_row - 1) / ATTN_TILE + 1;
    /* load queries through the second stage's space */
    tile_load<HD>(smem + STAGE, q + q0 * q_step, q_step, n_row);
    copy_commit();
    kv_load<HD>(smem, smem + ATTN_TILE * LD, src, 0, view.kv_len);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    uint32_t qf[STEPS][4];
#pragma unroll
    for (int k = 0; k < STEPS; k++)
        left_load<HD>(qf[k], smem + STAGE, warp * 16, k);
    float o[COLS][4] = {}, l[4] = {}, m[2] = { -INFINITY, -INFINITY }, c = LOG2E / sqrtf((float)HD);
    int pos[2];    // of this lane's two rows; rows after the end see all keys and are not stored
    pos[0] = first_pos + warp * 16 + lane / 4;
    pos[1] = pos[0] + 8;
    for (int r = 0; r < 2; r++)
        pos[r] = min(pos[r], view.kv_len - 1);
    for (int t = 0; t < n_tile; t++) {
        __syncthreads();    // the other stage has been read
        bf16 *next_tile = smem + (t + 1) % 2 * STAGE;
        if (t + 1 < n_tile)
            kv_load<HD>(next_tile, next_tile + ATTN_TILE * LD, src, t + 1, view.kv_len);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        const bf16 *kt = smem + t % 2 * STAGE, *vt = kt + ATTN_TILE * LD;
        float p[8][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                uint32_t b[4];
                right_rows<HD>(b, kt, j * 8, k);
                mma(p[j], qf[k], b[0], b[1]);
                mma(p[j + 1], qf[k], b[2], b[3]);
            }
        float top[2] = { -INFINITY, -INFINITY };
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = t * ATTN_TILE + j * 8 + lane % 4 * 2 + e % 2;
                if (key > pos[e / 2])
                    p[j][e] = -INFINITY;
                top[e / 2] = fmaxf(top[e / 2], p[j][e]);
            }
        float mc[2], alpha[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
            float next = fmaxf(m[r], top[r]);
            mc[r] = next * c;
            alpha[r] = exp2f(m[r] * c - mc[r]);
            m[r] = next;
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[j][e] = weight_of(p[j][e], c, mc[e / 2]);
#pragma unroll
        for (int j = 0; j < COLS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[j][e] *= alpha[e / 2];
#pragma unroll
        for (int e = 0; e < 4; e++)
            l[e] *= alpha[e / 2];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t w[4];
            left_from(w, p[2 * k], p[2 * k + 1]);
            mma(l, w, ONES, ONES);
#pragma unroll
            for (int j = 0; j < COLS; j += 2) {
                uint32_t b[4];
                right_cols<HD>(b, vt, k, j * 8);
                mma(o[j], w, b[0], b[1]);
                mma(o[j + 1], w, b[2], b[3]);
            }
        }
    }
    copy_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = q0 + warp * 16 + lane / 4 + 8 * r;
        if (row >= view.n_row)
            continue;
        float sum = l[2 * r], inv = 1.0f / sum;
        int64_t at = (view.row0 + row) * a.n_q + head;
#pragma unroll
        for (int j = 0; j < COLS; j++)
            *(uint32_t *)((bf16 *)a.out + at * HD + j * 8 + lane % 4 * 2) = pack2(o[j][2 * r] * inv, o[j][2 * r + 1] * inv);
        if (a.lse && lane % 4 == 0)
            a.lse[at] = m[r] / sqrtf((float)HD) + logf(sum);
    }
}

/* One query per sequence: the rows of the tile are the heads of the group (at most 16). */
template <int HD> __global__ void __launch_bounds__(128) attn_decode_kernel(fwd_args a)
{
    extern __shared__ __align__(16) bf16 smem[];
    constexpr int LD = tile<HD>::LD, STEPS = tile<HD>::STEPS, COLS = tile<HD>::COLS, OWN = (COLS + 7) / 8;
    __shared__ float top_of[4][16];
    __shared__ __align__(16) bf16 weight[16][ATTN_TILE + 8];
    int s = blockIdx.y, kv_head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.n_q / a.n_kv;
    seq_view view = seq_of(a, s);
    if (view.n_row == 0)
        return;
    kv_source src = source_of<HD>(a, view, s, kv_head);
    constexpr int STAGE = 2 * ATTN_TILE * LD;    // K, then V
    const bf16 *q = (const bf16 *)a.qkv + view.row0 * (int64_t)(a.n_q + 2 * a.n_kv) * HD + (int64_t)kv_head * group * HD;
    int n_tile = (view.kv_len - 1) / ATTN_TILE + 1;
    tile_load<HD>(smem + STAGE, q, HD, group);
    copy_commit();
    kv_load<HD>(smem, smem + ATTN_TILE * LD, src, 0, view.kv_len);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    uint32_t qf[STEPS][4];
#pragma unroll
    for (int k = 0; k < STEPS; k++)
        left_load<HD>(qf[k], smem + STAGE, 0, k);
    float o[2 * OWN][4] = {}, l[4] = {}, m[2] = { -INFINITY, -INFINITY }, c = LOG2E / sqrtf((float)HD);
    for (int t = 0; t < n_tile; t++) {
        __syncthreads();
        bf16 *next_tile = smem + (t + 1) % 2 * STAGE;
        if (t + 1 < n_tile)
            kv_load<HD>(next_tile, next_tile + ATTN_TILE * LD, src, t + 1, view.kv_len);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        const bf16 *kt = smem + t % 2 * STAGE, *vt = kt + ATTN_TILE * LD;
        float p[2][4] = {}, top[2] = { -INFINITY, -INFINITY };    // this warp's 16 keys
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t b[4];
            right_rows<HD>(b, kt, warp * 16, k);
            mma(p[0], qf[k], b[0], b[1]);
            mma(p[1], qf[k], b[2], b[3]);
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = t * ATTN_TILE + warp * 16 + j * 8 + lane % 4 * 2 + e % 2;
                if (key >= view.kv_len)
                    p[j][e] = -INFINITY;
                top[e / 2] = fmaxf(top[e / 2], p[j][e]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
            if (lane % 4 == 0)
                top_of[warp][lane / 4 + 8 * r] = top[r];
        }
        __syncthreads();
        float mc[2], alpha[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = lane / 4 + 8 * r;
            float next = fmaxf(m[r], fmaxf(fmaxf(top_of[0][row], top_of[1][row]), fmaxf(top_of[2][row], top_of[3][row])));
            mc[r] = next * c;
            alpha[r] = exp2f(m[r] * c - mc[r]);
            m[r] = next;
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *(uint32_t *)&weight[lane / 4 + 8 * r][warp * 16 + j * 8 + lane % 4 * 2] = pack2(weight_of(p[j][2 * r], c, mc[r]),
                                                                                                 weight_of(p[j][2 * r + 1], c, mc[r]));
#pragma unroll
        for (int j = 0; j < 2 * OWN; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[j][e] *= alpha[e / 2];
#pragma unroll
        for (int e = 0; e < 4; e++)
            l[e] *= alpha[e / 2];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t w[4];
            ldsm4(w, &weight[lane % 16][k * 16 + lane / 16 * 8]);
            mma(l, w, ONES, ONES);
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                int col = (j * 4 + warp) * 16;    // 16 columns of the head at a time
                if (col >= HD)
                    break;
                uint32_t b[4];
                right_cols<HD>(b, vt, k, col);
                mma(o[2 * j], w, b[0], b[1]);
                mma(o[2 * j + 1], w, b[2], b[3]);
            }
        }
    }
    copy_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        if (row >= group)
            continue;
        float sum = l[2 * r], inv = 1.0f / sum;
        int64_t at = view.row0 * a.n_q + kv_head * group + row;
#pragma unroll
        for (int j = 0; j < 2 * OWN; j++) {
            int col = (j / 2 * 4 + warp) * 16 + j % 2 * 8 + lane % 4 * 2;
            if (col < HD)
                *(uint32_t *)((bf16 *)a.out + at * HD + col) = pack2(o[j][2 * r] * inv, o[j][2 * r + 1] * inv);
        }
    }
}

/* --- fp32 ------------------------------------------------------------------------------------------------------------ */
template <int HD> __global__ static void attn_fwd_f32_kernel(fwd_args a)
{
    constexpr int OWN = (HD + 31) / 32;
    __shared__ float q_of[4][HD];
    int s = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = head / (a.n_q / a.n_kv);
    seq_view view = seq_of(a, s);
    int row = blockIdx.x * 4 + warp;
    if (row >= view.n_row)
        return;
    int64_t step = (int64_t)(a.n_q + 2 * a.n_kv) * HD;
    const float *q = (const float *)a.qkv + (view.row0 + row) * step + (int64_t)head * HD;
    for (int j = lane; j < HD; j += 32)
        q_of[warp][j] = q[j];
    __syncwarp();
    int n_key = view.kv_len - view.n_row + row + 1;
    float o[OWN] = {}, l = 0, m = -INFINITY, scale = 1.0f / sqrtf((float)HD);
    for (int t = 0; t < n_key; t += 32) {
        int key = min(t + lane, n_key - 1), width = min(32, n_key - t);
        const float *k = (const float *)a.qkv + (view.row0 + key) * step + (int64_t)(a.n_q + kv_head) * HD;
        int64_t v_step = step;
        const float *v = (const float *)a.qkv + (view.row0 + t) * step + (int64_t)(a.n_q + a.n_kv + kv_head) * HD;
        if (a.kv_len) {    // 32 keys are in one page
            const float *page = (const float *)a.kv + (int64_t)a.page[s * a.max_page + t / ATTN_TILE] * 2 * a.n_kv * ATTN_TILE * HD;
            k = page + ((int64_t)kv_head * ATTN_TILE + key % ATTN_TILE) * HD;
            v = page + ((int64_t)(a.n_kv + kv_head) * ATTN_TILE + t % ATTN_TILE) * HD;
            v_step = HD;
        }
        float z = 0;
        for (int j = 0; j < HD; j++)
            z = __fmaf_rn(q_of[warp][j], k[j], z);
        z = lane < width ? z * scale : -INFINITY;
        float next = fmaxf(m, warp_max(z)), alpha = expf(m - next), p = expf(z - next);
        m = next;
        l = l * alpha + warp_sum(p);
#pragma unroll
        for (int d = 0; d < OWN; d++)
            o[d] *= alpha;
        for (int j = 0; j < width; j++) {
            float w = __shfl_sync(0xffffffffu, p, j);
#pragma unroll
            for (int d = 0; d < OWN; d++)
                if (lane + 32 * d < HD)
                    o[d] = __fmaf_rn(w, v[j * v_step + lane + 32 * d], o[d]);
        }
    }
    int64_t at = (view.row0 + row) * a.n_q + head;
    float inv = 1.0f / l;
#pragma unroll
    for (int d = 0; d < OWN; d++)
        if (lane + 32 * d < HD)
            ((float *)a.out)[at * HD + lane + 32 * d] = o[d] * inv;
    if (a.lse && lane == 0)
        a.lse[at] = m + logf(l);
}

/* --- launching ------------------------------------------------------------------------------------------------------- */
static bool attn_sizes_ok(const char *op, struct attn_heads h, int64_t n_seq, struct error *err)
{
    if (h.n_q < 1 || h.n_kv < 1 || h.n_q % h.n_kv || (h.hd != 16 && h.hd != 32 && h.hd != 64 && h.hd != 128) || n_seq > 65535)
        return error_set(err, ERR_SHAPE,
                         "%s: %d query heads, %d key heads of size %d, %" PRId64 " sequences; the size must be 16, 32, 64 or 128, "
                         "the sequences at most 65535",
                         op, h.n_q, h.n_kv, h.hd, n_seq);
    return true;
}
template <int HD>
static bool fwd_launch(struct cuda_device *cu, const fwd_args &a, enum dtype t, int64_t n_seq, int64_t max_q, const char *op,
                       struct error *err)
{
    constexpr int bytes = 4 * tile<HD>::BYTES;
    if (t == DT_F32) {
        attn_fwd_f32_kernel<HD><<<dim3(blocks_for(max_q, 4), (unsigned)a.n_q, (unsigned)n_seq), 128, 0, cu->stream>>>(a);
        return launch_ok(op, err);
    }
    if (max_q == 1 && a.n_q / a.n_kv <= 16 && !a.lse) {
        if (!cuda_ok(cudaFuncSetAttribute(attn_decode_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), op, err))
            return false;
        attn_decode_kernel<HD><<<dim3((unsigned)a.n_kv, (unsigned)n_seq), 128, bytes, cu->stream>>>(a);
        return launch_ok(op, err);
    }
    if (!cuda_ok(cudaFuncSetAttribute(attn_fwd_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), op, err))
        return false;
    attn_fwd_kernel<HD><<<dim3(blocks_for(max_q, 64), (unsigned)a.n_q, (unsigned)n_seq), 128, bytes, cu->stream>>>(a);
    return launch_ok(op, err);
}
static bool fwd_run(struct cuda_device *cu, const fwd_args &a, int hd, enum dtype t, int64_t n_seq, int64_t max_q, const char *op,
                    struct error *err)
{
    switch (hd) {
    case 16: return fwd_launch<16>(cu, a, t, n_seq, max_q, op, err);
    case 32: return fwd_launch<32>(cu, a, t, n_seq, max_q, op, err);
    case 64: return fwd_launch<64>(cu, a, t, n_seq, max_q, op, err);
    }
    return fwd_launch<128>(cu, a, t, n_seq, max_q, op, err);
}
extern "C" bool attn_fwd_cuda(struct device *dev, const struct attn_fwd *a, struct error *err)
{
    if (!attn_sizes_ok("attn_fwd", a->heads, a->n_seq, err))
        return false;
    int64_t max_q = 0;
    for (int64_t s = 0; s < a->n_seq; s++)
        max_q = a->seq_host[s + 1] - a->seq_host[s] > max_q ? a->seq_host[s + 1] - a->seq_host[s] : max_q;
    if (max_q == 0)
        return true;
    fwd_args f = { .out = a->out,
                   .lse = a->lse,
                   .qkv = a->qkv,
                   .kv = NULL,
                   .seq = a->seq,
                   .kv_len = NULL,
                   .page = NULL,
                   .max_page = 0,
                   .n_q = a->heads.n_q,
                   .n_kv = a->heads.n_kv };
    return fwd_run(cuda_of(dev), f, a->heads.hd, a->dtype, a->n_seq, max_q, "attn_fwd", err);
}
extern "C" bool attn_paged_cuda(struct device *dev, const struct attn_paged *a, struct error *err)
{
    if (!attn_sizes_ok("attn_paged", a->heads, a->n_seq, err))
        return false;
    if (a->n_seq == 0 || a->n == 0)
        return true;
    int64_t max_q = a->q_seq ? a->max_q : 1;
    if (max_q < 1)
        return error_set(err, ERR_SHAPE, "attn_paged: max_q is %" PRId64, max_q);
    fwd_args f = { .out = a->out,
                   .lse = NULL,
                   .qkv = a->qkv,
                   .kv = a->kv,
                   .seq = a->q_seq,
                   .kv_len = a->kv_len,
                   .page = a->page,
                   .max_page = a->max_page,
                   .n_q = a->heads.n_q,
                   .n_kv = a->heads.n_kv };
    return fwd_run(cuda_of(dev), f, a->heads.hd, a->dtype, a->n_seq, max_q, "attn_paged", err);
}
