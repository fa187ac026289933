#include "console/fleet/run_end.h"
#include <stdio.h>
#include <string.h>
#include "protocol/record/journal.h"
#include "protocol/run/run_last.h"

static bool step_take(void *arg, const struct journal_step *s)
{
    struct run_view *m = arg;
    if (s->incarnation > m->incarnation && s->step < m->n_step)    // the run went back, and these steps are repeated
        view_steps_cut(m, s->step);
    m->incarnation = MAX(m->incarnation, s->incarnation);
    if (s->step < m->n_step)
        return true;
    view_step_begin(m, s->step);
    for (int i = 0; i < s->n; i++)
        view_metric(m, s->step, s->metric[i].name, s->metric[i].value);
    return true;
}

static bool event_take(void *arg, const struct journal_event *j)
{
    struct event_view e = { .id = j->seq, .time_s = j->wall_s, .step = j->step };
    snprintf(e.kind, sizeof e.kind, "%s", j->kind);
    snprintf(e.who, sizeof e.who, "%s", j->who);
    snprintf(e.text, sizeof e.text, "%s", j->text);
    view_event_facts(arg, &e, j->detail, strlen(j->detail));
    return true;
}

bool run_end_read(struct run_view *m, const char *run_dir, struct error *err)
{
    const struct event_view *newest = view_event_at(m, 0);
    struct run_last last;
    struct journal *j = journal_open_reader(run_dir, err);
    bool ok = j && journal_steps_read(j, 0, step_take, m, err) && journal_events_read(j, newest ? newest->id : 0, NULL, event_take, m, err)
              && run_last_read(j, run_dir, true, &last, err);    // true: whether it was killed, the caller judges
    journal_close(j);
    if (!ok)
        return false;
    if (last.step + 1 < m->n_step)
        view_steps_cut(m, last.step + 1);
    m->step = last.step;
    if (run_state_is_over(last.state)) {
        m->state = last.state;
        snprintf(m->reason, sizeof m->reason, "%.255s", last.reason);
    }
    view_changed(m);
    return true;
}
