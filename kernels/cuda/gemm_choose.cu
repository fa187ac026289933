/* gemm_choose.cu - choosing algorithms for products, on the card at hand
 *
 * A kind of product is chosen once, for each number of rows rounded up to a power of two: each algorithm that the library's heuristic
 * offers, and each form of gemm_few.cu, is compared with the heuristic's first at CHECK_ROWS rows, byte by byte on random data; one that
 * differs is left out, and a decode step uses the fastest of the others (gemm_race.cu). The device's table of choices (choices.h) has what
 * was chosen, and may have what another process has chosen on such a card. Then only those ways are tried, once each, and nothing is timed.
 * The one that all are compared with is the same as ever, so the bits do not depend on what is on disk. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_few.cuh"
#include <stdlib.h>
#define CHECK_ROWS 256
#define CHECK_OUT 4096
#define WAYS_MAX (CANDIDATES + 1 + FEW_FORMS)

int row_bucket(int64_t n)
{
    int b = 0;
    while (b < CHOICE_BUCKETS - 1 && (int64_t)1 << b < n)
        b++;
    return b;
}

/* Parts of K, by the weight's shape alone. The measured cases: 4864 -> 896 and 18944 -> 3584 and 3584 -> 3584 in 2, 8960 ->
 * 1536 and 12288 -> 4096 in 4. */
static int k_split(int64_t n_out, int64_t n_in)
{
    if (n_in >= 2 * n_out && n_in >= 2048)
        return n_in % 32 == 0 && n_in >= 6144 && n_in < 16384 ? 4 : n_in % 16 == 0 ? 2 : 1;
    return n_in == n_out && n_in >= 3072 && n_in % 16 == 0 ? 2 : 1;
}
static int split_of(int64_t n_out, int64_t n_in, int parts)
{
    return parts > 0 ? parts : k_split(n_out, n_in);
}

static struct gemm_plan *plan_find(struct cuda_device *cu, enum gemm_kind kind, int64_t n_out, int64_t n_in, int parts, bool bias)
{
    for (struct gemm_plan *p = cu->plan; p; p = p->next)
        if (p->kind == kind && p->n_out == n_out && p->n_in == n_in && p->parts == parts && p->bias == bias)
            return p;
    struct gemm_plan *p = (struct gemm_plan *)calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->kind = kind;
    p->n_out = n_out;
    p->n_in = n_in;
    p->bias = bias;
    p->parts = parts;
    p->split = kind <= PRODUCT_FWD_F32 ? split_of(n_out, n_in, parts) : 1;
    p->next = cu->plan;
    cu->plan = p;
    return p;
}
void cuda_plans_free(struct cuda_device *cu)
{
    while (cu->plan) {
        struct gemm_plan *next = cu->plan->next;
        free(cu->plan);
        cu->plan = next;
    }
}

/* --- trying ---------------------------------------------------------------------------------------------------------- */
/* What a plan's ways are tried on. */
struct trial {
    struct gemm_plan *p;
    int64_t n_out;       // outputs that are compared
    int64_t words;       // of one row's outputs, 4 bytes each
    size_t out_bytes;    // of want, and of got
    char *mem, *x;       // all memory, which begins with W (n_out, n_in); x (CHECK_ROWS, n_in)
    char *want, *got;    // (split, CHECK_ROWS, n_out) the first way's results; (split, rows, n_out) another's
    int *differs;        // device
    struct way first;    // the heuristic's best at CHECK_ROWS rows that runs
    bool have_first;
    struct linear_cost c;    // of the timing
    struct cost_run cost;
    bool opened, timed;
    int n_left_out;
};
enum trial_result {
    TRIAL_EQUAL,
    TRIAL_OTHER,
    TRIAL_NOT,    // it cannot be run
};

static bool trial_open(struct cuda_device *cu, struct trial *t, struct gemm_plan *p, struct error *err)
{
    memset(t, 0, sizeof *t);
    t->p = p;
    t->n_out = MIN(p->n_out, (int64_t)CHECK_OUT);
    t->words = t->n_out * (p->kind == PRODUCT_FWD_F32 || p->split > 1 ? 4 : 2) / 4;
    t->out_bytes = (size_t)p->split * CHECK_ROWS * (size_t)t->words * 4;
    size_t w_bytes = (size_t)(t->n_out * p->n_in) * 2, x_bytes = (size_t)(CHECK_ROWS * p->n_in) * 2;
    size_t at = (w_bytes + x_bytes + 255) & ~(size_t)255, each = (t->out_bytes + 255) & ~(size_t)255;
    if (!cuda_ok(cudaMalloc(&t->mem, at + 2 * each + 256), "checking products", err))
        return false;
    t->x = t->mem + w_bytes;
    t->want = t->mem + at;
    t->got = t->want + each;
    t->differs = (int *)(t->got + each);
    return noise_fill(cu, (bf16 *)t->mem, t->n_out * p->n_in, 1, err) && noise_fill(cu, (bf16 *)t->x, CHECK_ROWS * p->n_in, 2, err);
}
static void trial_close(struct cuda_device *cu, struct trial *t)
{
    if (t->opened)
        cost_close(cu, &t->cost);
    cudaFree(t->mem);
    (void)cudaGetLastError();
}

static struct lt_call trial_call(const struct trial *t, int bucket)
{
    const struct gemm_plan *p = t->p;
    struct lt_call c = {};
    c.kind = p->kind;
    c.rows = (int64_t)1 << bucket;
    c.n_out = p->n_out;
    c.n_in = p->n_in;
    c.split = p->split;
    c.bias = p->bias && p->split == 1 ? t->mem : NULL;
    c.ldx = p->n_in;
    c.ldy = p->n_out;
    return c;
}

/* The ways that there are for a number of rows, best first as the heuristic sees it, then ours. */
static int trial_ways(struct cuda_device *cu, const struct trial *t, const struct lt_call *c, struct way *out)
{
    cublasLtMatmulAlgo_t algo[CANDIDATES];
    struct lt_setup setup;
    lt_setup_make(&setup, c);
    int n = lt_candidates(cu, &setup, FREE_NOT, algo);
    memset(out, 0, WAYS_MAX * sizeof *out);
    for (int i = 0; i < n; i++)
        out[i].algo = algo[i];
    if (t->have_first)
        out[n++] = t->first;    // the fallback: at any number of rows equal to itself
    for (int f = 0; n > 0 && f < FEW_FORMS; f++)
        if (few_fits(cu, c->rows, c->n_out, c->n_in, c->split) && few_form_suits(f, c->n_out, c->split, cu->n_sm))
            out[n++].few = 1 + f;
    return n;
}

/* *differs = 1 when rows of got (split, part) have other bits than the first of want (split, full), in words of 4 bytes. */
__global__ static void differ_kernel(int *differs, const uint32_t *__restrict__ got, const uint32_t *__restrict__ want, int64_t part,
                                     int64_t full)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y;
    if (i < part && got[s * part + i] != want[s * full + i])
        *differs = 1;    // all writers write the same
}

/* Run a way and compare it with the first; without one yet it becomes the first if it runs. False: the device has failed. */
static bool trial_run(struct cuda_device *cu, struct trial *t, const struct lt_call *call, const struct way *way, enum trial_result *result,
                      struct error *err)
{
    struct lt_call c = *call;
    struct error ignored;
    int differs = 0;
    c.rows = MIN(c.rows, (int64_t)CHECK_ROWS);
    c.n_out = c.ldy = t->n_out;
    c.weight = t->mem;
    c.x = t->x;
    c.y = t->have_first ? t->got : t->want;
    *result = TRIAL_NOT;
    if (!cuda_ok(cudaMemsetAsync(c.y, 0xff, t->out_bytes, cu->stream), "checking products", err)
        || !cuda_ok(cudaMemsetAsync(t->differs, 0, sizeof differs, cu->stream), "checking products", err))
        return false;
    if (!way_run(cu, &c, way, &ignored)) {
        (void)cudaGetLastError();
        return true;
    }
    if (t->have_first) {
        int64_t part = c.rows * t->words;
        differ_kernel<<<dim3(blocks_for(part, 256), (unsigned)c.split), 256, 0, cu->stream>>>(
            t->differs, (const uint32_t *)t->got, (const uint32_t *)t->want, part, CHECK_ROWS * t->words);
        if (!launch_ok("checking products", err))
            return false;
    }
    if (!cuda_ok(cudaMemcpyAsync(&differs, t->differs, sizeof differs, cudaMemcpyDeviceToHost, cu->stream), "checking products", err)
        || !cuda_ok(cudaStreamSynchronize(cu->stream), "checking products", err))
        return false;
    *result = differs ? TRIAL_OTHER : TRIAL_EQUAL;
    return true;
}

/* Find the way that all others must equal. */
static bool trial_first(struct cuda_device *cu, struct trial *t, struct error *err)
{
    struct way found[WAYS_MAX];
    struct lt_call call = trial_call(t, row_bucket(CHECK_ROWS));
    int n = trial_ways(cu, t, &call, found);
    for (int i = 0; i < n && !t->have_first; i++) {
        enum trial_result result;
        if (!trial_run(cu, t, &call, &found[i], &result, err))
            return false;
        if (result == TRIAL_NOT)
            continue;
        t->first = found[i];
        t->have_first = true;
    }
    return true;
}

/* The fastest of n ways that give equal bits, for this many rows; the first when timing is not possible. */
static int trial_fastest(struct cuda_device *cu, struct trial *t, int64_t rows, const struct way *way, int n)
{
    const struct gemm_plan *p = t->p;
    struct error ignored;    // without memory for timing, keep the heuristic's order
    int best = -1;
    if (n > 1 && !t->opened) {
        t->c.n = TIMED_ROWS;
        t->c.n_out = p->n_out;
        t->c.n_in = p->n_in;
        t->c.bias = p->bias;
        t->c.y_dtype = p->kind == PRODUCT_FWD_F32 ? DT_F32 : DT_BF16;
        t->opened = true;
        t->timed = cost_open(cu, &t->cost, &t->c, p->split, &ignored);
    }
    t->c.n = rows;
    if (n > 1 && t->timed) {
        best = cost_race(cu, &t->cost, way, n, &ignored);
        t->timed = best >= 0;
    }
    (void)cudaGetLastError();
    return MAX(best, 0);
}

/* --- the table of choices -------------------------------------------------------------------------------------------- */
static const struct {
    cublasLtMatmulAlgoConfigAttributes_t name;
    size_t size;
} config[CHOICE_CONFIG_N] = {
    { CUBLASLT_ALGO_CONFIG_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_TILE_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_STAGES_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4 },
    { CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4 },
    { CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4 },
    { CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4 },
    { CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2 },
    { CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2 },
};
static struct choice_way way_describe(const struct way *w)
{
    struct choice_way c = {};
    c.own = w->few ? few_width(w->few - 1) : 0;
    for (int k = 0; !w->few && k < CHOICE_CONFIG_N; k++) {
        uint32_t v = 0;
        cublasLtMatmulAlgoConfigGetAttribute(&w->algo, config[k].name, &v, config[k].size, NULL);
        c.config[k] = (int32_t)(v & INT32_MAX);
    }
    return c;
}
static struct product_kind plan_kind(const struct gemm_plan *p)
{
    struct product_kind k = {};
    k.n_out = p->n_out;
    k.n_in = p->n_in;
    k.parts = p->parts;
    k.bias = p->bias;
    k.f32 = p->kind == PRODUCT_FWD_F32;
    return k;
}
/* taken: from the table itself, whose word on how they were found still holds. */
static void plan_record(struct cuda_device *cu, const struct gemm_plan *p, bool taken, const struct trial *t)
{
    struct product_kind kind = plan_kind(p);
    struct choice *c = cu->base.choices ? choices_take(cu->base.choices, &kind) : NULL;
    if (!c)
        return;
    c->state = p->plain ? CHOICE_PLAIN : CHOICE_PASSED;
    c->split = p->split;
    if (!taken) {
        c->from_disk = false;
        c->n_left_out = t->n_left_out;
        c->untimed = t->opened && !t->timed;
        cu->base.choices->changed = true;
    }
    for (int b = 0; !p->plain && b < CHOICE_BUCKETS; b++)
        c->way[b] = way_describe(&p->way[b]);
}

/* --- choosing -------------------------------------------------------------------------------------------------------- */
/* RC_CUDA_PRODUCTS=plain: as on a card where no algorithm passes (for tests). */
static bool plain_wanted(void)
{
    const char *want = getenv("RC_CUDA_PRODUCTS");
    return want && strcmp(want, "plain") == 0;
}

/* *taken: every way of the table is offered here, and gives the first's bits; the plan has them. */
static bool plan_take(struct cuda_device *cu, struct trial *t, const struct choice *read, bool *taken, struct error *err)
{
    *taken = false;
    for (int b = 0; b < CHOICE_BUCKETS; b++) {
        struct way found[WAYS_MAX];
        struct lt_call call = trial_call(t, b);
        enum trial_result result = TRIAL_NOT;
        int n = trial_ways(cu, t, &call, found);
        for (int i = 0; i < n && result == TRIAL_NOT; i++) {
            struct choice_way is = way_describe(&found[i]);
            if (memcmp(&is, &read->way[b], sizeof is) != 0)
                continue;
            if (!trial_run(cu, t, &call, &found[i], &result, err))
                return false;
            t->p->way[b] = found[i];
        }
        if (result != TRIAL_EQUAL)
            return true;
    }
    *taken = true;
    return true;
}

/* One number of rows. False: the device has failed. Up to TIMED_ROWS, where a decode step consists of short products, the fastest is used;
 * above that, the heuristic's best, until gemm_faster.cu looks at it. *any: there is one. */
static bool plan_choose_at(struct cuda_device *cu, struct trial *t, int bucket, bool *any, struct error *err)
{
    struct way found[WAYS_MAX];
    struct lt_call call = trial_call(t, bucket);
    int n = trial_ways(cu, t, &call, found), n_same = 0, n_wanted = call.rows <= TIMED_ROWS ? WAYS_MAX : 1;
    for (int i = 0; i < n && n_same < n_wanted; i++) {
        enum trial_result result;
        if (!trial_run(cu, t, &call, &found[i], &result, err))
            return false;
        t->n_left_out += result == TRIAL_OTHER;
        if (result == TRIAL_EQUAL)
            found[n_same++] = found[i];
    }
    *any = n_same > 0;
    if (*any)
        t->p->way[bucket] = found[trial_fastest(cu, t, call.rows, found, n_same)];
    return true;
}

/* Choose a forward plan's algorithm for every number of rows; where there is none for some, the plain kernel multiplies at all. Allocates
 * and frees its own memory. */
static bool plan_choose(struct cuda_device *cu, struct gemm_plan *p, struct error *err)
{
    struct product_kind kind = plan_kind(p);
    const struct choice *read = cu->base.choices ? choices_find(cu->base.choices, &kind) : NULL;
    struct trial t = {};
    bool ok = false, taken = false, any = true;
    if (plain_wanted()) {
        p->plain = p->ready = true;
        plan_record(cu, p, true, &t);
        return true;
    }
    if (!trial_open(cu, &t, p, err) || !trial_first(cu, &t, err) || (t.have_first && read && !plan_take(cu, &t, read, &taken, err)))
        goto out;
    any = t.have_first;
    for (int b = 0; !taken && any && b < CHOICE_BUCKETS; b++)
        if (!plan_choose_at(cu, &t, b, &any, err))
            goto out;
    p->plain = !any;
    p->ready = ok = true;
    plan_record(cu, p, taken, &t);
out:
    trial_close(cu, &t);
    return ok;
}

static bool sizes_fit(int64_t n_out, int64_t n_in, int parts)
{
    return n_out % 8 == 0 && n_in % 8 == 0 && n_in / (parts > 0 ? parts : 1) % 8 == 0;
}
bool fits_lt(const struct weight *w)
{
    return w->dtype == DT_BF16 && sizes_fit(w->n_out, w->n_in, w->parts);
}

struct gemm_plan *plan_ready(struct cuda_device *cu, enum gemm_kind kind, int64_t n_out, int64_t n_in, int parts, bool bias,
                             struct error *err)
{
    struct gemm_plan *p = plan_find(cu, kind, n_out, n_in, parts, bias && split_of(n_out, n_in, parts) == 1);
    if (!p) {
        error_set(err, ERR_NO_MEMORY, "no memory for a plan of products");
        return NULL;
    }
    if (kind <= PRODUCT_FWD_F32 && !p->ready) {
        if (cu->base.recording) {
            error_set(err, ERR_INTERNAL, "a new kind of product while a graph is being recorded");
            return NULL;
        }
        if (!plan_choose(cu, p, err))
            return NULL;
    }
    return p;
}

bool cuda_product_choose(struct device *dev, const struct product_kind *k, struct choice **out, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    struct product_kind kind = *k;
    struct gemm_plan *p = NULL;
    bool fits = sizes_fit(k->n_out, k->n_in, k->parts);
    *out = NULL;
    if (!cuda_ok(cudaSetDevice(dev->index), "choosing products", err)
        || (fits && !(p = plan_ready(cu, k->f32 ? PRODUCT_FWD_F32 : PRODUCT_FWD, k->n_out, k->n_in, k->parts, k->bias, err))))
        return false;
    if (p)
        kind = plan_kind(p);
    *out = !dev->choices ? NULL : fits ? choices_find(dev->choices, &kind) : choices_take(dev->choices, &kind);
    if (*out && !fits)
        (*out)->state = CHOICE_UNFIT;
    return true;
}
