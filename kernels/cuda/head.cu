/* head.cu - log-probs of rows of logits, their gradient, and the policy loss
 *
 * One block of HEAD_THREADS per row, bound by reading it once. */
#include "kernels/cuda/head.cuh"
__global__ static void logprob_fwd_kernel(struct logprob_fwd a, bool wide)
{
    __shared__ float tmp[33];
    int64_t i = blockIdx.x;
    const float *z = a.logits + i * a.ld;
    float inv_t = 1.0f / a.temperature;
    row_seen seen = row_see(z, a.n_live, wide, inv_t, tmp);
    row_stat r = seen.stat;
    if (threadIdx.x != 0)
        return;
    if (a.argmax)
        a.argmax[i] = seen.best.id;
    if (a.logp)
        a.logp[i] = stat_logp(r, z, a.id[i], a.n_live, inv_t);
    if (a.entropy)
        a.entropy[i] = stat_entropy(r);
    if (a.lse)
        a.lse[i] = stat_lse(r);
}
extern "C" bool logprob_fwd_cuda(struct device *dev, const struct logprob_fwd *args, struct error *err)
{
    struct logprob_fwd a = *args;
    if (!logits_ok("logprob_fwd", a.n, a.vocab, a.n_live, a.ld, err))
        return false;
    a.n_live = a.n_live ? a.n_live : a.vocab;
    a.ld = a.ld ? a.ld : a.vocab;
    if (a.n == 0)
        return true;
    logprob_fwd_kernel<<<(unsigned)a.n, HEAD_THREADS, 0, cuda_of(dev)->stream>>>(a, a.ld % 4 == 0);
    return launch_ok("logprob_fwd", err);
}

/* V elements per thread. In place in fp32: each thread reads its elements and overwrites them; no other thread reads them afterwards. */
template <typename T, int V> __global__ static void logprob_bwd_kernel(struct logprob_bwd a)
{
    int64_t i = blockIdx.y;
    float inv_t = 1.0f / a.temperature, coef = a.coef[i] * inv_t, lse = a.lse[i];
    int32_t id = a.id[i];
    for (int64_t j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V; j < a.vocab; j += (int64_t)gridDim.x * blockDim.x * V) {
        float z[V];
        load_v<float, V>(z, a.logits + i * a.ld + j);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float p = j + k < a.n_live ? expf(z[k] * inv_t - lse) : 0;
            float t = a.cap > 0 ? z[k] / a.cap : 0;
            z[k] = (j + k == id ? coef * (1.0f - p) : -coef * p) * (1.0f - t * t);
        }
        store_v<T, V>((T *)a.dlogits + i * a.ldd + j, z);
    }
}
extern "C" bool logprob_bwd_cuda(struct device *dev, const struct logprob_bwd *args, struct error *err)
{
    struct logprob_bwd a = *args;
    if (!logits_ok("logprob_bwd", a.n, a.vocab, a.n_live, a.ld, err))
        return false;
    a.n_live = a.n_live ? a.n_live : a.vocab;
    a.ld = a.ld ? a.ld : a.vocab;
    a.ldd = a.ldd ? a.ldd : a.vocab;
    for (int64_t i = 0; i < args->n; i += 65535) {    // the grid's second dimension
        int64_t n = args->n - i < 65535 ? args->n - i : 65535;
        bool wide = a.vocab % 4 == 0 && a.ld % 4 == 0 && a.ldd % 4 == 0;
        dim3 grid(blocks_for(a.vocab, wide ? 256 * 4 * 4 : 256), (unsigned)n);    // wide: four rounds per thread
        cudaStream_t s = cuda_of(dev)->stream;
        if (a.dtype == DT_BF16)
            wide ? logprob_bwd_kernel<bf16, 4><<<grid, 256, 0, s>>>(a) : logprob_bwd_kernel<bf16, 1><<<grid, 256, 0, s>>>(a);
        else
            wide ? logprob_bwd_kernel<float, 4><<<grid, 256, 0, s>>>(a) : logprob_bwd_kernel<float, 1><<<grid, 256, 0, s>>>(a);
        a.logits += n * a.ld;
        a.dlogits = (char *)a.dlogits + (size_t)(n * a.ldd) * dtype_size(a.dtype);
        a.lse += n;
        a.coef += n;
        a.id += n;
    }
    return launch_ok("logprob_bwd", err);
}

/* One token a thread, in double: nothing is summed, so the bits do not depend on n. Up to 36 bytes read, 12 written a token. */
__global__ static void policy_loss_kernel(struct policy_loss a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n)
        return;
    double w = a.weight[i], q = w == 0 ? 1 : exp((double)a.logp[i] - a.logp_old[i]);
    double r = w == 0 || !a.log_ratio ? q : exp((double)a.log_ratio[i]), rho = a.rho ? a.rho[i] : 1;
    double x = w == 0 || !a.logp_ref ? 0 : (double)a.logp_ref[i] - a.logp[i], beta = a.logp_ref ? a.form.beta : 0;
    token_point p = { a.logp[i], a.logp_old[i], r, a.adv[i] };
    token_term pg = policy_term(&a.form, &p), kl = kl_term(&a.form, x, q);
    a.coef[i] = w == 0 ? 0 : (float)(w * (rho * pg.coef + beta * kl.coef));
    if (a.loss)
        a.loss[i] = w == 0 ? 0 : (float)(w * (rho * pg.loss + beta * kl.loss));
    if (a.ratio)
        a.ratio[i] = (float)r;
}
extern "C" bool policy_loss_cuda(struct device *dev, const struct policy_loss *a, struct error *err)
{
    if (a->n == 0)
        return true;
    policy_loss_kernel<<<blocks_for(a->n, 128), 128, 0, cuda_of(dev)->stream>>>(*a);
    return launch_ok("policy_loss", err);
}
