#include "kernels/tree_steps.h"

/* Part p of the sum, to `to` (n, n_in) fp32. */
static bool part_make(struct device *dev, const struct linear_bwd_tree *a, const struct tree_ways *ways, float *to, int p,
                      struct error *err)
{
    bool begun = false;
    for (int i = 0; i < a->n_seg; i++) {
        int64_t first = a->seg[i].at + p * a->seg[i].each, n_k = MIN(a->seg[i].each, a->seg[i].end - first);
        if (n_k <= 0)
            continue;
        struct linear_bwd_x x = { .dx = to,
                                  .dy = (const char *)a->dy + (size_t)first * dtype_size(a->w->dtype),
                                  .w = a->w,
                                  .n = a->n,
                                  .lddy = a->lddy,
                                  .first = first,
                                  .n_k = n_k,
                                  .accumulate = begun,
                                  .f32 = true };
        if (!ways->linear_bwd_x(dev, &x, err))
            return false;
        begun = true;
    }
    struct mem_fill zero = { .y = to, .size_bytes = (size_t)(a->n * a->w->n_in) * sizeof *to };
    return begun || ways->mem_fill(dev, &zero, err);
}

bool linear_bwd_tree_steps(struct device *dev, const struct linear_bwd_tree *a, const struct tree_ways *ways, struct error *err)
{
    int64_t d = a->w->n_in;
    struct tree_sum tree = { .y = a->y, .n_x = a->n_part, .n = a->n, .d = d, .y_dtype = a->y_dtype, .dtype = a->w->dtype };
    if (!tree_sum_check(&tree, err))
        return false;
    if (a->n_part == 1 && a->y_dtype == DT_F32)
        return part_make(dev, a, ways, a->y, 0, err);
    for (int p = 0; p < a->n_part; p++) {
        float *to = a->part + p * a->n * d;
        if (!part_make(dev, a, ways, to, p, err))
            return false;
        tree.x[p] = to;
    }
    return ways->tree_sum(dev, &tree, err);
}

bool tree_sum_check(const struct tree_sum *a, struct error *err)
{
    if (a->n_x < 1 || a->n_x > SUM_PARTS_MAX || (a->n_x & (a->n_x - 1)))
        return error_set(err, ERR_SHAPE, "tree_sum: %d parts; 1, 2, 4 and %d are possible", a->n_x, SUM_PARTS_MAX);
    return true;
}
