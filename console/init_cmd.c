/* rollcall init: ask for model, data, devices and hours, check that they fit, and write a run file */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "console/train/ask.h"
#include "console/train/init.h"
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/subcommand.h"
#include "workers/engine/hub/hub_data.h"
#include "workers/engine/hub/hub_pull.h"

struct wanted {
    const char *model, *dataset, *devices, *file;
    double hours;
    int64_t max_new_tok;
    bool yes, force, pull;
    bool asks;    // somebody is there to answer
};

/* The name is not in the cache: get it, if that is wanted. */
static bool pull(const struct wanted *w, const char *name, enum hub_kind kind, struct error *err)
{
    struct hub_data data;
    char question[512], dir[PATH_MAX];
    struct hub_pull p = { .kind = kind, .name = name, .progress = stderr };
    if (kind == HUB_DATASET) {
        if (!hub_data_parse(&data, name))
            return false;
        p.name = data.name;
        p.revision = data.revision[0] ? data.revision : NULL;
    } else if (!hub_name_ok(name) || !strchr(name, '/')) {    // one word is more likely a folder that is not there
        return false;
    }
    snprintf(question, sizeof question, "  '%.200s' is not in the Hugging Face cache; download it now?", name);
    return (w->pull || (w->asks && ask_yes(question))) && hub_pull(&p, dir, sizeof dir, err);
}

typedef bool look_fn(struct init *i, const char *name, struct error *err);

static bool data_or_pull(struct init *i, const struct wanted *w, look_fn *look, const char *name, struct error *err)
{
    enum hub_kind kind = look == init_model ? HUB_MODEL : HUB_DATASET;
    if (look(i, name, err))
        return true;
    return look != init_devices && err->code == ERR_NOT_FOUND && !path_exists(name) && pull(w, name, kind, err) && look(i, name, err);
}

/* Take what was given, or ask until the answer works. */
static bool settled(struct init *i, const struct wanted *w, look_fn *look, const char *given, const char *question, const char *preset,
                    const char *flag, struct error *err)
{
    char answer[RUN_TEXT_MAX];
    if (given || !w->asks)
        return data_or_pull(i, w, look, given ? given : preset, err);
    for (;;) {
        if (!ask_text(answer, sizeof answer, question, preset, flag, err))
            return false;
        if (data_or_pull(i, w, look, answer, err))
            return true;
        fprintf(stderr, "  %s\n", err->text);
    }
}

static bool hours_settle(struct init *i, const struct wanted *w, struct error *err)
{
    char answer[64];
    i->hours = w->hours;
    while (w->asks && w->hours == 0) {
        if (!ask_text(answer, sizeof answer, "Hours", "2", "--hours", err))
            return false;
        if (parse_f64(answer, &i->hours) && i->hours > 0)
            return true;
        fprintf(stderr, "  '%s' is not a number of hours\n", answer);
    }
    if (i->hours == 0)
        i->hours = 2;
    return i->hours > 0 || error_set(err, ERR_USAGE, "--hours must be above 0");
}

static bool collect(struct init *i, const struct wanted *w, struct error *err)
{
    i->max_new_tok = w->max_new_tok;
    if (!settled(i, w, init_model, w->model, "Model (a directory, or ORG/NAME of the hub)", "Qwen/Qwen2.5-0.5B-Instruct", "--model", err))
        return false;
    fprintf(stderr, "  %.3g M parameters, sequences of up to %" PRId64 " tokens\n", (double)config_n_param(&i->shape) * 1e-6,
            config_longest(&i->shape));
    if (!settled(i, w, init_data, w->dataset, "Data (a file, a folder, or ORG/NAME:CONFIG:SPLIT of the hub)", "openai/gsm8k:main:train",
                 "--dataset", err))
        return false;
    fprintf(stderr, "  %" PRId64 " prompts, %" PRId64 " tokens hold 99.5 %% of them; reward: %s\n", i->n_row, i->n_prompt_tok, i->reward);
    if (!settled(i, w, init_devices, w->devices, "Devices (auto, or a list as cuda:0,cuda:1)", "auto", "--devices", err))
        return false;
    fprintf(stderr, "  %s, %.3g GB free%s\n", i->devices, (double)i->mem * 1e-9, i->n_device > 1 ? " on each" : "");
    return hours_settle(i, w, err) && init_settle(i, err);
}

static bool text_write(const struct init *i, const char *path, struct error *err)
{
    struct buf text = BUF_INIT;
    init_text(i, &text);
    bool ok = !text.failed && file_write(path, text.data, text.len, err);
    if (text.failed)
        error_set(err, ERR_NO_MEMORY, "no memory for the run file");
    buf_release(&text);
    return ok;
}

static void trial_print(const char *name, const struct init_trial *t)
{
    fprintf(stderr, "  %-24s %5.1f %%   %5.1f %%   %5.1f %%   %6.0f\n", name, 100 * t->right, 100 * t->cut, 100 * t->spread, t->tok);
}

/* Sample with the reward's own system prompt and without one, say what comes of it, and take the better one. */
static bool system_settle(struct init *i, struct error *err)
{
    char why[400];
    fprintf(stderr, "sampling a few prompts with and without the reward's own system prompt ...\n");
    if (!init_system(i, why, sizeof why, err))
        return false;
    if (i->own.n == 0) {
        fprintf(stderr, "  not compared, so it stays in force%s%s\n", why[0] ? ": " : "", why);
        return true;
    }
    fprintf(stderr, "  %" PRId64 " prompts, %" PRId64 " of each      right       cut    spread   tokens\n", i->own.n, i->own.n_each);
    trial_print("the reward's own", &i->own);
    trial_print("none", &i->none);
    fprintf(stderr, "  chosen: %s\n", i->no_system ? "none" : "the reward's own");
    if (!(fmax(i->own.spread, i->none.spread) > 0))
        fprintf(stderr,
                "  warning: no prompt has both right and wrong answers, so there is nothing to learn from; choose other prompts or another "
                "model\n");
    return true;
}

/* Under another name until everything has been checked. */
static bool write_checked(struct init *i, const struct wanted *w, struct error *err)
{
    char draft[PATH_MAX];
    if ((size_t)snprintf(draft, sizeof draft, "%s.draft", w->file) >= sizeof draft)
        return error_set(err, ERR_USAGE, "the path '%s' is too long", w->file);
    i->n_step = 1;
    fprintf(stderr, "measuring a step ...\n");
    bool again = false, ok = text_write(i, draft, err) && init_measure(i, draft, &again, err);
    if (again)
        ok = text_write(i, draft, err) && init_measure(i, draft, &again, err);
    unlink(draft);
    return ok && text_write(i, w->file, err);
}

static bool init_cmd(int argc, char **argv, struct error *err)
{
    struct wanted w = { 0 };
    const char *operand[1] = { NULL };
    struct cli_option options[] = {
        { "model", "m", CLI_STR, &w.model, "NAME", "a model directory, a .gguf file, or ORG/NAME of the hub" },
        { "dataset", "d", CLI_STR, &w.dataset, "NAME", "a file, a folder, a pattern, or ORG/NAME[:CONFIG][:SPLIT] of the hub" },
        { "devices", NULL, CLI_STR, &w.devices, "LIST", "such as cuda:0,cuda:1 (auto: all GPUs, else the processor)" },
        { "hours", NULL, CLI_F64, &w.hours, "H", "how long the run may take (2); sets max_hours" },
        { "max-new-tokens", "mnt", CLI_I64, &w.max_new_tok, "N", "longest response (512)" },
        { "pull", NULL, CLI_FLAG, &w.pull, NULL, "download what is not in the Hugging Face cache, without a question" },
        { "yes", "y", CLI_FLAG, &w.yes, NULL, "ask nothing: take the default of what is not given" },
        { "force", NULL, CLI_FLAG, &w.force, NULL, "overwrite the run file" },
    };
    struct cli cli = {
        .command = "rollcall init",
        .about = "Writes a run file with comments: asks for model, data, devices and hours (or takes them as options), checks\n"
                 "that they fit, samples a few prompts with and without the reward's own system prompt, takes the better of the two,\n"
                 "and measures a step. Then: rollcall train RUN.yaml",
        .operands = "[RUN.yaml]",
        .options = options,
        .n_options = ARRAY_SIZE(options),
        .operand = operand,
        .max_operands = 1
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (w.hours < 0 || w.max_new_tok < 0)
        return error_set(err, ERR_USAGE, "--hours and --max-new-tokens must be above 0");
    w.file = operand[0] ? operand[0] : "run.yaml";
    w.asks = !w.yes && isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    if (!w.asks && !w.yes && (!w.model || !w.dataset))
        return error_set(err, ERR_USAGE, "there is no terminal to ask on: give --model and --dataset, or --yes for the defaults");
    if (path_is_stream(w.file))
        return error_set(err, ERR_USAGE,
                         "'-' stands for standard output, and a run file is written into a folder; './-' is a file of that name");
    if (path_exists(w.file) && !w.force)
        return error_set(err, ERR_EXISTS, "'%s' exists; give another name, or --force to overwrite it", w.file);
    struct init *i = calloc(1, sizeof *i);
    if (!i)
        return error_set(err, ERR_NO_MEMORY, "no memory for the settings");
    bool ok = collect(i, &w, err) && system_settle(i, err) && write_checked(i, &w, err);
    if (ok)
        printf("%s: %g h, about %" PRId64 " steps of %s%.3g s\n"
               "  look at it:  rollcall train %s --dry-run\n"
               "  start it:    rollcall train %s\n",
               w.file, i->hours, i->n_step, i->own.n > 0 ? "" : "at most ", i->step_s, w.file, w.file);
    free(i);
    return ok;
}

const struct subcommand init_subcommand = { "init", init_cmd, "write a run file: asks for model, data, devices and hours" };
