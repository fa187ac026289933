/* replay.c - see replay.h */
#include "console/fleet/replay.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/fleet/record.h"
#include "protocol/record/journal.h"

#define GROUPS_SHOWN 24    // the newest at a step

struct stored_group {
    int64_t offset, bytes, step;    // step: that trained on it
};
struct replay {
    char run_dir[4096];
    struct run_view *full;    // the run at its end
    double *wall_s;           // (full->n_step) when each step was done, since 1970; NAN: unknown
    int64_t n_wall;
    struct stored_group *group;    // (n_group) in the order of their items
    int64_t n_group, cap_group;
    bool failed;       // no memory for a group
    double first_s;    // when the run began
};

static bool wall_take(void *arg, const struct journal_step *s)
{
    struct replay *r = arg;
    if (s->step >= 0 && s->step < r->n_wall)
        r->wall_s[s->step] = s->wall_s;
    return true;
}

static bool group_take(void *arg, const struct journal_item *i)
{
    struct replay *r = arg;
    if (i->file_offset < 0 || i->fate != ITEM_TRAINED)
        return true;
    if (r->n_group == r->cap_group) {
        int64_t cap = r->cap_group ? 2 * r->cap_group : 1024;
        struct stored_group *more = realloc(r->group, (size_t)cap * sizeof(*more));
        r->failed = !more;
        if (!more)
            return false;
        r->group = more;
        r->cap_group = cap;
    }
    r->group[r->n_group++] = (struct stored_group){ i->file_offset, i->file_bytes, i->step };
    return true;
}

struct replay *replay_new(const char *run_dir, int64_t now_ns, struct error *err)
{
    struct replay *r = calloc(1, sizeof(*r));
    struct journal *j = NULL;
    const struct event_view *first;
    bool ok = false;
    if (!r) {
        error_set(err, ERR_NO_MEMORY, "no memory to replay the run");
        return NULL;
    }
    snprintf(r->run_dir, sizeof(r->run_dir), "%s", run_dir);
    TRY((r->full = view_new(err)) != NULL && record_read(r->full, run_dir, now_ns, err));
    r->n_wall = r->full->n_step;
    r->wall_s = calloc((size_t)r->n_wall + 1, sizeof(*r->wall_s));
    if (!r->wall_s) {
        error_set(err, ERR_NO_MEMORY, "no memory to replay the run");
        goto out;
    }
    for (int64_t i = 0; i <= r->n_wall; i++)
        r->wall_s[i] = NAN;
    TRY((j = journal_open_reader(run_dir, err)) != NULL);
    TRY(journal_steps_read(j, 0, wall_take, r, err) && journal_items_read(j, 0, group_take, r, err));
    if (r->failed) {
        error_set(err, ERR_NO_MEMORY, "no memory for the run's groups");
        goto out;
    }
    for (int64_t i = 0; (first = view_event_at(r->full, i)) != NULL; i++)
        r->first_s = first->time_s;
    ok = true;
out:
    journal_close(j);
    if (!ok) {
        replay_free(r);
        return NULL;
    }
    return r;
}

void replay_free(struct replay *r)
{
    if (!r)
        return;
    fleet_model_free(r->full);
    free(r->wall_s);
    free(r->group);
    free(r);
}

int64_t replay_last(const struct replay *r)
{
    return r->full->step;
}

/* Until when things belong to a step: the next one is done. */
static double time_after(const struct replay *r, int64_t step)
{
    for (int64_t i = step + 1; i < r->n_wall; i++)
        if (!isnan(r->wall_s[i]))
            return r->wall_s[i];
    return INFINITY;
}

static void series_show(const struct replay *r, struct run_view *m, int64_t step)
{
    const struct run_view *full = r->full;
    if (step + 1 < m->n_step)
        view_steps_cut(m, step + 1);
    for (int64_t s = m->n_step; s <= step && s < full->n_step; s++) {
        view_step_begin(m, s);
        for (int i = 0; i < METRIC_N; i++)
            if (!isnan(series_at(&full->metric[i], s)))
                (void)series_set(&m->metric[i], s, series_at(&full->metric[i], s));
        for (int i = 0; i < full->n_extra; i++)
            view_metric(m, s, full->extra[i].name, series_at(&full->extra[i].series, s));
    }
}

/* Events, and what follows from them: evaluations and settings. */
static void events_show(const struct replay *r, struct run_view *m, int64_t step, double until_s, int64_t now_ns)
{
    const struct event_view *e;
    struct error ignored;
    int64_t n = 0;
    m->n_event = 0;
    m->n_eval = 0;
    bool settled = record_settings(m, r->run_dir, now_ns, &ignored);    // as at its start; else they stay as they are
    while (view_event_at(r->full, n))
        n++;
    while (n-- > 0) {
        e = view_event_at(r->full, n);
        if (e->step > step || e->time_s >= until_s)
            continue;
        view_event(m, e);
        if (settled && e->change.kind == CHANGE_SETTINGS)
            record_changes(m, e->detail, now_ns);
        if (e->eval.set[0])
            view_eval(m, e->eval.set, e->eval.step, e->eval.n, e->eval.mean);
    }
}

static void log_show(const struct replay *r, struct run_view *m, double until_s)
{
    const struct log_view *l;
    int64_t n = 0;
    view_log_clear(m);
    while (view_log_at(r->full, n))
        n++;
    while (n-- > 0) {
        l = view_log_at(r->full, n);
        if (!(l->time_s >= until_s))
            view_log_copy(m, l);
    }
}

/* The newest groups that were trained on by then, oldest first. */
static void groups_show(const struct replay *r, struct run_view *m, int64_t step)
{
    char path[4200];
    int64_t at[GROUPS_SHOWN], n = 0;
    view_rollouts_clear(m);
    if (!view_groups_path(r->full, r->run_dir, path, sizeof(path)))
        return;
    for (int64_t i = r->n_group - 1; i >= 0 && n < GROUPS_SHOWN; i--)
        if (r->group[i].step <= step)
            at[n++] = i;
    while (n-- > 0)
        record_group(m, path, r->group[at[n]].offset, r->group[at[n]].bytes, r->group[at[n]].step);
}

static void saved_show(const struct replay *r, struct run_view *m, int64_t step)
{
    m->n_saved = 0;
    m->checkpoint = -1;
    for (int i = 0; i < r->full->n_saved; i++)
        if (r->full->saved[i].step <= step) {
            m->checkpoint = MAX(m->checkpoint, r->full->saved[i].step);
            m->saved[m->n_saved++] = r->full->saved[i];
        }
}

void replay_show(struct replay *r, struct run_view *m, int64_t step, int64_t now_ns)
{
    bool end = step >= r->full->step;
    step = MAX(MIN(step, r->full->step), (int64_t)0);
    double until_s = end ? INFINITY : time_after(r, step);
    series_show(r, m, step);
    events_show(r, m, end ? INT64_MAX : step, until_s, now_ns);
    log_show(r, m, until_s);
    groups_show(r, m, end ? INT64_MAX : step);
    saved_show(r, m, end ? INT64_MAX : step);
    m->step = step;
    m->state = end ? r->full->state : RUN_RUNNING;
    snprintf(m->reason, sizeof(m->reason), "%s", end ? r->full->reason : "");
    double at_s = step < r->n_wall ? r->wall_s[step] : NAN;
    m->elapsed_s = end ? r->full->elapsed_s : isnan(at_s) || r->first_s <= 0 ? NAN : at_s - r->first_s;
    m->told_ns = now_ns;
    view_changed(m);
}
