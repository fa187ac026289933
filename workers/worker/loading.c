#include "workers/worker/loading.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <jansson.h>
#include "kernels/choices_file.h"
#include "kernels/collective/collective.h"
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/machine.h"
#include "workers/engine/data/dataset.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/plan/run_room.h"
#include "workers/engine/publish/publication.h"
#include "workers/engine/sampler/external.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/worker/bridge.h"
#include "workers/worker/lending.h"
#include "workers/worker/episodes.h"
#include "workers/worker/gap.h"
#include "workers/worker/guests.h"
#include "workers/worker/held.h"
#include "workers/worker/network.h"
#include "workers/worker/profile.h"
#include "workers/worker/outside.h"
#include "workers/worker/publishing.h"
#include "workers/worker/saving.h"

/* ---- checks before anything is on the device ---- */

/* Is the checkpoint complete, of the wanted step, and of this run? Another run's checkpoint may only begin a new run
 * (checkpoint_path). */
static bool checkpoint_check(const struct engine *e, const struct task *t, const char *path, struct report *r, struct error *err)
{
    int64_t found = 0;
    char owner[64];
    bool ok = checkpoint_verify(path, &found, err) && checkpoint_owner(path, owner, err)
              && (!t->path[0] || found == t->step
                  || error_set(err, ERR_DATA, "checkpoint '%s' is of step %" PRId64 ", not %" PRId64, path, found, t->step))
              && (t->path[0] || checkpoint_config_check(path, e->config.model, err));
    r->broken = !ok && err->code == ERR_DATA;    // not for lack of memory, or because of a disk or a limit
    if (ok && t->path[0] && owner[0] && e->run_id[0] && strcmp(owner, e->run_id) != 0)
        ok = error_set(err, ERR_EXISTS,
                       "checkpoint '%s' belongs to another run (%s; this one is %s): two runs have been given one save_dir", path, owner,
                       e->run_id);
    return ok;
}

/* Are data, model, tokenizer and template those the run began with? Another node gets copies of them, so there is nothing to
 * check. */
static bool identity_check(const struct engine *e, struct error *err)
{
    char changed[256] = "";
    if (e->config.node_only)
        return true;
    json_t *was = NULL, *is = json_object();
    bool ok = identity_read(e->run_dir, &was, err)
              && (!was
                  || (identity_model(is, e->config.model, run_config_tokenizer(&e->config), err)
                      && identity_adapter(is, e->config.lora_adapter, err) && identity_teacher(is, e->config.teacher, err)
                      && (!e->prompts.data || identity_add(is, "dataset", dataset_hash(e->prompts.data), err))));
    if (ok && was && identity_changed(was, is, changed, sizeof changed))
        ok = error_set(err, ERR_DATA,
                       "%s: changed while the run goes on (dataset '%.200s', model '%.200s'); put back what it was and go on with "
                       "--resume, or, if that is wanted, --resume with --accept-changed '%s'",
                       changed, e->config.dataset, e->config.model, changed);
    json_decref(was);
    json_decref(is);
    return ok;
}

/* Are this worker's samples drawn by an external engine? */
static bool is_outside(const struct engine *e)
{
    return strncmp(e->device_name, "engine:", 7) == 0;
}

static void team_devices(const struct engine *e, struct device *dev[SUM_PARTS_MAX])
{
    dev[0] = e->dev;
    for (int q = 1; q < SUM_PARTS_MAX; q++)
        dev[q] = e->helper[q - 1];
}

static bool devices_open(struct engine *e, struct error *err)
{
    size_t total;
    const char *own = is_outside(e) ? "ref" : e->device_name;    // it only holds weights
    if (!e->dev && (!(e->dev = device_new(own, e->n_thread, err)) || !mem_info(e->dev, &e->free_at_start, &total, err)))
        return false;
    int64_t n_sampler = e->produces ? e->config.producer_tensor_parallel_size - 1 : 0,
            n_trainer = e->trains ? run_config_trainer_devices(&e->config) - 1 : 0;
    for (int64_t k = 0; k < MAX(n_sampler, n_trainer); k++) {
        char name[64];
        if (k < n_sampler)
            run_config_helper(&e->config, e->producer, k, name, sizeof name);
        else
            run_config_trainer_helper(&e->config, e->rank, k, name, sizeof name);
        if (!e->helper[k] && !(e->helper[k] = device_new(name, e->n_thread, err)))
            return false;
    }
    struct device *dev[SUM_PARTS_MAX];
    team_devices(e, dev);
    return device_enter(e->dev, err) && (!e->trains || run_stages_fit(&e->config, dev, err));
}

static void row_ticked(void *ctx)
{
    engine_progress(ctx, 1);
}

/* ---- weights ---- */

static bool has_adapter(const struct engine *e)
{
    return e->config.lora_rank > 0 || e->config.lora_adapter[0];
}

/* The model. Where it is trained its weights stay in the files until it is known what the trainer keeps of them (trained_make). Elsewhere it is
 * empty, since a worker that only samples receives its weights and need not have the files. On several devices it gets slices (team_open).
 * What a sampler receives of a run with an adapter is the adapter, so each worker loads the base. */
static struct model *model_open(struct engine *e, enum dtype dtype, struct error *err)
{
    struct model_config shape;
    if (has_adapter(e))
        return model_load(e->config.model, e->dev, dtype, err);
    if (e->trains)
        return model_files_open(e->config.model, e->dev, dtype, err);
    if (!config_load(&shape, e->config.model, err))
        return NULL;
    return holdings_find(&e->holdings, HOLDS_SAMPLED, HELD_SLICES) ? model_new_shape(&shape, e->dev, dtype, err)
                                                                   : model_new_empty(&shape, e->dev, dtype, err);
}

/* The adapter of e->model, which a sampler overwrites with the trainer's: new, or the one to start from. */
static bool adapter_open(struct engine *e, struct error *err)
{
    const struct run_config *c = &e->config;
    struct lora_config lora;
    if (c->lora_adapter[0])
        return model_lora_load(e->model, c->lora_adapter, e->trains, err) && model_lora_base_set(e->model, c->model, err);
    return run_adapter(c, &lora, err) && model_lora_new(e->model, &lora, (uint64_t)c->seed, e->trains, err);
}

static struct run_part part_of(const struct engine *e)
{
    return (struct run_part){ .rank = e->trains ? e->rank : -1, .producer = e->produces ? e->producer : -1, .helps = -1 };
}

/* What this worker samples with; NULL: it samples nothing. */
static struct model *sampled_model(const struct engine *e)
{
    struct run_part part = part_of(e);
    return run_samples(&e->config, &part) ? e->sampler : NULL;
}

/* Let the model that samples work on the row's devices. */
static bool team_open(struct engine *e, const struct holding *row, struct error *err)
{
    struct device *dev[SUM_PARTS_MAX];
    int n = row->n_slice;
    team_devices(e, dev);
    if (n > 1 && !model_team(sampled_model(e), dev, n, err))
        return false;
    if (n > 1)
        log_info("producer %" PRId64 " samples on %d devices, %s to %s", e->producer, n, e->dev->name, dev[n - 1]->name);
    return true;
}

/* Say in the log how each device multiplies, and keep it for the next start. */
static void products_tell(const struct engine *e)
{
    struct device *dev[SUM_PARTS_MAX];
    team_devices(e, dev);
    for (int q = 0; q < SUM_PARTS_MAX; q++)
        if (dev[q] && dev[q]->choices) {
            choices_tell(dev[q]->choices, dev[q]->name);
            choices_save(dev[q]->choices);
        }
}

/* The teacher, or the model of the files again, for a reference. Its weights stay there until they are taken. A teacher samples nothing, so
 * its sums need no order of theirs. */
static struct model *files_open(struct engine *e, enum dtype dtype, struct error *err)
{
    const struct run_config *c = &e->config;
    struct model *m = model_files_open(c->teacher[0] ? c->teacher : c->model, e->dev, dtype, err);
    if (m && (c->teacher[0] || model_parts_set(m, run_config_sum_parts(c), err)))
        return m;
    model_free(m);
    return NULL;
}

/* The reference model: the teacher, the base without its adapter, or the model's files again, on the devices that the trainer has. */
static bool reference_open(struct engine *e, const struct holding *row, enum dtype dtype, struct error *err)
{
    struct device *dev[SUM_PARTS_MAX];
    struct model *files = NULL;
    team_devices(e, dev);
    if (row->form != HELD_VIEW && !(files = files_open(e, dtype, err)))
        return false;
    e->ref = held_add(e, holding_open(row, files ? files : e->model, dev, err));
    model_free(files);
    if (!e->ref)
        return false;
    model_n_live_set(e->ref, tokenizer_n_id(e->prompts.tokenizer));
    model_length_set(e->ref, e->config.max_prompt_tokens + e->config.max_new_tokens);
    return model_weights_take(e->ref, err);
}

/* What samples: a trainer's own copy, which is filled later, or all that a worker has which does not train. */
static bool sampled_open(struct engine *e, const struct holding *row, struct error *err)
{
    if (e->trains) {
        struct model *own = held_add(e, holding_empty(row, e->model, err));
        if (!own)
            return false;
        model_n_live_set(own, tokenizer_n_id(e->prompts.tokenizer));
        e->sampler = own;
    }
    return team_open(e, row, err);
}

/* Open a row that does not depend on how the trainers lay out their weights. Versions for others belong to the publication. */
static bool row_open(struct engine *e, const struct holding *row, enum dtype dtype, struct error *err)
{
    switch (row->use) {
    case HOLDS_REFERENCE: return reference_open(e, row, dtype, err);
    case HOLDS_SAMPLED: return sampled_open(e, row, err);
    case HOLDS_NEXT: return gap_prepare(e, err);
    case HOLDS_TRAINED:
    case HOLDS_CURRENT:
    case HOLDS_KEPT:
    case HOLDS_COMING: break;
    }
    return true;
}

/* What 'fill_gap' auto comes to on this device, which has nothing of the run yet. */
static bool gap_settle(struct engine *e, struct error *err)
{
    struct run_part part = part_of(e);
    struct run_room room = { 0 };
    if (strcmp(e->config.fill_gap, "auto") != 0 || !run_config_gap_possible(&e->config))
        return true;
    if (!run_devices_differ(&e->config, e->dev) && !run_room_plan(&room, &e->config, &part, e->dev, NULL, err))
        return false;
    snprintf(e->config.fill_gap, sizeof e->config.fill_gap, "%s", room.fills_gap ? "on" : "off");
    return true;
}

/* The model, and all rows but what is trained and its copies, which trained_make opens. */
static bool models_load(struct engine *e, struct error *err)
{
    const struct run_config *c = &e->config;
    struct run_part part = part_of(e);
    int64_t n_id = tokenizer_n_id(e->prompts.tokenizer);
    bool on_gpu = strncmp(c->devices, "cuda:", 5) == 0;
    struct holder h = holder_of(c, &part, false, 0);    // as long as the trainers have not met
    holdings_of(&e->holdings, &h);
    enum dtype dtype = run_dtype(c, !is_outside(e) ? e->dev->kind : on_gpu ? DEVICE_CUDA : DEVICE_CPU);    // as the trainers have it
    e->model = e->sampler = held_add(e, model_open(e, dtype, err));
    if (!e->model || !tokenizer_fits(e->prompts.tokenizer, model_config(e->model)->vocab, c->model, err))
        return false;
    model_n_live_set(e->model, n_id);
    model_length_set(e->model, c->max_prompt_tokens + c->max_new_tokens);
    if (model_config(e->model)->rope.is_long)
        log_info("longrope frequencies=long max_seq_tok=%" PRId64 " original_max_position_embeddings=%" PRId64,
                 c->max_prompt_tokens + c->max_new_tokens, model_config(e->model)->rope.original_max_pos);
    if (!model_parts_set(e->model, run_config_sum_parts(c), err) || (has_adapter(e) && !adapter_open(e, err)))
        return false;
    for (int i = 0; i < e->holdings.n; i++)
        if (!row_open(e, &e->holdings.row[i], dtype, err))
            return false;
    return true;
}

/* Bytes that the first device has given for weights, as the models count them. */
static size_t weights_loaded(const struct engine *e)
{
    return held_bytes(e, 0) + (e->ending.model ? model_held_bytes(e->ending.model) : 0)
           + (e->publication ? publication_bytes(e->publication) : 0);
}

/* What is planned for; its `have` is filled in later. */
static struct plan_ask plan_ask_of(const struct engine *e, const struct generator_config *g)
{
    struct run_part part = part_of(e);
    return (struct plan_ask){
        .loaded = weights_loaded(e), .model = e->trains ? e->trained : e->model, .holder = holder_of(&e->config, &part, e->apart, 0), .g = g
    };
}

/* Plan how trainer and sampler share the device's memory (memory_plan.h). */
static bool memory_plan(struct engine *e, struct trainer_settings *settings, const struct generator_config *g, struct error *err)
{
    struct plan_ask ask = plan_ask_of(e, g);
    return memory_plan_make(&e->plan, &ask, e->trains ? settings : NULL, err);
}

/* The whole weights, where others read them if that is how they are given. */
static bool whole_take(struct engine *e, struct error *err)
{
    return publication_in_place(e->publication) ? model_share(e->model, err) != NULL : model_weights_take(e->model, err);
}

/* What the trainer changes: the model; or shards or slices of it, and then perhaps a copy beside them, whole or in the sampler's slices. */
static bool trained_make(struct engine *e, const struct trainer_settings *settings, struct generator_config *g, struct error *err)
{
    struct plan_ask ask = plan_ask_of(e, g);
    memory_plan_holdings(&e->holdings, &ask, settings);
    const struct holding *trained = &e->holdings.row[0], *whole = holdings_find(&e->holdings, HOLDS_CURRENT, HELD_WHOLE),
                         *slices = holdings_find(&e->holdings, HOLDS_CURRENT, HELD_SLICES);
    bool cut = trained->form != HELD_WHOLE, in_place = publication_in_place(e->publication);
    struct device *dev[SUM_PARTS_MAX];
    team_devices(e, dev);
    e->trained = e->model;
    if ((whole || (in_place && !cut && !trained->shards)) && !whole_take(e, err))
        return false;
    if (cut || whole) {
        bool shared = in_place && !whole && !trained->shards;    // others read the slices; shards are so anyway
        if (!(e->trained = held_add(e, holding_open(trained, e->model, dev, err))) || (shared && !model_slices_share(e->trained, err)))
            return false;
        e->copy = whole || slices ? e->model : NULL;
        e->bare = e->copy ? NULL : e->model;
    } else if (trained->shards && slices) {
        if (!(e->copy = held_add(e, model_shape_like(e->trained, err))))
            return false;
        e->model = e->sampler = e->copy;
    }
    g->model = sampled_model(e);
    return trainer_weights_place(e->trained, settings, err) && (!slices || team_open(e, slices, err));
}

/* The trainers' first devices' meeting; NULL: there is one trainer. */
static struct collective *meeting_of(const struct engine *e)
{
    return e->meeting[0];
}

/* The ZeRO stage that this trainer's memory asks for. */
static bool zero_wanted(const struct engine *e, const struct trainer_settings *settings, const struct generator_config *g, uint8_t *zero,
                        struct error *err)
{
    size_t free_bytes, total_bytes;
    struct plan_ask ask = plan_ask_of(e, g);
    if (!mem_info(e->dev, &free_bytes, &total_bytes, err))
        return false;
    ask.have = free_bytes + ask.loaded;
    *zero = (uint8_t)memory_plan_zero(&ask, settings);
    return true;
}

/* The ZeRO stage, that is, what each trainer keeps only its shard of: as set, or the lowest that fits on all of them. */
static bool zero_agree(struct engine *e, struct trainer_settings *settings, struct generator_config *g, struct error *err)
{
    bool reach, bytes = run_config_apart(&e->config);
    uint8_t all[COLLECTIVE_RANK_MAX], mine = 0;
    int set = run_config_zero(&e->config);
    e->trained = e->model;
    e->apart = false;
    if (!meeting_of(e))
        return !e->trains || trained_make(e, settings, g, err);
    if (!collective_reaches(meeting_of(e), &reach, err))
        return false;
    e->apart = !reach;
    if (!reach && strcmp(e->config.collective, "ipc") == 0)
        return error_set(err, ERR_UNSUPPORTED,
                         "'collective' is ipc, but these devices cannot reach each other's memory; auto and local are possible");
    if (set > 0 && !reach && !bytes)
        return error_set(err, ERR_UNSUPPORTED,
                         "'zero_stage' is %d, but these devices cannot reach each other's memory; 'collective' local is possible, or "
                         "'zero_stage' 0 or auto",
                         set);
    if (set >= 0)
        mine = (uint8_t)set;
    else if ((reach || bytes) && !zero_wanted(e, settings, g, &mine, err))
        return false;
    if (!collective_gather(meeting_of(e), &mine, 1, all, err))
        return false;
    for (int q = 0; q < collective_n_rank(meeting_of(e)); q++)
        settings->zero_stage = MAX(settings->zero_stage, all[q]);
    return trained_make(e, settings, g, err);
}

/* Where masters and moments may be in host memory: plan the trainer's further devices, too. */
static bool further_plan(struct engine *e, struct trainer_settings *settings, const struct generator_config *g, struct error *err)
{
    struct device *dev[SUM_PARTS_MAX];
    struct plan_ask ask = plan_ask_of(e, g);
    struct plan_short lacks;
    size_t have[SUM_PARTS_MAX], total;
    if (!e->trains || !run_devices_differ(&e->config, e->dev))
        return true;
    team_devices(e, dev);
    for (int q = 1; q < trainer_devices(settings); q++) {
        if (!mem_info(dev[q], &have[q], &total, err))
            return false;
        have[q] += held_bytes(e, q);
    }
    if (!device_enter(e->dev, err))
        return false;
    return memory_plan_devices(&e->plan, have, &ask, settings, &lacks)
           || error_set(err, ERR_NO_MEMORY, "%s has %.3f GB for a run, and its part of the trainer's model needs %.3f GB",
                        dev[lacks.device]->name, (double)have[lacks.device] * 1e-9, (double)lacks.need * 1e-9);
}

/* What a trainer tells the others of its plan. */
struct state_told {
    uint64_t state_bytes[SUM_PARTS_MAX];
    uint64_t host_bytes;    // that its machine has left
};

/* With masters and moments in host memory: of shards as much on each device as all trainers have room for, so that all are laid out alike;
 * and is there enough for all trainers of this machine? Each asks before any of them takes some. */
static bool state_agree(struct engine *e, struct trainer_settings *settings, struct error *err)
{
    struct state_told all[COLLECTIVE_RANK_MAX], mine;
    if (!e->trains || !settings->offload)
        return true;
    mine.host_bytes = machine_memory().available;
    for (int q = 0; q < SUM_PARTS_MAX; q++)
        mine.state_bytes[q] = settings->state_bytes[q];
    if (meeting_of(e) && !collective_gather(meeting_of(e), &mine, sizeof mine, all, err))
        return false;
    for (int r = 0; meeting_of(e) && r < collective_n_rank(meeting_of(e)); r++) {
        if (settings->n_rank_host == 0 || r / settings->n_rank_host == settings->rank / settings->n_rank_host)
            mine.host_bytes = MIN(mine.host_bytes, all[r].host_bytes);
        for (int q = 0; q < SUM_PARTS_MAX && settings->zero_stage > 0; q++)
            settings->state_bytes[q] = MIN(settings->state_bytes[q], (size_t)all[r].state_bytes[q]);
    }
    struct trainer_memory t;
    trainer_memory(e->trained, settings, &t);
    e->plan.total -= e->plan.state - t.state;
    e->plan.state = t.state;
    for (int q = 0; q < trainer_devices(settings); q++) {
        trainer_memory_of_device(e->trained, settings, q, &t);
        e->plan.host[q] = t.host;
    }
    return run_host_fits(memory_plan_host(&e->plan), run_config_trainers_here(&e->config), (size_t)mine.host_bytes, err);
}

/* Divide up the device's memory. */
static bool memory_share(struct engine *e, struct trainer_settings *settings, struct generator_config *g, struct error *err)
{
    char text[512];
    struct memory_plan *p = &e->plan;
    if (!memory_plan(e, settings, g, err) || !further_plan(e, settings, g, err) || !state_agree(e, settings, err))
        return false;
    memory_plan_text(p, text, sizeof text);
    log_info("memory planned %s", text);
    g->kv_bytes = p->kv / (e->ending.model ? 2 : 1);
    if (!p->turns)
        return true;
    if (!(e->region = mem_new(e->dev, p->region, "activations, and keys and values by turns", err)))
        return false;
    settings->scratch = g->kv_mem = e->region;
    return true;
}

/* ---- trainer and sampler ---- */

/* generator_watch: to whom the token belongs. */
static bool token_came(void *ctx, const struct drawn *d)
{
    struct engine *e = ctx;
    return d->prompt_row < 0 ? guests_watch(e, d) : e->episodes && episodes_watch(e->episodes, d);
}

static struct generator_config generator_config_make(struct engine *e, int64_t version)
{
    struct generator_config g = run_generator_config(&e->config);
    g.model = sampled_model(e);
    g.tokenizer = e->prompts.tokenizer;
    g.version = version;
    g.entropy = e->config.rollout_entropy;
    g.prefix_cache = e->episodes || e->guests;    // a sample's next turn goes on where it was
    g.watch = e->episodes || e->guests ? token_came : NULL;
    g.read_watch = e->guests ? guests_read_watch : NULL;
    g.watch_ctx = e;
    return g;
}

/* The trainer, in the checkpoint's state when there is one, else in that of the model's files. */
static bool trainer_open(struct engine *e, const struct trainer_settings *settings, const struct task *t, const char *path,
                         struct report *r, struct error *err)
{
    if (!(e->trainer = trainer_new(e->trained, e->ref, settings, err)))
        return false;
    if (path[0] ? !checkpoint_restore(e->trainer, path, err) : !checkpoint_masters_begin(e->trainer, e->config.model, err)) {
        r->broken = path[0] && err->code == ERR_DATA;
        return false;
    }
    trainer_version_set(e->trainer, t->step);
    return true;
}

/* The shared step of all trainers; then everybody's copies of the weights, which a checkpoint may have changed. */
static bool ranks_open(struct engine *e, struct error *err)
{
    if (!e->trains)
        return true;
    if (meeting_of(e) && !(e->ranks = ranks_new(e->trainer, e->meeting, err)))
        return false;
    return own_copy_fill(e, err) && (!holdings_has(&e->holdings, HOLDS_SAMPLED) || own_weights_copy(e, e->sampler, err));
}

/* Say in the log what the first device has of the weights now, as the models count it, and what the plan said. */
static void held_tell(const struct engine *e)
{
    log_info("weights held held_mb=%.6f planned_mb=%.6f whole_mb=%.6f", (double)weights_loaded(e) * 1e-6, (double)e->plan.weights * 1e-6,
             (double)model_weight_bytes(e->model) * 1e-6);
}

static void trainer_waits(void *ctx, int rank)
{
    struct engine *e = ctx;
    char what[64] = "";
    engine_waits_for(e, rank >= 0 ? run_config_trainer(&e->config, rank, what, sizeof what) : what);
}

static const char *trainer_name(void *ctx, int rank, char *out, size_t size)
{
    return run_config_trainer(&((struct engine *)ctx)->config, rank, out, size);
}

/* Meet the other trainers, if there are any. The controller names the meeting (ranks_name). */
static bool trainers_meet(struct engine *e, const struct task *t, struct error *err)
{
    char dir[4200], name[64], address[280];
    if (!e->trains || e->config.num_trainers == 1)
        return true;
    if (!network_address(&e->config, e->run_dir, address, sizeof address, err))
        return false;
    snprintf(dir, sizeof dir, "%s/sock", e->run_dir);
    struct collective_config c = { .kind = run_config_collective(&e->config),
                                   .dir = dir,
                                   .name = name,
                                   .rank = (int)e->rank,
                                   .n_rank = (int)e->config.num_trainers,
                                   .address = address[0] ? address : NULL,
                                   .join_ms = (int64_t)(1000 * e->config.ranks_timeout_s),
                                   .wait_ms = (int64_t)(1000 * e->config.ranks_timeout_s),
                                   .name_of = trainer_name,
                                   .ctx = e };
    for (int q = 0; q < run_config_trainer_devices(&e->config); q++) {
        c.dev = q == 0 ? e->dev : e->helper[q - 1];
        c.waits = q == 0 ? trainer_waits : NULL;    // it is called on the thread that waits; the others wait with the first
        ranks_name(t->round, q, name, sizeof name);
        if (!device_enter(c.dev, err) || !(e->meeting[q] = collective_join(&c, err)))
            return false;
    }
    e->round = t->round;
    return device_enter(e->dev, err);
}

void trainers_give_up(struct engine *e, const struct error *why)
{
    collective_abandon(e->meeting, ARRAY_SIZE(e->meeting), why->text);
    trainers_leave(e);
}

void trainers_leave(struct engine *e)
{
    struct error why;
    if (e->ranks && ranks_weights_are_held(e->ranks)
        && !publishing_withdraw(e, &why))    // the others' shards are not kept for it any longer
        log_warn("the trainers part while their weights are read: %s", why.text);
    ranks_free(e->ranks);
    for (size_t q = 0; q < ARRAY_SIZE(e->meeting); q++) {
        collective_leave(e->meeting[q]);
        e->meeting[q] = NULL;
    }
    e->saves = 0;
    e->ranks = NULL;
    e->round = 0;
}

/* ---- the task ---- */

static bool load(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    const char *path = t->path[0] ? t->path : e->trains ? e->config.checkpoint_path : "";
    saving_look(e, true);
    loading_undo(e);
    if (path[0] && !checkpoint_check(e, t, path, r, err))
        return false;
    if (!devices_open(e, err) || !gap_settle(e, err) || !prompts_load(&e->prompts, &e->config, row_ticked, e, err)
        || !identity_check(e, err) || !models_load(e, err))
        return false;
    if (is_outside(e)) {
        e->step = t->step;
        e->version = -1;
        e->made = t->made;
        return outside_open(e, err);
    }
    struct trainer_settings settings = run_trainer_settings(&e->config, e->rank, e->dev);
    settings.teacher = e->config.teacher[0] ? e->ref : NULL;
    if ((e->config.environment[0] && !(e->episodes = episodes_new(e, err))) || !guests_prepare(e, err))
        return false;
    struct generator_config g = generator_config_make(e, t->step);
    /* before the trainer takes the weights' address: they may move to memory that all trainers can reach */
    if (!lending_prepare(e, err) || !publishing_prepare(e, err) || !trainers_meet(e, t, err) || !zero_agree(e, &settings, &g, err)
        || !memory_share(e, &settings, &g, err))
        return false;
    if (e->trains && !trainer_open(e, &settings, t, path, r, err))
        return false;
    if (g.model && (!(e->generator = generator_new(&g, err)) || !gap_open(e, &g, err)))
        return false;
    if (!saving_prepare(e, err) || !profile_start(e, err))
        return false;
    e->step = t->step;
    e->version = e->trains ? t->step : -1;    // a worker that only samples has no version until it receives one
    e->made = t->made;
    e->idle_ms = clock_ms();
    if (!ranks_open(e, err))
        return false;
    held_tell(e);
    products_tell(e);    // the trainer's slices and stages have chosen by now, too
    if (e->generator)
        guests_attach(e);
    return lending_open(e, err) && bridge_open(e, err);
}

bool loading_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    bool ok = load(e, t, r, err);
    if (!ok)
        trainers_give_up(e, err);
    return ok;
}

void loading_undo(struct engine *e)
{
    struct error why;
    if (!publishing_withdraw(e, &why))    // its hashes will tell that it has read something else
        log_warn("weights are unloaded while they are read: %s", why.text);
    publishing_forget(e);
    lending_free(e);
    trainers_leave(e);
    guests_detach(e);
    if (e->external)
        external_clear(e->external);
    gap_end(e);
    generator_free(e->generator);
    pthread_mutex_lock(&e->lock);
    e->look.n_put_back = 0;    // the next generator counts from there
    pthread_mutex_unlock(&e->lock);
    episodes_free(e->episodes);
    e->episodes = NULL;
    trainer_free(e->trainer);
    held_free(e);
    if (e->dev)
        mem_free(e->dev, e->region);
    e->region = NULL;
    e->generator = NULL;
    e->trainer = NULL;
    e->step = e->version = -1;
}
