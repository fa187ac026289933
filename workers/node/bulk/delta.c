/* What a block holds, by its kind:
 *   SPARSE   n, number of changed words (u32) | plane of distances | plane of codes | plane of wide codes
 *   DENSE2   2 planes, DENSE4 4 planes: byte k of the code of every word
 *   plane    bytes (u32) | bytes as stored (u32) | a zstd frame, or the bytes themselves when both numbers are equal
 * The code of a difference d, a whole number of the word's width, is (d << 1) ^ (d >> 31): 1 -1 2 -2 ... are 2 1 4 3 ... (zigzag). A
 * distance counts the unchanged words before a changed one; 255 means 255 and on. A changed word's code, less 1, is a byte; 255 means
 * that the code is in the plane of wide ones, 2 bytes. */
#include "workers/node/bulk/delta.h"
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include "protocol/base/mix64.h"

#define WORDS (DELTA_BLOCK / 2)
#define SPARSE_MAX (WORDS / 4)            // changed words; more are written as a dense block
#define SAMPLE_BYTES ((size_t)8 << 10)    // of a dense block, to find its words' width
#define LEVEL 1                           // zstd's: planes hold no repetitions, only a skewed distribution
#define ON 255

struct delta_coder {
    ZSTD_CCtx *pack;
    ZSTD_DCtx *unpack;
    uint8_t gap[WORDS], code[WORDS], wide[2 * WORDS];
    uint8_t plane[DELTA_BLOCK];
};

struct delta_coder *delta_coder_new(struct error *err)
{
    struct delta_coder *c = malloc(sizeof *c);
    if (c) {
        c->pack = ZSTD_createCCtx();
        c->unpack = ZSTD_createDCtx();
    }
    if (c && c->pack && c->unpack)
        return c;
    delta_coder_free(c);
    error_set(err, ERR_NO_MEMORY, "no memory for differences of weights");
    return NULL;
}

void delta_coder_free(struct delta_coder *c)
{
    if (!c)
        return;
    ZSTD_freeCCtx(c->pack);
    ZSTD_freeDCtx(c->unpack);
    free(c);
}

uint64_t delta_hash(const void *data, size_t n)
{
    /* Sums side by side, since a multiplication waits for the one before it. */
    uint64_t h[8], w[8];
    for (uint64_t i = 0; i < 8; i++)
        h[i] = (i + 1) * MIX64_STEP;
    const uint8_t *p = data;
    size_t at = 0;
    for (; at + sizeof w <= n; at += sizeof w) {
#pragma GCC unroll 8    // so that the sums stay in registers
        for (size_t i = 0; i < 8; i++) {
            uint64_t x;
            memcpy(&x, p + at + 8 * i, sizeof x);
            x = (h[i] ^ x) * 0x94d049bb133111ebu;
            h[i] = x << 29 | x >> 35;
        }
    }
    memset(w, 0, sizeof w);
    memcpy(w, p + at, n - at);
    uint64_t sum = mix64(n);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        sum = mix64(sum ^ mix64(h[i] ^ w[i]));
    return sum;
}

/* ---- planes ---- */

struct out {
    uint8_t *at, *end;
    bool full;
};

static void out_u32(struct out *o, size_t v)
{
    uint32_t n = (uint32_t)v;
    if ((size_t)(o->end - o->at) < sizeof n) {
        o->full = true;
        return;
    }
    memcpy(o->at, &n, sizeof n);
    o->at += sizeof n;
}

static void plane_write(struct delta_coder *c, struct out *o, const uint8_t *data, size_t n)
{
    uint8_t *head = o->at;
    out_u32(o, n);
    out_u32(o, n);
    if (o->full || n == 0)
        return;
    size_t room = (size_t)(o->end - o->at);
    size_t got = ZSTD_compressCCtx(c->pack, o->at, MIN(room, n - 1), data, n, LEVEL);
    if (!ZSTD_isError(got)) {
        uint32_t stored = (uint32_t)got;
        memcpy(head + 4, &stored, sizeof stored);
        o->at += got;
    } else if (room >= n) {
        memcpy(o->at, data, n);
        o->at += n;
    } else {
        o->full = true;
    }
}

struct in {
    const uint8_t *at, *end;
};

static bool in_u32(struct in *in, uint32_t *v)
{
    if ((size_t)(in->end - in->at) < sizeof *v)
        return false;
    memcpy(v, in->at, sizeof *v);
    in->at += sizeof *v;
    return true;
}

/* Read a plane of at most max bytes into out; *n is how many it has. */
static bool plane_read(struct delta_coder *c, struct in *in, uint8_t *out, size_t max, size_t *n)
{
    uint32_t len, stored;
    if (!in_u32(in, &len) || !in_u32(in, &stored) || len > max || stored > len || stored > (size_t)(in->end - in->at))
        return false;
    if (stored == len)
        memcpy(out, in->at, len);
    else if (ZSTD_decompressDCtx(c->unpack, out, len, in->at, stored) != len)
        return false;
    in->at += stored;
    *n = len;
    return true;
}

/* ---- some words differ ---- */

static inline uint16_t zig16(uint16_t d)
{
    return (uint16_t)(d << 1 ^ (d & 0x8000 ? 0xffff : 0));
}

static inline uint16_t zag16(uint16_t z)
{
    return (uint16_t)(z >> 1 ^ (z & 1 ? 0xffff : 0));
}

static inline uint32_t zig32(uint32_t d)
{
    return d << 1 ^ (d >> 31 ? 0xffffffffu : 0);
}

static inline uint32_t zag32(uint32_t z)
{
    return z >> 1 ^ (z & 1 ? 0xffffffffu : 0);
}

static inline uint16_t word_at(const uint8_t *p, size_t i)
{
    uint16_t w;
    memcpy(&w, p + 2 * i, sizeof w);
    return w;
}

struct changes {
    size_t n, n_gap, n_wide, next;    // next: the word after the last changed one
};

/* Note that word i has changed. */
static inline void change_add(struct delta_coder *c, struct changes *s, size_t i, uint16_t before, uint16_t after)
{
    size_t gap = i - s->next;
    uint16_t z = zig16((uint16_t)(after - before));
    for (; gap >= ON; gap -= ON)
        c->gap[s->n_gap++] = ON;
    c->gap[s->n_gap++] = (uint8_t)gap;
    c->code[s->n++] = (uint8_t)MIN(z - 1, ON);
    if (z - 1 >= ON) {
        memcpy(c->wide + 2 * s->n_wide, &z, sizeof z);
        s->n_wide++;
    }
    s->next = i + 1;
}

/* Find the words that differ. False: they are more than SPARSE_MAX. */
static bool changes_find(struct delta_coder *c, const uint8_t *base, const uint8_t *new, size_t n_word, struct changes *s)
{
    *s = (struct changes){ 0 };
    size_t i = 0;
    for (; i + 16 <= n_word; i += 16) {    // most have not changed at all
        uint64_t a[4], b[4];
        memcpy(a, base + 2 * i, sizeof a);
        memcpy(b, new + 2 * i, sizeof b);
        if (((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3])) == 0)
            continue;
        for (size_t k = 0; k < 4; k++)
            for (uint64_t x = a[k] ^ b[k]; x;) {
                int shift = __builtin_ctzll(x) & ~15;
                change_add(c, s, i + 4 * k + (size_t)shift / 16, (uint16_t)(a[k] >> shift), (uint16_t)(b[k] >> shift));
                x &= ~((uint64_t)0xffff << shift);
            }
        if (s->n + 16 > SPARSE_MAX)
            return false;
    }
    for (; i < n_word; i++)
        if (word_at(base, i) != word_at(new, i))
            change_add(c, s, i, word_at(base, i), word_at(new, i));
    return true;
}

static bool sparse_apply(const struct delta_coder *c, const struct changes *s, uint8_t *out, size_t n_word)
{
    size_t at = 0, gap = 0, wide = 0;
    for (size_t k = 0; k < s->n; k++) {
        uint8_t step = ON;
        while (step == ON) {
            if (gap == s->n_gap)
                return false;
            step = c->gap[gap++];
            at += step;
        }
        uint16_t z = (uint16_t)(c->code[k] + 1), w;
        if (c->code[k] == ON) {
            if (wide == s->n_wide)
                return false;
            memcpy(&z, c->wide + 2 * wide++, sizeof z);
        }
        if (at >= n_word)
            return false;
        memcpy(&w, out + 2 * at, sizeof w);
        w = (uint16_t)(w + zag16(z));
        memcpy(out + 2 * at, &w, sizeof w);
        at++;
    }
    return gap == s->n_gap && wide == s->n_wide;
}

/* ---- most words differ ---- */

/* Fill planes with the codes of n_word words. Inlined for each width: the loops are then made of vector instructions. */
static inline __attribute__((always_inline)) void planes_fill(uint8_t *plane, const uint8_t *base, const uint8_t *new, size_t n_word,
                                                              size_t width)
{
    for (size_t i = 0; i < n_word; i++) {
        uint32_t a = 0, b = 0;
        memcpy(&a, base + width * i, width);
        memcpy(&b, new + width *i, width);
        uint32_t z = width == 2 ? zig16((uint16_t)(b - a)) : zig32(b - a);
        for (size_t k = 0; k < width; k++)
            plane[k * n_word + i] = (uint8_t)(z >> 8 * k);
    }
}

static inline __attribute__((always_inline)) void planes_apply(const uint8_t *plane, const uint8_t *base, uint8_t *out, size_t n_word,
                                                               size_t width)
{
    for (size_t i = 0; i < n_word; i++) {
        uint32_t a = 0, z = 0;
        memcpy(&a, base + width * i, width);
        for (size_t k = 0; k < width; k++)
            z |= (uint32_t)plane[k * n_word + i] << 8 * k;
        a += width == 2 ? zag16((uint16_t)z) : zag32(z);
        memcpy(out + width * i, &a, width);
    }
}

static void dense_write(struct delta_coder *c, struct out *o, const uint8_t *base, const uint8_t *new, size_t n, size_t width)
{
    size_t n_word = n / width;
    if (width == 2)
        planes_fill(c->plane, base, new, n_word, 2);
    else
        planes_fill(c->plane, base, new, n_word, 4);
    for (size_t k = 0; k < width && !o->full; k++)
        plane_write(c, o, c->plane + k * n_word, n_word);
}

static bool dense_read(struct delta_coder *c, struct in *in, const uint8_t *base, uint8_t *out, size_t n, size_t width)
{
    size_t n_word = n / width, got;
    for (size_t k = 0; k < width; k++)
        if (!plane_read(c, in, c->plane + k * n_word, n_word, &got) || got != n_word)
            return false;
    if (base == out && width == 2)
        planes_apply(c->plane, out, out, n_word, 2);    // as vectors, which two pointers that may be one are not
    else if (base == out)
        planes_apply(c->plane, out, out, n_word, 4);
    else if (width == 2)
        planes_apply(c->plane, base, out, n_word, 2);
    else
        planes_apply(c->plane, base, out, n_word, 4);
    return in->at == in->end;
}

/* Bytes that a dense block of these first bytes takes. */
static size_t dense_try(struct delta_coder *c, const uint8_t *base, const uint8_t *new, size_t n, size_t width, uint8_t *out)
{
    struct out o = { .at = out, .end = out + n };
    dense_write(c, &o, base, new, n, width);
    return o.full ? n : (size_t)(o.at - out);
}

/* ---- a block ---- */

static size_t dense_encode(struct delta_coder *c, const uint8_t *base, const uint8_t *new, size_t n, uint8_t *out, enum delta_kind *kind)
{
    size_t sample = MIN(n, SAMPLE_BYTES) / 4 * 4;
    size_t two = dense_try(c, base, new, sample, 2, out), four = n % 4 == 0 ? dense_try(c, base, new, sample, 4, out) : sample;
    if (MIN(two, four) > sample - sample / 16)
        return n;    // not worth reading it again
    *kind = four < two ? DELTA_DENSE4 : DELTA_DENSE2;
    struct out o = { .at = out, .end = out + n };
    dense_write(c, &o, base, new, n, four < two ? 4 : 2);
    return o.full ? n : (size_t)(o.at - out);
}

size_t delta_encode(struct delta_coder *c, const void *base, const void *new, size_t n, void *out, enum delta_kind *kind)
{
    struct changes s;
    size_t len = n;
    BUG_IF(n > DELTA_BLOCK, "a block of %zu bytes", n);
    if (base && n % 2 == 0 && changes_find(c, base, new, n / 2, &s)) {
        struct out o = { .at = out, .end = (uint8_t *)out + n };
        *kind = s.n > 0 ? DELTA_SPARSE : DELTA_SAME;
        if (s.n == 0)
            return 0;
        out_u32(&o, s.n);
        plane_write(c, &o, c->gap, s.n_gap);
        plane_write(c, &o, c->code, s.n);
        plane_write(c, &o, c->wide, 2 * s.n_wide);
        len = o.full ? n : (size_t)(o.at - (uint8_t *)out);
    } else if (base && n % 2 == 0 && n > 0) {
        len = dense_encode(c, base, new, n, out, kind);
    }
    if (len < n)
        return len;
    *kind = DELTA_RAW;
    return 0;
}

static bool sparse_decode(struct delta_coder *c, struct in *in, uint8_t *out, size_t n)
{
    struct changes s = { 0 };
    uint32_t want;
    size_t wide;
    if (n % 2 || !in_u32(in, &want) || !plane_read(c, in, c->gap, sizeof c->gap, &s.n_gap)
        || !plane_read(c, in, c->code, sizeof c->code, &s.n) || !plane_read(c, in, c->wide, sizeof c->wide, &wide))
        return false;
    s.n_wide = wide / 2;
    return s.n == want && wide % 2 == 0 && in->at == in->end && sparse_apply(c, &s, out, n / 2);
}

bool delta_decode(struct delta_coder *c, enum delta_kind kind, const void *data, size_t len, const void *base, void *out, size_t n,
                  struct error *err)
{
    struct in in = { .at = data, .end = (const uint8_t *)data + len };
    bool ok = false;
    BUG_IF(n > DELTA_BLOCK, "a block of %zu bytes", n);
    if (kind != DELTA_RAW && !base)
        return error_set(err, ERR_DATA, "a block of weights is given as differences, but there is nothing to add them to");
    switch (kind) {
    case DELTA_RAW:
        if ((ok = len == n))
            memcpy(out, data, n);
        break;
    case DELTA_SAME:
        if ((ok = len == 0) && out != base)
            memcpy(out, base, n);
        break;
    case DELTA_SPARSE:
        if (out != base)
            memcpy(out, base, n);
        ok = sparse_decode(c, &in, out, n);
        break;
    case DELTA_DENSE2: ok = n % 2 == 0 && dense_read(c, &in, base, out, n, 2); break;
    case DELTA_DENSE4: ok = n % 4 == 0 && dense_read(c, &in, base, out, n, 4); break;
    case DELTA_KIND_COUNT: break;
    }
    return ok || error_set(err, ERR_DATA, "a block of %zu bytes of weights cannot be read from %zu bytes of kind %d", n, len, (int)kind);
}
