/* What 'rollcall init' chooses for a model and devices, and the probe that says how long a step takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "console/train/init.h"
#include "console/train/train_parts.h"
#include "kernels/ops.h"
#include "workers/engine/plan/step_probe.h"

static struct error err;

static struct init made(const char *shape, int n_device, bool cuda)
{
    const struct model_config *c = config_shape(shape, &err);
    assert_non_null(c);
    return (
        struct init){ .shape = *c, .n_row = 7473, .n_prompt_tok = 256, .reward = "boxed", .n_device = n_device, .cuda = cuda, .hours = 2 };
}

static void sizes_follow_from_the_model_and_the_devices(UNUSED void **state)
{
    static const struct {
        const char *shape;
        int n_device;
        bool cuda;
        int64_t prompts, token_budget, max_new_tok;
        double learning_rate;
    } cases[] = {
        { "starter", 1, false, 64, 4096, 64, 4e-4 },       { "Qwen2.5-0.5B", 1, false, 8, 4096, 512, 1e-6 },
        { "Qwen2.5-0.5B", 1, true, 64, 16384, 512, 1e-6 }, { "Qwen2.5-1.5B", 4, true, 16, 16384, 512, 1e-6 },
        { "Qwen2.5-7B", 1, true, 64, 8192, 512, 1e-6 },    { "Qwen2.5-7B", 2, true, 32, 8192, 512, 1e-6 },
    };
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        struct init i = made(cases[k].shape, cases[k].n_device, cases[k].cuda);
        if (!init_settle(&i, &err))
            fail_msg("case %zu: %s", k, err.text);
        assert_int_equal(i.prompts, cases[k].prompts);
        assert_int_equal(i.token_budget, cases[k].token_budget);
        assert_int_equal(i.max_new_tok, cases[k].max_new_tok);
        assert_true(i.learning_rate == cases[k].learning_rate);
    }
}

static void responses_fit_into_the_models_positions(UNUSED void **state)
{
    struct init i = made("starter", 1, false);
    i.n_prompt_tok = i.shape.max_pos - 10;
    assert_true(init_settle(&i, &err));
    assert_int_equal(i.max_new_tok, 10);
    i.max_new_tok = 11;
    assert_false(init_settle(&i, &err));
    assert_non_null(strstr(err.text, "--max-new-tokens"));
}

static void paths_are_quoted(UNUSED void **state)
{
    struct init i = made("starter", 2, true);
    struct buf out = BUF_INIT;
    assert_true(init_settle(&i, &err));
    strcpy(i.model, "a \"b\" \\c: #d\n");
    strcpy(i.devices, "cuda:0,cuda:1");
    init_text(&i, &out);
    assert_non_null(strstr(buf_text(&out), "\nmodel: \"a \\\"b\\\" \\\\c: #d\\n\"\n"));
    assert_non_null(strstr(buf_text(&out), "\nnum_inferencer: 2 "));
    buf_release(&out);
}

static void a_step_is_measured(UNUSED void **state)
{
    struct device *dev = device_new("cpu:0", 1, &err);
    assert_non_null(dev);
    const struct step_load load = { .n_seq = 6, .group = 4, .n_prompt_tok = 40, .n_new_tok = 32, .token_budget = 200 };
    struct step_cost cost;
    assert_true(step_probe(&cost, config_shape("starter", &err), dev, DT_F32, &load, 0.05, &err));
    assert_true(isfinite(cost.decode_s) && cost.decode_s > 0);
    assert_true(isfinite(cost.prefill_s) && cost.prefill_s > 0);
    assert_true(isfinite(cost.train_s) && cost.train_s > 0);
    device_free(dev);
}

static void a_step_is_added_up_from_what_was_measured(UNUSED void **state)
{
    static struct run_config c;
    const struct run_plan plan = { .k = 2 };
    const struct step_cost cost = { .decode_s = 1, .prefill_s = 0.1, .train_s = 0.01 };
    run_config_init(&c);
    c.inference_batch_size = 8;
    c.inference_microbatch_size = 4;
    c.num_generations = 2;
    c.max_prompt_tokens = 10;
    c.max_new_tokens = 20;
    c.train_batch_size = 4;
    c.beta = 0;
    struct step_estimate e = step_estimate_of(&c, &plan, &cost, NULL);
    assert_float_equal(e.generate_s, (2 * 20 * 1 + 8 * 10 * 0.1) / 2, 1e-9);    // two waves of 20 tokens, for two steps
    assert_float_equal(e.train_s, 4 * 2 * 30 * 0.01, 1e-9);
    assert_float_equal(e.step_s, 24 + 2.4, 1e-9);
    const struct step_lengths seen = { .prompt = 8, .response = 5, .longest = 12 };
    e = step_estimate_of(&c, &plan, &cost, &seen);
    assert_float_equal(e.generate_s, (2 * 12 * 1 + 8 * 8 * 0.1) / 2, 1e-9);    // two waves, each as long as its longest response
    assert_float_equal(e.train_s, 4 * 2 * 13 * 0.01, 1e-9);
    c.n_behind = 1;    // at once
    assert_float_equal(step_estimate_of(&c, &plan, &cost, NULL).step_s, 24, 1e-9);
    c.update_epochs = 3;
    c.beta = 0.1;    // and a forward pass of the reference
    assert_float_equal(step_estimate_of(&c, &plan, &cost, NULL).train_s, 3 * 2.4 + 0.8, 1e-9);
    strcpy(c.environments, "{}");    // others sample
    assert_float_equal(step_estimate_of(&c, &plan, &cost, NULL).step_s, 8, 1e-9);
}

static void the_system_prompt_is_chosen_by_right_answers_then_by_spread_then_by_cuts(UNUSED void **state)
{
    static const struct {
        struct init_trial own, none;
        bool none_is_better;
        const char *why;
    } cases[] = {
        { { .right = 0, .cut = 0.1 }, { .right = 0.25, .spread = 0.7 }, true, "the starter: it never saw a system prompt" },
        { { .right = 0.6, .spread = 0.3 }, { .right = 0.2, .spread = 0.6 }, false, "more right answers count before spread" },
        { { .right = 0.30, .spread = 0.2 }, { .right = 0.33, .spread = 0.5 }, true, "about as many are right" },
        { { .right = 0, .cut = 0.5 }, { .right = 0, .cut = 0.1 }, true, "nothing is right with either, and fewer are cut" },
        { { .right = 0.5, .spread = 0.5 }, { .right = 0.5, .spread = 0.5 }, false, "as good: the reward's own, as without a choice" },
    };
    for (size_t k = 0; k < ARRAY_SIZE(cases); k++)
        if (init_none_is_better(&cases[k].own, &cases[k].none) != cases[k].none_is_better)
            fail_msg("%s", cases[k].why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_follow_from_the_model_and_the_devices),
        cmocka_unit_test(responses_fit_into_the_models_positions),
        cmocka_unit_test(paths_are_quoted),
        cmocka_unit_test(the_system_prompt_is_chosen_by_right_answers_then_by_spread_then_by_cuts),
        cmocka_unit_test(a_step_is_measured),
        cmocka_unit_test(a_step_is_added_up_from_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
