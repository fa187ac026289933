/* group_hopper.cu - products by expert with Hopper's instructions: matrices stream through shared memory while wgmma adds them up
 *
 * A block has its turns of tiles, group by group, and reads on the device which rows are whose; one thread loads boxes of 64 of K as far
 * ahead as the ring of stages allows, over the end of a tile, too. Where groups have few rows, as in decoding, a tile has 64 of them, of
 * which only those that are there (in eights) are loaded, by 128 outputs, so that what moves is the weights. Where they have many, a tile
 * is 128 by 256.
 * Each element is one chain over K from 0 in ascending steps of 16, whatever the tile is, and a row's place in it changes nothing.
 *
 * The left side of a tile has 64 rows for each warpgroup. A box begins where a group does, since tensor maps begin at any row; rows after
 * the group's last are multiplied but not stored, except where the sum is over rows (the gradient by W): there they are cleared. */
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/hopper.cuh"
#define HALF 128                          // columns of an instruction
#define BOX_BYTES (64 * BOX_ROW_BYTES)    // of 64 rows
#define STAGES_MAX 8
#define LOADERS 32
#define LEFT_MAPS 4    // boxes of 8, 16, 32 and 64 rows
#define FEW_ROWS 48    // of a group on average

struct group_args {
    CUtensorMap left[LEFT_MAPS], right;
    void *out;
    const int32_t *first;
    int n_group, n_out, n_in;
    bool add;
};
template <int FORM_, int GROUPS, int HALVES> struct shape {
    static constexpr int FORM = FORM_, M = 64 * GROUPS, N = HALF * HALVES, LEFT_BYTES = GROUPS * BOX_BYTES,
                         RIGHT_BYTES = 2 * HALVES * BOX_BYTES, STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES,
                         STAGES = GROUPS == 1 ? STAGES_MAX : 4, SHARED_BYTES = STAGES * STAGE_BYTES + 1024;
    static constexpr bool BY_ROWS = FORM_ == GROUP_BWD_W;    // the sum is over a group's rows
};
#ifdef HOPPER_CODE
/* d += left right of 16 of K, each side summed over its columns (0) or its rows (1). */
template <int LEFT, int RIGHT> __device__ static inline void step_multiply(float (&d)[HALF / 2], uint64_t a, uint64_t b, bool first)
{
    int more = !first;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
                 : D32(d, 0), D32(d, 32)
                 : "l"(a), "l"(b), "r"(more), "n"(LEFT), "n"(RIGHT));
}
/* A place in the ring of stages. */
struct place {
    int s;
    uint32_t parity;    // of the barriers' phase
};
template <int STAGES> __device__ static inline void place_next(place *p)
{
    bool around = ++p->s == STAGES;
    p->s = around ? 0 : p->s;
    p->parity ^= around;
}
/* The tile of turn t, whose turns only go up. */
struct tile_at {
    int group, base, tiles;    // the group's first tile, and how many it has
    int row, end;              // the group's rows
    int m, n;                  // first row and column of the tile in its group's result
};
template <class S> __device__ static inline bool tile_next(tile_at *at, const group_args &a, const int *first, int t)
{
    int width = S::FORM == GROUP_FWD ? a.n_out : a.n_in, n_col = (width + S::N - 1) / S::N;
    while (t >= at->base + at->tiles) {
        at->base += at->tiles;
        if (++at->group >= a.n_group)
            return false;
        at->row = first[at->group];
        at->end = first[at->group + 1];
        at->tiles = ((S::BY_ROWS ? a.n_out : at->end - at->row) + S::M - 1) / S::M * n_col;
    }
    int high = at->tiles / n_col, in = t - at->base;
    at->m = in % high * S::M;
    at->n = in / high * S::N;
    return true;
}
/* How many boxes of K a tile has. */
template <class S> __device__ static inline int boxes_of(const group_args &a, const tile_at &at)
{
    int k = S::BY_ROWS ? at.end - at.row : S::FORM == GROUP_FWD ? a.n_in : a.n_out;
    return (k + BOX_COLS - 1) / BOX_COLS;
}
/* The loading thread. */
template <class S, int GROUPS, int HALVES>
__device__ static void group_load(const group_args &a, const int *first, uint8_t *smem, uint64_t *full, uint64_t *empty)
{
    place p = { 0, 1 };    // the first round finds all places empty
    tile_at at = { -1, 0, 0, 0, 0, 0, 0 };
    for (int t = (int)blockIdx.x; tile_next<S>(&at, a, first, t); t += (int)gridDim.x) {
        int n_box = boxes_of<S>(a, at), there = at.end - at.row - at.m;
        int map = GROUPS > 1 || S::BY_ROWS || there > 32 ? LEFT_MAPS - 1 : there > 16 ? 2 : there > 8 ? 1 : 0;
        int left_bytes = S::BY_ROWS || GROUPS > 1 ? S::LEFT_BYTES : (8 << map) * BOX_ROW_BYTES;
        for (int i = 0; i < n_box; i++) {
            uint8_t *left = smem + p.s * S::STAGE_BYTES, *right = left + S::LEFT_BYTES;
            int k = i * BOX_COLS;
            barrier_wait(&empty[p.s], p.parity);
            barrier_expect(&full[p.s], left_bytes + S::RIGHT_BYTES);
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                if (S::BY_ROWS)
                    box_load(left + g * BOX_BYTES, &a.left[map], at.m + 64 * g, at.row + k, &full[p.s]);
                else
                    box_load(left + g * BOX_BYTES, &a.left[map], k, at.row + at.m + 64 * g, &full[p.s]);
            if (S::FORM == GROUP_FWD)
                box_load(right, &a.right, k, at.group * a.n_out + at.n, &full[p.s]);
            else
#pragma unroll
                for (int b = 0; b < 2 * HALVES; b++)
                    box_load(right + b * BOX_BYTES, &a.right, at.n + b * BOX_COLS, (S::BY_ROWS ? at.row : at.group * a.n_out) + k,
                             &full[p.s]);
            place_next<S::STAGES>(&p);
        }
    }
}
/* One of a lane's two rows, r, of half a tile: the first of its columns is col, and there are `width`. All four lanes of a row call. */
__device__ static inline void half_store(bf16 *to, const float (&d)[HALF / 2], int r, int left, bool there)
{
#pragma unroll
    for (int j = 0; j < HALF / 8; j += 4) {
        uint32_t u[4];
        int col = (j + (int)threadIdx.x % 4) * 8;
#pragma unroll
        for (int i = 0; i < 4; i++)
            u[i] = pack2(d[4 * (j + i) + 2 * r], d[4 * (j + i) + 2 * r + 1]);
        quad_transpose(u);
        if (there && col < left)
            *(uint4 *)(to + col) = make_uint4(u[0], u[1], u[2], u[3]);
    }
}
__device__ static inline void half_store_f32(float *to, const float (&d)[HALF / 2], int r, int left, bool add)
{
#pragma unroll
    for (int j = 0; j < HALF / 8; j++) {
        int col = 8 * j + (int)threadIdx.x % 4 * 2;
        if (col >= left)
            continue;
        float2 v = add ? *(float2 *)(to + col) : make_float2(0, 0);
        v.x = add ? v.x + d[4 * j + 2 * r] : d[4 * j + 2 * r];
        v.y = add ? v.y + d[4 * j + 2 * r + 1] : d[4 * j + 2 * r + 1];
        *(float2 *)(to + col) = v;
    }
}
/* A warpgroup's rows of a tile. */
template <class S, int HALVES>
__device__ static inline void tile_store(const group_args &a, const tile_at &at, const float (&d)[HALVES][HALF / 2], int group)
{
    int width = S::FORM == GROUP_FWD ? a.n_out : a.n_in;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = at.m + group * 64 + (int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4 + 8 * r;
        bool there = row < (S::BY_ROWS ? a.n_out : at.end - at.row);
        int64_t to = (S::BY_ROWS ? (int64_t)at.group * a.n_out : (int64_t)at.row) + row;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            int64_t col = at.n + h * HALF;
            if (!S::BY_ROWS)
                half_store((bf16 *)a.out + to * width + col, d[h], r, width - (int)col, there);
            else if (there)
                half_store_f32((float *)a.out + to * width + col, d[h], r, width - (int)col, a.add);
        }
    }
}
#endif
template <int FORM, int GROUPS, int HALVES>
__global__ static void __launch_bounds__(128 * GROUPS + LOADERS, 1) group_kernel(const __grid_constant__ group_args a)
{
#ifdef HOPPER_CODE
    typedef shape<FORM, GROUPS, HALVES> S;
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    __shared__ int first[ROUTE_EXPERTS_MAX + 1];
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], 4 * GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    next_start();
    before_wait();
    for (int g = (int)threadIdx.x; g <= a.n_group; g += 128 * GROUPS + LOADERS)
        first[g] = a.first[g];
    __syncthreads();
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0), lane = (int)threadIdx.x % 32;
    if (group == GROUPS) {
        if (lane == 0)
            group_load<S, GROUPS, HALVES>(a, first, smem, full, empty);
        return;
    }
    constexpr int LEFT_STEP = S::BY_ROWS ? BOX_ROW_BYTES : 2,
                  RIGHT_STEP = FORM == GROUP_FWD ? 2 : BOX_ROW_BYTES;    // 16 of K in descriptors
    uint32_t tile = shared_at(smem);
    uint64_t left = S::BY_ROWS ? by_rows(tile + group * BOX_BYTES, 0, BOX_BYTES) : by_columns(tile + group * BOX_BYTES, 0, 0);
    uint64_t right = FORM == GROUP_FWD ? by_columns(tile + S::LEFT_BYTES, 0, 0) : by_rows(tile + S::LEFT_BYTES, 0, BOX_BYTES);
    place p = { 0, 0 };
    tile_at at = { -1, 0, 0, 0, 0, 0, 0 };
    float d[HALVES][HALF / 2];
    for (int t = (int)blockIdx.x; tile_next<S>(&at, a, first, t); t += (int)gridDim.x) {
        int n_box = boxes_of<S>(a, at), before = 0;
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < HALF / 2; i++)
                d[h][i] = 0;
        for (int i = 0; i < n_box; i++) {
            uint64_t skip = (uint64_t)(uint32_t)(p.s * (S::STAGE_BYTES / 16));
            int rows = at.end - at.row - i * BOX_COLS;
            barrier_wait(&full[p.s], p.parity);
            if (S::BY_ROWS && rows < BOX_COLS) {    // the next group's
                uint8_t *stage = smem + p.s * S::STAGE_BYTES;
                rows_clear<1>(stage + group * BOX_BYTES, rows, BOX_COLS);
                if (group == 0)
                    rows_clear<2 * HALVES>(stage + S::LEFT_BYTES, rows, BOX_COLS);
                stores_show();
                meet(1, 128 * GROUPS);
            }
#pragma unroll
            for (int h = 0; h < HALVES; h++)
                pin(d[h]);
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    step_multiply<S::BY_ROWS, FORM != GROUP_FWD>(
                        d[h], left + skip + LEFT_STEP * k, right + skip + h * (2 * BOX_BYTES / 16) + RIGHT_STEP * k, i == 0 && k == 0);
            products_commit();
            products_wait<1>();
            if (lane == 0 && i > 0)
                barrier_arrive(&empty[before]);
            before = p.s;
            place_next<S::STAGES>(&p);
        }
        products_wait<0>();
#pragma unroll
        for (int h = 0; h < HALVES; h++)
            pin(d[h]);
        if (lane == 0 && n_box > 0)
            barrier_arrive(&empty[before]);
        tile_store<S, HALVES>(a, at, d, group);
    }
#endif
}

/* --- launching ------------------------------------------------------------------------------------------------------------ */
bool group_hopper_fits(const struct cuda_device *cu, const struct group_call *c, enum group_form form)
{
    bool aligned = (((uintptr_t)c->left | (uintptr_t)c->right | (uintptr_t)c->out) & 15) == 0;
    bool narrow = c->n_out % 8 == 0 && c->n_in % 8 == 0 && c->n_group * c->n_out < INT32_MAX / 2;
    return cu->hopper && aligned && narrow && c->n > 0 && c->n < INT32_MAX / 2    // by rows of W a box must end with its matrix
           && (form != GROUP_BWD_X || c->n_out % BOX_COLS == 0);
}
template <int FORM, int GROUPS, int HALVES>
static bool hopper_run(struct cuda_device *cu, const struct group_call *c, const char *op, struct error *err)
{
    typedef shape<FORM, GROUPS, HALVES> S;
    auto *kernel = group_kernel<FORM, GROUPS, HALVES>;
    group_args a = {};
    int64_t left = FORM == GROUP_FWD ? c->n_in : c->n_out, width = FORM == GROUP_FWD ? c->n_out : c->n_in;
    int64_t high = S::BY_ROWS ? c->n_group * ((c->n_out + S::M - 1) / S::M) : c->n / S::M + MIN(c->n_group, c->n);
    int64_t tiles = high * ((width + S::N - 1) / S::N);    // at most
    a.out = c->out;
    a.first = c->first;
    a.n_group = (int)c->n_group;
    a.n_out = (int)c->n_out;
    a.n_in = (int)c->n_in;
    a.add = c->add;
    for (int i = 0; i < LEFT_MAPS; i++)
        if (!tensor_map_make(&a.left[i], c->left, left, c->n, left, 8 << i, op, err))
            return false;
    int64_t right_rows = S::BY_ROWS ? c->n : c->n_group * c->n_out;
    return tensor_map_make(&a.right, c->right, c->n_in, right_rows, c->n_in, FORM == GROUP_FWD ? S::N : BOX_COLS, op, err)
           && cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES), op, err)
           && launch_early(cu, kernel, dim3((unsigned)MIN(tiles, (int64_t)cu->n_sm)), dim3(128 * GROUPS + LOADERS), S::SHARED_BYTES, op,
                           err, a);
}
template <int FORM> static bool hopper_by_rows(struct cuda_device *cu, const struct group_call *c, const char *op, struct error *err)
{
    if (FORM != GROUP_BWD_W && c->n < FEW_ROWS * c->n_group)
        return hopper_run<FORM, 1, 1>(cu, c, op, err);
    return hopper_run<FORM, 2, 2>(cu, c, op, err);
}
bool group_hopper_run(struct cuda_device *cu, const struct group_call *c, enum group_form form, const char *op, struct error *err)
{
    return form == GROUP_FWD     ? hopper_by_rows<GROUP_FWD>(cu, c, op, err)
           : form == GROUP_BWD_X ? hopper_by_rows<GROUP_BWD_X>(cu, c, op, err)
                                 : hopper_by_rows<GROUP_BWD_W>(cu, c, op, err);
}
