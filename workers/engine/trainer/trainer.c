/* trainer.c - the optimizer step
 *
 * 1. A sample is one sequence: prompt and completion without its last token, whose successor nobody asks for. Row p - 1
 * + t predicts completion token t.
 * 2. Samples are packed in the order of the groups, whole, until a micro-batch's token budget is reached; the cut
 * depends on nothing else, and each token's numbers do not depend on the cut.
 * 3. Weights of tokens come from counts of the global batch (trainer_norm), so gradients of micro-batches and ranks are
 *    simply added.
 * 4. A sample whose tokens all have no gradient (no spread in its group, masked) is not run, unless run_all.
 * 5. Masters and moments of the first n_dev elements of the flat order lie on the device, those of the others in pinned
 *    host memory, from where AdamW streams them (adamw_host). All of them on the device unless offload is set. */
#include "workers/engine/trainer/trainer.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/run/metrics.h"
#include "workers/engine/model/model.h"

#define STAGE_BYTES ((size_t)288 << 20)    // three pieces of 8 Mi elements: copies of 32 MiB run a bus at full speed

/* A sample on its way through a step. */
struct item {
    const struct group *g;
    const struct sample *s;
    double adv;              // before REINFORCE_PPB's normalisation and penalty
    bool in_loss;            // lambda
    int64_t ref_at;          // where its reference log-probs start in trainer.ref_logp
};
/* Host arrays of one micro-batch, (token_budget_max) each. */
struct micro {
    int32_t *token, *target, *cu;    // cu (token_budget_max + 1)
    float *temperature, *adv, *weight, *old, *ref, *coef, *logp, *entropy, *loss;
    int64_t n_tok, n_seq;
};
struct trainer {
    struct model *m, *ref;           // borrowed
    struct trainer_settings set;
    struct device *dev;
    struct model_run *run;
    int64_t n_flat, version, adam_step;
    float *grad;                     // (n_flat) device
    int64_t n_dev;                   // elements whose masters and moments are on the device
    float *state[STATE_N];           // (n_dev) device; the master is the weights themselves, (n_flat), in fp32
    float *host_state[STATE_N];      // (n_flat - n_dev) host_new; no master in fp32
    void *stage;                     // (stage_bytes) device; NULL without host state
    size_t stage_bytes;
    bool own_master;
    double *sumsq;                   // (1) device
    uint64_t *hash;                  // (1) device
    float *clip;                     // (2) device: norm, coefficient
    struct micro mb;
    void *mb_mem;
    struct item *item;               // (cap_item) of the batch between begin and grad
    const struct item **packed;      // (cap_item) those of the micro-batch, by sequence
    double *adv;                     // (cap_item) of one group
    int64_t n_item, cap_item;        // grows with the largest batch seen
    float *ref_logp;                 // (n_ref) host
    int64_t n_ref, cap_ref;
    const struct group *const *groups;
    int64_t n_group;
};

/* ---- life */
static void limits_make(struct run_limits *l, const struct trainer_settings *s)
{
    *l = (struct run_limits){.max_tok = s->token_budget_max,
                             .max_seq = s->token_budget_max,
                             .max_seq_tok = s->token_budget_max,
                             .train = true,
                             .recompute_block = s->recompute_block,
                             .mem = s->scratch};
}

/* Elements whose state stays on the device, and the stage for the others. */
static int64_t state_split(const struct model *m, const struct trainer_settings *s, size_t *stage_bytes)
{
    int64_t n = model_n_flat(m);
    size_t each = model_dtype(m) == DT_F32 ? 8 : 12;
    *stage_bytes = MAX(MIN(STAGE_BYTES, (size_t)n * each / 8), (size_t)1 << 16);
    if (!s->offload || s->state_bytes >= (size_t)n * each) {
        *stage_bytes = 0;
        return n;
    }
    size_t room = s->state_bytes > *stage_bytes ? (s->state_bytes - *stage_bytes) / each : 0;
    return (int64_t)(room & ~(size_t)1023);    // host pieces start on whole lines
}

void trainer_memory(const struct model *m, const struct trainer_settings *s, struct trainer_memory *out)
{
    struct run_limits l;
    limits_make(&l, s);
    size_t stage, each = model_dtype(m) == DT_F32 ? 8 : 12;
    int64_t n = model_n_flat(m), n_dev = state_split(m, s, &stage);
    *out = (struct trainer_memory){ .activation = model_run_bytes(m, &l), .gradient = (size_t)n * 4,
                                    .state = (size_t)n_dev * each + stage, .host = (size_t)(n - n_dev) * each };
}

static bool micro_new(struct trainer *t, struct error *err)
{
    size_t n = (size_t)t->set.token_budget_max;
    struct micro *mb = &t->mb;
    if (!(t->mb_mem = malloc((12 * n + 1) * 4)))
        return error_set(err, ERR_NO_MEMORY, "no memory for a micro-batch of %zu tokens", n);
    float *p = t->mb_mem;
    float **floats[] = {&mb->temperature, &mb->adv,  &mb->weight,  &mb->old, &mb->ref,
                        &mb->coef,        &mb->logp, &mb->entropy, &mb->loss};
    for (size_t i = 0; i < ARRAY_SIZE(floats); i++, p += n)
        *floats[i] = p;
    mb->token = (int32_t *)p;
    mb->target = mb->token + n;
    mb->cu = mb->target + n;
    return true;
}

/* Copy elements of the weights to the host as fp32, or zeros, through the stage. */
static bool host_state_init(struct trainer *t, enum trainer_state_kind kind, const char *weights, struct error *err)
{
    int64_t n = t->n_flat - t->n_dev, most = (int64_t)(t->stage_bytes / 4);
    for (int64_t at = 0; at < n; at += most) {
        int64_t k = MIN(most, n - at);
        const char *from = weights + (size_t)(t->n_dev + at) * dtype_size(model_dtype(t->m));
        bool ok = kind == STATE_MASTER ? OP(t->dev, err, cast, .y = t->stage, .x = from, .n = k, .scale = 1,
                                            .y_dtype = DT_F32, .x_dtype = model_dtype(t->m))
                                       : OP(t->dev, err, mem_fill, .y = t->stage, .size_bytes = (size_t)k * 4);
        if (!ok || !mem_copy(t->dev, t->host_state[kind] + at, t->stage, (size_t)k * 4, COPY_D2H, err))
            return false;
    }
    return device_sync(t->dev, err);
}

static bool state_new(struct trainer *t, struct error *err)
{
    static const char *const what[STATE_N] = { "fp32 masters", "first moments", "second moments" };
    bool ok = false;
    size_t bytes;
    char *weights = model_weights(t->m, &bytes);
    t->n_dev = state_split(t->m, &t->set, &t->stage_bytes);
    size_t dev_bytes = (size_t)t->n_dev * 4, host_bytes = (size_t)(t->n_flat - t->n_dev) * 4;
    if (host_bytes)
        TRY((t->stage = mem_new(t->dev, t->stage_bytes, "the stage of the optimizer's state", err)) != NULL);
    for (int k = 0; k < STATE_N; k++) {
        if (k == STATE_MASTER && !t->own_master) {
            t->state[k] = (float *)weights;
            continue;
        }
        TRY((t->state[k] = mem_new(t->dev, dev_bytes, what[k], err)) != NULL);
        if (k == STATE_MASTER)
            TRY(OP(t->dev, err, cast, .y = t->state[k], .x = weights, .n = t->n_dev, .scale = 1, .y_dtype = DT_F32,
                   .x_dtype = model_dtype(t->m)));
        else
            TRY(OP(t->dev, err, mem_fill, .y = t->state[k], .size_bytes = dev_bytes));
        if (host_bytes) {
            TRY((t->host_state[k] = host_new(t->dev, host_bytes, what[k], err)) != NULL);
            TRY(host_state_init(t, (enum trainer_state_kind)k, weights, err));
        }
    }
    ok = true;
out:
    return ok;
}

struct trainer *trainer_new(struct model *model, struct model *ref, const struct trainer_settings *s, struct error *err)
{
    if (s->token_budget_max < 1 || s->token_budget_max > INT32_MAX / 4) {
        error_set(err, ERR_USAGE, "a token budget of %lld is not possible", (long long)s->token_budget_max);
        return NULL;
    }
    struct trainer *t = calloc(1, sizeof *t);
    if (!t) {
        error_set(err, ERR_NO_MEMORY, "no memory for a trainer");
        return NULL;
    }
    t->m = model;
    t->ref = ref;
    t->set = *s;
    t->dev = model_device(model);
    t->n_flat = model_n_flat(model);
    t->own_master = model_dtype(model) != DT_F32;
    struct run_limits limits;
    limits_make(&limits, s);
    if (!micro_new(t, err) || !(t->run = model_run_new(model, &limits, err)) || !state_new(t, err)
        || !(t->grad = mem_new(t->dev, (size_t)t->n_flat * 4, "gradient", err))
        || !OP(t->dev, err, mem_fill, .y = t->grad, .size_bytes = (size_t)t->n_flat * 4)
        || !(t->sumsq = mem_new(t->dev, sizeof *t->sumsq, "gradient norm", err))
        || !(t->hash = mem_new(t->dev, sizeof *t->hash, "hash of the weights", err))
        || !(t->clip = mem_new(t->dev, 2 * sizeof *t->clip, "gradient norm", err)))
        goto fail;
    return t;
fail:
    trainer_free(t);
    return NULL;
}

void trainer_free(struct trainer *t)
{
    if (!t)
        return;
    model_run_free(t->run);
    void *mem[] = { t->grad, t->stage, t->sumsq, t->hash, t->clip };
    for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
        mem_free(t->dev, mem[i]);
    for (int k = 0; k < STATE_N; k++) {
        if (k != STATE_MASTER || t->own_master)
            mem_free(t->dev, t->state[k]);
        host_free(t->dev, t->host_state[k]);
    }
    free(t->mb_mem);
    free(t->item);
    free(t->packed);
    free(t->adv);
    free(t->ref_logp);
    free(t);
}

struct model *trainer_model(const struct trainer *t)
{
    return t->m;
}

int64_t trainer_version(const struct trainer *t)
{
    return t->version;
}

void trainer_version_set(struct trainer *t, int64_t version)
{
    t->version = version;
}

/* ---- packing */
static float train_temperature(const struct group *g)
{
    return g->temperature > 0 ? g->temperature : 1;    // greedy samples are recorded at temperature 1
}

/* Rows a sample takes in a micro-batch. */
static int64_t item_rows(const struct item *it)
{
    return it->g->n_prompt + it->s->n_tok - 1;
}

static void micro_clear(struct micro *mb)
{
    mb->n_tok = mb->n_seq = 0;
    mb->cu[0] = 0;
}

/* Append a sequence's tokens, no row of it with a target yet; returns its first row. */
static int64_t micro_seq(struct micro *mb, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b,
                         float temperature)
{
    int64_t at = mb->n_tok, n = n_a + n_b;
    if (n_a)
        memcpy(mb->token + at, a, (size_t)n_a * 4);
    if (n_b)
        memcpy(mb->token + at + n_a, b, (size_t)n_b * 4);
    for (int64_t i = 0; i < n; i++) {
        mb->target[at + i] = -1;
        mb->temperature[at + i] = temperature;
        mb->adv[at + i] = mb->weight[at + i] = mb->old[at + i] = mb->ref[at + i] = mb->coef[at + i] = 0;
    }
    mb->n_tok += n;
    mb->cu[++mb->n_seq] = (int32_t)mb->n_tok;
    return at;
}

/* Append a sample with its targets; returns the row that predicts its first token. */
static int64_t micro_item(struct micro *mb, const struct item *it)
{
    const int32_t *tok = it->g->token + it->s->first_tok;
    int64_t n = it->s->n_tok;
    int64_t row =
        micro_seq(mb, it->g->prompt, it->g->n_prompt, tok, n - 1, train_temperature(it->g)) + it->g->n_prompt - 1;
    memcpy(mb->target + row, tok, (size_t)n * 4);
    memcpy(mb->old + row, it->g->logp + it->s->first_tok, (size_t)n * 4);
    return row;
}

static struct model_batch micro_batch(const struct micro *mb)
{
    return (struct model_batch){ .n_seq = mb->n_seq, .n_tok = mb->n_tok, .token = mb->token, .cu_tok = mb->cu };
}

static int64_t budget(const struct trainer *t, const struct trainer_hyper *h)
{
    return h->token_budget > 0 ? MIN(h->token_budget, t->set.token_budget_max) : t->set.token_budget_max;
}

/* ---- begin: advantages, reference, sums */
static bool items_reserve(struct trainer *t, int64_t n, struct error *err)
{
    if (n <= t->cap_item)
        return true;
    free(t->item);
    free(t->packed);
    free(t->adv);
    t->item = malloc((size_t)n * sizeof *t->item);
    t->packed = malloc((size_t)n * sizeof *t->packed);
    t->adv = malloc((size_t)n * sizeof *t->adv);
    t->cap_item = t->item && t->packed && t->adv ? n : 0;
    return t->cap_item > 0 || error_set(err, ERR_NO_MEMORY, "no memory for a batch of %lld samples", (long long)n);
}

static bool items_make(struct trainer *t, const struct trainer_hyper *h, struct error *err)
{
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_group; i++)
        n += t->groups[i]->n_sample;
    if (!items_reserve(t, n, err))
        return false;
    t->n_item = t->n_ref = 0;
    for (int64_t i = 0; i < t->n_group; i++) {
        const struct group *g = t->groups[i];
        advantage_group(t->adv, h->algo, g);
        for (int32_t k = 0; k < g->n_sample; k++) {
            struct item it = { .g = g, .s = &g->sample[k], .adv = t->adv[k], .in_loss = sample_in_loss(g, k, h),
                               .ref_at = t->n_ref };
            if (it.s->score != SCORE_OK || it.s->n_tok == 0)
                continue;
            t->n_ref += it.s->n_tok;
            t->item[t->n_item++] = it;
        }
    }
    return true;
}

static bool item_check(const struct trainer *t, const struct item *it, struct error *err)
{
    const struct group *g = it->g;
    if (g->n_prompt < 1)
        return error_set(err, ERR_DATA, "item %lld has an empty prompt", (long long)g->item);
    if (item_rows(it) > t->set.token_budget_max)
        return error_set(err, ERR_SHAPE,
                         "a sample of item %lld has %lld tokens; the trainer was made for micro-batches of %lld",
                         (long long)g->item, (long long)item_rows(it), (long long)t->set.token_budget_max);
    if (it->s->first_tok < 0 || it->s->first_tok > g->n_tok || it->s->n_tok > g->n_tok - it->s->first_tok)
        return error_set(err, ERR_DATA, "a sample of item %lld points outside of its group's tokens",
                         (long long)g->item);
    return true;
}

/* Log-probs of all samples under the frozen reference. */
static bool reference_run(struct trainer *t, const struct trainer_hyper *h, struct error *err)
{
    bool ok = false;
    struct micro *mb = &t->mb;
    if (t->n_ref > t->cap_ref) {
        float *more = realloc(t->ref_logp, (size_t)t->n_ref * sizeof *more);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory for %lld reference log-probs", (long long)t->n_ref);
        t->ref_logp = more;
        t->cap_ref = t->n_ref;
    }
    model_run_bind(t->run, t->ref);
    for (int64_t i = 0, first; i < t->n_item; ) {
        micro_clear(mb);
        for (first = i; i < t->n_item && (i == first || mb->n_tok + item_rows(&t->item[i]) <= budget(t, h)); i++)
            micro_item(mb, &t->item[i]);
        struct model_batch b = micro_batch(mb);
        TRY(model_score(t->run, &b, mb->target, mb->temperature, mb->logp, NULL, err));
        for (int64_t k = first; k < i; k++)
            memcpy(t->ref_logp + t->item[k].ref_at, mb->logp + mb->cu[k - first] + t->item[k].g->n_prompt - 1,
                   (size_t)t->item[k].s->n_tok * 4);
    }
    ok = true;
out:
    model_run_bind(t->run, t->m);
    return ok;
}

/* Token advantage of REINFORCE_PPB before normalisation: the penalty uses the recorded log-probs, so it has no
 * gradient. */
static double ppb_advantage(const struct trainer *t, const struct item *it, int64_t k, const struct trainer_hyper *h)
{
    if (!(h->beta > 0))
        return it->adv;
    double d = (double)t->ref_logp[it->ref_at + k] - (double)it->g->logp[it->s->first_tok + k];
    return it->adv - h->beta * (exp(d) - d - 1);    // k3
}

bool trainer_begin(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                   struct trainer_norm *local, struct error *err)
{
    bool ok = false;
    t->groups = groups;
    t->n_group = n_group;
    t->n_item = 0;
    *local = (struct trainer_norm){ 0 };
    if (h->beta > 0 && !t->ref)
        return error_set(err, ERR_USAGE,
                         "a KL coefficient of %g needs a reference model, and the run started without one", h->beta);
    TRY(items_make(t, h, err));
    for (int64_t i = 0; i < t->n_item; i++)
        TRY(item_check(t, &t->item[i], err));
    if (h->beta > 0)
        TRY(reference_run(t, h, err));
    for (int64_t i = 0; i < t->n_item; i++) {
        const struct item *it = &t->item[i];
        local->n_sample++;
        local->n_tok += (double)it->s->n_tok;
        if (it->in_loss)
            local->n_loss_tok += (double)it->s->n_tok;
        if (h->algo != ALGO_REINFORCE_PPB)
            continue;
        for (int64_t k = 0; k < it->s->n_tok; k++) {
            double a = ppb_advantage(t, it, k, h);
            local->sum_a += a;
            local->sum_a2 += a * a;
        }
    }
    ok = true;
out:
    return ok;
}

/* ---- gradient */
void trainer_sums_merge(struct trainer_sums *sum, const struct trainer_sums *part)
{
    sum->loss += part->loss;
    sum->kl += part->kl;
    sum->entropy += part->entropy;
    sum->n_sample += part->n_sample;
    sum->n_loss_sample += part->n_loss_sample;
    sum->n_tok += part->n_tok;
    sum->n_clip_low += part->n_clip_low;
    sum->n_clip_high += part->n_clip_high;
    sum->ratio += part->ratio;
    sum->ratio_max = fmax(sum->ratio_max, part->ratio_max);
    sum->logp_diff_max = fmax(sum->logp_diff_max, part->logp_diff_max);
    sum->n_skipped += part->n_skipped;
    sum->age += part->age;
    sum->age_max = fmax(sum->age_max, part->age_max);
    sum->n_packed_tok += part->n_packed_tok;
    sum->n_micro += part->n_micro;
}

/* Pack a sample with its advantages and weights. */
static void item_pack(struct trainer *t, const struct item *it, const struct trainer_hyper *h,
                      const struct trainer_norm *global)
{
    struct micro *mb = &t->mb;
    bool ppb = h->algo == ALGO_REINFORCE_PPB;
    int64_t row = micro_item(mb, it);
    float weight = it->in_loss ? (float)token_weight(h, global, it->s->n_tok) : 0;
    for (int64_t k = 0; k < it->s->n_tok; k++) {
        mb->adv[row + k] = (float)advantage_normalise(ppb ? ppb_advantage(t, it, k, h) : it->adv, h, global);
        mb->weight[row + k] = weight;
        mb->ref[row + k] = h->beta > 0 ? t->ref_logp[it->ref_at + k] : 0;
    }
}

/* Does any token of it have a gradient? */
static bool item_active(const struct trainer *t, const struct item *it, const struct trainer_hyper *h,
                        const struct trainer_norm *global)
{
    if (!it->in_loss)
        return t->set.run_all;
    if (h->beta > 0 || t->set.run_all)
        return true;
    return advantage_normalise(it->adv, h, global) != 0;
}

/* Leave out samples with a ratio beyond the threshold: needs log-probs before the loss. */
static void samples_skip(struct trainer *t, const struct item *const *it, const struct trainer_hyper *h,
                         struct trainer_sums *s)
{
    struct micro *mb = &t->mb;
    for (int64_t q = 0; q < mb->n_seq; q++) {
        int64_t row = mb->cu[q] + it[q]->g->n_prompt - 1, n = it[q]->s->n_tok;
        double most = 0;
        for (int64_t k = 0; k < n; k++)
            most = fmax(most, exp((double)mb->logp[row + k] - (double)mb->old[row + k]));
        if (most <= h->skip_threshold)
            continue;
        s->n_skipped++;
        for (int64_t k = 0; k < n; k++)
            mb->weight[row + k] = 0;
    }
}

static void item_sums(const struct trainer *t, const struct item *it, int64_t row, const struct trainer_hyper *h,
                      struct trainer_sums *s)
{
    const struct micro *mb = &t->mb;
    double kl = 0, entropy = 0, newer = 0;
    int64_t n = it->s->n_tok;
    for (int64_t k = 0; k < n; k++)
        newer += (double)it->g->newer[it->s->first_tok + k];
    for (int64_t k = row; k < row + n; k++) {
        double d = (double)mb->logp[k] - (double)mb->old[k], r = exp(d), x = (double)mb->ref[k] - (double)mb->logp[k];
        if (mb->weight[k] != 0)
            s->loss += (double)mb->loss[k];
        s->ratio += r;
        s->ratio_max = fmax(s->ratio_max, r);
        if (it->g->weight_version == t->version)
            s->logp_diff_max = fmax(s->logp_diff_max, fabs(d));
        s->n_clip_high += mb->adv[k] > 0 && r > 1 + h->clip_high;
        s->n_clip_low += mb->adv[k] < 0 && r < 1 - h->clip_low;
        entropy += (double)mb->entropy[k];
        kl += h->beta > 0 ? exp(x) - x - 1 : 0;
    }
    double age = fmax((double)(t->version - it->g->weight_version), 0);    // of its first token; below 0 after a return
    s->kl += kl / (double)n;
    s->entropy += entropy / (double)n;
    s->n_sample++;
    s->n_loss_sample += mb->weight[row] != 0;
    s->n_tok += (double)n;
    s->age += fmax((double)(t->version - it->g->weight_version) - newer / (double)n, 0);
    s->age_max = fmax(s->age_max, age);
}

/* Run what is packed: forward, backward, sums. */
static bool micro_run(struct trainer *t, const struct trainer_hyper *h, struct trainer_sums *s, struct error *err)
{
    bool ok = false, stale = false;
    const struct item *const *it = t->packed;
    struct micro *mb = &t->mb;
    struct model_batch b = micro_batch(mb);
    struct token_loss loss = {
        .target = mb->target,
        .temperature = mb->temperature,
        .adv = mb->adv,
        .weight = mb->weight,
        .logp_old = mb->old,
        // REINFORCE_PPB has its penalty in the advantage
        .logp_ref = h->beta > 0 && h->algo != ALGO_REINFORCE_PPB ? mb->ref : NULL,
        .clip_low = (float)h->clip_low,
        .clip_high = (float)h->clip_high,
        .beta = (float)h->beta,
        .logp = mb->logp,
        .entropy = mb->entropy,
        .loss = mb->loss,
    };
    TRY(model_forward_train(t->run, &b, err));
    for (int64_t q = 0; q < mb->n_seq; q++)
        stale = stale || it[q]->g->weight_version != t->version;
    if (h->skip_threshold > 0 && stale) {    // ratios of fresh samples are 1
        TRY(model_head(t->run, &loss, err));
        samples_skip(t, it, h, s);
    }
    TRY(model_backward(t->run, &loss, t->grad, err));
    for (int64_t q = 0; q < mb->n_seq; q++)
        item_sums(t, it[q], mb->cu[q] + it[q]->g->n_prompt - 1, h, s);
    s->n_micro++;
    s->n_packed_tok += (double)mb->n_tok;
    ok = true;
out:
    return ok;
}

static bool grad_clear(struct trainer *t, struct error *err)
{
    return OP(t->dev, err, mem_fill, .y = t->grad, .size_bytes = (size_t)t->n_flat * 4);
}

bool trainer_grad(struct trainer *t, const struct trainer_hyper *h, const struct trainer_norm *global,
                  struct trainer_sums *sums, struct error *err)
{
    bool ok = false;
    struct micro *mb = &t->mb;
    *sums = (struct trainer_sums){ 0 };
    TRY(grad_clear(t, err));
    micro_clear(mb);
    for (int64_t i = 0; i < t->n_item; i++) {
        const struct item *it = &t->item[i];
        if (!item_active(t, it, h, global))
            continue;
        if (mb->n_seq > 0 && mb->n_tok + item_rows(it) > budget(t, h)) {
            TRY(micro_run(t, h, sums, err));
            micro_clear(mb);
        }
        t->packed[mb->n_seq] = it;
        item_pack(t, it, h, global);
    }
    if (mb->n_seq > 0)
        TRY(micro_run(t, h, sums, err));
    ok = true;
out:
    t->n_item = 0;
    return ok;
}

int64_t trainer_grad_n(const struct trainer *t)
{
    return t->n_flat;
}

bool trainer_grad_get(const struct trainer *t, float *out, struct error *err)
{
    return mem_copy(t->dev, out, t->grad, (size_t)t->n_flat * 4, COPY_D2H, err) && device_sync(t->dev, err);
}

float *trainer_grad_at(const struct trainer *t)
{
    return t->grad;
}

/* ---- update */
bool trainer_apply(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err)
{
    bool ok = false;
    float norm;
    size_t bytes;
    void *weights = model_weights(t->m, &bytes);
    TRY(OP(t->dev, err, sumsq, .sum = t->sumsq, .x = t->grad, .n = t->n_flat));
    TRY(OP(t->dev, err, clip_coef, .norm = t->clip, .coef = t->clip + 1, .sum = t->sumsq,
           .max_norm = (float)h->max_norm, .grad_scale = 1));
    TRY(mem_copy(t->dev, &norm, t->clip, sizeof norm, COPY_D2H, err));
    TRY(device_sync(t->dev, err));
    if (!isfinite(norm)) {
        error_set(err, ERR_DATA, "the gradient's norm is not finite at step %lld; the weights stay as they are",
                  (long long)t->version);
        goto out;
    }
    struct adamw step = { .weight = weights, .master = t->state[STATE_MASTER], .m = t->state[STATE_MOMENT1],
                          .v = t->state[STATE_MOMENT2], .grad = t->grad, .coef = t->clip + 1, .n = t->n_dev,
                          .step = t->adam_step + 1, .lr = (float)h->lr, .beta1 = (float)t->set.adam_beta1,
                          .beta2 = (float)t->set.adam_beta2, .eps = (float)t->set.adam_eps,
                          .decay = (float)h->weight_decay, .dtype = model_dtype(t->m) };
    if (t->stage) {    // first, so that its last copies overlap with the part on the device
        struct adamw far = step;
        far.weight = (char *)weights + (size_t)t->n_dev * dtype_size(model_dtype(t->m));
        far.grad += t->n_dev;
        far.n = t->n_flat - t->n_dev;
        far.m = t->host_state[STATE_MOMENT1];
        far.v = t->host_state[STATE_MOMENT2];
        far.master = t->host_state[STATE_MASTER];
        TRY(OP(t->dev, err, adamw_host, .step = far, .stage = t->stage, .stage_bytes = t->stage_bytes));
    }
    TRY(t->dev->op->adamw(t->dev, &step, err));
    TRY(model_weights_changed(t->m, err));
    TRY(device_sync(t->dev, err));
    t->adam_step++;
    t->version++;
    *grad_norm = (double)norm;
    ok = true;
out:
    return ok;
}

bool trainer_step(struct trainer *t, const struct group *const *groups, int64_t n_group, const struct trainer_hyper *h,
                  double *metric, struct error *err)
{
    bool ok = false;
    struct trainer_norm norm;
    struct trainer_sums sums;
    double grad_norm;
    int64_t t0 = clock_ns();
    TRY(trainer_begin(t, groups, n_group, h, &norm, err));
    TRY(trainer_grad(t, h, &norm, &sums, err));
    TRY(trainer_apply(t, h, &grad_norm, err));
    if (metric) {
        double s = (double)(clock_ns() - t0) * 1e-9;
        trainer_metrics_make(metric, &sums, groups, n_group, h);
        metric[M_GRAD_NORM] = grad_norm;
        metric[M_TRAIN_S] = s;
        metric[M_TRAIN_TOK_PER_S] = sums.n_packed_tok / s;
    }
    ok = true;
out:
    return ok;
}

/* ---- metrics */
static int i64_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The value that a share p of the n sorted ones do not exceed (nearest rank). */
static double percentile(const int64_t *sorted, int64_t n, double p)
{
    int64_t k = (int64_t)ceil(p * (double)n) - 1;
    return (double)sorted[MIN(MAX(k, 0), n - 1)];
}

static void length_metrics(double *metric, const struct group *const *groups, int64_t n_group, int64_t n_sample)
{
    int64_t *len = malloc((size_t)MAX(n_sample, 1) * sizeof *len), n = 0, sum = 0;
    for (int64_t i = 0; len && i < n_group; i++)
        for (int32_t k = 0; k < groups[i]->n_sample; k++) {
            sum += groups[i]->sample[k].n_tok;
            len[n++] = groups[i]->sample[k].n_tok;
        }
    if (n > 0)
        qsort(len, (size_t)n, sizeof *len, i64_compare);
    metric[M_RESPONSE_LENGTH] = n ? (double)sum / (double)n : NAN;
    metric[M_LENGTH_P10] = n ? percentile(len, n, 0.1) : NAN;
    metric[M_LENGTH_P50] = n ? percentile(len, n, 0.5) : NAN;
    metric[M_LENGTH_P90] = n ? percentile(len, n, 0.9) : NAN;
    metric[M_LENGTH_MAX] = n ? (double)len[n - 1] : NAN;
    free(len);
}

void trainer_metrics_make(double *metric, const struct trainer_sums *sums, const struct group *const *groups,
                          int64_t n_group, const struct trainer_hyper *h)
{
    double n = 0, n_all = 0, r = 0, r2 = 0, fmt = 0, ans = 0, cut = 0, full = 0, out = 0, flat = 0, filtered = 0,
           used = 0;
    double adv_sum = 0;
    for (int64_t i = 0; i < n_group; i++) {
        const struct group *g = groups[i];
        double acc = group_accuracy(g);
        double *adv = malloc((size_t)MAX(g->n_sample, 1) * sizeof *adv);
        if (adv)
            advantage_group(adv, h->algo, g);
        flat += !group_has_spread(g);
        filtered += h->has_filter && !(acc > h->filter_low && acc < h->filter_high);
        for (int32_t k = 0; k < g->n_sample; k++) {
            const struct sample *s = &g->sample[k];
            n_all++;
            cut += s->finish == FINISH_LENGTH;
            full += g->max_new_tok > 0 && s->n_tok >= g->max_new_tok;
            out += s->score != SCORE_OK;
            used += sample_in_loss(g, k, h);
            if (s->score != SCORE_OK)
                continue;
            n++;
            r += s->reward;
            r2 += s->reward * s->reward;
            fmt += (double)s->format_acc;
            ans += (double)s->ans_acc;
            adv_sum += adv ? adv[k] : NAN;
        }
        free(adv);
    }
    metric[M_REWARD] = r / n;    // 0 / 0 is the NAN of "unknown"
    metric[M_REWARD_STD] = sqrt(fmax(r2 / n - r / n * (r / n), 0));
    metric[M_FORMAT_ACC] = fmt / n;
    metric[M_ANS_ACC] = ans / n;
    metric[M_ADVANTAGES] = adv_sum / n;
    metric[M_TRUNCATED] = cut / n_all;
    metric[M_OVERLENGTH] = full / n_all;
    metric[M_LEFT_OUT] = out / n_all;
    metric[M_SAMPLE_UTILIZATION] = (used - sums->n_skipped) / n_all;
    metric[M_SKIPPED] = sums->n_skipped / n_all;
    metric[M_MICRO_BATCHES] = sums->n_micro;
    metric[M_NO_SPREAD] = flat / (double)n_group;
    metric[M_FILTERED] = filtered / (double)n_group;
    metric[M_TEMPERATURE] = n_group ? (double)groups[0]->temperature : NAN;
    length_metrics(metric, groups, n_group, (int64_t)n_all);
    metric[M_LOSS] = sums->loss;
    metric[M_LEARNING_RATE] = h->lr;
    metric[M_ENTROPY] = sums->entropy / sums->n_sample;
    metric[M_KL] = h->beta > 0 ? sums->kl / sums->n_sample : NAN;
    metric[M_CLIP_LOW] = sums->n_clip_low / sums->n_tok;
    metric[M_CLIP_HIGH] = sums->n_clip_high / sums->n_tok;
    metric[M_RATIO_MEAN] = sums->ratio / sums->n_tok;
    metric[M_RATIO_MAX] = sums->n_tok > 0 ? sums->ratio_max : NAN;
    metric[M_SAMPLER_TRAINER_DIFF] = sums->n_tok > 0 ? sums->logp_diff_max : NAN;
    metric[M_AGE_MEAN] = sums->age / sums->n_sample;
    metric[M_AGE_MAX] = sums->n_sample > 0 ? sums->age_max : NAN;
}

/* ---- scoring and supervised steps */
bool trainer_logprobs(struct trainer *t, const int32_t *token, const int64_t *seq_len, const float *temperature,
                      int64_t n_seq, float *logp, float *entropy, struct error *err)
{
    bool ok = false;
    struct micro *mb = &t->mb;
    for (int64_t s = 0; s < n_seq; ) {
        int64_t first = s;
        const int32_t *tok = token;
        micro_clear(mb);
        for (; s < n_seq && (s == first || mb->n_tok + MAX(seq_len[s] - 1, 0) <= t->set.token_budget_max); s++) {
            int64_t n = seq_len[s] - 1;
            if (n < 1 || n > t->set.token_budget_max) {
                error_set(err, ERR_SHAPE, "a sequence has %lld tokens; from 2 to %lld are possible",
                          (long long)seq_len[s], (long long)t->set.token_budget_max + 1);
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

bool trainer_sft_step(struct trainer *t, const struct sft_seq *seq, int64_t n_seq, const struct trainer_hyper *h,
                      bool apply, double *loss, double *n_loss_tok, double *grad_norm, struct error *err)
{
    bool ok = false;
    struct micro *mb = &t->mb;
    double total = 0, sum = 0;
    int64_t most = budget(t, h);
    for (int64_t s = 0; s < n_seq; s++) {
        if (seq[s].n_tok < 2 || seq[s].n_tok - 1 > t->set.token_budget_max) {
            error_set(err, ERR_SHAPE, "a sequence has %lld tokens; from 2 to %lld are possible",
                      (long long)seq[s].n_tok, (long long)t->set.token_budget_max + 1);
            goto out;
        }
        for (int64_t i = 1; i < seq[s].n_tok; i++)
            total += (double)seq[s].weight[i];
    }
    if (apply)
        TRY(grad_clear(t, err));
    for (int64_t s = 0; s < n_seq; ) {
        micro_clear(mb);
        for (int64_t first = s; s < n_seq && (s == first || mb->n_tok + seq[s].n_tok - 1 <= most); s++) {
            int64_t n = seq[s].n_tok - 1, row = micro_seq(mb, seq[s].token, n, NULL, 0, 1);
            for (int64_t i = 0; i < n; i++) {
                mb->target[row + i] = seq[s].weight[i + 1] != 0 ? seq[s].token[i + 1] : -1;
                mb->weight[row + i] = seq[s].weight[i + 1];
                mb->coef[row + i] = total > 0 ? (float)(-(double)seq[s].weight[i + 1] / total) : 0;
            }
        }
        struct model_batch b = micro_batch(mb);
        struct token_loss l = {
            .target = mb->target, .temperature = mb->temperature, .coef = mb->coef, .logp = mb->logp};
        if (apply)
            TRY(model_forward_train(t->run, &b, err) && model_backward(t->run, &l, t->grad, err));
        else
            TRY(model_score(t->run, &b, mb->target, mb->temperature, mb->logp, NULL, err));
        for (int64_t i = 0; i < mb->n_tok; i++)
            sum -= (double)mb->weight[i] * (double)mb->logp[i];
    }
    if (apply)
        TRY(trainer_apply(t, h, grad_norm, err));
    *loss = total > 0 ? sum / total : NAN;
    *n_loss_tok = total;
    ok = true;
out:
    return ok;
}

/* ---- state */
/* Elements on the device of this part: a master in fp32 is all there. */
static int64_t state_n_dev(const struct trainer *t, enum trainer_state_kind kind)
{
    return kind == STATE_MASTER && !t->own_master ? t->n_flat : t->n_dev;
}

bool trainer_state_get(const struct trainer *t, enum trainer_state_kind kind, float *out, struct error *err)
{
    int64_t n = state_n_dev(t, kind);
    if (!mem_copy(t->dev, out, t->state[kind], (size_t)n * 4, COPY_D2H, err) || !device_sync(t->dev, err))
        return false;
    if (n < t->n_flat)
        memcpy(out + n, t->host_state[kind], (size_t)(t->n_flat - n) * 4);
    return true;
}

bool trainer_state_set(struct trainer *t, enum trainer_state_kind kind, const float *in, struct error *err)
{
    bool ok = false;
    int64_t n = state_n_dev(t, kind), most = (int64_t)(t->stage_bytes / 4);
    size_t bytes;
    char *weights = model_weights(t->m, &bytes);
    TRY(device_sync(t->dev, err));
    TRY(mem_copy(t->dev, t->state[kind], in, (size_t)n * 4, COPY_H2D, err));
    if (n < t->n_flat)
        memcpy(t->host_state[kind], in + n, (size_t)(t->n_flat - n) * 4);
    if (kind == STATE_MASTER && t->own_master) {
        TRY(OP(t->dev, err, cast, .y = weights, .x = t->state[kind], .n = n, .scale = 1, .y_dtype = DT_BF16,
               .x_dtype = DT_F32));
        for (int64_t at = n; at < t->n_flat; at += most) {
            int64_t k = MIN(most, t->n_flat - at);
            TRY(mem_copy(t->dev, t->stage, in + at, (size_t)k * 4, COPY_H2D, err));
            TRY(OP(t->dev, err, cast, .y = weights + (size_t)at * 2, .x = t->stage, .n = k, .scale = 1,
                   .y_dtype = DT_BF16, .x_dtype = DT_F32));
        }
    }
    if (kind == STATE_MASTER)
        TRY(model_weights_changed(t->m, err));
    ok = device_sync(t->dev, err);
out:
    return ok;
}

bool trainer_hash(const struct trainer *t, uint64_t *hash, struct error *err)
{
    size_t bytes;
    void *weights = model_weights(t->m, &bytes);
    return OP(t->dev, err, mem_hash, .hash = t->hash, .x = weights, .size_bytes = bytes)
        && mem_copy(t->dev, hash, t->hash, sizeof *hash, COPY_D2H, err) && device_sync(t->dev, err);
}

int64_t trainer_adam_step(const struct trainer *t)
{
    return t->adam_step;
}

void trainer_adam_step_set(struct trainer *t, int64_t n)
{
    t->adam_step = n;
}

bool trainer_adam_reset(struct trainer *t, struct error *err)
{
    t->adam_step = 0;
    if (!device_sync(t->dev, err))
        return false;
    for (int k = STATE_MOMENT1; k <= STATE_MOMENT2; k++) {
        if (!OP(t->dev, err, mem_fill, .y = t->state[k], .size_bytes = (size_t)t->n_dev * 4))
            return false;
        if (t->host_state[k])
            memset(t->host_state[k], 0, (size_t)(t->n_flat - t->n_dev) * 4);
    }
    return true;
}
