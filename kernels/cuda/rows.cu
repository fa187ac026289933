/* rows.cu - operations on rows and elements: gathering, norms, rotation, SwiGLU, sums, casts
 *
 * All are bound by memory: V elements per thread (about 16 bytes) where the row length allows. A row is one block, and its sums are
 * a fixed tree that depends only on the row length; sums over rows are split every SUM_ROWS rows and added in order. */
#include <inttypes.h>
#include "kernels/cuda/meet.cuh"
#include "kernels/cuda/rope.cuh"
#define ROW_THREADS 128
#define SUM_ROWS 64

/* 8 elements at a time when rows are multiples of 16 bytes, else one. This depends only on the length, so the bits do too. */
static bool wide_rows(int64_t d)
{
    return d % 8 == 0;
}

/* --- picking rows --------------------------------------------------------------------------------------------------- */
__global__ static void rows_gather_kernel(uint8_t *__restrict__ y, const uint8_t *__restrict__ table, const int32_t *__restrict__ row,
                                          int64_t first, int64_t n_row, int64_t row_bytes, bool scatter, bool slice)
{
    int64_t i = blockIdx.x, r = row[i] - first;
    bool there = r >= 0 && r < n_row;
    if ((scatter || slice) && !there)
        return;
    const uint8_t *from = table + (scatter ? i : there ? r : 0) * row_bytes;
    uint8_t *to = y + (scatter ? r : i) * row_bytes;
    if (row_bytes % 16 == 0) {
        for (int64_t j = threadIdx.x; j < row_bytes / 16; j += blockDim.x)
            ((uint4 *)to)[j] = there ? ((const uint4 *)from)[j] : make_uint4(0, 0, 0, 0);
        return;
    }
    for (int64_t j = threadIdx.x; j < row_bytes / 2; j += blockDim.x)
        ((uint16_t *)to)[j] = there ? ((const uint16_t *)from)[j] : 0;
}
extern "C" bool rows_gather_cuda(struct device *dev, const struct rows_gather *a, struct error *err)
{
    if (a->n == 0)
        return true;
    rows_gather_kernel<<<(unsigned)a->n, ROW_THREADS, 0, cuda_of(dev)->stream>>>(
        (uint8_t *)a->y, (const uint8_t *)a->table, a->row, a->first, a->n_row, a->d * (int64_t)dtype_size(a->dtype), false, a->slice);
    return launch_ok("rows_gather", err);
}
extern "C" bool rows_copy_cuda(struct device *dev, const struct rows_copy *a, struct error *err)
{
    cudaStream_t s = cuda_of(dev)->stream;
    bool whole = a->n == 1 || (a->ldy_bytes == a->row_bytes && a->ldx_bytes == a->row_bytes);
    if (a->n == 0)
        return true;
    return cuda_ok(whole ? cudaMemcpyAsync(a->y, a->x, (size_t)a->n * a->row_bytes, cudaMemcpyDefault, s)
                         : cudaMemcpy2DAsync(a->y, a->ldy_bytes, a->x, a->ldx_bytes, a->row_bytes, (size_t)a->n, cudaMemcpyDefault, s),
                   "rows_copy", err);
}
extern "C" bool rows_scatter_cuda(struct device *dev, const struct rows_scatter *a, struct error *err)
{
    if (a->n == 0)
        return true;
    rows_gather_kernel<<<(unsigned)a->n, ROW_THREADS, 0, cuda_of(dev)->stream>>>(
        (uint8_t *)a->y, (const uint8_t *)a->x, a->row, 0, a->n_row, a->d * (int64_t)dtype_size(a->dtype), true, false);
    return launch_ok("rows_scatter", err);
}

/* A thread sums V columns of one row, over the rows that are joined to it. */
template <typename T, int V>
__global__ static void rows_join_kernel(T *__restrict__ y, const T *__restrict__ x, const int32_t *__restrict__ row,
                                        const int32_t *__restrict__ first, int64_t d)
{
    int64_t i = blockIdx.x;
    int from = first[i], end = first[i + 1];
    for (int64_t j = (int64_t)threadIdx.x * V; j < d; j += (int64_t)blockDim.x * V) {
        float sum[V] = {}, v[V];
        if (from < end)
            load_v<T, V>(sum, x + row[from] * d + j);
        for (int k = from + 1; k < end; k++) {
            load_v<T, V>(v, x + row[k] * d + j);
#pragma unroll
            for (int e = 0; e < V; e++)
                sum[e] += v[e];
        }
        store_v<T, V>(y + i * d + j, sum);
    }
}
template <typename T> static bool rows_join_run(struct cuda_device *cu, const struct rows_join *a, struct error *err)
{
    if (wide_rows(a->d))
        rows_join_kernel<T, 8><<<(unsigned)a->n, ROW_THREADS, 0, cu->stream>>>((T *)a->y, (const T *)a->x, a->row, a->first, a->d);
    else
        rows_join_kernel<T, 1><<<(unsigned)a->n, ROW_THREADS, 0, cu->stream>>>((T *)a->y, (const T *)a->x, a->row, a->first, a->d);
    return launch_ok("rows_join", err);
}
extern "C" bool rows_join_cuda(struct device *dev, const struct rows_join *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, rows_join_run, cuda_of(dev), a, err);
}

/* Gradient of the embedding without atomics: block (i, b) owns the b-th EMBED_COLS columns of id row[i] if no earlier token has it;
 * it sums the rows of all its tokens in order, from 0, and adds the sum to the table. n^2 / 2 comparisons of ids from the
 * second-level cache for each b: 0.2 ms at 16k tokens. */
#define EMBED_EACH 8
#define EMBED_COLS (ROW_THREADS * EMBED_EACH)
template <typename T>
__global__ static void embed_bwd_kernel(float *__restrict__ dtable, const T *__restrict__ dy, const int32_t *__restrict__ row, int64_t n,
                                        int64_t first, int64_t n_row, int64_t d)
{
    __shared__ int32_t match[ROW_THREADS];
    int64_t i = blockIdx.x;
    int32_t id = row[i];
    if (id < first || id >= first + n_row)
        return;
    int seen = 0;
    for (int64_t j = threadIdx.x; j < i; j += ROW_THREADS)
        seen |= row[j] == id;
    if (__syncthreads_or(seen))
        return;
    int64_t c0 = (int64_t)blockIdx.y * EMBED_COLS + threadIdx.x;
    float *out = dtable + (id - first) * d, sum[EMBED_EACH] = {};
    for (int64_t j0 = i; j0 < n; j0 += ROW_THREADS) {
        int64_t j = j0 + threadIdx.x;
        match[threadIdx.x] = j < n && row[j] == id;
        if (!__syncthreads_or(match[threadIdx.x]))
            continue;
        for (int k = 0; k < ROW_THREADS; k++)
            if (match[k])
#pragma unroll
                for (int e = 0; e < EMBED_EACH; e++)
                    if (c0 + e * ROW_THREADS < d)
                        sum[e] += to_float(dy[(j0 + k) * d + c0 + e * ROW_THREADS]);
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < EMBED_EACH; e++)
        if (c0 + e * ROW_THREADS < d)
            out[c0 + e * ROW_THREADS] += sum[e];
}
template <typename T> static bool embed_bwd_run(struct cuda_device *cu, const struct embed_bwd *a, struct error *err)
{
    embed_bwd_kernel<T><<<dim3((unsigned)a->n, blocks_for(a->d, EMBED_COLS)), ROW_THREADS, 0, cu->stream>>>(
        a->dtable, (const T *)a->dy, a->row, a->n, a->first, a->n_row, a->d);
    return launch_ok("embed_bwd", err);
}
extern "C" bool embed_bwd_cuda(struct device *dev, const struct embed_bwd *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, embed_bwd_run, cuda_of(dev), a, err);
}

/* --- sums over rows, in order ---------------------------------------------------------------------------------------- */
/* y[j] += sum over i of part[i * ld + j]. */
#define PARTS_THREADS 32
#define PARTS_AT_ONCE 64    // reads under way: with 16 a sum of 256 parts waits for memory 16 times, and few blocks run
__global__ static void parts_sum_kernel(float *__restrict__ y, const float *__restrict__ part, int64_t n_part, int64_t ld, int64_t d)
{
    int64_t j = (int64_t)blockIdx.x * PARTS_THREADS + threadIdx.x;
    if (j >= d)
        return;
    float sum = 0, was = y[j];
    for (int64_t i0 = 0; i0 < n_part; i0 += PARTS_AT_ONCE) {
        float x[PARTS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < PARTS_AT_ONCE; k++)
            if (i0 + k < n_part)
                x[k] = part[(i0 + k) * ld + j];
#pragma unroll
        for (int k = 0; k < PARTS_AT_ONCE; k++)
            if (i0 + k < n_part)
                sum += x[k];
    }
    y[j] = was + sum;
}
void cuda_parts_add(struct cuda_device *cu, float *y, const float *part, int64_t n_part, int64_t ld, int64_t d)
{
    parts_sum_kernel<<<blocks_for(d, PARTS_THREADS), PARTS_THREADS, 0, cu->stream>>>(y, part, n_part, ld, d);
}
/* A sum over n rows, ld apart: of x, or with SCALED of x by x2 by the row's scale. */
template <typename T> struct rows_sum {
    const T *x, *x2;       // (n, d)
    const float *scale;    // (n)
    int64_t ld, n, d;
};
/* part[b][j] = the sum over the rows of block b, V columns a thread. */
template <typename T, int V, bool SCALED> __global__ static void rows_part_kernel(float *__restrict__ part, rows_sum<T> a)
{
    int64_t j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, i0 = (int64_t)blockIdx.y * SUM_ROWS;
    const T *__restrict__ x = a.x, *__restrict__ x2 = a.x2;
    const float *__restrict__ scale = a.scale;
    if (j >= a.d)
        return;
    constexpr int R = SCALED ? 8 : 16;    // rows on their way at once
    int64_t end = min(a.n, i0 + SUM_ROWS);
    float sum[V] = {};
    for (; i0 < end; i0 += R) {
        vec_of<T, V> v[R], v2[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            if (i0 + r < end) {
                v[r] = *(const vec_of<T, V> *)(x + (i0 + r) * a.ld + j);
                if constexpr (SCALED)
                    v2[r] = *(const vec_of<T, V> *)(x2 + (i0 + r) * a.ld + j);
            }
#pragma unroll
        for (int r = 0; r < R; r++)
            if (i0 + r < end)
#pragma unroll
                for (int k = 0; k < V; k++)
                    if constexpr (SCALED)
                        sum[k] = __fmaf_rn(to_float(v[r].x[k]), to_float(v2[r].x[k]) * scale[i0 + r], sum[k]);
                    else
                        sum[k] += to_float(v[r].x[k]);
    }
    store_v<float, V>(part + (int64_t)blockIdx.y * a.d + j, sum);
}
template <typename T, bool SCALED>
static bool rows_add(struct cuda_device *cu, float *y, const rows_sum<T> &a, bool wide, const char *op, struct error *err)
{
    unsigned n_part = blocks_for(a.n, SUM_ROWS);
    float *part = (float *)cuda_scratch(cu, (size_t)n_part * (size_t)a.d * 4, op, err);
    if (!part)
        return false;
    auto *kernel = wide ? rows_part_kernel<T, 4, SCALED> : rows_part_kernel<T, 1, SCALED>;
    kernel<<<dim3(blocks_for(a.d, ROW_THREADS * (wide ? 4 : 1)), n_part), ROW_THREADS, 0, cu->stream>>>(part, a);
    cuda_parts_add(cu, y, part, n_part, a.d, a.d);
    return launch_ok(op, err);
}
template <typename T>
static bool rows_sum_run(struct cuda_device *cu, float *y, const void *x, int64_t ld, int64_t n, int64_t d, struct error *err)
{
    bool wide = d % 4 == 0 && ld % 4 == 0 && (uintptr_t)x % (4 * sizeof(T)) == 0;
    return rows_add<T, false>(cu, y, { (const T *)x, NULL, NULL, ld, n, d }, wide, "linear_bwd_w", err);
}
/* y += column sums of x (n, d), rows ld apart; used by linear_bwd_w for biases. */
bool cuda_rows_sum(struct cuda_device *cu, float *y, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t d, struct error *err)
{
    return BY_TYPE(t, rows_sum_run, cu, y, x, ld, n, d, err);
}

/* --- RMSNorm --------------------------------------------------------------------------------------------------------- */
/* What is added to a row, from its element `at` of the batch on: rows, or with PARTS a product's parts, which are summed as split_sum_kernel does. */
template <typename T> struct norm_add {
    const T *rows;
    const float *part;    // NULL: rows
    const T *bias;
    int split;
    int64_t n_elem;    // of a part
};
template <typename T, int V, int PARTS> __device__ static inline void add_read(float (&u)[V], const norm_add<T> &add, int64_t at, int64_t j)
{
    if constexpr (PARTS > 0) {
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] = add.bias ? to_float(add.bias[j + k]) : 0;
        float p[PARTS][V];    // all on their way before the first is added
#pragma unroll
        for (int s = 0; s < PARTS; s++)
            if (PARTS == 2 || s < add.split)
                load_v<float, V>(p[s], add.part + s * add.n_elem + at + j);
#pragma unroll
        for (int s = 0; s < PARTS; s++)
            if (PARTS == 2 || s < add.split)
#pragma unroll
                for (int k = 0; k < V; k++)
                    u[k] += p[s][k];
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] = to_float(from_float<T>(u[k]));
    } else {
        load_v<T, V>(u, add.rows + at + j);
    }
}
/* The first pass over a row: what is squared, V elements from j on. */
template <typename T, int V, int PARTS>
__device__ static inline float norm_read(float (&v)[V], const T *x, const norm_add<T> &add, int64_t at, int64_t j, float square)
{
    load_v<T, V>(v, x + at + j);
    if (add.rows) {
        float u[V];
        add_read<T, V, PARTS>(u, add, at, j);
#pragma unroll
        for (int k = 0; k < V; k++)
            v[k] = to_float(from_float<T>(v[k] + u[k]));
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        square = __fmaf_rn(v[k], v[k], square);
    return square;
}
template <typename T, int V>
__device__ static inline void norm_write(T *y, float (&v)[V], const vec_of<T, V> &w, int64_t j, float rstd, enum norm_form form)
{
#pragma unroll
    for (int k = 0; k < V; k++)
        v[k] = (form == NORM_LLAMA ? to_float(from_float<T>(v[k] * rstd)) : v[k] * rstd) * norm_weight(to_float(w.x[k]), form);
    store_v<T, V>(y + j, v);
}
/* A row of at most KEEP V elements per thread stays in registers; KEEP of 0: it is read again. PARTS takes registers for which whole rows, as
 * training has them, run fewer blocks at once: 44 µs instead of 32 for 16,384 rows of 896. */
template <typename T, int V, int KEEP, int PARTS>
__global__ static void rmsnorm_fwd_kernel(T *y, T *sum, const T *x, norm_add<T> add, const T *__restrict__ w, float *rstd_out, int64_t d,
                                          int64_t ld, float eps, enum norm_form form)
{
    __shared__ float tmp[33];
    constexpr int N = KEEP > 0 ? KEEP : 1;
    int64_t at = (int64_t)blockIdx.x * ld, step = ROW_THREADS * V;
    float square = 0, v[N][V];
    vec_of<T, V> u[N];    // w's elements
    next_start();
    if (KEEP) {    // w comes from memory, and no kernel of a step writes it
#pragma unroll
        for (int i = 0; i < N; i++) {
            int64_t j = i * step + (int64_t)threadIdx.x * V;
            if (j < d)
                u[i] = *(const vec_of<T, V> *)(w + j);
        }
    }
    before_wait();
    if (KEEP) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int64_t j = i * step + (int64_t)threadIdx.x * V;
            if (j < d)
                square = norm_read<T, V, PARTS>(v[i], x, add, at, j, square);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {    // not before all is read, which it would hold up
            int64_t j = i * step + (int64_t)threadIdx.x * V;
            if (j < d && sum)
                store_v<T, V>(sum + at + j, v[i]);
        }
    } else {
        for (int64_t j = (int64_t)threadIdx.x * V; j < d; j += step) {
            square = norm_read<T, V, PARTS>(v[0], x, add, at, j, square);
            if (sum)
                store_v<T, V>(sum + at + j, v[0]);
        }
    }
    float rstd = 1.0f / sqrtf(block_sum(square, tmp) / (float)d + eps);
    if (threadIdx.x == 0 && rstd_out)
        rstd_out[blockIdx.x] = rstd;
    if (KEEP) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int64_t j = i * step + (int64_t)threadIdx.x * V;
            if (j < d)
                norm_write<T, V>(y + at, v[i], u[i], j, rstd, form);
        }
        return;
    }
    const T *from = sum ? sum : x;    // each thread reads what it wrote
    for (int64_t j = (int64_t)threadIdx.x * V; j < d; j += step) {
        load_v<T, V>(v[0], from + at + j);
        norm_write<T, V>(y + at, v[0], *(const vec_of<T, V> *)(w + j), j, rstd, form);
    }
}
/* Equal sums with a thread per V elements, for rows too few to hide a wait. */
#define FEW_ROWS MEET_ROWS
#define FEW_V 8
#define FEW_THREADS_MAX 1024
/* The sum of a row's squares, of which the thread has V elements if any are its own: the first ROW_THREADS threads find the others' in
 * shared memory. */
template <typename T> __device__ static inline float few_squares(const float (&v)[FEW_V], bool mine, int64_t d)
{
    extern __shared__ uint4 few_row[];
    __shared__ float tmp[ROW_THREADS / 32];
    vec_of<T, FEW_V> *row = (vec_of<T, FEW_V> *)few_row;
    if (blockDim.x > ROW_THREADS) {
        if (mine && threadIdx.x >= ROW_THREADS)
            store_v<T, FEW_V>((T *)(row + threadIdx.x), v);
        __syncthreads();
    }
    if (threadIdx.x < ROW_THREADS) {
        float square = 0, z[FEW_V];
#pragma unroll
        for (int k = 0; k < FEW_V; k++)
            square = mine ? __fmaf_rn(v[k], v[k], square) : 0;
        for (int64_t c = threadIdx.x + ROW_THREADS; c * FEW_V < d; c += ROW_THREADS) {
            load_v<T, FEW_V>(z, (const T *)(row + c));
#pragma unroll
            for (int k = 0; k < FEW_V; k++)
                square = __fmaf_rn(z[k], z[k], square);
        }
        square = warp_sum(square);
        if (threadIdx.x % 32 == 0)
            tmp[threadIdx.x / 32] = square;
    }
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int i = 0; i < ROW_THREADS / 32; i++)
        all += tmp[i];
    return all;
}
/* What is added is a sum of N parts, those of the first device first; each device adds up all of them. */
template <int N> struct norm_peers {
    const float *x[N];    // (n, d) each
    struct step_meeting meet;
    uint32_t *late;
};
template <> struct norm_peers<0> {
};
/* As tree_sum adds: V elements from `at` on. */
template <int N, int V> __device__ static inline void peers_read(float (&u)[V], const float *const *x, int64_t at)
{
    if constexpr (N == 1) {
        load_v<float, V>(u, *x + at);
    } else {
        float z[V];
        peers_read<N / 2, V>(u, x, at);
        peers_read<N / 2, V>(z, x + N / 2, at);
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] += z[k];
    }
}
/* All of a row is asked for at once, without branches in between. ADD: 0 nothing, 1 rows, else parts; PEERS: this many of several
 * devices if not 0. */
template <typename T, int ADD, int PEERS>
__global__ static void __launch_bounds__(FEW_THREADS_MAX)
    rmsnorm_few_kernel(T *y, T *sum, const T *x, norm_add<T> add, norm_peers<PEERS> peers, const T *__restrict__ w, float *rstd_out,
                       int64_t d, int64_t ld, float eps, enum norm_form form)
{
    constexpr int V = FEW_V;
    vec_of<T, V> weight, had, more;
    int64_t at = (int64_t)blockIdx.x * ld, own = (int64_t)threadIdx.x * V, j = own < d ? own : 0;
    float v[V], u[V] = {}, p[ADD > 1 ? ADD : 1][V];
    next_start();
    weight = *(const vec_of<T, V> *)(w + j);
    if ((ADD > 1 || PEERS > 0) && add.bias)
        load_v<T, V>(u, add.bias + j);
    before_wait();
    had = *(const vec_of<T, V> *)(x + at + j);
    if constexpr (PEERS > 0) {
        float z[V];
        devices_meet(peers.meet, blockIdx.x, peers.late);
        peers_read<PEERS, V>(z, peers.x, at + j);
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] = add.bias ? z[k] + u[k] : z[k];
    }
    if constexpr (ADD == 1)
        more = *(const vec_of<T, V> *)(add.rows + at + j);
    if constexpr (ADD > 1) {
#pragma unroll
        for (int s = 0; s < ADD; s++)    // a part that is not there: the first again, which is not added
            load_v<float, V>(p[s], add.part + (s < add.split ? s : 0) * add.n_elem + at + j);
#pragma unroll
        for (int s = 0; s < ADD; s++)
#pragma unroll
            for (int k = 0; k < V; k++)
                u[k] = s < add.split ? u[k] + p[s][k] : u[k];
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        v[k] = to_float(had.x[k]);
        if constexpr (ADD == 1)
            v[k] = to_float(from_float<T>(v[k] + to_float(more.x[k])));
        if constexpr (ADD > 1 || PEERS > 0)
            v[k] = to_float(from_float<T>(v[k] + to_float(from_float<T>(u[k]))));
    }
    bool mine = own < d;
    if (mine && sum)
        store_v<T, V>(sum + at + j, v);
    float all = few_squares<T>(v, mine, d);
    float rstd = 1.0f / sqrtf(all / (float)d + eps);
    if (threadIdx.x == 0 && rstd_out)
        rstd_out[blockIdx.x] = rstd;
    if (mine)
        norm_write<T, V>(y + at, v, weight, j, rstd, form);
}
template <typename T, int ADD, int PEERS>
static bool rmsnorm_few_launch(struct cuda_device *cu, const struct rmsnorm_fwd *a, norm_add<T> add, norm_peers<PEERS> peers, int64_t ld,
                               struct error *err)
{
    unsigned threads = MAX((unsigned)ROW_THREADS, blocks_for(a->d / FEW_V, 32) * 32);
    return launch_early(cu, rmsnorm_few_kernel<T, ADD, PEERS>, (unsigned)a->n, threads,
                        threads > ROW_THREADS ? (size_t)a->d * sizeof(T) : 0, "rmsnorm_fwd", err, (T *)a->y, (T *)a->sum, (const T *)a->x,
                        add, peers, (const T *)a->w, a->rstd, a->d, ld, a->eps, a->form);
}
template <typename T, int PEERS>
static bool rmsnorm_peers_run(struct cuda_device *cu, const struct rmsnorm_fwd *a, const struct unfinished *left, struct error *err)
{
    norm_peers<PEERS> peers = { {}, left->meet, cu->late };
    norm_add<T> add = { .bias = (const T *)left->bias };
    memcpy(peers.x, left->x, sizeof peers.x);
    return rmsnorm_few_launch<T, 0, PEERS>(cu, a, add, peers, a->d, err);
}
template <typename T>
static bool rmsnorm_few_run(struct cuda_device *cu, const struct rmsnorm_fwd *a, norm_add<T> add, int64_t ld, struct error *err)
{
    norm_peers<0> none = {};
    return !add.rows        ? rmsnorm_few_launch<T, 0, 0>(cu, a, add, none, ld, err)
           : !add.part      ? rmsnorm_few_launch<T, 1, 0>(cu, a, add, none, ld, err)
           : add.split == 2 ? rmsnorm_few_launch<T, 2, 0>(cu, a, add, none, ld, err)
                            : rmsnorm_few_launch<T, NORM_PARTS_MAX, 0>(cu, a, add, none, ld, err);
}
bool norm_is_few(int64_t n, int64_t d, int64_t ld)
{
    return wide_rows(d) && wide_rows(ld) && d <= FEW_V * FEW_THREADS_MAX && n <= FEW_ROWS;
}
template <typename T, int PARTS> static auto rmsnorm_fwd_kernel_for(int64_t d, int64_t ld)
{
    return !wide_rows(d) || !wide_rows(ld) ? rmsnorm_fwd_kernel<T, 1, 0, PARTS>
           : d <= ROW_THREADS * 8          ? rmsnorm_fwd_kernel<T, 8, 1, PARTS>
           : d <= ROW_THREADS * 8 * 2      ? rmsnorm_fwd_kernel<T, 8, 2, PARTS>
           : d <= ROW_THREADS * 8 * 4      ? rmsnorm_fwd_kernel<T, 8, 4, PARTS>
                                           : rmsnorm_fwd_kernel<T, 8, 0, PARTS>;
}
template <typename T> static bool rmsnorm_fwd_run(struct cuda_device *cu, const struct rmsnorm_fwd *a, struct error *err)
{
    int64_t ld = a->ld ? a->ld : a->d;
    norm_add<T> add = { .rows = (const T *)a->add };
    if (a->add && a->add == cu->unfinished.y && cu->unfinished.meet.n > 0) {
        struct unfinished left = cu->unfinished;
        cu->unfinished.y = NULL;
        if (ld != a->d)
            return error_set(err, ERR_INTERNAL, "rmsnorm_fwd: rows %" PRId64 " apart after a sum of devices", ld);
        switch (left.split) {
        case 2: return rmsnorm_peers_run<T, 2>(cu, a, &left, err);
        case 4: return rmsnorm_peers_run<T, 4>(cu, a, &left, err);
        default: return rmsnorm_peers_run<T, 8>(cu, a, &left, err);
        }
    }
    if (a->add && a->add == cu->unfinished.y) {
        add.part = cu->unfinished.part;
        add.bias = (const T *)cu->unfinished.bias;
        add.split = cu->unfinished.split;
        add.n_elem = a->n * a->d;
        cu->unfinished.y = NULL;
    }
    if (norm_is_few(a->n, a->d, ld))
        return rmsnorm_few_run<T>(cu, a, add, ld, err);
    auto *kernel = !add.part        ? rmsnorm_fwd_kernel_for<T, 0>(a->d, ld)
                   : add.split == 2 ? rmsnorm_fwd_kernel_for<T, 2>(a->d, ld)
                                    : rmsnorm_fwd_kernel_for<T, NORM_PARTS_MAX>(a->d, ld);
    return launch_early(cu, kernel, (unsigned)a->n, ROW_THREADS, 0, "rmsnorm_fwd", err, (T *)a->y, (T *)a->sum, (const T *)a->x, add,
                        (const T *)a->w, a->rstd, a->d, ld, a->eps, a->form);
}
extern "C" bool rmsnorm_fwd_cuda(struct device *dev, const struct rmsnorm_fwd *a, struct error *err)
{
    if (a->add && !a->sum)
        return error_set(err, ERR_SHAPE, "rmsnorm_fwd: something to add but no place for the sum");
    return a->n == 0 || BY_TYPE(a->dtype, rmsnorm_fwd_run, cuda_of(dev), a, err);
}

/* What a thread reads of a row at once. */
template <typename T, int V> struct norm_bwd_at {
    vec_of<T, V> dy, x, w, dadd;
};
template <typename T, int V>
__device__ static inline void norm_bwd_read(norm_bwd_at<T, V> &v, const T *dy, const T *dadd, const T *x, const T *w, int64_t at, int64_t j)
{
    v.dy = *(const vec_of<T, V> *)(dy + at + j);
    v.x = *(const vec_of<T, V> *)(x + at + j);
    v.w = *(const vec_of<T, V> *)(w + j);
    if (dadd)
        v.dadd = *(const vec_of<T, V> *)(dadd + at + j);
}
template <typename T, int V>
__device__ static inline float norm_bwd_dot(const norm_bwd_at<T, V> &v, float rstd, float dot, enum norm_form form)
{
#pragma unroll
    for (int k = 0; k < V; k++)
        dot = __fmaf_rn(to_float(v.dy.x[k]) * norm_weight(to_float(v.w.x[k]), form), to_float(v.x.x[k]) * rstd, dot);
    return dot;
}
template <typename T, int V>
__device__ static inline void norm_bwd_write(T *dx, const norm_bwd_at<T, V> &v, float rstd, float mean, bool adds, enum norm_form form)
{
    float r[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        r[k] = rstd * (to_float(v.dy.x[k]) * norm_weight(to_float(v.w.x[k]), form) - to_float(v.x.x[k]) * rstd * mean);
        if (adds)
            r[k] += to_float(v.dadd.x[k]);
    }
    store_v<T, V>(dx, r);
}
/* A row of at most KEEP V elements per thread stays in registers, and all that is read of it is on its way at once; KEEP of 0: it is read
 * again. */
template <typename T, int V, int KEEP>
__global__ static void rmsnorm_bwd_kernel(T *dx, const T *dy, const T *dadd, const T *__restrict__ x, const T *__restrict__ w,
                                          const float *__restrict__ rstd_in, int64_t d, int64_t ld, enum norm_form form)
{
    __shared__ float tmp[33];
    constexpr int N = KEEP > 0 ? KEEP : 1;
    int64_t at = (int64_t)blockIdx.x * ld, step = ROW_THREADS * V, first = (int64_t)threadIdx.x * V;
    norm_bwd_at<T, V> v[N];
    float rstd = rstd_in[blockIdx.x], dot = 0;
    if (KEEP) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * step < d)
                norm_bwd_read<T, V>(v[i], dy, dadd, x, w, at, first + i * step);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * step < d)
                dot = norm_bwd_dot<T, V>(v[i], rstd, dot, form);
    } else {
        for (int64_t j = first; j < d; j += step) {
            norm_bwd_read<T, V>(v[0], dy, NULL, x, w, at, j);
            dot = norm_bwd_dot<T, V>(v[0], rstd, dot, form);
        }
    }
    float mean = block_sum(dot, tmp) / (float)d;
    if (KEEP) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * step < d)
                norm_bwd_write<T, V>(dx + at + first + i * step, v[i], rstd, mean, dadd != NULL, form);
    } else {
        for (int64_t j = first; j < d; j += step) {
            norm_bwd_read<T, V>(v[0], dy, dadd, x, w, at, j);
            norm_bwd_write<T, V>(dx + at + j, v[0], rstd, mean, dadd != NULL, form);
        }
    }
}
template <typename T> static auto rmsnorm_bwd_kernel_for(int64_t d, bool wide)
{
    return !wide                      ? rmsnorm_bwd_kernel<T, 1, 0>
           : d <= ROW_THREADS * 8     ? rmsnorm_bwd_kernel<T, 8, 1>
           : d <= ROW_THREADS * 8 * 2 ? rmsnorm_bwd_kernel<T, 8, 2>
           : d <= ROW_THREADS * 8 * 4 ? rmsnorm_bwd_kernel<T, 8, 4>
                                      : rmsnorm_bwd_kernel<T, 8, 0>;
}
template <typename T> static bool rmsnorm_bwd_run(struct cuda_device *cu, const struct rmsnorm_bwd *a, struct error *err)
{
    int64_t ld = a->ld ? a->ld : a->d;
    bool wide = wide_rows(a->d) && wide_rows(ld);
    const T *dy = (const T *)a->dy, *x = (const T *)a->x;
    if (a->dw
        && !rows_add<T, true>(cu, a->dw, { dy, x, a->rstd, ld, a->n, a->d }, wide, "rmsnorm_bwd", err))    // before dx, which may be dy
        return false;
    auto *kernel = rmsnorm_bwd_kernel_for<T>(a->d, wide);
    kernel<<<(unsigned)a->n, ROW_THREADS, 0, cu->stream>>>((T *)a->dx, dy, (const T *)a->dadd, x, (const T *)a->w, a->rstd, a->d, ld,
                                                           a->form);
    return launch_ok("rmsnorm_bwd", err);
}
extern "C" bool rmsnorm_bwd_cuda(struct device *dev, const struct rmsnorm_bwd *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, rmsnorm_bwd_run, cuda_of(dev), a, err);
}

/* --- rotation, q/k norm, KV write: one warp per head of a row; lane l holds elements l, l + 32, ... of each half -------- */
#define ROPE_HALF_MAX 4    // hd up to 256
template <typename T> __global__ static void rope_fwd_kernel(struct rope_fwd a, int64_t n_work)
{
    int64_t work = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    next_start();
    before_wait();
    if (work >= n_work)
        return;
    int hd = a.heads.hd, n_head = a.heads.n_q + 2 * a.heads.n_kv, h = (int)(work % n_head);
    int64_t i = work / n_head, at = work * hd;
    float lo[ROPE_HALF_MAX], hi[ROPE_HALF_MAX], c[ROPE_HALF_MAX], s[ROPE_HALF_MAX];
    bool turns = head_angles(c, s, a, a.pos[i]);
    head_load(lo, hi, (const T *)a.qkv + at, hd, a.rot);
    head_turn<T>(lo, hi, a, h, c, s, turns);
    head_store((T *)a.out + at, lo, hi, hd, a.rot);
    T *kv = a.kv ? head_slot<T>(a, h, a.slot[i]) : NULL;
    if (kv)
        head_store(kv, lo, hi, hd, a.rot);
}
/* As above for heads without a norm that turn as a whole: a thread has eight pairs, in vectors. */
#define PAIRS_EACH 8
/* Sines are taken with this sign: -1 turns back. */
template <typename T>
__device__ static inline void pairs_turn(float (&lo)[PAIRS_EACH], float (&hi)[PAIRS_EACH], const float *cos, const float *sin, float sign)
{
    float c[PAIRS_EACH], s[PAIRS_EACH];
    load_v<float, PAIRS_EACH>(c, cos);
    load_v<float, PAIRS_EACH>(s, sin);
#pragma unroll
    for (int k = 0; k < PAIRS_EACH; k++)
        pair_turn(lo[k], hi[k], c[k], sign * s[k]);
}
template <typename T> __global__ static void rope_fwd_plain_kernel(struct rope_fwd a, int64_t n_work)
{
    int64_t work = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    next_start();
    before_wait();
    if (work >= n_work)
        return;
    int hd = a.heads.hd, half = hd / 2, per = half / PAIRS_EACH, n_turn = a.heads.n_q + a.heads.n_kv, n_head = n_turn + a.heads.n_kv;
    int j = (int)(work % per) * PAIRS_EACH, h = (int)(work / per % n_head);
    int64_t i = work / per / n_head, at = (i * n_head + h) * hd + j, pos = a.pos[i];
    T *kv = a.kv ? head_slot<T>(a, h, a.slot[i]) : NULL;
    if (h >= n_turn && a.out == a.qkv && !kv)
        return;
    float lo[PAIRS_EACH], hi[PAIRS_EACH];
    load_v<T, PAIRS_EACH>(lo, (const T *)a.qkv + at);
    load_v<T, PAIRS_EACH>(hi, (const T *)a.qkv + at + half);
    if (h < n_turn && pos >= 0 && pos < a.n_pos)
        pairs_turn<T>(lo, hi, a.cos + pos * half + j, a.sin + pos * half + j, 1);
    store_v<T, PAIRS_EACH>((T *)a.out + at, lo);
    store_v<T, PAIRS_EACH>((T *)a.out + at + half, hi);
    if (!kv)
        return;
    store_v<T, PAIRS_EACH>(kv + j, lo);
    store_v<T, PAIRS_EACH>(kv + j + half, hi);
}
template <typename T> __global__ static void rope_bwd_plain_kernel(struct rope_bwd a, int64_t n_work)
{
    int64_t work = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (work >= n_work)
        return;
    int hd = a.heads.hd, half = hd / 2, per = half / PAIRS_EACH, n_turn = a.heads.n_q + a.heads.n_kv;
    int j = (int)(work % per) * PAIRS_EACH, h = (int)(work / per % n_turn);
    int64_t i = work / per / n_turn, at = (i * (n_turn + a.heads.n_kv) + h) * hd + j, pos = a.pos[i];
    float lo[PAIRS_EACH], hi[PAIRS_EACH];
    load_v<T, PAIRS_EACH>(lo, (const T *)a.dqkv + at);
    load_v<T, PAIRS_EACH>(hi, (const T *)a.dqkv + at + half);
    pairs_turn<T>(lo, hi, a.cos + pos * half + j, a.sin + pos * half + j, -1);
    store_v<T, PAIRS_EACH>((T *)a.dqkv + at, lo);
    store_v<T, PAIRS_EACH>((T *)a.dqkv + at + half, hi);
}
static bool rope_is_plain(struct attn_heads heads, int rot, const void *q_norm, const void *k_norm)
{
    return !q_norm && !k_norm && rot == heads.hd && heads.hd % (2 * PAIRS_EACH) == 0;
}
template <typename T> static bool rope_fwd_run(struct cuda_device *cu, const struct rope_fwd *a, struct error *err)
{
    int64_t n_work = a->n * (a->heads.n_q + 2 * a->heads.n_kv);
    struct rope_fwd b = *a;
    b.rot = a->rot ? a->rot : a->heads.hd;
    cu->turn_left.out = NULL;    // of a step that failed before its attention
    /* with more blocks than this, attention takes so long that nothing is gained by its loads beginning early */
    bool few = a->n * a->heads.n_kv <= 2 * cu->n_sm;
    if (a->for_decode && few && a->dtype == DT_BF16 && a->kv && a->heads.n_q / a->heads.n_kv <= DECODE_GROUP_MAX) {
        cu->turn_left = b;
        return true;
    }
    if (!rope_is_plain(a->heads, b.rot, a->q_norm, a->k_norm))
        return launch_early(cu, rope_fwd_kernel<T>, blocks_for(n_work, 4), 128, 0, "rope_fwd", err, b, n_work);
    n_work *= a->heads.hd / 2 / PAIRS_EACH;
    return launch_early(cu, rope_fwd_plain_kernel<T>, blocks_for(n_work, 128), 128, 0, "rope_fwd", err, b, n_work);
}
static bool heads_ok(const char *op, struct attn_heads h, struct error *err)
{
    if (h.n_q < 1 || h.n_kv < 1 || h.n_q % h.n_kv || !cuda_head_size_ok(h.hd))
        return error_set(err, ERR_SHAPE, "%s: %d query heads, %d key heads of size %d; the size must be 16, 32, 64, 96, 128 or 256", op,
                         h.n_q, h.n_kv, h.hd);
    return true;
}
extern "C" bool rope_fwd_cuda(struct device *dev, const struct rope_fwd *a, struct error *err)
{
    return heads_ok("rope_fwd", a->heads, err) && (a->n == 0 || BY_TYPE(a->dtype, rope_fwd_run, cuda_of(dev), a, err));
}

/* Backward of the same; with a q/k norm each row's xhat g goes to scratch (n, heads, hd) and is summed in order afterwards. */
template <typename T> __global__ static void rope_bwd_kernel(struct rope_bwd a, float *__restrict__ dnorm, int64_t n_work)
{
    int64_t work = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (work >= n_work)
        return;
    int n_q = a.heads.n_q, n_kv = a.heads.n_kv, hd = a.heads.hd, half = hd / 2, n_turn = n_q + n_kv, lane = threadIdx.x % 32;
    int64_t i = work / n_turn;
    int h = (int)(work % n_turn);
    int64_t at = (i * (n_q + 2 * n_kv) + h) * hd;
    T *d = (T *)a.dqkv + at;
    const T *in = (const T *)a.qkv + at, *norm = (const T *)(h < n_q ? a.q_norm : a.k_norm);
    int64_t pos = a.pos[i];
    float glo[ROPE_HALF_MAX], ghi[ROPE_HALF_MAX];
#pragma unroll
    for (int k = 0; k < ROPE_HALF_MAX; k++) {
        int j = lane + 32 * k;
        glo[k] = ghi[k] = 0;
        if (j >= half)
            continue;
        pair p = pair_of(j, hd, a.rot);
        float x = to_float(d[p.lo]), y = to_float(d[p.hi]);
        float c = p.turns ? a.cos[pos * (a.rot / 2) + j] : 1, s = p.turns ? a.sin[pos * (a.rot / 2) + j] : 0;
        glo[k] = x * c + y * s;
        ghi[k] = y * c - x * s;
    }
    if (norm) {
        float xlo[ROPE_HALF_MAX], xhi[ROPE_HALF_MAX], square = 0, dot = 0;
#pragma unroll
        for (int k = 0; k < ROPE_HALF_MAX; k++) {
            int j = lane + 32 * k;
            pair p = pair_of(j, hd, a.rot);
            xlo[k] = j < half ? to_float(in[p.lo]) : 0;
            xhi[k] = j < half ? to_float(in[p.hi]) : 0;
            square = __fmaf_rn(xhi[k], xhi[k], __fmaf_rn(xlo[k], xlo[k], square));
        }
        float rstd = 1.0f / sqrtf(warp_sum(square) / (float)hd + a.eps);
#pragma unroll
        for (int k = 0; k < ROPE_HALF_MAX; k++) {
            int j = lane + 32 * k;
            if (j >= half)
                break;
            pair p = pair_of(j, hd, a.rot);
            xlo[k] *= rstd;
            xhi[k] *= rstd;
            dnorm[work * hd + p.lo] = glo[k] * xlo[k];
            dnorm[work * hd + p.hi] = ghi[k] * xhi[k];
            glo[k] *= norm_weight(to_float(norm[p.lo]), a.form);
            ghi[k] *= norm_weight(to_float(norm[p.hi]), a.form);
            dot = __fmaf_rn(ghi[k], xhi[k], __fmaf_rn(glo[k], xlo[k], dot));
        }
        float mean = warp_sum(dot) / (float)hd;
#pragma unroll
        for (int k = 0; k < ROPE_HALF_MAX; k++) {
            glo[k] = rstd * (glo[k] - xlo[k] * mean);
            ghi[k] = rstd * (ghi[k] - xhi[k] * mean);
        }
    }
#pragma unroll
    for (int k = 0; k < ROPE_HALF_MAX; k++) {
        int j = lane + 32 * k;
        if (j >= half)
            break;
        pair p = pair_of(j, hd, a.rot);
        d[p.lo] = from_float<T>(glo[k]);
        d[p.hi] = from_float<T>(ghi[k]);
    }
}
/* part[b][p][j] for the rows of block b: sums over rows, and of each those of its query heads (p below parts) or key heads that are part
 * p's, in order. */
__global__ static void rope_dnorm_kernel(float *__restrict__ part, const float *__restrict__ dnorm, int64_t n, int n_q, int n_kv, int parts,
                                         int hd)
{
    int j = threadIdx.x, p = blockIdx.y, count = (p < parts ? n_q : n_kv) / parts;
    int first = p < parts ? p * count : n_q + (p - parts) * count;
    int64_t i0 = (int64_t)blockIdx.x * SUM_ROWS;
    float sum = 0;
    for (int64_t i = i0; i < min(n, i0 + SUM_ROWS); i++)
        for (int h = first; h < first + count; h++)
            sum += dnorm[(i * (n_q + n_kv) + h) * hd + j];
    part[((int64_t)blockIdx.x * 2 * parts + p) * hd + j] = sum;
}
template <typename T> static bool rope_bwd_run(struct cuda_device *cu, const struct rope_bwd *a, struct error *err)
{
    int n_q = a->heads.n_q, n_kv = a->heads.n_kv, hd = a->heads.hd, parts = a->parts > 0 ? a->parts : 1, wide = parts * hd;
    int64_t n_work = a->n * (n_q + n_kv);
    float *dnorm = NULL, *part = NULL;
    unsigned n_part = blocks_for(a->n, SUM_ROWS);
    if (a->q_norm || a->k_norm) {
        dnorm = (float *)cuda_scratch(cu, ((size_t)n_work * (size_t)hd + 2 * (size_t)n_part * (size_t)wide) * 4, "rope_bwd", err);
        if (!dnorm)
            return false;
        part = dnorm + n_work * hd;
    }
    struct rope_bwd b = *a;
    b.rot = a->rot ? a->rot : hd;
    if (rope_is_plain(a->heads, b.rot, a->q_norm, a->k_norm)) {
        n_work *= hd / 2 / PAIRS_EACH;
        rope_bwd_plain_kernel<T><<<blocks_for(n_work, 128), 128, 0, cu->stream>>>(b, n_work);
        return launch_ok("rope_bwd", err);
    }
    rope_bwd_kernel<T><<<blocks_for(n_work, 4), 128, 0, cu->stream>>>(b, dnorm, n_work);
    if (dnorm) {
        rope_dnorm_kernel<<<dim3(n_part, 2 * parts), hd, 0, cu->stream>>>(part, dnorm, a->n, n_q, n_kv, parts, hd);
        if (a->q_norm && a->dq_norm)
            cuda_parts_add(cu, a->dq_norm, part, n_part, 2 * wide, wide);
        if (a->k_norm && a->dk_norm)
            cuda_parts_add(cu, a->dk_norm, part + wide, n_part, 2 * wide, wide);
    }
    return launch_ok("rope_bwd", err);
}
extern "C" bool rope_bwd_cuda(struct device *dev, const struct rope_bwd *a, struct error *err)
{
    if ((a->q_norm == NULL) != (a->k_norm == NULL))
        return error_set(err, ERR_SHAPE, "rope_bwd: a norm for queries or keys alone is not supported");
    if (a->parts > 1 && (a->heads.n_q % a->parts || a->heads.n_kv % a->parts))
        return error_set(err, ERR_SHAPE, "rope_bwd: %d heads of queries and %d of keys in %d parts", a->heads.n_q, a->heads.n_kv, a->parts);
    return heads_ok("rope_bwd", a->heads, err) && (a->n == 0 || BY_TYPE(a->dtype, rope_bwd_run, cuda_of(dev), a, err));
}

__global__ static void kv_copy_kernel(uint4 *kv, const int32_t *__restrict__ src, const int32_t *__restrict__ dst, int64_t page_words)
{
    int64_t from = src[blockIdx.y], to = dst[blockIdx.y], j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (from >= 0 && to >= 0 && j < page_words)
        kv[to * page_words + j] = kv[from * page_words + j];
}
extern "C" bool kv_copy_cuda(struct device *dev, const struct kv_copy *a, struct error *err)
{
    int64_t page_words = (int64_t)(kv_page_bytes(dev, a->heads, a->dtype) / 16);
    if (a->n > 65535)
        return error_set(err, ERR_SHAPE, "kv_copy: %" PRId64 " pages at once; 65535 are possible", a->n);
    if (a->n == 0)
        return true;
    kv_copy_kernel<<<dim3(blocks_for(page_words, 256), (unsigned)a->n), 256, 0, cuda_of(dev)->stream>>>((uint4 *)a->kv, a->src, a->dst,
                                                                                                        page_words);
    return launch_ok("kv_copy", err);
}

/* --- elements -------------------------------------------------------------------------------------------------------- */
template <typename T, int V>
__global__ static void swiglu_fwd_kernel(T *__restrict__ y, const T *__restrict__ gu, int64_t f, enum gate_act act)
{
    int64_t i = blockIdx.x, j = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
    next_start();
    before_wait();
    if (j >= f)
        return;
    float g[V], u[V];
    load_v<T, V>(g, gu + i * 2 * f + j);
    load_v<T, V>(u, gu + (i * 2 + 1) * f + j);
#pragma unroll
    for (int e = 0; e < V; e++) {
        g[e] = gate_times(g[e], u[e], act);
    }
    store_v<T, V>(y + i * f + j, g);
}
template <typename T> static bool swiglu_fwd_run(struct cuda_device *cu, const struct swiglu_fwd *a, struct error *err)
{
    int v = wide_rows(a->f) ? 8 : 1;
    return launch_early(cu, v == 8 ? swiglu_fwd_kernel<T, 8> : swiglu_fwd_kernel<T, 1>,
                        dim3((unsigned)a->n, blocks_for(a->f, v * ROW_THREADS)), ROW_THREADS, 0, "swiglu_fwd", err, (T *)a->y,
                        (const T *)a->gu, a->f, a->act);
}
extern "C" bool swiglu_fwd_cuda(struct device *dev, const struct swiglu_fwd *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    if (cu->gate.y && cu->gate.y == a->gu)
        return cuda_gate_run(cu, a, err);
    return a->n == 0 || BY_TYPE(a->dtype, swiglu_fwd_run, cu, a, err);
}
template <typename T, int V>
__global__ static void swiglu_bwd_kernel(T *dgu, T *__restrict__ y, const T *__restrict__ dy, const T *gu, int64_t n, int64_t f,
                                         enum gate_act act)
{
    int64_t k = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (k >= n * f)
        return;
    int64_t i = k / f, j = k % f;
    float g[V], u[V], d[V];
    load_v<T, V>(g, gu + i * 2 * f + j);
    load_v<T, V>(u, gu + (i * 2 + 1) * f + j);
    load_v<T, V>(d, dy + k);
    if (y) {
        float product[V];
#pragma unroll
        for (int e = 0; e < V; e++)
            product[e] = gate_times(g[e], u[e], act);
        store_v<T, V>(y + k, product);
    }
#pragma unroll
    for (int e = 0; e < V; e++) {
        float slope, sig = gate_sigmoid(g[e], act, &slope), du = d[e] * g[e] * sig;
        g[e] = d[e] * u[e] * sig * (1.0f + g[e] * slope * (1.0f - sig));
        u[e] = du;
    }
    store_v<T, V>(dgu + i * 2 * f + j, g);
    store_v<T, V>(dgu + (i * 2 + 1) * f + j, u);
}
template <typename T> static bool swiglu_bwd_run(struct cuda_device *cu, const struct swiglu_bwd *a, struct error *err)
{
    bool wide = wide_rows(a->f);
    auto *kernel = wide ? swiglu_bwd_kernel<T, 8> : swiglu_bwd_kernel<T, 1>;
    kernel<<<blocks_for(wide ? a->n * a->f / 8 : a->n * a->f, 256), 256, 0, cu->stream>>>((T *)a->dgu, (T *)a->y, (const T *)a->dy,
                                                                                          (const T *)a->gu, a->n, a->f, a->act);
    return launch_ok("swiglu_bwd", err);
}
extern "C" bool swiglu_bwd_cuda(struct device *dev, const struct swiglu_bwd *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, swiglu_bwd_run, cuda_of(dev), a, err);
}

template <typename T> __global__ static void add_kernel(T *y, const T *a, const T *b, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}
template <typename T> static bool add_run(struct cuda_device *cu, const struct add_fwd *a, struct error *err)
{
    add_kernel<T><<<blocks_for(a->n, 256), 256, 0, cu->stream>>>((T *)a->y, (const T *)a->a, (const T *)a->b, a->n);
    return launch_ok("add_fwd", err);
}
extern "C" bool add_fwd_cuda(struct device *dev, const struct add_fwd *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, add_run, cuda_of(dev), a, err);
}
template <typename Y, typename X> __global__ static void cast_kernel(Y *y, const X *x, int64_t n, float scale)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = from_float<Y>(to_float(x[i]) * scale);
}
template <typename X> static bool cast_run(struct cuda_device *cu, const struct cast *a, struct error *err)
{
    if (a->y_dtype == DT_BF16)
        cast_kernel<<<blocks_for(a->n, 256), 256, 0, cu->stream>>>((bf16 *)a->y, (const X *)a->x, a->n, a->scale);
    else
        cast_kernel<<<blocks_for(a->n, 256), 256, 0, cu->stream>>>((float *)a->y, (const X *)a->x, a->n, a->scale);
    return launch_ok("cast", err);
}
extern "C" bool cast_cuda(struct device *dev, const struct cast *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->x_dtype, cast_run, cuda_of(dev), a, err);
}
template <typename T> __global__ static void blend_kernel(T *y, const T *x, int64_t n, float keep, float share)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = from_float<T>(__fmaf_rn(share, to_float(x[i]), keep * to_float(y[i])));
}
template <typename T> static bool blend_run(struct cuda_device *cu, const struct blend *a, struct error *err)
{
    blend_kernel<<<blocks_for(a->n, 256), 256, 0, cu->stream>>>((T *)a->y, (const T *)a->x, a->n, 1 - a->share, a->share);
    return launch_ok("blend", err);
}
extern "C" bool blend_cuda(struct device *dev, const struct blend *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, blend_run, cuda_of(dev), a, err);
}
__global__ static void softcap_kernel(float *x, int64_t n, float cap)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = cap * tanhf(x[i] / cap);
}
extern "C" bool softcap_cuda(struct device *dev, const struct softcap *a, struct error *err)
{
    if (a->n)
        softcap_kernel<<<blocks_for(a->n, 256), 256, 0, cuda_of(dev)->stream>>>(a->x, a->n, a->cap);
    return launch_ok("softcap", err);
}
__global__ static void axpy_kernel(float *y, const float *x, int64_t n, float scale)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = __fmaf_rn(x[i], scale, y[i]);
}
extern "C" bool axpy_cuda(struct device *dev, const struct axpy *a, struct error *err)
{
    if (a->n == 0)
        return true;
    axpy_kernel<<<blocks_for(a->n, 256), 256, 0, cuda_of(dev)->stream>>>(a->y, a->x, a->n, a->scale);
    return launch_ok("axpy", err);
}
extern "C" bool mem_fill_cuda(struct device *dev, const struct mem_fill *a, struct error *err)
{
    return a->size_bytes == 0 || cuda_ok(cudaMemsetAsync(a->y, a->byte, a->size_bytes, cuda_of(dev)->stream), "mem_fill", err);
}

__device__ static inline uint64_t hash_mix(uint64_t z, int64_t i)
{
    z += (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
/* Add a block's sums to the hash, in one atomic: some hundred thousand of them on one word took 0.12 ms on an H200, more than reading a
 * tensor does. The sums are integers, so their order does not matter. */
__device__ static inline void hash_add(unsigned long long *hash, uint64_t sum)
{
    __shared__ uint64_t of_warp[32];
    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (unsigned w = 1; w < blockDim.x / 32; w++)
        sum += of_warp[w];
    atomicAdd(hash, (unsigned long long)sum);
}
/* splitmix64's output function. */
__global__ static void hash_kernel(unsigned long long *hash, const uint8_t *__restrict__ x, int64_t size_bytes, int64_t first)
{
    uint64_t sum = 0;
    int64_t n_whole = size_bytes / 8, step = (int64_t)gridDim.x * blockDim.x, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * step < n_whole; i += 8 * step) {    // eight loads in flight per thread, so that few blocks are fast, too
        uint64_t z[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            z[k] = ((const uint64_t *)x)[i + k * step];
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += hash_mix(z[k], first + i + k * step);
    }
    for (; i < n_whole; i += step)
        sum += hash_mix(((const uint64_t *)x)[i], first + i);
    if (i == n_whole && size_bytes % 8) {    // one thread handles the remaining part of a word
        uint64_t z = 0;
        for (int64_t b = i * 8; b < size_bytes; b++)
            z |= (uint64_t)x[b] << 8 * (b - i * 8);
        sum += hash_mix(z, first + i);
    }
    hash_add(hash, sum);
}
/* As above for some columns of a matrix, which lie here row after row: a block a row, since a division a word would cost more than reading
 * it. Rows are whole words. */
__global__ static void hash_rows_kernel(unsigned long long *hash, const uint64_t *__restrict__ x, int64_t n_row, int64_t row_words,
                                        int64_t ld_words, int64_t first)
{
    uint64_t sum = 0;
    for (int64_t r = blockIdx.x; r < n_row; r += gridDim.x)
        for (int64_t i = threadIdx.x; i < row_words; i += blockDim.x)
            sum += hash_mix(x[r * row_words + i], first + r * ld_words + i);
    hash_add(hash, sum);
}
extern "C" bool mem_hash_cuda(struct device *dev, const struct mem_hash *a, struct error *err)
{
    cudaStream_t stream = cuda_of(dev)->stream;
    int n_block = cuda_of(dev)->n_sm * 2;
    if (!cuda_ok(cudaMemsetAsync(a->hash, 0, sizeof *a->hash, stream), "mem_hash", err))
        return false;
    if (a->row_words > 0) {
        if (a->size_bytes % (8 * (size_t)a->row_words))
            return error_set(err, ERR_SHAPE, "mem_hash: %zu bytes are not rows of %" PRId64 " words", a->size_bytes, a->row_words);
        hash_rows_kernel<<<(unsigned)n_block * 2, 256, 0, stream>>>((unsigned long long *)a->hash, (const uint64_t *)a->x,
                                                                    (int64_t)(a->size_bytes / 8) / a->row_words, a->row_words, a->ld_words,
                                                                    a->first);
        return launch_ok("mem_hash", err);
    }
    size_t most = a->size_bytes / ((size_t)8 * 512) + 1;    // blocks that have something to read
    if (most < (size_t)n_block)
        n_block = (int)most;
    hash_kernel<<<(unsigned)n_block, 512, 0, stream>>>((unsigned long long *)a->hash, (const uint8_t *)a->x, (int64_t)a->size_bytes,
                                                       a->first);
    return launch_ok("mem_hash", err);
}
