/* group.cuh - products by expert: group.cu's calls, and the form of them with Hopper's instructions */
#pragma once
#include "kernels/cuda/cuda.h"
enum group_form {
    GROUP_FWD,      // y = x W_g^T
    GROUP_BWD_X,    // dx = dy W_g
    GROUP_BWD_W,    // dw_g = dy^T x
};
/* left: x, or dy; right: W, or x of the gradient by W; out: y, dx or dw. n rows, of which first[g] .. first[g + 1] - 1 are group g's, and
 * matrices of (n_out, n_in). */
struct group_call {
    const void *left, *right;
    void *out;
    const int32_t *first;    // device
    int64_t n, n_group, n_out, n_in;
    bool add;    // to what is there
};
/* group_hopper.cu: does it take products of these sizes? It gives them the bits of group.cu's own kernel. */
bool group_hopper_fits(const struct cuda_device *cu, const struct group_call *c, enum group_form form);
bool group_hopper_run(struct cuda_device *cu, const struct group_call *c, enum group_form form, const char *op, struct error *err);
