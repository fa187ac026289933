/* slice.h - which rows and columns of each tensor a device of a team has, and where in its memory
 *
 * A slice is itself a model, of the sizes that one device has, with a table of the same tensors in the same order. So what a device has
 * of a tensor follows from the two tables: columns where the slice's tensor has fewer of them, rows where it has fewer of those, else all.
 * A stage of a pipeline (stages.h) has tensors whole, or nothing of them; a slice of a stage has slices of those, and of n devices the
 * stage's come one after the other.
 * Whoever fills slices goes through these blocks: a copy from a whole model, a file, or another process's memory (publication). */
#pragma once
#include "workers/engine/model/model.h"

#define SLICE_BLOCK_MAX 3    // of one tensor: a fused one has rows of queries, keys and values
/* A rectangle of a tensor: n_row rows of n_col elements. The slice has them one row after the other without gaps. */
struct slice_block {
    int64_t row, col;        // in the whole tensor, where it begins
    int64_t n_row, n_col;    // a vector is one column
    int64_t from, ld;        // elements of the whole's flat order: its first, and from one row to the next
    int64_t to;              // elements of the slice's flat order: its first
};
/* The blocks of tensor t of `whole` that device q of n has, of which slice is the part (both may be tables only). Returns how many. */
int slice_blocks(const struct model *whole, const struct model *slice, int64_t t, int n, int q, struct slice_block out[SLICE_BLOCK_MAX]);
/* Does device q's block of tensor t count where the whole is put together? If several have it alike, the first one's does. */
bool slice_block_counts(const struct model *whole, const struct model *slice, int64_t t, const struct slice_block *b, int q);
/* Rows of the vocabulary that each of n devices (or parts of a sum) has, a power of two up to SUM_PARTS_MAX; the last ones have what is
 * left. A multiple of 8, which matrix units like, and for half as many devices twice as many: parts of sums over the vocabulary are the
 * same rows on any team. */
int64_t slice_vocab_each(int64_t vocab, int n);
/* Where device q of n's rows of the vocabulary begin. */
int64_t slice_vocab_from(int64_t vocab, int n, int q);
/* The sizes that device q of n has. */
struct model_config slice_config(const struct model_config *c, int n, int q);
