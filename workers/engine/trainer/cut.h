/* cut.h - which samples of a batch are run together: its cut into micro-batches
 *
 * A pure function of the sizes, the budget and how many micro-batches a group has. The number of ranks is no part of it, since the
 * gradient is the sum of the groups in their order, whoever runs which (ranks.h). */
#pragma once
#include <stdint.h>

/* Cut n samples of rows[i] packed tokens (each at most budget) into micro-batches of at most budget: micro-batch k has samples
 * [first[k], first[k + 1]). first: (n + 1). Returns their number.
 *
 * In the order of the samples, whole, and as even as that allows: of all cuts into this many pieces it takes one whose largest
 * is smallest. Ranks take groups of `group` micro-batches in turn and wait for each other after each round, so even pieces are what
 * keeps them busy. A batch that needs more than two groups is cut into a multiple of four where it has the samples, which leaves no rank
 * of 2 or 4 idle in the last round; one that fits into one or two stays so, since more passes cost a single device more than they would
 * give several. Attention's share, which grows with a sample's square, is not counted. */
int64_t batch_cut(const int64_t *rows, int64_t n, int64_t budget, int64_t group, int64_t *first);
