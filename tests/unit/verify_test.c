#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/macros.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/reward/verify/judge.h"
#include "workers/engine/reward/verify/literal.h"
#include "workers/engine/reward/verify/verify.h"

/* As training has it upstream: equal as text is equal. */
static const struct verify_options text_only = { .verification_reward = 10,
                                                 .max_length_verifier_max_length = 32768,
                                                 .code_max_execution_time = 5 };

static struct verify_result verify_one(struct verify_host *h, const char *name, const char *response, int64_t n_tok, const json_t *truth)
{
    struct verify_result res;
    const struct verifier *v = verify_find(name);
    assert_non_null(v);
    struct verify_input in = { span_str(response), n_tok, truth, NULL };
    verify_run(h, v, &in, &res);
    return res;
}

/* Cases that open-instruct's own code scored; tests/golden/make_verifiers.py makes them. */
static int64_t golden_check(const char *path, int64_t *n_wrong)
{
    struct verify_host h;
    struct error err;
    char line[65536], name[4200];
    int64_t n = 0;
    snprintf(name, sizeof name, "%s/golden/verifiers/%s", TEST_DATA_DIR, path);
    FILE *f = fopen(name, "re");
    assert_non_null(f);
    assert_true(verify_host_init(&h, &text_only, &err));
    for (; fgets(line, sizeof line, f); n++) {
        json_t *c = json_loads(line, 0, NULL);
        assert_non_null(c);
        struct verify_result res = verify_one(&h, json_string_value(json_object_get(c, "verifier")),
                                              json_string_value(json_object_get(c, "response")),
                                              json_integer_value(json_object_get(c, "n_tok")), json_object_get(c, "truth"));
        const json_t *ours = json_object_get(c, "ours"), *want = ours ? ours : json_object_get(c, "score");    // where we differ on purpose
        if (res.state != SCORE_OK || fabs(res.score - json_number_value(want)) > 1e-12) {                      // quotients of counts
            print_message("%" PRId64 " scored %g (%s, '%s' and '%s'): %s", n, res.score, res.why, res.pred, res.gold, line);
            ++*n_wrong;
        }
        json_decref(c);
    }
    fclose(f);
    verify_host_release(&h);
    return n;
}

static void answers_are_scored_as_open_instruct_scores_them(UNUSED void **state)
{
    int64_t n_wrong = 0;
    assert_true(golden_check("answers.jsonl", &n_wrong) > 1000);
    assert_int_equal(n_wrong, 0);
}

static void instructions_are_followed_as_open_instruct_sees_it(UNUSED void **state)
{
    int64_t n_wrong = 0;
    assert_true(golden_check("ifeval.jsonl", &n_wrong) > 2000);
    assert_int_equal(n_wrong, 0);
}

static void gsm8k_compares_numbers_however_they_are_spelled(UNUSED void **state)
{
    static const struct {
        const char *response, *truth;
        double score;
    } cases[] = {
        { "It costs $29.00.", "29", 1 },
        { "so +4", "4", 1 },
        { "It is 12.", "12.0", 1 },
        { "It is 1,234.", "1,234", 1 },
        { "It is $14.", "$14", 1 },
        { "-0.50", "-.5", 1 },
        { "007", "7", 1 },
        { "It is -4", "$-4", 1 },
        { "It costs $29.01.", "29", 0 },
        { "so -4", "4", 0 },
        { "It is 12.", "12.5", 0 },
        { "It is 1,234.", "12,345", 0 },
        { "It is 40", "4", 0 },
        { "It is 0.4", "4", 0 },
        { "no digits, YES", "no digits, yes", 1 },
        { "no number", "7", 0 },
    };
    struct verify_host h;
    struct error err;
    assert_true(verify_host_init(&h, &text_only, &err));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_t *truth = json_string(cases[i].truth);
        struct verify_result res = verify_one(&h, "gsm8k", cases[i].response, -1, truth);
        if (res.state != SCORE_OK || res.score != cases[i].score)
            fail_msg("'%s' for '%s' scored %g", cases[i].response, cases[i].truth, res.score);
        json_decref(truth);
    }
    verify_host_release(&h);
}

static void long_answers_are_verified_like_short_ones(UNUSED void **state)
{
    static const struct {
        const char *instruction, *piece, *end;
        int64_t n;
        double want;
        const char *why;
    } cases[] = {
        { "keywords:no_adjacent_consecutive", "b ", "", 100000, 1, "words that all begin alike" },
        { "keywords:no_adjacent_consecutive", "b ", "c", 100000, 0, "the last follows in the alphabet" },
        { "keywords:palindrome", "a", "", 100000, 1, "one long word" },
        { "keywords:palindrome", "a", "b", 100000, 0, "its last letter differs" },
        { "keywords:palindrome", "é€", "é", 1, 1, "characters of two and three bytes" },
        { "keywords:palindrome", "é€", "€", 1, 0, "that differ at the ends" },
        { "keywords:palindrome", "é€€é", "", 1, 1, "an even number of them" },
        { "count:count_unique", "a ", "", 20000, 0, "a word that comes again" },
    };
    struct verify_host h;
    struct error err;
    assert_true(verify_host_init(&h, &text_only, &err));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf text = BUF_INIT;
        for (int64_t k = 0; k < cases[i].n; k++)
            buf_str(&text, cases[i].piece);
        buf_str(&text, cases[i].end);
        json_t *truth = json_pack("{s:[s], s:[n]}", "instruction_id", cases[i].instruction, "kwargs");
        struct verify_result res = verify_one(&h, "ifeval", buf_text(&text), -1, truth);
        print_message("%s: %s\n", cases[i].why, res.why);
        assert_int_equal(res.state, SCORE_OK);
        assert_float_equal(res.score, cases[i].want, 0);
        json_decref(truth);
        buf_release(&text);
    }
    verify_host_release(&h);
}

static void programs_pass_the_tests_that_python_says_they_pass(UNUSED void **state)
{
    int64_t n_wrong = 0;
    assert_true(golden_check("code.jsonl", &n_wrong) >= 100);
    assert_int_equal(n_wrong, 0);
}

/* Each would earn the reward if the program could see its test, its output, or decide what equals what. */
static void programs_that_cheat_earn_nothing(UNUSED void **state)
{
    static const struct {
        const char *program, *test, *why;
    } cases[] = {
        { "class E:\n    def __eq__(self, o):\n        return True\ndef f(x):\n    return E()", "assert f(1) == 2",
          "an object that equals everything" },
        { "class E(int):\n    def __eq__(self, o):\n        return True\ndef f(x):\n    return E(1)", "assert f(1) == 2",
          "a number that does" },
        { "class E(list):\n    def __eq__(self, o):\n        return True\ndef f(x):\n    return [E()]", "assert f(1) == [2]",
          "one inside a list" },
        { "import sys\nprint('passed')\nsys.exit(0)", "assert f(1) == 2", "says it passed, and ends" },
        { "import os\nfor fd in range(64):\n    try:\n        os.write(fd, b'passed')\n    except OSError:\n        pass\nos._exit(0)",
          "assert f(1) == 2", "writes to everything" },
        { "import os\ndef f(x):\n    for fd in range(64):\n        try:\n            t = os.pread(fd, 999, 0).decode()\n            return eval(t.split('==')[1])\n        except Exception:\n            pass",
          "assert f(1) == 2", "reads every descriptor for its test" },
        { "import sys\ndef f(x):\n    k = sys._getframe()\n    while k:\n        for c in k.f_code.co_consts:\n            if type(c) is int and 7900 < c < 8000:\n                return c\n        k = k.f_back",
          "assert f(1) == 7919", "looks at its callers" },
        { "import gc\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, str) and 'assert f' in o:\n            return 2\n    return 0",
          "assert f(1) == 2", "searches the memory" },
        { "import builtins\nbuiltins.AssertionError = Exception\ndef f(x):\n    raise SystemExit(0)", "assert f(1) == 2",
          "ends inside a call" },
        { "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "assert True", "kills its caller" },
    };
    struct verify_host h;
    struct error err;
    assert_true(verify_host_init(&h, &(struct verify_options){ .code_max_execution_time = 5 }, &err));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_t *truth = json_pack("[s]", cases[i].test);
        struct verify_result res = verify_one(&h, "code", cases[i].program, -1, truth);
        print_message("%s: %s\n", cases[i].why, res.why);
        assert_int_equal(res.state, SCORE_OK);
        assert_float_equal(res.score, 0, 0);
        json_decref(truth);
    }
    verify_host_release(&h);
}

/* share 2/3; with the penalty each passed test counts for the time it left. */
static void thresholds_and_penalties_apply_to_the_share_of_tests(UNUSED void **state)
{
    static const struct {
        double threshold;
        bool penalty;
        double low, high;
    } cases[] = {
        { 0, false, 2.0 / 3, 2.0 / 3 },
        { 0.5, false, 2.0 / 3, 2.0 / 3 },
        { 0.7, false, 0, 0 },
        { 0, true, 0.5, 2.0 / 3 - 1e-9 },
        { 0.7, true, 0, 0 },
    };
    struct verify_host quick;
    assert_true(verify_host_init(&quick, &(struct verify_options){ .code_max_execution_time = 1 }, &(struct error){ 0 }));
    json_t *loop = json_pack("[s]", "f()");
    struct verify_result late = verify_one(&quick, "code", "def f():\n    while True:\n        pass", -1, loop);
    assert_float_equal(late.score, 0, 0);
    assert_string_equal(late.why, "0 of 1 tests pass; time-out; no ``` block");
    verify_host_release(&quick);
    json_decref(loop);
    json_t *truth = json_pack("[s, s, s]", "assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 4");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct verify_host h;
        struct error err;
        struct verify_options o = { .code_max_execution_time = 30,
                                    .code_pass_rate_reward_threshold = cases[i].threshold,
                                    .code_apply_perf_penalty = cases[i].penalty };
        assert_true(verify_host_init(&h, &o, &err));
        struct verify_result res = verify_one(&h, "code", "def f(x):\n    return x", -1, truth);
        print_message("%g: %s\n", res.score, res.why);
        assert_true(res.score >= cases[i].low - 1e-12 && res.score <= cases[i].high + 1e-12);
        verify_host_release(&h);
    }
    json_decref(truth);
}

static struct reward_output score(const struct reward_config *config, const char *row, const char *response, enum finish_reason finish)
{
    struct error err = { 0 };
    struct reward *r = reward_new(config, &err);
    if (!r)
        fail_msg("%s", err.text);
    json_t *read = json_loads(row, 0, NULL);
    assert_non_null(read);
    struct reward_input in = {
        .response = response, .response_len = strlen(response), .row = read, .has_length = true, .n_tok = 10, .finish = finish
    };
    struct reward_output out;
    reward_score(r, &in, &out, 1);
    json_decref(read);
    reward_free(r);
    return out;
}

static void math_is_also_compared_as_mathematics(UNUSED void **state)
{
    static const struct {
        const char *response, *gold;
        double want;
        const char *why;
    } cases[] = {
        { "\\boxed{0.25}", "1/4", 10, "equal values in different forms" },
        { "\\boxed{2x+2}", "2(x+1)", 10, "equal expressions" },
        { "\\boxed{0.26}", "1/4", 0, "different values" },
        { "\\boxed{42}", "42", 10, "equal texts need no mathematics" },
        { "Final Answer: The final answer is $2^{-1}$. I hope it is correct.", "\\frac{1}{2}", 10, "Minerva's sentence" },
        { "So \\fbox{42}.", "42", 10, "another box" },
        { "So \\boxed {42}.", "42", 10, "a space before the brace" },
        { "So \\boxed 42$.", "42", 10, "no braces" },
        { "In \\boxed as asked. It is \\boxed{42}.", "42", 10, "a mention of a box before it" },
        { "It is \\boxed{42}, in \\boxed as asked.", "42", 10, "a mention of a box after it" },
        { "So \\fbox{41}.", "42", 0, "another value in a box" },
        { "it is 4 or maybe 5, who knows, the paragraph goes on and on until it ends", "9", 0, "prose is not mathematics" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reward_config config = { .type = "verify:math" };
        json_t *row = json_pack("{s:s}", "ground_truth", cases[i].gold);
        char *text = json_dumps(row, 0);
        print_message("%s\n", cases[i].why);
        assert_float_equal(score(&config, text, cases[i].response, FINISH_STOP).reward, cases[i].want, 0);
        free(text);
        json_decref(row);
    }
}

static void a_row_names_its_verifiers(UNUSED void **state)
{
    static const struct {
        const char *row, *response;
        double want;
        const char *rule, *why;
    } cases[] = {
        { "{\"dataset\":\"gsm8k\",\"ground_truth\":\"42\"}", "42", 10, "gsm8k: the last number is equal", "one name, one truth" },
        { "{\"dataset\":\"GSM8K\",\"ground_truth\":[\"42\"]}", "42", 10, "gsm8k: the last number is equal", "a list of one, upper case" },
        { "{\"dataset\":[\"gsm8k\"],\"ground_truth\":\"42\"}", "41", 0, "gsm8k: the last number is another", "a list of one name" },
        { "{\"dataset\":[\"gsm8k\",\"up_to_max_length\"],\"ground_truth\":[\"42\",\"20\"]}", "42", 20, "gsm8k 1, up_to_max_length 1",
          "the sum" },
        { "{\"dataset\":[\"gsm8k\",\"string_f1\"],\"ground_truth\":[\"42\",[\"x\",\"42\"]]}", "42", 20, "gsm8k 1, string_f1 1",
          "a list as truth" },
        { "{\"dataset\":[\"gsm8k\",\"puzzle\"],\"ground_truth\":[\"7\",\"42\"]}", "42", 10, "gsm8k 0, puzzle 1", "one of two" },
        { "{\"dataset\":\"string_f1\",\"ground_truth\":[\"x\",\"42\"]}", "42", 10, "string_f1: F1 of words",
          "several labels of one verifier" },
        { "{\"dataset\":\"passthrough\",\"ground_truth\":\"\"}", "42", 0, "passthrough: nothing to verify",
          "the environment's reward only" },
        { "{\"dataset\":\"ifeval\",\"ground_truth\":\"[{'instruction_id': ['length_constraints:nth_paragraph_first_word'], 'kwargs': "
          "[{'num_paragraphs': 3, 'nth_paragraph': 3, 'first_word': 'schedule'}]}]\"}",
          "one\n\n\n\ntwo\n\nschedule three", 10, "ifeval: 1 of 1 instructions followed", "a blank paragraph takes no number" },
        { "{\"dataset\":\"ifeval\",\"ground_truth\":\"[{'instruction_id': ['length_constraints:nth_paragraph_first_word'], 'kwargs': "
          "[{'num_paragraphs': 2, 'nth_paragraph': 2, 'first_word': 'two'}]}]\"}",
          "\n\none\n\n\n\n\n\ntwo", 10, "ifeval: 1 of 1 instructions followed", "nor do several, or one at the start" },
        { "{\"dataset\":\"gsm8k\",\"gt_answer\":\"42\"}", "42", 10, "gsm8k: the last number is equal", "gt_answer stands in" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reward_config config = { .type = "verify" };
        struct reward_output o = score(&config, cases[i].row, cases[i].response, FINISH_STOP);
        print_message("%s\n", cases[i].why);
        assert_int_equal(o.score, SCORE_OK);
        assert_float_equal(o.reward, cases[i].want, 1e-12);
        assert_string_equal(o.rule, cases[i].rule);
    }
}

static void a_row_that_cannot_be_verified_is_left_out_and_refused_at_the_start(UNUSED void **state)
{
    static const struct {
        const char *row, *says;
    } cases[] = {
        { "{\"dataset\":\"gsm9k\",\"ground_truth\":\"42\"}", "'gsm9k' is not a verifier; there are gsm8k, math" },
        { "{\"ground_truth\":\"42\"}", "'dataset' is missing" },
        { "{\"dataset\":\"gsm8k\"}", "'ground_truth' is missing" },
        { "{\"dataset\":\"gsm8k\",\"ground_truth\":[\"1\",\"2\"]}", "verifier 'gsm8k': the ground truth must be a number" },
        { "{\"dataset\":\"gsm8k\",\"ground_truth\":\"14 dollars\"}", "verifier 'gsm8k': no response can meet '14 dollars'" },
        { "{\"dataset\":\"gsm8k\",\"ground_truth\":\"3/4\"}", "verifier 'gsm8k': no response can meet '3/4'" },
        { "{\"dataset\":\"gsm8k\",\"ground_truth\":\"5%\"}", "verifier 'gsm8k': no response can meet '5%'" },
        { "{\"dataset\":\"gsm8k\",\"ground_truth\":\"42.\"}", "verifier 'gsm8k': no response can meet '42.'" },
        { "{\"dataset\":[\"gsm8k\",\"math\"],\"ground_truth\":[\"1\"]}", "'dataset' names 2 verifiers, and 'ground_truth' has 1" },
        { "{\"dataset\":\"max_length\",\"ground_truth\":\"long\"}", "must be a number of tokens" },
        { "{\"dataset\":\"ifeval\",\"ground_truth\":\"[{'instruction_id': ['keywords:nothing'], 'kwargs': [None]}]\"}",
          "'keywords:nothing' is not an instruction" },
        { "{\"dataset\":\"ifeval\",\"ground_truth\":\"[{'instruction_id': ['keywords:word_once'], 'kwargs': [None]}]\"}",
          "'keyword' of 'keywords:word_once' must be a text" },
        { "{\"dataset\":\"ifeval\",\"ground_truth\":\"[{'instruction_id': ['keywords:frequency'], 'kwargs': [{'keyword': 'a', 'frequency': 1, 'relation': 'at most'}]}]\"}",
          "'relation' of 'keywords:frequency' must be 'at least' or 'less than'" },
        { "{\"dataset\":\"ifeval\",\"ground_truth\":\"[{'instruction_id': ['keywords:word_once'], 'kwargs': [{'keyword': 'a('}]}]\"}",
          "'a(' is not a regular expression" },
        { "{\"dataset\":\"ifeval\",\"ground_truth\":\"plain\"}", "must have lists 'instruction_id'" },
        { "{\"dataset\":\"ifeval_old\",\"ground_truth\":\"{\\\"func_name\\\": \\\"exec\\\"}\"}",
          "must name one of the 25 functions in 'func_name', not exec" },
        { "{\"dataset\":\"ifeval_old\",\"ground_truth\":\"{\\\"func_name\\\": \\\"validate_end\\\"}\"}",
          "'end_phrase' of 'validate_end' must be a text" },
        { "{\"dataset\":7,\"ground_truth\":\"1\"}", "'dataset' is missing" },
        { "{\"dataset\":[7],\"ground_truth\":[\"1\"]}", "'dataset' must be the name of a verifier" },
    };
    struct reward_config config = { .type = "verify" };
    struct error err;
    struct reward *r = reward_new(&config, &err);
    assert_non_null(r);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_t *row = json_loads(cases[i].row, 0, NULL);
        err = (struct error){ 0 };
        assert_false(reward_row_check(r, row, &err));
        print_message("%s\n", err.text);
        assert_non_null(strstr(err.text, cases[i].says));
        json_decref(row);
        struct reward_output o = score(&config, cases[i].row, "42", FINISH_STOP);
        assert_int_equal(o.score, SCORE_ERROR);
        assert_float_equal(o.reward, 0, 0);
    }
    reward_free(r);
}

/* open-instruct's RewardConfig, worked by hand; any format_reward gates, where upstream only 1 does. */
static void format_and_penalties_combine_with_the_verifiers(UNUSED void **state)
{
    static const char right[] = "<think>a</think> <answer>42</answer>", wrong[] = "<think>a</think> <answer>41</answer>", bare[] = "42";
    static const struct {
        struct verify_options o;
        const char *response;
        enum finish_reason finish;
        bool tool_ok;
        double want;
        const char *why;
    } cases[] = {
        { { .format_reward = 1 }, right, FINISH_STOP, false, 10, "gating: right in the format" },
        { { .format_reward = 1 }, bare, FINISH_STOP, false, 0, "gating: right without the format" },
        { { .format_reward = 1 }, wrong, FINISH_STOP, false, 0, "gating: the format alone" },
        { { .format_reward = 0.5 }, right, FINISH_STOP, false, 10, "gating with another value than 1" },
        { { .format_reward = 0.5, .additive_format_reward = true }, right, FINISH_STOP, false, 10.5, "added" },
        { { .format_reward = 0.5, .additive_format_reward = true }, wrong, FINISH_STOP, false, 0.5, "the format alone" },
        { { .format_reward = 0.5, .additive_format_reward = true }, bare, FINISH_STOP, false, 10, "the answer alone" },
        { { .format_reward = 0 }, bare, FINISH_STOP, false, 10, "no format asked" },
        { { .format_reward = 0 }, bare, FINISH_LENGTH, false, 10, "a cut response keeps its reward" },
        { { .non_stop_penalty = true, .non_stop_penalty_value = -10 }, right, FINISH_LENGTH, false, -10, "cut" },
        { { .non_stop_penalty = true, .non_stop_penalty_value = -10 }, right, FINISH_STOP, false, 10, "ended" },
        { { .non_stop_penalty = true, .non_stop_penalty_value = -10, .format_reward = 1 }, bare, FINISH_LENGTH, false, -10, "overwrites" },
        { { .only_reward_good_outputs = true }, right, FINISH_STOP, false, 0, "no clean tool call" },
        { { .only_reward_good_outputs = true }, right, FINISH_STOP, true, 10, "a clean tool call" },
        { { .only_reward_good_outputs = true, .format_reward = 1 }, right, FINISH_STOP, false, 1, "keeps the format's reward" },
        { { .verification_reward = 1 }, right, FINISH_STOP, false, 1, "another scale" },
        { { .remap_verifier = "math=gsm8k" }, right, FINISH_STOP, false, 10, "another verifier's remap" },
        { { .remap_verifier = "gsm8k=puzzle" }, "42 apples", FINISH_STOP, false, 0, "remapped" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct verify_options o = cases[i].o;
        o.verification_reward = o.verification_reward > 0 ? o.verification_reward : 10;
        struct reward_config config = { .type = "verify", .verify = &o };
        struct error err = { 0 };
        struct reward *r = reward_new(&config, &err);
        assert_non_null(r);
        json_t *row = json_pack("{s:s, s:s}", "dataset", "gsm8k", "ground_truth", "42");
        struct reward_input in = { .response = cases[i].response,
                                   .response_len = strlen(cases[i].response),
                                   .row = row,
                                   .has_length = true,
                                   .n_tok = 5,
                                   .finish = cases[i].finish,
                                   .tool_ok = cases[i].tool_ok };
        struct reward_output out;
        reward_score(r, &in, &out, 1);
        print_message("%s\n", cases[i].why);
        assert_float_equal(out.reward, cases[i].want, 1e-12);
        json_decref(row);
        reward_free(r);
    }
}

static void settings_that_make_no_sense_are_refused(UNUSED void **state)
{
    static const struct {
        const char *type, *remap, *says;
    } cases[] = {
        { "verify:gsm9k", NULL, "'gsm9k' is not a verifier" }, { "verify", "math", "it must be OLD=NEW" },
        { "verify", "=math", "it must be OLD=NEW" },           { "verify", "a=b=c", "it must be OLD=NEW" },
        { "verify", "a=b", "'b', which is not a verifier" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct verify_options o = VERIFY_OPTIONS_DEFAULT;
        struct error err = { 0 };
        o.remap_verifier = cases[i].remap;
        assert_null(reward_new(&(struct reward_config){ .type = cases[i].type, .verify = &o }, &err));
        assert_int_equal(err.code, ERR_USAGE);
        assert_non_null(strstr(err.text, cases[i].says));
    }
}

/* Numbers, fractions, fences, doubled braces and broken JSON as judges write them. What lies outside its scale is no score. */
static void a_judges_score_is_found_in_what_it_writes(UNUSED void **state)
{
    static const struct {
        const char *text;
        double full, want;
    } cases[] = {
        { "{\"SCORE\": 7}", 10, 0.7 },
        { "{\"REASONING\": \"good\", \"SCORE\": \"7\"}", 10, 0.7 },
        { "{\"REASONING\": \"good\", \"SCORE\": \" 7.5 \"}", 10, 0.75 },
        { "```json\n{\"SCORE\": 1}\n```", 1, 1 },
        { "```\n{\"SCORE\": \"0\"}\n```", 1, 0 },
        { "Here it is: {\"SCORE\": 3} as asked.", 10, 0.3 },
        { "{{\"SCORE\": 2}}", 10, 0.2 },
        { "{\"REASONING\": \"a {brace}\", \"SCORE\": 4}", 10, 0.4 },
        { "{\"REASONING\": \"line\nbreak\", \"SCORE\": \"5\"}", 10, 0.5 },
        { "{\"REASONING\": unquoted, \"SCORE\": 6}", 10, 0.6 },
        { "\"SCORE\" : \"8.25\"", 10, 0.825 },
        { "{\"SCORE\": \"2/10\"}", 1, 0.2 },
        { "{\"SCORE\": \"2/10\"}", 10, 0.2 },
        { "{\"SCORE\": 2/10}", 1, 0.2 },
        { "{\"SCORE\": \"2 / 10 \"}", 1, 0.2 },
        { "{\"SCORE\": \"2 out of 10\"}", 1, 0.2 },
        { "{\"SCORE\": \"2 of 10\"}", 1, 0.2 },
        { "{\"SCORE\": \"20%\"}", 1, 0.2 },
        { "{\"SCORE\": 20 %}", 10, 0.2 },
        { "SCORE: 2/10", 1, 0.2 },
        { "**SCORE**: 2/10\nThat is all.", 1, 0.2 },
        { "The SCORE: 7.\nOnce more: \"SCORE\": 7.", 10, 0.7 },
        { "{\"SCORE\": 2}", 1, NAN },
        { "{\"SCORE\": \"2\"}", 1, NAN },
        { "{\"SCORE\": 1.0000001}", 1, NAN },
        { "{\"SCORE\": -1}", 1, NAN },
        { "{\"SCORE\": \"-0.5\"}", 1, NAN },
        { "{\"SCORE\": bad, \"SCORE\": -0.5}", 1, NAN },
        { "{\"SCORE\": \"11/10\"}", 1, NAN },
        { "{\"SCORE\": \"2/0\"}", 1, NAN },
        { "{\"SCORE\": \"0/0\"}", 1, NAN },
        { "{\"SCORE\": \"2/-10\"}", 1, NAN },
        { "{\"SCORE\": \"120%\"}", 1, NAN },
        { "{\"SCORE\": \"2/10/10\"}", 1, NAN },
        { "{\"SCORE\": \"0,5\"}", 1, NAN },
        { "\"SCORE\": 0,5", 1, NAN },
        { "\"SCORE\": 0 to 1", 1, NAN },
        { "\"SCORE\": 0.5.1", 1, NAN },
        { "\"SCORE\": 1 or \"SCORE\": 0", 1, NAN },
        { "{\"SCORE\": NaN}", 1, NAN },
        { "{\"SCORE\": 1e400}", 1, NAN },
        { "{\"SCORE\": true}", 1, NAN },
        { "{\"SCORE\": [1]}", 1, NAN },
        { "{\"score\": 7}", 10, NAN },
        { "{\"SCORE\": \"high\"}", 1, NAN },
        { "{\"SCORE\": \"SCORE: 2/10\"}", 1, NAN },
        { "{\"SCORE\": null}", 1, NAN },
        { "{\"SCORE\": \"\"}", 1, NAN },
        { "SCORE 7", 10, NAN },
        { "", 1, NAN },
        { "}{", 1, NAN },
        { "{\"SCORE\": \"inf\"}", 1, NAN },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        double score = 0;
        bool found = judge_score(cases[i].text, strlen(cases[i].text), "SCORE", cases[i].full, &score);
        print_message("%s\n", cases[i].text);
        assert_int_equal(found, !isnan(cases[i].want));
        if (found)
            assert_float_equal(score, cases[i].want, 1e-15);
    }
}

static void a_python_literal_is_read_as_python_reads_it(UNUSED void **state)
{
    static const struct {
        const char *text, *json;
    } cases[] = {
        { "[{'a': None, 'b': True, \"c\": False}]", "[{\"a\":null,\"b\":true,\"c\":false}]" },
        { "('x', 1, 2.5, -3,)", "[\"x\",1,2.5,-3]" },
        { "(1)", "1" },
        { "(1,)", "[1]" },
        { "()", "[]" },
        { "'it\\'s' \" two\"", "\"it's two\"" },
        { "'''three\n\"quotes\"'''", "\"three\\n\\\"quotes\\\"\"" },
        { "r'\\d'", "\"\\\\d\"" },
        { "'\\x41\\u00e9\\n\\101\\q'", "\"A\\u00e9\\nA\\\\q\"" },
        { " [ ] ", "[]" },
        { "1_000", "1000" },
        { "{\"k\": [null, true, 1e3]}", "{\"k\":[null,true,1000.0]}" },
        { "\"\\ud83d\\ude00\"", "\"\\ud83d\\ude00\"" },
        { "[1, 2", NULL },
        { "{1: 2}", NULL },
        { "'open", NULL },
        { "x", NULL },
        { "", NULL },
        { "1 2", NULL },
        { "nan", NULL },
        { "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", NULL },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        json_t *got = literal_read(cases[i].text, strlen(cases[i].text), &err);
        json_t *want = cases[i].json ? json_loads(cases[i].json, JSON_DECODE_ANY, NULL) : NULL;
        print_message("%s %s\n", cases[i].text, err.text);
        assert_true(cases[i].json ? json_equal(got, want) : !got && err.code == ERR_DATA);
        json_decref(got);
        json_decref(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_scored_as_open_instruct_scores_them),
        cmocka_unit_test(instructions_are_followed_as_open_instruct_sees_it),
        cmocka_unit_test(gsm8k_compares_numbers_however_they_are_spelled),
        cmocka_unit_test(long_answers_are_verified_like_short_ones),
        cmocka_unit_test(programs_pass_the_tests_that_python_says_they_pass),
        cmocka_unit_test(programs_that_cheat_earn_nothing),
        cmocka_unit_test(thresholds_and_penalties_apply_to_the_share_of_tests),
        cmocka_unit_test(math_is_also_compared_as_mathematics),
        cmocka_unit_test(a_row_names_its_verifiers),
        cmocka_unit_test(a_row_that_cannot_be_verified_is_left_out_and_refused_at_the_start),
        cmocka_unit_test(format_and_penalties_combine_with_the_verifiers),
        cmocka_unit_test(settings_that_make_no_sense_are_refused),
        cmocka_unit_test(a_judges_score_is_found_in_what_it_writes),
        cmocka_unit_test(a_python_literal_is_read_as_python_reads_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
