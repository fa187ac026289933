/* rollcall bench attention, and bench gemm on a GPU: single operations against the card's limits
 *
 * Ceilings are those measured on an H200: 790 TFLOP/s of bf16 products on random data, 4.3 TB/s of memory. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/bench/bench.h"
#include "console/bench/bench_kernels.h"
#include "console/bench/bench_tools.h"
#include "kernels/ops.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/mix64.h"
#include "workers/engine/model/config.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/products.h"
#define RUNS 9
#define PEAK_TFLOPS 790.0
#define PEAK_TB_PER_S 4.3

/* ---- the cost of equal bits ---- */

static bool cost_one(struct device *dev, const struct model_product *p, int64_t n, double times, double *rule_us, double *best_us,
                     struct error *err)
{
    int64_t n_out = p->kind.n_out, n_in = p->kind.n_in;
    struct linear_cost c = { .n = n, .n_out = n_out, .n_in = n_in, .bias = p->kind.bias, .y_dtype = p->kind.f32 ? DT_F32 : DT_BF16 };
    if (!dev->op->linear_cost(dev, &c, err))
        return false;
    printf("{\"bench\":\"gemm\",\"weight\":\"%s\",\"rows\":%" PRId64 ",\"n_out\":%" PRId64 ",\"n_in\":%" PRId64
           ",\"rule_us\":%.2f,\"best_us\":%.2f,"
           "\"tflops\":%.1f,\"tb_per_s\":%.2f}\n",
           p->name, n, n_out, n_in, c.rule_us, c.best_us, 2.0 * (double)n * (double)n_out * (double)n_in / c.rule_us * 1e-6,
           (double)(n_out * n_in) * 2 / c.rule_us * 1e-6);
    *rule_us += times * c.rule_us;
    *best_us += times * fmin(c.best_us, c.rule_us);    // noise must not count as a gain
    return true;
}

bool bench_gemm_rule(const char *device, const char *shape, int64_t rows, double step_us, struct error *err)
{
    const struct model_config *c = config_shape(shape, err);
    bool ok = false;
    double rule = 0, best = 0;
    struct model *m = NULL;
    struct model_product p[MODEL_PRODUCTS];
    if (!c)
        return false;
    struct device *dev = device_new(device, 0, err);
    if (!dev)
        return false;
    if (!dev->op->linear_cost) {
        error_set(err, ERR_UNSUPPORTED, "%s has no rule to measure: its products always have one order", dev->name);
        goto out;
    }
    TRY((m = model_new_shape(c, dev, DT_BF16, err)) != NULL);
    int64_t head_rows = MIN(rows, MAX(dev->head_rows / c->vocab, 1));
    for (int i = 0, n = model_products(m, p); i < n; i++) {
        bool head = i + 1 == n;
        TRY(cost_one(dev, &p[i], head ? head_rows : rows, head ? (double)rows / (double)head_rows : (double)c->n_layer, &rule, &best, err));
    }
    printf("{\"bench\":\"gemm\",\"model\":\"%s\",\"device\":\"%s\",\"rows\":%" PRId64 ",\"rule_us\":%.1f,\"best_us\":%.1f", shape,
           dev->name, rows, rule, best);
    if (step_us > 0)
        printf(",\"step_us\":%.1f,\"cost_of_step\":%.4f", step_us, (rule - best) / step_us);
    printf(",\"cost_of_products\":%.4f}\n", (rule - best) / best);
    ok = true;
out:
    model_free(m);
    device_free(dev);
    return ok;
}

/* ---- attention ---- */

/* One problem on one device: n_seq sequences of len tokens, packed, and their keys and values in pages. */
struct attn {
    struct device *dev;
    struct attn_heads heads;
    struct attn_bounds bounds;
    enum dtype dtype;
    int64_t n_seq, len, n, wide, max_page;
    char *qkv, *out, *dout, *dqkv, *kv, *q_last;    // device; q_last (n_seq, wide): the last row of each sequence
    float *lse;
    int32_t *seq, *seq_host, *page, *kv_len;
};

static void attn_release(struct attn *a)
{
    void *const mem[] = { a->qkv, a->out, a->dout, a->dqkv, a->kv, a->q_last, a->lse, a->seq, a->page, a->kv_len };
    for (size_t i = 0; i < ARRAY_SIZE(mem); i++)
        if (a->dev)
            mem_free(a->dev, mem[i]);
    free(a->seq_host);
    device_free(a->dev);
    *a = (struct attn){ 0 };
}

/* Device memory of n elements, filled from values (host, n_value of dtype, repeated). */
static void *filled(struct attn *a, int64_t n, const void *values, int64_t n_value, struct error *err)
{
    size_t e = dtype_size(a->dtype);
    char *p = mem_new(a->dev, (size_t)n * e, "a measurement", err);
    for (int64_t at = 0; p && at < n; at += n_value)
        if (!mem_copy(a->dev, p + (size_t)at * e, values, (size_t)MIN(n_value, n - at) * e, COPY_H2D, err))
            return NULL;
    return p;
}

static bool attn_init(struct attn *a, const char *device, struct attn_heads heads, struct attn_bounds bounds, enum dtype t, int64_t n_seq,
                      int64_t len, const void *values, int64_t n_value, struct error *err)
{
    bool ok = false;
    *a = (struct attn){ .heads = heads, .bounds = bounds, .dtype = t, .n_seq = n_seq, .len = len, .n = n_seq * len };
    TRY(a->dev = device_new(device, 0, err));
    int64_t per = a->dev->kv_page_tok, q = (int64_t)heads.n_q * heads.hd;
    size_t e = dtype_size(t);
    a->wide = q + 2 * (int64_t)heads.n_kv * heads.hd;
    a->max_page = (len + per - 1) / per;
    int32_t *host = a->seq_host = malloc((size_t)(n_seq + 1 + n_seq * (a->max_page + 1)) * sizeof *host);
    if (!host) {
        error_set(err, ERR_NO_MEMORY, "no memory for a measurement");
        goto out;
    }
    int32_t *page = host + n_seq + 1, *kv_len = page + n_seq * a->max_page;
    for (int64_t s = 0; s <= n_seq; s++)
        host[s] = (int32_t)(s * len);
    for (int64_t i = 0; i < n_seq * a->max_page; i++)
        page[i] = (int32_t)(i * 7919 % (n_seq * a->max_page));    // scattered; 7919 is prime
    for (int64_t s = 0; s < n_seq; s++)
        kv_len[s] = (int32_t)len;
    TRY(a->qkv = filled(a, a->n * a->wide, values, n_value, err));
    TRY(a->dout = filled(a, a->n * q, values, n_value - 1, err));
    TRY(a->out = mem_new(a->dev, (size_t)(a->n * q) * e, "a measurement", err));
    TRY(a->dqkv = mem_new(a->dev, (size_t)(a->n * a->wide) * e, "a measurement", err));
    TRY(a->lse = mem_new(a->dev, (size_t)(a->n * heads.n_q) * 4, "a measurement", err));
    TRY(a->q_last = mem_new(a->dev, (size_t)(n_seq * a->wide) * e, "a measurement", err));
    TRY(a->seq = mem_new(a->dev, (size_t)(n_seq + 1) * 4, "a measurement", err));
    TRY(a->page = mem_new(a->dev, (size_t)(n_seq * a->max_page) * 4, "a measurement", err));
    TRY(a->kv_len = mem_new(a->dev, (size_t)n_seq * 4, "a measurement", err));
    TRY(a->kv = mem_new(a->dev, (size_t)(n_seq * a->max_page) * kv_page_bytes(a->dev, heads, t), "a measurement", err));
    TRY(mem_copy(a->dev, a->seq, host, (size_t)(n_seq + 1) * 4, COPY_H2D, err));
    TRY(mem_copy(a->dev, a->page, page, (size_t)(n_seq * a->max_page) * 4, COPY_H2D, err));
    TRY(mem_copy(a->dev, a->kv_len, kv_len, (size_t)n_seq * 4, COPY_H2D, err));
    for (int64_t s = 0; s < n_seq; s++)
        TRY(mem_copy(a->dev, a->q_last + (size_t)(s * a->wide) * e, a->qkv + (size_t)((s + 1) * len - 1) * (size_t)a->wide * e,
                     (size_t)a->wide * e, COPY_D2D, err));
    ok = device_sync(a->dev, err);
out:
    if (!ok)
        attn_release(a);
    return ok;
}

/* Write keys and values into their pages: a rotation by angle 0 writes them unchanged. */
static bool attn_fill_pages(struct attn *a, struct error *err)
{
    bool ok = false;
    int64_t per = a->dev->kv_page_tok, half = a->heads.hd / 2;
    int32_t *host = malloc((size_t)a->n * 2 * 4), *slot = host + a->n, *dev_pos = NULL;
    float *table = malloc((size_t)half * 2 * 4), *dev_table = NULL;
    const int32_t *page = a->seq_host + a->n_seq + 1;
    if (!host || !table) {
        error_set(err, ERR_NO_MEMORY, "no memory for a measurement");
        goto out;
    }
    for (int64_t i = 0; i < a->n; i++) {
        int64_t p = i % a->len;
        host[i] = 0;    // position 0: cos 1, sin 0
        slot[i] = page[i / a->len * a->max_page + p / per] * (int32_t)per + (int32_t)(p % per);
    }
    for (int64_t i = 0; i < half; i++) {
        table[i] = 1;
        table[half + i] = 0;
    }
    TRY(dev_pos = mem_new(a->dev, (size_t)a->n * 2 * 4, "a measurement", err));
    TRY(dev_table = mem_new(a->dev, (size_t)half * 2 * 4, "a measurement", err));
    TRY(mem_copy(a->dev, dev_pos, host, (size_t)a->n * 2 * 4, COPY_H2D, err));
    TRY(mem_copy(a->dev, dev_table, table, (size_t)half * 2 * 4, COPY_H2D, err));
    TRY(OP(a->dev, err, rope_fwd, .out = a->dqkv, .qkv = a->qkv, .cos = dev_table, .sin = dev_table + half, .pos = dev_pos, .kv = a->kv,
           .slot = dev_pos + a->n, .n = a->n, .n_pos = 1, .heads = a->heads, .dtype = a->dtype));
    ok = device_sync(a->dev, err);
out:
    mem_free(a->dev, dev_pos);
    mem_free(a->dev, dev_table);
    free(host);
    free(table);
    return ok;
}

enum attn_kind {
    ATTN_FWD,
    ATTN_BWD,
    ATTN_DECODE,
    ATTN_N,
};
static const char *const attn_name[ATTN_N] = { "forward", "backward", "decode" };
static bool attn_run(struct attn *a, enum attn_kind kind, struct error *err)
{
    if (kind == ATTN_FWD)
        return OP(a->dev, err, attn_fwd, .out = a->out, .lse = a->lse, .qkv = a->qkv, .seq = a->seq, .seq_host = a->seq_host, .n = a->n,
                  .n_seq = a->n_seq, .heads = a->heads, .bounds = a->bounds, .dtype = a->dtype);
    if (kind == ATTN_BWD)
        return OP(a->dev, err, attn_bwd, .dqkv = a->dqkv, .dout = a->dout, .out = a->out, .lse = a->lse, .qkv = a->qkv, .seq = a->seq,
                  .seq_host = a->seq_host, .n = a->n, .n_seq = a->n_seq, .heads = a->heads, .bounds = a->bounds, .dtype = a->dtype);
    return OP(a->dev, err, attn_paged, .out = a->dqkv, .qkv = a->q_last, .kv = a->kv, .page = a->page, .kv_len = a->kv_len, .n = a->n_seq,
              .n_seq = a->n_seq, .max_page = a->max_page, .max_q = 1, .heads = a->heads, .bounds = a->bounds, .dtype = a->dtype);
}

/* The outputs of a call, as floats on the host, for free(); poisoned before the call. */
static float *attn_result(struct attn *a, enum attn_kind kind, int64_t *n, struct error *err)
{
    int64_t q = (int64_t)a->heads.n_q * a->heads.hd;
    *n = kind == ATTN_FWD ? a->n * q : kind == ATTN_BWD ? a->n * a->wide : a->n_seq * q;
    void *at = kind == ATTN_FWD ? a->out : a->dqkv;
    size_t bytes = (size_t)*n * dtype_size(a->dtype);
    float *out = malloc((size_t)*n * 4);
    void *raw = malloc(bytes);
    bool ok = out && raw ? true : error_set(err, ERR_NO_MEMORY, "no memory for a measurement");
    ok = ok && OP(a->dev, err, mem_fill, .y = at, .size_bytes = bytes, .byte = 0xff) && attn_run(a, kind, err)
         && mem_copy(a->dev, raw, at, bytes, COPY_D2H, err) && device_sync(a->dev, err);
    for (int64_t i = 0; ok && i < *n; i++)
        out[i] = a->dtype == DT_BF16 ? bf16_to_f32(((uint16_t *)raw)[i]) : ((float *)raw)[i];
    free(raw);
    if (ok)
        return out;
    free(out);
    return NULL;
}

/* The bits of a call's outputs, in one number. */
static bool attn_hash(struct attn *a, enum attn_kind kind, uint64_t *hash, struct error *err)
{
    int64_t n;
    float *out = attn_result(a, kind, &n, err);
    *hash = 0;
    for (int64_t i = 0; out && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, out + i, 4);
        *hash = mix64(*hash + bits + MIX64_STEP);
    }
    free(out);
    return out != NULL;
}

/* One small problem on this device and on ref: |difference| / |result| of each kind. */
static bool attn_check(const char *device, struct attn_heads heads, struct attn_bounds bounds, enum dtype t, const void *values,
                       int64_t n_value, double *apart, struct error *err)
{
    struct attn here = { 0 }, ref = { 0 };
    bool ok = attn_init(&here, device, heads, bounds, t, 3, 197, values, n_value, err)
              && attn_init(&ref, "ref", heads, bounds, t, 3, 197, values, n_value, err) && attn_fill_pages(&here, err)
              && attn_fill_pages(&ref, err);
    for (enum attn_kind k = ATTN_FWD; ok && k < ATTN_N; k++) {
        int64_t n;
        float *a = attn_result(&here, k, &n, err), *b = a ? attn_result(&ref, k, &n, err) : NULL;
        double d = 0, norm = 0;
        ok = a && b;
        for (int64_t i = 0; ok && i < n; i++) {
            d += pow((double)a[i] - (double)b[i], 2);
            norm += pow((double)b[i], 2);
        }
        apart[k] = sqrt(d / norm);
        free(a);
        free(b);
    }
    attn_release(&here);
    attn_release(&ref);
    return ok;
}

static bool attn_time(struct attn *a, enum attn_kind kind, int64_t calls, double *s, struct error *err)
{
    double took[RUNS];
    for (int r = -1; r < RUNS; r++) {
        int64_t t0 = clock_ns();
        for (int64_t k = 0; k < calls; k++)
            if (!attn_run(a, kind, err))
                return false;
        if (!device_sync(a->dev, err))
            return false;
        if (r >= 0)
            took[r] = (double)(clock_ns() - t0) * 1e-9 / (double)calls;
    }
    *s = bench_median(took, RUNS);
    return true;
}

static void *random_values(enum dtype t, int64_t n)
{
    uint64_t rng = 1;
    void *out = malloc((size_t)n * dtype_size(t));
    for (int64_t i = 0; out && i < n; i++) {
        double sum = 0;    // near enough to normal
        for (int k = 0; k < 4; k++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(rng >> 11) / 9007199254740992.0 - 0.5;
        }
        if (t == DT_BF16)
            ((uint16_t *)out)[i] = bf16_from_f32((float)(sum * 1.7));
        else
            ((float *)out)[i] = (float)(sum * 1.7);
    }
    return out;
}

bool bench_attention(int argc, char **argv, struct error *err)
{
    const char *device = "cpu:0", *shape = "starter", *dtype_name = "auto";
    int64_t seq = 256, n_seq = 8, batch = 32, context = 256, calls = 5, window = 0;
    double cap = 0;
    struct cli_option options[] = {
        { "shape", NULL, CLI_STR, &shape, "NAME", "heads of this model, e.g. Qwen2.5-1.5B (starter)" },
        { "device", NULL, CLI_STR, &device, "NAME", "cpu:0, cuda:0 ... (cpu:0)" },
        { "dtype", NULL, CLI_STR, &dtype_name, "TYPE", "float32, bfloat16 or auto: float32 on a CPU, bfloat16 on a GPU" },
        { "seq", NULL, CLI_I64, &seq, "N", "tokens of a packed sequence (256)" },
        { "n-seq", NULL, CLI_I64, &n_seq, "N", "packed sequences (8)" },
        { "batch", NULL, CLI_I64, &batch, "B", "sequences of a decode step (32)" },
        { "context", NULL, CLI_I64, &context, "N", "tokens each of them has (256)" },
        { "calls", NULL, CLI_I64, &calls, "N", "calls per timing; the median of nine counts (5)" },
        { "window", NULL, CLI_I64, &window, "N", "keys that a query sees (0: all before it)" },
        { "cap", NULL, CLI_F64, &cap, "X", "soft cap of the scores (0: none)" },
    };
    struct cli cli = { .command = "rollcall bench attention",
                       .options = options,
                       .n_options = ARRAY_SIZE(options),
                       .about = "Causal attention: packed forward and backward, and decode over pages.\n" };
    struct attn packed = { 0 }, decode = { 0 };
    bool ok = false;
    if (!cli_parse(&cli, argc, argv, err) || cli.help_wanted)
        return cli.help_wanted;
    if (seq < 1 || n_seq < 1 || seq * n_seq > 1 << 24 || batch < 1 || context < 1 || batch * context > 1 << 26 || calls < 1
        || calls > 10000)
        return error_set(err, ERR_USAGE, "--seq times --n-seq is at most %d, --batch times --context %d, all of them at least 1", 1 << 24,
                         1 << 26);
    if (window < 0 || !(cap >= 0))
        return error_set(err, ERR_USAGE, "--window is %" PRId64 " and --cap %g; neither may be below 0", window, cap);
    bool bf16 = strcmp(dtype_name, "bfloat16") == 0 || (strncmp(device, "cuda:", 5) == 0 && strcmp(dtype_name, "auto") == 0);
    if (!bf16 && strcmp(dtype_name, "auto") != 0 && strcmp(dtype_name, "float32") != 0)
        return error_set(err, ERR_USAGE, "--dtype is '%s'; it may be auto, float32 or bfloat16", dtype_name);
    const struct model_config *c = config_shape(shape, err);
    if (!c)
        return false;
    enum dtype t = bf16 ? DT_BF16 : DT_F32;
    struct attn_heads heads = { (int)c->n_head, (int)c->n_kv_head, (int)c->d_head };
    struct attn_bounds bounds = { .window = window, .cap = (float)cap };
    int64_t n_value = 1000003, wide = window > 0 ? MIN(window, seq) : seq, seen = window > 0 ? MIN(window, context) : context;
    void *values = random_values(t, n_value);
    double apart[ATTN_N], s;
    uint64_t hash;
    if (!values)
        return error_set(err, ERR_NO_MEMORY, "no memory for a measurement");
    TRY(attn_check(device, heads, bounds, t, values, n_value, apart, err));
    TRY(attn_init(&packed, device, heads, bounds, t, n_seq, seq, values, n_value, err));
    TRY(attn_init(&decode, device, heads, bounds, t, batch, context, values, n_value, err));
    TRY(attn_fill_pages(&decode, err));
    for (enum attn_kind k = ATTN_FWD; k < ATTN_N; k++) {
        TRY(attn_time(k == ATTN_DECODE ? &decode : &packed, k, calls, &s, err));
        TRY(attn_hash(k == ATTN_DECODE ? &decode : &packed, k, &hash, err));
        // two products forward and five backward over the keys that are seen; decode reads each of them and its value once
        double pairs = (double)wide * (double)(wide + 1) / 2 + (double)(seq - wide) * (double)wide;
        double flops = (k == ATTN_BWD ? 5 : 2) * (double)n_seq * 2 * pairs * (double)(c->n_head * c->d_head);
        double bytes = 2.0 * (double)(batch * seen * c->n_kv_head * c->d_head) * (double)dtype_size(t);
        printf("{\"bench\":\"attention\",\"model\":\"%s\",\"device\":\"%s\",\"dtype\":\"%s\",\"what\":\"%s\",\"n_seq\":%" PRId64
               ",\"len\":%" PRId64 ","
               "\"ms\":%.4f",
               shape, device, bf16 ? "bf16" : "fp32", attn_name[k], (k == ATTN_DECODE ? batch : n_seq), (k == ATTN_DECODE ? context : seq),
               s * 1e3);
        if (k == ATTN_DECODE)
            printf(",\"tb_per_s\":%.3f", bytes / s * 1e-12);
        else
            printf(",\"tflops\":%.2f", flops / s * 1e-12);
        if (packed.dev->kind == DEVICE_CUDA && bf16)
            printf(",\"roofline\":%.3f", k == ATTN_DECODE ? bytes / s * 1e-12 / PEAK_TB_PER_S : flops / s * 1e-12 / PEAK_TFLOPS);
        printf(",\"hash\":\"%016" PRIx64 "\",\"distance\":%.2g,\"check\":%s}\n", hash, apart[k],
               apart[k] <= (bf16 ? 1e-2 : 1e-5) ? "true" : "false");
        fflush(stdout);
    }
    ok = true;
out:
    attn_release(&packed);
    attn_release(&decode);
    free(values);
    return ok;
}
