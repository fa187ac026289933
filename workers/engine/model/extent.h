/* extent.h - weights that lie in several places, such as the shards of several trainers
 *
 * The bytes of a model's weights (model_weights), cut into runs: each says which bytes it has and where a device sees them. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct extent {
    size_t from, size_bytes;    // bytes of the weights
    const char *mem;            // (size_bytes) device; borrowed
};
struct extents {
    int64_t n;
    const struct extent *at;    // (n) in the order of the weights, without gaps
};
