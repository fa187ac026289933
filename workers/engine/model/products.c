#include "workers/engine/model/products.h"
#include "kernels/ops.h"
#include "workers/engine/model/model_impl.h"

void layer_products(const struct model *m, const struct layer_at *at, struct model_product out[LAYER_PRODUCTS])
{
    const struct model_config *c = &m->c;
    int64_t d = c->d_model, q = c->n_head * c->d_head, kv = c->n_kv_head * c->d_head;
    int own = m->parts / MAX(1, m->n_slice), one = MIN(1, m->parts);    // a slice has some of the parts; outputs are whole anywhere
    bool part = m->n_slice > 1;                                         // of a sum over a team's devices, which adds the bias
    const struct model_product all[LAYER_PRODUCTS] = {
        { "qkv", { q + 2 * kv, d, one, at->qkv_bias != AT_NONE, false }, at->qkv },
        { "o", { d, q, own, !part && at->o_bias != AT_NONE, part }, at->o },
        { "gate_up", { 2 * c->d_ff, d, one, at->gate_up_bias != AT_NONE, false }, at->gate_up },
        { "down", { d, c->d_ff, own, !part && at->down_bias != AT_NONE, part }, at->down },
    };
    for (int i = 0; i < LAYER_PRODUCTS; i++)
        out[i] = all[i];
}

struct model_product head_product(const struct model *m)
{
    return (struct model_product){ "head", { m->c.vocab, m->c.d_model, MIN(1, m->parts), false, true }, m->head_at };
}

int model_products(const struct model *m, struct model_product out[MODEL_PRODUCTS])
{
    int n = 0;
    if (m->own.first < m->own.end) {
        layer_products(m, &m->at[m->own.first], out);
        n = LAYER_PRODUCTS;
    }
    if (m->own.head)
        out[n++] = head_product(m);
    return n;
}

struct weight *product_weight_new(const struct model *m, const struct model_product *p, const void *mem, bool for_bwd, struct error *err)
{
    const struct choice *ignored;
    const struct product_kind *k = &p->kind;
    if (m->dtype == DT_BF16 && m->dev->choices && !product_choose(m->dev, p->name, k, &ignored, err))
        return NULL;
    return weight_new(m->dev, mem, m->dtype, k->n_out, k->n_in, k->parts, for_bwd, err);
}
