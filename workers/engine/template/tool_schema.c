#include "workers/engine/template/tool_schema.h"
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/macros.h"

#define DEPTH_MAX 256    // schemas within schemas; also ends a $ref to itself

struct fit {
    const json_t *root;    // where $ref begins
    int n_step, depth;
};
struct keyword {
    const char *name;
    enum { HOLDS_VALUE, HOLDS_SCHEMA, HOLDS_LIST, HOLDS_MAP } holds;                           // schemas are in the last three
    bool (*fits)(struct fit *f, const json_t *schema, const json_t *rule, const json_t *v);    // NULL: it asks for nothing by itself
};

static bool schema_fits(struct fit *f, const json_t *schema, const json_t *v);

/* ---- values */
static bool is_text(const json_t *v)
{
    return json_is_string(v) && !json_odd_text(v);
}

static bool finite_get(const json_t *v, double *out)
{
    return json_double_get(v, out) && isfinite(*out);
}

enum type { TYPE_STRING, TYPE_NUMBER, TYPE_INTEGER, TYPE_BOOLEAN, TYPE_OBJECT, TYPE_ARRAY, TYPE_NULL, TYPE_N };
static const char *const type_names[TYPE_N] = { "string", "number", "integer", "boolean", "object", "array", "null" };

/* TYPE_N: there is none of this name. */
static enum type type_find(const json_t *name)
{
    int t = 0;
    while (t < TYPE_N && (!json_is_string(name) || strcmp(type_names[t], json_string_value(name)) != 0))
        t++;
    return (enum type)t;
}

static bool is_of_type(const json_t *v, enum type t)
{
    double number;
    switch (t) {
    case TYPE_STRING: return is_text(v);
    case TYPE_NUMBER: return finite_get(v, &number);
    case TYPE_INTEGER: return finite_get(v, &number) && floor(number) == number;    // 1.0 is one
    case TYPE_BOOLEAN: return json_is_boolean(v);
    case TYPE_OBJECT: return json_is_object(v);
    case TYPE_ARRAY: return json_is_array(v);
    case TYPE_NULL: return json_is_null(v);
    case TYPE_N: break;
    }
    return false;
}

/* Characters of a text, as JSON Schema counts them. */
static double text_length(const json_t *v)
{
    const char *s = json_string_value(v);
    int64_t n = 0;
    for (size_t i = 0; i < json_string_length(v); i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return (double)n;
}

static const json_t *ref_find(const json_t *root, const char *ref)
{
    static const char *const places[] = { "$defs", "definitions" };
    if (!ref || strcmp(ref, "#") == 0)
        return ref ? root : NULL;
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        size_t len = strlen(places[i]);
        if (strncmp(ref, "#/", 2) == 0 && strncmp(ref + 2, places[i], len) == 0 && ref[2 + len] == '/')
            return json_object_get(json_object_get(root, places[i]), ref + 3 + len);
    }
    return NULL;
}

/* ---- keywords; each passes values that it does not speak of */
static bool type_fits(UNUSED struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(rule); i++)
        if (is_of_type(v, type_find(json_array_get(rule, i))))
            return true;
    return is_of_type(v, type_find(rule));
}

static bool const_fits(UNUSED struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    double a, b;
    return finite_get(rule, &a) && finite_get(v, &b) ? a == b : json_equal(rule, v);
}

static bool enum_fits(struct fit *f, const json_t *schema, const json_t *rule, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(rule); i++)
        if (const_fits(f, schema, json_array_get(rule, i), v))
            return true;
    return false;
}

static bool properties_fit(struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, name, value)
    {
        const json_t *of = json_object_get(rule, name);
        if (of && !schema_fits(f, of, value))
            return false;
    }
    return true;
}

static bool additional_fits(struct fit *f, const json_t *schema, const json_t *rule, const json_t *v)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, name, value) if (!json_object_get(json_object_get(schema, "properties"), name)
                                                                 && !schema_fits(f, rule, value)) return false;
    return true;
}

static bool required_fits(UNUSED struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    for (size_t i = 0; json_is_object(v) && i < json_array_size(rule); i++)
        if (!json_object_get(v, json_string_value(json_array_get(rule, i))))
            return false;
    return true;
}

static bool items_fit(struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!schema_fits(f, rule, json_array_get(v, i)))
            return false;
    return true;
}

static int n_fitting(struct fit *f, const json_t *rule, const json_t *v)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(rule); i++)
        n += schema_fits(f, json_array_get(rule, i), v);
    return n;
}

static bool any_fits(struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    return n_fitting(f, rule, v) > 0;
}

static bool one_fits(struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    return n_fitting(f, rule, v) == 1;
}

static bool all_fit(struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    return n_fitting(f, rule, v) == (int)json_array_size(rule);
}

static bool ref_fits(struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)
{
    return schema_fits(f, ref_find(f->root, json_string_value(rule)), v);
}

/* The bounds: of a number, of a text's characters, of a list's items. */
#define BOUND(name, of, test)                                                                                                              \
    static bool name(UNUSED struct fit *f, UNUSED const json_t *schema, const json_t *rule, const json_t *v)                               \
    {                                                                                                                                      \
        double x = 0, limit = 0;                                                                                                           \
        return !(of) || (finite_get(rule, &limit) && (test));                                                                              \
    }
BOUND(minimum_fits, finite_get(v, &x), x >= limit)
BOUND(maximum_fits, finite_get(v, &x), x <= limit)
BOUND(above_fits, finite_get(v, &x), x > limit)
BOUND(below_fits, finite_get(v, &x), x < limit)
BOUND(multiple_fits, finite_get(v, &x), limit > 0 && fabs(x / limit - nearbyint(x / limit)) < 1e-9)    // 0.3 is a multiple of 0.1
BOUND(min_length_fits, is_text(v), (x = text_length(v)) >= limit)
BOUND(max_length_fits, is_text(v), (x = text_length(v)) <= limit)
BOUND(min_items_fit, json_is_array(v), (x = (double)json_array_size(v)) >= limit)
BOUND(max_items_fit, json_is_array(v), (x = (double)json_array_size(v)) <= limit)

// clang-format off
static const struct keyword keywords[] = {
    { "type",                 HOLDS_VALUE,  type_fits },
    { "enum",                 HOLDS_VALUE,  enum_fits },
    { "const",                HOLDS_VALUE,  const_fits },
    { "properties",           HOLDS_MAP,    properties_fit },
    { "additionalProperties", HOLDS_SCHEMA, additional_fits },
    { "required",             HOLDS_VALUE,  required_fits },
    { "items",                HOLDS_SCHEMA, items_fit },
    { "anyOf",                HOLDS_LIST,   any_fits },
    { "oneOf",                HOLDS_LIST,   one_fits },
    { "allOf",                HOLDS_LIST,   all_fit },
    { "$ref",                 HOLDS_VALUE,  ref_fits },
    { "minimum",              HOLDS_VALUE,  minimum_fits },
    { "maximum",              HOLDS_VALUE,  maximum_fits },
    { "exclusiveMinimum",     HOLDS_VALUE,  above_fits },
    { "exclusiveMaximum",     HOLDS_VALUE,  below_fits },
    { "multipleOf",           HOLDS_VALUE,  multiple_fits },
    { "minLength",            HOLDS_VALUE,  min_length_fits },
    { "maxLength",            HOLDS_VALUE,  max_length_fits },
    { "minItems",             HOLDS_VALUE,  min_items_fit },
    { "maxItems",             HOLDS_VALUE,  max_items_fit },
    { "$defs",                HOLDS_MAP,    NULL },
    { "definitions",          HOLDS_MAP,    NULL },
    { "title",                HOLDS_VALUE,  NULL },
    { "description",          HOLDS_VALUE,  NULL },
    { "default",              HOLDS_VALUE,  NULL },
    { "examples",             HOLDS_VALUE,  NULL },
    { "$schema",              HOLDS_VALUE,  NULL },
    { "$comment",             HOLDS_VALUE,  NULL },
    { "deprecated",           HOLDS_VALUE,  NULL },
};
// clang-format on

/* true passes everything, false and what is missing nothing. */
static bool schema_fits(struct fit *f, const json_t *schema, const json_t *v)
{
    bool ok = json_is_object(schema);
    if (!ok || ++f->n_step > TOOL_SCHEMA_STEPS || f->depth >= DEPTH_MAX)
        return json_is_true(schema);
    f->depth++;
    for (size_t i = 0; ok && i < ARRAY_SIZE(keywords); i++) {
        const json_t *rule = json_object_get(schema, keywords[i].name);
        ok = !rule || !keywords[i].fits || keywords[i].fits(f, schema, rule, v);
    }
    f->depth--;
    return ok;
}

bool tool_schema_fits(const json_t *schema, const json_t *value)
{
    struct fit f = { .root = schema };
    return schema_fits(&f, schema, value) && f.n_step <= TOOL_SCHEMA_STEPS;    // a oneOf may hold because its steps ran out
}

/* ---- the schema itself */
static bool schema_check(const json_t *root, const json_t *schema, int depth, struct error *err);

static bool types_known(const json_t *rule)
{
    bool ok = json_is_array(rule) ? json_array_size(rule) > 0 : type_find(rule) != TYPE_N;
    for (size_t i = 0; ok && i < json_array_size(rule); i++)
        ok = type_find(json_array_get(rule, i)) != TYPE_N;
    return ok;
}

static bool keyword_check(const json_t *root, const char *name, const json_t *rule, int depth, struct error *err)
{
    const struct keyword *k = NULL;
    const char *inner;
    json_t *one;
    size_t i;
    for (i = 0; i < ARRAY_SIZE(keywords) && !k; i++)
        k = strcmp(keywords[i].name, name) == 0 ? &keywords[i] : NULL;
    if (!k)
        return error_set(err, ERR_DATA, "'%.64s' is not understood", name);
    if (k->fits == ref_fits && !ref_find(root, json_string_value(rule)))
        return error_set(err, ERR_DATA, "'$ref' must be \"#\" or \"#/$defs/NAME\" of the same schema");
    if (k->fits == type_fits && !types_known(rule))
        return error_set(err, ERR_DATA, "'type' must be string, number, integer, boolean, object, array or null, or a list of these");
    if ((k->holds == HOLDS_MAP && !json_is_object(rule)) || (k->holds == HOLDS_LIST && !json_is_array(rule)))
        return error_set(err, ERR_DATA, "'%s' must be %s of schemas", name, k->holds == HOLDS_MAP ? "an object" : "a list");
    if (k->holds == HOLDS_SCHEMA)
        return schema_check(root, rule, depth + 1, err);
    if (k->holds == HOLDS_MAP)
        json_object_foreach((json_t *)(uintptr_t)rule, inner, one) if (!schema_check(root, one, depth + 1, err)) return false;
    if (k->holds == HOLDS_LIST)
        json_array_foreach((json_t *)(uintptr_t)rule, i, one) if (!schema_check(root, one, depth + 1, err)) return false;
    return true;
}

static bool schema_check(const json_t *root, const json_t *schema, int depth, struct error *err)
{
    const char *name;
    json_t *rule;
    if (json_is_boolean(schema))
        return true;
    if (!json_is_object(schema) || depth >= DEPTH_MAX)
        return error_set(err, ERR_DATA, "a schema must be an object, nested at most %d deep", DEPTH_MAX);
    json_object_foreach((json_t *)(uintptr_t)schema, name, rule) if (!keyword_check(root, name, rule, depth, err)) return false;
    return true;
}

bool tool_schema_check(const json_t *schema, struct error *err)
{
    return schema_check(schema, schema, 0, err);
}
