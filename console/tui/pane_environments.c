/* pane_environments.c - the environments that feed the run: what each posts, how much of it waits, how old it is, and what failed
 *
 * Environments that post groups (the setting 'environments') are rows that the run's door reports among its processes; what the run's own
 * environments do ('environment') is reported by the scorers that play them. Above are the same figures over the run's steps. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"

#define CHART_H 8           // rows of a chart, with its border
#define WITH_CHARTS_H 24    // rows of the pane from which there are charts

/* A column of the table: a gauge that doors report, and the one that scorers do; NULL: they have none. */
static const struct figure {
    const char *heading, *posted, *played, *words;
    int width;
    bool bad;    // more than 0 is a fault
} figures[] = {
    { "groups", "groups", NULL, "groups that it posted", 8, false },
    { "turns", NULL, "environment/turns", "turns that it answered", 8, false },
    { "per min", "per minute", NULL, "groups per minute, of the last minute", 8, false },
    { "ms", NULL, "environment/latency_ms", "ms per turn", 7, false },
    { "waiting", "waiting", "environment/waiting", "waiting", 8, false },
    { "old", "steps old", NULL, "steps since the weights that drew what waits", 6, false },
    { "refused", "refused", "environment/errors", "refused as faulty, or failed", 8, true },
    { "no room", "had no room", "environment/timeouts", "without room, or too slow", 8, true },
};

static const enum metric_id charts[] = { M_ENV_PER_MIN, M_ENV_WAITING, M_ENV_AGE, M_ENV_REFUSED };

static bool is_posting(const struct proc *p)
{
    return strcmp(p->kind, "environment") == 0;
}

static bool is_playing(const struct proc *p)
{
    return strcmp(p->kind, "scorer") == 0 && !isnan(proc_gauge(p, "environment/turns"));
}

static bool row_shown(const struct pane *pane, const struct proc *p)
{
    char row[160];
    if (!is_posting(p) && !is_playing(p))
        return false;
    snprintf(row, sizeof(row), "%s %s", p->name, p->phase);
    return filter_matches(pane->filter, row);
}

/* The row'th environment that passes the filter; NULL: there are fewer. */
static const struct proc *row_at(const struct pane *pane, const struct app *a, int64_t row)
{
    for (int i = 0; i < a->model->n_proc; i++)
        if (row_shown(pane, &a->model->proc[i]) && row-- == 0)
            return &a->model->proc[i];
    return NULL;
}

static int64_t environments_rows(const struct pane *pane, const struct app *a)
{
    int64_t n = 0;
    for (int i = 0; i < a->model->n_proc; i++)
        n += row_shown(pane, &a->model->proc[i]);
    return n;
}

/* The process that takes posts; NULL: the run has none. */
static const struct proc *door_find(const struct run_view *m)
{
    for (int i = 0; i < m->n_proc; i++)
        if (strcmp(m->proc[i].name, "environments") == 0)
            return &m->proc[i];
    return NULL;
}

static double figure_of(const struct proc *p, const struct figure *f)
{
    const char *gauge = is_posting(p) ? f->posted : f->played;
    return gauge ? proc_gauge(p, gauge) : NAN;
}

/* Does any row have this figure? Columns that nobody fills are left out. */
static bool figure_is_used(const struct app *a, const struct figure *f)
{
    for (int i = 0; i < a->model->n_proc; i++) {
        const struct proc *p = &a->model->proc[i];
        if ((is_posting(p) && f->posted) || (is_playing(p) && f->played))
            return true;
    }
    return false;
}

static int charts_height(struct rect body)
{
    return body.h >= WITH_CHARTS_H ? CHART_H : 0;
}

static int environments_head(struct rect body)
{
    return charts_height(body) + 3;    // border, totals, heading
}

static int environments_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - environments_head(body) - 1, 1);
}

static void totals_draw(const struct app *a, struct cells *c, struct rect r)
{
    const struct proc *door = door_find(a->model);
    char rate[16], waits[16], age[16];
    if (!door) {
        cells_text(c, r.x, r.y, r.w, "no environment posts to this run; the setting 'environments' opens a door for them", ROLE_DIM);
        return;
    }
    double refused = proc_gauge(door, "refused"), full = proc_gauge(door, "had no room");
    int x = r.x;
    x += cells_fmt(c, x, r.y, r.w, ROLE_TEXT, "%.0f take part: %s groups a minute, %s wait, %s steps old",
                   fmax(0, proc_gauge(door, "environments")), value_format(rate, proc_gauge(door, "per minute")),
                   value_format(waits, proc_gauge(door, "waiting")), value_format(age, proc_gauge(door, "steps old")));
    if (refused > 0 || full > 0)
        x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_WARN, "; %.0f refused, %.0f had no room", fmax(0, refused), fmax(0, full));
    if (door->waits_for[0])
        cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_DIM, "; it waits for %s", door->waits_for);
}

static void row_draw(const struct app *a, struct cells *c, struct rect r, int name_w, const struct proc *p, int64_t now_ns)
{
    char text[32];
    enum proc_verdict v = view_verdict(a->model, p, now_ns);
    double heard_s = p->phase_s + (double)(now_ns - p->heard_ns) * 1e-9;
    int x = r.x, end = r.x + r.w;
    cells_text(c, x, r.y, name_w, p->name, ROLE_TEXT);
    x += name_w + 1;
    cells_text(c, x, r.y, MIN(9, end - x), p->phase, v == PROC_OK ? ROLE_OK : verdict_role(v));
    x += 9;
    if (is_posting(p))
        cells_text_right(c, x, r.y, MIN(7, end - x), duration_format(text, heard_s), ROLE_DIM);
    x += 7;
    for (size_t i = 0; i < ARRAY_SIZE(figures) && x + figures[i].width <= end; i++) {
        const struct figure *f = &figures[i];
        if (!figure_is_used(a, f))
            continue;
        double value = figure_of(p, f);
        cells_text_right(c, x, r.y, f->width, isnan(value) ? "-" : value_format(text, value), f->bad && value > 0 ? ROLE_WARN : ROLE_TEXT);
        x += f->width;
    }
}

static int heading_draw(const struct app *a, struct cells *c, struct rect r)
{
    int width = 16, end = r.x + r.w;
    for (size_t i = 0; i < ARRAY_SIZE(figures); i++)
        width += figure_is_used(a, &figures[i]) ? figures[i].width : 0;
    int name_w = MAX(MIN(r.w - width - 1, 40), 10), x = r.x + name_w + 1;
    cells_text(c, r.x, r.y, name_w, "environment", ROLE_TITLE);
    cells_text(c, x, r.y, end - x, "state", ROLE_TITLE);
    x += 9;
    cells_text_right(c, x, r.y, MIN(7, end - x), "last", ROLE_TITLE);
    x += 7;
    for (size_t i = 0; i < ARRAY_SIZE(figures) && x + figures[i].width <= end; i++)
        if (figure_is_used(a, &figures[i])) {
            cells_text_right(c, x, r.y, figures[i].width, figures[i].heading, ROLE_TITLE);
            x += figures[i].width;
        }
    return name_w;
}

static void charts_draw(const struct app *a, struct cells *c, struct rect r)
{
    int n = MAX(MIN((int)ARRAY_SIZE(charts), r.w / 30), 1);
    for (int i = 0; i < n; i++) {
        const struct series *s = &a->model->metric[charts[i]];
        struct rect box = { r.x + r.w * i / n, r.y, r.w * (i + 1) / n - r.w * i / n, r.h };
        struct chart chart = {
            .series = s, .to = MAX(a->model->n_step, (int64_t)1), .cursor = -1, .low = NAN, .high = NAN, .glyphs = a->glyphs
        };
        char title[64], value[16];
        snprintf(title, sizeof(title), "%s %s", metrics[charts[i]].label, value_format(value, s->last));
        chart_draw(c, cells_box(c, box, title, ROLE_BORDER, ROLE_TITLE), &chart);
    }
}

static void environments_draw(const struct pane *pane, const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    int chart_h = charts_height(r);
    struct rect in = cells_box(c, (struct rect){ r.x, r.y + chart_h, r.w, r.h - chart_h }, "environments: what feeds the run", ROLE_FOCUS,
                               ROLE_TITLE);
    int page = environments_page(a, r);
    if (chart_h > 0)
        charts_draw(a, c, (struct rect){ r.x, r.y, r.w, chart_h });
    if (in.h < 1)
        return;
    struct rect line = { in.x + 1, in.y, in.w - 2, 1 };
    totals_draw(a, c, line);
    line.y++;
    if (in.h < 2)
        return;
    int name_w = heading_draw(a, c, line);
    for (int i = 0; i < page && i + 2 < in.h; i++) {
        const struct proc *p = row_at(pane, a, pane->top + i);
        if (!p)
            break;
        line.y = in.y + 2 + i;
        row_draw(a, c, line, name_w, p, now_ns);
        if (pane->top + i == pane->sel) {
            cells_select(c, (struct rect){ in.x, line.y, in.w, 1 });
            c->cursor_x = line.x;
            c->cursor_y = line.y;
        }
    }
    if (environments_rows(pane, a) == 0 && in.h > 2)
        cells_text(c, line.x, in.y + 2, line.w, pane->filter[0] ? "none contains the filter's text" : "none has come yet", ROLE_DIM);
}

static bool environments_act(struct pane *pane, struct app *a, enum request req, int64_t now_ns)
{
    const struct proc *p = row_at(pane, a, pane->sel);
    char text[1024], value[16];
    if (req != REQ_ENTER || !p)
        return false;
    double heard_s = p->phase_s + (double)(now_ns - p->heard_ns) * 1e-9;
    int n = snprintf(text, sizeof(text), "%s: %s for %s\n", p->name, p->phase, duration_format(value, heard_s));
    for (size_t i = 0; i < ARRAY_SIZE(figures); i++)
        if (!isnan(figure_of(p, &figures[i])))
            n += snprintf(text + n, sizeof(text) - (size_t)n, "%s %s\n", value_format(value, figure_of(p, &figures[i])), figures[i].words);
    whole_open(a, "an environment", text);
    return true;
}

const struct pane_type pane_environments = {
    .name = "Environments",
    .size = sizeof(struct pane),
    .draw = environments_draw,
    .act = environments_act,
    .rows = environments_rows,
    .page = environments_page,
    .head = environments_head,
};
