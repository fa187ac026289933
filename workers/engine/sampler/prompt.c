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

static bool chat_add(struct prompt_maker *p, const json_t *messages, struct token_list *out, struct error *err)
{
    struct buf text = BUF_INIT;
    struct chat_options options = { .system = p->system_prompt, .add_generation_prompt = true };
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
        return chat_add(p, messages, out, err);
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
