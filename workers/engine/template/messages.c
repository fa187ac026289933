#include "workers/engine/template/messages.h"
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/json_text.h"

/* A number that jansson cannot hold is a string to it, and no text (json_text.h). */
static bool is_text(const json_t *v)
{
    return json_is_string(v) && !json_odd_text(v);
}

static bool no_memory(size_t i, struct error *err)
{
    return error_set(err, ERR_NO_MEMORY, "no memory for 'messages'[%zu]", i);
}

static bool content_flatten(json_t *message, size_t i, struct error *err)
{
    json_t *parts = json_object_get(message, "content"), *text;
    struct buf b = BUF_INIT;
    bool ok = true;
    if (is_text(parts) || json_is_object(parts))
        return true;
    if (parts && !json_is_null(parts) && !json_is_array(parts))
        return error_set(err, ERR_DATA, "'messages'[%zu].content must be a text, a list of text parts, or null", i);
    for (size_t k = 0; ok && k < json_array_size(parts); k++) {
        const json_t *part = json_array_get(parts, k);
        text = json_is_string(part) ? (json_t *)(uintptr_t)part : json_object_get(part, "text");
        if (!is_text(text))
            ok = error_set(err, ERR_DATA, "'messages'[%zu] has a part that is not text; only text is supported", i);
        else if (!(k == 0 || buf_char(&b, '\n')) || !buf_add(&b, json_string_value(text), json_string_length(text)))
            ok = no_memory(i, err);
    }
    if (ok && (!(text = json_stringn(buf_text(&b), b.len)) || json_object_set_new(message, "content", text) != 0))
        ok = no_memory(i, err);
    buf_release(&b);
    return ok;
}

static bool arguments_open(json_t *message, size_t i, struct error *err)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *function = json_object_get(json_array_get(calls, k), "function"), *arguments = json_object_get(function, "arguments");
        if (!is_text(arguments))
            continue;
        json_t *value = json_string_length(arguments) ? json_text_read(json_string_value(arguments), json_string_length(arguments), 0, NULL)
                                                      : json_object();
        if (!value)
            return error_set(err, ERR_DATA, "'messages'[%zu].tool_calls[%zu] has arguments that are not JSON", i, k);
        if (json_object_set_new(function, "arguments", value) != 0)
            return no_memory(i, err);
    }
    return true;
}

json_t *messages_flatten(const json_t *messages, struct error *err)
{
    json_t *list = json_copy((json_t *)(uintptr_t)messages);
    bool ok = list || error_set(err, ERR_NO_MEMORY, "no memory for 'messages'");
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        json_t *message = json_array_get(list, i);
        if (!json_is_object(message))
            ok = error_set(err, ERR_DATA, "'messages'[%zu] must be an object", i);
        if (!ok || (is_text(json_object_get(message, "content")) && !json_object_get(message, "tool_calls")))
            continue;
        message = json_deep_copy(message);
        ok = message || no_memory(i, err);
        ok = ok && content_flatten(message, i, err) && arguments_open(message, i, err);
        ok = ok && (json_array_set(list, i, message) == 0 || no_memory(i, err));
        json_decref(message);
    }
    if (!ok)
        json_decref(list);
    return ok ? list : NULL;
}
