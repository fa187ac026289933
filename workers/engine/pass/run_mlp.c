/* run_mlp.c - the second half of a block that is one MLP: y = Wd (act(g) u), [g | u] = Wgu x */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

static bool dense_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, void *y, const void *x, struct error *err)
{
    const struct model *m = r->m;
    return product_fwd(r, l, PRODUCT_GATE_UP, a->gu, x, p, err)
           && OP(m->dev, err, swiglu_fwd, .y = a->act, .gu = a->gu, .n = p->n, .f = m->c.d_ff, .act = m->c.act, .dtype = m->dtype)
           && product_fwd(r, l, PRODUCT_DOWN, y, a->act, p, err);
}

static bool dense_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void *dy,
                      struct error *err)
{
    return r->grads->down(r, a, l, grad, dy, err);
}

static bool dense_input_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, void *dx, const void *x,
                            bool accumulate, struct error *err)
{
    return product_bwd(r, l, PRODUCT_GATE_UP, grad, dx, a->gu, x, accumulate, err);
}

const struct mlp_kind mlp_dense = { .fwd = dense_fwd, .bwd = dense_bwd, .input_bwd = dense_input_bwd };
