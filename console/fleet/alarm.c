/* alarm.c - see alarm.h */
#include "console/fleet/alarm.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "console/fleet/nodes.h"

/* Into out, in which the first max of *n stand, critical ones first. */
static void alarm_add(struct alarm *out, int max, int *n, const struct alarm *a)
{
    int held = MIN(*n, max), at = held;
    (*n)++;
    if (a->crit)    // before the first warning
        for (at = 0; at < held && out[at].crit; at++)
            ;
    if (at == max)
        return;
    held = MIN(held, max - 1);
    memmove(&out[at + 1], &out[at], (size_t)(held - at) * sizeof(*out));
    out[at] = *a;
}

/* GPUs that are lost, failing or slowed, on whatever node. */
static void devices_check(const struct run_view *m, struct alarm *out, int max, int *n)
{
    static const char *const remedies[] = {
        [DEVICE_SLOWED] = "see to its cooling and its power supply; pane 2 has its clocks",
        [DEVICE_FAILING] = "'nvidia-smi -q -d ECC' on its node says where; replace it when they grow",
        [DEVICE_LOST] = "'dmesg' on its node has the cause ('Xid'); the node must be restarted, or left out of 'devices'",
    };
    for (int h = 0, at = 0; h < m->n_host; h++)
        for (int i = 0; i < m->host[h].n_device; i++, at++) {
            char words[160];
            enum device_fault fault = device_fault_say(&m->device[at], words, sizeof words);
            struct alarm a = { .crit = fault != DEVICE_SLOWED, .remedy = remedies[fault] };
            if (fault == DEVICE_WELL)
                continue;
            snprintf(a.text, sizeof a.text, "%s of %s %s", m->device[at].name, m->host[h].node, words);
            alarm_add(out, max, n, &a);
        }
}

int alarms_check(const struct run_view *m, int64_t now_ns, struct alarm *out, int max)
{
    int n = 0;
    bool over = run_state_is_over(m->state);
    if (m->state == RUN_FAILED) {
        struct alarm a = { .crit = true, .remedy = "see the log (5), then: rollcall train --resume" };
        snprintf(a.text, sizeof(a.text), "the run failed: %.120s", m->reason);
        alarm_add(out, max, &n, &a);
    }
    if (m->alert[0] && !over) {
        struct alarm a = { .crit = true, .remedy = m->alert_remedy };
        snprintf(a.text, sizeof(a.text), "%s", m->alert);
        alarm_add(out, max, &n, &a);
    }
    bool lost = m->link == LINK_LOST && !over;
    if (lost) {    // one alarm for all: nothing is known about the others
        struct alarm a = { .crit = true, .remedy = "a dead agent is restarted; values are old until then" };
        snprintf(a.text, sizeof(a.text), "no answer from the agent for %.0f s", (double)(now_ns - m->told_ns) * 1e-9);
        alarm_add(out, max, &n, &a);
    }
    for (int i = 0; i < m->n_proc && !over && !lost; i++) {
        const struct proc *p = &m->proc[i];
        enum proc_verdict v = view_verdict(m, p, now_ns);
        if (v == PROC_OK)
            continue;
        struct alarm a = { .crit = v != PROC_SLOW,
                           .remedy = v == PROC_SLOW ? "it works, but takes longer than usual" : "pane 2, K restarts it" };
        double age_s = (double)(now_ns - p->heard_ns) * 1e-9 + (isnan(p->heard_s) ? 0 : p->heard_s);
        if (v == PROC_SILENT)
            snprintf(a.text, sizeof(a.text), "%s silent %.0f s, last %s", p->name, age_s, p->phase);
        else
            snprintf(a.text, sizeof(a.text), "%s %s %.0f s in %s%s%.60s", p->name, proc_verdict_name(v),
                     p->phase_s + (double)(now_ns - p->heard_ns) * 1e-9, p->phase, proc_waits_join(p), p->waits_for);
        alarm_add(out, max, &n, &a);
    }
    for (int i = 0; i < m->n_alarm && !over; i++) {
        if (m->alarm[i].state != ALARM_FIRING)
            continue;
        struct alarm a = { .crit = m->alarm[i].critical, .rule = true, .remedy = m->alarm[i].remedy };
        snprintf(a.text, sizeof(a.text), "%s", m->alarm[i].text);
        alarm_add(out, max, &n, &a);
    }
    if (!over && !lost)
        devices_check(m, out, max, &n);
    return n;
}
