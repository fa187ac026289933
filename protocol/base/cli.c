#include "protocol/base/cli.h"
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_i64(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || isspace((unsigned char)text[0]))
        return false;
    *out = v;
    return true;
}

bool parse_f64(const char *text, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    bool lost = errno == ERANGE && fabs(v) < DBL_MIN;    // what is too small would be 0, or have few digits
    if (end == text || *end || isspace((unsigned char)text[0]) || !isfinite(v) || lost || strpbrk(text, "xX"))
        return false;
    *out = v;
    return true;
}

int word_distance(const char *a, const char *b)
{
    int row[65], n = (int)strlen(b);
    if (n > 64 || strlen(a) > 64)
        return 64;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diag = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int up = row[j];
            row[j] = MIN(MIN(row[j] + 1, row[j - 1] + 1), diag + (a[i - 1] != b[j - 1]));
            diag = up;
        }
    }
    return row[n];
}

/* Equal when hyphens and underscores count as the same. */
static bool name_matches(const char *name, const char *word, size_t len)
{
    if (strlen(name) != len)
        return false;
    for (size_t i = 0; i < len; i++) {
        char a = name[i] == '_' ? '-' : name[i], b = word[i] == '_' ? '-' : word[i];
        if (a != b)
            return false;
    }
    return true;
}

static struct cli_option *option_find(struct cli *cli, const char *word)
{
    bool is_long = word[1] == '-';
    const char *name = word + (is_long ? 2 : 1), *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    for (int i = 0; i < cli->n_options; i++) {
        struct cli_option *o = &cli->options[i];
        if (o->kind == CLI_HEADING)
            continue;
        if (is_long ? name_matches(o->name, name, len) : o->alias && strlen(o->alias) == len && !strncmp(o->alias, name, len))
            return o;
    }
    return NULL;
}

static void help_print(const struct cli *cli)
{
    size_t len = strlen(cli->about);
    while (len > 0 && cli->about[len - 1] == '\n')
        len--;
    bool some = cli->operands && cli->operands[0];
    printf("usage: %s [options]%s%s\n\n%.*s\n\noptions:\n", cli->command, some ? " " : "", some ? cli->operands : "", (int)len, cli->about);
    for (int i = 0; i < cli->n_options; i++) {
        const struct cli_option *o = &cli->options[i];
        if (o->kind == CLI_HEADING) {
            printf("\n%s:\n", o->help);
            continue;
        }
        char left[96];
        snprintf(left, sizeof left, "%s%s%s--%s%s%s", o->alias ? "-" : "", o->alias ? o->alias : "", o->alias ? ", " : "", o->name,
                 o->kind == CLI_FLAG ? "" : " ",
                 o->kind == CLI_FLAG ? ""
                 : o->arg            ? o->arg
                                     : "VALUE");
        printf("  %-38s %s\n", left, o->help);
    }
    printf("  %-38s %s\n", "-h, --help", "print this");
}

/* Text as roff has it: a backslash, a hyphen and a line's leading dot are not taken for commands. */
static void roff_print(const char *text)
{
    for (bool at_start = true; *text; at_start = *text++ == '\n') {
        if (at_start && (*text == '.' || *text == '\''))
            printf("\\&");
        if (*text == '\\')
            printf("\\e");
        else if (*text == '-')
            printf("\\-");
        else
            putchar(*text);
    }
}

/* --help=man: a page for man(1), in the macros of man(7). */
static void manual_print(const struct cli *cli)
{
    char title[64];
    snprintf(title, sizeof title, "%s", cli->command);
    for (char *c = title; *c; c++)
        *c = *c == ' ' ? '-' : *c;
    printf(".TH \"%s\" 1\n.SH NAME\n%s \\- ", title, title);
    printf("%.*s\n.SH SYNOPSIS\n.B %s\n[options] %s\n.SH DESCRIPTION\n.nf\n", (int)strcspn(cli->about, ".\n"), cli->about, cli->command,
           cli->operands ? cli->operands : "");
    roff_print(cli->about);
    printf("\n.fi\n.SH OPTIONS\n");
    for (int i = 0; i < cli->n_options; i++) {
        const struct cli_option *o = &cli->options[i];
        if (o->kind == CLI_HEADING) {
            printf(".SS \"%s\"\n", o->help);
            continue;
        }
        printf(".TP\n.B ");
        if (o->alias)
            printf("\\-%s, ", o->alias);
        printf("\\-\\-");
        roff_print(o->name);
        if (o->kind != CLI_FLAG)
            printf(" %s", o->arg ? o->arg : "VALUE");
        putchar('\n');
        roff_print(o->help);
        putchar('\n');
    }
}

/* --help=words: a line per option for programs: name, alias or "-", "value" or "flag", help; between tabs. */
static void words_print(const struct cli *cli)
{
    for (int i = 0; i < cli->n_options; i++) {
        const struct cli_option *o = &cli->options[i];
        if (o->kind != CLI_HEADING)
            printf("%s\t%s\t%s\t%s\n", o->name, o->alias ? o->alias : "-", o->kind == CLI_FLAG ? "flag" : "value", o->help);
    }
}

/* Is this word a wish for help? Then it has been fulfilled. */
static bool help_take(const struct cli *cli, const char *word)
{
    static const struct {
        const char *word;
        void (*print)(const struct cli *cli);
    } forms[] = { { "--help", help_print }, { "-h", help_print }, { "--help=man", manual_print }, { "--help=words", words_print } };
    for (size_t i = 0; i < ARRAY_SIZE(forms); i++)
        if (strcmp(word, forms[i].word) == 0) {
            forms[i].print(cli);
            return true;
        }
    return false;
}

/* A folder cannot be read from standard input nor written to standard output. kind: what the help calls the value, as far as its blank. */
static bool folder_check(const char *kind, const char *what, const char *value, struct error *err)
{
    size_t len = strcspn(kind, " ");
    bool folder = (len == 3 && memcmp(kind, "DIR", 3) == 0) || (len == 5 && memcmp(kind, "[DIR]", 5) == 0);
    return !folder || strcmp(value, "-") != 0
           || error_set(err, ERR_USAGE, "'%s' takes a folder, and '-' means standard input or output; './-' is a folder of that name",
                        what);
}

/* The words of the help from that of operand i on. */
static const char *operand_kind(const struct cli *cli, int i)
{
    const char *kind = cli->operands ? cli->operands : "";
    for (; i > 0 && *kind; i--) {
        kind += strcspn(kind, " ");
        kind += strspn(kind, " ");
    }
    return kind;
}

static bool option_store(struct cli_option *o, const char *word, const char *value, struct error *err)
{
    o->given = true;
    switch (o->kind) {
    case CLI_FLAG: *(bool *)o->value = true; return true;
    case CLI_STR: *(const char **)o->value = value; return folder_check(o->arg ? o->arg : "", word, value, err);
    case CLI_I64: return parse_i64(value, o->value) || error_set(err, ERR_USAGE, "'%s' takes a whole number, not '%s'", word, value);
    case CLI_F64: return parse_f64(value, o->value) || error_set(err, ERR_USAGE, "'%s' takes a number, not '%s'", word, value);
    case CLI_HEADING: break;
    }
    return true;
}

static bool option_unknown(const struct cli *cli, const char *word, struct error *err)
{
    const char *best = NULL;
    int best_d = 4;
    char bare[65];
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    for (int i = 0; i < cli->n_options; i++) {
        int d = cli->options[i].name ? word_distance(cli->options[i].name, bare) : 64;
        if (d < best_d) {
            best_d = d;
            best = cli->options[i].name;
        }
    }
    if (best && word[1] == '-')
        return error_set(err, ERR_USAGE, "unknown option '%s' of '%s'; did you mean '--%s'?", word, cli->command, best);
    return error_set(err, ERR_USAGE, "unknown option '%s'; see '%s --help'", word, cli->command);
}

bool cli_parse(struct cli *cli, int argc, char **argv, struct error *err)
{
    bool options_over = false;
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (!options_over && strcmp(word, "--") == 0) {
            options_over = true;
            continue;
        }
        if (!options_over && help_take(cli, word))
            return cli->help_wanted = true;
        if (options_over || word[0] != '-' || word[1] == 0) {
            if (cli->n_operands >= cli->max_operands)
                return error_set(err, ERR_USAGE, "'%s' takes no more words, and '%s' is one; see '%s --help'", cli->command, word,
                                 cli->command);
            if (!folder_check(operand_kind(cli, cli->n_operands), cli->command, word, err))
                return false;
            cli->operand[cli->n_operands++] = word;
            continue;
        }
        struct cli_option *o = option_find(cli, word);
        if (!o)
            return option_unknown(cli, word, err);
        const char *eq = strchr(word, '='), *value = eq ? eq + 1 : NULL;
        if (o->kind == CLI_FLAG && value)
            return error_set(err, ERR_USAGE, "'--%s' takes no value", o->name);
        if (o->kind != CLI_FLAG && !value) {
            if (i + 1 >= argc)
                return error_set(err, ERR_USAGE, "'%s' needs a value", word);
            value = argv[++i];
        }
        if (!option_store(o, word, value, err))
            return false;
    }
    return true;
}
