/* extent.h - weights that lie in several places, such as the shards of several trainers
 *
 * The bytes of a model's weights (model_weights), cut into runs: each says which bytes it has and in which of a few parts of memory they lie. A
 * table of runs holds for every device and process; where the parts are, each sees by itself. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"

#define EXTENT_PART_MAX 64    // as many as trainers (COLLECTIVE_RANK_MAX)
struct extent_part {
    const char *mem;    // (size_bytes) device; borrowed
    size_t size_bytes;
    struct mem_handle handle;    // what others open it with; of mem_share_new's memory alone
};
struct extent {
    size_t from, size_bytes;    // bytes of the weights
    int64_t part;               // which has them
    size_t at;                  // bytes of the part: where they begin
};
struct extents {
    int64_t n;
    const struct extent *at;    // (n) in the order of the weights, without gaps
    int n_part;
    const struct extent_part *part;    // (n_part)
};
static inline const char *extent_mem(const struct extents *x, int64_t i)
{
    return x->part[x->at[i].part].mem + x->at[i].at;
}
/* The weights in one piece: fills one part and one run of it. */
static inline struct extents extents_whole(struct extent *at, struct extent_part *part, const void *mem, size_t size_bytes)
{
    *part = (struct extent_part){ .mem = mem, .size_bytes = size_bytes };
    *at = (struct extent){ .size_bytes = size_bytes };
    return (struct extents){ 1, at, 1, part };
}
