#include "workers/worker/training.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "protocol/base/clock.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "workers/engine/model/model.h"
#include "workers/engine/publish/publication.h"
#include "workers/engine/sampler/generator.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/engine/trainer/trainer.h"
#include "workers/engine/trainer/trainer_metrics.h"
#include "workers/worker/bridge.h"
#include "workers/worker/lending.h"
#include "workers/worker/loading.h"
#include "workers/worker/publishing.h"
#include "workers/worker/utilisation.h"

/* The control experiment: shuffle the scores among all samples of the batch, in an order fixed by seed and step. */
static void scores_shuffle(struct group *const *group, int64_t n_group, uint64_t seed)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_group; i++)
        n += group[i]->n_sample;
    struct sample **all = calloc((size_t)MAX(n, 1), sizeof *all);
    if (!all)
        return;
    n = 0;
    for (int64_t i = 0; i < n_group; i++)
        for (int32_t k = 0; k < group[i]->n_sample; k++)
            all[n++] = &group[i]->sample[k];
    for (int64_t i = n - 1; i > 0; i--) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;    // Knuth's MMIX generator; its high bits
        struct sample *a = all[i], *b = all[(int64_t)((seed >> 33) % (uint64_t)(i + 1))], t = *a;
        a->score = b->score, a->reward = b->reward, a->format_acc = b->format_acc, a->ans_acc = b->ans_acc;
        b->score = t.score, b->reward = t.reward, b->format_acc = t.format_acc, b->ans_acc = t.ans_acc;
    }
    free(all);
}

/* Log how the memory in use compares with the plan, after the first step and whenever it has grown. */
static void memory_note(struct engine *e)
{
    size_t free_bytes, total;
    struct error err;
    if (e->dev->host_memory || !mem_info(e->dev, &free_bytes, &total, &err))
        return;
    size_t used = e->free_at_start > free_bytes ? e->free_at_start - free_bytes : 0;
    if (used <= e->memory_peak)
        return;
    e->memory_peak = used;
    log_info("memory used used_gb=%.3f planned_gb=%.3f ratio=%.4f", (double)used * 1e-9, (double)e->plan.total * 1e-9,
             (double)used / (double)e->plan.total);
}

/* Can this step be taken now? */
static bool step_check(const struct engine *e, const struct task *t, struct error *err)
{
    if (t->step != e->step)
        return error_set(err, ERR_INTERNAL, "asked to train at step %" PRId64 " with weights of step %" PRId64, t->step, e->step);
    if (e->region && e->generator && !generator_idle(e->generator))
        return error_set(err, ERR_INTERNAL, "asked to train at step %" PRId64 " while items are generated in the same memory", t->step);
    if (e->config.num_trainers > 1 && !e->ranks)
        return error_set(err, ERR_CLOSED, "the trainers have parted");
    return true;
}

/* After the step: set its version here, and in the sampler when that uses the trainer's own weights. */
static bool step_taken(struct engine *e, const struct task *t, struct error *err)
{
    e->step = trainer_version(e->trainer);
    if (!own_copy_fill(e, err))
        return false;
    if (holdings_has(&e->holdings, HOLDS_SAMPLED))
        return true;
    e->version = e->step;
    e->made = t->incarnation;
    return !e->generator || generator_version_set(e->generator, e->version, err);
}

static void worker_metrics_make(const struct engine *e, const struct task *t, double *metric)
{
    metric[M_TEMPERATURE] = run_config_temperature(&t->config, t->n_group > 0 ? t->group[t->n_group - 1]->rollout_step : 0);
    metric[M_GENERATE_S] = e->work.generate_s;
    metric[M_ROLLOUT_TOK_PER_S] = e->work.generate_s > 0 ? (double)e->work.n_tok / e->work.generate_s : NAN;
    metric[M_IDLE_S] = e->work.idle_s;
    metric[M_LONG_PROMPTS] = (double)(e->prompts.maker.n_dropped + e->prompts.maker.n_cut);
    metric[M_IDLE_SHARE] = e->work.generate_s > 0 ? e->work.tail_s / e->work.generate_s : NAN;
    metric[M_DRAFT_ACCEPTANCE] = e->work.n_draft > 0 ? (double)e->work.n_accepted / (double)e->work.n_draft : NAN;
    metric[M_PUT_BACK] = e->generator ? (double)e->work.n_put_back : NAN;
    metric[M_PUBLISH_S] = publication_ms(e->publication) / 1000;    // of the previous version
}

/* How this trainer and the others, and its own stages, have stood still. */
static void ranks_note(struct engine *e, struct report *r)
{
    const struct ranks_cost *cost;
    int n = e->ranks ? ranks_costs(e->ranks, &cost) : 0;
    r->n_rank = MIN(n, REPORT_RANKS);
    for (int q = 0; q < r->n_rank; q++)
        r->rank_idle_s[q] = cost[q].idle_s;
    const double *idle_s;
    r->n_stage = MIN(trainer_stages(e->trainer, &idle_s), REPORT_STAGES);
    memcpy(r->stage_idle_s, idle_s, (size_t)r->n_stage * sizeof *idle_s);
    if (n == 0)
        return;
    pthread_mutex_lock(&e->lock);
    e->look.ranks_idle_s = cost[e->rank].idle_s;
    e->look.ranks_exposed_s = cost[e->rank].exposed_s;
    pthread_mutex_unlock(&e->lock);
}

/* What the step did without, while its groups are there. */
static bool left_out_note(struct engine *e, struct report *r, struct error *err)
{
    const struct left_out *left;
    r->n_left_item = trainer_left_out(e->trainer, &left);
    if (r->n_left_item > 0 && !(r->left_item = calloc((size_t)r->n_left_item, sizeof *r->left_item)))
        return error_set(err, ERR_NO_MEMORY, "no memory to tell what the step left out");
    for (int64_t i = 0; i < r->n_left_item; i++) {
        r->left_item[i].item = left[i].group->item;
        snprintf(r->left_item[i].why, sizeof r->left_item[i].why, "%s", left[i].why);
    }
    return true;
}

static bool step_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    struct trainer_hyper h;
    int64_t before = clock_ns();
    e->work.idle_s += (double)(clock_ms() - e->idle_ms) / 1000;
    r->round = e->round;
    if (!step_check(e, t, err))
        return false;
    engine_waits_for(e, "producers to take these weights");
    bool free_to_change = publishing_withdraw(e, err);
    engine_waits_for(e, "");
    if (!free_to_change)
        return false;
    if (e->region && e->generator)
        generator_cache_clear(e->generator);    // the trainer writes over its pages
    trainer_hyper_of(&h, &t->config, t->step, t->max_steps);
    if (e->config.control_shuffle_rewards)
        scores_shuffle(t->group, t->n_group, (uint64_t)e->config.seed * 1000003u + (uint64_t)t->step);
    const struct group *const *group = (const struct group *const *)t->group;
    if (e->ranks ? !ranks_step(e->ranks, group, t->n_group, &h, r->metric, err)
                 : !trainer_step(e->trainer, group, t->n_group, &h, r->metric, err))
        return false;
    if (!left_out_note(e, r, err))
        return false;
    ranks_note(e, r);
    hold_point("trained");
    if (!step_taken(e, t, err))
        return false;
    lending_changed(e);
    worker_metrics_make(e, t, r->metric);
    if (e->rank == 0
        && (!(r->histogram = calloc(HISTOGRAM_N, sizeof *r->histogram))
            || !trainer_histograms_make(r->histogram, group, t->n_group, &h, err)))
        log_warn("a step has no histograms: out of memory");
    r->metric[M_TRAIN_S] = (double)(clock_ns() - before) / 1e9;
    utilisation_make(e, group, t->n_group, r->metric);
    memory_note(e);
    e->work = (struct sampler_work){ 0 };
    bridge_step(e, t->max_steps);
    return true;
}

bool training_run(struct engine *e, struct task *t, struct report *r, struct error *err)
{
    bool ok = step_run(e, t, r, err);
    if (!ok)
        trainers_give_up(e, err);
    return ok;
}
