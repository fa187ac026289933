/* run_places.c - where gradients go: the places of a model's pieces, and the gradient of head and embedding, which may be one tensor
 *
 * A gradient that is computed in several parts (the head's by chunks of rows, with the embedding's where they are tied) is summed in
 * dhead first, so that each element of the gradient is added to once. */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

bool place_clear(const struct model *m, const struct grad_place *p, int64_t from, int64_t to, struct error *err)
{
    return !p->set || from == to || OP(m->dev, err, mem_fill, .y = place_of(p, from), .size_bytes = (size_t)(to - from) * 4);
}

static bool place_begin(const struct model *m, const struct model_grad *g, int piece, struct grad_place *out, struct error *err)
{
    model_piece(m, piece, &out->first);
    out->piece = piece;
    bool adds = g->flat && !g->set;
    out->at = g->flat ? g->flat + out->first : g->piece_begin(g->ctx, piece, &adds, err);
    out->set = !adds;
    return out->at != NULL;
}

bool place_end(const struct model_grad *g, const struct grad_place *p, struct error *err)
{
    return g->flat || g->piece_end(g->ctx, p->piece, err);
}

bool layer_begin(struct model_run *r, const struct model_grad *g, int64_t l, struct grad_place *out, struct error *err)
{
    return place_begin(r->m, g, r->grads->piece(l), out, err) && r->grads->layer_clear(r->m, out, l, err);
}

/* Add dhead to the gradient of the head's weight. */
static bool dhead_add(struct model_run *r, const struct grad_place *grad, struct error *err)
{
    const struct model *m = r->m;
    int64_t n = m->c.vocab * m->c.d_model;
    if (grad->set)
        return mem_copy(m->dev, place_of(grad, m->head_at), r->dhead, (size_t)n * 4, COPY_D2D, err);
    return OP(m->dev, err, axpy, .y = place_of(grad, m->head_at), .x = r->dhead, .n = n, .scale = 1);
}

/* Is the gradient of a matrix that head and embedding share summed up where it belongs? Only where nothing is there yet, and where no other
 * micro-batch is under way: it is added once. */
static bool tied_here(const struct model_run *r, const struct model_grad *g)
{
    return r->m->head_at == r->m->embed_at && g->flat && g->set && r->lim.n_shared == 0;
}

bool head_bwd_begin(struct model_run *r, int64_t n_head, const struct model_grad *g, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct head_grad *h = &r->head_grad;
    *h = (struct head_grad){ .frozen = r->grads->frozen, .none = n_head == 0, .sum = r->dhead, .fresh = true };
    h->own = !h->frozen && m->head_at != m->embed_at;
    TRY(!h->own || place_begin(m, g, model_n_piece(m) - 1, &h->to, err));
    if (h->own && (h->to.set || n_head <= r->head_max)) {
        h->sum = place_of(&h->to, m->head_at);
        h->fresh = h->to.set;
    } else if (tied_here(r, g)) {
        h->sum = g->flat + m->head_at;
    }
    h->clear_from = h->none ? m->head_at : m->head_at + m->c.vocab * m->c.d_model;
    ok = head_bwd_clear(r, err);
out:
    return ok;
}

bool head_bwd_clear(struct model_run *r, struct error *err)
{
    const struct model *m = r->m;
    struct head_grad *h = &r->head_grad;
    int64_t d = m->c.d_model;
    h->empty = h->fresh;
    return (!h->own || place_clear(m, &h->to, h->clear_from, m->flat.n_flat, err))
           && (h->own || h->frozen || !h->none
               || OP(m->dev, err, mem_fill, .y = h->sum, .size_bytes = (size_t)(m->c.vocab * d) * 4))    // for the embedding's
           && OP(m->dev, err, mem_fill, .y = r->dh, .size_bytes = (size_t)(r->n_tok * d) * dtype_size(m->dtype));
}

bool head_bwd_rows(struct model_run *r, const struct head_part *c, struct error *err)
{
    const struct model *m = r->m;
    struct head_grad *h = &r->head_grad;
    int64_t d = m->c.d_model;
    if (m->parts > 1
            ? !head_sum(r, r->dhrow, c->dlogits, c->n, c->ld, err)
            : !OP(m->dev, err, linear_bwd_x, .dx = r->dhrow, .dy = c->dlogits, .w = model_head_weight(m), .n = c->n, .lddy = c->ld))
        return false;
    if (!h->frozen
        && !OP(m->dev, err, linear_bwd_w, .dw = h->sum, .dy = c->dlogits, .x = c->x, .n = c->n, .n_out = m->c.vocab, .n_in = d,
               .lddy = c->ld, .dtype = m->dtype, .set = h->empty, .any_cut = m->parts > 0))
        return false;
    h->empty = false;
    return OP(m->dev, err, rows_scatter, .y = r->dh, .x = r->dhrow, .row = c->row, .n = c->n, .n_row = r->n_tok, .d = d, .dtype = m->dtype);
}

bool head_bwd_end(struct model_run *r, const struct model_grad *g, struct error *err)
{
    const struct head_grad *h = &r->head_grad;
    return !h->own || ((h->sum != r->dhead || dhead_add(r, &h->to, err)) && place_end(g, &h->to, err));
}

bool embed_grad(struct model_run *r, const struct model_grad *grad, const void *dy, const int32_t *token, int64_t n_tok, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct grad_place to;
    bool tied = m->head_at == m->embed_at, apart = tied && !tied_here(r, grad);
    int64_t first, n = model_piece(m, 0, &first);
    TRY(place_begin(m, grad, 0, &to, err) && place_clear(m, &to, tied ? m->c.vocab * m->c.d_model : 0, n, err));
    TRY(OP(m->dev, err, embed_bwd, .dtable = apart ? r->dhead : place_of(&to, m->embed_at), .dy = dy, .row = token, .n = n_tok,
           .first = m->vocab_first, .n_row = m->c.vocab, .slice = m->n_slice > 0, .d = m->c.d_model, .dtype = m->dtype));
    TRY(!apart || dhead_add(r, &to, err));
    ok = place_end(grad, &to, err);
out:
    return ok;
}

bool embedding_bwd(struct model_run *r, const struct model_grad *grad, struct error *err)
{
    return rows_scale(r, r->dres, r->n_tok, embed_scale(r->m), err) && embed_grad(r, grad, r->dres, r->token, r->n_tok, err);
}
