/* engine.c - the engine's thread (engine_queues.c: what it is asked and what it tells)
 *
 * The thread takes a task and does it (the table kinds). While items are inside the sampler, it checks the queue after
 * each of the sampler's rounds. It waits for a task (without a limit, since only the loop sends tasks and ends the
 * thread), for scores inside an evaluation, and for the other trainers inside a train step. */
#include "workers/worker/engine.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"
#include "workers/engine/plan/run_room.h"
#include "workers/engine/publish/publication.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/sampler/external.h"
#include "workers/worker/bridge.h"
#include "workers/worker/engine_state.h"
#include "workers/worker/evaluation.h"
#include "workers/worker/guests.h"
#include "workers/worker/items.h"
#include "workers/worker/lending.h"
#include "workers/worker/loading.h"
#include "workers/worker/outside.h"
#include "workers/worker/profile.h"
#include "workers/worker/publishing.h"
#include "workers/worker/sampling.h"
#include "workers/worker/saving.h"
#include "workers/worker/training.h"

/* What the engine does for each kind of task. */
static const struct {
    const char *phase;    // shown while it runs; NULL: the previous one stays
    bool (*run)(struct engine *e, struct task *t, struct report *r, struct error *err);
    void (*failed)(struct engine *e);    // cleans up after a failed run; NULL: nothing to do
    bool takes;                          // a successful run takes the task: it ends later, or nothing is reported
    bool lifts;                          // changes the weights, or uses the sampler's memory: guests leave the sampler before
} kinds[N_TASK_KIND] = {
    [TASK_LOAD] = { "loading", loading_run, .failed = loading_undo },
    [TASK_ITEMS] = { NULL, items_run, .failed = items_drop, .takes = true },
    [TASK_TRAIN] = { "training", training_run, .lifts = true },
    [TASK_SHARE] = { "publishing", share_run },
    [TASK_PUBLISH] = { "publishing", publish_run, .lifts = true },
    [TASK_SAVE] = { "saving", saving_run, .takes = true },
    [TASK_EVAL] = { "evaluating", evaluation_run, .failed = items_drop },
    [TASK_CANCEL] = { NULL, cancel_run, .takes = true },
};

int engine_servers(struct engine *e, struct engine_server *out, int max)
{
    int n = 0;
    pthread_mutex_lock(&e->lock);
    if (e->bridge)
        n = bridge_behind(&e->config, e->bridge, out, max);
    if (e->lending && n < max)
        n += lending_unused(e, &out[n]);
    pthread_mutex_unlock(&e->lock);
    return n;
}

/* ---- the thread ---- */

/* Is nothing waiting and nothing running? */
static void idle_show(struct engine *e)
{
    bool away = e->external && external_is_away(e->external);
    pthread_mutex_lock(&e->lock);
    bool idle = !e->task_first, news = (idle && !e->look.idle) || away != e->look.away;
    e->look.away = away;
    if (idle) {
        e->look.idle = true;
        e->look.sampling = false;
        e->look.gap = false;
        e->look.n_item = e->look.n_item_ending = 0;
        e->look.n_running = e->look.n_waiting = e->look.n_page_used = 0;
        snprintf(e->look.phase, sizeof e->look.phase, "waiting");
    }
    pthread_mutex_unlock(&e->lock);
    if (news)
        e->wake(e->wake_ctx);
}

/* Wait for the next task; NULL: a checkpoint has been written, or the sampler or a guest has something to do and no task is
 * waiting. */
static struct task *task_wait(struct engine *e)
{
    bool busy = sampler_busy(e) || guests_want(e), empty = sampler_empty(e), asked = !busy && !empty;
    if (empty)
        idle_show(e);
    if (asked)
        sampler_waits_show(e);
    pthread_mutex_lock(&e->lock);
    while (!e->task_first && !busy && !e->written && !e->turned_first && !e->visited)
        pthread_cond_wait(&e->some, &e->lock);
    if (asked)
        e->look.waits_for[0] = 0;
    e->written = e->visited = false;
    struct task *t = e->task_first;
    if (t) {
        e->task_first = t->next;
        if (!e->task_first)
            e->task_last = &e->task_first;
    }
    pthread_mutex_unlock(&e->lock);
    return t;
}

static void versions_show(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->look.step = e->step;
    e->look.version = e->version;
    e->look.made = e->made;
    e->look.ending = e->ending.version;
    e->look.ending_made = e->ending.made;
    e->look.n_keeps = e->rank == 0 ? run_versions_kept(&e->config) : 0;
    e->look.round = e->round;
    e->look.saves = e->saves;
    e->look.n_row = e->prompts.n_row;
    e->look.n_id = e->model ? MIN((int64_t)tokenizer_n_id(e->prompts.tokenizer), model_config(e->model)->vocab) : 0;
    e->look.n_shared = publication_versions(e->publication, e->look.shared);
    e->look.publish_ms = publication_ms(e->publication);
    pthread_mutex_unlock(&e->lock);
}

/* The loop may ask for work with the version that versions_show has told. */
static void taking_end(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->look.taking = false;
    pthread_mutex_unlock(&e->lock);
}

static void task_run(struct engine *e, struct task *t)
{
    struct error err = { 0 };
    enum task_kind kind = t->kind;
    struct report *r = report_new(t);
    BUG_IF(!kinds[kind].run, "task %d is not the engine's", (int)kind);
    if (kinds[kind].phase)
        engine_phase(e, kinds[kind].phase);
    if (kinds[kind].lifts)
        guests_lift(e);
    bool ok = kinds[kind].run(e, t, r, &err);
    if (ok && kinds[kind].takes) {
        report_free(r);
        return;
    }
    if (!ok && kinds[kind].failed)
        kinds[kind].failed(e);
    versions_show(e);
    if (kind == TASK_PUBLISH)
        taking_end(e);
    guests_look(e);
    engine_done(e, t, r, ok ? NULL : &err);
    task_free(t);
    e->idle_ms = clock_ms();
}

/* A round of the sampler; when it fails, so do the items inside. */
static void sampler_run(struct engine *e)
{
    struct error err = { 0 };
    if (outside_gives_up(e)) {
        items_drop(e);
        return;
    }
    if (items_step(e, &err))
        return;
    items_drop(e);
    engine_done(e, e->items_task, report_new(e->items_task), &err);
}

/* The run has nothing to sample: a round for its guests, which have been told if it fails. */
static void guests_run(struct engine *e)
{
    struct error err;
    if (e->generator && !sampler_step(e, &err))
        log_warn("a step of guests failed: %s", err.text);
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    for (;;) {
        struct task *t = task_wait(e);
        if (t && t->kind == TASK_STOP) {
            task_free(t);
            return NULL;
        }
        if (t)
            task_run(e, t);
        else if (!sampler_empty(e))
            sampler_run(e);
        else
            guests_run(e);
        saving_look(e, false);
    }
}

/* ---- creating and freeing ---- */

struct engine *engine_new(const struct run_config *config, const char *run_dir, const char *device, int n_thread, void (*wake)(void *ctx),
                          void *ctx, struct error *err)
{
    struct run_part part;
    struct engine *e = calloc(1, sizeof *e);
    if (!e) {
        error_set(err, ERR_NO_MEMORY, "no memory for the engine");
        return NULL;
    }
    if (!run_config_part(config, device, &part, err) || !run_id_read(run_dir, e->run_id, err) || !(e->quit = task_new(TASK_STOP, err))) {
        free(e);
        return NULL;
    }
    e->config = *config;
    snprintf(e->run_dir, sizeof e->run_dir, "%s", run_dir);
    snprintf(e->device_name, sizeof e->device_name, "%s", device);
    e->n_thread = n_thread;
    e->trains = part.rank >= 0;
    e->produces = part.producer >= 0;
    e->rank = part.rank;
    e->producer = part.producer;
    e->wake = wake;
    e->wake_ctx = ctx;
    e->task_last = &e->task_first;
    e->report_last = &e->report_first;
    e->turned_last = &e->turned_first;
    e->step = e->version = e->ending.version = e->look.step = e->look.version = e->look.ending = -1;
    e->look.publish_ms = e->look.ranks_idle_s = e->look.ranks_exposed_s = NAN;
    e->look.items_max = config->inference_microbatch_size;
    snprintf(e->look.phase, sizeof e->look.phase, "starting");
    pthread_mutex_init(&e->lock, NULL);
    clock_cond_init(&e->some);
    if (thread_start(&e->thread, engine_main, e) != 0) {
        error_set(err, ERR_IO, "cannot start the engine's thread");
        task_free(e->quit);
        free(e);
        return NULL;
    }
    return e;
}

static void queues_release(struct engine *e)
{
    struct report *r;
    while ((r = engine_take(e)))
        report_free(r);
    while ((r = e->turned_first)) {
        e->turned_first = r->next;
        report_free(r);
    }
    while (e->task_first) {
        struct task *t = e->task_first;
        e->task_first = t->next;
        task_free(t);
    }
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    engine_put(e, e->quit);
    pthread_join(e->thread, NULL);
    saving_end(e);
    task_free(e->items_task);
    profile_write(e);
    guests_free(e);
    loading_undo(e);
    queues_release(e);
    external_free(e->external);
    bridge_free(e->bridge);
    prompts_release(&e->prompts);
    publication_free(e->publication);
    for (size_t i = 0; i < ARRAY_SIZE(e->helper); i++)
        device_free(e->helper[i]);
    device_free(e->dev);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->some);
    free(e);
}
