#include "workers/worker/publishing.h"
#include <inttypes.h>
#include <stdio.h>
#include "workers/engine/model/extent.h"
#include "workers/engine/model/model.h"
#include "workers/engine/plan/run_room.h"
#include "workers/engine/publish/publication.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/worker/gap.h"
#include "workers/worker/items.h"
#include "workers/worker/outside.h"

#define TRAINERS_PARTED "the trainers have parted, and each has its shard of the weights only"

bool publishing_prepare(struct engine *e, struct error *err)
{
    const struct run_config *c = &e->config;
    char name[64];
    enum weights_way way;
    publication_forget(e->publication);
    if (e->publication)
        return publication_model(e->publication, e->model, err);
    if (!run_config_travels(c) || c->node_only || (e->rank != 0 && !e->produces) || !weights_way_parse(c->weights, &way)
        || way == WAY_FILES)    // it stays auto where there is nothing to choose
        return true;
    snprintf(name, sizeof name, "worker %s", e->device_name);
    struct publication_config p = { .model = e->rank != 0 ? e->sampler : e->model,
                                    .run_dir = e->run_dir,
                                    .name = name,
                                    .way = way,
                                    .gives = e->rank == 0,
                                    .limit_ms = (int64_t)(1000 * c->publish_timeout_s),
                                    .n_slot = run_versions_kept(c) };
    return (e->publication = publication_new(&p, err)) && publication_model(e->publication, e->model, err);
}

/* from: NULL: e->model. */
static bool weights_give(struct engine *e, const struct task *t, const struct extents *from, struct error *err)
{
    return (!e->publication || publication_share(e->publication, e->model, from, t->made, t->version, err))
           && (!t->path[0] || weights_file_write(e->model, from, t->path, err));
}

/* Out of all trainers' shards. Where others read them in place, they stay until publishing_withdraw. */
static bool shards_give(struct engine *e, const struct task *t, struct error *err)
{
    const struct extents *from;
    if (!e->ranks)
        return error_set(err, ERR_CLOSED, TRAINERS_PARTED);
    if (!ranks_weights_hold(e->ranks, &from, err))
        return false;
    bool ok = weights_give(e, t, from, err);
    if (!publication_in_place(e->publication))
        ranks_weights_let_go(e->ranks);
    return ok;
}

/* Out of the slices or stages of this trainer's devices. */
static bool slices_give(struct engine *e, const struct task *t, struct error *err)
{
    if (e->slices.n == 0 && !extent_table_of_model(&e->slices, e->trained, err))
        return false;
    const struct extents from = extent_table_all(&e->slices);
    return weights_give(e, t, &from, err);
}

bool publishing_withdraw(struct engine *e, struct error *err)
{
    bool ok = publication_withdraw(e->publication, err);
    if (e->ranks)
        ranks_weights_let_go(e->ranks);
    return ok;
}

bool share_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    r->round = e->round;    // the weights may come from all trainers
    if (e->rank != 0 || t->version != e->step)
        return error_set(err, ERR_INTERNAL, "version %" PRId64 " cannot be shared at step %" PRId64, t->version, e->step);
    engine_waits_for(e, "producers to take older weights");
    const struct holding *row = holdings_given(&e->holdings);
    bool ok = row->shards ? shards_give(e, t, err) : row->form == HELD_WHOLE ? weights_give(e, t, NULL, err) : slices_give(e, t, err);
    engine_waits_for(e, "");
    return ok;
}

void publishing_forget(struct engine *e)
{
    extent_table_release(&e->slices);
}

bool own_copy_fill(struct engine *e, struct error *err)
{
    return e->ranks ? ranks_weights_get(e->ranks, e->copy, err) : !e->copy || model_weights_copy(e->copy, e->trained, err);
}

bool own_weights_copy(struct engine *e, struct model *into, struct error *err)
{
    const struct holding *row = holdings_given(&e->holdings);
    if (!row->shards)
        return model_weights_copy(into, row->use == HOLDS_CURRENT ? e->model : e->trained, err);
    return e->ranks ? ranks_weights_get(e->ranks, into, err) : error_set(err, ERR_CLOSED, TRAINERS_PARTED);
}

/* Fill the sampler's weights with t's version: this trainer's own of this step, or what the first trainer has shared. */
static bool weights_fetch(struct engine *e, const struct task *t, struct error *err)
{
    bool own = e->trains && t->version == e->step;
    engine_waits_for(e, own ? "" : "the trainer's weights");
    bool ok = own              ? own_weights_copy(e, e->sampler, err)
              : e->publication ? publication_take(e->publication, e->sampler, t->made, t->version, err)
                               : weights_file_read(e->sampler, t->path, t->version, err);
    engine_waits_for(e, "");
    return ok;
}

bool publish_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    if (!holdings_has(&e->holdings, HOLDS_SAMPLED))
        return error_set(err, ERR_INTERNAL, "version %" PRId64 " cannot be published at step %" PRId64, t->version, e->step);
    r->round = e->round;    // the weights may come from all trainers
    if (e->external) {
        if (!outside_publish(e, t, err)) {
            r->again = err->code == ERR_NOT_FOUND;
            return false;
        }
        e->version = t->version;
        e->made = t->made;
        return true;
    }
    bool turned;
    if (!gap_turn(e, t->version, &turned, err))
        return false;
    int64_t before = e->version;
    e->version = -1;    // while they change, the weights have no version
    bool ok = weights_fetch(e, t, err);
    if (ok && e->config.free_running)
        generator_version_update(e->generator, t->version);
    else if (ok)
        ok = generator_version_set(e->generator, t->version, err);
    if (ok) {
        e->version = t->version;
        e->made = t->made;
        return true;
    }
    if (err->code == ERR_NOT_FOUND)    // nothing has been written
        e->version = before;
    else if (!gap_ends(e))
        items_drop(e);    // what is inside cannot continue: free-running items, guests. Else only the other generator has any
    if (turned)
        gap_turn_back(e);
    r->again = err->code == ERR_NOT_FOUND
               || (e->publication && (err->code == ERR_CLOSED || err->code == ERR_TIMEOUT || err->code == ERR_DATA));
    return false;
}
