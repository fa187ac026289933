/* pane_workers.c - every process: what it does, for how long, what it waits for, and its last minutes as a lane; hosts and GPUs */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/hosts_view.h"
#include "console/tui/pane_fleet.h"
#include "console/tui/ranks_view.h"

#define FLEET_HOSTS 16    // with more, the fleet is shown unless the operator has chosen

struct workers {
    struct pane pane;
    enum { SHOW_WHAT_FITS, SHOW_LIST, SHOW_FLEET, SHOW_NODE } show;    // NODE: one of the fleet's in the list, until its filter goes
    struct fleet_view fleet;
};

static bool fleet_shown(const struct pane *pane, const struct app *a)
{
    const struct workers *w = (const struct workers *)pane;
    switch (w->show) {
    case SHOW_WHAT_FITS: return a->model->n_host > FLEET_HOSTS;
    case SHOW_LIST: return false;
    case SHOW_FLEET: return true;
    case SHOW_NODE: break;
    }
    return !pane->filter[0];
}

/* What a filter is compared with begins with the process's node, also where its name does not. */
static bool proc_passes(const char *filter, const struct run_view *m, const struct proc *p)
{
    char row[448];
    const char *node;
    size_t len = proc_node(m, p, &node);
    snprintf(row, sizeof(row), "%.*s%s%s %s %s %s %s", node == p->name ? 0 : (int)len, node, node == p->name || !len ? "" : "/", p->name,
             p->plays, p->phase, p->waits_for, proc_verdict_name(p->verdict));
    return filter_matches(filter, row);
}

static bool proc_shown(const struct pane *pane, const struct app *a, const struct proc *p)
{
    return proc_passes(pane->filter, a->model, p);
}

/* The list's filter over the processes of a model, as hosts_view.h wants it. */
struct filtered {
    const char *filter;
    const struct run_view *model;
};
static bool filtered_passes(const void *ctx, const struct proc *p)
{
    const struct filtered *f = ctx;
    return proc_passes(f->filter, f->model, p);
}

/* The first process from number i on that passes the filter; n_proc: none does. */
static int proc_next(const struct pane *pane, const struct app *a, int i)
{
    while (i < a->model->n_proc && pane->filter[0] && !proc_shown(pane, a, &a->model->proc[i]))
        i++;
    return i;
}

/* The number of the process in a row of the list. */
static int proc_at(const struct pane *pane, const struct app *a, int64_t row)
{
    if (!pane->filter[0])
        return (int)MIN(row, (int64_t)a->model->n_proc);
    int i = proc_next(pane, a, 0);
    while (row-- > 0 && i < a->model->n_proc)
        i = proc_next(pane, a, i + 1);
    return i;
}

static int64_t workers_rows(const struct pane *pane, const struct app *a)
{
    int64_t n = 0;
    if (fleet_shown(pane, a))
        return fleet_rows(a->model, pane->filter);
    if (!pane->filter[0])
        return a->model->n_proc;
    for (int i = proc_next(pane, a, 0); i < a->model->n_proc; i = proc_next(pane, a, i + 1))
        n++;
    return n;
}

/* Lines at the bottom of the pane: of what trainers exchange, and of hosts and devices; the processes keep the greater part. */
static int exchange_lines(const struct app *a, struct rect body)
{
    return body.h >= 18 ? ranks_rows(a->model) : 0;
}

/* Lines for processes and devices together: without border and heading, and the detail of the selected process. */
static int shared_lines(const struct app *a, struct rect body)
{
    return body.h - 3 - (body.h >= 14 ? 3 : 0) - exchange_lines(a, body);
}

static int device_lines(const struct pane *pane, const struct app *a, struct rect body)
{
    struct filtered f = { pane->filter, a->model };
    int wanted = hosts_rows(a->model, pane->filter[0] ? filtered_passes : NULL, &f), half = (body.h - 12 - exchange_lines(a, body)) / 2;
    if (half <= 0 || fleet_shown(pane, a))
        return 0;
    return MIN(wanted, MAX(half, shared_lines(a, body) - (int)workers_rows(pane, a)));    // and the lines that no process needs
}

static int workers_page(const struct app *a, struct rect body)
{
    return MAX(shared_lines(a, body) - device_lines(a->pane[PANE_WORKERS], a, body), 1);
}

static int64_t workers_top(const struct pane *pane, const struct app *a)
{
    struct rect body = app_body(a);
    return fleet_shown(pane, a) ? fleet_top(a->model, body, pane->filter, pane->top, pane->sel)
                                : list_top(pane->top, pane->sel, workers_rows(pane, a), workers_page(a, body));
}

#define NAME_W 14         // columns for a process's name
#define NAME_W_MAX 24     // where there are longer ones, as of nodes
#define NAME_TAIL_W 10    // of one that is longer still, what is kept of its end: the device

/* Columns of the table, left to right; those that do not fit are left out from the end. */
static const struct column {
    const char *heading;
    int width;
} columns[] = {
    { "process", NAME_W }, { "verdict", 7 }, { "phase", 11 }, { "for", 7 },   { "pid", 7 },
    { "died", 4 },         { "mem", 9 },     { "cpu", 5 },    { "part", 21 },
};

/* As many columns as the longest name has, up to a bound. */
static int name_width(const struct run_view *m)
{
    int width = NAME_W;
    for (int i = 0; i < m->n_proc && width < NAME_W_MAX; i++)
        width = MIN(MAX(width, (int)strlen(m->proc[i].name)), NAME_W_MAX);
    return width;
}

/* A name in this many columns. One that is too long loses its middle, since its node and its device tell it apart. */
static void name_text(char out[64], const char *name, int width)
{
    int len = (int)strlen(name);
    if (len <= width)
        snprintf(out, 64, "%s", name);
    else
        snprintf(out, 64, "%.*s\u2026%s", width - 1 - NAME_TAIL_W, name, name + len - NAME_TAIL_W);
}

static void cell_text(const struct proc *p, size_t column, int width, enum proc_verdict v, double for_s, char out[64], enum role *role)
{
    char number[16];
    *role = ROLE_TEXT;
    switch (column) {
    case 0: name_text(out, p->name, width); break;
    case 1:
        snprintf(out, 64, "%s", proc_verdict_name(v));
        *role = verdict_role(v);
        break;
    case 2:
        snprintf(out, 64, "%s", p->phase);
        *role = (enum role)(ROLE_SERIES1 + phase_find(p->phase)->series);
        break;
    case 3: snprintf(out, 64, "%6s", duration_format(number, for_s)); break;
    case 4: snprintf(out, 64, p->pid ? "%" PRId64 : "-", p->pid); break;
    case 5:
        snprintf(out, 64, "%" PRId64, p->restarts);
        *role = p->restarts ? ROLE_WARN : ROLE_DIM;
        break;
    case 6: {
        double b = proc_gauge(p, "rss_bytes");
        snprintf(out, 64, "%8s", bytes_format(number, b));
        break;
    }
    case 7: {
        double share = proc_gauge(p, "cpu_share");
        if (isnan(share))
            snprintf(out, 64, "-");
        else
            snprintf(out, 64, "%3.0f %%", 100 * share);
        break;
    }
    case 8: snprintf(out, 64, "%s", p->plays); break;
    default: out[0] = 0;
    }
}

/* One second of a lane, or of its legend. Colour is never the only difference: where a phase begins, its letter stands in the bar. */
static void phase_put(const struct app *a, struct cells *c, int x, int y, char letter, bool begins, int series)
{
    bool block = a->color && a->glyphs != GLYPHS_ASCII, bar = block && letter != '.' && !begins;
    uint32_t sign = bar ? 0x2588 : block && letter == '.' ? 0x00b7 : (uint32_t)letter;
    cells_put(c, x, y, sign, (enum role)(ROLE_SERIES1 + series));
    if (block && begins && letter != '.')
        cells_attr(c, (struct rect){ x, y, 1, 1 }, ATTR_REVERSE);
}

static void lane_draw(const struct app *a, struct cells *c, struct rect r, const struct proc *p, int64_t now_ns)
{
    int64_t now_s = now_ns / 1000000000;
    char before = ' ';
    for (int x = 0; x < r.w; x++) {
        int64_t s = now_s - (r.w - 1 - x);
        bool known = p->lane_s > 0 && s <= p->lane_s && s > p->lane_s - LANE_SECONDS && s >= 0;
        char letter = known ? p->lane[s % LANE_SECONDS] : ' ';
        int series = 7;
        for (int i = 0; i < n_phases; i++)
            if (phase_table[i].letter == letter)
                series = phase_table[i].series;
        if (letter != ' ')
            phase_put(a, c, r.x + x, r.y, letter, letter != before, series);
        before = letter;
    }
}

static void legend_draw(const struct app *a, struct cells *c, struct rect r)
{
    int x = r.x;
    for (int i = 0; i < n_phases && x < r.x + r.w - 4; i++) {
        if (i > 0 && phase_table[i].letter == phase_table[i - 1].letter)
            continue;
        int need = (int)strlen(phase_table[i].phase) + 3;
        if (x + need > r.x + r.w)
            break;
        phase_put(a, c, x, r.y, phase_table[i].letter, true, phase_table[i].series);
        x += 2 + cells_text(c, x + 2, r.y, need, phase_table[i].phase, ROLE_DIM) + 1;
    }
}

/* The selected process in words: what it has not done. */
static void detail_draw(struct cells *c, struct rect r, const struct proc *p, enum proc_verdict v, int64_t now_ns)
{
    char line[400], dur[16];
    double for_s = p->phase_s + (double)(now_ns - p->heard_ns) * 1e-9;
    int n = snprintf(line, sizeof(line), "%s%s%s%s: %s for %s", p->name, p->plays[0] ? " (" : "", p->plays, p->plays[0] ? ")" : "",
                     p->phase, duration_format(dur, for_s));
    if (p->waits_for[0])
        n += snprintf(line + n, sizeof(line) - (size_t)n, "%s%s", proc_waits_join(p), p->waits_for);
    if (!isnan(p->progress))
        n += snprintf(line + n, sizeof(line) - (size_t)n, ", work done %.0f", p->progress);
    for (int i = 0; i < p->n_gauge && n < (int)sizeof(line) - 60; i++) {
        char value[16];
        const char *name = p->gauge[i].name;
        double x = p->gauge[i].value;
        if (strcmp(name, "cpu_share") == 0)
            n += snprintf(line + n, sizeof(line) - (size_t)n, ", cpu %.0f %%", 100 * x);
        else if (strcmp(name, "rss_bytes") == 0)
            n += snprintf(line + n, sizeof(line) - (size_t)n, ", memory %s", bytes_format(value, x));
        else
            n += snprintf(line + n, sizeof(line) - (size_t)n, ", %s %s", name,
                          strstr(name, "bytes") ? bytes_format(value, x) : value_format(value, x));
    }
    cells_text(c, r.x, r.y, r.w, line, v == PROC_OK ? ROLE_DIM : verdict_role(v));
}

/* Where the run's items are, and which checkpoint it would return to. */
static void items_draw(const struct run_view *m, struct cells *c, struct rect r)
{
    char value[16];
    int x = r.x;
    if (m->checkpoint >= 0)
        x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_TEXT, "checkpoint %" PRId64, m->checkpoint) + 2;
    if (m->incarnation > 1)
        x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_WARN, "life %" PRId64, m->incarnation) + 2;
    if (m->n_buffer > 0 && r.w >= 90)
        x += cells_text(c, x, r.y, r.x + r.w - x, "items:", ROLE_DIM) + 1;
    for (int i = 0; i < m->n_buffer; i++) {
        value_format(value, m->buffer[i].value);
        if (x + (int)(strlen(m->buffer[i].name) + 1 + strlen(value)) > r.x + r.w)    // a name without its number says nothing
            return;
        x += cells_text(c, x, r.y, r.x + r.w - x, m->buffer[i].name, ROLE_DIM) + 1;
        x += cells_text(c, x, r.y, r.x + r.w - x, value, ROLE_TEXT) + 2;
    }
}

static void workers_draw(const struct pane *pane, const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    const struct run_view *m = a->model;
    if (fleet_shown(pane, a)) {
        fleet_draw(&((const struct workers *)pane)->fleet, a, c, r, pane->filter, pane->top, pane->sel);
        return;
    }
    char title[96] = "processes and devices";
    if (m->n_left_out > 0)
        snprintf(title, sizeof(title), "processes and devices (%" PRId64 " more have no room here)", m->n_left_out);
    struct rect in = cells_box(c, r, title, ROLE_FOCUS, ROLE_TITLE);
    if (in.h < 1)
        return;
    size_t n_col = ARRAY_SIZE(columns);
    int column_w[ARRAY_SIZE(columns)], width = 1, lane_min = in.w >= 76 ? 20 : 0;
    for (size_t i = 0; i < ARRAY_SIZE(columns); i++) {
        column_w[i] = i == 0 ? name_width(m) : columns[i].width;
        if (width + column_w[i] + 1 > in.w - lane_min && i > 3) {
            n_col = i;
            break;
        }
        width += column_w[i] + 1;
    }
    int x = in.x + 1;
    for (size_t i = 0; i < n_col; x += column_w[i] + 1, i++)
        cells_text(c, x, in.y, MIN(column_w[i], in.x + in.w - x), columns[i].heading, ROLE_TITLE);
    struct rect lane = { x + 1, in.y, MIN(in.x + in.w - x - 2, LANE_SECONDS), 1 };
    if (lane.w >= 8)
        cells_fmt(c, lane.x, lane.y, lane.w, ROLE_TITLE, "last %d s", lane.w);
    int page = workers_page(a, r), n_line = device_lines(pane, a, r);
    int64_t top = pane->top, sel = pane->sel;
    int at = proc_at(pane, a, top);
    for (int i = 0; i < page && i + 1 < in.h && at < m->n_proc; i++, at = proc_next(pane, a, at + 1)) {
        const struct proc *p = &m->proc[at];
        int y = in.y + 1 + i;
        enum proc_verdict v = view_verdict(m, p, now_ns);
        double for_s = p->phase_s + (double)(now_ns - p->heard_ns) * 1e-9;
        x = in.x + 1;
        for (size_t k = 0; k < n_col; x += column_w[k] + 1, k++) {
            char text[64];
            enum role role;
            cell_text(p, k, column_w[k], v, for_s, text, &role);
            cells_text(c, x, y, MIN(column_w[k], in.x + in.w - x), text, role);
        }
        lane_draw(a, c, (struct rect){ lane.x, y, lane.w, 1 }, p, now_ns);
        if (top + i == sel) {
            cells_select(c, (struct rect){ in.x, y, MIN(x, in.x + in.w) - in.x, 1 });
            c->cursor_x = in.x + 1;
            c->cursor_y = y;
            if (r.h >= 14)
                detail_draw(c, (struct rect){ in.x + 1, in.y + in.h - 2, in.w - 2, 1 }, p, v, now_ns);
        }
    }
    int n_exchange = exchange_lines(a, r), y_low = in.y + in.h - n_exchange - (r.h >= 14 ? 3 : 0);
    struct filtered f = { pane->filter, m };
    hosts_draw(m, c, (struct rect){ in.x + 1, y_low - n_line, in.w - 2, n_line }, pane->filter[0] ? filtered_passes : NULL, &f);
    ranks_draw(m, c, (struct rect){ in.x + 1, y_low, in.w - 2, n_exchange });
    if (r.h >= 14)
        items_draw(m, c, (struct rect){ in.x + 1, in.y + in.h - 3, in.w - 2, 1 });
    if (r.h >= 14)
        legend_draw(a, c, (struct rect){ in.x + 1, in.y + in.h - 1, in.w - 2, 1 });
    if (workers_rows(pane, a) == 0 && in.h > 1)
        cells_text(c, in.x + 1, in.y + 1, in.w - 2,
                   m->n_proc  ? "none contains the filter's text"
                   : m->ended ? "all have ended"
                              : "no process is known yet",
                   ROLE_DIM);
}

/* Requests on the fleet: nodes stand side by side. */
static bool fleet_act(struct workers *w, struct app *a, enum request req)
{
    struct pane *p = &w->pane;
    int across = fleet_columns(a->model, app_body(a));
    const char *node;
    switch (req) {
    case REQ_UP: p->sel = MAX(p->sel - across, p->sel % across); break;
    case REQ_DOWN: p->sel += across; break;
    case REQ_LEFT: p->sel--; break;
    case REQ_RIGHT: p->sel++; break;
    case REQ_SORT: w->fleet.sort = (enum fleet_sort)((w->fleet.sort + 1) % N_FLEET_SORT); break;
    case REQ_VALUE: w->fleet.value = (enum fleet_value)((w->fleet.value + 1) % N_FLEET_VALUE); break;
    case REQ_ENTER:
        if ((node = fleet_node(&w->fleet, a->model, p->filter, p->sel)) != NULL) {
            snprintf(p->filter, sizeof(p->filter), "^%s/", node);
            w->show = SHOW_NODE;
            p->sel = 0;
        }
        break;
    default: return req == REQ_RESTART;
    }
    return true;
}

static bool workers_act(struct pane *pane, struct app *a, enum request req, UNUSED int64_t now_ns)
{
    struct workers *w = (struct workers *)pane;
    bool fleet = fleet_shown(pane, a);
    if (req == REQ_FLEET) {
        w->show = fleet ? SHOW_LIST : SHOW_FLEET;
        pane->filter[0] = 0;
        pane->sel = pane->top = 0;
        return true;
    }
    if (fleet)
        return fleet_act(w, a, req);
    int at = proc_at(pane, a, pane->sel);
    if (req != REQ_RESTART || at >= a->model->n_proc)
        return req == REQ_RESTART || req == REQ_ENTER || req == REQ_SORT || req == REQ_VALUE;
    const struct proc *p = &a->model->proc[at];
    char title[96], line[160], command[INPUT_MAX];
    snprintf(title, sizeof(title), "Kill '%s'?", p->name);
    snprintf(line, sizeof(line), "Process %" PRId64 " ends at once; its parent restarts it and", p->pid);
    snprintf(command, sizeof(command), "restart %s", p->name);
    app_confirm(a, true, title, line, "its unfinished work is repeated, with the same result.", command);
    return true;
}

static bool workers_click(struct pane *pane, struct app *a, struct rect body, int x, int y)
{
    if (!fleet_shown(pane, a))
        return false;
    int64_t at = fleet_at(a->model, body, pane->filter, pane->top, x, y);
    pane->sel = at >= 0 ? at : pane->sel;
    return true;
}

const struct pane_type pane_workers = {
    .name = "Workers",
    .size = sizeof(struct workers),
    .draw = workers_draw,
    .act = workers_act,
    .rows = workers_rows,
    .page = workers_page,
    .top = workers_top,
    .click = workers_click,
};
