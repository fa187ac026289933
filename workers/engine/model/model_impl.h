/* model_impl.h - shared by the files of this folder: the layout of a model in memory */
#pragma once
#include "workers/engine/model/model.h"

#define AT_NONE (-1)
/* Offsets (elements) of a layer's parts in the arena and in flat buffers; AT_NONE: the family has none. A fused part
 * starts where its first tensor does. */
struct layer_at {
    int64_t ln1, qkv, qkv_bias, q_norm, k_norm, o, o_bias, ln2, gate_up, gate_up_bias, down, down_bias;
};
struct layer_w {
    struct weight *qkv, *o, *gate_up, *down;    // handles of the device, owned by the model
};
struct model {
    struct model_config c;
    struct device *dev;    // borrowed
    enum dtype dtype;
    int64_t n_live;
    struct tensor *tensor;    // (n_tensor)
    int64_t n_tensor;
    int64_t n_flat;                        // elements of the arena
    char *weights;                         // (n_flat) of dtype; device
    struct mem_handle handle;              // of the weights, when shared
    bool shared;                           // of model_share
    struct layer_at *at;                   // (n_layer)
    int64_t embed_at, norm_at, head_at;    // head_at is embed_at when tied
    struct layer_w *layer;                 // (n_layer); NULL until the handles are made
    struct weight *head;
    bool for_bwd;                // the handles support linear_bwd_x
    const struct model *base;    // of a view: whose memory and handles these are; NULL: its own
    struct lora *lora;           // the adapter (lora_impl.h), without which nothing is trained; NULL: none, all weights are
};
static inline struct attn_heads model_heads(const struct model *m)
{
    return (struct attn_heads){ (int)m->c.n_head, (int)m->c.n_kv_head, (int)m->c.d_head };
}
static inline const void *model_at(const struct model *m, int64_t at)
{
    return at == AT_NONE ? NULL : m->weights + (size_t)at * dtype_size(m->dtype);
}
/* Only a model's table of tensors, for model_free. NULL: see err. */
struct model *model_shape_new(const struct model_config *c, struct error *err);
/* Remake the handles if they do not support backward products yet. */
MUST_USE bool model_want_bwd(struct model *m, struct error *err);
