/* convert_cmd.c - rollcall convert: a GGUF file as a model directory */
#include <stdio.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/json_text.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/load/gguf_dir.h"
#include "workers/engine/model/model_dir.h"

static bool convert_cmd(int argc, char **argv, struct error *err)
{
    const char *dtype = NULL, *operand[2];
    bool force = false;
    // clang-format off
    struct cli_option options[] = {
        {.name = "dtype", .kind = CLI_STR, .value = &dtype, .arg = "TYPE", .help = "float32 or bfloat16 (default: exact, F16 and BF16 tensors as they are and all others in float32)"},
        {.name = "force", .kind = CLI_FLAG, .value = &force, .help = "overwrite an existing model"},
    };
    // clang-format on
    struct cli cli = {
        .command = "rollcall convert",
        .operands = "FILE.gguf DIR",
        .about = "Writes the model in a GGUF file as a Hugging Face directory: weights, config.json, tokenizer and chat template.",
        .operand = operand,
        .max_operands = 2,
        .options = options,
        .n_options = ARRAY_SIZE(options)
    };
    enum dtype type = DT_F32;
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (cli.n_operands != 2)
        return error_set(err, ERR_USAGE, "a GGUF file and the directory to write are needed: rollcall convert FILE.gguf DIR");
    if (dtype && !model_dtype_parse(&type, dtype, err))
        return false;
    enum gguf_keep keep = !dtype ? GGUF_KEEP_EXACT : type == DT_BF16 ? GGUF_KEEP_BF16 : GGUF_KEEP_F32;
    if (!model_dir_check(operand[1], force, err) || !gguf_convert(operand[0], operand[1], keep, err))
        return false;
    struct buf line = BUF_INIT;
    buf_str(&line, "{\"out\":");
    json_text_print(&line, operand[1], strlen(operand[1]), JSON_TEXT_UTF8);
    printf("%s}\n", buf_text(&line));
    buf_release(&line);
    return true;
}

const struct subcommand convert_subcommand = { "convert", convert_cmd, "write a GGUF file as a model directory" };
