/* delta_conv.cu - the convolution of width 4 of a gated delta net
 *
 * A thread has a channel, so that a warp's reads are neighbours, and walks CONV_ROWS rows with the last four inputs in registers. Its blocks
 * cut the rows where they like: an output is the same sum of four products wherever it is. */
#include "kernels/cuda/delta.cuh"
#define CONV_THREADS 128
#define CONV_ROWS 32    // of a thread forward
#define BACK_ROWS 64    // of a partial sum of the gradient by the weights

template <typename T> __device__ static inline void taps_get(float (&w)[4], const void *from, int64_t c)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        w[j] = to_float(((const T *)from)[c * 4 + j]);
}
__device__ static inline float conv_sum(const float (&w)[4], const float (&in)[4])
{
    float sum = w[0] * in[0];
#pragma unroll
    for (int j = 1; j < 4; j++)
        sum = __fmaf_rn(w[j], in[j], sum);
    return sum;
}
/* Channel c of the tail that sequence p has in its slot, (3) n_c apart. */
__device__ static inline float *tail_of(const delta_span &p, struct delta_heads h, int64_t c)
{
    return p.state + (int64_t)h.n_v * h.d_k * h.d_v + c;
}

/* One token of each sequence: the tail moves on with it. */
template <typename T> __global__ static void conv4_step_kernel(struct conv4_fwd a)
{
    int64_t i = blockIdx.x, c = (int64_t)blockIdx.y * CONV_THREADS + threadIdx.x, n_c = delta_channels(a.heads);
    float w[4], in[4] = {};
    next_start();
    if (c < n_c)
        taps_get<T>(w, a.w, c);
    before_wait();
    if (c >= n_c)
        return;
    delta_span p = delta_span_of(&a.of, a.heads, i);
    if (!p.fresh)
#pragma unroll
        for (int j = 0; j < 3; j++)
            in[j] = tail_of(p, a.heads, c)[j * n_c];
    in[3] = to_float(((const T *)a.x)[i * delta_columns(a.heads) + column_of(a.heads, c)]);
    float x = conv_sum(w, in);
    ((T *)a.y)[i * n_c + c] = from_float<T>(p.absent ? 0.0f : x * sigmoid(x));
    if (p.state)
#pragma unroll
        for (int j = 0; j < 3; j++)
            tail_of(p, a.heads, c)[j * n_c] = in[j + 1];
}
/* The inputs of the three rows before row i of sequence p. */
template <typename T>
__device__ static inline void inputs_before(float (&in)[4], const T *x, const delta_span &p, struct delta_heads h, int64_t i, int64_t c,
                                            int64_t col)
{
    int64_t n_c = delta_channels(h), ld = delta_columns(h);
#pragma unroll
    for (int j = 0; j < 3; j++) {
        int64_t at = i - 3 + j;
        in[j + 1] = at >= p.first ? to_float(x[at * ld + col]) : p.fresh ? 0.0f : tail_of(p, h, c)[(3 + at - p.first) * n_c];
    }
}
template <typename T> __global__ static void conv4_rows_kernel(struct conv4_fwd a)
{
    struct delta_heads h = a.heads;
    int64_t i0 = (int64_t)blockIdx.x * CONV_ROWS, end = min(i0 + CONV_ROWS, a.of.n);
    int64_t c = (int64_t)blockIdx.y * CONV_THREADS + threadIdx.x, n_c = delta_channels(h), ld = delta_columns(h);
    float w[4], in[4] = {};
    if (c >= n_c)
        return;
    int64_t col = column_of(h, c), s = seq_of_row(a.of, i0);
    delta_span p = delta_span_of(&a.of, h, s);
    taps_get<T>(w, a.w, c);
    inputs_before<T>(in, (const T *)a.x, p, h, i0, c, col);
    for (int64_t i = i0; i < end; i++) {
        if (i == p.end) {
            while (i == p.end)    // there may be sequences without rows
                p = delta_span_of(&a.of, h, ++s);
            inputs_before<T>(in, (const T *)a.x, p, h, i, c, col);
        }
#pragma unroll
        for (int j = 0; j < 3; j++)
            in[j] = in[j + 1];
        in[3] = to_float(((const T *)a.x)[i * ld + col]);
        float x = conv_sum(w, in);
        ((T *)a.y)[i * n_c + c] = from_float<T>(p.absent ? 0.0f : x * sigmoid(x));
    }
}
/* After it, as its blocks read the tails: the last three inputs of each sequence. */
template <typename T> __global__ static void conv4_tail_kernel(struct conv4_fwd a)
{
    int64_t c = (int64_t)blockIdx.y * CONV_THREADS + threadIdx.x, n_c = delta_channels(a.heads);
    delta_span p = delta_span_of(&a.of, a.heads, blockIdx.x);
    float in[4];
    if (c >= n_c || !p.state || p.first == p.end)
        return;
    inputs_before<T>(in, (const T *)a.x, p, a.heads, p.end, c, column_of(a.heads, c));
#pragma unroll
    for (int j = 0; j < 3; j++)
        tail_of(p, a.heads, c)[j * n_c] = in[j + 1];
}
template <typename T> static bool conv4_fwd_run(struct cuda_device *cu, const struct conv4_fwd *a, struct error *err)
{
    unsigned by_c = blocks_for(delta_channels(a->heads), CONV_THREADS);
    if (!a->of.seq)
        return launch_early(cu, conv4_step_kernel<T>, dim3((unsigned)a->of.n, by_c), CONV_THREADS, 0, "conv4_fwd", err, *a);
    conv4_rows_kernel<T><<<dim3(blocks_for(a->of.n, CONV_ROWS), by_c), CONV_THREADS, 0, cu->stream>>>(*a);
    if (a->of.slot)
        conv4_tail_kernel<T><<<dim3((unsigned)a->of.n_seq, by_c), CONV_THREADS, 0, cu->stream>>>(*a);
    return launch_ok("conv4_fwd", err);
}
extern "C" bool conv4_fwd_cuda(struct device *dev, const struct conv4_fwd *a, struct error *err)
{
    if (!delta_cuda_check("conv4_fwd", &a->of, a->heads, err))
        return false;
    return a->of.n == 0 || BY_TYPE(a->dtype, conv4_fwd_run, cuda_of(dev), a, err);
}

/* The gradient by c_t reaches x 3 tokens back, so x_t's is written when that of c_(t + 3) is known: the walk goes three rows beyond its own.
 * part: (blocks of rows)(n_c, 4) of the gradient by the weights, or NULL. */
template <typename T> __global__ static void conv4_bwd_kernel(struct conv4_bwd a, float *__restrict__ part)
{
    struct delta_heads h = a.heads;
    int64_t i0 = (int64_t)blockIdx.x * BACK_ROWS, i1 = min(i0 + BACK_ROWS, a.of.n), s = seq_of_row(a.of, i0), to = s;
    int64_t c = (int64_t)blockIdx.y * CONV_THREADS + threadIdx.x, n_c = delta_channels(h), ld = delta_columns(h);
    float w[4], in[4] = {}, dc[4] = {}, dw[4] = {};    // dc: of rows i - 3 .. i
    if (c >= n_c)
        return;
    int64_t col = column_of(h, c);
    delta_span p = delta_span_of(&a.of, h, s), q = p;    // of row i, and of row i - 3
    p.fresh = q.fresh = true;
    taps_get<T>(w, a.w, c);
    inputs_before<T>(in, (const T *)a.x, p, h, i0, c, col);
    for (int64_t i = i0; i < i1 + 3; i++) {
        if (i < a.of.n && i == p.end) {
            while (i == p.end)
                p = delta_span_of(&a.of, h, ++s);
            in[1] = in[2] = in[3] = 0;
        }
#pragma unroll
        for (int j = 0; j < 3; j++) {
            in[j] = in[j + 1];
            dc[j] = dc[j + 1];
        }
        in[3] = dc[3] = 0;
        if (i < a.of.n) {
            in[3] = to_float(((const T *)a.x)[i * ld + col]);
            dc[3] = to_float(((const T *)a.dy)[i * n_c + c]) * silu_slope(conv_sum(w, in));
        }
        if (i < i1)
#pragma unroll
            for (int j = 0; j < 4; j++)
                dw[j] = __fmaf_rn(dc[3], in[j], dw[j]);
        int64_t out = i - 3;
        if (out < i0)
            continue;
        while (out == q.end)
            q = delta_span_of(&a.of, h, ++to);
        float dx = dc[0] * w[3];
#pragma unroll
        for (int j = 1; j < 4; j++)
            dx = out + j < q.end ? __fmaf_rn(dc[j], w[3 - j], dx) : dx;
        ((T *)a.dx)[out * ld + col] = from_float<T>(dx);
    }
    if (part)
        *(float4 *)(part + ((int64_t)blockIdx.x * n_c + c) * 4) = make_float4(dw[0], dw[1], dw[2], dw[3]);
}
template <typename T> static bool conv4_bwd_run(struct cuda_device *cu, const struct conv4_bwd *a, struct error *err)
{
    int64_t n_w = delta_channels(a->heads) * 4;
    unsigned n_part = blocks_for(a->of.n, BACK_ROWS);
    float *part = a->dw ? (float *)cuda_scratch(cu, (size_t)n_part * (size_t)n_w * sizeof *part, "conv4_bwd", err) : NULL;
    if (a->dw && !part)
        return false;
    struct conv4_bwd all = *a;
    all.of.slot = NULL;    // each sequence begins with zeros
    conv4_bwd_kernel<T><<<dim3(n_part, blocks_for(n_w / 4, CONV_THREADS)), CONV_THREADS, 0, cu->stream>>>(all, part);
    if (part)
        cuda_parts_add(cu, a->dw, part, n_part, n_w, n_w);
    return launch_ok("conv4_bwd", err);
}
extern "C" bool conv4_bwd_cuda(struct device *dev, const struct conv4_bwd *a, struct error *err)
{
    if (!delta_cuda_check("conv4_bwd", &a->of, a->heads, err))
        return false;
    return a->of.n == 0 || BY_TYPE(a->dtype, conv4_bwd_run, cuda_of(dev), a, err);
}
