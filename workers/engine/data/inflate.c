#include "workers/engine/data/inflate.h"
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#define RATIO_MOST 200    // text of data sets shrinks to a fifth, repeated rows to a fiftieth
#define FREE_BYTES ((size_t)64 << 20)

/* Is what has come still in proportion to the file? A few kilobytes can otherwise fill all memory before anything is read. */
static bool ratio_check(size_t came, size_t size, const char *path, struct error *err)
{
    return came <= FREE_BYTES || came / RATIO_MOST <= size
           || error_set(err, ERR_DATA,
                        "'%s' has %zu bytes and would be more than %d times as long when decompressed; unpack it yourself if it is right",
                        path, size, RATIO_MOST);
}

static bool inflate_gzip(struct buf *into, const uint8_t *in, size_t left, const char *path, struct error *err)
{
    z_stream z = { 0 };
    if (inflateInit2(&z, 15 + 32) != Z_OK)
        return error_set(err, ERR_NO_MEMORY, "no memory to decompress '%s'", path);
    size_t size = left, begin = into->len;
    int got = Z_OK;
    bool ok = true;
    while (ok && (left > 0 || z.avail_in > 0 || got != Z_STREAM_END)) {
        if (z.avail_in == 0) {
            if (left == 0) {
                ok = error_set(err, ERR_DATA, "'%s' ends inside its compressed data", path);
                break;
            }
            z.next_in = (Bytef *)(uintptr_t)in;
            z.avail_in = (uInt)MIN(left, (size_t)1 << 30);
            in += z.avail_in;
            left -= z.avail_in;
        }
        if (got == Z_STREAM_END && inflateReset(&z) != Z_OK) {    // files put together are read one after the other
            ok = error_set(err, ERR_DATA, "'%s' cannot be decompressed", path);
            break;
        }
        char *out = buf_reserve(into, 1 << 18);
        if (!out) {
            ok = error_set(err, ERR_DATA, "'%s' is larger than %zu bytes when decompressed, or than memory", path, into->max);
            break;
        }
        z.next_out = (Bytef *)out;
        z.avail_out = 1 << 18;
        got = inflate(&z, Z_NO_FLUSH);
        into->len += (1 << 18) - z.avail_out;
        if (got != Z_OK && got != Z_STREAM_END)
            ok = error_set(err, ERR_DATA, "'%s' cannot be decompressed: %s", path, z.msg ? z.msg : "damaged data");
        ok = ok && ratio_check(into->len - begin, size, path, err);
    }
    inflateEnd(&z);
    return ok;
}

static bool inflate_zstd(struct buf *into, const uint8_t *in, size_t left, const char *path, struct error *err)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    if (!z)
        return error_set(err, ERR_NO_MEMORY, "no memory to decompress '%s'", path);
    ZSTD_inBuffer from = { in, left, 0 };
    size_t hint = 1, begin = into->len;
    bool ok = true;
    while (ok) {
        char *at = buf_reserve(into, 1 << 18);
        if (!at) {
            ok = error_set(err, ERR_DATA, "'%s' is larger than %zu bytes when decompressed, or than memory", path, into->max);
            break;
        }
        ZSTD_outBuffer out = { at, 1 << 18, 0 };
        hint = ZSTD_decompressStream(z, &out, &from);
        into->len += out.pos;
        if (ZSTD_isError(hint))
            ok = error_set(err, ERR_DATA, "'%s' cannot be decompressed: %s", path, ZSTD_getErrorName(hint));
        else if (from.pos == from.size && out.pos < out.size)
            break;
        ok = ok && ratio_check(into->len - begin, left, path, err);
    }
    if (ok && hint != 0)
        ok = error_set(err, ERR_DATA, "'%s' ends inside its compressed data", path);
    ZSTD_freeDStream(z);
    return ok;
}

bool file_inflate(struct buf *out, const uint8_t *data, size_t size, const char *path, bool *packed, struct error *err)
{
    bool gzip = size >= 2 && data[0] == 0x1F && data[1] == 0x8B, zstd = size >= 4 && memcmp(data, "\x28\xB5\x2F\xFD", 4) == 0;
    *packed = gzip || zstd;
    return !*packed || (gzip ? inflate_gzip : inflate_zstd)(out, data, size, path, err);
}
