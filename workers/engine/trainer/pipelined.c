/* pipelined.c - a trainer whose model is in the stages of a pipeline: its batches as a pipeline's work
 *
 * What lies on the stages, their gradients, masters and moments, is slices.c's. Each stage's thread packs the sequences for itself; the
 * last stage's also makes the loss and the sums, in t->mb, so that these are in the order of the micro-batches. */
#include <stdlib.h>
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team.h"
#include "workers/engine/trainer/trainer_impl.h"
#include "workers/engine/pass/pass.h"
#include "workers/engine/pass/run_stages.h"

bool pipelined_new(struct trainer *t, struct error *err)
{
    if (!model_is_staged(t->m))
        return true;
    t->n_stage = model_n_stage(t->m);
    for (int q = 0; q < t->n_stage; q++)
        if (!micro_new(&t->stage_mb[q], &t->stage_mb_mem[q], t->set.token_budget_max, err))
            return false;
    return true;
}

void pipelined_free(struct trainer *t)
{
    for (int q = 0; q < t->n_stage; q++)
        free(t->stage_mb_mem[q]);
}

/* Micro-batch k of the work is one of a series of the batch's, or after these one that adds nothing. */
struct batch_work {
    struct trainer *t;
    const struct trainer_hyper *h;
    const struct micro_series *of;
    struct trainer_sums *sums;    // (n) of each
    struct trainer_norm *norm;    // (n) or these, under the reference
};
static int64_t of_batch(const struct batch_work *w, int64_t k)
{
    return micro_of(w->of, k);
}

static bool batch_of(void *ctx, int stage, int64_t k, struct model_batch *b, UNUSED struct error *err)
{
    const struct batch_work *w = ctx;
    struct micro *mb = &w->t->stage_mb[stage];
    if (k < w->of->n)
        micro_pack(w->t, mb, of_batch(w, k));
    else
        micro_pack_none(mb);
    *b = micro_batch(mb);
    return true;
}

static bool reference_finish(void *ctx, int64_t k, struct model_run *last, UNUSED const struct model_grad *grad, struct error *err)
{
    const struct batch_work *w = ctx;
    struct micro *mb = &w->t->mb;
    micro_pack(w->t, mb, of_batch(w, k));
    if (!model_head(last, &(struct token_loss){ .target = mb->target, .temperature = mb->temperature, .logp = mb->logp }, err))
        return false;
    reference_take(w->t, w->h, of_batch(w, k), &w->norm[k]);
    return true;
}

bool pipelined_references(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_norm *part,
                          struct error *err)
{
    struct batch_work ctx = { .t = t, .h = h, .of = of, .norm = part };
    if (of->n == 0)
        return true;
    model_run_bind(t->run, t->ref);
    bool ok = model_stages_run(t->run, &(struct stage_work){ .n_micro = of->n, .ctx = &ctx, .batch = batch_of, .finish = reference_finish },
                               err);
    model_run_bind(t->run, t->m);
    return ok;
}

static bool micro_of_last(void *ctx, int64_t k, struct model_run *last, const struct model_grad *grad, struct error *err)
{
    const struct batch_work *w = ctx;
    if (k >= w->of->n) {
        micro_pack_none(&w->t->mb);
        return micro_none_finish(w->t, last, grad, err);
    }
    w->sums[k] = (struct trainer_sums){ 0 };
    micro_pack_loss(w->t, w->h, of_batch(w, k));
    return micro_finish(w->t, last, grad, w->h, &w->sums[k], err);
}

bool pipelined_micros(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_sums *part,
                      struct error *err)
{
    struct batch_work ctx = { .t = t, .h = h, .of = of, .sums = part };
    int64_t n = of->n + of->n_none;
    return n == 0
           || model_stages_run(
               t->run, &(struct stage_work){ .n_micro = n, .grad = &t->to, .ctx = &ctx, .batch = batch_of, .finish = micro_of_last }, err);
}

int trainer_stages(const struct trainer *t, const double **idle_s)
{
    *idle_s = t->stage_idle_s;
    return t->n_stage;
}

bool trainer_stages_measure(struct trainer *t, struct error *err)
{
    return t->n_stage == 0 || model_stages_idle(t->run, t->stage_idle_s, err);
}
