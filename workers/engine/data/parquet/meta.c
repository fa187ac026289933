#include "workers/engine/data/parquet/meta.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/data/parquet/codec.h"
#include "workers/engine/data/parquet/schema.h"
#include "workers/engine/data/parquet/thrift.h"

#define FOOTER_BYTES_MAX ((uint32_t)64 << 20)
#define ROWS_MAX ((int64_t)1 << 31)

static void column_meta_read(struct thrift *t, struct parquet_chunk *c, int64_t *codec)
{
    int64_t data = 0, dictionary = 0;
    for (struct thrift_field f = { 0 }; thrift_next(t, &f);) {
        switch (f.id) {
        case 4: *codec = thrift_int(t, &f); break;
        case 5: c->n_value = thrift_int(t, &f); break;
        case 7: c->size = thrift_int(t, &f); break;
        case 9: data = thrift_int(t, &f); break;
        case 11: dictionary = thrift_int(t, &f); break;
        default: thrift_skip(t, &f);
        }
    }
    c->at = dictionary > 0 ? dictionary : data;    // of a chunk without values pyarrow gives data as 0
}

static bool chunk_read(struct parquet_meta *m, struct thrift *t, struct parquet_chunk *c, int leaf, int64_t file_end, struct error *err)
{
    const char *path = m->node[m->leaf[leaf]].path;
    bool elsewhere = false, encrypted = false;
    int64_t codec = -1;
    struct error why = { 0 };
    *c = (struct parquet_chunk){ 0 };
    for (struct thrift_field f = { 0 }; thrift_next(t, &f);) {
        if (f.id == 3 && f.type == THRIFT_STRUCT) {
            column_meta_read(t, c, &codec);
            continue;
        }
        elsewhere |= f.id == 1;
        encrypted |= f.id == 8 || f.id == 9;
        thrift_skip(t, &f);
    }
    if (t->bad)
        return true;    // the caller sees it
    if (encrypted || elsewhere)
        return error_set(err, ERR_UNSUPPORTED, "its column '%.200s' %s", path,
                         encrypted ? "is encrypted; decrypt it first" : "is in another file, which is not read");
    if (c->n_value < 0 || c->size < 0 || (c->size > 0 && (c->at < 4 || c->at > file_end || c->size > file_end - c->at)))
        return error_set(err, ERR_DATA, "its column '%.200s' lies outside the file", path);
    if (c->n_value > 0 && !codec_known((int)MAX(MIN(codec, 1000), -1), &why))
        return error_wrap((*err = why, err), "column '%.200s'", path);
    c->codec = (uint8_t)codec;
    return true;
}

static bool group_read(struct parquet_meta *m, struct thrift *t, int64_t file_end, struct error *err)
{
    struct parquet_chunk *more = realloc(m->chunk, (size_t)(m->n_group + 1) * (size_t)m->n_leaf * sizeof *more);
    if (more)
        m->chunk = more;
    int64_t *rows = realloc(m->group_rows, (size_t)(m->n_group + 1) * sizeof *rows);
    if (rows)
        m->group_rows = rows;
    if (!more || !rows)
        return error_set(err, ERR_NO_MEMORY, "no memory for its %" PRId64 " row groups", m->n_group + 1);
    int64_t n_row = -1, n_column = -1;
    for (struct thrift_field f = { 0 }; thrift_next(t, &f);) {
        if (f.id == 1) {
            n_column = (int64_t)thrift_list(t, &f, THRIFT_STRUCT);
            for (int i = 0; i < m->n_leaf && n_column == m->n_leaf; i++)
                if (!chunk_read(m, t, &m->chunk[m->n_group * m->n_leaf + i], i, file_end, err))
                    return false;
            if (n_column != m->n_leaf)
                break;
        } else if (f.id == 3) {
            n_row = thrift_int(t, &f);
        } else {
            thrift_skip(t, &f);
        }
    }
    if (t->bad)
        return true;
    if (n_column != m->n_leaf || n_row < 0 || n_row > ROWS_MAX - m->n_row)
        return error_set(err, ERR_DATA, "its row group %" PRId64 " is damaged: %" PRId64 " of %d columns, %" PRId64 " rows", m->n_group,
                         n_column, m->n_leaf, n_row);
    for (int i = 0; i < m->n_leaf; i++) {
        const struct parquet_node *leaf = &m->node[m->leaf[i]];
        int64_t n = m->chunk[m->n_group * m->n_leaf + i].n_value;
        if (leaf->max_rep > 0 ? n < n_row : n != n_row)
            return error_set(err, ERR_DATA, "its column '%.200s' has %" PRId64 " values for the %" PRId64 " rows of row group %" PRId64,
                             leaf->path, n, n_row, m->n_group);
    }
    m->group_rows[m->n_group++] = n_row;
    m->n_row += n_row;
    return true;
}

static bool footer_read(struct parquet_meta *m, struct thrift *t, int64_t file_end, struct error *err)
{
    int64_t n_row = 0;
    for (struct thrift_field f = { 0 }; thrift_next(t, &f);) {
        if (f.id == 2) {
            if (!schema_read(m, t, &f, err))
                return false;
        } else if (f.id == 3) {
            n_row = thrift_int(t, &f);
        } else if (f.id == 4) {
            if (!m->node)
                return error_set(err, ERR_DATA, "its footer has row groups before a schema");
            for (size_t n = thrift_list(t, &f, THRIFT_STRUCT); n > 0 && !t->bad; n--)
                if (!group_read(m, t, file_end, err))
                    return false;
        } else if (f.id == 8) {
            return error_set(err, ERR_UNSUPPORTED, "it is encrypted; decrypt it first");
        } else {
            thrift_skip(t, &f);
        }
    }
    if (t->bad || !m->node)
        return error_set(err, ERR_DATA, "its footer is damaged");
    return n_row == m->n_row
           || error_set(err, ERR_DATA, "its footer is damaged: %" PRId64 " rows, %" PRId64 " of them in row groups", n_row, m->n_row);
}

bool parquet_meta_read(struct parquet_meta *m, const uint8_t *file, size_t size, struct error *err)
{
    *m = (struct parquet_meta){ 0 };
    if (size < 12 || (memcmp(file + size - 4, "PAR1", 4) != 0 && memcmp(file + size - 4, "PARE", 4) != 0))
        return error_set(err, ERR_DATA, "it is cut short: a whole one ends in PAR1; get it again");
    if (file[size - 1] == 'E')
        return error_set(err, ERR_UNSUPPORTED, "it is encrypted; decrypt it first");
    const uint8_t *tail = file + size - 8;
    uint32_t len = (uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 | (uint32_t)tail[3] << 24;
    if (len > size - 12 || len > FOOTER_BYTES_MAX)
        return error_set(err, ERR_DATA, "its footer is damaged: %" PRIu32 " bytes in a file of %zu", len, size);
    struct thrift t = { tail - len, tail, false };
    if (footer_read(m, &t, (int64_t)(size - 8 - len), err))
        return true;
    parquet_meta_release(m);
    return false;
}

void parquet_meta_release(struct parquet_meta *m)
{
    for (int i = 0; i < m->n_node; i++) {
        free(m->node[i].key);
        free(m->node[i].path);
    }
    free(m->node);
    free(m->leaf);
    free(m->chunk);
    free(m->group_rows);
    *m = (struct parquet_meta){ 0 };
}
