/* cells.c - see cells.h */
#include "console/tui/cells.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/tui/text.h"

#define ELLIPSIS 0x2026

bool cells_resize(struct cells *c, int w, int h, struct error *err)
{
    w = MIN(MAX(w, 1), CELLS_MAX_SIDE);
    h = MIN(MAX(h, 1), CELLS_MAX_SIDE);
    size_t need = (size_t)w * (size_t)h;
    if (need > c->cap) {
        struct cell *cell = realloc(c->cell, need * sizeof(*cell));
        if (!cell)
            return error_set(err, ERR_NO_MEMORY, "no memory for a screen of %dx%d", w, h);
        c->cell = cell;
        c->cap = need;
    }
    c->w = w;
    c->h = h;
    cells_clear(c);
    return true;
}

void cells_release(struct cells *c)
{
    free(c->cell);
    *c = (struct cells){ 0 };
}

void cells_clear(struct cells *c)
{
    for (size_t i = 0; i < (size_t)c->w * (size_t)c->h; i++)
        c->cell[i] = (struct cell){ .ch = ' ', .role = ROLE_TEXT };
    c->cursor_x = c->cursor_y = -1;
}

static struct cell *cell_at(struct cells *c, int x, int y)
{
    return x < 0 || y < 0 || x >= c->w || y >= c->h ? NULL : &c->cell[(size_t)y * (size_t)c->w + (size_t)x];
}

/* Make sure that writing at (x, y) leaves no half of a wide character behind. */
static void halves_clear(struct cells *c, int x, int y)
{
    struct cell *here = cell_at(c, x, y), *left = cell_at(c, x - 1, y), *right = cell_at(c, x + 1, y);
    if (here->ch == 0 && left)
        left->ch = ' ';
    if (here->ch != 0 && right && right->ch == 0)
        right->ch = ' ';
}

void cells_put(struct cells *c, int x, int y, uint32_t ch, enum role role)
{
    ch = text_visible(ch);
    if (ch == 0)
        return;
    int w = text_width(ch);
    struct cell *here = cell_at(c, x, y);
    if (!here)
        return;
    if (w == 0) {
        here->mark = ch;
        return;
    }
    struct cell *right = w == 2 ? cell_at(c, x + 1, y) : NULL;
    halves_clear(c, x, y);
    if (w == 2 && !right) {    // its right half would be off the grid
        *here = (struct cell){ .ch = ' ', .role = (uint8_t)role };
        return;
    }
    *here = (struct cell){ .ch = ch, .role = (uint8_t)role };
    if (right) {
        halves_clear(c, x + 1, y);
        here->ch = ch;    // halves_clear may have mistaken it for an old half
        *right = (struct cell){ .ch = 0, .role = (uint8_t)role };
    }
}

int cells_textn(struct cells *c, int x, int y, int w, const char *text, size_t len, enum role role)
{
    int at = 0, prev_at = 0;    // column after, and of, the last character written
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        i += text_decode(text + i, len - i, &cp);
        cp = text_visible(cp);
        if (cp == 0)
            continue;
        int cw = text_width(cp);
        if (cw == 0) {
            if (at > 0)
                cells_put(c, x + prev_at, y, cp, role);
            continue;
        }
        if (at + cw > w) {
            if (w > 0) {
                int mark_at = at < w ? at : prev_at;
                cells_put(c, x + mark_at, y, ELLIPSIS, role);
                at = mark_at + 1;
            }
            return at;
        }
        cells_put(c, x + at, y, cp, role);
        prev_at = at;
        at += cw;
    }
    return at;
}

int cells_text(struct cells *c, int x, int y, int w, const char *text, enum role role)
{
    return cells_textn(c, x, y, w, text, strlen(text), role);
}

int cells_fmt(struct cells *c, int x, int y, int w, enum role role, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return cells_text(c, x, y, w, text, role);
}

void cells_text_right(struct cells *c, int x, int y, int w, const char *text, enum role role)
{
    int columns = text_columns(text, strlen(text));
    int skip = columns < w ? w - columns : 0;
    cells_text(c, x + skip, y, w - skip, text, role);
}

void cells_fill(struct cells *c, struct rect r, uint32_t ch, enum role role)
{
    for (int y = MAX(r.y, 0); y < r.y + r.h && y < c->h; y++)
        for (int x = MAX(r.x, 0); x < r.x + r.w && x < c->w; x++)
            cells_put(c, x, y, ch, role);
}

void cells_select(struct cells *c, struct rect r)
{
    for (int y = MAX(r.y, 0); y < r.y + r.h && y < c->h; y++)
        for (int x = MAX(r.x, 0); x < r.x + r.w && x < c->w; x++)
            cell_at(c, x, y)->selected = 1;
}

void cells_attr(struct cells *c, struct rect r, unsigned attr)
{
    for (int y = MAX(r.y, 0); y < r.y + r.h && y < c->h; y++)
        for (int x = MAX(r.x, 0); x < r.x + r.w && x < c->w; x++)
            cell_at(c, x, y)->attr |= (uint8_t)attr;
}

struct rect cells_box(struct cells *c, struct rect r, const char *title, enum role border, enum role title_role)
{
    if (r.w < 2 || r.h < 2)
        return (struct rect){ r.x, r.y, 0, 0 };
    int right = r.x + r.w - 1, bottom = r.y + r.h - 1;
    cells_fill(c, (struct rect){ r.x + 1, r.y, r.w - 2, 1 }, 0x2500, border);
    cells_fill(c, (struct rect){ r.x + 1, bottom, r.w - 2, 1 }, 0x2500, border);
    cells_fill(c, (struct rect){ r.x, r.y + 1, 1, r.h - 2 }, 0x2502, border);
    cells_fill(c, (struct rect){ right, r.y + 1, 1, r.h - 2 }, 0x2502, border);
    cells_put(c, r.x, r.y, 0x256d, border);
    cells_put(c, right, r.y, 0x256e, border);
    cells_put(c, r.x, bottom, 0x2570, border);
    cells_put(c, right, bottom, 0x256f, border);
    if (title && r.w > 6) {
        int n = cells_text(c, r.x + 3, r.y, r.w - 6, title, title_role);
        cells_put(c, r.x + 2, r.y, ' ', title_role);
        cells_put(c, r.x + 3 + n, r.y, ' ', title_role);
    }
    return (struct rect){ r.x + 1, r.y + 1, r.w - 2, r.h - 2 };
}

void cells_ascii(struct cells *c)
{
    // clang-format off
    static const struct { uint32_t ch; char ascii; } table[] = {
        { 0x2500, '-' }, { 0x2502, '|' }, { 0x256d, '+' }, { 0x256e, '+' }, { 0x2570, '+' }, { 0x256f, '+' },
        { 0x253c, '+' }, { 0x251c, '+' }, { 0x2524, '+' }, { 0x2504, '-' }, { 0x2506, ':' }, { ELLIPSIS, '~' },
        { 0x25cf, '*' }, { 0x25cb, 'o' }, { 0x25d0, '%' }, { 0x25b2, '^' }, { 0x25bc, 'v' }, { 0x25b6, '>' },
        { 0x25c0, '<' }, { 0x2191, '^' }, { 0x2193, 'v' }, { 0x2192, '>' }, { 0x2190, '<' }, { 0x2713, '+' },
        { 0x2717, 'x' }, { 0x26a0, '!' }, { 0x2016, '"' }, { 0x25a0, '#' }, { 0x00b7, '.' }, { 0x00d7, 'x' },
        { 0x21b5, '/' }, { 0x2588, '#' }, { 0x2591, '.' }, { 0x2592, ':' }, { 0x2593, '%' }, { 0x2013, '-' },
        { 0x2014, '-' }, { 0x2018, '\'' }, { 0x2019, '\'' }, { 0x201c, '"' }, { 0x201d, '"' }, { 0x03c3, 's' },
        { 0x2212, '-' }, { 0x2264, '<' }, { 0x2265, '>' }, { 0x00b1, '~' }, { 0x2508, '-' }, { 0x203a, '>' }, { 0x258f, '|' }, { 0x2503, '|' },
    };
    // clang-format on
    for (size_t i = 0; i < (size_t)c->w * (size_t)c->h; i++) {
        struct cell *cell = &c->cell[i];
        cell->mark = 0;
        if (cell->ch < 0x7f && cell->ch != 0)
            continue;
        char ascii = cell->ch == 0 ? ' ' : '?';
        if (cell->ch >= 0x2581 && cell->ch <= 0x258f)
            ascii = '#';
        if (cell->ch >= 0x2800 && cell->ch <= 0x28ff)
            ascii = cell->ch == 0x2800 ? ' ' : ':';
        for (size_t j = 0; j < ARRAY_SIZE(table); j++)
            if (table[j].ch == cell->ch)
                ascii = table[j].ascii;
        cell->ch = (uint32_t)ascii;
    }
}

void cells_row(const struct cells *c, int y, char *out, size_t size)
{
    size_t at = 0, end = 0;    // end: after the last cell that is not blank
    for (int x = 0; y >= 0 && y < c->h && x < c->w; x++) {
        const struct cell *cell = &c->cell[(size_t)y * (size_t)c->w + (size_t)x];
        if (cell->ch == 0)
            continue;
        if (at + 9 > size)
            break;
        at += text_encode(cell->ch, out + at);
        if (cell->mark)
            at += text_encode(cell->mark, out + at);
        if (cell->ch != ' ')
            end = at;
    }
    if (size > 0)
        out[end] = 0;
}
