#include "workers/engine/trainer/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/log.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer_impl.h"
#include "workers/engine/pass/pass.h"

/* ---- life */
/* Are prompts computed once for several samples? Where layers keep a state each sequence is computed by itself. */
static bool prompts_shared(const struct model *m, const struct trainer_settings *s)
{
    bool states = config_has_states(model_config(m)) || (s->teacher && config_has_states(model_config(s->teacher)));
    return s->share_prompts && !states;
}

static void limits_make(struct run_limits *l, const struct model *m, const struct trainer_settings *s)
{
    *l = (struct run_limits){ .max_tok = s->token_budget_max,
                              .max_seq = s->token_budget_max,
                              .max_seq_tok = s->token_budget_max,
                              .train = true,
                              .recompute_block = s->recompute_block,
                              .keep_more = s->keep_more && !s->recompute_block,
                              .shares = prompts_shared(m, s),
                              .by_piece = s->n_rank > 1 && s->grad_group <= 1,
                              .mem = s->scratch };
}

/* A teacher's run: nothing is kept for a backward pass that never comes, but what the blocks' inputs take. */
static void teacher_limits_make(struct run_limits *l, const struct trainer_settings *s)
{
    limits_make(l, s->teacher, s);
    l->recompute_block = l->by_piece = true;
    l->keep_more = false;
}

static size_t teacher_run_bytes(const struct trainer_settings *s)
{
    struct run_limits l;
    if (!s->teacher)
        return 0;
    teacher_limits_make(&l, s);
    return model_run_bytes(s->teacher, &l);
}

/* After the trainer's own, in the borrowed memory if there is some. */
static bool teacher_run_open(struct trainer *t, struct error *err)
{
    struct run_limits own, l;
    if (!t->set.teacher)
        return true;
    limits_make(&own, t->m, &t->set);
    teacher_limits_make(&l, &t->set);
    l.mem = t->set.scratch ? (char *)t->set.scratch + model_run_bytes(t->m, &own) : NULL;
    return (t->ref_run = model_run_new(t->ref, &l, err)) != NULL;
}

/* Masters and moments of m, whole or what one device has of it: on the device, and in host memory. */
static void memory_of_state(const struct model *m, const struct trainer_settings *s, struct trainer_memory *out)
{
    size_t stage, each = model_dtype(m) == DT_F32 ? 8 : 12, moments = 0;
    int64_t n = trainer_n_state(m, s), n_dev = trainer_state_dev(m, s, &stage);
    for (int k = STATE_MOMENT1; k <= STATE_MOMENT2; k++)
        moments += trainer_moments_bytes(m, s, n_dev, (enum trainer_state_kind)k);
    out->state = (size_t)n_dev * (each - 8) + moments + stage;
    out->host = (size_t)(n - n_dev) * each;
}

/* What device q holds. It counts as the first of its team, which holds most. `shape` is what the team has of m, with `activation` bytes
 * for its run. */
static void memory_of_slice(const struct model *m, const struct model *shape, const struct trainer_settings *s, int q, size_t activation,
                            struct trainer_memory *out)
{
    struct error ignored;
    bool team = s->n_team > 1;
    struct model *slice = team ? model_slice_shape(shape, s->n_team, &ignored) : NULL;
    const struct model *own = team ? slice : shape;
    struct trainer_settings one = *s;
    one.n_team = one.n_stage = 0;
    one.state_bytes[0] = s->state_bytes[q];
    if (own) {
        *out = (struct trainer_memory){ .weight = trainer_weight_bytes(own, &one),
                                        .activation = activation,
                                        .gradient = trainer_grad_bytes(own, &one) + (size_t)slices_stage_n(m) * 4 };
        memory_of_state(own, &one, out);
    }
    model_free(slice);
}

static void memory_of_team(const struct model *m, const struct trainer_settings *s, int q, struct trainer_memory *out)
{
    struct error ignored;
    struct run_limits l;
    limits_make(&l, m, s);
    struct model *cut = model_sliced_shape(m, s->n_team, &ignored);
    if (cut)
        memory_of_slice(m, cut, s, q, model_run_bytes(cut, &l), out);
    model_free(cut);
}

static void memory_of_stages(const struct model *m, const struct trainer_settings *s, int q, struct trainer_memory *out)
{
    struct error ignored;
    struct run_limits l;
    int n_team = MAX(s->n_team, 1);
    limits_make(&l, m, s);
    struct model *stage = model_stage_shape(m, s->n_stage, q / n_team, n_team, &ignored);
    if (stage)
        memory_of_slice(m, stage, s, q, model_stage_run_bytes(stage, &l), out);
    model_free(stage);
}

void trainer_memory_of_device(const struct model *m, const struct trainer_settings *s, int q, struct trainer_memory *out)
{
    struct run_limits l;
    *out = (struct trainer_memory){ 0 };
    if (s->n_stage > 1) {
        memory_of_stages(m, s, q, out);
        return;
    }
    if (s->n_team > 1) {
        memory_of_team(m, s, q, out);
        return;
    }
    limits_make(&l, m, s);
    *out = (struct trainer_memory){ .weight = trainer_weight_bytes(m, s),
                                    .activation = model_run_bytes(m, &l) + teacher_run_bytes(s),
                                    .gradient = trainer_grad_bytes(m, s) };
    memory_of_state(m, s, out);
}

void trainer_memory(const struct model *m, const struct trainer_settings *s, struct trainer_memory *out)
{
    trainer_memory_of_device(m, s, 0, out);
}

/* A micro-batch's host arrays for n_tok tokens; *mem holds all of them, for free(). */
static bool micro_new(struct micro *mb, void **mem, int64_t n_tok, struct error *err)
{
    size_t n = (size_t)n_tok;
    if (!(*mem = malloc((14 * n + 1) * 4 + n * sizeof *mb->prefix)))
        return error_set(err, ERR_NO_MEMORY, "no memory for a micro-batch of %zu tokens", n);
    mb->prefix = *mem;
    float *p = (float *)(mb->prefix + n);
    float **floats[] = { &mb->temperature, &mb->adv,  &mb->weight, &mb->old,     &mb->ref, &mb->log_ratio,
                         &mb->rho,         &mb->coef, &mb->logp,   &mb->entropy, &mb->loss };
    for (size_t i = 0; i < ARRAY_SIZE(floats); i++, p += n)
        *floats[i] = p;
    mb->token = (int32_t *)p;
    mb->target = mb->token + n;
    mb->cu = mb->target + n;
    return true;
}

static bool micros_new(struct trainer *t, struct error *err)
{
    int64_t n_tok = t->set.token_budget_max;
    if (!micro_new(&t->mb, &t->mb_mem, n_tok, err))
        return false;
    for (int q = 0; q < MAX(model_n_stage(t->m), 1); q++)
        if (!micro_new(&t->stage_mb[q], &t->stage_mb_mem[q], n_tok, err))
            return false;
    return true;
}

struct trainer *trainer_new(struct model *model, struct model *ref, const struct trainer_settings *s, struct error *err)
{
    if (s->token_budget_max < 1 || s->token_budget_max > INT32_MAX / 4) {
        error_set(err, ERR_USAGE, "a token budget of %" PRId64 " is not possible", s->token_budget_max);
        return NULL;
    }
    if (s->optimizer != OPTIMIZER_ADAMW && s->offload) {
        error_set(err, ERR_USAGE, "only the optimizer adamw keeps its state in host memory");
        return NULL;
    }
    for (int64_t i = 0; s->optimizer == OPTIMIZER_ADAFACTOR && i < model_n_tensor(model); i++)
        if (model_tensor(model, i)->n_dim > 2) {
            error_set(err, ERR_UNSUPPORTED,
                      "adafactor has no moments for '%s', which is neither a vector nor a matrix; take adamw or adamw_8bit",
                      model_tensor(model, i)->name);
            return NULL;
        }
    struct trainer *t = calloc(1, sizeof *t);
    if (!t) {
        error_set(err, ERR_NO_MEMORY, "no memory for a trainer");
        return NULL;
    }
    t->m = model;
    t->ref = ref;
    t->set = *s;
    t->set.share_prompts = prompts_shared(model, s);
    if (s->share_prompts && !t->set.share_prompts)
        log_info("a prompt is computed for each of its samples: 'share_prompts' has no effect where layers keep a state of each sequence");
    t->form = state_form_of(model);
    t->dev = model_device(model);
    t->n_flat = model_n_flat(model);
    t->set.n_rank = MAX(s->n_rank, 1);
    t->own_master = model_dtype(model) != DT_F32;
    struct run_limits limits;
    const struct model_config *c = model_config(model);
    limits_make(&limits, model, s);
    if (c->experts.n && !(t->load = calloc((size_t)(c->n_layer * c->experts.n), sizeof *t->load))) {
        error_set(err, ERR_NO_MEMORY, "no memory to count the rows of %" PRId64 " experts", c->experts.n);
        goto fail;
    }
    if (!trainer_weights_place(model, &t->set, err))    // before anything knows where the weights lie
        goto fail;
    if (!micros_new(t, err) || !(t->run = model_run_new(model, &limits, err)) || !teacher_run_open(t, err) || !pieces_make(t, err)
        || !frozen_make(t, err) || !t->form->open(t, err) || !(t->sumsq = mem_new(t->dev, 3 * sizeof *t->sumsq, "gradient norm", err))
        || !(t->row_mean = mem_new(t->dev, sizeof *t->row_mean, "mean of rows", err))
        || !(t->hash = mem_new(t->dev, sizeof *t->hash, "hash of the weights", err))
        || !(t->clip = mem_new(t->dev, 2 * sizeof *t->clip, "gradient norm", err)))
        goto fail;
    return t;
fail:
    trainer_free(t);
    return NULL;
}

void trainer_free(struct trainer *t)
{
    if (!t)
        return;
    model_run_free(t->run);
    model_run_free(t->ref_run);
    t->form->close(t);
    update_release(t);
    void *mem[] = { t->sumsq, t->row_mean, t->hash, t->clip };
    for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
        mem_free(t->dev, mem[i]);
    free(t->frozen);
    free(t->mb_mem);
    for (size_t q = 0; q < ARRAY_SIZE(t->stage_mb_mem); q++)
        free(t->stage_mb_mem[q]);
    free(t->item);
    free(t->order);
    free(t->first);
    free(t->rows);
    free(t->load);
    free(t->packed);
    free(t->adv);
    free(t->ref_logp);
    free(t->left);
    free(t);
}

struct model *trainer_model(const struct trainer *t)
{
    return t->m;
}

int64_t trainer_version(const struct trainer *t)
{
    return t->version;
}

void trainer_version_set(struct trainer *t, int64_t version)
{
    trainer_update_set(t, version, 0);
}

void trainer_update_set(struct trainer *t, int64_t version, int64_t update)
{
    t->version = version;
    t->update = update;
}

struct device *trainer_device(const struct trainer *t)
{
    return t->dev;
}
