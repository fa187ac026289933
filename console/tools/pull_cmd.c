/* pull_cmd.c - rollcall pull: download a model from the hub into the usual cache */
#include <stdio.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/hub/hub_pull.h"

#define PATTERNS_MAX 64

static bool pull_cmd(int argc, char **argv, struct error *err)
{
    const char *operand[1 + PATTERNS_MAX], *revision = NULL;
    bool offline = false, all = false, quiet = false;
    struct cli_option options[] = {
        { "revision", "r", CLI_STR, &revision, "NAME", "branch, tag or commit (main)" },
        { "all", NULL, CLI_FLAG, &all, NULL, "get every file, not only those a model needs" },
        { "offline", NULL, CLI_FLAG, &offline, NULL, "only look into the cache; also with HF_HUB_OFFLINE=1" },
        { "quiet", "q", CLI_FLAG, &quiet, NULL, "no progress" },
    };
    struct cli cli = { "rollcall pull",
                       "Downloads a model into the Hugging Face cache ($HF_HOME, ~/.cache/huggingface) and prints its directory.\n"
                       "What is there already is not downloaded again; what was interrupted goes on; every file is checked\n"
                       "against its hash. Behind the name may stand shell patterns of the files wanted. HF_TOKEN or the saved\n"
                       "token opens private models; HF_ENDPOINT names another hub.",
                       "ORG/NAME [PATTERN...]",
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
        return error_set(err, ERR_USAGE, "say which model, as org/name");
    struct hub_pull want = { .name = operand[0],
                             .revision = revision,
                             .offline = offline,
                             .progress = quiet ? NULL : stderr,
                             .include = all ? everything : operand + 1,
                             .n_include = all ? 1 : cli.n_operands - 1 };
    if (!hub_pull(&want, dir, sizeof dir, err))
        return false;
    printf("%s\n", dir);
    return true;
}

const struct subcommand pull_subcommand = { "pull", pull_cmd, "download a model from the hub" };
