#include "workers/engine/data/dataset.h"
#include <inttypes.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include "protocol/base/buf.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"

#define TEXT_BYTES_MAX ((size_t)16 << 30)    // of a decompressed file
#define LINE_BYTES_MAX ((size_t)64 << 20)
#define ROWS_MAX ((int64_t)1 << 31)

struct place {
    uint64_t at;    // first byte of the line in the text
    uint32_t len;
    int64_t line;    // from 1
};
struct dataset {
    char *path;
    char *prompt, *answer;    // column names, NULL: the usual
    struct file_map map;      // the file
    struct buf inflated;      // its text when it was compressed
    const char *text;         // in map or inflated
    size_t text_len;
    struct place *place;    // (n_row)
    int64_t n_row, cap_row;
    uint64_t hash;
};

/* ---- compressed files ---- */

static bool inflate_gzip(struct dataset *d, struct error *err)
{
    z_stream z = { 0 };
    if (inflateInit2(&z, 15 + 32) != Z_OK)
        return error_set(err, ERR_NO_MEMORY, "no memory to decompress '%s'", d->path);
    const uint8_t *in = d->map.data;
    size_t left = d->map.size_bytes;
    int got = Z_OK;
    bool ok = true;
    while (ok && (left > 0 || z.avail_in > 0 || got != Z_STREAM_END)) {
        if (z.avail_in == 0) {
            if (left == 0) {
                ok = error_set(err, ERR_DATA, "'%s' ends inside its compressed data", d->path);
                break;
            }
            z.next_in = (Bytef *)(uintptr_t)in;
            z.avail_in = (uInt)MIN(left, (size_t)1 << 30);
            in += z.avail_in;
            left -= z.avail_in;
        }
        if (got == Z_STREAM_END && inflateReset(&z) != Z_OK) {    // files put together are read one after the other
            ok = error_set(err, ERR_DATA, "'%s' cannot be decompressed", d->path);
            break;
        }
        char *out = buf_reserve(&d->inflated, 1 << 18);
        if (!out) {
            ok = error_set(err, ERR_DATA, "'%s' is larger than %zu bytes when decompressed, or than memory", d->path, TEXT_BYTES_MAX);
            break;
        }
        z.next_out = (Bytef *)out;
        z.avail_out = 1 << 18;
        got = inflate(&z, Z_NO_FLUSH);
        d->inflated.len += (1 << 18) - z.avail_out;
        if (got != Z_OK && got != Z_STREAM_END)
            ok = error_set(err, ERR_DATA, "'%s' cannot be decompressed: %s", d->path, z.msg ? z.msg : "damaged data");
    }
    inflateEnd(&z);
    return ok;
}

static bool inflate_zstd(struct dataset *d, struct error *err)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    if (!z)
        return error_set(err, ERR_NO_MEMORY, "no memory to decompress '%s'", d->path);
    ZSTD_inBuffer in = { d->map.data, d->map.size_bytes, 0 };
    size_t hint = 1;
    bool ok = true;
    while (ok) {
        char *at = buf_reserve(&d->inflated, 1 << 18);
        if (!at) {
            ok = error_set(err, ERR_DATA, "'%s' is larger than %zu bytes when decompressed, or than memory", d->path, TEXT_BYTES_MAX);
            break;
        }
        ZSTD_outBuffer out = { at, 1 << 18, 0 };
        hint = ZSTD_decompressStream(z, &out, &in);
        d->inflated.len += out.pos;
        if (ZSTD_isError(hint))
            ok = error_set(err, ERR_DATA, "'%s' cannot be decompressed: %s", d->path, ZSTD_getErrorName(hint));
        else if (in.pos == in.size && out.pos < out.size)
            break;
    }
    if (ok && hint != 0)
        ok = error_set(err, ERR_DATA, "'%s' ends inside its compressed data", d->path);
    ZSTD_freeDStream(z);
    return ok;
}

/* ---- rows ---- */

static bool message_check(const json_t *m, size_t i, const char *where, struct error *err)
{
    const json_t *content = json_object_get(m, "content");
    if (!json_is_object(m))
        return error_set(err, ERR_DATA, "%s: messages[%zu] is not an object with 'role' and 'content'", where, i);
    if (!json_is_string(json_object_get(m, "role")))
        return error_set(err, ERR_DATA, "%s: messages[%zu] has no string 'role'", where, i);
    if (!json_is_string(content) && !json_is_array(content)
        && !(json_is_null(content) || !content ? json_object_get(m, "tool_calls") : NULL))
        return error_set(err, ERR_DATA, "%s: messages[%zu] has no string 'content'", where, i);
    return true;
}

/* Put the question's text in as a list of one user message. */
static bool question_set(json_t *row, const char *column, const char *where, struct error *err)
{
    const json_t *q = json_object_get(row, column);
    if (!json_is_string(q))
        return error_set(err, ERR_DATA, "%s: '%s' is %s", where, column, q ? "not a string" : "missing");
    json_t *list = json_pack("[{s:s, s:O}]", "role", "user", "content", q);
    return (list && json_object_set_new(row, "messages", list) == 0) || error_set(err, ERR_NO_MEMORY, "no memory for a row");
}

/* A number as the text it has in the file, near enough: integers exactly, others in the shortest form that reads back.
 */
static json_t *number_text(const json_t *v)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    json_t *s = text ? json_string(text) : NULL;
    free(text);
    return s;
}

/* The answer: behind the last "####" when there is one (GSM8K), without blanks around; there, commas in numbers go. */
static json_t *answer_text(const char *text)
{
    const char *from = text, *hash;
    while ((hash = strstr(from, "####")))
        from = hash + 4;
    size_t skip = strspn(from, " \t\r\n"), len = strlen(from + skip);
    while (len > 0 && strchr(" \t\r\n", from[skip + len - 1]))
        len--;
    if (from == text)
        return json_stringn(text + skip, len);
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < len; i++) {
        const char *p = from + skip + i;
        bool comma = *p == ',' && i > 0 && p[-1] >= '0' && p[-1] <= '9' && p[1] >= '0' && p[1] <= '9';
        if (!comma)
            buf_char(&b, *p);
    }
    json_t *s = b.failed ? NULL : json_stringn(buf_text(&b), b.len);
    buf_release(&b);
    return s;
}

static bool answer_set(json_t *row, const char *column, const char *where, struct error *err)
{
    json_t *a = json_object_get(row, column);
    json_t *s = json_is_string(a) ? answer_text(json_string_value(a)) : json_is_number(a) ? number_text(a) : NULL;
    if (!json_is_string(a) && !json_is_number(a))
        return error_set(err, ERR_DATA, "%s: '%s' is %s", where, column, a ? "neither a string nor a number" : "missing");
    return (s && json_object_set_new(row, "gt_answer", s) == 0) || error_set(err, ERR_NO_MEMORY, "no memory for a row");
}

static bool tests_check(json_t *row, const char *where, struct error *err)
{
    json_t *tests = json_object_get(row, "test_cases");
    json_error_t why;
    if (!tests || json_is_null(tests))
        return true;
    if (json_is_string(tests)) {
        json_t *read = json_text_read(json_string_value(tests), json_string_length(tests), JSON_REJECT_DUPLICATES, &why);
        if (!read)
            return error_set(err, json_text_code(&why), "%s: the JSON in 'test_cases' is wrong: %s", where, why.text);
        if (json_object_set_new(row, "test_cases", read) != 0)
            return error_set(err, ERR_NO_MEMORY, "no memory for a row");
        tests = read;
    }
    const json_t *in = json_object_get(tests, "inputs"), *out = json_object_get(tests, "outputs");
    if (!json_is_array(in) || !json_is_array(out))
        return error_set(err, ERR_DATA, "%s: 'test_cases' needs the lists 'inputs' and 'outputs'", where);
    if (json_array_size(in) != json_array_size(out) || json_array_size(in) == 0)
        return error_set(err, ERR_DATA, "%s: 'test_cases' has %zu inputs and %zu outputs; as many of both are needed, at least one", where,
                         json_array_size(in), json_array_size(out));
    return true;
}

static bool row_shape(json_t *row, const struct dataset_columns *columns, const char *where, struct error *err)
{
    const char *prompt = columns && columns->prompt && columns->prompt[0] ? columns->prompt : NULL;
    const char *answer = columns && columns->answer && columns->answer[0] ? columns->answer : NULL;
    bool gsm8k = !prompt && !json_object_get(row, "messages") && json_object_get(row, "question");
    if (gsm8k)
        prompt = "question";
    if (gsm8k && !answer && !json_object_get(row, "gt_answer") && json_object_get(row, "answer"))
        answer = "answer";
    if (prompt && !question_set(row, prompt, where, err))
        return false;
    json_t *messages = json_object_get(row, "messages"), *one;
    if (!messages)
        return error_set(err, ERR_DATA, "%s: 'messages' is missing; name the columns if the file has others", where);
    if (json_is_object(messages)) {
        json_t *list = json_pack("[O]", messages);
        if (!list || json_object_set_new(row, "messages", list) != 0)
            return error_set(err, ERR_NO_MEMORY, "no memory for a row");
        messages = list;
    }
    size_t i;
    if (json_array_size(messages) == 0)
        return error_set(err, ERR_DATA, "%s: 'messages' is neither a message nor a list of messages", where);
    json_array_foreach(messages, i, one) if (!message_check(one, i, where, err)) return false;
    if (answer) {
        if (!answer_set(row, answer, where, err))
            return false;
    } else {
        json_t *gt = json_object_get(row, "gt_answer"), *s = NULL;
        if (gt && !json_is_string(gt) && !json_is_null(gt) && !json_is_number(gt))
            return error_set(err, ERR_DATA, "%s: 'gt_answer' is neither a string nor a number", where);
        if (json_is_null(gt))
            json_object_del(row, "gt_answer");    // gt goes with it
        else if (json_is_number(gt) && (!(s = number_text(gt)) || json_object_set_new(row, "gt_answer", s) != 0))
            return error_set(err, ERR_NO_MEMORY, "no memory for a row");
    }
    if (json_is_null(json_object_get(row, "test_cases")))
        json_object_del(row, "test_cases");
    return tests_check(row, where, err);
}

json_t *dataset_line_parse(const char *line, size_t len, const struct dataset_columns *columns, const char *where, struct error *err)
{
    json_error_t why;
    json_t *row = json_text_read(line, len, JSON_REJECT_DUPLICATES, &why);
    if (!row)
        error_set(err, json_text_code(&why), "%s: column %d: %s", where, why.column, why.text);
    else if (!json_is_object(row))
        error_set(err, ERR_DATA, "%s: the line is not a JSON object", where);
    else if (row_shape(row, columns, where, err))
        return row;
    json_decref(row);
    return NULL;
}

json_t *dataset_row(const struct dataset *d, int64_t i, struct error *err)
{
    BUG_IF(i < 0 || i >= d->n_row, "row %" PRId64 " of %" PRId64, i, d->n_row);
    char where[512];
    struct dataset_columns columns = { d->prompt, d->answer };
    snprintf(where, sizeof where, "%.400s:%" PRId64, d->path, d->place[i].line);
    return dataset_line_parse(d->text + d->place[i].at, d->place[i].len, &columns, where, err);
}

static bool place_add(struct dataset *d, struct place at, struct error *err)
{
    if (d->n_row == d->cap_row) {
        int64_t cap = MAX(d->cap_row * 2, (int64_t)1024);
        struct place *more = d->n_row >= ROWS_MAX ? NULL : realloc(d->place, (size_t)cap * sizeof *more);
        if (!more)
            return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " rows of '%s'", cap, d->path);
        d->place = more;
        d->cap_row = cap;
    }
    d->place[d->n_row++] = at;
    return true;
}

/* Is this a file of a kind that people have data in, but not JSON lines? Then say which, and what to do. p: behind the byte
 * order mark. */
static bool kind_check(const struct dataset *d, const char *p, struct error *err)
{
    static const struct {
        const char *magic, *name, *pandas;
    } kinds[] = {
        { "PAR1", "Parquet", "read_parquet" },
        { "ARROW1", "Arrow", "read_feather" },
        { "ORC", "ORC", "read_orc" },
    };
    const char *end = d->text + d->text_len;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (d->text_len >= strlen(kinds[i].magic) && memcmp(d->text, kinds[i].magic, strlen(kinds[i].magic)) == 0)
            return error_set(err, ERR_DATA,
                             "'%s' is a %s file, and only JSON lines can be read; convert it: python3 -c \"import pandas; "
                             "pandas.%s('%s').to_json('data.jsonl', orient='records', lines=True)\"",
                             d->path, kinds[i].name, kinds[i].pandas, d->path);
    while (p < end && strchr(" \t\r\n", *p) && *p)
        p++;
    const char *eol = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
    size_t len = (size_t)((eol ? eol : end) - p);
    while (len > 0 && strchr(" \t\r", p[len - 1]))
        len--;
    if (len > 0 && p[0] == '[')
        return error_set(err, ERR_DATA,
                         "'%s' is one JSON array, and JSON lines are needed, one object on each; convert it: jq -c '.[]' '%s' "
                         "> data.jsonl",
                         d->path, d->path);
    if (len == 1 && p[0] == '{' && eol && end - eol > 1)
        return error_set(err, ERR_DATA,
                         "'%s' has JSON objects over several lines, and JSON lines are needed, one object on each; convert "
                         "it: jq -c . '%s' > data.jsonl",
                         d->path, d->path);
    if (len > 0 && p[0] != '{' && (memchr(p, ',', len) || memchr(p, '\t', len)))
        return error_set(err, ERR_DATA,
                         "'%s' looks like CSV, and only JSON lines can be read; convert it: python3 -c \"import pandas; "
                         "pandas.read_csv('%s').to_json('data.jsonl', orient='records', lines=True)\"",
                         d->path, d->path);
    return true;
}

/* Find the lines, and check each by reading it. */
static bool rows_find(struct dataset *d, dataset_check_fn *check, void *arg, struct error *err)
{
    const char *p = d->text, *end = d->text + d->text_len;
    if (d->text_len >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0)
        p += 3;    // a byte order mark
    if (!kind_check(d, p, err))
        return false;
    for (int64_t line = 1; p < end; line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((eol ? eol : end) - p), blank = 0;
        while (blank < len && strchr(" \t\r", p[blank]) && p[blank])
            blank++;
        if (len > LINE_BYTES_MAX)
            return error_set(err, ERR_DATA, "%s:%" PRId64 ": the line has %zu bytes, more than %zu", d->path, line, len, LINE_BYTES_MAX);
        if (blank < len) {
            if (!place_add(d, (struct place){ (uint64_t)(p - d->text), (uint32_t)len, line }, err))
                return false;
            json_t *row = dataset_row(d, d->n_row - 1, err);
            if (!row)
                return false;
            bool ok = !check || check(arg, row, err) || error_wrap(err, "%s:%" PRId64, d->path, line);
            json_decref(row);
            if (!ok)
                return false;
        }
        p = eol ? eol + 1 : end;
    }
    return d->n_row > 0 || error_set(err, ERR_DATA, "'%s' has no rows", d->path);
}

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

struct dataset *dataset_open(const char *path, const struct dataset_columns *columns, struct error *err)
{
    return dataset_open_checked(path, columns, NULL, NULL, err);
}

struct dataset *dataset_open_checked(const char *path, const struct dataset_columns *columns, dataset_check_fn *check, void *arg,
                                     struct error *err)
{
    struct dataset *d = calloc(1, sizeof *d);
    bool ok = false;
    if (!d || !(d->path = strdup(path)) || (columns && columns->prompt && !(d->prompt = strdup(columns->prompt)))
        || (columns && columns->answer && !(d->answer = strdup(columns->answer)))) {
        error_set(err, ERR_NO_MEMORY, "no memory to open '%s'", path);
        goto out;
    }
    d->inflated.max = TEXT_BYTES_MAX;
    if (!path_exists(path) && (errno == ENOENT || errno == ENOTDIR)) {
        error_set(err, ERR_NOT_FOUND,
                  "there is no file '%s'; data are read from a file of JSON lines, so a data set of the Hugging Face Hub "
                  "must be downloaded and converted first",
                  path);
        goto out;
    }
    if (path_is_dir(path)) {
        error_set(err, ERR_DATA, "'%s' is a folder; name the file of JSON lines in it", path);
        goto out;
    }
    TRY(file_map_open(&d->map, path, err));
    const uint8_t *m = d->map.data;
    size_t n = d->map.size_bytes;
    if (n >= 2 && m[0] == 0x1F && m[1] == 0x8B)
        TRY(inflate_gzip(d, err));
    else if (n >= 4 && memcmp(m, "\x28\xB5\x2F\xFD", 4) == 0)
        TRY(inflate_zstd(d, err));
    bool packed = d->inflated.data != NULL;
    d->text = packed ? d->inflated.data : m ? (const char *)m : "";
    d->text_len = packed ? d->inflated.len : n;
    if (packed)
        file_map_close(&d->map);
    TRY(rows_find(d, check, arg, err));
    d->hash = text_hash(d->text, d->text_len);
    ok = true;
out:
    if (ok)
        return d;
    dataset_free(d);
    return NULL;
}

void dataset_free(struct dataset *d)
{
    if (!d)
        return;
    free(d->path);
    free(d->prompt);
    free(d->answer);
    free(d->place);
    buf_release(&d->inflated);
    file_map_close(&d->map);
    free(d);
}

int64_t dataset_n_row(const struct dataset *d)
{
    return d->n_row;
}

int64_t dataset_line(const struct dataset *d, int64_t i)
{
    return d->place[i].line;
}

uint64_t dataset_hash(const struct dataset *d)
{
    return d->hash;
}
