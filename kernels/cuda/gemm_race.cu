/* gemm_race.cu - the fastest of several ways to run a product of few rows, as a decode step runs it
 *
 * A step's products take 2 to 20 µs and lie between kernels that may start early (launch_early), as our own products may. Which way is the
 * fastest depends on that, and differences of 5 % of a product, which are 5 % of a step, are not to be seen in a few runs of one product
 * after the other. So each way is recorded as it is in a step: products of cold weights, with a kernel like a norm or attention between them,
 * and with swiglu_fwd where the product is gate and up. These recordings are run in turn; the least median wins. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_few.cuh"
#include <stdlib.h>
#define RUNS_ALL 3      // of each way
#define RUNS_NEAR 15    // of those that are near the best after RUNS_ALL
#define NEAR 1.12f
#define LONG_MS 3    // runs of as much differ by little
#define CALLS_LEAST 4
#define CALLS_MOST 48    // products in a recording
#define GATE_LEAST 4     // a weight with this many times as many outputs as inputs is gate and up

struct race {
    struct cost_run *r;
    int n_call;
    bool gate;
    char *mem;    // what follows
    bf16 *x0;     // (n, n_in) what is multiplied
    bf16 *act;    // (n, n_out / 2) with gate
    uint32_t *seen;
};

/* Stands for the kernel between two products: a block per row reads what one has written, and writes what the next reads. */
__global__ static void between_kernel(bf16 *x, const bf16 *x0, int64_t n_in, const uint4 *y, int64_t row_words, int64_t part_words,
                                      int split, uint32_t *seen)
{
    uint32_t any = 0;
    next_start();
    before_wait();
    for (int s = 0; s < split; s++)
        for (int64_t j = threadIdx.x; j < row_words; j += blockDim.x) {
            uint4 v = y[s * part_words + blockIdx.x * row_words + j];
            any |= v.x ^ v.y ^ v.z ^ v.w;
        }
    any = (uint32_t)__syncthreads_or((int)any);
    for (int64_t j = threadIdx.x; j < n_in / 8; j += blockDim.x)
        ((uint4 *)(x + blockIdx.x * n_in))[j] = ((const uint4 *)(x0 + blockIdx.x * n_in))[j];
    if (any == 0 && threadIdx.x == 0)
        *seen = any;    // so that the compiler leaves the reads
}

/* The product of the k-th weight, and what comes after it in a step. */
static bool race_call(struct cuda_device *cu, const struct race *race, int k, struct error *err)
{
    struct cost_run *r = race->r;
    const struct linear_cost *c = r->c;
    bool pair = race->gate && r->way->few > 1;                                    // the first form is too narrow for both
    int64_t n_y = race->gate ? c->n_out / 2 : MIN(c->n_out, (int64_t)1 << 16);    // after the head no short kernel reads all
    int64_t row_words = n_y * (r->split > 1 ? 4 : (int64_t)dtype_size(c->y_dtype)) / 16;
    struct swiglu_fwd act = {};
    act.y = race->act;
    act.gu = r->y;
    act.n = c->n;
    act.f = c->n_out / 2;
    act.act = ACT_SILU;
    act.dtype = DT_BF16;
    if (!cost_call(cu, r, k, pair ? race->act : NULL, err) || (race->gate && !pair && !swiglu_fwd_cuda(&cu->base, &act, err)))
        return false;
    return launch_early(cu, between_kernel, (unsigned)c->n, 128, 0, "timing products", err, r->x, (const bf16 *)race->x0, c->n_in,
                        (const uint4 *)(race->gate ? race->act : r->y), row_words, c->n * row_words, r->split, race->seen);
}
static struct graph *race_record(struct cuda_device *cu, const struct race *race, struct error *err)
{
    struct error ignored;
    cu->gate.y = NULL;
    if (!race_call(cu, race, 0, err) || !cu->base.op->graph_begin(&cu->base, err))
        return NULL;
    bool ok = true;
    for (int k = 0; ok && k < race->n_call; k++)
        ok = race_call(cu, race, k, err);
    return cu->base.op->graph_end(&cu->base, ok ? err : &ignored);
}

/* One way of the race. */
struct lane {
    struct graph *g;    // NULL: it is out
    cudaEvent_t from, to;
    float ms[RUNS_NEAR], median;
    int n;
};
static void lane_out(struct cuda_device *cu, struct lane *l)
{
    if (l->g)
        cu->base.op->graph_free(&cu->base, l->g);
    l->g = NULL;
}
static void lane_add(struct lane *l, float ms)
{
    int i = l->n++;
    for (; i > 0 && l->ms[i - 1] > ms; i--)
        l->ms[i] = l->ms[i - 1];
    l->ms[i] = ms;
    l->median = l->ms[l->n / 2];
}
/* Run each way that is left once. All are launched before any is waited for: the device does not wait for the host between them. */
static bool lanes_run(struct cuda_device *cu, struct lane *l, int n, bool counts, struct error *err)
{
    const struct ops *op = cu->base.op;
    bool ok = true, first = true;
    for (int i = 0; ok && i < n; i++) {
        if (!l[i].g)
            continue;
        ok = (!first || op->graph_launch(&cu->base, l[i].g, err)) && cuda_ok(cudaEventRecord(l[i].from, cu->stream), "timing products", err)
             && op->graph_launch(&cu->base, l[i].g, err) && cuda_ok(cudaEventRecord(l[i].to, cu->stream), "timing products", err);
        first = false;
    }
    ok = ok && cuda_ok(cudaStreamSynchronize(cu->stream), "timing products", err);
    for (int i = 0; ok && counts && i < n; i++) {
        float ms;
        if (l[i].g && (ok = cuda_ok(cudaEventElapsedTime(&ms, l[i].from, l[i].to), "timing products", err)))
            lane_add(&l[i], ms);
    }
    return ok;
}
static int lanes_best(const struct lane *l, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (l[i].g && l[i].n > 0 && (best < 0 || l[i].median < l[best].median))
            best = i;
    return best;
}

static bool race_open(struct cuda_device *cu, struct race *race, struct cost_run *r, struct error *err)
{
    const struct linear_cost *c = r->c;
    size_t x_bytes = ((size_t)(c->n * c->n_in) * 2 + 255) & ~(size_t)255, act_bytes = ((size_t)(c->n * c->n_out) + 255) & ~(size_t)255;
    race->r = r;
    race->n_call = MAX(CALLS_LEAST, MIN(r->n_copy, CALLS_MOST));
    race->gate = c->y_dtype == DT_BF16 && r->split == 1 && c->n_out >= GATE_LEAST * c->n_in;
    if (!cuda_ok(cudaMalloc(&race->mem, x_bytes + act_bytes + 256), "timing products", err))
        return false;
    race->x0 = (bf16 *)race->mem;
    race->act = (bf16 *)(race->mem + x_bytes);
    race->seen = (uint32_t *)(race->mem + x_bytes + act_bytes);
    return noise_fill(cu, race->x0, c->n * c->n_in, 4, err);
}

int cost_race(struct cuda_device *cu, struct cost_run *r, const struct way *way, int n, struct error *err)
{
    struct race race = {};
    struct lane *l = (struct lane *)calloc((size_t)n, sizeof *l);
    int best = -1;
    bool ok = l && race_open(cu, &race, r, err);
    for (int i = 0; ok && i < n; i++) {
        r->way = &way[i];
        l[i].g = race_record(cu, &race, err);
        ok = cuda_ok(cudaEventCreate(&l[i].from), "timing products", err) && cuda_ok(cudaEventCreate(&l[i].to), "timing products", err);
    }
    ok = ok && lanes_run(cu, l, n, false, err);
    for (int run = 0; ok && run < RUNS_NEAR; run++) {
        ok = lanes_run(cu, l, n, true, err);
        best = lanes_best(l, n);
        if (best < 0 || (run + 1 >= RUNS_ALL && l[best].median > LONG_MS))
            break;
        for (int i = 0; i < n && (run + 1) % RUNS_ALL == 0; i++)
            if (l[i].median > l[best].median * NEAR)
                lane_out(cu, &l[i]);
    }
    for (int i = 0; l && i < n; i++) {
        lane_out(cu, &l[i]);
        if (l[i].from)
            cudaEventDestroy(l[i].from);
        if (l[i].to)
            cudaEventDestroy(l[i].to);
    }
    free(l);
    cudaFree(race.mem);
    return ok ? best : -1;
}
