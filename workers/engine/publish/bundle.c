#include "workers/engine/publish/bundle.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/mix64.h"
#include "workers/engine/model/model.h"
#include "workers/engine/model/slice.h"

/* ---- what there is */

static bool tensors_new(struct bundle *b, int64_t n, struct error *err)
{
    *b = (struct bundle){ .n = n, .tensor = calloc((size_t)MAX(n, (int64_t)1), sizeof *b->tensor) };
    return b->tensor || error_set(err, ERR_NO_MEMORY, "no memory for a table of %" PRId64 " tensors", n);
}

bool bundle_of_model(struct bundle *b, const struct model *m, struct error *err)
{
    size_t e = dtype_size(model_dtype(m));
    if (!tensors_new(b, model_n_tensor(m), err))
        return false;
    b->size_bytes = model_weight_bytes(m);
    for (int64_t i = 0; i < b->n; i++) {
        const struct tensor *t = model_tensor(m, i);
        b->tensor[i] = (struct bundle_tensor){ .at = (size_t)t->offset * e, .size_bytes = (size_t)t->n_elem * e };
        memcpy(b->tensor[i].name, t->name, sizeof t->name);
    }
    return true;
}

bool bundle_of_size(struct bundle *b, size_t size_bytes, int64_t n, struct error *err)
{
    if (!tensors_new(b, n, err))
        return false;
    b->size_bytes = size_bytes;
    size_t each = size_bytes / (size_t)n / 256 * 256;
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)i * each;
        b->tensor[i] = (struct bundle_tensor){ .at = at, .size_bytes = i + 1 < n ? each : size_bytes - at };
        snprintf(b->tensor[i].name, sizeof b->tensor[i].name, "tensor.%" PRId64, i);
    }
    return true;
}

void bundle_release(struct bundle *b)
{
    free(b->tensor);
    *b = (struct bundle){ 0 };
}

/* ---- who has what of it */

void places_of_whole(struct places *p, struct device *dev, void *mem, const struct bundle *b)
{
    *p = (struct places){ .n = 1, .at = { { .dev = dev, .mem = mem, .n = b->n } } };
}

static bool slice_pieces(struct places *p, const struct model *m, int q, struct error *err)
{
    struct slice_block block[SLICE_BLOCK_MAX];
    struct model *slice = team_slice(m, q);
    size_t e = dtype_size(model_dtype(m)), size;
    int64_t n_tensor = model_n_tensor(m);
    struct piece *piece = p->piece[q] = calloc((size_t)n_tensor * SLICE_BLOCK_MAX, sizeof *piece);
    struct place *at = &p->at[q];
    if (!piece)
        return error_set(err, ERR_NO_MEMORY, "no memory for a table of %" PRId64 " tensors", n_tensor);
    *at = (struct place){ .dev = model_device(slice), .mem = model_weights(slice, &size), .piece = piece };
    for (int64_t t = 0; t < n_tensor; t++) {
        int n = slice_blocks(m, slice, t, p->n, q, block);
        for (int b = 0; b < n; b++) {
            const struct slice_block *s = &block[b];
            bool one = s->n_col == s->ld;    // neighbours on both sides
            piece[at->n++] = (struct piece){ .tensor = t,
                                             .n_row = one ? 1 : s->n_row,
                                             .from = (size_t)s->from * e,
                                             .ld = (size_t)s->ld * e,
                                             .row_bytes = (size_t)(one ? s->n_row * s->n_col : s->n_col) * e,
                                             .to = (size_t)s->to * e };
        }
    }
    return true;
}

bool places_of_model(struct places *p, const struct model *m, struct error *err)
{
    size_t size;
    *p = (struct places){ .n = 1 };
    if (!model_is_sliced(m)) {
        p->at[0] = (struct place){ .dev = model_device(m), .mem = model_weights(m, &size), .n = model_n_tensor(m) };
        return true;
    }
    p->n = model_n_device(m);
    for (int q = 0; q < p->n; q++)
        if (!slice_pieces(p, m, q, err)) {
            places_release(p);
            return false;
        }
    return true;
}

void places_release(struct places *p)
{
    for (int q = 0; q < PLACE_MAX; q++)
        free(p->piece[q]);
    *p = (struct places){ 0 };
}

static struct piece piece_of(const struct bundle *b, const struct place *at, int64_t i)
{
    if (at->piece)
        return at->piece[i];
    const struct bundle_tensor *t = &b->tensor[i];
    return (struct piece){ .tensor = i, .n_row = 1, .from = t->at, .row_bytes = t->size_bytes, .to = t->at };
}

/* ---- hashes */

struct hasher {
    const struct bundle *bundle;    // borrowed
    int n;
    struct device *dev[PLACE_MAX];
    int64_t n_most;
    uint64_t *mem[PLACE_MAX];     // (n_most) device
    uint64_t *hash[PLACE_MAX];    // (n_most) host
    int64_t *part_of;             // (n_most) the tensor that each of the first device's is a part of
};

struct hasher *hasher_new(const struct bundle *b, struct device *const *dev, int n, struct error *err)
{
    struct hasher *h = calloc(1, sizeof *h);
    int64_t n_most = MAX(b->n * (n > 1 ? SLICE_BLOCK_MAX : 1), (int64_t)1);
    size_t most = (size_t)n_most * sizeof(uint64_t);
    if (!h) {
        error_set(err, ERR_NO_MEMORY, "no memory for hashes");
        return NULL;
    }
    h->bundle = b;
    h->n = n;
    h->n_most = n_most;
    if (!(h->part_of = malloc((size_t)n_most * sizeof *h->part_of))) {
        error_set(err, ERR_NO_MEMORY, "no memory for hashes");
        free(h);
        return NULL;
    }
    for (int q = n - 1; q >= 0; q--) {    // the calling thread drives the first at the end
        h->dev[q] = dev[q];
        if (!(h->hash[q] = malloc(most)))
            error_set(err, ERR_NO_MEMORY, "no memory for hashes");
        if (!h->hash[q] || !device_enter(dev[q], err) || !(h->mem[q] = mem_new(dev[q], most, "hashes of weights", err))) {
            hasher_free(h);
            return NULL;
        }
    }
    return h;
}

void hasher_free(struct hasher *h)
{
    struct error ignored;
    if (!h)
        return;
    for (int q = h->n - 1; q >= 0; q--) {
        free(h->hash[q]);
        if (h->mem[q] && device_enter(h->dev[q], &ignored))
            mem_free(h->dev[q], h->mem[q]);
    }
    free(h->part_of);
    free(h);
}

/* Ask device q for the hash of each of its pieces. */
static bool pieces_hash(struct hasher *h, const struct place *at, int q, struct error *err)
{
    for (int64_t i = 0; i < at->n; i++) {
        struct piece p = piece_of(h->bundle, at, i);
        const struct bundle_tensor *t = &h->bundle->tensor[p.tensor];
        bool rows = p.n_row > 1;
        BUG_IF((p.from - t->at) % 8 || (rows && (p.row_bytes % 8 || p.ld % 8)), "a piece of '%s' does not begin with a word", t->name);
        if (!OP(at->dev, err, mem_hash, .hash = h->mem[q] + i, .x = (char *)at->mem + p.to, .size_bytes = (size_t)p.n_row * p.row_bytes,
                .first = (int64_t)((p.from - t->at) / 8), .row_words = rows ? (int64_t)(p.row_bytes / 8) : 0,
                .ld_words = (int64_t)(p.ld / 8)))
            return false;
    }
    return mem_copy(at->dev, h->hash[q], h->mem[q], (size_t)at->n * sizeof(uint64_t), COPY_D2H, err);
}

bool bundle_hash(struct hasher *h, const void *mem, uint64_t *hash, struct error *err)
{
    struct places whole;
    places_of_whole(&whole, h->dev[0], (void *)mem, h->bundle);
    if (!pieces_hash(h, &whole.at[0], 0, err) || !device_sync(h->dev[0], err))
        return false;
    memcpy(hash, h->hash[0], (size_t)h->bundle->n * sizeof *hash);
    return true;
}

/* Add up what the first device was asked for: n parts of the tensors part_of. */
static bool parts_take(struct hasher *h, int64_t n, uint64_t *hash, struct error *err)
{
    if (!mem_copy(h->dev[0], h->hash[0], h->mem[0], (size_t)n * sizeof(uint64_t), COPY_D2H, err) || !device_sync(h->dev[0], err))
        return false;
    for (int64_t k = 0; k < n; k++)
        hash[h->part_of[k]] += h->hash[0][k];
    return true;
}

bool bundle_hash_extents(struct hasher *h, const struct extents *from, uint64_t *hash, struct error *err)
{
    const struct bundle *b = h->bundle;
    int64_t n = 0;
    memset(hash, 0, (size_t)b->n * sizeof *hash);
    for (int64_t i = 0, t = 0; i < from->n && t < b->n;) {
        const struct extent *x = &from->at[i];
        const struct bundle_tensor *tensor = &b->tensor[t];
        size_t x_end = x->from + x->size_bytes, t_end = tensor->at + tensor->size_bytes;
        size_t first = MAX(x->from, tensor->at), end = MIN(x_end, t_end);
        if (first < end) {
            BUG_IF((first - tensor->at) % 8, "a part of '%s' does not begin with a word", tensor->name);
            if (n == h->n_most) {
                if (!parts_take(h, n, hash, err))
                    return false;
                n = 0;
            }
            if (!OP(h->dev[0], err, mem_hash, .hash = h->mem[0] + n, .x = extent_mem(from, i) + (first - x->from),
                    .size_bytes = end - first, .first = (int64_t)((first - tensor->at) / 8)))
                return false;
            h->part_of[n++] = t;
        }
        if (t_end <= x_end)
            t++;
        else
            i++;
    }
    return parts_take(h, n, hash, err);
}

uint64_t bundle_hash_join(const uint64_t *hash, int64_t n)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += mix64(hash[i] + (uint64_t)(i + 1) * MIX64_STEP);
    return sum;
}

/* A piece of the tensor that is looked at, and what it adds to its hash. */
struct part {
    size_t from;
    uint64_t hash;
};
/* The tensor's hash from all parts. False: parts that are the same differ; *hash is then that of one of them. */
static bool parts_join(const struct part *part, int n, uint64_t *hash)
{
    *hash = 0;
    for (int i = 0; i < n; i++) {
        int same = 0;
        while (part[same].from != part[i].from)
            same++;
        if (same == i) {
            *hash += part[i].hash;
        } else if (part[same].hash != part[i].hash) {
            *hash = part[i].hash;
            return false;
        }
    }
    return true;
}

bool bundle_check(struct hasher *h, const struct places *p, const uint64_t *want, int64_t version, struct error *err)
{
    struct part part[PLACE_MAX * SLICE_BLOCK_MAX];
    int64_t next[PLACE_MAX] = { 0 };
    for (int q = 0; q < p->n; q++)
        if (!device_enter(p->at[q].dev, err) || !pieces_hash(h, &p->at[q], q, err))
            return false;
    if (!places_sync(p, err))
        return false;
    for (int64_t t = 0; t < h->bundle->n; t++) {
        uint64_t hash;
        int n = 0;
        for (int q = 0; q < p->n; q++)
            for (; next[q] < p->at[q].n; next[q]++) {
                struct piece x = piece_of(h->bundle, &p->at[q], next[q]);
                if (x.tensor != t)
                    break;
                part[n++] = (struct part){ x.from, h->hash[q][next[q]] };
            }
        if (!parts_join(part, n, &hash) || hash != want[t])
            return error_set(err, ERR_DATA,
                             "'%s' of version %" PRId64 " has arrived with hash %016" PRIx64 " and was shared with %016" PRIx64,
                             h->bundle->tensor[t].name, version, hash, want[t]);
    }
    return true;
}

/* ---- copies */

bool places_sync(const struct places *p, struct error *err)
{
    for (int q = p->n - 1; q >= 0; q--)    // the calling thread drives the first at the end
        if (!device_enter(p->at[q].dev, err) || !device_sync(p->at[q].dev, err))
            return false;
    return true;
}

/* The first run that has a byte from `from` on. */
static int64_t extent_find(const struct extents *src, size_t from)
{
    int64_t low = 0, high = src->n;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (src->at[mid].from + src->at[mid].size_bytes <= from)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* What run i has of a piece: as many rows at a time as lie in it whole, and parts of rows at its ends. */
static bool piece_fill(const struct place *at, const struct piece *x, const struct extents *src, int64_t i, struct error *err)
{
    size_t ld = MAX(x->ld, x->row_bytes), end = x->from + (size_t)(x->n_row - 1) * ld + x->row_bytes, run = src->at[i].from,
           last = MIN(end, run + src->at[i].size_bytes);
    const char *mem = extent_mem(src, i);
    for (size_t first = MAX(x->from, run), step; first < last; first += step) {
        size_t row = (first - x->from) / ld, in_row = (first - x->from) % ld, n = 1, bytes = x->row_bytes;
        if (in_row >= x->row_bytes) {    // between two rows
            step = ld - in_row;
            continue;
        }
        if (in_row == 0 && last - first >= x->row_bytes) {
            n = (last - first - x->row_bytes) / ld + 1;
            step = n * ld;
        } else {
            bytes = step = MIN(x->row_bytes - in_row, last - first);
        }
        if (!OP(at->dev, err, rows_copy, .y = (char *)at->mem + x->to + row * x->row_bytes + in_row, .x = mem + (first - run),
                .n = (int64_t)n, .row_bytes = bytes, .ldy_bytes = x->row_bytes, .ldx_bytes = ld))
            return false;
    }
    return true;
}

bool places_fill(const struct places *p, const struct extents src[], struct error *err)
{
    for (int q = p->n - 1; q >= 0; q--) {
        const struct place *at = &p->at[q];
        if (!device_enter(at->dev, err))
            return false;
        for (int64_t i = 0; !at->piece && i < src[q].n; i++)
            if (!mem_copy(at->dev, (char *)at->mem + src[q].at[i].from, extent_mem(&src[q], i), src[q].at[i].size_bytes, COPY_D2D, err))
                return false;
        for (int64_t k = 0; at->piece && k < at->n; k++) {
            const struct piece *x = &at->piece[k];
            size_t end = x->from + (size_t)(x->n_row - 1) * x->ld + x->row_bytes;
            for (int64_t i = extent_find(&src[q], x->from); i < src[q].n && src[q].at[i].from < end; i++)
                if (!piece_fill(at, x, &src[q], i, err))
                    return false;
        }
    }
    return true;
}

/* A piece whose rows are apart: as many at a time as the buffer holds. */
static bool rows_send(const struct place *at, const struct piece *x, const char *src, char *stage, struct error *err)
{
    int64_t most = MAX((int64_t)(BUNDLE_STAGE / x->row_bytes), (int64_t)1);
    for (int64_t r = 0; r < x->n_row; r += most) {
        int64_t n = MIN(most, x->n_row - r);
        for (int64_t i = 0; i < n; i++)
            memcpy(stage + (size_t)i * x->row_bytes, src + x->from + (size_t)(r + i) * x->ld, x->row_bytes);
        if (!mem_copy(at->dev, (char *)at->mem + x->to + (size_t)r * x->row_bytes, stage, (size_t)n * x->row_bytes, COPY_H2D, err))
            return false;
    }
    return true;
}

bool places_fill_from_host(const struct bundle *b, const struct places *p, const void *src, struct error *err)
{
    size_t stage_bytes = BUNDLE_STAGE;
    for (int q = 0; q < p->n; q++)
        for (int64_t i = 0; p->at[q].piece && i < p->at[q].n; i++)
            stage_bytes = MAX(stage_bytes, p->at[q].piece[i].n_row > 1 ? p->at[q].piece[i].row_bytes : 0);
    char *stage = p->n > 1 ? malloc(stage_bytes) : NULL;
    bool ok = p->n == 1 || stage || error_set(err, ERR_NO_MEMORY, "no memory for rows of weights");
    for (int q = p->n - 1; q >= 0 && ok; q--) {
        const struct place *at = &p->at[q];
        ok = device_enter(at->dev, err) && (at->piece || mem_copy(at->dev, at->mem, src, b->size_bytes, COPY_H2D, err));
        for (int64_t i = 0; at->piece && i < at->n && ok; i++) {
            const struct piece *x = &at->piece[i];
            ok = x->n_row > 1 ? rows_send(at, x, src, stage, err)
                              : mem_copy(at->dev, (char *)at->mem + x->to, (const char *)src + x->from, x->row_bytes, COPY_H2D, err);
        }
        ok = ok && device_sync(at->dev, err);
    }
    free(stage);
    return ok;
}
