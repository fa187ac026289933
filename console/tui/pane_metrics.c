/* pane_metrics.c - every metric of the run: a list with spark lines, and a chart of the chosen one with any others
 *
 * The list and the chart are side by side; on a narrow screen Enter changes from one to the other. Metrics that were marked with `o`
 * stay in the chart while others are chosen. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/tui/app.h"
#include "console/tui/chart_view.h"
#include "console/tui/save.h"

#define LINES_MAX 5        // marked metrics
#define CARD_STEPS 20      // before and after a change
#define LIST_LEAST_W 72    // columns from which list and chart are side by side

struct metrics_pane {
    struct pane pane;    // sel and top: rows of the list
    struct chart_view view;
    bool open;                // the chart alone
    bool from_overview;       // opened there; closing it goes back
    int marked[LINES_MAX];    // numbers of metrics (metric_ref)
    int n_marked;
};

/* A metric, from the table or the run's own. */
struct metric_ref {
    int number;    // 0 .. METRIC_N - 1: in the table; then the model's extra ones
    const char *name, *label, *unit, *help;
    const struct series *series;
};

static bool metric_ref(const struct run_view *m, int number, struct metric_ref *out)
{
    if (number < METRIC_N) {
        const struct metric *k = &metrics[number];
        *out = (struct metric_ref){ number, k->name, k->label, k->unit, k->help, &m->metric[number] };
        return true;
    }
    if (number >= METRIC_N + m->n_extra)
        return false;
    const struct extra_metric *e = &m->extra[number - METRIC_N];
    *out = (struct metric_ref){ number, e->name, e->name, "", "a reward part, an evaluation or a figure of this run's own", &e->series };
    return true;
}

/* The first metric with a number from `number` on that has values and passes the filter; false: there is none. */
static bool metric_next(const struct metrics_pane *o, const struct run_view *m, int number, struct metric_ref *out)
{
    char text[256];
    for (; metric_ref(m, number, out); number++) {
        if (out->series->n == 0 || isnan(out->series->last))
            continue;
        snprintf(text, sizeof(text), "%s %s", out->name, out->label);
        if (filter_matches(o->pane.filter, text))
            return true;
    }
    return false;
}

/* That of a row of the list; false: there are fewer. */
static bool metric_row(const struct metrics_pane *o, const struct run_view *m, int64_t row, struct metric_ref *out)
{
    bool found = metric_next(o, m, 0, out);
    while (found && row-- > 0)
        found = metric_next(o, m, out->number + 1, out);
    return found;
}

static int64_t metrics_rows(const struct pane *p, const struct app *a)
{
    const struct metrics_pane *o = (const struct metrics_pane *)p;
    struct metric_ref k;
    int64_t n = 0;
    for (bool found = metric_next(o, a->model, 0, &k); found; found = metric_next(o, a->model, k.number + 1, &k))
        n++;
    return n;
}

static int metrics_head(UNUSED struct rect body)
{
    return 1;    // the border
}

static int metrics_page(UNUSED const struct app *a, struct rect body)
{
    return MAX(body.h - 2, 1);
}

/* Which of the chart's letters a metric has; 0: none. */
static char letter_of(const struct metrics_pane *o, int number)
{
    for (int i = 0; i < o->n_marked; i++)
        if (o->marked[i] == number)
            return (char)('b' + i);
    return 0;
}

static void list_draw(const struct metrics_pane *o, const struct app *a, struct cells *c, struct rect r)
{
    const struct run_view *m = a->model;
    char title[64], value[16];
    int64_t n = metrics_rows(&o->pane, a);
    snprintf(title, sizeof(title), "%" PRId64 " metrics%s", n, o->view.cursor >= 0 ? " at the cursor" : "");
    struct rect in = cells_box(c, r, title, o->open ? ROLE_BORDER : ROLE_FOCUS, ROLE_TITLE);
    int spark_w = MAX(MIN(in.w - 26, 24), 0), name_w = in.w - 11 - spark_w - (spark_w > 0);
    struct metric_ref k;
    int64_t from, to;
    chart_view_range(&o->view, 0, m->n_step, &from, &to);
    bool found = metric_row(o, m, o->pane.top, &k);
    for (int i = 0; i < in.h && found; found = metric_next(o, m, k.number + 1, &k), i++) {
        int y = in.y + i, x = in.x + 2;
        char letter = letter_of(o, k.number);
        if (letter)
            cells_fmt(c, in.x, y, 1, (enum role)(ROLE_SERIES1 + letter - 'a'), "%c", letter);
        int label_w = cells_text(c, x, y, name_w, k.label, ROLE_TEXT);
        if (k.unit[0])
            cells_text(c, x + label_w + 1, y, name_w - label_w - 1, k.unit, ROLE_DIM);
        x += name_w + 1;
        if (spark_w > 0)
            spark_draw(c, (struct rect){ x, y, spark_w, 1 }, k.series, from, to, a->glyphs);
        double v = o->view.cursor >= 0 ? series_at(k.series, o->view.cursor) : k.series->last;
        cells_text_right(c, in.x + in.w - 8, y, 7, value_format(value, v), ROLE_TEXT);
        if (o->pane.top + i == o->pane.sel) {
            cells_select(c, (struct rect){ in.x, y, in.w, 1 });
            c->cursor_x = in.x + 2;
            c->cursor_y = y;
        }
    }
    if (n == 0 && in.h > 0)
        cells_text(c, in.x + 1, in.y, in.w - 2, o->pane.filter[0] ? "no metric contains the filter's text" : "no data yet", ROLE_DIM);
}

/* ---- the chart ---- */

/* The newest change that acts from this step on: of a knob, or a return to a checkpoint; NULL: there is none. */
static const struct event_view *change_at(const struct run_view *m, int64_t step)
{
    const struct event_view *e;
    for (int64_t i = 0; (e = view_event_at(m, i)) != NULL; i++)
        if (view_change_step(m, e) == step)
            return e;
    return NULL;
}

/* The first alarm that began within CARD_STEPS of a change, from step on; NULL: none did. */
static const struct event_view *alarm_after(const struct run_view *m, int64_t step)
{
    const struct event_view *e, *first = NULL;
    for (int64_t i = 0; (e = view_event_at(m, i)) != NULL; i++)
        if (strcmp(e->kind, "alarm") == 0 && e->step >= step && e->step < step + CARD_STEPS && strstr(e->detail, "\"firing\""))
            first = e;    // they come newest first
    return first;
}

/* The value at the cursor; at a change also who changed what, and the metric's mean over the steps before and after it. Up to
 * three rows. */
static void cursor_draw(const struct metrics_pane *o, const struct app *a, struct cells *c, struct rect r, const struct metric_ref *k)
{
    const struct run_view *m = a->model;
    int64_t step = o->view.cursor;
    const struct event_view *e = change_at(m, step);
    char here[16], before[16], after[16];
    value_format(here, series_at(k->series, step));
    if (!e) {
        cells_fmt(c, r.x, r.y, r.w, ROLE_FOCUS, "step %" PRId64 ": %s %s   (Left/Right move, 0 closes)", step, here, k->unit);
        return;
    }
    struct series_span was = series_query(k->series, MAX(step - CARD_STEPS, 0), step);
    struct series_span is = series_query(k->series, step, step + CARD_STEPS);    // with the change
    cells_fmt(c, r.x, r.y, r.w, ROLE_FOCUS, "step %" PRId64 ": %s   %d steps before: %s, from here: %s", step, here, CARD_STEPS,
              value_format(before, was.mean), value_format(after, is.n > 0 ? is.mean : NAN));
    if (r.h < 3)
        return;
    cells_fmt(c, r.x, r.y + 1, r.w, ROLE_CHANGED, "%s%s%s", e->text, e->who[0] ? " \u00b7 " : "", e->who);
    const struct event_view *alarm = alarm_after(m, step);
    if (alarm)
        cells_fmt(c, r.x, r.y + 2, r.w, ROLE_WARN, "\u26a0 the next alarm, in step %" PRId64 ": %s", alarm->step, alarm->text);
}

/* May b stand on a's axis? Both must keep at least a third of its height. */
static bool axis_shared(const struct metric_ref *a, const struct metric_ref *b)
{
    struct series_span x = series_query(a->series, 0, a->series->n), y = series_query(b->series, 0, b->series->n);
    double both = fmax(x.max, y.max) - fmin(x.min, y.min);
    return strcmp(a->unit, b->unit) == 0 && both <= 3 * (x.max - x.min) && both <= 3 * (y.max - y.min);
}

/* The lines besides the chosen metric; those that do not fit its axis have a scale of their own. Returns how many. */
static int lines_find(const struct metrics_pane *o, const struct app *a, const struct metric_ref *k, struct chart_line line[LINES_MAX + 1])
{
    const struct run_view *m = a->model;
    int n = 0;
    for (int i = 0; i < o->n_marked; i++) {
        struct metric_ref other;
        if (o->marked[i] == k->number || !metric_ref(m, o->marked[i], &other))
            continue;
        line[n++] = (struct chart_line){
            .series = other.series, .own_scale = !axis_shared(k, &other), .letter = (char)('b' + i), .role = (enum role)(ROLE_SERIES2 + i)
        };
    }
    return n + compare_line(&a->compare, k->name, &line[n]);
}

/* The other run's line: its name, and its value where this run's is shown. */
static void compared_draw(const struct metrics_pane *o, const struct app *a, struct cells *c, struct rect r, const char *metric)
{
    char value[16];
    int64_t step = o->view.cursor >= 0 ? o->view.cursor : a->model->n_step - 1;
    int x = r.x + cells_fmt(c, r.x, r.y, r.w, ROLE_SERIES7, "%c %s", COMPARE_LETTER, a->compare.model->name);
    cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_TEXT, "  %s at the same %s", value_format(value, compare_value(&a->compare, metric, step)),
              a->compare.by_time ? "time" : "step");
}

/* One row per line: letter, name, value at the cursor or the newest, and the range of one that has its own scale. Returns the rows. */
static int legend_draw(const struct metrics_pane *o, const struct app *a, struct cells *c, struct rect r, const struct chart *chart,
                       const char *name)
{
    char value[16], lo[16], hi[16];
    for (int i = 0; i < chart->n_line && i < r.h; i++) {
        const struct chart_line *l = &chart->line[i];
        struct metric_ref k;
        if (l->letter == COMPARE_LETTER) {
            compared_draw(o, a, c, (struct rect){ r.x, r.y + i, r.w, 1 }, name);
            continue;
        }
        if (!metric_ref(a->model, o->marked[l->letter - 'b'], &k))
            continue;
        struct series_span span = series_query(l->series, chart->from, chart->to);
        double v = o->view.cursor >= 0 ? series_at(l->series, o->view.cursor) : l->series->last;
        int x = r.x + cells_fmt(c, r.x, r.y + i, r.w, l->role, "%c %s", l->letter, k.name);
        x += cells_fmt(c, x, r.y + i, r.x + r.w - x, ROLE_TEXT, "  %s %s", value_format(value, v), k.unit);
        if (l->own_scale)
            cells_fmt(c, x, r.y + i, r.x + r.w - x, ROLE_DIM, "  own scale: %s to %s", value_format(lo, span.min),
                      value_format(hi, span.max));
    }
    return MIN(chart->n_line, r.h);
}

static void metric_draw(const struct metrics_pane *o, const struct app *a, struct cells *c, struct rect r)
{
    const struct run_view *m = a->model;
    struct metric_ref k;
    struct chart_line line[LINES_MAX + 1];
    char title[160], note[64], now[16], mean[16], min[16], max[16];
    int64_t mark[MARKS_MAX];
    if (!metric_row(o, m, o->pane.sel, &k)) {
        cells_text(c, r.x + 2, r.y + 1, r.w - 4, o->pane.filter[0] ? "no metric contains the filter's text" : "no data yet", ROLE_DIM);
        return;
    }
    struct chart chart = chart_view_of(&o->view, k.series, compare_steps(&a->compare, m->n_step), a->glyphs);
    chart.mark = mark;
    chart.n_mark = marks_find(m, mark);
    chart.line = line;
    chart.n_line = lines_find(o, a, &k, line);
    band_find(m, k.name, &chart);
    chart_view_note(&o->view, note);
    snprintf(title, sizeof(title), "%s%s%s%s", chart.n_line ? "a " : "", k.name, note[0] ? ": " : "", note);
    struct rect in = cells_box(c, r, title, o->open ? ROLE_FOCUS : ROLE_BORDER, ROLE_TITLE);
    if (in.h < 1)
        return;
    int head = 0;
    if (in.h >= 12)
        cells_text(c, in.x, in.y + head++, in.w, k.help, ROLE_DIM);
    struct rect at = { in.x, in.y + head, in.w, in.h >= 12 ? 3 : 1 };
    struct series_span span = series_query(k.series, chart.from, chart.to);
    if (in.h >= 5 && o->view.cursor < 0)
        cells_fmt(c, at.x, at.y, at.w, ROLE_TEXT, "now %s %s   mean %s   min %s   max %s", value_format(now, k.series->last), k.unit,
                  value_format(mean, span.mean), value_format(min, span.min), value_format(max, span.max));
    else if (in.h >= 5)
        cursor_draw(o, a, c, at, &k);
    head += in.h >= 5 ? at.h : 0;
    if (in.h >= 8)
        head += legend_draw(o, a, c, (struct rect){ in.x, in.y + head, in.w, in.h / 3 }, &chart, k.name);
    chart_draw(c, (struct rect){ in.x, in.y + head, in.w, in.h - head }, &chart);
}

static void metrics_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, UNUSED int64_t now_ns)
{
    const struct metrics_pane *o = (const struct metrics_pane *)p;
    int list_w = o->open ? 0 : r.w < LIST_LEAST_W ? r.w : MIN(MAX(r.w * 2 / 5, 36), 60);
    if (list_w > 0)
        list_draw(o, a, c, (struct rect){ r.x, r.y, list_w, r.h });
    if (r.w - list_w > 0)
        metric_draw(o, a, c, (struct rect){ r.x + list_w, r.y, r.w - list_w, r.h });
}

/* ---- keys ---- */

/* The step of the next change after the cursor, or of the one before it; -1: there is none. */
static int64_t change_next(const struct metrics_pane *o, const struct run_view *m, bool forward)
{
    int64_t mark[MARKS_MAX], best = -1, from = o->view.cursor >= 0 ? o->view.cursor : forward ? -1 : m->n_step;
    int n = marks_find(m, mark);
    for (int i = 0; i < n; i++)
        if (forward ? mark[i] > from && (best < 0 || mark[i] < best) : mark[i] < from && mark[i] > best)
            best = mark[i];
    return best;
}

static void mark_toggle(struct metrics_pane *o, struct app *a, int number, int64_t now_ns)
{
    char letter = letter_of(o, number);
    if (letter) {
        int at = letter - 'b';
        memmove(&o->marked[at], &o->marked[at + 1], (size_t)(--o->n_marked - at) * sizeof(o->marked[0]));
    } else if (o->n_marked == LINES_MAX) {
        app_flash(a, ROLE_WARN, now_ns, "a chart has at most %d lines besides the chosen one; o on a marked one removes it", LINES_MAX);
    } else {
        o->marked[o->n_marked++] = number;
    }
}

static void chart_leave(struct metrics_pane *o, struct app *a)
{
    bool back = o->from_overview;
    o->open = o->from_overview = false;
    if (back)
        app_show(a, PANE_OVERVIEW);
}

static bool metrics_act(struct pane *p, struct app *a, enum request req, int64_t now_ns)
{
    struct metrics_pane *o = (struct metrics_pane *)p;
    const struct run_view *m = a->model;
    struct metric_ref k;
    int64_t step;
    switch (req) {
    case REQ_ENTER:
        if (o->open)
            chart_leave(o, a);
        else
            o->open = true;
        return true;
    case REQ_BACK:
    case REQ_QUIT:
        if (!o->open)
            return false;
        chart_leave(o, a);
        return true;
    case REQ_OVERLAY:
        if (metric_row(o, m, p->sel, &k))
            mark_toggle(o, a, k.number, now_ns);
        return true;
    case REQ_MATCH_NEXT:
    case REQ_MATCH_PREV:
        if ((step = change_next(o, m, req == REQ_MATCH_NEXT)) >= 0)
            chart_view_go(&o->view, step, m->n_step);
        else
            app_flash(a, ROLE_DIM, now_ns, "no change of a knob lies further on");
        return true;
    case REQ_TOP:
    case REQ_BOTTOM:
        if (o->open && metric_row(o, m, p->sel, &k))
            chart_view_go(&o->view, req == REQ_TOP ? chart_view_first(k.series) : m->n_step - 1, m->n_step);
        return o->open;    // else the list's ends
    default: return chart_view_act(&o->view, req, compare_steps(&a->compare, m->n_step));
    }
}

static bool metrics_close(struct pane *p)
{
    struct metrics_pane *o = (struct metrics_pane *)p;
    bool was_open = o->open;
    o->open = o->from_overview = false;
    return was_open;
}

static void metrics_init(struct pane *p)
{
    ((struct metrics_pane *)p)->view = CHART_VIEW_INIT;
}

void metrics_open(struct app *a, enum metric_id metric)
{
    struct metrics_pane *o = (struct metrics_pane *)a->pane[PANE_METRICS];
    struct metric_ref k;
    o->pane.filter[0] = 0;
    for (int64_t row = 0; metric_row(o, a->model, row, &k); row++)
        if (k.number == (int)metric) {
            app_show(a, PANE_METRICS);
            o->pane.sel = row;
            o->open = o->from_overview = true;
            pane_fix(&o->pane, a);
            return;
        }
}

void metrics_go(struct app *a, int64_t step)
{
    struct metrics_pane *o = (struct metrics_pane *)a->pane[PANE_METRICS];
    app_show(a, PANE_METRICS);
    o->open = true;
    if (step == INT64_MAX)    // the end, as it comes
        o->view = (struct chart_view){
            .cursor = -1, .steps = o->view.steps, .log_scale = o->view.log_scale, .smoothing = o->view.smoothing
        };
    else
        chart_view_go(&o->view, step, a->model->n_step);
}

static int column_add(struct save_column *column, int n, int max, const struct metric_ref *k)
{
    if (n < max && k->series->n > 0)
        column[n++] = (struct save_column){ k->name, k->series };
    return n;
}

int metrics_chosen(const struct app *a, struct save_column *column, int max, int64_t *from, int64_t *to)
{
    const struct metrics_pane *o = (const struct metrics_pane *)a->pane[PANE_METRICS];
    const struct run_view *m = a->model;
    struct metric_ref k;
    int n = 0;
    *from = 0;
    *to = m->n_step;
    if (a->shown != PANE_METRICS || !metric_row(o, m, o->pane.sel, &k)) {
        for (int number = 0; metric_ref(m, number, &k); number++)
            n = column_add(column, n, max, &k);
        return n;
    }
    n = column_add(column, n, max, &k);
    chart_view_range(&o->view, 0, m->n_step, from, to);
    for (int i = 0; i < o->n_marked; i++) {
        struct metric_ref other;
        if (o->marked[i] != k.number && metric_ref(m, o->marked[i], &other))
            n = column_add(column, n, max, &other);
    }
    return n;
}

const struct pane_type pane_metrics = {
    .name = "Metrics",
    .size = sizeof(struct metrics_pane),
    .init = metrics_init,
    .draw = metrics_draw,
    .act = metrics_act,
    .close = metrics_close,
    .rows = metrics_rows,
    .page = metrics_page,
    .head = metrics_head,
};
