/* trainer.c - masters, moments and the update; scoring and supervised steps
 *
 * Masters and moments of the first n_dev elements of the flat order lie on the device, those of the others in pinned host
 * memory, from where AdamW streams them (adamw_host). All of them on the device unless offload is set. */
#include "workers/engine/trainer/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/collective/collective.h"
#include "workers/engine/trainer/trainer_impl.h"

#define STAGE_BYTES ((size_t)288 << 20)    // three pieces of 8 Mi elements: copies of 32 MiB run a bus at full speed

/* ---- life */
static void limits_make(struct run_limits *l, const struct trainer_settings *s)
{
    *l = (struct run_limits){ .max_tok = s->token_budget_max,
                              .max_seq = s->token_budget_max,
                              .max_seq_tok = s->token_budget_max,
                              .train = true,
                              .recompute_block = s->recompute_block,
                              .mem = s->scratch };
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

/* Elements of the sum that a rank keeps, the largest shard: none when there is one rank, which adds up in place. */
static int64_t sum_n(const struct model *m, const struct trainer_settings *s)
{
    int64_t first;
    return s->n_rank > 1 ? collective_shard(model_n_flat(m), s->n_rank, 0, &first) : 0;
}

void trainer_memory(const struct model *m, const struct trainer_settings *s, struct trainer_memory *out)
{
    struct run_limits l;
    limits_make(&l, s);
    size_t stage, each = model_dtype(m) == DT_F32 ? 8 : 12;
    int64_t n = model_n_flat(m), n_dev = state_split(m, s, &stage);
    *out = (struct trainer_memory){ .activation = model_run_bytes(m, &l),
                                    .gradient = (size_t)(n + sum_n(m, s)) * 4,
                                    .state = (size_t)n_dev * each + stage,
                                    .host = (size_t)(n - n_dev) * each };
}

static bool micro_new(struct trainer *t, struct error *err)
{
    size_t n = (size_t)t->set.token_budget_max;
    struct micro *mb = &t->mb;
    if (!(t->mb_mem = malloc((12 * n + 1) * 4)))
        return error_set(err, ERR_NO_MEMORY, "no memory for a micro-batch of %zu tokens", n);
    float *p = t->mb_mem;
    float **floats[] = { &mb->temperature, &mb->adv, &mb->weight, &mb->old, &mb->ref, &mb->coef, &mb->logp, &mb->entropy, &mb->loss };
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
        bool ok = kind == STATE_MASTER
                      ? OP(t->dev, err, cast, .y = t->stage, .x = from, .n = k, .scale = 1, .y_dtype = DT_F32, .x_dtype = model_dtype(t->m))
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

bool trainer_grad_clear(struct trainer *t, struct error *err)
{
    return OP(t->dev, err, mem_fill, .y = t->grad, .size_bytes = (size_t)t->n_flat * 4);
}

static bool grad_new(struct trainer *t, struct error *err)
{
    size_t bytes = (size_t)t->n_flat * 4;
    t->n_sum = sum_n(t->m, &t->set);
    if (t->n_sum == 0)
        t->grad = mem_new(t->dev, bytes, "gradient", err);
    else if ((t->grad = mem_share_new(t->dev, bytes, "gradient", &t->grad_handle, err)))
        t->sum = mem_share_new(t->dev, (size_t)t->n_sum * 4, "sum of the gradients", &t->sum_handle, err);
    return t->grad && (t->sum || t->n_sum == 0) && trainer_grad_clear(t, err);
}

struct trainer *trainer_new(struct model *model, struct model *ref, const struct trainer_settings *s, struct error *err)
{
    if (s->token_budget_max < 1 || s->token_budget_max > INT32_MAX / 4) {
        error_set(err, ERR_USAGE, "a token budget of %" PRId64 " is not possible", s->token_budget_max);
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
    t->n_sumsq = (t->n_flat + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK;
    t->own_master = model_dtype(model) != DT_F32;
    struct run_limits limits;
    limits_make(&limits, s);
    if (!micro_new(t, err) || !(t->run = model_run_new(model, &limits, err)) || !state_new(t, err) || !grad_new(t, err)
        || !(t->sumsq = mem_new(t->dev, (size_t)(1 + t->n_sumsq) * sizeof *t->sumsq, "gradient norm", err))
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
    if (t->sum)
        mem_share_free(t->dev, t->sum, (size_t)t->n_sum * 4, &t->sum_handle);
    if (t->grad && t->n_sum)
        mem_share_free(t->dev, t->grad, (size_t)t->n_flat * 4, &t->grad_handle);
    else
        mem_free(t->dev, t->grad);
    void *mem[] = { t->stage, t->sumsq, t->hash, t->clip };
    for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
        mem_free(t->dev, mem[i]);
    for (int k = 0; k < STATE_N; k++) {
        if (k != STATE_MASTER || t->own_master)
            mem_free(t->dev, t->state[k]);
        host_free(t->dev, t->host_state[k]);
    }
    free(t->mb_mem);
    free(t->item);
    free(t->order);
    free(t->first);
    free(t->rows);
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

/* ---- update */
int64_t trainer_grad_n(const struct trainer *t)
{
    return t->n_flat;
}

bool trainer_grad_get(const struct trainer *t, float *out, struct error *err)
{
    return mem_copy(t->dev, out, t->grad, (size_t)t->n_flat * 4, COPY_D2H, err) && device_sync(t->dev, err);
}

struct trainer_buffers trainer_buffers(const struct trainer *t)
{
    return (struct trainer_buffers){ t->grad, t->sum, &t->grad_handle, &t->sum_handle, t->n_sum };
}

struct device *trainer_device(const struct trainer *t)
{
    return t->dev;
}

bool trainer_apply(struct trainer *t, const struct trainer_hyper *h, double *grad_norm, struct error *err)
{
    bool ok = false;
    float norm;
    size_t bytes;
    void *weights = model_weights(t->m, &bytes);
    TRY(OP(t->dev, err, sumsq, .part = t->sumsq + 1, .x = t->grad, .n = t->n_flat));
    TRY(OP(t->dev, err, sum_parts, .sum = t->sumsq, .part = t->sumsq + 1, .n = t->n_sumsq));
    TRY(OP(t->dev, err, clip_coef, .norm = t->clip, .coef = t->clip + 1, .sum = t->sumsq, .max_norm = (float)h->max_norm, .grad_scale = 1));
    TRY(mem_copy(t->dev, &norm, t->clip, sizeof norm, COPY_D2H, err));
    TRY(device_sync(t->dev, err));
    if (!isfinite(norm)) {
        error_set(err, ERR_DATA, "the gradient's norm is not finite at step %" PRId64 "; the weights stay as they are", t->version);
        goto out;
    }
    struct adamw step = { .weight = weights,
                          .master = t->state[STATE_MASTER],
                          .m = t->state[STATE_MOMENT1],
                          .v = t->state[STATE_MOMENT2],
                          .grad = t->grad,
                          .coef = t->clip + 1,
                          .n = t->n_dev,
                          .step = t->adam_step + 1,
                          .lr = (float)h->lr,
                          .beta1 = (float)t->set.adam_beta1,
                          .beta2 = (float)t->set.adam_beta2,
                          .eps = (float)t->set.adam_eps,
                          .decay = (float)h->weight_decay,
                          .dtype = model_dtype(t->m) };
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

/* ---- scoring and supervised steps */
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

bool trainer_sft_step(struct trainer *t, const struct sft_seq *seq, int64_t n_seq, const struct trainer_hyper *h, bool apply, double *loss,
                      double *n_loss_tok, double *grad_norm, struct error *err)
{
    bool ok = false;
    struct micro *mb = &t->mb;
    double total = 0, sum = 0;
    int64_t most = micro_budget(t, h);
    for (int64_t s = 0; s < n_seq; s++) {
        if (seq[s].n_tok < 2 || seq[s].n_tok - 1 > t->set.token_budget_max) {
            error_set(err, ERR_SHAPE, "a sequence has %" PRId64 " tokens; from 2 to %" PRId64 " are possible", seq[s].n_tok,
                      t->set.token_budget_max + 1);
            goto out;
        }
        for (int64_t i = 1; i < seq[s].n_tok; i++)
            total += (double)seq[s].weight[i];
    }
    if (apply)
        TRY(trainer_grad_clear(t, err));
    for (int64_t s = 0; s < n_seq;) {
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
        struct token_loss l = { .target = mb->target, .temperature = mb->temperature, .coef = mb->coef, .logp = mb->logp };
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
        TRY(OP(t->dev, err, cast, .y = weights, .x = t->state[kind], .n = n, .scale = 1, .y_dtype = DT_BF16, .x_dtype = DT_F32));
        for (int64_t at = n; at < t->n_flat; at += most) {
            int64_t k = MIN(most, t->n_flat - at);
            TRY(mem_copy(t->dev, t->stage, in + at, (size_t)k * 4, COPY_H2D, err));
            TRY(OP(t->dev, err, cast, .y = weights + (size_t)at * 2, .x = t->stage, .n = k, .scale = 1, .y_dtype = DT_BF16,
                   .x_dtype = DT_F32));
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
