/* JSON lines, and files that are one JSON array. */
#include "workers/engine/data/format.h"
#include <ctype.h>
#include <string.h>
#include "protocol/base/json_text.h"

#define BLANKS " \t\r\n"

static bool is_blank(char c)
{
    return c && strchr(BLANKS, c);
}

json_t *row_parse(const char *text, size_t len, struct error *err)
{
    json_error_t why;
    json_t *row = json_text_read(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!row)
        error_set(err, json_text_code(&why), "column %d: %s", why.column, why.text);
    if (json_is_array(row)) {
        json_t *outer = json_pack("{s:o}", "conversations", row);
        if (!outer)
            error_set(err, ERR_NO_MEMORY, "no memory for a row");
        return outer;
    }
    return row;
}

static json_t *text_row(const struct reader *r, const struct row_place *at, struct error *err)
{
    return row_parse(r->text + at->at, at->len, err);
}

/* ---- lines ---- */

static bool lines_recognise(const char *p, size_t len)
{
    while (len > 0 && is_blank(*p))
        p++, len--;
    return len > 0 && *p == '{';
}

/* An object over several lines begins with a line that has nothing but '{' on it. */
static bool lines_open(struct reader *r, struct error *err)
{
    const char *p = r->text + r->at, *end = r->text + r->len;
    while (p < end && is_blank(*p))
        p++;
    const char *eol = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
    size_t len = (size_t)((eol ? eol : end) - p);
    while (len > 0 && is_blank(p[len - 1]))
        len--;
    if (len == 1 && p[0] == '{' && eol && end - eol > 1)
        return error_set(err, ERR_DATA,
                         "has objects over several lines, and one object on each line is needed; convert it: jq -c . FILE > data.jsonl");
    return true;
}

static bool lines_next(struct reader *r, struct row_place *at, bool *done, struct error *err)
{
    *done = false;
    while (r->at < r->len) {
        const char *p = r->text + r->at, *eol = memchr(p, '\n', r->len - r->at);
        size_t len = eol ? (size_t)(eol - p) : r->len - r->at, blank = 0;
        *at = (struct row_place){ r->at, (uint32_t)len, ++r->line };
        if (len > DATA_ROW_BYTES_MAX)
            return error_set(err, ERR_DATA, "the line has %zu bytes, more than %zu", len, DATA_ROW_BYTES_MAX);
        r->at += len + (eol != NULL);
        while (blank < len && is_blank(p[blank]))
            blank++;
        if (blank < len)
            return true;
    }
    *done = true;
    return true;
}

const struct data_format format_json_lines = {
    .name = "JSON lines",
    .counts_lines = true,
    .keeps_text = true,
    .recognise = lines_recognise,
    .open = lines_open,
    .next = lines_next,
    .row = text_row,
};

/* ---- one array ---- */

/* '[', then an element that is an object or a list: a file of JSON lines may have lists too (Open-Reasoner-Zero's rows), and then
 * a line ends where its list does. */
static bool array_recognise(const char *p, size_t len)
{
    const char *end = p + len;
    while (p < end && is_blank(*p))
        p++;
    if (p == end || *p++ != '[')
        return false;
    while (p < end && is_blank(*p))
        p++;
    return p < end && (*p == '{' || *p == '[' || *p == ']');
}

static size_t blanks_pass(const struct reader *r, size_t at)
{
    while (at < r->len && is_blank(r->text[at]))
        at++;
    return at;
}

static bool array_open(struct reader *r, UNUSED struct error *err)
{
    r->at = blanks_pass(r, r->at) + 1;    // the bracket
    return true;
}

/* The end of the value at r->at: counts brackets, skips strings. Its parser reports anything else that is wrong. */
static bool element_end(const struct reader *r, size_t *end)
{
    int depth = 0;
    size_t i = r->at;
    for (; i < r->len; i++) {
        char c = r->text[i];
        if (c == '"') {
            for (i++; i < r->len && r->text[i] != '"'; i++)
                i += r->text[i] == '\\';
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth > 0 && (c == '}' || c == ']')) {
            if (--depth == 0) {
                i++;
                break;
            }
        } else if (depth == 0 && (c == ',' || c == ']' || c == '}')) {
            break;
        }
    }
    *end = i;
    return depth == 0 && i < r->len && r->text[i] != '}';
}

static bool array_next(struct reader *r, struct row_place *at, bool *done, struct error *err)
{
    size_t end;
    *done = false;
    r->at = blanks_pass(r, r->at);
    bool first = r->line == 0;
    *at = (struct row_place){ .at = r->at, .line = r->line + 1 };
    if (r->at < r->len && r->text[r->at] == ']') {
        if (blanks_pass(r, r->at + 1) < r->len)
            return error_set(err, ERR_DATA, "something follows the end of the JSON array; are these JSON lines whose rows are lists?");
        *done = true;
        return true;
    }
    if (!first && r->at < r->len && r->text[r->at] == ',')
        r->at = blanks_pass(r, r->at + 1);
    else if (!first)
        return error_set(err, ERR_DATA, "the JSON array ends in its middle, or has no comma before this row");
    r->line++;
    if (!element_end(r, &end) || end == r->at)
        return error_set(err, ERR_DATA, "the JSON array ends in its middle");
    if (end - r->at > DATA_ROW_BYTES_MAX)
        return error_set(err, ERR_DATA, "the row has %zu bytes, more than %zu", end - r->at, DATA_ROW_BYTES_MAX);
    *at = (struct row_place){ r->at, (uint32_t)(end - r->at), r->line };
    r->at = end;
    return true;
}

const struct data_format format_json_array = {
    .name = "JSON array",
    .keeps_text = true,
    .recognise = array_recognise,
    .open = array_open,
    .next = array_next,
    .row = text_row,
};
