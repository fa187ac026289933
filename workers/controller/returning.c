#include "workers/controller/returning.h"
#include <inttypes.h>
#include <stdio.h>
#include "protocol/base/log.h"
#include "workers/controller/controller.h"
#include "workers/controller/weights.h"

int64_t return_target(struct controller *c, char path[4096])
{
    for (const struct checkpoint_row *k = checkpoints_next(&c->checkpoints, NULL); k; k = checkpoints_next(&c->checkpoints, k))
        if (k->step <= c->step && (!c->ledger || ledger_can_return(c->ledger, k->step))) {
            snprintf(path, 4096, "%s", k->path);
            return k->step;
        }
    path[0] = 0;
    return c->rebuild_step == 0 && (!c->ledger || ledger_can_return(c->ledger, 0)) ? 0 : -1;
}

int64_t return_find(struct controller *c, char path[4096])
{
    struct error err;
    int64_t step = return_target(c, path);
    if (step >= 0 || !c->ledger || ledger_first(c->ledger) == c->rebuild_item)
        return step;
    if (!ledger_reload(c, &err)) {
        log_error("cannot go back further: %s", err.text);
        return -1;
    }
    return return_target(c, path);
}

bool incarnation_begin(struct controller *c, int64_t step, struct error *err)
{
    if (!transaction(c, err))
        return false;
    int64_t incarnation = journal_incarnation_begin(c->journal, step, err);
    if (incarnation < 0 || !number_put(c, "incarnation", incarnation, err))
        return false;
    weights_undo(c, step, c->step);    // those steps are made again, perhaps with other knobs
    if (!lineage_turn(&c->lineage, incarnation, step, err))
        return false;
    c->incarnation = incarnation;
    c->step = step;
    return true;
}

bool controller_return(struct controller *c, int64_t step, const char *cause, struct error *err)
{
    char text[320];
    workers_tasks_forget(c);
    checkpoints_undone(&c->checkpoints);
    evals_back(&c->evals, step);
    if (c->ledger && !ledger_back(c, step, err))
        return false;
    if (step == c->step)
        return true;
    snprintf(text, sizeof text,
             "back from step %" PRId64 " to %" PRId64 ": %s; nothing is lost, those steps are made again with the same groups", c->step,
             step, cause);
    if (!incarnation_begin(c, step, err) || !evals_load(&c->evals, c->journal, err))    // those of steps that are no more do not count
        return false;
    step_metrics_restart(&c->metrics);
    alarms_back(c);
    event_add_facts(c, "return", "controller", text,
                    json_pack("{s:I, s:I}", "step", (json_int_t)step, "incarnation", (json_int_t)c->incarnation));
    if (c->state == RUN_STOPPING && !c->orders.stop) {    // the last steps are to be made again
        checkpoints_forgo(&c->checkpoints);
        evals_forgo(&c->evals);
        state_set(c, RUN_RUNNING, "controller", "");
    }
    return true;
}

bool trainers_return(struct controller *c, const char *cause, char path[4096])
{
    struct error err;
    int64_t step = return_find(c, path);
    if (step < 0)
        run_fail(c, "no checkpoint in '%s' can be resumed from", c->checkpoints.dir);
    else if (!controller_return(c, step, cause, &err) || (c->config.num_trainers > 1 && !rounds_begin(c, &err)))
        run_fail(c, "cannot go back to step %" PRId64 ": %s", step, err.text);
    return !run_is_over(c);
}
