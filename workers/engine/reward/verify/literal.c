#include "workers/engine/reward/verify/literal.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "protocol/base/buf.h"

struct reader {
    const char *start, *at, *end;
    struct error *err;
};

static json_t *value_read(struct reader *r, int depth);

static json_t *fail(struct reader *r, const char *what)
{
    error_set(r->err, ERR_DATA, "%s at byte %zu", what, (size_t)(r->at - r->start));
    return NULL;
}

static void space_skip(struct reader *r)
{
    while (r->at < r->end && isspace((unsigned char)*r->at))
        r->at++;
}

static bool next_is(struct reader *r, char c)
{
    space_skip(r);
    if (r->at >= r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

/* n hexadecimal digits as a character. */
static bool hex_put(struct reader *r, int n, struct buf *out)
{
    int32_t cp = 0;
    for (int i = 0; i < n; i++, r->at++) {
        if (r->at >= r->end || !isxdigit((unsigned char)*r->at))
            return false;
        int c = tolower((unsigned char)*r->at);
        cp = cp * 16 + (isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    uint8_t bytes[4];
    if (n == 4 && cp >= 0xD800 && cp < 0xDC00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {    // JSON's pairs
        char four[5] = { r->at[2], r->at[3], r->at[4], r->at[5], 0 }, *stop;
        long low = strtol(four, &stop, 16);
        if (!*stop && low >= 0xDC00 && low < 0xE000) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + (int32_t)(low - 0xDC00);
            r->at += 6;
        }
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        cp = 0xFFFD;
    return buf_add(out, bytes, (size_t)utf8proc_encode_char(cp, bytes));
}

static bool escape_read(struct reader *r, struct buf *out)
{
    static const char from[] = "abfnrtv\\'\"/", to[] = "\a\b\f\n\r\t\v\\'\"/";
    char c = r->at < r->end ? *r->at++ : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (known)
        return buf_char(out, to[known - from]);
    if (c == '\n')
        return true;    // a joined line
    if (c == 'x' || c == 'u' || c == 'U')
        return hex_put(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    if (c >= '0' && c <= '7') {
        int32_t cp = c - '0';
        uint8_t bytes[4];
        for (int i = 0; i < 2 && r->at < r->end && *r->at >= '0' && *r->at <= '7'; i++)
            cp = cp * 8 + *r->at++ - '0';
        return buf_add(out, bytes, (size_t)utf8proc_encode_char(cp, bytes));
    }
    return c && buf_char(out, '\\') && buf_char(out, c);    // Python keeps what it does not know
}

/* One quoted text, its prefix passed. */
static bool quoted_read(struct reader *r, bool raw, struct buf *out)
{
    char quote = *r->at;
    bool triple = r->end - r->at >= 3 && r->at[1] == quote && r->at[2] == quote;
    for (r->at += triple ? 3 : 1; r->at < r->end;) {
        if (*r->at == quote && (!triple || (r->end - r->at >= 3 && r->at[1] == quote && r->at[2] == quote))) {
            r->at += triple ? 3 : 1;
            return true;
        }
        if (*r->at == '\\' && !raw) {
            r->at++;
            if (!escape_read(r, out))
                return false;
        } else {
            buf_char(out, *r->at++);
        }
    }
    return false;
}

/* Is this the start of a text? Then *quote is where its quote is. */
static bool text_starts(const struct reader *r, const char **quote, bool *raw)
{
    const char *p = r->at;
    *raw = false;
    for (int i = 0; i < 2 && p < r->end && strchr("urUR", *p) && *p; i++, p++)
        *raw = *raw || *p == 'r' || *p == 'R';
    *quote = p;
    return p < r->end && (*p == '\'' || *p == '"');
}

static json_t *text_read(struct reader *r)
{
    struct buf out = { .max = 64u << 20 };
    const char *quote;
    bool raw;
    json_t *v = NULL;
    while (text_starts(r, &quote, &raw)) {    // neighbours are joined
        r->at = quote;
        if (!quoted_read(r, raw, &out)) {
            fail(r, "a text that does not end or has a bad escape");
            goto out;
        }
        space_skip(r);
    }
    v = out.failed ? NULL : json_stringn(buf_text(&out), out.len);
    if (!v)
        fail(r, "a text that is not UTF-8 or too long");
out:
    buf_release(&out);
    return v;
}

static json_t *number_read(struct reader *r)
{
    char digits[64];
    size_t n = 0;
    while (r->at < r->end && n + 1 < sizeof digits && (isalnum((unsigned char)*r->at) || strchr("+-._", *r->at)) && *r->at) {
        if (*r->at != '_')
            digits[n++] = *r->at;
        r->at++;
    }
    digits[n] = 0;
    char *end;
    errno = 0;
    long long whole = strtoll(digits, &end, 10);
    if (n > 0 && !*end && errno == 0)
        return json_integer(whole);
    double real = strtod(digits, &end);
    json_t *v = n > 0 && !*end && digits[strspn(digits, "+-")] != 'n' && digits[strspn(digits, "+-")] != 'i' ? json_real(real) : NULL;
    return v ? v : fail(r, "not a value");
}

static json_t *list_read(struct reader *r, char close, int depth)
{
    json_t *list = json_array();
    while (list && !next_is(r, close)) {
        json_t *v = value_read(r, depth + 1);
        if (!v || json_array_append_new(list, v) != 0) {
            json_decref(list);
            return NULL;
        }
        if (!next_is(r, ',') && !(r->at < r->end && *r->at == close)) {
            json_decref(list);
            return fail(r, "a list that does not end");
        }
    }
    return list;
}

static json_t *dict_read(struct reader *r, int depth)
{
    json_t *dict = json_object(), *key = NULL, *v = NULL;
    while (dict && !next_is(r, '}')) {
        key = value_read(r, depth + 1);
        if (!key)
            goto failed;
        if (!json_is_string(key) || !next_is(r, ':')) {
            fail(r, "a dictionary whose key is not a text followed by ':'");
            goto failed;
        }
        v = value_read(r, depth + 1);
        if (!v || json_object_set_new(dict, json_string_value(key), v) != 0)
            goto failed;
        json_decref(key);
        key = NULL;
        if (!next_is(r, ',') && !(r->at < r->end && *r->at == '}')) {
            fail(r, "a dictionary that does not end");
            goto failed;
        }
    }
    return dict;
failed:
    json_decref(key);
    json_decref(dict);
    return NULL;
}

static json_t *value_read(struct reader *r, int depth)
{
    static const struct {
        const char *word;
        int kind;
    } words[] = { { "None", 0 }, { "null", 0 }, { "True", 1 }, { "true", 1 }, { "False", 2 }, { "false", 2 } };
    const char *quote;
    bool raw;
    if (depth > LITERAL_DEPTH)
        return fail(r, "values nested too deeply");
    space_skip(r);
    if (text_starts(r, &quote, &raw))
        return text_read(r);
    if (next_is(r, '['))
        return list_read(r, ']', depth);
    if (next_is(r, '{'))
        return dict_read(r, depth);
    if (next_is(r, '(')) {
        const char *from = r->at;
        json_t *list = list_read(r, ')', depth), *only = json_array_get(list, 0);
        if (json_array_size(list) != 1 || memchr(from, ',', (size_t)(r->at - from)))
            return list;
        json_incref(only);    // (x) is x
        json_decref(list);
        return only;
    }
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        size_t n = strlen(words[i].word);
        if ((size_t)(r->end - r->at) >= n && memcmp(r->at, words[i].word, n) == 0) {
            r->at += n;
            return words[i].kind == 0 ? json_null() : json_boolean(words[i].kind == 1);
        }
    }
    return number_read(r);
}

json_t *literal_read(const char *text, size_t len, struct error *err)
{
    struct error own = { 0 };
    struct reader r = { text, text, text + len, &own };
    json_t *v = value_read(&r, 0);
    space_skip(&r);
    if (v && r.at < r.end) {
        json_decref(v);
        v = fail(&r, "something after the value");
    }
    if (!v && own.code == ERR_NONE)
        error_set(&own, ERR_NO_MEMORY, "no memory for a literal");
    if (!v)
        *err = own;
    return v;
}
