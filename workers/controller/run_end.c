/* When the run stops, and what it ends as. */
#include <inttypes.h>
#include <stdio.h>
#include "protocol/base/clock.h"
#include "workers/controller/controller.h"

#define USED_KEEP_MS 10000    // between notes of the time used, where a limit is set: a controller that is killed loses no more

static bool data_exhausted(const struct controller *c)
{
    struct ledger_counts n;
    const struct ledger_item *one;
    ledger_counts(c->ledger, open_n(c, &c->now), &n);
    return n.exhausted && n.n_cut == n.n_open && n.issued + n.leased == 0 && ledger_batch(c->ledger, c->step, &one, 1) == 0;
}

static bool time_is_up(const struct controller *c)
{
    return c->now.max_hours > 0 && run_used_s(c) >= 3600 * c->now.max_hours;
}

static const char *time_text(const struct controller *c, char *out, size_t size)
{
    snprintf(out, size, "the run has gone for %.3g h, and 'max_hours' is %g", run_used_s(c) / 3600, c->now.max_hours);
    return out;
}

/* The last step is done, or an operator wants no more of them: what is still due is saved and evaluated. */
static void run_stop(struct controller *c)
{
    if (c->now.save_at_end && !checkpoints_have(&c->checkpoints, c->step))
        checkpoints_want(&c->checkpoints, c->step, "end of the run");
    if (!c->orders.stop && c->now.eval_at_end && !evaluated_at(c, c->step))
        evals_want(&c->evals, c->step);
    char why[160] = "";
    if (time_is_up(c))
        time_text(c, why, sizeof why);
    state_set(c, RUN_STOPPING, "controller", c->orders.stop ? c->reason : why);
}

/* The run is over by its own plan: has it learned anything? */
static void run_conclude(struct controller *c)
{
    char why[WASTE_TEXT_MAX];
    if (c->counts.total.n_sample > 0 && c->counts.total.n_wasted >= c->counts.total.n_sample)
        run_fail(c, "nothing was learned: %s", waste_text(&c->counts.waste, why, sizeof why));
    else if (c->step == 0 && time_is_up(c))
        run_fail(c, "no optimizer step was made: %s", time_text(c, why, sizeof why));
    else if (c->step == 0 && c->counts.total.n_sample == 0)
        run_fail(c,
                 "no optimizer step was made: a rollout step takes %" PRId64
                 " prompts (inference_batch_size x num_inferencer), and the %" PRId64
                 " of '%s' that fit into max_prompt_tokens do not fill one; lower inference_batch_size, or raise num_episodes",
                 open_n(c, &c->now), c->n_row, c->config.dataset);
    else if (c->step == 0)
        run_fail(c,
                 "no optimizer step was made: fewer than the %" PRId64 " groups of one step (train_batch_size x num_trainers) came through "
                 "filter_range; take more or other prompts, widen filter_range, or lower train_batch_size",
                 c->now.train_batch_size * c->config.num_trainers);
    else
        state_set(c, RUN_FINISHED, "controller", c->reason);
}

void run_tick(struct controller *c)
{
    bool stop = c->orders.stop, up = time_is_up(c);
    char why[160];
    if (c->now.max_hours > 0 && !run_is_over(c) && clock_ms() - c->used_kept_ms > USED_KEEP_MS)
        run_used_note(c);
    if (c->state == RUN_RUNNING && c->ledger) {
        bool last = up || (c->max_steps > 0 && c->step >= c->max_steps) || data_exhausted(c);
        if ((last || stop) && !step_is_open(c))
            run_stop(c);
    } else if (c->state == RUN_PAUSED && (stop || up)) {
        c->orders.pause = PAUSE_NONE;
        state_set(c, RUN_RUNNING, "controller", stop ? c->reason : time_text(c, why, sizeof why));
    } else if (c->state == RUN_STARTING && stop) {
        state_set(c, RUN_STOPPED, "controller", c->reason);
    }
    if (c->state != RUN_STOPPING || !checkpoints_idle(&c->checkpoints) || !evals_idle(&c->evals) || workers_in_task(c, TASK_NONE) > 0)
        return;
    if (stop)
        state_set(c, RUN_STOPPED, "controller", c->reason);
    else
        run_conclude(c);
}
