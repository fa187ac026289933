/* sft_cmd.c - rollcall sft: teach a model from conversations, in one or more stages */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/sft.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/model/model.h"
#include "workers/engine/load/model_find.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

#define STAGES_MAX 16
static const char about[] = "Trains a model on conversations; only assistant turns carry loss.\n\n"
                            "A stage is DATA[,steps=N][,lr=X][,schedule=cosine|linear|constant][,warmup=N][,min_ratio=X][,batch=ROWS];\n"
                            "stages run one after the other, each with a new optimizer. DATA is a file of JSON lines with messages\n"
                            "(the last one the assistant's, or the answer in \"answer\").";

struct sft_options {
    const char *model, *out, *device, *dtype, *eval;
    int64_t token_budget, max_tokens, seed, log_interval, threads;
    double beta1, beta2, weight_decay, max_norm;
    bool force;
};
struct stage_spec {
    char path[4096];
    struct sft_stage stage;
    struct sft_data *data;
};
static volatile sig_atomic_t stop_wanted;    // set by the signal handler, which gets no argument

static void stop_ask(UNUSED int sig)
{
    stop_wanted = 1;
}

/* "DATA,steps=100,lr=1e-3" into s. */
static bool stage_parse(struct stage_spec *s, const char *text, struct error *err)
{
    static const char *const kinds[] = { [SCHEDULE_COSINE] = "cosine", [SCHEDULE_LINEAR] = "linear", [SCHEDULE_CONSTANT] = "constant" };
    s->stage = (struct sft_stage){ .n_step = 100, .batch_rows = 64, .lr = 1e-5, .schedule = { .kind = SCHEDULE_COSINE, .min_ratio = 0.1 } };
    size_t len = strcspn(text, ",");
    if (len == 0 || len >= sizeof s->path)
        return error_set(err, ERR_USAGE, "stage '%s' has no data file", text);
    memcpy(s->path, text, len);
    s->path[len] = 0;
    // clang-format off
    const struct { const char *key; int64_t *n; double *x;
    } keys[] = {
        {"steps", &s->stage.n_step, NULL},
        {"batch", &s->stage.batch_rows, NULL},
        {"warmup", &s->stage.schedule.n_warmup, NULL},
        {"lr", NULL, &s->stage.lr},
        {"min_ratio", NULL, &s->stage.schedule.min_ratio},
    };
    // clang-format on
    for (const char *p = text + len; *p == ',';) {
        char key[32], value[64];
        int used = 0;
        if (sscanf(p, ",%31[a-z_]=%63[^,]%n", key, value, &used) != 2)
            return error_set(err, ERR_USAGE, "stage '%s': '%s' is not name=value", text, p + 1);
        p += used;
        bool known = false, good = false;
        for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
            if (strcmp(key, keys[i].key) == 0) {
                known = true;
                good = keys[i].n ? parse_i64(value, keys[i].n) && *keys[i].n >= (keys[i].n != &s->stage.schedule.n_warmup)
                                 : parse_f64(value, keys[i].x) && *keys[i].x >= 0;
            }
        for (size_t i = 0; strcmp(key, "schedule") == 0 && i < ARRAY_SIZE(kinds); i++) {
            known = true;
            if (strcmp(value, kinds[i]) == 0) {
                s->stage.schedule.kind = i;
                good = true;
            }
        }
        if (!known || !good)
            return error_set(err, ERR_USAGE, known ? "stage '%s': '%s' cannot be '%s'" : "stage '%s': there is no '%s'", text, key, value);
    }
    s->stage.schedule.n_step = MAX(s->stage.n_step - s->stage.schedule.n_warmup, 1);
    return true;
}

struct teller {
    int64_t interval;
    int stage, n_stage;
    double sum;    // of losses since the last line
    int64_t n;
};

static bool progress_tell(void *arg, const struct sft_progress *p)
{
    struct teller *t = arg;
    t->sum += p->loss;
    t->n++;
    if (p->step % t->interval == 0 || p->step == p->n_step) {
        log_info("sft stage=%d/%d step=%" PRId64 "/%" PRId64 " loss=%.4f lr=%.3g grad_norm=%.3f tok_per_s=%.0f", t->stage, t->n_stage,
                 p->step, p->n_step, t->sum / (double)t->n, p->lr, p->grad_norm, p->tok_per_s);
        t->sum = 0;
        t->n = 0;
    }
    return !stop_wanted;
}

static bool evaluate(struct trainer *t, const struct sft_data *d, int stage, struct error *err)
{
    double loss, n;
    if (!d)
        return true;
    if (!sft_evaluate(t, d, &loss, &n, err))
        return false;
    printf("{\"stage\":%d,\"eval_loss\":%.6g,\"loss_tokens\":%.0f}\n", stage, loss, n);
    return true;
}

static bool sft_all(const struct sft_options *o, struct stage_spec *spec, int n_stage, struct error *err)
{
    bool ok = false;
    enum dtype dtype;
    struct device *dev = NULL;
    struct model *m = NULL;
    struct trainer *t = NULL;
    struct tokenizer *tok = NULL;
    struct template *chat = NULL;
    struct sft_data *eval = NULL;
    char model[4096];
    TRY(model_dtype_parse(&dtype, o->dtype, err));
    TRY(model_dir_check(o->out, o->force, err));
    TRY(model_find(model, sizeof model, o->model, err));
    TRY(tok = tokenizer_load(model, err));
    TRY(template_find(model, &chat, err));
    if (!chat)
        fprintf(stderr, "note: the model has no chat template: a question, its answer and the end token are put together as they are\n");
    int64_t max_tok = MIN(o->max_tokens, o->token_budget);
    for (int i = 0; i < n_stage; i++) {
        TRY(spec[i].data = sft_data_open(spec[i].path, tok, chat, max_tok, err));
        spec[i].stage.data = spec[i].data;
        log_info("sft data=%s rows=%" PRId64 " left_out_as_too_long=%" PRId64, spec[i].path, sft_data_n(spec[i].data),
                 sft_data_n_too_long(spec[i].data));
    }
    if (o->eval)
        TRY(eval = sft_data_open(o->eval, tok, chat, max_tok, err));
    TRY(dev = device_new(o->device, (int)o->threads, err));
    TRY(m = model_load(model, dev, dtype, err));
    TRY(tokenizer_fits(tok, model_config(m)->vocab, model, err));
    model_n_live_set(m, tokenizer_n_id(tok));
    model_length_set(m, max_tok);
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = o->token_budget;
    set.adam_beta1 = o->beta1;
    set.adam_beta2 = o->beta2;
    TRY((t = trainer_new(m, NULL, &set, err)) && checkpoint_masters_begin(t, model, err));
    TRY(evaluate(t, eval, 0, err));
    for (int i = 0; i < n_stage; i++) {
        struct teller teller = { .interval = o->log_interval, .stage = i + 1, .n_stage = n_stage };
        spec[i].stage.seed = (uint64_t)o->seed + (uint64_t)i;
        spec[i].stage.weight_decay = o->weight_decay;
        spec[i].stage.max_norm = o->max_norm;
        TRY(sft_run(t, &spec[i].stage, progress_tell, &teller, err));
        TRY(evaluate(t, eval, i + 1, err));
    }
    TRY(dir_make(o->out, 0755, err) && model_dir_copy_tokenizer(model, o->out, err));
    TRY(model_save(m, o->out, err));
    ok = true;
out:
    for (int i = 0; i < n_stage; i++)
        sft_data_free(spec[i].data);
    sft_data_free(eval);
    trainer_free(t);
    model_free(m);
    device_free(dev);
    template_free(chat);
    tokenizer_free(tok);
    return ok;
}

static bool sft_cmd(int argc, char **argv, struct error *err)
{
    struct sft_options o = { .device = "cpu:0",
                             .dtype = "float32",
                             .token_budget = 4096,
                             .max_tokens = 4096,
                             .seed = 1,
                             .log_interval = 50,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .weight_decay = 0.01,
                             .max_norm = 1 };
    // clang-format off
    struct cli_option options[] = {
        {.name = "model", .kind = CLI_STR, .value = &o.model, .arg = "DIR", .help = "model to start from: a directory, a .gguf file, or org/name in the Hugging Face cache"},
        {.name = "out",
         .kind = CLI_STR,
         .value = &o.out,
         .arg = "DIR",
         .help = "directory for the result; must not hold a model yet"},
        {.name = "eval-dataset",
         .kind = CLI_STR,
         .value = &o.eval,
         .arg = "FILE",
         .help = "print the loss on these before and after each stage"},
        {.name = "device",
         .kind = CLI_STR,
         .value = &o.device,
         .arg = "NAME",
         .help = "cpu:N, cuda:N or ref (default cpu:0)"},
        {.name = "threads",
         .kind = CLI_I64,
         .value = &o.threads,
         .arg = "N",
         .help = "CPU threads (default 0: all cores)"},
        {.name = "dtype",
         .kind = CLI_STR,
         .value = &o.dtype,
         .arg = "TYPE",
         .help = "of the weights: float32 (default) or bfloat16"},
        {.name = "token-budget",
         .kind = CLI_I64,
         .value = &o.token_budget,
         .arg = "N",
         .help = "packed tokens per micro-batch (default 4096)"},
        {.name = "max-tokens",
         .kind = CLI_I64,
         .value = &o.max_tokens,
         .arg = "N",
         .help = "leave longer conversations out (default 4096)"},
        {.name = "beta1", .kind = CLI_F64, .value = &o.beta1, .arg = "X", .help = "of AdamW (default 0.9)"},
        {.name = "beta2", .kind = CLI_F64, .value = &o.beta2, .arg = "X", .help = "of AdamW (default 0.999)"},
        {.name = "weight-decay",
         .kind = CLI_F64,
         .value = &o.weight_decay,
         .arg = "X",
         .help = "of AdamW (default 0.01)"},
        {.name = "max-norm",
         .kind = CLI_F64,
         .value = &o.max_norm,
         .arg = "X",
         .help = "gradient clip (default 1; 0: none)"},
        {.name = "seed", .kind = CLI_I64, .value = &o.seed, .arg = "N", .help = "for the order of rows (default 1)"},
        {.name = "log-interval",
         .kind = CLI_I64,
         .value = &o.log_interval,
         .arg = "N",
         .help = "steps between lines (default 50)"},
        {.name = "force", .kind = CLI_FLAG, .value = &o.force, .help = "overwrite an existing model"},
    };
    // clang-format on
    const char *operand[STAGES_MAX];
    struct cli cli = { .command = "rollcall sft",
                       .about = about,
                       .operands = "STAGE...",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .operand = operand,
                       .max_operands = STAGES_MAX };
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!o.model || !o.out || cli.n_operands == 0)
        return error_set(err, ERR_USAGE, "--model, --out and at least one stage are needed; see 'rollcall sft --help'");
    if (o.token_budget < 2 || o.max_tokens < 2 || o.log_interval < 1)
        return error_set(err, ERR_USAGE, "--token-budget and --max-tokens must be at least 2, --log-interval at least 1");
    struct stage_spec *spec = calloc(STAGES_MAX, sizeof *spec);
    if (!spec)
        return error_set(err, ERR_NO_MEMORY, "no memory for the stages");
    bool ok = true;
    for (int i = 0; ok && i < cli.n_operands; i++)
        ok = stage_parse(&spec[i], operand[i], err);
    signal(SIGINT, stop_ask);
    signal(SIGTERM, stop_ask);
    ok = ok && sft_all(&o, spec, cli.n_operands, err);
    free(spec);
    return ok;
}

const struct subcommand sft_subcommand = { "sft", sft_cmd, "teach a model from conversations" };
