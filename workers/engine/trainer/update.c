/* update.c - a trainer's gradient, masters and moments, and the update that makes new weights of them
 *
 * The flat order is cut into pieces, these into shards, one a rank (trainer_parts). Alone, or with zero_stage 0, a rank keeps masters
 * and moments of everything and updates all weights in one run; else of its shards only, one after the other in the order of the
 * pieces, and updates them in a run for each piece. With zero_stage 3 the weights themselves are such shards, laid out as the masters.
 *
 * The first n_dev elements of what is kept here lie on the device, the others in pinned host memory, from where AdamW streams them
 * (adamw_host). Without offload all of them lie on the device. A rank that keeps its own shards only has the others in host memory that
 * the other ranks can read.
 *
 * The gradient's norm is a sum over blocks of SUMSQ_BLOCK elements that are counted from the beginning of their piece, so it does not
 * depend on which rank has which shard. */
#include "workers/engine/trainer/update.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/adam8.h"
#include "kernels/collective/collective.h"
#include "kernels/collective/exchange.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer_impl.h"
#include "workers/engine/pass/pass.h"

#define STAGE_BYTES ((size_t)288 << 20)    // three pieces of 8 Mi elements: copies of 32 MiB run a bus at full speed
#define GRAD_SLOTS 2                       // places for gradients of a piece from zero_stage 2 on: one is sent while the next is made

/* ---- sizes */
static bool several(const struct trainer_settings *s)
{
    return s->n_rank > 1;
}

/* Is a gradient added up over several micro-batches before it is given away? Then nothing of it is given away in between. */
static bool grouped(const struct trainer_settings *s)
{
    return s->grad_group > 1;
}

/* Memory of codes of n elements: what follows begins on a line. */
static size_t codes_bytes(int64_t n)
{
    return ((size_t)n + 255) / 256 * 256;
}

static int64_t piece_max(const struct model *m)
{
    int64_t most = 0, first;
    for (int p = 0; p < model_n_piece(m); p++)
        most = MAX(most, model_piece(m, p, &first));
    return most;
}

/* Elements of a place for a piece of the gradient. With zero_stage 3, where memory is short, the embedding and the head take both. */
static int64_t slot_n(const struct model *m, const struct trainer_settings *s)
{
    int64_t most = 0, first;
    if (!trainer_keeps_shards(m, s) || grouped(s))
        return piece_max(m);
    for (int p = 1; p <= model_config(m)->n_layer; p++)
        most = MAX(most, model_piece(m, p, &first));
    return most;
}

int64_t update_grad_n(const struct model *m, const struct trainer_settings *s)
{
    return several(s) && s->zero_stage >= 2 && !grouped(s) ? exchange_slots_n(piece_max(m), slot_n(m, s), GRAD_SLOTS) : model_n_flat(m);
}

static int64_t stage_n(const struct model *m, const struct trainer_settings *s)
{
    return exchange_stage_n(piece_max(m), slot_n(m, s), s->n_rank);
}

size_t trainer_grad_bytes(const struct model *m, const struct trainer_settings *s)
{
    int64_t n = update_grad_n(m, s);
    if (several(s))
        n += keep_most(m, s->n_rank) + stage_n(m, s);
    else if (grouped(s))
        n += model_n_flat(m);
    return (size_t)n * 4;
}

size_t trainer_weight_bytes(const struct model *m, const struct trainer_settings *s)
{
    return keep_form_of(m, s)->weight_bytes(m, s);
}

const struct state_form *state_form_of(const struct model *m)
{
    return model_is_sliced(m) ? &state_sliced : &state_here;
}

bool here_place(struct model *m, const struct trainer_settings *s, struct error *err)
{
    return keep_form_of(m, s)->place(m, s, err);
}

bool trainer_weights_place(struct model *m, const struct trainer_settings *s, struct error *err)
{
    return state_form_of(m)->place(m, s, err);
}

int64_t trainer_n_state(const struct model *m, const struct trainer_settings *s)
{
    return keep_form_of(m, s)->n_state(m, s);
}

int64_t trainer_state_dev(const struct model *m, const struct trainer_settings *s, size_t *stage_bytes)
{
    int64_t n = trainer_n_state(m, s);
    size_t each = model_dtype(m) == DT_F32 ? 8 : 12;
    *stage_bytes = MAX(MIN(STAGE_BYTES, (size_t)n * each / 8), (size_t)1 << 16);
    if (!s->offload || s->state_bytes[0] >= (size_t)n * each) {
        *stage_bytes = 0;
        return n;
    }
    size_t room = s->state_bytes[0] > *stage_bytes ? (s->state_bytes[0] - *stage_bytes) / each : 0;
    return (int64_t)(room & ~(size_t)1023);    // host pieces start on whole lines
}

int64_t update_n_factor(const struct model *m)
{
    int64_t n = 0;
    for (int64_t i = 0; i < model_n_tensor(m); i++) {
        const struct tensor *x = model_tensor(m, i);
        n += x->n_dim == 1 ? x->n_elem : x->dim[0] + x->dim[1];
    }
    return n;
}

size_t trainer_moments_bytes(const struct model *m, const struct trainer_settings *s, int64_t n_dev, enum trainer_state_kind kind)
{
    switch (s->optimizer) {
    case OPTIMIZER_ADAMW: break;
    case OPTIMIZER_ADAMW_8BIT: return codes_bytes(n_dev) + (size_t)((n_dev + ADAM8_BLOCK - 1) / ADAM8_BLOCK) * 4;
    case OPTIMIZER_ADAFACTOR: return kind == STATE_MOMENT2 ? (size_t)update_n_factor(m) * 4 : 0;
    }
    return (size_t)n_dev * 4;
}

struct moment8 update_moment8(const struct trainer *t, enum trainer_state_kind kind)
{
    uint8_t *code = (uint8_t *)t->state[kind];
    return (struct moment8){ code, (float *)(void *)(code + codes_bytes(t->n_dev)) };
}

bool pieces_make(struct trainer *t, struct error *err)
{
    struct trainer_parts *p = &t->p;
    int n = p->n_piece = model_n_piece(t->m);
    int64_t **array[] = { (int64_t **)&p->piece_n,   (int64_t **)&p->piece_at, (int64_t **)&p->own_n,
                          (int64_t **)&p->own_first, (int64_t **)&p->own_at,   (int64_t **)&p->part_at };
    if (!(t->piece_mem = calloc(ARRAY_SIZE(array) * (size_t)n, sizeof *t->piece_mem)))
        return error_set(err, ERR_NO_MEMORY, "no memory for a table of %d pieces", n);
    for (size_t i = 0; i < ARRAY_SIZE(array); i++)
        *array[i] = t->piece_mem + i * (size_t)n;
    for (int i = 0; i < n; i++) {
        int64_t first, size = model_piece(t->m, i, &first), *at = t->piece_mem + i;
        at[0] = size;
        at[n] = first;
        at[2 * n] = collective_shard(size, t->set.n_rank, t->set.rank, &at[3 * n]);
        at[4 * n] = p->n_sum;
        at[5 * n] = t->n_sumsq;
        p->n_sum += at[2 * n];
        t->n_sumsq += (size + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK;
    }
    if (model_keeps_shards(t->m)) {    // not where its slices do
        size_t bytes;
        const struct mem_handle *h;
        p->weights = model_kept(t->m, &bytes, &h);
    }
    p->late = model_late_piece(t->m);
    t->keep = keep_form_of(t->m, &t->set);
    t->n_state = trainer_n_state(t->m, &t->set);
    t->n_dev = trainer_state_dev(t->m, &t->set, &t->stage_bytes);
    return true;
}

/* ---- memory */
/* What the others touch, handed out from one piece of memory by a walk that measures it first. */
static void share_walk(struct trainer *t, char *base)
{
    struct trainer_parts *p = &t->p;
    size_t at = 0;
    const struct {
        void **to;
        size_t size_bytes;
        bool none;    // not here at all
    } part[] = {
        { (void **)&p->stage, (size_t)stage_n(t->m, &t->set) * 4 },
        { (void **)&p->norm_part, (size_t)t->n_sumsq * sizeof *p->norm_part },
        { (void **)&p->sum, (size_t)keep_most(t->m, t->set.n_rank) * 4, !t->of_team },
        { (void **)&t->grad, (size_t)t->n_flat * 4, t->keep->shards },
        { (void **)&t->state[STATE_MASTER], (size_t)t->n_dev * 4, !t->keep->shards || !t->own_master },
        { (void **)&t->state[STATE_MOMENT1], trainer_moments_bytes(t->m, &t->set, t->n_dev, STATE_MOMENT1), !t->keep->shards },
        { (void **)&t->state[STATE_MOMENT2], trainer_moments_bytes(t->m, &t->set, t->n_dev, STATE_MOMENT2), !t->keep->shards },
    };
    for (size_t i = 0; i < ARRAY_SIZE(part); i++) {
        if (part[i].none)
            continue;
        if (base)
            *part[i].to = base + at;
        at += (part[i].size_bytes + 255) / 256 * 256;
    }
    p->share_bytes = at;
}

/* Memory of the device that is t's until update_release. */
static void *own_new(struct trainer *t, size_t size_bytes, const char *what, struct error *err)
{
    BUG_IF(t->n_owned == ARRAY_SIZE(t->owned), "%s in more pieces of memory than a trainer has", what);
    void *p = mem_new(t->dev, size_bytes, what, err);
    if (p)
        t->owned[t->n_owned++] = p;
    return p;
}

bool grad_new(struct trainer *t, struct error *err)
{
    struct trainer_parts *p = &t->p;
    if (!several(&t->set)) {
        p->norm_part = own_new(t, (size_t)t->n_sumsq * sizeof *p->norm_part, "gradient norm", err);
        p->sum = t->grad = p->norm_part ? own_new(t, (size_t)t->n_flat * 4, "gradient", err) : NULL;
        if (!t->grad || !here_grad_clear(t, err))
            return false;
        if (grouped(&t->set))    // backward passes add where ranks.h says
            return (p->grad = own_new(t, (size_t)t->n_flat * 4, "gradient of a group", err)) != NULL;
        t->to.flat = t->grad;
        return true;
    }
    share_walk(t, NULL);
    if (!(p->share = mem_share_new(t->dev, p->share_bytes, "what ranks exchange", &t->share_handle, err)))
        return false;
    share_walk(t, p->share);
    p->share_handle = &t->share_handle;
    if (!t->grad && !(t->grad = own_new(t, (size_t)update_grad_n(t->m, &t->set) * 4, "gradient", err)))
        return false;
    p->grad = t->grad;
    p->n_slot = t->set.zero_stage >= 2 && !grouped(&t->set) ? GRAD_SLOTS : 0;
    p->slot_n = slot_n(t->m, &t->set);
    return t->of_team || (p->sum = own_new(t, (size_t)keep_most(t->m, t->set.n_rank) * 4, "sum of the gradients", err)) != NULL;
}

bool here_grad_clear(struct trainer *t, struct error *err)
{
    return OP(t->dev, err, mem_fill, .y = t->grad, .size_bytes = (size_t)update_grad_n(t->m, &t->set) * 4);
}

bool trainer_grad_begin(struct trainer *t, int64_t n_micro, struct error *err)
{
    t->to.set = n_micro > 0 && model_run_sets(t->run);
    return t->to.set || t->form->grad_clear(t, err);
}

struct update_run update_run_of(const struct trainer *t, int i)
{
    return t->keep->run(t, i);
}

int trainer_n_run(const struct trainer *t)
{
    return t->keep->n_run(t);
}

char *update_weights_at(const struct trainer *t, const struct update_run *r, int64_t from)
{
    size_t bytes, e = dtype_size(model_dtype(t->m));
    if (t->p.weights)
        return (char *)t->p.weights + (size_t)(r->at + from) * e;
    return (char *)model_weights(t->m, &bytes) + (size_t)(r->flat + from) * e;
}

void *trainer_run_weights(const struct trainer *t, int run, size_t *size_bytes)
{
    struct update_run r = update_run_of(t, run);
    *size_bytes = (size_t)r.n * dtype_size(model_dtype(t->m));
    return update_weights_at(t, &r, 0);
}

int64_t update_run_n_dev(const struct trainer *t, const struct update_run *r)
{
    return MAX(MIN(r->n, t->n_dev - r->at), 0);
}

/* Copy elements of a run's weights to the host as fp32, or zeros, through the stage. */
static bool host_run_init(struct trainer *t, enum trainer_state_kind kind, const struct update_run *r, struct error *err)
{
    int64_t most = (int64_t)(t->stage_bytes / 4);
    for (int64_t at = update_run_n_dev(t, r); at < r->n; at += most) {
        int64_t k = MIN(most, r->n - at);
        bool ok = kind == STATE_MASTER ? OP(t->dev, err, cast, .y = t->stage, .x = update_weights_at(t, r, at), .n = k, .scale = 1,
                                            .y_dtype = DT_F32, .x_dtype = model_dtype(t->m))
                                       : OP(t->dev, err, mem_fill, .y = t->stage, .size_bytes = (size_t)k * 4);
        if (!ok || !mem_copy(t->dev, t->host_state[kind] + (r->at + at - t->n_dev), t->stage, (size_t)k * 4, COPY_D2H, err))
            return false;
    }
    return true;
}

static bool host_state_init(struct trainer *t, enum trainer_state_kind kind, struct error *err)
{
    for (int i = 0; i < trainer_n_run(t); i++) {
        struct update_run r = update_run_of(t, i);
        if (!host_run_init(t, kind, &r, err))
            return false;
    }
    return device_sync(t->dev, err);
}

/* Memory for what is kept in the host's, which other ranks open where it is of own shards only. */
static bool host_state_new(struct trainer *t, const char *const what[STATE_N], struct error *err)
{
    size_t each = (size_t)(t->n_state - t->n_dev) * 4;
    return each == 0
           || ((t->stage = own_new(t, t->stage_bytes, "the stage of the optimizer's state", err)) && t->keep->host_new(t, each, what, err));
}

/* Masters from the weights, moments 0, on the device. */
static bool dev_state_init(struct trainer *t, enum trainer_state_kind kind, struct error *err)
{
    if (kind != STATE_MASTER)
        return OP(t->dev, err, mem_fill, .y = t->state[kind], .size_bytes = trainer_moments_bytes(t->m, &t->set, t->n_dev, kind));
    for (int i = 0; i < trainer_n_run(t); i++) {
        struct update_run r = update_run_of(t, i);
        if (!OP(t->dev, err, cast, .y = t->state[kind] + r.at, .x = update_weights_at(t, &r, 0), .n = update_run_n_dev(t, &r), .scale = 1,
                .y_dtype = DT_F32, .x_dtype = model_dtype(t->m)))
            return false;
    }
    return true;
}

bool state_new(struct trainer *t, struct error *err)
{
    static const char *const what[STATE_N] = { "fp32 masters", "first moments", "second moments" };
    bool ok = false;
    TRY(host_state_new(t, what, err));
    for (int k = 0; k < STATE_N; k++) {
        if (k == STATE_MASTER && !t->own_master) {
            t->state[k] = (float *)(void *)update_weights_at(t, &(struct update_run){ 0 }, 0);
            continue;
        }
        size_t bytes = k == STATE_MASTER ? (size_t)t->n_dev * 4
                                         : trainer_moments_bytes(t->m, &t->set, t->n_dev, (enum trainer_state_kind)k);
        if (bytes == 0 && t->set.optimizer == OPTIMIZER_ADAFACTOR)
            continue;
        TRY(t->state[k] || (t->state[k] = own_new(t, bytes, what[k], err)) != NULL);
        TRY(dev_state_init(t, (enum trainer_state_kind)k, err));
        TRY(!t->host_state[k] || host_state_init(t, (enum trainer_state_kind)k, err));
    }
    ok = true;
out:
    return ok;
}

void update_release(struct trainer *t)
{
    struct trainer_parts *p = &t->p;
    while (t->n_owned > 0)
        mem_free(t->dev, t->owned[--t->n_owned]);
    for (int k = 0; k < STATE_N && !p->host; k++)
        host_free(t->dev, t->host_state[k]);
    host_share_free(t->dev, p->host, p->host_bytes, &t->host_handle);
    if (p->share)
        mem_share_free(t->dev, p->share, p->share_bytes, &t->share_handle);
    free(t->piece_mem);
}

/* ---- gradient */
int64_t trainer_grad_n(const struct trainer *t)
{
    return t->n_flat;
}

bool trainer_grad_get(const struct trainer *t, float *out, struct error *err)
{
    BUG_IF(t->p.n_slot, "the flat gradient of a rank that keeps its shards only");
    return t->form->grad_get(t, out, err);
}

int trainer_zero(const struct trainer *t)
{
    return several(&t->set) ? t->set.zero_stage : 0;
}

int trainer_grad_group(const struct trainer *t)
{
    return MAX(t->set.grad_group, 1);
}

int trainer_n_rank_host(const struct trainer *t)
{
    return t->set.n_rank_host;
}

struct trainer_parts trainer_parts(const struct trainer *t)
{
    return t->p;
}

void trainer_grad_goes(struct trainer *t, int q, const struct model_grad *to, bool (*idle)(void *ctx, struct error *err))
{
    *t->device_to[q] = *to;
    model_run_idle_of(t->run, q, idle, to->ctx);
}

void trainer_changes_set(struct trainer *t, void (*changes)(void *ctx), void *ctx)
{
    t->changes = changes;
    t->changes_ctx = ctx;
}

void trainer_changes(const struct trainer *t)
{
    if (t->changes)
        t->changes(t->changes_ctx);
}

void trainer_reaches(struct trainer *t, const struct trainer_reach *reach)
{
    t->reach = reach ? *reach : (struct trainer_reach){ 0 };
}

/* ---- update */
int trainer_n_device(const struct trainer *t)
{
    return t->n_device;
}

struct trainer *trainer_of_device(struct trainer *t, int q)
{
    return t->device[q];
}

int trainer_norm_rank(const struct trainer *t, int piece)
{
    return piece % t->set.n_rank;
}

bool trainer_norm_team(struct trainer *t, struct error *err)
{
    return slices_norm(t, true, err);
}

bool trainer_norm_own(struct trainer *t, struct error *err)
{
    const struct trainer_parts *p = &t->p;
    if (!trainer_freeze(t, err))
        return false;
    for (int i = 0; i < p->n_piece; i++)
        if (!OP(t->dev, err, sumsq, .part = p->norm_part + p->part_at[i] + p->own_first[i] / SUMSQ_BLOCK, .x = p->sum + p->own_at[i],
                .n = p->own_n[i]))
            return false;
    return true;
}

bool trainer_norm_all(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err)
{
    bool ok = false;
    float norm;
    TRY(OP(t->dev, err, sum_parts, .sum = t->sumsq, .part = t->p.norm_part, .n = t->n_sumsq));
    TRY(OP(t->dev, err, clip_coef, .norm = t->clip, .coef = t->clip + 1, .sum = t->sumsq, .max_norm = (float)h->max_norm, .grad_scale = 1));
    TRY(mem_copy(t->dev, &norm, t->clip, sizeof norm, COPY_D2H, err));
    TRY(device_sync(t->dev, err));
    *grad_norm = (double)norm;
    if (!isfinite(norm)) {
        error_set(err, ERR_DATA, "the gradient's norm is not finite");
        goto out;
    }
    ok = true;
out:
    return ok;
}

bool trainer_apply_begin(struct trainer *t, int q, struct error *err)
{
    return t->form->clip_take(t, q, err);
}

bool trainer_apply_end(struct trainer *t, struct error *err)
{
    bool alone = !several(&t->set) && model_n_device(t->m) <= 1 && !t->stage_used;    // else others read what this one has made
    if (!t->form->changed(t, err) || (!alone && !device_sync(t->dev, err)))
        return false;
    t->stage_used = false;
    t->adam_step++;
    t->version++;
    return true;
}

bool trainer_norm_whole(struct trainer *t, struct error *err)
{
    return t->form->norm(t, err);
}

bool here_norm(struct trainer *t, struct error *err)
{
    const struct trainer_parts *p = &t->p;
    for (int i = 0; i < p->n_piece; i++)
        if (!OP(t->dev, err, sumsq, .part = p->norm_part + p->part_at[i], .x = t->grad + p->piece_at[i], .n = p->piece_n[i]))
            return false;
    return true;
}

bool trainer_norm_alone(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err)
{
    return t->form->freeze(t, err) && t->form->norm(t, err) && trainer_norm_all(t, h, grad_norm, err);
}

bool here_run(struct trainer *t, const struct trainer_hyper *h, struct error *err)
{
    return trainer_run_apply(t, h, 0, err);
}

bool trainer_apply_alone(struct trainer *t, const struct trainer_hyper *h, struct error *err)
{
    return t->form->run(t, h, err) && trainer_apply_end(t, err);
}

bool trainer_apply(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err)
{
    return trainer_norm_alone(t, h, grad_norm, err) && trainer_apply_alone(t, h, err);
}
