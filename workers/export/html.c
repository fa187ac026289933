/* html.c - a run as one page: charts, evaluations, what happened, settings, samples, steps
 *
 * One file that asks nothing of a network and holds no script, to attach to a message or a paper; a policy in its head keeps browsers
 * from loading anything, should a sample's text try. Whatever the run holds of other people's text is escaped (xml_text). Long runs are
 * thinned: charts by columns, tables to TABLE_ROWS_MAX rows, which the page says. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/utf8.h"
#include "protocol/record/rollout_view.h"
#include "protocol/settings/knobs.h"
#include "workers/export/chart_svg.h"
#include "workers/export/export.h"
#include "workers/export/run_report.h"

#define TABLE_ROWS_MAX 200
#define EVENTS_MAX 500
#define GROUPS_SHOWN 4           // of the newest; the best and the worst answer of each
#define GROUPS_LOOKED_AT 4096    // items from the end among which they are
#define TEXT_SHOWN 4096          // bytes of a prompt, and of an answer

static const char style[] =
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222;"
    "background:#fff}h1{margin-bottom:.2em}h2{margin-top:2em;border-bottom:1px solid #ccc}table{border-collapse:collapse;"
    "font-variant-numeric:tabular-nums;font-size:13px}th,td{padding:.15em .7em;text-align:right;border-bottom:1px solid #e4e4e4;"
    "vertical-align:top}th{font-weight:600}td.w,th.w{text-align:left}td.w{overflow-wrap:anywhere}caption{text-align:left;color:#666;padding:.3em 0}"
    "dl{display:grid;grid-template-columns:max-content auto;gap:.1em 1.2em}dt{color:#666}dd{margin:0}"
    ".chart{width:100%;height:auto}.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(400px,1fr));gap:1em}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f4f4f4;padding:.6em;margin:.3em 0}.s{overflow-x:auto}"
    "footer{margin-top:3em;color:#666;font-size:13px}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}h2{border-color:#444}th,td{border-color:#333}"
    "caption,dt,footer{color:#999}pre{background:#242424}}@media print{body{max-width:none}details{display:block}}";

struct page {
    struct run_report *report;
    const char *run_dir;
    struct buf *out;
    /* of the table being printed */
    int64_t n_row, skip, stride;
    int column[METRIC_N], n_column;
    int chart;    // number of the next chart, for its id
};

static void text(struct page *p, const char *s)
{
    xml_text(p->out, s, strlen(s));
}

static void cell(struct page *p, const char *s)
{
    buf_str(p->out, "<td class=\"w\">");
    text(p, s);
    buf_str(p->out, "</td>");
}

static void number_cell(struct page *p, double v)
{
    char figure[32];
    buf_fmt(p->out, "<td>%s</td>", figure_text(v, figure));
}

static const char *when_text(double wall_s, char out[32])
{
    time_t t = (time_t)wall_s;
    struct tm tm;
    if (!isfinite(wall_s) || !gmtime_r(&t, &tm) || strftime(out, 32, "%Y-%m-%d %H:%M:%S", &tm) == 0)
        snprintf(out, 32, "–");
    return out;
}

static const char *name_of(const struct page *p)
{
    const char *slash = strrchr(p->run_dir, '/');
    return p->report->config->name[0] ? p->report->config->name : slash && slash[1] ? slash + 1 : p->run_dir;
}

/* ---- the head */
static void fact(struct page *p, const char *name, const char *value)
{
    if (!value[0])
        return;
    buf_fmt(p->out, "<dt>%s</dt><dd>", name);
    text(p, value);
    buf_str(p->out, "</dd>");
}

static void head_print(struct page *p)
{
    const struct run_report *r = p->report;
    char when[32], line[1400], figure[32];
    double best = NAN;
    int64_t at = 0;
    int set = run_report_best(r, &best, &at);
    buf_str(
        p->out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><meta name=\"referrer\" content=\"no-referrer\"><title>");
    text(p, name_of(p));
    buf_fmt(p->out, " – rollcall</title><style>%s%s</style></head><body><main>\n<h1>", style, chart_svg_style());
    text(p, name_of(p));
    buf_str(p->out, "</h1>\n<dl>");
    snprintf(line, sizeof line, "%s%s%s", run_state_name(r->last.state), r->last.reason[0] ? ": " : "", r->last.reason);
    fact(p, "state", line);
    snprintf(line, sizeof line, "%" PRId64, r->last_step);
    fact(p, "steps", line);
    if (set >= 0) {
        snprintf(line, sizeof line, "%s on %s, at step %" PRId64, figure_text(best, figure), r->eval[set].name, at);
        fact(p, "best evaluation", line);
    }
    fact(p, "first step (UTC)", when_text(r->began_s, when));
    fact(p, r->live ? "newest step (UTC)" : "last step (UTC)", when_text(r->ended_s, when));
    fact(p, "between them", duration_format(when, r->ended_s - r->began_s));
    fact(p, "model", r->config->model);
    fact(p, "algorithm", r->config->algo);
    buf_str(p->out, "</dl>\n");
}

/* ---- charts */
static struct chart_svg chart_of(const struct page *p, const char *title, const char *unit)
{
    const struct run_report *r = p->report;
    int64_t first = MAX(r->first, (int64_t)1);
    return (struct chart_svg){ .title = title,
                               .unit = unit,
                               .first = first,
                               .n_step = MAX(r->last_step - first + 1, (int64_t)1),
                               .mark = r->mark,
                               .n_mark = r->n_mark };
}

static void chart_print(struct page *p, const struct chart_svg *c)
{
    char id[16];
    snprintf(id, sizeof id, "c%d", p->chart++);
    chart_svg_print(p->out, c, id);
}

static void line_add(struct chart_svg *c, const char *label, const struct series *s)
{
    if (c->n_line < CHART_SVG_LINES) {
        c->line[c->n_line].label = label;
        c->line[c->n_line++].series = s;
    }
}

static void charts_print(struct page *p)
{
    const struct run_report *r = p->report;
    buf_str(
        p->out,
        "<h2>Charts</h2>\n<p>Dotted lines: an operator changed a setting or left a note, or the run went back to a checkpoint.</p>\n<div class=\"charts\">\n");
    for (int i = 0; i < r->n_eval; i += CHART_SVG_LINES) {
        struct chart_svg c = chart_of(p, "evaluations", "");
        c.dots = true;
        c.n_step += c.first;    // the model is evaluated before its first step, too
        c.first = 0;
        for (int k = i; k < MIN(i + CHART_SVG_LINES, r->n_eval); k++)
            line_add(&c, r->eval[k].name, &r->eval[k].s);
        chart_print(p, &c);
    }
    for (int i = 0; i < METRIC_N; i++)
        if (series_is_known(&r->metric[i])) {
            struct chart_svg c = chart_of(p, metrics[i].label, metrics[i].unit);
            line_add(&c, metrics[i].name, &r->metric[i]);
            chart_print(p, &c);
        }
    for (int i = 0; i < r->n_part; i++) {
        struct chart_svg c = chart_of(p, r->part[i].name, "");
        line_add(&c, r->part[i].name, &r->part[i].s);
        chart_print(p, &c);
    }
    buf_str(p->out, "</div>\n");
}

/* ---- tables */
static void table_begin(struct page *p, const char *caption)
{
    buf_str(p->out, "<div class=\"s\"><table><caption>");
    text(p, caption);
    buf_str(p->out, "</caption><thead><tr>");
}

static void column_head(struct page *p, const char *name, bool words)
{
    buf_str(p->out, words ? "<th scope=\"col\" class=\"w\">" : "<th scope=\"col\">");
    text(p, name);
    buf_str(p->out, "</th>");
}

static void table_end(struct page *p)
{
    buf_str(p->out, "</tbody></table></div>\n");
}

/* Every how many rows one is printed, so that n rows fit. */
static int64_t stride_of(int64_t n)
{
    return MAX(1, (n + TABLE_ROWS_MAX - 1) / TABLE_ROWS_MAX);
}

static bool evaluated_at(const struct run_report *r, int64_t step)
{
    for (int i = 0; i < r->n_eval; i++)
        if (!isnan(series_at(&r->eval[i].s, step)))
            return true;
    return false;
}

static void evals_print(struct page *p)
{
    const struct run_report *r = p->report;
    int64_t n = 0, end = 0, at = 0;
    char caption[128];
    for (int i = 0; i < r->n_eval; i++)
        end = MAX(end, r->eval[i].s.n);
    for (int64_t step = 0; step < end; step++)
        n += evaluated_at(r, step);
    if (n == 0)
        return;
    int64_t stride = stride_of(n);
    snprintf(caption, sizeof caption, stride > 1 ? "Means by set; every %" PRId64 "th of %" PRId64 "." : "Means by set.", stride, n);
    buf_str(p->out, "<h2>Evaluations</h2>\n");
    table_begin(p, caption);
    column_head(p, "step", false);
    for (int i = 0; i < r->n_eval; i++)
        column_head(p, r->eval[i].name, false);
    buf_str(p->out, "</tr></thead><tbody>\n");
    for (int64_t step = 0; step < end; step++) {
        if (!evaluated_at(r, step) || (at++ % stride != 0 && at != n))
            continue;
        buf_fmt(p->out, "<tr><th scope=\"row\">%" PRId64 "</th>", step);
        for (int i = 0; i < r->n_eval; i++)
            number_cell(p, series_at(&r->eval[i].s, step));
        buf_str(p->out, "</tr>\n");
    }
    table_end(p);
}

static bool event_is_shown(const struct journal_event *e)
{
    return strcmp(e->kind, "eval") != 0;    // they have a table
}

static bool event_count(void *arg, const struct journal_event *e)
{
    ((struct page *)arg)->n_row += event_is_shown(e);
    return true;
}

static bool event_print(void *arg, const struct journal_event *e)
{
    struct page *p = arg;
    char when[32];
    if (!event_is_shown(e) || p->skip-- > 0)
        return true;
    buf_fmt(p->out, "<tr><th scope=\"row\">%" PRId64 "</th><td>%s</td>", e->step, when_text(e->wall_s, when));
    cell(p, e->kind);
    cell(p, e->who);
    cell(p, e->text);
    buf_str(p->out, "</tr>\n");
    return true;
}

static bool events_print(struct page *p, struct error *err)
{
    char caption[128];
    p->n_row = 0;
    if (!journal_events_read(p->report->journal, 0, NULL, event_count, p, err))
        return false;
    p->skip = MAX(0, p->n_row - EVENTS_MAX);
    snprintf(caption, sizeof caption, p->skip > 0 ? "The newest %" PRId64 " of %" PRId64 ". Times are UTC." : "Times are UTC.",
             p->n_row - p->skip, p->n_row);
    buf_str(p->out, "<h2>What happened</h2>\n");
    table_begin(p, caption);
    column_head(p, "step", false);
    column_head(p, "time", false);
    column_head(p, "kind", true);
    column_head(p, "who", true);
    column_head(p, "what", true);
    buf_str(p->out, "</tr></thead><tbody>\n");
    bool ok = journal_events_read(p->report->journal, 0, NULL, event_print, p, err);
    table_end(p);
    return ok;
}

/* Do both texts mean one value? A default is written as in the docs (1.0), a value as the run file holds it (1). */
static bool same_value(const char *a, const char *b)
{
    double x, y;
    return strcmp(a, b) == 0 || (parse_f64(a, &x) && parse_f64(b, &y) && x == y);
}

static void settings_print(struct page *p)
{
    const struct run_config *c = p->report->config;
    struct buf value = BUF_INIT;
    buf_str(p->out, "<h2>Settings</h2>\n");
    table_begin(p, "Those that the run file changes from their defaults, as the run began.");
    column_head(p, "setting", true);
    column_head(p, "value", true);
    column_head(p, "default", true);
    buf_str(p->out, "</tr></thead><tbody>\n");
    for (int i = 0; i < n_knobs; i++) {
        const char *now = knob_text(&knobs[i], c, &value);
        if (same_value(now, knobs[i].def))
            continue;
        buf_fmt(p->out, "<tr><th scope=\"row\" class=\"w\">%s</th>", knobs[i].name);
        cell(p, now);
        cell(p, knobs[i].def);
        buf_str(p->out, "</tr>\n");
    }
    table_end(p);
    buf_release(&value);
}

static bool step_print(void *arg, const struct journal_step *row)
{
    struct page *p = arg;
    char when[32];
    if (p->n_row++ % p->stride != 0 && p->n_row != p->report->n_step)
        return true;
    buf_fmt(p->out, "<tr><th scope=\"row\">%" PRId64 "</th><td>%s</td>", row->step, when_text(row->wall_s, when));
    for (int k = 0; k < p->n_column; k++)
        number_cell(p, series_at(&p->report->metric[p->column[k]], row->step));
    buf_str(p->out, "</tr>\n");
    return true;
}

static bool steps_print(struct page *p, struct error *err)
{
    char caption[160];
    p->n_column = 0;
    p->n_row = 0;
    p->stride = stride_of(p->report->n_step);
    for (int i = 0; i < METRIC_N; i++)
        if (series_is_known(&p->report->metric[i]))
            p->column[p->n_column++] = i;
    snprintf(caption, sizeof caption,
             p->stride > 1 ? "Every %" PRId64 "th of %" PRId64 " steps; 'rollcall export csv' writes all. Times are UTC."
                           : "Times are UTC.",
             p->stride, p->report->n_step);
    buf_str(p->out, "<h2>Steps</h2>\n");
    table_begin(p, caption);
    column_head(p, "step", false);
    column_head(p, "time", false);
    for (int k = 0; k < p->n_column; k++)
        column_head(p, metrics[p->column[k]].label, false);
    buf_str(p->out, "</tr></thead><tbody>\n");
    bool ok = journal_steps_read(p->report->journal, 0, step_print, p, err);
    table_end(p);
    return ok;
}

/* ---- samples */
struct newest {
    int n;    // seen; the last GROUPS_SHOWN of them are kept
    struct journal_item item[GROUPS_SHOWN];
};

static bool item_take(void *arg, const struct journal_item *i)
{
    struct newest *s = arg;
    if (i->file_offset >= 0)
        s->item[s->n++ % GROUPS_SHOWN] = *i;
    return true;
}

static void text_print(struct page *p, const char *s)
{
    size_t len = strlen(s), keep = utf8_cut(s, len, TEXT_SHOWN);
    buf_str(p->out, "<pre>\n");    // a newline that a browser leaves out, so that it leaves out none of the text's
    xml_text(p->out, s, keep);
    buf_str(p->out, keep < len ? "…</pre>\n" : "</pre>\n");
}

static void answer_print(struct page *p, const char *which, const struct sample_view *s)
{
    char reward[32];
    buf_fmt(p->out, "<h4>%s: reward %s, %" PRId64 " tokens%s", which, figure_text(s->reward, reward), s->n_tok, s->cut ? ", cut" : "");
    if (s->reason[0]) {
        buf_str(p->out, ", ");
        text(p, s->reason);
    }
    buf_str(p->out, "</h4>\n");
    text_print(p, s->text ? s->text : "");
}

static void group_print(struct page *p, const struct rollout_view *v)
{
    int best = -1, worst = -1;
    for (int i = 0; i < v->n_sample; i++) {
        if (isnan(v->sample[i].reward))
            continue;
        best = best < 0 || v->sample[i].reward > v->sample[best].reward ? i : best;
        worst = worst < 0 || v->sample[i].reward < v->sample[worst].reward ? i : worst;
    }
    buf_fmt(p->out, "<details open><summary>item %" PRId64 ", sampled with the weights of step %" PRId64, v->item, v->version);
    if (v->gold[0]) {
        buf_str(p->out, ", right answer: ");
        text(p, v->gold);
    }
    buf_str(p->out, "</summary>\n");
    text_print(p, v->prompt ? v->prompt : "");
    if (best >= 0)
        answer_print(p, "best", &v->sample[best]);
    if (worst >= 0 && worst != best)
        answer_print(p, "worst", &v->sample[worst]);
    buf_str(p->out, "</details>\n");
}

static bool samples_print(struct page *p, struct error *err)
{
    struct newest s = { 0 };
    struct rollout_view v = { 0 };
    struct error why;
    int form = knob_choice("advantages", p->report->config->advantages);
    char path[PATH_MAX];
    if (!run_config_groups_path(p->report->config, p->run_dir, path, sizeof path))
        return error_set(err, ERR_USAGE, "the path of the run '%s' is too long", p->run_dir);
    int64_t newest = journal_last_item(p->report->journal);
    if (!journal_items_read(p->report->journal, MAX(0, newest - GROUPS_LOOKED_AT), item_take, &s, err))
        return false;
    if (s.n == 0)
        return true;
    buf_str(p->out, "<h2>Samples</h2>\n<p>The best and the worst answer of the newest groups.</p>\n");
    for (int i = MAX(0, s.n - GROUPS_SHOWN); i < s.n; i++) {
        const struct journal_item *item = &s.item[i % GROUPS_SHOWN];
        if (rollout_view_load(&v, path, item->file_offset, item->file_bytes, form >= 0 ? (enum advantage_form)form : ADV_DEVIATION, &why)) {
            group_print(p, &v);
            rollout_view_release(&v);
        } else {
            buf_str(p->out, "<p>A group cannot be shown: ");
            text(p, why.text);
            buf_str(p->out, "</p>\n");
        }
    }
    return true;
}

static bool page_print(struct page *p, struct error *err)
{
    char when[32];
    head_print(p);
    charts_print(p);
    evals_print(p);
    settings_print(p);
    if (!events_print(p, err) || !samples_print(p, err) || !steps_print(p, err))
        return false;
    buf_fmt(p->out, "</main><footer>Written by <code>rollcall export html</code> at %s UTC.</footer></body></html>\n",
            when_text(clock_wall_s(), when));
    return !p->out->failed || error_set(err, ERR_NO_MEMORY, "the page is longer than memory allows");
}

bool export_html(const struct export_request *r, struct error *err)
{
    struct buf out = BUF_INIT;
    struct run_report *report = run_report_open(r->run_dir, err);
    if (!report)
        return false;
    struct page p = { .report = report, .run_dir = r->run_dir, .out = &out };
    bool ok = page_print(&p, err) && export_write(r, buf_text(&out), out.len, err);
    run_report_free(report);
    buf_release(&out);
    return ok;
}
