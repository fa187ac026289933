/* train --batch: prints the journal's new entries; a signal to this command stops the run. */
#include "console/train/train_parts.h"
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "console/batch/batch.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/record/journal.h"
#include "protocol/record/settings_kept.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/run_state.h"
#include "protocol/run/spawn.h"
#include "protocol/wire/transport.h"

#define END_LIMIT_S 60       // time from the run's last event until its processes are gone
#define STOP_LIMIT_S 3600    // limit of the stop that a signal asks for

struct watch {
    struct train *train;
    struct journal *journal;
    struct batch *batch;
    struct watch_seen seen;
    struct run_config now;    // the run's settings, with what commands have changed
    double until_s;           // later events are not printed yet
    enum run_state state;
    char reason[1024];
    struct transport *transport;
    struct peer *agent;
    bool stop_open, stop_sent;
};

static volatile sig_atomic_t n_signal, first_signal;    // a signal handler has no argument to carry state

static void on_signal(int sig)
{
    if (n_signal == 0)
        first_signal = sig;
    n_signal = n_signal + 1;
}

/* What asked the run to stop: the operator's key, another process, or an output that can no longer be written. */
static const char *stop_cause(void)
{
    switch (first_signal) {
    case SIGINT: return "Ctrl-C in train --batch (SIGINT)";
    case SIGTERM: return "SIGTERM to train --batch";
    case SIGHUP: return "train --batch, whose terminal was closed (SIGHUP)";
    default: return "train --batch, whose output can no longer be written";
    }
}

void train_watch_signals(void)
{
    struct sigaction sa = { .sa_handler = on_signal };
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
}

/* Evaluations printed by an earlier start: the table at the end begins with the first of them. */
static bool eval_known(void *arg, const struct journal_eval *e)
{
    batch_eval_known(((struct watch *)arg)->batch, e->set, e->n, e->mean);
    return true;
}

static void eval_told(struct watch *w, const struct journal_event *e)
{
    json_t *detail = json_str_read(e->detail, 0, NULL);
    const char *set = json_string_value(json_object_get(detail, "set"));
    json_t *mean = json_object_get(detail, "mean");
    if (set)
        batch_eval(w->batch, json_integer_value(json_object_get(detail, "step")), set, json_integer_value(json_object_get(detail, "n")),
                   mean ? json_number_value(mean) : NAN);
    json_decref(detail);
}

static bool event_told(void *arg, const struct journal_event *e)
{
    struct watch *w = arg;
    if (e->wall_s > w->until_s)
        return false;
    w->seen.event_seq = e->seq;
    if (strcmp(e->kind, "state") == 0)
        w->state = run_state_read(e->detail, strlen(e->detail), w->reason, sizeof w->reason);
    if (w->batch && strcmp(e->kind, "eval") == 0)
        eval_told(w, e);
    else if (w->batch)
        batch_event(w->batch, &(struct batch_event){ e->step, e->kind, e->who, e->text, e->detail });
    return true;
}

/* Print the events up to until_s (seconds since 1970). */
static bool events_tell(struct watch *w, double until_s, struct error *err)
{
    w->until_s = until_s;
    return journal_events_read(w->journal, w->seen.event_seq, NULL, event_told, w, err);
}

/* Seconds until max_hours are over, by what the journal has of the time used; NAN: there is no such limit, or nothing is known. */
static double limit_left(const struct watch *w)
{
    struct buf used = BUF_INIT;
    struct error none;
    bool found = false;
    int64_t used_ms = 0;
    bool known = w->now.max_hours > 0 && journal_value_get(w->journal, "used_ms", &used, &found, &none) && found
                 && parse_i64(buf_text(&used), &used_ms);
    buf_release(&used);
    return known ? fmax(3600 * w->now.max_hours - (double)used_ms / 1000, 0) : NAN;
}

/* The run's last step under the settings of now. */
static int64_t last_step(const struct watch *w)
{
    struct run_plan plan;
    struct error none;
    return run_plan_make(&plan, &w->now, w->train->n_row, &none) ? plan.total_steps : w->train->plan.total_steps;
}

static bool step_told(void *arg, const struct journal_step *s)
{
    struct watch *w = arg;
    struct batch_metric metric[128];
    int n = MIN(s->n, (int)ARRAY_SIZE(metric));
    struct error why;
    if (!events_tell(w, s->wall_s, &why))    // first the events before this step; a failure is reported when the rest is read
        return false;
    w->seen.step_seq = s->seq;
    w->seen.last_step = s->step;
    if (!w->batch)
        return true;
    for (int i = 0; i < n; i++)
        metric[i] = (struct batch_metric){ s->metric[i].name, s->metric[i].value };
    batch_ends_in(w->batch, limit_left(w));
    batch_step(w->batch, s->step, last_step(w), metric, n);
    return true;
}

/* Print everything in the journal that has not been printed. */
static bool journal_look(struct watch *w, struct error *err)
{
    char path[PATH_MAX];
    if (!w->journal) {
        if (!path_join(path, sizeof path, w->train->run_dir, "journal.db") || !path_exists(path))
            return true;
        struct error why;
        if (!(w->journal = journal_open_reader(w->train->run_dir, &why)))
            return true;    // it is just being made
    }
    return settings_now(&w->now, &w->train->config, w->journal, w->train->run_dir, err)
           && journal_steps_read(w->journal, w->seen.step_seq, step_told, w, err) && events_tell(w, INFINITY, err);
}

bool train_watch_skip(struct train *t, struct watch_seen *seen, struct error *err)
{
    struct watch w = { .train = t };
    bool ok = journal_look(&w, err);
    journal_close(w.journal);
    *seen = w.seen;
    return ok;
}

/* The first signal asks the run to stop, the second ends it at once. */
static bool signals_look(struct watch *w, struct error *err)
{
    struct net_event ev;
    if (n_signal >= 2) {
        run_kill(w->train->run_dir);
        w->state = RUN_STOPPED;
        snprintf(w->reason, sizeof w->reason, "stopped at once by a second signal; the last checkpoint is valid");
        return true;
    }
    if (n_signal >= 1 && !w->stop_open && !run_state_is_over(w->state)) {
        struct msg_out m = MSG_OUT_INIT;
        char id[64];
        if (!w->stop_sent)
            fprintf(stderr, "stopping after this step is finished and saved; a second signal ends everything at once\n");
        snprintf(id, sizeof id, "train-signal-%d", (int)getpid());
        msg_begin(&m, MSG_COMMAND);
        msg_str(&m, "id", id);
        msg_str(&m, "command", "stop");
        msg_str(&m, "who", stop_cause());
        msg_f64(&m, "limit_s", STOP_LIMIT_S);
        msg_bool(&m, "force", true);    // whoever started the run may end it, whoever has its control
        bool ok = msg_finish(&m, err) && peer_ask(w->agent, &m, STOP_LIMIT_S * 1000, 1, err);
        msg_release(&m);
        w->stop_open = w->stop_sent = ok;
        if (!ok)
            return false;
    }
    while (transport_next(w->transport, &ev)) {
        if (ev.kind == NET_ANSWER && ev.failed)
            w->stop_open = false;    // the agent has restarted: send it again, with the same id
        net_event_release(&ev);
    }
    return true;
}

/* Is the disk of the run's directory no longer writable? err: why, and where. */
static bool disk_refuses(const char *run_dir, struct error *err)
{
    char path[PATH_MAX];
    if (!path_join(path, sizeof path, run_dir, "sock/probe"))
        return false;
    if (file_write(path, "", 0, err)) {
        unlink(path);
        return false;
    }
    return error_wrap(err, "the disk of '%s' cannot be written to any more", run_dir) || true;
}

static void failure_read(struct watch *w)
{
    if (run_failure_read(w->train->run_dir, w->reason, sizeof w->reason))
        w->state = RUN_FAILED;
}

bool train_watch(struct train *t, const struct watch_seen *seen, struct error *err)
{
    struct watch w = { .train = t, .seen = *seen };
    char path[PATH_MAX];
    bool ok = false;
    struct batch_config config = { .out = stdout, .run = t->config.name };
    if (!batch_format_parse(t->format, &config.format, err))
        return false;
    config.interval_s = t->interval_s >= 0 ? t->interval_s : config.format == BATCH_TEXT ? 1 : 0;
    TRY(w.batch = batch_new(&config, err));
    TRY(path_join(path, sizeof path, t->run_dir, "sock"));
    TRY(w.transport = transport_new(path, false, err));
    TRY(w.agent = peer_new(w.transport, "agent", err));
    if (seen->event_seq > 0) {    // resumed
        struct journal *j = journal_open_reader(t->run_dir, err);
        bool read = j && journal_evals_read(j, eval_known, &w, err);
        journal_close(j);
        TRY(read);
    }
    struct error why;
    int64_t ended_ms = 0;
    for (bool live = true; live;) {
        live = run_is_live(t->run_dir);    // set before reading: everything written until then is seen
        TRY(signals_look(&w, err));
        if (!journal_look(&w, err)) {
            error_wrap(err, "while reading the journal of '%s'", t->run_dir);
            goto out;
        }
        if (batch_broken(w.batch))
            n_signal = MAX(n_signal, 1);    // the reader of the output has gone: treat it as a signal
        if (run_state_is_over(w.state) && !ended_ms)
            ended_ms = clock_ms();
        if (ended_ms && clock_ms() - ended_ms > END_LIMIT_S * 1000) {
            fprintf(stderr, "processes of the run have not ended in %d s; they are killed\n", END_LIMIT_S);
            run_kill(t->run_dir);
        }
        struct pollfd fd = { .fd = transport_fd(w.transport), .events = POLLIN };
        if (live)
            poll(&fd, 1, ended_ms ? 20 : 100);
    }
    if (!run_state_is_over(w.state))
        failure_read(&w);
    if (!run_state_is_over(w.state) && disk_refuses(t->run_dir, &why)) {    // there was no space to record the reason
        w.state = RUN_FAILED;
        snprintf(w.reason, sizeof w.reason, "%.600s; when that is fixed, continue with 'rollcall train --resume %.300s'", why.text,
                 t->run_dir);
    }
    if (!run_state_is_over(w.state)) {
        w.state = RUN_FAILED;
        snprintf(w.reason, sizeof w.reason, "all processes of the run ended before it did; continue with 'rollcall train --resume %.800s'",
                 t->run_dir);
    }
    if (w.journal && !journal_last_step(w.journal, &w.seen.last_step, err))    // the run may have gone back from a step that was printed
        goto out;
    ok = batch_end(w.batch, w.state, w.seen.last_step, w.reason, err);
    fflush(stdout);
    exporters_wait(t->run_dir);
out:
    journal_close(w.journal);
    transport_free(w.transport);
    batch_free(w.batch);
    return ok;
}
