/* bench_step.h - weights before and after an optimizer step, as realistic as they can be without a model */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"

/* Take n_step steps of AdamW's own operation at lr, on weights and gradients of a normal distribution with masters in fp32; the steps
 * before the last bring the moments to where they are in a run. before and after (n_byte each, of dtype) are the weights around the
 * last one. */
MUST_USE bool adam_steps_take(void *before, void *after, size_t n_byte, enum dtype dtype, int64_t n_step, double lr, struct error *err);
