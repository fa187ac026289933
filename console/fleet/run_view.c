/* run_view.c - see run_view.h */
#include "console/fleet/run_view.h"
#include <jansson.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "protocol/base/file.h"
#include "protocol/base/utf8.h"
#include "protocol/base/json_text.h"

#define SILENT_S 4.0    // an agent reports its processes every second: 4 s leave room for a slow moment, 5 s are promised

const struct phase_row phase_table[] = {
    { "generating", 'g', 0 }, { "scoring", 's', 1 }, { "training", 't', 2 }, { "publishing", 'p', 3 }, { "saving", 'c', 4 },
    { "evaluating", 'e', 5 }, { "loading", 'l', 6 }, { "starting", 'l', 6 }, { "waiting", '.', 7 },    { "idle", '.', 7 },
    { "paused", '.', 7 },     { "holding", '.', 7 }, { "running", 'r', 4 },  { "watching", '.', 7 },   { "other", 'x', 5 },
};
const int n_phases = ARRAY_SIZE(phase_table);

static const char *const verdict_names[] = {
    [PROC_OK] = "ok",
    [PROC_SLOW] = "slow",
    [PROC_STUCK] = "stuck",
    [PROC_SILENT] = "silent",
};

enum proc_verdict proc_verdict_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(verdict_names); i++)
        if (strcmp(verdict_names[i], name) == 0)
            return (enum proc_verdict)i;
    return PROC_OK;
}

const char *proc_verdict_name(enum proc_verdict v)
{
    return verdict_names[v];
}

const char *proc_waits_join(const struct proc *p)
{
    static const char *const states[] = { "no sign of life", "being restarted", "ended" };
    for (size_t i = 0; i < ARRAY_SIZE(states); i++)
        if (strncmp(p->waits_for, states[i], strlen(states[i])) == 0)
            return ", ";
    return p->waits_for[0] ? ", waits for " : "";
}

const struct phase_row *phase_find(const char *phase)
{
    for (int i = 0; i < n_phases - 1; i++)
        if (strcmp(phase_table[i].phase, phase) == 0)
            return &phase_table[i];
    return &phase_table[n_phases - 1];
}

struct run_view *view_new(struct error *err)
{
    struct run_view *m = calloc(1, sizeof(*m));
    if (m) {
        m->extra = calloc(MODEL_EXTRA, sizeof(*m->extra));
        m->proc = calloc(MODEL_PROCS, sizeof(*m->proc));
        m->host = calloc(MODEL_HOSTS, sizeof(*m->host));    // touched only as far as they are used
        m->device = calloc(MODEL_DEVICES, sizeof(*m->device));
        m->event = calloc(MODEL_EVENTS, sizeof(*m->event));
        m->log = calloc(MODEL_LOG, sizeof(*m->log));
        m->alarm = calloc(ALARM_RULES, sizeof(*m->alarm));
        m->saved = calloc(MODEL_SAVED, sizeof(*m->saved));
        m->knob = calloc((size_t)n_knobs, sizeof(*m->knob));
    }
    if (!m || !m->extra || !m->proc || !m->host || !m->device || !m->event || !m->log || !m->saved || !m->alarm || !m->knob) {
        fleet_model_free(m);
        error_set(err, ERR_NO_MEMORY, "no memory for the console's model of the run");
        return NULL;
    }
    for (int i = 0; i < METRIC_N; i++)
        series_init(&m->metric[i]);
    m->elapsed_s = m->step_s = m->left_s = NAN;
    m->checkpoint = m->before_change = -1;
    return m;
}

void fleet_model_free(struct run_view *m)
{
    if (!m)
        return;
    for (int i = 0; i < METRIC_N; i++)
        series_release(&m->metric[i]);
    for (int i = 0; i < m->n_extra; i++)
        series_release(&m->extra[i].series);
    for (int i = 0; i < MODEL_ROLLOUTS; i++)
        rollout_view_release(&m->rollout[i]);
    for (int i = 0; m->log && i < MODEL_LOG; i++)
        free(m->log[i].text);
    free(m->extra);
    free(m->proc);
    free(m->host);
    free(m->device);
    free(m->event);
    free(m->log);
    free(m->saved);
    free(m->alarm);
    free(m->knob);
    free(m);
}

void view_changed(struct run_view *m)
{
    m->version++;
}

void view_steps_cut(struct run_view *m, int64_t step)
{
    for (int i = 0; i < METRIC_N; i++)
        series_cut(&m->metric[i], step);
    for (int i = 0; i < m->n_extra; i++)
        series_cut(&m->extra[i].series, step);
    m->n_step = MIN(m->n_step, step);
    view_changed(m);
}

bool view_steps_whole(const struct run_view *m)
{
    return m->step == 0 || m->n_step > MIN(m->step, (int64_t)SERIES_MAX - 1);
}

void view_step_begin(struct run_view *m, int64_t step)
{
    if (step < 0 || step >= SERIES_MAX)
        return;
    if (step < m->n_step)    // a rollback: the old values of later steps are void
        view_steps_cut(m, step);
    m->n_step = step + 1;
    view_changed(m);
}

struct series *view_series(struct run_view *m, const char *name)
{
    int id = metric_find(name);
    if (id >= 0)
        return &m->metric[id];
    for (int i = 0; i < m->n_extra; i++)
        if (strcmp(m->extra[i].name, name) == 0)
            return &m->extra[i].series;
    if (m->n_extra == MODEL_EXTRA || strlen(name) >= sizeof(m->extra[0].name))
        return NULL;
    struct extra_metric *e = &m->extra[m->n_extra++];
    snprintf(e->name, sizeof(e->name), "%s", name);
    series_init(&e->series);
    return &e->series;
}

void view_metric(struct run_view *m, int64_t step, const char *name, double value)
{
    struct series *s = view_series(m, name);
    if (s && !isnan(value))
        series_set(s, step, value);
}

/* Controllers first, then workers, scorers, agents: the order in which an operator asks. */
static int kind_rank(const char *name)
{
    static const char *const kinds[] = { "controller", "worker", "scorer", "agent" };
    for (int i = 0; i < (int)ARRAY_SIZE(kinds); i++)
        if (strncmp(name, kinds[i], strlen(kinds[i])) == 0)
            return i;
    return (int)ARRAY_SIZE(kinds);
}

static int proc_order(const char *a, const char *b)
{
    int ra = kind_rank(a), rb = kind_rank(b);
    return ra != rb ? ra - rb : strverscmp(a, b);
}

struct proc *view_proc(struct run_view *m, const char *name)
{
    int at = 0, end = m->n_proc;
    while (at < end) {
        int middle = at + (end - at) / 2, order = proc_order(m->proc[middle].name, name);
        if (order == 0)
            return &m->proc[middle];
        if (order < 0)
            at = middle + 1;
        else
            end = middle;
    }
    if (m->n_proc == MODEL_PROCS || !name[0] || strlen(name) >= sizeof(m->proc[0].name))
        return NULL;
    memmove(&m->proc[at + 1], &m->proc[at], (size_t)(m->n_proc - at) * sizeof(*m->proc));
    m->n_proc++;
    m->proc[at] = (struct proc){ .progress = NAN };
    snprintf(m->proc[at].name, sizeof(m->proc[at].name), "%s", name);
    memset(m->proc[at].lane, ' ', sizeof(m->proc[at].lane));
    view_changed(m);
    return &m->proc[at];
}

void view_procs_sweep(struct run_view *m)
{
    int kept = 0;
    for (int i = 0; i < m->n_proc; i++)
        if (m->proc[i].told) {
            if (kept < i)
                m->proc[kept] = m->proc[i];
            m->proc[kept++].told = false;
        }
    if (kept < m->n_proc)
        view_changed(m);
    m->n_proc = kept;
}

void view_lane(struct run_view *m, struct proc *p, int64_t now_ns)
{
    int64_t s = now_ns / 1000000000;
    char letter = p->phase[0] ? phase_find(p->phase)->letter : ' ';
    if (p->lane_s == 0 || s - p->lane_s >= LANE_SECONDS) {
        memset(p->lane, ' ', sizeof(p->lane));
        p->lane_s = s - 1;
    }
    /* a phase seen later in the same second wins only over waiting: short work must not vanish */
    char *here = &p->lane[s % LANE_SECONDS];
    if (p->lane_s == s && letter != '.')
        *here = letter;
    for (; p->lane_s < s; p->lane_s++)
        p->lane[(p->lane_s + 1) % LANE_SECONDS] = letter;
    view_changed(m);
}

void view_fleet_forget(struct run_view *m)
{
    if (m->n_proc + m->n_host + m->n_device == 0)
        return;
    m->n_proc = m->n_host = m->n_device = 0;
    m->sweep = (struct fleet_sweep){ .next = 0 };
    m->n_node = m->n_left_out = 0;
    view_changed(m);
}

enum proc_verdict view_verdict(const struct run_view *m, const struct proc *p, int64_t now_ns)
{
    if (run_state_is_over(m->state))
        return PROC_OK;
    double age_s = (double)(now_ns - p->heard_ns) * 1e-9 + (isnan(p->heard_s) ? 0 : p->heard_s);
    if (p->verdict != PROC_STUCK && age_s > SILENT_S)
        return PROC_SILENT;
    return p->verdict;
}

const struct proc *view_worst(const struct run_view *m, int64_t now_ns, enum proc_verdict *verdict)
{
    static const int rank[] = { [PROC_OK] = 0, [PROC_SLOW] = 1, [PROC_SILENT] = 2, [PROC_STUCK] = 3 };
    const struct proc *worst = NULL;
    *verdict = PROC_OK;
    for (int i = 0; i < m->n_proc; i++) {
        enum proc_verdict v = view_verdict(m, &m->proc[i], now_ns);
        if (rank[v] > rank[*verdict]) {
            *verdict = v;
            worst = &m->proc[i];
        }
    }
    return worst;
}

double proc_gauge(const struct proc *p, const char *name)
{
    for (int i = 0; i < p->n_gauge; i++)
        if (strcmp(p->gauge[i].name, name) == 0)
            return p->gauge[i].value;
    return NAN;
}

struct rollout_view *view_rollout(struct run_view *m)
{
    view_changed(m);
    return &m->rollout[m->n_rollout++ % MODEL_ROLLOUTS];
}

bool view_groups_path(const struct run_view *m, const char *run_dir, char *out, size_t size)
{
    struct error unused;
    const struct knob *k = knob_find("rollout_save_dir", &unused);
    const char *dir = k ? m->knob[k - knobs].text : "";
    return dir[0] && !m->far ? path_join(out, size, dir, "groups.zst") : path_join(out, size, run_dir, "rollouts/groups.zst");
}

enum advantage_form view_advantages(const struct run_view *m)
{
    struct error unused;
    const struct knob *k = knob_find("advantages", &unused);
    int form = k ? knob_choice(k->name, m->knob[k - knobs].text) : -1;
    return form >= 0 ? (enum advantage_form)form : ADV_DEVIATION;    // the default, as long as the run has not told
}

const struct rollout_view *view_rollout_at(const struct run_view *m, int64_t i)
{
    int64_t held = MIN(m->n_rollout, MODEL_ROLLOUTS);
    return i < 0 || i >= held ? NULL : &m->rollout[(m->n_rollout - 1 - i) % MODEL_ROLLOUTS];
}

void view_event(struct run_view *m, const struct event_view *e)
{
    if (m->n_event > 0 && e->id <= m->event[(m->n_event - 1) % MODEL_EVENTS].id)
        return;
    m->event[m->n_event++ % MODEL_EVENTS] = *e;
    view_changed(m);
}

/* Does the alarm of these facts begin, with the action "bell"? */
static bool alarm_rings(const json_t *facts)
{
    const char *state = json_string_value(json_object_get(facts, "state")), *actions = json_string_value(json_object_get(facts, "actions"));
    return state && strcmp(state, alarm_state_name(ALARM_FIRING)) == 0 && actions && strstr(actions, "bell");    // no other action has it
}

int64_t view_change_step(const struct run_view *m, const struct event_view *e)
{
    return change_shown(&e->change, &m->metric[M_ROLLOUT_STEP], m->n_step);
}

void view_event_facts(struct run_view *m, const struct event_view *e, const char *facts, size_t len)
{
    struct event_view full = *e;
    json_t *o = json_text_read(facts, len, 0, NULL), *mean = json_object_get(o, "mean");
    const char *set = json_string_value(json_object_get(o, "set"));
    full.change = change_read(e->kind, e->step, o);
    full.rings = strcmp(e->kind, "alarm") == 0 && alarm_rings(o);
    if (len < sizeof full.detail)    // part of it is not JSON
        snprintf(full.detail, sizeof full.detail, "%.*s", (int)len, facts);
    if (strcmp(e->kind, "eval") == 0 && set && json_is_number(mean)) {
        struct eval_view *v = &full.eval;
        snprintf(v->set, sizeof v->set, "%s", set);
        v->step = json_integer_value(json_object_get(o, "step"));
        v->n = json_integer_value(json_object_get(o, "n"));
        v->mean = json_number_value(mean);
        view_eval(m, set, v->step, v->n, v->mean);
    }
    json_decref(o);
    view_event(m, &full);
}

const struct event_view *view_event_at(const struct run_view *m, int64_t i)
{
    int64_t held = MIN(m->n_event, MODEL_EVENTS);
    return i < 0 || i >= held ? NULL : &m->event[(m->n_event - 1 - i) % MODEL_EVENTS];
}

/* The next word of a log line and what follows it. */
static size_t word_next(const char *line, size_t len, size_t *at)
{
    while (*at < len && line[*at] == ' ')
        (*at)++;
    size_t start = *at;
    while (*at < len && line[*at] != ' ')
        (*at)++;
    return start;
}

/* The length of the component at the start of a log line's text if its file is named after it; otherwise 0. */
static size_t component_len(const char *text, size_t len, const char *file)
{
    size_t n = strlen(file);
    if (len < n + 2 || text[n] != ':' || text[n + 1] != ' ')
        return 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] != file[i] && (file[i] != '-' || (text[i] >= '0' && text[i] <= '9') || (text[i] | 32) >= 'a'))
            return 0;
    return n;
}

/* The time at the start of a log line, "2026-11-21T22:33:50.123Z" in UTC or without the Z in local time; NAN: there is none. */
static double stamp_s(const char *line, size_t len)
{
    char text[25];
    struct tm tm = { .tm_isdst = -1 };
    int ms = 0;
    if (len < 23)
        return NAN;
    snprintf(text, sizeof(text), "%.24s", line);
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &ms) != 7)
        return NAN;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    return (double)(text[23] == 'Z' ? timegm(&tm) : mktime(&tm)) + ms * 1e-3;
}

void view_log(struct run_view *m, const char *proc, const char *line, size_t len)
{
    static const char *const levels[] = { [LINE_ERROR] = "ERROR", [LINE_WARN] = "WARN", [LINE_INFO] = "INFO", [LINE_DEBUG] = "DEBUG" };
    len = MIN(len, 2000);
    struct log_view v = { .level = LINE_OTHER, .time_s = stamp_s(line, len) };
    snprintf(v.proc, sizeof(v.proc), "%s", proc);
    size_t at = 0, start = word_next(line, len, &at), text_at = 0;
    const char *t = memchr(line + start, 'T', at - start);    // 2026-11-21T22:33:50.123Z level component sentence
    if (t && line + at - t >= 9) {
        snprintf(v.clock, sizeof(v.clock), "%.8s", t + 1);
        start = word_next(line, len, &at);
        for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
            if (at - start == strlen(levels[i]) && memcmp(line + start, levels[i], at - start) == 0)
                v.level = (enum line_level)i;
        text_at = v.level == LINE_OTHER ? start : at;
        while (text_at < len && line[text_at] == ' ')
            text_at++;
        size_t name_len = component_len(line + text_at, len - text_at, proc);
        if (name_len > 0) {    // "worker cpu:0: ..." in worker-cpu-0.log: the name as people write it, and only once
            snprintf(v.proc, sizeof(v.proc), "%.*s", (int)MIN(name_len, sizeof(v.proc) - 1), line + text_at);
            text_at += name_len + 2;
        }
    }
    v.text = text_keep(line + text_at, len - text_at, 2000);
    if (!v.text)
        return;
    struct log_view *place = &m->log[m->n_log++ % MODEL_LOG];
    free(place->text);
    *place = v;
    view_changed(m);
}

void view_log_copy(struct run_view *m, const struct log_view *l)
{
    struct log_view v = *l;
    v.text = text_keep(l->text, strlen(l->text), 2000);
    if (!v.text)
        return;
    struct log_view *place = &m->log[m->n_log++ % MODEL_LOG];
    free(place->text);
    *place = v;
    view_changed(m);
}

void view_log_clear(struct run_view *m)
{
    for (int i = 0; i < MODEL_LOG; i++) {
        free(m->log[i].text);
        m->log[i] = (struct log_view){ .text = NULL };
    }
    m->n_log = 0;
    view_changed(m);
}

void view_rollouts_clear(struct run_view *m)
{
    for (int i = 0; i < MODEL_ROLLOUTS; i++)
        rollout_view_release(&m->rollout[i]);
    m->n_rollout = 0;
    view_changed(m);
}

const struct log_view *view_log_at(const struct run_view *m, int64_t i)
{
    int64_t held = MIN(m->n_log, MODEL_LOG);
    return i < 0 || i >= held ? NULL : &m->log[(m->n_log - 1 - i) % MODEL_LOG];
}

void view_knob(struct run_view *m, const char *name, const char *text, int64_t now_ns)
{
    for (int i = 0; i < n_knobs; i++) {
        if (strcmp(knobs[i].name, name) != 0)
            continue;
        struct knob_value *v = &m->knob[i];
        if (strncmp(v->text, text, sizeof(v->text) - 1) == 0)
            return;
        if (v->text[0]) {
            memcpy(v->before, v->text, sizeof(v->before));
            v->changed_ns = now_ns;
        }
        snprintf(v->text, sizeof(v->text), "%s", text);
        view_changed(m);
        return;
    }
}

void view_eval(struct run_view *m, const char *set, int64_t step, int64_t n, double mean)
{
    struct eval_view *e = NULL;
    for (int i = 0; i < m->n_eval; i++)
        if (strcmp(m->eval[i].set, set) == 0)
            e = &m->eval[i];
    if (!e) {
        if (m->n_eval == MODEL_EVALS || strlen(set) >= sizeof(m->eval[0].set))
            return;
        e = &m->eval[m->n_eval++];
        *e = (struct eval_view){ .first_step = step, .first_mean = mean };
        snprintf(e->set, sizeof(e->set), "%s", set);
    }
    if (step < e->first_step) {
        e->first_step = step;
        e->first_mean = mean;
    }
    if (step < e->step)
        return;
    e->n = n;
    e->step = step;
    e->mean = mean;
    view_changed(m);
}

void view_link(struct run_view *m, enum link_state state, const char *text, int64_t now_ns)
{
    if (m->link != state) {
        m->link_ns = now_ns;
        view_changed(m);
    }
    m->link = state;
    snprintf(m->link_text, sizeof(m->link_text), "%s", text);
}

struct command_view *view_command_sent(struct run_view *m, uint64_t tag, const char *text)
{
    struct command_view *c = &m->command[m->n_command++ % MODEL_COMMANDS];
    *c = (struct command_view){ .tag = tag };
    snprintf(c->text, sizeof(c->text), "%s", text);
    view_changed(m);
    return c;
}

void view_command_answer(struct run_view *m, uint64_t tag, enum command_state state, const char *answer, int64_t now_ns)
{
    for (int64_t i = m->n_command - 1; i >= 0 && i >= m->n_command - MODEL_COMMANDS; i--) {
        struct command_view *c = &m->command[i % MODEL_COMMANDS];
        if (c->tag != tag || c->state != COMMAND_SENT)
            continue;
        c->state = state;
        c->answered_ns = now_ns;
        snprintf(c->answer, sizeof(c->answer), "%s", answer);
        view_changed(m);
        return;
    }
}
