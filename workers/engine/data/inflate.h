/* inflate.h - whole files that are compressed with gzip or zstd
 *
 * Any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

/* If data, the content of path, begin as gzip or zstd do: append the decompressed data to out, whose max is the limit, and set
 * *packed. What grows by more than 200 times, and beyond 64 MiB, is refused. Concatenated files are read one after the other. */
MUST_USE bool file_inflate(struct buf *out, const uint8_t *data, size_t size, const char *path, bool *packed, struct error *err);
