/* watch.c - see watch.h */
#include "console/batch/watch.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "console/batch/plain.h"
#include "console/fleet/doctor.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"

#define BOUND_TOLD_NS ((int64_t)60 * 1000000000)    // between sentences on what bounds the run: two things may be about equal

struct watch {
    struct batch *batch;
    int64_t next;                          // the first step not printed; -1: not known yet
    struct eval_view eval[MODEL_EVALS];    // (n_eval) the last of each set, as printed
    int n_eval;
    int64_t event;     // the last one printed or skipped
    double since_s;    // when we started, seconds since 1970
    bool met;          // the run's state at our start has been printed
    enum link_state link;
    int64_t until_step;        // leave with this one; -1: none
    const char *until_kind;    // leave with an event of this kind; NULL: none
    bool reached;
    const char *says;    // name of the diagnosis told last; NULL: none
    int64_t says_ns;     // when it was told
    char said[280];      // its text
};

/* The time left where max_hours is set: the run itself says it. NAN: there is no such limit. */
static double limit_left(const struct run_view *m)
{
    struct error none;
    const struct knob *k = knob_find("max_hours", &none);
    return k && strtod(m->knob[k - knobs].text, NULL) > 0 ? m->left_s : NAN;
}

static void step_tell(struct watch *w, const struct run_view *m, int64_t step)
{
    struct batch_metric metric[METRIC_N + MODEL_EXTRA];
    int n = 0;
    for (int i = 0; i < METRIC_N; i++)
        if (!isnan(series_at(&m->metric[i], step)))
            metric[n++] = (struct batch_metric){ metrics[i].name, series_at(&m->metric[i], step) };
    for (int i = 0; i < m->n_extra; i++)
        if (!isnan(series_at(&m->extra[i].series, step)))
            metric[n++] = (struct batch_metric){ m->extra[i].name, series_at(&m->extra[i].series, step) };
    if (n > 0) {
        batch_ends_in(w->batch, limit_left(m));
        batch_step(w->batch, step, m->max_steps, metric, n);
    }
}

/* Print the steps before `end` that have arrived and are not printed yet. */
static void steps_tell(struct watch *w, const struct run_view *m, int64_t end)
{
    for (; w->next < MIN(end, m->n_step); w->next++)
        step_tell(w, m, w->next);
}

/* Only once: the last evaluation at our start comes with the status, and perhaps again as an event. */
static void eval_tell(struct watch *w, const struct eval_view *e)
{
    struct eval_view *told = NULL;
    for (int i = 0; i < w->n_eval && !told; i++)
        if (strcmp(w->eval[i].set, e->set) == 0)
            told = &w->eval[i];
    if (told && told->step == e->step && told->mean == e->mean)
        return;
    if (!told && w->n_eval < MODEL_EVALS)
        told = &w->eval[w->n_eval++];
    if (told)
        *told = *e;
    batch_eval(w->batch, e->step, e->set, e->n, e->mean);
}

/* Print events since our start, each after the step that it followed; steps and evaluations cover what was before. The first list
 * may come late, so the time decides. */
static void events_tell(struct watch *w, const struct run_view *m)
{
    int64_t n = 0;
    const struct event_view *e;
    while ((e = view_event_at(m, n)) && e->id > w->event)
        n++;
    for (; n > 0; n--) {
        e = view_event_at(m, n - 1);
        w->event = e->id;
        if (e->time_s < w->since_s)
            continue;
        steps_tell(w, m, e->step + 1);
        w->reached = w->reached || (w->until_kind && strcmp(e->kind, w->until_kind) == 0);
        if (e->eval.set[0])
            eval_tell(w, &e->eval);
        else
            batch_event(w->batch, &(struct batch_event){ e->step, e->kind, e->who, e->text, e->detail });
    }
}

/* The run's state at our start, after the steps before it. */
static void first_tell(struct watch *w, const struct run_view *m)
{
    char note[320];
    w->next = w->next < 0 ? MAX(m->step, 1) : w->next;
    if (!run_state_is_over(m->state))
        batch_joins(w->batch, m->elapsed_s, m->step_s);
    steps_tell(w, m, m->step + 1);
    for (int i = 0; i < m->n_eval; i++)
        eval_tell(w, &m->eval[i]);
    if (!run_state_is_over(m->state)) {
        snprintf(note, sizeof(note), "state: %s%s%s", run_state_name(m->state), m->reason[0] ? ": " : "", m->reason);
        batch_note(w->batch, note);
    }
    w->met = true;
}

/* Do the two differ in their figures only? */
static bool same_words(const char *a, const char *b)
{
    static const char figures[] = "0123456789.,";
    while (*a || *b) {
        a += strspn(a, figures);
        b += strspn(b, figures);
        if (*a != *b)
            return false;
        if (*a)
            a++, b++;
    }
    return true;
}

static void news_tell(struct watch *w, const struct run_view *m)
{
    bool whole = m->ended || (m->told_ns != 0 && view_steps_whole(m));    // otherwise steps that precede events are still on their way
    if (!w->met && !whole)
        return;
    if (!w->met)
        first_tell(w, m);
    if (m->n_step < w->next)
        w->next = MAX(m->n_step, 0);    // the run went back to a checkpoint: these are printed again
    if (whole)
        events_tell(w, m);
    steps_tell(w, m, m->n_step);
    if (m->link != w->link && m->link == LINK_LOST)
        batch_note(w->batch, m->link_text);
    w->link = m->link;
    w->reached = w->reached || (w->until_step >= 0 && w->next > w->until_step);
}

/* What bounds the run, when it is another thing than before; what is wrong, at once. */
static void doctor_tell(struct watch *w, const struct run_view *m, int64_t now_ns)
{
    struct diagnosis d = doctor_say(m, now_ns);
    if (!w->met || d.kind == DIAGNOSIS_NONE || d.name == NULL)
        return;
    bool other = !w->says || strcmp(d.name, w->says) != 0, soon = w->says && now_ns - w->says_ns < BOUND_TOLD_NS;
    bool news = d.kind == DIAGNOSIS_BOUND ? other && !soon : other || !same_words(d.text, w->said);
    if (!news)
        return;
    batch_doctor(w->batch, m->step, diagnosis_kind_name(d.kind), d.text, d.remedy);
    w->says = d.name;
    w->says_ns = now_ns;
    memcpy(w->said, d.text, sizeof(w->said));
}

/* Kinds of events that can be waited for. */
static const char *const until_kinds[] = { "alarm", "alert", "checkpoint", "command", "eval", "knob", "return", "state" };

static bool until_step(const char *until, int64_t *step)
{
    return strncmp(until, "step=", 5) == 0 && parse_i64(until + 5, step) && *step >= 0;
}

bool watch_until_check(const char *until, struct error *err)
{
    int64_t step;
    for (size_t i = 0; i < ARRAY_SIZE(until_kinds); i++)
        if (strcmp(until, until_kinds[i]) == 0)
            return true;
    return until_step(until, &step)
           || error_set(err, ERR_USAGE,
                        "--until does not know '%.40s'; it is step=N, alarm, alert, checkpoint, command, eval, knob, return or state",
                        until);
}

bool batch_watch(struct feed *feed, struct run_view *m, const struct batch_config *config, const struct watch_options *options,
                 struct error *err)
{
    struct watch w = { .next = options->from, .since_s = clock_wall_s(), .until_step = -1 };
    if (options->until && !until_step(options->until, &w.until_step))
        w.until_kind = options->until;
    if (m->ended) {    // nothing more will come: print the whole run
        w.next = options->once ? options->from : MAX(options->from, 0);
        w.since_s = 0;
    }
    struct plain plain = { .feed = feed, .model = m, .out = config->out };
    bool ok = false, signalled = false;
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    int signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    w.batch = batch_new(config, err);
    if (!w.batch)
        goto out;
    if (signal_fd < 0) {
        error_errno(err, "cannot receive signals");
        goto out;
    }
    for (;;) {
        int64_t now = clock_ns(), wait = (feed->due_ns(feed) - now + 999999) / 1000000;
        struct pollfd fds[3] = { { .fd = signal_fd, .events = POLLIN },
                                 { .fd = feed->fd, .events = POLLIN },
                                 { .fd = options->plain ? STDIN_FILENO : -1, .events = POLLIN } };
        if (poll(fds, ARRAY_SIZE(fds), (int)MIN(MAX(wait, 0), 1000)) < 0 && errno != EINTR) {
            error_errno(err, "cannot wait for news");
            goto out;
        }
        now = clock_ns();
        signalled = fds[0].revents != 0;
        if (fds[1].revents || now >= feed->due_ns(feed))
            feed->pump(feed, m, now);
        news_tell(&w, m);
        doctor_tell(&w, m, now);
        if (options->plain) {
            if (fds[2].revents && w.met)    // not before it is known how the run stands
                plain_read(&plain, STDIN_FILENO, now);
            plain_answers(&plain);
        }
        if (signalled || plain.quit || batch_broken(w.batch) || (m->ended && !options->plain) || w.reached || (options->once && w.met))
            break;
    }
    struct diagnosis last = doctor_summary(m);
    if (last.text[0])
        batch_bound(w.batch, last.text);
    for (int i = 0; i < m->n_eval; i++)    // the table begins where the run did, whenever we came
        batch_eval_began(w.batch, m->eval[i].set, m->eval[i].first_mean);
    const char *left = w.reached ? "what was waited for has come; the run goes on" : "the run continues";
    if (options->until && !w.reached && run_state_is_over(m->state) && !signalled)
        ok = error_set(err, ERR_NOT_FOUND, "the run is over, and '%.40s' has not come", options->until);
    else if (run_state_is_over(m->state))
        ok = batch_end(w.batch, m->state, m->step, m->reason, err);
    else
        ok = batch_end(w.batch, m->state, m->step, signalled ? "this console was interrupted; the run continues" : left, err)
             && (!signalled || error_set(err, ERR_STOPPED, "this console was interrupted; the run continues"));
out:
    batch_free(w.batch);
    if (signal_fd >= 0)
        close(signal_fd);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}
