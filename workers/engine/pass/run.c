/* run.c - the transformer itself: what it computes, the memory of a run, and its life
 *
 * run_blocks.c is the forward pass through the layers, run_attn.c and run_delta.c the kinds of their first halves, run_mlp.c and
 * run_experts.c those of their second halves, run_rope.c the rotations, run_shared.c attention over packed sequences, run_head.c the
 * head, run_stream.c the stream, run_ends.c what follows the last layer, run_backward.c the backward pass by hand, run_places.c where
 * gradients go, run_sums.c the layers' products, run_batch.c what is asked of a run: prefill,
 * decode, scoring and training. A run has one of several forms (struct run_form): run_team.c does these on the devices of a team,
 * run_stages.c on the stages of a pipeline. Its backward pass has one of two (struct grads_form): run_grads.c for all weights,
 * run_adapter.c for an adapter's. run_impl.h is what the files share.
 *
 * The residual stream x gets two additions per layer, each fused into the norm that follows it:
 *
 *   res1 = x + mlp output of the layer before      h = norm(res1)     qkv = rope(Wqkv h + b)    ao = attention(qkv)
 *   res2 = res1 + Wo ao                            h = norm(res2)     gu = [Wg h | Wu h]        out = Wd (silu(g) u)
 *
 * That is a block of norm_place NORM_BEFORE. With NORM_AROUND what a half adds is Norm(Wo ao) and Norm(Wd ...), with NORM_AFTER h is
 * the stream itself, without a norm.
 *
 * Granite's multipliers cost next to nothing. The residual stream is kept divided by residual_multiplier: then nothing that
 * is added needs it, the embedding is multiplied by embedding_multiplier / residual_multiplier, and the norms that read the
 * stream have eps / residual_multiplier^2. attention_multiplier is in the tables of cos and sin, half of it on each side of
 * q k. The last norm's output is divided by logits_scaling, rather than the much larger logits.
 *
 * Training keeps res1, qkv, ao, res2, gu, what norms after the halves read, and the norms' statistics of every layer; the norms'
 * outputs and the SwiGLU product are computed again in the backward pass, from the same inputs by the same operation, hence the
 * same bits, or kept with keep_more. With recompute_block only res1 is kept and the rest of a block is run again. Without training all
 * layers share one set. */
#include <inttypes.h>
#include <stdlib.h>
#include "workers/engine/model/lora_impl.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"

/* ---- memory: the same walk measures and assigns it */
/* What the activations of a layer depend on. */
struct widths {
    int64_t qkv_in, qkv;    // of struct acts
    int64_t mix;            // of ao
    int64_t mlp;
    bool attn, delta, experts;
};
static struct widths widths_of(const struct model_config *c, int64_t l)
{
    bool sparse = config_is_sparse(c, l), delta = config_is_delta(c, l);
    return (struct widths){ .qkv_in = delta ? config_in_width(c, true) : config_qkv_width(c, false),
                            .qkv = config_qkv_width(c, delta),
                            .mix = config_mix_width(c, delta),
                            .mlp = sparse ? c->experts.k * c->experts.d_ff : c->d_ff,
                            .attn = !delta,
                            .delta = delta,
                            .experts = sparse };
}
/* What every layer can work in. */
static struct widths widths_most(const struct model_config *c)
{
    struct widths most = { 0 };
    for (int64_t l = 0; l < c->n_layer; l++) {
        struct widths w = widths_of(c, l);
        most.qkv_in = MAX(most.qkv_in, w.qkv_in);
        most.qkv = MAX(most.qkv, w.qkv);
        most.mix = MAX(most.mix, w.mix);
        most.mlp = MAX(most.mlp, w.mlp);
        most.attn |= w.attn;
        most.delta |= w.delta;
        most.experts |= w.experts;
    }
    return most;
}

static void layout_routes(struct walk *w, struct routes *to, const struct model_config *c, int64_t n)
{
    to->logits = walk_take(w, n * c->experts.n, 4);
    to->weight = walk_take(w, n * c->experts.k, 4);
    to->expert = walk_take(w, n * c->experts.k, 4);
    to->first = walk_take(w, c->experts.n + 1, 4);
    to->row = walk_take(w, n * c->experts.k, 4);
    to->place = walk_take(w, n * c->experts.k, 4);
}

static void layout_acts(struct walk *w, struct acts *a, const struct model_config *c, struct widths of, const struct run_limits *lim,
                        size_t e, bool own_res1)
{
    int64_t n = lim->max_tok;
    if (own_res1)
        a->res1 = walk_take(w, n * c->d_model, e);
    a->rstd1 = walk_take(w, n, 4);
    a->qkv = walk_take(w, n * of.qkv, e);
    a->qkv_in = of.delta || (lim->train && c->qk_norm) ? walk_take(w, n * of.qkv_in, e) : a->qkv;
    a->ao = walk_take(w, n * of.mix, e);
    a->gate = of.attn && c->attn_gate ? walk_take(w, n * c->n_head * c->d_head, e) : NULL;
    a->lse = lim->train && of.attn ? walk_take(w, n * c->n_head, 4) : NULL;
    a->res2 = lim->train ? walk_take(w, n * c->d_model, e) : a->res1;
    a->rstd2 = walk_take(w, n, 4);
    a->gu = walk_take(w, n * 2 * of.mlp, e);
    if (of.experts)
        layout_routes(w, &a->to, c, n);
    if (lim->train && c->norm_place != NORM_BEFORE) {
        a->half1 = walk_take(w, n * c->d_model, e);
        a->half2 = walk_take(w, n * c->d_model, e);
        a->rstd_post1 = walk_take(w, n, 4);
        a->rstd_post2 = walk_take(w, n, 4);
    }
    if (lim->train && c->qk_norm_wide) {
        a->rstd_q = walk_take(w, n, 4);
        a->rstd_k = walk_take(w, n, 4);
    }
}

/* What a run's backward pass makes gradients of. */
static const struct grads_form *grads_of(const struct model *m)
{
    return m->lora ? &grads_adapter : &grads_all;
}

/* What follows the last layer of a model or a stage. */
static const struct run_end *end_of(const struct model *m)
{
    return m->own.head ? &end_head : &end_edge;
}

/* The highest rank of an adapter that a run has room for; 0: it has none for any. */
static int64_t adapter_rank(const struct model *m, const struct run_limits *lim)
{
    return MAX(lim->lora_rank, m->lora_rank);
}

static void layout_lora(struct walk *w, struct lora_scratch *s, const struct model *m, const struct run_limits *lim)
{
    const struct model_config *c = &m->c;
    size_t e = dtype_size(m->dtype);
    int64_t low = LORA_PART_MAX * adapter_rank(m, lim), qkv = config_qkv_width(c, false);
    s->rows = MIN(LORA_ROWS, lim->max_tok);
    s->low = walk_take(w, lim->max_tok * low, e);
    s->dlow = lim->train ? walk_take(w, lim->max_tok * low, e) : NULL;
    s->up = walk_take(w, s->rows * MAX(MAX(qkv, 2 * c->d_ff), c->d_model), e);
}

/* A model with whole weights is trained on its own device, and its slices are for sampling. */
static const struct run_form *form_of(const struct model *m, const struct run_limits *lim)
{
    if (model_is_staged(m))
        return &run_stages;
    return model_is_sliced(m) || (m->team && !lim->train) ? &run_team : &run_one;
}

/* Queries, keys and values that attention sees, and its output, or the gradients by them: in a memory of the SwiGLU product, which nothing
 * needs beside attention, if they fit. */
static void layout_seen(struct walk *w, const struct model_config *c, const struct run_limits *lim, size_t e, void *act, void **qkv,
                        void **ao)
{
    int64_t q = c->n_head * c->d_head;
    struct walk in = { .base = act };
    *qkv = walk_take(&in, lim->max_tok * config_qkv_width(c, false), e);
    *ao = walk_take(&in, lim->max_tok * q, e);
    if (in.used <= (size_t)(lim->max_tok * config_mlp_width(c)) * e)
        return;
    *qkv = walk_take(w, lim->max_tok * config_qkv_width(c, false), e);
    *ao = walk_take(w, lim->max_tok * q, e);
}

/* What the backward pass needs of the layers and of the head's products; on a team the ranks' runs have it. */
static void layout_bwd(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim)
{
    const struct model_config *c = &m->c;
    size_t e = dtype_size(m->dtype);
    struct widths most = widths_most(c);
    int64_t n = lim->max_tok;
    r->dres = walk_take(w, n * c->d_model, e);
    r->dh = walk_take(w, n * c->d_model, e);
    r->dao = walk_take(w, n * most.mix, e);
    r->dqkv = walk_take(w, n * most.qkv_in, e);
    if (c->attn_gate) {
        r->dboth = walk_take(w, n * config_in_width(c, false), e);
        r->dgate = walk_take(w, n * c->n_head * c->d_head, e);
    }
    if (most.delta) {
        r->dconv = walk_take(w, n * most.qkv, e);
        r->delta_room = walk_take(w, (int64_t)delta_bwd_bytes(m->dev, c->delta.heads, n), 1);
    }
    r->dact = walk_take(w, n * config_mlp_width(c), e);
    if (c->experts.n) {
        r->dweight = walk_take(w, n * c->experts.k, 4);
        r->droute = walk_take(w, n * c->experts.n, e);
        r->load = walk_take(w, c->n_layer * c->experts.n, sizeof *r->load);
    }
    if (lim->shares)
        layout_seen(w, c, lim, e, r->dact, &r->seen_dqkv, &r->seen_dao);
    end_of(m)->layout_bwd(w, r, m, lim, grads_of(m)->head_in_parts(m, lim));
    r->dembed = walk_take(w, lim->n_shared * n * c->d_model, e);
    r->dembed_token = walk_take(w, lim->n_shared * n, 4);
    r->dnorm = norm_parts(m) ? walk_take(w, 2 * (norm_parts(m) + 1) * c->d_head, 4) : NULL;
    r->leaf = m->parts > 1 && sums_own(m) > 1 ? walk_take(w, sums_own(m) * n * c->d_model, 4) : NULL;
}

static void layout_batch(struct walk *w, struct model_run *r, const struct run_limits *lim)
{
    r->token = walk_take(w, lim->max_tok, 4);
    r->pos = walk_take(w, lim->max_tok, 4);
    r->seq = walk_take(w, lim->max_seq + 1, 4);
    r->seen = (struct seen_rows){ 0 };
    if (!lim->shares)
        return;
    int32_t **seen[] = { &r->seen.row, &r->seen.own, &r->seen.at, &r->seen.copy, &r->seen.first };
    for (size_t i = 0; i < ARRAY_SIZE(seen); i++)
        *seen[i] = walk_take(w, lim->max_tok + 1, 4);
}

/* The batch of each set. */
static void layout_batches(struct walk *w, struct model_run *r, const struct run_limits *lim)
{
    for (int k = 0; k < MAX(lim->n_set, 1); k++) {
        layout_batch(w, r, lim);
        if (r->set) {
            r->set[k].token = r->token;
            r->set[k].pos = r->pos;
            r->set[k].seq = r->seq;
            r->set[k].seen = r->seen;
        }
    }
}

/* What is kept of a micro-batch: the layers' activations, where they do not work in `shared`, and the last norm's or what the next stage
 * reads and gives back. */
static void layout_kept(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim, const struct acts *shared,
                        void **dedge)
{
    const struct model_config *c = &m->c;
    size_t e = dtype_size(m->dtype);
    int64_t n = lim->max_tok;
    bool own = lim->train && !lim->recompute_block;    // every layer keeps its own set
    for (int64_t l = m->own.first; l < m->own.end; l++) {
        struct acts a = *shared;
        if (own)
            layout_acts(w, &a, c, widths_of(c, l), lim, e, true);
        else if (lim->train)
            a.res1 = walk_take(w, n * c->d_model, e);
        bool more = own && lim->keep_more, norms = more && c->norm_place != NORM_AFTER;
        a.h1 = norms ? walk_take(w, n * c->d_model, e) : r->h;
        a.h2 = norms ? walk_take(w, n * c->d_model, e) : r->h;
        a.act = more ? walk_take(w, n * widths_of(c, l).mlp, e) : r->act;
        if (r->layer)
            r->layer[l] = a;
    }
    end_of(m)->layout_kept(w, r, m, lim, dedge);
}

/* What the layers need; on a team the ranks' runs have it. */
static void layout_layers(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim)
{
    const struct model_config *c = &m->c;
    size_t e = dtype_size(m->dtype);
    int64_t n = lim->max_tok;
    struct acts shared = { 0 };
    void *dedge = NULL;
    r->act = walk_take(w, n * config_mlp_width(c), e);
    if (c->attn_gate) {
        r->both = walk_take(w, n * config_in_width(c, false), e);
        r->mixed = walk_take(w, n * widths_most(c).mix, e);
    }
    r->state = config_has_states(c) ? walk_take(w, lim->max_seq, 4) : NULL;
    if (c->experts.n)
        r->pairs = walk_take(w, n * c->experts.k * c->d_model, e);
    if (lim->shares)
        layout_seen(w, c, lim, e, r->act, &r->seen_qkv, &r->seen_ao);
    if (!lim->train || lim->recompute_block)
        layout_acts(w, &shared, c, widths_most(c), lim, e, true);
    for (int k = 0; k < MAX(lim->n_set, 1); k++) {
        if (r->set)
            run_set_use(r, &r->set[k]);    // its host arrays
        layout_batch(w, r, lim);
        layout_kept(w, r, m, lim, &shared, &dedge);
        if (r->set)
            r->set[k] = (struct run_set){ .token = r->token,
                                          .pos = r->pos,
                                          .seq = r->seq,
                                          .seen = r->seen,
                                          .layer = r->layer,
                                          .edge = r->edge,
                                          .dedge = dedge,
                                          .cu = r->cu,
                                          .resf = r->resf,
                                          .hf = r->hf,
                                          .rstdf = r->rstdf };
    }
    r->out = walk_take(w, n * c->d_model, e);
    if (adapter_rank(m, lim) > 0)
        layout_lora(w, &r->lora, m, lim);
}

static size_t layout(struct model_run *r, const struct model *m, const struct run_limits *lim, char *base)
{
    struct walk w = { .base = base };
    const struct model_config *c = &m->c;
    size_t e = dtype_size(m->dtype);
    int64_t n = lim->max_tok;
    bool spread = form_of(m, lim)->spread;
    r->slot = walk_take(&w, n, 4);
    r->h = walk_take(&w, n * c->d_model, e);
    if (spread)
        layout_batches(&w, r, lim);
    else
        layout_layers(&w, r, m, lim);
    struct head_rows *h = &r->head;
    int32_t **ints[] = { &h->row, &h->target };
    for (size_t i = 0; i < ARRAY_SIZE(ints); i++)
        *ints[i] = walk_take(&w, n, 4);
    float **floats[] = {
        &h->coef, &h->adv, &h->weight, &h->old, &h->ref, &h->log_ratio, &h->rho, &h->logp, &h->entropy, &h->lse, &h->loss
    };
    for (size_t i = 0; i < ARRAY_SIZE(floats); i++)
        *floats[i] = walk_take(&w, n, 4);
    end_of(m)->layout(&w, r, m, lim);
    if (lim->train && !spread)
        layout_bwd(&w, r, m, lim);
    return w.used;
}

size_t model_run_bytes(const struct model *m, const struct run_limits *limits)
{
    struct model_run r = { 0 };
    const struct run_form *form = form_of(m, limits);
    return layout(&r, m, limits, NULL) + (form->bytes ? form->bytes(m, limits) : 0);
}

/* Bytes of the tables: cos, sin, and what they are for layers with other frequencies or none. */
static size_t rope_layout(struct model_run *r, const struct model_config *c, const struct run_limits *lim, char *base)
{
    struct walk w = { .base = base };
    int64_t half = rope_dims(&c->rope, c->d_head) / 2, n = lim->max_seq_tok * half, n_local = c->has_rope_local ? n : 0;
    r->cos = walk_take(&w, n, 4);
    r->sin = walk_take(&w, n, 4);
    r->cos_local = walk_take(&w, n_local, 4);
    r->sin_local = walk_take(&w, n_local, 4);
    r->cos_still = walk_take(&w, half, 4);
    r->sin_still = walk_take(&w, half, 4);
    r->pos_still = walk_take(&w, lim->max_tok, 4);
    return w.used;
}

bool run_mem_take(struct model_run *r, const char *what, struct error *err)
{
    if (!r->lim.mem && !(r->mem = mem_new(r->m->dev, layout(r, r->m, &r->lim, NULL), what, err)))
        return false;
    layout(r, r->m, &r->lim, r->lim.mem ? r->lim.mem : r->mem);
    return true;
}

bool one_open(struct model_run *r, struct error *err)
{
    struct model *m = r->m;
    const struct run_limits *lim = &r->lim;
    if ((lim->train && !model_want_bwd(m, err)) || !(r->tables = mem_new(m->dev, rope_layout(r, &m->c, lim, NULL), "RoPE tables", err)))
        return false;
    rope_layout(r, &m->c, lim, r->tables);
    return run_mem_take(r, lim->train ? "activations" : "scratch", err) && (!r->load || model_run_load_clear(r, err)) && rope_tables(r, err)
           && (!lim->train || (r->done = mark_new(m->dev, err)));
}

void one_close(UNUSED struct model_run *r)
{
}

void one_bind(UNUSED struct model_run *r, UNUSED struct model *m)
{
}

struct model_run *one_device(struct model_run *r, UNUSED int q)
{
    return r;
}

bool one_each(struct model_run *r, bool (*fn)(void *ctx, struct model_run *run, struct error *err), void *ctx, struct error *err)
{
    return fn(ctx, r, err);
}

void one_set_use(struct model_run *r, int k)
{
    run_set_use(r, &r->set[k]);
}

static void *one_part(UNUSED struct model_run *r, void *y, UNUSED enum dtype *dtype)
{
    return y;
}

static bool one_sum(UNUSED struct model_run *r, UNUSED const struct tree_sum *of, UNUSED struct error *err)
{
    return true;
}

const struct run_form run_one = { RUN_ON_DEVICE, .embed = one_embed, .product = one_product, .part = one_part, .sum = one_sum };

struct model_run *model_run_new(struct model *m, const struct run_limits *lim, struct error *err)
{
    if (lim->max_tok < 1 || lim->max_seq < 1 || lim->max_seq_tok < 1 || lim->max_tok > INT32_MAX / 2 || lim->max_seq_tok > INT32_MAX / 2
        || lim->head_rows < 0) {
        error_set(err, ERR_SHAPE, "a run of %" PRId64 " tokens in %" PRId64 " sequences of at most %" PRId64 " is not possible",
                  lim->max_tok, lim->max_seq, lim->max_seq_tok);
        return NULL;
    }
    struct model_run *r = calloc(1, sizeof *r);
    if (!r) {
        error_set(err, ERR_NO_MEMORY, "no memory for a run");
        return NULL;
    }
    r->m = m;
    r->form = form_of(m, lim);
    r->grads = grads_of(m);
    r->end = end_of(m);
    r->lim = *lim;
    r->lim.lora_rank = adapter_rank(m, lim);
    r->head_max = run_head_rows(m, lim);
    size_t n = (size_t)lim->max_tok;
    r->layer_mem = calloc((size_t)(m->c.n_layer * MAX(lim->n_set, 1)), sizeof *r->layer);
    r->host_i = malloc((n + 1) * (lim->shares ? 5 : 2) * sizeof *r->host_i);
    r->host_f = malloc(n * 4 * sizeof *r->host_f);
    r->host_back = host_new(m->dev, n * 3 * sizeof *r->host_back, "log-probs on their way back", err);
    r->row_index = malloc(n * sizeof *r->row_index);
    r->cu_mem = calloc(((size_t)lim->max_seq + 1) * (size_t)MAX(lim->n_set, 1), sizeof *r->cu);
    r->set = lim->n_set > 0 ? calloc((size_t)lim->n_set, sizeof *r->set) : NULL;
    r->layer = r->layer_mem;
    r->cu = r->cu_mem;
    if (!r->layer || (lim->n_set > 0 && !r->set) || !r->host_i || !r->host_f || !r->host_back || !r->row_index || !r->cu) {
        error_set(err, ERR_NO_MEMORY, "no memory for a run of %" PRId64 " tokens", lim->max_tok);
        goto fail;
    }
    for (int k = 0; k < lim->n_set; k++) {
        r->set[k].layer = r->layer_mem + k * m->c.n_layer;
        r->set[k].cu = r->cu_mem + k * (lim->max_seq + 1);
    }
    BUG_IF(lim->mem && r->form->spread, "a run on several devices in borrowed memory");
    if (r->form->open(r, err))
        return r;
fail:
    model_run_free(r);
    return NULL;
}

void model_run_free(struct model_run *r)
{
    if (!r)
        return;
    r->form->close(r);
    mem_free(r->m->dev, r->tables);
    mark_free(r->m->dev, r->done);
    mem_free(r->m->dev, r->mem);
    free(r->set);
    free(r->layer_mem);
    free(r->host_i);
    free(r->host_f);
    if (r->host_back)
        host_free(r->m->dev, r->host_back);
    free(r->row_index);
    free(r->cu_mem);
    free(r);
}

void run_set_use(struct model_run *r, const struct run_set *set)
{
    r->token = set->token;
    r->pos = set->pos;
    r->seq = set->seq;
    r->layer = set->layer;
    r->edge = set->edge;
    r->dedge = set->dedge;
    r->cu = set->cu;
    r->n_tok = set->n_tok;
    r->n_seq = set->n_seq;
    r->seen = set->seen;
    r->resf = set->resf;
    r->hf = set->hf;
    r->rstdf = set->rstdf;
}

static size_t load_bytes(const struct model_run *r)
{
    return (size_t)(r->m->c.n_layer * r->m->c.experts.n) * sizeof *r->load;
}

bool model_run_load_clear(struct model_run *r, struct error *err)
{
    return !r->load || OP(r->m->dev, err, mem_fill, .y = r->load, .size_bytes = load_bytes(r));
}

bool model_run_load_get(struct model_run *r, int64_t *load, struct error *err)
{
    return !r->load || mem_copy(r->m->dev, load, r->load, load_bytes(r), COPY_D2H, err);
}

void model_run_idle(struct model_run *r, bool (*idle)(void *ctx, struct error *err), void *ctx)
{
    r->idle = idle;
    r->idle_ctx = ctx;
}

void model_run_idle_of(struct model_run *r, int q, bool (*idle)(void *ctx, struct error *err), void *ctx)
{
    model_run_idle(r->form->device(r, q), idle, ctx);
}

bool run_idle(struct model_run *r, struct error *err)
{
    return !r->idle || r->idle(r->idle_ctx, err);
}

bool run_sync(struct model_run *r, struct error *err)
{
    bool done = !r->idle || !r->done;
    if (!done && !mark_set(r->m->dev, r->done, err))
        return false;
    while (!done)
        if (!mark_done(r->m->dev, r->done, &done, err) || !run_idle(r, err))
            return false;
    return device_sync(r->m->dev, err);
}

void model_run_bind(struct model_run *r, struct model *m)
{
    BUG_IF(m->flat.n_flat != r->m->flat.n_flat || m->dtype != r->m->dtype || m->dev != r->m->dev, "models of different shapes");
    BUG_IF(adapter_rank(m, &(struct run_limits){ 0 }) > r->lim.lora_rank, "an adapter of a higher rank than the run has room for");
    r->m = m;
    r->grads = grads_of(m);
    r->form->bind(r, m);
}
