/* lora.c - an adapter's memory: its table of tensors, its handles, its files, and what becomes of it when it is merged */
#include "workers/engine/model/lora.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/mix64.h"
#include "workers/engine/model/lora_impl.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/products.h"
#include "workers/engine/model/safetensors.h"

#define PREFIX "base_model.model."

/* Which modules make which product, in the order of its columns. A family whose files hold a product as one matrix has one module there. */
struct product_modules {
    enum lora_module first;
    int n;
};
static struct product_modules modules_of(const struct model_config *c, enum product which)
{
    static const struct product_modules apart[PRODUCT_N] = {
        [PRODUCT_QKV] = { LORA_Q, 3 },
        [PRODUCT_O] = { LORA_O, 1 },
        [PRODUCT_GATE_UP] = { LORA_GATE, 2 },
        [PRODUCT_DOWN] = { LORA_DOWN, 1 },
    };
    static const struct product_modules fused[PRODUCT_N] = {
        [PRODUCT_QKV] = { LORA_QKV, 1 },
        [PRODUCT_O] = { LORA_O, 1 },
        [PRODUCT_GATE_UP] = { LORA_GATE_UP, 1 },
        [PRODUCT_DOWN] = { LORA_DOWN, 1 },
    };
    if (config_has_states(c) && (which == PRODUCT_QKV || which == PRODUCT_O))
        return (struct product_modules){ LORA_Q, 0 };    // nothing before the MLP has one where most layers have no attention
    if (c->experts.n && (which == PRODUCT_GATE_UP || which == PRODUCT_DOWN))
        return (struct product_modules){ LORA_GATE, 0 };    // experts have no adapters, nor have the other layers' MLPs
    return c->fused_names ? fused[which] : apart[which];
}

/* Keep those of the targets that the model has. ERR_UNSUPPORTED: one is missing, or, where that may be, all are. */
static bool targets_keep(struct lora_config *lo, const struct model_config *c, struct error *err)
{
    unsigned has = 0;
    struct buf names = BUF_INIT;
    int n = 0, missing = 0;
    for (int p = 0; p < PRODUCT_N; p++) {
        struct product_modules of = modules_of(c, (enum product)p);
        has |= ((1u << of.n) - 1) << of.first;
        for (int i = 0; i < of.n; i++)
            buf_fmt(&names, "%s%s", n++ ? ", " : "", strchr(lora_module_path((enum lora_module)((int)of.first + i)), '.') + 1);
    }
    while (missing < LORA_MODULE_N && !((lo->targets & ~has) >> missing & 1))
        missing++;
    bool ok = lo->loose ? (lo->targets & has) != 0 : missing == LORA_MODULE_N;
    if (!ok)
        error_set(err, ERR_UNSUPPORTED, "the model has no module '%s' for an adapter; it has %s",
                  missing < LORA_MODULE_N ? strchr(lora_module_path((enum lora_module)missing), '.') + 1 : "", buf_text(&names));
    lo->targets &= has;
    buf_release(&names);
    return ok;
}

/* ---- the table */
static int64_t tensor_put(struct lora *lo, int64_t rows, int64_t cols, int64_t layer, enum lora_module module, const char *side)
{
    struct tensor *t = &lo->flat.tensor[lo->flat.n_tensor++];
    *t = (struct tensor){ .n_dim = 2, .dim = { rows, cols }, .n_elem = rows * cols, .offset = lo->flat.n_flat };
    snprintf(t->name, sizeof t->name, PREFIX "model.layers.%" PRId64 ".%s.lora_%s.weight", layer, lora_module_path(module), side);
    lo->flat.n_flat += t->n_elem;
    return t->offset;
}

/* The base's matrix of a module, which it has. */
static const struct tensor *base_tensor(const struct model *m, int64_t layer, enum lora_module module)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%" PRId64 ".%s.weight", layer, lora_module_path(module));
    for (int64_t i = 0; i < m->flat.n_tensor; i++)
        if (strcmp(m->flat.tensor[i].name, name) == 0)
            return &m->flat.tensor[i];
    BUG_IF(true, "the model has no '%s'", name);
}

static void product_put(const struct model *m, struct lora *lo, int64_t layer, enum product which)
{
    struct lora_product *p = &lo->layer[layer].product[which];
    const struct tensor *of[LORA_PART_MAX];
    struct product_modules modules = modules_of(&m->c, which);
    int first = (int)modules.first, n = modules.n;
    p->at = lo->flat.n_flat = part_aligned(lo->flat.n_flat);
    for (int i = 0; i < n; i++) {
        of[i] = base_tensor(m, layer, (enum lora_module)(first + i));
        if (lo->c.targets >> (first + i) & 1)
            tensor_put(lo, lo->c.rank, of[i]->dim[1], layer, (enum lora_module)(first + i), "A");
    }
    for (int i = 0; i < n; i++) {
        if (lo->c.targets >> (first + i) & 1) {
            lo->flat.n_flat = part_aligned(lo->flat.n_flat);
            struct lora_part *b = &p->part[p->n_part++];
            *b = (struct lora_part){ .out_at = p->n_out, .n_out = of[i]->dim[0] };
            b->at = tensor_put(lo, of[i]->dim[0], lo->c.rank, layer, (enum lora_module)(first + i), "B");
        }
        p->n_in = of[i]->dim[1];
        p->n_out += of[i]->dim[0];
    }
}

static void struct_free(struct lora *lo)
{
    if (!lo)
        return;
    flat_release(&lo->flat);
    free(lo->layer);
    free(lo);
}

/* An adapter's table, without memory. Returns it for struct_free. */
static struct lora *table_new(const struct model *m, const struct lora_config *c, struct error *err)
{
    struct lora *lo = calloc(1, sizeof *lo);
    if (!lo || !(lo->flat.tensor = calloc((size_t)(2 * LORA_MODULE_N * m->c.n_layer), sizeof *lo->flat.tensor))
        || !(lo->flat.piece_at = calloc((size_t)m->c.n_layer + 1, sizeof *lo->flat.piece_at))
        || !(lo->layer = calloc((size_t)m->c.n_layer, sizeof *lo->layer))) {
        struct_free(lo);
        error_set(err, ERR_NO_MEMORY, "no memory for an adapter");
        return NULL;
    }
    lo->c = *c;
    if (!targets_keep(&lo->c, &m->c, err)) {
        struct_free(lo);
        return NULL;
    }
    lo->scale = (float)lora_config_scale(c);
    for (int64_t l = 0; l < m->c.n_layer; l++) {
        lo->flat.piece_at[lo->flat.n_piece++] = lo->flat.n_flat = part_aligned(lo->flat.n_flat);
        for (int p = 0; p < PRODUCT_N; p++)
            product_put(m, lo, l, (enum product)p);
    }
    lo->flat.n_flat = part_aligned(lo->flat.n_flat);
    lo->flat.piece_at[lo->flat.n_piece] = lo->flat.n_flat;
    return lo;
}

/* ---- handles */
static void handles_free(struct model *m)
{
    for (int64_t l = 0; l < m->c.n_layer; l++)
        for (int k = 0; k < PRODUCT_N; k++) {
            struct lora_product *p = &m->lora->layer[l].product[k];
            weight_free(m->dev, p->a);
            p->a = NULL;
            for (int i = 0; i < p->n_part; i++) {
                weight_free(m->dev, p->part[i].b);
                p->part[i].b = NULL;
            }
        }
}

static struct weight *handle_new(struct model *m, int64_t at, int64_t n_out, int64_t n_in, struct error *err)
{
    struct model_product p = { "adapter", { .n_out = n_out, .n_in = n_in }, at };
    return product_weight_new(m, &p, m->lora->weights + (size_t)at * dtype_size(m->dtype), m->for_bwd, err);
}

static bool lora_handles_new(struct model *m, struct error *err)
{
    int64_t rank = m->lora->c.rank;
    handles_free(m);
    for (int64_t l = 0; l < m->c.n_layer; l++)
        for (int k = 0; k < PRODUCT_N; k++) {
            struct lora_product *p = &m->lora->layer[l].product[k];
            if (p->n_part && !(p->a = handle_new(m, p->at, p->n_part * rank, p->n_in, err)))
                return false;
            for (int i = 0; i < p->n_part; i++)
                if (!(p->part[i].b = handle_new(m, p->part[i].at, p->part[i].n_out, rank, err)))
                    return false;
        }
    return true;
}

static bool lora_changed(struct model *m, struct error *err)
{
    for (int64_t l = 0; l < m->c.n_layer; l++)
        for (int k = 0; k < PRODUCT_N; k++) {
            const struct lora_product *p = &m->lora->layer[l].product[k];
            if (p->a && !weight_refresh(m->dev, p->a, err))
                return false;
            for (int i = 0; i < p->n_part; i++)
                if (!weight_refresh(m->dev, p->part[i].b, err))
                    return false;
        }
    return true;
}

/* ---- life */
/* From now on m has the adapter lo; NULL: none. */
static void adapter_is(struct model *m, struct lora *lo)
{
    m->lora = lo;
    m->trained = lo ? &lo->flat : &m->flat;
    m->trains = lo ? &trained_adapter : &trained_all;
    m->lora_rank = lo ? lo->c.rank : 0;
    weights_form_set(m);
}

void lora_free(struct model *m)
{
    struct lora *lo = m->lora;
    if (!lo)
        return;
    handles_free(m);
    if (lo->weights && lo->shared)
        mem_share_free(m->dev, lo->weights, model_weight_bytes(m), &lo->handle);
    else if (lo->weights)
        mem_free(m->dev, lo->weights);
    struct_free(lo);
    adapter_is(m, NULL);
}

/* Give m the adapter lo, which it takes, with these values: (n_flat) of its dtype on the host, or NULL for zeros. */
static bool adapter_set(struct model *m, struct lora *lo, const void *values, bool train, struct error *err)
{
    BUG_IF(m->lora, "the model has an adapter already");
    adapter_is(m, lo);
    size_t size = model_weight_bytes(m);
    bool ok = (!train || model_want_bwd(m, err)) && (lo->weights = mem_new(m->dev, size, "the adapter", err))
              && (values ? mem_copy(m->dev, lo->weights, values, size, COPY_H2D, err)
                         : OP(m->dev, err, mem_fill, .y = lo->weights, .size_bytes = size))
              && lora_handles_new(m, err);
    if (!ok)
        lora_free(m);
    return ok;
}

static bool lora_like(struct model *m, const struct lora *of, struct error *err)
{
    struct lora *lo = table_new(m, &of->c, err);
    return lo && adapter_set(m, lo, NULL, false, err);
}

bool model_lora_base_set(struct model *m, const char *base, struct error *err)
{
    char *to = m->lora->c.base;
    return snprintf(to, sizeof m->lora->c.base, "%s", base) < (int)sizeof m->lora->c.base
           || error_set(err, ERR_USAGE, "the path '%s' is too long", base);
}

const struct lora_config *model_lora(const struct model *m)
{
    return m->lora ? &m->lora->c : NULL;
}

/* ---- new */
static void value_set(void *values, enum dtype dtype, int64_t i, float v)
{
    if (dtype == DT_F32)
        ((float *)values)[i] = v;
    else
        ((uint16_t *)values)[i] = bf16_from_f32(v);
}

/* A uniform in +-1 / sqrt(n_in): Kaiming's with a = sqrt(5), which PEFT takes. B stays 0. */
static void a_draw(void *values, enum dtype dtype, const struct tensor *t, uint64_t key)
{
    double bound = 1 / sqrt((double)t->dim[1]);
    for (int64_t i = 0; i < t->n_elem; i++) {
        uint64_t h = mix64(key + (uint64_t)(i + 1) * MIX64_STEP) >> 40;    // 24 bits
        value_set(values, dtype, t->offset + i, (float)(bound * ((double)(2 * h + 1) / 16777216.0 - 1)));
    }
}

bool model_lora_new(struct model *m, const struct lora_config *c, uint64_t seed, bool train, struct error *err)
{
    struct lora *lo = table_new(m, c, err);
    void *values = lo ? calloc((size_t)lo->flat.n_flat, dtype_size(m->dtype)) : NULL;
    if (!lo)
        return false;
    if (!values) {
        struct_free(lo);
        return error_set(err, ERR_NO_MEMORY, "no memory for an adapter");
    }
    for (int64_t i = 0; i < lo->flat.n_tensor; i++)
        if (strstr(lo->flat.tensor[i].name, ".lora_A."))
            a_draw(values, m->dtype, &lo->flat.tensor[i], mix64(seed + MIX64_STEP * (uint64_t)(i + 1)));
    bool ok = adapter_set(m, lo, values, train, err);
    free(values);
    return ok;
}

/* ---- files */
static struct shards *lora_shards(const char *dir, struct error *err)
{
    char path[4096];
    if (path_join(path, sizeof path, dir, LORA_WEIGHTS_FILE))
        return shards_open_file(path, err);
    error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    return NULL;
}

static bool is_known(const struct lora *lo, const char *name)
{
    for (int64_t i = 0; i < lo->flat.n_tensor; i++)
        if (strcmp(lo->flat.tensor[i].name, name) == 0)
            return true;
    return false;
}

static bool tensors_check(const struct lora *lo, const struct shards *s, const char *dir, struct error *err)
{
    for (int64_t i = 0; i < lo->flat.n_tensor; i++) {
        const struct tensor *t = &lo->flat.tensor[i];
        const struct st_tensor *f = shards_find(s, t->name);
        if (!f)
            return error_set(err, ERR_DATA, "'%s/" LORA_WEIGHTS_FILE "': tensor '%s' is missing", dir, t->name);
        if (f->dtype == ST_OTHER || f->n_dim != 2 || f->dim[0] != t->dim[0] || f->dim[1] != t->dim[1])
            return error_set(err, ERR_DATA,
                             "'%s': tensor '%s' must be float of (%" PRId64 ", %" PRId64 "); the adapter is of another model or rank",
                             f->file, t->name, t->dim[0], t->dim[1]);
    }
    for (int64_t i = 0; i < shards_n(s); i++)
        if (!is_known(lo, shards_at(s, i)->name))
            return error_set(err, ERR_DATA, "'%s': tensor '%s' does not belong to an adapter of this " LORA_CONFIG_FILE,
                             shards_at(s, i)->file, shards_at(s, i)->name);
    return true;
}

int64_t lora_n_param(const struct lora_config *c, const struct model_config *shape, struct error *err)
{
    int64_t n = 0;
    struct model *m = model_shape_new(shape, err);
    struct lora *lo = m ? table_new(m, c, err) : NULL;
    for (int64_t i = 0; lo && i < lo->flat.n_tensor; i++)
        n += lo->flat.tensor[i].n_elem;
    n = lo ? n : -1;
    struct_free(lo);
    model_free(m);
    return n;
}

bool lora_files_check(const char *dir, const struct model_config *shape, struct error *err)
{
    bool ok = false;
    struct lora_config c;
    struct lora *lo = NULL;
    struct shards *s = NULL;
    struct model *m = model_shape_new(shape, err);
    TRY(m);
    TRY(lora_config_load(&c, dir, err));
    TRY(lo = table_new(m, &c, err));
    TRY(s = lora_shards(dir, err));
    TRY(tensors_check(lo, s, dir, err));
    ok = true;
out:
    shards_close(s);
    struct_free(lo);
    model_free(m);
    return ok;
}

bool model_lora_load(struct model *m, const char *dir, bool train, struct error *err)
{
    bool ok = false;
    struct lora_config c;
    struct shards *s = NULL;
    struct lora *lo = NULL;
    char *values = NULL;
    TRY(lora_config_load(&c, dir, err));
    TRY(s = lora_shards(dir, err));
    TRY(lo = table_new(m, &c, err));
    TRY(tensors_check(lo, s, dir, err));
    if (!(values = calloc((size_t)lo->flat.n_flat, dtype_size(m->dtype)))) {
        error_set(err, ERR_NO_MEMORY, "no memory for the adapter in '%s'", dir);
        goto out;
    }
    for (int64_t i = 0; i < lo->flat.n_tensor; i++) {
        const struct st_tensor *f = shards_find(s, lo->flat.tensor[i].name);
        void *to = values + (size_t)lo->flat.tensor[i].offset * dtype_size(m->dtype);
        if (m->dtype == DT_F32)
            st_to_f32(to, f);
        else
            st_to_bf16(to, f);
        int64_t bad = st_values_broken(to, m->dtype == DT_BF16, f->n_elem);
        if (bad >= 0) {
            st_broken(f, bad, err);
            goto out;
        }
    }
    struct lora *given = lo;
    lo = NULL;
    ok = adapter_set(m, given, values, train, err);
out:
    shards_close(s);
    struct_free(lo);
    free(values);
    return ok;
}

static bool lora_save(const struct model *m, const void *weights, const char *dir, struct error *err)
{
    const struct lora *lo = m->lora;
    char path[4096];
    struct st_out *out = calloc((size_t)lo->flat.n_tensor, sizeof *out);
    if (!out)
        return error_set(err, ERR_NO_MEMORY, "no memory to list %" PRId64 " tensors", lo->flat.n_tensor);
    for (int64_t i = 0; i < lo->flat.n_tensor; i++) {
        const struct tensor *t = &lo->flat.tensor[i];
        out[i] = (struct st_out){ .name = t->name,
                                  .dtype = m->dtype == DT_F32 ? ST_F32 : ST_BF16,
                                  .n_dim = 2,
                                  .dim = { t->dim[0], t->dim[1] },
                                  .data = (const char *)weights + (size_t)t->offset * dtype_size(m->dtype) };
    }
    bool ok = path_join(path, sizeof path, dir, LORA_WEIGHTS_FILE) || error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
    ok = ok && st_write(path, out, lo->flat.n_tensor, err) && lora_config_save(&lo->c, dir, err);
    free(out);
    return ok;
}

static const struct mem_handle *lora_share(struct model *m, struct error *err)
{
    struct lora *lo = m->lora;
    if (lo->shared)
        return &lo->handle;
    char *to = model_shared_copy(m, "the adapter", &lo->handle, err);
    if (!to)
        return NULL;
    handles_free(m);
    mem_free(m->dev, lo->weights);
    lo->weights = to;
    lo->shared = true;
    return lora_handles_new(m, err) ? &lo->handle : NULL;
}

/* ---- merging */
/* What merging works in: a matrix of the base and a module's product in fp32, and B turned round; device. */
struct merge {
    float *sum, *delta;
    void *b;       // (rank, n_out)
    char *host;    // B as it is and turned round
};

/* W += s B A for one module. B A is the gradient of a product with B's rows for inputs: dy^T x with dy = B^T, x = A. */
static bool module_merge(struct model *m, const struct merge *g, const struct tensor *w, const struct tensor *a, const struct tensor *b,
                         struct error *err)
{
    bool ok = false;
    size_t e = dtype_size(m->dtype), b_bytes = (size_t)b->n_elem * e;
    int64_t rank = a->dim[0], n_out = b->dim[0];
    char *turned = g->host + b_bytes;
    void *at = m->weights + (size_t)w->offset * e;
    TRY(mem_copy(m->dev, g->host, m->lora->weights + (size_t)b->offset * e, b_bytes, COPY_D2H, err) && device_sync(m->dev, err));
    for (int64_t o = 0; o < n_out; o++)
        for (int64_t r = 0; r < rank; r++)
            memcpy(turned + (size_t)(r * n_out + o) * e, g->host + (size_t)(o * rank + r) * e, e);
    TRY(mem_copy(m->dev, g->b, turned, b_bytes, COPY_H2D, err) && device_sync(m->dev, err));
    TRY(OP(m->dev, err, linear_bwd_w, .dw = g->delta, .dy = g->b, .x = m->lora->weights + (size_t)a->offset * e, .n = rank, .n_out = n_out,
           .n_in = a->dim[1], .dtype = m->dtype, .set = true));
    TRY(OP(m->dev, err, cast, .y = g->sum, .x = at, .n = w->n_elem, .scale = 1, .y_dtype = DT_F32, .x_dtype = m->dtype));
    TRY(OP(m->dev, err, axpy, .y = g->sum, .x = g->delta, .n = w->n_elem, .scale = m->lora->scale));
    TRY(OP(m->dev, err, cast, .y = at, .x = g->sum, .n = w->n_elem, .scale = 1, .y_dtype = m->dtype, .x_dtype = DT_F32));
    ok = true;
out:
    return ok;
}

/* The base's matrix that an adapter's tensor belongs to. */
static const struct tensor *merged_into(const struct model *m, const struct tensor *a)
{
    const char *name = a->name + strlen(PREFIX), *end = strstr(name, ".lora_");
    for (int64_t i = 0; i < m->flat.n_tensor; i++)
        if (strncmp(m->flat.tensor[i].name, name, (size_t)(end - name)) == 0
            && strcmp(m->flat.tensor[i].name + (end - name), ".weight") == 0)
            return &m->flat.tensor[i];
    return NULL;
}

/* The B of A's module: the tensor of its name with another letter. */
static const struct tensor *b_of(const struct lora *lo, const struct tensor *a)
{
    char name[sizeof a->name];
    snprintf(name, sizeof name, "%s", a->name);
    strstr(name, ".lora_A.")[6] = 'B';
    for (int64_t i = 0; i < lo->flat.n_tensor; i++)
        if (strcmp(lo->flat.tensor[i].name, name) == 0)
            return &lo->flat.tensor[i];
    return NULL;
}

bool model_lora_merge(struct model *m, struct error *err)
{
    bool ok = false;
    const struct lora *lo = m->lora;
    struct merge g = { 0 };
    int64_t most = 0, most_b = 0;
    size_t e = dtype_size(m->dtype);
    BUG_IF(!lo || m->base, "only a model with its own weights and an adapter can be merged");
    for (int64_t i = 0; i < m->flat.n_tensor; i++)
        most = MAX(most, m->flat.tensor[i].n_elem);
    for (int64_t i = 0; i < lo->flat.n_tensor; i++)
        most_b = MAX(most_b, lo->flat.tensor[i].n_elem);
    TRY(g.sum = mem_new(m->dev, (size_t)most * 4, "a matrix to merge into", err));
    TRY(g.delta = mem_new(m->dev, (size_t)most * 4, "a matrix to merge", err));
    TRY(g.b = mem_new(m->dev, (size_t)most_b * e, "a matrix to merge", err));
    if (!(g.host = malloc(2 * (size_t)most_b * e))) {
        error_set(err, ERR_NO_MEMORY, "no memory to merge an adapter");
        goto out;
    }
    for (int64_t i = 0; i < lo->flat.n_tensor; i++) {
        const struct tensor *a = &lo->flat.tensor[i];
        if (!strstr(a->name, ".lora_A."))
            continue;
        const struct tensor *w = merged_into(m, a), *b = b_of(lo, a);
        BUG_IF(!w || !b, "'%s' belongs to no matrix", a->name);
        TRY(module_merge(m, &g, w, a, b, err));
    }
    TRY(device_sync(m->dev, err));
    lora_free(m);
    ok = model_weights_changed(m, err) && device_sync(m->dev, err);
out:
    mem_free(m->dev, g.sum);
    mem_free(m->dev, g.delta);
    mem_free(m->dev, g.b);
    free(g.host);
    return ok;
}

/* ---- shapes and views */
bool model_lora_shape(struct model *m, const struct lora_config *c, struct error *err)
{
    BUG_IF(m->form != &weights_none, "a model with weights");
    struct lora *lo = table_new(m, c, err);
    if (lo)
        adapter_is(m, lo);
    return lo;
}

struct model *model_view(const struct model *base, struct error *err)
{
    struct model *m = malloc(sizeof *m);
    if (!m) {
        error_set(err, ERR_NO_MEMORY, "no memory for a model");
        return NULL;
    }
    *m = *base;
    m->base = base;
    m->shared = false;
    adapter_is(m, NULL);
    return m;
}

static void *lora_memory(const struct model *m)
{
    return m->lora->weights;
}

static size_t lora_held(const struct model *m)
{
    size_t base = m->base ? 0 : (size_t)m->flat.n_flat * dtype_size(m->dtype);    // a view's are the base's
    return base + model_weight_bytes(m);
}

/* Make a view of m's base, with an adapter of its own that is all 0. */
static struct model *adapter_new_like(const struct model *m, struct error *err)
{
    struct model *n = model_view(m->base ? m->base : m, err);
    if (n && !lora_like(n, m->lora, err)) {
        model_free(n);
        return NULL;
    }
    return n;
}

static bool adapter_cut_check(UNUSED const struct model *m, int n, struct error *err)
{
    return error_set(err, ERR_UNSUPPORTED, "a model with an adapter cannot be cut over %d devices; 1 device is possible", n);
}

/* Before the adapter has its weights there is nothing to make. */
static bool adapter_handles(struct model *m, struct error *err)
{
    return !m->lora->weights || lora_handles_new(m, err);
}

const struct trained_form trained_adapter = {
    .cut_check = adapter_cut_check, .handles = adapter_handles, .like = adapter_new_like, .save = lora_save, .shards = lora_shards
};

const struct weights_form weights_adapter = { WEIGHTS_IN_PLACE,     .memory = lora_memory, .share = lora_share, .changed = lora_changed,
                                              .bring = whole_bring, .fill = whole_fill,    .held = lora_held };
