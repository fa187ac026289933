/* One thread runs engine_main: take a task, do it; while items are inside, a round of the sampler between looks into the queue.
 * Waits of the thread: for a task (no limit: the loop is its only source and quits it), for the scores of an evaluation, and for
 * the other trainers. */
#include "workers/worker/engine.h"
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/collective/collective.h"
#include "kernels/ops.h"
#include "kernels/trace.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/run/run_owner.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/schedule.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/plan/memory_plan.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/eval.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/engine/publish/publication.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

#define EVAL_ITEM_BASE ((int64_t)1 << 40)    // items of evaluations: never an item of training
#define PROFILE_EVENTS 300000                // of a timeline; later ones are only counted
#define EVAL_WAIT_MS 600000                  // for the scores of an evaluation
#define RANKS_WAIT_MS 1800000                // for another trainer: while it loads, or samples what it has begun

struct engine {
    struct run_config config;
    char run_dir[4096], device_name[32], run_id[RUN_ID_BYTES];
    int n_thread;
    bool trains, produces;
    int64_t rank;    // among the trainers; -1: it does not train
    void (*wake)(void *ctx);
    void *wake_ctx;
    pthread_t thread;
    pthread_mutex_t lock;    // guards: tasks, reports, scored, look
    pthread_cond_t some;
    struct task *task_first, **task_last;
    struct report *report_first, **report_last;
    struct report *scored;
    struct engine_look look;
    /* the engine thread's own */
    struct device *dev;
    struct model *model, *ref, *sampler;    // sampler: NULL when it samples with model itself
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct template *template;
    struct dataset *data;
    struct task *quit;    // made at the start, so that ending needs no memory; the queue's once engine_free has begun
    int64_t *usable;      // (n_row) rows of data whose prompts are short enough
    int64_t n_row;
    struct prompt_maker maker;
    struct generator *generator;
    struct trainer *trainer;
    struct memory_plan plan;
    void *region;                         // (plan.region) of trainer and sampler by turns; NULL: each has its own
    size_t free_at_start, memory_peak;    // bytes of the device: free before anything was loaded; most seen in use
    struct publication *publication;      // NULL: weights stay here, or travel by file
    struct collective *meeting;           // of the trainers; NULL: it is the only one, or they have parted
    struct ranks *ranks;                  // the step that they share; NULL likewise
    struct checkpoint_writer *writer;
    int64_t step, version, round;
    int64_t made;           // the incarnation that made version
    struct task *saving;    // whose checkpoint is being written
    double save_stall_s;
    int64_t save_began_ms;
    struct task *items_task;    // the last one, for its report
    struct eval_run *eval;
    bool load_broken;             // the last load has failed for what is wrong in its checkpoint
    double generate_s, idle_s;    // since the last train step
    int64_t generated_tok, idle_ms, sampled_ms, sampled_tok;
};

struct task *task_new(enum task_kind kind, struct error *err)
{
    struct task *t = calloc(1, sizeof *t);
    if (!t) {
        error_set(err, ERR_NO_MEMORY, "no memory for a task");
        return NULL;
    }
    t->kind = kind;
    return t;
}

void task_free(struct task *t)
{
    if (!t)
        return;
    for (int64_t i = 0; t->group && i < t->n_group; i++)
        group_free(t->group[i]);
    free(t->group);
    free(t->item);
    free(t);
}

void report_free(struct report *r)
{
    if (!r)
        return;
    for (int32_t i = 0; r->text && r->group && i < r->group->n_sample; i++)
        free(r->text[i]);
    free(r->text);
    free(r->row);
    free(r->out);
    free(r->prompt_text);
    group_free(r->group);
    free(r);
}

static void report_put(struct engine *e, struct report *r)
{
    pthread_mutex_lock(&e->lock);
    r->next = NULL;
    *e->report_last = r;
    e->report_last = &r->next;
    pthread_mutex_unlock(&e->lock);
    e->wake(e->wake_ctx);
}

struct report *engine_take(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct report *r = e->report_first;
    if (r) {
        e->report_first = r->next;
        if (!e->report_first)
            e->report_last = &e->report_first;
    }
    pthread_mutex_unlock(&e->lock);
    return r;
}

void engine_put(struct engine *e, struct task *t)
{
    pthread_mutex_lock(&e->lock);
    t->next = NULL;
    *e->task_last = t;
    e->task_last = &t->next;
    e->look.idle = false;
    if (t->kind == TASK_ITEMS) {
        e->look.sampling = true;
        e->look.n_item += t->n_item;
    }
    pthread_cond_signal(&e->some);
    pthread_mutex_unlock(&e->lock);
}

void engine_scored(struct engine *e, struct report *r)
{
    pthread_mutex_lock(&e->lock);
    r->next = e->scored;
    e->scored = r;
    pthread_cond_signal(&e->some);
    pthread_mutex_unlock(&e->lock);
}

void engine_look(struct engine *e, struct engine_look *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->look;
    pthread_mutex_unlock(&e->lock);
}

static void phase_set(struct engine *e, const char *phase)
{
    pthread_mutex_lock(&e->lock);
    snprintf(e->look.phase, sizeof e->look.phase, "%s", phase);
    e->look.progress++;
    pthread_mutex_unlock(&e->lock);
    e->wake(e->wake_ctx);
    hold_point(phase);
}

static void progress_add(struct engine *e, double n)
{
    pthread_mutex_lock(&e->lock);
    e->look.progress += n;
    pthread_mutex_unlock(&e->lock);
}

/* ---- loading ---- */

/* Leave the other trainers; they meet again with the next load. */
static void ranks_leave(struct engine *e)
{
    ranks_free(e->ranks);
    collective_leave(e->meeting);
    e->ranks = NULL;
    e->meeting = NULL;
    e->round = 0;
}

static void engine_unload(struct engine *e)
{
    ranks_leave(e);
    generator_free(e->generator);
    trainer_free(e->trainer);
    model_free(e->sampler);
    model_free(e->ref);
    model_free(e->model);
    if (e->dev)
        mem_free(e->dev, e->region);
    e->region = NULL;
    e->generator = NULL;
    e->trainer = NULL;
    e->sampler = e->ref = e->model = NULL;
    e->step = e->version = -1;
}

/* None of the prompts fits: how long they are, and how much of that is the system prompt. */
static bool prompts_too_long(struct engine *e, struct error *err)
{
    const struct run_config *c = &e->config;
    struct prompt_maker with = e->maker, without = e->maker;
    struct token_list ids = { 0 };
    struct error none;
    bool dropped;
    json_t *row = dataset_row(e->data, 0, err);
    with.shortest = without.shortest = 0;
    with.max_tok = without.max_tok = 0;    // no limit: nothing is dropped
    without.system_prompt = NULL;
    bool known = row && prompt_make(&with, row, &ids, &dropped, &none) && prompt_make(&without, row, &ids, &dropped, &none);
    int64_t system = known ? MAX(with.shortest - without.shortest, (int64_t)0) : 0;
    json_decref(row);
    token_list_release(&ids);
    error_set(err, ERR_DATA,
              "no prompt of '%s' fits into max_prompt_tokens %" PRId64 ": the shortest has %" PRId64 " tokens, %" PRId64
              " of them the system prompt%s; raise max_prompt_tokens%s",
              c->dataset, c->max_prompt_tokens, e->maker.shortest, system, c->system_prompt[0] || system == 0 ? "" : " of the reward_type",
              system > 0 ? " or give a shorter system_prompt ('none' for none)" : "");
    return false;
}

/* The data set with the rows whose prompts fit; once. */
static bool data_load(struct engine *e, struct error *err)
{
    const struct run_config *c = &e->config;
    struct token_list ids = { 0 };
    bool ok = false, dropped;
    if (e->data)
        return true;
    TRY(e->tokenizer = tokenizer_load(c->model, err));
    TRY(e->encoder = encoder_new(e->tokenizer, true, err));
    TRY(template_find(c->model, &e->template, err));
    struct dataset_columns columns = { c->prompt_column, c->answer_column };
    TRY(e->data = dataset_open(c->dataset, &columns, err));
    const char *system = c->system_prompt[0] ? c->system_prompt : reward_system_prompt(c->reward_type);
    e->maker = (struct prompt_maker){ .encoder = e->encoder,
                                      .template = e->template,
                                      .max_tok = c->max_prompt_tokens,
                                      .system_prompt = strcmp(c->system_prompt, "none") == 0 ? NULL : system,
                                      .long_prompt = strcmp(c->long_prompt, "drop") == 0 ? LONG_DROP : LONG_CUT_LEFT };
    int64_t n = dataset_n_row(e->data);
    if (!(e->usable = calloc((size_t)n, sizeof *e->usable))) {
        error_set(err, ERR_NO_MEMORY, "no memory for the index of %" PRId64 " prompts", n);
        goto out;
    }
    for (int64_t i = 0; i < n; i++) {
        json_t *row = dataset_row(e->data, i, err);
        bool made = row && prompt_make(&e->maker, row, &ids, &dropped, err);
        json_decref(row);
        if (!made) {
            error_wrap(err, "%s:%" PRId64, c->dataset, dataset_line(e->data, i));
            goto out;
        }
        if (!dropped)
            e->usable[e->n_row++] = i;
        if (i % 1000 == 0)
            progress_add(e, 1);
    }
    TRY(e->n_row > 0 || prompts_too_long(e, err));
    log_info("%" PRId64 " prompts, %" PRId64 " left out for their length", e->n_row, n - e->n_row);
    ok = true;
out:
    token_list_release(&ids);
    return ok;
}

/* Share the device's memory out between the trainer and the sampler (memory_plan.h). */
static bool memory_share(struct engine *e, struct trainer_settings *settings, struct generator_config *g, struct error *err)
{
    size_t bytes;
    char text[512];
    struct memory_plan *p = &e->plan;
    const struct model *copy[] = { e->model, e->ref, e->sampler };
    size_t weights = 0;
    for (size_t i = 0; i < ARRAY_SIZE(copy); i++)
        if (copy[i]) {
            model_weights(copy[i], &bytes);
            weights += bytes;
        }
    if (e->publication)
        weights += publication_bytes(e->publication);
    if (!memory_plan_make(p, e->model, weights, e->trains ? settings : NULL, !e->sampler, g, err))
        return false;
    memory_plan_text(p, text, sizeof text);
    log_info("memory planned %s", text);
    g->kv_bytes = p->kv;
    if (!p->turns)
        return true;
    if (!(e->region = mem_new(e->dev, p->region, "activations, and keys and values by turns", err)))
        return false;
    settings->scratch = g->kv_mem = e->region;
    return true;
}

/* With enable_profiling: from the first load on, where the device's time goes. */
static bool profile_start(struct engine *e, struct error *err)
{
    return !e->config.enable_profiling || e->dev->trace || trace_start(e->dev, PROFILE_EVENTS, err);
}

static void profile_write(struct engine *e)
{
    struct error err;
    char path[4200], name[32];
    if (!e->dev || !e->dev->trace)
        return;
    snprintf(name, sizeof name, "%s", e->device_name);
    for (char *c = name; *c; c++)
        *c = *c == ':' ? '-' : *c;
    snprintf(path, sizeof path, "%s/logs/profile-%s.json", e->run_dir, name);
    if (trace_stop(e->dev, path, &err))
        log_info("the timeline is in '%s'", path);
    else
        log_warn("no timeline is kept: %s", err.text);
}

/* Say how the memory in use compares with the plan, after the first step and whenever it has grown. */
static void memory_note(struct engine *e)
{
    size_t free_bytes, total;
    struct error err;
    if (e->dev->host_memory || !mem_info(e->dev, &free_bytes, &total, &err))
        return;
    size_t used = e->free_at_start > free_bytes ? e->free_at_start - free_bytes : 0;
    if (used <= e->memory_peak)
        return;
    e->memory_peak = used;
    log_info("memory used used_gb=%.3f planned_gb=%.3f ratio=%.4f", (double)used * 1e-9, (double)e->plan.total * 1e-9,
             (double)used / (double)e->plan.total);
}

static void ranks_wait_told(void *ctx, int rank)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    if (rank < 0)
        e->look.waits_for[0] = 0;
    else
        snprintf(e->look.waits_for, sizeof e->look.waits_for, "trainer %d", rank);
    pthread_mutex_unlock(&e->lock);
    e->wake(e->wake_ctx);
}

/* Meet the other trainers, when there are some. The name is the controller's, see ranks_name. */
static bool ranks_meet(struct engine *e, const struct task *t, struct error *err)
{
    char dir[4200], name[64];
    if (!e->trains || e->config.num_trainers == 1)
        return true;
    snprintf(dir, sizeof dir, "%s/sock", e->run_dir);
    ranks_name(t->round, name, sizeof name);
    struct collective_config c = { .kind = "local",
                                   .dir = dir,
                                   .name = name,
                                   .rank = (int)e->rank,
                                   .n_rank = (int)e->config.num_trainers,
                                   .dev = e->dev,
                                   .join_ms = RANKS_WAIT_MS,
                                   .wait_ms = RANKS_WAIT_MS,
                                   .waits = ranks_wait_told,
                                   .ctx = e };
    if (!(e->meeting = collective_join(&c, err)))
        return false;
    e->round = t->round;
    return (e->ranks = ranks_new(e->trainer, e->meeting, err)) != NULL;
}

static void saving_look(struct engine *e, bool wait);

/* Prepare for weights that go through memory; once, since the size stays. */
static bool publication_prepare(struct engine *e, struct error *err)
{
    const struct run_config *c = &e->config;
    char name[64];
    enum weights_way way;
    publication_forget(e->publication);
    if (e->publication || !run_config_travels(c) || c->node_only || (e->rank != 0 && !e->produces) || !weights_way_parse(c->weights, &way)
        || way == WAY_FILES)    // it stays auto where nothing has to be chosen
        return true;
    snprintf(name, sizeof name, "worker %s", e->device_name);
    struct publication_config p = { .model = e->model,
                                    .run_dir = e->run_dir,
                                    .name = name,
                                    .way = way,
                                    .gives = e->rank == 0,
                                    .n_slot = (int)MAX(c->n_behind, (int64_t)(c->free_running ? 2 : 1)) };
    return (e->publication = publication_new(&p, err)) != NULL;
}

/* Is what is to be loaded whole, and ours? Another run's is only where a new run begins (checkpoint_path). */
static bool checkpoint_find(struct engine *e, const struct task *t, const char *path, struct error *err)
{
    int64_t found = 0;
    char owner[64];
    bool ok = checkpoint_verify(path, &found, err) && checkpoint_owner(path, owner, err)
              && (!t->path[0] || found == t->step
                  || error_set(err, ERR_DATA, "checkpoint '%s' is of step %" PRId64 ", not %" PRId64, path, found, t->step));
    e->load_broken = !ok && err->code != ERR_NO_MEMORY;
    if (ok && t->path[0] && owner[0] && e->run_id[0] && strcmp(owner, e->run_id) != 0)
        ok = error_set(err, ERR_EXISTS,
                       "checkpoint '%s' belongs to another run (%s; this one is %s): two runs have been given one save_dir", path, owner,
                       e->run_id);
    return ok;
}

/* Are data, model, tokenizer and template what the run was begun with? Another node's copies have come from there. */
static bool identity_check(const struct engine *e, struct error *err)
{
    char changed[256] = "";
    json_t *was = NULL, *is = json_object();
    bool ok = identity_read(e->run_dir, &was, err)
              && (!was || (identity_model(is, e->config.model, err) && identity_add(is, "dataset", dataset_hash(e->data), err)));
    if (ok && was && identity_changed(was, is, changed, sizeof changed))
        ok = error_set(err, ERR_DATA,
                       "%s: changed while the run goes on (dataset '%.200s', model '%.200s'); put back what it was and go on with "
                       "--resume, or, if that is wanted, --resume with --accept-changed '%s'",
                       changed, e->config.dataset, e->config.model, changed);
    json_decref(was);
    json_decref(is);
    return ok;
}

/* The same of an evaluation's data, which are opened each time. */
static bool eval_identity_check(const struct engine *e, const struct eval_set *set, const struct dataset *d, struct error *err)
{
    char changed[256] = "", name[96];
    json_t *was = NULL, *is = json_object();
    snprintf(name, sizeof name, "eval_dataset %s", set->name);
    bool ok = identity_read(e->run_dir, &was, err) && (!was || identity_add(is, name, dataset_hash(d), err));
    if (ok && was && identity_changed(was, is, changed, sizeof changed))
        ok = error_set(err, ERR_DATA,
                       "'%.200s' has changed while the run goes on; put back what it was and go on with --resume, or, if that is "
                       "wanted, --resume with --accept-changed '%s'",
                       set->path, changed);
    json_decref(was);
    json_decref(is);
    return ok;
}

static bool engine_load(struct engine *e, const struct task *t, struct error *err)
{
    const struct run_config *c = &e->config;
    const char *path = t->path[0] ? t->path : e->trains ? c->checkpoint_path : "";
    phase_set(e, "loading");
    e->load_broken = false;
    saving_look(e, true);
    engine_unload(e);
    if (path[0] && !checkpoint_find(e, t, path, err))
        return false;
    size_t total;
    if (!e->dev && (!(e->dev = device_new(e->device_name, e->n_thread, err)) || !mem_info(e->dev, &e->free_at_start, &total, err)))
        return false;
    if (!data_load(e, err) || (!c->node_only && !identity_check(e, err)))
        return false;
    bool bf16 = strcmp(c->dtype, "bf16") == 0 || (strcmp(c->dtype, "auto") == 0 && e->dev->kind == DEVICE_CUDA);
    enum dtype dtype = bf16 ? DT_BF16 : DT_F32;
    struct model_config shape;    // who only samples is given its weights: the model's files of weights need not be here
    if (!e->trains && !config_load(&shape, c->model, err))
        return false;
    if (!(e->model = e->trains ? model_load(c->model, e->dev, dtype, err) : model_new_empty(&shape, e->dev, dtype, err)))
        return false;
    if (!tokenizer_fits(e->tokenizer, model_config(e->model)->vocab, c->model, err))
        return false;
    model_n_live_set(e->model, tokenizer_n_id(e->tokenizer));
    if (e->trains && c->beta > 0) {
        if (!(e->ref = model_load(c->model, e->dev, dtype, err)))
            return false;
        model_n_live_set(e->ref, tokenizer_n_id(e->tokenizer));
    }
    int64_t longest = c->max_prompt_tokens + c->max_new_tokens;
    struct trainer_settings settings = TRAINER_SETTINGS_DEFAULT;
    settings.token_budget_max = run_config_micro_tok_max(c);
    settings.adam_beta1 = c->adam_beta1;
    settings.adam_beta2 = c->adam_beta2;
    settings.adam_eps = c->adam_eps;
    settings.recompute_block = c->recompute_full;
    settings.n_rank = (int)c->num_trainers;
    settings.offload = c->offload_optimizer && !e->dev->host_memory;
    if (e->trains && e->produces && c->n_behind > 0) {
        if (!(e->sampler = model_new_like(e->model, err)))
            return false;
        model_n_live_set(e->sampler, tokenizer_n_id(e->tokenizer));
    }
    struct generator_config g = {
        .model = e->sampler ? e->sampler : e->model,
        .tokenizer = e->tokenizer,
        .max_seq = c->inference_microbatch_size * c->num_generations,
        .max_item = MAX(2 * c->inference_microbatch_size, (int64_t)64),
        .max_seq_tok = longest,
        .version = t->step,
    };
    if (!publication_prepare(e, err) || !memory_share(e, &settings, &g, err))
        return false;
    if (e->trains) {
        if (!(e->trainer = trainer_new(e->model, e->ref, &settings, err)))
            return false;
        if (path[0] && !checkpoint_restore(e->trainer, path, err)) {
            e->load_broken = err->code == ERR_DATA;
            return false;
        }
        trainer_version_set(e->trainer, t->step);
    }
    if (e->sampler && !model_weights_copy(e->sampler, e->model, err))
        return false;
    if ((e->produces || e->rank == 0) && !(e->generator = generator_new(&g, err)))    // the first trainer evaluates
        return false;
    if (!e->writer && !(e->writer = checkpoint_writer_new(err)))
        return false;
    if (!profile_start(e, err))
        return false;
    e->step = t->step;
    e->version = e->trains ? t->step : -1;    // who only samples is given its weights
    e->made = t->made;
    e->idle_ms = clock_ms();
    return ranks_meet(e, t, err);
}

/* ---- sampling ---- */

static bool full_length(const struct run_config *c)
{
    return c->ignore_eos || c->enable_profiling;
}

static void sampling_make(const struct engine *e, const struct run_config *c, double temperature, struct sampling *s)
{
    const char *stop = reward_stop_string(c->reward_type);
    int n_eos;
    const int32_t *eos = tokenizer_eos(e->tokenizer, &n_eos);
    *s = SAMPLING_DEFAULT;
    s->temperature = (float)temperature;
    s->top_p = (float)c->top_p;
    s->top_k = (int32_t)c->top_k;
    s->min_p = (float)c->min_p;
    s->max_new_tok = c->max_new_tokens;
    s->ignore_eos = full_length(c);
    for (int i = 0; i < n_eos && i < SAMPLING_STOP_TOKENS_MAX; i++)
        s->stop_token[s->n_stop_token++] = eos[i];
    if (stop && !full_length(c))
        snprintf(s->stop_string, sizeof s->stop_string, "%s", stop);
}

/* Submit one prompt with n samples. */
static bool prompt_submit(struct engine *e, struct dataset *data, int64_t data_row, int64_t item, int64_t row_name, int64_t rollout_step,
                          int64_t n, const struct sampling *s, bool *dropped, struct error *err)
{
    bool ok = false;
    struct token_list ids = { 0 };
    uint64_t *seed = calloc((size_t)n, sizeof *seed);
    json_t *row = dataset_row(data, data_row, err);
    *dropped = false;
    if (!seed) {
        error_set(err, ERR_NO_MEMORY, "no memory for an item");
        goto out;
    }
    TRY(row && prompt_make(&e->maker, row, &ids, dropped, err));
    if (*dropped) {
        ok = true;
        goto out;
    }
    for (int64_t i = 0; i < n; i++)
        seed[i] = (uint64_t)e->config.seed;
    struct generator_item it = { .item = item,
                                 .prompt_row = row_name,
                                 .rollout_step = rollout_step,
                                 .prompt = ids.id,
                                 .n_prompt = ids.n,
                                 .n_sample = (int32_t)n,
                                 .seed = seed,
                                 .sampling = *s };
    ok = generator_submit(e->generator, &it, err);
out:
    json_decref(row);
    token_list_release(&ids);
    free(seed);
    return ok;
}

/* A finished group with everything the scorer needs. */
static struct report *group_report(struct engine *e, struct group *g, struct dataset *data, int64_t data_row, struct error *err)
{
    struct report *r = calloc(1, sizeof *r);
    json_t *row = NULL;
    struct buf text = BUF_INIT;
    bool ok = false;
    if (!r) {
        group_free(g);
        error_set(err, ERR_NO_MEMORY, "no memory for a group");
        return NULL;
    }
    r->kind = REPORT_GROUP;
    r->group = g;
    r->made = e->made;
    TRY(row = dataset_row(data, data_row, err));
    r->row = json_dumps(row, JSON_COMPACT);
    r->text = calloc((size_t)g->n_sample, sizeof *r->text);
    ok = r->row && r->text && tokenizer_decode(e->tokenizer, g->prompt, g->n_prompt, false, &text)
         && (r->prompt_text = strdup(buf_text(&text)));
    for (int32_t i = 0; ok && i < g->n_sample; i++) {
        const struct sample *s = &g->sample[i];
        const int32_t *id = g->token + s->first_tok;
        bool ended = s->n_tok > 0 && tokenizer_is_eos(e->tokenizer, id[s->n_tok - 1]);
        buf_clear(&text);
        ok = tokenizer_decode(e->tokenizer, id, s->n_tok - ended, true, &text) && (r->text[i] = strdup(buf_text(&text)));
    }
    if (!ok)
        error_set(err, ERR_NO_MEMORY, "no memory for the text of a group");
out:
    json_decref(row);
    buf_release(&text);
    if (!ok) {
        report_free(r);
        return NULL;
    }
    return r;
}

static void look_sampler(struct engine *e)
{
    struct generator_stats s;
    int64_t now = clock_ms();
    generator_stats(e->generator, &s);
    pthread_mutex_lock(&e->lock);
    e->look.progress += 1;
    e->look.n_running = s.n_running_seq;
    if (now - e->sampled_ms >= 1000) {
        if (e->sampled_ms)
            e->look.tok_per_s = (double)(s.n_decode_tok - e->sampled_tok) * 1000 / (double)(now - e->sampled_ms);
        e->sampled_ms = now;
        e->sampled_tok = s.n_decode_tok;
    }
    pthread_mutex_unlock(&e->lock);
}

static bool items_begin(struct engine *e, struct task *t, struct error *err)
{
    struct sampling s;
    bool dropped;
    pthread_mutex_lock(&e->lock);
    e->look.items_max = t->config.inference_microbatch_size;
    pthread_mutex_unlock(&e->lock);
    sampling_make(e, &t->config, t->config.temperature, &s);
    if (t->version >= 0 && t->version != e->version)
        return error_set(err, ERR_INTERNAL, "items want version %" PRId64 ", the sampler has %" PRId64, t->version, e->version);
    for (int64_t i = 0; i < t->n_item; i++) {
        if (t->item[i].row < 0 || t->item[i].row >= e->n_row)
            return error_set(err, ERR_DATA, "prompt %" PRId64 " does not exist", t->item[i].row);
        if (!prompt_submit(e, e->data, e->usable[t->item[i].row], t->item[i].item, t->item[i].row, t->rollout_step,
                           t->config.num_generations, &s, &dropped, err))
            return false;
    }
    return true;
}

/* One round of the sampler; finished groups go out. */
static bool items_step(struct engine *e, struct error *err)
{
    struct group *g;
    int64_t before = clock_ns();
    phase_set(e, "generating");
    if (!generator_step(e->generator, err))
        return false;
    e->generate_s += (double)(clock_ns() - before) / 1e9;
    look_sampler(e);
    while ((g = generator_poll(e->generator))) {
        e->generated_tok += g->n_tok;
        // made to be so long: as cut ones they would have no reward, and training nothing to do
        for (int32_t i = 0; full_length(&e->config) && i < g->n_sample; i++)
            g->sample[i].finish = FINISH_STOP;
        struct report *r = group_report(e, g, e->data, e->usable[g->prompt_row], err);
        if (!r)
            return false;
        report_put(e, r);
        pthread_mutex_lock(&e->lock);
        e->look.n_item--;
        pthread_mutex_unlock(&e->lock);
    }
    return true;
}

/* ---- training ---- */

static bool hyper_make(const struct run_config *c, int64_t step, int64_t max_steps, struct trainer_hyper *h, struct error *err)
{
    static const struct {
        const char *name;
        int kind;
    } kinds[] = { { "cosine", SCHEDULE_COSINE }, { "linear", SCHEDULE_LINEAR }, { "constant", SCHEDULE_CONSTANT } };
    struct schedule s = {
        .kind = SCHEDULE_CONSTANT, .min_ratio = c->lr_min_ratio, .n_warmup = c->warmup_steps, .n_step = max_steps - c->warmup_steps
    };
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (strcmp(kinds[i].name, c->lr_schedule) == 0)
            s.kind = kinds[i].kind;
    if (!algo_parse(&h->algo, c->algo, err))
        return false;
    trainer_hyper_init(h, h->algo);
    if (!loss_variation_parse(&h->loss, c->loss_variation, err))
        return false;
    h->lr = schedule_lr(&s, c->learning_rate, step);
    h->weight_decay = c->weight_decay;
    h->max_norm = c->max_norm;
    h->clip_low = c->clip_eps_low;
    h->clip_high = c->clip_eps_high;
    h->beta = c->beta;
    h->skip_threshold = c->skip_threshold;
    h->has_filter = !isnan(c->filter_range[0]) && !isnan(c->filter_range[1]);
    h->filter_low = c->filter_range[0];
    h->filter_high = c->filter_range[1];
    h->mask_truncated = c->filter_truncated_response;
    h->ppb_as_coded = c->ppb_as_upstream;
    h->token_budget = run_config_micro_tok(c);
    return true;
}

/* The control experiment: scores change hands between all samples of the batch, in an order fixed by seed and step. */
static void scores_shuffle(struct group *const *group, int64_t n_group, uint64_t seed)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_group; i++)
        n += group[i]->n_sample;
    struct sample **all = calloc((size_t)MAX(n, 1), sizeof *all);
    if (!all)
        return;
    n = 0;
    for (int64_t i = 0; i < n_group; i++)
        for (int32_t k = 0; k < group[i]->n_sample; k++)
            all[n++] = &group[i]->sample[k];
    for (int64_t i = n - 1; i > 0; i--) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;    // Knuth's MMIX generator; its high bits
        struct sample *a = all[i], *b = all[(int64_t)((seed >> 33) % (uint64_t)(i + 1))], t = *a;
        a->score = b->score, a->reward = b->reward, a->format_acc = b->format_acc, a->ans_acc = b->ans_acc;
        b->score = t.score, b->reward = t.reward, b->format_acc = t.format_acc, b->ans_acc = t.ans_acc;
    }
    free(all);
}

static bool engine_train(struct engine *e, struct task *t, double *metric, struct error *err)
{
    struct trainer_hyper h;
    int64_t before = clock_ns();
    phase_set(e, "training");
    if (t->step != e->step)
        return error_set(err, ERR_INTERNAL, "asked to train at step %" PRId64 " with weights of step %" PRId64, t->step, e->step);
    if (e->region && e->generator && !generator_idle(e->generator))
        return error_set(err, ERR_INTERNAL, "asked to train at step %" PRId64 " while items are generated in the same memory", t->step);
    if (!hyper_make(&t->config, t->step, t->max_steps, &h, err))
        return false;
    if (e->config.control_shuffle_rewards)
        scores_shuffle(t->group, t->n_group, (uint64_t)e->config.seed * 1000003u + (uint64_t)t->step);
    const struct group *const *group = (const struct group *const *)t->group;
    if (e->config.num_trainers > 1 && !e->ranks)
        return error_set(err, ERR_CLOSED, "the trainers have parted");
    if (e->ranks ? !ranks_step(e->ranks, group, t->n_group, &h, metric, err)
                 : !trainer_step(e->trainer, group, t->n_group, &h, metric, err))
        return false;
    hold_point("trained");
    e->step = trainer_version(e->trainer);
    if (!e->sampler) {
        e->version = e->step;
        e->made = t->incarnation;
        if (e->generator && !generator_version_set(e->generator, e->version, err))
            return false;
    }
    metric[M_TEMPERATURE] = t->config.temperature;
    metric[M_GENERATE_S] = e->generate_s;
    metric[M_ROLLOUT_TOK_PER_S] = e->generate_s > 0 ? (double)e->generated_tok / e->generate_s : NAN;
    metric[M_IDLE_S] = e->idle_s;
    metric[M_LONG_PROMPTS] = (double)(e->maker.n_dropped + e->maker.n_cut);
    metric[M_PUBLISH_S] = publication_ms(e->publication) / 1000;    // of the version before
    metric[M_TRAIN_S] = (double)(clock_ns() - before) / 1e9;
    memory_note(e);
    e->generate_s = e->idle_s = 0;
    e->generated_tok = 0;
    return true;
}

/* ---- publication ---- */

static void waits_for_set(struct engine *e, const char *what)
{
    pthread_mutex_lock(&e->lock);
    snprintf(e->look.waits_for, sizeof e->look.waits_for, "%s", what);
    pthread_mutex_unlock(&e->lock);
    e->wake(e->wake_ctx);
}

static bool engine_share(struct engine *e, const struct task *t, struct error *err)
{
    phase_set(e, "publishing");
    if (e->rank != 0 || t->version != e->step)
        return error_set(err, ERR_INTERNAL, "version %" PRId64 " cannot be shared at step %" PRId64, t->version, e->step);
    waits_for_set(e, "producers to take older weights");
    bool ok = (!e->publication || publication_share(e->publication, e->model, t->made, t->version, err))
              && (!t->path[0] || weights_file_write(e->model, t->path, err));
    waits_for_set(e, "");
    return ok;
}

/* Sample with version from now on, free-running in the middle of what it samples: the trainer's own weights of this step, or what the first trainer has shared. */
static bool engine_publish(struct engine *e, const struct task *t, struct error *err)
{
    phase_set(e, "publishing");
    struct model *into = e->sampler ? e->sampler : e->model;
    bool own = e->trains && t->version == e->step;
    if (e->trains && !e->sampler)
        return error_set(err, ERR_INTERNAL, "version %" PRId64 " cannot be published at step %" PRId64, t->version, e->step);
    int64_t before = e->version;
    e->version = -1;    // until it is there, the weights are neither
    waits_for_set(e, own ? "" : "the trainer's weights");
    bool ok = own              ? model_weights_copy(into, e->model, err)
              : e->publication ? publication_take(e->publication, into, t->made, t->version, err)
                               : weights_file_read(into, t->path, err);
    waits_for_set(e, "");
    if (ok && e->config.free_running)
        generator_version_update(e->generator, t->version);
    else if (ok)
        ok = generator_version_set(e->generator, t->version, err);
    if (ok) {
        e->version = t->version;
        e->made = t->made;
    } else if (err->code == ERR_NOT_FOUND) {    // nothing has been written
        e->version = before;
    } else {
        generator_clear(e->generator);    // free-running: what it was in the middle of cannot go on
    }
    return ok;
}

/* ---- saving ---- */

static void done_report(struct engine *e, const struct task *t, bool ok, const struct error *err, const double *metric)
{
    struct report *r = calloc(1, sizeof *r);
    if (!r)
        BUG_IF(true, "no memory for a report of %zu bytes", sizeof *r);
    r->kind = REPORT_DONE;
    r->task_kind = t->kind;
    r->task = t->task;
    r->incarnation = t->incarnation;
    r->step = t->kind == TASK_SAVE || t->kind == TASK_EVAL ? t->step : e->step;
    r->round = t->round;
    r->version = t->version;
    r->ok = ok;
    r->again = !ok && t->kind == TASK_PUBLISH
               && (err->code == ERR_NOT_FOUND
                   || (e->publication && (err->code == ERR_CLOSED || err->code == ERR_TIMEOUT || err->code == ERR_DATA)));
    r->broken = !ok && t->kind == TASK_LOAD && e->load_broken;
    r->code = ok ? ERR_NONE : err->code;
    r->left = !ok && t->round > 0 && (err->code == ERR_CLOSED || err->code == ERR_TIMEOUT);
    for (int i = 0; i < METRIC_N; i++)
        r->metric[i] = metric ? metric[i] : NAN;
    if (!ok)
        snprintf(r->error, sizeof r->error, "%.500s", err->text);
    report_put(e, r);
}

static bool engine_save(struct engine *e, struct task *t, struct error *err)
{
    int64_t before = clock_ns();
    struct checkpoint_info info = { .step = t->step, .tokenizer_dir = e->config.model, .run = e->run_id };
    phase_set(e, "saving");
    if (!checkpoint_start(e->writer, e->trainer, t->path, &info, err))
        return false;
    e->save_stall_s = (double)(clock_ns() - before) / 1e9;
    e->save_began_ms = clock_ms();
    e->saving = t;
    return true;
}

/* Has the checkpoint that is being written been finished? wait: until it has. */
static void saving_look(struct engine *e, bool wait)
{
    bool ok = true;
    char path[4096] = "";
    double metric[METRIC_N];
    struct error err = { 0 }, why;
    if (!e->saving || (!wait && !checkpoint_poll(e->writer, &ok, path, &err)))
        return;
    if (wait)
        ok = checkpoint_wait(e->writer, &err);
    for (int i = 0; i < METRIC_N; i++)
        metric[i] = NAN;
    metric[M_CHECKPOINT_STALL_S] = e->save_stall_s;
    metric[M_CHECKPOINT_WRITE_S] = (double)(clock_ms() - e->save_began_ms) / 1000;
    if (ok && !checkpoint_prune(e->saving->path, e->saving->config.keep_checkpoints, e->run_id, &why))
        log_warn("old checkpoints stay: %s", why.text);
    done_report(e, e->saving, ok, &err, metric);
    task_free(e->saving);
    e->saving = NULL;
}

/* ---- evaluating ---- */

struct eval_run {
    struct eval_set set;
    struct dataset *data;
    struct eval_tally tally;
    int64_t n_prompt, next, n_out;    // n_out: groups submitted and not tallied
    struct buf lines;
    const char *run;    // id
};

static void eval_tally_report(struct eval_run *x, const struct report *r)
{
    for (int32_t i = 0; i < r->group->n_sample; i++) {
        const struct sample *s = &r->group->sample[i];
        const struct reward_output *out = &r->out[i];
        eval_tally_add(&x->tally, r->group->prompt_row, out, s->n_tok, s->finish);
        struct error err;
        json_error_t je;
        json_t *row = json_loads(r->row, 0, &je);
        struct eval_record record = { .prompt = r->prompt_text,
                                      .prediction = r->text[i],
                                      .prediction_len = (int64_t)strlen(r->text[i]),
                                      .row = row,
                                      .prompt_row = r->group->prompt_row,
                                      .sample = i,
                                      .n_tok = s->n_tok,
                                      .finish = s->finish,
                                      .out = out,
                                      .run = x->run };
        if (!eval_record_line(&x->lines, &record, &err))
            log_warn("an evaluation's record: %s", err.text);
        json_decref(row);
    }
    x->n_out--;
}

/* Take what has come back scored. wait: until something has. */
static bool eval_collect(struct engine *e, struct eval_run *x, bool wait, struct error *err)
{
    struct timespec end = clock_after(EVAL_WAIT_MS);
    pthread_mutex_lock(&e->lock);
    bool late = false;
    while (wait && !e->scored && !late)
        late = pthread_cond_timedwait(&e->some, &e->lock, &end) != 0;
    struct report *list = e->scored;
    e->scored = NULL;
    pthread_mutex_unlock(&e->lock);
    if (late && !list)
        return error_set(err, ERR_TIMEOUT, "the scorer has not answered for %d s in an evaluation", EVAL_WAIT_MS / 1000);
    while (list) {
        struct report *r = list;
        list = r->next;
        eval_tally_report(x, r);
        report_free(r);
        progress_add(e, 1);
    }
    return true;
}

static bool eval_one(struct engine *e, const struct task *t, int index, const struct eval_set *set, struct eval_run *x, struct error *err)
{
    struct sampling s;
    struct group *g;
    bool dropped;
    struct dataset_columns columns = { e->config.prompt_column, e->config.answer_column };
    if (!(x->data = dataset_open(set->path, &columns, err)) || !eval_identity_check(e, set, x->data, err))
        return false;
    x->n_prompt = dataset_n_row(x->data);
    if (set->limit > 0)
        x->n_prompt = MIN(x->n_prompt, set->limit);
    sampling_make(e, &t->config, set->temperature, &s);
    if (!eval_tally_init(&x->tally, x->n_prompt, set->n, err))
        return false;
    while (x->next < x->n_prompt || !generator_idle(e->generator)) {
        while (x->next < x->n_prompt) {
            struct error full = { 0 };
            if (!prompt_submit(e, x->data, x->next, EVAL_ITEM_BASE * (index + 1) + x->next, x->next, 0, set->n, &s, &dropped, &full)) {
                if (full.code == ERR_FULL)
                    break;
                *err = full;
                return error_wrap(err, "%s:%" PRId64, set->path, dataset_line(x->data, x->next));
            }
            x->next++;
            x->n_out += !dropped;
        }
        if (!generator_step(e->generator, err))
            return false;
        look_sampler(e);
        while ((g = generator_poll(e->generator))) {
            int64_t row = g->prompt_row;
            struct report *r = group_report(e, g, x->data, row, err);
            if (!r)
                return false;
            r->eval = true;
            r->out = calloc((size_t)g->n_sample, sizeof *r->out);
            if (!r->out) {
                report_free(r);
                return error_set(err, ERR_NO_MEMORY, "no memory for a group's scores");
            }
            report_put(e, r);
        }
        if (!eval_collect(e, x, false, err))
            return false;
        saving_look(e, false);
    }
    while (x->n_out > 0)
        if (!eval_collect(e, x, true, err))
            return false;
    return true;
}

static void eval_file_write(const struct engine *e, const struct task *t, const struct eval_run *x)
{
    char dir[4200], path[4400];
    struct error err;
    snprintf(dir, sizeof dir, "%s/eval", e->run_dir);
    bool own = e->config.eval_save_dir[0] != 0;
    if (own)
        snprintf(dir, sizeof dir, "%s", e->config.eval_save_dir);
    if (!eval_file_path(path, sizeof path, dir, own ? e->config.project : NULL, x->set.name, t->step, &err))
        goto failed;
    char *slash = strrchr(path, '/');
    *slash = 0;
    bool made = dir_make(path, 0755, &err);
    *slash = '/';
    if (made && file_write(path, buf_text(&x->lines), x->lines.len, &err))
        return;
failed:
    log_warn("an evaluation's records are not kept: %s", err.text);
}

static bool engine_eval(struct engine *e, const struct task *t, struct report *out, struct error *err)
{
    struct eval_set set[EVAL_SET_MAX];
    int n = run_config_eval_sets(&t->config, set, err);
    phase_set(e, "evaluating");
    if (n < 0)
        return false;
    for (int i = 0; i < n; i++) {
        struct eval_run x = { .set = set[i], .run = e->run_id };
        bool ok = eval_one(e, t, i, &set[i], &x, err);
        if (ok) {
            snprintf(out->evals[out->n_eval].set, sizeof out->evals[0].set, "%s", set[i].name);
            out->evals[out->n_eval].n = x.n_prompt;
            out->evals[out->n_eval++].mean = eval_mean(&x.tally);
            eval_file_write(e, t, &x);
        }
        eval_tally_release(&x.tally);
        buf_release(&x.lines);
        dataset_free(x.data);
        if (!ok)
            return error_wrap(err, "while evaluating '%s'", set[i].name);
    }
    return true;
}

/* ---- the thread ---- */

static struct task *task_wait(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool inside = e->generator && !generator_idle(e->generator);
    if (!e->task_first && !inside) {
        e->look.idle = true;
        e->look.sampling = false;
        e->look.n_item = 0;
        e->look.n_running = 0;
        snprintf(e->look.phase, sizeof e->look.phase, "waiting");
        pthread_mutex_unlock(&e->lock);
        e->wake(e->wake_ctx);
        pthread_mutex_lock(&e->lock);
    }
    while (!e->task_first && !inside) {
        struct timespec t = clock_after(20);    // only a checkpoint that is being written is looked after meanwhile
        if (e->saving)
            pthread_cond_timedwait(&e->some, &e->lock, &t);
        else
            pthread_cond_wait(&e->some, &e->lock);
        if (e->saving && !e->task_first) {
            pthread_mutex_unlock(&e->lock);
            saving_look(e, false);
            pthread_mutex_lock(&e->lock);
        }
    }
    struct task *t = e->task_first;
    if (t) {
        e->task_first = t->next;
        if (!e->task_first)
            e->task_last = &e->task_first;
    }
    pthread_mutex_unlock(&e->lock);
    return t;
}

static void look_versions(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->look.step = e->step;
    e->look.version = e->version;
    e->look.made = e->made;
    e->look.round = e->round;
    e->look.n_row = e->n_row;
    e->look.n_shared = publication_versions(e->publication, e->look.shared);
    e->look.publish_ms = publication_ms(e->publication);
    pthread_mutex_unlock(&e->lock);
}

static void items_fail(struct engine *e, const struct error *err)
{
    struct task t = { .kind = TASK_ITEMS };
    if (e->items_task) {
        t.task = e->items_task->task;
        t.incarnation = e->items_task->incarnation;
    }
    generator_clear(e->generator);
    done_report(e, &t, false, err, NULL);
}

static void task_run(struct engine *e, struct task *t)
{
    struct error err = { 0 };
    double metric[METRIC_N];
    bool ok = true;
    for (int i = 0; i < METRIC_N; i++)
        metric[i] = NAN;
    int64_t idle = clock_ms() - e->idle_ms;
    switch (t->kind) {
    case TASK_LOAD:
        ok = engine_load(e, t, &err);
        if (!ok)
            engine_unload(e);
        break;
    case TASK_ITEMS:
        ok = items_begin(e, t, &err);
        task_free(e->items_task);
        e->items_task = t;
        if (!ok)
            items_fail(e, &err);
        return;
    case TASK_TRAIN:
        e->idle_s += (double)idle / 1000;
        t->round = e->round;
        ok = engine_train(e, t, metric, &err);
        if (!ok)
            ranks_leave(e);    // the others need not wait for us
        break;
    case TASK_SHARE: ok = engine_share(e, t, &err); break;
    case TASK_PUBLISH: ok = engine_publish(e, t, &err); break;
    case TASK_SAVE:
        ok = engine_save(e, t, &err);
        if (ok)
            return;    // reported, and freed, when it is on disk
        break;
    case TASK_EVAL: {
        struct report *r = calloc(1, sizeof *r);
        BUG_IF(!r, "no memory for a report of %zu bytes", sizeof *r);
        r->kind = REPORT_DONE;
        r->task_kind = t->kind;
        r->task = t->task;
        r->incarnation = t->incarnation;
        r->step = t->step;
        r->ok = engine_eval(e, t, r, &err);
        for (int i = 0; i < METRIC_N; i++)
            r->metric[i] = NAN;
        snprintf(r->error, sizeof r->error, "%.500s", err.text);
        if (!r->ok)
            generator_clear(e->generator);
        report_put(e, r);
        task_free(t);
        e->idle_ms = clock_ms();
        return;
    }
    case TASK_CANCEL:
        if (e->generator)
            generator_clear(e->generator);
        task_free(t);
        return;
    case TASK_NONE:
    case TASK_STOP:
    case N_TASK_KIND: break;
    }
    look_versions(e);
    done_report(e, t, ok, &err, metric);
    task_free(t);
    e->idle_ms = clock_ms();
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    for (;;) {
        struct error err = { 0 };
        struct task *t = task_wait(e);
        if (t && t->kind == TASK_STOP) {
            task_free(t);
            break;
        }
        if (t)
            task_run(e, t);
        else if (!items_step(e, &err))
            items_fail(e, &err);
        saving_look(e, false);
    }
    return NULL;
}

struct engine *engine_new(const struct run_config *config, const char *run_dir, const char *device, int n_thread, void (*wake)(void *ctx),
                          void *ctx, struct error *err)
{
    struct run_part part;
    struct engine *e = calloc(1, sizeof *e);
    if (!e) {
        error_set(err, ERR_NO_MEMORY, "no memory for the engine");
        return NULL;
    }
    if (!run_config_part(config, device, &part, err) || !run_id_read(run_dir, e->run_id, err) || !(e->quit = task_new(TASK_STOP, err))) {
        free(e);
        return NULL;
    }
    e->config = *config;
    snprintf(e->run_dir, sizeof e->run_dir, "%s", run_dir);
    snprintf(e->device_name, sizeof e->device_name, "%s", device);
    e->n_thread = n_thread;
    e->trains = part.rank >= 0;
    e->produces = part.producer >= 0;
    e->rank = part.rank;
    e->wake = wake;
    e->wake_ctx = ctx;
    e->task_last = &e->task_first;
    e->report_last = &e->report_first;
    e->step = e->version = e->look.step = e->look.version = -1;
    e->look.publish_ms = NAN;
    e->look.items_max = config->inference_microbatch_size;
    snprintf(e->look.phase, sizeof e->look.phase, "starting");
    pthread_mutex_init(&e->lock, NULL);
    clock_cond_init(&e->some);
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0) {
        error_set(err, ERR_IO, "cannot start the engine's thread");
        task_free(e->quit);
        free(e);
        return NULL;
    }
    return e;
}

void engine_free(struct engine *e)
{
    struct error err;
    struct report *r;
    if (!e)
        return;
    engine_put(e, e->quit);
    pthread_join(e->thread, NULL);
    if (e->writer && e->saving && !checkpoint_wait(e->writer, &err))
        log_warn("%s", err.text);
    checkpoint_writer_free(e->writer);
    task_free(e->saving);
    task_free(e->items_task);
    profile_write(e);
    engine_unload(e);
    while ((r = engine_take(e)))
        report_free(r);
    while ((r = e->scored)) {
        e->scored = r->next;
        report_free(r);
    }
    while (e->task_first) {
        struct task *t = e->task_first;
        e->task_first = t->next;
        task_free(t);
    }
    free(e->usable);
    dataset_free(e->data);
    template_free(e->template);
    encoder_free(e->encoder);
    tokenizer_free(e->tokenizer);
    publication_free(e->publication);
    device_free(e->dev);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->some);
    free(e);
}

int64_t engine_lines(struct engine *e, int64_t (*pair)[2], int64_t max)
{
    int64_t n = 0, next = 0;
    struct engine_look look;
    engine_look(e, &look);
    for (int64_t i = 0; i < look.n_row; i++, next++) {    // told: the engine's thread changes the list no more
        int64_t line = dataset_line(e->data, e->usable[i]);
        if (i > 0 && line == next)
            continue;
        if (n == max)
            return 0;
        pair[n][0] = i;
        pair[n++][1] = next = line;
    }
    return n;
}
