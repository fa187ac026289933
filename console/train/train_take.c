/* Can the run that is to be resumed be started, is it already going, or is it still ending?
 *
 * The lock says whether any of its processes is alive. If the run has a leader (a keeper or an agent is alive, and the agent says
 * that the run is not over), attach to it. Otherwise its processes end by themselves: orphans when no agent has answered them for a
 * while, those of a finished run when their agent ends them. So they are waited for, through their process descriptors. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "console/train/train_parts.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/run/run_lock.h"
#include "protocol/run/run_state.h"
#include "protocol/run/spawn.h"
#include "protocol/wire/transport.h"

#define TAKE_LIMIT_S 60    // an orphan ends after 10 s, and an agent kills what has not ended 20 s after a run's end
#define ASK_MS 2000        // time for the agent's answer
#define LOOK_MS 200        // between two checks when there is no descriptor to wait for
#define SET_LIMIT_S 60     // time for settings to take effect in a run that is going

enum stand {
    STAND_GOES_ON,
    STAND_UNKNOWN,
    STAND_OVER,
};

/* What the run's agent says; STAND_UNKNOWN: it does not answer, or has not heard from a controller yet. */
static enum stand stand_ask(struct peer *agent)
{
    struct error err;
    struct msg_in in;
    struct net_event ev;
    struct msg_out m = MSG_OUT_INIT;
    enum stand stand = STAND_UNKNOWN;
    char state[32];
    msg_begin(&m, MSG_STATUS);
    msg_bool(&m, "fresh", true);    // the cached answer may be from before the end
    if (msg_finish(&m, &err) && peer_call(agent, MSG_STATUS, &m, ASK_MS, &in, &ev, &err)) {
        mval_text(in.root, "state", state, sizeof state);
        enum run_state s = run_state_find(state);
        if (s == RUN_STOPPING || run_state_is_over(s) || mval_get(in.root, "failure"))
            stand = STAND_OVER;
        else if (mval_get(in.root, "incarnation"))    // a controller started by this agent has reported it
            stand = STAND_GOES_ON;
        msg_in_release(&in);
        net_event_release(&ev);
    }
    msg_release(&m);
    return stand;
}

/* The given settings that may change during the run, as a command; any: are there some? Others must have their current values. */
static bool settings_command(const struct train *t, const struct run_config *before, struct msg_out *m, bool *any, struct error *err)
{
    uint64_t id[2];
    char text[64];
    struct buf was = BUF_INIT, is = BUF_INIT;
    bool ok = true;
    *any = false;
    if (getrandom(id, sizeof id, 0) != sizeof id)
        return error_errno(err, "cannot get a random number");
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, id[0], id[1]);
    msg_begin(m, MSG_COMMAND);
    msg_str(m, "id", text);
    msg_str(m, "command", "set");
    msg_str(m, "who", "train --resume");
    msg_f64(m, "limit_s", SET_LIMIT_S);
    msg_map(m, "args");
    msg_map(m, "values");
    for (int i = 0; ok && i < n_knobs; i++) {
        if (!t->value[i])
            continue;
        const char *now = knob_text(&knobs[i], &t->config, &is), *then = knob_text(&knobs[i], before, &was);
        if (knob_is_live(&knobs[i])) {
            msg_str(m, knobs[i].name, now);
            *any = true;
        } else if (strcmp(now, then) != 0) {
            ok = error_set(err, ERR_EXISTS,
                           "the run '%s' is still going, with '%s' %s; stop it ('rollcall ctl --run %s stop') to resume it with %s",
                           t->run_dir, knobs[i].name, then, t->run_dir, now);
        }
    }
    msg_end(m);
    msg_end(m);
    buf_release(&was);
    buf_release(&is);
    return ok && msg_finish(m, err);
}

/* Attach to the run that is going. On failure it may have ended meanwhile; lost: it is unknown whether the settings were set. */
static bool attach(struct train *t, struct peer *agent, const struct msg_out *set, bool any, bool *lost, struct error *err)
{
    struct msg_in in;
    struct net_event ev;
    *lost = false;
    if (any) {
        if (!peer_call(agent, MSG_COMMAND, set, (SET_LIMIT_S + 5) * 1000, &in, &ev, err)) {
            *lost = ev.failed;
            return false;
        }
        msg_in_release(&in);
        net_event_release(&ev);
    }
    t->attached = true;
    fprintf(stderr, "note: the run '%s' is already going; attaching to it\n", t->run_dir);
    return true;
}

/* Wait until one of the run's processes has ended, but only for a moment, since others may start. Says once which are waited for. */
static void end_wait(const char *run_dir, bool *told)
{
    struct run_process p[RUN_PROCESSES_MAX];
    struct pollfd fd[RUN_PROCESSES_MAX];
    nfds_t n_fd = 0;
    int n = run_processes(run_dir, p, RUN_PROCESSES_MAX);
    for (int i = 0; i < n; i++) {
        if (strncmp(p[i].name, "export ", 7) == 0)    // does not hold the run's lock, and may run for long
            continue;
        int pidfd = (int)syscall(SYS_pidfd_open, p[i].pid, 0);
        if (pidfd >= 0)
            fd[n_fd++] = (struct pollfd){ .fd = pidfd, .events = POLLIN };
        if (!*told)
            fprintf(stderr, "%s'%s' (pid %d)", n_fd > 1 ? ", " : "waiting for what is left of the run to end: ", p[i].name, (int)p[i].pid);
    }
    if (n_fd > 0 && !*told) {
        fprintf(stderr, "\n");
        *told = true;
    }
    poll(fd, n_fd, LOOK_MS);
    for (nfds_t i = 0; i < n_fd; i++)
        close(fd[i].fd);
}

static void late_name(const char *run_dir, struct error *err)
{
    struct run_process p[RUN_PROCESSES_MAX];
    int n = run_processes(run_dir, p, RUN_PROCESSES_MAX), i = 0;
    while (i < n && strncmp(p[i].name, "export ", 7) == 0)
        i++;
    if (i < n)
        error_set(err, ERR_EXISTS,
                  "the run '%s' cannot be resumed: its process '%s' (pid %d) has neither ended nor answered in %d s; "
                  "kill it and resume again",
                  run_dir, p[i].name, (int)p[i].pid, TAKE_LIMIT_S);
    else
        error_set(err, ERR_EXISTS, "the run '%s' cannot be resumed: another process has held its lock for %d s", run_dir, TAKE_LIMIT_S);
}

bool train_take(struct train *t, const struct run_config *before, struct error *err)
{
    char sock[PATH_MAX];
    struct error why;
    struct transport *net = NULL;
    struct peer *agent = NULL;
    struct msg_out set = MSG_OUT_INIT;
    bool ok = false, told = false, any = false;
    int64_t until = clock_ms() + TAKE_LIMIT_S * 1000;
    if ((t->lock_fd = run_lock_take(t->run_dir, err)) >= 0)    // the usual case
        return true;
    if (err->code != ERR_EXISTS)
        return false;
    TRY(path_join(sock, sizeof sock, t->run_dir, "sock") || error_set(err, ERR_USAGE, "the path '%s' is too long", t->run_dir));
    while (!ok && (t->lock_fd = run_lock_take(t->run_dir, err)) < 0) {
        if (err->code != ERR_EXISTS)
            goto out;
        bool led = process_find(t->run_dir, "agent") > 0;
        if (led && !net && (net = transport_new(sock, false, &why)))    // the folder may just be being made
            agent = peer_new(net, "agent", &why);
        enum stand stand = led && agent ? stand_ask(agent) : STAND_UNKNOWN;
        if (stand == STAND_GOES_ON) {
            if (set.buf.len == 0)    // made once: a repeated request is the same command
                TRY(settings_command(t, before, &set, &any, err));
            bool lost;
            ok = attach(t, agent, &set, any, &lost, err);
            bool again = ok || lost || stand_ask(agent) == STAND_OVER;
            if (!ok && (!again || clock_ms() > until))
                goto out;
        } else if (clock_ms() > until) {
            late_name(t->run_dir, err);
            goto out;
        }
        if (!ok && stand != STAND_GOES_ON)
            end_wait(t->run_dir, &told);
    }
    ok = true;
out:
    msg_release(&set);
    transport_free(net);
    return ok;
}
