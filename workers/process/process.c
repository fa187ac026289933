#include "workers/process/process.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/run/spawn.h"

#define TAG_BEAT (UINT64_MAX - 1)
#define BEAT_LIMIT_MS 2000    // wait for the agent's answer; with a fast pace, a lost answer must not delay the next beats

/* A signal handler has no argument to carry state. */
static volatile sig_atomic_t signalled, signal_fd = -1;    // signal_fd: made readable, so that a wait that is just beginning ends

static void on_signal(int sig)
{
    uint64_t one = 1;
    int before = errno;
    signalled = sig;
    if (signal_fd >= 0) {
        ssize_t n = write(signal_fd, &one, sizeof one);
        (void)n;
    }
    errno = before;
}

/* We inherited the run's lock; processes that we start (sandboxes, reward programs) must not hold it. */
static void lock_hide(const char *run_dir)
{
    char path[4200];
    struct stat ours, lock;
    snprintf(path, sizeof path, "%s/lock", run_dir);
    if (fstat(RUN_LOCK_FD, &ours) == 0 && stat(path, &lock) == 0 && ours.st_ino == lock.st_ino && ours.st_dev == lock.st_dev)
        fcntl(RUN_LOCK_FD, F_SETFD, FD_CLOEXEC);
}

bool process_init(struct process *p, const char *run_dir, const char *name, struct error *err)
{
    char dir[4200];
    struct sigaction sa = { .sa_handler = on_signal };
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    memset(p, 0, sizeof *p);
    snprintf(p->run_dir, sizeof p->run_dir, "%s", run_dir);
    snprintf(p->name, sizeof p->name, "%s", name);
    snprintf(dir, sizeof dir, "%s/sock", run_dir);
    if (getrandom(&p->start, sizeof p->start, 0) != sizeof p->start)
        return error_errno(err, "cannot get a random number");
    p->start &= INT64_MAX;
    p->pace_ms = HEARTBEAT_MS;
    p->heard_ms = p->looked_ms = p->phase_ms = clock_ms();
    snprintf(p->phase, sizeof p->phase, "starting");
    lock_hide(run_dir);
    if (!process_note(run_dir, name, err))
        return false;
    hold_point("starting");
    p->transport = transport_new(dir, false, err);
    if (!p->transport)
        return false;
    signal_fd = transport_fd(p->transport);
    p->agent = peer_new(p->transport, "agent", err);
    if (!p->agent) {
        process_release(p);
        return false;
    }
    return true;
}

static void word_print(FILE *f, const char *text)
{
    for (; *text; text++)
        fputc(*text == ' ' ? '_' : *text, f);
}

static void profile_note(struct process *p, const char *what, const char *phase)
{
    if (!p->profile || !phase[0])
        return;
    fprintf(p->profile, "%.6f ", clock_wall_s());
    word_print(p->profile, p->name);
    fprintf(p->profile, " %d:: %s ", (int)getpid(), what);
    word_print(p->profile, phase);
    fputc('\n', p->profile);
    fflush(p->profile);    // whole lines, also of a process that is killed
}

void process_release(struct process *p)
{
    signal_fd = -1;
    profile_note(p, "Exit", p->phase);
    if (p->profile)
        fclose(p->profile);
    p->profile = NULL;
    transport_free(p->transport);
    p->transport = NULL;
    p->agent = NULL;
}

void process_pace(struct process *p, double heartbeat_s)
{
    p->pace_ms = MAX((int64_t)(1000 * heartbeat_s), (int64_t)10);
}

bool process_profile(struct process *p, struct error *err)
{
    char path[4300], file[80];
    snprintf(file, sizeof file, "%s", p->name);
    for (char *c = file; *c; c++)
        *c = *c == ' ' || *c == ':' || *c == '/' ? '-' : *c;
    snprintf(path, sizeof path, "%s/logs/%s.prof", p->run_dir, file);
    if (!(p->profile = file_create_stream(path, true, err)))
        return false;
    profile_note(p, "Enter", p->phase);
    return true;
}

void process_phase(struct process *p, const char *phase, const char *waits_for)
{
    if (strcmp(p->phase, phase) == 0 && strcmp(p->waits_for, waits_for) == 0)
        return;
    if (strcmp(p->phase, phase) != 0) {
        p->phase_ms = clock_ms();
        profile_note(p, "Exit", p->phase);
        profile_note(p, "Enter", phase);
    }
    snprintf(p->phase, sizeof p->phase, "%s", phase);
    snprintf(p->waits_for, sizeof p->waits_for, "%s", waits_for);
    p->beat_ms = MIN(p->beat_ms, clock_ms() - p->pace_ms + 50);    // soon, but a burst of changes makes one beat
}

static void beat_send(struct process *p)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_HEARTBEAT);
    msg_str(&m, "name", p->name);
    msg_i64(&m, "pid", getpid());
    msg_i64(&m, "start", p->start);
    msg_str(&m, "phase", p->phase);
    msg_f64(&m, "phase_s", (double)(clock_ms() - p->phase_ms) / 1000);
    msg_f64(&m, "progress", p->progress);
    msg_str(&m, "waits_for", p->waits_for);
    if (p->gauges) {
        msg_map(&m, "gauges");
        p->gauges(p->ctx, &m);
        msg_end(&m);
    }
    if (p->nodes)
        p->nodes(p->ctx, &m);
    if (p->detail) {
        msg_map(&m, "detail");
        p->detail(p->ctx, &m);
        msg_end(&m);
    }
    if (msg_finish(&m, &err) && peer_ask(p->agent, &m, BEAT_LIMIT_MS, TAG_BEAT, &err))
        p->beat_open = true;
    else
        log_warn("no heartbeat sent: %s", err.text);
    msg_release(&m);
}

static void beat_heard(struct process *p, const struct net_event *ev)
{
    struct msg_in in;
    struct error err;
    char order[16];
    p->beat_open = false;
    if (ev->failed) {
        p->beat_ms = clock_ms() - p->pace_ms + 200;
        return;
    }
    p->heard_ms = clock_ms();
    if (!msg_read_answer(&in, MSG_HEARTBEAT, ev->data, ev->len, &err)) {
        log_warn("the agent's answer: %s", err.text);
        return;
    }
    if (strcmp(mval_text(in.root, "order", order, sizeof order), "stop") == 0 && !p->stop_ordered) {
        log_info("the agent orders a stop");
        p->stop_ordered = true;
    }
    msg_in_release(&in);
}

static void process_tick(struct process *p)
{
    int64_t now = clock_ms();
    if (now - p->looked_ms > 3000)    // later than planned: we were stopped or starved ourselves, so give the agent the time again
        p->heard_ms = now;
    p->looked_ms = now;
    if (!p->beat_open && now - p->beat_ms >= p->pace_ms) {
        p->beat_ms = now;
        beat_send(p);
    }
    if (now - p->heard_ms > ORPHAN_S * 1000 && !p->stop_ordered) {
        log_error("no agent has answered for %d s; ending", ORPHAN_S);
        _exit(1);    // without closing sockets: their files may belong to a successor by now
    }
}

/* When the next heartbeat is due; INT64_MAX: when the last one has been answered. */
static int64_t beat_due(const struct process *p)
{
    return p->beat_open ? INT64_MAX : p->beat_ms + p->pace_ms;
}

int64_t process_pause_ms(const struct process *p, int64_t due_ms)
{
    int64_t now = clock_ms();
    return MAX(MIN(MIN(due_ms, beat_due(p)), now + p->pace_ms) - now, (int64_t)0);
}

bool process_wait(struct process *p, struct net_event *ev, int64_t timeout_ms)
{
    int64_t end = clock_ms() + timeout_ms;
    for (;;) {
        process_tick(p);
        while (transport_next(p->transport, ev)) {
            if (ev->kind != NET_ANSWER || ev->peer != p->agent || ev->tag != TAG_BEAT)
                return true;
            beat_heard(p, ev);
            net_event_release(ev);
        }
        int64_t now = clock_ms();
        if (now >= end || transport_woken(p->transport) || process_is_over(p))
            return false;
        int64_t due = MIN(MIN(end, beat_due(p)), MIN(transport_due(p->transport), p->heard_ms + ORPHAN_S * 1000 + 1));
        struct pollfd fd = { .fd = transport_fd(p->transport), .events = POLLIN };
        p->looked_ms = MAX(now, due);
        if (poll(&fd, 1, (int)MAX(due - now, (int64_t)0)) == 0 && clock_ms() >= end)
            return false;    // the owner's turn comes before a heartbeat that is due at the same time
    }
}

void process_wake(struct process *p)
{
    transport_wake(p->transport);
}

bool process_is_over(const struct process *p)
{
    return p->stop_ordered || signalled;
}

bool process_args(int argc, char **argv, const char *command, const char **run_dir, const char **name, struct error *err)
{
    struct cli_option options[] = {
        { "run", NULL, CLI_STR, run_dir, "DIR", "the run's directory" },
        { "name", NULL, CLI_STR, name, "NAME", "the process's name" },
    };
    struct cli cli = {
        .command = command, .about = "A process of a run; started by the run's agent.", .options = options, .n_options = ARRAY_SIZE(options)
    };
    if (!cli_parse(&cli, argc, argv, err))
        return false;
    if (cli.help_wanted)
        exit(0);    // an internal command: nothing has been opened yet
    if (!*run_dir || !*name)
        return error_set(err, ERR_USAGE, "an internal command: it needs --run and --name");
    return true;
}
