/* random_model_cmd.c - rollcall random-model: a model directory with weights drawn from a seed, for tests and for starting from scratch */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/subcommand.h"
#include "workers/engine/model/model_dir.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "workers/engine/model/model.h"
#include "workers/engine/text/tokenizer.h"

/* Set c's end tokens from a tokenizer's directory, and its vocabulary size unless the shape keeps its own. */
static bool tokenizer_apply(struct model_config *c, const char *dir, bool keep_vocab, int64_t *n_id, struct error *err)
{
    struct tokenizer *t = tokenizer_load(dir, err);
    if (!t)
        return false;
    int n_eos;
    const int32_t *eos = tokenizer_eos(t, &n_eos);
    *n_id = tokenizer_n_id(t);
    if (!keep_vocab)
        c->vocab = (*n_id + 31) / 32 * 32;    // whole panels of the matrix kernels
    c->n_eos = MIN(n_eos, CONFIG_EOS_MAX);
    memcpy(c->eos, eos, (size_t)c->n_eos * sizeof *eos);
    c->bos = -1;
    tokenizer_free(t);
    return true;
}

static bool random_model_cmd(int argc, char **argv, struct error *err)
{
    const char *shape = NULL, *out = NULL, *tokenizer = NULL, *dtype = "bfloat16";
    int64_t seed = 1, n_id = 0;
    bool force = false, keep_vocab = false, ok = false;
    // clang-format off
    struct cli_option options[] = {
        {.name = "shape",
         .kind = CLI_STR,
         .value = &shape,
         .arg = "NAME",
         .help = "Qwen2.5-0.5B ... Llama-3.1-8B, starter"},
        {.name = "seed", .kind = CLI_I64, .value = &seed, .arg = "N", .help = "of the weights (default 1)"},
        {.name = "out",
         .kind = CLI_STR,
         .value = &out,
         .arg = "DIR",
         .help = "the directory to write; must not hold a model yet"},
        {.name = "tokenizer",
         .kind = CLI_STR,
         .value = &tokenizer,
         .arg = "DIR",
         .help = "take vocabulary size and end tokens from this tokenizer and copy its files"},
        {.name = "keep-vocab",
         .kind = CLI_FLAG,
         .value = &keep_vocab,
         .help = "with --tokenizer: keep the shape's vocabulary; ids above the tokenizer's are never drawn"},
        {.name = "dtype", .kind = CLI_STR, .value = &dtype, .arg = "TYPE", .help = "float32 or bfloat16 (default)"},
        {.name = "force", .kind = CLI_FLAG, .value = &force, .help = "overwrite an existing model"},
    };
    // clang-format on
    struct cli cli = { .command = "rollcall random-model",
                       .about = "Writes a Hugging Face directory with random weights.",
                       .options = options,
                       .n_options = ARRAY_SIZE(options) };
    struct device *dev = NULL;
    struct model *m = NULL;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!shape || !out)
        return error_set(err, ERR_USAGE, "--shape and --out are needed");
    const struct model_config *known = config_shape(shape, err);
    enum dtype type;
    if (!known || !model_dtype_parse(&type, dtype, err))
        return false;
    struct model_config c = *known;
    TRY(model_dir_check(out, force, err));
    if (tokenizer)
        TRY(tokenizer_apply(&c, tokenizer, keep_vocab, &n_id, err));
    TRY(dev = device_new("ref", 1, err));    // nothing is computed
    TRY(m = model_new_random(&c, (uint64_t)seed, dev, type, err));
    TRY(dir_make(out, 0755, err));
    if (tokenizer)
        TRY(model_dir_copy_tokenizer(tokenizer, out, err));
    TRY(model_save(m, out, err));
    printf("{\"out\":\"%s\",\"shape\":\"%s\",\"parameters\":%" PRId64, out, shape, config_n_param(&c));
    if (tokenizer)
        printf(",\"tokenizer_ids\":%" PRId64, n_id);
    printf("}\n");
    ok = true;
out:
    model_free(m);
    device_free(dev);
    return ok;
}

const struct subcommand random_model_subcommand = { "random-model", random_model_cmd, "write a model directory with random weights" };
