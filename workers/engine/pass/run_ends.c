/* run_ends.c - what follows the last layer of a run's model: the last norm and the head, or the edge to a pipeline's next stage */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

static size_t rows_bytes(const struct model_run *r, int64_t n)
{
    return (size_t)(n * r->m->c.d_model) * dtype_size(r->m->dtype);
}

/* ---- the last norm and the head */
int64_t run_head_rows(const struct model *m, const struct run_limits *lim)
{
    int64_t want = lim->head_rows ? lim->head_rows : MAX(m->dev->head_rows / m->c.vocab, 1);
    return MIN(want, MAX(lim->max_tok, 1));
}

static void head_layout(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim)
{
    const struct model_config *c = &m->c;
    size_t e = dtype_size(m->dtype);
    int64_t head_max = run_head_rows(m, lim);
    bool copies = m->n_slice && lim->train;    // of the gradient by the logits, which the first device computes
    r->hrow = walk_take(w, head_max * c->d_model, e);
    r->logits = walk_take(w, head_max * (c->vocab + (copies ? 1 : 0)), copies ? e : 4);
    if (lim->train)
        r->dlogits = m->dtype == DT_F32 || copies ? r->logits : walk_take(w, head_max * c->vocab, e);
}

static void head_layout_kept(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim, UNUSED void **dedge)
{
    size_t e = dtype_size(m->dtype);
    int64_t n = lim->max_tok, d = m->c.d_model;
    r->resf = walk_take(w, n * d, e);
    r->hf = walk_take(w, n * d, e);
    r->rstdf = walk_take(w, n, 4);
}

static void head_layout_bwd(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim, bool in_parts)
{
    int64_t d = m->c.d_model;
    r->dhrow = walk_take(w, run_head_rows(m, lim) * d, dtype_size(m->dtype));
    r->dheads = r->dhead = in_parts ? walk_take(w, MAX(lim->n_shared, 1) * m->c.vocab * d, 4) : NULL;
}

static bool head_end_fwd(struct model_run *r, int64_t n, struct error *err)
{
    const struct model *m = r->m;
    const struct model_config *c = &m->c;
    return OP(m->dev, err, rmsnorm_fwd, .y = r->hf, .sum = r->resf, .x = r->layer[c->n_layer - 1].res2, .add = r->out,
              .w = model_at(m, m->norm_at), .rstd = r->rstdf, .n = n, .d = c->d_model, .eps = stream_eps(c), .form = c->norm_form,
              .dtype = m->dtype)
           && rows_scale(r, r->hf, n, head_scale(c), err);
}

/* The last norm's gradient belongs to the last layer's piece. */
static bool head_end_bwd(struct model_run *r, const struct model_grad *g, struct grad_place *to, bool *begun, struct error *err)
{
    struct model *m = r->m;
    *begun = true;
    return model_bind(m, (int)m->c.n_layer, err) && rows_scale(r, r->dh, r->n_tok, head_scale(&m->c), err)
           && layer_begin(r, g, m->c.n_layer - 1, to, err)
           && OP(m->dev, err, rmsnorm_bwd, .dx = r->dres, .dw = place_or_null(r, to, m->norm_at), .dy = r->dh, .x = r->resf,
                 .w = model_at(m, m->norm_at), .rstd = r->rstdf, .n = r->n_tok, .d = m->c.d_model, .form = m->c.norm_form,
                 .dtype = m->dtype);
}

const struct run_end end_head = { head_layout, head_layout_kept, head_layout_bwd, head_end_fwd, head_end_bwd };

/* ---- the edge to the next stage */
static void edge_layout(UNUSED struct walk *w, UNUSED struct model_run *r, UNUSED const struct model *m,
                        UNUSED const struct run_limits *lim)
{
}

static void edge_layout_kept(struct walk *w, struct model_run *r, const struct model *m, const struct run_limits *lim, void **dedge)
{
    size_t e = dtype_size(m->dtype);
    int64_t n = lim->max_tok * m->c.d_model;
    r->edge = walk_take(w, n, e);
    *dedge = lim->train ? walk_take(w, n, e) : NULL;
}

static void edge_layout_bwd(UNUSED struct walk *w, struct model_run *r, UNUSED const struct model *m, UNUSED const struct run_limits *lim,
                            UNUSED bool in_parts)
{
    r->dhrow = NULL;
    r->dheads = r->dhead = NULL;
}

static bool edge_fwd(struct model_run *r, int64_t n, struct error *err)
{
    return stream_add(r, NULL, r->edge, r->layer[r->m->own.end - 1].res2, r->out, AT_NONE, NULL, n, err);
}

static bool edge_bwd(struct model_run *r, UNUSED const struct model_grad *g, UNUSED struct grad_place *to, bool *begun, struct error *err)
{
    *begun = false;
    return mem_copy(r->m->dev, r->dres, r->dedge, rows_bytes(r, r->n_tok), COPY_D2D, err);
}

const struct run_end end_edge = { edge_layout, edge_layout_kept, edge_layout_bwd, edge_fwd, edge_bwd };
