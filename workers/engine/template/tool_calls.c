#include "workers/engine/template/tool_calls.h"
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>", python_tag[] = "<|python_tag|>";

void tool_calls_release(struct tool_calls *c)
{
    for (int i = 0; i < c->n; i++) {
        free(c->call[i].name);
        free(c->call[i].arguments);
    }
    buf_release(&c->content);
    *c = (struct tool_calls){ .n = 0 };
}

/* Add the call that begins with an object at text; *used: bytes of the object. False: it is not a call. */
static bool call_add(struct tool_calls *out, const char *text, size_t len, size_t *used)
{
    json_error_t at;
    json_t *o = json_text_read(text, len, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &at);
    const json_t *name = json_object_get(o, "name"), *arguments = json_object_get(o, "arguments");
    if (!arguments)
        arguments = json_object_get(o, "parameters");
    bool ok = json_is_string(name) && (!arguments || json_is_object(arguments) || json_is_string(arguments)) && out->n < TOOL_CALLS_MAX;
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
static bool hermes_find(struct tool_calls *out, const char *text, size_t len)
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
        if (!call_add(out, text + body, len - body, &used)) {
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
static bool llama_find(struct tool_calls *out, const char *text, size_t len)
{
    size_t at = blanks(text, len), used = 0;
    if (len - at >= sizeof python_tag - 1 && memcmp(text + at, python_tag, sizeof python_tag - 1) == 0)
        at += sizeof python_tag - 1;
    for (;;) {
        at += blanks(text + at, len - at);
        if (at == len || text[at] != '{' || !call_add(out, text + at, len - at, &used))
            return false;
        at += used;
        at += blanks(text + at, len - at);
        if (at == len)
            return true;
        if (text[at++] != ';')
            return false;
    }
}

/* Trim blanks from both ends of the content. */
static void content_trim(struct buf *b)
{
    size_t first = blanks(buf_text(b), b->len);
    while (b->len > first && isspace((unsigned char)b->data[b->len - 1]))
        b->len--;
    if (first > 0)
        memmove(b->data, b->data + first, b->len - first);
    b->len -= first;
    if (b->data)
        b->data[b->len] = 0;
}

bool tool_calls_find(struct tool_calls *out, const char *text, size_t len)
{
    *out = (struct tool_calls){ .n = 0 };
    if (llama_find(out, text, len))
        return true;
    tool_calls_release(out);    // drop the calls found before the rest turned out to be text
    bool ok = hermes_find(out, text, len);
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
