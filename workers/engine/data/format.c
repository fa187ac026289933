#include "workers/engine/data/format.h"
#include <string.h>

/* Tried in this order; an unknown kind is read as JSON lines, whose errors say what is wrong where. */
static const struct data_format *const formats[] = { &format_parquet, &format_json_array, &format_csv, &format_json_lines };

#define PANDAS(call) "convert it: python3 -c \"import pandas; pandas." call "('%s').to_json('data.jsonl', orient='records', lines=True)\""

/* Files that people keep data in and that cannot be read. advice may name the path once. */
static const struct {
    const char *magic;
    size_t len, at;    // bytes of magic, and their offset
    const char *name, *advice;
} unreadable[] = {
    { "ARROW1", 6, 0, "an Arrow file", PANDAS("read_feather") },
    { "\xFF\xFF\xFF\xFF", 4, 0, "an Arrow stream, as the datasets library keeps for itself",
      "export it: python3 -c \"import datasets; datasets.Dataset.from_file('%s').to_parquet('data.parquet')\"" },
    { "ORC", 3, 0, "an ORC file", PANDAS("read_orc") },
    { "Obj\x01", 4, 0, "an Avro file", "convert it to Parquet or JSON lines" },
    { "SQLite format 3", 15, 0, "an SQLite database",
      "export the table as CSV: sqlite3 -header -csv '%s' 'select * from TABLE' > data.csv" },
    { "PK\x03\x04", 4, 0, "a zip file, or a spreadsheet", "unpack it, or save the sheet as CSV" },
    { "\x89HDF\r\n", 6, 0, "an HDF5 file", PANDAS("read_hdf") },
    { "\x93NUMPY", 6, 0, "a NumPy array", "write the texts as JSON lines" },
    { "BZh", 3, 0, "compressed with bzip2", "unpack it with bunzip2, or pack it with gzip or zstd" },
    { "\xFD"
      "7zXZ",
      5, 0, "compressed with xz", "unpack it with unxz, or pack it with gzip or zstd" },
    { "ustar", 5, 257, "a tar archive", "unpack it and name the files in it" },
    { "\x80\x03", 2, 0, "a Python pickle", "write it as JSON lines; a pickle can run any code" },
    { "\x80\x04", 2, 0, "a Python pickle", "write it as JSON lines; a pickle can run any code" },
    { "\x80\x02", 2, 0, "a Python pickle", "write it as JSON lines; a pickle can run any code" },
    { "\x80\x05", 2, 0, "a Python pickle", "write it as JSON lines; a pickle can run any code" },
    { "\0\0\0\0{\"", 6, 4, "a safetensors file", "it holds weights; data are rows of text" },
    { "GGUF", 4, 0, "a GGUF file", "it holds weights; data are rows of text" },
    { "%PDF", 4, 0, "a PDF", "data are rows of text" },
    { "version https://git-lfs", 23, 0, "not the file itself but a pointer of Git LFS to it", "get it with 'git lfs pull'" },
    { "<!DOCTYPE", 9, 0, "a web page", "the download has gone wrong; get the file itself" },
    { "<html", 5, 0, "a web page", "the download has gone wrong; get the file itself" },
};

static bool unreadable_check(const char *p, size_t len, const char *path, struct error *err)
{
    char advice[1024];
    for (size_t i = 0; i < ARRAY_SIZE(unreadable); i++) {
        if (len < unreadable[i].at + unreadable[i].len || memcmp(p + unreadable[i].at, unreadable[i].magic, unreadable[i].len) != 0)
            continue;
        const char *hole = strstr(unreadable[i].advice, "%s");
        snprintf(advice, sizeof advice, "%.*s%.500s%s", (int)(hole ? hole - unreadable[i].advice : (ptrdiff_t)strlen(unreadable[i].advice)),
                 unreadable[i].advice, hole ? path : "", hole ? hole + 2 : "");
        return error_set(err, ERR_DATA, "'%s' is %s, which cannot be read; %s", path, unreadable[i].name, advice);
    }
    return true;
}

bool reader_open(struct reader *r, const char *text, size_t len, const char *path, size_t built_max, struct error *err)
{
    *r = (struct reader){ .text = text, .len = len, .built = { .max = built_max } };
    if (!unreadable_check(text, len, path, err))
        return false;
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        r->at = 3;    // a byte order mark
    for (size_t i = 0; i < ARRAY_SIZE(formats) && !r->format; i++)
        if (i + 1 == ARRAY_SIZE(formats) || formats[i]->recognise(text + r->at, len - r->at))
            r->format = formats[i];
    return !r->format->open || r->format->open(r, err) || error_wrap(err, "'%s', a %s file", path, r->format->name);
}

bool reader_next(struct reader *r, struct row_place *at, bool *done, struct error *err)
{
    return r->format->next(r, at, done, err);
}

json_t *reader_row(const struct reader *r, const struct row_place *at, struct error *err)
{
    return r->format->row(r, at, err);
}

void reader_finish(struct reader *r)
{
    if (r->format->finish)
        r->format->finish(r);
    if (!r->format->keeps_text)
        r->text = NULL;
}

void reader_close(struct reader *r)
{
    if (r->format && r->format->close)
        r->format->close(r);
    buf_release(&r->built);
    *r = (struct reader){ 0 };
}
