/* session_test.c - what a harness's program asks becomes paths of tokens: what was drawn is never tokenised again, a request that does not go
 * on from it is a new path, and every drawn token counts once */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "tests/unit/ascii_tokenizer.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/template/template.h"
#include "workers/worker/session.h"

#define TURN 1    // <|turn|>, which ends a turn here

static struct error err;
static struct tokenizer *tokenizer;
static struct encoder *encoder;
static struct template *plain, *strips;    // strips: leaves the thinking of earlier turns out

static int text_setup(UNUSED void **state)
{
    static const char all[] =
        "{% if tools %}{{ tools|length }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|turn|>{% endfor %}[assistant]";
    static const char cut[] = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('~')[-1] }}<|turn|>{% endfor %}[assistant]";
    tokenizer = ascii_tokenizer_new(true, &err);
    encoder = tokenizer ? encoder_new(tokenizer, false, &err) : NULL;
    plain = template_new(all, strlen(all), "all", &err);
    strips = template_new(cut, strlen(cut), "cut", &err);
    return !encoder || !plain || !strips;
}

static int text_teardown(UNUSED void **state)
{
    template_free(plain);
    template_free(strips);
    encoder_free(encoder);
    tokenizer_free(tokenizer);
    return 0;
}

static struct session_config config_of(const struct template *template)
{
    return (struct session_config){
        .text = { .encoder = encoder, .tokenizer = tokenizer, .template = template, .max_seq_tok = 300, .n_id = 256 },
        .reply = { .model = "m", .tokenizer = tokenizer },
    };
}

/* Ask; NULL: tokens are to be drawn, else the reply. */
static json_t *ask(struct session *s, const struct session_config *c, const char *path, const char *body, struct sampling *sampling)
{
    struct sampling base = SAMPLING_DEFAULT;
    char *text;
    base.temperature = 0.5f;
    sampling_add_stop(&base, TURN);
    json_t *q = json_pack("{s:s, s:s, s:s}", "path", path, "body", body, "ask", "hash");
    assert_true(session_ask(s, c, q, &base, "session-1.0-0", sampling, &text, &err));
    json_decref(q);
    json_t *reply = text ? json_str_read(text, JSON_ALLOW_NUL, NULL) : NULL;
    free(text);
    return reply;
}

static void draws(struct session *s, const struct session_config *c, const char *path, const char *body)
{
    struct sampling sampling;
    json_t *refused = ask(s, c, path, body, &sampling);
    if (refused)
        fail_msg("%s", json_string_value(json_object_get(refused, "body")));
}

/* Draw these ids; the last one ends the reply. Returns what its client gets, for json_decref. */
static json_t *drawn(struct session *s, const struct session_config *c, const char *ids, size_t n, bool is_stop)
{
    bool over = false;
    for (size_t i = 0; i < n && !over; i++)
        over = session_token(
            s,
            &(struct drawn){
                .id = (unsigned char)ids[i], .logp = -0.5f, .version = 3, .is_last = i + 1 == n, .is_stop = is_stop && i + 1 == n },
            3);
    assert_true(over);
    char *text = session_reply(s, c, 3);
    assert_non_null(text);
    json_t *reply = json_str_read(text, JSON_ALLOW_NUL, NULL);
    assert_int_equal(json_integer_value(json_object_get(reply, "status")), 200);
    assert_string_equal(json_string_value(json_object_get(reply, "ask")), "hash");
    json_t *body = json_str_read(json_string_value(json_object_get(reply, "body")), JSON_ALLOW_NUL, NULL);
    json_decref(reply);
    free(text);
    return body;
}

static void draw(struct session *s, const struct session_config *c, const char *ids, bool is_stop)
{
    json_decref(drawn(s, c, ids, strlen(ids), is_stop));
}

/* A path's tokens as text, those that count in capitals; <|turn|> is '|'. */
static void path_is(const struct session *s, int i, const char *want)
{
    char got[512];
    const struct session_path *p = session_path(s, i);
    int64_t first = 0;
    for (int64_t k = 0; k < p->n; k++) {
        got[k] = p->token[k] == TURN ? '|' : p->token[k] > 126 ? '?' : (char)p->token[k];
        if (p->mask[k] && got[k] >= 'a' && got[k] <= 'z')
            got[k] = (char)(got[k] - 'a' + 'A');
        assert_true(p->mask[k] ? p->logp[k] == -0.5f : p->logp[k] == 0);
    }
    got[p->n] = 0;
    assert_string_equal(got, want);
    while (first < p->n && !p->mask[first])
        first++;
    assert_int_equal(p->n_first, first);
}

#define CHAT "/v1/chat/completions"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define SAID(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"

static void a_request_goes_on_where_the_former_one_ended(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "]}");
    draw(s, &c, "abc\x01", true);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "," SAID("abc") "," USER("y") "]}");
    draw(s, &c, "de", false);    // cut: the end of the turn is read, not drawn
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "," SAID("abc") "," USER("y") "," SAID("de") "," USER("z") "]}");
    draw(s, &c, "f\x01", true);
    assert_int_equal(session_n_path(s), 1);
    path_is(s, 0, "[user]x|[assistant]ABC|[user]y|[assistant]DE|[user]z|[assistant]F|");
    const struct session_path *p = session_path(s, 0);
    int n_drawn = 0;
    for (int64_t i = 0; i < p->n; i++)
        n_drawn += p->mask[i];
    assert_int_equal(n_drawn, 4 + 2 + 2);
    session_free(s);
}

static void what_was_drawn_is_never_tokenised_again(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "]}");
    json_t *body = drawn(s, &c,
                         "a\xc3"
                         "b\x01",
                         4, true);    // half a character: the client gets U+FFFD, which is three tokens
    const json_t *message = json_object_get(json_array_get(json_object_get(body, "choices"), 0), "message");
    assert_string_equal(json_string_value(json_object_get(message, "content")), "a\xef\xbf\xbd"
                                                                                "b");
    json_decref(body);
    draws(s, &c, CHAT,
          "{\"messages\":[" USER("x") "," SAID("a\xef\xbf\xbd"
                                               "b") "," USER("y") "]}");
    draw(s, &c, "z", false);
    assert_int_equal(session_n_path(s), 1);
    path_is(s, 0, "[user]x|[assistant]A?B|[user]y|[assistant]Z");
    assert_int_equal(session_path(s, 0)->token[19 + 1], 0xc3);
    session_free(s);
}

static void a_call_of_a_tool_stands_for_the_text_that_was_drawn(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    static const char tools[] = "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]";
    char request[1024];
    snprintf(request, sizeof request, "{%s,\"messages\":[" USER("x") "]}", tools);
    draws(s, &c, CHAT, request);
    static const char call[] = "<tool_call>{\"name\": \"f\",  \"arguments\": {\"n\": 1}}</tool_call>\x01";    // two blanks: no template's
    json_t *body = drawn(s, &c, call, strlen(call), true);
    json_t *message = json_object_get(json_array_get(json_object_get(body, "choices"), 0), "message");
    assert_int_equal(json_array_size(json_object_get(message, "tool_calls")), 1);
    char *said = json_text_dump(message, JSON_COMPACT);
    snprintf(request, sizeof request, "{%s,\"messages\":[" USER("x") ",%s,{\"role\":\"tool\",\"content\":\"1\"}]}", tools, said);
    free(said);
    json_decref(body);
    draws(s, &c, CHAT, request);
    draw(s, &c, "k", false);
    assert_int_equal(session_n_path(s), 1);
    session_free(s);
}

static void a_request_that_begins_otherwise_is_a_new_path(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "]}");
    draw(s, &c, "ab\x01", true);
    assert_int_equal(session_branch(s), 0);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "," SAID("ab") "," USER("y") "]}");
    draw(s, &c, "cd\x01", true);
    draws(s, &c, CHAT, "{\"messages\":[" USER("short") "]}");    // a context that was compacted
    assert_int_equal(session_branch(s), 1);
    draw(s, &c, "ef\x01", true);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "," SAID("ab") "," USER("w") "]}");    // from the first turn on
    draw(s, &c, "gh\x01", true);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "]}");    // asked again: another draw
    draw(s, &c, "ij\x01", true);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "," SAID("abc") "]}");    // a turn that only begins like one of ours
    draw(s, &c, "kl\x01", true);
    assert_int_equal(session_n_path(s), 5);
    path_is(s, 0, "[user]x|[assistant]AB|[user]y|[assistant]CD|");
    path_is(s, 1, "[user]short|[assistant]EF|");
    path_is(s, 2, "[user]x|[assistant]ab|[user]w|[assistant]GH|");
    path_is(s, 3, "[user]x|[assistant]IJ|");
    path_is(s, 4, "[user]x|[assistant]abc|[assistant]KL|");
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "," SAID("ab") "," USER("w") "," SAID("gh") "," USER("v") "]}");
    draw(s, &c, "m", false);
    assert_int_equal(session_n_path(s), 5);    // a later path goes on, too
    path_is(s, 2, "[user]x|[assistant]ab|[user]w|[assistant]GH|[user]v|[assistant]M");
    session_clear(s);
    assert_int_equal(session_n_path(s), 0);
    session_free(s);
}

static void thinking_that_the_template_leaves_out_makes_a_new_path(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(strips);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "]}");
    draw(s, &c, "long~ab\x01", true);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "," SAID("long~ab") "," USER("y") "]}");
    draw(s, &c, "c\x01", true);
    assert_int_equal(session_n_path(s), 2);
    path_is(s, 0, "[user]x|[assistant]LONG~AB|");
    path_is(s, 1, "[user]x|[assistant]ab|[user]y|[assistant]C|");
    session_free(s);
}

static void a_stop_string_cuts_the_text_and_so_begins_a_new_path(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "],\"stop\":[\"bc\"]}");
    bool over = false;
    for (int i = 0; i < 3; i++) {
        assert_false(over);
        over = session_token(s, &(struct drawn){ .id = 'a' + i, .logp = -0.5f, .version = 3 }, 3);
    }
    assert_true(over);    // without the generator's doing
    free(session_reply(s, &c, 3));
    draws(s, &c, CHAT, "{\"messages\":[" USER("x") "," SAID("a") "," USER("y") "]}");
    draw(s, &c, "d\x01", true);
    path_is(s, 0, "[user]x|[assistant]ABC");
    path_is(s, 1, "[user]x|[assistant]a|[user]y|[assistant]D|");
    session_free(s);
}

static void ids_and_texts_go_on_likewise(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    draws(s, &c, "/v1/completions", "{\"prompt\":[120,121]}");
    draw(s, &c, "ab", false);
    draws(s, &c, "/inference/v1/generate", "{\"token_ids\":[120,121,97,98,122]}");
    draw(s, &c, "c", false);
    draws(s, &c, "/v1/completions", "{\"prompt\":\"xy\"}");
    draw(s, &c, "de", false);
    draws(s, &c, "/v1/completions", "{\"prompt\":\"xyde!\"}");
    draw(s, &c, "f", false);
    assert_int_equal(session_n_path(s), 2);
    path_is(s, 0, "xyABzC");
    path_is(s, 1, "xyDE!F");
    session_free(s);
}

static void how_tokens_are_drawn_is_the_runs_to_say(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    struct sampling got;
    assert_null(ask(s, &c, CHAT,
                    "{\"messages\":[" USER("x") "],\"temperature\":0,\"top_p\":0.1,\"seed\":5,\"max_tokens\":7,\"model\":\"gpt-4o\"}",
                    &got));
    assert_true(got.temperature == 0.5f && got.top_p == 1);
    assert_int_equal(got.max_new_tok, 7);
    c.max_turn_tok = 5;
    assert_null(ask(s, &c, CHAT, "{\"messages\":[" USER("x") "]}", &got));
    assert_int_equal(got.max_new_tok, 5);
    c.max_turn_tok = 0;
    assert_null(ask(s, &c, CHAT, "{\"messages\":[" USER("x") "]}", &got));
    assert_int_equal(got.max_new_tok, 300 - 19);    // what the context has room for
    session_free(s);
}

static void what_cannot_be_drawn_is_refused_in_words_and_changes_nothing(UNUSED void **state)
{
    static const struct {
        const char *path, *body, *words;
    } cases[] = {
        { CHAT, "{\"messages\":[" USER("x") "],\"n\":2}", "'n' 1" },
        { CHAT, "{\"messages\":[]}", "'messages' is missing or empty" },
        { CHAT, "[]", "must be a JSON object" },
        { CHAT, "{\"messages\":[" USER("x") "],\"logprobs\":true,\"top_logprobs\":1}", "likeliest" },
        { "/v1/completions", "{\"prompt\":[\"a\",\"b\"]}", "one prompt" },
        { "/v1/completions", "{\"prompt\":\"a\",\"echo\":true}", "none of the prompt" },
        { "/v1/completions", "{\"prompt\":[999]}", "token id 999" },
        { "/generate", "{\"prompt\":\"a\"}", "no such route" },
    };
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    struct sampling sampling;
    char longer[512] = "{\"prompt\":\"";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        json_t *reply = ask(s, &c, cases[i].path, cases[i].body, &sampling);
        assert_non_null(reply);
        assert_int_equal(json_integer_value(json_object_get(reply, "status")), 400);
        assert_non_null(strstr(json_string_value(json_object_get(reply, "body")), cases[i].words));
        json_decref(reply);
    }
    memset(longer + strlen(longer), 'x', 300);
    strcat(longer, "\"}");
    json_t *reply = ask(s, &c, "/v1/completions", longer, &sampling);
    assert_non_null(strstr(json_string_value(json_object_get(reply, "body")), "\"code\":\"context_length_exceeded\""));
    json_decref(reply);
    assert_int_equal(session_n_path(s), 0);
    session_free(s);
}

static void a_session_has_a_bounded_number_of_paths(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    struct sampling sampling;
    char body[64];
    for (int i = 0; i < SESSION_PATHS_MAX; i++) {
        snprintf(body, sizeof body, "{\"prompt\":\"%d!\"}", i);
        draws(s, &c, "/v1/completions", body);
        draw(s, &c, "a", false);
    }
    json_t *reply = ask(s, &c, "/v1/completions", "{\"prompt\":\"another\"}", &sampling);
    assert_non_null(strstr(json_string_value(json_object_get(reply, "body")), "the most there can be"));
    json_decref(reply);
    draws(s, &c, "/v1/completions", "{\"prompt\":\"0!a and on\"}");
    draw(s, &c, "b", false);
    assert_int_equal(session_n_path(s), SESSION_PATHS_MAX);
    session_free(s);
}

/* Thinking, a call, and arguments as an object: what Anthropic's clients send back stands for what was drawn. */
static void a_reply_in_blocks_stands_for_the_text_that_was_drawn(UNUSED void **state)
{
    struct session *s = session_new();
    struct session_config c = config_of(plain);
    static const char tools[] = "\"tools\":[{\"name\":\"f\"}]";
    static const char text[] = "<think>hm</think>b <tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>\x01";
    char request[1024];
    snprintf(request, sizeof request, "{%s,\"messages\":[" USER("x") "]}", tools);
    draws(s, &c, "/v1/messages", request);
    json_t *body = drawn(s, &c, text, sizeof text - 1, true);
    const json_t *content = json_object_get(body, "content");
    assert_int_equal(json_array_size(content), 3);
    json_t *next = json_pack("{s:[o, {s:s, s:O}, {s:s, s:[{s:s, s:O, s:s}]}]}", "messages",
                             json_pack("{s:s, s:s}", "role", "user", "content", "x"), "role", "assistant", "content", content, "role",
                             "user", "content", "type", "tool_result", "tool_use_id", json_object_get(json_array_get(content, 2), "id"),
                             "content", "r");
    json_t *list = json_pack("[{s:s}]", "name", "f");
    assert_true(next && list && json_object_set_new(next, "tools", list) == 0);
    char *again = json_text_dump(next, 0);
    draws(s, &c, "/v1/messages", again);
    draw(s, &c, "z", false);
    assert_int_equal(session_n_path(s), 1);    // it went on
    snprintf(request, sizeof request,
             "{%s,\"messages\":[" USER("x") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}]}," USER("y") "]}",
             tools);
    draws(s, &c, "/v1/messages", request);    // without the thinking: another path
    draw(s, &c, "z", false);
    assert_int_equal(session_n_path(s), 2);
    struct sampling sampling;
    json_t *count = ask(s, &c, "/v1/messages/count_tokens", "{\"messages\":[" USER("x") "]}", &sampling);
    assert_string_equal(json_string_value(json_object_get(count, "body")), "{\"input_tokens\":19}");    // [user]x, its end, [assistant]
    assert_int_equal(session_n_path(s), 2);
    json_decref(count);
    free(again);
    json_decref(next);
    json_decref(body);
    session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_goes_on_where_the_former_one_ended),
        cmocka_unit_test(what_was_drawn_is_never_tokenised_again),
        cmocka_unit_test(a_call_of_a_tool_stands_for_the_text_that_was_drawn),
        cmocka_unit_test(a_request_that_begins_otherwise_is_a_new_path),
        cmocka_unit_test(thinking_that_the_template_leaves_out_makes_a_new_path),
        cmocka_unit_test(a_stop_string_cuts_the_text_and_so_begins_a_new_path),
        cmocka_unit_test(ids_and_texts_go_on_likewise),
        cmocka_unit_test(how_tokens_are_drawn_is_the_runs_to_say),
        cmocka_unit_test(what_cannot_be_drawn_is_refused_in_words_and_changes_nothing),
        cmocka_unit_test(a_reply_in_blocks_stands_for_the_text_that_was_drawn),
        cmocka_unit_test(a_session_has_a_bounded_number_of_paths),
    };
    return cmocka_run_group_tests(tests, text_setup, text_teardown);
}
