/* pull_cmd.c - rollcall pull: download a model or a data set from the hub into the usual cache */
#include <stdio.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/hub/hub_data.h"
#include "workers/engine/hub/hub_pull.h"

#define PATTERNS_MAX 64

static bool pull_cmd(int argc, char **argv, struct error *err)
{
    const char *operand[1 + PATTERNS_MAX], *revision = NULL;
    bool offline = false, all = false, quiet = false, dataset = false;
    struct hub_data data;
    struct cli_option options[] = {
        { "revision", "r", CLI_STR, &revision, "NAME", "branch, tag or commit (main)" },
        { "dataset", "d", CLI_FLAG, &dataset, NULL,
          "a data set: ORG/NAME[@REVISION][:CONFIG][:SPLIT]; without CONFIG and SPLIT all its data files" },
        { "all", NULL, CLI_FLAG, &all, NULL, "get every file, not only those that are needed" },
        { "offline", NULL, CLI_FLAG, &offline, NULL, "only look into the cache; also with HF_HUB_OFFLINE=1" },
        { "quiet", "q", CLI_FLAG, &quiet, NULL, "no progress" },
    };
    struct cli cli = { "rollcall pull",
                       "Downloads a model, or with --dataset a data set, into the Hugging Face cache ($HF_HOME,\n"
                       "~/.cache/huggingface) and prints its directory.\n"
                       "Existing files are not downloaded again; interrupted downloads continue; every file is checked\n"
                       "against its hash. Shell patterns after the name select files. HF_TOKEN or the saved\n"
                       "token opens what is private; HF_ENDPOINT names another hub.",
                       "ORG/NAME[:CONFIG][:SPLIT] [PATTERN...]",
                       options,
                       ARRAY_SIZE(options),
                       operand,
                       ARRAY_SIZE(operand),
                       0,
                       false };
    static const char *const everything[] = { "*" };
    char dir[4096];
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (cli.n_operands < 1)
        return error_set(err, ERR_USAGE, "say which model or data set, as org/name");
    if (dataset && !hub_data_parse(&data, operand[0]))
        return error_set(err, ERR_USAGE, "'%s' cannot be the name of a data set; it is ORG/NAME[@REVISION][:CONFIG][:SPLIT]", operand[0]);
    if (dataset && data.revision[0] && revision)
        return error_set(err, ERR_USAGE, "the revision is given twice, in '%s' and with --revision", operand[0]);
    bool part = dataset && data.config[0];
    struct hub_pull want = { .kind = dataset ? HUB_DATASET : HUB_MODEL,
                             .name = dataset ? data.name : operand[0],
                             .revision = dataset && data.revision[0] ? data.revision : revision,
                             .config = part ? data.config : NULL,
                             .split = part ? data.split : NULL,
                             .offline = offline,
                             .progress = quiet ? NULL : stderr,
                             .include = all ? everything : operand + 1,
                             .n_include = all ? 1 : cli.n_operands - 1 };
    if (!hub_pull(&want, dir, sizeof dir, err))
        return false;
    printf("%s\n", dir);
    return true;
}

const struct subcommand pull_subcommand = { "pull", pull_cmd, "download a model or a data set from the hub" };
