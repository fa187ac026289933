#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "workers/engine/reward/math/math.h"

static struct math *scratch(int decimals)
{
    struct error err = { 0 };
    struct math_config config = { .decimals = decimals };
    struct math *m = math_new(&config, &err);
    assert_non_null(m);
    return m;
}

static struct math_result result(struct math *m, const char *gold, const char *pred)
{
    struct math_result r;
    math_answer(m, pred, strlen(pred), gold, strlen(gold), &r);
    return r;
}

static enum verdict answer(struct math *m, const char *gold, const char *pred)
{
    return result(m, gold, pred).verdict;
}

typedef void case_fn(struct math *m, const json_t *row, const char *gold, const char *pred, const char *want);

static int cases_run(const char *name, case_fn *fn)
{
    struct buf text = BUF_INIT;
    struct error err = { 0 };
    char path[512];
    struct math *m = scratch(6);
    int n = 0;
    snprintf(path, sizeof path, "%s/golden/math/%s", TEST_DATA_DIR, name);
    assert_true(file_read(&text, path, 1 << 24, &err));
    for (char *s = text.data, *next; s && *s; s = next) {
        next = strchr(s, '\n');
        json_t *row = json_loadb(s, next ? (size_t)(next - s) : strlen(s), 0, NULL);
        assert_non_null(row);
        fn(m, row, json_string_value(json_object_get(row, "gold")), json_string_value(json_object_get(row, "pred")),
           json_string_value(json_object_get(row, "want")));
        json_decref(row);
        next = next ? next + 1 : NULL;
        n++;
    }
    buf_release(&text);
    math_free(m);
    return n;
}

static const char *name_of(enum verdict v)
{
    return v == VERDICT_EQUAL ? "equal" : v == VERDICT_DIFFERENT ? "different" : "cannot_tell";
}

static void answer_case(struct math *m, UNUSED const json_t *row, const char *gold, const char *pred, const char *want)
{
    struct math_result r = result(m, gold, pred), back = result(m, pred, gold);
    if (strcmp(name_of(r.verdict), want) != 0)
        print_error("gold %s, pred %s: want %s, got %s by '%s'\n", gold, pred, want, name_of(r.verdict), r.rule);
    assert_string_equal(name_of(r.verdict), want);
    if (!math_rule_one_sided(r.rule) && !math_rule_one_sided(back.rule) && r.pred_parsed && back.pred_parsed) {
        if (back.verdict != r.verdict)
            print_error("gold %s, pred %s: %s by '%s' the other way round\n", gold, pred, name_of(back.verdict), back.rule);
        assert_int_equal(back.verdict, r.verdict);
    }
    assert_int_equal(answer(m, gold, gold), VERDICT_EQUAL);
    assert_int_equal(answer(m, pred, pred), VERDICT_EQUAL);
}

static void judged_answers_keep_their_verdict_both_ways_round(UNUSED void **state)
{
    assert_in_range(cases_run("answers.jsonl", answer_case), 100, 100000);
}

static void suite_case(struct math *m, const json_t *row, const char *gold, const char *pred, const char *want)
{
    struct math_result r;
    struct math *other = NULL;
    if (json_object_get(row, "precision"))
        m = other = scratch((int)json_integer_value(json_object_get(row, "precision")));
    // otherwise the expectation is not ours, and the reason is given
    bool agree = json_object_get(row, "judged") == NULL;
    math_response(m, pred, strlen(pred), gold, strlen(gold), &r);
    if (((r.verdict == VERDICT_EQUAL) == (strcmp(want, "equal") == 0)) != agree)
        print_error("gold %s\npred %s: %s\n", gold, pred, r.rule);
    assert_int_equal((r.verdict == VERDICT_EQUAL) == (strcmp(want, "equal") == 0), agree);
    math_free(other);
}

static void every_right_expectation_of_math_verifys_suite_holds(UNUSED void **state)
{
    assert_in_range(cases_run("math_verify_suite.jsonl", suite_case), 250, 1000);
}

static void decimals_can_be_made_exact(UNUSED void **state)
{
    struct math *exact = scratch(0), *rounded = scratch(6), *coarse = scratch(2);
    assert_int_equal(answer(exact, "\\frac{1}{3}", "0.333333"), VERDICT_DIFFERENT);
    assert_int_equal(answer(rounded, "\\frac{1}{3}", "0.333333"), VERDICT_EQUAL);
    assert_int_equal(answer(rounded, "\\frac{1}{3}", "0.33333"), VERDICT_DIFFERENT);
    assert_int_equal(answer(coarse, "\\frac{1}{3}", "0.33"), VERDICT_EQUAL);
    assert_int_equal(answer(exact, "0.5", "\\frac12"), VERDICT_EQUAL);
    assert_int_equal(answer(exact, "\\sqrt{2}", "1.414213562373095"), VERDICT_DIFFERENT);
    math_free(exact);
    math_free(rounded);
    math_free(coarse);
}

static void a_response_is_searched_in_the_stated_order(UNUSED void **state)
{
    static const struct {
        const char *response, *gold;
        enum verdict want;
        const char *why;
    } cases[] = {
        { "so $x=3$, hence \\boxed{4}. Check: 5", "4", VERDICT_EQUAL, "a box before all" },
        { "\\boxed{1} and then much later, behind quite a lot of other words that say nothing at all: \\boxed{2}", "2", VERDICT_EQUAL,
          "last box" },
        { "\\boxed{-2} and \\boxed{1}", "1,-2", VERDICT_EQUAL, "boxes close together are one answer" },
        { "The final answer is $7$. I hope it is correct. 9", "7", VERDICT_EQUAL, "the phrase before the last number" },
        { "The answer: 12 apples, not 13", "12", VERDICT_EQUAL, "behind the word answer" },
        { "we get $a=1$ and then $b+2$", "b+2", VERDICT_EQUAL, "the last formula" },
        { "it costs 1,250.50 in all", "1250.5", VERDICT_EQUAL, "the last number" },
        { "x \\to 3 \\boxed{x \\to 0}", "0", VERDICT_DIFFERENT, "an answer that cannot be read gives no number away" },
        { "\\boxed{0.1234, 0.5678, \\ldots 0}", "0", VERDICT_DIFFERENT, "nor does a sequence" },
        { "The answer is (C).", "C", VERDICT_EQUAL, "a choice by its letter" },
        { "\\boxed{\\textbf{(B)}\\ 12}", "12", VERDICT_EQUAL, "a choice with what it chooses" },
        { "\\boxed{\\textbf{(B)}\\ 12}", "B", VERDICT_EQUAL, "a choice with what it chooses" },
        { "\\boxed{\\textbf{(B)}\\ 12}", "\\text{(C) } 12", VERDICT_DIFFERENT, "another choice" },
        { "She sold 48+24 = 72 clips.\n#### 72", "72", VERDICT_EQUAL, "GSM8K's way" },
        { "so the point is (1, 2)", "(1,2)", VERDICT_EQUAL, "a point in plain text" },
        { "ab2cd", "2", VERDICT_DIFFERENT, "digits in a word are none" },
    };
    struct math *m = scratch(6);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct math_result r;
        math_response(m, cases[i].response, strlen(cases[i].response), cases[i].gold, strlen(cases[i].gold), &r);
        if (r.verdict != cases[i].want)
            print_error("%s: '%s', rule %s\n", cases[i].why, r.pred, r.rule);
        assert_int_equal(r.verdict, cases[i].want);
    }
    math_free(m);
}

static void a_gt_answer_in_a_text_is_its_answer_or_cannot_be_judged(UNUSED void **state)
{
    static const struct {
        const char *response, *gold;
        enum verdict want;
        const char *why;
    } cases[] = {
        { "so $x = 5$", "$\nx=3\ny=5\n$", VERDICT_DIFFERENT, "two lines are two statements" },
        { "so $x = 3, y = 5$", "$\nx=3\ny=5\n$", VERDICT_EQUAL, "both of them" },
        { "2", "$x=1$\n$y=2$", VERDICT_DIFFERENT, "a formula a line: not the last of them" },
        { "$x=1$, $y=2$", "$x=1$\n$y=2$", VERDICT_EQUAL, "all of them" },
        { "5", "the value is $x^2$ for all $5$", VERDICT_CANNOT_TELL, "prose around formulas" },
        { "5", "$x^2$ is the area of a square with $5$", VERDICT_CANNOT_TELL, "prose around formulas" },
        { "0", "The local minimum is at 0", VERDICT_CANNOT_TELL, "prose around a number" },
        { "5", "The answer depends on 5", VERDICT_CANNOT_TELL, "prose with the word answer" },
        { "5", "The answer is 5", VERDICT_EQUAL, "a text that names its answer" },
        { "72", "She sold 48+24 = 72 clips.\n#### 72", VERDICT_EQUAL, "GSM8K's gt_answer" },
        { "125", "$125$ miles", VERDICT_EQUAL, "a formula and its unit" },
        { "so $\\begin{pmatrix}\n1 & 2 \\\\\n3 & 4\n\\end{pmatrix}$", "$\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}$", VERDICT_EQUAL,
          "a matrix over several lines" },
        { "it costs $5 and\nnot $6", "6", VERDICT_EQUAL, "an amount in dollars opens no formula over lines" },
    };
    struct math *m = scratch(6);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct math_result r;
        math_response(m, cases[i].response, strlen(cases[i].response), cases[i].gold, strlen(cases[i].gold), &r);
        if (r.verdict != cases[i].want)
            print_error("%s: %s, '%s' against '%s', rule %s\n", cases[i].why, name_of(r.verdict), r.pred, r.gold, r.rule);
        assert_int_equal(r.verdict, cases[i].want);
    }
    math_free(m);
}

static void choices_and_systems_are_read_as_schools_write_them(UNUSED void **state)
{
    static const struct {
        const char *gold, *pred;
        enum verdict want;
    } cases[] = {
        { "120", "{}_{10}C_3", VERDICT_EQUAL },
        { "120", "{}_{10}C_{3}", VERDICT_EQUAL },
        { "120", "_{10}C_{3}", VERDICT_EQUAL },
        { "120", "{}^{10}C_3", VERDICT_EQUAL },
        { "121", "{}_{10}C_3", VERDICT_DIFFERENT },
        { "720", "{}_{10}P_3", VERDICT_EQUAL },
        { "1320", "11\\cdot {}_{10}C_3", VERDICT_EQUAL },
        { "\\binom{n}{2}", "{}_nC_2", VERDICT_EQUAL },
        { "\\binom{10}{3}", "x_{10}C_3", VERDICT_DIFFERENT },    // a symbol's index
        { "x=1, y=2", "\\begin{cases} x=1 \\\\ y=2 \\end{cases}", VERDICT_EQUAL },
        { "x=1, y=2", "\\begin{cases} x&=1 \\\\ y&=2 \\end{cases}", VERDICT_EQUAL },
        { "x=1, y=2", "\\begin{cases} x=2 \\\\ y=1 \\end{cases}", VERDICT_DIFFERENT },
    };
    struct math *m = scratch(6);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct math_result r = result(m, cases[i].gold, cases[i].pred);
        if (r.verdict != cases[i].want)
            fail_msg("'%s' against '%s': %s, rule %s", cases[i].pred, cases[i].gold, name_of(r.verdict), r.rule);
    }
    static const char *const pieces[] = { "\\begin{cases} x & x>0 \\\\ 0 & x\\le 0 \\end{cases}",
                                          "\\begin{cases} y=1 & \\text{if } x=2 \\\\ y=2 & \\text{else} \\end{cases}" };
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++)
        assert_int_not_equal(answer(m, pieces[i], "1"), VERDICT_EQUAL);    // a function by cases is no system
    math_free(m);
}

static void what_cannot_be_judged_says_why(UNUSED void **state)
{
    static const struct {
        const char *gold, *pred, *rule;
    } cases[] = {
        { "\\begin{cases} x \\\\ y \\end{cases}", "5", "gt_answer cannot be parsed" },
        { "\\frac{1}{0}", "5", "neither proved nor refuted" },
        { "\\int_0^1 \\lfloor 2x \\rfloor\\,dx", "\\frac12", "an integral, limit or the like is not evaluated" },
        { "\\sum_{i=1}^{4000}\\sum_{j=1}^{4000} ij", "2", "budget spent" },
        { "\\int_0^1 \\frac{dx}{x-1/3}", "0", "budget spent" },
        { "\\int_0^\\infty \\frac{dx}{(x-1/3)^2}", "0", "budget spent" },
        { "9^{9^{9^{9}}}+1", "10^{10^{10^{10}}}", "power too large" },
    };
    struct math *m = scratch(6);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct math_result r;
        math_answer(m, cases[i].pred, strlen(cases[i].pred), cases[i].gold, strlen(cases[i].gold), &r);
        assert_int_equal(r.verdict, VERDICT_CANNOT_TELL);
        if (strcmp(r.rule, cases[i].rule) != 0 && i != 1)
            print_error("%s: %s\n", cases[i].gold, r.rule);
        assert_true(i == 1 || strcmp(r.rule, cases[i].rule) == 0);
    }
    math_free(m);
}

static void an_unreadable_answer_is_different_unless_its_text_matches(UNUSED void **state)
{
    struct math *m = scratch(6);
    struct math_result r;
    const char *bad = "\\frac{1}{", *same = "\\frac{ 1 }{ 2", *gold = "\\frac{1}{2}";
    math_answer(m, bad, strlen(bad), gold, strlen(gold), &r);
    assert_int_equal(r.verdict, VERDICT_DIFFERENT);
    assert_false(r.pred_parsed);
    math_answer(m, same, strlen(same), gold, strlen(gold), &r);
    assert_int_equal(r.verdict, VERDICT_EQUAL);
    assert_false(r.pred_parsed);    // ColossalChat's half score
    math_free(m);
}

/* Inputs that grow without bound somewhere: each must get some verdict; the budget, not a clock, ensures it. */
static void hostile_answers_come_back(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *head, *part, *mid, *tail; int n; } cases[] = {
        { "", "(", "1", ")", 5000 }, { "", "{", "1", "}", 100000 }, { "", "1", "", "", 1000000 },
        { "", "-", "1", "", 15000 },
        { "", "\\frac{", "1", "}{2}", 1500 }, { "1", "/1", "", "", 8000 }, { "1", "+1", "", "", 8000 },
        { "", "\\sqrt{", "2", "}", 2000 },
        { "2", "^2", "", "", 8000 }, { "2", "^{2", "", "}", 4000 }, { "3", "!", "", "", 10000 },
        { "", "|", "1", "|", 5000 },
        { "", "\\left(", "1", "\\right)", 800 }, { "", "\\begin{pmatrix}", "1", "\\end{pmatrix}", 500 },
        { "x", "_1", "", "", 8000 },
        { "", "\\text{", "a", "}", 2000 }, { "", "$", "1", "$", 8000 }, { "", "\\boxed{", "1", "}", 2000 },
        { "1", ",1", "", "", 8000 },
        { "", "\\sin ", "1", "", 3000 }, { "", "\\pm ", "1", "", 2000 }, { "10^{", "9", "}", "", 1000 },
        { "1e", "9", "", "", 4000 },
        { "\\sum_{k=1}^{", "9", "} k", "", 9 }, { "", "(A) ", "1", "", 4000 }, { "", "\\text{(A)} ", "1", "", 1200 },
        { "", "\\lfloor ", "1", "\\rfloor ", 900 }, { "", "\\{", "1", "\\}", 3000 },
        { "", "\\int_0^1", "x", "dx", 150 }, { "", "\\int_0^1 x^", "x", "dx", 40 }, { "", "\\int_0^{", "x", "} xdx", 60 },
        { "", "\\int_0^1\\sin(x^", "x", ")dx", 40 }, { "", "\\frac{d}{dx}x^", "x", "", 60 }, { "", "\\frac{d}{dx}(x", "x", ")", 100 },
        { "", "\\lim_{x\\to0}(x+", "x", ")", 100 }, { "", "\\lim_{x\\to0}(1+x)^{", "9", "/x}", 50 },
        { "", "\\sum_{n=1}^\\infty(", "n", ")/n^2", 50 }, { "\\sum_{n=1}^\\infty\\frac{1}{n^{", "9", "}}", "", 20 },
        { "\\sum_{n=1}^\\infty\\frac{1}{n^2+", "9", "}", "", 70 }, { "\\sum_{n=1}^\\infty\\left(", "\\frac{1}{n^2+n}+", "\\frac{1}{2^n}", "\\right)", 40 },
        { "\\sum_{n=1}^\\infty 0.", "9", "^n", "", 12 }, { "\\sum_{n=", "9", "}^\\infty\\frac{1}{n!}", "", 3 },
        { "\\prod_{n=1}^\\infty\\frac{(n+1)", "(n+1)", "}{", "(n+1)", 10 }, { "\\lim_{x\\to ", "9", "}x^9", "", 400 },
        { "", "\\begin{cases}", "1", "&x>0\\end{cases}", 300 }, { "", "\\begin{cases}1&", "x>0", "\\end{cases}", 300 },
        { "\\begin{cases}", "1&x>0\\\\", "", "", 400 }, { "\\begin{cases}", "1&x>0\\\\", "\\end{cases}", "", 20 },
        { "\\{x\\in Z: x<1", "9", "\\}", "", 30 }, { "1", "A", "_{16}", "", 4000 }, { "", "(", "1", ")_2", 2000 },
        { "", "\\framebox[", "1", "]{1}", 1000 }, { "no ", "no ", "solution", "", 3000 },
        { "\\int_0^\\infty x^", "9", "e^{-x}dx", "", 30 }, { "\\int_0^\\infty e^{-", "9", "x}dx", "", 80 },
        { "\\int_{-\\infty}^", "\\infty", " e^{-x^2+9999999x}dx", "", 1 }, { "\\int_1^\\infty\\frac{dx}{x^2", "+x^9", "}", "", 3 },
        { "\\frac{d^9}{dx^9}", "x", "", "", 9 }, { "\\frac{d^8}{dx^8}", "\\sin x", "", "", 30 },
    };
    // clang-format on
    struct math *m = scratch(6);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf b = BUF_INIT;
        buf_str(&b, cases[i].head);
        for (int k = 0; k < cases[i].n; k++)
            buf_str(&b, cases[i].part);
        buf_str(&b, cases[i].mid);
        for (int k = 0; k < cases[i].n && cases[i].tail[0]; k++)
            buf_str(&b, cases[i].tail);
        assert_false(b.failed);
        struct math_result r, again;
        math_answer(m, b.data, b.len, "7", 1, &r);
        math_answer(m, b.data, b.len, "7", 1, &again);
        assert_int_equal(r.verdict, again.verdict);
        assert_int_not_equal(r.verdict, VERDICT_EQUAL);
        math_answer(m, "7", 1, b.data, b.len, &r);
        assert_int_not_equal(r.verdict, VERDICT_EQUAL);
        math_response(m, b.data, b.len, "7", 1, &r);
        math_answer(m, b.data, b.len, b.data, b.len, &r);
        assert_int_equal(r.verdict, VERDICT_EQUAL);
        buf_release(&b);
    }
    math_free(m);
}

static void *many_checks(UNUSED void *arg)
{
    struct math *m = scratch(6);
    intptr_t right = 0;
    for (int i = 0; i < 300; i++) {
        right += answer(m, "\\sqrt{5+2\\sqrt{6}}", "\\sqrt{2}+\\sqrt{3}") == VERDICT_EQUAL;
        right += answer(m, "\\sin^2 x", "1-\\cos^2 x") == VERDICT_EQUAL;
        right += answer(m, "\\binom{60}{30}", "118264581564861424") == VERDICT_EQUAL;
        right += answer(m, "\\binom{60}{30}", "118264581564861425") == VERDICT_DIFFERENT;
    }
    math_free(m);
    return (void *)right;
}

static void any_thread_may_have_its_own(UNUSED void **state)
{
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, many_checks, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *right;
        assert_int_equal(pthread_join(t[i], &right), 0);
        assert_int_equal((intptr_t)right, 1200);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judged_answers_keep_their_verdict_both_ways_round),
        cmocka_unit_test(every_right_expectation_of_math_verifys_suite_holds),
        cmocka_unit_test(decimals_can_be_made_exact),
        cmocka_unit_test(a_response_is_searched_in_the_stated_order),
        cmocka_unit_test(a_gt_answer_in_a_text_is_its_answer_or_cannot_be_judged),
        cmocka_unit_test(choices_and_systems_are_read_as_schools_write_them),
        cmocka_unit_test(what_cannot_be_judged_says_why),
        cmocka_unit_test(an_unreadable_answer_is_different_unless_its_text_matches),
        cmocka_unit_test(hostile_answers_come_back),
        cmocka_unit_test(any_thread_may_have_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
