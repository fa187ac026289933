/* tool_calls.h - find the tool calls in a model's output
 *
 * Two forms. Hermes (Qwen, NousResearch): <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, with text around
 * them; the last closing tag may be missing. Llama 3: the whole text is one object {"name": ..., "parameters": {...}} or
 * several separated by ';', perhaps after <|python_tag|>. What does not parse stays text, and so does a call whose arguments do not fit the
 * schema of a tool that is strict, as OpenAI's strict tools promise. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define TOOL_CALLS_MAX 64
struct tool_call {
    char *name;         // owned
    char *arguments;    // owned; JSON
};
struct tool_calls {
    struct tool_call call[TOOL_CALLS_MAX];
    int n;
    struct buf content;    // the text without the calls and without blanks at its end; empty when there is none
};
/* Find the calls in text (UTF-8). With none, content is all of the text. tools: OpenAI's list, of which the strict ones are looked at;
 * NULL: none is strict. False: no memory; out holds nothing then. */
MUST_USE bool tool_calls_find(struct tool_calls *out, const char *text, size_t len, const json_t *tools);
/* Can the promise of each strict tool be kept? ERR_DATA: err names the tool and what its schema asks for. */
MUST_USE bool tools_strict_check(const json_t *tools, struct error *err);
void tool_calls_release(struct tool_calls *c);
void tool_calls_cut(struct tool_calls *c, int n);    // drop the calls after the first n
/* How many bytes of an unfinished text a stream may show: those before anything that is, or may become, a tool call. */
size_t tool_calls_safe(const char *text, size_t len);
