/* attn_fwd_hopper.cu - the forward of attn_fwd.cu with wgmma and bulk copies, in the same order of sums
 *
 * Blocks stay on their multiprocessors and take pieces of work, 64 queries of a head per warpgroup, the longest first, from a
 * counter. One thread of the first warpgroup loads: queries, then tiles of keys and values in two stages, and it is one piece
 * ahead of the others. The other warpgroups multiply; each issues the scores of the next tile before the values of this one, and
 * takes its turn, so that one group's weights are computed while the other's products run. */
#include <inttypes.h>
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/hopper.cuh"

template <int HD> struct shape {
    static constexpr int GROUPS = HD == 64 ? 3 : 2, ROWS = 64 * GROUPS, KEYS = tile<HD>::KEYS, BOXES = (HD + BOX_COLS - 1) / BOX_COLS;
    static constexpr int THREADS = 128 * (GROUPS + 1), STAGES = 2;
    static constexpr int Q_BOX = ROWS * BOX_ROW_BYTES, KV_BOX = KEYS * BOX_ROW_BYTES, PIECE = ATTN_TILE * BOX_ROW_BYTES;
    static constexpr int Q_BYTES = BOXES * Q_BOX, KV_BYTES = BOXES * KV_BOX;
    static constexpr int BYTES = Q_BYTES + 2 * STAGES * KV_BYTES + 1024;    // the last for alignment
    static constexpr int PARTS = HD > 128 ? 2 : 1, PART = HD / PARTS;       // columns of the values in one instruction
};
struct hopper_args {
    fwd_args f;
    CUtensorMap q, kv;    // kv: the same as q, or the pool as rows of one head
    int n_tile, n_seq;    // pieces of the longest sequence, sequences
    uint32_t *turn;       // next piece of work, blocks done
};
/* What a warpgroup needs to know about a piece of work. */
struct piece {
    int q0, head, n_row, kv_len;    // q0 < 0: there is no more
    int64_t row0;
};
#ifdef HOPPER_CODE
struct barriers {
    uint64_t work_full, work_empty, q_full, q_empty, k_full[2], k_empty[2], v_full[2], v_empty[2];
    piece work;
};
/* Take the next piece that has queries. */
template <int HD> __device__ static inline piece work_next(const hopper_args &a, int *seq)
{
    piece p;
    int per_tile = a.f.n_q * a.n_seq;
    for (;;) {
        int i = (int)atomicAdd(&a.turn[0], 1);
        p.q0 = (a.n_tile - 1 - i / per_tile) * shape<HD>::ROWS;
        *seq = i % per_tile / a.f.n_q;
        p.head = i % a.f.n_q;
        if (i >= a.n_tile * per_tile) {
            p.q0 = -1;
            return p;
        }
        seq_view v = seq_of(a.f, *seq);
        p.row0 = v.row0;
        p.n_row = v.n_row;
        p.kv_len = v.kv_len;
        if (p.q0 < v.n_row)
            return p;
    }
}
/* Tiles of keys that the queries of a piece see: the first, and the one after the last. */
template <int HD, bool BOUNDS> __device__ static inline int tile_first(const hopper_args &a, const piece &p)
{
    return BOUNDS ? first_key(a.f.bounds, p.kv_len - p.n_row + p.q0) / shape<HD>::KEYS : 0;
}
template <int HD> __device__ static inline int tile_end(const piece &p)
{
    int n_row = min(shape<HD>::ROWS, p.n_row - p.q0), first_pos = p.kv_len - p.n_row + p.q0;
    return (first_pos + n_row - 1) / shape<HD>::KEYS + 1;
}
/* Load tile t of keys (part 0) or values (1); b completes when it is there. Pages after the last are left out. */
template <int HD>
__device__ static inline void keys_fetch(uint8_t *to, const hopper_args &a, const piece &p, int seq, int t, int part, uint64_t *b)
{
    using S = shape<HD>;
    int kv_head = p.head / (a.f.n_q / a.f.n_kv), n = min(S::KEYS / ATTN_TILE, (p.kv_len - t * S::KEYS + ATTN_TILE - 1) / ATTN_TILE);
    barrier_expect(b, n * S::BOXES * S::PIECE);
    for (int i = 0; i < n; i++) {
        int key = t * S::KEYS + i * ATTN_TILE, col = 0, row;
        if (a.f.kv_len) {
            row = (a.f.page[seq * a.f.max_page + key / ATTN_TILE] * 2 * a.f.n_kv + part * a.f.n_kv + kv_head) * ATTN_TILE;
        } else {
            row = (int)p.row0 + key;
            col = (a.f.n_q + part * a.f.n_kv + kv_head) * HD;
        }
#pragma unroll
        for (int box = 0; box < S::BOXES; box++)
            box_load(to + box * S::KV_BOX + i * S::PIECE, &a.kv, col + box * BOX_COLS, row, b);
    }
}
#endif

template <int HD, bool BOUNDS>
__global__ void __launch_bounds__(shape<HD>::THREADS, 1) attn_hopper_kernel(const __grid_constant__ hopper_args a)
{
#ifdef HOPPER_CODE
    using S = shape<HD>;
    extern __shared__ uint8_t raw[];
    __shared__ barriers bar;
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    uint8_t *qs = smem, *ks = qs + S::Q_BYTES, *vs = ks + S::STAGES * S::KV_BYTES;
    int group = (int)threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        barrier_init(&bar.work_full, 1);
        barrier_init(&bar.work_empty, S::GROUPS * 4);
        barrier_init(&bar.q_full, 1);
        barrier_init(&bar.q_empty, S::GROUPS * 4);
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&bar.k_full[i], 1);
            barrier_init(&bar.v_full[i], 1);
            barrier_init(&bar.k_empty[i], S::GROUPS * 4);
            barrier_init(&bar.v_empty[i], S::GROUPS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group < 0) {
        registers_give<S::GROUPS == 3 ? 32 : 40>();
        if (threadIdx.x != 0)
            return;
        uint32_t n_work = 0, nk = 0, nv = 0;    // loaded so far
        for (;; n_work++) {
            int seq;
            piece p = work_next<HD>(a, &seq);
            barrier_wait(&bar.work_empty, ~n_work & 1);
            bar.work = p;
            barrier_arrive(&bar.work_full);
            if (p.q0 < 0)
                break;
            barrier_wait(&bar.q_empty, ~n_work & 1);
            barrier_expect(&bar.q_full, S::Q_BYTES);
            for (int box = 0; box < S::BOXES; box++)
                for (int g = 0; g < S::GROUPS; g++)
                    box_load(qs + box * S::Q_BOX + g * S::PIECE, &a.q, p.head * HD + box * BOX_COLS, (int)p.row0 + p.q0 + g * 64,
                             &bar.q_full);
            int t0 = tile_first<HD, BOUNDS>(a, p), n_tile = tile_end<HD>(p);
            for (int t = t0; t <= n_tile; t++) {
                if (t < n_tile) {
                    barrier_wait(&bar.k_empty[nk % S::STAGES], ~(nk / S::STAGES) & 1);
                    keys_fetch<HD>(ks + nk % S::STAGES * S::KV_BYTES, a, p, seq, t, 0, &bar.k_full[nk % S::STAGES]);
                    nk++;
                }
                if (t > t0) {
                    barrier_wait(&bar.v_empty[nv % S::STAGES], ~(nv / S::STAGES) & 1);
                    keys_fetch<HD>(vs + nv % S::STAGES * S::KV_BYTES, a, p, seq, t - 1, 1, &bar.v_full[nv % S::STAGES]);
                    nv++;
                }
            }
        }
        __threadfence();
        if (atomicInc(&a.turn[1], gridDim.x - 1) == gridDim.x - 1)    // the last block leaves both counters at 0
            a.turn[0] = 0;
        return;
    }
    registers_take<S::GROUPS == 3 ? 160 : 232>();
    constexpr int MINE = 1, NEXT = 1 + S::GROUPS;    // barriers: turn of each group, and each group's own
    int after = group + 1 == S::GROUPS ? 0 : group + 1;
    if (group == S::GROUPS - 1)
        meet_pass(MINE + 0, 256);    // the first group begins
    float c = exponent_factor<HD, BOUNDS>(a.f.bounds);
    uint32_t n_work = 0, nk = 0, nv = 0;
    for (;; n_work++) {
        barrier_wait(&bar.work_full, n_work & 1);
        piece p = bar.work;
        __syncwarp();
        if (lane == 0)
            barrier_arrive(&bar.work_empty);
        if (p.q0 < 0)
            break;
        int first = p.kv_len - p.n_row + p.q0 + group * 64, t0 = tile_first<HD, BOUNDS>(a, p), n_tile = tile_end<HD>(p), pos[2];
        pos[0] = min(first + warp * 16 + lane / 4, p.kv_len - 1);    // rows after the end see all keys and are not stored
        pos[1] = min(first + warp * 16 + lane / 4 + 8, p.kv_len - 1);
        float o[S::PARTS][S::PART / 2], s[S::KEYS / 2], l[2] = {}, m[2] = { -INFINITY, -INFINITY }, alpha[2];
        uint32_t w[S::KEYS / 16][4];
#pragma unroll
        for (int x = 0; x < S::PARTS; x++)
#pragma unroll
            for (int i = 0; i < S::PART / 2; i++)
                o[x][i] = 0;
        uint32_t q_at = shared_at(qs) + group * S::PIECE;
        auto scores = [&](int stage) {
            uint32_t k_at = shared_at(ks) + stage * S::KV_BYTES;
            products_begin();
#pragma unroll
            for (int k = 0; k < HD / 16; k++)
                product<S::KEYS>(s, by_columns(q_at, k, S::Q_BOX), by_columns(k_at, k, S::KV_BOX), k == 0);
            products_commit();
        };
        auto values = [&](int stage) {
            uint32_t v_at = shared_at(vs) + stage * S::KV_BYTES;
            products_begin();
#pragma unroll
            for (int k = 0; k < S::KEYS / 16; k++)
#pragma unroll
                for (int x = 0; x < S::PARTS; x++)
                    product_regs<S::PART, 1>(o[x], w[k], by_rows(v_at + x * (S::PART / BOX_COLS) * S::KV_BOX, k, S::KV_BOX), false);
            products_commit();
        };
        auto weights = [&](int t) {
            if (BOUNDS)
                scores_cap(s, a.f.bounds);
            if ((t + 1) * S::KEYS - 1 > min(first, p.kv_len - 1)
                || (BOUNDS && t * S::KEYS < first_key(a.f.bounds, min(first + 63, p.kv_len - 1))))
                tile_mask<S::KEYS, BOUNDS>(s, t * S::KEYS + lane % 4 * 2, pos, a.f.bounds);
            tile_weights<S::KEYS, BOUNDS>(s, m, l, alpha, c);
        };
        auto weights_pack = [&]() {
#pragma unroll
            for (int k = 0; k < S::KEYS / 16; k++)
                left_from(w[k], *(float(*)[4]) & s[8 * k], *(float(*)[4]) & s[8 * k + 4]);
        };
        barrier_wait(&bar.q_full, n_work & 1);
        barrier_wait(&bar.k_full[nk % S::STAGES], nk / S::STAGES & 1);
        meet(MINE + group, 256);
        pin(s);
        scores(nk % S::STAGES);
        meet_pass(MINE + after, 256);
        products_wait<0>();
        pin(s);
        if (lane == 0)
            barrier_arrive(&bar.k_empty[nk % S::STAGES]);
        nk++;
        weights(t0);
        weights_pack();
        for (int t = t0 + 1; t < n_tile; t++) {
            barrier_wait(&bar.k_full[nk % S::STAGES], nk / S::STAGES & 1);
            meet(MINE + group, 256);
            pin(s);
#pragma unroll
            for (int x = 0; x < S::PARTS; x++)
                pin(o[x]);
            scores(nk % S::STAGES);
            barrier_wait(&bar.v_full[nv % S::STAGES], nv / S::STAGES & 1);
            values(nv % S::STAGES);
            meet_pass(MINE + after, 256);
            products_wait<1>();
            pin(s);
            if (lane == 0)
                barrier_arrive(&bar.k_empty[nk % S::STAGES]);
            nk++;
            weights(t);
            products_wait<0>();
#pragma unroll
            for (int x = 0; x < S::PARTS; x++)
                pin(o[x]);
            if (lane == 0)
                barrier_arrive(&bar.v_empty[nv % S::STAGES]);
            nv++;
            weights_pack();
            if (__any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f))    // a factor of 1 changes no bit
#pragma unroll
                for (int x = 0; x < S::PARTS; x++)
#pragma unroll
                    for (int i = 0; i < S::PART / 2; i++)
                        o[x][i] *= alpha[i / 2 % 2];
        }
        if (lane == 0)
            barrier_arrive(&bar.q_empty);
        barrier_wait(&bar.v_full[nv % S::STAGES], nv / S::STAGES & 1);
        int n_valid = p.kv_len - (n_tile - 1) * S::KEYS;
        if (n_valid < S::KEYS) {    // what is after the sequence may be no number, and 0 times that is none either
            rows_clear<S::BOXES>(vs + nv % S::STAGES * S::KV_BYTES, n_valid, S::KEYS);
            stores_show();
            meet(NEXT + group, 128);
        }
#pragma unroll
        for (int x = 0; x < S::PARTS; x++)
            pin(o[x]);
        values(nv % S::STAGES);
        products_wait<0>();
#pragma unroll
        for (int x = 0; x < S::PARTS; x++)
            pin(o[x]);
        if (lane == 0)
            barrier_arrive(&bar.v_empty[nv % S::STAGES]);
        nv++;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = row_sum(l[r]), inv = 1.0f / sum;
            int row = p.q0 + group * 64 + warp * 16 + lane / 4 + 8 * r;
            int64_t at = (p.row0 + row) * a.f.n_q + p.head;
#pragma unroll
            for (int x = 0; x < S::PARTS; x++)
                row_store<S::PART>((bf16 *)a.f.out + at * HD + x * S::PART, o[x], r, inv, row < p.n_row);
            if (a.f.lse && lane % 4 == 0 && row < p.n_row)
                a.f.lse[at] = lse_from<HD, BOUNDS>(a.f.bounds, m[r], sum);
        }
    }
#endif
}

/* --- launching ------------------------------------------------------------------------------------------------------- */
bool tensor_map_make(CUtensorMap *map, const void *at, int64_t cols, int64_t rows, int64_t step, int box_rows, const char *op,
                     struct error *err)
{
    typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                               const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                               CUtensorMapFloatOOBfill);
    static encode_fn *encode;    // the same in every thread that looks it up
    if (!encode) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
        if (!cuda_ok(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status), op, err))
#else
        if (!cuda_ok(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status), op, err))
#endif
            return false;
        if (status != cudaDriverEntryPointSuccess)
            return error_set(err, ERR_UNSUPPORTED, "%s: the driver has no tensor maps; RC_CUDA_PATH=ampere does without", op);
        encode = (encode_fn *)found;
    }
    cuuint64_t size[2] = { (cuuint64_t)cols, (cuuint64_t)rows }, stride[1] = { (cuuint64_t)step * sizeof(bf16) };
    cuuint32_t box[2] = { BOX_COLS, (cuuint32_t)box_rows }, one[2] = { 1, 1 };
    CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)at, size, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS
           || error_set(err, ERR_INTERNAL, "%s: no tensor map of %" PRId64 " x %" PRId64 " (CUDA's %d)", op, rows, cols, (int)r);
}
template <int HD, bool BOUNDS>
static bool hopper_launch(struct cuda_device *cu, const fwd_args &f, int64_t n_row, int64_t n_seq, int64_t max_q, const char *op,
                          struct error *err)
{
    using S = shape<HD>;
    auto *kernel = attn_hopper_kernel<HD, BOUNDS>;
    hopper_args a = { .f = f, .n_tile = (int)blocks_for(max_q, S::ROWS), .n_seq = (int)n_seq, .turn = cu->turn };
    int64_t wide = (int64_t)(f.n_q + 2 * f.n_kv) * HD, n_work = (int64_t)a.n_tile * f.n_q * n_seq;
    if (n_row > INT32_MAX || n_work > INT32_MAX - 1024)
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows, %" PRId64 " pieces of work in one call", op, n_row, n_work);
    if (!tensor_map_make(&a.q, f.qkv, wide, n_row, wide, ATTN_TILE, op, err)
        || !(f.kv_len ? tensor_map_make(&a.kv, f.kv, HD, INT32_MAX, HD, ATTN_TILE, op, err)
                      : tensor_map_make(&a.kv, f.qkv, wide, n_row, wide, ATTN_TILE, op, err))
        || !cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES), op, err))
        return false;
    unsigned grid = (unsigned)(n_work < cu->n_sm ? n_work : cu->n_sm);
    kernel<<<grid, S::THREADS, S::BYTES, cu->stream>>>(a);
    return launch_ok(op, err);
}
template <bool BOUNDS>
static bool hopper_by_size(struct cuda_device *cu, const fwd_args &f, int hd, int64_t n_row, int64_t n_seq, int64_t max_q, const char *op,
                           struct error *err)
{
    switch (hd) {
    case 64: return hopper_launch<64, BOUNDS>(cu, f, n_row, n_seq, max_q, op, err);
    case 96: return hopper_launch<96, BOUNDS>(cu, f, n_row, n_seq, max_q, op, err);
    case 128: return hopper_launch<128, BOUNDS>(cu, f, n_row, n_seq, max_q, op, err);
    }
    return hopper_launch<256, BOUNDS>(cu, f, n_row, n_seq, max_q, op, err);
}
bool hopper_fwd(struct cuda_device *cu, const fwd_args &f, bool bounded, int hd, int64_t n_row, int64_t n_seq, int64_t max_q,
                const char *op, struct error *err)
{
    return bounded ? hopper_by_size<true>(cu, f, hd, n_row, n_seq, max_q, op, err)
                   : hopper_by_size<false>(cu, f, hd, n_row, n_seq, max_q, op, err);
}
