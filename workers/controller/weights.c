#include "workers/controller/weights.h"
#include <unistd.h>
#include "protocol/base/file.h"
#include "workers/controller/controller.h"
#include "workers/controller/workers.h"
#include "workers/engine/publish/publication.h"

#define FORGET_STEPS 64    // looked back for files: some versions were never shared

bool weights_are_shared(const struct controller *c)
{
    return run_config_travels(&c->config) || workers_are_away(c);
}

/* Do weights get to this host's samplers out of the first trainer's memory (copy, nccl)? Other nodes have files always. */
static bool weights_by_memory(const struct controller *c)
{
    enum weights_way way;
    return run_config_travels(&c->config) && weights_way_parse(c->config.weights, &way) && way != WAY_FILES;
}

bool weights_need_file(const struct controller *c)
{
    return !weights_by_memory(c) || workers_are_away(c);
}

void weights_path(const struct controller *c, int64_t version, char *out, size_t size)
{
    weights_file_path(c->process.run_dir, lineage_made(&c->lineage, version), version, out, size);
}

bool version_undone(const struct controller *c, const struct worker *w)
{
    return (w->version >= 0 && w->made != lineage_made(&c->lineage, w->version))
           || (w->ending >= 0 && w->ending_made != lineage_made(&c->lineage, w->ending));
}

/* The first trainer, when what it keeps belongs to the present incarnation; else NULL. */
static const struct worker *sharer(const struct controller *c)
{
    const struct worker *w = workers_first(c);
    return w && w->incarnation == c->incarnation && w->round == c->rounds.round ? w : NULL;
}

static bool weights_in_memory(const struct controller *c, int64_t version)
{
    const struct worker *w = sharer(c);
    for (int i = 0; w && i < w->n_shared; i++)
        if (w->shared[i] == version)
            return true;
    return false;
}

static bool weights_in_file(const struct controller *c, int64_t version)
{
    char path[4200];
    weights_path(c, version, path, sizeof path);
    return path_exists(path);
}

bool weights_shared_with(const struct controller *c, const struct worker *w, int64_t version)
{
    return weights_by_memory(c) && !worker_is_away(w) ? weights_in_memory(c, version) : weights_in_file(c, version);
}

bool weights_shared(const struct controller *c, int64_t version)
{
    if (run_config_posted(&c->config))
        return true;    // nobody samples, so nobody has to get them
    return (!weights_by_memory(c) || weights_in_memory(c, version)) && (!weights_need_file(c) || weights_in_file(c, version));
}

bool weights_coming(const struct controller *c, const struct worker *w, int64_t version)
{
    const struct worker *from = sharer(c);
    return weights_shared_with(c, w, version)
           || (weights_by_memory(c) && !worker_is_away(w) && from && from->task_kind == TASK_SHARE && from->task_step == version);
}

bool weights_outlive_step(const struct controller *c)
{
    return !weights_by_memory(c) || c->config.n_behind > 0 || c->config.free_running;
}

/* The oldest version that items or an evaluation still need; -1: none. */
static int64_t version_needed(const struct controller *c)
{
    int64_t items = c->ledger ? ledger_version_wanted(c->ledger) : -1;
    int64_t eval = c->evals.running >= 0 ? c->evals.running : c->evals.wanted;
    return items < 0 || (eval >= 0 && eval < items) ? eval : items;
}

/* Free-running, nobody insists on an older version. */
bool weights_fit(const struct controller *c, const struct worker *w)
{
    if (!weights_by_memory(c) || weights_in_memory(c, c->step) || c->config.free_running)
        return true;
    int64_t wanted = version_needed(c), oldest = INT64_MAX;
    for (int i = 0; i < w->n_shared; i++)
        oldest = MIN(oldest, w->shared[i]);
    return w->n_shared < MAX(w->keeps, (int64_t)1) || wanted < 0 || oldest < wanted;
}

bool weights_own_present(const struct controller *c)
{
    const struct worker *w = workers_first(c);
    return w && c->config.n_behind > 0 && w->version == c->step;
}

static void file_remove(const struct controller *c, int64_t version)
{
    char path[4200];
    weights_path(c, version, path, sizeof path);
    unlink(path);
}

void weights_forget(const struct controller *c, int64_t step)
{
    int64_t wanted = version_needed(c);
    for (int64_t v = step - 1; v >= 0 && v >= step - FORGET_STEPS; v--)
        if (wanted < 0 || v < wanted)
            file_remove(c, v);
}

void weights_undo(const struct controller *c, int64_t from, int64_t to)
{
    for (int64_t v = from + 1; v <= to; v++)
        file_remove(c, v);
}
