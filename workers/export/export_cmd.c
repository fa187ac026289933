/* rollcall export: export a run's series */
#include <stdio.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/own_hosts.h"
#include "protocol/base/secret.h"
#include "protocol/base/subcommand.h"
#include "protocol/settings/export_kinds.h"
#include "workers/export/export.h"

static bool export_cmd(int argc, char **argv, struct error *err)
{
    struct export_request r = { 0 };
    const char *operand[2];
    struct cli_option options[] = {
        { "follow", "f", CLI_FLAG, &r.follow, NULL, "continue while the run is going" },
        { "series", NULL, CLI_STR, &r.series, "NAMES", "csv, jsonl, svg: only these metrics, separated by commas" },
        { "nodes", NULL, CLI_FLAG, &r.nodes, NULL, "csv, jsonl: figures of hosts and GPUs instead of the steps' metrics" },
        { "out", "o", CLI_STR, &r.out_path, "PATH",
          "write here instead of the usual place (csv, jsonl, html, svg: standard output, as with -); an existing file is not overwritten" },
        { "offline", NULL, CLI_FLAG, &r.offline, NULL, "wandb: write a directory that 'wandb sync' uploads" },
        { "listen", NULL, CLI_STR, &r.listen, "HOST:PORT", "openmetrics: address to serve at" },
        { "webhook-file", NULL, CLI_STR, &r.webhook_file, "FILE", "webhook: its first line is the address" },
        { "webhook-format", NULL, CLI_STR, &r.webhook_format, "FORMAT", "webhook: slack, json, or auto (default): by the address" },
        { "allowed-hosts", NULL, CLI_STR, &r.allowed_hosts, "NAME,…",
          "openmetrics: more names that clients may ask for, such as a proxy's (default: the run's setting)" },
        { "token-file", NULL, CLI_STR, &r.token_file, "FILE", "openmetrics: require this bearer token" },
    };
    struct buf about = BUF_INIT;
    buf_str(&about, "Exports a live or finished run's metrics. KIND is one of:\n");
    for (int i = 0; i < EXPORT_KIND_N; i++)
        buf_fmt(&about, "  %-12s %s\n", export_kinds[i].name, export_kinds[i].help);
    struct cli cli = { "rollcall export", buf_text(&about), "KIND RUN_DIR", options, ARRAY_SIZE(options), operand, 2 };
    bool ok = cli_parse(&cli, argc, argv, err);
    buf_release(&about);
    if (!ok || cli.help_wanted)
        return ok;
    if (!own_hosts_check(r.allowed_hosts, "--allowed-hosts", err))
        return false;
    if (cli.n_operands < 2)
        return error_set(err, ERR_USAGE, "name what to export and from which run; see 'rollcall export --help'");
    secret_process();
    r.run_dir = operand[1];
    if (!path_is_dir(r.run_dir))
        return error_set(err, ERR_NOT_FOUND, "there is no run directory '%s'", r.run_dir);
    return export_run(operand[0], &r, err);
}

const struct subcommand export_subcommand = { "export", export_cmd,
                                              "export a run's metrics: a page, charts, CSV, JSON lines, TensorBoard, OpenMetrics, wandb" };
