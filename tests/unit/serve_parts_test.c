/* The parts of 'rollcall serve' that need no model: requests, stop strings, tool calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ascii_tokenizer.h"
#include "workers/engine/template/template.h"
#include "protocol/base/json_text.h"
#include "workers/engine/template/tool_calls.h"
#include "workers/serve/ask.h"
#include "workers/serve/reply.h"
#include "workers/serve/serve_job.h"
#include "workers/serve/stop_text.h"

static struct error err;
static struct tokenizer *tokenizer;
static struct encoder *encoder;
static struct template *template;

static int text_setup(UNUSED void **state)
{
    static const char source[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
                                 "{% for c in m.tool_calls or [] %}({{ c.function.arguments.x }}){% endfor %}{% endfor %}"
                                 "{% if tools %}tools:{{ tools|length }},{{ tool_choice }}{% endif %}"
                                 "{% if add_generation_prompt %}[assistant]{% endif %}";
    tokenizer = ascii_tokenizer_new(true, &err);
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

static bool parse(struct ask *a, enum ask_form form, const char *text)
{
    json_t *body = json_str_read(text, 0, NULL);
    assert_non_null(body);
    bool ok = ask_parse(a, form, body, &err);
    json_decref(body);
    return ok;
}

/* ---- stop strings */
static void text_is_held_back_while_it_may_become_a_stop_string(UNUSED void **state)
{
    // after each token: the text that can be shown; tokens are bytes
    // clang-format off
    static const struct { const char *tokens, *stop[3]; bool include; const char *shown[12]; int stopped_by; const char *why; } cases[] = {
        { "abc", { NULL }, false, { "a", "ab", "abc" }, -1, "nothing to stop at" },
        { "abcd", { "cd" }, false, { "a", "ab", "ab", "ab" }, 0, "cut before the string" },
        { "abcd", { "cd" }, true, { "a", "ab", "ab", "abcd" }, 0, "cut after it" },
        { "abcx", { "cd" }, false, { "a", "ab", "ab", "abcx" }, -1, "what looked like a beginning was none" },
        { "aab", { "ab" }, false, { "", "a", "a" }, 0, "a beginning may begin again inside" },
        { "xyab", { "b", "yab" }, false, { "x", "x", "x", "x" }, 1, "the one that begins first wins" },
        { "x\xc3\xa9y", { NULL }, false, { "x", "x", "x\xc3\xa9", "x\xc3\xa9y" }, -1, "half a character is never shown" },
        { "x\xc3\xa9y", { "\xc3\xa9" }, false, { "x", "x", "x" }, 0, "a stop string beyond ASCII" },
        { "x\xc3y", { NULL }, false, { "x", "x", "x\xef\xbf\xbdy" }, -1, "what is no character becomes U+FFFD" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct stop_text t;
        int n_stop = 0;
        bool stopped = false;
        while (cases[i].stop[n_stop])
            n_stop++;
        stop_text_init(&t, tokenizer, true, cases[i].stop, n_stop, cases[i].include);
        for (size_t k = 0; cases[i].tokens[k] && !stopped; k++) {
            assert_true(stop_text_push(&t, (unsigned char)cases[i].tokens[k], true, &stopped));
            if (t.safe != strlen(cases[i].shown[k]) || memcmp(buf_text(&t.text), cases[i].shown[k], t.safe) != 0)
                fail_msg("%s: after token %zu '%.*s' is shown", cases[i].why, k, (int)t.safe, buf_text(&t.text));
        }
        if (t.stopped_by != cases[i].stopped_by || stopped != (t.stopped_by >= 0))
            fail_msg("%s: stopped by %d", cases[i].why, t.stopped_by);
        stop_text_release(&t);
    }
}

static void the_end_of_a_sample_shows_what_was_held_back(UNUSED void **state)
{
    static const char *const stop[] = { "cd" };
    struct stop_text t;
    bool stopped;
    stop_text_init(&t, tokenizer, true, stop, 1, false);
    assert_true(stop_text_push(&t, 'c', true, &stopped) && stop_text_push(&t, 0xc3, true, &stopped));
    assert_int_equal(t.safe, 0);
    assert_true(stop_text_end(&t));
    assert_string_equal(buf_text(&t.text), "c\xef\xbf\xbd");
    assert_int_equal(t.safe, t.text.len);
    stop_text_release(&t);
}

static void a_stop_string_counts_from_the_fewest_tokens_on(UNUSED void **state)
{
    static const char *const stop[] = { "ab" };
    struct stop_text t;
    bool stopped;
    stop_text_init(&t, tokenizer, true, stop, 1, false);
    const char *text = "ababxab";
    for (int k = 0; text[k]; k++) {
        assert_true(stop_text_push(&t, text[k], k >= 3,
                                   &stopped));    // one that is complete at the fourth token counts, if it is from the fourth on
        assert_true(stopped == (k == 3));
        if (stopped)
            break;
    }
    assert_string_equal(buf_text(&t.text), "ab");    // the first stays, the second is cut
    stop_text_release(&t);
}

/* ---- tool calls */
static void tool_calls_are_found_in_both_forms(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *text, *content, *calls, *why; } cases[] = {
        { "hello", "hello", "", "no call" },
        { "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", "", "f({\"x\": 1})", "Hermes" },
        { "Let me see. <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{\"y\":\"z\"}}</tool_call>",
          "Let me see.", "f({})g({\"y\": \"z\"})", "text before two of them" },
        { " a <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> b ", " a  b", "f({})", "only blanks at the end are left out" },
        { "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "", "f({})", "the last tag may be missing" },
        { "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}</tool_call>", "", "f({\"x\":1})", "arguments as a string stay as they are" },
        { "<tool_call>{\"name\":}</tool_call>", "<tool_call>{\"name\":}</tool_call>", "", "not JSON: text" },
        { "<tool_call>{\"nome\":\"f\"}</tool_call>", "<tool_call>{\"nome\":\"f\"}</tool_call>", "", "no name: text" },
        { "{\"name\": \"f\", \"parameters\": {\"x\": 1}}", "", "f({\"x\": 1})", "Llama" },
        { "<|python_tag|>{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{}}", "", "f({})g({})", "two, after the tag" },
        { "{\"name\": \"f\", \"parameters\": {}} and more", "{\"name\": \"f\", \"parameters\": {}} and more", "", "Llama calls are the whole text" },
        { "{\"name\": \"f\", \"parameters\": {}}.", "{\"name\": \"f\", \"parameters\": {}}.", "", "a single character after them is text too" },
        { "{\"name\": \"f\", \"parameters\": {}};", "{\"name\": \"f\", \"parameters\": {}};", "", "nothing after the last ';'" },
        { "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":340282366920938463463374607431768211456,\"y\":NaN}}</tool_call>", "",
          "f({\"x\": 340282366920938463463374607431768211456, \"y\": NaN})", "numbers as Python writes them" },
        { "{\"name\": 5}", "{\"name\": 5}", "", "a name that is no string" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tool_calls c;
        struct buf got = BUF_INIT;
        assert_true(tool_calls_find(&c, cases[i].text, strlen(cases[i].text), NULL));
        for (int k = 0; k < c.n; k++)
            buf_fmt(&got, "%s(%s)", c.call[k].name, c.call[k].arguments);
        if (strcmp(buf_text(&got), cases[i].calls) != 0 || strcmp(buf_text(&c.content), cases[i].content) != 0)
            fail_msg("%s: calls '%s', content '%s'", cases[i].why, buf_text(&got), buf_text(&c.content));
        buf_release(&got);
        tool_calls_release(&c);
    }
}

static void a_strict_tool_is_called_with_what_its_schema_allows_or_not_at_all(UNUSED void **state)
{
    static const char tree[] = "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
                               "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/t\"},{\"type\":\"null\"}]}},\"required\":[\"v\"]}}}";
    static const char endless[] = "{\"$ref\":\"#\",\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}";
    // clang-format off
    static const struct { const char *schema, *arguments; bool fits; const char *why; } cases[] = {
        { "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"],\"additionalProperties\":false}", "{\"x\":1}", true, "as asked" },
        { "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"],\"additionalProperties\":false}", "{\"x\":1,\"y\":2}", false, "more than asked" },
        { "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]}", "{}", false, "required" },
        { "{\"properties\":{\"x\":{\"type\":\"integer\"}}}", "{\"x\":1.5}", false, "no integer" },
        { "{\"properties\":{\"x\":{\"type\":\"integer\"}}}", "{\"x\":2.0}", true, "2.0 is one" },
        { "{\"properties\":{\"x\":{\"type\":\"integer\"}}}", "{\"x\":340282366920938463463374607431768211456}", true, "beyond 64 bits" },
        { "{\"properties\":{\"x\":{\"type\":\"number\"}}}", "{\"x\":NaN}", false, "NaN is not JSON" },
        { "{\"properties\":{\"x\":{\"type\":[\"string\",\"null\"]}}}", "{\"x\":null}", true, "one of two types" },
        { "{\"properties\":{\"x\":{\"type\":\"string\"}}}", "{\"x\":true}", false, "a boolean is not a text" },
        { "{\"properties\":{\"x\":{\"enum\":[\"a\",2]}}}", "{\"x\":2.0}", true, "equal numbers" },
        { "{\"properties\":{\"x\":{\"enum\":[\"a\",2]}}}", "{\"x\":\"b\"}", false, "none of them" },
        { "{\"properties\":{\"x\":{\"const\":[1]}}}", "{\"x\":[1]}", true, "a list" },
        { "{\"properties\":{\"x\":{\"items\":{\"type\":\"string\"},\"minItems\":1,\"maxItems\":2}}}", "{\"x\":[\"a\",1]}", false, "an item" },
        { "{\"properties\":{\"x\":{\"items\":{\"type\":\"string\"},\"minItems\":1,\"maxItems\":2}}}", "{\"x\":[]}", false, "too few" },
        { "{\"properties\":{\"x\":{\"minLength\":2,\"maxLength\":2}}}", "{\"x\":\"\u00e9\u00e9\"}", true, "characters, not bytes" },
        { "{\"properties\":{\"x\":{\"minimum\":0,\"exclusiveMaximum\":1}}}", "{\"x\":1}", false, "the bound is outside" },
        { "{\"properties\":{\"x\":{\"multipleOf\":0.1}}}", "{\"x\":0.3}", true, "as decimals" },
        { "{\"properties\":{\"x\":{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}}}", "{\"x\":1}", false, "both of them" },
        { "{\"allOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}", "{\"a\":1}", false, "one of two" },
        { tree, "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}", true, "a schema within itself" },
        { tree, "{\"v\":1,\"next\":{\"next\":null}}", false, "... that does not fit deeper" },
        { endless, "{}", false, "nothing fits a schema without an end" },
        { "null", "{\"x\":1}", true, "no schema" },
        { "{\"properties\":{\"x\":{\"type\":\"integer\"}}}", "\"{\\\"x\\\":\\\"a\\\"}\"", false, "arguments as a text" },
        { "{\"properties\":{\"x\":{\"type\":\"integer\"}}}", "\"{\\\"x\\\":1}\"", true, "... that fits" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (int strict = 0; strict < 2; strict++) {
            struct tool_calls c;
            struct buf tools = BUF_INIT, text = BUF_INIT;
            buf_fmt(&tools, "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":%s,\"strict\":%s}}]", cases[i].schema,
                    strict ? "true" : "false");
            buf_fmt(&text, "<tool_call>{\"name\":\"f\",\"arguments\":%s}</tool_call>", cases[i].arguments);
            json_t *list = json_text_read(buf_text(&tools), tools.len, 0, NULL);
            if (!list || !tools_strict_check(list, &err))
                fail_msg("%s: %s", cases[i].why, list ? err.text : "not JSON");
            assert_true(tool_calls_find(&c, buf_text(&text), text.len, list));
            if (c.n != (cases[i].fits || !strict) || (c.n == 0 && strcmp(buf_text(&c.content), buf_text(&text)) != 0))
                fail_msg("%s: %d calls, content '%s'", cases[i].why, c.n, buf_text(&c.content));
            tool_calls_release(&c);
            json_decref(list);
            buf_release(&tools);
            buf_release(&text);
        }
}

static void a_stream_shows_nothing_that_may_be_a_tool_call(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *text; size_t safe; } cases[] = {
        { "", 0 }, { "hi", 2 }, { "{\"na", 0 }, { "  ", 0 }, { "<b>", 0 }, { "a <too", 2 }, { "a <tool_call>{", 2 }, { "a <b", 4 }, { "a<", 1 },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (tool_calls_safe(cases[i].text, strlen(cases[i].text)) != cases[i].safe)
            fail_msg("'%s': %zu bytes are shown", cases[i].text, tool_calls_safe(cases[i].text, strlen(cases[i].text)));
}

/* The content of an answer's message: of each event in a stream of them, or of the whole answer. */
static void content_add(struct buf *out, const struct buf *from, bool stream)
{
    for (const char *at = buf_text(from), *end; (end = stream ? strstr(at, "\n\n") : at + strlen(at)); at = end + 2) {
        json_t *o = json_text_read(at + (stream ? strlen("data: ") : 0), (size_t)(end - at) - (stream ? strlen("data: ") : 0), 0, NULL);
        const json_t *choice = json_array_get(json_object_get(o, "choices"), 0), *message;
        message = json_object_get(choice, stream ? "delta" : "message");
        const char *content = json_string_value(json_object_get(message, "content"));
        buf_str(out, content ? content : "");
        for (size_t i = 0; i < json_array_size(json_object_get(message, "tool_calls")); i++)
            buf_fmt(out, "(%s)",
                    json_string_value(
                        json_object_get(json_object_get(json_array_get(json_object_get(message, "tool_calls"), i), "function"), "name")));
        json_decref(o);
        if (!stream)
            break;
    }
}

static void a_stream_with_tools_has_the_content_of_the_whole_answer(UNUSED void **state)
{
    // '|': where the stream is looked at
#define CALL "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"
    // clang-format off
    static const struct { const char *text, *want, *more, *why; } cases[] = {
        { "pre |<tool_|call>{\"name\":\"f\",\"argu|ments\":{}}</tool_call>| post", "pre  post(f)", "", "text before and after a call" },
        { "pre " CALL, "pre(f)", "", "both at once" },
        { "pre| " CALL " |", "pre(f)", "", "blanks on both sides" },
        { "| pre |" CALL "|", " pre(f)", "", "blanks that were shown" },
        { CALL "| and |" CALL "| end", " and  end(f)(f)", "", "text between calls" },
        { CALL "| and |" CALL "| end", " and  end(f)", ",\"parallel_tool_calls\":false", "one call is wanted" },
        { "a <|b |> c ", "a <b > c ", "", "no call at all" },
        { "a <tool_call>{|\"nome\":1} b |" CALL "|", "a <tool_call>{\"nome\":1} b(f)", "", "a call that is none before one that is" },
        { "a <tool_|call>{\"na", "a <tool_call>{\"na", "", "a call that never ends" },
        { "{\"name\": \"f\",| \"parameters\": {}}", "(f)", "", "Llama's form" },
        { "{\"name\": \"f\",| \"parameters\": {}} x", "{\"name\": \"f\", \"parameters\": {}} x", "", "... with text" },
    };
    // clang-format on
#undef CALL
    const struct reply_context x = { .model = "m", .tokenizer = tokenizer };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf body = BUF_INIT, stream = BUF_INIT, whole = BUF_INIT, content[2] = { BUF_INIT, BUF_INIT };
        struct ask a;
        bool stopped;
        buf_fmt(&body, "{\"messages\":[{}],\"tools\":[{}],\"stream\":true%s}", cases[i].more);
        assert_true(parse(&a, ASK_CHAT, buf_text(&body)));
        a.n_prompt = 1;    // as ask_encode makes it
        assert_non_null(a.prompt = calloc(1, sizeof *a.prompt));
        struct serve_job *j = serve_job_new(JOB_GENERATE, &err);
        assert_true(j && serve_job_ask(j, &a, tokenizer, &err));
        for (const char *p = cases[i].text; *p; p++)
            if (*p == '|')
                assert_false(reply_stream(&stream, &x, j));
            else
                assert_true(choice_add(j, &j->choice[0], *p, -1, 0, &stopped));
        assert_true(stop_text_end(&j->choice[0].text));
        j->choice[0].end = CHOICE_STOP;
        j->http.done = true;
        assert_true(reply_stream(&stream, &x, j));
        reply_print(&whole, &x, j);
        content_add(&content[0], &stream, true);
        content_add(&content[1], &whole, false);
        for (int k = 0; k < 2; k++)
            if (strcmp(buf_text(&content[k]), cases[i].want) != 0)
                fail_msg("%s: %s '%s'", cases[i].why, k ? "whole" : "streamed", buf_text(&content[k]));
        serve_job_drop(j);
        buf_release(&body);
        buf_release(&stream);
        buf_release(&whole);
        buf_release(&content[0]);
        buf_release(&content[1]);
    }
}

/* ---- requests */
static void each_form_of_request_says_the_same_in_its_own_words(UNUSED void **state)
{
    static const struct {
        enum ask_form form;
        const char *body;
    } cases[] = {
        { ASK_COMPLETION,
          "{\"prompt\":[5,6],\"n\":2,\"max_tokens\":7,\"min_tokens\":3,\"temperature\":0.5,\"top_k\":3,\"seed\":9,\"stop\":\"x\",\"logprobs\":2}" },
        { ASK_TOKENS,
          "{\"token_ids\":[5,6],\"sampling_params\":{\"n\":2,\"max_tokens\":7,\"min_tokens\":3,\"temperature\":0.5,\"top_k\":3,\"seed\":9,"
          "\"stop\":[\"x\"],\"logprobs\":2,\"routed_experts_prompt_start\":3}}" },
        { ASK_VLLM,
          "{\"prompt\":{\"prompt_token_ids\":[5,6]},\"n\":2,\"max_tokens\":7,\"min_tokens\":3,\"temperature\":0.5,\"top_k\":3,\"seed\":9,"
          "\"stop\":[\"x\"],\"logprobs\":2}" },
        { ASK_SGLANG,
          "{\"input_ids\":[5,6],\"return_logprob\":true,\"top_logprobs_num\":2,\"sampling_params\":{\"n\":2,\"max_new_tokens\":7,\"min_new_tokens\":3,"
          "\"temperature\":0.5,\"top_k\":3,\"sampling_seed\":9,\"stop\":[\"x\"]}}" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct ask a;
        if (!parse(&a, cases[i].form, cases[i].body))
            fail_msg("form %zu: %s", i, err.text);
        assert_int_equal(a.n_prompt, 1);
        assert_int_equal(a.prompt[0].token.n, 2);
        assert_int_equal(a.prompt[0].token.id[1], 6);
        assert_false(a.is_list);
        assert_int_equal(a.n, 2);
        assert_int_equal(a.max_tok, 7);
        assert_int_equal(a.min_tok, 3);
        assert_true(a.temperature == 0.5 && a.top_k == 3 && a.has_seed && a.seed == 9);
        assert_int_equal(a.n_stop, 1);
        assert_string_equal(a.stop[0], "x");
        assert_true(a.logprobs && a.n_top == 2);
        ask_release(&a);
    }
}

static void a_field_that_is_wrong_is_named(UNUSED void **state)
{
#define STRICT(schema)                                                                                                                     \
    "{\"messages\":[{}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":" schema "}}]}"
    // clang-format off
    static const struct { enum ask_form form; const char *body, *word; } cases[] = {
        { ASK_COMPLETION, "{}", "'prompt'" },
        { ASK_COMPLETION, "{\"prompt\":5}", "'prompt'" },
        { ASK_COMPLETION, "{\"prompt\":[[1],\"a\",{}]}", "'prompt'" },
        { ASK_COMPLETION, "{\"prompt\":[-1]}", "'prompt'" },
        { ASK_COMPLETION, "{\"prompt\":[4294967296]}", "'prompt'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"n\":1.5}", "'n'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"n\":true}", "'n'" },
        { ASK_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"n\":4096}", "samples" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"max_tokens\":0}", "'max_tokens'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"min_tokens\":-1}", "'min_tokens'" },
        { ASK_SGLANG, "{\"text\":\"a\",\"sampling_params\":{\"min_new_tokens\":1.5}}", "'min_new_tokens'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"temperature\":\"hot\"}", "'temperature'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"top_p\":1.1}", "'top_p'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"top_k\":-2}", "'top_k'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"stop\":[1]}", "'stop'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"logprobs\":21}", "'logprobs'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"stream\":1}", "'stream'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"cache_salt\":\"\"}", "'cache_salt'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"repetition_penalty\":1.1}", "'repetition_penalty'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":1}}", "'logit_bias'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}", "'response_format'" },
        { ASK_CHAT, "{\"messages\":{}}", "'messages'" },
        { ASK_CHAT, "{\"messages\":[{}],\"top_logprobs\":2}", "'logprobs'" },
        { ASK_CHAT, "{\"messages\":[{}],\"tool_choice\":\"all\"}", "'tool_choice'" },
        { ASK_CHAT, "{\"messages\":[{}],\"tools\":[{}],\"tool_choice\":\"required\"}", "'tool_choice'" },
        { ASK_CHAT, "{\"messages\":[{}],\"tools\":[{}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}", "forced" },
        { ASK_CHAT, STRICT("{\"pattern\":\"a+\"}"), "'pattern'" },
        { ASK_CHAT, STRICT("{\"properties\":{\"x\":{\"format\":\"date\"}}}"), "'format'" },
        { ASK_CHAT, STRICT("{\"anyOf\":[{\"not\":{}}]}"), "'not'" },
        { ASK_CHAT, STRICT("{\"$ref\":\"#/$defs/y\",\"$defs\":{\"x\":{}}}"), "'$ref'" },
        { ASK_CHAT, STRICT("{\"$ref\":\"other.json\"}"), "'$ref'" },
        { ASK_CHAT, STRICT("{\"type\":\"text\"}"), "'type'" },
        { ASK_CHAT, STRICT("{\"items\":[{}]}"), "must be an object" },
        { ASK_CHAT, STRICT("{\"anyOf\":{}}"), "'anyOf'" },
        { ASK_CHAT, STRICT("[]"), "'tools'[0] is strict" },
        { ASK_CHAT, "{\"messages\":[{}],\"max_tokens\":0}", "'max_tokens'" },
        { ASK_CHAT, "{\"messages\":[{}],\"regex\":\"a+\"}", "'regex'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"grammar\":\"root ::= 1\"}", "'grammar'" },
        { ASK_CHAT, "{\"messages\":[{}],\"ebnf\":\"root ::= 1\"}", "'ebnf'" },
        { ASK_VLLM, "{\"prompt\":\"a\",\"json_schema\":\"{}\"}", "'json_schema'" },
        { ASK_CHAT, "{\"messages\":[{}],\"modalities\":[\"text\",\"audio\"]}", "'modalities'" },
        { ASK_CHAT, "{\"messages\":[{}],\"chat_template\":\"{{ x }}\"}", "'chat_template'" },
        { ASK_CHAT, "{\"messages\":[{}],\"echo\":true}", "'echo'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"best_of\":4,\"n\":2}", "'best_of'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"truncate_prompt_tokens\":4}", "'truncate_prompt_tokens'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"use_beam_search\":true}", "'use_beam_search'" },
        { ASK_COMPLETION, "{\"prompt\":1000000000000000000000000000000}", "'prompt'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"stop\":NaN}", "'stop'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"model\":1e400}", "'model'" },
        { ASK_COMPLETION, "{\"prompt\":\"a\",\"temperature\":NaN}", "'temperature'" },
        { ASK_CHAT, "{\"messages\":[{}],\"tools\":{}}", "'tools'" },
        { ASK_TOKENS, "{\"token_ids\":[1],\"sampling_params\":[]}", "'sampling_params'" },
        { ASK_SGLANG, "{\"text\":\"a\",\"input_ids\":[1]}", "second prompt" },
        { ASK_VLLM, "{\"prompt\":{}}", "'prompt'" },
    };
    // clang-format on
#undef STRICT
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct ask a;
        if (parse(&a, cases[i].form, cases[i].body))
            fail_msg("taken: %s", cases[i].body);
        if (err.code != ERR_DATA || !strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].body, err.text);
    }
}

static void what_changes_nothing_is_taken(UNUSED void **state)
{
    static const char
        body[] = "{\"messages\":[{}],\"modalities\":[\"text\"],\"regex\":null,\"grammar\":\"\",\"ebnf\":null,\"best_of\":2,\"n\":2,"
                 "\"length_penalty\":1.0,\"use_beam_search\":false,\"echo\":false,\"response_format\":{\"type\":\"text\"},"
                 "\"tool_choice\":\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}]}";
    struct ask a;
    if (!parse(&a, ASK_CHAT, body))
        fail_msg("%s", err.text);
    assert_true(a.n == 2 && a.parse_tools && a.parallel_tools && !a.add_special);
    ask_release(&a);
}

static void a_chat_is_rendered_as_templates_expect(UNUSED void **state)
{
    const struct ask_text text = { .encoder = encoder, .tokenizer = tokenizer, .template = template, .max_seq_tok = 200, .n_id = 256 };
    struct buf out = BUF_INIT;
    struct ask a;
    assert_true(parse(&a, ASK_CHAT,
                      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
                      "\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                      "\"arguments\":\"{\\\"x\\\": 7}\"}}]}],\"tools\":[{},{}],\"tool_choice\":\"auto\"}"));
    if (!ask_render(&a, &text, &out, &err))
        fail_msg("%s", err.text);
    assert_string_equal(buf_text(&out), "[user]a\nb[assistant](7)tools:2,auto[assistant]");
    assert_true(a.parse_tools);
    ask_release(&a);
    assert_true(parse(&a, ASK_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}],\"tool_choice\":\"none\"}"));
    assert_false(a.parse_tools);
    ask_release(&a);
    buf_release(&out);
}

static void content_is_a_text_whatever_its_message_has(UNUSED void **state)
{
    static const char
        source[] = "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}";    // as many templates: with '+'
    // clang-format off
    static const struct { const char *message, *want, *why; } cases[] = {
        { "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}", "[assistant]", "beside calls" },
        { "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}", "[assistant]", "left out beside calls" },
        { "{\"role\":\"assistant\",\"content\":null}", "[assistant]", "null alone" },
        { "{\"role\":\"user\",\"content\":[]}", "[user]", "no parts" },
        { "{\"role\":\"user\",\"content\":1000000000000000000000000000000}", NULL, "a number" },
        { "{\"role\":\"user\",\"content\":NaN}", NULL, "no number" },
        { "{\"role\":\"user\",\"content\":true}", NULL, "a truth" },
        { "{\"role\":\"user\",\"content\":[1000000000000000000000000000000]}", NULL, "a number among parts" },
        { "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1e999}]}", NULL, "a number in a part" },
    };
    // clang-format on
    struct template *plus = template_new(source, strlen(source), "test", &err);
    const struct ask_text text = { .encoder = encoder, .tokenizer = tokenizer, .template = plus, .max_seq_tok = 200, .n_id = 256 };
    assert_non_null(plus);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf body = BUF_INIT, out = BUF_INIT;
        struct ask a;
        buf_fmt(&body, "{\"messages\":[%s]}", cases[i].message);
        assert_true(parse(&a, ASK_CHAT, buf_text(&body)));
        bool ok = ask_render(&a, &text, &out, &err);
        if (ok != (cases[i].want != NULL) || (ok && strcmp(buf_text(&out), cases[i].want) != 0))
            fail_msg("%s: '%s'", cases[i].why, ok ? buf_text(&out) : err.text);
        assert_true(ok || strstr(err.text, "'messages'[0]"));
        ask_release(&a);
        buf_release(&body);
        buf_release(&out);
    }
    template_free(plus);
}

static void samples_end_at_the_window_and_at_the_end_tokens(UNUSED void **state)
{
    static const int32_t eos[] = { 40, 41 };
    const struct ask_text text = { .encoder = encoder, .tokenizer = tokenizer, .max_seq_tok = 100, .n_id = 256 };
    struct sampling s;
    struct ask a;
    assert_true(parse(&a, ASK_COMPLETION, "{\"prompt\":\"abc\",\"stop_token_ids\":[50,40]}"));
    assert_true(ask_encode(&a, &text, &err) && ask_sampling(&a, 3, &text, eos, 2, &s, &err));
    assert_int_equal(s.max_new_tok, 16);
    assert_int_equal(s.n_stop_token, 3);
    assert_int_equal(s.stop_token[2], 50);
    assert_true(ask_sampling(&a, 95, &text, eos, 2, &s, &err));
    assert_int_equal(s.max_new_tok, 5);
    ask_release(&a);
    assert_true(parse(&a, ASK_TOKENS, "{\"token_ids\":[65],\"sampling_params\":{\"ignore_eos\":true,\"temperature\":1e-6}}"));
    assert_true(ask_sampling(&a, 1, &text, eos, 2, &s, &err));
    assert_int_equal(s.max_new_tok, 99);
    assert_true(s.ignore_eos && s.n_stop_token == 0 && s.temperature == 0);
    ask_release(&a);
    assert_true(parse(&a, ASK_TOKENS, "{\"token_ids\":[65],\"sampling_params\":{\"ignore_eos\":true,\"min_tokens\":9,\"max_tokens\":9}}"));
    assert_true(ask_sampling(&a, 1, &text, eos, 2, &s, &err));
    assert_true(s.ignore_eos && s.n_stop_token == 2 && s.min_new_tok == 9);    // not drawn, though they would end nothing
    ask_release(&a);
    assert_true(parse(&a, ASK_COMPLETION, "{\"prompt\":\"abc\",\"min_tokens\":17}"));
    assert_false(ask_sampling(&a, 3, &text, eos, 2, &s, &err));    // 16 are the most unless it says more
    assert_true(err.code == ERR_DATA && strstr(err.text, "17") && strstr(err.text, "16"));
    ask_release(&a);
    assert_true(parse(&a, ASK_COMPLETION, "{\"prompt\":\"abc\",\"max_tokens\":98}"));
    assert_false(ask_sampling(&a, 3, &text, eos, 2, &s, &err));
    assert_true(err.code == ERR_CONTEXT && strstr(err.text, "maximum context length is 100 tokens"));
    ask_release(&a);
    assert_true(parse(&a, ASK_COMPLETION, "{\"prompt\":\"abc\",\"max_tokens\":0,\"echo\":true}"));
    assert_true(ask_sampling(&a, 3, &text, eos, 2, &s, &err));
    assert_int_equal(s.max_new_tok, 1);    // drawn and left out
    ask_release(&a);
    assert_true(parse(&a, ASK_COMPLETION, "{\"prompt\":[65,300]}"));
    assert_false(ask_encode(&a, &text, &err));
    assert_non_null(strstr(err.text, "300"));
    ask_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_held_back_while_it_may_become_a_stop_string),
        cmocka_unit_test(the_end_of_a_sample_shows_what_was_held_back),
        cmocka_unit_test(a_stop_string_counts_from_the_fewest_tokens_on),
        cmocka_unit_test(tool_calls_are_found_in_both_forms),
        cmocka_unit_test(a_strict_tool_is_called_with_what_its_schema_allows_or_not_at_all),
        cmocka_unit_test(a_stream_shows_nothing_that_may_be_a_tool_call),
        cmocka_unit_test(a_stream_with_tools_has_the_content_of_the_whole_answer),
        cmocka_unit_test(each_form_of_request_says_the_same_in_its_own_words),
        cmocka_unit_test(a_field_that_is_wrong_is_named),
        cmocka_unit_test(what_changes_nothing_is_taken),
        cmocka_unit_test(a_chat_is_rendered_as_templates_expect),
        cmocka_unit_test(content_is_a_text_whatever_its_message_has),
        cmocka_unit_test(samples_end_at_the_window_and_at_the_end_tokens),
    };
    return cmocka_run_group_tests(tests, text_setup, text_teardown);
}
