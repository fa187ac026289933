/* tags: valgrind
 * Groups in a row that nothing can be learned from: what is counted, and what the operator is told. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "protocol/base/macros.h"
#include "workers/schedule/waste.h"

static struct group_summary group(int64_t n_scored, double ans_sum, int64_t n_timeout, int64_t n_error)
{
    return (struct group_summary){ .n_sample = 8,
                                   .n_scored = n_scored,
                                   .n_ans = n_scored,
                                   .n_left_out = 8 - n_scored,
                                   .n_timeout = n_timeout,
                                   .n_error = n_error,
                                   .ans_sum = ans_sum };
}

static void a_group_is_wasted_when_nothing_can_be_learned_from_it(UNUSED void **state)
{
    static const struct {
        int64_t n_scored;
        double ans_sum, reward_high;    // rewards from 0 to that
        struct batch_filter filter;
        bool wasted;
        const char *why;
    } cases[] = {
        { 0, 0, 0, { NAN, NAN, false }, true, "no sample was scored" },
        { 1, 0, 0, { NAN, NAN, false }, false, "one was, and nothing is filtered" },
        { 8, 0, 0, { 0.01, 0.99, false }, true, "all wrong" },
        { 8, 8, 0, { 0.01, 0.99, false }, true, "all right" },
        { 8, 4, 0, { 0.01, 0.99, false }, false, "half of them" },
        { 4, 2, 0, { 0.5, 0.9, false }, true, "the range's ends are outside, as in the ledger" },
        { 4, 3, 0, { 0.5, 0.9, false }, false, "the mean is over those that were scored" },
        { 8, 4, 0, { NAN, NAN, true }, true, "equal rewards teach nothing, whatever the accuracy" },
        { 8, 0, 1, { NAN, NAN, true }, false, "a reward without accuracy has spread" },
        { 8, 8, 1, { 0.01, 0.99, true }, true, "both rules hold" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct group_summary g = group(cases[i].n_scored, cases[i].ans_sum, 0, 0);
        g.reward_high = cases[i].reward_high;
        if (waste_is(&g, &cases[i].filter) != cases[i].wasted)
            fail_msg("%s", cases[i].why);
    }
}

static void a_useful_group_sets_the_count_back(UNUSED void **state)
{
    struct waste w = { 0 };
    struct group_summary bad = group(0, 0, 8, 0), good = group(8, 4, 0, 0);
    static const struct batch_filter any = { NAN, NAN, false };
    waste_add(&w, &bad, &any, "program: no answer in 10 s");
    waste_add(&w, &bad, &any, "");
    assert_int_equal(w.n_sample, 16);
    assert_int_equal(w.n_group, 2);
    w.told = true;
    waste_add(&w, &good, &any, "");
    assert_int_equal(w.n_sample + w.n_left_out + w.n_timeout, 0);
    assert_false(w.told);
    assert_string_equal(w.reason, "");
}

static void the_text_says_what_happened_and_what_to_look_at(UNUSED void **state)
{
    static const struct {
        struct waste w;
        const char *what, *remedy;
    } cases[] = {
        { { .n_sample = 16, .n_left_out = 16, .n_timeout = 12, .n_error = 4, .reason = "code: time" },
          "the last 16 samples were all left out (12 time-outs, 4 errors of the verifier, the last: code: time); ",
          "raise reward_timeout_s" },
        { { .n_group = 2, .n_sample = 16, .n_unknown = 16 },
          "none of 16 answers has an accuracy: all of the last 2 groups were filtered; ",
          "filter_range needs a reward that gives ans_acc" },
        { { .n_sample = 16, .n_left_out = 16, .n_error = 16 }, "(0 time-outs, 16 errors of the verifier); ", "look at logs/scorer.log" },
        { { .n_sample = 16, .n_left_out = 16 }, "the last 16 samples were all left out", "reward_type cannot tell" },
        { { .n_group = 2, .n_sample = 16 },
          "0 of 16 answers have the right format: all of the last 2 groups were filtered; ",
          "chat template" },
        { { .n_group = 2, .n_sample = 16, .n_format = 9 },
          "0 of 16 answers are right: all of the last 2 groups were filtered; ",
          "easier" },
        { { .n_group = 2, .n_sample = 16, .n_right = 16 }, "16 of 16 answers are right: all of", "harder prompts" },
        { { .n_group = 2, .n_sample = 16, .n_format = 16, .n_right = 8 }, "8 of 16 answers are right: all of", "widen it" },
        { { .n_sample = 16, .n_left_out = 4, .n_error = 1 }, "of the last 16 samples 4 were left out", "logs/scorer.log" },
        { { 0 }, "every sample was left out or filtered; ", "logs/scorer.log" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[WASTE_TEXT_MAX];
        waste_text(&cases[i].w, text, sizeof text);
        const char *after = strstr(text, "; ");
        if (!strstr(text, cases[i].what) || !after || !strstr(after, cases[i].remedy))
            fail_msg("case %zu: %s", i, text);
    }
    struct waste most = { .n_sample = INT64_MAX, .n_left_out = INT64_MAX - 1, .n_timeout = INT64_MAX, .n_error = INT64_MAX };
    memset(most.reason, 'x', sizeof most.reason - 1);
    char text[WASTE_TEXT_MAX];
    assert_true(strlen(waste_text(&most, text, sizeof text)) < sizeof text - 1);    // nothing is cut off
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_is_wasted_when_nothing_can_be_learned_from_it),
        cmocka_unit_test(a_useful_group_sets_the_count_back),
        cmocka_unit_test(the_text_says_what_happened_and_what_to_look_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
