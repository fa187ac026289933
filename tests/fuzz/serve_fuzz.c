/* A hostile request for 'rollcall serve', in each of its forms, and a model's text that looks like tool calls. */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "workers/serve/answer.h"
#include "workers/serve/ask.h"
#include "workers/engine/template/tool_calls.h"
#include "workers/engine/template/tool_schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A request that was taken keeps to the bounds, and its samples can be asked for. */
static void ask_try(enum ask_form form, const json_t *body)
{
    static const int32_t eos[] = { 1, 2 };
    const struct ask_text text = { .max_seq_tok = 1000, .n_id = 500 };
    struct error err;
    struct sampling s;
    struct ask a;
    if (!ask_parse(&a, form, body, &err))
        return;
    if (a.n < 1 || a.n_prompt > ASK_PROMPTS_MAX || a.n * a.n_prompt > ASK_SAMPLES_MAX || a.n_stop > ASK_STOPS_MAX || a.n_top > ASK_TOP_MAX
        || (!ask_is_chat(form) && a.n_prompt == 0) || a.n_read < -1 || a.n_read > ASK_TOP_MAX || a.read_from < -1
        || (a.stream && a.n_read >= 0))
        abort();
    if (ask_sampling(&a, 10, &text, eos, 2, &s, &err) && (s.max_new_tok < 1 || s.max_new_tok > 990 || !sampling_check(&s, &err)))
        abort();
    bool only_ids = !ask_is_chat(form);    // there is no encoder here
    for (int64_t i = 0; i < a.n_prompt; i++)
        only_ids = only_ids && !a.prompt[i].text;
    if (only_ids && ask_encode(&a, &text, &err) && a.prompt[0].token.n >= 1000)
        abort();
    ask_release(&a);
}

static void calls_try(const char *text, size_t len)
{
    struct tool_calls c;
    if (!tool_calls_find(&c, text, len, NULL))
        abort();
    if (c.n > TOOL_CALLS_MAX || c.content.len > len || tool_calls_safe(text, len) > len)
        abort();
    for (size_t n = 0; c.n > 0 && n <= len; n += 1 + len / 8) {    // what a stream shows of the first n bytes is content in the end
        size_t shown = tool_calls_safe(text, n);
        while (shown > 0 && isspace((unsigned char)text[shown - 1]))
            shown--;
        if (shown > c.content.len || memcmp(buf_text(&c.content), text, shown) != 0)
            abort();
    }
    tool_calls_release(&c);
}

/* What a stream shows of a growing text is the beginning of what is there in the end, in each block. */
static void answer_try(const char *text, size_t len, bool opens)
{
    const struct answer_config c = { .opens_thinking = opens, .finds_calls = true, .parallel_calls = true };
    struct answer_parts whole, part;
    if (!answer_read(&whole, &c, text, len, len, true))
        abort();
    for (size_t n = 0; n <= len; n += 1 + len / 8) {
        if (!answer_read(&part, &c, text, n, n, false))
            abort();
        if (part.n_thinking > whole.n_thinking || memcmp(part.thinking, whole.thinking, part.n_thinking) != 0
            || part.n_content > whole.n_content || memcmp(part.content, whole.content, part.n_content) != 0)
            abort();
        answer_release(&part);
    }
    answer_release(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *body = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    for (int form = ASK_COMPLETION; body && form < ASK_FORMS; form++)
        ask_try((enum ask_form)form, body);
    calls_try((const char *)data, size);
    answer_try((const char *)data, size, false);
    answer_try((const char *)data, size, true);
    struct error err;
    const json_t *schema = json_object_get(body, "schema");
    if (schema && tool_schema_check(schema, &err))
        (void)tool_schema_fits(schema, json_object_get(body, "value"));
    json_decref(body);
    return 0;
}
