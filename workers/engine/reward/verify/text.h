/* text.h - texts as the published verifiers treat them, that is as Python's str does
 *
 * A text is a struct span of valid UTF-8. What is made new lies in a struct pool: one per call of a verifier, emptied as a
 * whole. When memory ends, functions return an empty text and the pool says so; the caller asks once, at the end. Letter
 * case is utf8proc's simple mapping: one character for one, where Python has a few that become two. One thread per pool. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "workers/engine/reward/answer.h"

#define POOL_MAX (256u << 20)    // bytes of one pool; a verifier that needs more fails
struct pool {
    struct pool_block *first;    // owned
    size_t used;                 // bytes taken in all
    bool failed;                 // no memory, or POOL_MAX reached
};
void pool_release(struct pool *p);
/* size bytes, set to zero, that live until the pool is released. NULL: failed is set. */
void *pool_take(struct pool *p, size_t size);
/* A copy of the text followed by a NUL; "" when there is no memory. */
const char *pool_str(struct pool *p, struct span s);

static inline struct span span_of(const char *s, size_t len)
{
    return (struct span){ s, len };
}
struct span span_str(const char *s);
/* The text with what is not UTF-8 replaced by U+FFFD; s itself when all of it is. */
struct span text_valid(struct pool *p, struct span s);
struct span text_lower(struct pool *p, struct span s);
struct span text_upper(struct pool *p, struct span s);
/* str.islower and str.isupper: at least one letter with case, and none of the other case. */
bool text_is_lower(struct span s);
bool text_is_upper(struct span s);
bool char_is_word(int32_t cp);    // \w: letters, numbers and the underscore
/* The character at byte *at, which is moved past it; -1 at the end. */
int32_t text_next(struct span s, size_t *at);
int64_t text_n_char(struct span s);
/* Characters from to to (not included), as s[from:to]; negative ones count from the end. */
struct span text_slice(struct span s, int64_t from, int64_t to);
struct span text_strip(struct span s);                        // white space at both ends
struct span text_strip_of(struct span s, const char *set);    // these ASCII characters at both ends
bool span_equal(struct span a, struct span b);
bool span_starts(struct span s, struct span with);
bool span_ends(struct span s, struct span with);
/* Byte where what begins in s, at or after from; -1: nowhere. An empty text is found at once. */
int64_t span_find(struct span s, struct span what, size_t from);
bool span_has(struct span s, const char *what);
int64_t span_count(struct span s, struct span what);    // not overlapping; 0 of an empty text
struct span text_replace(struct pool *p, struct span s, const char *what, const char *with);
/* What comes after the last separator, as s.split(sep)[-1]; s itself when there is none. */
struct span text_after_last(struct span s, const char *sep);
/* What comes before the first separator, as s.split(sep)[0]. */
struct span text_before_first(struct span s, const char *sep);
/* Step through s.split(sep): false after the last part. Start with *at 0. */
bool text_part(struct span s, struct span sep, size_t *at, struct span *part);
/* Step through s.split(): words between white space. Start with *at 0. */
bool text_word(struct span s, size_t *at, struct span *word);

/* SQuAD's normalisation, as open-instruct's normalize_answer: lower case, no ASCII punctuation, no words a, an, the, single
 * spaces. */
struct span answer_normal(struct pool *p, struct span s);
/* F1 of the words of two normalised answers, with multiplicity; 0 when they share none. */
double answer_f1(struct pool *p, struct span pred, struct span gold);
/* The text after the last </think>, without <answer> tags, stripped: open-instruct's remove_thinking_section. */
struct span answer_only(struct pool *p, struct span s);
