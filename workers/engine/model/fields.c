#include "workers/engine/model/fields.h"
#include <inttypes.h>
#include <math.h>
#include "protocol/base/macros.h"

bool field_int(const struct fields *f, const char *key, int64_t min, int64_t max, int64_t *out, struct error *err)
{
    const json_t *v = json_object_get(f->obj, key);
    if (!v)
        return error_set(err, ERR_DATA, "'%s': '%s%s' is missing", f->path, f->prefix, key);
    // some writers turn 8192 into 8192.0
    double real = json_is_real(v) ? json_real_value(v) : 0.5;
    if (!json_is_integer(v) && !(real == floor(real) && fabs(real) < 1e15))
        return error_set(err, ERR_DATA, "'%s': '%s%s' is not a whole number", f->path, f->prefix, key);
    int64_t n = json_is_integer(v) ? json_integer_value(v) : (int64_t)real;
    if (n < min || n > max)
        return error_set(err, ERR_DATA, "'%s': '%s%s' is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, f->path, f->prefix, key, n,
                         min, max);
    *out = n;
    return true;
}

bool field_given(const struct fields *f, const char *key)
{
    const json_t *v = json_object_get(f->obj, key);
    return v && !json_is_null(v);
}

bool field_real(const struct fields *f, const char *key, double min, double max, double *out, struct error *err)
{
    const json_t *v = json_object_get(f->obj, key);
    if (!v)
        return error_set(err, ERR_DATA, "'%s': '%s%s' is missing", f->path, f->prefix, key);
    if (!json_is_number(v))
        return error_set(err, ERR_DATA, "'%s': '%s%s' is not a number", f->path, f->prefix, key);
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return error_set(err, ERR_DATA, "'%s': '%s%s' is %g; it must be from %g to %g", f->path, f->prefix, key, x, min, max);
    *out = x;
    return true;
}

bool field_bool(const struct fields *f, const char *key, bool *out, struct error *err)
{
    const json_t *v = json_object_get(f->obj, key);
    if (!json_is_boolean(v))
        return error_set(err, ERR_DATA, "'%s': '%s%s' is not true or false", f->path, f->prefix, key);
    *out = json_is_true(v);
    return true;
}
