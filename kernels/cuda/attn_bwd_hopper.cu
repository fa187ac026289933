/* attn_bwd_hopper.cu - the backward of attn_bwd.cu with wgmma and bulk copies
 *
 * Two kernels again, so that each sum has one owner and one order, without atomics or fp32 gradients in memory. What the
 * products' left sides need (P and dS, transposed for dK and dV) never leaves registers: a result's fragments are the next
 * product's left side. Blocks take pieces of work, the longest first, as in attn_fwd_hopper.cu; one thread loads. The scale of the
 * scores is applied to dQ and dK at the end. Where pieces are few, dK and dV take smaller ones, and dQ is computed beside them. */
#include <inttypes.h>
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/hopper.cuh"

/* A block of dK and dV has 64 keys per warpgroup and takes queries by 64; one of dQ has 64 queries per warpgroup. */
template <int HD, int N_GROUP> struct bwd_shape {
    static constexpr int GROUPS = N_GROUP, THREADS = 128 * (GROUPS + 1), OWN = 64 * GROUPS;
    static constexpr int BOXES = (HD + BOX_COLS - 1) / BOX_COLS, PIECE = 64 * BOX_ROW_BYTES;
    static constexpr int OWN_BOX = OWN * BOX_ROW_BYTES, OWN_BYTES = BOXES * OWN_BOX;
    static constexpr int STAGES = 4, STEP_BYTES = BOXES * PIECE, STAT_BYTES = 64 * 4;
    static constexpr int DKDV_BYTES = 2 * OWN_BYTES + STAGES * (2 * STEP_BYTES + 2 * STAT_BYTES) + 1024;
    static constexpr int KEYS = HD == 64 ? 64 : 128, KEYS_BOX = KEYS * BOX_ROW_BYTES, KEYS_BYTES = BOXES * KEYS_BOX, DQ_STAGES = 2;
    static constexpr int DQ_BYTES = 2 * OWN_BYTES + DQ_STAGES * 2 * KEYS_BYTES + 1024;
};
template <int HD> using dkdv_shape = bwd_shape<HD, 2>;
/* With few pieces: 64 keys for two warpgroups. */
template <int HD> struct split_shape : bwd_shape<HD, 1> {
    static constexpr int THREADS = 384, SENT_BYTES = 64 * 64 * 4, DKDV_BYTES = bwd_shape<HD, 1>::DKDV_BYTES + 2 * SENT_BYTES;
};
template <int HD> using dq_shape = bwd_shape<HD, HD == 64 ? 3 : 2>;
struct bwd_hopper_args {
    bwd_args b;
    CUtensorMap qkv, dout;
    const float *lse, *dot;    // (n_q, stat_rows) each: lse log2 e and D
    int64_t stat_rows;
    int n_tile, n_seq;
    uint32_t *turn;
};
/* own: first key or query of the piece; < 0: there is no more. head: of keys for dK and dV, of queries for dQ. */
struct bwd_piece {
    int own, head, n;
    int64_t row0, stat0;    // first row of the sequence, in tensors and in statistics
};

/* lse log2 e and D = sum(dO O) of each row, by head. HD / 8 lanes (of as many as the next power of two) per row and head, 16
 * bytes each. */
template <int HD> struct stat_shape {
    static constexpr int LANES = HD == 64 ? 8 : 16, ROWS = 128 / LANES;
};
template <int HD> __global__ static void stat_kernel(bwd_args a, int64_t stat_rows)
{
    constexpr int LANES = stat_shape<HD>::LANES;
    int64_t row0 = a.seq[blockIdx.z], row = row0 + (int64_t)blockIdx.x * stat_shape<HD>::ROWS + threadIdx.x / LANES;
    bool there = row < a.seq[blockIdx.z + 1];
    int head = blockIdx.y, lane = threadIdx.x % LANES;
    float sum = 0;
    if (there && lane < HD / 8) {
        int64_t at = (row * a.n_q + head) * HD + lane * 8;
        float x[8], y[8];
        load_v<bf16, 8>(x, (const bf16 *)a.dout + at);
        load_v<bf16, 8>(y, (const bf16 *)a.out + at);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = __fmaf_rn(x[i], y[i], sum);
    }
#pragma unroll
    for (int w = LANES / 2; w > 0; w /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, w);
    if (there && lane == 0) {
        int64_t at = attn_stat_start(row0, blockIdx.z) + row - row0;
        a.dot[head * stat_rows + at] = a.lse[row * a.n_q + head] * LOG2E;
        a.dot[(a.n_q + head) * stat_rows + at] = sum;
    }
}

#ifdef HOPPER_CODE
struct bwd_barriers {
    uint64_t work_full, work_empty, own_full, own_empty, full[4], empty[4];
    uint64_t sent[2], taken[2];    // weights from one warpgroup to the other
    bwd_piece work;
};
/* Take the next piece; n_head heads, `own` rows each, the last rows first or the first. */
__device__ static inline bwd_piece bwd_next(const bwd_hopper_args &a, int n_head, int own, bool last_first)
{
    bwd_piece p;
    int per_tile = n_head * a.n_seq;
    for (;;) {
        int i = (int)atomicAdd(&a.turn[0], 1), s = i % per_tile / n_head, tile = i / per_tile;
        if (tile >= a.n_tile) {
            p.own = -1;
            return p;
        }
        p.own = (last_first ? a.n_tile - 1 - tile : tile) * own;
        p.head = i % n_head;
        p.row0 = a.b.seq[s];
        p.n = a.b.seq[s + 1] - (int)p.row0;
        p.stat0 = attn_stat_start(p.row0, s);
        if (p.own < p.n)
            return p;
    }
}
__device__ static inline void bwd_end(const bwd_hopper_args &a)
{
    __threadfence();
    if (atomicInc(&a.turn[1], gridDim.x - 1) == gridDim.x - 1)    // the last block leaves both counters at 0
        a.turn[0] = 0;
}
template <int GROUPS> __device__ static inline void bwd_barriers_init(bwd_barriers *bar, int stages)
{
    if (threadIdx.x == 0) {
        barrier_init(&bar->work_full, 1);
        barrier_init(&bar->work_empty, GROUPS * 4);
        barrier_init(&bar->own_full, 1);
        barrier_init(&bar->own_empty, GROUPS * 4);
        for (int i = 0; i < stages; i++) {
            barrier_init(&bar->full[i], 1);
            barrier_init(&bar->empty[i], GROUPS * 4);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(&bar->sent[i], 4);
            barrier_init(&bar->taken[i], 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}
/* Load rows x BOXES boxes of one head (columns from col, rows from row) into a tile of `rows` rows. */
template <int BOXES> __device__ static inline void tile_fetch(uint8_t *to, const CUtensorMap *map, int col, int row, int rows, uint64_t *b)
{
    for (int box = 0; box < BOXES; box++)
        for (int at = 0; at < rows; at += 64)
            box_load(to + (box * rows + at) * BOX_ROW_BYTES, map, col + box * BOX_COLS, row + at, b);
}
/* left side of a product over columns from 8 lanes' results: 16 columns from column 16 k. */
template <int N> __device__ static inline void left_of(uint32_t (&w)[4], const float (&x)[N], int k)
{
    w[0] = pack2(x[8 * k], x[8 * k + 1]);
    w[1] = pack2(x[8 * k + 2], x[8 * k + 3]);
    w[2] = pack2(x[8 * k + 4], x[8 * k + 5]);
    w[3] = pack2(x[8 * k + 6], x[8 * k + 7]);
}
/* After the last query that sees a key of the piece. */
template <bool BOUNDS> __device__ static inline int query_end(const bwd_hopper_args &a, const bwd_piece &p, int own)
{
    return BOUNDS ? min(p.n, p.own + own - 1 + a.b.bounds.window) : p.n;
}
/* For 16 queries from column 16 k: clear the weights that are masked, pack them as a left side, and multiply them by the slopes of the
 * caps. key, query: of this lane's first row and of column 0. */
__device__ static inline void weights_finish(uint32_t (&w)[4], float (&s)[32], const float (&slope)[8], int k, int key, int query,
                                             const score_bounds &b)
{
#pragma unroll
    for (int i = 8 * k; i < 8 * k + 8; i++) {
        int ahead = query + i / 4 * 8 + i % 2 - (key + i / 2 % 2 * 8);
        if (ahead < 0 || ahead >= b.window)
            s[i] = 0;
    }
    left_of(w, s, k);
#pragma unroll
    for (int i = 0; i < 8; i++)
        s[8 * k + i] *= slope[i];
}
/* From scores (64 keys from `first` by 64 queries from q0): weights for dV as left sides, and in s those for dS. */
template <bool BOUNDS>
__device__ static inline void weights_make(uint32_t (&w)[4][4], float (&s)[32], const float *lse, float c, int first, int q0,
                                           const score_bounds &b)
{
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    float slope[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 l = *(const float2 *)&lse[j * 8 + lane % 4 * 2];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float z = score_of<BOUNDS>(s[4 * j + e], b, &slope[BOUNDS ? j % 2 * 4 + e : 0]);
            s[4 * j + e] = weight_of(z, c, e % 2 ? l.y : l.x);
        }
        if (BOUNDS && j % 2)    // weights for dV now, weights times slopes for dS from here on
            weights_finish(w[j / 2], s, slope, j / 2, first + warp * 16 + lane / 4, q0 + lane % 4 * 2, b);
    }
    if (!BOUNDS && q0 == first)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (warp * 16 + lane / 4 + i / 2 % 2 * 8 > i / 4 * 8 + lane % 4 * 2 + i % 2)
                s[i] = 0;
    if (!BOUNDS)
#pragma unroll
        for (int k = 0; k < 4; k++)
            left_of(w[k], s, k);
}
/* dS of weights and dP, as left sides. */
__device__ static inline void slopes_make(uint32_t (&x)[4][4], const float (&s)[32], float (&dp)[32], const float *dot)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 m = *(const float2 *)&dot[j * 8 + lane % 4 * 2];
#pragma unroll
        for (int e = 0; e < 4; e++)
            dp[4 * j + e] = s[4 * j + e] * (dp[4 * j + e] - (e % 2 ? m.y : m.x));
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        left_of(x[k], dp, k);
}
/* The memory of a block of dK and dV. */
template <typename S> struct dkdv_memory {
    uint8_t *ks, *vs, *qs, *ds;
    float *stat;    // of each stage: 64 of lse, 64 of D
    __device__ inline explicit dkdv_memory(uint8_t *raw)
    {
        ks = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
        vs = ks + S::OWN_BYTES;
        qs = vs + S::OWN_BYTES;
        ds = qs + S::STAGES * S::STEP_BYTES;
        stat = (float *)(ds + S::STAGES * S::STEP_BYTES);
    }
};
/* Nothing comes from what is after the sequence: clear a stage from query `first` on. By a warpgroup. */
template <typename S> __device__ static inline void queries_clear(uint8_t *q, uint8_t *d, float *stat, int first, int group)
{
    rows_clear<S::BOXES>(q, first, 64);
    rows_clear<S::BOXES>(d, first, 64);
    if ((int)threadIdx.x % 128 < 64 - first)
        stat[first + threadIdx.x % 128] = stat[64 + first + threadIdx.x % 128] = 0;
    stores_show();
    meet(1 + group, 128);
}
/* The thread that loads for dK and dV. */
template <typename S, int HD, bool BOUNDS>
__device__ static inline void dkdv_fetch(const bwd_hopper_args &a, const dkdv_memory<S> &m, bwd_barriers &bar)
{
    int per = a.b.n_q / a.b.n_kv;
    uint32_t n_work = 0, n = 0;
    for (;; n_work++) {
        bwd_piece p = bwd_next(a, a.b.n_kv, S::OWN, false);
        barrier_wait(&bar.work_empty, ~n_work & 1);
        bar.work = p;
        barrier_arrive(&bar.work_full);
        if (p.own < 0)
            break;
        barrier_wait(&bar.own_empty, ~n_work & 1);
        barrier_expect(&bar.own_full, 2 * S::OWN_BYTES);
        tile_fetch<S::BOXES>(m.ks, &a.qkv, (a.b.n_q + p.head) * HD, (int)p.row0 + p.own, S::OWN, &bar.own_full);
        tile_fetch<S::BOXES>(m.vs, &a.qkv, (a.b.n_q + a.b.n_kv + p.head) * HD, (int)p.row0 + p.own, S::OWN, &bar.own_full);
        int stop = query_end<BOUNDS>(a, p, S::OWN);
        for (int head = p.head * per; head < (p.head + 1) * per; head++)
            for (int q0 = p.own; q0 < stop; q0 += 64, n++) {
                int stage = n % S::STAGES, row = (int)p.row0 + q0;
                float *stat = m.stat + stage * 128;
                barrier_wait(&bar.empty[stage], ~(n / S::STAGES) & 1);
                barrier_expect(&bar.full[stage], 2 * S::STEP_BYTES + 2 * S::STAT_BYTES);
                tile_fetch<S::BOXES>(m.qs + stage * S::STEP_BYTES, &a.qkv, head * HD, row, 64, &bar.full[stage]);
                tile_fetch<S::BOXES>(m.ds + stage * S::STEP_BYTES, &a.dout, head * HD, row, 64, &bar.full[stage]);
                bytes_load(stat, a.lse + head * a.stat_rows + p.stat0 + q0, S::STAT_BYTES, &bar.full[stage]);
                bytes_load(stat + 64, a.dot + head * a.stat_rows + p.stat0 + q0, S::STAT_BYTES, &bar.full[stage]);
            }
    }
    bwd_end(a);
}
#endif

template <int HD, bool BOUNDS>
__global__ void __launch_bounds__(dkdv_shape<HD>::THREADS, 1) dkdv_hopper_kernel(const __grid_constant__ bwd_hopper_args a)
{
#ifdef HOPPER_CODE
    using S = dkdv_shape<HD>;
    extern __shared__ uint8_t raw[];
    __shared__ bwd_barriers bar;
    dkdv_memory<S> m(raw);
    int group = (int)threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, per = a.b.n_q / a.b.n_kv;
    bwd_barriers_init<S::GROUPS>(&bar, S::STAGES);
    if (group < 0) {
        registers_give<HD == 128 ? 24 : 40>();
        if (threadIdx.x == 0)
            dkdv_fetch<S, HD, BOUNDS>(a, m, bar);
        return;
    }
    registers_take<HD == 128 ? 240 : 232>();
    float scale = 1.0f / sqrtf((float)HD), c = BOUNDS && a.b.bounds.cap > 0 ? LOG2E : LOG2E * scale;
    uint32_t n_work = 0, n = 0, k_at = shared_at(m.ks) + group * S::PIECE, v_at = shared_at(m.vs) + group * S::PIECE;
    for (;; n_work++) {
        barrier_wait(&bar.work_full, n_work & 1);
        bwd_piece p = bar.work;
        __syncwarp();
        if (lane == 0)
            barrier_arrive(&bar.work_empty);
        if (p.own < 0)
            break;
        float dk[HD / 2], dv[HD / 2];
#pragma unroll
        for (int i = 0; i < HD / 2; i++)
            dk[i] = dv[i] = 0;
        barrier_wait(&bar.own_full, n_work & 1);
        int stop = query_end<BOUNDS>(a, p, S::OWN);
        for (int head = 0; head < per; head++)
            for (int q0 = p.own; q0 < stop; q0 += 64, n++) {
                int stage = n % S::STAGES, first = p.own + group * 64;
                barrier_wait(&bar.full[stage], n / S::STAGES & 1);
                // else all queries are before the keys, or see none of them any more
                if (q0 >= first && (!BOUNDS || q0 < first + 63 + a.b.bounds.window)) {
                    uint8_t *q = m.qs + stage * S::STEP_BYTES, *d = m.ds + stage * S::STEP_BYTES;
                    float *stat = m.stat + stage * 128, s[32], dp[32];
                    uint32_t w[4][4], x[4][4], q_at = shared_at(q), d_at = shared_at(d);
                    if (p.n - q0 < 64)
                        queries_clear<S>(q, d, stat, p.n - q0, group);
                    products_begin();
#pragma unroll
                    for (int k = 0; k < HD / 16; k++)
                        product<64>(s, by_columns(k_at, k, S::OWN_BOX), by_columns(q_at, k, S::PIECE), k == 0);
                    products_commit();
#pragma unroll
                    for (int k = 0; k < HD / 16; k++)
                        product<64>(dp, by_columns(v_at, k, S::OWN_BOX), by_columns(d_at, k, S::PIECE), k == 0);
                    products_commit();
                    products_wait<1>();
                    pin(s);
                    weights_make<BOUNDS>(w, s, stat, c, first, q0, a.b.bounds);
                    pin(dv);
                    products_begin();
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        product_regs<HD, 1>(dv, w[k], by_rows(d_at, k, S::PIECE), false);
                    products_commit();
                    products_wait<1>();
                    pin(dp);
                    slopes_make(x, s, dp, stat + 64);
                    pin(dk);
                    products_begin();
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        product_regs<HD, 1>(dk, x[k], by_rows(q_at, k, S::PIECE), false);
                    products_commit();
                    products_wait<0>();
                    pin(dv);
                    pin(dk);
                }
                if (lane == 0)
                    barrier_arrive(&bar.empty[stage]);
            }
        if (lane == 0)
            barrier_arrive(&bar.own_empty);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int key = p.own + group * 64 + warp * 16 + lane / 4 + 8 * r;
            bf16 *out = (bf16 *)a.b.dqkv + ((p.row0 + key) * (a.b.n_q + 2 * a.b.n_kv) + a.b.n_q + p.head) * HD;
            row_store<HD>(out, dk, r, scale, key < p.n);
            row_store<HD>(out + (int64_t)a.b.n_kv * HD, dv, r, 1, key < p.n);
        }
    }
#endif
}

/* One warpgroup makes weights and dV, the other takes the weights and makes dS and dK, for the same 64 keys: half the time from one
 * step to the next, where pieces are too few for all multiprocessors. Products of the next step's scores follow those of a step. */
template <int HD>
__global__ void __launch_bounds__(split_shape<HD>::THREADS, 1) dkdv_split_kernel(const __grid_constant__ bwd_hopper_args a)
{
#ifdef HOPPER_CODE
    using S = split_shape<HD>;
    extern __shared__ uint8_t raw[];
    __shared__ bwd_barriers bar;
    dkdv_memory<S> m(raw);
    float4 *sent = (float4 *)(m.stat + S::STAGES * 128);
    int group = (int)threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, per = a.b.n_q / a.b.n_kv;
    bwd_barriers_init<2>(&bar, S::STAGES);
    next_start();
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x == 0)
            dkdv_fetch<S, HD, false>(a, m, bar);
        return;
    }
    registers_take<232>();
    float scale = 1.0f / sqrtf((float)HD), c = LOG2E * scale;
    uint32_t n_work = 0, n = 0, own_at = shared_at(group == 0 ? m.ks : m.vs);
    for (;; n_work++) {
        barrier_wait(&bar.work_full, n_work & 1);
        bwd_piece p = bar.work;
        __syncwarp();
        if (lane == 0)
            barrier_arrive(&bar.work_empty);
        if (p.own < 0)
            break;
        float sum[HD / 2], s[32];    // dV or dK; scores or dP
#pragma unroll
        for (int i = 0; i < HD / 2; i++)
            sum[i] = 0;
        barrier_wait(&bar.own_full, n_work & 1);
        int n_tile = (p.n - p.own + 63) / 64, tile = 0;
        uint32_t end = n + (uint32_t)(n_tile * per);
        // the first product of step i, whose queries are `of`
        auto begin = [&](uint32_t i, int of) {
            int stage = i % S::STAGES, q0 = p.own + of * 64;
            uint8_t *q = m.qs + stage * S::STEP_BYTES, *d = m.ds + stage * S::STEP_BYTES;
            barrier_wait(&bar.full[stage], i / S::STAGES & 1);
            if (p.n - q0 < 64)
                queries_clear<S>(q, d, m.stat + stage * 128, p.n - q0, group);
            uint32_t at = shared_at(group == 0 ? q : d);
#pragma unroll
            for (int k = 0; k < HD / 16; k++)
                product<64>(s, by_columns(own_at, k, S::OWN_BOX), by_columns(at, k, S::PIECE), k == 0);
            products_commit();
        };
        // from there to the left side of the second
        auto middle = [&](uint32_t(&w)[4][4], uint32_t i, int of) {
            float4 *pass = sent + (i % 2 * 8) * 128 + threadIdx.x % 128;
            const float *stat = m.stat + i % S::STAGES * 128;
            if (group == 0) {
                weights_make<false>(w, s, stat, c, p.own, p.own + of * 64, a.b.bounds);
                barrier_wait(&bar.taken[i % 2], ~(i / 2) & 1);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    pass[j * 128] = make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
                __syncwarp();
                if (lane == 0)
                    barrier_arrive(&bar.sent[i % 2]);
            } else {
                float weight[32];
                barrier_wait(&bar.sent[i % 2], i / 2 & 1);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    float4 v = pass[j * 128];
                    weight[4 * j] = v.x;
                    weight[4 * j + 1] = v.y;
                    weight[4 * j + 2] = v.z;
                    weight[4 * j + 3] = v.w;
                }
                __syncwarp();
                if (lane == 0)
                    barrier_arrive(&bar.taken[i % 2]);
                slopes_make(w, weight, s, stat + 64);
            }
        };
        auto second = [&](const uint32_t(&w)[4][4], uint32_t i) {
            int stage = i % S::STAGES;
            uint32_t at = shared_at((group == 0 ? m.ds : m.qs) + stage * S::STEP_BYTES);
            pin(sum);
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; k++)
                product_regs<HD, 1>(sum, w[k], by_rows(at, k, S::PIECE), false);
            products_commit();
        };
        uint32_t w[4][4];
        products_begin();
        begin(n, 0);
        products_wait<0>();
        pin(s);
        for (; n + 1 < end; n++) {
            middle(w, n, tile);
            tile = tile + 1 == n_tile ? 0 : tile + 1;
            pin(s);
            second(w, n);
            begin(n + 1, tile);
            products_wait<0>();
            pin(sum);
            pin(s);
            if (lane == 0)
                barrier_arrive(&bar.empty[n % S::STAGES]);
        }
        middle(w, n, tile);
        second(w, n);
        products_wait<0>();
        pin(sum);
        if (lane == 0) {
            barrier_arrive(&bar.empty[n % S::STAGES]);
            barrier_arrive(&bar.own_empty);
        }
        n++;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int key = p.own + warp * 16 + lane / 4 + 8 * r;
            int64_t head = a.b.n_q + p.head + (group == 0 ? a.b.n_kv : 0);
            bf16 *out = (bf16 *)a.b.dqkv + ((p.row0 + key) * (a.b.n_q + 2 * a.b.n_kv) + head) * HD;
            row_store<HD>(out, sum, r, group == 0 ? 1 : scale, key < p.n);
        }
    }
#endif
}

template <int HD, bool BOUNDS>
__global__ void __launch_bounds__(dq_shape<HD>::THREADS, 1) dq_hopper_kernel(const __grid_constant__ bwd_hopper_args a)
{
#ifdef HOPPER_CODE
    using S = dq_shape<HD>;
    extern __shared__ uint8_t raw[];
    __shared__ bwd_barriers bar;
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    uint8_t *qs = smem, *ds = qs + S::OWN_BYTES, *ks = ds + S::OWN_BYTES, *vs = ks + S::DQ_STAGES * S::KEYS_BYTES;
    int group = (int)threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, per = a.b.n_q / a.b.n_kv;
    bwd_barriers_init<S::GROUPS>(&bar, S::DQ_STAGES);
    if (group < 0) {
        registers_give<S::GROUPS == 3 ? 32 : 40>();
        if (threadIdx.x != 0)
            return;
        uint32_t n_work = 0, n = 0;
        for (;; n_work++) {
            bwd_piece p = bwd_next(a, a.b.n_q, S::OWN, true);
            barrier_wait(&bar.work_empty, ~n_work & 1);
            bar.work = p;
            barrier_arrive(&bar.work_full);
            if (p.own < 0)
                break;
            barrier_wait(&bar.own_empty, ~n_work & 1);
            barrier_expect(&bar.own_full, 2 * S::OWN_BYTES);
            tile_fetch<S::BOXES>(qs, &a.qkv, p.head * HD, (int)p.row0 + p.own, S::OWN, &bar.own_full);
            tile_fetch<S::BOXES>(ds, &a.dout, p.head * HD, (int)p.row0 + p.own, S::OWN, &bar.own_full);
            int stop = min(p.n, p.own + S::OWN), col = (a.b.n_q + p.head / per) * HD;
            for (int k0 = BOUNDS ? first_key(a.b.bounds, p.own) / S::KEYS * S::KEYS : 0; k0 < stop; k0 += S::KEYS, n++) {
                int stage = n % S::DQ_STAGES;
                barrier_wait(&bar.empty[stage], ~(n / S::DQ_STAGES) & 1);
                barrier_expect(&bar.full[stage], 2 * S::KEYS_BYTES);
                tile_fetch<S::BOXES>(ks + stage * S::KEYS_BYTES, &a.qkv, col, (int)p.row0 + k0, S::KEYS, &bar.full[stage]);
                tile_fetch<S::BOXES>(vs + stage * S::KEYS_BYTES, &a.qkv, col + a.b.n_kv * HD, (int)p.row0 + k0, S::KEYS, &bar.full[stage]);
            }
        }
        bwd_end(a);
        before_wait();    // what comes after this kernel relies on all before
        return;
    }
    registers_take<S::GROUPS == 3 ? 160 : 232>();
    float scale = 1.0f / sqrtf((float)HD), c = BOUNDS && a.b.bounds.cap > 0 ? LOG2E : LOG2E * scale;
    uint32_t n_work = 0, n = 0, q_at = shared_at(qs) + group * S::PIECE, d_at = shared_at(ds) + group * S::PIECE;
    for (;; n_work++) {
        barrier_wait(&bar.work_full, n_work & 1);
        bwd_piece p = bar.work;
        __syncwarp();
        if (lane == 0)
            barrier_arrive(&bar.work_empty);
        if (p.own < 0)
            break;
        int first = p.own + group * 64, row = warp * 16 + lane / 4, stop = min(p.n, p.own + S::OWN);
        float dq[HD / 2], lse[2], dot[2];
#pragma unroll
        for (int i = 0; i < HD / 2; i++)
            dq[i] = 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t at = p.head * a.stat_rows + p.stat0 + min(first + row + 8 * r, p.n - 1);
            lse[r] = a.lse[at];
            dot[r] = a.dot[at];
        }
        barrier_wait(&bar.own_full, n_work & 1);
        for (int k0 = BOUNDS ? first_key(a.b.bounds, p.own) / S::KEYS * S::KEYS : 0; k0 < stop; k0 += S::KEYS, n++) {
            int stage = n % S::DQ_STAGES;
            barrier_wait(&bar.full[stage], n / S::DQ_STAGES & 1);
            // else all keys are after the queries, or before their windows
            if (k0 <= first + 63 && (!BOUNDS || k0 + S::KEYS > first_key(a.b.bounds, first))) {
                uint8_t *k_of = ks + stage * S::KEYS_BYTES, *v_of = vs + stage * S::KEYS_BYTES;
                uint32_t k_at = shared_at(k_of), v_at = shared_at(v_of), w[S::KEYS / 16][4];
                float s[S::KEYS / 2], dp[S::KEYS / 2];
                if (p.n - k0 < S::KEYS) {    // what is after the sequence may be no number
                    rows_clear<S::BOXES>(k_of, p.n - k0, S::KEYS);
                    rows_clear<S::BOXES>(v_of, p.n - k0, S::KEYS);
                    stores_show();
                    meet(1 + group, 128);
                }
                products_begin();
#pragma unroll
                for (int k = 0; k < HD / 16; k++)
                    product<S::KEYS>(s, by_columns(q_at, k, S::OWN_BOX), by_columns(k_at, k, S::KEYS_BOX), k == 0);
                products_commit();
#pragma unroll
                for (int k = 0; k < HD / 16; k++)
                    product<S::KEYS>(dp, by_columns(d_at, k, S::OWN_BOX), by_columns(v_at, k, S::KEYS_BOX), k == 0);
                products_commit();
                products_wait<1>();
                pin(s);
#pragma unroll
                for (int i = 0; i < S::KEYS / 2; i++) {
                    float slope, z = score_of<BOUNDS>(s[i], a.b.bounds, &slope);
                    s[i] = weight_of(z, c, lse[i / 2 % 2]);
                    int behind = first + row + i / 2 % 2 * 8 - (k0 + i / 4 * 8 + lane % 4 * 2 + i % 2);
                    if (BOUNDS)
                        s[i] = behind < 0 || behind >= a.b.bounds.window ? 0 : s[i] * slope;
                }
                if (!BOUNDS && k0 + S::KEYS - 1 > first)
#pragma unroll
                    for (int i = 0; i < S::KEYS / 2; i++)
                        if (k0 + i / 4 * 8 + lane % 4 * 2 + i % 2 > first + row + i / 2 % 2 * 8)
                            s[i] = 0;
                products_wait<0>();
                pin(dp);
#pragma unroll
                for (int i = 0; i < S::KEYS / 2; i++)
                    s[i] *= dp[i] - dot[i / 2 % 2];
#pragma unroll
                for (int k = 0; k < S::KEYS / 16; k++)
                    left_of(w[k], s, k);
                pin(dq);
                products_begin();
#pragma unroll
                for (int k = 0; k < S::KEYS / 16; k++)
                    product_regs<HD, 1>(dq, w[k], by_rows(k_at, k, S::KEYS_BOX), false);
                products_commit();
                products_wait<0>();
                pin(dq);
            }
            if (lane == 0)
                barrier_arrive(&bar.empty[stage]);
        }
        if (lane == 0)
            barrier_arrive(&bar.own_empty);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int query = first + row + 8 * r;
            bf16 *out = (bf16 *)a.b.dqkv + ((p.row0 + query) * (a.b.n_q + 2 * a.b.n_kv) + p.head) * HD;
            row_store<HD>(out, dq, r, scale, query < p.n);
        }
    }
#endif
}

/* --- launching ------------------------------------------------------------------------------------------------------- */
/* Launch the kernel of dQ; beside: while that of dK and dV runs, which calls next_start, on the multiprocessors it leaves. Neither needs what
 * the other writes; dQ's waits for the other at its end. */
static bool dq_launch(struct cuda_device *cu, void (*kernel)(bwd_hopper_args), const bwd_hopper_args &a, int64_t work, int threads,
                      size_t shared_bytes, bool beside, const char *op, struct error *err)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)(work < cu->n_sm ? work : cu->n_sm));
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = shared_bytes;
    c.stream = cu->stream;
    c.attrs = &early;
    c.numAttrs = beside;
    return cuda_ok(cudaLaunchKernelEx(&c, kernel, a), op, err);
}
template <int HD, bool BOUNDS>
static bool bwd_hopper_launch(struct cuda_device *cu, const bwd_args &b, int64_t n, int64_t n_seq, int64_t max_len, struct error *err)
{
    using DKDV = dkdv_shape<HD>;
    using DQ = dq_shape<HD>;
    const char *op = "attn_bwd";
    auto *dq = dq_hopper_kernel<HD, BOUNDS>;
    int64_t wide = (int64_t)(b.n_q + 2 * b.n_kv) * HD, out_wide = (int64_t)b.n_q * HD, stat_rows = attn_stat_rows(n, n_seq);
    // all pieces run at once; other heads and bounds were not measured
    constexpr bool MAY_SPLIT = HD == 128 && !BOUNDS;
    bool split = MAY_SPLIT && blocks_for(max_len, split_shape<HD>::OWN) * b.n_kv * n_seq <= cu->n_sm;
    auto *keys = dkdv_hopper_kernel<HD, BOUNDS>;
    if constexpr (MAY_SPLIT)
        if (split)
            keys = dkdv_split_kernel<HD>;
    int keys_bytes = split ? split_shape<HD>::DKDV_BYTES : DKDV::DKDV_BYTES;
    int64_t dkdv_tiles = blocks_for(max_len, split ? split_shape<HD>::OWN : DKDV::OWN), dq_tiles = blocks_for(max_len, DQ::OWN);
    int64_t dkdv_work = dkdv_tiles * b.n_kv * n_seq, dq_work = dq_tiles * b.n_q * n_seq;
    bwd_hopper_args a = { .b = b,
                          .lse = b.dot,
                          .dot = b.dot + b.n_q * stat_rows,
                          .stat_rows = stat_rows,
                          .n_tile = (int)dkdv_tiles,
                          .n_seq = (int)n_seq,
                          .turn = cu->turn };
    if (n > INT32_MAX - 1024 || dkdv_work + dq_work > INT32_MAX - 1024 || b.n_q > 65535)
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows, %" PRId64 " pieces of work in one call", op, n, dkdv_work + dq_work);
    if (!tensor_map_make(&a.qkv, b.qkv, wide, n, wide, ATTN_TILE, op, err)
        || !tensor_map_make(&a.dout, b.dout, out_wide, n, out_wide, ATTN_TILE, op, err)
        || !cuda_ok(cudaFuncSetAttribute(keys, cudaFuncAttributeMaxDynamicSharedMemorySize, keys_bytes), op, err)
        || !cuda_ok(cudaFuncSetAttribute(dq, cudaFuncAttributeMaxDynamicSharedMemorySize, DQ::DQ_BYTES), op, err))
        return false;
    stat_kernel<HD>
        <<<dim3(blocks_for(max_len, stat_shape<HD>::ROWS), (unsigned)b.n_q, (unsigned)n_seq), 128, 0, cu->stream>>>(b, stat_rows);
    keys<<<(unsigned)(dkdv_work < cu->n_sm ? dkdv_work : cu->n_sm), DKDV::THREADS, keys_bytes, cu->stream>>>(a);
    if (!launch_ok(op, err))
        return false;
    a.n_tile = (int)dq_tiles;
    a.turn = cu->turn + 2;    // both share out work at the same time
    return dq_launch(cu, dq, a, dq_work, DQ::THREADS, DQ::DQ_BYTES, split, op, err);
}
template <bool BOUNDS>
static bool bwd_hopper_by_size(struct cuda_device *cu, const bwd_args &a, int hd, int64_t n, int64_t n_seq, int64_t max_len,
                               struct error *err)
{
    switch (hd) {
    case 64: return bwd_hopper_launch<64, BOUNDS>(cu, a, n, n_seq, max_len, err);
    case 96: return bwd_hopper_launch<96, BOUNDS>(cu, a, n, n_seq, max_len, err);
    }
    return bwd_hopper_launch<128, BOUNDS>(cu, a, n, n_seq, max_len, err);
}
bool hopper_bwd(struct cuda_device *cu, const bwd_args &a, bool bounded, int hd, int64_t n, int64_t n_seq, int64_t max_len,
                struct error *err)
{
    return bounded ? bwd_hopper_by_size<true>(cu, a, hd, n, n_seq, max_len, err)
                   : bwd_hopper_by_size<false>(cu, a, hd, n, n_seq, max_len, err);
}
