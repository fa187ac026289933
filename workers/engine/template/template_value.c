/* Values of a rendering and what Python does with them: truth, equality, order, conversion from JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/template/template_parts.h"
#include "workers/engine/text/unicode.h"

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
    if (!failed && r->pool.used + len + 64 < r->pool.max) {    // release b even when the pool has no room
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

struct value jinja_pair_new(struct render *r, struct value a, struct value b)
{
    struct value t = jinja_list_new(r, V_TUPLE, 2);
    jinja_list_push(r, t.list, a);
    jinja_list_push(r, t.list, b);
    return t;
}

struct value jinja_dict_view(struct render *r, const struct dict *d, enum value_kind kind, char view)
{
    struct value l = jinja_list_new(r, kind, d->n);
    l.view = view;
    for (int64_t i = 0; i < d->n; i++)
        jinja_list_push(r, l.list, view == 'k' ? d->key[i] : view == 'v' ? d->value[i] : jinja_pair_new(r, d->key[i], d->value[i]));
    return l;
}

/* A string, or a number that jansson cannot hold. Borrowed: the variables outlive the rendering. */
static struct value text_value(const json_t *j)
{
    const char *odd = json_odd_text(j);
    double f;
    if (!odd || !json_double_get(j, &f))
        return jinja_str(json_string_value(j), json_string_length(j));
    if (strpbrk(odd, "NI"))
        return jinja_float(f);
    struct value digits = jinja_str(odd, strlen(odd));
    digits.whole = true;
    return digits;
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
    case JSON_STRING: return text_value(j);
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

int64_t jinja_whole(struct value v)    // of an int or bool
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
    case V_GENERATOR:    // takes what is left, and then nothing is
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
            return jinja_whole(a) == jinja_whole(b);
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
            return (jinja_whole(a) > jinja_whole(b)) - (jinja_whole(a) < jinja_whole(b));
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
