/* delta_span.h - where a sequence of a gated delta net is, read in host memory or on a device */
#pragma once
#include "kernels/ops.h"

/* Sequence s: its rows, and its slot; state NULL: it has none. */
struct delta_span {
    int64_t first, end;
    float *state;
    bool fresh;     // it begins with zeros
    bool absent;    // its rows are no sequence
};
static inline BOTH_SIDES struct delta_span delta_span_of(const struct delta_seqs *of, struct delta_heads h, int64_t s)
{
    struct delta_span p = { .first = of->seq ? of->seq[s] : s, .end = of->seq ? of->seq[s + 1] : s + 1, .fresh = true };
    if (!of->slot)
        return p;
    p.absent = of->slot[s] < 0;
    p.state = p.absent ? NULL : of->state + of->slot[s] * delta_state_floats(h);
    p.fresh = p.absent || of->pos[p.first] == 0;
    return p;
}
