/* answer.h - where the answer is in a response: ColossalChat's rules for boxes and tags */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct span {
    const char *s;    // borrowed from the text that was searched
    size_t len;
};
/* The content of the last \boxed{...} with balanced braces; false: there is none, or the last one never closes. */
bool answer_boxed(const char *text, size_t len, struct span *out);
/* The content of the last <answer>...</answer>, without white space around it. */
bool answer_tagged(const char *text, size_t len, struct span *out);
/* Each of the four tags once, in order, and nothing after the last. */
bool answer_tags_valid(const char *text, size_t len);
struct span span_trim(struct span s);
