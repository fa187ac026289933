/* lora_product.h - what an adapter adds to a product, forward and backward; only for pass/ */
#pragma once
#include "workers/engine/model/lora_impl.h"

/* Memory of a run for adapters; device. */
struct lora_scratch {
    void *low, *dlow;    // (max_tok, LORA_PART_MAX rank) A x, and its gradient
    void *up;            // (rows, widest product) B A x
    int64_t rows;        // rows of it computed at a time
};
#define LORA_ROWS 1024    // bounds what `up` takes; a row's bits do not depend on it
/* y += s B A x for n rows of a product; nothing where the adapter has none. */
MUST_USE bool lora_fwd(const struct model *m, int64_t layer, enum product p, const struct lora_scratch *s, void *y, const void *x,
                       int64_t n, struct error *err);
/* The gradients: dx += (through the adapter), and A's and B's into grad, where the layer's piece begins (fp32, +=). */
MUST_USE bool lora_bwd(const struct model *m, int64_t layer, enum product p, const struct lora_scratch *s, float *grad, void *dx,
                       const void *dy, const void *x, int64_t n, struct error *err);
