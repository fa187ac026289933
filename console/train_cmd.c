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
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/file.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/plan/run_room.h"

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
    };
    struct cli_option *options = calloc(ARRAY_SIZE(own) + 2 * KNOB_MAX, sizeof *options);
    int n = ARRAY_SIZE(own);
    const char *group = "", *operand[1] = { NULL };
    char **words = switches_complete(&argc, argv);
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
    if (t->resume && t->config.free_running != before->free_running)
        return error_set(err, ERR_USAGE, "'free_running' is %s in this run; its prompts are scheduled that way, and it cannot change",
                         before->free_running ? "true" : "false");
    if (t->resume)
        workers_change(t, before, &notes);
    if (t->resume && !knob_given(t, "train_minibatch_size"))    // it has no effect, so the value that the run began with does no harm
        t->config.train_minibatch_size = t->config.train_batch_size;
    bool ok = run_config_finish(&t->config, &notes, err);
    if (ok && notes.len)
        fprintf(stderr, "%s", buf_text(&notes));
    ok = ok && (!t->resume || flags_note(t, before, err));
    buf_release(&notes);
    return ok;
}

/* ---- the command ---- */

static void placement_print(const struct train *t)
{
    const struct run_config *c = &t->config;
    int64_t n = run_config_n_device(c);
    printf("processes:      keeper, agent, controller, scorer, %" PRId64 " worker%s\n", n, n == 1 ? "" : "s");
    const char *title = "placement:      ";
    for (const char *at = c->devices; *at; at += at[strcspn(at, ",")] ? strcspn(at, ",") + 1 : strcspn(at, ",")) {
        struct error err;
        struct run_part part;
        char device[64], role[64];
        snprintf(device, sizeof device, "%.*s", (int)MIN(strcspn(at, ","), (size_t)50), at);
        if (run_config_part(c, device, &part, &err))
            printf("%s%s: %s\n", title, device, run_part_text(&part, role, sizeof role));
        title = "                ";
    }
}

/* Parameters of the run's adapter, which train_check has found to be possible; 0: it trains all weights. */
static double adapter_n_param(const struct run_config *c, const struct model_config *shape)
{
    struct lora_config lora = { .rank = c->lora_rank };
    struct error err;
    if (c->lora_rank == 0)
        return 0;
    bool ok = c->lora_adapter[0] ? lora_config_load(&lora, c->lora_adapter, &err)
                                 : lora_targets_parse(&lora.targets, c->lora_target_modules, &err);
    return ok ? (double)MAX(lora_n_param(&lora, shape, &err), (int64_t)0) : 0;
}

/* The same for an adapter: the base once, whoever samples or is the reference, and masters, moments and gradient of the adapter only. */
static void adapter_memory_print(const struct run_config *c, const struct model_config *shape, bool half)
{
    double mib = 1 << 20, size = half ? 2 : 4, base = (double)config_n_param(shape), copies = 1 + (c->n_behind > 0);
    double n = adapter_n_param(c, shape), own = n * (copies * size + (half ? 16 : 12));
    printf("memory:         %.0f MiB: %.0f for %.1f M frozen parameters in %s, %.0f for an adapter of rank %" PRId64 " with %.1f M: %g x\n"
           "                weights, fp32 masters, moments and gradient; activations and key-value pages come on top, taken once at the\n"
           "                start\n",
           (base * size + own) / mib, base * size / mib, base / 1e6, half ? "bf16" : "fp32", own / mib, c->lora_rank, n / 1e6, copies);
}

/* Memory that does not depend on the batch: weights, fp32 masters, two moments and the gradient; a reference model with a KL penalty. */
static void memory_print(const struct train *t)
{
    struct model_config shape;
    struct error err;
    if (!config_load(&shape, t->config.model, &err))
        return;
    bool half = strcmp(t->config.dtype, "bf16") == 0
                || (strcmp(t->config.dtype, "auto") == 0 && strncmp(t->config.devices, "cuda", 4) == 0);
    double n = (double)config_n_param(&shape), weight = n * (half ? 2 : 4), mib = 1 << 20;
    if (t->config.lora_rank > 0) {
        adapter_memory_print(&t->config, &shape, half);
        return;
    }
    double copies = 1 + (t->config.n_behind > 0) + (t->config.beta > 0);
    printf("memory:         %.0f MiB for %.1f M parameters: %g x weights %s, fp32 masters, moments and gradient; activations and\n"
           "                key-value pages come on top, taken once at the start\n",
           (copies * weight + 16 * n) / mib, n / 1e6, copies, half ? "bf16" : "fp32");
}

/* What several trainers keep and send, at each zero_stage that is possible. Source of the sums: ZeRO, arXiv 1910.02054, section 5, with
 * the chain of micro-batches added up in its owner's shard (ranks.h) and two layers' weights and gradients under way. */
static void trainers_print(const struct train *t)
{
    struct model_config shape;
    struct error err;
    const struct run_config *c = &t->config;
    double n_rank = (double)c->num_trainers, mib = 1 << 20;
    int most = c->lora_rank > 0 ? 2 : 3, set = MIN(run_config_zero(c), most);    // an adapter is small: each has all of it
    if (n_rank < 2 || !config_load(&shape, c->model, &err))
        return;
    bool half = strcmp(c->dtype, "bf16") == 0 || (strcmp(c->dtype, "auto") == 0 && strncmp(c->devices, "cuda", 4) == 0);
    double n = (double)config_n_param(&shape), embed = (double)(shape.vocab * shape.d_model), state = half ? 12 : 8, weight = half ? 2 : 4;
    double layer = (n - embed * (shape.tied ? 1 : 2)) / (double)shape.n_layer, piece = MAX(embed, layer), way = (n_rank - 1) / n_rank;
    if (c->lora_rank > 0)
        piece = layer = (n = adapter_n_param(c, &shape)) / (double)shape.n_layer;
    const char *title = "trainers:       ";
    for (int z = 0; z <= most; z++) {
        double two = z == 3 ? MAX(2 * layer, embed) : 2 * piece;    // places for gradients and what comes of others
        double held = 4 * ((z >= 2 ? two : n) + n / n_rank + way * two) + (z == 0 ? state * n : state * n / n_rank)
                      + weight * (z == 3 ? n / n_rank + 2 * layer + embed : n);
        if (set >= 0 && set != z)
            continue;
        printf("%szero_stage %d: weights, gradient, masters and moments take %.0f MiB of each of %g trainers; it sends %.0f MiB of\n"
               "                gradients a round of micro-batches and %.0f MiB of %s%s\n",
               title, z, held / mib, n_rank, 4 * n * way / mib,
               (z == 0   ? 4
                : z == 3 ? 2 * weight
                         : weight)
                   * n * way / mib,
               z == 0   ? "their sums a step"
               : z == 3 ? "weights as often"
                        : "new weights a step",
               set < 0 && z == 1 ? " (auto: this, or the next one that has room)" : "");
        title = "                ";
    }
    if (most == 3 && (set == 3 || set < 0))
        printf(
            "                (with zero_stage 3 a trainer that samples, and the first one, keep a whole copy of the weights, too: %.0f MiB)\n",
            weight * n / mib);
}

/* What the first trainer's device has room for; fails as the worker there would. */
static bool room_print(const struct train *t, struct error *err)
{
    const struct run_config *c = &t->config;
    char first[64], role[64];
    struct run_part part;
    struct run_room room;
    struct error ignored;
    snprintf(first, sizeof first, "%.*s", (int)MIN(strcspn(c->devices, ","), sizeof first - 1), c->devices);
    if (c->lora_rank > 0 || !run_config_part(c, first, &part, &ignored))
        return true;
    struct device *dev = device_new(first, (int)c->threads, err);
    bool ok = dev && run_room_plan(&room, c, &part, dev, err);
    device_free(dev);
    if (!ok)
        return false;
    const struct memory_plan *p = &room.plan;
    if (!room.fits)
        return error_set(err, ERR_NO_MEMORY, "%s has %.1f GB free, and %s needs %.1f GB of it; %s", first, (double)room.have * 1e-9,
                         run_part_text(&part, role, sizeof role), (double)(p->total + p->reserve) * 1e-9, room.nearest);
    printf("room:           %s (%s): %.3g of %.3g GB: weights %.3g, gradient %.3g, masters and moments %.3g, sampler %.3g,\n"
           "                activations %.3g, keys and values %.3g%s\n",
           first, run_part_text(&part, role, sizeof role), (double)p->total * 1e-9, (double)room.have * 1e-9, (double)p->weights * 1e-9,
           (double)p->gradient * 1e-9, (double)p->state * 1e-9, (double)p->sampler * 1e-9, (double)p->activation * 1e-9,
           (double)p->kv * 1e-9, p->turns ? " (these two by turns)" : "");
    if (c->num_trainers > 1 && run_config_zero(c) < 0 && p->zero_stage > 1)
        printf("                zero_stage %d (auto: %d has no room)\n", p->zero_stage, p->zero_stage - 1);
    else if (c->num_trainers > 1)
        printf("                zero_stage %d%s\n", p->zero_stage, run_config_zero(c) < 0 ? " (auto)" : "");
    return true;
}

static void plan_print(const struct train *t)
{
    const struct run_plan *p = &t->plan;
    printf("run:            %s\n", t->resume ? t->run_dir : t->config.name[0] ? t->config.name : "(a free name)");
    printf("model:          %s\n", t->config.model);
    for (const char *at = buf_text(&t->about), *title = "data:       "; *at; at = strchr(at, '\n') + 1, title = "evaluation: ")
        printf("%s    %.*s\n", title, (int)strcspn(at, "\n"), at);
    placement_print(t);
    printf("rollout step:   %" PRId64 " prompts x %" PRId64 " completions\n", p->prompts_per_rollout_step, t->config.num_generations);
    printf("optimizer step: %" PRId64 " prompts (train_batch_size %" PRId64 " x %" PRId64 " trainers), %" PRId64
           " of them per rollout step\n",
           p->prompts_per_train_batch, t->config.train_batch_size, p->dp, p->k);
    printf("length:         %" PRId64 " optimizer steps\n", run_steps(t));
    if (t->config.free_running)
        printf("free-running:   not repeatable; a group's first token is at most %" PRId64 " optimizer steps old when trained on\n",
               p->max_age_steps);
    else if (p->on_policy)
        printf("on-policy:      strictly (n_behind 0, one optimizer step per rollout step)\n");
    else
        printf("on-policy:      no; a token is at most %" PRId64 " optimizer steps old when trained on (without filtering)\n",
               p->max_age_steps);
    memory_print(t);
    trainers_print(t);
    train_estimate_print(t);
    const struct run_config *c = &t->config;
    const char *own = strcmp(c->placement, "apart") == 0 ? ""
                      : c->n_behind == 0                 ? "shared by sampler and trainer on each device"
                                                         : "copied on the device for its sampler",
               *way = strcmp(c->weights, "files") == 0      ? "by file"
                      : strcmp(c->weights, "copy") == 0     ? "by copy"
                      : strncmp(c->devices, "cpu:", 4) == 0 ? "through shared memory"
                                                            : "by nccl";
    bool far = run_config_travels(c);
    printf("%s        %s%s%s%s\n", c->lora_rank > 0 ? "adapter:" : "weights:", own, own[0] && far ? "; " : "", far ? way : "",
           far ? " from the first trainer to other samplers" : "");
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
    TRY(!t->resume || kept_journal_check(t, err));
    if (t->resume && !t->dry_run) {
        TRY(t->from_checkpoint || train_watch_skip(t, &seen, err));    // do not print again what an earlier start has printed
        TRY(train_take(t, &before, err));
    }
    TRY(train_check(t, err));
    TRY(!t->from_checkpoint || kept_checkpoint_find(t, err));
    knobs_note_idle(&t->config, t->resume ? FROM_FLAG : FROM_FILE, &notes);    // a resumed run's run.yaml was checked when it began
    fprintf(stderr, "%s", buf_text(&notes));
    if (t->dry_run) {
        plan_print(t);
        TRY(room_print(t, err));
        ok = true;
        goto out;
    }
    bool batch = t->batch || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO);
    if (batch)
        train_watch_signals();
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
    buf_release(&t->about);
    free(t);
    return ok;
}

const struct subcommand train_subcommand = { "train", train_cmd, "train a model; on a terminal, with the console open" };
