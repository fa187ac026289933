/* regex.h - regular expressions with the meaning Python's re gives them: Unicode classes, lines that end at a line feed
 *
 * PCRE2 with its match limit, so that no pattern and no text can take unbounded time. A struct regexes keeps the patterns
 * it has compiled, since verifiers use the same few; one per thread. A pattern that does not compile, or a limit that is
 * reached, sets failed, and the call finds nothing: the caller asks once, at the end. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/reward/verify/text.h"

enum {
    RE_NOCASE = 1,
    RE_LINES = 2,      // ^ and $ at each line
    RE_DOT_ALL = 4,    // . matches a line feed too
};
struct regexes;
struct regexes *regexes_new(struct error *err);
void regexes_free(struct regexes *r);
/* Did a call fail since this was last asked? why is filled then. */
bool regexes_failed(struct regexes *r, struct error *why);
/* Does the pattern compile? ERR_DATA says why not, and where. */
MUST_USE bool regex_check(struct regexes *r, const char *pattern, int flags, struct error *err);
#define RE_GROUPS 6    // group 0 is the whole match
/* Find the first match that begins at or after byte from. g: RE_GROUPS groups (s is NULL for one that took no part), or NULL. */
bool regex_find(struct regexes *r, const char *pattern, int flags, struct span s, size_t from, struct span *g);
/* The next match of finditer: as regex_find from *at, which is moved so that matches do not overlap and empty ones advance. */
bool regex_each(struct regexes *r, const char *pattern, int flags, struct span s, size_t *at, struct span *g);
int64_t regex_count(struct regexes *r, const char *pattern, int flags, struct span s);    // len(re.findall(...))
/* Step through re.split(pattern, s), a pattern without groups: false after the last part. Start with *at 0. */
bool regex_part(struct regexes *r, const char *pattern, struct span s, size_t *at, struct span *part);
/* re.sub: every match replaced by with, in which \1 to \5 are groups. */
struct span regex_replace(struct regexes *r, struct pool *p, const char *pattern, const char *with, struct span s);
