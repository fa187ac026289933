/* blame.h - which groups of a batch an update cannot compute with
 *
 * No batch may end a run. When one gives no finite gradient, its groups are tried alone, and those that fail alone are taken out. If the
 * others still fail together, the last group of a failing prefix whose own prefixes do not fail is taken out, until they succeed. What is
 * tried, and in what order, follows from what fails alone, so ranks that see the same faults take out the same groups without a word to
 * each other, and a run that is made again does too. Pure but for what `attempt` does. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct group;
enum attempt {
    ATTEMPT_OK,
    ATTEMPT_FAULT,     // the groups are at fault, and every rank sees it
    ATTEMPT_FAILED,    // anything else; err says what
};
struct blame {
    enum attempt (*attempt)(void *ctx, const struct group *const *group, int64_t n, struct error *err);
    bool (*take_out)(void *ctx, const struct group *g, const struct error *why, struct error *err);
    void *ctx;    // of both
};
/* group (n) has just failed with ATTEMPT_FAULT. Leaves those that succeed together, in their order, and *n their number; the attempt at
 * them is the last one made. False: an attempt has failed otherwise, or even no group at all is at fault. */
MUST_USE bool blame_find(const struct blame *b, const struct group **group, int64_t *n, struct error *err);
