/* ops_test.c - every operation against ref, gradients against finite differences, and the promise of equal bits
 *
 * A case builds its inputs from a seed, so that it can be run on any device; all memory starts as NaN. OPS_DEVICE names another
 * device (cuda:0) to compare with ref by tolerance; without it the CPU's code paths and thread counts are compared with each
 * other by bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/adam8.h"
#include "kernels/collective/collective.h"
#include "kernels/ops.h"
#include "kernels/philox.h"

#define MAX_OUT 8
#define MAX_MEM 96
struct run {
    struct device *dev;
    uint64_t rng;
    enum dtype dtype;    // of activations in this run
    int size;            // which of the case's sizes
    bool other;          // the operation's other forms: those of Gemma, Phi-3 and OLMo
    int parts;           // of the sums of the weights
    void *mem[MAX_MEM];
    int n_mem;
    struct weight *weight[4];
    int n_weight;
    struct output {
        void *dev_ptr, *host;
        int64_t n;
        enum dtype dtype;
        const char *name;
    } out[MAX_OUT];
    int n_out;
    struct error err;
};
typedef bool case_fn(struct run *r);

static double rng_next(struct run *r)
{
    r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(r->rng >> 11) / 9007199254740992.0;
}
/* Nearly normal, mean 0 and variance 1: the sum of four draws of 16 bits, since a logarithm and a cosine take longer than what is tested. */
static double rng_normal(struct run *r)
{
    r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = r->rng ^ r->rng >> 32;    // the low bits of this generator repeat soon
    int sum = (int)(x & 0xffff) + (int)(x >> 16 & 0xffff) + (int)(x >> 32 & 0xffff) + (int)(x >> 48);
    return (sum - 4 * 32767.5) * (1.7320508075688772 / 65536);    // of variance 65536^2 / 12 each
}
static void *mem_take(struct run *r, size_t size_bytes)
{
    void *p = mem_new(r->dev, size_bytes + 64, "a test", &r->err);    // with a tail to detect writes past the end
    assert_non_null(p);
    assert_true(r->n_mem < MAX_MEM);
    r->mem[r->n_mem++] = p;
    assert_true(OP(r->dev, &r->err, mem_fill, .y = p, .size_bytes = size_bytes + 64, .byte = 0xff));
    return p;
}
static void *put(struct run *r, const void *host, size_t size_bytes)
{
    void *p = mem_take(r, size_bytes);
    assert_true(mem_copy(r->dev, p, host, size_bytes, COPY_H2D, &r->err));
    assert_true(device_sync(r->dev, &r->err));
    return p;
}
#define DRAWN 1000003    // values drawn; more than these are the same again, as drawing takes longer than what is tested
static void values_fill(struct run *r, void *host, int64_t n, enum dtype t, double mean, double spread)
{
    for (int64_t i = 0; i < MIN(n, DRAWN); i++) {
        float x = (float)(mean + spread * rng_normal(r));
        if (t == DT_BF16)
            ((uint16_t *)host)[i] = bf16_from_f32(x);
        else
            ((float *)host)[i] = x;
    }
    for (int64_t i = DRAWN; i < n; i += DRAWN)
        memcpy((char *)host + (size_t)i * dtype_size(t), host, (size_t)MIN(n - i, DRAWN) * dtype_size(t));
}
/* A random tensor on the device. */
static void *values_of(struct run *r, int64_t n, enum dtype t, double mean, double spread)
{
    void *host = malloc((size_t)(n + 1) * 4);
    values_fill(r, host, n, t, mean, spread);
    void *p = put(r, host, (size_t)n * dtype_size(t));
    free(host);
    return p;
}
static void *values(struct run *r, int64_t n)
{
    return values_of(r, n, r->dtype, 0, 1);
}
static float *floats(struct run *r, int64_t n)
{
    return values_of(r, n, DT_F32, 0, 1);
}
static int32_t *ints(struct run *r, int64_t n, int32_t below)
{
    int32_t *host = malloc((size_t)(n + 1) * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)(rng_next(r) * below);
    int32_t *p = put(r, host, (size_t)n * sizeof *host);
    free(host);
    return p;
}
static void *watch(struct run *r, const char *name, void *p, int64_t n, enum dtype t)
{
    assert_true(r->n_out < MAX_OUT);
    r->out[r->n_out++] = (struct output){ .dev_ptr = p, .n = n, .dtype = t, .name = name };
    return p;
}
static void *result_of(struct run *r, const char *name, int64_t n, enum dtype t)
{
    return watch(r, name, mem_take(r, (size_t)n * dtype_size(t)), n, t);
}
static void *result(struct run *r, const char *name, int64_t n)
{
    return result_of(r, name, n, r->dtype);
}
static struct weight *weight_of(struct run *r, int64_t n_out, int64_t n_in)
{
    void *data = values_of(r, n_out * n_in, r->dtype, 0, 1 / sqrt((double)n_in));
    struct weight *w = weight_new(r->dev, data, r->dtype, n_out, n_in, r->parts, true, &r->err);
    assert_non_null(w);
    return r->weight[r->n_weight++] = w;
}

static void run_release(struct run *r)
{
    for (int i = 0; i < r->n_weight; i++)
        weight_free(r->dev, r->weight[i]);
    for (int i = 0; i < r->n_mem; i++)
        mem_free(r->dev, r->mem[i]);
    for (int i = 0; i < r->n_out; i++)
        free(r->out[i].host);
}
static void run_case(struct run *r, case_fn *fn, struct device *dev, enum dtype t, int size)
{
    *r = (struct run){ .dev = dev, .rng = 12345 + (uint64_t)size * 77, .dtype = t, .size = size };
    if (!fn(r))
        fail_msg("%s: %s", dev->name, r->err.text);
    for (int i = 0; i < r->n_out; i++) {
        struct output *o = &r->out[i];
        size_t size_bytes = (size_t)o->n * dtype_size(o->dtype);
        uint8_t tail[64];
        o->host = malloc(size_bytes + 1);
        assert_true(mem_copy(dev, o->host, o->dev_ptr, size_bytes, COPY_D2H, &r->err));
        assert_true(mem_copy(dev, tail, (char *)o->dev_ptr + size_bytes, 64, COPY_D2H, &r->err));
        if (!device_sync(dev, &r->err))
            fail_msg("%s: %s", dev->name, r->err.text);
        for (int j = 0; j < 64; j++)
            if (tail[j] != 0xff)
                fail_msg("%s: wrote past the end of %s", dev->name, o->name);
    }
}
static double out_at(const struct output *o, int64_t i)
{
    return o->dtype == DT_BF16 ? bf16_to_f32(((uint16_t *)o->host)[i]) : ((float *)o->host)[i];
}
/* Relative difference of two outputs by their norms; a NaN anywhere is a failure. */
static double out_distance(const struct output *a, const struct output *b)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < a->n; i++) {
        double x = out_at(a, i), y = out_at(b, i);
        if (x == y || (isinf(x) && x == y)) {
            norm += isinf(x) ? 0 : x * x;
            continue;
        }
        if (!isfinite(x) || !isfinite(y))
            return INFINITY;
        diff += (x - y) * (x - y);
        norm += x * x;
    }
    return diff == 0 ? 0 : sqrt(diff / (norm + 1e-30));
}

/* --- the cases ---------------------------------------------------------------------------------------------------- */
static const int64_t row_sizes[] = { 1, 7, 100, 173 };
static const int64_t width_sizes[] = { 64, 48, 196, 1037 };
#define N_SIZE 4

static bool gather_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    return OP(r->dev, &r->err, rows_gather, .table = values(r, 50 * d), .row = ints(r, n, 50), .y = result(r, "y", n * d), .n = n,
              .n_row = 50, .d = d, .dtype = r->dtype);
}
/* The table in three slices, the first and the last of one row. */
static bool gather_slices_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    static const int64_t bound[] = { 0, 1, 49, 50 };
    char *table = values(r, 50 * d), *y = result(r, "y", n * d);
    const int32_t *row = ints(r, n, 50);
    for (int s = 0; s < 3; s++)
        if (!OP(r->dev, &r->err, rows_gather, .table = table + (size_t)(bound[s] * d) * dtype_size(r->dtype), .row = row, .y = y, .n = n,
                .first = bound[s], .n_row = bound[s + 1] - bound[s], .slice = true, .d = d, .dtype = r->dtype))
            return false;
    return true;
}
/* A block out of the middle of a matrix. */
static bool rows_copy_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    size_t e = dtype_size(r->dtype), width = (size_t)d * e, block = (size_t)(d - 12) * e;
    char *x = values(r, n * d), *y = watch(r, "y", values(r, n * d), n * d, r->dtype);
    return OP(r->dev, &r->err, rows_copy, .y = y + 4 * e, .x = x + 8 * e, .n = n, .row_bytes = block, .ldy_bytes = width,
              .ldx_bytes = width);
}
static bool scatter_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    int32_t *row = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        row[i] = (int32_t)(2 * (n - 1 - i));
    bool ok = OP(r->dev, &r->err, rows_scatter, .x = values(r, n * d), .row = put(r, row, (size_t)n * 4), .n = n, .d = d, .n_row = 2 * n,
                 .dtype = r->dtype, .y = watch(r, "y", values(r, 2 * n * d), 2 * n * d, r->dtype));
    free(row);
    return ok;
}
/* Row i is the sum of i % 4 rows, in no order of theirs. */
static bool rows_join_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size], k = 0;
    int32_t *first = malloc((size_t)(n + 1) * 4), *row = malloc((size_t)(4 * n + 1) * 4);
    for (int64_t i = 0; i < n; i++) {
        first[i] = (int32_t)k;
        for (int64_t e = 0; e < i % 4; e++, k++)
            row[k] = (int32_t)(k * 7 % 50);
    }
    first[n] = (int32_t)k;
    bool ok = OP(r->dev, &r->err, rows_join, .y = result(r, "y", n * d), .x = values(r, 50 * d), .row = put(r, row, (size_t)(k + 1) * 4),
                 .first = put(r, first, (size_t)(n + 1) * 4), .n = n, .n_row = 50, .d = d, .dtype = r->dtype);
    free(first);
    free(row);
    return ok;
}
static bool embed_bwd_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    return OP(r->dev, &r->err, embed_bwd, .dy = values(r, n * d), .row = ints(r, n, 20), .n = n, .n_row = 20, .d = d, .dtype = r->dtype,
              .dtable = watch(r, "dtable", floats(r, 20 * d), 20 * d, DT_F32));
}
/* The table in three slices, the first and the last of one row. */
static bool embed_bwd_slices_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    static const int64_t bound[] = { 0, 1, 19, 20 };
    const void *dy = values(r, n * d);
    const int32_t *row = ints(r, n, 20);
    float *table = watch(r, "dtable", floats(r, 20 * d), 20 * d, DT_F32);
    for (int s = 0; s < 3; s++)
        if (!OP(r->dev, &r->err, embed_bwd, .dy = dy, .row = row, .n = n, .first = bound[s], .n_row = bound[s + 1] - bound[s],
                .slice = true, .d = d, .dtype = r->dtype, .dtable = table + bound[s] * d))
            return false;
    return true;
}
static bool rmsnorm_fwd_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    bool add = r->size != 1;
    return OP(r->dev, &r->err, rmsnorm_fwd, .x = values(r, n * d), .add = add ? values(r, n * d) : NULL, .w = values(r, d), .n = n, .d = d,
              .eps = 1e-6f, .dtype = r->dtype, .sum = add ? result(r, "sum", n * d) : NULL, .y = result(r, "y", n * d),
              .form = !r->other ? NORM_LLAMA
                      : add     ? NORM_GEMMA
                                : NORM_OLMO,
              .rstd = result_of(r, "rstd", n, DT_F32));
}
static bool rmsnorm_bwd_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    return OP(r->dev, &r->err, rmsnorm_bwd, .dy = values(r, n * d), .x = values(r, n * d), .w = values(r, d),
              .dadd = r->size == 1 ? NULL : values(r, n * d), .rstd = values_of(r, n, DT_F32, 1, 0.1), .n = n, .d = d, .dtype = r->dtype,
              .form = r->other ? NORM_GEMMA : NORM_LLAMA, .dx = result(r, "dx", n * d), .dw = watch(r, "dw", floats(r, d), d, DT_F32));
}
static bool rmsnorm_fwd_other_case(struct run *r)
{
    r->other = true;
    return rmsnorm_fwd_case(r);
}
static bool rmsnorm_bwd_other_case(struct run *r)
{
    r->other = true;
    return rmsnorm_bwd_case(r);
}
/* As many rows as in training, where blocks take several: some are left over in each size, and in the first there are more sums of rows than
 * are read at once. */
static bool rmsnorm_many_case(struct run *r)
{
    static const int64_t rows[N_SIZE] = { 4227, 2049, 1025, 1030 }, width[N_SIZE] = { 64, 896, 1536, 3584 };
    int64_t n = rows[r->size], d = width[r->size];
    void *x = values(r, n * d), *w = values(r, d), *dy = watch(r, "dx", values(r, n * d), n * d, r->dtype);
    float *rstd = result_of(r, "rstd", n, DT_F32);
    return OP(r->dev, &r->err, rmsnorm_fwd, .x = x, .w = w, .n = n, .d = d, .eps = 1e-6f, .dtype = r->dtype, .y = result(r, "y", n * d),
              .rstd = rstd)
           && OP(r->dev, &r->err, rmsnorm_bwd, .dy = dy, .dx = dy, .x = x, .w = w, .dadd = r->size & 1 ? x : NULL, .rstd = rstd, .n = n,
                 .d = d, .dtype = r->dtype, .dw = watch(r, "dw", floats(r, d), d, DT_F32));
}
/* Some columns of wider rows, in place: the rest must stay. */
static bool rmsnorm_columns_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size], ld = d + 24;
    void *x = watch(r, "x", values(r, n * ld), n * ld, r->dtype), *dy = watch(r, "dy", values(r, n * ld), n * ld, r->dtype);
    void *w = values(r, d), *kept = values(r, n * ld);
    float *rstd = mem_take(r, (size_t)n * 4);
    char *from = (char *)x + 8 * dtype_size(r->dtype), *to = (char *)dy + 8 * dtype_size(r->dtype);
    return OP(r->dev, &r->err, rmsnorm_fwd, .y = from, .x = from, .w = w, .rstd = rstd, .n = n, .d = d, .ld = ld, .form = NORM_OLMO,
              .eps = 1e-6f, .dtype = r->dtype)
           && OP(r->dev, &r->err, rmsnorm_bwd, .dx = to, .dy = to, .x = kept, .w = w, .rstd = rstd, .n = n, .d = d, .ld = ld,
                 .form = NORM_OLMO, .dtype = r->dtype, .dw = watch(r, "dw", floats(r, d), d, DT_F32));
}
static const struct {
    int64_t n, n_out, n_in;
} linear_sizes[N_SIZE] = {
    { 1, 64, 48 },
    { 13, 37, 51 },
    { 100, 300, 128 },
    { 333, 196, 260 },
};
static bool linear_fwd_case(struct run *r)
{
    int64_t n = linear_sizes[r->size].n, out = linear_sizes[r->size].n_out, in = linear_sizes[r->size].n_in;
    bool f32 = r->size == 2;
    return OP(r->dev, &r->err, linear_fwd, .x = values(r, n * in), .w = weight_of(r, out, in), .bias = r->size & 1 ? values(r, out) : NULL,
              .n = n, .y_dtype = f32 ? DT_F32 : r->dtype, .y = result_of(r, "y", n * out, f32 ? DT_F32 : r->dtype));
}
static bool linear_fwd_parts_case(struct run *r)
{
    static const struct {
        int64_t n, n_out, n_in;
        int parts;
    } sizes[N_SIZE] = { { 1, 64, 48, 4 }, { 13, 37, 52, 2 }, { 100, 300, 128, 8 }, { 333, 196, 260, 4 } };
    int64_t n = sizes[r->size].n, out = sizes[r->size].n_out, in = sizes[r->size].n_in;
    bool f32 = r->size == 2;
    r->parts = sizes[r->size].parts;
    return OP(r->dev, &r->err, linear_fwd, .x = values(r, n * in), .w = weight_of(r, out, in), .bias = r->size & 1 ? values(r, out) : NULL,
              .n = n, .y_dtype = f32 ? DT_F32 : r->dtype, .y = result_of(r, "y", n * out, f32 ? DT_F32 : r->dtype));
}
static bool tree_sum_case(struct run *r)
{
    int64_t n = row_sizes[r->size], d = width_sizes[r->size];
    struct tree_sum a = { .n_x = 1 << r->size, .n = n, .d = d, .y_dtype = r->dtype, .dtype = r->dtype };
    for (int p = 0; p < a.n_x; p++)
        a.x[p] = values_of(r, n * d, DT_F32, 0, 1);
    a.bias = r->size & 1 ? values(r, d) : NULL;
    a.y = result(r, "y", n * d);
    return r->dev->op->tree_sum(r->dev, &a, &r->err);
}
static bool linear_bwd_x_case(struct run *r)
{
    int64_t n = linear_sizes[r->size].n, out = linear_sizes[r->size].n_out, in = linear_sizes[r->size].n_in;
    bool accumulate = r->size == 3;
    return OP(r->dev, &r->err, linear_bwd_x, .dy = values(r, n * out), .w = weight_of(r, out, in), .n = n, .accumulate = accumulate,
              .dx = accumulate ? watch(r, "dx", values(r, n * in), n * in, r->dtype) : result(r, "dx", n * in));
}
/* Some rows of the weight, once to fp32 and once more onto it; they begin and end on multiples of 8 or not. */
static bool linear_bwd_x_rows_case(struct run *r)
{
    int64_t n = linear_sizes[r->size].n, out = linear_sizes[r->size].n_out, in = linear_sizes[r->size].n_in;
    int64_t first = out / 4, n_k = out / 2;
    const struct weight *w = weight_of(r, out, in);
    const char *dy = (const char *)values(r, n * out) + (size_t)first * dtype_size(r->dtype);
    float *dx = watch(r, "dx", values_of(r, n * in, DT_F32, 0, 1), n * in, DT_F32);
    return OP(r->dev, &r->err, linear_bwd_x, .dx = dx, .dy = dy, .w = w, .n = n, .lddy = out, .first = first, .n_k = n_k, .f32 = true)
           && OP(r->dev, &r->err, linear_bwd_x, .dx = dx, .dy = dy, .w = w, .n = n, .lddy = out, .first = first, .n_k = n_k / 2,
                 .accumulate = true, .f32 = true);
}
/* Groups of rows that follow each other in the weight, which each part has some of. */
struct tree_rows {
    int64_t n, n_in;
    int n_part, n_seg;
    int64_t each[3], n_out;    // n_out less than all: the last part has fewer rows
};
static bool tree_of_rows(struct run *r, const struct tree_rows *s, void *y, enum dtype y_dtype, struct linear_bwd_tree *a)
{
    *a = (struct linear_bwd_tree){ .y = y, .n = s->n, .lddy = s->n_out, .n_part = s->n_part, .n_seg = s->n_seg, .y_dtype = y_dtype };
    int64_t at = 0;
    for (int i = 0; i < s->n_seg; i++) {
        a->seg[i].at = at;
        a->seg[i].each = s->each[i];
        a->seg[i].end = at = MIN(at + s->n_part * s->each[i], s->n_out);
    }
    a->dy = values(r, s->n * s->n_out);
    a->w = weight_of(r, s->n_out, s->n_in);
    a->part = mem_take(r, (size_t)(s->n_part * s->n * s->n_in) * sizeof *a->part);
    return r->dev->op->linear_bwd_tree(r->dev, a, &r->err);
}
static bool linear_bwd_tree_case(struct run *r)
{
    static const struct tree_rows sizes[N_SIZE] = {
        { 1, 48, 1, 3, { 16, 8, 8 }, 32 },
        { 13, 51, 4, 1, { 10 }, 37 },
        { 100, 128, 2, 2, { 64, 64 }, 256 },
        { 333, 256, 4, 3, { 32, 16, 16 }, 256 },
    };
    const struct tree_rows *s = &sizes[r->size];
    struct linear_bwd_tree a;
    enum dtype t = r->size == 0 ? DT_F32 : r->dtype;
    r->parts = 1;
    return tree_of_rows(r, s, result_of(r, "y", s->n * s->n_in, t), t, &a);
}
static bool linear_bwd_w_case(struct run *r)
{
    int64_t n = linear_sizes[r->size].n * 2, out = linear_sizes[r->size].n_out, in = linear_sizes[r->size].n_in;
    return OP(r->dev, &r->err, linear_bwd_w, .dy = values(r, n * out), .x = values(r, n * in), .n = n, .n_out = out, .n_in = in,
              .dtype = r->dtype, .dw = watch(r, "dw", floats(r, out * in), out * in, DT_F32),
              .dbias = watch(r, "dbias", floats(r, out), out, DT_F32));
}
static const struct attn_heads head_sizes[N_SIZE] = { { 2, 1, 16 }, { 4, 2, 32 }, { 6, 2, 64 }, { 7, 1, 128 } };
#define N_POS 512
static bool rope_case(struct run *r, bool bwd)
{
    struct attn_heads h = head_sizes[r->size];
    int rot = r->other ? h.hd / 4 + 2 : 0;
    enum norm_form form = r->other ? NORM_GEMMA : NORM_LLAMA;
    int64_t n = row_sizes[r->size], wide = (h.n_q + 2 * h.n_kv) * h.hd;
    void *q_norm = r->size & 1 ? values(r, h.hd) : NULL, *k_norm = r->size & 1 ? values(r, h.hd) : NULL;
    float *cosine = floats(r, N_POS * h.hd / 2), *sine = floats(r, N_POS * h.hd / 2);
    int32_t *pos = ints(r, n, N_POS);
    void *qkv = values(r, n * wide);
    if (!bwd)
        return OP(r->dev, &r->err, rope_fwd, .qkv = qkv, .cos = cosine, .sin = sine, .pos = pos, .q_norm = q_norm, .k_norm = k_norm, .n = n,
                  .n_pos = N_POS, .heads = h, .rot = rot, .form = form, .eps = 1e-6f, .dtype = r->dtype,
                  .out = r->size == 2 ? watch(r, "qkv", qkv, n * wide, r->dtype) : result(r, "out", n * wide));
    return OP(r->dev, &r->err, rope_bwd, .qkv = qkv, .cos = cosine, .sin = sine, .pos = pos, .q_norm = q_norm, .k_norm = k_norm, .n = n,
              .n_pos = N_POS, .heads = h, .rot = rot, .form = form, .eps = 1e-6f, .dtype = r->dtype,
              .dqkv = watch(r, "dqkv", values(r, n * wide), n * wide, r->dtype),
              .dq_norm = watch(r, "dq_norm", floats(r, h.hd), h.hd, DT_F32), .dk_norm = watch(r, "dk_norm", floats(r, h.hd), h.hd, DT_F32));
}
/* Gradients of the norms by parts of the heads. */
static bool rope_bwd_parts_case(struct run *r)
{
    struct attn_heads h = { 8, 4, head_sizes[r->size].hd };
    int parts = 1 << r->size % 3;
    int64_t n = row_sizes[r->size], wide = (h.n_q + 2 * h.n_kv) * h.hd;
    return OP(r->dev, &r->err, rope_bwd, .qkv = values(r, n * wide), .cos = floats(r, N_POS * h.hd / 2), .sin = floats(r, N_POS * h.hd / 2),
              .pos = ints(r, n, N_POS), .q_norm = values(r, h.hd), .k_norm = values(r, h.hd), .n = n, .n_pos = N_POS, .heads = h,
              .parts = parts, .eps = 1e-6f, .dtype = r->dtype, .dqkv = watch(r, "dqkv", values(r, n * wide), n * wide, r->dtype),
              .dq_norm = watch(r, "dq_norm", floats(r, parts * h.hd), parts * h.hd, DT_F32),
              .dk_norm = watch(r, "dk_norm", floats(r, parts * h.hd), parts * h.hd, DT_F32));
}
static bool rope_fwd_case(struct run *r)
{
    return rope_case(r, false);
}
static bool rope_bwd_case(struct run *r)
{
    return rope_case(r, true);
}
static bool rope_fwd_other_case(struct run *r)
{
    r->other = true;
    return rope_case(r, false);
}
static bool rope_bwd_other_case(struct run *r)
{
    r->other = true;
    return rope_case(r, true);
}
/* Windows of one key, across tiles, none, and of a whole tile; without a cap in one size. */
static struct attn_bounds bounds_of(const struct run *r)
{
    static const int64_t windows[N_SIZE] = { 1, 70, 0, 128 };
    return r->other ? (struct attn_bounds){ .window = windows[r->size], .cap = r->size == 1 ? 0 : 1.5f } : (struct attn_bounds){ 0 };
}
static const int32_t seq_sizes[N_SIZE][6] = { { 0, 1 }, { 0, 5, 5, 38 }, { 0, 100, 101, 133, 200 }, { 0, 61, 150 } };
static const int n_seq_sizes[N_SIZE] = { 1, 3, 4, 2 };
static const int32_t long_seq[] = { 0, 1, 131, 331 };    // so long that whole tiles are before a window
static const int n_long_seq = 3;
static const struct attn_heads wide_sizes[N_SIZE] = { { 3, 1, 96 }, { 2, 2, 96 }, { 4, 2, 256 }, { 2, 1, 256 } };
static bool attn_fwd_with(struct run *r, struct attn_heads h)
{
    const int32_t *seq = r->other ? long_seq : seq_sizes[r->size];
    int n_seq = r->other ? n_long_seq : n_seq_sizes[r->size];
    int64_t n = seq[n_seq];
    return OP(r->dev, &r->err, attn_fwd, .qkv = values(r, n * (h.n_q + 2 * h.n_kv) * h.hd), .n = n, .n_seq = n_seq,
              .seq = put(r, seq, (size_t)(n_seq + 1) * 4), .seq_host = seq, .heads = h, .bounds = bounds_of(r), .dtype = r->dtype,
              .out = result(r, "out", n * h.n_q * h.hd), .lse = result_of(r, "lse", n * h.n_q, DT_F32));
}
static bool attn_fwd_case(struct run *r)
{
    return attn_fwd_with(r, head_sizes[r->size]);
}
static bool attn_fwd_wide_case(struct run *r)
{
    return attn_fwd_with(r, wide_sizes[r->size]);
}
static bool attn_bwd_with(struct run *r, struct attn_heads h)
{
    const int32_t *seq = r->other ? long_seq : seq_sizes[r->size];
    int n_seq = r->other ? n_long_seq : n_seq_sizes[r->size];
    int64_t n = seq[n_seq], wide = (h.n_q + 2 * h.n_kv) * h.hd;
    void *qkv = values(r, n * wide), *dout = values(r, n * h.n_q * h.hd), *out = mem_take(r, (size_t)(n * h.n_q * h.hd) * 4);
    float *lse = mem_take(r, (size_t)(n * h.n_q) * 4);
    int32_t *dev_seq = put(r, seq, (size_t)(n_seq + 1) * 4);
    return OP(r->dev, &r->err, attn_fwd, .qkv = qkv, .n = n, .n_seq = n_seq, .seq = dev_seq, .seq_host = seq, .heads = h, .dtype = r->dtype,
              .bounds = bounds_of(r), .out = out, .lse = lse)
           && OP(r->dev, &r->err, attn_bwd, .qkv = qkv, .n = n, .n_seq = n_seq, .seq = dev_seq, .seq_host = seq, .heads = h,
                 .bounds = bounds_of(r), .dtype = r->dtype, .out = out, .lse = lse, .dout = dout, .dqkv = result(r, "dqkv", n * wide));
}
static bool attn_fwd_other_case(struct run *r)
{
    r->other = true;
    return attn_fwd_case(r);
}
static bool attn_bwd_case(struct run *r)
{
    return attn_bwd_with(r, head_sizes[r->size]);
}
static bool attn_bwd_other_case(struct run *r)
{
    r->other = true;
    return attn_bwd_case(r);
}
static bool attn_bwd_wide_case(struct run *r)
{
    return attn_bwd_with(r, wide_sizes[r->size]);
}
static bool attn_fwd_wide_other_case(struct run *r)
{
    r->other = true;
    return attn_fwd_wide_case(r);
}
static bool attn_bwd_wide_other_case(struct run *r)
{
    r->other = true;
    return attn_bwd_wide_case(r);
}
static bool swiglu_fwd_case(struct run *r)
{
    int64_t n = row_sizes[r->size], f = width_sizes[r->size];
    return OP(r->dev, &r->err, swiglu_fwd, .gu = values_of(r, n * 2 * f, r->dtype, 0, 4), .n = n, .f = f, .dtype = r->dtype,
              .act = r->other ? ACT_GELU_TANH : ACT_SILU, .y = result(r, "y", n * f));
}
static bool swiglu_bwd_case(struct run *r)
{
    int64_t n = row_sizes[r->size], f = width_sizes[r->size];
    return OP(r->dev, &r->err, swiglu_bwd, .gu = values_of(r, n * 2 * f, r->dtype, 0, 4), .dy = values(r, n * f), .n = n, .f = f,
              .act = r->other ? ACT_GELU_TANH : ACT_SILU, .dtype = r->dtype, .dgu = result(r, "dgu", n * 2 * f),
              .y = r->size == 1 ? NULL : result(r, "y", n * f));
}
static bool geglu_fwd_case(struct run *r)
{
    r->other = true;
    return swiglu_fwd_case(r);
}
static bool geglu_bwd_case(struct run *r)
{
    r->other = true;
    return swiglu_bwd_case(r);
}
static bool softcap_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size];
    return OP(r->dev, &r->err, softcap, .x = watch(r, "x", values_of(r, n, DT_F32, 0, 1 + 9 * r->size), n, DT_F32), .n = n, .cap = 7);
}
static bool add_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size];
    return OP(r->dev, &r->err, add_fwd, .a = values(r, n), .b = values(r, n), .n = n, .dtype = r->dtype, .y = result(r, "y", n));
}
static bool cast_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size];
    enum dtype other = r->size & 1 ? DT_F32 : DT_BF16;
    return OP(r->dev, &r->err, cast, .x = values(r, n), .n = n, .scale = 0.75f, .x_dtype = r->dtype, .y_dtype = other,
              .y = result_of(r, "y", n, other));
}
static bool axpy_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size];
    return OP(r->dev, &r->err, axpy, .x = floats(r, n), .n = n, .scale = -0.3f, .y = watch(r, "y", floats(r, n), n, DT_F32));
}
static const int64_t vocab_sizes[N_SIZE] = { 17, 300, 2048, 70001 };
static const int64_t logit_rows[N_SIZE] = { 1, 33, 64, 3 };
static bool logprob_fwd_case(struct run *r)
{
    int64_t n = logit_rows[r->size], vocab = vocab_sizes[r->size], n_live = r->size & 1 ? vocab - 3 : 0;
    return OP(r->dev, &r->err, logprob_fwd, .logits = values_of(r, n * vocab, DT_F32, 0, 3), .id = ints(r, n, (int32_t)vocab), .n = n,
              .vocab = vocab, .n_live = n_live, .temperature = 0.8f, .logp = result_of(r, "logp", n, DT_F32),
              .entropy = result_of(r, "entropy", n, DT_F32), .lse = result_of(r, "lse", n, DT_F32));
}
static bool logprob_bwd_case(struct run *r)
{
    int64_t n = logit_rows[r->size], vocab = vocab_sizes[r->size], n_live = r->size & 1 ? vocab - 3 : 0;
    float *logits = values_of(r, n * vocab, DT_F32, 0, 3), *lse = mem_take(r, (size_t)n * 4), cap = r->other ? 9 : 0;
    int32_t *id = ints(r, n, (int32_t)vocab - 3);
    return OP(r->dev, &r->err, logprob_fwd, .logits = logits, .id = id, .n = n, .vocab = vocab, .n_live = n_live, .temperature = 0.8f,
              .lse = lse)
           && OP(r->dev, &r->err, logprob_bwd, .logits = logits, .id = id, .n = n, .vocab = vocab, .n_live = n_live, .temperature = 0.8f,
                 .cap = cap, .lse = lse, .coef = floats(r, n), .dtype = r->dtype,
                 .dlogits = r->dtype == DT_F32 && r->size == 1 ? watch(r, "logits", logits, n * vocab, DT_F32)
                                                               : result(r, "dlogits", n * vocab));
}
static bool logprob_bwd_capped_case(struct run *r)
{
    r->other = true;
    return logprob_bwd_case(r);
}
static bool policy_loss_of(struct run *r, enum clip_form clip, enum kl_form kl, bool whole)
{
    int64_t n = row_sizes[r->size] * 3;
    float *logp = values_of(r, n, DT_F32, -1, 0.3);
    return OP(r->dev, &r->err, policy_loss, .logp = logp, .logp_old = values_of(r, n, DT_F32, -1, 0.3),
              .logp_ref = r->size & 1 ? values_of(r, n, DT_F32, -1, 0.3) : NULL, .adv = floats(r, n), .weight = floats(r, n), .n = n,
              .log_ratio = whole ? values_of(r, n, DT_F32, 0, 0.3) : NULL, .rho = whole ? values_of(r, n, DT_F32, 1, 0.3) : NULL,
              .form = { clip, kl, 0.2f, 0.28f, 0.05f, 1.5f, 1, 1.05f, { 2, 3 }, { 3, 2 }, 0.3f }, .coef = result_of(r, "coef", n, DT_F32),
              .loss = result_of(r, "loss", n, DT_F32), .ratio = result_of(r, "ratio", n, DT_F32));
}
static bool policy_loss_case(struct run *r)
{
    return policy_loss_of(r, CLIP_PPO, KL_K3, false);
}
static bool policy_loss_sequence_case(struct run *r)
{
    return policy_loss_of(r, CLIP_PPO, KL_K1, true);
}
static bool policy_loss_cispo_case(struct run *r)
{
    return policy_loss_of(r, CLIP_CISPO, KL_K2, r->size & 2);
}
static bool policy_loss_atropos_case(struct run *r)
{
    return policy_loss_of(r, CLIP_ATROPOS, KL_K1_RATIO, r->size & 2);
}
static bool policy_loss_k3_ratio_case(struct run *r)
{
    return policy_loss_of(r, CLIP_PPO, KL_K3_RATIO, r->size & 2);
}
static bool policy_loss_sapo_case(struct run *r)
{
    return policy_loss_of(r, CLIP_SAPO, KL_ABS, r->size & 2);
}
static bool policy_loss_gpg_case(struct run *r)
{
    return policy_loss_of(r, CLIP_GPG, KL_K3_THROUGH, r->size & 2);
}
static bool policy_loss_gmpo_case(struct run *r)
{
    return policy_loss_of(r, CLIP_GMPO, KL_K3, true);
}
static bool policy_loss_vespo_case(struct run *r)
{
    return policy_loss_of(r, CLIP_VESPO, KL_K3, true);
}
static bool policy_loss_dppo_tv_case(struct run *r)
{
    return policy_loss_of(r, CLIP_DPPO_TV, KL_K3, r->size & 2);
}
static bool policy_loss_dppo_kl_case(struct run *r)
{
    return policy_loss_of(r, CLIP_DPPO_KL, KL_K3, r->size & 2);
}
static bool policy_loss_dro_case(struct run *r)
{
    return policy_loss_of(r, CLIP_DRO, KL_K3, false);
}
static bool blend_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size];
    return OP(r->dev, &r->err, blend, .y = watch(r, "y", values(r, n), n, r->dtype), .x = values(r, n), .n = n,
              .share = r->size & 1 ? 0.6f : 1, .dtype = r->dtype);
}
static bool sample_case(struct run *r)
{
    int64_t n = logit_rows[r->size], vocab = vocab_sizes[r->size];
    struct sample_row row[64];
    for (int64_t i = 0; i < n; i++)
        row[i] = (struct sample_row){ .seed = 7,
                                      .item = i,
                                      .sample = 3,
                                      .pos = (int32_t)(i * 5),
                                      .temperature = i % 5 == 4 ? 0 : 0.7f + 0.1f * (float)(i % 4),
                                      .top_p = i % 3 == 1 ? 0.8f : 1,
                                      .top_k = i % 4 == 1 ? 10 : 0,
                                      .min_p = i % 7 == 3 ? 0.05f : 0,
                                      .n_ban = i % 6 == 2 ? 1 + (int32_t)(i % 5) : 0 };
    int32_t ban[64 * SAMPLE_BAN_MAX];    // some beyond the vocabulary, and what is beyond n_ban must not matter
    for (int64_t k = 0; k < n * SAMPLE_BAN_MAX; k++)
        ban[k] = (int32_t)(k * 7 % (vocab + 3));
    int32_t *id = mem_take(r, (size_t)n * 4);
    return OP(r->dev, &r->err, sample_fwd, .logits = values_of(r, n * vocab, DT_F32, 0, 3), .n = n, .vocab = vocab,
              .row = put(r, row, (size_t)n * sizeof *row), .ban = put(r, ban, (size_t)n * SAMPLE_BAN_MAX * sizeof *ban),
              .id = watch(r, "id", id, n, DT_F32), .logp = result_of(r, "logp", n, DT_F32), .entropy = result_of(r, "entropy", n, DT_F32));
}
static bool clip_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size];
    double *sum = mem_take(r, sizeof *sum), *part = mem_take(r, (size_t)(n / SUMSQ_BLOCK + 1) * sizeof *part);
    float *x = floats(r, n);
    return OP(r->dev, &r->err, sumsq, .part = part, .x = x, .n = n)
           && OP(r->dev, &r->err, sum_parts, .sum = sum, .part = part, .n = (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK)
           && OP(r->dev, &r->err, clip_coef, .sum = sum, .max_norm = r->size & 1 ? 1.0f : 0, .grad_scale = 0.5f,
                 .norm = result_of(r, "norm", 1, DT_F32), .coef = result_of(r, "coef", 1, DT_F32));
}
static bool adamw_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size];
    return OP(r->dev, &r->err, adamw, .weight = result(r, "weight", n), .master = watch(r, "master", floats(r, n), n, DT_F32),
              .m = watch(r, "m", floats(r, n), n, DT_F32), .v = watch(r, "v", values_of(r, n, DT_F32, 5, 0.5), n, DT_F32),
              .grad = floats(r, n), .coef = r->size & 1 ? values_of(r, 1, DT_F32, 0.5, 0) : NULL, .n = n, .step = 1 + r->size, .lr = 1e-2f,
              .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .dtype = r->dtype);
}
/* More elements than the stage holds at once, so that slots are used again and the last piece is a short one. */
static bool adamw_host_case(struct run *r)
{
    int64_t n = r->size & 1 ? 70001 : row_sizes[r->size] * width_sizes[r->size];
    float *state[3], *copy[3];
    for (int k = 0; k < 3; k++) {
        state[k] = host_new(r->dev, (size_t)n * 4, "a test", &r->err);
        assert_non_null(state[k]);
        values_fill(r, state[k], n, DT_F32, k == 1 ? 5 : 0, k == 1 ? 0.5 : 1);
        copy[k] = watch(r, k == 0 ? "m" : k == 1 ? "v" : "master", mem_take(r, (size_t)n * 4), n, DT_F32);
    }
    size_t stage = (size_t)3 * 3 * 4 * 2048;
    struct adamw step = { .weight = result(r, "weight", n),
                          .m = state[0],
                          .v = state[1],
                          .master = state[2],
                          .grad = floats(r, n),
                          .coef = r->size & 1 ? values_of(r, 1, DT_F32, 0.5, 0) : NULL,
                          .n = n,
                          .lr = 1e-2f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .decay = 0.1f,
                          .dtype = r->dtype };
    bool ok = true;
    for (step.step = 1; step.step <= 2 && ok; step.step++)    // the second step reads what the first has written back
        ok = OP(r->dev, &r->err, adamw_host, .step = step, .stage = mem_take(r, stage), .stage_bytes = stage);
    ok = ok && device_sync(r->dev, &r->err);
    for (int k = 0; k < 3; k++) {
        ok = ok && mem_copy(r->dev, copy[k], state[k], (size_t)n * 4, COPY_H2D, &r->err) && device_sync(r->dev, &r->err);
        host_free(r->dev, state[k]);
    }
    return ok;
}
static bool adafactor_case(struct run *r)
{
    int64_t n_row = row_sizes[r->size], n_col = r->size == 2 ? 1 : width_sizes[r->size], n = n_row * n_col;
    float *grad = watch(r, "update", floats(r, n), n, DT_F32), *master = watch(r, "master", floats(r, n), n, DT_F32);
    float *row = watch(r, "row", values_of(r, n_row, DT_F32, 5, 0.5), n_row, DT_F32);
    float *col = n_col > 1 ? watch(r, "col", values_of(r, n_col, DT_F32, 5, 0.5), n_col, DT_F32) : NULL;
    float *mean = result_of(r, "row_mean", 1, DT_F32), *coef = r->size & 1 ? values_of(r, 1, DT_F32, 0.5, 0) : NULL;
    double *sum = mem_take(r, 2 * sizeof *sum), *part = mem_take(r, (size_t)(n / SUMSQ_BLOCK + 1) * sizeof *part);
    int64_t n_part = (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK;
    return OP(r->dev, &r->err, adafactor_moments, .row = row, .col = col, .row_mean = mean, .grad = grad, .coef = coef, .n_row = n_row,
              .n_col = n_col, .share = 0.3f)
           && OP(r->dev, &r->err, adafactor_update, .grad = grad, .row = row, .col = col, .row_mean = mean, .coef = coef, .n_row = n_row,
                 .n_col = n_col)
           && OP(r->dev, &r->err, sumsq, .part = part, .x = master, .n = n)
           && OP(r->dev, &r->err, sum_parts, .sum = sum, .part = part, .n = n_part)
           && OP(r->dev, &r->err, sumsq, .part = part, .x = grad, .n = n)
           && OP(r->dev, &r->err, sum_parts, .sum = sum + 1, .part = part, .n = n_part)
           && OP(r->dev, &r->err, adafactor_apply, .weight = result(r, "weight", n), .master = master, .u = grad, .sum_master = sum,
                 .sum_u = sum + 1, .n = n, .lr = 1e-2f, .decay = 0.1f, .rho = 1e-2f, .dtype = r->dtype);
}
/* Codes may differ where a value lies between two of the table's: the moments are then apart by a step of it, at most 1/32 of the value, or
 * of the block's largest by as much less. So masters are compared, and the scales. */
static bool adamw8_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size], n_block = (n + ADAM8_BLOCK - 1) / ADAM8_BLOCK;
    struct adamw8 a = { .weight = result(r, "weight", n),
                        .master = watch(r, "master", floats(r, n), n, DT_F32),
                        .m = mem_take(r, (size_t)n),
                        .v = mem_take(r, (size_t)n),
                        .m_scale = watch(r, "m_scale", mem_take(r, (size_t)n_block * 4), n_block, DT_F32),
                        .v_scale = watch(r, "v_scale", mem_take(r, (size_t)n_block * 4), n_block, DT_F32),
                        .coef = r->size & 1 ? values_of(r, 1, DT_F32, 0.5, 0) : NULL,
                        .n = n,
                        .lr = 1e-2f,
                        .beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .eps = 1e-8f,
                        .dtype = r->dtype };
    if (!OP(r->dev, &r->err, mem_fill, .y = a.m_scale, .size_bytes = (size_t)n_block * 4)
        || !OP(r->dev, &r->err, mem_fill, .y = a.v_scale, .size_bytes = (size_t)n_block * 4))
        return false;
    for (a.step = 1; a.step <= 3; a.step++) {    // the later ones read what the first has stored
        a.grad = floats(r, n);
        if (!OP(r->dev, &r->err, adamw8, .weight = a.weight, .master = a.master, .m = a.m, .v = a.v, .m_scale = a.m_scale,
                .v_scale = a.v_scale, .grad = a.grad, .coef = a.coef, .n = a.n, .step = a.step, .lr = a.lr, .beta1 = a.beta1,
                .beta2 = a.beta2, .eps = a.eps, .dtype = a.dtype))
            return false;
    }
    return true;
}
static bool hash_case(struct run *r)
{
    int64_t n = row_sizes[r->size] * width_sizes[r->size];
    uint64_t *hash = mem_take(r, sizeof *hash);
    void *x = mem_take(r, (size_t)n + 8);
    return OP(r->dev, &r->err, mem_fill, .y = x, .size_bytes = (size_t)n + 8, .byte = (uint8_t)n)
           && OP(r->dev, &r->err, mem_hash, .hash = watch(r, "hash", hash, 4, DT_BF16), .x = x, .size_bytes = (size_t)n);
}
/* rope_fwd into pages in scattered order, a page copied, then decode and prefill over them. */
static bool paged_case(struct run *r)
{
    struct attn_heads h = head_sizes[r->size];
    int len = (int)row_sizes[r->size], page_tok = r->dev->kv_page_tok;
    int64_t wide = (h.n_q + 2 * h.n_kv) * h.hd, max_page = (len + page_tok - 1) / page_tok + 1, n_page = 2 * max_page + 2;
    void *qkv = values(r, len * wide), *kv = mem_take(r, (size_t)n_page * kv_page_bytes(r->dev, h, r->dtype));
    bool ok = OP(r->dev, &r->err, mem_fill, .y = kv, .size_bytes = (size_t)n_page * kv_page_bytes(r->dev, h, r->dtype), .byte = 0xff);
    int32_t pos[512], slot[512], page[64] = { 0 }, kv_len[3] = { len, 0, len }, q_seq[4] = { 0, len, len, len + 1 };
    for (int i = 0; i < len; i++) {
        pos[i] = i;
        slot[i] = (int32_t)(n_page - 1 - i / page_tok) * page_tok + i % page_tok;
    }
    for (int p = 0; p < max_page; p++)    // the third sequence shares all pages but its last, which is copied to page 0
        page[p] = page[2 * max_page + p] = (int32_t)(n_page - 1 - p);
    int last = (len - 1) / page_tok;
    page[2 * max_page + last] = 0;
    int32_t src = (int32_t)(n_page - 1 - last), dst = 0;
    ok = ok
         && OP(r->dev, &r->err, rope_fwd, .out = qkv, .qkv = qkv, .cos = floats(r, N_POS * h.hd / 2), .sin = floats(r, N_POS * h.hd / 2),
               .pos = put(r, pos, (size_t)len * 4), .kv = kv, .slot = put(r, slot, (size_t)len * 4), .n = len, .n_pos = N_POS, .heads = h,
               .dtype = r->dtype)
         && OP(r->dev, &r->err, kv_copy, .kv = kv, .src = put(r, &src, 4), .dst = put(r, &dst, 4), .n = 1, .heads = h, .dtype = r->dtype);
    /* queries: the whole first sequence again, and the last token of the third */
    void *all = mem_take(r, (size_t)((len + 1) * wide) * dtype_size(r->dtype));
    size_t row_bytes = (size_t)wide * dtype_size(r->dtype);
    ok = ok && mem_copy(r->dev, all, qkv, (size_t)len * row_bytes, COPY_D2D, &r->err)
         && mem_copy(r->dev, (char *)all + (size_t)len * row_bytes, (char *)qkv + (size_t)(len - 1) * row_bytes, row_bytes, COPY_D2D,
                     &r->err);
    int32_t *dev_page = put(r, page, (size_t)(3 * max_page) * 4), *dev_len = put(r, kv_len, sizeof kv_len);
    int64_t n_out = (len + 1) * h.n_q * h.hd;
    return ok
           && OP(r->dev, &r->err, attn_paged, .qkv = all, .kv = kv, .page = dev_page, .kv_len = dev_len,
                 .q_seq = put(r, q_seq, sizeof q_seq), .n = len + 1, .n_seq = 3, .max_page = max_page, .max_q = len, .max_kv = len,
                 .heads = h, .bounds = bounds_of(r), .dtype = r->dtype, .out = result(r, "prefill", n_out))
           && OP(r->dev, &r->err, attn_paged, .qkv = (char *)all + (size_t)len * row_bytes, .kv = kv, .page = dev_page + 2 * max_page,
                 .kv_len = dev_len + 2, .n = 1, .n_seq = 1, .max_page = max_page, .max_q = 1, .max_kv = len, .heads = h,
                 .bounds = bounds_of(r), .dtype = r->dtype, .out = result(r, "decode", h.n_q * h.hd));
}
static bool paged_other_case(struct run *r)
{
    r->other = true;
    return paged_case(r);
}
static const struct {
    const char *name;
    case_fn *fn;
    double tol;    // fp32, by the norm; bf16 outputs may differ by roundings at 2^-9 each
} cases[] = {
    { "rows_gather", gather_case, 0 },
    { "rows_gather, slices", gather_slices_case, 0 },
    { "rows_copy", rows_copy_case, 0 },
    { "rows_scatter", scatter_case, 0 },
    { "rows_join", rows_join_case, 0 },
    { "embed_bwd", embed_bwd_case, 1e-6 },
    { "embed_bwd, slices", embed_bwd_slices_case, 1e-6 },
    { "rmsnorm_fwd", rmsnorm_fwd_case, 1e-6 },
    { "rmsnorm_bwd", rmsnorm_bwd_case, 2e-6 },
    { "rmsnorm_fwd, other forms", rmsnorm_fwd_other_case, 1e-6 },
    { "rmsnorm_bwd, other forms", rmsnorm_bwd_other_case, 2e-6 },
    { "rmsnorm, columns", rmsnorm_columns_case, 2e-6 },
    { "rmsnorm, many rows", rmsnorm_many_case, 2e-6 },
    { "linear_fwd", linear_fwd_case, 2e-6 },
    { "linear_fwd in parts", linear_fwd_parts_case, 2e-6 },
    { "tree_sum", tree_sum_case, 1e-7 },
    { "linear_bwd_x", linear_bwd_x_case, 2e-6 },
    { "linear_bwd_x of some rows", linear_bwd_x_rows_case, 2e-6 },
    { "linear_bwd_tree", linear_bwd_tree_case, 2e-6 },
    { "linear_bwd_w", linear_bwd_w_case, 2e-6 },
    { "rope_fwd", rope_fwd_case, 1e-6 },
    { "rope_bwd", rope_bwd_case, 2e-6 },
    { "rope_bwd in parts", rope_bwd_parts_case, 2e-6 },
    { "rope_fwd, other forms", rope_fwd_other_case, 1e-6 },
    { "rope_bwd, other forms", rope_bwd_other_case, 2e-6 },
    { "attn_fwd", attn_fwd_case, 2e-6 },
    { "attn_fwd of 96 and 256", attn_fwd_wide_case, 2e-6 },
    { "attn_bwd", attn_bwd_case, 5e-6 },
    { "attn_bwd of 96 and 256", attn_bwd_wide_case, 5e-6 },
    { "attn_paged", paged_case, 2e-6 },
    { "attn_fwd, bounds", attn_fwd_other_case, 2e-6 },
    { "attn_fwd of 96 and 256, bounds", attn_fwd_wide_other_case, 2e-6 },
    { "attn_bwd of 96 and 256, bounds", attn_bwd_wide_other_case, 5e-6 },
    { "attn_bwd, bounds", attn_bwd_other_case, 5e-6 },
    { "attn_paged, bounds", paged_other_case, 2e-6 },
    { "swiglu_fwd", swiglu_fwd_case, 1e-6 },
    { "swiglu_bwd", swiglu_bwd_case, 1e-6 },
    { "swiglu_fwd, gelu", geglu_fwd_case, 1e-6 },
    { "swiglu_bwd, gelu", geglu_bwd_case, 1e-6 },
    { "softcap", softcap_case, 2e-7 },
    { "add_fwd", add_case, 1e-7 },
    { "cast", cast_case, 0 },
    { "axpy", axpy_case, 1e-7 },
    { "blend", blend_case, 1e-6 },
    { "logprob_fwd", logprob_fwd_case, 1e-6 },
    { "logprob_bwd", logprob_bwd_case, 5e-6 },
    { "logprob_bwd, capped", logprob_bwd_capped_case, 5e-6 },
    { "policy_loss", policy_loss_case, 1e-6 },
    { "policy_loss sequence", policy_loss_sequence_case, 1e-6 },
    { "policy_loss cispo", policy_loss_cispo_case, 1e-6 },
    { "policy_loss atropos", policy_loss_atropos_case, 1e-6 },
    { "policy_loss k3_ratio", policy_loss_k3_ratio_case, 1e-6 },
    { "policy_loss sapo", policy_loss_sapo_case, 1e-6 },
    { "policy_loss gpg", policy_loss_gpg_case, 1e-6 },
    { "policy_loss gmpo", policy_loss_gmpo_case, 1e-6 },
    { "policy_loss vespo", policy_loss_vespo_case, 1e-6 },
    { "policy_loss dppo_tv", policy_loss_dppo_tv_case, 1e-6 },
    { "policy_loss dppo_kl", policy_loss_dppo_kl_case, 1e-6 },
    { "policy_loss dro", policy_loss_dro_case, 1e-6 },
    { "sample_fwd", sample_case, 1e-6 },
    { "sumsq and clip_coef", clip_case, 1e-6 },
    { "adamw", adamw_case, 1e-6 },
    { "adamw_host", adamw_host_case, 1e-6 },
    { "adamw8", adamw8_case, 1e-5 },
    { "adafactor", adafactor_case, 2e-6 },
    { "mem_hash", hash_case, 0 },
};

static struct device *device_of(const char *name, const char *path, int n_thread)
{
    struct error err;
    if (path)
        setenv("RC_CPU", path, 1);
    else
        unsetenv("RC_CPU");
    struct device *dev = device_new(name, n_thread, &err);
    if (!dev && err.code != ERR_UNSUPPORTED)
        fail_msg("%s", err.text);
    if (!dev)
        print_message("left out: %s\n", err.text);
    return dev;
}

static void each_operation_agrees_with_ref(UNUSED void **state)
{
    struct device *ref = device_of("ref", NULL, 0), *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 2);
    int bad = 0;
    assert_non_null(dev);
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++)
        for (int size = 0; size < N_SIZE; size++)
            for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
                struct run want, got;
                run_case(&want, cases[c].fn, ref, t, size);
                run_case(&got, cases[c].fn, dev, t, size);
                for (int i = 0; i < want.n_out; i++) {
                    double apart = out_distance(&want.out[i], &got.out[i]);
                    double tol = t == DT_BF16 || want.out[i].dtype == DT_BF16 ? MAX(cases[c].tol, cases[c].tol > 0 ? 4e-3 : 0)
                                                                              : cases[c].tol;
                    if (!(apart <= tol)) {
                        print_error("%s size %d %s: %s differs from ref by %.3g of its norm, more than %.3g\n", cases[c].name, size,
                                    t == DT_BF16 ? "bf16" : "fp32", want.out[i].name, apart, tol);
                        bad++;
                    }
                }
                run_release(&want);
                run_release(&got);
            }
    device_free(ref);
    device_free(dev);
    assert_int_equal(bad, 0);
}

static void code_paths_and_thread_counts_give_the_same_bits(UNUSED void **state)
{
    static const struct {
        const char *path;
        int n_thread;
    } variants[] = {
#ifdef __SANITIZE_ADDRESS__    // which watches one path alone, see CMakeLists.txt
        { "avx2", 1 },
        { "avx2", 3 },
#else
        { "avx512", 1 }, { "avx512", 2 }, { "avx512", 3 }, { "avx512", 2 }, { "avx2", 1 }, { "avx2", 3 }, { "scalar", 1 }, { "scalar", 2 },
#endif
    };
    struct device *dev[ARRAY_SIZE(variants)];
    int bad = 0;
    for (size_t v = 0; v < ARRAY_SIZE(variants); v++)
        dev[v] = device_of("cpu:0", variants[v].path, variants[v].n_thread);
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++)
        for (int size = 0; size < N_SIZE; size++)
            for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
                struct run first = { 0 }, got;
                for (size_t v = 0; v < ARRAY_SIZE(variants); v++) {
                    if (!dev[v])
                        continue;
                    run_case(&got, cases[c].fn, dev[v], t, size);
                    if (!first.dev) {
                        first = got;
                        continue;
                    }
                    for (int i = 0; i < got.n_out; i++)
                        if (memcmp(got.out[i].host, first.out[i].host, (size_t)got.out[i].n * dtype_size(got.out[i].dtype)) != 0) {
                            print_error("%s size %d %s: %s on %s with %d threads is not the bits of %s\n", cases[c].name, size,
                                        t == DT_BF16 ? "bf16" : "fp32", got.out[i].name, variants[v].path, variants[v].n_thread,
                                        first.dev->what);
                            bad++;
                        }
                    run_release(&got);
                }
                run_release(&first);
            }
    for (size_t v = 0; v < ARRAY_SIZE(variants); v++)
        device_free(dev[v]);
    assert_int_equal(bad, 0);
}

static void get(struct run *r, void *host, const void *p, size_t size_bytes)
{
    assert_true(mem_copy(r->dev, host, p, size_bytes, COPY_D2H, &r->err));
    if (!device_sync(r->dev, &r->err))
        fail_msg("%s", r->err.text);
}

/* --- what an operation adds, it adds once --------------------------------------------------------------------------- */
struct adds_size {
    int64_t n, n_out, n_in;    // rows and widths; operations of one width take n_out
};
/* The call with inputs by r's seed, added to y (n_y of the size) and, where the operation has two results, y2. */
typedef bool adds_fn(struct run *r, const struct adds_size *s, void *y, void *y2);
static bool embed_bwd_adds(struct run *r, const struct adds_size *s, void *y, UNUSED void *y2)
{
    return OP(r->dev, &r->err, embed_bwd, .dtable = y, .dy = values(r, s->n * s->n_out), .row = ints(r, s->n, (int32_t)s->n_in), .n = s->n,
              .n_row = s->n_in, .d = s->n_out, .dtype = r->dtype);
}
static bool rmsnorm_bwd_adds(struct run *r, const struct adds_size *s, void *y, UNUSED void *y2)
{
    int64_t n = s->n, d = s->n_out;
    return OP(r->dev, &r->err, rmsnorm_bwd, .dw = y, .dy = values(r, n * d), .x = values(r, n * d), .w = values(r, d),
              .rstd = values_of(r, n, DT_F32, 1, 0.1), .n = n, .d = d, .dtype = r->dtype, .dx = mem_take(r, (size_t)(n * d) * 4));
}
static bool linear_bwd_w_adds(struct run *r, const struct adds_size *s, void *y, void *y2)
{
    return OP(r->dev, &r->err, linear_bwd_w, .dw = y, .dbias = y2, .dy = values(r, s->n * s->n_out), .x = values(r, s->n * s->n_in),
              .n = s->n, .n_out = s->n_out, .n_in = s->n_in, .dtype = r->dtype);
}
/* Set in place of what is there, NAN. */
static bool linear_bwd_w_sets(struct run *r, const struct adds_size *s, void *y, void *y2)
{
    return OP(r->dev, &r->err, mem_fill, .y = y, .size_bytes = (size_t)(s->n_out * s->n_in) * 4, .byte = 0xff)
           && OP(r->dev, &r->err, linear_bwd_w, .dw = y, .dbias = y2, .dy = values(r, s->n * s->n_out), .x = values(r, s->n * s->n_in),
                 .n = s->n, .n_out = s->n_out, .n_in = s->n_in, .dtype = r->dtype, .set = true);
}
static bool linear_bwd_x_adds(struct run *r, const struct adds_size *s, void *y, UNUSED void *y2)
{
    return OP(r->dev, &r->err, linear_bwd_x, .dx = y, .dy = values(r, s->n * s->n_out), .w = weight_of(r, s->n_out, s->n_in), .n = s->n,
              .accumulate = true);
}
static bool rope_bwd_adds(struct run *r, const struct adds_size *s, void *y, void *y2)
{
    struct attn_heads h = { (int)s->n_in, 2, (int)s->n_out };
    int64_t n = s->n, wide = (h.n_q + 2 * h.n_kv) * h.hd;
    return OP(r->dev, &r->err, rope_bwd, .dq_norm = y, .dk_norm = y2, .dqkv = values(r, n * wide), .qkv = values(r, n * wide),
              .cos = floats(r, N_POS * h.hd / 2), .sin = floats(r, N_POS * h.hd / 2), .pos = ints(r, n, N_POS), .q_norm = values(r, h.hd),
              .k_norm = values(r, h.hd), .n = n, .n_pos = N_POS, .heads = h, .eps = 1e-6f, .dtype = r->dtype);
}
enum adds_y {
    Y_NONE,
    Y_OUT,
    Y_IN,
    Y_TABLE,
    Y_ROWS,
};    // how many elements: n_out, n_in, their product, n * n_in
static const struct {
    const char *what;
    adds_fn *fn;
    enum adds_y y, y2;
    bool heads;        // n_out is a head's size, n_in the number of query heads
    bool f32;          // in bf16 y is not a gradient of weights, and axpy has nothing to say about it
    adds_fn *apart;    // another call that gives the sum alone; NULL: fn, on zeros
} adders[] = {
    { "embed_bwd", embed_bwd_adds, Y_TABLE, Y_NONE, false, false, NULL },
    { "rmsnorm_bwd", rmsnorm_bwd_adds, Y_OUT, Y_NONE, false, false, NULL },
    { "linear_bwd_w", linear_bwd_w_adds, Y_TABLE, Y_OUT, false, false, NULL },
    { "linear_bwd_w, set", linear_bwd_w_adds, Y_TABLE, Y_OUT, false, false, linear_bwd_w_sets },
    { "linear_bwd_x", linear_bwd_x_adds, Y_ROWS, Y_NONE, false, true, NULL },
    { "rope_bwd", rope_bwd_adds, Y_OUT, Y_OUT, true, false, NULL },
};
static int64_t adds_count(enum adds_y y, const struct adds_size *s)
{
    const int64_t n[] = { 0, s->n_out, s->n_in, s->n_out * s->n_in, s->n * s->n_in };
    return n[y];
}
/* Add to random numbers, and to zeros and then by axpy: the same bytes. Random y as large as what is added, so that where the
 * sum begins can be seen. Returns whether the call added anything at all. */
static bool adds_once(struct device *dev, size_t a, const struct adds_size *s, enum dtype t, uint64_t seed)
{
    struct run r = { .dev = dev, .rng = seed, .dtype = t };
    const int64_t n[2] = { adds_count(adders[a].y, s), adds_count(adders[a].y2, s) };
    void *begin[2], *once[2], *apart[2];
    double spread = sqrt((double)s->n + 1);
    bool moved = false;
    for (int k = 0; k < 2; k++) {
        begin[k] = n[k] ? values_of(&r, n[k], DT_F32, 0, spread) : NULL;
        once[k] = n[k] ? mem_take(&r, (size_t)n[k] * 4) : NULL;
        apart[k] = n[k] ? mem_take(&r, (size_t)n[k] * 4) : NULL;
        if (n[k]
            && (!mem_copy(dev, once[k], begin[k], (size_t)n[k] * 4, COPY_D2D, &r.err)
                || !OP(dev, &r.err, mem_fill, .y = apart[k], .size_bytes = (size_t)n[k] * 4)))
            fail_msg("%s: %s", adders[a].what, r.err.text);
    }
    uint64_t inputs = r.rng;
    for (int k = 0; k < 2; k++) {
        r.rng = inputs;
        adds_fn *fn = k && adders[a].apart ? adders[a].apart : adders[a].fn;
        if (!fn(&r, s, k ? apart[0] : once[0], k ? apart[1] : once[1]))
            fail_msg("%s: %s", adders[a].what, r.err.text);
    }
    for (int k = 0; k < 2 && n[k]; k++) {
        float *x = malloc((size_t)n[k] * 4), *y = malloc((size_t)n[k] * 4), *from = malloc((size_t)n[k] * 4);
        if (!OP(dev, &r.err, axpy, .y = begin[k], .x = apart[k], .n = n[k], .scale = 1))
            fail_msg("%s", r.err.text);
        get(&r, x, once[k], (size_t)n[k] * 4);
        get(&r, y, begin[k], (size_t)n[k] * 4);
        get(&r, from, apart[k], (size_t)n[k] * 4);
        for (int64_t i = 0; i < n[k] && !moved; i++)
            moved = from[i] != 0;
        bool same = memcmp(x, y, (size_t)n[k] * 4) == 0;
        for (int64_t i = 0; i < n[k] && !same; i++) {
            if (memcmp(&x[i], &y[i], 4) != 0)
                fail_msg("%s on %s, %s, %" PRId64 " rows, %" PRId64 " x %" PRId64 ": element %" PRId64
                         " of result %d is %.9g added in place, %.9g added once",
                         adders[a].what, dev->what, t == DT_BF16 ? "bf16" : "fp32", s->n, s->n_out, s->n_in, i, k, (double)x[i],
                         (double)y[i]);
        }
        free(x);
        free(y);
        free(from);
    }
    run_release(&r);
    return moved;
}

static void what_an_operation_adds_it_adds_once(UNUSED void **state)
{
    static const int64_t rows[] = { 0, 1, 2, 3, 63, 64, 65, 130, 511, 513, 1031 }, heads[] = { 16, 32, 64, 128 };
    static const char *const names[] = { "ref", "avx512", "avx2", "scalar" };
    const char *given = getenv("OPS_DEVICE");
    for (size_t v = 0; v < (given ? 1 : ARRAY_SIZE(names)); v++) {
        struct device *dev = given ? device_of(given, NULL, 0) : v == 0 ? device_of("ref", NULL, 0) : device_of("cpu:0", names[v], 2);
        struct run r = { .rng = 99 };
        if (!dev)
            continue;
        for (size_t a = 0; a < ARRAY_SIZE(adders); a++)
            for (int i = 0; i < 3 * (int)ARRAY_SIZE(rows); i++)
                for (enum dtype t = DT_F32; t <= (adders[a].f32 ? DT_F32 : DT_BF16); t++) {
                    bool eights = i % 3 == 0;    // widths that a library of products takes
                    struct adds_size s = { rows[i % (int)ARRAY_SIZE(rows)], 1 + (int64_t)(rng_next(&r) * 70),
                                           1 + (int64_t)(rng_next(&r) * 70) };
                    if (eights)
                        s.n_out = (s.n_out + 7) / 8 * 8, s.n_in = (s.n_in + 7) / 8 * 8;
                    if (adders[a].heads)
                        s.n_out = heads[s.n_out % 4], s.n_in = 2 + s.n_in % 3 * 2;
                    bool moved = adds_once(dev, a, &s, t, 7 + (uint64_t)i);
                    assert_true(moved == (s.n > 0));
                }
        device_free(dev);
    }
}

/* The parts of shards, end to end, are the parts of the whole: by bytes, for any number of shards. */
static void a_norms_parts_do_not_depend_on_the_shards(UNUSED void **state)
{
    static const int64_t sizes[] = { 1, 5, SUMSQ_BLOCK, SUMSQ_BLOCK + 1, 7 * SUMSQ_BLOCK - 3, 70001 };
    const char *given = getenv("OPS_DEVICE");
    for (int v = 0; v < (given ? 1 : 2); v++) {
        struct device *dev = device_of(given ? given : v ? "cpu:0" : "ref", NULL, 2);
        assert_non_null(dev);
        for (size_t k = 0; k < ARRAY_SIZE(sizes); k++) {
            struct run r = { .dev = dev, .rng = 11 };
            int64_t n = sizes[k], n_part = (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK;
            float *x = floats(&r, n);
            double *part = mem_take(&r, (size_t)n_part * sizeof *part), whole[16], shards[16];
            assert_true(OP(dev, &r.err, sumsq, .part = part, .x = x, .n = n));
            get(&r, whole, part, (size_t)n_part * sizeof *part);
            for (int n_rank = 1; n_rank <= 4; n_rank++) {
                double *apart = mem_take(&r, (size_t)n_part * sizeof *apart);
                for (int q = 0; q < n_rank; q++) {
                    int64_t first, m = collective_shard(n, n_rank, q, &first);
                    assert_true(m == 0 || first % SUMSQ_BLOCK == 0);
                    assert_true(OP(dev, &r.err, sumsq, .part = apart + (first + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK, .x = x + first, .n = m));
                }
                get(&r, shards, apart, (size_t)n_part * sizeof *apart);
                assert_memory_equal(shards, whole, (size_t)n_part * sizeof *whole);
            }
            run_release(&r);
        }
        device_free(dev);
    }
}

/* The gradients of real models' weights, where the library that multiplies chooses by shape. */
static void gradients_of_real_shapes_are_added_once(UNUSED void **state)
{
    static const struct {
        int64_t n_out, n_in;
    } shapes[] = {
        { 1152, 896 },   { 896, 896 },   { 9728, 896 },  { 896, 4864 },  { 151936, 896 }, { 2048, 1536 },
        { 17920, 1536 }, { 1536, 8960 }, { 4608, 3584 }, { 3584, 3584 }, { 37888, 3584 }, { 3584, 18944 },
    };
    static const int64_t rows[] = { 1, 7, 100, 333, 2048, 8192 };
    const char *name = getenv("OPS_DEVICE");
    if (!name || strncmp(name, "cuda", 4) != 0) {
        print_message("left out: a CPU's products do not depend on shape\n");
        skip();
    }
    struct device *dev = device_of(name, NULL, 0);
    for (size_t c = 0; c < ARRAY_SIZE(shapes); c++)
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
            struct adds_size s = { rows[i], shapes[c].n_out, shapes[c].n_in };
            if (s.n * (s.n_out + s.n_in) > (int64_t)400 << 20)
                continue;    // the head has fewer rows at a time
            assert_true(adds_once(dev, 2, &s, DT_BF16, 3));
        }
    device_free(dev);
}

/* --- a row alone and in a batch ------------------------------------------------------------------------------------ */
static void a_row_alone_gives_the_bits_it_has_in_a_batch(UNUSED void **state)
{
    const char *name = getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0";
    struct device *dev = device_of(name, NULL, 2);
    enum {
        N = 75,
        D = 128,
        F = 96,
        V = 517,
    };
    for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
        struct run r = { .dev = dev, .rng = 5, .dtype = t };
        size_t es = dtype_size(t);
        void *x = values(&r, N * D), *w_norm = values(&r, D), *y = mem_take(&r, N * D * es), *g = mem_take(&r, N * 2 * F * es);
        void *s = mem_take(&r, N * F * es);
        float *logits = mem_take(&r, N * V * 4), *logp = mem_take(&r, N * 4), *lse = mem_take(&r, N * 4);
        struct weight *up = weight_of(&r, 2 * F, D), *head = weight_of(&r, V, F);
        int32_t *id = ints(&r, N, V);
        static const int starts[] = { 0, 0, 1, 11, 12, 37, 74, 20 }, counts[] = { N, 1, 1, 3, 13, 32, 1, 55 };
        float *want = malloc((N * V + 2 * N) * 4), *got = malloc((N * V + 2 * N) * 4);
        for (size_t c = 0; c < ARRAY_SIZE(starts); c++) {
            int64_t i = starts[c], n = counts[c];
            assert_true(OP(dev, &r.err, rmsnorm_fwd, .x = (char *)x + i * D * (int64_t)es, .w = w_norm, .y = y, .n = n, .d = D,
                           .eps = 1e-5f, .dtype = t)
                        && OP(dev, &r.err, linear_fwd, .x = y, .w = up, .y = g, .n = n, .y_dtype = t)
                        && OP(dev, &r.err, swiglu_fwd, .gu = g, .y = s, .n = n, .f = F, .dtype = t)
                        && OP(dev, &r.err, linear_fwd, .x = s, .w = head, .y = logits, .n = n, .y_dtype = DT_F32)
                        && OP(dev, &r.err, logprob_fwd, .logits = logits, .id = id + i, .n = n, .vocab = V, .temperature = 0.9f,
                              .logp = logp, .lse = lse));
            float *to = c ? got : want;
            get(&r, to, logits, (size_t)(n * V) * 4);
            get(&r, to + N * V, logp, (size_t)n * 4);
            get(&r, to + N * V + N, lse, (size_t)n * 4);
            if (c == 0)
                continue;
            assert_memory_equal(got, want + i * V, (size_t)(n * V) * 4);
            assert_memory_equal(got + N * V, want + N * V + i, (size_t)n * 4);
            assert_memory_equal(got + N * V + N, want + N * V + N + i, (size_t)n * 4);
        }
        free(want);
        free(got);
        run_release(&r);
    }
    device_free(dev);
}

/* A GPU gives each thread less of a row where rows are few. */
static void a_norms_rows_have_the_same_bits_among_few_and_many(UNUSED void **state)
{
    static const int64_t width[] = { 896, 1032, 1536, 3584, 8192, 8200 };
    enum {
        MANY = 520,
        FEW = 3,
        FIRST = 511,
    };
    const char *name = getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0";
    struct device *dev = device_of(name, NULL, 2);
    for (int c = 0; c < 4 * (int)ARRAY_SIZE(width); c++) {
        enum dtype t = c & 1 ? DT_BF16 : DT_F32;
        struct run r = { .dev = dev, .rng = 29, .dtype = t };
        int64_t d = width[c / 4];
        size_t row = (size_t)d * dtype_size(t), few = FEW * row;
        char *x = values(&r, MANY * d), *add = c & 2 ? values(&r, MANY * d) : NULL, *y = mem_take(&r, MANY * row);
        char *sum = mem_take(&r, MANY * row), *want = malloc(2 * few), *got = want + few;
        void *w = values(&r, d);
        float *rstd = mem_take(&r, MANY * 4), of_many[FEW], of_few[FEW];
        assert_true(OP(dev, &r.err, rmsnorm_fwd, .y = y, .sum = add ? sum : NULL, .x = x, .add = add, .w = w, .rstd = rstd, .n = MANY,
                       .d = d, .eps = 1e-6f, .dtype = t));
        get(&r, want, y + FIRST * row, few);
        get(&r, of_many, rstd + FIRST, sizeof of_many);
        assert_true(OP(dev, &r.err, rmsnorm_fwd, .y = y, .sum = add ? sum + FIRST * row : NULL, .x = x + FIRST * row,
                       .add = add ? add + FIRST * row : NULL, .w = w, .rstd = rstd, .n = FEW, .d = d, .eps = 1e-6f, .dtype = t));
        get(&r, got, y, few);
        get(&r, of_few, rstd, sizeof of_few);
        if (memcmp(got, want, few) != 0 || memcmp(of_few, of_many, sizeof of_few) != 0)
            fail_msg("rows of %" PRId64 "%s, %s", d, add ? " with a sum" : "", t == DT_BF16 ? "bf16" : "fp32");
        free(want);
        run_release(&r);
    }
    device_free(dev);
}

/* The products of real models, where the library that multiplies chooses by shape: narrow deep weights, heads, biases. */
static void real_shapes_keep_a_rows_bits_whatever_the_batch(UNUSED void **state)
{
    static const struct {
        int64_t n_out, n_in;
        bool bias, f32;
        const char *what;
    } shapes[] = {
        { 1152, 896, true, false, "0.5B qkv" },    { 896, 4864, false, false, "0.5B down" }, { 9728, 896, false, false, "0.5B gate|up" },
        { 151936, 896, false, true, "0.5B head" }, { 2048, 1536, true, false, "1.5B qkv" },  { 1536, 8960, false, false, "1.5B down" },
        { 3584, 3584, false, false, "7B o" },      { 3584, 18944, false, false, "7B down" }, { 4096, 12288, false, false, "Qwen3-8B down" },
    };
    static const int64_t counts[] = { 1, 3, 8, 13, 64, 100, 256, 333, 600 };
    const char *name = getenv("OPS_DEVICE");
    if (!name || strncmp(name, "cuda", 4) != 0) {
        print_message("left out: minutes on a CPU, and a CPU's products do not depend on shape\n");
        skip();
    }
    struct device *dev = device_of(name, NULL, 0);
    enum {
        N = 601,
    };
    for (size_t c = 0; c < ARRAY_SIZE(shapes); c++) {
        struct run r = { .dev = dev, .rng = 3, .dtype = DT_BF16 };
        int64_t n_out = shapes[c].n_out, n_in = shapes[c].n_in;
        enum dtype y_dtype = shapes[c].f32 ? DT_F32 : DT_BF16;
        size_t row_bytes = (size_t)n_out * dtype_size(y_dtype);
        void *small = values(&r, 1 << 16), *data = mem_take(&r, (size_t)(n_out * n_in) * 2), *x = values(&r, N * n_in);
        for (int64_t at = 0; at < n_out * n_in; at += 65521)    // a prime: rows differ
            assert_true(mem_copy(dev, (char *)data + at * 2, small, (size_t)MIN(65521, n_out * n_in - at) * 2, COPY_D2D, &r.err));
        struct weight *w = r.weight[r.n_weight++] = weight_new(dev, data, DT_BF16, n_out, n_in, 0, false, &r.err);
        if (!w)
            fail_msg("%s", r.err.text);
        void *y = mem_take(&r, N * row_bytes), *bias = shapes[c].bias ? values(&r, n_out) : NULL;
        char *want = malloc(N * row_bytes), *got = malloc(N * row_bytes);
        if (!OP(dev, &r.err, linear_fwd, .y = y, .x = x, .w = w, .bias = bias, .n = N, .y_dtype = y_dtype))
            fail_msg("%s", r.err.text);
        get(&r, want, y, N * row_bytes);
        for (size_t k = 0; k < ARRAY_SIZE(counts); k++) {
            int64_t n = counts[k], first = k % 2 ? N - n : 0;
            assert_true(OP(dev, &r.err, mem_fill, .y = y, .size_bytes = (size_t)n * row_bytes, .byte = 0xff));
            assert_true(
                OP(dev, &r.err, linear_fwd, .y = y, .x = (char *)x + first * n_in * 2, .w = w, .bias = bias, .n = n, .y_dtype = y_dtype));
            get(&r, got, y, (size_t)n * row_bytes);
            if (memcmp(got, want + (size_t)first * row_bytes, (size_t)n * row_bytes) != 0)
                fail_msg("%s: %" PRId64 " rows do not have the bits they have among %d", shapes[c].what, n, N);
        }
        free(want);
        free(got);
        run_release(&r);
    }
    device_free(dev);
}

static void a_norm_that_finishes_a_product_gives_the_same_bits(UNUSED void **state)
{
    static const struct {
        int64_t n, n_out, n_in;
        bool bias;
        const char *why;
    } products[] = {
        { 37, 1024, 2048, true, "a GPU takes K in 2 parts" },
        { 5, 1536, 6144, false, "in 4" },
        { 3, 4608, 9216, false, "in 4, and rows that a norm reads twice" },
        { 9, 64, 64, true, "whole" },
    };
    const char *name = getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0";
    struct device *dev = device_of(name, NULL, 2);
    for (size_t c = 0; c < ARRAY_SIZE(products); c++) {
        struct run r = { .dev = dev, .rng = 21, .dtype = DT_BF16 };
        int64_t n = products[c].n, d = products[c].n_out;
        size_t row = (size_t)d * 2, all = (size_t)n * (2 * row + 4);
        struct weight *w = weight_of(&r, d, products[c].n_in);
        void *in = values(&r, n * products[c].n_in), *x = values(&r, n * d), *gain = values(&r, d);
        void *bias = products[c].bias ? values(&r, d) : NULL, *y = mem_take(&r, (size_t)n * row);
        char *out = mem_take(&r, all), *got[2] = { malloc(all), malloc(all) };
        for (int left = 0; left < 2; left++) {
            assert_true(OP(dev, &r.err, mem_fill, .y = out, .size_bytes = all, .byte = 0xff));
            assert_true(OP(dev, &r.err, linear_fwd, .y = y, .x = in, .w = w, .bias = bias, .n = n, .y_dtype = DT_BF16, .for_norm = left));
            assert_true(OP(dev, &r.err, rmsnorm_fwd, .y = out, .sum = out + (size_t)n * row, .x = x, .add = y, .w = gain,
                           .rstd = (float *)(out + (size_t)n * 2 * row), .n = n, .d = d, .eps = 1e-6f, .form = NORM_LLAMA,
                           .dtype = DT_BF16));
            get(&r, got[left], out, all);
        }
        if (memcmp(got[0], got[1], all) != 0)
            fail_msg("%" PRId64 " x %" PRId64 " (%s)", d, products[c].n_in, products[c].why);
        free(got[0]);
        free(got[1]);
        run_release(&r);
    }
    device_free(dev);
}

static void a_gate_computed_with_its_product_has_the_same_bits(UNUSED void **state)
{
    static const struct {
        int64_t n, f, n_in;
        bool bias;
        enum gate_act act;
        const char *why;
    } products[] = {
        { 1, 4864, 896, false, ACT_SILU, "one row of the smallest Qwen" },
        { 37, 4864, 896, true, ACT_GELU_TANH, "a bias for both halves, and rows that are no multiple of 8" },
        { 100, 4864, 896, false, ACT_SILU, "two warpgroups" },
        { 16, 8968, 1536, false, ACT_SILU, "the last block has less than its share" },
        { 9, 64, 64, true, ACT_SILU, "too small for blocks of both" },
    };
    const char *name = getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0";
    struct device *dev = device_of(name, NULL, 2);
    for (size_t c = 0; c < ARRAY_SIZE(products); c++) {
        struct run r = { .dev = dev, .rng = 23, .dtype = DT_BF16 };
        int64_t n = products[c].n, f = products[c].f;
        size_t all = (size_t)(n * f) * 2;
        struct weight *w = weight_of(&r, 2 * f, products[c].n_in);
        void *in = values(&r, n * products[c].n_in), *bias = products[c].bias ? values(&r, 2 * f) : NULL;
        void *gu = mem_take(&r, 2 * all), *y = mem_take(&r, all);
        char *got[2] = { malloc(all), malloc(all) };
        for (int left = 0; left < 2; left++) {
            assert_true(OP(dev, &r.err, mem_fill, .y = y, .size_bytes = all, .byte = 0xff));
            assert_true(OP(dev, &r.err, linear_fwd, .y = gu, .x = in, .w = w, .bias = bias, .n = n, .y_dtype = DT_BF16, .for_gate = left));
            assert_true(OP(dev, &r.err, swiglu_fwd, .y = y, .gu = gu, .n = n, .f = f, .act = products[c].act, .dtype = DT_BF16));
            get(&r, got[left], y, all);
        }
        if (memcmp(got[0], got[1], all) != 0)
            fail_msg("%" PRId64 " x %" PRId64 " (%s)", f, products[c].n_in, products[c].why);
        free(got[0]);
        free(got[1]);
        run_release(&r);
    }
    device_free(dev);
}

/* What ranks of a tensor-parallel product do: each has some neighbouring columns of the weight and gives its branch of the tree in
 * fp32, and tree_sum adds the branches and the bias. */
static void products_of_column_slices_sum_to_the_same_bits(UNUSED void **state)
{
    static const struct {
        int64_t n, n_out, n_in;
        int parts;
        bool bias;
    } shapes[] = { { 1, 64, 64, 4, false },      { 3, 72, 96, 4, true }, { 64, 136, 256, 8, true },
                   { 100, 200, 1024, 4, false }, { 7, 40, 32, 2, true }, { 600, 256, 448, 4, false } };
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 2);
    for (size_t c = 0; c < ARRAY_SIZE(shapes); c++)
        for (int t = 0; t < 2; t++) {
            struct run r = { .dev = dev, .rng = 5 + c, .dtype = t ? DT_BF16 : DT_F32, .parts = shapes[c].parts };
            int64_t n = shapes[c].n, n_out = shapes[c].n_out, n_in = shapes[c].n_in;
            size_t e = dtype_size(r.dtype), y_bytes = (size_t)(n * n_out) * e;
            void *x = values(&r, n * n_in), *bias = shapes[c].bias ? values(&r, n_out) : NULL, *y = mem_take(&r, y_bytes);
            const struct weight *w = weight_of(&r, n_out, n_in);
            char *want = malloc(y_bytes), *got = malloc(y_bytes);
            if (!OP(dev, &r.err, linear_fwd, .y = y, .x = x, .w = w, .bias = bias, .n = n, .y_dtype = r.dtype))
                fail_msg("%s", r.err.text);
            get(&r, want, y, y_bytes);
            for (int n_rank = 2; n_rank <= shapes[c].parts; n_rank *= 2) {
                int64_t k = n_in / n_rank;
                struct tree_sum sum = { .y = y, .bias = bias, .n_x = n_rank, .n = n, .d = n_out, .y_dtype = r.dtype, .dtype = r.dtype };
                struct weight *slice[SUM_PARTS_MAX];
                for (int q = 0; q < n_rank; q++) {
                    char *data = mem_take(&r, (size_t)(n_out * k) * e);
                    float *part = mem_take(&r, (size_t)(n * n_out) * sizeof *part);
                    sum.x[q] = part;
                    if (!OP(dev, &r.err, rows_copy, .y = data, .x = (const char *)w->data + (size_t)(q * k) * e, .n = n_out,
                            .row_bytes = (size_t)k * e, .ldy_bytes = (size_t)k * e, .ldx_bytes = (size_t)n_in * e)
                        || !(slice[q] = weight_new(dev, data, r.dtype, n_out, k, shapes[c].parts / n_rank, false, &r.err))
                        || !OP(dev, &r.err, linear_fwd, .y = part, .x = (char *)x + (size_t)(q * k) * e, .w = slice[q], .n = n, .ldx = n_in,
                               .y_dtype = DT_F32))
                        fail_msg("%s", r.err.text);
                }
                assert_true(OP(dev, &r.err, mem_fill, .y = y, .size_bytes = y_bytes, .byte = 0xff));
                if (!dev->op->tree_sum(dev, &sum, &r.err))
                    fail_msg("%s", r.err.text);
                get(&r, got, y, y_bytes);
                for (int q = 0; q < n_rank; q++)
                    weight_free(dev, slice[q]);
                if (memcmp(got, want, y_bytes) != 0)
                    fail_msg("%" PRId64 " x %" PRId64 " in %d parts: %d slices give other bits than the whole", n_out, n_in,
                             shapes[c].parts, n_rank);
            }
            free(want);
            free(got);
            run_release(&r);
        }
    device_free(dev);
}

/* Devices of a team have parts of different numbers, so a back end that adds in another way than step by step must give the same bits. */
static void a_tree_over_rows_has_the_bits_of_its_steps(UNUSED void **state)
{
    static const struct tree_rows shapes[] = {
        { 700, 256, 4, 3, { 224, 32, 32 }, 1152 },    // heads of the 0.5B
        { 1030, 384, 4, 3, { 128, 64, 64 }, 1024 }, { 600, 128, 2, 3, { 160, 48, 48 }, 512 },
        { 600, 128, 1, 3, { 64, 16, 16 }, 96 },     { 513, 256, 4, 2, { 160, 160 }, 1280 },    // gate and up
        { 530, 128, 8, 2, { 40, 40 }, 640 },        { 520, 128, 4, 1, { 104 }, 408 },          // a vocabulary
        { 9, 128, 4, 2, { 48, 48 }, 384 },
    };
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 2);
    for (size_t c = 0; c < ARRAY_SIZE(shapes); c++)
        for (int k = 0; k < 3; k++) {
            const struct tree_rows *s = &shapes[c];
            struct run r = { .dev = dev, .rng = 7 + c, .dtype = k ? DT_BF16 : DT_F32, .parts = 1 };
            enum dtype t = k == 1 ? DT_BF16 : DT_F32;
            size_t y_bytes = (size_t)(s->n * s->n_in) * dtype_size(t);
            struct linear_bwd_tree a;
            void *y = mem_take(&r, y_bytes);
            char *want = malloc(y_bytes), *got = malloc(y_bytes);
            if (!tree_of_rows(&r, s, y, t, &a))
                fail_msg("%s", r.err.text);
            get(&r, got, y, y_bytes);
            struct tree_sum tree = { .y = y, .n_x = s->n_part, .n = s->n, .d = s->n_in, .y_dtype = t, .dtype = r.dtype };
            for (int p = 0; p < s->n_part; p++) {
                float *to = a.part + p * s->n * s->n_in;
                tree.x[p] = to;
                for (int i = 0; i < s->n_seg; i++) {
                    int64_t first = a.seg[i].at + p * s->each[i], n_k = MIN(s->each[i], a.seg[i].end - first);
                    if (!OP(dev, &r.err, linear_bwd_x, .dx = to, .dy = (const char *)a.dy + (size_t)first * dtype_size(r.dtype), .w = a.w,
                            .n = s->n, .lddy = s->n_out, .first = first, .n_k = n_k, .accumulate = i > 0, .f32 = true))
                        fail_msg("%s", r.err.text);
                }
            }
            if (!dev->op->tree_sum(dev, &tree, &r.err))
                fail_msg("%s", r.err.text);
            get(&r, want, y, y_bytes);
            if (memcmp(got, want, y_bytes) != 0)
                fail_msg("%" PRId64 " rows, %d parts of %" PRId64 ", %s", s->n, s->n_part, s->each[0], k == 0 ? "fp32" : "bf16");
            free(want);
            free(got);
            run_release(&r);
        }
    device_free(dev);
}

static const struct attn_heads all_sizes[] = { { 2, 1, 16 }, { 4, 2, 32 }, { 6, 2, 64 }, { 3, 1, 96 }, { 7, 1, 128 }, { 2, 1, 256 } };
/* Three sequences packed; each alone; and each token by token over pages, all three in one batch, which on a GPU has them many times, too: more
 * of them are shared out in another way. */
static void attention_gives_the_same_bits_packed_alone_and_decoded(UNUSED void **state)
{
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 2);
    static const int32_t seq[] = { 0, 70, 71, 331 };
    enum {
        N_SEQ = 3,
        N = 331,
        MAX_LEN = 260,    // into a third tile
        MANY = 180,       // times: more than a GPU has places for at once
    };
    int most = getenv("OPS_DEVICE") && strncmp(getenv("OPS_DEVICE"), "cuda", 4) == 0 ? MANY : 1;
    int n_size = (int)ARRAY_SIZE(all_sizes);
    for (int k = 0; k < n_size * 2; k++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct run r = { .dev = dev, .rng = 5, .dtype = t, .size = (k + 1) % N_SIZE, .other = k >= n_size };
            struct attn_heads h = all_sizes[k % n_size];
            struct attn_bounds bounds = bounds_of(&r);
            size_t row_in = (size_t)((h.n_q + 2 * h.n_kv) * h.hd) * dtype_size(t), row_out = (size_t)(h.n_q * h.hd) * dtype_size(t);
            int64_t max_page = (MAX_LEN + dev->kv_page_tok - 1) / dev->kv_page_tok;
            void *qkv = values(&r, N * (h.n_q + 2 * h.n_kv) * h.hd), *out = mem_take(&r, N * row_out);
            char *want = malloc(N * row_out), *got = malloc((size_t)MAX(N, N_SEQ * MANY) * row_out);
            assert_true(OP(dev, &r.err, attn_fwd, .qkv = qkv, .n = N, .n_seq = N_SEQ, .seq = put(&r, seq, sizeof seq), .seq_host = seq,
                           .heads = h, .bounds = bounds, .dtype = t, .out = out));
            get(&r, want, out, N * row_out);
            for (int s = 0; s < N_SEQ; s++) {
                int32_t alone[2] = { 0, seq[s + 1] - seq[s] };
                assert_true(OP(dev, &r.err, attn_fwd, .qkv = (char *)qkv + (size_t)seq[s] * row_in, .n = alone[1], .n_seq = 1,
                               .seq = put(&r, alone, sizeof alone), .seq_host = alone, .heads = h, .bounds = bounds, .dtype = t,
                               .out = out));
                get(&r, got, out, (size_t)alone[1] * row_out);
                assert_memory_equal(got, want + (size_t)seq[s] * row_out, (size_t)alone[1] * row_out);
            }
            for (int times = 1; times <= most; times += MANY - 1) {
                int n_seq = N_SEQ * times, n_page = n_seq * (int)max_page, step = n_page % 7 ? 7 : 11;
                void *kv = mem_take(&r, (size_t)n_page * kv_page_bytes(dev, h, t));    // of NaN
                /* no rotation, so that pages get the packed keys: cos 1, sin 0 */
                float *one = values_of(&r, h.hd / 2, DT_F32, 1, 0), *zero = values_of(&r, h.hd / 2, DT_F32, 0, 0);
                int32_t *page = malloc((size_t)n_page * 4), slot[N_SEQ * MANY], kv_len[N_SEQ * MANY], row[N_SEQ * MANY];
                int32_t pos[N_SEQ * MANY] = { 0 };
                void *batch = mem_take(&r, (size_t)n_seq * row_in), *many = mem_take(&r, (size_t)n_seq * row_out);
                void *dev_len = mem_take(&r, sizeof kv_len), *dev_slot = mem_take(&r, sizeof slot), *dev_row = mem_take(&r, sizeof row);
                void *dev_pos = put(&r, pos, sizeof pos);
                assert_int_not_equal(n_page % step, 0);    // a prime that does not divide it: pages are scattered
                for (int i = 0; i < n_page; i++)
                    page[i] = (int32_t)((i * step + 2) % n_page);
                void *dev_page = put(&r, page, (size_t)n_page * 4);
                for (int i = 0; i < MAX_LEN; i++) {
                    for (int b = 0; b < n_seq; b++) {
                        int s = b % N_SEQ;
                        bool there = i < seq[s + 1] - seq[s];
                        row[b] = seq[s] + (there ? i : 0);
                        kv_len[b] = there ? i + 1 : 0;
                        slot[b] = there ? page[b * max_page + i / dev->kv_page_tok] * dev->kv_page_tok + i % dev->kv_page_tok : -1;
                    }
                    assert_true(mem_copy(dev, dev_len, kv_len, sizeof kv_len, COPY_H2D, &r.err));
                    assert_true(mem_copy(dev, dev_slot, slot, sizeof slot, COPY_H2D, &r.err));
                    assert_true(mem_copy(dev, dev_row, row, sizeof row, COPY_H2D, &r.err));
                    assert_true(OP(dev, &r.err, rows_gather, .y = batch, .table = qkv, .row = dev_row, .n = n_seq, .n_row = N,
                                   .d = (h.n_q + 2 * h.n_kv) * h.hd, .dtype = t));
                    /* attention finds the new keys in the pool, or writes them itself */
                    assert_true(OP(dev, &r.err, rope_fwd, .out = batch, .qkv = batch, .cos = one, .sin = zero, .pos = dev_pos, .kv = kv,
                                   .slot = dev_slot, .n = n_seq, .n_pos = 1, .heads = h, .dtype = t, .for_decode = i % 3 != 0));
                    assert_true(OP(dev, &r.err, attn_paged, .qkv = batch, .kv = kv, .page = dev_page, .kv_len = dev_len, .n = n_seq,
                                   .n_seq = n_seq, .max_page = max_page, .max_q = 1, .max_kv = i + 1, .heads = h, .bounds = bounds,
                                   .dtype = t, .out = many));
                    get(&r, got, many, (size_t)n_seq * row_out);
                    for (int b = 0; b < n_seq; b++)
                        if (kv_len[b] && memcmp(got + (size_t)b * row_out, want + (size_t)row[b] * row_out, row_out) != 0)
                            fail_msg("token %d of sequence %d, %d in a batch, heads of %d: decode is not the bits of the packed forward", i,
                                     b, n_seq, h.hd);
                }
                free(page);
            }
            free(want);
            free(got);
            run_release(&r);
        }
    device_free(dev);
}

/* Many sequences packed, so that a GPU's multiprocessors all have work; and the first two alone, which may be shared out in another way. */
static void a_sequences_gradient_has_the_same_bits_packed_and_alone(UNUSED void **state)
{
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 2);
    enum {
        N_SEQ = 70,
        LONG = 131,    // into a third tile
        PAIR = LONG + 5,
        N = N_SEQ / 2 * PAIR,
    };
    int32_t seq[N_SEQ + 1];
    for (int s = 0; s <= N_SEQ; s++)
        seq[s] = s / 2 * PAIR + s % 2 * LONG;
    int n_size = (int)ARRAY_SIZE(all_sizes);
    for (int k = 0; k < n_size * 2; k++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct run r = { .dev = dev, .rng = 5, .dtype = t, .size = (k + 1) % N_SIZE, .other = k >= n_size };
            struct attn_heads h = all_sizes[k % n_size];
            struct attn_bounds bounds = bounds_of(&r);
            int64_t wide = (h.n_q + 2 * h.n_kv) * h.hd, out_wide = h.n_q * h.hd;
            size_t es = dtype_size(t), row = (size_t)wide * es;
            char *qkv = values(&r, N * wide), *dout = values(&r, N * out_wide), *out = mem_take(&r, (size_t)(N * out_wide) * es);
            float *lse = mem_take(&r, (size_t)(N * h.n_q) * 4);
            void *dqkv = mem_take(&r, N * row);
            char *want = malloc(N * row), *got = malloc(LONG * row);
            assert_true(OP(dev, &r.err, attn_fwd, .qkv = qkv, .n = N, .n_seq = N_SEQ, .seq = put(&r, seq, sizeof seq), .seq_host = seq,
                           .heads = h, .bounds = bounds, .dtype = t, .out = out, .lse = lse)
                        && OP(dev, &r.err, attn_bwd, .qkv = qkv, .n = N, .n_seq = N_SEQ, .seq = put(&r, seq, sizeof seq), .seq_host = seq,
                              .heads = h, .bounds = bounds, .dtype = t, .out = out, .lse = lse, .dout = dout, .dqkv = dqkv));
            get(&r, want, dqkv, N * row);
            for (int s = 0; s < 2; s++) {
                int32_t alone[2] = { 0, seq[s + 1] - seq[s] };
                size_t at = (size_t)seq[s] * (size_t)out_wide * es;
                assert_true(OP(dev, &r.err, attn_bwd, .qkv = qkv + (size_t)seq[s] * row, .n = alone[1], .n_seq = 1,
                               .seq = put(&r, alone, sizeof alone), .seq_host = alone, .heads = h, .bounds = bounds, .dtype = t,
                               .out = out + at, .lse = lse + seq[s] * h.n_q, .dout = dout + at, .dqkv = dqkv));
                get(&r, got, dqkv, (size_t)alone[1] * row);
                if (memcmp(got, want + (size_t)seq[s] * row, (size_t)alone[1] * row) != 0)
                    fail_msg("sequence %d, heads of %d, %s%s", s, h.hd, t == DT_BF16 ? "bf16" : "fp32", r.other ? ", bounds" : "");
            }
            free(want);
            free(got);
            run_release(&r);
        }
    device_free(dev);
}

/* Sequences of many lengths, with the products by mma.sync and by wgmma; all keys, a window, and one with a cap. */
static void both_matrix_instructions_give_attention_the_same_bits(UNUSED void **state)
{
    const char *name = getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", *set = getenv("RC_CUDA_PATH");
    char *before = set ? strdup(set) : NULL;
    static const int32_t seq[] = { 0, 1, 64, 130, 257, 700, 1500 };
    enum {
        N_SEQ = 6,
        N = 1500,
    };
    struct device *dev[2] = { NULL };
    if (strncmp(name, "cuda", 4) != 0)
        skip();    // a CPU has neither
    struct error err;
    setenv("RC_CUDA_PATH", "volta", 1);
    assert_null(device_new(name, 0, &err));
    assert_non_null(strstr(err.text, "'volta'; it may be hopper or ampere"));
    setenv("RC_CUDA_PATH", "ampere", 1);
    assert_non_null(dev[0] = device_of(name, NULL, 0));
    setenv("RC_CUDA_PATH", "hopper", 1);
    dev[1] = device_of(name, NULL, 0);
    static const struct attn_bounds each[] = { { 0 }, { .window = 200 }, { .window = 37, .cap = 3 } };
    for (size_t k = 0; dev[1] && k < ARRAY_SIZE(all_sizes) * ARRAY_SIZE(each); k++) {
        struct attn_heads h = all_sizes[k / ARRAY_SIZE(each)];
        struct attn_bounds bounds = each[k % ARRAY_SIZE(each)];
        size_t n_out = (size_t)N * (size_t)(h.n_q * h.hd), n_lse = (size_t)N * (size_t)h.n_q;
        char *out[2];
        for (int d = 0; d < 2; d++) {
            struct run r = { .dev = dev[d], .rng = 11, .dtype = DT_BF16 };
            void *qkv = values_of(&r, N * (h.n_q + 2 * h.n_kv) * h.hd, DT_BF16, 0, 2), *y = mem_take(&r, n_out * 2);
            float *lse = mem_take(&r, n_lse * 4);
            assert_true(OP(dev[d], &r.err, attn_fwd, .qkv = qkv, .n = N, .n_seq = N_SEQ, .seq = put(&r, seq, sizeof seq), .seq_host = seq,
                           .heads = h, .bounds = bounds, .dtype = DT_BF16, .out = y, .lse = lse));
            out[d] = malloc(n_out * 2 + n_lse * 4);
            get(&r, out[d], y, n_out * 2);
            get(&r, out[d] + n_out * 2, lse, n_lse * 4);
            run_release(&r);
        }
        if (memcmp(out[0], out[1], n_out * 2 + n_lse * 4) != 0)
            fail_msg("heads of %d, window %" PRId64 ": mma.sync and wgmma give different bits", h.hd, bounds.window);
        free(out[0]);
        free(out[1]);
    }
    for (int d = 0; d < 2; d++)
        device_free(dev[d]);
    before ? setenv("RC_CUDA_PATH", before, 1) : unsetenv("RC_CUDA_PATH");
    free(before);
}

/* --- sampling ------------------------------------------------------------------------------------------------------ */
static void a_sampled_token_has_the_bits_of_the_heads_logp(UNUSED void **state)
{
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 2);
    struct run r = { .dev = dev, .rng = 9 };
    enum {
        N = 40,
        V = 1003,
    };
    float *logits = values_of(&r, N * V, DT_F32, 0, 2), *logp = mem_take(&r, N * 4), *again = mem_take(&r, N * 4);
    int32_t *id = mem_take(&r, N * 4);
    struct sample_row row[N];
    for (int i = 0; i < N; i++)
        row[i] = (struct sample_row){ .seed = 1, .item = 9, .sample = i, .pos = 4, .temperature = 0.7f, .top_p = 0.9f };
    float one[N], two[N];
    assert_true(OP(dev, &r.err, sample_fwd, .logits = logits, .row = put(&r, row, sizeof row), .id = id, .logp = logp, .n = N, .vocab = V));
    assert_true(OP(dev, &r.err, logprob_fwd, .logits = logits, .id = id, .logp = again, .n = N, .vocab = V, .temperature = 0.7f));
    get(&r, one, logp, sizeof one);
    get(&r, two, again, sizeof two);
    assert_memory_equal(one, two, sizeof one);
    run_release(&r);
    device_free(dev);
}

static void draws_follow_the_filtered_distribution(UNUSED void **state)
{
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 2);
    enum {
        N = 4000,
        V = 8,
    };
    static const float z[V] = { 2, 1, 0, -1, 1.5f, -3, 0.5f, 1 };
    static const struct {
        float temperature, top_p, min_p;
        int top_k;
        double want[V];
        const char *why;
        int n_ban, ban[2];
    } rules[] = {
        { 1, 1, 0, 0, { 7.3891, 2.7183, 1, 0.3679, 4.4817, 0.0498, 1.6487, 2.7183 }, "softmax: e^z" },
        { 1, 1, 0, 2, { 0.6225, 0, 0, 0, 0.3775, 0, 0, 0 }, "the two largest" },
        { 1, 1, 0, 3, { 0.4270, 0.1571, 0, 0, 0.2589, 0, 0, 0.1571 }, "equals of the third stay with it" },
        { 1, 0.5f, 0, 0, { 0.6225, 0, 0, 0, 0.3775, 0, 0, 0 }, "0.36 is below a half, 0.58 reaches it" },
        { 1, 1, 0.3f, 0, { 0.4270, 0.1571, 0, 0, 0.2589, 0, 0, 0.1571 }, "not below 0.3 of the largest: e^-1 = 0.37 stays, e^-1.5 goes" },
        { 0, 1, 0, 0, { 1 }, "greedy" },
        { 1, 1, 0, 0, { 0, 2.7183, 1, 0.3679, 0, 0.0498, 1.6487, 2.7183 }, "without the two largest", 2, { 4, 0 } },
        { 1, 1, 0, 2, { 0, 0.5, 0, 0, 0, 0, 0, 0.5 }, "the two largest of those that may be drawn", 2, { 0, 4 } },
        { 1, 0.6f, 0, 0, { 0.7311, 0.2689, 0, 0, 0, 0, 0, 0 }, "0.56 of what may be drawn is below 0.6", 2, { 4, 7 } },
        { 1, 1, 0.3f, 0, { 0, 0.1571, 0, 0, 0.2589, 0, 0.0953, 0.1571 }, "0.3 of the largest that may be drawn", 1, { 0 } },
        { 0, 1, 0, 0, { 0, 0, 0, 0, 1 }, "greedy without the largest", 1, { 0 } },
    };
    for (size_t c = 0; c < ARRAY_SIZE(rules); c++) {
        struct run r = { .dev = dev };
        float *all = malloc(N * V * sizeof *all);
        struct sample_row *row = malloc(N * sizeof *row);
        int32_t *id = malloc(N * sizeof *id), *dev_id = mem_take(&r, N * 4), *ban = calloc(N * SAMPLE_BAN_MAX, sizeof *ban);
        float *logp = malloc(N * sizeof *logp), *dev_logp = mem_take(&r, N * 4);
        for (int i = 0; i < N; i++) {
            memcpy(all + i * V, z, sizeof z);
            row[i] = (struct sample_row){ .seed = 3,
                                          .item = i / 50,
                                          .sample = i % 50,
                                          .pos = 17,
                                          .temperature = rules[c].temperature,
                                          .top_p = rules[c].top_p,
                                          .min_p = rules[c].min_p,
                                          .top_k = rules[c].top_k,
                                          .n_ban = rules[c].n_ban };
            memcpy(ban + i * SAMPLE_BAN_MAX, rules[c].ban, sizeof rules[c].ban);
        }
        assert_true(OP(dev, &r.err, sample_fwd, .logits = put(&r, all, N * V * 4), .row = put(&r, row, N * sizeof *row),
                       .ban = put(&r, ban, N * SAMPLE_BAN_MAX * sizeof *ban), .id = dev_id, .logp = dev_logp, .n = N, .vocab = V));
        get(&r, id, dev_id, N * 4);
        get(&r, logp, dev_logp, N * 4);
        for (int i = 0; i < N; i++)    // of the whole distribution
            assert_float_equal(logp[i], z[id[i]] - log(7.3891 + 2 * 2.7183 + 1 + 0.3679 + 4.4817 + 0.0498 + 1.6487), 1e-5);
        double share[V] = { 0 }, total = 0;
        for (int i = 0; i < N; i++)
            share[id[i]] += 1.0 / N;
        for (int j = 0; j < V; j++)
            total += rules[c].want[j];
        for (int j = 0; j < V; j++) {
            double want = rules[c].want[j] / total, spread = sqrt(want * (1 - want) / N);
            if (fabs(share[j] - want) > 4.5 * spread + 1e-9)    // fixed seed: this cannot come and go
                fail_msg("%s: id %d drawn %.4f of the time, not %.4f", rules[c].why, j, share[j], want);
        }
        free(all);
        free(row);
        free(id);
        free(ban);
        free(logp);
        run_release(&r);
    }
    device_free(dev);
}

/* A row's bits are those of the same row without bans whose banned logits are -inf, but for log-prob and entropy, which are the whole row's. */
static void an_end_that_is_nearly_certain_can_be_banned(UNUSED void **state)
{
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 2);
    enum {
        V = 3000,
        N = 8,
    };
    struct run r = { .dev = dev };
    float *z = malloc(2 * N * V * sizeof *z), logp[2 * N];
    struct sample_row row[2 * N];
    int32_t ban[2 * N * SAMPLE_BAN_MAX] = { 0 }, id[2 * N], *dev_id = mem_take(&r, sizeof id);
    float *dev_logp = mem_take(&r, sizeof logp);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < V; j++)
            z[i * V + j] = z[(N + i) * V + j] = (float)((i * 131 + j * 7919) % 1000) / 250;
        z[i * V + 77] = 200;    // e^-200 is 0 in fp32: what is left must be summed on its own
        z[(N + i) * V + 77] = -INFINITY;
        row[i] = (struct sample_row){ .seed = 5, .item = i, .temperature = 1, .top_p = i & 1 ? 0.9f : 1, .top_k = i & 2 ? 20 : 0 };
        row[N + i] = row[i];
        row[i].n_ban = 1;
        ban[i * SAMPLE_BAN_MAX] = 77;
    }
    assert_true(OP(dev, &r.err, sample_fwd, .logits = put(&r, z, 2 * N * V * 4), .row = put(&r, row, sizeof row),
                   .ban = put(&r, ban, sizeof ban), .id = dev_id, .logp = dev_logp, .n = 2 * N, .vocab = V));
    get(&r, id, dev_id, sizeof id);
    get(&r, logp, dev_logp, sizeof logp);
    for (int i = 0; i < N; i++) {
        assert_int_equal(id[i], id[N + i]);
        assert_true(id[i] != 77);
        assert_float_equal(logp[i], z[i * V + id[i]] - 200, 1e-4);
    }
    free(z);
    run_release(&r);
    device_free(dev);
}

/* The known answer of Random123's kat_vectors for philox4x32 10, zeros and ones. */
static void philox_gives_the_known_answers(UNUSED void **state)
{
    uint32_t zero[4] = { 0 }, ones[4] = { ~0u, ~0u, ~0u, ~0u };
    static const uint32_t want_zero[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
    static const uint32_t want_ones[4] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
    philox_4x32(zero, 0, 0);
    philox_4x32(ones, ~0u, ~0u);
    assert_memory_equal(zero, want_zero, sizeof zero);
    assert_memory_equal(ones, want_ones, sizeof ones);
}

/* --- gradients of ref against finite differences ------------------------------------------------------------------- */
/* Loss sum(g y) of an operation's output y for its inputs; each input's gradient as the backward gives it. */
struct gradient {
    struct run *r;
    float *in[4], *din[4];    // inputs and their gradients
    int64_t n_in[4];
    float *y, *g;
    int64_t n_y;
    bool (*fwd)(struct gradient *q);
    bool (*bwd)(struct gradient *q);
    const char *name;
    float *rstd;    // whatever the operation keeps between the two
    struct weight *w;
    int64_t n, d;
    struct attn_heads heads;
    const int32_t *seq, *pos;
    float *cosine, *sine;
    bool other;    // as run.other
};
static double loss_of(struct gradient *q)
{
    double sum = 0;
    if (!q->fwd(q))
        fail_msg("%s: %s", q->name, q->r->err.text);
    for (int64_t i = 0; i < q->n_y; i++)
        sum += (double)q->y[i] * q->g[i];
    return sum;
}
/* Along a random direction of each input: (L(x + e v) - L(x - e v)) / 2 e against <gradient, v>. */
static void gradient_check(struct gradient *q)
{
    struct run *r = q->r;
    loss_of(q);
    if (!q->bwd(q))
        fail_msg("%s: %s", q->name, r->err.text);
    for (int k = 0; k < 4; k++) {
        if (!q->in[k] || !q->din[k])
            continue;
        float *kept = malloc((size_t)q->n_in[k] * 4), *v = malloc((size_t)q->n_in[k] * 4);
        double want = 0, size = 0, eps = 4e-3;
        memcpy(kept, q->in[k], (size_t)q->n_in[k] * 4);
        for (int64_t i = 0; i < q->n_in[k]; i++) {
            v[i] = (float)rng_normal(r);
            want += (double)q->din[k][i] * v[i];
            size += (double)q->din[k][i] * q->din[k][i];
        }
        double side[2];
        for (int s = 0; s < 2; s++) {
            for (int64_t i = 0; i < q->n_in[k]; i++)
                q->in[k][i] = (float)(kept[i] + (s ? -eps : eps) * v[i]);
            if (q->w)
                assert_true(weight_refresh(r->dev, q->w, &r->err));
            side[s] = loss_of(q);
        }
        memcpy(q->in[k], kept, (size_t)q->n_in[k] * 4);
        double slope = (side[0] - side[1]) / (2 * eps);
        if (!(fabs(slope - want) <= 1.5e-3 * sqrt(size)))
            fail_msg("%s: input %d: slope %.6g, gradient says %.6g (norm %.3g)", q->name, k, slope, want, sqrt(size));
        free(kept);
        free(v);
    }
}
static float *zeros(struct run *r, int64_t n)
{
    return values_of(r, n, DT_F32, 0, 0);
}
static bool fd_rmsnorm(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, rmsnorm_fwd, .x = q->in[0], .w = q->in[1], .y = q->y, .rstd = q->rstd, .n = q->n, .d = q->d,
              .form = q->other ? NORM_GEMMA : NORM_LLAMA, .eps = 1e-6f);
}
static bool fd_rmsnorm_bwd(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, rmsnorm_bwd, .x = q->in[0], .w = q->in[1], .dy = q->g, .rstd = q->rstd, .n = q->n, .d = q->d,
              .form = q->other ? NORM_GEMMA : NORM_LLAMA, .dx = q->din[0], .dw = q->din[1]);
}
static bool fd_linear(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, linear_fwd, .x = q->in[0], .w = q->w, .bias = q->in[2], .y = q->y, .n = q->n);
}
static bool fd_linear_bwd(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, linear_bwd_x, .dx = q->din[0], .dy = q->g, .w = q->w, .n = q->n)
           && OP(q->r->dev, &q->r->err, linear_bwd_w, .dw = q->din[1], .dbias = q->din[2], .dy = q->g, .x = q->in[0], .n = q->n,
                 .n_out = q->w->n_out, .n_in = q->w->n_in);
}
static bool fd_rope(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, rope_fwd, .qkv = q->in[0], .q_norm = q->in[1], .k_norm = q->in[2], .out = q->y, .n = q->n,
              .n_pos = N_POS, .pos = q->pos, .cos = q->cosine, .sin = q->sine, .heads = q->heads, .rot = q->other ? 6 : 0,
              .form = q->other ? NORM_GEMMA : NORM_LLAMA, .eps = 1e-6f);
}
static bool fd_rope_bwd(struct gradient *q)
{
    memcpy(q->din[0], q->g, (size_t)q->n_y * 4);
    return OP(q->r->dev, &q->r->err, rope_bwd, .qkv = q->in[0], .q_norm = q->in[1], .k_norm = q->in[2], .dqkv = q->din[0],
              .dq_norm = q->din[1], .dk_norm = q->din[2], .n = q->n, .n_pos = N_POS, .pos = q->pos, .cos = q->cosine, .sin = q->sine,
              .heads = q->heads, .rot = q->other ? 6 : 0, .form = q->other ? NORM_GEMMA : NORM_LLAMA, .eps = 1e-6f);
}
static struct attn_bounds fd_bounds(const struct gradient *q)
{
    return q->other ? (struct attn_bounds){ .window = 3, .cap = 1.5f } : (struct attn_bounds){ 0 };
}
static bool fd_attn(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, attn_fwd, .qkv = q->in[0], .out = q->y, .lse = q->rstd, .n = q->n, .n_seq = 3, .seq = q->seq,
              .seq_host = q->seq, .heads = q->heads, .bounds = fd_bounds(q));
}
static bool fd_attn_bwd(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, attn_bwd, .qkv = q->in[0], .out = q->y, .lse = q->rstd, .dout = q->g, .dqkv = q->din[0], .n = q->n,
              .n_seq = 3, .seq = q->seq, .seq_host = q->seq, .heads = q->heads, .bounds = fd_bounds(q));
}
static bool fd_swiglu(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, swiglu_fwd, .gu = q->in[0], .y = q->y, .n = q->n, .f = q->d,
              .act = q->other ? ACT_GELU_TANH : ACT_SILU);
}
static bool fd_swiglu_bwd(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, swiglu_bwd, .gu = q->in[0], .dy = q->g, .dgu = q->din[0], .n = q->n, .f = q->d,
              .act = q->other ? ACT_GELU_TANH : ACT_SILU);
}
/* With a cap: of the capped copy of the logits, which is kept between the two. */
static float *fd_capped(struct gradient *q)
{
    if (!q->other)
        return q->in[0];
    memcpy(q->cosine, q->in[0], (size_t)(q->n * q->d) * 4);
    return OP(q->r->dev, &q->r->err, softcap, .x = q->cosine, .n = q->n * q->d, .cap = 1.5f) ? q->cosine : NULL;
}
static bool fd_logprob(struct gradient *q)
{
    float *logits = fd_capped(q);
    return logits
           && OP(q->r->dev, &q->r->err, logprob_fwd, .logits = logits, .id = q->pos, .n = q->n, .vocab = q->d, .temperature = 0.7f,
                 .logp = q->y, .lse = q->rstd);
}
static bool fd_logprob_bwd(struct gradient *q)
{
    return OP(q->r->dev, &q->r->err, logprob_bwd, .logits = q->other ? q->cosine : q->in[0], .cap = q->other ? 1.5f : 0, .id = q->pos,
              .n = q->n, .vocab = q->d, .temperature = 0.7f, .coef = q->g, .lse = q->rstd, .dlogits = q->din[0]);
}

static void backwards_of_ref_are_the_slopes_of_its_forwards(UNUSED void **state)
{
    struct device *dev = device_of("ref", NULL, 0);
    static const int32_t seq[] = { 0, 9, 10, 21 };
    struct attn_heads h = { 4, 2, 16 };
    struct run r = { .dev = dev, .rng = 77 };
    int64_t n = 21, d = 40, wide = 8 * 16;
    for (int other = 0; other < 2; other++)
        gradient_check(&(struct gradient){ .r = &r,
                                           .other = other,
                                           .name = "rmsnorm",
                                           .in = { floats(&r, n * d), floats(&r, d) },
                                           .n_in = { n * d, d },
                                           .din = { zeros(&r, n * d), zeros(&r, d) },
                                           .y = floats(&r, n * d),
                                           .g = floats(&r, n * d),
                                           .n_y = n * d,
                                           .fwd = fd_rmsnorm,
                                           .bwd = fd_rmsnorm_bwd,
                                           .rstd = zeros(&r, n),
                                           .n = n,
                                           .d = d });
    struct weight *w = weight_of(&r, 30, d);
    gradient_check(&(struct gradient){ .r = &r,
                                       .name = "linear",
                                       .in = { floats(&r, n * d), (float *)w->data, floats(&r, 30) },
                                       .n_in = { n * d, 30 * d, 30 },
                                       .din = { zeros(&r, n * d), zeros(&r, 30 * d), zeros(&r, 30) },
                                       .y = floats(&r, n * 30),
                                       .g = floats(&r, n * 30),
                                       .n_y = n * 30,
                                       .fwd = fd_linear,
                                       .bwd = fd_linear_bwd,
                                       .w = w,
                                       .n = n });
    for (int other = 0; other < 2; other++)
        gradient_check(&(struct gradient){ .r = &r,
                                           .other = other,
                                           .name = "swiglu",
                                           .in = { floats(&r, 2 * n * d) },
                                           .n_in = { 2 * n * d },
                                           .din = { zeros(&r, 2 * n * d) },
                                           .y = floats(&r, n * d),
                                           .g = floats(&r, n * d),
                                           .n_y = n * d,
                                           .fwd = fd_swiglu,
                                           .bwd = fd_swiglu_bwd,
                                           .n = n,
                                           .d = d });
    for (int other = 0; other < 2; other++)
        gradient_check(&(struct gradient){ .r = &r,
                                           .other = other,
                                           .name = "logprob",
                                           .in = { floats(&r, n * d) },
                                           .n_in = { n * d },
                                           .din = { zeros(&r, n * d) },
                                           .y = floats(&r, n),
                                           .g = floats(&r, n),
                                           .n_y = n,
                                           .fwd = fd_logprob,
                                           .bwd = fd_logprob_bwd,
                                           .rstd = zeros(&r, n),
                                           .cosine = zeros(&r, n * d),
                                           .pos = ints(&r, n, (int32_t)d),
                                           .n = n,
                                           .d = d });
    for (int other = 0; other < 2; other++)
        gradient_check(&(struct gradient){ .r = &r,
                                           .other = other,
                                           .name = "rope with q/k norm",
                                           .in = { floats(&r, n * wide), floats(&r, 16), floats(&r, 16) },
                                           .n_in = { n * wide, 16, 16 },
                                           .din = { zeros(&r, n * wide), zeros(&r, 16), zeros(&r, 16) },
                                           .y = floats(&r, n * wide),
                                           .g = floats(&r, n * wide),
                                           .n_y = n * wide,
                                           .fwd = fd_rope,
                                           .bwd = fd_rope_bwd,
                                           .n = n,
                                           .pos = ints(&r, n, N_POS),
                                           .cosine = floats(&r, N_POS * 8),
                                           .sine = floats(&r, N_POS * 8),
                                           .heads = h });
    for (int other = 0; other < 2; other++)
        gradient_check(&(struct gradient){ .r = &r,
                                           .other = other,
                                           .name = "attention",
                                           .in = { floats(&r, n * wide) },
                                           .n_in = { n * wide },
                                           .din = { zeros(&r, n * wide) },
                                           .y = floats(&r, n * 64),
                                           .g = floats(&r, n * 64),
                                           .n_y = n * 64,
                                           .fwd = fd_attn,
                                           .bwd = fd_attn_bwd,
                                           .rstd = zeros(&r, n * 4),
                                           .n = n,
                                           .seq = seq,
                                           .heads = h });
    run_release(&r);
    device_free(dev);
}

/* The table of the clipped loss, by hand from PPO's equation 7. */
static void tokens_beyond_the_clip_range_get_no_gradient(UNUSED void **state)
{
    // clang-format off
    static const struct { enum clip_form clip; float ratio, adv, want, loss; const char *why; } rules[] = {
        { CLIP_PPO, 1.0f,  2.0f, -2.0f, -2.0f, "fresh sample: plain policy gradient" },
        { CLIP_PPO, 1.5f,  1.0f,  0.0f, -1.28f, "good token already above 1 + 0.28" },
        { CLIP_PPO, 1.5f, -1.0f,  1.5f, 1.5f, "bad token that became likelier is still pushed down" },
        { CLIP_PPO, 0.5f,  1.0f, -0.5f, -0.5f, "good token that became rarer is still pushed up" },
        { CLIP_PPO, 0.5f, -1.0f,  0.0f, 0.8f, "bad token already below 1 - 0.2" },
        { CLIP_ATROPOS, 1.5f, -1.0f, 0.0f, 1.28f, "atropos: a bad token that became likelier is let go" },
        { CLIP_ATROPOS, 0.5f, -1.0f, 0.5f, 0.5f, "atropos: a rare bad token is pushed on" },
        { CLIP_ATROPOS, 1.5f,  1.0f, 0.0f, -1.28f, "atropos: as PPO" },
        { CLIP_ATROPOS, 0.5f,  1.0f, -0.5f, -0.5f, "atropos: as PPO" },
        { CLIP_CISPO, 1.5f,  1.0f, -1.28f, -1.28f * 0.40546511f, "cispo: bounded, and pushed up all the same" },
        { CLIP_CISPO, 0.5f, -1.0f,  0.8f, 0.8f * -0.69314718f, "cispo: bounded from below, and pushed down" },
        { CLIP_CISPO, 1.1f,  2.0f, -2.2f, -2.2f * 0.09531018f, "cispo: inside the range the policy gradient" },
        { CLIP_SAPO, 1.0f,  2.0f, -2.0f, -4.0f, "sapo: a fresh sample has the policy gradient" },
        { CLIP_SAPO, 2.0f,  1.0f, -1.57289547f, -2.92423431f, "sapo: sigmoid(1) is 0.73105858" },
        { CLIP_SAPO, 2.0f, -1.0f,  0.83994868f, 1.76159416f, "sapo: sigmoid(2), twice as steep below 0" },
        { CLIP_GPG, 5.0f,  2.0f, -2.0f, -2.0f * 1.60943791f, "gpg: the ratio does not count" },
        { CLIP_GMPO, 1.3f,  1.0f, -1.3f, -1.3f, "gmpo: ln 1.3 is below 0.28" },
        { CLIP_GMPO, 1.4f,  1.0f,  0.0f, -1.4f, "gmpo: ln 1.4 is above, so only the response's ratio counts" },
        { CLIP_GMPO, 0.8f, -1.0f,  0.0f, 0.8f, "gmpo: ln 0.8 is below -0.2" },
        { CLIP_VESPO, 1.0f,  2.0f, -2.0f, 0.0f, "vespo: a fresh sample has the policy gradient" },
        { CLIP_VESPO, 2.0f,  1.0f, -4 * 0.04978707f, -4 * 0.04978707f * 0.69314718f, "vespo: 2^2 e^(3 - 6)" },
        { CLIP_VESPO, 2.0f, -1.0f,  8 * 0.13533528f, 8 * 0.13533528f * 0.69314718f, "vespo: 2^3 e^(2 - 4)" },
        { CLIP_DPPO_TV, 0.9f, -1.0f,  0.9f, 0.9f * -0.10536052f, "dppo_tv: a probability that has moved by 0.1" },
        { CLIP_DPPO_TV, 0.7f, -1.0f,  0.0f, 0.0f, "dppo_tv: by 0.3" },
        { CLIP_DPPO_TV, 0.7f,  1.0f, -0.7f, -0.7f * -0.35667494f, "dppo_tv: by 0.3 against its advantage" },
        { CLIP_DPPO_KL, 0.9f, -1.0f,  0.9f, 0.9f * -0.10536052f, "dppo_kl: ln 1 / 0.9 is below 0.2" },
        { CLIP_DPPO_KL, 0.7f, -1.0f,  0.0f, 0.0f, "dppo_kl: ln 1 / 0.7 is above" },
        { CLIP_DRO, 2.0f,  1.0f, -1 + 0.5f * 0.69314718f, -0.69314718f + 0.25f * 0.48045301f, "dro: pulled back by half of ln 2" },
    };
    // clang-format on
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 1);
    for (size_t i = 0; i < ARRAY_SIZE(rules); i++) {
        struct run r = { .dev = dev };
        float logp = logf(rules[i].ratio), zero = 0, one = 1, coef, loss, *dev_coef = mem_take(&r, 4), *dev_loss = mem_take(&r, 4);
        assert_true(OP(dev, &r.err, policy_loss, .coef = dev_coef, .loss = dev_loss, .logp = put(&r, &logp, 4),
                       .logp_old = put(&r, &zero, 4), .adv = put(&r, &rules[i].adv, 4), .weight = put(&r, &one, 4), .n = 1,
                       .form = { .clip = rules[i].clip,
                                 .clip_low = 0.2f,
                                 .clip_high = 0.28f,
                                 .sapo_pos = 1,
                                 .sapo_neg = 2,
                                 .vespo_k = { 2, 3 },
                                 .vespo_l = { 3, 2 },
                                 .dro_beta = 0.5f }));
        get(&r, &coef, dev_coef, 4);
        get(&r, &loss, dev_loss, 4);
        if (fabsf(coef - rules[i].want) > 1e-6f || fabsf(loss - rules[i].loss) > 1e-6f)
            fail_msg("%s: %g and %g, not %g and %g", rules[i].why, coef, loss, rules[i].want, rules[i].loss);
        run_release(&r);
    }
    device_free(dev);
}

/* loss is what its derivative says: every form of clip and penalty, token ratios and one given, by central differences. Values are of
 * 1e-3 steps in fp32, and away from the clip's corners. */
static void the_policy_loss_has_its_derivative(UNUSED void **state)
{
    static const float ratio[] = { 0.5f, 0.9f, 1.0f, 1.1f, 1.6f }, adv[] = { -1.5f, 0, 0.7f };
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 1);
    enum {
        N_CLIP = CLIP_DRO + 1,
        N_KL = KL_K3_THROUGH + 1,
    };
    for (int i = 0; i < N_CLIP * N_KL * 5 * 3; i++) {
        enum clip_form clip = (enum clip_form)(i % N_CLIP);
        enum kl_form kl = (enum kl_form)(i / N_CLIP % N_KL);
        double r0 = (double)ratio[i / (N_CLIP * N_KL) % 5];
        float old = -0.25f, ref = -0.7f, weight = 0.5f, rho = 0.75f, a = adv[i / (N_CLIP * N_KL * 5)], loss[2], coef;
        const float step = 1.0f / 1024, at = old + logf((float)r0);
        for (int side = 0; side < 3; side++) {    // the last one for its coef
            struct run r = { .dev = dev };
            float logp = side == 2 ? at : side ? at + step : at - step, *dev_coef = mem_take(&r, 4), *dev_loss = mem_take(&r, 4);
            assert_true(OP(dev, &r.err, policy_loss, .coef = dev_coef, .loss = dev_loss, .logp = put(&r, &logp, 4),
                           .logp_old = put(&r, &old, 4), .logp_ref = put(&r, &ref, 4), .rho = put(&r, &rho, 4), .adv = put(&r, &a, 4),
                           .weight = put(&r, &weight, 4), .n = 1,
                           .form = { clip, kl, 0.2f, 0.28f, 0.3f, 1.4f, 1, 1.5f, { 2, 3 }, { 3, 2 }, 0.5f }));
            get(&r, &coef, dev_coef, 4);
            if (side < 2)
                get(&r, &loss[side], dev_loss, 4);
            run_release(&r);
        }
        double slope = ((double)loss[1] - (double)loss[0]) / (2 * (double)step);
        /* CISPO's c has no gradient: the slope has c' A logp in it where c moves */
        if (clip == CLIP_CISPO && r0 > 0.8 && r0 < 1.28)
            slope += (double)weight * (double)rho * r0 * (double)a * (double)at;
        /* nor has DPPO's, which no token near the old probability of 0.78 has left: 0.39 has, downwards, and 1.25 upwards but for the KL */
        bool left = (r0 < 0.6 && a < 0) || (r0 > 1.5 && a > 0 && clip == CLIP_DPPO_TV);
        if ((clip == CLIP_DPPO_TV || clip == CLIP_DPPO_KL) && !left && r0 < 1.4)
            slope += (double)weight * (double)rho * r0 * (double)a * (double)at;
        /* nor VESPO's phi */
        double k = a >= 0 ? 2 : 3, l = a >= 0 ? 3 : 2;
        if (clip == CLIP_VESPO)
            slope += (double)weight * (double)rho * exp(l + k * log(r0) - l * r0) * (k - l * r0) * (double)a * (double)at;
        /* GMPO's bounded tokens are in their response's ratio, which is given */
        if (clip == CLIP_GMPO && ((r0 < 0.6 && a < 0) || (r0 > 1.5 && a > 0)))
            slope += (double)weight * (double)rho * r0 * (double)a;
        /* k3+ has k2's gradient: the slope is 1 - e^x in place of -x */
        double x0 = (double)ref - (double)at;
        if (kl == KL_K3_THROUGH)
            slope += (double)weight * 0.3 * (-x0 - (1 - exp(x0)));
        if (!(fabs(slope - (double)coef) < 2e-3 * fmax(1, fabs(slope))))    // fp32 losses over 2 / 1024: 1e-4, and the third derivative
            fail_msg("clip %d, kl %d, ratio %g, advantage %g: coef %.6g, slope %.6g", (int)clip, (int)kl, r0, (double)a, (double)coef,
                     slope);
    }
    device_free(dev);
}

/* Enough for every thread of a GPU to take several words at a time, and a rest that fills none. */
static void the_hash_of_many_bytes_is_refs(UNUSED void **state)
{
    enum {
        N = 40000000 + 5,
    };
    struct device *ref = device_of("ref", NULL, 1), *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 1);
    struct run r = { .dev = dev };
    uint8_t *x = malloc(N);
    assert_non_null(x);
    for (size_t i = 0; i < N; i++)
        x[i] = (uint8_t)(i * 2654435761u >> 24);
    for (int cut = 0; cut < 3; cut++) {
        uint64_t want = 1, hash = 2, part = 3, *on_dev = mem_take(&r, sizeof *on_dev);
        size_t n = (size_t)(N - 3 * cut), half = n / 16 * 8;
        assert_true(OP(ref, &r.err, mem_hash, .hash = &want, .x = x, .size_bytes = n));
        assert_true(OP(dev, &r.err, mem_hash, .hash = on_dev, .x = put(&r, x, n), .size_bytes = n));
        get(&r, &hash, on_dev, sizeof hash);
        assert_true(hash == want);
        assert_true(OP(dev, &r.err, mem_hash, .hash = on_dev, .x = put(&r, x, half), .size_bytes = half));
        get(&r, &part, on_dev, sizeof part);
        assert_true(OP(dev, &r.err, mem_hash, .hash = on_dev, .x = put(&r, x + half, n - half), .size_bytes = n - half,
                       .first = (int64_t)(half / 8)));
        get(&r, &hash, on_dev, sizeof hash);
        assert_true(part + hash == want);    // of two parts
    }
    free(x);
    run_release(&r);
    device_free(dev);
    device_free(ref);
}

/* A matrix's hash is the sum of those of its columns, cut anywhere on a word, and of its rows. */
static void the_hash_of_columns_adds_up_to_the_whole(UNUSED void **state)
{
    enum {
        ROWS = 300,
        WORDS = 37,
    };
    struct device *dev = device_of(getenv("OPS_DEVICE") ? getenv("OPS_DEVICE") : "cpu:0", NULL, 1);
    struct run r = { .dev = dev };
    uint64_t *x = malloc(ROWS * WORDS * 8), *part = malloc(ROWS * WORDS * 8), *on_dev = mem_take(&r, sizeof *on_dev), want = 1;
    for (size_t i = 0; i < ROWS * WORDS; i++)
        x[i] = (i + 1) * 0x2545f4914f6cdd1du;
    assert_true(OP(dev, &r.err, mem_hash, .hash = on_dev, .x = put(&r, x, ROWS * WORDS * 8), .size_bytes = ROWS * WORDS * 8));
    get(&r, &want, on_dev, sizeof want);
    for (int cut = 1; cut < WORDS; cut += 9) {
        uint64_t sum = 0;
        for (int side = 0; side < 2; side++)
            for (int half = 0; half < 2; half++) {
                uint64_t hash = 3;
                int first = side ? cut : 0, n = side ? WORDS - cut : cut, row = half ? 111 : 0, n_row = half ? ROWS - 111 : 111;
                for (int i = 0; i < n_row; i++)
                    memcpy(part + i * n, x + (row + i) * WORDS + first, (size_t)n * 8);
                assert_true(OP(dev, &r.err, mem_hash, .hash = on_dev, .x = put(&r, part, (size_t)(n_row * n) * 8),
                               .size_bytes = (size_t)(n_row * n) * 8, .first = row * WORDS + first, .row_words = n, .ld_words = WORDS));
                get(&r, &hash, on_dev, sizeof hash);
                sum += hash;
            }
        assert_true(sum == want);
    }
    free(part);
    free(x);
    run_release(&r);
    device_free(dev);
}

static void bad_sizes_are_refused_with_a_sentence(UNUSED void **state)
{
    struct error err;
    assert_null(device_new("gpu:0", 0, &err));
    assert_int_equal(err.code, ERR_USAGE);
    setenv("RC_CPU", "sse9", 1);
    assert_null(device_new("cpu:0", 1, &err));
    assert_non_null(strstr(err.text, "sse9"));
    struct device *dev = device_of("cpu:0", NULL, 1);
    float x[64] = { 0 };
    int32_t id = 9;
    assert_false(OP(dev, &err, rows_gather, .y = x, .table = x, .row = &id, .n = 1, .n_row = 4, .d = 4));
    assert_non_null(strstr(err.text, "id 9 of row 0"));
    assert_false(OP(dev, &err, attn_fwd, .heads = { 3, 2, 16 }, .n = 1));
    assert_non_null(strstr(err.text, "3 query heads, 2 key heads"));
    device_free(dev);
}

/* With the word "short": only what is quick enough for compute-sanitizer; with a pattern: the tests of these names. */
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "short") == 0) {
        static const struct CMUnitTest few[] = {
            cmocka_unit_test(each_operation_agrees_with_ref),
            cmocka_unit_test(what_an_operation_adds_it_adds_once),
            cmocka_unit_test(gradients_of_real_shapes_are_added_once),
            cmocka_unit_test(a_norms_parts_do_not_depend_on_the_shards),
            cmocka_unit_test(a_row_alone_gives_the_bits_it_has_in_a_batch),
            cmocka_unit_test(a_norms_rows_have_the_same_bits_among_few_and_many),
            cmocka_unit_test(a_norm_that_finishes_a_product_gives_the_same_bits),
            cmocka_unit_test(a_gate_computed_with_its_product_has_the_same_bits),
            cmocka_unit_test(products_of_column_slices_sum_to_the_same_bits),
            cmocka_unit_test(a_tree_over_rows_has_the_bits_of_its_steps),
            cmocka_unit_test(draws_follow_the_filtered_distribution),
            cmocka_unit_test(an_end_that_is_nearly_certain_can_be_banned),
        };
        return cmocka_run_group_tests(few, NULL, NULL);
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(backwards_of_ref_are_the_slopes_of_its_forwards),
        cmocka_unit_test(each_operation_agrees_with_ref),
        cmocka_unit_test(code_paths_and_thread_counts_give_the_same_bits),
        cmocka_unit_test(what_an_operation_adds_it_adds_once),
        cmocka_unit_test(gradients_of_real_shapes_are_added_once),
        cmocka_unit_test(a_norms_parts_do_not_depend_on_the_shards),
        cmocka_unit_test(a_row_alone_gives_the_bits_it_has_in_a_batch),
        cmocka_unit_test(a_norms_rows_have_the_same_bits_among_few_and_many),
        cmocka_unit_test(a_norm_that_finishes_a_product_gives_the_same_bits),
        cmocka_unit_test(a_gate_computed_with_its_product_has_the_same_bits),
        cmocka_unit_test(products_of_column_slices_sum_to_the_same_bits),
        cmocka_unit_test(a_tree_over_rows_has_the_bits_of_its_steps),
        cmocka_unit_test(real_shapes_keep_a_rows_bits_whatever_the_batch),
        cmocka_unit_test(attention_gives_the_same_bits_packed_alone_and_decoded),
        cmocka_unit_test(a_sequences_gradient_has_the_same_bits_packed_and_alone),
        cmocka_unit_test(both_matrix_instructions_give_attention_the_same_bits),
        cmocka_unit_test(a_sampled_token_has_the_bits_of_the_heads_logp),
        cmocka_unit_test(draws_follow_the_filtered_distribution),
        cmocka_unit_test(an_end_that_is_nearly_certain_can_be_banned),
        cmocka_unit_test(the_policy_loss_has_its_derivative),
        cmocka_unit_test(tokens_beyond_the_clip_range_get_no_gradient),
        cmocka_unit_test(the_hash_of_many_bytes_is_refs),
        cmocka_unit_test(the_hash_of_columns_adds_up_to_the_whole),
        cmocka_unit_test(bad_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
