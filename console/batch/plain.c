/* plain.c - see plain.h */
#include "console/batch/plain.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#include "console/fleet/alarm.h"
#include "console/fleet/doctor.h"
#include "protocol/base/clean_out.h"
#include "protocol/wire/message.h"

#define LINES 10    // of the log and the events, when no number is given

/* A line; what would act on a terminal becomes a blank. */
static void say(struct plain *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(struct plain *p, const char *fmt, ...)
{
    char text[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    line_print(p->out, "%s", text);
}

static void status_say(struct plain *p, UNUSED const char *rest, int64_t now_ns)
{
    const struct run_view *m = p->model;
    struct diagnosis d = doctor_say(m, now_ns);
    say(p, "%s is %s, step %" PRId64 " of %" PRId64 "%s%s", m->name, run_state_name(m->state), m->step, m->max_steps,
        m->reason[0] ? ": " : "", m->reason);
    if (m->left_s >= 0 && !run_state_is_over(m->state))
        say(p, "about %.0f minutes are left, %.1f seconds per step", m->left_s / 60, m->step_s);
    if (d.text[0])
        say(p, "%s%s%s", d.text, d.remedy[0] ? "; remedy: " : "", d.remedy);
    char level[160];
    if (level_view_say(&m->level, level, sizeof(level))[0])
        say(p, "%s", level);
    for (int i = 0; i < m->n_eval; i++)
        say(p, "evaluation %s: %.1f percent of %" PRId64 ", at first %.1f", m->eval[i].set, 100 * m->eval[i].mean, m->eval[i].n,
            100 * m->eval[i].first_mean);
    if (m->lock.holder[0])
        say(p, "%s has control of the run", m->lock.holder);
}

static void workers_say(struct plain *p, const char *rest, int64_t now_ns)
{
    const struct run_view *m = p->model;
    for (int i = 0; i < m->n_proc; i++) {
        const struct proc *k = &m->proc[i];
        if (strstr(k->name, rest))
            say(p, "%s: %s, %s for %.0f seconds%s%s", k->name, proc_verdict_name(view_verdict(m, k, now_ns)), k->phase,
                k->phase_s + (double)(now_ns - k->heard_ns) * 1e-9, proc_waits_join(k), k->waits_for);
    }
}

static void alarms_say(struct plain *p, UNUSED const char *rest, int64_t now_ns)
{
    struct alarm alarm[32];
    int n = alarms_check(p->model, now_ns, alarm, ARRAY_SIZE(alarm));
    if (n == 0)
        say(p, "no alarm");
    for (int i = 0; i < MIN(n, (int)ARRAY_SIZE(alarm)); i++)
        say(p, "%s: %s; remedy: %s", alarm[i].crit ? "critical" : "warning", alarm[i].text, alarm[i].remedy);
    if (n > (int)ARRAY_SIZE(alarm))
        say(p, "and %d more", n - (int)ARRAY_SIZE(alarm));
}

static void metrics_say(struct plain *p, const char *rest, UNUSED int64_t now_ns)
{
    const struct run_view *m = p->model;
    for (int i = 0; i < METRIC_N; i++)
        if (m->metric[i].n > 0 && !isnan(m->metric[i].last) && strstr(metrics[i].name, rest))
            say(p, "%s: %.5g %s", metrics[i].name, m->metric[i].last, metrics[i].unit);
    for (int i = 0; i < m->n_extra; i++)
        if (!isnan(m->extra[i].series.last) && strstr(m->extra[i].name, rest))
            say(p, "%s: %.5g", m->extra[i].name, m->extra[i].series.last);
}

static void rollout_say(struct plain *p, UNUSED const char *rest, UNUSED int64_t now_ns)
{
    const struct rollout_view *g = view_rollout_at(p->model, 0);
    if (!g) {
        say(p, "no group is known yet");
        return;
    }
    say(p, "item %" PRId64 ", step %" PRId64 ", prompt: %s", g->item, g->step, g->prompt);
    for (int i = 0; i < g->n_sample; i++)
        say(p, "sample %d, reward %.3g, %" PRId64 " tokens%s, %s: %s", i + 1, g->sample[i].reward, g->sample[i].n_tok,
            g->sample[i].cut ? ", cut" : "", g->sample[i].reason, g->sample[i].text);
}

static int64_t count_of(const char *rest)
{
    int64_t n;
    return sscanf(rest, "%" SCNd64, &n) == 1 && n > 0 ? n : LINES;
}

static void events_say(struct plain *p, const char *rest, UNUSED int64_t now_ns)
{
    for (int64_t i = count_of(rest) - 1; i >= 0; i--) {
        const struct event_view *e = view_event_at(p->model, i);
        if (e)
            say(p, "step %" PRId64 ", %s: %s%s%s", e->step, e->kind, e->text, e->who[0] ? ", by " : "", e->who);
    }
}

static void log_say(struct plain *p, const char *rest, UNUSED int64_t now_ns)
{
    for (int64_t i = count_of(rest) - 1; i >= 0; i--) {
        const struct log_view *l = view_log_at(p->model, i);
        if (l)
            say(p, "%s %s: %s", l->clock, l->proc, l->text);
    }
}

static void knobs_say(struct plain *p, const char *rest, UNUSED int64_t now_ns)
{
    for (int i = 0; i < n_knobs; i++)
        if (strstr(knobs[i].name, rest))
            say(p, "%s is %s%s%s; %s", knobs[i].name, p->model->knob[i].text, knobs[i].unit[0] ? " " : "", knobs[i].unit, knobs[i].help);
}

static void checkpoints_say(struct plain *p, UNUSED const char *rest, UNUSED int64_t now_ns)
{
    for (int i = 0; i < p->model->n_saved; i++)
        say(p, "step %" PRId64 ": %s%s, made for %s", p->model->saved[i].step, p->model->saved[i].state,
            p->model->saved[i].pinned ? ", pinned" : "", p->model->saved[i].why);
}

static void help_say(struct plain *p, const char *rest, int64_t now_ns);

static void quit_say(struct plain *p, UNUSED const char *rest, UNUSED int64_t now_ns)
{
    p->quit = true;
}

static const struct word {
    const char *name, *args, *help;
    void (*say)(struct plain *p, const char *rest, int64_t now_ns);
} words[] = {
    { "status", "", "how the run stands, and what bounds or breaks it", status_say },
    { "workers", "[NAME]", "what each process does", workers_say },
    { "alarms", "", "what is wrong, and what to do about it", alarms_say },
    { "metrics", "[NAME]", "the newest value of each metric", metrics_say },
    { "rollout", "", "the newest group: prompt, completions, rewards", rollout_say },
    { "events", "[N]", "the last events", events_say },
    { "log", "[N]", "the last lines of the log", log_say },
    { "knobs", "[NAME]", "settings and their values", knobs_say },
    { "checkpoints", "", "what the run can go back to", checkpoints_say },
    { "help", "", "this list", help_say },
    { "quit", "", "close this console; training continues", quit_say },
    { "q", "", "the same", quit_say },
};

static void help_say(struct plain *p, UNUSED const char *rest, UNUSED int64_t now_ns)
{
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        say(p, "%s%s%s: %s", words[i].name, words[i].args[0] ? " " : "", words[i].args, words[i].help);
    for (int i = 0; i < n_command_specs && !p->feed->read_only; i++)
        say(p, "%s%s%s: %s", command_specs[i].name, command_specs[i].args[0] ? " " : "", command_specs[i].args, command_specs[i].help);
}

static const char *knob_now(void *arg, const struct knob *k)
{
    const struct run_view *m = arg;
    return m->knob[k - knobs].text[0] ? m->knob[k - knobs].text : NULL;
}

static void command_send(struct plain *p, const char *line, bool sure, int64_t now_ns)
{
    struct command c;
    struct error err = { 0 };
    char why[160];
    if (p->feed->read_only)
        say(p, "refused: this console is read-only; only the run's owner can change the run");
    else if (!command_parse(&c, line, &err))
        say(p, "%s; 'help' lists what can be typed", err.text);
    else if (!sure && command_asks(&c, knob_now, p->model, why, sizeof(why))) {
        snprintf(p->asked, sizeof(p->asked), "%s", line);
        say(p, "%s? yes or no", why);
    } else if (p->feed->command(p->feed, p->model, &c, line, now_ns, &err))
        say(p, "%s: sent", line);
    else
        say(p, "%s: %s", line, err.text);
}

/* Carry out one line, without its end. */
static void line_do(struct plain *p, const char *line, int64_t now_ns)
{
    line += strspn(line, " :\t");
    size_t n = strcspn(line, " ");
    if (p->asked[0]) {
        char asked[sizeof(p->asked)];
        memcpy(asked, p->asked, sizeof(asked));
        p->asked[0] = 0;
        if (strcmp(line, "yes") == 0)
            command_send(p, asked, true, now_ns);
        else
            say(p, "not sent: %s", asked);
        fflush(p->out);
        return;
    }
    const struct word *w = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strlen(words[i].name) == n && strncmp(words[i].name, line, n) == 0)
            w = &words[i];
    if (w)
        w->say(p, line + n + strspn(line + n, " "), now_ns);
    else if (n > 0)
        command_send(p, line, false, now_ns);
    fflush(p->out);
}

void plain_read(struct plain *p, int fd, int64_t now_ns)
{
    char bytes[512];
    ssize_t n = read(fd, bytes, sizeof(bytes));
    if (n <= 0)
        p->quit = true;
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] != '\n') {
            if (p->len + 1 < sizeof(p->line))
                p->line[p->len] = bytes[i];
            p->len++;
            continue;
        }
        p->line[MIN(p->len, sizeof(p->line) - 1)] = 0;
        if (p->len < sizeof(p->line))
            line_do(p, p->line, now_ns);
        else
            say(p, "refused: a line has at most %zu bytes, and this one has %zu", sizeof(p->line) - 1, p->len);
        p->len = 0;
    }
}

void plain_answers(struct plain *p)
{
    const struct run_view *m = p->model;
    int64_t newest = p->answered;
    for (int64_t i = MAX(m->n_command - MODEL_COMMANDS, (int64_t)0); i < m->n_command; i++) {
        const struct command_view *c = &m->command[i % MODEL_COMMANDS];
        if (c->answered_ns <= p->answered)
            continue;
        say(p, "%s%s: %s", c->state == COMMAND_REFUSED && strncmp(c->answer, "refused", 7) != 0 ? "refused: " : "", c->text, c->answer);
        newest = MAX(newest, c->answered_ns);
    }
    p->answered = newest;
    fflush(p->out);
}
