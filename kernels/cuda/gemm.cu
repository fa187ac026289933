/* gemm.cu - matrix products: cuBLASLt under the rule that a row's bits never depend on the batch, and a plain kernel
 *
 * The rule (measured on an H200 with cuBLASLt 13.1): with every reduction scheme forbidden, all algorithms offered add up in
 * the same order, except ids 13 and 16. For narrow deep weights the heuristic would choose those or slow ones, so such weights get
 * a fixed split of K: S strided products into fp32 partials, added in order by the next kernel. S depends only on the weight.
 * Algorithms are chosen once for each (shape, rows rounded up to a power of two) when a weight is made: each is compared with the
 * first byte by byte on random data; one that differs is dropped, and a decode step uses the fastest of the others. The kernels of
 * gemm_few.cu compete with them. Backward
 * products need no such rule, only the same bits in each run: the heuristic's choice without in-place reduction, kept for each
 * power of two of rows; where devices have slices of the weights, an algorithm that keeps the order, too. fp32 (tests, small models) and shapes that are not multiples of 8 use the plain kernel: one fused chain in
 * order of k. A weight with parts has that many strided products, added as a tree. */
#include "kernels/cuda/gemm_few.cuh"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#define ROW_BUCKETS 15    // 1, 2, 4 ... 16384 rows; more rows use the last
#define CHECK_ROWS 256
#define CHECK_OUT 4096
#define CANDIDATES 8
#define TIMED_ROWS 512
/* In a step a product of our own saves its neighbours time, too: they may begin early, and gate and up need no kernel after it. So up to
 * this many rows it may take up to 1 / FEW_SHARE of the time of the best other. */
#define FEW_SURE 64
#define FEW_SHARE 0.8

enum product {
    PRODUCT_FWD,
    PRODUCT_FWD_F32,
    PRODUCT_BWD_X,
    PRODUCT_BWD_X_F32,
    PRODUCT_BWD_W,
};
/* How to run a product. */
struct way {
    int few;    // 1 + a form of gemm_few.cu; 0: by algo
    cublasLtMatmulAlgo_t algo;
};
struct gemm_plan {
    struct gemm_plan *next;
    enum product kind;
    bool bias;
    int64_t n_out, n_in;
    int parts;     // the weight's
    int split;     // of K: parts, or what suits the shape
    bool plain;    // no algorithms here keep one order for all numbers of rows: the plain kernel, which does
    bool known[ROW_BUCKETS];
    struct way way[ROW_BUCKETS];
};

static int row_bucket(int64_t n)
{
    int b = 0;
    while (b < ROW_BUCKETS - 1 && (int64_t)1 << b < n)
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

/* --- the plain kernel ------------------------------------------------------------------------------------------------ */
#define TILE 64
#define TILE_K 16
/* c (m, n) = bias by column + sum over k of a[i am + k ak] b[j bn + k bk]; 256 threads per 64 x 64 tile, 4 x 4 elements each, one
 * fused chain per element. With accumulate the finished chain is added to c. */
template <typename T, typename C>
__global__ static void plain_kernel(C *c, int64_t ldc, const T *__restrict__ a, int64_t am, int64_t ak, const T *__restrict__ b, int64_t bn,
                                    int64_t bk, const T *__restrict__ bias, int64_t m, int64_t n, int64_t n_k, bool accumulate)
{
    __shared__ float as[TILE_K][TILE + 1], bs[TILE_K][TILE + 1];
    int64_t i0 = (int64_t)blockIdx.y * TILE, j0 = (int64_t)blockIdx.x * TILE;
    int ti = threadIdx.x / 16, tj = threadIdx.x % 16;
    float acc[4][4];
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
        for (int y = 0; y < 4; y++) {
            int64_t i = i0 + ti + 16 * x, j = j0 + tj + 16 * y;
            acc[x][y] = i < m && j < n && bias ? to_float(bias[j]) : 0;
        }
    for (int64_t k0 = 0; k0 < n_k; k0 += TILE_K) {
        for (int e = threadIdx.x; e < TILE * TILE_K; e += 256) {
            int k = ak == 1 ? e % TILE_K : e / TILE, i = ak == 1 ? e / TILE_K : e % TILE;
            as[k][i] = i0 + i < m && k0 + k < n_k ? to_float(a[(i0 + i) * am + (k0 + k) * ak]) : 0;
            k = bk == 1 ? e % TILE_K : e / TILE, i = bk == 1 ? e / TILE_K : e % TILE;
            bs[k][i] = j0 + i < n && k0 + k < n_k ? to_float(b[(j0 + i) * bn + (k0 + k) * bk]) : 0;
        }
        __syncthreads();
        int64_t stop = min((int64_t)TILE_K, n_k - k0);
        for (int k = 0; k < stop; k++)
#pragma unroll
            for (int x = 0; x < 4; x++)
#pragma unroll
                for (int y = 0; y < 4; y++)
                    acc[x][y] = __fmaf_rn(as[k][ti + 16 * x], bs[k][tj + 16 * y], acc[x][y]);
        __syncthreads();
    }
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
        for (int y = 0; y < 4; y++) {
            int64_t i = i0 + ti + 16 * x, j = j0 + tj + 16 * y;
            if (i < m && j < n)
                c[i * ldc + j] = from_float<C>(accumulate ? to_float(c[i * ldc + j]) + acc[x][y] : acc[x][y]);
        }
}
struct plain {
    void *c;
    enum dtype c_dtype, dtype;
    int64_t ldc;
    const void *a, *b, *bias;
    int64_t am, ak, bn, bk, m, n, k;
    bool accumulate;
};
template <typename T, typename C> static void plain_launch(cudaStream_t s, const struct plain *p)
{
    plain_kernel<T, C><<<dim3(blocks_for(p->n, TILE), blocks_for(p->m, TILE)), 256, 0, s>>>(
        (C *)p->c, p->ldc, (const T *)p->a, p->am, p->ak, (const T *)p->b, p->bn, p->bk, (const T *)p->bias, p->m, p->n, p->k,
        p->accumulate);
}
static bool plain_run(struct cuda_device *cu, const struct plain *p, const char *op, struct error *err)
{
    if (p->m > 65535 * TILE)
        return error_set(err, ERR_SHAPE, "%s: %" PRId64 " rows in one call", op, p->m);
    if (p->dtype == DT_F32)
        plain_launch<float, float>(cu->stream, p);
    else if (p->c_dtype == DT_F32)
        plain_launch<bf16, float>(cu->stream, p);
    else
        plain_launch<bf16, bf16>(cu->stream, p);
    return launch_ok(op, err);
}

/* --- cuBLASLt: everything column-major, so y^T = W x^T, with W (n_in, n_out) and transposed --------------------------- */
struct lt_call {
    enum product kind;
    int64_t rows, n_out, n_in;
    int split;
    const void *weight;    // W
    const void *x, *bias;
    void *y;           // y, dx, or the fp32 gradient of W
    const void *x2;    // dy, for PRODUCT_BWD_W
    int64_t ldx, ldy;
    bool accumulate;
    bool any_cut;    // of a backward product: one order of summation, whatever n_out and n_in are
};
struct lt_setup {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    const void *pa, *pb;
    void *pd;
    float beta;
};
static void layout_init(cublasLtMatrixLayoutOpaque_t *l, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld, int batch,
                        int64_t step)
{
    cublasLtMatrixLayoutInit(l, type, (uint64_t)rows, (uint64_t)cols, ld);
    if (batch > 1) {
        int32_t count = batch;
        cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
        cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
    }
}
static void lt_setup_make(struct lt_setup *s, const struct lt_call *c)
{
    cublasOperation_t trans = CUBLAS_OP_T;
    cublasLtMatmulDescInit(&s->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    s->beta = c->accumulate ? 1 : 0;
    if (c->kind == PRODUCT_FWD || c->kind == PRODUCT_FWD_F32) {
        int64_t k = c->n_in / c->split;
        bool f32 = c->kind == PRODUCT_FWD_F32 || c->split > 1;
        cublasLtMatmulDescSetAttribute(&s->op, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof trans);
        layout_init(&s->a, CUDA_R_16BF, k, c->n_out, c->n_in, c->split, k);
        layout_init(&s->b, CUDA_R_16BF, k, c->rows, c->ldx, c->split, k);
        layout_init(&s->d, f32 ? CUDA_R_32F : CUDA_R_16BF, c->n_out, c->rows, c->ldy, c->split, c->n_out * c->rows);
        if (c->bias) {
            cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
            cublasLtMatmulDescSetAttribute(&s->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
            cublasLtMatmulDescSetAttribute(&s->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias, sizeof c->bias);
        }
        s->pa = c->weight;
        s->pb = c->x;
        s->pd = c->y;
    } else if (c->kind == PRODUCT_BWD_X
               || c->kind == PRODUCT_BWD_X_F32) {    // dx^T (n_in, rows) = W (n_in, n_out) dy^T (n_out, rows); x is dy, y is dx
        layout_init(&s->a, CUDA_R_16BF, c->n_in, c->n_out, c->n_in, 1, 0);
        layout_init(&s->b, CUDA_R_16BF, c->n_out, c->rows, c->ldx, 1, 0);
        layout_init(&s->d, c->kind == PRODUCT_BWD_X_F32 ? CUDA_R_32F : CUDA_R_16BF, c->n_in, c->rows, c->ldy, 1, 0);
        s->pa = c->weight;
        s->pb = c->x;
        s->pd = c->y;
    } else {    // dw^T (n_in, n_out) += x^T (n_in, rows) dy (rows, n_out)
        cublasLtMatmulDescSetAttribute(&s->op, CUBLASLT_MATMUL_DESC_TRANSB, &trans, sizeof trans);
        layout_init(&s->a, CUDA_R_16BF, c->n_in, c->rows, c->ldx, 1, 0);
        layout_init(&s->b, CUDA_R_16BF, c->n_out, c->rows, c->ldy, 1, 0);
        layout_init(&s->d, CUDA_R_32F, c->n_in, c->n_out, c->n_in, 1, 0);
        s->pa = c->x;
        s->pb = c->x2;
        s->pd = c->y;
    }
}
static cublasStatus_t lt_multiply(struct cuda_device *cu, struct lt_setup *s, const cublasLtMatmulAlgo_t *algo)
{
    float one = 1;
    return cublasLtMatmul(cu->lt, &s->op, &one, s->pa, &s->a, s->pb, &s->b, &s->beta, s->pd, &s->d, s->pd, &s->d, algo, cu->workspace,
                          cu->workspace_bytes, cu->stream);
}

static bool lt_ok(cublasStatus_t status, const char *op, struct error *err)
{
    return status == CUBLAS_STATUS_SUCCESS || error_set(err, ERR_INTERNAL, "%s: cuBLASLt says %s", op, cublasLtGetStatusString(status));
}
static bool way_run(struct cuda_device *cu, const struct lt_call *c, const struct way *way, struct error *err)
{
    struct lt_setup setup;
    if (way->few == 0) {
        lt_setup_make(&setup, c);
        return lt_ok(lt_multiply(cu, &setup, &way->algo), "linear_fwd", err);
    }
    struct few_call few = {};
    few.weight = c->weight;
    few.x = c->x;
    few.bias = c->bias;
    few.y = c->y;
    few.rows = c->rows;
    few.n_out = c->n_out;
    few.n_in = c->n_in;
    few.ldx = c->ldx;
    few.ldy = c->ldy;
    few.split = c->split;
    few.f32 = c->kind == PRODUCT_FWD_F32 || c->split > 1;
    return few_run(cu, &few, way->few - 1, err);
}

/* What an algorithm may do: only one order of summation; anything repeatable; anything. */
enum freedom {
    FREE_NOT,
    FREE_ORDER,
    FREE_ALL,
};
/* Up to CANDIDATES algorithms for this product, best first. */
static int lt_candidates(struct cuda_device *cu, struct lt_setup *s, enum freedom freedom, cublasLtMatmulAlgo_t *out)
{
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES * 2];
    static const uint32_t allowed[] = { 0, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_MASK };
    uint32_t schemes = allowed[freedom], align = 16;
    int n = 0, kept = 0;
    cublasLtMatmulPreferenceInit(&pref);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &cu->workspace_bytes, sizeof cu->workspace_bytes);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align);
    cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align);
    if (cublasLtMatmulAlgoGetHeuristic(cu->lt, &s->op, &s->a, &s->b, &s->d, &s->d, &pref, CANDIDATES * 2, found, &n)
        != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < n && kept < CANDIDATES; i++) {
        int32_t id = 0;
        cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, NULL);
        if (found[i].state == CUBLAS_STATUS_SUCCESS && !(freedom == FREE_NOT && (id == 13 || id == 16)))
            out[kept++] = found[i].algo;
    }
    return kept;
}

static int split_of(int64_t n_out, int64_t n_in, int parts)
{
    return parts > 0 ? parts : k_split(n_out, n_in);
}
static struct gemm_plan *plan_find(struct cuda_device *cu, enum product kind, int64_t n_out, int64_t n_in, int parts, bool bias)
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

/* y (rows, n_out) = sum of S fp32 partials (S, rows, n_out) in order, + bias. */
template <typename Y>
__global__ static void split_sum_kernel(Y *__restrict__ y, int64_t ldy, const float *__restrict__ part, const bf16 *__restrict__ bias,
                                        int64_t rows, int64_t n_out, int split)
{
    int64_t k = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4, i = k / n_out, j = k % n_out;
    if (i >= rows)
        return;
    float sum[4] = { 0, 0, 0, 0 }, v[4];
    if (bias)
        load_v<bf16, 4>(sum, bias + j);
    for (int s = 0; s < split; s++) {
        load_v<float, 4>(v, part + (s * rows + i) * n_out + j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] += v[e];
    }
    store_v<Y, 4>(y + i * ldy + j, sum);
}

/* y (n, d) = the x as a balanced tree, + bias: V elements a thread. Reads 4 n_x bytes and writes one y per element. */
template <typename Y, typename B, int V> __global__ static void tree_sum_kernel(struct tree_sum a)
{
    int64_t k = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, i = k / a.d, j = k % a.d;
    if (i >= a.n)
        return;
    float x[SUM_PARTS_MAX][V], bias[V];
#pragma unroll
    for (int p = 0; p < SUM_PARTS_MAX; p++)
        if (p < a.n_x)
            load_v<float, V>(x[p], a.x[p] + i * a.ldx + j);
#pragma unroll
    for (int step = 1; step < SUM_PARTS_MAX; step *= 2)
#pragma unroll
        for (int p = 0; p < SUM_PARTS_MAX; p += 2 * step)
            if (p + step < a.n_x)
#pragma unroll
                for (int e = 0; e < V; e++)
                    x[p][e] += x[p + step][e];
    if (a.bias) {
        load_v<B, V>(bias, (const B *)a.bias + j);
#pragma unroll
        for (int e = 0; e < V; e++)
            x[0][e] += bias[e];
    }
    store_v<Y, V>((Y *)a.y + i * a.ldy + j, x[0]);
}
template <typename Y, typename B> static void tree_launch(cudaStream_t s, const struct tree_sum *a)
{
    if (a->d % 4 == 0 && a->ldx % 4 == 0 && a->ldy % 4 == 0)
        tree_sum_kernel<Y, B, 4><<<blocks_for(a->n * a->d, 4 * 256), 256, 0, s>>>(*a);
    else
        tree_sum_kernel<Y, B, 1><<<blocks_for(a->n * a->d, 256), 256, 0, s>>>(*a);
}
extern "C" bool tree_sum_cuda(struct device *dev, const struct tree_sum *args, struct error *err)
{
    struct tree_sum a = *args;
    cudaStream_t s = cuda_of(dev)->stream;
    a.ldx = a.ldx ? a.ldx : a.d;
    a.ldy = a.ldy ? a.ldy : a.d;
    if (a.n_x < 1 || a.n_x > SUM_PARTS_MAX || (a.n_x & (a.n_x - 1)))
        return error_set(err, ERR_SHAPE, "tree_sum: %d parts; 1, 2, 4 and %d are possible", a.n_x, SUM_PARTS_MAX);
    if (a.n == 0)
        return true;
    if (a.y_dtype == DT_BF16)
        tree_launch<bf16, bf16>(s, &a);
    else if (a.dtype == DT_BF16)
        tree_launch<float, bf16>(s, &a);
    else
        tree_launch<float, float>(s, &a);
    return launch_ok("tree_sum", err);
}
/* The parts of a product, one after the other in memory. */
static bool parts_sum(struct device *dev, const struct linear_fwd *a, const float *part, int64_t ldy, struct error *err)
{
    const struct weight *w = a->w;
    struct tree_sum sum = {};
    sum.y = a->y;
    sum.bias = a->bias;
    sum.n_x = w->parts;
    sum.n = a->n;
    sum.d = w->n_out;
    sum.ldy = ldy;
    sum.y_dtype = a->y_dtype;
    sum.dtype = w->dtype;
    for (int p = 0; p < w->parts; p++)
        sum.x[p] = part + p * a->n * w->n_out;
    return tree_sum_cuda(dev, &sum, err);
}

/* Pseudo-random bf16 in (-1, 1) for the check. */
__global__ static void noise_kernel(bf16 *x, int64_t n, uint32_t salt)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    uint32_t z = (uint32_t)i * 2654435761u + salt;
    z = (z ^ (z >> 15)) * 2246822519u;
    z = (z ^ (z >> 13)) * 3266489917u;
    x[i] = __float2bfloat16_rn((float)(int32_t)(z ^ (z >> 16)) * (1.0f / 2147483648.0f));
}

/* --- timing products ------------------------------------------------------------------------------------------------- */
#define COLD_BYTES ((int64_t)192 << 20)    // of weights used in turn, several times the second-level cache
#define RUNS_MAX 9
struct cost_run {
    const struct linear_cost *c;
    struct weight w;
    bf16 *weights, *x, *bias;
    void *y;
    int n_copy;
    const struct way *way;    // NULL: linear_fwd itself
    int split;                // with a way: number of parts of K, into fp32 partials in y
    int runs;                 // timed runs, at most RUNS_MAX; the median counts
};
/* Allocate memory for timing products of c's sizes with split parts, and fill it with random numbers. */
static bool cost_open(struct cuda_device *cu, struct cost_run *r, const struct linear_cost *c, int split, struct error *err)
{
    struct device *dev = &cu->base;
    int64_t w_elems = c->n_out * c->n_in, x_elems = c->n * c->n_in;
    size_t y_bytes = (size_t)(split * c->n * c->n_out) * (split > 1 ? 4 : dtype_size(c->y_dtype));
    memset(r, 0, sizeof *r);
    r->c = c;
    r->split = split;
    r->runs = RUNS_MAX;
    r->n_copy = (int)(COLD_BYTES / (2 * w_elems) + 1);
    r->w.dtype = DT_BF16;
    r->w.n_out = c->n_out;
    r->w.n_in = c->n_in;
    r->weights = (bf16 *)dev->op->mem_new(dev, (size_t)(r->n_copy * w_elems + c->n_out) * 2, "timing products", err);
    r->x = r->weights ? (bf16 *)dev->op->mem_new(dev, (size_t)x_elems * 2, "timing products", err) : NULL;
    r->y = r->x ? dev->op->mem_new(dev, y_bytes, "timing products", err) : NULL;
    if (!r->y)
        return false;
    r->bias = c->bias ? r->weights + r->n_copy * w_elems : NULL;
    noise_kernel<<<blocks_for(r->n_copy * w_elems + c->n_out, 256), 256, 0, cu->stream>>>(r->weights, r->n_copy * w_elems + c->n_out, 3);
    noise_kernel<<<blocks_for(x_elems, 256), 256, 0, cu->stream>>>(r->x, x_elems, 4);
    return launch_ok("timing products", err);
}
static void cost_close(struct cuda_device *cu, struct cost_run *r)
{
    void *const mem[] = { r->weights, r->x, r->y };
    for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
        if (mem[i])
            cu->base.op->mem_free(&cu->base, mem[i]);
}
static bool cost_call(struct cuda_device *cu, struct cost_run *r, int k, struct error *err)
{
    const struct linear_cost *c = r->c;
    const bf16 *weight = r->weights + (int64_t)(k % r->n_copy) * c->n_out * c->n_in;
    if (!r->way) {
        r->w.data = weight;
        struct linear_fwd a = {};
        a.y = r->y;
        a.x = r->x;
        a.w = &r->w;
        a.bias = r->bias;
        a.n = c->n;
        a.y_dtype = c->y_dtype;
        return linear_fwd_cuda(&cu->base, &a, err);
    }
    struct lt_call call = { .kind = c->y_dtype == DT_F32 ? PRODUCT_FWD_F32 : PRODUCT_FWD,
                            .rows = c->n,
                            .n_out = c->n_out,
                            .n_in = c->n_in,
                            .split = r->split,
                            .weight = weight,
                            .x = r->x,
                            .bias = r->split == 1 ? r->bias : NULL,
                            .y = r->y,
                            .x2 = NULL,
                            .ldx = c->n_in,
                            .ldy = c->n_out };
    return way_run(cu, &call, r->way, err);
}
/* Median time of one call, from recorded runs over all copies of the weight. */
static bool cost_time(struct cuda_device *cu, struct cost_run *r, double *us, struct error *err)
{
    int n_call = r->n_copy < 8 ? 8 : r->n_copy > 64 ? 64 : r->n_copy;
    float took[RUNS_MAX];
    cudaEvent_t from = NULL, to = NULL;
    struct graph *g = NULL;
    bool ok = cost_call(cu, r, 0, err) && cu->base.op->graph_begin(&cu->base, err);
    if (!ok)
        return false;
    for (int k = 0; ok && k < n_call; k++)
        ok = cost_call(cu, r, k, err);
    struct error ignored;
    g = cu->base.op->graph_end(&cu->base, ok ? err : &ignored);
    ok = ok && g && cuda_ok(cudaEventCreate(&from), "linear_cost", err) && cuda_ok(cudaEventCreate(&to), "linear_cost", err);
    for (int i = -1; ok && i < r->runs; i++) {
        ok = cuda_ok(cudaEventRecord(from, cu->stream), "linear_cost", err) && cu->base.op->graph_launch(&cu->base, g, err)
             && cuda_ok(cudaEventRecord(to, cu->stream), "linear_cost", err) && cuda_ok(cudaEventSynchronize(to), "linear_cost", err);
        if (ok && i >= 0)
            ok = cuda_ok(cudaEventElapsedTime(&took[i], from, to), "linear_cost", err);
    }
    for (int i = 1; ok && i < r->runs; i++)
        for (int j = i; j > 0 && took[j] < took[j - 1]; j--) {
            float t = took[j];
            took[j] = took[j - 1];
            took[j - 1] = t;
        }
    if (ok)
        *us = (double)took[r->runs / 2] * 1e3 / n_call;
    if (from)
        cudaEventDestroy(from);
    if (to)
        cudaEventDestroy(to);
    if (g)
        cu->base.op->graph_free(&cu->base, g);
    return ok;
}
/* Of n ways that give the same bits, the fastest for this many rows; the first when timing is not possible. */
static int plan_fastest(struct cuda_device *cu, const struct gemm_plan *p, int64_t rows, const struct way *way, int n)
{
    struct linear_cost c = { .n = rows,
                             .n_out = p->n_out,
                             .n_in = p->n_in,
                             .bias = p->bias,
                             .y_dtype = p->kind == PRODUCT_FWD_F32 ? DT_F32 : DT_BF16,
                             .rule_us = 0,
                             .best_us = 0 };
    struct cost_run r;
    struct error ignored;    // without memory for timing, keep the heuristic's order
    int best = 0;
    double best_us = INFINITY;
    bool ok = n > 1 && cost_open(cu, &r, &c, p->split, &ignored);
    for (int i = 0; ok && i < n; i++) {
        double us;
        r.way = &way[i];
        r.runs = 3;
        bool timed = cost_time(cu, &r, &us, &ignored);
        if (way[i].few && rows <= FEW_SURE)
            us *= FEW_SHARE;
        if (timed && us < best_us) {
            best = i;
            best_us = us;
        }
    }
    if (n > 1)
        cost_close(cu, &r);
    (void)cudaGetLastError();
    return best;
}

/* RC_CUDA_PRODUCTS=plain: as on a card where no algorithm passes (for tests). */
static bool plain_wanted(void)
{
    const char *want = getenv("RC_CUDA_PRODUCTS");
    return want && strcmp(want, "plain") == 0;
}

/* Choose this plan's algorithm for every number of rows. Each must give the same bytes as the first on CHECK_ROWS random rows. Up
 * to TIMED_ROWS, where a decode step consists of short products, the fastest of them is used; above that, the first. Where none does, the
 * plain kernel multiplies at every number of rows. Allocates and frees its own memory; runs once per weight shape. */
static bool plan_choose(struct cuda_device *cu, struct gemm_plan *p, struct error *err)
{
    bool ok = false;
    int64_t n_out = p->n_out < CHECK_OUT ? p->n_out : CHECK_OUT;
    size_t es = p->kind == PRODUCT_FWD_F32 || p->split > 1 ? 4 : 2, out_bytes = (size_t)p->split * CHECK_ROWS * (size_t)n_out * es;
    size_t w_bytes = (size_t)(n_out * p->n_in) * 2, x_bytes = (size_t)(CHECK_ROWS * p->n_in) * 2;
    char *mem = NULL, *want = (char *)malloc(out_bytes), *got = (char *)malloc(out_bytes);
    struct way first;
    bool have_first = false;
    if (plain_wanted()) {
        p->plain = ok = true;
        goto out;
    }
    if (!want || !got) {
        error_set(err, ERR_NO_MEMORY, "no memory to check products");
        goto out;
    }
    if (!cuda_ok(cudaMalloc(&mem, w_bytes + x_bytes + out_bytes + 8192), "checking products", err))
        goto out;
    noise_kernel<<<blocks_for(n_out * p->n_in, 256), 256, 0, cu->stream>>>((bf16 *)mem, n_out * p->n_in, 1);
    noise_kernel<<<blocks_for(CHECK_ROWS * p->n_in, 256), 256, 0, cu->stream>>>((bf16 *)(mem + w_bytes), CHECK_ROWS * p->n_in, 2);
    for (int round = 0; round < ROW_BUCKETS; round++) {
        /* 256 rows first: the others are compared with its first choice */
        int bucket = round == 0 ? 8 : round <= 8 ? round - 1 : round;
        struct lt_call call = { .kind = p->kind,
                                .rows = (int64_t)1 << bucket,
                                .n_out = p->n_out,
                                .n_in = p->n_in,
                                .split = p->split,
                                .bias = p->bias && p->split == 1 ? mem : NULL,
                                .ldx = p->n_in,
                                .ldy = p->n_out };
        struct lt_setup setup;
        struct error ignored;
        struct way found[CANDIDATES + 1 + FEW_FORMS] = {};
        cublasLtMatmulAlgo_t algo[CANDIDATES];
        lt_setup_make(&setup, &call);
        int n = lt_candidates(cu, &setup, FREE_NOT, algo), n_same = 0, n_wanted = call.rows <= TIMED_ROWS ? CANDIDATES + FEW_FORMS : 1;
        for (int i = 0; i < n; i++)
            found[i].algo = algo[i];
        if (have_first)
            found[n++] = first;    // the fallback: at any number of rows equal to itself
        for (int f = 0; n > 0 && f < FEW_FORMS; f++)
            if (few_fits(cu, call.rows, p->n_out, p->n_in, p->split) && few_form_suits(f, p->n_out, p->split, cu->n_sm))
                found[n++].few = 1 + f;
        for (int i = 0; i < n && n_same < n_wanted; i++) {
            int64_t rows = call.rows < CHECK_ROWS ? call.rows : CHECK_ROWS;
            struct lt_call check = call;
            check.rows = rows;
            check.n_out = n_out;
            check.ldy = n_out;
            check.weight = mem;
            check.x = mem + w_bytes;
            check.y = mem + ((w_bytes + x_bytes + 255) & ~(size_t)255);
            cudaMemsetAsync(check.y, 0xff, out_bytes, cu->stream);
            if (!way_run(cu, &check, &found[i], &ignored)) {
                (void)cudaGetLastError();
                continue;
            }
            char *to = have_first ? got : want;
            if (!cuda_ok(cudaMemcpyAsync(to, check.y, out_bytes, cudaMemcpyDeviceToHost, cu->stream), "checking products", err)
                || !cuda_ok(cudaStreamSynchronize(cu->stream), "checking products", err))
                goto out;
            bool same = true;
            size_t part = (size_t)(rows * n_out) * es, full = (size_t)(CHECK_ROWS * n_out) * es;
            for (int s = 0; have_first && s < p->split; s++)
                same = same && memcmp(got + s * part, want + s * full, part) == 0;
            if (!same)
                continue;
            if (!have_first)
                first = found[i];
            have_first = true;
            found[n_same++] = found[i];
        }
        if (n_same > 0) {
            p->way[bucket] = found[plan_fastest(cu, p, call.rows, found, n_same)];
            p->known[bucket] = true;
        } else {
            p->plain = ok = true;
            goto out;
        }
    }
    ok = true;
out:
    p->known[0] = ok;
    cu->base.n_plain += p->plain;
    cudaFree(mem);
    free(want);
    free(got);
    return ok;
}

static bool fits_lt(const struct weight *w)
{
    return w->dtype == DT_BF16 && w->n_out % 8 == 0 && w->n_in % 8 == 0 && w->n_in / (w->parts > 0 ? w->parts : 1) % 8 == 0;
}

/* The plan for this use of a weight; chosen when the first weight of the shape is made or, for an unforeseen use, now. */
static struct gemm_plan *plan_ready(struct cuda_device *cu, enum product kind, int64_t n_out, int64_t n_in, int parts, bool bias,
                                    struct error *err)
{
    struct gemm_plan *p = plan_find(cu, kind, n_out, n_in, parts, bias && split_of(n_out, n_in, parts) == 1);
    if (!p) {
        error_set(err, ERR_NO_MEMORY, "no memory for a plan of products");
        return NULL;
    }
    if (kind <= PRODUCT_FWD_F32 && !p->known[0]) {
        if (cu->capturing) {
            error_set(err, ERR_INTERNAL, "a new kind of product while a graph is being recorded");
            return NULL;
        }
        if (!plan_choose(cu, p, err))
            return NULL;
    }
    return p;
}

bool cuda_weight_init(struct device *dev, struct weight *w, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    cudaSetDevice(dev->index);
    return !fits_lt(w) || plan_ready(cu, PRODUCT_FWD, w->n_out, w->n_in, w->parts, false, err) != NULL;
}

void cuda_weight_release(struct device *, struct weight *)
{
}

bool cuda_weight_refresh(struct device *, struct weight *, struct error *)
{
    return true;    // products read the weight directly
}

/* linear_fwd in parts by the plain kernel. */
static bool plain_parts(struct device *dev, const struct linear_fwd *a, int64_t ldx, int64_t ldy, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    const struct weight *w = a->w;
    int64_t k = w->n_in / w->parts;
    float *part = (float *)cuda_scratch(cu, (size_t)w->parts * (size_t)a->n * (size_t)w->n_out * 4, "linear_fwd", err);
    if (!part)
        return false;
    for (int i = 0; i < w->parts; i++) {
        size_t at = (size_t)(i * k) * dtype_size(w->dtype);
        struct plain p = { .c = part + i * a->n * w->n_out,
                           .c_dtype = DT_F32,
                           .dtype = w->dtype,
                           .ldc = w->n_out,
                           .a = (const char *)a->x + at,
                           .b = (const char *)w->data + at,
                           .bias = NULL,
                           .am = ldx,
                           .ak = 1,
                           .bn = w->n_in,
                           .bk = 1,
                           .m = a->n,
                           .n = w->n_out,
                           .k = k,
                           .accumulate = false };
        if (!plain_run(cu, &p, "linear_fwd", err))
            return false;
    }
    return parts_sum(dev, a, part, ldy, err);
}

static bool plain_whole(struct cuda_device *cu, const struct linear_fwd *a, int64_t ldx, int64_t ldy, struct error *err)
{
    const struct weight *w = a->w;
    struct plain p = { .c = a->y,
                       .c_dtype = a->y_dtype,
                       .dtype = w->dtype,
                       .ldc = ldy,
                       .a = a->x,
                       .b = w->data,
                       .bias = a->bias,
                       .am = ldx,
                       .ak = 1,
                       .bn = w->n_in,
                       .bk = 1,
                       .m = a->n,
                       .n = w->n_out,
                       .k = w->n_in,
                       .accumulate = false };
    return plain_run(cu, &p, "linear_fwd", err);
}

extern "C" bool linear_fwd_cuda(struct device *dev, const struct linear_fwd *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    const struct weight *w = a->w;
    int64_t ldx = a->ldx ? a->ldx : w->n_in, ldy = a->ldy ? a->ldy : w->n_out;
    cu->unfinished.y = NULL;
    cu->gate.y = NULL;
    if (a->n == 0)
        return true;
    struct gemm_plan *p = NULL;
    if (fits_lt(w) && ldx % 8 == 0 && ldy % 8 == 0) {    // a slice of an odd vocabulary's rows is computed as the whole is
        p = plan_ready(cu, a->y_dtype == DT_F32 ? PRODUCT_FWD_F32 : PRODUCT_FWD, w->n_out, w->n_in, w->parts, a->bias != NULL, err);
        if (!p)
            return false;
    }
    if (!p || p->plain)
        return w->parts > 1 ? plain_parts(dev, a, ldx, ldy, err) : plain_whole(cu, a, ldx, ldy, err);
    struct lt_call call = { .kind = p->kind,
                            .rows = a->n,
                            .n_out = w->n_out,
                            .n_in = w->n_in,
                            .split = p->split,
                            .weight = w->data,
                            .x = a->x,
                            .bias = p->split == 1 ? a->bias : NULL,
                            .y = a->y,
                            .ldx = ldx,
                            .ldy = ldy };
    float *part = NULL;
    if (p->split > 1) {
        part = (float *)cuda_scratch(cu, (size_t)p->split * (size_t)a->n * (size_t)w->n_out * 4, "linear_fwd", err);
        if (!part)
            return false;
        call.y = part;
        call.ldy = w->n_out;
    }
    const struct way *way = &p->way[row_bucket(a->n)];
    if (a->for_gate && way->few > 1 && !part && a->y_dtype == DT_BF16) {    // the first form is too narrow for both
        cu->gate = *a;
        return true;
    }
    if (!way_run(cu, &call, way, err))
        return false;
    if (!part || w->parts > 1)
        return !part || parts_sum(dev, a, part, ldy, err);
    if (a->for_norm && a->y_dtype == DT_BF16 && ldy == w->n_out && p->split <= NORM_PARTS_MAX) {
        cu->unfinished = unfinished{ a->y, part, a->bias, p->split };
        return true;
    }
    unsigned grid = blocks_for(a->n * w->n_out, 4 * 256);
    if (a->y_dtype == DT_F32)
        split_sum_kernel<float><<<grid, 256, 0, cu->stream>>>((float *)a->y, ldy, part, (const bf16 *)a->bias, a->n, w->n_out, p->split);
    else
        split_sum_kernel<bf16><<<grid, 256, 0, cu->stream>>>((bf16 *)a->y, ldy, part, (const bf16 *)a->bias, a->n, w->n_out, p->split);
    return launch_ok("linear_fwd", err);
}

bool cuda_gate_run(struct cuda_device *cu, const struct swiglu_fwd *a, struct error *err)
{
    struct linear_fwd gate = cu->gate;
    const struct weight *w = gate.w;
    cu->gate.y = NULL;
    struct gemm_plan *p = plan_ready(cu, PRODUCT_FWD, w->n_out, w->n_in, w->parts, gate.bias != NULL, err);
    if (!p)
        return false;
    struct few_call few = {};
    few.weight = w->data;
    few.x = gate.x;
    few.bias = gate.bias;
    few.y = a->y;
    few.rows = gate.n;
    few.n_out = w->n_out;
    few.n_in = w->n_in;
    few.ldx = gate.ldx ? gate.ldx : w->n_in;
    few.ldy = a->f;
    few.split = 1;
    few.pair = true;
    few.act = a->act;
    return few_run(cu, &few, p->way[row_bucket(gate.n)].few - 1, err);
}

/* A backward product: the heuristic's best for this power of two of rows, requested once. */
static bool bwd_run(struct cuda_device *cu, const struct lt_call *call, const char *op, struct error *err)
{
    struct gemm_plan *p = plan_ready(cu, call->kind, call->n_out, call->n_in, call->any_cut, false, err);
    struct lt_setup setup;
    int bucket = row_bucket(call->rows);
    if (!p)
        return false;
    lt_setup_make(&setup, call);
    if (!p->known[bucket]) {
        struct lt_call full = *call;
        struct lt_setup ask;
        cublasLtMatmulAlgo_t found[CANDIDATES];
        full.rows = (int64_t)1 << bucket;
        lt_setup_make(&ask, &full);
        if (lt_candidates(cu, &ask, call->any_cut ? FREE_NOT : FREE_ORDER, found) == 0)
            return error_set(err, ERR_UNSUPPORTED, "%s: cuBLASLt has no algorithm for %" PRId64 " x %" PRId64, op, call->n_out, call->n_in);
        p->way[bucket].algo = found[0];
        p->known[bucket] = true;
    }
    return lt_ok(lt_multiply(cu, &setup, &p->way[bucket].algo), op, err);
}

extern "C" bool linear_bwd_x_cuda(struct device *dev, const struct linear_bwd_x *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    const struct weight *w = a->w;
    int64_t n_k = a->n_k ? a->n_k : w->n_out, ldx = a->ldx ? a->ldx : w->n_in, lddy = a->lddy ? a->lddy : n_k;
    const char *data = (const char *)w->data + (size_t)(a->first * w->n_in) * dtype_size(w->dtype);
    if (a->n == 0)
        return true;
    if ((a->n_k == 0 && !fits_lt(w)) || w->dtype == DT_F32 || w->n_in % 8 || n_k % 8 || a->first % 8 || ldx % 8 || lddy % 8) {
        struct plain p = { .c = a->dx,
                           .c_dtype = a->f32 ? DT_F32 : w->dtype,
                           .dtype = w->dtype,
                           .ldc = ldx,
                           .a = a->dy,
                           .b = data,
                           .bias = NULL,
                           .am = lddy,
                           .ak = 1,
                           .bn = 1,
                           .bk = w->n_in,
                           .m = a->n,
                           .n = w->n_in,
                           .k = n_k,
                           .accumulate = a->accumulate };
        return plain_run(cu, &p, "linear_bwd_x", err);
    }
    struct lt_call call = { .kind = a->f32 ? PRODUCT_BWD_X_F32 : PRODUCT_BWD_X,
                            .rows = a->n,
                            .n_out = n_k,
                            .n_in = w->n_in,
                            .split = 1,
                            .weight = data,
                            .x = a->dy,
                            .bias = NULL,
                            .y = a->dx,
                            .x2 = NULL,
                            .ldx = lddy,
                            .ldy = ldx,
                            .accumulate = a->accumulate,
                            .any_cut = w->parts > 0 };
    return bwd_run(cu, &call, "linear_bwd_x", err);
}

bool cuda_rows_sum(struct cuda_device *cu, float *y, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t d, struct error *err);
extern "C" bool linear_bwd_w_cuda(struct device *dev, const struct linear_bwd_w *a, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    int64_t ldx = a->ldx ? a->ldx : a->n_in, lddy = a->lddy ? a->lddy : a->n_out;
    if (a->n == 0)
        return !a->set || cuda_ok(cudaMemsetAsync(a->dw, 0, (size_t)(a->n_out * a->n_in) * 4, cu->stream), "linear_bwd_w", err);
    if (a->dbias && !cuda_rows_sum(cu, a->dbias, a->dy, a->dtype, lddy, a->n, a->n_out, err))
        return false;
    if (a->dtype == DT_F32 || a->n_out % 8 || a->n_in % 8 || ldx % 8 || lddy % 8) {
        struct plain p = { .c = a->dw,
                           .c_dtype = DT_F32,
                           .dtype = a->dtype,
                           .ldc = a->n_in,
                           .a = a->dy,
                           .b = a->x,
                           .bias = NULL,
                           .am = 1,
                           .ak = lddy,
                           .bn = 1,
                           .bk = ldx,
                           .m = a->n_out,
                           .n = a->n_in,
                           .k = a->n,
                           .accumulate = !a->set };
        return plain_run(cu, &p, "linear_bwd_w", err);
    }
    struct lt_call call = { .kind = PRODUCT_BWD_W,
                            .rows = a->n,
                            .n_out = a->n_out,
                            .n_in = a->n_in,
                            .split = 1,
                            .weight = NULL,
                            .x = a->x,
                            .bias = NULL,
                            .y = a->dw,
                            .x2 = a->dy,
                            .ldx = ldx,
                            .ldy = lddy,
                            .accumulate = !a->set,
                            .any_cut = a->any_cut };
    return bwd_run(cu, &call, "linear_bwd_w", err);
}

/* --- what the rule costs --------------------------------------------------------------------------------------------- */
bool cuda_linear_cost(struct device *dev, struct linear_cost *c, struct error *err)
{
    struct cuda_device *cu = cuda_of(dev);
    bool ok = false;
    struct cost_run r;
    struct lt_setup setup;
    cublasLtMatmulAlgo_t found[CANDIDATES];
    if (c->n < 1 || c->n_out % 8 || c->n_in % 8 || c->n_out < 8 || c->n_in < 8)
        return error_set(err, ERR_SHAPE, "linear_cost: %" PRId64 " rows, %" PRId64 " x %" PRId64, c->n, c->n_out, c->n_in);
    if (cost_open(cu, &r, c, 1, err) && cuda_weight_init(dev, &r.w, err) && cost_time(cu, &r, &c->rule_us, err)) {
        struct lt_call call = { .kind = c->y_dtype == DT_F32 ? PRODUCT_FWD_F32 : PRODUCT_FWD,
                                .rows = c->n,
                                .n_out = c->n_out,
                                .n_in = c->n_in,
                                .split = 1,
                                .weight = r.weights,
                                .x = r.x,
                                .bias = r.bias,
                                .y = r.y,
                                .x2 = NULL,
                                .ldx = c->n_in,
                                .ldy = c->n_out };
        lt_setup_make(&setup, &call);
        int n = lt_candidates(cu, &setup, FREE_ALL, found);
        ok = n > 0 || error_set(err, ERR_UNSUPPORTED, "cuBLASLt has no algorithm for %" PRId64 " x %" PRId64, c->n_out, c->n_in);
        c->best_us = INFINITY;
        for (int i = 0; ok && i < n; i++) {
            double us = INFINITY;
            struct way way = { 0, found[i] };
            r.way = &way;
            ok = cost_time(cu, &r, &us, err);
            c->best_us = us < c->best_us ? us : c->best_us;
        }
    }
    cost_close(cu, &r);
    return ok;
}
