/* template_methods.c - the methods of str, dict, list and tuple that templates may call, as tables
 *
 * Rows with refused are Python methods that are not supported here: x.name must still find them, so that a member of
 * that name is not used instead. */
#include <string.h>
#include "workers/engine/template/template_args.h"

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
METHOD(capitalize, jinja_str_capitalize(r, v[0].s))
METHOD(split, jinja_str_split(r, v[0].s, given(v[1]) && v[1].kind != V_NONE ? &v[1] : NULL, whole_arg(r, v[2], -1), false))
METHOD(rsplit, jinja_str_split(r, v[0].s, given(v[1]) && v[1].kind != V_NONE ? &v[1] : NULL, whole_arg(r, v[2], -1), true))
METHOD(items, jinja_dict_view(r, v[0].dict, V_VIEW, 'i'))
METHOD(keys, jinja_dict_view(r, v[0].dict, V_VIEW, 'k'))
METHOD(values, jinja_dict_view(r, v[0].dict, V_VIEW, 'v'))

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

static struct value format_method(struct render *r, struct value *v, const struct args *a)
{
    return jinja_format(r, v[0], a);
}

static struct value find_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    int64_t at = jinja_str_find(v[0].s, str_arg(r, v[1]), 0);
    return jinja_int(at < 0 ? -1 : jinja_str_chars((struct str){ v[0].s.p, (size_t)at }));
}

static struct value rfind_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    int64_t at = jinja_str_find_last(v[0].s, str_arg(r, v[1]));
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

/* str.title: a letter after one without case begins a word. ASCII only: elsewhere title case is a third case. */
static struct value title_method(struct render *r, struct value *v, UNUSED const struct args *a)
{
    struct buf *b = jinja_temp_new(r);
    bool in_word = false;
    for (size_t i = 0; i < v[0].s.len; i++) {
        uint8_t c = (uint8_t)v[0].s.p[i];
        if (c >= 0x80)
            jinja_fail_set(&r->fail, ERR_UNSUPPORTED, "title() beyond ASCII is not supported");
        jinja_char_case(r, b, c, !in_word);
        in_word = (c | 32) >= 'a' && (c | 32) <= 'z';
    }
    return jinja_from_buf(r, b);
}

/* isdigit, isalpha ...: exact for ASCII; elsewhere only the letter category is the same as in Python. */
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
METHOD(isupper, jinja_bool(jinja_str_all_case(r, v[0].s, true)))
METHOD(islower, jinja_bool(jinja_str_all_case(r, v[0].s, false)))

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

static const struct function str_methods[] = {
    { "format", NULL, format_method, false },
    { "strip", "chars", strip_method, false },
    { "lstrip", "chars", lstrip_method, false },
    { "rstrip", "chars", rstrip_method, false },
    { "split", "sep maxsplit", split_method, false },
    { "rsplit", "sep maxsplit", rsplit_method, false },
    { "splitlines", "keepends", splitlines_method, false },
    { "startswith", "prefix", startswith_method, false },
    { "endswith", "suffix", endswith_method, false },
    { "replace", "old new count", replace_method, false },
    { "upper", "", upper_method, false },
    { "lower", "", lower_method, false },
    { "title", "", title_method, false },
    { "capitalize", "", capitalize_method, false },
    { "find", "sub", find_method, false },
    { "rfind", "sub", rfind_method, false },
    { "count", "sub", count_method, false },
    { "join", "iterable", join_method, false },
    { "removeprefix", "prefix", removeprefix_method, false },
    { "removesuffix", "suffix", removesuffix_method, false },
    { "isdigit", "", isdigit_method, false },
    { "isalpha", "", isalpha_method, false },
    { "isalnum", "", isalnum_method, false },
    { "isspace", "", isspace_method, false },
    { "isupper", "", isupper_method, false },
    { "islower", "", islower_method, false },
    REFUSED("casefold"),
    REFUSED("center"),
    REFUSED("encode"),
    REFUSED("expandtabs"),
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
