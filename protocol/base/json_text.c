#include "protocol/base/json_text.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/utf8.h"

/* How many bytes at s need no escape in a JSON string, in both forms. */
static size_t plain_len(const char *s, size_t len)
{
    size_t n = 0;
    while (n < len && (unsigned char)s[n] >= 32 && (unsigned char)s[n] < 0x7f && s[n] != '"' && s[n] != '\\')
        n++;
    return n;
}

static void escape_print(struct buf *out, unsigned char c)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *f = c ? strchr(from, c) : NULL;
    if (f)
        buf_add(out, (char[]){ '\\', to[f - from] }, 2);
    else
        buf_fmt(out, "\\u%04x", c);
}

/* The code point of the whole character of n bytes at s. */
static uint32_t code_point(const unsigned char *s, int n)
{
    uint32_t c = n == 1 ? s[0] : s[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++)
        c = c << 6 | (s[i] & 0x3f);
    return c;
}

static void beyond_ascii_print(struct buf *out, uint32_t c)
{
    if (c < 0x10000)
        buf_fmt(out, "\\u%04x", c);
    else
        buf_fmt(out, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
}

void json_text_print(struct buf *out, const char *s, size_t len, enum json_text_form form)
{
    buf_char(out, '"');
    for (size_t i = 0; i < len;) {
        size_t plain = plain_len(s + i, len - i);
        buf_add(out, s + i, plain);
        i += plain;
        if (i == len)
            break;
        const unsigned char *at = (const unsigned char *)s + i;
        int n = utf8_look(at, len - i);
        if (n == 1 && at[0] != 0x7f)
            escape_print(out, at[0]);
        else if (form == JSON_TEXT_ASCII)
            beyond_ascii_print(out, n > 0 ? code_point(at, n) : 0xFFFD);
        else if (n > 0)
            buf_add(out, at, (size_t)n);
        else
            buf_str(out, "\xef\xbf\xbd");
        i += n > 0 ? (size_t)n : 1;
    }
    buf_char(out, '"');
}

static void count_print(struct buf *out, int64_t v, bool negative)
{
    char text[24], *at = text + sizeof text;
    uint64_t left = v < 0 ? (uint64_t)-v : (uint64_t)v;
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (negative)
        *--at = '-';
    buf_add(out, at, (size_t)(text + sizeof text - at));
}

/* Integers by hand, everything else with the fewest digits that read back to the same double. */
void json_number_print(struct buf *out, double v)
{
    char text[40];
    if (isnan(v)) {
        buf_str(out, "NaN");
        return;
    }
    if (isinf(v)) {
        buf_str(out, v > 0 ? "Infinity" : "-Infinity");
        return;
    }
    if (fabs(v) < 1e15 && v == (double)(int64_t)v) {    // counts
        count_print(out, (int64_t)v, signbit(v));
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {    // %g drops zeros at the end; 17 always read back
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (digits == 17 || strtod(text, NULL) == v)
            break;
    }
    buf_str(out, text);
}

json_t *json_text_new(const char *text)
{
    json_t *json = json_string(text);
    char *copy = json ? NULL : strdup(text);
    for (char *c = copy; c && *c; c++)
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    if (copy)
        json = json_string(copy);
    free(copy);
    return json;
}
