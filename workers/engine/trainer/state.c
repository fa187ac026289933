/* state.c - a trainer's weights, masters and moments on their way to checkpoints and back */
#include "workers/engine/trainer/state.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/adam8.h"
#include "kernels/collective/collective.h"
#include "workers/engine/trainer/trainer_impl.h"

/* Memory that every rank has for its shards, laid out alike: the first n_dev elements on the device, the others in the host's. */
struct shards_at {
    const void *dev, *host;    // this rank's
    int64_t n_dev;
    size_t e;       // bytes of an entry
    int64_t per;    // elements that one entry is of: 1, or ADAM8_BLOCK, at whose multiples shards begin
};

static int64_t entries(const struct shards_at *s, int64_t n)
{
    return (n + s->per - 1) / s->per;
}

static const void *memory_of(const struct trainer *t, const void *mine, int rank)
{
    return rank == t->set.rank ? mine : t->reach.peer(t->reach.ctx, mine, rank);
}

/* Copy n entries of a rank's shards, from entry `at` of them on, to out. */
static bool shard_copy(const struct trainer *t, const struct shards_at *s, int rank, int64_t at, int64_t n, char *out, struct error *err)
{
    int64_t here = MAX(MIN(n, s->n_dev - at), (int64_t)0);
    if (here > 0
        && !mem_copy(t->dev, out, (const char *)memory_of(t, s->dev, rank) + (size_t)at * s->e, (size_t)here * s->e, COPY_D2H, err))
        return false;
    if (here < n)
        memcpy(out + (size_t)here * s->e, (const char *)memory_of(t, s->host, rank) + (size_t)(at + here - s->n_dev) * s->e,
               (size_t)(n - here) * s->e);
    return true;
}

/* Where this rank's n entries from `at` on are on the device: of those in host memory a copy is made in the stage. NULL: see err. */
static const void *shard_on_device(const struct trainer *t, const struct shards_at *s, int64_t at, int64_t n, struct error *err)
{
    int64_t here = MAX(MIN(n, s->n_dev - at), (int64_t)0);
    const char *dev = (const char *)s->dev + (size_t)at * s->e;
    char *stage = (char *)t->p.stage;
    if (here == n)
        return dev;
    return (here == 0 || mem_copy(t->dev, stage, dev, (size_t)here * s->e, COPY_D2D, err))
                   && mem_copy(t->dev, stage + (size_t)here * s->e, (const char *)s->host + (size_t)(at + here - s->n_dev) * s->e,
                               (size_t)(n - here) * s->e, COPY_H2D, err)
               ? stage
               : NULL;
}

/* A piece's shards, which the others send: out on the first rank, NULL on those. */
static bool piece_gather_apart(const struct trainer *t, const struct shards_at *s, int piece, char *out, struct error *err)
{
    const struct trainer_parts *p = &t->p;
    size_t bytes[COLLECTIVE_RANK_MAX], each;
    int64_t first, own = entries(s, p->own_n[piece]);
    for (int q = 0; q < t->set.n_rank; q++)
        bytes[q] = (size_t)entries(s, collective_shard(p->piece_n[piece], t->set.n_rank, q, &first)) * s->e;
    each = bytes[0];
    _Static_assert(sizeof *p->stage == 4, "the stage has four bytes for each element of all other ranks' longest shards");
    const void *mine = t->set.rank == 0 ? NULL : shard_on_device(t, s, p->own_at[piece] / s->per, own, err);
    if ((t->set.rank > 0 && !mine) || !t->reach.first(t->reach.ctx, mine, bytes, p->stage, each, err))
        return false;
    for (int q = 0; q < t->set.n_rank && out; q++) {
        collective_shard(p->piece_n[piece], t->set.n_rank, q, &first);
        char *to = out + (size_t)((p->piece_at[piece] + first) / s->per) * s->e;
        if (q == 0 ? !shard_copy(t, s, 0, p->own_at[piece] / s->per, own, to, err)
                   : !mem_copy(t->dev, to, (char *)p->stage + (size_t)(q - 1) * each, bytes[q], COPY_D2H, err))
            return false;
    }
    return device_sync(t->dev, err);    // then the stage may be written again
}

bool trainer_gives_first(const struct trainer *t)
{
    const struct trainer *first = t->device[0];
    return first->reach.first != NULL && first->own_only;
}

/* Shards of all ranks, from where they are. */
static bool shards_gather(const struct trainer *t, const struct shards_at *s, void *out, struct error *err)
{
    const struct trainer_parts *p = &t->p;
    bool ok = true;
    if (!t->reach.begin)
        return error_set(err, ERR_CLOSED, "the trainers have parted, and each has its shard only");
    BUG_IF(t->reach.first && (t->set.rank == 0) != (out != NULL), "of ranks that are apart the first one gets the shards");
    for (int i = 0; i < p->n_piece && t->reach.first; i++)
        if (!piece_gather_apart(t, s, i, out, err))
            return false;
    if (t->reach.first)
        return true;
    if (!t->reach.begin(t->reach.ctx, err))
        return false;
    for (int q = 0; q < t->set.n_rank && ok; q++)
        for (int64_t i = 0, at = 0, n; i < p->n_piece && ok; at += n, i++) {
            int64_t first;
            n = collective_shard(p->piece_n[i], t->set.n_rank, q, &first);
            ok = shard_copy(t, s, q, at / s->per, entries(s, n), (char *)out + (size_t)((p->piece_at[i] + first) / s->per) * s->e, err);
        }
    ok = ok && device_sync(t->dev, err);
    t->reach.end(t->reach.ctx);
    return ok;
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
    if (t->own_only)
        TRY(shards_gather(t, &(struct shards_at){ m.code, NULL, t->n_dev, 1, 1 }, code, err)
            && shards_gather(t, &(struct shards_at){ m.scale, NULL, t->n_dev, 4, ADAM8_BLOCK }, scale, err));
    else
        TRY(mem_copy(t->dev, code, m.code, (size_t)n, COPY_D2H, err) && mem_copy(t->dev, scale, m.scale, (size_t)n_scale * 4, COPY_D2H, err)
            && device_sync(t->dev, err));
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
    if (t->p.weights || (t->own_only && !whole))
        return shards_gather(t, &(struct shards_at){ t->state[kind], t->host_state[kind], whole ? t->n_state : t->n_dev, 4, 1 }, out, err);
    int64_t n = whole ? t->n_flat : t->n_dev;
    if (!out)
        return true;
    if (!mem_copy(t->dev, out, t->state[kind], (size_t)n * 4, COPY_D2H, err) || !device_sync(t->dev, err))
        return false;
    if (n < t->n_flat)
        memcpy(out + n, t->host_state[kind], (size_t)(t->n_flat - n) * 4);
    return true;
}

bool trainer_weights_get(const struct trainer *t, void *out, struct error *err)
{
    return t->form->weights_get(t, t->m, out, err);
}

static bool here_weights_get(const struct trainer *t, struct model *m, void *out, struct error *err)
{
    size_t bytes, e = dtype_size(model_dtype(m));
    if (m == t->m && t->p.weights)
        return shards_gather(t, &(struct shards_at){ t->p.weights, NULL, t->n_state, e, 1 }, out, err);
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
