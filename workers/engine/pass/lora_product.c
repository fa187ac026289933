/* lora_product.c - the low-rank side of a layer's products, forward and backward (arXiv 2106.09685, section 4.1)
 *
 *   low = s A x        y += B low               (each rounded to the dtype)
 *   dB += dy^T low     dlow = s B^T dy          dA += dlow^T x     dx += A^T dlow
 *
 * The scale multiplies the narrow side. B's product is rounded and then added, row by row, as PEFT does. */
#include "workers/engine/pass/lora_product.h"
#include "workers/engine/model/model_impl.h"

static void *at_column(const struct model *m, const void *x, int64_t column)
{
    return (char *)x + (size_t)column * dtype_size(m->dtype);
}

/* x *= s, (n) elements. */
static bool low_scale(const struct model *m, void *x, int64_t n, struct error *err)
{
    float s = m->lora->scale;
    return s == 1 || OP(m->dev, err, cast, .y = x, .x = x, .n = n, .scale = s, .y_dtype = m->dtype, .x_dtype = m->dtype);
}

/* low = s A x. */
static bool low_fwd(const struct model *m, const struct lora_product *p, void *low, const void *x, int64_t n, struct error *err)
{
    return OP(m->dev, err, linear_fwd, .y = low, .x = x, .w = p->a, .n = n, .y_dtype = m->dtype)
           && low_scale(m, low, n * p->n_part * m->lora->c.rank, err);
}

/* Do the modules with an adapter make all columns of the product? */
static bool covers(const struct lora_product *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->n_part; i++)
        n += p->part[i].n_out;
    return n == p->n_out;
}

/* What the model's adapter has for this product; NULL: nothing. */
static const struct lora_product *product_of(const struct model *m, int64_t layer, enum product which)
{
    const struct lora_product *p = &m->lora->layer[layer].product[which];
    return p->n_part > 0 ? p : NULL;
}

bool lora_fwd(const struct model *m, int64_t layer, enum product which, const struct lora_scratch *s, void *y, const void *x, int64_t n,
              struct error *err)
{
    const struct lora_product *p = product_of(m, layer, which);
    if (!p)
        return true;
    int64_t rank = m->lora->c.rank, width = p->n_part * rank;
    size_t e = dtype_size(m->dtype);
    if (!low_fwd(m, p, s->low, x, n, err))
        return false;
    for (int64_t row = 0; row < n; row += s->rows) {
        int64_t rows = MIN(s->rows, n - row);
        if (!covers(p) && !OP(m->dev, err, mem_fill, .y = s->up, .size_bytes = (size_t)(rows * p->n_out) * e))
            return false;
        for (int i = 0; i < p->n_part; i++)
            if (!OP(m->dev, err, linear_fwd, .y = at_column(m, s->up, p->part[i].out_at), .x = at_column(m, s->low, row * width + i * rank),
                    .w = p->part[i].b, .n = rows, .ldx = width, .ldy = p->n_out, .y_dtype = m->dtype))
                return false;
        void *to = at_column(m, y, row * p->n_out);
        if (!OP(m->dev, err, add_fwd, .y = to, .a = to, .b = s->up, .n = rows * p->n_out, .dtype = m->dtype))
            return false;
    }
    return true;
}

bool lora_bwd(const struct model *m, int64_t layer, enum product which, const struct lora_scratch *s, float *grad, void *dx, const void *dy,
              const void *x, int64_t n, struct error *err)
{
    const struct lora_product *p = product_of(m, layer, which);
    if (!p)
        return true;
    int64_t rank = m->lora->c.rank, width = p->n_part * rank, first = m->lora->flat.piece_at[layer];
    if (!low_fwd(m, p, s->low, x, n, err))
        return false;
    for (int i = 0; i < p->n_part; i++) {
        const struct lora_part *b = &p->part[i];
        const void *dout = at_column(m, dy, b->out_at);
        if (!OP(m->dev, err, linear_bwd_w, .dw = grad + (b->at - first), .dy = dout, .x = at_column(m, s->low, i * rank), .n = n,
                .n_out = b->n_out, .n_in = rank, .lddy = p->n_out, .ldx = width, .dtype = m->dtype)
            || !OP(m->dev, err, linear_bwd_x, .dx = at_column(m, s->dlow, i * rank), .dy = dout, .w = b->b, .n = n, .ldx = width,
                   .lddy = p->n_out))
            return false;
    }
    return low_scale(m, s->dlow, n * width, err)
           && OP(m->dev, err, linear_bwd_w, .dw = grad + (p->at - first), .dy = s->dlow, .x = x, .n = n, .n_out = width, .n_in = p->n_in,
                 .dtype = m->dtype)
           && OP(m->dev, err, linear_bwd_x, .dx = dx, .dy = s->dlow, .w = p->a, .n = n, .accumulate = true);
}
