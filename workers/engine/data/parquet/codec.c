#include "workers/engine/data/parquet/codec.h"
#include <snappy-c.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#define PIECE_BYTES ((size_t)1 << 18)

static bool damaged(struct error *err, const char *name)
{
    return error_set(err, ERR_DATA, "its %s data are damaged", name);
}

static bool no_memory(struct error *err, size_t len)
{
    return error_set(err, ERR_NO_MEMORY, "no memory for %zu bytes of a page", len);
}

/* Snappy's longest copy is 64 bytes and takes 3, so a length far above that is a lie and asks for no memory. */
static bool snappy_unpack(const uint8_t *in, size_t in_len, size_t out_len, struct buf *out, struct error *err)
{
    size_t len = 0;
    if (snappy_uncompressed_length((const char *)in, in_len, &len) != SNAPPY_OK || len != out_len || len / 32 > in_len)
        return damaged(err, "snappy");
    char *to = buf_reserve(out, len);
    if (!to)
        return no_memory(err, len);
    if (snappy_uncompress((const char *)in, in_len, to, &len) != SNAPPY_OK || len != out_len)
        return damaged(err, "snappy");
    out->len += len;
    return true;
}

/* One or more gzip or zlib streams. */
static bool gzip_unpack(const uint8_t *in, size_t in_len, size_t out_len, struct buf *out, struct error *err)
{
    z_stream z = { .next_in = (Bytef *)(uintptr_t)in, .avail_in = (uInt)in_len };
    int got = Z_OK;
    bool ok = false;
    if (in_len > UINT32_MAX || inflateInit2(&z, 15 + 32) != Z_OK)
        return no_memory(err, in_len);
    while (got != Z_STREAM_END || z.avail_in > 0) {
        size_t room = MIN(out_len - out->len + 1, PIECE_BYTES);    // one more, to see what is too long
        char *to = buf_reserve(out, room);
        if (!to) {
            no_memory(err, out_len);
            goto out;
        }
        if (got == Z_STREAM_END && inflateReset(&z) != Z_OK) {
            damaged(err, "gzip");
            goto out;
        }
        z.next_out = (Bytef *)to;
        z.avail_out = (uInt)room;
        got = inflate(&z, Z_NO_FLUSH);
        out->len += room - z.avail_out;
        if ((got != Z_OK && got != Z_STREAM_END) || out->len > out_len) {
            damaged(err, "gzip");
            goto out;
        }
    }
    ok = out->len == out_len || damaged(err, "gzip");
out:
    inflateEnd(&z);
    return ok;
}

static bool zstd_unpack(const uint8_t *in, size_t in_len, size_t out_len, struct buf *out, struct error *err)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    ZSTD_inBuffer from = { in, in_len, 0 };
    size_t hint = 1;
    bool ok = false;
    if (!z)
        return no_memory(err, in_len);
    while (from.pos < from.size || hint != 0) {
        size_t room = MIN(out_len - out->len + 1, PIECE_BYTES);
        char *at = buf_reserve(out, room);
        if (!at) {
            no_memory(err, out_len);
            goto out;
        }
        ZSTD_outBuffer to = { at, room, 0 };
        size_t before = from.pos;
        hint = ZSTD_decompressStream(z, &to, &from);
        out->len += to.pos;
        if (ZSTD_isError(hint) || out->len > out_len || (from.pos == before && to.pos == 0)) {
            damaged(err, "zstd");
            goto out;
        }
    }
    ok = out->len == out_len || damaged(err, "zstd");
out:
    ZSTD_freeDStream(z);
    return ok;
}

/* The rest of a length whose four bits are all set: bytes are added until one is not 255. */
static bool lz4_length(const uint8_t **p, const uint8_t *end, size_t *len)
{
    uint8_t b = 255;
    if (*len != 15)
        return true;
    while (b == 255) {
        if (*p == end)
            return false;
        *len += b = *(*p)++;
    }
    return true;
}

/* One block of LZ4 (lz4_Block_format.md): literals and copies in turn, literals last. */
static bool lz4_unpack(const uint8_t *in, size_t in_len, size_t out_len, struct buf *out, struct error *err)
{
    const uint8_t *p = in, *end = in + in_len;
    if (out_len / 256 > in_len)
        return damaged(err, "LZ4");
    char *to = buf_reserve(out, out_len);
    size_t at = 0;
    if (!to)
        return no_memory(err, out_len);
    while (p < end) {
        size_t literal = *p >> 4, copy = *p & 15;
        p++;
        if (!lz4_length(&p, end, &literal) || literal > (size_t)(end - p) || literal > out_len - at)
            return damaged(err, "LZ4");
        memcpy(to + at, p, literal);
        at += literal;
        p += literal;
        if (p == end)
            break;
        if (end - p < 2)
            return damaged(err, "LZ4");
        size_t back = (size_t)p[0] | (size_t)p[1] << 8;
        p += 2;
        if (!lz4_length(&p, end, &copy) || back == 0 || back > at || copy + 4 > out_len - at)
            return damaged(err, "LZ4");
        for (copy += 4; copy > 0; copy--, at++)    // a copy may overlap itself
            to[at] = to[at - back];
    }
    out->len += at;
    return at == out_len || damaged(err, "LZ4");
}

typedef bool unpack_fn(const uint8_t *in, size_t in_len, size_t out_len, struct buf *out, struct error *err);
static const struct {
    const char *name;
    unpack_fn *unpack;    // NULL: cannot be read, but CODEC_NONE
} codecs[] = {
    [CODEC_NONE] = { "none", NULL },        [CODEC_SNAPPY] = { "snappy", snappy_unpack }, [CODEC_GZIP] = { "gzip", gzip_unpack },
    [CODEC_LZO] = { "LZO", NULL },          [CODEC_BROTLI] = { "Brotli", NULL },          [CODEC_LZ4] = { "LZ4 (Hadoop's)", NULL },
    [CODEC_ZSTD] = { "zstd", zstd_unpack }, [CODEC_LZ4_RAW] = { "LZ4", lz4_unpack },
};

bool codec_known(int codec, struct error *err)
{
    bool named = codec >= 0 && codec < (int)ARRAY_SIZE(codecs);
    if (named && (codec == CODEC_NONE || codecs[codec].unpack))
        return true;
    return error_set(
        err, ERR_UNSUPPORTED,
        "its pages are compressed by %s (codec %d), which cannot be read; write it again with snappy, zstd or gzip: python3 -c "
        "\"import pandas; pandas.read_parquet('IN').to_parquet('OUT')\"",
        named ? codecs[codec].name : "a way that is not known here", codec);
}

bool codec_unpack(enum parquet_codec codec, const uint8_t *in, size_t in_len, size_t out_len, struct buf *out, struct error *err)
{
    buf_clear(out);
    return codecs[codec].unpack(in, in_len, out_len, out, err);
}
