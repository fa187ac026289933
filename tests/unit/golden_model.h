/* golden_model.h - a model with the batch, loss and gradients that PyTorch has written for it (golden.safetensors), and checks on them */
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/trainer/loss.h"
#include "workers/engine/trainer/supervised.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/pass/pass.h"

#define MAX_TOK 64

struct golden {
    char dir[1024];    // of the fixture
    struct device *dev;
    struct model *m;
    struct shards *g;
    int32_t token[MAX_TOK], cu[8], target[MAX_TOK];
    float coef[MAX_TOK], temperature[MAX_TOK];
    int64_t n_tok, n_seq;
};

static const char *data_dir(void)
{
    const char *data = getenv("TEST_DATA_DIR");    // set where the program does not run where it was built
    return data ? data : TEST_DATA_DIR;
}

static const struct st_tensor *find(const struct shards *s, const char *name)
{
    const struct st_tensor *t = shards_find(s, name);
    if (!t)
        fail_msg("the fixture has no '%s'", name);
    return t;
}

static int64_t ints(const struct shards *s, const char *name, int32_t *out)
{
    float f[MAX_TOK];
    const struct st_tensor *t = find(s, name);
    assert_true(t->n_elem <= MAX_TOK);
    st_to_f32(f, t);
    for (int64_t i = 0; i < t->n_elem; i++)
        out[i] = (int32_t)f[i];
    return t->n_elem;
}

/* Read the batch of the fixture in g->dir. */
static void golden_read(struct golden *g)
{
    struct error err = { 0 };
    char path[1100];
    snprintf(path, sizeof path, "%s/golden.safetensors", g->dir);
    if (!(g->g = shards_open_file(path, &err)))
        fail_msg("%s", err.text);
    g->n_tok = ints(g->g, "token", g->token);
    g->n_seq = ints(g->g, "cu_tok", g->cu) - 1;
    st_to_f32(g->coef, find(g->g, "coef"));
    for (int64_t s = 0; s < g->n_seq; s++)
        for (int64_t i = g->cu[s]; i < g->cu[s + 1]; i++) {
            g->target[i] = i + 1 < g->cu[s + 1] ? g->token[i + 1] : -1;
            g->temperature[i] = 1;
        }
}

static void golden_close(struct golden *g)
{
    model_free(g->m);
    shards_close(g->g);
    device_free(g->dev);
}

static struct model_batch batch(const struct golden *g)
{
    return (struct model_batch){ .n_seq = g->n_seq, .n_tok = g->n_tok, .token = g->token, .cu_tok = g->cu };
}

/* ||a - b|| / ||b|| */
static double distance(const float *a, const float *b, int64_t n)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return s > 0 ? sqrt(d / s) : sqrt(d);
}

/* Sum of coef logp with what is trained moved by step along dir. */
static double loss_at(struct golden *g, struct model_run *r, const float *at, const double *dir, double step)
{
    struct error err = { 0 };
    size_t bytes;
    float *w = model_weights(g->m, &bytes), logp[MAX_TOK];
    double sum = 0;
    for (int64_t i = 0; i < model_n_flat(g->m); i++)
        w[i] = (float)((double)at[i] + step * dir[i]);
    struct model_batch b = batch(g);
    if (!model_weights_changed(g->m, &err) || !model_score(r, &b, g->target, g->temperature, logp, NULL, &err))
        fail_msg("%s", err.text);
    for (int64_t i = 0; i < g->n_tok; i++)
        sum += (double)g->coef[i] * (double)logp[i];
    return sum;
}

/* The loss rises along its gradient as fast as that says. g: on a host device, fp32. */
static void slope_check(struct golden *g, const char *name)
{
    struct error err = { 0 };
    struct run_limits lim = { .max_tok = MAX_TOK, .max_seq = 8, .max_seq_tok = MAX_TOK, .train = true };
    struct model_run *r = model_run_new(g->m, &lim, &err);
    size_t bytes;
    int64_t n = model_n_flat(g->m);
    float *grad = calloc((size_t)n, 4), *at = malloc((size_t)n * 4), logp[MAX_TOK];
    double *dir = malloc((size_t)n * sizeof *dir), norm = 0;
    memcpy(at, model_weights(g->m, &bytes), (size_t)n * 4);
    struct model_batch b = batch(g);
    struct token_loss loss = { .target = g->target, .temperature = g->temperature, .coef = g->coef, .logp = logp };
    if (!r || !model_forward_train(r, &b, &err) || !model_backward(r, &loss, &(struct model_grad){ .flat = grad }, &err))
        fail_msg("%s", err.text);
    for (int64_t i = 0; i < n; i++)
        norm += (double)grad[i] * (double)grad[i];
    norm = sqrt(norm);
    for (int64_t i = 0; i < n; i++)    // uphill, so that every tensor has its share
        dir[i] = (double)grad[i] / norm;
    // a central difference of steps h errs by h^2; log-probs in fp32 add about 1e-5 / h
    double h = 3e-3, slope = (loss_at(g, r, at, dir, h) - loss_at(g, r, at, dir, -h)) / (2 * h);
    if (!(fabs(slope - norm) < 2e-3 * norm))
        fail_msg("%s: the loss rises by %.8g, its gradient says %.8g", name, slope, norm);
    free(grad);
    free(at);
    free(dir);
    model_run_free(r);
}

/* Ten AdamW steps on the batch, have the losses and norms of `reference`, which the fixture holds. */
static void adamw_steps_check(struct golden *g, struct trainer *t, const char *name, const char *reference)
{
    struct error err = { 0 };
    float ones[MAX_TOK], want_loss[10], want_norm[10];
    struct sft_seq seq[8];
    int64_t n = 0;
    for (int64_t s = 0; s < g->n_seq; s++)
        if (g->cu[s + 1] - g->cu[s] > 1)
            seq[n++] = (struct sft_seq){ g->token + g->cu[s], ones, g->cu[s + 1] - g->cu[s] };
    for (int i = 0; i < MAX_TOK; i++)
        ones[i] = 1;
    st_to_f32(want_loss, find(g->g, "adam_loss"));
    st_to_f32(want_norm, find(g->g, "adam_norm"));
    struct trainer_hyper h;
    trainer_hyper_init(&h);
    h.lr = 1e-2;
    for (int i = 0; i < 10; i++) {
        double loss, n_tok, norm;
        if (!trainer_sft_step(t, seq, n, &h, true, &loss, &n_tok, &norm, &err))
            fail_msg("%s", err.text);
        if (!(fabs(loss - (double)want_loss[i]) < 2e-5 * fabs((double)want_loss[i]))
            || !(fabs(norm - (double)want_norm[i]) < 2e-4 * (double)want_norm[i]))
            fail_msg("%s on %s, step %d: loss %.8g, norm %.8g; %s has %.8g, %.8g", name, g->dev->name, i, loss, norm, reference,
                     (double)want_loss[i], (double)want_norm[i]);
    }
}
