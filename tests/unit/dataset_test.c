/* tags: valgrind */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include "protocol/base/file.h"
#include "workers/engine/data/dataset.h"

static char dir[64], path[128];

static int dir_setup(UNUSED void **state)
{
    snprintf(dir, sizeof dir, "/tmp/dataset-test-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/rows.jsonl", dir);
    return 0;
}

static int dir_teardown(UNUSED void **state)
{
    struct error err;
    return !dir_remove(dir, &err);
}

static void bytes_write(const void *data, size_t len)
{
    struct error err = { 0 };
    if (!file_write(path, data, len, &err))
        fail_msg("%s", err.text);
}

#define SEEDS_ROW "{\"messages\":{\"role\":\"user\",\"content\":\"1+2?\"},\"gt_answer\":\"3\"}\n"
#define LIST_ROW                                                                                                                           \
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"q\"}],\"gt_answer\":7}"                       \
    "\r\n"
#define CODE_ROW                                                                                                                           \
    "{\"messages\":{\"role\":\"user\",\"content\":\"c\"},\"test_cases\":\"{\\\"inputs\\\":[\\\"1\\\"],"                                    \
    "\\\"outputs\\\":[\\\"2\\\"]}\"}"
#define THREE SEEDS_ROW "\n  \n" LIST_ROW CODE_ROW

static void three_check(void)
{
    struct error err = { 0 };
    struct dataset *d = dataset_open(path, NULL, &err);
    if (!d)
        fail_msg("%s", err.text);
    assert_int_equal(dataset_n_row(d), 3);
    assert_int_equal(dataset_line(d, 1), 4);
    json_t *row = dataset_row(d, 0, &err);
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(row, "messages"), 0), "content")), "1+2?");
    assert_string_equal(json_string_value(json_object_get(row, "gt_answer")), "3");
    json_decref(row);
    row = dataset_row(d, 1, &err);
    assert_int_equal(json_array_size(json_object_get(row, "messages")), 2);
    assert_string_equal(json_string_value(json_object_get(row, "gt_answer")), "7");
    json_decref(row);
    row = dataset_row(d, 2, &err);
    assert_true(json_is_object(json_object_get(row, "test_cases")));
    json_decref(row);
    dataset_free(d);
}

static void rows_are_the_same_plain_and_compressed(UNUSED void **state)
{
    bytes_write(THREE, strlen(THREE));
    three_check();
    char packed[4096];
    size_t n = ZSTD_compress(packed, sizeof packed, THREE, strlen(THREE), 3);
    bytes_write(packed, n);
    three_check();
    bytes_write(packed, n - 5);
    struct error err = { 0 };
    assert_null(dataset_open(path, NULL, &err));
    z_stream z = { 0 };
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)THREE;
    z.avail_in = (uInt)strlen(THREE);
    z.next_out = (Bytef *)packed;
    z.avail_out = sizeof packed;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    bytes_write(packed, z.total_out);
    three_check();
    bytes_write(packed, z.total_out - 9);
    assert_null(dataset_open(path, NULL, &err));
    assert_non_null(strstr(err.text, "ends inside its compressed data"));
    deflateEnd(&z);
}

static void questions_and_answers_become_messages(UNUSED void **state)
{
    static const struct {
        const char *line, *prompt, *answer, *want;
    } cases[] = {
        { "{\"question\":\"q\",\"answer\":\"we add\\n#### 1,234\"}", NULL, NULL, "1234" },
        { "{\"question\":\"q\",\"answer\":\"#### 5 #### (1, 2) \"}", NULL, NULL, "(1, 2)" },
        { "{\"question\":\"q\",\"answer\":\" \\\\frac{1}{2} \"}", NULL, NULL, "\\frac{1}{2}" },
        { "{\"problem\":\"q\",\"solution\":42}", "problem", "solution", "42" },
        { "{\"problem\":\"q\",\"gt_answer\":\"x\"}", "problem", NULL, "x" },
        { "{\"problem\":\"q\",\"gt_answer\":1.5}", "problem", NULL, "1.5" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct dataset_columns columns = { cases[i].prompt, cases[i].answer };
        json_t *row = dataset_line_parse(cases[i].line, strlen(cases[i].line), &columns, "f:1", &err);
        if (!row)
            fail_msg("%s", err.text);
        assert_string_equal(json_string_value(json_object_get(row, "gt_answer")), cases[i].want);
        const json_t *m = json_array_get(json_object_get(row, "messages"), 0);
        assert_string_equal(json_string_value(json_object_get(m, "content")), "q");
        assert_string_equal(json_string_value(json_object_get(m, "role")), "user");
        json_decref(row);
    }
}

static void a_wrong_line_is_named_with_its_field(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *line, *want;
    } cases[] = {
        {"{", ":3: column"},
        {"[1]", ":3: the line is not a JSON object"},
        {"{}", ":3: 'messages' is missing"},
        {"{\"messages\":[]}", ":3: 'messages' is neither"},
        {"{\"messages\":[1]}", ":3: messages[0] is not an object"},
        {"{\"messages\":{\"role\":1,\"content\":\"\"}}", "has no string 'role'"},
        {"{\"messages\":{\"role\":\"user\"}}", "has no string 'content'"},
        {"{\"messages\":{\"role\":\"user\",\"content\":\"\"},\"gt_answer\":[]}", "'gt_answer' is neither"},
        {"{\"messages\":{\"role\":\"user\",\"content\":\"\"},\"test_cases\":{}}", "needs the lists"},
        {"{\"messages\":{\"role\":\"user\",\"content\":\"\"},\"test_cases\":\"{\"}",
         "the JSON in 'test_cases' is wrong"},
        {"{\"messages\":{\"role\":\"user\",\"content\":\"\"},\"test_cases\":{\"inputs\":[\"1\"],\"outputs\":[]}}",
         "1 inputs and 0 outputs"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"{\"question\":3,\"answer\":\"1\"}", "'question' is not a string"},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[1024];
        struct error err = { 0 };
        snprintf(text, sizeof text, SEEDS_ROW "\n%s\n" SEEDS_ROW, cases[i].line);
        bytes_write(text, strlen(text));
        struct dataset *d = dataset_open(path, NULL, &err);
        if (d || !strstr(err.text, cases[i].want) || !strstr(err.text, "rows.jsonl:3"))
            fail_msg("case %zu: wanted '%s', got '%s'", i, cases[i].want, d ? "a data set" : err.text);
    }
    struct error err = { 0 };
    bytes_write("\n \n", 3);
    assert_null(dataset_open(path, NULL, &err));
    assert_non_null(strstr(err.text, "has no rows"));
    assert_null(dataset_open("/nonexistent/rows", NULL, &err));
}

static void a_file_of_another_kind_is_named_with_what_to_do(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *text, *kind, *remedy; } cases[] = {
        { "PAR1\x15\x04\n\nPAR1", "Parquet", "pandas.read_parquet(" },
        { "ARROW1 rows", "Arrow", "pandas.read_feather(" },
        { "question,answer\n1+1,2\n", "CSV", "pandas.read_csv(" },
        { "\n[" SEEDS_ROW "]", "JSON array", "jq -c '.[]'" },
        { "{\n \"messages\": 1\n}\n", "over several lines", "jq -c ." },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        bytes_write(cases[i].text, strlen(cases[i].text));
        assert_null(dataset_open(path, NULL, &err));
        if (!strstr(err.text, cases[i].kind) || !strstr(err.text, cases[i].remedy) || !strstr(err.text, path))
            fail_msg("case %zu: '%s'", i, err.text);
    }
    struct error err = { 0 };
    assert_null(dataset_open("/nowhere/openai/gsm8k", NULL, &err));
    assert_non_null(strstr(err.text, "there is no file '/nowhere/openai/gsm8k'"));
    assert_null(dataset_open(dir, NULL, &err));
    assert_non_null(strstr(err.text, "is a folder"));
}

/* The second row is the one that is asked for. */
static bool second_refused(void *arg, const json_t *row, struct error *err)
{
    return ++*(int *)arg < 2 || error_set(err, ERR_DATA, "'%s' it is", json_string_value(json_object_get(row, "gt_answer")));
}

static void what_a_check_finds_wrong_is_told_with_its_line(UNUSED void **state)
{
    struct error err = { 0 };
    int n = 0;
    bytes_write(THREE, strlen(THREE));
    assert_null(dataset_open_checked(path, NULL, second_refused, &n, &err));
    assert_non_null(strstr(err.text, "rows.jsonl:4: '7' it is"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_same_plain_and_compressed),         cmocka_unit_test(questions_and_answers_become_messages),
        cmocka_unit_test(a_wrong_line_is_named_with_its_field),           cmocka_unit_test(a_file_of_another_kind_is_named_with_what_to_do),
        cmocka_unit_test(what_a_check_finds_wrong_is_told_with_its_line),
    };
    return cmocka_run_group_tests(tests, dir_setup, dir_teardown);
}
