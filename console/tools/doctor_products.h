/* doctor_products.h - rollcall doctor: this machine's GPUs one after the other, and by which algorithms they multiply a model's weights */
#pragma once
#include "kernels/ops.h"
#include "protocol/base/error.h"

/* Choose them on each GPU, as a run's start does, and print one line for each kind of product; shape: a name of config_shape, or a model's
 * directory. A GPU that cannot be opened or fails has a line that says why, and the others follow. Fails where one did, and where there is no GPU. */
MUST_USE bool doctor_products(const char *shape, struct error *err);

#define DOCTOR_GPUS_MAX 64
/* Open GPU i. False: there is none of that number, or nothing here can drive one, as why says. *dev NULL: it is there, but cannot be opened, as
 * why says. The device is the caller's to free. */
MUST_USE bool doctor_gpu_open(int i, struct device **dev, struct error *why);
