/* run_team.c - a run on the devices of a team: which one computes what, and where ranks meet
 *
 * All ranks have the whole residual stream and compute its norms, all alike. Per layer they meet twice, at the sums after the attention and
 * after the MLP:
 *
 *   each rank   part = its product, fp32, into the one of its two buffers whose turn it is; mark `ready`
 *   all         meet (all marks are set), and each device waits for the others' marks
 *   each rank   y = tree of all ranks' parts + bias
 *
 * A buffer is written again two sums later. Its readers were done by then: they set their mark of the sum between after they had read, and
 * every device has waited for that mark.
 *
 * In a recorded step on different cards nobody meets and there are no marks: the sum's own kernel, or the norm's that follows, waits for
 * the other devices (ops.h, step_meeting), and so each rank's part is a chain of its own in the graph.
 *
 * The run that callers have keeps inputs and logits on the first device (run_team). Each rank has a run of its own for its slice, which
 * does what any device's run does but for the embedding and for sums that ranks have parts of (run_rank).
 *
 * The embedding's rows are read from all slices. Where a rank keeps shards of its slice only, and has whole pieces in turn, all meet before
 * that, when each has bound its part, and after it, before any of them lets another piece take that place. */
#include <stdlib.h>
#include <string.h>
#include "workers/engine/pass/kv.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/team_impl.h"
#include "workers/engine/pass/run_impl.h"

struct team_run {
    struct model_run *whole;    // the run that callers have
    struct team *team;
    struct peer {
        struct model_run *run;    // of the slice
        float *part[2];           // (max_tok, d_model) device
        struct mark *ready[2];
        uint32_t *word[2];    // of meetings in kernels; NULL: it has none
        int turn;
    } peer[TEAM_MAX];
};

static struct run_limits rank_limits(const struct model *m, const struct run_limits *lim)
{
    struct run_limits l = *lim;
    l.mem = NULL;
    l.head_rows = lim->train ? run_head_rows(m, lim) : 1;    // logits go to the whole run's buffer
    return l;
}

static size_t part_bytes(const struct model *m, const struct run_limits *lim)
{
    return (size_t)MAX(lim->max_tok * m->c.d_model, 2 * m->c.d_head) * sizeof(float);
}

static size_t team_bytes(const struct model *m, const struct run_limits *lim)
{
    struct run_limits l = rank_limits(m, lim);
    struct error ignored;
    struct model *slice = model_slice_shape(m, model_n_device(m), &ignored);
    size_t bytes = slice ? model_run_bytes(slice, &l) : 0;
    model_free(slice);
    return bytes + 2 * part_bytes(m, lim);
}

/* May kernels of a rank's device wait for those of the others? */
static bool ranks_apart(struct team *t)
{
    for (int q = 0; q < team_size(t); q++)
        for (int p = 0; p <= q; p++)
            if (!team_rank(t, q)->dev->can_meet || (p < q && team_rank(t, p)->dev->index == team_rank(t, q)->dev->index))
                return false;
    return true;
}

static bool words_open(struct team *t, int rank, uint32_t **out, struct error *err)
{
    struct device *dev = team_rank(t, rank)->dev;
    size_t size_bytes = (size_t)team_size(t) * MEET_ROWS * sizeof **out;
    return (*out = mem_new(dev, size_bytes, "words of meetings", err)) && OP(dev, err, mem_fill, .y = *out, .size_bytes = size_bytes);
}

static const struct run_form run_rank;

static bool peer_open(void *ctx, int rank, struct error *err)
{
    struct team_run *t = ctx;
    const struct team_rank *own = team_rank(t->team, rank);
    struct peer *p = &t->peer[rank];
    struct run_limits lim = rank_limits(t->whole->m, &t->whole->lim);
    if (!(p->run = model_run_new(own->slice, &lim, err)))
        return false;
    p->run->form = &run_rank;
    p->run->peers = t;
    p->run->rank = rank;
    for (int b = 0; b < 2; b++)
        if (!(p->part[b] = mem_new(own->dev, part_bytes(own->slice, &lim), "parts of sums", err))
            || !(p->ready[b] = mark_new(own->dev, err)) || (ranks_apart(t->team) && !words_open(t->team, rank, &p->word[b], err)))
            return false;
    return true;
}

static bool team_open(struct model_run *r, struct error *err)
{
    if (!run_mem_take(r, "scratch", err))
        return false;
    struct team_run *t = r->team = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, ERR_NO_MEMORY, "no memory for a run on a team");
    t->whole = r;
    t->team = r->m->team;
    if (!team_call(t->team, peer_open, t, err))
        return false;
    r->hf = t->peer[0].run->hf;
    return true;
}

static void team_close(struct model_run *r)
{
    struct team_run *t = r->team;
    if (!t)
        return;
    for (int q = 0; q < team_size(t->team); q++) {
        struct device *dev = team_rank(t->team, q)->dev;
        for (int b = 0; b < 2; b++) {
            mem_free(dev, t->peer[q].part[b]);
            mem_free(dev, t->peer[q].word[b]);
            mark_free(dev, t->peer[q].ready[b]);
        }
        model_run_free(t->peer[q].run);
    }
    free(t);
}

/* ---- in a rank's run */
/* The next meeting: what all devices were asked for before comes before what each is asked for next. */
static bool ranks_meet(struct model_run *r, struct error *err)
{
    struct team_run *t = r->peers;
    struct peer *own = &t->peer[r->rank];
    int b = own->turn;
    own->turn = 1 - b;
    if (!mark_set(r->m->dev, own->ready[b], err) || !team_meet(t->team, r->idle, r->idle_ctx, err))
        return false;
    for (int q = 0; q < team_size(t->team); q++)
        if (q != r->rank && !device_after(r->m->dev, t->peer[q].ready[b], err))
            return false;
    return true;
}

static bool rank_embed(struct model_run *r, void *y, const struct pass *p, struct error *err)
{
    const struct model *whole = r->peers->whole->m, *has = whole->table ? whole->table : whole;
    bool in_turn = r->m->kept && whole->n_stage == 0;    // of stages it stays where it is
    if (in_turn && !ranks_meet(r, err))
        return false;
    for (int q = 0; q < model_n_device(has); q++) {
        const struct model *s = team_slice(has, q);
        if (!OP(r->m->dev, err, rows_gather, .y = y, .table = model_embedding(s), .row = p->token, .n = p->n, .first = s->vocab_first,
                .n_row = s->c.vocab, .slice = true, .d = s->c.d_model, .dtype = s->dtype))
            return false;
    }
    return !in_turn || ranks_meet(r, err);
}

static void *rank_part(struct model_run *r, UNUSED void *y, enum dtype *dtype)
{
    const struct peer *own = &r->peers->peer[r->rank];
    *dtype = DT_F32;
    return own->part[own->turn];
}

/* Will this rank's sums be made by kernels that wait for each other? */
static bool meets_in_kernels(const struct model_run *r)
{
    const struct peer *own = &r->peers->peer[r->rank];
    return r->m->dev->recording && own->word[own->turn];
}

/* The sum of n_own parts of each rank, one after the other in its memory. */
static bool parts_sum(struct model_run *r, const struct tree_sum *of, int n_own, struct error *err)
{
    struct team_run *t = r->peers;
    struct peer *own = &t->peer[r->rank];
    struct device *dev = r->m->dev;
    int b = own->turn;
    struct tree_sum sum = *of;
    struct step_meeting meet = { .n = team_size(t->team), .rank = r->rank };
    sum.n_x = meet.n * n_own;
    for (int q = 0; q < meet.n; q++) {
        for (int p = 0; p < n_own; p++)
            sum.x[q * n_own + p] = t->peer[q].part[b] + p * sum.n * sum.d;
        meet.word[q] = t->peer[q].word[b];
    }
    if (meets_in_kernels(r)) {
        sum.meet = &meet;
        own->turn = 1 - b;
    }
    return (sum.meet || ranks_meet(r, err)) && dev->op->tree_sum(dev, &sum, err);
}

static bool rank_sum(struct model_run *r, const struct tree_sum *of, struct error *err)
{
    return parts_sum(r, of, 1, err);
}

/* May a rank send the parts of a product of n rows as they are? A kernel that adds them up first takes 3 us. In that time PARTS_ELEMS_MORE
 * elements go from card to card, so the parts are sent where they fit and are at most this many elements more than their sum. */
#define PARTS_ELEMS_MORE ((int64_t)200 << 10)
static bool parts_go(const struct model_run *r, const struct linear *l, int64_t n)
{
    int n_own = l->w->parts, n_rank = team_size(r->peers->team);
    return n_own > 1 && meets_in_kernels(r) && n * n_own <= r->peers->whole->lim.max_tok
           && (n_own - 1) * (n_rank - 1) * n * l->n_out <= PARTS_ELEMS_MORE;
}

/* In PRODUCT_O and PRODUCT_DOWN each rank has only a part of every sum. The sums of its other products are whole. */
static bool rank_product(struct model_run *r, int64_t l, enum product which, const struct linear *w, void *y, const void *x,
                         const struct pass *p, struct product_use use, struct error *err)
{
    enum dtype dtype = r->m->dtype;
    if (which != PRODUCT_O && which != PRODUCT_DOWN)
        return one_product(r, l, which, w, y, x, p, use, err);
    bool in_parts = use.for_norm && parts_go(r, w, p->n);
    struct tree_sum sum = {
        .y = y, .bias = model_at(r->m, w->bias_at), .n = p->n, .d = w->n_out, .y_dtype = dtype, .dtype = dtype, .for_norm = use.for_norm
    };
    void *part = rank_part(r, y, &dtype);
    return OP(r->m->dev, err, linear_fwd, .y = part, .x = x, .w = w->w, .n = p->n, .y_dtype = dtype, .in_parts = in_parts)
           && parts_sum(r, &sum, in_parts ? w->w->parts : 1, err);
}

/* A rank's run does what any device's does, but for these. */
static const struct run_form run_rank = { RUN_ON_DEVICE, .embed = rank_embed, .product = rank_product, .part = rank_part, .sum = rank_sum };

/* ---- what callers' runs do by their ranks */
/* The batch is in the first device's memory. */
static void batch_take(struct model_run *run, const struct model_run *whole)
{
    run->n_tok = whole->n_tok;
    run->n_seq = whole->n_seq;
    run->token = whole->token;
    run->pos = whole->pos;
    run->seq = whole->seq;
    run->seen = whole->seen;
}

/* With several ranks of a step (model_run_idle_of) each device exchanges its gradient with others while it computes, and may have to wait
 * for them, which in turn may wait for another device of this team. So none of them leaves a call, nor waits for its own work, without
 * carrying its exchange on until all are done. */
static bool all_here(struct model_run *run, struct error *err)
{
    return !run->idle || team_meet(run->peers->team, run->idle, run->idle_ctx, err);
}

struct forward {
    struct model_run *r;
    const struct pass *pass;
};
static bool rank_forward(void *ctx, int rank, struct error *err)
{
    const struct forward *f = ctx;
    struct peer *own = &f->r->team->peer[rank];
    struct model_run *run = own->run;
    struct pass p = *f->pass;
    own->turn = 0;
    batch_take(run, f->r);
    memcpy(run->cu, f->r->cu, ((size_t)f->r->n_seq + 1) * sizeof *run->cu);
    p.kv = p.kv ? kv_of_rank(p.kv, rank) : NULL;
    return run_forward(run, &p, err) && all_here(run, err);
}
static bool team_forward(struct model_run *r, const struct pass *p, struct error *err)
{
    struct forward f = { r, p };
    return team_call(r->team->team, rank_forward, &f, err);
}

struct head_call {
    struct model_run *r;
    const void *x;    // (n, d) of the first device; rows of its run's hf every device has
    int64_t n;
    float *logits;    // (n, vocab) of the first device
};
static bool rank_head(void *ctx, int rank, struct error *err)
{
    const struct head_call *h = ctx;
    const struct team_rank *own = team_rank(h->r->team->team, rank);
    struct model_run *run = h->r->team->peer[rank].run;
    const void *x = h->x;
    size_t row_bytes = (size_t)h->r->m->c.d_model * dtype_size(h->r->m->dtype), x_bytes = (size_t)h->n * row_bytes;
    const char *hf = h->r->hf, *hf_end = hf + (size_t)h->r->lim.max_tok * row_bytes;
    if (rank > 0 && (const char *)x >= hf && (const char *)x < hf_end) {
        x = (const char *)run->hf + ((const char *)x - hf);
    } else if (!own->dev->host_memory && rank > 0) {    // read once, not by every block of the product
        if (!mem_copy(own->dev, run->h, x, x_bytes, COPY_D2D, err))
            return false;
        x = run->h;
    }
    return model_bind(run->m, head_piece(run->m), err)
           && OP(own->dev, err, linear_fwd, .y = h->logits + run->m->vocab_first, .x = x, .w = model_head_weight(run->m), .n = h->n,
                 .ldy = h->r->m->c.vocab, .y_dtype = DT_F32)
           && all_here(run, err);
}
static bool team_logits(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err)
{
    struct head_call h = { r, x, n, logits };
    return team_call(r->team->team, rank_head, &h, err);
}

static void team_bind(struct model_run *r, struct model *m)
{
    for (int q = 0; q < team_size(r->team->team); q++)
        model_run_bind(r->team->peer[q].run, team_slice(m, q));
}

static struct model_run *team_device(struct model_run *r, int rank)
{
    return r->team->peer[rank].run;
}

/* ---- of a stage of a pipeline */
static void team_set_use(struct model_run *r, int k)
{
    run_set_use(r, &r->set[k]);
    for (int q = 0; q < team_size(r->team->team); q++) {
        struct model_run *run = r->team->peer[q].run;
        run_set_use(run, &run->set[k]);
        batch_take(run, r);
    }
    r->hf = r->team->peer[0].run->hf;
}

struct calling {
    struct model_run *r;
    bool (*fn)(void *ctx, struct model_run *run, struct error *err);
    void *ctx;
};
static bool rank_do(void *ctx, int rank, struct error *err)
{
    const struct calling *c = ctx;
    struct model_run *run = c->r->team->peer[rank].run;
    return c->fn(c->ctx, run, err) && all_here(run, err);
}
static bool team_each(struct model_run *r, bool (*fn)(void *ctx, struct model_run *run, struct error *err), void *ctx, struct error *err)
{
    return team_call(r->team->team, rank_do, &(struct calling){ r, fn, ctx }, err);
}

/* ---- the backward pass */
struct backward {
    struct model_run *r;
    const struct model_grad *g;
    int64_t n_head;
    const struct head_part *rows;    // of the first device
};
static struct model_grad rank_grad(const struct backward *b, int rank)
{
    struct model_grad g = b->g->slice[rank];
    g.set = b->g->set;
    return g;
}

static bool rank_head_begin(void *ctx, int rank, struct error *err)
{
    const struct backward *b = ctx;
    struct model_grad g = rank_grad(b, rank);
    struct peer *own = &b->r->team->peer[rank];
    own->turn = 0;
    return model_bind(own->run->m, head_piece(own->run->m), err) && head_bwd_begin(own->run, b->n_head, &g, err) && all_here(own->run, err);
}
static bool team_head_begin(struct model_run *r, int64_t n_head, const struct model_grad *g, struct error *err)
{
    struct backward b = { .r = r, .g = g, .n_head = n_head };
    return team_call(r->team->team, rank_head_begin, &b, err);
}

static bool rank_head_clear(void *ctx, int rank, struct error *err)
{
    struct peer *own = &((struct model_run *)ctx)->team->peer[rank];
    own->turn = 0;
    return head_bwd_clear(own->run, err) && all_here(own->run, err);
}
static bool team_head_clear(struct model_run *r, struct error *err)
{
    return team_call(r->team->team, rank_head_clear, r, err);
}

/* A rank's columns of the gradient by the logits, and the rows they belong to. Where the whole vocabulary is not a multiple of 8, which
 * decides how GPUs multiply, the distance of the rows must not be one either. */
static bool rank_head_rows(void *ctx, int rank, struct error *err)
{
    const struct backward *b = ctx;
    struct model_run *run = b->r->team->peer[rank].run;
    const struct model *s = run->m;
    struct head_part c = *b->rows;
    size_t e = dtype_size(s->dtype), row_bytes = (size_t)s->c.d_model * e;
    c.dlogits = (const char *)c.dlogits + (size_t)s->vocab_first * e;
    b->r->team->peer[rank].turn = 0;
    if (!s->dev->host_memory && rank > 0) {
        int64_t ld = s->c.vocab + (s->vocab_all % 8 != 0 && s->c.vocab % 8 == 0 ? 1 : 0);
        if (!OP(s->dev, err, rows_copy, .y = run->dlogits, .x = c.dlogits, .n = c.n, .row_bytes = (size_t)s->c.vocab * e,
                .ldy_bytes = (size_t)ld * e, .ldx_bytes = (size_t)c.ld * e)
            || !mem_copy(s->dev, run->hrow, c.x, (size_t)c.n * row_bytes, COPY_D2D, err))
            return false;
        c.dlogits = run->dlogits;
        c.x = run->hrow;
        c.ld = ld;
    }
    return head_bwd_rows(run, &c, err) && all_here(run, err);
}
static bool team_head_rows(struct model_run *r, const struct head_part *c, struct error *err)
{
    struct backward b = { .r = r, .rows = c };
    return team_call(r->team->team, rank_head_rows, &b, err);
}

static bool rank_head_end(void *ctx, int rank, struct error *err)
{
    const struct backward *b = ctx;
    struct model_grad g = rank_grad(b, rank);
    struct model_run *run = b->r->team->peer[rank].run;
    return head_bwd_end(run, &g, err) && all_here(run, err);
}
static bool team_head_end(struct model_run *r, const struct model_grad *g, struct error *err)
{
    struct backward b = { .r = r, .g = g };
    return team_call(r->team->team, rank_head_end, &b, err);
}

static bool rank_layers_bwd(void *ctx, int rank, struct error *err)
{
    const struct backward *b = ctx;
    struct model_grad g = rank_grad(b, rank);
    struct peer *own = &b->r->team->peer[rank];
    own->turn = 0;
    return model_ahead(own->run->m, 0, err)    // for the next forward pass
           && layers_bwd(own->run, &g, err) && (!own->run->idle || run_sync(own->run, err)) && all_here(own->run, err);
}
static bool team_layers_bwd(struct model_run *r, const struct model_grad *g, struct error *err)
{
    struct backward b = { .r = r, .g = g };
    return team_call(r->team->team, rank_layers_bwd, &b, err);
}

const struct run_form run_team = { .spread = true,
                                   .open = team_open,
                                   .close = team_close,
                                   .bytes = team_bytes,
                                   .bind = team_bind,
                                   .device = team_device,
                                   .each = team_each,
                                   .set_use = team_set_use,
                                   .sets = true,
                                   .work = one_work,
                                   .forward = team_forward,
                                   .logits = team_logits,
                                   .head_begin = team_head_begin,
                                   .head_clear = team_head_clear,
                                   .head_rows = team_head_rows,
                                   .head_end = team_head_end,
                                   .layers_bwd = team_layers_bwd };
