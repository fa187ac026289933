/* meta.h - a Parquet file's footer: the tree of its columns, and where their chunks are
 *
 * Everything in the footer is checked against the file's size before anything is allocated for it. Statistics, indexes and
 * Bloom filters are ignored. Source: parquet.thrift and LogicalTypes.md of parquet-format. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/engine/data/parquet/decode.h"

enum parquet_repetition {
    REPEAT_REQUIRED,
    REPEAT_OPTIONAL,
    REPEAT_REPEATED,
};
/* How a node is shown as JSON. */
enum parquet_shape {
    SHAPE_LEAF,
    SHAPE_STRUCT,
    SHAPE_LIST,    // the one child is repeated, and each of its entries is an element
    SHAPE_MAP,     // the one child is repeated: key and value
};
enum parquet_show {
    SHOW_PLAIN,    // as the physical type says; bytes as text where they are UTF-8, else in hexadecimal
    SHOW_TEXT,
    SHOW_UNSIGNED,
    SHOW_DECIMAL,
    SHOW_DATE,
    SHOW_TIME,
    SHOW_TIMESTAMP,
    SHOW_HALF,
    SHOW_UUID,
    SHOW_NULL,
};
struct parquet_node {
    char *key;     // the name as JSON, with quotes and colon: "\"role\":"
    char *path;    // "messages.list.element.role", for messages
    enum parquet_repetition repetition;
    int parent, n_child, first_child, next;    // indexes of nodes; -1: none
    int max_def, max_rep;                      // levels of an entry that is there
    int first_leaf, n_leaf;                    // columns below it, itself when it is one
    enum parquet_shape shape;
    bool element_is_repeated;    // SHAPE_LIST: the repeated child is the element itself, not what is in it
    // of leaves
    enum parquet_type type;
    uint32_t type_len;    // bytes of a TYPE_FIXED value
    enum parquet_show show;
    int scale;         // decimals: digits after the point
    int per_second;    // times: units in a second, as a power of ten
    bool is_utc;       // timestamps: of an instant, not of a wall clock
};
/* One column's values in one row group. */
struct parquet_chunk {
    int64_t at, size;    // bytes in the file
    int64_t n_value;     // entries, nulls included
    uint8_t codec;       // enum parquet_codec
};
struct parquet_meta {
    struct parquet_node *node;    // (n_node), parents before children; node 0 is the root
    int n_node;
    int *leaf;    // (n_leaf) indexes of nodes, in the order of the chunks
    int n_leaf;
    struct parquet_chunk *chunk;    // (n_group, n_leaf)
    int64_t *group_rows;            // (n_group)
    int64_t n_group, n_row;
};
/* Read the footer of a whole file in memory. On failure m holds nothing; messages do not name the file. */
MUST_USE bool parquet_meta_read(struct parquet_meta *m, const uint8_t *file, size_t size, struct error *err);
void parquet_meta_release(struct parquet_meta *m);
