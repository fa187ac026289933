/* decode.h - Parquet's encodings, one value after the other
 *
 * Decoders read from bytes that the caller keeps and hold no arrays: a run of 2^31 equal values costs what one costs. All
 * return false for damaged data, and the caller says where. Source: parquet-format's Encodings.md. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"

/* The hybrid of runs and bit-packed groups of 8: levels, dictionary indexes, booleans. */
struct hybrid {
    const uint8_t *p, *end;
    int width;        // bits of a value, 0 to 32
    uint64_t left;    // values left in the run or the packed groups
    bool is_packed;
    uint32_t value;    // of the run
    const uint8_t *packed, *packed_end;
    uint64_t bit;    // next one in packed
};
void hybrid_init(struct hybrid *h, const uint8_t *p, const uint8_t *end, int width);
bool hybrid_next(struct hybrid *h, uint32_t *value);

/* DELTA_BINARY_PACKED. */
struct delta {
    const uint8_t *p, *end;      // after the last miniblock begun
    uint64_t n_left;             // values not given yet
    uint64_t per_mini;           // values in a miniblock
    uint64_t n_mini;             // miniblocks in a block
    uint64_t mini;               // next one of the block
    uint64_t mini_left;          // deltas left in the present one
    const uint8_t *width;        // (n_mini) bits of each
    uint64_t min_delta, last;    // sums wrap
    bool is_first;
    const uint8_t *packed, *packed_end;
    uint64_t bit;
};
bool delta_init(struct delta *d, const uint8_t *p, const uint8_t *end);
bool delta_next(struct delta *d, int64_t *value);

/* How a page's values are written; numbers of parquet.thrift's Encoding. */
enum parquet_encoding {
    ENCODING_PLAIN = 0,
    ENCODING_PLAIN_DICTIONARY = 2,
    ENCODING_RLE = 3,
    ENCODING_BIT_PACKED = 4,
    ENCODING_DELTA_BINARY_PACKED = 5,
    ENCODING_DELTA_LENGTH = 6,
    ENCODING_DELTA_BYTES = 7,
    ENCODING_RLE_DICTIONARY = 8,
    ENCODING_BYTE_STREAM_SPLIT = 9,
};
/* Numbers of parquet.thrift's Type. */
enum parquet_type {
    TYPE_BOOLEAN,
    TYPE_INT32,
    TYPE_INT64,
    TYPE_INT96,
    TYPE_FLOAT,
    TYPE_DOUBLE,
    TYPE_BYTES,
    TYPE_FIXED,
};
/* A value: booleans and integers in i, the others' bytes (little-endian numbers) in p until the next value is read. */
struct parquet_value {
    int64_t i;
    const uint8_t *p;
    uint32_t len;
};
/* What a column chunk's dictionary page holds. */
struct dictionary {
    struct buf bytes;               // the page
    struct parquet_value *value;    // (n), pointing into bytes
    uint32_t n;
};
/* A page's values. Zeroed before the first page; values_release after the last. */
struct values {
    enum parquet_type type;
    uint32_t type_len;    // bytes of a TYPE_FIXED value
    enum parquet_encoding encoding;
    const struct dictionary *dictionary;
    const uint8_t *p, *end;
    struct hybrid hybrid;          // dictionary indexes, booleans
    struct delta delta, suffix;    // numbers, lengths or prefix lengths; lengths of suffixes
    struct buf last;               // DELTA_BYTE_ARRAY: the value before
    uint64_t bit;                  // plain booleans
    uint64_t n, i;                 // BYTE_STREAM_SPLIT: values in the page, next one
    uint8_t joined[64];
    bool is_empty;    // the page has no bytes of values: all of its entries are null
};
/* Can a column of this type be written so? */
bool values_supported(enum parquet_type type, uint32_t type_len, int encoding);
/* Begin a page of at most n values in [p, end). v->type, type_len and dictionary stand already. */
bool values_begin(struct values *v, enum parquet_encoding encoding, const uint8_t *p, const uint8_t *end, uint64_t n);
bool values_next(struct values *v, struct parquet_value *out);
void values_release(struct values *v);
/* Take a dictionary page's n values apart; bytes stand in d->bytes. */
bool dictionary_fill(struct dictionary *d, enum parquet_type type, uint32_t type_len, uint64_t n);
void dictionary_release(struct dictionary *d);
