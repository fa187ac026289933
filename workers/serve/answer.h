/* answer.h - a model's text as its parts: what it thinks, what it says, and the tools that it calls
 *
 * Thinking stands between <think> and </think> at the beginning; many templates write the first tag themselves, at the end of the prompt. The
 * rest is content and calls (tool_calls.h). A text that is still growing gives the parts as far as no later byte can change them. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>
#include "workers/engine/template/tool_calls.h"

struct answer_parts {
    const char *thinking;    // (n_thinking) borrowed from the text; no blanks around it
    size_t n_thinking;
    bool thought;           // the thinking is over, or there is none
    const char *content;    // (n_content) borrowed from the text, or with calls from those
    size_t n_content;
    struct tool_calls calls;    // only of a text that has ended
};
struct answer_config {
    bool opens_thinking;    // the prompt ended with <think>
    bool finds_calls;
    bool parallel_calls;    // all of them; else the first
    const json_t *tools;    // as for tool_calls_find
};
/* Does a prompt's text end with <think>, blanks aside? */
bool answer_opens_thinking(const char *text, size_t len);
/* Read text, of which the first n_safe bytes will not change; ended: none follow. False: no memory; a holds nothing then. */
MUST_USE bool answer_read(struct answer_parts *a, const struct answer_config *c, const char *text, size_t len, size_t n_safe, bool ended);
void answer_release(struct answer_parts *a);
