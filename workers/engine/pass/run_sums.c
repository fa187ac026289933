/* run_sums.c - a layer's products, forward and backward; where the rows of W are cut over a team, dx = dy W is a sum of parts
 *
 * A model with parts S adds over the rows of qkv, of gate and up and of the head's weight as it does over columns of the other two: S
 * sums in fp32, each of one part's rows, then the tree (ops.h, tree_sum), rounded once. A part is an S-th of the queries' rows, then of the
 * keys' and of the values'; or of gate and of up; or of the vocabulary. Each of these is one chain from 0, and they are added in this
 * order. A device of a team has some neighbouring parts, that is a branch of the tree. The gradient of a norm of each head, whose weight
 * all heads share, is a sum over heads and is cut likewise, where parts are of whole heads. */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/lora_product.h"
#include "workers/engine/pass/run_impl.h"

struct linear linear_of(const struct model *m, int64_t l, enum product which)
{
    const struct layer_at *at = &m->at[l];
    const struct layer_w *w = model_layer(m, l);
    int64_t d = m->c.d_model, in = config_in_width(&m->c, at->conv != AT_NONE), mix = config_mix_width(&m->c, at->conv != AT_NONE);
    switch (which) {
    case PRODUCT_QKV: return (struct linear){ w->qkv, at->qkv, at->qkv_bias, in, d };
    case PRODUCT_O: return (struct linear){ w->o, at->o, at->o_bias, d, mix };
    case PRODUCT_GATE_UP: return (struct linear){ w->gate_up, at->gate_up, at->gate_up_bias, 2 * m->c.d_ff, d };
    case PRODUCT_DOWN: return (struct linear){ w->down, at->down, at->down_bias, d, m->c.d_ff };
    case PRODUCT_N: break;
    }
    return (struct linear){ 0 };
}

int sums_own(const struct model *m)
{
    return m->parts / MAX(m->n_slice, 1);
}

/* s->y (n, d) = the sum, or += with `accumulate`. The device's parts are the whole sum, or on a team this rank's branch. */
static bool rows_sum(struct model_run *r, struct linear_bwd_tree *s, bool accumulate, struct error *err)
{
    const struct model *m = r->m;
    void *dx = s->y, *y = accumulate ? r->dh : dx;    // nothing reads dh where a sum is added to what is there
    struct tree_sum all = { .y = y, .n = s->n, .d = m->c.d_model, .y_dtype = m->dtype, .dtype = m->dtype };
    s->y_dtype = m->dtype;
    s->y = r->form->part(r, y, &s->y_dtype);
    s->part = r->leaf;
    s->n_part = sums_own(m);
    return m->dev->op->linear_bwd_tree(m->dev, s, err) && r->form->sum(r, &all, err)
           && (!accumulate || OP(m->dev, err, add_fwd, .y = dx, .a = dx, .b = y, .n = s->n * m->c.d_model, .dtype = m->dtype));
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
    struct tree_sum tree = { .n_x = own, .n = 2, .d = hd, .ldx = own * hd, .y_dtype = DT_F32, .dtype = m->dtype },
                    all = { .y = sum, .n = 2, .d = hd, .y_dtype = DT_F32, .dtype = m->dtype };
    tree.y = r->form->part(r, sum, &tree.y_dtype);
    for (int p = 0; p < own; p++)
        tree.x[p] = r->dnorm + p * hd;
    if (!dev->op->tree_sum(dev, &tree, err) || !r->form->sum(r, &all, err))
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
    struct linear_bwd_tree s = { .y = dx, .dy = dy, .w = linear_of(m, l, which).w, .n = r->n_tok };
    const int64_t rows[2][3] = { { q, kv, kv }, { f, f, 0 } };
    const int64_t *n = rows[which == PRODUCT_QKV ? 0 : 1];
    for (int64_t at = 0; s.n_seg < 3 && n[s.n_seg] > 0; at += n[s.n_seg++]) {
        s.seg[s.n_seg].at = at;
        s.seg[s.n_seg].each = n[s.n_seg] / own;
        s.seg[s.n_seg].end = at + n[s.n_seg];
    }
    s.lddy = n[0] + n[1] + n[2];
    return rows_sum(r, &s, accumulate, err);
}

bool head_sum(struct model_run *r, void *dx, const void *dlogits, int64_t n, int64_t ld, struct error *err)
{
    const struct model *m = r->m;
    struct linear_bwd_tree s = { .y = dx, .dy = dlogits, .w = model_head_weight(m), .n = n, .lddy = ld, .n_seg = 1 };
    s.seg[0].each = model_vocab_part(m);
    s.seg[0].end = m->c.vocab;
    return rows_sum(r, &s, false, err);
}

bool product_fwd(struct model_run *r, int64_t l, enum product which, void *y, const void *x, const struct pass *pass, struct error *err)
{
    struct linear w = linear_of(r->m, l, which);
    return r->form->product(r, l, which, &w, y, x, pass, r->grads->use(r->m, l, which, pass), err);
}

bool product_bwd_x(struct model_run *r, int64_t l, enum product which, void *dx, const void *dy, bool accumulate, struct error *err)
{
    const struct model *m = r->m;
    return sums_in_parts(m, which)
               ? product_sum(r, l, which, dx, dy, accumulate, err)
               : OP(m->dev, err, linear_bwd_x, .dx = dx, .dy = dy, .w = linear_of(m, l, which).w, .n = r->n_tok, .accumulate = accumulate);
}

bool product_bwd(struct model_run *r, int64_t l, enum product which, const struct grad_place *grad, void *dx, const void *dy, const void *x,
                 bool accumulate, struct error *err)
{
    return r->grads->product_w(r, l, which, grad, dy, x, err) && product_bwd_x(r, l, which, dx, dy, accumulate, err)
           && r->grads->add_bwd(r, l, which, grad, dx, dy, x, err);
}
