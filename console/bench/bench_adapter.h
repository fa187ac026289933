/* bench_adapter.h - random adapters, for measurements and checks on models with random weights */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct model;
/* Give m an adapter of this rank on all modules, A and B uniform in +-1 / sqrt(in) each, so that both have a gradient; rank 0: none.
 * train: as model_lora_new. */
MUST_USE bool bench_adapter(struct model *m, int64_t rank, bool train, struct error *err);
