/* train_cmd.c - rollcall train: check everything, make the run's directory, start its processes, show it
 *
 * Nothing is written before everything has been checked. From then on the agent runs the run; this process only reads the journal.
 * With --batch, a signal to this process stops the run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "console/batch/batch.h"
#include "console/train/train_parts.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/subcommand.h"
#include "protocol/settings/host_list.h"

SUBCOMMAND_DECLARE(console)

/* ---- settings ---- */

/* --shuffle means --shuffle true: a switch's value may be omitted. Returns a new argv whose words are borrowed. */
static char **switches_complete(int *argc, char **argv)
{
    char **out = calloc((size_t)*argc * 2 + 1, sizeof *out);
    int n = 0;
    for (int i = 0; out && i < *argc; i++) {
        struct error err;
        out[n++] = argv[i];
        if (i == 0 || strncmp(argv[i], "--", 2) != 0 || strchr(argv[i], '='))
            continue;
        const struct knob *k = knob_find(argv[i] + 2, &err);
        const struct atropos_option *o = k ? NULL : atropos_option_find(argv[i] + 2);
        if (o && o->is_switch && (i + 1 == *argc || (strcmp(argv[i + 1], "true") != 0 && strcmp(argv[i + 1], "false") != 0)))
            out[n++] = "true";
        if (k && k->type == KNOB_BOOL && (i + 1 == *argc || !knob_check(k, argv[i + 1], &err)))
            out[n++] = "true";
    }
    *argc = n;
    return out;
}

/* The options of train, followed by one for every setting. */
static bool options_read(struct train *t, int argc, char **argv, bool *help, struct error *err)
{
    struct cli_option own[] = {
        { NULL, NULL, CLI_HEADING, NULL, NULL, "the command" },
        { "resume", NULL, CLI_STR, &t->resume, "DIR",
          "continue this run (a run that is already going is attached to); settings given here apply from there on, whatever was set before" },
        { "from-checkpoint", NULL, CLI_FLAG, &t->from_checkpoint, NULL,
          "with --resume, when the run's journal is lost: rebuild it from the newest complete checkpoint; says what is lost" },
        { "accept-changed", NULL, CLI_STR, &t->accept, "PART,...",
          "with --resume: continue although these are not what the run began with: dataset, \"eval_dataset NAME\", model, tokenizer, chat_template; noted in the journal" },
        { "runs-dir", NULL, CLI_STR, &t->runs_dir, "DIR", "folder for the run's directory (runs)" },
        { "batch", NULL, CLI_FLAG, &t->batch, NULL, "stay in the foreground and own the run: a signal stops it, a second one at once" },
        { "format", NULL, CLI_STR, &t->format, "FORMAT", "with --batch: text or jsonl" },
        { "interval", NULL, CLI_F64, &t->interval_s, "SECONDS", "with --batch: least time between two step lines (text 1, jsonl 0)" },
        { "dry-run", NULL, CLI_FLAG, &t->dry_run, NULL, "check everything, say what would be done, and do nothing" },
        { "slurm", NULL, CLI_FLAG, &t->slurm, NULL,
          "run on a Slurm cluster, one agent per node, the first of which is the head: followed by any of nodes=N gpus=M cpus=N (per node) "
          "partition=NAME time=LIMIT more=\"OPTIONS OF SBATCH\" port=N dir=DIR wait=SECONDS lost=SECONDS; inside an allocation it starts there; --dry-run "
          "prints the job script" },
    };
    struct cli_option *options = calloc(ARRAY_SIZE(own) + 2 * KNOB_MAX + ATROPOS_OPTIONS_MAX + 1, sizeof *options);
    int n = ARRAY_SIZE(own);
    const char *group = "", *operand[1] = { NULL };
    char **near = launch_words_take(&t->launch, &argc, argv, err);
    if (!near) {
        free(options);
        return false;
    }
    char **words = switches_complete(&argc, near);
    free(near);
    if (!options || !words) {
        free(options);
        free(words);
        return error_set(err, ERR_NO_MEMORY, "no memory for the options");
    }
    memcpy(options, own, sizeof own);
    for (int i = 0; i < n_knobs; i++) {
        if (strcmp(knobs[i].group, group) != 0) {
            group = knobs[i].group;
            options[n++] = (struct cli_option){ NULL, NULL, CLI_HEADING, NULL, NULL, group };
        }
        options[n++] = (struct cli_option){ knobs[i].name, knobs[i].flag, CLI_STR, &t->value[i], NULL, knobs[i].help };
        if (knobs[i].alias)
            options[n++] = (struct cli_option){ knobs[i].alias, NULL, CLI_STR, &t->value[i], NULL, "another name for the one above" };
    }
    options[n++] = (struct cli_option){ NULL, NULL, CLI_HEADING, NULL, NULL, "Atropos' example trainer (also in run files)" };
    for (int i = 0; i < n_atropos_options; i++) {
        const struct atropos_option *o = &atropos_options[i];
        options[n++] = (struct cli_option){ o->name, NULL, CLI_STR, &t->atropos[i], NULL, o->help ? o->help : "accepted, without effect" };
    }
    struct cli cli = { .command = "rollcall train",
                       .operands = "[RUN.yaml]",
                       .options = options,
                       .n_options = n,
                       .operand = operand,
                       .max_operands = 1,
                       .about = "Trains a model by reinforcement learning. On a terminal the run continues in the background and the\n"
                                "console opens on it; with --batch, or without a terminal, progress is printed here." };
    bool ok = cli_parse(&cli, argc, words, err);
    t->run_file = operand[0];
    *help = ok && cli.help_wanted;
    free(options);
    free(words);
    if (ok && t->from_checkpoint && !t->resume)
        return error_set(err, ERR_USAGE,
                         "--from-checkpoint is for a run that has lost its journal; give --resume, too (a new run starts from a "
                         "checkpoint with --checkpoint-path)");
    if (ok && t->slurm && t->batch && !getenv("SLURM_JOB_ID"))
        return error_set(err, ERR_USAGE,
                         "--batch stays in the foreground, and --slurm submits a job; inside an allocation (salloc) "
                         "--slurm does, without --batch");
    if (ok && t->slurm && t->from_checkpoint)
        return error_set(err, ERR_USAGE, "--from-checkpoint works on this machine alone; rebuild the journal first, then give --slurm");
    if (ok && t->accept && !t->resume)
        return error_set(err, ERR_USAGE, "--accept-changed is for a run that is resumed; give --resume, too");
    if (ok && t->resume && t->run_file)
        return error_set(err, ERR_USAGE, "--resume uses the run's own run.yaml; omit '%s'", t->run_file);
    return ok;
}

bool knob_given(const struct train *t, const char *name)
{
    struct error err;
    return t->value[knob_find(name, &err) - knobs] != NULL;
}

/* The run's alarm book: its own, or that of alarms.yaml next to the run file or in the config folder. */
static bool alarms_read(struct train *t, struct error *err)
{
    char path[PATH_MAX];
    alarm_book_init(&t->alarms);
    if (t->resume && !path_join(path, sizeof path, t->run_dir, "alarms.yaml"))
        return error_set(err, ERR_USAGE, "the run's path is too long");
    if (!t->resume)
        alarm_book_find(t->run_file ? t->run_file : "", path, sizeof path);
    return !path[0] || !path_exists(path) || alarm_book_read(&t->alarms, path, err);
}

/* before: run.yaml's settings, when a run is resumed. */
static bool settings_read(struct train *t, struct run_config *before, struct error *err)
{
    char path[PATH_MAX];
    struct buf notes = BUF_INIT;
    run_config_init(&t->config);
    if (t->resume) {
        if (!realpath(t->resume, t->run_dir) || !path_join(path, sizeof path, t->run_dir, "run.yaml") || !path_exists(path))
            return error_set(err, ERR_NOT_FOUND, "'%s' is not a run: it has no run.yaml", t->resume);
        if (!run_config_read(&t->config, path, err))
            return false;
    } else if (t->run_file && !run_config_read(&t->config, t->run_file, err)) {
        return false;
    }
    if (!alarms_read(t, err))
        return false;
    *before = t->config;
    for (int i = 0; i < n_knobs; i++)
        if (t->value[i] && !run_config_set(&t->config, knobs[i].name, t->value[i], FROM_FLAG, NULL, err))
            return false;
    for (int i = 0; i < n_atropos_options; i++)
        if (t->atropos[i] && t->resume)
            return error_set(err, ERR_USAGE, "'%s' cannot be given with --resume; give %s%s", atropos_options[i].name,
                             atropos_options[i].sets[0] ? "--" : "the settings that it stands for",
                             atropos_options[i].sets[0] ? atropos_options[i].sets[0] : "");
        else if (t->atropos[i] && !atropos_option_set(&t->config, &atropos_options[i], t->atropos[i], FROM_FLAG, NULL, err))
            return false;
    if (t->resume && t->config.free_running != before->free_running)
        return error_set(err, ERR_USAGE, "'free_running' is %s in this run; its prompts are scheduled that way, and it cannot change",
                         before->free_running ? "true" : "false");
    if (t->resume)
        workers_change(t, before, &notes);
    if (t->resume && !knob_given(t, "train_minibatch_size"))    // it has no effect, so the value that the run began with does no harm
        t->config.train_minibatch_size = t->config.train_batch_size;
    bool ok = run_config_finish(&t->config, &notes, err);
    environment_note(&notes);
    if (ok && notes.len)
        fprintf(stderr, "%s", buf_text(&notes));
    ok = ok && (!t->resume || flags_note(t, before, err));
    buf_release(&notes);
    return ok;
}

/* ---- the command ---- */

/* Start the run on other machines, or show how. */
static bool train_far(struct train *t, struct error *err)
{
    if (!train_check_far(t, err))
        return false;
    if (t->dry_run) {
        struct buf script = BUF_INIT;
        char dir[PATH_MAX];
        const char *name = t->resume ? strrchr(t->run_dir, '/') + 1 : t->config.name[0] ? t->config.name : "NAME";
        bool ok = t->resume ? path_join(dir, sizeof dir, t->run_dir, "")
                            : path_join(dir, sizeof dir, t->runs_dir ? t->runs_dir : "runs", name);
        ok = ok && launch_script(&t->launch, t->resume ? t->run_dir : dir, name, "rollcall", &script, err);
        printf("%s", buf_text(&script));
        buf_release(&script);
        return ok;
    }
    if (!t->resume && !dir_take(t, err))
        return false;
    if (launch_submit(&t->launch, t->run_dir, t->config.name, t->resume != NULL, err))
        return true;
    struct error why;
    if (!t->resume && !dir_remove(t->run_dir, &why))
        fprintf(stderr, "%s\n", why.text);
    return false;
}

/* --dry-run: how the nodes of 'hosts' are started. */
static bool hosts_print(const struct train *t, struct error *err)
{
    struct host host[HOSTS_MAX];
    int n;
    if (!host_list_read(t->config.hosts, host, &n, err))
        return false;
    for (int i = 0; i < n; i++) {
        struct buf command = BUF_INIT;
        host_command(&host[i], &t->config, "rollcall", t->config.name[0] ? t->config.name : "NAME", &command);
        printf("node '%s': ssh %s %s\n", host[i].node, host[i].target, buf_text(&command));
        buf_release(&command);
    }
    return true;
}

static bool train_cmd(int argc, char **argv, struct error *err)
{
    bool help = false, ok = false;
    struct buf notes = BUF_INIT;
    struct watch_seen seen = { 0 };
    struct run_config before;
    struct train *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, ERR_NO_MEMORY, "no memory for the settings");
    t->format = "text";
    t->lock_fd = -1;
    t->interval_s = -1;
    TRY(options_read(t, argc, argv, &help, err));
    if (help) {
        ok = true;
        goto out;
    }
    enum batch_format format;
    TRY(batch_format_parse(t->format, &format, err));
    TRY(settings_read(t, &before, err));
    TRY(!t->resume || t->dry_run || kept_journal_take(t, err));
    TRY(!t->resume || (kept_journal_check(t, err) && kept_settings_check(t, &before, err)));
    if (t->slurm) {
        ok = train_far(t, err);
        goto out;
    }
    if (t->resume && !t->dry_run) {
        TRY(t->from_checkpoint || train_watch_skip(t, &seen, err));    // do not print again what an earlier start has printed
        TRY(train_take(t, &before, err));
    }
    TRY(train_check(t, err));
    TRY(!t->from_checkpoint || kept_checkpoint_find(t, err));
    knobs_note_idle(&t->config, t->resume ? FROM_FLAG : FROM_FILE, &notes);    // a resumed run's run.yaml was checked when it began
    fprintf(stderr, "%s", buf_text(&notes));
    if (t->dry_run) {
        TRY(train_plan_print(t, err));
        TRY(hosts_print(t, err));
        ok = true;
        goto out;
    }
    bool batch = t->batch || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO);
    if (batch)
        train_watch_signals();
    TRY(!t->resume || kept_settings_note(t, &before, err));
    TRY(train_start(t, err));
    fprintf(stderr, "data: %.*s\n", (int)strcspn(buf_text(&t->about), "\n"), buf_text(&t->about));
    if (batch) {
        ok = train_watch(t, &seen, err);
    } else {
        fprintf(stderr,
                "the run continues in the background: %s\n  come back: rollcall console %s\n  stop:      rollcall ctl --run %s stop\n",
                t->run_dir, t->run_dir, t->run_dir);
        char *words[] = { "console", t->run_dir, NULL };
        ok = console_subcommand.run(2, words, err);
    }
out:
    buf_release(&notes);
    if (t->lock_fd >= 0)
        close(t->lock_fd);
    buf_release(&t->flags);
    json_decref(t->identity);
    json_decref(t->settings);
    launch_release(&t->launch);
    buf_release(&t->about);
    buf_release(&t->shown);
    free(t);
    return ok;
}

const struct subcommand train_subcommand = { "train", train_cmd, "train a model; on a terminal, with the console open" };
