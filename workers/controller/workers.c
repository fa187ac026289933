#include "workers/controller/workers.h"
#include <inttypes.h>
#include <stdio.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"
#include "workers/controller/weights.h"

#define HOLD_MS 2000       // a request for work is held open so long
#define SILENT_MS 20000    // a worker unheard for so long loses its leases

/* What a worker was doing is lost: it will be done again. */
static void worker_lost(struct controller *c, struct worker *w)
{
    if (w->held)
        request_drop(w->held);
    w->held = NULL;
    if (c->ledger)
        ledger_lease_end(c->ledger, worker_id(c, w));
    if (w->rank == 0)
        checkpoints_interrupted(&c->checkpoints);
    evals_lost(&c->evals, worker_id(c, w));
    if (w->task_kind == TASK_LOAD)
        c->loading_step = -1;
    w->task = 0;
    w->task_kind = TASK_NONE;
}

/* ---- asking for work ---- */

/* The worker's place, found by its name or made; NULL: all are taken. */
static struct worker *worker_place(struct controller *c, const char *name)
{
    struct worker *w = worker_find(c, name);
    for (int i = 0; !w && i < c->workers.n; i++)
        if (!c->workers.worker[i].name[0])    // of a node that has gone
            w = &c->workers.worker[i];
    if (!w && c->workers.n == WORKER_MAX)
        return NULL;
    if (!w)
        w = &c->workers.worker[c->workers.n++];
    if (!w->name[0]) {
        *w = (struct worker){ .rank = -1 };
        snprintf(w->name, sizeof w->name, "%s", name);
    }
    return w;
}

/* What it says of itself. */
static void worker_hear(struct worker *w, const struct mval *told)
{
    w->incarnation = mval_i64(mval_get(told, "incarnation"), -1);
    w->step = mval_i64(mval_get(told, "step"), -1);
    w->version = mval_i64(mval_get(told, "version"), -1);
    w->made = mval_i64(mval_get(told, "made"), 0);
    w->ending = mval_i64(mval_get(told, "ending"), -1);
    w->ending_made = mval_i64(mval_get(told, "ending_made"), 0);
    w->gap = mval_bool(mval_get(told, "gap"), false);
    w->produces = mval_bool(mval_get(told, "produces"), false);
    w->consumes = mval_bool(mval_get(told, "consumes"), false);
    w->rank = mval_i64(mval_get(told, "rank"), w->consumes ? 0 : -1);
    w->round = mval_i64(mval_get(told, "round"), 0);
    w->saves = mval_i64(mval_get(told, "saves"), 0);
    w->items = MAX(mval_i64(mval_get(told, "items"), 0), (int64_t)0);
    w->busy = mval_bool(mval_get(told, "busy"), false);
    w->lent = mval_get(told, "lent") != NULL;
    w->keeps = mval_i64(mval_get(told, "keeps"), 0);
    const struct mval *shared = mval_get(told, "shared");
    w->n_shared = (int)MIN(mval_n(shared), (int64_t)ARRAY_SIZE(w->shared));
    for (int i = 0; i < w->n_shared; i++)
        w->shared[i] = mval_i64(mval_at(shared, i), -1);
}

/* It has nothing to do: whatever it was given is over. */
static void worker_freed(struct controller *c, struct worker *w)
{
    if (w->task && w->task_kind == TASK_EVAL)
        evals_lost(&c->evals, worker_id(c, w));
    w->task = 0;
    w->task_kind = TASK_NONE;
    if (c->ledger)
        ledger_lease_end(c->ledger, worker_id(c, w));
}

/* A worker has loaded the data: n_row usable prompts. Begins the ledger. False: it is refused. */
static bool rows_hear(struct controller *c, const struct worker *w, int64_t n_row, struct error *err)
{
    struct error why;
    if (n_row <= 0)
        return true;
    if (worker_is_away(w) && n_row != c->n_row)    // a node must not make the run fail, nor begin it
        return error_set(err, ERR_REFUSED, "%s has %" PRId64 " usable prompts, the run has %" PRId64, w->name, n_row, c->n_row);
    if (c->n_row > 0 && n_row != c->n_row)
        run_fail(c,
                 "the dataset '%s' has %" PRId64 " usable prompts now and had %" PRId64 " when the run began; a run cannot go on "
                 "with other data",
                 c->config.dataset, n_row, c->n_row);
    else if (!c->ledger && levels_known(c) && !ledger_prepare(c, n_row, &why))
        run_fail(c, "%s", why.text);
    return true;
}

/* A trainer is in step for the first time: the run begins. */
static void run_begin(struct controller *c)
{
    state_set(c, RUN_RUNNING, "controller", "");
    if (run_config_travels(&c->config)) {
        enum weights_way way = WAY_FILES;
        char text[96];
        (void)weights_way_parse(c->config.weights, &way);
        snprintf(text, sizeof text, "weights get to samplers on other devices by %s", weights_way_name(way));
        event_add(c, "weights", "controller", text, "");
    }
    bool made_here = c->lineage.n > 0 && c->step > c->lineage.part[0].from;    // by this run, not by one that it goes on from
    if (made_here && !checkpoints_tried(&c->checkpoints, c->step))             // a controller may have died between the step and its saving
        save_if_due(c, step_metrics_ends_episode(c, c->step - 1));
    if (c->now.eval_interval > 0 && c->step % c->now.eval_interval == 0 && !evaluated_at(c, c->step))
        evals_want(&c->evals, c->step);    // the first, or one that a controller could not see to its end
}

void work_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    char name[64];
    int64_t start = mval_i64(mval_get(in->root, "start"), 0);
    struct worker *w = worker_place(c, mval_text(in->root, "name", name, sizeof name));
    if (!w) {
        error_set(&err, ERR_FULL, "%d workers are known already", WORKER_MAX);
        refuse_later(c, r, &err);
        return;
    }
    if (w->start != start) {
        if (w->start)
            log_info("%s has started again", w->name);
        worker_lost(c, w);
        w->start = start;
    }
    if (w->held)
        request_drop(w->held);    // an older request of the same process: its asker has given up
    w->held = r;
    w->held_ms = w->heard_ms = clock_ms();
    worker_hear(w, in->root);
    step_metrics_posted(&c->metrics, mval_get(in->root, "posted"));
    posted_heard(c, mval_get(in->root, "posted"));
    if (w->rank == 0 && !w->lent)    // a machine that may only sample must not make the run fail
        servers_heard(c, mval_get(in->root, "servers"));
    if (!w->busy)
        worker_freed(c, w);
    if (!rows_hear(c, w, mval_i64(mval_get(in->root, "n_row"), 0), &err)) {
        w->held = NULL;
        refuse_later(c, r, &err);
        return;
    }
    if (w->consumes)
        c->n_id = MAX(mval_i64(mval_get(in->root, "n_id"), 0), c->n_id);
    if (!w->consumes || !trainer_in_step(c, w))
        return;
    rounds_seen(c);
    if (c->state == RUN_STARTING && c->ledger)
        run_begin(c);
}

void gone_told(struct controller *c, struct request *r, const struct msg_in *in)
{
    char node[64], reason[300], text[480];
    int n = 0;
    mval_text(in->root, "node", node, sizeof node);
    mval_text(in->root, "reason", reason, sizeof reason);
    for (int i = 0; i < c->workers.n; i++) {
        struct worker *w = &c->workers.worker[i];
        if (!worker_is_of(w, node))
            continue;
        worker_lost(c, w);
        if (c->ledger)
            ledger_worker_forget(c->ledger, worker_id(c, w));
        w->name[0] = 0;
        w->start = 0;
        n++;
    }
    snprintf(text, sizeof text, "node '%s' has gone, with %d workers: %s", node, n, reason);
    event_add(c, "node", "gate", text, "");
    ok_later(c, r);
}

/* ---- the clock ---- */

int64_t workers_due(const struct controller *c)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < c->workers.n; i++) {
        const struct worker *w = &c->workers.worker[i];
        const int64_t at[] = { w->held ? w->held_ms + HOLD_MS : INT64_MAX, w->heard_ms + SILENT_MS + 1, w->heard_ms + AWAY_MS };
        for (size_t k = 0; k < ARRAY_SIZE(at); k++)
            if (at[k] > c->workers.looked_ms)    // what was before has been seen to
                due = MIN(due, at[k]);
    }
    return due;
}

bool workers_tick(struct controller *c)
{
    bool leases_ended = false;
    int64_t now = c->workers.looked_ms = clock_ms();
    for (int i = 0; i < c->workers.n; i++) {
        struct worker *w = &c->workers.worker[i];
        if (w->held) {
            worker_serve(c, w, now - w->held_ms >= HOLD_MS);
        } else if (c->ledger && now - w->heard_ms > SILENT_MS && ledger_lease_end(c->ledger, worker_id(c, w)) > 0) {
            log_warn("%s has been silent for %d s: its items are issued again", w->name, SILENT_MS / 1000);
            leases_ended = true;
        }
    }
    return leases_ended;
}
