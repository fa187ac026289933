/* dialect_test.c - Anthropic's messages and OpenAI's responses are read as the chat that they ask for, and answered in blocks, streamed as whole */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "tests/unit/ascii_tokenizer.h"
#include "workers/serve/answer.h"
#include "workers/serve/ask.h"
#include "workers/serve/dialect.h"
#include "workers/serve/reply.h"
#include "workers/serve/serve_job.h"

static struct error err;
static struct tokenizer *tokenizer;

static int text_setup(UNUSED void **state)
{
    tokenizer = ascii_tokenizer_new(true, &err);
    return !tokenizer;
}

static int text_teardown(UNUSED void **state)
{
    tokenizer_free(tokenizer);
    return 0;
}

/* ---- requests */
#define USER "{\"role\":\"user\",\"content\":\"a\"}"

static void a_request_is_the_chat_that_it_asks_for(UNUSED void **state)
{
    // clang-format off
    static const struct { enum ask_form form; const char *body, *key, *want, *why; } cases[] = {
        { ASK_MESSAGES, "{\"messages\":[" USER "]}", "messages", "[" USER "]", "a text" },
        { ASK_MESSAGES, "{\"system\":[{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"text\",\"text\":\"t\"}],\"messages\":[]}", "messages",
          "[{\"role\":\"system\",\"content\":\"s\\nt\"}]", "a system prompt in parts" },
        { ASK_MESSAGES, "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},"
          "{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{\"x\":1}}]},{\"role\":\"user\",\"content\":"
          "[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}]},{\"type\":\"text\",\"text\":\"go on\"}]}]}",
          "messages", "[{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
          "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"},"
          "{\"role\":\"user\",\"content\":\"go on\"}]", "thinking, a call, and its result before what the user says" },
        { ASK_MESSAGES, "{\"messages\":[],\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"}}]}", "tools",
          "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}}]", "tools" },
        { ASK_MESSAGES, "{\"messages\":[],\"tool_choice\":{\"type\":\"none\"}}", "tool_choice", "\"none\"", "no tool" },
        { ASK_MESSAGES, "{\"messages\":[],\"tool_choice\":{\"type\":\"any\"}}", "tool_choice", "\"required\"", "some tool" },
        { ASK_MESSAGES, "{\"messages\":[],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}}", "tool_choice",
          "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "this tool" },
        { ASK_MESSAGES, "{\"messages\":[],\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}}", "parallel_tool_calls", "false", "one call" },
        { ASK_MESSAGES, "{\"messages\":[],\"stop_sequences\":[\"x\"]}", "stop", "[\"x\"]", "stop strings" },
        { ASK_MESSAGES, "{\"messages\":[],\"thinking\":{\"type\":\"disabled\"}}", "chat_template_kwargs", "{\"enable_thinking\":false}", "no thinking" },
        { ASK_RESPONSES, "{\"input\":\"a\"}", "messages", "[" USER "]", "a text" },
        { ASK_RESPONSES, "{\"instructions\":\"s\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]}]}", "messages",
          "[{\"role\":\"system\",\"content\":\"s\"}," USER "]", "instructions" },
        { ASK_RESPONSES, "{\"input\":[" USER ",{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]},"
          "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"b\"}]},{\"type\":\"function_call\",\"call_id\":\"1\","
          "\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"r\"}]}", "messages",
          "[" USER ",{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
          "{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]", "a turn's items are one message" },
        { ASK_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{},\"strict\":true}]}", "tools",
          "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{},\"strict\":true}}]", "tools" },
        { ASK_RESPONSES, "{\"input\":\"a\",\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}", "tool_choice",
          "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "this tool" },
        { ASK_RESPONSES, "{\"input\":\"a\",\"max_output_tokens\":7}", "max_tokens", "7", "the most tokens" },
        { ASK_RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":\"object\"}}}}", "response_format",
          "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\",\"schema\":{\"type\":\"object\"}}}", "a schema" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_t *body = json_str_read(cases[i].body, 0, NULL), *want = json_str_read(cases[i].want, JSON_DECODE_ANY, NULL);
        assert_true(body && want);
        json_t *before = json_deep_copy(body);
        json_t *chat = cases[i].form == ASK_MESSAGES ? dialect_of_messages(body, &err) : dialect_of_responses(body, &err);
        if (!chat)
            fail_msg("%s: %s", cases[i].why, err.text);
        if (!json_equal(json_object_get(chat, cases[i].key), want)) {
            char *got = json_text_dump(json_object_get(chat, cases[i].key), JSON_ENCODE_ANY);
            fail_msg("%s: '%s' is %s", cases[i].why, cases[i].key, got);
        }
        assert_true(json_equal(body, before));    // it was borrowed
        json_decref(before);
        json_decref(chat);
        json_decref(body);
        json_decref(want);
    }
}

static void what_has_no_meaning_in_a_chat_is_refused_by_name(UNUSED void **state)
{
    // clang-format off
    static const struct { enum ask_form form; const char *body, *names; } cases[] = {
        { ASK_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{}}]}]}", "'image'" },
        { ASK_MESSAGES, "{\"messages\":[{\"role\":\"robot\",\"content\":\"a\"}]}", "role" },
        { ASK_MESSAGES, "{\"messages\":5}", "'messages'" },
        { ASK_MESSAGES, "{\"messages\":[" USER "],\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]}", "web_search_20250305" },
        { ASK_MESSAGES, "{\"messages\":[" USER "],\"mcp_servers\":[{}]}", "'mcp_servers'" },
        { ASK_MESSAGES, "{\"messages\":[" USER "],\"tool_choice\":{\"type\":\"tool\"}}", "'tool_choice'" },
        { ASK_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"content\":\"a\"}]}]}", "id" },
        { ASK_MESSAGES, "{\"messages\":[" USER "],\"n\":2}", "'n'" },
        { ASK_RESPONSES, "{}", "'input'" },
        { ASK_RESPONSES, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"1\"}]}", "'item_reference'" },
        { ASK_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "'input_image'" },
        { ASK_RESPONSES, "{\"input\":\"a\",\"previous_response_id\":\"r\"}", "'previous_response_id'" },
        { ASK_RESPONSES, "{\"input\":\"a\",\"background\":true}", "'background'" },
        { ASK_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"file_search\"}]}", "'file_search'" },
        { ASK_RESPONSES, "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\"}]}", "'arguments'" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct ask a;
        json_t *body = json_str_read(cases[i].body, 0, NULL);
        assert_non_null(body);
        if (ask_parse(&a, cases[i].form, body, &err))
            fail_msg("'%s' was taken", cases[i].body);
        if (err.code != ERR_DATA || !strstr(err.text, cases[i].names))
            fail_msg("'%s': %s", cases[i].body, err.text);
        json_decref(body);
    }
}

/* ---- parts of an answer */
static void thinking_is_told_from_what_is_said(UNUSED void **state)
{
    // clang-format off
    static const struct { const char *text, *thinking, *content; bool opens, ended, thought; const char *why; } cases[] = {
        { "a", "", "a", false, true, true, "no thinking" },
        { "<think>\nhm\n</think>\n\na", "hm", "a", false, true, true, "both tags" },
        { "hm\n</think>\n\na", "hm", "a", true, true, true, "the prompt had the first tag" },
        { "hm", "hm", "", true, true, true, "it thinks to the end" },
        { "<thi", "", "", false, false, false, "a tag that is not complete" },
        { "<thi", "", "<thi", false, true, true, "... and never will be" },
        { "<think>hm</th", "hm", "", false, false, false, "the last tag may be coming" },
        { "<think>hm</th", "hm</th", "", false, true, true, "... or not" },
        { "<think>hm \n", "hm", "", false, false, false, "blanks before the last tag are left out" },
        { "<think></think>a", "", "a", false, true, true, "an empty thought" },
        { "a <think>b</think>", "", "a <think>b</think>", false, true, true, "a tag in the middle is text" },
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct answer_parts a;
        const struct answer_config c = { .opens_thinking = cases[i].opens };
        size_t len = strlen(cases[i].text);
        assert_true(answer_read(&a, &c, cases[i].text, len, len, cases[i].ended));
        if (a.n_thinking != strlen(cases[i].thinking) || memcmp(a.thinking, cases[i].thinking, a.n_thinking) != 0
            || a.n_content != strlen(cases[i].content) || memcmp(a.content, cases[i].content, a.n_content) != 0
            || a.thought != cases[i].thought)
            fail_msg("%s: thinking '%.*s', content '%.*s', over %d", cases[i].why, (int)a.n_thinking, a.thinking, (int)a.n_content,
                     a.content, a.thought);
        answer_release(&a);
    }
    assert_true(answer_opens_thinking("x<think>\n", 9));
    assert_false(answer_opens_thinking("<think>x", 8));
}

/* ---- answers */
/* The deltas of a stream by block, "thinking:...;text:...;call:f({...});", and of its whole answer the same. */
static void deltas_add(struct buf *out, const struct buf *stream, bool messages)
{
    int at = -1;
    for (const char *s = buf_text(stream), *end; (end = strstr(s, "\n\n")); s = end + 2) {
        const char *data = strstr(s, "data: ");
        assert_true(data && data < end);
        json_t *o = json_text_read(data + 6, (size_t)(end - data) - 6, 0, NULL);
        assert_non_null(o);
        const char *type = json_string_value(json_object_get(o, "type"));
        const json_t *delta = json_object_get(o, "delta"), *index = json_object_get(o, messages ? "index" : "output_index");
        assert_true(type && strncmp(s, "event: ", 7) == 0 && strncmp(s + 7, type, strlen(type)) == 0);
        if (strcmp(type, messages ? "content_block_start" : "response.output_item.added") == 0) {
            const json_t *block = json_object_get(o, messages ? "content_block" : "item");
            const char *name = json_string_value(json_object_get(block, "name"));
            assert_int_equal(json_integer_value(index), ++at);
            buf_fmt(out, ";%s%s:", json_string_value(json_object_get(block, "type")), name ? name : "");
        }
        if (delta && index) {
            static const char *const keys[] = { "text", "thinking", "partial_json" };
            assert_int_equal(json_integer_value(index), at);
            if (!messages)
                buf_str(out, json_string_value(delta));
            for (size_t k = 0; messages && k < ARRAY_SIZE(keys); k++)
                if (json_object_get(delta, keys[k]))
                    buf_str(out, json_string_value(json_object_get(delta, keys[k])));
        }
        json_decref(o);
    }
}

static void whole_add(struct buf *out, const json_t *o, bool messages)
{
    const json_t *list = json_object_get(o, messages ? "content" : "output");
    for (size_t i = 0; i < json_array_size(list); i++) {
        static const char *const keys[] = { "thinking", "text", "arguments" };
        const json_t *block = json_array_get(list, i), *part = messages ? block : json_array_get(json_object_get(block, "content"), 0);
        const char *name = json_string_value(json_object_get(block, "name"));
        buf_fmt(out, ";%s%s:", json_string_value(json_object_get(block, "type")), name ? name : "");
        for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
            const json_t *v = json_object_get(part, keys[k]) ? json_object_get(part, keys[k]) : json_object_get(block, keys[k]);
            buf_str(out, v ? json_string_value(v) : "");
        }
        if (json_object_get(block, "input")) {
            char *input = json_text_dump(json_object_get(block, "input"), 0);
            buf_str(out, input);
            free(input);
        }
    }
}

static void a_stream_of_blocks_says_what_the_whole_answer_says(UNUSED void **state)
{
    // '|': where the stream is looked at
#define CALL "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>"
    // clang-format off
    static const struct { const char *text; enum choice_end end; const char *blocks[2], *stop[2], *why; } cases[] = {
        { "he|llo", CHOICE_STOP, { ";text:hello", ";message:hello" }, { "end_turn", "completed" }, "a text" },
        { "", CHOICE_STOP, { ";text:", ";message:" }, { "end_turn", "completed" }, "nothing" },
        { "|a", CHOICE_LENGTH, { ";text:a", ";message:a" }, { "max_tokens", "incomplete" }, "cut" },
        { "<th|ink>\nhm |hm\n</thi|nk>\n\na |b", CHOICE_STOP, { ";thinking:hm hm;text:a b", ";reasoning:hm hm;message:a b" },
          { "end_turn", "completed" }, "thinking" },
        { "<think>h|m</think>a |<tool_c|all>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>" CALL, CHOICE_STOP,
          { ";thinking:hm;text:a;tool_usef:{\"x\": 1};tool_usef:{\"x\": 1}",
            ";reasoning:hm;message:a;function_callf:{\"x\": 1};function_callf:{\"x\": 1}" }, { "tool_use", "completed" }, "calls" },
        { CALL, CHOICE_STOP, { ";tool_usef:{\"x\": 1}", ";function_callf:{\"x\": 1}" }, { "tool_use", "completed" }, "a call alone" },
    };
    // clang-format on
#undef CALL
    const struct reply_context x = { .model = "m", .tokenizer = tokenizer };
    for (size_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
        bool messages = i % 2 == 0, stopped;
        size_t n = i / 2;
        struct buf stream = BUF_INIT, whole = BUF_INIT, got[2] = { BUF_INIT, BUF_INIT };
        struct ask a;
        json_t *body = json_str_read(
            messages ? "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\"}],\"stream\":true}"
                     : "{\"input\":\"q\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"stream\":true}",
            0, NULL);
        if (!ask_parse(&a, messages ? ASK_MESSAGES : ASK_RESPONSES, body, &err))
            fail_msg("%s", err.text);
        json_decref(body);
        a.n_prompt = 1;    // as ask_encode makes it
        assert_non_null(a.prompt = calloc(1, sizeof *a.prompt));
        struct serve_job *j = serve_job_new(JOB_GENERATE, &err);
        assert_true(j && serve_job_ask(j, &a, tokenizer, &err));
        for (const char *p = cases[n].text; *p; p++)
            if (*p == '|')
                assert_false(reply_stream(&stream, &x, j));
            else
                assert_true(choice_add(j, &j->choice[0], *p, -1, 0, &stopped));
        assert_true(stop_text_end(&j->choice[0].text));
        j->choice[0].end = cases[n].end;
        j->http.done = true;
        assert_true(reply_stream(&stream, &x, j));
        reply_print(&whole, &x, j);
        json_t *o = json_text_read(buf_text(&whole), whole.len, 0, NULL);
        assert_non_null(o);
        deltas_add(&got[0], &stream, messages);
        whole_add(&got[1], o, messages);
        for (int k = 0; k < 2; k++)
            if (strcmp(buf_text(&got[k]), cases[n].blocks[!messages]) != 0)
                fail_msg("%s, %s: '%s'", cases[n].why, k ? "whole" : "streamed", buf_text(&got[k]));
        assert_string_equal(json_string_value(json_object_get(o, messages ? "stop_reason" : "status")), cases[n].stop[!messages]);
        assert_non_null(strstr(buf_text(&stream), messages                      ? "event: message_stop"
                                                  : cases[n].end == CHOICE_STOP ? "event: response.completed"
                                                                                : "event: response.incomplete"));
        json_decref(o);
        serve_job_drop(j);
        buf_release(&stream);
        buf_release(&whole);
        buf_release(&got[0]);
        buf_release(&got[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_the_chat_that_it_asks_for),
        cmocka_unit_test(what_has_no_meaning_in_a_chat_is_refused_by_name),
        cmocka_unit_test(thinking_is_told_from_what_is_said),
        cmocka_unit_test(a_stream_of_blocks_says_what_the_whole_answer_says),
    };
    return cmocka_run_group_tests(tests, text_setup, text_teardown);
}
