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
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"[user]hi[assistant]\"}]}", "S", "[user]hi[assistant]" },    // rendered once
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"[user]hi[assistant] \"}]}", NULL, "[user]hi[assistant] " },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"[assistant]?\"}]}", NULL, "[user][assistant]?[assistant]" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}", NULL, "[user][assistant]" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"]}]}", NULL,
          "[user]ab[assistant]" },    // this tokenizer has no line end
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]},"
          "{\"role\":\"user\",\"content\":\"b\"}]}",
          NULL, "[user]a[assistant][user]b[assistant]" },
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

/* $ is the special token. */
static void a_message_that_is_a_rendered_prompt_is_not_rendered_again(UNUSED void **state)
{
    static const char source[] = "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content | trim }}<|turn|>.{% endfor %}"
                                 "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}";
    static const struct {
        const char *content, *want, *why;
        bool rendered;
    } cases[] = {
        { "hi", "$user:hi$.$assistant:", "a question", false },
        { "$user:hi$.$assistant:", "$user:hi$.$assistant:", "all of it", true },
        { "$system:S$.$user:hi$.$assistant:", "$system:S$.$user:hi$.$assistant:", "with a system message", true },
        { "$user:hi$.", "$user:hi$.$assistant:", "without the assistant's header", true },
        { "$user:hi", "$user:hi", "without its end: the model goes on with the question", true },
        { "$user:hi$.$assist", "$user:hi$.$assistant:", "a part of the header", true },
        { "$user:hi$.$assistant:<think>", "$user:hi$.$assistant:<think>", "with the answer's begin", true },
        { "user:hi$.$assistant:", "user:hi$.$assistant:", "known by its end", true },
        { "what is $?", "$user:what is $?$.$assistant:", "a special token within a question", false },
        { "user:hi", "$user:user:hi$.$assistant:", "words of the template", false },
    };
    struct template *turns = template_new(source, strlen(source), "test", &err);
    assert_non_null(turns);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct prompt_maker p = { .encoder = encoder, .template = turns };
        struct buf row = BUF_INIT;
        bool ok, dropped;
        buf_str(&row, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
        for (const char *c = cases[i].content; *c; c++)
            buf_fmt(&row, *c == '$' ? "<|turn|>" : "%c", *c);
        buf_str(&row, "\"}]}");
        const char *ids = make(&p, buf_text(&row), &ok, &dropped);
        if (!ok)
            fail_msg("%s: %s", cases[i].why, err.text);
        char got[256] = "";
        for (size_t k = 0; ids[k]; k++)
            got[k] = ids[k] == 1 ? '$' : ids[k];
        if (strcmp(got, cases[i].want) != 0 || p.n_rendered != cases[i].rendered)
            fail_msg("%s: '%s', not '%s'", cases[i].why, got, cases[i].want);
        buf_release(&row);
    }
    template_free(turns);
}

static void texts_are_continued_as_they_are_without_a_template(UNUSED void **state)
{
    static const struct {
        const char *row, *want, *error;
    } cases[] = {
        { "{\"prompt\":\"6+6=\"}", "6+6=" },
        { "{\"messages\":{\"role\":\"user\",\"content\":\"6+6=\"}}", "6+6=" },
        { "{\"messages\":[{\"role\":\"system\",\"content\":\"own\"},{\"role\":\"user\",\"content\":\"6+6=\"}]}",
          "own6+6=" },    // this tokenizer has no line breaks
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]}",
          .error = "more than one question" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}", .error = "only text is supported" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"f\":1}]}", .error = "'tools' needs a chat template" },
        { "{\"prompt\":\"a\",\"tools\":[{\"f\":1}]}", .error = "'tools' go through the chat template" },
    };
    struct prompt_maker p = { .encoder = encoder, .system_prompt = "S" };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bool ok, dropped;
        const char *got = make(&p, cases[i].row, &ok, &dropped);
        if (ok != !cases[i].error || (ok ? strcmp(got, cases[i].want) != 0 : !strstr(err.text, cases[i].error)))
            fail_msg("%s: %s", cases[i].row, ok ? got : err.text);
    }
    struct buf notes = BUF_INIT;
    prompt_maker_notes(&p, &notes);
    assert_true(p.n_text == 1 && p.n_plain == 2);
    assert_non_null(strstr(buf_text(&notes), "no chat template"));
    assert_non_null(strstr(buf_text(&notes), "the system prompt is not put before them"));
    buf_release(&notes);
}

static void tools_that_the_template_does_not_show_are_noted(UNUSED void **state)
{
    static const char shows[] = "{{ tools }}{{ messages[0].content }}";
    static const char *const rows[] = { "{\"messages\":{\"role\":\"user\",\"content\":\"x\"}}",
                                        "{\"messages\":{\"role\":\"user\",\"content\":\"x\"},\"tools\":[{\"f\":1}]}",
                                        "{\"messages\":{\"role\":\"user\",\"content\":\"x\"},\"tools\":[{\"g\":1}]}" };
    struct template *showing = template_new(shows, strlen(shows), "test", &err);
    for (int i = 0; i < 2; i++) {
        struct prompt_maker p = { .encoder = encoder, .template = i == 0 ? template : showing };
        struct buf notes = BUF_INIT;
        bool ok, dropped;
        for (size_t r = 0; r < ARRAY_SIZE(rows); r++)
            make(&p, rows[r], &ok, &dropped);
        prompt_maker_notes(&p, &notes);
        assert_int_equal(i == 0, strstr(buf_text(&notes), "does not show the tools of 2 prompts") != NULL);
        buf_release(&notes);
    }
    template_free(showing);
}

static void what_is_said_between_turns_is_written_as_the_template_does(UNUSED void **state)
{
    static const char source[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }};~{% endfor %}{{ tools }}"
                                 "{% if add_generation_prompt %}[assistant]{% endif %}";
    static const struct {
        bool chat;
        const char *role, *last, *want, *why, *tools;
    } cases[] = {
        { true, "user", ";", "~[user]up;~None[assistant]", "the end token was drawn: it is not written again" },
        { true, "tool", "", ";~[tool]up;~None[assistant]", "the turn was cut: its end is written" },
        { true, "tool", "$", ";~[tool]up;~None[assistant]", "it ended with another token than the template's" },
        { false, "user", ";", "up", "the prompt was a text, and so is this" },
        { true, "user", ";", "~[user]up;~[7][assistant]", "the prompt had tools, and so has what continues it", "[7]" },
    };
    struct template *ending = template_new(source, strlen(source), "test", &err);
    assert_non_null(ending);
    struct prompt_maker p = { .encoder = encoder, .template = ending, .system_prompt = "S" };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct token_list ids = { 0 };
        char text[64] = "";
        json_t *tools = cases[i].tools ? json_loads(cases[i].tools, 0, NULL) : NULL;
        if (!prompt_turn_add(&p, cases[i].chat, tools, cases[i].role, "up", 2, cases[i].last, strlen(cases[i].last), &ids, &err))
            fail_msg("%s: %s", cases[i].why, err.text);
        for (int64_t k = 0; k < ids.n; k++)
            text[k] = (char)ids.id[k];
        if (strcmp(text, cases[i].want) != 0)
            fail_msg("%s: '%s'", cases[i].why, text);
        json_decref(tools);
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
        cmocka_unit_test(a_message_that_is_a_rendered_prompt_is_not_rendered_again),
        cmocka_unit_test(texts_are_continued_as_they_are_without_a_template),
        cmocka_unit_test(tools_that_the_template_does_not_show_are_noted),
        cmocka_unit_test(what_is_said_between_turns_is_written_as_the_template_does),
        cmocka_unit_test(a_long_prompt_is_refused_dropped_or_keeps_its_end),
        cmocka_unit_test(a_row_that_is_not_a_prompt_is_an_error_that_names_the_field),
        cmocka_unit_test(the_policies_for_long_prompts_have_names),
    };
    return cmocka_run_group_tests(tests, text_setup, text_teardown);
}
