#include "workers/engine/model/safetensors.h"
#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"

#define HEADER_BYTES_MAX (100u << 20)    // the limit of the reference implementation
#define SHARDS_MAX 4096
#define TENSORS_MAX (1 << 20)
#define PIECE_BYTES ((size_t)4 << 20)    // of values that are made while they are written; a power of two

struct shard {
    struct file_map map;
    char *path;
    json_t *header;    // keeps the tensors' names alive
};
struct shards {
    struct shard *file;
    int64_t n_file;
    struct st_tensor *tensor;    // sorted by name
    int64_t n_tensor, cap;
};

static uint64_t le64_read(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

void shards_close(struct shards *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->n_file; i++) {
        file_map_close(&s->file[i].map);
        json_decref(s->file[i].header);
        free(s->file[i].path);
    }
    free(s->file);
    free(s->tensor);
    free(s);
}

static const struct dtype_row {
    const char *name;
    enum st_dtype dtype;
    size_t bits;
} dtypes[] = {
    { "F32", ST_F32, 32 },   { "F16", ST_F16, 16 },   { "BF16", ST_BF16, 16 }, { "F64", ST_OTHER, 64 },    { "I64", ST_OTHER, 64 },
    { "I32", ST_OTHER, 32 }, { "I16", ST_OTHER, 16 }, { "I8", ST_OTHER, 8 },   { "U64", ST_OTHER, 64 },    { "U32", ST_OTHER, 32 },
    { "U16", ST_OTHER, 16 }, { "U8", ST_OTHER, 8 },   { "BOOL", ST_OTHER, 8 }, { "F8_E4M3", ST_OTHER, 8 }, { "F8_E5M2", ST_OTHER, 8 },
};

/* One entry of a header: {"dtype":…, "shape":[…], "data_offsets":[begin, end]}, offsets from the end of the header. */
static bool tensor_read(struct st_tensor *t, const char *name, const json_t *v, const struct shard *f, const uint8_t *data,
                        uint64_t data_bytes, struct error *err)
{
    const json_t *dtype = json_object_get(v, "dtype"), *shape = json_object_get(v, "shape");
    const json_t *off = json_object_get(v, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(off) || json_array_size(off) != 2)
        return error_set(err, ERR_DATA, "'%s': tensor '%s' has no dtype, shape or data_offsets", f->path, name);
    *t = (struct st_tensor){ .name = name, .dtype = ST_OTHER, .n_elem = 1, .file = f->path };
    size_t bits = 0;
    for (size_t i = 0; i < ARRAY_SIZE(dtypes); i++)
        if (strcmp(json_string_value(dtype), dtypes[i].name) == 0) {
            t->dtype = dtypes[i].dtype;
            bits = dtypes[i].bits;
        }
    if (json_array_size(shape) > ST_DIM_MAX)
        t->dtype = ST_OTHER;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const json_t *d = json_array_get(shape, i);
        int64_t n = json_integer_value(d);
        if (!json_is_integer(d) || n < 0 || __builtin_mul_overflow(t->n_elem, n, &t->n_elem))
            return error_set(err, ERR_DATA, "'%s': tensor '%s' has an impossible shape", f->path, name);
        if (i < ST_DIM_MAX)
            t->dim[t->n_dim++] = n;
    }
    const json_t *b = json_array_get(off, 0), *e = json_array_get(off, 1);
    if (!json_is_integer(b) || !json_is_integer(e) || json_integer_value(b) < 0 || json_integer_value(e) < json_integer_value(b)
        || (uint64_t)json_integer_value(e) > data_bytes)
        return error_set(err, ERR_DATA,
                         "'%s': tensor '%s' lies outside of the file, which has %" PRIu64 " bytes of data; it may be "
                         "truncated",
                         f->path, name, data_bytes);
    t->size_bytes = (size_t)(json_integer_value(e) - json_integer_value(b));
    t->data = data + json_integer_value(b);
    if (bits && ((uint64_t)t->n_elem > SIZE_MAX / 8 || (uint64_t)t->n_elem * (bits / 8) != t->size_bytes))
        return error_set(err, ERR_DATA, "'%s': tensor '%s' has %zu bytes, its shape says %" PRId64 " elements of %s", f->path, name,
                         t->size_bytes, t->n_elem, json_string_value(dtype));
    return true;
}

static int offset_compare(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    return x->data != y->data ? (x->data < y->data ? -1 : 1) : (x->size_bytes > y->size_bytes) - (x->size_bytes < y->size_bytes);
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static bool file_open(struct shards *s, const char *path, struct error *err)
{
    struct shard *f = &s->file[s->n_file++];    // from here on shards_close closes it
    f->path = strdup(path);
    if (!f->path)
        return error_set(err, ERR_NO_MEMORY, "no memory to open '%s'", path);
    if (!file_map_open(&f->map, path, err))
        return false;
    if (f->map.size_bytes < 8 || le64_read(f->map.data) > f->map.size_bytes - 8)    // this way round nothing overflows
        return error_set(err, ERR_DATA, "'%s': its header does not fit into its %zu bytes; not a safetensors file or truncated", path,
                         f->map.size_bytes);
    uint64_t len = le64_read(f->map.data);
    if (len > HEADER_BYTES_MAX)
        return error_set(err, ERR_DATA, "'%s': a header of %" PRIu64 " bytes is too large", path, len);
    json_error_t je;
    f->header = json_text_read((const char *)f->map.data + 8, (size_t)len, JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(f->header))
        return error_set(err, f->header ? ERR_DATA : json_text_code(&je), "'%s': its header is not valid JSON: %s", path,
                         f->header ? "not an object" : je.text);
    const uint8_t *data = f->map.data + 8 + len;
    uint64_t data_bytes = f->map.size_bytes - 8 - len;
    const char *name;
    json_t *v;
    int64_t first = s->n_tensor;
    json_object_foreach(f->header, name, v)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (s->n_tensor == s->cap) {
            int64_t cap = s->cap ? s->cap * 2 : 256;
            struct st_tensor *more = cap <= TENSORS_MAX ? realloc(s->tensor, (size_t)cap * sizeof *more) : NULL;
            if (!more)
                return cap > TENSORS_MAX ? error_set(err, ERR_DATA, "'%s': more than %" PRId64 " tensors", path, s->cap)
                                         : error_set(err, ERR_NO_MEMORY, "no memory for the tensors of '%s'", path);
            s->tensor = more;
            s->cap = cap;
        }
        if (!tensor_read(&s->tensor[s->n_tensor], name, v, f, data, data_bytes, err))
            return false;
        s->n_tensor++;
    }
    // with overlapping tensors, a small hostile file could fill the memory
    if (s->n_tensor > first)
        qsort(s->tensor + first, (size_t)(s->n_tensor - first), sizeof *s->tensor, offset_compare);
    for (int64_t i = first + 1; i < s->n_tensor; i++)
        if (s->tensor[i].data < s->tensor[i - 1].data + s->tensor[i - 1].size_bytes)
            return error_set(err, ERR_DATA, "'%s': tensors '%s' and '%s' overlap", path, s->tensor[i - 1].name, s->tensor[i].name);
    return true;
}

static bool names_sort(struct shards *s, struct error *err)
{
    if (s->n_tensor > 0)
        qsort(s->tensor, (size_t)s->n_tensor, sizeof *s->tensor, name_compare);
    for (int64_t i = 1; i < s->n_tensor; i++)
        if (strcmp(s->tensor[i].name, s->tensor[i - 1].name) == 0)
            return error_set(err, ERR_DATA, "tensor '%s' is in '%s' and again in '%s'", s->tensor[i].name, s->tensor[i - 1].file,
                             s->tensor[i].file);
    return true;
}

static struct shards *shards_alloc(int64_t n, struct error *err)
{
    struct shards *s = calloc(1, sizeof *s);
    if (s && !(s->file = calloc((size_t)n, sizeof *s->file))) {
        free(s);
        s = NULL;
    }
    if (!s)
        error_set(err, ERR_NO_MEMORY, "no memory for a list of weight files");
    return s;
}

struct shards *shards_open_file(const char *path, struct error *err)
{
    struct shards *s = shards_alloc(1, err);
    if (s && (!file_open(s, path, err) || !names_sort(s, err))) {
        shards_close(s);
        s = NULL;
    }
    return s;
}

/* The files of an index: the distinct values of its weight_map. */
static struct shards *index_open(const char *dir, const char *path, struct error *err)
{
    bool ok = false;
    struct shards *s = NULL;
    struct buf text = BUF_INIT;
    json_t *root = NULL, *seen = json_object();
    TRY(file_read_text(&text, path, HEADER_BYTES_MAX, err));
    TRY(root = json_text_parse(buf_text(&text), text.len, 0, path, err));
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        error_set(err, ERR_DATA, "'%s': no 'weight_map' in it", path);
        goto out;
    }
    const char *name;
    json_t *v;
    json_object_foreach(map, name, v)
    {
        const char *file = json_string_value(v);
        if (!file || !*file || strchr(file, '/') || strcmp(file, "..") == 0) {
            error_set(err, ERR_DATA, "'%s': the file of tensor '%s' is not a plain file name", path, name);
            goto out;
        }
        json_object_set_new(seen, file, json_true());
    }
    if (json_object_size(seen) > SHARDS_MAX) {
        error_set(err, ERR_DATA, "'%s': names %zu files; at most %d are possible", path, json_object_size(seen), SHARDS_MAX);
        goto out;
    }
    TRY(s = shards_alloc((int64_t)json_object_size(seen), err));
    json_object_foreach(seen, name, v)
    {
        char file[4096];
        if (!path_join(file, sizeof file, dir, name)) {
            error_set(err, ERR_USAGE, "the path '%s/%s' is too long", dir, name);
            goto out;
        }
        TRY(file_open(s, file, err));
    }
    TRY(names_sort(s, err));
    json_object_foreach(map, name, v)
    {
        const struct st_tensor *t = shards_find(s, name);
        if (!t) {
            error_set(err, ERR_DATA, "'%s': tensor '%s' is not in '%s'", path, name, json_string_value(v));
            goto out;
        }
    }
    ok = true;
out:
    json_decref(root);
    json_decref(seen);
    buf_release(&text);
    if (!ok) {
        shards_close(s);
        s = NULL;
    }
    return s;
}

struct shards *shards_open(const char *dir, struct error *err)
{
    char path[4096];
    if (!path_join(path, sizeof path, dir, "model.safetensors.index.json")) {
        error_set(err, ERR_USAGE, "the path '%s' is too long", dir);
        return NULL;
    }
    char one[4096];
    path_join(one, sizeof one, dir, "model.safetensors");
    if (path_exists(one))
        return shards_open_file(one, err);
    if (path_exists(path))
        return index_open(dir, path, err);
    error_set(err, ERR_NOT_FOUND, "'%s' holds neither model.safetensors nor model.safetensors.index.json", dir);
    return NULL;
}

int64_t shards_n(const struct shards *s)
{
    return s->n_tensor;
}

const struct st_tensor *shards_at(const struct shards *s, int64_t i)
{
    return &s->tensor[i];
}

const struct st_tensor *shards_find(const struct shards *s, const char *name)
{
    struct st_tensor key = { .name = name };
    return s->n_tensor ? bsearch(&key, s->tensor, (size_t)s->n_tensor, sizeof key, name_compare) : NULL;
}

static float f32_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

float st_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023;
    if (exp == 31)
        return f32_of(sign | 0x7f800000 | man << 13);
    if (exp == 0) {
        float f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    return f32_of(sign | (exp + 112) << 23 | man << 13);
}

/* Round to nearest even; a NaN stays one. */
static uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void st_part_to_f32(float *out, const struct st_tensor *t, int64_t first, int64_t n)
{
    BUG_IF(t->dtype == ST_OTHER, "tensor '%s' has no float type", t->name);
    if (t->dtype == ST_F32) {
        memcpy(out, t->data + 4 * first, 4 * (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, t->data + 2 * (first + i), 2);
        out[i] = t->dtype == ST_BF16 ? f32_of((uint32_t)h << 16) : st_half(h);
    }
}

int64_t st_values_broken(const void *values, bool bf16, int64_t n)
{
    const uint32_t all = bf16 ? 0x7f80 : 0x7f800000;    // of the exponent: infinities and NaNs
    for (int64_t at = 0, end; at < n; at = end) {
        bool any = false;
        end = MIN(at + 4096, n);
        if (bf16)
            for (int64_t i = at; i < end; i++)
                any |= (((const uint16_t *)values)[i] & all) == all;
        else
            for (int64_t i = at; i < end; i++)
                any |= (((const uint32_t *)values)[i] & all) == all;
        for (int64_t i = at; any && i < end; i++)
            if (((bf16 ? ((const uint16_t *)values)[i] : ((const uint32_t *)values)[i]) & all) == all)
                return i;
    }
    return -1;
}

bool st_broken(const struct st_tensor *t, int64_t i, struct error *err)
{
    return error_set(err, ERR_DATA, "'%s': value %" PRId64 " of tensor '%s' is not finite", t->file, i, t->name);
}

void st_part_to_bf16(uint16_t *out, const struct st_tensor *t, int64_t first, int64_t n)
{
    BUG_IF(t->dtype == ST_OTHER, "tensor '%s' has no float type", t->name);
    if (t->dtype == ST_BF16) {
        memcpy(out, t->data + 2 * first, 2 * (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = 0;
        memcpy(&u, t->data + (t->dtype == ST_F32 ? 4 : 2) * (first + i), t->dtype == ST_F32 ? 4 : 2);
        out[i] = f32_to_bf16(t->dtype == ST_F32 ? f32_of(u) : st_half((uint16_t)u));
    }
}

void st_to_f32(float *out, const struct st_tensor *t)
{
    st_part_to_f32(out, t, 0, t->n_elem);
}

void st_to_bf16(uint16_t *out, const struct st_tensor *t)
{
    st_part_to_bf16(out, t, 0, t->n_elem);
}

static bool fd_write(int fd, const void *data, size_t len, const char *path, struct error *err)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, MIN(len, (size_t)1 << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, "cannot write '%s'", path);
        p += n;
        len -= (size_t)n;
    }
    return true;
}

/* The header of a file: JSON padded with spaces to 8 bytes, tensors in the order given, data without gaps. */
static bool header_make(struct buf *h, const struct st_out *tensor, int64_t n, struct error *err)
{
    static const char *const names[] = { [ST_F32] = "F32", [ST_F16] = "F16", [ST_BF16] = "BF16" };
    h->max = HEADER_BYTES_MAX;
    buf_str(h, "{\"__metadata__\":{\"format\":\"pt\"}");
    uint64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t size = st_dtype_size(tensor[i].dtype);
        buf_fmt(h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensor[i].name, names[tensor[i].dtype]);
        for (int d = 0; d < tensor[i].n_dim; d++) {
            buf_fmt(h, "%s%" PRId64, d ? "," : "", tensor[i].dim[d]);
            size *= (uint64_t)tensor[i].dim[d];
        }
        buf_fmt(h, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, (at + size));
        at += size;
    }
    buf_char(h, '}');
    while (h->len % 8 && !h->failed)
        buf_char(h, ' ');
    return h->failed ? error_set(err, ERR_NO_MEMORY, "no memory for the header of %" PRId64 " tensors", n) : true;
}

static bool values_write(int fd, const struct st_out *t, const char *path, struct error *err)
{
    size_t slice = st_dtype_size(t->dtype);
    for (int d = 1; d < t->n_dim; d++)
        slice *= (size_t)t->dim[d];
    if (t->data)
        return fd_write(fd, t->data, slice * (size_t)t->dim[0], path, err);
    int64_t most = slice < PIECE_BYTES ? (int64_t)(PIECE_BYTES / slice) : 1;
    void *piece = malloc(slice * (size_t)MIN(most, t->dim[0]) + 1);
    bool ok = piece || error_set(err, ERR_NO_MEMORY, "no memory to write '%s'", path);
    for (int64_t first = 0, n; ok && first < t->dim[0]; first += n) {
        n = MIN(most, t->dim[0] - first);
        ok = t->fill(t->source, piece, first, n, err) && fd_write(fd, piece, slice * (size_t)n, path, err);
    }
    free(piece);
    return ok;
}

bool st_write(const char *path, const struct st_out *tensor, int64_t n, struct error *err)
{
    bool ok = false;
    int fd = -1;
    char tmp[4096], dir[4096];
    struct buf h = BUF_INIT;
    if (snprintf(tmp, sizeof tmp, "%s.part-%d", path, (int)getpid()) >= (int)sizeof tmp)
        return error_set(err, ERR_USAGE, "the path '%s' is too long", path);
    TRY(header_make(&h, tensor, n, err));
    fd = file_create(tmp, O_WRONLY | O_TRUNC, 0644, err);
    if (fd < 0)
        goto out;
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)h.len >> 8 * i);
    TRY(fd_write(fd, len, sizeof len, tmp, err));
    TRY(fd_write(fd, h.data, h.len, tmp, err));
    for (int64_t i = 0; i < n; i++)
        TRY(values_write(fd, &tensor[i], tmp, err));
    if (fsync(fd) != 0) {
        error_errno(err, "cannot sync '%s'", tmp);
        goto out;
    }
    int written = fd;
    fd = -1;
    if (close(written) != 0) {
        error_errno(err, "cannot write '%s'", tmp);
        goto out;
    }
    if (rename(tmp, path) != 0) {
        error_errno(err, "cannot rename '%s' to '%s'", tmp, path);
        goto out;
    }
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        *slash = 0;
    TRY(dir_sync(slash ? (dir[0] ? dir : "/") : ".", err));
    ok = true;
out:
    if (fd >= 0)
        close(fd);
    if (!ok)
        unlink(tmp);
    buf_release(&h);
    return ok;
}
