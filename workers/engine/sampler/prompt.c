#include "workers/engine/sampler/prompt.h"
#include <inttypes.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

bool long_prompt_parse(const char *name, enum long_prompt *out, struct error *err)
{
    static const char *const names[] = { [LONG_REFUSE] = "refuse", [LONG_DROP] = "drop", [LONG_CUT_LEFT] = "cut_left" };
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i], name) == 0) {
            *out = (enum long_prompt)i;
            return true;
        }
    return error_set(err, ERR_USAGE, "unknown way with long prompts '%s'; it is refuse, drop or cut_left", name);
}

static bool ids_add(struct token_list *out, const json_t *list, struct error *err)
{
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        int32_t id = (int32_t)json_integer_value(value);
        if (!json_is_integer(value) || json_integer_value(value) != id || id < 0)
            return error_set(err, ERR_DATA, "'prompt_ids'[%zu] is not a token id", i);
        if (!token_list_add(out, &id, 1))
            return error_set(err, ERR_NO_MEMORY, "no memory for a prompt of %zu tokens", n);
    }
    return true;
}

static bool chat_add(struct prompt_maker *p, const json_t *messages, const json_t *tools, struct token_list *out, struct error *err)
{
    struct buf text = BUF_INIT;
    struct chat_options options = { .system = p->system_prompt,
                                    .add_generation_prompt = true,
                                    .tools = json_is_array(tools) ? tools : NULL };
    if (!p->template)
        return error_set(err, ERR_DATA, "'messages' needs a chat template, and the model directory has none");
    bool ok = template_chat(p->template, messages, &options, &text, err)
              && encoder_encode(p->encoder, buf_text(&text), text.len, 0, out, err);
    buf_release(&text);
    return ok;
}

static bool row_add(struct prompt_maker *p, const json_t *row, struct token_list *out, struct error *err)
{
    const json_t *messages = json_object_get(row, "messages"), *prompt = json_object_get(row, "prompt");
    const json_t *ids = json_object_get(row, "prompt_ids");
    if (messages)
        return chat_add(p, messages, json_object_get(row, "tools"), out, err);
    if (json_is_string(prompt))
        return encoder_encode(p->encoder, json_string_value(prompt), json_string_length(prompt), 0, out, err);
    if (prompt)
        return error_set(err, ERR_DATA, "'prompt' must be a string");
    if (json_is_array(ids))
        return ids_add(out, ids, err);
    return error_set(err, ERR_DATA, ids ? "'prompt_ids' must be a list of token ids" : "the field 'messages' or 'prompt' is missing");
}

bool prompt_make(struct prompt_maker *p, const json_t *row, struct token_list *out, bool *dropped, struct error *err)
{
    out->n = 0;
    *dropped = false;
    if (!row_add(p, row, out, err))
        return false;
    if (out->n == 0)
        return error_set(err, ERR_DATA, "the prompt has no token");
    p->longest = out->n > p->longest ? out->n : p->longest;
    p->shortest = p->shortest == 0 || out->n < p->shortest ? out->n : p->shortest;
    if (p->max_tok == 0 || out->n <= p->max_tok)
        return true;
    switch (p->long_prompt) {
    case LONG_REFUSE:
        return error_set(err, ERR_DATA,
                         "the prompt has %" PRId64 " tokens, more than the %" PRId64 " allowed; long prompts can be "
                         "dropped or cut from the left",
                         out->n, p->max_tok);
    case LONG_DROP:
        p->n_dropped++;
        *dropped = true;
        out->n = 0;
        return true;
    case LONG_CUT_LEFT:
        p->n_cut++;
        memmove(out->id, out->id + (out->n - p->max_tok), (size_t)p->max_tok * sizeof *out->id);
        out->n = p->max_tok;
        return true;
    }
    BUG_IF(true, "long_prompt is %d", (int)p->long_prompt);
}

#define TURN_MARK "\x02turn\x03"    // stands for the model's turn in the template's text

bool prompt_turn_add(struct prompt_maker *p, bool chat, const char *role, const char *text, size_t len, const void *last, size_t n_last,
                     struct token_list *out, struct error *err)
{
    if (!chat || !p->template)
        return encoder_encode(p->encoder, text, len, 0, out, err);
    bool ok = false;
    struct buf all = BUF_INIT;
    struct chat_options options = { .add_generation_prompt = true };
    json_t *said = json_stringn(text, len);
    if (!said)
        return error_set(err, ERR_DATA, "what the environment said is not UTF-8");
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:o}]", "role", "user", "content", "?", "role", "assistant", "content",
                                 TURN_MARK, "role", role, "content", said);
    TRY(messages || error_set(err, ERR_NO_MEMORY, "no memory for a message of %zu bytes", len));
    TRY(template_chat(p->template, messages, &options, &all, err));
    const char *mark = strstr(buf_text(&all), TURN_MARK);    // the first: what was said comes after it
    if (!mark) {
        error_set(err, ERR_UNSUPPORTED, "the chat template does not write an assistant's turn");
        goto out;
    }
    const char *from = mark + strlen(TURN_MARK), *end = all.data + all.len;
    if (n_last > 0 && (size_t)(end - from) >= n_last && memcmp(from, last, n_last) == 0)
        from += n_last;
    TRY(encoder_encode(p->encoder, from, (size_t)(end - from), 0, out, err));
    ok = true;
out:
    json_decref(messages);
    buf_release(&all);
    return ok;
}
