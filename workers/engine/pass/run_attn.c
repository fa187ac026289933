/* run_attn.c - the first half of a block that is attention: norms of heads, rotation, attention, and gates of heads where there are some */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/kv.h"
#include "workers/engine/pass/run_impl.h"

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

/* The columns of a tensor of projections that a norm over all heads covers. */
struct wide_norm {
    size_t first_bytes;    // in a row
    int64_t d, ld;         // columns, of the ld of a row
    int64_t at;            // the norm's place in the arena
    const void *w;         // what is there
    float *rstd;           // borrowed from the activations
};
/* Layer l's: the queries' norm, then the keys'. */
static void wide_norms(const struct model *m, const struct acts *a, int64_t l, struct wide_norm out[2])
{
    const struct layer_at *at = &m->at[l];
    int64_t q = m->c.n_head * m->c.d_head, kv = m->c.n_kv_head * m->c.d_head, ld = config_qkv_width(&m->c, false);
    out[0] = (struct wide_norm){ 0, q, ld, at->q_norm, model_at(m, at->q_norm), a->rstd_q };
    out[1] = (struct wide_norm){ (size_t)q * dtype_size(m->dtype), kv, ld, at->k_norm, model_at(m, at->k_norm), a->rstd_k };
}

/* Norms over all query heads and all key heads, from a->qkv_in into a->qkv (OLMo). */
static bool qk_norm_wide(struct model_run *r, const struct acts *a, int64_t l, int64_t n, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    struct wide_norm norm[2];
    wide_norms(m, a, l, norm);
    if (a->qkv != a->qkv_in)
        TRY(mem_copy(m->dev, a->qkv, a->qkv_in, (size_t)(n * norm[0].ld) * dtype_size(m->dtype), COPY_D2D, err));
    for (int k = 0; k < 2; k++) {
        char *part = (char *)a->qkv + norm[k].first_bytes;
        TRY(OP(m->dev, err, rmsnorm_fwd, .y = part, .x = part, .w = norm[k].w, .rstd = norm[k].rstd, .n = n, .d = norm[k].d,
               .ld = norm[k].ld, .eps = (float)m->c.rms_eps, .form = m->c.norm_form, .dtype = m->dtype));
    }
    ok = true;
out:
    return ok;
}

static void *attn_into(UNUSED struct model_run *r, const struct acts *a)
{
    return a->qkv_in;
}

/* From a->qkv_in to a->ao. */
static bool attn_fwd_rows(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, struct error *err)
{
    const struct model *m = r->m;
    const struct model_config *c = &m->c;
    const struct layer_at *at = &m->at[l];
    const void *head_q = c->qk_norm_wide ? NULL : model_at(m, at->q_norm), *head_k = c->qk_norm_wide ? NULL : model_at(m, at->k_norm);
    struct rotation turn = rotation_of(r, l, p->pos);
    return (!c->qk_norm_wide || qk_norm_wide(r, a, l, p->n, err))
           && OP(m->dev, err, rope_fwd, .out = a->qkv, .qkv = c->qk_norm_wide ? a->qkv : a->qkv_in, .cos = turn.cos, .sin = turn.sin,
                 .pos = turn.pos, .q_norm = head_q, .k_norm = head_k, .kv = p->kv ? kv_layer(p->kv, l) : NULL, .slot = p->slot, .n = p->n,
                 .n_pos = turn.n_pos, .heads = model_heads(m), .rot = (int)rope_dims(&c->rope, c->d_head), .eps = (float)c->rms_eps,
                 .form = c->norm_form, .dtype = m->dtype, .for_decode = p->decode && !p->past && !p->decode->in_runs)
           && attention(r, a, l, p, err);
}

static bool attn_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, const void **mixed, struct error *err)
{
    *mixed = a->ao;
    return attn_fwd_rows(r, a, l, p, err);
}

static bool attn_again(UNUSED struct model_run *r, const struct acts *a, UNUSED int64_t l, const void **mixed, UNUSED struct error *err)
{
    *mixed = a->ao;
    return true;
}

/* The gradient by a->qkv_in in r->dqkv, from that by what the norms gave. */
static bool qk_norm_wide_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, struct error *err)
{
    struct model *m = r->m;
    struct wide_norm norm[2];
    wide_norms(m, a, l, norm);
    for (int k = 0; k < 2; k++) {
        char *part = (char *)r->dqkv + norm[k].first_bytes;
        if (!OP(m->dev, err, rmsnorm_bwd, .dx = part, .dw = place_or_null(r, grad, norm[k].at), .dy = part,
                .x = (char *)a->qkv_in + norm[k].first_bytes, .w = norm[k].w, .rstd = norm[k].rstd, .n = r->n_tok, .d = norm[k].d,
                .ld = norm[k].ld, .form = m->c.norm_form, .dtype = m->dtype))
            return false;
    }
    return true;
}

/* Rotation and the norms of each head: dqkv becomes the gradient by a->qkv_in. */
static bool rotation_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, struct error *err)
{
    struct model *m = r->m;
    const struct layer_at *at = &m->at[l];
    struct rotation turn = rotation_of(r, l, r->pos);
    bool head_norms = m->c.qk_norm && !m->c.qk_norm_wide;
    int parts = norm_parts(m);
    int64_t hd = m->c.d_head;
    float *dq = head_norms ? place_or_null(r, grad, at->q_norm) : NULL, *dk = head_norms ? place_or_null(r, grad, at->k_norm) : NULL;
    if (parts && !OP(m->dev, err, mem_fill, .y = r->dnorm, .size_bytes = (size_t)(2 * parts * hd) * sizeof *r->dnorm))
        return false;
    return OP(m->dev, err, rope_bwd, .dqkv = r->dqkv, .qkv = a->qkv_in, .cos = turn.cos, .sin = turn.sin, .pos = turn.pos,
              .q_norm = head_norms ? model_at(m, at->q_norm) : NULL, .k_norm = head_norms ? model_at(m, at->k_norm) : NULL,
              .dq_norm = parts ? r->dnorm : dq, .dk_norm = parts ? r->dnorm + parts * hd : dk, .n = r->n_tok, .n_pos = turn.n_pos,
              .heads = model_heads(m), .parts = parts, .rot = (int)rope_dims(&m->c.rope, hd), .eps = (float)m->c.rms_eps,
              .form = m->c.norm_form, .dtype = m->dtype)
           && (!parts || norm_sum(r, dq, dk, err));
}

static bool attn_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void **dy,
                     struct error *err)
{
    *dy = r->dqkv;
    return attn_packed_bwd(r, a, l, err) && rotation_bwd(r, a, l, grad, err)
           && (!r->m->c.qk_norm_wide || qk_norm_wide_bwd(r, a, l, grad, err));
}

const struct mix_kind mix_attn = { .into = attn_into, .fwd = attn_fwd, .again = attn_again, .bwd = attn_bwd };

/* ---- with gates: each head's output is multiplied by the sigmoid of its gate (Qwen3-Next, Qwen3.5; arXiv 2505.06708) */
static void *gated_into(struct model_run *r, UNUSED const struct acts *a)
{
    return r->both;
}

/* n rows of a->ao times their gates. */
static bool gates_apply(struct model_run *r, const struct acts *a, int64_t n, const void **mixed, struct error *err)
{
    const struct model *m = r->m;
    *mixed = r->mixed;
    return OP(m->dev, err, gate_fwd, .y = r->mixed, .x = a->ao, .gate = a->gate, .n = n * m->c.n_head * m->c.d_head, .dtype = m->dtype);
}

static bool gated_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, const void **mixed, struct error *err)
{
    const struct model *m = r->m;
    return OP(m->dev, err, gate_split, .qkv = a->qkv_in, .gate = a->gate, .both = r->both, .n = p->n, .heads = model_heads(m),
              .dtype = m->dtype)
           && attn_fwd_rows(r, a, l, p, err) && gates_apply(r, a, p->n, mixed, err);
}

static bool gated_again(struct model_run *r, const struct acts *a, UNUSED int64_t l, const void **mixed, struct error *err)
{
    return gates_apply(r, a, r->n_tok, mixed, err);
}

static bool gated_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void **dy,
                      struct error *err)
{
    const struct model *m = r->m;
    const void *dqkv;
    *dy = r->dboth;
    return OP(m->dev, err, gate_bwd, .dx = r->dao, .dgate = r->dgate, .dy = r->dao, .x = a->ao, .gate = a->gate,
              .n = r->n_tok * m->c.n_head * m->c.d_head, .dtype = m->dtype)
           && attn_bwd(r, a, l, grad, &dqkv, err)
           && OP(m->dev, err, gate_join, .both = r->dboth, .qkv = dqkv, .gate = r->dgate, .n = r->n_tok, .heads = model_heads(m),
                 .dtype = m->dtype);
}

const struct mix_kind mix_gated = { .into = gated_into, .fwd = gated_fwd, .again = gated_again, .bwd = gated_bwd };
