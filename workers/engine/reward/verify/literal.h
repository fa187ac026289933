/* literal.h - a Python literal as JSON: what ast.literal_eval accepts, as data sets write their constraints
 *
 * Strings in either quote, with escapes, prefixes and neighbours that are joined; numbers, True, False, None, lists,
 * tuples (as lists) and dictionaries with text keys. Plain JSON is accepted too. At most LITERAL_DEPTH deep. Any thread. */
#pragma once
#include <jansson.h>
#include <stddef.h>
#include "protocol/base/error.h"
#define LITERAL_DEPTH 64
/* Read one literal with nothing after it. Returns a new reference; NULL: ERR_DATA names the byte. */
json_t *literal_read(const char *text, size_t len, struct error *err);
