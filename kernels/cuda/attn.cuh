/* attn.cuh - what the bf16 attention kernels share: tiles in shared memory, fragments, one tile's softmax
 *
 * Matrix instructions are mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane l holds, of a 16 x 8 result,
 * rows l / 4 and l / 4 + 8 at columns l % 4 * 2 and the next. A tile has ATTN_TILE keys and is one page of the KV pool.
 * One order everywhere: tiles ascending; in a tile, scores by ascending steps of 16 over hd, one new maximum, weights rounded
 * to bf16, then sums of weights (a product with ones) and of values by ascending steps of 16 keys. */
#pragma once
#include "kernels/cuda/cuda.h"
#define ATTN_TILE CUDA_PAGE_TOK
#define LOG2E 1.4426950408889634f

/* Rows in shared memory are 16 bytes longer than their data, so that ldmatrix uses each bank once. */
template <int HD> struct tile {
    static constexpr int LD = HD + 8, STEPS = HD / 16, COLS = HD / 8, BYTES = ATTN_TILE * LD * 2;
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
#define ONES 0x3f803f80u    // two bf16 ones

/* Where the rows of one head are, packed or in pages. */
struct kv_source {
    const bf16 *k, *v;      // packed: first key and value of the sequence and head; paged: those of the head in page 0
    int64_t step;           // elements between tokens
    const int32_t *page;    // NULL: packed
    int64_t page_elems;
};
template <int HD> __device__ static inline void kv_load(bf16 *ks, bf16 *vs, const kv_source &src, int t, int kv_len)
{
    int64_t at = src.page ? (int64_t)src.page[t] * src.page_elems : (int64_t)t * ATTN_TILE * src.step;
    int n_valid = min(ATTN_TILE, kv_len - t * ATTN_TILE);
    tile_load<HD>(ks, src.k + at, src.step, n_valid);
    tile_load<HD>(vs, src.v + at, src.step, n_valid);
}
/* Weights of scores at a maximum: e^((s - m) scale), c = scale log2 e, mc = m c. */
__device__ static inline float weight_of(float s, float c, float mc)
{
    return exp2f(__fmaf_rn(s, c, -mc));
}
