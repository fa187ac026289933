#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/macros.h"
#include "workers/engine/reward/reward.h"

/* Score one response; n_tok < 0: its length is not known. */
static struct reward_output score(const struct reward_config *config, const char *response, const char *gold, int64_t n_tok,
                                  enum finish_reason finish)
{
    struct error err = { 0 };
    struct reward *r = reward_new(config, &err);
    assert_non_null(r);
    json_t *row = gold ? json_pack("{s:s}", "gt_answer", gold) : json_object();
    struct reward_input in = {
        .response = response, .response_len = strlen(response), .row = row, .has_length = n_tok >= 0, .n_tok = n_tok, .finish = finish
    };
    struct reward_output out;
    reward_score(r, &in, &out, 1);
    json_decref(row);
    reward_free(r);
    return out;
}

static void the_score_table_is_colossalchats(UNUSED void **state)
{
    static const struct {
        const char *type, *response, *gold;
        double reward;
        int format,
            // clang-format off
                          ans; const char *why; } cases[] = {
        { "boxed", "so \\boxed{42}", "42", 10, 1, 1, "right" },
        { "boxed", "so \\boxed{42}, no, \\boxed{43}", "42", 0, 1, 0, "the last box counts" },
        { "boxed", "\\boxed{43} \\boxed{42", "43", 0, 0, 0, "the last box never closes" },
        { "boxed", "the answer is 42", "42", 0, 0, 0, "no box" },
        { "boxed", "\\boxed{\\frac{1}{2}}", "0.5", 10, 1, 1, "nested braces, another form" },
        { "boxed", "\\boxed{\\frac{1}{2{}}}", "\\frac{1}{2}", 5, 1, 1, "cannot be read, but its text matches" },
        { "boxed", "so \\fbox{42}.", "42", 10, 1, 1, "LaTeX's own box" },
        { "boxed", "so \\framebox[3cm] [c]{42}, not \\framebox.", "42", 10, 1, 1, "a box with a width and a place" },
        { "boxed", "so \\boxed  {42}.", "42", 10, 1, 1, "blanks before the brace" },
        { "boxed", "\\boxed{42} as \\boxed asks, \\fbox", "42", 10, 1, 1, "a mention without a brace is no box" },
        { "boxed", "\\boxed", "42", 0, 0, 0, "nothing but a mention" },
        { "boxed", "\\boxed{7} is it.", "\\boxed{7}", 10, 1, 1, "gt_answer may come boxed" },
        { "think_answer_tags", "<think> a </think><answer> 42 </answer>", "42", 10, 1, 1, "right" },
        { "think_answer_tags", "<think> a </think><answer> 42 </answer> ", "42", 0, 0, 0, "a trailing character" },
        { "think_answer_tags", "<think> a <answer> 42 </answer>", "42", 0, 0, 0, "a tag is missing" },
        { "think_answer_tags", "<answer> 42 </answer><think> a </think>", "42", 0, 0, 0, "wrong order" },
        { "think_answer_tags", "<think><think> a </think><answer> 42 </answer>", "42", 0, 0, 0, "a tag twice" },
        { "think_answer_tags", "<think> a </think><answer>1</answer><answer>42</answer>", "42", 0, 0, 0,
          "two answers" },
        { "think_answer_tags", "<think> a </think><answer> 41 </answer>", "42", 0, 1, 0, "wrong in a valid format" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reward_config config = { .type = cases[i].type, .max_new_tok = 100, .cache_len = 25 };
        struct reward_output o = score(&config, cases[i].response, cases[i].gold, 10, FINISH_STOP);
        print_message("%s: %s\n", cases[i].type, cases[i].why);
        assert_int_equal(o.score, SCORE_OK);
        assert_float_equal(o.reward, cases[i].reward, 0);
        assert_int_equal((int)o.format_acc, cases[i].format);
        assert_int_equal((int)o.ans_acc, cases[i].ans);
        assert_true(isnan(o.part[0]));
    }
}

static void the_tags_of_a_response_can_be_others(UNUSED void **state)
{
    static const char tags[] = "{\"think_start\":{\"text\":\"[T]\",\"num_occur\":1},\"think_end\":{\"text\":\"[/T]\",\"num_occur\":2},"
                               "\"answer_start\":{\"text\":\"[A]\"}}";
    static const struct { const char *response; double reward; int format; const char *why; } cases[] = {
        { "[T] a [/T] b [/T] [A] 42 </answer>", 10, 1, "all tags, one of them twice, one by default" },
        { "[T] a [/T] [A] 42 </answer>", 0, 0, "one tag too few" },
        { "[T] a [/T] b [/T] c [/T] [A] 42 </answer>", 0, 0, "one too many" },
        { "[/T] [T] a [/T] [A] 42 </answer>", 0, 0, "wrong order" },
        { "[T] a [/T] b [/T] [A] 42 </answer>.", 0, 0, "something after the end" },
        { "<think> a </think><answer> 42 </answer>", 0, 0, "the default's tags" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reward_config config = { .type = "think_answer_tags", .max_new_tok = 100, .response_format_tags = tags };
        struct reward_output o = score(&config, cases[i].response, "42", 10, FINISH_STOP);
        print_message("%s\n", cases[i].why);
        assert_float_equal(o.reward, cases[i].reward, 0);
        assert_int_equal((int)o.format_acc, cases[i].format);
    }
    static const char *const wrong[] = { "[]", "{\"think\":{\"text\":\"x\"}}", "{\"think_end\":{\"num_occur\":1}}", "{\"think_end\":{\"text\":\"\"}}",
                                         "{\"think_end\":{\"text\":\"x\",\"num_occur\":0}}" };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct error err = { 0 };
        assert_null(reward_new(&(struct reward_config){ .type = "think_answer_tags", .response_format_tags = wrong[i] }, &err));
        assert_int_equal(err.code, ERR_USAGE);
        assert_non_null(strstr(err.text, "response_format_tags"));
    }
}

static void evaluation_needs_no_valid_format(UNUSED void **state)
{
    struct reward_config config = { .type = "think_answer_tags", .eval = true };
    struct reward_output o = score(&config, "<answer>42</answer> that is it", "42", -1, FINISH_STOP);
    assert_float_equal(o.ans_acc, 1, 0);
    assert_float_equal(o.format_acc, 0, 0);
    assert_float_equal(o.reward, 10, 0);
}

/* The vectors of ColossalChat's formula ((M - c) - L) / c * 10 at M = 3584, c = 896. */
static void length_rules_follow_the_vectors(UNUSED void **state)
{
    static const struct { bool soft; int64_t n_tok; enum finish_reason finish; const char *response; double want; } cases[] = {
        { true, 2688, FINISH_STOP, "\\boxed{1}", 10 },
        { true, 2689, FINISH_STOP, "\\boxed{1}", 10 - 10.0 / 896 },
        { true, 3136, FINISH_STOP, "\\boxed{1}", 5 },
        { true, 3583, FINISH_STOP, "\\boxed{1}", 10 - 9.9888392857142857 },
        { true, 3136, FINISH_STOP, "\\boxed{2}", -5 },
        { true, 3136, FINISH_STOP, "nothing", 0 },
        { true, 3584, FINISH_STOP, "\\boxed{1}", 0 },
        { false, 3584, FINISH_STOP, "\\boxed{1}", 10 },    // ended exactly at the limit: not cut
        { true, 3584, FINISH_LENGTH, "\\boxed{2}", 0 },
        { false, 3583, FINISH_STOP, "\\boxed{1}", 10 },
        { false, 100, FINISH_LENGTH, "\\boxed{1}", 0 },
        { true, -1, FINISH_STOP, "\\boxed{1}", 10 },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reward_config config = { .type = "boxed", .max_new_tok = 3584, .cache_len = i % 2 ? 896 : 0,    // 3584 / 4
                                        .soft_over_length_punishment = cases[i].soft };
        struct reward_output o = score(&config, cases[i].response, "1", cases[i].n_tok, cases[i].finish);
        assert_float_equal(o.reward, cases[i].want, 1e-12);
    }
    struct reward_config config = { .type = "boxed", .max_new_tok = 10 };
    struct reward_output o = score(&config, "\\boxed{1}", "1", 10, FINISH_STOP);
    assert_float_equal(o.ans_acc, 1, 0);    // the accuracies stay
}

static void a_missing_gt_answer_leaves_the_sample_out(UNUSED void **state)
{
    struct reward_config config = { .type = "boxed" };
    struct reward_output o = score(&config, "\\boxed{1}", NULL, -1, FINISH_STOP);
    assert_int_equal(o.score, SCORE_ERROR);
    assert_int_equal(o.verdict, VERDICT_CANNOT_TELL);
    assert_string_equal(o.rule, "no gt_answer");
}

static void a_row_without_what_a_part_needs_is_named(UNUSED void **state)
{
    static const struct { const char *type, *row, *text; } cases[] = {    // text NULL: the row will do
        { "boxed", "{'gt_answer':'1'}", NULL },
        { "math", "{'gt_answer':1.5}", NULL },
        { "boxed", "{}", "'gt_answer' is missing; name the column" },
        { "think_answer_tags", "{'gt_answer':''}", "'gt_answer' is empty" },
        { "math", "{'test_cases':{'inputs':['1'],'outputs':['2']}}", "for the reward types code and code_share" },
        { "code", "{'test_cases':{'inputs':['1'],'outputs':['2']}}", NULL },
        { "code", "{'gt_answer':'1'}", "'test_cases' is missing; the row has 'gt_answer', for the reward types boxed" },
        { "code_share", "{'test_cases':{'inputs':[{}],'outputs':['2']}}", "'inputs' 0 of test_cases must be a string" },
        { "code", "{'test_cases':{'assert_case':['f(1)==1']}}", "'assert_case'" },
        { "program:cat", "{}", NULL },
        { "0.5*boxed + 0.5*program:cat", "{'gt_answer':'1'}", NULL },
        { "0.5*program:cat + 0.5*code", "{'gt_answer':'1'}", "reward 'code' cannot score this row: 'test_cases'" },
        { "0.5*code + 0.5*boxed", "{'test_cases':{'inputs':['1'],'outputs':['2']}}", "reward 'boxed' cannot score this row" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        char text[128];
        snprintf(text, sizeof text, "%s", cases[i].row);
        for (char *c = text; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        json_t *row = json_loads(text, 0, NULL);
        struct reward *r = reward_new(&(struct reward_config){ .type = cases[i].type }, &err);
        assert_non_null(row);
        assert_non_null(r);
        bool ok = reward_row_check(r, row, &err);
        if (ok != !cases[i].text || (!ok && !strstr(err.text, cases[i].text)))
            fail_msg("%s on %s: '%s'", cases[i].type, cases[i].row, ok ? "will do" : err.text);
        reward_free(r);
        json_decref(row);
    }
}

static void a_weighted_list_reports_its_parts(UNUSED void **state)
{
    struct error err = { 0 };
    struct reward_config config = { .type = "0.75*boxed + 0.25 * think_answer_tags" };
    struct reward *r = reward_new(&config, &err);
    assert_non_null(r);
    assert_int_equal(reward_n_part(r), 2);
    assert_string_equal(reward_part_name(r, 1), "think_answer_tags");
    reward_free(r);
    struct reward_output o = score(&config, "\\boxed{1}", "1", -1, FINISH_STOP);
    assert_float_equal(o.reward, 7.5, 0);
    assert_float_equal(o.part[0], 10, 0);
    assert_float_equal(o.part[1], 0, 0);
    assert_true(isnan(o.part[2]));
    assert_float_equal(o.ans_acc, 1, 0);
}

static void a_reward_that_no_step_can_compute_with_leaves_the_sample_out(UNUSED void **state)
{
    static const struct { const char *type; enum score_state score; } cases[] = {
        { "1e8*boxed", SCORE_OK }, { "1.1e8*boxed", SCORE_ERROR }, { "1e300*boxed", SCORE_ERROR },    // a right answer has 10
        { "1e308*boxed", SCORE_ERROR },                                                                // infinity
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reward_config config = { .type = cases[i].type };
        struct reward_output o = score(&config, "\\boxed{1}", "1", -1, FINISH_STOP);
        assert_int_equal(o.score, cases[i].score);
        assert_true(o.reward == (o.score == SCORE_OK ? 1e9 : 0));
        assert_true(o.score == SCORE_OK || strstr(o.rule, "is not from -1e+09 to 1e+09"));
    }
}

static void a_wrong_type_is_named_with_the_nearest(UNUSED void **state)
{
    static const struct { const char *type, *text; } cases[] = {
        { "boxd", "did you mean 'boxed'" }, { "boxed + boxed", "twice" }, { "0.5*", "unknown reward type ''" },
        { "", "is needed" }, { "e*boxed", "'e' is not a valid weight" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct reward_config config = { .type = cases[i].type };
        assert_null(reward_new(&config, &err));
        assert_int_equal(err.code, ERR_USAGE);
        assert_non_null(strstr(err.text, cases[i].text));
    }
}

static void prompts_and_stops_belong_to_the_type(UNUSED void **state)
{
    assert_string_equal(reward_system_prompt("boxed"),
                        "Please reason step by step, and put your final answer within \\boxed{}.");
    const char *think = reward_system_prompt("think_answer_tags");
    assert_non_null(strstr(think, "within <think> </think> and<answer> </answer> tags"));
    assert_string_equal(think + strlen(think) - 2, "\n\n");
    assert_string_equal(reward_stop_string("0.9*think_answer_tags + 0.1*math"), "</answer>");
    assert_null(reward_stop_string("boxed"));
    assert_null(reward_system_prompt("math"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_score_table_is_colossalchats),
        cmocka_unit_test(the_tags_of_a_response_can_be_others),
        cmocka_unit_test(evaluation_needs_no_valid_format),
        cmocka_unit_test(length_rules_follow_the_vectors),
        cmocka_unit_test(a_missing_gt_answer_leaves_the_sample_out),
        cmocka_unit_test(a_row_without_what_a_part_needs_is_named),
        cmocka_unit_test(a_weighted_list_reports_its_parts),
        cmocka_unit_test(a_reward_that_no_step_can_compute_with_leaves_the_sample_out),
        cmocka_unit_test(a_wrong_type_is_named_with_the_nearest),
        cmocka_unit_test(prompts_and_stops_belong_to_the_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// clang-format on