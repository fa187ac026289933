/* template_filters.c - the filters that templates may use, as a table: adding one is one row and one function */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "workers/engine/template/template_args.h"
#include "workers/engine/text/unicode.h"

/* ---- of sequences ---- */

/* attribute of map, selectattr ...: a name with dots, or a number. */
static struct value path_get(struct render *r, struct value v, struct value path)
{
    if (path.kind == V_INT)
        return jinja_item(r, v, path);
    struct str rest = str_arg(r, path);
    for (;;) {
        int64_t dot = jinja_str_find(rest, (struct str){ ".", 1 }, 0);
        struct str part = dot < 0 ? rest : (struct str){ rest.p, (size_t)dot };
        bool digits = part.len > 0 && part.len < 18;
        for (size_t i = 0; i < part.len; i++)
            digits &= part.p[i] >= '0' && part.p[i] <= '9';
        int64_t n = 0;
        for (size_t i = 0; digits && i < part.len; i++)
            n = n * 10 + (part.p[i] - '0');
        v = jinja_item(r, v, digits ? jinja_int(n) : str_value(part));
        if (dot < 0)
            return v;
        rest = (struct str){ rest.p + dot + 1, rest.len - (size_t)dot - 1 };
    }
}

static const struct value *keyword_get(const struct args *a, const char *name)
{
    for (int i = 0; i < a->n_kw; i++)
        if (jinja_str_is(a->kw[i].name, name))
            return &a->kw[i].value;
    return NULL;
}

/* select, reject, selectattr, rejectattr. */
static struct value select_items(struct render *r, struct value subject, const struct args *a, bool attr, bool want)
{
    struct value out = jinja_list_new(r, V_GENERATOR, 0);
    const struct function *test = NULL;
    struct args rest = { 0 };
    int at = attr;
    if (!jinja_true(r, subject))    // even of a value that cannot be iterated over
        return out;
    if (attr && a->n < 1)
        jinja_fail_set(&r->fail, ERR_DATA, "the name of an attribute is missing");
    if (a->n > at) {
        test = jinja_test_find(str_arg(r, a->v[at]));
        if (!test)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "the test '%.*s' is not supported", (int)a->v[at].s.len, a->v[at].s.p);
        rest = (struct args){ .v = a->v + at + 1, .n = a->n - at - 1, .kw = a->kw, .n_kw = a->n_kw };
    } else if (a->n_kw) {
        jinja_fail_set(&r->fail, ERR_DATA, "arguments without a test");
    }
    const struct list *l = jinja_items(r, subject);
    for (int64_t i = 0; i < l->n; i++) {
        struct value v = attr ? path_get(r, l->v[i], a->v[0]) : l->v[i];
        bool yes = test ? jinja_test_call(r, test, v, &rest) : jinja_true(r, v);
        if (yes == want)
            jinja_list_push(r, out.list, l->v[i]);
    }
    return out;
}

static struct value select_filter(struct render *r, struct value *v, const struct args *a)
{
    return select_items(r, v[0], a, false, true);
}

static struct value reject_filter(struct render *r, struct value *v, const struct args *a)
{
    return select_items(r, v[0], a, false, false);
}

static struct value selectattr_filter(struct render *r, struct value *v, const struct args *a)
{
    return select_items(r, v[0], a, true, true);
}

static struct value rejectattr_filter(struct render *r, struct value *v, const struct args *a)
{
    return select_items(r, v[0], a, true, false);
}

static struct value map_filter(struct render *r, struct value *v, const struct args *a)
{
    struct value out = jinja_list_new(r, V_GENERATOR, 0);
    const struct value *attr = keyword_get(a, "attribute"), *fallback = keyword_get(a, "default");
    const struct function *f = NULL;
    if (!jinja_true(r, v[0]))
        return out;
    if (a->n == 0 ? !attr || a->n_kw > 1 + !!fallback : false)
        jinja_fail_set(&r->fail, ERR_DATA, "map needs the name of a filter, or attribute=");
    if (a->n > 0) {
        attr = NULL;
        f = jinja_filter_find(str_arg(r, a->v[0]));
        if (!f || f->refused)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "the filter '%.*s' is not supported", (int)a->v[0].s.len, a->v[0].s.p);
    }
    struct args rest = { .v = a->v + 1, .n = a->n - 1, .kw = a->kw, .n_kw = a->n_kw };
    const struct list *l = jinja_items(r, v[0]);
    for (int64_t i = 0; i < l->n; i++) {
        struct value got = attr ? path_get(r, l->v[i], *attr) : jinja_filter_call(r, f, l->v[i], &rest);
        if (attr && fallback && got.kind == V_UNDEFINED)
            got = *fallback;
        jinja_list_push(r, out.list, got);
    }
    return out;
}

static struct value lowered(struct render *r, struct value v, bool as_is)
{
    return v.kind == V_STR && !as_is ? jinja_str_case(r, v.s, false) : v;
}

/* Stable sort of out by key (same length). Merging, since qsort is not stable and cannot fail from inside. */
static void list_sort(struct render *r, struct value *key, struct value *out, int64_t n, bool reverse)
{
    struct value *k2 = jinja_pool_take(&r->fail, (size_t)(n + 1) * sizeof *k2),
                 *o2 = jinja_pool_take(&r->fail, (size_t)(n + 1) * sizeof *o2);
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t lo = 0; lo < n; lo += 2 * width) {
            int64_t mid = MIN(lo + width, n), hi = MIN(lo + 2 * width, n), a = lo, b = mid;
            for (int64_t to = lo; to < hi; to++) {
                bool left = b >= hi
                            || (a < mid && (reverse ? jinja_compare(r, key[a], key[b], 0) >= 0 : jinja_compare(r, key[a], key[b], 0) <= 0));
                int64_t from = left ? a++ : b++;
                k2[to] = key[from];
                o2[to] = out[from];
            }
        }
        memcpy(key, k2, (size_t)n * sizeof *key);
        memcpy(out, o2, (size_t)n * sizeof *out);
    }
}

static struct value sort_filter(struct render *r, struct value *v,
                                UNUSED const struct args *a)    // reverse case_sensitive attribute
{
    const struct list *l = jinja_items(r, v[0]);
    struct value out = jinja_list_new(r, V_LIST, l->n), key = jinja_list_new(r, V_LIST, l->n);
    bool as_is = given(v[2]) && jinja_true(r, v[2]), attr = given(v[3]) && v[3].kind != V_NONE;
    struct value comma = jinja_str(",", 1), parts = jinja_list_new(r, V_LIST, 1);
    if (attr && v[3].kind == V_STR)    // several attributes, the first one first
        parts = jinja_str_split(r, v[3].s, &comma, -1, false);
    else
        jinja_list_push(r, parts.list, v[3]);
    for (int64_t i = 0; i < l->n; i++) {
        struct value k = l->v[i];
        if (attr) {    // a list of the attributes: equal ones need no order, so they may be of an unordered type
            k = jinja_list_new(r, V_LIST, parts.list->n);
            for (int64_t n = 0; n < parts.list->n; n++)
                jinja_list_push(r, k.list, lowered(r, path_get(r, l->v[i], parts.list->v[n]), as_is));
        }
        jinja_list_push(r, out.list, l->v[i]);
        jinja_list_push(r, key.list, attr ? k : lowered(r, k, as_is));
    }
    list_sort(r, key.list->v, out.list->v, l->n, given(v[1]) && jinja_true(r, v[1]));
    return out;
}

static struct value dictsort_filter(struct render *r, struct value *v,
                                    UNUSED const struct args *a)    // case_sensitive by reverse
{
    if (v[0].kind != V_DICT)
        jinja_fail_set(&r->fail, ERR_DATA, "dictsort of a %s", jinja_type(&v[0]));
    bool by_value = given(v[2]) && jinja_str_is(str_arg(r, v[2]), "value");
    if (given(v[2]) && !by_value && !jinja_str_is(v[2].s, "key"))
        jinja_fail_set(&r->fail, ERR_DATA, "dictsort goes by 'key' or 'value'");
    const struct dict *d = v[0].dict;
    struct value out = jinja_list_new(r, V_LIST, d->n), key = jinja_list_new(r, V_LIST, d->n);
    for (int64_t i = 0; i < d->n; i++) {
        jinja_list_push(r, out.list, jinja_pair_new(r, d->key[i], d->value[i]));
        jinja_list_push(r, key.list, lowered(r, by_value ? d->value[i] : d->key[i], given(v[1]) && jinja_true(r, v[1])));
    }
    list_sort(r, key.list->v, out.list->v, d->n, given(v[3]) && jinja_true(r, v[3]));
    return out;
}

static struct value unique_filter(struct render *r, struct value *v,
                                  UNUSED const struct args *a)    // case_sensitive attribute
{
    struct value out = jinja_list_new(r, V_GENERATOR, 0), seen = jinja_dict_new(r);
    const struct list *l = jinja_items(r, v[0]);
    for (int64_t i = 0; i < l->n; i++) {
        struct value k = given(v[2]) && v[2].kind != V_NONE ? path_get(r, l->v[i], v[2]) : l->v[i];
        k = lowered(r, k, given(v[1]) && jinja_true(r, v[1]));
        if (!jinja_dict_get(r, seen.dict, k)) {
            jinja_dict_set(r, seen.dict, k, jinja_of(V_NONE));
            jinja_list_push(r, out.list, l->v[i]);
        }
    }
    return out;
}

static struct value list_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    const struct list *l = jinja_items(r, v[0]);
    struct value out = jinja_list_new(r, V_LIST, l->n);
    for (int64_t i = 0; i < l->n; i++)
        jinja_list_push(r, out.list, l->v[i]);
    return out;
}

static struct value first_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (v[0].kind == V_GENERATOR)
        return v[0].list->at < v[0].list->n ? v[0].list->v[v[0].list->at++] : jinja_of(V_UNDEFINED);
    const struct list *l = jinja_items(r, v[0]);
    return l->n ? l->v[0] : jinja_of(V_UNDEFINED);
}

static struct value last_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (v[0].kind == V_GENERATOR)
        jinja_fail_set(&r->fail, ERR_DATA, "a generator has no last item");
    const struct list *l = jinja_items(r, v[0]);
    return l->n ? l->v[l->n - 1] : jinja_of(V_UNDEFINED);
}

static struct value join_filter(struct render *r, struct value *v, UNUSED const struct args *a)    // d attribute
{
    struct str by = given(v[1]) ? TEXT(v[1]) : (struct str){ "", 0 };
    const struct list *l = jinja_items(r, v[0]);
    struct buf *b = jinja_temp_new(r);
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            buf_add(b, by.p, by.len);
        jinja_print(r, b, given(v[2]) && v[2].kind != V_NONE ? path_get(r, l->v[i], v[2]) : l->v[i]);
    }
    return jinja_from_buf(r, b);
}

static struct value items_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (v[0].kind == V_UNDEFINED)
        return jinja_list_new(r, V_GENERATOR, 0);
    if (v[0].kind != V_DICT)
        jinja_fail_set(&r->fail, ERR_DATA, "items of a %s", jinja_type(&v[0]));
    return jinja_dict_view(r, v[0].dict, V_GENERATOR, 'i');
}

static struct value reverse_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (v[0].kind == V_STR)
        return jinja_slice(r, v[0], jinja_of(V_MISSING), jinja_of(V_MISSING), jinja_int(-1));
    const struct list *l = jinja_items(r, v[0]);
    struct value out = jinja_list_new(r, V_GENERATOR, l->n);
    for (int64_t i = l->n; i-- > 0;)
        jinja_list_push(r, out.list, l->v[i]);
    return out;
}

static struct value extreme(struct render *r, struct value *v, int want)    // case_sensitive attribute
{
    const struct list *l = jinja_items(r, v[0]);
    struct value best = jinja_of(V_UNDEFINED), best_key = best;
    for (int64_t i = 0; i < l->n; i++) {
        struct value k = given(v[2]) && v[2].kind != V_NONE ? path_get(r, l->v[i], v[2]) : l->v[i];
        k = lowered(r, k, given(v[1]) && jinja_true(r, v[1]));
        if (i == 0 || jinja_compare(r, k, best_key, 0) * want > 0) {
            best = l->v[i];
            best_key = k;
        }
    }
    return best;
}

static struct value max_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return extreme(r, v, 1);
}

static struct value min_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return extreme(r, v, -1);
}

static struct value sum_filter(struct render *r, struct value *v, UNUSED const struct args *a)    // attribute start
{
    struct value total = given(v[2]) ? v[2] : jinja_int(0);
    const struct list *l = jinja_items(r, v[0]);
    for (int64_t i = 0; i < l->n; i++)
        total = jinja_binary(r, OP_ADD, total, given(v[1]) && v[1].kind != V_NONE ? path_get(r, l->v[i], v[1]) : l->v[i]);
    return total;
}

/* ---- of one value ---- */

static struct value default_filter(struct render *r, struct value *v,
                                   UNUSED const struct args *a)    // default_value boolean
{
    bool use = v[0].kind == V_UNDEFINED || (given(v[2]) && jinja_true(r, v[2]) && !jinja_true(r, v[0]));
    return !use ? v[0] : given(v[1]) ? v[1] : jinja_str("", 0);
}

static struct value trim_filter(struct render *r, struct value *v, UNUSED const struct args *a)    // chars
{
    if (!given(v[1]) || v[1].kind == V_NONE)
        return str_value(jinja_str_trim(TEXT(v[0]), NULL, true, true));
    struct str chars = str_arg(r, v[1]);
    return str_value(jinja_str_trim(TEXT(v[0]), &chars, true, true));
}

static struct value length_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return jinja_int(jinja_length(r, v[0]));
}

static struct value string_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return v[0].kind == V_STR ? v[0] : str_value(TEXT(v[0]));
}

static struct value upper_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return jinja_str_case(r, TEXT(v[0]), true);
}

static struct value lower_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return jinja_str_case(r, TEXT(v[0]), false);
}

static struct value capitalize_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return jinja_str_capitalize(r, TEXT(v[0]));
}

/* jinja2's title: words begin at the start of the text and after blanks, '-' and opening brackets. */
static struct value title_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct str s = TEXT(v[0]);
    struct buf *b = jinja_temp_new(r);
    bool first = true;
    for (size_t i = 0; i < s.len;) {
        int n;
        uint32_t c = utf8_at((const uint8_t *)s.p + i, &n);
        bool gap = jinja_char_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c));
        jinja_char_case(r, b, c, first && !gap);
        first = gap;
        i += (size_t)n;
    }
    return jinja_from_buf(r, b);
}

static struct value replace_filter(struct render *r, struct value *v, UNUSED const struct args *a)    // old new count
{
    if (!given(v[1]) || !given(v[2]))
        jinja_fail_set(&r->fail, ERR_DATA, "replace needs what to replace and by what");
    return jinja_str_replace(r, TEXT(v[0]), TEXT(v[1]), TEXT(v[2]), v[3].kind == V_NONE ? -1 : whole_arg(r, v[3], -1));
}

static struct value indent_filter(struct render *r, struct value *v, UNUSED const struct args *a)    // width first blank
{
    struct str s = str_arg(r, v[0]), pad;
    if (v[1].kind == V_STR) {
        pad = v[1].s;
    } else {
        int64_t n = whole_arg(r, v[1], 4);
        pad = jinja_binary(r, OP_MUL, jinja_str(" ", 1), jinja_int(MIN(n, (int64_t)RENDER_OUTPUT_MAX))).s;
    }
    bool blank = given(v[3]) && jinja_true(r, v[3]);
    struct value with_end = jinja_binary(r, OP_ADD, str_value(s), jinja_str("\n", 1));
    const struct list *lines = jinja_str_lines(r, with_end.s).list;
    struct buf *b = jinja_temp_new(r);
    if (given(v[2]) && jinja_true(r, v[2]))
        buf_add(b, pad.p, pad.len);
    for (int64_t i = 0; i < lines->n; i++) {
        if (i)
            buf_char(b, '\n');
        if (i && (blank || lines->v[i].s.len))
            buf_add(b, pad.p, pad.len);
        buf_add(b, lines->v[i].s.p, lines->v[i].s.len);
    }
    return jinja_from_buf(r, b);
}

/* Python's int() and float() of a string: blanks around, a sign, digits with single '_' between. */
static bool number_parse(struct str s, bool whole, struct value *out)
{
    char text[80];
    size_t n = 0;
    s = jinja_str_trim(s, NULL, true, true);
    if (s.len == 0 || s.len >= sizeof text)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        bool digit = s.p[i] >= '0' && s.p[i] <= '9';
        if (s.p[i] == '_' && (i == 0 || i + 1 == s.len || s.p[i - 1] < '0' || s.p[i - 1] > '9' || s.p[i + 1] < '0' || s.p[i + 1] > '9'))
            return false;
        if (whole && !digit && s.p[i] != '_' && !(i == 0 && (s.p[i] == '-' || s.p[i] == '+')))
            return false;
        if (!whole && !digit && !strchr("+-._eEinfatyINFATY", s.p[i]))
            return false;
        if (s.p[i] != '_')
            text[n++] = s.p[i];
    }
    text[n] = 0;
    char *end;
    if (whole) {
        if (n > 18 || (n == 1 && (text[0] == '-' || text[0] == '+')))
            return false;
        *out = jinja_int(strtoll(text, &end, 10));
    } else {
        *out = jinja_float(strtod(text, &end));
    }
    return *end == 0;
}

static struct value int_filter(struct render *r, struct value *v, UNUSED const struct args *a)    // default base
{
    struct value fallback = given(v[1]) ? v[1] : jinja_int(0), n;
    if (given(v[2]) && whole_arg(r, v[2], 10) != 10)
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "int in another base than 10 is not supported");
    if (v[0].kind == V_INT || v[0].kind == V_BOOL)
        return jinja_int(whole_arg(r, v[0], 0));
    if (v[0].kind == V_STR && number_parse(v[0].s, true, &n))
        return n;
    if (v[0].kind == V_FLOAT || (v[0].kind == V_STR && number_parse(v[0].s, false, &n))) {
        double f = v[0].kind == V_FLOAT ? v[0].f : n.f;
        if (isnan(f))
            return fallback;
        if (!(fabs(f) < 9e18))
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "a number beyond 64 bits is not supported");
        return jinja_int((int64_t)f);
    }
    if (v[0].kind == V_UNDEFINED)
        jinja_fail_set(&r->fail, ERR_DATA, "int of something undefined");
    return fallback;
}

static struct value float_filter(struct render *r, struct value *v, UNUSED const struct args *a)    // default
{
    struct value n;
    if (jinja_is_number(v[0]))
        return jinja_float(jinja_number(v[0]));
    if (v[0].kind == V_STR && number_parse(v[0].s, false, &n))
        return n;
    if (v[0].kind == V_UNDEFINED)
        jinja_fail_set(&r->fail, ERR_DATA, "float of something undefined");
    return given(v[1]) ? v[1] : jinja_float(0);
}

static struct value abs_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (!jinja_is_number(v[0]))
        jinja_fail_set(&r->fail, ERR_DATA, "abs of a %s", jinja_type(&v[0]));
    if (v[0].kind == V_FLOAT)
        return jinja_float(fabs(v[0].f));
    struct value zero = jinja_int(0);
    return jinja_compare(r, v[0], zero, 0) < 0 ? jinja_binary(r, OP_SUB, zero, v[0]) : jinja_int(whole_arg(r, v[0], 0));
}

static struct value safe_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct value s = str_value(TEXT(v[0]));
    s.markup = true;
    return s;
}

static struct value escape_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (v[0].kind == V_STR && v[0].markup)
        return v[0];
    struct buf *b = jinja_temp_new(r);
    jinja_text_escape(b, TEXT(v[0]));
    struct value s = jinja_from_buf(r, b);
    s.markup = true;
    return s;
}

static struct value tojson_filter(struct render *r, struct value *v,
                                  UNUSED const struct args *a)    // ensure_ascii indent separators sort_keys
{
    struct value opt[5] = { jinja_bool(given(v[1]) && jinja_true(r, v[1])), v[2], jinja_str(", ", 2), jinja_str(": ", 2),
                            jinja_bool(given(v[4]) && jinja_true(r, v[4])) };
    bool indent = given(v[2]) && v[2].kind != V_NONE;
    if (v[2].kind == V_BOOL)
        opt[1] = jinja_int(v[2].b);
    if (indent && opt[1].kind != V_INT && opt[1].kind != V_STR)
        jinja_fail_set(&r->fail, ERR_DATA, "indent is a %s", jinja_type(&v[2]));
    if (opt[1].kind == V_INT && opt[1].i > 1000)
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "an indent of more than 1000 is not supported");
    if (indent)
        opt[2] = jinja_str(",", 1);
    if (given(v[3]) && v[3].kind != V_NONE) {
        const struct list *l = jinja_items(r, v[3]);
        if (l->n != 2)
            jinja_fail_set(&r->fail, ERR_DATA, "separators are two strings");
        opt[2] = str_value(str_arg(r, l->v[0]));
        opt[3] = str_value(str_arg(r, l->v[1]));
    }
    struct buf *b = jinja_temp_new(r);
    jinja_json(r, b, v[0], opt, 0);
    return jinja_from_buf(r, b);
}

/* value % (the arguments), or % those with a name as a dict. */
static struct value format_filter(struct render *r, struct value *v, const struct args *a)
{
    struct value text = str_value(TEXT(v[0])), args = a->n_kw ? jinja_dict_new(r) : jinja_list_new(r, V_TUPLE, a->n);
    if (a->n && a->n_kw)
        jinja_fail_set(&r->fail, ERR_DATA, "format: arguments with and without a name");
    for (int i = 0; i < a->n; i++)
        jinja_list_push(r, args.list, a->v[i]);
    for (int i = 0; i < a->n_kw; i++)
        jinja_dict_set(r, args.dict, str_value(a->kw[i].name), a->kw[i].value);
    text.markup = v[0].kind == V_STR && v[0].markup;
    return jinja_percent(r, text, args);
}

/* Not jinja2's own: vLLM and llama.cpp have it, and published templates use it. */
static struct value from_json_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct str s = str_arg(r, v[0]);
    json_error_t why;
    json_t *j = json_text_read(s.p, s.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!j)
        jinja_fail_set(&r->fail, ERR_DATA, "from_json: %s", why.text);
    if (!r->held)
        r->held = json_array();
    if (json_array_append_new(r->held, j) != 0)
        jinja_fail_set(&r->fail, ERR_NO_MEMORY, "from_json: no memory");
    return jinja_from_json(r, j, 0);
}

static struct value round_filter(struct render *r, struct value *v, UNUSED const struct args *a)    // precision method
{
    if (given(v[2]) && !jinja_str_is(str_arg(r, v[2]), "common"))
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "round with the method '%.*s' is not supported", (int)v[2].s.len, v[2].s.p);
    if (v[0].kind == V_INT)
        return v[0];
    if (v[0].kind != V_FLOAT || whole_arg(r, v[1], 0) < 0 || whole_arg(r, v[1], 0) > 15)
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "this round is not supported");
    char text[400];
    snprintf(text, sizeof text, "%.*f", (int)whole_arg(r, v[1], 0), v[0].f);    // correctly rounded, halves to even
    return jinja_float(strtod(text, NULL));
}

static const struct function filters[] = {
    { "abs", "", abs_filter, false },
    { "capitalize", "", capitalize_filter, false },
    { "count", "", length_filter, false },
    { "d", "default_value boolean", default_filter, false },
    { "default", "default_value boolean", default_filter, false },
    { "dictsort", "case_sensitive by reverse", dictsort_filter, false },
    { "e", "", escape_filter, false },
    { "escape", "", escape_filter, false },
    { "first", "", first_filter, false },
    { "float", "default", float_filter, false },
    { "format", NULL, format_filter, false },
    { "from_json", "", from_json_filter, false },
    { "fromjson", "", from_json_filter, false },
    { "indent", "width first blank", indent_filter, false },
    { "int", "default base", int_filter, false },
    { "items", "", items_filter, false },
    { "join", "d attribute", join_filter, false },
    { "last", "", last_filter, false },
    { "length", "", length_filter, false },
    { "list", "", list_filter, false },
    { "lower", "", lower_filter, false },
    { "map", NULL, map_filter, false },
    { "max", "case_sensitive attribute", max_filter, false },
    { "min", "case_sensitive attribute", min_filter, false },
    { "reject", NULL, reject_filter, false },
    { "rejectattr", NULL, rejectattr_filter, false },
    { "replace", "old new count", replace_filter, false },
    { "reverse", "", reverse_filter, false },
    { "round", "precision method", round_filter, false },
    { "safe", "", safe_filter, false },
    { "select", NULL, select_filter, false },
    { "selectattr", NULL, selectattr_filter, false },
    { "sort", "reverse case_sensitive attribute", sort_filter, false },
    { "string", "", string_filter, false },
    { "sum", "attribute start", sum_filter, false },
    { "title", "", title_filter, false },
    { "tojson", "ensure_ascii indent separators sort_keys", tojson_filter, false },
    { "trim", "chars", trim_filter, false },
    { "unique", "case_sensitive attribute", unique_filter, false },
    { "upper", "", upper_filter, false },
};

const struct function *jinja_filter_find(struct str name)
{
    return jinja_function_find(filters, ARRAY_SIZE(filters), name);
}
