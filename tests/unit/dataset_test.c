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
#include "workers/engine/data/files.h"

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

static void a_bomb_is_refused_before_it_fills_the_memory(UNUSED void **state)
{
    enum { BLANKS = 70 << 20 };
    struct error err = { 0 };
    size_t room = ZSTD_compressBound(BLANKS);
    char *blanks = calloc(1, BLANKS), *packed = malloc(room);
    assert_true(blanks && packed);
    memset(blanks, ' ', BLANKS);
    size_t n = ZSTD_compress(packed, room, blanks, BLANKS, 1);
    assert_true(n < BLANKS / 200);
    bytes_write(packed, n);
    assert_null(dataset_open(path, NULL, &err));
    assert_non_null(strstr(err.text, "more than 200 times as long"));
    free(blanks);
    free(packed);
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
        { "{\"problem\":\"q\",\"gt_answer\":1180591620717411303424}", "problem", NULL, "1180591620717411303424" },
        { "{\"question\":\"q\",\"answer\":[-18446744073709551616]}", NULL, NULL, "-18446744073709551616" },
        { "{\"question\":\"q\",\"answer\":\"7\",\"u\":[NaN,1e400,99999999999999999999,\"\\u0000\",\"\\udc80\"]}", NULL, NULL, "7" },
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
        {"7", ":3: column"},
        {"[1]", ":3: no prompt is recognised: 'messages' is missing, and the columns are 'conversations'"},
        {"{}", ":3: no prompt is recognised: 'messages' is missing, and the columns are none"},
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
        {"{\"question\":3,\"answer\":\"1\"}", "'question' is neither a text, nor a message"},
        {"{\"problem\":\"q\",\"solution\":\"x = 3\"}", "'solution' has no \\boxed{}"},
        {"{\"prompt\":\"q\",\"answer\":{}}", "'answer' is neither a string nor a number"},
        {"{\"question\":\"q\",\"input_output\":\"{\\\"inputs\\\": []}\"}", "'input_output' needs the lists"},
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
    static const char row[] = "{\"question\":\"q\",\"answer\":\"1\"}";
    assert_null(dataset_line_parse(row, strlen(row), &(struct dataset_columns){ .answer = "anser" }, "f:1", &err));
    assert_string_equal(err.text, "f:1: 'anser' is missing; the row's columns are 'question', 'answer'");    // and none of ours
}

static void a_file_of_another_kind_is_named_with_what_to_do(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *text; size_t len; const char *kind, *remedy; } cases[] = {
        { "PAR1\x15\x04\n\nPAR1", 0, "a Parquet file", "its footer is damaged" },
        { "PAR1 and no more", 0, "a Parquet file", "get it again" },
        { "ARROW1 rows", 0, "an Arrow file", "pandas.read_feather(" },
        { "\xFF\xFF\xFF\xFF\x10", 0, "an Arrow stream", "datasets.Dataset.from_file(" },
        { "PK\x03\x04 zip", 0, "a zip file", "unpack it" },
        { "ORC", 0, "an ORC file", "pandas.read_orc(" },
        { "BZh91AY", 0, "compressed with bzip2", "bunzip2" },
        { "\x80\x02}q", 0, "a Python pickle", "JSON lines" },
        { "\x40\0\0\0\0\0\0\0{\"embed\":{}}", 20, "a safetensors file", "rows of text" },
        { "GGUF\x03", 0, "a GGUF file", "rows of text" },
        { "version https://git-lfs.github.com/spec/v1\n", 0, "a pointer of Git LFS", "git lfs pull" },
        { "{\n \"messages\": 1\n}\n", 0, "over several lines", "jq -c ." },
        { "\n[" SEEDS_ROW "", 0, "row 2", "ends in its middle" },
        { "[" SEEDS_ROW SEEDS_ROW "]", 0, "row 2", "no comma before this row" },
        { "question,answer\n1+1\n", 0, ":2", "1 cells, and the first line names 2 columns" },
        { "question,answer\n\"1+1,2\n", 0, ":2", "do not close" },
        { "question,question\n1,2\n", 0, "line 1", "there twice" },
        { "question,answer\n1\0,2\n", 20, ":2", "has a NUL in it" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        bytes_write(cases[i].text, cases[i].len ? cases[i].len : strlen(cases[i].text));
        assert_null(dataset_open(path, NULL, &err));
        if (!strstr(err.text, cases[i].kind) || !strstr(err.text, cases[i].remedy) || !strstr(err.text, path))
            fail_msg("case %zu: '%s'", i, err.text);
    }
    struct error err = { 0 };
    assert_null(dataset_open("/nowhere/openai/gsm8k", NULL, &err));
    assert_non_null(strstr(err.text, "there is no file '/nowhere/openai/gsm8k'"));
}

/* Open the file called name in dir and return one row as text, with its place; the caller frees it. */
static char *row_text(const char *name, const struct dataset_columns *columns, int64_t i, char where[512])
{
    struct error err = { 0 };
    char full[512];
    snprintf(full, sizeof full, "%s/%s", dir, name);
    struct dataset *d = dataset_open(full, columns, &err);
    if (!d)
        fail_msg("%s", err.text);
    json_t *row = dataset_row(d, i, &err);
    if (!row)
        fail_msg("%s", err.text);
    if (where)
        dataset_where(d, i, where, 512);
    char *text = json_dumps(row, JSON_SORT_KEYS | JSON_COMPACT);
    json_decref(row);
    dataset_free(d);
    return text;
}

static void named_write(const char *name, const void *data, size_t len)
{
    struct error err = { 0 };
    char full[512], folder[512];
    snprintf(full, sizeof full, "%s/%s", dir, name);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(full, '/') - full), full);
    if (!dir_make(folder, 0755, &err) || !file_write(full, data, len, &err))
        fail_msg("%s", err.text);
}

static void text_write(const char *name, const char *text)
{
    named_write(name, text, strlen(text));
}

static void csv_and_json_arrays_have_rows_with_named_columns(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *text; int64_t row; const char *want, *where; } cases[] = {
        { "question,answer\r\n1+1,2\r\n\r\n\"a \"\"b\"\", c\nd\",#### 3\r\nlast,", 1,
          "{\"answer\":\"#### 3\",\"gt_answer\":\"3\",\"messages\":[{\"content\":\"a \\\"b\\\", c\\nd\",\"role\":\"user\"}],\"question\":\"a \\\"b\\\", c\\nd\"}", "rows.jsonl:4" },
        { "question\tanswer\n1+1\t2\n", 0,
          "{\"answer\":\"2\",\"gt_answer\":\"2\",\"messages\":[{\"content\":\"1+1\",\"role\":\"user\"}],\"question\":\"1+1\"}", "rows.jsonl:2" },
        { "\xEF\xBB\xBF" "problem;answer;id\n\"x\";-1;\n", 0,
          "{\"answer\":\"-1\",\"gt_answer\":\"-1\",\"id\":null,\"messages\":[{\"content\":\"x\",\"role\":\"user\"}],\"problem\":\"x\"}", "rows.jsonl:2" },
        { "messages,gt_answer\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"q\"\"}]\",1\n", 0,
          "{\"gt_answer\":\"1\",\"messages\":[{\"content\":\"q\",\"role\":\"user\"}]}", "rows.jsonl:2" },
        { " [ {\"prompt\":\"a]\\\"[\",\"answer\":1}\n,{\"prompt\":\"b\",\"answer\":[\"x\"]} ]\n", 1,
          "{\"answer\":[\"x\"],\"gt_answer\":\"x\",\"prompt\":\"b\"}", "rows.jsonl, row 2" },
        { "[[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"assistant\",\"ground_truth\":{\"value\":\"7\",\"pass_at_n\":0.5}}]]", 0,
          "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"assistant\",\"ground_truth\":{\"pass_at_n\":0.5,\"value\":\"7\"}}],\"gt_answer\":\"7\","
          "\"messages\":[{\"content\":\"q\",\"role\":\"user\"}]}", "rows.jsonl, row 1" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char where[512];
        text_write("rows.jsonl", cases[i].text);
        // the last row of the first case has no answer, which is for the reward to refuse
        struct dataset_columns columns = { .answer = i == 0 ? "" : NULL };
        if (i == 0) {
            char *cut = strdup(cases[i].text);
            *strstr(cut, "last") = 0;
            text_write("rows.jsonl", cut);
            free(cut);
        }
        char *got = row_text("rows.jsonl", &columns, cases[i].row, where);
        if (strcmp(got, cases[i].want) != 0 || !strstr(where, cases[i].where))
            fail_msg("case %zu: %s at %s", i, got, where);
        free(got);
    }
}

static void published_layouts_are_recognised_and_named(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *row, *prompt, *answer, *said; } cases[] = {
        { "{\"question\":\"q\",\"answer\":\"2+2=4\\n#### 4\"}", "q", "4", "GSM8K's layout: prompt from 'question', answer from 'answer'" },
        { "{\"problem\":\"q\",\"level\":\"Level 5\",\"type\":\"Algebra\",\"solution\":\"so \\\\boxed{1} or \\\\boxed{\\\\frac{1}{2}}.\"}", "q", "\\frac{1}{2}", "MATH's layout" },
        { "{\"problem\":\"q\",\"solution\":\"s\",\"answer\":\"5\",\"subject\":\"Algebra\",\"level\":2,\"unique_id\":\"t/1\"}", "q", "5", "MATH-500's layout" },
        { "{\"data_source\":\"math_dapo\",\"prompt\":[{\"content\":\"q\",\"role\":\"user\"}],\"ability\":\"MATH\",\"reward_model\":{\"ground_truth\":\"34\",\"style\":\"rule\"},\"extra_info\":{\"index\":\"x\"}}", "q", "34", "verl's (DAPO-Math, Eurus-2) layout: prompt from 'prompt', answer from 'reward_model.ground_truth'" },
        { "{\"prompt\":\"q\",\"solution\":\"34\",\"reward_model\":\"{\\\"ground_truth\\\":\\\"34\\\"}\",\"data_source\":\"math_dapo\"}", "q", "34", "verl's" },
        { "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"assistant\",\"ground_truth\":{\"value\":\"9\"}}]}", "q", "9", "Open-Reasoner-Zero's layout" },
        { "{\"problem\":\"q\",\"answer\":\"-\\\\frac{2}{3}\",\"solution\":\"long\"}", "q", "-\\frac{2}{3}", "DeepScaleR's layout" },
        { "{\"problem_idx\":1,\"problem\":\"q\",\"answer\":70}", "q", "70", "AIME's layout" },
        { "{\"ID\":\"2024-I-1\",\"Problem\":\"q\",\"Solution\":\"s\",\"Answer\":\"073\"}", "q", "073", "AIME's layout" },
        { "{\"messages\":[{\"content\":\"q\",\"role\":\"user\"}],\"ground_truth\":\"4\",\"dataset\":\"gsm8k\"}", "q", "4", "RLVR's layout" },
        { "{\"messages\":[{\"content\":\"q\",\"role\":\"user\"}],\"ground_truth\":[\"4\",\"9\"],\"dataset\":[\"gsm8k\",\"max_length\"]}", "q", NULL, "RLVR's layout" },
        { "{\"prompt\":\"q\",\"ground_truth\":\"4\"}", "q", "4", "TRL's layout" },
        { "{\"prompt\":\"q\",\"solution\":\"4\"}", "q", "4", "TRL's layout" },
        { "{\"prompt\":\"[q\",\"completion\":\"4\"}", "[q", NULL, "TRL's layout" },
        { "{\"prompt\":\"q\",\"verification_info\":{\"test_cases\":{\"inputs\":[1],\"outputs\":[1]}}}", "q", NULL, "verifiable-coding" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct buf said = BUF_INIT;
        bytes_write(cases[i].row, strlen(cases[i].row));
        struct dataset *d = dataset_open(path, NULL, &err);
        json_t *row = d ? dataset_row(d, 0, &err) : NULL;
        if (!row)
            fail_msg("case %zu: %s", i, err.text);
        dataset_describe(d, &said);
        const json_t *messages = json_object_get(row, "messages");
        bool as_is = strstr(buf_text(&said), "a text there, which is continued as it is");
        assert_int_equal(as_is, !messages);
        assert_int_equal(as_is, strncmp(cases[i].said, "TRL's", 5) == 0);
        assert_string_equal(
            json_string_value(as_is ? json_object_get(row, "prompt") : json_object_get(json_array_get(messages, 0), "content")),
            cases[i].prompt);
        assert_true(cases[i].answer || !json_object_get(row, "gt_answer"));
        if (cases[i].answer)
            assert_string_equal(json_string_value(json_object_get(row, "gt_answer")), cases[i].answer);
        if (!strstr(buf_text(&said), cases[i].said))
            fail_msg("case %zu: said '%s'", i, buf_text(&said));
        json_decref(row);
        buf_release(&said);
        dataset_free(d);
    }
}

static void tests_come_in_the_forms_that_people_keep_them_in(UNUSED void **state)
{
    // clang-format off
    static const char *const rows[] = {
        "{\"question\":\"q\",\"input_output\":\"{\\\"inputs\\\":[\\\"1\\\"],\\\"outputs\\\":[\\\"2\\\"],\\\"fn_name\\\":\\\"f\\\"}\"}",
        "{\"problem_statement\":\"q\",\"verification_info\":{\"language\":\"python\",\"test_cases\":[{\"input\":\"1\",\"output\":\"2\",\"fn_name\":\"f\",\"type\":\"function_call\"}]}}",
        "{\"prompt\":\"q\",\"verification_info\":\"{\\\"test_cases\\\":[{\\\"input\\\":\\\"1\\\",\\\"output\\\":\\\"2\\\",\\\"fn_name\\\":\\\"f\\\"}]}\"}",
        "{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"}],\"ability\":\"code\",\"reward_model\":{\"ground_truth\":\"{\\\"inputs\\\":[\\\"1\\\"],\\\"outputs\\\":[\\\"2\\\"],\\\"fn_name\\\":\\\"f\\\"}\"}}",
        "{\"question\":\"q\",\"test_cases\":{\"inputs\":[\"1\"],\"outputs\":[\"2\"],\"fn_name\":\"f\"},\"answer\":[\"not\",\"used\"]}",
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct error err = { 0 };
        json_t *row = dataset_line_parse(rows[i], strlen(rows[i]), NULL, "f:1", &err);
        if (!row)
            fail_msg("case %zu: %s", i, err.text);
        char *text = json_dumps(json_object_get(row, "test_cases"), JSON_SORT_KEYS | JSON_COMPACT);
        assert_string_equal(text, "{\"fn_name\":\"f\",\"inputs\":[\"1\"],\"outputs\":[\"2\"]}");
        assert_null(json_object_get(row, "gt_answer"));
        free(text);
        json_decref(row);
    }
}

static void conversations_and_tools_come_in_the_forms_that_people_keep_them_in(UNUSED void **state)
{
#define USER "{\"content\":\"q\",\"role\":\"user\"}"
#define SAID "{\"content\":\"a\",\"role\":\"assistant\"}"
#define F "{\"function\":{\"name\":\"f\"},\"type\":\"function\"}"
#define F_TEXT "\"{\\\"function\\\":{\\\"name\\\":\\\"f\\\"},\\\"type\\\":\\\"function\\\"}\""
#define F_LIST_TEXT "\" [{\\\"function\\\":{\\\"name\\\":\\\"f\\\"},\\\"type\\\":\\\"function\\\"}]\""
    // clang-format off
    static const struct { const char *row, *messages, *tools, *error; } cases[] = {
        { "{\"messages\":[" USER "," SAID "]}", "[" USER "]" },
        { "{\"messages\":[" USER "," SAID "," SAID "]}", "[" USER "]" },
        { "{\"messages\":[" USER "," SAID "," USER "]}", "[" USER "," SAID "," USER "]" },
        { "{\"messages\":\"[" "{\\\"content\\\":\\\"q\\\",\\\"role\\\":\\\"user\\\"},{\\\"content\\\":\\\"a\\\",\\\"role\\\":\\\"assistant\\\"}" "]\"}", "[" USER "]" },
        { "{\"prompt\":[" USER "," SAID "],\"answer\":\"4\"}", "[" USER "]" },
        { "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[1]}]}", "[" USER "]" },
        { "{\"messages\":[" SAID "]}", .error = "'messages' has nothing but the assistant's answer" },
        { "{\"messages\":" SAID "}", .error = "'messages' has nothing but the assistant's answer" },
        { "{\"messages\":[" USER "],\"tools\":[" F "]}", "[" USER "]", "[" F "]" },
        { "{\"messages\":[" USER "],\"tools\":" F "}", "[" USER "]", "[" F "]" },
        { "{\"messages\":[" USER "],\"tools\":" F_TEXT "}", "[" USER "]", "[" F "]" },
        { "{\"messages\":[" USER "],\"tools\":" F_LIST_TEXT "}", "[" USER "]", "[" F "]" },
        { "{\"messages\":[" USER "],\"tools\":[" F_TEXT "," F "]}", "[" USER "]", "[" F "," F "]" },
        { "{\"messages\":[" USER "],\"tools\":[]}", "[" USER "]", "[]" },
        { "{\"messages\":[" USER "],\"tools\":null}", "[" USER "]" },
        { "{\"messages\":[" USER "],\"tools\":\" \"}", "[" USER "]" },
        { "{\"messages\":[" USER "],\"tools\":\"null\"}", "[" USER "]" },
        { "{\"messages\":[" USER "],\"tools\":\"[{\"}", .error = "the JSON in 'tools' is wrong" },
        { "{\"messages\":[" USER "],\"tools\":[\"f\"]}", .error = "the JSON in 'tools' is wrong" },
        { "{\"messages\":[" USER "],\"tools\":[7]}", .error = "'tools' is neither a list of objects" },
        { "{\"messages\":[" USER "],\"tools\":7}", .error = "'tools' is neither a list of objects" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"name\":null}],\"tools\":[{\"p\":{\"a\":null,\"b\":{\"c\":null,\"e\":[null,1]}}}],\"meta\":null}",
          "[" USER "]", "[{\"p\":{\"b\":{\"e\":[null,1]}}}]" },
        { "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"content\":null,\"id\":1}]}," USER "]}",
          "[" USER ",{\"content\":null,\"role\":\"assistant\",\"tool_calls\":[{\"id\":1}]}," USER "]" },
        { "{\"messages\":[" USER "],\"tools\":\"[{\\\"a\\\":null}]\"}", "[" USER "]", "[{\"a\":null}]" },    // a text is as its author wrote it
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        json_t *row = dataset_line_parse(cases[i].row, strlen(cases[i].row), NULL, "f:1", &err);
        if (!row != (cases[i].error != NULL) || (!row && !strstr(err.text, cases[i].error)))
            fail_msg("case %zu: %s", i, row ? "it is taken" : err.text);
        char *messages = row ? json_dumps(json_object_get(row, "messages"), JSON_SORT_KEYS | JSON_COMPACT) : NULL;
        char *tools = row ? json_dumps(json_object_get(row, "tools"), JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        if (row && (strcmp(messages, cases[i].messages) != 0 || strcmp(tools ? tools : "", cases[i].tools ? cases[i].tools : "") != 0))
            fail_msg("case %zu: messages %s, tools %s", i, messages, tools);
        free(messages);
        free(tools);
        json_decref(row);
    }
    struct error err = { 0 };
    struct buf said = BUF_INIT;
    bytes_write(cases[0].row, strlen(cases[0].row));
    struct dataset *d = dataset_open(path, NULL, &err), *whole = dataset_open(path, &(struct dataset_columns){ .whole = true }, &err);
    json_t *row = whole ? dataset_row(whole, 0, &err) : NULL;
    assert_int_equal(json_array_size(json_object_get(row, "messages")), 2);    // to learn from
    dataset_describe(d, &said);
    assert_true(dataset_n_answered(d) == 1 && dataset_n_answered(whole) == 0);
    assert_non_null(strstr(buf_text(&said), "1 of the rows end with the assistant's answer"));
    buf_release(&said);
    json_decref(row);
    dataset_free(whole);
    dataset_free(d);
}

static void a_template_puts_columns_into_the_prompt(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *template, *want; } cases[] = {
        { "{question}\nThink step by step.", "q?\nThink step by step." },
        { "Level {meta.level}: {question} ({n})", "Level 5: q? (2.5)" },
        { "{question} Answer in \\boxed{} or \\boxed{{x}}, {{question}}", "q? Answer in \\boxed{} or \\boxed{x}, {question}" },
        { "{question}{", "q?{" },
        { "{nothing}", NULL },
        { "{meta}", NULL },
    };
    // clang-format on
    static const char line[] = "{\"question\":\"q?\",\"answer\":\"#### 1\",\"n\":2.5,\"meta\":{\"level\":5}}";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct dataset_columns columns = { .template = cases[i].template };
        json_t *row = dataset_line_parse(line, sizeof line - 1, &columns, "f:1", &err);
        if (!cases[i].want) {
            assert_null(row);
            assert_non_null(strstr(err.text, "f:1: prompt_template: '"));
            continue;
        }
        if (!row)
            fail_msg("%s", err.text);
        const json_t *m = json_array_get(json_object_get(row, "messages"), 0);
        assert_string_equal(json_string_value(json_object_get(m, "content")), cases[i].want);
        assert_string_equal(json_string_value(json_object_get(row, "gt_answer")), "1");
        json_decref(row);
    }
    struct error err = { 0 };
    bytes_write(line, sizeof line - 1);
    assert_null(dataset_open(path, &(struct dataset_columns){ .template = "Think about {{question}}." }, &err));
    assert_non_null(strstr(err.text, "'prompt_template' names no column"));
}

#define ROW(q) "{\"question\":\"" q "\",\"answer\":\"1\"}\n"

static void several_files_are_one_data_set(UNUSED void **state)
{
    struct error err = { 0 };
    char where[512], full[300];
    text_write("many/b.csv", "question,answer\nfourth,1\n");
    text_write("many/a.jsonl", "\n" ROW("first") "\n" ROW("second"));
    text_write("many/a2.json", "[" ROW("third") "]");
    text_write("many/.hidden.jsonl", "not data");
    text_write("many/README.md", "not data");
    for (int form = 0; form < 2; form++) {
        snprintf(full, sizeof full, "%s/many%s", dir, form ? "/*[a-z2]" : "");
        if (form)
            snprintf(full, sizeof full, "%s/many/[ab]*", dir);
        struct dataset *d = dataset_open(full, NULL, &err);
        if (!d)
            fail_msg("%s", err.text);
        // a.jsonl comes before a2.json, as '.' comes before '2'
        static const struct {
            const char *where;
            int64_t line;
        } rows[] = { { "/many/a.jsonl:2", 2 }, { "/many/a.jsonl:4", 4 }, { "/many/a2.json, row 1", 5 }, { "/many/b.csv:2", 7 } };
        assert_int_equal(dataset_n_row(d), 4);
        assert_int_equal(dataset_n_file(d), 3);
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
            assert_non_null(strstr(dataset_where(d, (int64_t)i, where, sizeof where), rows[i].where));
            assert_int_equal(dataset_line(d, (int64_t)i), rows[i].line);
        }
        dataset_free(d);
    }
    text_write("many/b.csv", "question,answer\n,1\n");
    assert_null(dataset_open(full, NULL, &err));
    assert_non_null(strstr(err.text, "/many/b.csv:2: "));
    snprintf(full, sizeof full, "%s/none/*.jsonl", dir);
    assert_null(dataset_open(full, NULL, &err));
    assert_non_null(strstr(err.text, "no file matches the pattern"));
    text_write("empty/notes.md", "x");
    snprintf(full, sizeof full, "%s/empty", dir);
    assert_null(dataset_open(full, NULL, &err));
    assert_non_null(strstr(err.text, "holds no file of data"));
}

static uint64_t hash_of(const char *name)
{
    struct error err = { 0 };
    char full[300];
    snprintf(full, sizeof full, "%s/%s", dir, name);
    struct dataset *d = dataset_open(full, NULL, &err);
    if (!d)
        fail_msg("%s", err.text);
    uint64_t h = dataset_hash(d);
    dataset_free(d);
    return h;
}

static void the_hash_covers_every_file_and_their_order(UNUSED void **state)
{
    text_write("h/a.jsonl", ROW("a"));
    text_write("h/b.jsonl", ROW("b"));
    uint64_t both = hash_of("h"), one = hash_of("h/a.jsonl");
    assert_true(both != one && both != hash_of("h/b.jsonl"));
    text_write("h/b.jsonl", ROW("c"));
    assert_true(hash_of("h") != both);
    text_write("h/a.jsonl", ROW("b"));
    text_write("h/b.jsonl", ROW("a"));
    assert_true(hash_of("h") != both);
    text_write("h/a.jsonl", ROW("a"));
    text_write("h/b.jsonl", ROW("b"));
    assert_true(hash_of("h") == both && hash_of("h/a.jsonl") == one);
}

static void folders_never_mix_splits(UNUSED void **state)
{
    struct error err = { 0 };
    char full[300];
    text_write("split/test.jsonl", ROW("test"));
    text_write("split/train.jsonl", ROW("train"));
    char *text = row_text("split", NULL, 0, NULL);
    assert_non_null(strstr(text, "\"question\":\"train\""));
    free(text);
    text_write("split2/test.jsonl", ROW("test"));
    text_write("split2/more.jsonl", ROW("more"));
    snprintf(full, sizeof full, "%s/split2", dir);
    assert_null(dataset_open(full, NULL, &err));
    assert_non_null(strstr(err.text, "has the splits test, and files of none"));
}

static void data_sets_of_the_hub_are_found_in_its_cache(UNUSED void **state)
{
    static const char readme[] =
        "---\nlicense: mit\nconfigs:\n- config_name: main\n  default: true\n  data_files:\n  - split: train\n    path: main/train-*\n"
        "  - split: test\n    path: main/test-*\n- config_name: socratic\n  data_dir: socratic\n---\n# words\n";
    static const char commit[] = "0123456789012345678901234567890123456789";
    // clang-format off
    static const struct { const char *name, *want; } cases[] = {
        { "org/set", "main train" }, { "org/set:main", "main train" }, { "org/set:main:test", "main test" }, { "org/set:test", "main test" },
        { "org/set:socratic:test", "socratic test" }, { "org/set@0123456789012345678901234567890123456789:socratic", "socratic train" },
        { "org/set:other:test", "there is no configuration 'other'; there are main, socratic" },
        { "org/set:main:dev", "has no split 'dev'; there are train, test" },
        { "org/set@v2", "no data set of that name at revision 'v2'" },
        { "org/other", "'rollcall pull --dataset org/other' gets it" },
        { "org/shards", "of the 3 files 'data/train-" },
    };
    // clang-format on
    char folder[200], name[300], pinned[300];
    struct error err = { 0 };
    setenv("HF_HUB_CACHE", dir, 1);
    snprintf(folder, sizeof folder, "datasets--org--set/snapshots/%s", commit);
    text_write("datasets--org--set/refs/main", commit);
    snprintf(name, sizeof name, "%s/README.md", folder);
    text_write(name, readme);
    static const char *const files[][2] = { { "main/train-00000-of-00001.jsonl", ROW("main train") },
                                            { "main/test-00000-of-00001.jsonl", ROW("main test") },
                                            { "socratic/train.jsonl", ROW("socratic train") },
                                            { "socratic/test.jsonl", ROW("socratic test") } };
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        snprintf(name, sizeof name, "%s/%s", folder, files[i][0]);
        text_write(name, files[i][1]);
    }
    text_write("datasets--org--shards/refs/main", commit);
    snprintf(name, sizeof name, "datasets--org--shards/snapshots/%s/data/train-00001-of-00003.jsonl", commit);
    text_write(name, ROW("x"));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct dataset *d = dataset_open(cases[i].name, NULL, &err);
        json_t *row = d ? dataset_row(d, 0, &err) : NULL;
        const char *got = d ? json_string_value(json_object_get(row, "question")) : err.text;
        if (!strstr(got, cases[i].want))
            fail_msg("'%s': %s", cases[i].name, got);
        json_decref(row);
        dataset_free(d);
    }
    snprintf(pinned, sizeof pinned, "org/set:main:test");
    assert_true(data_name_pin(pinned, sizeof pinned, &err));
    assert_string_equal(pinned, "org/set@0123456789012345678901234567890123456789:main:test");
    assert_true(data_name_pin(pinned, sizeof pinned, &err));
    assert_string_equal(pinned, "org/set@0123456789012345678901234567890123456789:main:test");
    unsetenv("HF_HUB_CACHE");
}

static void parquet_is_read_by_what_it_holds(UNUSED void **state)
{
    struct error err = { 0 };
    struct buf file = BUF_INIT;
    char where[512];
    assert_true(file_read(&file, TEST_DATA_DIR "/golden/data/gsm8k.parquet", 1 << 20, &err));
    bytes_write(file.data, file.len);    // rows.jsonl
    char *text = row_text("rows.jsonl", NULL, 63, where);
    assert_non_null(strstr(text, "\"gt_answer\":\"16\""));
    assert_non_null(strstr(text, "What is 8 + 8?"));
    assert_non_null(strstr(where, "rows.jsonl, row 64"));
    free(text);
    char packed[1 << 16];
    size_t n = ZSTD_compress(packed, sizeof packed, file.data, file.len, 3);
    bytes_write(packed, n);
    text = row_text("rows.jsonl", NULL, 0, where);
    assert_non_null(strstr(text, "\"gt_answer\":\"2\""));
    free(text);
    buf_release(&file);
}

/* The second row is the one that is asked for. */
static bool second_refused(void *arg, const json_t *row, struct error *err)
{
    return ++*(int *)arg < 2 || error_set(err, ERR_DATA, "'%s' it is", json_string_value(json_object_get(row, "gt_answer")));
}

static void what_a_check_finds_wrong_is_reported_with_its_line(UNUSED void **state)
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
        cmocka_unit_test(rows_are_the_same_plain_and_compressed),
        cmocka_unit_test(a_bomb_is_refused_before_it_fills_the_memory),
        cmocka_unit_test(questions_and_answers_become_messages),
        cmocka_unit_test(a_wrong_line_is_named_with_its_field),
        cmocka_unit_test(a_file_of_another_kind_is_named_with_what_to_do),
        cmocka_unit_test(what_a_check_finds_wrong_is_reported_with_its_line),
        cmocka_unit_test(csv_and_json_arrays_have_rows_with_named_columns),
        cmocka_unit_test(published_layouts_are_recognised_and_named),
        cmocka_unit_test(tests_come_in_the_forms_that_people_keep_them_in),
        cmocka_unit_test(conversations_and_tools_come_in_the_forms_that_people_keep_them_in),
        cmocka_unit_test(a_template_puts_columns_into_the_prompt),
        cmocka_unit_test(several_files_are_one_data_set),
        cmocka_unit_test(the_hash_covers_every_file_and_their_order),
        cmocka_unit_test(folders_never_mix_splits),
        cmocka_unit_test(data_sets_of_the_hub_are_found_in_its_cache),
        cmocka_unit_test(parquet_is_read_by_what_it_holds),
    };
    return cmocka_run_group_tests(tests, dir_setup, dir_teardown);
}
