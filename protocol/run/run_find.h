/* run_find.h - which run an operator means: the one named, or the only live one
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"
/* Write the absolute path of a run's directory into out. given: a run's directory, or NULL: the one live run under runs_dir ("runs" when
 * NULL). ERR_NOT_FOUND: it does not exist or none is live; ERR_USAGE: several are live, the message lists them. */
MUST_USE bool run_find(const char *given, const char *runs_dir, char *out, size_t size, struct error *err);
