/* leaf.h - one column of one row group, entry after entry
 *
 * An entry is a repetition level, a definition level, and a value where the definition level is the column's highest. Pages are
 * decompressed one at a time and taken apart while they are read, so a column needs the memory of one page and one dictionary.
 * Source: parquet-format's README.md, "Data Pages". */
#pragma once
#include "workers/engine/data/parquet/codec.h"
#include "workers/engine/data/parquet/meta.h"

struct leaf {
    const struct parquet_node *node;
    const uint8_t *p, *end;    // pages of the chunk not begun yet
    enum parquet_codec codec;
    size_t page_bytes_max;
    int64_t chunk_left;    // entries in pages not begun yet
    int64_t page_left;     // entries of the page that are not given yet
    bool is_first_page;
    int n_page;         // begun, for messages
    struct buf page;    // the page decompressed; not used by pages that are not compressed
    struct dictionary dictionary;
    struct hybrid rep_level, def_level;
    struct values values;
    bool there;    // rep and def are of an entry; false: the column has ended
    int rep, def;
};
/* Begin a chunk of the file and go to its first entry. l is zeroed, or has been used for another chunk. Messages name the column. */
MUST_USE bool leaf_begin(struct leaf *l, const struct parquet_node *node, const struct parquet_chunk *chunk, const uint8_t *file,
                         size_t page_bytes_max, struct error *err);
/* Go to the next entry. The present one's value must have been read. */
MUST_USE bool leaf_advance(struct leaf *l, struct error *err);
/* The present entry's value, once; its definition level is the highest. Its bytes stay until the next entry. */
MUST_USE bool leaf_value(struct leaf *l, struct parquet_value *v, struct error *err);
void leaf_release(struct leaf *l);
