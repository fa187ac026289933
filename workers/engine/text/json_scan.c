#include "workers/engine/text/json_scan.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "workers/engine/text/unicode.h"
#include "protocol/base/json_text.h"

#define DEPTH_MAX 64

bool json_scan_fail(const struct json_scan *s, struct error *err, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    int line = 1;
    for (const char *p = s->text; p < s->at; p++)
        line += *p == '\n';
    return error_set(err, ERR_DATA, "%s:%d: %s", s->name, line, why);
}

static void space_skip(struct json_scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
}

bool json_scan_end(struct json_scan *s, struct error *err)
{
    space_skip(s);
    return s->at == s->end || json_scan_fail(s, err, "there is more after the end of the JSON document");
}

bool json_scan_next(struct json_scan *s, char c)
{
    space_skip(s);
    if (s->at >= s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

bool json_scan_expect(struct json_scan *s, char c, struct error *err)
{
    if (json_scan_next(s, c))
        return true;
    return s->at >= s->end ? json_scan_fail(s, err, "the text ends where '%c' is expected", c) : json_scan_fail(s, err, "'%c' expected", c);
}

static int hex4(const char *p, const char *end)
{
    int v = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* An escape after its backslash; appends to out unless that is NULL. */
static bool escape_read(struct json_scan *s, struct buf *out, struct error *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->at >= s->end)
        return json_scan_fail(s, err, "the text ends inside a string");
    char c = *s->at++;
    if (c != 'u') {
        const char *f = c ? strchr(from, c) : NULL;
        if (!f)
            return json_scan_fail(s, err, "unknown escape in a string");
        if (out)
            buf_char(out, to[f - from]);
        return true;
    }
    int v = hex4(s->at, s->end);
    if (v < 0)
        return json_scan_fail(s, err, "\\u needs four hexadecimal digits");
    s->at += 4;
    uint32_t cp = (uint32_t)v;
    if (v >= 0xD800 && v <= 0xDBFF) {
        int low = s->end - s->at >= 6 && s->at[0] == '\\' && s->at[1] == 'u' ? hex4(s->at + 2, s->end) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return json_scan_fail(s, err, "a lone surrogate in a string");
        s->at += 6;
        cp = 0x10000 + ((uint32_t)(v - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
    } else if (v >= 0xDC00 && v <= 0xDFFF) {
        return json_scan_fail(s, err, "a lone surrogate in a string");
    }
    uint8_t b[4];
    int n = utf8_put(b, cp);
    if (out)
        buf_add(out, b, (size_t)n);
    return true;
}

static bool string_read(struct json_scan *s, struct buf *out, struct error *err)
{
    if (!json_scan_expect(s, '"', err))
        return false;
    for (;;) {
        const char *from = s->at;
        while (s->at < s->end && *s->at != '"' && *s->at != '\\' && (unsigned char)*s->at >= 0x20)
            s->at++;
        size_t len = (size_t)(s->at - from);
        if (utf8_valid_len((const uint8_t *)from, len, NULL, NULL) != len)
            return json_scan_fail(s, err, "a string that is not UTF-8");
        if (out && !buf_add(out, from, len))
            return json_scan_fail(s, err, "a string is too long");
        if (s->at >= s->end)
            return json_scan_fail(s, err, "the text ends inside a string");
        char c = *s->at++;
        if (c == '"')
            return !out || !out->failed || json_scan_fail(s, err, "a string is too long");
        if (c != '\\')
            return json_scan_fail(s, err, "a control character in a string");
        if (!escape_read(s, out, err))
            return false;
    }
}

bool json_scan_string(struct json_scan *s, struct buf *out, struct error *err)
{
    buf_clear(out);
    return string_read(s, out, err);
}

bool json_scan_int(struct json_scan *s, int64_t *out, struct error *err)
{
    space_skip(s);
    bool minus = s->at < s->end && *s->at == '-';
    if (minus)
        s->at++;
    int64_t v = 0;
    int n = 0;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9' && n < 18) {
        v = v * 10 + (*s->at++ - '0');
        n++;
    }
    if (n == 0 || (s->at < s->end && (*s->at == '.' || *s->at == 'e' || *s->at == 'E' || (*s->at >= '0' && *s->at <= '9'))))
        return json_scan_fail(s, err, "a whole number is expected");
    *out = minus ? -v : v;
    return true;
}

static bool word_skip(struct json_scan *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

static bool number_skip(struct json_scan *s)
{
    const char *from = s->at;
    if (s->at < s->end && *s->at == '-')
        s->at++;
    while (s->at < s->end && ((*s->at >= '0' && *s->at <= '9') || strchr("+-.eE", *s->at)) && *s->at)
        s->at++;
    return s->at > from;
}

static bool value_skip(struct json_scan *s, int depth, struct error *err)
{
    if (depth > DEPTH_MAX)
        return json_scan_fail(s, err, "nested deeper than %d", DEPTH_MAX);
    space_skip(s);
    if (s->at >= s->end)
        return json_scan_fail(s, err, "the text ends where a value is expected");
    char open = *s->at;
    if (open == '"')
        return string_read(s, NULL, err);
    if (open != '{' && open != '[') {
        if (word_skip(s, "true") || word_skip(s, "false") || word_skip(s, "null") || word_skip(s, "NaN") || word_skip(s, "Infinity")
            || word_skip(s, "-Infinity") || number_skip(s))
            return true;
        return json_scan_fail(s, err, "a value is expected");
    }
    char close = open == '{' ? '}' : ']';
    s->at++;
    if (json_scan_next(s, close))
        return true;
    for (;;) {
        if (open == '{' && (!string_read(s, NULL, err) || !json_scan_expect(s, ':', err)))
            return false;
        if (!value_skip(s, depth + 1, err))
            return false;
        if (json_scan_next(s, close))
            return true;
        if (!json_scan_expect(s, ',', err))
            return false;
    }
}

bool json_scan_skip(struct json_scan *s, struct error *err)
{
    return value_skip(s, 0, err);
}

json_t *json_scan_value(struct json_scan *s, struct error *err)
{
    space_skip(s);
    const char *from = s->at;
    if (!json_scan_skip(s, err))
        return NULL;
    json_error_t why;
    json_t *v = json_text_read(from, (size_t)(s->at - from), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!v) {
        json_scan_fail(s, err, "%s", why.text);
        err->code = json_text_code(&why);
    }
    return v;
}

bool json_scan_item(struct json_scan *s, bool *first, bool *ok, struct error *err)
{
    *ok = true;
    if (*first && !json_scan_expect(s, '[', err))
        return *ok = false;
    if (json_scan_next(s, ']'))
        return false;
    if (!*first && !json_scan_expect(s, ',', err))
        return *ok = false;
    *first = false;
    return true;
}

bool json_scan_member(struct json_scan *s, bool *first, struct buf *key, bool *ok, struct error *err)
{
    *ok = true;
    if (*first && !json_scan_expect(s, '{', err))
        return *ok = false;
    if (json_scan_next(s, '}'))
        return false;
    if (!*first && !json_scan_expect(s, ',', err))
        return *ok = false;
    *first = false;
    if (!json_scan_string(s, key, err) || !json_scan_expect(s, ':', err))
        return *ok = false;
    return true;
}
