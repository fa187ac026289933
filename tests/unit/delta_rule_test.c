/* delta_rule_test.c - the gated delta net's operations: against ref, by finite differences, and to the bit however a sequence is cut
 *
 * A layer is put together here from the operations as a block does it: convolution, recurrence, gated norm. OPS_DEVICE (cuda:0) names
 * another device to test instead of the CPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/unit/layer_ops.h"

struct size {
    int32_t seq[5];    // bounds of the sequences
    int64_t n_seq;
    struct delta_heads heads;
};
static const struct size sizes[] = {
    { { 0, 1 }, 1, { 1, 1, 16, 16, false } },
    { { 0, 5, 6, 150, 214 }, 4, { 2, 4, 8, 24, false } },    // longer than DELTA_KEEP, and just as long
    { { 0, 70, 77 }, 2, { 2, 6, 32, 8, true } },
    { { 0, 3, 9 }, 2, { 1, 2, 40, 128, false } },
    { { 0, 66 }, 1, { 2, 2, 128, 20, true } },
    { { 0, 130, 131, 200 }, 3, { 2, 4, 128, 128, false } },    // Qwen3.5's
    { { 0, 67 }, 1, { 1, 2, 256, 70, false } },
};
/* Inputs, results and gradients; owned. */
struct layer {
    struct size s;
    enum dtype dtype;
    int64_t n;
    void *row, *conv, *a_log, *dt_bias, *norm, *dy;
    void *x, *o, *y, *drow, *dx, *dout;
    float *dconv, *da_log, *ddt_bias, *dnorm;
};
#define EPS 1e-6f

static struct layer layer_new(struct size s, enum dtype t)
{
    struct delta_heads h = s.heads;
    int64_t n = s.seq[s.n_seq], c = delta_channels(h), w = delta_columns(h), v = (int64_t)h.n_v * h.d_v;
    size_t e = dtype_size(t);
    drawn = 7 + (uint64_t)n;
    return (struct layer){ .s = s,
                           .dtype = t,
                           .n = n,
                           .row = values(n * w, t, 1),
                           .conv = values(c * 4, t, 0.6),
                           .a_log = values(h.n_v, t, 0.5),
                           .dt_bias = values(h.n_v, t, 1),
                           .norm = values(h.d_v, t, 1),
                           .dy = values(n * v, t, 1),
                           .x = room(n * c, e),
                           .o = room(n * v, e),
                           .y = room(n * v, e),
                           .drow = room(n * w, e),
                           .dx = room(n * c, e),
                           .dout = room(n * v, e),
                           .dconv = calloc((size_t)(c * 4), 4),
                           .da_log = calloc((size_t)h.n_v, 4),
                           .ddt_bias = calloc((size_t)h.n_v, 4),
                           .dnorm = calloc((size_t)h.d_v, 4) };
}
#define N_PIECE 16
struct piece {
    void **p;
    size_t bytes;
};
static void pieces(struct layer *l, struct piece out[N_PIECE])
{
    struct delta_heads h = l->s.heads;
    size_t e = dtype_size(l->dtype), n = (size_t)l->n * e, v = (size_t)(h.n_v * h.d_v), c = (size_t)delta_channels(h),
           w = (size_t)delta_columns(h), n_v = (size_t)h.n_v, d_v = (size_t)h.d_v;
    const struct piece all[N_PIECE] = { { &l->row, n * w },
                                        { &l->conv, 4 * c * e },
                                        { &l->a_log, n_v * e },
                                        { &l->dt_bias, n_v * e },
                                        { &l->norm, d_v * e },
                                        { &l->dy, n * v },
                                        { &l->x, n * c },
                                        { &l->o, n * v },
                                        { &l->y, n * v },
                                        { &l->drow, n * w },
                                        { &l->dx, n * c },
                                        { &l->dout, n * v },
                                        { (void **)&l->dconv, 16 * c },
                                        { (void **)&l->da_log, n_v * 4 },
                                        { (void **)&l->ddt_bias, n_v * 4 },
                                        { (void **)&l->dnorm, d_v * 4 } };
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
        *all[i].p = sent(dev, *all[i].p, all[i].bytes);
    return there;
}
static void layer_fetch(struct device *dev, struct layer *l, struct layer *there)
{
    struct piece all[N_PIECE], own[N_PIECE];
    pieces(there, all);
    pieces(l, own);
    for (size_t i = 0; i < N_PIECE; i++)
        fetched(dev, *own[i].p, *all[i].p, all[i].bytes);
}
/* All of its sequences; their bounds in dev's memory, or in l's where seq is NULL. */
static struct delta_seqs packed(const struct layer *l, const int32_t *seq)
{
    return (struct delta_seqs){ .seq = seq ? seq : l->s.seq, .n = l->n, .n_seq = l->s.n_seq };
}

/* Rows from `first` on, as `of` says. */
static void rows_fwd(struct device *dev, struct layer *l, int64_t first, struct delta_seqs of)
{
    struct delta_heads h = l->s.heads;
    size_t e = dtype_size(l->dtype);
    char *row = (char *)l->row + (size_t)(first * delta_columns(h)) * e, *x = (char *)l->x + (size_t)(first * delta_channels(h)) * e;
    size_t v = (size_t)(first * h.n_v * h.d_v) * e;
    TRUE(OP(dev, &err, conv4_fwd, .y = x, .x = row, .w = l->conv, .of = of, .heads = h, .dtype = l->dtype));
    TRUE(OP(dev, &err, delta_rule_fwd, .o = (char *)l->o + v, .x = x, .row = row, .a_log = l->a_log, .dt_bias = l->dt_bias, .of = of,
            .heads = h, .dtype = l->dtype));
    TRUE(OP(dev, &err, gated_norm_fwd, .y = (char *)l->y + v, .o = (char *)l->o + v, .row = row, .w = l->norm, .n = of.n, .eps = EPS,
            .heads = h, .dtype = l->dtype));
}
static void layer_bwd(struct device *dev, struct layer *l, struct delta_seqs of)
{
    struct delta_heads h = l->s.heads;
    size_t bytes = delta_bwd_bytes(dev, h, l->n);
    void *room = bytes ? mem_new(dev, bytes, "a test", &err) : NULL;
    TRUE(room || !bytes);
    TRUE(OP(dev, &err, gated_norm_bwd, .dout = l->dout, .drow = l->drow, .dw = l->dnorm, .dy = l->dy, .o = l->o, .row = l->row,
            .w = l->norm, .n = l->n, .eps = EPS, .heads = h, .dtype = l->dtype));
    TRUE(OP(dev, &err, delta_rule_bwd, .dx = l->dx, .drow = l->drow, .da_log = l->da_log, .ddt_bias = l->ddt_bias, .room = room,
            .dout = l->dout, .x = l->x, .row = l->row, .a_log = l->a_log, .dt_bias = l->dt_bias, .of = of, .heads = h, .dtype = l->dtype));
    TRUE(OP(dev, &err, conv4_bwd, .dx = l->drow, .dw = l->dconv, .dy = l->dx, .x = l->row, .w = l->conv, .of = of, .heads = h,
            .dtype = l->dtype));
    mem_free(dev, room);
}
/* l there and back, forward and backward. */
static void layer_pass(struct device *dev, struct layer *l)
{
    struct layer there = layer_send(dev, l);
    int32_t *seq = sent(dev, l->s.seq, sizeof l->s.seq);
    rows_fwd(dev, &there, 0, packed(&there, seq));
    layer_bwd(dev, &there, packed(&there, seq));
    layer_fetch(dev, l, &there);
    mem_free(dev, seq);
}
static struct layer layer_run(struct device *dev, struct size s, enum dtype t)
{
    struct layer l = layer_new(s, t);
    layer_pass(dev, &l);
    return l;
}

#define N_RESULT 6
static void results(const struct layer *l, struct result out[N_RESULT])
{
    struct delta_heads h = l->s.heads;
    const struct result all[N_RESULT] = { { "y", l->y, l->n * h.n_v * h.d_v, l->dtype },
                                          { "the gradient by the projection", l->drow, l->n * delta_columns(h), l->dtype },
                                          { "that by the convolution", l->dconv, delta_channels(h) * 4, DT_F32 },
                                          { "that by A_log", l->da_log, h.n_v, DT_F32 },
                                          { "that by dt_bias", l->ddt_bias, h.n_v, DT_F32 },
                                          { "that by the norm", l->dnorm, h.d_v, DT_F32 } };
    memcpy(out, all, sizeof all);
}

static void a_layer_agrees_with_ref(UNUSED void **state)
{
    struct device *ref = device_new("ref", 0, &err), *dev = tested();
    for (size_t c = 0; c < ARRAY_SIZE(sizes); c++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct layer want = layer_run(ref, sizes[c], t), got = layer_run(dev, sizes[c], t);
            struct result a[N_RESULT], b[N_RESULT];
            results(&want, a);
            results(&got, b);
            /* of several operations that round to bf16; a sequence of one token has no use for what it forgets */
            results_near(a, b, N_RESULT, t == DT_BF16 ? 2e-2 : 2e-5, 1e-7, c, t);
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

/* A decoding step is recorded where it can be, and then run. */
static void rows_step(struct device *dev, struct layer *l, int64_t first, struct delta_seqs of)
{
    if (!dev->can_capture) {
        rows_fwd(dev, l, first, of);
        return;
    }
    TRUE(graph_begin(dev, &err));
    rows_fwd(dev, l, first, of);
    struct graph *g = graph_end(dev, &err);
    TRUE(g && graph_launch(dev, g, &err) && device_sync(dev, &err));
    graph_free(dev, g);
}
/* Each sequence by itself, `step` tokens in a call, with a state that is garbage at first. */
static void a_sequence_has_the_same_bits_packed_or_cut_anywhere_or_token_by_token(UNUSED void **state)
{
    struct device *dev = tested();
    for (size_t c = 0; c < ARRAY_SIZE(sizes); c++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct layer l = layer_new(sizes[c], t), all = layer_send(dev, &l), cut = layer_send(dev, &l);
            int64_t floats = delta_state_floats(sizes[c].heads);
            size_t bytes = (size_t)(l.n * sizes[c].heads.n_v * sizes[c].heads.d_v) * dtype_size(t);
            float *states = mem_new(dev, (size_t)(3 * floats) * 4, "a test", &err);
            int32_t *d_seq = sent(dev, sizes[c].seq, sizeof sizes[c].seq), *d_slot = sent(dev, &(int32_t){ 0 }, 4), pos[256];
            char *want = malloc(bytes), *got = malloc(bytes);
            for (int i = 0; i < 256; i++)
                pos[i] = i;
            int32_t *d_pos = sent(dev, pos, sizeof pos);
            TRUE(OP(dev, &err, mem_fill, .y = states, .size_bytes = (size_t)(3 * floats) * 4, .byte = 0xff));
            rows_fwd(dev, &all, 0, packed(&all, d_seq));
            TRUE(mem_copy(dev, want, all.y, bytes, COPY_D2H, &err));
            for (int64_t step = 1; step < 90; step = step * 3 + 1) {
                TRUE(OP(dev, &err, mem_fill, .y = cut.y, .size_bytes = bytes, .byte = 0xff));
                for (int64_t s = 0; s < sizes[c].n_seq; s++)
                    for (int32_t i = sizes[c].seq[s], slot = (int32_t)(2 - s % 3), end; i < sizes[c].seq[s + 1]; i = end) {
                        end = (int32_t)MIN(i + step, (int64_t)sizes[c].seq[s + 1]);
                        int32_t seq[] = { 0, end - i };
                        TRUE(mem_copy(dev, d_seq, seq, sizeof seq, COPY_H2D, &err) && mem_copy(dev, d_slot, &slot, 4, COPY_H2D, &err)
                             && device_sync(dev, &err));
                        (step == 1 ? rows_step : rows_fwd)(dev, &cut, i,
                                                           (struct delta_seqs){ .seq = step == 1 ? NULL : d_seq,
                                                                                .slot = d_slot,
                                                                                .pos = d_pos + (i - sizes[c].seq[s]),
                                                                                .state = states,
                                                                                .n = end - i,
                                                                                .n_seq = 1 });
                    }
                TRUE(mem_copy(dev, got, cut.y, bytes, COPY_D2H, &err) && device_sync(dev, &err));
                assert_memory_equal(got, want, bytes);
            }
            mem_free(dev, states);
            mem_free(dev, d_seq);
            mem_free(dev, d_slot);
            mem_free(dev, d_pos);
            free(want);
            free(got);
            layer_fetch(dev, &l, &all);
            layer_fetch(dev, &l, &cut);
            layer_free(&l);
        }
    device_free(dev);
}

/* The gradients by a sequence's rows, packed with others and alone; those by weights, twice. */
static void gradients_have_the_same_bits_twice_and_those_of_rows_packed_and_alone(UNUSED void **state)
{
    struct device *dev = tested();
    for (size_t c = 0; c < ARRAY_SIZE(sizes); c++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct layer all = layer_run(dev, sizes[c], t), again = layer_run(dev, sizes[c], t);
            struct result a[N_RESULT], b[N_RESULT];
            results(&all, a);
            results(&again, b);
            for (int i = 0; i < N_RESULT; i++)
                assert_memory_equal(a[i].p, b[i].p, (size_t)a[i].n * dtype_size(a[i].dtype));
            int32_t last = (int32_t)sizes[c].n_seq - 1, from = sizes[c].seq[last], n = sizes[c].seq[last + 1] - from;
            size_t row = (size_t)delta_columns(sizes[c].heads) * dtype_size(t),
                   v = (size_t)(sizes[c].heads.n_v * sizes[c].heads.d_v) * dtype_size(t);
            struct layer one = layer_new((struct size){ { 0, n }, 1, sizes[c].heads }, t);
            void *same[][2] = { { one.conv, all.conv }, { one.a_log, all.a_log }, { one.dt_bias, all.dt_bias }, { one.norm, all.norm } };
            const size_t size[] = { (size_t)delta_channels(sizes[c].heads) * 4, (size_t)sizes[c].heads.n_v, (size_t)sizes[c].heads.n_v,
                                    (size_t)sizes[c].heads.d_v };
            for (int i = 0; i < 4; i++)
                memcpy(same[i][0], same[i][1], size[i] * dtype_size(t));
            memcpy(one.row, (char *)all.row + (size_t)from * row, (size_t)n * row);
            memcpy(one.dy, (char *)all.dy + (size_t)from * v, (size_t)n * v);
            layer_pass(dev, &one);
            assert_memory_equal(one.drow, (char *)all.drow + (size_t)from * row, (size_t)n * row);
            layer_free(&one);
            layer_free(&all);
            layer_free(&again);
        }
    device_free(dev);
}

/* Two sequences decode beside a row that is none; what is in other slots stays. */
static void rows_of_a_batch_do_not_touch_each_others_states(UNUSED void **state)
{
    struct size s = { { 0, 1, 2, 3 }, 3, { 2, 4, 16, 16, false } };
    struct device *dev = tested();
    int64_t floats = delta_state_floats(s.heads), v = (int64_t)s.heads.n_v * s.heads.d_v;
    size_t bytes = (size_t)(4 * floats) * 4;
    int32_t slot[] = { 3, -1, 0 }, pos[] = { 5, 0, 9 }, one = 2;
    struct layer l = layer_new(s, DT_F32), there = layer_send(dev, &l), alone = layer_new(s, DT_F32), alone_there = layer_send(dev, &alone);
    drawn = 1;
    float *states = values(4 * floats, DT_F32, 0.3), *before = malloc(bytes), *after = malloc(bytes);
    memcpy(before, states, bytes);
    float *d_states = sent(dev, states, bytes);
    int32_t *d_slot = sent(dev, slot, sizeof slot), *d_pos = sent(dev, pos, sizeof pos), *d_one = sent(dev, &one, sizeof one);
    rows_step(dev, &there, 0, (struct delta_seqs){ .slot = d_slot, .pos = d_pos, .state = d_states, .n = 3, .n_seq = 3 });
    fetched(dev, states, d_states, bytes);
    layer_fetch(dev, &l, &there);
    assert_memory_equal(states + floats, before + floats, (size_t)(2 * floats) * 4);
    for (int64_t i = v; i < 2 * v; i++)
        assert_true(((float *)l.o)[i] == 0);
    for (int i = 0; i < 3; i += 2) {
        memcpy(before + 2 * floats, before + slot[i] * floats, (size_t)floats * 4);
        d_states = sent(dev, before, bytes);
        rows_fwd(dev, &alone_there, i, (struct delta_seqs){ .slot = d_one, .pos = d_pos + i, .state = d_states, .n = 1, .n_seq = 1 });
        fetched(dev, after, d_states, bytes);
        assert_memory_equal(after + 2 * floats, states + slot[i] * floats, (size_t)floats * 4);
    }
    layer_fetch(dev, &alone, &alone_there);
    for (int64_t i = 0; i < 3; i += 2)
        assert_memory_equal((float *)alone.y + i * v, (float *)l.y + i * v, (size_t)v * 4);
    mem_free(dev, d_slot);
    mem_free(dev, d_pos);
    mem_free(dev, d_one);
    free(states);
    free(before);
    free(after);
    layer_free(&l);
    layer_free(&alone);
    device_free(dev);
}

struct layer_on {
    struct device *dev;
    struct layer l;
};
static void forward(void *of)
{
    struct layer_on *on = of;
    rows_fwd(on->dev, &on->l, 0, packed(&on->l, NULL));
}
static void the_backward_is_the_slope_of_the_forward(UNUSED void **state)
{
    struct device *dev = device_new("ref", 0, &err);
    for (size_t c = 1; c < 3; c++) {
        struct layer_on on = { dev, layer_run(dev, sizes[c], DT_F32) };
        struct layer *l = &on.l;
        struct delta_heads h = l->s.heads;
        const struct forward f = { forward, &on, l->dy, l->y, l->n * h.n_v * h.d_v };
        const struct input inputs[] = { { "projection", l->row, l->drow, l->n * delta_columns(h) },
                                        { "conv", l->conv, l->dconv, delta_channels(h) * 4 },
                                        { "A_log", l->a_log, l->da_log, h.n_v },
                                        { "dt_bias", l->dt_bias, l->ddt_bias, h.n_v },
                                        { "norm", l->norm, l->dnorm, h.d_v } };
        for (size_t k = 0; k < ARRAY_SIZE(inputs); k++)
            slope_check(&f, &inputs[k], 3e-3, c);
        layer_free(l);
    }
    device_free(dev);
}

/* Gates of heads: taken out of the rows and put back, and the gradient by hand: y = x / 2 where the gate is 0, dgate = dy x / 4. */
static void gates_are_split_off_applied_and_put_back(UNUSED void **state)
{
    struct device *devs[] = { tested(), device_new("ref", 0, &err) };
    struct attn_heads heads = { 2, 1, 16 };
    for (size_t v = 0; v < ARRAY_SIZE(devs); v++) {
        struct device *dev = devs[v];
        float both[2 * 96], qkv[2 * 64], gate[2 * 32], again[2 * 96], x[] = { 2, -6 }, zero[2] = { 0 }, dy[] = { 8, 1 }, y[2], dgate[2];
        for (int i = 0; i < 2 * 96; i++)
            both[i] = (float)i;
        void *d_both = sent(dev, both, sizeof both), *d_qkv = sent(dev, both, sizeof qkv), *d_gate = sent(dev, both, sizeof gate);
        void *d_again = mem_new(dev, sizeof again, "a test", &err);
        TRUE(OP(dev, &err, gate_split, .qkv = d_qkv, .gate = d_gate, .both = d_both, .n = 2, .heads = heads));
        TRUE(OP(dev, &err, gate_join, .both = d_again, .qkv = d_qkv, .gate = d_gate, .n = 2, .heads = heads));
        fetched(dev, qkv, d_qkv, sizeof qkv);
        fetched(dev, gate, d_gate, sizeof gate);
        fetched(dev, again, d_again, sizeof again);
        assert_true(qkv[64 + 16] == 96 + 32 && gate[32 + 16] == 96 + 48 && qkv[64 + 32] == 96 + 64 && qkv[63] == 95);
        assert_memory_equal(again, both, sizeof both);
        void *d_x = sent(dev, x, sizeof x), *d_zero = sent(dev, zero, sizeof zero), *d_dy = sent(dev, dy, sizeof dy);
        void *d_y = mem_new(dev, sizeof y, "a test", &err), *d_dgate = mem_new(dev, sizeof dgate, "a test", &err);
        TRUE(OP(dev, &err, gate_fwd, .y = d_y, .x = d_x, .gate = d_zero, .n = 2));
        TRUE(OP(dev, &err, gate_bwd, .dx = d_dy, .dgate = d_dgate, .dy = d_dy, .x = d_x, .gate = d_zero, .n = 2));
        fetched(dev, y, d_y, sizeof y);
        fetched(dev, dy, d_dy, sizeof dy);
        fetched(dev, dgate, d_dgate, sizeof dgate);
        assert_true(y[0] == 1 && y[1] == -3);
        assert_true(dy[0] == 4 && dy[1] == 0.5f && dgate[0] == 4 && dgate[1] == -1.5f);
        mem_free(dev, d_both);
        mem_free(dev, d_x);
        mem_free(dev, d_zero);
        device_free(dev);
    }
}

static void what_does_not_fit_is_refused_with_a_sentence(UNUSED void **state)
{
    struct device *dev = cpu_of(NULL, 1), *ref = device_new("ref", 0, &err);
    int32_t seq[] = { 0, 2 };
    struct delta_seqs of = { .seq = seq, .n = 2, .n_seq = 1 };
    assert_false(OP(dev, &err, delta_rule_fwd, .of = of, .heads = { 2, 3, 16, 16, false }));
    assert_non_null(strstr(err.text, "delta_rule_fwd: 2 key heads of 16 and 3 value heads of 16"));
    of.n = 3;
    assert_false(OP(dev, &err, conv4_bwd, .of = of, .heads = { 2, 4, 16, 16, false }));
    assert_non_null(strstr(err.text, "conv4_bwd"));
    struct delta_heads wide = { 2, 4, 16, DELTA_WIDTH_MAX + 1, false };
    struct device *devs[] = { dev, ref };
    for (size_t v = 0; v < ARRAY_SIZE(devs); v++) {
        assert_false(OP(devs[v], &err, gated_norm_fwd, .n = 1, .heads = wide));
        assert_non_null(strstr(err.text, "gated_norm_fwd: 2 key heads of 16 and 4 value heads of 257"));
        assert_false(OP(devs[v], &err, gated_norm_bwd, .n = 1, .heads = wide));
        assert_non_null(strstr(err.text, "gated_norm_bwd"));
        device_free(devs[v]);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_agrees_with_ref),
        cmocka_unit_test(code_paths_and_threads_give_a_layer_the_same_bits),
        cmocka_unit_test(a_sequence_has_the_same_bits_packed_or_cut_anywhere_or_token_by_token),
        cmocka_unit_test(gradients_have_the_same_bits_twice_and_those_of_rows_packed_and_alone),
        cmocka_unit_test(rows_of_a_batch_do_not_touch_each_others_states),
        cmocka_unit_test(the_backward_is_the_slope_of_the_forward),
        cmocka_unit_test(gates_are_split_off_applied_and_put_back),
        cmocka_unit_test(what_does_not_fit_is_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
