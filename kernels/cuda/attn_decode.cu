/* attn_decode.cu - attention of one query per sequence over KV pages
 *
 * One block per sequence and KV head, with the heads of the group as rows of one 16-row tile. All sums have the order of attn.cuh, so a
 * query's result has the same bits as in prefill and training. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/rope.cuh"

/* What decoding's attention is given. */
struct decode_args {
    fwd_args f;
    rope_fwd turn;    // with TURN: of qkv, whose last key and value of each sequence are not in the pool yet
};
/* Once the product before is done, rotate the queries of a key head, its key and its value of one row. Queries go to qs, key and value to
 * fresh and to the pool. */
template <int HD, int WARPS>
__device__ static inline void heads_turn(const decode_args &a, int64_t row, int kv_head, bf16 (*qs)[tile<HD>::LD], bf16 (*fresh)[HD])
{
    constexpr int PAIRS = (HD / 2 + 31) / 32, EACH = (DECODE_GROUP_MAX + 2 + WARPS - 1) / WARPS;    // heads of a warp
    int n_q = a.f.n_q, n_kv = a.f.n_kv, group = n_q / n_kv, warp = threadIdx.x / 32;
    const bf16 *qkv = (const bf16 *)a.f.qkv + row * (int64_t)(n_q + 2 * n_kv) * HD;
    float lo[EACH][PAIRS], hi[EACH][PAIRS], cos[PAIRS], sin[PAIRS];
    int64_t slot = a.turn.slot[row];
    bool turns = head_angles(cos, sin, a.turn, a.turn.pos[row]);
    auto head = [&](int r) { return r < group ? kv_head * group + r : n_q + (r - group) * n_kv + kv_head; };
    before_wait();
#pragma unroll
    for (int i = 0; i < EACH; i++)    // a head too often rather than a branch, so that all loads are on their way at once
        head_load(lo[i], hi[i], qkv + (int64_t)head(min(warp + WARPS * i, group + 1)) * HD, HD, a.turn.rot);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int r = warp + WARPS * i;
        if (r >= group + 2)
            break;
        head_turn<bf16>(lo[i], hi[i], a.turn, head(r), cos, sin, turns);
        head_store(r < group ? qs[r] : fresh[r - group], lo[i], hi[i], HD, a.turn.rot);
        bf16 *kv = head_slot<bf16>(a.turn, head(r), slot);
        if (kv)
            head_store(kv, lo[i], hi[i], HD, a.turn.rot);
    }
}
/* Where a decoding tile's row and chunk of 8 columns is. Rows of whole 128 bytes are as long as their data, and their chunks turned by the
 * row's number, so that ldmatrix uses each bank once; others are longer (struct tile). */
template <int HD> __device__ static inline int tile_at(int row, int chunk)
{
    return HD % 64 == 0 ? row * HD + (chunk ^ (row & 7)) * 8 : row * tile<HD>::LD + chunk * 8;
}
template <int HD> __host__ __device__ constexpr int tile_elems(void)
{
    return tile<HD>::KEYS * (HD % 64 == 0 ? HD : tile<HD>::LD);
}
/* Load the ATTN_TILE keys or values from `key` on to a tile's row `at`, by thread `thread` of 128; rows from kv_len on become 0. */
template <int HD>
__device__ static inline void page_load(bf16 *to, int at, const bf16 *from, const kv_source &src, int key, int kv_len, int thread)
{
    constexpr int CHUNKS = HD / 8;
    int n_valid = min(ATTN_TILE, kv_len - key);
    int64_t skip = key >= kv_len ? 0 : src.page ? (int64_t)src.page[key / ATTN_TILE] * src.page_elems : (int64_t)key * src.step;
#pragma unroll
    for (int e = 0; e < ATTN_TILE * CHUNKS; e += 128) {
        int row = (e + thread) / CHUNKS, chunk = (e + thread) % CHUNKS;
        copy16(to + tile_at<HD>(at + row, chunk), from + skip + (row < n_valid ? row : 0) * src.step + chunk * 8, row < n_valid);
    }
}
/* Load tile t of keys or values. */
template <int HD> __device__ static inline void decode_load(bf16 *to, const bf16 *from, const kv_source &src, int t, int kv_len, int thread)
{
    constexpr int KEYS = tile<HD>::KEYS;
#pragma unroll
    for (int at = 0; at < KEYS; at += ATTN_TILE)
        page_load<HD>(to, at, from, src, t * KEYS + at, kv_len, thread);
}
/* Put a row into a tile that decode_load has filled: each thread replaces what it has copied itself, so nobody has to wait. */
template <int HD> __device__ static inline void decode_replace(bf16 *to, int row, const bf16 *fresh, int thread)
{
    constexpr int CHUNKS = HD / 8;
    int chunk = (thread - row % ATTN_TILE * CHUNKS) & 127;
    if (chunk < CHUNKS)
        *(uint4 *)(to + tile_at<HD>(row, chunk)) = *(const uint4 *)(fresh + chunk * 8);
}
/* The 128 threads of group g, of up to three, meet. The numbers are constants, or the compiler would reserve all 16 barriers. */
__device__ static inline void group_meet(int g)
{
    if (g == 0)
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else if (g == 1)
        asm volatile("bar.sync 2, 128;" ::: "memory");
    else
        asm volatile("bar.sync 3, 128;" ::: "memory");
}
/* One query per sequence: the rows of the tile are the heads of the group (at most 16). WIDE tiles are worked on at a time, each by a
 * group of four warps. Each warp computes the scores of a quarter of its tile's keys. Then every thread moves its rows' maxima over the
 * WIDE tiles in order, as if the tiles came one after the other; each group computes its tile's weights; and each warp multiplies the
 * values of all tiles in order, for its own columns of the head. So three meetings serve WIDE tiles, and the bits do not depend on WIDE.
 * The next keys are loaded once these have been read, the next values likewise. TURN: rope_fwd is done here, too; keys and values, of
 * which no kernel of this step but this one writes any that it reads, are on their way before the product before has ended.
 * RING: a tile's keys and values come by halves, in turn through memory for three halves: the second half of the values takes the place
 * of the first half of the keys, and the next keys and values follow likewise. So four blocks of heads of 128 run per multiprocessor instead
 * of three, and 512 blocks at once. */
template <int HD, bool BOUNDS, bool TURN, int WIDE, bool RING>
__global__ void __launch_bounds__(128 * WIDE, RING ? 4 : 1) attn_decode_kernel(const __grid_constant__ decode_args args)
{
    static_assert(!RING || (HD == 128 && !TURN && WIDE == 1), "what RING is for");
    constexpr int HALF = ATTN_TILE * HD;
    extern __shared__ __align__(16) bf16 smem[];
    constexpr int LD = tile<HD>::LD, STEPS = tile<HD>::STEPS, KEYS = tile<HD>::KEYS, ELEMS = tile_elems<HD>(), WARPS = 4 * WIDE;
    constexpr int N = KEYS / 32, OWN = (HD / 16 + WARPS - 1) / WARPS;    // of a warp: keys in blocks of 8, columns in blocks of 16
    constexpr int W_ELEMS = WIDE * 16 * (KEYS + 8), Q_ELEMS = 16 * LD;
    __shared__ float top_of[WARPS][16], sum_of[WARPS][2][32];
    __shared__ __align__(16) bf16 both[W_ELEMS > Q_ELEMS ? W_ELEMS : Q_ELEMS], fresh[2][HD];    // queries, then weights
    bf16(*weight)[16][KEYS + 8] = (bf16(*)[16][KEYS + 8]) both, (*qs)[LD] = (bf16(*)[LD])both;
    const fwd_args &a = args.f;
    int s = blockIdx.y, kv_head = blockIdx.x, group = a.n_q / a.n_kv, lane = threadIdx.x % 32, thread = threadIdx.x % 128;
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0), mine = warp / 4;    // the group's tile of WIDE
    seq_view view = seq_of(a, s);
    next_start();
    if (!TURN)
        before_wait();
    if (view.n_row == 0) {
        before_wait();
        return;
    }
    kv_source src = source_of<HD>(a, view, s, kv_head);
    bf16 *ks = smem + mine * 2 * ELEMS, *vs = ks + ELEMS;
    int n_tile = (view.kv_len - 1) / KEYS + 1, first = BOUNDS ? first_key(a.bounds, view.kv_len - 1) : 0, t0 = first / KEYS;
    auto half_load = [&](int slot, bool keys, int t, int half) {    // of tile t
        if (t < n_tile)
            page_load<HD>(smem + slot % 3 * HALF, 0, keys ? src.k : src.v, src, t * KEYS + half * ATTN_TILE, view.kv_len, thread);
        copy_commit();
    };
    if constexpr (RING) {
        half_load(0, true, t0, 0);
        half_load(1, true, t0, 1);
        half_load(2, false, t0, 0);
    } else {
        if (t0 + mine < n_tile)
            decode_load<HD>(ks, src.k, src, t0 + mine, view.kv_len, thread);
        copy_commit();
        if (t0 + mine < n_tile)
            decode_load<HD>(vs, src.v, src, t0 + mine, view.kv_len, thread);
        copy_commit();
    }
    int slot = 0;    // RING: of the tile's first keys
    for (int e = threadIdx.x; e < (16 - group) * (HD / 8); e += 128 * WIDE)
        *(uint4 *)&qs[group + e / (HD / 8)][e % (HD / 8) * 8] = make_uint4(0, 0, 0, 0);
    if (TURN) {
        heads_turn<HD, WARPS>(args, view.row0, kv_head, qs, fresh);
    } else {
        const bf16 *q = (const bf16 *)a.qkv + view.row0 * (int64_t)(a.n_q + 2 * a.n_kv) * HD + (int64_t)kv_head * group * HD;
        for (int e = threadIdx.x; e < group * (HD / 8); e += 128 * WIDE)
            *(uint4 *)&qs[e / (HD / 8)][e % (HD / 8) * 8] = *(const uint4 *)(q + e * 8);
    }
    __syncthreads();
    uint32_t qf[STEPS][4];
#pragma unroll
    for (int k = 0; k < STEPS; k++)
        ldsm4(qf[k], &qs[lane % 16][k * 16 + lane / 16 * 8]);
    float o[2 * OWN][4] = {}, l[2] = {}, m[2] = { -INFINITY, -INFINITY }, c = exponent_factor<HD, BOUNDS>(a.bounds);
    for (int t = t0; t < n_tile; t += WIDE) {
        int own = t + mine;
        bool there = own < n_tile, fresh_here = TURN && own == n_tile - 1;
        float p[N][4] = {}, alpha[WIDE][2], mc[2] = {};
        copy_wait<1>();
        if (fresh_here)
            decode_replace<HD>(ks, (view.kv_len - 1) % KEYS, fresh[0], thread);
        group_meet(mine);
        if (there) {
            float top[2] = { -INFINITY, -INFINITY };
            const bf16 *keys = RING ? smem + (slot + warp / 2) % 3 * HALF - warp / 2 * HALF : ks;
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int j = 0; j < N; j += 2) {
                    uint32_t b[4];
                    ldsm4(b, keys + tile_at<HD>(warp % 4 * (KEYS / 4) + j * 8 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
                    mma(p[j], qf[k], b[0], b[1]);
                    mma(p[j + 1], qf[k], b[2], b[3]);
                }
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (BOUNDS)
                    scores_cap(p[j], a.bounds);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int key = own * KEYS + warp % 4 * (KEYS / 4) + j * 8 + lane % 4 * 2 + e % 2;
                    if (key >= view.kv_len || (BOUNDS && key < first))
                        p[j][e] = -INFINITY;
                    top[e / 2] = fmaxf(top[e / 2], p[j][e]);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                top[r] = row_max(top[r]);
                if (lane % 4 == 0)
                    top_of[warp][lane / 4 + 8 * r] = top[r];
            }
        }
        __syncthreads();    // and the keys have been read
        if constexpr (RING) {
            half_load(slot, false, t, 1);
            half_load(slot + 1, true, t + 1, 0);
        } else {
            if (own + WIDE < n_tile)
                decode_load<HD>(ks, src.k, src, own + WIDE, view.kv_len, thread);
            copy_commit();
        }
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            if (t + i >= n_tile)
                break;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int row = lane / 4 + 8 * r;
                float next = fmaxf(fmaxf(top_of[4 * i][row], top_of[4 * i + 1][row]),
                                   fmaxf(top_of[4 * i + 2][row], top_of[4 * i + 3][row]));
                float at = maximum_move<BOUNDS>(&m[r], &alpha[i][r], next, c);
                if (i == mine)
                    mc[r] = at;
            }
        }
        if (there)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float pair[N];
#pragma unroll
                for (int j = 0; j < N; j++) {
                    float w0 = weight_of(p[j][2 * r], c, mc[r]), w1 = weight_of(p[j][2 * r + 1], c, mc[r]);
                    pair[j] = w0 + w1;
                    *(uint32_t *)&weight[mine][lane / 4 + 8 * r][warp % 4 * (KEYS / 4) + j * 8 + lane % 4 * 2] = pack2(w0, w1);
                }
                sum_of[warp][r][lane] = quarter_sum<N>(pair);
            }
        copy_wait<RING ? 2 : 1>();
        if (fresh_here)
            decode_replace<HD>(vs, (view.kv_len - 1) % KEYS, fresh[1], thread);
        __syncthreads();
        if (warp * 16 < HD)    // the others have no columns
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                if (t + i >= n_tile)
                    break;
                const bf16 *values = smem + (2 * i + 1) * ELEMS;
#pragma unroll
                for (int r = 0; r < 2; r++)
                    l[r] = __fmaf_rn(l[r], alpha[i][r],
                                     tile_sum(sum_of[4 * i][r][lane], sum_of[4 * i + 1][r][lane], sum_of[4 * i + 2][r][lane],
                                              sum_of[4 * i + 3][r][lane]));
#pragma unroll
                for (int j = 0; j < 2 * OWN; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        o[j][e] *= alpha[i][e / 2];
#pragma unroll
                for (int k = 0; k < KEYS / 16; k++) {
                    if (RING && k == KEYS / 32) {    // the second half of the values
                        copy_wait<1>();
                        __syncthreads();
                    }
                    if (RING && k % (KEYS / 32) == 0)
                        values = smem + (slot + (k ? 0 : 2)) % 3 * HALF - k * 16 * HD;
                    uint32_t w[4];
                    ldsm4(w, &weight[i][lane % 16][k * 16 + lane / 16 * 8]);
#pragma unroll
                    for (int j = 0; j < OWN; j++) {
                        int col = (j * WARPS + warp) * 16;    // 16 columns of the head at a time
                        if (col >= HD)
                            break;
                        uint32_t b[4];
                        ldsm4_t(b, values + tile_at<HD>(k * 16 + lane % 16, col / 8 + lane / 16));
                        mma(o[2 * j], w, b[0], b[1]);
                        mma(o[2 * j + 1], w, b[2], b[3]);
                    }
                }
            }
        if (t + WIDE < n_tile)
            __syncthreads();    // the values, weights and sums have been read
        if constexpr (RING) {
            half_load(slot + 2, true, t + 1, 1);
            half_load(slot, false, t + 1, 0);
            slot = (slot + 1) % 3;
        } else {
            if (own + WIDE < n_tile)
                decode_load<HD>(vs, src.v, src, own + WIDE, view.kv_len, thread);
            copy_commit();
        }
    }
    copy_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        float inv = 1.0f / row_sum(l[r]);
        if (row >= group)
            continue;
        int64_t at = view.row0 * a.n_q + kv_head * group + row;
#pragma unroll
        for (int j = 0; j < 2 * OWN; j++) {
            int col = (j / 2 * WARPS + warp) * 16 + j % 2 * 8 + lane % 4 * 2;
            if (col < HD)
                *(uint32_t *)((bf16 *)a.out + at * HD + col) = pack2(o[j][2 * r] * inv, o[j][2 * r + 1] * inv);
        }
    }
}

/* --- launching ------------------------------------------------------------------------------------------------------- */
template <int HD, bool BOUNDS, bool TURN, int WIDE, bool RING = false>
static bool decode_wide(struct cuda_device *cu, const decode_args &a, int64_t n_seq, const char *op, struct error *err)
{
    constexpr int bytes = RING ? 3 * ATTN_TILE * HD * 2 : WIDE * 2 * tile_elems<HD>() * 2;
    auto *kernel = attn_decode_kernel<HD, BOUNDS, TURN, WIDE, RING>;
    return cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), op, err)
           && launch_early(cu, kernel, dim3((unsigned)a.f.n_kv, (unsigned)n_seq), 128 * WIDE, bytes, op, err, a);
}
/* turn: what rope_fwd has left to do, or NULL. Few blocks have a multiprocessor each: three tiles at a time fill its memory. */
template <int HD, bool BOUNDS>
static bool decode_launch(struct cuda_device *cu, const fwd_args &f, const rope_fwd *turn, int64_t n_seq, const char *op, struct error *err)
{
    constexpr bool ring = HD == 128 && !BOUNDS;    // with bounds it has not been tried on a card
    decode_args a = {};
    a.f = f;
    if (!turn)
        return decode_wide<HD, BOUNDS, false, 1, ring>(cu, a, n_seq, op, err);
    a.turn = *turn;
    bool few = cu->hopper && n_seq * f.n_kv <= cu->n_sm;
    return few ? decode_wide<HD, BOUNDS, true, 3>(cu, a, n_seq, op, err) : decode_wide<HD, BOUNDS, true, 1>(cu, a, n_seq, op, err);
}
template <bool BOUNDS>
static bool decode_by_size(struct cuda_device *cu, const fwd_args &a, const rope_fwd *turn, int hd, int64_t n_seq, const char *op,
                           struct error *err)
{
    switch (hd) {
    case 16: return decode_launch<16, BOUNDS>(cu, a, turn, n_seq, op, err);
    case 32: return decode_launch<32, BOUNDS>(cu, a, turn, n_seq, op, err);
    case 64: return decode_launch<64, BOUNDS>(cu, a, turn, n_seq, op, err);
    case 96: return decode_launch<96, BOUNDS>(cu, a, turn, n_seq, op, err);
    case 128: return decode_launch<128, BOUNDS>(cu, a, turn, n_seq, op, err);
    }
    return decode_launch<256, BOUNDS>(cu, a, turn, n_seq, op, err);
}
bool decode_fwd(struct cuda_device *cu, const fwd_args &f, const struct rope_fwd *turn, bool bounded, int hd, int64_t n_seq, const char *op,
                struct error *err)
{
    return bounded ? decode_by_size<true>(cu, f, turn, hd, n_seq, op, err) : decode_by_size<false>(cu, f, turn, hd, n_seq, op, err);
}
