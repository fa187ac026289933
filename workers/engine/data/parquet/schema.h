/* schema.h - the first half of a footer: the elements of the schema, made into a tree
 *
 * Private to this folder. */
#pragma once
#include "workers/engine/data/parquet/meta.h"
#include "workers/engine/data/parquet/thrift.h"

/* Read the list of SchemaElement into m->node and m->leaf. What is bad as Thrift is left for the caller to see in t->bad. */
MUST_USE bool schema_read(struct parquet_meta *m, struct thrift *t, const struct thrift_field *list, struct error *err);
