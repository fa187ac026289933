/* layout.c - see layout.h */
#include "console/tui/layout.h"

struct layout layout_make(int w, int h)
{
    struct layout l = { .tiny = w < 40 || h < 10 };
    if (l.tiny) {
        l.bar = (struct rect){ 0, 0, w, h > 0 ? 1 : 0 };
        return l;
    }
    l.bar = (struct rect){ 0, 0, w, 1 };
    l.tabs = (struct rect){ 0, 1, w, 1 };
    l.says = (struct rect){ 0, 2, w, h >= 12 ? 1 : 0 };
    l.body = (struct rect){ 0, 2 + l.says.h, w, h - 4 - l.says.h };
    l.line = (struct rect){ 0, h - 2, w, 1 };
    l.footer = (struct rect){ 0, h - 1, w, 1 };
    return l;
}

struct overview_layout layout_overview(struct rect body, int n_proc)
{
    struct overview_layout o = { 0 };
    if (body.w <= 0 || body.h <= 0)
        return o;
    /* charts: as many as fit with 5 rows and 24 columns including borders; the processes get a border and a line each, at most two
     * fifths of the height */
    int procs = body.h >= 12 ? MIN(MAX(n_proc, 2) + 2, body.h * 2 / 5) : body.h >= 9 ? 3 : 0;
    int across = body.w >= 132 ? 4 : body.w >= 72 ? 3 : body.w >= 48 ? 2 : 1;
    int down = MIN(MAX((body.h - procs) / 6, 1), across == 4 ? 2 : 3);
    while (across * down > LAYOUT_CHARTS)
        down--;
    o.n_chart = across * down;
    int height = body.h - procs;
    for (int i = 0; i < o.n_chart; i++) {
        int col = i % across, row = i / across;
        int x0 = body.w * col / across, x1 = body.w * (col + 1) / across;
        int y0 = height * row / down, y1 = height * (row + 1) / down;
        o.chart[i] = (struct rect){ body.x + x0, body.y + y0, x1 - x0, y1 - y0 };
    }
    int split = body.w >= 72 ? body.w / 2 : body.w;
    o.procs = (struct rect){ body.x, body.y + height, split, procs };
    o.side = (struct rect){ body.x + split, body.y + height, body.w - split, procs };
    return o;
}
