/* run_head.c - the head: logits, log probabilities and entropies
 *
 * The head skips rows that predict nothing and works on head_max rows at a time. Training computes logits, statistics, gradient and
 * both products of a chunk (head_bwd in run_backward.c) before the next, so that no (tokens x vocab) matrix exists. */
#include <inttypes.h>
#include <string.h>
#include "workers/engine/model/model_impl.h"
#include "workers/engine/pass/run_impl.h"

int head_piece(const struct model *m)
{
    return m->head_at == m->embed_at ? 0 : model_n_piece(m) - 1;
}

bool one_logits(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err)
{
    return OP(r->m->dev, err, linear_fwd, .y = logits, .x = x, .w = model_head_weight(r->m), .n = n, .y_dtype = DT_F32);
}

bool head_fwd(struct model_run *r, const void *x, int64_t n, float *logits, struct error *err)
{
    struct model *m = r->m;
    return model_bind(m, head_piece(m), err) && r->form->logits(r, x, n, logits, err)
           && (!(m->c.logit_cap > 0) || OP(m->dev, err, softcap, .x = logits, .n = n * m->c.vocab, .cap = (float)m->c.logit_cap));
}

bool head_select(struct model_run *r, const int32_t *target, int64_t *n_head, struct error *err)
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

bool head_upload(struct model_run *r, float *dst, const float *src, int64_t n, struct error *err)
{
    for (int64_t k = 0; k < n; k++)
        r->host_f[k] = src[r->row_index[k]];
    return mem_copy(r->m->dev, dst, r->host_f, (size_t)n * 4, COPY_H2D, err);
}

int64_t same_temperature(const struct model_run *r, const float *temperature, int64_t row0, int64_t max)
{
    int64_t k = 1;
    while (k < max && temperature[r->row_index[row0 + k]] == temperature[r->row_index[row0]])
        k++;
    return k;
}

bool head_chunk(struct model_run *r, int64_t row0, int64_t n, const float *temperature, struct error *err)
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

bool head_download_begin(struct model_run *r, int64_t n, struct error *err)
{
    const float *from[] = { r->head.logp, r->head.entropy, r->head.loss };
    for (int64_t i = 0; i < 3; i++)
        if (!mem_copy(r->m->dev, r->host_back + i * r->lim.max_tok, from[i], (size_t)n * 4, COPY_D2H, err))
            return false;
    return !r->done || mark_set(r->m->dev, r->done, err);
}

bool head_download_end(struct model_run *r, int64_t n, float *logp, float *entropy, float *loss, struct error *err)
{
    float *to[] = { logp, entropy, loss };
    if (!(r->done && !r->idle ? mark_wait(r->m->dev, r->done, err) : run_sync(r, err)))
        return false;
    for (int64_t i = 0; i < 3; i++) {
        if (!to[i])
            continue;
        memset(to[i], 0, (size_t)r->n_tok * 4);
        for (int64_t k = 0; k < n; k++)
            to[i][r->row_index[k]] = r->host_back[i * r->lim.max_tok + k];
    }
    return true;
}

bool head_all(struct model_run *r, const struct token_loss *loss, int64_t n_head, struct error *err)
{
    for (int64_t row0 = 0; row0 < n_head; row0 += r->head_max)
        if (!head_chunk(r, row0, MIN(r->head_max, n_head - row0), loss->temperature, err))
            return false;
    return head_download_begin(r, n_head, err) && head_download_end(r, n_head, loss->logp, loss->entropy, NULL, err);
}

bool model_head(struct model_run *r, const struct token_loss *loss, struct error *err)
{
    int64_t n_head;
    r->logits_n = 0;
    return head_select(r, loss->target, &n_head, err) && head_all(r, loss, n_head, err);
}

bool model_head_look(struct model_run *r, const struct token_loss *loss, float *line,
                     void (*look)(void *ctx, int64_t i, const float *logits), void *ctx, struct error *err)
{
    bool ok = false;
    struct device *dev = r->m->dev;
    int64_t vocab = r->m->c.vocab, n_head;
    TRY(model_head(r, loss, err));
    TRY(head_select(r, loss->target, &n_head, err));
    for (int64_t row0 = 0; row0 < n_head; row0 += r->head_max) {
        int64_t n = MIN(r->head_max, n_head - row0);
        TRY(head_chunk(r, row0, n, loss->temperature, err));
        for (int64_t k = 0; k < n; k++) {
            const float *logits = r->logits + k * vocab;
            if (!dev->host_memory) {
                TRY(mem_copy(dev, line, logits, (size_t)vocab * sizeof *line, COPY_D2H, err));
                logits = line;
            }
            TRY(device_sync(dev, err));
            look(ctx, r->row_index[row0 + k], logits);
        }
    }
    ok = true;
out:
    return ok;
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
