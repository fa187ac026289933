/* delta_gates.cu - the norm of a gated delta net's heads with its gate, and gates on attention's heads
 *
 * All are bound by memory. A warp is a head of a row, and its sums are a fixed tree; the gradient by the norm's weight is summed over
 * NORM_ROWS rows at a time, and these parts are added in order. */
#include "kernels/cuda/delta.cuh"
#define HEAD_WARPS 4
#define NORM_WARPS 8
#define NORM_ROWS 32
#define LANE_ELEMS (DELTA_WIDTH_MAX / 32)
#define GATE_THREADS 256

/* Where a head's o and z begin, and 1 / the root of the mean square of o, whose elements a lane keeps. */
template <typename T> __device__ static inline float norm_head(float (&o)[LANE_ELEMS], const T *from, int d, float eps)
{
    float square = 0;
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        int j = (int)threadIdx.x % 32 + 32 * i;
        o[i] = j < d ? to_float(from[j]) : 0;
    }
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++)
        square = __fmaf_rn(o[i], o[i], square);
    return 1.0f / sqrtf(warp_sum(square) / (float)d + eps);
}
template <typename T> __global__ static void __launch_bounds__(32 * HEAD_WARPS) gated_norm_fwd_kernel(struct gated_norm_fwd a)
{
    struct delta_heads h = a.heads;
    int64_t at = (int64_t)blockIdx.x * HEAD_WARPS + threadIdx.x / 32, row = at / h.n_v;
    float o[LANE_ELEMS];
    next_start();
    before_wait();
    if (row >= a.n)
        return;
    float rstd = norm_head<T>(o, (const T *)a.o + at * h.d_v, h.d_v, a.eps);
    const T *z_row = (const T *)a.row + row * delta_columns(h) + delta_at(h, DELTA_Z, at % h.n_v);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        int j = (int)threadIdx.x % 32 + 32 * i;
        if (j < h.d_v) {
            float z = to_float(z_row[j]), x = to_float(from_float<T>(o[i] * rstd));
            ((T *)a.y)[at * h.d_v + j] = from_float<T>(to_float(((const T *)a.w)[j]) * x * (z * sigmoid(z)));
        }
    }
}
template <typename T> static bool gated_norm_fwd_run(struct cuda_device *cu, const struct gated_norm_fwd *a, struct error *err)
{
    return launch_early(cu, gated_norm_fwd_kernel<T>, blocks_for(a->n * a->heads.n_v, HEAD_WARPS), 32 * HEAD_WARPS, 0, "gated_norm_fwd",
                        err, *a);
}
extern "C" bool gated_norm_fwd_cuda(struct device *dev, const struct gated_norm_fwd *a, struct error *err)
{
    if (!delta_cuda_check("gated_norm_fwd", NULL, a->heads, err))
        return false;
    return a->n == 0 || BY_TYPE(a->dtype, gated_norm_fwd_run, cuda_of(dev), a, err);
}

/* A block has NORM_ROWS rows, whose heads its warps take in turn. part: (blocks)(d_v). */
template <typename T> __global__ static void __launch_bounds__(32 * NORM_WARPS) gated_norm_bwd_kernel(struct gated_norm_bwd a, float *part)
{
    __shared__ float sums[NORM_WARPS][DELTA_WIDTH_MAX];
    struct delta_heads h = a.heads;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t first = (int64_t)blockIdx.x * NORM_ROWS * h.n_v, end = min(first + NORM_ROWS * h.n_v, a.n * h.n_v);
    float w[LANE_ELEMS], dw[LANE_ELEMS] = {};
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++)
        w[i] = lane + 32 * i < h.d_v ? to_float(((const T *)a.w)[lane + 32 * i]) : 0;
    for (int64_t at = first + warp; at < end; at += NORM_WARPS) {
        int64_t z_at = at / h.n_v * delta_columns(h) + delta_at(h, DELTA_Z, at % h.n_v);
        float x[LANE_ELEMS], dx[LANE_ELEMS], dot = 0, rstd = norm_head<T>(x, (const T *)a.o + at * h.d_v, h.d_v, a.eps);
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            int j = lane + 32 * i;
            float dy = j < h.d_v ? to_float(((const T *)a.dy)[at * h.d_v + j]) : 0;
            float z = j < h.d_v ? to_float(((const T *)a.row)[z_at + j]) : 0, by_gate = dy * (z * sigmoid(z));
            x[i] *= rstd;
            if (j < h.d_v)
                ((T *)a.drow)[z_at + j] = from_float<T>(dy * (w[i] * x[i]) * silu_slope(z));
            dw[i] = __fmaf_rn(by_gate, x[i], dw[i]);
            dx[i] = by_gate * w[i];
            dot = __fmaf_rn(dx[i], x[i], dot);
        }
        float mean = warp_sum(dot) / (float)h.d_v;
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++)
            if (lane + 32 * i < h.d_v)
                ((T *)a.dout)[at * h.d_v + lane + 32 * i] = from_float<T>(rstd * __fmaf_rn(-x[i], mean, dx[i]));
    }
    if (!part)
        return;
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++)
        sums[warp][lane + 32 * i] = dw[i];
    __syncthreads();
    for (int j = (int)threadIdx.x; j < h.d_v; j += 32 * NORM_WARPS) {
        float sum = 0;
        for (int i = 0; i < NORM_WARPS; i++)
            sum += sums[i][j];
        part[(int64_t)blockIdx.x * h.d_v + j] = sum;
    }
}
template <typename T> static bool gated_norm_bwd_run(struct cuda_device *cu, const struct gated_norm_bwd *a, struct error *err)
{
    unsigned n_part = blocks_for(a->n, NORM_ROWS);
    int64_t d = a->heads.d_v;
    float *part = a->dw ? (float *)cuda_scratch(cu, (size_t)n_part * (size_t)d * sizeof *part, "gated_norm_bwd", err) : NULL;
    if (a->dw && !part)
        return false;
    gated_norm_bwd_kernel<T><<<n_part, 32 * NORM_WARPS, 0, cu->stream>>>(*a, part);
    if (part)
        cuda_parts_add(cu, a->dw, part, n_part, d, d);
    return launch_ok("gated_norm_bwd", err);
}
extern "C" bool gated_norm_bwd_cuda(struct device *dev, const struct gated_norm_bwd *a, struct error *err)
{
    if (!delta_cuda_check("gated_norm_bwd", NULL, a->heads, err))
        return false;
    return a->n == 0 || BY_TYPE(a->dtype, gated_norm_bwd_run, cuda_of(dev), a, err);
}

/* --- gates of attention's heads --------------------------------------------------------------------------------------- */
/* Widths of a row: [q0 | g0 | q1 | g1 | ... | k | v], of which the first `paired` columns are queries and gates. */
struct gate_rows {
    int64_t n, hd, paired, rest;
};
static gate_rows rows_of(int64_t n, struct attn_heads h)
{
    return { n, h.hd, (int64_t)2 * h.n_q * h.hd, (int64_t)2 * h.n_kv * h.hd };
}
/* V columns a thread; join: from qkv and gate to both. A head's columns are a multiple of V. */
template <typename T, int V> __global__ static void gate_rows_kernel(T *qkv, T *gate, T *both, gate_rows a, bool join)
{
    int64_t per_row = (a.paired + a.rest) / V, i = (int64_t)blockIdx.x * GATE_THREADS + threadIdx.x, row = i / per_row, c = i % per_row * V;
    next_start();
    before_wait();
    if (row >= a.n)
        return;
    int64_t half = a.paired / 2, head = c / (2 * a.hd), in = c % (2 * a.hd);
    T *apart = c >= a.paired ? qkv + row * (half + a.rest) + half + (c - a.paired)
               : in < a.hd   ? qkv + row * (half + a.rest) + head * a.hd + in
                             : gate + row * half + head * a.hd + in - a.hd;
    T *whole = both + row * (a.paired + a.rest) + c;
    *(vec_of<T, V> *)(join ? whole : apart) = *(const vec_of<T, V> *)(join ? apart : whole);
}
template <typename T>
static bool gate_rows_run(struct cuda_device *cu, void *qkv, void *gate, void *both, gate_rows a, bool join, const char *op,
                          struct error *err)
{
    constexpr int V = 16 / sizeof(T);
    bool wide = a.hd % V == 0 && ((uintptr_t)qkv | (uintptr_t)gate | (uintptr_t)both) % 16 == 0;
    auto *kernel = wide ? gate_rows_kernel<T, V> : gate_rows_kernel<T, 1>;
    return launch_early(cu, kernel, blocks_for(a.n * (a.paired + a.rest) / (wide ? V : 1), GATE_THREADS), GATE_THREADS, 0, op, err,
                        (T *)qkv, (T *)gate, (T *)both, a, join);
}
extern "C" bool gate_split_cuda(struct device *dev, const struct gate_split *a, struct error *err)
{
    return a->n == 0
           || BY_TYPE(a->dtype, gate_rows_run, cuda_of(dev), a->qkv, a->gate, (void *)a->both, rows_of(a->n, a->heads), false, "gate_split",
                      err);
}
extern "C" bool gate_join_cuda(struct device *dev, const struct gate_join *a, struct error *err)
{
    return a->n == 0
           || BY_TYPE(a->dtype, gate_rows_run, cuda_of(dev), (void *)a->qkv, (void *)a->gate, a->both, rows_of(a->n, a->heads), true,
                      "gate_join", err);
}
template <typename T, int V> __global__ static void gate_fwd_kernel(T *y, const T *x, const T *gate, int64_t n)
{
    int64_t i = ((int64_t)blockIdx.x * GATE_THREADS + threadIdx.x) * V;
    float v[V], g[V];
    next_start();
    before_wait();
    if (i >= n)
        return;
    load_v<T, V>(v, x + i);
    load_v<T, V>(g, gate + i);
#pragma unroll
    for (int k = 0; k < V; k++)
        v[k] *= sigmoid(g[k]);
    store_v<T, V>(y + i, v);
}
template <typename T> static bool gate_fwd_run(struct cuda_device *cu, const struct gate_fwd *a, struct error *err)
{
    constexpr int V = 16 / sizeof(T);
    bool wide = a->n % V == 0 && ((uintptr_t)a->y | (uintptr_t)a->x | (uintptr_t)a->gate) % 16 == 0;
    auto *kernel = wide ? gate_fwd_kernel<T, V> : gate_fwd_kernel<T, 1>;
    return launch_early(cu, kernel, blocks_for(a->n, GATE_THREADS * (wide ? V : 1)), GATE_THREADS, 0, "gate_fwd", err, (T *)a->y,
                        (const T *)a->x, (const T *)a->gate, a->n);
}
extern "C" bool gate_fwd_cuda(struct device *dev, const struct gate_fwd *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, gate_fwd_run, cuda_of(dev), a, err);
}
template <typename T, int V> __global__ static void gate_bwd_kernel(T *dx, T *dgate, const T *dy, const T *x, const T *gate, int64_t n)
{
    int64_t i = ((int64_t)blockIdx.x * GATE_THREADS + threadIdx.x) * V;
    float d[V], v[V], g[V];
    if (i >= n)
        return;
    load_v<T, V>(d, dy + i);
    load_v<T, V>(v, x + i);
    load_v<T, V>(g, gate + i);
#pragma unroll
    for (int k = 0; k < V; k++) {
        float s = sigmoid(g[k]);
        g[k] = d[k] * v[k] * (s * (1.0f - s));
        d[k] *= s;
    }
    store_v<T, V>(dgate + i, g);
    store_v<T, V>(dx + i, d);
}
template <typename T> static bool gate_bwd_run(struct cuda_device *cu, const struct gate_bwd *a, struct error *err)
{
    constexpr int V = 16 / sizeof(T);
    uintptr_t all = (uintptr_t)a->dx | (uintptr_t)a->dgate | (uintptr_t)a->dy | (uintptr_t)a->x | (uintptr_t)a->gate;
    bool wide = a->n % V == 0 && all % 16 == 0;
    auto *kernel = wide ? gate_bwd_kernel<T, V> : gate_bwd_kernel<T, 1>;
    kernel<<<blocks_for(a->n, GATE_THREADS * (wide ? V : 1)), GATE_THREADS, 0, cu->stream>>>((T *)a->dx, (T *)a->dgate, (const T *)a->dy,
                                                                                             (const T *)a->x, (const T *)a->gate, a->n);
    return launch_ok("gate_bwd", err);
}
extern "C" bool gate_bwd_cuda(struct device *dev, const struct gate_bwd *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, gate_bwd_run, cuda_of(dev), a, err);
}
