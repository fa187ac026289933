/* pane_overview.c - the run on one screen: charts, processes, newest rollout, alarms */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/alarm.h"
#include "console/tui/app.h"
#include "console/tui/chart_view.h"

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

struct overview {
    struct pane pane;
    int chart;    // the chosen one
    struct chart_view view;
};

static bool has_data(const struct run_view *m, int metric)
{
    return m->metric[metric].n > 0 && !isnan(m->metric[metric].last);
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
    struct chart chart = chart_view_of(&o->view, s, compare_steps(&a->compare, a->model->n_step), a->glyphs);
    struct chart_line other;
    chart.line = &other;
    chart.n_line = compare_line(&a->compare, metrics[metric].name, &other);
    chart.mark = mark;
    chart.n_mark = n_mark;
    band_find(a->model, metrics[metric].name, &chart);
    chart_draw(c, in, &chart);
}

/* The sign before a process's name: good, late and bad are distinguishable without colour. */
static uint32_t verdict_sign(enum proc_verdict v)
{
    static const uint32_t sign[] = { [PROC_OK] = 0x25cf, [PROC_SLOW] = 0x25d0, [PROC_STUCK] = 0x2717, [PROC_SILENT] = 0x25cb };
    return sign[v];
}

#define PROCS_SHOWN 64

/* Which processes stand in the most lines there are: all, in their order, or those in trouble first, the worst of them at the top. */
static int procs_choose(const struct run_view *m, int64_t now_ns, int most, int shown[PROCS_SHOWN])
{
    static const enum proc_verdict worst_first[] = { PROC_STUCK, PROC_SILENT, PROC_SLOW, PROC_OK };
    int n = 0;
    bool fit = m->n_proc <= most;
    for (size_t k = fit ? ARRAY_SIZE(worst_first) - 1 : 0; k < ARRAY_SIZE(worst_first); k++)
        for (int i = 0; i < m->n_proc && n < most; i++)
            if (fit || view_verdict(m, &m->proc[i], now_ns) == worst_first[k])
                shown[n++] = i;
    return n;
}

static void procs_draw(const struct app *a, struct cells *c, struct rect r, int64_t now_ns)
{
    const struct run_view *m = a->model;
    char dur[16], title[64];
    snprintf(title, sizeof(title), "processes %d", m->n_proc);
    struct rect in = cells_box(c, r, title, ROLE_BORDER, ROLE_TITLE);
    int shown[PROCS_SHOWN], n_shown = procs_choose(m, now_ns, MIN(in.h, PROCS_SHOWN), shown);
    for (int i = 0; i < n_shown; i++) {
        const struct proc *p = &m->proc[shown[i]];
        enum proc_verdict v = view_verdict(m, p, now_ns);
        int y = in.y + i;
        bool more = i == n_shown - 1 && m->n_proc > n_shown;
        if (more) {
            cells_fmt(c, in.x + 1, y, in.w - 2, ROLE_DIM, "%d more: 2 lists them", m->n_proc - i);
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
            cells_fmt(c, x, y, in.x + in.w - x, ROLE_DIM, "%s%s", proc_waits_join(p) + 2, p->waits_for);
    }
    if (m->n_proc == 0 && in.h > 0)
        cells_text(c, in.x + 1, in.y, in.w - 2, m->ended ? "all have ended" : "no process is known yet", ROLE_DIM);
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
    const struct run_view *m = a->model;
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
    const struct rollout_view *g = view_rollout_at(a->model, 0);
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

/* Does this metric pass the filter, by its name or its label? */
static bool metric_shown(const struct overview *o, int id)
{
    char row[160];
    snprintf(row, sizeof(row), "%s %s", metrics[id].name, metrics[id].label);
    return filter_matches(o->pane.filter, row);
}

/* The i-th metric that has data and passes the filter; -1: there are fewer. */
static int metric_row(const struct overview *o, const struct run_view *m, int i)
{
    for (int id = 0; id < METRIC_N; id++)
        if (has_data(m, id) && metric_shown(o, id) && i-- == 0)
            return id;
    return -1;
}

/* The metrics of the small charts: the usual ones, or with a filter the first that pass it. */
static int charts_known(const struct overview *o, const struct run_view *m, int *metric)
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
    const struct run_view *m = a->model;
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

static bool overview_act(struct pane *p, struct app *a, enum request req, UNUSED int64_t now_ns)
{
    struct overview *o = (struct overview *)p;
    const struct run_view *m = a->model;
    struct overview_layout l = layout_overview(app_body(a), m->n_proc);
    int metric[LAYOUT_CHARTS], n = MIN(charts_known(o, m, metric), l.n_chart), across = 1;
    while (across < l.n_chart && l.chart[across].y == l.chart[0].y)
        across++;
    o->chart = MAX(MIN(o->chart, n - 1), 0);
    switch (req) {
    case REQ_ZOOM_IN:
    case REQ_ZOOM_OUT:
    case REQ_ZOOM_RESET: return chart_view_act(&o->view, req, compare_steps(&a->compare, m->n_step));
    case REQ_ENTER:
        if (o->chart < n)
            metrics_open(a, (enum metric_id)metric[o->chart]);
        return true;
    case REQ_LEFT:
    case REQ_RIGHT: o->chart = MAX(MIN(o->chart + (req == REQ_LEFT ? -1 : 1), n - 1), 0); return true;
    case REQ_UP: o->chart -= o->chart >= across ? across : 0; return true;
    case REQ_DOWN: o->chart += o->chart + across < n ? across : 0; return true;
    default: return false;
    }
}

static void overview_init(struct pane *p)
{
    ((struct overview *)p)->view = CHART_VIEW_INIT;
}

const struct pane_type pane_overview = {
    .name = "Overview",
    .size = sizeof(struct overview),
    .init = overview_init,
    .draw = overview_draw,
    .act = overview_act,
};
