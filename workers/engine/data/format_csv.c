/* CSV with a line of column names (RFC 4180; also with tabs or semicolons). A cell without quotes that is empty is null. */
#include "workers/engine/data/format.h"
#include <string.h>
#include "protocol/base/utf8.h"

#define COLUMNS_MAX 1000

/* One cell: [from, to) of the text, between the quotes when it has some. */
struct cell {
    size_t from, to;
    bool quoted, doubled;    // has quotes around it; has "" in it
    bool last;               // of its record
    size_t next;             // where the next cell, or record, begins
    int64_t n_line;          // line ends in it, and its own when it is the last
};

/* The cell at `at`; false when its quotes do not close, or more than the delimiter follows them. */
static bool cell_find(const char *text, size_t len, size_t at, char delimiter, struct cell *c)
{
    *c = (struct cell){ .from = at, .quoted = at < len && text[at] == '"' };
    if (c->quoted) {
        c->from = ++at;
        for (; at < len && (text[at] != '"' || (at + 1 < len && text[at + 1] == '"')); at++) {
            c->doubled |= text[at] == '"';
            at += text[at] == '"';
            c->n_line += text[at] == '\n';
        }
        if (at >= len)
            return false;
        c->to = at++;
    } else {
        while (at < len && text[at] != delimiter && text[at] != '\n')
            at++;
        c->to = at;
        if (c->to > c->from && text[c->to - 1] == '\r' && (at == len || text[at] == '\n'))
            c->to--;
    }
    if (c->quoted && at < len && text[at] == '\r')
        at++;
    c->last = at >= len || text[at] == '\n';
    if (!c->last && text[at] != delimiter)
        return false;
    c->n_line += c->last;
    c->next = MIN(at + 1, len);
    return true;
}

static json_t *cell_value(const char *text, const struct cell *c)
{
    struct buf b = BUF_INIT;
    if (!c->quoted && c->from == c->to)
        return json_null();
    if (memchr(text + c->from, 0, c->to - c->from))
        return NULL;
    if (!c->doubled)
        return json_stringn(text + c->from, c->to - c->from);
    for (size_t i = c->from; i < c->to; i++) {
        buf_char(&b, text[i]);
        i += text[i] == '"';
    }
    json_t *s = b.failed ? NULL : json_stringn(buf_text(&b), b.len);
    buf_release(&b);
    return s;
}

/* The delimiter of the first record: the first of these that it has. 0: none. */
static char delimiter_find(const char *p, size_t len)
{
    static const char delimiters[] = { ',', '\t', ';' };
    struct cell c;
    size_t n = MIN(len, (size_t)1 << 16);
    for (size_t i = 0; i < sizeof delimiters; i++)
        if (n > 0 && cell_find(p, n, 0, delimiters[i], &c) && !c.last)
            return delimiters[i];
    return 0;
}

static bool csv_recognise(const char *p, size_t len)
{
    size_t n = MIN(len, (size_t)4096), line = 0;
    while (line < n && p[line] != '\n')
        line++;
    return n > 0 && p[0] != '{' && p[0] != '[' && !memchr(p, 0, line) && utf8_valid_len((const uint8_t *)p, line, NULL, NULL) + 3 >= line
           && delimiter_find(p, len);
}

static bool csv_open(struct reader *r, struct error *err)
{
    struct cell c;
    size_t i;
    json_t *one;
    r->delimiter = delimiter_find(r->text + r->at, r->len - r->at);
    r->column = json_array();
    do {
        if (!cell_find(r->text, r->len, r->at, r->delimiter, &c))
            return error_set(err, ERR_DATA, "line 1: a quoted column name does not end");
        json_t *name = cell_value(r->text, &c);
        if (!name || json_is_null(name) || json_string_length(name) == 0) {
            json_decref(name);
            return error_set(err, ERR_DATA,
                             "line 1: column %zu has no name, or one that is not UTF-8; the first line must name the columns",
                             json_array_size(r->column) + 1);
        }
        json_array_foreach(r->column, i, one) if (json_equal(one, name))
        {
            error_set(err, ERR_DATA, "line 1: the column '%.100s' is there twice", json_string_value(name));
            json_decref(name);
            return false;
        }
        if (json_array_append_new(r->column, name) != 0 || json_array_size(r->column) > COLUMNS_MAX)
            return error_set(err, ERR_DATA, "line 1: more than %d columns", COLUMNS_MAX);
        r->at = c.next;
        r->line += c.n_line;
    } while (!c.last);
    return true;
}

static bool csv_next(struct reader *r, struct row_place *at, bool *done, struct error *err)
{
    size_t n = json_array_size(r->column), n_cell = 0;
    struct cell c;
    *done = false;
    for (;;) {    // skip blank lines
        size_t p = r->at;
        while (p < r->len && r->text[p] == '\r')
            p++;
        if (p < r->len && r->text[p] != '\n')
            break;
        if (p >= r->len) {
            *done = true;
            return true;
        }
        r->at = p + 1;
        r->line++;
    }
    *at = (struct row_place){ .at = r->at, .line = r->line + 1 };
    do {
        if (!cell_find(r->text, r->len, r->at, r->delimiter, &c))
            return error_set(err, ERR_DATA, "the quotes of cell %zu do not close, or text follows them", n_cell + 1);
        if (c.next - at->at > DATA_ROW_BYTES_MAX)
            return error_set(err, ERR_DATA, "the row has more than %zu bytes; is a quote missing?", DATA_ROW_BYTES_MAX);
        n_cell++;
        r->at = c.next;
        r->line += c.n_line;
    } while (!c.last);
    if (n_cell != n)
        return error_set(err, ERR_DATA, "the row has %zu cells, and the first line names %zu columns", n_cell, n);
    at->len = (uint32_t)(r->at - at->at);
    return true;
}

static json_t *csv_row(const struct reader *r, const struct row_place *at, struct error *err)
{
    const char *text = r->text + at->at;
    json_t *row = json_object(), *name;
    struct cell c = { 0 };
    size_t i;
    json_array_foreach(r->column, i, name)
    {
        bool found = cell_find(text, at->len, c.next, r->delimiter, &c);
        json_t *value = found ? cell_value(text, &c) : NULL;
        if (!row || !value || json_object_set_new(row, json_string_value(name), value) != 0) {
            error_set(err, ERR_DATA, "'%.100s' is not UTF-8, or has a NUL in it", json_string_value(name));
            json_decref(row);
            return NULL;
        }
    }
    return row;
}

static void csv_close(struct reader *r)
{
    json_decref(r->column);
}

const struct data_format format_csv = {
    .name = "CSV",
    .counts_lines = true,
    .keeps_text = true,
    .recognise = csv_recognise,
    .open = csv_open,
    .next = csv_next,
    .row = csv_row,
    .close = csv_close,
};
