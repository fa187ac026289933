#include "workers/worker/gap.h"
#include <inttypes.h>
#include "protocol/base/log.h"
#include "workers/engine/model/lora.h"
#include "workers/engine/model/model.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/text/tokenizer.h"

/* A model with the shape of the engine's, without weights, on e->twin. */
static struct model *model_on_twin(struct engine *e, struct error *err)
{
    struct model *m = model_new_empty(model_config(e->model), e->twin, model_dtype(e->model), err);
    if (m && model_parts_set(m, run_config_sum_parts(&e->config), err))
        return m;
    model_free(m);
    return NULL;
}

bool gap_prepare(struct engine *e, struct error *err)
{
    bool overlap = !e->dev->host_memory && !model_lora(e->model);    // an adapter stays with its base
    if (overlap && !(e->twin = device_new(e->device_name, e->n_thread, err)))
        return false;
    if (!(e->ending.model = overlap ? model_on_twin(e, err) : model_new_like(e->model, err)))
        return false;
    model_n_live_set(e->ending.model, tokenizer_n_id(e->prompts.tokenizer));
    return true;
}

bool gap_open(struct engine *e, const struct generator_config *own, struct error *err)
{
    struct generator_config g = *own;
    if (!e->ending.model)
        return true;
    g.model = e->ending.model;
    if (!(e->ending.generator = generator_new(&g, err)))
        return false;
    log_info("two versions of the weights can be in work: the next one fills the gap at the end of a rollout step (fill_gap)");
    return true;
}

/* No version is in work beside the engine's own. */
static void ending_over(struct engine *e)
{
    e->ending.version = -1;
    pthread_mutex_lock(&e->lock);
    e->look.ending = -1;
    pthread_mutex_unlock(&e->lock);
}

void gap_clear(struct engine *e)
{
    if (!e->ending.generator)
        return;
    generator_clear(e->ending.generator);
    e->ending.n_running = e->ending.most_running = 0;
    ending_over(e);
}

bool gap_ends(const struct engine *e)
{
    return e->ending.generator && !generator_idle(e->ending.generator);
}

/* The engine's own generator becomes the other one. */
static void exchange(struct engine *e)
{
    struct lane was = { .model = e->model,
                        .generator = e->generator,
                        .version = e->version,
                        .made = e->made,
                        .n_running = e->look.n_running - e->ending.n_running,    // written by this thread only
                        .most_running = e->most_running };
    e->model = e->ending.model;
    e->generator = e->ending.generator;
    e->version = e->ending.version;
    e->made = e->ending.made;
    e->most_running = e->ending.most_running;
    e->ending = was;
    e->trained = e->sampler = e->model;    // nothing is trained
    e->turned = !e->turned;
    pthread_mutex_lock(&e->lock);
    int64_t n = e->look.n_item;
    e->look.n_item = e->look.n_item_ending;
    e->look.n_item_ending = n;
    pthread_mutex_unlock(&e->lock);
}

void gap_end(struct engine *e)
{
    if (e->turned)    // the model that the other one was made of goes last: they may share the base of an adapter
        exchange(e);
    generator_free(e->ending.generator);
    model_free(e->ending.model);
    device_free(e->twin);
    e->twin = NULL;
    e->ending = (struct lane){ .version = -1 };
}

bool gap_turn(struct engine *e, int64_t version, bool *turned, struct error *err)
{
    *turned = e->ending.generator && !generator_idle(e->generator);
    if (!*turned)
        return true;
    if (gap_ends(e))
        return error_set(err, ERR_INTERNAL, "version %" PRId64 " is to be taken while versions %" PRId64 " and %" PRId64 " are in work",
                         version, e->version, e->ending.version);
    exchange(e);
    log_info("version %" PRId64 " is taken beside version %" PRId64 ", of which %" PRId64 " samples run", version, e->ending.version,
             e->ending.n_running);
    return true;
}

void gap_turn_back(struct engine *e)
{
    exchange(e);
    ending_over(e);
}

void gap_close_up(struct engine *e)
{
    if (e->ending.version >= 0 && !gap_ends(e))
        ending_over(e);
}

void gap_stats_add(struct engine *e, struct generator_stats *s)
{
    struct generator_stats other;
    if (!e->ending.generator)
        return;
    generator_stats(e->ending.generator, &other);
    e->ending.n_running = other.n_running_seq;
    e->ending.most_running = other.n_running_seq > 0 ? MAX(e->ending.most_running, other.n_running_seq) : 0;
    generator_stats_add(s, &other);
}

bool gap_is_open(const struct engine *e, const struct generator_stats *s)
{
    return e->ending.generator && (!gap_ends(e) || generator_idle(e->generator)) && s->n_waiting_seq == 0
           && 2 * s->n_running_seq < MAX(e->most_running, e->ending.most_running);
}
