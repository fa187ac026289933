#include "workers/engine/load/gguf.h"
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/macros.h"
#include "protocol/base/utf8.h"

#define VALUES_MAX 65536
#define TENSORS_MAX 65536
#define KEY_BYTES_MAX 65535    // as the format says

enum kind { U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, LIST, U64, I64, F64, N_KIND };
static const struct {
    const char *name;
    size_t bytes;    // 0: of no fixed size
} kinds[N_KIND] = {
    [U8] = { "uint8", 1 },   [I8] = { "int8", 1 },     [U16] = { "uint16", 2 },  [I16] = { "int16", 2 }, [U32] = { "uint32", 4 },
    [I32] = { "int32", 4 },  [F32] = { "float32", 4 }, [BOOL] = { "bool", 1 },   [TEXT] = { "text", 0 }, [LIST] = { "list", 0 },
    [U64] = { "uint64", 8 }, [I64] = { "int64", 8 },   [F64] = { "float64", 8 },
};
struct value {
    struct gguf_text key;
    enum kind kind;
    enum kind item;         // of a list
    uint64_t n;             // items of a list, else 1
    const uint8_t *data;    // where the value, or the first item, begins; checked to its end
};
struct gguf {
    struct file_map map;
    char *path;
    struct value *value;    // (n_value) sorted by key, owned
    int64_t n_value;
    struct gguf_tensor *tensor;    // (n_tensor) sorted by name, owned
    int64_t n_tensor;
};
/* A place in the header. */
struct walk {
    const uint8_t *at, *end;
    const struct gguf *g;
};

static uint64_t le_read(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

static inline bool walk_short(const struct walk *w, struct error *err)
{
    error_set(err, ERR_DATA, "'%s': its header goes on after its %zu bytes; it may be truncated", w->g->path, w->g->map.size_bytes);
    return false;
}

static bool walk_number(struct walk *w, size_t bytes, uint64_t *out, struct error *err)
{
    if ((size_t)(w->end - w->at) < bytes)
        return walk_short(w, err);
    *out = le_read(w->at, bytes);
    w->at += bytes;
    return true;
}

static bool walk_text(struct walk *w, struct gguf_text *out, struct error *err)
{
    uint64_t len;
    if (!walk_number(w, 8, &len, err))
        return false;
    if (len > (uint64_t)(w->end - w->at))
        return walk_short(w, err);
    *out = (struct gguf_text){ (const char *)w->at, (size_t)len };
    w->at += len;
    return true;
}

static bool text_is_plain(struct gguf_text t)
{
    return utf8_valid_len((const uint8_t *)t.at, t.len, NULL, NULL) == t.len && !memchr(t.at, 0, t.len);
}

/* Pass one value, or one item of a list, of a kind that is no list. */
static bool value_pass(struct walk *w, enum kind kind, const struct value *v, struct error *err)
{
    struct gguf_text text;
    uint64_t number;
    if (kind != TEXT)
        return walk_number(w, kinds[kind].bytes, &number, err);
    return walk_text(w, &text, err)
           && (text_is_plain(text)
               || error_set(err, ERR_DATA, "'%s': a text of '%.*s' is not UTF-8, or holds a NUL", w->g->path, (int)v->key.len, v->key.at));
}

static bool list_pass(struct walk *w, struct value *v, struct error *err)
{
    uint64_t item;
    if (!walk_number(w, 4, &item, err) || !walk_number(w, 8, &v->n, err))
        return false;
    if (item >= N_KIND || item == LIST)
        return error_set(err, ERR_DATA, "'%s': '%.*s' is a list of items of the kind %" PRIu64 ", which is not read", w->g->path,
                         (int)v->key.len, v->key.at, item);
    v->item = (enum kind)item;
    v->data = w->at;
    size_t least = v->item == TEXT ? 8 : kinds[v->item].bytes;
    if (v->n > (uint64_t)(w->end - w->at) / least)
        return walk_short(w, err);
    if (v->item != TEXT) {
        w->at += v->n * least;
        return true;
    }
    for (uint64_t i = 0; i < v->n; i++)
        if (!value_pass(w, TEXT, v, err))
            return false;
    return true;
}

static bool value_read(struct walk *w, struct value *v, struct error *err)
{
    uint64_t kind;
    *v = (struct value){ .n = 1 };
    if (!walk_text(w, &v->key, err) || !walk_number(w, 4, &kind, err))
        return false;
    if (v->key.len == 0 || v->key.len > KEY_BYTES_MAX || !text_is_plain(v->key))
        return error_set(err, ERR_DATA, "'%s': a key of %zu bytes is not a name", w->g->path, v->key.len);
    if (kind >= N_KIND)
        return error_set(err, ERR_DATA, "'%s': '%.*s' has the kind %" PRIu64 ", which is not known", w->g->path, (int)v->key.len, v->key.at,
                         kind);
    v->kind = (enum kind)kind;
    v->data = w->at;
    return v->kind == LIST ? list_pass(w, v, err) : value_pass(w, v->kind, v, err);
}

/* Name, shape, type and offset of a tensor; data: where offsets count from comes later, and is put in by tensors_place. */
static bool tensor_read(struct walk *w, struct gguf_tensor *t, uint64_t *offset, struct error *err)
{
    struct gguf_text name;
    uint64_t n_dim, type, dim;
    *t = (struct gguf_tensor){ .n_elem = 1 };
    if (!walk_text(w, &name, err) || !walk_number(w, 4, &n_dim, err))
        return false;
    if (name.len == 0 || name.len > GGUF_NAME_MAX || !text_is_plain(name))
        return error_set(err, ERR_DATA, "'%s': a tensor's name of %zu bytes is not a name", w->g->path, name.len);
    memcpy(t->name, name.at, name.len);
    if (n_dim < 1 || n_dim > GGUF_DIM_MAX)
        return error_set(err, ERR_DATA, "'%s': tensor '%s' has %" PRIu64 " dimensions; 1 to %d are possible", w->g->path, t->name, n_dim,
                         GGUF_DIM_MAX);
    t->n_dim = (int)n_dim;
    for (int i = t->n_dim; i-- > 0;) {
        if (!walk_number(w, 8, &dim, err))
            return false;
        if (dim < 1 || dim > INT64_MAX || __builtin_mul_overflow(t->n_elem, (int64_t)dim, &t->n_elem))
            return error_set(err, ERR_DATA, "'%s': tensor '%s' has an impossible shape", w->g->path, t->name);
        t->dim[i] = (int64_t)dim;
    }
    if (!walk_number(w, 4, &type, err) || !walk_number(w, 8, offset, err))
        return false;
    if (!(t->type = gguf_type_find((uint32_t)type)))
        return error_set(err, ERR_UNSUPPORTED,
                         "'%s': tensor '%s' has ggml's type %" PRIu64
                         "; F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K are read",
                         w->g->path, t->name, type);
    if (t->dim[t->n_dim - 1] % t->type->n_elem)
        return error_set(err, ERR_DATA, "'%s': tensor '%s' has rows of %" PRId64 " values; %s has blocks of %d", w->g->path, t->name,
                         t->dim[t->n_dim - 1], t->type->name, t->type->n_elem);
    return true;
}

static int value_compare(const void *a, const void *b)
{
    return gguf_text_compare(((const struct value *)a)->key, ((const struct value *)b)->key);
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static int place_compare(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;
    return (x->data > y->data) - (x->data < y->data);
}

/* Give each tensor its data; offset holds where in the data at `from` it begins. */
static bool tensors_place(struct gguf *g, const uint64_t *offset, uint64_t from, struct error *err)
{
    uint64_t bytes = from < g->map.size_bytes ? g->map.size_bytes - from : 0;
    for (int64_t i = 0; i < g->n_tensor; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        uint64_t size;
        if (__builtin_mul_overflow((uint64_t)(t->n_elem / t->type->n_elem), (uint64_t)t->type->n_bytes, &size) || size > bytes
            || offset[i] > bytes - size)
            return error_set(err, ERR_DATA,
                             "'%s': tensor '%s' lies outside of the file, which has %" PRIu64 " bytes of data; it may be truncated",
                             g->path, t->name, bytes);
        t->size_bytes = (size_t)size;
        t->data = g->map.data + from + offset[i];
    }
    // with overlapping tensors, a small hostile file could fill the disk
    if (g->n_tensor > 0)
        qsort(g->tensor, (size_t)g->n_tensor, sizeof *g->tensor, place_compare);
    for (int64_t i = 1; i < g->n_tensor; i++)
        if (g->tensor[i].data < g->tensor[i - 1].data + g->tensor[i - 1].size_bytes)
            return error_set(err, ERR_DATA, "'%s': tensors '%s' and '%s' overlap", g->path, g->tensor[i - 1].name, g->tensor[i].name);
    if (g->n_tensor > 0)
        qsort(g->tensor, (size_t)g->n_tensor, sizeof *g->tensor, name_compare);
    for (int64_t i = 1; i < g->n_tensor; i++)
        if (strcmp(g->tensor[i].name, g->tensor[i - 1].name) == 0)
            return error_set(err, ERR_DATA, "'%s': tensor '%s' is there twice", g->path, g->tensor[i].name);
    return true;
}

static bool values_read(struct gguf *g, struct walk *w, struct error *err)
{
    for (int64_t i = 0; i < g->n_value; i++)
        if (!value_read(w, &g->value[i], err))
            return false;
    if (g->n_value > 0)
        qsort(g->value, (size_t)g->n_value, sizeof *g->value, value_compare);
    for (int64_t i = 1; i < g->n_value; i++)
        if (value_compare(&g->value[i - 1], &g->value[i]) == 0)
            return error_set(err, ERR_DATA, "'%s': '%.*s' is there twice", g->path, (int)g->value[i].key.len, g->value[i].key.at);
    return true;
}

static bool tensors_read(struct gguf *g, struct walk *w, struct error *err)
{
    int64_t align = 32;
    bool ok = false;
    uint64_t *offset = calloc((size_t)g->n_tensor + 1, sizeof *offset);
    TRY(offset || error_set(err, ERR_NO_MEMORY, "no memory for the tensors of '%s'", g->path));
    for (int64_t i = 0; i < g->n_tensor; i++)
        TRY(tensor_read(w, &g->tensor[i], &offset[i], err));
    TRY(!gguf_has(g, "general.alignment") || gguf_int(g, "general.alignment", 1, 1 << 20, &align, err));
    uint64_t at = (uint64_t)(w->at - g->map.data), step = (uint64_t)align;
    TRY(tensors_place(g, offset, (at + step - 1) / step * step, err));
    ok = true;
out:
    free(offset);
    return ok;
}

static bool header_read(struct gguf *g, struct error *err)
{
    uint64_t version, n_tensor, n_value;
    if (g->map.size_bytes < 4 || memcmp(g->map.data, "GGUF", 4) != 0)
        return error_set(err, ERR_DATA, "'%s': not a GGUF file", g->path);
    struct walk w = { g->map.data + 4, g->map.data + g->map.size_bytes, g };
    if (!walk_number(&w, 4, &version, err))
        return false;
    if (version != 2 && version != 3)
        return error_set(err, ERR_UNSUPPORTED, "'%s': %s; versions 2 and 3 of GGUF are read, little endian", g->path,
                         version && version % (1 << 16) == 0 ? "it is big endian" : "its version is another");
    if (!walk_number(&w, 8, &n_tensor, err) || !walk_number(&w, 8, &n_value, err))
        return false;
    if (n_tensor > TENSORS_MAX || n_value > VALUES_MAX)
        return error_set(err, ERR_DATA, "'%s': %" PRIu64 " tensors and %" PRIu64 " values; at most %d and %d are possible", g->path,
                         n_tensor, n_value, TENSORS_MAX, VALUES_MAX);
    g->value = calloc((size_t)n_value + 1, sizeof *g->value);
    g->tensor = calloc((size_t)n_tensor + 1, sizeof *g->tensor);
    if (!g->value || !g->tensor)
        return error_set(err, ERR_NO_MEMORY, "no memory for the header of '%s'", g->path);
    g->n_value = (int64_t)n_value;
    g->n_tensor = (int64_t)n_tensor;
    return values_read(g, &w, err) && tensors_read(g, &w, err);
}

struct gguf *gguf_open(const char *path, struct error *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g || !(g->path = strdup(path))) {
        free(g);
        error_set(err, ERR_NO_MEMORY, "no memory to open '%s'", path);
        return NULL;
    }
    if (file_map_open(&g->map, path, err) && header_read(g, err))
        return g;
    gguf_close(g);
    return NULL;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    file_map_close(&g->map);
    free(g->value);
    free(g->tensor);
    free(g->path);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

bool gguf_is(const char *path)
{
    char magic[4] = { 0 };
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool is = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && read(fd, magic, 4) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (fd >= 0)
        close(fd);
    return is;
}

int64_t gguf_n_tensor(const struct gguf *g)
{
    return g->n_tensor;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, int64_t i)
{
    return &g->tensor[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct gguf_tensor key;
    if (strlen(name) > GGUF_NAME_MAX)
        return NULL;
    snprintf(key.name, sizeof key.name, "%s", name);
    return g->n_tensor ? bsearch(&key, g->tensor, (size_t)g->n_tensor, sizeof key, name_compare) : NULL;
}

/* ---- metadata ---- */

static const struct value *value_find(const struct gguf *g, const char *key)
{
    struct value v = { .key = { key, strlen(key) } };
    return g->n_value ? bsearch(&v, g->value, (size_t)g->n_value, sizeof v, value_compare) : NULL;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return value_find(g, key) != NULL;
}

/* Say what a value should be and is not. */
static bool value_wrong(const struct gguf *g, const char *key, const char *wanted, struct error *err)
{
    const struct value *v = value_find(g, key);
    if (!v)
        return error_set(err, ERR_DATA, "'%s': '%s' is missing", g->path, key);
    return error_set(err, ERR_DATA, "'%s': '%s' is of the kind %s%s; it must be %s", g->path, key, v->kind == LIST ? "list of " : "",
                     kinds[v->kind == LIST ? v->item : v->kind].name, wanted);
}

static bool kind_is_whole(enum kind k)
{
    return kinds[k].bytes && k != F32 && k != F64 && k != BOOL;
}

/* A whole number of a kind; false: the kind has none, or it is beyond an int64. */
static bool int_at(enum kind kind, const uint8_t *p, int64_t *out)
{
    if (!kind_is_whole(kind))
        return false;
    uint64_t u = le_read(p, kinds[kind].bytes);
    bool is_signed = kind == I8 || kind == I16 || kind == I32 || kind == I64;
    int unused = 64 - 8 * (int)kinds[kind].bytes;
    *out = is_signed ? (int64_t)(u << unused) >> unused : (int64_t)u;
    return is_signed || u <= INT64_MAX;
}

static float float_at(const uint8_t *p)
{
    uint32_t u = (uint32_t)le_read(p, 4);
    float f;
    memcpy(&f, &u, 4);
    return f;
}

bool gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, struct error *err)
{
    const struct value *v = value_find(g, key);
    int64_t n;
    if (!v || !int_at(v->kind, v->data, &n))
        return value_wrong(g, key, "a whole number", err);
    if (n < min || n > max)
        return error_set(err, ERR_DATA, "'%s': '%s' is %" PRId64 "; it must be between %" PRId64 " and %" PRId64, g->path, key, n, min,
                         max);
    *out = n;
    return true;
}

double gguf_decimal(float f)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, (double)f);
        if (strtof(text, NULL) == f)
            return strtod(text, NULL);
    }
    return (double)f;
}

bool gguf_real(const struct gguf *g, const char *key, double *out, struct error *err)
{
    const struct value *v = value_find(g, key);
    int64_t whole;
    double d;
    if (v && v->kind == F32)
        d = gguf_decimal(float_at(v->data));
    else if (v && v->kind == F64) {
        uint64_t u = le_read(v->data, 8);
        memcpy(&d, &u, 8);
    } else if (v && int_at(v->kind, v->data, &whole))
        d = (double)whole;
    else
        return value_wrong(g, key, "a number", err);
    if (!isfinite(d))
        return error_set(err, ERR_DATA, "'%s': '%s' is not finite", g->path, key);
    *out = d;
    return true;
}

bool gguf_bool(const struct gguf *g, const char *key, bool *out, struct error *err)
{
    const struct value *v = value_find(g, key);
    if (!v || v->kind != BOOL)
        return value_wrong(g, key, "a bool", err);
    *out = v->data[0] != 0;
    return true;
}

static struct gguf_text text_at(const uint8_t *p)
{
    return (struct gguf_text){ (const char *)p + 8, (size_t)le_read(p, 8) };
}

bool gguf_text(const struct gguf *g, const char *key, struct gguf_text *out, struct error *err)
{
    const struct value *v = value_find(g, key);
    if (!v || v->kind != TEXT)
        return value_wrong(g, key, "a text", err);
    *out = text_at(v->data);
    return true;
}

bool gguf_text_is(struct gguf_text t, const char *text)
{
    return t.len == strlen(text) && memcmp(t.at, text, t.len) == 0;
}

int gguf_text_compare(struct gguf_text a, struct gguf_text b)
{
    int c = memcmp(a.at, b.at, MIN(a.len, b.len));
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

bool gguf_texts(const struct gguf *g, const char *key, struct gguf_text **out, int64_t *n, struct error *err)
{
    const struct value *v = value_find(g, key);
    if (!v || v->kind != LIST || v->item != TEXT)
        return value_wrong(g, key, "a list of texts", err);
    struct gguf_text *list = calloc((size_t)v->n + 1, sizeof *list);
    if (!list)
        return error_set(err, ERR_NO_MEMORY, "'%s': no memory for the %" PRIu64 " texts of '%s'", g->path, v->n, key);
    const uint8_t *p = v->data;
    for (uint64_t i = 0; i < v->n; i++) {
        list[i] = text_at(p);
        p += 8 + list[i].len;
    }
    *out = list;
    *n = (int64_t)v->n;
    return true;
}

/* The list of n items that key names; NULL: err says why not. */
static const struct value *list_find(const struct gguf *g, const char *key, int64_t n, const char *wanted, bool fits(enum kind),
                                     struct error *err)
{
    const struct value *v = value_find(g, key);
    if (!v || v->kind != LIST || !fits(v->item)) {
        value_wrong(g, key, wanted, err);
        return NULL;
    }
    if (v->n != (uint64_t)n) {
        error_set(err, ERR_DATA, "'%s': '%s' has %" PRIu64 " items; it must have %" PRId64, g->path, key, v->n, n);
        return NULL;
    }
    return v;
}

static bool kind_is_f32(enum kind k)
{
    return k == F32;
}

bool gguf_ints(const struct gguf *g, const char *key, int64_t n, int32_t **out, struct error *err)
{
    const struct value *v = list_find(g, key, n, "a list of whole numbers", kind_is_whole, err);
    int32_t *list = v ? calloc((size_t)n + 1, sizeof *list) : NULL;
    if (!list)
        return v && error_set(err, ERR_NO_MEMORY, "'%s': no memory for the %" PRId64 " items of '%s'", g->path, n, key);
    for (int64_t i = 0; i < n; i++) {
        int64_t one;
        if (!int_at(v->item, v->data + (size_t)i * kinds[v->item].bytes, &one) || one < INT32_MIN || one > INT32_MAX) {
            free(list);
            return error_set(err, ERR_DATA, "'%s': item %" PRId64 " of '%s' is out of range", g->path, i, key);
        }
        list[i] = (int32_t)one;
    }
    *out = list;
    return true;
}

bool gguf_floats(const struct gguf *g, const char *key, int64_t n, float **out, struct error *err)
{
    const struct value *v = list_find(g, key, n, "a list of float32", kind_is_f32, err);
    float *list = v ? calloc((size_t)n + 1, sizeof *list) : NULL;
    if (!list)
        return v && error_set(err, ERR_NO_MEMORY, "'%s': no memory for the %" PRId64 " items of '%s'", g->path, n, key);
    for (int64_t i = 0; i < n; i++)
        list[i] = float_at(v->data + 4 * (size_t)i);
    *out = list;
    return true;
}
