/* gemm_body.h - the register tile of all matrix products
 *
 * TILE_MR rows by 16 TILE_NV columns of accumulators; each k step loads one row of the panel and broadcasts TILE_MR values
 * of a. An element is one fmaf chain in order of k, so tile sizes, tails and instruction sets change no bit. With 12 x 32
 * on AVX-512: 24 fused operations on 14 loads per step, which keep the processor at its peak while b is in the second-level cache
 * and a in the first. So the next tile of a is prefetched, little by little, during work on this one: 10 to 20 % faster on Sapphire
 * Rapids; prefetching it in bursts, or prefetching c or b, gains nothing. */

/* c = init + a b for one tile, or c += that with `add`; mr, nv, cols are constants where it is inlined. init may be c without
 * `add`. Prefetches the memory from `ahead` on, `step` bytes per step of k. */
VEC_FN void tile_mul(const int mr, const int nv, const bool cols, int64_t n_k, const float *restrict a, int64_t lda,
                     const float *restrict b, int64_t ldb, const float *init, int64_t ldi, float *c, int64_t ldc, bool add,
                     const char *ahead, int64_t step)
{
    v16 acc[TILE_MR][TILE_NV];
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++)
            acc[i][j] = v_load(init + i * ldi + 16 * j);
#pragma GCC unroll 1
    for (int64_t k = 0; k < n_k; k++) {
        v16 row[TILE_NV];
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++)
            row[j] = v_load(b + 16 * j);
#pragma GCC unroll 12
        for (int i = 0; i < mr; i++) {
            v16 x = v_set1(cols ? a[i] : a[i * lda]);
#pragma GCC unroll 2
            for (int j = 0; j < nv; j++)
                acc[i][j] = v_fma(x, row[j], acc[i][j]);
        }
        __builtin_prefetch(ahead);
        ahead += step;
        b += ldb;
        a += cols ? lda : 1;
    }
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++)
            v_store(c + i * ldc + 16 * j, add ? v_add(v_load(c + i * ldc + 16 * j), acc[i][j]) : acc[i][j]);
}

typedef void tile_fn(int64_t n_k, const float *a, int64_t lda, const float *b, int64_t ldb, const float *init, int64_t ldi, float *c,
                     int64_t ldc, bool add, const char *ahead, int64_t step);
#define TILE_ONE(mr, nv, cols)                                                                                                             \
    static void tile_##mr##_##nv##_##cols(int64_t n_k, const float *a, int64_t lda, const float *b, int64_t ldb, const float *init,        \
                                          int64_t ldi, float *c, int64_t ldc, bool add, const char *ahead, int64_t step)                   \
    {                                                                                                                                      \
        tile_mul(mr, nv, cols, n_k, a, lda, b, ldb, init, ldi, c, ldc, add, ahead, step);                                                  \
    }
// clang-format off
#if TILE_MR == 12
#define TILE_ROWS(X, nv, cols) X(1, nv, cols) X(2, nv, cols) X(3, nv, cols) X(4, nv, cols) X(5, nv, cols) X(6, nv, cols) \
    X(7, nv, cols) X(8, nv, cols) X(9, nv, cols) X(10, nv, cols) X(11, nv, cols) X(12, nv, cols)
#elif TILE_MR == 6
#define TILE_ROWS(X, nv, cols) X(1, nv, cols) X(2, nv, cols) X(3, nv, cols) X(4, nv, cols) X(5, nv, cols) X(6, nv, cols)
#else
#define TILE_ROWS(X, nv, cols) X(1, nv, cols) X(2, nv, cols) X(3, nv, cols) X(4, nv, cols)
#endif
// clang-format on
#define TILE_NAME(mr, nv, cols) tile_##mr##_##nv##_##cols,
TILE_ROWS(TILE_ONE, 1, 0)
TILE_ROWS(TILE_ONE, 1, 1)
#if TILE_NV == 2
TILE_ROWS(TILE_ONE, 2, 0)
TILE_ROWS(TILE_ONE, 2, 1)
#endif
/* [cols][columns / 16 - 1][rows - 1] */
static tile_fn *const tile_table[2][TILE_NV][TILE_MR] = {
    {
        { TILE_ROWS(TILE_NAME, 1, 0) },
#if TILE_NV == 2
        { TILE_ROWS(TILE_NAME, 2, 0) },
#endif
    },
    {
        { TILE_ROWS(TILE_NAME, 1, 1) },
#if TILE_NV == 2
        { TILE_ROWS(TILE_NAME, 2, 1) },
#endif
    },
};

/* An mr x n (n <= PANEL, a multiple of 16) block at c, which starts from init, or to which the product is added. */
static void block_mul(int mr, int n, bool cols, int64_t n_k, const float *a, int64_t lda, const float *b, int64_t ldb, const float *init,
                      int64_t ldi, float *c, int64_t ldc, bool add, const char *ahead, int64_t step)
{
    for (int j = 0; j < n;) {
        int nv = MIN(TILE_NV, (n - j) / 16);
        tile_table[cols][nv - 1][mr - 1](n_k, a, lda, b + j, ldb, init + j, ldi, c + j, ldc, add, ahead, step);
        j += 16 * nv;
    }
}

static void path_gemm(const struct gemm *g)
{
    static const float zero[PANEL];
    float part[TILE_MR * PANEL], start[PANEL] = { 0 };
    int64_t n_tile = (g->m + TILE_MR - 1) / TILE_MR, n_panel = (g->n + PANEL - 1) / PANEL;
    int64_t step = g->a_cols ? 0 : (TILE_MR * (int64_t)sizeof(float) + n_panel - 1) / n_panel;    // the next tile in n_panel parts
    for (int64_t t = 0; t < n_tile; t++) {
        int64_t i0 = g->m * t / n_tile;    // tiles of nearly equal height
        int mr = (int)(g->m * (t + 1) / n_tile - i0);
        const float *a = g->a + i0 * (g->a_cols ? 1 : g->lda);
        for (int64_t j0 = 0; j0 < g->n; j0 += PANEL) {
            const float *b = g->b + j0 / PANEL * g->panel_step;
            int n = (int)MIN(PANEL, g->n - j0), wide = (n + 15) / 16 * 16;
            const char *ahead = (const char *)(a + (step ? mr * g->lda : 0)) + j0 / PANEL * step * g->k;
            float *c = g->c_dtype == DT_F32 ? (float *)g->c + i0 * g->ldc + j0 : NULL;
            const float *init = zero;
            int64_t ldi = 0;
            if (g->from) {
                init = g->from + i0 * g->ld_from + j0;
                ldi = g->ld_from;
            } else if (g->bias) {
                init = g->bias + j0;
            }
            if (c && wide == n) {
                block_mul(mr, n, g->a_cols, g->k, a, g->lda, b, g->ldb, init, ldi, c, g->ldc, g->add, ahead, step);
                continue;
            }
            if (g->bias && wide != n) {
                memcpy(start, g->bias + j0, (size_t)n * sizeof *start);
                init = start;
            }
            block_mul(mr, wide, g->a_cols, g->k, a, g->lda, b, g->ldb, init, ldi, part, PANEL, false, ahead, step);
            for (int i = 0; i < mr; i++)
                for (int j = 0; j < n; j += 16) {
                    int64_t at = (i0 + i) * g->ldc + j0 + j;
                    int w = MIN(16, n - j);
                    v16 x = v_load(part + i * PANEL + j);
                    v_put(g->c, at, w, g->c_dtype, g->add ? v_add(v_get(g->c, at, w, g->c_dtype), x) : x);
                }
        }
    }
}
