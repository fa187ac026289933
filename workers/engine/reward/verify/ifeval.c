/* ifeval.c - the verifiers ifeval and ifeval_old: how a ground truth names its instructions, and their score */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/reward/verify/ifeval.h"
#include "workers/engine/reward/verify/literal.h"

#define INSTRUCTIONS_MAX 64    // of one ground truth

struct span ifeval_text(const struct ifeval_call *c, const char *name)
{
    const json_t *v = json_object_get(c->args, name);
    v = json_is_array(v) ? json_array_get(v, 0) : v;
    return json_is_string(v) ? span_of(json_string_value(v), json_string_length(v)) : span_of("", 0);
}

int64_t ifeval_count(const struct ifeval_call *c, const char *name)
{
    return (int64_t)json_number_value(json_object_get(c->args, name));
}

bool ifeval_relation(const struct ifeval_call *c, int64_t n, const char *count, const char *relation)
{
    bool least = span_equal(ifeval_text(c, relation), span_str("at least"));
    return least ? n >= ifeval_count(c, count) : n < ifeval_count(c, count);
}

static bool is_one_of(const json_t *v, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (json_is_string(v) && strcmp(json_string_value(v), words[i]) == 0)
            return true;
    return false;
}

static bool is_text(const json_t *v)
{
    return json_string_length(v) > 0 && strlen(json_string_value(v)) == json_string_length(v);
}

bool ifeval_args_check(const struct instruction *i, const json_t *args, struct error *err)
{
    static const char *const relations[] = { "at least", "less than" }, *const quantifiers[] = { "at least", "around", "at most" };
    size_t k;
    const json_t *member;
    for (int a = 0; a < IFEVAL_ARGS && i->arg[a].name; a++) {
        const json_t *v = json_object_get(args, i->arg[a].name);
        double n = json_is_number(v) ? json_number_value(v) : -1;
        bool ok = false;
        const char *what = "";
        switch ((enum ifeval_kind)i->arg[a].kind) {
        case ARG_TEXT: ok = is_text(v), what = "a text"; break;
        case ARG_FIRST: ok = is_text(json_is_array(v) ? json_array_get(v, 0) : v), what = "a text"; break;
        case ARG_COUNT: ok = n >= 0 && n <= 1e15 && floor(n) == n, what = "a whole number from 0"; break;
        case ARG_TEXTS:
            ok = json_array_size(v) > 0, what = "a list of texts";
            json_array_foreach(v, k, member) ok = ok && is_text(member);
            break;
        case ARG_RELATION: ok = is_one_of(v, relations, ARRAY_SIZE(relations)), what = "'at least' or 'less than'"; break;
        case ARG_QUANTIFIER: ok = is_one_of(v, quantifiers, ARRAY_SIZE(quantifiers)), what = "'at least', 'around' or 'at most'"; break;
        }
        if (!ok)
            return error_set(err, ERR_DATA, "'%s' of '%s' must be %s", i->arg[a].name, i->id, what);
    }
    return true;
}

static const struct instruction *find(const struct instruction *table, size_t n, const char *id)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].id, id) == 0)
            return &table[i];
    return NULL;
}

/* A ground truth: the object with instruction_id and kwargs, in a list or not, as JSON, as Python text, or as text inside one of
 * these. Returns a new reference; NULL: see err. */
static json_t *constraints_read(const json_t *truth, struct error *err)
{
    json_t *v = json_is_string(truth) ? literal_read(json_string_value(truth), json_string_length(truth), err) : json_deep_copy(truth);
    for (int depth = 0; v && depth < 3 && !json_is_object(v); depth++) {
        json_t *inner = json_is_array(v) ? json_array_get(v, 0) : NULL;
        json_t *next = inner               ? json_incref(inner)
                       : json_is_string(v) ? literal_read(json_string_value(v), json_string_length(v), err)
                                           : NULL;
        json_decref(v);
        v = next;
    }
    if (json_is_object(v))
        return v;
    json_decref(v);
    if (err->code == ERR_NONE)
        error_set(err, ERR_DATA, "the ground truth names no instructions");
    return NULL;
}

bool verify_ifeval_check(struct verify_host *h, const json_t *truth, struct error *err)
{
    struct error own = { 0 };
    json_t *all = constraints_read(truth, &own), *ids = json_object_get(all, "instruction_id"), *args = json_object_get(all, "kwargs"), *id;
    size_t i;
    bool ok = false;
    if (!all || !json_is_array(ids) || !json_is_array(args) || json_array_size(args) < json_array_size(ids)
        || json_array_size(ids) > INSTRUCTIONS_MAX) {
        error_set(err, ERR_DATA, "the ground truth must have lists 'instruction_id' (of at most %d) and 'kwargs' of the same length%s%s",
                  INSTRUCTIONS_MAX, all ? "" : ": ", all ? "" : own.text);
        goto out;
    }
    json_array_foreach(ids, i, id)
    {
        const struct instruction *one = json_is_string(id) ? find(ifeval_instructions, ifeval_n_instruction, json_string_value(id)) : NULL;
        if (!one) {
            error_set(err, ERR_DATA, "'%.60s' is not an instruction of IFEval", json_is_string(id) ? json_string_value(id) : "?");
            goto out;
        }
        TRY(ifeval_args_check(one, json_array_get(args, i), err));
        const json_t *keyword = json_object_get(json_array_get(args, i), "keyword");
        if (one->follows && json_is_string(keyword) && strcmp(one->id, "keywords:exclude_word_harder") != 0
            && !regex_check(h->regexes, json_string_value(keyword), RE_NOCASE, err))
            goto out;
    }
    ok = true;
out:
    json_decref(all);
    return ok;
}

/* Add what is said about one instruction to a text of limited size. */
static void said_add(char *to, size_t size, const char *id)
{
    size_t n = strlen(to);
    snprintf(to + n, size - n, "%s%s", n ? ", " : "", id);
}

/* Mean of the instructions that are followed; 0 for an empty answer. */
void verify_ifeval(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    struct error err = { 0 };
    struct ifeval_call c = { h, answer_only(&h->pool, in->text), NULL };
    json_t *all = constraints_read(in->truth, &err), *id;
    size_t i, n_right = 0, n = json_array_size(json_object_get(all, "instruction_id"));
    json_array_foreach(json_object_get(all, "instruction_id"), i, id)
    {
        c.args = json_array_get(json_object_get(all, "kwargs"), i);
        const struct instruction *one = find(ifeval_instructions, ifeval_n_instruction, json_string_value(id));
        bool follows = c.text.len > 0 && one && one->follows(&c);
        n_right += follows;
        said_add(follows ? out->gold : out->pred, sizeof out->gold, json_string_value(id));
    }
    out->score = n > 0 ? (double)n_right / (double)n : 0;
    snprintf(out->why, sizeof out->why, "%zu of %zu instructions followed%s%.40s", n_right, n, out->pred[0] ? "; not " : "", out->pred);
    json_decref(all);
}

/* The object of ifeval_old; a new reference. */
static json_t *function_read(const json_t *truth, struct error *err)
{
    return json_is_string(truth) ? literal_read(json_string_value(truth), json_string_length(truth), err) : json_deep_copy(truth);
}

bool verify_ifeval_old_check(UNUSED struct verify_host *h, const json_t *truth, struct error *err)
{
    struct error own = { 0 };
    json_t *call = function_read(truth, &own);
    const char *name = json_string_value(json_object_get(call, "func_name"));
    const struct instruction *one = name ? find(ifeval_functions, ifeval_n_function, name) : NULL;
    bool ok = one && ifeval_args_check(one, call, err);
    if (!one)
        error_set(err, ERR_DATA, "the ground truth must name one of the %zu functions in 'func_name'%s%.60s", ifeval_n_function,
                  name ? ", not " : "", name ? name : "");
    json_decref(call);
    return ok;
}

void verify_ifeval_old(struct verify_host *h, const struct verify_input *in, struct verify_result *out)
{
    struct error err = { 0 };
    json_t *call = function_read(in->truth, &err);
    struct ifeval_call c = { h, answer_only(&h->pool, in->text), call };
    const char *name = json_string_value(json_object_get(call, "func_name"));
    const struct instruction *one = name ? find(ifeval_functions, ifeval_n_function, name) : NULL;
    out->score = one && one->follows(&c);
    snprintf(out->why, sizeof out->why, "%s %s", name ? name : "no function", out->score > 0 ? "holds" : "does not hold");
    json_decref(call);
}
