/* lora_impl.h - an adapter in memory; for model/ and pass/ only
 *
 * The modules that are computed in one product (q, k, v; gate, up) share the low-rank side: their A matrices lie one after the other
 * and are one weight, so a product with an adapter takes one product by A, and one by B for each module. */
#pragma once
#include "kernels/ops.h"
#include "workers/engine/model/lora_config.h"
#include "workers/engine/model/model_impl.h"

/* The products of a layer. */
enum product {
    PRODUCT_QKV,
    PRODUCT_O,
    PRODUCT_GATE_UP,
    PRODUCT_DOWN,
    PRODUCT_N,
};
#define LORA_PART_MAX 3

/* One module's B (n_out, rank): columns [out_at, out_at + n_out) of the product's output. */
struct lora_part {
    int64_t at;    // in the flat order
    int64_t out_at, n_out;
    struct weight *b;
};
struct lora_product {
    int n_part;    // 0: no adapter
    struct lora_part part[LORA_PART_MAX];
    int64_t at;             // of A (n_part rank, n_in) in the flat order
    int64_t n_in, n_out;    // of the whole product
    struct weight *a;
};
struct lora_layer {
    struct lora_product product[PRODUCT_N];
};
struct lora {
    struct lora_config c;
    float scale;
    struct flat_order flat;    // with PEFT's names; a piece is a layer
    char *weights;             // (n_flat) of the model's dtype; device
    struct mem_handle handle;
    bool shared;
    struct lora_layer *layer;    // (n_layer)
};

void lora_free(struct model *m);
