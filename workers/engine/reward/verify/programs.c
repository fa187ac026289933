#include "workers/engine/reward/verify/programs.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/reward/answer.h"

#define WHOLE_MAX_S 600.0    // of all tests of a program

static bool text_take(const json_t *v, char **text, size_t *len)
{
    *text = json_is_string(v) ? malloc(json_string_length(v) + 1) : NULL;
    if (!*text)
        return false;
    *len = json_string_length(v);
    memcpy(*text, json_string_value(v), *len + 1);
    return true;
}

bool program_tests_read(struct tests *t, const json_t *tests, enum program_form form, struct error *err)
{
    static const char passed[] = "\"passed\"";
    json_t *read = NULL, *expected = json_str_read(passed, JSON_DECODE_ANY, NULL);
    bool ok = false;
    size_t i;
    const json_t *one;
    *t = (struct tests){ 0 };
    if (json_is_string(tests)) {
        read = json_text_read(json_string_value(tests), json_string_length(tests), JSON_ALLOW_NUL, NULL);
        if (!read && form == PROGRAM_ASSERTS && strstr(json_string_value(tests), "assert"))
            read = json_pack("[o]", json_stringn(json_string_value(tests), json_string_length(tests)));    // the one test of a list
        if (!read) {
            error_set(err, ERR_DATA,
                      "the tests are a text that is not JSON; tests in Python's pickle format (base64) run code when they are "
                      "opened, so they are refused: convert them to JSON first");
            goto out;
        }
        tests = read;
    } else if (json_is_object(tests)) {
        tests = read = json_pack("[o]", json_deep_copy(tests));
    }
    size_t n = json_array_size(tests);
    if (!json_is_array(tests) || n == 0 || n > PROGRAM_TESTS_MAX) {
        error_set(err, ERR_DATA, "the tests must be a list of 1 to %d", PROGRAM_TESTS_MAX);
        goto out;
    }
    t->test = calloc(n, sizeof *t->test);
    json_array_foreach(tests, i, one)
    {
        const json_t *input = form == PROGRAM_ASSERTS ? one : json_object_get(one, "input");
        const json_t *output = form == PROGRAM_ASSERTS ? expected : json_object_get(one, "output");
        if (!json_is_string(input) || !json_is_string(output)) {
            error_set(err, ERR_DATA, form == PROGRAM_ASSERTS ? "test %zu is not a text" : "test %zu has no texts 'input' and 'output'", i);
            goto out;
        }
        t->n = (int64_t)i + 1;
        if (!t->test || !text_take(input, &t->test[i].input, &t->test[i].input_len)
            || !text_take(output, &t->test[i].output, &t->test[i].output_len)) {
            t->n = t->test ? t->n : 0;
            error_set(err, ERR_NO_MEMORY, "no memory for tests");
            goto out;
        }
    }
    ok = true;
out:
    json_decref(read);
    json_decref(expected);
    if (!ok)
        tests_release(t);
    return ok;
}

bool program_tests_run(struct sandbox_host *host, const struct tests *t, enum program_form form, const char *code, size_t len,
                       double test_s, double *runtime_s, struct runner_result *r, struct error *err)
{
    struct buf first_out = BUF_INIT;
    double each_s = form == PROGRAM_STDIO ? ceil(test_s) : test_s;
    struct runner_options options = { .all = true,
                                      .whole_s = MIN(test_s * (double)t->n + (form == PROGRAM_STDIO ? 5 : 10), WHOLE_MAX_S),
                                      .test_s = each_s,
                                      .left_out = form == PROGRAM_ASSERTS ? "left out: " : NULL,
                                      .runtime_s = runtime_s };
    for (int64_t i = 0; i < t->n; i++)
        runtime_s[i] = -1;
    runner_run(host, t, code, len, &options, r, &first_out);
    buf_release(&first_out);
    if (r->status == CASE_SANDBOX)
        *err = r->err;
    return r->status != CASE_SANDBOX;
}

bool program_block(const char *text, size_t len, const char **code, size_t *code_len)
{
    struct span found = { text, len };
    bool any = false;
    const char *end = text + len;
    for (const char *at = text, *open; (open = memmem(at, (size_t)(end - at), "```", 3));) {
        const char *from = open + 3, *close;
        if (end - from >= 6 && memcmp(from, "python", 6) == 0)
            from += 6;
        close = memmem(from, (size_t)(end - from), "```", 3);
        if (!close)
            break;
        found = span_trim((struct span){ from, (size_t)(close - from) });
        any = true;
        at = close + 3;
    }
    *code = found.s;
    *code_len = found.len;
    return any;
}
