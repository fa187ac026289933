/* The filters, tests, methods and functions that templates may use, as tables: adding one is one row and one function.
 * Rows with refused are Python's own that we do not do: x.name must still find them, so that a member of that name is
 * not taken. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>
#include "workers/engine/template/template_parts.h"
#include "workers/engine/text/unicode.h"

#define TEXT(v) jinja_text(r, v)
static bool given(struct value v)
{
    return v.kind != V_MISSING;
}

static struct value str_value(struct str s)
{
    return jinja_str(s.p, s.len);
}

static int64_t whole_arg(struct render *r, struct value v, int64_t fallback)
{
    if (!given(v))
        return fallback;
    if (v.kind != V_INT && v.kind != V_BOOL)
        jinja_fail_set(&r->fail, ERR_DATA, "a whole number is needed, not a %s", jinja_type(&v));
    return v.kind == V_INT ? v.i : v.b;
}

static struct str str_arg(struct render *r, struct value v)
{
    if (v.kind != V_STR)
        jinja_fail_set(&r->fail, ERR_DATA, "a string is needed, not a %s", jinja_type(&v));
    return v.s;
}

/* ---- strings ---- */

int64_t jinja_str_chars(struct str s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += (s.p[i] & 0xC0) != 0x80;
    return n;
}

bool jinja_char_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A)
           || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static bool char_among(uint32_t cp, const struct str *chars)
{
    if (!chars)
        return jinja_char_is_space(cp);
    for (size_t i = 0; i < chars->len;) {
        int n;
        if (utf8_at((const uint8_t *)chars->p + i, &n) == cp)
            return true;
        i += (size_t)n;
    }
    return false;
}

struct str jinja_str_trim(struct str s, const struct str *chars, bool left, bool right)
{
    int n;
    while (left && s.len && char_among(utf8_at((const uint8_t *)s.p, &n), chars)) {
        s.p += n;
        s.len -= (size_t)n;
    }
    while (right && s.len) {
        const uint8_t *last = utf8_before((const uint8_t *)s.p + s.len);
        if (!char_among(utf8_at(last, &n), chars))
            break;
        s.len -= (size_t)n;
    }
    return s;
}

int64_t jinja_str_find(struct str s, struct str what, size_t from)
{
    if (from > s.len)
        return -1;
    if (what.len == 0)
        return (int64_t)from;
    const char *at = s.len - from ? memmem(s.p + from, s.len - from, what.p, what.len) : NULL;
    return at ? at - s.p : -1;
}

static int64_t str_find_last(struct str s, struct str what)
{
    for (size_t i = s.len >= what.len ? s.len - what.len + 1 : 0; i-- > 0;)
        if (what.len == 0 || memcmp(s.p + i, what.p, what.len) == 0)
            return (int64_t)i;
    return -1;
}

/* Characters whose upper or lower case is not one character, or depends on what stands around (Unicode's
 * SpecialCasing). */
static bool case_is_special(uint32_t c, bool upper)
{
    if (!upper)
        return c == 0x130 || c == 0x3A3;
    return c == 0xDF || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 || c == 0x587 || (c >= 0x1E96 && c <= 0x1E9A)
           || (c >= 0x1F50 && c <= 0x1F56) || (c >= 0x1F80 && c <= 0x1FFC) || (c >= 0xFB00 && c <= 0xFB17);
}

static void char_case(struct render *r, struct buf *b, uint32_t c, bool upper)
{
    uint8_t out[4];
    if (case_is_special(c, upper))
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "the %s case of U+%04X is not supported", upper ? "upper" : "lower", c);
    uint32_t to = (uint32_t)(upper ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_tolower((utf8proc_int32_t)c));
    buf_add(b, out, (size_t)utf8_put(out, to));
}

struct value jinja_str_case(struct render *r, struct str s, bool upper)
{
    struct buf *b = jinja_temp_new(r);
    for (size_t i = 0; i < s.len;) {
        int n;
        char_case(r, b, utf8_at((const uint8_t *)s.p + i, &n), upper);
        i += (size_t)n;
    }
    return jinja_from_buf(r, b);
}

struct value jinja_str_lines(struct render *r, struct str s)
{
    struct value l = jinja_list_new(r, V_LIST, 0);
    size_t from = 0;
    for (size_t i = 0; i < s.len;) {
        int n;
        uint32_t c = utf8_at((const uint8_t *)s.p + i, &n);
        bool end = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
        size_t next = i + (size_t)n;
        if (end) {
            jinja_list_push(r, l.list, jinja_str(s.p + from, i - from));
            if (c == '\r' && next < s.len && s.p[next] == '\n')
                next++;
            from = next;
        }
        i = next;
    }
    if (from < s.len)
        jinja_list_push(r, l.list, jinja_str(s.p + from, s.len - from));
    return l;
}

static void list_turn(struct list *l)
{
    for (int64_t i = 0, k = l->n - 1; i < k; i++, k--) {
        struct value v = l->v[i];
        l->v[i] = l->v[k];
        l->v[k] = v;
    }
}

/* str.split and str.rsplit; sep NULL: runs of white space. */
struct value jinja_str_split(struct render *r, struct str s, const struct value *sep, int64_t max, bool from_right)
{
    struct value l = jinja_list_new(r, V_LIST, 0);
    int64_t left = max < 0 ? INT64_MAX : max;
    render_step(r, (int64_t)(s.len / 64));
    if (sep) {
        struct str by = str_arg(r, *sep);
        if (by.len == 0)
            jinja_fail_set(&r->fail, ERR_DATA, "an empty separator");
        for (int64_t at; left > 0 && (at = from_right ? str_find_last(s, by) : jinja_str_find(s, by, 0)) >= 0; left--) {
            struct str part = from_right ? (struct str){ s.p + at + by.len, s.len - (size_t)at - by.len } : (struct str){ s.p, (size_t)at };
            jinja_list_push(r, l.list, str_value(part));
            s = from_right ? (struct str){ s.p, (size_t)at } : (struct str){ s.p + at + by.len, s.len - (size_t)at - by.len };
            if (from_right)
                render_step(r, (int64_t)(part.len / 64));
        }
        jinja_list_push(r, l.list, str_value(s));
    } else {
        for (;;) {
            s = jinja_str_trim(s, NULL, !from_right, from_right);
            if (s.len == 0)
                break;
            if (left-- == 0) {
                jinja_list_push(r, l.list, str_value(jinja_str_trim(s, NULL, from_right, !from_right)));
                break;
            }
            size_t at = from_right ? s.len : 0;
            int n;
            if (from_right) {
                while (at > 0) {
                    const uint8_t *b = utf8_before((const uint8_t *)s.p + at);
                    if (jinja_char_is_space(utf8_at(b, &n)))
                        break;
                    at = (size_t)((const char *)b - s.p);
                }
                jinja_list_push(r, l.list, jinja_str(s.p + at, s.len - at));
                s.len = at;
            } else {
                while (at < s.len && !jinja_char_is_space(utf8_at((const uint8_t *)s.p + at, &n)))
                    at += (size_t)n;
                jinja_list_push(r, l.list, jinja_str(s.p, at));
                s = (struct str){ s.p + at, s.len - at };
            }
        }
    }
    if (from_right)
        list_turn(l.list);
    return l;
}

struct value jinja_str_replace(struct render *r, struct str s, struct str from, struct str to, int64_t max)
{
    struct buf *b = jinja_temp_new(r);
    size_t at = 0;
    if (max < 0)
        max = INT64_MAX;
    render_step(r, (int64_t)(s.len / 64));
    if (from.len == 0) {    // between all characters
        for (int n; max > 0; max--) {
            buf_add(b, to.p, to.len);
            if (at >= s.len)
                break;
            utf8_at((const uint8_t *)s.p + at, &n);
            buf_add(b, s.p + at, (size_t)n);
            at += (size_t)n;
            render_step(r, 1);
        }
    } else {
        for (int64_t hit; max > 0 && (hit = jinja_str_find(s, from, at)) >= 0; max--) {
            buf_add(b, s.p + at, (size_t)hit - at);
            buf_add(b, to.p, to.len);
            at = (size_t)hit + from.len;
        }
    }
    buf_add(b, s.p + at, s.len - at);
    return jinja_from_buf(r, b);
}

/* ---- sequences ---- */

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
    if (!jinja_true(r, subject))    // also of what cannot be iterated over
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
        if (attr) {    // a list of the attributes: where they are equal, what has no order needs none
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

static struct value pair_new(struct render *r, struct value a, struct value b)
{
    struct value t = jinja_list_new(r, V_TUPLE, 2);
    jinja_list_push(r, t.list, a);
    jinja_list_push(r, t.list, b);
    return t;
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
        jinja_list_push(r, out.list, pair_new(r, d->key[i], d->value[i]));
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

static struct value items_of(struct render *r, const struct dict *d, enum value_kind kind, char view)
{
    struct value l = jinja_list_new(r, kind, d->n);
    l.view = view;
    for (int64_t i = 0; i < d->n; i++)
        jinja_list_push(r, l.list, view == 'k' ? d->key[i] : view == 'v' ? d->value[i] : pair_new(r, d->key[i], d->value[i]));
    return l;
}

static struct value items_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (v[0].kind == V_UNDEFINED)
        return jinja_list_new(r, V_GENERATOR, 0);
    if (v[0].kind != V_DICT)
        jinja_fail_set(&r->fail, ERR_DATA, "items of a %s", jinja_type(&v[0]));
    return items_of(r, v[0].dict, V_GENERATOR, 'i');
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

/* ---- filters of one value ---- */

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

static struct value capitalized(struct render *r, struct str s)
{
    struct buf *b = jinja_temp_new(r);
    for (size_t i = 0; i < s.len;) {
        int n;
        uint32_t c = utf8_at((const uint8_t *)s.p + i, &n);
        if (i == 0 && c >= 0x80)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "capitalizing U+%04X is not supported", c);
        char_case(r, b, c, i == 0);
        i += (size_t)n;
    }
    return jinja_from_buf(r, b);
}

static struct value capitalize_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return capitalized(r, TEXT(v[0]));
}

/* jinja2's title: words begin at the text's start and behind blanks, '-' and opening brackets. */
static struct value title_filter(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct str s = TEXT(v[0]);
    struct buf *b = jinja_temp_new(r);
    bool first = true;
    for (size_t i = 0; i < s.len;) {
        int n;
        uint32_t c = utf8_at((const uint8_t *)s.p + i, &n);
        bool gap = jinja_char_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c));
        char_case(r, b, c, first && !gap);
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

/* ---- tests ---- */

#define TEST(name, condition)                                                                                                              \
    static struct value name##_test(UNUSED struct render *r, struct value *v, UNUSED const struct args *a)                                 \
    {                                                                                                                                      \
        return jinja_bool(condition);                                                                                                      \
    }
TEST(defined, v[0].kind != V_UNDEFINED)
TEST(undefined, v[0].kind == V_UNDEFINED)
TEST(none, v[0].kind == V_NONE)
TEST(true, v[0].kind == V_BOOL && v[0].b)
TEST(false, v[0].kind == V_BOOL && !v[0].b)
TEST(boolean, v[0].kind == V_BOOL)
TEST(integer, v[0].kind == V_INT)
TEST(float, v[0].kind == V_FLOAT)
TEST(number, jinja_is_number(v[0]))
TEST(string, v[0].kind == V_STR)
TEST(mapping, v[0].kind == V_DICT)
TEST(sequence, v[0].kind == V_STR || v[0].kind == V_LIST || v[0].kind == V_TUPLE || v[0].kind == V_DICT || v[0].kind == V_RANGE
                   || v[0].kind == V_UNDEFINED)
TEST(iterable, v[0].kind == V_STR || v[0].kind == V_LIST || v[0].kind == V_TUPLE || v[0].kind == V_DICT || v[0].kind == V_RANGE
                   || v[0].kind == V_UNDEFINED || v[0].kind == V_VIEW || v[0].kind == V_GENERATOR || v[0].kind == V_LOOP)
TEST(callable, v[0].kind == V_MACRO || v[0].kind == V_FUNCTION || v[0].kind == V_METHOD || v[0].kind == V_UNDEFINED || v[0].kind == V_LOOP)
TEST(eq, jinja_equal(r, v[0], v[1], 0))
TEST(ne, !jinja_equal(r, v[0], v[1], 0))
TEST(lt, jinja_compare(r, v[0], v[1], 0) < 0)
TEST(le, jinja_compare(r, v[0], v[1], 0) <= 0)
TEST(gt, jinja_compare(r, v[0], v[1], 0) > 0)
TEST(ge, jinja_compare(r, v[0], v[1], 0) >= 0)
TEST(in, jinja_in(r, v[0], v[1]))
TEST(odd, jinja_equal(r, jinja_binary(r, OP_MOD, v[0], jinja_int(2)), jinja_int(1), 0))
TEST(even, jinja_equal(r, jinja_binary(r, OP_MOD, v[0], jinja_int(2)), jinja_int(0), 0))
TEST(divisibleby, jinja_equal(r, jinja_binary(r, OP_MOD, v[0], v[1]), jinja_int(0), 0))

/* islower and isupper: some letter has a case, and none the other. */
static bool all_case(struct render *r, struct str s, bool upper)
{
    bool some = false;
    for (size_t i = 0; i < s.len;) {
        int n;
        utf8proc_int32_t c = (utf8proc_int32_t)utf8_at((const uint8_t *)s.p + i, &n);
        bool is_upper = utf8proc_category(c) == UTF8PROC_CATEGORY_LU, is_lower = utf8proc_category(c) == UTF8PROC_CATEGORY_LL;
        if (c >= 0x80 && !is_upper && !is_lower && utf8proc_category(c) != UTF8PROC_CATEGORY_LO)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "the case of U+%04X is not supported", (unsigned)c);
        if (upper ? is_lower : is_upper)
            return false;
        some |= upper ? is_upper : is_lower;
        i += (size_t)n;
    }
    return some;
}
TEST(lower, all_case(r, TEXT(v[0]), false))
TEST(upper, all_case(r, TEXT(v[0]), true))

static bool value_same(struct render *r, struct value a, struct value b)
{
    if (a.kind != b.kind)
        return false;
    if (a.kind == V_NONE || a.kind == V_BOOL)
        return jinja_equal(r, a, b, 0);
    jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "'sameas' of a %s is not supported", jinja_type(&a));
}
TEST(sameas, value_same(r, v[0], v[1]))

// clang-format off
static const struct function tests[] = {
    { "==", "other", eq_test, false },         { "!=", "other", ne_test, false },
    { "<", "other", lt_test, false },          { "<=", "other", le_test, false },
    { ">", "other", gt_test, false },          { ">=", "other", ge_test, false },
    { "boolean", "", boolean_test, false },    { "callable", "", callable_test, false },
    { "defined", "", defined_test, false },    { "divisibleby", "num", divisibleby_test, false },
    { "eq", "other", eq_test, false },         { "equalto", "other", eq_test, false },
    { "even", "", even_test, false },          { "false", "", false_test, false },
    { "float", "", float_test, false },        { "ge", "other", ge_test, false },
    { "greaterthan", "other", gt_test, false },{ "gt", "other", gt_test, false },
    { "in", "seq", in_test, false },           { "integer", "", integer_test, false },
    { "iterable", "", iterable_test, false },  { "le", "other", le_test, false },
    { "lessthan", "other", lt_test, false },   { "lower", "", lower_test, false },
    { "lt", "other", lt_test, false },         { "mapping", "", mapping_test, false },
    { "ne", "other", ne_test, false },         { "none", "", none_test, false },
    { "number", "", number_test, false },      { "odd", "", odd_test, false },
    { "sameas", "other", sameas_test, false }, { "sequence", "", sequence_test, false },
    { "string", "", string_test, false },      { "true", "", true_test, false },
    { "undefined", "", undefined_test, false },{ "upper", "", upper_test, false },
};
// clang-format on

/* ---- methods ---- */

static struct value strip_with(struct render *r, struct value *v, bool left, bool right)
{
    if (!given(v[1]) || v[1].kind == V_NONE)
        return str_value(jinja_str_trim(v[0].s, NULL, left, right));
    struct str chars = str_arg(r, v[1]);
    return str_value(jinja_str_trim(v[0].s, &chars, left, right));
}

#define METHOD(name, result)                                                                                                               \
    static struct value name##_method(UNUSED struct render *r, struct value *v, UNUSED const struct args *a)                               \
    {                                                                                                                                      \
        return result;                                                                                                                     \
    }
METHOD(strip, strip_with(r, v, true, true))
METHOD(lstrip, strip_with(r, v, true, false))
METHOD(rstrip, strip_with(r, v, false, true))
METHOD(upper, jinja_str_case(r, v[0].s, true))
METHOD(lower, jinja_str_case(r, v[0].s, false))
METHOD(capitalize, capitalized(r, v[0].s))
METHOD(split, jinja_str_split(r, v[0].s, given(v[1]) && v[1].kind != V_NONE ? &v[1] : NULL, whole_arg(r, v[2], -1), false))
METHOD(rsplit, jinja_str_split(r, v[0].s, given(v[1]) && v[1].kind != V_NONE ? &v[1] : NULL, whole_arg(r, v[2], -1), true))
METHOD(items, items_of(r, v[0].dict, V_VIEW, 'i'))
METHOD(keys, items_of(r, v[0].dict, V_VIEW, 'k'))
METHOD(values, items_of(r, v[0].dict, V_VIEW, 'v'))

static bool starts_or_ends(struct render *r, struct str s, struct value what, bool ends)
{
    if (what.kind == V_TUPLE) {
        for (int64_t i = 0; i < what.list->n; i++)
            if (starts_or_ends(r, s, str_value(str_arg(r, what.list->v[i])), ends))
                return true;
        return false;
    }
    struct str w = str_arg(r, what);
    return w.len <= s.len && memcmp(ends ? s.p + s.len - w.len : s.p, w.p, w.len) == 0;
}

static struct value startswith_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return jinja_bool(starts_or_ends(r, v[0].s, v[1], false));
}

static struct value endswith_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return jinja_bool(starts_or_ends(r, v[0].s, v[1], true));
}

static struct value replace_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    return jinja_str_replace(r, v[0].s, str_arg(r, v[1]), str_arg(r, v[2]), whole_arg(r, v[3], -1));
}

static struct value find_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    int64_t at = jinja_str_find(v[0].s, str_arg(r, v[1]), 0);
    return jinja_int(at < 0 ? -1 : jinja_str_chars((struct str){ v[0].s.p, (size_t)at }));
}

static struct value rfind_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    int64_t at = str_find_last(v[0].s, str_arg(r, v[1]));
    render_step(r, (int64_t)(v[0].s.len / 64));
    return jinja_int(at < 0 ? -1 : jinja_str_chars((struct str){ v[0].s.p, (size_t)at }));
}

static struct value count_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct str what = str_arg(r, v[1]);
    int64_t n = 0;
    if (what.len == 0)
        return jinja_int(jinja_str_chars(v[0].s) + 1);
    for (int64_t at = 0; (at = jinja_str_find(v[0].s, what, (size_t)at)) >= 0; at += (int64_t)what.len)
        n++;
    return jinja_int(n);
}

static struct value join_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    const struct list *l = jinja_items(r, v[1]);
    struct buf *b = jinja_temp_new(r);
    for (int64_t i = 0; i < l->n; i++) {
        struct str s = str_arg(r, l->v[i]);
        if (i)
            buf_add(b, v[0].s.p, v[0].s.len);
        buf_add(b, s.p, s.len);
    }
    return jinja_from_buf(r, b);
}

static struct value splitlines_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (given(v[1]) && jinja_true(r, v[1]))
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "splitlines that keeps line ends is not supported");
    return jinja_str_lines(r, v[0].s);
}

static struct value removeprefix_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct str w = str_arg(r, v[1]), s = v[0].s;
    return starts_or_ends(r, s, v[1], false) ? jinja_str(s.p + w.len, s.len - w.len) : v[0];
}

static struct value removesuffix_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct str w = str_arg(r, v[1]), s = v[0].s;
    return starts_or_ends(r, s, v[1], true) ? jinja_str(s.p, s.len - w.len) : v[0];
}

/* str.title: a letter behind one that has no case begins a word. ASCII only: elsewhere title case is a third case. */
static struct value title_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct buf *b = jinja_temp_new(r);
    bool in_word = false;
    for (size_t i = 0; i < v[0].s.len; i++) {
        uint8_t c = (uint8_t)v[0].s.p[i];
        if (c >= 0x80)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "title() beyond ASCII is not supported");
        char_case(r, b, c, !in_word);
        in_word = (c | 32) >= 'a' && (c | 32) <= 'z';
    }
    return jinja_from_buf(r, b);
}

/* isdigit, isalpha ...: ASCII decides for itself; elsewhere only the category of letters is the same in Python. */
static bool all_class(struct render *r, struct str s, bool digit, bool letter)
{
    for (size_t i = 0; i < s.len; i++) {
        uint8_t c = (uint8_t)s.p[i];
        if (c >= 0x80)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "asking for the class of characters beyond ASCII is not supported");
        if (!((digit && c >= '0' && c <= '9') || (letter && (c | 32) >= 'a' && (c | 32) <= 'z')))
            return false;
    }
    return s.len > 0;
}
METHOD(isdigit, jinja_bool(all_class(r, v[0].s, true, false)))
METHOD(isalpha, jinja_bool(all_class(r, v[0].s, false, true)))
METHOD(isalnum, jinja_bool(all_class(r, v[0].s, true, true)))
METHOD(isspace, jinja_bool(v[0].s.len > 0 && jinja_str_trim(v[0].s, NULL, true, false).len == 0))
METHOD(isupper, jinja_bool(all_case(r, v[0].s, true)))
METHOD(islower, jinja_bool(all_case(r, v[0].s, false)))

static struct value get_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    if (!given(v[1]))
        jinja_fail_set(&r->fail, ERR_DATA, "get needs a key");
    struct value *got = jinja_dict_get(r, v[0].dict, v[1]);
    return got ? *got : given(v[2]) ? v[2] : jinja_of(V_NONE);
}

static struct value index_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    for (int64_t i = 0; i < v[0].list->n; i++)
        if (jinja_equal(r, v[0].list->v[i], v[1], 0))
            return jinja_int(i);
    jinja_fail_set(&r->fail, ERR_DATA, "the list has no such item");
}

static struct value list_count_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < v[0].list->n; i++)
        n += jinja_equal(r, v[0].list->v[i], v[1], 0);
    return jinja_int(n);
}

#define REFUSED(name)                                                                                                                      \
    {                                                                                                                                      \
        name, "", NULL, true                                                                                                               \
    }
// clang-format off
static const struct function str_methods[] = {
    {"strip", "chars", strip_method, false},
    {"lstrip", "chars", lstrip_method, false},
    {"rstrip", "chars", rstrip_method, false},
    {"split", "sep maxsplit", split_method, false},
    {"rsplit", "sep maxsplit", rsplit_method, false},
    {"splitlines", "keepends", splitlines_method, false},
    {"startswith", "prefix", startswith_method, false},
    {"endswith", "suffix", endswith_method, false},
    {"replace", "old new count", replace_method, false},
    {"upper", "", upper_method, false},
    {"lower", "", lower_method, false},
    {"title", "", title_method, false},
    {"capitalize", "", capitalize_method, false},
    {"find", "sub", find_method, false},
    {"rfind", "sub", rfind_method, false},
    {"count", "sub", count_method, false},
    {"join", "iterable", join_method, false},
    {"removeprefix", "prefix", removeprefix_method, false},
    {"removesuffix", "suffix", removesuffix_method, false},
    {"isdigit", "", isdigit_method, false},
    {"isalpha", "", isalpha_method, false},
    {"isalnum", "", isalnum_method, false},
    {"isspace", "", isspace_method, false},
    {"isupper", "", isupper_method, false},
    {"islower", "", islower_method, false},
    REFUSED("casefold"),
    REFUSED("center"),
    REFUSED("encode"),
    REFUSED("expandtabs"),
    REFUSED("format"),
    REFUSED("format_map"),
    REFUSED("index"),
    REFUSED("isascii"),
    REFUSED("isdecimal"),
    REFUSED("isidentifier"),
    REFUSED("isnumeric"),
    REFUSED("isprintable"),
    REFUSED("istitle"),
    REFUSED("ljust"),
    REFUSED("maketrans"),
    REFUSED("partition"),
    REFUSED("rindex"),
    REFUSED("rjust"),
    REFUSED("rpartition"),
    REFUSED("swapcase"),
    REFUSED("translate"),
    REFUSED("zfill"),
};
// clang-format on
static const struct function dict_methods[] = {
    { "get", "key default", get_method, false },
    { "items", "", items_method, false },
    { "keys", "", keys_method, false },
    { "values", "", values_method, false },
    REFUSED("copy"),
    REFUSED("fromkeys"),
    REFUSED("clear"),
    REFUSED("pop"),
    REFUSED("popitem"),
    REFUSED("setdefault"),
    REFUSED("update"),
};
static const struct function list_methods[] = {
    { "index", "value", index_method, false },
    { "count", "value", list_count_method, false },
    REFUSED("append"),
    REFUSED("clear"),
    REFUSED("copy"),
    REFUSED("extend"),
    REFUSED("insert"),
    REFUSED("pop"),
    REFUSED("remove"),
    REFUSED("reverse"),
    REFUSED("sort"),
};
static const struct function tuple_methods[] = {
    { "index", "value", index_method, false },
    { "count", "value", list_count_method, false },
};

/* ---- functions ---- */

static struct value raise_exception_function(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct str s = given(v[0]) ? TEXT(v[0]) : (struct str){ "", 0 };
    jinja_fail_set(&r->fail, ERR_REFUSED, "the template says: %.*s", (int)MIN(s.len, (size_t)600), s.len ? s.p : "");
}

static struct value strftime_now_function(struct render *r, struct value *v, UNUSED const struct args *a)
{
    char format[256], out[1024];
    struct str f = str_arg(r, v[0]);
    time_t t = (time_t)floor(r->now_s);
    struct tm tm;
    if (f.len >= sizeof format || memchr(f.p, 0, f.len) || !gmtime_r(&t, &tm))
        jinja_fail_set(&r->fail, ERR_DATA, "a date format of %zu bytes", f.len);
    snprintf(format, sizeof format, "%.*s", (int)f.len, f.p);
    size_t n = f.len ? strftime(out, sizeof out, format, &tm) : 0;
    if (n == 0 && f.len)
        jinja_fail_set(&r->fail, ERR_DATA, "the date format '%s' gives nothing, or too much", format);
    return jinja_new_str(r, out, n);
}

static struct value namespace_function(struct render *r, UNUSED struct value *v, const struct args *a)
{
    struct value ns = jinja_dict_new(r);
    ns.kind = V_NAMESPACE;
    if (a->n > 1 || (a->n == 1 && a->v[0].kind != V_DICT))
        jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "a namespace made from other than names and a dict is not supported");
    for (int64_t i = 0; a->n == 1 && i < a->v[0].dict->n; i++)
        jinja_dict_set(r, ns.dict, a->v[0].dict->key[i], a->v[0].dict->value[i]);
    for (int i = 0; i < a->n_kw; i++)
        jinja_dict_set(r, ns.dict, str_value(a->kw[i].name), a->kw[i].value);
    return ns;
}

static struct value dict_function(struct render *r, UNUSED struct value *v, const struct args *a)
{
    struct value d = namespace_function(r, v, a);
    d.kind = V_DICT;
    return d;
}

static struct value range_function(struct render *r, struct value *v, UNUSED const struct args *a)
{
    int64_t from = given(v[1]) ? whole_arg(r, v[0], 0) : 0, to = whole_arg(r, given(v[1]) ? v[1] : v[0], 0), by = whole_arg(r, v[2], 1);
    if (!given(v[0]) || by == 0)
        jinja_fail_set(&r->fail, ERR_DATA, "range needs a bound, and a step other than 0");
    __int128 span = by > 0 ? (__int128)to - from : (__int128)from - to, each = by > 0 ? by : -(__int128)by;
    __int128 n = span <= 0 ? 0 : (span + each - 1) / each;
    if (n > 100000)    // the sandbox's MAX_RANGE
        jinja_fail_set(&r->fail, ERR_DATA, "a range of more than 100000 numbers");
    struct value l = jinja_list_new(r, V_RANGE, (int64_t)n);
    for (int64_t i = 0; i < (int64_t)n; i++)
        jinja_list_push(r, l.list, jinja_int(from + i * by));
    return l;
}

static const struct function globals[] = {
    { "raise_exception", "message", raise_exception_function, false },
    { "strftime_now", "format", strftime_now_function, false },
    { "namespace", NULL, namespace_function, false },
    { "dict", NULL, dict_function, false },
    { "range", "start stop step", range_function, false },
    REFUSED("lipsum"),
    REFUSED("cycler"),
    REFUSED("joiner"),
};

/* ---- looking up ---- */

const struct function *jinja_function_find(const struct function *table, size_t n, struct str name)
{
    for (size_t i = 0; i < n; i++)
        if (jinja_str_is(name, table[i].name))
            return &table[i];
    return NULL;
}

const struct function *jinja_filter_find(struct str name)
{
    return jinja_function_find(filters, ARRAY_SIZE(filters), name);
}

const struct function *jinja_test_find(struct str name)
{
    return jinja_function_find(tests, ARRAY_SIZE(tests), name);
}

const struct function *jinja_global_find(struct str name)
{
    return jinja_function_find(globals, ARRAY_SIZE(globals), name);
}

const struct function *jinja_method_find(const struct value *v, struct str name)
{
    switch ((int)v->kind) {
    case V_STR: return jinja_function_find(str_methods, ARRAY_SIZE(str_methods), name);
    case V_DICT: return jinja_function_find(dict_methods, ARRAY_SIZE(dict_methods), name);
    case V_LIST: return jinja_function_find(list_methods, ARRAY_SIZE(list_methods), name);
    case V_TUPLE: return jinja_function_find(tuple_methods, ARRAY_SIZE(tuple_methods), name);
    }
    return NULL;
}
