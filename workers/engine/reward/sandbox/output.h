/* output.h - is a program's output the expected one? The comparison of PRIME's runner for programs that write to stdout
 *
 * The steps are those of PRIME (also verl, rllm, ColossalChat), in their order, up to the comparison of numbers. PRIME compares
 * lines of one number with a tolerance, whole numbers too as soon as one line is not plain digits. Here it is done token by token and
 * whole numbers are exact (number.h), as LiveCodeBench and NeMo Gym do. Upstream's last step, on sets of tokens, can never
 * pass and is left out. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"
/* *ok is the answer. False: no memory. */
MUST_USE bool output_compare(const char *out, size_t out_len, const char *expected, size_t expected_len, bool *ok, struct error *err);
