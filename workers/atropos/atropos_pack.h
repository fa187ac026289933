/* atropos_pack.h - which waiting groups make a batch: the arithmetic of Atropos' API server, as pure functions
 *
 * The rules are those of atroposlib 0.4 (api/utils.py), so that environments see the batches they expect. Sizes are numbers of
 * sequences. Groups of one size are taken in packs that add up to the largest size in the queue; sizes that do not divide it wait.
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct pack_item {
    int64_t size;      // sequences; at least 1
    int64_t env_id;    // -1: none
};
/* An environment that must have its share of each batch. */
struct pack_share {
    int64_t env_id;
    double share;    // of the batch
};
/* Take groups of exactly want sequences from the queue, by arrival: their indices go to out (n), in the order of the batch.
 * Returns how many; 0: no batch can be formed. -1: no memory. Without shares, see grab_exact_from_heterogeneous_queue; with some
 * (n_share > 0), grab_batch_with_minimum_allocations: an environment with a share but without groups blocks the batch. */
MUST_USE int64_t pack_batch(const struct pack_item *item, int64_t n, int64_t want, const struct pack_share *share, int64_t n_share,
                            int64_t *out);
/* Find groups whose sizes add up to exactly target, earlier ones first where the first that fit do so (find_groups_summing_to_target).
 * Their indices go to out (n), ascending. Returns how many; 0: none; -1: no memory. */
MUST_USE int64_t pack_sum(const int64_t *size, int64_t n, int64_t target, int64_t *out);
