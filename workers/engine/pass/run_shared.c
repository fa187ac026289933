/* run_shared.c - attention over packed sequences, of which some share their first rows (model_batch.prefix)
 *
 * The samples of a group have one prompt. All of a layer but attention works on rows by themselves, so a prompt's rows are in the batch
 * once. Attention sees every sequence with all of its rows: queries, keys and values of shared ones are copied there, what comes out at a
 * copy is left, and the gradients by copies are added up in order. What a row gives has the bits that it has without sharing. */
#include <inttypes.h>
#include <string.h>
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

/* Is what sequence s shares there, and is there room for all that attention sees? */
static bool prefix_check(const struct model_run *r, const struct model_batch *b, int64_t s, int64_t seen, struct error *err)
{
    const struct shared_prefix *p = &b->prefix[s];
    if (seen > r->lim.max_tok)
        return error_set(err, ERR_SHAPE,
                         "a batch whose sequences have more than %" PRId64 " tokens together does not fit a run of that many",
                         r->lim.max_tok);
    if (p->n_tok == 0)
        return true;
    if (p->n_tok < 0 || p->seq < 0 || p->seq >= s || b->prefix[p->seq].n_tok != 0 || p->n_tok > b->cu_tok[p->seq + 1] - b->cu_tok[p->seq])
        return error_set(err, ERR_SHAPE, "sequence %" PRId64 " shares %d tokens of sequence %d, which does not have them", s, p->n_tok,
                         p->seq);
    return true;
}

bool seen_put(struct model_run *r, const struct model_batch *b, struct error *err)
{
    struct seen_rows *seen = &r->seen;
    struct device *dev = r->m->dev;
    int64_t n = 0, room = r->lim.max_tok;
    int32_t *row = r->host_i, *own = row + room, *at = own + room, *copy = at + room, *first = copy + room;
    seen->n = 0;
    if (!b->prefix)
        return true;
    BUG_IF(!r->lim.shares, "a run of sequences that share rows was not made for them");
    for (int64_t s = 0; s < b->n_seq; s++) {
        const struct shared_prefix *p = &b->prefix[s];
        int64_t len = b->cu_tok[s + 1] - b->cu_tok[s];
        if (!prefix_check(r, b, s, n + p->n_tok + len, err))
            return false;
        r->cu[s] = (int32_t)n;
        for (int64_t i = 0; i < p->n_tok; i++, n++) {
            row[n] = b->cu_tok[p->seq] + (int32_t)i;
            own[n] = -1;
        }
        for (int64_t i = 0; i < len; i++, n++) {
            row[n] = own[n] = b->cu_tok[s] + (int32_t)i;
            at[row[n]] = (int32_t)n;
        }
    }
    r->cu[b->n_seq] = (int32_t)n;
    seen->n = n;
    memset(first, 0, ((size_t)b->n_tok + 1) * sizeof *first);    // counted, added up, and moved on by one as each is placed
    for (int64_t i = 0; i < n; i++)
        first[row[i] + 1]++;
    for (int64_t i = 0; i < b->n_tok; i++)
        first[i + 1] += first[i];
    for (int64_t i = 0; i < n; i++)
        copy[first[row[i]]++] = (int32_t)i;
    memmove(first + 1, first, (size_t)b->n_tok * sizeof *first);
    first[0] = 0;
    return mem_copy(dev, seen->row, row, (size_t)n * 4, COPY_H2D, err) && mem_copy(dev, seen->own, own, (size_t)n * 4, COPY_H2D, err)
           && mem_copy(dev, seen->at, at, (size_t)b->n_tok * 4, COPY_H2D, err)
           && mem_copy(dev, seen->copy, copy, (size_t)n * 4, COPY_H2D, err)
           && mem_copy(dev, seen->first, first, ((size_t)b->n_tok + 1) * 4, COPY_H2D, err);
}

/* y, the seen rows of x (r->n_tok, d). */
static bool see(struct model_run *r, void *y, const void *x, int64_t d, struct error *err)
{
    return OP(r->m->dev, err, rows_gather, .y = y, .table = x, .row = r->seen.row, .n = r->seen.n, .n_row = r->n_tok, .d = d,
              .dtype = r->m->dtype);
}

bool attn_packed(struct model_run *r, const struct acts *a, int64_t l, int64_t n, struct error *err)
{
    const struct model *m = r->m;
    bool shared = r->seen.n > 0;
    void *out = shared ? r->seen_ao : a->ao;
    return (!shared || see(r, r->seen_qkv, a->qkv, config_qkv_width(&m->c, false), err))
           && OP(m->dev, err, attn_fwd, .out = out, .lse = a->lse, .qkv = shared ? r->seen_qkv : a->qkv, .seq = r->seq, .seq_host = r->cu,
                 .n = shared ? r->seen.n : n, .n_seq = r->n_seq, .heads = model_heads(m), .bounds = bounds_of(m, l), .dtype = m->dtype)
           && (!shared
               || OP(m->dev, err, rows_gather, .y = a->ao, .table = out, .row = r->seen.at, .n = n, .n_row = r->seen.n,
                     .d = config_mix_width(&m->c, false), .dtype = m->dtype));
}

/* Nothing comes back to a copy's output: the batch's row has its own. */
static bool see_dao(struct model_run *r, struct error *err)
{
    const struct model *m = r->m;
    int64_t d = config_mix_width(&m->c, false);
    return OP(m->dev, err, mem_fill, .y = r->seen_dao, .size_bytes = (size_t)(r->seen.n * d) * dtype_size(m->dtype))
           && OP(m->dev, err, rows_gather, .y = r->seen_dao, .table = r->dao, .row = r->seen.own, .n = r->seen.n, .n_row = r->n_tok, .d = d,
                 .slice = true, .dtype = m->dtype);
}

bool attn_packed_bwd(struct model_run *r, const struct acts *a, int64_t l, struct error *err)
{
    const struct model *m = r->m;
    bool shared = r->seen.n > 0;
    return (!shared
            || (see(r, r->seen_qkv, a->qkv, config_qkv_width(&m->c, false), err)
                && see(r, r->seen_ao, a->ao, config_mix_width(&m->c, false), err) && see_dao(r, err)))
           && OP(m->dev, err, attn_bwd, .dqkv = shared ? r->seen_dqkv : r->dqkv, .dout = shared ? r->seen_dao : r->dao,
                 .out = shared ? r->seen_ao : a->ao, .lse = a->lse, .qkv = shared ? r->seen_qkv : a->qkv, .seq = r->seq, .seq_host = r->cu,
                 .n = shared ? r->seen.n : r->n_tok, .n_seq = r->n_seq, .heads = model_heads(m), .bounds = bounds_of(m, l),
                 .dtype = m->dtype)
           && (!shared
               || OP(m->dev, err, rows_join, .y = r->dqkv, .x = r->seen_dqkv, .row = r->seen.copy, .first = r->seen.first, .n = r->n_tok,
                     .n_row = r->seen.n, .d = config_qkv_width(&m->c, false), .dtype = m->dtype));
}
