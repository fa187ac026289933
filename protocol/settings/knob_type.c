#include "protocol/settings/knob_type.h"
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "protocol/base/cli.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/settings/knobs.h"
#include "protocol/wire/message.h"

static bool value_refused(const struct knob *k, const char *text, struct error *err)
{
    struct buf b = BUF_INIT;
    bool counted = strlen(k->unit) > 3;    // "sample", "step", which stand in the plural; not "s", "tok", "MiB"
    int64_t v;
    bool whole = k->type == KNOB_I64 && !parse_i64(text, &v);
    error_set(err, ERR_USAGE, "'%s' cannot be '%.100s'; it must be %s%s%s%s%s", k->name, text, whole ? "a whole number, " : "",
              knob_bounds_text(k, &b), k->unit[0] ? " " : "", k->unit, counted ? "s" : "");
    buf_release(&b);
    return false;
}

/* ---- booleans ---- */

static bool bool_parse(const char *text, bool *out)
{
    static const char *const yes[] = { "true", "yes", "on", "1" }, *const no[] = { "false", "no", "off", "0" };
    for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool bool_read(const struct knob *k, void *at, const char *text, UNUSED const char *base_dir, struct error *err)
{
    return bool_parse(text, at) || value_refused(k, text, err);
}

static void bool_print(const void *at, struct buf *out)
{
    buf_str(out, *(const bool *)at ? "true" : "false");
}

static void bool_bounds(UNUSED const struct knob *k, struct buf *out)
{
    buf_str(out, "true or false");
}

static void bool_send(const struct knob *k, const void *at, struct msg_out *m)
{
    msg_bool(m, k->name, *(const bool *)at);
}

/* ---- numbers ---- */

static bool i64_read(const struct knob *k, void *at, const char *text, UNUSED const char *base_dir, struct error *err)
{
    int64_t n;
    /* "none" turns top-k off, as in ColossalChat */
    const char *number = strcmp(k->name, "top_k") == 0 && (strcasecmp(text, "none") == 0 || strcmp(text, "-1") == 0) ? "0" : text;
    bool whole = parse_i64(number, &n);
    if (k->max >= KNOB_UNBOUNDED && number[0] && !number[strspn(number, "0123456789")] && (!whole || n > (int64_t)k->max))
        return error_set(err, ERR_USAGE, "'%s' cannot be '%.100s'; the most is %.0f", k->name, text, k->max);
    if (!whole || n < (int64_t)k->min || n > (int64_t)k->max)    // bounds are whole and at most 2^53
        return value_refused(k, text, err);
    *(int64_t *)at = n;
    return true;
}

static void i64_print(const void *at, struct buf *out)
{
    buf_fmt(out, "%" PRId64, *(const int64_t *)at);
}

static void i64_send(const struct knob *k, const void *at, struct msg_out *m)
{
    msg_i64(m, k->name, *(const int64_t *)at);
}

static bool f64_read(const struct knob *k, void *at, const char *text, UNUSED const char *base_dir, struct error *err)
{
    double v;
    if (!parse_f64(text, &v) || v < k->min || v > k->max || (k->above_min && v == k->min) || (v != 0 && fabs(v) < k->least))
        return value_refused(k, text, err);
    if (v != 0 && fabs(v) < FLT_MIN)    // devices compute in single precision, where it would be 0
        return error_set(err, ERR_USAGE, "'%s' cannot be '%.100s'; the least number other than 0 is %.2g", k->name, text, (double)FLT_MIN);
    *(double *)at = v;
    return true;
}

/* The shortest decimal text that reads back to the same double. */
static void number_print(struct buf *b, double v)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        double back;
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (parse_f64(text, &back) && back == v)
            break;
    }
    buf_str(b, text);
}

static void f64_print(const void *at, struct buf *out)
{
    number_print(out, *(const double *)at);
}

static void f64_send(const struct knob *k, const void *at, struct msg_out *m)
{
    msg_f64(m, k->name, *(const double *)at);
}

static void number_bounds(const struct knob *k, struct buf *out)
{
    buf_str(out, k->least > 0 ? "0, or " : k->above_min ? "above " : k->max >= KNOB_UNBOUNDED ? "at least " : "");
    number_print(out, k->least > 0 ? k->least : k->min);
    if (k->max < KNOB_UNBOUNDED) {
        buf_str(out, k->above_min ? ", at most " : " to ");
        number_print(out, k->max);
    }
}

/* ---- ranges: two numbers, or none ---- */

/* "[0.01, 0.99]", "0.01,0.99" or "none". */
static bool range_parse(const struct knob *k, const char *text, double out[2])
{
    if (!text[0] || strcmp(text, "none") == 0 || strcmp(text, "null") == 0) {
        out[0] = out[1] = NAN;
        return true;
    }
    char part[2][64];
    const char *p = text + strspn(text, " ");
    bool bracket = *p == '[', ok = true;
    p += bracket;
    for (int i = 0; i < 2 && ok; i++) {
        p += strspn(p, " ");
        size_t len = strcspn(p, " ,]");
        ok = len < sizeof part[i];
        snprintf(part[i], sizeof part[i], "%.*s", (int)len, p);
        p += len + strspn(p + len, " ");
        ok = ok && *p == (i == 0 ? ',' : bracket ? ']' : 0) && parse_f64(part[i], &out[i]);
        p += *p != 0;
    }
    return ok && !p[strspn(p, " ")] && out[0] >= k->min && out[1] <= k->max && out[0] < out[1];
}

static bool range_read(const struct knob *k, void *at, const char *text, UNUSED const char *base_dir, struct error *err)
{
    double range[2];
    if (!range_parse(k, text, range))
        return value_refused(k, text, err);
    memcpy(at, range, sizeof range);
    return true;
}

static void range_print(const void *at, struct buf *out)
{
    const double *r = at;
    if (isnan(r[0])) {
        buf_str(out, "none");
        return;
    }
    buf_char(out, '[');
    number_print(out, r[0]);
    buf_str(out, ", ");
    number_print(out, r[1]);
    buf_char(out, ']');
}

static void range_bounds(const struct knob *k, struct buf *out)
{
    buf_fmt(out, "[LOW, HIGH] with %g <= LOW < HIGH <= %g, or none", k->min, k->max);
}

static void range_send(const struct knob *k, const void *at, struct msg_out *m)
{
    struct buf text = BUF_INIT;
    range_print(at, &text);
    msg_str(m, k->name, buf_text(&text));
    buf_release(&text);
}

/* ---- texts ---- */

static bool choice_has(const char *choices, const char *text)
{
    size_t len = strlen(text);
    for (const char *p = choices; *p; p += strcspn(p, "|") + (p[strcspn(p, "|")] != 0))
        if (strcspn(p, "|") == len && strncmp(p, text, len) == 0)
            return true;
    return false;
}

static bool text_read(const struct knob *k, void *at, const char *text, UNUSED const char *base_dir, struct error *err)
{
    if (k->choices && !choice_has(k->choices, text))
        return value_refused(k, text, err);
    if (strlen(text) >= k->size)
        return error_set(err, ERR_USAGE, "'%s' is longer than %zu bytes", k->name, k->size - 1);
    strcpy(at, text);
    return true;
}

static void text_print(const void *at, struct buf *out)
{
    buf_str(out, at);
}

static void text_bounds(const struct knob *k, struct buf *out)
{
    buf_str(out, k->choices ? "one of " : "text");
    for (const char *p = k->choices ? k->choices : ""; *p; p++)
        *p == '|' ? buf_str(out, ", ") : buf_char(out, *p);
}

static void text_send(const struct knob *k, const void *at, struct msg_out *m)
{
    msg_str(m, k->name, at);
}

/* ---- paths, and the JSON that names them ---- */

/* Could text be ORG/NAME of the hub, with more words after ':' where they are allowed? A file that is named as data files are is
 * none: it is missing. */
static bool is_hub_name(const char *text, bool is_data)
{
    static const char *const endings[] = { ".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".gz", ".zst", ".txt" };
    const char *slash = strchr(text, '/'), *end = is_data ? text + strcspn(text, "@:") : text + strlen(text);
    if (!is_data)
        return text[0] != '.';
    if (text[0] == '.' || text[0] == '~' || !slash || slash == text || slash > end || memchr(slash + 1, '/', (size_t)(end - slash - 1))
        || strpbrk(text, "*?["))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(endings); i++) {
        size_t n = strlen(endings[i]);
        if ((size_t)(end - text) > n && strncmp(end - n, endings[i], n) == 0)
            return false;
    }
    return true;
}

/* Does the setting name a model's directory, or a part of one? */
static bool is_model(const struct knob *k)
{
    static const char *const names[] = { "model", "tokenizer_path", "teacher" };
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(k->name, names[i]) == 0)
            return true;
    return false;
}

/* A path as it stands from now on; models and the data may also be org/name in the hub's cache, which is left alone. */
static bool path_read(const struct knob *k, void *at, const char *text, const char *base_dir, struct error *err)
{
    char cwd[PATH_MAX], path[PATH_MAX];
    if (strlen(text) >= k->size)
        return error_set(err, ERR_USAGE, "'%s' is longer than %zu bytes: '%.60s...'", k->name, k->size - 1, text);
    if (!text[0] || text[0] == '/') {
        strcpy(at, text);
        return true;
    }
    if (!base_dir)
        base_dir = getcwd(cwd, sizeof cwd) ? cwd : ".";
    if (!path_join(path, sizeof path, base_dir, text) || strlen(path) >= k->size)
        return error_set(err, ERR_USAGE, "'%s' is longer than %zu bytes: '%.60s...'", k->name, k->size - 1, text);
    bool is_data = strcmp(k->name, "dataset") == 0;
    bool hub_name = (is_data || is_model(k)) && is_hub_name(text, is_data) && !path_exists(path);
    char *plain = hub_name ? NULL : realpath(path, NULL);    // NULL also when it does not exist yet: then the path stays as written
    snprintf(at, k->size, "%s", plain && strlen(plain) < k->size ? plain : hub_name ? text : path);
    free(plain);
    return true;
}

static void path_bounds(UNUSED const struct knob *k, struct buf *out)
{
    buf_str(out, "a path");
}

/* Leave the names out whose value is null: not given. */
static void nulls_drop(json_t *object)
{
    const char *name;
    json_t *v;
    void *next;
    json_object_foreach_safe(object, next, name, v)
    {
        if (json_is_null(v))
            json_object_del(object, name);
    }
}

/* Make the paths inside the JSON of eval_dataset absolute, and check its form. */
static bool json_read(const struct knob *k, void *at, const char *text, const char *base_dir, struct error *err)
{
    if (!text[0]) {
        *(char *)at = 0;
        return true;
    }
    json_error_t je;
    char cwd[PATH_MAX];
    if (!base_dir)
        base_dir = getcwd(cwd, sizeof cwd) ? cwd : ".";
    json_t *root = json_str_read(text, JSON_REJECT_DUPLICATES, &je);
    bool ok = false;
    char *out = NULL;
    if (!root || !json_is_object(root)) {
        error_set(err, ERR_USAGE, "'eval_dataset' must be a JSON object {\"NAME\": \"FILE\"}%s%s", root ? "" : ": ", root ? "" : je.text);
        goto out;
    }
    const char *name;
    json_t *v;
    void *next;
    nulls_drop(root);
    json_object_foreach_safe(root, next, name, v)
    {
        json_t *set = json_is_string(v) ? json_pack("{sO}", "path", v) : json_incref(v);
        nulls_drop(set);
        const char *path = json_string_value(json_object_get(set, "path"));
        char full[PATH_MAX];
        if (!path || !path_join(full, sizeof full, base_dir, path)) {
            json_decref(set);
            error_set(err, ERR_USAGE, "'eval_dataset': the set '%s' names no file", name);
            goto out;
        }
        bool hub_name = is_hub_name(path, true) && !path_exists(full);
        char *plain = realpath(full, NULL);
        json_object_set_new(set, "path", json_string(hub_name ? path : plain ? plain : full));
        free(plain);
        json_object_set_new(root, name, set);
    }
    out = json_text_dump(root, JSON_COMPACT);
    if (!out || strlen(out) >= k->size) {
        error_set(err, ERR_USAGE, "'eval_dataset' is longer than %zu bytes", k->size - 1);
        goto out;
    }
    strcpy(at, out);
    ok = true;
out:
    free(out);
    json_decref(root);
    return ok;
}

static void json_bounds(UNUSED const struct knob *k, struct buf *out)
{
    buf_str(out, "a JSON object");
}

/* Make the files that an object names absolute. */
static bool object_files(const struct knob *k, json_t *root, const char *base_dir, struct error *err)
{
    const char *name;
    json_t *v;
    json_object_foreach(root, name, v)
    {
        char full[PATH_MAX];
        size_t len = strlen(name), end = strlen("_file");
        if (len < end || strcmp(name + len - end, "_file") != 0 || !json_is_string(v) || !json_string_length(v))
            continue;
        if (!path_join(full, sizeof full, base_dir, json_string_value(v)))
            return error_set(err, ERR_USAGE, "'%s': the path of '%s' is too long", k->name, name);
        json_string_set(v, full);
    }
    return true;
}

static bool object_read(const struct knob *k, void *at, const char *text, const char *base_dir, struct error *err)
{
    char cwd[PATH_MAX];
    json_error_t why = { .text = "" };
    json_t *root = text[0] ? json_str_read(text, JSON_REJECT_DUPLICATES, &why) : NULL;
    char *out = NULL;
    bool ok = true;
    if (!base_dir)
        base_dir = getcwd(cwd, sizeof cwd) ? cwd : ".";
    if (text[0] && !json_is_object(root))
        ok = error_set(err, ERR_USAGE, "'%s' is '%.100s'; it must be a JSON object%s%s", k->name, text, root ? "" : ": ",
                       root ? "" : why.text);
    else if (root) {
        nulls_drop(root);
        ok = object_files(k, root, base_dir, err);
    }
    if (ok && root) {
        out = json_text_dump(root, JSON_COMPACT);
        ok = (out && strlen(out) < k->size) || error_set(err, ERR_USAGE, "'%s' is longer than %zu bytes", k->name, k->size - 1);
    }
    if (ok)
        snprintf(at, k->size, "%s", out ? out : "");
    free(out);
    json_decref(root);
    return ok;
}

const struct knob_type_row knob_types[KNOB_TYPE_N] = {
    [KNOB_BOOL] = { bool_read, bool_print, bool_bounds, bool_send, .json_bare = true, .yaml_bare = true },
    [KNOB_I64] = { i64_read, i64_print, number_bounds, i64_send, .json_bare = true, .yaml_bare = true },
    [KNOB_F64] = { f64_read, f64_print, number_bounds, f64_send, .json_bare = true, .yaml_bare = true },
    [KNOB_TEXT] = { text_read, text_print, text_bounds, text_send },
    [KNOB_PATH] = { path_read, text_print, path_bounds, text_send },
    [KNOB_RANGE] = { range_read, range_print, range_bounds, range_send, .yaml_bare = true, .yaml_nested = true },
    [KNOB_OBJECT] = { object_read, text_print, json_bounds, text_send, .yaml_nested = true },
    [KNOB_JSON] = { json_read, text_print, json_bounds, text_send, .yaml_nested = true },
};
