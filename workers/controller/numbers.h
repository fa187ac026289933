/* numbers.h - small numbers in the journal, by name */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
/* Into *out the number of this name, or otherwise if there is none. */
MUST_USE bool number_get(struct controller *c, const char *name, int64_t otherwise, int64_t *out, struct error *err);
MUST_USE bool number_put(struct controller *c, const char *name, int64_t v, struct error *err);
