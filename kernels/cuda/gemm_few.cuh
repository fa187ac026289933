/* gemm_few.cuh - products of few rows by Hopper's instructions (gemm_few.cu), one of the ways of gemm.cu's plans */
#pragma once
#include "kernels/cuda/cuda.h"
#define FEW_ROWS_MAX 128
#define FEW_FORMS 9    // numbers of outputs per block

struct few_call {
    const void *weight, *x, *bias;    // bf16; bias (n_out) or NULL. weight and x begin at multiples of 16 bytes
    void *y;                          // (rows, n_out) rows ldy apart; split > 1: (split, rows, n_out) in fp32
    int64_t rows, n_out, n_in, ldx, ldy;
    int split;    // parts of K
    bool f32;     // y is fp32, else bf16
    bool pair;    // the weight is [gate: n_out / 2 | up: n_out / 2], and y (rows, n_out / 2) act(gate) up
    enum gate_act act;
};
/* Can such a product be run? */
bool few_fits(const struct cuda_device *cu, int64_t rows, int64_t n_out, int64_t n_in, int split);
/* Is a form worth timing for this size? */
bool few_form_suits(int form, int64_t n_out, int split, int n_sm);
/* Outputs per block of a form. */
int few_width(int form);
/* Launch it in one of FEW_FORMS forms, which differ in speed only. A pair needs a form other than 0. */
bool few_run(struct cuda_device *cu, const struct few_call *c, int form, struct error *err);
