/* slices.c - a trainer whose model is cut over the devices of a team (model_sliced_new)
 *
 * Each slice has a trainer of its own for the gradient, masters and moments of its weights, in the order of the slice's table of tensors.
 * They lie on the slice's device; masters and moments may also lie in host memory that the device streams.
 *
 * AdamW looks at one element at a time, so the slices' new weights are the bytes of the whole's. The gradient's norm, the hash and what
 * checkpoints hold go by the whole flat order: pieces of it are put together on one device or another. Parts that all slices have are
 * updated alike in each of them, and the first slice's part counts. */
#include <stdlib.h>
#include <string.h>
#include "kernels/collective/collective.h"
#include "workers/engine/model/slice.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer_impl.h"

#define STAGE_N ((int64_t)1 << 23)    // elements that are put together at a time: copies of 32 MiB run a link at full speed

int64_t slices_stage_n(const struct model *m)
{
    int64_t n = model_n_flat(m);
    return MIN(STAGE_N, (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK * SUMSQ_BLOCK);
}

/* ---- life */
static bool slice_open(void *ctx, int rank, struct error *err)
{
    struct trainer *t = ctx, *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, ERR_NO_MEMORY, "no memory for a trainer");
    t->device[rank] = s;
    s->m = team_slice(t->m, rank);
    s->set = t->set;
    s->set.n_team = s->set.n_stage = 0;
    s->set.state_bytes[0] = t->set.state_bytes[rank];
    s->dev = model_device(s->m);
    s->n_flat = model_n_flat(s->m);
    s->own_master = t->own_master;
    s->of_team = true;
    s->form = &state_here;
    if (!pieces_make(s, err))
        return false;
    s->n_sumsq = rank == 0 ? t->n_sumsq : 1;    // the norm is the whole's
    if (!frozen_make(s, err) || !s->form->open(s, err) || !(s->clip = mem_new(s->dev, 2 * sizeof *s->clip, "gradient norm", err))
        || !(t->slice_stage[rank] = mem_new(s->dev, (size_t)slices_stage_n(t->m) * 4, "pieces of the flat order", err)))
        return false;
    t->slice_to[rank] = s->to;
    t->device_to[rank] = &t->slice_to[rank];
    return true;
}

struct placing {
    struct model *m;
    const struct trainer_settings *set;
};
static bool slice_place(void *ctx, int rank, struct error *err)
{
    const struct placing *p = ctx;
    return here_place(team_slice(p->m, rank), p->set, err);
}
/* First all slices get memory, then they are filled. */
static bool slices_place(struct model *m, const struct trainer_settings *s, struct error *err)
{
    return model_team_call(m, slice_place, &(struct placing){ m, s }, err) && model_weights_take(m, err);
}

static bool slices_open(struct trainer *t, struct error *err)
{
    // 8-bit moments have a scale per block of the flat order: a stage has its layers' blocks as the whole has them
    bool optimizer = t->set.optimizer == OPTIMIZER_ADAMW
                     || (t->set.optimizer == OPTIMIZER_ADAMW_8BIT && model_n_stage(t->m) == model_n_device(t->m));
    if (!optimizer)
        return error_set(err, ERR_UNSUPPORTED, "a model that is cut over %d devices is trained with AdamW", model_n_device(t->m));
    BUG_IF(t->set.scratch || (t->ref && !model_is_sliced(t->ref)), "borrowed scratch or a whole reference with a model that is cut");
    t->n_device = model_n_device(t->m);
    t->to.slice = t->slice_to;
    if (!model_team_call(t->m, slice_open, t, err))
        return false;
    t->p.norm_part = t->device[0]->p.norm_part;
    return true;
}

static void slices_close(struct trainer *t)
{
    t->p.norm_part = NULL;    // the first slice's
    for (int q = 0; q < t->n_device; q++) {
        struct trainer *s = t->device[q];
        if (!s)
            continue;
        mem_free(s->dev, t->slice_stage[q]);
        mem_free(s->dev, s->clip);
        update_release(s);
        free(s->frozen);
        free(s);
    }
}

/* ---- pieces of the whole flat order on one device */
struct gather {
    const struct trainer *t;
    const char *of[SUM_PARTS_MAX];    // what is gathered: every slice's flat buffer,
    int64_t skip[SUM_PARTS_MAX];      // from this element of it on
    size_t e;                         // bytes of an element
    struct device *dev;               // that puts it together,
    char *to;                         // here:
    int64_t from, end;                // these elements
    int rank;                         // whose blocks are visited
};

/* `rows` rows of a block from row i on, of each the columns [c0, c1). */
static bool rows_put(const struct gather *g, const struct slice_block *b, int64_t i, int64_t rows, int64_t c0, int64_t c1,
                     struct error *err)
{
    int64_t slice = b->to + i * b->n_col + c0, whole = b->from + i * b->ld + c0 - g->from;
    return rows <= 0 || c0 >= c1
           || OP(g->dev, err, rows_copy, .y = g->to + (size_t)whole * g->e, .x = g->of[g->rank] + (size_t)(slice - g->skip[g->rank]) * g->e,
                 .n = rows, .row_bytes = (size_t)(c1 - c0) * g->e, .ldy_bytes = (size_t)b->ld * g->e, .ldx_bytes = (size_t)b->n_col * g->e);
}

/* What a block has of the elements wanted: a part of a row, whole rows, a part of a row. */
static bool block_put(const struct gather *g, struct slice_block b, struct error *err)
{
    if (b.n_col == b.ld)    // neighbours on both sides
        b = (struct slice_block){ .n_row = 1, .n_col = b.n_row * b.n_col, .ld = b.n_row * b.n_col, .from = b.from, .to = b.to };
    int64_t first = g->from > b.from ? (g->from - b.from) / b.ld : 0,
            last = g->end > b.from ? MIN(b.n_row, (g->end - b.from + b.ld - 1) / b.ld) : 0;
    if (first >= last)
        return true;
    int64_t at = b.from + first * b.ld;
    if (at < g->from) {
        if (!rows_put(g, &b, first, 1, g->from - at, MIN(b.n_col, g->end - at), err))
            return false;
        first++;
    }
    at = b.from + (last - 1) * b.ld;
    if (first < last && at + b.n_col > g->end) {
        if (!rows_put(g, &b, last - 1, 1, 0, g->end - at, err))
            return false;
        last--;
    }
    return rows_put(g, &b, first, last - first, 0, b.n_col, err);
}

/* Put elements [from, end) together; gaps hold 0. */
static bool gather_run(struct gather *g, struct error *err)
{
    const struct model *m = g->t->m;
    struct slice_block block[SLICE_BLOCK_MAX];
    if (!OP(g->dev, err, mem_fill, .y = g->to, .size_bytes = (size_t)(g->end - g->from) * g->e))
        return false;
    for (int64_t i = 0; i < model_n_tensor(m); i++) {
        const struct tensor *x = model_tensor(m, i);
        if (x->offset >= g->end || x->offset + x->n_elem <= g->from)
            continue;
        for (g->rank = 0; g->rank < g->t->n_device; g->rank++) {
            const struct model *slice = team_slice(m, g->rank);
            int n = slice_blocks(m, slice, i, g->t->n_device, g->rank, block);
            for (int k = 0; k < n; k++)
                if (slice_block_counts(m, slice, i, &block[k], g->rank) && !block_put(g, block[k], err))
                    return false;
        }
    }
    return true;
}

/* ---- the update */
static bool slice_grad_clear(void *ctx, int rank, struct error *err)
{
    struct trainer *t = ctx;
    return here_grad_clear(t->device[rank], err);
}
static bool slices_grad_clear(struct trainer *t, struct error *err)
{
    return model_team_call(t->m, slice_grad_clear, t, err);
}

static bool slice_freeze(void *ctx, int rank, struct error *err)
{
    struct trainer *t = ctx;
    return trainer_freeze(t->device[rank], err);
}
static bool slices_freeze(struct trainer *t, struct error *err)
{
    return model_team_call(t->m, slice_freeze, t, err);
}

struct norming {
    struct trainer *t;
    int piece;
};

/* Ranks that do not reach each other's memory: each has its part in what any of them puts together. */
static bool are_apart(const struct trainer *t)
{
    return t->device[0]->reach.collect != NULL;
}

/* Several ranks: gather the sum of a piece of the slice from the shards of all ranks. It goes where this rank's gradient was, which nobody
 * needs any more. */
static bool slice_collect(void *ctx, int rank, struct error *err)
{
    const struct norming *of = ctx;
    struct trainer *s = of->t->device[rank];
    const struct trainer_parts *p = &s->p;
    int i = of->piece;
    float *to = p->n_slot ? s->grad : s->grad + p->piece_at[i];
    of->t->slice_piece[rank] = to;
    if (s->reach.collect)
        return s->reach.collect(s->reach.ctx, i, trainer_norm_rank(of->t, i), to, err);
    for (int q = 0; q < s->set.n_rank; q++) {
        int64_t first, unused, at = 0, n = collective_shard(p->piece_n[i], s->set.n_rank, q, &first);
        for (int k = 0; k < i; k++)
            at += collective_shard(p->piece_n[k], s->set.n_rank, q, &unused);
        const float *sum = s->reach.peer(s->reach.ctx, p->sum, q);
        if (n > 0 && !mem_copy(s->dev, to + first, sum + at, (size_t)n * 4, COPY_D2D, err))
            return false;
    }
    return true;
}

/* Sums of squares of a piece's blocks in the whole flat order, of what lies at slice_piece; the devices take stretches in turn. */
static bool slice_norm(void *ctx, int rank, struct error *err)
{
    const struct norming *of = ctx;
    struct trainer *t = of->t;
    const struct trainer_parts *p = &t->p;
    struct gather g = { .t = t, .e = 4, .dev = t->device[rank]->dev, .to = t->slice_stage[rank] };
    int64_t stage = slices_stage_n(t->m), k = 0;
    for (int q = 0; q < t->n_device; q++) {
        g.of[q] = (const char *)t->slice_piece[q];
        g.skip[q] = t->device[q]->p.piece_at[of->piece];
    }
    for (int64_t at = 0; at < p->piece_n[of->piece]; at += stage, k++) {
        g.from = p->piece_at[of->piece] + at;
        g.end = p->piece_at[of->piece] + MIN(p->piece_n[of->piece], at + stage);
        if ((k + of->piece) % t->n_device == rank
            && (!gather_run(&g, err)
                || !OP(g.dev, err, sumsq, .part = p->norm_part + p->part_at[of->piece] + at / SUMSQ_BLOCK, .x = (float *)(void *)g.to,
                       .n = g.end - g.from)))
            return false;
    }
    return true;
}

bool slices_norm(struct trainer *t, bool own, struct error *err)
{
    for (int i = 0; i < t->p.n_piece; i++) {
        struct norming of = { t, i };
        bool has = !own || trainer_norm_rank(t, i) == t->set.rank;
        if (!has && !are_apart(t))
            continue;
        for (int q = 0; q < t->n_device; q++)
            t->slice_piece[q] = t->device[q]->grad + t->device[q]->p.piece_at[i];
        if ((own && !model_team_call(t->m, slice_collect, &of, err)) || (has && !model_team_call(t->m, slice_norm, &of, err)))
            return false;
    }
    return true;
}

static bool slices_clip_take(struct trainer *t, int q, struct error *err)
{
    struct trainer *s = t->device[q];
    s->adam_step = t->adam_step;
    return mem_copy(s->dev, s->clip, t->clip, 2 * sizeof *s->clip, COPY_D2D, err);
}

struct apply {
    struct trainer *t;
    const struct trainer_hyper *h;
};
static bool slice_run(void *ctx, int rank, struct error *err)
{
    const struct apply *a = ctx;
    return slices_clip_take(a->t, rank, err) && trainer_run_apply(a->t->device[rank], a->h, 0, err);
}
static bool slices_run(struct trainer *t, const struct trainer_hyper *h, struct error *err)
{
    return model_team_call(t->m, slice_run, &(struct apply){ t, h }, err);
}

static bool slice_changed(void *ctx, int rank, struct error *err)
{
    struct trainer *t = ctx;
    struct trainer *s = t->device[rank];
    if (!model_weights_changed(s->m, err) || (s->stage_used && !device_sync(s->dev, err)))
        return false;
    s->stage_used = false;
    return true;
}
static bool slices_changed(struct trainer *t, struct error *err)
{
    return model_team_call(t->m, slice_changed, t, err);
}

/* ---- what checkpoints hold */
/* A slice's flat buffer in host memory, and the whole's. */
struct host_flat {
    const struct trainer *t;
    struct model *m;
    enum trainer_state_kind kind;
    char *whole, *slice;
    size_t e;
    bool in;    // from the whole to the slice
    int rank;
};
static void blocks_move(const struct host_flat *f)
{
    struct slice_block block[SLICE_BLOCK_MAX];
    for (int64_t t = 0; t < model_n_tensor(f->m); t++) {
        int n = slice_blocks(f->m, team_slice(f->m, f->rank), t, model_n_device(f->m), f->rank, block);
        for (int k = 0; k < n; k++)
            for (int64_t i = 0; i < block[k].n_row; i++) {
                char *slice = f->slice + (size_t)(block[k].to + i * block[k].n_col) * f->e,
                     *whole = f->whole + (size_t)(block[k].from + i * block[k].ld) * f->e;
                memcpy(f->in ? slice : whole, f->in ? whole : slice, (size_t)block[k].n_col * f->e);
            }
    }
}

typedef bool host_move(const struct host_flat *f, struct error *err);

/* Move what `move` moves between a slice and its host buffer, and that to or from the whole's; one slice after the other, since each
 * needs memory of its size. A rank that only brings its shards has neither buffer. */
static bool host_flat_run(const struct host_flat *all, host_move *move, struct error *err)
{
    bool ok = true;
    if (!all->in && all->whole)
        memset(all->whole, 0, (size_t)model_n_flat(all->m) * all->e);
    for (int q = 0; q < model_n_device(all->m) && ok; q++) {
        struct host_flat f = *all;
        f.rank = q;
        ok = !f.whole || (f.slice = calloc((size_t)model_n_flat(team_slice(f.m, q)), f.e)) != NULL
             || error_set(err, ERR_NO_MEMORY, "no memory for the slice of device %d of a team", q);
        if (ok && f.in)
            blocks_move(&f);
        ok = ok && move(&f, err);
        if (ok && !f.in && f.whole)
            blocks_move(&f);
        free(f.slice);
    }
    struct error ignored;
    return device_enter(model_device(all->m), ok ? err : &ignored) && ok;
}

static bool grad_move(const struct host_flat *f, struct error *err)
{
    const struct trainer *s = f->t->device[f->rank];
    return device_enter(s->dev, err) && trainer_grad_get(s, (float *)(void *)f->slice, err);
}
static bool slices_grad_get(const struct trainer *t, float *out, struct error *err)
{
    return host_flat_run(&(struct host_flat){ .t = t, .m = t->m, .whole = (char *)out, .e = 4 }, grad_move, err);
}

static bool state_move(const struct host_flat *f, struct error *err)
{
    struct trainer *s = f->t->device[f->rank];
    float *at = (float *)(void *)f->slice;
    return device_enter(s->dev, err) && (f->in ? trainer_state_set(s, f->kind, at, err) : trainer_state_get(s, f->kind, at, err));
}
static bool slices_state_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err)
{
    return host_flat_run(&(struct host_flat){ .t = t, .m = t->m, .kind = kind, .whole = (char *)out, .e = 4 }, state_move, err);
}
static bool slices_state_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err)
{
    return host_flat_run(&(struct host_flat){ .t = t, .m = t->m, .kind = kind, .whole = (char *)in, .e = 4, .in = true }, state_move, err);
}

static bool weights_move(const struct host_flat *f, struct error *err)
{
    struct model *s = team_slice(f->m, f->rank);
    struct device *dev = model_device(s);
    size_t bytes;
    if (model_keeps_shards(s))    // those that are trained
        return device_enter(dev, err) && trainer_weights_get(f->t->device[f->rank], f->slice, err);
    char *weights = model_weights(s, &bytes);
    if (!f->slice)
        return true;
    return device_enter(dev, err)
           && mem_copy(dev, f->in ? weights : f->slice, f->in ? f->slice : weights, bytes, f->in ? COPY_H2D : COPY_D2H, err)
           && (!f->in || model_weights_changed(s, err)) && device_sync(dev, err);
}
static bool slices_weights_get(const struct trainer *t, struct model *m, void *out, struct error *err)
{
    return host_flat_run(&(struct host_flat){ .t = t, .m = m, .whole = out, .e = dtype_size(model_dtype(m)) }, weights_move, err);
}
static bool slices_weights_set(const struct trainer *t, struct model *m, const void *in, struct error *err)
{
    return host_flat_run(&(struct host_flat){ .t = t, .m = m, .whole = (char *)in, .e = dtype_size(model_dtype(m)), .in = true },
                         weights_move, err);
}

static bool slice_reset(void *ctx, int rank, struct error *err)
{
    struct trainer *t = ctx;
    return trainer_adam_reset(t->device[rank], err);
}
static bool slices_adam_reset(struct trainer *t, struct error *err)
{
    return model_team_call(t->m, slice_reset, t, err);
}

/* ---- the hash */
/* Add that of elements [first, end) of the flat order, which g's sources have. */
static bool hash_add(struct gather *g, int64_t first, int64_t end, uint64_t *hash, struct error *err)
{
    const struct trainer *t = g->t;
    int64_t stage = slices_stage_n(t->m);
    for (g->from = first; g->from < end; g->from += stage) {
        uint64_t part;
        g->end = MIN(end, g->from + stage);
        if (!gather_run(g, err)
            || !OP(t->dev, err, mem_hash, .hash = t->hash, .x = g->to, .size_bytes = (size_t)(g->end - g->from) * g->e,
                   .first = g->from * (int64_t)g->e / 8)    // a whole word, since pieces and what is put together begin with one
            || !mem_copy(t->dev, &part, t->hash, sizeof part, COPY_D2H, err) || !device_sync(t->dev, err))
            return false;
        *hash += part;
    }
    return true;
}

/* Where each device has shards of its slice: a piece of it, whole for a moment. */
struct piecing {
    const struct trainer *t;
    struct gather *g;
    int piece;
};
static bool slice_whole(void *ctx, int rank, struct error *err)
{
    const struct piecing *of = ctx;
    const struct trainer *s = of->t->device[rank];
    of->g->skip[rank] = s->p.piece_at[of->piece];
    return (of->g->of[rank] = model_piece_whole(s->m, of->piece, err)) != NULL;
}

static bool slice_reach(void *ctx, int rank, struct error *err)
{
    const struct trainer_reach *r = &((const struct piecing *)ctx)->t->device[rank]->reach;
    return r->begin ? r->begin(r->ctx, err) : error_set(err, ERR_CLOSED, "the trainers have parted, and each has its shard only");
}

static bool slice_leave(void *ctx, int rank, struct error *err)
{
    const struct trainer *s = ((const struct piecing *)ctx)->t->device[rank];
    bool ok = device_sync(s->dev, err);
    if (s->reach.end)
        s->reach.end(s->reach.ctx);
    return ok;
}

/* Each rank hashes some pieces, made of all ranks' shards; ranks that are apart all bring theirs. The sum over the ranks is the hash of the
 * whole. */
static bool pieces_hash(struct gather *g, uint64_t *hash, struct error *err)
{
    const struct trainer *t = g->t;
    const struct trainer_parts *p = &t->p;
    struct piecing of = { .t = t, .g = g };
    struct error ignored;
    bool ok = model_team_call(t->m, slice_reach, &of, err);
    for (; of.piece < p->n_piece && ok; of.piece++) {
        int64_t first = p->piece_at[of.piece];
        bool has = trainer_norm_rank(t, of.piece) == t->set.rank;
        if (has || are_apart(t))
            ok = model_team_call(t->m, slice_whole, &of, err) && (!has || hash_add(g, first, first + p->piece_n[of.piece], hash, err));
    }
    return model_team_call(t->m, slice_leave, &of, ok ? err : &ignored) && ok;
}

static bool slices_hash(const struct trainer *t, uint64_t *hash, struct error *err)
{
    struct gather g = { .t = t, .e = dtype_size(model_dtype(t->m)), .dev = t->dev, .to = t->slice_stage[0] };
    size_t bytes;
    *hash = 0;
    if (model_keeps_shards(team_slice(t->m, 0)))
        return pieces_hash(&g, hash, err);
    for (int q = 0; q < t->n_device; q++)
        g.of[q] = model_weights(team_slice(t->m, q), &bytes);
    return hash_add(&g, 0, model_n_flat(t->m), hash, err);
}

/* ---- the reference */
struct blending {
    struct trainer *t;
    double share;
};
/* A slice's trainer blends as that of a whole model does. */
static bool slice_blend(void *ctx, int rank, struct error *err)
{
    const struct blending *b = ctx;
    return reference_blend(b->t->device[rank], team_slice(b->t->ref, rank), b->share, err);
}
static bool slices_blend(struct trainer *t, double share, struct error *err)
{
    return model_team_call(t->m, slice_blend, &(struct blending){ t, share }, err);
}

static bool slices_norm_all(struct trainer *t, struct error *err)
{
    return slices_norm(t, false, err);
}

const struct state_form state_sliced = { .place = slices_place,
                                         .open = slices_open,
                                         .close = slices_close,
                                         .grad_clear = slices_grad_clear,
                                         .grad_get = slices_grad_get,
                                         .freeze = slices_freeze,
                                         .norm = slices_norm_all,
                                         .clip_take = slices_clip_take,
                                         .run = slices_run,
                                         .changed = slices_changed,
                                         .get = slices_state_get,
                                         .set = slices_state_set,
                                         .adam_reset = slices_adam_reset,
                                         .hash = slices_hash,
                                         .weights_get = slices_weights_get,
                                         .weights_set = slices_weights_set,
                                         .blend = slices_blend };
