#include "workers/engine/reward/sandbox/output.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/reward/sandbox/number.h"

struct span {
    const char *at;
    size_t len;
};

/* Length of the white space (as Python's str.strip sees it) at the start of s; 0: none. */
static size_t space_len(struct span s)
{
    const unsigned char *p = (const unsigned char *)s.at;
    if (s.len == 0)
        return 0;
    if ((p[0] >= 9 && p[0] <= 13) || (p[0] >= 28 && p[0] <= 32))
        return 1;
    if (s.len >= 2 && p[0] == 0xc2 && (p[1] == 0x85 || p[1] == 0xa0))
        return 2;
    if (s.len < 3)
        return 0;
    unsigned c = ((p[0] & 15u) << 12) | ((p[1] & 63u) << 6) | (p[2] & 63u);
    bool wide = (p[0] & 0xf0) == 0xe0
                && (c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000);
    return wide ? 3 : 0;
}

static struct span span_trim(struct span s)
{
    for (size_t n = space_len(s); n > 0; n = space_len(s)) {
        s.at += n;
        s.len -= n;
    }
    for (bool again = true; again;) {
        again = false;
        for (size_t n = 1; n <= 3 && n <= s.len && !again; n++)
            if (space_len((struct span){ s.at + s.len - n, n }) == n) {
                s.len -= n;
                again = true;
            }
    }
    return s;
}

static bool span_equal(struct span a, struct span b)
{
    return a.len == b.len && memcmp(a.at, b.at, a.len) == 0;
}

/* Length of the line end (as Python's str.splitlines sees it) at the start of s; 0: none. */
static size_t line_end(struct span s)
{
    const unsigned char *p = (const unsigned char *)s.at;
    if (p[0] == '\r' && s.len > 1 && p[1] == '\n')
        return 2;
    if ((p[0] >= 10 && p[0] <= 13) || (p[0] >= 0x1c && p[0] <= 0x1e))
        return 1;
    if (s.len > 1 && p[0] == 0xc2 && p[1] == 0x85)
        return 2;
    return s.len > 2 && p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9) ? 3 : 0;
}

struct lines {
    struct span *line;
    int64_t n, cap;
};
static bool lines_add(struct lines *l, struct span s, struct error *err)
{
    if (l->n == l->cap) {
        int64_t cap = l->cap ? 2 * l->cap : 64;
        struct span *more = realloc(l->line, (size_t)cap * sizeof *more);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory to compare an output of %" PRId64 " lines", l->n);
        l->line = more;
        l->cap = cap;
    }
    l->line[l->n++] = s;
    return true;
}

/* str.splitlines() */
static bool lines_split(struct lines *l, struct span text, struct error *err)
{
    struct span line = { text.at, 0 };
    size_t left = text.len;
    for (const char *p = text.at; left > 0;) {
        size_t end = line_end((struct span){ p, left });
        if (end > 0) {
            if (!lines_add(l, line, err))
                return false;
            line = (struct span){ p + end, 0 };
        } else {
            line.len++;
        }
        p += MAX(end, 1);
        left -= MAX(end, 1);
    }
    return line.len == 0 || lines_add(l, line, err);
}

/* The expected text: split at \n, empty lines dropped, each trimmed. */
static bool lines_expected(struct lines *l, struct span text, struct error *err)
{
    while (text.len > 0) {
        const char *end = memchr(text.at, '\n', text.len);
        struct span line = { text.at, end ? (size_t)(end - text.at) : text.len };
        if (line.len > 0 && !lines_add(l, span_trim(line), err))
            return false;
        size_t used = line.len + (end ? 1 : 0);
        text.at += used;
        text.len -= used;
    }
    return true;
}

static bool lines_equal(const struct lines *a, const struct lines *b)
{
    for (int64_t i = 0; i < a->n && a->n == b->n; i++)
        if (!span_equal(a->line[i], b->line[i]))
            return false;
    return a->n == b->n;
}

/* Step 2: the output with each line trimmed, joined by \n and trimmed as a whole, against the trimmed expected text. */
static bool trimmed_lines_equal(const struct lines *out, struct span expected, struct error *err, bool *equal)
{
    size_t len = 0, total = 0;
    for (int64_t i = 0; i < out->n; i++)
        total += out->line[i].len + 1;
    char *joined = malloc(total + 1);
    if (!joined)
        return error_set(err, ERR_NO_MEMORY, "no memory to compare an output of %zu bytes", total);
    for (int64_t i = 0; i < out->n; i++) {
        struct span s = span_trim(out->line[i]);
        memcpy(joined + len, s.at, s.len);
        len += s.len;
        joined[len++] = '\n';
    }
    *equal = span_equal(span_trim((struct span){ joined, len }), span_trim(expected));
    free(joined);
    return true;
}

/* A number, a delimiter of one byte, or any other word. */
struct token {
    struct span text;
    size_t gap;    // bytes of white space before it
};
/* Take the next token of the rest of a line; false: none is left. */
static bool token_take(struct span *rest, struct token *t)
{
    static const char delimiters[] = "[](){},;:=";
    *t = (struct token){ 0 };
    for (size_t n = space_len(*rest); n > 0; n = space_len(*rest)) {
        t->gap += n;
        rest->at += n;
        rest->len -= n;
    }
    t->text.at = rest->at;
    while (rest->len > 0 && space_len(*rest) == 0) {
        bool ends = *rest->at && strchr(delimiters, *rest->at);
        if (ends && t->text.len > 0)
            break;
        t->text.len++;
        rest->at++;
        rest->len--;
        if (ends)
            break;
    }
    return t->text.len > 0;
}

/* Numbers are equal as number.h says, all else as text. White space counts as it stands, except between numbers alone. */
static bool tokens_equal(struct span out, struct span expected)
{
    struct token a, b;
    bool numbers = true, same_gaps = true;
    out = span_trim(out);
    expected = span_trim(expected);
    for (;;) {
        bool more = token_take(&out, &a);
        if (more != token_take(&expected, &b))
            return false;
        if (!more)
            return numbers || same_gaps;
        if (!span_equal(a.text, b.text) && !number_equal(a.text.at, a.text.len, b.text.at, b.text.len))
            return false;
        numbers = numbers && number_is(b.text.at, b.text.len);
        same_gaps = same_gaps && a.gap == b.gap;
    }
}

/* Step 5: line by line, token by token. */
static bool numbers_equal(const struct lines *out, const struct lines *expected)
{
    for (int64_t i = 0; i < out->n && out->n == expected->n; i++)
        if (!tokens_equal(out->line[i], expected->line[i]))
            return false;
    return out->n == expected->n;
}

bool output_compare(const char *out, size_t out_len, const char *expected, size_t expected_len, bool *ok, struct error *err)
{
    struct span o = { out, out_len }, e = { expected, expected_len };
    struct lines lines = { NULL }, wanted = { NULL };
    bool done = false;
    *ok = span_equal(span_trim(o), span_trim(e));    // 1
    if (*ok)
        return true;
    TRY(lines_split(&lines, o, err));
    TRY(trimmed_lines_equal(&lines, e, err, ok));    // 2
    if (!*ok)
        *ok = lines.n == 1 && span_equal(lines.line[0], e);    // 3
    if (!*ok) {
        TRY(lines_expected(&wanted, e, err));
        *ok = lines_equal(&lines, &wanted);    // 4
    }
    if (!*ok) {
        int64_t n = 0;
        for (int64_t i = 0; i < lines.n; i++)
            if (lines.line[i].len > 0)
                lines.line[n++] = lines.line[i];
        lines.n = n;
        *ok = lines_equal(&lines, &wanted) || numbers_equal(&lines, &wanted);    // 4 without empty lines, 5
    }
    done = true;
out:
    free(lines.line);
    free(wanted.line);
    return done;
}
