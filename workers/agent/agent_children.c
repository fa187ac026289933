/* The agent's children: started, watched through their process descriptors, and restarted, except exporters. */
#include "workers/agent/agent_parts.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/spawn.h"

#define DEATHS_MAX 6      // quick deaths in a row
#define MUTE_DEATHS 3     // ... that one counts for which had never given a sign of life, and took its time for that
#define SPAWN_MS 10000    // for a process that cannot be started, before the run is given up
#define SPAWN_AGAIN_MS 1000

int pidfd_of(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

struct child *child_add(struct agent *a, const char *command, const char *name)
{
    if (a->n_child == CHILD_MAX)
        return NULL;
    struct child *c = &a->child[a->n_child++];
    *c = (struct child){ .command = command, .pidfd = -1 };
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

struct child *child_find(struct agent *a, const char *name)
{
    for (int i = 0; i < a->n_child; i++)
        if (strcmp(a->child[i].name, name) == 0)
            return &a->child[i];
    return NULL;
}

void child_watch(struct child *c, pid_t pid)
{
    if (c->pidfd >= 0)
        close(c->pidfd);
    c->pid = pid;
    c->pidfd = pidfd_of(pid);
    c->started_ms = c->heard_ms = c->phase_ms = c->progress_ms = clock_ms();
    snprintf(c->phase, sizeof c->phase, "starting");
    c->waits_for[0] = 0;
    c->stuck_ms = 0;
    c->spoke = c->mute = false;
    if (c->pidfd < 0)
        c->pid = 0;    // it is gone already
}

/* Use the descriptor: a process that we found is not our child, so its number may have been reused. */
static void child_signal(const struct child *c, int sig)
{
    if (c->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, c->pidfd, sig, NULL, 0);
}

void child_kill(const struct child *c)
{
    child_signal(c, SIGKILL);
}

void child_stop(const struct child *c)
{
    child_signal(c, SIGTERM);
}

/* Give up on the run. */
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

/* It is said once. A limit that others have used up may be free again soon; if not, the run cannot go on without this process. */
static void spawn_failed(struct agent *a, struct child *c, const struct error *err)
{
    char text[1024];
    int64_t now = clock_ms();
    c->next_ms = now + SPAWN_AGAIN_MS;
    if (c->unspawned_ms == 0) {
        c->unspawned_ms = now;
        log_error("%s", err->text);
        note_add(a, "alert", "agent", err->text);
    }
    if (now - c->unspawned_ms < SPAWN_MS || !c->command)
        return;
    if (c->exporter) {
        c->next_ms = INT64_MAX;
        c->failed = true;
        return;
    }
    snprintf(text, sizeof text, "%.900s (tried for %d s)", err->text, SPAWN_MS / 1000);
    agent_fail(a, text);
}

static void child_start(struct agent *a, struct child *c)
{
    struct error err;
    const char *command = c->command ? c->command : "agent";
    pid_t pid = process_spawn(command, a->run_dir, c->name, RUN_LOCK_FD, false, &err);
    if (pid < 0) {
        spawn_failed(a, c, &err);
        return;
    }
    c->unspawned_ms = 0;
    child_watch(c, pid);
    c->failed = false;
    log_info("started '%s', pid %d", c->name, (int)pid);
}

/* An exporter is not restarted. When it has failed, the operators are told: what it had to send is still unsent. */
static void exporter_ended(struct agent *a, struct child *c, const char *how, bool failed)
{
    char text[256], last[512];
    c->next_ms = INT64_MAX;
    c->failed = failed;
    if (!failed) {
        log_info("'%s' %s", c->name, how);
        return;
    }
    log_last_line(a->run_dir, c->name, last, sizeof last);
    snprintf(text, sizeof text, "'%s' %s and is not restarted: %.150s", c->name, how, last);
    note_add(a, "alert", "agent", text);
}

void death_note(struct agent *a, const struct child *c, pid_t pid, const char *how, int64_t lived_ms)
{
    static const struct {
        const char *command, *follows;
    } rows[] = {
        { "worker", "what it sampled is sampled again, and trainers go back to the last checkpoint" },
        { "controller", "the new one goes on from the journal" },
        { "scorer", "what it had is scored again" },
    };
    char text[512];
    const char *follows = c->exporter ? "it goes on where its cursor stands" : "the run goes on";
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (c->command && strcmp(c->command, rows[i].command) == 0)
            follows = rows[i].follows;
    snprintf(text, sizeof text, "'%s' (pid %d) %s after %.1f s and is started again; nothing is lost: %s", c->name, (int)pid, how,
             (double)lived_ms / 1000, follows);
    note_add(a, "process", "agent", text);
}

static void child_died(struct agent *a, struct child *c)
{
    int status = SIGKILL;    // not our child, so its status is unknown: treat as killed
    char how[64] = "ended", last[512], text[1024];
    if (waitpid(c->pid, &status, WNOHANG) == c->pid)
        process_end_words(status, how, sizeof how);
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
    c->n_quick = c->mute ? c->n_quick + MUTE_DEATHS : lived < QUICK_MS && failed ? c->n_quick + 1 : 0;
    c->n_restart++;
    c->next_ms = clock_ms() + (c->n_quick > 0 ? MIN(100 << MIN(c->n_quick, 4), 2000) : 0);
    log_warn("'%s' (pid %d) %s after %.1f s", c->name, (int)pid, how, (double)lived / 1000);
    if (c->n_quick < DEATHS_MAX)
        death_note(a, c, pid, how, lived);
    if (c->n_quick >= DEATHS_MAX && c->exporter) {    // training goes on without it
        exporter_ended(a, c, how, true);
    } else if (c->n_quick >= DEATHS_MAX) {
        log_last_line(a->run_dir, c->name, last, sizeof last);
        snprintf(text, sizeof text, "'%s' cannot run; it was started again and again: %.600s", c->name,
                 c->mute   ? "it has given no sign of life"
                 : last[0] ? last
                           : how);
        agent_fail(a, text);
    }
}

int64_t children_due(const struct agent *a)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < a->n_child && !a->stop_ms && !a->over; i++)
        if (!a->child[i].pid)
            due = MIN(due, a->child[i].next_ms);
    return due;
}

void children_tick(struct agent *a)
{
    int64_t now = clock_ms();
    struct pollfd fd[CHILD_MAX];
    for (int i = 0; i < a->n_child; i++)
        fd[i] = (struct pollfd){ .fd = a->child[i].pidfd, .events = POLLIN };
    poll(fd, (nfds_t)a->n_child, 0);
    bool changed = false;
    for (int i = 0; i < a->n_child; i++) {
        struct child *c = &a->child[i];
        pid_t before = c->pid;
        if (c->pid && (fd[i].revents & POLLIN))
            child_died(a, c);
        if (!c->pid && now >= c->next_ms && !a->stop_ms && !a->over)
            child_start(a, c);
        changed |= c->pid != before;
    }
    if (changed)
        lives_keep(a);
}
