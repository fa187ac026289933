/* run_delta.c - the first half of a block that is a gated delta net
 *
 *   [q k v | z | b | a] = Win h     [q k v] = silu(conv(q k v))     o = delta_rule(q, k, v, b, a)     norm(o) silu(z) to the last product
 *
 * ops.h has the formulas. Its memory of the past is a state per sequence and layer: in packed batches each sequence begins with none; in
 * prefills and decode steps it is in the sequence's slot of the pool. It is computed token by token everywhere, so a token has the same
 * bits wherever its sequence is cut. The projection, what the convolution gave, and o are kept for the backward pass; the states are
 * not. */
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/kv.h"
#include "workers/engine/pass/run_impl.h"

static void *delta_into(UNUSED struct model_run *r, const struct acts *a)
{
    return a->qkv_in;
}

/* The rows' sequences; p NULL: those of the batch, which begin with no state. */
static struct delta_seqs seqs_of(const struct model_run *r, int64_t l, const struct pass *p)
{
    struct delta_seqs of = { .seq = r->seq, .n = r->n_tok, .n_seq = r->n_seq };
    if (p && p->decode)
        of = (struct delta_seqs){ .n = p->n, .n_seq = p->n };
    const int32_t *slot = !p ? NULL : p->decode ? p->decode->state : p->state;
    if (slot) {
        of.slot = slot;
        of.pos = p->pos;
        of.state = kv_states(p->kv, l);
    }
    return of;
}

static bool norm_apply(struct model_run *r, const struct acts *a, int64_t l, int64_t n, const void **mixed, struct error *err)
{
    const struct model *m = r->m;
    *mixed = r->mixed;
    return OP(m->dev, err, gated_norm_fwd, .y = r->mixed, .o = a->ao, .row = a->qkv_in, .w = model_at(m, m->at[l].gate_norm), .n = n,
              .eps = (float)m->c.rms_eps, .heads = m->c.delta.heads, .dtype = m->dtype);
}

static bool delta_fwd(struct model_run *r, const struct acts *a, int64_t l, const struct pass *p, const void **mixed, struct error *err)
{
    const struct model *m = r->m;
    const struct layer_at *at = &m->at[l];
    struct delta_heads h = m->c.delta.heads;
    struct delta_seqs of = seqs_of(r, l, p);
    BUG_IF(p->decode && !of.slot, "a decode step of a model with states, without any");
    return OP(m->dev, err, conv4_fwd, .y = a->qkv, .x = a->qkv_in, .w = model_at(m, at->conv), .of = of, .heads = h, .dtype = m->dtype)
           && OP(m->dev, err, delta_rule_fwd, .o = a->ao, .x = a->qkv, .row = a->qkv_in, .a_log = model_at(m, at->a_log),
                 .dt_bias = model_at(m, at->dt_bias), .of = of, .heads = h, .dtype = m->dtype)
           && norm_apply(r, a, l, p->n, mixed, err);
}

static bool delta_again(struct model_run *r, const struct acts *a, int64_t l, const void **mixed, struct error *err)
{
    return norm_apply(r, a, l, r->n_tok, mixed, err);
}

static bool delta_bwd(struct model_run *r, const struct acts *a, int64_t l, const struct grad_place *grad, const void **dy,
                      struct error *err)
{
    const struct model *m = r->m;
    const struct layer_at *at = &m->at[l];
    struct delta_heads h = m->c.delta.heads;
    struct delta_seqs of = seqs_of(r, l, NULL);
    *dy = r->dqkv;
    return OP(m->dev, err, gated_norm_bwd, .dout = r->dao, .drow = r->dqkv, .dw = place_or_null(r, grad, at->gate_norm), .dy = r->dao,
              .o = a->ao, .row = a->qkv_in, .w = model_at(m, at->gate_norm), .n = r->n_tok, .eps = (float)m->c.rms_eps, .heads = h,
              .dtype = m->dtype)
           && OP(m->dev, err, delta_rule_bwd, .dx = r->dconv, .drow = r->dqkv, .da_log = place_or_null(r, grad, at->a_log),
                 .ddt_bias = place_or_null(r, grad, at->dt_bias), .room = r->delta_room, .dout = r->dao, .x = a->qkv, .row = a->qkv_in,
                 .a_log = model_at(m, at->a_log), .dt_bias = model_at(m, at->dt_bias), .of = of, .heads = h, .dtype = m->dtype)
           && OP(m->dev, err, conv4_bwd, .dx = r->dqkv, .dw = place_or_null(r, grad, at->conv), .dy = r->dconv, .x = a->qkv_in,
                 .w = model_at(m, at->conv), .of = of, .heads = h, .dtype = m->dtype);
}

const struct mix_kind mix_delta = { .into = delta_into, .fwd = delta_fwd, .again = delta_again, .bwd = delta_bwd };
