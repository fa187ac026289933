#include "workers/atropos/atropos_data.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"

#define NUMBER_MAX 400     // digits of one number; longer ones are neither tokens nor log-probs
#define NAME_MAX_LEN 64    // of a field's name; longer ones are unknown fields

enum value_kind {
    VALUE_INTS,        // numbers in nested lists, read by hand
    VALUE_FLOATS,      // ... that need not be whole
    VALUE_MESSAGES,    // a list of lists of objects with role and content
    VALUE_OBJECT,      // or null
    VALUE_OBJECTS,     // a list of objects
    VALUE_ANY,
    VALUE_ENV,    // an integer
};
static const struct field {
    const char *name;
    enum value_kind kind;
    int depth;    // of the lists
    bool needed;
} fields[] = {
    { "tokens", VALUE_INTS, 2, true },
    { "masks", VALUE_INTS, 2, true },
    { "scores", VALUE_FLOATS, 1, true },
    { "advantages", VALUE_FLOATS, 2, false },
    { "ref_logprobs", VALUE_FLOATS, 2, false },
    { "messages", VALUE_MESSAGES, 0, false },
    { "generation_params", VALUE_OBJECT, 0, false },
    { "inference_logprobs", VALUE_FLOATS, 2, false },
    { "overrides", VALUE_OBJECTS, 0, false },
    { "group_overrides", VALUE_OBJECT, 0, false },
    { "images", VALUE_ANY, 0, false },
    { "env_id", VALUE_ENV, 0, false },
    { "distill_token_ids", VALUE_INTS, 3, false },
    { "distill_logprobs", VALUE_FLOATS, 3, false },
};
#define N_FIELD ((int)ARRAY_SIZE(fields))

struct cursor {
    const char *at, *end;
    int64_t index;       // of the object in its list; -1: it is alone
    const char *name;    // of the field; NULL: the object itself
    struct scored_fault *fault;
};
struct part {
    size_t at, len;    // of a field's text in the scratch buffer; len 0: absent
};
struct object {
    struct part part[N_FIELD];
    int64_t n_seq, env_id;
    struct buf text;    // scratch
};

/* ---- faults */
static bool fault_set(struct cursor *c, const char *type, const char *msg)
{
    struct scored_fault *f = c->fault;
    int n = snprintf(f->loc, sizeof f->loc, "[\"body\"");
    if (c->index >= 0)
        n += snprintf(f->loc + n, sizeof f->loc - (size_t)n, ",%" PRId64, c->index);
    if (c->name)
        n += snprintf(f->loc + n, sizeof f->loc - (size_t)n, ",\"%s\"", c->name);
    snprintf(f->loc + n, sizeof f->loc - (size_t)n, "]");
    f->type = type;
    f->no_memory = false;
    snprintf(f->msg, sizeof f->msg, "%s", msg);
    return false;
}

static bool json_fault(struct cursor *c, const char *msg)
{
    return fault_set(c, "json_invalid", msg);
}

static bool memory_fault(struct cursor *c)
{
    fault_set(c, "no_memory", "there is no memory for the group");
    c->fault->no_memory = true;
    return false;
}

void scored_fault_print(struct buf *out, const struct scored_fault *fault)
{
    buf_fmt(out, "{\"detail\":[{\"type\":\"%s\",\"loc\":%s,\"msg\":", fault->type, fault->loc);
    json_text_print(out, fault->msg, strlen(fault->msg), JSON_TEXT_UTF8);
    buf_str(out, ",\"input\":null}]}");
}

/* ---- pieces of JSON */
static void blank_skip(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t'))
        c->at++;
}

/* Is the next character this one? Then step over it. */
static bool take(struct cursor *c, char want)
{
    blank_skip(c);
    if (c->at == c->end || *c->at != want)
        return false;
    c->at++;
    return true;
}

static bool word_take(struct cursor *c, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(c->end - c->at) < len || memcmp(c->at, word, len) != 0)
        return false;
    c->at += len;
    return true;
}

/* Step over a string; *from and *len are what is between its quotes. */
static bool string_skip(struct cursor *c, const char **from, size_t *len)
{
    if (!take(c, '"'))
        return json_fault(c, "a string was expected");
    *from = c->at;
    for (; c->at < c->end && *c->at != '"'; c->at++)
        c->at += *c->at == '\\' && c->at + 1 < c->end;
    if (c->at == c->end)
        return json_fault(c, "a string has no end");
    *len = (size_t)(c->at++ - *from);
    return true;
}

/* Step over a value of any kind; what it holds is not checked. */
static bool value_skip(struct cursor *c, const char **from, size_t *len)
{
    const char *unused;
    size_t unused_len;
    int64_t depth = 0;
    blank_skip(c);
    *from = c->at;
    do {
        blank_skip(c);
        if (c->at == c->end)
            return json_fault(c, "the value has no end");
        if (*c->at == '"') {
            if (!string_skip(c, &unused, &unused_len))
                return false;
            continue;
        }
        depth += *c->at == '[' || *c->at == '{';
        depth -= *c->at == ']' || *c->at == '}';
        if (depth < 0)
            return json_fault(c, "a value was expected");
        c->at++;
        while (depth == 0 && c->at < c->end && !strchr(",]} \t\r\n", *c->at) && c->at[-1] != ']' && c->at[-1] != '}')
            c->at++;    // a number or a word
    } while (depth > 0);
    *len = (size_t)(c->at - *from);
    return *len > 0 || json_fault(c, "a value was expected");
}

/* A value through jansson, for json_decref; NULL: see fault. */
static json_t *value_load(struct cursor *c, const char *from, size_t len)
{
    json_error_t why;
    json_t *v = json_text_read(from, len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_STANDARD, &why);
    if (!v && json_text_code(&why) == ERR_NO_MEMORY)
        memory_fault(c);
    else if (!v)
        json_fault(c, why.text);
    return v;
}

/* ---- numbers */
/* The end of the JSON number at s; s when there is none. *whole: it has neither fraction nor exponent. */
static const char *number_end(const char *s, const char *end, bool *whole)
{
    const char *p = s + (s < end && *s == '-'), *digits = p;
    *whole = true;
    while (p < end && (unsigned)(*p - '0') < 10)
        p++;
    if (p == digits || (*digits == '0' && p - digits > 1))
        return s;
    if (p < end && *p == '.') {
        for (digits = ++p; p < end && (unsigned)(*p - '0') < 10; p++)
            ;
        if (p == digits)
            return s;
        *whole = false;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '+' || *p == '-');
        for (digits = p; p < end && (unsigned)(*p - '0') < 10; p++)
            ;
        if (p == digits)
            return s;
        *whole = false;
    }
    return p;
}

/* The value of a number's text. False: it is too long, or not finite. */
static bool number_value(const char *from, size_t len, double *v)
{
    char copy[NUMBER_MAX + 1];
    if (len > NUMBER_MAX)
        return false;
    memcpy(copy, from, len);
    copy[len] = 0;
    *v = strtod(copy, NULL);
    return isfinite(*v);
}

static bool number_fault(struct cursor *c, bool is_int)
{
    if (c->at < c->end && *c->at == '-')
        c->at++;
    if (word_take(c, "NaN") || word_take(c, "Infinity"))
        return fault_set(c, "finite_number", "Input should be a finite number");
    return is_int ? fault_set(c, "int_type", "Input should be a valid integer")
                  : fault_set(c, "float_type", "Input should be a valid number");
}

/* Append a whole number that was written with a fraction or exponent. */
static bool whole_print(struct cursor *c, struct buf *out, const char *from, size_t len)
{
    double v;
    if (!number_value(from, len, &v) || v != trunc(v) || fabs(v) > 9007199254740992.0)
        return fault_set(c, "int_from_float", "Input should be a valid integer, got a number with a fractional part");
    buf_fmt(out, "%.0f", v);
    return true;
}

/* A number that is written as text or as a truth value, as pydantic takes it. */
static bool coerced_scan(struct cursor *c, struct buf *out, bool is_int)
{
    const char *from;
    size_t len;
    bool whole;
    if (word_take(c, "true"))
        return buf_str(out, "1") || memory_fault(c);
    if (word_take(c, "false"))
        return buf_str(out, "0") || memory_fault(c);
    if (c->at == c->end || *c->at != '"')
        return number_fault(c, is_int);
    if (!string_skip(c, &from, &len))
        return false;
    for (; len > 0 && *from == ' '; from++)
        len--;
    while (len > 0 && from[len - 1] == ' ')
        len--;
    double v;
    if (len == 0 || number_end(from, from + len, &whole) != from + len || !number_value(from, len, &v))
        return is_int ? fault_set(c, "int_parsing", "Input should be a valid integer, unable to parse string as an integer")
                      : fault_set(c, "float_parsing", "Input should be a valid number, unable to parse string as a number");
    return is_int && !whole ? whole_print(c, out, from, len) : buf_add(out, from, len) || memory_fault(c);
}

/* One number into out. */
static bool number_scan(struct cursor *c, struct buf *out, bool is_int)
{
    bool whole;
    double v;
    const char *from = c->at, *end = number_end(from, c->end, &whole);
    size_t len = (size_t)(end - from);
    if (len == 0)
        return coerced_scan(c, out, is_int);
    c->at = end;
    if (is_int && !whole)
        return whole_print(c, out, from, len);
    const char *e = whole ? NULL : memchr(from, 'e', len);
    e = e || whole ? e : memchr(from, 'E', len);
    // only many digits or a positive exponent can be too much for a double
    if ((len > 300 || (e && e[1] != '-')) && !number_value(from, len, &v))
        return fault_set(c, "finite_number", "Input should be a finite number");
    return buf_add(out, from, len) || memory_fault(c);
}

/* The numbers of a list up to its end, which is stepped over. The loop that an environment's megabytes go through: plain
 * integers and decimals are copied while they are checked. */
static bool numbers_scan(struct cursor *c, struct buf *out, bool is_int)
{
    for (bool first = true;; first = false) {
        if (first && take(c, ']'))
            break;
        if (!first) {
            if (take(c, ']'))
                break;
            if (!take(c, ','))
                return json_fault(c, "',' or ']' was expected in a list");
            buf_char(out, ',');
        }
        blank_skip(c);
        const char *s = c->at, *end = c->end;
        if (end - s > 24) {    // the common case, without a look at the end: at most 20 characters
            const char *p = s + (*s == '-'), *digits = p;
            char *to = buf_reserve(out, 24);
            if (!to)
                return memory_fault(c);
            while ((unsigned)(*p - '0') < 10 && p - s < 21)
                p++;
            bool plain = p > digits && (*digits != '0' || p - digits == 1);
            if (plain && !is_int && *p == '.') {
                const char *fraction = ++p;
                while ((unsigned)(*p - '0') < 10 && p - s < 22)
                    p++;
                plain = p > fraction;
            }
            if (plain && (*p == ',' || *p == ']' || *p == ' ')) {
                memcpy(to, s, 24);    // a fixed size is one move; what is too much is written over
                out->len += (size_t)(p - s);
                c->at = p;
                continue;
            }
        }
        if (!number_scan(c, out, is_int))
            return false;
    }
    buf_char(out, ']');
    return !out->failed || memory_fault(c);
}

/* Lists of lists of numbers; *n: elements of the outermost. */
static bool lists_scan(struct cursor *c, struct buf *out, int depth, bool is_int, int64_t *n)
{
    int64_t n_inner;
    if (!take(c, '['))
        return fault_set(c, "list_type", "Input should be a valid list");
    buf_char(out, '[');
    if (depth == 1)
        return numbers_scan(c, out, is_int);
    for (*n = 0;; ++*n) {
        if (take(c, ']'))
            break;
        if (*n > 0 && !take(c, ','))
            return json_fault(c, "',' or ']' was expected in a list");
        if (*n > 0)
            buf_char(out, ',');
        if (!lists_scan(c, out, depth - 1, is_int, &n_inner))
            return false;
    }
    buf_char(out, ']');
    return !out->failed || memory_fault(c);
}

/* ---- fields that are relayed as they are */
static bool messages_check(struct cursor *c, json_t *v)
{
    size_t i, k;
    json_t *turns, *m;
    if (!json_is_array(v))
        return fault_set(c, "list_type", "Input should be a valid list");
    json_array_foreach(v, i, turns)
    {
        if (!json_is_array(turns))
            return fault_set(c, "list_type", "Input should be a valid list");
        json_array_foreach(
            turns, k,
            m) if (!json_is_object(m) || !json_object_get(m, "role")
                   || !json_object_get(m, "content")) return fault_set(c, "value_error",
                                                                       "Value error, Message must have 'role' and 'content' fields");
    }
    return true;
}

static bool objects_check(struct cursor *c, json_t *v)
{
    size_t i;
    json_t *o;
    if (!json_is_array(v))
        return fault_set(c, "list_type", "Input should be a valid list");
    json_array_foreach(v, i, o) if (!json_is_object(o)) return fault_set(c, "dict_type", "Input should be a valid dictionary");
    return true;
}

static bool relayed_scan(struct cursor *c, struct object *o, const struct field *f)
{
    const char *from = NULL;
    size_t len = 0;
    json_t *v = value_skip(c, &from, &len) ? value_load(c, from, len) : NULL;
    bool ok = v;
    if (v && f && f->kind == VALUE_MESSAGES)
        ok = messages_check(c, v);
    else if (v && f && f->kind == VALUE_OBJECTS)
        ok = objects_check(c, v);
    else if (v && f && f->kind == VALUE_OBJECT && !json_is_object(v))
        ok = fault_set(c, "dict_type", "Input should be a valid dictionary");
    json_decref(v);
    return ok && (!f || buf_add(&o->text, from, len) || memory_fault(c));
}

static bool env_scan(struct cursor *c, struct object *o)
{
    int64_t v = 0;
    size_t at = o->text.len;
    blank_skip(c);
    if (!number_scan(c, &o->text, true))
        return false;
    char *end;
    v = strtoll(buf_text(&o->text) + at, &end, 10);
    o->env_id = v >= 0 && v < INT32_MAX ? v : INT32_MAX;    // no environment has such a number
    return true;
}

/* ---- the object */
static const struct field *field_find(const char *name, size_t len)
{
    for (int i = 0; i < N_FIELD; i++)
        if (strlen(fields[i].name) == len && memcmp(fields[i].name, name, len) == 0)
            return &fields[i];
    return NULL;
}

/* The field that a key names, with its escapes resolved; *f NULL: an unknown one. */
static bool key_scan(struct cursor *c, const struct field **f)
{
    const char *key;
    size_t len;
    c->name = NULL;
    blank_skip(c);
    const char *quote = c->at;
    if (!string_skip(c, &key, &len))
        return false;
    *f = len <= NAME_MAX_LEN ? field_find(key, len) : NULL;
    if (!*f) {
        json_t *v = value_load(c, quote, len + 2);
        if (!v)
            return false;
        if (memchr(key, '\\', len))
            *f = field_find(json_string_value(v), json_string_length(v));
        json_decref(v);
    }
    return take(c, ':') || json_fault(c, "':' was expected after a field's name");
}

static bool member_scan(struct cursor *c, struct object *o)
{
    const struct field *f;
    int64_t n = 0;
    bool ok;
    if (!key_scan(c, &f))
        return false;
    if (!f)
        return relayed_scan(c, o, NULL);
    struct part *part = &o->part[f - fields];
    size_t at = o->text.len;
    c->name = f->name;
    blank_skip(c);
    *part = (struct part){ 0 };
    if (f->kind == VALUE_ENV)
        o->env_id = -1;
    if (!f->needed && word_take(c, "null"))
        return true;
    if (f->kind == VALUE_INTS || f->kind == VALUE_FLOATS)
        ok = lists_scan(c, &o->text, f->depth, f->kind == VALUE_INTS, &n);
    else if (f->kind == VALUE_ENV)
        ok = env_scan(c, o);
    else
        ok = relayed_scan(c, o, f);
    if (f == &fields[0])
        o->n_seq = n;
    *part = (struct part){ at, o->text.len - at };
    return ok;
}

static bool object_check(struct cursor *c, const struct object *o)
{
    for (int i = 0; i < N_FIELD; i++) {
        c->name = fields[i].name;
        if (fields[i].needed && o->part[i].len == 0)
            return fault_set(c, "missing", "Field required");
    }
    c->name = fields[0].name;
    if (o->n_seq == 0)
        return fault_set(c, "too_short", "a group needs at least one sequence");
    return o->n_seq <= SCORED_SEQS_MAX || fault_set(c, "too_long", "the group has more sequences than this server takes");
}

/* The object in its final form. */
static struct scored *object_text(struct cursor *c, const struct object *o)
{
    size_t len = 2;
    for (int i = 0; i < N_FIELD; i++)
        len += strlen(fields[i].name) + 4 + (o->part[i].len ? o->part[i].len : 4);
    struct scored *g = malloc(sizeof *g + len + 1);
    if (!g) {
        memory_fault(c);
        return NULL;
    }
    *g = (struct scored){ .n_ref = 1, .n_seq = o->n_seq, .env_id = o->env_id };
    char *to = g->text;
    for (int i = 0; i < N_FIELD; i++) {
        const struct part *p = &o->part[i];
        to += sprintf(to, "%c\"%s\":", i ? ',' : '{', fields[i].name);
        memcpy(to, p->len ? o->text.data + p->at : "null", p->len ? p->len : 4);
        to += p->len ? p->len : 4;
    }
    *to++ = '}';
    *to = 0;
    g->len = (size_t)(to - g->text);
    return g;
}

/* One object; o's scratch is used over. */
static struct scored *object_scan(struct cursor *c, struct object *o)
{
    o->text.len = 0;
    o->n_seq = 0;
    o->env_id = -1;
    memset(o->part, 0, sizeof o->part);
    c->name = NULL;
    if (!take(c, '{')) {
        fault_set(c, "model_attributes_type", "Input should be a valid dictionary or object to extract fields from");
        return NULL;
    }
    for (bool first = true; !take(c, '}'); first = false) {
        c->name = NULL;
        if (!first && !take(c, ',')) {
            json_fault(c, "',' or '}' was expected in an object");
            return NULL;
        }
        if (!member_scan(c, o))
            return NULL;
    }
    return object_check(c, o) ? object_text(c, o) : NULL;
}

static bool text_over(struct cursor *c)
{
    blank_skip(c);
    c->name = NULL;
    return c->at == c->end || json_fault(c, "something follows the end of the value");
}

bool scored_read(const char *text, size_t len, struct scored **group, struct scored_fault *fault)
{
    struct cursor c = { .at = text, .end = text + len, .index = -1, .fault = fault };
    struct object o = { .env_id = -1 };
    struct scored *g = object_scan(&c, &o);
    bool ok = g && text_over(&c);
    buf_release(&o.text);
    if (!ok)
        scored_drop(g);
    else
        *group = g;
    return ok;
}

bool scored_read_list(const char *text, size_t len, struct scored **group, int64_t max, int64_t *n, struct scored_fault *fault)
{
    struct cursor c = { .at = text, .end = text + len, .index = -1, .fault = fault };
    struct object o = { .env_id = -1 };
    bool ok = false;
    *n = 0;
    if (!take(&c, '[')) {
        fault_set(&c, "list_type", "Input should be a valid list");
        goto out;
    }
    while (!take(&c, ']')) {
        c.name = NULL;
        if (*n > 0 && !take(&c, ',')) {
            json_fault(&c, "',' or ']' was expected in a list");
            goto out;
        }
        if (*n == max) {
            fault_set(&c, "too_long", "the list has more groups than this server takes at once");
            goto out;
        }
        c.index = *n;
        TRY((group[*n] = object_scan(&c, &o)) != NULL);
        ++*n;
    }
    c.index = -1;
    TRY(text_over(&c));
    ok = true;
out:
    buf_release(&o.text);
    for (int64_t i = 0; !ok && i < *n; i++)
        scored_drop(group[i]);
    *n = ok ? *n : 0;
    return ok;
}

struct scored *scored_new(const struct scored *like, const char *text, size_t len)
{
    struct scored *g = malloc(sizeof *g + len + 1);
    if (!g)
        return NULL;
    *g = (struct scored){ .n_ref = 1, .id = like->id, .n_seq = like->n_seq, .env_id = like->env_id, .version = like->version, .len = len };
    memcpy(g->text, text, len);
    g->text[len] = 0;
    return g;
}

void scored_hold(struct scored *g)
{
    g->n_ref++;
}

void scored_drop(struct scored *g)
{
    if (g && --g->n_ref == 0)
        free(g);
}

size_t scored_bytes(const struct scored *g)
{
    return sizeof *g + g->len + 64;
}
