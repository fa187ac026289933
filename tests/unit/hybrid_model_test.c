/* hybrid_model_test.c - models whose layers are gated delta nets but for every fourth: their sizes, their config.json, their files, and
 * what they are refused for
 *
 * Their numbers are compared with transformers' in model_golden_test.c, their bits in agreement_test.c, their samples in generator_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <unistd.h>
#include "protocol/base/buf.h"
#include "tests/unit/model_kind.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/safetensors.h"
#include "workers/engine/pass/pass.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/trainer/checkpoint.h"
#include "workers/engine/trainer/state.h"

static void parameters_and_states_are_counted(UNUSED void **state)
{
    /* published sizes of the text parts, and megabytes of a sequence's matrices: 24 or 48 layers of 32 or 48 heads of 64 KiB */
    static const struct {
        const char *name;
        double n_param, state_mb;
    } cases[] = { { "Qwen3.5-4B", 4.2e9, 50.3 }, { "Qwen3.5-9B", 8.95e9, 50.3 }, { "Qwen3.5-27B", 26.9e9, 151 } };
    struct device *dev = device_new("cpu:0", 1, &err);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct model_config *c = config_shape(cases[i].name, &err);
        assert_non_null(c);
        struct model *m = model_new_shape(c, dev, DT_BF16, &err);
        int64_t sum = 0, conv = 3 * delta_channels(c->delta.heads) * 4 * (c->n_layer - config_n_attn(c));
        for (int64_t t = 0; t < model_n_tensor(m); t++)
            sum += model_tensor(m, t)->n_elem;
        assert_int_equal(config_n_param(c), sum);
        assert_int_equal(config_n_attn(c), c->n_layer / 4);
        if (!(sum > 0.97 * cases[i].n_param && sum < 1.03 * cases[i].n_param))
            fail_msg("%s has %" PRId64 " parameters", cases[i].name, sum);
        double mb = (double)(kv_pool_state_bytes(m) - (size_t)conv) / 1e6;
        if (!(mb > 0.99 * cases[i].state_mb && mb < 1.01 * cases[i].state_mb))
            fail_msg("%s: a sequence's matrices take %g MB", cases[i].name, mb);
        struct generator_config g = { .model = m, .max_seq = 8, .max_item = 8, .max_seq_tok = 512 };
        assert_int_equal(generator_state_bytes(&g), 9 * kv_pool_state_bytes(m));
        assert_true(generator_bytes(&g) > generator_state_bytes(&g));
        model_free(m);
    }
    device_free(dev);
}

static bool parse(struct model_config *c, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\": \"qwen3_5_text\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 5, "
             "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 40%s}",
             more);
    return config_parse(c, text, "config.json", &err);
}

static void layers_are_those_of_the_list_or_all_but_every_fourth(UNUSED void **state)
{
    static const struct {
        const char *more;
        unsigned delta;    // bits of layers
    } cases[] = {
        { "", 0x17 },
        { ", \"full_attention_interval\": 2", 0x15 },
        { ", \"layer_types\": [\"full_attention\", \"linear_attention\", \"linear_attention\", \"full_attention\", \"linear_attention\"]",
          0x16 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct model_config c;
        if (!parse(&c, cases[i].more))
            fail_msg("%s", err.text);
        for (int64_t l = 0; l < 5; l++)
            assert_int_equal(config_is_delta(&c, l), cases[i].delta >> l & 1);
        assert_int_equal(c.delta.heads.n_k, 16);    // the class's default
        assert_int_equal(rope_dims(&c.rope, c.d_head), 64);
    }
}

static void what_would_change_the_numbers_is_refused_by_name(UNUSED void **state)
{
    static const struct refusal cases[] = {
        { ", \"linear_conv_kernel_dim\": 3", "'linear_conv_kernel_dim'" },
        { ", \"linear_num_value_heads\": 24", "'linear_num_value_heads'" },
        { ", \"linear_key_head_dim\": 512", "'linear_key_head_dim'" },
        { ", \"attn_output_gate\": false", "'attn_output_gate'" },
        { ", \"layer_types\": [\"full_attention\"]", "'layer_types'" },
        { ", \"full_attention_interval\": 6", "no layer" },
        { ", \"layer_types\": [\"full_attention\", \"mamba\", \"mamba\", \"mamba\", \"mamba\"]", "entry 1" },
    };
    refused_by_name(parse, cases, ARRAY_SIZE(cases));
}

static void layouts_that_states_do_not_have_yet_are_refused(UNUSED void **state)
{
    const struct model_config *c = config_shape("starter-hybrid", &err);
    struct model_config other = *c;
    layouts_refused(c, "linear attention");
    other.delta.layers[0] = 5;
    assert_false(config_same(c, &other, "the other", &err));
    assert_non_null(strstr(err.text, "'layer_types'"));
    other.delta.heads.d_v = 16;
    assert_false(config_same(c, &other, "the other", &err));
    assert_non_null(strstr(err.text, "'linear_value_head_dim'"));
}

/* Attention and what stands for it have no adapters: the layers differ. */
static void an_adapter_goes_on_the_mlp(UNUSED void **state)
{
    struct device *dev = device_new("cpu:0", 1, &err);
    struct lora_config attn = { .rank = 4, .alpha = 8 }, mlp = attn;
    assert_true(lora_targets_parse(&attn, "q_proj", &err) && lora_targets_parse(&mlp, "gate_proj,down_proj", &err));
    for (int k = 0; k < 2; k++) {
        struct model *m = model_new_random(config_shape("starter-hybrid", &err), 3, dev, DT_F32, &err);
        assert_non_null(m);
        assert_int_equal(model_lora_new(m, k ? &mlp : &attn, 1, true, &err), k);
        if (!k)
            assert_non_null(strstr(err.text, "'q_proj'"));
        model_free(m);
    }
    device_free(dev);
}

/* The gradient of random coefficients of log-probs; the caller's to free. */
static float *gradient(struct device *dev, int parts)
{
    enum { TOK = 90 };
    int32_t token[TOK], target[TOK], cu[] = { 0, 70, TOK };
    float temperature[TOK], coef[TOK], logp[TOK];
    for (int i = 0; i < TOK; i++) {
        token[i] = i * i * 7 % 280;
        target[i] = i == 69 || i == TOK - 1 ? -1 : (i + 1) * (i + 1) * 7 % 280;
        temperature[i] = 1;
        coef[i] = (float)(i % 7 - 3) * 0.1f;
    }
    struct model *m = model_new_random(config_shape("starter-hybrid", &err), 3, dev, DT_F32, &err);
    struct run_limits lim = { .max_tok = TOK, .max_seq = 2, .max_seq_tok = TOK, .train = true };
    struct model_run *r = m && model_parts_set(m, parts, &err) ? model_run_new(m, &lim, &err) : NULL;
    struct model_batch b = { .n_seq = 2, .n_tok = TOK, .token = token, .cu_tok = cu };
    struct token_loss loss = { .target = target, .temperature = temperature, .coef = coef, .logp = logp };
    float *sum = m ? calloc((size_t)model_n_flat(m), sizeof *sum) : NULL;
    if (!r || !model_forward_train(r, &b, &err) || !model_backward(r, &loss, &(struct model_grad){ .flat = sum }, &err))
        fail_msg("%s", err.text);
    model_run_free(r);
    model_free(m);
    return sum;
}

/* With sum_parts attention's sums and the MLP's are cut; those of a gated delta net are not, for no team shares them. */
static void sums_in_parts_give_the_gradient_up_to_rounding(UNUSED void **state)
{
    struct device *dev = device_new("cpu:0", 1, &err);
    struct model *m = model_new_shape(config_shape("starter-hybrid", &err), dev, DT_F32, &err);
    float *whole = gradient(dev, 0), *parts = gradient(dev, 4);
    for (int64_t t = 0; t < model_n_tensor(m); t++) {
        const struct tensor *x = model_tensor(m, t);
        double apart = 0, norm = 0;
        for (int64_t i = x->offset; i < x->offset + x->n_elem; i++) {
            apart += ((double)whole[i] - parts[i]) * ((double)whole[i] - parts[i]);
            norm += (double)whole[i] * whole[i];
        }
        if (!(norm > 0 && apart < 1e-10 * norm))
            fail_msg("the gradient of %s is %g of its norm away", x->name, sqrt(apart / norm));
    }
    free(whole);
    free(parts);
    model_free(m);
    device_free(dev);
}

static void a_saved_model_loads_as_the_same_bytes(UNUSED void **state)
{
    struct device *dev = device_new("cpu:0", 1, &err);
    model_free(saved_and_loaded("qwen3-5", dev));
    device_free(dev);
}

#define N_BESIDE 2
/* Write the golden model as the text part of one of images, with a tensor of the vision tower and one of a prediction layer. */
static void wrapped_write(const char *from, const char *dir, const struct st_out beside[N_BESIDE])
{
    static char names[64][128];
    struct st_out out[64];
    char path[4096];
    struct shards *s = shards_open(from, &err);
    assert_true(s && shards_n(s) + N_BESIDE < 64);
    int64_t n = shards_n(s);
    for (int64_t i = 0; i < n; i++) {
        const struct st_tensor *t = shards_at(s, i);
        bool inner = strncmp(t->name, "model.", 6) == 0;
        snprintf(names[i], sizeof names[i], "%s%s", inner ? "model.language_model." : "", t->name + (inner ? 6 : 0));
        out[i] = (struct st_out){ .name = names[i], .dtype = t->dtype, .n_dim = t->n_dim, .data = t->data };
        memcpy(out[i].dim, t->dim, sizeof out[i].dim);
    }
    memcpy(out + n, beside, N_BESIDE * sizeof *beside);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (!st_write(path, out, n + N_BESIDE, &err))
        fail_msg("%s", err.text);
    shards_close(s);
    snprintf(path, sizeof path, "%s/config.json", from);
    json_t *inner = json_load_file(path, 0, NULL);
    json_t *outer = json_pack("{s:[s], s:s, s:O, s:{s:i}, s:b}", "architectures", "Qwen3_5ForConditionalGeneration", "model_type",
                              "qwen3_5", "text_config", inner, "vision_config", "depth", 2, "tie_word_embeddings", 1);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(outer, path, JSON_INDENT(1)), 0);
    json_decref(inner);
    json_decref(outer);
}

static void a_wrapped_model_is_saved_as_it_was_loaded(UNUSED void **state)
{
    static const float vision[2 * 3 * 1 * 2 * 2] = { 1, 2, 3 };
    static const uint16_t next[4] = { 7, 8, 9, 10 };
    const struct st_out beside[N_BESIDE] = {
        { .name = "model.visual.patch_embed.proj.weight", .dtype = ST_F32, .n_dim = 5, .dim = { 2, 3, 1, 2, 2 }, .data = vision },
        { .name = "mtp.fc.weight", .dtype = ST_BF16, .n_dim = 2, .dim = { 2, 2 }, .data = next },
    };
    struct device *dev = device_new("cpu:0", 1, &err);
    char flat[4096], from[] = "/tmp/wrapped-XXXXXX", to[] = "/tmp/wrapped-XXXXXX", path[4096];
    golden_dir(flat, sizeof flat, "qwen3-5");
    assert_true(mkdtemp(from) && mkdtemp(to));
    wrapped_write(flat, from, beside);
    struct model *plain = model_load(flat, dev, DT_F32, &err), *m = model_load(from, dev, DT_F32, &err);
    if (!plain || !m)
        fail_msg("%s", err.text);
    uint64_t a, b;
    assert_true(model_weights_hash(plain, &a, &err) && model_weights_hash(m, &b, &err));
    assert_int_equal(a, b);
    struct shards *before = shards_open(from, &err);
    snprintf(path, sizeof path, "%s/config.json", from);
    json_t *config = json_load_file(path, 0, NULL);
    assert_true(dir_remove(from, &err));    // a checkpoint that a run has begun with may go
    if (!model_save(m, to, &err))
        fail_msg("%s", err.text);
    struct shards *after = shards_open(to, &err);
    assert_true(before && after);
    assert_int_equal(shards_n(before), shards_n(after));
    for (int64_t i = 0; i < shards_n(before); i++) {
        const struct st_tensor *x = shards_at(before, i), *y = shards_find(after, x->name);
        if (!y || y->dtype != x->dtype || y->n_dim != x->n_dim || memcmp(x->dim, y->dim, sizeof x->dim) != 0
            || memcmp(x->data, y->data, x->size_bytes) != 0)
            fail_msg("'%s' is not saved as it was", x->name);
    }
    snprintf(path, sizeof path, "%s/config.json", to);
    json_t *saved = json_load_file(path, 0, NULL);
    assert_true(json_equal(config, saved));
    json_decref(config);
    json_decref(saved);
    shards_close(before);
    shards_close(after);
    model_free(m);
    model_free(plain);
    struct model *back = model_load(to, dev, DT_F32, &err);
    assert_true(back && model_weights_hash(back, &b, &err));
    assert_int_equal(a, b);
    model_free(back);
    assert_true(dir_remove(to, &err));
    device_free(dev);
}

/* Have the file say that its tensor has another type of as many bytes. */
static void type_change(const char *dir, const char *tensor, const char *from, const char *to)
{
    char path[4096];
    struct buf text = BUF_INIT;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_true(file_read(&text, path, 1u << 26, &err));
    char *name = memmem(text.data, text.len, tensor, strlen(tensor));
    assert_non_null(name);
    char *type = strstr(name, from);
    assert_true(type && strlen(from) == strlen(to));
    memcpy(type, to, strlen(to));
    assert_true(file_write(path, text.data, text.len, &err));
    buf_release(&text);
}

static void what_cannot_be_kept_beside_the_text_part_is_said(UNUSED void **state)
{
    static const float vision[2] = { 1, 2 };
    static const uint16_t next[4] = { 7, 8, 9, 10 };
    const struct st_out beside[N_BESIDE] = {
        { .name = "model.visual.patch_embed.proj.weight", .dtype = ST_F32, .n_dim = 1, .dim = { 2 }, .data = vision },
        { .name = "mtp.fc.weight", .dtype = ST_BF16, .n_dim = 2, .dim = { 2, 2 }, .data = next },
    };
    struct device *dev = device_new("cpu:0", 1, &err);
    char flat[4096], from[] = "/tmp/wrapped-XXXXXX", to[] = "/tmp/wrapped-XXXXXX", said[4096] = "";
    golden_dir(flat, sizeof flat, "qwen3-5");
    assert_true(mkdtemp(from) && mkdtemp(to));
    wrapped_write(flat, from, beside);
    type_change(from, beside[0].name, "F32", "I32");
    FILE *log = tmpfile();
    int terminal = dup(STDERR_FILENO);
    assert_true(log && terminal >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    struct model *m = model_load(from, dev, DT_F32, &err);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
    rewind(log);
    assert_true(fread(said, 1, sizeof said - 1, log) > 0);
    assert_non_null(strstr(said, "1 tensors beside the text part are neither F32, F16 nor BF16"));
    fclose(log);
    if (!m || !model_save(m, to, &err))
        fail_msg("%s", err.text);
    struct shards *after = shards_open(to, &err);
    assert_true(after && shards_find(after, beside[1].name) && !shards_find(after, beside[0].name));
    shards_close(after);
    model_free(m);
    assert_true(dir_remove(from, &err) && dir_remove(to, &err));
    device_free(dev);
}

/* Its files name the tensors otherwise than the model does. */
static void masters_of_a_wrapped_model_begin_as_its_files_are(UNUSED void **state)
{
    static const struct st_out beside[N_BESIDE] = {
        { .name = "model.visual.bias", .dtype = ST_BF16, .n_dim = 1, .dim = { 2 }, .data = "abcd" },
        { .name = "mtp.bias", .dtype = ST_BF16, .n_dim = 1, .dim = { 2 }, .data = "abcd" },
    };
    struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
    struct device *dev = device_new("cpu:0", 1, &err);
    char flat[4096], dir[] = "/tmp/wrapped-XXXXXX";
    golden_dir(flat, sizeof flat, "qwen3-5");
    assert_non_null(mkdtemp(dir));
    wrapped_write(flat, dir, beside);
    set.token_budget_max = 16;
    struct model *m = model_load(dir, dev, DT_BF16, &err);
    struct trainer *t = m ? trainer_new(m, NULL, &set, &err) : NULL;
    struct shards *files = shards_open(flat, &err);
    if (!t || !files || !checkpoint_masters_begin(t, dir, &err))
        fail_msg("%s", err.text);
    float *master = malloc((size_t)trainer_state_n(t, STATE_MASTER) * sizeof *master);
    assert_true(master && trainer_state_get(t, STATE_MASTER, master, &err));
    for (int64_t i = 0; i < model_n_tensor(m); i++) {
        const struct tensor *x = model_tensor(m, i);
        const struct st_tensor *f = shards_find(files, x->name);
        assert_true(f && f->dtype == ST_F32);
        assert_memory_equal(master + x->offset, f->data, f->size_bytes);
    }
    free(master);
    shards_close(files);
    trainer_free(t);
    model_free(m);
    assert_true(dir_remove(dir, &err));
    device_free(dev);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_and_states_are_counted),
        cmocka_unit_test(layers_are_those_of_the_list_or_all_but_every_fourth),
        cmocka_unit_test(what_would_change_the_numbers_is_refused_by_name),
        cmocka_unit_test(layouts_that_states_do_not_have_yet_are_refused),
        cmocka_unit_test(an_adapter_goes_on_the_mlp),
        cmocka_unit_test(sums_in_parts_give_the_gradient_up_to_rounding),
        cmocka_unit_test(a_saved_model_loads_as_the_same_bytes),
        cmocka_unit_test(a_wrapped_model_is_saved_as_it_was_loaded),
        cmocka_unit_test(masters_of_a_wrapped_model_begin_as_its_files_are),
        cmocka_unit_test(what_cannot_be_kept_beside_the_text_part_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
