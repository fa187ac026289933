#include "workers/engine/data/parquet/schema.h"
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/json_text.h"

#define NODES_MAX 10000
#define DEPTH_MAX 32
#define PATH_MAX_BYTES 4096

/* What a SchemaElement says, before it has its place in the tree. */
struct element {
    int64_t type, type_len, repetition, n_child, converted, scale, logical, unit;
    bool has_logical, is_utc, is_signed;
    const uint8_t *name;
    size_t name_len;
};

/* logicalType: a union, so the one field that is there says which it is. */
static void logical_read(struct thrift *t, struct element *e)
{
    struct thrift_field which = { 0 }, f, unit;
    while (thrift_next(t, &which)) {
        e->logical = which.id;
        e->has_logical = true;
        if (which.type != THRIFT_STRUCT) {
            thrift_skip(t, &which);
            continue;
        }
        for (f = (struct thrift_field){ 0 }; thrift_next(t, &f);) {
            if (which.id == 5 && f.id == 1) {
                e->scale = thrift_int(t, &f);
            } else if (which.id == 10 && f.id == 2) {
                e->is_signed = f.type == THRIFT_TRUE;
            } else if ((which.id == 7 || which.id == 8) && f.id == 1) {
                e->is_utc = f.type == THRIFT_TRUE;
            } else if ((which.id == 7 || which.id == 8) && f.id == 2 && f.type == THRIFT_STRUCT) {
                for (unit = (struct thrift_field){ 0 }; thrift_next(t, &unit); thrift_skip(t, &unit))
                    e->unit = unit.id;    // 1: ms, 2: us, 3: ns
            } else {
                thrift_skip(t, &f);
            }
        }
    }
}

static void element_read(struct thrift *t, struct element *e)
{
    *e = (struct element){ .type = -1, .converted = -1, .is_signed = true };
    for (struct thrift_field f = { 0 }; thrift_next(t, &f);) {
        switch (f.id) {
        case 1: e->type = thrift_int(t, &f); break;
        case 2: e->type_len = thrift_int(t, &f); break;
        case 3: e->repetition = thrift_int(t, &f); break;
        case 4: e->name = thrift_binary(t, &f, &e->name_len); break;
        case 5: e->n_child = thrift_int(t, &f); break;
        case 6: e->converted = thrift_int(t, &f); break;
        case 7: e->scale = thrift_int(t, &f); break;
        case 10:
            if (f.type == THRIFT_STRUCT)
                logical_read(t, e);
            else
                thrift_skip(t, &f);
            break;
        default: thrift_skip(t, &f);
        }
    }
}

/* How a leaf is shown. Old files have only converted_type, whose numbers differ. */
static void leaf_show(struct parquet_node *n, const struct element *e)
{
    enum {
        TEXT = 1,
        ENUM = 4,
        DECIMAL = 5,
        DATE = 6,
        TIME = 7,
        TIMESTAMP = 8,
        INTEGER = 10,
        UNKNOWN = 11,
        JSON = 12,
        UUID = 14,
        FLOAT16 = 15
    };
    static const int from_converted[20] = {
        [0] = TEXT,       [4] = ENUM,     [5] = DECIMAL,  [6] = DATE,     [7] = TIME,     [8] = TIME, [9] = TIMESTAMP,
        [10] = TIMESTAMP, [11] = INTEGER, [12] = INTEGER, [13] = INTEGER, [14] = INTEGER, [19] = JSON
    };
    bool is_old = !e->has_logical && e->converted >= 0 && e->converted < 20;
    int64_t logical = e->has_logical ? e->logical : is_old ? from_converted[e->converted] : 0;
    int64_t unit = !is_old ? e->unit : e->converted == 7 || e->converted == 9 ? 1 : 2;
    bool is_int = n->type == TYPE_INT32 || n->type == TYPE_INT64;
    n->per_second = unit == 1 ? 3 : unit == 3 ? 9 : 6;
    n->is_utc = is_old || e->is_utc;
    n->scale = (int)e->scale;
    if ((logical == TEXT || logical == ENUM || logical == JSON) && n->type == TYPE_BYTES)
        n->show = SHOW_TEXT;
    else if (logical == DECIMAL && (is_int || n->type == TYPE_FIXED || n->type == TYPE_BYTES) && e->scale >= 0 && e->scale <= 100)
        n->show = SHOW_DECIMAL;
    else if (logical == DATE && n->type == TYPE_INT32)
        n->show = SHOW_DATE;
    else if (logical == TIME && is_int)
        n->show = SHOW_TIME;
    else if (logical == TIMESTAMP && n->type == TYPE_INT64)
        n->show = SHOW_TIMESTAMP;
    else if (logical == INTEGER && is_int && (is_old || !e->is_signed))
        n->show = SHOW_UNSIGNED;
    else if (logical == UNKNOWN)
        n->show = SHOW_NULL;
    else if (logical == UUID && n->type == TYPE_FIXED && n->type_len == 16)
        n->show = SHOW_UUID;
    else if (logical == FLOAT16 && n->type == TYPE_FIXED && n->type_len == 2)
        n->show = SHOW_HALF;
}

/* The name of a node as JSON text, and its path below the root. */
static bool node_name(struct parquet_meta *m, int i, const struct element *e, struct error *err)
{
    struct parquet_node *n = &m->node[i];
    struct buf key = BUF_INIT, path = { .max = PATH_MAX_BYTES };
    if (e->name_len > 0 && memchr(e->name, 0, e->name_len))
        return error_set(err, ERR_DATA, "the name of a column has a NUL in it");
    json_text_print(&key, (const char *)e->name, e->name_len, JSON_TEXT_UTF8);
    buf_char(&key, ':');
    if (n->parent > 0)
        buf_fmt(&path, "%s.", m->node[n->parent].path);
    buf_fmt(&path, "%.*s", (int)MIN(e->name_len, (size_t)200), (const char *)e->name);
    bool ok = !key.failed && !path.failed;
    n->key = key.data;
    n->path = path.data;
    return ok || error_set(err, ERR_DATA, "the names of its columns are too long");
}

/* Is the node, whose children are known, a list or a map? Rules: LogicalTypes.md, "Nested Types", with those for old files. */
static void group_shape(struct parquet_meta *m, int i, const struct element *e)
{
    struct parquet_node *n = &m->node[i];
    bool list = e->has_logical ? e->logical == 3 : e->converted == 3;
    bool map = e->has_logical ? e->logical == 2 : e->converted == 1 || e->converted == 2;
    struct parquet_node *child = n->n_child == 1 ? &m->node[n->first_child] : NULL;
    n->shape = SHAPE_STRUCT;
    if (!child || child->repetition != REPEAT_REPEATED)
        return;
    if (map && child->n_child == 2) {
        n->shape = SHAPE_MAP;
    } else if (list || map) {
        char tuple[300];
        const char *name = strrchr(child->path, '.') ? strrchr(child->path, '.') + 1 : child->path;
        const char *own = strrchr(n->path, '.') ? strrchr(n->path, '.') + 1 : n->path;
        snprintf(tuple, sizeof tuple, "%.200s_tuple", own);
        n->shape = SHAPE_LIST;
        n->element_is_repeated = child->n_child != 1 || strcmp(name, "array") == 0 || strcmp(name, tuple) == 0;
    }
}

/* Take the element at *next, and what is below it, into the tree. */
static bool node_make(struct parquet_meta *m, const struct element *e, int n, int *next, int parent, int depth, struct error *err)
{
    if (*next >= n || depth > DEPTH_MAX)
        return error_set(err, ERR_DATA, "its schema is damaged, or nested more than %d levels deep", DEPTH_MAX);
    int i = (*next)++, last = -1;
    e += i;
    struct parquet_node *node = &m->node[i], *above = parent >= 0 ? &m->node[parent] : NULL;
    m->n_node = *next;
    *node = (struct parquet_node){ .parent = parent, .first_child = -1, .next = -1, .first_leaf = m->n_leaf };
    if (!node_name(m, i, e, err))
        return false;
    if (e->repetition < 0 || e->repetition > REPEAT_REPEATED)
        return error_set(err, ERR_UNSUPPORTED, "its column '%.200s' is of a kind that is not known here (repetition %d)", node->path,
                         (int)e->repetition);
    if (above) {
        node->repetition = (enum parquet_repetition)e->repetition;
        node->max_def = above->max_def + (node->repetition != REPEAT_REQUIRED);
        node->max_rep = above->max_rep + (node->repetition == REPEAT_REPEATED);
    }
    bool is_leaf = above && e->type >= 0;
    if (is_leaf && (e->type > TYPE_FIXED || e->n_child > 0 || (e->type == TYPE_FIXED && (e->type_len < 1 || e->type_len > 1 << 24))))
        return error_set(err, ERR_DATA, "its schema is damaged at column '%.200s'", node->path);
    if (is_leaf) {
        node->type = (enum parquet_type)e->type;
        node->type_len = node->type == TYPE_FIXED ? (uint32_t)e->type_len : 0;
        leaf_show(node, e);
        m->leaf[m->n_leaf++] = i;
        node->n_leaf = 1;
        return true;
    }
    if (e->n_child < 1 || e->n_child > n)    // a group of nothing has no levels, so that it cannot be told from null
        return error_set(err, ERR_DATA, above ? "its schema is damaged at column '%.200s'" : "it has no columns", node->path);
    node->n_child = (int)e->n_child;
    for (int k = 0; k < node->n_child; k++) {
        int child = *next;
        if (!node_make(m, e - i, n, next, i, depth + 1, err))
            return false;
        *(last < 0 ? &node->first_child : &m->node[last].next) = child;
        last = child;
    }
    node->n_leaf = m->n_leaf - node->first_leaf;
    group_shape(m, i, e);
    return true;
}

bool schema_read(struct parquet_meta *m, struct thrift *t, const struct thrift_field *list, struct error *err)
{
    size_t n = thrift_list(t, list, THRIFT_STRUCT);
    struct element *e = NULL;
    bool ok = false;
    int next = 0;
    if (m->node || n == 0 || n > NODES_MAX) {
        error_set(err, ERR_DATA, "its schema is damaged, or has more than %d columns", NODES_MAX);
        goto out;
    }
    e = calloc(n, sizeof *e);
    m->node = calloc(n, sizeof *m->node);
    m->leaf = calloc(n, sizeof *m->leaf);
    if (!e || !m->node || !m->leaf) {
        error_set(err, ERR_NO_MEMORY, "no memory for its schema");
        goto out;
    }
    for (size_t i = 0; i < n && !t->bad; i++)
        element_read(t, &e[i]);
    TRY(!t->bad || error_set(err, ERR_DATA, "its schema is damaged"));
    TRY(node_make(m, e, (int)n, &next, -1, 0, err));
    ok = next == (int)n || error_set(err, ERR_DATA, "its schema is damaged: %d of %zu elements are used", next, n);
out:
    free(e);
    return ok;
}
