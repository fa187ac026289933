/* save.c - see save.h */
#include "console/tui/save.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/text.h"
#include "protocol/base/buf.h"
#include "protocol/base/file.h"

#define CELL_W 8.4
#define CELL_H 17
#define PAD 14

static bool text_write(const struct buf *text, const char *path, struct error *err)
{
    if (path_exists(path))
        return error_set(err, ERR_EXISTS, "'%.200s' exists already", path);
    return file_write(path, buf_text(text), text->len, err);
}

static int32_t colour_rgb(int32_t colour, int32_t otherwise)
{
    static const int32_t palette[8] = { 0x000000, 0xcd3131, 0x0dbc79, 0xe5e510, 0x2472c8, 0xbc3fbc, 0x11a8cd, 0xe5e5e5 };
    return colour == COLOR_DEFAULT ? otherwise : colour >= 0 && colour < 8 ? palette[colour] : colour;
}

struct ink {
    int32_t fg, bg;
    bool bold;
};

static struct ink cell_ink(const struct cell *cell, const struct theme *theme)
{
    int32_t ground = theme->light ? 0xffffff : 0x14171c, text = theme->light ? 0x1f2328 : 0xd7dae0;
    struct look look = theme_look(theme, (enum role)cell->role, cell->selected, DEPTH_TRUE);
    unsigned attr = look.attr | cell->attr;
    struct ink k = { colour_rgb(look.fg, text), colour_rgb(look.bg, ground), (attr & ATTR_BOLD) != 0 };
    if (attr & ATTR_REVERSE)
        k = (struct ink){ k.bg, k.fg, k.bold };
    return k;
}

static void escape_add(struct buf *out, uint32_t ch)
{
    char bytes[5] = "";
    if (ch == '<')
        buf_str(out, "&lt;");
    else if (ch == '&')
        buf_str(out, "&amp;");
    else {
        bytes[text_encode(ch, bytes)] = 0;
        buf_str(out, bytes);
    }
}

/* Cells x..end-1 of a row, which look alike. */
static void run_add(struct buf *out, const struct cells *c, int y, int x, int end, struct ink k, int32_t ground)
{
    const struct cell *row = &c->cell[y * c->w];
    double left = PAD + x * CELL_W, top = PAD + y * CELL_H;
    bool blank = true;
    for (int i = x; i < end; i++)
        blank = blank && (row[i].ch == ' ' || row[i].ch == 0);
    if (k.bg != ground)
        buf_fmt(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"#%06x\"/>", left, top, (end - x) * CELL_W + 0.3,
                CELL_H, (unsigned)k.bg);
    if (blank)
        return;
    buf_fmt(out, "<text x=\"%.1f\" y=\"%.1f\" textLength=\"%.1f\" fill=\"#%06x\"%s>", left, top + CELL_H * 0.75, (end - x) * CELL_W,
            (unsigned)k.fg, k.bold ? " font-weight=\"bold\"" : "");
    for (int i = x; i < end; i++) {
        if (row[i].ch)
            escape_add(out, row[i].ch == ' ' ? 0xa0 : row[i].ch);
        if (row[i].mark)
            escape_add(out, row[i].mark);
    }
    buf_str(out, "</text>");
}

static void svg_make(struct buf *out, const struct cells *c, const struct theme *theme)
{
    int32_t ground = theme->light ? 0xffffff : 0x14171c;
    double w = c->w * CELL_W + 2 * PAD, h = c->h * CELL_H + 2 * PAD;
    buf_fmt(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',Consolas,monospace\" font-size=\"14\">\n"
            "<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"#%06x\"/>\n",
            w, h, w, h, (unsigned)ground);
    for (int y = 0; y < c->h; y++) {
        const struct cell *row = &c->cell[y * c->w];
        for (int x = 0, end; x < c->w; x = end) {
            struct ink k = cell_ink(&row[x], theme);
            for (end = x + 1; end < c->w; end++) {
                struct ink next = cell_ink(&row[end], theme);
                if (next.fg != k.fg || next.bg != k.bg || next.bold != k.bold)
                    break;
            }
            run_add(out, c, y, x, end, k, ground);
        }
        buf_char(out, '\n');
    }
    buf_str(out, "</svg>\n");
}

bool save_screen(const struct cells *c, const struct theme *theme, const char *path, struct error *err)
{
    struct buf out = BUF_INIT;
    char row[4 * CELLS_MAX_SIDE + 16];
    const char *end = strrchr(path, '.');
    if (end && strcmp(end, ".svg") == 0)
        svg_make(&out, c, theme);
    else
        for (int y = 0; y < c->h; y++) {
            cells_row(c, y, row, sizeof(row));
            buf_str(&out, row);
            buf_char(&out, '\n');
        }
    bool ok = text_write(&out, path, err);
    buf_release(&out);
    return ok;
}

bool save_series(const struct save_column *column, int n, int64_t from, int64_t to, const char *path, struct error *err)
{
    struct buf out = BUF_INIT;
    buf_str(&out, "step");
    for (int i = 0; i < n; i++)
        buf_fmt(&out, ",%s", column[i].name);
    buf_char(&out, '\n');
    for (int64_t step = from; step < to; step++) {
        bool known = false;
        for (int i = 0; i < n; i++)
            known = known || !isnan(series_at(column[i].series, step));
        if (!known)
            continue;
        buf_fmt(&out, "%" PRId64, step);
        for (int i = 0; i < n; i++) {
            double v = series_at(column[i].series, step);
            buf_char(&out, ',');
            if (!isnan(v))
                buf_fmt(&out, "%.9g", v);
        }
        buf_char(&out, '\n');
    }
    bool ok = text_write(&out, path, err);
    buf_release(&out);
    return ok;
}
