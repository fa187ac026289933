/* inflate.h - whole files that are compressed with gzip or zstd
 *
 * Any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

/* If data, the content of path, begin as gzip or zstd do: append what they are decompressed to out, whose max bounds it, and set
 * *packed. Files put together are read one after the other. */
MUST_USE bool file_inflate(struct buf *out, const uint8_t *data, size_t size, const char *path, bool *packed, struct error *err);
