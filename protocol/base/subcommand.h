/* subcommand.h - one subcommand: what its file NAME_cmd.c exports and console/main.c lists */
#pragma once
#include <stdbool.h>
#include "protocol/base/error.h"
struct subcommand {
    const char *name;
    bool (*run)(int argc, char **argv, struct error *err);    // argv[0] is the command's name; err's code picks the exit status
    const char *help;                                         // one line; NULL: internal, not listed
};
/* Declare a subcommand that another one calls: SUBCOMMAND_DECLARE(console) declares console_subcommand. */
#define SUBCOMMAND_DECLARE(name_) extern const struct subcommand name_##_subcommand;
