/* experts_test.c - choosing experts, their products and their sum: by hand, against ref, by finite differences, and to the bit
 *
 * A layer of experts is put together here from the operations as a block does it, so that the forward and the backward pass are tried
 * as a whole, too. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/unit/layer_ops.h"

/* Sizes of a layer: n rows of d go to k of `experts` experts of width f. */
struct size {
    int64_t n, d, f, experts, k;
    enum route_kind kind;
    bool normalise, biased;
    float scale;
};
/* Its memory; fp32 values are rounded to dtype where it says so. Owned. */
struct layer {
    struct size s;
    enum dtype dtype;
    void *x, *router, *gate_up, *down, *dy;    // inputs
    float *bias;                               // of the choice
    float *logits, *weight, *dweight;          // (n, experts), (n, k) twice
    int32_t *expert, *first, *row, *place;
    int64_t *load;
    void *rows, *gu, *act, *dact, *dlogits;    // (n k) of d, 2 f, f and f; (n, experts)
    void *y, *dx;                              // (n, d)
    float *drouter, *dgate_up, *ddown;         // gradients of weights
};

static struct layer layer_new(struct size s, enum dtype t)
{
    int64_t pairs = s.n * s.k;
    size_t e = dtype_size(t);
    drawn = 99 + (uint64_t)(s.n * 31 + s.experts);
    struct layer l = { .s = s, .dtype = t };
    l.x = values(s.n * s.d, t, 1);
    l.router = values(s.experts * s.d, t, 3 / sqrt((double)s.d));
    l.gate_up = values(s.experts * 2 * s.f * s.d, t, 1 / sqrt((double)s.d));
    l.down = values(s.experts * s.d * s.f, t, 1 / sqrt((double)s.f));
    l.dy = values(s.n * s.d, t, 1);
    l.bias = s.biased ? values(s.experts, DT_F32, 0.3) : NULL;
    l.logits = room(s.n * s.experts, 4);
    l.weight = room(pairs, 4);
    l.dweight = room(pairs, 4);
    l.expert = room(pairs, 4);
    l.first = room(s.experts + 1, 4);
    l.row = room(pairs, 4);
    l.place = room(pairs, 4);
    l.load = calloc((size_t)s.experts, sizeof *l.load);
    l.rows = room(pairs * s.d, e);
    l.gu = room(pairs * 2 * s.f, e);
    l.act = room(pairs * s.f, e);
    l.dact = room(pairs * s.f, e);
    l.dlogits = room(s.n * s.experts, e);
    l.y = room(s.n * s.d, e);
    l.dx = room(s.n * s.d, e);
    l.drouter = room(s.experts * s.d, 4);
    l.dgate_up = room(s.experts * 2 * s.f * s.d, 4);
    l.ddown = room(s.experts * s.d * s.f, 4);
    return l;
}
/* Every piece of a layer's memory. */
#define N_PIECE 24
struct piece {
    void **p;
    size_t bytes;
};
static void pieces(struct layer *l, struct piece out[N_PIECE])
{
    const struct size *s = &l->s;
    size_t e = dtype_size(l->dtype), n = (size_t)s->n, d = (size_t)s->d, f = (size_t)s->f, x = (size_t)s->experts, pairs = n * (size_t)s->k;
    const struct piece all[N_PIECE] = { { &l->x, n * d * e },
                                        { &l->router, x * d * e },
                                        { &l->gate_up, x * 2 * f * d * e },
                                        { &l->down, x * d * f * e },
                                        { &l->dy, n * d * e },
                                        { (void **)&l->bias, l->bias ? x * 4 : 0 },
                                        { (void **)&l->logits, n * x * 4 },
                                        { (void **)&l->weight, pairs * 4 },
                                        { (void **)&l->dweight, pairs * 4 },
                                        { (void **)&l->expert, pairs * 4 },
                                        { (void **)&l->first, (x + 1) * 4 },
                                        { (void **)&l->row, pairs * 4 },
                                        { (void **)&l->place, pairs * 4 },
                                        { (void **)&l->load, x * 8 },
                                        { &l->rows, pairs * d * e },
                                        { &l->gu, pairs * 2 * f * e },
                                        { &l->act, pairs * f * e },
                                        { &l->dact, pairs * f * e },
                                        { &l->dlogits, n * x * e },
                                        { &l->y, n * d * e },
                                        { &l->dx, n * d * e },
                                        { (void **)&l->drouter, x * d * 4 },
                                        { (void **)&l->dgate_up, x * 2 * f * d * 4 },
                                        { (void **)&l->ddown, x * d * f * 4 } };
    memcpy(out, all, sizeof all);
}
static void layer_free(struct layer *l)
{
    struct piece all[N_PIECE];
    pieces(l, all);
    for (size_t i = 0; i < N_PIECE; i++)
        free(*all[i].p);
}
/* The layer in dev's memory; and what is there, back into l. */
static struct layer layer_send(struct device *dev, const struct layer *l)
{
    struct layer there = *l;
    struct piece all[N_PIECE];
    pieces(&there, all);
    for (size_t i = 0; i < N_PIECE; i++)
        if (all[i].bytes > 0)
            *all[i].p = sent(dev, *all[i].p, all[i].bytes);
    return there;
}
static void layer_fetch(struct device *dev, struct layer *l, struct layer *there)
{
    struct piece all[N_PIECE], own[N_PIECE];
    pieces(there, all);
    pieces(l, own);
    for (size_t i = 0; i < N_PIECE; i++)
        if (all[i].bytes > 0)
            fetched(dev, *own[i].p, *all[i].p, all[i].bytes);
}

struct handles {
    struct weight *router, *gate_up, *down;
};
static struct handles handles_new(struct device *dev, const struct layer *l)
{
    const struct size *s = &l->s;
    struct handles h = { weight_new(dev, l->router, l->dtype, s->experts, s->d, 1, true, &err),
                         weight_new_grouped(dev, l->gate_up, l->dtype, s->experts, 2 * s->f, s->d, true, &err),
                         weight_new_grouped(dev, l->down, l->dtype, s->experts, s->d, s->f, true, &err) };
    TRUE(h.router && h.gate_up && h.down);
    return h;
}
static void handles_free(struct device *dev, struct handles h)
{
    weight_free(dev, h.router);
    weight_free(dev, h.gate_up);
    weight_free(dev, h.down);
}

static void layer_fwd(struct device *dev, struct layer *l, const struct handles *h)
{
    const struct size *s = &l->s;
    int64_t pairs = s->n * s->k;
    enum dtype t = l->dtype;
    TRUE(OP(dev, &err, linear_fwd, .y = l->logits, .x = l->x, .w = h->router, .n = s->n, .y_dtype = DT_F32));
    TRUE(OP(dev, &err, route_fwd, .expert = l->expert, .weight = l->weight, .logits = l->logits, .bias = l->bias, .n = s->n,
            .n_expert = s->experts, .k = s->k, .kind = s->kind, .normalise = s->normalise, .scale = s->scale));
    TRUE(OP(dev, &err, group_rows, .first = l->first, .row = l->row, .place = l->place, .load = l->load, .expert = l->expert, .n = s->n,
            .n_expert = s->experts, .k = s->k));
    TRUE(OP(dev, &err, rows_gather, .y = l->rows, .table = l->x, .row = l->row, .n = pairs, .n_row = s->n, .d = s->d, .dtype = t));
    TRUE(OP(dev, &err, group_fwd, .y = l->gu, .x = l->rows, .w = h->gate_up, .first = l->first, .n = pairs));
    TRUE(OP(dev, &err, swiglu_fwd, .y = l->act, .gu = l->gu, .n = pairs, .f = s->f, .dtype = t));
    TRUE(OP(dev, &err, group_fwd, .y = l->rows, .x = l->act, .w = h->down, .first = l->first, .n = pairs));
    TRUE(OP(dev, &err, combine_fwd, .y = l->y, .x = l->rows, .weight = l->weight, .place = l->place, .n = s->n, .k = s->k, .d = s->d,
            .dtype = t));
}

static void layer_bwd(struct device *dev, struct layer *l, const struct handles *h)
{
    const struct size *s = &l->s;
    int64_t pairs = s->n * s->k;
    enum dtype t = l->dtype;
    TRUE(OP(dev, &err, rows_gather, .y = l->rows, .table = l->dy, .row = l->row, .n = pairs, .n_row = s->n, .d = s->d, .dtype = t));
    TRUE(OP(dev, &err, group_bwd_x, .dx = l->dact, .dy = l->rows, .w = h->down, .first = l->first, .n = pairs));
    TRUE(OP(dev, &err, combine_bwd, .dweight = l->dweight, .x = l->act, .dx = l->dact, .weight = l->weight, .place = l->place, .n = s->n,
            .k = s->k, .f = s->f, .dtype = t));
    TRUE(OP(dev, &err, group_bwd_w, .dw = l->ddown, .dy = l->rows, .x = l->act, .first = l->first, .n = pairs, .n_group = s->experts,
            .n_out = s->d, .n_in = s->f, .dtype = t, .set = true));
    TRUE(OP(dev, &err, swiglu_bwd, .dgu = l->gu, .dy = l->dact, .gu = l->gu, .n = pairs, .f = s->f, .dtype = t));
    TRUE(OP(dev, &err, rows_gather, .y = l->rows, .table = l->x, .row = l->row, .n = pairs, .n_row = s->n, .d = s->d, .dtype = t));
    TRUE(OP(dev, &err, group_bwd_w, .dw = l->dgate_up, .dy = l->gu, .x = l->rows, .first = l->first, .n = pairs, .n_group = s->experts,
            .n_out = 2 * s->f, .n_in = s->d, .dtype = t, .set = true));
    TRUE(OP(dev, &err, group_bwd_x, .dx = l->rows, .dy = l->gu, .w = h->gate_up, .first = l->first, .n = pairs));
    TRUE(OP(dev, &err, combine_fwd, .y = l->dx, .x = l->rows, .place = l->place, .n = s->n, .k = s->k, .d = s->d, .dtype = t));
    TRUE(OP(dev, &err, route_bwd, .dlogits = l->dlogits, .dweight = l->dweight, .logits = l->logits, .expert = l->expert, .n = s->n,
            .n_expert = s->experts, .k = s->k, .kind = s->kind, .normalise = s->normalise, .scale = s->scale, .dtype = t));
    TRUE(OP(dev, &err, linear_bwd_w, .dw = l->drouter, .dy = l->dlogits, .x = l->x, .n = s->n, .n_out = s->experts, .n_in = s->d,
            .dtype = t, .set = true));
    TRUE(OP(dev, &err, linear_bwd_x, .dx = l->dx, .dy = l->dlogits, .w = h->router, .n = s->n, .accumulate = true));
}

static struct layer layer_run(struct device *dev, struct size s, enum dtype t)
{
    struct layer l = layer_new(s, t), there = layer_send(dev, &l);
    struct handles h = handles_new(dev, &there);
    layer_fwd(dev, &there, &h);
    layer_bwd(dev, &there, &h);
    handles_free(dev, h);
    layer_fetch(dev, &l, &there);
    return l;
}

/* What is compared of two layers of the same inputs. */
#define N_RESULT 5
static void results(const struct layer *l, struct result out[N_RESULT])
{
    const struct size *s = &l->s;
    const struct result all[N_RESULT] = { { "y", l->y, s->n * s->d, l->dtype },
                                          { "dx", l->dx, s->n * s->d, l->dtype },
                                          { "drouter", l->drouter, s->experts * s->d, DT_F32 },
                                          { "dgate_up", l->dgate_up, s->experts * 2 * s->f * s->d, DT_F32 },
                                          { "ddown", l->ddown, s->experts * s->d * s->f, DT_F32 } };
    memcpy(out, all, sizeof all);
}

static const struct size sizes[] = {
    { .n = 1, .d = 32, .f = 16, .experts = 4, .k = 2, .normalise = true, .scale = 1 },
    { .n = 7, .d = 48, .f = 20, .experts = 40, .k = 3, .scale = 1 },    // most experts without rows
    { .n = 100, .d = 37, .f = 51, .experts = 8, .k = 8, .scale = 1.5f },
    { .n = 333, .d = 64, .f = 96, .experts = 5, .k = 2, .kind = ROUTE_SIGMOID, .normalise = true, .biased = true, .scale = 2.5f },
    { .n = 40, .d = 64, .f = 33, .experts = 16, .k = 4, .kind = ROUTE_SIGMOID, .scale = 1 },
    { .n = 1500, .d = 32, .f = 32, .experts = 2, .k = 1, .normalise = true, .scale = 1 },
    { .n = 250, .d = 320, .f = 160, .experts = 6, .k = 4, .normalise = true, .scale = 1 },    // tiles with an end, in every direction
};

static void experts_are_chosen_and_weighted_as_worked_out_by_hand(UNUSED void **state)
{
    /* logits ln 1, ln 2, ln 4, ln 1: p 1/8, 1/4, 1/2, 1/8; sigmoids 1/2, 2/3, 4/5, 1/2 */
    static const float ln[] = { 0, 0.69314718f, 1.38629436f, 0 }, equal[4], bias[] = { 0.4f, 0, 0, 0.4f };
    static const struct {
        const float *logits, *bias;
        enum route_kind kind;
        bool normalise;
        float scale;
        int32_t expert[2];
        float weight[2];
        const char *why;
    } cases[] = {
        { ln, NULL, ROUTE_SOFTMAX, false, 1, { 1, 2 }, { 0.25f, 0.5f }, "softmax over all" },
        { ln, NULL, ROUTE_SOFTMAX, true, 1, { 1, 2 }, { 1.0f / 3, 2.0f / 3 }, "softmax over the chosen" },
        { ln, NULL, ROUTE_SOFTMAX, false, 3, { 1, 2 }, { 0.75f, 1.5f }, "scaled" },
        { equal, NULL, ROUTE_SOFTMAX, false, 1, { 0, 1 }, { 0.25f, 0.25f }, "among equals the lower ids" },
        { ln, NULL, ROUTE_SIGMOID, false, 1, { 1, 2 }, { 2.0f / 3, 0.8f }, "sigmoid" },
        { ln, NULL, ROUTE_SIGMOID, true, 2, { 1, 2 }, { 2 * 2.0f / 3 / (22.0f / 15), 2 * 0.8f / (22.0f / 15) }, "sigmoid, normalised" },
        { ln, bias, ROUTE_SIGMOID, false, 1, { 0, 3 }, { 0.5f, 0.5f }, "the bias changes the choice, not the weights" },
    };
    struct device *dev[] = { device_new("ref", 0, &err), tested() };
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++)
        for (size_t v = 0; v < ARRAY_SIZE(dev); v++) {
            int32_t expert[2] = { -1, -1 };
            float weight[2] = { NAN, NAN };
            float *logits = sent(dev[v], cases[c].logits, 16), *added = cases[c].bias ? sent(dev[v], cases[c].bias, 16) : NULL;
            int32_t *to = sent(dev[v], expert, sizeof expert);
            float *weights = sent(dev[v], weight, sizeof weight);
            TRUE(OP(dev[v], &err, route_fwd, .expert = to, .weight = weights, .logits = logits, .bias = added, .n = 1, .n_expert = 4,
                    .k = 2, .kind = cases[c].kind, .normalise = cases[c].normalise, .scale = cases[c].scale));
            fetched(dev[v], expert, to, sizeof expert);
            fetched(dev[v], weight, weights, sizeof weight);
            mem_free(dev[v], logits);
            mem_free(dev[v], added);
            for (int j = 0; j < 2; j++)
                if (expert[j] != cases[c].expert[j] || !(fabsf(weight[j] - cases[c].weight[j]) < 1e-6f))
                    fail_msg("%s: expert %d weighs %g, not expert %d %g", cases[c].why, expert[j], weight[j], cases[c].expert[j],
                             cases[c].weight[j]);
        }
    device_free(dev[0]);
    device_free(dev[1]);
}

static void rows_are_grouped_by_expert_and_then_in_order(UNUSED void **state)
{
    static const int32_t expert[] = { 0, 3, 0, 1, 1, 3 }, first[] = { 0, 2, 4, 4, 6 }, row[] = { 0, 1, 1, 2, 0, 2 },
                         place[] = { 0, 4, 1, 2, 3, 5 };
    int32_t got_first[5] = { -1 }, got_row[6] = { -1 }, got_place[6] = { -1 };
    int64_t load[4] = { 10, 10, 10, 10 };
    static const int64_t loads[] = { 12, 12, 10, 12 };
    struct device *dev = tested();
    void *from = sent(dev, expert, sizeof expert), *to[] = { sent(dev, got_first, sizeof first), sent(dev, got_row, sizeof row),
                                                             sent(dev, got_place, sizeof place), sent(dev, load, sizeof load) };
    TRUE(OP(dev, &err, group_rows, .first = to[0], .row = to[1], .place = to[2], .load = to[3], .expert = from, .n = 3, .n_expert = 4,
            .k = 2));
    fetched(dev, got_first, to[0], sizeof first);
    fetched(dev, got_row, to[1], sizeof row);
    fetched(dev, got_place, to[2], sizeof place);
    fetched(dev, load, to[3], sizeof load);
    mem_free(dev, from);
    assert_memory_equal(got_first, first, sizeof first);
    assert_memory_equal(got_row, row, sizeof row);
    assert_memory_equal(got_place, place, sizeof place);
    assert_memory_equal(load, loads, sizeof loads);
    device_free(dev);
}

static void a_layer_of_experts_agrees_with_ref(UNUSED void **state)
{
    struct device *ref = device_new("ref", 0, &err), *dev = tested();
    for (size_t c = 0; c < ARRAY_SIZE(sizes); c++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct layer want = layer_run(ref, sizes[c], t), got = layer_run(dev, sizes[c], t);
            struct result a[N_RESULT], b[N_RESULT];
            results(&want, a);
            results(&got, b);
            /* of several operations that round to bf16; one expert of weight 1 leaves nothing for the router to learn */
            results_near(a, b, N_RESULT, t == DT_BF16 ? 1e-2 : 5e-6, sizes[c].k == 1 ? 1e-6 : 0, c, t);
            layer_free(&want);
            layer_free(&got);
        }
    device_free(ref);
    device_free(dev);
}

static void code_paths_and_threads_give_a_layer_the_same_bits(UNUSED void **state)
{
    for (size_t c = 0; c < ARRAY_SIZE(sizes); c++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct layer first = { 0 };
            for (size_t v = 0; v < ARRAY_SIZE(cpu_variants); v++) {
                struct device *dev = cpu_of(cpu_variants[v].path, cpu_variants[v].n_thread);
                if (!dev)
                    continue;
                struct layer got = layer_run(dev, sizes[c], t);
                device_free(dev);
                if (!first.x) {
                    first = got;
                    continue;
                }
                struct result a[N_RESULT], b[N_RESULT];
                results(&first, a);
                results(&got, b);
                results_same(a, b, N_RESULT, &cpu_variants[v], c);
                layer_free(&got);
            }
            layer_free(&first);
        }
}

static void a_row_alone_gets_the_bits_it_has_among_others(UNUSED void **state)
{
    struct device *dev = tested();
    for (size_t c = 0; c < ARRAY_SIZE(sizes); c++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct layer all = layer_run(dev, sizes[c], t), weights = layer_send(dev, &all);
            struct size s = sizes[c];
            size_t row_bytes = (size_t)s.d * dtype_size(t);
            struct handles h = handles_new(dev, &weights);
            int64_t step = MAX(s.n / 20, (int64_t)1);
            for (int64_t i = 0; i < s.n; i += step) {
                struct size of_one = s;
                of_one.n = 1 + i % 3 < s.n - i ? 1 + i % 3 : 1;
                struct layer one = layer_new(of_one, t);
                memcpy(one.x, (char *)all.x + (size_t)i * row_bytes, (size_t)of_one.n * row_bytes);
                memcpy(one.dy, (char *)all.dy + (size_t)i * row_bytes, (size_t)of_one.n * row_bytes);
                if (one.bias)
                    memcpy(one.bias, all.bias, (size_t)s.experts * 4);
                struct layer there = layer_send(dev, &one);
                layer_fwd(dev, &there, &h);
                layer_bwd(dev, &there, &h);
                layer_fetch(dev, &one, &there);
                if (memcmp(one.y, (char *)all.y + (size_t)i * row_bytes, (size_t)of_one.n * row_bytes) != 0)
                    fail_msg("size %zu: row %d has other bits among %d than among %d", c, (int)i, (int)of_one.n, (int)s.n);
                if (memcmp(one.dx, (char *)all.dx + (size_t)i * row_bytes, (size_t)of_one.n * row_bytes) != 0)
                    fail_msg("size %zu: the gradient by row %d has other bits among %d than among %d", c, (int)i, (int)of_one.n, (int)s.n);
                layer_free(&one);
            }
            handles_free(dev, h);
            layer_fetch(dev, &all, &weights);
            layer_free(&all);
        }
    device_free(dev);
}

struct layer_on {
    struct device *dev;
    struct layer l;
    int32_t chosen[18];    // experts of the rows
};
static void forward(void *of)
{
    struct layer_on *on = of;
    struct handles h = handles_new(on->dev, &on->l);
    layer_fwd(on->dev, &on->l, &h);
    handles_free(on->dev, h);
    assert_memory_equal(on->l.expert, on->chosen, sizeof on->chosen);    // a choice has no slope
}
static void the_backward_is_the_slope_of_the_forward(UNUSED void **state)
{
    static const struct size tried[] = {
        { .n = 9, .d = 24, .f = 16, .experts = 5, .k = 2, .normalise = true, .scale = 1 },
        { .n = 9, .d = 24, .f = 16, .experts = 5, .k = 2, .scale = 1.5f },
        { .n = 9, .d = 24, .f = 16, .experts = 5, .k = 2, .kind = ROUTE_SIGMOID, .normalise = true, .biased = true, .scale = 2.5f },
        { .n = 9, .d = 24, .f = 16, .experts = 5, .k = 2, .kind = ROUTE_SIGMOID, .biased = true, .scale = 1 },
    };
    struct device *dev = device_new("ref", 0, &err);
    for (size_t c = 0; c < ARRAY_SIZE(tried); c++) {
        struct layer_on on = { dev, layer_run(dev, tried[c], DT_F32), { 0 } };
        struct layer *l = &on.l;
        const struct size *s = &l->s;
        memcpy(on.chosen, l->expert, sizeof on.chosen);
        const struct forward f = { forward, &on, l->dy, l->y, s->n * s->d };
        const struct input inputs[] = { { "x", l->x, l->dx, s->n * s->d },
                                        { "router", l->router, l->drouter, s->experts * s->d },
                                        { "gate_up", l->gate_up, l->dgate_up, s->experts * 2 * s->f * s->d },
                                        { "down", l->down, l->ddown, s->experts * s->d * s->f } };
        for (size_t k = 0; k < ARRAY_SIZE(inputs); k++)
            slope_check(&f, &inputs[k], 1.5e-3, c);
        layer_free(l);
    }
    device_free(dev);
}

static void a_gradient_is_added_once_or_set(UNUSED void **state)
{
    struct device *dev = tested();
    for (size_t c = 0; c < ARRAY_SIZE(sizes); c++) {
        struct layer l = layer_run(dev, sizes[c], DT_BF16);
        const struct size *s = &l.s;
        int64_t n = s->experts * s->d * s->f;
        float *added = values(n, DT_F32, 1), *before = malloc((size_t)n * 4);
        struct layer there = layer_send(dev, &l);
        float *sums = sent(dev, added, (size_t)n * 4);
        memcpy(before, added, (size_t)n * 4);
        /* rows holds the gradient by the gathered inputs now: any values do */
        for (int set = 0; set < 2; set++)
            TRUE(OP(dev, &err, group_bwd_w, .dw = set ? there.ddown : sums, .dy = there.rows, .x = there.act, .first = there.first,
                    .n = s->n * s->k, .n_group = s->experts, .n_out = s->d, .n_in = s->f, .dtype = DT_BF16, .set = set));
        layer_fetch(dev, &l, &there);
        fetched(dev, added, sums, (size_t)n * 4);
        for (int64_t i = 0; i < n; i++)
            before[i] += l.ddown[i];
        assert_memory_equal(added, before, (size_t)n * 4);
        free(added);
        free(before);
        layer_free(&l);
    }
    device_free(dev);
}

static void what_does_not_fit_is_refused_with_a_sentence(UNUSED void **state)
{
    struct device *dev = cpu_of(NULL, 1);
    float x[64] = { 0 };
    int32_t first[] = { 0, 2, 1, 3 }, expert[] = { 0, 7 };
    assert_false(OP(dev, &err, route_fwd, .n = 1, .n_expert = 4, .k = 5));
    assert_non_null(strstr(err.text, "route_fwd: 5 of 4 experts"));
    assert_false(OP(dev, &err, group_rows, .expert = expert, .n = 1, .n_expert = 4, .k = 2));
    assert_non_null(strstr(err.text, "id 7"));
    assert_false(OP(dev, &err, group_bwd_w, .dw = x, .dy = x, .x = x, .first = first, .n = 3, .n_group = 3, .n_out = 2, .n_in = 2));
    assert_non_null(strstr(err.text, "group_bwd_w: the groups"));
    assert_null(weight_new_grouped(dev, x, DT_F32, ROUTE_EXPERTS_MAX + 1, 1, 1, false, &err));
    device_free(dev);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_chosen_and_weighted_as_worked_out_by_hand),
        cmocka_unit_test(rows_are_grouped_by_expert_and_then_in_order),
        cmocka_unit_test(a_layer_of_experts_agrees_with_ref),
        cmocka_unit_test(code_paths_and_threads_give_a_layer_the_same_bits),
        cmocka_unit_test(a_row_alone_gets_the_bits_it_has_among_others),
        cmocka_unit_test(the_backward_is_the_slope_of_the_forward),
        cmocka_unit_test(a_gradient_is_added_once_or_set),
        cmocka_unit_test(what_does_not_fit_is_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
