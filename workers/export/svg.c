/* svg.c - charts of a run's metrics as one SVG file: one below the other, a metric or the evaluations each */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "workers/export/chart_svg.h"
#include "workers/export/export.h"
#include "workers/export/run_report.h"

#define CHARTS_MAX 64

/* The series of a name: a metric that has a chart, a part of the reward, or a set's evaluations; NULL: the run has none. */
static const struct series *find(const struct run_report *r, const char *name, bool *is_eval)
{
    int id = metric_find(name);
    *is_eval = strncmp(name, "eval/", 5) == 0;
    if (id >= 0)
        return series_is_known(&r->metric[id]) ? &r->metric[id] : NULL;
    for (int i = 0; *is_eval && i < r->n_eval; i++)
        if (strcmp(r->eval[i].name, name + 5) == 0)
            return &r->eval[i].s;
    for (int i = 0; i < r->n_part; i++)
        if (strcmp(r->part[i].name, name) == 0)
            return &r->part[i].s;
    return NULL;
}

static bool chart_add(struct buf *out, const struct run_report *r, const char *name, int at, struct error *err)
{
    bool is_eval;
    char id[16];
    const struct series *s = find(r, name, &is_eval);
    int metric = metric_find(name);
    if (!s)
        return error_set(err, ERR_USAGE,
                         "--series: the run has no values of '%.80s' that have a chart; 'rollcall export html' shows those that do", name);
    int64_t first = is_eval ? 0 : MAX(r->first, (int64_t)1);
    struct chart_svg c = { .title = name,
                           .unit = metric >= 0 ? metrics[metric].unit : "",
                           .dots = is_eval,
                           .first = first,
                           .n_step = MAX(r->last_step - first + 1, (int64_t)1),
                           .mark = r->mark,
                           .n_mark = r->n_mark,
                           .y = at * CHART_SVG_HEIGHT };
    c.line[0].label = name;
    c.line[0].series = s;
    c.n_line = 1;
    snprintf(id, sizeof id, "c%d", at);
    chart_svg_print(out, &c, id);
    return true;
}

static bool charts_print(struct buf *out, const struct run_report *r, const char *names, struct error *err)
{
    struct buf body = BUF_INIT;
    char name[REPORT_NAME];
    int n = 0;
    bool ok = true;
    for (const char *at = names + strspn(names, ", "); ok && *at; at += strspn(at, ", ")) {
        size_t len = strcspn(at, ", ");
        snprintf(name, sizeof name, "%.*s", (int)MIN(len, sizeof name - 1), at);
        ok = n < CHARTS_MAX || error_set(err, ERR_USAGE, "--series: more than %d charts do not fit into one file", CHARTS_MAX);
        ok = ok && chart_add(&body, r, name, n++, err);
        at += len;
    }
    ok = ok && (n > 0 || error_set(err, ERR_USAGE, "--series names no metric"));
    buf_fmt(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\"><style>%s</style>\n", CHART_SVG_WIDTH,
            n * CHART_SVG_HEIGHT, chart_svg_style());
    buf_add(out, body.data, body.len);
    buf_str(out, "</svg>\n");
    ok = ok && ((!body.failed && !out->failed) || error_set(err, ERR_NO_MEMORY, "no memory for the charts"));
    buf_release(&body);
    return ok;
}

/* What is drawn when nothing is named: evaluations, and of the usual metrics those that the run has. */
static void usual_names(struct buf *names, const struct run_report *r)
{
    static const enum metric_id usual[] = { M_REWARD, M_ENTROPY, M_RESPONSE_LENGTH };
    for (int i = 0; i < r->n_eval; i++)
        buf_fmt(names, "eval/%s,", r->eval[i].name);
    for (size_t i = 0; i < ARRAY_SIZE(usual); i++)
        if (series_is_known(&r->metric[usual[i]]))
            buf_fmt(names, "%s,", metrics[usual[i]].name);
}

bool export_svg(const struct export_request *r, struct error *err)
{
    struct buf out = BUF_INIT, names = BUF_INIT;
    struct run_report *report = run_report_open(r->run_dir, err);
    if (!report)
        return false;
    if (r->series)
        buf_str(&names, r->series);
    else
        usual_names(&names, report);
    bool ok = (r->series || names.len > 0 || error_set(err, ERR_NOT_FOUND, "the run in '%s' has no values to draw yet", r->run_dir))
              && charts_print(&out, report, buf_text(&names), err) && export_write(r, buf_text(&out), out.len, err);
    run_report_free(report);
    buf_release(&names);
    buf_release(&out);
    return ok;
}
