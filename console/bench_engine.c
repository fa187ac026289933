/* bench_engine.c - how fast the CPU engine is, against OpenBLAS in the same run
 *
 * gemm: one matrix product as the engine does it, against sgemm. cpu: training steps and decoding of small models; training
 * counts 6 P + 6 layers heads head_size length operations a token (P: weights in products, head with them). Medians. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/bench.h"
#include "kernels/ops.h"
#include "kernels/trace.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "workers/model/model.h"
#include "workers/producer/generator.h"
#define ROUNDS_MAX 64

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, double_compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}
static double seconds(void)
{
    return (double)clock_ns() * 1e-9;
}

/* OpenBLAS through its C interface: row-major, transposition by the constants of cblas.h. */
typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                      int ldb, float beta, float *c, int ldc);
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
static sgemm_fn *openblas_open(int n_thread)
{
    char text[16];
    snprintf(text, sizeof text, "%d", n_thread);
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);    // left alone, 0.3.21 picks its Haswell kernels on new processors
    setenv("OPENBLAS_NUM_THREADS", text, 1);
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    sgemm_fn *fn = NULL;
    if (lib)
        *(void **)&fn = dlsym(lib, "cblas_sgemm");
    return fn;
}
static double sgemm_gflops(sgemm_fn *sgemm, int m, int n, int k, int rounds)
{
    float *a = calloc((size_t)m * k, 4), *b = calloc((size_t)n * k, 4), *c = calloc((size_t)m * n, 4);
    double took[ROUNDS_MAX], result = NAN;
    if (a && b && c) {
        for (int64_t i = 0; i < (int64_t)m * k; i++)
            a[i] = (float)(i % 97) * 0.01f - 0.5f;
        for (int64_t i = 0; i < (int64_t)n * k; i++)
            b[i] = (float)(i % 89) * 0.01f - 0.4f;
        for (int r = -2; r < rounds; r++) {
            double t0 = seconds();
            sgemm(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, 1, a, k, b, k, 0, c, n);
            if (r >= 0)
                took[r] = seconds() - t0;
        }
        result = 2.0 * m * n * k / median(took, rounds) * 1e-9;
    }
    free(a);
    free(b);
    free(c);
    return result;
}

enum product { PRODUCT_FWD, PRODUCT_BWD_X, PRODUCT_BWD_W };
static const char *const product_name[] = { "fwd", "bwd_x", "bwd_w" };
static bool product_gflops(struct device *dev, enum product kind, int64_t m, int64_t n, int64_t k, int rounds, double *gflops,
                           struct error *err)
{
    bool ok = false;
    double took[ROUNDS_MAX];
    struct weight *w = NULL;
    float *x = mem_new(dev, (size_t)(m * k) * 4, "a bench", err), *y = mem_new(dev, (size_t)(m * n) * 4, "a bench", err);
    float *data = mem_new(dev, (size_t)(n * k) * 4, "a bench", err);
    if (!x || !y || !data)
        goto out;
    for (int64_t i = 0; i < m * k; i++)
        x[i] = (float)(i % 97) * 0.01f - 0.5f;
    for (int64_t i = 0; i < n * k; i++)
        data[i] = (float)(i % 89) * 0.01f - 0.4f;
    for (int64_t i = 0; i < m * n; i++)
        y[i] = (float)(i % 83) * 0.01f - 0.4f;
    if (!(w = weight_new(dev, data, DT_F32, n, k, true, err)))
        goto out;
    for (int r = -2; r < rounds; r++) {
        double t0 = seconds();
        if (kind == PRODUCT_FWD)
            TRY(OP(dev, err, linear_fwd, .y = y, .x = x, .w = w, .n = m));
        else if (kind == PRODUCT_BWD_X)
            TRY(OP(dev, err, linear_bwd_x, .dx = x, .dy = y, .w = w, .n = m));
        else
            TRY(OP(dev, err, linear_bwd_w, .dw = data, .dy = y, .x = x, .n = m, .n_out = n, .n_in = k));
        if (r >= 0)
            took[r] = seconds() - t0;
    }
    *gflops = 2.0 * (double)m * (double)n * (double)k / median(took, rounds) * 1e-9;
    ok = true;
out:
    weight_free(dev, w);
    mem_free(dev, x);
    mem_free(dev, y);
    mem_free(dev, data);
    return ok;
}

bool bench_gemm(int argc, char **argv, struct error *err)
{
    bool ok = false;
    int64_t n_thread = 2, rounds = 15;
    struct cli_option options[] = {
        { "threads", NULL, CLI_I64, &n_thread, "N", "threads of both (2)" },
        { "rounds", NULL, CLI_I64, &rounds, "N", "products timed; the median counts (15)" },
    };
    struct cli cli = { .command = "rollcall bench gemm", .about = "Matrix products of the CPU engine against OpenBLAS' sgemm.\n",
                       .options = options, .n_options = ARRAY_SIZE(options) };
    static const struct { int m, n, k; enum product kind; } shapes[] = {
        { 1024, 1024, 1024, PRODUCT_FWD }, { 2048, 768, 256, PRODUCT_FWD }, { 2048, 192, 192, PRODUCT_FWD },
        { 2048, 1024, 192, PRODUCT_FWD }, { 2048, 1024, 192, PRODUCT_BWD_X }, { 2048, 1024, 192, PRODUCT_BWD_W },
        { 2048, 192, 512, PRODUCT_BWD_W }, { 256, 2048, 192, PRODUCT_FWD }, { 256, 2048, 192, PRODUCT_BWD_W },
        { 32, 768, 128, PRODUCT_FWD }, { 32, 128, 128, PRODUCT_FWD }, { 1, 768, 256, PRODUCT_FWD },
    };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (rounds < 1 || rounds > ROUNDS_MAX || n_thread < 1 || n_thread > 256)
        return error_set(err, ERR_USAGE, "--rounds goes from 1 to %d, --threads from 1 to 256", ROUNDS_MAX);
    struct device *dev = device_new("cpu:0", (int)n_thread, err);
    sgemm_fn *sgemm = openblas_open((int)n_thread);
    if (!dev)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        double own, blas = sgemm ? sgemm_gflops(sgemm, shapes[i].m, shapes[i].n, shapes[i].k, (int)rounds) : NAN;
        TRY(product_gflops(dev, shapes[i].kind, shapes[i].m, shapes[i].n, shapes[i].k, (int)rounds, &own, err));
        printf("{\"bench\":\"gemm\",\"op\":\"linear_%s\",\"m\":%d,\"n\":%d,\"k\":%d,\"threads\":%d,\"gflops\":%.1f", product_name[shapes[i].kind],
               shapes[i].m, shapes[i].n, shapes[i].k, (int)n_thread, own);
        if (sgemm)
            printf(",\"openblas_gflops\":%.1f,\"ratio\":%.3f", blas, own / blas);
        printf("}\n");
        fflush(stdout);
    }
    ok = true;
out:
    device_free(dev);
    return ok;
}

/* The model of a measurement; sizes chosen for their parameter count. */
struct bench_shape {
    const char *name;
    int64_t vocab, d, n_layer, n_head, n_kv, hd, ff;
};
static struct model_config shape_config(const struct bench_shape *s)
{
    return (struct model_config){ .family = FAMILY_QWEN2, .n_layer = s->n_layer, .d_model = s->d, .n_head = s->n_head,
                              .n_kv_head = s->n_kv, .d_head = s->hd, .d_ff = s->ff, .vocab = s->vocab, .max_pos = 4096,
                              .rms_eps = 1e-6, .rope_theta = 10000, .tied = true, .qkv_bias = true, .bos = -1,
                              .initializer_range = 0.02 };
}
/* Weights that take part in products: everything but norms and biases; a tied table counts once, as the head. */
static double product_params(const struct model_config *c)
{
    double qkv = (double)((c->n_head + 2 * c->n_kv_head) * c->d_head * c->d_model), o = (double)(c->n_head * c->d_head * c->d_model);
    return (double)c->n_layer * (qkv + o + 3.0 * (double)(c->d_model * c->d_ff)) + (double)(c->vocab * c->d_model);
}
/* Floating-point operations of a training step: 6 a weight and token, and causal attention's. */
static double train_flops(const struct model_config *c, int64_t n_seq, int64_t len)
{
    return (6 * product_params(c) + 6.0 * (double)(c->n_layer * c->n_head * c->d_head * len)) * (double)(n_seq * len);
}

struct train_state {
    struct device *dev;
    struct model *m;
    struct model_run *run;
    float *grad, *master, *m1, *m2, *norm;
    double *sum;
    int64_t n;
};
static bool train_step(struct train_state *t, const struct model_batch *b, const struct token_loss *loss, int64_t step, struct error *err)
{
    size_t size_bytes;
    void *weights = model_weights(t->m, &size_bytes);
    return OP(t->dev, err, mem_fill, .y = t->grad, .size_bytes = (size_t)t->n * 4) && model_forward_train(t->run, b, err) &&
           model_backward(t->run, loss, t->grad, err) && OP(t->dev, err, sumsq, .sum = t->sum, .x = t->grad, .n = t->n) &&
           OP(t->dev, err, clip_coef, .norm = t->norm, .coef = t->norm + 1, .sum = t->sum, .max_norm = 1, .grad_scale = 1) &&
           OP(t->dev, err, adamw, .weight = weights, .master = t->master, .m = t->m1, .v = t->m2, .grad = t->grad,
              .coef = t->norm + 1, .n = t->n, .step = step, .lr = 1e-5f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
              .dtype = model_dtype(t->m)) &&
           model_weights_changed(t->m, err) && device_sync(t->dev, err);
}

/* Median seconds of a whole training step on n_seq sequences of `len` tokens, random ones at a fresh policy. */
static bool train_seconds(const struct model_config *c, const char *device, int n_thread, enum dtype dtype, int64_t n_seq, int64_t len,
                          int rounds, const char *profile, double *out, struct error *err)
{
    bool ok = false;
    double took[ROUNDS_MAX];
    int64_t n_tok = n_seq * len;
    struct train_state t = { .dev = device_new(device, n_thread, err) };
    int32_t *ids = calloc((size_t)n_tok * 2 + (size_t)n_seq + 1, sizeof *ids), *target = ids + n_tok, *cu = target + n_tok;
    float *per_tok = calloc((size_t)n_tok * 7, sizeof *per_tok);
    if (!t.dev || !ids || !per_tok || !(t.m = model_new_random(c, 1, t.dev, dtype, err)))
        goto out;
    struct run_limits lim = { .max_tok = n_tok, .max_seq = n_seq, .max_seq_tok = len, .train = true };
    t.n = model_n_flat(t.m);
    size_t flat = (size_t)t.n * 4;
    if (!(t.run = model_run_new(t.m, &lim, err)) || !(t.grad = mem_new(t.dev, flat, "gradients", err)) ||
        !(t.master = mem_new(t.dev, flat, "masters", err)) || !(t.m1 = mem_new(t.dev, flat, "moments", err)) ||
        !(t.m2 = mem_new(t.dev, flat, "moments", err)) || !(t.norm = mem_new(t.dev, 8, "the norm", err)) ||
        !(t.sum = mem_new(t.dev, 8, "the norm", err)))
        goto out;
    size_t size_bytes;
    TRY(OP(t.dev, err, mem_fill, .y = t.m1, .size_bytes = flat));
    TRY(OP(t.dev, err, mem_fill, .y = t.m2, .size_bytes = flat));
    TRY(OP(t.dev, err, cast, .y = t.master, .x = model_weights(t.m, &size_bytes), .n = t.n, .scale = 1, .x_dtype = dtype));
    struct token_loss loss = { .target = target, .temperature = per_tok, .adv = per_tok + n_tok, .weight = per_tok + 2 * n_tok,
                               .logp_old = per_tok + 3 * n_tok, .clip_low = 0.2f, .clip_high = 0.2f, .logp = per_tok + 4 * n_tok,
                               .entropy = per_tok + 5 * n_tok, .loss = per_tok + 6 * n_tok };
    for (int64_t i = 0; i < n_tok; i++) {
        ids[i] = (int32_t)(((uint64_t)i * 2654435761u >> 8) % (uint64_t)c->vocab);
        target[i] = (i + 1) % len ? (int32_t)(((uint64_t)(i + 1) * 2654435761u >> 8) % (uint64_t)c->vocab) : 0;
        per_tok[i] = 1;
        per_tok[n_tok + i] = i % 3 ? 0.5f : -1;
        per_tok[2 * n_tok + i] = 1 / (float)n_tok;
        per_tok[3 * n_tok + i] = -logf((float)c->vocab);
    }
    for (int64_t i = 0; i <= n_seq; i++)
        cu[i] = (int32_t)(i * len);
    struct model_batch b = { .n_seq = n_seq, .n_tok = n_tok, .token = ids, .cu_tok = cu };
    for (int r = -2; r < rounds; r++) {
        double t0 = seconds();
        TRY(train_step(&t, &b, &loss, r + 3, err));
        if (r >= 0)
            took[r] = seconds() - t0;
        if (r == -1 && profile)
            TRY(trace_start(t.dev, 100000, err));
    }
    *out = median(took, rounds);
    ok = true;
out:
    if (t.dev && t.dev->trace) {
        trace_print(t.dev);
        ok = trace_stop(t.dev, profile, err) && ok;
    }
    if (t.dev) {
        void *const mem[] = { t.grad, t.master, t.m1, t.m2, t.norm, t.sum };
        for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
            mem_free(t.dev, mem[i]);
        model_run_free(t.run);
        model_free(t.m);
        device_free(t.dev);
    }
    free(ids);
    free(per_tok);
    if (!ok && err->code == ERR_NONE)
        error_set(err, ERR_NO_MEMORY, "no memory for a bench");
    return ok;
}

/* Tokens a second of decoding, all of the generator with it: batch samples, prompts of 16, new_tok new tokens, one thread. */
static bool decode_rate(const struct bench_shape *s, enum dtype dtype, int batch, int new_tok, const char *profile, double *out,
                        struct error *err)
{
    bool ok = false;
    struct device *dev = device_new("cpu:0", 1, err);
    struct model_config c = shape_config(s);
    struct model *m = dev ? model_new_random(&c, 1, dev, dtype, err) : NULL;
    struct generator *g = NULL;
    if (!m)
        goto out;
    struct generator_config config = { .model = m, .max_seq = batch, .max_item = batch, .max_seq_tok = 16 + new_tok };
    if (!(g = generator_new(&config, err)))
        goto out;
    double took[3] = { 0 };
    for (int round = -1; round < 3; round++) {
        int32_t prompt[16];
        uint64_t seed[1] = { 1 };
        for (int i = 0; i < batch; i++) {
            for (int j = 0; j < 16; j++)
                prompt[j] = (i * 31 + j * 7) % (int)s->vocab;
            struct sampling sampling = SAMPLING_DEFAULT;
            sampling.max_new_tok = new_tok;
            sampling.ignore_eos = true;
            TRY(generator_submit(g, &(struct generator_item){ .item = i, .prompt = prompt, .n_prompt = 16, .n_sample = 1,
                                                              .seed = seed, .sampling = sampling }, err));
        }
        if (profile && round == 0)
            TRY(trace_start(dev, 100000, err));
        double t0 = seconds();
        while (!generator_idle(g))
            TRY(generator_step(g, err));
        if (round >= 0)
            took[round] = seconds() - t0;
        for (struct group *done; (done = generator_poll(g)); )
            group_free(done);
    }
    *out = batch * new_tok / median(took, 3);
    ok = true;
out:
    if (dev && dev->trace) {
        trace_print(dev);
        ok = trace_stop(dev, profile, err) && ok;
    }
    generator_free(g);
    model_free(m);
    device_free(dev);
    return ok;
}

bool bench_cpu(int argc, char **argv, struct error *err)
{
    int64_t n_thread = 2, rounds = 9;
    bool bf16 = false;
    const char *profile = NULL;
    struct cli_option options[] = {
        { "threads", NULL, CLI_I64, &n_thread, "N", "threads for training and for sgemm (2); decoding uses one" },
        { "rounds", NULL, CLI_I64, &rounds, "N", "steps timed; the median counts (9)" },
        { "bf16", NULL, CLI_FLAG, &bf16, NULL, "weights and activations in bf16" },
        { "profile", NULL, CLI_STR, &profile, "FILE", "time of each operation: a table, and the last timeline to FILE" },
    };
    struct cli cli = { .command = "rollcall bench cpu", .options = options, .n_options = ARRAY_SIZE(options),
                       .about = "Training steps against OpenBLAS' sgemm (1024 x 1024 x 1024), and decoding.\n" };
    static const struct bench_shape shapes[] = {
        { "2M", 2048, 192, 4, 6, 2, 32, 512 }, { "0.6M", 512, 128, 3, 4, 2, 32, 352 },
    };
    static const struct bench_shape decode = { "0.63M", 300, 128, 3, 4, 2, 32, 384 };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (rounds < 1 || rounds > ROUNDS_MAX || n_thread < 1 || n_thread > 256)
        return error_set(err, ERR_USAGE, "--rounds goes from 1 to %d, --threads from 1 to 256", ROUNDS_MAX);
    enum dtype dtype = bf16 ? DT_BF16 : DT_F32;
    sgemm_fn *sgemm = openblas_open((int)n_thread);
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        const struct bench_shape *s = &shapes[i];
        struct model_config c = shape_config(s);
        double took = NAN, blas = sgemm ? sgemm_gflops(sgemm, 1024, 1024, 1024, 15) : NAN, n_tok = 8 * 256;
        if (!train_seconds(&c, "cpu:0", (int)n_thread, dtype, 8, 256, (int)rounds, profile, &took, err))
            return false;
        double flops = train_flops(&c, 8, 256);
        printf("{\"bench\":\"cpu_train\",\"model\":\"%s\",\"params\":%.0f,\"batch\":\"8x256\",\"dtype\":\"%s\",\"threads\":%d,\"ms\":%.2f,"
               "\"tok_per_s\":%.0f,\"gflops\":%.1f", s->name, product_params(&c), bf16 ? "bf16" : "fp32", (int)n_thread, took * 1e3,
               n_tok / took, flops / took * 1e-9);
        if (sgemm)
            printf(",\"openblas_gflops\":%.1f,\"ratio\":%.3f", blas, flops / took * 1e-9 / blas);
        printf("}\n");
        fflush(stdout);
    }
    static const int batches[] = { 1, 8, 32, 64 };
    struct model_config decode_config = shape_config(&decode);
    for (size_t i = 0; i < ARRAY_SIZE(batches); i++) {
        int batch = batches[i];
        double rate;
        if (!decode_rate(&decode, dtype, batch, 100, profile, &rate, err))
            return false;
        printf("{\"bench\":\"cpu_decode\",\"model\":\"%s\",\"params\":%.0f,\"batch\":%d,\"dtype\":\"%s\",\"threads\":1,\"tok_per_s\":%.0f,"
               "\"of_50k\":%.2f}\n", decode.name, product_params(&decode_config), batch, bf16 ? "bf16" : "fp32", rate, rate / 50000);
        fflush(stdout);
    }
    return true;
}

bool bench_train(int argc, char **argv, struct error *err)
{
    const char *device = "cpu:0", *shape = "starter", *dtype_name = "auto", *profile = NULL;
    int64_t seq = 256, tokens = 2048, n_thread = 0, rounds = 7;
    struct cli_option options[] = {
        { "shape", NULL, CLI_STR, &shape, "NAME", "random weights of this shape, e.g. Qwen2.5-0.5B (starter)" },
        { "device", NULL, CLI_STR, &device, "NAME", "cpu:0, cuda:0 ... (cpu:0)" },
        { "dtype", NULL, CLI_STR, &dtype_name, "TYPE", "float32, bfloat16 or auto: float32 on a CPU, bfloat16 on a GPU" },
        { "seq", NULL, CLI_I64, &seq, "N", "tokens of a sequence (256)" },
        { "tokens", NULL, CLI_I64, &tokens, "N", "tokens of an optimizer step (2048)" },
        { "threads", NULL, CLI_I64, &n_thread, "N", "CPU threads; 0: all" },
        { "rounds", NULL, CLI_I64, &rounds, "N", "steps timed; the median counts (7)" },
        { "profile", NULL, CLI_STR, &profile, "FILE", "time of each operation: a table, and the timeline to FILE" },
    };
    struct cli cli = { .command = "rollcall bench train", .options = options, .n_options = ARRAY_SIZE(options),
                       .about = "Whole training steps: forward, backward, clip, AdamW, on packed random sequences.\n" };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (rounds < 1 || rounds > ROUNDS_MAX || seq < 2 || tokens < seq || tokens > 1 << 24 || n_thread < 0 || n_thread > 256)
        return error_set(err, ERR_USAGE, "--rounds goes from 1 to %d, --seq from 2 to --tokens, --threads from 0 to 256", ROUNDS_MAX);
    bool cuda = strncmp(device, "cuda:", 5) == 0, bf16 = strcmp(dtype_name, "bfloat16") == 0 || (cuda && strcmp(dtype_name, "auto") == 0);
    if (!bf16 && strcmp(dtype_name, "auto") != 0 && strcmp(dtype_name, "float32") != 0)
        return error_set(err, ERR_USAGE, "--dtype is '%s'; it may be auto, float32 or bfloat16", dtype_name);
    const struct model_config *c = config_shape(shape, err);
    double took;
    int64_t n_seq = tokens / seq;
    if (!c || !train_seconds(c, device, (int)n_thread, bf16 ? DT_BF16 : DT_F32, n_seq, seq, (int)rounds, profile, &took, err))
        return false;
    double rate = train_flops(c, n_seq, seq) / took * 1e-12;
    printf("{\"bench\":\"train\",\"model\":\"%s\",\"device\":\"%s\",\"dtype\":\"%s\",\"seq\":%lld,\"tokens\":%lld,\"ms\":%.2f,"
           "\"tok_per_s\":%.0f,\"tflops\":%.3f", shape, device, bf16 ? "bf16" : "fp32", (long long)seq, (long long)(n_seq * seq),
           took * 1e3, (double)(n_seq * seq) / took, rate);
    if (cuda && bf16)    // a large bf16 product on an H200, random data
        printf(",\"roofline\":%.3f", rate / 790);
    printf("}\n");
    return true;
}
