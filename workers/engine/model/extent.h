/* extent.h - weights that lie in several places: the slices and stages of a trainer's devices, the shards of several trainers
 *
 * The bytes of a model's weights (model_weights), cut into areas: each says which bytes it has and in which of a few parts of memory they
 * lie. The table of areas is the same for every device and process; where the parts are, each sees for itself. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"

struct model;
/* A rectangle of one tensor: n_row rows of row_bytes, the next one ld bytes of the weights further on, where ld is a whole row of the tensor.
 * One row alone is a run of bytes, which may go over several tensors; its ld means nothing. Wherever an area lies in memory, its rows follow
 * each other without gaps. */
struct area {
    size_t from, row_bytes, ld;    // bytes of the weights; from: its first
    int64_t n_row;
};
static inline size_t area_end(const struct area *a)    // after its last byte
{
    return a->from + (size_t)(a->n_row - 1) * a->ld + a->row_bytes;
}
static inline size_t area_bytes(const struct area *a)
{
    return (size_t)a->n_row * a->row_bytes;
}
static inline struct area area_run(size_t from, size_t size_bytes)
{
    return (struct area){ .from = from, .row_bytes = size_bytes, .n_row = 1 };
}

#define EXTENT_PART_MAX 64    // as many as trainers (COLLECTIVE_RANK_MAX)
struct extent_part {
    const char *mem;    // (size_bytes) device; borrowed
    size_t size_bytes;
    struct mem_handle handle;    // what others open it with; of mem_share_new's memory alone
    struct device *dev;          // of this process, whose memory it is; NULL: another process's, or whoever reads it
};
struct extent {
    struct area of;
    int64_t part;    // which has it
    size_t at;       // bytes of the part: where it begins
};
/* Areas without common bytes, in the order of their first ones. Together they are all tensors; gaps between tensors may be in none. */
struct extents {
    int64_t n;
    const struct extent *at;    // (n)
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
    *at = (struct extent){ .of = area_run(0, size_bytes) };
    return (struct extents){ 1, at, 1, part };
}

/* Elements [from, end) of rows of ld elements as up to three rectangles: the rest of a row, whole rows, the beginning of a row. Returns how
 * many. */
struct row_part {
    size_t row, n_row, col, n_col;
};
#define ROW_PART_MAX 3
int rows_split(size_t from, size_t end, size_t ld, struct row_part out[ROW_PART_MAX]);

/* ---- tables that are made of a model's parts */
struct extent_table {
    struct extent *at;    // (room) owned; n are there
    int64_t n, room;
    struct extent_part part[EXTENT_PART_MAX];
    int n_part;
};
/* Add elements [first, first + n) of the flat order of device q's slice or stage of m (slice.h). They lie in a part from byte `at` on. What
 * several devices have alike is taken from the first of them alone. */
MUST_USE bool extent_table_add_slice(struct extent_table *t, const struct model *m, int q, int64_t first, int64_t n, int64_t part,
                                     size_t at, struct error *err);
MUST_USE bool extent_table_add(struct extent_table *t, const struct extent *x, struct error *err);
void extent_table_sort(struct extent_table *t);                                // when all is added
static inline struct extents extent_table_all(const struct extent_table *t)    // borrows t
{
    return (struct extents){ t->n, t->at, t->n_part, t->part };
}
/* Where all weights of m are, which has slices or stages, and whole ones: a part for each device, with a handle if its slice is shared
 * (model_slices_share). t was empty, and is so again after a failure. */
MUST_USE bool extent_table_of_model(struct extent_table *t, const struct model *m, struct error *err);
void extent_table_release(struct extent_table *t);    // and empty it; an empty one is all 0
