#include "console/fleet/command.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/settings/knobs.h"
#include "protocol/wire/message.h"

#define LINE_MAX_BYTES 4096

static bool arg_add(struct command *c, const char *key, size_t key_len, const char *value, struct error *err)
{
    if (c->n_arg == COMMAND_ARGS)
        return error_set(err, ERR_USAGE, "more than %d changes at once", COMMAND_ARGS);
    if (key_len >= sizeof c->arg[0].key)
        return error_set(err, ERR_USAGE, "'%.*s' is longer than a name can be", (int)MIN(key_len, (size_t)60), key);
    if (strlen(value) >= sizeof c->arg[0].value)
        return error_set(err, ERR_USAGE, "the value of '%.*s' is longer than %zu bytes", (int)key_len, key, sizeof c->arg[0].value - 1);
    memcpy(c->arg[c->n_arg].key, key, key_len);
    strcpy(c->arg[c->n_arg++].value, value);
    return true;
}

bool command_arg_add(struct command *c, const char *key, const char *value, struct error *err)
{
    return arg_add(c, key, strlen(key), value, err);
}

/* Is word one of choices ("a|b|c")? */
static bool is_choice(const char *choices, const char *word)
{
    size_t len = strlen(word);
    for (size_t n; *choices; choices += n + (choices[n] == '|')) {
        n = strcspn(choices, "|");
        if (n == len && memcmp(choices, word, n) == 0)
            return true;
    }
    return false;
}

/* "a|b|c" -> "a, b, c". */
static const char *choices_say(const char *choices, char *out, size_t size)
{
    size_t at = 0;
    for (const char *c = choices; *c && at + 3 < size; c++) {
        out[at++] = *c == '|' ? ',' : *c;
        if (*c == '|')
            out[at++] = ' ';
    }
    out[at] = 0;
    return out;
}

/* The one argument of a command: "30", or "line=30". */
static bool single_add(struct command *c, const struct command_spec *spec, const char *word, struct error *err)
{
    size_t key_len = strlen(spec->args);
    if (strncmp(word, spec->args, key_len) == 0 && word[key_len] == '=')
        word += key_len + 1;
    int64_t line;
    char all[128];
    if (spec->arg == ARG_CHOICE && !is_choice(spec->choices, word))
        return error_set(err, ERR_USAGE, "'%s' does not know the %s '%.60s'; it is one of %s", spec->name, spec->args, word,
                         choices_say(spec->choices, all, sizeof all));
    if (!word[0] || ((spec->arg == ARG_LINE || spec->arg == ARG_NUMBER) && (!parse_i64(word, &line) || line < (spec->arg == ARG_LINE))))
        return error_set(err, ERR_USAGE, "'%s' needs %s", spec->name, spec->needs);
    return arg_add(c, spec->args, key_len, word, err);
}

bool command_words_parse(struct command *c, const char *name, const char *const *word, int n, struct error *err)
{
    *c = (struct command){ .n_arg = 0 };
    const struct command_spec *spec = command_find(name, err);
    if (!spec)
        return false;
    snprintf(c->name, sizeof c->name, "%s", spec->name);
    int most = spec->arg == ARG_NONE ? 0 : spec->arg == ARG_VALUES ? n : 1;
    if (n > most)
        return error_set(err, ERR_USAGE, "'%s' takes no '%.60s'%s%s", spec->name, word[most], most ? " besides its " : "", spec->args);
    if (n == 0 && spec->arg == ARG_CHOICE) {
        char first[32];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(spec->choices, "|"), spec->choices);
        return single_add(c, spec, first, err);
    }
    if (n == 0 && spec->arg != ARG_NONE)
        return error_set(err, ERR_USAGE, "'%s' needs %s", spec->name, spec->needs);
    if (spec->arg != ARG_VALUES)
        return n == 0 || single_add(c, spec, word[0], err);
    for (int i = 0; i < n; i++) {
        const char *eq = strchr(word[i], '=');
        if (!eq || eq == word[i])
            return error_set(err, ERR_USAGE, "'%.60s' is not of the form NAME=VALUE", word[i]);
        if (!arg_add(c, word[i], (size_t)(eq - word[i]), eq + 1, err))
            return false;
    }
    return true;
}

/* Check that each setting may change and that its value is within its bounds; from then on c has its full name. */
static bool values_check(struct command *c, struct error *err)
{
    for (int i = 0; i < c->n_arg; i++) {
        const struct knob *k = knob_find(c->arg[i].key, err);
        if (!k || !knob_may_change(k, err) || !knob_check(k, c->arg[i].value, err))
            return false;
        snprintf(c->arg[i].key, sizeof c->arg[i].key, "%s", k->name);
    }
    return true;
}

bool command_parse(struct command *c, const char *text, struct error *err)
{
    char line[LINE_MAX_BYTES], *at = line, *word[COMMAND_ARGS + 1];
    int n = 0;
    *c = (struct command){ .n_arg = 0 };
    if (snprintf(line, sizeof line, "%s", text) >= (int)sizeof line)
        return error_set(err, ERR_USAGE, "the command is longer than %zu bytes", sizeof line - 1);
    char *name = at += strspn(at, " ");
    at += strcspn(at, " ");
    if (*at)
        *at++ = 0;
    const struct command_spec *spec = command_find(name, err);
    if (!spec)
        return false;
    for (at += strspn(at, " "); *at && n <= COMMAND_ARGS; at += strspn(at, " ")) {
        word[n++] = at;
        at += spec->arg == ARG_TEXT ? strlen(at) : strcspn(at, " ");    // a process's name contains a blank: "worker cpu:0"
        if (*at)
            *at++ = 0;
    }
    return command_words_parse(c, name, (const char *const *)word, n, err) && (spec->arg != ARG_VALUES || values_check(c, err));
}

/* The factor by which a number would change: above 1, and infinite from or to 0; 1 when it stays the same or is unknown. */
static double jump_of(const struct knob *k, const char *before, const char *after)
{
    char *end_before, *end_after;
    if (!before || (k->type != KNOB_F64 && k->type != KNOB_I64))
        return 1;
    double a = fabs(strtod(before, &end_before)), b = fabs(strtod(after, &end_after));
    if (end_before == before || end_after == after || a == b)
        return 1;
    return a == 0 || b == 0 ? INFINITY : fmax(a / b, b / a);
}

bool command_asks(const struct command *c, const char *(*now)(void *arg, const struct knob *k), void *arg, char *why, size_t size)
{
    struct error err;
    const struct command_spec *spec = command_find(c->name, &err);
    why[0] = 0;
    if (spec && spec->costs)
        snprintf(why, size, "%s", spec->help);
    for (int i = 0; spec && spec->arg == ARG_VALUES && i < c->n_arg && !why[0]; i++) {
        const struct knob *k = knob_find(c->arg[i].key, &err);
        const char *before = k ? now(arg, k) : NULL;
        double jump = k ? jump_of(k, before, c->arg[i].value) : 1;
        if (isinf(jump))
            snprintf(why, size, "%s goes from %.40s to %.40s", k->name, before, c->arg[i].value);
        else if (jump > COMMAND_JUMP)
            snprintf(why, size, "%s goes from %.40s to %.40s, %.3g times as %s", k->name, before, c->arg[i].value, jump,
                     fabs(strtod(c->arg[i].value, NULL)) > fabs(strtod(before, NULL)) ? "much" : "little");
    }
    return why[0] != 0;
}

void command_args_write(const struct command *c, struct msg_out *m)
{
    struct error err;
    const struct command_spec *spec = command_find(c->name, &err);
    enum command_arg arg = spec ? spec->arg : ARG_NONE;
    int64_t line;
    msg_map(m, "args");
    if (arg == ARG_VALUES)
        msg_map(m, spec->args);
    for (int i = 0; i < c->n_arg; i++)
        if ((arg == ARG_LINE || arg == ARG_NUMBER) && parse_i64(c->arg[i].value, &line))
            msg_i64(m, c->arg[i].key, line);
        else
            msg_str(m, c->arg[i].key, c->arg[i].value);
    if (arg == ARG_VALUES)
        msg_end(m);
    msg_end(m);
}
