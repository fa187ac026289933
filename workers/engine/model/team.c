/* team.c - the ranks of a team: their slices of the weights, and their threads
 *
 * A call's life: team_call clears what the last one left, raises `epoch` and wakes the threads; each does its share and lowers `busy`; the
 * last wakes the caller. During a call `meeting` counts the ranks that have come to a meeting; the last one resets it and raises
 * `round`. While a graph is recorded, one rank at a time asks its device for work (`turn`), since what is recorded is one graph on all
 * devices; a rank gives the turn up while it waits. A rank that fails sets `failed`, if it is the first, and raises `round`, so that nobody
 * waits for it. The waits have no limit of their own: ranks are threads of this process, and each of them arrives or fails. But a rank may
 * wait in another process's hands, which waits for the one that has failed: so `tell` is called before the call ends. */
#include <inttypes.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base/thread.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/slice.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team_impl.h"

#define SPIN_ROUNDS 1000    // some 10 us: longer than ranks of equal work are apart
#define IDLE_NS 200000      // between looks at other work, while a rank waits for the others

struct team {
    int n;
    struct team_rank rank[TEAM_MAX];
    pthread_t thread[TEAM_MAX];
    struct mark *begin;    // of the first device: what the caller asked it for before the call
    team_fn *fn;
    void *ctx;
    bool stop;      // with epoch
    int n_stage;    // the ranks are stages of a pipeline (stages.h), each of which has some of the layers; 0: they are devices
    int each;       // devices of a rank: 1, or those of a stage
    atomic_uint epoch, busy, meeting, round;
    atomic_uint done[TEAM_MAX];    // of each rank, in a call: team_done
    atomic_int failed;             // 1 + the rank that failed first, in a call; 0: none has
    const struct team *above;      // that a team of a stage's devices belongs to; NULL: it belongs to none
    model_failed_fn *tell;         // model_team_tell, for rank q with device tell_first + q each
    void *tell_ctx;
    int tell_first;
    bool recording;          // with epoch
    pthread_mutex_t turn;    // guards: the recording
};

/* ---- threads */
static void wait_while(atomic_uint *word, unsigned seen, const struct timespec *at_most)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen)
            return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    do
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, at_most, NULL, 0);
    while (!at_most && atomic_load_explicit(word, memory_order_acquire) == seen);
}

static void raise_and_wake(atomic_uint *word)
{
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void turn_take(struct team *t)
{
    if (t->recording)
        pthread_mutex_lock(&t->turn);
}

static void turn_give(struct team *t)
{
    if (t->recording)
        pthread_mutex_unlock(&t->turn);
}

/* Others fail after it, since it has; and so do those of other stages. */
static void share_failed(struct team *t, int q)
{
    int none = 0;
    bool first = atomic_compare_exchange_strong(&t->failed, &none, 1 + q);
    if (first && t->tell && !(t->above && atomic_load(&t->above->failed)))
        t->tell(t->tell_ctx, t->tell_first + q * t->each, &t->rank[q].err);
    raise_and_wake(&t->round);
    for (int other = 0; other < t->n; other++)
        raise_and_wake(&t->done[other]);
}

/* One rank's share, with the order among devices around it. */
static void share_do(struct team *t, int q)
{
    struct team_rank *r = &t->rank[q];
    turn_take(t);
    if (q > 0)
        graph_join(r->dev, t->recording);
    bool ok = (q == 0 || (device_enter(r->dev, &r->err) && device_after(r->dev, t->begin, &r->err))) && t->fn(t->ctx, q, &r->err)
              && mark_set(r->dev, r->end, &r->err);
    if (!ok)
        share_failed(t, q);
    if (q > 0)
        graph_join(r->dev, false);
    turn_give(t);
}

static void *rank_main(void *arg)
{
    struct team_rank *r = arg;
    struct team *t = r->team;
    for (unsigned seen = 0;; seen++) {
        wait_while(&t->epoch, seen, NULL);
        if (t->stop)
            return NULL;
        share_do(t, r->index);
        if (atomic_fetch_sub(&t->busy, 1) == 1)
            syscall(SYS_futex, &t->busy, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

bool team_call(struct team *t, team_fn *fn, void *ctx, struct error *err)
{
    if (!mark_set(t->rank[0].dev, t->begin, err))
        return false;
    t->recording = t->rank[0].dev->recording;
    t->fn = fn;
    t->ctx = ctx;
    atomic_store(&t->failed, 0);
    atomic_store(&t->meeting, 0);
    for (int q = 0; q < t->n; q++)
        atomic_store(&t->done[q], 0);
    atomic_store(&t->busy, (unsigned)t->n - 1);
    for (int q = 0; q < t->n; q++)
        t->rank[q].err = (struct error){ 0 };
    raise_and_wake(&t->epoch);
    share_do(t, 0);
    for (unsigned left; (left = atomic_load(&t->busy)) > 0;)
        wait_while(&t->busy, left, NULL);
    int why = atomic_load(&t->failed);
    if (why > 0) {
        *err = t->rank[why - 1].err;
        return false;
    }
    for (int q = 1; q < t->n; q++)
        if (!device_after(t->rank[0].dev, t->rank[q].end, err))
            return false;
    return true;
}

/* Until the word has changed, with other work meanwhile. */
static bool wait_with(atomic_uint *word, unsigned seen, bool (*idle)(void *ctx, struct error *err), void *ctx, struct error *err)
{
    const struct timespec moment = { .tv_nsec = IDLE_NS };
    wait_while(word, seen, idle ? &moment : NULL);
    while (idle && atomic_load(word) == seen) {
        if (!idle(ctx, err))
            return false;
        wait_while(word, seen, &moment);
    }
    return true;
}

bool team_meet(struct team *t, bool (*idle)(void *ctx, struct error *err), void *ctx, struct error *err)
{
    unsigned seen = atomic_load(&t->round);
    bool ok = true;
    if (!atomic_load(&t->failed)) {
        if (atomic_fetch_add(&t->meeting, 1) == (unsigned)t->n - 1) {
            atomic_store(&t->meeting, 0);
            raise_and_wake(&t->round);
        } else {
            turn_give(t);
            ok = wait_with(&t->round, seen, idle, ctx, err);
            turn_take(t);
        }
    }
    if (!ok || !atomic_load(&t->failed))
        return ok;
    return error_set(err, ERR_CLOSED, "another device of the team has failed");
}

void team_done(struct team *t, int rank)
{
    raise_and_wake(&t->done[rank]);
}

bool team_await(struct team *t, int rank, int64_t n, bool (*idle)(void *ctx, struct error *err), void *ctx, struct error *err)
{
    for (unsigned seen; !atomic_load(&t->failed) && (seen = atomic_load(&t->done[rank])) < (unsigned)n;)
        if (!wait_with(&t->done[rank], seen, idle, ctx, err))
            return false;
    return !atomic_load(&t->failed) || error_set(err, ERR_CLOSED, "another device of the team has failed");
}

void model_team_tell(struct model *m, model_failed_fn *fn, void *ctx)
{
    struct team *t = m->team;
    t->tell = fn;
    t->tell_ctx = ctx;
    for (int q = 0; q < t->n && t->each > 1; q++) {
        struct team *of = t->rank[q].slice->team;
        of->above = t;
        of->tell = fn;
        of->tell_ctx = ctx;
        of->tell_first = q * t->each;
    }
}

int team_size(const struct team *t)
{
    return t ? t->n : 0;
}

struct team_rank *team_rank(struct team *t, int rank)
{
    return &t->rank[rank];
}

int model_n_device(const struct model *m)
{
    return m->n_device;
}

bool model_is_sliced(const struct model *m)
{
    return m->form->sliced;
}

bool model_is_staged(const struct model *m)
{
    return model_n_stage(m) > 0;
}

int model_n_stage(const struct model *m)
{
    return m->team ? m->team->n_stage : 0;
}

/* A call of all devices: of each stage, or of each of its devices. */
struct all_call {
    struct model *m;
    bool (*fn)(void *ctx, int rank, struct error *err);
    void *ctx;
};
struct stage_call {
    const struct all_call *all;
    int first;    // device of the stage
};
static bool device_call(void *ctx, int rank, struct error *err)
{
    const struct stage_call *c = ctx;
    return c->all->fn(c->all->ctx, c->first + rank, err);
}
static bool stage_call(void *ctx, int stage, struct error *err)
{
    const struct all_call *all = ctx;
    struct team *t = all->m->team->rank[stage].slice->team;
    return t ? team_call(t, device_call, &(struct stage_call){ all, stage * t->n }, err) : all->fn(all->ctx, stage, err);
}

bool model_team_call(struct model *m, bool (*fn)(void *ctx, int rank, struct error *err), void *ctx, struct error *err)
{
    return team_call(m->team, stage_call, &(struct all_call){ m, fn, ctx }, err);
}

/* Device q of all. */
static struct team_rank *rank_of(const struct model *m, int q)
{
    int n = m->team->each;
    struct team_rank *r = &m->team->rank[q / n];
    return n == 1 ? r : &r->slice->team->rank[q % n];
}

struct model *team_slice(const struct model *m, int q)
{
    return rank_of(m, q)->slice;
}

void team_free(struct team *t)
{
    if (!t)
        return;
    t->stop = true;
    raise_and_wake(&t->epoch);
    for (int q = 0; q < t->n; q++) {
        struct team_rank *r = &t->rank[q];
        if (r->started)
            pthread_join(t->thread[q], NULL);
        if (r->end)
            mark_free(r->dev, r->end);
        model_free(r->slice);
    }
    if (t->begin)
        mark_free(t->rank[0].dev, t->begin);
    pthread_mutex_destroy(&t->turn);
    free(t);
}

/* ---- sizes */
static bool heads_split(const struct model_config *c, int n)
{
    return c->n_head % n == 0 && (c->n_kv_head % n == 0 || n % c->n_kv_head == 0);
}

/* Slices of gate and up together have a multiple of 8 rows, as whole ones have: GPUs choose how to multiply by that. */
static bool team_fits(const struct model_config *c, int n, int parts)
{
    return n >= 1 && n <= TEAM_MAX && (n & (n - 1)) == 0 && (parts == 0 ? n == 1 : parts % n == 0) && heads_split(c, n)
           && c->d_ff % (4 * n) == 0 && slice_vocab_from(c->vocab, n, n - 1) < c->vocab;
}

static bool parts_fit(const struct model_config *c, int parts, struct error *err)
{
    return parts <= 1 || (c->n_head * c->d_head % parts == 0 && c->d_ff % parts == 0)
           || error_set(err, ERR_UNSUPPORTED,
                        "sums over %" PRId64 " columns of heads and %" PRId64 " of the MLP cannot be cut in %d equal parts",
                        c->n_head * c->d_head, c->d_ff, parts);
}

bool team_check(const struct model_config *c, int n, int parts, struct error *err)
{
    int best = MIN(n, TEAM_MAX);
    if (!parts_fit(c, parts, err))
        return false;
    if (n == 1)
        return true;
    if (!config_stays_whole(c, "cut over devices (tensor_parallel_size, producer_tensor_parallel_size)", err))
        return false;
    if (c->qk_norm_wide)
        return error_set(
            err, ERR_UNSUPPORTED,
            "this model's norms over all heads need all of them on one device: a tensor-parallel size of %d is not possible, 1 is", n);
    while (best > 1 && !team_fits(c, best, parts))
        best--;
    return best == n
           || error_set(err, ERR_UNSUPPORTED,
                        "%" PRId64 " attention heads, %" PRId64 " heads of keys and values, %" PRId64 " columns of the MLP, and sums in %d "
                        "parts cannot be cut over %d devices; %d %s possible",
                        c->n_head, c->n_kv_head, c->d_ff, parts, n, best, best == 1 ? "device is" : "devices are");
}

/* The weight of a norm of each head has one gradient, a sum over heads. */
static bool norms_split(const struct model_config *c, int parts)
{
    return !c->qk_norm || (c->n_head % parts == 0 && c->n_kv_head % parts == 0);
}

/* Training cuts sums over the outputs of products, too. */
static bool team_trains(const struct model_config *c, int n, int parts)
{
    return team_fits(c, n, parts) && c->n_kv_head % n == 0 && c->n_head * c->d_head % (8 * parts) == 0
           && c->n_kv_head * c->d_head % (8 * parts) == 0 && c->d_ff % (8 * parts) == 0 && norms_split(c, parts);
}

bool team_train_check(const struct model_config *c, int n, int parts, struct error *err)
{
    int best = MIN(n, TEAM_MAX);
    if (!parts_fit(c, parts, err))
        return false;
    if (n == 1)
        return true;
    if (!config_stays_whole(c, "cut over devices to be trained (tensor_parallel_size)", err))
        return false;
    if (c->qk_norm_wide || !norms_split(c, parts))
        return error_set(err, ERR_UNSUPPORTED,
                         "this model's norms of queries and keys add up over %" PRId64 " attention heads and %" PRId64
                         " heads of keys and values, which %d parts of sums %s: it cannot be trained on %d devices as a team; 1 device is "
                         "possible",
                         c->n_head, c->n_kv_head, parts, c->qk_norm_wide ? "do not follow" : "cut through", n);
    while (best > 1 && !team_trains(c, best, parts))
        best--;
    return best == n
           || error_set(
               err, ERR_UNSUPPORTED,
               "%" PRId64 " attention heads, %" PRId64 " heads of keys and values, each of %" PRId64 ", %" PRId64
               " columns of the MLP, and sums in %d parts of a multiple of 8 columns cannot be cut over %d devices to be trained; %d "
               "%s possible",
               c->n_head, c->n_kv_head, c->d_head, c->d_ff, parts, n, best, best == 1 ? "device is" : "devices are");
}

void slice_mark(struct model *s, const struct model *m, int n, int q)
{
    s->parts = m->parts;
    s->n_slice = n;
    s->vocab_first = slice_vocab_from(m->c.vocab, n, q);
    s->vocab_all = m->c.vocab;
    s->for_bwd = m->for_bwd && model_is_sliced(m);
}

int64_t model_vocab_part(const struct model *m)
{
    return slice_vocab_each(m->vocab_all, MAX(m->parts, 1));
}

size_t model_slice_bytes(const struct model *m, int n)
{
    struct error ignored;
    struct model *s = model_slice_shape(m, n, &ignored);
    size_t size = s ? (size_t)s->flat.n_flat * dtype_size(m->dtype) : 0;
    model_free(s);
    return size;
}

struct model *model_slice_shape(const struct model *m, int n, struct error *err)
{
    struct model_config c = slice_config(&m->c, n, 0);
    struct model *s = model_part_table(m, &c, m->dev, err);
    if (s)
        slice_mark(s, m, n, 0);
    return s;
}

struct model *model_sliced_shape(const struct model *m, int n, struct error *err)
{
    struct model *s = model_shape_like(m, err);
    if (s) {
        s->n_device = n;
        s->cut_shape = true;
        s->parts = n > 1 ? MAX(s->parts, n) : s->parts;
        weights_form_set(s);
    }
    return s;
}

struct model *model_stage_shape(const struct model *m, int n, int q, int n_slice, struct error *err)
{
    struct model *s = model_stage_table(m, m->dev, n, q, err);
    if (s && n_slice > 1) {
        s->n_device = n_slice;
        s->cut_shape = true;
        s->parts = MAX(s->parts, n_slice);
        weights_form_set(s);
    }
    return s;
}

/* ---- weights */
/* Fill a rank's block of tensor t, at `to`, from the whole one, at `from` in memory that the rank's device reaches. */
static bool block_copy(struct team_rank *r, const struct slice_block *b, char *to, const char *from, struct error *err)
{
    size_t e = dtype_size(r->slice->dtype), row = (size_t)b->n_col * e;
    bool one = b->n_col == b->ld;    // neighbours on both sides
    return OP(r->dev, err, rows_copy, .y = to, .x = from + (size_t)(b->row * b->ld + b->col) * e, .n = one ? 1 : b->n_row,
              .row_bytes = one ? (size_t)b->n_row * row : row, .ldy_bytes = one ? (size_t)b->n_row * row : row,
              .ldx_bytes = one ? (size_t)b->n_row * row : (size_t)b->ld * e);
}

/* A piece of src, tensors [first, end), whose values are in its device's memory. */
struct filling {
    struct model *m;
    const struct model *src;
    int piece;
    int64_t first, end;
};
static bool tensors_fill(void *ctx, int rank, struct error *err)
{
    const struct filling *f = ctx;
    struct team_rank *r = rank_of(f->m, rank);
    struct slice_block block[SLICE_BLOCK_MAX];
    int64_t base;
    char *to = piece_room(r->slice, f->piece, &base);
    for (int64_t t = f->first; t < f->end; t++) {
        int n = slice_blocks(f->m, r->slice, t, model_n_device(f->m), rank, block);
        for (int b = 0; b < n; b++)
            if (!block_copy(r, &block[b], to + (size_t)(block[b].to - base) * dtype_size(r->slice->dtype),
                            model_at(f->src, f->src->flat.tensor[t].offset), err))
                return false;
    }
    return piece_filled(r->slice, f->piece, err);
}

static bool slice_changed(void *ctx, int rank, struct error *err)
{
    struct model *s = team_slice(ctx, rank);
    return model_weights_changed(s, err);
}

bool team_fill(struct model *m, const struct model *src, struct error *err)
{
    struct filling f = { .m = m, .src = src };
    // kept weights, or those that are elsewhere, are whole a piece at a time
    for (f.piece = 0; f.piece < model_n_piece(src); f.piece++) {
        piece_tensors(src, f.piece, f.piece + 1, &f.first, &f.end);
        if (!model_bind((struct model *)src, f.piece, err) || !model_team_call(m, tensors_fill, &f, err))
            return false;
    }
    return team_changed(m, err);
}

static bool slice_room(void *ctx, int rank, struct error *err)
{
    struct model *s = team_slice(ctx, rank);
    return s->weights || s->kept || weights_room(s, false, err);
}

bool team_room(struct model *m, struct error *err)
{
    return model_team_call(m, slice_room, m, err);
}

static bool slice_share(void *ctx, int rank, struct error *err)
{
    return model_share(team_slice(ctx, rank), err) != NULL;
}

bool model_slices_share(struct model *m, struct error *err)
{
    return model_team_call(m, slice_share, m, err);
}

bool team_changed(struct model *m, struct error *err)
{
    return model_team_call(m, slice_changed, m, err);
}

/* Copy a rank's blocks to whole weights or to other slices; those that all ranks have alike only from the first. */
struct taking {
    struct model *m, *into;
};
/* What device q of `into` has of a block. */
static bool block_recut(const struct taking *k, const struct team_rank *r, int64_t t, const struct slice_block *b, int q, struct error *err)
{
    struct slice_block block[SLICE_BLOCK_MAX];
    const struct model *to = team_slice(k->into, q);
    size_t e = dtype_size(to->dtype);
    int n = slice_blocks(k->into, to, t, model_n_device(k->into), q, block);
    for (int i = 0; i < n; i++) {
        const struct slice_block *d = &block[i];
        int64_t row = MAX(b->row, d->row), n_row = MIN(b->row + b->n_row, d->row + d->n_row) - row, col = MAX(b->col, d->col),
                n_col = MIN(b->col + b->n_col, d->col + d->n_col) - col;
        bool one = n_col == b->n_col && n_col == d->n_col;    // neighbours on both sides
        if (n_row > 0 && n_col > 0
            && !OP(r->dev, err, rows_copy, .y = to->weights + (size_t)(d->to + (row - d->row) * d->n_col + col - d->col) * e,
                   .x = model_at(r->slice, b->to + (row - b->row) * b->n_col + col - b->col), .n = one ? 1 : n_row,
                   .row_bytes = (size_t)(one ? n_row * n_col : n_col) * e, .ldy_bytes = (size_t)d->n_col * e,
                   .ldx_bytes = (size_t)b->n_col * e))
            return false;
    }
    return true;
}
static bool block_take(const struct taking *k, const struct team_rank *r, const struct slice_block *b, struct error *err)
{
    size_t e = dtype_size(r->slice->dtype), row = (size_t)b->n_col * e;
    bool one = b->n_col == b->ld;
    return OP(r->dev, err, rows_copy, .y = k->into->weights + (size_t)b->from * e, .x = model_at(r->slice, b->to), .n = one ? 1 : b->n_row,
              .row_bytes = one ? (size_t)b->n_row * row : row, .ldx_bytes = row, .ldy_bytes = (size_t)b->ld * e);
}
static bool tensor_take(const struct taking *k, int64_t t, int rank, struct error *err)
{
    const struct team_rank *r = rank_of(k->m, rank);
    struct slice_block block[SLICE_BLOCK_MAX];
    int n = slice_blocks(k->m, r->slice, t, model_n_device(k->m), rank, block), n_to = k->into->form->sliced ? model_n_device(k->into) : 0;
    for (int i = 0; i < n; i++) {
        if (!slice_block_counts(k->m, r->slice, t, &block[i], rank))
            continue;
        if (n_to == 0 && !block_take(k, r, &block[i], err))
            return false;
        for (int q = 0; q < n_to; q++)
            if (!block_recut(k, r, t, &block[i], q, err))
                return false;
    }
    return true;
}
static bool slice_take(void *ctx, int rank, struct error *err)
{
    const struct taking *k = ctx;
    struct model *s = team_slice(k->m, rank);
    int64_t t = 0;
    for (int p = 0; p < model_n_piece(s); p++) {    // kept weights are whole a piece at a time
        int64_t first, end = model_piece(s, p, &first);
        end += first;
        if (!model_bind(s, p, err))
            return false;
        for (; t < s->flat.n_tensor && s->flat.tensor[t].offset < end; t++)
            if (!tensor_take(k, t, rank, err))
                return false;
    }
    return true;
}

bool team_take(const struct model *m, struct model *into, struct error *err)
{
    struct taking k = { (struct model *)m, into };
    return model_team_call(k.m, slice_take, &k, err) && model_weights_changed(into, err);
}

static size_t cut_held(const struct model *m)
{
    return model_held_bytes(team_slice(m, 0));
}

static size_t shape_held(const struct model *m)
{
    return m->n_device > 1 ? model_slice_bytes(m, m->n_device) : 0;
}

const struct weights_form weights_cut = { WEIGHTS_IN_PLACE,  .sliced = true,    .changed = team_changed,
                                          .give = team_take, .fill = team_fill, .held = cut_held };
const struct weights_form weights_cut_shape = { WEIGHTS_IN_PLACE, .plain = true, .sliced = true, .changed = weights_stay,
                                                .held = shape_held };

/* ---- creating */
/* stage_of: devices of each rank, which is a stage; 0: the ranks are devices. */
static bool team_start(struct model *m, struct device *const *dev, int n, int stage_of, struct error *err);

/* A team that is made: of slices, or of stages that are devices or teams themselves. */
struct opening {
    struct model *m;
    struct device *const *all;    // (n_all) devices of the whole model, which must reach each other
    int n_all, n_slice;           // of stages: devices of each
    bool bare;                    // slices get no memory yet
};

static bool all_reach(const struct opening *o, struct device *dev, struct error *err)
{
    for (int q = 0; q < o->n_all; q++) {
        bool reach = true;
        if (o->all[q] != dev && !device_reach(dev, o->all[q], &reach, err))
            return false;
        if (!reach)
            return error_set(err, ERR_UNSUPPORTED, "%s cannot reach the memory of %s, so they cannot share a model", dev->name,
                             o->all[q]->name);
    }
    return true;
}

static bool rank_open(void *ctx, int rank, struct error *err)
{
    const struct opening *o = ctx;
    struct team_rank *r = team_rank(o->m->team, rank);
    struct model_config c = slice_config(&o->m->c, o->m->team->n, rank);
    if (!all_reach(o, r->dev, err) || !(r->slice = model_part_table(o->m, &c, r->dev, err)))
        return false;
    slice_mark(r->slice, o->m, o->m->team->n, rank);
    return o->bare || weights_room(r->slice, false, err);
}

static bool stage_open(void *ctx, int stage, struct error *err)
{
    const struct opening *o = ctx;
    struct team_rank *r = team_rank(o->m->team, stage);
    if (!all_reach(o, r->dev, err) || !(r->slice = model_stage_table(o->m, r->dev, o->m->team->n, stage, err)))
        return false;
    if (o->n_slice == 1)
        return o->bare || weights_room(r->slice, false, err);
    struct opening slices = { .m = r->slice, .all = o->all, .n_all = o->n_all, .bare = o->bare };
    return team_start(r->slice, o->all + stage * o->n_slice, o->n_slice, 0, err) && team_call(r->slice->team, rank_open, &slices, err);
}

/* The threads and marks. */
static bool ranks_start(struct team *t, struct device *const *dev, struct error *err)
{
    for (int q = t->n - 1; q >= 0; q--) {    // so that this thread drives the first device at the end
        struct team_rank *r = &t->rank[q];
        *r = (struct team_rank){ .team = t, .index = q, .dev = dev[q] };
        if (!(r->end = mark_new(r->dev, err)))
            return false;
        if (q > 0 && thread_start(&t->thread[q], rank_main, r) != 0)
            return error_set(err, ERR_IO, "cannot start the thread of device %d of %d of a team", q + 1, t->n);
        r->started = q > 0;
    }
    return (t->begin = mark_new(dev[0], err)) != NULL;
}

static bool team_start(struct model *m, struct device *const *dev, int n, int stage_of, struct error *err)
{
    BUG_IF(!m->form->plain || dev[0] != m->dev, "a team of a model that has one, of shards or of a view");
    struct team *t = m->team = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, ERR_NO_MEMORY, "no memory for a team of %d devices", n);
    t->n = n;
    t->n_stage = stage_of > 0 ? n : 0;
    t->each = MAX(stage_of, 1);
    m->n_device = n * t->each;
    weights_form_set(m);
    pthread_mutex_init(&t->turn, NULL);
    return ranks_start(t, dev, err);
}

bool model_team(struct model *m, struct device *const *dev, int n, struct error *err)
{
    if (n == 1)    // a view too: the sampler's of a run that trains an adapter
        return true;
    if (!m->trains->cut_check(m, n, err) || !team_start(m, dev, n, 0, err)
        || !team_call(m->team, rank_open, &(struct opening){ .m = m, .all = dev, .n_all = n }, err))
        return false;
    if (!m->for_bwd)
        model_handles_free(m);
    return model_weights_take(m, err) && model_weights_changed(m, err);
}

struct model *model_sliced_open(struct model *m, struct device *const *dev, int n, struct error *err)
{
    struct model *s = team_train_check(&m->c, n, m->parts, err) ? model_source_pass(m, err) : NULL;
    if (!s)
        return NULL;
    s->for_bwd = true;
    if (team_start(s, dev, n, 0, err)
        && team_call(s->team, rank_open, &(struct opening){ .m = s, .all = dev, .n_all = n, .bare = true }, err))
        return s;
    model_free(s);
    return NULL;
}

struct model *model_staged_open(struct model *m, struct device *const *dev, int n, int n_slice, struct error *err)
{
    struct device *lead[TEAM_MAX];
    BUG_IF(n_slice < 1 || n * n_slice > TEAM_MAX, "%d stages of %d devices", n, n_slice);
    bool can = stages_check(&m->c, n, err) && team_train_check(&m->c, n_slice, m->parts, err);
    struct model *s = can ? model_source_pass(m, err) : NULL;
    if (!s)
        return NULL;
    s->for_bwd = true;
    for (int q = 0; q < n; q++)
        lead[q] = dev[q * n_slice];
    struct opening o = { .m = s, .all = dev, .n_all = n * n_slice, .n_slice = n_slice, .bare = true };
    if (team_start(s, lead, n, n_slice, err) && team_call(s->team, stage_open, &o, err)) {
        s->team->rank[0].slice->table = s->team->rank[stage_of_embedding(&s->c, n)].slice;
        return s;
    }
    model_free(s);
    return NULL;
}

struct model *model_sliced_new(struct model *m, struct device *const *dev, int n, struct error *err)
{
    return model_taken(model_sliced_open(m, dev, n, err), err);
}

struct model *model_staged_new(struct model *m, struct device *const *dev, int n, int n_slice, struct error *err)
{
    return model_taken(model_staged_open(m, dev, n, n_slice, err), err);
}
