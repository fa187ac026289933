#include "console/fleet/doctor.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/alarm.h"

static double value_back(const void *arg, enum metric_id id, int back)
{
    const struct run_view *m = arg;
    return series_at(&m->metric[id], m->metric[M_STEP_S].n - 1 - back);    // the newest step that is whole
}

static bool broken_say(const struct run_view *m, int64_t now_ns, struct diagnosis *d)
{
    struct alarm alarm;
    int n = alarms_check(m, now_ns, &alarm, 1);
    if (n == 0)
        return false;
    d->kind = alarm.crit ? DIAGNOSIS_CRIT : DIAGNOSIS_WARN;
    d->name = "alarm";
    if (n > 1)
        snprintf(d->text, sizeof d->text, "%s (+%d more: 8)", alarm.text, n - 1);
    else
        snprintf(d->text, sizeof d->text, "%s", alarm.text);
    snprintf(d->remedy, sizeof d->remedy, "%s", alarm.remedy);
    return true;
}

static double buffer_of(const struct run_view *m, const char *name)
{
    for (int i = 0; i < m->n_buffer; i++)
        if (strcmp(m->buffer[i].name, name) == 0)
            return m->buffer[i].value;
    return 0;
}

/* Before the first step: what the run waits for. */
static void beginning_say(const struct run_view *m, int64_t now_ns, struct diagnosis *d)
{
    const struct proc *late = NULL;
    d->kind = DIAGNOSIS_BOUND;
    d->name = "first step";
    for (int i = 0; i < m->n_proc; i++)
        if (strcmp(m->proc[i].phase, "loading") == 0 && (!late || m->proc[i].phase_s > late->phase_s))
            late = &m->proc[i];
    if (late) {
        snprintf(d->text, sizeof d->text, "no step yet: %s has been loading for %.0f s", late->name,
                 late->phase_s + (double)(now_ns - late->heard_ns) * 1e-9);
        return;
    }
    d->kind = DIAGNOSIS_NONE;
    (void)doctor_groups(buffer_of(m, "returned") + buffer_of(m, "filtered") + buffer_of(m, "waiting"), buffer_of(m, "filtered"),
                        buffer_of(m, "generating"), d);
}

struct diagnosis doctor_summary(const struct run_view *m)
{
    struct diagnosis d = { .kind = DIAGNOSIS_NONE };
    (void)doctor_bound(&(struct doctor_source){ .value = value_back, .arg = m }, &d);
    return d;
}

struct diagnosis doctor_say(const struct run_view *m, int64_t now_ns)
{
    struct diagnosis d = { .kind = DIAGNOSIS_NONE };
    if (m->told_ns == 0 || broken_say(m, now_ns, &d) || run_state_is_over(m->state))
        return d;
    if (m->says.kind > DIAGNOSIS_BOUND || (m->says.kind == DIAGNOSIS_BOUND && m->step > 0))
        return m->says;
    if (m->state == RUN_PAUSED)
        doctor_paused(&d);
    else if (m->step == 0)
        beginning_say(m, now_ns, &d);
    else
        d = doctor_summary(m);
    return d;
}
