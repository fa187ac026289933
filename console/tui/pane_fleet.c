/* pane_fleet.c - see pane_fleet.h */
#include "console/tui/pane_fleet.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_W 14
#define IDLE_PERCENT 10

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : NAN;
}

static bool node_shown(const struct run_view *m, const struct node_state *s, const char *filter)
{
    char row[128];
    snprintf(row, sizeof(row), "%s%s%s%s%s%s", m->host[s->host].node, s->lost ? " lost" : "", s->failing ? " errors" : "",
             s->slowed ? " slowed" : "", s->stuck ? " stuck" : "", s->slow ? " slow" : "");
    return filter_matches(filter, row);
}

static double node_key(const struct node_state *s, enum fleet_sort sort)
{
    switch (sort) {
    case FLEET_WORST: return node_severity(s);
    case FLEET_IDLE: return isnan(s->use) ? 200 : round(s->use / 5);    // in coarse steps, so that nodes keep their places
    case FLEET_HOT: return isnan(s->heat) ? 0 : -round(s->heat / 3);
    case FLEET_FULL: return isnan(s->full) ? 0 : -round(s->full / 3);
    case FLEET_NAME:
    case N_FLEET_SORT: break;
    }
    return 0;
}

/* All nodes with their state; f is sorted, and holds those that pass the filter. */
static void fleet_make(struct nodes *f, const struct run_view *m, const char *filter, enum fleet_sort sort)
{
    int kept = 0;
    nodes_make(f, m, NULL, NULL);
    for (int i = 0; i < f->n; i++)
        if (node_shown(m, &f->node[i], filter)) {
            f->node[kept] = f->node[i];
            f->node[kept].key = node_key(&f->node[kept], sort);
            kept++;
        }
    f->n = kept;
    nodes_sort(f);
}

int64_t fleet_rows(const struct run_view *m, const char *filter)
{
    struct nodes f;
    if (!filter[0])
        return m->n_host;
    fleet_make(&f, m, filter, FLEET_NAME);
    return f.n;
}

const char *fleet_node(const struct fleet_view *v, const struct run_view *m, const char *filter, int64_t row)
{
    struct nodes f;
    fleet_make(&f, m, filter, v->sort);
    return row >= 0 && row < f.n ? m->host[f.node[row].host].node : NULL;
}

/* Columns of a node: its sign, name and devices. */
int fleet_node_width(const struct run_view *m, int *name_w)
{
    int gpus = 1;
    *name_w = 4;
    for (int i = 0; i < m->n_host; i++) {
        *name_w = MAX(*name_w, MIN((int)strlen(m->host[i].node), NAME_MAX_W));
        gpus = MAX(gpus, m->host[i].n_device);
    }
    return 1 + *name_w + 1 + gpus + 2;
}

int fleet_columns(const struct run_view *m, struct rect body)
{
    int name_w, w = fleet_node_width(m, &name_w);
    return MAX((body.w - 4 + 2) / w, 1);
}

static enum role level_of(enum fleet_value what, double v)
{
    if (what == FLEET_HEAT)
        return v >= 90 ? ROLE_CRIT : v >= 80 ? ROLE_WARN : ROLE_OK;
    return v < 20 ? ROLE_DIM : v < 60 ? ROLE_SERIES1 : ROLE_OK;
}

/* A device's cell: a letter for what is wrong, else tenths of its value. */
static uint32_t device_cell(const struct device_view *d, enum fleet_value what, enum role *role)
{
    double v = what == FLEET_USE      ? d->util_percent
               : what == FLEET_MEMORY ? percent(d->mem_used_bytes, d->mem_total_bytes)
               : what == FLEET_HEAT   ? d->temp_celsius
                                      : percent(d->power_watts, d->power_limit_watts);
    enum device_fault fault = device_fault(d);
    static const char signs[] = { [DEVICE_SLOWED] = 'T', [DEVICE_FAILING] = 'E', [DEVICE_LOST] = 'X' };
    if (fault != DEVICE_WELL) {
        *role = fault == DEVICE_SLOWED ? ROLE_WARN : ROLE_CRIT;
        return (uint32_t)signs[fault];
    }
    *role = isnan(v) ? ROLE_DIM : level_of(what, v);
    return isnan(v) ? '?' : (uint32_t)('0' + (int)fmin(fmax(v / 10, 0), 9));
}

void fleet_node_draw(const struct fleet_view *v, const struct run_view *m, struct cells *c, struct rect r, int name_w,
                     const struct node_state *s)
{
    const struct host_view *h = &m->host[s->host];
    bool crit = s->lost || s->stuck || s->failing, warn = s->slowed || s->slow;
    enum role role = crit ? ROLE_CRIT : warn ? ROLE_WARN : ROLE_TEXT;
    cells_put(c, r.x, r.y, s->stuck ? '!' : crit ? '*' : warn ? '~' : ' ', role);
    cells_text(c, r.x + 1, r.y, MIN(name_w, r.w - 1), h->node, role);
    for (int i = 0; i < h->n_device && 2 + name_w + i < r.w; i++) {
        enum role of;
        uint32_t ch = device_cell(&m->device[s->first + i], v->value, &of);
        cells_put(c, r.x + 2 + name_w + i, r.y, ch, of);
    }
}

static void summary_draw(const struct run_view *m, struct cells *c, struct rect r, const struct nodes *f)
{
    int idle = 0, lost = 0, errors = 0, slowed = 0, stuck = 0, busy = 0;
    for (int i = 0; i < f->n; i++) {
        for (int k = 0; k < m->host[f->node[i].host].n_device; k++) {
            busy += m->device[f->node[i].first + k].util_percent >= IDLE_PERCENT;
            idle += m->device[f->node[i].first + k].util_percent < IDLE_PERCENT;
        }
        lost += f->node[i].lost;
        errors += f->node[i].failing;
        slowed += f->node[i].slowed;
        stuck += f->node[i].stuck;
    }
    int x = r.x, end = r.x + r.w;
    if (m->n_left_out > 0)
        x += cells_fmt(c, x, r.y, end - x, ROLE_CRIT, "%" PRId64 " more have no room here  ", m->n_left_out);
    if (lost)
        x += cells_fmt(c, x, r.y, end - x, ROLE_CRIT, "%d lost  ", lost);
    if (stuck)
        x += cells_fmt(c, x, r.y, end - x, ROLE_CRIT, "%d stuck  ", stuck);
    if (errors)
        x += cells_fmt(c, x, r.y, end - x, ROLE_CRIT, "%d with memory errors  ", errors);
    if (slowed)
        x += cells_fmt(c, x, r.y, end - x, ROLE_WARN, "%d slowed  ", slowed);
    cells_fmt(c, x, r.y, end - x, ROLE_TEXT, "%d work  %d idle", busy, idle);
}

/* The selected node in words. */
static void detail_draw(const struct run_view *m, struct cells *c, struct rect r, const struct node_state *s)
{
    const struct host_view *h = &m->host[s->host];
    char line[400];
    int n = snprintf(line, sizeof(line), "%s", h->node);
    for (int i = 0; i < h->n_device && n < (int)sizeof(line) - 80; i++) {
        const struct device_view *d = &m->device[s->first + i];
        char fault[160];
        if (device_fault_say(d, fault, sizeof(fault)) != DEVICE_WELL)
            n += snprintf(line + n, sizeof(line) - (size_t)n, "  %s %.60s", d->name, fault);
    }
    if (s->stuck + s->slow > 0)
        n += snprintf(line + n, sizeof(line) - (size_t)n, "  %d stuck, %d slow: Enter lists its processes", s->stuck, s->slow);
    snprintf(line + n, sizeof(line) - (size_t)n, "  cpu %.0f %%  use %.0f %%  hottest %.0f C  memory %.0f %%", h->cpu_percent, s->use,
             s->heat, s->full);
    bool crit = s->lost || s->stuck || s->failing;
    cells_text(c, r.x, r.y, r.w, line, crit ? ROLE_CRIT : s->slowed || s->slow ? ROLE_WARN : ROLE_DIM);
}

static void title_make(const struct fleet_view *v, const struct run_view *m, const struct nodes *f, char title[160])
{
    static const char *const sorts[] = { [FLEET_WORST] = "worst first",
                                         [FLEET_IDLE] = "idle first",
                                         [FLEET_HOT] = "hottest first",
                                         [FLEET_FULL] = "fullest first",
                                         [FLEET_NAME] = "by name" };
    static const char *const values[] = { [FLEET_USE] = "use", [FLEET_MEMORY] = "memory", [FLEET_HEAT] = "heat", [FLEET_POWER] = "power" };
    int64_t nodes = MAX(m->n_node + 1, (int64_t)m->n_host);
    int n = snprintf(title, 160, "fleet: %s of %d GPUs, %s", values[v->value], m->n_device, sorts[v->sort]);
    if (f->n < m->n_host)
        snprintf(title + n, 160 - (size_t)n, ", %d of %d nodes", f->n, m->n_host);
    else if (m->n_host + 1 < nodes)
        snprintf(title + n, 160 - (size_t)n, ", %d of %" PRId64 " nodes so far", m->n_host, nodes - 1);
    else
        snprintf(title + n, 160 - (size_t)n, ", %d nodes", m->n_host);
}

/* How nodes stand in a body. */
struct grid {
    int node_w, name_w, columns, rows;
    int words;    // lines below them
    int first;    // row that is drawn first
};
/* top: a node of the row that is drawn first, if the others fill the body. */
static struct grid grid_make(const struct run_view *m, struct rect body, int64_t n, int64_t top)
{
    struct grid g = { .columns = fleet_columns(m, body), .words = body.h >= 8 ? 2 : 0 };
    g.node_w = fleet_node_width(m, &g.name_w);
    g.rows = MAX(body.h - 3 - g.words, 1);    // of the border and the summary
    int total = ((int)n + g.columns - 1) / g.columns;
    g.first = MAX(MIN((int)(top / g.columns), total - g.rows), 0);
    return g;
}

int64_t fleet_top(const struct run_view *m, struct rect body, const char *filter, int64_t top, int64_t sel)
{
    int64_t n = fleet_rows(m, filter);
    struct grid g = grid_make(m, body, n, top);
    return list_top(g.first, sel / g.columns, (n + g.columns - 1) / g.columns, g.rows) * g.columns;
}

int64_t fleet_at(const struct run_view *m, struct rect body, const char *filter, int64_t top, int x, int y)
{
    int64_t n = fleet_rows(m, filter);
    struct grid g = grid_make(m, body, n, top);
    int left = x - body.x - 2, row = y - body.y - 2;
    if (left < 0 || left / g.node_w >= g.columns || row < 0 || row >= g.rows || y >= body.y + body.h - 1 - g.words)
        return -1;
    int64_t at = (int64_t)(g.first + row) * g.columns + left / g.node_w;
    return at < n ? at : -1;
}

void fleet_draw(const struct fleet_view *v, const struct app *a, struct cells *c, struct rect r, const char *filter, int64_t top,
                int64_t sel)
{
    const struct run_view *m = a->model;
    struct nodes f;
    char title[160];
    fleet_make(&f, m, filter, v->sort);
    title_make(v, m, &f, title);
    struct rect in = cells_box(c, r, title, ROLE_FOCUS, ROLE_TITLE);
    if (in.h < 1)
        return;
    struct grid g = grid_make(m, r, f.n, top);
    summary_draw(m, c, (struct rect){ in.x + 1, in.y, in.w - 2, 1 }, &f);
    for (int i = g.first * g.columns; i < f.n && i < (g.first + g.rows) * g.columns; i++) {
        struct rect at = { in.x + 1 + i % g.columns * g.node_w, in.y + 1 + i / g.columns - g.first, 0, 1 };
        at.w = MIN(g.node_w - 2, in.x + in.w - at.x);
        if (at.y >= in.y + in.h - g.words)
            break;
        fleet_node_draw(v, m, c, at, g.name_w, &f.node[i]);
        if (i == sel) {
            cells_select(c, at);
            c->cursor_x = at.x + 1;
            c->cursor_y = at.y;
        }
    }
    if (g.words && sel < f.n)
        detail_draw(m, c, (struct rect){ in.x + 1, in.y + in.h - 2, in.w - 2, 1 }, &f.node[sel]);
    int below = f.n - MIN((g.first + g.rows) * g.columns, f.n);
    if (g.words && below + g.first > 0)
        cells_fmt(c, in.x + 1, in.y + in.h - 1, in.w - 2, ROLE_DIM,
                  "%d nodes above, %d below  |  0-9 tenths  X lost  E memory errors  T slowed  ! stuck", g.first * g.columns, below);
    else if (g.words)
        cells_text(c, in.x + 1, in.y + in.h - 1, in.w - 2, "0-9 tenths  X lost  E memory errors  T slowed  ! stuck", ROLE_DIM);
    if (f.n == 0 && in.h > 1)
        cells_text(c, in.x + 1, in.y + 1, in.w - 2, m->n_host ? "none contains the filter's text" : "no node is known yet", ROLE_DIM);
}
