#include "workers/engine/data/conversation.h"
#include <string.h>
#include "protocol/base/json_text.h"

static bool no_memory(struct error *err)
{
    return error_set(err, ERR_NO_MEMORY, "no memory for a row");
}

/* ---- members that are null ---- */

/* Depth is bounded by the reader's. keep: a member that stays, NULL: none; it counts for the outermost objects only. */
static void nulls_prune(json_t *v, const char *keep)
{
    const char *name;
    json_t *one;
    void *next;
    size_t i;
    json_array_foreach(v, i, one) nulls_prune(one, keep);
    json_object_foreach_safe(v, next, name, one)
    {
        if (!json_is_null(one))
            nulls_prune(one, NULL);
        else if (!keep || strcmp(name, keep) != 0)
            json_object_del(v, name);
    }
}

/* ---- tools ---- */

static bool tools_wrong(struct error *err)
{
    return error_set(err, ERR_DATA, "'tools' is neither a list of objects, nor one object, nor such a list or object as JSON text");
}

/* v, or the value of its JSON text; a new reference. NULL: see err. */
static json_t *text_value(json_t *v, struct error *err)
{
    json_error_t why;
    if (!json_is_string(v))
        return json_incref(v);
    json_t *read = json_text_read(json_string_value(v), json_string_length(v), JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!read)
        error_set(err, json_text_code(&why), "the JSON in 'tools' is wrong: %s", why.text);
    return read;
}

/* Put a tool, or the text of one, into the list. */
static bool tool_add(json_t *list, json_t *v, struct error *err)
{
    json_t *tool = text_value(v, err);
    bool ok = tool && (json_is_object(tool) || tools_wrong(err)) && (json_array_append(list, tool) == 0 || no_memory(err));
    json_decref(tool);
    return ok;
}

static bool tools_settle(json_t *row, struct error *err)
{
    json_t *tools = json_object_get(row, "tools"), *one;
    const char *text = json_string_value(tools);
    size_t i;
    if (!tools)
        return true;
    nulls_prune(tools, NULL);
    json_t *value = text && !text[strspn(text, " \t\r\n")] ? json_null() : text_value(tools, err), *list = json_array();
    bool ok = value && (list || no_memory(err));
    if (json_is_array(value))
        json_array_foreach(value, i, one) ok = ok && tool_add(list, one, err);
    else if (ok && !json_is_null(value))
        ok = tool_add(list, value, err);
    if (ok && json_is_null(value))
        json_object_del(row, "tools");
    else if (ok)
        ok = json_object_set(row, "tools", list) == 0 || no_memory(err);
    json_decref(value);
    json_decref(list);
    return ok;
}

/* ---- messages ---- */

static bool is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "assistant") == 0;
}

/* Whatever else holds the list keeps it as it was. */
static bool answer_remove(json_t *row, bool *answered, struct error *err)
{
    json_t *messages = json_object_get(row, "messages");
    size_t n = json_array_size(messages), left = n;
    while (left > 0 && is_answer(json_array_get(messages, left - 1)))
        left--;
    *answered = left < n || is_answer(messages);
    if (!*answered)
        return true;
    if (left == 0)
        return error_set(err, ERR_DATA, "'messages' has nothing but the assistant's answer; a prompt needs a message before it");
    json_t *copy = json_copy(messages);
    for (; copy && n > left; n--)
        json_array_remove(copy, n - 1);
    return (copy && json_object_set_new(row, "messages", copy) == 0) || no_memory(err);
}

bool conversation_settle(json_t *row, bool *answered, struct error *err)
{
    nulls_prune(json_object_get(row, "messages"), "content");
    return tools_settle(row, err) && (!answered || answer_remove(row, answered, err));
}
