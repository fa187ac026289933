#include "workers/engine/model/config.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/engine/model/fields.h"
#include "workers/engine/model/file_tensors.h"

#define CONFIG_BYTES_MAX (4u << 20)

/* Which layers have a window when sliding_window is given and layer_types is not. */
enum windows {
    WINDOWS_NONE,      // the class does not read the key
    WINDOWS_ALL,       // every layer
    WINDOWS_REPEAT,    // all but every full_every-th
    WINDOWS_UPPER,     // with use_sliding_window: from layer max_window_layers on (Qwen)
    WINDOWS_SWITCH,    // with use_sliding_window: every layer (Qwen3-MoE)
    WINDOWS_STILL,     // with use_sliding_window: those that do not rotate (SmolLM3)
};
/* The families: what their classes in transformers read and do. */
static const struct family {
    const char *model_type;    // config.json's "model_type"
    const char *architecture;
    bool qkv_bias;          // always, and the class reads no "attention_bias"
    bool attention_bias;    // the class reads that key: biases of q, k, v and of the output
    bool mlp_bias;          // the class reads that key
    bool qk_norm, qk_norm_wide;
    enum norm_place norm_place;
    enum norm_form norm_form;
    bool fused_names;
    bool embed_root;
    bool query_scalar;      // the class reads query_pre_attn_scalar, 256 when it is missing
    const char *act_key;    // where the class reads its activation; NULL: hidden_act
    enum gate_act act;      // when it is missing
    const char *wrapper;    // model_type of a model of images and text whose text_config describes one of these; or NULL
    // transformers' defaults, for keys that are missing
    struct rope_family rope;
    int64_t n_head, vocab, max_pos;    // 0: they may not be missing, but max_pos, which is 32768 then
    double rms_eps;                    // 0: it may not be missing
    int64_t d_head;                    // 0: hidden_size / num_attention_heads
    int64_t n_kv_head;                 // 0: num_attention_heads
    bool tied;
    enum windows windows;
    int64_t window;    // sliding_window; 0: none
    int64_t full_every;
    double attn_cap, logit_cap;    // attn_logit_softcapping and final_logit_softcapping
    bool reads_attn_cap;           // ... of which Gemma 3 has both, and applies the second
    bool reads_logit_cap;
    int64_t no_rope_every;    // one in this many layers is not rotated; 0: the family has no such layers
    bool multipliers;         // the family has them; 1 each
    struct {
        const char *n_key;    // how config.json is written; all three names are read. NULL: the family has no experts
        const char *width_key;
        bool normalises;         // always
        bool reads_normalise;    // "norm_topk_prob", false when it is missing
        bool reads_dense;        // "decoder_sparse_step" and "mlp_only_layers"
        enum expert_files files;
    } experts;
    bool keeps_wrapper;    // as in struct model_config
    bool delta;            // most layers have a gated delta net, and the others gates on their heads
    bool named_tokens;     // the class has bos, eos and pad tokens of the published vocabulary
} families[] = {
    [FAMILY_QWEN2] = { "qwen2", "Qwen2ForCausalLM", .rope.theta = 10000, .qkv_bias = true, .windows = WINDOWS_UPPER, .window = 4096 },
    [FAMILY_QWEN3] = { "qwen3", "Qwen3ForCausalLM", .rope.theta = 10000, .qk_norm = true, .d_head = 128, .attention_bias = true,
                       .windows = WINDOWS_UPPER, .window = 4096 },
    [FAMILY_LLAMA] = { "llama", "LlamaForCausalLM", .rope.theta = 10000, .attention_bias = true, .mlp_bias = true },
    [FAMILY_MISTRAL] = { "mistral", "MistralForCausalLM", .rope.theta = 10000, .n_kv_head = 8, .windows = WINDOWS_ALL, .window = 4096 },
    [FAMILY_GRANITE] = { "granite", "GraniteForCausalLM", .rope.theta = 10000, .multipliers = true, .attention_bias = true,
                         .mlp_bias = true },
    [FAMILY_SMOLLM3] = { "smollm3", "SmolLM3ForCausalLM", .rope.theta = 2e6, .n_kv_head = 4, .tied = true, .no_rope_every = 4,
                         .attention_bias = true, .mlp_bias = true, .windows = WINDOWS_STILL, .named_tokens = true },
    [FAMILY_OLMO2] = { "olmo2", "Olmo2ForCausalLM", .rope.theta = 10000, .qk_norm = true, .qk_norm_wide = true, .attention_bias = true,
                       .norm_place = NORM_AFTER, .norm_form = NORM_OLMO, .named_tokens = true },
    [FAMILY_OLMO3] = { "olmo3", "Olmo3ForCausalLM", .rope = { .theta = 5e5, .local_theta = 5e5, .ignores_flat = true }, .qk_norm = true,
                       .qk_norm_wide = true, .attention_bias = true, .norm_place = NORM_AFTER, .norm_form = NORM_OLMO,
                       .windows = WINDOWS_REPEAT, .window = 4096, .full_every = 4, .named_tokens = true },
    [FAMILY_PHI3] = { "phi3", "Phi3ForCausalLM", .rope = { .theta = 10000, .partial = true, .longrope = true, .original_max_pos = 4096 },
                      .fused_names = true, .windows = WINDOWS_ALL, .named_tokens = true },
    [FAMILY_GEMMA2] = { "gemma2",
                        "Gemma2ForCausalLM",
                        .rope = { .theta = 10000 },
                        .n_kv_head = 4,
                        .d_head = 256,
                        .tied = true,
                        .attention_bias = true,
                        .norm_place = NORM_AROUND,
                        .norm_form = NORM_GEMMA,
                        .embed_root = true,
                        .query_scalar = true,
                        .act_key = "hidden_activation",
                        .act = ACT_GELU_TANH,
                        .windows = WINDOWS_REPEAT,
                        .window = 4096,
                        .full_every = 2,
                        .attn_cap = 50,
                        .logit_cap = 30,
                        .reads_attn_cap = true,
                        .reads_logit_cap = true,
                        .named_tokens = true },
    [FAMILY_GEMMA3] = { "gemma3_text",
                        "Gemma3ForCausalLM",
                        .wrapper = "gemma3",
                        .n_head = 8,
                        .vocab = 262208,
                        .max_pos = 131072,
                        .rms_eps = 1e-6,
                        .rope = { .theta = 1e6, .local_theta = 10000, .local_key = "rope_local_base_freq", .ignores_flat = true },
                        .n_kv_head = 4,
                        .d_head = 256,
                        .tied = true,
                        .attention_bias = true,
                        .qk_norm = true,
                        .norm_place = NORM_AROUND,
                        .norm_form = NORM_GEMMA,
                        .embed_root = true,
                        .query_scalar = true,
                        .act_key = "hidden_activation",
                        .act = ACT_GELU_TANH,
                        .windows = WINDOWS_REPEAT,
                        .window = 4096,
                        .full_every = 6,
                        .reads_logit_cap = true,
                        .named_tokens = true },
    [FAMILY_QWEN3_MOE] = { "qwen3_moe", "Qwen3MoeForCausalLM", .rope.theta = 10000, .n_kv_head = 4, .qk_norm = true, .attention_bias = true,
                           .windows = WINDOWS_SWITCH, .window = 4096,
                           .experts = { "num_experts", "moe_intermediate_size", .reads_normalise = true, .reads_dense = true } },
    [FAMILY_OLMOE] = { "olmoe", "OlmoeForCausalLM", .rope.theta = 10000, .qk_norm = true, .qk_norm_wide = true, .attention_bias = true,
                       .named_tokens = true, .experts = { "num_experts", "intermediate_size", .reads_normalise = true } },
    [FAMILY_MIXTRAL] = { "mixtral", "MixtralForCausalLM", .rope.theta = 1e6, .n_kv_head = 8, .windows = WINDOWS_ALL, .named_tokens = true,
                         .experts = { "num_local_experts", "intermediate_size", .normalises = true, .files = EXPERTS_SPARSE } },
    [FAMILY_GRANITE_MOE] = { "granitemoe", "GraniteMoeForCausalLM", .rope.theta = 10000, .multipliers = true, .attention_bias = true,
                             .named_tokens = true,
                             .experts = { "num_local_experts", "intermediate_size", .normalises = true, .files = EXPERTS_FUSED } },
    [FAMILY_QWEN3_5] = { "qwen3_5_text", "Qwen3_5ForCausalLM", .wrapper = "qwen3_5", .n_head = 16, .vocab = 248320, .rms_eps = 1e-6,
                         .rope = { .theta = 10000, .partial = true, .part = 0.25 }, .n_kv_head = 4, .d_head = 256, .attention_bias = true,
                         .qk_norm = true, .norm_form = NORM_GEMMA, .keeps_wrapper = true, .delta = true, .named_tokens = true },
};

static const struct activation {
    const char *name;
    enum gate_act act;
} activations[] = {
    { "silu", ACT_SILU },
    { "gelu_pytorch_tanh", ACT_GELU_TANH },
    { "gelu_new", ACT_GELU_TANH },
};

static bool family_get(const struct fields *r, enum model_family *out, struct error *err)
{
    const json_t *type = json_object_get(r->obj, "model_type");
    const json_t *arch = json_array_get(json_object_get(r->obj, "architectures"), 0);
    if (!json_is_string(type) && !json_is_string(arch))
        return error_set(err, ERR_DATA, "'%s': 'model_type' is missing", r->path);
    for (size_t i = 0; i < ARRAY_SIZE(families); i++)
        if (json_is_string(type) ? strcmp(json_string_value(type), families[i].model_type) == 0
                                 : strcmp(json_string_value(arch), families[i].architecture) == 0) {
            *out = (enum model_family)i;
            return true;
        }
    char known[512] = "";
    for (size_t i = 0, len = 0; i < ARRAY_SIZE(families); len = strlen(known), i++)
        snprintf(known + len, sizeof known - len, "%s%s",
                 i == 0                         ? ""
                 : i + 1 < ARRAY_SIZE(families) ? ", "
                                                : " and ",
                 families[i].model_type);
    return error_set(err, ERR_UNSUPPORTED, "'%s': 'model_type' is '%s'; known are %s", r->path,
                     json_string_value(json_is_string(type) ? type : arch), known);
}

/* An end token or a list of them; *n stays when the key is not given. */
static bool eos_get(const struct fields *r, struct model_config *c, struct error *err)
{
    const json_t *v = json_object_get(r->obj, "eos_token_id");
    if (!v || json_is_null(v))
        return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > CONFIG_EOS_MAX)
        return error_set(err, ERR_DATA, "'%s': 'eos_token_id' lists %zu tokens; at most %d are possible", r->path, n, CONFIG_EOS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(e) || json_integer_value(e) < 0 || json_integer_value(e) >= c->vocab)
            return error_set(err, ERR_DATA, "'%s': 'eos_token_id' is not a token below vocab_size %" PRId64, r->path, c->vocab);
        c->eos[i] = (int32_t)json_integer_value(e);
    }
    c->n_eos = (int)n;
    return true;
}

static const char *act_key(const struct family *f)
{
    return f->act_key ? f->act_key : "hidden_act";
}

static bool act_read(const struct fields *r, const struct family *f, struct model_config *c, struct error *err)
{
    const json_t *v = json_object_get(r->obj, act_key(f));
    c->act = f->act;
    if (!v || json_is_null(v))
        return true;
    for (size_t i = 0; json_is_string(v) && i < ARRAY_SIZE(activations); i++)
        if (strcmp(json_string_value(v), activations[i].name) == 0) {
            c->act = activations[i].act;
            return true;
        }
    return error_set(err, ERR_UNSUPPORTED, "'%s': '%s' is %s; silu and gelu_pytorch_tanh are supported", r->path, act_key(f),
                     json_is_string(v) ? json_string_value(v) : "not a string");
}

static bool unsupported_refuse(const struct fields *r, struct error *err)
{
    if (field_given(r, "quantization_config"))
        return error_set(err, ERR_UNSUPPORTED, "'%s': 'quantization_config': quantised weights are not supported", r->path);
    if (json_is_true(json_object_get(r->obj, "use_bidirectional_attention")))
        return error_set(err, ERR_UNSUPPORTED, "'%s': 'use_bidirectional_attention' is true; this is no model that generates", r->path);
    return true;
}

/* Granite's four numbers (transformers, modeling_granite.py), each with the key that config.json has for it. */
static const struct multiplier {
    const char *key;
    size_t at;    // a double in struct model_config
} multipliers[] = {
    { "embedding_multiplier", offsetof(struct model_config, multiplier.embedding) },
    { "residual_multiplier", offsetof(struct model_config, multiplier.residual) },
    { "attention_multiplier", offsetof(struct model_config, multiplier.attention) },
    { "logits_scaling", offsetof(struct model_config, multiplier.logits) },
};

static bool multipliers_read(const struct fields *r, const struct family *f, struct model_config *c, struct error *err)
{
    c->has_multipliers = f->multipliers;
    for (size_t i = 0; f->multipliers && i < ARRAY_SIZE(multipliers); i++) {
        double *x = (double *)((char *)c + multipliers[i].at);
        *x = 1;
        if (field_given(r, multipliers[i].key) && !field_real(r, multipliers[i].key, 1e-6, 1e6, x, err))
            return false;
    }
    return true;
}

/* Does layer l have a window, by the family's rule? from: max_window_layers; every: the layers between two without one, plus 1. */
static bool window_rule(const struct family *f, const struct model_config *c, int64_t l, int64_t from, int64_t every)
{
    switch (f->windows) {
    case WINDOWS_NONE: return false;
    case WINDOWS_ALL:
    case WINDOWS_SWITCH: return true;
    case WINDOWS_REPEAT: return (l + 1) % every != 0;
    case WINDOWS_UPPER: return l >= from;
    case WINDOWS_STILL: return !config_rotates(c, l);
    }
    return false;
}

/* The list of layer_types, which goes before every rule: set the bits of the layers of this kind, where the others are full_attention. */
static bool layer_types_read(const struct fields *r, const struct model_config *c, const char *kind, uint64_t *layers, struct error *err)
{
    const json_t *list = json_object_get(r->obj, "layer_types");
    if (!json_is_array(list) || (int64_t)json_array_size(list) != c->n_layer)
        return error_set(err, ERR_DATA, "'%s': 'layer_types' is not a list of %" PRId64 " kinds, one per layer", r->path, c->n_layer);
    for (int64_t l = 0; l < c->n_layer; l++) {
        const json_t *one = json_array_get(list, (size_t)l);
        const char *its = json_is_string(one) ? json_string_value(one) : "";
        bool is = strcmp(its, kind) == 0;
        if (!is && strcmp(its, "full_attention") != 0)
            return error_set(err, ERR_UNSUPPORTED, "'%s': 'layer_types' has an entry %" PRId64 " that is neither 'full_attention' nor '%s'",
                             r->path, l, kind);
        layers[l / 64] |= (uint64_t)is << (l % 64);
    }
    return true;
}

/* The window and the layers that have it; after no_rope_read. */
static bool window_read(const struct fields *r, const struct family *f, struct model_config *c, struct error *err)
{
    bool by_switch = f->windows == WINDOWS_UPPER || f->windows == WINDOWS_STILL || f->windows == WINDOWS_SWITCH;
    bool on = !by_switch || json_is_true(json_object_get(r->obj, "use_sliding_window"));
    int64_t from = 28, every = f->full_every;    // Qwen's default
    static const char *const patterns[] = { "sliding_window_pattern", "_sliding_window_pattern" };
    if (f->windows == WINDOWS_NONE)
        return true;
    c->window = json_object_get(r->obj, "sliding_window") ? 0 : f->window;
    if (field_given(r, "sliding_window") && !field_int(r, "sliding_window", 1, 1 << 28, &c->window, err))
        return false;
    if (field_given(r, "max_window_layers") && !field_int(r, "max_window_layers", 0, 1 << 20, &from, err))
        return false;
    for (size_t i = 0; f->windows == WINDOWS_REPEAT && i < ARRAY_SIZE(patterns); i++)
        if (field_given(r, patterns[i]) && !field_int(r, patterns[i], 1, CONFIG_LAYERS_MAX, &every, err))
            return false;
    if (!on)
        c->window = 0;
    if (field_given(r, "layer_types") && !layer_types_read(r, c, "sliding_attention", c->slides, err))
        return false;
    for (int64_t l = 0; l < c->n_layer && !field_given(r, "layer_types"); l++)
        if (c->window && window_rule(f, c, l, from, every))
            c->slides[l / 64] |= (uint64_t)1 << (l % 64);
    bool any = false;
    for (size_t i = 0; i < ARRAY_SIZE(c->slides); i++)
        any = any || c->slides[i];
    if (any && !c->window)
        return error_set(err, ERR_DATA, "'%s': 'layer_types' has sliding_attention, but there is no 'sliding_window'", r->path);
    if (!any)
        c->window = 0;
    return true;
}

/* Gemma's numbers: soft caps, the scale of scores, the root that multiplies the embedding. */
static bool gemma_read(const struct fields *r, const struct family *f, struct model_config *c, struct error *err)
{
    const struct {
        const char *key;
        double absent, *out;
        bool reads;
    } reals[] = {
        { "attn_logit_softcapping", f->attn_cap, &c->attn_cap, f->reads_attn_cap },
        { "final_logit_softcapping", f->logit_cap, &c->logit_cap, f->reads_logit_cap },
    };
    c->embed_root = f->embed_root;
    for (size_t i = 0; i < ARRAY_SIZE(reals); i++) {
        if (!reals[i].reads)
            continue;
        *reals[i].out = json_object_get(r->obj, reals[i].key) ? 0 : reals[i].absent;    // null: none
        if (field_given(r, reals[i].key) && !field_real(r, reals[i].key, 1e-3, 1e9, reals[i].out, err))
            return false;
    }
    c->query_scalar = f->query_scalar ? 256 : 0;
    return !f->query_scalar || !field_given(r, "query_pre_attn_scalar")
           || field_int(r, "query_pre_attn_scalar", 1, 1 << 20, &c->query_scalar, err);
}

/* no_rope_layers: 1 where a layer rotates, 0 where it does not. Without it every no_rope_layer_interval-th does not. */
static bool no_rope_read(const struct fields *r, const struct family *f, struct model_config *c, struct error *err)
{
    const json_t *list = json_object_get(r->obj, "no_rope_layers");
    int64_t every = f->no_rope_every;
    if (!every)
        return true;
    if (field_given(r, "no_rope_layer_interval") && !field_int(r, "no_rope_layer_interval", 1, CONFIG_LAYERS_MAX, &every, err))
        return false;
    bool given = field_given(r, "no_rope_layers");
    if (given && (!json_is_array(list) || (int64_t)json_array_size(list) != c->n_layer))
        return error_set(err, ERR_DATA, "'%s': 'no_rope_layers' is not a list of %" PRId64 " numbers, one per layer", r->path, c->n_layer);
    for (int64_t l = 0; l < c->n_layer; l++) {
        const json_t *v = json_array_get(list, (size_t)l);
        if (given && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1))
            return error_set(err, ERR_DATA, "'%s': 'no_rope_layers' has an entry %" PRId64 " that is neither 0 nor 1", r->path, l);
        if (given ? json_integer_value(v) == 0 : (l + 1) % every == 0)
            c->no_rope[l / 64] |= (uint64_t)1 << (l % 64);
    }
    return true;
}

/* The layers with one MLP: those that are listed, and all but every step-th. */
static bool dense_layers_read(const struct fields *r, struct model_config *c, struct error *err)
{
    const json_t *list = json_object_get(r->obj, "mlp_only_layers"), *one;
    int64_t step = 1;
    size_t i;
    if (field_given(r, "decoder_sparse_step") && !field_int(r, "decoder_sparse_step", 1, CONFIG_LAYERS_MAX, &step, err))
        return false;
    for (int64_t l = 0; l < c->n_layer; l++)
        if ((l + 1) % step != 0)
            c->experts.dense[l / 64] |= (uint64_t)1 << (l % 64);
    if (field_given(r, "mlp_only_layers") && !json_is_array(list))
        return error_set(err, ERR_DATA, "'%s': 'mlp_only_layers' is not a list of layers", r->path);
    json_array_foreach(list, i, one)
    {
        int64_t l = json_is_integer(one) ? json_integer_value(one) : -1;
        if (l < 0 || l >= c->n_layer)
            return error_set(err, ERR_DATA, "'%s': 'mlp_only_layers' has an entry that is not one of the %" PRId64 " layers", r->path,
                             c->n_layer);
        c->experts.dense[l / 64] |= (uint64_t)1 << (l % 64);
    }
    return true;
}

/* transformers 5 writes the number of experts by another name than published files have. */
static const char *const expert_keys[] = { "num_experts", "num_local_experts", "n_routed_experts" };

static bool experts_read(const struct fields *r, const struct family *f, struct model_config *c, struct error *err)
{
    /* what the classes read beside that, and does not go through here */
    static const char *const refused[] = { "clip_qkv", "router_jitter_noise" };
    const char *key = NULL;
    double number = 0;
    if (!f->experts.n_key)
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        if (field_given(r, refused[i]) && (!field_real(r, refused[i], 0, 1e9, &number, err) || number != 0))
            return error_set(err, ERR_UNSUPPORTED, "'%s': '%s' is given; models of experts with it are not supported", r->path, refused[i]);
    for (size_t i = 0; i < ARRAY_SIZE(expert_keys) && !key; i++)
        if (field_given(r, expert_keys[i]))
            key = expert_keys[i];
    c->experts.files = f->experts.files;
    c->experts.normalise = f->experts.normalises;
    if (!field_int(r, key ? key : f->experts.n_key, 1, ROUTE_EXPERTS_MAX, &c->experts.n, err)
        || !field_int(r, "num_experts_per_tok", 1, c->experts.n, &c->experts.k, err)
        || !field_int(r, f->experts.width_key, 1, 1 << 22, &c->experts.d_ff, err)
        || (f->experts.reads_normalise && field_given(r, "norm_topk_prob") && !field_bool(r, "norm_topk_prob", &c->experts.normalise, err))
        || (f->experts.reads_dense && !dense_layers_read(r, c, err)))
        return false;
    return config_n_sparse(c) > 0
           || error_set(err, ERR_UNSUPPORTED, "'%s': no layer has experts by 'mlp_only_layers' and 'decoder_sparse_step'", r->path);
}

/* Which layers have a gated delta net: those of layer_types, else all but every full_attention_interval-th. */
static bool delta_layers_read(const struct fields *r, struct model_config *c, struct error *err)
{
    int64_t every = 4;
    bool given = field_given(r, "layer_types");
    if (field_given(r, "full_attention_interval") && !field_int(r, "full_attention_interval", 1, CONFIG_LAYERS_MAX, &every, err))
        return false;
    if (given && !layer_types_read(r, c, "linear_attention", c->delta.layers, err))
        return false;
    for (int64_t l = 0; l < c->n_layer && !given; l++)
        c->delta.layers[l / 64] |= (uint64_t)((l + 1) % every != 0) << (l % 64);
    return config_n_attn(c) > 0
           || error_set(err, ERR_UNSUPPORTED, "'%s': no layer has full attention; models of gated delta nets alone are not supported",
                        r->path);
}

static bool delta_read(const struct fields *r, const struct family *f, struct model_config *c, struct error *err)
{
    int64_t n_k = 16, n_v = 32, d_k = 128, d_v = 128, taps = 4;
    const struct {
        const char *key;
        int64_t most, *out;
    } sizes[] = { { "linear_num_key_heads", 1 << 12, &n_k },
                  { "linear_num_value_heads", 1 << 12, &n_v },
                  { "linear_key_head_dim", DELTA_WIDTH_MAX, &d_k },
                  { "linear_value_head_dim", DELTA_WIDTH_MAX, &d_v },
                  { "linear_conv_kernel_dim", 1 << 10, &taps } };
    if (!f->delta)
        return true;
    c->attn_gate = true;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        if (field_given(r, sizes[i].key) && !field_int(r, sizes[i].key, 1, sizes[i].most, sizes[i].out, err))
            return false;
    if (taps != 4)
        return error_set(err, ERR_UNSUPPORTED, "'%s': 'linear_conv_kernel_dim' is %" PRId64 "; 4 is supported", r->path, taps);
    if (n_v % n_k)
        return error_set(err, ERR_DATA, "'%s': 'linear_num_key_heads' %" PRId64 " does not divide 'linear_num_value_heads' %" PRId64,
                         r->path, n_k, n_v);
    if (json_is_false(json_object_get(r->obj, "attn_output_gate")))
        return error_set(err, ERR_UNSUPPORTED, "'%s': 'attn_output_gate' is false; heads of this family have gates", r->path);
    c->delta.heads = (struct delta_heads){ (int)n_k, (int)n_v, (int)d_k, (int)d_v, false };
    return delta_layers_read(r, c, err);
}

/* Is this key to be read? Not when it is missing and the family has a default. */
static bool must(const struct fields *r, const char *key, bool has_default)
{
    return !has_default || json_object_get(r->obj, key);
}

/* Heads of keys and values, and the width of all heads; after n_head and d_model. */
static bool heads_read(const struct fields *r, const struct family *f, struct model_config *c, struct error *err)
{
    c->n_kv_head = f->n_kv_head && !json_object_get(r->obj, "num_key_value_heads") ? f->n_kv_head : c->n_head;
    if (field_given(r, "num_key_value_heads") && !field_int(r, "num_key_value_heads", 1, 1 << 12, &c->n_kv_head, err))
        return false;
    if (c->n_head % c->n_kv_head)
        return error_set(err, ERR_DATA, "'%s': 'num_key_value_heads' %" PRId64 " does not divide 'num_attention_heads' %" PRId64, r->path,
                         c->n_kv_head, c->n_head);
    if (field_given(r, "head_dim")) {
        if (!field_int(r, "head_dim", 2, 1024, &c->d_head, err))
            return false;
    } else if (f->d_head) {
        c->d_head = f->d_head;
    } else {
        if (c->d_model % c->n_head)
            return error_set(err, ERR_DATA,
                             "'%s': 'num_attention_heads' %" PRId64 " does not divide 'hidden_size' %" PRId64 " and there is "
                             "no 'head_dim'",
                             r->path, c->n_head, c->d_model);
        c->d_head = c->d_model / c->n_head;
    }
    if (c->d_head % 2)
        return error_set(err, ERR_DATA, "'%s': 'head_dim' %" PRId64 " is odd; RoPE turns pairs", r->path, c->d_head);
    return true;
}

static bool object_read(struct model_config *c, const struct fields *r, struct error *err)
{
    if (!family_get(r, &c->family, err) || !unsupported_refuse(r, err))
        return false;
    const struct family *f = &families[c->family];
    c->norm_place = f->norm_place;
    c->norm_form = f->norm_form;
    c->fused_names = f->fused_names;
    c->keeps_wrapper = f->keeps_wrapper;
    if (!act_read(r, f, c, err))
        return false;
    c->n_head = f->n_head;
    c->vocab = f->vocab;
    c->rms_eps = f->rms_eps;
    if (!field_int(r, "num_hidden_layers", 1, CONFIG_LAYERS_MAX, &c->n_layer, err)
        || !field_int(r, "hidden_size", 1, 1 << 20, &c->d_model, err) || !field_int(r, "intermediate_size", 1, 1 << 22, &c->d_ff, err)
        || (must(r, "num_attention_heads", f->n_head > 0) && !field_int(r, "num_attention_heads", 1, 1 << 12, &c->n_head, err))
        || (must(r, "vocab_size", f->vocab > 0) && !field_int(r, "vocab_size", 1, 1 << 22, &c->vocab, err))
        || (must(r, "rms_norm_eps", f->rms_eps > 0) && !field_real(r, "rms_norm_eps", 0, 1, &c->rms_eps, err)))
        return false;
    if (!heads_read(r, f, c, err))
        return false;
    c->max_pos = f->max_pos ? f->max_pos : 32768;
    if (field_given(r, "max_position_embeddings") && !field_int(r, "max_position_embeddings", 1, 1 << 28, &c->max_pos, err))
        return false;
    c->has_rope_local = f->rope.local_theta > 0;
    if (!rope_read(&c->rope, &c->rope_local, r, &f->rope, c->max_pos, c->d_head, err) || !no_rope_read(r, f, c, err)
        || !window_read(r, f, c, err) || !multipliers_read(r, f, c, err) || !gemma_read(r, f, c, err) || !experts_read(r, f, c, err)
        || !delta_read(r, f, c, err))
        return false;
    c->tied = f->tied;
    if (field_given(r, "tie_word_embeddings") && !field_bool(r, "tie_word_embeddings", &c->tied, err))
        return false;
    c->qk_norm = f->qk_norm;
    c->qk_norm_wide = f->qk_norm_wide;
    if (f->attention_bias && field_given(r, "attention_bias") && !field_bool(r, "attention_bias", &c->o_bias, err))
        return false;
    if (f->mlp_bias && field_given(r, "mlp_bias") && !field_bool(r, "mlp_bias", &c->mlp_bias, err))
        return false;
    c->qkv_bias = f->qkv_bias || c->o_bias;
    c->bos = -1;
    int64_t bos;
    if (field_given(r, "bos_token_id")) {
        if (!field_int(r, "bos_token_id", 0, c->vocab - 1, &bos, err))
            return false;
        c->bos = (int32_t)bos;
    }
    c->initializer_range = 0.02;
    if (field_given(r, "initializer_range") && !field_real(r, "initializer_range", 0, 10, &c->initializer_range, err))
        return false;
    return eos_get(r, c, err);
}

static json_t *text_parse(const char *text, const char *path, struct error *err)
{
    json_t *root = json_text_parse(text, strlen(text), JSON_REJECT_DUPLICATES, path, err);
    if (root && !json_is_object(root)) {
        error_set(err, ERR_DATA, "'%s': not a JSON object", path);
        json_decref(root);
        return NULL;
    }
    return root;
}

static bool is_wrapper(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (size_t i = 0; type && i < ARRAY_SIZE(families); i++)
        if (families[i].wrapper && strcmp(type, families[i].wrapper) == 0)
            return true;
    return false;
}

bool config_parse(struct model_config *c, const char *text, const char *path, struct error *err)
{
    *c = (struct model_config){ 0 };
    json_t *root = text_parse(text, path, err);
    if (!root)
        return false;
    struct fields r = { root, path, "" }, inner = { json_object_get(root, "text_config"), path, "text_config." };
    bool wrapped = is_wrapper(root) && json_is_object(inner.obj);
    bool ok = wrapped ? object_read(c, &inner, err) && eos_get(&r, c, err) : object_read(c, &r, err);
    c->wrapped = wrapped;
    json_decref(root);
    return ok;
}

bool config_load(struct model_config *c, const char *dir, struct error *err)
{
    bool ok = false;
    char path[4096];
    struct buf text = BUF_INIT;
    json_t *gen = NULL;
    if (!path_join(path, sizeof path, dir, "config.json"))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    TRY(file_read_text(&text, path, CONFIG_BYTES_MAX, err));
    TRY(config_parse(c, buf_text(&text), path, err));
    c->head_differs = c->tied && file_head_differs(c, dir);
    c->tied = c->tied && !c->head_differs;
    if (!path_join(path, sizeof path, dir, "generation_config.json") || !path_exists(path)) {
        ok = true;
        goto out;
    }
    buf_clear(&text);
    TRY(file_read_text(&text, path, CONFIG_BYTES_MAX, err));
    TRY(gen = text_parse(buf_text(&text), path, err));
    struct fields r = { gen, path, "" };
    TRY(eos_get(&r, c, err));
    ok = true;
out:
    json_decref(gen);
    buf_release(&text);
    return ok;
}

/* The list of layer_types, as layer_types_read has it. */
static bool layer_types_write(const struct model_config *c, const char *kind, const uint64_t *layers, json_t *j)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int64_t l = 0; l < c->n_layer; l++)
        ok = ok && json_array_append_new(list, json_string(layers[l / 64] >> (l % 64) & 1 ? kind : "full_attention")) == 0;
    return json_object_set_new(j, "layer_types", list) == 0 && ok;
}

/* sliding_window, and the kind of each layer where that is not what a missing list means. */
static bool window_write(const struct model_config *c, const struct family *f, json_t *j)
{
    if (f->windows == WINDOWS_NONE)
        return true;
    bool ok = json_object_set_new(j, "sliding_window", c->window ? json_integer(c->window) : json_null()) == 0;
    if (f->windows == WINDOWS_UPPER || f->windows == WINDOWS_STILL || f->windows == WINDOWS_SWITCH)
        ok = ok && json_object_set_new(j, "use_sliding_window", json_boolean(c->window > 0)) == 0;
    bool listed = f->windows != WINDOWS_ALL && (c->window || f->windows == WINDOWS_REPEAT);
    for (int64_t l = 0; l < c->n_layer && c->window; l++)
        listed = listed || !config_slides(c, l);
    if (!listed)
        return ok;
    return layer_types_write(c, "sliding_attention", c->slides, j) && ok;
}

static bool experts_write(const struct model_config *c, const struct family *f, json_t *j)
{
    if (!f->experts.n_key)
        return true;
    bool ok = json_object_set_new(j, f->experts.n_key, json_integer(c->experts.n)) == 0
              && json_object_set_new(j, "num_experts_per_tok", json_integer(c->experts.k)) == 0
              && json_object_set_new(j, f->experts.width_key, json_integer(c->experts.d_ff)) == 0;
    if (f->experts.reads_normalise)
        ok = ok && json_object_set_new(j, "norm_topk_prob", json_boolean(c->experts.normalise)) == 0;
    if (!f->experts.reads_dense)
        return ok;
    json_t *list = json_array();
    for (int64_t l = 0; l < c->n_layer; l++)
        ok = ok && (config_is_sparse(c, l) || json_array_append_new(list, json_integer(l)) == 0);
    return json_object_set_new(j, "mlp_only_layers", list) == 0 && ok
           && json_object_set_new(j, "decoder_sparse_step", json_integer(1)) == 0;
}

static bool delta_write(const struct model_config *c, const struct family *f, json_t *j)
{
    if (!f->delta)
        return true;
    struct delta_heads h = c->delta.heads;
    return layer_types_write(c, "linear_attention", c->delta.layers, j)
           && json_object_set_new(j, "linear_num_key_heads", json_integer(h.n_k)) == 0
           && json_object_set_new(j, "linear_num_value_heads", json_integer(h.n_v)) == 0
           && json_object_set_new(j, "linear_key_head_dim", json_integer(h.d_k)) == 0
           && json_object_set_new(j, "linear_value_head_dim", json_integer(h.d_v)) == 0
           && json_object_set_new(j, "linear_conv_kernel_dim", json_integer(4)) == 0;
}

static json_t *cap_json(double cap)
{
    return cap > 0 ? json_real(cap) : json_null();
}

/* Set the keys that only some families have. */
static bool traits_write(const struct model_config *c, json_t *j)
{
    // the classes of these have tokens of the published vocabulary for those that are not given
    static const char *const tokens[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
    const struct family *f = &families[c->family];
    bool ok = window_write(c, f, j) && experts_write(c, f, j) && delta_write(c, f, j);
    for (size_t i = 0; f->multipliers && i < ARRAY_SIZE(multipliers); i++)
        ok = ok && json_object_set_new(j, multipliers[i].key, json_real(*(const double *)((const char *)c + multipliers[i].at))) == 0;
    if (f->mlp_bias)
        ok = ok && json_object_set_new(j, "mlp_bias", json_boolean(c->mlp_bias)) == 0;
    if (f->reads_attn_cap)
        ok = ok && json_object_set_new(j, "attn_logit_softcapping", cap_json(c->attn_cap)) == 0;
    if (f->reads_logit_cap)
        ok = ok && json_object_set_new(j, "final_logit_softcapping", cap_json(c->logit_cap)) == 0;
    if (f->query_scalar)
        ok = ok && json_object_set_new(j, "query_pre_attn_scalar", json_integer(c->query_scalar)) == 0;
    for (size_t i = 0; i < ARRAY_SIZE(tokens) && f->named_tokens; i++)
        ok = ok && json_object_set_new(j, tokens[i], json_null()) == 0;
    if (!f->no_rope_every)
        return ok;
    json_t *list = json_array();
    for (int64_t l = 0; l < c->n_layer; l++)
        ok = ok && json_array_append_new(list, json_integer(config_rotates(c, l))) == 0;
    return json_object_set_new(j, "no_rope_layers", list) == 0 && ok;
}

static const char *act_name(enum gate_act act)
{
    size_t i = 0;
    while (activations[i].act != act)
        i++;
    return activations[i].name;
}

bool config_save(const struct model_config *c, const char *dir, const char *dtype, struct error *err)
{
    bool ok = false;
    char path[4096];
    char *text = NULL;
    const struct family *f = &families[c->family];
    json_t *j = json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:b, s:s, s:f, s:s, s:b, s:f}", "architectures",
                          f->architecture, "model_type", f->model_type, "num_hidden_layers", (json_int_t)c->n_layer, "hidden_size",
                          (json_int_t)c->d_model, "num_attention_heads", (json_int_t)c->n_head, "num_key_value_heads",
                          (json_int_t)c->n_kv_head, "head_dim", (json_int_t)c->d_head, "intermediate_size", (json_int_t)c->d_ff,
                          "vocab_size", (json_int_t)c->vocab, "max_position_embeddings", (json_int_t)c->max_pos, "rms_norm_eps", c->rms_eps,
                          "tie_word_embeddings", (int)c->tied, "attention_bias", (int)c->o_bias, act_key(f), act_name(c->act),
                          "attention_dropout", 0.0, "torch_dtype", dtype, "use_cache", 1, "initializer_range", c->initializer_range);
    bool built = j != NULL;
    built = built && rope_write(&c->rope, &c->rope_local, &f->rope, j) && traits_write(c, j);
    if (c->bos >= 0)
        built = built && json_object_set_new(j, "bos_token_id", json_integer(c->bos)) == 0;
    if (c->n_eos == 1)
        built = built && json_object_set_new(j, "eos_token_id", json_integer(c->eos[0])) == 0;
    if (c->n_eos > 1) {
        json_t *list = json_array();
        for (int i = 0; i < c->n_eos; i++)
            built = built && json_array_append_new(list, json_integer(c->eos[i])) == 0;
        built = built && json_object_set_new(j, "eos_token_id", list) == 0;
    }
    if (!built || !(text = json_text_dump(j, JSON_INDENT(2) | JSON_REAL_PRECISION(15)))) {
        error_set(err, ERR_NO_MEMORY, "no memory for config.json");
        goto out;
    }
    if (!path_join(path, sizeof path, dir, "config.json")) {
        error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
        goto out;
    }
    TRY(file_write(path, text, strlen(text), err));
    ok = true;
out:
    free(text);
    json_decref(j);
    return ok;
}
