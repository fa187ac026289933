#include "workers/engine/data/parquet/thrift.h"
#include <string.h>

#define DEPTH_MAX 32

static uint8_t byte_read(struct thrift *t)
{
    if (t->bad || t->p == t->end)
        return t->bad = true, 0;
    return *t->p++;
}

static const uint8_t *bytes_read(struct thrift *t, uint64_t n)
{
    const uint8_t *p = t->p;
    if (t->bad || n > (uint64_t)(t->end - t->p))
        return t->bad = true, NULL;
    t->p += n;
    return p;
}

uint64_t thrift_varint(struct thrift *t)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        uint8_t b = byte_read(t);
        if (t->bad)
            return 0;
        v |= shift < 64 ? (uint64_t)(b & 0x7F) << shift : 0;
        if (!(b & 0x80))
            return v;
    }
    t->bad = true;
    return 0;
}

int64_t thrift_zigzag(struct thrift *t)
{
    uint64_t v = thrift_varint(t);
    return (int64_t)(v >> 1 ^ (0 - (v & 1)));
}

bool thrift_next(struct thrift *t, struct thrift_field *f)
{
    uint8_t b = byte_read(t);
    if (t->bad || b == THRIFT_STOP)
        return false;
    int64_t id = b >> 4 ? f->id + (b >> 4) : thrift_zigzag(t);
    if (id < INT16_MIN || id > INT16_MAX)
        t->bad = true;
    f->id = (int32_t)id;
    f->type = b & 0x0F;
    return !t->bad;
}

int64_t thrift_int(struct thrift *t, const struct thrift_field *f)
{
    switch (f->type) {
    case THRIFT_I8: return (int8_t)byte_read(t);
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64: return thrift_zigzag(t);
    default: t->bad = true; return 0;
    }
}

const uint8_t *thrift_binary(struct thrift *t, const struct thrift_field *f, size_t *len)
{
    uint64_t n = f->type == THRIFT_BINARY ? thrift_varint(t) : UINT64_MAX;
    const uint8_t *p = bytes_read(t, n);
    *len = p ? (size_t)n : 0;
    return p;
}

static uint64_t list_head(struct thrift *t, uint8_t *type)
{
    uint8_t b = byte_read(t);
    uint64_t n = b >> 4;
    *type = b & 0x0F;
    if (n == 15)
        n = thrift_varint(t);
    if (t->bad || n > (uint64_t)(t->end - t->p))    // each element takes a byte at least
        return t->bad = true, 0;
    return n;
}

size_t thrift_list(struct thrift *t, const struct thrift_field *f, enum thrift_type type)
{
    uint8_t found;
    size_t n = f->type == THRIFT_LIST ? (size_t)list_head(t, &found) : (t->bad = true, 0);
    if (n > 0 && found != type)
        return t->bad = true, 0;
    return n;
}

static void value_skip(struct thrift *t, uint8_t type, bool in_list, int depth)
{
    uint8_t inner, value;
    struct thrift_field f = { 0 };
    uint64_t n;
    if (depth > DEPTH_MAX)
        t->bad = true;
    if (t->bad)
        return;
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
        if (in_list)
            byte_read(t);
        break;
    case THRIFT_I8: byte_read(t); break;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64: thrift_varint(t); break;
    case THRIFT_DOUBLE: bytes_read(t, 8); break;
    case THRIFT_BINARY: bytes_read(t, thrift_varint(t)); break;
    case THRIFT_LIST:
    case THRIFT_SET:
        for (n = list_head(t, &inner); n > 0 && !t->bad; n--)
            value_skip(t, inner, true, depth + 1);
        break;
    case THRIFT_MAP:
        n = thrift_varint(t);
        inner = n > 0 ? byte_read(t) : 0;
        value = inner & 0x0F;
        if (n > (uint64_t)(t->end - t->p))
            t->bad = true;
        for (; n > 0 && !t->bad; n--) {
            value_skip(t, inner >> 4, true, depth + 1);
            value_skip(t, value, true, depth + 1);
        }
        break;
    case THRIFT_STRUCT:
        while (thrift_next(t, &f))
            value_skip(t, f.type, false, depth + 1);
        break;
    default: t->bad = true;
    }
}

void thrift_skip(struct thrift *t, const struct thrift_field *f)
{
    value_skip(t, f->type, false, 0);
}
