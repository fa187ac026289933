/* The agent: starts, watches and restarts its node's processes, passes requests on to the controller, publishes telemetry.
 *
 * The keeper (this command with the name "keeper") only restarts the agent when it has died; the agent does the same for the
 * keeper. A process that has been stuck for restart_stuck_s, or that an operator wants to restart, is killed and then started
 * again; the controller is told of either and journals it. A new agent finds its predecessor's processes by their pid files and
 * keeps them. All processes are watched through pidfds, which also work for processes that are not our children. The end: the
 * controller's heartbeat says that the run is over (or the agent gives up on a process that keeps dying, and writes why into
 * sock/failure); consoles get their last answers; all processes are ordered to stop (sock/ending: a new agent goes on from
 * there); those that have not after STOP_S are killed; sock/ended tells the keeper. */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/base/subcommand.h"
#include "protocol/record/journal.h"
#include "protocol/run/node.h"
#include "protocol/run/spawn.h"
#include "protocol/settings/export_kinds.h"
#include "protocol/wire/run_door.h"
#include "workers/agent/agent_parts.h"
#include "workers/process/process.h"

SUBCOMMAND_DECLARE(join)

#define STATUS_LIMIT_MS 1500
#define QUESTION_LIMIT_MS 10000
#define VIEW_OPEN 24             // questions from read-only clients, held open at once
#define LINGER_MS 200            // after the end is known, time for a console that is just connecting
#define LAST_ANSWERS_MS 10000    // ... time for connected consoles to ask for what they have not received
#define FILES_SPARE 5            // descriptors, besides one a process: to start one, and to write why not
#define STOP_S 20                // time for processes that were ordered to stop
#define LOOK_MS 250              // between two checks of things without a due time
#define END_LOOK_MS 20           // the same at the run's end: has the last console gone?

static volatile sig_atomic_t signalled;    // a signal handler has no argument to carry state

static void on_signal(UNUSED int sig)
{
    signalled = 1;
}

/* Is the command for a node's process, or about a node? Then it goes to the gate. */
static bool command_of_node(const struct agent *a, const struct msg_in *in)
{
    char command[32], process[64];
    const struct mval *args = mval_get(in->root, "args");
    mval_text(in->root, "command", command, sizeof command);
    if (strcmp(command, "dismiss") == 0 || strcmp(command, "rotate-token") == 0)
        return !a->is_node;
    return a->gate && strcmp(command, "restart") == 0 && strchr(mval_text(args, "process", process, sizeof process), '/');
}

/* May a read-only client ask this? */
static bool is_question(enum msg_type type)
{
    return type == MSG_STATUS || type == MSG_STEPS || type == MSG_EVENTS || type == MSG_ROLLOUTS || type == MSG_CHECKPOINTS;
}

/* To everyone who listens. */
static void publish_came(struct agent *a, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    char topic[32];
    telemetry_send(a, mval_text(in->root, "topic", topic, sizeof topic), in->data, in->len);
    msg_begin(&m, MSG_OK);
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    msg_release(&m);
}

static void status_asked(struct agent *a, struct request *r, const struct msg_in *in)
{
    struct page page;
    struct pending *x;
    page_read(&page, in->root);
    if (!mval_bool(mval_get(in->root, "fresh"), true)) {
        status_cached(a, r, &page);
    } else if ((x = pending_new(a, r, in->type, in->data, in->len, STATUS_LIMIT_MS))) {
        x->page = page;
        pending_ask(a, x);
    }
}

static void command_came(struct agent *a, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct pending *x;
    bool of_node = command_of_node(a, in);
    if (!command_allowed(a, in, of_node, &err)) {
        request_refuse(r, &err);
    } else if (of_node && !a->gate) {
        error_set(&err, ERR_REFUSED, "this run does not accept nodes; see the setting 'listen'");
        request_refuse(r, &err);
    } else if ((of_node || !restart_asked(a, r, in))
               && (x = pending_new(a, r, in->type, in->data, in->len, command_limit_ms(in->root, COMMAND_LIMIT_S) + 2000))) {
        x->to = of_node ? a->gate : x->to;
        pending_ask(a, x);
    }
}

/* A question that the controller answers. */
static void question_came(struct agent *a, struct request *r, const struct msg_in *in)
{
    struct pending *x = pending_new(a, r, in->type, in->data, in->len, QUESTION_LIMIT_MS);
    if (x)
        pending_ask(a, x);
}

/* What is not here is not for the agent. A handler takes the request. */
// clang-format off
static void (*const handlers[MSG_TYPE_COUNT])(struct agent *a, struct request *r, const struct msg_in *in) = {
    [MSG_HEARTBEAT] = heartbeat_came,
    [MSG_PUBLISH] = publish_came,
    [MSG_STATUS] = status_asked,
    [MSG_COMMAND] = command_came,
    [MSG_KEPT] = kept_asked,
    [MSG_STEPS] = question_came,
    [MSG_EVENTS] = question_came,
    [MSG_ROLLOUTS] = question_came,
    [MSG_CHECKPOINTS] = question_came,
};
// clang-format on

static void request_dispatch(struct agent *a, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    if (request_server(ev->request) == a->view && !is_question(in.type)) {
        error_set(&err, ERR_REFUSED, "a read-only view cannot change the run; only its owner can, without --read-only");
        request_refuse(ev->request, &err);
        msg_in_release(&in);
        return;
    }
    if (handlers[in.type]) {
        handlers[in.type](a, ev->request, &in);
    } else {
        error_set(&err, ERR_UNSUPPORTED, "the agent does not answer '%s'", msg_specs[in.type].name);
        request_refuse(ev->request, &err);
    }
    msg_in_release(&in);
}

static void answer_take(struct agent *a, struct net_event *ev)
{
    if (ev->tag < PENDING_MAX)
        pending_answered(a, ev);
    else if (ev->tag < TAG_NOTE + NOTE_MAX)
        note_answered(a, ev);
}

/* ---- the end ---- */

static bool all_gone(const struct agent *a)
{
    for (int i = 0; i < a->n_child; i++)
        if (a->child[i].command && a->child[i].pid && !a->child[i].exporter)
            return false;
    return true;
}

/* How many consoles and tools still wait for an answer. A console that has its last answers closes its telemetry. Without the
 * controller there are no answers; on a node that is the head's controller, which ends when the head's own consoles have been
 * answered. */
static int n_unanswered(const struct agent *a)
{
    int n = 0;
    bool answers = false;
    for (int i = 0; i < a->n_child && !answers; i++)
        answers = a->child[i].command && strcmp(a->child[i].command, "controller") == 0 && a->child[i].pid;
    if (!answers)
        return 0;
    for (int i = 0; i < PENDING_MAX; i++)
        n += a->pending[i].request && !a->pending[i].restart;
    return n + publisher_n_listener(a->telemetry) + publisher_n_listener(a->view_telemetry);
}

/* The run is over: may its processes be told to stop? */
static bool last_answers_given(struct agent *a, int64_t over_ms)
{
    int n = over_ms >= LINGER_MS ? n_unanswered(a) : 0;
    if (over_ms < LINGER_MS)
        return false;
    if (n > 0 && over_ms < LAST_ANSWERS_MS) {
        if (!a->waits_told)
            log_info("waiting for %d consoles and tools to get their last answers, at most %d s", n, LAST_ANSWERS_MS / 1000);
        a->waits_told = true;
        return false;
    }
    if (n > 0)
        log_warn("%d consoles and tools are still connected %d s after the run's end; not waiting any longer", n, LAST_ANSWERS_MS / 1000);
    return true;
}

static void ending_path(const struct agent *a, char *out, size_t size)
{
    snprintf(out, size, "%s/sock/ending", a->run_dir);
}

/* Noted before the first one is told: an agent that dies from here on is followed by one that goes on ending. Else that one would start
 * all processes again, and trainers would wait for those on nodes, which have heard of the end and are gone. */
static void children_stop(struct agent *a)
{
    char path[4200];
    struct error err;
    a->stop_ms = clock_ms();
    ending_path(a, path, sizeof path);
    if (!file_write(path, "", 0, &err))
        log_error("%s", err.text);
    log_info("all processes are ordered to stop");
    for (int i = 0; i < a->n_child; i++)
        if (a->child[i].command && !a->child[i].exporter)
            child_stop(&a->child[i]);
}

/* Has the agent before this one told the processes to stop? Then what is left of them is told again. */
static void end_find(struct agent *a)
{
    char path[4200];
    ending_path(a, path, sizeof path);
    if (!path_exists(path))
        return;
    a->over = true;
    a->ended_ms = clock_ms();
    children_stop(a);
}

/* True when there is nothing left to do. */
static bool end_tick(struct agent *a)
{
    struct error err;
    int64_t now = clock_ms();
    if (signalled && a->is_node && !a->over) {    // the node leaves; the run continues
        a->over = true;
        a->ended_ms = now;
    } else if (signalled && !a->over) {    // asked to end: the same as an operator's stop
        struct msg_out m = MSG_OUT_INIT;
        signalled = 0;
        msg_begin(&m, MSG_COMMAND);
        msg_str(&m, "id", "agent-signal");
        msg_str(&m, "command", "stop");
        msg_str(&m, "who", "a signal to the agent");
        msg_bool(&m, "force", true);
        if (msg_finish(&m, &err) && !peer_ask(a->controller, &m, 600000, UINT64_MAX, &err))
            log_warn("%s", err.text);
        msg_release(&m);
    }
    if (a->over && !a->stop_ms && last_answers_given(a, now - a->ended_ms))
        children_stop(a);
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

/* On the head alone: the journal is there. */
static void exporters_make(struct agent *a)
{
    char name[64];
    for (int i = 0; i < EXPORT_KIND_N && !a->is_node; i++) {
        if (!export_wanted(&a->config, (enum export_kind)i))
            continue;
        snprintf(name, sizeof name, "export %s", export_kinds[i].name);
        struct child *c = child_add(a, "exporter", name);
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
    if (a->config.hosts[0])
        child_add(a, "starter", "starter");
    if (run_config_posted(&a->config) && !a->is_node)
        child_add(a, "environments", "environments");
    child_add(a, "scorer", "scorer");
    const char *at = strcmp(a->config.devices, "auto") == 0 ? "cpu:0" : a->config.devices;
    for (; *at; at += at[strcspn(at, ",")] ? strcspn(at, ",") + 1 : strcspn(at, ",")) {
        struct run_part part;
        struct error ignored;
        snprintf(name, sizeof name, "worker %.*s", (int)MIN(strcspn(at, ","), (size_t)50), at);
        if (!run_config_part(&a->config, name + strlen("worker "), &part, &ignored)
            || run_part_has_worker(&part))    // else another worker drives it
            child_add(a, "worker", name);
    }
    exporters_make(a);
}

/* Wait for an event. False: none came before something was due, a child ended, or LOOK_MS passed; verdicts, figures and the stages
 * of the end are checked that often. A signal that comes just before the wait is seen after it. */
static bool agent_wait(struct agent *a, struct net_event *ev)
{
    struct pollfd fd[CHILD_MAX + 1];
    int64_t end = MIN(MIN(children_due(a), MIN(pendings_due(a), notes_due(a))), clock_ms() + (a->over ? END_LOOK_MS : LOOK_MS));
    for (;;) {
        if (transport_next(a->transport, ev))
            return true;
        int64_t now = clock_ms(), due = MIN(end, transport_due(a->transport));
        if (now >= end)
            return false;
        for (int i = 0; i < a->n_child; i++)
            fd[i] = (struct pollfd){ .fd = a->child[i].pidfd, .events = POLLIN };
        fd[a->n_child] = (struct pollfd){ .fd = transport_fd(a->transport), .events = POLLIN };
        int n = poll(fd, (nfds_t)a->n_child + 1, (int)MAX(due - now, (int64_t)0));
        if (n < 0 || (n > 0 && !(fd[a->n_child].revents & POLLIN)))
            return false;
    }
}

/* An agent that runs out of descriptors later could start nothing, and could not even say so. */
static bool files_try(const struct agent *a, struct error *err)
{
    int fd[CHILD_MAX + FILES_SPARE], n = 0, want = a->n_child + FILES_SPARE;
    struct rlimit limit = { 0 };
    while (n < want && (fd[n] = fcntl(RUN_LOCK_FD, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    for (int i = 0; i < n; i++)
        close(fd[i]);
    getrlimit(RLIMIT_NOFILE, &limit);
    return n == want
           || error_set(err, ERR_NO_MEMORY,
                        "the agent may open %" PRIu64 " files, and needs %d more for its processes; raise the limit ('ulimit -n')",
                        limit.rlim_cur, want - n);
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
    TRY(node_config(&a->config, run_dir, err));
    a->is_node = a->config.node_only;
    children_make(a);
    TRY(files_try(a, err));
    for (int i = 0; i < a->n_child; i++) {
        pid_t pid = process_find(run_dir, a->child[i].name);
        if (pid > 0) {
            child_watch(&a->child[i], pid);
            log_info("found '%s' running, pid %d", a->child[i].name, (int)pid);
        }
    }
    end_find(a);
    lives_find(a);
    int64_t looked_ms = clock_ms();
    while (!end_tick(a)) {
        int n = 0;
        children_tick(a);
        while (n++ < 256 && (n == 1 ? agent_wait(a, &ev) : transport_next(a->transport, &ev))) {
            if (ev.kind == NET_REQUEST)
                request_dispatch(a, &ev);
            else if (ev.kind == NET_ANSWER)
                answer_take(a, &ev);
            net_event_release(&ev);
        }
        pendings_tick(a);
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
    hold_point("ending");
    run_weights_remove(run_dir);
    snprintf(path, sizeof path, "%s/sock/ended", run_dir);
    TRY(file_write(path, "", 0, err));
    log_info("everything has ended");
    ok = true;
out:
    for (int i = 0; i < a->n_child; i++)
        buf_release(&a->child[i].gauges);
    for (int i = 0; i < PENDING_MAX; i++)
        buf_release(&a->pending[i].msg);
    buf_release(&a->detail);
    publisher_free(a->telemetry);
    publisher_free(a->view_telemetry);
    transport_free(a->transport);
    node_watch_free(a->node);
    journal_close(a->journal);
    free(a);
    return ok;
}

static bool agent_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = "agent";
    if (argc < 2 || strcmp(argv[1], "--run") != 0)    // called by an operator on a second host
        return join_subcommand.run(argc, argv, err);
    if (!process_args(argc, argv, "rollcall agent", &run_dir, &name, err))
        return false;
    log_component(name);
    return strcmp(name, "keeper") == 0 ? keeper_run(run_dir, err) : agent_run(run_dir, err);
}

const struct subcommand agent_subcommand = { "agent", agent_cmd, "join a run on another host: sample for it here" };
