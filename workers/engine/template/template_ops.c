/* template_ops.c - members and arithmetic of values, as Python has them */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/template/template_parts.h"
#include "workers/engine/text/unicode.h"

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
    struct bound_method *b = jinja_pool_take(&r->fail, sizeof *b);
    *b = (struct bound_method){ .self = v, .method = m };
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
        int64_t n = jinja_length(r, v), i = jinja_whole(key);
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
    *out = jinja_whole(v);
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
    if (step_by > n + 1)    // larger steps all give the same, and clamping avoids overflow
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
    int64_t x = whole ? jinja_whole(a) : 0, y = whole ? jinja_whole(b) : 0, z = 0;
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
    if (op == OP_MOD && a.kind == V_STR)
        return jinja_percent(r, a, b);
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
        return repeated(r, a, jinja_whole(b));
    if (op == OP_MUL && a_whole && (b.kind == V_STR || b.kind == V_LIST || b.kind == V_TUPLE))
        return repeated(r, b, jinja_whole(a));
    static const char *const signs[] = {
        [OP_ADD] = "+", [OP_SUB] = "-", [OP_MUL] = "*", [OP_DIV] = "/", [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "**"
    };
    jinja_fail_set(&r->fail, ERR_DATA, "'%s' between a %s and a %s", signs[op], jinja_type(&a), jinja_type(&b));
}
