/* What a worker is given: the answer to its request for work, as the rules of decide.h have it. */
#include <inttypes.h>
#include <stdlib.h>
#include "protocol/base/log.h"
#include "workers/controller/controller.h"
#include "workers/controller/evaluating.h"
#include "workers/controller/facts.h"
#include "workers/controller/weights.h"
#include "workers/controller/workers.h"

static void task_begin(struct controller *c, struct worker *w, struct msg_out *m, enum task_kind kind, int64_t step)
{
    *m = MSG_OUT_INIT;
    msg_begin(m, MSG_OK);
    msg_str(m, "kind", task_kind_name(kind));
    bool is_task = kind != TASK_NONE && kind != TASK_STOP && kind != TASK_CANCEL;
    int64_t task = is_task ? ++c->next_task : 0;
    msg_i64(m, "task", task);
    msg_i64(m, "incarnation", c->incarnation);
    msg_i64(m, "step", step);
    tails_write(c, m);
    drops_write(c, m);
    if (is_task) {
        w->task = task;
        w->task_step = step;
        w->task_kind = kind;
    }
}

static void task_give(struct controller *c, struct worker *w, struct msg_out *m)
{
    answer_later(c, w->held, m);
    w->held = NULL;
}

/* An order without more to say. */
static void order_give(struct controller *c, struct worker *w, enum task_kind kind, int64_t step)
{
    struct msg_out m;
    task_begin(c, w, &m, kind, step);
    task_give(c, w, &m);
}

/* A trainer that is not in step loads what all trainers go back to. It joins the others that are already loading,
 * unless it has tried to before and failed. */
static void return_give(struct controller *c, struct worker *w)
{
    char path[4096], cause[128];
    struct msg_out m;
    snprintf(cause, sizeof cause, "%s holds no weights of step %" PRId64, w->name, c->step);
    if (c->rounds.open && w->given_round != c->rounds.round)
        return_target(c, path);
    else if (!trainers_return(c, cause, path))
        return;
    c->loading_step = c->step;
    w->given_round = c->rounds.round;
    log_info("%s loads step %" PRId64 " from '%s'", w->name, c->step, path[0] ? path : c->config.model);
    task_begin(c, w, &m, TASK_LOAD, c->step);
    msg_str(&m, "path", path);
    msg_i64(&m, "made", lineage_made(&c->lineage, c->step));
    msg_i64(&m, "round", c->rounds.round);
    task_give(c, w, &m);
}

static void items_give(struct controller *c, struct worker *w, int64_t room)
{
    struct error err;
    struct msg_out m;
    const struct ledger_item *i = ledger_lease(c->ledger, w->version, worker_id(c, w));
    int64_t s = i->rollout_step, n = 0, task = w->task_kind == TASK_ITEMS ? w->task : 0;
    task_begin(c, w, &m, TASK_ITEMS, w->step);
    if (task)    // more of the same
        w->task = task;
    msg_i64(&m, "rollout_step", s);
    if (levels_on(c))
        msg_i64(&m, "level", levels_at(c, s));
    msg_i64(&m, "version", i->version);
    msg_list(&m, "items");
    while (i) {
        msg_map(&m, NULL);
        msg_i64(&m, "item", i->item);
        msg_i64(&m, "row", i->row);
        if (!rubrics_write(c, i, &m, &err))
            run_fail(c, "cannot read the rubrics of item %" PRId64 ": %s", i->item, err.text);
        msg_end(&m);
        if (++n >= room)
            break;
        i = ledger_lease_of(c->ledger, w->version, s, worker_id(c, w));
    }
    msg_end(&m);
    knobs_write(c, -1, s, &m);
    task_give(c, w, &m);
}

/* The plan of the step that is to be made, by the settings that hold for it. */
static bool step_plan(const struct controller *c, int64_t rollout_step, struct run_plan *plan, struct error *err)
{
    struct run_config *at = malloc(sizeof *at);
    if (!at)
        return error_set(err, ERR_NO_MEMORY, "no memory");
    config_at(c, c->step, rollout_step, at);
    bool ok = run_plan_make(plan, at, c->n_row, err);
    free(at);
    return ok;
}

static void train_give(struct controller *c, struct worker *w)
{
    const struct ledger_item *item[BATCH_MAX];
    struct msg_out m;
    struct error err;
    struct run_plan plan;
    int64_t n = ledger_batch(c->ledger, c->step, item, ARRAY_SIZE(item));
    int64_t rollout_step = n > 0 ? item[n - 1]->rollout_step
                                 : -1;    // the newest: what the trainer reports of sampling holds for these items
    if (!step_plan(c, rollout_step, &plan, &err) || !rounds_step_begin(c, &err)) {
        run_fail(c, "cannot begin step %" PRId64 ": %s", c->step + 1, err.text);
        return;
    }
    task_begin(c, w, &m, TASK_TRAIN, c->step);
    msg_i64(&m, "max_steps", plan.total_steps);
    msg_list(&m, "items");
    for (int64_t k = 0; k < n; k++)
        msg_i64(&m, NULL, item[k]->item);
    msg_end(&m);
    knobs_write(c, c->step, rollout_step, &m);
    task_give(c, w, &m);
}

/* To share a version, or to sample with it from now on. */
static void version_give(struct controller *c, struct worker *w, enum task_kind kind, int64_t version)
{
    struct msg_out m;
    task_begin(c, w, &m, kind, version);
    msg_i64(&m, "version", version);
    msg_i64(&m, "made", lineage_made(&c->lineage, version));
    if (kind == TASK_PUBLISH || weights_need_file(c)) {
        char path[4200];
        weights_path(c, version, path, sizeof path);
        msg_str(&m, "path", path);
    }
    task_give(c, w, &m);
}

static void save_give(struct controller *c, struct worker *w)
{
    struct msg_out m;
    struct error err;
    if (w->rank == 0) {
        if (!rounds_save_begin(c, &err)) {
            run_fail(c, "cannot begin the checkpoint of step %" PRId64 ": %s", c->step, err.text);
            return;
        }
        checkpoints_begin(&c->checkpoints, c->step);
    }
    task_begin(c, w, &m, TASK_SAVE, c->step);
    msg_str(&m, "path", c->checkpoints.dir);
    if (rounds_save_begun(c))
        msg_i64(&m, "save", c->rounds.saves);
    knobs_write(c, c->step, INT64_MAX, &m);
    task_give(c, w, &m);
}

static void eval_give(struct controller *c, struct worker *w)
{
    struct error err;
    struct msg_out m;
    if (!evaluating_begin(c, &err)) {
        run_fail(c, "cannot evaluate: %s", err.text);
        return;
    }
    task_begin(c, w, &m, TASK_EVAL, c->evals.running);
    msg_i64(&m, "eval", c->evals.id);
    int part = evals_part_give(&c->evals, worker_id(c, w), w->task);
    log_info("%s evaluates step %" PRId64 ", part %d of %d", w->name, c->evals.running, part + 1, c->evals.n_part);
    msg_i64(&m, "part", part);
    msg_i64(&m, "parts", c->evals.n_part);
    settings_write(&c->evals.sets->config, &m);
    task_give(c, w, &m);
}

void worker_serve(struct controller *c, struct worker *w, bool too_long)
{
    struct facts f;
    facts_gather(c, w, &f);
    switch (decide(&f).give) {
    case GIVE_NOTHING:
        if (w->busy || too_long)
            order_give(c, w, TASK_NONE, c->step);
        break;
    case GIVE_STOP: order_give(c, w, TASK_STOP, c->step); break;
    case GIVE_CANCEL: order_give(c, w, TASK_CANCEL, c->step); break;
    case GIVE_MODEL: order_give(c, w, TASK_LOAD, 0); break;
    case GIVE_RETURN: return_give(c, w); break;
    case GIVE_SHARE: version_give(c, w, TASK_SHARE, c->step); break;
    case GIVE_SAVE: save_give(c, w); break;
    case GIVE_EVAL: eval_give(c, w); break;
    case GIVE_EVALUATED: version_give(c, w, TASK_PUBLISH, evals_step(&c->evals)); break;
    case GIVE_PRESENT: version_give(c, w, TASK_PUBLISH, c->step); break;
    case GIVE_NEXT: version_give(c, w, TASK_PUBLISH, f.next); break;
    case GIVE_TRAIN: train_give(c, w); break;
    case GIVE_ITEMS: items_give(c, w, f.room); break;
    }
}
