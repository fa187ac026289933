/* model_dump DIR DEVICE float32|bfloat16 TOKENS N_SEQ OUT: logits of packed sequences, and the gradient of their mean
 * cross-entropy by every tensor, for compare_transformers.py
 *
 * TOKENS holds int32 ids, N_SEQ sequences of one length; each token predicts the next of its sequence. OUT becomes a
 * safetensors file: "logits" (n_tok, vocab), "loss" (1), and a gradient under each tensor's name, all fp32. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_dir.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/pass/pass.h"

struct dump {
    struct device *dev;
    struct model *m;
    struct model_run *run;
    struct file_map tokens;
    int32_t *target, *cu;
    float *one, *coef, *logp, *logits, *grad_host, *grad;    // grad: device
    struct st_out *out;
};

static bool dump_run(struct dump *d, char **argv, struct error *err)
{
    bool ok = false;
    enum dtype dtype;
    TRY(model_dtype_parse(&dtype, argv[3], err));
    TRY(d->dev = device_new(argv[2], 0, err));
    TRY(d->m = model_load(argv[1], d->dev, dtype, err));
    TRY(file_map_open(&d->tokens, argv[4], err));
    int64_t n_seq = atoll(argv[5]), n = (int64_t)(d->tokens.size_bytes / 4), vocab = model_config(d->m)->vocab;
    if (n_seq < 1 || n < 2 * n_seq || n % n_seq) {
        error_set(err, ERR_USAGE, "'%s' has %" PRId64 " tokens, not %" PRId64 " sequences of one length", argv[4], n, n_seq);
        goto out;
    }
    int64_t len = n / n_seq, n_flat = model_n_flat(d->m), n_tensor = model_n_tensor(d->m);
    size_t flat = (size_t)n_flat * 4;
    d->target = malloc((size_t)n * 4);
    d->cu = malloc((size_t)(n_seq + 1) * 4);
    d->one = malloc((size_t)n * 4);
    d->coef = malloc((size_t)n * 4);
    d->logp = malloc((size_t)n * 4);
    d->logits = malloc((size_t)(n * vocab) * 4);
    d->grad_host = malloc(flat);
    d->out = calloc((size_t)n_tensor + 2, sizeof *d->out);
    if (!d->target || !d->cu || !d->one || !d->coef || !d->logp || !d->logits || !d->grad_host || !d->out) {
        error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " tokens", n);
        goto out;
    }
    const int32_t *token = (const int32_t *)(const void *)d->tokens.data;    // a mapping starts on a page
    for (int64_t i = 0; i < n; i++) {
        bool last = i % len == len - 1;
        d->target[i] = last ? -1 : token[i + 1];
        d->one[i] = 1;
        d->coef[i] = last ? 0 : -1 / (float)(n - n_seq);
    }
    for (int64_t s = 0; s <= n_seq; s++)
        d->cu[s] = (int32_t)(s * len);
    struct run_limits lim = { .max_tok = n, .max_seq = n_seq, .max_seq_tok = len, .train = true };
    struct model_batch b = { .n_seq = n_seq, .n_tok = n, .token = token, .cu_tok = d->cu };
    struct token_loss loss = { .target = d->target, .temperature = d->one, .coef = d->coef, .logp = d->logp };
    TRY(d->run = model_run_new(d->m, &lim, err));
    TRY(d->grad = mem_new(d->dev, flat, "gradient", err));
    TRY(OP(d->dev, err, mem_fill, .y = d->grad, .size_bytes = flat));
    TRY(model_forward_train(d->run, &b, err) && model_logits(d->run, d->logits, err)
        && model_backward(d->run, &loss, &(struct model_grad){ .flat = d->grad }, err));
    TRY(mem_copy(d->dev, d->grad_host, d->grad, flat, COPY_D2H, err) && device_sync(d->dev, err));
    float mean = 0;
    for (int64_t i = 0; i < n; i++)
        mean += d->coef[i] * d->logp[i];
    d->out[0] = (struct st_out){ .name = "logits", .dtype = ST_F32, .n_dim = 2, .dim = { n, vocab }, .data = d->logits };
    d->out[1] = (struct st_out){ .name = "loss", .dtype = ST_F32, .n_dim = 1, .dim = { 1 }, .data = &mean };
    for (int64_t i = 0; i < n_tensor; i++) {
        const struct tensor *t = model_tensor(d->m, i);
        d->out[2 + i] = (struct st_out){
            .name = t->name, .dtype = ST_F32, .n_dim = t->n_dim, .dim = { t->dim[0], t->dim[1] }, .data = d->grad_host + t->offset
        };
    }
    ok = st_write(argv[6], d->out, n_tensor + 2, err);
out:
    return ok;
}

int main(int argc, char **argv)
{
    struct dump d = { 0 };
    struct error err = { 0 };
    if (argc != 7) {
        fprintf(stderr, "usage: model_dump DIR DEVICE float32|bfloat16 TOKENS N_SEQ OUT\n");
        return 2;
    }
    bool ok = dump_run(&d, argv, &err);
    if (!ok)
        fprintf(stderr, "model_dump: %s\n", err.text);
    if (d.dev)
        mem_free(d.dev, d.grad);
    model_run_free(d.run);
    model_free(d.m);
    device_free(d.dev);
    file_map_close(&d.tokens);
    void *const mem[] = { d.target, d.cu, d.one, d.coef, d.logp, d.logits, d.grad_host, d.out };
    for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
        free(mem[i]);
    return !ok;
}
