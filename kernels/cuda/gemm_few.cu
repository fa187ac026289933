/* gemm_few.cu - products of few rows, as in decoding: weights stream through shared memory while wgmma adds them up
 *
 * y = x W^T with the rows of x as the rows of the instruction and N rows of the weight as its columns. A block has N outputs of all rows
 * and one part of K. One warp loads boxes of 64 columns of K, a stage each, as far ahead as shared memory allows; it begins with
 * the weights, which no kernel before this one writes, and loads x once those kernels are done. Each output is one chain over K in
 * ascending steps of 16 from 0, whatever N, the number of rows and the number of stages are: cuBLASLt's order, which gemm.cu checks for
 * each weight shape before it uses this.
 *
 * A pair of gate and up in one block gives act(gate) up, each rounded to bf16 before, as swiglu_fwd does. */
#include "kernels/cuda/gemm_few.cuh"
#include "kernels/cuda/hopper.cuh"
#include <inttypes.h>
#define STAGES_MAX 16
#define LOADERS 32                        // threads beside the warpgroups; one loads
#define SHARED_HALF (112 * 1024)          // of a multiprocessor's memory: two blocks, or this one and the next kernel's, at a time
#define SHARED_SLACK (1024 + 64 * 128)    // for alignment, and rows that an instruction reads without need after the last stage

struct few_args {
    CUtensorMap w, x;
    void *y;
    const bf16 *bias;
    int64_t ldy;
    int rows, n_out;
    int n_box;    // boxes of a part of K, one per stage
    int stages;
    int x_rows;    // rows in a box of x
    int pair;      // first row of up when the weight is gate and up, else 0
    enum gate_act act;
    bool f32;
};

#ifdef HOPPER_CODE
/* A place in the ring of stages. */
struct place {
    int s;
    uint32_t parity;    // of the barriers' phase
};
__device__ static inline void place_next(place *p, int stages)
{
    bool around = ++p->s == stages;
    p->s = around ? 0 : p->s;
    p->parity ^= around;
}
#endif
template <int N, int GROUPS> __global__ void __launch_bounds__(128 * GROUPS + LOADERS) few_kernel(const __grid_constant__ few_args a)
{
#ifdef HOPPER_CODE
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    __shared__ float bias_of[N];    // of the block's outputs
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    int x_bytes = a.x_rows * BOX_ROW_BYTES, stage_bytes = x_bytes + N * BOX_ROW_BYTES;
    int own = a.pair ? N / 2 : N, first = (int)blockIdx.x * own;    // outputs
    if (threadIdx.x >= 128 * GROUPS) {
        int lane = (int)threadIdx.x - 128 * GROUPS, col = (int)blockIdx.y * a.n_box * BOX_COLS, ahead = min(a.stages, a.n_box);
        if (lane < a.stages) {
            barrier_init(&full[lane], 1);
            barrier_init(&empty[lane], 4 * GROUPS);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
        auto weights = [&](int s, int i) {
            uint8_t *to = smem + s * stage_bytes + x_bytes;
            barrier_expect(&full[s], stage_bytes);
            box_load(to, &a.w, col + i * BOX_COLS, first, &full[s]);
            if (a.pair)
                box_load(to + own * BOX_ROW_BYTES, &a.w, col + i * BOX_COLS, a.pair + first, &full[s]);
        };
        auto inputs = [&](int s, int i) { box_load(smem + s * stage_bytes, &a.x, col + i * BOX_COLS, 0, &full[s]); };
        if (lane == 0) {
            map_fetch(&a.w);
            map_fetch(&a.x);
            for (int i = 0; i < ahead; i++)
                weights(i, i);
        }
        __syncthreads();
        next_start();
        before_wait();
        if (lane != 0)
            return;
        for (int i = 0; i < ahead; i++)
            inputs(i, i);
        place p = { 0, 0 };
        for (int i = ahead; i < a.n_box; i++) {
            barrier_wait(&empty[p.s], p.parity);
            weights(p.s, i);
            inputs(p.s, i);
            place_next(&p, a.stages);
        }
        return;
    }
    __syncthreads();
    next_start();
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    for (int j = (int)threadIdx.x; a.bias && j < N; j += 128 * GROUPS) {    // from memory, and no kernel of a step writes it
        int of = a.pair && j >= own ? a.pair + first + j - own : first + j;
        bias_of[j] = of < a.n_out ? to_float(a.bias[of]) : 0;
    }
    float d[N / 2] = {};    // set before the first product, or the compiler of CUDA 12 lets each product wait for the one before
    uint64_t x_at = by_columns(shared_at(smem) + group * 64 * BOX_ROW_BYTES, 0, 0), w_at = by_columns(shared_at(smem) + x_bytes, 0, 0);
    place p = { 0, 0 };
    int before = 0;
    for (int i = 0; i < a.n_box; i++) {
        uint64_t skip = (uint64_t)(uint32_t)(p.s * (stage_bytes / 16));    // descriptors count in units of 16 bytes
        barrier_wait(&full[p.s], p.parity);
        pin(d);
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; k++)
            product<N>(d, x_at + skip + 2 * k, w_at + skip + 2 * k, i == 0 && k == 0);
        products_commit();
        products_wait<1>();
        if (lane == 0 && i > 0)
            barrier_arrive(&empty[before]);
        before = p.s;
        place_next(&p, a.stages);
    }
    products_wait<0>();
    pin(d);
    if (a.bias)
        meet(1, 128 * GROUPS);    // bias_of is there
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = group * 64 + warp * 16 + lane / 4 + 8 * r, col = first + lane % 4 * 2;
        if (row >= a.rows)
            continue;
        if (a.pair) {
            if constexpr (N >= 16)
#pragma unroll
                for (int j = 0; j < N / 16; j++) {
                    float v[2];
                    if (col + 8 * j >= a.pair)
                        break;
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float g = d[4 * j + 2 * r + e], u = d[4 * (j + N / 16) + 2 * r + e];
                        if (a.bias) {
                            g += bias_of[lane % 4 * 2 + 8 * j + e];
                            u += bias_of[own + lane % 4 * 2 + 8 * j + e];
                        }
                        v[e] = gate_times(to_float(from_float<bf16>(g)), to_float(from_float<bf16>(u)), a.act);
                    }
                    *(uint32_t *)((bf16 *)a.y + row * a.ldy + col + 8 * j) = pack2(v[0], v[1]);
                }
            continue;
        }
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float v0 = d[4 * j + 2 * r], v1 = d[4 * j + 2 * r + 1];
            int64_t at = row * a.ldy + col + 8 * j;
            if (col + 8 * j >= a.n_out)
                break;
            if (a.bias) {
                v0 += bias_of[lane % 4 * 2 + 8 * j];
                v1 += bias_of[lane % 4 * 2 + 8 * j + 1];
            }
            if (a.f32)
                *(float2 *)((float *)a.y + (int64_t)blockIdx.y * a.rows * a.n_out + at) = make_float2(v0, v1);
            else
                *(uint32_t *)((bf16 *)a.y + at) = pack2(v0, v1);
        }
    }
#endif
}

/* --- launching ------------------------------------------------------------------------------------------------------- */
static const int width_of[FEW_FORMS] = { 8, 16, 32, 48, 64, 80, 96, 128, 144 };

template <int N, int GROUPS> static bool few_launch(struct cuda_device *cu, const few_call &c, few_args &a, dim3 grid, struct error *err)
{
    auto *kernel = few_kernel<N, GROUPS>;
    int stage_bytes = (a.x_rows + N) * BOX_ROW_BYTES, fit = (SHARED_HALF - SHARED_SLACK) / stage_bytes;
    if (fit < 3)
        fit = (2 * SHARED_HALF - SHARED_SLACK) / stage_bytes;
    a.stages = MIN(MIN(fit, STAGES_MAX), a.n_box);
    size_t bytes = (size_t)a.stages * (size_t)stage_bytes + SHARED_SLACK;
    // one bound for all: another thread on this card may launch the same kernel with fewer bytes in between
    return tensor_map_make(&a.w, c.weight, c.n_in, c.n_out, c.n_in, c.pair ? N / 2 : N, "linear_fwd", err)
           && tensor_map_make(&a.x, c.x, c.n_in, c.rows, c.ldx, a.x_rows, "linear_fwd", err)
           && cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 2 * SHARED_HALF), "linear_fwd", err)
           && launch_early(cu, kernel, grid, dim3(128 * GROUPS + LOADERS), bytes, "linear_fwd", err, a);
}
template <int N> static bool few_groups(struct cuda_device *cu, const few_call &c, few_args &a, dim3 grid, struct error *err)
{
    return a.rows <= 64 ? few_launch<N, 1>(cu, c, a, grid, err) : few_launch<N, 2>(cu, c, a, grid, err);
}

int few_width(int form)
{
    return width_of[form];
}

bool few_fits(const struct cuda_device *cu, int64_t rows, int64_t n_out, int64_t n_in, int split)
{
    return cu->hopper && rows <= FEW_ROWS_MAX && n_out % 8 == 0 && n_out < INT32_MAX && n_in % split == 0 && n_in / split % BOX_COLS == 0;
}

bool few_form_suits(int form, int64_t n_out, int split, int n_sm)
{
    int64_t n_block = (n_out + width_of[form] - 1) / width_of[form] * split;
    return (n_block >= n_sm * 2 / 5 || form == 0) && (n_block <= 2 * n_sm || form >= FEW_FORMS - 2);
}

bool few_run(struct cuda_device *cu, const struct few_call *c, int form, struct error *err)
{
    few_args a = {};
    int width = width_of[form], box = c->pair ? width / 2 : width;
    int64_t n_out = c->pair ? c->n_out / 2 : c->n_out;
    if (c->pair && width < 16)
        return error_set(err, ERR_INTERNAL, "linear_fwd: gate and up in a block of %d", width);
    a.y = c->y;
    a.bias = (const bf16 *)c->bias;
    a.ldy = c->ldy;
    a.rows = (int)c->rows;
    a.n_out = (int)c->n_out;
    a.n_box = (int)(c->n_in / c->split / BOX_COLS);
    a.x_rows = (int)((c->rows + 7) / 8 * 8);
    a.pair = c->pair ? (int)n_out : 0;
    a.act = c->act;
    a.f32 = c->f32;
    dim3 grid(blocks_for(n_out, box), (unsigned)c->split);
    switch (width) {
    case 8: return few_groups<8>(cu, *c, a, grid, err);
    case 16: return few_groups<16>(cu, *c, a, grid, err);
    case 32: return few_groups<32>(cu, *c, a, grid, err);
    case 48: return few_groups<48>(cu, *c, a, grid, err);
    case 64: return few_groups<64>(cu, *c, a, grid, err);
    case 80: return few_groups<80>(cu, *c, a, grid, err);
    case 96: return few_groups<96>(cu, *c, a, grid, err);
    case 128: return few_groups<128>(cu, *c, a, grid, err);
    }
    return few_groups<144>(cu, *c, a, grid, err);
}
