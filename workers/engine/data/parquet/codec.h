/* codec.h - decompress a page
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

/* Numbers of parquet.thrift's CompressionCodec. */
enum parquet_codec {
    CODEC_NONE,
    CODEC_SNAPPY,
    CODEC_GZIP,
    CODEC_LZO,
    CODEC_BROTLI,
    CODEC_LZ4,
    CODEC_ZSTD,
    CODEC_LZ4_RAW,
};
/* Is it one that can be read? If not, the error names it and says what to do. */
MUST_USE bool codec_known(int codec, struct error *err);
/* Replace out's content by in decompressed, which must be out_len bytes. Memory grows with the data, not with the announced size.
 * Not for CODEC_NONE. ERR_DATA: damaged. */
MUST_USE bool codec_unpack(enum parquet_codec codec, const uint8_t *in, size_t in_len, size_t out_len, struct buf *out, struct error *err);
