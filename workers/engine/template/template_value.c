/* Values of a rendering and what Python does with them: truth, equality, order, printing, members, arithmetic. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "protocol/base/json_text.h"
#include "workers/engine/template/template_parts.h"
#include "workers/engine/text/unicode.h"

#define VALUE_DEPTH_MAX 200

void render_step(struct render *r, int64_t n)
{
    r->steps += n;
    if (r->steps > RENDER_STEPS_MAX)
        jinja_fail_set(&r->fail, ERR_FULL, "more than %" PRId64 " steps", RENDER_STEPS_MAX);
}

/* ---- making ---- */

struct value jinja_new_str(struct render *r, const char *p, size_t len)
{
    char *copy = jinja_pool_take(&r->fail, len + 1);
    if (len)
        memcpy(copy, p, len);
    render_step(r, (int64_t)(len / 64));
    return jinja_str(copy, len);
}

struct value jinja_from_buf(struct render *r, struct buf *b)
{
    bool failed = b->failed;
    size_t len = b->len;
    char *copy = NULL;
    if (!failed && r->pool.used + len + 64 < r->pool.max) {    // release b also when the pool has no room
        copy = jinja_pool_take(&r->fail, len + 1);
        memcpy(copy, buf_text(b), len);
    }
    buf_release(b);
    if (!copy)
        jinja_fail_set(&r->fail, ERR_FULL, "a text of more than %zu MiB", RENDER_BYTES_MAX >> 20);
    render_step(r, (int64_t)(len / 64));
    return jinja_str(copy, len);
}

struct value jinja_list_new(struct render *r, enum value_kind kind, int64_t cap)
{
    struct list *l = jinja_pool_take(&r->fail, sizeof *l);
    if (cap > 0) {
        if (cap > (int64_t)(RENDER_BYTES_MAX / sizeof l->v[0]))
            jinja_fail_set(&r->fail, ERR_FULL, "a list of %" PRId64 " items", cap);
        l->v = jinja_pool_take(&r->fail, (size_t)cap * sizeof l->v[0]);
    }
    l->cap = cap;
    return (struct value){ .kind = kind, .list = l };
}

void jinja_list_push(struct render *r, struct list *l, struct value v)
{
    if (l->n == l->cap) {
        int64_t cap = MAX(l->cap * 2, (int64_t)4);
        struct value *more = jinja_pool_take(&r->fail, (size_t)cap * sizeof *more);
        if (l->n)
            memcpy(more, l->v, (size_t)l->n * sizeof *more);
        l->v = more;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    render_step(r, 1);
}

struct value jinja_dict_new(struct render *r)
{
    return (struct value){ .kind = V_DICT, .dict = jinja_pool_take(&r->fail, sizeof(struct dict)) };
}

struct value *jinja_dict_get_str(const struct dict *d, struct str key)
{
    for (int64_t i = 0; i < d->n; i++)
        if (d->key[i].kind == V_STR && jinja_str_equal(d->key[i].s, key))
            return &d->value[i];
    return NULL;
}

struct value *jinja_dict_get(struct render *r, const struct dict *d, struct value key)
{
    if (key.kind == V_LIST || key.kind == V_DICT)
        jinja_fail_set(&r->fail, ERR_DATA, "a %s cannot be a key", jinja_type(&key));
    render_step(r, d->n / 8);
    if (key.kind == V_STR)
        return jinja_dict_get_str(d, key.s);
    for (int64_t i = 0; i < d->n; i++)
        if (jinja_equal(r, d->key[i], key, 0))
            return &d->value[i];
    return NULL;
}

void jinja_dict_set(struct render *r, struct dict *d, struct value key, struct value value)
{
    struct value *there = jinja_dict_get(r, d, key);
    if (there) {
        *there = value;
        return;
    }
    if (d->n == d->cap) {
        int64_t cap = MAX(d->cap * 2, (int64_t)4);
        struct value *k = jinja_pool_take(&r->fail, (size_t)cap * sizeof *k), *v = jinja_pool_take(&r->fail, (size_t)cap * sizeof *v);
        if (d->n) {
            memcpy(k, d->key, (size_t)d->n * sizeof *k);
            memcpy(v, d->value, (size_t)d->n * sizeof *v);
        }
        d->key = k;
        d->value = v;
        d->cap = cap;
    }
    d->key[d->n] = key;
    d->value[d->n++] = value;
}

struct value jinja_from_json(struct render *r, const json_t *j, int depth)
{
    if (depth > VALUE_DEPTH_MAX)
        jinja_fail_set(&r->fail, ERR_DATA, "variables nested deeper than %d", VALUE_DEPTH_MAX);
    render_step(r, 1);
    switch (json_typeof(j)) {
    case JSON_NULL: return jinja_of(V_NONE);
    case JSON_TRUE:
    case JSON_FALSE: return jinja_bool(json_is_true(j));
    case JSON_INTEGER: return jinja_int(json_integer_value(j));
    case JSON_REAL: return jinja_float(json_real_value(j));
    case JSON_STRING:    // borrowed: the variables outlive the rendering
        return jinja_str(json_string_value(j), json_string_length(j));
    case JSON_ARRAY: {
        struct value l = jinja_list_new(r, V_LIST, (int64_t)json_array_size(j));
        const json_t *one;
        size_t i;
        json_array_foreach(j, i, one) l.list->v[l.list->n++] = jinja_from_json(r, one, depth + 1);
        return l;
    }
    case JSON_OBJECT: {
        struct value d = jinja_dict_new(r);
        size_t n = json_object_size(j);
        d.dict->key = jinja_pool_take(&r->fail, n * sizeof *d.dict->key);
        d.dict->value = jinja_pool_take(&r->fail, n * sizeof *d.dict->value);
        d.dict->cap = (int64_t)n;
        for (void *it = json_object_iter((json_t *)(uintptr_t)j); it; it = json_object_iter_next((json_t *)(uintptr_t)j, it)) {
            const char *key = json_object_iter_key(it);    // jansson refuses NUL in keys
            d.dict->key[d.dict->n] = jinja_str(key, strlen(key));
            d.dict->value[d.dict->n++] = jinja_from_json(r, json_object_iter_value(it), depth + 1);
        }
        return d;
    }
    }
    return jinja_of(V_NONE);
}

/* ---- asking ---- */

const char *jinja_type(const struct value *v)
{
    static const char *const names[] = {
        [V_MISSING] = "nothing",
        [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_FLOAT] = "float",
        [V_STR] = "str",
        [V_LIST] = "list",
        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",
        [V_RANGE] = "range",
        [V_VIEW] = "view",
        [V_GENERATOR] = "generator",
        [V_NAMESPACE] = "Namespace",
        [V_LOOP] = "LoopContext",
        [V_MACRO] = "Macro",
        [V_FUNCTION] = "function",
        [V_METHOD] = "method",
    };
    return names[v->kind];
}

bool jinja_is_number(struct value v)
{
    return v.kind == V_INT || v.kind == V_FLOAT || v.kind == V_BOOL;
}

double jinja_number(struct value v)
{
    return v.kind == V_FLOAT ? v.f : v.kind == V_INT ? (double)v.i : v.b;
}

static int64_t value_whole(struct value v)    // of an int or bool
{
    return v.kind == V_INT ? v.i : v.b;
}

bool jinja_true(struct render *r, struct value v)
{
    switch (v.kind) {
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STR: return v.s.len > 0;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: return v.list->n > 0;
    case V_DICT: return v.dict->n > 0;
    case V_UNDEFINED:
    case V_NONE:
    case V_MISSING: return false;
    case V_LOOP:
    case V_GENERATOR:
    case V_NAMESPACE:
    case V_MACRO:
    case V_FUNCTION:
    case V_METHOD: return true;
    }
    (void)r;
    return false;
}

int64_t jinja_length(struct render *r, struct value v)
{
    switch ((int)v.kind) {
    case V_STR: render_step(r, (int64_t)(v.s.len / 64)); return jinja_str_chars(v.s);
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: return v.list->n;
    case V_DICT: return v.dict->n;
    case V_UNDEFINED: return 0;
    case V_LOOP: return v.loop->items->n;
    default: jinja_fail_set(&r->fail, ERR_DATA, "a %s has no length", jinja_type(&v));
    }
}

struct list *jinja_items(struct render *r, struct value v)
{
    struct value l;
    switch ((int)v.kind) {
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: return v.list;
    case V_GENERATOR:    // what is left, and then nothing is left
        l = jinja_list_new(r, V_LIST, 0);
        if (v.list->at < v.list->n)
            *l.list = (struct list){ .v = v.list->v + v.list->at, .n = v.list->n - v.list->at, .cap = v.list->n - v.list->at };
        v.list->at = v.list->n;
        return l.list;
    case V_UNDEFINED: return jinja_list_new(r, V_LIST, 0).list;
    case V_DICT:
        l = jinja_list_new(r, V_LIST, v.dict->n);
        for (int64_t i = 0; i < v.dict->n; i++)
            jinja_list_push(r, l.list, v.dict->key[i]);
        return l.list;
    case V_STR:
        l = jinja_list_new(r, V_LIST, (int64_t)v.s.len);
        for (size_t i = 0; i < v.s.len;) {
            int n;
            utf8_at((const uint8_t *)v.s.p + i, &n);
            jinja_list_push(r, l.list, jinja_str(v.s.p + i, (size_t)n));
            i += (size_t)n;
        }
        return l.list;
    case V_LOOP: jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "iterating over 'loop' is not supported");
    default: jinja_fail_set(&r->fail, ERR_DATA, "a %s cannot be iterated over", jinja_type(&v));
    }
}

static void depth_check(struct render *r, int depth)
{
    render_step(r, 1);
    if (depth > VALUE_DEPTH_MAX)
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "values nested deeper than %d", VALUE_DEPTH_MAX);
}

static bool list_equal(struct render *r, const struct list *a, const struct list *b, int depth)
{
    if (a->n != b->n)
        return false;
    for (int64_t i = 0; i < a->n; i++)
        if (!jinja_equal(r, a->v[i], b->v[i], depth + 1))
            return false;
    return true;
}

static bool dict_equal(struct render *r, const struct dict *a, const struct dict *b, int depth)
{
    if (a->n != b->n)
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        const struct value *other = jinja_dict_get(r, b, a->key[i]);
        if (!other || !jinja_equal(r, a->value[i], *other, depth + 1))
            return false;
    }
    return true;
}

bool jinja_equal(struct render *r, struct value a, struct value b, int depth)
{
    depth_check(r, depth);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind != V_FLOAT && b.kind != V_FLOAT)
            return value_whole(a) == value_whole(b);
        return jinja_number(a) == jinja_number(b);
    }
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case V_STR: render_step(r, (int64_t)(a.s.len / 64)); return jinja_str_equal(a.s, b.s);
    case V_LIST:
    case V_TUPLE:
    case V_RANGE: return list_equal(r, a.list, b.list, depth);
    case V_DICT: return dict_equal(r, a.dict, b.dict, depth);
    case V_UNDEFINED:
    case V_NONE:
    case V_MISSING: return true;
    case V_VIEW:
    case V_GENERATOR: return a.list == b.list;
    case V_NAMESPACE: return a.dict == b.dict;
    case V_LOOP: return a.loop == b.loop;
    case V_MACRO: return a.macro == b.macro;
    case V_FUNCTION: return a.function == b.function;
    case V_METHOD: return a.bound->method == b.bound->method;
    case V_BOOL:
    case V_INT:
    case V_FLOAT: break;    // done above
    }
    return false;
}

int jinja_compare(struct render *r, struct value a, struct value b, int depth)
{
    depth_check(r, depth);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind != V_FLOAT && b.kind != V_FLOAT)
            return (value_whole(a) > value_whole(b)) - (value_whole(a) < value_whole(b));
        double x = jinja_number(a), y = jinja_number(b);
        if (isnan(x) || isnan(y))
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "ordering NaN is not supported");
        return (x > y) - (x < y);
    }
    if (a.kind == V_STR && b.kind == V_STR) {    // UTF-8 sorts as code points do
        int c = memcmp(a.s.p, b.s.p, MIN(a.s.len, b.s.len));
        return c ? c : (a.s.len > b.s.len) - (a.s.len < b.s.len);
    }
    if ((a.kind == V_LIST || a.kind == V_TUPLE) && a.kind == b.kind) {
        for (int64_t i = 0; i < a.list->n && i < b.list->n; i++)
            if (!jinja_equal(r, a.list->v[i], b.list->v[i], depth + 1))
                return jinja_compare(r, a.list->v[i], b.list->v[i], depth + 1);
        return (a.list->n > b.list->n) - (a.list->n < b.list->n);
    }
    jinja_fail_set(&r->fail, ERR_DATA, "a %s and a %s cannot be put in order", jinja_type(&a), jinja_type(&b));
}

bool jinja_in(struct render *r, struct value needle, struct value stack)
{
    if (stack.kind == V_STR) {
        if (needle.kind != V_STR)
            jinja_fail_set(&r->fail, ERR_DATA, "'in' a string needs a string, not a %s", jinja_type(&needle));
        render_step(r, (int64_t)(stack.s.len / 64));
        return jinja_str_find(stack.s, needle.s, 0) >= 0;
    }
    if (stack.kind == V_DICT)
        return jinja_dict_get(r, stack.dict, needle) != NULL;
    if (stack.kind == V_NAMESPACE || stack.kind == V_LOOP)
        jinja_fail_set(&r->fail, ERR_DATA, "'in' a %s is not supported", jinja_type(&stack));
    const struct list *l = jinja_items(r, stack);
    for (int64_t i = 0; i < l->n; i++)
        if (jinja_equal(r, l->v[i], needle, 0))
            return true;
    return false;
}

/* ---- printing ---- */

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

/* Leave when a buffer of ours is full; it must be released before. */
static void full_check(struct render *r, struct buf *b)
{
    if (b->failed || b->len > RENDER_OUTPUT_MAX) {
        if (b != r->out)
            buf_release(b);
        jinja_fail_set(&r->fail, ERR_FULL, "more than %zu MiB of text", RENDER_OUTPUT_MAX >> 20);
    }
}

void jinja_repr(struct render *r, struct buf *b, struct value v, int depth)
{
    r->steps += 1 + (v.kind == V_STR ? (int64_t)v.s.len / 64 : 0);
    if (r->steps > RENDER_STEPS_MAX || depth > VALUE_DEPTH_MAX)
        b->failed = true;    // a failure from here would leak b: value_text looks
    if (b->failed)
        return;
    switch (v.kind) {
    case V_STR:
        if (v.markup)
            buf_str(b, "Markup(");
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
    case V_MISSING: b->failed = true; break;
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
    case V_STR: json_text_print(b, v.s.p, v.s.len, ascii ? JSON_TEXT_ASCII : JSON_TEXT_UTF8); return;
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

/* ---- members ---- */

static struct value loop_attr(struct render *r, const struct loop *l, struct str name)
{
    int64_t n = l->items->n;
    // clang-format off
    const struct { const char *name; struct value value;
    } attrs[] = {
        {"index", jinja_int(l->index0 + 1)},
        {"index0", jinja_int(l->index0)},
        {"first", jinja_bool(l->index0 == 0)},
        {"last", jinja_bool(l->index0 == n - 1)},
        {"length", jinja_int(n)},
        {"revindex", jinja_int(n - l->index0)},
        {"revindex0", jinja_int(n - l->index0 - 1)},
        {"depth", jinja_int(l->depth + 1)},
        {"depth0", jinja_int(l->depth)},
        {"previtem", l->index0 > 0 ? l->items->v[l->index0 - 1] : jinja_of(V_UNDEFINED)},
        {"nextitem", l->index0 + 1 < n ? l->items->v[l->index0 + 1] : jinja_of(V_UNDEFINED)},
    };
    // clang-format on
    for (size_t i = 0; i < ARRAY_SIZE(attrs); i++)
        if (jinja_str_is(name, attrs[i].name))
            return attrs[i].value;
    if (jinja_str_is(name, "cycle") || jinja_str_is(name, "changed"))
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "loop.%.*s is not supported", (int)name.len, name.p);
    return jinja_of(V_UNDEFINED);
}

/* A method of Python's type by that name, or missing. */
static struct value method_of(struct render *r, struct value v, struct str name)
{
    if (name.len > 2 && name.p[0] == '_' && name.p[1] == '_')
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "the attribute '%.*s' is not supported", (int)MIN(name.len, (size_t)60), name.p);
    const struct function *m = jinja_method_find(&v, name);
    if (!m)
        return jinja_of(V_MISSING);
    struct bound *b = jinja_pool_take(&r->fail, sizeof *b);
    *b = (struct bound){ .self = v, .method = m };
    return (struct value){ .kind = V_METHOD, .bound = b };
}

struct value jinja_attr(struct render *r, struct value v, struct str name)
{
    if (v.kind == V_UNDEFINED)
        jinja_fail_set(&r->fail, ERR_DATA, "'.%.*s' of something undefined", (int)MIN(name.len, (size_t)60), name.p);
    if (v.kind == V_LOOP)
        return loop_attr(r, v.loop, name);
    if (v.kind == V_NAMESPACE) {
        struct value *got = jinja_dict_get_str(v.dict, name);
        return got ? *got : jinja_of(V_UNDEFINED);
    }
    struct value m = method_of(r, v, name);
    if (m.kind != V_MISSING)
        return m;
    struct value *got = v.kind == V_DICT ? jinja_dict_get_str(v.dict, name) : NULL;
    return got ? *got : jinja_of(V_UNDEFINED);
}

static size_t char_at(struct str s, int64_t i)    // byte offset of character i
{
    size_t at = 0;
    for (; i > 0 && at < s.len; i--) {
        int n;
        utf8_at((const uint8_t *)s.p + at, &n);
        at += (size_t)n;
    }
    return at;
}

struct value jinja_item(struct render *r, struct value v, struct value key)
{
    if (v.kind == V_UNDEFINED)
        jinja_fail_set(&r->fail, ERR_DATA, "an item of something undefined");
    if (v.kind == V_DICT) {
        struct value *got = key.kind == V_LIST || key.kind == V_DICT ? NULL : jinja_dict_get(r, v.dict, key);
        if (got)
            return *got;
    }
    bool whole = key.kind == V_INT || key.kind == V_BOOL;
    if (whole && (v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_RANGE || v.kind == V_STR)) {
        int64_t n = jinja_length(r, v), i = value_whole(key);
        if (i < 0)
            i += n;
        if (i < 0 || i >= n)
            return jinja_of(V_UNDEFINED);
        if (v.kind != V_STR)
            return v.list->v[i];
        size_t at = char_at(v.s, i);
        int len;
        utf8_at((const uint8_t *)v.s.p + at, &len);
        return jinja_str(v.s.p + at, (size_t)len);
    }
    if (key.kind == V_STR) {    // x["name"] falls back to x.name
        if (v.kind == V_LOOP)
            return loop_attr(r, v.loop, key.s);
        if (v.kind == V_NAMESPACE)
            return jinja_attr(r, v, key.s);
        struct value m = method_of(r, v, key.s);
        if (m.kind != V_MISSING)
            return m;
    }
    return jinja_of(V_UNDEFINED);
}

static bool slice_bound(struct render *r, struct value v, int64_t *out)
{
    if (v.kind == V_MISSING || v.kind == V_NONE)
        return false;
    if (v.kind != V_INT && v.kind != V_BOOL)
        jinja_fail_set(&r->fail, ERR_DATA, "a slice needs whole numbers, not a %s", jinja_type(&v));
    *out = value_whole(v);
    return true;
}

struct value jinja_slice(struct render *r, struct value v, struct value from, struct value to, struct value by)
{
    if (v.kind == V_UNDEFINED)
        jinja_fail_set(&r->fail, ERR_DATA, "a slice of something undefined");
    if (v.kind != V_LIST && v.kind != V_TUPLE && v.kind != V_STR && v.kind != V_RANGE)
        jinja_fail_set(&r->fail, ERR_DATA, "a slice of a %s", jinja_type(&v));
    int64_t n = jinja_length(r, v), step_by = 1, a, b;
    slice_bound(r, by, &step_by);
    if (step_by == 0)
        jinja_fail_set(&r->fail, ERR_DATA, "a slice with step 0");
    if (step_by > n + 1)    // beyond the length they all do the same, and nothing overflows
        step_by = n + 1;
    if (step_by < -n - 1)
        step_by = -n - 1;
    bool back = step_by < 0;
    if (slice_bound(r, from, &a))
        a = a < 0 ? MAX(a + n, back ? (int64_t)-1 : (int64_t)0) : MIN(a, back ? n - 1 : n);
    else
        a = back ? n - 1 : 0;
    if (slice_bound(r, to, &b))
        b = b < 0 ? MAX(b + n, back ? (int64_t)-1 : (int64_t)0) : MIN(b, back ? n - 1 : n);
    else
        b = back ? -1 : n;
    if (v.kind == V_STR) {
        if (!back && step_by == 1) {
            size_t x = char_at(v.s, a), y = b > a ? char_at(v.s, b) : x;
            return jinja_str(v.s.p + x, y - x);
        }
        const struct list *chars = jinja_items(r, v);
        struct buf out = { .max = RENDER_OUTPUT_MAX };
        for (int64_t i = a; back ? i > b : i < b; i += step_by)
            buf_add(&out, chars->v[i].s.p, chars->v[i].s.len);
        return jinja_from_buf(r, &out);
    }
    struct value l = jinja_list_new(r, v.kind, 0);
    for (int64_t i = a; back ? i > b : i < b; i += step_by)
        jinja_list_push(r, l.list, v.list->v[i]);
    return l;
}

/* ---- arithmetic ---- */

static struct value number_binary(struct render *r, int op, struct value a, struct value b)
{
    bool whole = a.kind != V_FLOAT && b.kind != V_FLOAT;
    int64_t x = whole ? value_whole(a) : 0, y = whole ? value_whole(b) : 0, z = 0;
    double p = jinja_number(a), q = jinja_number(b);
    bool over = false;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && q == 0)
        jinja_fail_set(&r->fail, ERR_DATA, "division by zero");
    switch (op) {
    case OP_ADD:
        over = whole && __builtin_add_overflow(x, y, &z);
        p = p + q;
        break;
    case OP_SUB:
        over = whole && __builtin_sub_overflow(x, y, &z);
        p = p - q;
        break;
    case OP_MUL:
        over = whole && __builtin_mul_overflow(x, y, &z);
        p = p * q;
        break;
    case OP_DIV:
        if (whole && (llabs(x) > (int64_t)1 << 53 || llabs(y) > (int64_t)1 << 53))
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "a division of large numbers is not supported");
        return jinja_float(p / q);
    case OP_FLOORDIV:
    case OP_MOD:
        if (whole) {
            if (y == -1)
                over = op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, x, &z);
            else
                z = op == OP_MOD ? ((x % y) + ((x % y != 0 && (x % y < 0) != (y < 0)) ? y : 0))
                                 : x / y - (x % y != 0 && (x % y < 0) != (y < 0));
        } else {    // CPython's float_divmod
            double mod = fmod(p, q), div = (p - mod) / q;
            if (mod != 0) {
                if ((q < 0) != (mod < 0)) {
                    mod += q;
                    div -= 1;
                }
            } else {
                mod = copysign(0, q);
            }
            double floored = div != 0 ? floor(div) : copysign(0, p / q);
            if (div != 0 && div - floored > 0.5)
                floored += 1;
            p = op == OP_MOD ? mod : floored;
        }
        break;
    case OP_POW:
        if (!whole || y < 0) {
            if (p == 0 && q < 0)
                jinja_fail_set(&r->fail, ERR_DATA, "zero to a negative power");
            if (p < 0 && floor(q) != q)
                jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "complex numbers are not supported");
            return jinja_float(pow(p, q));
        }
        z = 1;
        for (int64_t i = 0; i < y && !over && z != 0; i++) {
            over = __builtin_mul_overflow(z, x, &z);
            if (x == 1 || (x == -1 && i >= (y & 1) + 1) || (x == 0 && i > 0))
                break;
        }
        if (x == -1)
            z = y & 1 ? -1 : 1;
        break;
    }
    if (over)
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "a number beyond 64 bits is not supported");
    return whole ? jinja_int(z) : jinja_float(p);
}

static struct value str_join(struct render *r, struct str a, struct str b)
{
    if (a.len + b.len > RENDER_OUTPUT_MAX)
        jinja_fail_set(&r->fail, ERR_FULL, "more than %zu MiB of text", RENDER_OUTPUT_MAX >> 20);
    char *both = jinja_pool_take(&r->fail, a.len + b.len + 1);
    if (a.len)
        memcpy(both, a.p, a.len);
    if (b.len)
        memcpy(both + a.len, b.p, b.len);
    render_step(r, (int64_t)((a.len + b.len) / 64));
    return jinja_str(both, a.len + b.len);
}

static struct str markup_of(struct render *r, struct value v)
{
    if (v.markup)
        return v.s;
    struct buf b = { .max = RENDER_OUTPUT_MAX };
    jinja_text_escape(&b, v.s);
    return jinja_from_buf(r, &b).s;
}

/* A string or list times a number. */
static struct value repeated(struct render *r, struct value v, int64_t times)
{
    if (v.kind == V_STR) {
        if (times > 0 && v.s.len > RENDER_OUTPUT_MAX / (size_t)times)
            jinja_fail_set(&r->fail, ERR_FULL, "more than %zu MiB of text", RENDER_OUTPUT_MAX >> 20);
        struct buf b = { .max = RENDER_OUTPUT_MAX };
        for (int64_t i = 0; i < times && v.s.len; i++)
            buf_add(&b, v.s.p, v.s.len);
        return jinja_from_buf(r, &b);
    }
    struct value l = jinja_list_new(r, v.kind, 0);
    for (int64_t i = 0; i < times && v.list->n; i++)
        for (int64_t k = 0; k < v.list->n; k++)
            jinja_list_push(r, l.list, v.list->v[k]);
    return l;
}

struct value jinja_binary(struct render *r, int op, struct value a, struct value b)
{
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        jinja_fail_set(&r->fail, ERR_DATA, "arithmetic with something undefined");
    if (jinja_is_number(a) && jinja_is_number(b))
        return number_binary(r, op, a, b);
    if (op == OP_ADD && a.kind == V_STR && b.kind == V_STR) {
        if (!a.markup && !b.markup)
            return str_join(r, a.s, b.s);
        struct value both = str_join(r, markup_of(r, a), markup_of(r, b));
        both.markup = true;
        return both;
    }
    bool lists = (a.kind == V_LIST || a.kind == V_TUPLE) && a.kind == b.kind;
    if (op == OP_ADD && lists) {
        struct value l = jinja_list_new(r, a.kind, a.list->n + b.list->n);
        for (int64_t i = 0; i < a.list->n; i++)
            jinja_list_push(r, l.list, a.list->v[i]);
        for (int64_t i = 0; i < b.list->n; i++)
            jinja_list_push(r, l.list, b.list->v[i]);
        return l;
    }
    bool a_whole = a.kind == V_INT || a.kind == V_BOOL, b_whole = b.kind == V_INT || b.kind == V_BOOL;
    if (op == OP_MUL && b_whole && (a.kind == V_STR || a.kind == V_LIST || a.kind == V_TUPLE))
        return repeated(r, a, value_whole(b));
    if (op == OP_MUL && a_whole && (b.kind == V_STR || b.kind == V_LIST || b.kind == V_TUPLE))
        return repeated(r, b, value_whole(a));
    if (op == OP_MOD && a.kind == V_STR)
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "formatting with '%%' is not supported");
    static const char *const signs[] = {
        [OP_ADD] = "+", [OP_SUB] = "-", [OP_MUL] = "*", [OP_DIV] = "/", [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "**"
    };
    jinja_fail_set(&r->fail, ERR_DATA, "'%s' between a %s and a %s", signs[op], jinja_type(&a), jinja_type(&b));
}
