/* config_shapes.c - shapes by name: published models, and the small ones of examples and benchmarks */
#include <stdio.h>
#include <string.h>
#include "workers/engine/model/config.h"

#define QWEN2(layers, d, heads, kv, ff, rows, is_tied)                                                                                     \
    {                                                                                                                                      \
        .family = FAMILY_QWEN2, .n_layer = layers, .d_model = d, .n_head = heads, .n_kv_head = kv, .d_head = (d) / (heads), .d_ff = ff,    \
        .vocab = rows, .max_pos = 32768, .rms_eps = 1e-6, .rope.theta = 1e6, .tied = is_tied, .qkv_bias = true, .bos = -1,                 \
        .eos = { 151645, 151643 }, .n_eos = 2, .initializer_range = 0.02                                                                   \
    }
#define QWEN3(layers, d, heads, kv, ff, is_tied)                                                                                           \
    {                                                                                                                                      \
        .family = FAMILY_QWEN3, .n_layer = layers, .d_model = d, .n_head = heads, .n_kv_head = kv, .d_head = 128, .d_ff = ff,              \
        .vocab = 151936, .max_pos = 40960, .rms_eps = 1e-6, .rope.theta = 1e6, .tied = is_tied, .qk_norm = true, .bos = -1,                \
        .eos = { 151645, 151643 }, .n_eos = 2, .initializer_range = 0.02                                                                   \
    }
#define QWEN3_5(n_layers, d, q_heads, kv, value_heads, ff, is_tied)                                                                        \
    {                                                                                                                                      \
        .family = FAMILY_QWEN3_5, .n_layer = n_layers, .d_model = d, .n_head = q_heads, .n_kv_head = kv, .d_head = 256, .d_ff = ff,        \
        .vocab = 248320, .max_pos = 262144, .rms_eps = 1e-6, .rope = { .theta = 1e7, .partial = 0.25 }, .norm_form = NORM_GEMMA,           \
        .qk_norm = true, .attn_gate = true, .tied = is_tied,                                                                               \
        .delta = { .heads = { 16, value_heads, 128, 128, false }, .layers = { 0x7777777777777777 & (UINT64_MAX >> (64 - (n_layers))) } },  \
        .bos = -1, .eos = { 248046, 248044 }, .n_eos = 2, .initializer_range = 0.02                                                        \
    }
/* What the starters of examples/ have in common. */
#define STARTER                                                                                                                            \
    .n_layer = 3, .d_model = 128, .n_head = 4, .n_kv_head = 2, .d_head = 32, .d_ff = 384, .vocab = 320, .max_pos = 1024, .rms_eps = 1e-6,  \
    .rope.theta = 10000, .tied = true, .bos = -1, .n_eos = 0, .initializer_range = 0.02
/* Hugging Face config.json of each; parameter totals agree with the published sizes. */
// clang-format off
static const struct shape {
    const char *name;
    struct model_config c;
} shapes[] = {
    {"Qwen2.5-0.5B", QWEN2(24, 896, 14, 2, 4864, 151936, true)},
    {"Qwen2.5-1.5B", QWEN2(28, 1536, 12, 2, 8960, 151936, true)},
    {"Qwen2.5-3B", QWEN2(36, 2048, 16, 2, 11008, 151936, true)},
    {"Qwen2.5-7B", QWEN2(28, 3584, 28, 4, 18944, 152064, false)},
    {"Qwen2.5-14B", QWEN2(48, 5120, 40, 8, 13824, 152064, false)},
    {"Qwen2.5-32B", QWEN2(64, 5120, 40, 8, 27648, 152064, false)},
    {"Qwen3-0.6B", QWEN3(28, 1024, 16, 8, 3072, true)},
    {"Qwen3-1.7B", QWEN3(28, 2048, 16, 8, 6144, true)},
    {"Qwen3-4B", QWEN3(36, 2560, 32, 8, 9728, true)},
    {"Qwen3-8B", QWEN3(36, 4096, 32, 8, 12288, false)},
    {"Qwen3.5-4B", QWEN3_5(32, 2560, 16, 4, 32, 9216, true)},
    {"Qwen3.5-9B", QWEN3_5(32, 4096, 16, 4, 32, 12288, false)},
    {"Qwen3.5-27B", QWEN3_5(64, 5120, 24, 4, 48, 17408, false)},
    {"Qwen3-30B-A3B",
     {.family = FAMILY_QWEN3_MOE,
      .n_layer = 48,
      .d_model = 2048,
      .n_head = 32,
      .n_kv_head = 4,
      .d_head = 128,
      .d_ff = 6144,
      .vocab = 151936,
      .max_pos = 40960,
      .rms_eps = 1e-6,
      .rope.theta = 1e6,
      .qk_norm = true,
      .experts = {.n = 128, .k = 8, .d_ff = 768, .normalise = true},
      .bos = -1,
      .eos = {151645, 151643},
      .n_eos = 2,
      .initializer_range = 0.02}},
    {"OLMoE-1B-7B",
     {.family = FAMILY_OLMOE,
      .n_layer = 16,
      .d_model = 2048,
      .n_head = 16,
      .n_kv_head = 16,
      .d_head = 128,
      .d_ff = 1024,
      .vocab = 50304,
      .max_pos = 4096,
      .rms_eps = 1e-5,
      .rope.theta = 10000,
      .qk_norm = true,
      .qk_norm_wide = true,
      .experts = {.n = 64, .k = 8, .d_ff = 1024},
      .bos = -1,
      .eos = {50279},
      .n_eos = 1,
      .initializer_range = 0.02}},
    {"Llama-3.1-8B",
     {.family = FAMILY_LLAMA,
      .n_layer = 32,
      .d_model = 4096,
      .n_head = 32,
      .n_kv_head = 8,
      .d_head = 128,
      .d_ff = 14336,
      .vocab = 128256,
      .max_pos = 131072,
      .rms_eps = 1e-5,
      .rope.theta = 500000,
      .rope.type = ROPE_LLAMA3,
      .rope.factor = 8,
      .rope.low_freq_factor = 1,
      .rope.high_freq_factor = 4,
      .rope.original_max_pos = 8192,
      .bos = 128000,
      .eos = {128001, 128008, 128009},
      .n_eos = 3,
      .initializer_range = 0.02}},
    // the arithmetic starter of examples/: 0.6 M parameters
    {"starter",
     {.family = FAMILY_QWEN2,
      STARTER,
      .qkv_bias = true}},
    // the starter as a mixture of experts: 1.4 M parameters, of which a token takes part in 0.5 M
    {"starter-moe",
     {.family = FAMILY_QWEN3_MOE,
      STARTER,
      .qk_norm = true,
      .experts = {.n = 8, .k = 2, .d_ff = 128, .normalise = true}}},
    // the starter with a gated delta net in two of three layers
    {"starter-hybrid",
     {.family = FAMILY_QWEN3_5,
      STARTER,
      .rope.partial = 0.5,
      .norm_form = NORM_GEMMA,
      .qk_norm = true,
      .attn_gate = true,
      .delta = {.heads = {2, 4, 32, 32, false}, .layers = {3}}}},
    // 2 M parameters, for `rollcall bench cpu`
    {"bench-2M",
     {.family = FAMILY_QWEN2,
      .n_layer = 4,
      .d_model = 192,
      .n_head = 6,
      .n_kv_head = 2,
      .d_head = 32,
      .d_ff = 512,
      .vocab = 2048,
      .max_pos = 1024,
      .rms_eps = 1e-6,
      .rope.theta = 10000,
      .tied = true,
      .qkv_bias = true,
      .bos = -1,
      .n_eos = 0,
      .initializer_range = 0.02}},
};
// clang-format on

const struct model_config *config_shape(const char *name, struct error *err)
{
    char list[512] = "";
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i].c;
        size_t len = strlen(list);
        snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", shapes[i].name);
    }
    error_set(err, ERR_USAGE, "unknown shape '%s'; known are %s", name, list);
    return NULL;
}
