#include "workers/engine/data/parquet/decode.h"
#include <stdlib.h>
#include <string.h>

static uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int64_t le64(const uint8_t *p)
{
    return (int64_t)((uint64_t)le32(p) | (uint64_t)le32(p + 4) << 32);
}

static bool varint(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 70 && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        *out |= shift < 64 ? (uint64_t)(b & 0x7F) << shift : 0;
        if (!(b & 0x80))
            return true;
    }
    return false;
}

/* width bits from bit *at on, lowest first; false where the bytes end. */
static bool bits_read(const uint8_t *p, const uint8_t *end, uint64_t *at, int width, uint64_t *out)
{
    uint64_t v = 0, byte = *at / 8, n = (uint64_t)(end - p);
    int shift = (int)(*at % 8);
    *out = 0;
    if (width == 0)
        return true;
    if ((*at + (uint64_t)width + 7) / 8 > n)
        return false;
    for (int got = -shift; got < width; got += 8, byte++) {
        uint64_t b = p[byte];
        v |= got < 0 ? b >> -got : b << got;
    }
    *at += (uint64_t)width;
    *out = width == 64 ? v : v & ((1ull << width) - 1);
    return true;
}

void hybrid_init(struct hybrid *h, const uint8_t *p, const uint8_t *end, int width)
{
    *h = (struct hybrid){ .p = p, .end = end, .width = width };
}

static bool hybrid_run(struct hybrid *h)
{
    uint64_t head;
    if (!varint(&h->p, h->end, &head))
        return false;
    uint64_t rest = (uint64_t)(h->end - h->p);
    h->is_packed = head & 1;
    if (h->is_packed) {    // groups of 8; the last one may be cut short where it only pads
        uint64_t groups = head >> 1;
        if (groups > rest)
            return false;
        uint64_t len = MIN(groups * (uint64_t)h->width, rest);
        h->left = groups * 8;
        h->packed = h->p;
        h->packed_end = h->p += len;
        h->bit = 0;
        return true;
    }
    uint64_t n = (uint64_t)(h->width + 7) / 8;
    if (n > rest)
        return false;
    h->left = head >> 1;
    h->value = 0;
    for (uint64_t i = 0; i < n; i++)
        h->value |= (uint32_t)h->p[i] << (8 * i);
    h->p += n;
    return h->width == 32 || h->value >> h->width == 0;
}

bool hybrid_next(struct hybrid *h, uint32_t *value)
{
    uint64_t v;
    *value = 0;
    if (h->width == 0)
        return true;
    while (h->left == 0)
        if (!hybrid_run(h))
            return false;
    h->left--;
    if (!h->is_packed) {
        *value = h->value;
        return true;
    }
    bool ok = bits_read(h->packed, h->packed_end, &h->bit, h->width, &v);
    *value = (uint32_t)v;
    return ok;
}

bool delta_init(struct delta *d, const uint8_t *p, const uint8_t *end)
{
    uint64_t block, first;
    *d = (struct delta){ .p = p, .end = end, .is_first = true };
    if (!varint(&d->p, end, &block) || !varint(&d->p, end, &d->n_mini) || !varint(&d->p, end, &d->n_left) || !varint(&d->p, end, &first))
        return false;
    d->last = first >> 1 ^ (0 - (first & 1));
    if (block == 0 || block > 1 << 24 || d->n_mini == 0 || d->n_mini > block || block % d->n_mini != 0)
        return false;
    d->per_mini = block / d->n_mini;
    d->mini = d->n_mini;
    return d->per_mini % 8 == 0;    // 32 by the specification; 8 keeps miniblocks at whole bytes
}

static bool delta_mini(struct delta *d)
{
    if (d->mini == d->n_mini) {
        uint64_t zigzag;
        if (!varint(&d->p, d->end, &zigzag) || (uint64_t)(d->end - d->p) < d->n_mini)
            return false;
        d->min_delta = zigzag >> 1 ^ (0 - (zigzag & 1));
        d->width = d->p;
        d->p += d->n_mini;
        d->mini = 0;
    }
    int width = d->width[d->mini++];
    if (width > 64)
        return false;
    uint64_t len = MIN(d->per_mini / 8 * (uint64_t)width, (uint64_t)(d->end - d->p));    // the last may be cut short
    d->packed = d->p;
    d->packed_end = d->p += len;
    d->bit = 0;
    d->mini_left = d->per_mini;
    return true;
}

bool delta_next(struct delta *d, int64_t *value)
{
    uint64_t step;
    if (d->n_left == 0)
        return false;
    d->n_left--;
    if (d->is_first) {
        d->is_first = false;
        *value = (int64_t)d->last;
        return true;
    }
    if (d->mini_left == 0 && !delta_mini(d))
        return false;
    d->mini_left--;
    if (!bits_read(d->packed, d->packed_end, &d->bit, d->width[d->mini - 1], &step))
        return false;
    d->last += d->min_delta + step;
    *value = (int64_t)d->last;
    return true;
}

/* Where the deltas end, whose values are read once for that; they are at most n. */
static const uint8_t *delta_end(const struct delta *from, uint64_t n)
{
    struct delta d = *from;
    int64_t v;
    if (d.n_left > n)
        return NULL;
    while (d.n_left > 0)
        if (!delta_next(&d, &v))
            return NULL;
    return d.p;
}

static uint32_t plain_size(enum parquet_type type, uint32_t type_len)
{
    switch (type) {
    case TYPE_INT32:
    case TYPE_FLOAT: return 4;
    case TYPE_INT64:
    case TYPE_DOUBLE: return 8;
    case TYPE_INT96: return 12;
    case TYPE_FIXED: return type_len;
    case TYPE_BOOLEAN:
    case TYPE_BYTES: return 0;
    }
    return 0;
}

static void number_set(struct parquet_value *v, enum parquet_type type, const uint8_t *p, uint32_t len)
{
    v->p = p;
    v->len = len;
    v->i = type == TYPE_INT32 ? (int32_t)le32(p) : type == TYPE_INT64 ? le64(p) : 0;
}

static bool plain_next(const uint8_t **p, const uint8_t *end, enum parquet_type type, uint32_t type_len, struct parquet_value *out)
{
    size_t rest = (size_t)(end - *p);
    uint32_t n = plain_size(type, type_len);
    if (type == TYPE_BYTES) {
        if (rest < 4 || (n = le32(*p)) > rest - 4)
            return false;
        *p += 4;
    } else if (n > rest) {
        return false;
    }
    number_set(out, type, *p, n);
    *p += n;
    return true;
}

bool values_supported(enum parquet_type type, uint32_t type_len, int encoding)
{
    bool is_int = type == TYPE_INT32 || type == TYPE_INT64;
    switch (encoding) {
    case ENCODING_PLAIN: return true;
    case ENCODING_PLAIN_DICTIONARY:
    case ENCODING_RLE_DICTIONARY: return type != TYPE_BOOLEAN;
    case ENCODING_RLE: return type == TYPE_BOOLEAN;
    case ENCODING_DELTA_BINARY_PACKED: return is_int;
    case ENCODING_DELTA_LENGTH: return type == TYPE_BYTES;
    case ENCODING_DELTA_BYTES: return type == TYPE_BYTES || type == TYPE_FIXED;
    case ENCODING_BYTE_STREAM_SPLIT:
        return is_int || type == TYPE_FLOAT || type == TYPE_DOUBLE || (type == TYPE_FIXED && type_len > 0 && type_len <= 64);
    default: return false;
    }
}

bool values_begin(struct values *v, enum parquet_encoding encoding, const uint8_t *p, const uint8_t *end, uint64_t n)
{
    v->encoding = encoding;
    v->p = p;
    v->end = end;
    v->bit = 0;
    v->i = 0;
    buf_clear(&v->last);
    v->is_empty = p == end;    // nothing but nulls: some writers then leave out even what comes before the values
    if (v->is_empty)
        return true;
    switch (encoding) {
    case ENCODING_PLAIN_DICTIONARY:
    case ENCODING_RLE_DICTIONARY:
        if (*p > 32)
            return false;
        hybrid_init(&v->hybrid, p + 1, end, *p);
        return true;
    case ENCODING_RLE:
        if (end - p < 4 || le32(p) > (size_t)(end - p - 4))
            return false;
        hybrid_init(&v->hybrid, p + 4, p + 4 + le32(p), 1);
        return true;
    case ENCODING_DELTA_BINARY_PACKED: return delta_init(&v->delta, p, end);
    case ENCODING_DELTA_LENGTH: return delta_init(&v->delta, p, end) && (v->p = delta_end(&v->delta, n)) != NULL;
    case ENCODING_DELTA_BYTES: {
        const uint8_t *second = delta_init(&v->delta, p, end) ? delta_end(&v->delta, n) : NULL;
        return second && delta_init(&v->suffix, second, end) && (v->p = delta_end(&v->suffix, n)) != NULL;
    }
    case ENCODING_BYTE_STREAM_SPLIT: {
        uint32_t size = plain_size(v->type, v->type_len);
        v->n = (uint64_t)(end - p) / size;
        return (uint64_t)(end - p) % size == 0;
    }
    case ENCODING_PLAIN:
    case ENCODING_BIT_PACKED: return true;
    }
    return false;
}

/* The next len bytes of text, for the two encodings that keep lengths apart. */
static bool text_take(struct values *v, int64_t len, const uint8_t **at)
{
    if (len < 0 || len > v->end - v->p)
        return false;
    *at = v->p;
    v->p += len;
    return true;
}

static bool delta_bytes_next(struct values *v, struct parquet_value *out)
{
    int64_t prefix, len;
    const uint8_t *rest;
    if (!delta_next(&v->delta, &prefix) || !delta_next(&v->suffix, &len) || prefix < 0 || (uint64_t)prefix > v->last.len
        || !text_take(v, len, &rest))
        return false;
    v->last.len = (size_t)prefix;
    if (!buf_add(&v->last, rest, (size_t)len) || v->last.len > UINT32_MAX)
        return false;
    out->p = (const uint8_t *)buf_text(&v->last);
    out->len = (uint32_t)v->last.len;
    return v->type != TYPE_FIXED || out->len == v->type_len;
}

static bool split_next(struct values *v, struct parquet_value *out)
{
    uint32_t size = plain_size(v->type, v->type_len);
    if (v->i == v->n)
        return false;
    for (uint32_t k = 0; k < size; k++)
        v->joined[k] = v->p[k * v->n + v->i];
    v->i++;
    number_set(out, v->type, v->joined, size);
    return true;
}

static bool boolean_next(struct values *v, struct parquet_value *out)
{
    uint64_t bit;
    uint32_t b;
    if (v->encoding == ENCODING_RLE) {
        if (!hybrid_next(&v->hybrid, &b))
            return false;
        out->i = b;
        return true;
    }
    bool ok = bits_read(v->p, v->end, &v->bit, 1, &bit);
    out->i = (int64_t)bit;
    return ok;
}

bool values_next(struct values *v, struct parquet_value *out)
{
    uint32_t index;
    int64_t len;
    *out = (struct parquet_value){ 0 };
    if (v->is_empty)
        return false;
    if (v->type == TYPE_BOOLEAN)
        return boolean_next(v, out);
    switch (v->encoding) {
    case ENCODING_PLAIN: return plain_next(&v->p, v->end, v->type, v->type_len, out);
    case ENCODING_PLAIN_DICTIONARY:
    case ENCODING_RLE_DICTIONARY:
        if (!v->dictionary || !hybrid_next(&v->hybrid, &index) || index >= v->dictionary->n)
            return false;
        *out = v->dictionary->value[index];
        return true;
    case ENCODING_DELTA_BINARY_PACKED:
        if (!delta_next(&v->delta, &out->i))
            return false;
        if (v->type == TYPE_INT32)
            out->i = (int32_t)(uint32_t)(uint64_t)out->i;
        return true;
    case ENCODING_DELTA_LENGTH:
        if (!delta_next(&v->delta, &len) || !text_take(v, len, &out->p))
            return false;
        out->len = (uint32_t)len;
        return true;
    case ENCODING_DELTA_BYTES: return delta_bytes_next(v, out);
    case ENCODING_BYTE_STREAM_SPLIT: return split_next(v, out);
    case ENCODING_RLE:
    case ENCODING_BIT_PACKED: return false;
    }
    return false;
}

void values_release(struct values *v)
{
    buf_release(&v->last);
}

bool dictionary_fill(struct dictionary *d, enum parquet_type type, uint32_t type_len, uint64_t n)
{
    const uint8_t *p = (const uint8_t *)buf_text(&d->bytes), *end = p + d->bytes.len;
    uint32_t least = type == TYPE_BYTES ? 4 : plain_size(type, type_len);
    free(d->value);
    d->value = NULL;
    d->n = 0;
    if (type == TYPE_BOOLEAN || least == 0 || n > d->bytes.len / least)
        return n == 0;
    if (n > 0 && !(d->value = malloc(n * sizeof *d->value)))
        return false;
    for (; d->n < n; d->n++)
        if (!plain_next(&p, end, type, type_len, &d->value[d->n]))
            return false;
    return true;
}

void dictionary_release(struct dictionary *d)
{
    buf_release(&d->bytes);
    free(d->value);
    *d = (struct dictionary){ 0 };
}
