#include "workers/engine/reward/sandbox/value.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "workers/engine/reward/sandbox/number.h"

#define DEPTH_MAX 256
struct reader {
    const char *text;
    size_t at, len;
    struct error *err;
};

void value_free(struct json_value *v)
{
    if (!v)
        return;
    int64_t n = v->kind == VALUE_DICT ? 2 * v->n : v->n;
    for (int64_t i = 0; i < n; i++)
        value_free(v->item[i]);
    free(v->item);
    free(v->text);
    free(v);
}

static struct json_value *value_new(struct reader *r, enum json_value_kind kind)
{
    struct json_value *v = calloc(1, sizeof *v);
    if (!v)
        error_set(r->err, ERR_NO_MEMORY, "no memory for a JSON value");
    else
        v->kind = kind;
    return v;
}

static bool fail(struct reader *r, const char *what)
{
    return error_set(r->err, ERR_DATA, "not JSON at byte %zu: %s", r->at, what);
}

static void space_skip(struct reader *r)
{
    while (r->at < r->len && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at])
        r->at++;
}

static bool word_take(struct reader *r, const char *word)
{
    size_t n = strlen(word);
    if (r->len - r->at < n || memcmp(r->text + r->at, word, n) != 0)
        return false;
    r->at += n;
    return true;
}

static int peek(const struct reader *r)
{
    return r->at < r->len ? (unsigned char)r->text[r->at] : -1;
}

static bool hex4(struct reader *r, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int c = peek(r);
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return fail(r, "a \\u needs four hexadecimal digits");
        *out = *out * 16 + (unsigned)digit;
    }
    return true;
}

static void utf8_add(struct buf *b, unsigned c)
{
    if (c < 0x80) {
        buf_char(b, (char)c);
    } else if (c < 0x800) {
        buf_char(b, (char)(0xc0 | c >> 6));
        buf_char(b, (char)(0x80 | (c & 63)));
    } else if (c < 0x10000) {
        buf_char(b, (char)(0xe0 | c >> 12));
        buf_char(b, (char)(0x80 | (c >> 6 & 63)));
        buf_char(b, (char)(0x80 | (c & 63)));
    } else {
        buf_char(b, (char)(0xf0 | c >> 18));
        buf_char(b, (char)(0x80 | (c >> 12 & 63)));
        buf_char(b, (char)(0x80 | (c >> 6 & 63)));
        buf_char(b, (char)(0x80 | (c & 63)));
    }
}

/* After a backslash. */
static bool escape_read(struct reader *r, struct buf *b)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = peek(r);
    const char *known = c > 0 ? strchr(from, c) : NULL;
    if (known) {
        r->at++;
        return buf_char(b, to[known - from]) || fail(r, "no memory");
    }
    unsigned unit, low;
    if (c != 'u')
        return fail(r, "unknown escape");
    r->at++;
    if (!hex4(r, &unit))
        return false;
    if (unit >= 0xd800 && unit < 0xdc00 && r->len - r->at >= 6 && memcmp(r->text + r->at, "\\u", 2) == 0) {
        size_t back = r->at;
        r->at += 2;
        if (!hex4(r, &low))
            return false;
        if (low >= 0xdc00 && low < 0xe000)
            unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
        else
            r->at = back;    // a lone half, as Python keeps it
    }
    utf8_add(b, unit);
    return true;
}

static struct json_value *string_read(struct reader *r)
{
    struct buf b = BUF_INIT;
    struct json_value *v = NULL;
    for (r->at++; peek(r) != '"';) {
        int c = peek(r);
        if (c < 0x20) {
            fail(r, c < 0 ? "a string without its end" : "a control character in a string");
            goto out;
        }
        r->at++;
        if (c == '\\')
            TRY(escape_read(r, &b));
        else
            buf_char(&b, (char)c);
    }
    r->at++;
    v = value_new(r, VALUE_STR);
    if (v && (b.failed || !buf_reserve(&b, 1))) {
        error_set(r->err, ERR_NO_MEMORY, "no memory for a JSON string");
        value_free(v);
        v = NULL;
    }
    if (v) {
        v->text = b.data;
        v->len = b.len;
        b.data = NULL;
    }
out:
    free(b.data);
    return v;
}

static struct json_value *number_read(struct reader *r)
{
    size_t start = r->at;
    bool whole = true;
    if (peek(r) == '-')
        r->at++;
    size_t digits = r->at;
    while (peek(r) >= '0' && peek(r) <= '9')
        r->at++;
    if (r->at == digits) {
        fail(r, "a value was expected");
        return NULL;
    }
    while (peek(r) == '.' || peek(r) == 'e' || peek(r) == 'E' || (!whole && (peek(r) == '+' || peek(r) == '-'))
           || (peek(r) >= '0' && peek(r) <= '9')) {
        whole = false;
        r->at++;
    }
    struct json_value *v = value_new(r, whole ? VALUE_INT : VALUE_FLOAT);
    if (!v)
        return NULL;
    while (whole && r->text[digits] == '0' && digits + 1 < r->at)
        digits++;
    bool negative = r->text[start] == '-' && !(whole && r->text[digits] == '0');
    size_t n = r->at - digits;
    v->text = malloc(n + 2);
    if (!v->text) {
        error_set(r->err, ERR_NO_MEMORY, "no memory for a JSON number");
        value_free(v);
        return NULL;
    }
    v->len = (size_t)snprintf(v->text, n + 2, "%s%.*s", negative ? "-" : "", (int)MIN(n, (size_t)INT32_MAX), r->text + digits);
    char *end;
    if (!whole && (v->number = strtod(v->text, &end), *end)) {
        fail(r, "a number that is none");
        value_free(v);
        return NULL;
    }
    if (!whole && isinf(v->number)) {
        fail(r, "a number too large for a double");
        value_free(v);
        return NULL;
    }
    return v;
}

static struct json_value *value_parse(struct reader *r, int depth);

struct pair {
    struct json_value *key, *value;
};

static int pair_compare(const void *a, const void *b)
{
    const struct json_value *x = ((const struct pair *)a)->key, *y = ((const struct pair *)b)->key;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return memcmp(x->text, y->text, x->len);
}

/* Put an object's pairs in order, so that two objects are compared in one walk. False: a key is there twice. */
static bool pairs_sort(struct reader *r, struct json_value *v)
{
    if (v->n > 1)
        qsort(v->item, (size_t)v->n, sizeof(struct pair), pair_compare);
    for (int64_t i = 1; i < v->n; i++)
        if (pair_compare(&v->item[2 * i - 2], &v->item[2 * i]) == 0)
            return fail(r, "an object has the same key twice");
    return true;
}

/* A list or, with keys, an object; r is at the bracket. */
static struct json_value *members_read(struct reader *r, bool dict, int depth)
{
    struct json_value *v = value_new(r, dict ? VALUE_DICT : VALUE_LIST);
    int64_t cap = 0, n = 0;
    bool ok = false;
    char close = dict ? '}' : ']';
    if (!v)
        return NULL;
    r->at++;
    space_skip(r);
    for (bool first = true; peek(r) != close; first = false) {
        if (!first) {
            if (peek(r) != ',') {
                fail(r, "a comma or the end was expected");
                goto out;
            }
            r->at++;
            space_skip(r);
        }
        for (int half = dict ? 0 : 1; half < 2; half++) {
            if (n == cap) {
                cap = cap ? 2 * cap : 8;
                struct json_value **more = realloc(v->item, (size_t)cap * sizeof *more);
                if (!more) {
                    error_set(r->err, ERR_NO_MEMORY, "no memory for a JSON list");
                    goto out;
                }
                v->item = more;
            }
            if (half == 0 && peek(r) != '"') {
                fail(r, "a key was expected");
                goto out;
            }
            struct json_value *member = value_parse(r, depth + 1);
            if (!member)
                goto out;
            v->item[n++] = member;
            v->n = dict ? n / 2 : n;
            space_skip(r);
            if (half == 0) {
                if (peek(r) != ':') {
                    fail(r, "a colon was expected");
                    value_free(member);    // a key without its value is not counted in v->n
                    n--;
                    goto out;
                }
                r->at++;
                space_skip(r);
            }
        }
    }
    r->at++;
    ok = !dict || pairs_sort(r, v);
out:
    if (!ok) {
        if (dict && n % 2)
            value_free(v->item[n - 1]);
        value_free(v);
        v = NULL;
    }
    return v;
}

static struct json_value *value_parse(struct reader *r, int depth)
{
    static const struct {
        const char *word;
        enum json_value_kind kind;
        const char *text;
        double number;
    } words[] = {
        { "null", VALUE_NULL, NULL, 0 },
        { "true", VALUE_INT, "1", 0 },
        { "false", VALUE_INT, "0", 0 },
        { "NaN", VALUE_FLOAT, NULL, NAN },
        { "Infinity", VALUE_FLOAT, NULL, INFINITY },
        { "-Infinity", VALUE_FLOAT, NULL, -INFINITY },
    };
    if (depth > DEPTH_MAX) {
        fail(r, "nested too deep");
        return NULL;
    }
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (word_take(r, words[i].word)) {
            struct json_value *v = value_new(r, words[i].kind);
            if (!v)
                return NULL;
            v->number = words[i].number;
            if (words[i].text && !(v->text = strdup(words[i].text))) {
                error_set(r->err, ERR_NO_MEMORY, "no memory for a JSON value");
                value_free(v);
                return NULL;
            }
            v->len = words[i].text ? 1 : 0;
            return v;
        }
    int c = peek(r);
    return c == '"' ? string_read(r) : c == '[' || c == '{' ? members_read(r, c == '{', depth) : number_read(r);
}

struct json_value *value_read(const char *text, size_t len, struct error *err)
{
    struct reader r = { .text = text, .len = len, .err = err };
    space_skip(&r);
    struct json_value *v = value_parse(&r, 0);
    space_skip(&r);
    if (v && r.at != r.len) {
        fail(&r, "something follows the value");
        value_free(v);
        v = NULL;
    }
    return v;
}

/* A whole number and a float, exactly: 2**53 + 1 is not 2.0**53. */
static bool int_equals_float(const struct json_value *a, double d)
{
    char text[400];
    if (!isfinite(d) || d != floor(d) || a->len > 310)
        return false;
    snprintf(text, sizeof text, "%.0f", d == 0 ? 0 : d);
    return strcmp(text, a->text) == 0;
}

static bool is_number(const struct json_value *v)
{
    return v->kind == VALUE_INT || v->kind == VALUE_FLOAT;
}

/* value_accepted for values that are neither lists nor objects. */
static bool scalar_accepted(const struct json_value *got, const struct json_value *expected)
{
    if (expected->kind == VALUE_FLOAT)
        return number_is_close(got->kind == VALUE_FLOAT ? got->number : strtod(got->text, NULL), expected->number);
    if (got->kind == VALUE_FLOAT)
        return int_equals_float(expected, got->number);
    return got->len == expected->len && (got->len == 0 || memcmp(got->text, expected->text, got->len) == 0);
}

bool value_accepted(const struct json_value *got, const struct json_value *expected)
{
    if (got->kind != expected->kind)
        return is_number(got) && is_number(expected) && scalar_accepted(got, expected);
    if (got->kind != VALUE_LIST && got->kind != VALUE_DICT)
        return scalar_accepted(got, expected);
    if (got->n != expected->n)
        return false;
    for (int64_t i = 0; i < (got->kind == VALUE_DICT ? 2 : 1) * got->n; i++)    // keys and values in turn, in the order of the keys
        if (!value_accepted(got->item[i], expected->item[i]))
            return false;
    return true;
}
