/* parquet.h - the rows of a Parquet file, as JSON
 *
 * Reads what pyarrow (so also datasets), polars, DuckDB and fastparquet write; tests/golden/check_parquet.py compares. All encodings
 * except the obsolete bit-packed levels, data pages 1 and 2, compressed by nothing, snappy, gzip, zstd or LZ4, and any nesting. Values
 * without a JSON form are written as text: decimals, dates and times (ISO 8601), bytes that are not text (hexadecimal), integers above
 * 2^63 - 1; numbers that are not finite as null. One thread per reader. The work is done row by row, and memory is that of one page and
 * one dictionary per column. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/buf.h"
#include "protocol/base/error.h"

struct parquet;
/* Read the footer of a file in memory, which the caller keeps until parquet_free. Messages do not name the file. page_bytes_max: of a
 * page when decompressed; row_bytes_max: of a row's JSON. 0: 1 GiB and 64 MiB. */
struct parquet *parquet_open(const uint8_t *file, size_t size, size_t page_bytes_max, size_t row_bytes_max, struct error *err);
void parquet_free(struct parquet *p);
int64_t parquet_n_row(const struct parquet *p);
/* Append the next row, one JSON object without a line end, to out. *done: there was none left. */
MUST_USE bool parquet_next(struct parquet *p, struct buf *out, bool *done, struct error *err);
