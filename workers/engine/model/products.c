#include "workers/engine/model/products.h"
#include "kernels/ops.h"
#include "workers/engine/model/model_impl.h"

int layer_products(const struct model *m, const struct layer_at *at, struct model_product out[LAYER_PRODUCTS])
{
    const struct model_config *c = &m->c;
    bool sparse = at->router != AT_NONE, delta = at->conv != AT_NONE;
    int64_t d = c->d_model, f = sparse ? c->experts.d_ff : c->d_ff;
    int64_t n_group = sparse ? c->experts.n : 0;
    int own = m->parts / MAX(1, m->n_slice), one = MIN(1, m->parts);    // a slice has some of the parts; outputs are whole anywhere
    bool part = m->n_slice > 1;                                         // of a sum over a team's devices, which adds the bias
    const struct model_product all[LAYER_PRODUCTS] = {
        { "qkv", { config_in_width(c, delta), d, one, at->qkv_bias != AT_NONE, false }, at->qkv, 0 },
        { "o", { d, config_mix_width(c, delta), delta ? one : own, !part && at->o_bias != AT_NONE, part }, at->o, 0 },
        { "gate_up", { 2 * f, d, one, at->gate_up_bias != AT_NONE, false }, at->gate_up, n_group },
        { "down", { d, f, own, !part && at->down_bias != AT_NONE, part }, at->down, n_group },
        { "router", { c->experts.n, d, one, false, true }, at->router, 0 },
    };
    int n = sparse ? LAYER_PRODUCTS : LAYER_PRODUCTS - 1;
    for (int i = 0; i < n; i++)
        out[i] = all[i];
    return n;
}

int head_products(const struct model *m, struct model_product out[1])
{
    *out = (struct model_product){ "head", { m->c.vocab, m->c.d_model, MIN(1, m->parts), false, true }, m->head_at };
    return m->own.head;
}

int model_products(const struct model *m, struct model_product out[MODEL_PRODUCTS])
{
    int n = 0;
    if (m->own.first < m->own.end) {
        int all = layer_products(m, &m->at[m->own.first], out);
        for (int i = 0; i < all; i++)
            if (out[i].n_group == 0)
                out[n++] = out[i];
    }
    return n + head_products(m, out + n);
}

struct weight *product_weight_new(const struct model *m, const struct model_product *p, const void *mem, bool for_bwd, struct error *err)
{
    const struct choice *ignored;
    const struct product_kind *k = &p->kind;
    if (p->n_group)
        return weight_new_grouped(m->dev, mem, m->dtype, p->n_group, k->n_out, k->n_in, for_bwd, err);
    if (m->dtype == DT_BF16 && m->dev->choices && !product_choose(m->dev, p->name, k, &ignored, err))
        return NULL;
    return weight_new(m->dev, mem, m->dtype, k->n_out, k->n_in, k->parts, for_bwd, err);
}
