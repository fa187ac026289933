#include "workers/engine/pass/kv.h"
#include <inttypes.h>
#include <stdlib.h>
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/team_impl.h"

/* A pool for each rank; mem is the first one's. */
struct pools_make {
    struct kv_pool *kv;
    int64_t n_page;
    void *mem;
};
static bool rank_pool(void *ctx, int rank, struct error *err)
{
    const struct pools_make *p = ctx;
    const struct model *slice = team_rank(p->kv->team, rank)->slice;
    return (p->kv->of_rank[rank] = kv_pool_new(slice, p->n_page, rank == 0 ? p->mem : NULL, err)) != NULL;
}
static struct kv_pool *pools_new(struct kv_pool *kv, const struct model *m, int64_t n_page, void *mem, struct error *err)
{
    struct pools_make p = { kv, n_page, mem };
    kv->team = m->team;
    if (team_call(m->team, rank_pool, &p, err))
        return kv;
    kv_pool_free(kv);
    return NULL;
}

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
    if (m->team)
        return pools_new(kv, m, n_page, mem, err);
    kv->dev = m->dev;
    kv->dtype = m->dtype;
    kv->heads = model_heads(m);
    kv->n_page = n_page;
    for (int64_t l = 0; l < m->c.n_layer; l++)
        kv->at[l] = (int16_t)(config_is_delta(&m->c, l) ? kv->n_delta++ : kv->n_layer++);
    kv->state_floats = config_has_states(&m->c) ? delta_state_floats(m->c.delta.heads) : 0;
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
    for (int q = 0; q < TEAM_MAX; q++)
        kv_pool_free(kv->of_rank[q]);
    if (!kv->team && !kv->borrowed)
        mem_free(kv->dev, kv->mem);
    if (kv->states)
        mem_free(kv->dev, kv->states);
    free(kv);
}

size_t kv_pool_page_bytes(const struct model *m)
{
    if (m->team)
        return kv_pool_page_bytes(team_rank(m->team, 0)->slice);
    if (m->n_device > 1) {
        struct error ignored;
        struct model *slice = model_slice_shape(m, m->n_device, &ignored);
        size_t size = slice ? kv_pool_page_bytes(slice) : 0;
        model_free(slice);
        return size;
    }
    return (size_t)config_n_attn(&m->c) * kv_page_bytes(m->dev, model_heads(m), m->dtype);
}

struct pages_copy {
    struct kv_pool *kv;
    const int32_t *dst, *src;
    int64_t n;
};
static bool rank_copy(void *ctx, int rank, struct error *err)
{
    const struct pages_copy *c = ctx;
    return kv_pool_copy(c->kv->of_rank[rank], c->dst, c->src, c->n, err);
}

bool kv_pool_copy(struct kv_pool *kv, const int32_t *dst, const int32_t *src, int64_t n, struct error *err)
{
    struct pages_copy c = { kv, dst, src, n };
    if (kv->team)
        return team_call(kv->team, rank_copy, &c, err);
    for (int64_t i = 0; i < kv->n_layer; i++)
        if (!OP(kv->dev, err, kv_copy, .kv = kv->mem + (size_t)i * kv->layer_bytes, .src = src, .dst = dst, .n = n, .heads = kv->heads,
                .dtype = kv->dtype))
            return false;
    return true;
}

size_t kv_pool_state_bytes(const struct model *m)
{
    if (!config_has_states(&m->c))
        return 0;
    return (size_t)((m->c.n_layer - config_n_attn(&m->c)) * delta_state_floats(m->c.delta.heads)) * sizeof(float);
}

bool kv_pool_states(struct kv_pool *kv, int64_t n, struct error *err)
{
    BUG_IF(kv->states || kv->n_delta == 0, "states for a model without, or for the second time");
    kv->n_state = n;
    kv->states = mem_new(kv->dev, (size_t)(kv->n_delta * n * kv->state_floats) * sizeof(float), "states of sequences", err);
    return kv->states != NULL;
}

bool kv_pool_states_copy(struct kv_pool *kv, const int32_t *dst, const int32_t *src, int64_t n, struct error *err)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < kv->n_delta; d++) {
            float *slots = kv->states + d * kv->n_state * kv->state_floats;
            if (!mem_copy(kv->dev, slots + dst[i] * kv->state_floats, slots + src[i] * kv->state_floats,
                          (size_t)kv->state_floats * sizeof(float), COPY_D2D, err))
                return false;
        }
    return true;
}
