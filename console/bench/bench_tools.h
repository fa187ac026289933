/* bench_tools.h - what several measurements share */
#pragma once
#include <stdint.h>
#include "protocol/base/error.h"

struct device;
double bench_median(double *x, int64_t n);                           // of n > 0 values; sorts them
double bench_distance(const float *a, const float *b, int64_t n);    // |a - b| / |b|
/* Open the devices after all[0], which is open, into all[1] to all[n - 1]: those with its name and the next numbers. The calling thread
 * drives all[0] again at the end. On failure, too, those that are open are the caller's to free. */
MUST_USE bool bench_devices_after(struct device **all, int64_t n, int64_t n_thread, struct error *err);
