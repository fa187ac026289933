/* bench_kernels.h - the part of bench gemm that needs a GPU */
#pragma once
#include <stdint.h>
#include "protocol/base/error.h"
/* Print what one order of sums costs in each product of a model for this many rows, and as a share of a step of step_us (0: unknown). */
MUST_USE bool bench_gemm_rule(const char *device, const char *shape, int64_t rows, double step_us, struct error *err);
