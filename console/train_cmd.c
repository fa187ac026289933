/* train_cmd.c - rollcall train: check everything, make the run's directory, start its processes, show it
 *
 * Nothing is written before everything has been checked. The run itself is the agent's business from then on; this process only
 * looks: at the journal, and with --batch it owns the run in so far as a signal to it stops the run. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "console/batch/batch.h"
#include "console/commands.h"
#include "kernels/collective/comm.h"
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/knobs.h"
#include "protocol/run_door.h"
#include "protocol/run_failure.h"
#include "protocol/run_lock.h"
#include "protocol/transport.h"
#include "workers/agent/spawn.h"
#include "workers/export/export.h"
#include "workers/controller/journal.h"
#include "workers/model/config.h"
#include "workers/model/model.h"
#include "workers/node/node.h"
#include "workers/reward/reward.h"
#include "workers/text/dataset.h"
#include "workers/text/hub.h"
#include "workers/text/template.h"
#include "workers/text/tokenizer.h"

#define START_LIMIT_S 60      // until the controller's journal is there
#define END_LIMIT_S 60        // from the run's last event until its processes are gone
#define STOP_LIMIT_S 3600     // of the command that a signal sends

struct train {
    struct run_config config;
    struct run_plan plan;
    int64_t n_row;
    const char *run_file, *resume, *runs_dir, *format, *value[KNOB_MAX];
    bool batch, dry_run;
    double interval_s;
    char run_dir[PATH_MAX];
};

static volatile sig_atomic_t n_signal;

static void on_signal(UNUSED int sig)
{
    n_signal = n_signal + 1;
}

/* ---- settings ---- */

static bool is_bool_word(const char *s)
{
    static const char *const words[] = { "true", "false", "yes", "no", "on", "off", "1", "0" };
    for (size_t i = 0; s && i < ARRAY_SIZE(words); i++)
        if (strcmp(words[i], s) == 0)
            return true;
    return false;
}

/* --shuffle means --shuffle true: a switch's value may be left out. Returns a new argv whose words are borrowed. */
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
        if (k && k->type == KNOB_BOOL && (i + 1 == *argc || !is_bool_word(argv[i + 1])))
            out[n++] = "true";
    }
    *argc = n;
    return out;
}

/* The options of train, and behind them one for every setting. */
static bool options_read(struct train *t, int argc, char **argv, bool *help, struct error *err)
{
    struct cli_option own[] = {
        { NULL, NULL, CLI_HEADING, NULL, NULL, "the command" },
        { "resume", NULL, CLI_STR, &t->resume, "DIR", "go on with this run; settings given here are kept from now on" },
        { "runs-dir", NULL, CLI_STR, &t->runs_dir, "DIR", "where the run's directory is made (runs)" },
        { "batch", NULL, CLI_FLAG, &t->batch, NULL, "stay in the foreground and own the run: a signal stops it, a second at once" },
        { "format", NULL, CLI_STR, &t->format, "FORMAT", "with --batch: text or jsonl" },
        { "interval", NULL, CLI_F64, &t->interval_s, "SECONDS", "with --batch: at most a step's line so often (text 1, jsonl 0)" },
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
            options[n++] = (struct cli_option){ knobs[i].alias, NULL, CLI_STR, &t->value[i], NULL, "the seeds' name for the one above" };
    }
    struct cli cli = { .command = "rollcall train", .operands = "[RUN.yaml]", .options = options, .n_options = n,
                       .operand = operand, .max_operands = 1,
                       .about = "Trains a model by reinforcement learning. On a terminal the run goes on in the background and the\n"
                                "console opens on it; with --batch, or without a terminal, progress is printed here." };
    bool ok = cli_parse(&cli, argc, words, err);
    t->run_file = operand[0];
    *help = ok && cli.help_wanted;
    free(options);
    free(words);
    if (ok && t->resume && t->run_file)
        return error_set(err, ERR_USAGE, "--resume takes the run's own run.yaml; leave '%s' away", t->run_file);
    return ok;
}

/* ---- resuming with other workers ---- */

static bool given(const struct train *t, const char *name)
{
    struct error err;
    return t->value[knob_find(name, &err) - knobs] != NULL;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

static void device_add(struct run_config *c, const char *device)
{
    size_t len = strlen(c->devices);
    snprintf(c->devices + len, sizeof c->devices - len, "%s%s", len ? "," : "", device);    // too long a list: devices_choose counts
}

/* The devices of before, as many as are needed now: the first of them, or all and more of their kind. */
static void devices_fit(struct run_config *c)
{
    char list[sizeof c->devices], device[64], *rest = list, *word;
    int64_t n = run_config_n_device(c), have = 0;
    memcpy(list, c->devices, sizeof list);
    c->devices[0] = 0;
    for (; have < n && (word = strsep(&rest, ",")); have++)
        device_add(c, word);
    int kind = (int)strcspn(list, ":");
    for (int64_t k = 0; have < n; k++) {
        struct run_part part;
        struct error none;
        snprintf(device, sizeof device, "%.*s:%" PRId64, MIN(kind, 32), list, k);
        if (run_config_part(c, device, &part, &none))    // it is in the list already
            continue;
        device_add(c, device);
        have++;
    }
}

/* One of the two sizes that count prompts a worker: keep what all workers together have, when it can be shared out. */
static void size_keep(const struct train *t, const char *what, const char *name, int64_t *size, int64_t n_before, int64_t n,
                      const char *part_name, int64_t *part, struct buf *notes)
{
    int64_t all = *size * n_before, was = *size;
    if (n == n_before)
        return;
    if (!given(t, name) && all % n == 0) {
        *size = all / n;
        if (!given(t, part_name))
            *part = common_divisor(*part, *size);
        buf_fmt(notes, "note: '%s' is %" PRId64 " instead of %" PRId64 ", so that %s stays %" PRId64 " prompts\n", name, *size, was, what, all);
    } else {
        buf_fmt(notes, "note: %s is %" PRId64 " prompts instead of %" PRId64 " from the next one on: not the bytes of a run without "
                "this change\n", what, *size * n, all);
    }
}

/* Say what a resumed run keeps when its number of workers changes, and see to it. */
static void workers_change(struct train *t, const struct run_config *before, struct buf *notes)
{
    struct run_config *c = &t->config;
    if (c->num_trainers == before->num_trainers && c->num_inferencer == before->num_inferencer
        && strcmp(c->placement, before->placement) == 0)
        return;
    if (!given(t, "devices"))
        devices_fit(c);
    size_keep(t, "a rollout step", "inference_batch_size", &c->inference_batch_size, before->num_inferencer, c->num_inferencer,
              "inference_microbatch_size", &c->inference_microbatch_size, notes);
    size_keep(t, "an optimizer step", "train_batch_size", &c->train_batch_size, before->num_trainers, c->num_trainers,
              "train_minibatch_size", &c->train_minibatch_size, notes);
    if (c->num_trainers != before->num_trainers)
        buf_fmt(notes, "note: 'num_trainers' is %" PRId64 " instead of %" PRId64 ": prompt order, random numbers and optimizer state are kept; "
                "gradients are added in another order from here on, so the weights agree up to fp32 rounding and not in their bytes\n",
                c->num_trainers, before->num_trainers);
    else if (c->inference_batch_size * c->num_inferencer == before->inference_batch_size * before->num_inferencer
             && c->train_batch_size == before->train_batch_size)
        buf_str(notes, "note: everything is kept: the weights will have the bytes of a run without this change\n");
}

static bool settings_read(struct train *t, struct error *err)
{
    char path[PATH_MAX];
    struct buf notes = BUF_INIT;
    struct run_config before;
    run_config_init(&t->config);
    if (t->resume) {
        if (!realpath(t->resume, t->run_dir) || !path_join(path, sizeof path, t->run_dir, "run.yaml") || !path_exists(path))
            return error_set(err, ERR_NOT_FOUND, "'%s' is no run: it has no run.yaml", t->resume);
        if (!run_config_read(&t->config, path, err))
            return false;
    } else if (t->run_file && !run_config_read(&t->config, t->run_file, err)) {
        return false;
    }
    before = t->config;
    for (int i = 0; i < n_knobs; i++)
        if (t->value[i] && !run_config_set(&t->config, knobs[i].name, t->value[i], FROM_FLAG, NULL, err))
            return false;
    if (t->resume && t->config.free_running != before.free_running)
        return error_set(err, ERR_USAGE, "'free_running' is %s in this run; its prompts are scheduled that way, and it cannot change",
                         before.free_running ? "true" : "false");
    if (t->resume)
        workers_change(t, &before, &notes);
    bool ok = run_config_finish(&t->config, &notes, err);
    if (ok && notes.len)
        fprintf(stderr, "%s", buf_text(&notes));
    buf_release(&notes);
    return ok;
}

/* ---- checks before anything is made ---- */

static bool model_check(struct train *t, struct error *err)
{
    char dir[PATH_MAX], full[PATH_MAX];
    struct model_config shape;
    if (!t->config.model[0])
        return error_set(err, ERR_USAGE, "--model is needed: a model directory, or org/name in the Hugging Face cache");
    if (!hub_find(dir, sizeof dir, t->config.model, NULL, err))
        return false;
    if (!realpath(dir, full))
        return error_errno(err, "cannot find the model '%s'", dir);
    if (strlen(full) >= sizeof t->config.model)
        return error_set(err, ERR_USAGE, "the model's path '%s' is too long", full);
    snprintf(t->config.model, sizeof t->config.model, "%s", full);
    struct tokenizer *tokenizer = NULL;
    struct template *chat = NULL;
    bool ok = model_files_check(full, &shape, err) && (tokenizer = tokenizer_load(full, err))
           && tokenizer_fits(tokenizer, shape.vocab, full, err) && template_find(full, &chat, err);
    tokenizer_free(tokenizer);
    template_free(chat);
    return ok;
}

static bool data_check(struct train *t, struct error *err)
{
    struct eval_set set[EVAL_SET_MAX];
    struct dataset_columns columns = { t->config.prompt_column, t->config.answer_column };
    struct dataset *d = dataset_open(t->config.dataset, &columns, err);
    if (!d)
        return false;
    t->n_row = dataset_n_row(d);
    dataset_free(d);
    int n = run_config_eval_sets(&t->config, set, err);
    for (int i = 0; i < n; i++) {
        if (!(d = dataset_open(set[i].path, &columns, err)))
            return error_wrap(err, "evaluation set '%s'", set[i].name);
        dataset_free(d);
    }
    return n >= 0;
}

static bool reward_check(const struct train *t, struct error *err)
{
    struct reward_config c = { .type = t->config.reward_type, .max_new_tok = t->config.max_new_tokens,
        .soft_over_length_punishment = t->config.soft_over_length_punishment, .cache_len = t->config.cache_length,
        .program_timeout_s = t->config.reward_timeout_s,
        .code_verifier_api_url = t->config.code_verifier_api_url[0] ? t->config.code_verifier_api_url : NULL };
    struct reward *r = reward_new(&c, err);
    reward_free(r);
    return r != NULL;
}

/* `auto` becomes a list of as many devices as the counts ask for: GPUs when the machine has one, else CPUs. A list that was given
 * must be that long. */
static bool devices_choose(struct run_config *c, struct error *err)
{
    struct error none;
    int64_t n = run_config_n_device(c), n_given = 1;
    for (const char *at = c->devices; (at = strchr(at, ',')); at++)
        n_given++;
    if (strcmp(c->devices, "auto") != 0)
        return n_given == n || error_set(err, ERR_USAGE, "devices '%s' are %" PRId64 ", but num_trainers %" PRId64 " and num_inferencer %"
                                         PRId64 " with placement '%s' need %" PRId64, c->devices, n_given, c->num_trainers,
                                         c->num_inferencer, c->placement, n);
    struct device *gpu = path_exists("/dev/nvidiactl") ? device_new("cuda:0", 0, &none) : NULL;
    size_t at = 0;
    for (int64_t i = 0; i < n && at < sizeof c->devices; i++)
        at += (size_t)snprintf(c->devices + at, sizeof c->devices - at, "%s%s:%" PRId64, i ? "," : "", gpu ? "cuda" : "cpu", i);
    device_free(gpu);
    return at < sizeof c->devices || error_set(err, ERR_USAGE, "a list of %" PRId64 " devices is too long", n);
}

/* `auto` becomes the best way of the run's devices, when weights have to travel. */
static bool weights_choose(struct run_config *c, struct error *err)
{
    bool all_cuda = true, all_cpu = true;
    for (const char *at = c->devices; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        all_cuda = all_cuda && strncmp(at, "cuda:", 5) == 0;
        all_cpu = all_cpu && strncmp(at, "cpu:", 4) == 0;
    }
    if (!run_config_travels(c))
        return true;
    bool asked = strcmp(c->weights, "auto") != 0, nccl = strcmp(c->weights, "nccl") == 0;
    if (asked && strcmp(c->weights, "files") != 0 && !all_cuda && !all_cpu)
        return error_set(err, ERR_USAGE, "weights '%s' goes between GPUs or between CPUs, but devices are '%s'; leave it at 'auto', or say "
                         "'files'", c->weights, c->devices);
    if (asked && !(nccl && all_cuda))
        return true;
    if (!all_cuda) {
        strcpy(c->weights, "files");
        return true;
    }
    char first[32];
    struct error why = { 0 };
    snprintf(first, sizeof first, "%.*s", (int)MIN(strcspn(c->devices, ","), sizeof first - 1), c->devices);
    struct device *gpu = device_new(first, 0, &why);
    bool there = gpu && comm_available(gpu, &why);
    device_free(gpu);
    if (!there && asked)
        return error_wrap((*err = why, err), "weights 'nccl'");
    if (!there)
        fprintf(stderr, "note: weights go by copy, not by nccl: %s\n", why.text);
    strcpy(c->weights, there ? "nccl" : "copy");
    return true;
}

static bool sizes_check(struct train *t, struct error *err)
{
    const struct run_config *c = &t->config;
    if (!devices_choose(&t->config, err) || !weights_choose(&t->config, err))
        return false;
    char address[280];
    if ((c->listen[0] && !node_address(c->listen, "listen", address, err)) || (c->view_group[0] && !run_view_group_check(c->view_group, err)))
        return false;
    if (c->train_batch_size * c->num_trainers > 4096)
        return error_set(err, ERR_USAGE, "train_batch_size %" PRId64 " is more than 4096 prompts an optimizer step", c->train_batch_size);
    return run_plan_make(&t->plan, c, t->n_row, err);
}

/* ---- the run's directory ---- */

static bool dir_take(struct train *t, struct error *err)
{
    char parent[PATH_MAX], name[160];
    const char *runs = t->runs_dir ? t->runs_dir : "runs";
    if (!dir_make(runs, 0755, err))
        return false;
    if (!realpath(runs, parent))
        return error_errno(err, "cannot find '%s'", runs);
    if (strchr(t->config.name, '/') || strcmp(t->config.name, ".") == 0 || strcmp(t->config.name, "..") == 0)
        return error_set(err, ERR_USAGE, "'%s' is no name for a run: it is a folder's name", t->config.name);
    for (int i = 1; i < 100000; i++) {
        if (t->config.name[0])
            snprintf(name, sizeof name, "%s", t->config.name);
        else
            snprintf(name, sizeof name, "run-%d", i);
        if (!path_join(t->run_dir, sizeof t->run_dir, parent, name))
            return error_set(err, ERR_USAGE, "the path of run '%s' is too long", name);
        if (mkdir(t->run_dir, 0755) == 0) {
            snprintf(t->config.name, sizeof t->config.name, "%.127s", name);
            return true;
        }
        if (errno != EEXIST)
            return error_errno(err, "cannot make '%s'", t->run_dir);
        if (t->config.name[0])
            return error_set(err, ERR_EXISTS, "'%s' exists; choose another --name, or go on with it: --resume %s", t->run_dir, t->run_dir);
    }
    return error_set(err, ERR_EXISTS, "no free name for a run under '%s'", parent);
}

/* Is there room for one checkpoint (weights, in bf16 with their fp32 masters, and two moments) and a MiB of the rest? */
static bool room_check(const struct train *t, struct error *err)
{
    const char *dir = t->config.save_dir[0] && path_is_dir(t->config.save_dir) ? t->config.save_dir : t->run_dir;
    const double mib = 1 << 20;
    struct model_config shape;
    struct statvfs fs;
    if (!config_load(&shape, t->config.model, err))
        return false;
    if (statvfs(dir, &fs) != 0)
        return error_errno(err, "cannot look at the disk of '%s'", dir);
    bool saves = t->config.save_interval > 0 || t->config.save_at_end;
    double needed = (saves ? 12 * (double)config_n_param(&shape) : 0) + mib, left = (double)fs.f_bavail * (double)fs.f_frsize;
    return left >= needed || error_set(err, ERR_IO, "no space for a run on the disk of '%s': %.1f MiB are left, and one checkpoint of this "
                                       "model and the journal take %.1f MiB", dir, left / mib, needed / mib);
}

/* Fill the directory: run.yaml, folders, and away with what an earlier life left in sock/. */
static bool dir_fill(struct train *t, struct error *err)
{
    static const char *const dirs[] = { "logs", "checkpoints", "rollouts", "eval", "export" };
    static const char *const old[] = { "ended", "orders" };
    char path[PATH_MAX];
    struct buf yaml = BUF_INIT;
    bool ok = false;
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
        TRY(path_join(path, sizeof path, t->run_dir, dirs[i]) && dir_make(path, 0755, err));
    TRY(path_join(path, sizeof path, t->run_dir, "sock") && dir_make(path, 0700, err));
    for (size_t i = 0; i < ARRAY_SIZE(old); i++) {
        snprintf(path, sizeof path, "%.4000s/sock/%s", t->run_dir, old[i]);
        unlink(path);
    }
    run_weights_remove(t->run_dir);
    TRY(run_failure_prepare(t->run_dir, err));
    TRY(run_config_print(&t->config, &yaml, err));
    TRY(path_join(path, sizeof path, t->run_dir, "run.yaml") && file_write(path, yaml.data, yaml.len, err));
    ok = true;
out:
    buf_release(&yaml);
    return ok;
}

/* ---- watching ---- */

struct watch {
    struct train *train;
    struct journal *journal;
    struct batch *batch;
    int64_t step_seq, event_seq, n_eval, n_eval_told, last_step;
    char state[32], reason[1024];
    struct transport *transport;
    struct peer *agent;
    bool stop_open, stop_sent;
    int signals_seen;
};

static bool step_told(void *arg, const struct journal_step *s)
{
    struct watch *w = arg;
    struct batch_metric metric[128];
    int n = MIN(s->n, (int)ARRAY_SIZE(metric));
    w->step_seq = s->seq;
    w->last_step = s->step;
    if (!w->batch)
        return true;
    for (int i = 0; i < n; i++)
        metric[i] = (struct batch_metric){ s->metric[i].name, s->metric[i].value };
    batch_step(w->batch, s->step, w->train->config.max_steps > 0 ? w->train->config.max_steps : w->train->plan.total_steps, metric, n);
    return true;
}

static bool eval_told(void *arg, const struct journal_eval *e)
{
    struct watch *w = arg;
    if (w->n_eval++ >= w->n_eval_told) {
        w->n_eval_told = w->n_eval;
        batch_eval(w->batch, e->step, e->set, e->n, e->mean);
    }
    return true;
}

static bool event_told(void *arg, const struct journal_event *e)
{
    struct watch *w = arg;
    w->event_seq = e->seq;
    if (strcmp(e->kind, "state") == 0) {
        const char *colon = strstr(e->text, ": ");
        snprintf(w->state, sizeof w->state, "%.*s", (int)(colon ? (size_t)(colon - e->text) : strlen(e->text)), e->text);
        snprintf(w->reason, sizeof w->reason, "%s", colon ? colon + 2 : "");
    } else if (w->batch && (strcmp(e->kind, "command") == 0 || strcmp(e->kind, "alert") == 0)) {
        batch_note(w->batch, e->text);
    }
    return true;
}

static bool ended(const struct watch *w)
{
    return strcmp(w->state, "finished") == 0 || strcmp(w->state, "failed") == 0 || strcmp(w->state, "stopped") == 0;
}

/* Everything the journal holds that has not been told. */
static bool journal_look(struct watch *w, struct error *err)
{
    char path[PATH_MAX];
    if (!w->journal) {
        if (!path_join(path, sizeof path, w->train->run_dir, "journal.db") || !path_exists(path))
            return true;
        struct error why;
        if (!(w->journal = journal_open_reader(w->train->run_dir, &why)))
            return true;    // it is being made
    }
    w->n_eval = 0;
    return journal_steps_read(w->journal, w->step_seq, step_told, w, err)
        && (!w->batch || journal_evals_read(w->journal, eval_told, w, err))
        && journal_events_read(w->journal, w->event_seq, NULL, event_told, w, err);
}

/* A first signal asks the run to stop, a second ends it at once. */
static bool signals_look(struct watch *w, struct error *err)
{
    struct net_event ev;
    if (n_signal >= 2) {
        run_kill(w->train->run_dir);
        snprintf(w->state, sizeof w->state, "stopped");
        snprintf(w->reason, sizeof w->reason, "stopped at once by a second signal; the last checkpoint stands");
        return true;
    }
    if (n_signal >= 1 && !w->stop_open && !ended(w)) {
        struct msg_out m = MSG_OUT_INIT;
        char id[64];
        if (!w->stop_sent)
            fprintf(stderr, "stopping: the step is finished and saved; a second signal ends everything at once\n");
        snprintf(id, sizeof id, "train-signal-%d", (int)getpid());
        msg_begin(&m, MSG_COMMAND);
        msg_str(&m, "id", id);
        msg_str(&m, "command", "stop");
        msg_str(&m, "who", "a signal");
        msg_f64(&m, "limit_s", STOP_LIMIT_S);
        bool ok = msg_finish(&m, err) && peer_ask(w->agent, &m, STOP_LIMIT_S * 1000, 1, err);
        msg_release(&m);
        w->stop_open = w->stop_sent = ok;
        if (!ok)
            return false;
    }
    while (transport_next(w->transport, &ev)) {
        if (ev.kind == NET_ANSWER && ev.failed)
            w->stop_open = false;    // the agent lives anew: ask again, under the same id
        net_event_release(&ev);
    }
    return true;
}

static void failure_read(struct watch *w)
{
    if (run_failure_read(w->train->run_dir, w->reason, sizeof w->reason))
        snprintf(w->state, sizeof w->state, "failed");
}

/* Tell the run until its processes have ended. */
static bool run_watch_batch(struct train *t, const struct watch *before, struct error *err)
{
    struct watch w = *before;
    char path[PATH_MAX];
    bool ok = false;
    struct batch_config config = { .out = stdout, .run = t->config.name };
    if (!batch_format_parse(t->format, &config.format, err))
        return false;
    config.interval_s = t->interval_s >= 0 ? t->interval_s : config.format == BATCH_TEXT ? 1 : 0;
    w.train = t;
    w.state[0] = w.reason[0] = 0;
    TRY(w.batch = batch_new(&config, err));
    TRY(path_join(path, sizeof path, t->run_dir, "sock"));
    TRY(w.transport = transport_new(path, false, err));
    TRY(w.agent = peer_new(w.transport, "agent", err));
    int64_t ended_ms = 0;
    for (bool live = true; live;) {
        live = run_is_live(t->run_dir);    // before the look: what is written until then is seen
        TRY(signals_look(&w, err));
        if (!journal_look(&w, err)) {
            error_wrap(err, "while reading the journal of '%s'", t->run_dir);
            goto out;
        }
        if (batch_broken(w.batch))
            n_signal = MAX(n_signal, 1);    // nobody reads any more: as a signal
        if (ended(&w) && !ended_ms)
            ended_ms = clock_ms();
        if (ended_ms && clock_ms() - ended_ms > END_LIMIT_S * 1000) {
            fprintf(stderr, "processes of the run have not ended in %d s; they are killed\n", END_LIMIT_S);
            run_kill(t->run_dir);
        }
        struct pollfd fd = { .fd = transport_fd(w.transport), .events = POLLIN };
        if (live)
            poll(&fd, 1, 100);
    }
    if (!ended(&w))
        failure_read(&w);
    if (!ended(&w)) {
        snprintf(w.state, sizeof w.state, "failed");
        snprintf(w.reason, sizeof w.reason, "all processes of the run have ended before its time; go on with 'rollcall train --resume %.800s'",
                 t->run_dir);
    }
    if (w.journal && !journal_last_step(w.journal, &w.last_step, err))    // a step that was told may have been gone back from
        goto out;
    ok = batch_end(w.batch, strcmp(w.state, "finished") == 0 ? BATCH_FINISHED : strcmp(w.state, "stopped") == 0 ? BATCH_STOPPED
                   : BATCH_FAILED, w.last_step, w.reason, err);
    fflush(stdout);
    exporters_wait(t->run_dir);
out:
    journal_close(w.journal);
    transport_free(w.transport);
    batch_free(w.batch);
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

/* What is held whatever the batch: weights, fp32 masters, two moments and the gradient; a reference model with a KL penalty. */
static void memory_print(const struct train *t)
{
    struct model_config shape;
    struct error err;
    if (!config_load(&shape, t->config.model, &err))
        return;
    bool half = strcmp(t->config.dtype, "bf16") == 0
             || (strcmp(t->config.dtype, "auto") == 0 && strncmp(t->config.devices, "cuda", 4) == 0);
    double n = (double)config_n_param(&shape), weight = n * (half ? 2 : 4), mib = 1 << 20;
    double copies = 1 + (t->config.n_behind > 0) + (t->config.beta > 0);
    printf("memory:         %.0f MiB for %.1f M parameters: %g x weights %s, fp32 masters, moments and gradient; activations and\n"
           "                key-value pages come on top, taken once at the start\n",
           (copies * weight + 16 * n) / mib, n / 1e6, copies, half ? "bf16" : "fp32");
}

static void plan_print(const struct train *t)
{
    const struct run_plan *p = &t->plan;
    printf("run:            %s\n", t->resume ? t->run_dir : t->config.name[0] ? t->config.name : "(a free name)");
    printf("model:          %s\n", t->config.model);
    printf("data:           %s, %" PRId64 " prompts\n", t->config.dataset, t->n_row);
    placement_print(t);
    printf("rollout step:   %" PRId64 " prompts x %" PRId64 " completions\n", p->prompts_per_rollout_step, t->config.num_generations);
    printf("optimizer step: %" PRId64 " prompts (train_batch_size %" PRId64 " x %" PRId64 " trainers), %" PRId64 " of them a rollout step\n",
           p->prompts_per_train_batch, t->config.train_batch_size, p->dp, p->k);
    printf("length:         %" PRId64 " optimizer steps\n", t->config.max_steps > 0 ? t->config.max_steps : p->total_steps);
    if (t->config.free_running)
        printf("free-running:   not repeatable; a group's first token is at most %" PRId64 " optimizer steps old when trained on\n", p->max_age_steps);
    else if (p->on_policy)
        printf("on-policy:      strictly (n_behind 0, one optimizer step a rollout step)\n");
    else
        printf("on-policy:      no; a token is at most %" PRId64 " optimizer steps old when trained on (without filtering)\n", p->max_age_steps);
    memory_print(t);
    const struct run_config *c = &t->config;
    const char *own = strcmp(c->placement, "apart") == 0 ? "" : c->n_behind == 0 ? "shared by sampler and trainer of a device"
        : "copied on the device for its sampler", *way = strcmp(c->weights, "files") == 0 ? "by file" : strcmp(c->weights, "copy") == 0 ? "by copy" : "by nccl";
    bool far = run_config_travels(c);
    printf("weights:        %s%s%s%s\n", own, own[0] && far ? "; " : "", far ? way : "",
           far ? " from the first trainer to other samplers" : "");
}

static bool train_start(struct train *t, struct error *err)
{
    int fd = -1;
    bool made = false, ok = false;
    if (t->resume) {
        if ((fd = run_lock_take(t->run_dir, err)) < 0)
            return false;
    } else {
        if (!dir_take(t, err))
            return false;
        made = true;
        TRY((fd = run_lock_take(t->run_dir, err)) >= 0);
    }
    TRY(room_check(t, err) && dir_fill(t, err));
    TRY(process_spawn("agent", t->run_dir, "keeper", fd, true, err) > 0);
    ok = true;
out:
    if (fd >= 0)
        close(fd);    // the keeper holds the lock now
    if (!ok && made) {
        struct error why;
        if (!dir_remove(t->run_dir, &why))
            fprintf(stderr, "%s\n", why.text);
    }
    return ok;
}

bool train_cmd(int argc, char **argv, struct error *err)
{
    bool help = false, ok = false;
    struct watch before = { 0 };
    struct train *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, ERR_NO_MEMORY, "no memory for the settings");
    t->format = "text";
    t->interval_s = -1;
    before.train = t;
    TRY(options_read(t, argc, argv, &help, err));
    if (help) {
        ok = true;
        goto out;
    }
    enum batch_format format;
    TRY(batch_format_parse(t->format, &format, err));
    TRY(settings_read(t, err));
    TRY(model_check(t, err) && data_check(t, err) && reward_check(t, err) && sizes_check(t, err));
    if (t->dry_run) {
        plan_print(t);
        ok = true;
        goto out;
    }
    if (t->resume) {    // what an earlier life has told is not told again
        before.n_eval_told = 0;
        TRY(journal_look(&before, err));
        journal_close(before.journal);
        before.journal = NULL;
    }
    bool batch = t->batch || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO);
    struct sigaction sa = { .sa_handler = on_signal };
    if (batch) {
        sigaction(SIGINT, &sa, NULL);
        sigaction(SIGTERM, &sa, NULL);
        sigaction(SIGHUP, &sa, NULL);
    }
    TRY(train_start(t, err));
    if (batch) {
        ok = run_watch_batch(t, &before, err);
    } else {
        fprintf(stderr, "the run goes on in the background: %s\n  come back: rollcall console %s\n  stop:      rollcall ctl --run %s stop\n",
                t->run_dir, t->run_dir, t->run_dir);
        char *words[] = { "console", t->run_dir, NULL };
        ok = console_cmd(2, words, err);
    }
out:
    journal_close(before.journal);
    free(t);
    return ok;
}
