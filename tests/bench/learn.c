/* learn.c - tests/bench learn: the whole loop in one process, strictly on-policy, without controller or
 * journal
 *
 * What the processes of a run do with messages is done here with calls: sample groups, score them, make one optimizer step, repeat,
 * with an evaluation before and after. It shows what a recipe can reach, and separates the engine's speed from that of the
 * processes around it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/bench/bench_tools.h"
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/mix64.h"
#include "protocol/settings/metrics.h"
#include "tests/bench/bench.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/load/tool_model.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/schedule.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/step.h"
#include "workers/engine/trainer/trainer_metrics.h"
#include "workers/engine/trainer/update.h"

struct learn {
    struct tool_model tool;
    const char *train_path, *eval_path, *algo, *out, *against;
    int64_t n_step, batch, group_size, max_new, seed, eval_n, token_budget, warmup;
    double kl, lr, min_ratio, beta2, weight_decay, temperature;
    bool shuffle, force;
    struct dataset *train, *eval;
    struct reward *reward;
    struct generator *gen;
    struct trainer *trainer;
    struct model *ref;
    struct prompt_maker prompts;
    struct token_list ids;
    struct buf text;
    uint64_t rng;
    int64_t n_item;    // items so far; the number determines their random draws
    double gen_s, score_s, train_s;
};

/* Score a group's samples against its row. */
static bool group_score(struct learn *l, struct group *g, const struct dataset *set, struct error *err)
{
    json_t *row = dataset_row(set, g->prompt_row, err);
    if (!row)
        return false;
    for (int32_t i = 0; i < g->n_sample; i++) {
        struct sample *s = &g->sample[i];
        struct reward_output out;
        buf_clear(&l->text);
        if (!tokenizer_decode(l->tool.tokenizer, g->token + s->first_tok, s->n_tok, true, &l->text)) {
            json_decref(row);
            return error_set(err, ERR_NO_MEMORY, "no memory for a response");
        }
        struct reward_input in = { .response = buf_text(&l->text),
                                   .response_len = l->text.len,
                                   .row = row,
                                   .has_length = true,
                                   .n_tok = s->n_tok,
                                   .finish = s->finish };
        reward_score(l->reward, &in, &out, 1);
        s->score = out.score;
        s->reward = out.reward;
        s->format_acc = out.format_acc;
        s->ans_acc = out.ans_acc;
    }
    json_decref(row);
    return true;
}

/* Sample n_sample completions of n rows (row_at(i)) into group[i], scored. */
static bool rollout(struct learn *l, const struct dataset *set, const int64_t *row, int64_t n, int32_t n_sample, double temperature,
                    struct group **group, struct error *err)
{
    int64_t first = l->n_item, next = 0, got = 0, t0 = clock_ns();
    struct sampling sampling = SAMPLING_DEFAULT;
    int n_eos;
    const int32_t *eos = tokenizer_eos(l->tool.tokenizer, &n_eos);
    sampling.temperature = (float)temperature;
    sampling.max_new_tok = l->max_new;
    sampling.n_stop_token = MIN(n_eos, SAMPLING_STOP_TOKENS_MAX);
    memcpy(sampling.stop_token, eos, (size_t)sampling.n_stop_token * sizeof *eos);
    uint64_t seed[64];
    for (int i = 0; i < 64; i++)
        seed[i] = (uint64_t)l->seed;
    l->n_item += n;
    while (got < n) {
        for (; next < n; next++) {
            bool dropped;
            json_t *j = dataset_row(set, row[next], err);
            bool made = j && prompt_make(&l->prompts, j, &l->ids, &dropped, err);
            json_decref(j);
            if (!made)
                return false;
            struct generator_item item = { .item = first + next,
                                           .prompt_row = row[next],
                                           .prompt = l->ids.id,
                                           .n_prompt = l->ids.n,
                                           .n_sample = n_sample,
                                           .seed = seed,
                                           .sampling = sampling };
            struct error full;
            if (!generator_submit(l->gen, &item, &full)) {
                if (full.code == ERR_FULL)
                    break;
                *err = full;
                return false;
            }
        }
        if (!generator_step(l->gen, err))
            return false;
        for (struct group *g; (g = generator_poll(l->gen)); got++)
            group[g->item - first] = g;
    }
    l->gen_s += (double)(clock_ns() - t0) * 1e-9;
    t0 = clock_ns();
    for (int64_t i = 0; i < n; i++)
        if (!group_score(l, group[i], set, err))
            return false;
    l->score_s += (double)(clock_ns() - t0) * 1e-9;
    return true;
}

static void groups_free(struct group **g, int64_t n)
{
    for (int64_t i = 0; g && i < n; i++) {
        group_free(g[i]);
        g[i] = NULL;
    }
}

/* Share of right answers over the first eval_n problems, one sample each. */
static bool evaluate(struct learn *l, double temperature, double *mean, struct error *err)
{
    int64_t n = MIN(l->eval_n, dataset_n_row(l->eval));
    struct group **g = calloc((size_t)n, sizeof *g);
    int64_t *row = calloc((size_t)n, sizeof *row);
    bool ok = g && row ? true : error_set(err, ERR_NO_MEMORY, "no memory for an evaluation");
    for (int64_t i = 0; ok && i < n; i++)
        row[i] = i;
    ok = ok && rollout(l, l->eval, row, n, 1, temperature, g, err);
    double sum = 0;
    for (int64_t i = 0; ok && i < n; i++)
        sum += (double)g[i]->sample[0].ans_acc;
    *mean = sum / (double)n;
    groups_free(g, n);
    free(g);
    free(row);
    return ok;
}

/* The control: the same rewards, shuffled among the samples of the batch. */
static void rewards_shuffle(struct learn *l, struct group **g, int64_t n)
{
    int64_t total = n * l->group_size;
    for (int64_t i = total - 1; i > 0; i--) {
        int64_t k = (int64_t)(mix64_next(&l->rng) % (uint64_t)(i + 1));
        struct sample *a = &g[i / l->group_size]->sample[i % l->group_size];
        struct sample *b = &g[k / l->group_size]->sample[k % l->group_size], swap = *a;
        a->reward = b->reward;
        a->ans_acc = b->ans_acc;
        b->reward = swap.reward;
        b->ans_acc = swap.ans_acc;
    }
}

/* The gradient of these groups, model_n_flat floats for free(); NULL: see err. */
static float *gradient_of(struct trainer *t, struct group *const *g, int64_t n, const struct trainer_hyper *h, struct error *err)
{
    struct trainer_sums sums;
    float *out = malloc((size_t)trainer_grad_n(t) * sizeof *out);
    if (!out) {
        error_set(err, ERR_NO_MEMORY, "no memory for a gradient");
        return NULL;
    }
    if (trainer_begin(t, (const struct group *const *)g, n, h, err) && trainer_grad(t, h, &sums, err) && trainer_grad_get(t, out, err))
        return out;
    free(out);
    return NULL;
}

/* The gradient of the model as it was loaded, on another device. */
static float *gradient_there(struct learn *l, enum dtype dtype, struct group *const *g, const struct trainer_hyper *h, struct error *err)
{
    float *out = NULL;
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    struct device *dev = device_new(l->against, 0, err);
    struct model *m = dev ? model_load(l->tool.dir, dev, dtype, err) : NULL;
    if (m)
        model_length_set(m, l->prompts.max_tok + l->max_new);
    struct trainer *t = NULL;
    set.token_budget_max = l->token_budget;
    if (m) {
        model_n_live_set(m, model_n_live(l->tool.model));
        t = trainer_new(m, NULL, &set, err);
    }
    if (t)
        out = gradient_of(t, g, l->batch, h, err);
    trainer_free(t);
    model_free(m);
    device_free(dev);
    return out;
}

/* Print how far the first step's gradient is from another device's, and how far both are from that one's fp32. The check: 1e-4
 * in fp32; in bf16 1e-2, or at most a quarter farther from fp32 than the other device. */
static bool gradient_compare(struct learn *l, struct group *const *g, const struct trainer_hyper *h, struct error *err)
{
    enum dtype dtype = model_dtype(l->tool.model);
    int64_t n = trainer_grad_n(l->trainer);
    float *here = gradient_of(l->trainer, g, l->batch, h, err);
    float *there = here ? gradient_there(l, dtype, g, h, err) : NULL;
    float *exact = there ? gradient_there(l, DT_F32, g, h, err) : NULL;
    if (exact) {
        double apart = bench_distance(here, there, n), own = bench_distance(here, exact, n), other = bench_distance(there, exact, n);
        bool same = apart <= (dtype == DT_F32 ? 1e-4 : 1e-2) || (dtype == DT_BF16 && own <= 1.25 * other);
        printf("{\"bench\":\"gradient\",\"device\":\"%s\",\"against\":\"%s\",\"dtype\":\"%s\",\"distance\":%.3g,"
               "\"here_to_fp32\":%.3g,\"there_to_fp32\":%.3g,\"check\":%s}\n",
               l->tool.dev->name, l->against, dtype == DT_BF16 ? "bf16" : "fp32", apart, own, other, same ? "true" : "false");
    }
    free(here);
    free(there);
    free(exact);
    return exact != NULL;
}

struct batch_means {
    double reward, accuracy;    // of the scored samples
    double length;              // of all samples, tokens
    double no_spread;           // share of the groups
};

/* What a run's controller computes from the groups of a batch; there is no controller here. */
static struct batch_means batch_means(struct group *const *g, int64_t n_group)
{
    struct batch_means m = { 0 };
    double n = 0, n_scored = 0;
    for (int64_t i = 0; i < n_group; i++) {
        m.no_spread += !group_has_spread(g[i]);
        for (int32_t k = 0; k < g[i]->n_sample; k++) {
            const struct sample *s = &g[i]->sample[k];
            n++;
            m.length += (double)s->n_tok;
            if (s->score != SCORE_OK)
                continue;
            n_scored++;
            m.reward += s->reward;
            m.accuracy += (double)s->ans_acc;
        }
    }
    return (struct batch_means){ m.reward / n_scored, m.accuracy / n_scored, m.length / n, m.no_spread / (double)n_group };
}

static bool learn_steps(struct learn *l, const struct trainer_hyper *base, struct error *err)
{
    bool ok = false;
    struct group **g = calloc((size_t)l->batch, sizeof *g);
    int64_t *row = calloc((size_t)l->batch, sizeof *row);
    struct schedule schedule = {
        .kind = SCHEDULE_LINEAR, .min_ratio = l->min_ratio, .n_warmup = l->warmup, .n_step = MAX(l->n_step - l->warmup, 1)
    };
    if (!g || !row) {
        error_set(err, ERR_NO_MEMORY, "no memory for a batch of %" PRId64 " prompts", l->batch);
        goto out;
    }
    for (int64_t step = 0; step < l->n_step; step++) {
        double metric[METRIC_N];
        struct trainer_hyper h = *base;
        h.lr = schedule_lr(&schedule, l->lr, step);
        for (int64_t i = 0; i < l->batch; i++)
            row[i] = (int64_t)(mix64_next(&l->rng) % (uint64_t)dataset_n_row(l->train));
        TRY(rollout(l, l->train, row, l->batch, (int32_t)l->group_size, l->temperature, g, err));
        if (l->shuffle)
            rewards_shuffle(l, g, l->batch);
        if (step == 0 && l->against)
            TRY(gradient_compare(l, g, &h, err));
        int64_t before = clock_ns();
        TRY(trainer_step(l->trainer, (const struct group *const *)g, l->batch, &h, metric, err));
        l->train_s += (double)(clock_ns() - before) * 1e-9;
        struct batch_means mean = batch_means(g, l->batch);
        TRY(generator_version_set(l->gen, trainer_version(l->trainer), err));
        printf("{\"step\":%" PRId64 ",\"reward\":%.4f,\"accuracy\":%.4f,\"length\":%.2f,\"entropy\":%.4f,\"grad_norm\":%.4f,"
               "\"no_spread\":%.3f,\"sampler_trainer_diff\":%.3g,\"gen_s\":%.2f,\"train_s\":%.2f}\n",
               step + 1, mean.reward, mean.accuracy, mean.length, isnan(metric[M_ENTROPY]) ? -1 : metric[M_ENTROPY], metric[M_GRAD_NORM],
               mean.no_spread, isnan(metric[M_SAMPLER_TRAINER_DIFF]) ? 0 : metric[M_SAMPLER_TRAINER_DIFF], l->gen_s, l->train_s);
        fflush(stdout);
        groups_free(g, l->batch);
    }
    ok = true;
out:
    groups_free(g, g ? l->batch : 0);
    free(g);
    free(row);
    return ok;
}

static bool learn_open(struct learn *l, struct trainer_hyper *h, struct error *err)
{
    h->weight_decay = l->weight_decay;
    h->form.beta = (float)l->kl;
    if (!tool_model_load(&l->tool, true, err))
        return false;
    struct device *dev = l->tool.dev;
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    set.token_budget_max = l->token_budget;
    set.adam_beta2 = l->beta2;
    struct generator_config gc = { .model = l->tool.model,
                                   .tokenizer = l->tool.tokenizer,
                                   .max_seq = MIN(l->batch * l->group_size, (int64_t)512),
                                   .max_item = l->batch,
                                   .max_seq_tok = 256 + l->max_new };
    struct reward_config rc = { .type = "boxed", .max_new_tok = l->max_new };
    model_length_set(l->tool.model, gc.max_seq_tok);
    l->prompts = (struct prompt_maker){ .encoder = l->tool.encoder, .template = l->tool.template, .max_tok = 256 };
    l->rng = (uint64_t)l->seed;
    return (l->train = dataset_open(l->train_path, NULL, err)) && (l->eval = dataset_open(l->eval_path, NULL, err))
           && (l->kl <= 0 || (l->ref = model_load(l->tool.dir, dev, model_dtype(l->tool.model), err)))
           && (l->trainer = trainer_new(l->tool.model, l->ref, &set, err)) && checkpoint_masters_begin(l->trainer, l->tool.dir, err)
           && (l->gen = generator_new(&gc, err)) && (l->reward = reward_new(&rc, err));
}

bool bench_learn(int argc, char **argv, struct error *err)
{
    bool ok = false;
    struct learn l = { .tool = TOOL_MODEL_DEFAULT,
                       .algo = "GRPO",
                       .n_step = 60,
                       .batch = 64,
                       .group_size = 8,
                       .max_new = 64,
                       .seed = 1,
                       .eval_n = 500,
                       .token_budget = 4096,
                       .warmup = 5,
                       .lr = 4e-4,
                       .min_ratio = 0.1,
                       .beta2 = 0.95,
                       .temperature = 1 };
    // clang-format off
    struct cli_option options[] = {
        TOOL_MODEL_OPTIONS(&l.tool),
        {.name = "dataset", .kind = CLI_STR, .value = &l.train_path, .arg = "FILE", .help = "training problems"},
        {.name = "eval-dataset", .kind = CLI_STR, .value = &l.eval_path, .arg = "FILE", .help = "held-out problems"},
        {.name = "algo", .kind = CLI_STR, .value = &l.algo, .arg = "NAME", .help = "as the setting of that name"},
        {.name = "steps", .kind = CLI_I64, .value = &l.n_step, .arg = "N", .help = "optimizer steps (default 60)"},
        {.name = "batch", .kind = CLI_I64, .value = &l.batch, .arg = "N", .help = "prompts per step (default 64)"},
        {.name = "group-size",
         .kind = CLI_I64,
         .value = &l.group_size,
         .arg = "N",
         .help = "samples per prompt (default 8)"},
        {.name = "max-new-tokens",
         .kind = CLI_I64,
         .value = &l.max_new,
         .arg = "N",
         .help = "longest answer (default 64)"},
        {.name = "lr",
         .kind = CLI_F64,
         .value = &l.lr,
         .arg = "X",
         .help = "falling linearly to a tenth (default 4e-4)"},
        {.name = "beta2", .kind = CLI_F64, .value = &l.beta2, .arg = "X", .help = "of AdamW (default 0.95)"},
        {.name = "weight-decay", .kind = CLI_F64, .value = &l.weight_decay, .arg = "X", .help = "of AdamW (default 0)"},
        {.name = "kl-coeff", .kind = CLI_F64, .value = &l.kl, .arg = "X", .help = "of the KL penalty (default 0)"},
        {.name = "temperature",
         .kind = CLI_F64,
         .value = &l.temperature,
         .arg = "X",
         .help = "of sampling (default 1)"},
        {.name = "eval-n",
         .kind = CLI_I64,
         .value = &l.eval_n,
         .arg = "N",
         .help = "held-out problems used (default 500)"},
        {.name = "seed", .kind = CLI_I64, .value = &l.seed, .arg = "N", .help = "of prompts and random draws (default 1)"},
        {.name = "shuffle-rewards", .kind = CLI_FLAG, .value = &l.shuffle, .help = "the control that must not learn"},
        {.name = "against",
         .kind = CLI_STR,
         .value = &l.against,
         .arg = "DEVICE",
         .help = "compare the first step's gradient with this device's (without a KL penalty)"},
        {.name = "out", .kind = CLI_STR, .value = &l.out, .arg = "DIR", .help = "write the trained model here"},
        {.name = "force", .kind = CLI_FLAG, .value = &l.force, .help = "overwrite an existing model"},
    };
    // clang-format on
    struct cli cli = { .command = "bench learn",
                       .about = "Trains in one process on problems with boxed answers, and prints "
                                "how much was learned.",
                       .options = options,
                       .n_options = ARRAY_SIZE(options) };
    struct trainer_hyper h;
    double sampled[2], greedy[2];
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        return true;
    if (!l.train_path || !l.eval_path || l.batch < 1 || l.group_size < 2 || l.group_size > 64 || l.n_step < 0 || l.max_new < 1
        || l.eval_n < 1)
        return error_set(err, ERR_USAGE, "--dataset and --eval-dataset are needed, and sizes of at least 1 (groups: 2 to 64)");
    TRY(trainer_hyper_init_algo(&h, l.algo, err));
    if (l.out)
        TRY(model_dir_check(l.out, l.force, err));
    TRY(learn_open(&l, &h, err));
    TRY(evaluate(&l, 1, &sampled[0], err) && evaluate(&l, 0, &greedy[0], err));
    l.gen_s = l.score_s = 0;
    int64_t t0 = clock_ns();
    TRY(learn_steps(&l, &h, err));
    double wall = (double)(clock_ns() - t0) * 1e-9, gen_s = l.gen_s, score_s = l.score_s;
    TRY(evaluate(&l, 1, &sampled[1], err) && evaluate(&l, 0, &greedy[1], err));
    if (l.out)
        TRY(dir_make(l.out, 0755, err) && model_dir_copy_tokenizer(l.tool.dir, l.out, err) && model_save(l.tool.model, l.out, err));
    printf("{\"bench\":\"learn\",\"algo\":\"%s\",\"seed\":%" PRId64 ",\"steps\":%" PRId64 ",\"shuffled\":%s,\"sampled\":[%.4f,%.4f],"
           "\"greedy\":[%.4f,%.4f],\"wall_s\":%.1f,\"generate_s\":%.1f,\"score_s\":%.2f,\"train_s\":%.1f}\n",
           l.algo, l.seed, l.n_step, l.shuffle ? "true" : "false", sampled[0], sampled[1], greedy[0], greedy[1], wall, gen_s, score_s,
           l.train_s);
    ok = true;
out:
    reward_free(l.reward);
    generator_free(l.gen);
    trainer_free(l.trainer);
    model_free(l.ref);
    dataset_free(l.train);
    dataset_free(l.eval);
    token_list_release(&l.ids);
    buf_release(&l.text);
    tool_model_release(&l.tool);
    return ok;
}
