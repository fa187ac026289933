/* answer.h - where the answer is in a response: ColossalChat's rules for boxes and tags */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct span {
    const char *s;    // borrowed from the text that was searched
    size_t len;
};
/* What follows a box's command at p, its options and the blanks after it: \boxed, \fbox, \framebox[3cm][c]. NULL: none stands there. */
const char *box_mark_end(const char *p, const char *end);
/* The content of the last \boxed{...} with balanced braces; false: there is none, or the last one never closes. */
bool answer_boxed(const char *text, size_t len, struct span *out);
/* The four tags of a response in their order: think_start, think_end, answer_start, answer_end; how often each must occur. */
#define ANSWER_TAGS 4
struct answer_tags {
    char text[ANSWER_TAGS][64];
    int64_t n[ANSWER_TAGS];
};
extern const struct answer_tags answer_tags_default;    // <think>, </think>, <answer>, </answer>, each once
/* ColossalChat's response_format_tags, an object {"think_start": {"text": ..., "num_occur": ...}, ...}; a tag that it leaves out is the
 * default's. ERR_USAGE names what is wrong. */
MUST_USE bool answer_tags_read(struct answer_tags *t, const char *json, struct error *err);
/* The content of the last <answer>...</answer>, without white space around it. */
bool answer_tagged(const char *text, size_t len, const struct answer_tags *tags, struct span *out);
/* Each tag as often as it must occur, their first places in order, and nothing after the last tag. */
bool answer_tags_valid(const char *text, size_t len, const struct answer_tags *tags);
struct span span_trim(struct span s);
