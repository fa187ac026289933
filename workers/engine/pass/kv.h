/* kv.h - internals of a pool of keys and values, for this folder only; users include pass.h */
#pragma once
#include "workers/engine/pass/pass.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/team.h"

struct kv_pool {
    struct device *dev;    // borrowed
    enum dtype dtype;
    struct attn_heads heads;
    int64_t n_page, n_layer;          // n_layer: those with attention
    int16_t at[CONFIG_LAYERS_MAX];    // which of these layer l is, or which of those with a state
    size_t layer_bytes;
    char *mem;        // n_layer pools of n_page pages; device. Only what was written is ever read
    bool borrowed;    // mem is borrowed
    float *states;    // (n_delta)(n_state) slots of state_floats; device, owned; NULL: there are none
    int64_t n_delta, n_state, state_floats;
    struct team *team;                    // of the model's; then there is no memory here, but
    struct kv_pool *of_rank[TEAM_MAX];    // each rank's, with the keys and values of its heads, page by page alike
};
static inline struct kv_pool *kv_of_rank(const struct kv_pool *kv, int rank)
{
    return kv->of_rank[rank];
}
static inline void *kv_layer(const struct kv_pool *kv, int64_t l)
{
    return kv->mem + (size_t)kv->at[l] * kv->layer_bytes;
}
/* The slots of layer l, which has states. */
static inline float *kv_states(const struct kv_pool *kv, int64_t l)
{
    return kv->states + kv->at[l] * kv->n_state * kv->state_floats;
}
