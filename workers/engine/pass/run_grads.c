/* run_grads.c - a backward pass that makes gradients of all weights */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/products.h"
#include "workers/engine/pass/run_impl.h"

static int all_piece(int64_t l)
{
    return (int)l + 1;    // after the embedding's
}

static float *all_place(const struct grad_place *p, int64_t at)
{
    return place_of(p, at);
}

/* The layer's matrices are written over; everything else is added to. */
static bool all_layer_clear(const struct model *m, const struct grad_place *p, int64_t l, struct error *err)
{
    struct model_product matrix[LAYER_PRODUCTS];
    int64_t first, n = model_piece(m, p->piece, &first), from = first;
    int n_matrix = layer_products(m, &m->at[l], matrix);
    for (int i = 0; i < n_matrix; i++) {
        if (!place_clear(m, p, from, matrix[i].at, err))
            return false;
        from = matrix[i].at + matrix[i].kind.n_out * matrix[i].kind.n_in * MAX(matrix[i].n_group, (int64_t)1);
    }
    return place_clear(m, p, from, first + n, err);
}

static bool all_product_w(struct model_run *r, int64_t l, enum product which, const struct grad_place *grad, const void *dy, const void *x,
                          struct error *err)
{
    const struct model *m = r->m;
    struct linear p = linear_of(m, l, which);
    return OP(m->dev, err, linear_bwd_w, .dw = place_of(grad, p.at), .dbias = place_or_null(r, grad, p.bias_at), .dy = dy, .x = x,
              .n = r->n_tok, .n_out = p.n_out, .n_in = p.n_in, .dtype = m->dtype, .set = grad->set, .any_cut = m->parts > 0);
}

/* The product's input is made again by its backward, unless it was kept. */
static bool all_down(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void *dy, struct error *err)
{
    const struct model *m = r->m;
    return product_bwd_x(r, l, PRODUCT_DOWN, r->dact, dy, false, err)
           && OP(m->dev, err, swiglu_bwd, .dgu = a->gu, .y = a->act != r->act ? NULL : r->act, .dy = r->dact, .gu = a->gu, .n = r->n_tok,
                 .f = m->c.d_ff, .act = m->c.act, .dtype = m->dtype)
           && all_product_w(r, l, PRODUCT_DOWN, grad, dy, a->act, err);
}

/* Where head and embedding are one tensor, the embedding's gradient is one of the parts. Otherwise a piece that is set serves itself. */
static bool all_head_in_parts(const struct model *m, const struct run_limits *lim)
{
    return m->head_at == m->embed_at || (run_head_rows(m, lim) < lim->max_tok && !lim->by_piece);
}

/* Does a norm that adds it to the stream come right after this product, and nothing else read it? The backward pass reads only what norms
 * after a half were given. */
static bool is_for_norm(const struct model *m, int64_t l, enum product which)
{
    bool last = l + 1 == m->own.end;
    return which == PRODUCT_O ? m->at[l].post1 == AT_NONE && m->at[l].ln2 != AT_NONE
                              : which == PRODUCT_DOWN && m->at[l].post2 == AT_NONE && (last ? m->own.head : m->at[l + 1].ln1 != AT_NONE);
}

/* Does nothing but swiglu_fwd read this product? In training the backward pass does. */
static bool is_for_gate(enum product which, const struct pass *p)
{
    return which == PRODUCT_GATE_UP && p->decode;
}

static struct product_use all_use(const struct model *m, int64_t l, enum product which, const struct pass *p)
{
    return (struct product_use){ is_for_norm(m, l, which), is_for_gate(which, p) };
}

static bool all_add(UNUSED struct model_run *r, UNUSED int64_t l, UNUSED enum product which, UNUSED void *y, UNUSED const void *x,
                    UNUSED int64_t n, UNUSED struct error *err)
{
    return true;
}

static bool all_add_bwd(UNUSED struct model_run *r, UNUSED int64_t l, UNUSED enum product which, UNUSED const struct grad_place *grad,
                        UNUSED void *dx, UNUSED const void *dy, UNUSED const void *x, UNUSED struct error *err)
{
    return true;
}

const struct grads_form grads_all = { .head_in_parts = all_head_in_parts,
                                      .use = all_use,
                                      .add = all_add,
                                      .add_bwd = all_add_bwd,
                                      .embedding = embedding_bwd,
                                      .piece = all_piece,
                                      .place = all_place,
                                      .layer_clear = all_layer_clear,
                                      .product_w = all_product_w,
                                      .down = all_down };
