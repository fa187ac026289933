/* group.cu - products by expert: rows sorted by expert, each range of rows times a matrix of its own
 *
 * Counts are read on the device. The grid has a tile for each that there can be, whatever the counts are, and those without rows end at
 * once, so a recorded step stays valid. Each element is one chain over K from 0, in ascending steps of 16 by mma.sync in bf16, one by one
 * in fp32: neither the number of rows nor their place in a tile takes part in it. The gradient by a matrix sums over its rows in order. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/group.cuh"
#include <inttypes.h>
#define TILE 64
#define TILE_K 32
#define THREADS 128

/* Element (i, k) of the left side is left[i lm + k lk], (j, k) of the right side right[j rn + k rk]. */
struct tile_args {
    const void *left, *right;
    void *out;
    const int32_t *first;
    int64_t lm, lk, rn, rk, right_group;    // steps, and from one matrix to the next
    int64_t m, n, k;                        // m: of a gradient by W; k: of the others
    int n_group;
    bool add;
};
/* Which rows of the call a block has; by their number the gradient's sum. */
struct tile_range {
    int group;
    int64_t row, end;
};
__device__ static inline tile_range tile_find(const tile_args &a, int64_t t)
{
    for (int g = 0; g < a.n_group; g++) {
        int64_t from = a.first[g], to = a.first[g + 1], tiles = (to - from + TILE - 1) / TILE;
        if (t < tiles)
            return tile_range{ g, from + t * TILE, to };
        t -= tiles;
    }
    return tile_range{ -1, 0, 0 };
}
/* Rows 0 .. TILE - 1 and TILE_K of K to shared memory, row by row; what is not there is 0. */
template <typename T, int LD>
__device__ static inline void side_load(T *to, const T *from, int64_t step, int64_t step_k, int64_t rows, int64_t k_left)
{
    constexpr int V = 16 / sizeof(T);
    if (step_k == 1 && step % V == 0 && k_left >= TILE_K && ((uintptr_t)from & 15) == 0) {
        for (int e = (int)threadIdx.x; e < TILE * (TILE_K / V); e += THREADS) {
            int i = e / (TILE_K / V), k = e % (TILE_K / V) * V;
            *(uint4 *)(to + i * LD + k) = i < rows ? *(const uint4 *)(from + i * step + k) : make_uint4(0, 0, 0, 0);
        }
        return;
    }
    for (int e = (int)threadIdx.x; e < TILE * TILE_K; e += THREADS) {
        int i = step_k == 1 ? e / TILE_K : e % TILE, k = step_k == 1 ? e % TILE_K : e / TILE;
        to[i * LD + k] = i < rows && k < k_left ? from[i * step + k * step_k] : from_float<T>(0);
    }
}
/* acc += left right^T of what is in shared memory: a warp has 16 rows, in fragments of 16 x 8. */
template <int LD> __device__ static inline void side_multiply(float (&acc)[8][4], const bf16 *left, const bf16 *right)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        uint32_t a[4], b[4];
        ldsm4(a, left + ((int)threadIdx.x / 32 * 16 + lane % 16) * LD + k + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            ldsm4(b, right + (j * 16 + lane / 16 * 8 + lane % 8) * LD + k + lane / 8 % 2 * 8);
            mma(acc[2 * j], a, b[0], b[1]);
            mma(acc[2 * j + 1], a, b[2], b[3]);
        }
    }
}
template <int LD> __device__ static inline void side_multiply(float (&acc)[8][4], const float *left, const float *right)
{
    int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4, col = (int)threadIdx.x % 4 * 2;
    for (int k = 0; k < TILE_K; k++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[j][e] = __fmaf_rn(left[(row + e / 2 * 8) * LD + k], right[(8 * j + col + e % 2) * LD + k], acc[j][e]);
}
/* BY_ROWS: the gradient by W, whose sum is over a group's rows. */
template <typename T, typename C, bool BY_ROWS> __global__ static void __launch_bounds__(THREADS) tile_kernel(tile_args a)
{
    constexpr int LD = TILE_K + 16 / sizeof(T);
    __shared__ __align__(16) T left[TILE * LD], right[TILE * LD];
    next_start();
    before_wait();
    tile_range at = BY_ROWS ? tile_range{ (int)blockIdx.z, 0, 0 } : tile_find(a, blockIdx.y);
    if (at.group < 0)
        return;
    int64_t j0 = (int64_t)blockIdx.x * TILE, i0 = BY_ROWS ? (int64_t)blockIdx.y * TILE : at.row, i_end = BY_ROWS ? a.m : at.end;
    int64_t k0 = BY_ROWS ? a.first[at.group] : 0, n_k = BY_ROWS ? a.first[at.group + 1] - k0 : a.k;
    const T *l = (const T *)a.left + i0 * a.lm + k0 * a.lk, *r = (const T *)a.right + at.group * a.right_group + j0 * a.rn + k0 * a.rk;
    float acc[8][4] = {};
    for (int64_t k = 0; k < n_k; k += TILE_K) {
        side_load<T, LD>(left, l + k * a.lk, a.lm, a.lk, i_end - i0, n_k - k);
        side_load<T, LD>(right, r + k * a.rk, a.rn, a.rk, a.n - j0, n_k - k);
        __syncthreads();
        side_multiply<LD>(acc, left, right);
        __syncthreads();
    }
    C *out = (C *)a.out + (BY_ROWS ? at.group * a.m * a.n : 0);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int64_t row = i0 + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + e / 2 * 8;
            int64_t col = j0 + 8 * j + (int)threadIdx.x % 4 * 2 + e % 2;
            if (row < i_end && col < a.n)
                out[row * a.n + col] = from_float<C>(a.add ? to_float(out[row * a.n + col]) + acc[j][e] : acc[j][e]);
        }
}

/* --- calls ---------------------------------------------------------------------------------------------------------------- */
static struct tile_args tile_args_of(const struct group_call *c, enum group_form form)
{
    struct tile_args a = {};
    bool by_rows = form == GROUP_BWD_W, fwd = form == GROUP_FWD;
    int64_t width = fwd ? c->n_in : c->n_out;    // of the left side
    a.left = c->left;
    a.right = c->right;
    a.out = c->out;
    a.first = c->first;
    a.n_group = (int)c->n_group;
    a.add = c->add;
    a.lm = by_rows ? 1 : width;
    a.lk = by_rows ? width : 1;
    a.rn = fwd ? c->n_in : 1;
    a.rk = fwd ? 1 : c->n_in;
    a.right_group = by_rows ? 0 : c->n_out * c->n_in;
    a.m = c->n_out;
    a.n = fwd ? c->n_out : c->n_in;
    a.k = width;
    return a;
}
template <typename T>
static bool tile_run(struct cuda_device *cu, const struct group_call *c, enum group_form form, const char *op, struct error *err)
{
    struct tile_args a = tile_args_of(c, form);
    int64_t tiles = c->n / TILE + MIN(c->n_group, c->n);    // each group's last may have few rows
    if (tiles > 65535 || c->n_out > 65535 * TILE)
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows in one call", op, c->n);
    if (form == GROUP_BWD_W)
        return launch_early(cu, tile_kernel<T, float, true>, dim3(blocks_for(a.n, TILE), blocks_for(a.m, TILE), (unsigned)c->n_group),
                            THREADS, 0, op, err, a);
    return launch_early(cu, tile_kernel<T, T, false>, dim3(blocks_for(a.n, TILE), (unsigned)tiles), THREADS, 0, op, err, a);
}
static bool group_run(struct cuda_device *cu, const struct group_call *c, enum group_form form, enum dtype t, const char *op,
                      struct error *err)
{
    if (c->n == 0 && form != GROUP_BWD_W)
        return true;
    if (t == DT_BF16 && group_hopper_fits(cu, c, form))
        return group_hopper_run(cu, c, form, op, err);
    return BY_TYPE(t, tile_run, cu, c, form, op, err);
}
extern "C" bool group_fwd_cuda(struct device *dev, const struct group_fwd *a, struct error *err)
{
    const struct weight *w = a->w;
    struct group_call c = { a->x, w->data, a->y, a->first, a->n, w->n_group, w->n_out, w->n_in, false };
    return group_run(cuda_of(dev), &c, GROUP_FWD, w->dtype, "group_fwd", err);
}
extern "C" bool group_bwd_x_cuda(struct device *dev, const struct group_bwd_x *a, struct error *err)
{
    const struct weight *w = a->w;
    struct group_call c = { a->dy, w->data, a->dx, a->first, a->n, w->n_group, w->n_out, w->n_in, false };
    if (!w->for_bwd)
        return error_set(err, ERR_SHAPE, "group_bwd_x: the weight was not made for it");
    return group_run(cuda_of(dev), &c, GROUP_BWD_X, w->dtype, "group_bwd_x", err);
}
extern "C" bool group_bwd_w_cuda(struct device *dev, const struct group_bwd_w *a, struct error *err)
{
    struct group_call c = { a->dy, a->x, a->dw, a->first, a->n, a->n_group, a->n_out, a->n_in, !a->set };
    return group_run(cuda_of(dev), &c, GROUP_BWD_W, a->dtype, "group_bwd_w", err);
}
