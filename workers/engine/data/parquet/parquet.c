/* Rows are put together from the columns' levels, as in Melnik et al., "Dremel", 2010, section 4.3, by walking the tree of columns:
 * 1. all columns below a node have their present entry in the same place of the row;
 * 2. a node is null when that entry's definition level is below the node's;
 * 3. after an element of a repeated node, the next entry's repetition level says whether it goes on: equal to the node's, another
 *    element; below, the list has ended. Columns that disagree are damaged. */
#include "workers/engine/data/parquet/parquet.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "workers/engine/data/parquet/leaf.h"
#include "workers/engine/data/parquet/show.h"

#define PAGE_BYTES_MAX ((size_t)1 << 30)
#define ROW_BYTES_MAX ((size_t)64 << 20)

struct parquet {
    struct parquet_meta meta;
    const uint8_t *file;
    size_t page_bytes_max, row_bytes_max;
    struct leaf *leaf;     // (n_leaf)
    int64_t group;         // present row group; -1: none begun
    int64_t group_left;    // rows of it not given yet
    struct buf *out;
    size_t row_start;    // in out
};

struct parquet *parquet_open(const uint8_t *file, size_t size, size_t page_bytes_max, size_t row_bytes_max, struct error *err)
{
    struct parquet *p = calloc(1, sizeof *p);
    if (!p || !parquet_meta_read(&p->meta, file, size, err)) {
        if (!p)
            error_set(err, ERR_NO_MEMORY, "no memory for its reader");
        free(p);
        return NULL;
    }
    p->file = file;
    p->page_bytes_max = page_bytes_max ? page_bytes_max : PAGE_BYTES_MAX;
    p->row_bytes_max = row_bytes_max ? row_bytes_max : ROW_BYTES_MAX;
    p->group = -1;
    p->leaf = calloc((size_t)p->meta.n_leaf, sizeof *p->leaf);
    if (p->leaf)
        return p;
    parquet_free(p);
    error_set(err, ERR_NO_MEMORY, "no memory for its reader");
    return NULL;
}

void parquet_free(struct parquet *p)
{
    if (!p)
        return;
    for (int i = 0; p->leaf && i < p->meta.n_leaf; i++)
        leaf_release(&p->leaf[i]);
    free(p->leaf);
    parquet_meta_release(&p->meta);
    free(p);
}

int64_t parquet_n_row(const struct parquet *p)
{
    return p->meta.n_row;
}

static bool disagree(const struct parquet_node *n, struct error *err)
{
    return error_set(err, ERR_DATA, "column '%.200s': the columns below it do not fit each other", n->path);
}

/* Is the node present in the current entry? */
static bool node_there(struct parquet *p, const struct parquet_node *n, int def, bool *there, struct error *err)
{
    for (int i = 0; i < n->n_leaf; i++) {
        const struct leaf *l = &p->leaf[n->first_leaf + i];
        bool is = l->there && l->def >= def;
        if (!l->there || (i > 0 && is != *there))
            return disagree(n, err);
        *there = is;
    }
    return true;
}

/* Skip the current entry of all columns below a node that is null or an empty list. */
static bool node_pass(struct parquet *p, const struct parquet_node *n, struct error *err)
{
    for (int i = 0; i < n->n_leaf; i++)
        if (!leaf_advance(&p->leaf[n->first_leaf + i], err))
            return false;
    return true;
}

/* After an element of a repeated node: does another one follow? */
static bool node_again(struct parquet *p, const struct parquet_node *n, bool *again, struct error *err)
{
    if (p->out->len - p->row_start > p->row_bytes_max || p->out->failed)
        return error_set(err, ERR_DATA, "the row has more than %zu bytes", p->row_bytes_max);
    for (int i = 0; i < n->n_leaf; i++) {
        const struct leaf *l = &p->leaf[n->first_leaf + i];
        bool is = l->there && l->rep >= n->max_rep;
        if ((is && l->rep > n->max_rep) || (i > 0 && is != *again))
            return disagree(n, err);
        *again = is;
    }
    return true;
}

static bool node_write(struct parquet *p, const struct parquet_node *n, struct error *err);

static bool leaf_write(struct parquet *p, const struct parquet_node *n, struct error *err)
{
    struct leaf *l = &p->leaf[n->first_leaf];
    struct parquet_value v;
    if (l->def != n->max_def)
        return disagree(n, err);
    if (!leaf_value(l, &v, err))
        return false;
    value_show(p->out, n, &v);
    return leaf_advance(l, err);
}

static bool struct_write(struct parquet *p, const struct parquet_node *n, struct error *err)
{
    char before = '{';
    for (int i = n->first_child; i >= 0; i = p->meta.node[i].next) {
        buf_char(p->out, before);
        buf_str(p->out, p->meta.node[i].key);
        if (!node_write(p, &p->meta.node[i], err))
            return false;
        before = ',';
    }
    return buf_char(p->out, '}') || true;    // what does not fit is seen at the row's end
}

/* What a node holds that is known to be there. */
static bool content_write(struct parquet *p, const struct parquet_node *n, struct error *err);

/* A key of a map: text as it is, others between quotes. */
static bool key_write(struct parquet *p, const struct parquet_node *n, struct error *err)
{
    size_t at = p->out->len;
    if (!node_write(p, n, err))
        return false;
    bool is_text = p->out->len > at && p->out->data[at] == '"';
    if (is_text || p->out->failed)
        return true;
    struct buf text = BUF_INIT;
    if (n->n_child > 0)
        return error_set(err, ERR_UNSUPPORTED, "column '%.200s': a map whose keys have parts cannot be read", n->path);
    buf_fmt(&text, "\"%s\"", p->out->data + at);
    p->out->len = at;
    bool ok = buf_str(p->out, buf_text(&text));
    buf_release(&text);
    return ok || error_set(err, ERR_NO_MEMORY, "no memory for a row");
}

/* The entries of repeated node r: elements of a list, or pairs of a map. */
static bool repeated_write(struct parquet *p, const struct parquet_node *r, bool is_map, bool is_element, struct error *err)
{
    bool again;
    const struct parquet_node *node = p->meta.node;
    if (!node_there(p, r, r->max_def, &again, err))
        return false;
    buf_char(p->out, is_map ? '{' : '[');
    if (!again && !node_pass(p, r, err))
        return false;
    while (again) {
        if (is_map) {
            const struct parquet_node *key = &node[r->first_child], *value = &node[key->next];
            if (!key_write(p, key, err) || (buf_char(p->out, ':'), !node_write(p, value, err)))
                return false;
        } else if (!(is_element ? content_write(p, r, err) : node_write(p, &node[r->first_child], err))) {
            return false;
        }
        if (!node_again(p, r, &again, err))
            return false;
        if (again)
            buf_char(p->out, ',');
    }
    buf_char(p->out, is_map ? '}' : ']');
    return true;
}

static bool content_write(struct parquet *p, const struct parquet_node *n, struct error *err)
{
    switch (n->shape) {
    case SHAPE_LEAF: return leaf_write(p, n, err);
    case SHAPE_STRUCT: return struct_write(p, n, err);
    case SHAPE_LIST: return repeated_write(p, &p->meta.node[n->first_child], false, n->element_is_repeated, err);
    case SHAPE_MAP: return repeated_write(p, &p->meta.node[n->first_child], true, false, err);
    }
    return false;
}

static bool node_write(struct parquet *p, const struct parquet_node *n, struct error *err)
{
    bool there;
    if (n->repetition == REPEAT_REPEATED)    // without a list around it
        return repeated_write(p, n, false, true, err);
    if (n->repetition == REPEAT_OPTIONAL) {
        if (!node_there(p, n, n->max_def, &there, err))
            return false;
        if (!there) {
            buf_str(p->out, "null");
            return node_pass(p, n, err);
        }
    }
    return content_write(p, n, err);
}

static bool group_begin(struct parquet *p, struct error *err)
{
    int n = p->meta.n_leaf;
    p->group++;
    p->group_left = p->meta.group_rows[p->group];
    for (int i = 0; i < n && p->group_left > 0; i++)
        if (!leaf_begin(&p->leaf[i], &p->meta.node[p->meta.leaf[i]], &p->meta.chunk[p->group * n + i], p->file, p->page_bytes_max, err))
            return error_wrap(err, "row group %" PRId64, p->group);
    return true;
}

/* A row begins at repetition level 0 in every column, and the last one ends where the columns end. */
static bool row_bounds_check(const struct parquet *p, bool there, struct error *err)
{
    for (int i = 0; i < p->meta.n_leaf; i++) {
        const struct leaf *l = &p->leaf[i];
        if (l->there != there || (there && l->rep != 0))
            return error_set(err, ERR_DATA, "row group %" PRId64 ", column '%.200s': its values do not fit the group's %" PRId64 " rows",
                             p->group, l->node->path, p->meta.group_rows[p->group]);
    }
    return true;
}

bool parquet_next(struct parquet *p, struct buf *out, bool *done, struct error *err)
{
    while (p->group_left == 0) {
        *done = p->group + 1 >= p->meta.n_group;
        if (*done)
            return true;
        if (!group_begin(p, err))
            return false;
    }
    *done = false;
    p->out = out;
    p->row_start = out->len;
    if (!row_bounds_check(p, true, err) || !struct_write(p, &p->meta.node[0], err))
        return false;
    p->group_left--;
    if (out->failed)
        return error_set(err, ERR_DATA, "it has more than %zu bytes when read, or more than memory", out->max);
    if (out->len - p->row_start > p->row_bytes_max)
        return error_set(err, ERR_DATA, "the row has more than %zu bytes", p->row_bytes_max);
    return p->group_left > 0 || row_bounds_check(p, false, err);
}
