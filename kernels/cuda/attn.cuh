/* attn.cuh - what the bf16 attention kernels share: the order of sums, tiles in shared memory, fragments
 *
 * One order everywhere, whatever instruction multiplies: tiles of KEYS keys ascending. In a tile, scores by ascending steps of 16
 * over the head; a row's maximum moves only when the tile's is more than 2^HEADROOM times as heavy (then everything summed so far
 * is scaled once); weights in fp32 are added in the tree of tile_sum and, rounded to bf16, multiply the values by ascending steps
 * of 16 keys. A masked key has weight 0 and changes nothing, so tiles that no row of a block sees, before a window or after its
 * rows, are left out. Scores are capped before they are masked, by one formula in all. mma.sync.m16n8k16 and wgmma.m64nNk16 give a step of 16 the same
 * bits on Hopper (the tests of both forms compare them), so prefill and training may use either while decode uses the first.
 *
 * In a result of 16 x 8 (PTX ISA, "Matrix Fragments for mma.m16n8k16") lane l holds rows l / 4 and l / 4 + 8 at columns
 * l % 4 * 2 and the next; a warp's 16 rows of a wgmma result are such pieces side by side. */
#pragma once
#include "kernels/cuda/cuda.h"
#define ATTN_TILE CUDA_PAGE_TOK    // rows loaded at a time: one page
#define LOG2E 1.4426950408889634f
#define HEADROOM 8.0f

/* Rows in shared memory are 16 bytes longer than their data, so that ldmatrix uses each bank once. */
template <int HD> struct tile {
    static constexpr int LD = HD + 8, STEPS = HD / 16, COLS = HD / 8, BYTES = ATTN_TILE * LD * 2;
    static constexpr int KEYS = HD > 128 ? 64 : 128;    // of a tile in the order of sums
};
__device__ static inline uint32_t smem_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* Copy 16 bytes to shared memory without a register; zeros when not valid (then from is not read). */
__device__ static inline void copy16(bf16 *to, const bf16 *from, bool valid)
{
    int n = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_at(to)), "l"(from), "r"(n) : "memory");
}
__device__ static inline void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> __device__ static inline void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
/* Copy ATTN_TILE rows of HD from `from`, `step` elements apart; rows from n_valid on become 0. 128 threads. */
template <int HD> __device__ static inline void tile_load(bf16 *to, const bf16 *from, int64_t step, int n_valid)
{
    constexpr int CHUNKS = HD / 8;
    for (int e = threadIdx.x; e < ATTN_TILE * CHUNKS; e += 128) {
        int row = e / CHUNKS, chunk = e % CHUNKS;
        copy16(to + row * tile<HD>::LD + chunk * 8, from + (row < n_valid ? row : 0) * step + chunk * 8, row < n_valid);
    }
}
__device__ static inline void ldsm4(uint32_t (&r)[4], const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_at(p))
                 : "memory");
}
__device__ static inline void ldsm4_t(uint32_t (&r)[4], const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_at(p))
                 : "memory");
}
/* d += a b; a: 16 x 16, b: 16 x 8. */
__device__ static inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ static inline uint32_t pack2(float lo, float hi)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&v;
}
/* Left side: rows row0 .. + 15, columns 16 step .. + 15 of a tile in shared memory. */
template <int HD> __device__ static inline void left_load(uint32_t (&a)[4], const bf16 *t, int row0, int step)
{
    int lane = threadIdx.x % 32;
    ldsm4(a, t + (row0 + lane % 16) * tile<HD>::LD + step * 16 + lane / 16 * 8);
}
/* Right side of x y^T: two blocks of 8 columns, which are rows col0 .. + 15 of a tile, over its columns 16 step .. + 15:
 * b[0], b[1] for the first eight, b[2], b[3] for the others. */
template <int HD> __device__ static inline void right_rows(uint32_t (&b)[4], const bf16 *t, int col0, int step)
{
    int lane = threadIdx.x % 32;
    ldsm4(b, t + (col0 + lane / 16 * 8 + lane % 8) * tile<HD>::LD + step * 16 + lane / 8 % 2 * 8);
}
/* Right side of x y: rows 16 step .. + 15 of a tile, two blocks of 8 of its columns from col0. */
template <int HD> __device__ static inline void right_cols(uint32_t (&b)[4], const bf16 *t, int step, int col0)
{
    int lane = threadIdx.x % 32;
    ldsm4_t(b, t + (step * 16 + lane % 16) * tile<HD>::LD + col0 + lane / 16 * 8);
}
/* Use a 16 x 16 result in two 16 x 8 pieces as the left side of the next product. */
__device__ static inline void left_from(uint32_t (&a)[4], const float (&x)[4], const float (&y)[4])
{
    a[0] = pack2(x[0], x[1]);
    a[1] = pack2(x[2], x[3]);
    a[2] = pack2(y[0], y[1]);
    a[3] = pack2(y[2], y[3]);
}
/* Where the rows of one head are, packed or in pages. */
struct kv_source {
    const bf16 *k, *v;      // packed: first key and value of the sequence and head; paged: those of the head in page 0
    int64_t step;           // elements between tokens
    const int32_t *page;    // NULL: packed
    int64_t page_elems;
};
/* Load rows of one tile of keys or values, from `from` = src.k or src.v; rows from kv_len on become 0. 128 threads. */
template <int HD> __device__ static inline void keys_load(bf16 *to, const bf16 *from, const kv_source &src, int t, int kv_len)
{
#pragma unroll
    for (int at = 0; at < tile<HD>::KEYS; at += ATTN_TILE) {
        int key = t * tile<HD>::KEYS + at;
        int64_t skip = key >= kv_len ? 0 : src.page ? (int64_t)src.page[key / ATTN_TILE] * src.page_elems : (int64_t)key * src.step;
        tile_load<HD>(to + at * tile<HD>::LD, from + skip, src.step, max(0, min(ATTN_TILE, kv_len - key)));
    }
}
__device__ static inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Weights of scores at a maximum: e^((s - m) scale), c = scale log2 e, mc = m c. */
__device__ static inline float weight_of(float s, float c, float mc)
{
    return exp2_fast(__fmaf_rn(s, c, -mc));
}
/* Move a row's maximum m for a tile whose own is top; returns m c, and in alpha the factor for what was summed before. BOUNDS: the
 * row may have seen no key yet; then all weights of this tile are 0. */
template <bool BOUNDS> __device__ static inline float maximum_move(float *m, float *alpha, float top, float c)
{
    float next = fmaxf(*m, top);
    bool moves = (next - *m) * c > HEADROOM;
    *alpha = moves ? exp2_fast((*m - next) * c) : 1.0f;
    *m = moves ? next : *m;
    return BOUNDS && *m == -INFINITY ? 0 : *m * c;
}

/* --- windows and soft caps: struct attn_bounds. Kernels without them are instantiations of their own ------------------ */
struct score_bounds {
    int window;    // NO_WINDOW: none
    float cap;     // 0: none
    float in;      // with a cap: 2 log2 e scale / cap
};
#define NO_WINDOW (1 << 30)
static inline score_bounds bounds_make(struct attn_bounds b, int hd)
{
    score_bounds s;
    s.window = b.window > 0 && b.window < NO_WINDOW ? (int)b.window : NO_WINDOW;
    s.cap = b.cap > 0 ? b.cap : 0;
    s.in = b.cap > 0 ? 2.0f * LOG2E / (sqrtf((float)hd) * b.cap) : 0;
    return s;
}
/* Do queries of sequences of up to max_len tokens see less, or other scores, for these bounds? */
static inline bool bounds_matter(const score_bounds &b, int64_t max_len)
{
    return b.cap > 0 || b.window < max_len;
}
/* The first key that the query at position pos sees. */
__device__ static inline int first_key(const score_bounds &b, int pos)
{
    return max(0, pos + 1 - b.window);
}
/* 1 / (1 + e^(2 x)) of a raw score s, x = s scale / cap. tanh(x) = 1 - 2 r, and its derivative 4 r (1 - r). The error of the capped
 * score is some 1e-7 of the cap. */
__device__ static inline float cap_ratio(const score_bounds &b, float s)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + exp2_fast(s * b.in)));
    return r;
}
__device__ static inline float cap_value(const score_bounds &b, float r)
{
    return __fmaf_rn(-2.0f * b.cap, r, b.cap);
}
__device__ static inline float cap_slope(float r)
{
    return 4.0f * r * (1.0f - r);
}
/* Factor of the exponent: raw scores have to be scaled, capped ones are. */
template <int HD, bool BOUNDS> __device__ static inline float exponent_factor(const score_bounds &b)
{
    return BOUNDS && b.cap > 0 ? LOG2E : LOG2E / sqrtf((float)HD);
}
/* lse of a row from its maximum and sum. */
template <int HD, bool BOUNDS> __device__ static inline float lse_from(const score_bounds &b, float m, float sum)
{
    return (BOUNDS && b.cap > 0 ? m : m / sqrtf((float)HD)) + logf(sum);
}
template <int N> __device__ static inline void scores_cap(float (&s)[N], const score_bounds &b)
{
    if (b.cap > 0)
#pragma unroll
        for (int i = 0; i < N; i++)
            s[i] = cap_value(b, cap_ratio(b, s[i]));
}
/* The exponent's first part of a score in the backward, and the slope of its cap. */
template <bool BOUNDS> __device__ static inline float score_of(float s, const score_bounds &b, float *slope)
{
    *slope = 1;
    if (!BOUNDS || !(b.cap > 0))
        return s;
    float r = cap_ratio(b, s);
    *slope = cap_slope(r);
    return cap_value(b, r);
}
/* As above for a scaled score, exactly: for fp32. */
__device__ static inline float score_exact(float z, const score_bounds &b, float *slope)
{
    float t = b.cap > 0 ? tanhf(z / b.cap) : 0;
    *slope = 1 - t * t;
    return b.cap > 0 ? b.cap * t : z;
}
/* Sum of a row's weights in one lane, of a quarter of a tile's keys: pair[j] is the sum of two neighbours in 8 keys. */
template <int N> __device__ static inline float quarter_sum(const float *pair)
{
    static_assert(N == 4 || N == 2, "a quarter of 128 or 64 keys");
    return N == 4 ? (pair[0] + pair[1]) + (pair[2] + pair[3]) : pair[0] + pair[1];
}
__device__ static inline float tile_sum(float q0, float q1, float q2, float q3)
{
    return (q0 + q1) + (q2 + q3);
}
/* The sum of a row over its four lanes. */
__device__ static inline float row_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ static inline float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
/* Scores of one tile, two rows per lane (s[4 j + 2 r + i]: row r, key 8 j + i of this lane), become weights; m, l: maximum and
 * this lane's sum of weights of each row; alpha: factors for the values summed before. */
template <int KEYS, bool BOUNDS>
__device__ static inline void tile_weights(float (&s)[KEYS / 2], float (&m)[2], float (&l)[2], float (&alpha)[2], float c)
{
    constexpr int N = KEYS / 8;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
        for (int j = 1; j < N; j++)
            top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
        float mc = maximum_move<BOUNDS>(&m[r], &alpha[r], row_max(top), c), pair[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            s[4 * j + 2 * r] = weight_of(s[4 * j + 2 * r], c, mc);
            s[4 * j + 2 * r + 1] = weight_of(s[4 * j + 2 * r + 1], c, mc);
            pair[j] = s[4 * j + 2 * r] + s[4 * j + 2 * r + 1];
        }
        l[r] = __fmaf_rn(l[r], alpha[r],
                         tile_sum(quarter_sum<N / 4>(pair), quarter_sum<N / 4>(pair + N / 4), quarter_sum<N / 4>(pair + N / 2),
                                  quarter_sum<N / 4>(pair + 3 * N / 4)));
    }
}
/* Keys after a row's position, or before its window, get no weight; key0: this lane's first key of the tile. */
template <int KEYS, bool BOUNDS>
__device__ static inline void tile_mask(float (&s)[KEYS / 2], int key0, const int (&pos)[2], const score_bounds &b)
{
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        int key = key0 + i / 4 * 8 + i % 2, at = pos[i / 2 % 2];
        if (key > at || (BOUNDS && key <= at - b.window))
            s[i] = -INFINITY;
    }
}

/* --- the forward's arguments, and what a block has of them ------------------------------------------------------------ */
struct fwd_args {
    void *out;
    float *lse;
    const void *qkv, *kv;
    const int32_t *seq;       // first query row of each sequence (n_seq + 1), or NULL: row s
    const int32_t *kv_len;    // paged; NULL: as many keys as queries
    const int32_t *page;
    int64_t max_page;
    int n_q, n_kv;
    score_bounds bounds;
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

/* The forward with Hopper's instructions (attn_fwd_hopper.cu): heads of 64, 96, 128 or 256. n_row: rows of qkv; bounded: f.bounds
 * matter. */
bool hopper_fwd(struct cuda_device *cu, const fwd_args &f, bool bounded, int hd, int64_t n_row, int64_t n_seq, int64_t max_q,
                const char *op, struct error *err);

/* One query per sequence (attn_decode.cu), at most DECODE_GROUP_MAX heads per key head. turn: what rope_fwd has left to do, or NULL. */
bool decode_fwd(struct cuda_device *cu, const fwd_args &f, const struct rope_fwd *turn, bool bounded, int hd, int64_t n_seq, const char *op,
                struct error *err);

/* --- the backward's arguments ------------------------------------------------------------------------------------------ */
struct bwd_args {
    void *dqkv;
    const void *dout, *out, *qkv;
    const float *lse;
    float *dot;    // attn_stat_bytes of scratch: D (n, n_q), or see hopper_bwd
    const int32_t *seq;
    int n_q, n_kv;
    score_bounds bounds;
};
/* Statistics per head: each sequence begins at a multiple of 4, for copies of 16 bytes, and 64 may be read from any of its rows. */
__host__ __device__ static inline int64_t attn_stat_start(int64_t row0, int64_t s)
{
    return (row0 + 3) / 4 * 4 + 4 * s;
}
static inline int64_t attn_stat_rows(int64_t n, int64_t n_seq)
{
    return attn_stat_start(n, n_seq) + 64;
}
static inline size_t attn_stat_bytes(int64_t n, int64_t n_seq, int n_q)
{
    return (size_t)(2 * n_q * attn_stat_rows(n, n_seq)) * sizeof(float);
}
/* The backward with Hopper's instructions (attn_bwd_hopper.cu): heads of 64, 96 or 128. a.dot becomes lse log2 e (n_q, rows) and
 * D (n_q, rows). */
bool hopper_bwd(struct cuda_device *cu, const bwd_args &a, bool bounded, int hd, int64_t n, int64_t n_seq, int64_t max_len,
                struct error *err);
