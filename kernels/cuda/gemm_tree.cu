/* gemm_tree.cu - products whose sum is in parts (linear_bwd_tree, and linear_fwd of a weight with parts), the tree added up in registers
 *
 * Part by part, partial sums of the whole result go to memory in fp32 and come back, in linear_bwd_tree for each group of rows once more: that can
 * take several times what the product takes. Here a block has 128 columns of 128 rows of the result and goes through all of K, chain after chain.
 * Two warpgroups multiply, each 64 rows; one thread loads boxes of 64 of K, five stages ahead. One set of registers has the sum of a chain, a
 * second that of a part, a third the third part; the first part, then the sum of the first two, is in shared memory. So up to 4 parts.
 *
 * Two blocks, one below the other, are a cluster: each loads half of W's boxes into both. A place in the ring is free when both are done
 * with it. A cluster takes one result after the other, so that loads of the next go on while the sums of this one are stored.
 *
 * A chain is K in ascending steps of 16 from 0, which is cuBLASLt's order. The first use of a kind compares the result with that of
 * the product part by part, byte by byte on random data, and takes the faster way. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/hopper.cuh"
#define TILE 128
#define PAIR 2                               // blocks of a cluster, one below the other
#define SIDE_BYTES (TILE * BOX_ROW_BYTES)    // of one operand of a stage
#define STAGE_BYTES (2 * SIDE_BYTES)
#define STAGES 5
#define WORKERS 256
#define SHARED_BYTES (STAGES * STAGE_BYTES + TILE * TILE * 4 + 1024)
#define ROWS_CHECKED 2
#define BAND 8    // results of a cluster, down the rows
#define TIMED_RUNS 4
#define WIDE_MAX 2
#define SEGS_MAX 4

struct tree_args {
    CUtensorMap x, w;
    void *y;
    int64_t ldy;
    int rows, n_part, n_seg;
    int m_turn, n_turn;    // results of a cluster: down the rows, and all
    int n_col;             // results of a cluster side by side
    int width;             // y's columns
    int at[SEGS_MAX], each[SEGS_MAX];
    float start;    // what the first chain of a part is added to
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
/* Arrive at another block's barrier. Without `.release.cluster`, which waits for all of the block's memory traffic (MEMBAR.ALL.GPU): what ends here are
 * reads by the matrix units, which are done. */
__device__ static inline void barrier_arrive_at(uint64_t *b, uint32_t rank)
{
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(shared_at(b)),
                 "r"(rank)
                 : "memory");
}
/* product for 128 columns, the right side summed over its rows, or over its columns with FWD. */
template <bool FWD> __device__ static inline void product_either(float (&d)[TILE / 2], uint64_t a, uint64_t b, bool first)
{
    int more = !first;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, %64, %65, p, 1, 1, 0, %67;\n}"
                 : D32(d, 0), D32(d, 32)
                 : "l"(a), "l"(b), "r"(more), "n"(FWD ? 0 : 1));
}
/* d += the product of a box's first STEPS times 16 of K, or = it when first. */
template <bool FWD, int STEPS> __device__ static inline void box_multiply(float (&d)[TILE / 2], uint64_t x, uint64_t w, bool first)
{
    constexpr int W_STEP = FWD ? 2 : BOX_ROW_BYTES;    // 16 of K further, as descriptors count
    pin(d);
    products_begin();
#pragma unroll
    for (int k = 0; k < STEPS; k++)
        product_either<FWD>(d, x + 2 * k, w + W_STEP * k, first && k == 0);
    products_commit();
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
template <int WIDE> __device__ static inline corner corner_of(const tree_args &a, int t)
{
    int band = t / (BAND * a.n_col), in_band = t - band * (BAND * a.n_col), high = min(BAND, a.m_turn - band * BAND),
        right = in_band / high;
    int rank = (int)blockIdx.x % (PAIR * WIDE);
    return corner{ ((band * BAND + in_band - right * high) * PAIR + rank % PAIR) * TILE, (right * WIDE + rank / PAIR) * TILE };
}
/* The loading thread. */
template <bool FWD, int WIDE> __device__ static void tree_load(const tree_args &a, uint8_t *smem, uint64_t *full, uint64_t *empty)
{
    int rank = (int)blockIdx.x % (PAIR * WIDE), down = rank % PAIR, right = rank / PAIR;
    place p = { 0, 1 };    // the first round finds all places empty
    for (int t = (int)blockIdx.x / (PAIR * WIDE); t < a.n_turn; t += (int)gridDim.x / (PAIR * WIDE)) {
        corner at = corner_of<WIDE>(a, t);
        for (int c = 0; c < a.n_part * a.n_seg; c++) {
            int g = c % a.n_seg, k = a.at[g] + c / a.n_seg * a.each[g], end = k + a.each[g];
            for (; k < end; k += BOX_COLS) {    // the last box may have more than the chain's rows
                uint8_t *x = smem + p.s * STAGE_BYTES, *w = x + SIDE_BYTES + down * (SIDE_BYTES / PAIR);
                int own = at.n + down * (TILE / PAIR);
                barrier_wait(&empty[p.s], p.parity);
                barrier_expect(&full[p.s], STAGE_BYTES);
                if (WIDE == 1)
                    box_load(x, &a.x, k, at.m, &full[p.s]);
                else
                    box_load_all(x + right * (SIDE_BYTES / WIDE), &a.x, k, at.m + right * (TILE / WIDE), &full[p.s],
                                 (uint16_t)((1 | 1 << PAIR) << down));
                box_load_all(w, &a.w, FWD ? k : own, FWD ? own : k, &full[p.s], (uint16_t)(((1 << PAIR) - 1) << right * PAIR));
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
template <bool FWD, int WIDE> __global__ static void __launch_bounds__(WORKERS + 128, 1) tree_kernel(const __grid_constant__ tree_args a)
{
#ifdef HOPPER_CODE
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], WORKERS / 32 * (1 + WIDE));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_meet();
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0), lane = (int)threadIdx.x % 32;
    if (group == WORKERS / 128) {
        registers_give<24>();
        if (threadIdx.x == WORKERS)
            tree_load<FWD, WIDE>(a, smem, full, empty);
    } else {
        registers_take<240>();
        uint32_t tile = shared_at(smem) & 0x3ffff;    // without the block's number, which a descriptor has no room for
        uint64_t x_at = by_columns(tile + group * 64 * BOX_ROW_BYTES, 0, 0), w_at = tile + SIDE_BYTES;
        w_at = FWD ? by_columns((uint32_t)w_at, 0, 0) : by_rows((uint32_t)w_at, 0, SIDE_BYTES / 2);
        float4 *saved = (float4 *)(smem + STAGES * STAGE_BYTES) + threadIdx.x;    // (TILE / 8, WORKERS)
        auto release = [&](int s) {
            if (lane < 1 + WIDE)    // this block, the one that shares its columns, and the one that shares its rows
                barrier_arrive_at(&empty[s], (blockIdx.x % (PAIR * WIDE)) ^ (uint32_t)lane);
        };
        float d[TILE / 2], part[TILE / 2], third[TILE / 2];
#pragma unroll
        for (int i = 0; i < TILE / 2; i++)
            d[i] = part[i] = third[i] = 0;
        place p = { 0, 0 };
        for (int t = (int)blockIdx.x / (PAIR * WIDE); t < a.n_turn; t += (int)gridDim.x / (PAIR * WIDE)) {
            for (int q = 0; q < a.n_part; q++) {
                for (int g = 0; g < a.n_seg; g++) {
                    int n_box = a.each[g] / BOX_COLS, left = a.each[g] % BOX_COLS / 16, before = -1;
                    for (int i = 0; i < n_box; i++) {
                        uint64_t skip = (uint64_t)(uint32_t)(p.s * (STAGE_BYTES / 16));
                        barrier_wait(&full[p.s], p.parity);
                        box_multiply<FWD, 4>(d, x_at + skip, w_at + skip, i == 0);
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
                        if (left == 1)
                            box_multiply<FWD, 1>(d, x_at + skip, w_at + skip, n_box == 0);
                        else if (left == 2)
                            box_multiply<FWD, 2>(d, x_at + skip, w_at + skip, n_box == 0);
                        else
                            box_multiply<FWD, 3>(d, x_at + skip, w_at + skip, n_box == 0);
                        products_wait<0>();
                        pin(d);
                        release(p.s);
                        place_next(&p);
                    }
#pragma unroll
                    for (int i = 0; i < TILE / 2; i++)
                        part[i] = (g == 0 ? a.start : part[i]) + d[i];
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
            corner own = corner_of<WIDE>(a, t);
            int first = own.m + group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int row = first + 8 * r;
                int64_t at = row * a.ldy + own.n;
                bool there = row < a.rows && (WIDE == 1 || own.n < a.width);
                if (!a.f32)
                    row_store<TILE>((bf16 *)a.y + at, part, r, 1.0f, there);
                else if (there)
                    row_store_f32((float *)a.y + at, part, r);
            }
        }
    }
    cluster_meet();    // no block ends while another still writes to its memory
#endif
}

/* The call: a linear_bwd_tree, or a linear_fwd when bwd.w is NULL. */
struct tree_call {
    struct linear_fwd fwd;
    struct gemm_plan *fwd_plan;
    struct linear_bwd_tree bwd;
};
/* What both have: y (rows, width) = x (rows, depth) by W. */
struct tree_sizes {
    const struct weight *w;
    const void *x;
    void *y;
    int64_t rows, width, depth, ldx;
    enum dtype y_dtype;
    int n_part, n_seg;
};
static struct tree_sizes sizes_of(const struct tree_call *c)
{
    const struct linear_fwd *f = &c->fwd;
    const struct linear_bwd_tree *b = &c->bwd;
    if (b->w)
        return { b->w, b->dy, b->y, b->n, b->w->n_in, b->w->n_out, b->lddy, b->y_dtype, b->n_part, b->n_seg };
    bool tree = f->w->parts > 1;
    return { f->w, f->x, f->y, f->n, f->w->n_out, f->w->n_in, f->ldx, f->y_dtype, tree ? f->w->parts : 1, tree ? 1 : c->fwd_plan->split };
}
static bool tree_fits(const struct cuda_device *cu, const struct tree_call *c)
{
    struct tree_sizes z = sizes_of(c);
    bool fits = cu->hopper && z.w->dtype == DT_BF16 && z.rows > TIMED_ROWS && z.rows < INT32_MAX / 2 && z.width % TILE == 0
                && (z.n_part == 1 || z.n_part == 2 || z.n_part == 4) && z.n_seg > 0 && z.n_part * z.n_seg > 1 && z.ldx % 8 == 0
                && (((uintptr_t)z.x | (uintptr_t)z.w->data | (uintptr_t)z.y) & 15) == 0;
    if (!c->bwd.w)
        return fits && z.n_seg <= SEGS_MAX && z.depth % (16 * z.n_part * z.n_seg) == 0 && !c->fwd.bias && c->fwd.ldy == z.width;
    for (int s = 0; s < z.n_seg; s++) {
        int64_t each = c->bwd.seg[s].each;
        fits = fits && each > 0 && each % 16 == 0 && c->bwd.seg[s].at + z.n_part * each == c->bwd.seg[s].end;
    }
    return fits;
}

static bool tree_run(struct cuda_device *cu, const struct tree_call *call, int wide, struct error *err)
{
    struct tree_sizes z = sizes_of(call);
    bool fwd = !call->bwd.w;
    const char *op = fwd ? "linear_fwd" : "linear_bwd_tree";
    auto *kernel = wide == 1 ? fwd ? tree_kernel<true, 1> : tree_kernel<false, 1> : fwd ? tree_kernel<true, 2> : tree_kernel<false, 2>;
    tree_args a = {};
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t l = {};
    int fit;    // clusters at a time
    a.y = z.y;
    a.ldy = z.width;
    a.f32 = z.y_dtype == DT_F32;
    a.rows = (int)z.rows;
    a.n_part = z.n_part;
    a.n_seg = z.n_seg;
    a.start = fwd && z.n_part == 1 ? 0.0f : -0.0f;    // the former loses the sign of a zero, as split_sum_kernel does
    for (int s = 0; s < z.n_seg; s++) {
        a.each[s] = (int)(fwd ? z.depth / (z.n_part * z.n_seg) : call->bwd.seg[s].each);
        a.at[s] = fwd ? s * a.each[s] : (int)call->bwd.seg[s].at;
    }
    a.m_turn = (int)blocks_for(z.rows, TILE * PAIR);
    a.n_col = (int)blocks_for(z.width, TILE * wide);
    a.width = (int)z.width;
    a.n_turn = a.m_turn * a.n_col;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)(PAIR * wide);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    l.gridDim = dim3((unsigned)(PAIR * wide));
    l.blockDim = dim3(WORKERS + 128);
    l.dynamicSmemBytes = SHARED_BYTES;
    l.stream = cu->stream;
    l.attrs = &cluster;
    l.numAttrs = 1;
    if (!tensor_map_make(&a.x, z.x, z.depth, z.rows, z.ldx, TILE / wide, op, err)
        || !tensor_map_make(&a.w, z.w->data, z.w->n_in, z.w->n_out, z.w->n_in, TILE / PAIR, op, err)
        || !cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES), op, err)
        || !cuda_ok(cudaOccupancyMaxActiveClusters(&fit, kernel, &l), op, err))
        return false;
    l.gridDim = dim3((unsigned)(PAIR * wide * MIN(MAX(fit, 1), a.n_turn)));
    return cuda_ok(cudaLaunchKernelEx(&l, kernel, a), op, err);
}

/* --- the same bits, and faster? --------------------------------------------------------------------------------------- */
/* The call with random operands in memory of its own. */
struct tree_trial {
    struct tree_call c;
    struct weight w;
    char *mem;
    uint64_t *hash;    // device
    size_t y_bytes;
    cudaEvent_t from, to;
};
static bool tree_trial_open(struct cuda_device *cu, struct tree_trial *t, const struct tree_call *c)
{
    struct error ignored;
    struct tree_sizes z = sizes_of(c);
    size_t w_bytes = (size_t)(z.w->n_out * z.w->n_in) * sizeof(bf16), x_bytes = (size_t)(z.rows * z.ldx) * sizeof(bf16);
    size_t x_at = (w_bytes + 255) & ~(size_t)255, y_at = x_at + ((x_bytes + 255) & ~(size_t)255);
    t->c = *c;
    t->w = *z.w;
    t->y_bytes = (size_t)(z.rows * z.width) * dtype_size(z.y_dtype);
    size_t hash_at = y_at + ((t->y_bytes + 255) & ~(size_t)255);
    if (cudaMalloc(&t->mem, hash_at + sizeof *t->hash) != cudaSuccess)
        return false;
    t->w.data = t->mem;
    t->c.fwd.x = t->c.bwd.dy = t->mem + x_at;
    t->c.fwd.y = t->c.bwd.y = t->mem + y_at;
    t->c.fwd.for_norm = false;
    if (c->bwd.w)
        t->c.bwd.w = &t->w;
    else
        t->c.fwd.w = &t->w;
    t->hash = (uint64_t *)(t->mem + hash_at);
    return cudaEventCreate(&t->from) == cudaSuccess && cudaEventCreate(&t->to) == cudaSuccess
           && noise_fill(cu, (bf16 *)t->mem, (int64_t)(y_at / 2), 7, &ignored);
}
static void tree_trial_close(struct tree_trial *t)
{
    if (t->from)
        cudaEventDestroy(t->from);
    if (t->to)
        cudaEventDestroy(t->to);
    cudaFree(t->mem);
    (void)cudaGetLastError();
}
static bool tree_trial_run(struct cuda_device *cu, const struct tree_call *c, int wide)
{
    struct error ignored;
    return wide       ? tree_run(cu, c, wide, &ignored)
           : c->bwd.w ? bwd_by_parts(&cu->base, &c->bwd, &ignored)
                      : fwd_by_plan(&cu->base, &c->fwd, c->fwd_plan, &ignored);
}
/* The hash of what one way makes of the first `rows` rows; false: it cannot be run. */
static bool tree_trial_hash(struct cuda_device *cu, const struct tree_trial *t, int64_t rows, int wide, uint64_t *hash)
{
    struct tree_call c = t->c;
    struct mem_hash h = {};
    struct error ignored;
    c.fwd.n = c.bwd.n = rows;
    h.hash = t->hash;
    h.x = c.fwd.y;
    h.size_bytes = t->y_bytes;
    return noise_fill(cu, (bf16 *)c.fwd.y, (int64_t)(t->y_bytes / 2), 8, &ignored) && tree_trial_run(cu, &c, wide)
           && mem_hash_cuda(&cu->base, &h, &ignored)
           && cudaMemcpyAsync(hash, t->hash, sizeof *hash, cudaMemcpyDeviceToHost, cu->stream) == cudaSuccess
           && cudaStreamSynchronize(cu->stream) == cudaSuccess;
}
static bool tree_trial_time(struct cuda_device *cu, const struct tree_trial *t, int wide, float *ms)
{
    bool ok = tree_trial_run(cu, &t->c, wide) && cudaEventRecord(t->from, cu->stream) == cudaSuccess;
    for (int i = 0; ok && i < TIMED_RUNS; i++)
        ok = tree_trial_run(cu, &t->c, wide);
    return ok && cudaEventRecord(t->to, cu->stream) == cudaSuccess && cudaEventSynchronize(t->to) == cudaSuccess
           && cudaEventElapsedTime(ms, t->from, t->to) == cudaSuccess;
}
/* How wide clusters should be; 0: part by part. */
static int tree_choose(struct cuda_device *cu, const struct tree_call *c)
{
    int64_t n = sizes_of(c).rows;
    const int64_t rows[ROWS_CHECKED] = { n, n / 2 + 3 };
    struct tree_trial t = {};
    uint64_t want[ROWS_CHECKED], got;
    float least, ms;
    int best = 0;
    bool ok = tree_trial_open(cu, &t, c) && tree_trial_time(cu, &t, 0, &least);
    for (int i = 0; i < ROWS_CHECKED; i++)
        ok = ok && tree_trial_hash(cu, &t, rows[i], 0, &want[i]);
    for (int wide = 1; ok && wide <= WIDE_MAX; wide++) {
        bool same = true;
        for (int i = 0; i < ROWS_CHECKED; i++)
            same = same && tree_trial_hash(cu, &t, rows[i], wide, &got) && got == want[i];
        if (same && tree_trial_time(cu, &t, wide, &ms) && ms < least) {
            least = ms;
            best = wide;
        }
    }
    tree_trial_close(&t);
    return best;
}
/* Is the call to be run in registers? Found out by a kind's first use. */
static bool tree_chosen(struct cuda_device *cu, const struct tree_call *c, int *wide, struct error *err)
{
    struct tree_sizes z = sizes_of(c);
    *wide = 0;
    if (!tree_fits(cu, c) || cu->base.recording)
        return true;
    struct gemm_plan *p = plan_ready(cu, c->bwd.w ? PRODUCT_BWD_TREE : PRODUCT_FWD_TREE, z.w->n_out, z.w->n_in,
                                     (z.n_part * 4 + z.n_seg) * 2 + (z.y_dtype == DT_F32), false, err);
    int bucket = row_bucket(z.rows);
    if (!p)
        return false;
    if (!p->known[bucket]) {
        p->known[bucket] = true;
        p->way[bucket].few = tree_choose(cu, c);
    }
    *wide = p->way[bucket].few;
    return true;
}

bool fwd_in_registers(struct cuda_device *cu, const struct linear_fwd *a, struct gemm_plan *plan, bool *done, struct error *err)
{
    struct tree_call c = {};
    c.fwd = *a;
    c.fwd_plan = plan;
    int wide;
    if (!tree_chosen(cu, &c, &wide, err))
        return false;
    *done = wide > 0;
    return wide == 0 || tree_run(cu, &c, wide, err);
}
extern "C" bool linear_bwd_tree_cuda(struct device *dev, const struct linear_bwd_tree *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    struct tree_call c = {};
    int wide;
    c.bwd = *a;
    if (a->n == 0)
        return true;
    return tree_chosen(cu, &c, &wide, err) && (wide ? tree_run(cu, &c, wide, err) : bwd_by_parts(dev, a, err));
}
