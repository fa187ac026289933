/* gemm_faster.cu - the fastest algorithm for a product of many rows, among those that give the bits of the one chosen first
 *
 * A training step has few kinds of products, and each takes long: the heuristic's first choice took up to half as much time again as the
 * best (NOTES.md). So the first product of a kind has all that the heuristic offers run on random data of its sizes. The fastest is used of
 * those whose results have the same bytes as the first's, at three numbers of rows. The clock decides about time only: bits
 * stay as they are, also between ranks that have chosen differently. */
#include "kernels/cuda/gemm.cuh"
#define ROWS_CHECKED 3
#define AIM_US 600     // of a measurement
#define MARGIN 0.99    // measurements differ by as much

struct race {
    struct lt_call call;    // of noise
    size_t y_bytes;
    char *mem;         // all of it: both operands, the result, the hash
    uint64_t *hash;    // device
    cudaEvent_t from, to;
};

static size_t aligned(int64_t size_bytes)
{
    return ((size_t)size_bytes + 255) & ~(size_t)255;
}

/* False: there is no memory for it now. */
static bool race_open(struct cuda_device *cu, struct race *r, const struct lt_call *call)
{
    struct lt_call *c = &r->call;
    struct error ignored;
    bool fwd = call->kind <= PRODUCT_FWD_F32, dw = call->kind == PRODUCT_BWD_W;
    int64_t w = call->n_out * call->n_in, in = call->rows * call->n_in, out = call->rows * call->n_out;
    bool f32 = dw || call->kind == PRODUCT_FWD_F32 || call->kind == PRODUCT_BWD_X_F32 || call->split > 1;
    *r = race{};
    *c = *call;
    c->ldx = fwd || dw ? c->n_in : c->n_out;
    c->ldy = fwd || dw ? c->n_out : c->n_in;
    c->accumulate = dw || call->accumulate;    // most micro-batches add theirs
    r->y_bytes = (size_t)((fwd ? out * c->split : dw ? w : in) * (f32 ? 4 : 2));
    size_t a = aligned(2 * (dw ? in : w)), y_at = a + aligned(2 * (fwd ? in : out)), hash_at = y_at + aligned((int64_t)r->y_bytes);
    if (cudaMalloc(&r->mem, hash_at + sizeof *r->hash) != cudaSuccess || cudaEventCreate(&r->from) != cudaSuccess
        || cudaEventCreate(&r->to) != cudaSuccess)
        return false;
    r->hash = (uint64_t *)(r->mem + hash_at);
    c->weight = dw ? NULL : r->mem;
    c->x = dw ? r->mem : r->mem + a;
    c->x2 = dw ? r->mem + a : NULL;
    c->bias = call->bias ? r->mem : NULL;
    c->y = r->mem + y_at;
    return noise_fill(cu, (bf16 *)r->mem, (int64_t)(y_at / 2), 5, &ignored);
}
static void race_close(struct race *r)
{
    if (r->from)
        cudaEventDestroy(r->from);
    if (r->to)
        cudaEventDestroy(r->to);
    cudaFree(r->mem);
    (void)cudaGetLastError();
}

/* The hash of what an algorithm makes of the first `rows` rows; false: it cannot be run. */
static bool race_hash(struct cuda_device *cu, struct race *r, int64_t rows, const cublasLtMatmulAlgo_t *algo, uint64_t *hash)
{
    struct lt_call c = r->call;
    struct lt_setup setup;
    struct error ignored;
    struct mem_hash h = {};
    c.rows = rows;
    h.hash = r->hash;
    h.x = c.y;
    h.size_bytes = r->y_bytes;
    lt_setup_make(&setup, &c);
    return noise_fill(cu, (bf16 *)c.y, (int64_t)(r->y_bytes / 2), 6, &ignored) && lt_multiply(cu, &setup, algo) == CUBLAS_STATUS_SUCCESS
           && mem_hash_cuda(&cu->base, &h, &ignored)
           && cudaMemcpyAsync(hash, r->hash, sizeof *hash, cudaMemcpyDeviceToHost, cu->stream) == cudaSuccess
           && cudaStreamSynchronize(cu->stream) == cudaSuccess;
}
static bool race_hashes(struct cuda_device *cu, struct race *r, const cublasLtMatmulAlgo_t *algo, uint64_t *hash)
{
    const int64_t rows[ROWS_CHECKED] = { r->call.rows, r->call.rows * 3 / 4 + 5, r->call.rows / 2 + 3 };
    for (int k = 0; k < ROWS_CHECKED; k++)
        if (!race_hash(cu, r, rows[k], algo, &hash[k]))
            return false;
    return true;
}

static bool race_runs(struct cuda_device *cu, struct race *r, const cublasLtMatmulAlgo_t *algo, int n, double *us)
{
    struct lt_setup setup;
    float ms = 0;
    lt_setup_make(&setup, &r->call);
    bool ok = cudaEventRecord(r->from, cu->stream) == cudaSuccess;
    for (int i = 0; ok && i < n; i++)
        ok = lt_multiply(cu, &setup, algo) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cudaEventRecord(r->to, cu->stream) == cudaSuccess && cudaEventSynchronize(r->to) == cudaSuccess
         && cudaEventElapsedTime(&ms, r->from, r->to) == cudaSuccess;
    *us = (double)ms * 1e3 / n;
    return ok;
}
/* The best of three measurements. */
static bool race_time(struct cuda_device *cu, struct race *r, const cublasLtMatmulAlgo_t *algo, double *us)
{
    double once;
    *us = INFINITY;
    if (!race_runs(cu, r, algo, 2, &once))
        return false;
    int n = once > AIM_US / 2 ? 2 : once < AIM_US / 10 ? 10 : (int)(AIM_US / once);
    for (int i = 0; i < 3; i++) {
        double some;
        if (!race_runs(cu, r, algo, n, &some))
            return false;
        *us = some < *us ? some : *us;
    }
    return true;
}

void lt_faster(struct cuda_device *cu, const struct lt_call *call, enum freedom freedom, cublasLtMatmulAlgo_t *algo)
{
    struct race r;
    struct lt_setup setup;
    cublasLtMatmulAlgo_t found[CANDIDATES];
    uint64_t want[ROWS_CHECKED], got[ROWS_CHECKED];
    double least, us;
    if (call->rows <= TIMED_ROWS)
        return;
    if (race_open(cu, &r, call) && race_hashes(cu, &r, algo, want) && race_time(cu, &r, algo, &least)) {
        lt_setup_make(&setup, &r.call);
        int n = lt_candidates(cu, &setup, freedom, found);
        least *= MARGIN;
        for (int i = 0; i < n; i++)
            if (race_hashes(cu, &r, &found[i], got) && memcmp(want, got, sizeof want) == 0 && race_time(cu, &r, &found[i], &us)
                && us < least) {
                least = us;
                *algo = found[i];
            }
    }
    race_close(&r);
}
