/* state.c - a trainer's weights, masters and moments on their way to checkpoints and back */
#include "workers/engine/trainer/state.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/adam8.h"
#include "workers/engine/trainer/trainer_impl.h"

bool trainer_gives_first(const struct trainer *t)
{
    const struct trainer *first = t->device[0];
    return first->reach.first != NULL && first->keep->shards;
}

/* ---- moments of one byte, which leave as floats */
static const float signed_table[256] = { ADAM8_SIGNED }, unsigned_table[256] = { ADAM8_UNSIGNED };

static const float *table_of(enum trainer_state_kind kind)
{
    return kind == STATE_MOMENT1 ? signed_table : unsigned_table;
}

static bool bytes_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err)
{
    bool ok = false;
    int64_t n = t->n_flat, n_scale = (n + ADAM8_BLOCK - 1) / ADAM8_BLOCK;
    struct moment8 m = update_moment8(t, kind);
    const float *table = table_of(kind);
    uint8_t *code = out ? malloc((size_t)n) : NULL;
    float *scale = out ? malloc((size_t)n_scale * 4) : NULL;
    if (out && (!code || !scale)) {
        error_set(err, ERR_NO_MEMORY, "no memory for the moments of %" PRId64 " parameters", n);
        goto out;
    }
    TRY(t->keep->gather(t, &(struct shards_at){ m.code, NULL, t->n_dev, 1, 1 }, code, err));
    TRY(t->keep->gather(t, &(struct shards_at){ m.scale, NULL, t->n_dev, 4, ADAM8_BLOCK }, scale, err));
    for (int64_t i = 0; out && i < n; i++)
        out[i] = scale[i / ADAM8_BLOCK] * table[code[i]];
    ok = true;
out:
    free(code);
    free(scale);
    return ok;
}

/* Code and scales of run r, of in (n_flat). */
static bool bytes_set_run(struct trainer *t, enum trainer_state_kind kind, const float *in, const struct update_run *r, uint8_t *code,
                          float *scale, struct error *err)
{
    struct moment8 m = update_moment8(t, kind);
    const float *table = table_of(kind);
    for (int64_t at = 0; at < r->n; at += ADAM8_BLOCK) {
        const float *x = in + r->flat + at;
        float most = 0;
        int64_t n = MIN(r->n - at, (int64_t)ADAM8_BLOCK);
        for (int64_t i = 0; i < n; i++)
            most = fmaxf(most, fabsf(x[i]));
        scale[at / ADAM8_BLOCK] = most;
        for (int64_t i = 0; i < n; i++) {
            uint8_t c = adam8_code(table, most > 0 ? x[i] / most : 0);
            code[at + i] = kind == STATE_MOMENT2 && x[i] > 0 && c == 0 ? 1 : c;
        }
    }
    return mem_copy(t->dev, m.code + r->at, code, (size_t)r->n, COPY_H2D, err)
           && mem_copy(t->dev, m.scale + r->at / ADAM8_BLOCK, scale, (size_t)((r->n + ADAM8_BLOCK - 1) / ADAM8_BLOCK) * 4, COPY_H2D, err)
           && device_sync(t->dev, err);
}

static bool bytes_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err)
{
    int64_t n = t->n_flat;
    uint8_t *code = malloc((size_t)n);
    float *scale = malloc((size_t)(n / ADAM8_BLOCK + 1) * 4);
    bool ok = (code && scale) || error_set(err, ERR_NO_MEMORY, "no memory for the moments of %" PRId64 " parameters", n);
    for (int i = 0; i < trainer_n_run(t) && ok; i++) {
        struct update_run r = update_run_of(t, i);
        ok = bytes_set_run(t, kind, in, &r, code, scale, err);
    }
    free(code);
    free(scale);
    return ok;
}

int64_t trainer_state_n(const struct trainer *t, enum trainer_state_kind kind)
{
    if (t->set.optimizer != OPTIMIZER_ADAFACTOR || kind == STATE_MASTER)
        return t->n_flat;
    return kind == STATE_MOMENT2 ? update_n_factor(t->m) : 0;
}

/* ---- all kinds */
bool trainer_state_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err)
{
    return t->form->get(t, kind, out, err);
}

static bool here_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err)
{
    if (kind != STATE_MASTER && t->set.optimizer == OPTIMIZER_ADAMW_8BIT)
        return bytes_get(t, kind, out, err);
    if (kind != STATE_MASTER && t->set.optimizer == OPTIMIZER_ADAFACTOR)
        return trainer_state_n(t, kind) == 0
               || (mem_copy(t->dev, out, t->state[kind], (size_t)trainer_state_n(t, kind) * 4, COPY_D2H, err) && device_sync(t->dev, err));
    bool whole = kind == STATE_MASTER && !t->own_master;    // a master in fp32 is the weights
    const struct keep_form *keep = whole ? t->keep->weights : t->keep;
    return keep->gather(t, &(struct shards_at){ t->state[kind], t->host_state[kind], whole ? t->n_flat : t->n_dev, 4, 1 }, out, err);
}

bool trainer_weights_get(const struct trainer *t, void *out, struct error *err)
{
    return t->form->weights_get(t, t->m, out, err);
}

static bool here_weights_get(const struct trainer *t, struct model *m, void *out, struct error *err)
{
    size_t bytes, e = dtype_size(model_dtype(m));
    if (m == t->m && t->p.weights)
        return t->keep->gather(t, &(struct shards_at){ t->p.weights, NULL, t->n_state, e, 1 }, out, err);
    const void *weights = model_weights(m, &bytes);
    return !out || (mem_copy(t->dev, out, weights, bytes, COPY_D2H, err) && device_sync(t->dev, err));
}

static bool here_weights_set(const struct trainer *t, struct model *m, const void *in, struct error *err)
{
    size_t bytes;
    void *weights = model_weights(m, &bytes);
    return mem_copy(t->dev, weights, in, bytes, COPY_H2D, err) && device_sync(t->dev, err) && model_weights_changed(m, err)
           && device_sync(t->dev, err);
}

/* The weights of run r from masters on the host, through the gradient's memory. */
static bool weights_set(struct trainer *t, const float *in, const struct update_run *r, struct error *err)
{
    int64_t most = update_grad_n(t->m, &t->set);
    for (int64_t at = 0; at < r->n; at += most) {
        int64_t n = MIN(most, r->n - at);
        if (!mem_copy(t->dev, t->grad, in + r->flat + at, (size_t)n * 4, COPY_H2D, err)
            || !OP(t->dev, err, cast, .y = update_weights_at(t, r, at), .x = t->grad, .n = n, .scale = 1, .y_dtype = model_dtype(t->m),
                   .x_dtype = DT_F32))
            return false;
    }
    return true;
}

/* All weights that this rank keeps. */
static bool weights_set_all(struct trainer *t, const float *in, struct error *err)
{
    struct update_run whole = { .n = t->n_flat };
    if (!t->p.weights)
        return weights_set(t, in, &whole, err);
    for (int i = 0; i < trainer_n_run(t); i++) {
        struct update_run r = update_run_of(t, i);
        if (!weights_set(t, in, &r, err))
            return false;
    }
    return true;
}

/* Moments as they are set, with 0 for what is not trained; free it. NULL: see err. */
static float *moments_trimmed(const struct trainer *t, const float *in, struct error *err)
{
    float *out = malloc((size_t)t->n_flat * 4);
    if (!out) {
        error_set(err, ERR_NO_MEMORY, "no memory for the moments of %" PRId64 " parameters", t->n_flat);
        return NULL;
    }
    memcpy(out, in, (size_t)t->n_flat * 4);
    for (int64_t i = 0; i < model_n_tensor(t->m); i++)
        if (t->frozen[i])
            memset(out + model_tensor(t->m, i)->offset, 0, (size_t)model_tensor(t->m, i)->n_elem * 4);
    return out;
}

bool trainer_state_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err)
{
    return t->form->set(t, kind, in, err);
}

static bool here_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err)
{
    bool ok = false;
    float *trimmed = NULL;
    TRY(device_sync(t->dev, err));
    if (kind != STATE_MASTER && t->set.optimizer == OPTIMIZER_ADAFACTOR)
        return trainer_state_n(t, kind) == 0
               || (mem_copy(t->dev, t->state[kind], in, (size_t)trainer_state_n(t, kind) * 4, COPY_H2D, err) && device_sync(t->dev, err));
    if (kind != STATE_MASTER && t->frozen)
        TRY(in = trimmed = moments_trimmed(t, in, err));
    if (kind != STATE_MASTER && t->set.optimizer == OPTIMIZER_ADAMW_8BIT) {
        ok = bytes_set(t, kind, in, err);
        goto out;
    }
    for (int i = 0; i < trainer_n_run(t) && (kind != STATE_MASTER || t->own_master); i++) {
        struct update_run r = update_run_of(t, i);
        int64_t n = update_run_n_dev(t, &r);
        TRY(mem_copy(t->dev, t->state[kind] + r.at, in + r.flat, (size_t)n * 4, COPY_H2D, err));
        if (n < r.n)
            memcpy(t->host_state[kind] + (r.at + n - t->n_dev), in + r.flat + n, (size_t)(r.n - n) * 4);
    }
    if (kind == STATE_MASTER)
        TRY(weights_set_all(t, in, err) && model_weights_changed(t->m, err));
    ok = device_sync(t->dev, err);
out:
    free(trimmed);
    return ok;
}

int64_t trainer_adam_step(const struct trainer *t)
{
    return t->adam_step;
}

void trainer_adam_step_set(struct trainer *t, int64_t n)
{
    t->adam_step = n;
}

bool trainer_adam_reset(struct trainer *t, struct error *err)
{
    t->adam_step = 0;
    return t->form->adam_reset(t, err);
}

static bool here_adam_reset(struct trainer *t, struct error *err)
{
    if (!device_sync(t->dev, err))
        return false;
    for (int k = STATE_MOMENT1; k <= STATE_MOMENT2; k++) {
        size_t bytes = trainer_moments_bytes(t->m, &t->set, t->n_dev, (enum trainer_state_kind)k);
        if (bytes > 0 && !OP(t->dev, err, mem_fill, .y = t->state[k], .size_bytes = bytes))
            return false;
        if (t->host_state[k])
            memset(t->host_state[k], 0, (size_t)(t->n_state - t->n_dev) * 4);
    }
    return true;
}

/* The hash of size_bytes of the weights, whose first word has this number among all. */
static bool hash_of(const struct trainer *t, const void *x, size_t size_bytes, int64_t first, uint64_t *hash, struct error *err)
{
    return OP(t->dev, err, mem_hash, .hash = t->hash, .x = x, .size_bytes = size_bytes, .first = first)
           && mem_copy(t->dev, hash, t->hash, sizeof *hash, COPY_D2H, err) && device_sync(t->dev, err);
}

bool trainer_hash(const struct trainer *t, uint64_t *hash, struct error *err)
{
    return t->form->hash(t, hash, err);
}

static bool here_hash(const struct trainer *t, uint64_t *hash, struct error *err)
{
    const struct trainer_parts *p = &t->p;
    size_t bytes, e = dtype_size(model_dtype(t->m));
    if (!p->weights) {
        void *weights = model_weights(t->m, &bytes);
        return hash_of(t, weights, bytes, 0, hash, err);
    }
    uint64_t sum = 0, part;    // a shard begins at a whole word, since pieces do
    for (int i = 0; i < p->n_piece; sum += part, i++)
        if (!hash_of(t, (char *)p->weights + (size_t)p->own_at[i] * e, (size_t)p->own_n[i] * e,
                     (p->piece_at[i] + p->own_first[i]) * (int64_t)e / 8, &part, err))
            return false;
    *hash = sum;
    return true;
}

/* ---- the form: all of it is here */
static bool here_open(struct trainer *t, struct error *err)
{
    t->n_device = 1;
    t->device[0] = t;
    t->device_to[0] = &t->to;
    return grad_new(t, err) && state_new(t, err);
}

static void here_close(UNUSED struct trainer *t)
{
}

static bool here_grad_get(const struct trainer *t, float *out, struct error *err)
{
    return mem_copy(t->dev, out, t->grad, (size_t)t->n_flat * 4, COPY_D2H, err) && device_sync(t->dev, err);
}

static bool here_clip_take(UNUSED struct trainer *t, UNUSED int q, UNUSED struct error *err)
{
    return true;
}

static bool here_changed(struct trainer *t, struct error *err)
{
    return model_weights_changed(t->m, err);
}

static bool here_blend(struct trainer *t, double share, struct error *err)
{
    return reference_blend(t, t->ref, share, err);
}

const struct state_form state_here = { .place = here_place,
                                       .open = here_open,
                                       .close = here_close,
                                       .grad_clear = here_grad_clear,
                                       .grad_get = here_grad_get,
                                       .freeze = trainer_freeze,
                                       .norm = here_norm,
                                       .clip_take = here_clip_take,
                                       .run = here_run,
                                       .changed = here_changed,
                                       .get = here_get,
                                       .set = here_set,
                                       .adam_reset = here_adam_reset,
                                       .hash = here_hash,
                                       .weights_get = here_weights_get,
                                       .weights_set = here_weights_set,
                                       .blend = here_blend };
