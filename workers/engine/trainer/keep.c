/* keep.c - what a rank keeps of the trainer's state: everything, its shards of masters and moments, or of the weights too (ZeRO)
 *
 * Each is a table. With shards the state lies one shard after the other, in the order of the pieces, and each piece is a run of the
 * update. Their memory is open to the other ranks, on the device as in the host. */
#include <stdlib.h>
#include <string.h>
#include "kernels/collective/collective.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer_impl.h"

int64_t keep_most(const struct model *m, int n_rank)
{
    int64_t sum = 0, first;
    for (int p = 0; p < model_n_piece(m); p++)
        sum += collective_shard(model_piece(m, p, &first), n_rank, 0, &first);
    return sum;
}

static int64_t entries(const struct shards_at *s, int64_t n)
{
    return (n + s->per - 1) / s->per;
}

/* ---- everything */
static int64_t all_n_state(const struct model *m, UNUSED const struct trainer_settings *s)
{
    return model_n_flat(m);
}

static struct update_run all_run(const struct trainer *t, UNUSED int i)
{
    return (struct update_run){ .n = t->n_flat, .grad = t->grad };
}

static int all_n_run(UNUSED const struct trainer *t)
{
    return 1;
}

static bool all_place(struct model *m, UNUSED const struct trainer_settings *s, struct error *err)
{
    return model_weights_take(m, err);
}

static bool all_host_new(struct trainer *t, size_t each, const char *const what[STATE_N], struct error *err)
{
    for (int k = 0; k < STATE_N; k++)
        if ((k != STATE_MASTER || t->own_master) && !(t->host_state[k] = host_new(t->dev, each, what[k], err)))
            return false;
    return true;
}

static bool all_gather(const struct trainer *t, const struct shards_at *s, void *out, struct error *err)
{
    size_t n_dev = (size_t)entries(s, s->n_dev) * s->e, size = (size_t)entries(s, t->n_flat) * s->e;
    if (!out)
        return true;
    if (!mem_copy(t->dev, out, s->dev, MIN(n_dev, size), COPY_D2H, err) || !device_sync(t->dev, err))
        return false;
    if (n_dev < size)
        memcpy((char *)out + n_dev, s->host, size - n_dev);
    return true;
}

static size_t all_weight_bytes(const struct model *m, UNUSED const struct trainer_settings *s)
{
    size_t sampled = model_is_whole(m) && model_n_device(m) > 1 ? model_held_bytes(team_slice(m, 0)) : 0;    // a sampler's slices
    return (model_is_elsewhere(m) ? model_weight_bytes(m) : model_held_bytes(m)) - sampled;    // what is elsewhere will be whole
}

const struct keep_form keep_all = { .weights = &keep_all,
                                    .n_state = all_n_state,
                                    .weight_bytes = all_weight_bytes,
                                    .place = all_place,
                                    .n_run = all_n_run,
                                    .run = all_run,
                                    .host_new = all_host_new,
                                    .gather = all_gather };

/* ---- shards of masters and moments */
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

static int64_t shards_n_state(const struct model *m, const struct trainer_settings *s)
{
    return keep_most(m, s->n_rank);
}

static struct update_run shards_run(const struct trainer *t, int i)
{
    const struct trainer_parts *p = &t->p;
    return (
        struct update_run){ .flat = p->piece_at[i] + p->own_first[i], .n = p->own_n[i], .at = p->own_at[i], .grad = p->sum + p->own_at[i] };
}

static int shards_n_run(const struct trainer *t)
{
    return t->p.n_piece;
}

static bool shards_place(struct model *m, UNUSED const struct trainer_settings *s, struct error *err)
{
    return model_share(m, err) != NULL;
}

static bool shards_host_new(struct trainer *t, size_t each, UNUSED const char *const what[STATE_N], struct error *err)
{
    struct trainer_parts *p = &t->p;
    p->host_bytes = (size_t)(STATE_N - !t->own_master) * each;
    char *at = p->host = host_share_new(t->dev, p->host_bytes, "shards of masters and moments", &t->host_handle, err);
    if (!at)
        return false;
    p->host_handle = &t->host_handle;
    for (int k = 0; k < STATE_N; k++)
        if (k != STATE_MASTER || t->own_master) {
            t->host_state[k] = (float *)(void *)at;
            at += each;
        }
    return true;
}

#define KEEP_SHARDS                                                                                                                        \
    .shards = true, .n_state = shards_n_state, .n_run = shards_n_run, .run = shards_run, .host_new = shards_host_new,                      \
    .gather = shards_gather

const struct keep_form keep_shards = { KEEP_SHARDS, .weights = &keep_all, .weight_bytes = all_weight_bytes, .place = shards_place };

/* ---- and of the weights, which are laid out as the masters */
static bool weights_place(struct model *m, const struct trainer_settings *s, struct error *err)
{
    int n = model_n_piece(m);
    if (model_keeps_shards(m))
        return true;
    int64_t *table = calloc(3 * (size_t)n, sizeof *table), at = 0;
    if (!table)
        return error_set(err, ERR_NO_MEMORY, "no memory for a table of %d pieces", n);
    for (int p = 0; p < n; at += table[p], p++) {
        int64_t first;
        table[p] = collective_shard(model_piece(m, p, &first), s->n_rank, s->rank, &table[n + p]);
        table[2 * n + p] = at;
    }
    struct model_cut cut = { .n = table, .first = table + n, .at = table + 2 * n, .n_kept = keep_most(m, s->n_rank) };
    bool ok = model_keep(m, &cut, err);
    free(table);
    return ok;
}

static size_t weights_bytes(const struct model *m, const struct trainer_settings *s)
{
    return model_kept_bytes(m, keep_most(m, s->n_rank));
}

const struct keep_form keep_weights = { KEEP_SHARDS, .weights = &keep_weights, .weight_bytes = weights_bytes, .place = weights_place };

bool trainer_keeps_shards(const struct model *m, const struct trainer_settings *s)
{
    return s->n_rank > 1 && s->zero_stage >= 3 && !model_lora(m);
}

const struct keep_form *keep_form_of(const struct model *m, const struct trainer_settings *s)
{
    bool alone = s->n_rank <= 1 || s->zero_stage < 1;
    return alone ? &keep_all : trainer_keeps_shards(m, s) ? &keep_weights : &keep_shards;
}
