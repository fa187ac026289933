#include "workers/engine/sampler/prompt.h"
#include <inttypes.h>
#include <stdint.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/json_text.h"
#include "protocol/base/utf8.h"
#include "protocol/settings/run_config.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/template/messages.h"
#include "workers/engine/template/template.h"
#include "workers/engine/text/tokenizer.h"

#define SPECIAL_BYTES 64    // longest special token that a rendered prompt is known by
#define SYSTEM_SHOWN 100    // bytes of a system prompt that are shown

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

const char *prompt_system(const char *given, const char *reward_type)
{
    if (given && strcmp(given, "none") == 0)
        return NULL;
    return given && given[0] ? given : reward_system_prompt(reward_type);
}

struct prompt_maker prompt_maker_of(const struct run_config *c, struct encoder *encoder, const struct template *template)
{
    return (struct prompt_maker){ .encoder = encoder,
                                  .template = template,
                                  .max_tok = c->max_prompt_tokens,
                                  .system_prompt = prompt_system(c->system_prompt, c->reward_type),
                                  .system_is_rewards = !c->system_prompt[0],
                                  .long_prompt = strcmp(c->long_prompt, "drop") == 0 ? LONG_DROP : LONG_CUT_LEFT };
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

/* The content of messages[i], which is a text; NULL: it is something else. */
static const json_t *content_text(const json_t *messages, size_t i)
{
    const json_t *v = json_object_get(json_array_get(messages, i), "content");
    return json_is_string(v) ? v : NULL;
}

static bool role_is(const json_t *messages, size_t i, const char *role)
{
    const char *its = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return its && strcmp(its, role) == 0;
}

static bool plain_add(struct prompt_maker *p, const json_t *messages, const json_t *tools, struct token_list *out, struct error *err)
{
    struct buf text = BUF_INIT;
    if (json_array_size(tools) > 0)
        return error_set(err, ERR_DATA, "'tools' needs a chat template, and the model directory has none");
    if (!plain_chat(messages, json_array_size(messages), &text))
        return error_set(err, ERR_DATA,
                         "'messages' is more than one question, which needs a chat template, and the model directory has none");
    p->n_plain++;
    bool ok = text.failed ? error_set(err, ERR_NO_MEMORY, "no memory for a prompt")
                          : encoder_encode(p->encoder, buf_text(&text), text.len, ENCODE_ADD_BEGIN, out, err);
    buf_release(&text);
    return ok;
}

static size_t trimmed(const char *s, size_t len)
{
    while (len > 0 && strchr(" \t\r\n", s[len - 1]))
        len--;
    return len;
}

/* The one message's text as the template has rendered it. */
struct shown {
    const json_t *content;     // NULL: there are several messages, or it is not text
    const char *s;             // its text
    size_t len;                // ... without blanks at its end
    const char *at, *after;    // where it begins and ends in the prompt
    size_t n_after;            // bytes of what the template writes after it, from the first that is no blank to the last
};

static struct shown shown_find(const json_t *messages, const struct buf *prompt)
{
    struct shown w = { .content = json_array_size(messages) == 1 ? content_text(messages, 0) : NULL };
    w.s = w.content ? json_string_value(w.content) : "";
    w.len = w.content ? trimmed(w.s, json_string_length(w.content)) : 0;
    const char *text = prompt->data;
    for (const char *p = text; w.len > 0 && (p = memmem(p, (size_t)(text + prompt->len - p), w.s, w.len)); p++)
        w.at = p;
    if (!w.at)
        return (struct shown){ .content = NULL };
    w.after = w.at + w.len;
    w.n_after = trimmed(w.after, (size_t)(text + prompt->len - w.after));
    for (; w.n_after > 0 && strchr(" \t\r\n", *w.after); w.n_after--)
        w.after++;
    return w;
}

/* Does it begin with a special token that the template writes before a message? No question does. */
static bool begins_as_rendered(struct prompt_maker *p, const struct shown *w, const char *prompt, bool *yes, struct error *err)
{
    struct token_list own = { .n = 0 }, plain = { .n = 0 }, before = { .n = 0 };
    size_t len = MIN(w->len, (size_t)SPECIAL_BYTES);
    while (len > 0 && len < w->len && (w->s[len] & 0xc0) == 0x80)    // no character is cut
        len--;
    *yes = false;
    bool ok = encoder_encode(p->encoder, w->s, len, 0, &own, err)
              && encoder_encode(p->encoder, w->s, len, ENCODE_SPECIAL_AS_TEXT, &plain, err);
    if (ok && own.n > 0 && (plain.n == 0 || own.id[0] != plain.id[0]))
        ok = encoder_encode(p->encoder, prompt, (size_t)(w->at - prompt), 0, &before, err);
    for (int64_t i = 0; ok && i < before.n; i++)
        *yes = *yes || before.id[i] == own.id[0];
    token_list_release(&own);
    token_list_release(&plain);
    token_list_release(&before);
    return ok;
}

/* If the one message's text is itself a prompt that this template has rendered, make text that prompt: it begins as one, or ends with what the
 * template writes after it. What is missing at its end, such as the assistant's header, is added. */
static bool rendered_once(struct prompt_maker *p, const json_t *messages, struct buf *text, bool *yes, struct error *err)
{
    struct shown w = shown_find(messages, text);
    *yes = w.content && w.n_after > 0 && w.len >= w.n_after && memcmp(w.s + w.len - w.n_after, w.after, w.n_after) == 0;
    if (!w.content || (!*yes && !begins_as_rendered(p, &w, text->data, yes, err)))
        return !w.content;
    if (!*yes)
        return true;
    const char *end = text->data + text->len;
    size_t n = json_string_length(w.content), has = MIN(n, (size_t)(end - w.after));
    while (has > 0 && memcmp(w.s + n - has, w.after, has) != 0)
        has--;
    struct buf own = BUF_INIT;
    buf_add(&own, w.s, n);
    if (has > 0)
        buf_add(&own, w.after + has, (size_t)(end - w.after) - has);
    buf_release(text);
    *text = own;
    return !own.failed || error_set(err, ERR_NO_MEMORY, "no memory for a prompt");
}

/* Does the template show tools? Asked once, of the first conversation that has some; what it renders without them must differ. */
static void tools_look(struct prompt_maker *p, const json_t *messages, const struct chat_options *with, const struct buf *text)
{
    struct chat_options without = *with;
    struct buf plain = BUF_INIT;
    struct error ignored;
    without.tools = NULL;
    if (json_array_size(with->tools) == 0 || p->n_tools++ > 0)
        return;
    p->tools_unseen = template_chat(p->template, messages, &without, &plain, &ignored) && plain.len == text->len
                      && memcmp(buf_text(&plain), buf_text(text), text->len) == 0;
    buf_release(&plain);
}

static bool chat_add(struct prompt_maker *p, const json_t *messages, const json_t *tools, struct token_list *out, struct error *err)
{
    struct buf text = BUF_INIT;
    struct chat_options options = { .system = p->system_prompt, .add_generation_prompt = true, .tools = tools };
    json_t *rows = json_is_object(messages) ? json_pack("[O]", messages) : json_incref((json_t *)(uintptr_t)messages);
    json_t *list = rows ? messages_flatten(rows, err) : NULL;
    bool ok = list || (!rows && error_set(err, ERR_NO_MEMORY, "no memory for a conversation"));
    json_decref(rows);
    if (ok && !p->template) {
        ok = plain_add(p, list, tools, out, err);
    } else if (ok && (ok = template_chat(p->template, list, &options, &text, err))) {
        tools_look(p, list, &options, &text);
        bool own;
        ok = rendered_once(p, list, &text, &own, err);
        p->n_rendered += own;
        p->n_system += p->system_prompt && !own && !role_is(list, 0, "system");
        ok = ok && encoder_encode(p->encoder, buf_text(&text), text.len, 0, out, err);
    }
    json_decref(list);
    buf_release(&text);
    return ok;
}

static bool text_add(struct prompt_maker *p, const json_t *prompt, const json_t *tools, struct token_list *out, struct error *err)
{
    if (json_array_size(tools) > 0)
        return error_set(err, ERR_DATA,
                         "'tools' go through the chat template, but 'prompt' is a text, which is continued as it is; make it a message");
    p->n_text++;
    return encoder_encode(p->encoder, json_string_value(prompt), json_string_length(prompt), p->template ? 0 : ENCODE_ADD_BEGIN, out, err);
}

static bool row_add(struct prompt_maker *p, const json_t *row, struct token_list *out, struct error *err)
{
    const json_t *messages = json_object_get(row, "messages"), *prompt = json_object_get(row, "prompt");
    const json_t *ids = json_object_get(row, "prompt_ids"), *tools = json_object_get(row, "tools");
    if (messages)
        return chat_add(p, messages, tools, out, err);
    if (json_is_string(prompt))
        return text_add(p, prompt, tools, out, err);
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

void prompt_none_fits(const struct prompt_maker *p, const char *name, const json_t *row, struct error *err)
{
    struct prompt_maker with = *p, without = *p;
    struct token_list ids = { 0 };
    struct error none;
    bool dropped;
    with.shortest = without.shortest = 0;
    with.max_tok = without.max_tok = 0;    // no limit: nothing is dropped
    without.system_prompt = NULL;
    bool known = row && prompt_make(&with, row, &ids, &dropped, &none) && prompt_make(&without, row, &ids, &dropped, &none);
    int64_t system = known ? MAX(with.shortest - without.shortest, (int64_t)0) : 0;
    token_list_release(&ids);
    char share[96] = "";
    if (system > 0)
        snprintf(share, sizeof share, ", %" PRId64 " of them the system prompt%s", system,
                 p->system_is_rewards ? " of the reward_type" : "");
    error_set(err, ERR_DATA,
              "no prompt of '%s' fits into max_prompt_tokens %" PRId64 ": the shortest has %" PRId64 " tokens%s; raise max_prompt_tokens%s",
              name, p->max_tok, p->shortest, share, system > 0 ? " or give a shorter system_prompt ('none' for none)" : "");
}

void prompt_maker_system(const struct prompt_maker *p, struct buf *out)
{
    size_t len = p->system_prompt ? strlen(p->system_prompt) : 0;
    if (p->n_system == 0) {
        buf_str(out, "none is put before the prompts\n");
        return;
    }
    json_text_print(out, p->system_prompt, utf8_cut(p->system_prompt, len, SYSTEM_SHOWN), JSON_TEXT_UTF8);
    buf_fmt(out, "%s%s\n", len > SYSTEM_SHOWN ? " ..." : "",
            p->system_is_rewards ? ", which is the reward_type's own; system_prompt 'none' leaves it out" : "");
}

void prompt_maker_notes(const struct prompt_maker *p, struct buf *out)
{
    const char *unused = p->system_prompt ? "; the system prompt is not put before them" : "";
    if (p->n_plain > 0)
        buf_fmt(out, "note: the model has no chat template, and the texts of messages are continued as they are%s\n", unused);
    if (p->n_text > 0)
        buf_fmt(out, "note: %" PRId64 " of the prompts are texts in 'prompt', which are continued as they are%s%s\n", p->n_text,
                p->template ? ", without the chat template" : "", unused);
    if (p->n_text > 0 && p->template)
        buf_str(out, "note: prompt_template '{prompt}' makes such texts a user's messages\n");
    if (p->tools_unseen)
        buf_fmt(out, "note: the chat template does not show the tools of %" PRId64 " prompts; the model does not know them\n", p->n_tools);
    if (p->n_rendered > 0)
        buf_fmt(out, "note: %" PRId64 " of the prompts are already rendered by the chat template, and are continued as they are\n",
                p->n_rendered);
}

#define TURN_MARK "\x02turn\x03"    // stands for the model's turn in the template's text

bool prompt_answer_end(struct prompt_maker *p, struct token_list *out, struct error *err)
{
    struct buf all = BUF_INIT;
    struct chat_options options = { 0 };
    struct error refused;
    if (!p->template)
        return true;
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "?", "role", "assistant", "content", TURN_MARK);
    bool ok = messages || error_set(err, ERR_NO_MEMORY, "no memory for a message");
    const char *mark = ok && template_chat(p->template, messages, &options, &all, &refused) ? strstr(buf_text(&all), TURN_MARK) : NULL;
    const char *from = mark ? mark + strlen(TURN_MARK) : NULL;
    ok = ok && (!from || encoder_encode(p->encoder, from, (size_t)(all.data + all.len - from), 0, out, err));
    json_decref(messages);
    buf_release(&all);
    return ok;
}

bool prompt_turn_add(struct prompt_maker *p, bool chat, const json_t *tools, const char *role, const char *text, size_t len,
                     const void *last, size_t n_last, struct token_list *out, struct error *err)
{
    if (!chat || !p->template)
        return encoder_encode(p->encoder, text, len, 0, out, err);
    bool ok = false;
    struct buf all = BUF_INIT;
    struct chat_options options = { .add_generation_prompt = true, .tools = tools };
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
