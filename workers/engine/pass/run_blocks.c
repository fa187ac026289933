/* run_blocks.c - the forward pass through the layers, up to the last norm */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

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

bool one_product(struct model_run *r, int64_t l, enum product which, const struct linear *w, void *y, const void *x, const struct pass *p,
                 struct product_use use, struct error *err)
{
    const struct model *m = r->m;
    return OP(m->dev, err, linear_fwd, .y = y, .x = x, .w = w->w, .bias = model_at(m, w->bias_at), .n = p->n, .y_dtype = m->dtype,
              .for_norm = use.for_norm, .for_gate = use.for_gate)
           && r->grads->add(r, l, which, y, x, p->n, err);
}

/* What the rest of a block reads of a pass: its rows of what the first half has mixed and of the stream. */
struct rest {
    struct pass pass;
    const void *mixed, *res1;
};
/* After the last layer has mixed its tokens only the wanted rows go on: their copies come into a->qkv, which nothing reads any more. */
static bool rest_of(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, const void *all, struct rest *rest,
                    struct error *err)
{
    const struct model *m = r->m;
    int64_t d = m->c.d_model, w = config_mix_width(&m->c, config_is_delta(&m->c, l)), n = p->n_wanted;
    *rest = (struct rest){ *p, all, a->res1 };
    if (!p->wanted || l + 1 < m->c.n_layer)
        return true;
    void *mixed = a->qkv, *res1 = (char *)a->qkv + (size_t)(n * w) * dtype_size(m->dtype);
    rest->pass.n = n;
    rest->mixed = mixed;
    rest->res1 = res1;
    return OP(m->dev, err, rows_gather, .y = mixed, .table = all, .row = p->wanted, .n = n, .n_row = p->n, .d = w, .dtype = m->dtype)
           && OP(m->dev, err, rows_gather, .y = res1, .table = a->res1, .row = p->wanted, .n = n, .n_row = p->n, .d = d, .dtype = m->dtype);
}

bool block_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, struct error *err)
{
    bool ok = false;
    struct rest rest;
    struct model *m = r->m;
    const struct mix_kind *mix = mix_of(&m->c, l);
    const struct layer_at *at = &m->at[l];
    void *half1 = a->half1 ? a->half1 : r->out, *half2 = a->half2 ? a->half2 : r->out;
    const void *mixed;
    TRY(product_fwd(r, l, PRODUCT_QKV, mix->into(r, a), half_input(a->h1, at->ln1, a->res1), p, err));
    TRY(mix->fwd(r, a, l, p, &mixed, err));
    TRY(rest_of(r, a, l, p, mixed, &rest, err));
    int64_t n = rest.pass.n;
    TRY(product_fwd(r, l, PRODUCT_O, half1, rest.mixed, &rest.pass, err));
    TRY(half_norm(r, half1, at->post1, a->rstd_post1, n, err));
    TRY(stream_add(r, a->h2, a->res2, rest.res1, r->out, at->ln2, a->rstd2, n, err));
    TRY(mlp_of(&m->c, l)->fwd(r, a, l, &rest.pass, half2, half_input(a->h2, at->ln2, a->res2), err));
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
    TRY(r->end->fwd(r, p->wanted ? p->n_wanted : p->n, err));
    ok = true;
out:
    return ok;
}
