/* manual.h - man pages and shell completions, made from the same tables as --help
 *
 * Any thread. */
#pragma once
#include "protocol/base/subcommand.h"
/* Write dir/man1/rollcall*.1 and dir/completions/{rollcall.bash,_rollcall,rollcall.fish} for these n subcommands; those
 * without a help line are left out. Options are found by running this program with --help. */
MUST_USE bool manual_write(const struct subcommand *const *list, int n, const char *dir, struct error *err);
