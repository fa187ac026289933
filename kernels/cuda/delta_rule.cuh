/* delta_rule.cuh - the gated delta rule's forward kernel, as its backward needs it, too */
#pragma once
#include "kernels/cuda/delta.cuh"
/* kept NULL: o (n, n_v d_v) is written. Else nothing but the states before every DELTA_KEEP-th token of each sequence but the first one,
 * (of them)(n_v, d_k, d_v). */
struct rule_fwd {
    rule_in in;
    void *o;
    float *kept;
    struct delta_seqs of;
};
bool cuda_rule_fwd(struct cuda_device *cu, const rule_fwd *a, enum dtype t, const char *op, struct error *err);
#ifdef __CUDACC__
/* Which of the kept states is that before token i of sequence p, i > 0 a multiple of DELTA_KEEP: in all they are no more than rows
 * / DELTA_KEEP. */
__device__ static inline int64_t kept_at(const delta_span &p, int64_t i)
{
    return p.first / DELTA_KEEP + i / DELTA_KEEP - 1;
}
#endif
