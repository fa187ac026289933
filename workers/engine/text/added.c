#include "workers/engine/text/added.h"
#include <stdlib.h>
#include <string.h>

static int pattern_compare(const void *a, const void *b)
{
    const struct added_token *x = *(const struct added_token *const *)a, *y = *(const struct added_token *const *)b;
    size_t n = x->pattern_len < y->pattern_len ? x->pattern_len : y->pattern_len;
    int c = memcmp(x->pattern, y->pattern, n);
    if (c == 0)
        c = (x->pattern_len > y->pattern_len) - (x->pattern_len < y->pattern_len);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

bool added_set_init(struct added_set *s, const struct added_token *token, int n, bool normalized, struct error *err)
{
    *s = (struct added_set){ .first = -1 };
    s->sorted = calloc((size_t)n + 1, sizeof s->sorted[0]);
    if (!s->sorted)
        return error_set(err, ERR_NO_MEMORY, "no memory for %d added tokens", n);
    for (int i = 0; i < n; i++)
        if (token[i].normalized == normalized && token[i].pattern_len > 0)
            s->sorted[s->n++] = &token[i];
    qsort(s->sorted, (size_t)s->n, sizeof s->sorted[0], pattern_compare);
    int n_first = 0;
    for (int i = 0; i < s->n; i++) {
        uint8_t c = (uint8_t)s->sorted[i]->pattern[0];
        n_first += !s->starts[c];
        s->starts[c] = true;
        s->first = c;
    }
    if (n_first != 1)
        s->first = -1;
    return true;
}

void added_set_release(struct added_set *s)
{
    free(s->sorted);
    *s = (struct added_set){ 0 };
}

/* The longest token that begins at p: the range of sorted patterns that agree so far is narrowed byte by byte. */
static const struct added_token *longest_at(const struct added_set *s, const uint8_t *p, size_t len)
{
    const struct added_token *best = NULL;
    int lo = 0, hi = s->n;
    for (size_t d = 0; lo < hi; d++) {
        if (s->sorted[lo]->pattern_len == d) {    // the shortest of the range sorts first
            best = s->sorted[lo];
            while (lo < hi && s->sorted[lo]->pattern_len == d)
                lo++;
        }
        if (d >= len || lo >= hi)
            break;
        int a = lo, b = hi;
        while (a < b) {    // first pattern with a byte >= p[d]
            int m = (a + b) / 2;
            if ((uint8_t)s->sorted[m]->pattern[d] < p[d])
                a = m + 1;
            else
                b = m;
        }
        lo = a;
        b = hi;
        while (a < b) {    // first with a byte > p[d]
            int m = (a + b) / 2;
            if ((uint8_t)s->sorted[m]->pattern[d] <= p[d])
                a = m + 1;
            else
                b = m;
        }
        hi = a;
    }
    return best;
}

static bool word_before(const struct unicode *u, const uint8_t *text, size_t at)
{
    int n;
    return at > 0 && (unicode_class(u, utf8_at(utf8_before(text + at), &n)) & CHAR_WORD);
}

bool added_next(const struct added_set *s, const struct unicode *u, const uint8_t *text, size_t len, size_t *at, size_t done,
                bool skip_special, struct added_match *m)
{
    if (s->n == 0)
        return false;
    int n;
    for (size_t i = *at; i < len;) {
        if (s->first >= 0) {
            const uint8_t *hit = memchr(text + i, s->first, len - i);
            if (!hit)
                break;
            i = (size_t)(hit - text);
        } else if (!s->starts[text[i]]) {
            i++;
            continue;
        }
        const struct added_token *t = longest_at(s, text + i, len - i);
        if (!t) {
            i++;
            continue;
        }
        size_t from = i, to = i + t->pattern_len;
        i = to;    // even when the match is rejected: the search continues after it
        if (skip_special && t->special)
            continue;
        if (t->single_word && (word_before(u, text, from) || (to < len && (unicode_class(u, utf8_at(text + to, &n)) & CHAR_WORD))))
            continue;
        if (t->lstrip)
            while (from > done) {
                const uint8_t *before = utf8_before(text + from);
                if ((size_t)(before - text) < done || !(unicode_class(u, utf8_at(before, &n)) & CHAR_SPACE))
                    break;
                from = (size_t)(before - text);
            }
        if (t->rstrip)
            while (to < len && (unicode_class(u, utf8_at(text + to, &n)) & CHAR_SPACE))
                to += (size_t)n;
        *at = i;
        *m = (struct added_match){ from, to, t };
        return true;
    }
    *at = len;
    return false;
}
