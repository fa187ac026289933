/* lora_config.h - which low-rank adapter a model gets: LoRA as PEFT's adapter_config.json describes it
 *
 * LoRA, arXiv 2106.09685: a linear module y = W x is computed as y = W x + s B A x, with A (r, in) and B (out, r) trained and W left
 * as it is. Plain data; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define LORA_RANK_MAX 1024
#define LORA_CONFIG_FILE "adapter_config.json"
#define LORA_WEIGHTS_FILE "adapter_model.safetensors"

/* The linear modules of a layer, in the order in which they are computed; last those that some families have in place of their parts
 * (Phi-3: one matrix for queries, keys and values, and one for gate and up). */
enum lora_module {
    LORA_Q,
    LORA_K,
    LORA_V,
    LORA_O,
    LORA_GATE,
    LORA_UP,
    LORA_DOWN,
    LORA_QKV,
    LORA_GATE_UP,
    LORA_MODULE_N,
};
struct lora_config {
    int64_t rank;        // r
    double alpha;        // lora_alpha
    bool rslora;         // use_rslora: divide by the root of the rank (arXiv 2312.03732)
    unsigned targets;    // bit m: module m has an adapter, in every layer
    bool loose;          // targets may name modules that the model does not have, as long as it has one of them (PEFT's rule)
    char base[4096];     // base_model_name_or_path: the directory of the model that it changes, or ""
};
/* s: alpha / r, or alpha / sqrt(r). */
double lora_config_scale(const struct lora_config *c);
/* "self_attn.q_proj" ...: where a module is in its layer. */
const char *lora_module_path(enum lora_module m);
/* A list of module names ("q_proj, v_proj"; commas, blanks), or "all-linear": all that the model has. Sets c->targets and c->loose.
 * ERR_USAGE names the one it does not know. */
MUST_USE bool lora_targets_parse(struct lora_config *c, const char *text, struct error *err);
/* Is dir an adapter as PEFT writes it, that is, does it have an adapter_config.json? */
bool lora_dir_is(const char *dir);
/* Read dir/adapter_config.json. ERR_DATA and ERR_UNSUPPORTED name file and key: missing, out of range, or a kind of adapter that is
 * not supported (DoRA, patterns, saved modules, biases, initial values that change the base). Dropout is ignored: it does nothing
 * when an adapter is used, and training here has none. */
MUST_USE bool lora_config_load(struct lora_config *c, const char *dir, struct error *err);
/* Write dir/adapter_config.json so that PEFT loads it. */
MUST_USE bool lora_config_save(const struct lora_config *c, const char *dir, struct error *err);
