#include "console/bench/bench_tools.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, double_compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

double bench_distance(const float *a, const float *b, int64_t n)
{
    double apart = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        apart += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(apart / norm);
}

bool bench_devices_after(struct device **all, int64_t n, int64_t n_thread, struct error *err)
{
    for (int64_t q = 1; q < n; q++) {
        char name[32];
        snprintf(name, sizeof name, "%.*s:%" PRId64, (int)strcspn(all[0]->name, ":"), all[0]->name, all[0]->index + q);
        if (!(all[q] = device_new(name, (int)n_thread, err)))
            return false;
    }
    return device_enter(all[0], err);
}
