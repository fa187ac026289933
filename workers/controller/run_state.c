/* The run's state machine: controller.h, invariant 5. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/run/run_failure.h"
#include "workers/controller/controller.h"

bool run_is_over(const struct controller *c)
{
    return run_state_is_over(c->state);
}

void state_set(struct controller *c, enum run_state state, const char *who, const char *text)
{
    if (c->state == state)
        return;
    char line[1200];
    if (run_state_is_over(state))
        doctor_end(c);
    snprintf(line, sizeof line, "%s%s%s", run_state_name(state), text[0] ? ": " : "", text);
    c->state = state;
    step_metrics_pause(&c->metrics, state == RUN_PAUSED);
    if (text != c->reason)    // a reason that stays must not be printed onto itself
        snprintf(c->reason, sizeof c->reason, "%s", text);
    event_add_facts(c, "state", who, line, run_state_facts(state, text));
    if (run_is_over(c))
        orders_end(c);
    process_phase(&c->process, run_state_name(state), "");
    hold_point(run_state_name(state));
}

void run_fail(struct controller *c, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (run_is_over(c))
        return;
    struct error err;
    log_error("the run fails: %s", text);
    if (!run_failure_write(c->process.run_dir, text, &err))    // the journal may be what has failed
        log_error("%s", err.text);
    state_set(c, RUN_FAILED, "controller", text);
}

void save_if_due(struct controller *c, bool episode_ends)
{
    char why[64];
    snprintf(why, sizeof why, "every %" PRId64 " steps", c->now.save_interval);
    if (c->now.save_interval > 0 && c->step % c->now.save_interval == 0)
        checkpoints_want(&c->checkpoints, c->step, why);
    if (c->config.save_at_episode_end && episode_ends)
        checkpoints_want(&c->checkpoints, c->step, "an episode has ended");
}

static bool data_exhausted(const struct controller *c)
{
    struct ledger_counts n;
    const struct ledger_item *one;
    ledger_counts(c->ledger, open_n(c, &c->now), &n);
    return n.exhausted && n.n_cut == n.n_open && n.issued + n.leased == 0 && ledger_batch(c->ledger, c->step, &one, 1) == 0;
}

bool evaluated_at(const struct controller *c, int64_t step)
{
    struct error err;
    struct eval_set set[EVAL_SET_MAX];
    int n = run_config_eval_sets(&c->config, set, &err);
    for (int i = 0; i < n; i++)
        if (!evals_have(&c->evals, set[i].name, step))
            return false;
    return true;
}

/* The last step is done, or an operator wants no more of them: what is still due is saved and evaluated. */
static void run_stop(struct controller *c)
{
    if (c->now.save_at_end && !checkpoints_have(&c->checkpoints, c->step))
        checkpoints_want(&c->checkpoints, c->step, "end of the run");
    if (!c->orders.stop && c->now.eval_at_end && !evaluated_at(c, c->step))
        evals_want(&c->evals, c->step);
    state_set(c, RUN_STOPPING, "controller", c->orders.stop ? c->reason : "");
}

/* The run is over by its own plan: has it learned anything? */
static void run_conclude(struct controller *c)
{
    char why[WASTE_TEXT_MAX];
    if (c->counts.total.n_sample > 0 && c->counts.total.n_wasted >= c->counts.total.n_sample)
        run_fail(c, "nothing was learned: %s", waste_text(&c->counts.waste, why, sizeof why));
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
    bool stop = c->orders.stop;
    if (c->state == RUN_RUNNING && c->ledger) {
        bool last = (c->max_steps > 0 && c->step >= c->max_steps) || data_exhausted(c);
        if ((last || stop) && !step_is_open(c))
            run_stop(c);
    } else if (c->state == RUN_PAUSED && stop) {
        c->orders.pause = PAUSE_NONE;
        state_set(c, RUN_RUNNING, "controller", c->reason);
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
