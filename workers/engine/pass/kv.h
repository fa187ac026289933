/* kv.h - internals of a pool of keys and values, for this folder only; users include pass.h */
#pragma once
#include "workers/engine/pass/pass.h"
#include "workers/engine/model/team.h"

struct kv_pool {
    struct device *dev;    // borrowed
    enum dtype dtype;
    struct attn_heads heads;
    int64_t n_page, n_layer;
    size_t layer_bytes;
    char *mem;                            // n_layer pools of n_page pages; device. Only what was written is ever read
    bool borrowed;                        // mem is borrowed
    struct team *team;                    // of the model's; then there is no memory here, but
    struct kv_pool *of_rank[TEAM_MAX];    // each rank's, with the keys and values of its heads, page by page alike
};
static inline struct kv_pool *kv_of_rank(const struct kv_pool *kv, int rank)
{
    return kv->of_rank[rank];
}
static inline void *kv_layer(const struct kv_pool *kv, int64_t l)
{
    return kv->mem + (size_t)l * kv->layer_bytes;
}
