/* What the next agent must know of the processes when this one is killed: how often each has been restarted, and since when it lives.
 *
 * RUN/sock/lives, replaced as a whole whenever that changes. A line each, the agent's own first: restarts, process id, start in
 * milliseconds of the monotonic clock, name. It goes with what else is removed from the folder when a run is started. */
#include "workers/agent/agent_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"

#define LIVES_BYTES_MAX (CHILD_MAX * 128)

static void lives_path(const struct agent *a, char *out, size_t size)
{
    snprintf(out, size, "%s/sock/lives", a->run_dir);
}

static void life_write(struct buf *text, const struct child *c)
{
    buf_fmt(text, "%d %d %" PRId64 " %s\n", c->n_restart, (int)c->pid, c->started_ms, c->name);
}

void lives_keep(const struct agent *a)
{
    char path[4200];
    struct error err;
    struct buf text = BUF_INIT;
    life_write(&text, &a->self);
    for (int i = 0; i < a->n_child; i++)
        life_write(&text, &a->child[i]);
    lives_path(a, path, sizeof path);
    if (!file_write(path, text.data, text.len, &err))
        log_warn("%s", err.text);
    buf_release(&text);
}

/* One line of the agent before: it is the child's life still, or that has ended while nobody watched it. */
static void life_take(struct agent *a, struct child *c, int n_restart, pid_t pid, int64_t started_ms)
{
    c->n_restart = n_restart;
    if (c->pid == pid)
        c->started_ms = started_ms;
    else if (pid > 0 && !c->exporter && !a->over) {
        c->n_restart++;
        death_note(a, c, pid, "has ended while no agent watched it,", clock_ms() - started_ms);
    }
}

void lives_find(struct agent *a)
{
    char path[4200], said[256];
    struct error err;
    struct buf text = BUF_INIT;
    lives_path(a, path, sizeof path);
    a->self.pid = getpid();
    a->self.started_ms = clock_ms();
    snprintf(a->self.name, sizeof a->self.name, "agent");
    if (path_exists(path) && !file_read(&text, path, LIVES_BYTES_MAX, &err))
        log_warn("%s", err.text);
    for (const char *at = text.len ? buf_text(&text) : ""; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        int n_restart, pid, name_at = 0;
        int64_t started_ms;
        char name[sizeof a->self.name];
        if (sscanf(at, "%d %d %" SCNd64 " %n", &n_restart, &pid, &started_ms, &name_at) < 3 || !name_at || n_restart < 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + name_at, "\n"), at + name_at);
        struct child *c = child_find(a, name);
        if (c) {
            life_take(a, c, n_restart, pid, started_ms);
        } else if (strcmp(name, a->self.name) == 0 && pid != a->self.pid && !a->over) {
            a->self.n_restart = n_restart + 1;
            snprintf(said, sizeof said,
                     "'agent' (pid %d) has ended after %.1f s and is started again; nothing is lost: the processes went on", pid,
                     (double)(a->self.started_ms - started_ms) / 1000);
            note_add(a, "process", "keeper", said);
        }
    }
    buf_release(&text);
    lives_keep(a);
}
