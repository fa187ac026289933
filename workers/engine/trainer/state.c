/* state.c - a trainer's weights, masters and moments on their way to checkpoints and back */
#include <string.h>
#include "kernels/collective/collective.h"
#include "workers/engine/trainer/trainer_impl.h"

/* Memory that every rank has for its shards, laid out alike: the first n_dev elements on the device, the others in the host's. */
struct shards_at {
    const void *dev, *host;    // this rank's
    int64_t n_dev;
    size_t e;    // bytes an element
};

/* Copy n elements of another rank's shards, from element `at` of them on, to out. */
static bool shard_copy(const struct trainer *t, const struct shards_at *s, int rank, int64_t at, int64_t n, char *out, struct error *err)
{
    int64_t here = MAX(MIN(n, s->n_dev - at), (int64_t)0);
    if (here > 0
        && !mem_copy(t->dev, out, (const char *)t->reach.peer(t->reach.ctx, s->dev, rank) + (size_t)at * s->e, (size_t)here * s->e,
                     COPY_D2H, err))
        return false;
    if (here < n)
        memcpy(out + (size_t)here * s->e, (const char *)t->reach.peer(t->reach.ctx, s->host, rank) + (size_t)(at + here - s->n_dev) * s->e,
               (size_t)(n - here) * s->e);
    return true;
}

/* Shards of all ranks, from where they are. */
static bool shards_gather(const struct trainer *t, const struct shards_at *s, void *out, struct error *err)
{
    const struct trainer_parts *p = &t->p;
    bool ok = true;
    if (!t->reach.peer)
        return error_set(err, ERR_CLOSED, "the trainers have parted, and each has its shard only");
    if (!t->reach.begin(t->reach.ctx, err))
        return false;
    for (int q = 0; q < t->set.n_rank && ok; q++)
        for (int64_t i = 0, at = 0, n; i < p->n_piece && ok; at += n, i++) {
            int64_t first;
            n = collective_shard(p->piece_n[i], t->set.n_rank, q, &first);
            ok = shard_copy(t, s, q, at, n, (char *)out + (size_t)(p->piece_at[i] + first) * s->e, err);
        }
    ok = ok && device_sync(t->dev, err);
    t->reach.end(t->reach.ctx);
    return ok;
}

bool trainer_state_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err)
{
    bool whole = kind == STATE_MASTER && !t->own_master;    // a master in fp32 is the weights
    if (t->p.weights || (t->own_only && !whole))
        return shards_gather(t, &(struct shards_at){ t->state[kind], t->host_state[kind], whole ? t->n_state : t->n_dev, 4 }, out, err);
    int64_t n = whole ? t->n_flat : t->n_dev;
    if (!mem_copy(t->dev, out, t->state[kind], (size_t)n * 4, COPY_D2H, err) || !device_sync(t->dev, err))
        return false;
    if (n < t->n_flat)
        memcpy(out + n, t->host_state[kind], (size_t)(t->n_flat - n) * 4);
    return true;
}

bool trainer_weights_get(const struct trainer *t, void *out, struct error *err)
{
    size_t bytes, e = dtype_size(model_dtype(t->m));
    if (t->p.weights)
        return shards_gather(t, &(struct shards_at){ t->p.weights, NULL, t->n_state, e }, out, err);
    const void *weights = model_weights(t->m, &bytes);
    return mem_copy(t->dev, out, weights, bytes, COPY_D2H, err) && device_sync(t->dev, err);
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

bool trainer_state_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err)
{
    bool ok = false;
    TRY(device_sync(t->dev, err));
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
    if (!device_sync(t->dev, err))
        return false;
    for (int k = STATE_MOMENT1; k <= STATE_MOMENT2; k++) {
        if (!OP(t->dev, err, mem_fill, .y = t->state[k], .size_bytes = (size_t)t->n_dev * 4))
            return false;
        if (t->host_state[k])
            memset(t->host_state[k], 0, (size_t)(t->n_state - t->n_dev) * 4);
    }
    return true;
}
