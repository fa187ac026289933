/* merge_cmd.c - rollcall merge: an adapter added to its base, as a model directory of its own */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/load/model_find.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/model/safetensors.h"

/* The type of a model's files: bfloat16 unless its first tensor is fp32. */
static bool files_dtype(const char *dir, enum dtype *out, struct error *err)
{
    struct shards *s = shards_open(dir, err);
    if (!s)
        return false;
    *out = shards_n(s) > 0 && shards_at(s, 0)->dtype == ST_F32 ? DT_F32 : DT_BF16;
    shards_close(s);
    return true;
}

static bool merge_cmd(int argc, char **argv, struct error *err)
{
    const char *adapter = NULL, *base = NULL, *out = NULL, *dtype = NULL, *device = "ref";
    bool force = false, ok = false;
    char dir[4096];
    // clang-format off
    struct cli_option options[] = {
        {.name = "adapter", .kind = CLI_STR, .value = &adapter, .arg = "DIR", .help = "adapter as PEFT or a run's checkpoint has it"},
        {.name = "base", .kind = CLI_STR, .value = &base, .arg = "DIR", .help = "its base: a model directory, a .gguf file, or org/name in the Hugging Face cache (default: what the adapter names)"},
        {.name = "out", .kind = CLI_STR, .value = &out, .arg = "DIR", .help = "the directory to write; must not hold a model yet"},
        {.name = "dtype", .kind = CLI_STR, .value = &dtype, .arg = "TYPE", .help = "float32 or bfloat16 (default: the base's)"},
        {.name = "device", .kind = CLI_STR, .value = &device, .arg = "NAME", .help = "cuda:0, cpu:0, or ref, which takes the least memory (default)"},
        {.name = "force", .kind = CLI_FLAG, .value = &force, .help = "overwrite an existing model"},
    };
    // clang-format on
    struct cli cli = { .command = "rollcall merge",
                       .about = "Adds a low-rank adapter to its base and writes the result as a model directory.",
                       .options = options,
                       .n_options = ARRAY_SIZE(options) };
    struct device *dev = NULL;
    struct model *m = NULL;
    struct lora_config c;
    enum dtype type;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!adapter || !out)
        return error_set(err, ERR_USAGE, "--adapter and --out are needed");
    TRY(model_dir_check(out, force, err));
    TRY(lora_config_load(&c, adapter, err));
    if (!base && !c.base[0]) {
        error_set(err, ERR_USAGE, "'%s' names no base model; give it with --base", adapter);
        goto out;
    }
    if (!model_find(dir, sizeof dir, base ? base : c.base, err)) {
        error_wrap(err, "the base of the adapter '%s' (--base)", adapter);
        goto out;
    }
    TRY(dtype ? model_dtype_parse(&type, dtype, err) : files_dtype(dir, &type, err));
    TRY(dev = device_new(device, 0, err));
    TRY(m = model_load(dir, dev, type, err));
    TRY(model_lora_load(m, adapter, false, err));
    TRY(model_lora_merge(m, err));
    TRY(dir_make(out, 0755, err));
    TRY(model_dir_copy_tokenizer(dir, out, err));
    TRY(model_dir_copy_tokenizer(adapter, out, err));    // what training may have changed
    TRY(model_save(m, out, err));
    printf("{\"out\":\"%s\",\"rank\":%" PRId64 "}\n", out, c.rank);
    ok = true;
out:
    model_free(m);
    device_free(dev);
    return ok;
}

const struct subcommand merge_subcommand = { "merge", merge_cmd, "add a low-rank adapter to its base model" };
