/* rollcall exporter (internal): one exporter of a live run, as the agent starts it by its run file: --name "export KIND" */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "console/commands.h"
#include "protocol/base/clock.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/secret.h"
#include "protocol/run_config.h"
#include "protocol/run_lock.h"
#include "workers/agent/spawn.h"
#include "workers/controller/journal.h"
#include "workers/export/export.h"

#define JOURNAL_WAIT_S 60
#define WAIT_MAX_S 90    // beyond the exporters' own limit (WANDB_FINISH_TIMEOUT, 60 s) they are left to themselves

/* What the wandb exporter says of itself, as a line of its own; nothing when all was sent. */
static void wandb_status_tell(const char *run_dir)
{
    char path[4200];
    struct buf text = BUF_INIT;
    struct error ignored;
    if (path_join(path, sizeof path, run_dir, "export/wandb/status") && path_exists(path)
        && file_read(&text, path, 4096, &ignored) && strncmp(buf_text(&text), "ok", 2) != 0)
        fprintf(stderr, "wandb: %s", buf_text(&text));
    buf_release(&text);
}

void exporters_wait(const char *run_dir)
{
    int64_t until = clock_ms() + WAIT_MAX_S * 1000;
    for (int i = 0; i < n_export_kinds; i++) {
        char name[64];
        bool told = false;
        snprintf(name, sizeof name, "export %s", export_kinds[i].name);
        for (pid_t pid; (pid = process_find(run_dir, name)) > 0 && clock_ms() < until; told = true) {
            int fd = (int)syscall(SYS_pidfd_open, pid, 0);
            struct pollfd p = { .fd = fd, .events = POLLIN };
            if (told) {
                fprintf(stderr, "waiting for '%s' to end\n", name);
                if (strcmp(export_kinds[i].name, "wandb") == 0)
                    wandb_status_tell(run_dir);
            }
            poll(&p, fd >= 0 ? 1 : 0, fd >= 0 ? 2000 : 100);
            if (fd >= 0)
                close(fd);
        }
        if (process_find(run_dir, name) > 0)
            fprintf(stderr, "'%s' is not waited for any longer and goes on by itself\n", name);
    }
    wandb_status_tell(run_dir);
}

/* The agent starts the controller and us at once: wait until there is a journal with its tables, or nobody to make one. */
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

bool exporter_cmd(int argc, char **argv, struct error *err)
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
    close(RUN_LOCK_FD);    // the run is over when its own processes are, however long a server takes to hear of it
    log_component(name);
    secret_process();
    run_config_init(&config);
    if (!path_join(path, sizeof path, r.run_dir, "run.yaml") || !run_config_read(&config, path, err)
        || !process_note(r.run_dir, name, err))
        return false;
    journal_await(r.run_dir);
    r.offline = strcmp(config.wandb, "offline") == 0;
    r.listen = config.metrics_listen;
    r.token_file = config.metrics_token_file[0] ? config.metrics_token_file : NULL;
    for (int i = 0; i < n_export_kinds; i++)
        if (strcmp(export_kinds[i].name, name + 7) == 0)
            return export_kinds[i].run(&r, err);
    return error_set(err, ERR_USAGE, "unknown kind of export '%s'", name + 7);
}
