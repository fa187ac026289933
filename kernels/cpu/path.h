/* path.h - the inner loops of the CPU back end, once for each instruction set
 *
 * A path's functions work on a range of rows (or elements) on the calling thread and know nothing about threads; a row's result
 * never depends on the range. The operations (ops_*.c) check arguments, split the work into ranges and call these. */
#pragma once
#include "kernels/ops.h"

#define GRAD_TILE 12    // columns of a tile of dy in linear_bwd_w: the height of the widest register tile
#define PANEL 32        // columns of a packed panel of a product's right side; also the tokens of a KV page

/* c (m, n) = init + a b, each element one chain of fused multiply-adds in order of k; or c += that, in one addition. Element (i, k) of a is
 * a[i * lda + k], or a[k * lda + i] with a_cols. b is in panels of PANEL columns, panel_step apart; rows of a panel ldb
 * apart, and readable to a multiple of 16 columns. */
struct gemm {
    int64_t m, n, k;
    const float *a;
    int64_t lda;
    bool a_cols;
    const float *b;
    int64_t ldb, panel_step;
    const float *bias;    // (n) init, or NULL
    const float *from;    // (m, n) init, rows ld_from apart and readable to a multiple of 16 columns, or NULL; neither: 0
    int64_t ld_from;
    bool add;    // c += instead of c =
    void *c;     // (m, n) c_dtype, rows ldc apart
    int64_t ldc;
    enum dtype c_dtype;
};

/* The keys of one sequence and KV head, as tiles of PANEL tokens in fp32. */
struct kv_tiles {
    const float *const *k;    // tile t: (hd, PANEL), keys in columns
    const float *const *v;    // tile t: (PANEL, hd)
};
/* n_row queries (step apart in q and out) against those keys; query i sees keys 0 .. first_len - 1 + i * len_step, or a window's last
 * of them. */
struct attend {
    struct kv_tiles kv;
    const float *q;    // row i at q + i * q_step, hd wide
    int64_t q_step;
    void *out;    // row i at out + i * out_step elements
    int64_t out_step;
    float *lse;    // value i at lse + i * lse_step, or NULL
    int64_t lse_step;
    int64_t n_row, first_len, len_step;
    struct attn_bounds bounds;
    int hd;
    enum dtype out_dtype;
    float *score;    // scratch: TILE rows x (keys rounded up to PANEL), see attend_scratch
};
#define ATTEND_ROWS 12    // rows handled at a time: floats of score, followed by ATTEND_ROWS * hd of sums
static inline int64_t attend_scratch(int64_t max_len, int hd)
{
    return ATTEND_ROWS * ((max_len + PANEL - 1) / PANEL * PANEL + hd);
}
/* Backward of one query head: gradients by its queries, added gradients by the keys and values of its KV head. */
struct attend_bwd {
    int64_t n;    // tokens of the sequence
    int hd;
    struct attn_bounds bounds;
    const float *kt, *vt;     // (tiles of PANEL tokens)(hd, PANEL): keys and values in columns, 0 after the end
    const float *k;           // (n, hd)
    const float *q, *dout;    // (n, hd), rows q_step and dout_step apart
    const float *lse;         // value i at lse + i * lse_step
    int64_t q_step, dout_step, lse_step;
    const float *dot;    // (n) sum over the head of dout out
    float *dq;           // (n, hd) written, rows q_step apart
    float *dk, *dv;      // (n, hd) +=
    float *prob, *ds;    // scratch: ATTEND_BWD_ROWS x (n rounded up to PANEL) each
};
#define ATTEND_BWD_ROWS 60

struct cpu_path {
    const char *name;
    void (*gemm)(const struct gemm *g);
    void (*tree_sum)(const struct tree_sum *a, int64_t i0, int64_t i1);
    void (*rows_join)(const struct rows_join *a, int64_t i0, int64_t i1);
    void (*combine_fwd)(const struct combine_fwd *a, int64_t i0, int64_t i1);
    void (*combine_bwd)(const struct combine_bwd *a, int64_t i0, int64_t i1);
    void (*conv4_fwd)(const struct conv4_fwd *a, int64_t i0, int64_t i1, int64_t n_block);    // sequence i / n_block, block i % n_block
    void (*conv4_bwd)(const struct conv4_bwd *a, int64_t i0, int64_t i1);                     // blocks of channels
    void (*delta_rule_fwd)(const struct delta_rule_fwd *a, int64_t i0, int64_t i1, float *scratch);    // sequence i / n_v, head i % n_v
    /* scratch: (2 + DELTA_KEEP + n / DELTA_KEEP, rounded up)(d_k, d_v), (DELTA_KEEP)(d_v) and (n)(2, d_k), where n is the tokens of the
     * longest sequence */
    void (*delta_rule_bwd)(const struct delta_rule_bwd *a, int64_t key, float *scratch);
    void (*gated_norm_fwd)(const struct gated_norm_fwd *a, int64_t i0, int64_t i1);
    void (*gated_norm_bwd)(const struct gated_norm_bwd *a, int64_t i0, int64_t i1, float *dw);    // dw (d_v): written
    void (*gate_fwd)(const struct gate_fwd *a, int64_t i0, int64_t i1);
    void (*gate_bwd)(const struct gate_bwd *a, int64_t i0, int64_t i1);
    void (*rmsnorm_fwd)(const struct rmsnorm_fwd *a, int64_t i0, int64_t i1);
    void (*rmsnorm_bwd)(const struct rmsnorm_bwd *a, int64_t i0, int64_t i1, float *dw);    // dw (d): written
    void (*rope_fwd)(const struct rope_fwd *a, int64_t i0, int64_t i1);
    void (*rope_bwd)(const struct rope_bwd *a, int64_t i0, int64_t i1, float *dnorm);    // (2, parts, hd): written
    void (*swiglu_fwd)(const struct swiglu_fwd *a, int64_t i0, int64_t i1);
    void (*swiglu_bwd)(const struct swiglu_bwd *a, int64_t i0, int64_t i1);
    void (*add)(const struct add_fwd *a, int64_t i0, int64_t i1);
    void (*cast)(const struct cast *a, int64_t i0, int64_t i1);
    void (*blend)(const struct blend *a, int64_t i0, int64_t i1);
    void (*softcap)(const struct softcap *a, int64_t i0, int64_t i1);
    void (*axpy)(const struct axpy *a, int64_t i0, int64_t i1);
    /* y (n) = sum of rows i0 .. i1 - 1 of x, in order from 0, or += that sum with accumulate */
    void (*rows_sum)(float *y, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t i0, int64_t i1, bool accumulate);
    /* dst (n, d) fp32 dense = rows of x, ld apart */
    void (*rows_load)(float *dst, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t d);
    /* the same in tiles `step` apart: column j of row i goes to dst[j / width * step + i * width + j % width]; width PANEL or
     * GRAD_TILE, columns up to the next multiple of 16 are 0, and up to 4 floats after a tile are written */
    void (*tiles_load)(float *dst, int width, int64_t step, const void *x, enum dtype t, int64_t ld, int64_t n, int64_t d);
    void (*rows_store)(void *y, const float *src, enum dtype t, int64_t ld, int64_t n, int64_t d);
    void (*rows_dot)(float *dot, const void *x, const void *y, enum dtype t, int64_t ld, int64_t n, int64_t d);
    void (*attend)(const struct attend *a);
    void (*attend_bwd)(const struct attend_bwd *a);
    void (*logprob_fwd)(const struct logprob_fwd *a, int64_t i0, int64_t i1);
    void (*logprob_bwd)(const struct logprob_bwd *a, int64_t i0, int64_t i1);
    void (*sample_fwd)(const struct sample_fwd *a, int64_t i0, int64_t i1, float *scratch);    // (vocab rounded up to 16)
    void (*adamw)(const struct adamw *a, int64_t i0, int64_t i1);
    double (*sumsq)(const float *x, int64_t n);
};
extern const struct cpu_path cpu_path_avx512, cpu_path_avx2, cpu_path_scalar;
