#include "workers/engine/model/rope.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

static const char *const types[] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_DYNAMIC] = "dynamic",
    [ROPE_YARN] = "yarn",       [ROPE_LLAMA3] = "llama3", [ROPE_LONG] = "longrope",
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
    { "factor", offsetof(struct rope, factor), OF(ROPE_LONG), 1e-6, 1e6, NAN },
    { "low_freq_factor", offsetof(struct rope, low_freq_factor), OF(ROPE_LLAMA3), 1e-6, 1e6, MUST },
    { "high_freq_factor", offsetof(struct rope, high_freq_factor), OF(ROPE_LLAMA3), 1e-6, 1e6, MUST },
    { "beta_fast", offsetof(struct rope, beta_fast), OF(ROPE_YARN), 1e-6, 1e6, 32 },
    { "beta_slow", offsetof(struct rope, beta_slow), OF(ROPE_YARN), 1e-6, 1e6, 1 },
    { "attention_factor", offsetof(struct rope, attention_factor), OF(ROPE_YARN) | OF(ROPE_LONG), 1e-6, 1e6, NAN },
    { "mscale", offsetof(struct rope, mscale), OF(ROPE_YARN), 0, 1e6, NAN },
    { "mscale_all_dim", offsetof(struct rope, mscale_all_dim), OF(ROPE_YARN), 0, 1e6, NAN },
};
#define POS_KEY "original_max_position_embeddings"
#define HAS_POS (OF(ROPE_YARN) | OF(ROPE_LLAMA3) | OF(ROPE_LONG))

/* Phi-3 has longrope alone. Where layers with a window have frequencies of their own, a change to the long ones is not supported. */
static bool type_known(enum rope_type type, const struct rope_family *family)
{
    if (type == ROPE_LONG)
        return family->longrope || family->local_theta == 0;
    return type == ROPE_DEFAULT || !family->longrope;
}

static bool type_read(struct rope *r, const struct fields *f, const struct rope_family *family, struct error *err)
{
    const char *key = json_object_get(f->obj, "rope_type") ? "rope_type" : "type";
    const json_t *v = json_object_get(f->obj, key);
    if (!v)
        return true;    // only theta
    if (!json_is_string(v))
        return error_set(err, ERR_DATA, "'%s': '%s%s' is not a string", f->path, f->prefix, key);
    const char *name = json_string_value(v);
    if (family->longrope && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0))
        name = types[ROPE_LONG];
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (strcmp(name, types[i]) == 0 && type_known((enum rope_type)i, family)) {
            r->type = (enum rope_type)i;
            return true;
        }
    return error_set(err, ERR_UNSUPPORTED, "'%s': '%s%s' is '%s'; known are %s", f->path, f->prefix, key, name,
                     family->longrope          ? "default and longrope"
                     : family->local_theta > 0 ? "default, linear, dynamic, yarn and llama3"
                                               : "default, linear, dynamic, yarn, llama3 and longrope");
}

/* The two lists of longrope, a number for each pair that turns. */
static bool ext_read(struct rope *r, const struct fields *f, int64_t d_head, struct error *err)
{
    static const char *const keys[] = { "short_factor", "long_factor" };
    double *const out[] = { r->short_ext, r->long_ext };
    r->n_ext = rope_dims(r, d_head) / 2;
    if (r->n_ext > ROPE_PAIRS_MAX)
        return error_set(err, ERR_UNSUPPORTED, "'%s': longrope turns %" PRId64 " pairs of a head; at most %d are supported", f->path,
                         r->n_ext, ROPE_PAIRS_MAX);
    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        const json_t *list = json_object_get(f->obj, keys[k]);
        if (!json_is_array(list) || (int64_t)json_array_size(list) != r->n_ext)
            return error_set(err, ERR_DATA, "'%s': '%s%s' is not a list of %" PRId64 " numbers, one per pair that turns", f->path,
                             f->prefix, keys[k], r->n_ext);
        for (int64_t i = 0; i < r->n_ext; i++) {
            const json_t *v = json_array_get(list, (size_t)i);
            if (!json_is_number(v) || !(json_number_value(v) > 0))
                return error_set(err, ERR_DATA, "'%s': '%s%s' has an entry %" PRId64 " that is not a number above 0", f->path, f->prefix,
                                 keys[k], i);
            out[k][i] = (double)(float)json_number_value(v);    // as the reference, and so it survives being written
        }
    }
    return true;
}

static bool scaling_read(struct rope *r, const struct fields *top, const struct fields *f, const struct rope_family *family,
                         int64_t max_pos, int64_t d_head, struct error *err)
{
    if (field_given(f, "full_attention") || field_given(f, "sliding_attention"))
        return error_set(err, ERR_UNSUPPORTED, "'%s': '%sfull_attention': rotations of this family do not differ between layers", f->path,
                         f->prefix);
    if (!type_read(r, f, family, err) || (field_given(f, "rope_theta") && !field_real(f, "rope_theta", 1, 1e12, &r->theta, err)))
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
        r->original_max_pos = family->original_max_pos ? family->original_max_pos : max_pos;
        if (field_given(from, POS_KEY) && !field_int(from, POS_KEY, 1, 1 << 28, &r->original_max_pos, err))
            return false;
    }
    if (r->type == ROPE_LONG && isnan(r->factor))
        r->factor = (double)max_pos / (double)r->original_max_pos;
    bool truncate = true;
    if (r->type == ROPE_YARN && field_given(f, "truncate") && !field_bool(f, "truncate", &truncate, err))
        return false;
    r->no_truncate = !truncate;
    if (r->type == ROPE_LLAMA3 && r->high_freq_factor <= r->low_freq_factor)
        return error_set(err, ERR_DATA, "'%s': '%shigh_freq_factor' %g is not above 'low_freq_factor' %g", f->path, f->prefix,
                         r->high_freq_factor, r->low_freq_factor);
    return r->type != ROPE_LONG || ext_read(r, f, d_head, err);
}

static bool partial_read(struct rope *r, const struct fields *f, const struct rope_family *family, int64_t d_head, struct error *err)
{
    double part = 1;
    if (!field_given(f, "partial_rotary_factor"))
        return true;
    if (!field_real(f, "partial_rotary_factor", 0, 1, &part, err))
        return false;
    r->partial = part;
    if (part != 1 && !family->partial)
        return error_set(err, ERR_UNSUPPORTED, "'%s': '%spartial_rotary_factor' is %g; heads of this family turn as a whole", f->path,
                         f->prefix, part);
    int64_t rot = rope_dims(r, d_head);
    return (rot > 0 && rot % 2 == 0)
           || error_set(err, ERR_UNSUPPORTED,
                        "'%s': '%spartial_rotary_factor' %g turns %" PRId64 " of 'head_dim' %" PRId64
                        "; an even number above 0 is supported",
                        f->path, f->prefix, part, rot, d_head);
}

/* What rope_parameters or rope_scaling, an object, says. */
static bool object_read(struct rope *r, const struct fields *top, const struct fields *f, const struct rope_family *family, int64_t max_pos,
                        int64_t d_head, struct error *err)
{
    if (!json_is_object(f->obj))
        return error_set(err, ERR_DATA, "'%s': '%.*s' is not an object", f->path, (int)strlen(f->prefix) - 1, f->prefix);
    return partial_read(r, f, family, d_head, err) && scaling_read(r, top, f, family, max_pos, d_head, err);
}

/* One object per kind of layer, as transformers 5 writes it. */
static bool nested_read(struct rope *r, struct rope *local, const struct fields *top, const json_t *both, const struct rope_family *family,
                        int64_t max_pos, int64_t d_head, struct error *err)
{
    struct fields full = { json_object_get(both, "full_attention"), top->path, "rope_parameters.full_attention." };
    struct fields sliding = { json_object_get(both, "sliding_attention"), top->path, "rope_parameters.sliding_attention." };
    return (!full.obj || object_read(r, top, &full, family, max_pos, d_head, err))
           && (!sliding.obj || object_read(local, top, &sliding, family, max_pos, d_head, err));
}

bool rope_read(struct rope *r, struct rope *local, const struct fields *top, const struct rope_family *family, int64_t max_pos,
               int64_t d_head, struct error *err)
{
    static const char *const places[] = { "rope_scaling", "rope_parameters" };
    *r = (struct rope){ .theta = family->theta, .partial = family->part };
    *local = (struct rope){ .theta = family->local_theta };
    if (field_given(top, "rope_theta") && !field_real(top, "rope_theta", 1, 1e12, &r->theta, err))
        return false;
    if (family->local_key && field_given(top, family->local_key) && !field_real(top, family->local_key, 1, 1e12, &local->theta, err))
        return false;
    if (!partial_read(r, top, family, d_head, err))
        return false;
    for (size_t p = 0; p < ARRAY_SIZE(places); p++) {
        if (!field_given(top, places[p]))
            continue;
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s.", places[p]);
        struct fields f = { json_object_get(top->obj, places[p]), top->path, prefix };
        if (family->local_theta > 0 && (field_given(&f, "full_attention") || field_given(&f, "sliding_attention")))
            return nested_read(r, local, top, f.obj, family, max_pos, d_head, err);
        if (family->ignores_flat && strcmp(places[p], "rope_parameters") == 0)
            return true;
        return object_read(r, top, &f, family, max_pos, d_head, err);
    }
    return true;
}

/* The object that says what a scaling is, or NULL: no memory. */
static json_t *scaling_make(const struct rope *r)
{
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
    for (int k = 0; k < 2 && r->type == ROPE_LONG; k++) {
        json_t *list = json_array();
        for (int64_t i = 0; i < r->n_ext; i++)
            ok = ok && json_array_append_new(list, json_real(k ? r->long_ext[i] : r->short_ext[i])) == 0;
        ok = json_object_set_new(o, k ? "long_factor" : "short_factor", list) == 0 && ok;
    }
    if (!ok) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* The form of transformers 5, for what the older keys cannot say. */
static bool nested_write(const struct rope *r, const struct rope *local, json_t *config)
{
    const struct rope *each[] = { r, local };
    json_t *both = json_object();
    bool ok = both != NULL;
    for (int k = 0; ok && k < 2; k++) {
        json_t *o = scaling_make(each[k]);
        ok = o && json_object_set_new(o, "rope_theta", json_real(each[k]->theta)) == 0
             && json_object_set(both, k ? "sliding_attention" : "full_attention", o) == 0;
        json_decref(o);
    }
    return json_object_set_new(config, "rope_parameters", both) == 0 && ok;
}

bool rope_write(const struct rope *r, const struct rope *local, const struct rope_family *family, json_t *config)
{
    bool ok = true;
    if (family->local_theta > 0 && (local->type != ROPE_DEFAULT || (!family->local_key && local->theta != family->local_theta)))
        return nested_write(r, local, config);
    if (family->local_key)
        ok = json_object_set_new(config, family->local_key, json_real(local->theta)) == 0;
    if (r->partial > 0)
        ok = ok && json_object_set_new(config, "partial_rotary_factor", json_real(r->partial)) == 0;
    if (r->type == ROPE_LONG)    // Phi-3's class reads it here
        ok = ok && json_object_set_new(config, POS_KEY, json_integer(r->original_max_pos)) == 0;
    ok = ok && json_object_set_new(config, "rope_theta", json_real(r->theta)) == 0;
    return ok && (r->type == ROPE_DEFAULT || json_object_set_new(config, "rope_scaling", scaling_make(r)) == 0);
}

int64_t rope_dims(const struct rope *r, int64_t d_head)
{
    return r->partial > 0 ? (int64_t)((double)d_head * r->partial) : d_head;
}

int64_t rope_longest(const struct rope *r, int64_t max_pos)
{
    if (r->type == ROPE_LONG && !r->is_long)
        return MIN(r->original_max_pos, max_pos);
    return r->type == ROPE_DYNAMIC ? max_pos : INT64_MAX;
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

static double long_attention(const struct rope *r)
{
    if (!isnan(r->attention_factor))
        return r->attention_factor;
    return r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log((double)r->original_max_pos));
}

double rope_inv_freq(const struct rope *r, int64_t d, double *inv_freq)
{
    for (int64_t i = 0; i < d / 2; i++) {
        inv_freq[i] = 1.0 / pow(r->theta, (double)(2 * i) / (double)d);
        if (r->type == ROPE_LINEAR)
            inv_freq[i] /= r->factor;
        else if (r->type == ROPE_LLAMA3)
            inv_freq[i] = llama3(r, inv_freq[i]);
        else if (r->type == ROPE_LONG)
            inv_freq[i] /= r->is_long ? r->long_ext[i] : r->short_ext[i];
    }
    if (r->type == ROPE_LONG)
        return long_attention(r);
    if (r->type != ROPE_YARN)
        return 1;
    yarn(r, d, inv_freq);
    return yarn_attention(r);
}
