/* model.c - the weights of a model: the table of tensors, the memory and the handles
 *
 * model_files.c loads and saves them, model_random.c draws them, source.c leaves them where they are, bound.c keeps shards instead, team.c
 * cuts them over several devices, lora.c puts an adapter on them. */
#include "workers/engine/model/model.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/model/lora.h"
#include "workers/engine/model/lora_impl.h"
#include "workers/engine/model/model_impl.h"
#include "workers/engine/model/pipeline.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/model/stages.h"
#include "workers/engine/model/team_impl.h"
#include "workers/engine/model/wrapper.h"

/* ---- the table */
struct table {
    struct model *m;
    int64_t cap;
    int64_t at;    // elements laid out so far
    bool none;     // what comes next belongs to another stage
};

/* The next tensor, directly after the previous one. */
static int64_t tensor_put(struct table *t, int64_t rows, int64_t cols, const char *fmt, int64_t layer)
{
    struct model *m = t->m;
    BUG_IF(m->flat.n_tensor >= t->cap, "table of %" PRId64 " tensors is too small", t->cap);
    struct tensor *x = &m->flat.tensor[m->flat.n_tensor++];
    char suffix[64];
    if (layer < 0)
        snprintf(x->name, sizeof x->name, "%s", fmt);
    else {
        snprintf(suffix, sizeof suffix, "%s", fmt);
        snprintf(x->name, sizeof x->name, "model.layers.%" PRId64 ".%s", layer, suffix);
    }
    rows = t->none ? 0 : rows;
    x->n_dim = cols ? 2 : 1;
    x->dim[0] = rows;
    x->dim[1] = cols;
    x->n_elem = rows * (cols ? cols : 1);
    x->offset = t->at;
    t->at += x->n_elem;
    return x->offset;
}

/* Start a part: the tensors added from here to the next part are neighbours. */
static void part_begin(struct table *t)
{
    t->at = part_aligned(t->at);
}

static int64_t part_put(struct table *t, int64_t rows, int64_t cols, const char *name, int64_t layer)
{
    part_begin(t);
    return tensor_put(t, rows, cols, name, layer);
}

/* A matrix or bias of rows[0] + rows[1] + ... rows: one tensor each, or one named `fused` where the files have that. */
static int64_t parts_put(struct table *t, const int64_t *rows, int n, int64_t cols, const char *const *names, const char *fused,
                         int64_t layer)
{
    int64_t sum = 0, at = 0;
    for (int i = 0; i < n; i++)
        sum += rows[i];
    if (t->m->c.fused_names)
        return part_put(t, sum, cols, fused, layer);
    for (int i = 0; i < n; i++) {
        int64_t own = i == 0 ? part_put(t, rows[i], cols, names[i], layer) : tensor_put(t, rows[i], cols, names[i], layer);
        at = i == 0 ? own : at;
    }
    return at;
}

/* One tensor of n matrices. */
static int64_t matrices_put(struct table *t, int64_t n, int64_t rows, int64_t cols, const char *name, int64_t layer)
{
    int64_t at = part_put(t, n * rows, cols, name, layer);
    struct tensor *x = &t->m->flat.tensor[t->m->flat.n_tensor - 1];
    x->n_dim = 3;
    x->dim[0] = t->none ? 0 : n;
    x->dim[1] = rows;
    x->dim[2] = cols;
    return at;
}

/* The router and the experts of a layer: gate and up of each are neighbours, as are the experts, so that each of the two products has all
 * its matrices in a row, however the files have them. */
static void experts_put(struct table *t, int64_t l)
{
    static const struct {
        const char *router, *expert, *gate, *up, *down;
    } names[] = {
        [EXPERTS_MLP] = { "mlp.gate.weight", "mlp.experts", "gate_proj", "up_proj", "down_proj" },
        [EXPERTS_SPARSE] = { "block_sparse_moe.gate.weight", "block_sparse_moe.experts", "w1", "w3", "w2" },
        [EXPERTS_FUSED] = { "block_sparse_moe.router.layer.weight", NULL, "block_sparse_moe.input_linear.weight", NULL,
                            "block_sparse_moe.output_linear.weight" },
    };
    const struct model_config *c = &t->m->c;
    struct layer_at *at = &t->m->at[l];
    int64_t d = c->d_model, f = c->experts.d_ff;
    const char *of = names[c->experts.files].expert;
    if (!of) {
        at->gate_up = matrices_put(t, c->experts.n, 2 * f, d, names[c->experts.files].gate, l);
        at->down = matrices_put(t, c->experts.n, d, f, names[c->experts.files].down, l);
    }
    for (int k = 0; of && k < 2; k++) {    // gates and ups first
        part_begin(t);
        *(k == 0 ? &at->gate_up : &at->down) = t->at;
        for (int64_t e = 0; e < c->experts.n; e++) {
            const char *const matrix[2][2] = { { names[c->experts.files].gate, names[c->experts.files].up },
                                               { names[c->experts.files].down, NULL } };
            for (int i = 0; i < 2 && matrix[k][i]; i++) {
                char name[64];
                snprintf(name, sizeof name, "%s.%" PRId64 ".%s.weight", of, e, matrix[k][i]);
                tensor_put(t, k == 0 ? f : d, k == 0 ? d : f, name, l);
            }
        }
    }
    at->router = part_put(t, c->experts.n, d, names[c->experts.files].router, l);
}

/* The names of a layer's norms: before and after each half. "post_attention_layernorm" is a different one for each place. */
static const struct {
    const char *ln1, *post1, *ln2, *post2;
} norm_names[] = {
    [NORM_BEFORE] = { "input_layernorm.weight", NULL, "post_attention_layernorm.weight", NULL },
    [NORM_AFTER] = { NULL, "post_attention_layernorm.weight", NULL, "post_feedforward_layernorm.weight" },
    [NORM_AROUND] = { "input_layernorm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight",
                      "post_feedforward_layernorm.weight" },
};
static int64_t norm_put(struct table *t, const char *name, int64_t l)
{
    return name ? part_put(t, t->m->c.d_model, 0, name, l) : AT_NONE;
}

/* The tensors of a gated delta net. Its projections of the input are neighbours: one product. */
static void delta_put(struct table *t, int64_t l)
{
    static const char *const names[] = { "linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight", "linear_attn.in_proj_b.weight",
                                         "linear_attn.in_proj_a.weight" };
    const struct model_config *c = &t->m->c;
    struct layer_at *at = &t->m->at[l];
    struct delta_heads h = c->delta.heads;
    int64_t v = (int64_t)h.n_v * h.d_v;
    const int64_t rows[] = { delta_channels(h), v, h.n_v, h.n_v };
    at->qkv = parts_put(t, rows, 4, c->d_model, names, NULL, l);
    at->conv = matrices_put(t, delta_channels(h), 1, 4, "linear_attn.conv1d.weight", l);
    at->a_log = part_put(t, h.n_v, 0, "linear_attn.A_log", l);
    at->dt_bias = part_put(t, h.n_v, 0, "linear_attn.dt_bias", l);
    at->gate_norm = part_put(t, h.d_v, 0, "linear_attn.norm.weight", l);
    at->o = part_put(t, c->d_model, v, "linear_attn.out_proj.weight", l);
}

/* The tensors of attention. */
static void attn_put(struct table *t, int64_t l)
{
    static const char *const names[] = { "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight" };
    static const char *const biases[] = { "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias" };
    const struct model_config *c = &t->m->c;
    struct layer_at *at = &t->m->at[l];
    int64_t q = c->n_head * c->d_head, kv = c->n_kv_head * c->d_head, q_rows = c->attn_gate ? 2 * q : q;
    const int64_t rows[] = { q_rows, kv, kv };
    at->qkv = parts_put(t, rows, 3, c->d_model, names, "self_attn.qkv_proj.weight", l);
    if (c->qkv_bias)
        at->qkv_bias = parts_put(t, rows, 3, 0, biases, "self_attn.qkv_proj.bias", l);
    if (c->qk_norm) {
        at->q_norm = part_put(t, c->qk_norm_wide ? q : c->d_head, 0, "self_attn.q_norm.weight", l);
        at->k_norm = part_put(t, c->qk_norm_wide ? kv : c->d_head, 0, "self_attn.k_norm.weight", l);
    }
    at->o = part_put(t, c->d_model, q, "self_attn.o_proj.weight", l);
    if (c->o_bias)
        at->o_bias = part_put(t, c->d_model, 0, "self_attn.o_proj.bias", l);
}

static void layer_put(struct table *t, int64_t l)
{
    static const char *const gate_up_names[] = { "mlp.gate_proj.weight", "mlp.up_proj.weight" };
    static const char *const gate_up_biases[] = { "mlp.gate_proj.bias", "mlp.up_proj.bias" };
    const struct model_config *c = &t->m->c;
    struct layer_at *at = &t->m->at[l];
    int64_t d = c->d_model;
    const int64_t gate_up_rows[] = { c->d_ff, c->d_ff };
    *at = (struct layer_at){ .qkv_bias = AT_NONE,
                             .q_norm = AT_NONE,
                             .k_norm = AT_NONE,
                             .o_bias = AT_NONE,
                             .conv = AT_NONE,
                             .a_log = AT_NONE,
                             .dt_bias = AT_NONE,
                             .gate_norm = AT_NONE,
                             .gate_up_bias = AT_NONE,
                             .down_bias = AT_NONE,
                             .router = AT_NONE };
    part_begin(t);
    at->first = t->at;
    at->ln1 = norm_put(t, norm_names[c->norm_place].ln1, l);
    if (config_is_delta(c, l))
        delta_put(t, l);
    else
        attn_put(t, l);
    at->post1 = norm_put(t, norm_names[c->norm_place].post1, l);
    at->ln2 = norm_put(t, norm_names[c->norm_place].ln2, l);
    if (config_is_sparse(c, l)) {
        experts_put(t, l);
    } else {
        at->gate_up = parts_put(t, gate_up_rows, 2, d, gate_up_names, "mlp.gate_up_proj.weight", l);
        if (c->mlp_bias)
            at->gate_up_bias = parts_put(t, gate_up_rows, 2, 0, gate_up_biases, "mlp.gate_up_proj.bias", l);
        at->down = part_put(t, d, c->d_ff, "mlp.down_proj.weight", l);
        if (c->mlp_bias)
            at->down_bias = part_put(t, d, 0, "mlp.down_proj.bias", l);
    }
    at->post2 = norm_put(t, norm_names[c->norm_place].post2, l);
}

void flat_release(struct flat_order *t)
{
    free(t->tensor);
    free(t->piece_at);
}

static bool pieces_make(struct model *m, struct error *err)
{
    int64_t n_layer = m->c.n_layer, *at = m->flat.piece_at = calloc((size_t)n_layer + 3, sizeof *at);
    if (!at)
        return error_set(err, ERR_NO_MEMORY, "no memory for a table of %" PRId64 " layers", n_layer);
    for (int64_t l = 0; l < n_layer; l++)
        at[1 + l] = m->at[l].first;
    m->flat.n_piece = (int)n_layer + 1;
    if (m->head_at != m->embed_at)
        at[m->flat.n_piece++] = m->head_at;
    at[m->flat.n_piece] = m->flat.n_flat;
    return true;
}

static bool table_make(struct model *m, struct error *err)
{
    const struct model_config *c = &m->c;
    struct table t = { .m = m, .cap = (20 + 3 * c->experts.n) * c->n_layer + 3 };
    m->flat.tensor = calloc((size_t)t.cap, sizeof *m->flat.tensor);
    m->at = calloc((size_t)c->n_layer, sizeof *m->at);
    m->layer = calloc((size_t)c->n_layer, sizeof *m->layer);
    if (!m->flat.tensor || !m->at || !m->layer)
        return error_set(err, ERR_NO_MEMORY, "no memory for the table of %" PRId64 " tensors", t.cap);
    t.none = !m->own.embed;
    m->embed_at = part_put(&t, c->vocab, c->d_model, "model.embed_tokens.weight", -1);
    for (int64_t l = 0; l < c->n_layer; l++) {
        t.none = !model_has_layer(m, l);
        layer_put(&t, l);
    }
    t.none = !m->own.head;
    m->norm_at = part_put(&t, c->d_model, 0, "model.norm.weight", -1);
    m->head_at = c->tied ? m->embed_at : part_put(&t, c->vocab, c->d_model, "lm_head.weight", -1);
    part_begin(&t);
    m->flat.n_flat = t.at;
    m->trained = &m->flat;
    m->trains = &trained_all;
    weights_form_set(m);
    return pieces_make(m, err);
}

/* ---- creating and freeing */
bool model_parts_set(struct model *m, int parts, struct error *err)
{
    BUG_IF(!m->form->plain, "sums in parts of a team, of shards, of a view or under an adapter");
    if (parts == m->parts)
        return true;
    if (parts > 0 && !team_check(&m->c, 1, parts, err))
        return false;
    m->parts = parts;
    if (!m->head)
        return true;
    model_handles_free(m);
    return model_handles_new(m, err);
}

void model_free(struct model *m)
{
    if (!m)
        return;
    team_free(m->team);
    lora_free(m);
    if (m->base) {    // the rest is the base's
        free(m);
        return;
    }
    wrapper_free(m);
    weights_free(m);
    bound_free(m);
    source_free(m);
    free(m->layer);
    free(m->at);
    flat_release(&m->flat);
    free(m);
}

bool model_device_check(const struct model_config *c, const struct device *dev, struct error *err)
{
    static const int64_t on_cuda[] = { 16, 32, 64, 96, 128, 256 };
    if (dev->kind != DEVICE_CUDA)
        return (c->d_head % 16 == 0 && c->d_head >= 16 && c->d_head <= 256)
               || error_set(err, ERR_UNSUPPORTED, "'head_dim' is %" PRId64 "; on a CPU multiples of 16 up to 256 are supported", c->d_head);
    for (size_t i = 0; i < ARRAY_SIZE(on_cuda); i++)
        if (c->d_head == on_cuda[i])
            return true;
    return error_set(err, ERR_UNSUPPORTED, "'head_dim' is %" PRId64 "; on a GPU 16, 32, 64, 96, 128 and 256 are supported", c->d_head);
}

static struct model *table_new(const struct model_config *c, const struct stage_part *own, struct error *err)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m) {
        error_set(err, ERR_NO_MEMORY, "no memory for a model");
        return NULL;
    }
    m->c = *c;
    m->own = *own;
    m->vocab_all = c->vocab;
    m->n_device = 1;
    if (table_make(m, err))
        return m;
    model_free(m);
    return NULL;
}

struct model *model_shape_new(const struct model_config *c, struct error *err)
{
    return table_new(c, &(struct stage_part){ 0, c->n_layer, true, true }, err);
}

static struct model *part_new(const struct model *m, const struct model_config *c, const struct stage_part *own, struct device *dev,
                              struct error *err)
{
    struct model *s = table_new(c, own, err);
    if (!s)
        return NULL;
    s->dev = dev;
    s->dtype = m->dtype;
    s->n_live = MIN(m->n_live, c->vocab);
    s->parts = m->parts;
    s->for_bwd = m->for_bwd;
    s->n_stage = m->n_stage;
    s->stage = m->stage;
    s->n_shared = m->n_shared;
    return s;
}

struct model *model_stage_table(const struct model *m, struct device *dev, int n, int q, struct error *err)
{
    struct stage_part own = { .embed = q == stage_of_embedding(&m->c, n), .head = q == n - 1 };
    stage_layers(&m->c, n, q, &own.first, &own.end);
    struct model *s = part_new(m, &m->c, &own, dev, err);
    if (s) {
        s->n_stage = n;
        s->stage = q;
        s->n_shared = own.embed && own.head ? pipeline_shared(n) : 0;
    }
    return s;
}

struct model *model_part_table(const struct model *m, const struct model_config *c, struct device *dev, struct error *err)
{
    return part_new(m, c, &m->own, dev, err);
}

struct model *model_new_shape(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err)
{
    struct model *m = model_shape_new(c, err);
    if (!m)
        return NULL;
    m->dev = dev;
    m->dtype = dtype;
    m->n_live = c->vocab;
    return m;
}

struct model *model_weights_alloc(struct model *m, struct error *err)
{
    if (m && weights_room(m, false, err))
        return m;
    model_free(m);
    return NULL;
}

struct model *model_shape_checked(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err)
{
    return model_device_check(c, dev, err) ? model_new_shape(c, dev, dtype, err) : NULL;
}

struct model *model_alloc(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err)
{
    return model_weights_alloc(model_new_shape(c, dev, dtype, err), err);
}

struct model *model_new_empty(const struct model_config *c, struct device *dev, enum dtype dtype, struct error *err)
{
    struct model *m = model_alloc(c, dev, dtype, err);
    if (m && !model_handles_new(m, err)) {
        model_free(m);
        return NULL;
    }
    return m;
}

static struct model *all_like(const struct model *m, struct error *err)
{
    BUG_IF(model_keeps_shards(m), "a second copy of weights in shards");
    struct model *n = model_alloc(&m->c, m->dev, m->dtype, err);
    if (!n)
        return NULL;
    n->n_live = m->n_live;
    n->for_bwd = m->for_bwd;
    n->parts = m->parts;
    if (!model_handles_new(n, err)) {
        model_free(n);
        return NULL;
    }
    return n;
}

static bool all_cut_check(const struct model *m, int n, struct error *err)
{
    return team_check(&m->c, n, m->parts, err);
}

const struct trained_form trained_all = {
    .cut_check = all_cut_check, .handles = weights_stay, .like = all_like, .save = whole_save, .shards = shards_open
};

struct model *model_new_like(const struct model *m, struct error *err)
{
    return m->trains->like(m, err);
}

struct model *model_shape_like(const struct model *m, struct error *err)
{
    BUG_IF(m->lora || m->base, "the shape of an adapter or a view");
    struct model *n = model_new_shape(&m->c, m->dev, m->dtype, err);
    if (!n)
        return NULL;
    n->n_live = m->n_live;
    n->parts = m->parts;
    return n;
}

void model_length_set(struct model *m, int64_t n_tok)
{
    m->c.rope.is_long = m->c.rope.type == ROPE_LONG && n_tok > m->c.rope.original_max_pos;
    for (int q = 0; q < team_size(m->team); q++)
        model_length_set(team_rank(m->team, q)->slice, n_tok);
}

/* ---- inspection */
const struct model_config *model_config(const struct model *m)
{
    return &m->c;
}

enum dtype model_dtype(const struct model *m)
{
    return m->dtype;
}

struct device *model_device(const struct model *m)
{
    return m->dev;
}

int64_t model_n_live(const struct model *m)
{
    return m->n_live;
}

void model_n_live_set(struct model *m, int64_t n_live)
{
    BUG_IF(n_live < 1 || n_live > m->c.vocab, "n_live is %" PRId64 " of %" PRId64, n_live, m->c.vocab);
    m->n_live = n_live;
    for (int q = 0; model_is_staged(m) && q < team_size(m->team); q++)
        team_rank(m->team, q)->slice->n_live = n_live;
}

int64_t model_n_tensor(const struct model *m)
{
    return m->trained->n_tensor;
}

const struct tensor *model_tensor(const struct model *m, int64_t i)
{
    return &m->trained->tensor[i];
}

int64_t model_n_flat(const struct model *m)
{
    return m->trained->n_flat;
}

int model_n_piece(const struct model *m)
{
    return m->trained->n_piece;
}

int64_t model_piece(const struct model *m, int p, int64_t *first)
{
    *first = m->trained->piece_at[p];
    return m->trained->piece_at[p + 1] - *first;
}

void *model_weights(const struct model *m, size_t *size_bytes)
{
    BUG_IF(!m->form->memory, "the whole of weights in shards or slices, or elsewhere");
    *size_bytes = model_weight_bytes(m);
    return m->form->memory(m);
}

bool model_is_whole(const struct model *m)
{
    return m->form->memory != NULL;
}

size_t model_weight_bytes(const struct model *m)
{
    return (size_t)model_n_flat(m) * dtype_size(m->dtype);
}

size_t model_held_bytes(const struct model *m)
{
    return m->form->held(m);
}

const struct mem_handle *model_share(struct model *m, struct error *err)
{
    BUG_IF(!m->form->share, "the whole of weights in shards or slices, or of a view");
    return m->form->share(m, err);
}

bool model_weights_take(struct model *m, struct error *err)
{
    return m->form->take(m, err);
}

bool model_weights_changed(struct model *m, struct error *err)
{
    return m->form->changed(m, err);
}

bool model_weights_copy(struct model *dst, const struct model *src, struct error *err)
{
    if (model_n_flat(dst) != model_n_flat(src) || dst->trains != src->trains || dst->dtype != src->dtype || dst->dev != src->dev)
        return error_set(err, ERR_SHAPE, "weights can only be copied between models of one shape, type and device");
    return src->form->give ? src->form->give(src, dst, err) : dst->form->fill(dst, src, err);
}

bool model_weights_hash(const struct model *m, uint64_t *hash, struct error *err)
{
    bool ok = false;
    uint64_t *out = mem_new(m->dev, sizeof *out, "hash", err);
    if (!out)
        return false;
    size_t size;
    const void *weights = model_weights(m, &size);
    TRY(OP(m->dev, err, mem_hash, .hash = out, .x = weights, .size_bytes = size));
    TRY(mem_copy(m->dev, hash, out, sizeof *out, COPY_D2H, err));
    TRY(device_sync(m->dev, err));
    ok = true;
out:
    mem_free(m->dev, out);
    return ok;
}

/* ---- files */
bool model_save_copy(const struct model *m, const void *weights, const char *dir, struct error *err)
{
    return m->trains->save(m, weights, dir, err);
}

struct shards *model_shards(const struct model *m, const char *dir, struct error *err)
{
    return m->trains->shards(dir, err);
}

bool model_save(const struct model *m, const char *dir, struct error *err)
{
    size_t size;
    const void *weights = model_weights(m, &size);
    if (m->dev->host_memory)
        return device_sync(m->dev, err) && model_save_copy(m, weights, dir, err);
    bool ok = false;
    void *copy = malloc(size);
    if (!copy)
        return error_set(err, ERR_NO_MEMORY, "no memory for a host copy of %zu bytes of weights", size);
    TRY(mem_copy(m->dev, copy, weights, size, COPY_D2H, err));
    TRY(device_sync(m->dev, err));
    TRY(model_save_copy(m, copy, dir, err));
    ok = true;
out:
    free(copy);
    return ok;
}
