#include "workers/controller/doctor.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "workers/controller/controller.h"

#define STEPS_LEAST 4    // before an event says what bounds the run: the first steps are not like the others

void doctor_past(struct doctor *d, const struct journal_step *s)
{
    for (int id = 0; id < METRIC_N; id++)
        d->past[id][d->at] = NAN;
    for (int i = 0; i < s->n; i++) {
        int id = metric_find(s->metric[i].name);
        if (id >= 0)
            d->past[id][d->at] = s->metric[i].value;
    }
    d->at = (d->at + 1) % DOCTOR_STEPS;
    d->n = MIN(d->n + 1, DOCTOR_STEPS);
}

static double value_back(const void *arg, enum metric_id id, int back)
{
    const struct doctor *d = arg;
    return back < d->n ? d->past[id][(d->at + 2 * DOCTOR_STEPS - 1 - back) % DOCTOR_STEPS] : NAN;
}

static bool bound_judge(const struct controller *c, struct diagnosis *d)
{
    return doctor_bound(&(struct doctor_source){ .value = value_back, .config = &c->config, .arg = &c->doctor }, d);
}

/* The worst alarm that fires. */
static bool alarm_judge(const struct controller *c, struct diagnosis *d)
{
    const struct alarm_rule *worst = NULL;
    int n = 0;
    for (int i = 0; i < c->alarms.book.n; i++) {
        const struct alarm_rule *r = &c->alarms.book.rule[i];
        if (c->alarms.now[i].state != ALARM_FIRING)
            continue;
        n++;
        if (worst && worst->critical >= r->critical)
            continue;
        worst = r;
        snprintf(d->text, sizeof d->text, "%.240s", c->alarms.now[i].text);
    }
    if (!worst)
        return false;
    if (n > 1)
        snprintf(d->text + strlen(d->text), sizeof d->text - strlen(d->text), " (+%d more)", n - 1);
    d->kind = worst->critical ? DIAGNOSIS_CRIT : DIAGNOSIS_WARN;
    snprintf(d->remedy, sizeof d->remedy, "%s", worst->remedy);
    d->name = "alarm";
    return true;
}

static bool waste_judge(const struct controller *c, struct diagnosis *d)
{
    char text[WASTE_TEXT_MAX];
    if (!c->counts.waste.told)
        return false;
    const char *end = strstr(waste_text(&c->counts.waste, text, sizeof text), "; ");
    size_t len = end ? (size_t)(end - text) : strlen(text);
    d->kind = DIAGNOSIS_CRIT;
    d->name = "alarm";
    snprintf(d->text, sizeof d->text, "%.*s", (int)MIN(len, sizeof d->text - 1), text);
    snprintf(d->remedy, sizeof d->remedy, "%s", end ? end + 2 : "");
    return true;
}

static struct diagnosis judge(const struct controller *c)
{
    struct diagnosis d = { .kind = DIAGNOSIS_NONE };
    struct ledger_counts n;
    if (run_is_over(c) || servers_judge(c, &d) || missing_judge(c, &d) || waste_judge(c, &d) || alarm_judge(c, &d))
        return d;
    if (c->state == RUN_PAUSED) {
        doctor_paused(&d);
    } else if (posted_judge(c, &d)) {
        return d;
    } else if (c->step > 0) {
        (void)bound_judge(c, &d);
    } else if (c->ledger) {
        ledger_counts(c->ledger, 1, &n);
        (void)doctor_groups((double)(n.returned + n.filtered), (double)n.filtered, (double)n.leased, &d);
    }
    return d;
}

static void tell(struct controller *c, const struct diagnosis *d)
{
    c->doctor.told = d->name;
    c->doctor.told_step = c->step;
    event_add_facts(c, "doctor", "controller", d->text,
                    json_pack("{s:s, s:s, s:s}", "kind", diagnosis_kind_name(d->kind), "name", d->name, "remedy", d->remedy));
}

void doctor_step(struct controller *c)
{
    struct doctor *k = &c->doctor;
    struct diagnosis d = { .kind = DIAGNOSIS_NONE };
    doctor_past(k, &(struct journal_step){ .metric = c->metrics.value, .n = c->metrics.n });
    if (k->n < STEPS_LEAST || !bound_judge(c, &d) || (k->told && (strcmp(k->told, d.name) == 0 || c->step - k->told_step < DOCTOR_STEPS)))
        return;
    tell(c, &d);
}

void doctor_end(struct controller *c)
{
    struct diagnosis d = { .kind = DIAGNOSIS_NONE };
    if (c->doctor.n > 0 && bound_judge(c, &d))
        tell(c, &d);
}

void doctor_write(const struct controller *c, struct msg_out *m)
{
    struct diagnosis d = judge(c);
    if (d.kind == DIAGNOSIS_NONE)
        return;
    msg_map(m, "doctor");
    msg_str(m, "kind", diagnosis_kind_name(d.kind));
    msg_str(m, "name", d.name);
    msg_str(m, "text", d.text);
    msg_str(m, "remedy", d.remedy);
    msg_end(m);
}
