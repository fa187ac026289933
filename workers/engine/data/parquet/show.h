/* show.h - a value of a column as JSON
 *
 * Private to this folder. */
#pragma once
#include "protocol/base/buf.h"
#include "workers/engine/data/parquet/meta.h"

/* Append v, a value of the leaf n. */
void value_show(struct buf *out, const struct parquet_node *n, const struct parquet_value *v);
