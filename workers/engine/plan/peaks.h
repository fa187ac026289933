/* peaks.h - what cards can do at most, for shares of it (MFU, memory bandwidth)
 *
 * A table of NVIDIA's data sheets, read-only: any thread. */
#pragma once
#include <stdbool.h>
#include "protocol/base/buf.h"

struct device_peak {
    const char *card;    // a part of the name that the driver gives
    double tflops;       // of dense bf16 products with fp32 sums, 1e12 operations a second
    double gb_per_s;     // of its memory, 1e9 bytes a second
};
/* The card of this name; NULL: the table has none like it. */
const struct device_peak *peak_find(const char *name);
void peaks_print_docs(struct buf *out);    // the table in Markdown
