/* starter_cmd.c - rollcall starter: the head's process that keeps a node on each of the run's `hosts`, over ssh
 *
 * One ssh per host, which runs `rollcall agent --join` there. The token goes through ssh's standard input, which stays open: when this
 * process or the connection ends, the agent sees the end of its input and leaves. An ssh that has ended is started again, after a pause
 * that grows. A host that does not come is an event of the run, once until it has come. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/child.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/subcommand.h"
#include "protocol/run/node.h"
#include "protocol/run/spawn.h"
#include "protocol/settings/host_list.h"
#include "protocol/settings/run_config.h"
#include "protocol/wire/join_token.h"
#include "workers/process/process.h"

#define LOOK_MS 500
#define PAUSE_MS 2000    // before the first new try; doubled each time, up to PAUSE_MAX_MS
#define PAUSE_MAX_MS 60000
#define STAYED_MS 60000    // an ssh that lived this long had come: the pause begins small again
#define TOKEN_MS 30000     // for the head to have made its token

struct remote {
    struct host host;
    pid_t pid;    // its ssh; 0: none
    int in;       // its standard input, kept open; -1: none
    int64_t started_ms, next_ms, pause_ms;
    bool told;               // that it does not come
    struct msg_out event;    // empty: nothing is to be told
    bool event_open;
};
struct starter {
    struct process process;
    struct run_config config;
    struct peer *controller;
    struct remote remote[HOSTS_MAX];
    int n;
    char token[JOIN_TOKEN_LEN + 2], rollcall[PATH_MAX];
};

static bool token_read(struct starter *s, struct error *err)
{
    char path[4300];
    snprintf(path, sizeof path, "%s/" NODE_TOKEN_FILE, s->process.run_dir);
    if (!join_token_read(s->token, path, err))
        return false;
    strcat(s->token, "\n");    // the array has room for it
    return true;
}

static bool ssh_start(struct starter *s, struct remote *r, struct error *err)
{
    int end[2];
    struct buf command = BUF_INIT;
    posix_spawn_file_actions_t actions;
    const char *run = strrchr(s->process.run_dir, '/');
    if (pipe2(end, O_CLOEXEC) != 0)
        return error_errno(err, "cannot make a pipe");
    host_command(&r->host, &s->config, s->rollcall, run ? run + 1 : "run", &command);
    char *argv[] = { "ssh",
                     "-T",
                     "-o",
                     "BatchMode=yes",
                     "-o",
                     "ConnectTimeout=15",
                     "-o",
                     "ServerAliveInterval=15",
                     r->host.target,
                     (char *)buf_text(&command),
                     NULL };
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, end[0], 0);
    posix_spawn_file_actions_addclose(&actions, RUN_LOCK_FD);    // ssh may outlive the run
    int rv = command.failed ? ENOMEM : child_spawn(&r->pid, "ssh", &actions, 0, argv, NULL);
    posix_spawn_file_actions_destroy(&actions);
    buf_release(&command);
    close(end[0]);
    ssize_t n = rv == 0 ? write(end[1], s->token, strlen(s->token)) : 0;    // 65 bytes into an empty pipe: it does not block
    if (rv == 0 && (n > 0 || errno == EPIPE)) {                             // a broken pipe: it has ended already, and ssh_ended says how
        r->in = end[1];
        r->started_ms = clock_ms();
        log_info("node '%s' is started over ssh on '%s', pid %d", r->host.node, r->host.target, (int)r->pid);
        return true;
    }
    close(end[1]);
    r->pid = rv == 0 ? r->pid : 0;
    errno = rv ? rv : errno;
    return error_errno(err, "cannot run 'ssh'");
}

static void event_make(const struct starter *s, struct remote *r, const char *how)
{
    struct error err;
    char text[500];
    snprintf(text, sizeof text,
             "node '%s' does not come: ssh to '%s' %s; RUN/logs/starter.log has what it printed; it is tried again, and the run goes on "
             "without it%s",
             r->host.node, r->host.target, how,
             s->config.num_trainers > run_config_trainers_here(&s->config) ? " once all trainers are here" : "");
    log_warn("%s", text);
    r->told = true;
    if (r->event.buf.len)
        return;
    msg_begin(&r->event, MSG_PUBLISH);
    msg_str(&r->event, "topic", "event");
    msg_map(&r->event, "body");
    msg_str(&r->event, "kind", "alert");
    msg_str(&r->event, "who", "starter");
    msg_str(&r->event, "text", text);
    msg_end(&r->event);
    if (!msg_finish(&r->event, &err))
        msg_release(&r->event);
}

static void ssh_ended(const struct starter *s, struct remote *r, int raw)
{
    char how[80];
    int64_t lived = clock_ms() - r->started_ms;
    if (WIFSIGNALED(raw))
        snprintf(how, sizeof how, "was killed by signal %d", WTERMSIG(raw));
    else
        snprintf(how, sizeof how, WEXITSTATUS(raw) == 127 ? "says that there is no rollcall (exit %d)" : "ended with exit %d",
                 WEXITSTATUS(raw));
    close(r->in);
    r->pid = 0;
    r->in = -1;
    r->pause_ms = lived > STAYED_MS ? PAUSE_MS : MIN(2 * r->pause_ms, (int64_t)PAUSE_MAX_MS);
    r->next_ms = clock_ms() + r->pause_ms;
    r->told = r->told && lived <= STAYED_MS;
    bool left = WIFEXITED(raw) && WEXITSTATUS(raw) == 0;    // dismissed, or the run is over
    if (left)
        r->next_ms = INT64_MAX;
    log_info("ssh to '%s' %s", r->host.target, how);
    if (!left && !r->told)
        event_make(s, r, how);
}

static void remote_tick(struct starter *s, int i)
{
    struct error err;
    struct remote *r = &s->remote[i];
    int raw;
    if (r->pid && waitpid(r->pid, &raw, WNOHANG) == r->pid)
        ssh_ended(s, r, raw);
    if (!r->pid && clock_ms() >= r->next_ms && !ssh_start(s, r, &err)) {
        r->pause_ms = PAUSE_MAX_MS;
        r->next_ms = clock_ms() + r->pause_ms;
        if (!r->told)
            event_make(s, r, err.text);
    }
    if (r->event.buf.len && !r->event_open)
        r->event_open = peer_ask(s->controller, &r->event, 5000, (uint64_t)i + 1, &err);
}

static void event_take(struct starter *s, const struct net_event *ev)
{
    if (ev->kind != NET_ANSWER || ev->peer != s->controller || ev->tag < 1 || ev->tag > (uint64_t)s->n)
        return;
    struct remote *r = &s->remote[ev->tag - 1];
    r->event_open = false;
    if (!ev->failed)
        msg_release(&r->event);
}

/* The token is the gate's to make. */
static bool token_wait(struct starter *s, struct error *err)
{
    struct net_event ev;
    int64_t until = clock_ms() + TOKEN_MS;
    while (!token_read(s, err)) {
        if (clock_ms() > until || process_is_over(&s->process))
            return false;
        if (process_wait(&s->process, &ev, LOOK_MS))
            net_event_release(&ev);
    }
    return true;
}

/* A token that replaces the last one, for the nodes that the head has not told it. Those that start later are given it first: the file is
 * read here alone, so that no node misses a change. */
static void tokens_send(struct starter *s)
{
    struct error none;
    char before[sizeof s->token];
    memcpy(before, s->token, sizeof before);
    if (!token_read(s, &none) || strcmp(before, s->token) == 0)    // on failure it is what it was
        return;
    for (int i = 0; i < s->n; i++)
        if (s->remote[i].in >= 0 && write(s->remote[i].in, s->token, strlen(s->token)) < 0)
            log_warn("'%s' cannot be sent the new join token: %s", s->remote[i].host.target, strerror(errno));
}

static void starter_loop(struct starter *s)
{
    struct net_event ev;
    while (!process_is_over(&s->process)) {
        if (process_wait(&s->process, &ev, process_pause_ms(&s->process, clock_ms() + LOOK_MS))) {
            event_take(s, &ev);
            net_event_release(&ev);
        }
        tokens_send(s);
        int n_up = 0;
        for (int i = 0; i < s->n; i++) {
            remote_tick(s, i);
            n_up += s->remote[i].pid != 0;
        }
        char text[64];
        snprintf(text, sizeof text, "%d of %d hosts", n_up, s->n);
        process_phase(&s->process, "watching", text);
        s->process.progress++;
    }
}

static bool starter_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = "starter";
    char path[4200];
    struct host host[HOSTS_MAX];
    bool ok = false;
    struct starter *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, ERR_NO_MEMORY, "no memory for the starter");
    TRY(process_args(argc, argv, "rollcall starter", &run_dir, &name, err));
    log_component(name);
    run_config_init(&s->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    TRY(run_config_read(&s->config, path, err) && host_list_read(s->config.hosts, host, &s->n, err));
    for (int i = 0; i < s->n; i++)
        s->remote[i] = (struct remote){ .host = host[i], .in = -1, .pause_ms = PAUSE_MS / 2, .event = MSG_OUT_INIT };
    if (readlink("/proc/self/exe", s->rollcall, sizeof s->rollcall - 1) < 0) {
        error_errno(err, "cannot find this program's path");
        goto out;
    }
    TRY(process_init(&s->process, run_dir, name, err));
    process_pace(&s->process, s->config.heartbeat_s);
    TRY(s->controller = peer_new(s->process.transport, "controller", err));
    TRY(token_wait(s, err));
    starter_loop(s);
    ok = true;
out:
    for (int i = 0; i < s->n; i++) {    // its input ends, so the agent there leaves, if the head has not told it to
        if (s->remote[i].in >= 0)
            close(s->remote[i].in);
        msg_release(&s->remote[i].event);
    }
    process_release(&s->process);
    free(s);
    return ok;
}

const struct subcommand starter_subcommand = { "starter", starter_cmd, NULL };
