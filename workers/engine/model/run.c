/* run.c - the transformer itself: forward for prefill, decode, scoring and training, and the backward pass by hand
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
 * Training keeps res1, qkv, ao, res2, gu, what norms after the halves read, and the norms' statistics of every layer; the norms' outputs and the SwiGLU
 * product are computed again in the backward pass, from the same inputs by the same operation, hence the same bits.
 * With recompute_block only res1 is kept and the rest of a block is run again. Without training all layers share one
 * set.
 *
 * The head skips rows that predict nothing and works on head_rows rows at a time: it computes logits, statistics,
 * gradient and both products of a chunk before the next, so that no (tokens x vocab) matrix exists.
 *
 * A backward pass adds to each element of the gradient once: a gradient computed in several parts (the head's weight by
 * chunks of rows, with the embedding's where they are tied) is summed up in dhead first. Of a model with an adapter only the
 * adapter's gradient is computed: none of matrices, norms, biases, embedding and head, and the pass ends below the first layer. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/model/kv.h"
#include "workers/engine/model/lora_impl.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_impl.h"

/* Activations that one layer keeps; device. */
struct acts {
    void *res1;      // (max_tok, d) residual stream before the block
    float *rstd1;    // (max_tok) of its norm
    void *qkv_in;    // (max_tok, qkv) before q/k norm and RoPE; the same memory as qkv when it is not needed
    void *qkv;       // (max_tok, qkv)
    void *ao;        // (max_tok, q) attention output
    float *lse;      // (max_tok, n_head)
    void *res2;      // (max_tok, d) residual stream between the two halves
    float *rstd2;
    void *gu;               // (max_tok, 2 ff)
    void *half1, *half2;    // (max_tok, d) what the halves give to the norms after them; NULL: there are none, or not kept
    float *rstd_post1, *rstd_post2;
    float *rstd_q, *rstd_k;    // (max_tok) of norms over all heads; NULL: there are none
};
/* The rows that predict something, packed: the input of the head. Device arrays (max_tok). */
struct head_rows {
    int32_t *row, *target;
    float *coef, *adv, *weight, *old, *ref, *log_ratio, *rho, *logp, *entropy, *lse, *loss;
};
struct model_run {
    struct model *m;    // borrowed
    struct run_limits lim;
    int64_t head_max;                // rows of logits at a time
    float *cos, *sin;                // (max_seq_tok, rope_dims / 2) each
    float *cos_local, *sin_local;    // the same, of layers with a window, when config.has_rope_local
    float *cos_still, *sin_still;    // (rope_dims / 2) each, angle 0: of layers that do not rotate
    int32_t *pos_still;              // (max_tok) zeros
    char *tables;                    // those seven, one piece of device memory
    char *mem;                       // everything below, one piece of device memory; owned unless it is lim.mem
    int32_t *token, *pos, *slot;     // (max_tok)
    int32_t *seq;                    // (max_seq + 1)
    struct acts *layer;              // (n_layer) host array
    void *h;                         // (max_tok, d)
    void *out;                       // (max_tok, d) to be added to the residual stream next
    void *act;                       // (max_tok, ff)
    void *resf, *hf;                 // (max_tok, d) last residual stream and its norm
    float *rstdf;
    void *dres, *dh;            // (max_tok, d) gradients by residual stream and norm output
    void *dao, *dqkv, *dact;    // (max_tok, q / qkv / ff)
    struct head_rows head;
    void *hrow, *dhrow;    // (head_max, d)
    float *logits;         // (head_max, vocab)
    void *dlogits;         // (head_max, vocab) of dtype; logits themselves in fp32
    struct lora_scratch lora;
    float *dhead;    // (vocab, d) gradient of the head's weight, where it is computed in several parts; or NULL
    // host side of the current call
    int32_t *host_i;                               // (2 max_tok)
    float *host_f;                                 // (4 max_tok)
    int64_t *row_index;                            // (max_tok) index of each head row
    int32_t *cu;                                   // (max_seq + 1) sequence bounds of the last forward
    int64_t n_tok, n_seq;                          // of the last forward
    int64_t logits_row0, logits_n;                 // head rows whose logits are in the buffer; n 0: none
    bool (*idle)(void *ctx, struct error *err);    // or NULL
    void *idle_ctx;
    struct mark *done;    // end of the call's launched work; with idle
};

/* ---- memory: the same walk measures and assigns it */
struct walk {
    char *base;    // NULL: only measure
    size_t used;
};

static void *take(struct walk *w, int64_t n, size_t elem)
{
    void *p = w->base ? w->base + w->used : NULL;
    w->used += ((size_t)n * elem + 255) / 256 * 256;
    return p;
}

static void layout_acts(struct walk *w, struct acts *a, const struct model_config *c, const struct run_limits *lim, size_t e, bool own_res1)
{
    int64_t n = lim->max_tok, q = c->n_head * c->d_head, qkv = q + 2 * c->n_kv_head * c->d_head;
    if (own_res1)
        a->res1 = take(w, n * c->d_model, e);
    a->rstd1 = take(w, n, 4);
    a->qkv = take(w, n * qkv, e);
    a->qkv_in = lim->train && c->qk_norm ? take(w, n * qkv, e) : a->qkv;
    a->ao = take(w, n * q, e);
    a->lse = lim->train ? take(w, n * c->n_head, 4) : NULL;
    a->res2 = lim->train ? take(w, n * c->d_model, e) : a->res1;
    a->rstd2 = take(w, n, 4);
    a->gu = take(w, n * 2 * c->d_ff, e);
    if (lim->train && c->norm_place != NORM_BEFORE) {
        a->half1 = take(w, n * c->d_model, e);
        a->half2 = take(w, n * c->d_model, e);
        a->rstd_post1 = take(w, n, 4);
        a->rstd_post2 = take(w, n, 4);
    }
    if (lim->train && c->qk_norm_wide) {
        a->rstd_q = take(w, n, 4);
        a->rstd_k = take(w, n, 4);
    }
}

static int64_t head_rows_max(const struct model *m, const struct run_limits *lim)
{
    int64_t want = lim->head_rows ? lim->head_rows : MAX(m->dev->head_rows / m->c.vocab, 1);
    return MIN(want, MAX(lim->max_tok, 1));
}

/* Does the head's gradient, computed in parts, need memory to be summed in before it is added to the gradient? In the tied case the
 * embedding's is one of the parts; else a piece that is set serves itself. */
static bool head_in_parts(const struct model *m, const struct run_limits *lim)
{
    return lim->train && !m->lora && (m->head_at == m->embed_at || (head_rows_max(m, lim) < lim->max_tok && !lim->by_piece));
}

/* The highest rank of an adapter that a run has room for; 0: it has none for any. */
static int64_t adapter_rank(const struct model *m, const struct run_limits *lim)
{
    return MAX(lim->lora_rank, m->lora ? m->lora->c.rank : 0);
}

static void layout_lora(struct walk *w, struct lora_scratch *s, const struct model *m, const struct run_limits *lim)
{
    const struct model_config *c = &m->c;
    size_t e = dtype_size(m->dtype);
    int64_t low = LORA_PART_MAX * adapter_rank(m, lim), qkv = (c->n_head + 2 * c->n_kv_head) * c->d_head;
    s->rows = MIN(LORA_ROWS, lim->max_tok);
    s->low = take(w, lim->max_tok * low, e);
    s->dlow = lim->train ? take(w, lim->max_tok * low, e) : NULL;
    s->up = take(w, s->rows * MAX(MAX(qkv, 2 * c->d_ff), c->d_model), e);
}

static size_t layout(struct model_run *r, const struct model *m, const struct run_limits *lim, char *base)
{
    struct walk w = { .base = base };
    const struct model_config *c = &m->c;
    size_t e = dtype_size(m->dtype);
    int64_t n = lim->max_tok, q = c->n_head * c->d_head, qkv = q + 2 * c->n_kv_head * c->d_head;
    int64_t head_max = head_rows_max(m, lim);
    r->token = take(&w, n, 4);
    r->pos = take(&w, n, 4);
    r->slot = take(&w, n, 4);
    r->seq = take(&w, lim->max_seq + 1, 4);
    bool own = lim->train && !lim->recompute_block;    // every layer keeps its own set
    struct acts shared = { 0 };
    if (!own)
        layout_acts(&w, &shared, c, lim, e, true);
    for (int64_t l = 0; l < c->n_layer; l++) {
        struct acts a = shared;
        if (own)
            layout_acts(&w, &a, c, lim, e, true);
        else if (lim->train)
            a.res1 = take(&w, n * c->d_model, e);
        if (r->layer)
            r->layer[l] = a;
    }
    r->h = take(&w, n * c->d_model, e);
    r->out = take(&w, n * c->d_model, e);
    r->act = take(&w, n * c->d_ff, e);
    r->resf = take(&w, n * c->d_model, e);
    r->hf = take(&w, n * c->d_model, e);
    r->rstdf = take(&w, n, 4);
    if (adapter_rank(m, lim) > 0)
        layout_lora(&w, &r->lora, m, lim);
    struct head_rows *h = &r->head;
    int32_t **ints[] = { &h->row, &h->target };
    for (size_t i = 0; i < ARRAY_SIZE(ints); i++)
        *ints[i] = take(&w, n, 4);
    float **floats[] = {
        &h->coef, &h->adv, &h->weight, &h->old, &h->ref, &h->log_ratio, &h->rho, &h->logp, &h->entropy, &h->lse, &h->loss
    };
    for (size_t i = 0; i < ARRAY_SIZE(floats); i++)
        *floats[i] = take(&w, n, 4);
    r->hrow = take(&w, head_max * c->d_model, e);
    r->logits = take(&w, head_max * c->vocab, 4);
    if (lim->train) {
        r->dres = take(&w, n * c->d_model, e);
        r->dh = take(&w, n * c->d_model, e);
        r->dao = take(&w, n * q, e);
        r->dqkv = take(&w, n * qkv, e);
        r->dact = take(&w, n * c->d_ff, e);
        r->dhrow = take(&w, head_max * c->d_model, e);
        r->dlogits = m->dtype == DT_F32 ? r->logits : take(&w, head_max * c->vocab, e);
        r->dhead = head_in_parts(m, lim) ? take(&w, c->vocab * c->d_model, 4) : NULL;
    }
    return w.used;
}

size_t model_run_bytes(const struct model *m, const struct run_limits *limits)
{
    struct model_run r = { 0 };
    return layout(&r, m, limits, NULL);
}

/* Bytes of the tables: cos, sin, and what they are for layers with other frequencies or none. */
static size_t rope_layout(struct model_run *r, const struct model_config *c, const struct run_limits *lim, char *base)
{
    struct walk w = { .base = base };
    int64_t half = rope_dims(&c->rope, c->d_head) / 2, n = lim->max_seq_tok * half, n_local = c->has_rope_local ? n : 0;
    r->cos = take(&w, n, 4);
    r->sin = take(&w, n, 4);
    r->cos_local = take(&w, n_local, 4);
    r->sin_local = take(&w, n_local, 4);
    r->cos_still = take(&w, half, 4);
    r->sin_still = take(&w, half, 4);
    r->pos_still = take(&w, lim->max_tok, 4);
    return w.used;
}

/* What a layer's rotation takes: tables, a row for each position, and positions. */
struct turn {
    const float *cos, *sin;
    const int32_t *pos;
    int64_t n_pos;
};
static struct turn turn_of(const struct model_run *r, int64_t l, const int32_t *pos)
{
    if (!config_rotates(&r->m->c, l))
        return (struct turn){ r->cos_still, r->sin_still, r->pos_still, 1 };
    if (r->m->c.has_rope_local && config_slides(&r->m->c, l))
        return (struct turn){ r->cos_local, r->sin_local, pos, r->lim.max_seq_tok };
    return (struct turn){ r->cos, r->sin, pos, r->lim.max_seq_tok };
}

/* eps of the norms that read the residual stream, and the factors of the embedding and of the last norm's output. */
static float stream_eps(const struct model_config *c)
{
    return (float)(c->has_multipliers ? c->rms_eps / (c->multiplier.residual * c->multiplier.residual) : c->rms_eps);
}
static double embed_scale(const struct model *m)
{
    const struct model_config *c = &m->c;
    float root = sqrtf((float)c->d_model);
    if (c->embed_root)
        return m->dtype == DT_BF16 ? bf16_to_f32(bf16_from_f32(root)) : root;
    return c->has_multipliers ? c->multiplier.embedding / c->multiplier.residual : 1;
}
static double head_scale(const struct model_config *c)
{
    return c->has_multipliers ? 1 / c->multiplier.logits : 1;
}

/* Multiply n rows of the model's width. */
static bool rows_scale(struct model_run *r, void *x, int64_t n, double scale, struct error *err)
{
    const struct model *m = r->m;
    return scale == 1
           || OP(m->dev, err, cast, .y = x, .x = x, .n = n * m->c.d_model, .scale = (float)scale, .y_dtype = m->dtype, .x_dtype = m->dtype);
}

/* What cos and sin are multiplied by, on each side of q k, when scores are not divided by the root of d_head: attention does that. */
static double score_scale(const struct model_config *c)
{
    double root = sqrt((double)c->d_head);
    if (c->query_scalar > 0)
        return c->query_scalar == c->d_head ? 1 : sqrt(root / sqrt((double)c->query_scalar));
    return c->has_multipliers ? sqrt(c->multiplier.attention * root) : 1;
}

/* cos and sin as transformers computes them: frequency, angle and result each rounded to fp32. */
static bool rope_table(struct model_run *r, const struct rope *rope, float *cos_at, float *sin_at, struct error *err)
{
    bool ok = false;
    const struct model_config *c = &r->m->c;
    int64_t rot = rope_dims(rope, c->d_head), half = rot / 2, n = r->lim.max_seq_tok * half;
    double *freq = malloc((size_t)half * sizeof *freq);
    float *t = malloc((size_t)n * 2 * sizeof *t);
    if (!freq || !t) {
        error_set(err, ERR_NO_MEMORY, "no memory for RoPE tables of %" PRId64 " positions", r->lim.max_seq_tok);
        goto out;
    }
    double scale = rope_inv_freq(rope, rot, freq) * score_scale(c);
    for (int64_t p = 0; p < r->lim.max_seq_tok; p++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)p * (float)freq[i];
            t[p * half + i] = (float)(cos((double)angle) * scale);
            t[n + p * half + i] = (float)(sin((double)angle) * scale);
        }
    TRY(mem_copy(r->m->dev, cos_at, t, (size_t)n * 4, COPY_H2D, err));
    TRY(mem_copy(r->m->dev, sin_at, t + n, (size_t)n * 4, COPY_H2D, err));
    ok = true;
out:
    free(freq);
    free(t);
    return ok;
}

static bool rope_tables(struct model_run *r, struct error *err)
{
    bool ok = false;
    const struct model_config *c = &r->m->c;
    int64_t half = rope_dims(&c->rope, c->d_head) / 2;
    float still[ROPE_PAIRS_MAX * 4];
    BUG_IF(half > (int64_t)ARRAY_SIZE(still), "heads of %" PRId64, c->d_head);
    for (int64_t i = 0; i < half; i++)
        still[i] = (float)score_scale(c);
    TRY(rope_table(r, &c->rope, r->cos, r->sin, err));
    TRY(!c->has_rope_local || rope_table(r, &c->rope_local, r->cos_local, r->sin_local, err));
    TRY(mem_copy(r->m->dev, r->cos_still, still, (size_t)half * 4, COPY_H2D, err));
    TRY(OP(r->m->dev, err, mem_fill, .y = r->sin_still, .size_bytes = (size_t)half * 4));
    TRY(OP(r->m->dev, err, mem_fill, .y = r->pos_still, .size_bytes = (size_t)r->lim.max_tok * 4));
    ok = true;
out:
    return ok;
}

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
    r->lim = *lim;
    r->lim.lora_rank = adapter_rank(m, lim);
    r->head_max = head_rows_max(m, lim);
    size_t n = (size_t)lim->max_tok;
    r->layer = calloc((size_t)m->c.n_layer, sizeof *r->layer);
    r->host_i = malloc(n * 2 * sizeof *r->host_i);
    r->host_f = malloc(n * 4 * sizeof *r->host_f);
    r->row_index = malloc(n * sizeof *r->row_index);
    r->cu = malloc(((size_t)lim->max_seq + 1) * sizeof *r->cu);
    if (!r->layer || !r->host_i || !r->host_f || !r->row_index || !r->cu) {
        error_set(err, ERR_NO_MEMORY, "no memory for a run of %" PRId64 " tokens", lim->max_tok);
        goto fail;
    }
    if ((lim->train && !model_want_bwd(m, err)) || !(r->tables = mem_new(m->dev, rope_layout(r, &m->c, lim, NULL), "RoPE tables", err)))
        goto fail;
    rope_layout(r, &m->c, lim, r->tables);
    r->mem = lim->mem ? lim->mem : mem_new(m->dev, layout(r, m, lim, NULL), lim->train ? "activations" : "scratch", err);
    if (!r->mem)
        goto fail;
    layout(r, m, lim, r->mem);
    if (!rope_tables(r, err) || (lim->train && !(r->done = mark_new(m->dev, err))))
        goto fail;
    return r;
fail:
    model_run_free(r);
    return NULL;
}

void model_run_free(struct model_run *r)
{
    if (!r)
        return;
    mem_free(r->m->dev, r->tables);
    mark_free(r->m->dev, r->done);
    if (!r->lim.mem)
        mem_free(r->m->dev, r->mem);
    free(r->layer);
    free(r->host_i);
    free(r->host_f);
    free(r->row_index);
    free(r->cu);
    free(r);
}

void model_run_idle(struct model_run *r, bool (*idle)(void *ctx, struct error *err), void *ctx)
{
    r->idle = idle;
    r->idle_ctx = ctx;
}

/* Run the caller's other work, if there is any. */
static bool idle(struct model_run *r, struct error *err)
{
    return !r->idle || r->idle(r->idle_ctx, err);
}

/* Like device_sync, and run the caller's other work meanwhile. */
static bool run_sync(struct model_run *r, struct error *err)
{
    bool done = !r->idle || !r->done;
    if (!done && !mark_set(r->m->dev, r->done, err))
        return false;
    while (!done)
        if (!mark_done(r->m->dev, r->done, &done, err) || !idle(r, err))
            return false;
    return device_sync(r->m->dev, err);
}

void model_run_bind(struct model_run *r, struct model *m)
{
    BUG_IF(m->n_flat != r->m->n_flat || m->dtype != r->m->dtype || m->dev != r->m->dev, "models of different shapes");
    BUG_IF(adapter_rank(m, &(struct run_limits){ 0 }) > r->lim.lora_rank, "an adapter of a higher rank than the run has room for");
    r->m = m;
}

/* ---- forward */
/* What differs between the uses of the forward pass. */
struct pass {
    int64_t n;                     // rows
    const int32_t *token, *pos;    // (n) device
    struct kv_pool *kv;            // keys and values are written here at slot; NULL: nowhere
    const int32_t *slot;
    const struct decode_batch *decode;    // attention over pages; NULL: over the packed sequences r->seq
    const struct decode_batch *past;      // ... over pages, the queries those of r->seq; of it kv_len, page and their sizes
    int64_t max_q;                        // with past: most queries of a sequence
};

static struct attn_bounds bounds_of(const struct model *m, int64_t l)
{
    return (struct attn_bounds){ .window = config_slides(&m->c, l) ? m->c.window : 0, .cap = (float)m->c.attn_cap };
}

static bool attention(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, struct error *err)
{
    struct model *m = r->m;
    struct attn_heads heads = model_heads(m);
    struct attn_bounds bounds = bounds_of(m, l);
    if (p->past)
        return OP(m->dev, err, attn_paged, .out = a->ao, .qkv = a->qkv, .kv = kv_layer(p->kv, l), .page = p->past->page,
                  .kv_len = p->past->kv_len, .q_seq = r->seq, .n = p->n, .n_seq = r->n_seq, .max_page = p->past->max_page,
                  .max_q = p->max_q, .max_kv = p->past->max_kv, .heads = heads, .bounds = bounds, .dtype = m->dtype);
    if (!p->decode)
        return OP(m->dev, err, attn_fwd, .out = a->ao, .lse = a->lse, .qkv = a->qkv, .seq = r->seq, .seq_host = r->cu, .n = p->n,
                  .n_seq = r->n_seq, .heads = heads, .bounds = bounds, .dtype = m->dtype);
    const struct decode_batch *d = p->decode;
    return OP(m->dev, err, attn_paged, .out = a->ao, .qkv = a->qkv, .kv = kv_layer(p->kv, l), .page = d->page, .kv_len = d->kv_len,
              .n = p->n, .n_seq = d->n, .max_page = d->max_page, .max_q = 1, .max_kv = d->max_kv, .heads = heads, .bounds = bounds,
              .dtype = m->dtype);
}

/* The stream after an addition (none: add NULL), and its norm in r->h where the family has one there. */
static bool stream_add(struct model_run *r, void *sum, const void *x, const void *add, int64_t ln, float *rstd, int64_t n,
                       struct error *err)
{
    const struct model *m = r->m;
    if (ln != AT_NONE)
        return OP(m->dev, err, rmsnorm_fwd, .y = r->h, .sum = sum, .x = x, .add = add, .w = model_at(m, ln), .rstd = rstd, .n = n,
                  .d = m->c.d_model, .eps = stream_eps(&m->c), .form = m->c.norm_form, .dtype = m->dtype);
    return !add || OP(m->dev, err, add_fwd, .y = sum, .a = x, .b = add, .n = n * m->c.d_model, .dtype = m->dtype);
}

/* What a half block reads, given the stream. */
static const void *half_input(const struct model_run *r, int64_t ln, const void *stream)
{
    return ln == AT_NONE ? stream : r->h;
}

/* The norm after a half block, from what it gave into r->out. */
static bool half_norm(struct model_run *r, const void *half, int64_t post, float *rstd, int64_t n, struct error *err)
{
    const struct model *m = r->m;
    return post == AT_NONE
           || OP(m->dev, err, rmsnorm_fwd, .y = r->out, .x = half, .w = model_at(m, post), .rstd = rstd, .n = n, .d = m->c.d_model,
                 .eps = (float)m->c.rms_eps, .form = m->c.norm_form, .dtype = m->dtype);
}

/* The columns of a tensor of projections that a norm over all heads covers: the queries' first, then the keys'. */
struct wide_norm {
    int64_t first, d, w;    // columns, and the norm's place in the arena
};
static void wide_norms(const struct model *m, int64_t l, struct wide_norm out[2])
{
    int64_t q = m->c.n_head * m->c.d_head;
    out[0] = (struct wide_norm){ 0, q, m->at[l].q_norm };
    out[1] = (struct wide_norm){ q, m->c.n_kv_head * m->c.d_head, m->at[l].k_norm };
}

/* Norms over all query heads and all key heads, from a->qkv_in into a->qkv (OLMo). */
static bool qk_norm_wide(struct model_run *r, const struct acts *a, int64_t l, int64_t n, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    int64_t ld = (m->c.n_head + 2 * m->c.n_kv_head) * m->c.d_head;
    size_t e = dtype_size(m->dtype);
    float *rstd[] = { a->rstd_q, a->rstd_k };
    struct wide_norm norm[2];
    wide_norms(m, l, norm);
    if (a->qkv != a->qkv_in)
        TRY(mem_copy(m->dev, a->qkv, a->qkv_in, (size_t)(n * ld) * e, COPY_D2D, err));
    for (int k = 0; k < 2; k++) {
        char *part = (char *)a->qkv + (size_t)norm[k].first * e;
        TRY(OP(m->dev, err, rmsnorm_fwd, .y = part, .x = part, .w = model_at(m, norm[k].w), .rstd = rstd[k], .n = n, .d = norm[k].d,
               .ld = ld, .eps = (float)m->c.rms_eps, .form = m->c.norm_form, .dtype = m->dtype));
    }
    ok = true;
out:
    return ok;
}

/* A product of a layer: its matrix, its bias and its place in flat buffers. */
struct linear {
    struct weight *w;
    int64_t at, bias_at, n_out, n_in;
};
static struct linear linear_of(const struct model *m, int64_t l, enum product which)
{
    const struct layer_at *at = &m->at[l];
    const struct layer_w *w = model_layer(m, l);
    int64_t d = m->c.d_model, q = m->c.n_head * m->c.d_head, qkv = q + 2 * m->c.n_kv_head * m->c.d_head;
    switch (which) {
    case PRODUCT_QKV: return (struct linear){ w->qkv, at->qkv, at->qkv_bias, qkv, d };
    case PRODUCT_O: return (struct linear){ w->o, at->o, at->o_bias, d, q };
    case PRODUCT_GATE_UP: return (struct linear){ w->gate_up, at->gate_up, at->gate_up_bias, 2 * m->c.d_ff, d };
    case PRODUCT_DOWN: return (struct linear){ w->down, at->down, at->down_bias, d, m->c.d_ff };
    case PRODUCT_N: break;
    }
    return (struct linear){ 0 };
}

/* y = W x + b, and the adapter's share: n rows. */
static bool product_fwd(struct model_run *r, int64_t l, enum product which, void *y, const void *x, int64_t n, struct error *err)
{
    const struct model *m = r->m;
    struct linear p = linear_of(m, l, which);
    return OP(m->dev, err, linear_fwd, .y = y, .x = x, .w = p.w, .bias = model_at(m, p.bias_at), .n = n, .y_dtype = m->dtype)
           && lora_fwd(m, l, which, &r->lora, y, x, n, err);
}

/* One block from a->res1 on (its sum is done); leaves in r->out the next addend of the residual stream. */
static bool block_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct device *dev = m->dev;
    const struct model_config *c = &m->c;
    const struct layer_at *at = &m->at[l];
    enum dtype t = m->dtype;
    const void *head_q = c->qk_norm_wide ? NULL : model_at(m, at->q_norm), *head_k = c->qk_norm_wide ? NULL : model_at(m, at->k_norm);
    void *half1 = a->half1 ? a->half1 : r->out, *half2 = a->half2 ? a->half2 : r->out;
    struct turn turn = turn_of(r, l, p->pos);
    TRY(product_fwd(r, l, PRODUCT_QKV, a->qkv_in, half_input(r, at->ln1, a->res1), p->n, err));
    TRY(!c->qk_norm_wide || qk_norm_wide(r, a, l, p->n, err));
    TRY(OP(dev, err, rope_fwd, .out = a->qkv, .qkv = c->qk_norm_wide ? a->qkv : a->qkv_in, .cos = turn.cos, .sin = turn.sin,
           .pos = turn.pos, .q_norm = head_q, .k_norm = head_k, .kv = p->kv ? kv_layer(p->kv, l) : NULL, .slot = p->slot, .n = p->n,
           .n_pos = turn.n_pos, .heads = model_heads(m), .rot = (int)rope_dims(&c->rope, c->d_head), .eps = (float)c->rms_eps,
           .form = c->norm_form, .dtype = t));
    TRY(attention(r, a, l, p, err));
    TRY(product_fwd(r, l, PRODUCT_O, half1, a->ao, p->n, err));
    TRY(half_norm(r, half1, at->post1, a->rstd_post1, p->n, err));
    TRY(stream_add(r, a->res2, a->res1, r->out, at->ln2, a->rstd2, p->n, err));
    TRY(product_fwd(r, l, PRODUCT_GATE_UP, a->gu, half_input(r, at->ln2, a->res2), p->n, err));
    TRY(OP(dev, err, swiglu_fwd, .y = r->act, .gu = a->gu, .n = p->n, .f = c->d_ff, .act = c->act, .dtype = t));
    TRY(product_fwd(r, l, PRODUCT_DOWN, half2, r->act, p->n, err));
    TRY(half_norm(r, half2, at->post2, a->rstd_post2, p->n, err));
    ok = true;
out:
    return ok;
}

/* The piece that holds the head's weight. */
static int head_piece(const struct model *m)
{
    return m->head_at == m->embed_at ? 0 : model_n_piece(m) - 1;
}

/* The whole stack up to the last norm, r->hf. */
static bool forward(struct model_run *r, const struct pass *p, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    const struct model_config *c = &m->c;
    int64_t d = c->d_model;
    r->logits_n = 0;
    TRY(model_bind(m, 0, err) && model_ahead(m, 1, err) && model_ahead(m, c->n_layer > 1 ? 2 : -1, err));
    TRY(OP(m->dev, err, rows_gather, .y = r->layer[0].res1, .table = model_at(m, m->embed_at), .row = p->token, .n = p->n,
           .n_row = c->vocab, .d = d, .dtype = m->dtype));
    TRY(rows_scale(r, r->layer[0].res1, p->n, embed_scale(m), err));
    TRY(model_ahead(m, head_piece(m), err));
    for (int64_t l = 0; l < c->n_layer; l++) {
        const struct acts *a = &r->layer[l];
        TRY(model_bind(m, 1 + (int)l, err));
        TRY(stream_add(r, a->res1, l ? r->layer[l - 1].res2 : a->res1, l ? r->out : NULL, m->at[l].ln1, a->rstd1, p->n, err));
        TRY(block_fwd(r, a, l, p, err));
        TRY(l + 2 >= c->n_layer || model_ahead(m, 3 + (int)l, err));    // into the place of this one
        TRY(idle(r, err));
    }
    TRY(OP(m->dev, err, rmsnorm_fwd, .y = r->hf, .sum = r->resf, .x = r->layer[c->n_layer - 1].res2, .add = r->out,
           .w = model_at(m, m->norm_at), .rstd = r->rstdf, .n = p->n, .d = d, .eps = stream_eps(c), .form = c->norm_form,
           .dtype = m->dtype));
    TRY(rows_scale(r, r->hf, p->n, head_scale(c), err));
    ok = true;
out:
    return ok;
}

/* Check a packed batch and put its tokens, positions and bounds on the device. */
static bool batch_upload(struct model_run *r, const struct model_batch *b, struct error *err)
{
    if (b->n_seq < 1 || b->n_seq > r->lim.max_seq || b->n_tok > r->lim.max_tok || b->cu_tok[0] != 0 || b->cu_tok[b->n_seq] != b->n_tok)
        return error_set(err, ERR_SHAPE,
                         "a batch of %" PRId64 " tokens in %" PRId64 " sequences does not fit a run of %" PRId64 " in %" PRId64, b->n_tok,
                         b->n_seq, r->lim.max_tok, r->lim.max_seq);
    for (int64_t s = 0; s < b->n_seq; s++) {
        int64_t len = (int64_t)b->cu_tok[s + 1] - b->cu_tok[s];
        if (len < 1 || len > r->lim.max_seq_tok)
            return error_set(err, ERR_SHAPE, "sequence %" PRId64 " has %" PRId64 " tokens; from 1 to %" PRId64 " are possible", s, len,
                             r->lim.max_seq_tok);
        bool windowed = r->m->c.window && !r->m->dev->attn_bounds, long_rope = r->m->c.rope.type == ROPE_LONG;
        if ((windowed || long_rope || r->m->c.rope.type == ROPE_DYNAMIC) && len > r->m->c.max_pos)    // see rope_max_pos and device_check
            return error_set(err, ERR_UNSUPPORTED,
                             "sequence %" PRId64 " has %" PRId64 " tokens; with %s at most '%s' %" PRId64 " are supported", s, len,
                             windowed    ? "a sliding window"
                             : long_rope ? "longrope"
                                         : "dynamic RoPE",
                             long_rope ? "original_max_position_embeddings" : "max_position_embeddings", r->m->c.max_pos);
        for (int64_t i = 0; i < len; i++)
            r->host_i[b->cu_tok[s] + i] = (int32_t)i;
    }
    for (int64_t i = 0; i < b->n_tok; i++)
        if (b->token[i] < 0 || b->token[i] >= r->m->c.vocab)
            return error_set(err, ERR_DATA, "token %" PRId64 " is %d; the model's vocabulary has %" PRId64, i, b->token[i], r->m->c.vocab);
    memcpy(r->cu, b->cu_tok, ((size_t)b->n_seq + 1) * sizeof *r->cu);
    r->n_tok = b->n_tok;
    r->n_seq = b->n_seq;
    struct device *dev = r->m->dev;
    return mem_copy(dev, r->pos, r->host_i, (size_t)b->n_tok * 4, COPY_H2D, err)
           && mem_copy(dev, r->token, b->token, (size_t)b->n_tok * 4, COPY_H2D, err)
           && mem_copy(dev, r->seq, b->cu_tok, ((size_t)b->n_seq + 1) * 4, COPY_H2D, err);
}

static bool head_fwd(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err)
{
    struct model *m = r->m;
    return model_bind(m, head_piece(m), err)
           && OP(m->dev, err, linear_fwd, .y = logits, .x = x, .w = model_head_weight(m), .n = n, .y_dtype = DT_F32)
           && (!(m->c.logit_cap > 0) || OP(m->dev, err, softcap, .x = logits, .n = n * m->c.vocab, .cap = (float)m->c.logit_cap));
}

/* Positions, page tables and lengths of a prefill that begins after what the pages hold. */
static bool past_upload(struct model_run *r, const struct model_batch *b, const int32_t *start, int32_t *scratch, const int32_t *page,
                        struct decode_batch *past, int64_t *max_q, struct error *err)
{
    struct device *dev = r->m->dev;
    size_t table = (size_t)(b->n_seq * past->max_page);
    int32_t *kv_len = r->host_i + b->n_tok;    // room for as many again
    for (int64_t s = 0; s < b->n_seq; s++) {
        int64_t len = b->cu_tok[s + 1] - b->cu_tok[s];
        if (start[s] < 0 || start[s] + len > r->lim.max_seq_tok)
            return error_set(err, ERR_SHAPE, "a sequence of %d tokens and %" PRId64 " new ones does not fit a run of %" PRId64, start[s],
                             len, r->lim.max_seq_tok);
        for (int64_t i = 0; i < len; i++)
            r->host_i[b->cu_tok[s] + i] = start[s] + (int32_t)i;
        kv_len[s] = start[s] + (int32_t)len;
        past->max_kv = MAX(past->max_kv, kv_len[s]);
        *max_q = MAX(*max_q, len);
    }
    past->page = scratch;
    past->kv_len = scratch + table;
    return mem_copy(dev, r->pos, r->host_i, (size_t)b->n_tok * 4, COPY_H2D, err) && mem_copy(dev, scratch, page, table * 4, COPY_H2D, err)
           && mem_copy(dev, scratch + table, kv_len, (size_t)b->n_seq * 4, COPY_H2D, err);
}

bool model_prefill(struct model_run *r, const struct model_batch *b, struct kv_pool *kv, const int32_t *page, int64_t max_page,
                   float *logits, struct error *err)
{
    return model_prefill_after(r, b, NULL, NULL, kv, page, max_page, logits, err);
}

bool model_prefill_after(struct model_run *r, const struct model_batch *b, const int32_t *start, int32_t *scratch, struct kv_pool *kv,
                         const int32_t *page, int64_t max_page, float *logits, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    int64_t per = m->dev->kv_page_tok;
    struct decode_batch past = { .max_page = max_page };
    struct pass p = { .n = b->n_tok, .token = r->token, .pos = r->pos, .kv = kv, .slot = r->slot, .past = start ? &past : NULL };
    TRY(batch_upload(r, b, err));
    TRY(!start || past_upload(r, b, start, scratch, page, &past, &p.max_q, err));
    for (int64_t s = 0; s < b->n_seq; s++) {
        int64_t from = start ? start[s] : 0, len = from + b->cu_tok[s + 1] - b->cu_tok[s];
        if ((len + per - 1) / per > max_page) {
            error_set(err, ERR_SHAPE, "a prompt of %" PRId64 " tokens needs more than %" PRId64 " pages", len, max_page);
            goto out;
        }
        for (int64_t i = from; i < len; i++)
            r->host_i[b->cu_tok[s] + i - from] = page[s * max_page + i / per] * (int32_t)per + (int32_t)(i % per);
    }
    TRY(mem_copy(m->dev, r->slot, r->host_i, (size_t)b->n_tok * 4, COPY_H2D, err));
    TRY(forward(r, &p, err));
    if (logits) {
        for (int64_t s = 0; s < b->n_seq; s++)
            r->host_i[s] = b->cu_tok[s + 1] - 1;
        TRY(mem_copy(m->dev, r->head.row, r->host_i, (size_t)b->n_seq * 4, COPY_H2D, err));
        // r->h is free by now and has room for one row per token
        TRY(OP(m->dev, err, rows_gather, .y = r->h, .table = r->hf, .row = r->head.row, .n = b->n_seq, .n_row = b->n_tok, .d = m->c.d_model,
               .dtype = m->dtype));
        TRY(head_fwd(r, r->h, b->n_seq, logits, err));
    }
    ok = true;
out:
    return ok;
}

bool model_decode(struct model_run *r, const struct decode_batch *b, struct kv_pool *kv, float *logits, struct error *err)
{
    if (b->n > r->lim.max_tok)
        return error_set(err, ERR_SHAPE, "decoding %" PRId64 " sequences at once does not fit a run of %" PRId64, b->n, r->lim.max_tok);
    struct pass p = { .n = b->n, .token = b->token, .pos = b->pos, .kv = kv, .slot = b->slot, .decode = b };
    return forward(r, &p, err) && head_fwd(r, r->hf, b->n, logits, err);
}

/* ---- head */
/* Gather the rows with a target: fills row_index and the device's row and target. */
static bool head_select(struct model_run *r, const int32_t *target, int64_t *n_head, struct error *err)
{
    int64_t n = 0;
    int32_t *row = r->host_i, *tgt = r->host_i + r->lim.max_tok;
    for (int64_t i = 0; i < r->n_tok; i++) {
        if (target[i] == -1)
            continue;
        if (target[i] < 0 || target[i] >= r->m->c.vocab)
            return error_set(err, ERR_DATA, "target %" PRId64 " is token %d; the model's vocabulary has %" PRId64, i, target[i],
                             r->m->c.vocab);
        r->row_index[n] = i;
        row[n] = (int32_t)i;
        tgt[n] = target[i];
        n++;
    }
    *n_head = n;
    return n == 0
           || (mem_copy(r->m->dev, r->head.row, row, (size_t)n * 4, COPY_H2D, err)
               && mem_copy(r->m->dev, r->head.target, tgt, (size_t)n * 4, COPY_H2D, err));
}

/* Copy src[row_index[k]] for all head rows to the device. */
static bool head_upload(struct model_run *r, float *dst, const float *src, int64_t n, struct error *err)
{
    for (int64_t k = 0; k < n; k++)
        r->host_f[k] = src[r->row_index[k]];
    return mem_copy(r->m->dev, dst, r->host_f, (size_t)n * 4, COPY_H2D, err);
}

/* How many head rows from row0 on, at most max, share a temperature. */
static int64_t same_temperature(const struct model_run *r, const float *temperature, int64_t row0, int64_t max)
{
    int64_t k = 1;
    while (k < max && temperature[r->row_index[row0 + k]] == temperature[r->row_index[row0]])
        k++;
    return k;
}

/* Logits of head rows [row0, row0 + n) into the buffer, unless they are there, and their statistics. */
static bool head_chunk(struct model_run *r, int64_t row0, int64_t n, const float *temperature, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct head_rows *h = &r->head;
    if (r->logits_n == n && r->logits_row0 == row0)
        return true;
    TRY(OP(m->dev, err, rows_gather, .y = r->hrow, .table = r->hf, .row = h->row + row0, .n = n, .n_row = r->n_tok, .d = m->c.d_model,
           .dtype = m->dtype));
    TRY(head_fwd(r, r->hrow, n, r->logits, err));
    for (int64_t i = 0, k; i < n; i += k) {
        k = same_temperature(r, temperature, row0 + i, n - i);
        TRY(OP(m->dev, err, logprob_fwd, .logp = h->logp + row0 + i, .entropy = h->entropy + row0 + i, .lse = h->lse + row0 + i,
               .logits = r->logits + i * m->c.vocab, .id = h->target + row0 + i, .n = k, .vocab = m->c.vocab, .n_live = m->n_live,
               .temperature = temperature[r->row_index[row0 + i]]));
    }
    r->logits_row0 = row0;
    r->logits_n = n;
    ok = true;
out:
    return ok;
}

/* Bring logp and entropy of n head rows back, each to its row. */
static bool head_download(struct model_run *r, int64_t n, float *logp, float *entropy, float *loss, struct error *err)
{
    bool ok = false;
    size_t max = (size_t)r->lim.max_tok;
    float *host[] = { r->host_f, r->host_f + max, r->host_f + 2 * max };
    float *dev[] = { r->head.logp, r->head.entropy, r->head.loss }, *out[] = { logp, entropy, loss };
    for (int i = 0; i < 3; i++)
        if (out[i])
            TRY(mem_copy(r->m->dev, host[i], dev[i], (size_t)n * 4, COPY_D2H, err));
    TRY(run_sync(r, err));
    for (int i = 0; i < 3; i++) {
        if (!out[i])
            continue;
        memset(out[i], 0, (size_t)r->n_tok * 4);
        for (int64_t k = 0; k < n; k++)
            out[i][r->row_index[k]] = host[i][k];
    }
    ok = true;
out:
    return ok;
}

bool model_head(struct model_run *r, const struct token_loss *loss, struct error *err)
{
    bool ok = false;
    int64_t n_head;
    r->logits_n = 0;
    TRY(head_select(r, loss->target, &n_head, err));
    for (int64_t row0 = 0; row0 < n_head; row0 += r->head_max)
        TRY(head_chunk(r, row0, MIN(r->head_max, n_head - row0), loss->temperature, err));
    TRY(head_download(r, n_head, loss->logp, loss->entropy, NULL, err));
    ok = true;
out:
    return ok;
}

bool model_score(struct model_run *r, const struct model_batch *b, const int32_t *target, const float *temperature, float *logp,
                 float *entropy, struct error *err)
{
    struct token_loss loss = { .target = target, .temperature = temperature, .logp = logp, .entropy = entropy };
    if (!batch_upload(r, b, err))
        return false;
    struct pass p = { .n = b->n_tok, .token = r->token, .pos = r->pos };
    return forward(r, &p, err) && model_head(r, &loss, err);
}

bool model_logits(struct model_run *r, float *out, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    size_t row_bytes = (size_t)m->c.d_model * dtype_size(m->dtype);
    r->logits_n = 0;
    for (int64_t row0 = 0; row0 < r->n_tok; row0 += r->head_max) {
        int64_t n = MIN(r->head_max, r->n_tok - row0);
        TRY(head_fwd(r, (char *)r->hf + (size_t)row0 * row_bytes, n, r->logits, err));
        TRY(mem_copy(m->dev, out + row0 * m->c.vocab, r->logits, (size_t)(n * m->c.vocab) * 4, COPY_D2H, err));
        TRY(device_sync(m->dev, err));
    }
    ok = true;
out:
    return ok;
}

/* ---- backward */
bool model_forward_train(struct model_run *r, const struct model_batch *b, struct error *err)
{
    BUG_IF(!r->lim.train || !r->m->for_bwd, "this run or its weights were not made for training");
    if (!batch_upload(r, b, err))
        return false;
    struct pass p = { .n = b->n_tok, .token = r->token, .pos = r->pos };
    return forward(r, &p, err);
}

static bool policy_coef(struct model_run *r, const struct token_loss *loss, int64_t row0, int64_t n, struct error *err)
{
    struct head_rows *h = &r->head;
    if (loss->coef)
        return true;
    return OP(r->m->dev, err, policy_loss, .coef = h->coef + row0, .loss = h->loss + row0, .logp = h->logp + row0,
              .logp_old = h->old + row0, .logp_ref = loss->logp_ref ? h->ref + row0 : NULL, .adv = h->adv + row0,
              .log_ratio = loss->log_ratio ? h->log_ratio + row0 : NULL, .rho = loss->rho ? h->rho + row0 : NULL,
              .weight = h->weight + row0, .n = n, .clip = loss->clip, .kl = loss->kl, .clip_low = loss->clip_low,
              .clip_high = loss->clip_high, .beta = loss->beta);
}

/* Where the gradient of the current piece goes. */
struct place {
    bool set;     // it may hold anything and is overwritten; otherwise it is added to
    float *at;    // address of element `first` of the flat order
    int64_t first;
    int piece;
};
static float *place_of(const struct place *p, int64_t at)
{
    return p->at + (at - p->first);
}
/* Where the gradient of a norm or a bias goes; NULL where the model has no such part, or it is frozen. */
static float *place_or_null(const struct model *m, const struct place *p, int64_t at)
{
    return at == AT_NONE || m->lora ? NULL : place_of(p, at);
}

/* The piece that layer l's gradient belongs to. */
static int piece_of_layer(const struct model *m, int64_t l)
{
    return (int)l + (m->lora ? 0 : 1);
}

static bool place_begin(const struct model *m, const struct model_grad *g, int piece, struct place *out, struct error *err)
{
    model_piece(m, piece, &out->first);
    out->piece = piece;
    out->set = !g->flat;
    out->at = g->flat ? g->flat + out->first : g->piece_begin(g->ctx, piece, err);
    return out->at != NULL;
}

static bool place_end(const struct model_grad *g, const struct place *p, struct error *err)
{
    return g->flat || g->piece_end(g->ctx, p->piece, err);
}

/* Clear the part of an overwritten place that the backward pass adds to, from one element of the flat order to another. */
static bool place_clear(const struct model *m, const struct place *p, int64_t from, int64_t to, struct error *err)
{
    return !p->set || from == to || OP(m->dev, err, mem_fill, .y = place_of(p, from), .size_bytes = (size_t)(to - from) * 4);
}

/* The same for a layer: everything except its matrices, or the whole adapter. */
static bool layer_clear(const struct model *m, const struct place *p, int64_t l, struct error *err)
{
    const struct layer_at *at = &m->at[l];
    int64_t d = m->c.d_model, q = m->c.n_head * m->c.d_head, kv = m->c.n_kv_head * m->c.d_head, first, n = model_piece(m, p->piece, &first);
    if (m->lora)
        return place_clear(m, p, first, first + n, err);
    return place_clear(m, p, first, at->qkv, err) && place_clear(m, p, at->qkv + (q + 2 * kv) * d, at->o, err)
           && place_clear(m, p, at->o + d * q, at->gate_up, err) && place_clear(m, p, at->gate_up + 2 * m->c.d_ff * d, at->down, err)
           && place_clear(m, p, at->down + d * m->c.d_ff, first + n, err);
}

/* Add dhead to the gradient of the head's weight. */
static bool dhead_add(struct model_run *r, const struct place *grad, struct error *err)
{
    const struct model *m = r->m;
    int64_t n = m->c.vocab * m->c.d_model;
    if (grad->set)
        return mem_copy(m->dev, place_of(grad, m->head_at), r->dhead, (size_t)n * 4, COPY_D2D, err);
    return OP(m->dev, err, axpy, .y = place_of(grad, m->head_at), .x = r->dhead, .n = n, .scale = 1);
}

/* The head's part of the backward pass: the gradient by the last norm's output goes into dh, that by the head's weight into
 * grad; a tied head's goes into dhead, to which the embedding's is added later; a frozen head has none. */
static bool head_bwd(struct model_run *r, const struct token_loss *loss, int64_t n_head, const struct model_grad *g, struct error *err)
{
    bool ok = false;
    struct place grad = { 0 };
    struct model *m = r->m;
    struct head_rows *h = &r->head;
    int64_t d = m->c.d_model, vocab = m->c.vocab;
    size_t e = dtype_size(m->dtype);
    bool frozen = m->lora != NULL, own = !frozen && m->head_at != m->embed_at;    // own: a piece of the gradient
    TRY(!own || place_begin(m, g, model_n_piece(m) - 1, &grad, err));
    bool parts = !frozen && (!own || n_head > r->head_max), here = parts && own && grad.set;    // summed up in the piece itself
    TRY(!own || place_clear(m, &grad, n_head == 0 || here ? m->head_at : m->head_at + vocab * d, m->n_flat, err));
    parts = parts && !here;
    if (parts)
        TRY(OP(m->dev, err, mem_fill, .y = r->dhead, .size_bytes = (size_t)(vocab * d) * 4));
    TRY(OP(m->dev, err, mem_fill, .y = r->dh, .size_bytes = (size_t)(r->n_tok * d) * e));
    for (int64_t row0 = 0; row0 < n_head; row0 += r->head_max) {
        int64_t n = MIN(r->head_max, n_head - row0);
        TRY(head_chunk(r, row0, n, loss->temperature, err));
        r->logits_n = 0;    // in fp32 the gradient overwrites them
        TRY(policy_coef(r, loss, row0, n, err));
        for (int64_t i = 0, k; i < n; i += k) {
            k = same_temperature(r, loss->temperature, row0 + i, n - i);
            TRY(OP(m->dev, err, logprob_bwd, .dlogits = (char *)r->dlogits + (size_t)(i * vocab) * e, .logits = r->logits + i * vocab,
                   .lse = h->lse + row0 + i, .coef = h->coef + row0 + i, .id = h->target + row0 + i, .n = k, .vocab = vocab,
                   .n_live = m->n_live, .temperature = loss->temperature[r->row_index[row0 + i]], .cap = (float)m->c.logit_cap,
                   .dtype = m->dtype));
        }
        TRY(OP(m->dev, err, linear_bwd_x, .dx = r->dhrow, .dy = r->dlogits, .w = model_head_weight(m), .n = n));
        TRY(frozen
            || OP(m->dev, err, linear_bwd_w, .dw = parts ? r->dhead : place_of(&grad, m->head_at), .dy = r->dlogits, .x = r->hrow, .n = n,
                  .n_out = vocab, .n_in = d, .dtype = m->dtype, .set = !parts && !here && grad.set));
        TRY(OP(m->dev, err, rows_scatter, .y = r->dh, .x = r->dhrow, .row = h->row + row0, .n = n, .n_row = r->n_tok, .d = d,
               .dtype = m->dtype));
    }
    TRY(!parts || !own || dhead_add(r, &grad, err));
    ok = !own || place_end(g, &grad, err);
out:
    return ok;
}

/* Backward of product_fwd: dx is the gradient by its input x (or what it is added to), dy that by its output; of the matrix and the bias into grad, or of the
 * adapter where the base is frozen. */
static bool product_bwd(struct model_run *r, int64_t l, enum product which, const struct place *grad, void *dx, const void *dy,
                        const void *x, bool accumulate, struct error *err)
{
    const struct model *m = r->m;
    struct linear p = linear_of(m, l, which);
    if (!m->lora
        && !OP(m->dev, err, linear_bwd_w, .dw = place_of(grad, p.at), .dbias = place_or_null(m, grad, p.bias_at), .dy = dy, .x = x,
               .n = r->n_tok, .n_out = p.n_out, .n_in = p.n_in, .dtype = m->dtype, .set = grad->set))
        return false;
    return OP(m->dev, err, linear_bwd_x, .dx = dx, .dy = dy, .w = p.w, .n = r->n_tok, .accumulate = accumulate)
           && lora_bwd(m, l, which, &r->lora, grad->at, dx, dy, x, r->n_tok, err);
}

/* The gradient by a->qkv_in in r->dqkv, from that by what the norms gave. */
static bool qk_norm_wide_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct place *grad, struct error *err)
{
    struct model *m = r->m;
    int64_t ld = (m->c.n_head + 2 * m->c.n_kv_head) * m->c.d_head;
    size_t e = dtype_size(m->dtype);
    float *rstd[] = { a->rstd_q, a->rstd_k };
    struct wide_norm norm[2];
    wide_norms(m, l, norm);
    for (int k = 0; k < 2; k++) {
        char *part = (char *)r->dqkv + (size_t)norm[k].first * e;
        if (!OP(m->dev, err, rmsnorm_bwd, .dx = part, .dw = place_or_null(m, grad, norm[k].w), .dy = part,
                .x = (char *)a->qkv_in + (size_t)norm[k].first * e, .w = model_at(m, norm[k].w), .rstd = rstd[k], .n = r->n_tok,
                .d = norm[k].d, .ld = ld, .form = m->c.norm_form, .dtype = m->dtype))
            return false;
    }
    return true;
}

/* The gradient by what a half block gave, of dres, that by the stream: through the norm after it, in r->dh, or dres itself. */
static bool half_bwd(struct model_run *r, const void *half, int64_t post, const float *rstd, const struct place *grad, const void **out,
                     struct error *err)
{
    const struct model *m = r->m;
    *out = post == AT_NONE ? r->dres : r->dh;
    return post == AT_NONE
           || OP(m->dev, err, rmsnorm_bwd, .dx = r->dh, .dw = place_or_null(m, grad, post), .dy = r->dres, .x = half,
                 .w = model_at(m, post), .rstd = rstd, .n = r->n_tok, .d = m->c.d_model, .form = m->c.norm_form, .dtype = m->dtype);
}

/* A half's first product, and the norm before it if there is one: dres, the gradient by what the half is added to, becomes that by the
 * stream x, which the half reads. dy is the gradient by the product's output. */
static bool half_input_bwd(struct model_run *r, int64_t l, enum product which, int64_t ln, const void *x, const float *rstd, const void *dy,
                           const struct place *grad, struct error *err)
{
    const struct model *m = r->m;
    int64_t n = r->n_tok, d = m->c.d_model;
    if (ln == AT_NONE)
        return product_bwd(r, l, which, grad, r->dres, dy, x, true, err);
    return OP(m->dev, err, rmsnorm_fwd, .y = r->h, .x = x, .w = model_at(m, ln), .n = n, .d = d, .eps = stream_eps(&m->c),
              .form = m->c.norm_form, .dtype = m->dtype)
           && product_bwd(r, l, which, grad, r->dh, dy, r->h, false, err)
           && OP(m->dev, err, rmsnorm_bwd, .dx = r->dres, .dw = place_or_null(m, grad, ln), .dy = r->dh, .dadd = r->dres, .x = x,
                 .w = model_at(m, ln), .rstd = rstd, .n = n, .d = d, .form = m->c.norm_form, .dtype = m->dtype);
}

/* Second half of a block: dres is the gradient by its output and becomes the gradient by res2. */
static bool mlp_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct place *grad, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct device *dev = m->dev;
    const struct layer_at *at = &m->at[l];
    int64_t n = r->n_tok, f = m->c.d_ff;
    enum dtype t = m->dtype;
    const void *dy;
    TRY(half_bwd(r, a->half2, at->post2, a->rstd_post2, grad, &dy, err));
    TRY(OP(dev, err, swiglu_fwd, .y = r->act, .gu = a->gu, .n = n, .f = f, .act = m->c.act, .dtype = t));
    TRY(product_bwd(r, l, PRODUCT_DOWN, grad, r->dact, dy, r->act, false, err));
    TRY(OP(dev, err, swiglu_bwd, .dgu = a->gu, .dy = r->dact, .gu = a->gu, .n = n, .f = f, .act = m->c.act, .dtype = t));
    TRY(half_input_bwd(r, l, PRODUCT_GATE_UP, at->ln2, a->res2, a->rstd2, a->gu, grad, err));
    ok = true;
out:
    return ok;
}

/* First half: dres is the gradient by res2 and becomes the gradient by res1. */
static bool attn_half_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct place *grad, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct device *dev = m->dev;
    const struct layer_at *at = &m->at[l];
    int64_t n = r->n_tok;
    enum dtype t = m->dtype;
    struct turn turn = turn_of(r, l, r->pos);
    bool wide = m->c.qk_norm_wide;
    const void *dy, *head_q = wide ? NULL : model_at(m, at->q_norm), *head_k = wide ? NULL : model_at(m, at->k_norm);
    TRY(half_bwd(r, a->half1, at->post1, a->rstd_post1, grad, &dy, err));
    TRY(product_bwd(r, l, PRODUCT_O, grad, r->dao, dy, a->ao, false, err));
    TRY(OP(dev, err, attn_bwd, .dqkv = r->dqkv, .dout = r->dao, .out = a->ao, .lse = a->lse, .qkv = a->qkv, .seq = r->seq,
           .seq_host = r->cu, .n = n, .n_seq = r->n_seq, .heads = model_heads(m), .bounds = bounds_of(m, l), .dtype = t));
    TRY(OP(dev, err, rope_bwd, .dqkv = r->dqkv, .qkv = a->qkv_in, .cos = turn.cos, .sin = turn.sin, .pos = turn.pos, .q_norm = head_q,
           .k_norm = head_k, .dq_norm = head_q ? place_or_null(m, grad, at->q_norm) : NULL,
           .dk_norm = head_k ? place_or_null(m, grad, at->k_norm) : NULL, .n = n, .n_pos = turn.n_pos, .heads = model_heads(m),
           .rot = (int)rope_dims(&m->c.rope, m->c.d_head), .eps = (float)m->c.rms_eps, .form = m->c.norm_form, .dtype = t));
    TRY(!wide || qk_norm_wide_bwd(r, a, l, grad, err));
    TRY(half_input_bwd(r, l, PRODUCT_QKV, at->ln1, a->res1, a->rstd1, r->dqkv, grad, err));
    ok = true;
out:
    return ok;
}

/* Run a block's forward again from its input, into the shared activations. */
static bool block_again(struct model_run *r, const struct acts *a, int64_t l, struct error *err)
{
    struct model *m = r->m;
    struct pass p = { .n = r->n_tok, .token = r->token, .pos = r->pos };
    return stream_add(r, a->res1, a->res1, NULL, m->at[l].ln1, a->rstd1, p.n, err) && block_fwd(r, a, l, &p, err);
}

/* The embedding's part: dres is the gradient by the residual stream at its beginning. */
static bool embedding_bwd(struct model_run *r, const struct model_grad *grad, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct place to;
    bool tied = m->head_at == m->embed_at;
    int64_t first, n = model_piece(m, 0, &first);
    TRY(rows_scale(r, r->dres, r->n_tok, embed_scale(m), err));
    TRY(place_begin(m, grad, 0, &to, err) && place_clear(m, &to, tied ? m->c.vocab * m->c.d_model : 0, n, err));
    TRY(OP(m->dev, err, embed_bwd, .dtable = tied ? r->dhead : place_of(&to, m->embed_at), .dy = r->dres, .row = r->token, .n = r->n_tok,
           .n_row = m->c.vocab, .d = m->c.d_model, .dtype = m->dtype));
    TRY(!tied || dhead_add(r, &to, err));
    ok = place_end(grad, &to, err);
out:
    return ok;
}

bool model_backward(struct model_run *r, const struct token_loss *loss, const struct model_grad *grad, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct place to;
    int64_t n_head, n_kept = r->logits_n, row0_kept = r->logits_row0;
    BUG_IF(!r->lim.train || (r->lim.by_piece && grad->flat), "this run was not made for such training");
    TRY(head_select(r, loss->target, &n_head, err));
    r->logits_n = n_kept == n_head ? n_kept : 0;    // model_head left all of them: no need to compute them again
    r->logits_row0 = row0_kept;
    const struct {
        float *dst;
        const float *src;
    } up[] = {
        { r->head.coef, loss->coef },
        { r->head.adv, loss->coef ? NULL : loss->adv },
        { r->head.weight, loss->coef ? NULL : loss->weight },
        { r->head.old, loss->coef ? NULL : loss->logp_old },
        { r->head.ref, loss->coef ? NULL : loss->logp_ref },
        { r->head.log_ratio, loss->coef ? NULL : loss->log_ratio },
        { r->head.rho, loss->coef ? NULL : loss->rho },
    };
    for (size_t i = 0; i < ARRAY_SIZE(up); i++)
        if (up[i].src)
            TRY(head_upload(r, up[i].dst, up[i].src, n_head, err));
    TRY(model_bind(m, head_piece(m), err) && head_bwd(r, loss, n_head, grad, err));
    TRY(model_ahead(m, 0, err));    // for the next forward pass
    TRY(model_bind(m, (int)m->c.n_layer, err));
    TRY(rows_scale(r, r->dh, r->n_tok, head_scale(&m->c), err));
    TRY(place_begin(m, grad, piece_of_layer(m, m->c.n_layer - 1), &to, err) && layer_clear(m, &to, m->c.n_layer - 1, err));
    TRY(OP(m->dev, err, rmsnorm_bwd, .dx = r->dres, .dw = place_or_null(m, &to, m->norm_at), .dy = r->dh, .x = r->resf,
           .w = model_at(m, m->norm_at), .rstd = r->rstdf, .n = r->n_tok, .d = m->c.d_model, .form = m->c.norm_form, .dtype = m->dtype));
    for (int64_t l = m->c.n_layer - 1; l >= 0; l--) {
        TRY(model_bind(m, 1 + (int)l, err));
        if (r->lim.recompute_block)
            TRY(block_again(r, &r->layer[l], l, err));
        TRY(l == m->c.n_layer - 1 || (place_begin(m, grad, piece_of_layer(m, l), &to, err) && layer_clear(m, &to, l, err)));
        TRY(mlp_bwd(r, &r->layer[l], l, &to, err));
        TRY(attn_half_bwd(r, &r->layer[l], l, &to, err));
        TRY(l < 2 || model_ahead(m, (int)l - 1, err));
        TRY(place_end(grad, &to, err) && idle(r, err));
    }
    TRY(m->lora || embedding_bwd(r, grad, err));
    TRY(head_download(r, n_head, loss->logp, loss->entropy, loss->coef ? NULL : loss->loss, err));
    ok = true;
out:
    return ok;
}
