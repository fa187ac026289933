/* The model against PyTorch and transformers (tests/golden/make_models.py): logits, gradients, ten optimizer steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/file.h"
#include "tests/unit/golden_model.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/pass/pass.h"

static const char *const names[] = { "qwen2-tied",  "qwen2-untied",   "qwen3-tied",   "qwen3-untied",   "llama-scaled", "llama-tied",
                                     "qwen2-yarn",  "mistral-linear", "granite",      "smollm3",        "llama-biased", "olmo2",
                                     "olmo3",       "phi3",           "phi3-long",    "llama-longrope", "phi3-longer",  "gemma2",
                                     "gemma3",      "mistral-window", "qwen2-window", "qwen3-moe",      "olmoe",        "mixtral",
                                     "granite-moe", "qwen3-5" };
static const char *const devices[] = { "ref", "cpu:0" };
static void golden_open(struct golden *g, const char *name, const char *device, enum dtype dtype)
{
    struct error err = { 0 };
    *g = (struct golden){ 0 };
    snprintf(g->dir, sizeof g->dir, "%s/golden/models/%s", data_dir(), name);
    if (!(g->dev = device_new(device, 2, &err)) || !(g->m = model_load(g->dir, g->dev, dtype, &err)))
        fail_msg("%s", err.text);
    model_length_set(g->m, MAX_TOK);
    golden_read(g);
}

/* Memory for a gradient that is asked for piece by piece. */
struct pieces {
    const struct model *m;
    float *flat;    // (n_flat) where each piece has its place, and had anything before
    int64_t end;    // of the pieces so far, from the last to the first
};
static float *piece_begin(void *ctx, int p, UNUSED bool *adds, UNUSED struct error *err)
{
    struct pieces *x = ctx;
    int64_t first, n = model_piece(x->m, p, &first);
    assert_int_equal(first + n, x->end);
    x->end = first;
    return x->flat + first;
}
static bool piece_end(UNUSED void *ctx, UNUSED int p, UNUSED struct error *err)
{
    return true;
}

/* A gradient that is set piece by piece has the bits of one that is added to zeros. */
static void pieces_are_the_flat_gradient(struct golden *g, struct model_run *r, const struct model_batch *b, const struct token_loss *loss,
                                         const float *want, const char *name)
{
    struct error err = { 0 };
    size_t size = (size_t)model_n_flat(g->m) * 4;
    float *got = malloc(size);
    struct pieces x = { g->m, mem_new(g->dev, size, "gradient", &err), model_n_flat(g->m) };
    struct model_grad to = { .piece_begin = piece_begin, .piece_end = piece_end, .ctx = &x };
    if (!OP(g->dev, &err, mem_fill, .y = x.flat, .size_bytes = size, .byte = 0xff) || !model_forward_train(r, b, &err)
        || !model_backward(r, loss, &to, &err) || !mem_copy(g->dev, got, x.flat, size, COPY_D2H, &err) || !device_sync(g->dev, &err))
        fail_msg("%s: %s", name, err.text);
    assert_int_equal(x.end, 0);
    if (memcmp(got, want, size) != 0)
        fail_msg("%s: the gradient in pieces is not the whole one's bits", name);
    free(got);
    mem_free(g->dev, x.flat);
}

/* A gradient that is set as a whole has the bits of one that is added to zeros, and is zeros where nothing is to be predicted. */
static void a_set_gradient_is_the_added_one(struct golden *g, struct model_run *r, const struct model_batch *b,
                                            const struct token_loss *loss, const float *want, const char *name)
{
    struct error err = { 0 };
    size_t size = (size_t)model_n_flat(g->m) * 4;
    float *got = malloc(size), *zero = calloc(1, size), *flat = mem_new(g->dev, size, "gradient", &err);
    int32_t none[MAX_TOK];
    for (int i = 0; i < MAX_TOK; i++)
        none[i] = -1;
    for (int k = 0; k < 2; k++) {
        struct token_loss l = *loss;
        l.target = k ? none : loss->target;
        if (!OP(g->dev, &err, mem_fill, .y = flat, .size_bytes = size, .byte = 0xff) || !model_forward_train(r, b, &err)
            || !model_backward(r, &l, &(struct model_grad){ .flat = flat, .set = true }, &err)
            || !mem_copy(g->dev, got, flat, size, COPY_D2H, &err) || !device_sync(g->dev, &err))
            fail_msg("%s: %s", name, err.text);
        if (memcmp(got, k ? zero : want, size) != 0)
            fail_msg("%s: the gradient that is set is not %s", name, k ? "0 without targets" : "the added one's bits");
    }
    free(got);
    free(zero);
    mem_free(g->dev, flat);
}

static void logits_and_gradients_are_pytorchs(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names) * ARRAY_SIZE(devices) * 2; k++) {
        const char *name = names[k / 4], *device = devices[k / 2 % 2];
        if (k / 2 % 2 && getenv("OPS_DEVICE"))
            device = getenv("OPS_DEVICE");    // cuda:0
        struct golden g;
        struct error err = { 0 };
        golden_open(&g, name, device, DT_F32);
        // the second time with blocks run again in the backward pass, and the head in pieces
        struct run_limits lim = { .max_tok = MAX_TOK,
                                  .max_seq = 8,
                                  .max_seq_tok = MAX_TOK,
                                  .train = true,
                                  .recompute_block = k % 2,
                                  .keep_more = k / 2 % 2,
                                  .head_rows = k % 2 ? 7 : 0 };
        struct model_run *r = model_run_new(g.m, &lim, &err);
        int64_t n_flat = model_n_flat(g.m), n_logit = g.n_tok * model_config(g.m)->vocab;
        float *logits = calloc((size_t)n_logit, 4), *want = calloc((size_t)MAX(n_logit, n_flat), 4);
        float *sum = mem_new(g.dev, (size_t)n_flat * 4, "gradient", &err), *grad = malloc((size_t)n_flat * 4);
        float logp[MAX_TOK];
        struct model_batch b = batch(&g);
        struct token_loss loss = { .target = g.target, .temperature = g.temperature, .coef = g.coef, .logp = logp };
        if (!OP(g.dev, &err, mem_fill, .y = sum, .size_bytes = (size_t)n_flat * 4) || !model_forward_train(r, &b, &err)
            || !model_logits(r, logits, &err) || !model_backward(r, &loss, &(struct model_grad){ .flat = sum }, &err)
            || !mem_copy(g.dev, grad, sum, (size_t)n_flat * 4, COPY_D2H, &err) || !device_sync(g.dev, &err))
            fail_msg("%s on %s: %s", name, device, err.text);
        st_to_f32(want, find(g.g, "logits"));
        if (!(distance(logits, want, n_logit) < 1e-5))
            fail_msg("%s on %s: logits differ by %g of their norm", name, device, distance(logits, want, n_logit));
        for (int64_t i = 0; i < model_n_tensor(g.m); i++) {
            const struct tensor *t = model_tensor(g.m, i);
            char gname[128];
            snprintf(gname, sizeof gname, "grad.%s", t->name);
            const struct st_tensor *f = find(g.g, gname);
            assert_int_equal(f->n_elem, t->n_elem);
            st_to_f32(want, f);
            // a key bias shifts all scores of a query alike, so its true gradient is 0 and only rounding is left
            double tol = strstr(t->name, "k_proj.bias") ? 1e-2 : 1e-4, d = distance(grad + t->offset, want, t->n_elem);
            double norm = 0;
            for (int64_t e = 0; e < t->n_elem; e++)
                norm += (double)want[e] * (double)want[e];
            if (!(d < tol) && sqrt(norm) > 1e-5)
                fail_msg("%s on %s: gradient of %s differs by %g of its norm %g", name, device, t->name, d, sqrt(norm));
        }
        pieces_are_the_flat_gradient(&g, r, &b, &loss, grad, name);
        a_set_gradient_is_the_added_one(&g, r, &b, &loss, grad, name);
        free(logits);
        free(want);
        free(grad);
        mem_free(g.dev, sum);
        model_run_free(r);
        golden_close(&g);
    }
}

static void the_gradient_is_the_slope_of_the_loss(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
        struct golden g;
        golden_open(&g, names[k], "ref", DT_F32);
        slope_check(&g, names[k]);
        golden_close(&g);
    }
}

static void ten_adamw_steps_are_pytorchs(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names) * 2; k++) {
        struct golden g;
        struct error err = { 0 };
        golden_open(&g, names[k / 2], devices[k % 2], DT_F32);
        struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
        set.token_budget_max = 40;    // two micro-batches
        struct trainer *t = trainer_new(g.m, NULL, &set, &err);
        if (!t)
            fail_msg("%s", err.text);
        adamw_steps_check(&g, t, names[k / 2], "PyTorch");
        trainer_free(t);
        golden_close(&g);
    }
}

/* Frequencies and factors of every type against transformers', and unchanged after a config.json of ours. */
static void rope_frequencies_are_transformers(UNUSED void **state)
{
    char path[1024], dir[] = "/tmp/rope-XXXXXX";
    json_error_t where;
    snprintf(path, sizeof path, "%s/golden/models/rope.json", data_dir());
    json_t *cases = json_load_file(path, 0, &where), *one;
    size_t k;
    if (!cases || !mkdtemp(dir))
        fail_msg("'%s': %s", path, where.text);
    assert_true(json_array_size(cases) >= 20);
    json_array_foreach(cases, k, one)
    {
        struct error err = { 0 };
        struct model_config c, again;
        double freq[32], freq_again[32];
        const char *name = json_string_value(json_object_get(one, "name"));
        char *text = json_dumps(json_object_get(one, "config"), 0);
        const json_t *want = json_object_get(one, "inv_freq");
        if (!config_parse(&c, text, name, &err) || !config_save(&c, dir, "float32", &err) || !config_load(&again, dir, &err))
            fail_msg("%s: %s", name, err.text);
        assert_true(c.d_head == 64 && json_array_size(want) == 32);
        double factor = rope_inv_freq(&c.rope, 64, freq), want_factor = json_number_value(json_object_get(one, "attention_factor"));
        if (!(fabs(factor - want_factor) < 1e-12))
            fail_msg("%s: attention factor %.15g, transformers has %.15g", name, factor, want_factor);
        for (size_t i = 0; i < 32; i++) {    // PyTorch computes them in fp32
            double f = json_number_value(json_array_get(want, i));
            if (!(fabs(freq[i] - f) <= 1e-6 * f))
                fail_msg("%s: frequency %zu is %.9g, transformers has %.9g", name, i, freq[i], f);
        }
        assert_true(rope_inv_freq(&again.rope, 64, freq_again) == factor && memcmp(freq, freq_again, sizeof freq) == 0);
        free(text);
    }
    json_decref(cases);
    struct error err = { 0 };
    assert_true(dir_remove(dir, &err));
}

/* Where what the model sees would depend on the length beyond its positions, there is no sequence that long: with frequencies of
 * dynamic RoPE, and with the short ones of longrope. Other models score it. */
static void some_models_end_with_their_positions(UNUSED void **state)
{
    static const char *const wants[] = { NULL, "with dynamic RoPE at most 8", NULL, "with the short frequencies of longrope at most 8",
                                         NULL };
    for (size_t k = 0; k < ARRAY_SIZE(wants); k++) {
        struct error err = { 0 };
        struct model_config c = *config_shape("starter", &err);
        c.max_pos = 8;
        c.rope.type = k == 1 ? ROPE_DYNAMIC : k >= 3 ? ROPE_LONG : ROPE_DEFAULT;
        for (int i = 0; i < ROPE_PAIRS_MAX; i++)
            c.rope.short_ext[i] = c.rope.long_ext[i] = 1;
        c.rope.factor = 2;
        c.rope.original_max_pos = 8;
        c.window = k == 2 ? 8 : 0;    // a window ends nothing
        c.slides[0] = 1;
        struct device *dev = device_new("ref", 1, &err);
        struct model *m = model_new_random(&c, 1, dev, DT_F32, &err);
        model_length_set(m, k == 4 ? 9 : 8);
        struct run_limits lim = { .max_tok = 16, .max_seq = 1, .max_seq_tok = 16 };
        struct model_run *r = model_run_new(m, &lim, &err);
        int32_t token[9] = { 0 }, target[9] = { 0 };
        float temperature[9], logp[9];
        assert_non_null(r);
        for (int i = 0; i < 9; i++)
            temperature[i] = 1;
        for (int32_t n = 8; n <= 9; n++) {
            int32_t cu[2] = { 0, n };
            struct model_batch b = { .n_seq = 1, .n_tok = n, .token = token, .cu_tok = cu };
            bool ok = model_score(r, &b, target, temperature, logp, NULL, &err);
            assert_int_equal(ok, n == 8 || !wants[k]);
            struct generator_config gc = { .model = m, .max_seq = 1, .max_item = 1, .max_seq_tok = n };
            struct error why = { 0 };
            struct generator *g = generator_new(&gc, &why);
            assert_int_equal(!g, n == 9);    // none goes beyond max_position_embeddings
            if (n == 9 && k == 3)
                assert_non_null(strstr(why.text, "longer than the 8 that the model's frequencies hold for"));
            generator_free(g);
        }
        if (wants[k] && !strstr(err.text, wants[k]))
            fail_msg("\"%s\" does not say \"%s\"", err.text, wants[k]);
        model_run_free(r);
        model_free(m);
        device_free(dev);
    }
}

static void bf16_stays_near_fp32(UNUSED void **state)
{
    for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
        struct golden g;
        struct error err = { 0 };
        golden_open(&g, names[k], "cpu:0", DT_BF16);
        struct run_limits lim = { .max_tok = MAX_TOK, .max_seq = 8, .max_seq_tok = MAX_TOK, .train = true };
        struct model_run *r = model_run_new(g.m, &lim, &err);
        int64_t n_logit = g.n_tok * model_config(g.m)->vocab;
        float *logits = calloc((size_t)n_logit, 4), *want = calloc((size_t)n_logit, 4);
        struct model_batch b = batch(&g);
        if (!r || !model_forward_train(r, &b, &err) || !model_logits(r, logits, &err))
            fail_msg("%s: %s", names[k], err.text);
        st_to_f32(want, find(g.g, "logits"));
        double d = distance(logits, want, n_logit);
        // weights alone, rounded to 8 bits, move logits by about 2^-9 sqrt(parts); transformers' own bf16 of a hybrid is 2.2e-2 away
        if (!(d < (config_has_states(model_config(g.m)) ? 2.5e-2 : 2e-2) && d > 1e-4))
            fail_msg("%s: bf16 logits differ by %g of their norm", names[k], d);
        free(logits);
        free(want);
        model_run_free(r);
        golden_close(&g);
    }
}

static void a_prefix_that_is_not_there_is_refused_by_its_sequence(UNUSED void **state)
{
    static const struct {
        struct shared_prefix of[3];
        const char *why;
    } cases[] = {
        { { { 1, 0 } }, "sequence 0 shares 1 tokens of sequence 0" },
        { { { 0 }, { 2, 2 } }, "sequence 1 shares 2 tokens of sequence 2" },
        { { { 0 }, { -1, 0 } }, "sequence 1 shares -1 tokens" },
        { { { 0 }, { 4, 0 } }, "sequence 1 shares 4 tokens of sequence 0, which does not have them" },
        { { { 0 }, { 1, 0 }, { 1, 1 } }, "sequence 2 shares 1 tokens of sequence 1" },
        { { { 0 }, { 3, 0 }, { 3, 0 } }, "more than 12 tokens together" },
    };
    static const int32_t token[] = { 5, 6, 7, 8, 9, 10, 11, 12, 13 }, cu[] = { 0, 3, 6, 9 }, target[] = { 6, 7, 8, 9, 10, 11, 12, 13, -1 };
    static const float temperature[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    float logp[9];
    struct golden g;
    struct error err = { 0 };
    golden_open(&g, names[0], "cpu:0", DT_F32);
    struct run_limits lim = { .max_tok = 12, .max_seq = 3, .max_seq_tok = 12, .shares = true };
    struct model_run *r = model_run_new(g.m, &lim, &err);
    struct model_batch b = { .n_seq = 3, .n_tok = 9, .token = token, .cu_tok = cu };
    assert_non_null(r);
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        b.prefix = cases[k].of;
        if (model_score(r, &b, target, temperature, logp, NULL, &err) || err.code != ERR_SHAPE || !strstr(err.text, cases[k].why))
            fail_msg("wanted '%s', got '%s'", cases[k].why, err.text);
    }
    b.prefix = (struct shared_prefix[]){ { 0 }, { 3, 0 }, { 0 } };    // as many as there is room for
    assert_true(model_score(r, &b, target, temperature, logp, NULL, &err));
    model_run_free(r);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_gradients_are_pytorchs),
        cmocka_unit_test(the_gradient_is_the_slope_of_the_loss),
        cmocka_unit_test(ten_adamw_steps_are_pytorchs),
        cmocka_unit_test(bf16_stays_near_fp32),
        cmocka_unit_test(rope_frequencies_are_transformers),
        cmocka_unit_test(some_models_end_with_their_positions),
        cmocka_unit_test(a_prefix_that_is_not_there_is_refused_by_its_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
