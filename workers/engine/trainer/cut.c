#include <inttypes.h>
#include "workers/engine/trainer/cut.h"
#include "protocol/base/error.h"

#define EVEN 4    // ranks that get full rounds of groups: a multiple of it

/* Fill one micro-batch after the other up to cap; first may be NULL. */
static int64_t fill(const int64_t *rows, int64_t n, int64_t cap, int64_t *first)
{
    int64_t n_micro = 0, room = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || rows[i] > room) {
            if (first)
                first[n_micro] = i;
            n_micro++;
            room = cap;
        }
        room -= rows[i];
    }
    if (first)
        first[n_micro] = n;
    return n_micro;
}

int64_t batch_cut(const int64_t *rows, int64_t n, int64_t budget, int64_t group, int64_t *first)
{
    int64_t low = 1, high = budget, want = fill(rows, n, budget, NULL), n_group = (want + group - 1) / group;
    if (n_group > 2)
        want = (n_group + EVEN - 1) / EVEN * EVEN * group;
    for (int64_t i = 0; i < n; i++)
        low = MAX(low, rows[i]);
    BUG_IF(low > MAX(high, 1), "a sample of %" PRId64 " tokens in micro-batches of %" PRId64, low, budget);
    while (low < high) {    // the smallest cap for which this many suffice
        int64_t cap = low + (high - low) / 2;
        if (fill(rows, n, cap, NULL) <= want)
            high = cap;
        else
            low = cap + 1;
    }
    return fill(rows, n, low, first);
}
