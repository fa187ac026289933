/* hopper.cuh - Hopper's matrix instructions over warpgroups, bulk copies of tiles, and the barriers between them
 *
 * Machine code only for sm_90a. A tile in shared memory is a row of boxes of 64 columns; a box has rows of 128 bytes, swizzled in
 * atoms of 8 rows (CU_TENSOR_MAP_SWIZZLE_128B), and begins at a multiple of 1,024 bytes. Descriptors: PTX ISA, "Matrix-Descriptor
 * Format" of wgmma. Four warps are a warpgroup; an instruction multiplies 64 rows, of which each warp holds 16 of the result, in
 * the fragments of attn.cuh side by side. */
#pragma once
#include <cuda.h>
#include "kernels/cuda/attn.cuh"
#define BOX_COLS 64
#define BOX_ROW_BYTES 128

/* A tensor map of rows of bf16, read in boxes of 64 columns and box_rows rows, at most 256. cols: elements per row; step: elements
 * between rows. */
bool tensor_map_make(CUtensorMap *map, const void *at, int64_t cols, int64_t rows, int64_t step, int box_rows, const char *op,
                     struct error *err);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_CODE 1
#endif
#ifdef HOPPER_CODE
__device__ static inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- barriers -------------------------------------------------------------------------------------------------------- */
__device__ static inline void barrier_init(uint64_t *b, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(arrivals) : "memory");
}
__device__ static inline void barrier_arrive(uint64_t *b)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" ::"r"(shared_at(b)) : "memory");
}
__device__ static inline void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(shared_at(b)), "r"(bytes) : "memory");
}
__device__ static inline void barrier_wait(uint64_t *b, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(shared_at(b)),
                 "r"(parity)
                 : "memory");
}
/* For threads of a block: wait until all `threads` have come to barrier id, or come without waiting. */
__device__ static inline void meet(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ static inline void meet_pass(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Ordinary stores to shared memory before this are seen by matrix instructions after it. */
__device__ static inline void stores_show(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Have a map at hand before its first use. */
__device__ static inline void map_fetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* One box to shared memory from column col and row row of a map; completes on b. */
__device__ static inline void box_load(void *to, const CUtensorMap *map, int col, int row, uint64_t *b)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_at(to)),
        "l"(map), "r"(col), "r"(row), "r"(shared_at(b))
        : "memory");
}
/* As above for bytes in a row; both addresses and the number are multiples of 16. */
__device__ static inline void bytes_load(void *to, const void *from, int bytes, uint64_t *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)), "l"(from),
                 "r"(bytes), "r"(shared_at(b))
                 : "memory");
}
template <int N> __device__ static inline void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ static inline void registers_give(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- products -------------------------------------------------------------------------------------------------------- */
/* All sizes are multiples of 16; tile is less than 2^18, so its sixteenths never reach the next field. */
__device__ static inline uint64_t descriptor(uint32_t tile, int offset, int lead_bytes, int stride_bytes)
{
    uint32_t low = (tile >> 4) + (uint32_t)(offset / 16 + (lead_bytes / 16 << 16)), high = (uint32_t)(stride_bytes / 16) | 1u << 30;
    return (uint64_t)high << 32 | low;
}
/* 16 columns from column 16 step of 64 or more rows: the side of a product whose sum runs over columns. box_bytes: from one box of
 * 64 columns to the next. */
__device__ static inline uint64_t by_columns(uint32_t tile, int step, int box_bytes)
{
    return descriptor(tile, step / 4 * box_bytes + step % 4 * 32, 16, 1024);
}
/* 16 rows from row 16 step: the right side of a product whose sum runs over rows. */
__device__ static inline uint64_t by_rows(uint32_t tile, int step, int box_bytes)
{
    return descriptor(tile, step * 16 * BOX_ROW_BYTES, box_bytes, 1024);
}
__device__ static inline void products_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ static inline void products_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> __device__ static inline void products_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* The compiler may not move uses of d across this point. */
template <int N> __device__ static inline void pin(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(d, i) D4(d, i), D4(d, i + 4)
#define D16(d, i) D8(d, i), D8(d, i + 8)
#define D32(d, i) D16(d, i), D16(d, i + 16)
#define NAMES_4 "%0,%1,%2,%3"
#define NAMES_8 NAMES_4 ",%4,%5,%6,%7"
#define NAMES_16 NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_24 NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NAMES_32 NAMES_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_40 NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES_48 NAMES_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_64 NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_72 NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
/* d += a b, or d = a b when first; both sides in shared memory, both summed over columns. d: 64 x N. */
template <int N> __device__ static inline void product(float (&d)[N / 2], uint64_t a, uint64_t b, bool first);
/* n columns; the operands after the result's registers are numbered a, b and p */
#define PRODUCT(n, names, na, nb, np, ...)                                                                                                 \
    template <> __device__ inline void product<n>(float(&d)[n / 2], uint64_t a, uint64_t b, bool first)                                    \
    {                                                                                                                                      \
        int more = !first;                                                                                                                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " np ", 0;\n"                                                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, " na ", " nb ", p, 1, 1, 0, 0;\n}"             \
                     : __VA_ARGS__                                                                                                         \
                     : "l"(a), "l"(b), "r"(more));                                                                                         \
    }
PRODUCT(8, NAMES_4, "%4", "%5", "%6", D4(d, 0))
PRODUCT(16, NAMES_8, "%8", "%9", "%10", D8(d, 0))
PRODUCT(32, NAMES_16, "%16", "%17", "%18", D16(d, 0))
PRODUCT(48, NAMES_24, "%24", "%25", "%26", D16(d, 0), D8(d, 16))
PRODUCT(64, NAMES_32, "%32", "%33", "%34", D32(d, 0))
PRODUCT(80, NAMES_40, "%40", "%41", "%42", D32(d, 0), D8(d, 32))
PRODUCT(96, NAMES_48, "%48", "%49", "%50", D32(d, 0), D16(d, 32))
PRODUCT(128, NAMES_64, "%64", "%65", "%66", D32(d, 0), D32(d, 32))
PRODUCT(144, NAMES_72, "%72", "%73", "%74", D32(d, 0), D32(d, 32), D8(d, 64))
#undef PRODUCT
/* As above with the left side in registers. ROWS: the right side is summed over its rows. */
template <int N, int ROWS> __device__ static inline void product_regs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool first)
{
    static_assert(N == 64 || N == 96 || N == 128, "sizes in use");
    int more = !first;
    if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"
                     : D32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more), "n"(ROWS));
    else if constexpr (N == 96)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" NAMES_48 "}, {%48,%49,%50,%51}, %52, p, 1, 1, %54;\n}"
                     : D32(d, 0), D8(d, 32), D8(d, 40)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more), "n"(ROWS));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}"
                     : D32(d, 0), D32(d, 32)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more), "n"(ROWS));
}

/* --- results --------------------------------------------------------------------------------------------------------- */
/* Exchange 4 x 4 words among the four lanes of a row: word i of lane j becomes word j of lane i. */
__device__ static inline void quad_transpose(uint32_t (&u)[4])
{
    int lane = threadIdx.x;
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & bit)) {
                uint32_t sent = lane & bit ? u[i] : u[i + bit], got = __shfl_xor_sync(0xffffffffu, sent, bit);
                if (lane & bit)
                    u[i] = got;
                else
                    u[i + bit] = got;
            }
}
/* Store one of a lane's two rows, r, of a 64 x N result times factor as bf16 at `to`, when it is there. All four lanes of a row
 * call; each stores 16 bytes at a time. */
template <int N> __device__ static inline void row_store(bf16 *to, const float (&d)[N / 2], int r, float factor, bool there)
{
#pragma unroll
    for (int j = 0; j < N / 8; j += 4) {    // four blocks of 8 columns, one for each lane
        uint32_t u[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            u[i] = pack2(d[4 * (j + i) + 2 * r] * factor, d[4 * (j + i) + 2 * r + 1] * factor);
        quad_transpose(u);
        if (there)
            *(uint4 *)(to + (j + (int)threadIdx.x % 4) * 8) = make_uint4(u[0], u[1], u[2], u[3]);
    }
}
/* Clear rows first .. n - 1 of a tile of boxes with n rows, by the 128 threads of a warpgroup. */
template <int BOXES> __device__ static inline void rows_clear(uint8_t *tile, int first, int n)
{
    for (int e = (int)threadIdx.x % 128; e < (n - first) * 8 * BOXES; e += 128)
        *(uint4 *)(tile + e / 8 % BOXES * n * BOX_ROW_BYTES + (first + e / 8 / BOXES) * BOX_ROW_BYTES + e % 8 * 16) = make_uint4(0, 0, 0,
                                                                                                                                 0);
}
#endif
