#include "workers/export/run_report.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/record/change.h"
#include "protocol/run/run_lock.h"

/* The series of this name in a list of n, added when it is new; NULL: the list is full. */
static struct series *named(struct run_report_series *list, int *n, int most, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i].s;
    if (*n == most)
        return NULL;
    snprintf(list[*n].name, REPORT_NAME, "%s", name);
    series_init(&list[*n].s);
    return &list[(*n)++].s;
}

static bool step_take(void *arg, const struct journal_step *row)
{
    struct run_report *r = arg;
    for (int i = 0; i < row->n; i++) {
        int id = metric_find(row->metric[i].name);
        bool part = id < 0 && strncmp(row->metric[i].name, "reward/", 7) == 0;
        struct series *s = part                                         ? named(r->part, &r->n_part, REPORT_PARTS, row->metric[i].name)
                           : id == M_ROLLOUT_STEP                       ? &r->rollout
                           : id >= 0 && metrics[id].chart != CHART_NONE ? &r->metric[id]
                                                                        : NULL;
        if (s)
            series_set(s, row->step, row->metric[i].value);
    }
    r->first = r->n_step == 0 ? row->step : MIN(r->first, row->step);
    r->last_step = MAX(r->last_step, row->step);
    r->began_s = r->n_step == 0 ? row->wall_s : r->began_s;
    r->ended_s = row->wall_s;
    r->n_step++;
    return true;
}

static bool eval_take(void *arg, const struct journal_eval *e)
{
    struct run_report *r = arg;
    struct series *s = named(r->eval, &r->n_eval, EVAL_ROW_MAX, e->set);
    if (s)
        series_set(s, e->step, e->mean);
    return true;
}

/* Keep the newest marks, each step once. */
static void mark_add(struct run_report *r, int64_t step)
{
    if (step < 0 || (r->n_mark > 0 && r->mark[r->n_mark - 1] == step))
        return;
    if (r->n_mark == REPORT_MARKS)
        memmove(r->mark, r->mark + 1, (size_t)--r->n_mark * sizeof *r->mark);
    r->mark[r->n_mark++] = step;
}

static bool event_take(void *arg, const struct journal_event *e)
{
    struct run_report *r = arg;
    json_t *facts = json_str_read(e->detail, 0, NULL);
    struct change change = change_read(e->kind, e->step, facts);
    json_decref(facts);
    mark_add(r, change_shown(&change, &r->rollout, r->last_step + 1));
    return true;
}

static void config_take(struct run_report *r, const char *run_dir)
{
    struct error none;
    char path[PATH_MAX];
    run_config_init(r->config);
    if (path_join(path, sizeof path, run_dir, "run.yaml") && path_exists(path) && !run_config_read(r->config, path, &none))
        run_config_init(r->config);
}

struct run_report *run_report_open(const char *run_dir, struct error *err)
{
    struct run_report *r = calloc(1, sizeof *r);
    if (!r || !(r->config = malloc(sizeof *r->config))) {
        free(r);
        error_set(err, ERR_NO_MEMORY, "no memory for a report");
        return NULL;
    }
    r->began_s = r->ended_s = NAN;
    series_init(&r->rollout);
    for (int i = 0; i < METRIC_N; i++)
        series_init(&r->metric[i]);
    config_take(r, run_dir);
    r->live = run_is_live(run_dir);
    /* by the table's own names, whatever metric_names says: the report groups metrics by the table */
    if ((r->journal = journal_open_reader(run_dir, err)) && run_last_read(r->journal, run_dir, r->live, &r->last, err)
        && journal_steps_read(r->journal, 0, step_take, r, err) && journal_evals_read(r->journal, eval_take, r, err)
        && journal_events_read(r->journal, 0, NULL, event_take, r, err))
        return r;
    run_report_free(r);
    return NULL;
}

void run_report_free(struct run_report *r)
{
    if (!r)
        return;
    series_release(&r->rollout);
    for (int i = 0; i < METRIC_N; i++)
        series_release(&r->metric[i]);
    for (int i = 0; i < r->n_part; i++)
        series_release(&r->part[i].s);
    for (int i = 0; i < r->n_eval; i++)
        series_release(&r->eval[i].s);
    journal_close(r->journal);
    free(r->config);
    free(r);
}

int run_report_best(const struct run_report *r, double *value, int64_t *step)
{
    int best = -1;
    for (int i = 0; i < r->n_eval; i++)
        for (int64_t k = 0; k < r->eval[i].s.n; k++) {
            double v = series_at(&r->eval[i].s, k);
            if (!isnan(v) && (best < 0 || v > *value)) {
                best = i;
                *value = v;
                *step = k;
            }
        }
    return best;
}
