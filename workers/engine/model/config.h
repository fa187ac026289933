/* config.h - what a model's config.json says; the table of families is in config.c, that of named shapes in config_shapes.c
 *
 * Read once when a model is loaded, written next to saved weights. Plain data; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"
#include "workers/engine/model/rope.h"

enum model_family {
    FAMILY_QWEN2,
    FAMILY_QWEN3,
    FAMILY_LLAMA,
    FAMILY_MISTRAL,
    FAMILY_GRANITE,
    FAMILY_SMOLLM3,
    FAMILY_OLMO2,
    FAMILY_OLMO3,
    FAMILY_PHI3,
    FAMILY_GEMMA2,
    FAMILY_GEMMA3,
    FAMILY_QWEN3_MOE,
    FAMILY_OLMOE,
    FAMILY_MIXTRAL,
    FAMILY_GRANITE_MOE,
    FAMILY_QWEN3_5,
};
/* How the files name a layer's router and experts, and lay them out. */
enum expert_files {
    EXPERTS_MLP,       // mlp.gate; mlp.experts.E.gate_proj, up_proj and down_proj
    EXPERTS_SPARSE,    // block_sparse_moe.gate; block_sparse_moe.experts.E.w1, w3 and w2 (Mixtral)
    EXPERTS_FUSED,     // block_sparse_moe.router.layer; input_linear (E, 2 I, d) and output_linear (E, d, I) (Granite)
};
/* Where the norms of the two halves of a block, attention and MLP, are: x += half(norm(x)), or as said. */
enum norm_place {
    NORM_BEFORE,
    NORM_AFTER,     // x += norm(half(x)) (OLMo)
    NORM_AROUND,    // x += norm'(half(norm(x))) (Gemma)
};
#define CONFIG_EOS_MAX 8
#define CONFIG_LAYERS_MAX 1024

struct model_config {
    enum model_family family;
    int64_t n_layer;
    int64_t d_model;      // hidden_size
    int64_t n_head;       // query heads
    int64_t n_kv_head;    // divides n_head
    int64_t d_head;       // head_dim; n_head * d_head need not be d_model (Qwen3)
    int64_t d_ff;         // intermediate_size
    int64_t vocab;        // rows of the embedding; may be more than the tokenizer's ids
    int64_t max_pos;      // max_position_embeddings
    double rms_eps;
    struct rope rope;
    bool has_rope_local;    // layers with a window have frequencies of their own:
    struct rope rope_local;
    enum norm_place norm_place;
    enum norm_form norm_form;    // of all norms
    enum gate_act act;
    bool wrapped;          // it was the text part of a model of images and text: the files' names have a prefix, others are left out
    bool keeps_wrapper;    // it is saved with the names and with the other parts that the files had (wrapper.h)
    bool fused_names;      // the files hold qkv_proj and gate_up_proj, not their parts (Phi-3)
    bool tied;             // the head is the embedding
    bool head_differs;     // config.json says tied, but the files hold another head: tied is false (transformers 5 and vLLM do the same)
    bool qkv_bias;         // Qwen2: yes; else attention_bias
    bool o_bias;           // attention_bias
    bool mlp_bias;         // of gate, up and down
    bool qk_norm;          // RMSNorm of every query and key head before RoPE (Qwen3)
    bool qk_norm_wide;     // ... instead of all query heads together, and all key heads (OLMo)
    int64_t window;        // sliding_window: keys that a query sees in the layers below; 0: none
    uint64_t slides[CONFIG_LAYERS_MAX / 64];     // bit l: layer l has the window
    double attn_cap, logit_cap;                  // soft caps of scores and of logits (Gemma 2); 0: none
    int64_t query_scalar;                        // scores are divided by its root instead of d_head's (Gemma); 0: d_head's
    bool embed_root;                             // the embedding is multiplied by the root of d_model, rounded to dtype (Gemma)
    uint64_t no_rope[CONFIG_LAYERS_MAX / 64];    // bit l: q and k of layer l are not rotated (SmolLM3)
    bool has_multipliers;                        // Granite: the four below; the others have 1, 1, 1 / sqrt(d_head) and 1
    struct {
        double embedding;    // of the embedding's rows
        double residual;     // of what a half block adds
        double attention;    // of q k
        double logits;       // they are divided by it
    } multiplier;
    int32_t bos;    // -1: none
    int32_t eos[CONFIG_EOS_MAX];
    int n_eos;
    struct {
        int64_t n;         // of each layer that has some; 0: the model has none
        int64_t k;         // of a token
        int64_t d_ff;      // width of each
        bool normalise;    // the weights of the chosen ones add up to 1
        enum expert_files files;
        uint64_t dense[CONFIG_LAYERS_MAX / 64];    // bit l: layer l has one MLP of d_ff instead
    } experts;
    struct {
        struct delta_heads heads;                   // ops.h; n_v 0: the model has no such layers
        uint64_t layers[CONFIG_LAYERS_MAX / 64];    // bit l: layer l has a gated delta net instead of attention
    } delta;
    bool attn_gate;              // q_proj has a gate after each query head, whose sigmoid the head's output is multiplied by
    double initializer_range;    // of random weights; 0.02 unless given
};

/* Parse dir/config.json (and the end tokens of dir/generation_config.json if it exists). ERR_DATA names file and key:
 * missing, of the wrong type, out of range, or of a kind that is not supported (other rope scalings, activations). */
MUST_USE bool config_load(struct model_config *c, const char *dir, struct error *err);
/* As config_load, from text; path is only used in messages. */
MUST_USE bool config_parse(struct model_config *c, const char *text, const char *path, struct error *err);
/* Write dir/config.json so that transformers loads it; dtype is "float32" or "bfloat16". */
MUST_USE bool config_save(const struct model_config *c, const char *dir, const char *dtype, struct error *err);
/* Would weights made for `come` be computed with as they are by a model of `have`? ERR_DATA names each key that differs, with both values;
 * what: whose config `come` is. */
MUST_USE bool config_same(const struct model_config *have, const struct model_config *come, const char *what, struct error *err);
/* A well-known shape ("Qwen2.5-0.5B" ... "Llama-3.1-8B", "starter"); NULL: err lists them. */
const struct model_config *config_shape(const char *name, struct error *err);
/* Is q and k of layer l rotated by position? */
static inline bool config_rotates(const struct model_config *c, int64_t l)
{
    return !(c->no_rope[l / 64] >> (l % 64) & 1);
}
/* Do queries of layer l see a window only? */
static inline bool config_slides(const struct model_config *c, int64_t l)
{
    return c->window && c->slides[l / 64] >> (l % 64) & 1;
}
/* Has layer l a gated delta net, not attention? */
static inline bool config_is_delta(const struct model_config *c, int64_t l)
{
    return c->delta.layers[l / 64] >> (l % 64) & 1;
}
/* Has the model layers that keep a state of each sequence? */
static inline bool config_has_states(const struct model_config *c)
{
    return c->delta.heads.n_v > 0;
}
int64_t config_n_attn(const struct model_config *c);    // layers with attention
/* Columns of what the first product of a layer's first half gives, of the queries, keys and values in it, and of what its last product
 * takes; delta: the layer has a gated delta net. */
int64_t config_in_width(const struct model_config *c, bool delta);
int64_t config_qkv_width(const struct model_config *c, bool delta);
int64_t config_mix_width(const struct model_config *c, bool delta);
/* Has layer l experts, not one MLP? */
static inline bool config_is_sparse(const struct model_config *c, int64_t l)
{
    return c->experts.n && !(c->experts.dense[l / 64] >> (l % 64) & 1);
}
int64_t config_n_sparse(const struct model_config *c);    // layers with experts
/* The widest that a token's MLP activations are in any layer: those of all its experts, or of the one MLP. */
int64_t config_mlp_width(const struct model_config *c);
/* Tokens of the longest sequence that the model takes: max_position_embeddings, or with yarn the original positions times the factor if
 * they are more (Qwen2.5's recipe for long texts adds yarn and leaves the rest; vLLM reads it like this). */
int64_t config_longest(const struct model_config *c);
/* All parameters, the tied head counted once. */
int64_t config_n_param(const struct model_config *c);
/* Weights that take part in products: everything except norms and biases; a tied table counts once, as the head. */
int64_t config_n_product(const struct model_config *c);
int64_t config_n_kv(const struct model_config *c);    // numbers that a token's keys and values have in all layers
/* Those that a token takes part in: of its own experts only. */
int64_t config_n_active(const struct model_config *c);
/* Floating-point operations of a forward pass by token that sees n_seen tokens, itself included: 2 per such weight, attention's two
 * products, and 7 per number of the states of linear attention. Windows are not taken into account. A backward pass takes twice as many
 * (Kaplan et al., arXiv 2001.08361, appendix A). */
double config_flops(const struct model_config *c, double n_seen);
/* ERR_UNSUPPORTED, with what to do, where c has experts or states. how: what they cannot be cut into. */
MUST_USE bool config_stays_whole(const struct model_config *c, const char *how, struct error *err);
