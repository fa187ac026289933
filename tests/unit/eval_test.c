#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/sampler/eval.h"

static struct error err;

static void pass_at_k_is_the_share_of_subsets_with_a_right_sample(UNUSED void **state)
{
    static const struct {
        int64_t n, c, k;
        double want;
        const char *why;
    } cases[] = {
        { 1, 0, 1, 0, "the one sample is wrong" },
        { 1, 1, 1, 1, "the one sample is right" },
        { 4, 1, 1, 0.25, "k 1 is the mean" },
        { 4, 1, 2, 0.5, "3 of the 6 pairs hold the right one" },
        { 4, 2, 2, 5.0 / 6, "only the pair of wrong ones fails" },
        { 5, 2, 3, 0.9, "C(3,3)/C(5,3) = 1/10 fails" },
        { 4, 2, 3, 1, "no three wrong ones" },
        { 200, 3, 100, 1 - 100.0 / 200 * 99 / 199 * 98 / 198, "C(197,100)/C(200,100) = 100*99*98 / (200*199*198)" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_true(fabs(pass_at_k(cases[i].n, cases[i].c, cases[i].k) - cases[i].want) < 1e-12);
}

/* Count subsets one by one. */
static void pass_at_k_equals_counting_for_all_small_cases(UNUSED void **state)
{
    for (int n = 1; n <= 8; n++)
        for (int c = 0; c <= n; c++)
            for (int k = 1; k <= n; k++) {
                int all = 0, hit = 0;
                for (int set = 0; set < 1 << n; set++) {
                    if (__builtin_popcount((unsigned)set) != k)
                        continue;
                    all++;
                    hit += (set & ((1 << c) - 1)) != 0;    // the first c samples are the right ones
                }
                assert_true(fabs(pass_at_k(n, c, k) - (double)hit / all) < 1e-12);
            }
}

static void the_reported_k_are_powers_of_two_and_n(UNUSED void **state)
{
    int64_t k[EVAL_K_MAX];
    assert_int_equal(eval_ks(1, k), 1);
    assert_int_equal(k[0], 1);
    assert_int_equal(eval_ks(10, k), 5);
    assert_int_equal(k[3], 8);
    assert_int_equal(k[4], 10);
    assert_int_equal(eval_ks(16, k), 5);
    assert_int_equal(k[4], 16);
}

static void a_sample_left_out_is_in_no_mean(UNUSED void **state)
{
    struct eval_tally t;
    struct reward_output right = { .score = SCORE_OK, .reward = 10, .ans_acc = 1, .format_acc = 1, .verdict = VERDICT_EQUAL };
    struct reward_output wrong = { .score = SCORE_OK, .verdict = VERDICT_DIFFERENT };
    struct reward_output lost = { .score = SCORE_LEFT_OUT, .verdict = VERDICT_CANNOT_TELL };
    assert_true(eval_tally_init(&t, 3, 2, &err));
    assert_true(isnan(eval_mean(&t)));
    eval_tally_add(&t, 0, &right, 5, FINISH_STOP);
    eval_tally_add(&t, 0, &wrong, 7, FINISH_LENGTH);
    eval_tally_add(&t, 1, &right, 5, FINISH_STOP);
    eval_tally_add(&t, 1, &lost, 5, FINISH_STOP);
    eval_tally_add(&t, 2, &wrong, 5, FINISH_STOP);
    eval_tally_add(&t, 2, &wrong, 5, FINISH_STOP);
    assert_int_equal(t.n_sample, 6);
    assert_int_equal(t.n_left_out, 1);
    assert_int_equal(t.n_truncated, 1);
    assert_int_equal(t.n_tok, 32);
    assert_int_equal(t.n_tok_max, 7);
    assert_true(eval_mean(&t) == 2.0 / 5);
    assert_true(eval_spread(&t) == 0.5);    // prompt 0 of prompts 0 and 2; prompt 1 has one scored sample only
    assert_true(eval_reward_mean(&t) == 20.0 / 5);
    assert_true(eval_pass_at(&t, 1) == (0.5 + 1 + 0) / 3);
    assert_true(eval_pass_at(&t, 2) == (1.0 + 0) / 2);    // prompt 1 has one scored sample only
    assert_true(isnan(eval_pass_at(&t, 3)));
    json_t *json = eval_tally_json(&t);
    assert_int_equal(json_integer_value(json_object_get(json, "n")), 3);
    assert_true(json_real_value(json_object_get(json, "mean")) == 0.4);
    assert_true(json_real_value(json_object_get(json_object_get(json, "pass_at"), "2")) == 0.5);
    json_decref(json);
    eval_tally_release(&t);
}

static void an_answer_that_the_reward_does_not_judge_is_neither_right_nor_wrong(UNUSED void **state)
{
    struct eval_tally t;
    struct reward_output scored = { .score = SCORE_OK, .reward = 4, .ans_acc = NAN, .format_acc = NAN, .verdict = VERDICT_DIFFERENT };
    struct reward_output right = { .score = SCORE_OK, .reward = 10, .ans_acc = 1, .format_acc = 1, .verdict = VERDICT_EQUAL };
    assert_true(eval_tally_init(&t, 1, 4, &err));
    eval_tally_add(&t, 0, &scored, 5, FINISH_STOP);
    assert_true(isnan(eval_mean(&t)) && isnan(eval_pass_at(&t, 1)) && eval_reward_mean(&t) == 4);
    json_t *json = eval_tally_json(&t);
    assert_true(json_is_null(json_object_get(json, "mean")) && json_is_null(json_object_get(json, "format")));
    json_decref(json);
    eval_tally_add(&t, 0, &right, 5, FINISH_STOP);
    assert_true(eval_mean(&t) == 1 && eval_pass_at(&t, 1) == 1 && eval_reward_mean(&t) == 7);
    eval_tally_release(&t);
}

static void in_an_evaluation_a_right_answer_counts_in_any_format(UNUSED void **state)
{
    struct reward_output out = { .score = SCORE_OK, .ans_acc = 0, .format_acc = 0, .verdict = VERDICT_EQUAL };
    assert_true(eval_correct(&out));
    out.verdict = VERDICT_CANNOT_TELL;
    assert_false(eval_correct(&out));
    out.ans_acc = 1;
    assert_true(eval_correct(&out));
    out.score = SCORE_LEFT_OUT;
    assert_false(eval_correct(&out));
}

static void a_record_has_upstreams_fields(UNUSED void **state)
{
    static const char *const fields[] = {
        "prompt", "prediction", "gold", "parsed", "format_valid", "ans_valid", "response_length", "reward"
    };
    struct buf line = BUF_INIT;
    struct reward_output out = { .score = SCORE_OK, .reward = 10, .ans_acc = 1, .format_acc = 1, .pred = "7", .rule = "rational" };
    json_t *row = json_pack("{s:s}", "gt_answer", "7");
    struct eval_record r = { .prompt = "3+4?", .prediction = "\\boxed{7}\xff", .prediction_len = 10, .row = row, .n_tok = 9, .out = &out };
    assert_true(eval_record_line(&line, &r, &err));
    assert_int_equal(line.data[line.len - 1], '\n');
    json_t *json = json_loads(line.data, 0, NULL);
    assert_non_null(json);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        assert_non_null(json_object_get(json, fields[i]));
    assert_string_equal(json_string_value(json_object_get(json, "prediction")), "\\boxed{7}\xef\xbf\xbd");
    assert_int_equal(json_integer_value(json_object_get(json, "response_length")), 9);
    json_decref(json);
    json_decref(row);
    row = json_pack("{s:{s:[s,s,s], s:[s,s,s]}}", "test_cases", "inputs", "1", "2", "3", "outputs", "2", "4", "6");
    r.row = row;
    out = (struct reward_output){
        .score = SCORE_OK, .verdict = VERDICT_DIFFERENT, .pred = "5", .gold = "4", .rule = "code: wrong answer in test 2 of 3"
    };
    test_results_add(&out.tests, TEST_PASSED);
    test_results_add(&out.tests, TEST_WRONG);
    buf_clear(&line);
    assert_true(eval_record_line(&line, &r, &err));
    json = json_loads(line.data, 0, NULL);
    assert_non_null(json_object_get(json, "test_cases"));
    assert_null(json_object_get(json, "gold"));
    json_t *results = json_object_get(json, "test_results"), *metadata = json_object_get(json, "test_metadata");
    assert_int_equal(json_array_size(results), 2);    // the third was not run
    assert_int_equal(json_integer_value(json_array_get(results, 0)), 1);
    assert_int_equal(json_integer_value(json_array_get(results, 1)), 0);
    assert_int_equal(json_array_size(metadata), 1);
    metadata = json_array_get(metadata, 0);
    assert_int_equal(json_integer_value(json_object_get(metadata, "test")), 1);
    assert_string_equal(json_string_value(json_object_get(metadata, "output")), "5");
    assert_string_equal(json_string_value(json_object_get(metadata, "expected")), "4");
    json_decref(json);
    out = (struct reward_output){ .score = SCORE_OK, .verdict = VERDICT_EQUAL, .rule = "code: all 3 tests pass" };
    for (int i = 0; i < TESTS_KEPT_MAX + 7; i++)
        test_results_add(&out.tests, TEST_PASSED);
    buf_clear(&line);
    assert_true(eval_record_line(&line, &r, &err));
    json = json_loads(line.data, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(json, "test_results")), TESTS_KEPT_MAX);
    assert_int_equal(json_array_size(json_object_get(json, "test_metadata")), 0);
    json_decref(json);
    json_decref(row);
    buf_release(&line);
}

static void an_evaluation_file_is_named_as_upstream_names_it(UNUSED void **state)
{
    char path[64];
    assert_true(eval_file_path(path, sizeof path, "ev", "GRPO-Test", "gsm8k", 40, &err));
    assert_string_equal(path, "ev/GRPO-Test/gsm8k_training_step_40.jsonl");
    assert_true(eval_file_path(path, sizeof path, "run/eval", NULL, "a/b c", 0, &err));
    assert_string_equal(path, "run/eval/a_b_c_training_step_0.jsonl");
    assert_true(eval_file_path(path, sizeof path, "run/eval", NULL, "..", 0, &err));
    assert_string_equal(path, "run/eval/_._training_step_0.jsonl");
    assert_false(eval_file_path(path, 20, "run/eval", NULL, "gsm8k", 0, &err));
}

static void a_rollout_log_line_has_step_and_texts(UNUSED void **state)
{
    struct buf line = BUF_INIT;
    const char *text[] = { "user\nhi", "\"quoted\"" };
    assert_true(rollout_log_line(&line, 20, text, 2, &err));
    assert_string_equal(line.data, "{\"train_step\":20,\"rollout\":[\"user\\nhi\",\"\\\"quoted\\\"\"]}\n");
    buf_release(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pass_at_k_is_the_share_of_subsets_with_a_right_sample),
        cmocka_unit_test(pass_at_k_equals_counting_for_all_small_cases),
        cmocka_unit_test(the_reported_k_are_powers_of_two_and_n),
        cmocka_unit_test(a_sample_left_out_is_in_no_mean),
        cmocka_unit_test(an_answer_that_the_reward_does_not_judge_is_neither_right_nor_wrong),
        cmocka_unit_test(in_an_evaluation_a_right_answer_counts_in_any_format),
        cmocka_unit_test(a_record_has_upstreams_fields),
        cmocka_unit_test(an_evaluation_file_is_named_as_upstream_names_it),
        cmocka_unit_test(a_rollout_log_line_has_step_and_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
