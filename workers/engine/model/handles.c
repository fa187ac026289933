/* handles.c - a device's handles on the matrices of a model's weights (ops.h: struct weight), which are remade or refreshed as weights move
 * or change */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/products.h"

void layer_handles_free(struct model *m, struct layer_w *w)
{
    weight_free(m->dev, w->qkv);
    weight_free(m->dev, w->o);
    weight_free(m->dev, w->gate_up);
    weight_free(m->dev, w->down);
    weight_free(m->dev, w->router);
    *w = (struct layer_w){ 0 };
}

void model_handles_free(struct model *m)
{
    for (int64_t l = 0; m->layer && l < m->c.n_layer; l++)
        layer_handles_free(m, &m->layer[l]);
    weight_free(m->dev, m->head);
    m->head = NULL;
}

bool layer_handles_new(struct model *m, struct layer_w *w, const char *mem, int64_t first, const struct layer_at *at, struct error *err)
{
    struct weight **const handle[LAYER_PRODUCTS] = { &w->qkv, &w->o, &w->gate_up, &w->down, &w->router };
    struct model_product p[LAYER_PRODUCTS];
    for (int i = 0, n = layer_products(m, at, p); i < n; i++)
        if (!(*handle[i] = product_weight_new(m, &p[i], mem + (size_t)(p[i].at - first) * dtype_size(m->dtype), m->for_bwd, err)))
            return false;
    return true;
}

bool head_handle_new(const struct model *m, struct weight **head, const char *mem, int64_t first, struct error *err)
{
    struct model_product p;
    for (int i = 0, n = head_products(m, &p); i < n; i++)
        if (!(*head = product_weight_new(m, &p, mem + (size_t)(p.at - first) * dtype_size(m->dtype), m->for_bwd, err)))
            return false;
    return true;
}

bool layer_handles_refresh(struct model *m, const struct layer_w *w, struct error *err)
{
    return weight_refresh(m->dev, w->qkv, err) && weight_refresh(m->dev, w->o, err) && weight_refresh(m->dev, w->gate_up, err)
           && weight_refresh(m->dev, w->down, err) && (!w->router || weight_refresh(m->dev, w->router, err));
}

bool model_handles_new(struct model *m, struct error *err)
{
    for (int64_t l = m->own.first; l < m->own.end; l++)
        if (!layer_handles_new(m, &m->layer[l], m->weights, 0, &m->at[l], err))
            return false;
    return head_handle_new(m, &m->head, m->weights, 0, err);
}

bool model_has_handles(const struct model *m)
{
    return m->layer[m->own.first].qkv != NULL;
}

bool model_want_bwd(struct model *m, struct error *err)
{
    if (m->for_bwd)
        return true;
    BUG_IF(m->base, "the base of a view that is trained must have been made for it");
    model_handles_free(m);
    m->for_bwd = true;
    return model_handles_new(m, err) && m->trains->handles(m, err);
}

bool model_handles_refresh(struct model *m, struct error *err)
{
    for (int64_t l = m->own.first; l < m->own.end; l++)
        if (!layer_handles_refresh(m, &m->layer[l], err))
            return false;
    return !m->head || weight_refresh(m->dev, m->head, err);
}
