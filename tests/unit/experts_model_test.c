/* experts_model_test.c - models that are mixtures of experts: their sizes, their config.json, and what they are refused for
 *
 * Their numbers are compared with transformers' in model_golden_test.c, their bits in agreement_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <inttypes.h>
#include "tests/unit/model_kind.h"

static const char *const shapes[] = { "Qwen3-30B-A3B", "OLMoE-1B-7B", "starter-moe" };

static void parameters_are_counted_whole_and_active(UNUSED void **state)
{
    /* published: 30.5 G with 3.3 G active, 6.9 G with 1.3 G active; active ones here without embedding, norms and biases */
    static const double all[] = { 30.53e9, 6.92e9, 1.372e6 }, active[] = { 3.04e9, 1.18e9, 0.486e6 };
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        const struct model_config *c = config_shape(shapes[i], &err);
        assert_non_null(c);
        struct device *dev = device_new("ref", 0, &err);
        struct model *m = model_new_shape(c, dev, DT_BF16, &err);
        int64_t sum = 0;
        for (int64_t t = 0; t < model_n_tensor(m); t++)
            sum += model_tensor(m, t)->n_elem;
        assert_int_equal(config_n_param(c), sum);
        if (!(sum > 0.99 * all[i] && sum < 1.01 * all[i]))
            fail_msg("%s has %" PRId64 " parameters", shapes[i], sum);
        double n = (double)config_n_active(c);
        if (!(n > 0.97 * active[i] && n < 1.03 * active[i]) || !(config_flops(c, 0) == 2 * n))
            fail_msg("%s: %g take part for a token", shapes[i], n);
        model_free(m);
        device_free(dev);
    }
}

static const char
    *const base_text = "\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 4, \"num_attention_heads\": 2, "
                       "\"num_key_value_heads\": 1, \"vocab_size\": 40, \"rms_norm_eps\": 1e-6, "
                       "\"num_experts_per_tok\": 2";
static bool parse(struct model_config *c, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, "{%s, %s}", base_text, more);
    return config_parse(c, text, "config.json", &err);
}

static void layers_without_experts_are_those_the_class_leaves_out(UNUSED void **state)
{
    static const struct {
        const char *more;
        unsigned dense;    // bits of layers
    } cases[] = {
        { "\"num_experts\": 6", 0 },
        { "\"num_local_experts\": 6", 0 },
        { "\"n_routed_experts\": 6, \"decoder_sparse_step\": 2", 5 },    // layers 1 and 3 of 0 to 3 have some
        { "\"num_experts\": 6, \"mlp_only_layers\": [0, 3]", 9 },
        { "\"num_experts\": 6, \"decoder_sparse_step\": 2, \"mlp_only_layers\": [1]", 7 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct model_config c;
        char more[256];
        snprintf(more, sizeof more, "\"model_type\": \"qwen3_moe\", \"moe_intermediate_size\": 16, %s", cases[i].more);
        if (!parse(&c, more))
            fail_msg("%s", err.text);
        for (int64_t l = 0; l < 4; l++)
            assert_int_equal(config_is_sparse(&c, l), !(cases[i].dense >> l & 1));
        assert_false(c.experts.normalise);    // the class's default, not that of published files
        assert_int_equal(c.experts.d_ff, 16);
        assert_int_equal(config_mlp_width(&c), cases[i].dense ? 64 : 32);
    }
}

static void what_would_change_the_numbers_is_refused_by_name(UNUSED void **state)
{
    static const struct refusal cases[] = {
        { "\"model_type\": \"olmoe\", \"num_experts\": 4, \"clip_qkv\": 8.0", "'clip_qkv'" },
        { "\"model_type\": \"mixtral\", \"num_local_experts\": 4, \"router_jitter_noise\": 0.1", "'router_jitter_noise'" },
        { "\"model_type\": \"mixtral\", \"num_local_experts\": 1", "'num_experts_per_tok'" },
        { "\"model_type\": \"mixtral\"", "'num_local_experts'" },
        { "\"model_type\": \"qwen3_moe\", \"num_experts\": 4", "'moe_intermediate_size'" },
        { "\"model_type\": \"qwen3_moe\", \"num_experts\": 4, \"moe_intermediate_size\": 8, \"mlp_only_layers\": [4]",
          "'mlp_only_layers'" },
        { "\"model_type\": \"qwen3_moe\", \"num_experts\": 4, \"moe_intermediate_size\": 8, \"decoder_sparse_step\": 5", "no layer" },
        { "\"model_type\": \"qwen2_moe\", \"num_experts\": 4", "qwen2_moe" },
    };
    refused_by_name(parse, cases, ARRAY_SIZE(cases));
}

static void layouts_that_experts_do_not_have_yet_are_refused(UNUSED void **state)
{
    layouts_refused(config_shape("starter-moe", &err), "mixture of experts");
}

static void a_saved_model_loads_as_the_same_bytes(UNUSED void **state)
{
    static const char *const models[] = { "qwen3-moe", "olmoe", "mixtral", "granite-moe" };
    struct device *dev = device_new("cpu:0", 1, &err);
    for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
        struct model *back = saved_and_loaded(models[i], dev);
        struct trainer_settings set = TRAINER_SETTINGS_DEFAULT;
        set.optimizer = OPTIMIZER_ADAFACTOR;
        struct trainer *t = trainer_new(back, NULL, &set, &err);
        bool fused = strcmp(models[i], "granite-moe") == 0;
        assert_int_equal(t == NULL, fused);
        if (fused)
            assert_non_null(strstr(err.text, "adafactor"));
        trainer_free(t);
        model_free(back);
    }
    device_free(dev);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_counted_whole_and_active),
        cmocka_unit_test(layers_without_experts_are_those_the_class_leaves_out),
        cmocka_unit_test(what_would_change_the_numbers_is_refused_by_name),
        cmocka_unit_test(layouts_that_experts_do_not_have_yet_are_refused),
        cmocka_unit_test(a_saved_model_loads_as_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
