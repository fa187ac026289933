#include "workers/engine/model/kv.h"
#include <inttypes.h>
#include <stdlib.h>
#include "workers/engine/model/model_impl.h"

struct kv_pool *kv_pool_new(const struct model *m, int64_t n_page, void *mem, struct error *err)
{
    if (n_page < 1 || n_page > INT32_MAX / m->dev->kv_page_tok) {
        error_set(err, ERR_SHAPE, "a pool of %" PRId64 " pages of keys and values is not possible", n_page);
        return NULL;
    }
    struct kv_pool *kv = calloc(1, sizeof *kv);
    if (!kv) {
        error_set(err, ERR_NO_MEMORY, "no memory for a pool of keys and values");
        return NULL;
    }
    kv->dev = m->dev;
    kv->dtype = m->dtype;
    kv->heads = model_heads(m);
    kv->n_page = n_page;
    kv->n_layer = m->c.n_layer;
    kv->layer_bytes = (size_t)n_page * kv_page_bytes(m->dev, kv->heads, m->dtype);
    kv->borrowed = mem != NULL;
    kv->mem = mem ? mem : mem_new(m->dev, (size_t)kv->n_layer * kv->layer_bytes, "keys and values", err);
    if (kv->mem)
        return kv;
    kv_pool_free(kv);
    return NULL;
}

void kv_pool_free(struct kv_pool *kv)
{
    if (!kv)
        return;
    if (!kv->borrowed)
        mem_free(kv->dev, kv->mem);
    free(kv);
}

size_t kv_pool_page_bytes(const struct model *m)
{
    return (size_t)m->c.n_layer * kv_page_bytes(m->dev, model_heads(m), m->dtype);
}

bool kv_pool_copy(struct kv_pool *kv, const int32_t *dst, const int32_t *src, int64_t n, struct error *err)
{
    for (int64_t l = 0; l < kv->n_layer; l++)
        if (!OP(kv->dev, err, kv_copy, .kv = kv_layer(kv, l), .src = src, .dst = dst, .n = n, .heads = kv->heads, .dtype = kv->dtype))
            return false;
    return true;
}
