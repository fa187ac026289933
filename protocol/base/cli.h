/* cli.h - a subcommand's options as one table: parsing and --help both come from it
 *
 * Long options take their value as the next word or after '='; underscores and hyphens in long names are the same. Short
 * options may have several letters (ColossalChat's -tbs), so they are not bundled. "--" ends options. "-" stands for standard input or
 * output (path_is_stream), so it is refused where the help calls the value a DIR. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
enum cli_kind {
    CLI_FLAG,       // bool *: set to true
    CLI_STR,        // const char **: borrowed from argv
    CLI_I64,        // int64_t *
    CLI_F64,        // double *
    CLI_HEADING,    // only a title in the help text
};
struct cli_option {
    const char *name;     // long name without dashes; NULL with CLI_HEADING
    const char *alias;    // short name without the dash, or NULL
    enum cli_kind kind;
    void *value;         // where it goes
    const char *arg;     // what the help calls the value, e.g. "FILE"
    const char *help;    // one line
    bool given;          // set by cli_parse
};
struct cli {
    const char *command;     // "rollcall eval"
    const char *about;       // one or more lines
    const char *operands;    // e.g. "[RUN.yaml]", or NULL when none may be given
    struct cli_option *options;
    int n_options;
    const char **operand;    // filled by cli_parse: those given, borrowed from argv
    int max_operands;
    int n_operands;
    bool help_wanted;    // --help (or --help=man, --help=words) was there: it has been printed to stdout, the caller returns 0
};
/* Parse argv[1..]; ERR_USAGE names the word that is wrong and, for an unknown option, the nearest known one. */
MUST_USE bool cli_parse(struct cli *cli, int argc, char **argv, struct error *err);
/* Strict numbers: the whole text, in range, no hex. */
MUST_USE bool parse_i64(const char *text, int64_t *out);
MUST_USE bool parse_f64(const char *text, double *out);
/* The edit distance between two short words; for "did you mean". */
int word_distance(const char *a, const char *b);
