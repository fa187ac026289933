#include "workers/engine/trainer/supervised.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/pass/pass.h"
#include "workers/engine/trainer/trainer_impl.h"
#include "workers/engine/trainer/update.h"

bool trainer_logprobs(struct trainer *t, const int32_t *token, const int64_t *seq_len, const float *temperature, int64_t n_seq, float *logp,
                      float *entropy, struct error *err)
{
    bool ok = false;
    struct micro *mb = &t->mb;
    for (int64_t s = 0; s < n_seq;) {
        int64_t first = s;
        const int32_t *tok = token;
        micro_clear(mb);
        for (; s < n_seq && (s == first || mb->n_tok + MAX(seq_len[s] - 1, 0) <= t->set.token_budget_max); s++) {
            int64_t n = seq_len[s] - 1;
            if (n < 1 || n > t->set.token_budget_max) {
                error_set(err, ERR_SHAPE, "a sequence has %" PRId64 " tokens; from 2 to %" PRId64 " are possible", seq_len[s],
                          t->set.token_budget_max + 1);
                goto out;
            }
            int64_t row = micro_seq(mb, tok, n, NULL, 0, temperature[s]);
            memcpy(mb->target + row, tok + 1, (size_t)n * 4);
            tok += seq_len[s];
        }
        struct model_batch b = micro_batch(mb);
        TRY(model_score(t->run, &b, mb->target, mb->temperature, mb->logp, entropy ? mb->entropy : NULL, err));
        memcpy(logp, mb->logp, (size_t)mb->n_tok * 4);
        logp += mb->n_tok;
        if (entropy) {
            memcpy(entropy, mb->entropy, (size_t)mb->n_tok * 4);
            entropy += mb->n_tok;
        }
        token = tok;
    }
    ok = true;
out:
    return ok;
}

/* The sequences of a supervised step, cut into micro-batches. */
struct sft_work {
    struct trainer *t;
    const struct sft_seq *seq;
    int64_t *first;    // (n_micro + 1) micro-batch k is seq[first[k]] .. seq[first[k + 1] - 1]
    int64_t n_micro;
    double total, sum;    // of the weights; of weight * -logp, so far
};

static bool sft_cut(struct sft_work *w, int64_t n_seq, int64_t most, struct error *err)
{
    int64_t room = 0;
    if (!(w->first = malloc((size_t)(n_seq + 1) * sizeof *w->first)))
        return error_set(err, ERR_NO_MEMORY, "no memory for a batch of %" PRId64 " sequences", n_seq);
    for (int64_t s = 0; s < n_seq; s++) {
        int64_t n = w->seq[s].n_tok - 1;
        if (n < 1 || n > w->t->set.token_budget_max)
            return error_set(err, ERR_SHAPE, "a sequence has %" PRId64 " tokens; from 2 to %" PRId64 " are possible", n + 1,
                             w->t->set.token_budget_max + 1);
        for (int64_t i = 1; i <= n; i++)
            w->total += (double)w->seq[s].weight[i];
        if (s == 0 || n > room) {
            w->first[w->n_micro++] = s;
            room = most;
        }
        room -= n;
    }
    w->first[w->n_micro] = n_seq;
    return true;
}

static void sft_pack(const struct sft_work *w, struct micro *mb, int64_t k)
{
    micro_clear(mb);
    for (int64_t s = w->first[k]; s < w->first[k + 1]; s++) {
        const struct sft_seq *q = &w->seq[s];
        int64_t n = q->n_tok - 1, row = micro_seq(mb, q->token, n, NULL, 0, 1);
        for (int64_t i = 0; i < n; i++) {
            mb->target[row + i] = q->weight[i + 1] != 0 ? q->token[i + 1] : -1;
            mb->weight[row + i] = q->weight[i + 1];
            mb->coef[row + i] = w->total > 0 ? (float)(-(double)q->weight[i + 1] / w->total) : 0;
        }
    }
}

static bool sft_batch(void *ctx, int stage, int64_t k, struct model_batch *b, UNUSED struct error *err)
{
    const struct sft_work *w = ctx;
    struct micro *mb = &w->t->stage_mb[stage];
    sft_pack(w, mb, k);
    *b = micro_batch(mb);
    return true;
}

/* Micro-batch k, of which `run` has done the forward pass: its loss, and with `to` its gradient. */
static bool sft_finish(void *ctx, int64_t k, struct model_run *run, const struct model_grad *to, struct error *err)
{
    struct sft_work *w = ctx;
    struct micro *mb = &w->t->mb;
    sft_pack(w, mb, k);
    struct token_loss l = { .target = mb->target, .temperature = mb->temperature, .coef = to ? mb->coef : NULL, .logp = mb->logp };
    if (to ? !model_backward(run, &l, to, err) : !model_head(run, &l, err))
        return false;
    for (int64_t i = 0; i < mb->n_tok; i++)
        w->sum -= (double)mb->weight[i] * (double)mb->logp[i];
    return true;
}

static bool sft_micros(struct sft_work *w, const struct model_grad *to, struct error *err)
{
    return trainer_work(w->t, &(struct model_work){ .n_micro = w->n_micro, .grad = to, .ctx = w, .batch = sft_batch, .finish = sft_finish },
                        err);
}

bool trainer_sft_step(struct trainer *t, const struct sft_seq *seq, int64_t n_seq, const struct trainer_hyper *h, bool apply, double *loss,
                      double *n_loss_tok, double *grad_norm, struct error *err)
{
    bool ok = false;
    struct sft_work w = { .t = t, .seq = seq };
    BUG_IF(trainer_grad_group(t) > 1, "a supervised step adds up no groups");
    TRY(sft_cut(&w, n_seq, micro_budget(t, h), err));
    TRY(!apply || trainer_grad_begin(t, w.n_micro, err));
    TRY(sft_micros(&w, apply ? &t->to : NULL, err));
    TRY(!apply || (trainer_apply(t, h, grad_norm, err) && device_sync(t->dev, err)));
    *loss = w.total > 0 ? w.sum / w.total : NAN;
    *n_loss_tok = w.total;
    ok = true;
out:
    free(w.first);
    return ok;
}
