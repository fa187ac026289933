/* histogram.h - how the values of a step's samples are spread: made by the trainer, kept in the journal, sent by exporters
 *
 * HISTOGRAM_BINS bins of equal width from the smallest to the largest value, as numpy.histogram makes them: the last bin has both its
 * edges, and where all values are the same the bins reach half to either side of it. Plain data; nothing here locks. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

#define HISTOGRAM_BINS 32
enum histogram_id {
    HISTOGRAM_LENGTH,
    HISTOGRAM_LENGTH_RIGHT,
    HISTOGRAM_LENGTH_WRONG,
    HISTOGRAM_REWARD,
    HISTOGRAM_SOLVE_RATE,
    HISTOGRAM_ADVANTAGES,
    HISTOGRAM_N,
};
struct histogram_spec {
    const char *name, *unit, *help;
    const char *open_instruct;    // its name with metric_names open_instruct; NULL: the same
};
extern const struct histogram_spec histograms[HISTOGRAM_N];
struct histogram {
    int64_t n;    // values; 0: there is no histogram, and the rest says nothing
    double min, max, sum, sum2;
    uint32_t count[HISTOGRAM_BINS];
};
/* Make h from n values. Values that are not finite are left out. */
void histogram_make(struct histogram *h, const double *value, int64_t n);
double histogram_edge(const struct histogram *h, int k);    // 0 <= k <= HISTOGRAM_BINS: bin k is from edge k to edge k + 1
/* All histograms of a step as one block of bytes, as the journal and the message done have them: for each that is not empty a byte with
 * its id, n (int64), min, max, sum, sum2 (float64) and the counts (uint32), little endian. */
void histograms_pack(struct buf *out, const struct histogram h[HISTOGRAM_N]);
MUST_USE bool histograms_unpack(struct histogram h[HISTOGRAM_N], const void *data, size_t len, struct error *err);
void histograms_print_docs(struct buf *out);    // the table in Markdown
