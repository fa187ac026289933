/* regex_spell.h - a pattern of Oniguruma, the engine tokenizer files are written for, rewritten for PCRE2
 *
 * Character classes, \b and \B match other characters there, and PCRE2 has neither classes within classes nor intersections of
 * them (&&). Any thread. */
#pragma once
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

/* Append the pattern to out. ERR_UNSUPPORTED names what the two engines read differently and cannot be rewritten. */
MUST_USE bool pattern_translate(const char *pattern, struct buf *out, struct error *err);
