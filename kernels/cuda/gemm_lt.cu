/* gemm_lt.cu - calling cuBLASLt: everything column-major, so y^T = W x^T, with W (n_in, n_out) and transposed */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_few.cuh"

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
void lt_setup_make(struct lt_setup *s, const struct lt_call *c)
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
cublasStatus_t lt_multiply(struct cuda_device *cu, struct lt_setup *s, const cublasLtMatmulAlgo_t *algo)
{
    float one = 1;
    return cublasLtMatmul(cu->lt, &s->op, &one, s->pa, &s->a, s->pb, &s->b, &s->beta, s->pd, &s->d, s->pd, &s->d, algo, cu->workspace,
                          cu->workspace_bytes, cu->stream);
}

bool lt_ok(cublasStatus_t status, const char *op, struct error *err)
{
    return status == CUBLAS_STATUS_SUCCESS || error_set(err, ERR_INTERNAL, "%s: cuBLASLt says %s", op, cublasLtGetStatusString(status));
}
bool way_run(struct cuda_device *cu, const struct lt_call *c, const struct way *way, struct error *err)
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

int lt_candidates(struct cuda_device *cu, struct lt_setup *s, enum freedom freedom, cublasLtMatmulAlgo_t *out)
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
