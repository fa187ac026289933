#include "workers/engine/reward/tests.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/json_text.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/reward/sandbox/output.h"

#define JSON_TEXT (JSON_ENCODE_ANY | JSON_COMPACT)

/* A string is taken as it is, a list of strings as lines. */
static bool lines_read(const json_t *v, const char *what, int64_t i, char **text, size_t *len, struct error *err)
{
    struct buf b = BUF_INIT;
    size_t k;
    const json_t *line;
    bool ok = false;
    if (json_is_string(v))
        buf_add(&b, json_string_value(v), json_string_length(v));
    else if (!json_is_array(v)) {
        error_set(err, ERR_DATA, "'%s' %" PRId64 " of test_cases must be a string", what, i);
        goto out;
    }
    json_array_foreach(v, k, line)
    {
        if (!json_is_string(line)) {
            error_set(err, ERR_DATA, "'%s' %" PRId64 " of test_cases holds something that is not a line of text", what, i);
            goto out;
        }
        buf_add(&b, json_string_value(line), json_string_length(line));
        buf_char(&b, '\n');
    }
    if (b.failed || !buf_reserve(&b, 1)) {
        error_set(err, ERR_NO_MEMORY, "no memory for test cases");
        goto out;
    }
    *text = b.data;
    *len = b.len;
    b.data = NULL;
    ok = true;
out:
    buf_release(&b);
    return ok;
}

/* Call-based: each value of a list, or each line of a string, is an argument. */
static bool arguments_read(const json_t *v, int64_t i, char **text, size_t *len, struct error *err)
{
    struct buf b = BUF_INIT;
    bool ok = false;
    size_t k;
    const json_t *member;
    if (json_is_array(v)) {
        json_array_foreach(v, k, member)
        {
            char *one = json_text_dump(member, JSON_TEXT);
            if (b.len > 0)
                buf_char(&b, '\n');
            buf_str(&b, one ? one : "null");
            free(one);
        }
    } else if (json_is_string(v)) {
        const char *s = json_string_value(v);
        size_t n = json_string_length(v);
        while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == ' ' || s[n - 1] == '\r'))
            n--;
        for (const char *line = s, *end; line <= s + n; line = end + 1) {
            end = memchr(line, '\n', (size_t)(s + n - line));
            end = end ? end : s + n;
            struct json_value *value = value_read(line, (size_t)(end - line), err);
            if (!value) {
                error_wrap(err, "'inputs' %" PRId64 " of test_cases, which has 'fn_name'", i);
                goto out;
            }
            value_free(value);
        }
        buf_add(&b, s, n);
    } else {
        error_set(err, ERR_DATA, "'inputs' %" PRId64 " of test_cases must be a string or a list", i);
        goto out;
    }
    if (b.failed || !buf_reserve(&b, 1)) {
        error_set(err, ERR_NO_MEMORY, "no memory for test cases");
        goto out;
    }
    *text = b.data;
    *len = b.len;
    b.data = NULL;
    ok = true;
out:
    buf_release(&b);
    return ok;
}

static bool result_read(const json_t *v, int64_t i, struct test_case *t, struct error *err)
{
    t->output = json_is_string(v) && !json_odd_text(v) ? strndup(json_string_value(v), json_string_length(v))
                                                       : json_text_dump(v, JSON_TEXT);
    if (!t->output)
        return error_set(err, ERR_NO_MEMORY, "no memory for test cases");
    t->output_len = strlen(t->output);
    t->value = value_read(t->output, t->output_len, err);
    return t->value || error_wrap(err, "'outputs' %" PRId64 " of test_cases, which has 'fn_name'", i);
}

bool tests_read(struct tests *t, const json_t *test_cases, struct error *err)
{
    json_error_t je;
    json_t *parsed = NULL;
    bool ok = false;
    *t = (struct tests){ 0 };
    if (json_is_string(test_cases)) {
        test_cases = parsed = json_text_read(json_string_value(test_cases), json_string_length(test_cases),
                                             JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
        if (!parsed) {
            error_set(err, ERR_DATA, "test_cases is a string that is not JSON: %s", je.text);
            goto out;
        }
    }
    const json_t *inputs = json_object_get(test_cases, "inputs"), *outputs = json_object_get(test_cases, "outputs");
    const json_t *function = json_object_get(test_cases, "fn_name");
    if (json_object_get(test_cases, "assert_case")) {
        error_set(err, ERR_DATA, "test_cases with 'assert_case' would show the answers to the program; give inputs and outputs");
        goto out;
    }
    if (!json_is_array(inputs) || !json_is_array(outputs)) {
        error_set(err, ERR_DATA, "%s", test_cases ? "test_cases must have lists 'inputs' and 'outputs'" : "the row has no test_cases");
        goto out;
    }
    size_t n = json_array_size(inputs);
    if (n != json_array_size(outputs) || n == 0) {
        error_set(err, ERR_DATA, "test_cases has %zu inputs and %zu outputs; they must be as many, and some", n, json_array_size(outputs));
        goto out;
    }
    if (function && !json_is_null(function) && !json_is_string(function)) {
        error_set(err, ERR_DATA, "'fn_name' of test_cases must be a string");
        goto out;
    }
    t->test = calloc(n, sizeof *t->test);
    t->function = json_is_string(function) && json_string_length(function) ? strdup(json_string_value(function)) : NULL;
    if (!t->test || (json_string_length(function) && !t->function)) {
        error_set(err, ERR_NO_MEMORY, "no memory for test cases");
        goto out;
    }
    t->n = (int64_t)n;
    for (int64_t i = 0; i < t->n; i++) {
        struct test_case *one = &t->test[i];
        const json_t *in = json_array_get(inputs, (size_t)i), *out = json_array_get(outputs, (size_t)i);
        TRY(t->function ? arguments_read(in, i, &one->input, &one->input_len, err)
                        : lines_read(in, "inputs", i, &one->input, &one->input_len, err));
        TRY(t->function ? result_read(out, i, one, err) : lines_read(out, "outputs", i, &one->output, &one->output_len, err));
    }
    ok = true;
out:
    json_decref(parsed);
    if (!ok)
        tests_release(t);
    return ok;
}

void tests_release(struct tests *t)
{
    for (int64_t i = 0; i < t->n; i++) {
        free(t->test[i].input);
        free(t->test[i].output);
        value_free(t->test[i].value);
    }
    free(t->test);
    free(t->function);
    *t = (struct tests){ 0 };
}

/* Call-based, PRIME's rule: equal, or equal to the first member when the expected value is a list. */
static bool result_accepted(const struct json_value *got, const struct json_value *expected)
{
    return value_accepted(got, expected) || (expected->kind == VALUE_LIST && expected->n > 0 && value_accepted(got, expected->item[0]));
}

bool test_compare(const struct tests *t, int64_t i, const char *out, size_t len, bool *ok, struct error *err)
{
    const struct test_case *one = &t->test[i];
    if (!t->function)
        return output_compare(out, len, one->output, one->output_len, ok, err);
    struct error why = { 0 };
    struct json_value *got = value_read(out, len, &why);
    *ok = got && result_accepted(got, one->value);
    value_free(got);
    if (why.code == ERR_NO_MEMORY)
        *err = why;
    return why.code != ERR_NO_MEMORY;
}

bool program_find(const char *text, size_t len, const char **code, size_t *code_len)
{
    static const char open[] = "```python", close[] = "```";
    const char *start = NULL, *end = text + len, *at = text;
    while ((at = memmem(at, (size_t)(end - at), open, sizeof open - 1))) {
        at += sizeof open - 1;
        start = at;
    }
    *code = start ? start : text;
    const char *stop = start ? memmem(start, (size_t)(end - start), close, sizeof close - 1) : NULL;
    *code_len = (size_t)((stop ? stop : end) - *code);
    return start != NULL;
}

void test_results_add(struct test_results *t, enum test_code code)
{
    if (t->n < TESTS_KEPT_MAX)
        t->code[t->n++] = (int8_t)code;
}

json_t *test_results_json(const struct test_results *t)
{
    json_t *list = json_array();
    for (int i = 0; i < t->n; i++)
        json_array_append_new(list, json_integer(t->code[i]));
    return list;
}
