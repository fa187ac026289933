/* pane_devices.c - how hosts and GPUs have been used since the run began
 *
 * The list and the curves of the chosen one are side by side; on a narrow screen Enter changes from one to the other. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/chart_view.h"
#include "console/tui/ranks_view.h"

#define LIST_LEAST_W 72    // columns from which list and curves are side by side
#define CURVE_H 7          // least rows of a curve, with its border

struct devices_pane {
    struct pane pane;    // sel and top: rows of the list
    struct chart_view view;
    bool open;    // the curves alone
    int first;    // curve at the top, when not all have room
};

static const char *device_name(const struct device_curves *d, char out[96])
{
    if (d->gpu < 0)
        snprintf(out, 96, "%s", d->node[0] ? d->node : "host");
    else
        snprintf(out, 96, "%s%sgpu %d", d->node, d->node[0] ? " " : "", d->gpu);
    return out;
}

/* The row'th host or GPU that passes the filter; NULL: there are fewer. */
static const struct device_curves *device_row(const struct devices_pane *o, const struct app *a, int64_t row)
{
    const struct device_curves *d;
    char name[96];
    for (int i = 0; a->devices && (d = device_log_at(a->devices, i)) != NULL; i++)
        if (filter_matches(o->pane.filter, device_name(d, name)) && row-- == 0)
            return d;
    return NULL;
}

static int64_t devices_rows(const struct pane *p, const struct app *a)
{
    int64_t n = 0;
    while (device_row((const struct devices_pane *)p, a, n))
        n++;
    return n;
}

static int devices_head(UNUSED struct rect body)
{
    return 1;    // the border
}

static int devices_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - 2, 1);
}

static const char *figure_format(char out[32], const struct telemetry_field *f, double v)
{
    char number[16];
    bool bytes = strcmp(f->unit, "bytes") == 0;
    if (bytes || strcmp(f->unit, "bytes_per_second") == 0)
        snprintf(out, 32, "%s%s", bytes_format(number, v), bytes ? "" : "/s");
    else
        snprintf(out, 32, "%s%s%s", value_format(number, v), f->unit[0] && !isnan(v) ? " " : "", isnan(v) ? "" : f->unit);
    return out;
}

static void list_draw(const struct devices_pane *o, const struct app *a, struct cells *c, struct rect r)
{
    int64_t n = devices_rows(&o->pane, a), n_tick = a->devices ? device_log_ticks(a->devices) : 0, from, to;
    char title[64], name[96], value[16], layout[96];
    const struct device_curves *d;
    snprintf(title, sizeof(title), "hosts and GPUs: use%s", o->view.cursor >= 0 ? " at the cursor" : "");
    struct rect in = cells_box(c, r, title, o->open ? ROLE_BORDER : ROLE_FOCUS, ROLE_TITLE);
    int spark_w = MAX(MIN(in.w - 20, 24), 0), name_w = in.w - 10 - spark_w - (spark_w > 0);
    chart_view_range(&o->view, 0, n_tick, &from, &to);
    for (int i = 0; i < in.h && (d = device_row(o, a, o->pane.top + i)) != NULL; i++) {
        int y = in.y + i, x = in.x + 1;
        const struct series *use = &d->curve[0];
        cells_text(c, x, y, name_w, device_name(d, name), ROLE_TEXT);
        x += name_w + 1;
        if (spark_w > 0)
            spark_draw(c, (struct rect){ x, y, spark_w, 1 }, use, from, to, a->glyphs);
        double v = o->view.cursor >= 0 ? series_at(use, o->view.cursor) : use->last;
        cells_fmt(c, in.x + in.w - 8, y, 8, ROLE_TEXT, "%5s %%", value_format(value, v));
        if (o->pane.top + i == o->pane.sel) {
            cells_select(c, (struct rect){ in.x, y, in.w, 1 });
            c->cursor_x = in.x + 1;
            c->cursor_y = y;
        }
    }
    if (a->devices && device_log_left_out(a->devices) > 0 && r.w > 30)
        cells_fmt(c, r.x + 2, r.y + r.h - 1, r.w - 4, ROLE_WARN, " +%d without curves: 2 shows all ", device_log_left_out(a->devices));
    else if (ranks_rows(a->model) > 0 && r.w > 30 && r.h > 2)
        cells_fmt(c, r.x + 2, r.y + r.h - 1, r.w - 4, ROLE_DIM, " %s ", ranks_layout(a->model, layout, sizeof(layout)));
    if (n > 0 || in.h < 1)
        return;
    const char *why = a->devices ? device_log_why(a->devices) : "this run has no folder with their history";
    cells_text(c, in.x + 1, in.y, in.w - 2,
               o->pane.filter[0] ? "none contains the filter's text"
               : why[0]          ? why
                                 : "no figures are kept yet",
               ROLE_DIM);
}

static int curves_of(const struct device_curves *d)
{
    int n = 0;
    while (device_curve(d->gpu, n))
        n++;
    return n;
}

/* How many curves stand in a column of h rows, and beside each other in w columns. */
static int curves_down(int h)
{
    return MAX(h / CURVE_H, 1);
}

static int curves_across(int w)
{
    return w >= 100 ? 2 : 1;
}

static void curve_draw(const struct devices_pane *o, const struct app *a, struct cells *c, struct rect r, const struct device_curves *d,
                       int k)
{
    const struct telemetry_field *f = device_curve(d->gpu, k);
    const struct series *s = &d->curve[k];
    char title[128], value[32], at[16];
    struct chart chart = chart_view_of(&o->view, s, device_log_ticks(a->devices), a->glyphs);
    chart_view_range(&o->view, 0, device_log_ticks(a->devices), &chart.from, &chart.to);    // the same for all, whatever each has
    chart.tick_s = device_log_tick_s(a->devices);
    double v = o->view.cursor >= 0 ? series_at(s, o->view.cursor) : s->last;
    figure_format(value, f, v);
    if (o->view.cursor >= 0)
        snprintf(title, sizeof(title), "%s at %s: %s", value, duration_format(at, (double)o->view.cursor * chart.tick_s), f->help);
    else
        snprintf(title, sizeof(title), "%s: %s", value, f->help);
    chart_draw(c, cells_box(c, r, title, ROLE_BORDER, ROLE_TITLE), &chart);
}

static void curves_draw(const struct devices_pane *o, const struct app *a, struct cells *c, struct rect r)
{
    const struct device_curves *d = device_row(o, a, o->pane.sel);
    if (!d) {
        cells_text(c, r.x + 2, r.y + 1, r.w - 4, "nothing is chosen", ROLE_DIM);
        return;
    }
    int n = curves_of(d), across = curves_across(r.w), down = MIN(curves_down(r.h), (n + across - 1) / across);
    int first = MAX(MIN(o->first, n - across * down), 0);
    for (int i = 0; i < across * down && first + i < n; i++) {
        int row = i / across, col = i % across, y = r.h * row / down, x = r.w * col / across;
        struct rect box = { r.x + x, r.y + y, r.w * (col + 1) / across - x, r.h * (row + 1) / down - y };
        curve_draw(o, a, c, box, d, first + i);
    }
    if (n > across * down && r.w > 30) {
        char more[48];
        snprintf(more, sizeof(more), " %d of %d, PgDn ", MIN(first + across * down, n), n);
        cells_text_right(c, r.x + 2, r.y + r.h - 1, r.w - 4, more, ROLE_DIM);
    }
}

static void devices_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    const struct devices_pane *o = (const struct devices_pane *)p;
    bool none = !device_row(o, a, 0);
    int list_w = none ? r.w : o->open ? 0 : r.w < LIST_LEAST_W ? r.w : MIN(MAX(r.w / 3, 30), 48);
    if (list_w > 0)
        list_draw(o, a, c, (struct rect){ r.x, r.y, list_w, r.h });
    if (r.w - list_w > 0)
        curves_draw(o, a, c, (struct rect){ r.x + list_w, r.y, r.w - list_w, r.h });
}

static bool devices_act(struct pane *p, struct app *a, enum request req, UNUSED int64_t now_ns)
{
    struct devices_pane *o = (struct devices_pane *)p;
    const struct device_curves *d = device_row(o, a, p->sel);
    bool scrolls = o->open || app_body(a).w >= LIST_LEAST_W;
    int n = d ? curves_of(d) : 0;
    switch (req) {
    case REQ_ENTER: o->open = !o->open; return true;
    case REQ_PAGE_UP:
    case REQ_PAGE_DOWN:
        if (!scrolls)
            return false;
        o->first = MAX(MIN(o->first + (req == REQ_PAGE_UP ? -1 : 1) * curves_across(app_body(a).w), n - 1), 0);
        return true;
    default: return a->devices && chart_view_act(&o->view, req, device_log_ticks(a->devices));
    }
}

static bool devices_close(struct pane *p)
{
    struct devices_pane *o = (struct devices_pane *)p;
    bool was_open = o->open;
    o->open = false;
    return was_open;
}

static void devices_init(struct pane *p)
{
    ((struct devices_pane *)p)->view = CHART_VIEW_INIT;
}

const struct pane_type pane_devices = {
    .name = "Devices",
    .size = sizeof(struct devices_pane),
    .init = devices_init,
    .draw = devices_draw,
    .act = devices_act,
    .close = devices_close,
    .rows = devices_rows,
    .page = devices_page,
    .head = devices_head,
};
