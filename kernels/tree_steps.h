/* tree_steps.h - a sum over rows of W in parts (linear_bwd_tree), made of a back end's other operations
 *
 * The order of its sums is here and nowhere else, for all back ends. Also part of librollcall_cuda.so. The thread that drives the device. */
#pragma once
#include "kernels/ops.h"
/* A back end's own operations, not those of dev->op: a trace counts what is done here as linear_bwd_tree's time. */
struct tree_ways {
    bool (*linear_bwd_x)(struct device *dev, const struct linear_bwd_x *a, struct error *err);
    bool (*tree_sum)(struct device *dev, const struct tree_sum *a, struct error *err);
    bool (*mem_fill)(struct device *dev, const struct mem_fill *a, struct error *err);
};
/* Each part's chains, one added to the other in memory, then the tree. A part without rows is 0. */
MUST_USE bool linear_bwd_tree_steps(struct device *dev, const struct linear_bwd_tree *a, const struct tree_ways *ways, struct error *err);
/* Is the number of what is to be added a power of two up to SUM_PARTS_MAX? */
MUST_USE bool tree_sum_check(const struct tree_sum *a, struct error *err);
