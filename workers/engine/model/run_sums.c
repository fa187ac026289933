/* run_sums.c - backward sums in parts: dx = dy W where the rows of W are cut over a team
 *
 * A model with parts S adds over the rows of qkv, of gate and up and of the head's weight as it does over columns of the other two: S
 * sums in fp32, each of one part's rows, then the tree (ops.h, tree_sum), rounded once. A part is an S-th of the queries' rows, then of the
 * keys' and of the values'; or of gate and of up; or of the vocabulary. Each of these is one chain from 0, and they are added in this
 * order. A device of a team has some neighbouring parts, that is a branch of the tree. The gradient of a norm of each head, whose weight all
 * heads share, is a sum over heads and is cut likewise, where parts are of whole heads. */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/run_impl.h"
#include "workers/engine/model/team_impl.h"

int sums_own(const struct model *m)
{
    return m->parts / MAX(m->n_slice, 1);
}

/* Part p of the sum, to `to` (n, d) fp32. */
static bool part_make(struct model_run *r, float *to, const struct row_sum *s, int p, struct error *err)
{
    const struct model *m = r->m;
    size_t e = dtype_size(m->dtype);
    bool begun = false;
    for (int i = 0; i < s->n_seg; i++) {
        int64_t first = s->seg[i].at + p * s->seg[i].each, n_k = MIN(s->seg[i].each, s->seg[i].end - first);
        if (n_k <= 0)
            continue;
        if (!OP(m->dev, err, linear_bwd_x, .dx = to, .dy = (const char *)s->dy + (size_t)first * e, .w = s->w, .n = s->n, .lddy = s->lddy,
                .first = first, .n_k = n_k, .accumulate = begun, .f32 = true))
            return false;
        begun = true;
    }
    return begun || OP(m->dev, err, mem_fill, .y = to, .size_bytes = (size_t)(s->n * m->c.d_model) * sizeof *to);
}

/* The tree over this device's parts, to y: the whole sum, or on a team this rank's branch. */
static bool branch_make(struct model_run *r, const struct row_sum *s, void *y, enum dtype y_dtype, struct error *err)
{
    const struct model *m = r->m;
    struct tree_sum tree = { .y = y, .n_x = sums_own(m), .n = s->n, .d = m->c.d_model, .y_dtype = y_dtype, .dtype = m->dtype };
    if (tree.n_x == 1)
        return part_make(r, y, s, 0, err);
    for (int p = 0; p < tree.n_x; p++) {
        float *to = r->leaf + p * r->lim.max_tok * m->c.d_model;
        if (!part_make(r, to, s, p, err))
            return false;
        tree.x[p] = to;
    }
    return m->dev->op->tree_sum(m->dev, &tree, err);
}

bool row_sum(struct model_run *r, const struct row_sum *s, struct error *err)
{
    const struct model *m = r->m;
    void *y = s->accumulate ? r->dh : s->dx;    // nothing reads dh where a sum is added to what is there
    struct tree_sum all = { .y = y, .n = s->n, .d = m->c.d_model, .y_dtype = m->dtype, .dtype = m->dtype };
    if (r->peers ? !branch_make(r, s, team_part(r), DT_F32, err) || !team_sum(r, &all, err) : !branch_make(r, s, y, m->dtype, err))
        return false;
    return !s->accumulate || OP(m->dev, err, add_fwd, .y = s->dx, .a = s->dx, .b = y, .n = s->n * m->c.d_model, .dtype = m->dtype);
}

int norm_parts(const struct model *m)
{
    bool fit = m->parts > 1 && m->c.n_head % sums_own(m) == 0 && m->c.n_kv_head % sums_own(m) == 0;
    return m->c.qk_norm && !m->c.qk_norm_wide && fit ? sums_own(m) : 0;
}

bool norm_sum(struct model_run *r, float *dq, float *dk, struct error *err)
{
    const struct model *m = r->m;
    struct device *dev = m->dev;
    int own = norm_parts(m);
    int64_t hd = m->c.d_head;
    float *sum = r->dnorm + 2 * own * hd, *to[] = { dq, dk };
    struct tree_sum
        tree = { .y = r->peers ? team_part(r) : sum, .n_x = own, .n = 2, .d = hd, .ldx = own * hd, .y_dtype = DT_F32, .dtype = m->dtype },
        all = { .y = sum, .n = 2, .d = hd, .y_dtype = DT_F32, .dtype = m->dtype };
    for (int p = 0; p < own; p++)
        tree.x[p] = r->dnorm + p * hd;
    if (!dev->op->tree_sum(dev, &tree, err) || (r->peers && !team_sum(r, &all, err)))
        return false;
    for (int k = 0; k < 2; k++)
        if (to[k] && !OP(dev, err, axpy, .y = to[k], .x = sum + k * hd, .n = hd, .scale = 1))
            return false;
    return true;
}

bool product_sum(struct model_run *r, int64_t l, enum product which, void *dx, const void *dy, bool accumulate, struct error *err)
{
    const struct model *m = r->m;
    int own = sums_own(m);
    int64_t q = m->c.n_head * m->c.d_head, kv = m->c.n_kv_head * m->c.d_head, f = m->c.d_ff;
    struct row_sum s = { .dx = dx, .dy = dy, .w = linear_of(m, l, which).w, .n = r->n_tok, .accumulate = accumulate };
    const int64_t rows[2][3] = { { q, kv, kv }, { f, f, 0 } };
    const int64_t *n = rows[which == PRODUCT_QKV ? 0 : 1];
    for (int64_t at = 0; s.n_seg < 3 && n[s.n_seg] > 0; at += n[s.n_seg++]) {
        s.seg[s.n_seg].at = at;
        s.seg[s.n_seg].each = n[s.n_seg] / own;
        s.seg[s.n_seg].end = at + n[s.n_seg];
    }
    s.lddy = n[0] + n[1] + n[2];
    return row_sum(r, &s, err);
}

bool head_sum(struct model_run *r, void *dx, const void *dlogits, int64_t n, int64_t ld, struct error *err)
{
    const struct model *m = r->m;
    struct row_sum s = { .dx = dx, .dy = dlogits, .w = model_head_weight(m), .n = n, .lddy = ld, .n_seg = 1 };
    s.seg[0].each = model_vocab_part(m);
    s.seg[0].end = m->c.vocab;
    return row_sum(r, &s, err);
}
