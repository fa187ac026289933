/* frozen.h - which tensors are not trained, where a run trains some layers only
 *
 * The setting 'train_layer_indices' names the layers. A frozen tensor's gradient is cleared before the
 * norm is made (trainer_freeze, update.h), and it has no weight decay. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

/* Parse which of n layers a text like "20-31" or "0-3,28" names, into in (n); "" names all.
 * Atropos' --train-layer-indices. */
MUST_USE bool layers_parse(const char *text, int64_t n, bool *in, struct error *err);
