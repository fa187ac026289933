#include "console/tools/jsonl.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"

bool jsonl_open(struct jsonl *j, const char *path, struct error *err)
{
    path = path && path_is_stream(path) ? NULL : path;
    *j = (struct jsonl){ .in = stdin, .name = path ? path : "standard input" };
    if (path && !(j->in = fopen(path, "re")))
        return error_errno(err, "cannot open '%s'", path);
    return true;
}

void jsonl_close(struct jsonl *j)
{
    if (j->in && j->in != stdin)
        fclose(j->in);
    free(j->line);
    *j = (struct jsonl){ 0 };
}

bool jsonl_wrap(const struct jsonl *j, int64_t number, struct error *err)
{
    char text[sizeof err->text];
    memcpy(text, err->text, sizeof text);
    return error_set(err, err->code, "%s:%" PRId64 ": %s", j->name, number, text);
}

/* Read one line into j->line, without its end; *len is -1 at the end of the input. */
static bool line_read(struct jsonl *j, ssize_t *len, struct error *err)
{
    size_t n = 0;
    int c;
    while ((c = getc_unlocked(j->in)) != EOF && c != '\n') {
        if (n + 1 >= j->line_cap) {
            size_t cap = j->line_cap ? j->line_cap * 2 : 4096;
            char *grown = cap <= 2 * JSONL_LINE_MAX ? realloc(j->line, cap) : NULL;
            if (!grown)
                return error_set(err, ERR_DATA, "the line is longer than the %zu bytes allowed", JSONL_LINE_MAX);
            j->line = grown;
            j->line_cap = cap;
        }
        j->line[n++] = (char)c;
    }
    if (c == EOF && ferror(j->in))
        return error_errno(err, "cannot read");
    if (j->line)
        j->line[n] = 0;
    *len = c == EOF && n == 0 ? -1 : (ssize_t)n;
    return true;
}

bool jsonl_next(struct jsonl *j, json_t **row, struct error *err)
{
    ssize_t len = -1;
    *row = NULL;
    do {
        j->number++;
        if (!line_read(j, &len, err))
            return jsonl_wrap(j, j->number, err);
        if (len < 0)
            return true;
    } while (len == 0 || (size_t)len == strspn(j->line, " \t\r"));    // blank
    json_error_t at;
    *row = json_text_read(j->line, (size_t)len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &at);
    if (!*row) {
        error_set(err, json_text_code(&at), "not valid JSON at column %d: %s", at.column, at.text);
        return jsonl_wrap(j, j->number, err);
    }
    if (!json_is_object(*row)) {
        json_decref(*row);
        *row = NULL;
        error_set(err, ERR_DATA, "the line must be a JSON object");
        return jsonl_wrap(j, j->number, err);
    }
    return true;
}

bool row_i64(const json_t *row, const char *field, int64_t min, int64_t max, int64_t *out, struct error *err)
{
    const json_t *value = json_object_get(row, field);
    if (!value)
        return error_set(err, ERR_DATA, "the field '%s' is missing", field);
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max)
        return error_set(err, ERR_DATA, "'%s' must be a whole number from %" PRId64 " to %" PRId64, field, min, max);
    *out = json_integer_value(value);
    return true;
}

bool row_f64(const json_t *row, const char *field, double *out, struct error *err)
{
    const json_t *value = json_object_get(row, field);
    if (!json_is_number(value))
        return error_set(err, ERR_DATA, value ? "'%s' must be a number" : "the field '%s' is missing", field);
    *out = json_number_value(value);
    return true;
}

bool row_ids(const json_t *row, const char *field, int32_t **id, int64_t *n, struct error *err)
{
    const json_t *list = json_object_get(row, field);
    if (!json_is_array(list))
        return error_set(err, ERR_DATA, list ? "'%s' must be a list of token ids" : "the field '%s' is missing", field);
    size_t len = json_array_size(list);
    int32_t *out = malloc((len + 1) * sizeof *out);
    if (!out)
        return error_set(err, ERR_NO_MEMORY, "no memory for %zu token ids", len);
    for (size_t i = 0; i < len; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT32_MAX) {
            free(out);
            return error_set(err, ERR_DATA, "'%s'[%zu] is not a token id", field, i);
        }
        out[i] = (int32_t)json_integer_value(value);
    }
    *id = out;
    *n = (int64_t)len;
    return true;
}

bool json_line_print(const char *json, FILE *out)
{
    const unsigned char *from = (const unsigned char *)json, *p = from;
    for (; *p; p++) {
        bool c1 = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0;    // in JSON both occur only inside strings
        if (!c1 && p[0] != 0x7f)
            continue;
        fwrite(from, 1, (size_t)(p - from), out);
        fprintf(out, "\\u%04x", (unsigned)p[c1]);
        p += c1;
        from = p + 1;
    }
    fwrite(from, 1, (size_t)(p - from), out);
    if (p == (const unsigned char *)json || p[-1] != '\n')
        putc('\n', out);
    return !ferror(out);
}
