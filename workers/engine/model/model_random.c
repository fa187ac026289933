/* model_random.c - weights that nobody has trained: drawn from a seed, the same bytes on every machine */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/mix64.h"
#include "protocol/base/parallel.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/model_impl.h"

/* Close to normal(0, 1): the sum of twelve uniform numbers less its mean (Irwin-Hall). Only exact integer arithmetic,
 * so that a seed gives the same bytes with any C library. */
static float normal_draw(uint64_t key, uint64_t i)
{
    int64_t sum = 0;
    for (uint64_t k = 0; k < 3; k++) {
        uint64_t h = mix64(key + (3 * i + k + 1) * MIX64_STEP);
        sum += (int64_t)((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
    }
    return (float)((double)(sum - 6 * 0xffff) / 65536.0);
}

/* Standard deviation of a tensor's first values; 0 for biases, -1 for norms, which are all ones. Where a norm's form adds 1 they are zeros,
 * but for the norm of a gated delta net, which has that form in no family. */
static double init_std(const struct model_config *c, const struct tensor *t)
{
    if (t->n_dim == 1)
        return strstr(t->name, "norm") && (c->norm_form != NORM_GEMMA || strstr(t->name, "linear_attn.norm")) ? -1 : 0;
    if (strstr(t->name, "embed_tokens") || strstr(t->name, "lm_head"))
        return c->initializer_range;
    double std = 1 / sqrt((double)tensor_cols(t));
    bool residual = strstr(t->name, "o_proj") || strstr(t->name, "out_proj") || strstr(t->name, "down_proj") || strstr(t->name, ".w2.")
                    || strstr(t->name, "output_linear");
    return residual ? std / sqrt(2.0 * (double)c->n_layer) : std;    // GPT-2's scaling of residual outputs
}

#define DRAW_ELEMS 100000    // of a round
/* A tensor being drawn. */
struct draw {
    void *out;    // (n_elem) of dtype
    enum dtype dtype;
    uint64_t key;
    double std;    // as init_std
    int64_t n_elem;
};
static void draw_run(void *ctx, int64_t i)
{
    const struct draw *d = ctx;
    for (int64_t k = i * DRAW_ELEMS, last = MIN(k + DRAW_ELEMS, d->n_elem); k < last; k++) {
        float v = d->std < 0 ? 1.0f : d->std == 0 ? 0.0f : (float)(d->std * (double)normal_draw(d->key, (uint64_t)k));
        if (d->dtype == DT_F32)
            ((float *)d->out)[k] = v;
        else
            ((uint16_t *)d->out)[k] = bf16_from_f32(v);
    }
}

/* 7 G elements take 16 cores 5 s. */
static void tensor_draw(struct draw d)
{
    parallel_run((d.n_elem + DRAW_ELEMS - 1) / DRAW_ELEMS, 0, draw_run, &d);
}

/* A seed, and room to draw a tensor in. */
struct seed {
    uint64_t seed;
    void *stage;    // of the longest tensor; host
};
static void seed_close(void *ctx)
{
    struct seed *s = ctx;
    free(s->stage);
    free(s);
}

static bool seed_bring(void *ctx, const struct model *m, int p, int end, char *to, struct error *err)
{
    const struct seed *s = ctx;
    size_t e = dtype_size(m->dtype);
    int64_t first, i, last;
    (void)model_piece(m, p, &first);
    for (piece_tensors(m, p, end, &i, &last); i < last; i++) {
        const struct tensor *t = &m->flat.tensor[i];
        uint64_t key = mix64(s->seed + MIX64_STEP * (uint64_t)(i + 1));
        tensor_draw((struct draw){ .out = s->stage, .dtype = m->dtype, .key = key, .std = init_std(&m->c, t), .n_elem = t->n_elem });
        if (!mem_copy(m->dev, to + (size_t)(t->offset - first) * e, s->stage, (size_t)t->n_elem * e, COPY_H2D, err))
            return false;
    }
    return true;
}

struct model *model_random_open(const struct model_config *c, uint64_t seed, struct device *dev, enum dtype dtype, struct error *err)
{
    int64_t most = 0;
    struct model *m = model_shape_checked(c, dev, dtype, err);
    if (!m)
        return NULL;
    for (int64_t i = 0; i < m->flat.n_tensor; i++)
        most = MAX(most, m->flat.tensor[i].n_elem);
    struct seed *s = calloc(1, sizeof *s);
    if (!s || !(s->stage = malloc((size_t)most * dtype_size(dtype)))) {
        free(s);
        model_free(m);
        error_set(err, ERR_NO_MEMORY, "no memory to draw a tensor of %" PRId64 " elements", most);
        return NULL;
    }
    s->seed = seed;
    if (source_set(m, &(struct source){ .bring = seed_bring, .close = seed_close, .ctx = s }, err))
        return m;
    model_free(m);
    return NULL;
}

struct model *model_new_random(const struct model_config *c, uint64_t seed, struct device *dev, enum dtype dtype, struct error *err)
{
    return model_taken(model_random_open(c, seed, dev, dtype, err), err);
}
