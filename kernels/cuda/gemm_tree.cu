/* gemm_tree.cu - sums over rows in parts (linear_bwd_tree) whose tree is added up in registers
 *
 * Part by part, partial sums of n x n_in go to memory in fp32 and come back, for each group of rows once more: for few rows of W that takes
 * several times what the product takes. Here a block has 128 columns of 128 rows of the result and goes through all of K, chain after chain.
 * Two warpgroups multiply, each 64 rows; one thread loads boxes of 64 of K, five stages ahead. One set of registers has the sum of a chain, a
 * second that of a part, a third the third part; the first part, then the sum of the first two, is in shared memory. So up to 4 parts.
 *
 * Two blocks, one below the other, are a cluster: each loads half of W's boxes into both. A place in the ring is free when both are done
 * with it. A cluster takes one result after the other, so that loads of the next go on while the sums of this one are stored.
 *
 * A chain is K in ascending steps of 16 from 0, which is cuBLASLt's order. The first use of a kind compares the result with that of
 * bwd_by_parts, byte by byte on random data. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/hopper.cuh"
#define TILE 128
#define PAIR 2                               // blocks of a cluster
#define SIDE_BYTES (TILE * BOX_ROW_BYTES)    // of one operand of a stage
#define STAGE_BYTES (2 * SIDE_BYTES)
#define STAGES 5
#define WORKERS 256
#define SHARED_BYTES (STAGES * STAGE_BYTES + TILE * TILE * 4 + 1024)
#define ROWS_CHECKED 2
#define BAND 8    // results of a cluster, down the rows
/* Up to so many rows of W per part it was faster in a step on an H200, and not with 9,472 and more (NOTES.md): partial sums are then few for the
 * work, and cuBLASLt multiplies faster. */
#define PART_ROWS_MAX 3000

struct tree_args {
    CUtensorMap x, w;
    void *y;
    int64_t ldy;
    int rows, n_part, n_seg;
    int m_turn, n_turn;    // results of a cluster: down the rows, and all
    int n_col;             // results side by side
    int at[3], each[3];
    bool f32;
};

#ifdef HOPPER_CODE
__device__ static inline void cluster_meet(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* box_load into the same place of the blocks in `mask`, completing on the barrier of each. */
__device__ static inline void box_load_all(void *to, const CUtensorMap *map, int col, int row, uint64_t *b, uint16_t mask)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], "
        "%5;" ::"r"(shared_at(to)),
        "l"(map), "r"(col), "r"(row), "r"(shared_at(b)), "h"(mask)
        : "memory");
}
/* Arrive at another block's barrier. Without `.release.cluster`, which waits for all of the thread's memory traffic (MEMBAR.ALL.GPU): what ends
 * here are reads by the matrix units, which are done. */
__device__ static inline void barrier_arrive_at(uint64_t *b, uint32_t rank)
{
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(shared_at(b)),
                 "r"(rank)
                 : "memory");
}
/* product for 128 columns, with the right side summed over its rows. */
__device__ static inline void product_by_rows(float (&d)[TILE / 2], uint64_t a, uint64_t b, bool first)
{
    int more = !first;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, %64, %65, p, 1, 1, 0, 1;\n}"
                 : D32(d, 0), D32(d, 32)
                 : "l"(a), "l"(b), "r"(more));
}
/* A place in the ring of stages. */
struct place {
    int s;
    uint32_t parity;    // of the barriers' phase
};
__device__ static inline void place_next(place *p)
{
    bool around = ++p->s == STAGES;
    p->s = around ? 0 : p->s;
    p->parity ^= around;
}
/* First row and column of a block's result of turn t. Turns go through BAND results down the rows, then to the right, so that those computed at the
 * same time share what they read in both directions. */
struct corner {
    int m, n;
};
__device__ static inline corner corner_of(const tree_args &a, int t)
{
    int band = t / (BAND * a.n_col), in_band = t - band * (BAND * a.n_col), high = min(BAND, a.m_turn - band * BAND),
        right = in_band / high;
    return corner{ ((band * BAND + in_band - right * high) * PAIR + (int)blockIdx.x % PAIR) * TILE, right * TILE };
}
/* The loading thread. */
__device__ static void tree_load(const tree_args &a, uint8_t *smem, uint64_t *full, uint64_t *empty)
{
    int rank = (int)blockIdx.x % PAIR;
    place p = { 0, 1 };    // the first round finds all places empty
    for (int t = (int)blockIdx.x / PAIR; t < a.n_turn; t += (int)gridDim.x / PAIR) {
        corner at = corner_of(a, t);
        for (int c = 0; c < a.n_part * a.n_seg; c++) {
            int g = c % a.n_seg, k = a.at[g] + c / a.n_seg * a.each[g], end = k + a.each[g];
            for (; k < end; k += BOX_COLS) {    // the last box may have more than the chain's rows
                uint8_t *x = smem + p.s * STAGE_BYTES, *w = x + SIDE_BYTES + rank * (SIDE_BYTES / PAIR);
                barrier_wait(&empty[p.s], p.parity);
                barrier_expect(&full[p.s], STAGE_BYTES);
                box_load(x, &a.x, k, at.m, &full[p.s]);
                box_load_all(w, &a.w, at.n + rank * BOX_COLS, k, &full[p.s], (1 << PAIR) - 1);
                place_next(&p);
            }
        }
    }
}
/* One of a lane's two rows, r, of a 64 x 128 result, in fp32. */
__device__ static inline void row_store_f32(float *to, const float (&d)[TILE / 2], int r)
{
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
        *(float2 *)(to + 8 * j + threadIdx.x % 4 * 2) = make_float2(d[4 * j + 2 * r], d[4 * j + 2 * r + 1]);
}
#endif
__global__ static void __launch_bounds__(WORKERS + 128, 1) tree_kernel(const __grid_constant__ tree_args a)
{
#ifdef HOPPER_CODE
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], WORKERS / 32 * PAIR);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_meet();
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0), lane = (int)threadIdx.x % 32;
    if (group == WORKERS / 128) {
        registers_give<24>();
        if (threadIdx.x == WORKERS)
            tree_load(a, smem, full, empty);
    } else {
        registers_take<240>();
        uint32_t tile = shared_at(smem) & 0x3ffff;    // without the block's number, which a descriptor has no room for
        uint64_t x_at = by_columns(tile + group * 64 * BOX_ROW_BYTES, 0, 0), w_at = by_rows(tile + SIDE_BYTES, 0, SIDE_BYTES / 2);
        const int w_step = 16 * BOX_ROW_BYTES / 16;                               // 16 rows further, as descriptors count
        float4 *saved = (float4 *)(smem + STAGES * STAGE_BYTES) + threadIdx.x;    // (TILE / 8, WORKERS)
        auto release = [&](int s) {
            if (lane < PAIR)
                barrier_arrive_at(&empty[s], (uint32_t)lane);
        };
        float d[TILE / 2], part[TILE / 2], third[TILE / 2];
#pragma unroll
        for (int i = 0; i < TILE / 2; i++)
            d[i] = part[i] = third[i] = 0;
        place p = { 0, 0 };
        for (int t = (int)blockIdx.x / PAIR; t < a.n_turn; t += (int)gridDim.x / PAIR) {
            for (int q = 0; q < a.n_part; q++) {
                for (int g = 0; g < a.n_seg; g++) {
                    int n_box = a.each[g] / BOX_COLS, left = a.each[g] % BOX_COLS / 16, before = -1;
                    for (int i = 0; i < n_box; i++) {
                        uint64_t skip = (uint64_t)(uint32_t)(p.s * (STAGE_BYTES / 16));
                        barrier_wait(&full[p.s], p.parity);
                        pin(d);
                        products_begin();
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            product_by_rows(d, x_at + skip + 2 * k, w_at + skip + w_step * k, i == 0 && k == 0);
                        products_commit();
                        products_wait<1>();
                        if (before >= 0)
                            release(before);
                        before = p.s;
                        place_next(&p);
                    }
                    products_wait<0>();
                    pin(d);
                    if (before >= 0)
                        release(before);
                    if (left > 0) {
                        uint64_t skip = (uint64_t)(uint32_t)(p.s * (STAGE_BYTES / 16));
                        barrier_wait(&full[p.s], p.parity);
                        for (int k = 0; k < left; k++) {
                            pin(d);
                            products_begin();
                            product_by_rows(d, x_at + skip + 2 * k, w_at + skip + w_step * k, n_box + k == 0);
                            products_commit();
                            products_wait<0>();
                            pin(d);
                        }
                        release(p.s);
                        place_next(&p);
                    }
#pragma unroll
                    for (int i = 0; i < TILE / 2; i++)
                        part[i] = g == 0 ? d[i] : part[i] + d[i];
                }
                if (q == 2) {
#pragma unroll
                    for (int i = 0; i < TILE / 2; i++)
                        third[i] = part[i];
                } else if (a.n_part > 1) {
#pragma unroll
                    for (int i = 0; i < TILE / 8; i++) {
                        float v[4];
                        if (q > 0)
                            load_v<float, 4>(v, (float *)&saved[i * WORKERS]);
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            float own = part[4 * i + e];
                            part[4 * i + e] = q == 0 ? own : v[e] + (q == 3 ? third[4 * i + e] + own : own);
                        }
                        if (q < 2)
                            saved[i * WORKERS] = make_float4(part[4 * i], part[4 * i + 1], part[4 * i + 2], part[4 * i + 3]);
                    }
                }
            }
            corner own = corner_of(a, t);
            int first = own.m + group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int row = first + 8 * r;
                int64_t at = row * a.ldy + own.n;
                if (!a.f32)
                    row_store<TILE>((bf16 *)a.y + at, part, r, 1.0f, row < a.rows);
                else if (row < a.rows)
                    row_store_f32((float *)a.y + at, part, r);
            }
        }
    }
    cluster_meet();    // no block ends while another still writes to its memory
#endif
}

static bool tree_fits(const struct cuda_device *cu, const struct linear_bwd_tree *a)
{
    const struct weight *w = a->w;
    int64_t rows = 0;
    bool fits = cu->hopper && w->dtype == DT_BF16 && a->n > TIMED_ROWS && a->n < INT32_MAX / 2 && w->n_in % TILE == 0
                && (a->n_part == 1 || a->n_part == 2 || a->n_part == 4) && a->n_seg > 0 && a->n_part * a->n_seg > 1 && a->lddy % 8 == 0
                && (((uintptr_t)a->dy | (uintptr_t)w->data | (uintptr_t)a->y) & 15) == 0;
    for (int s = 0; s < a->n_seg; s++) {
        int64_t each = a->seg[s].each;
        fits = fits && each > 0 && each % 16 == 0 && a->seg[s].at + a->n_part * each == a->seg[s].end;
        rows += each;
    }
    return fits && rows <= PART_ROWS_MAX;
}

static bool tree_run(struct cuda_device *cu, const struct linear_bwd_tree *call, struct error *err)
{
    const struct weight *w = call->w;
    tree_args a = {};
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t l = {};
    int fit;    // clusters at a time
    a.y = call->y;
    a.ldy = w->n_in;
    a.f32 = call->y_dtype == DT_F32;
    a.rows = (int)call->n;
    a.n_part = call->n_part;
    a.n_seg = call->n_seg;
    for (int s = 0; s < call->n_seg; s++) {
        a.at[s] = (int)call->seg[s].at;
        a.each[s] = (int)call->seg[s].each;
    }
    a.m_turn = (int)blocks_for(call->n, TILE * PAIR);
    a.n_col = (int)(w->n_in / TILE);
    a.n_turn = a.m_turn * a.n_col;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = PAIR;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    l.gridDim = dim3(PAIR);
    l.blockDim = dim3(WORKERS + 128);
    l.dynamicSmemBytes = SHARED_BYTES;
    l.stream = cu->stream;
    l.attrs = &cluster;
    l.numAttrs = 1;
    if (!tensor_map_make(&a.x, call->dy, w->n_out, call->n, call->lddy, TILE, "linear_bwd_tree", err)
        || !tensor_map_make(&a.w, w->data, w->n_in, w->n_out, w->n_in, BOX_COLS, "linear_bwd_tree", err)
        || !cuda_ok(cudaFuncSetAttribute(tree_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES), "linear_bwd_tree", err)
        || !cuda_ok(cudaOccupancyMaxActiveClusters(&fit, tree_kernel, &l), "linear_bwd_tree", err))
        return false;
    l.gridDim = dim3((unsigned)(PAIR * MIN(MAX(fit, 1), a.n_turn)));
    return cuda_ok(cudaLaunchKernelEx(&l, tree_kernel, a), "linear_bwd_tree", err);
}

/* --- the same bits? -------------------------------------------------------------------------------------------------- */
/* The call with random operands in memory of its own. */
struct tree_trial {
    struct linear_bwd_tree a;
    struct weight w;
    char *mem;
    uint64_t *hash;    // device
    size_t y_bytes;
};
static bool tree_trial_open(struct cuda_device *cu, struct tree_trial *t, const struct linear_bwd_tree *a)
{
    struct error ignored;
    size_t w_bytes = (size_t)(a->w->n_out * a->w->n_in) * sizeof(bf16), dy_bytes = (size_t)(a->n * a->lddy) * sizeof(bf16);
    size_t dy_at = (w_bytes + 255) & ~(size_t)255, y_at = dy_at + ((dy_bytes + 255) & ~(size_t)255);
    t->a = *a;
    t->w = *a->w;
    t->y_bytes = (size_t)(a->n * a->w->n_in) * dtype_size(a->y_dtype);
    size_t hash_at = y_at + ((t->y_bytes + 255) & ~(size_t)255);
    if (cudaMalloc(&t->mem, hash_at + sizeof *t->hash) != cudaSuccess)
        return false;
    t->w.data = t->mem;
    t->a.w = &t->w;
    t->a.dy = t->mem + dy_at;
    t->a.y = t->mem + y_at;
    t->hash = (uint64_t *)(t->mem + hash_at);
    return noise_fill(cu, (bf16 *)t->mem, (int64_t)(y_at / 2), 7, &ignored);
}
/* The hash of what one way makes of the first so many rows; false: it cannot be run. */
static bool tree_trial_hash(struct cuda_device *cu, const struct tree_trial *t, int64_t rows, bool in_registers, uint64_t *hash)
{
    struct linear_bwd_tree a = t->a;
    struct mem_hash h = {};
    struct error ignored;
    a.n = rows;
    h.hash = t->hash;
    h.x = a.y;
    h.size_bytes = t->y_bytes;
    return noise_fill(cu, (bf16 *)a.y, (int64_t)(t->y_bytes / 2), 8, &ignored)
           && (in_registers ? tree_run(cu, &a, &ignored) : bwd_by_parts(&cu->base, &a, &ignored)) && mem_hash_cuda(&cu->base, &h, &ignored)
           && cudaMemcpyAsync(hash, t->hash, sizeof *hash, cudaMemcpyDeviceToHost, cu->stream) == cudaSuccess
           && cudaStreamSynchronize(cu->stream) == cudaSuccess;
}
static bool tree_agrees(struct cuda_device *cu, const struct linear_bwd_tree *a)
{
    const int64_t rows[ROWS_CHECKED] = { a->n, a->n / 2 + 3 };
    struct tree_trial t = {};
    bool same = tree_trial_open(cu, &t, a);
    for (int i = 0; i < ROWS_CHECKED; i++) {
        uint64_t want, got;
        same = same && tree_trial_hash(cu, &t, rows[i], false, &want) && tree_trial_hash(cu, &t, rows[i], true, &got) && want == got;
    }
    cudaFree(t.mem);
    (void)cudaGetLastError();
    return same;
}

extern "C" bool linear_bwd_tree_cuda(struct device *dev, const struct linear_bwd_tree *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    if (a->n == 0)
        return true;
    if (!tree_fits(cu, a) || cu->capturing)
        return bwd_by_parts(dev, a, err);
    struct gemm_plan *p = plan_ready(cu, PRODUCT_BWD_TREE, a->w->n_out, a->w->n_in, a->n_part * 4 + a->n_seg, false, err);
    int bucket = row_bucket(a->n);
    if (!p)
        return false;
    if (!p->known[bucket]) {
        p->known[bucket] = true;
        p->way[bucket].few = tree_agrees(cu, a) ? 1 : 0;
    }
    return p->way[bucket].few ? tree_run(cu, a, err) : bwd_by_parts(dev, a, err);
}
