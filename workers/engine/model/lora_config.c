#include "workers/engine/model/lora_config.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/engine/model/fields.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define SEPARATORS ", \t\n"
#define KNOWN_NAMES "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj, in Phi-3 qkv_proj and gate_up_proj"

static const char *const module_paths[LORA_MODULE_N] = {
    [LORA_Q] = "self_attn.q_proj", [LORA_K] = "self_attn.k_proj",     [LORA_V] = "self_attn.v_proj",
    [LORA_O] = "self_attn.o_proj", [LORA_GATE] = "mlp.gate_proj",     [LORA_UP] = "mlp.up_proj",
    [LORA_DOWN] = "mlp.down_proj", [LORA_QKV] = "self_attn.qkv_proj", [LORA_GATE_UP] = "mlp.gate_up_proj",
};
/* Keys that turn on what we do not have, unless they are null, false or empty. */
static const char *const unsupported[] = {
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "velora_config",
    "kasa_config",
    "monteclora_config",
    "arrow_config",
    "eva_config",
    "corda_config",
    "loftq_config",
    "lora_ga_config",
    "megatron_config",
};

double lora_config_scale(const struct lora_config *c)
{
    return c->rslora ? c->alpha / sqrt((double)c->rank) : c->alpha / (double)c->rank;
}

const char *lora_module_path(enum lora_module m)
{
    return module_paths[m];
}

/* PEFT matches an entry of target_modules with the end of a module's path, after a dot. */
static bool target_add(unsigned *targets, const char *name)
{
    for (int m = 0; m < LORA_MODULE_N; m++)
        if (strcmp(name, module_paths[m]) == 0 || strcmp(name, strchr(module_paths[m], '.') + 1) == 0) {
            *targets |= 1u << m;
            return true;
        }
    return false;
}

bool lora_targets_parse(struct lora_config *c, const char *text, struct error *err)
{
    char copy[512], *rest = NULL;
    unsigned found = 0;
    if (strcmp(text, "all-linear") == 0) {
        c->targets = (1u << LORA_MODULE_N) - 1;
        c->loose = true;
        return true;
    }
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return error_set(err, ERR_USAGE, "the list of target modules is too long");
    for (char *name = strtok_r(copy, SEPARATORS, &rest); name; name = strtok_r(NULL, SEPARATORS, &rest))
        if (!target_add(&found, name))
            return error_set(err, ERR_USAGE,
                             "'%s' is not a target module; there are " KNOWN_NAMES ", or all-linear for all that the model has", name);
    if (!found)
        return error_set(err, ERR_USAGE, "the list of target modules is empty; 'all-linear' names all of them");
    c->targets = found;
    c->loose = false;
    return true;
}

bool lora_dir_is(const char *dir)
{
    char path[4096];
    return path_join(path, sizeof path, dir, LORA_CONFIG_FILE) && path_exists(path);
}

/* ---- reading */
/* null, false, "" and empty lists and objects. */
static bool is_off(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0)
           || (json_is_object(v) && json_object_size(v) == 0) || (json_is_string(v) && json_string_length(v) == 0);
}

/* Initial values that leave the base as it is: true, false, "gaussian", "orthogonal". The others (pissa, olora, loftq ...) subtract
 * the adapter's first product from it, so that A and B mean nothing on the untouched base. */
static bool init_leaves_base(const json_t *v)
{
    const char *s = json_string_value(v);
    return !v || json_is_null(v) || json_is_boolean(v) || (s && (strcmp(s, "gaussian") == 0 || strcmp(s, "orthogonal") == 0));
}

static bool targets_read(struct lora_config *c, const json_t *v, const char *path, struct error *err)
{
    size_t i;
    const json_t *one;
    if (json_is_string(v) && strcmp(json_string_value(v), "all-linear") == 0)
        return lora_targets_parse(c, "all-linear", err);
    if (!json_is_array(v) || json_array_size(v) == 0)
        return error_set(err, ERR_UNSUPPORTED, "'%s': 'target_modules' is not a list of names; patterns are not supported", path);
    json_array_foreach(v, i, one)
    {
        if (!json_is_string(one) || !target_add(&c->targets, json_string_value(one)))
            return error_set(err, ERR_UNSUPPORTED, "'%s': target module '%s' is not supported; there are " KNOWN_NAMES, path,
                             json_is_string(one) ? json_string_value(one) : "?");
    }
    c->loose = true;
    return true;
}

static bool kind_check(const json_t *j, const char *path, struct error *err)
{
    const char *type = json_string_value(json_object_get(j, "peft_type")), *bias = json_string_value(json_object_get(j, "bias"));
    if (!type || strcmp(type, "LORA") != 0)
        return error_set(err, ERR_UNSUPPORTED, "'%s': 'peft_type' is '%s'; only LORA is supported", path, type ? type : "missing");
    if (bias && strcmp(bias, "none") != 0)
        return error_set(err, ERR_UNSUPPORTED, "'%s': 'bias' is '%s'; adapters with biases are not supported", path, bias);
    for (size_t i = 0; i < ARRAY_SIZE(unsupported); i++)
        if (!is_off(json_object_get(j, unsupported[i])))
            return error_set(err, ERR_UNSUPPORTED, "'%s': adapters with '%s' are not supported", path, unsupported[i]);
    if (!init_leaves_base(json_object_get(j, "init_lora_weights")))
        return error_set(err, ERR_UNSUPPORTED,
                         "'%s': 'init_lora_weights' is of a kind that changes the base model, so that the adapter does not fit the "
                         "original; convert it with PEFT first",
                         path);
    return true;
}

bool lora_config_load(struct lora_config *c, const char *dir, struct error *err)
{
    bool ok = false;
    char path[4096];
    struct buf text = { .max = CONFIG_BYTES_MAX };
    json_t *j = NULL;
    struct lora_config read = { 0 };
    if (!path_join(path, sizeof path, dir, LORA_CONFIG_FILE))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    TRY(file_read_text(&text, path, CONFIG_BYTES_MAX, err));
    TRY(j = json_text_parse(buf_text(&text), text.len, JSON_REJECT_DUPLICATES, path, err));
    if (!json_is_object(j)) {
        error_set(err, ERR_DATA, "'%s' is not a JSON object", path);
        goto out;
    }
    TRY(kind_check(j, path, err));
    struct fields f = { j, path, "" };
    TRY(field_int(&f, "r", 1, LORA_RANK_MAX, &read.rank, err));
    TRY(field_real(&f, "lora_alpha", 0, 1e6, &read.alpha, err));
    TRY(!field_given(&f, "use_rslora") || field_bool(&f, "use_rslora", &read.rslora, err));
    TRY(targets_read(&read, json_object_get(j, "target_modules"), path, err));
    const char *base = json_string_value(json_object_get(j, "base_model_name_or_path"));
    if (snprintf(read.base, sizeof read.base, "%s", base ? base : "") >= (int)sizeof read.base) {
        error_set(err, ERR_DATA, "'%s': 'base_model_name_or_path' is too long", path);
        goto out;
    }
    *c = read;
    ok = true;
out:
    json_decref(j);
    buf_release(&text);
    return ok;
}

/* ---- writing */
bool lora_config_save(const struct lora_config *c, const char *dir, struct error *err)
{
    char path[4096], *text = NULL;
    if (!path_join(path, sizeof path, dir, LORA_CONFIG_FILE))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    json_t *targets = json_array();
    for (int m = 0; m < LORA_MODULE_N; m++)
        if (c->targets >> m & 1)
            json_array_append_new(targets, json_string(strchr(module_paths[m], '.') + 1));
    bool whole = c->alpha == floor(c->alpha);    // PEFT's field is a whole number, as a rule
    json_t *j = json_pack("{s:s, s:s, s:s*, s:I, s:o, s:f, s:o, s:s, s:b, s:b, s:b, s:b, s:{}, s:{}, s:b}", "peft_type", "LORA",
                          "task_type", "CAUSAL_LM", "base_model_name_or_path", c->base[0] ? c->base : NULL, "r", (json_int_t)c->rank,
                          "lora_alpha", whole ? json_integer((json_int_t)c->alpha) : json_real(c->alpha), "lora_dropout", 0.0,
                          "target_modules", targets, "bias", "none", "use_rslora", c->rslora, "use_dora", 0, "fan_in_fan_out", 0,
                          "init_lora_weights", 1, "rank_pattern", "alpha_pattern", "inference_mode", 1);
    if (j)
        text = json_text_dump(j, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    json_decref(j);
    bool ok = text ? file_write(path, text, strlen(text), err) : error_set(err, ERR_NO_MEMORY, "no memory for '%s'", path);
    free(text);
    return ok;
}
