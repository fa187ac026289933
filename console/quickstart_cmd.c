/* rollcall quickstart: copies what the first run needs, a small model with its data and a run file, from a package into a folder. A clone
 * makes the same with examples/quickstart.sh; examples/wheel/pack.py lays them into the package. */
#include <limits.h>
#include <stdio.h>
#include "protocol/base/cli.h"
#include "protocol/base/data.h"
#include "protocol/base/file.h"
#include "protocol/base/subcommand.h"

#define FILE_MAX_BYTES (64 << 20)

/* The files of share/rollcall/quickstart. */
static const char *const files[] = {
    "arithmetic.yaml",
    "data/train.jsonl",
    "data/eval.jsonl",
    "starter/config.json",
    "starter/generation_config.json",
    "starter/model.safetensors",
    "starter/tokenizer.json",
    "starter/tokenizer_config.json",
};

static bool file_copy(const char *name, const char *dir, struct error *err)
{
    char rel[256], from[PATH_MAX], to[PATH_MAX];
    struct buf b = { 0 };
    snprintf(rel, sizeof rel, "quickstart/%s", name);
    if (!data_path(from, sizeof from, rel))
        return error_set(err, ERR_NOT_FOUND, "this installation has no '%s'; in a clone, examples/quickstart.sh makes the first run", rel);
    if (!path_join(to, sizeof to, dir, name))
        return error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    bool ok = file_read(&b, from, FILE_MAX_BYTES, err) && file_write(to, b.data, b.len, err);
    buf_release(&b);
    return ok;
}

static bool quickstart_cmd(int argc, char **argv, struct error *err)
{
    static const char *const folders[] = { "data", "starter" };
    const char *operand[1] = { "quickstart" };
    char path[PATH_MAX];
    struct cli cli = {
        .command = "rollcall quickstart",
        .about = "Writes a small model, its data and a run file into a new folder (quickstart). Then: rollcall train DIR/arithmetic.yaml\n"
                 "A minute on two cores. A package for pip brings the files; in a clone, examples/quickstart.sh makes them.",
        .operands = "[DIR]",
        .operand = operand,
        .max_operands = 1
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    const char *dir = operand[0];
    if (path_exists(dir) || path_is_link(dir))
        return error_set(err, ERR_EXISTS, "'%s' exists; give the name of a new folder", dir);
    bool ok = true;
    for (size_t i = 0; ok && i < ARRAY_SIZE(folders); i++)
        ok = path_join(path, sizeof path, dir, folders[i]) ? dir_make(path, 0755, err)
                                                           : error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    for (size_t i = 0; ok && i < ARRAY_SIZE(files); i++)
        ok = file_copy(files[i], dir, err);
    if (!ok) {
        struct error none;
        if (!dir_remove(dir, &none))
            error_wrap(err, "'%s' is not whole", dir);
        return false;
    }
    printf("%s: a model of 0.6 M parameters and its data\n"
           "  start it:    rollcall train %s/arithmetic.yaml\n"
           "  come back:   rollcall console\n",
           dir, dir);
    return true;
}

const struct subcommand quickstart_subcommand = { "quickstart", quickstart_cmd,
                                                  "write a small model, its data and a run file: the first run" };
