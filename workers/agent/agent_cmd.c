/* The agent: starts, watches and restarts its node's processes, passes requests on to the controller, publishes telemetry.
 *
 * keeper (another life of this command, name "keeper") only starts the agent again when it has died; the agent does the same
 * for the keeper. A process that has been stuck for restart_stuck_s, or that an operator wants restarted, is killed, and so
 * started again; either is told to the controller, which journals it. A new agent finds the processes of the one before by
 * their pid files and keeps them. All processes are watched through pidfds, which work for those that are not our children too.
 * The end: the controller's heartbeat tells that the run is over (or the agent gives up on a process that keeps dying, and
 * writes why into sock/failure); everybody is ordered to stop; who has not after STOP_S is killed; sock/ended tells the keeper. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/run_config.h"
#include "protocol/run_door.h"
#include "protocol/run_failure.h"
#include "workers/agent/node_watch.h"
#include "workers/agent/spawn.h"
#include "console/commands.h"
#include "workers/node/node.h"
#include "workers/process.h"

#define CHILD_MAX 80
#define RELAY_MAX 128
#define VIEW_OPEN 24         // questions of those who may only look, held open at once
#define LINGER_MS 700        // after the end is known, for consoles to see it
#define RELAY_ASK_MS 5000    // until a request passed on is asked again
#define STOP_S 20            // for processes that were ordered to stop
#define DEATHS_MAX 6         // quick ones in a row
#define QUICK_MS 8000
#define GAP_MS 1000          // a turn that took so long: the agent itself was stopped or starved
#define NOTE_MAX 16          // events on their way into the journal
#define NOTE_LIMIT_MS 1000   // until one is told again: it is written once by its id
#define RESTART_MAX 16       // restarts remembered by the id of their command
#define TAG_SAMPLE ((uint64_t)(RELAY_MAX + NOTE_MAX))

struct child {
    char name[64];
    const char *command;         // subcommand; NULL: the keeper, which is started but not watched for heartbeats
    bool exporter;               // has no heartbeat, ends by itself, and may outlive the run until everything is out
    pid_t pid;                   // 0: not running
    int pidfd;
    int64_t started_ms, next_ms; // next_ms: when it may be started
    int n_restart, n_quick;
    int64_t stuck_ms;            // since when its verdict has been stuck; 0: it is not
    /* its last heartbeat */
    int64_t heard_ms, start, phase_ms;
    char phase[32], waits_for[160];
    double progress;
    int64_t progress_ms;         // when progress last changed
    double longest_s;            // longest stretch without progress that ended well, in this phase
    struct buf gauges;           // the message they came in; the gate's has the processes of other nodes too
    double cpu_s;                // processor seconds at sampled_ms
    double cpu_share, rss_mib, n_thread;
};
struct relay {    // a request on its way to the controller, or waiting for a restarted process
    struct request *request;     // NULL: free
    struct buf msg;
    enum msg_type type;
    struct peer *to;             // the controller, or the gate
    int64_t limit_ms, again_ms;
    bool open;                   // asked, not answered
    const struct restart *restart;    // NULL; else waits for its child's new life
};
struct restart {  // of a process, as an operator's command: carried out once, however often it is asked
    char id[128];                // "": free
    int child;
    pid_t pid;                   // of the life that was ended
    int64_t start;
};
struct note {     // an event for the journal; asked again until the controller has it
    char id[48], kind[16], who[128], text[256];    // text "": free
    bool open;                   // asked, not answered
    int64_t again_ms;
};
struct agent {
    char run_dir[4096];
    struct transport *transport;
    struct server *server;
    struct server *view;               // answers questions only
    struct publisher *telemetry, *view_telemetry;
    struct peer *controller;     // on a node: its uplink
    struct peer *gate;           // NULL: the run takes in no nodes
    bool is_node;                // of another head (workers/node/node.h)
    struct run_config config;
    struct node_watch *node;           // the figures of host and devices
    struct child child[CHILD_MAX];
    int n_child;
    struct relay relay[RELAY_MAX];
    struct restart restart[RESTART_MAX];
    int n_restart;               // ever; the newest is at (n_restart - 1) % RESTART_MAX
    struct note note[NOTE_MAX];
    int64_t turned_ms;           // when the loop turned last
    int64_t kept_ms;             // when the last sample went to the journal; 0: none yet
    struct buf detail;           // the controller's last heartbeat
    int64_t detail_ms, ended_ms, stop_ms, sampled_ms;
    bool over;
    char failure[1024];
};

static volatile sig_atomic_t signalled;

static void on_signal(UNUSED int sig)
{
    signalled = 1;
}

static int pidfd_of(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static struct child *child_add(struct agent *a, const char *command, const char *name)
{
    if (a->n_child == CHILD_MAX)
        return NULL;
    struct child *c = &a->child[a->n_child++];
    *c = (struct child){ .command = command, .pidfd = -1 };
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

static void child_watch(struct child *c, pid_t pid)
{
    if (c->pidfd >= 0)
        close(c->pidfd);
    c->pid = pid;
    c->pidfd = pidfd_of(pid);
    c->started_ms = c->heard_ms = c->phase_ms = c->progress_ms = clock_ms();
    snprintf(c->phase, sizeof c->phase, "starting");
    c->waits_for[0] = 0;
    c->stuck_ms = 0;
    if (c->pidfd < 0)
        c->pid = 0;    // it has gone already
}

static void note_add(struct agent *a, const char *kind, const char *who, const char *text);

/* By the descriptor: a found process is not our child, so its number may have gone to somebody else. */
static void child_kill(const struct child *c)
{
    if (c->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0);
}

static void agent_fail(struct agent *a, const char *text)
{
    struct error err;
    log_error("%s", text);
    if (a->failure[0])
        return;
    snprintf(a->failure, sizeof a->failure, "%s", text);
    if (!run_failure_write(a->run_dir, text, &err))
        log_error("%s", err.text);
    a->over = true;
    a->ended_ms = a->ended_ms ? a->ended_ms : clock_ms();
}

static void child_start(struct agent *a, struct child *c)
{
    struct error err;
    const char *command = c->command ? c->command : "agent";
    pid_t pid = process_spawn(command, a->run_dir, c->name, RUN_LOCK_FD, false, &err);
    if (pid < 0) {
        log_error("%s", err.text);
        c->next_ms = clock_ms() + 1000;
        return;
    }
    child_watch(c, pid);
    log_info("started '%s', pid %d", c->name, (int)pid);
}

/* An exporter is not started again. When it has failed everybody is told: what it had to send is still to be sent. */
static void exporter_ended(struct agent *a, struct child *c, const char *how, bool failed)
{
    char text[256], last[512];
    c->next_ms = INT64_MAX;
    if (!failed) {
        log_info("'%s' %s", c->name, how);
        return;
    }
    log_last_line(a->run_dir, c->name, last, sizeof last);
    snprintf(text, sizeof text, "'%s' %s and is not started again; its last words: %.150s", c->name, how, last);
    note_add(a, "alert", "agent", text);
}

static void child_died(struct agent *a, struct child *c)
{
    int status = SIGKILL;    // of a process that is not our child: taken as killed
    char how[64] = "ended", last[512], text[1024];
    if (waitpid(c->pid, &status, WNOHANG) == c->pid) {
        if (WIFSIGNALED(status))
            snprintf(how, sizeof how, "was killed by signal %d", WTERMSIG(status));
        else
            snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(status));
    }
    int64_t lived = clock_ms() - c->started_ms;
    pid_t pid = c->pid;
    close(c->pidfd);
    c->pidfd = -1;
    c->pid = 0;
    if (a->over || a->stop_ms)
        return;
    if (c->exporter && WIFEXITED(status)) {    // its own decision: the server refused it, and said so in its log
        exporter_ended(a, c, how, status != 0);
        return;
    }
    bool failed = !WIFSIGNALED(status) || (WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGTERM);
    c->n_quick = lived < QUICK_MS && failed ? c->n_quick + 1 : 0;
    c->n_restart++;
    c->next_ms = clock_ms() + (c->n_quick > 0 ? MIN(100 << MIN(c->n_quick, 4), 2000) : 0);
    log_warn("'%s' (pid %d) %s after %.1f s", c->name, (int)pid, how, (double)lived / 1000);
    if (c->n_quick >= DEATHS_MAX && c->exporter) {    // training goes on without it
        exporter_ended(a, c, how, true);
    } else if (c->n_quick >= DEATHS_MAX) {
        log_last_line(a->run_dir, c->name, last, sizeof last);
        snprintf(text, sizeof text, "'%s' has ended %d times soon after its start; its last words: %.600s", c->name, c->n_quick, last);
        agent_fail(a, text);
    }
}

static void children_tick(struct agent *a)
{
    int64_t now = clock_ms();
    struct pollfd fd[CHILD_MAX];
    for (int i = 0; i < a->n_child; i++)
        fd[i] = (struct pollfd){ .fd = a->child[i].pidfd, .events = POLLIN };
    poll(fd, (nfds_t)a->n_child, 0);
    for (int i = 0; i < a->n_child; i++) {
        struct child *c = &a->child[i];
        if (c->pid && (fd[i].revents & POLLIN))
            child_died(a, c);
        if (!c->pid && now >= c->next_ms && !a->stop_ms && !a->over)
            child_start(a, c);
    }
}

/* ---- heartbeats ---- */

/* A silence that tells: longer than a few heartbeats, however slow they are set. */
static double silence_s(const struct agent *a)
{
    return fmax(a->config.slow_s, 3 * a->config.heartbeat_s);
}

/* slow or stuck: silence is told apart from standing still; a wait for somebody else is nobody's fault. */
static const char *verdict(const struct agent *a, const struct child *c)
{
    int64_t now = clock_ms();
    double silent_s = (double)(now - c->heard_ms) / 1000, still_s = (double)(now - c->progress_ms) / 1000;
    double slow_s = a->config.slow_s, stuck_s = a->config.stuck_s;
    if (!c->pid)
        return "stuck";
    if (silent_s > silence_s(a))
        return "stuck";    // its loop never blocks: a process that is not heard is stopped or starved
    if (c->waits_for[0] || strcmp(c->phase, "waiting") == 0)
        return "ok";
    if (still_s > MAX(stuck_s, 6 * c->longest_s))
        return "stuck";
    return still_s > MAX(slow_s, 3 * c->longest_s) ? "slow" : "ok";
}

static struct child *child_find(struct agent *a, const char *name)
{
    for (int i = 0; i < a->n_child; i++)
        if (strcmp(a->child[i].name, name) == 0)
            return &a->child[i];
    return NULL;
}

/* ---- restarting what is stuck ---- */

/* Put an event into the journal and on the operators' screens, by way of the controller. When NOTE_MAX wait already it is
 * in the log only. */
static void note_add(struct agent *a, const char *kind, const char *who, const char *text)
{
    log_warn("%s: %s", who, text);
    for (int i = 0; i < NOTE_MAX; i++)
        if (!a->note[i].text[0]) {
            struct note *n = &a->note[i];
            *n = (struct note){ 0 };
            snprintf(n->id, sizeof n->id, "agent-%d-%" PRId64, (int)getpid(), clock_ns());
            snprintf(n->kind, sizeof n->kind, "%s", kind);
            snprintf(n->who, sizeof n->who, "%s", who);
            snprintf(n->text, sizeof n->text, "%s", text);
            return;
        }
}

static void notes_tick(struct agent *a)
{
    struct error err;
    int64_t now = clock_ms();
    for (int i = 0; i < NOTE_MAX; i++) {
        struct note *n = &a->note[i];
        struct msg_out m = MSG_OUT_INIT;
        if (!n->text[0] || n->open || now < n->again_ms)
            continue;
        msg_begin(&m, MSG_PUBLISH);
        msg_str(&m, "topic", "event");
        msg_map(&m, "body");
        msg_str(&m, "id", n->id);
        msg_str(&m, "kind", n->kind);
        msg_str(&m, "who", n->who);
        msg_str(&m, "text", n->text);
        msg_end(&m);
        n->open = msg_finish(&m, &err) && peer_ask(a->controller, &m, NOTE_LIMIT_MS, (uint64_t)(RELAY_MAX + i), &err);
        n->again_ms = now + 200;
        msg_release(&m);
    }
}

static void note_answered(struct agent *a, const struct net_event *ev)
{
    struct note *n = &a->note[ev->tag - RELAY_MAX];
    n->open = false;
    if (!ev->failed)
        n->text[0] = 0;
}

/* Kill what has been stuck for restart_stuck_s; children_tick starts it again. Exporters and the keeper have no heartbeat,
 * so nothing is known of them. */
static void stuck_tick(struct agent *a)
{
    int64_t now = clock_ms();
    bool gap = a->turned_ms > 0 && now - a->turned_ms > GAP_MS;    // silence was ours: everybody gets the time again
    a->turned_ms = now;
    for (int i = 0; i < a->n_child; i++) {
        struct child *c = &a->child[i];
        bool stuck = c->command && !c->exporter && c->pid && !a->over && !a->stop_ms && !gap && strcmp(verdict(a, c), "stuck") == 0;
        c->stuck_ms = !stuck ? 0 : c->stuck_ms ? c->stuck_ms : now;
        if (!stuck || a->config.restart_stuck_s <= 0 || (double)(now - c->stuck_ms) < 1000 * a->config.restart_stuck_s)
            continue;
        char text[256];
        snprintf(text, sizeof text, "'%s' (pid %d) has been stuck for %.1f s in '%s' and is started again", c->name, (int)c->pid,
                 (double)(now - c->stuck_ms) / 1000, c->phase);
        note_add(a, "alert", "agent", text);
        child_kill(c);
        c->stuck_ms = 0;
    }
}

static void telemetry_send(struct agent *a, const char *topic, const void *data, size_t len)
{
    publisher_send_bytes(a->telemetry, topic, data, len);
    publisher_send_bytes(a->view_telemetry, topic, data, len);
}

static void heartbeat_came(struct agent *a, struct request *r, const struct msg_in *in, const void *data, size_t len)
{
    char name[64], phase[32], state[16];
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    int64_t now = clock_ms();
    pid_t pid = (pid_t)mval_i64(mval_get(in->root, "pid"), 0);
    struct child *c = child_find(a, mval_text(in->root, "name", name, sizeof name));
    bool stop = !c || a->stop_ms;
    if (c && c->pid != pid) {
        if (c->pid == 0)
            child_watch(c, pid);    // a life of before us
        else
            stop = true;            // its place has been taken
    }
    if (c && c->pid == pid) {
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
        c->start = mval_i64(mval_get(in->root, "start"), 0);
        c->phase_ms = now - (int64_t)(1000 * mval_f64(mval_get(in->root, "phase_s"), 0));
        buf_clear(&c->gauges);
        if (mval_get(in->root, "gauges") || mval_get(in->root, "processes"))
            buf_add(&c->gauges, data, len);
        if (mval_get(in->root, "detail")) {
            buf_clear(&a->detail);
            buf_add(&a->detail, data, len);
            a->detail_ms = now;
            const struct mval *knobs = mval_get(mval_get(in->root, "detail"), "knobs");    // they may have been changed since
            a->config.slow_s = mval_f64(mval_get(knobs, "slow_s"), a->config.slow_s);
            a->config.stuck_s = mval_f64(mval_get(knobs, "stuck_s"), a->config.stuck_s);
            a->config.restart_stuck_s = mval_f64(mval_get(knobs, "restart_stuck_s"), a->config.restart_stuck_s);
            mval_text(mval_get(in->root, "detail"), "state", state, sizeof state);
            if (!a->over && (!strcmp(state, "finished") || !strcmp(state, "failed") || !strcmp(state, "stopped"))) {
                log_info("the run is over: %s", state);
                a->over = true;
                a->ended_ms = now;
            }
        }
    }
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
    msg_begin(&m, MSG_OK);    // last: the answer frees the question's bytes
    msg_str(&m, "order", stop ? "stop" : "go");
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    msg_release(&m);
}

/* ---- status ---- */

/* Processor time and memory of a process, from /proc. */
static void child_sample(struct child *c, double passed_s)
{
    char path[64], line[1024];
    unsigned long long utime, stime;
    long rss, n_thread;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)c->pid);
    FILE *f = c->pid ? fopen(path, "re") : NULL;
    if (!f)
        return;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    const char *p = strrchr(line, ')');    // the name may hold anything
    if (!p || sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %ld %*d %*u %*u %ld", &utime,
                     &stime, &n_thread, &rss) != 4)
        return;
    double cpu_s = (double)(utime + stime) / (double)sysconf(_SC_CLK_TCK);
    if (passed_s > 0 && cpu_s >= c->cpu_s)
        c->cpu_share = (cpu_s - c->cpu_s) / passed_s;
    c->cpu_s = cpu_s;
    c->n_thread = (double)n_thread;
    c->rss_mib = (double)rss * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static void gauges_copy(struct msg_out *m, const struct mval *gauges)
{
    for (int64_t i = 0; i < mval_n(gauges); i++) {
        size_t len;
        char key[64];
        const char *k = mval_key(gauges, i, &len);
        if (!k || len >= sizeof key)
            continue;
        memcpy(key, k, len);
        key[len] = 0;
        msg_copy(m, key, mval_at(gauges, i));
    }
}

static void alarm_note(void *ctx, const char *text)
{
    note_add(ctx, "alert", "agent", text);
}

/* Once a second: what the processes use, what the node's sampler has, and now and then a sample for the journal. A lost one is
 * not asked again. */
static void telemetry_tick(struct agent *a)
{
    struct node_process process[CHILD_MAX];
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    int n = 0;
    int64_t now = clock_ms();
    if (now - a->sampled_ms <= 1000)
        return;
    double passed_s = a->sampled_ms ? (double)(now - a->sampled_ms) / 1000 : 0;
    a->sampled_ms = now;
    for (int i = 0; i < a->n_child; i++) {
        child_sample(&a->child[i], passed_s);
        if (a->child[i].pid)
            process[n++] = (struct node_process){ a->child[i].pid, a->child[i].cpu_share, a->child[i].rss_mib * (1 << 20), a->child[i].n_thread };
    }
    node_watch_tick(a->node, process, n, alarm_note, a);
    if (!a->detail_ms || a->over || (a->kept_ms && (double)(now - a->kept_ms) < 1000 * a->config.telemetry_s))
        return;    // no controller has been heard of yet, or it is not time
    if (node_watch_sample_write(a->node, &m)) {
        if (!msg_finish(&m, &err) || !peer_ask(a->controller, &m, NOTE_LIMIT_MS, TAG_SAMPLE, &err))
            log_debug("a sample is not kept: %s", err.text);
        a->kept_ms = now;
    }
    msg_release(&m);
}

static void processes_write(struct agent *a, struct msg_out *m)
{
    int64_t now = clock_ms();
    msg_list(m, "processes");
    for (int i = 0; i < a->n_child; i++) {
        struct child *c = &a->child[i];
        struct msg_in in;
        struct error err;
        char waits[200], plays[64];
        struct run_part part;
        double silent_s = (double)(now - c->heard_ms) / 1000;
        bool heard = c->command != NULL && !c->exporter;
        snprintf(waits, sizeof waits, "%s", c->waits_for);
        if (!c->pid)
            snprintf(waits, sizeof waits, c->exporter && c->next_ms == INT64_MAX ? "ended; see its log" : "being started again");
        else if (heard && silent_s > silence_s(a))
            snprintf(waits, sizeof waits, "no sign of life for %.0f s", silent_s);
        msg_map(m, NULL);
        msg_str(m, "name", c->name);
        msg_str(m, "kind", !c->command ? "keeper" : c->command);
        if (strncmp(c->name, "worker ", 7) == 0 && run_config_part(&a->config, c->name + 7, &part, &err))
            msg_str(m, "plays", run_part_text(&part, plays, sizeof plays));
        msg_i64(m, "pid", c->pid);
        msg_str(m, "phase", c->exporter ? "exporting" : !heard ? "watching" : c->phase);
        msg_f64(m, "phase_s", (double)(now - (heard ? c->phase_ms : c->started_ms)) / 1000);
        msg_f64(m, "progress", c->progress);
        msg_str(m, "waits_for", waits);
        msg_str(m, "verdict", heard ? verdict(a, c) : c->pid || c->exporter ? "ok" : "stuck");
        msg_f64(m, "heard_s", heard ? silent_s : 0);
        msg_i64(m, "restarts", c->n_restart);
        msg_f64(m, "cpu", c->cpu_share);
        msg_f64(m, "rss_mib", c->rss_mib);
        msg_map(m, "gauges");
        if (c->gauges.len && msg_read_request(&in, c->gauges.data, c->gauges.len, &err)) {
            gauges_copy(m, mval_get(in.root, "gauges"));
            msg_in_release(&in);
        }
        if (c->pid)
            node_watch_process_write(a->node, c->pid, m);
        msg_end(m);
        msg_end(m);
    }
    for (int i = 0; i < a->n_child; i++) {    // those of other nodes, as the gate has told
        struct msg_in in;
        struct error err;
        const struct buf *b = &a->child[i].gauges;
        if (!b->len || !msg_read_request(&in, b->data, b->len, &err))
            continue;
        for (int64_t k = 0; k < mval_n(mval_get(in.root, "processes")); k++)
            msg_copy(m, NULL, mval_at(mval_get(in.root, "processes"), k));
        msg_in_release(&in);
    }
    msg_map(m, NULL);
    msg_str(m, "name", "agent");
    msg_str(m, "kind", "agent");
    msg_i64(m, "pid", getpid());
    msg_str(m, "phase", "watching");
    msg_f64(m, "phase_s", 0);
    msg_str(m, "waits_for", "");
    msg_str(m, "verdict", "ok");
    msg_end(m);
    msg_end(m);
}

/* detail: the controller's fields; NULL: never heard. */
static void status_answer(struct agent *a, struct request *r, const struct mval *detail, double controller_s)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    const char *name = strrchr(a->run_dir, '/');
    msg_begin(&m, MSG_OK);
    msg_str(&m, "name", name ? name + 1 : a->run_dir);
    msg_str(&m, "dir", a->run_dir);
    for (int64_t i = 0; i < mval_n(detail); i++) {
        size_t len;
        char key[64];
        const char *k = mval_key(detail, i, &len);
        if (!k || len >= sizeof key)
            continue;
        memcpy(key, k, len);
        key[len] = 0;
        if (strcmp(key, "v") && strcmp(key, "t") && strcmp(key, "name") && strcmp(key, "dir") && strcmp(key, "processes"))
            msg_copy(&m, key, mval_at(detail, i));
    }
    if (!detail) {
        msg_str(&m, "state", "starting");
        msg_i64(&m, "step", 0);
    }
    if (a->failure[0])
        msg_str(&m, "failure", a->failure);
    msg_f64(&m, "controller_s", controller_s);
    processes_write(a, &m);
    node_watch_status_write(a->node, &m);
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    else
        request_refuse(r, &err);
    msg_release(&m);
}

static void status_cached(struct agent *a, struct request *r)
{
    struct msg_in in;
    struct error err;
    if (a->detail.len && msg_read_request(&in, a->detail.data, a->detail.len, &err)) {
        status_answer(a, r, mval_get(in.root, "detail"), (double)(clock_ms() - a->detail_ms) / 1000);
        msg_in_release(&in);
    } else {
        status_answer(a, r, NULL, NAN);
    }
}

/* ---- passing on ---- */

static struct relay *relay_new(struct agent *a, struct request *r, enum msg_type type, const void *data, size_t len, int64_t limit_ms)
{
    struct error err;
    for (int i = 0; i < RELAY_MAX; i++)
        if (!a->relay[i].request) {
            struct relay *x = &a->relay[i];
            struct buf b = x->msg;
            *x = (struct relay){ .request = r, .msg = b, .type = type, .to = a->controller, .limit_ms = clock_ms() + limit_ms };
            buf_clear(&x->msg);
            buf_add(&x->msg, data, len);
            return x;
        }
    error_set(&err, ERR_FULL, "%d requests wait already", RELAY_MAX);
    request_refuse(r, &err);
    return NULL;
}

static void relay_ask(struct agent *a, struct relay *x)
{
    struct error err;
    struct msg_out m = { .buf = x->msg };
    int64_t left = x->limit_ms - clock_ms();
    /* In pieces: an answer may be lost on its way, and asking again is safe (see relay_answered). */
    x->open = peer_ask(x->to, &m, MIN(MAX(left, 1), RELAY_ASK_MS), (uint64_t)(x - a->relay), &err);
    x->again_ms = clock_ms() + 200;
}

static void relay_end(struct relay *x)
{
    x->request = NULL;
    x->open = false;
}

/* An answer goes back as it came. A lost one is asked for again until the limit: commands carry ids, the rest only reads. */
static void relay_answered(struct agent *a, struct net_event *ev)
{
    if (ev->tag >= RELAY_MAX && ev->tag < RELAY_MAX + NOTE_MAX)
        note_answered(a, ev);
    if (ev->tag >= RELAY_MAX || !a->relay[ev->tag].request)
        return;
    struct relay *x = &a->relay[ev->tag];
    x->open = false;
    if (ev->failed) {
        x->again_ms = clock_ms() + 100;
        return;
    }
    struct msg_in in;
    struct error err;
    if (x->type == MSG_STATUS && msg_read_answer(&in, MSG_STATUS, ev->data, ev->len, &err)) {
        status_answer(a, x->request, in.root, 0);
        msg_in_release(&in);
    } else {
        struct msg_out m = MSG_OUT_INIT;
        buf_add(&m.buf, ev->data, ev->len);
        request_answer(x->request, &m);
        msg_release(&m);
    }
    relay_end(x);
}

/* Has the process been heard since the restart? Who has no heartbeat lives when it has a process id. */
static bool child_lives_anew(const struct child *c, const struct restart *r)
{
    bool beats = c->command && !c->exporter;
    return c->pid && c->pid != r->pid && (!beats || (c->start && c->start != r->start));
}

static void relays_tick(struct agent *a)
{
    struct error err;
    int64_t now = clock_ms();
    for (int i = 0; i < RELAY_MAX; i++) {
        struct relay *x = &a->relay[i];
        if (!x->request)
            continue;
        if (x->restart) {
            const struct child *c = &a->child[x->restart->child];
            if (child_lives_anew(c, x->restart)) {
                struct msg_out m = MSG_OUT_INIT;
                char text[128];
                snprintf(text, sizeof text, "'%s' lives again, pid %d", c->name, (int)c->pid);
                msg_begin(&m, MSG_OK);
                msg_str(&m, "effect", text);
                msg_i64(&m, "step", 0);
                if (msg_finish(&m, &err))
                    request_answer(x->request, &m);
                msg_release(&m);
                relay_end(x);
            } else if (now > x->limit_ms) {
                error_set(&err, ERR_TIMEOUT, "'%s' has not come back in time", c->name);
                request_refuse(x->request, &err);
                relay_end(x);
            }
            continue;
        }
        if (x->type == MSG_STATUS && (now > x->limit_ms || (!x->open && now >= x->again_ms))) {
            status_cached(a, x->request);
            relay_end(x);
        } else if (now > x->limit_ms + 500) {
            error_set(&err, ERR_TIMEOUT, "the %s has not answered in time", peer_name(x->to));
            request_refuse(x->request, &err);
            relay_end(x);
        } else if (!x->open && now >= x->again_ms && now < x->limit_ms) {
            relay_ask(a, x);
        }
    }
}

/* Kill the process, unless the command of this id has done so before; the audit trail gets who, when and what. */
static const struct restart *restart_do(struct agent *a, const struct msg_in *in, struct error *err)
{
    char name[64], id[128], who[128], text[256];
    mval_text(in->root, "id", id, sizeof id);
    mval_text(in->root, "who", who, sizeof who);
    for (int i = 0; i < RESTART_MAX; i++)
        if (id[0] && strcmp(a->restart[i].id, id) == 0)
            return &a->restart[i];
    struct child *c = child_find(a, mval_text(mval_get(in->root, "args"), "process", name, sizeof name));
    if (!c) {
        if (strcmp(name, "agent") == 0)
            error_set(err, ERR_UNSUPPORTED, "the agent cannot restart itself; kill its process, and the keeper starts it again");
        else
            error_set(err, ERR_NOT_FOUND, "no process is called '%s'; 'rollcall ctl status' lists them", name);
        return NULL;
    }
    struct restart *r = &a->restart[a->n_restart++ % RESTART_MAX];
    *r = (struct restart){ .child = (int)(c - a->child), .pid = c->pid, .start = c->start };
    snprintf(r->id, sizeof r->id, "%s", id);
    if (c->exporter && c->next_ms == INT64_MAX)    // it had ended by its own decision
        c->next_ms = 0;
    if (c->pid) {
        snprintf(text, sizeof text, "'%s' (pid %d) is killed and started again", c->name, (int)c->pid);
        child_kill(c);
    } else {
        snprintf(text, sizeof text, "'%s', which does not live, is started again", c->name);
    }
    note_add(a, "command", who, text);
    return r;
}

static bool restart_asked(struct agent *a, struct request *r, const struct msg_in *in)
{
    char command[32];
    struct error err;
    mval_text(in->root, "command", command, sizeof command);
    if (strcmp(command, "restart") != 0)
        return false;
    const struct restart *restart = restart_do(a, in, &err);
    if (!restart) {
        request_refuse(r, &err);
        return true;
    }
    struct relay *x = relay_new(a, r, MSG_COMMAND, "", 0, (int64_t)(1000 * mval_f64(mval_get(in->root, "limit_s"), 60)));
    if (x)
        x->restart = restart;
    return true;
}

/* Is it for a node's process, or about a node? Then it goes to the gate. */
static bool command_of_node(const struct agent *a, const struct msg_in *in)
{
    char command[32], process[64];
    const struct mval *args = mval_get(in->root, "args");
    mval_text(in->root, "command", command, sizeof command);
    if (strcmp(command, "dismiss") == 0)
        return !a->is_node;
    return a->gate && strcmp(command, "restart") == 0 && strchr(mval_text(args, "process", process, sizeof process), '/');
}

/* May those ask it who may only look? */
static bool is_question(enum msg_type type)
{
    return type == MSG_STATUS || type == MSG_STEPS || type == MSG_EVENTS || type == MSG_ROLLOUTS || type == MSG_CHECKPOINTS;
}

static void request_dispatch(struct agent *a, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    struct relay *x;
    double limit_s;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    if (request_server(ev->request) == a->view && !is_question(in.type)) {
        error_set(&err, ERR_REFUSED, "this socket only shows the run; '%s' needs '%.600s/sock/agent', which is its owner's", msg_specs[in.type].name,
                  a->run_dir);
        request_refuse(ev->request, &err);
        msg_in_release(&in);
        return;
    }
    switch (in.type) {
    case MSG_HEARTBEAT:
        heartbeat_came(a, ev->request, &in, ev->data, ev->len);
        break;
    case MSG_PUBLISH: {
        char topic[32];
        struct msg_out m = MSG_OUT_INIT;
        telemetry_send(a, mval_text(in.root, "topic", topic, sizeof topic), ev->data, ev->len);
        msg_begin(&m, MSG_OK);
        if (msg_finish(&m, &err))
            request_answer(ev->request, &m);
        msg_release(&m);
        break;
    }
    case MSG_STATUS:
        if (!mval_bool(mval_get(in.root, "fresh"), true))
            status_cached(a, ev->request);
        else if ((x = relay_new(a, ev->request, in.type, ev->data, ev->len, 1500)))
            relay_ask(a, x);
        break;
    case MSG_COMMAND: {
        bool of_node = command_of_node(a, &in);
        if (of_node && !a->gate) {
            error_set(&err, ERR_REFUSED, "this run takes in no nodes; see the setting 'listen'");
            request_refuse(ev->request, &err);
            break;
        }
        if (!of_node && restart_asked(a, ev->request, &in))
            break;
        limit_s = mval_f64(mval_get(in.root, "limit_s"), 600);
        if ((x = relay_new(a, ev->request, in.type, ev->data, ev->len, (int64_t)(1000 * fmin(fmax(limit_s, 0.1), 86400)) + 2000))) {
            x->to = of_node ? a->gate : x->to;
            relay_ask(a, x);
        }
        break;
    }
    case MSG_STEPS: case MSG_EVENTS: case MSG_ROLLOUTS: case MSG_CHECKPOINTS:
        if ((x = relay_new(a, ev->request, in.type, ev->data, ev->len, 10000)))
            relay_ask(a, x);
        break;
    case MSG_WORK: case MSG_GROUP: case MSG_FETCH: case MSG_DONE: case MSG_SCORE: case MSG_JOIN: case MSG_NODE:
    case MSG_FILE: case MSG_GONE: case MSG_OK: case MSG_REFUSED:
    case MSG_TYPE_COUNT:
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for the agent", msg_specs[in.type].name);
        request_refuse(ev->request, &err);
        break;
    }
    msg_in_release(&in);
}

/* ---- the end ---- */

static bool all_gone(const struct agent *a)
{
    for (int i = 0; i < a->n_child; i++)
        if (a->child[i].command && a->child[i].pid && !a->child[i].exporter)
            return false;
    return true;
}

/* True when there is nothing left to do. */
static bool end_tick(struct agent *a)
{
    struct error err;
    int64_t now = clock_ms();
    if (signalled && a->is_node && !a->over) {    // the node leaves; the run goes on
        a->over = true;
        a->ended_ms = now;
    } else if (signalled && !a->over) {    // asked to end: as an operator's stop
        struct msg_out m = MSG_OUT_INIT;
        signalled = 0;
        msg_begin(&m, MSG_COMMAND);
        msg_str(&m, "id", "agent-signal");
        msg_str(&m, "command", "stop");
        msg_str(&m, "who", "a signal to the agent");
        if (msg_finish(&m, &err) && !peer_ask(a->controller, &m, 600000, UINT64_MAX, &err))
            log_warn("%s", err.text);
        msg_release(&m);
    }
    if (a->over && !a->stop_ms && now - a->ended_ms >= LINGER_MS)
        a->stop_ms = now;
    if (!a->stop_ms)
        return false;
    if (now - a->stop_ms > STOP_S * 1000)
        for (int i = 0; i < a->n_child; i++)
            if (a->child[i].command && a->child[i].pid && !a->child[i].exporter) {
                log_warn("'%s' has not ended in %d s; killed", a->child[i].name, STOP_S);
                child_kill(&a->child[i]);
            }
    return all_gone(a);
}

static void exporters_make(struct agent *a)
{
    const struct { bool wanted; const char *name; } kinds[] = {
        { strcmp(a->config.wandb, "off") != 0, "export wandb" },
        { a->config.tensorboard, "export tensorboard" },
        { a->config.metrics_listen[0] != 0, "export openmetrics" },
    };
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct child *c = kinds[i].wanted ? child_add(a, "exporter", kinds[i].name) : NULL;
        if (c)
            c->exporter = true;
    }
}

static void children_make(struct agent *a)
{
    char name[64];
    child_add(a, NULL, "keeper");
    if (a->is_node)
        child_add(a, "uplink", "uplink");
    else
        child_add(a, "controller", "controller");
    if (a->config.listen[0])
        child_add(a, "gate", "gate");
    child_add(a, "scorer", "scorer");
    const char *at = strcmp(a->config.devices, "auto") == 0 ? "cpu:0" : a->config.devices;
    for (; *at; at += at[strcspn(at, ",")] ? strcspn(at, ",") + 1 : strcspn(at, ",")) {
        snprintf(name, sizeof name, "worker %.*s", (int)MIN(strcspn(at, ","), (size_t)50), at);
        child_add(a, "worker", name);
    }
    exporters_make(a);
}

static bool agent_run(const char *run_dir, struct error *err)
{
    char path[4200];
    bool ok = false;
    struct net_event ev;
    struct agent *a = calloc(1, sizeof *a);
    if (!a)
        return error_set(err, ERR_NO_MEMORY, "no memory for the agent");
    struct sigaction sa = { .sa_handler = on_signal };
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    snprintf(a->run_dir, sizeof a->run_dir, "%s", run_dir);
    run_config_init(&a->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    TRY(run_config_read(&a->config, path, err));
    snprintf(path, sizeof path, "%s/sock", run_dir);
    TRY(a->transport = transport_new(path, true, err));
    TRY(a->server = server_new(a->transport, "agent", 160, err));
    TRY(process_note(run_dir, "agent", err));
    hold_point("starting");
    TRY(a->telemetry = publisher_new(a->transport, "telemetry", err));
    TRY(run_view_make(a->transport, run_dir, a->config.view_group, err));
    TRY(a->view = server_new(a->transport, "view", VIEW_OPEN, err));
    TRY(a->view_telemetry = publisher_new(a->transport, "view-telemetry", err));
    TRY(a->controller = peer_new(a->transport, "controller", err));
    TRY(a->node = node_watch_new(run_dir, err));
    if (a->config.listen[0])
        TRY(a->gate = peer_new(a->transport, "gate", err));
    a->is_node = a->config.node_only = node_here(run_dir);
    children_make(a);
    for (int i = 0; i < a->n_child; i++) {
        pid_t pid = process_find(run_dir, a->child[i].name);
        if (pid > 0) {
            child_watch(&a->child[i], pid);
            log_info("found '%s' alive, pid %d", a->child[i].name, (int)pid);
        }
    }
    int64_t looked_ms = clock_ms();
    while (!end_tick(a)) {
        int n = 0;
        children_tick(a);
        while (n++ < 256 && transport_wait(a->transport, &ev, n == 1 ? 20 : 0)) {
            if (ev.kind == NET_REQUEST)
                request_dispatch(a, &ev);
            else if (ev.kind == NET_ANSWER)
                relay_answered(a, &ev);
            net_event_release(&ev);
        }
        relays_tick(a);
        stuck_tick(a);
        notes_tick(a);
        telemetry_tick(a);
        if (clock_ms() - looked_ms > 1000) {
            looked_ms = clock_ms();
            if (!server_is_ours(a->server)) {
                log_error("another agent has taken our place; ending");
                _exit(1);
            }
        }
    }
    run_weights_remove(run_dir);
    snprintf(path, sizeof path, "%s/sock/ended", run_dir);
    TRY(file_write(path, "", 0, err));
    log_info("everything has ended");
    ok = true;
out:
    for (int i = 0; i < a->n_child; i++)
        buf_release(&a->child[i].gauges);
    for (int i = 0; i < RELAY_MAX; i++)
        buf_release(&a->relay[i].msg);
    buf_release(&a->detail);
    publisher_free(a->telemetry);
    publisher_free(a->view_telemetry);
    transport_free(a->transport);
    node_watch_free(a->node);
    free(a);
    return ok;
}

/* Start the agent, start it again whenever it has died before its work was done. */
static bool keeper_run(const char *run_dir, struct error *err)
{
    char ended[4200], text[1024], last[512];
    int n_quick = 0;
    struct sigaction sa = { .sa_handler = on_signal };
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    snprintf(ended, sizeof ended, "%s/sock/ended", run_dir);
    if (!process_note(run_dir, "keeper", err))
        return false;
    hold_point("starting");
    for (;;) {
        int64_t started = clock_ms();
        pid_t pid = process_find(run_dir, "agent");
        if (pid <= 0 && path_exists(ended))
            return true;
        if (pid <= 0 && (pid = process_spawn("agent", run_dir, "agent", RUN_LOCK_FD, false, err)) < 0)
            return false;
        int fd = pidfd_of(pid);
        while (fd >= 0) {
            struct pollfd p = { .fd = fd, .events = POLLIN };
            int n = poll(&p, 1, 1000);
            if (signalled) {
                signalled = 0;
                kill(pid, SIGTERM);
            }
            if (n > 0)
                break;
        }
        if (fd >= 0)
            close(fd);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (path_exists(ended))
            return true;
        n_quick = clock_ms() - started < QUICK_MS ? n_quick + 1 : 0;
        log_warn("the agent has ended before its work was done");
        if (n_quick >= 10) {
            log_last_line(run_dir, "agent", last, sizeof last);
            snprintf(text, sizeof text, "the agent has ended %d times soon after its start; its last words: %.600s", n_quick, last);
            return run_failure_write(run_dir, text, err) && error_set(err, ERR_INTERNAL, "%s", text);
        }
        if (n_quick > 1)
            poll(NULL, 0, 100 * n_quick);
    }
}

bool agent_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = "agent";
    if (argc < 2 || strcmp(argv[1], "--run") != 0)    // an operator's: of a second host
        return join_cmd(argc, argv, err);
    if (!process_args(argc, argv, "rollcall agent", &run_dir, &name, err))
        return false;
    log_component(name);
    return strcmp(name, "keeper") == 0 ? keeper_run(run_dir, err) : agent_run(run_dir, err);
}
