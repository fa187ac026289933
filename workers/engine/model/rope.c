#include "workers/engine/model/rope.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

static const char *const types[] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_DYNAMIC] = "dynamic", [ROPE_YARN] = "yarn", [ROPE_LLAMA3] = "llama3",
};

#define OF(type) (1u << (type))
#define MUST (-1.0)    // no default: the key must be there
/* The numbers of a scaling: which types have them, and their values when they are not given. */
static const struct number {
    const char *key;
    size_t at;    // a double in struct rope
    unsigned types;
    double min, max, absent;
} numbers[] = {
    { "factor", offsetof(struct rope, factor), OF(ROPE_LINEAR) | OF(ROPE_DYNAMIC) | OF(ROPE_YARN) | OF(ROPE_LLAMA3), 1, 1e6, MUST },
    { "low_freq_factor", offsetof(struct rope, low_freq_factor), OF(ROPE_LLAMA3), 1e-6, 1e6, MUST },
    { "high_freq_factor", offsetof(struct rope, high_freq_factor), OF(ROPE_LLAMA3), 1e-6, 1e6, MUST },
    { "beta_fast", offsetof(struct rope, beta_fast), OF(ROPE_YARN), 1e-6, 1e6, 32 },
    { "beta_slow", offsetof(struct rope, beta_slow), OF(ROPE_YARN), 1e-6, 1e6, 1 },
    { "attention_factor", offsetof(struct rope, attention_factor), OF(ROPE_YARN), 1e-6, 1e6, NAN },
    { "mscale", offsetof(struct rope, mscale), OF(ROPE_YARN), 0, 1e6, NAN },
    { "mscale_all_dim", offsetof(struct rope, mscale_all_dim), OF(ROPE_YARN), 0, 1e6, NAN },
};
#define POS_KEY "original_max_position_embeddings"
#define HAS_POS (OF(ROPE_YARN) | OF(ROPE_LLAMA3))

static bool type_read(struct rope *r, const struct fields *f, struct error *err)
{
    const char *key = json_object_get(f->obj, "rope_type") ? "rope_type" : "type";
    const json_t *v = json_object_get(f->obj, key);
    if (!v)
        return true;    // only theta
    if (!json_is_string(v))
        return error_set(err, ERR_DATA, "'%s': '%s%s' is not a string", f->path, f->prefix, key);
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (strcmp(json_string_value(v), types[i]) == 0) {
            r->type = (enum rope_type)i;
            return true;
        }
    return error_set(err, ERR_UNSUPPORTED, "'%s': '%s%s' is '%s'; known are default, linear, dynamic, yarn and llama3", f->path, f->prefix,
                     key, json_string_value(v));
}

static bool scaling_read(struct rope *r, const struct fields *top, const struct fields *f, int64_t max_pos, struct error *err)
{
    if (field_given(f, "full_attention") || field_given(f, "sliding_attention"))
        return error_set(err, ERR_UNSUPPORTED, "'%s': '%sfull_attention': rotations that differ between layers are not supported", f->path,
                         f->prefix);
    if (!type_read(r, f, err) || (field_given(f, "rope_theta") && !field_real(f, "rope_theta", 1, 1e12, &r->theta, err)))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
        const struct number *n = &numbers[i];
        double *out = (double *)((char *)r + n->at);
        if (!(n->types & OF(r->type)))
            continue;
        if (n->absent != MUST && !field_given(f, n->key))
            *out = n->absent;
        else if (!field_real(f, n->key, n->min, n->max, out, err))
            return false;
    }
    if (HAS_POS & OF(r->type)) {
        const struct fields *from = field_given(top, POS_KEY) ? top : f;    // the outer one wins in the reference too
        r->original_max_pos = max_pos;
        if (field_given(from, POS_KEY) && !field_int(from, POS_KEY, 1, 1 << 28, &r->original_max_pos, err))
            return false;
    }
    bool truncate = true;
    if (r->type == ROPE_YARN && field_given(f, "truncate") && !field_bool(f, "truncate", &truncate, err))
        return false;
    r->no_truncate = !truncate;
    if (r->type == ROPE_LLAMA3 && r->high_freq_factor <= r->low_freq_factor)
        return error_set(err, ERR_DATA, "'%s': '%shigh_freq_factor' %g is not above 'low_freq_factor' %g", f->path, f->prefix,
                         r->high_freq_factor, r->low_freq_factor);
    return true;
}

static bool partial_refuse(const struct fields *f, struct error *err)
{
    double part = 1;
    if (field_given(f, "partial_rotary_factor") && !field_real(f, "partial_rotary_factor", 0, 1, &part, err))
        return false;
    return part == 1
           || error_set(err, ERR_UNSUPPORTED, "'%s': '%spartial_rotary_factor' is %g; rotating a part of each head is not supported",
                        f->path, f->prefix, part);
}

bool rope_read(struct rope *r, const struct fields *top, double theta, int64_t max_pos, struct error *err)
{
    static const char *const places[] = { "rope_scaling", "rope_parameters" };
    *r = (struct rope){ .theta = theta };
    if (field_given(top, "rope_theta") && !field_real(top, "rope_theta", 1, 1e12, &r->theta, err))
        return false;
    for (size_t p = 0; p < ARRAY_SIZE(places); p++) {
        if (!field_given(top, places[p]))
            continue;
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s.", places[p]);
        struct fields f = { json_object_get(top->obj, places[p]), top->path, prefix };
        if (!json_is_object(f.obj))
            return error_set(err, ERR_DATA, "'%s': '%s' is not an object", f.path, places[p]);
        return scaling_read(r, top, &f, max_pos, err) && partial_refuse(&f, err) && partial_refuse(top, err);
    }
    return partial_refuse(top, err);
}

bool rope_write(const struct rope *r, json_t *config)
{
    if (json_object_set_new(config, "rope_theta", json_real(r->theta)) != 0)
        return false;
    if (r->type == ROPE_DEFAULT)
        return true;
    json_t *o = json_pack("{s:s}", "rope_type", types[r->type]);
    bool ok = o != NULL;
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
        double x = *(const double *)((const char *)r + numbers[i].at);
        if (numbers[i].types & OF(r->type) && !isnan(x))
            ok = ok && json_object_set_new(o, numbers[i].key, json_real(x)) == 0;
    }
    if (HAS_POS & OF(r->type))
        ok = ok && json_object_set_new(o, POS_KEY, json_integer(r->original_max_pos)) == 0;
    if (r->no_truncate)
        ok = ok && json_object_set_new(o, "truncate", json_false()) == 0;
    return json_object_set_new(config, "rope_scaling", o) == 0 && ok;
}

/* Llama 3.1's: long waves are slowed down by the factor, short ones stay, those between are blended. */
static double llama3(const struct rope *r, double f)
{
    double wave = 2 * pi / f, old = (double)r->original_max_pos;
    if (wave > old / r->low_freq_factor)
        return f / r->factor;
    if (wave < old / r->high_freq_factor)
        return f;
    double s = (old / wave - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - s) * f / r->factor + s * f;
}

/* The pair (not always a whole number) that turns `turns` times within the original positions. */
static double yarn_pair(const struct rope *r, int64_t d, double turns)
{
    return (double)d * log((double)r->original_max_pos / (turns * 2 * pi)) / (2 * log(r->theta));
}

static void yarn(const struct rope *r, int64_t d, double *inv_freq)
{
    double low = yarn_pair(r, d, r->beta_fast), high = yarn_pair(r, d, r->beta_slow);
    if (!r->no_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(d - 1));    // all dimensions, not pairs: as the reference has it
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < d / 2; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        inv_freq[i] = inv_freq[i] / r->factor * ramp + inv_freq[i] * (1 - ramp);
    }
}

static double yarn_attention(const struct rope *r)
{
    double grow = r->factor > 1 ? 0.1 * log(r->factor) : 0;
    if (!isnan(r->attention_factor))
        return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return (r->mscale * grow + 1) / (r->mscale_all_dim * grow + 1);
    return grow + 1;
}

double rope_inv_freq(const struct rope *r, int64_t d, double *inv_freq)
{
    for (int64_t i = 0; i < d / 2; i++) {
        inv_freq[i] = 1.0 / pow(r->theta, (double)(2 * i) / (double)d);
        if (r->type == ROPE_LINEAR)
            inv_freq[i] /= r->factor;
        else if (r->type == ROPE_LLAMA3)
            inv_freq[i] = llama3(r, inv_freq[i]);
    }
    if (r->type != ROPE_YARN)
        return 1;
    yarn(r, d, inv_freq);
    return yarn_attention(r);
}
