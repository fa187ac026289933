/* config_counts.c - what follows from a model's shape: widths, numbers of weights, of keys and values, of operations */
#include <inttypes.h>
#include "kernels/ops.h"
#include "workers/engine/model/config.h"

int64_t config_longest(const struct model_config *c)
{
    double scaled = c->rope.type == ROPE_YARN ? (double)c->rope.original_max_pos * c->rope.factor : 0;
    return MAX(c->max_pos, (int64_t)MIN(scaled, (double)(1 << 28)));
}

int64_t config_n_attn(const struct model_config *c)
{
    int64_t n = 0;
    for (int64_t l = 0; l < c->n_layer; l++)
        n += !config_is_delta(c, l);
    return n;
}

int64_t config_qkv_width(const struct model_config *c, bool delta)
{
    return delta ? delta_channels(c->delta.heads) : (c->n_head + 2 * c->n_kv_head) * c->d_head;
}

int64_t config_in_width(const struct model_config *c, bool delta)
{
    int64_t gates = c->attn_gate ? c->n_head * c->d_head : 0;
    return delta ? delta_columns(c->delta.heads) : config_qkv_width(c, false) + gates;
}

int64_t config_mix_width(const struct model_config *c, bool delta)
{
    return delta ? (int64_t)c->delta.heads.n_v * c->delta.heads.d_v : c->n_head * c->d_head;
}

/* Weights of all layers' products in the first half. */
static int64_t mix_weights(const struct model_config *c)
{
    int64_t n = 0;
    for (int64_t l = 0; l < c->n_layer; l++)
        n += c->d_model * (config_in_width(c, config_is_delta(c, l)) + config_mix_width(c, config_is_delta(c, l)));
    return n;
}

int64_t config_n_sparse(const struct model_config *c)
{
    int64_t n = 0;
    for (int64_t l = 0; l < c->n_layer; l++)
        n += config_is_sparse(c, l);
    return n;
}

int64_t config_mlp_width(const struct model_config *c)
{
    int64_t n_sparse = config_n_sparse(c);
    return MAX(n_sparse < c->n_layer ? c->d_ff : 0, n_sparse > 0 ? c->experts.k * c->experts.d_ff : 0);
}

/* Weights of all layers' MLPs, with n experts in those that have some, and of the routers. */
static int64_t mlp_weights(const struct model_config *c, int64_t n)
{
    int64_t n_sparse = config_n_sparse(c);
    return c->d_model * (n_sparse * (3 * n * c->experts.d_ff + c->experts.n) + (c->n_layer - n_sparse) * 3 * c->d_ff);
}

int64_t config_n_param(const struct model_config *c)
{
    int64_t q = c->n_head * c->d_head, kv = c->n_kv_head * c->d_head, n_attn = config_n_attn(c);
    int64_t attn = 0, every = (c->norm_place == NORM_AROUND ? 4 : 2) * c->d_model;
    struct delta_heads h = c->delta.heads;
    if (c->qkv_bias)
        attn += q + 2 * kv;
    if (c->o_bias)
        attn += c->d_model;
    if (c->qk_norm)
        attn += c->qk_norm_wide ? q + kv : 2 * c->d_head;
    if (c->mlp_bias)
        every += 2 * c->d_ff + c->d_model;
    int64_t delta = 4 * delta_channels(h) + 2 * h.n_v + h.d_v;    // convolution, A_log and dt_bias, norm
    return n_attn * attn + (c->n_layer - n_attn) * delta + c->n_layer * every + mix_weights(c) + mlp_weights(c, c->experts.n) + c->d_model
           + c->vocab * c->d_model * (c->tied ? 1 : 2);
}

/* With n experts in the layers that have some. */
static int64_t product_weights(const struct model_config *c, int64_t n)
{
    return mix_weights(c) + mlp_weights(c, n) + c->vocab * c->d_model;
}

int64_t config_n_product(const struct model_config *c)
{
    return product_weights(c, c->experts.n);
}

int64_t config_n_active(const struct model_config *c)
{
    return product_weights(c, c->experts.k);
}

int64_t config_n_kv(const struct model_config *c)
{
    return 2 * config_n_attn(c) * c->n_kv_head * c->d_head;
}

double config_flops(const struct model_config *c, double n_seen)
{
    struct delta_heads h = c->delta.heads;
    double states = (double)(c->n_layer - config_n_attn(c)) * h.n_v * h.d_k * h.d_v;    // each number decays, is read twice, added to once
    return 2 * (double)config_n_active(c) + 4 * (double)(config_n_attn(c) * c->n_head * c->d_head) * n_seen + 7 * states;
}

bool config_stays_whole(const struct model_config *c, const char *how, struct error *err)
{
    const char *what = c->experts.n ? "is a mixture of experts" : "has layers of linear attention";
    return (c->experts.n == 0 && !config_has_states(c))
           || error_set(err, ERR_UNSUPPORTED,
                        "this model %s, which cannot be %s yet; give each trainer and each sampler one device that holds all of it", what,
                        how);
}
