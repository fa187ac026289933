#include "workers/controller/facts.h"
#include <stdlib.h>
#include "workers/controller/controller.h"
#include "workers/controller/evaluating.h"
#include "workers/controller/weights.h"
#include "workers/controller/workers.h"

/* How many more items w may hold, by the settings of the next one's rollout step; 0: none waits for it. */
static int64_t items_room(const struct controller *c, const struct worker *w)
{
    const struct ledger_item *next = ledger_next(c->ledger, w->version);
    struct run_config *at = next ? malloc(sizeof *at) : NULL;
    if (!at)
        return 0;
    config_at(c, -1, next->rollout_step, at);
    int64_t most = MIN(at->inference_microbatch_size, c->config.inference_microbatch_size);    // before a resume it may have been more
    free(at);
    return MAX(most - w->items, (int64_t)0);
}

/* Is the next optimizer step to be made now? Its batch must be there, and nobody may need the weights that it changes. */
static bool step_is_due(const struct controller *c, bool present_shared)
{
    const struct ledger_item *one;
    if (c->state != RUN_RUNNING || c->orders.stop || evaluating_holds_step(c) || c->orders.pause == PAUSE_STEP || c->step >= c->max_steps
        || ledger_batch(c->ledger, c->step, &one, 1) == 0)
        return false;
    return present_shared
           || (!c->config.free_running && (ledger_version_done(c->ledger, c->step) || (!weights_are_shared(c) && weights_own_present(c))));
}

/* What only a run with a ledger has. Looks at the disk are made only where a rule can depend on them. */
static void schedule_gather(const struct controller *c, const struct worker *w, struct facts *f)
{
    f->next = ledger_version_issued(c->ledger);
    f->has_items = ledger_issued(c->ledger, w->version);
    f->next_is_own = f->next == w->version;
    if (f->next >= 0 && !f->next_is_own) {
        f->next_shared = weights_shared_with(c, w, f->next);
        f->next_coming = f->next_shared || weights_coming(c, w, f->next);
    } else if (f->next >= 0 && f->undone) {
        f->next_coming = weights_coming(c, w, f->next);
    }
    if (w->consumes || c->config.free_running)
        f->present_shared = weights_shared(c, c->step);
    if (w->consumes) {
        f->step_due = step_is_due(c, f->present_shared);
        f->present_wanted = (weights_are_shared(c) && (c->config.free_running || !ledger_version_done(c->ledger, c->step)))
                            || evaluating_shares(c, c->step);
        f->present_fits = f->first && weights_fit(c, w);
    }
    if (w->produces && f->running)
        f->room = items_room(c, w);
    if (f->eval_waits) {
        f->eval_mine = evaluating_can(c, w);
        bool older_first = f->running && !f->stopping && !f->pausing && f->next >= 0 && f->next < evals_step(&c->evals);
        f->eval_coming = !f->eval_mine && !older_first && evaluating_reach(c, w);
    }
}

void facts_gather(const struct controller *c, const struct worker *w, struct facts *f)
{
    *f = (struct facts){
        .over = run_is_over(c),
        .stopping = c->orders.stop || c->state == RUN_STOPPING,
        .running = c->state == RUN_RUNNING,
        .pausing = c->orders.pause != PAUSE_NONE,
        .data_known = c->ledger != NULL,
        .free_running = c->config.free_running,
        .overlaps = c->config.n_behind > 0,
        .trainers_several = c->config.num_trainers > 1,
        .step_begun = c->config.num_trainers > 1 && rounds_step_begun(c),
        .save_due = checkpoints_due(&c->checkpoints),
        .save_begun = w->rank > 0 && rounds_save_begun(c) && w->saves < c->rounds.saves,
        .eval_waits = evals_step(&c->evals) >= 0,
        .produces = w->produces,
        .consumes = w->consumes,
        .first = w->rank == 0,
        .busy = w->busy,
        .in_step = w->consumes ? trainer_in_step(c, w) : w->step >= 0,
        .ahead = trainer_is_ahead(c, w),
        .undone = version_undone(c, w),
        .has_weights = w->version >= 0,
        .present = w->version == c->step,
        .gap = w->gap,
        .step = c->step,
        .next = -1,
    };
    if (c->ledger)
        schedule_gather(c, w, f);
}
