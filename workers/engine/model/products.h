/* products.h - the matrices that a model's tokens are multiplied by, and how: what handles are made of, what a GPU chooses algorithms for,
 * and what is timed */
#pragma once
#include "kernels/choices.h"
#include "protocol/base/error.h"

struct layer_at;
struct model;
struct model_product {
    const char *name;    // "qkv", "o", "gate_up", "down", "head"
    struct product_kind kind;
    int64_t at;         // of the weight in the flat order
    int64_t n_group;    // matrices of that kind, one for each expert, one after the other; 0: an ordinary product
};
#define LAYER_PRODUCTS 5
/* Those of a layer laid out as at says, the order of struct layer_w and of the flat order; how many there are. */
int layer_products(const struct model *m, const struct layer_at *at, struct model_product out[LAYER_PRODUCTS]);
/* That of the head; returns 0 where the model has none. */
int head_products(const struct model *m, struct model_product out[1]);
/* All kinds of them that a device may choose algorithms for: a layer's, without experts, and the head's. */
#define MODEL_PRODUCTS (LAYER_PRODUCTS + 1)
int model_products(const struct model *m, struct model_product out[MODEL_PRODUCTS]);
/* A handle on the weight at mem, with algorithms chosen where the device does that. NULL: see err. */
struct weight *product_weight_new(const struct model *m, const struct model_product *p, const void *mem, bool for_bwd, struct error *err);
