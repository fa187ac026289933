#include "workers/engine/plan/run_room.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/settings/knobs.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/pipeline.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/frozen.h"

enum dtype run_dtype(const struct run_config *c, enum device_kind kind)
{
    return strcmp(c->dtype, "bf16") == 0 || (strcmp(c->dtype, "auto") == 0 && kind == DEVICE_CUDA) ? DT_BF16 : DT_F32;
}

bool run_adapter(const struct run_config *c, struct lora_config *lora, struct error *err)
{
    *lora = (struct lora_config){ .rank = c->lora_rank, .alpha = c->lora_alpha > 0 ? c->lora_alpha : 2 * (double)c->lora_rank };
    if (c->lora_adapter[0] && !lora_config_load(lora, c->lora_adapter, err))
        return false;
    snprintf(lora->base, sizeof lora->base, "%s", c->model);
    return lora->rank == 0 || c->lora_adapter[0] || lora_targets_parse(lora, c->lora_target_modules, err);
}

double run_n_trained(const struct run_config *c, const struct model_config *shape)
{
    struct lora_config lora;
    struct error err;
    if (!run_adapter(c, &lora, &err))
        return 0;
    return lora.rank == 0 ? (double)config_n_param(shape) : (double)MAX(lora_n_param(&lora, shape, &err), (int64_t)0);
}

struct trainer_settings run_trainer_settings(const struct run_config *c, int64_t rank, const struct device *dev)
{
    struct trainer_settings s = TRAINER_SETTINGS_DEFAULT;
    s.token_budget_max = run_config_micro_tok_max(c);
    s.optimizer = (enum optimizer)knob_choice("optimizer", c->optimizer);
    snprintf(s.layers, sizeof s.layers, "%s", c->train_layer_indices);
    s.adam_beta1 = c->adam_beta1;
    s.adam_beta2 = c->adam_beta2;
    s.adam_eps = c->adam_eps;
    s.recompute_block = c->recompute_full;
    s.share_prompts = c->share_prompts;
    s.n_rank = (int)c->num_trainers;
    s.grad_group = (int)c->grad_group;
    s.n_rank_host = run_config_n_host(c) > 1 ? (int)c->trainers_per_node : 0;
    s.rank = (int)MAX(rank, 0);
    s.offload = c->offload_optimizer && !dev->host_memory;
    s.n_team = c->tensor_parallel_size > 1 ? (int)c->tensor_parallel_size : 0;
    s.n_stage = c->pipeline_parallel_size > 1 ? (int)c->pipeline_parallel_size : 0;
    return s;
}

struct generator_config run_generator_config(const struct run_config *c)
{
    // a run that samples nothing itself has room for guests already
    int64_t n_guest = c->serve[0] && !run_config_posted(c) ? run_config_serve_samples(c) : 0;
    return (struct generator_config){
        .max_seq = c->inference_microbatch_size * c->num_generations + n_guest,
        // with an environment each sample's next turn is an item of its own
        .max_item = MAX(2 * c->inference_microbatch_size, (int64_t)64) * (c->environment[0] ? c->num_generations : 1)
                    + (c->serve[0] ? run_config_serve_samples(c) : 0),
        .max_seq_tok = c->max_prompt_tokens + c->max_new_tokens,
        .speculate = knob_choice("speculate", c->speculate),
    };
}

static struct run_publication publication_of(const struct run_config *c, const struct model *m)
{
    const struct run_part first = { .rank = 0, .producer = -1, .helps = -1 }, producer = { .rank = -1, .producer = 0, .helps = -1 };
    struct run_publication out = { 0 };
    struct holder gives = holder_of(c, &first, run_config_apart(c), 0), takes = holder_of(c, &producer, run_config_apart(c), 0);
    size_t size = model_weight_bytes(m);
    if (!gives.by_memory)
        return out;
    out.n_kept = gives.n_kept;
    out.kept = size * (size_t)gives.n_kept;
    out.held = takes.n_sampler > 1 ? model_slice_bytes(m, takes.n_sampler) : size;
    out.staged = size * (size_t)takes.n_staged;
    return out;
}

/* Are the layers that train_layer_indices names layers of the model? */
static bool layers_check(const struct run_config *c, const struct model_config *shape, struct error *err)
{
    bool *in = calloc((size_t)MAX(shape->n_layer, (int64_t)1), sizeof *in);
    bool ok = in ? layers_parse(c->train_layer_indices, shape->n_layer, in, err)
                 : error_set(err, ERR_NO_MEMORY, "no memory for the layers");
    free(in);
    return ok;
}

/* The run's model on dev without its weights, for sums. NULL: see err. */
static struct model *shape_of(const struct run_config *c, struct device *dev, struct error *err)
{
    struct model_config shape;
    struct lora_config lora;
    if (!run_adapter(c, &lora, err) || !config_load(&shape, c->model, err) || !layers_check(c, &shape, err))
        return NULL;
    struct model *m = model_new_shape(&shape, dev, run_dtype(c, dev->kind), err);
    if (m && model_parts_set(m, run_config_sum_parts(c), err) && (lora.rank == 0 || model_lora_shape(m, &lora, err)))
        return m;
    model_free(m);
    return NULL;
}

/* The shape of the run's teacher into *out; NULL: there is none. */
static bool teacher_shape_of(struct model **out, const struct run_config *c, struct device *dev, struct error *err)
{
    struct model_config shape;
    *out = NULL;
    return !c->teacher[0]
           || (config_load(&shape, c->teacher, err) && (*out = model_new_shape(&shape, dev, run_dtype(c, dev->kind), err)) != NULL);
}

bool run_trainer_room(struct trainer_memory out[ZERO_MAX + 1], int *most, size_t *whole_bytes, const struct run_config *c,
                      struct device *dev, struct error *err)
{
    struct model *teacher, *m = teacher_shape_of(&teacher, c, dev, err) ? shape_of(c, dev, err) : NULL;
    if (!m) {
        model_free(teacher);
        return false;
    }
    // an adapter is small: each has all of it
    *most = model_lora(m) ? 2 : ZERO_MAX;
    *whole_bytes = model_weight_bytes(m);
    for (int z = 0; z <= *most; z++) {
        struct trainer_settings s = run_trainer_settings(c, 0, dev);
        s.offload = false;
        s.zero_stage = z;
        s.teacher = teacher;
        trainer_memory(m, &s, &out[z]);
    }
    model_free(teacher);
    model_free(m);
    return true;
}

bool run_stages_room(struct run_stage out[], const struct run_config *c, int zero_stage, const size_t *state_bytes, struct device *dev,
                     struct error *err)
{
    int n = (int)c->pipeline_parallel_size, n_team = (int)c->tensor_parallel_size;
    struct model *m = shape_of(c, dev, err);
    if (!m)
        return false;
    struct trainer_settings s = run_trainer_settings(c, 0, dev);
    s.zero_stage = zero_stage;
    if (state_bytes)
        memcpy(s.state_bytes, state_bytes, sizeof s.state_bytes);
    struct holder h = holder_of(c, &(struct run_part){ .rank = 0, .producer = -1, .helps = -1 }, run_config_apart(c), zero_stage);
    struct holdings holdings;
    holdings_of(&holdings, &h);
    holdings_measure(&holdings, m, &s);
    const struct holding *reference = holdings_find(&holdings, HOLDS_REFERENCE, HELD_STAGES);
    for (int q = 0; q < n; q++) {
        struct trainer_memory t;
        size_t state = 0;    // the one part in which a stage's devices may differ
        for (int i = 0; i < n_team; i++) {
            trainer_memory_of_device(m, &s, q * n_team + i, &t);
            state = MAX(state, t.state);
        }
        out[q] = (struct run_stage){ .kept = t.weight + t.gradient + state + (reference ? reference->bytes[q * n_team] : 0),
                                     .activation = t.activation,
                                     .n_set = pipeline_sets(n, q),
                                     .has_embedding = q == (model_config(m)->tied ? n - 1 : 0) };
        stage_layers(model_config(m), n, q, &out[q].first, &out[q].end);
    }
    model_free(m);
    return true;
}

bool run_holdings(struct holdings *out, const struct run_config *c, const struct run_part *part, int zero_stage, struct device *dev,
                  struct error *err)
{
    struct holder h = holder_of(c, part, run_config_apart(c), zero_stage);
    struct trainer_settings s = run_trainer_settings(c, part->rank, dev);
    struct model *teacher, *m = teacher_shape_of(&teacher, c, dev, err) ? shape_of(c, dev, err) : NULL;
    if (!m) {
        model_free(teacher);
        return false;
    }
    s.zero_stage = zero_stage;
    s.teacher = teacher;
    holdings_of(out, &h);
    holdings_measure(out, m, part->rank >= 0 ? &s : NULL);
    model_free(teacher);
    model_free(m);
    return true;
}

bool run_stages_fit(const struct run_config *c, struct device *const *dev, struct error *err)
{
    struct run_stage need[PIPELINE_STAGES_MAX];
    int n = (int)c->pipeline_parallel_size, each = (int)c->tensor_parallel_size;
    if (n == 1 || dev[0]->host_memory)
        return true;
    if (!run_stages_room(need, c, run_config_zero(c) < 0 ? ZERO_MAX : run_config_zero(c), NULL, dev[0], err))
        return false;
    for (int i = each; i < n * each; i++) {
        int q = i / each;
        size_t have, total, want = need[q].kept + need[q].activation + RESERVE_CUDA;
        if (!device_enter(dev[i], err) || !mem_info(dev[i], &have, &total, err))
            return false;
        if (want > have)
            return error_set(err, ERR_NO_MEMORY,
                             "%s has %.1f GB free, and stage %d of %d, layers %" PRId64 " to %" PRId64
                             ", needs %.1f GB of it; more stages, %s'recompute_full' or a smaller 'token_budget' need less",
                             dev[i]->name, (double)have * 1e-9, q, n, need[q].first, need[q].end - 1, (double)want * 1e-9,
                             c->offload_optimizer || strcmp(c->optimizer, "adamw") != 0 ? "" : "'offload_optimizer', ");
    }
    return device_enter(dev[0], err);
}

bool run_devices_differ(const struct run_config *c, const struct device *dev)
{
    return c->offload_optimizer && run_config_trainer_devices(c) > 1 && !dev->host_memory;
}

bool run_host_fits(size_t each_bytes, int64_t n_trainer, size_t have, struct error *err)
{
    double need = (double)each_bytes * (double)n_trainer;
    return need <= (double)have
           || error_set(err, ERR_NO_MEMORY,
                        "%" PRId64
                        " trainer%s of this machine with 'offload_optimizer' keep%s %.1f GB of masters and moments in its memory, of "
                        "which %.1f GB are available, %.1f GB too little; on more devices there is more room for them",
                        n_trainer, n_trainer == 1 ? "" : "s", n_trainer == 1 ? "s" : "", need * 1e-9, (double)have * 1e-9,
                        (need - (double)have) * 1e-9);
}

/* run_room_plan, with 'fill_gap' auto as off. */
static bool room_plan(struct run_room *out, const struct run_config *c, const struct run_part *part, struct device *dev, const size_t *have,
                      struct error *err)
{
    size_t total_bytes;
    *out = (struct run_room){ .fills_gap = run_fills_gap(c) };
    struct model *teacher, *m = teacher_shape_of(&teacher, c, dev, err) ? shape_of(c, dev, err) : NULL;
    int n_sampler = run_sampler_devices(c, part);
    struct model *sliced = m && n_sampler > 1 ? model_sliced_shape(m, n_sampler, err) : NULL;
    if (!m || (n_sampler > 1 && !sliced) || !mem_info(dev, &out->have, &total_bytes, err)) {
        model_free(sliced);
        model_free(teacher);
        model_free(m);
        return false;
    }
    bool trains = part->rank >= 0;
    out->publication = publication_of(c, m);
    out->copy = part->rank == 0 ? checkpoint_copy_bytes(model_n_flat(m), model_weight_bytes(m), model_dtype(m) != DT_F32) : 0;
    struct trainer_settings s = run_trainer_settings(c, part->rank, dev);
    s.teacher = teacher;
    struct generator_config g = run_generator_config(c);
    g.model = !run_samples(c, part) ? NULL : sliced ? sliced : m;
    struct plan_ask ask = { .have = out->have, .model = m, .holder = holder_of(c, part, run_config_apart(c), 0), .g = &g };
    int set = run_config_zero(c);
    if (c->num_trainers > 1)
        s.zero_stage = set < 0 ? memory_plan_zero(&ask, &s) : set;
    out->fits = memory_plan_in(&out->plan, &ask, trains ? &s : NULL);
    out->lacks.need = out->plan.total + out->plan.reserve;
    if (out->fits && have && trains)
        out->fits = memory_plan_devices(&out->plan, have, &ask, &s, &out->lacks);
    memcpy(out->state_bytes, s.state_bytes, sizeof out->state_bytes);
    for (int q = 1; have && q < run_config_trainer_devices(c); q++)
        ask.have = MIN(ask.have, have[q]);
    if (!out->fits)
        memory_plan_nearest(&ask, trains ? &s : NULL, out->nearest, sizeof out->nearest);
    model_free(teacher);
    model_free(sliced);
    model_free(m);
    return true;
}

/* Is the plan with the gap filled the other one, with more weights and as many pages for each generator? */
static bool adds_only(const struct run_room *with, const struct run_room *without, size_t n_lane)
{
    const struct memory_plan *a = &with->plan, *b = &without->plan;
    return with->fits && a->total + a->reserve <= with->have && a->zero_stage == b->zero_stage && a->state == b->state
           && a->activation == b->activation && a->kv == n_lane * b->kv;
}

bool run_room_plan(struct run_room *out, const struct run_config *c, const struct run_part *part, struct device *dev, const size_t *have,
                   struct error *err)
{
    struct run_room with;
    if (!room_plan(out, c, part, dev, have, err))
        return false;
    bool gains = c->n_behind > 1 && !dev->host_memory;    // what gap.h says
    if (strcmp(c->fill_gap, "auto") != 0 || !run_config_gap_possible(c) || !out->fits || have || !gains)
        return true;    // with `have`, what is left is for the optimizer's state
    struct run_config *on = malloc(sizeof *on);
    if (!on)
        return error_set(err, ERR_NO_MEMORY, "no memory for a plan");
    *on = *c;
    snprintf(on->fill_gap, sizeof on->fill_gap, "on");
    bool ok = room_plan(&with, on, part, dev, have, err);
    if (ok && adds_only(&with, out, (size_t)run_lanes(on, part)))
        *out = with;
    free(on);
    return ok;
}
