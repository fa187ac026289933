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
#include <jansson.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "workers/engine/template/template.h"

#define NOW 1741478400.0    // 9 Mar 2025, as in make_templates.py

static struct template *fixture_load(const char *name)
{
    char path[512];
    struct error err = { 0 };
    snprintf(path, sizeof path, TEST_DATA_DIR "/golden/template/%s", name);
    struct template *t = template_load_file(path, &err);
    if (!t)
        fail_msg("%s", err.text);
    return t;
}

static void conversations_and_expressions_render_as_jinja2_renders_them(UNUSED void **state)
{
    FILE *f = fopen(TEST_DATA_DIR "/golden/template/cases.jsonl", "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0;
    json_t *vars = NULL;
    for (int n = 1; getline(&line, &cap, f) > 0; n++) {
        struct error err = { 0 };
        struct buf out = BUF_INIT;
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL), *given = json_object_get(row, "variables_of_sources");
        if (given) {
            vars = json_incref(given);
            json_decref(row);
            continue;
        }
        const char *name = json_string_value(json_object_get(row, "template"));
        const char *source = json_string_value(json_object_get(row, "source"));
        const json_t *want = json_object_get(row, "text");
        struct template *t = name ? fixture_load(name) : template_new(source, strlen(source), "t", &err);
        bool ok = t && template_render(t, name ? json_object_get(row, "variables") : vars, NOW, &out, &err);
        if (ok != (want != NULL))
            fail_msg("cases.jsonl:%d: %s", n, ok ? buf_text(&out) : err.text);
        if (want && (out.len != json_string_length(want) || memcmp(buf_text(&out), json_string_value(want), out.len) != 0))
            fail_msg("cases.jsonl:%d: '%s'", n, buf_text(&out));
        template_free(t);
        buf_release(&out);
        json_decref(row);
    }
    json_decref(vars);
    free(line);
    fclose(f);
}

/* As jinja2 renders Python's own numbers. */
static void an_integer_beyond_64_bits_is_a_number(UNUSED void **state)
{
#define DIGITS "123456789012345678901234567890"
    static const char source[] = "{{ n }} {{ [n] }} {{ m|tojson }} {{ n is integer }} {{ n is number }} {{ n is string }} {{ f }}";
    static const char want[] = DIGITS " [" DIGITS "] {\"a\": " DIGITS "} True True False inf";
    struct error err = { 0 };
    struct buf out = BUF_INIT;
    json_t *vars = json_str_read("{\"n\":" DIGITS ",\"m\":{\"a\":" DIGITS "},\"f\":Infinity}", 0, NULL);
    struct template *t = template_new(source, strlen(source), "t", &err);
    if (!t || !template_render(t, vars, NOW, &out, &err))
        fail_msg("%s", err.text);
    assert_string_equal(buf_text(&out), want);
    template_free(t);
    buf_release(&out);
    json_decref(vars);
}

static void what_is_outside_the_subset_is_refused_with_line_and_construct(UNUSED void **state)
{
    static const struct {
        const char *source, *want;
    } cases[] = {
        { "a\n{% include 'x' %}", "t:2: the statement 'include' is not supported" },
        { "{% extends 'x' %}", "t:1: the statement 'extends'" },
        { "\n\n{{ x|frobnicate }}", "t:3: the filter 'frobnicate' is not supported" },
        { "{{ x is frob }}", "the test 'frob' is not supported" },
        { "{% for x in y recursive %}{% endfor %}", "recursive loops are not supported" },
        { "{{ f(*m, 1) }}", "an argument without a name after '*'" },
        { "{{ dict(**m) }}", "a list after '**'" },
        { "{{ '{:#x}'.format(1) }}", "formatting with such a specification is not supported" },
        { "{{ '{'.format(1) }}", "a single '{'" },
        { "{{ '{} {0}'.format(1) }}", "fields with and without numbers" },
        { "{{ '{2}'.format(1) }}", "there is no argument 2" },
        { "{{ '%s %s' % 1 }}", "not enough arguments" },
        { "{{ '%q' % 1 }}", "such a field after '%' is not supported" },
        { "{{ '{'|from_json }}", "from_json: " },
        { "{% call m %}{% endcall %}", "is not a call" },
        { "{% filter length %}x{% endfilter %}", "a block gives a int, not text" },
        { "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "macro 'f' takes 1 arguments, not 2" },
        { "{% macro f(a) %}{% endmacro %}{% call f(1) %}{% endcall %}", "macro 'f' has no such argument" },
        { "{{ 'a'.__class__ }}", "the attribute '__class__'" },
        { "{{ m.append(1) }}", "calling 'append' is not supported" },
        { "{% if x %}", "t:1: the template ends where {% elif %} is expected" },
        { "{{ x", "a tag that does not end" },
        { "{{ (x }}", "t:1" },
        { "{{ 'x }}", "a string that does not end" },
        { "{# x", "a comment that does not end" },
        { "{% raw %}", "has no {% endraw %}" },
        { "{% break %}", "'break' outside of a loop" },
        { "{{ raise_exception('no such role') }}", "the template says: no such role" },
        { "{{ undef.x }}", "'.x' of something undefined" },
        { "{{ 1 + 'a' }}", "'+' between a int and a str" },
        { "{{ 9223372036854775 * 1000000 }}", "beyond 64 bits" },
    };
    json_t *vars = json_pack("{s:[i]}", "m", 1);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct buf out = BUF_INIT;
        buf_str(&out, "before");
        struct template *t = template_new(cases[i].source, strlen(cases[i].source), "t", &err);
        bool ok = t && template_render(t, vars, NOW, &out, &err);
        if (ok || !strstr(err.text, cases[i].want))
            fail_msg("'%s': wanted '%s', got '%s'", cases[i].source, cases[i].want, ok ? buf_text(&out) : err.text);
        assert_string_equal(buf_text(&out), "before");
        template_free(t);
        buf_release(&out);
    }
    json_decref(vars);
}

static void hostile_templates_end_with_an_error(UNUSED void **state)
{
    if (getenv("UNDER_VALGRIND"))    // spends its whole budgets: minutes there; AddressSanitizer has it too
        skip();
    static const char *const sources[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor "
        "%}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(1000) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(150) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
        "ns.l|tojson }}",
        "{{ 'x' * 1000000000000 }}",
        "{{ [1] * 1000000000000 }}",
        "{{ range(100001) }}",
        "{{ 10 ** 1000000000 }}",
        "{{ 'a'|indent(1000000000) }}",
        "{{ [1]|tojson(indent=1000000) }}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(sources); i++) {
        struct error err = { 0 };
        struct buf out = BUF_INIT;
        struct template *t = template_new(sources[i], strlen(sources[i]), "t", &err);
        json_t *vars = json_object();
        assert_non_null(t);
        if (template_render(t, vars, NOW, &out, &err) && out.len > 2000000000)
            fail_msg("'%s' gave %zu bytes", sources[i], out.len);
        if (i != 10 && !err.code)    // an indent without a second line costs nothing
            fail_msg("'%s' was rendered", sources[i]);
        json_decref(vars);
        template_free(t);
        buf_release(&out);
    }
    static const char *const nested[] = { "(",    "[", "-", "not ", "{{x|", "{% if x %}", "x.", "{% for a in b %}", "1+", "a if b else ",
                                          "{'a':" };
    for (size_t i = 0; i < ARRAY_SIZE(nested); i++) {
        struct error err = { 0 };
        struct buf source = BUF_INIT, out = BUF_INIT;
        bool tags = nested[i][0] == '{' && nested[i][1] == '%';
        if (!tags)
            buf_str(&source, "{{ ");
        for (int k = 0; k < 50000; k++)
            buf_str(&source, nested[i]);
        buf_str(&source, tags ? "" : "x }}");
        struct template *t = template_new(buf_text(&source), source.len, "t", &err);
        json_t *vars = json_object();
        assert_false(t && template_render(t, vars, NOW, &out, &err));
        json_decref(vars);
        template_free(t);
        buf_release(&source);
        buf_release(&out);
    }
}

static void a_chat_takes_one_message_or_a_list_and_a_system_prompt(UNUSED void **state)
{
    static const struct {
        const char *messages, *system;
        bool prompt;
        const char *want;
    } cases[] = {
        { "{\"role\":\"user\",\"content\":\"hi\"}", "S", true,
          "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n" },
        { "[{\"role\":\"system\",\"content\":\"T\"},{\"role\":\"user\",\"content\":\"hi\"}]", "S", false,
          "<|im_start|>system\nT<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n" },
        { "[]", NULL, false, NULL },
    };
    struct template *t = fixture_load("qwen25.jinja");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct error err = { 0 };
        struct buf out = BUF_INIT;
        json_t *m = json_loads(cases[i].messages, 0, NULL);
        struct chat_options options = { .system = cases[i].system, .add_generation_prompt = cases[i].prompt };
        bool ok = template_chat(t, m, &options, &out, &err);
        assert_int_equal(ok, cases[i].want != NULL);
        if (ok)
            assert_string_equal(buf_text(&out), cases[i].want);
        json_decref(m);
        buf_release(&out);
    }
    template_free(t);
}

static void a_directory_gives_its_template_and_its_tokens(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *config, *jinja, *want, *with_tools, *tool_use;
    } cases[] = {
        {"{\"chat_template\":\"{{ bos_token }}{{ messages|length }}\",\"bos_token\":{\"content\":\"<s>\"}}", NULL,
         "<s>1"},
        {"{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"a\"},{\"name\":\"default\",\"template\":\"b{{ "
         "eos_token }}\"}],\"eos_token\":\"E\"}",
         NULL, "bE", "a"},
        {"{\"chat_template\":[{\"name\":\"default\",\"template\":\"b\"},{\"name\":\"tool_use\",\"template\":\"{{ eos_token }}{{ tools | tojson }}\"}],\"eos_token\":\"E\"}",
         NULL, "b", "E[1]"},
        {"{\"chat_template\":{\"default\":\"b\",\"tool_use\":\"a\"}}", NULL, "b", "a"},
        {"{\"chat_template\":[{\"name\":\"default\",\"template\":\"b\"},{\"name\":\"rag\",\"template\":\"a\"}]}", NULL, "b", "b"},
        {"{\"chat_template\":\"old\"}", "new\n", "new", "new"},
        {"{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"a\"}]}", "new\n", "new", "new"},
        {"{\"bos_token\":\"<s>\"}", "new\n", "new", "<s>[1]", "{{ bos_token }}{{ tools | tojson }}"},
        {"{\"chat_template\":\"old\"}", NULL, "old", "T", "T"},
        {"{}", NULL, NULL},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char dir[] = "/tmp/template-test-XXXXXX", path[200];
        struct error err = { 0 };
        struct buf out = BUF_INIT;
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
        assert_true(file_write(path, cases[i].config, strlen(cases[i].config), &err));
        snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
        if (cases[i].jinja)
            assert_true(file_write(path, cases[i].jinja, strlen(cases[i].jinja), &err));
        snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
        if (cases[i].tool_use)
            assert_true(dir_make(path, 0755, &err));
        snprintf(path, sizeof path, "%s/" TEMPLATE_TOOL_USE_FILE, dir);
        if (cases[i].tool_use)
            assert_true(file_write(path, cases[i].tool_use, strlen(cases[i].tool_use), &err));
        struct template *t = template_load(dir, &err);
        assert_int_equal(t != NULL, cases[i].want != NULL);
        json_t *m = json_pack("{s:s, s:s}", "role", "user", "content", "x");
        struct chat_options options = { .add_generation_prompt = true };
        if (t) {
            assert_true(template_chat(t, m, &options, &out, &err));
            assert_string_equal(buf_text(&out), cases[i].want);
            options.tools = json_pack("[i]", 1);
            buf_clear(&out);
            assert_true(template_chat(t, m, &options, &out, &err));
            assert_string_equal(buf_text(&out), cases[i].with_tools ? cases[i].with_tools : cases[i].want);
            json_decref((json_t *)(uintptr_t)options.tools);
        } else {
            assert_int_equal(err.code, ERR_NOT_FOUND);
        }
        json_decref(m);
        template_free(t);
        buf_release(&out);
        assert_true(dir_remove(dir, &err));
    }
    char dir[] = "/tmp/template-test-XXXXXX", path[200];
    static const char config[] = "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"a\"}]}";
    struct error err = { 0 };
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    assert_true(file_write(path, config, strlen(config), &err));
    assert_null(template_load(dir, &err));
    assert_non_null(strstr(err.text, "none is called 'default'"));
    assert_true(dir_remove(dir, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_and_expressions_render_as_jinja2_renders_them),
        cmocka_unit_test(an_integer_beyond_64_bits_is_a_number),
        cmocka_unit_test(what_is_outside_the_subset_is_refused_with_line_and_construct),
        cmocka_unit_test(hostile_templates_end_with_an_error),
        cmocka_unit_test(a_chat_takes_one_message_or_a_list_and_a_system_prompt),
        cmocka_unit_test(a_directory_gives_its_template_and_its_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
