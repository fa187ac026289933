#include "workers/engine/model/slice.h"
#include <string.h>
#include "workers/engine/model/model_impl.h"

int64_t slice_vocab_each(int64_t vocab, int n)
{
    return ((vocab + SUM_PARTS_MAX - 1) / SUM_PARTS_MAX + 7) / 8 * 8 * (SUM_PARTS_MAX / n);
}

int64_t slice_vocab_from(int64_t vocab, int n, int q)
{
    return MIN(vocab, q * slice_vocab_each(vocab, n));
}

struct model_config slice_config(const struct model_config *c, int n, int q)
{
    struct model_config s = *c;
    s.n_head = c->n_head / n;
    s.n_kv_head = MAX(1, c->n_kv_head / n);
    s.d_ff = c->d_ff / n;
    s.vocab = slice_vocab_from(c->vocab, n, q + 1) - slice_vocab_from(c->vocab, n, q);
    return s;
}

/* Rows [at, at + whole) of a tensor, of which each of n devices has `own`. Where these are more than the rows, neighbours have the same:
 * a head of keys and values that serves several devices' queries. */
struct rows {
    int64_t at, whole, own;
};
static int64_t rows_first(struct rows r, int n, int q)
{
    return r.at + q / (n * r.own / r.whole) * r.own;
}

/* The ranges of rows of tensor t that are cut each by itself: those that the files hold fused. */
static int rows_of(const struct model *whole, const struct model *slice, const struct tensor *t, const struct tensor *part,
                   struct rows out[SLICE_BLOCK_MAX])
{
    const struct model_config *c = &whole->c, *s = &slice->c;
    int64_t q = c->n_head * c->d_head, kv = c->n_kv_head * c->d_head, own_q = s->n_head * s->d_head, own_kv = s->n_kv_head * s->d_head;
    if (strstr(t->name, ".qkv_proj.")) {
        out[0] = (struct rows){ 0, q, own_q };
        out[1] = (struct rows){ q, kv, own_kv };
        out[2] = (struct rows){ q + kv, kv, own_kv };
        return 3;
    }
    if (strstr(t->name, ".gate_up_proj.")) {
        out[0] = (struct rows){ 0, c->d_ff, s->d_ff };
        out[1] = (struct rows){ c->d_ff, c->d_ff, s->d_ff };
        return 2;
    }
    out[0] = (struct rows){ 0, t->dim[0], part->dim[0] };
    return 1;
}

/* In how many slices a part is cut that is on some of n devices: each stage is on equally many. */
static int slices_each(const struct model *slice, int n)
{
    return n / MAX(slice->n_stage, 1);
}

int slice_blocks(const struct model *whole, const struct model *slice, int64_t t, int n, int q, struct slice_block out[SLICE_BLOCK_MAX])
{
    const struct tensor *all = &whole->flat.tensor[t], *part = &slice->flat.tensor[t];
    int64_t cols = MAX(all->dim[1], (int64_t)1), own = MAX(part->dim[1], (int64_t)1), to = part->offset;
    bool of_vocab = all->offset == whole->embed_at || all->offset == whole->head_at;
    struct rows rows[SLICE_BLOCK_MAX];
    if (part->n_elem == 0)    // another stage's, or ids that the vocabulary does not have
        return 0;
    n = slices_each(slice, n);
    q %= n;
    int n_block = of_vocab ? 1 : rows_of(whole, slice, all, part, rows);
    for (int b = 0; b < n_block; b++) {
        struct slice_block *o = &out[b];
        o->row = of_vocab ? slice_vocab_from(whole->c.vocab, n, q) : rows_first(rows[b], n, q);
        o->col = own < cols ? q * own : 0;
        o->n_row = of_vocab ? part->dim[0] : rows[b].own;
        o->n_col = own;
        o->ld = cols;
        o->from = all->offset + o->row * cols + o->col;
        o->to = to;
        to += o->n_row * o->n_col;
    }
    return n_block;
}

bool slice_block_counts(const struct model *whole, const struct model *slice, int64_t t, const struct slice_block *b, int q)
{
    return q % slices_each(slice, whole->n_device) == 0 || b->n_row * b->n_col < whole->flat.tensor[t].n_elem;
}
