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
        b->tensor[i] = (struct bundle_tensor){ .at = (size_t)t->offset * e,
                                               .size_bytes = (size_t)t->n_elem * e,
                                               .row_bytes = (size_t)tensor_cols(t) * e };
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
        size_t size = i + 1 < n ? each : size_bytes - at;
        b->tensor[i] = (struct bundle_tensor){ .at = at, .size_bytes = size, .row_bytes = size };
        snprintf(b->tensor[i].name, sizeof b->tensor[i].name, "tensor.%" PRId64, i);
    }
    return true;
}

void bundle_release(struct bundle *b)
{
    free(b->tensor);
    *b = (struct bundle){ 0 };
}

/* ---- which device has what of it */

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
                                             .of = { .from = (size_t)s->from * e,
                                                     .row_bytes = (size_t)(one ? s->n_row * s->n_col : s->n_col) * e,
                                                     .ld = (size_t)s->ld * e,
                                                     .n_row = one ? 1 : s->n_row },
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
    return (struct piece){ .tensor = i, .of = area_run(t->at, t->size_bytes), .to = t->at };
}

static size_t tensor_end(const struct bundle *b, int64_t t)
{
    return b->tensor[t].at + b->tensor[t].size_bytes;
}

/* What an area has of tensor t, which is all of it if it has several rows. False: nothing. */
static bool area_in_tensor(const struct bundle *b, int64_t t, const struct area *a, struct area *out)
{
    size_t at = MAX(a->from, b->tensor[t].at), end = MIN(area_end(a), tensor_end(b, t));
    *out = a->n_row > 1 ? *a : area_run(at, end - MIN(at, end));
    return at < end;
}

/* Is it an area of the version, within one tensor if it has several rows, which is then among those from t on? */
static bool area_fits(const struct bundle *b, int64_t t, const struct area *a)
{
    size_t size = b->size_bytes;
    if (a->n_row < 1 || a->row_bytes < 1 || a->row_bytes > size || a->from > size - a->row_bytes)
        return false;
    if (a->n_row == 1)
        return true;
    return t < b->n && a->from >= b->tensor[t].at && a->ld == b->tensor[t].row_bytes && a->row_bytes <= a->ld
           && (a->from - b->tensor[t].at) % a->ld <= a->ld - a->row_bytes
           && (size_t)(a->n_row - 1) <= (size - a->from - a->row_bytes) / a->ld && area_end(a) <= tensor_end(b, t);
}

bool extents_are_whole(const struct bundle *b, const struct extents *x)
{
    size_t n_got = 0, n_want = 0, last = 0;
    for (int64_t t = 0; t < b->n; t++)
        n_want += b->tensor[t].size_bytes;
    for (int64_t i = 0, first = 0; i < x->n; i++) {
        const struct extent *e = &x->at[i];
        struct area part;
        while (first < b->n && tensor_end(b, first) <= e->of.from)
            first++;
        if (e->of.from < last || !area_fits(b, first, &e->of) || e->part < 0 || e->part >= x->n_part)
            return false;
        size_t room = x->part[e->part].size_bytes;
        if (area_bytes(&e->of) > room || e->at > room - area_bytes(&e->of))
            return false;
        for (int64_t t = first; t < b->n && b->tensor[t].at < area_end(&e->of); t++)
            n_got += area_in_tensor(b, t, &e->of, &part) ? area_bytes(&part) : 0;
        if (n_got > n_want)
            return false;
        last = e->of.from;
    }
    return n_got == n_want;
}

/* ---- hashes */

struct hasher {
    const struct bundle *bundle;    // borrowed
    int64_t n_most;
    int n;
    struct hashing {    // of a device
        struct device *dev;
        uint64_t *mem;       // (n_most) device
        uint64_t *hash;      // (n_most) host
        int64_t *part_of;    // (n) the tensor that each of extents is a part of, until they are taken
        int64_t n;
    } on[PLACE_MAX];
};

static void hashing_close(struct hashing *on)
{
    struct error ignored;
    free(on->hash);
    free(on->part_of);
    if (on->mem && device_enter(on->dev, &ignored))
        mem_free(on->dev, on->mem);
    *on = (struct hashing){ 0 };
}

/* on[q] is dev's; closed by the caller also after a failure. */
static bool hashing_open(struct hasher *h, int q, struct device *dev, struct error *err)
{
    size_t most = (size_t)h->n_most * sizeof(uint64_t);
    struct hashing *on = &h->on[q];
    on->dev = dev;
    if (!(on->hash = malloc(most)) || !(on->part_of = malloc((size_t)h->n_most * sizeof *on->part_of)))
        return error_set(err, ERR_NO_MEMORY, "no memory for hashes");
    return device_enter(dev, err) && (on->mem = mem_new(dev, most, "hashes of weights", err)) != NULL;
}

struct hasher *hasher_new(const struct bundle *b, struct device *const *dev, int n, struct error *err)
{
    struct hasher *h = calloc(1, sizeof *h);
    if (!h) {
        error_set(err, ERR_NO_MEMORY, "no memory for hashes");
        return NULL;
    }
    *h = (struct hasher){ .bundle = b, .n_most = MAX(b->n * (n > 1 ? SLICE_BLOCK_MAX : 1), (int64_t)1), .n = n };
    for (int q = n - 1; q >= 0; q--)    // the calling thread drives the first at the end
        if (!hashing_open(h, q, dev[q], err)) {
            hasher_free(h);
            return NULL;
        }
    return h;
}

void hasher_free(struct hasher *h)
{
    for (int q = h ? h->n - 1 : -1; q >= 0; q--)
        hashing_close(&h->on[q]);
    free(h);
}

/* Ask a device for what an area of tensor t, which is at x, adds to the tensor's hash. */
static bool area_hash(const struct bundle *b, int64_t t, const struct area *a, struct device *dev, const char *x, uint64_t *hash,
                      struct error *err)
{
    const struct bundle_tensor *tensor = &b->tensor[t];
    bool rows = a->n_row > 1;
    BUG_IF((a->from - tensor->at) % 8 || (rows && (a->row_bytes % 8 || a->ld % 8)), "a part of '%s' does not begin with a word",
           tensor->name);
    return OP(dev, err, mem_hash, .hash = hash, .x = x, .size_bytes = area_bytes(a), .first = (int64_t)((a->from - tensor->at) / 8),
              .row_words = rows ? (int64_t)(a->row_bytes / 8) : 0, .ld_words = (int64_t)(a->ld / 8));
}

/* Ask device q for the hash of each of its pieces. */
static bool pieces_hash(struct hasher *h, const struct place *at, int q, struct error *err)
{
    for (int64_t i = 0; i < at->n; i++) {
        struct piece p = piece_of(h->bundle, at, i);
        if (!area_hash(h->bundle, p.tensor, &p.of, at->dev, (char *)at->mem + p.to, h->on[q].mem + i, err))
            return false;
    }
    return mem_copy(at->dev, h->on[q].hash, h->on[q].mem, (size_t)at->n * sizeof(uint64_t), COPY_D2H, err);
}

bool bundle_hash(struct hasher *h, const void *mem, uint64_t *hash, struct error *err)
{
    struct places whole;
    places_of_whole(&whole, h->on[0].dev, (void *)mem, h->bundle);
    if (!pieces_hash(h, &whole.at[0], 0, err) || !device_sync(h->on[0].dev, err))
        return false;
    memcpy(hash, h->on[0].hash, (size_t)h->bundle->n * sizeof *hash);
    return true;
}

/* Add up what a device was asked for. */
static bool parts_take(struct hashing *on, uint64_t *hash, struct error *err)
{
    if (!device_enter(on->dev, err) || !mem_copy(on->dev, on->hash, on->mem, (size_t)on->n * sizeof(uint64_t), COPY_D2H, err)
        || !device_sync(on->dev, err))
        return false;
    for (int64_t k = 0; k < on->n; k++)
        hash[on->part_of[k]] += on->hash[k];
    on->n = 0;
    return true;
}

/* Ask a device for what place i adds to the hashes of the tensors that it is a part of, of which `first` is the first. */
static bool extent_hash(struct hasher *h, struct hashing *on, const struct extents *from, int64_t i, int64_t first, uint64_t *hash,
                        struct error *err)
{
    const struct bundle *b = h->bundle;
    const struct area *of = &from->at[i].of;
    struct area part;
    for (int64_t t = first; t < b->n && b->tensor[t].at < area_end(of); t++) {
        if (!area_in_tensor(b, t, of, &part))
            continue;
        if (on->n == h->n_most && !parts_take(on, hash, err))
            return false;
        if (!area_hash(b, t, &part, on->dev, extent_mem(from, i) + (part.from - of->from), on->mem + on->n, err))
            return false;
        on->part_of[on->n++] = t;
    }
    return true;
}

/* The number of the device that hashes a part: its own, if this process drives that, or else the first. -1: see err. */
static int part_hasher(struct hasher *h, const struct extent_part *part, struct error *err)
{
    int q = 0;
    if (!part->dev)
        return 0;
    while (q < h->n && h->on[q].dev != part->dev)
        q++;
    BUG_IF(q == PLACE_MAX, "weights on more than %d devices of a process", PLACE_MAX);
    if (q < h->n)
        return q;
    if (hashing_open(h, q, part->dev, err)) {
        h->n++;
        return q;
    }
    hashing_close(&h->on[q]);
    return -1;
}

bool bundle_hash_extents(struct hasher *h, const struct extents *from, uint64_t *hash, struct error *err)
{
    const struct bundle *b = h->bundle;
    int on[EXTENT_PART_MAX];
    memset(hash, 0, (size_t)b->n * sizeof *hash);
    for (int k = 0; k < from->n_part; k++)
        if ((on[k] = part_hasher(h, &from->part[k], err)) < 0)
            return false;
    for (int q = 0; q < h->n; q++) {    // all at once
        if (!device_enter(h->on[q].dev, err))
            return false;
        h->on[q].n = 0;
        for (int64_t i = 0, first = 0; i < from->n; i++) {
            while (first < b->n && tensor_end(b, first) <= from->at[i].of.from)
                first++;
            if (on[from->at[i].part] == q && !extent_hash(h, &h->on[q], from, i, first, hash, err))
                return false;
        }
    }
    for (int q = h->n - 1; q >= 0; q--)    // the calling thread drives the first at the end
        if (!parts_take(&h->on[q], hash, err))
            return false;
    return true;
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
                part[n++] = (struct part){ x.of.from, h->on[q].hash[next[q]] };
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

/* A part of an area on a grid of rows, and where it lies: from byte mem of the area's memory on, a row each step bytes. */
struct cells {
    struct row_part of;
    size_t mem, step;
};

/* What an area has of a grid whose rows of ld bytes begin at byte base of the version, up to three parts; if it has several rows itself, these
 * are rows of the grid. Returns how many. */
static int cells_of(const struct area *a, size_t base, size_t ld, struct cells out[ROW_PART_MAX])
{
    struct row_part part[ROW_PART_MAX];
    if (a->n_row > 1) {
        BUG_IF(a->ld != ld || a->from < base, "an area with rows of %zu bytes on a grid of %zu", a->ld, ld);
        out[0] = (struct cells){ { (a->from - base) / ld, (size_t)a->n_row, (a->from - base) % ld, a->row_bytes }, 0, a->row_bytes };
        return 1;
    }
    size_t first = MAX(a->from, base), end = MAX(area_end(a), base);    // a run may come from earlier tensors
    int n = rows_split(first - base, end - base, ld, part);
    for (int i = 0; i < n; i++)
        out[i] = (struct cells){ part[i], base + part[i].row * ld + part[i].col - a->from, ld };
    return n;
}

/* Copy what two parts on one grid have in common. */
static bool cells_copy(struct device *dev, const struct cells *d, char *to, const struct cells *s, const char *from, struct error *err)
{
    size_t row = MAX(d->of.row, s->of.row), row_end = MIN(d->of.row + d->of.n_row, s->of.row + s->of.n_row),
           col = MAX(d->of.col, s->of.col), col_end = MIN(d->of.col + d->of.n_col, s->of.col + s->of.n_col);
    if (row >= row_end || col >= col_end)
        return true;
    size_t n = row_end - row, bytes = col_end - col;
    bool one = n == 1 || (bytes == d->step && bytes == s->step);    // neighbours on both sides
    return OP(dev, err, rows_copy, .y = to + d->mem + (row - d->of.row) * d->step + (col - d->of.col),
              .x = from + s->mem + (row - s->of.row) * s->step + (col - s->of.col), .n = one ? 1 : (int64_t)n,
              .row_bytes = one ? n * bytes : bytes, .ldy_bytes = d->step, .ldx_bytes = s->step);
}

/* Copy what areas d, at `to`, and s, at `from`, have in common. tensor_at: where the tensor begins that d lies in, if that has several rows. */
static bool common_copy(struct device *dev, const struct area *d, size_t tensor_at, char *to, const struct area *s, const char *from,
                        struct error *err)
{
    struct cells of_d[ROW_PART_MAX], of_s[ROW_PART_MAX];
    size_t base = MIN(d->from, s->from), ld = SIZE_MAX;    // of two runs: one row
    if (area_end(d) <= s->from || area_end(s) <= d->from)
        return true;
    if (d->n_row > 1) {
        base = tensor_at;
        ld = d->ld;
    } else if (s->n_row > 1) {
        base = s->from;
        ld = s->ld;
    }
    int n_d = cells_of(d, base, ld, of_d), n_s = cells_of(s, base, ld, of_s);
    for (int i = 0; i < n_d; i++)
        for (int k = 0; k < n_s; k++)
            if (!cells_copy(dev, &of_d[i], to, &of_s[k], from, err))
                return false;
    return true;
}

/* The first place that may have a byte from `from` on, where no area of several rows begins before and ends after. */
static int64_t extents_find(const struct extents *src, size_t from)
{
    int64_t low = 0, high = src->n;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (src->at[mid].of.from < from)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 && area_end(&src->at[low - 1].of) > from ? low - 1 : low;    // a run that goes over several tensors
}

/* Copy what src has of an area, which begins in a tensor, or after its end, from tensor_at on. */
static bool area_fill(struct device *dev, const struct area *d, size_t tensor_at, char *to, const struct extents *src, struct error *err)
{
    for (int64_t i = extents_find(src, tensor_at); i < src->n && src->at[i].of.from < area_end(d); i++)
        if (!common_copy(dev, d, tensor_at, to, &src->at[i].of, extent_mem(src, i), err))
            return false;
    return true;
}

bool places_fill(const struct bundle *b, const struct places *p, const struct extents src[], struct error *err)
{
    const struct area whole = area_run(0, b->size_bytes);
    for (int q = p->n - 1; q >= 0; q--) {
        const struct place *at = &p->at[q];
        if (!device_enter(at->dev, err) || (!at->piece && !area_fill(at->dev, &whole, 0, at->mem, &src[q], err)))
            return false;
        for (int64_t k = 0; at->piece && k < at->n; k++) {
            const struct piece *x = &at->piece[k];
            if (!area_fill(at->dev, &x->of, b->tensor[x->tensor].at, (char *)at->mem + x->to, &src[q], err))
                return false;
        }
    }
    return true;
}

bool extents_gather(const struct bundle *b, const struct extents *src, struct device *dev, size_t at, size_t n, void *to, struct error *err)
{
    const struct area window = area_run(at, n);
    int64_t low = 0, high = b->n;
    while (low < high) {    // the first tensor that ends after `at`
        int64_t mid = (low + high) / 2;
        if (tensor_end(b, mid) <= at)
            low = mid + 1;
        else
            high = mid;
    }
    size_t from = low < b->n ? MIN(at, b->tensor[low].at) : at;
    return OP(dev, err, mem_fill, .y = to, .size_bytes = n) && area_fill(dev, &window, from, to, src, err);
}

/* A piece whose rows are apart: as many at a time as the buffer holds. */
static bool rows_send(const struct place *at, const struct piece *x, const char *src, char *stage, struct error *err)
{
    int64_t most = MAX((int64_t)(BUNDLE_STAGE / x->of.row_bytes), (int64_t)1);
    for (int64_t r = 0; r < x->of.n_row; r += most) {
        int64_t n = MIN(most, x->of.n_row - r);
        for (int64_t i = 0; i < n; i++)
            memcpy(stage + (size_t)i * x->of.row_bytes, src + x->of.from + (size_t)(r + i) * x->of.ld, x->of.row_bytes);
        if (!mem_copy(at->dev, (char *)at->mem + x->to + (size_t)r * x->of.row_bytes, stage, (size_t)n * x->of.row_bytes, COPY_H2D, err))
            return false;
    }
    return true;
}

bool places_fill_from_host(const struct bundle *b, const struct places *p, const void *src, struct error *err)
{
    size_t stage_bytes = BUNDLE_STAGE;
    for (int q = 0; q < p->n; q++)
        for (int64_t i = 0; p->at[q].piece && i < p->at[q].n; i++)
            stage_bytes = MAX(stage_bytes, p->at[q].piece[i].of.n_row > 1 ? p->at[q].piece[i].of.row_bytes : 0);
    char *stage = p->n > 1 ? malloc(stage_bytes) : NULL;
    bool ok = p->n == 1 || stage || error_set(err, ERR_NO_MEMORY, "no memory for rows of weights");
    for (int q = p->n - 1; q >= 0 && ok; q--) {
        const struct place *at = &p->at[q];
        ok = device_enter(at->dev, err) && (at->piece || mem_copy(at->dev, at->mem, src, b->size_bytes, COPY_H2D, err));
        for (int64_t i = 0; at->piece && i < at->n && ok; i++) {
            const struct piece *x = &at->piece[i];
            ok = x->of.n_row > 1
                     ? rows_send(at, x, src, stage, err)
                     : mem_copy(at->dev, (char *)at->mem + x->to, (const char *)src + x->of.from, x->of.row_bytes, COPY_H2D, err);
        }
        ok = ok && device_sync(at->dev, err);
    }
    free(stage);
    return ok;
}
