/* run_experts.c - the second half of a block whose MLP is a choice among many (a mixture of experts)
 *
 *   logits = Wr h in fp32        k experts e of each row, weights w_e        y = sum over its e, ascending, of w_e Wd_e (silu(g_e) u_e)
 *
 * The pairs of row and expert are sorted by expert, so each matrix multiplies the rows that chose it. Everything that a row gets is its
 * own: its logits and each element of its experts' products are one chain whatever else is in the batch, and its sum has one order. So
 * the sampler and the trainer choose the same experts, since their rows have the same bits. An expert's gradient is one sum over its rows
 * in the batch, in their order.
 *
 * The gradient by w_e is <dy, Wd_e a> = <Wd_e' dy, a>: it is taken where rows are narrow, and what experts gave need not be kept. */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

/* Rows of x (n_row, d) to their experts: r->pairs. */
static bool pairs_gather(struct model_run *r, const struct routes *to, const void *x, int64_t n_row, struct error *err)
{
    const struct model *m = r->m;
    return OP(m->dev, err, rows_gather, .y = r->pairs, .table = x, .row = to->row, .n = n_row * m->c.experts.k, .n_row = n_row,
              .d = m->c.d_model, .dtype = m->dtype);
}

static bool experts_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, void *y, const void *x,
                        struct error *err)
{
    bool ok = false;
    const struct model *m = r->m;
    const struct model_config *c = &m->c;
    struct device *dev = m->dev;
    const struct layer_w *w = model_layer(m, l);
    const struct routes *to = &a->to;
    int64_t n = p->n, e = c->experts.n, k = c->experts.k;
    int64_t *load = r->load && p->counts ? r->load + l * e : NULL;
    TRY(OP(dev, err, linear_fwd, .y = to->logits, .x = x, .w = w->router, .n = n, .y_dtype = DT_F32));
    TRY(OP(dev, err, route_fwd, .expert = to->expert, .weight = to->weight, .logits = to->logits, .n = n, .n_expert = e, .k = k,
           .normalise = c->experts.normalise, .scale = 1));
    TRY(OP(dev, err, group_rows, .first = to->first, .row = to->row, .place = to->place, .load = load, .expert = to->expert, .n = n,
           .n_expert = e, .k = k));
    TRY(pairs_gather(r, to, x, n, err));
    TRY(OP(dev, err, group_fwd, .y = a->gu, .x = r->pairs, .w = w->gate_up, .first = to->first, .n = n * k));
    TRY(OP(dev, err, swiglu_fwd, .y = a->act, .gu = a->gu, .n = n * k, .f = c->experts.d_ff, .act = c->act, .dtype = m->dtype));
    TRY(OP(dev, err, group_fwd, .y = r->pairs, .x = a->act, .w = w->down, .first = to->first, .n = n * k));
    TRY(OP(dev, err, combine_fwd, .y = y, .x = r->pairs, .weight = to->weight, .place = to->place, .n = n, .k = k, .d = c->d_model,
           .dtype = m->dtype));
    ok = true;
out:
    return ok;
}

static bool experts_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void *dy,
                        struct error *err)
{
    bool ok = false;
    const struct model *m = r->m;
    const struct model_config *c = &m->c;
    struct device *dev = m->dev;
    const struct routes *to = &a->to;
    int64_t n = r->n_tok, k = c->experts.k, f = c->experts.d_ff;
    TRY(pairs_gather(r, to, dy, n, err));
    TRY(OP(dev, err, group_bwd_x, .dx = r->dact, .dy = r->pairs, .w = model_layer(m, l)->down, .first = to->first, .n = n * k));
    TRY(a->act != r->act || OP(dev, err, swiglu_fwd, .y = r->act, .gu = a->gu, .n = n * k, .f = f, .act = c->act, .dtype = m->dtype));
    TRY(OP(dev, err, combine_bwd, .dweight = r->dweight, .x = a->act, .dx = r->dact, .weight = to->weight, .place = to->place, .n = n,
           .k = k, .f = f, .dtype = m->dtype));
    TRY(r->grads->frozen
        || OP(dev, err, group_bwd_w, .dw = place_of(grad, m->at[l].down), .dy = r->pairs, .x = a->act, .first = to->first, .n = n * k,
              .n_group = c->experts.n, .n_out = c->d_model, .n_in = f, .dtype = m->dtype, .set = grad->set));
    TRY(OP(dev, err, swiglu_bwd, .dgu = a->gu, .dy = r->dact, .gu = a->gu, .n = n * k, .f = f, .act = c->act, .dtype = m->dtype));
    ok = true;
out:
    return ok;
}

static bool experts_input_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, void *dx, const void *x,
                              bool accumulate, struct error *err)
{
    bool ok = false;
    const struct model *m = r->m;
    const struct model_config *c = &m->c;
    struct device *dev = m->dev;
    const struct layer_w *w = model_layer(m, l);
    const struct routes *to = &a->to;
    int64_t n = r->n_tok, e = c->experts.n, k = c->experts.k, d = c->d_model;
    BUG_IF(accumulate, "experts that read the stream without a norm");
    if (!r->grads->frozen) {
        TRY(pairs_gather(r, to, x, n, err));
        TRY(OP(dev, err, group_bwd_w, .dw = place_of(grad, m->at[l].gate_up), .dy = a->gu, .x = r->pairs, .first = to->first, .n = n * k,
               .n_group = e, .n_out = 2 * c->experts.d_ff, .n_in = d, .dtype = m->dtype, .set = grad->set));
    }
    TRY(OP(dev, err, group_bwd_x, .dx = r->pairs, .dy = a->gu, .w = w->gate_up, .first = to->first, .n = n * k));
    TRY(OP(dev, err, combine_fwd, .y = dx, .x = r->pairs, .place = to->place, .n = n, .k = k, .d = d, .dtype = m->dtype));
    TRY(OP(dev, err, route_bwd, .dlogits = r->droute, .dweight = r->dweight, .logits = to->logits, .expert = to->expert, .n = n,
           .n_expert = e, .k = k, .normalise = c->experts.normalise, .scale = 1, .dtype = m->dtype));
    TRY(r->grads->frozen
        || OP(dev, err, linear_bwd_w, .dw = place_of(grad, m->at[l].router), .dy = r->droute, .x = x, .n = n, .n_out = e, .n_in = d,
              .dtype = m->dtype, .set = grad->set));
    TRY(OP(dev, err, linear_bwd_x, .dx = dx, .dy = r->droute, .w = w->router, .n = n, .accumulate = true));
    ok = true;
out:
    return ok;
}

const struct mlp_kind mlp_experts = { .fwd = experts_fwd, .bwd = experts_bwd, .input_bwd = experts_input_bwd };
