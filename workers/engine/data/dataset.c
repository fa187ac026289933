#include "workers/engine/data/dataset.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "workers/engine/data/files.h"
#include "workers/engine/data/format.h"
#include "workers/engine/data/inflate.h"

#define TEXT_BYTES_MAX ((size_t)16 << 30)    // most bytes that are not mapped, in all files together
#define ROWS_MAX ((int64_t)1 << 31)

struct data_file {
    char *path;
    struct file_map map;    // the file, while it is needed
    struct buf inflated;    // its text when it was compressed
    struct reader reader;
    int64_t first_row;     // of the data set
    int64_t first_line;    // lines in the files before it
};
struct dataset {
    char *prompt, *answer, *template;    // columns named by the run; NULL: recognised
    struct data_file *file;              // (n_file)
    int n_file;
    struct row_place *place;    // (n_row) in their files
    int64_t n_row, cap_row;
    size_t kept_bytes;              // of text that is not mapped
    const struct layout *layout;    // of the first row; NULL: columns are named
    bool mixed;                     // some rows have another one
    bool whole;                     // answers at the end of conversations stay
    int64_t n_answered;             // rows whose answer was removed
    int64_t n_as_is;                // rows whose prompt is a text
    uint64_t hash;
};

static struct dataset_columns columns_of(const struct dataset *d)
{
    return (struct dataset_columns){ d->prompt, d->answer, d->template, d->whole };
}

json_t *dataset_line_parse(const char *line, size_t len, const struct dataset_columns *columns, const char *where, struct error *err)
{
    struct row_form form;
    json_t *row = row_parse(line, len, err);
    if (row && layout_apply(row, columns, &form, err))
        return row;
    error_wrap(err, "%s", where);
    json_decref(row);
    return NULL;
}

/* ---- rows ---- */

static const struct data_file *file_of(const struct dataset *d, int64_t i)
{
    BUG_IF(i < 0 || i >= d->n_row, "row %" PRId64 " of %" PRId64, i, d->n_row);
    int low = 0, high = d->n_file;    // the last file whose first row is not after i
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (d->file[mid].first_row <= i)
            low = mid;
        else
            high = mid;
    }
    return &d->file[low];
}

static const char *where_print(const struct data_file *f, int64_t line, char *out, size_t size)
{
    snprintf(out, size, f->reader.format->counts_lines ? "%.400s:%" PRId64 : "%.400s, row %" PRId64, f->path, line);
    return out;
}

const char *dataset_where(const struct dataset *d, int64_t i, char *out, size_t size)
{
    return where_print(file_of(d, i), d->place[i].line, out, size);
}

static json_t *row_read(const struct dataset *d, int64_t i, struct row_form *form, struct error *err)
{
    char where[512];
    const struct dataset_columns columns = columns_of(d);
    json_t *row = reader_row(&file_of(d, i)->reader, &d->place[i], err);
    if (row && layout_apply(row, &columns, form, err))
        return row;
    error_wrap(err, "%s", dataset_where(d, i, where, sizeof where));
    json_decref(row);
    return NULL;
}

json_t *dataset_row(const struct dataset *d, int64_t i, struct error *err)
{
    struct row_form form;
    return row_read(d, i, &form, err);
}

static bool place_add(struct dataset *d, const struct row_place *at, struct error *err)
{
    if (d->n_row == d->cap_row) {
        int64_t cap = MAX(d->cap_row * 2, (int64_t)1024);
        struct row_place *more = d->n_row >= ROWS_MAX ? NULL : realloc(d->place, (size_t)cap * sizeof *more);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " rows", cap);
        d->place = more;
        d->cap_row = cap;
    }
    d->place[d->n_row++] = *at;
    return true;
}

/* Add a file's rows, and check each by reading it. */
static bool rows_find(struct dataset *d, struct data_file *f, dataset_check_fn *check, void *arg, struct error *err)
{
    struct row_place at;
    struct row_form form;
    char where[512];
    for (;;) {
        bool done;
        if (!reader_next(&f->reader, &at, &done, err))
            return error_wrap(err, "%s", where_print(f, at.line, where, sizeof where));
        if (done)
            return true;
        if (!place_add(d, &at, err))
            return false;
        int64_t i = d->n_row - 1;
        json_t *row = row_read(d, i, &form, err);
        if (!row)
            return false;
        d->mixed |= i > 0 && form.layout != d->layout;
        d->layout = i > 0 ? d->layout : form.layout;
        d->n_answered += form.answered;
        d->n_as_is += form.as_is;
        bool ok = !check || check(arg, row, err) || error_wrap(err, "%s", where_print(f, at.line, where, sizeof where));
        json_decref(row);
        if (!ok)
            return false;
    }
}

/* ---- files ---- */

/* FNV-1a over 8-byte words and the rest. */
static uint64_t text_hash(const char *p, size_t len)
{
    uint64_t h = 0xCBF29CE484222325u, w;
    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x100000001B3u;
        h ^= h >> 29;
    }
    for (; len > 0; p++, len--)
        h = (h ^ (uint8_t)*p) * 0x100000001B3u;
    return h;
}

/* Read the file whose path is in f. */
static bool file_take(struct dataset *d, struct data_file *f, dataset_check_fn *check, void *arg, struct error *err)
{
    bool packed;
    f->first_row = d->n_row;
    f->first_line = f == d->file ? 0 : f[-1].first_line + f[-1].reader.line;
    f->inflated.max = TEXT_BYTES_MAX - d->kept_bytes;
    if (!file_map_open(&f->map, f->path, err) || !file_inflate(&f->inflated, f->map.data, f->map.size_bytes, f->path, &packed, err))
        return false;
    const char *text = packed ? buf_text(&f->inflated) : f->map.data ? (const char *)f->map.data : "";
    size_t len = packed ? f->inflated.len : f->map.size_bytes;
    if (packed)
        file_map_close(&f->map);
    uint64_t hash = text_hash(text, len);
    d->hash = f == d->file ? hash : (d->hash ^ hash) * 0x100000001B3u ^ hash >> 32;    // one file: as it ever was
    if (!reader_open(&f->reader, text, len, f->path, TEXT_BYTES_MAX - d->kept_bytes - f->inflated.len, err)
        || !rows_find(d, f, check, arg, err))
        return false;
    reader_finish(&f->reader);
    if (!f->reader.format->keeps_text) {
        buf_release(&f->inflated);
        file_map_close(&f->map);
    }
    d->kept_bytes += f->inflated.len + f->reader.built.len;
    return true;
}

static bool names_keep(struct dataset *d, const struct dataset_columns *c, struct error *err)
{
    const struct {
        const char *from;
        char **to;
    } names[] = { { c ? c->prompt : NULL, &d->prompt }, { c ? c->answer : NULL, &d->answer }, { c ? c->template : NULL, &d->template } };
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (names[i].from && names[i].from[0] && !(*names[i].to = strdup(names[i].from)))
            return error_set(err, ERR_NO_MEMORY, "no memory to open the data");
    return !d->template || prompt_template_check(d->template, err);
}

struct dataset *dataset_open(const char *name, const struct dataset_columns *columns, struct error *err)
{
    return dataset_open_checked(name, columns, NULL, NULL, err);
}

struct dataset *dataset_open_checked(const char *name, const struct dataset_columns *columns, dataset_check_fn *check, void *arg,
                                     struct error *err)
{
    struct dataset *d = calloc(1, sizeof *d);
    struct data_files files = { 0 };
    bool ok = false;
    TRY(d || error_set(err, ERR_NO_MEMORY, "no memory to open '%s'", name));
    d->whole = columns && columns->whole;
    TRY(names_keep(d, columns, err));
    TRY(data_files_find(&files, name, err));
    TRY((d->file = calloc((size_t)files.n, sizeof *d->file)) || error_set(err, ERR_NO_MEMORY, "no memory to open '%s'", name));
    for (; d->n_file < files.n;) {
        struct data_file *f = &d->file[d->n_file++];
        f->path = files.path[d->n_file - 1];
        files.path[d->n_file - 1] = NULL;    // f's now
        TRY(file_take(d, f, check, arg, err));
    }
    ok = d->n_row > 0 || error_set(err, ERR_DATA, "'%s' has no rows", name);
out:
    data_files_release(&files);
    if (ok)
        return d;
    dataset_free(d);
    return NULL;
}

void dataset_free(struct dataset *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_file; i++) {
        reader_close(&d->file[i].reader);
        buf_release(&d->file[i].inflated);
        file_map_close(&d->file[i].map);
        free(d->file[i].path);
    }
    free(d->file);
    free(d->place);
    free(d->prompt);
    free(d->answer);
    free(d->template);
    free(d);
}

int64_t dataset_n_row(const struct dataset *d)
{
    return d->n_row;
}

int64_t dataset_line(const struct dataset *d, int64_t i)
{
    return file_of(d, i)->first_line + d->place[i].line;
}

int dataset_n_file(const struct dataset *d)
{
    return d->n_file;
}

const char *dataset_file(const struct dataset *d, int i)
{
    return d->file[i].path;
}

int64_t dataset_file_line(const struct dataset *d, int i)
{
    return d->file[i].first_line + 1;
}

int64_t dataset_n_answered(const struct dataset *d)
{
    return d->n_answered;
}

uint64_t dataset_hash(const struct dataset *d)
{
    return d->hash;
}

void dataset_describe(const struct dataset *d, struct buf *out)
{
    const struct dataset_columns columns = columns_of(d);
    bool same = true;
    for (int i = 1; i < d->n_file; i++)
        same = same && d->file[i].reader.format == d->file[0].reader.format;
    if (d->n_file > 1)
        buf_fmt(out, "%d %s files; ", d->n_file, same ? d->file[0].reader.format->name : "different");
    else
        buf_fmt(out, "%s; ", d->file[0].reader.format->name);
    layout_describe(d->layout, &columns, out);
    if (d->mixed)
        buf_str(out, " (of the first row; others have other layouts)");
    if (d->n_as_is > 0)
        buf_fmt(out, "; %" PRId64 " of the rows have a text there, which is continued as it is", d->n_as_is);
    if (d->n_answered > 0)
        buf_fmt(out, "; %" PRId64 " of the rows end with the assistant's answer, which is not shown to the model", d->n_answered);
}
