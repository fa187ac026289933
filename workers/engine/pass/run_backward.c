/* run_backward.c - the backward pass, by hand: the head's, the blocks' and the embedding's
 *
 * run_places.c has the places of gradients. Where a model has an adapter, only the adapter's gradient is
 * computed: none of matrices, norms, biases, embedding and head, and the pass ends below the first layer. */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

static bool policy_coef(struct model_run *r, const struct token_loss *loss, int64_t row0, int64_t n, struct error *err)
{
    struct head_rows *h = &r->head;
    if (loss->coef)
        return true;
    return OP(r->m->dev, err, policy_loss, .coef = h->coef + row0, .loss = h->loss + row0, .logp = h->logp + row0,
              .logp_old = h->old + row0, .logp_ref = loss->logp_ref ? h->ref + row0 : NULL, .adv = h->adv + row0,
              .log_ratio = loss->log_ratio ? h->log_ratio + row0 : NULL, .rho = loss->rho ? h->rho + row0 : NULL,
              .weight = h->weight + row0, .n = n, .form = loss->form);
}

/* What the loss takes from the host for each row. */
static bool loss_upload(struct model_run *r, const struct token_loss *loss, int64_t n_head, struct error *err)
{
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
        if (up[i].src && !head_upload(r, up[i].dst, up[i].src, n_head, err))
            return false;
    return true;
}

/* Loss and both gradients of the head, chunk by chunk of its rows. */
static bool head_bwd_chunks(struct model_run *r, const struct token_loss *loss, int64_t n_head, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct head_rows *h = &r->head;
    int64_t vocab = m->c.vocab;
    size_t e = dtype_size(m->dtype);
    TRY(loss_upload(r, loss, n_head, err));
    for (int64_t row0 = 0; row0 < n_head; row0 += r->head_max) {
        int64_t n = MIN(r->head_max, n_head - row0);
        struct head_part c = { .dlogits = r->dlogits, .x = r->hrow, .row = h->row + row0, .n = n, .ld = vocab };
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
        TRY(r->form->head_rows(r, &c, err));
    }
    ok = true;
out:
    return ok;
}

/* The head's part of the backward pass: the gradient by the last norm's output goes into dh, that by the head's weight into
 * grad; a tied head's goes into dhead, to which the embedding's is added later; a frozen head has none.
 *
 * Where the loss is revised, logits that fit one chunk are looked at first, and kept for their gradient. More would have to be computed
 * twice; unless a change is likely, the gradient is made of the loss as it is, and again from 0 only if that was revised. What is cleared
 * is all that the chunks add to: with several chunks the head's own gradient is not yet in grad. */
static bool head_bwd(struct model_run *r, const struct token_loss *loss, int64_t n_head, const struct model_grad *g, struct error *err)
{
    bool ok = false, look_first = loss->revise && (loss->revise_likely || n_head <= r->head_max);
    if (look_first) {
        TRY(head_all(r, loss, n_head, err));
        loss->revise(loss->revise_ctx);
    }
    TRY(r->form->head_begin(r, n_head, g, err));
    TRY(head_bwd_chunks(r, loss, n_head, err));
    if (loss->revise && !look_first) {
        TRY(head_download_begin(r, n_head, err) && head_download_end(r, n_head, loss->logp, loss->entropy, NULL, err));
        if (loss->revise(loss->revise_ctx))
            TRY(r->form->head_clear(r, err) && head_bwd_chunks(r, loss, n_head, err));
    }
    ok = r->form->head_end(r, g, err);
out:
    return ok;
}

/* The gradient by what a half block gave, of dres, that by the stream: through the norm after it, in r->dh, or dres itself. */
static bool half_bwd(struct model_run *r, const void *half, int64_t post, const float *rstd, const struct grad_place *grad,
                     const void **out, struct error *err)
{
    const struct model *m = r->m;
    *out = post == AT_NONE ? r->dres : r->dh;
    return post == AT_NONE
           || OP(m->dev, err, rmsnorm_bwd, .dx = r->dh, .dw = place_or_null(r, grad, post), .dy = r->dres, .x = half,
                 .w = model_at(m, post), .rstd = rstd, .n = r->n_tok, .d = m->c.d_model, .form = m->c.norm_form, .dtype = m->dtype);
}

/* The backward pass of what a half begins with. dqkv as below. */
static bool half_first_bwd(struct model_run *r, const struct acts *a, int64_t l, const void *dqkv, const struct grad_place *grad, void *dx,
                           const void *x, bool accumulate, struct error *err)
{
    return dqkv ? product_bwd(r, l, PRODUCT_QKV, grad, dx, dqkv, x, accumulate, err)
                : mlp_of(&r->m->c, l)->input_bwd(r, a, l, grad, dx, x, accumulate, err);
}

/* What a half begins with, and the norm before it if there is one: dres, the gradient by what the half is added to, becomes that by the
 * stream x, which the half reads. dqkv: the gradient by the first half's first product; NULL: it is the second half. */
static bool half_input_bwd(struct model_run *r, const struct acts *a, int64_t l, const void *dqkv, int64_t ln, const void *x, void *h,
                           const float *rstd, const struct grad_place *grad, struct error *err)
{
    const struct model *m = r->m;
    int64_t n = r->n_tok, d = m->c.d_model;
    if (ln == AT_NONE)
        return half_first_bwd(r, a, l, dqkv, grad, r->dres, x, true, err);
    return (h != r->h
            || OP(m->dev, err, rmsnorm_fwd, .y = h, .x = x, .w = model_at(m, ln), .n = n, .d = d, .eps = stream_eps(&m->c),
                  .form = m->c.norm_form, .dtype = m->dtype))
           && half_first_bwd(r, a, l, dqkv, grad, r->dh, h, false, err)
           && OP(m->dev, err, rmsnorm_bwd, .dx = r->dres, .dw = place_or_null(r, grad, ln), .dy = r->dh, .dadd = r->dres, .x = x,
                 .w = model_at(m, ln), .rstd = rstd, .n = n, .d = d, .form = m->c.norm_form, .dtype = m->dtype);
}

/* Second half of a block: dres is the gradient by its output and becomes the gradient by res2. */
static bool mlp_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, struct error *err)
{
    bool ok = false;
    const struct layer_at *at = &r->m->at[l];
    const void *dy;
    TRY(half_bwd(r, a->half2, at->post2, a->rstd_post2, grad, &dy, err));
    TRY(mlp_of(&r->m->c, l)->bwd(r, a, l, grad, dy, err));
    TRY(half_input_bwd(r, a, l, NULL, at->ln2, a->res2, a->h2, a->rstd2, grad, err));
    ok = true;
out:
    return ok;
}

/* First half: dres is the gradient by res2 and becomes the gradient by res1. */
static bool mix_half_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, struct error *err)
{
    bool ok = false;
    const struct mix_kind *mix = mix_of(&r->m->c, l);
    const struct layer_at *at = &r->m->at[l];
    const void *dy, *mixed;
    TRY(half_bwd(r, a->half1, at->post1, a->rstd_post1, grad, &dy, err));
    TRY(mix->again(r, a, l, &mixed, err));
    TRY(product_bwd(r, l, PRODUCT_O, grad, r->dao, dy, mixed, false, err));
    TRY(mix->bwd(r, a, l, grad, &dy, err));
    TRY(half_input_bwd(r, a, l, dy, at->ln1, a->res1, a->h1, a->rstd1, grad, err));
    ok = true;
out:
    return ok;
}

/* Run a block's forward again from its input, into the shared activations. */
static bool block_again(struct model_run *r, const struct acts *a, int64_t l, struct error *err)
{
    struct model *m = r->m;
    struct pass p = { .n = r->n_tok, .token = r->token, .pos = r->pos };
    return stream_add(r, a->h1, a->res1, a->res1, NULL, m->at[l].ln1, a->rstd1, p.n, err) && block_fwd(r, a, l, &p, err);
}

/* The gradient by a stage's first stream: to the embedding, which it has, or to the stage that reads it next. */
static bool stream_bwd(struct model_run *r, const struct model_grad *grad, struct error *err)
{
    const struct model *m = r->m;
    size_t bytes = (size_t)(r->n_tok * m->c.d_model) * dtype_size(m->dtype);
    bool first = m->own.first == 0;
    if (first && m->own.embed)
        return r->grads->embedding(r, grad, err);
    return (!first || rows_scale(r, r->dres, r->n_tok, embed_scale(m), err)) && mem_copy(m->dev, r->dinput, r->dres, bytes, COPY_D2D, err)
           && (!first || mem_copy(m->dev, r->dinput_token, r->token, (size_t)r->n_tok * 4, COPY_D2D, err));
}

bool layers_bwd(struct model_run *r, const struct model_grad *grad, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct grad_place to;
    bool begun;    // the last layer's place
    TRY(r->end->bwd(r, grad, &to, &begun, err));
    for (int64_t l = m->own.end - 1; l >= m->own.first; l--) {
        TRY(model_bind(m, 1 + (int)l, err));
        if (r->lim.recompute_block)
            TRY(block_again(r, &r->layer[l], l, err));
        TRY(begun || layer_begin(r, grad, l, &to, err));
        begun = false;
        TRY(mlp_bwd(r, &r->layer[l], l, &to, err));
        TRY(mix_half_bwd(r, &r->layer[l], l, &to, err));
        TRY(l < m->own.first + 2 || model_ahead(m, (int)l - 1, err));
        TRY(place_end(grad, &to, err) && run_idle(r, err));
    }
    ok = stream_bwd(r, grad, err);
out:
    return ok;
}

bool model_backward(struct model_run *r, const struct token_loss *loss, const struct model_grad *grad, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    int64_t n_head;
    BUG_IF(!r->lim.train || !r->form->layers_bwd || (r->lim.by_piece && grad->flat), "this run was not made for such training");
    r->logits_n = 0;
    TRY(head_select(r, loss->target, &n_head, err));
    TRY(model_bind(m, head_piece(m), err) && head_bwd(r, loss, n_head, grad, err));
    TRY(model_ahead(m, 0, err));                 // for the next forward pass
    TRY(head_download_begin(r, n_head, err));    // what the host does with it goes on beside the layers
    TRY(r->form->layers_bwd(r, grad, err));
    TRY(head_download_end(r, n_head, loss->logp, loss->entropy, loss->coef ? NULL : loss->loss, err));
    ok = true;
out:
    return ok;
}
