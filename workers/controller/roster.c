#include "workers/controller/roster.h"
#include <stdio.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "workers/controller/controller.h"

struct worker *worker_find(struct controller *c, const char *name)
{
    for (int i = 0; i < c->workers.n; i++)
        if (strcmp(c->workers.worker[i].name, name) == 0)
            return &c->workers.worker[i];
    return NULL;
}

int worker_id(const struct controller *c, const struct worker *w)
{
    return (int)(w - c->workers.worker) + 1;
}

bool worker_is_away(const struct worker *w)
{
    return strchr(w->name, '/') != NULL;
}

bool worker_is_of(const struct worker *w, const char *node)
{
    size_t len = strlen(node);
    return len > 0 && strncmp(w->name, node, len) == 0 && w->name[len] == '/';
}

const struct worker *workers_first(const struct controller *c)
{
    for (int i = 0; i < c->workers.n; i++)
        if (c->workers.worker[i].rank == 0)
            return &c->workers.worker[i];
    return NULL;
}

bool workers_are_away(const struct controller *c)
{
    for (int i = 0; i < c->workers.n; i++) {
        const struct worker *w = &c->workers.worker[i];
        bool has_own = w->consumes && c->config.n_behind == 0;
        if (w->start && worker_is_away(w) && !has_own && clock_ms() - w->heard_ms < AWAY_MS)
            return true;
    }
    return false;
}

int64_t workers_in_task(const struct controller *c, enum task_kind kind)
{
    int64_t n = 0;
    for (int i = 0; i < c->workers.n; i++)
        n += c->workers.worker[i].task != 0 && (kind == TASK_NONE || c->workers.worker[i].task_kind == kind);
    return n;
}

void workers_tasks_forget(struct controller *c)
{
    for (int i = 0; i < c->workers.n; i++)
        if (c->workers.worker[i].task_kind != TASK_LOAD)
            c->workers.worker[i].task = 0;
}

/* All workers with a task are named, since one of them may wait for the others; which of them is late, the agent adds. */
void workers_late(const struct controller *c, char *out, size_t size)
{
    const struct workers *all = &c->workers;
    size_t at = 0;
    for (int i = 0; i < all->n && at < size; i++)
        if (all->worker[i].task)
            at += (size_t)snprintf(out + at, size - at, "%s%s in '%s'", at ? ", " : "", all->worker[i].name,
                                   task_kind_name(all->worker[i].task_kind));
    if (at == 0)
        snprintf(out, size, all->n ? "%s, which has not asked for work" : "no worker is there", all->n ? all->worker[0].name : "");
}

bool trainer_in_step(const struct controller *c, const struct worker *w)
{
    return w->step == c->step && w->incarnation == c->incarnation && w->round == c->rounds.round;
}

bool trainer_is_ahead(const struct controller *c, const struct worker *w)
{
    return w->rank > 0 && w->step == c->step + 1 && rounds_step_begun(c) && w->incarnation == c->incarnation && w->round == c->rounds.round;
}
