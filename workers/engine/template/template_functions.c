/* template_functions.c - the tests and functions that templates may use, as tables: adding one is one row and one function */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "workers/engine/template/template_args.h"

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
TEST(integer, v[0].kind == V_INT || (v[0].kind == V_STR && v[0].whole))
TEST(float, v[0].kind == V_FLOAT)
TEST(number, jinja_is_number(v[0]) || (v[0].kind == V_STR && v[0].whole))
TEST(string, v[0].kind == V_STR && !v[0].whole)
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

TEST(lower, jinja_str_all_case(r, TEXT(v[0]), false))
TEST(upper, jinja_str_all_case(r, TEXT(v[0]), true))

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

const struct function *jinja_test_find(struct str name)
{
    return jinja_function_find(tests, ARRAY_SIZE(tests), name);
}

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

const struct function *jinja_global_find(struct str name)
{
    return jinja_function_find(globals, ARRAY_SIZE(globals), name);
}

const struct function *jinja_function_find(const struct function *table, size_t n, struct str name)
{
    for (size_t i = 0; i < n; i++)
        if (jinja_str_is(name, table[i].name))
            return &table[i];
    return NULL;
}
