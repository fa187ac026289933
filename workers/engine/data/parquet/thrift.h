/* thrift.h - Thrift's compact protocol, as far as Parquet's metadata use it
 *
 * A cursor over bytes that the caller keeps. An error sets `bad`, after which every read gives 0 or nothing: loops end, and the
 * caller checks once. Source: thrift-compact-protocol.md. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum thrift_type {
    THRIFT_STOP,
    THRIFT_TRUE,    // a field's boolean stands in its type
    THRIFT_FALSE,
    THRIFT_I8,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BINARY,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT,
};
struct thrift {
    const uint8_t *p, *end;    // what is left
    bool bad;                  // ended too early, or is not Thrift
};
struct thrift_field {
    int32_t id;      // {0} before a struct's first field
    uint8_t type;    // enum thrift_type
};
/* A LEB128 number of at most 10 bytes. */
uint64_t thrift_varint(struct thrift *t);
/* A zigzag number, as i16, i32 and i64 are written. */
int64_t thrift_zigzag(struct thrift *t);
/* Go to a struct's next field, whose value is then to be read or skipped; false at its end, or when bad. */
bool thrift_next(struct thrift *t, struct thrift_field *f);
/* The value of a field of any integer type; bad for others. */
int64_t thrift_int(struct thrift *t, const struct thrift_field *f);
/* A binary field's bytes, borrowed. */
const uint8_t *thrift_binary(struct thrift *t, const struct thrift_field *f, size_t *len);
/* The head of a list field: how many elements follow, at most as many as bytes are left. bad when they are not of type. */
size_t thrift_list(struct thrift *t, const struct thrift_field *f, enum thrift_type type);
/* Skip a field's value, whatever it is; at most 32 levels deep. */
void thrift_skip(struct thrift *t, const struct thrift_field *f);
