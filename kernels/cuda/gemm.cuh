/* gemm.cuh - what the files of matrix products share; gemm.cu says how they work together */
#pragma once
#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/tree_steps.h"
}
#define CANDIDATES 8
#define TIMED_ROWS 512    // up to here forward products are timed when they are chosen, above by their first use

/* --- gemm_plain.cu: one fused chain per element, in order of k --------------------------------------------------------- */
/* c (m, n) = bias by column + sum over k of a[i am + k ak] b[j bn + k bk], added to what c holds with accumulate. */
struct plain_product {
    void *c;
    enum dtype c_dtype, dtype;
    int64_t ldc;
    const void *a, *b, *bias;
    int64_t am, ak, bn, bk, m, n, k;
    bool accumulate;
};
bool plain_run(struct cuda_device *cu, const struct plain_product *p, const char *op, struct error *err);

/* --- gemm_lt.cu: cuBLASLt, and the choice between it and gemm_few.cu ------------------------------------------------------ */
enum gemm_kind {
    PRODUCT_FWD,
    PRODUCT_FWD_F32,
    PRODUCT_BWD_X,
    PRODUCT_BWD_X_F32,
    PRODUCT_BWD_W,
    PRODUCT_BWD_TREE,    // a linear_bwd_tree; a plan has its ways: few 1 is gemm_tree.cu, 0 part by part
    PRODUCT_FWD_TREE,    // the same of a linear_fwd
};
/* How to run a product. */
struct way {
    int few;    // 1 + a form of gemm_few.cu; 0: by algo
    cublasLtMatmulAlgo_t algo;
};
struct lt_call {
    enum gemm_kind kind;
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
/* What an algorithm may do: only one order of summation; anything repeatable; anything. */
enum freedom {
    FREE_NOT,
    FREE_ORDER,
    FREE_ALL,
};
void lt_setup_make(struct lt_setup *s, const struct lt_call *c);
cublasStatus_t lt_multiply(struct cuda_device *cu, struct lt_setup *s, const cublasLtMatmulAlgo_t *algo);
bool lt_ok(cublasStatus_t status, const char *op, struct error *err);
/* Up to CANDIDATES algorithms for this product, best first. */
int lt_candidates(struct cuda_device *cu, struct lt_setup *s, enum freedom freedom, cublasLtMatmulAlgo_t *out);
bool way_run(struct cuda_device *cu, const struct lt_call *c, const struct way *way, struct error *err);

/* --- gemm_choose.cu: plans, that is, how each kind of product is run at each number of rows ------------------------------- */
struct gemm_plan {
    struct gemm_plan *next;
    enum gemm_kind kind;
    bool bias;
    int64_t n_out, n_in;
    int parts;                     // the weight's
    int split;                     // of K: parts, or what suits the shape
    bool plain;                    // no algorithms here keep one order for all numbers of rows: the plain kernel, which does
    bool ready;                    // of a forward product: chosen
    bool known[CHOICE_BUCKETS];    // of a backward product: chosen; of a forward one: its first use has looked for a faster way
    struct way way[CHOICE_BUCKETS];
};
int row_bucket(int64_t n);
/* May a weight's products go by a plan? */
bool fits_lt(const struct weight *w);
/* The plan for this use of a weight, chosen now if it is the first. */
struct gemm_plan *plan_ready(struct cuda_device *cu, enum gemm_kind kind, int64_t n_out, int64_t n_in, int parts, bool bias,
                             struct error *err);

/* --- gemm.cu ------------------------------------------------------------------------------------------------------------- */
/* linear_bwd_tree part by part: each group's chain added to the part's other groups in memory, then the tree; gemm_tree.cu has the other way. */
bool bwd_by_parts(struct device *dev, const struct linear_bwd_tree *a, struct error *err);
/* linear_fwd by a plan that has algorithms, part by part; ldx and ldy are there. */
bool fwd_by_plan(struct device *dev, const struct linear_fwd *a, struct gemm_plan *p, struct error *err);

/* --- gemm_tree.cu: sums in parts without memory in between ----------------------------------------------------------------- */
/* Compute a linear_fwd by a weight with parts, whose plan this is, if it fits and wins; done: it did. */
bool fwd_in_registers(struct cuda_device *cu, const struct linear_fwd *a, struct gemm_plan *plan, bool *done, struct error *err);

/* --- gemm_faster.cu: products of many rows ------------------------------------------------------------------------------- */
/* Replace a call's algorithm by the fastest that gives its bits, if the rows are more than TIMED_ROWS and there is memory to try. Waits for
 * the device, so not while recording. */
void lt_faster(struct cuda_device *cu, const struct lt_call *call, enum freedom freedom, cublasLtMatmulAlgo_t *algo);

/* --- gemm_cost.cu: timing products ---------------------------------------------------------------------------------------- */
struct cost_run {
    const struct linear_cost *c;
    struct weight w;
    bf16 *weights, *x, *bias;
    void *y;
    int n_copy;
    const struct way *way;    // NULL: linear_fwd itself
    int split;                // with a way: number of parts of K, into fp32 partials in y
};
/* Allocate memory for timing products of c's sizes with split parts, and fill it with random numbers. Fewer rows may be timed, too: r->c is c. */
bool cost_open(struct cuda_device *cu, struct cost_run *r, const struct linear_cost *c, int split, struct error *err);
void cost_close(struct cuda_device *cu, struct cost_run *r);
/* Multiply by the k-th of the copies. act: of gate and up, into (n, n_out / 2) there, by one of our own forms; NULL: not so. */
bool cost_call(struct cuda_device *cu, struct cost_run *r, int k, bf16 *act, struct error *err);
/* Pseudo-random bf16 in (-1, 1). */
bool noise_fill(struct cuda_device *cu, bf16 *x, int64_t n, uint32_t salt, struct error *err);

/* --- gemm_race.cu ----------------------------------------------------------------------------------------------------------- */
/* Which of n ways is the fastest in a step of r's rows; -1: they cannot be timed now. */
int cost_race(struct cuda_device *cu, struct cost_run *r, const struct way *way, int n, struct error *err);
