#include "workers/engine/model/extent.h"
#include <inttypes.h>
#include <stdlib.h>
#include "workers/engine/model/model.h"
#include "workers/engine/model/slice.h"
#include "workers/engine/model/team.h"

int rows_split(size_t from, size_t end, size_t ld, struct row_part out[ROW_PART_MAX])
{
    int n = 0;
    for (size_t at = from; at < end; n++) {
        size_t row = at / ld, col = at % ld, whole = col == 0 ? (end - at) / ld : 0;
        out[n] = whole > 0 ? (struct row_part){ row, whole, 0, ld } : (struct row_part){ row, 1, col, MIN(ld - col, end - at) };
        at += out[n].n_row * out[n].n_col;
    }
    return n;
}

bool extent_table_add(struct extent_table *t, const struct extent *x, struct error *err)
{
    if (t->n == t->room) {
        int64_t room = MAX(2 * t->room, (int64_t)256);
        struct extent *at = realloc(t->at, (size_t)room * sizeof *at);
        if (!at)
            return error_set(err, ERR_NO_MEMORY, "no memory for a table of where weights are, after %" PRId64 " places", t->n);
        t->at = at;
        t->room = room;
    }
    t->at[t->n++] = *x;
    return true;
}

/* Elements [first, end) of the slice's flat order that are in a block; element `first_there` of it lies at byte `at` of the part. */
static bool block_add(struct extent_table *t, const struct slice_block *b, int64_t first, int64_t end, int64_t first_there, size_t e,
                      int64_t part, size_t at, struct error *err)
{
    struct row_part rows[ROW_PART_MAX];
    bool one = b->n_col == b->ld;    // neighbours in the weights, too
    int64_t n = b->n_row * b->n_col, ld = one ? n : b->n_col;
    int n_rows = rows_split((size_t)MAX(first - b->to, (int64_t)0), (size_t)MAX(MIN(end - b->to, n), (int64_t)0), (size_t)ld, rows);
    for (int k = 0; k < n_rows; k++) {
        const struct row_part *r = &rows[k];
        struct extent x = { .of = { .from = ((size_t)b->from + r->row * (size_t)b->ld + r->col) * e,
                                    .row_bytes = r->n_col * e,
                                    .ld = (size_t)b->ld * e,
                                    .n_row = (int64_t)r->n_row },
                            .part = part,
                            .at = at + ((size_t)(b->to - first_there) + r->row * (size_t)ld + r->col) * e };
        if (!extent_table_add(t, &x, err))
            return false;
    }
    return true;
}

bool extent_table_add_slice(struct extent_table *t, const struct model *m, int q, int64_t first, int64_t n, int64_t part, size_t at,
                            struct error *err)
{
    struct slice_block block[SLICE_BLOCK_MAX];
    const struct model *slice = team_slice(m, q);
    for (int64_t i = 0; i < model_n_tensor(m); i++) {
        const struct tensor *x = model_tensor(slice, i);
        if (x->offset >= first + n || x->offset + x->n_elem <= first)
            continue;
        int n_block = slice_blocks(m, slice, i, model_n_device(m), q, block);
        for (int b = 0; b < n_block; b++)
            if (slice_block_counts(m, slice, i, &block[b], q)
                && !block_add(t, &block[b], first, first + n, first, dtype_size(model_dtype(m)), part, at, err))
                return false;
    }
    return true;
}

static int by_first_byte(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    return (x->of.from > y->of.from) - (x->of.from < y->of.from);
}

void extent_table_sort(struct extent_table *t)
{
    if (t->n > 0)
        qsort(t->at, (size_t)t->n, sizeof *t->at, by_first_byte);
}

bool extent_table_of_model(struct extent_table *t, const struct model *m, struct error *err)
{
    t->n_part = model_n_device(m);
    for (int q = 0; q < t->n_part; q++) {
        struct model *slice = team_slice(m, q);
        struct extent_part *part = &t->part[q];
        const struct mem_handle *h = model_shared_handle(slice);
        part->mem = model_weights(slice, &part->size_bytes);
        part->dev = model_device(slice);
        if (h)
            part->handle = *h;
        if (!extent_table_add_slice(t, m, q, 0, model_n_flat(slice), q, 0, err)) {
            extent_table_release(t);
            return false;
        }
    }
    extent_table_sort(t);
    return true;
}

void extent_table_release(struct extent_table *t)
{
    free(t->at);
    *t = (struct extent_table){ 0 };
}
