/* doctor_products.h - rollcall doctor --devices --shape: by which algorithms this machine's GPUs multiply a model's weights */
#pragma once
#include "protocol/base/error.h"

/* Choose them on each GPU, as a run's start does, and print one line for each kind of product; shape: a name of config_shape, or a model's
 * directory. Fails, with the reason, where rollcall can use no GPU. */
MUST_USE bool doctor_products(const char *shape, struct error *err);
