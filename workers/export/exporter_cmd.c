/* rollcall exporter (internal): one exporter of a live run, started by the agent as the run file says: --name "export KIND" */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/secret.h"
#include "protocol/base/subcommand.h"
#include "protocol/record/journal.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/spawn.h"
#include "protocol/settings/run_config.h"
#include "workers/export/export.h"

#define JOURNAL_WAIT_S 60

/* The agent starts the controller and the exporter at the same time: wait until there is a journal with its tables, or no process
 * left to make one. */
static void journal_await(const char *run_dir)
{
    int64_t until = clock_ms() + JOURNAL_WAIT_S * 1000;
    for (bool there = false; !there && clock_ms() < until;) {
        struct error ignored;
        int64_t step;
        struct journal *j = journal_open_reader(run_dir, &ignored);
        there = j && journal_last_step(j, &step, &ignored);
        journal_close(j);
        if (!there && !run_is_live(run_dir))
            return;
        if (!there)
            poll(NULL, 0, 50);
    }
}

static bool exporter_cmd(int argc, char **argv, struct error *err)
{
    struct export_request r = { .follow = true };
    const char *name = "";
    char path[4200];
    struct run_config config;
    struct cli_option options[] = {
        { "run", NULL, CLI_STR, &r.run_dir, "DIR", "the run" },
        { "name", NULL, CLI_STR, &name, "NAME", "'export KIND'" },
    };
    struct cli cli = { "rollcall exporter", "Started by the agent.", NULL, options, ARRAY_SIZE(options) };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (!r.run_dir || strncmp(name, "export ", 7) != 0)
        return error_set(err, ERR_USAGE, "an exporter needs --run DIR and --name 'export KIND'");
    close(RUN_LOCK_FD);    // the run is over when its own processes are, however long it takes to tell a server
    log_component(name);
    secret_process();
    run_config_init(&config);
    if (!path_join(path, sizeof path, r.run_dir, "run.yaml") || !run_config_read(&config, path, err) || !process_note(r.run_dir, name, err))
        return false;
    journal_await(r.run_dir);
    r.offline = strcmp(config.wandb, "offline") == 0;
    r.webhook_file = config.alert_webhook_file[0] ? config.alert_webhook_file : NULL;
    r.webhook_format = config.alert_webhook_format;
    r.listen = config.metrics_listen;
    r.token_file = config.metrics_token_file[0] ? config.metrics_token_file : NULL;
    return export_run(name + 7, &r, err);
}

const struct subcommand exporter_subcommand = { "exporter", exporter_cmd, NULL };
