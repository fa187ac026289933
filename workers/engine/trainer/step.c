/* step.c - a batch's way to its gradient
 *
 * 1. A sample is one sequence: prompt and completion without its last token, whose successor nobody asks for. Row p - 1
 * + t predicts completion token t. step_begin.c has made the batch's samples, their advantages and the cut.
 * 2. Samples are packed whole, in the order of the groups, into micro-batches (cut.h); the cut depends on the batch and the
 * token budget, and each token's numbers do not depend on the cut.
 * 3. Weights of tokens come from counts of the whole batch (trainer_norm), so the gradients of micro-batches are simply
 * added: ((g0 + g1) + g2) + ..., whichever rank runs which (ranks.h).
 *    Tokens that an environment said (mask 0) have no target: they are context, and count nowhere.
 * 4. Samples of a group that are in one micro-batch share all rows of the prompt but its last, which predicts each one's first token
 *    (share_prompts), unless that saves little. Whether it does is the micro-batch's alone, so ranks do not matter.
 * 5. A sample whose tokens all have no gradient (no spread in its group, masked) is not run, unless run_all. */
#include "workers/engine/trainer/step.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/model/stages.h"
#include "workers/engine/trainer/trainer_impl.h"
#include "workers/engine/pass/pass.h"

/* ---- packing */
static float train_temperature(const struct item *it)
{
    float t = it->s->temperature > 0 ? it->s->temperature : it->g->temperature;
    return t > 0 ? t : 1;    // greedy samples are recorded at temperature 1
}

void micro_clear(struct micro *mb)
{
    mb->n_tok = mb->n_seq = 0;
    mb->cu[0] = 0;
    mb->shares = false;
    mb->group = NULL;
}

int64_t micro_seq(struct micro *mb, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b, float temperature)
{
    int64_t at = mb->n_tok, n = n_a + n_b;
    if (n_a)
        memcpy(mb->token + at, a, (size_t)n_a * 4);
    if (n_b)
        memcpy(mb->token + at + n_a, b, (size_t)n_b * 4);
    for (int64_t i = 0; i < n; i++) {
        mb->target[at + i] = -1;
        mb->temperature[at + i] = temperature;
        mb->adv[at + i] = mb->weight[at + i] = mb->old[at + i] = mb->ref[at + i] = mb->coef[at + i] = mb->log_ratio[at + i] = 0;
        mb->rho[at + i] = 1;
    }
    mb->n_tok += n;
    mb->prefix[mb->n_seq] = (struct shared_prefix){ 0 };
    mb->cu[++mb->n_seq] = (int32_t)mb->n_tok;
    return at;
}

/* The row that predicts the first token of sequence q, a sample of this group. */
static int64_t first_row(const struct micro *mb, int64_t q, const struct group *g)
{
    return mb->cu[q] + g->n_prompt - mb->prefix[q].n_tok - 1;
}

/* Append a sample with its targets; returns the row that predicts its first token. */
static int64_t micro_item(struct micro *mb, const struct item *it)
{
    const struct group *g = it->g;
    const int32_t *tok = g->token + it->s->first_tok;
    int64_t n = it->s->n_tok, s = mb->n_seq, shared = mb->shares && mb->group == g ? g->n_prompt - 1 : 0;
    micro_seq(mb, g->prompt + shared, g->n_prompt - shared, tok, n - 1, train_temperature(it));
    if (mb->group != g) {
        mb->group = g;
        mb->root = s;
    }
    mb->prefix[s] = (struct shared_prefix){ (int32_t)shared, shared > 0 ? (int32_t)mb->root : 0 };
    int64_t row = first_row(mb, s, g);
    for (int64_t k = 0; k < n; k++) {
        mb->target[row + k] = it->mask[k] ? tok[k] : -1;
        mb->old[row + k] = it->mask[k] ? it->g->logp[it->s->first_tok + k] : 0;
    }
    return row;
}

#define SHARED_LEAST 16    // what sharing saves is to be that part of the rows: attention's copies cost some 2 % of a layer of the 1.5B
/* Begin micro-batch k. */
static void micro_begin(const struct trainer *t, struct micro *mb, int64_t k)
{
    int64_t n = 0, shared = 0;
    const struct group *before = NULL;
    for (int64_t i = t->first[k]; i < t->first[k + 1]; i++) {
        const struct item *it = &t->item[t->order[i]];
        n += item_rows(it);
        shared += it->g == before ? it->g->n_prompt - 1 : 0;
        before = it->g;
    }
    micro_clear(mb);
    mb->shares = t->set.share_prompts && shared > 0 && shared * SHARED_LEAST >= n;
}

static void micro_pack(const struct trainer *t, struct micro *mb, int64_t k)
{
    micro_begin(t, mb, k);
    for (int64_t i = t->first[k]; i < t->first[k + 1]; i++)
        micro_item(mb, &t->item[t->order[i]]);
}

struct model_batch micro_batch(const struct micro *mb)
{
    return (struct model_batch){
        .n_seq = mb->n_seq, .n_tok = mb->n_tok, .token = mb->token, .cu_tok = mb->cu, .prefix = mb->shares ? mb->prefix : NULL
    };
}

/* ---- reference */
static void reference_take(struct trainer *t, const struct trainer_hyper *h, int64_t k, struct trainer_norm *part)
{
    const struct micro *mb = &t->mb;
    int64_t from = t->first[k], n = t->first[k + 1] - from;
    *part = (struct trainer_norm){ 0 };
    for (int64_t i = 0; i < n; i++) {
        const struct item *it = &t->item[t->order[from + i]];
        memcpy(t->ref_logp + it->ref_at, mb->logp + first_row(mb, i, it->g), (size_t)it->s->n_tok * 4);
        for (int64_t q = 0; h->advantages == ADV_BATCH && q < it->s->n_tok; q++) {
            if (!it->mask[q])
                continue;
            double a = ppb_advantage(t, it, q, h);
            part->sum_a += a;
            part->sum_a2 += a * a;
        }
    }
}

void trainer_norm_more(struct trainer *t, const struct trainer_norm *part)
{
    trainer_norm_add(&t->norm, part);
}

/* ---- gradient */
/* Pack a sample with its advantages and weights. */
static void item_pack(struct trainer *t, const struct item *it, const struct trainer_hyper *h)
{
    struct micro *mb = &t->mb;
    int64_t row = micro_item(mb, it);
    float weight = it->in_loss ? (float)token_weight(h, &t->norm, it->n_own) : 0;
    for (int64_t k = 0; k < it->s->n_tok; k++) {
        if (!it->mask[k])
            continue;    // no target: micro_seq's zeros
        mb->adv[row + k] = (float)token_advantage(t, it, k, h);
        mb->weight[row + k] = weight;
        mb->ref[row + k] = loss_needs_reference(h) ? t->ref_logp[it->ref_at + k] : 0;
    }
}

/* Leave out samples with a ratio beyond the threshold; is there one? */
static bool samples_skip(struct trainer *t, const struct item *const *it, const struct trainer_hyper *h, struct trainer_sums *s)
{
    struct micro *mb = &t->mb;
    double before = s->n_skipped;
    for (int64_t q = 0; q < mb->n_seq; q++) {
        int64_t row = first_row(mb, q, it[q]->g), n = it[q]->s->n_tok;
        double most = 0;
        for (int64_t k = 0; k < n && !it[q]->g->no_logp; k++)
            most = it[q]->mask[k] ? fmax(most, exp((double)mb->logp[row + k] - (double)mb->old[row + k])) : most;
        if (most <= h->skip_threshold)
            continue;
        s->n_skipped++;
        for (int64_t k = 0; k < n; k++)
            mb->weight[row + k] = 0;
    }
    return s->n_skipped > before;
}

/* What the loss takes from a sample's log-probs as they are now: rho, the old log-probs, the ratio of the whole. One that came without
 * log-probs has those of now in their place: its ratio and its rho are 1. */
static void samples_correct(struct trainer *t, const struct item *const *it, const struct trainer_hyper *h, struct trainer_sums *s)
{
    struct micro *mb = &t->mb;
    for (int64_t q = 0; q < mb->n_seq; q++) {
        int64_t row = first_row(mb, q, it[q]->g), n = it[q]->s->n_tok;
        if (!it[q]->g->no_logp)
            rho_make(mb->rho + row, mb->logp + row, mb->old + row, mb->adv + row, it[q]->mask, n, h, &s->rho);
        if (h->old == OLD_CURRENT || it[q]->g->no_logp)
            memcpy(mb->old + row, mb->logp + row, (size_t)n * 4);
        float log_ratio = (float)sequence_log_ratio(&h->form, mb->logp + row, mb->old + row, mb->adv + row, it[q]->mask, n);
        for (int64_t k = 0; k < n; k++)
            mb->log_ratio[row + k] = log_ratio;
    }
}

/* What is decided about a micro-batch when its log-probs are known. */
struct revision {
    struct trainer *t;
    const struct trainer_hyper *h;
    struct trainer_sums *s;
    bool skip, correct;
};
static bool loss_revise(void *ctx)
{
    const struct revision *r = ctx;
    if (r->skip)
        r->t->skipped = samples_skip(r->t, r->t->packed, r->h, r->s);
    if (r->correct)
        samples_correct(r->t, r->t->packed, r->h, r->s);
    return r->correct || r->t->skipped;
}

static void item_sums(const struct trainer *t, const struct item *it, int64_t row, const struct trainer_hyper *h, struct trainer_sums *s)
{
    const struct micro *mb = &t->mb;
    double kl = 0, entropy = 0, newer = 0;
    int64_t n = it->s->n_tok, n_own = it->n_own;
    for (int64_t k = 0; k < n; k++)
        newer += (double)it->g->newer[it->s->first_tok + k];
    for (int64_t k = row; k < row + n; k++) {
        if (!it->mask[k - row])
            continue;
        double d = (double)mb->logp[k] - (double)it->g->logp[it->s->first_tok + k - row], x = (double)mb->ref[k] - (double)mb->logp[k];
        double r = exp(h->ratio == RATIO_SEQUENCE ? (double)mb->log_ratio[k] : (double)mb->logp[k] - (double)mb->old[k]);
        int side = policy_side(&h->form, &(struct token_point){ (double)mb->logp[k], (double)mb->old[k], r, (double)mb->adv[k] });
        if (mb->weight[k] != 0)
            s->loss += (double)mb->loss[k];
        s->ratio += r;
        s->ratio_max = fmax(s->ratio_max, r);
        if (it->g->weight_version == t->version && t->update == 0 && !it->g->no_logp)
            s->logp_diff_max = fmax(s->logp_diff_max, fabs(d));
        s->n_clip_high += side > 0;
        s->n_clip_low += side < 0;
        entropy += (double)mb->entropy[k];
        kl += loss_needs_reference(h) ? exp(x) - x - 1 : 0;
    }
    double age = fmax((double)(t->version - it->g->weight_version), 0);    // of its first token; below 0 after a return
    s->kl += kl;
    s->entropy += entropy;
    s->n_sample++;
    s->n_tok += (double)n_own;
    s->n_known_tok += it->g->no_logp ? 0 : (double)n_own;
    s->age += fmax((double)(t->version - it->g->weight_version) - newer / (double)n_own, 0);
    s->age_max = fmax(s->age_max, age);
}

/* How a layer's rows are spread over its n experts, load each. */
static void layer_load_add(const int64_t *load, int64_t n, struct trainer_sums *s)
{
    int64_t sum = 0, most = 0, n_idle = 0;
    double entropy = 0;
    for (int64_t e = 0; e < n; e++) {
        sum += load[e];
        most = MAX(most, load[e]);
        n_idle += load[e] == 0;
    }
    for (int64_t e = 0; e < n; e++) {
        double share = (double)load[e] / (double)sum;
        entropy -= load[e] ? share * log(share) : 0;
    }
    s->n_expert_layer++;
    s->expert_busiest += (double)most / (double)sum;
    s->expert_idle += (double)n_idle / (double)n;
    s->expert_entropy += n > 1 ? entropy / log((double)n) : 1;
}

/* What the forward pass of a micro-batch has counted; the next one counts from 0. */
static bool loads_add(struct trainer *t, struct model_run *run, struct trainer_sums *s, struct error *err)
{
    const struct model_config *c = model_config(t->m);
    if (!t->load)
        return true;
    if (!model_run_load_get(run, t->load, err) || !device_sync(t->dev, err) || !model_run_load_clear(run, err))
        return false;
    for (int64_t l = 0; l < c->n_layer; l++)
        if (config_is_sparse(c, l))
            layer_load_add(t->load + l * c->experts.n, c->experts.n, s);
    return true;
}

static bool micro_finish(struct trainer *t, struct model_run *run, const struct model_grad *to, const struct trainer_hyper *h,
                         struct trainer_sums *s, struct error *err)
{
    bool stale = false, unknown = false;
    const struct item *const *it = t->packed;
    struct micro *mb = &t->mb;
    for (int64_t q = 0; q < mb->n_seq; q++) {
        stale = stale || it[q]->g->weight_version != t->version || t->update > 0;
        unknown = unknown || it[q]->g->no_logp;
    }
    struct revision rev = { t, h, s, h->skip_threshold > 0 && stale, loss_needs_logp(h) || unknown };    // ratios of fresh samples are 1
    struct token_loss loss = {
        .target = mb->target,
        .temperature = mb->temperature,
        .adv = mb->adv,
        .weight = mb->weight,
        .logp_old = mb->old,
        // ADV_BATCH has its penalty in the advantage
        .logp_ref = h->form.beta > 0 && h->advantages != ADV_BATCH ? mb->ref : NULL,
        .log_ratio = h->ratio == RATIO_SEQUENCE ? mb->log_ratio : NULL,
        .rho = rev.correct ? mb->rho : NULL,
        .form = h->form,
        .logp = mb->logp,
        .entropy = mb->entropy,
        .loss = mb->loss,
        .revise = rev.skip || rev.correct ? loss_revise : NULL,
        .revise_ctx = &rev,
        .revise_likely = rev.correct || t->skipped,
    };
    if (!model_backward(run, &loss, to, err))
        return false;
    int64_t n_shared = 0;
    for (int64_t q = 0; q < mb->n_seq; q++) {
        item_sums(t, it[q], first_row(mb, q, it[q]->g), h, s);
        n_shared += mb->prefix[q].n_tok;
    }
    s->n_micro++;
    s->n_packed_tok += (double)(mb->n_tok + n_shared);
    s->n_shared_tok += (double)n_shared;
    return loads_add(t, run, s, err);
}

static void micro_pack_loss(struct trainer *t, const struct trainer_hyper *h, int64_t k)
{
    struct micro *mb = &t->mb;
    micro_begin(t, mb, k);
    for (int64_t i = t->first[k]; i < t->first[k + 1]; i++) {
        const struct item *it = &t->item[t->order[i]];
        t->packed[mb->n_seq] = it;
        item_pack(t, it, h);
    }
}

static void micro_pack_none(struct micro *mb)
{
    int32_t token = 0;
    micro_clear(mb);
    mb->target[micro_seq(mb, &token, 1, NULL, 0, 1)] = token;
}

static bool micro_none_finish(struct trainer *t, struct model_run *run, const struct model_grad *to, struct error *err)
{
    struct micro *mb = &t->mb;
    struct token_loss l = { .target = mb->target, .temperature = mb->temperature, .coef = mb->coef, .logp = mb->logp };
    return model_backward(run, &l, to, err) && model_run_load_clear(run, err);    // its token is in no count
}

/* ---- a batch's micro-batches as a run's work */
/* Micro-batch k is one of a series of the batch's, or after these one that adds nothing. */
struct batch_work {
    struct trainer *t;
    const struct trainer_hyper *h;
    const struct micro_series *of;
    struct trainer_sums *sums;    // (n) of each
    struct trainer_norm *norm;    // (n) or these, under the reference
};
/* What a run needs for its forward pass. Each stage's thread packs the sequences for itself. */
static bool batch_of(void *ctx, int stage, int64_t k, struct model_batch *b, UNUSED struct error *err)
{
    const struct batch_work *w = ctx;
    struct micro *mb = &w->t->stage_mb[stage];
    if (k < w->of->n)
        micro_pack(w->t, mb, micro_of(w->of, k));
    else
        micro_pack_none(mb);
    *b = micro_batch(mb);
    return true;
}

/* The run that has the head makes the loss and the sums in t->mb, so these are in the order of the micro-batches. */
static bool reference_finish(void *ctx, int64_t k, struct model_run *last, UNUSED const struct model_grad *grad, struct error *err)
{
    const struct batch_work *w = ctx;
    struct micro *mb = &w->t->mb;
    micro_pack(w->t, mb, micro_of(w->of, k));
    if (!model_head(last, &(struct token_loss){ .target = mb->target, .temperature = mb->temperature, .logp = mb->logp }, err))
        return false;
    reference_take(w->t, w->h, micro_of(w->of, k), &w->norm[k]);
    return true;
}

bool trainer_references(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_norm *part,
                        struct error *err)
{
    struct batch_work w = { .t = t, .h = h, .of = of, .norm = part };
    if (of->n == 0)
        return true;
    if (!t->ref_run)
        model_run_bind(t->run, t->ref);
    bool ok = model_work_run(t->ref_run ? t->ref_run : t->run,
                             &(struct model_work){ .n_micro = of->n, .ctx = &w, .batch = batch_of, .finish = reference_finish }, err);
    if (!t->ref_run)
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
    micro_pack_loss(w->t, w->h, micro_of(w->of, k));
    return micro_finish(w->t, last, grad, w->h, &w->sums[k], err);
}

bool trainer_micros(struct trainer *t, const struct trainer_hyper *h, const struct micro_series *of, struct trainer_sums *part,
                    struct error *err)
{
    struct batch_work w = { .t = t, .h = h, .of = of, .sums = part };
    return trainer_work(
        t, &(struct model_work){ .n_micro = of->n + of->n_none, .grad = &t->to, .ctx = &w, .batch = batch_of, .finish = micro_of_last },
        err);
}

bool trainer_work(struct trainer *t, const struct model_work *w, struct error *err)
{
    bool ok = model_work_run(t->run, w, err);
    t->to.set = t->to.set && w->n_micro == 0;    // what it holds now is added to
    return ok;
}

int trainer_stages(const struct trainer *t, const double **idle_s)
{
    *idle_s = t->stage_idle_s;
    return model_n_stage(t->m);
}

bool trainer_stages_measure(struct trainer *t, struct error *err)
{
    return model_run_idle_take(t->run, t->stage_idle_s, err);
}
