/* head.cu - statistics of rows of logits, their gradient, the policy loss, and the draw of a token
 *
 * One block of HEAD_THREADS per row; element j always belongs to thread j / 4 mod HEAD_THREADS (or j mod HEAD_THREADS when rows
 * are not 16-byte multiples), so a row's sums depend on its length alone. logprob_fwd and sample_fwd share row_see: equal
 * bits. Bound by reading the row, once and twice. */
#include <inttypes.h>
#include "kernels/cuda/cuda.h"
#include "kernels/philox.h"
#define HEAD_THREADS 512
#define HEAD_WARPS (HEAD_THREADS / 32)

struct row_stat {
    float top;         // largest z = logit inv_t
    float sum;         // of e^(z - top)
    float weighted;    // of e^(z - top) (z - top)
};
/* Call f(j, logit) for this thread's elements of the row. */
template <typename F> __device__ static inline void row_each(const float *__restrict__ z, int64_t n, bool wide, F f)
{
    if (wide) {
        int64_t n4 = n / 4 * 4;
        for (int64_t j = (int64_t)threadIdx.x * 4; j < n4; j += HEAD_THREADS * 4) {
            float4 v = *(const float4 *)(z + j);
            f(j, v.x);
            f(j + 1, v.y);
            f(j + 2, v.z);
            f(j + 3, v.w);
        }
        if (threadIdx.x < n - n4)
            f(n4 + threadIdx.x, z[n4 + threadIdx.x]);
        return;
    }
    for (int64_t j = threadIdx.x; j < n; j += HEAD_THREADS)
        f(j, z[j]);
}
/* The largest logit, and the lowest index that has it. */
struct row_top {
    float x;
    int id;
};
/* A row's statistics and its largest logit, from one pass over it. */
struct row_seen {
    row_stat stat;
    row_top best;
};
#define SEE_EACH 16    // elements that a thread reads before it works on them
/* What a thread has seen of a row: sums are of e^(z - best.x inv_t). */
struct own_seen {
    row_top best;
    float sum, weighted;
};
/* Bring sums from below a largest z to one that is d lower than what it is then: d of 0 or less. */
__device__ static void seen_lower(own_seen &s, float d)
{
    float shrink = expf(d);
    s.weighted = (s.weighted + s.sum * fmaxf(d, -87.0f)) * shrink;
    s.sum *= shrink;
}
/* Add elements, missing ones -inf; their ids are id(k), rising. */
template <typename F> __device__ static void seen_add(own_seen &s, const float (&x)[SEE_EACH], float inv_t, F id)
{
    float most = x[0];
#pragma unroll
    for (int k = 1; k < SEE_EACH; k++)
        most = fmaxf(most, x[k]);
    if (most > s.best.x) {
        seen_lower(s, __fmaf_rn(s.best.x, inv_t, -(most * inv_t)));
#pragma unroll
        for (int k = SEE_EACH - 1; k >= 0; k--)
            if (x[k] == most)
                s.best = row_top{ most, (int)id(k) };
    }
    if (s.best.x == -INFINITY && most == -INFINITY)
        return;
    float top = s.best.x * inv_t;
#pragma unroll
    for (int k = 0; k < SEE_EACH; k++) {
        float d = __fmaf_rn(x[k], inv_t, -top), e = expf(d);
        s.sum += e;
        s.weighted = __fmaf_rn(e, fmaxf(d, -87.0f), s.weighted);
    }
}
/* The lowest id of the block's that is the best of its thread, whose best logit is the block's highest. */
__device__ static int best_id(row_top own, float highest, int *tmp)
{
    int best = __reduce_min_sync(0xffffffffu, own.x == highest ? own.id : INT32_MAX);
    if (threadIdx.x % 32 == 0)
        tmp[threadIdx.x / 32] = best;
    __syncthreads();
    best = tmp[0];
    for (int w = 1; w < HEAD_WARPS; w++)
        best = min(best, tmp[w]);
    __syncthreads();
    return best == INT32_MAX ? 0 : best;
}
__device__ static row_seen row_see(const float *__restrict__ z, int64_t n, bool wide, float inv_t, float *tmp)
{
    own_seen s = { { -INFINITY, INT32_MAX }, 0, 0 };
    float x[SEE_EACH];
    if (wide) {
        int64_t n4 = n / 4 * 4;
        for (int64_t j0 = (int64_t)threadIdx.x * 4; j0 < n4; j0 += HEAD_THREADS * SEE_EACH) {
#pragma unroll
            for (int g = 0; g < SEE_EACH / 4; g++) {
                int64_t j = j0 + g * HEAD_THREADS * 4;
                float4 v = j < n4 ? *(const float4 *)(z + j) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
                x[4 * g] = v.x, x[4 * g + 1] = v.y, x[4 * g + 2] = v.z, x[4 * g + 3] = v.w;
            }
            seen_add(s, x, inv_t, [&](int k) { return j0 + k / 4 * HEAD_THREADS * 4 + k % 4; });
        }
        if (threadIdx.x < n - n4) {
#pragma unroll
            for (int k = 0; k < SEE_EACH; k++)
                x[k] = k ? -INFINITY : z[n4 + threadIdx.x];
            seen_add(s, x, inv_t, [&](int) { return n4 + threadIdx.x; });
        }
    } else {
        for (int64_t j0 = threadIdx.x; j0 < n; j0 += HEAD_THREADS * SEE_EACH) {
#pragma unroll
            for (int k = 0; k < SEE_EACH; k++)
                x[k] = j0 + k * HEAD_THREADS < n ? z[j0 + k * HEAD_THREADS] : -INFINITY;
            seen_add(s, x, inv_t, [&](int k) { return j0 + k * HEAD_THREADS; });
        }
    }
    row_seen r;
    r.best.x = block_max(s.best.x, tmp);
    r.best.id = best_id(s.best, r.best.x, (int *)tmp);
    r.stat.top = r.best.x * inv_t;
    seen_lower(s, __fmaf_rn(s.best.x, inv_t, -r.stat.top));
    r.stat.sum = block_sum(s.sum, tmp);
    r.stat.weighted = block_sum(s.weighted, tmp);
    return r;
}
__device__ static float stat_lse(const row_stat &r)
{
    return r.top + logf(r.sum);
}
__device__ static float stat_entropy(const row_stat &r)
{
    return logf(r.sum) - r.weighted / r.sum;
}
__device__ static float stat_logp(const row_stat &r, const float *z, int64_t id, int64_t n, float inv_t)
{
    return id < 0 || id >= n ? -INFINITY : __fmaf_rn(z[id], inv_t, -stat_lse(r));
}
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
static bool sizes_ok(const char *op, int64_t n, int64_t vocab, int64_t n_live, int64_t ld, struct error *err)
{
    if (n < 0 || n > INT32_MAX || vocab < 1 || vocab > INT32_MAX || n_live < 0 || n_live > vocab || (ld && ld < vocab))
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows of %" PRId64 " logits, %" PRId64 " live, %" PRId64 " apart", op, n, vocab,
                         n_live, ld);
    return true;
}
extern "C" bool logprob_fwd_cuda(struct device *dev, const struct logprob_fwd *args, struct error *err)
{
    struct logprob_fwd a = *args;
    if (!sizes_ok("logprob_fwd", a.n, a.vocab, a.n_live, a.ld, err))
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
    if (!sizes_ok("logprob_bwd", a.n, a.vocab, a.n_live, a.ld, err))
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

struct token_term {
    double loss, coef;    // and its derivative by logp
};
/* The policy term of a token. A NaN is passed on, not hidden. */
__device__ static token_term policy_term(const struct policy_loss *a, double r, double logp, double adv)
{
    double low = 1 - (double)a->clip_low, high = 1 + (double)a->clip_high;
    bool over = r > high, under = r < low, clipped = false;
    switch (a->clip) {
    case CLIP_PPO: clipped = adv > 0 ? over : adv < 0 && under; break;
    case CLIP_ATROPOS: clipped = over; break;
    case CLIP_CISPO: {
        double c = over ? high : under ? low : r;
        return token_term{ -c * adv * logp, -c * adv };
    }
    }
    double c = !clipped ? r : over ? high : low;
    return token_term{ -c * adv, clipped ? 0.0 : -r * adv };
}

/* The penalty of a token: x = logp_ref - logp, q its own ratio. */
__device__ static token_term kl_term(enum kl_form form, double x, double q)
{
    double k3 = exp(x) - x - 1;
    switch (form) {
    case KL_K3: break;
    case KL_K1: return token_term{ -x, 1 };
    case KL_K2: return token_term{ x * x / 2, -x };
    case KL_K1_RATIO: return token_term{ -q * x, q * (1 - x) };
    case KL_K3_RATIO: return token_term{ q * k3, q * (k3 + 1 - exp(x)) };
    }
    return token_term{ k3, 1 - exp(x) };
}

/* One token a thread, in double: nothing is summed, so the bits do not depend on n. Up to 36 bytes read, 12 written a token. */
__global__ static void policy_loss_kernel(struct policy_loss a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n)
        return;
    double w = a.weight[i], q = w == 0 ? 1 : exp((double)a.logp[i] - a.logp_old[i]);
    double r = w == 0 || !a.log_ratio ? q : exp((double)a.log_ratio[i]), rho = a.rho ? a.rho[i] : 1;
    double x = w == 0 || !a.logp_ref ? 0 : (double)a.logp_ref[i] - a.logp[i], beta = a.logp_ref ? a.beta : 0;
    token_term pg = policy_term(&a, r, a.logp[i], a.adv[i]), kl = kl_term(a.kl, x, q);
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

/* --- sampling -------------------------------------------------------------------------------------------------------- */
__device__ static uint32_t order_key(float x)    // floats as integers in the same order, and back
{
    uint32_t u = __float_as_uint(x);
    return u >> 31 ? ~u : u | 0x80000000u;
}
__device__ static float order_float(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}
/* What a row's token is drawn from: its logits, all of them or without the banned ids. The latter costs a comparison per id and element,
 * in code of its own, so that other rows pay nothing. */
struct whole_row {
    const float *z;
    __device__ float operator()(int64_t, float x) const
    {
        return x;
    }
};
struct row_without {
    const float *z;
    const int32_t *ban;    // (n) shared memory
    int n;
    __device__ float operator()(int64_t j, float x) const
    {
        for (int k = 0; k < n; k++)
            x = j == ban[k] ? -INFINITY : x;
        return x;
    }
};
/* Sum of e^(z - top) (or the count) over logits not below least. */
template <typename R>
__device__ static float mass_from(R from, int64_t n, bool wide, float least, bool count, float inv_t, float top, float *tmp)
{
    float sum = 0;
    row_each(from.z, n, wide, [&](int64_t j, float z) {
        float x = from(j, z);
        sum += x < least ? 0 : count ? 1.0f : expf(x * inv_t - top);
    });
    return block_sum(sum, tmp);
}
/* The largest threshold whose mass reaches want, by bisection over the floats between low and high. */
template <typename R>
__device__ static float mass_threshold(R from, int64_t n, bool wide, float low, float high, float want, bool count, float inv_t, float top,
                                       float *tmp)
{
    uint32_t a = order_key(low), b = order_key(high);
    while (a < b) {
        uint32_t mid = a + (b - a + 1) / 2;
        if (mass_from(from, n, wide, order_float(mid), count, inv_t, top, tmp) >= want)
            a = mid;
        else
            b = mid - 1;
    }
    return order_float(a);
}
/* e^d where `there`, else 0; without a branch, so that the exponentials of several elements are computed side by side. */
__device__ static inline float mass_of(float d, bool there)
{
    float e = expf(d);
    asm volatile("" : "+f"(e));
    return there ? e : 0;
}
/* Ids are searched in groups of a warp's width, of which a part has at most GROUPS_MAX; longer ones one after the other. */
#define GROUPS_MAX 1024
struct group_mass {
    float all, most;    // sum of the group, and the largest of its running sums at an id with any mass (else -inf)
};
/* What the lanes hold of a group of ids: their masses and running sums. */
struct group_run {
    float e, run;
};
template <typename R> __device__ static inline float group_load(R from, int64_t j, int64_t end)
{
    int lane = threadIdx.x % 32;
    return j + lane < end ? from(j + lane, from.z[j + lane]) : -INFINITY;
}
__device__ static inline group_run group_scan(float x, int64_t j, int64_t end, float least, float inv_t, float top)
{
    int lane = threadIdx.x % 32;
    group_run g;
    g.e = mass_of(x * inv_t - top, j + lane < end && !(x < least));
    g.run = g.e;
#pragma unroll
    for (int w = 1; w < 32; w *= 2) {
        float before = __shfl_up_sync(0xffffffffu, g.run, w);
        if (lane >= w)
            g.run += before;
    }
    return g;
}
/* Where a search has come to. */
struct search {
    int64_t last;     // the latest group with any mass; -1: none
    float at, cum;    // the sum of masses before it, and before the next group
    bool passed;      // it holds the id
};
/* Go on over n groups from id j on. */
__device__ static search groups_pass(search s, const group_mass *mass, int n, int64_t j, float target)
{
    for (int k0 = 0; k0 < n && !s.passed; k0 += 16)
#pragma unroll
        for (int k = k0; k < k0 + 16; k++) {    // without branches: a chain of sums
            group_mass g = k < n ? mass[k] : group_mass{ 0, -INFINITY };
            bool here = !s.passed && g.most > -INFINITY;
            s.last = here ? j + k * 32 : s.last;
            s.at = here ? s.cum : s.at;
            s.passed |= here && s.cum + g.most > target;
            s.cum += g.all;
        }
    return s;
}
#define SEARCH_EACH 4    // groups that a warp reads at once
/* The first id from j0 to j1 at which the sum of masses, from cum on, passes target; the last one with any mass if none does, -1 if none
 * has any. All warps sum the groups, the first adds the sums in order and looks into the one that passes; only it knows the result. */
template <typename R>
__device__ static int32_t part_search(R from, int64_t j0, int64_t j1, float least, float inv_t, float top, float cum, float target,
                                      group_mass *mass)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    search s = { -1, cum, cum, false };
    for (int64_t j = j0; j < j1; j += GROUPS_MAX * 32) {
        int n = (int)((min(j1 - j, (int64_t)GROUPS_MAX * 32) + 31) / 32);
        for (int k0 = warp; k0 < n; k0 += HEAD_WARPS * SEARCH_EACH) {
            float x[SEARCH_EACH];
#pragma unroll
            for (int u = 0; u < SEARCH_EACH; u++)
                x[u] = group_load(from, j + (k0 + u * HEAD_WARPS) * 32, j1);
#pragma unroll
            for (int u = 0; u < SEARCH_EACH; u++) {
                int k = k0 + u * HEAD_WARPS;
                group_run g = group_scan(x[u], j + k * 32, j1, least, inv_t, top);
                float most = warp_max(g.e > 0 ? g.run : -INFINITY);
                if (lane == 31 && k < n)
                    mass[k] = group_mass{ g.run, most };
            }
        }
        __syncthreads();
        if (warp == 0)
            s = groups_pass(s, mass, n, j, target);
        __syncthreads();
    }
    if (warp != 0 || s.last < 0)
        return -1;
    group_run g = group_scan(group_load(from, s.last, j1), s.last, j1, least, inv_t, top);
    unsigned any = __ballot_sync(0xffffffffu, g.e > 0), over = __ballot_sync(0xffffffffu, g.e > 0 && s.at + g.run > target);
    return (int32_t)s.last + (over ? __ffs(over) - 1 : 31 - __clz(any));
}
/* The best of what is left of a row. */
template <typename R> __device__ static row_top row_top_of(R from, int64_t n, bool wide, float *tmp)
{
    row_top own = { -INFINITY, INT32_MAX };
    row_each(from.z, n, wide, [&](int64_t j, float z) {    // in the order of j
        float x = from(j, z);
        if (x > own.x)
            own = row_top{ x, (int)j };
    });
    float highest = block_max(own.x, tmp);
    return row_top{ highest, best_id(own, highest, (int *)tmp) };
}
#define MASS_EACH 8    // elements of a lane that are read at once, while as many are worked on
/* The sum of a warp's masses from j0 to j1: each lane's in their order, then over the lanes. */
template <typename R> __device__ static inline float part_mass(R from, int64_t j0, int64_t j1, float least, float inv_t, float top)
{
    int lane = threadIdx.x % 32, n = j1 > j0 ? (int)(j1 - j0) : 0, k = 0;
    float own = 0, x[MASS_EACH], next[MASS_EACH], e[MASS_EACH];
    const float *z = from.z + j0 + lane;
    if (n >= 32 * MASS_EACH)
#pragma unroll
        for (int u = 0; u < MASS_EACH; u++)
            next[u] = z[32 * u];
    for (; k + 32 * MASS_EACH <= n; k += 32 * MASS_EACH) {
#pragma unroll
        for (int u = 0; u < MASS_EACH; u++)
            x[u] = next[u];
        if (k + 64 * MASS_EACH <= n)
#pragma unroll
            for (int u = 0; u < MASS_EACH; u++)
                next[u] = z[k + 32 * (MASS_EACH + u)];
#pragma unroll
        for (int u = 0; u < MASS_EACH; u++) {
            x[u] = from(j0 + lane + k + 32 * u, x[u]);
            e[u] = mass_of(x[u] * inv_t - top, !(x[u] < least));
        }
#pragma unroll
        for (int u = 0; u < MASS_EACH; u++)
            own += e[u];
    }
    for (k += lane; k < n; k += 32) {
        float v = from(j0 + k, from.z[j0 + k]);
        own += mass_of(v * inv_t - top, !(v < least));
    }
    return warp_sum(own);
}
/* What the threads of a row share. */
struct draw_room {
    float tmp[33];
    float part[HEAD_WARPS];
    group_mass mass[GROUPS_MAX];
    int32_t ban[SAMPLE_BAN_MAX];
};
/* The draw: each warp sums a contiguous part of the row, then the part that holds the target is searched. best: the largest of `from`; it is
 * the token when the temperature is 0. Only the first warp knows the result. */
template <typename R>
__device__ static int32_t row_draw(R from, const sample_row &row, int64_t n, bool wide, float inv_t, row_top best, draw_room *room)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (!(row.temperature > 0))
        return best.id;
    float least = -INFINITY, highest = best.x, top = highest * inv_t, *tmp = room->tmp;
    if (row.top_k > 0 && row.top_k < n)
        least = mass_threshold(from, n, wide, -INFINITY, highest, (float)row.top_k, true, inv_t, top, tmp);
    if (row.top_p < 1)
        least = mass_threshold(from, n, wide, least, highest, row.top_p * mass_from(from, n, wide, least, false, inv_t, top, tmp), false,
                               inv_t, top, tmp);
    if (row.min_p > 0)
        least = fmaxf(least, fminf(highest, highest + logf(row.min_p) / inv_t));
    int64_t step = (n + HEAD_WARPS - 1) / HEAD_WARPS, j0 = warp * step, j1 = j0 + step < n ? j0 + step : n;
    float own = part_mass(from, j0, j1, least, inv_t, top);
    if (lane == 0)
        room->part[warp] = own;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < HEAD_WARPS; w++)
        total += room->part[w];
    float target = philox_uniform(row.seed, row.item, row.sample, row.pos) * total, cum = 0;
    int chosen = 0;
    for (; chosen < HEAD_WARPS - 1 && cum + room->part[chosen] <= target; chosen++)
        cum += room->part[chosen];
    while (chosen > 0 && room->part[chosen] == 0)    // rounding put the target after the last id with any mass
        chosen--;
    int32_t drawn = part_search(from, chosen * step, min(n, (chosen + 1) * step), least, inv_t, top, cum, target, room->mass);
    return drawn >= 0 ? drawn : best.id;
}
/* The same without the banned ids of row i. Not inlined, so that it takes no registers from the others. */
__device__ __noinline__ static int32_t row_draw_without(const struct sample_fwd *a, int64_t i, bool wide, float inv_t, draw_room *room)
{
    sample_row row = a->row[i];
    if (threadIdx.x < row.n_ban)
        room->ban[threadIdx.x] = a->ban[i * SAMPLE_BAN_MAX + threadIdx.x];
    __syncthreads();
    row_without from = { a->logits + i * a->ld, room->ban, row.n_ban };
    return row_draw(from, row, a->n_live, wide, inv_t, row_top_of(from, a->n_live, wide, room->tmp), room);
}
/* Two passes over the row. */
__global__ static void __launch_bounds__(HEAD_THREADS, 2) sample_kernel(const __grid_constant__ struct sample_fwd a, bool wide)
{
    __shared__ draw_room room;
    int64_t i = blockIdx.x, n = a.n_live;
    whole_row whole = { a.logits + i * a.ld };
    const float *z = whole.z;
    next_start();
    before_wait();
    struct sample_row row = a.row[i];
    float inv_t = row.temperature > 0 ? 1.0f / row.temperature : 1.0f;
    row_seen seen = row_see(z, n, wide, inv_t, room.tmp);
    row_stat r = seen.stat;
    int32_t id = row.n_ban > 0 ? row_draw_without(&a, i, wide, inv_t, &room) : row_draw(whole, row, n, wide, inv_t, seen.best, &room);
    if (threadIdx.x != 0)
        return;
    a.id[i] = id;
    if (a.logp)
        a.logp[i] = stat_logp(r, z, id, n, inv_t);
    if (a.entropy)
        a.entropy[i] = stat_entropy(r);
}
extern "C" bool sample_fwd_cuda(struct device *dev, const struct sample_fwd *args, struct error *err)
{
    struct sample_fwd a = *args;
    if (!sizes_ok("sample_fwd", a.n, a.vocab, a.n_live, a.ld, err))
        return false;
    a.n_live = a.n_live ? a.n_live : a.vocab;
    a.ld = a.ld ? a.ld : a.vocab;
    if (a.n == 0)
        return true;
    return launch_early(cuda_of(dev), sample_kernel, (unsigned)a.n, HEAD_THREADS, 0, "sample_fwd", err, a, a.ld % 4 == 0);
}
