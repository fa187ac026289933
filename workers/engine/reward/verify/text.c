#include "workers/engine/reward/verify/text.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "protocol/base/macros.h"
#include "protocol/base/utf8.h"

struct pool_block {
    struct pool_block *next;
    size_t size, used;
    _Alignas(16) char data[];
};
#define BLOCK_MIN 65536

void pool_release(struct pool *p)
{
    for (struct pool_block *b = p->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *p = (struct pool){ NULL };
}

void *pool_take(struct pool *p, size_t size)
{
    size = (MAX(size, 1) + 15) & ~(size_t)15;
    struct pool_block *b = p->first;
    if (!b || b->size - b->used < size) {
        size_t room = MAX(size, BLOCK_MIN);
        if (p->failed || size > POOL_MAX || p->used > POOL_MAX - size || !(b = calloc(1, sizeof *b + room))) {
            p->failed = true;
            return NULL;
        }
        b->size = room;
        b->next = p->first;
        p->first = b;
    }
    void *at = b->data + b->used;
    b->used += size;
    p->used += size;
    return at;
}

const char *pool_str(struct pool *p, struct span s)
{
    char *copy = pool_take(p, s.len + 1);
    if (!copy)
        return "";
    memcpy(copy, s.s, s.len);
    return copy;
}

struct span span_str(const char *s)
{
    return span_of(s, strlen(s));
}

/* ---- characters ---- */

/* s must be valid UTF-8 */
int32_t text_next(struct span s, size_t *at)
{
    if (*at >= s.len)
        return -1;
    utf8proc_int32_t cp;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s.s + *at, (utf8proc_ssize_t)(s.len - *at), &cp);
    *at += n > 0 ? (size_t)n : 1;
    return n > 0 ? cp : 0xFFFD;
}

struct span text_valid(struct pool *p, struct span s)
{
    const uint8_t *from = (const uint8_t *)s.s;
    if (utf8_valid_len(from, s.len, NULL, NULL) == s.len)
        return s;
    char *out = pool_take(p, s.len * 3);    // each bad byte may become three
    size_t n = 0;
    for (size_t at = 0; out && at < s.len;) {
        int len = utf8_look(from + at, s.len - at);
        size_t step = len > 0 ? (size_t)len : len < 0 ? (size_t)-len : s.len - at;
        memcpy(out + n, len > 0 ? s.s + at : "\xEF\xBF\xBD", len > 0 ? step : 3);
        n += len > 0 ? step : 3;
        at += step;
    }
    return span_of(out ? out : "", n);
}

/* str.isspace */
static bool char_is_space(int32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x1F);
    utf8proc_category_t c = utf8proc_category(cp);
    return cp == 0x85 || c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

bool char_is_word(int32_t cp)
{
    if (cp < 0x80)
        return cp == '_' || (cp >= 0 && isalnum(cp));
    utf8proc_category_t c = utf8proc_category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NO && c != UTF8PROC_CATEGORY_MN && c != UTF8PROC_CATEGORY_MC
           && c != UTF8PROC_CATEGORY_ME;
}

static struct span case_map(struct pool *p, struct span s, utf8proc_int32_t (*map)(utf8proc_int32_t))
{
    char *out = pool_take(p, s.len * 2 + 4);    // a mapped character has at most twice the bytes
    size_t n = 0;
    int32_t cp;
    for (size_t at = 0; out && (cp = text_next(s, &at)) >= 0;)
        n += (size_t)utf8proc_encode_char(map(cp), (utf8proc_uint8_t *)out + n);
    return span_of(out ? out : "", n);
}

struct span text_lower(struct pool *p, struct span s)
{
    return case_map(p, s, utf8proc_tolower);
}

struct span text_upper(struct pool *p, struct span s)
{
    return case_map(p, s, utf8proc_toupper);
}

static bool case_is(struct span s, bool upper)
{
    bool found = false;
    int32_t cp;
    for (size_t at = 0; (cp = text_next(s, &at)) >= 0;) {
        utf8proc_category_t c = utf8proc_category(cp);
        if (c == UTF8PROC_CATEGORY_LT || c == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU))
            return false;
        found = found || c == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
    }
    return found;
}

bool text_is_lower(struct span s)
{
    return case_is(s, false);
}

bool text_is_upper(struct span s)
{
    return case_is(s, true);
}

int64_t text_n_char(struct span s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.s[i] & 0xC0) != 0x80;
    return n;
}

struct span text_slice(struct span s, int64_t from, int64_t to)
{
    int64_t n = text_n_char(s);
    from = MIN(MAX(from < 0 ? from + n : from, 0), n);
    to = MIN(MAX(to < 0 ? to + n : to, 0), n);
    size_t a = 0, b = 0;
    int64_t i = 0;
    for (; i < MIN(from, to); i++)
        text_next(s, &a);
    for (b = a; i < to; i++)
        text_next(s, &b);
    return from < to ? span_of(s.s + a, b - a) : span_of(s.s, 0);
}

/* ---- ends and parts ---- */

struct span text_strip(struct span s)
{
    size_t at = 0, from = 0;
    while (from < s.len && char_is_space(text_next(s, &at)))
        from = at;
    s = span_of(s.s + from, s.len - from);
    while (s.len > 0) {
        size_t last = s.len - 1;
        while (last > 0 && ((unsigned char)s.s[last] & 0xC0) == 0x80)
            last--;
        at = last;
        if (!char_is_space(text_next(s, &at)))
            break;
        s.len = last;
    }
    return s;
}

struct span text_strip_of(struct span s, const char *set)
{
    while (s.len > 0 && s.s[0] && strchr(set, s.s[0]))
        s = span_of(s.s + 1, s.len - 1);
    while (s.len > 0 && s.s[s.len - 1] && strchr(set, s.s[s.len - 1]))
        s.len--;
    return s;
}

bool span_equal(struct span a, struct span b)
{
    return a.len == b.len && memcmp(a.s, b.s, a.len) == 0;
}

bool span_starts(struct span s, struct span with)
{
    return s.len >= with.len && memcmp(s.s, with.s, with.len) == 0;
}

bool span_ends(struct span s, struct span with)
{
    return s.len >= with.len && memcmp(s.s + s.len - with.len, with.s, with.len) == 0;
}

int64_t span_find(struct span s, struct span what, size_t from)
{
    if (from > s.len)
        return -1;
    const char *at = memmem(s.s + from, s.len - from, what.s, what.len);
    return at ? at - s.s : -1;
}

bool span_has(struct span s, const char *what)
{
    return span_find(s, span_str(what), 0) >= 0;
}

int64_t span_count(struct span s, struct span what)
{
    int64_t n = 0, at;
    for (size_t from = 0; what.len > 0 && (at = span_find(s, what, from)) >= 0; n++)
        from = (size_t)at + what.len;
    return n;
}

struct span text_replace(struct pool *p, struct span s, const char *what, const char *with)
{
    struct span w = span_str(what), by = span_str(with);
    int64_t n = span_count(s, w), at;
    if (n == 0)
        return s;
    char *out = pool_take(p, s.len - (size_t)n * w.len + (size_t)n * by.len);
    size_t from = 0, len = 0;
    while (out && (at = span_find(s, w, from)) >= 0) {
        memcpy(out + len, s.s + from, (size_t)at - from);
        len += (size_t)at - from;
        memcpy(out + len, by.s, by.len);
        len += by.len;
        from = (size_t)at + w.len;
    }
    if (out)
        memcpy(out + len, s.s + from, s.len - from);
    return span_of(out ? out : "", out ? len + s.len - from : 0);
}

struct span text_after_last(struct span s, const char *sep)
{
    struct span w = span_str(sep);
    size_t from = 0;
    for (int64_t at; (at = span_find(s, w, from)) >= 0;)
        from = (size_t)at + w.len;
    return span_of(s.s + from, s.len - from);
}

struct span text_before_first(struct span s, const char *sep)
{
    int64_t at = span_find(s, span_str(sep), 0);
    return span_of(s.s, at < 0 ? s.len : (size_t)at);
}

bool text_part(struct span s, struct span sep, size_t *at, struct span *part)
{
    if (*at > s.len)
        return false;
    int64_t end = sep.len > 0 ? span_find(s, sep, *at) : -1;
    *part = span_of(s.s + *at, (end < 0 ? s.len : (size_t)end) - *at);
    *at = end < 0 ? s.len + 1 : (size_t)end + sep.len;
    return true;
}

bool text_word(struct span s, size_t *at, struct span *word)
{
    size_t from = *at, next = from;
    while (next < s.len && char_is_space(text_next(s, &next)))
        from = next;
    if (from >= s.len)
        return false;
    size_t end = from;
    for (next = from; next < s.len && !char_is_space(text_next(s, &next));)
        end = next;
    *word = span_of(s.s + from, end - from);
    *at = end;
    return true;
}

/* ---- answers ---- */

static bool is_article(struct span w)
{
    return span_equal(w, span_str("a")) || span_equal(w, span_str("an")) || span_equal(w, span_str("the"));
}

struct span answer_normal(struct pool *p, struct span s)
{
    struct span low = text_lower(p, s);
    char *bare = pool_take(p, low.len), *spaced = pool_take(p, low.len), *out = pool_take(p, low.len);
    size_t n = 0, len = 0;
    if (!bare || !spaced || !out)
        return span_of("", 0);
    for (size_t i = 0; i < low.len; i++)
        if (!ispunct((unsigned char)low.s[i]) || (unsigned char)low.s[i] >= 0x80)
            bare[n++] = low.s[i];
    /* \b(a|an|the)\b becomes a space: an article ends where letters, numbers and underscores end, not only at white space */
    struct span text = span_of(bare, n);
    for (size_t at = 0; at < text.len;) {
        size_t end = at, next = at;
        int32_t cp = text_next(text, &next);
        if (!char_is_word(cp)) {
            memcpy(spaced + len, text.s + at, next - at);
            len += next - at;
            at = next;
            continue;
        }
        for (next = at; next < text.len && char_is_word(text_next(text, &next));)
            end = next;
        if (is_article(span_of(text.s + at, end - at))) {
            spaced[len++] = ' ';
        } else {
            memcpy(spaced + len, text.s + at, end - at);
            len += end - at;
        }
        at = end;
    }
    struct span word, all = span_of(spaced, len);
    size_t n_out = 0;
    for (size_t at = 0; text_word(all, &at, &word);) {
        if (n_out > 0)
            out[n_out++] = ' ';
        memcpy(out + n_out, word.s, word.len);
        n_out += word.len;
    }
    return span_of(out, n_out);
}

static int span_order(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    int by = memcmp(x->s, y->s, MIN(x->len, y->len));
    return by ? by : (x->len > y->len) - (x->len < y->len);
}

/* The words of s, sorted; *n of them. NULL: no memory. */
static struct span *words_sorted(struct pool *p, struct span s, int64_t *n)
{
    struct span word, *list;
    *n = 0;
    for (size_t at = 0; text_word(s, &at, &word);)
        ++*n;
    list = pool_take(p, (size_t)*n * sizeof *list);
    int64_t i = 0;
    for (size_t at = 0; list && text_word(s, &at, &word);)
        list[i++] = word;
    if (list)
        qsort(list, (size_t)*n, sizeof *list, span_order);
    return list;
}

double answer_f1(struct pool *p, struct span pred, struct span gold)
{
    int64_t n_pred, n_gold, same = 0;
    struct span *a = words_sorted(p, answer_normal(p, pred), &n_pred), *b = words_sorted(p, answer_normal(p, gold), &n_gold);
    for (int64_t i = 0, k = 0; a && b && i < n_pred && k < n_gold;) {
        int by = span_order(&a[i], &b[k]);
        same += by == 0;
        i += by <= 0;
        k += by >= 0;
    }
    if (same == 0)
        return 0;
    double precision = (double)same / (double)n_pred, recall = (double)same / (double)n_gold;
    return 2 * precision * recall / (precision + recall);
}

struct span answer_only(struct pool *p, struct span s)
{
    s = text_strip(text_replace(p, s, "<|assistant|>", ""));
    s = text_after_last(s, "</think>");
    s = text_replace(p, text_replace(p, s, "<answer>", ""), "</answer>", "");
    return text_strip(s);
}
