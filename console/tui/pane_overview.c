/* pane_overview.c - the run on one screen: charts, processes, newest rollout, alarms; one chart in full */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/alarm.h"
#include "console/tui/app.h"

/* The charts in order, each with its substitute while it has no data (without a reference model there is no KL: then the difference
 * between sampler and trainer, which should be 0). */
static const struct chart_row {
    enum metric_id metric, instead;
} chart_rows[LAYOUT_CHARTS] = {
    { M_REWARD, M_ANS_ACC },
    { M_RESPONSE_LENGTH, M_LENGTH_P50 },
    { M_ENTROPY, M_LOSS },
    { M_KL, M_SAMPLER_TRAINER_DIFF },
    { M_ROLLOUT_TOK_PER_S, M_TRAIN_TOK_PER_S },
    { M_GRAD_NORM, M_LOSS },
    { M_ANS_ACC, M_FORMAT_ACC },
    { M_LOSS, M_ADVANTAGES },
    { M_STEP_S, M_GENERATE_S },
};
#define MARKS_MAX 32
#define CARD_STEPS 20    // before and after a change

struct overview {
    struct pane pane;
    bool open;              // one chart in full
    int chart;              // which chart; when open: row of the metric list
    int64_t chart_steps;    // steps shown; 0: the whole run
    int64_t cursor;         // open: step under the time cursor; -1: none
};

static bool has_data(const struct model *m, int metric)
{
    return m->metric[metric].n > 0 && !isnan(m->metric[metric].last);
}

static bool is_change(const struct event_view *e)
{
    return strcmp(e->kind, "return") == 0 || e->changed;
}

/* Steps at which knobs were changed or the run went back to a checkpoint. */
static int marks_find(const struct model *m, int64_t *mark)
{
    int n = 0;
    const struct event_view *e;
    for (int64_t i = 0; n < MARKS_MAX && (e = model_event_at(m, i)) != NULL; i++)
        if (e->step > 0 && is_change(e))
            mark[n++] = e->step;
    return n;
}

static struct chart chart_of(const struct overview *o, const struct app *a, const struct series *s, const int64_t *mark, int n_mark)
{
    const struct model *m = a->model;
    struct chart c = { .series = s, .mark = mark, .n_mark = n_mark, .cursor = -1, .glyphs = a->glyphs };
    int64_t n = MAX(m->n_step, 1);
    if (o->chart_steps == 0) {
        c.from = 0;
        if (m->n_step > 0 && isnan(series_at(s, 0)) && series_query(s, 0, 1).n == 0)
            c.from = s->n > 1 ? 1 : 0;    // steps are counted from 1: no empty column for step 0
        c.to = MAX(n, c.from + 1);
    } else {
        c.to = o->open && o->cursor >= 0 ? MIN(MAX(o->cursor + o->chart_steps / 2, o->chart_steps), n) : n;
        c.to = MAX(c.to, o->chart_steps);
        c.from = c.to - o->chart_steps;
    }
    return c;
}

/* The bounds within which no alarm of this metric holds, as far as they are fixed. */
static void band_find(const struct model *m, int metric, struct chart *c)
{
    c->low = c->high = NAN;
    for (int i = 0; i < m->n_alarm; i++) {
        const struct alarm_view *v = &m->alarm[i];
        if (v->state == ALARM_MUTED || strcmp(v->metric, metrics[metric].name) != 0)
            continue;
        if (v->when == ALARM_BELOW)
            c->low = v->limit;
        if (v->when == ALARM_ABOVE)
            c->high = v->limit;
    }
}

/* How the mean of the last tenth of the run compares with that of the tenth before. */
static const char *trend(const struct series *s)
{
    int64_t n = s->n, w = MAX(n / 10, 1);
    struct series_span now = series_query(s, n - w, n), before = series_query(s, n - 2 * w, n - w), all = series_query(s, 0, n);
    double d = now.mean - before.mean, scale = all.max - all.min;
    if (n < 10 || isnan(d) || !(scale > 0) || fabs(d) < 0.02 * scale)
        return "";
    return d > 0 ? " \u25b2" : " \u25bc";
}

static void chart_box_draw(const struct overview *o, const struct app *a, struct cells *c, struct rect r, int metric, bool selected,
                           const int64_t *mark, int n_mark)
{
    const struct series *s = &a->model->metric[metric];
    char value[16];
    struct rect in = cells_box(c, r, metrics[metric].label, selected ? ROLE_FOCUS : ROLE_BORDER, ROLE_TITLE);
    int at = r.x + 4 + (int)strlen(metrics[metric].label), room = r.x + r.w - 2 - at;
    if (!isnan(s->last) && room > 2)
        at += cells_fmt(c, at, r.y, room, ROLE_TEXT, "%s%s%s%s ", value_format(value, s->last), metrics[metric].unit[0] ? " " : "",
                        metrics[metric].unit, trend(s));
    if (selected && in.h > 0) {
        c->cursor_x = r.x + 3;
        c->cursor_y = r.y;
    }
    struct chart chart = chart_of(o, a, s, mark, n_mark);
    band_find(a->model, metric, &chart);
    chart_draw(c, in, &chart);
}

/* The sign before a process's name: good, late and bad are distinguishable without colour. */
static uint32_t verdict_sign(enum proc_verdict v)
{
    static const uint32_t sign[] = { [PROC_OK] = 0x25cf, [PROC_SLOW] = 0x25d0, [PROC_STUCK] = 0x2717, [PROC_SILENT] = 0x25cb };
    return sign[v];
}

static void procs_draw(const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    const struct model *m = a->model;
    char dur[16], title[64];
    snprintf(title, sizeof(title), "processes %d", m->n_proc);
    struct rect in = cells_box(c, r, title, ROLE_BORDER, ROLE_TITLE);
    for (int i = 0; i < m->n_proc && i < in.h; i++) {
        const struct proc *p = &m->proc[i];
        enum proc_verdict v = model_verdict(m, p, now_ns);
        int y = in.y + i;
        bool more = i == in.h - 1 && m->n_proc > in.h;
        if (more) {
            cells_fmt(c, in.x + 1, y, in.w - 2, ROLE_DIM, "%d more: 2", m->n_proc - i);
            break;
        }
        double for_s = p->phase_s + (double)(now_ns - p->heard_ns) * 1e-9;
        cells_put(c, in.x + 1, y, verdict_sign(v), verdict_role(v));
        int name_w = MIN(MAX(in.w / 3, 10), 16);
        cells_text(c, in.x + 3, y, name_w, p->name, v == PROC_OK ? ROLE_TEXT : verdict_role(v));
        int x = in.x + 4 + name_w;
        x += cells_fmt(c, x, y, MIN(12, in.x + in.w - x), (enum role)(ROLE_SERIES1 + phase_find(p->phase)->series), "%-11s", p->phase) + 1;
        x += cells_fmt(c, x, y, in.x + in.w - x, ROLE_DIM, "%6s", duration_format(dur, for_s)) + 1;
        if (v != PROC_OK)
            cells_text(c, x, y, in.x + in.w - x, proc_verdict_name(v), verdict_role(v));
        else if (p->waits_for[0])
            cells_fmt(c, x, y, in.x + in.w - x, ROLE_DIM, "waits for %s", p->waits_for);
    }
    if (m->n_proc == 0 && in.h > 0)
        cells_text(c, in.x + 1, in.y, in.w - 2, m->ended ? "all have ended" : "no process is known yet", ROLE_DIM);
}

static enum role reward_role(double reward)
{
    return isnan(reward) ? ROLE_STALE : reward > 0.5 ? ROLE_OK : reward > 0 ? ROLE_WARN : ROLE_CRIT;
}

/* The question, without the chat template's marks (<|im_start|>user ...): the rollouts pane shows all of it. */
static void question_of(const char *prompt, char *out, size_t size)
{
    size_t n = 0;
    while (*prompt && n + 1 < size) {
        const char *end = prompt[0] == '<' && prompt[1] == '|' ? strstr(prompt, "|>") : NULL;
        if (end) {
            bool opens = strncmp(prompt, "<|im_start|>", 12) == 0;
            prompt = end + 2;
            if (opens)    // and the speaker's name after it
                prompt += strcspn(prompt, "\n");
            continue;
        }
        bool blank = *prompt == '\n' || *prompt == ' ';
        if (!blank || (n > 0 && out[n - 1] != ' '))
            out[n++] = blank ? ' ' : *prompt;
        prompt++;
    }
    out[n] = 0;
}

/* "sampled 19.2 -> 84.0 %   greedy ...": what the run is for, in one line. */
static void evals_draw(const struct app *a, struct cells *c, struct rect r)
{
    const struct model *m = a->model;
    int x = r.x;
    for (int i = 0; i < m->n_eval && x < r.x + r.w; i++) {
        const struct eval_view *e = &m->eval[i];
        x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_TITLE, "%s ", e->set);
        if (e->step > e->first_step)
            x += cells_fmt(c, x, r.y, r.x + r.w - x, ROLE_DIM, "%.1f \u2192 ", 100 * e->first_mean);
        x += cells_fmt(c, x, r.y, r.x + r.w - x, e->mean > e->first_mean ? ROLE_OK : ROLE_TEXT, "%.1f %%", 100 * e->mean) + 2;
    }
}

static void newest_rollout_draw(const struct app *a, struct cells *c, struct rect in)
{
    const struct rollout_view *g = model_rollout_at(a->model, 0);
    if (!g || in.h < 1)
        return;
    int y = in.y, shown = 0;
    char value[16];
    if (in.h >= 3) {
        char prompt[256];
        question_of(g->prompt, prompt, sizeof(prompt));
        cells_text(c, in.x + 1, y++, in.w - 2, prompt, ROLE_DIM);
    }
    for (int i = 0; i < g->n_sample && y < in.y + in.h; i++, shown++, y++) {
        const struct sample_view *s = &g->sample[i];
        cells_fmt(c, in.x + 1, y, 6, reward_role(s->reward), "%5s", isnan(s->reward) ? "n/a" : value_format(value, s->reward));
        cells_text(c, in.x + 7, y, in.w - 8, s->text, ROLE_TEXT);
    }
}

static void side_draw(const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    struct alarm alarm[8];
    int all = alarms_check(a->model, now_ns, alarm, ARRAY_SIZE(alarm)), n = MIN(all, (int)ARRAY_SIZE(alarm));
    struct rect in = cells_box(c, r, n > 0 ? "alarms" : "newest rollout", n > 0 && alarm[0].crit ? ROLE_CRIT : ROLE_BORDER, ROLE_TITLE);
    int y = in.y;
    if (a->model->n_eval > 0 && y < in.y + in.h)
        evals_draw(a, c, (struct rect){ in.x + 1, y++, in.w - 2, 1 });
    int room = in.y + in.h - y, shown = all > room ? MAX(room - 1, 0) : n;
    for (int i = 0; i < shown && y < in.y + in.h; i++) {
        cells_put(c, in.x + 1, y, 0x26a0, alarm[i].crit ? ROLE_CRIT : ROLE_WARN);
        cells_text(c, in.x + 3, y++, in.w - 4, alarm[i].text, alarm[i].crit ? ROLE_CRIT : ROLE_WARN);
        if (y < in.y + in.h && room >= 2 * all)
            cells_fmt(c, in.x + 3, y++, in.w - 4, ROLE_DIM, "\u2192 %s", alarm[i].remedy);
    }
    if (shown < all && y < in.y + in.h)
        cells_fmt(c, in.x + 3, y++, in.w - 4, ROLE_DIM, "+%d more: 8 lists them", all - shown);
    if (y < in.y + in.h)
        newest_rollout_draw(a, c, (struct rect){ in.x, y, in.w, in.y + in.h - y });
}

/* ---- one chart in full, with the list of all metrics ---- */

/* Does this metric pass the filter, by its name or its label? */
static bool metric_shown(const struct overview *o, int id)
{
    char row[160];
    snprintf(row, sizeof(row), "%s %s", metrics[id].name, metrics[id].label);
    return filter_matches(o->pane.filter, row);
}

/* The i-th metric that has data and passes the filter; -1: there are fewer. */
static int metric_row(const struct overview *o, const struct model *m, int i)
{
    for (int id = 0; id < METRIC_N; id++)
        if (has_data(m, id) && metric_shown(o, id) && i-- == 0)
            return id;
    return -1;
}

static int metric_rows(const struct overview *o, const struct model *m)
{
    int n = 0;
    while (metric_row(o, m, n) >= 0)
        n++;
    return n;
}

/* The newest change at this step: an event of a knob or of a return to a checkpoint; NULL: there is none. */
static const struct event_view *change_at(const struct model *m, int64_t step)
{
    const struct event_view *e;
    for (int64_t i = 0; (e = model_event_at(m, i)) != NULL; i++)
        if (e->step == step && is_change(e))
            return e;
    return NULL;
}

/* The first alarm that began within CARD_STEPS after a change at step; NULL: none did. */
static const struct event_view *alarm_after(const struct model *m, int64_t step)
{
    const struct event_view *e, *first = NULL;
    for (int64_t i = 0; (e = model_event_at(m, i)) != NULL; i++)
        if (strcmp(e->kind, "alarm") == 0 && e->step > step && e->step <= step + CARD_STEPS && strstr(e->detail, "\"firing\""))
            first = e;    // they come newest first
    return first;
}

/* Who changed what at the cursor, and the metric's mean over the steps before and after it. */
static void change_card_draw(const struct overview *o, const struct app *a, struct cells *c, struct rect in, int id)
{
    const struct model *m = a->model;
    const struct event_view *e = o->cursor >= 0 ? change_at(m, o->cursor) : NULL;
    char here[16], before[16], after[16];
    if (!e)
        return;
    struct series_span was = series_query(&m->metric[id], MAX(o->cursor - CARD_STEPS, 0), o->cursor);
    struct series_span is = series_query(&m->metric[id], o->cursor + 1, o->cursor + 1 + CARD_STEPS);
    cells_fmt(c, in.x, in.y + 2, in.w, ROLE_CHANGED, "%s%s%s", e->text, e->who[0] ? " \u00b7 " : "", e->who);
    const struct event_view *alarm = alarm_after(m, o->cursor);
    if (alarm)
        cells_fmt(c, in.x, in.y + 3, in.w, ROLE_WARN, "\u26a0 %" PRId64 " steps later: %s", alarm->step - o->cursor, alarm->text);
    cells_fill(c, (struct rect){ in.x, in.y + 1, in.w, 1 }, ' ', ROLE_TEXT);
    cells_fmt(c, in.x, in.y + 1, in.w, ROLE_FOCUS, "step %" PRId64 ": %s   %d steps before: %s, after: %s", o->cursor,
              value_format(here, series_at(&m->metric[id], o->cursor)), CARD_STEPS, value_format(before, was.mean),
              value_format(after, is.n > 0 ? is.mean : NAN));
}

/* The step of the next change after the cursor, or of the one before it; -1: there is none. */
static int64_t change_next(const struct overview *o, const struct model *m, bool forward)
{
    int64_t mark[MARKS_MAX], best = -1, from = o->cursor >= 0 ? o->cursor : forward ? -1 : m->n_step;
    int n = marks_find(m, mark);
    for (int i = 0; i < n; i++)
        if (forward ? mark[i] > from && (best < 0 || mark[i] < best) : mark[i] < from && mark[i] > best)
            best = mark[i];
    return best;
}

static void full_draw(const struct overview *o, const struct app *a, struct cells *c, struct rect r)
{
    const struct model *m = a->model;
    int64_t mark[MARKS_MAX];
    int n_mark = marks_find(m, mark), list_w = r.w >= 70 ? 28 : 0, rows = metric_rows(o, m);
    int at = MIN(o->chart, rows - 1), id = metric_row(o, m, MAX(at, 0));
    char title[160], value[16];
    if (id < 0) {
        cells_text(c, r.x + 2, r.y + 1, r.w - 4, o->pane.filter[0] ? "no metric contains the filter's text" : "no data yet", ROLE_DIM);
        return;
    }
    struct chart chart = chart_of(o, a, &m->metric[id], mark, n_mark);
    band_find(m, id, &chart);
    chart.cursor = o->cursor;
    snprintf(title, sizeof(title), "%s", metrics[id].name);
    struct rect in = cells_box(c, (struct rect){ r.x, r.y, r.w - list_w, r.h }, title, ROLE_FOCUS, ROLE_TITLE);
    cells_text(c, in.x, in.y, in.w, metrics[id].help, ROLE_DIM);
    struct series_span span = series_query(&m->metric[id], chart.from, chart.to);
    char mean[16], min[16], max[16];
    if (in.h >= 8) {
        if (o->cursor >= 0)
            cells_fmt(c, in.x, in.y + 1, in.w, ROLE_FOCUS, "step %" PRId64 ": %s %s   (Left/Right move, 0 closes)", o->cursor,
                      value_format(value, series_at(&m->metric[id], o->cursor)), metrics[id].unit);
        else
            cells_fmt(c, in.x, in.y + 1, in.w, ROLE_TEXT, "now %s %s   mean %s   min %s   max %s", value_format(value, m->metric[id].last),
                      metrics[id].unit, value_format(mean, span.mean), value_format(min, span.min), value_format(max, span.max));
    }
    if (in.h >= 8)
        change_card_draw(o, a, c, in, id);
    int head = in.h >= 8 ? 4 : 1;
    chart_draw(c, (struct rect){ in.x, in.y + head, in.w, in.h - head }, &chart);
    if (list_w == 0)
        return;
    struct rect list = cells_box(c, (struct rect){ r.x + r.w - list_w, r.y, list_w, r.h }, o->cursor >= 0 ? "at the cursor" : "now",
                                 ROLE_BORDER, ROLE_TITLE);
    int64_t top = list_top(0, at, rows, list.h);
    for (int i = 0; i < list.h; i++) {
        int row = metric_row(o, m, (int)top + i);
        if (row < 0)
            break;
        double v = o->cursor >= 0 ? series_at(&m->metric[row], o->cursor) : m->metric[row].last;
        cells_text(c, list.x + 1, list.y + i, list.w - 11, metrics[row].label, ROLE_TEXT);
        cells_text_right(c, list.x + list.w - 9, list.y + i, 8, value_format(value, v), ROLE_TEXT);
        if (top + i == at) {
            cells_select(c, (struct rect){ list.x, list.y + i, list.w, 1 });
            c->cursor_x = list.x + 1;
            c->cursor_y = list.y + i;
        }
    }
}

/* The metrics of the small charts: the usual ones, or with a filter the first that pass it. */
static int charts_known(const struct overview *o, const struct model *m, int *metric)
{
    if (o->pane.filter[0]) {
        int n = 0;
        while (n < LAYOUT_CHARTS && (metric[n] = metric_row(o, m, n)) >= 0)
            n++;
        return n;
    }
    for (int i = 0; i < LAYOUT_CHARTS; i++)
        metric[i] = (int)(has_data(m, chart_rows[i].metric) || !has_data(m, chart_rows[i].instead) ? chart_rows[i].metric
                                                                                                   : chart_rows[i].instead);
    return LAYOUT_CHARTS;
}

static void overview_draw(const struct pane *p, const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    const struct overview *o = (const struct overview *)p;
    if (o->open) {
        full_draw(o, a, c, r);
        return;
    }
    const struct model *m = a->model;
    struct overview_layout l = layout_overview(r, m->n_proc);
    int64_t mark[MARKS_MAX];
    int n_mark = marks_find(m, mark), metric[LAYOUT_CHARTS], n = charts_known(o, m, metric);
    if (n == 0 && l.n_chart > 0)
        cells_text(c, l.chart[0].x + 2, l.chart[0].y + 1, l.chart[0].w - 4, "no metric contains the filter's text", ROLE_DIM);
    for (int i = 0; i < l.n_chart && i < n; i++)
        chart_box_draw(o, a, c, l.chart[i], metric[i], o->chart == i, mark, n_mark);
    if (l.procs.h > 2)
        procs_draw(a, c, l.procs, now_ns);
    if (l.side.h > 2 && l.side.w > 12)
        side_draw(a, c, l.side, now_ns);
}

static void zoom(struct overview *o, const struct model *m, bool in)
{
    int64_t n = MAX(m->n_step, 8), now = o->chart_steps ? o->chart_steps : n;
    int64_t next = in ? now * 2 / 3 : now * 3 / 2;
    o->chart_steps = next >= n ? 0 : MAX(next, 8);
}

static bool overview_act(struct pane *p, struct app *a, enum request req, int64_t now_ns)
{
    struct overview *o = (struct overview *)p;
    const struct model *m = a->model;
    struct overview_layout l = layout_overview(app_body(a), m->n_proc);
    int metric[LAYOUT_CHARTS], n = MIN(charts_known(o, m, metric), l.n_chart), across = 1;
    while (across < l.n_chart && l.chart[across].y == l.chart[0].y)
        across++;
    int rows = metric_rows(o, m);
    if (!o->open)
        o->chart = MAX(MIN(o->chart, n - 1), 0);
    switch (req) {
    case REQ_ZOOM_IN: zoom(o, m, true); return true;
    case REQ_ZOOM_OUT: zoom(o, m, false); return true;
    case REQ_ZOOM_RESET:
        o->chart_steps = 0;
        o->cursor = -1;
        return true;
    case REQ_ENTER:
        if (!o->open && o->chart < n)
            for (int i = 0; i < rows; i++)
                if (metric_row(o, m, i) == metric[o->chart]) {
                    o->chart = i;
                    o->open = true;
                    return true;
                }
        if (o->open)
            o->chart = 0;
        o->open = false;
        return true;
    case REQ_LEFT:
    case REQ_RIGHT:
        if (o->open) {
            int64_t from = o->cursor < 0 ? m->n_step : o->cursor, by = MAX((o->chart_steps ? o->chart_steps : m->n_step) / 60, 1);
            o->cursor = MAX(MIN(from + (req == REQ_LEFT ? -by : by), m->n_step - 1), 0);
            return true;
        }
        o->chart = MAX(MIN(o->chart + (req == REQ_LEFT ? -1 : 1), n - 1), 0);
        return true;
    case REQ_MATCH_NEXT:
    case REQ_MATCH_PREV: {
        int64_t step = o->open ? change_next(o, m, req == REQ_MATCH_NEXT) : -1;
        if (step >= 0)
            o->cursor = step;
        else
            app_flash(a, ROLE_DIM, now_ns, o->open ? "no change of a knob lies further on" : "open a chart with Enter first");
        return true;
    }
    case REQ_UP:
    case REQ_DOWN:
        o->chart = o->open ? MAX(MIN(o->chart + (req == REQ_UP ? -1 : 1), rows - 1), 0)
                           : o->chart
                                 + (req == REQ_UP           ? (o->chart >= across ? -across : 0)
                                    : o->chart + across < n ? across
                                                            : 0);
        return true;
    default: return false;
    }
}

static bool overview_close(struct pane *p)
{
    struct overview *o = (struct overview *)p;
    bool was_open = o->open;
    o->open = false;
    return was_open;
}

static void overview_init(struct pane *p)
{
    ((struct overview *)p)->cursor = -1;
}

const struct pane_type pane_overview = {
    .name = "Overview",
    .size = sizeof(struct overview),
    .init = overview_init,
    .draw = overview_draw,
    .act = overview_act,
    .close = overview_close,
};
