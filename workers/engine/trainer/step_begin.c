/* step_begin.c - the beginning of a step: the batch's samples, their advantages, and the cut into micro-batches
 *
 * Each rank makes all of it, of the same batch, and comes to the same. What a model's run would refuse is refused here, by every rank
 * alike. Only token advantages of ADV_BATCH with a penalty, and those with a teacher, have to wait for the reference (trainer_references). */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "workers/engine/trainer/cut.h"
#include "workers/engine/trainer/step.h"
#include "workers/engine/trainer/trainer_impl.h"

int64_t item_rows(const struct item *it)
{
    return it->g->n_prompt + it->s->n_tok - 1;
}

int64_t micro_budget(const struct trainer *t, const struct trainer_hyper *h)
{
    return h->token_budget > 0 ? MIN(h->token_budget, t->set.token_budget_max) : t->set.token_budget_max;
}

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
        return error_set(err, ERR_DATA, "item %" PRId64 " has no log-probs, which %s is made of", g->item, loss_needs_sampled(h));
    if (item_rows(it) > longest)
        return error_set(err, ERR_SHAPE, "a sample of item %" PRId64 " has %" PRId64 " tokens; the trainer was made for %" PRId64, g->item,
                         item_rows(it), longest);
    return ids_check(g->prompt, g->n_prompt, c->vocab, g->item, err)
           && ids_check(g->token + it->s->first_tok, it->s->n_tok, c->vocab, g->item, err);
}

double ppb_advantage(const struct trainer *t, const struct item *it, int64_t k, const struct trainer_hyper *h)
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

double token_advantage(const struct trainer *t, const struct item *it, int64_t k, const struct trainer_hyper *h)
{
    int64_t at = it->s->first_tok + k;
    double a = it->s->adv_zero  ? 0
               : it->g->has_adv ? (double)it->g->adv[at]
                                : advantage_normalise(h->advantages == ADV_BATCH ? ppb_advantage(t, it, k, h) : it->adv, h, &t->norm);
    return h->teacher > 0 ? advantage_teach(a, (double)t->ref_logp[it->ref_at + k], (double)it->g->logp[at], h) : a;
}

/* Does any token of it have a gradient? Before the reference has run this is known all the same: with a penalty, of the reference or of
 * the form, or a teacher every token of the loss has one. */
static bool item_active(const struct trainer *t, const struct item *it, const struct trainer_hyper *h)
{
    if (!it->in_loss)
        return t->set.run_all;
    if (loss_needs_reference(h) || h->form.clip == CLIP_DRO || t->set.run_all)
        return true;
    return it->g->has_adv ? adv_any(it) : !it->s->adv_zero && advantage_normalise(it->adv, h, &t->norm) != 0;
}

/* Counts of the batch, and the sums that advantages are normalised by as far as they need no reference. */
static void norm_make(struct trainer *t, const struct trainer_hyper *h)
{
    t->norm = (struct trainer_norm){ 0 };
    for (int64_t i = 0; i < t->n_item; i++) {
        const struct item *it = &t->item[i];
        double n = (double)it->n_own;
        t->norm.n_sample++;
        t->norm.n_tok += n;
        t->norm.n_loss_tok += it->in_loss ? n : 0;
        double each = h->advantages == ADV_DEVIATION_BATCH ? it->s->reward : it->adv, times = h->advantages == ADV_DEVIATION_BATCH ? 1 : n;
        if (advantage_over_batch(h->advantages) && !(h->advantages == ADV_BATCH && h->form.beta > 0)) {
            t->norm.sum_a += times * each;
            t->norm.sum_a2 += times * each * each;
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
    t->n_reference = loss_needs_reference(h) ? t->n_micro : 0;
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
    if (loss_needs_reference(h) && !t->ref)
        return error_set(err, ERR_USAGE, "a %s of %g needs a reference model, and the run started without one",
                         h->teacher > 0 ? "'teacher_coeff'" : "KL coefficient", h->teacher > 0 ? h->teacher : (double)h->form.beta);
    TRY(items_make(t, h, err));
    for (int64_t i = 0; i < t->n_item; i++)
        TRY(item_check(t, &t->item[i], h, err));
    TRY(!loss_needs_reference(h) || ref_reserve(t, err));
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
