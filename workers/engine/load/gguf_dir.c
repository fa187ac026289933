/* gguf_dir.c - config.json and model.safetensors of a GGUF file */
#include "workers/engine/load/gguf_dir.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/macros.h"
#include "workers/engine/load/gguf.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/text/tokenizer.h"

#define NAME_BYTES 192

/* What llama.cpp calls a family, and how its files differ from transformers'. */
static const struct arch {
    const char *name;    // general.architecture
    const char *model_type, *class;
    bool permuted;    // rows of q and k are in the order of pairs, not of halves
    bool fused;       // q, k and v are one tensor, and so are gate and up
    bool gemma;       // norms around the halves of a block, stored with 1 added; keys of its own
} archs[] = {
    { "llama", "llama", "LlamaForCausalLM", .permuted = true },
    { "qwen2", "qwen2", "Qwen2ForCausalLM" },
    { "qwen3", "qwen3", "Qwen3ForCausalLM" },
    { "phi3", "phi3", "Phi3ForCausalLM", .fused = true },
    { "gemma2", "gemma2", "Gemma2ForCausalLM", .gemma = true },
    { "gemma3", "gemma3_text", "Gemma3ForCausalLM", .gemma = true },
};
/* The parts of a block: blk.N.FROM is model.layers.N.TO. */
static const struct part {
    const char *from, *to;
    const char *gemma, *fused;    // other names in these; NULL: the same
} parts[] = {
    { "attn_norm", "input_layernorm", NULL, NULL },
    { "attn_q", "self_attn.q_proj", NULL, NULL },
    { "attn_k", "self_attn.k_proj", NULL, NULL },
    { "attn_v", "self_attn.v_proj", NULL, NULL },
    { "attn_qkv", "self_attn.qkv_proj", NULL, NULL },
    { "attn_output", "self_attn.o_proj", NULL, NULL },
    { "attn_q_norm", "self_attn.q_norm", NULL, NULL },
    { "attn_k_norm", "self_attn.k_norm", NULL, NULL },
    { "post_attention_norm", "post_attention_layernorm", NULL, NULL },
    { "ffn_norm", "post_attention_layernorm", "pre_feedforward_layernorm", NULL },
    { "post_ffw_norm", "post_feedforward_layernorm", NULL, NULL },
    { "ffn_gate", "mlp.gate_proj", NULL, NULL },
    { "ffn_up", "mlp.up_proj", NULL, "mlp.gate_up_proj" },
    { "ffn_down", "mlp.down_proj", NULL, NULL },
};

static bool arch_find(const struct gguf *g, const struct arch **out, struct error *err)
{
    struct gguf_text name;
    int64_t n_part = 1;
    char known[128] = "";
    if (gguf_has(g, "split.count") && !gguf_int(g, "split.count", 0, 65535, &n_part, err))
        return false;
    if (n_part > 1)
        return error_set(err, ERR_UNSUPPORTED, "'%s' is one of several parts; join them with llama.cpp's llama-gguf-split --merge",
                         gguf_path(g));
    if (!gguf_text(g, "general.architecture", &name, err))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(archs); i++) {
        if (gguf_text_is(name, archs[i].name)) {
            *out = &archs[i];
            return true;
        }
        size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", i == 0 ? "" : i + 1 < ARRAY_SIZE(archs) ? ", " : " and ", archs[i].name);
    }
    return error_set(err, ERR_UNSUPPORTED, "'%s': 'general.architecture' is '%.*s'; known are %s", gguf_path(g),
                     (int)MIN(name.len, (size_t)80), name.at, known);
}

/* ---- config.json ---- */

/* A config in the making. */
struct config {
    const struct gguf *g;
    const struct arch *arch;
    struct buf *out;
    char key[96];    // of the file: the last that was asked for
};

static const char *config_key(struct config *c, const char *name)
{
    snprintf(c->key, sizeof c->key, "%s.%s", c->arch->name, name);
    return c->key;
}

static bool config_has(struct config *c, const char *name)
{
    return gguf_has(c->g, config_key(c, name));
}

static void real_put(struct config *c, const char *name, double v)
{
    buf_fmt(c->out, ",\n \"%s\": ", name);
    json_number_print(c->out, v);
}

static bool int_copy(struct config *c, const char *from, const char *to, int64_t *out, struct error *err)
{
    if (!gguf_int(c->g, config_key(c, from), 1, INT32_MAX, out, err))
        return false;
    buf_fmt(c->out, ",\n \"%s\": %" PRId64, to, *out);
    return true;
}

static bool real_copy(struct config *c, const char *from, const char *to, struct error *err)
{
    double v;
    if (!gguf_real(c->g, config_key(c, from), &v, err))
        return false;
    real_put(c, to, v);
    return true;
}

/* Llama 3 frequencies are in the file as what each is divided by (llama.cpp, convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors). Its
 * four settings are found again: the least frequency's divisor is the factor, and the published models share the other three. */
static bool llama3_put(struct config *c, const struct gguf_tensor *t, double theta, int64_t d_head, struct error *err)
{
    const double low = 1, high = 4, original = 8192;
    bool same = t->n_dim == 1 && t->n_elem == d_head / 2 && t->type->n_elem == 1;
    float *have = same ? malloc((size_t)t->n_elem * sizeof *have) : NULL;
    double factor = 1;
    if (same && !have)
        return error_set(err, ERR_NO_MEMORY, "no memory for tensor '%s'", t->name);
    if (same) {
        gguf_part_to_f32(have, t, 0, t->n_elem);
        factor = gguf_decimal(have[t->n_elem - 1]);
    }
    for (int64_t i = 0; same && i < t->n_elem; i++) {
        double wave = 2 * M_PI * pow(theta, (double)(2 * i) / (double)d_head), want = 1;
        if (wave > original / low) {
            want = factor;
        } else if (wave >= original / high) {
            double smooth = (original / wave - low) / (high - low);
            want = 1 / ((1 - smooth) / factor + smooth);
        }
        same = fabs(have[i] - want) <= 1e-5 * want;    // fp32, computed in an order that the file does not tell
    }
    free(have);
    if (!same)
        return error_set(err, ERR_UNSUPPORTED, "'%s': tensor '%s' does not hold the frequencies of a Llama 3 model", gguf_path(c->g),
                         t->name);
    buf_fmt(c->out, ",\n \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": ");
    json_number_print(c->out, factor);
    return buf_fmt(c->out, ", \"low_freq_factor\": %.1f, \"high_freq_factor\": %.1f, \"original_max_position_embeddings\": %d}", low, high,
                   (int)original)
           || error_set(err, ERR_NO_MEMORY, "no memory for config.json");
}

/* A tensor of divisors as a list of numbers. */
static bool factors_put(struct config *c, const char *tensor, const char *name, int64_t n, struct error *err)
{
    const struct gguf_tensor *t = gguf_tensor_find(c->g, tensor);
    if (!t || t->n_dim != 1 || t->n_elem != n || t->type->n_elem != 1)
        return error_set(err, ERR_DATA, "'%s': tensor '%s' is missing or has not %" PRId64 " values", gguf_path(c->g), tensor, n);
    buf_fmt(c->out, ", \"%s\": [", name);
    for (int64_t i = 0; i < n; i++) {
        float f;
        gguf_part_to_f32(&f, t, i, 1);
        if (!isfinite(f))
            return error_set(err, ERR_DATA, "'%s': a value of tensor '%s' is not finite", gguf_path(c->g), tensor);
        buf_str(c->out, i ? ", " : "");
        json_number_print(c->out, gguf_decimal(f));
    }
    buf_char(c->out, ']');
    return true;
}

/* Everything about positions. */
static bool rope_put(struct config *c, int64_t d_head, struct error *err)
{
    const struct gguf_tensor *freqs = gguf_tensor_find(c->g, "rope_freqs.weight");
    struct gguf_text type = { "none", 4 };
    double theta = 10000, factor;
    int64_t original, n_rotated = d_head;
    if (config_has(c, "rope.freq_base") && !gguf_real(c->g, c->key, &theta, err))
        return false;
    real_put(c, "rope_theta", theta);
    if (config_has(c, "rope.dimension_count") && !gguf_int(c->g, c->key, 2, d_head, &n_rotated, err))
        return false;
    if (n_rotated != d_head)
        real_put(c, "partial_rotary_factor", (double)n_rotated / (double)d_head);
    if (freqs)
        return llama3_put(c, freqs, theta, d_head, err);
    if (config_has(c, "rope.scaling.type") && !gguf_text(c->g, c->key, &type, err))
        return false;
    bool longrope = gguf_text_is(type, "longrope") || gguf_tensor_find(c->g, "rope_factors_long.weight");
    if (gguf_text_is(type, "none") && !longrope)
        return true;
    if (longrope) {
        buf_str(c->out, ",\n \"rope_scaling\": {\"type\": \"longrope\"");
        if (!factors_put(c, "rope_factors_short.weight", "short_factor", n_rotated / 2, err)
            || !factors_put(c, "rope_factors_long.weight", "long_factor", n_rotated / 2, err))
            return false;
        buf_char(c->out, '}');
        return int_copy(c, "rope.scaling.original_context_length", "original_max_position_embeddings", &original, err);
    }
    if (!gguf_text_is(type, "linear") && !gguf_text_is(type, "yarn"))
        return error_set(err, ERR_UNSUPPORTED, "'%s': '%s' is '%.*s'; none, linear, yarn and longrope are supported", gguf_path(c->g),
                         c->key, (int)MIN(type.len, (size_t)80), type.at);
    if (!gguf_real(c->g, config_key(c, "rope.scaling.factor"), &factor, err))
        return false;
    buf_fmt(c->out, ",\n \"rope_scaling\": {\"rope_type\": \"%.*s\", \"factor\": ", (int)type.len, type.at);
    json_number_print(c->out, factor);
    if (gguf_text_is(type, "yarn")) {
        if (!gguf_int(c->g, config_key(c, "rope.scaling.original_context_length"), 1, INT32_MAX, &original, err))
            return false;
        buf_fmt(c->out, ", \"original_max_position_embeddings\": %" PRId64, original);
    }
    buf_char(c->out, '}');
    return true;
}

/* What only Gemma has. Scores are divided by the root of the head's width, but in the 27B models by that of d_model / n_head, which the
 * file does not say (llama.cpp knows them by their number of layers, too). */
static bool gemma_put(struct config *c, int64_t n_layer, int64_t d_model, int64_t n_head, int64_t d_head, struct error *err)
{
    bool second = strcmp(c->arch->name, "gemma2") == 0, large = n_layer == (second ? 46 : 62);
    int64_t window;
    buf_fmt(c->out, ",\n \"query_pre_attn_scalar\": %" PRId64 ",\n \"hidden_activation\": \"gelu_pytorch_tanh\"",
            large ? d_model / n_head : d_head);
    if (second
        && (!real_copy(c, "attn_logit_softcapping", "attn_logit_softcapping", err)
            || !real_copy(c, "final_logit_softcapping", "final_logit_softcapping", err)))
        return false;
    return !config_has(c, "attention.sliding_window") || int_copy(c, "attention.sliding_window", "sliding_window", &window, err);
}

/* The special tokens that config.json and generation_config.json both name; the end of a turn ends a sample too. */
static bool tokens_put(struct buf *out, const struct gguf *g, int64_t vocab, struct error *err)
{
    static const struct {
        const char *key, *name;
    } ids[] = {
        { "tokenizer.ggml.bos_token_id", "bos_token_id" },
        { "tokenizer.ggml.padding_token_id", "pad_token_id" },
        { "tokenizer.ggml.eos_token_id", "eos_token_id" },
    };
    int64_t id = -1, turn = -1;
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
        if (!gguf_has(g, ids[i].key))
            continue;
        if (!gguf_int(g, ids[i].key, 0, vocab - 1, &id, err))
            return false;
        bool last = i + 1 == ARRAY_SIZE(ids);
        if (last && gguf_has(g, "tokenizer.ggml.eot_token_id") && !gguf_int(g, "tokenizer.ggml.eot_token_id", 0, vocab - 1, &turn, err))
            return false;
        bool two = last && turn >= 0 && turn != id;
        buf_fmt(out, ",\n \"%s\": %s%" PRId64, ids[i].name, two ? "[" : "", id);
        if (two)
            buf_fmt(out, ", %" PRId64 "]", turn);
    }
    return true;
}

/* The type that a tensor is written in. changed: its values are not those of the file. */
static enum st_dtype dtype_kept(const struct gguf_tensor *t, enum gguf_keep keep, bool changed)
{
    bool exact = keep == GGUF_KEEP_EXACT && !changed;
    return keep == GGUF_KEEP_BF16 || (exact && strcmp(t->type->name, "BF16") == 0) ? ST_BF16
           : exact && strcmp(t->type->name, "F16") == 0                            ? ST_F16
                                                                                   : ST_F32;
}

static bool config_put(struct config *c, enum gguf_keep keep, struct error *err)
{
    const struct gguf_tensor *embed = gguf_tensor_find(c->g, "token_embd.weight");
    int64_t n_layer, d_model, d_ff, n_head, n_kv, max_pos, d_head, window;
    if (!embed || embed->n_dim != 2)
        return error_set(err, ERR_DATA, "'%s': tensor 'token_embd.weight' is missing, or no matrix", gguf_path(c->g));
    // config.json names one type: that of most weights
    enum st_dtype dtype = dtype_kept(embed, keep, false);
    buf_fmt(c->out, "{\n \"architectures\": [\"%s\"],\n \"model_type\": \"%s\",\n \"torch_dtype\": \"%s\"", c->arch->class,
            c->arch->model_type,
            dtype == ST_BF16  ? "bfloat16"
            : dtype == ST_F16 ? "float16"
                              : "float32");
    if (!int_copy(c, "block_count", "num_hidden_layers", &n_layer, err) || !int_copy(c, "embedding_length", "hidden_size", &d_model, err)
        || !int_copy(c, "feed_forward_length", "intermediate_size", &d_ff, err)
        || !int_copy(c, "attention.head_count", "num_attention_heads", &n_head, err)
        || !int_copy(c, "context_length", "max_position_embeddings", &max_pos, err)
        || !real_copy(c, "attention.layer_norm_rms_epsilon", "rms_norm_eps", err)
        || (config_has(c, "attention.head_count_kv") && !int_copy(c, "attention.head_count_kv", "num_key_value_heads", &n_kv, err)))
        return false;
    if (!config_has(c, "attention.head_count_kv"))
        buf_fmt(c->out, ",\n \"num_key_value_heads\": %" PRId64, n_head);
    d_head = d_model / n_head;
    bool named = config_has(c, "attention.key_length") || (c->arch->permuted && config_has(c, "rope.dimension_count"));
    if (named && !gguf_int(c->g, c->key, 1, INT32_MAX, &d_head, err))
        return false;
    buf_fmt(c->out, ",\n \"head_dim\": %" PRId64 ",\n \"vocab_size\": %" PRId64 ",\n \"tie_word_embeddings\": %s", d_head, embed->dim[0],
            gguf_tensor_find(c->g, "output.weight") ? "false" : "true");
    if (gguf_tensor_find(c->g, "blk.0.attn_output.bias"))
        buf_str(c->out, ",\n \"attention_bias\": true");
    if (gguf_tensor_find(c->g, "blk.0.ffn_down.bias"))
        buf_str(c->out, ",\n \"mlp_bias\": true");
    if (c->arch->fused && !config_has(c, "attention.sliding_window"))
        buf_str(c->out, ",\n \"sliding_window\": null");
    if (c->arch->fused && config_has(c, "attention.sliding_window")
        && !int_copy(c, "attention.sliding_window", "sliding_window", &window, err))
        return false;
    if (!rope_put(c, d_head, err) || (c->arch->gemma && !gemma_put(c, n_layer, d_model, n_head, d_head, err))
        || !tokens_put(c->out, c->g, embed->dim[0], err))
        return false;
    return buf_str(c->out, "\n}\n") || error_set(err, ERR_NO_MEMORY, "no memory for config.json");
}

bool gguf_files_make(struct gguf_files *f, const struct gguf *g, enum gguf_keep keep, struct error *err)
{
    const struct gguf_tensor *embed = gguf_tensor_find(g, "token_embd.weight");
    struct config c = { .g = g, .out = &f->config };
    if (!arch_find(g, &c.arch, err) || !config_put(&c, keep, err))
        return false;
    buf_fmt(&f->generation, "{\n \"_from_model_config\": true");
    if (!tokens_put(&f->generation, g, embed->dim[0], err))
        return false;
    if (!buf_str(&f->generation, "\n}\n"))
        return error_set(err, ERR_NO_MEMORY, "no memory for generation_config.json");
    return gguf_words_make(f, g, err);
}

void gguf_files_release(struct gguf_files *f)
{
    buf_release(&f->config);
    buf_release(&f->generation);
    buf_release(&f->tokenizer);
    buf_release(&f->tokenizer_config);
}

/* ---- model.safetensors ---- */

/* Where a tensor's values come from, and what is done to them. */
struct values {
    const struct gguf *g;
    const struct gguf_tensor *t;
    char name[NAME_BYTES];    // transformers'
    enum st_dtype dtype;      // as written
    int64_t half;             // half the rows of a head, which are in pairs; 0: rows are in order
    bool less_one;
};

/* The row of the file that is row r of the model: pairs (i, i + half) of a head lie one after the other in the file. */
static int64_t row_from(const struct values *v, int64_t r)
{
    if (!v->half)
        return r;
    int64_t in = r % (2 * v->half);
    return r - in + in % v->half * 2 + in / v->half;
}

/* n values from first on, as they are written. */
static bool values_make(const struct values *v, float *work, void *out, int64_t first, int64_t n, struct error *err)
{
    gguf_part_to_f32(work, v->t, first, n);
    for (int64_t i = 0; v->less_one && i < n; i++)
        work[i] -= 1;
    int64_t broken = st_values_broken(work, false, n);
    if (broken >= 0)
        return error_set(err, ERR_DATA, "'%s': value %" PRId64 " of tensor '%s' is not finite", gguf_path(v->g), first + broken,
                         v->t->name);
    if (v->dtype == ST_F16)
        memcpy(out, v->t->data + 2 * first, 2 * (size_t)n);
    else if (v->dtype == ST_BF16)
        st_part_to_bf16(out, &(struct st_tensor){ .dtype = ST_F32, .data = (const uint8_t *)work }, 0, n);
    else
        memcpy(out, work, 4 * (size_t)n);
    return true;
}

static bool values_fill(const void *source, void *out, int64_t first, int64_t n, struct error *err)
{
    const struct values *v = source;
    int64_t row = v->t->n_elem / v->t->dim[0], at_once = v->half ? 1 : n;
    float *work = malloc((size_t)(at_once * row) * sizeof *work);
    bool ok = work || error_set(err, ERR_NO_MEMORY, "no memory for tensor '%s'", v->t->name);
    for (int64_t r = 0; ok && r < n; r += at_once)
        ok = values_make(v, work, (char *)out + (size_t)(r * row) * st_dtype_size(v->dtype), row_from(v, first + r) * row, at_once * row,
                         err);
    free(work);
    return ok;
}

static bool name_is_rope(const char *name)
{
    return strcmp(name, "rope_freqs.weight") == 0 || strcmp(name, "rope_factors_long.weight") == 0
           || strcmp(name, "rope_factors_short.weight") == 0;
}

/* transformers' name of a tensor, into v; its part of a block into *part, NULL: it is of none. False: it has no such name. */
static bool name_find(struct values *v, const struct arch *arch, const struct part **part)
{
    static const char *const whole[][2] = {
        { "token_embd.weight", "model.embed_tokens.weight" },
        { "output_norm.weight", "model.norm.weight" },
        { "output.weight", "lm_head.weight" },
    };
    const char *name = v->t->name;
    *part = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(whole); i++)
        if (strcmp(name, whole[i][0]) == 0)
            return snprintf(v->name, NAME_BYTES, "%s", whole[i][1]) > 0;
    size_t digits = strncmp(name, "blk.", 4) == 0 ? strspn(name + 4, "0123456789") : 0;
    if (digits == 0 || digits > 6 || name[4 + digits] != '.')
        return false;
    const char *at = name + 4 + digits + 1, *end = strchr(at, '.');
    if (!end || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        if (strlen(parts[i].from) == (size_t)(end - at) && strncmp(parts[i].from, at, (size_t)(end - at)) == 0) {
            const struct part *p = *part = &parts[i];
            const char *to = arch->gemma && p->gemma ? p->gemma : arch->fused && p->fused ? p->fused : p->to;
            snprintf(v->name, NAME_BYTES, "model.layers.%.*s.%s%s", (int)digits, name + 4, to, end);
            return true;
        }
    return false;
}

/* Half the rows of a head of q or k. */
static bool half_find(struct values *v, const struct arch *arch, bool is_q, struct error *err)
{
    char key[96];
    int64_t n_head;
    snprintf(key, sizeof key, "%s.attention.head_count%s", arch->name, is_q ? "" : "_kv");
    if (!is_q && !gguf_has(v->g, key))
        snprintf(key, sizeof key, "%s.attention.head_count", arch->name);
    if (!gguf_int(v->g, key, 1, INT32_MAX, &n_head, err))
        return false;
    int64_t rows = v->t->dim[0];
    if (rows % (2 * n_head) || (v->t->n_dim == 1 && v->t->type->n_elem > 1))
        return error_set(err, ERR_DATA, "'%s': tensor '%s' has %" PRId64 " rows, which %" PRId64 " heads cannot have", gguf_path(v->g),
                         v->t->name, rows, n_head);
    v->half = rows / n_head / 2;
    return true;
}

static bool values_plan(struct values *v, const struct gguf *g, const struct gguf_tensor *t, const struct arch *arch, enum gguf_keep keep,
                        struct error *err)
{
    const struct part *part;
    *v = (struct values){ .g = g, .t = t };
    if (!name_find(v, arch, &part))
        return error_set(err, ERR_UNSUPPORTED, "'%s': tensor '%s' does not belong to a model of the architecture %s", gguf_path(g), t->name,
                         arch->name);
    v->less_one = arch->gemma && strstr(t->name, "norm.weight");
    v->dtype = dtype_kept(t, keep, v->less_one);
    bool is_q = part && strcmp(part->from, "attn_q") == 0, is_k = part && strcmp(part->from, "attn_k") == 0;
    return !arch->permuted || (!is_q && !is_k) || half_find(v, arch, is_q, err);
}

static bool weights_write(const struct gguf *g, const char *path, enum gguf_keep keep, struct error *err)
{
    const struct arch *arch;
    int64_t n = 0, all = gguf_n_tensor(g);
    struct values *values = calloc((size_t)all + 1, sizeof *values);
    struct st_out *out = calloc((size_t)all + 1, sizeof *out);
    bool ok = false;
    TRY((values && out) || error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " tensors", all));
    TRY(arch_find(g, &arch, err));
    for (int64_t i = 0; i < all; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (name_is_rope(t->name))
            continue;
        TRY(values_plan(&values[n], g, t, arch, keep, err));
        out[n] = (struct st_out){
            .name = values[n].name, .dtype = values[n].dtype, .n_dim = t->n_dim, .fill = values_fill, .source = &values[n]
        };
        memcpy(out[n].dim, t->dim, sizeof t->dim);
        n++;
    }
    TRY(st_write(path, out, n, err));
    ok = true;
out:
    free(values);
    free(out);
    return ok;
}

/* ---- the directory ---- */

bool gguf_convert(const char *path, const char *dir, enum gguf_keep keep, struct error *err)
{
    struct gguf_files f = { 0 };
    const struct {
        const char *name;
        const struct buf *text;
    } files[] = {
        { "generation_config.json", &f.generation },
        { "tokenizer.json", &f.tokenizer },
        { "tokenizer_config.json", &f.tokenizer_config },
        { "config.json", &f.config },
    };
    char to[4096];
    bool ok = false;
    struct model_config shape;
    struct tokenizer *tokenizer = NULL;
    struct gguf *g = gguf_open(path, err);
    TRY(g && gguf_files_make(&f, g, keep, err));
    TRY(config_parse(&shape, buf_text(&f.config), path, err));
    TRY(tokenizer = tokenizer_parse(buf_text(&f.tokenizer), f.tokenizer.len, path, err));
    TRY(tokenizer_fits(tokenizer, shape.vocab, path, err));
    TRY(dir_make(dir, 0755, err));
    TRY(path_join(to, sizeof to, dir, "model.safetensors") || error_set(err, ERR_USAGE, "the path '%s' is too long", dir));
    TRY(weights_write(g, to, keep, err));
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        TRY(path_join(to, sizeof to, dir, files[i].name) || error_set(err, ERR_USAGE, "the path '%s' is too long", dir));
        TRY(file_write(to, buf_text(files[i].text), files[i].text->len, err));
    }
    TRY(model_files_check(dir, &shape, err) || error_wrap(err, "what was made of '%s'", path));
    ok = true;
out:
    tokenizer_free(tokenizer);
    gguf_files_release(&f);
    gguf_close(g);
    return ok;
}
