/* attn_fwd.cu - causal attention: packed rows, and queries over KV pages
 *
 * bf16: prefill and training run one block of 64 queries of a head, each warp 16 of them against all tiles (on Hopper, heads of 64
 * and more: attn_fwd_hopper.cu); decode: attn_decode.cu. All sum every element in the order of attn.cuh, so a query's result has the
 * same bits in each. fp32: one warp per query and head, 32 keys at a time, for tests and small models. */
#include <inttypes.h>
#include "kernels/cuda/attn.cuh"

/* One block of 64 queries of a head, each warp 16 of them against all tiles. The keys of the next tile are loaded while this one's
 * values are multiplied, and the values while its scores are. */
template <int HD, bool BOUNDS> __global__ void __launch_bounds__(128) attn_fwd_kernel(fwd_args a)
{
    extern __shared__ __align__(16) bf16 smem[];
    constexpr int LD = tile<HD>::LD, STEPS = tile<HD>::STEPS, COLS = tile<HD>::COLS, KEYS = tile<HD>::KEYS;
    constexpr bool Q_STAYS = HD > 128;    // queries stay in shared memory: registers are short
    int s = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    seq_view view = seq_of(a, s);
    int q0 = (gridDim.x - 1 - blockIdx.x) * 64;    // the longest rows first
    if (q0 >= view.n_row)
        return;
    kv_source src = source_of<HD>(a, view, s, head / (a.n_q / a.n_kv));
    bf16 *ks = smem, *vs = smem + KEYS * LD, *qs = Q_STAYS ? smem + 2 * KEYS * LD : vs;
    int64_t q_step = (int64_t)(a.n_q + 2 * a.n_kv) * HD;
    const bf16 *q = (const bf16 *)a.qkv + view.row0 * q_step + (int64_t)head * HD;
    int n_row = min(64, view.n_row - q0), first_pos = view.kv_len - view.n_row + q0, n_tile = (first_pos + n_row - 1) / KEYS + 1;
    int t0 = BOUNDS ? first_key(a.bounds, first_pos) / KEYS : 0;
    tile_load<HD>(qs, q + q0 * q_step, q_step, n_row);
    copy_commit();
    keys_load<HD>(ks, src.k, src, t0, view.kv_len);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    uint32_t qf[Q_STAYS ? 1 : STEPS][4];
#pragma unroll
    for (int k = 0; k < STEPS && !Q_STAYS; k++)
        left_load<HD>(qf[k], qs, warp * 16, k);
    __syncthreads();
    keys_load<HD>(vs, src.v, src, t0, view.kv_len);
    copy_commit();
    float o[COLS][4] = {}, l[2] = {}, m[2] = { -INFINITY, -INFINITY }, c = exponent_factor<HD, BOUNDS>(a.bounds);
    int pos[2];    // of this lane's two rows; rows after the end see all keys and are not stored
    pos[0] = first_pos + warp * 16 + lane / 4;
    pos[1] = pos[0] + 8;
    for (int r = 0; r < 2; r++)
        pos[r] = min(pos[r], view.kv_len - 1);
    for (int t = t0; t < n_tile; t++) {
        copy_wait<1>();
        __syncthreads();
        float p[KEYS / 2], alpha[2];
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            p[i] = 0;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            if (Q_STAYS)
                left_load<HD>(qf[0], qs, warp * 16, k);
#pragma unroll
            for (int j = 0; j < KEYS / 8; j += 2) {
                uint32_t b[4];
                right_rows<HD>(b, ks, j * 8, k);
                mma(*(float(*)[4]) & p[4 * j], qf[Q_STAYS ? 0 : k], b[0], b[1]);
                mma(*(float(*)[4]) & p[4 * j + 4], qf[Q_STAYS ? 0 : k], b[2], b[3]);
            }
        }
        __syncthreads();    // the keys have been read
        if (t + 1 < n_tile)
            keys_load<HD>(ks, src.k, src, t + 1, view.kv_len);
        copy_commit();
        if (BOUNDS)
            scores_cap(p, a.bounds);
        tile_mask<KEYS, BOUNDS>(p, t * KEYS + lane % 4 * 2, pos, a.bounds);
        tile_weights<KEYS, BOUNDS>(p, m, l, alpha, c);
#pragma unroll
        for (int j = 0; j < COLS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[j][e] *= alpha[e / 2];
        copy_wait<1>();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t w[4];
            left_from(w, *(float(*)[4]) & p[8 * k], *(float(*)[4]) & p[8 * k + 4]);
#pragma unroll
            for (int j = 0; j < COLS; j += 2) {
                uint32_t b[4];
                right_cols<HD>(b, vs, k, j * 8);
                mma(o[j], w, b[0], b[1]);
                mma(o[j + 1], w, b[2], b[3]);
            }
        }
        __syncthreads();    // the values have been read
        if (t + 1 < n_tile)
            keys_load<HD>(vs, src.v, src, t + 1, view.kv_len);
        copy_commit();
    }
    copy_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = row_sum(l[r]), inv = 1.0f / sum;
        int row = q0 + warp * 16 + lane / 4 + 8 * r;
        if (row >= view.n_row)
            continue;
        int64_t at = (view.row0 + row) * a.n_q + head;
#pragma unroll
        for (int j = 0; j < COLS; j++)
            *(uint32_t *)((bf16 *)a.out + at * HD + j * 8 + lane % 4 * 2) = pack2(o[j][2 * r] * inv, o[j][2 * r + 1] * inv);
        if (a.lse && lane % 4 == 0)
            a.lse[at] = lse_from<HD, BOUNDS>(a.bounds, m[r], sum);
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
    int n_key = view.kv_len - view.n_row + row + 1, first = first_key(a.bounds, n_key - 1);
    float o[OWN] = {}, l = 0, m = -INFINITY, scale = 1.0f / sqrtf((float)HD);
    for (int t = first / 32 * 32; t < n_key; t += 32) {
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
        float z = 0, slope;
        for (int j = 0; j < HD; j++)
            z = __fmaf_rn(q_of[warp][j], k[j], z);
        z = lane < width && t + lane >= first ? score_exact(z * scale, a.bounds, &slope) : -INFINITY;
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
    if (h.n_q < 1 || h.n_kv < 1 || h.n_q % h.n_kv || !cuda_head_size_ok(h.hd) || n_seq > 65535)
        return error_set(err, ERR_SHAPE,
                         "%s: %d query heads, %d key heads of size %d, %" PRId64 " sequences; the size must be 16, 32, 64, 96, 128 or 256, "
                         "the sequences at most 65535",
                         op, h.n_q, h.n_kv, h.hd, n_seq);
    return true;
}
template <int HD, bool BOUNDS>
static bool fwd_launch(struct cuda_device *cu, const fwd_args &a, const rope_fwd *turn, enum dtype t, int64_t n_row, int64_t n_seq,
                       int64_t max_q, const char *op, struct error *err)
{
    constexpr int bytes = 2 * tile<HD>::KEYS * tile<HD>::LD * 2, fwd_bytes = bytes + (HD > 128 ? tile<HD>::BYTES : 0);
    if (t == DT_F32) {
        attn_fwd_f32_kernel<HD><<<dim3(blocks_for(max_q, 4), (unsigned)a.n_q, (unsigned)n_seq), 128, 0, cu->stream>>>(a);
        return launch_ok(op, err);
    }
    if (max_q == 1 && a.n_q / a.n_kv <= DECODE_GROUP_MAX && !a.lse)
        return decode_fwd(cu, a, turn, BOUNDS, HD, n_seq, op, err);
    if (cu->hopper && HD >= 64)
        return hopper_fwd(cu, a, BOUNDS, HD, n_row, n_seq, max_q, op, err);
    auto *kernel = attn_fwd_kernel<HD, BOUNDS>;
    if (!cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, fwd_bytes), op, err))
        return false;
    kernel<<<dim3(blocks_for(max_q, 64), (unsigned)a.n_q, (unsigned)n_seq), 128, fwd_bytes, cu->stream>>>(a);
    return launch_ok(op, err);
}
template <bool BOUNDS>
static bool fwd_by_size(struct cuda_device *cu, const fwd_args &a, const rope_fwd *turn, int hd, enum dtype t, int64_t n_row, int64_t n_seq,
                        int64_t max_q, const char *op, struct error *err)
{
    switch (hd) {
    case 16: return fwd_launch<16, BOUNDS>(cu, a, turn, t, n_row, n_seq, max_q, op, err);
    case 32: return fwd_launch<32, BOUNDS>(cu, a, turn, t, n_row, n_seq, max_q, op, err);
    case 64: return fwd_launch<64, BOUNDS>(cu, a, turn, t, n_row, n_seq, max_q, op, err);
    case 96: return fwd_launch<96, BOUNDS>(cu, a, turn, t, n_row, n_seq, max_q, op, err);
    case 128: return fwd_launch<128, BOUNDS>(cu, a, turn, t, n_row, n_seq, max_q, op, err);
    }
    return fwd_launch<256, BOUNDS>(cu, a, turn, t, n_row, n_seq, max_q, op, err);
}
/* max_len: an upper bound on the keys of a sequence, also in later runs of what is being recorded. */
static bool fwd_run(struct cuda_device *cu, const fwd_args &a, const rope_fwd *turn, int hd, enum dtype t, int64_t n_row, int64_t n_seq,
                    int64_t max_q, int64_t max_len, const char *op, struct error *err)
{
    return bounds_matter(a.bounds, max_len) ? fwd_by_size<true>(cu, a, turn, hd, t, n_row, n_seq, max_q, op, err)
                                            : fwd_by_size<false>(cu, a, turn, hd, t, n_row, n_seq, max_q, op, err);
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
                   .n_kv = a->heads.n_kv,
                   .bounds = bounds_make(a->bounds, a->heads.hd) };
    return fwd_run(cuda_of(dev), f, NULL, a->heads.hd, a->dtype, a->n, a->n_seq, max_q, max_q, "attn_fwd", err);
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
                   .n_kv = a->heads.n_kv,
                   .bounds = bounds_make(a->bounds, a->heads.hd) };
    struct cuda_device *cu = cuda_of(dev);
    struct rope_fwd turn = cu->turn_left;
    bool left = turn.out && turn.out == a->qkv;
    cu->turn_left.out = NULL;
    if (left)
        f.qkv = turn.qkv;
    return fwd_run(cu, f, left ? &turn : NULL, a->heads.hd, a->dtype, a->n, a->n_seq, max_q, a->max_page * CUDA_PAGE_TOK, "attn_paged",
                   err);
}
