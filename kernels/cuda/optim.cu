/* optim.cu - gradient norm, clipping, AdamW with its state on the device, in bytes or streamed from host memory, and Adafactor
 *
 * adamw_host: the state passes through PIPES slots of device memory, one piece each. Three streams in parallel: copies in, the
 * device's own (AdamW itself), copies out, chained by events, so that both directions of the bus and the kernel overlap:
 *
 *   in:   wait until the slot's last piece is out    copy master, m, v in    -> loaded[slot]
 *   own:  wait for loaded[slot]                      adamw on the slot       -> done[slot]
 *   out:  wait for done[slot]                        copy them out           -> out_done[slot]
 *
 * Elements do not depend on each other, so the bits are the same as adamw's. 24 bytes of host memory traffic per element (16 when
 * the weight is the master): 12 of them in each direction at about 50 GB/s are 0.24 ns per element; NOTES.md has the figures. */
#include <inttypes.h>
#include "kernels/adam8.h"
#include "kernels/cuda/cuda.h"
__global__ static void sumsq_kernel(double *__restrict__ part, const float *__restrict__ x, int64_t n)
{
    __shared__ float tmp[33];
    int64_t i0 = (int64_t)blockIdx.x * SUMSQ_BLOCK;
    float sum = 0;
    for (int64_t i = i0 + threadIdx.x; i < min(n, i0 + SUMSQ_BLOCK); i += 256)
        sum = __fmaf_rn(x[i], x[i], sum);
    sum = block_sum(sum, tmp);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}
/* One block: thread t adds parts t, t + 1024, ... and the 1024 sums are folded by halves. */
__global__ static void sum_parts_kernel(double *sum, const double *__restrict__ part, int64_t n_part)
{
    __shared__ double s[1024];
    double own = 0;
    for (int64_t i = threadIdx.x; i < n_part; i += 1024)
        own += part[i];
    s[threadIdx.x] = own;
    for (int w = 512; w > 0; w /= 2) {
        __syncthreads();
        if (threadIdx.x < w)
            s[threadIdx.x] += s[threadIdx.x + w];
    }
    if (threadIdx.x == 0)
        *sum = s[0];
}
extern "C" bool sumsq_cuda(struct device *dev, const struct sumsq *a, struct error *err)
{
    if (a->n == 0)
        return true;
    sumsq_kernel<<<blocks_for(a->n, SUMSQ_BLOCK), 256, 0, cuda_of(dev)->stream>>>(a->part, a->x, a->n);
    return launch_ok("sumsq", err);
}
extern "C" bool sum_parts_cuda(struct device *dev, const struct sum_parts *a, struct error *err)
{
    sum_parts_kernel<<<1, 1024, 0, cuda_of(dev)->stream>>>(a->sum, a->part, a->n);
    return launch_ok("sum_parts", err);
}
__global__ static void clip_coef_kernel(struct clip_coef a)
{
    double norm = sqrt(*a.sum) * a.grad_scale, clip = a.max_norm > 0 ? a.max_norm / (norm + 1e-6) : 1;
    *a.norm = (float)norm;
    *a.coef = (float)(a.grad_scale * (clip < 1 ? clip : 1));
}
extern "C" bool clip_coef_cuda(struct device *dev, const struct clip_coef *a, struct error *err)
{
    clip_coef_kernel<<<1, 1, 0, cuda_of(dev)->stream>>>(*a);
    return launch_ok("clip_coef", err);
}
/* 30 bytes per element with bf16 weights; one element per thread. */
template <typename T> __global__ static void adamw_kernel(struct adamw a, float fix1, float fix2, float c1, float c2, float keep)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n)
        return;
    float g = a.grad[i] * (a.coef ? *a.coef : 1.0f);
    float m = __fmaf_rn(a.beta1, a.m[i], c1 * g), v = __fmaf_rn(a.beta2, a.v[i], c2 * (g * g));
    float x = __fmaf_rn(-a.lr, m * fix1 / (sqrtf(v * fix2) + a.eps), a.master[i] * keep);
    a.m[i] = m;
    a.v[i] = v;
    a.master[i] = x;
    if (a.weight)
        ((T *)a.weight)[i] = from_float<T>(x);
}
template <typename T> static bool adamw_run(struct cuda_device *cu, const struct adamw *a, struct error *err)
{
    adamw_kernel<T><<<blocks_for(a->n, 256), 256, 0, cu->stream>>>(
        *a, (float)(1 / (1 - pow(a->beta1, (double)a->step))), (float)(1 / (1 - pow(a->beta2, (double)a->step))),
        (float)(1 - (double)a->beta1), (float)(1 - (double)a->beta2), (float)(1 - (double)a->lr * a->decay));
    return launch_ok("adamw", err);
}
extern "C" bool adamw_cuda(struct device *dev, const struct adamw *a, struct error *err)
{
    if (a->step < 1)
        return error_set(err, ERR_SHAPE, "adamw: step %" PRId64 "; the first is 1", a->step);
    return a->n == 0 || BY_TYPE(a->dtype, adamw_run, cuda_of(dev), a, err);
}

/* --- moments of one byte --- */
__device__ static const float adam8_signed[256] = { ADAM8_SIGNED }, adam8_unsigned[256] = { ADAM8_UNSIGNED };
#define ADAM8_EACH 32    // blocks of the state that a block of threads goes over, so that its copy of the tables pays
/* 14 bytes per element with bf16 weights, 12 of them master and gradient; a thread per element of a block of the state. */
template <typename T> __global__ static void adamw8_kernel(struct adamw8 a, float fix1, float fix2, float c1, float c2)
{
    __shared__ float ts[256], tu[256], tmp[33];
    for (int i = (int)threadIdx.x; i < 256; i += ADAM8_BLOCK) {
        ts[i] = adam8_signed[i];
        tu[i] = adam8_unsigned[i];
    }
    __syncthreads();
    float coef = a.coef ? *a.coef : 1.0f;
    int64_t n_block = (a.n + ADAM8_BLOCK - 1) / ADAM8_BLOCK;
    for (int64_t b = (int64_t)blockIdx.x * ADAM8_EACH; b < min(n_block, ((int64_t)blockIdx.x + 1) * ADAM8_EACH); b++) {
        int64_t i = b * ADAM8_BLOCK + threadIdx.x;
        float m = 0, v = 0;
        if (i < a.n) {
            float g = a.grad[i] * coef;
            m = __fmaf_rn(a.beta1, a.m_scale[b] * ts[a.m[i]], c1 * g);
            v = __fmaf_rn(a.beta2, a.v_scale[b] * tu[a.v[i]], c2 * (g * g));
            float x = __fmaf_rn(-a.lr, m * fix1 / (sqrtf(v * fix2) + a.eps), a.master[i]);
            a.master[i] = x;
            if (a.weight)
                ((T *)a.weight)[i] = from_float<T>(x);
        }
        float m_most = block_max(fabsf(m), tmp), v_most = block_max(v, tmp);    // all threads have read the old scales by then
        if (i < a.n) {
            a.m[i] = adam8_code(ts, m_most > 0 ? m / m_most : 0);
            a.v[i] = adam8_second_code(tu, v_most > 0 ? v / v_most : 0, v > 0);
        }
        if (threadIdx.x == 0) {
            a.m_scale[b] = m_most;
            a.v_scale[b] = v_most;
        }
    }
}
template <typename T> static bool adamw8_run(struct cuda_device *cu, const struct adamw8 *a, struct error *err)
{
    adamw8_kernel<T><<<blocks_for((a->n + ADAM8_BLOCK - 1) / ADAM8_BLOCK, ADAM8_EACH), ADAM8_BLOCK, 0, cu->stream>>>(
        *a, (float)(1 / (1 - pow(a->beta1, (double)a->step))), (float)(1 / (1 - pow(a->beta2, (double)a->step))),
        (float)(1 - (double)a->beta1), (float)(1 - (double)a->beta2));
    return launch_ok("adamw8", err);
}
extern "C" bool adamw8_cuda(struct device *dev, const struct adamw8 *a, struct error *err)
{
    if (a->step < 1)
        return error_set(err, ERR_SHAPE, "adamw8: step %" PRId64 "; the first is 1", a->step);
    return a->n == 0 || BY_TYPE(a->dtype, adamw8_run, cuda_of(dev), a, err);
}

/* --- Adafactor --- */
/* A block of threads per row: each adds every 256th element, then block_sum. */
__global__ static void adafactor_rows_kernel(struct adafactor_moments a)
{
    __shared__ float tmp[33];
    const float *g = a.grad + (int64_t)blockIdx.x * a.n_col;
    float sum = 0, coef = a.coef ? *a.coef : 1.0f;
    for (int64_t j = threadIdx.x; j < a.n_col; j += 256) {
        float x = g[j] * coef;
        sum = __fmaf_rn(x, x, sum);
    }
    sum = block_sum(sum, tmp);
    if (threadIdx.x == 0) {
        float was = a.row[blockIdx.x];
        a.row[blockIdx.x] = __fmaf_rn(a.share, sum / (float)a.n_col - was, was);
    }
}
/* A vector: a thread per element. */
__global__ static void adafactor_vector_kernel(struct adafactor_moments a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n_row)
        return;
    float g = a.grad[i] * (a.coef ? *a.coef : 1.0f), was = a.row[i];
    a.row[i] = __fmaf_rn(a.share, g * g - was, was);
}
/* 32 columns by 8 rows of threads: each adds every 8th row of its column, and the 8 sums are added in order. */
__global__ static void adafactor_cols_kernel(struct adafactor_moments a)
{
    __shared__ float part[8][32];
    int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0, coef = a.coef ? *a.coef : 1.0f;
    for (int64_t i = threadIdx.y; i < a.n_row && j < a.n_col; i += 8) {
        float x = a.grad[i * a.n_col + j] * coef;
        sum = __fmaf_rn(x, x, sum);
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && j < a.n_col) {
        for (int k = 1; k < 8; k++)
            sum += part[k][threadIdx.x];
        float was = a.col[j];
        a.col[j] = __fmaf_rn(a.share, sum / (float)a.n_row - was, was);
    }
}
__global__ static void adafactor_mean_kernel(struct adafactor_moments a)
{
    __shared__ double s[256];
    double own = 0;
    for (int64_t i = threadIdx.x; i < a.n_row; i += 256)
        own += a.row[i];
    s[threadIdx.x] = own;
    for (int w = 128; w > 0; w /= 2) {
        __syncthreads();
        if (threadIdx.x < w)
            s[threadIdx.x] += s[threadIdx.x + w];
    }
    if (threadIdx.x == 0)
        *a.row_mean = (float)(s[0] / (double)a.n_row);
}
extern "C" bool adafactor_moments_cuda(struct device *dev, const struct adafactor_moments *a, struct error *err)
{
    cudaStream_t stream = cuda_of(dev)->stream;
    if (a->n_row < 1 || a->n_col < 1 || a->n_row > INT32_MAX)
        return error_set(err, ERR_SHAPE, "adafactor_moments: %" PRId64 " rows of %" PRId64, a->n_row, a->n_col);
    if (a->col) {
        adafactor_rows_kernel<<<(unsigned)a->n_row, 256, 0, stream>>>(*a);
        adafactor_cols_kernel<<<blocks_for(a->n_col, 32), dim3(32, 8), 0, stream>>>(*a);
    } else {
        adafactor_vector_kernel<<<blocks_for(a->n_row, 256), 256, 0, stream>>>(*a);
    }
    adafactor_mean_kernel<<<1, 256, 0, stream>>>(*a);
    return launch_ok("adafactor_moments", err);
}
__global__ static void adafactor_update_kernel(struct adafactor_update a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n_row * a.n_col)
        return;
    float mean = fmaxf(*a.row_mean, ADAFACTOR_EPS1), row = a.row[i / a.n_col], var = a.col ? row * a.col[i % a.n_col] / mean : row;
    a.grad[i] = a.grad[i] * (a.coef ? *a.coef : 1.0f) / sqrtf(fmaxf(var, ADAFACTOR_EPS1 * ADAFACTOR_EPS1));
}
extern "C" bool adafactor_update_cuda(struct device *dev, const struct adafactor_update *a, struct error *err)
{
    if (a->n_row * a->n_col > 0)
        adafactor_update_kernel<<<blocks_for(a->n_row * a->n_col, 256), 256, 0, cuda_of(dev)->stream>>>(*a);
    return launch_ok("adafactor_update", err);
}
template <typename T> __global__ static void adafactor_apply_kernel(struct adafactor_apply a, float keep)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n)
        return;
    double alpha = fmax((double)ADAFACTOR_EPS2, sqrt(*a.sum_master / (double)a.n)) * a.rho, most = fmax(1.0, sqrt(*a.sum_u / (double)a.n));
    float x = __fmaf_rn(-(float)(alpha / most), a.u[i], a.master[i] * keep);
    a.master[i] = x;
    if (a.weight)
        ((T *)a.weight)[i] = from_float<T>(x);
}
template <typename T> static bool adafactor_apply_run(struct cuda_device *cu, const struct adafactor_apply *a, struct error *err)
{
    adafactor_apply_kernel<T><<<blocks_for(a->n, 256), 256, 0, cu->stream>>>(*a, (float)(1 - (double)a->lr * a->decay));
    return launch_ok("adafactor_apply", err);
}
extern "C" bool adafactor_apply_cuda(struct device *dev, const struct adafactor_apply *a, struct error *err)
{
    return a->n == 0 || BY_TYPE(a->dtype, adafactor_apply_run, cuda_of(dev), a, err);
}

/* --- state in host memory -------------------------------------------------------------------------------------------- */
static bool pipes_open(struct cuda_device *cu, struct error *err)
{
    if (cu->in)
        return true;
    cudaEvent_t *const event[] = { cu->loaded, cu->done, cu->out_done };
    bool ok = cuda_ok(cudaEventCreateWithFlags(&cu->begun, cudaEventDisableTiming), "adamw_host", err)
              && cuda_ok(cudaStreamCreateWithFlags(&cu->out, cudaStreamNonBlocking), "adamw_host", err)
              && cuda_ok(cudaStreamCreateWithFlags(&cu->in, cudaStreamNonBlocking), "adamw_host", err);
    for (int k = 0; k < 3; k++)
        for (int i = 0; ok && i < CUDA_PIPES; i++)
            ok = cuda_ok(cudaEventCreateWithFlags(&event[k][i], cudaEventDisableTiming), "adamw_host", err);
    return ok;
}
void cuda_pipes_close(struct cuda_device *cu)
{
    cudaEvent_t *const event[] = { cu->loaded, cu->done, cu->out_done };
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < CUDA_PIPES; i++)
            if (event[k][i])
                cudaEventDestroy(event[k][i]);
    if (cu->begun)
        cudaEventDestroy(cu->begun);
    if (cu->in)
        cudaStreamDestroy(cu->in);
    if (cu->out)
        cudaStreamDestroy(cu->out);
}

/* A slot's parts: what is copied in and out, and the address on the host of the piece that begins at element 0. */
struct slot {
    float *part[3], *host[3];
    int n;
};
static bool slot_copy(const struct slot *s, int64_t at, int64_t n, bool in, cudaStream_t stream, struct error *err)
{
    for (int k = 0; k < s->n; k++) {
        float *dev = s->part[k], *host = s->host[k] + at;
        if (!cuda_ok(cudaMemcpyAsync(in ? dev : host, in ? host : dev, (size_t)n * 4, in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                     stream),
                     "adamw_host", err))
            return false;
    }
    return true;
}
extern "C" bool adamw_host_cuda(struct device *dev, const struct adamw_host *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    int n_part = a->step.master ? 3 : 2;
    int64_t most = (int64_t)(a->stage_bytes / CUDA_PIPES / (size_t)n_part / 4) & ~(int64_t)1023;
    if (most < 1024 || (!a->step.master && a->step.dtype != DT_F32))
        return error_set(err, ERR_SHAPE, "adamw_host: a stage of %zu bytes, %s", a->stage_bytes,
                         a->step.master ? "too few" : "and no master");
    if (!pipes_open(cu, err) || !cuda_ok(cudaEventRecord(cu->begun, cu->stream), "adamw_host", err)
        || !cuda_ok(cudaStreamWaitEvent(cu->in, cu->begun, 0), "adamw_host", err))
        return false;
    for (int64_t at = 0, k = 0; at < a->step.n; at += most, k++) {
        int i = (int)(k % CUDA_PIPES);
        int64_t n = a->step.n - at < most ? a->step.n - at : most;
        float *base = (float *)a->stage + (int64_t)i * n_part * most;
        struct slot s = { { base, base + most, base + 2 * most }, { a->step.m, a->step.v, a->step.master }, n_part };
        struct adamw piece = a->step;
        piece.n = n;
        piece.grad += at;
        piece.weight = a->step.weight ? (char *)a->step.weight + (size_t)at * dtype_size(a->step.dtype) : NULL;
        piece.m = s.part[0];
        piece.v = s.part[1];
        piece.master = a->step.master ? s.part[2] : (float *)piece.weight;
        /* an event that was never recorded counts as reached; when a slot's last piece is out, so is every earlier one */
        if (!cuda_ok(cudaStreamWaitEvent(cu->in, cu->out_done[i], 0), "adamw_host", err) || !slot_copy(&s, at, n, true, cu->in, err)
            || !cuda_ok(cudaEventRecord(cu->loaded[i], cu->in), "adamw_host", err)
            || !cuda_ok(cudaStreamWaitEvent(cu->stream, cu->loaded[i], 0), "adamw_host", err) || !adamw_cuda(dev, &piece, err)
            || !cuda_ok(cudaEventRecord(cu->done[i], cu->stream), "adamw_host", err)
            || !cuda_ok(cudaStreamWaitEvent(cu->out, cu->done[i], 0), "adamw_host", err) || !slot_copy(&s, at, n, false, cu->out, err)
            || !cuda_ok(cudaEventRecord(cu->out_done[i], cu->out), "adamw_host", err))
            return false;
    }
    return true;
}
