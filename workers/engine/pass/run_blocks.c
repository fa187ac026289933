/* run_blocks.c - the forward pass through the layers, up to the last norm */
#include <math.h>
#include "workers/engine/pass/kv.h"
#include "workers/engine/pass/lora_product.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

float stream_eps(const struct model_config *c)
{
    return (float)(c->has_multipliers ? c->rms_eps / (c->multiplier.residual * c->multiplier.residual) : c->rms_eps);
}
double embed_scale(const struct model *m)
{
    const struct model_config *c = &m->c;
    float root = sqrtf((float)c->d_model);
    if (c->embed_root)
        return m->dtype == DT_BF16 ? bf16_to_f32(bf16_from_f32(root)) : root;
    return c->has_multipliers ? c->multiplier.embedding / c->multiplier.residual : 1;
}
double head_scale(const struct model_config *c)
{
    return c->has_multipliers ? 1 / c->multiplier.logits : 1;
}

bool rows_scale(struct model_run *r, void *x, int64_t n, double scale, struct error *err)
{
    const struct model *m = r->m;
    return scale == 1
           || OP(m->dev, err, cast, .y = x, .x = x, .n = n * m->c.d_model, .scale = (float)scale, .y_dtype = m->dtype, .x_dtype = m->dtype);
}

struct attn_bounds bounds_of(const struct model *m, int64_t l)
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
        return attn_packed(r, a, l, p->n, err);
    const struct decode_batch *d = p->decode;
    return OP(m->dev, err, attn_paged, .out = a->ao, .qkv = a->qkv, .kv = kv_layer(p->kv, l), .page = d->page, .kv_len = d->kv_len,
              .n = p->n, .n_seq = d->n, .max_page = d->max_page, .max_q = 1, .max_kv = d->max_kv, .heads = heads, .bounds = bounds,
              .dtype = m->dtype);
}

bool stream_add(struct model_run *r, void *h, void *sum, const void *x, const void *add, int64_t ln, float *rstd, int64_t n,
                struct error *err)
{
    const struct model *m = r->m;
    if (ln != AT_NONE)
        return OP(m->dev, err, rmsnorm_fwd, .y = h, .sum = sum, .x = x, .add = add, .w = model_at(m, ln), .rstd = rstd, .n = n,
                  .d = m->c.d_model, .eps = stream_eps(&m->c), .form = m->c.norm_form, .dtype = m->dtype);
    return !add || OP(m->dev, err, add_fwd, .y = sum, .a = x, .b = add, .n = n * m->c.d_model, .dtype = m->dtype);
}

/* What a half block reads, given the stream. */
static const void *half_input(const void *h, int64_t ln, const void *stream)
{
    return ln == AT_NONE ? stream : h;
}

/* The norm after a half block, from what it gave into r->out. */
static bool half_norm(struct model_run *r, const void *half, int64_t post, float *rstd, int64_t n, struct error *err)
{
    const struct model *m = r->m;
    return post == AT_NONE
           || OP(m->dev, err, rmsnorm_fwd, .y = r->out, .x = half, .w = model_at(m, post), .rstd = rstd, .n = n, .d = m->c.d_model,
                 .eps = (float)m->c.rms_eps, .form = m->c.norm_form, .dtype = m->dtype);
}

void wide_norms(const struct model *m, int64_t l, struct wide_norm out[2])
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

struct linear linear_of(const struct model *m, int64_t l, enum product which)
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

/* Does a norm that adds it to the stream come right after this product, and nothing else read it? The backward pass reads only what norms
 * after a half were given. */
static bool is_for_norm(const struct model *m, int64_t l, enum product which)
{
    bool last = l + 1 == m->own.end;
    if (m->lora)
        return false;
    return which == PRODUCT_O ? m->at[l].post1 == AT_NONE && m->at[l].ln2 != AT_NONE
                              : which == PRODUCT_DOWN && m->at[l].post2 == AT_NONE && (last ? m->own.head : m->at[l + 1].ln1 != AT_NONE);
}

/* Does nothing but swiglu_fwd read this product? In training the backward pass does. */
static bool is_for_gate(const struct model *m, enum product which, const struct pass *p)
{
    return which == PRODUCT_GATE_UP && p->decode && !m->lora;
}

bool one_product(struct model_run *r, int64_t l, enum product which, const struct linear *w, void *y, const void *x, const struct pass *p,
                 bool for_norm, struct error *err)
{
    const struct model *m = r->m;
    return OP(m->dev, err, linear_fwd, .y = y, .x = x, .w = w->w, .bias = model_at(m, w->bias_at), .n = p->n, .y_dtype = m->dtype,
              .for_norm = for_norm, .for_gate = is_for_gate(m, which, p))
           && lora_fwd(m, l, which, &r->lora, y, x, p->n, err);
}

/* y = W x + b, and the adapter's share: a row per token of the pass. */
static bool product_fwd(struct model_run *r, int64_t l, enum product which, void *y, const void *x, const struct pass *pass,
                        struct error *err)
{
    struct linear w = linear_of(r->m, l, which);
    return r->form->product(r, l, which, &w, y, x, pass, is_for_norm(r->m, l, which), err);
}

/* What the rest of a block reads of a pass: its rows of the attention's output and of the stream. */
struct rest {
    struct pass pass;
    const void *ao, *res1;
};
/* After the last attention only the wanted rows go on: their copies come into a->qkv, which nothing reads any more. */
static bool rest_of(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, struct rest *rest, struct error *err)
{
    const struct model *m = r->m;
    int64_t d = m->c.d_model, q = m->c.n_head * m->c.d_head, n = p->n_wanted;
    *rest = (struct rest){ *p, a->ao, a->res1 };
    if (!p->wanted || l + 1 < m->c.n_layer)
        return true;
    void *ao = a->qkv, *res1 = (char *)a->qkv + (size_t)(n * q) * dtype_size(m->dtype);
    rest->pass.n = n;
    rest->ao = ao;
    rest->res1 = res1;
    return OP(m->dev, err, rows_gather, .y = ao, .table = a->ao, .row = p->wanted, .n = n, .n_row = p->n, .d = q, .dtype = m->dtype)
           && OP(m->dev, err, rows_gather, .y = res1, .table = a->res1, .row = p->wanted, .n = n, .n_row = p->n, .d = d, .dtype = m->dtype);
}

/* What the second half computes: one MLP, or the layer's experts. */
static bool mlp_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, void *y, const void *x, struct error *err)
{
    const struct model *m = r->m;
    if (m->at[l].router != AT_NONE)
        return experts_fwd(r, a, l, p, y, x, err);
    return product_fwd(r, l, PRODUCT_GATE_UP, a->gu, x, p, err)
           && OP(m->dev, err, swiglu_fwd, .y = a->act, .gu = a->gu, .n = p->n, .f = m->c.d_ff, .act = m->c.act, .dtype = m->dtype)
           && product_fwd(r, l, PRODUCT_DOWN, y, a->act, p, err);
}

bool block_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, struct error *err)
{
    bool ok = false;
    struct rest rest;
    struct model *m = r->m;
    struct device *dev = m->dev;
    const struct model_config *c = &m->c;
    const struct layer_at *at = &m->at[l];
    enum dtype t = m->dtype;
    const void *head_q = c->qk_norm_wide ? NULL : model_at(m, at->q_norm), *head_k = c->qk_norm_wide ? NULL : model_at(m, at->k_norm);
    void *half1 = a->half1 ? a->half1 : r->out, *half2 = a->half2 ? a->half2 : r->out;
    struct rotation turn = rotation_of(r, l, p->pos);
    TRY(product_fwd(r, l, PRODUCT_QKV, a->qkv_in, half_input(a->h1, at->ln1, a->res1), p, err));
    TRY(!c->qk_norm_wide || qk_norm_wide(r, a, l, p->n, err));
    TRY(OP(dev, err, rope_fwd, .out = a->qkv, .qkv = c->qk_norm_wide ? a->qkv : a->qkv_in, .cos = turn.cos, .sin = turn.sin,
           .pos = turn.pos, .q_norm = head_q, .k_norm = head_k, .kv = p->kv ? kv_layer(p->kv, l) : NULL, .slot = p->slot, .n = p->n,
           .n_pos = turn.n_pos, .heads = model_heads(m), .rot = (int)rope_dims(&c->rope, c->d_head), .eps = (float)c->rms_eps,
           .form = c->norm_form, .dtype = t, .for_decode = p->decode && !p->past && !p->decode->in_runs));
    TRY(attention(r, a, l, p, err));
    TRY(rest_of(r, a, l, p, &rest, err));
    int64_t n = rest.pass.n;
    TRY(product_fwd(r, l, PRODUCT_O, half1, rest.ao, &rest.pass, err));
    TRY(half_norm(r, half1, at->post1, a->rstd_post1, n, err));
    TRY(stream_add(r, a->h2, a->res2, rest.res1, r->out, at->ln2, a->rstd2, n, err));
    TRY(mlp_fwd(r, a, l, &rest.pass, half2, half_input(a->h2, at->ln2, a->res2), err));
    TRY(half_norm(r, half2, at->post2, a->rstd_post2, n, err));
    ok = true;
out:
    return ok;
}

bool one_embed(struct model_run *r, void *y, const struct pass *p, struct error *err)
{
    const struct model *m = r->m;
    const struct model *has = m->table ? m->table : m;
    return OP(m->dev, err, rows_gather, .y = y, .table = model_embedding(has), .row = p->token, .n = p->n, .n_row = m->c.vocab,
              .d = m->c.d_model, .dtype = m->dtype);
}

bool run_forward(struct model_run *r, const struct pass *p, struct error *err)
{
    r->logits_n = 0;
    return r->form->forward(r, p, err);
}

bool one_forward(struct model_run *r, const struct pass *p, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    const struct model_config *c = &m->c;
    int64_t d = c->d_model;
    int piece = 1 + (int)m->own.first;    // of the first layer that is here
    TRY(model_bind(m, 0, err) && model_ahead(m, piece, err) && model_ahead(m, m->own.first + 1 < m->own.end ? piece + 1 : -1, err));
    if (m->own.first == 0)
        TRY(r->form->embed(r, r->layer[0].res1, p, err) && rows_scale(r, r->layer[0].res1, p->n, embed_scale(m), err));
    else
        TRY(mem_copy(m->dev, r->layer[m->own.first].res1, r->input, (size_t)(p->n * d) * dtype_size(m->dtype), COPY_D2D, err));
    TRY(model_ahead(m, head_piece(m), err));
    for (int64_t l = m->own.first; l < m->own.end; l++) {
        const struct acts *a = &r->layer[l];
        TRY(model_bind(m, 1 + (int)l, err));
        bool goes_on = l > m->own.first;
        TRY(stream_add(r, a->h1, a->res1, goes_on ? r->layer[l - 1].res2 : a->res1, goes_on ? r->out : NULL, m->at[l].ln1, a->rstd1, p->n,
                       err));
        TRY(block_fwd(r, a, l, p, err));
        TRY(l + 2 >= m->own.end || model_ahead(m, 3 + (int)l, err));    // into the place of this one
        TRY(run_idle(r, err));
    }
    int64_t n = p->wanted ? p->n_wanted : p->n;
    if (!m->own.head)
        return stream_add(r, NULL, r->edge, r->layer[m->own.end - 1].res2, r->out, AT_NONE, NULL, p->n, err);
    TRY(OP(m->dev, err, rmsnorm_fwd, .y = r->hf, .sum = r->resf, .x = r->layer[c->n_layer - 1].res2, .add = r->out,
           .w = model_at(m, m->norm_at), .rstd = r->rstdf, .n = n, .d = d, .eps = stream_eps(c), .form = c->norm_form, .dtype = m->dtype));
    TRY(rows_scale(r, r->hf, n, head_scale(c), err));
    ok = true;
out:
    return ok;
}
