/* feed.c - see feed.h */
#include "console/fleet/feed.h"
#include <stdio.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/wire/message.h"

static bool arg_add(struct command *c, const char *key, const char *value, size_t len, struct error *err)
{
    if (c->n_arg == COMMAND_ARGS)
        return error_set(err, ERR_USAGE, "more than %d changes at once", COMMAND_ARGS);
    if (len >= sizeof(c->arg[0].value))
        return error_set(err, ERR_USAGE, "the value of %s is longer than %zu bytes", key, sizeof(c->arg[0].value) - 1);
    snprintf(c->arg[c->n_arg].key, sizeof(c->arg[0].key), "%s", key);
    snprintf(c->arg[c->n_arg].value, sizeof(c->arg[0].value), "%.*s", (int)len, value);
    c->n_arg++;
    return true;
}

/* The value against the knob's type and bounds; what only the run knows (sizes that must fit each other) it checks itself. */
static bool knob_value_check(const struct knob *k, const char *text, struct error *err)
{
    int64_t i;
    double f = 0;
    switch (k->type) {
    case KNOB_BOOL:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return error_set(err, ERR_USAGE, "%s is true or false, not '%.60s'", k->name, text);
        return true;
    case KNOB_I64:
        if (!parse_i64(text, &i))
            return error_set(err, ERR_USAGE, "%s is a whole number, not '%.60s'", k->name, text);
        f = (double)i;
        break;
    case KNOB_F64:
        if (!parse_f64(text, &f) || f != f)
            return error_set(err, ERR_USAGE, "%s is a number, not '%.60s'", k->name, text);
        break;
    case KNOB_TEXT: case KNOB_PATH: case KNOB_RANGE: case KNOB_JSON:
        if (k->choices) {
            const char *at = k->choices;
            for (size_t n; *at; at += n + (at[n] == '|')) {
                n = strcspn(at, "|");
                if (strlen(text) == n && memcmp(at, text, n) == 0)
                    return true;
            }
            return error_set(err, ERR_USAGE, "%s is one of %s, not '%.60s'", k->name, k->choices, text);
        }
        return true;
    }
    if (f < k->min || f > k->max || (k->above_min && f <= k->min))
        return error_set(err, ERR_USAGE, "%s is '%.40s'; it must be %s %.15g and at most %.15g", k->name, text,
                         k->above_min ? "above" : "at least", k->min, k->max);
    return true;
}

static bool set_parse(struct command *c, const char *word, size_t len, struct error *err)
{
    char name[48];
    const char *eq = memchr(word, '=', len);
    if (!eq || eq == word)
        return error_set(err, ERR_USAGE, "'%.*s' is not of the form NAME=VALUE", (int)MIN(len, 60), word);
    snprintf(name, sizeof(name), "%.*s", (int)(eq - word), word);
    const struct knob *k = knob_find(name, err);
    if (!k)
        return false;
    if (!knob_is_live(k))
        return error_set(err, ERR_USAGE, "%s is fixed since the run began", k->name);
    return arg_add(c, k->name, eq + 1, len - (size_t)(eq + 1 - word), err)
           && knob_value_check(k, c->arg[c->n_arg - 1].value, err);
}

/* "30" or "row=30". */
static size_t key_skip(const char *word, size_t len, const char *key)
{
    size_t n = strlen(key);
    return len > n && memcmp(word, key, n) == 0 && word[n] == '=' ? n + 1 : 0;
}

bool command_parse(struct command *c, const char *text, struct error *err)
{
    *c = (struct command){ 0 };
    text += strspn(text, " ");
    size_t n = strcspn(text, " ");
    snprintf(c->name, sizeof(c->name), "%.*s", (int)MIN(n, sizeof(c->name) - 1), text);
    const struct command_spec *spec = command_find(c->name, err);
    if (!spec)
        return false;
    const char *key = strcmp(spec->name, "set") == 0 ? NULL : spec->args;
    text += n;
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        n = strcspn(text, " ");
        if (!key && !set_parse(c, text, n, err))
            return false;
        if (key && !key[0])
            return error_set(err, ERR_USAGE, "%s takes nothing behind it", spec->name);
        if (key && strcmp(spec->name, "restart") == 0)
            n = strlen(text);    // a process's name holds a blank: "worker cpu:0"
        if (key && c->n_arg > 0)
            return error_set(err, ERR_USAGE, "%s takes only %s", spec->name, key);
        if (key) {
            size_t skip = key_skip(text, n, key);
            if (!arg_add(c, key, text + skip, n - skip, err))
                return false;
        }
        text += n;
    }
    if (!key && c->n_arg == 0)
        return error_set(err, ERR_USAGE, "set needs NAME=VALUE");
    if (strcmp(spec->name, "pause") == 0 && c->n_arg == 0)
        return arg_add(c, "depth", "step", 4, err);
    if (strcmp(spec->name, "pause") == 0 && strcmp(c->arg[0].value, "rollouts") != 0 && strcmp(c->arg[0].value, "step") != 0
        && strcmp(c->arg[0].value, "drain") != 0)
        return error_set(err, ERR_USAGE, "a pause's depth is rollouts, step or drain, not '%.40s'", c->arg[0].value);
    if (key && key[0] && c->n_arg == 0)
        return error_set(err, ERR_USAGE, "%s needs its %s", spec->name, key);
    return true;
}
