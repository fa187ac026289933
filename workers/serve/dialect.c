#include "workers/serve/dialect.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/json_text.h"

/* jansson's reference counts are no part of what a const value says. */
static json_t *shared(const json_t *v)
{
    return json_incref((json_t *)(uintptr_t)v);
}

static bool no_memory(struct error *err)
{
    return error_set(err, ERR_NO_MEMORY, "no memory for a request");
}

static bool is_text(const json_t *v)
{
    return json_is_string(v) && !json_odd_text(v);
}

static bool is_type(const json_t *v, const char *type)
{
    const char *word = json_string_value(json_object_get(v, "type"));
    return word && strcmp(word, type) == 0;
}

/* Put value, which is taken, under key. False: no memory. */
static bool put(json_t *o, const char *key, json_t *value, struct error *err)
{
    return (value && json_object_set_new(o, key, value) == 0) || no_memory(err);
}

/* Move o's field `from` to `to`, where it has one. */
static bool rename_key(json_t *o, const char *from, const char *to, struct error *err)
{
    json_t *v = json_object_get(o, from);
    if (!v)
        return true;
    bool ok = put(o, to, json_incref(v), err);
    json_object_del(o, from);
    return ok;
}

static json_t *text_json(const struct buf *b)
{
    return b->failed ? NULL : json_stringn(buf_text(b), b->len);
}

/* Append a text, or the texts of a list of parts with a line's end between them. where: the field, for messages. */
static bool texts_add(struct buf *out, const json_t *v, const char *where, struct error *err)
{
    if (is_text(v))
        return buf_add(out, json_string_value(v), json_string_length(v)) || no_memory(err);
    if (v && !json_is_null(v) && !json_is_array(v))
        return error_set(err, ERR_DATA, "'%s' must be a text or a list of text parts", where);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *part = json_array_get(v, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!is_text(text))
            return error_set(err, ERR_DATA, "'%s' has a part of type '%.60s'; only text is supported", where, type ? type : "");
        if ((i > 0 && !buf_char(out, '\n')) || !buf_add(out, json_string_value(text), json_string_length(text)))
            return no_memory(err);
    }
    return true;
}

/* ---- the chat's messages ---- */

/* Append {"role", "content"}; content is taken. */
static bool message_add(json_t *list, const char *role, json_t *content, struct error *err)
{
    json_t *m = content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    return (m && json_array_append_new(list, m) == 0) || no_memory(err);
}

static bool text_message_add(json_t *list, const char *role, const json_t *content, const char *where, struct error *err)
{
    struct buf text = BUF_INIT;
    bool ok = texts_add(&text, content, where, err) && message_add(list, role, text_json(&text), err);
    buf_release(&text);
    return ok;
}

/* What the model said in one turn, in parts. */
struct turn {
    struct buf text, thinking;
    json_t *calls;    // owned; NULL: none
    bool any;
};

static bool turn_call(struct turn *t, const json_t *id, const json_t *name, json_t *arguments, const char *where, struct error *err)
{
    if (!is_text(name) || !is_text(id)) {
        json_decref(arguments);
        return error_set(err, ERR_DATA, "'%s' has a call without an id or a name", where);
    }
    if (!t->calls && !(t->calls = json_array())) {
        json_decref(arguments);
        return no_memory(err);
    }
    json_t *call = arguments ? json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name", name, "arguments",
                                         arguments)
                             : NULL;
    t->any = true;
    return (call && json_array_append_new(t->calls, call) == 0) || no_memory(err);
}

/* Append the turn as an assistant's message, if there is one, and begin another. */
static bool turn_end(struct turn *t, json_t *list, struct error *err)
{
    bool ok = true;
    if (t->any) {
        json_t *m = json_pack("{s:s, s:o}", "role", "assistant", "content", text_json(&t->text));
        ok = m || no_memory(err);
        ok = ok && (t->thinking.len == 0 || put(m, "reasoning_content", text_json(&t->thinking), err));
        ok = ok && (!t->calls || put(m, "tool_calls", json_incref(t->calls), err));
        ok = ok && (json_array_append(list, m) == 0 || no_memory(err));
        json_decref(m);
    }
    buf_release(&t->text);
    buf_release(&t->thinking);
    json_decref(t->calls);
    *t = (struct turn){ .text = BUF_INIT, .thinking = BUF_INIT };
    return ok;
}

static bool tool_message_add(json_t *list, const json_t *id, const json_t *content, const char *where, struct error *err)
{
    struct buf text = BUF_INIT;
    json_t *m = NULL;
    bool ok = is_text(id) || error_set(err, ERR_DATA, "'%s' has a tool's result without the id of its call", where);
    ok = ok && texts_add(&text, content, where, err);
    if (ok) {
        m = json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text_json(&text));
        ok = (m && json_array_append(list, m) == 0) || no_memory(err);
    }
    json_decref(m);
    buf_release(&text);
    return ok;
}

/* ---- tools ---- */

/* {"type": "function", "function": {"name", "description", "parameters", "strict"}} of a tool whose schema is under schema_key. */
static json_t *tool_make(const json_t *tool, const char *schema_key, struct error *err)
{
    const json_t *name = json_object_get(tool, "name"), *about = json_object_get(tool, "description");
    const json_t *schema = json_object_get(tool, schema_key), *strict = json_object_get(tool, "strict");
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!is_text(name) || (type && strcmp(type, "function") != 0 && strcmp(type, "custom") != 0)) {
        error_set(err, ERR_DATA, "'tools' has one of type '%.60s'; only functions are supported, which the client runs", type ? type : "");
        return NULL;
    }
    json_t *function = json_object(), *out = NULL;
    bool ok = function && json_object_set(function, "name", (json_t *)(uintptr_t)name) == 0
              && (!is_text(about) || json_object_set(function, "description", (json_t *)(uintptr_t)about) == 0)
              && (!json_is_object(schema) || json_object_set(function, "parameters", (json_t *)(uintptr_t)schema) == 0)
              && (!json_is_true(strict) || json_object_set(function, "strict", (json_t *)(uintptr_t)strict) == 0)
              && (out = json_pack("{s:s, s:O}", "type", "function", "function", function));
    json_decref(function);
    if (!ok)
        no_memory(err);
    return out;
}

static bool tools_change(json_t *o, const char *schema_key, struct error *err)
{
    const json_t *tools = json_object_get(o, "tools");
    if (!tools || json_is_null(tools))
        return true;
    if (!json_is_array(tools))
        return error_set(err, ERR_DATA, "'tools' must be a list");
    json_t *list = json_array();
    bool ok = list || no_memory(err);
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        json_t *tool = tool_make(json_array_get(tools, i), schema_key, err);
        ok = tool && (json_array_append_new(list, tool) == 0 || no_memory(err));
    }
    ok = ok && put(o, "tools", json_incref(list), err);
    json_decref(list);
    return ok;
}

/* {"type": "function", "function": {"name"}}, or a word. */
static bool choice_put(json_t *o, const char *word, const json_t *name, struct error *err)
{
    json_t *choice = word ? json_string(word) : json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
    return put(o, "tool_choice", choice, err);
}

/* A schema that the answer must fit, {"type": "json_schema", "schema"} in these shapes, as a chat's response_format. */
static bool format_put(json_t *o, const json_t *format, const char *where, struct error *err)
{
    const json_t *schema = json_object_get(format, "schema");
    if (!format || json_is_null(format))
        return true;
    if (!is_type(format, "json_schema"))
        return put(o, "response_format", shared(format), err);
    if (!json_is_object(schema))
        return error_set(err, ERR_DATA, "'%s' has no 'schema'", where);
    return put(o, "response_format",
               json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name", "answer", "schema", schema), err);
}

/* ---- Anthropic's ---- */

/* One block of a user's or an assistant's message. User's text is gathered in turn->text, and results of tools are messages of their own. */
static bool block_read(json_t *list, struct turn *turn, bool assistant, const json_t *block, struct error *err)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    if (is_type(block, "text")) {
        const json_t *text = json_object_get(block, "text");
        if (!is_text(text))
            return error_set(err, ERR_DATA, "'messages' has a block of type 'text' without a text");
        bool more = turn->text.len > 0;
        turn->any = true;
        return ((!more || buf_char(&turn->text, '\n')) && buf_add(&turn->text, json_string_value(text), json_string_length(text)))
               || no_memory(err);
    }
    if (assistant && is_type(block, "thinking")) {
        const json_t *text = json_object_get(block, "thinking");
        turn->any = true;
        return !is_text(text) || buf_add(&turn->thinking, json_string_value(text), json_string_length(text)) || no_memory(err);
    }
    if (assistant && is_type(block, "redacted_thinking"))
        return true;    // nobody here can read it, and nothing here makes it
    if (assistant && is_type(block, "tool_use")) {
        const json_t *input = json_object_get(block, "input");
        char *arguments = input ? json_text_dump(input, 0) : strdup("{}");
        json_t *text = arguments ? json_string(arguments) : NULL;
        free(arguments);
        return turn_call(turn, json_object_get(block, "id"), json_object_get(block, "name"), text, "messages", err);
    }
    if (!assistant && is_type(block, "tool_result"))
        return tool_message_add(list, json_object_get(block, "tool_use_id"), json_object_get(block, "content"), "messages", err);
    return error_set(err, ERR_DATA, "'messages' has a block of type '%.60s', which is not supported", type ? type : "");
}

static bool message_read(json_t *list, const json_t *message, struct error *err)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    bool assistant = role && strcmp(role, "assistant") == 0, ok = true;
    struct turn turn = { .text = BUF_INIT, .thinking = BUF_INIT };
    if (!role || (!assistant && strcmp(role, "user") != 0 && strcmp(role, "system") != 0))
        return error_set(err, ERR_DATA, "'messages' has a role that is neither 'user' nor 'assistant'");
    if (!json_is_array(content))
        return text_message_add(list, role, content, "messages", err);
    for (size_t i = 0; ok && i < json_array_size(content); i++)
        ok = block_read(list, &turn, assistant, json_array_get(content, i), err);
    if (ok && !assistant && turn.any)
        ok = message_add(list, role, text_json(&turn.text), err);
    turn.any = turn.any && assistant && ok;
    return turn_end(&turn, list, err) && ok;
}

/* {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"} */
static bool messages_choice(json_t *o, struct error *err)
{
    const json_t *choice = json_object_get(o, "tool_choice"), *name = json_object_get(choice, "name");
    if (!choice || json_is_null(choice))
        return true;
    bool alone = json_is_true(json_object_get(choice, "disable_parallel_tool_use"));
    if (alone && !put(o, "parallel_tool_calls", json_false(), err))
        return false;
    if (is_type(choice, "tool") && is_text(name))
        return choice_put(o, NULL, name, err);
    if (is_type(choice, "any"))
        return choice_put(o, "required", NULL, err);
    if (is_type(choice, "auto") || is_type(choice, "none"))
        return choice_put(o, json_string_value(json_object_get(choice, "type")), NULL, err);
    return error_set(err, ERR_DATA, "'tool_choice' must have a 'type' of auto, any, tool (with a 'name') or none");
}

/* {"type": "enabled" | "adaptive" | "disabled"}: the variable by which templates open thinking, unless the request sets it itself. */
static bool messages_thinking(json_t *o, struct error *err)
{
    const json_t *thinking = json_object_get(o, "thinking"), *given = json_object_get(o, "chat_template_kwargs");
    if (!thinking || json_is_null(thinking))
        return true;
    json_t *more = json_is_object(given) ? json_copy((json_t *)(uintptr_t)given) : json_object();
    bool ok = more || no_memory(err);
    if (ok && !json_object_get(more, "enable_thinking"))
        ok = put(more, "enable_thinking", json_boolean(!is_type(thinking, "disabled")), err);
    ok = ok && put(o, "chat_template_kwargs", json_incref(more), err);
    json_decref(more);
    return ok;
}

json_t *dialect_of_messages(const json_t *body, struct error *err)
{
    static const char *const cannot[] = { "mcp_servers", "container", "context_management" };
    const json_t *system = json_object_get(body, "system"), *messages = json_object_get(body, "messages");
    json_t *o = json_copy((json_t *)(uintptr_t)body), *list = json_array();
    bool ok = false;
    TRY((o && list) || no_memory(err));
    for (size_t i = 0; i < ARRAY_SIZE(cannot); i++) {
        const json_t *v = json_object_get(o, cannot[i]);
        if (v && !json_is_null(v) && json_array_size(v) + json_object_size(v) + json_is_string(v) > 0) {
            error_set(err, ERR_DATA, "'%s' is not supported", cannot[i]);
            goto out;
        }
    }
    TRY(!messages || json_is_array(messages) || error_set(err, ERR_DATA, "'messages' must be a list"));
    if (system && !json_is_null(system))
        TRY(text_message_add(list, "system", system, "system", err));
    for (size_t i = 0; i < json_array_size(messages); i++)
        TRY(message_read(list, json_array_get(messages, i), err));
    TRY(put(o, "messages", json_incref(list), err));
    TRY(rename_key(o, "stop_sequences", "stop", err));
    TRY(tools_change(o, "input_schema", err));
    TRY(messages_choice(o, err));
    TRY(messages_thinking(o, err));
    TRY(format_put(o, json_object_get(o, "output_format"), "output_format", err));
    TRY(format_put(o, json_object_get(json_object_get(o, "output_config"), "format"), "output_config", err));
    ok = true;
out:
    json_decref(list);
    if (!ok) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* ---- OpenAI's responses ---- */

/* Thinking of an earlier turn: its text, or its summary where only that is there. */
static bool reasoning_read(struct turn *turn, const json_t *item, struct error *err)
{
    const json_t *content = json_object_get(item, "content");
    turn->any = true;
    return texts_add(&turn->thinking, json_array_size(content) ? content : json_object_get(item, "summary"), "input", err);
}

/* An item of the input. Those of the model's that follow each other are one message. */
static bool item_read(json_t *list, struct turn *turn, const json_t *item, struct error *err)
{
    const char *type = json_string_value(json_object_get(item, "type")), *role = json_string_value(json_object_get(item, "role"));
    if (is_type(item, "reasoning"))
        return (turn->text.len + json_array_size(turn->calls) == 0 || turn_end(turn, list, err)) && reasoning_read(turn, item, err);
    if (is_type(item, "function_call")) {
        const json_t *arguments = json_object_get(item, "arguments");
        return (is_text(arguments) || error_set(err, ERR_DATA, "'input' has a call whose 'arguments' are not a text"))
               && turn_call(turn, json_object_get(item, "call_id"), json_object_get(item, "name"), shared(arguments), "input", err);
    }
    if ((type && strcmp(type, "message") != 0 && strcmp(type, "function_call_output") != 0) || (!type && !role))
        return error_set(err, ERR_DATA, "'input' has an item of type '%.60s', which is not supported", type ? type : "");
    if (role && strcmp(role, "assistant") == 0) {
        if ((turn->text.len > 0 || turn->calls) && !turn_end(turn, list, err))
            return false;
        turn->any = true;
        return texts_add(&turn->text, json_object_get(item, "content"), "input", err);
    }
    if (!turn_end(turn, list, err))
        return false;
    if (type && strcmp(type, "function_call_output") == 0)
        return tool_message_add(list, json_object_get(item, "call_id"), json_object_get(item, "output"), "input", err);
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "system") != 0 && strcmp(role, "developer") != 0))
        return error_set(err, ERR_DATA, "'input' has a message whose role is none of user, assistant, system and developer");
    return text_message_add(list, strcmp(role, "developer") == 0 ? "system" : role, json_object_get(item, "content"), "input", err);
}

static bool input_read(json_t *list, const json_t *input, struct error *err)
{
    struct turn turn = { .text = BUF_INIT, .thinking = BUF_INIT };
    if (!json_is_array(input))
        return text_message_add(list, "user", input, "input", err);
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(input); i++)
        ok = item_read(list, &turn, json_array_get(input, i), err);
    turn.any = turn.any && ok;
    return turn_end(&turn, list, err) && ok;
}

static bool responses_choice(json_t *o, struct error *err)
{
    const json_t *choice = json_object_get(o, "tool_choice");
    if (!json_is_object(choice))
        return true;
    if (!is_type(choice, "function") || !is_text(json_object_get(choice, "name")))
        return error_set(err, ERR_DATA, "'tool_choice' must be auto, none, required, or a function by name");
    json_t *name = shared(json_object_get(choice, "name"));    // the choice goes with its field
    bool ok = choice_put(o, NULL, name, err);
    json_decref(name);
    return ok;
}

json_t *dialect_of_responses(const json_t *body, struct error *err)
{
    static const char *const cannot[] = { "previous_response_id", "conversation", "prompt" };
    const json_t *instructions = json_object_get(body, "instructions"), *input = json_object_get(body, "input");
    const json_t *format = json_object_get(json_object_get(body, "text"), "format");
    json_t *o = json_copy((json_t *)(uintptr_t)body), *list = json_array();
    bool ok = false;
    TRY((o && list) || no_memory(err));
    for (size_t i = 0; i < ARRAY_SIZE(cannot); i++)
        if (json_object_get(o, cannot[i]) && !json_is_null(json_object_get(o, cannot[i]))) {
            error_set(err, ERR_DATA, "'%s' is not supported: nothing is stored here; send the whole conversation as 'input'", cannot[i]);
            goto out;
        }
    TRY(!json_is_true(json_object_get(o, "background")) || error_set(err, ERR_DATA, "'background' is not supported"));
    if (is_text(instructions))
        TRY(text_message_add(list, "system", instructions, "instructions", err));
    TRY(input || error_set(err, ERR_DATA, "'input' is missing"));
    TRY(input_read(list, input, err));
    TRY(put(o, "messages", json_incref(list), err));
    TRY(rename_key(o, "max_output_tokens", "max_tokens", err));
    TRY(tools_change(o, "parameters", err));
    TRY(responses_choice(o, err));
    TRY(format_put(o, format, "text", err));
    json_object_del(o, "text");
    json_object_del(o, "input");
    json_object_del(o, "stream_options");    // it has 'include_obfuscation' alone, and the last event always has the usage
    ok = true;
out:
    json_decref(list);
    if (!ok) {
        json_decref(o);
        return NULL;
    }
    return o;
}
