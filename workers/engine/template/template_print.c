/* template_print.c - values of a rendering as text: Python's str and repr, and json.dumps as transformers calls it */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "protocol/base/json_text.h"
#include "workers/engine/template/template_parts.h"
#include "workers/engine/text/unicode.h"

/* ---- str and repr ---- */

/* repr of a float: the fewest digits that read back, as Python writes them. */
static void float_print(struct buf *b, double f)
{
    char digits[40];
    if (isnan(f) || isinf(f)) {
        buf_str(b, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (strtod(digits, NULL) != f && ++precision < 17);
    const char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    char mantissa[32];
    size_t n = 0;
    for (const char *p = digits; p < e; p++)
        if (*p >= '0' && *p <= '9')
            mantissa[n++] = *p;
    while (n > 1 && mantissa[n - 1] == '0')
        n--;
    mantissa[n] = 0;
    if (digits[0] == '-')
        buf_char(b, '-');
    if (exponent < -4 || exponent >= 16) {
        buf_fmt(b, "%c%s%s%s%02d", mantissa[0], n > 1 ? "." : "", mantissa + 1, exponent < 0 ? "e-" : "e+", abs(exponent));
    } else if (exponent < 0) {
        buf_fmt(b, "0.%.*s%s", -exponent - 1, "0000", mantissa);
    } else {
        for (int i = 0; i <= exponent || (size_t)i < n; i++) {
            if (i == exponent + 1)
                buf_char(b, '.');
            buf_char(b, (size_t)i < n ? mantissa[i] : '0');
        }
        if ((size_t)exponent + 1 >= n)
            buf_str(b, ".0");
    }
}

static bool is_printable(uint32_t cp)
{
    if (cp == ' ')
        return true;
    switch ((int)utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    }
    return true;
}

static void str_repr(struct buf *b, struct str s)
{
    bool single = s.len && memchr(s.p, '\'', s.len), twice = s.len && memchr(s.p, '"', s.len);
    char quote = single && !twice ? '"' : '\'';
    buf_char(b, quote);
    for (size_t i = 0; i < s.len;) {
        int n;
        uint32_t c = utf8_at((const uint8_t *)s.p + i, &n);
        if (c == (uint32_t)quote || c == '\\')
            buf_fmt(b, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            buf_str(b, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (!is_printable(c))
            buf_fmt(b, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        else
            buf_add(b, s.p + i, (size_t)n);
        i += (size_t)n;
    }
    buf_char(b, quote);
}

static void list_repr(struct render *r, struct buf *b, struct value v, int depth)
{
    static const char *const views[][2] = { { "dict_items([", "])" }, { "dict_keys([", "])" }, { "dict_values([", "])" } };
    bool tuple = v.kind == V_TUPLE, view = v.kind == V_VIEW;
    const char *const *signs = views[v.view == 'k' ? 1 : v.view == 'v' ? 2 : 0];
    buf_str(b, view ? signs[0] : tuple ? "(" : "[");
    for (int64_t i = 0; i < v.list->n; i++) {
        if (i)
            buf_str(b, ", ");
        jinja_repr(r, b, v.list->v[i], depth + 1);
    }
    buf_str(b, view ? signs[1] : !tuple ? "]" : v.list->n == 1 ? ",)" : ")");
}

static void dict_repr(struct render *r, struct buf *b, const struct dict *d, int depth)
{
    buf_char(b, '{');
    for (int64_t i = 0; i < d->n; i++) {
        if (i)
            buf_str(b, ", ");
        jinja_repr(r, b, d->key[i], depth + 1);
        buf_str(b, ": ");
        jinja_repr(r, b, d->value[i], depth + 1);
    }
    buf_char(b, '}');
}

/* Fail when a buffer of ours is full; it must be released first. */
static void full_check(struct render *r, struct buf *b)
{
    if (b->failed || b->len > RENDER_OUTPUT_MAX) {
        if (b != r->out)
            buf_release(b);
        if (r->unprintable)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "printing a %s is not supported", r->unprintable);
        jinja_fail_set(&r->fail, ERR_FULL, "more than %zu MiB of text", RENDER_OUTPUT_MAX >> 20);
    }
}

void jinja_repr(struct render *r, struct buf *b, struct value v, int depth)
{
    r->steps += 1 + (v.kind == V_STR ? (int64_t)v.s.len / 64 : 0);
    if (r->steps > RENDER_STEPS_MAX || depth > VALUE_DEPTH_MAX)
        b->failed = true;    // failing here would leak b: value_text checks the flag
    if (b->failed)
        return;
    switch (v.kind) {
    case V_STR:
        if (v.markup)
            buf_str(b, "Markup(");
        if (v.whole)
            buf_add(b, v.s.p, v.s.len);
        else
            str_repr(b, v.s);
        if (v.markup)
            buf_char(b, ')');
        break;
    case V_NONE: buf_str(b, "None"); break;
    case V_BOOL: buf_str(b, v.b ? "True" : "False"); break;
    case V_INT: buf_fmt(b, "%" PRId64, v.i); break;
    case V_FLOAT: float_print(b, v.f); break;
    case V_UNDEFINED: buf_str(b, "Undefined"); break;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW: list_repr(r, b, v, depth); break;
    case V_DICT: dict_repr(r, b, v.dict, depth); break;
    case V_RANGE:
    case V_GENERATOR:
    case V_NAMESPACE:
    case V_LOOP:
    case V_MACRO:
    case V_FUNCTION:
    case V_METHOD:
    case V_MISSING:
        b->failed = true;
        r->unprintable = jinja_type(&v);
        break;
    }
}

static void printable_check(struct render *r, struct value v)
{
    if (v.kind == V_RANGE || v.kind == V_GENERATOR || v.kind >= V_NAMESPACE)
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "printing a %s is not supported", jinja_type(&v));
}

void jinja_print(struct render *r, struct buf *b, struct value v)
{
    printable_check(r, v);
    if (v.kind == V_STR)
        buf_add(b, v.s.p, v.s.len);
    else if (v.kind != V_UNDEFINED)
        jinja_repr(r, b, v, 0);
    full_check(r, b);
    render_step(r, v.kind == V_STR ? (int64_t)(v.s.len / 64) : 1);
}

struct str jinja_text(struct render *r, struct value v)
{
    if (v.kind == V_STR)
        return v.s;
    printable_check(r, v);
    struct buf b = { .max = RENDER_OUTPUT_MAX };
    if (v.kind != V_UNDEFINED)
        jinja_repr(r, &b, v, 0);
    full_check(r, &b);
    return jinja_from_buf(r, &b).s;
}

void jinja_text_escape(struct buf *b, struct str s)
{
    static const struct {
        char c;
        const char *as;
    } signs[] = {
        { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '"', "&#34;" }, { '\'', "&#39;" },
    };
    for (size_t i = 0; i < s.len; i++) {
        size_t k = 0;
        while (k < ARRAY_SIZE(signs) && signs[k].c != s.p[i])
            k++;
        if (k < ARRAY_SIZE(signs))
            buf_str(b, signs[k].as);
        else
            buf_char(b, s.p[i]);
    }
}

/* ---- tojson: json.dumps as transformers calls it ---- */

static void json_newline(struct buf *b, struct value indent, int depth)
{
    if (indent.kind == V_MISSING || indent.kind == V_NONE)
        return;
    buf_char(b, '\n');
    for (int i = 0; i < depth; i++) {
        if (indent.kind == V_STR)
            buf_add(b, indent.s.p, indent.s.len);
        for (int64_t k = 0; indent.kind == V_INT && k < indent.i; k++)
            buf_char(b, ' ');
    }
}

static void json_fail(struct render *r, struct buf *b, struct value v) __attribute__((noreturn));
static void json_fail(struct render *r, struct buf *b, struct value v)
{
    buf_release(b);
    jinja_fail_set(&r->fail, ERR_DATA, "a %s cannot be written as JSON", jinja_type(&v));
}

static void json_key(struct render *r, struct buf *b, struct value k, bool ascii)
{
    if (k.kind == V_STR) {
        json_text_print(b, k.s.p, k.s.len, ascii ? JSON_TEXT_ASCII : JSON_TEXT_UTF8);
        return;
    }
    buf_char(b, '"');
    if (k.kind == V_NONE)
        buf_str(b, "null");
    else if (k.kind == V_BOOL)
        buf_str(b, k.b ? "true" : "false");
    else if (k.kind == V_INT || k.kind == V_FLOAT)
        jinja_repr(r, b, k, 0);
    else
        json_fail(r, b, k);
    buf_char(b, '"');
}

struct key_order {
    struct str key;
    int64_t i;
};
static int key_compare(const void *a, const void *b)
{
    const struct key_order *x = a, *y = b;
    int c = memcmp(x->key.p, y->key.p, MIN(x->key.len, y->key.len));
    return c ? c : (x->key.len > y->key.len) - (x->key.len < y->key.len);
}

/* opt: ensure_ascii, indent, separator of items, separator of keys, sort_keys. b is released before any failure. */
void jinja_json(struct render *r, struct buf *b, struct value v, const struct value *opt, int depth)
{
    r->steps += 1 + (v.kind == V_STR ? (int64_t)v.s.len / 64 : 0);
    if (b->failed || depth > VALUE_DEPTH_MAX || r->steps > RENDER_STEPS_MAX) {
        buf_release(b);
        jinja_fail_set(&r->fail, ERR_FULL, "a value is too large or too deep for JSON");
    }
    bool ascii = opt[0].b;
    switch ((int)v.kind) {
    case V_NONE: buf_str(b, "null"); return;
    case V_BOOL: buf_str(b, v.b ? "true" : "false"); return;
    case V_INT: jinja_repr(r, b, v, 0); return;
    case V_FLOAT:
        if (isnan(v.f) || isinf(v.f))
            buf_str(b, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
        else
            jinja_repr(r, b, v, 0);
        return;
    case V_STR:
        if (v.whole)
            buf_add(b, v.s.p, v.s.len);
        else
            json_text_print(b, v.s.p, v.s.len, ascii ? JSON_TEXT_ASCII : JSON_TEXT_UTF8);
        return;
    case V_LIST:
    case V_TUPLE:
        if (v.list->n == 0) {
            buf_str(b, "[]");
            return;
        }
        buf_char(b, '[');
        for (int64_t i = 0; i < v.list->n; i++) {
            if (i)
                buf_add(b, opt[2].s.p, opt[2].s.len);
            json_newline(b, opt[1], depth + 1);
            jinja_json(r, b, v.list->v[i], opt, depth + 1);
        }
        json_newline(b, opt[1], depth);
        buf_char(b, ']');
        return;
    case V_DICT: {
        const struct dict *d = v.dict;
        if (d->n == 0) {
            buf_str(b, "{}");
            return;
        }
        struct key_order *order = NULL;
        if (opt[4].b) {
            if (r->pool.used + (size_t)d->n * sizeof *order + 64 > r->pool.max)
                json_fail(r, b, v);
            order = jinja_pool_take(&r->fail, (size_t)d->n * sizeof *order);
            for (int64_t i = 0; i < d->n; i++) {
                if (d->key[i].kind != V_STR)
                    json_fail(r, b, v);
                order[i] = (struct key_order){ d->key[i].s, i };
            }
            qsort(order, (size_t)d->n, sizeof *order, key_compare);
        }
        buf_char(b, '{');
        for (int64_t i = 0; i < d->n; i++) {
            int64_t at = order ? order[i].i : i;
            if (i)
                buf_add(b, opt[2].s.p, opt[2].s.len);
            json_newline(b, opt[1], depth + 1);
            json_key(r, b, d->key[at], ascii);
            buf_add(b, opt[3].s.p, opt[3].s.len);
            jinja_json(r, b, d->value[at], opt, depth + 1);
        }
        json_newline(b, opt[1], depth);
        buf_char(b, '}');
        return;
    }
    default: json_fail(r, b, v);
    }
}
