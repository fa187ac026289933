/* simulate.c - see simulate.h
 *
 * A run that learns arithmetic: reward rises, entropy falls, answers grow longer. Time is divided into steps; inside a step
 * the workers go through generating, scoring, training and publishing. */
#include "console/simulate/simulate.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "protocol/base/clock.h"
#include "protocol/base/mix64.h"

#define SAMPLES 8
#define PENDING_MAX 8

struct pending {    // a command whose answer is due
    uint64_t tag;
    int64_t due_ns;
    char text[160];
};
struct simulate {
    struct feed feed;
    struct simulate_options options;
    uint64_t random;    // state of splitmix64
    int64_t start_ns, next_ns;
    double step_begin_s;    // since start_ns, when this step began
    double paused_s;        // time spent paused inside this step
    int64_t step;           // done
    bool paused, stopping, over;
    uint64_t tag;
    int64_t event_id;
    char undo[200];    // the last change, the other way round
    struct pending pending[PENDING_MAX];
    int n_pending;
};

static double uniform(struct simulate *s)
{
    return (double)(mix64_next(&s->random) >> 11) * 0x1p-53;
}

static double noise(struct simulate *s)    // roughly normal: mean 0, standard deviation 1
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += uniform(s);
    return sum - 6;
}

/* changed: the command changed settings. */
static void event_tell(struct simulate *s, struct run_view *m, const char *kind, const char *who, const char *text, bool changed,
                       int64_t back)
{
    struct event_view e = { .id = ++s->event_id,
                            .time_s = clock_wall_s() - (double)back * s->options.step_s,
                            .step = s->step,
                            .change = { changed ? CHANGE_SETTINGS : CHANGE_NONE, s->step, 0, 0 } };
    snprintf(e.kind, sizeof(e.kind), "%s", kind);
    snprintf(e.who, sizeof(e.who), "%s", who);
    snprintf(e.text, sizeof(e.text), "%s", text);
    view_event(m, &e);
}

static void log_tell(struct run_view *m, const char *proc, const char *level, const char *text)
{
    char line[400], clock[16];
    time_t t = (time_t)clock_wall_s();
    struct tm tm;
    localtime_r(&t, &tm);
    strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
    int n = snprintf(line, sizeof(line), "2026-01-01T%s.000 %-5s %s: %s", clock, level, proc, text);
    view_log(m, proc, line, (size_t)MIN(n, (int)sizeof(line) - 1));
}

static double skill(const struct simulate *s)
{
    return 1 / (1 + exp(-6.0 * ((double)s->step / (double)MAX(s->options.steps, 1) - 0.35)));
}

static void step_tell(struct simulate *s, struct run_view *m)
{
    double k = skill(s), reward = fmin(fmax(0.24 + 0.7 * k + 0.035 * noise(s), 0), 1), length = 21 + 34 * k + 1.2 * noise(s);
    // clang-format off
    const struct { enum metric_id id; double value; } values[] = {
        { M_REWARD, reward }, { M_ANS_ACC, reward }, { M_FORMAT_ACC, fmin(reward + 0.1, 1) }, { M_REWARD_STD, 0.45 - 0.3 * k },
        { M_RESPONSE_LENGTH, length }, { M_LENGTH_P90, length * 1.4 }, { M_ENTROPY, 0.62 - 0.48 * k + 0.012 * noise(s) },
        { M_KL, 0.0002 + 0.004 * k + fabs(0.0004 * noise(s)) }, { M_SAMPLER_TRAINER_DIFF, 0 },
        { M_LOSS, 0.004 * noise(s) }, { M_GRAD_NORM, 0.6 + 0.25 * fabs(noise(s)) }, { M_LEARNING_RATE, 4e-4 },
        { M_ROLLOUT_TOK_PER_S, 61000 + 1500 * noise(s) }, { M_TRAIN_TOK_PER_S, 38000 + 700 * noise(s) },
        { M_STEP_S, s->options.step_s * (1 + 0.04 * noise(s)) }, { M_GENERATE_S, 0.45 * s->options.step_s },
        { M_TRAIN_S, 0.4 * s->options.step_s }, { M_NO_SPREAD, 0.15 + 0.3 * k }, { M_TRUNCATED, 0.01 }, { M_TEMPERATURE, 1 },
        { M_CLIP_HIGH, 0.004 }, { M_CLIP_LOW, 0.003 }, { M_RATIO_MEAN, 1 }, { M_TOKENS_TOTAL, 14000.0 * (double)s->step },
    };
    // clang-format on
    s->step++;
    view_step_begin(m, s->step);
    for (size_t i = 0; i < ARRAY_SIZE(values); i++)
        (void)series_set(&m->metric[values[i].id], s->step, values[i].value);
}

static void rollout_tell(struct simulate *s, struct run_view *m)
{
    int a = 12 + (int)(uniform(s) * 80), b = 3 + (int)(uniform(s) * 90), right = a + b;
    char text[400];
    int n = snprintf(text, sizeof(text), "user: What is %d + %d?", a, b);
    struct rollout_view *g = view_rollout(m);
    bool begun = rollout_view_begin(g, s->step * 16 + (int64_t)(uniform(s) * 16), s->step, text, (size_t)n);
    for (int i = 0; begun && i < SAMPLES; i++) {
        bool good = uniform(s) < 0.2 + 0.75 * skill(s), boxed = uniform(s) < 0.4 + 0.6 * skill(s);
        int said = good ? right : right + 1 + (int)(uniform(s) * 9);
        int carry = (a % 10 + b % 10) / 10;
        n = snprintf(text, sizeof(text), "%d + %d: ones %d + %d = %d, %s; tens %d + %d%s = %d. The answer is %s%d%s.", a, b, a % 10, b % 10,
                     a % 10 + b % 10, carry ? "carry 1" : "no carry", a / 10, b / 10, carry ? " + 1" : "", said / 10,
                     boxed ? "\\boxed{" : "", said, boxed ? "}" : "");
        rollout_sample(g, text, (size_t)MIN(n, (int)sizeof(text) - 1), good && boxed ? 1 : 0, 20 + (int64_t)(30 * skill(s)), false,
                       boxed ? good ? "boxed: equal" : "boxed: different" : "no box");
    }
}

static void proc_tell(struct simulate *s, struct run_view *m, const char *name, const char *kind, int64_t pid, const char *phase,
                      double phase_s, const char *waits_for, enum proc_verdict verdict, int64_t now_ns)
{
    struct proc *p = view_proc(m, name);
    if (!p)
        return;
    snprintf(p->kind, sizeof(p->kind), "%s", kind);
    if (strcmp(kind, "worker") == 0)
        snprintf(p->plays, sizeof(p->plays), "trainer %s, producer %s", strrchr(name, ':') + 1, strrchr(name, ':') + 1);
    snprintf(p->phase, sizeof(p->phase), "%s", phase);
    snprintf(p->waits_for, sizeof(p->waits_for), "%s", waits_for);
    p->pid = pid;
    p->phase_s = phase_s;
    p->verdict = verdict;
    p->heard_ns = now_ns;
    p->progress = (double)s->step;
    p->gauge[0] = (struct gauge){ "rss_bytes", 3e7 + 1e6 * (double)(pid % 91) };
    p->gauge[1] = (struct gauge){ "cpu_share", strcmp(kind, "worker") == 0 && phase[0] != 'w' ? 0.97 : 0.02 };
    p->n_gauge = 2;
    view_lane(m, p, now_ns);
}

const char *simulate_phase(double share, double *began)
{
    static const struct {
        const char *phase;
        double until;
    } plan[] = {
        { "generating", 0.45 },
        { "scoring", 0.52 },
        { "training", 0.93 },
        { "publishing", 1.0 },
    };
    size_t at = 0;
    *began = 0;
    while (at + 1 < ARRAY_SIZE(plan) && share >= plan[at].until)
        *began = plan[at++].until;
    return plan[at].phase;
}

static void procs_tell(struct simulate *s, struct run_view *m, double in_step, int64_t now_ns)
{
    double t = in_step / s->options.step_s, began, run_s = (double)(now_ns - s->start_ns) * 1e-9;
    const char *phase = simulate_phase(t, &began);
    bool scores = strcmp(phase, "scoring") == 0;
    bool hold = s->paused || s->over;
    proc_tell(s, m, "controller", "controller", 4101,
              s->over     ? "waiting"
              : s->paused ? "paused"
                          : "running",
              run_s, hold ? "an operator" : "", PROC_OK, now_ns);
    for (int64_t i = 0; i < s->options.workers; i++) {
        char name[40];
        snprintf(name, sizeof(name), "worker cpu:%" PRId64, i);
        double stalled_s = run_s - (double)s->options.stall_after_s;
        bool stalled = s->options.stall_after_s > 0 && stalled_s > 0 && i == s->options.workers - 1;
        if (stalled)
            proc_tell(s, m, name, "worker", 4110 + i, "training", stalled_s, "",
                      stalled_s > 4   ? PROC_STUCK
                      : stalled_s > 2 ? PROC_SLOW
                                      : PROC_OK,
                      now_ns);
        else if (hold)
            proc_tell(s, m, name, "worker", 4110 + i, "waiting", in_step, "controller: work", PROC_OK, now_ns);
        else
            proc_tell(s, m, name, "worker", 4110 + i, phase, (t - began) * s->options.step_s, scores ? "scorer" : "", PROC_OK, now_ns);
    }
    proc_tell(s, m, "scorer", "scorer", 4120, !hold && scores ? "scoring" : "waiting", 0.3, scores ? "" : "responses", PROC_OK, now_ns);
    proc_tell(s, m, "agent", "agent", 4100, "running", run_s, "", PROC_OK, now_ns);
}

static void answers_due(struct simulate *s, struct run_view *m, int64_t now_ns)
{
    for (int i = 0; i < s->n_pending;) {
        struct pending *p = &s->pending[i];
        if (p->due_ns > now_ns) {
            i++;
            continue;
        }
        char answer[200];
        snprintf(answer, sizeof(answer), "takes effect at step %" PRId64, s->step + 1);
        view_command_answer(m, p->tag, COMMAND_DONE, answer, now_ns);
        event_tell(s, m, "command", "you@here, console", p->text, false, 0);
        s->pending[i] = s->pending[--s->n_pending];
    }
}

/* The default book, all quiet. */
static void book_tell(struct run_view *m)
{
    struct alarm_book book;
    alarm_book_init(&book);
    for (m->n_alarm = 0; m->n_alarm < book.n; m->n_alarm++) {
        const struct alarm_rule *r = &book.rule[m->n_alarm];
        struct alarm_view *v = &m->alarm[m->n_alarm];
        *v = (struct alarm_view){ .critical = r->critical, .when = r->when, .limit = r->limit, .steps = r->steps };
        snprintf(v->name, sizeof(v->name), "%s", r->name);
        snprintf(v->metric, sizeof(v->metric), "%s", r->metric);
        snprintf(v->remedy, sizeof(v->remedy), "%s", r->remedy);
        alarm_actions_text(r->actions, v->actions);
    }
}

/* The last three checkpoints, the first one, and the beginning. */
static void saved_tell(const struct simulate *s, struct run_view *m)
{
    int64_t change = s->options.done * 2 / 3;
    m->n_saved = 0;
    for (int64_t step = m->checkpoint; step >= 0; step = step > m->checkpoint - 40 && step > 20 ? step - 20 : MIN(step, (int64_t)40) - 20) {
        struct saved_view *v = &m->saved[m->n_saved++];
        *v = (struct saved_view){ .step = step, .size_bytes = step ? (int64_t)6 << 30 : -1, .pinned = step == 20 };
        snprintf(v->state, sizeof(v->state), "%s", step ? "whole" : "start");
        snprintf(v->why, sizeof(v->why), "%s", step == 20 ? "you@here, console" : step ? "every 20 steps" : "the model the run began with");
        if (step > 0)
            snprintf(v->path, sizeof(v->path), "runs/simulated/checkpoints/step-%06" PRId64, step);
        if (step <= change)
            snprintf(v->changes, sizeof(v->changes), "learning_rate 6e-4 -> 4e-4 (step %" PRId64 ")", change);
    }
    m->before_change = change / 20 * 20 >= m->checkpoint - 40 ? change / 20 * 20 : 20;
}

static void status_tell(struct simulate *s, struct run_view *m, int64_t now_ns)
{
    m->state = s->over ? s->stopping ? RUN_STOPPED : RUN_FINISHED : s->stopping ? RUN_STOPPING : s->paused ? RUN_PAUSED : RUN_RUNNING;
    m->step = s->step;
    m->max_steps = s->options.steps;
    m->step_s = s->options.step_s;
    m->left_s = (double)(s->options.steps - s->step) * s->options.step_s;
    m->elapsed_s = (double)s->step * s->options.step_s;
    m->checkpoint = s->step / 20 * 20;
    snprintf(m->undo, sizeof(m->undo), "%s", s->undo);
    saved_tell(s, m);
    m->told_ns = now_ns;
    snprintf(m->reason, sizeof(m->reason), "%s", s->paused ? "paused by you: r resumes" : "");
    view_changed(m);
}

static void simulate_pump(struct feed *f, struct run_view *m, int64_t now_ns)
{
    struct simulate *s = (struct simulate *)f;
    double now_s = (double)(now_ns - s->start_ns) * 1e-9;
    answers_due(s, m, now_ns);
    if (s->paused)
        s->step_begin_s = now_s - s->paused_s;
    while (!s->over && !s->paused && now_s - s->step_begin_s >= s->options.step_s) {
        s->step_begin_s += s->options.step_s;
        step_tell(s, m);
        rollout_tell(s, m);
        if (s->step % 20 == 0) {
            log_tell(m, "controller", "INFO", "checkpoint written and verified");
            event_tell(s, m, "checkpoint", "", "checkpoint complete", false, 0);
        }
        if (s->step >= s->options.steps || s->stopping)
            s->over = true;
        char text[200];
        snprintf(text, sizeof(text), "step %" PRId64 " done: reward %.3f", s->step, m->metric[M_REWARD].last);
        log_tell(m, "controller", "INFO", text);
    }
    procs_tell(s, m, now_s - s->step_begin_s, now_ns);
    status_tell(s, m, now_ns);
    s->next_ns = now_ns + 250 * (int64_t)1000000;
}

static int64_t simulate_due(const struct feed *f)
{
    return ((const struct simulate *)f)->next_ns;
}

static bool simulate_command(struct feed *f, struct run_view *m, const struct command *c, const char *text, int64_t now_ns,
                             struct error *err)
{
    struct simulate *s = (struct simulate *)f;
    if (s->n_pending == PENDING_MAX)
        return error_set(err, ERR_FULL, "%d commands wait for their answers already", PENDING_MAX);
    struct pending *p = &s->pending[s->n_pending++];
    *p = (struct pending){ .tag = ++s->tag, .due_ns = now_ns + 300 * (int64_t)1000000 };
    snprintf(p->text, sizeof(p->text), "%s", text);
    view_command_sent(m, p->tag, text);
    double now_s = (double)(now_ns - s->start_ns) * 1e-9;
    if (strcmp(c->name, "pause") == 0 && !s->paused) {
        s->paused = true;
        s->paused_s = now_s - s->step_begin_s;
        snprintf(m->pause_depth, sizeof(m->pause_depth), "%s", c->arg[0].value);
    } else if (strcmp(c->name, "resume") == 0) {
        s->paused = false;
    } else if (strcmp(c->name, "stop") == 0) {
        s->stopping = true;
        s->paused = false;
    } else if (strcmp(c->name, "lock") == 0) {
        snprintf(m->lock.holder, sizeof(m->lock.holder), "you@here, console");
        m->lock.since_s = clock_wall_s();
    } else if (strcmp(c->name, "unlock") == 0) {
        m->lock.holder[0] = 0;
    } else if (strcmp(c->name, "set") == 0) {
        const struct knob *k = knob_find(c->arg[0].key, err);
        snprintf(s->undo, sizeof(s->undo), "%s %s -> %s", c->arg[0].key, c->arg[0].value, k ? m->knob[k - knobs].text : "");
        for (int i = 0; i < c->n_arg; i++)
            view_knob(m, c->arg[i].key, c->arg[i].value, now_ns);
    }
    return true;
}

static void simulate_free(struct feed *f)
{
    free(f);
}

struct feed *simulate_new(const struct simulate_options *options, struct run_view *m, int64_t now_ns, struct error *err)
{
    struct simulate *s = calloc(1, sizeof(*s));
    if (!s) {
        error_set(err, ERR_NO_MEMORY, "no memory for the simulation");
        return NULL;
    }
    s->feed = (struct feed){ .fd = -1, .pump = simulate_pump, .due_ns = simulate_due, .command = simulate_command, .free = simulate_free };
    s->options = *options;
    snprintf(s->undo, sizeof(s->undo), "learning_rate 4e-4 -> 6e-4");
    s->random = options->seed;
    s->start_ns = now_ns;
    snprintf(m->name, sizeof(m->name), "simulated");
    snprintf(m->me, sizeof(m->me), "you@here, console");
    view_link(m, LINK_LIVE, "", now_ns);
    for (int i = 0; i < n_knobs; i++)
        view_knob(m, knobs[i].name, knobs[i].def && knobs[i].def[0] ? knobs[i].def : "-", now_ns);
    event_tell(s, m, "start", "", "a simulated run: every number is made up", false, options->done);
    log_tell(m, "agent", "INFO", "a simulated run: every number is made up");
    log_tell(m, "worker cpu:0", "WARN", "this line shows what a warning looks like");
    for (int64_t i = 0; i < options->done; i++) {
        step_tell(s, m);
        if (i > options->done - 12)
            rollout_tell(s, m);
        if (i == options->done * 2 / 3)
            event_tell(s, m, "command", "you@here, console", "learning_rate: 6e-4 -> 4e-4 from step 101 on", true, options->done - i);
    }
    view_eval(m, "sampled", 0, 500, 0.24);
    book_tell(m);
    simulate_pump(&s->feed, m, now_ns);
    return &s->feed;
}
