/* run_batch.c - what is asked of a run: a batch is checked, put on the device, and prefilled, decoded, scored or trained on */
#include <inttypes.h>
#include <string.h>
#include "workers/engine/pass/kv.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

bool run_batch_put(struct model_run *r, const struct model_batch *b, struct error *err)
{
    if (b->n_seq < 1 || b->n_seq > r->lim.max_seq || b->n_tok > r->lim.max_tok || b->cu_tok[0] != 0 || b->cu_tok[b->n_seq] != b->n_tok)
        return error_set(err, ERR_SHAPE,
                         "a batch of %" PRId64 " tokens in %" PRId64 " sequences does not fit a run of %" PRId64 " in %" PRId64, b->n_tok,
                         b->n_seq, r->lim.max_tok, r->lim.max_seq);
    for (int64_t s = 0; s < b->n_seq; s++) {
        int64_t own = (int64_t)b->cu_tok[s + 1] - b->cu_tok[s], before = b->prefix ? b->prefix[s].n_tok : 0, len = before + own;
        if (own < 1 || len > r->lim.max_seq_tok)
            return error_set(err, ERR_SHAPE, "sequence %" PRId64 " has %" PRId64 " tokens; from 1 to %" PRId64 " are possible", s, len,
                             r->lim.max_seq_tok);
        if (len > rope_longest(&r->m->c.rope, r->m->c.max_pos))
            return error_set(err, ERR_UNSUPPORTED, "sequence %" PRId64 " has %" PRId64 " tokens; with %s at most %" PRId64 " are supported",
                             s, len, r->m->c.rope.type == ROPE_LONG ? "the short frequencies of longrope" : "dynamic RoPE",
                             rope_longest(&r->m->c.rope, r->m->c.max_pos));
        for (int64_t i = 0; i < own; i++)
            r->host_i[b->cu_tok[s] + i] = (int32_t)(before + i);
    }
    for (int64_t i = 0; i < b->n_tok; i++)
        if (b->token[i] < 0 || b->token[i] >= r->m->c.vocab)
            return error_set(err, ERR_DATA, "token %" PRId64 " is %d; the model's vocabulary has %" PRId64, i, b->token[i], r->m->c.vocab);
    memcpy(r->cu, b->cu_tok, ((size_t)b->n_seq + 1) * sizeof *r->cu);
    r->n_tok = b->n_tok;
    r->n_seq = b->n_seq;
    struct device *dev = r->m->dev;
    return mem_copy(dev, r->pos, r->host_i, (size_t)b->n_tok * 4, COPY_H2D, err)
           && mem_copy(dev, r->token, b->token, (size_t)b->n_tok * 4, COPY_H2D, err) && seen_put(r, b, err)
           && mem_copy(dev, r->seq, r->cu, ((size_t)b->n_seq + 1) * 4, COPY_H2D, err);
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
    return model_prefill_after(r, b, NULL, NULL, kv, page, max_page, logits, false, err);
}

/* Can the last layer do only each sequence's last row (struct pass, wanted)? Their copies have room where queries, keys and values were. */
static bool can_be_few(const struct model_run *r, const struct model_batch *b)
{
    const struct model_config *c = &r->m->c;
    bool delta = config_is_delta(c, c->n_layer - 1);
    return !r->form->spread && b->n_seq * (config_mix_width(c, delta) + c->d_model) <= b->n_tok * config_qkv_width(c, delta);
}

bool model_prefill_after(struct model_run *r, const struct model_batch *b, const int32_t *start, int32_t *scratch, struct kv_pool *kv,
                         const int32_t *page, int64_t max_page, float *logits, bool only_last, struct error *err)
{
    bool ok = false;
    struct model *m = r->m;
    int64_t per = m->dev->kv_page_tok;
    struct decode_batch past = { .max_page = max_page };
    struct pass p = { .n = b->n_tok, .token = r->token, .pos = r->pos, .kv = kv, .slot = r->slot, .past = start ? &past : NULL };
    BUG_IF(config_has_states(&m->c) && !b->state, "a prefill of a model with states, without any");
    TRY(run_batch_put(r, b, err));
    if (config_has_states(&m->c)) {
        TRY(mem_copy(m->dev, r->state, b->state, (size_t)b->n_seq * 4, COPY_H2D, err));
        p.state = r->state;
    }
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
    for (int64_t s = 0; s < b->n_seq; s++)
        r->host_i[s] = b->cu_tok[s + 1] - 1;
    TRY(!logits || mem_copy(m->dev, r->head.row, r->host_i, (size_t)b->n_seq * 4, COPY_H2D, err));
    if (logits && only_last && can_be_few(r, b)) {
        p.wanted = r->head.row;
        p.n_wanted = b->n_seq;
    }
    TRY(run_forward(r, &p, err));
    if (logits && p.wanted) {
        TRY(head_fwd(r, r->hf, b->n_seq, logits, err));
    } else if (logits) {
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
    return run_forward(r, &p, err) && head_fwd(r, r->hf, b->n, logits, err);
}

static bool batch_forward(struct model_run *r, const struct model_batch *b, bool counts, struct error *err)
{
    if (!run_batch_put(r, b, err))
        return false;
    struct pass p = { .n = b->n_tok, .token = r->token, .pos = r->pos, .counts = counts };
    return run_forward(r, &p, err);
}

bool one_work(struct model_run *r, const struct model_work *w, struct error *err)
{
    struct model_grad to = w->grad ? *w->grad : (struct model_grad){ 0 };
    for (int64_t k = 0; k < w->n_micro; k++, to.set = false) {
        struct model_batch b;
        if (!w->batch(w->ctx, 0, k, &b, err) || !batch_forward(r, &b, w->grad, err) || !w->finish(w->ctx, k, r, w->grad ? &to : NULL, err))
            return false;
    }
    return true;
}

bool model_work_run(struct model_run *r, const struct model_work *w, struct error *err)
{
    BUG_IF(w->grad && (!r->lim.train || (w->grad->set && !r->form->sets)), "a gradient that this run was not made for");
    return w->n_micro == 0 || r->form->work(r, w, err);
}

bool model_run_sets(const struct model_run *r)
{
    return r->form->sets;
}

bool model_run_idle_take(struct model_run *r, double *idle_s, struct error *err)
{
    return !r->form->idle_take || r->form->idle_take(r, idle_s, err);
}

/* ---- scoring: one micro-batch */
struct scored {
    const struct model_batch *b;
    const struct token_loss *loss;
};
static bool score_batch(void *ctx, UNUSED int stage, UNUSED int64_t k, struct model_batch *b, UNUSED struct error *err)
{
    *b = *((const struct scored *)ctx)->b;
    return true;
}
static bool score_finish(void *ctx, UNUSED int64_t k, struct model_run *last, UNUSED const struct model_grad *grad, struct error *err)
{
    return model_head(last, ((const struct scored *)ctx)->loss, err);
}

bool model_score(struct model_run *r, const struct model_batch *b, const int32_t *target, const float *temperature, float *logp,
                 float *entropy, struct error *err)
{
    struct token_loss loss = { .target = target, .temperature = temperature, .logp = logp, .entropy = entropy };
    struct scored c = { b, &loss };
    return model_work_run(r, &(struct model_work){ .n_micro = 1, .ctx = &c, .batch = score_batch, .finish = score_finish }, err);
}

bool model_forward_train(struct model_run *r, const struct model_batch *b, struct error *err)
{
    BUG_IF(!r->lim.train || !r->m->for_bwd || !r->form->forward, "this run or its weights were not made for training");
    return batch_forward(r, b, true, err);
}
