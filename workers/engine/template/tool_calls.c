#include "workers/engine/template/tool_calls.h"
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/template/tool_schema.h"

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>", python_tag[] = "<|python_tag|>";

void tool_calls_cut(struct tool_calls *c, int n)
{
    for (; c->n > n; c->n--) {
        free(c->call[c->n - 1].name);
        free(c->call[c->n - 1].arguments);
    }
}

void tool_calls_release(struct tool_calls *c)
{
    tool_calls_cut(c, 0);
    buf_release(&c->content);
    *c = (struct tool_calls){ .n = 0 };
}

/* The schema of a tool's arguments, if it is strict and has one; NULL: anything goes. */
static const json_t *schema_of(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function"), *schema = json_object_get(function, "parameters");
    return json_is_true(json_object_get(function, "strict")) && !json_is_null(schema) ? schema : NULL;
}

bool tools_strict_check(const json_t *tools, struct error *err)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *schema = schema_of(json_array_get(tools, i));
        struct error why;
        if (schema && !tool_schema_check(schema, &why))
            return error_set(err, ERR_DATA, "'tools'[%zu] is strict, which its parameters do not allow: %.200s; leave 'strict' out", i,
                             why.text);
    }
    return true;
}

static bool is_allowed(const json_t *tools, const char *name, const json_t *arguments)
{
    json_t *opened = json_is_string(arguments) ? json_str_read(json_string_value(arguments), 0, NULL) : NULL;
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *schema = schema_of(tool);
        const char *its = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (schema && its && strcmp(its, name) == 0)
            ok = tool_schema_fits(schema, json_is_string(arguments) ? opened : arguments);
    }
    json_decref(opened);
    return ok;
}

/* Add the call that begins with an object at text; *used: bytes of the object. False: it is not a call. */
static bool call_add(struct tool_calls *out, const char *text, size_t len, const json_t *tools, size_t *used)
{
    json_error_t at;
    json_t *o = json_text_read(text, len, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &at);
    const json_t *name = json_object_get(o, "name"), *arguments = json_object_get(o, "arguments");
    if (!arguments)
        arguments = json_object_get(o, "parameters");
    bool ok = json_is_string(name) && (!arguments || json_is_object(arguments) || json_is_string(arguments)) && out->n < TOOL_CALLS_MAX;
    json_t *none = ok && !arguments ? json_object() : NULL;
    ok = ok && is_allowed(tools, json_string_value(name), arguments ? arguments : none);
    json_decref(none);
    if (ok) {
        struct tool_call call = { .name = strdup(json_string_value(name)) };
        call.arguments = json_is_string(arguments) ? strdup(json_string_value(arguments))
                         : arguments               ? json_text_dump(arguments, 0)
                                                   : strdup("{}");
        ok = call.name && call.arguments;
        if (ok) {
            out->call[out->n++] = call;
            *used = (size_t)at.position;
        } else {
            free(call.name);
            free(call.arguments);
        }
    }
    json_decref(o);
    return ok;
}

static size_t blanks(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && isspace((unsigned char)text[n]))
        n++;
    return n;
}

/* <tool_call>...</tool_call>, with text between them. False: no memory. */
static bool hermes_find(struct tool_calls *out, const char *text, size_t len, const json_t *tools)
{
    for (size_t at = 0; at < len;) {
        const char *open = memmem(text + at, len - at, open_tag, sizeof open_tag - 1);
        size_t begin = open ? (size_t)(open - text) : len, used = 0;
        if (!buf_add(&out->content, text + at, begin - at))
            return false;
        if (!open)
            return true;
        size_t body = begin + sizeof open_tag - 1;
        body += blanks(text + body, len - body);
        if (!call_add(out, text + body, len - body, tools, &used)) {
            if (!buf_add(&out->content, open_tag, sizeof open_tag - 1))
                return false;
            at = begin + sizeof open_tag - 1;
            continue;
        }
        at = body + used;
        at += blanks(text + at, len - at);
        if (len - at >= sizeof close_tag - 1 && memcmp(text + at, close_tag, sizeof close_tag - 1) == 0)
            at += sizeof close_tag - 1;
    }
    return true;
}

/* Objects with ';' between them and nothing else. */
static bool llama_find(struct tool_calls *out, const char *text, size_t len, const json_t *tools)
{
    size_t at = blanks(text, len), used = 0;
    if (len - at >= sizeof python_tag - 1 && memcmp(text + at, python_tag, sizeof python_tag - 1) == 0)
        at += sizeof python_tag - 1;
    for (;;) {
        at += blanks(text + at, len - at);
        if (at == len || text[at] != '{' || !call_add(out, text + at, len - at, tools, &used))
            return false;
        at += used;
        at += blanks(text + at, len - at);
        if (at == len)
            return true;
        if (text[at++] != ';')
            return false;
    }
}

/* Trim blanks from the content's end. Those at its begin stay: a stream has shown them before it knew of a call. */
static void content_trim(struct buf *b)
{
    while (b->len > 0 && isspace((unsigned char)b->data[b->len - 1]))
        b->len--;
    if (b->data)
        b->data[b->len] = 0;
}

bool tool_calls_find(struct tool_calls *out, const char *text, size_t len, const json_t *tools)
{
    *out = (struct tool_calls){ .n = 0 };
    if (llama_find(out, text, len, tools))
        return true;
    tool_calls_release(out);    // drop the calls found before the rest turned out to be text
    bool ok = hermes_find(out, text, len, tools);
    if (ok && out->n > 0)
        content_trim(&out->content);
    if (!ok)
        tool_calls_release(out);
    return ok;
}

size_t tool_calls_safe(const char *text, size_t len)
{
    size_t begin = blanks(text, len);
    if (begin == len || text[begin] == '{' || text[begin] == '<')
        return 0;    // all of it may be calls; blanks before a call are not shown either
    for (size_t i = 0; i < len; i++)
        if (text[i] == '<' && memcmp(text + i, open_tag, MIN(len - i, sizeof open_tag - 1)) == 0)
            return i;
    return len;
}
