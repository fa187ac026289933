/* bench_engine.c - how fast the CPU engine is, against OpenBLAS in the same run
 *
 * gemm: one matrix product in the engine, against sgemm. cpu: training steps and decoding of small models; training
 * counts 6 P + 6 layers heads head_size length operations per token (P: weights in products, including the head). Medians. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/bench/bench.h"
#include "console/bench/bench_kernels.h"
#include "console/bench/bench_tools.h"
#include "console/bench/bench_train.h"
#include "kernels/ops.h"
#include "kernels/trace.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/generator.h"
#define ROUNDS_MAX TRAIN_ROUNDS_MAX

static double seconds(void)
{
    return (double)clock_ns() * 1e-9;
}

/* OpenBLAS through its C interface: row-major, transposition by the constants of cblas.h. */
typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                      int ldb, float beta, float *c, int ldc);
enum {
    ROW_MAJOR = 101,
    NO_TRANS = 111,
    TRANS = 112,
};
struct openblas {
    sgemm_fn *sgemm;
    const char *core;    // which kernels it uses: OPENBLAS_CORETYPE, or its own choice
};
static struct openblas openblas_open(int n_thread)
{
    char text[16];
    struct openblas blas = { .core = "" };
    char *(*core)(void) = NULL;
    snprintf(text, sizeof text, "%d", n_thread);
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);    // by itself, 0.3.21 chooses its Haswell kernels on new processors
    setenv("OPENBLAS_NUM_THREADS", text, 1);
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return blas;
    *(void **)&blas.sgemm = dlsym(lib, "cblas_sgemm");
    *(void **)&core = dlsym(lib, "openblas_get_corename");
    blas.core = core ? core() : "";
    return blas;
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
        result = 2.0 * m * n * k / bench_median(took, rounds) * 1e-9;
    }
    free(a);
    free(b);
    free(c);
    return result;
}

enum product {
    PRODUCT_FWD,
    PRODUCT_BWD_X,
    PRODUCT_BWD_W,
};
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
    if (!(w = weight_new(dev, data, DT_F32, n, k, 0, true, err)))
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
    *gflops = 2.0 * (double)m * (double)n * (double)k / bench_median(took, rounds) * 1e-9;
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
    int64_t n_thread = 2, rounds = 15, rows = 256;
    const char *device = "cpu:0", *shape = "Qwen2.5-0.5B";
    double step_us = 0;
    struct cli_option options[] = {
        { "device", NULL, CLI_STR, &device, "NAME", "cpu:0, cuda:0 ... (cpu:0)" },
        { "threads", NULL, CLI_I64, &n_thread, "N", "cpu: threads for each of the two (2)" },
        { "rounds", NULL, CLI_I64, &rounds, "N", "cpu: products timed; the median counts (15)" },
        { "shape", NULL, CLI_STR, &shape, "NAME", "cuda: products of this model (Qwen2.5-0.5B)" },
        { "rows", NULL, CLI_I64, &rows, "N", "cuda: sequences of a decode step, or tokens of a micro-batch (256)" },
        { "step-us", NULL, CLI_F64, &step_us, "T", "cuda: measured time of the whole step, to print the cost as a share of it" },
    };
    struct cli cli = { .command = "rollcall bench gemm",
                       .about = "Matrix products: of the CPU engine against OpenBLAS' sgemm; on a "
                                "GPU, those under the rule of one order\nof summation against the best of eight unrestricted algorithms.\n",
                       .options = options,
                       .n_options = ARRAY_SIZE(options) };
    // clang-format off
    static const struct { int m, n, k; enum product kind; } shapes[] = {
        { 1024, 1024, 1024, PRODUCT_FWD }, { 2048, 768, 256, PRODUCT_FWD }, { 2048, 192, 192, PRODUCT_FWD },
        { 2048, 1024, 192, PRODUCT_FWD }, { 2048, 1024, 192, PRODUCT_BWD_X }, { 2048, 1024, 192, PRODUCT_BWD_W },
        { 2048, 192, 512, PRODUCT_BWD_W }, { 256, 2048, 192, PRODUCT_FWD }, { 256, 2048, 192, PRODUCT_BWD_W },
        { 32, 768, 128, PRODUCT_FWD }, { 32, 128, 128, PRODUCT_FWD }, { 1, 768, 256, PRODUCT_FWD },
    };
    // clang-format on
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (rounds < 1 || rounds > ROUNDS_MAX || n_thread < 1 || n_thread > 256)
        return error_set(err, ERR_USAGE, "--rounds must be 1 to %d, --threads 1 to 256", ROUNDS_MAX);
    if (rows < 1 || rows > 1 << 20)
        return error_set(err, ERR_USAGE, "--rows must be 1 to %d", 1 << 20);
    if (strncmp(device, "cuda:", 5) == 0)
        return bench_gemm_rule(device, shape, rows, step_us, err);
    struct device *dev = device_new(device, (int)n_thread, err);
    struct openblas blas = openblas_open((int)n_thread);
    if (!dev)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        double own, theirs = blas.sgemm ? sgemm_gflops(blas.sgemm, shapes[i].m, shapes[i].n, shapes[i].k, (int)rounds) : NAN;
        TRY(product_gflops(dev, shapes[i].kind, shapes[i].m, shapes[i].n, shapes[i].k, (int)rounds, &own, err));
        printf("{\"bench\":\"gemm\",\"op\":\"linear_%s\",\"m\":%d,\"n\":%d,\"k\":%d,\"threads\":%d,\"gflops\":%.1f",
               product_name[shapes[i].kind], shapes[i].m, shapes[i].n, shapes[i].k, (int)n_thread, own);
        if (blas.sgemm)
            printf(",\"openblas_gflops\":%.1f,\"openblas_core\":\"%s\",\"ratio\":%.3f", theirs, blas.core, own / theirs);
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
    return (struct model_config){ .family = FAMILY_QWEN2,
                                  .n_layer = s->n_layer,
                                  .d_model = s->d,
                                  .n_head = s->n_head,
                                  .n_kv_head = s->n_kv,
                                  .d_head = s->hd,
                                  .d_ff = s->ff,
                                  .vocab = s->vocab,
                                  .max_pos = 4096,
                                  .rms_eps = 1e-6,
                                  .rope.theta = 10000,
                                  .tied = true,
                                  .qkv_bias = true,
                                  .bos = -1,
                                  .initializer_range = 0.02 };
}
/* Tokens per second of decoding, including the whole generator: batch samples, prompts of 16, new_tok new tokens, one thread. */
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
            TRY(generator_submit(
                g,
                &(struct generator_item){ .item = i, .prompt = prompt, .n_prompt = 16, .n_sample = 1, .seed = seed, .sampling = sampling },
                err));
        }
        if (profile && round == 0)
            TRY(trace_start(dev, 100000, err));
        double t0 = seconds();
        while (!generator_idle(g))
            TRY(generator_step(g, err));
        if (round >= 0)
            took[round] = seconds() - t0;
        for (struct group *done; (done = generator_poll(g));)
            group_free(done);
    }
    *out = batch * new_tok / bench_median(took, 3);
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
    struct cli cli = { .command = "rollcall bench cpu",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Training steps against OpenBLAS' sgemm (1024 x 1024 x 1024), and decoding.\n" };
    static const struct bench_shape shapes[] = {
        { "2M", 2048, 192, 4, 6, 2, 32, 512 },
        { "0.6M", 512, 128, 3, 4, 2, 32, 352 },
    };
    static const struct bench_shape decode = { "0.63M", 300, 128, 3, 4, 2, 32, 384 };
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (rounds < 1 || rounds > ROUNDS_MAX || n_thread < 1 || n_thread > 256)
        return error_set(err, ERR_USAGE, "--rounds must be 1 to %d, --threads 1 to 256", ROUNDS_MAX);
    enum dtype dtype = bf16 ? DT_BF16 : DT_F32;
    struct openblas blas = openblas_open((int)n_thread);
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        const struct bench_shape *s = &shapes[i];
        struct model_config c = shape_config(s);
        double theirs = blas.sgemm ? sgemm_gflops(blas.sgemm, 1024, 1024, 1024, 15) : NAN, n_tok = 8 * 256;
        struct train_bench train = { .config = &c,
                                     .device = "cpu:0",
                                     .n_thread = (int)n_thread,
                                     .dtype = dtype,
                                     .n_seq = 8,
                                     .len = 256,
                                     .n_prompt = 1,
                                     .group = TRAIN_GROUP,
                                     .rounds = (int)rounds,
                                     .profile = profile };
        if (!train_bench_run(&train, err))
            return false;
        double flops = train_flops(&c, 8, 256), took = train.step_s;
        printf("{\"bench\":\"cpu_train\",\"model\":\"%s\",\"params\":%.0f,\"batch\":\"8x256\",\"dtype\":\"%s\",\"threads\":%d,\"ms\":%.2f,"
               "\"tok_per_s\":%.0f,\"gflops\":%.1f",
               s->name, (double)config_n_product(&c), bf16 ? "bf16" : "fp32", (int)n_thread, took * 1e3, n_tok / took, flops / took * 1e-9);
        if (blas.sgemm)
            printf(",\"openblas_gflops\":%.1f,\"openblas_core\":\"%s\",\"ratio\":%.3f", theirs, blas.core, flops / took * 1e-9 / theirs);
        printf("}\n");
        fflush(stdout);
    }
    static const int batches[] = { 1, 8, 32, 64 };
    struct model_config decode_config = shape_config(&decode);
    for (size_t i = 0; i < ARRAY_SIZE(batches); i++) {
        int batch = batches[i];
        double rate = NAN;
        if (!decode_rate(&decode, dtype, batch, 100, profile, &rate, err))
            return false;
        printf("{\"bench\":\"cpu_decode\",\"model\":\"%s\",\"params\":%.0f,\"batch\":%d,\"dtype\":\"%s\",\"threads\":1,\"tok_per_s\":%.0f,"
               "\"of_50k\":%.2f}\n",
               decode.name, (double)config_n_product(&decode_config), batch, bf16 ? "bf16" : "fp32", rate, rate / 50000);
        fflush(stdout);
    }
    return true;
}
