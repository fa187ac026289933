/* Heartbeats: what processes report about themselves, and which are slow or stuck. */
#include "protocol/run/run_state.h"
#include "protocol/settings/knobs.h"
#include "workers/agent/agent_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"

#define FIRST_SIGN_S 60.0    // for a process to say that it is there; milliseconds are usual
#define GAP_MS 1000          // a turn that took this long: the agent itself was stopped or starved

/* A silence long enough to matter: longer than a few heartbeats, whatever their interval. */
double silence_s(const struct agent *a)
{
    return fmax(a->config.slow_s, 3 * a->config.heartbeat_s);
}

/* slow or stuck: silence and lack of progress are distinguished; a process that waits for another one is not at fault. */
const char *child_verdict(const struct agent *a, const struct child *c)
{
    int64_t now = clock_ms();
    double silent_s = (double)(now - c->heard_ms) / 1000, still_s = (double)(now - MAX(c->progress_ms, c->phase_ms)) / 1000;
    double slow_s = a->config.slow_s, stuck_s = a->config.stuck_s;
    if (!c->pid)
        return "stuck";
    if (silent_s > silence_s(a))
        return "stuck";    // its loop never blocks: a silent process is stopped or starved
    if (c->waits_for[0] || strcmp(c->phase, "waiting") == 0)
        return "ok";
    if (still_s > MAX(stuck_s, 6 * c->longest_s))
        return "stuck";
    return still_s > MAX(slow_s, 3 * c->longest_s) ? "slow" : "ok";
}

void late_tell(const struct agent *a, char *out, size_t size)
{
    int64_t now = clock_ms();
    const struct child *silent = NULL, *busy = NULL;
    out[0] = 0;
    for (int i = 0; i < a->n_child; i++) {
        const struct child *c = &a->child[i];
        if (!c->command || c->exporter)
            continue;
        if ((double)(now - c->heard_ms) > 3000 * a->config.heartbeat_s && (!silent || c->heard_ms < silent->heard_ms))
            silent = c;
        bool waits = c->waits_for[0] || strcmp(c->phase, "waiting") == 0;
        if (strcmp(c->command, "worker") == 0 && !waits && (!busy || c->progress_ms < busy->progress_ms))
            busy = c;
    }
    if (silent)
        snprintf(out, size, "'%s' has given no sign of life for %.1f s", silent->name, (double)(now - silent->heard_ms) / 1000);
    else if (busy)
        snprintf(out, size, "'%s' is not waiting for another process and has been in '%s' for %.1f s", busy->name, busy->phase,
                 (double)(now - busy->phase_ms) / 1000);
}

/* Tests set another one, which need not be waited for. */
static double first_sign_s(void)
{
    const char *s = getenv("RC_TEST_FIRST_SIGN_S");
    return s ? strtod(s, NULL) : FIRST_SIGN_S;
}

/* A process that has never spoken does nothing yet that is worth waiting for: it is named and ended, and started again. */
static void mute_look(struct agent *a, struct child *c, int64_t now)
{
    char text[256];
    double still_s = (double)(now - c->started_ms) / 1000;
    if (c->spoke || still_s < fmax(first_sign_s(), a->config.stuck_s))
        return;
    snprintf(text, sizeof text, "'%s' (pid %d) has given no sign of life in %.0f s since it was started, and is ended", c->name,
             (int)c->pid, still_s);
    log_error("%s", text);
    note_add(a, "alert", "agent", text);
    c->mute = true;
    child_kill(c);
}

/* Kill what has been stuck for restart_stuck_s; children_tick starts it again. Exporters and the keeper have no heartbeat, so
 * nothing is known about them. */
void stuck_tick(struct agent *a)
{
    int64_t now = clock_ms();
    bool gap = a->turned_ms > 0 && now - a->turned_ms > GAP_MS;    // we were the silent one: give every process the time again
    a->turned_ms = now;
    for (int i = 0; i < a->n_child; i++) {
        struct child *c = &a->child[i];
        bool stuck = c->command && !c->exporter && c->pid && !a->over && !a->stop_ms && !gap && strcmp(child_verdict(a, c), "stuck") == 0;
        c->stuck_ms = !stuck ? 0 : c->stuck_ms ? c->stuck_ms : now;
        if (stuck && !c->mute)
            mute_look(a, c, now);
        if (!stuck || a->config.restart_stuck_s <= 0 || (double)(now - c->stuck_ms) < 1000 * a->config.restart_stuck_s)
            continue;
        char text[256];
        snprintf(text, sizeof text, "'%s' (pid %d) has been stuck for %.1f s in '%s' and is restarted", c->name, (int)c->pid,
                 (double)(now - c->stuck_ms) / 1000, c->phase);
        note_add(a, "alert", "agent", text);
        child_kill(c);
        c->stuck_ms = 0;
    }
}

/* What the child reports about itself. */
static void child_heard(struct child *c, const struct msg_in *in, int64_t now)
{
    char phase[32];
    mval_text(in->root, "phase", phase, sizeof phase);
    double progress = mval_f64(mval_get(in->root, "progress"), 0);
    if (strcmp(phase, c->phase) != 0) {
        c->longest_s = 0;
        c->progress_ms = now;
    } else if (progress != c->progress) {
        c->longest_s = fmax(c->longest_s, (double)(now - c->progress_ms) / 1000);
        c->progress_ms = now;
    }
    snprintf(c->phase, sizeof c->phase, "%s", phase);
    mval_text(in->root, "waits_for", c->waits_for, sizeof c->waits_for);
    c->progress = progress;
    c->heard_ms = now;
    c->spoke = true;
    c->start = mval_i64(mval_get(in->root, "start"), 0);
    c->phase_ms = now - (int64_t)(1000 * mval_f64(mval_get(in->root, "phase_s"), 0));
    buf_clear(&c->gauges);
    if (mval_get(in->root, "gauges") || mval_get(in->root, "processes") || mval_get(in->root, "nodes"))
        buf_add(&c->gauges, in->data, in->len);
}

/* The run's state from the controller's heartbeat: the answer to status while the controller is away, and how the agent learns that
 * the run is over. */
static void detail_take(struct agent *a, const struct msg_in *in, int64_t now)
{
    const struct mval *detail = mval_get(in->root, "detail");
    char state[16];
    buf_clear(&a->detail);
    buf_add(&a->detail, in->data, in->len);
    a->detail_ms = now;
    knobs_watch_take(&a->config, mval_get(detail, "knobs"));    // they may have changed since
    control_lock_read(&a->lock, mval_get(detail, "lock"));
    mval_text(detail, "state", state, sizeof state);
    if (!a->over && run_state_is_over(run_state_find(state))) {
        log_info("the run is over: %s", state);
        a->over = true;
        a->ended_ms = now;
    }
}

/* Publish it to the listeners. */
static void heartbeat_publish(struct agent *a, const char *name, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_PUBLISH);
    msg_str(&m, "topic", "process");
    msg_map(&m, "body");
    msg_str(&m, "name", name);
    msg_copy(&m, "phase", mval_get(in->root, "phase"));
    msg_copy(&m, "phase_s", mval_get(in->root, "phase_s"));
    msg_copy(&m, "progress", mval_get(in->root, "progress"));
    msg_copy(&m, "waits_for", mval_get(in->root, "waits_for"));
    if (mval_get(in->root, "gauges"))
        msg_copy(&m, "gauges", mval_get(in->root, "gauges"));
    msg_end(&m);
    if (msg_finish(&m, &err))
        telemetry_send(a, "process", m.buf.data, m.buf.len);
    msg_release(&m);
}

void heartbeat_came(struct agent *a, struct request *r, const struct msg_in *in)
{
    char name[64];
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    int64_t now = clock_ms();
    pid_t pid = (pid_t)mval_i64(mval_get(in->root, "pid"), 0);
    struct child *c = child_find(a, mval_text(in->root, "name", name, sizeof name));
    bool stop = !c || a->stop_ms;
    if (c && c->pid != pid) {
        if (c->pid == 0)
            child_watch(c, pid);    // from before we started
        else
            stop = true;    // its place has been taken
    }
    if (c && c->pid == pid) {
        child_heard(c, in, now);
        if (mval_get(in->root, "detail"))
            detail_take(a, in, now);
    }
    heartbeat_publish(a, name, in);
    msg_begin(&m, MSG_OK);    // last, since the answer frees the request's bytes
    msg_str(&m, "order", stop ? "stop" : "go");
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    msg_release(&m);
}
