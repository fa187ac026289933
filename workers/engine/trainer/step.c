/* step.c - a batch's way to its gradient
 *
 * 1. A sample is one sequence: prompt and completion without its last token, whose successor nobody asks for. Row p - 1
 * + t predicts completion token t.
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
#include "workers/engine/trainer/cut.h"
#include "workers/engine/trainer/trainer_impl.h"
#include "workers/engine/pass/pass.h"

/* ---- packing */
static float train_temperature(const struct item *it)
{
    float t = it->s->temperature > 0 ? it->s->temperature : it->g->temperature;
    return t > 0 ? t : 1;    // greedy samples are recorded at temperature 1
}

/* Rows a sample takes in a micro-batch where it shares none. */
static int64_t item_rows(const struct item *it)
{
    return it->g->n_prompt + it->s->n_tok - 1;
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

int64_t micro_budget(const struct trainer *t, const struct trainer_hyper *h)
{
    return h->token_budget > 0 ? MIN(h->token_budget, t->set.token_budget_max) : t->set.token_budget_max;
}

/* ---- begin: advantages, reference, sums */
static bool items_reserve(struct trainer *t, int64_t n, struct error *err)
{
    if (n <= t->cap_item)
        return true;
    void **mem[] = { (void **)&t->item, (void **)&t->order, (void **)&t->first, (void **)&t->rows, (void **)&t->packed, (void **)&t->adv };
    const size_t each[] = { sizeof *t->item, sizeof *t->order, sizeof *t->first, sizeof *t->rows, sizeof *t->packed, sizeof *t->adv };
    t->cap_item = 0;
    for (size_t i = 0; i < ARRAY_SIZE(mem); i++) {
        free(*mem[i]);
        if (!(*mem[i] = malloc((size_t)(n + 2) * each[i])))
            return error_set(err, ERR_NO_MEMORY, "no memory for a batch of %" PRId64 " samples", n);
    }
    t->cap_item = n;
    return true;
}

static bool group_holds(const struct group *g, const struct sample *s)
{
    return s->first_tok >= 0 && s->first_tok <= g->n_tok && s->n_tok >= 0 && s->n_tok <= g->n_tok - s->first_tok;
}

static bool items_make(struct trainer *t, const struct trainer_hyper *h, struct error *err)
{
    int64_t n = 1;    // memory also of a batch of which nothing is left
    for (int64_t i = 0; i < t->n_group; i++)
        n += t->groups[i]->n_sample;
    if (!items_reserve(t, n, err))
        return false;
    t->n_item = t->n_ref = 0;
    for (int64_t i = 0; i < t->n_group; i++) {
        const struct group *g = t->groups[i];
        advantage_group(t->adv, h->advantages, g);
        for (int32_t k = 0; k < g->n_sample; k++) {
            struct item it = { .g = g,
                               .s = &g->sample[k],
                               .adv = g->sample[k].adv_zero ? 0 : t->adv[k],
                               .in_loss = sample_in_loss(g, k, h),
                               .ref_at = t->n_ref };
            if (!group_holds(g, it.s))
                return error_set(err, ERR_DATA, "a sample of item %" PRId64 " points outside of its group's tokens", g->item);
            it.mask = g->mask + it.s->first_tok;
            it.n_own = sample_n_own(g, k);
            if (it.s->score != SCORE_OK || it.n_own == 0)
                continue;
            t->n_ref += it.s->n_tok;
            t->item[t->n_item++] = it;
        }
    }
    return true;
}

static bool ids_check(const int32_t *id, int64_t n, int64_t n_id, int64_t item, struct error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= n_id)
            return error_set(err, ERR_DATA, "a sample of item %" PRId64 " has the token %d; the model's vocabulary has %" PRId64, item,
                             id[i], n_id);
    return true;
}

/* All that a model's run would refuse: seen here it is seen by every rank, there by the one that runs the micro-batch. */
static bool item_check(const struct trainer *t, const struct item *it, const struct trainer_hyper *h, struct error *err)
{
    const struct group *g = it->g;
    const struct model_config *c = model_config(t->m);
    int64_t longest = MIN(t->set.token_budget_max, rope_longest(&c->rope, c->max_pos));
    if (g->n_prompt < 1)
        return error_set(err, ERR_DATA, "item %" PRId64 " has an empty prompt", g->item);
    if (g->no_logp && loss_needs_sampled(h))
        return error_set(err, ERR_DATA, "item %" PRId64 " has no log-probs, which the penalty of REINFORCE_PPB is made of", g->item);
    if (item_rows(it) > longest)
        return error_set(err, ERR_SHAPE, "a sample of item %" PRId64 " has %" PRId64 " tokens; the trainer was made for %" PRId64, g->item,
                         item_rows(it), longest);
    return ids_check(g->prompt, g->n_prompt, c->vocab, g->item, err)
           && ids_check(g->token + it->s->first_tok, it->s->n_tok, c->vocab, g->item, err);
}

/* Token advantage of ADV_BATCH before normalisation: the penalty uses the recorded log-probs, so it has no
 * gradient. */
static double ppb_advantage(const struct trainer *t, const struct item *it, int64_t k, const struct trainer_hyper *h)
{
    if (!(h->form.beta > 0))
        return it->adv;
    double d = (double)t->ref_logp[it->ref_at + k] - (double)it->g->logp[it->s->first_tok + k];
    return it->adv - (double)h->form.beta * (exp(d) - d - 1);    // k3
}

/* Is any of the advantages that came with it not 0? */
static bool adv_any(const struct item *it)
{
    for (int64_t k = 0; k < it->s->n_tok; k++)
        if (it->mask[k] && it->g->adv[it->s->first_tok + k] != 0)
            return !it->s->adv_zero;
    return false;
}

/* The advantage of its token k in the loss: the one that came with the group as it is, or the one made of rewards. */
static double token_advantage(const struct trainer *t, const struct item *it, int64_t k, const struct trainer_hyper *h)
{
    if (it->g->has_adv)
        return it->s->adv_zero ? 0 : (double)it->g->adv[it->s->first_tok + k];
    return advantage_normalise(h->advantages == ADV_BATCH ? ppb_advantage(t, it, k, h) : it->adv, h, &t->norm);
}

/* Does any token of it have a gradient? Before the reference has run this is known all the same: with a penalty every token
 * of the loss has one. */
static bool item_active(const struct trainer *t, const struct item *it, const struct trainer_hyper *h)
{
    if (!it->in_loss)
        return t->set.run_all;
    if (h->form.beta > 0 || t->set.run_all)
        return true;
    return it->g->has_adv ? adv_any(it) : advantage_normalise(it->adv, h, &t->norm) != 0;
}

/* Counts of the batch, and the token sums of ADV_BATCH as far as they need no reference. */
static void norm_make(struct trainer *t, const struct trainer_hyper *h)
{
    t->norm = (struct trainer_norm){ 0 };
    for (int64_t i = 0; i < t->n_item; i++) {
        const struct item *it = &t->item[i];
        double n = (double)it->n_own;
        t->norm.n_sample++;
        t->norm.n_tok += n;
        t->norm.n_loss_tok += it->in_loss ? n : 0;
        if (h->advantages == ADV_BATCH && !(h->form.beta > 0)) {
            t->norm.sum_a += n * it->adv;
            t->norm.sum_a2 += n * it->adv * it->adv;
        }
    }
}

/* Cut items order[at] .. order[at + n - 1] into micro-batches, numbered from k; returns how many they are. */
static int64_t order_cut(struct trainer *t, const struct trainer_hyper *h, int64_t at, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < n; i++)
        t->rows[i] = item_rows(&t->item[t->order[at + i]]);
    int64_t n_micro = batch_cut(t->rows, n, micro_budget(t, h), trainer_grad_group(t), t->first + k);
    for (int64_t i = 0; i <= n_micro; i++)
        t->first[k + i] += at;
    return n_micro;
}

/* The active items, and after them those of which only the reference's log-probs are wanted: ADV_BATCH takes mean and
 * variance over all tokens. */
static void micros_make(struct trainer *t, const struct trainer_hyper *h)
{
    int64_t n = 0, n_active;
    for (int64_t i = 0; i < t->n_item; i++)
        if ((t->item[i].active = item_active(t, &t->item[i], h)))
            t->order[n++] = i;
    n_active = n;
    for (int64_t i = 0; i < t->n_item; i++)
        if (!t->item[i].active)
            t->order[n++] = i;
    t->n_micro = order_cut(t, h, 0, n_active, 0);
    t->n_reference = h->form.beta > 0 ? t->n_micro : 0;
    if (h->form.beta > 0 && h->advantages == ADV_BATCH)
        t->n_reference += order_cut(t, h, n_active, n - n_active, t->n_micro);
}

static bool ref_reserve(struct trainer *t, struct error *err)
{
    if (t->n_ref <= t->cap_ref)
        return true;
    float *more = realloc(t->ref_logp, (size_t)t->n_ref * sizeof *more);
    if (!more)
        return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " reference log-probs", t->n_ref);
    t->ref_logp = more;
    t->cap_ref = t->n_ref;
    return true;
}

bool trainer_begin(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h, struct error *err)
{
    bool ok = false;
    t->groups = groups;
    t->n_group = n_group;
    t->n_item = t->n_micro = t->n_reference = 0;
    if (h->form.beta > 0 && !t->ref)
        return error_set(err, ERR_USAGE, "a KL coefficient of %g needs a reference model, and the run started without one",
                         (double)h->form.beta);
    TRY(items_make(t, h, err));
    for (int64_t i = 0; i < t->n_item; i++)
        TRY(item_check(t, &t->item[i], h, err));
    TRY(!(h->form.beta > 0) || ref_reserve(t, err));
    norm_make(t, h);
    micros_make(t, h);
    ok = true;
out:
    return ok;
}

int64_t trainer_n_micro(const struct trainer *t)
{
    return t->n_micro;
}

int64_t trainer_n_reference(const struct trainer *t)
{
    return t->n_reference;
}

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
        mb->ref[row + k] = h->form.beta > 0 ? t->ref_logp[it->ref_at + k] : 0;
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
        float log_ratio = (float)sequence_log_ratio(mb->logp + row, mb->old + row, it[q]->mask, n);
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
        int side = policy_side(&h->form, r, (double)mb->adv[k]);
        if (mb->weight[k] != 0)
            s->loss += (double)mb->loss[k];
        s->ratio += r;
        s->ratio_max = fmax(s->ratio_max, r);
        if (it->g->weight_version == t->version && t->update == 0 && !it->g->no_logp)
            s->logp_diff_max = fmax(s->logp_diff_max, fabs(d));
        s->n_clip_high += side > 0;
        s->n_clip_low += side < 0;
        entropy += (double)mb->entropy[k];
        kl += h->form.beta > 0 ? exp(x) - x - 1 : 0;
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
    model_run_bind(t->run, t->ref);
    bool ok = model_work_run(t->run, &(struct model_work){ .n_micro = of->n, .ctx = &w, .batch = batch_of, .finish = reference_finish },
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
