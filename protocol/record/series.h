/* series.h - the values of one metric by step, with a pyramid of minima and maxima for drawing any range at once
 *
 * One thread. Level k holds a node for each SERIES_FAN^k steps: min, max, sum and count of the known values.
 * Appending and overwriting cost O(log n); a query over any range costs O(log n) nodes, so a chart of a 100,000-step run
 * costs the same as one of 100 steps, and no spike is lost. An unknown value is NAN and stays unknown: it does not count in any
 * minimum, maximum or mean. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/macros.h"

#define SERIES_FAN 8
#define SERIES_LEVELS 7                  // 8^7 = 2,097,152 steps
#define SERIES_MAX ((int64_t)1 << 21)    // later steps are not kept

struct series_node {
    float min, max;    // of the known values; min > max: none
    float sum;         // of the known values
    int32_t n;         // how many are known
};
struct series {
    int64_t n;                                   // steps 0..n-1 have an entry
    int64_t cap;                                 // entries allocated
    float *value;                                // (cap) NAN: unknown; owned
    struct series_node *level[SERIES_LEVELS];    // level[k]: ceil(cap / 8^(k+1)) nodes; owned
    double last;                                 // the newest value set, at full precision; NAN: none yet
};
/* What is known of a range of steps. */
struct series_span {
    double min, max, mean;    // NAN when n is 0
    int64_t n;
};
void series_init(struct series *s);
void series_release(struct series *s);
/* Set the value at a step (an infinite one counts as unknown); steps between stay unknown. False: step out of range or no memory;
 * nothing has changed. */
bool series_set(struct series *s, int64_t step, double value);
/* Forget the steps from first on (a rollback). */
void series_cut(struct series *s, int64_t first);
/* The known values of the steps a <= step < b. */
struct series_span series_query(const struct series *s, int64_t a, int64_t b);
/* Is any value known? */
static inline bool series_is_known(const struct series *s)
{
    return s->n > 0 && series_query(s, 0, s->n).n > 0;
}
static inline double series_at(const struct series *s, int64_t step)
{
    return step >= 0 && step < s->n ? (double)s->value[step] : __builtin_nan("");
}
