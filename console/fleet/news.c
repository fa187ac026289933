#include "console/fleet/news.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/run/run_state.h"
#include "protocol/wire/message.h"

static void gauges_read(struct gauge *g, int *n, int max, const struct mval *map)
{
    for (int64_t i = 0; i < mval_n(map) && *n < max; i++) {
        size_t len;
        const char *key = mval_key(map, i, &len);
        double v = mval_f64(mval_at(map, i), NAN);
        if (!key || isnan(v))
            continue;
        snprintf(g[*n].name, sizeof(g[*n].name), "%.*s", (int)MIN(len, sizeof(g[*n].name) - 1), key);
        g[(*n)++].value = v;
    }
}

void news_process(struct run_view *m, const struct mval *v, bool from_status, int64_t now_ns)
{
    char name[40], word[24];
    struct proc *p = view_proc(m, mval_text(v, "name", name, sizeof(name)));
    if (!p) {
        m->sweep.n_left_out += from_status;
        return;
    }
    p->told |= from_status;
    mval_text(v, "phase", p->phase, sizeof(p->phase));
    mval_text(v, "waits_for", p->waits_for, sizeof(p->waits_for));
    p->phase_s = mval_f64(mval_get(v, "phase_s"), p->phase_s);
    p->progress = mval_f64(mval_get(v, "progress"), NAN);
    p->heard_ns = now_ns;
    p->heard_s = 0;
    if (from_status) {
        mval_text(v, "kind", p->kind, sizeof(p->kind));
        mval_text(v, "plays", p->plays, sizeof(p->plays));
        p->pid = mval_i64(mval_get(v, "pid"), 0);
        p->restarts = mval_i64(mval_get(v, "restarts"), 0);
        p->verdict = proc_verdict_find(mval_text(v, "verdict", word, sizeof(word)));
        p->n_gauge = 0;
        double cpu = mval_f64(mval_get(v, "cpu"), NAN), rss = mval_f64(mval_get(v, "rss_mib"), NAN);
        if (!isnan(cpu))
            p->gauge[p->n_gauge++] = (struct gauge){ "cpu_share", cpu };
        if (!isnan(rss))
            p->gauge[p->n_gauge++] = (struct gauge){ "rss_bytes", rss * (1 << 20) };
        gauges_read(p->gauge, &p->n_gauge, MODEL_GAUGES, mval_get(v, "gauges"));
    }
    view_lane(m, p, now_ns);
}

/* A knob's value as text, whatever its type on the wire. */
static void value_text(const struct mval *v, char *out, size_t size)
{
    size_t len;
    const char *s = mval_str(v, &len);
    out[0] = 0;
    if (s)
        snprintf(out, size, "%.*s", (int)MIN(len, size - 1), s);
    else if (mval_is(v, KIND_BOOL))
        snprintf(out, size, "%s", mval_bool(v, false) ? "true" : "false");
    else if (mval_is(v, KIND_I64))
        snprintf(out, size, "%" PRId64, mval_i64(v, 0));
    else if (mval_is(v, KIND_F64))
        snprintf(out, size, "%.10g", mval_f64(v, NAN));
}

static void knobs_read(struct run_view *m, const struct mval *map, int64_t now_ns)
{
    for (int64_t i = 0; i < mval_n(map); i++) {
        char name[64], text[128];
        size_t len;
        const char *key = mval_key(map, i, &len);
        if (!key || len >= sizeof(name))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)len, key);
        value_text(mval_at(map, i), text, sizeof(text));
        if (text[0])
            view_knob(m, name, text, now_ns);
    }
}

/* Seconds since 1970 of a row; what no calendar has is 0. */
static double time_read(const struct mval *row)
{
    double t = mval_f64(mval_get(row, "time"), 0);
    return t >= 0 && t < 1e11 ? t : 0;
}

static void evals_read(struct run_view *m, const struct mval *map)
{
    for (int64_t i = 0; i < mval_n(map); i++) {
        char set[48];
        size_t len;
        const char *key = mval_key(map, i, &len);
        const struct mval *v = mval_at(map, i);
        if (!key || len >= sizeof(set))
            continue;
        snprintf(set, sizeof(set), "%.*s", (int)len, key);
        view_eval(m, set, mval_i64(mval_get(v, "step"), 0), mval_i64(mval_get(v, "n"), 0), mval_f64(mval_get(v, "mean"), NAN));
    }
}

static void device_read(struct device_view *d, const struct mval *v)
{
    const struct mval *f = mval_get(v, "figures");
    mval_text(v, "name", d->name, sizeof(d->name));
    mval_text(v, "what", d->what, sizeof(d->what));
    mval_text(v, "state", d->state, sizeof(d->state));
    mval_text(v, "throttle", d->throttle, sizeof(d->throttle));
    d->util_percent = mval_f64(mval_get(f, "util_percent"), NAN);
    d->mem_used_bytes = mval_f64(mval_get(f, "mem_used_bytes"), NAN);
    d->mem_total_bytes = mval_f64(mval_get(f, "mem_total_bytes"), NAN);
    d->temp_celsius = mval_f64(mval_get(f, "temp_celsius"), NAN);
    d->power_watts = mval_f64(mval_get(f, "power_watts"), NAN);
    d->power_limit_watts = mval_f64(mval_get(f, "power_limit_watts"), NAN);
    d->sm_clock_mhz = mval_f64(mval_get(f, "sm_clock_mhz"), NAN);
    d->ecc_uncorrected = mval_f64(mval_get(f, "ecc_uncorrected"), NAN);
}

/* Make room for n devices where those of the next host stand, which had `had`; returns how many there is room for. */
static int devices_fit(struct run_view *m, int had, int64_t n)
{
    int fit = (int)MIN(n, (int64_t)(MODEL_DEVICES - (m->n_device - had))), at = m->sweep.device;
    m->sweep.n_left_out += n - fit;
    if (fit != had)
        memmove(&m->device[at + fit], &m->device[at + had], (size_t)(m->n_device - at - had) * sizeof(*m->device));
    m->n_device += fit - had;
    return fit;
}

/* A node's host and devices; nothing changes for one whose agent has not sampled yet. */
static void host_read(struct run_view *m, const struct mval *v, bool own)
{
    const struct mval *figures = mval_get(v, "host"), *list = mval_get(v, "devices");
    if (!figures)
        return;
    if (m->sweep.host == MODEL_HOSTS) {
        m->sweep.n_left_out += 1 + mval_n(list);
        return;
    }
    struct host_view *h = &m->host[m->sweep.host++];
    if (m->sweep.host > m->n_host) {
        m->n_host = m->sweep.host;
        *h = (struct host_view){ .n_device = 0 };
    }
    mval_text(v, "node", h->node, sizeof(h->node));
    h->own = own;
    h->cpu_percent = mval_f64(mval_get(figures, "cpu_percent"), NAN);
    h->mem_used_bytes = mval_f64(mval_get(figures, "mem_used_bytes"), NAN);
    h->mem_total_bytes = mval_f64(mval_get(figures, "mem_total_bytes"), NAN);
    h->disk_percent = mval_f64(mval_get(figures, "disk_percent"), NAN);
    h->n_device = devices_fit(m, h->n_device, mval_n(list));
    for (int i = 0; i < h->n_device; i++)
        device_read(&m->device[m->sweep.device++], mval_at(list, i));
}

/* The processes, hosts and devices of a status: of all nodes, or of those from `from` on. What a whole sweep has not named is gone. */
static void fleet_read(struct run_view *m, const struct mval *v, int64_t now_ns)
{
    const struct mval *others = mval_get(v, "nodes"), *procs = mval_get(v, "processes");
    int64_t n = mval_n(others), from = mval_i64(mval_get(v, "from"), 0);
    m->n_node = MAX(mval_i64(mval_get(v, "n_nodes"), n), (int64_t)0);
    m->sweep.next = mval_i64(mval_get(v, "to"), m->n_node);
    if (from <= 0) {
        m->sweep = (struct fleet_sweep){ .next = m->sweep.next };
        for (int i = 0; i < m->n_proc; i++)
            m->proc[i].told = false;
        host_read(m, v, true);
    }
    for (int64_t i = 0; i < n; i++)
        host_read(m, mval_at(others, i), false);
    for (int64_t i = 0; i < mval_n(procs); i++)
        news_process(m, mval_at(procs, i), true, now_ns);
    if (m->sweep.next < m->n_node && m->sweep.next > from)
        return;
    m->sweep.next = 0;
    m->n_host = m->sweep.host;
    m->n_device = m->sweep.device;
    m->n_left_out = m->sweep.n_left_out;
    view_procs_sweep(m);
}

static void alarm_read(struct alarm_view *a, const struct mval *v)
{
    char word[24];
    *a = (struct alarm_view){ .critical = mval_bool(mval_get(v, "critical"), false),
                              .limit = mval_f64(mval_get(v, "limit"), NAN),
                              .steps = mval_i64(mval_get(v, "steps"), 1),
                              .step = mval_i64(mval_get(v, "step"), 0) };
    mval_text(v, "name", a->name, sizeof(a->name));
    mval_text(v, "metric", a->metric, sizeof(a->metric));
    mval_text(v, "text", a->text, sizeof(a->text));
    mval_text(v, "remedy", a->remedy, sizeof(a->remedy));
    mval_text(v, "actions", a->actions, sizeof(a->actions));
    a->state = alarm_state_find(word, strlen(mval_text(v, "state", word, sizeof(word))));
    a->when = alarm_when_find(mval_text(v, "when", word, sizeof(word)));
}

/* Firing before acknowledged, quiet and muted; among these the critical ones. */
static int alarm_rank(const struct alarm_view *a)
{
    static const int rank[] = { [ALARM_FIRING] = 0, [ALARM_ACKNOWLEDGED] = 2, [ALARM_QUIET] = 4, [ALARM_MUTED] = 6 };
    return rank[a->state] + !a->critical;
}

static void alarms_read(struct run_view *m, const struct mval *list)
{
    m->n_alarm = 0;
    for (int64_t i = 0; i < mval_n(list) && m->n_alarm < ALARM_RULES; i++) {
        struct alarm_view a;
        alarm_read(&a, mval_at(list, i));
        int at = m->n_alarm++;
        for (; at > 0 && alarm_rank(&m->alarm[at - 1]) > alarm_rank(&a); at--)
            m->alarm[at] = m->alarm[at - 1];
        m->alarm[at] = a;
    }
}

static void doctor_read(struct diagnosis *d, const struct mval *v)
{
    char word[32];
    *d = (struct diagnosis){ .kind = diagnosis_kind_find(mval_text(v, "kind", word, sizeof(word))) };
    mval_text(v, "text", d->text, sizeof(d->text));
    mval_text(v, "remedy", d->remedy, sizeof(d->remedy));
    diagnosis_name(d, mval_text(v, "name", word, sizeof(word)));
    if (!d->name)
        d->kind = DIAGNOSIS_NONE;
}

void news_status(struct run_view *m, const struct mval *v, int64_t now_ns)
{
    char word[24], failure[256];
    int64_t incarnation = mval_i64(mval_get(v, "incarnation"), m->incarnation);
    mval_text(v, "name", m->name, sizeof(m->name));
    mval_text(v, "dir", m->dir, sizeof(m->dir));
    m->state = run_state_find(mval_text(v, "state", word, sizeof(word)));
    mval_text(v, "reason", m->reason, sizeof(m->reason));
    if (mval_text(v, "failure", failure, sizeof(failure))[0]) {
        m->state = RUN_FAILED;
        memcpy(m->reason, failure, sizeof(m->reason));
    }
    mval_text(v, "pause_depth", m->pause_depth, sizeof(m->pause_depth));
    char alert[sizeof(m->alert) + sizeof(m->alert_remedy)];
    const char *end = strstr(mval_text(v, "alert", alert, sizeof(alert)), "; ");
    snprintf(m->alert, sizeof(m->alert), "%.*s", (int)(end ? (size_t)(end - alert) : strlen(alert)), alert);
    snprintf(m->alert_remedy, sizeof(m->alert_remedy), "%s", end ? end + 2 : "");
    m->step = mval_i64(mval_get(v, "step"), 0);
    m->max_steps = mval_i64(mval_get(v, "max_steps"), 0);
    m->elapsed_s = mval_f64(mval_get(v, "elapsed_s"), NAN);
    m->step_s = mval_f64(mval_get(v, "step_s"), NAN);
    m->left_s = mval_f64(mval_get(v, "left_s"), NAN);
    m->checkpoint = mval_i64(mval_get(v, "checkpoint"), -1);
    alarms_read(m, mval_get(v, "alarms"));
    control_lock_read(&m->lock, mval_get(v, "lock"));
    doctor_read(&m->says, mval_get(v, "doctor"));
    mval_text(v, "undo", m->undo, sizeof(m->undo));
    m->n_buffer = 0;
    gauges_read(m->buffer, &m->n_buffer, MODEL_GAUGES, mval_get(v, "buffer"));
    level_view_read(&m->level, mval_get(v, "level"));
    knobs_read(m, mval_get(v, "knobs"), now_ns);
    evals_read(m, mval_get(v, "eval"));
    fleet_read(m, v, now_ns);
    if (incarnation != m->incarnation && m->told_ns != 0 && m->step + 1 < m->n_step)
        view_steps_cut(m, m->step + 1);    // back at a checkpoint: later steps are repeated
    m->incarnation = incarnation;
    m->told_ns = now_ns;
}

bool news_steps(struct run_view *m, const struct mval *v)
{
    size_t n_bytes, time_bytes, value_bytes;
    const struct mval *names = mval_get(v, "names");
    const char *step = mval_bin(mval_get(v, "step"), &n_bytes);
    const char *wall = mval_bin(mval_get(v, "time"), &time_bytes);
    const char *value = mval_bin(mval_get(v, "value"), &value_bytes);
    size_t n = n_bytes / sizeof(int64_t), w = (size_t)mval_n(names);
    if (!step || !wall || !value || n == 0 || time_bytes != n * 8 || value_bytes / 8 != n * w || value_bytes % 8)
        return false;
    struct series **series = calloc(MAX(w, (size_t)1), sizeof(struct series *));
    for (size_t k = 0; series && k < w; k++) {
        char name[64];
        size_t len;
        const char *word = mval_str(mval_at(names, (int64_t)k), &len);
        snprintf(name, sizeof(name), "%.*s", word ? (int)MIN(len, sizeof(name) - 1) : 0, word ? word : "");
        series[k] = name[0] ? view_series(m, name) : NULL;
    }
    for (size_t i = 0; series && i < n; i++) {
        int64_t at;
        double x;
        memcpy(&at, step + i * 8, 8);
        if (at < m->n_step)
            continue;
        view_step_begin(m, at);
        for (size_t k = 0; k < w; k++) {
            memcpy(&x, value + (i * w + k) * 8, 8);
            if (series[k] && !isnan(x))
                (void)series_set(series[k], at, x);
        }
    }
    free(series);
    return mval_bool(mval_get(v, "more"), false);
}

bool news_step(struct run_view *m, const struct mval *v)
{
    int64_t step = mval_i64(mval_get(v, "step"), -1), incarnation = mval_i64(mval_get(v, "incarnation"), m->incarnation);
    if (step < 0 || m->told_ns == 0)
        return true;
    if (incarnation == m->incarnation && (step > m->n_step || (m->n_step == 0 && step > 1)))
        return false;
    if (step < m->n_step && incarnation <= m->incarnation)
        return true;    // known already
    m->incarnation = MAX(incarnation, m->incarnation);
    view_step_begin(m, step);
    const struct mval *metric = mval_get(v, "metrics");
    for (int64_t i = 0; i < mval_n(metric); i++) {
        char name[64];
        size_t len;
        const char *key = mval_key(metric, i, &len);
        if (!key || len >= sizeof(name))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)len, key);
        view_metric(m, step, name, mval_f64(mval_at(metric, i), NAN));
    }
    m->step = MAX(m->step, step);
    return true;
}

void news_rollout(struct run_view *m, const struct mval *v)
{
    int64_t item = mval_i64(mval_get(v, "item"), -1);
    for (int64_t i = 0; i < 16; i++) {    // it may come both from telemetry and as an answer: keep it once
        const struct rollout_view *old = view_rollout_at(m, i);
        if (old && old->item == item && old->step == mval_i64(mval_get(v, "step"), -1))
            return;
    }
    if (!rollout_view_read(view_rollout(m), v, view_advantages(m)))
        m->n_rollout--;    // no memory: its place is empty
}

void news_events(struct run_view *m, const struct mval *v)
{
    const struct mval *list = mval_get(v, "events");
    for (int64_t i = 0; i < mval_n(list); i++) {
        const struct mval *row = mval_at(list, i);
        struct event_view e = { .id = mval_i64(mval_get(row, "id"), 0),
                                .time_s = time_read(row),
                                .step = mval_i64(mval_get(row, "step"), -1) };
        mval_text(row, "kind", e.kind, sizeof(e.kind));
        mval_text(row, "who", e.who, sizeof(e.who));
        mval_text(row, "text", e.text, sizeof(e.text));
        size_t len = 0;
        const char *detail = mval_str(mval_get(row, "detail"), &len);
        view_event_facts(m, &e, detail ? detail : "", len);
    }
}

void news_rollouts(struct run_view *m, const struct mval *v)
{
    const struct mval *list = mval_get(v, "groups");
    for (int64_t i = mval_n(list) - 1; i >= 0; i--)    // newest first on the wire
        news_rollout(m, mval_at(list, i));
}

void news_checkpoints(struct run_view *m, const struct mval *v)
{
    const struct mval *list = mval_get(v, "checkpoints");
    m->n_saved = 0;
    m->before_change = mval_i64(mval_get(v, "before_change"), -1);
    for (int64_t i = 0; i < mval_n(list) && m->n_saved < MODEL_SAVED; i++) {
        const struct mval *row = mval_at(list, i);
        struct saved_view *s = &m->saved[m->n_saved++];
        *s = (struct saved_view){ .step = mval_i64(mval_get(row, "step"), 0),
                                  .size_bytes = mval_i64(mval_get(row, "size_bytes"), -1),
                                  .pinned = mval_bool(mval_get(row, "pinned"), false),
                                  .time_s = time_read(row) };
        mval_text(row, "state", s->state, sizeof(s->state));
        mval_text(row, "why", s->why, sizeof(s->why));
        mval_text(row, "path", s->path, sizeof(s->path));
        mval_text(row, "changes", s->changes, sizeof(s->changes));
    }
    view_changed(m);
}
