#include "workers/engine/trainer/blame.h"
#include <string.h>

/* Take out what fails alone. */
static bool alone_try(const struct blame *b, const struct group **group, int64_t *n, struct error *err)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < *n; i++) {
        struct error why;
        enum attempt a = b->attempt(b->ctx, &group[i], 1, &why);
        if (a == ATTEMPT_FAILED) {
            *err = why;
            return false;
        }
        if (a == ATTEMPT_OK)
            group[kept++] = group[i];
        else if (!b->take_out(b->ctx, group[i], &why, err))
            return false;
    }
    *n = kept;
    return true;
}

/* The groups fail together, because of *why: take out the one at which a prefix that succeeds becomes one that fails. */
static bool together_try(const struct blame *b, const struct group **group, int64_t *n, struct error *why, struct error *err)
{
    int64_t good = 0, bad = *n;
    while (bad - good > 1) {
        int64_t middle = good + (bad - good) / 2;
        struct error here;
        enum attempt a = b->attempt(b->ctx, group, middle, &here);
        if (a == ATTEMPT_FAILED) {
            *err = here;
            return false;
        }
        if (a == ATTEMPT_OK) {
            good = middle;
        } else {
            bad = middle;
            *why = here;
        }
    }
    if (!b->take_out(b->ctx, group[bad - 1], why, err))
        return false;
    memmove(group + bad - 1, group + bad, (size_t)(*n - bad) * sizeof *group);
    --*n;
    return true;
}

bool blame_find(const struct blame *b, const struct group **group, int64_t *n, struct error *err)
{
    if (!alone_try(b, group, n, err))
        return false;
    for (;;) {
        struct error why;
        enum attempt a = b->attempt(b->ctx, group, *n, &why);
        if (a == ATTEMPT_OK)
            return true;
        if (a == ATTEMPT_FAILED || *n == 0) {
            *err = why;
            return false;
        }
        if (!together_try(b, group, n, &why, err))
            return false;
    }
}
