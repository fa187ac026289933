/* run_adapter.c - a backward pass that makes gradients of an adapter alone, whose model's own weights are frozen
 *
 * lora_product.c adds the adapter's share to each product and makes its gradients (product_bwd). */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

static int adapter_piece(int64_t l)
{
    return (int)l;    // an adapter has no embedding
}

static float *adapter_place(UNUSED const struct grad_place *p, UNUSED int64_t at)
{
    return NULL;
}

static bool adapter_layer_clear(const struct model *m, const struct grad_place *p, UNUSED int64_t l, struct error *err)
{
    int64_t first, n = model_piece(m, p->piece, &first);
    return place_clear(m, p, first, first + n, err);
}

static bool adapter_product_w(UNUSED struct model_run *r, UNUSED int64_t l, UNUSED enum product which, UNUSED const struct grad_place *grad,
                              UNUSED const void *dy, UNUSED const void *x, UNUSED struct error *err)
{
    return true;
}

/* The adapter adds to dact, and needs act for it. */
static bool adapter_down(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void *dy,
                         struct error *err)
{
    const struct model *m = r->m;
    int64_t n = r->n_tok, f = m->c.d_ff;
    return (a->act != r->act || OP(m->dev, err, swiglu_fwd, .y = r->act, .gu = a->gu, .n = n, .f = f, .act = m->c.act, .dtype = m->dtype))
           && product_bwd(r, l, PRODUCT_DOWN, grad, r->dact, dy, a->act, false, err)
           && OP(m->dev, err, swiglu_bwd, .dgu = a->gu, .dy = r->dact, .gu = a->gu, .n = n, .f = f, .act = m->c.act, .dtype = m->dtype);
}

static bool adapter_head_in_parts(UNUSED const struct model *m, UNUSED const struct run_limits *lim)
{
    return false;    // the head is frozen
}

/* The adapter's share is added to each product by an operation of its own. */
static struct product_use adapter_use(UNUSED const struct model *m, UNUSED int64_t l, UNUSED enum product which,
                                      UNUSED const struct pass *p)
{
    return (struct product_use){ 0 };
}

static bool adapter_add(struct model_run *r, int64_t l, enum product which, void *y, const void *x, int64_t n, struct error *err)
{
    return lora_fwd(r->m, l, which, &r->lora, y, x, n, err);
}

static bool adapter_add_bwd(struct model_run *r, int64_t l, enum product which, const struct grad_place *grad, void *dx, const void *dy,
                            const void *x, struct error *err)
{
    return lora_bwd(r->m, l, which, &r->lora, grad->at, dx, dy, x, r->n_tok, err);
}

static bool adapter_embedding(UNUSED struct model_run *r, UNUSED const struct model_grad *g, UNUSED struct error *err)
{
    return true;
}

const struct grads_form grads_adapter = { .frozen = true,
                                          .head_in_parts = adapter_head_in_parts,
                                          .use = adapter_use,
                                          .add = adapter_add,
                                          .add_bwd = adapter_add_bwd,
                                          .embedding = adapter_embedding,
                                          .piece = adapter_piece,
                                          .place = adapter_place,
                                          .layer_clear = adapter_layer_clear,
                                          .product_w = adapter_product_w,
                                          .down = adapter_down };
