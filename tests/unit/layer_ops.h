/* layer_ops.h - what tests of a layer that is put together from operations share: its values, its devices, and comparisons of its results */
#pragma once
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"

#define TRUE(call)                                                                                                                         \
    do {                                                                                                                                   \
        if (!(call))                                                                                                                       \
            fail_msg("%s:%d: %s", __FILE__, __LINE__, err.text);                                                                           \
    } while (0)
static struct error err;

static uint64_t drawn;
static double draw(void)    // uniform, of mean 0 and variance 1
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return ((double)(drawn >> 11) / 9007199254740992.0 - 0.5) * 3.4641016151377544;
}

static void *values(int64_t n, enum dtype t, double spread)
{
    char *p = malloc((size_t)n * dtype_size(t) + 64);    // products may read to a multiple of 16
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) {
        float x = (float)(spread * draw());
        if (t == DT_BF16)
            ((uint16_t *)(void *)p)[i] = bf16_from_f32(x);
        else
            ((float *)(void *)p)[i] = x;
    }
    return p;
}

static void *room(int64_t n, size_t elem)    // of NaN
{
    void *p = malloc((size_t)n * elem + 64);
    assert_non_null(p);
    return memset(p, 0xff, (size_t)n * elem + 64);
}

static double at(const void *p, int64_t i, enum dtype t)
{
    return t == DT_BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* A processor by one of its code paths (NULL: its own choice); NULL when this one does not have it. */
static struct device *cpu_of(const char *path, int n_thread)
{
    setenv("RC_CPU", path ? path : "", 1);
    struct device *dev = device_new("cpu:0", n_thread, &err);
    if (!dev && err.code != ERR_UNSUPPORTED)
        fail_msg("%s", err.text);
    return dev;
}

static const struct cpu_variant {
    const char *path;
    int n_thread;
} cpu_variants[] = {
#ifdef __SANITIZE_ADDRESS__    // which watches one path alone, see CMakeLists.txt
    { "avx2", 1 },
    { "avx2", 3 },
#else
    { "avx512", 1 }, { "avx512", 3 }, { "avx2", 1 }, { "avx2", 2 }, { "scalar", 3 },
#endif
};

/* What is tested: OPS_DEVICE, or the CPU. */
static struct device *tested(void)
{
    const char *name = getenv("OPS_DEVICE");
    struct device *dev = name ? device_new(name, 0, &err) : cpu_of(NULL, 2);
    if (!dev)
        fail_msg("%s", err.text);
    return dev;
}

/* A copy in dev's memory; and what is there, back, and freed. */
static void *sent(struct device *dev, const void *from, size_t bytes)
{
    void *p = mem_new(dev, bytes, "a test", &err);
    TRUE(p && mem_copy(dev, p, from, bytes, COPY_H2D, &err) && device_sync(dev, &err));
    return p;
}
static void fetched(struct device *dev, void *to, void *from, size_t bytes)
{
    TRUE(mem_copy(dev, to, from, bytes, COPY_D2H, &err) && device_sync(dev, &err));
    mem_free(dev, from);
}
/* One of a layer's results; the layer's. */
struct result {
    const char *name;
    const void *p;
    int64_t n;
    enum dtype dtype;
};

/* Each of n results is as near to what is wanted as tol, of its norm, and least, of its values, allow. */
static void results_near(const struct result *want, const struct result *got, int n, double tol, double least, size_t size, enum dtype t)
{
    for (int i = 0; i < n; i++) {
        double apart = 0, norm = 0;
        for (int64_t k = 0; k < want[i].n; k++) {
            double x = at(want[i].p, k, want[i].dtype), y = at(got[i].p, k, want[i].dtype);
            apart += (x - y) * (x - y);
            norm += x * x;
        }
        if (!(sqrt(apart) <= tol * sqrt(norm) + least))
            fail_msg("size %zu %s: %s is %.3g of its norm away", size, t == DT_BF16 ? "bf16" : "fp32", want[i].name, sqrt(apart / norm));
    }
}

static void results_same(const struct result *want, const struct result *got, int n, const struct cpu_variant *of, size_t size)
{
    for (int i = 0; i < n; i++)
        if (memcmp(want[i].p, got[i].p, (size_t)want[i].n * dtype_size(want[i].dtype)) != 0)
            fail_msg("size %zu: %s of %s with %d threads has other bits", size, want[i].name, of->path, of->n_thread);
}

/* A layer in fp32 whose forward pass is run anew: forward(of) makes y, n of them, of its inputs; L = <dy, y>. */
struct forward {
    void (*forward)(void *of);
    void *of;
    const float *dy, *y;
    int64_t n;
};
/* One of its inputs, and the gradient of L by it. */
struct input {
    const char *name;
    float *in;
    const float *din;
    int64_t n;
};

/* Along a random direction v of the input (L(x + e v) - L(x - e v)) / 2 e is <gradient, v>, within tol of the gradient's norm. */
static void slope_check(const struct forward *f, const struct input *x, double tol, size_t size)
{
    double side[2] = { 0 }, want = 0, sumsq = 0, eps = 1e-3;
    float *kept = malloc((size_t)x->n * 4), *v = values(x->n, DT_F32, 1);
    assert_non_null(kept);
    memcpy(kept, x->in, (size_t)x->n * 4);
    for (int64_t i = 0; i < x->n; i++) {
        want += (double)x->din[i] * v[i];
        sumsq += (double)x->din[i] * x->din[i];
    }
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < x->n; i++)
            x->in[i] = (float)(kept[i] + (k ? -eps : eps) * v[i]);
        f->forward(f->of);
        for (int64_t i = 0; i < f->n; i++)
            side[k] += (double)f->dy[i] * (double)f->y[i];
    }
    memcpy(x->in, kept, (size_t)x->n * 4);
    double slope = (side[0] - side[1]) / (2 * eps);
    if (!(fabs(slope - want) <= tol * sqrt(sumsq)))
        fail_msg("size %zu, %s: slope %.6g, gradient says %.6g (norm %.3g)", size, x->name, slope, want, sqrt(sumsq));
    free(kept);
    free(v);
}
