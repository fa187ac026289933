/* sampling.c - what samples for the run: the generator, the other one (gap.h), an environment's episodes, or an external engine */
#include "workers/worker/sampling.h"
#include <string.h>
#include "protocol/base/clock.h"
#include "workers/engine/sampler/external.h"
#include "workers/worker/episodes_parts.h"
#include "workers/worker/gap.h"
#include "workers/worker/guests.h"
#include "workers/worker/items.h"

/* ---- the sampler, with or without an environment ---- */

/* A step of the generator, with its guests, and of the other one. */
static bool generator_round(struct engine *e, struct error *err)
{
    if (e->ending.generator && !generator_step(e->ending.generator, err))
        return false;
    guests_feed(e);
    bool ok = generator_step(e->generator, err);
    guests_stepped(e, ok ? NULL : err);
    return ok;
}

bool sampler_step(struct engine *e, struct error *err)
{
    if (e->external)
        return !external_failed(e->external, err);
    if (!e->episodes)
        return generator_round(e, err);
    episode_answers_take(e);
    if (!ready_submit(e, err) || !generator_round(e, err))
        return false;
    for (struct group *g; (g = generator_poll(e->generator));)
        group_free(g);
    for (struct episode_item *it = e->episodes->item; it; it = it->next)
        for (int32_t i = 0; i < it->n_sample; i++)
            if (it->sample[i].state == EPISODE_DRAWS && it->sample[i].ended && !turn_end(e, it, i, err))
                return false;
    return items_finish(e, err);
}

struct group *sampler_poll(struct engine *e, bool *ending)
{
    struct episodes *all = e->episodes;
    *ending = false;
    if (e->external)
        return external_poll(e->external);
    struct group *last = e->ending.generator ? generator_poll(e->ending.generator) : NULL;
    *ending = last != NULL;
    if (last)
        return last;
    if (!all)
        return generator_poll(e->generator);
    if (all->n_finished == 0)
        return NULL;
    struct group *g = all->finished[0];
    memmove(all->finished, all->finished + 1, (size_t)(--all->n_finished) * sizeof *all->finished);
    return g;
}

/* Drop an item with all its samples; answers still to come are ignored. */
static void episode_drop(struct engine *e, struct episode_item *it)
{
    struct episode_item **at = &e->episodes->item;
    while (*at != it)
        at = &(*at)->next;
    *at = it->next;
    e->episodes->n_item--;
    for (int32_t i = 0; i < it->n_sample; i++)
        generator_drop(e->generator, it->serial << SAMPLE_BITS | i);
    episode_item_free(it);
}

static bool episode_stop(struct engine *e, int64_t rollout_step, int64_t n_tok, struct stopped_item *out)
{
    for (struct episode_item *it = e->episodes->item; it; it = it->next) {
        *out = (struct stopped_item){ .item = it->item, .version = it->version >= 0 ? it->version : e->version };
        for (int32_t i = 0; i < it->n_sample; i++) {
            out->n_tok = MAX(out->n_tok, it->sample[i].n_tok);
            out->n_drawn += it->sample[i].n_tok;
        }
        if (it->rollout_step == rollout_step && out->n_tok > n_tok) {
            episode_drop(e, it);
            return true;
        }
    }
    return false;
}

bool sampler_stop(struct engine *e, int64_t rollout_step, int64_t n_tok, struct stopped_item *out, bool *ending)
{
    *ending = e->ending.generator && generator_stop(e->ending.generator, rollout_step, n_tok, out);
    if (*ending || e->episodes)
        return *ending || episode_stop(e, rollout_step, n_tok, out);
    return e->generator && generator_stop(e->generator, rollout_step, n_tok, out);
}

bool sampler_drop(struct engine *e, int64_t item, struct stopped_item *out, bool *ending)
{
    *ending = e->ending.generator && generator_drop_item(e->ending.generator, item, out);
    return *ending || (e->generator && !e->episodes && generator_drop_item(e->generator, item, out));
}

bool sampler_busy(const struct engine *e)
{
    if (e->external)
        return external_ready(e->external);
    return e->generator && (!generator_idle(e->generator) || gap_ends(e));
}

void sampler_waits_show(struct engine *e)
{
    char what[64] = "the environment";
    if (e->external)
        external_trouble(e->external, what, sizeof what);
    engine_waits_for(e, what[0] ? what : "the external engine");
}

bool sampler_empty(const struct engine *e)
{
    if (e->external)
        return external_idle(e->external);
    return (!e->generator || (generator_own_idle(e->generator) && !gap_ends(e))) && (!e->episodes || e->episodes->n_item == 0);
}

bool sampler_wait(struct engine *e, int64_t wait_ms, struct error *err)
{
    if (sampler_busy(e) || sampler_empty(e) || guests_want(e))
        return true;
    struct timespec end = clock_after(wait_ms);
    bool late = false;
    pthread_mutex_lock(&e->lock);
    while (!e->turned_first && !e->visited && !late)
        late = pthread_cond_timedwait(&e->some, &e->lock, &end) != 0;
    late = late && !e->turned_first;
    pthread_mutex_unlock(&e->lock);
    return !late || error_set(err, ERR_TIMEOUT, "the environment has not answered for %g s", (double)wait_ms / 1000);
}
