#include "workers/engine/load/tool_model.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "kernels/ops.h"
#include "protocol/base/file.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/load/model_find.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

static bool dtype_find(const char *name, const struct device *dev, enum dtype *out, struct error *err)
{
    if (strcmp(name, "auto") == 0)
        *out = dev->kind == DEVICE_CUDA ? DT_BF16 : DT_F32;
    else if (strcmp(name, "float32") == 0 || strcmp(name, "fp32") == 0)
        *out = DT_F32;
    else if (strcmp(name, "bfloat16") == 0 || strcmp(name, "bf16") == 0)
        *out = DT_BF16;
    else
        return error_set(err, ERR_USAGE, "unknown dtype '%s'; it is float32, bfloat16 or auto", name);
    return true;
}

/* The directory's tokenizer; only with need_text must it be there. */
static bool tokenizer_find_in(const char *dir, bool need_text, struct tokenizer **out, struct error *err)
{
    char path[4096];
    *out = NULL;
    if (!need_text && (!path_join(path, sizeof path, dir, "tokenizer.json") || !path_exists(path)))
        return true;
    return (*out = tokenizer_load(dir, err)) != NULL;
}

/* The model in t->dir. When that is an adapter: its base, with it; the text side may be in either directory, and is left in text_dir. */
static bool weights_load(struct tool_model *t, enum dtype dtype, char text_dir[4096], struct error *err)
{
    char path[4096];
    struct lora_config lora;
    snprintf(text_dir, 4096, "%s", t->dir);
    if (!lora_dir_is(t->dir))
        return (t->model = t->late ? model_files_open(t->dir, t->dev, dtype, err) : model_load(t->dir, t->dev, dtype, err)) != NULL;
    if (!lora_config_load(&lora, t->dir, err))
        return false;
    if (!lora.base[0])
        return error_set(err, ERR_DATA, "'%s/" LORA_CONFIG_FILE "' names no 'base_model_name_or_path'", t->dir);
    if (!path_join(path, sizeof path, t->dir, "tokenizer.json") || !path_exists(path))
        text_dir[0] = 0;
    if (!model_find(path, sizeof path, lora.base, err) || !(t->model = model_load(path, t->dev, dtype, err)))
        return error_wrap(err, "the base of the adapter '%s'", t->dir);
    if (!text_dir[0])
        snprintf(text_dir, 4096, "%s", path);
    return model_lora_load(t->model, t->dir, false, err);
}

bool tool_model_load(struct tool_model *t, bool need_text, struct error *err)
{
    char text_dir[4096];
    bool ok = false;
    enum dtype dtype = DT_F32;
    if (!t->name)
        return error_set(err, ERR_USAGE, "--model is needed: a directory with config.json and model.safetensors");
    if (t->n_thread < 0 || t->n_thread > 4096)
        return error_set(err, ERR_USAGE, "--threads is %" PRId64 "; it must be between 1 and 4096, or 0 for all cores", t->n_thread);
    TRY(model_find(t->dir, sizeof t->dir, t->name, err));
    TRY((t->dev = device_new(t->device, (int)t->n_thread, err)) != NULL);
    TRY(dtype_find(t->dtype, t->dev, &dtype, err));
    if (t->open) {
        snprintf(text_dir, sizeof text_dir, "%s", t->text_name);
        TRY((t->model = t->open(t->open_ctx, t->dev, err)) != NULL);
    } else {
        TRY(weights_load(t, dtype, text_dir, err));
    }
    TRY(tokenizer_find_in(text_dir, need_text, &t->tokenizer, err));
    if (t->tokenizer) {
        TRY((t->encoder = encoder_new(t->tokenizer, true, err)) != NULL);
        TRY(template_find(text_dir, &t->template, err));
        TRY(tokenizer_fits(t->tokenizer, model_config(t->model)->vocab, text_dir, err));
        // rows that only pad the embedding: no tool may see another distribution than a run does
        model_n_live_set(t->model, tokenizer_n_id(t->tokenizer));
    }
    ok = true;
out:
    if (!ok)
        tool_model_release(t);
    return ok;
}

void tool_model_release(struct tool_model *t)
{
    template_free(t->template);
    encoder_free(t->encoder);
    tokenizer_free(t->tokenizer);
    model_free(t->model);
    device_free(t->dev);
    t->template = NULL;
    t->encoder = NULL;
    t->tokenizer = NULL;
    t->model = NULL;
    t->dev = NULL;
}
