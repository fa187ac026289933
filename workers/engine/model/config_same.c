/* config_same.c - what two config.json must agree on for the weights of one to be computed with by the other
 *
 * Names, file layout, end tokens, the largest position and how random weights are drawn are not among it: they change no number that a
 * forward pass gives. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "workers/engine/model/config.h"

enum kind { KIND_I64, KIND_F64, KIND_BOOL, KIND_ENUM, KIND_INT };
#define AT(field) offsetof(struct model_config, field)
static const struct {
    const char *key;    // config.json's; where it has several names, the best known
    enum kind kind;
    size_t at;
} fields[] = {
    { "num_hidden_layers", KIND_I64, AT(n_layer) },
    { "hidden_size", KIND_I64, AT(d_model) },
    { "num_attention_heads", KIND_I64, AT(n_head) },
    { "num_key_value_heads", KIND_I64, AT(n_kv_head) },
    { "head_dim", KIND_I64, AT(d_head) },
    { "intermediate_size", KIND_I64, AT(d_ff) },
    { "num_experts", KIND_I64, AT(experts.n) },
    { "num_experts_per_tok", KIND_I64, AT(experts.k) },
    { "moe_intermediate_size", KIND_I64, AT(experts.d_ff) },
    { "norm_topk_prob", KIND_BOOL, AT(experts.normalise) },
    { "linear_num_key_heads", KIND_INT, AT(delta.heads.n_k) },
    { "linear_num_value_heads", KIND_INT, AT(delta.heads.n_v) },
    { "linear_key_head_dim", KIND_INT, AT(delta.heads.d_k) },
    { "linear_value_head_dim", KIND_INT, AT(delta.heads.d_v) },
    { "attn_output_gate", KIND_BOOL, AT(attn_gate) },
    { "vocab_size", KIND_I64, AT(vocab) },
    { "rms_norm_eps", KIND_F64, AT(rms_eps) },
    { "rope_theta", KIND_F64, AT(rope.theta) },
    { "hidden_act", KIND_ENUM, AT(act) },
    { "model_type", KIND_ENUM, AT(norm_place) },
    { "model_type", KIND_ENUM, AT(norm_form) },
    { "model_type", KIND_BOOL, AT(qk_norm) },
    { "model_type", KIND_BOOL, AT(qk_norm_wide) },
    { "model_type", KIND_BOOL, AT(embed_root) },
    { "tie_word_embeddings", KIND_BOOL, AT(tied) },
    { "attention_bias", KIND_BOOL, AT(qkv_bias) },
    { "attention_bias", KIND_BOOL, AT(o_bias) },
    { "mlp_bias", KIND_BOOL, AT(mlp_bias) },
    { "attn_logit_softcapping", KIND_F64, AT(attn_cap) },
    { "final_logit_softcapping", KIND_F64, AT(logit_cap) },
    { "query_pre_attn_scalar", KIND_I64, AT(query_scalar) },
    { "embedding_multiplier", KIND_F64, AT(multiplier.embedding) },
    { "residual_multiplier", KIND_F64, AT(multiplier.residual) },
    { "attention_multiplier", KIND_F64, AT(multiplier.attention) },
    { "logits_scaling", KIND_F64, AT(multiplier.logits) },
};

static bool frequencies_differ(const struct rope *a, const struct rope *b, int64_t d, bool is_long)
{
    struct rope x = *a, y = *b;
    double of_x[ROPE_PAIRS_MAX], of_y[ROPE_PAIRS_MAX];
    x.is_long = y.is_long = is_long;
    return rope_inv_freq(&x, d, of_x) != rope_inv_freq(&y, d, of_y) || memcmp(of_x, of_y, (size_t)(d / 2) * sizeof *of_x) != 0;
}

/* Are positions turned into other angles, of any length of sequence? */
static bool rope_differs(const struct rope *a, const struct rope *b, const struct model_config *ca, const struct model_config *cb)
{
    int64_t d = rope_dims(a, ca->d_head);
    return d != rope_dims(b, cb->d_head) || d / 2 > ROPE_PAIRS_MAX || frequencies_differ(a, b, d, false)
           || frequencies_differ(a, b, d, true) || (a->type == ROPE_LONG && a->original_max_pos != b->original_max_pos)
           || (a->type == ROPE_DYNAMIC) != (b->type == ROPE_DYNAMIC) || (a->type == ROPE_DYNAMIC && ca->max_pos != cb->max_pos);
}

static bool windows_differ(const struct model_config *a, const struct model_config *b)
{
    for (int64_t l = 0; l < a->n_layer && l < b->n_layer; l++)
        if (config_slides(a, l) != config_slides(b, l) || (config_slides(a, l) && a->window != b->window))
            return true;
    return false;
}

static void key_add(struct buf *list, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "'%s'", key);
    if (!strstr(buf_text(list), quoted))
        buf_fmt(list, "%s%s", list->len ? ", " : "", quoted);
}

static void field_compare(struct buf *list, size_t i, const struct model_config *a, const struct model_config *b)
{
    static const size_t size[] = {
        [KIND_I64] = 8, [KIND_F64] = 8, [KIND_BOOL] = sizeof(bool), [KIND_ENUM] = sizeof(enum gate_act), [KIND_INT] = sizeof(int)
    };
    const char *x = (const char *)a + fields[i].at, *y = (const char *)b + fields[i].at;
    if (memcmp(x, y, size[fields[i].kind]) == 0)
        return;
    key_add(list, fields[i].key);
    if (fields[i].kind == KIND_F64)
        buf_fmt(list, " (%g, not %g)", *(const double *)(const void *)x, *(const double *)(const void *)y);
    else if (fields[i].kind == KIND_I64)
        buf_fmt(list, " (%" PRId64 ", not %" PRId64 ")", *(const int64_t *)(const void *)x, *(const int64_t *)(const void *)y);
    else if (fields[i].kind == KIND_INT)
        buf_fmt(list, " (%d, not %d)", *(const int *)(const void *)x, *(const int *)(const void *)y);
}

bool config_same(const struct model_config *have, const struct model_config *come, const char *what, struct error *err)
{
    struct buf list = BUF_INIT;
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        field_compare(&list, i, come, have);
    if (rope_differs(&have->rope, &come->rope, have, come) && have->rope.theta == come->rope.theta)
        key_add(&list, "rope_scaling");
    if (have->has_rope_local != come->has_rope_local
        || (have->has_rope_local && rope_differs(&have->rope_local, &come->rope_local, have, come)))
        key_add(&list, "rope_local_base_freq");
    if (windows_differ(have, come))
        key_add(&list, "sliding_window");
    if (memcmp(have->no_rope, come->no_rope, sizeof have->no_rope) != 0)
        key_add(&list, "no_rope_layers");
    if (memcmp(have->delta.layers, come->delta.layers, sizeof have->delta.layers) != 0)
        key_add(&list, "layer_types");
    if (memcmp(have->experts.dense, come->experts.dense, sizeof have->experts.dense) != 0)
        key_add(&list, "mlp_only_layers");
    bool same = list.len == 0 && !list.failed;
    if (!same)
        error_set(err, ERR_DATA, "%s belongs to another model: its config.json has another %s", what, buf_text(&list));
    buf_release(&list);
    return same;
}
