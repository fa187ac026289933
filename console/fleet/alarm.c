/* alarm.c - see alarm.h */
#include "console/fleet/alarm.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum rule_kind {
    RULE_ABOVE,
    RULE_BELOW,
    RULE_EXACTLY,
    RULE_SPIKE,
    RULE_ROSE,
};
// clang-format off
static const struct rule {
    enum metric_id metric;
    enum rule_kind kind;
    double limit;           // SPIKE: times the median of the 32 steps before
    int steps;              // must be true for this many steps in a row
    bool crit;
    const char *what;       // with %s for the value
    const char *remedy;
} rules[] = {
    { M_SAMPLER_TRAINER_DIFF, RULE_ABOVE, 0, 1, true, "sampler and trainer disagree by %s nat",
      "this is a bug, not noise: save the run and report it" },
    { M_REWARD, RULE_EXACTLY, 0, 3, true, "reward exactly 0 for 3 steps",       // verl PR 5635: a verifier that always fails
      "look at the rollouts (3): format, verifier, too few tokens?" },
    { M_ANS_ACC, RULE_EXACTLY, 1, 3, false, "every answer was right for 3 steps",
      "there is nothing left to learn, or the verifier accepts anything" },
    { M_ENTROPY, RULE_BELOW, 0.005, 3, false, "entropy collapsed to %s",
      "raise temperature, clip_eps_high or kl_coeff; lower learning_rate" },
    { M_NO_SPREAD, RULE_ABOVE, 0.8, 3, false, "%s of the groups have no spread, so no gradient",
      "other prompts, larger num_generations, or filter_range" },
    { M_TRUNCATED, RULE_ABOVE, 0.05, 3, false, "%s of the responses are cut",    // AReaL algo_perf.md: above 0.05
      "raise max_new_tokens" },
    { M_LEFT_OUT, RULE_ABOVE, 0.01, 1, false, "%s of the samples could not be scored",
      "see the scorer's log (5)" },
    { M_SCORE_TIMEOUTS, RULE_ROSE, 0, 1, false, "verifier time-outs, %s so far", "see the scorer's log (5); raise reward_timeout_s" },
    { M_SCORE_ERRORS, RULE_ROSE, 0, 1, false, "verifier errors, %s so far", "see the scorer's log (5)" },
    { M_CLIP_HIGH, RULE_ABOVE, 0.2, 3, false, "%s of the tokens are clipped above",
      "lower learning_rate or n_behind" },
    { M_KL, RULE_SPIKE, 10, 1, false, "KL jumped to %s", "lower learning_rate, raise kl_coeff" },
    { M_GRAD_NORM, RULE_SPIKE, 5, 1, false, "gradient norm jumped to %s", "lower learning_rate; look at the rollouts" },
    { M_STEP_S, RULE_SPIKE, 2.5, 1, false, "the last step took %s s", "see who waits for whom (2)" },
};
// clang-format on

/* The median of the known values of up to 32 steps before `step`; NAN with fewer than 8. */
static double median_before(const struct series *s, int64_t step)
{
    double v[32];
    int n = 0;
    for (int64_t i = step - 1; i >= 0 && i >= step - 32; i--) {
        double x = series_at(s, i);
        if (isnan(x))
            continue;
        int at = n++;
        for (; at > 0 && v[at - 1] > x; at--)
            v[at] = v[at - 1];
        v[at] = x;
    }
    return n < 8 ? NAN : v[n / 2];
}

static bool rule_holds(const struct rule *r, const struct series *s, int64_t step)
{
    double v = series_at(s, step);
    if (isnan(v))
        return false;
    switch (r->kind) {
    case RULE_ABOVE: return v > r->limit;
    case RULE_BELOW: return v < r->limit;
    case RULE_EXACTLY: return v == r->limit;
    case RULE_SPIKE: {
        double median = median_before(s, step);
        return median > 0 && v > r->limit * median;
    }
    case RULE_ROSE: {    // counters start at 0
        double before = series_at(s, step - 1);
        return v > (isnan(before) ? 0 : before);
    }
    }
    return false;
}

static bool alarm_add(struct alarm *out, int max, int *n, const struct alarm *a)
{
    if (*n == max)
        return false;
    int at = *n;
    if (a->crit)    // before the first warning
        for (at = 0; at < *n && out[at].crit; at++)
            ;
    memmove(&out[at + 1], &out[at], (size_t)(*n - at) * sizeof(*out));
    out[at] = *a;
    (*n)++;
    return true;
}

int alarms_check(const struct model *m, int64_t now_ns, struct alarm *out, int max)
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
        enum proc_verdict v = model_verdict(m, p, now_ns);
        if (v == PROC_OK)
            continue;
        struct alarm a = { .crit = v != PROC_SLOW,
                           .remedy = v == PROC_SLOW ? "it works, but takes longer than usual" : "pane 2, K restarts it" };
        double age_s = (double)(now_ns - p->heard_ns) * 1e-9 + (isnan(p->heard_s) ? 0 : p->heard_s);
        if (v == PROC_SILENT)
            snprintf(a.text, sizeof(a.text), "%s silent %.0f s, last %s", p->name, age_s, p->phase);
        else
            snprintf(a.text, sizeof(a.text), "%s %s %.0f s in %s%s%.60s", p->name, proc_verdict_name(v),
                     p->phase_s + (double)(now_ns - p->heard_ns) * 1e-9, p->phase, p->waits_for[0] ? ", waits for " : "", p->waits_for);
        alarm_add(out, max, &n, &a);
    }
    for (size_t i = 0; i < ARRAY_SIZE(rules) && !over; i++) {
        const struct series *s = &m->metric[rules[i].metric];
        int64_t last = m->n_step - 1;
        bool holds = last >= 0;
        for (int64_t step = last; holds && step > last - rules[i].steps; step--)
            holds = rule_holds(&rules[i], s, step);
        if (!holds)
            continue;
        char value[24];
        double v = series_at(s, last);
        bool share = rules[i].kind == RULE_ABOVE && rules[i].limit > 0 && rules[i].limit < 1;
        snprintf(value, sizeof(value), share ? "%.0f %%" : rules[i].kind == RULE_ROSE ? "%.0f" : "%.3g", share ? 100 * v : v);
        struct alarm a = { .crit = rules[i].crit, .remedy = rules[i].remedy };
        char *at = strstr(rules[i].what, "%s");
        if (at)
            snprintf(a.text, sizeof(a.text), "%.*s%s%s", (int)(at - rules[i].what), rules[i].what, value, at + 2);
        else
            snprintf(a.text, sizeof(a.text), "%s", rules[i].what);
        alarm_add(out, max, &n, &a);
    }
    return n;
}
