#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ascii_tokenizer.h"
#include "workers/engine/sampler/prompt.h"
#include "workers/engine/template/template.h"

static struct error err;
static struct tokenizer *tokenizer;
static struct encoder *encoder;
static struct template *template;

static int text_setup(UNUSED void **state)
{
    static const char source[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                                 "{% if add_generation_prompt %}[assistant]{% endif %}";
    tokenizer = ascii_tokenizer_new(false, &err);
    encoder = tokenizer ? encoder_new(tokenizer, false, &err) : NULL;
    template = template_new(source, strlen(source), "test", &err);
    if (!encoder || !template)
        print_error("%s\n", err.text);
    return !encoder || !template;
}

static int text_teardown(UNUSED void **state)
{
    template_free(template);
    encoder_free(encoder);
    tokenizer_free(tokenizer);
    return 0;
}

/* prompt_make on a line of JSON; the ids as text, "" when dropped. */
static const char *make(struct prompt_maker *p, const char *json, bool *ok, bool *dropped)
{
    static char text[512];
    struct token_list ids = { 0 };
    json_t *row = json_loads(json, 0, NULL);
    assert_non_null(row);
    err = (struct error){ 0 };
    *ok = prompt_make(p, row, &ids, dropped, &err);
    int64_t n = *ok ? ids.n : 0;
    assert_true(n < (int64_t)sizeof text);
    for (int64_t i = 0; i < n; i++)
        text[i] = (char)ids.id[i];
    text[n] = 0;
    token_list_release(&ids);
    json_decref(row);
    return text;
}

static void every_form_of_a_row_becomes_ids(UNUSED void **state)
{
    static const struct {
        const char *row, *system, *want;
    } cases[] = {
        { "{\"prompt\":\"abc\"}", NULL, "abc" },
        { "{\"prompt\":\"abc\"}", "be-brief", "abc" },    // raw text stays raw
        { "{\"prompt_ids\":[97,98]}", NULL, "ab" },
        { "{\"messages\":{\"role\":\"user\",\"content\":\"hi\"}}", NULL, "[user]hi[assistant]" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", "S", "[system]S[user]hi[assistant]" },
        { "{\"messages\":[{\"role\":\"system\",\"content\":\"own\"},{\"role\":\"user\",\"content\":\"hi\"}]}", "S",
          "[system]own[user]hi[assistant]" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct prompt_maker p = { .encoder = encoder, .template = template, .system_prompt = cases[i].system };
        bool ok, dropped;
        const char *got = make(&p, cases[i].row, &ok, &dropped);
        if (!ok)
            fail_msg("%s: %s", cases[i].row, err.text);
        assert_string_equal(got, cases[i].want);
        assert_false(dropped);
    }
}

static void what_is_said_between_turns_is_written_as_the_template_does(UNUSED void **state)
{
    static const char source[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }};~{% endfor %}"
                                 "{% if add_generation_prompt %}[assistant]{% endif %}";
    static const struct {
        bool chat;
        const char *role, *last, *want, *why;
    } cases[] = {
        { true, "user", ";", "~[user]up;~[assistant]", "the end token was drawn: it is not written again" },
        { true, "tool", "", ";~[tool]up;~[assistant]", "the turn was cut: its end is written" },
        { true, "tool", "$", ";~[tool]up;~[assistant]", "it ended with another token than the template's" },
        { false, "user", ";", "up", "the prompt was a text, and so is this" },
    };
    struct template *ending = template_new(source, strlen(source), "test", &err);
    assert_non_null(ending);
    struct prompt_maker p = { .encoder = encoder, .template = ending, .system_prompt = "S" };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct token_list ids = { 0 };
        char text[64] = "";
        if (!prompt_turn_add(&p, cases[i].chat, cases[i].role, "up", 2, cases[i].last, strlen(cases[i].last), &ids, &err))
            fail_msg("%s: %s", cases[i].why, err.text);
        for (int64_t k = 0; k < ids.n; k++)
            text[k] = (char)ids.id[k];
        if (strcmp(text, cases[i].want) != 0)
            fail_msg("%s: '%s'", cases[i].why, text);
        token_list_release(&ids);
    }
    template_free(ending);
}

static void a_long_prompt_is_refused_dropped_or_keeps_its_end(UNUSED void **state)
{
    static const struct {
        enum long_prompt how;
        bool ok, dropped;
        const char *want;
    } cases[] = {
        { LONG_REFUSE, false, false, "" },
        { LONG_DROP, true, true, "" },
        { LONG_CUT_LEFT, true, false, "56789" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct prompt_maker p = { .encoder = encoder, .max_tok = 5, .long_prompt = cases[i].how };
        bool ok, dropped;
        assert_string_equal(make(&p, "{\"prompt\":\"12345\"}", &ok, &dropped), "12345");    // just fits
        assert_true(ok && !dropped);
        assert_string_equal(make(&p, "{\"prompt\":\"0123456789\"}", &ok, &dropped), cases[i].want);
        assert_int_equal(ok, cases[i].ok);
        assert_int_equal(dropped, cases[i].dropped);
        assert_int_equal(p.n_dropped, cases[i].how == LONG_DROP);
        assert_int_equal(p.n_cut, cases[i].how == LONG_CUT_LEFT);
        assert_int_equal(p.longest, 10);
        if (!ok)
            assert_non_null(strstr(err.text, "10 tokens"));
    }
}

static void a_row_that_is_not_a_prompt_is_an_error_that_names_the_field(UNUSED void **state)
{
    static const struct {
        const char *row, *why;
    } cases[] = {
        { "{}", "'messages' or 'prompt'" },
        { "{\"prompt\":1}", "'prompt' must be a string" },
        { "{\"prompt\":\"\"}", "no token" },
        { "{\"prompt_ids\":\"a\"}", "'prompt_ids'" },
        { "{\"prompt_ids\":[1,-1]}", "'prompt_ids'[1]" },
        { "{\"prompt_ids\":[4294967297]}", "'prompt_ids'[0]" },
        { "{\"messages\":{\"role\":\"user\",\"content\":\"x\"}}", "chat template" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct prompt_maker p = { .encoder = encoder };
        bool ok, dropped;
        make(&p, cases[i].row, &ok, &dropped);
        assert_false(ok);
        assert_int_equal(err.code, ERR_DATA);
        if (!strstr(err.text, cases[i].why))
            fail_msg("%s gives: %s", cases[i].row, err.text);
    }
}

static void the_policies_for_long_prompts_have_names(UNUSED void **state)
{
    enum long_prompt how;
    assert_true(long_prompt_parse("cut_left", &how, &err));
    assert_int_equal(how, LONG_CUT_LEFT);
    assert_false(long_prompt_parse("right", &how, &err));
    assert_int_equal(err.code, ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_a_row_becomes_ids),
        cmocka_unit_test(what_is_said_between_turns_is_written_as_the_template_does),
        cmocka_unit_test(a_long_prompt_is_refused_dropped_or_keeps_its_end),
        cmocka_unit_test(a_row_that_is_not_a_prompt_is_an_error_that_names_the_field),
        cmocka_unit_test(the_policies_for_long_prompts_have_names),
    };
    return cmocka_run_group_tests(tests, text_setup, text_teardown);
}
