/* Invariants
 *  1. token[id].len > 0 exactly for ids that bpe_token_add was given; ids in slot, merge and byte_id are such ids.
 *  2. merge holds a pair at most once, and the two hashes are never more than half full, so probing ends.
 *  3. A piece of n bytes needs at most n symbols, whatever the merges: memory is linear, time O(n log n) beyond SMALL
 * symbols and O(n^2) with n <= SMALL below. */
#include "workers/engine/text/bpe.h"
#include <stdlib.h>
#include <string.h>
#include "protocol/base/macros.h"
#include "workers/engine/text/unicode.h"

#define SMALL 48    // symbols up to which rescanning all ranks beats a heap (measured on English and code)
#define NO_RANK UINT32_MAX

static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t p = (__uint128_t)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t bpe_hash_words(uint64_t lo, uint64_t hi, size_t len, uint64_t seed)
{
    return mix(lo ^ seed ^ 0x9E3779B97F4A7C15u, hi ^ (len * 0xD6E8FEB86659FD93u) ^ 0xA0761D6478BD642Fu);
}

uint64_t bpe_hash(const void *bytes, size_t len, uint64_t seed)
{
    const uint8_t *p = bytes;
    uint64_t w[2] = { 0, 0 }, h = seed;
    size_t left = len;
    for (; left > 16; left -= 16, p += 16) {
        memcpy(w, p, 16);
        h = bpe_hash_words(w[0], w[1], 16, h);
    }
    w[0] = w[1] = 0;
    memcpy(w, p, left);
    return bpe_hash_words(w[0], w[1], len, h);
}

static uint32_t table_mask(uint64_t n)
{
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size - 1;
}

bool bpe_init(struct bpe *b, int32_t n_id, int32_t n_token, uint32_t n_merge, struct error *err)
{
    b->n_id = n_id;
    b->slot_mask = table_mask((uint64_t)n_token);
    b->merge_mask = table_mask(n_merge);
    b->token = calloc((size_t)n_id + 1, sizeof b->token[0]);
    b->whole = calloc((size_t)n_id + 1, 1);
    b->slot = calloc((size_t)b->slot_mask + 1, sizeof b->slot[0]);
    b->merge = malloc(((size_t)b->merge_mask + 1) * sizeof b->merge[0]);
    if (!b->token || !b->whole || !b->slot || !b->merge)
        return error_set(err, ERR_NO_MEMORY, "no memory for a vocabulary of %d tokens", n_token);
    memset(b->merge, 0xFF, ((size_t)b->merge_mask + 1) * sizeof b->merge[0]);
    for (int i = 0; i < 256; i++)
        b->byte_id[i] = b->fallback[i] = -1;
    b->unk = -1;
    return true;
}

void bpe_release(struct bpe *b)
{
    free(b->bytes);
    free(b->token);
    free((void *)b->whole);
    free(b->slot);
    free(b->merge);
    *b = (struct bpe){ 0 };
}

static int32_t slot_find(const struct bpe *b, const void *bytes, size_t len, uint64_t hash, bool raw)
{
    uint32_t tag = (uint32_t)(hash >> 32);
    for (uint32_t i = (uint32_t)hash & b->slot_mask; b->slot[i].id1; i = (i + 1) & b->slot_mask) {
        if (b->slot[i].tag != tag)
            continue;
        const struct bpe_token *t = &b->token[b->slot[i].id1 - 1];
        if (t->len == len && t->raw == raw && memcmp(b->bytes + t->at, bytes, len) == 0)
            return (int32_t)(b->slot[i].id1 - 1);
    }
    return -1;
}

int32_t bpe_find_hashed(const struct bpe *b, const void *bytes, size_t len, uint64_t hash)
{
    return len > BPE_TOKEN_MAX ? -1 : slot_find(b, bytes, len, hash, false);
}

int32_t bpe_find(const struct bpe *b, const void *bytes, size_t len, bool raw)
{
    return len == 0 || len > BPE_TOKEN_MAX ? -1 : slot_find(b, bytes, len, bpe_hash(bytes, len, b->seed), raw);
}

bool bpe_token_add(struct bpe *b, int32_t id, const void *bytes, size_t len, bool raw, struct error *err)
{
    if (id < 0 || id >= b->n_id || len == 0 || len > BPE_TOKEN_MAX)
        return error_set(err, ERR_DATA, "a token of %zu bytes with id %d cannot be", len, id);
    if (b->token[id].len)
        return error_set(err, ERR_DATA, "id %d is given twice", id);
    uint64_t hash = bpe_hash(bytes, len, b->seed);
    if (slot_find(b, bytes, len, hash, raw) >= 0)
        return error_set(err, ERR_DATA, "the token with id %d already exists with another id", id);
    if (b->n_bytes + len > b->cap_bytes) {
        size_t cap = MAX(b->cap_bytes * 2, (size_t)1 << 16);
        cap = MAX(cap, b->n_bytes + len);
        char *more = cap > UINT32_MAX ? NULL : realloc(b->bytes, cap);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory for the vocabulary's text");
        b->bytes = more;
        b->cap_bytes = cap;
    }
    memcpy(b->bytes + b->n_bytes, bytes, len);
    b->token[id] = (struct bpe_token){ .at = (uint32_t)b->n_bytes, .len = (uint16_t)len, .raw = raw };
    b->n_bytes += len;
    b->n_token++;
    uint32_t i = (uint32_t)hash & b->slot_mask;
    while (b->slot[i].id1)
        i = (i + 1) & b->slot_mask;
    b->slot[i] = (struct bpe_slot){ .tag = (uint32_t)(hash >> 32), .id1 = (uint32_t)id + 1 };
    if (len == 1 && !raw)
        b->byte_id[*(const uint8_t *)bytes] = id;
    return true;
}

static uint32_t pair_slot(const struct bpe *b, uint64_t pair)
{
    return (uint32_t)(mix(pair ^ b->seed, 0x9E3779B97F4A7C15u)) & b->merge_mask;
}

static const struct bpe_merge *merge_find(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t i = pair_slot(b, pair); b->merge[i].pair != UINT64_MAX; i = (i + 1) & b->merge_mask)
        if (b->merge[i].pair == pair)
            return &b->merge[i];
    return NULL;
}

bool bpe_merge_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id, struct error *err)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = pair_slot(b, pair);
    while (b->merge[i].pair != UINT64_MAX && b->merge[i].pair != pair)
        i = (i + 1) & b->merge_mask;
    if (b->merge[i].pair != pair && b->n_merge > b->merge_mask / 2)
        return error_set(err, ERR_FULL, "more merges than were announced");
    b->n_merge += b->merge[i].pair != pair;
    b->merge[i] = (struct bpe_merge){ .pair = pair, .rank = rank, .id = (uint32_t)id };
    return true;
}

/* Merge n <= SMALL symbols in place by looking for the lowest rank again and again. Returns how many are left. */
static int merge_small(const struct bpe *b, int32_t *sym, int n)
{
    uint32_t rank[SMALL];
    uint32_t made[SMALL];
    for (int i = 0; i + 1 < n; i++) {
        const struct bpe_merge *m = merge_find(b, sym[i], sym[i + 1]);
        rank[i] = m ? m->rank : NO_RANK;
        made[i] = m ? m->id : 0;
    }
    while (n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == NO_RANK)
            break;
        sym[best] = (int32_t)made[best];
        n--;
        memmove(sym + best + 1, sym + best + 2, (size_t)(n - best - 1) * sizeof sym[0]);
        if (n - best - 1 > 0) {    // the rank after the removed one
            memmove(rank + best, rank + best + 1, (size_t)(n - best - 1) * sizeof rank[0]);
            memmove(made + best, made + best + 1, (size_t)(n - best - 1) * sizeof made[0]);
        }
        for (int i = MAX(best - 1, 0); i <= best && i + 1 < n; i++) {
            const struct bpe_merge *m = merge_find(b, sym[i], sym[i + 1]);
            rank[i] = m ? m->rank : NO_RANK;
            made[i] = m ? m->id : 0;
        }
    }
    return n;
}

struct link {
    int32_t id;            // -1: merged into the one before
    int32_t prev, next;    // -1: none
};
struct entry {
    uint32_t rank;
    int32_t left;    // link
    int32_t id;      // what the pair merged into when the entry was made: if that has changed, the entry is stale
};

static bool entry_before(const struct entry *a, const struct entry *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void heap_push(struct entry *heap, int64_t *n, struct entry e)
{
    int64_t i = (*n)++;
    for (; i > 0 && entry_before(&e, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = e;
}

static struct entry heap_pop(struct entry *heap, int64_t *n)
{
    struct entry top = heap[0], e = heap[--*n];
    int64_t i = 0;
    for (int64_t c; (c = 2 * i + 1) < *n; i = c) {
        if (c + 1 < *n && entry_before(&heap[c + 1], &heap[c]))
            c++;
        if (!entry_before(&heap[c], &e))
            break;
        heap[i] = heap[c];
    }
    heap[i] = e;
    return top;
}

static void pair_push(const struct bpe *b, const struct link *link, int32_t left, struct entry *heap, int64_t *n_heap)
{
    const struct bpe_merge *m = merge_find(b, link[left].id, link[link[left].next].id);
    if (m)
        heap_push(heap, n_heap, (struct entry){ .rank = m->rank, .left = left, .id = (int32_t)m->id });
}

/* Each merge removes a symbol and adds at most two entries: a heap of 3 n is enough. Returns how many symbols are left,
 * -1: no memory. */
static int64_t merge_large(const struct bpe *b, int32_t *sym, int64_t n, struct bpe_scratch *s)
{
    size_t need = (size_t)n * (sizeof(struct link) + 3 * sizeof(struct entry));
    if (!bpe_scratch_room(s, need))
        return -1;
    struct link *link = s->mem;
    struct entry *heap = (struct entry *)(link + n);
    int64_t n_heap = 0;
    for (int64_t i = 0; i < n; i++)
        link[i] = (struct link){ sym[i], (int32_t)(i - 1), i + 1 < n ? (int32_t)(i + 1) : -1 };
    for (int64_t i = 0; i + 1 < n; i++)
        pair_push(b, link, (int32_t)i, heap, &n_heap);
    while (n_heap > 0) {
        struct entry e = heap_pop(heap, &n_heap);
        struct link *l = &link[e.left];
        if (l->id < 0 || l->next < 0)
            continue;
        const struct bpe_merge *m = merge_find(b, l->id, link[l->next].id);
        if (!m || (int32_t)m->id != e.id)
            continue;
        struct link *r = &link[l->next];
        l->id = e.id;
        r->id = -1;
        l->next = r->next;
        if (l->next >= 0)
            link[l->next].prev = e.left;
        if (l->prev >= 0)
            pair_push(b, link, l->prev, heap, &n_heap);
        if (l->next >= 0)
            pair_push(b, link, e.left, heap, &n_heap);
    }
    int64_t left = 0;
    for (int64_t i = 0; i >= 0; i = link[i].next)
        sym[left++] = link[i].id;
    return left;
}

int64_t bpe_unknown(const struct bpe *b, const uint8_t *text, size_t len, int32_t *out)
{
    bool bytes = b->byte_fallback;
    for (size_t i = 0; bytes && i < len; i++)
        bytes = b->fallback[text[i]] >= 0;
    for (size_t i = 0; bytes && i < len; i++)
        out[i] = b->fallback[text[i]];
    if (bytes)
        return (int64_t)len;
    out[0] = b->unk;
    return b->unk < 0 ? -1 : 1;
}

/* The symbols of a piece of text before merging. */
static int64_t characters(const struct bpe *b, const uint8_t *piece, size_t len, int32_t *out)
{
    int64_t n = 0;
    int size;
    bool was_unk = false;
    for (size_t at = 0; at < len; at += (size_t)size) {
        utf8_at(piece + at, &size);
        int32_t id = size == 1 ? b->byte_id[piece[at]] : bpe_find(b, piece + at, (size_t)size, false);
        int64_t made = 1;
        if (id >= 0)
            out[n] = id;
        else
            made = MAX(bpe_unknown(b, piece + at, (size_t)size, out + n), 0);
        bool unk = id < 0 && made == 1 && out[n] == b->unk;
        n += unk && was_unk && b->fuse_unk ? 0 : made;
        was_unk = unk;
    }
    return n;
}

static int64_t piece_merge(const struct bpe *b, const uint8_t *piece, size_t len, int32_t *out, struct bpe_scratch *s)
{
    int64_t n = b->text ? characters(b, piece, len, out) : 0;
    for (size_t i = 0; i < len && !b->text; i++)
        if (b->byte_id[piece[i]] >= 0)    // a byte the vocabulary lacks is dropped, as tokenizers does without unk
            out[n++] = b->byte_id[piece[i]];
    if (n < 2)
        return n;
    return n <= SMALL ? merge_small(b, out, (int)n) : merge_large(b, out, n, s);
}

int64_t bpe_encode(const struct bpe *b, const uint8_t *piece, size_t len, uint64_t hash, int32_t *out, struct bpe_scratch *s)
{
    int32_t id = bpe_find_hashed(b, piece, len, hash);
    if (id >= 0) {
        if (b->ignore_merges || b->whole[id] == 1)
            return out[0] = id, 1;
        if (b->whole[id] == 0) {    // asked for the first time; two threads that ask at once compute the same answer
            int64_t n = piece_merge(b, piece, len, out, s);
            if (n >= 0)
                b->whole[id] = n == 1 && out[0] == id ? 1 : 2;
            return n;
        }
    }
    return piece_merge(b, piece, len, out, s);
}

bool bpe_scratch_room(struct bpe_scratch *s, size_t need)
{
    if (need <= s->mem_bytes)
        return true;
    void *mem = realloc(s->mem, need);
    if (!mem)
        return false;
    s->mem = mem;
    s->mem_bytes = need;
    return true;
}

void bpe_scratch_release(struct bpe_scratch *s)
{
    free(s->mem);
    *s = (struct bpe_scratch){ 0 };
}
