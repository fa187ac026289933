/* json_text_test.c - JSON as Python's json.dumps writes it; the right column is what Python 3.11's json.loads and dumps make of the left
 * tags: asan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/macros.h"

static void what_python_writes_is_read_and_written_again(UNUSED void **state)
{
    static const struct {
        const char *text, *want;
        size_t flags;
    } cases[] = {
        { "1000000000000000019884624838656", "1000000000000000019884624838656" },    // int(1e30)
        { "{\"a\":-9223372036854775809}", "{\"a\":-9223372036854775809}" },
        { "[9223372036854775807,-9223372036854775808]", "[9223372036854775807,-9223372036854775808]" },    // the last that fit
        { "[9223372036854775808]", "[9223372036854775808]" },
        { "[NaN,Infinity,-Infinity]", "[NaN,Infinity,-Infinity]" },
        { "[1e400,-1.5E+999]", "[Infinity,-Infinity]" },
        { "[0e999,1.5]", "[0.0,1.5]" },
        { "{\"NaN\":\"NaN\",\"Infinity\":\"1e400\"}", "{\"NaN\":\"NaN\",\"Infinity\":\"1e400\"}" },
        { "\"\\ud800\"", "\"\xef\xbf\xbd\"" },
        { "\"a\\udc00b\\ud83d\\ude00\\ud83dx\"", "\"a\xef\xbf\xbd"
                                                 "b\xf0\x9f\x98\x80\xef\xbf\xbdx\"" },
        { "\"\\\\ud800 \\\\u0000\"", "\"\\\\ud800 \\\\u0000\"" },    // a backslash, then text
        { "{\"k\\u0000\":\"v\\u0000\"}", "{\"k\xef\xbf\xbd\":\"v\xef\xbf\xbd\"}" },
        { "{\"k\\u0000\" : \"v\\u0000\"}", "{\"k\xef\xbf\xbd\":\"v\\u0000\"}", JSON_ALLOW_NUL },
        { "\xef\xbb\xbf[1]", "[1]" },
        { "[\"\xef\xb7\x90"
          "7\",\"\\uFDD0NaN\"]",
          "[\"\xef\xbf\xbd"
          "7\",\"\xef\xbf\xbdNaN\"]" },    // our mark, from outside, makes no number
        { "{\"a\":{\"b\":[NaN,{\"c\":123456789012345678901234567890}]},\"d\":\"e\"}",
          "{\"a\":{\"b\":[NaN,{\"c\":123456789012345678901234567890}]},\"d\":\"e\"}" },
        { "[18446744073709551616]", "[1.8446744073709552e19]", JSON_DECODE_INT_AS_REAL },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_error_t why;
        json_t *v = json_text_read(cases[i].text, strlen(cases[i].text), cases[i].flags | JSON_DECODE_ANY, &why);
        if (!v)
            fail_msg("%s: %s", cases[i].text, why.text);
        char *text = json_text_dump(v, JSON_COMPACT | JSON_ENCODE_ANY);
        assert_string_equal(text, cases[i].want);
        char *ascii = json_text_dump(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        json_t *again = json_str_read(ascii, cases[i].flags | JSON_DECODE_ANY, &why);
        assert_true(json_equal(v, again));
        json_decref(again);
        json_decref(v);
        free(ascii);
        free(text);
    }
}

static void nothing_else_becomes_json(UNUSED void **state)
{
    static const char *const cases[] = { "nan",
                                         "[nan]",
                                         "[+1]",
                                         "[-NaN]",
                                         "[01]",
                                         "[99999999999999999999x]",
                                         "[1NaN]",
                                         "[NaNN]",
                                         "[.5e]",
                                         "[1e]",
                                         "[--9999999999999999999]",
                                         "\"\\u12\"",
                                         "[00000000000000000000001]",
                                         "{NaN:1}",
                                         "[1 NaN]",
                                         "[\"\\x\"]",
                                         "",
                                         "[Infinity",
                                         "\"\\ud800",
                                         "{\"a\":1}}" };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_t *v = json_str_read(cases[i], JSON_DECODE_ANY, NULL);
        if (v && strcmp(cases[i], "{NaN:1}") != 0)
            fail_msg("'%s' was read", cases[i]);
        json_decref(v);
    }
    assert_null(json_str_read(NULL, 0, NULL));
    assert_null(json_str_read("{\"a\":1,\"a\":NaN}", JSON_REJECT_DUPLICATES, NULL));
}

static void a_number_that_jansson_cannot_hold_is_known_as_one(UNUSED void **state)
{
    json_t *v = json_str_read("[1e30, 100000000000000000000, NaN, -1e999, \"12\", \"NaN\", 3, null, -12345678901234567890123]", 0, NULL);
    static const struct {
        const char *odd;
        double number;
        bool is;
    } want[] = { { NULL, 1e30, true },
                 { "100000000000000000000", 1e20, true },
                 { "NaN", NAN, true },
                 { "-Infinity", -INFINITY, true },
                 { NULL, 0, false },
                 { NULL, 0, false },
                 { NULL, 3, true },
                 { NULL, 0, false },
                 { "-12345678901234567890123", -12345678901234567890123.0, true } };
    assert_int_equal(json_array_size(v), ARRAY_SIZE(want));
    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        const json_t *one = json_array_get(v, i);
        const char *odd = json_odd_text(one);
        double number = 0;
        assert_true(want[i].odd ? odd && strcmp(odd, want[i].odd) == 0 : !odd);
        assert_true(json_double_get(one, &number) == want[i].is);
        assert_true(number == want[i].number || (isnan(number) && isnan(want[i].number)));
    }
    json_decref(v);
}

static void the_end_of_a_value_is_that_of_the_text(UNUSED void **state)
{
    static const struct {
        const char *text;
        int end;
    } cases[] = { { "{\"a\":NaN} rest", 9 }, { " {\"a\":123456789012345678901}</x>", 28 }, { "[\"\\ud800\"]]", 10 }, { "{}{", 2 } };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_error_t why;
        json_t *v = json_str_read(cases[i].text, JSON_DISABLE_EOF_CHECK, &why);
        assert_non_null(v);
        assert_int_equal(why.position, cases[i].end);
        json_decref(v);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_python_writes_is_read_and_written_again),
        cmocka_unit_test(nothing_else_becomes_json),
        cmocka_unit_test(a_number_that_jansson_cannot_hold_is_known_as_one),
        cmocka_unit_test(the_end_of_a_value_is_that_of_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
