/* What workers report: a task has ended, well or not. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"
#include "workers/controller/evaluating.h"
#include "workers/controller/reports.h"
#include "workers/controller/weights.h"
#include "workers/controller/workers.h"

#define AGAIN_MAX 20    // weights that did not come to a worker, in a row

struct report {
    struct worker *worker;    // NULL: it has not asked for work yet
    char name[64];
    enum task_kind kind;
    int64_t task, step, incarnation, rank, round;
    int64_t version;    // of the weights that were to be taken: what the worker has been given since may be newer
    bool ok;
    bool left;      // it has left the others' meeting
    bool broken;    // what it was to load is
    bool again;     // it will do if it is tried again
    char why[512];
};

static bool report_read(struct controller *c, const struct mval *told, struct report *r, struct error *err)
{
    char word[16];
    *r = (struct report){
        .task = mval_i64(mval_get(told, "task"), 0),
        .step = mval_i64(mval_get(told, "step"), -1),
        .incarnation = mval_i64(mval_get(told, "incarnation"), -1),
        .rank = mval_i64(mval_get(told, "rank"), 0),
        .round = mval_i64(mval_get(told, "round"), 0),
        .version = mval_i64(mval_get(told, "version"), -1),
        .ok = mval_bool(mval_get(told, "ok"), false),
        .left = mval_bool(mval_get(told, "left"), false),
        .broken = mval_bool(mval_get(told, "broken"), false),
        .again = mval_bool(mval_get(told, "again"), false),
    };
    r->worker = worker_find(c, mval_text(told, "name", r->name, sizeof r->name));
    mval_text(told, "error", r->why, sizeof r->why);
    return task_kind_find(mval_text(told, "kind", word, sizeof word), &r->kind)
           || error_set(err, ERR_REFUSED, "a '%s' is no kind of work", word);
}

/* ---- an optimizer step ---- */

static void step_body(struct controller *c, struct msg_out *m)
{
    msg_i64(m, "step", c->step);
    msg_i64(m, "incarnation", c->incarnation);
    msg_f64(m, "time", clock_wall_s());
    step_metrics_write(&c->metrics, m);
}

/* Say once, with the first step that shows it, why the sampler's log-probs are not the trainer's in this run. */
static void difference_tell(struct controller *c)
{
    char text[512];
    double diff = step_metric(&c->metrics, metrics[M_SAMPLER_TRAINER_DIFF].name);
    bool external = run_config_external(&c->config);
    if ((!external && !run_config_posted(&c->config)) || !(diff > 0) || c->difference_told)
        return;
    c->difference_told = true;
    snprintf(
        text, sizeof text, "train/sampler_trainer_diff is %.3g nat, as %s%s computes log-probs with other kernels than the trainer%s; %s",
        diff, external ? "the engine of backend " : "the server that environments ask", external ? c->config.backend : "",
        external ? ""
                 : ", or drew with older weights: a group without 'weight_version' that no server of this run drew is dated by its arrival",
        isnan(c->now.rho_clamp[1]) ? "'rho_clamp' is none, so nothing corrects for it" : "'rho_clamp' corrects for it");
    event_add(c, "weights", "controller", text, "");
}

/* The histograms of the step that was just noted. */
static bool histograms_take(struct controller *c, const struct mval *told, struct error *err)
{
    size_t len = 0;
    struct histogram h[HISTOGRAM_N];
    const void *data = mval_bin(mval_get(told, "histograms"), &len);
    return !data || (histograms_unpack(h, data, len, err) && journal_histograms_add(c->journal, data, len, err));
}

/* An alert for each group that the step could not compute with, so that it is seen whose it is. */
static void left_out_tell(struct controller *c, const struct mval *told)
{
    const struct mval *left = mval_get(told, "left_out");
    int64_t n = mval_i64(mval_get(told, "n_left_out"), mval_n(left));
    for (int64_t k = 0; k < mval_n(left); k++) {
        char why[256], place[640], text[1280];
        int64_t item = mval_i64(mval_get(mval_at(left, k), "item"), -1);
        const struct ledger_item *i = ledger_find(c->ledger, item);
        mval_text(mval_at(left, k), "why", why, sizeof why);
        if (run_config_posted(&c->config))
            snprintf(place, sizeof place, "posted by an environment");
        else if (!i)
            snprintf(place, sizeof place, "of a prompt that is not known any more");
        else
            (void)row_place(c, i->row, place, sizeof place);
        snprintf(text, sizeof text,
                 "group %" PRId64 " (%s) was left out of step %" PRId64 ", which could not be computed with it: %s; look at it: rollcall "
                 "rollouts --item %" PRId64,
                 item, place, c->step, why, item);
        event_add_facts(c, "alert", "controller", text, json_pack("{s:I, s:I}", "left_out", (json_int_t)item, "step", (json_int_t)c->step));
    }
    if (n > mval_n(left)) {
        char text[160];
        snprintf(text, sizeof text, "%" PRId64 " more groups were left out of step %" PRId64, n - mval_n(left), c->step);
        event_add(c, "alert", "controller", text, "");
    }
}

static bool step_done(struct controller *c, const struct mval *told, int64_t step, struct error *err)
{
    bool episode_ends = step_metrics_ends_episode(c, step - 1);
    step_metrics_make(c, step - 1, mval_get(told, "metrics"));
    if (!transaction(c, err) || !journal_step_add(c->journal, c->incarnation, step, clock_wall_s(), c->metrics.value, c->metrics.n, err)
        || !histograms_take(c, told, err) || !ledger_step_done(c, step - 1, err) || !run_used_keep(c, err))
        return false;
    c->step = step;
    weights_forget(c, c->config.free_running ? step - 1 : step);    // free-running, somebody may be taking the last ones
    if (c->config.free_running && !ledger_advance(c, err))
        return false;
    publish(c, "step", step_body);
    left_out_tell(c, told);
    difference_tell(c);
    alarms_step(c);
    doctor_step(c);
    save_if_due(c, episode_ends);
    if (c->now.eval_interval > 0 && step % c->now.eval_interval == 0)
        evals_want(&c->evals, step);
    return true;
}

/* ---- a checkpoint ---- */

static bool save_done(struct controller *c, const struct mval *told, const struct report *r, struct error *err)
{
    char text[640];
    if (!transaction(c, err) || !checkpoints_end(&c->checkpoints, c->journal, r->step, r->ok, mval_get(told, "metrics"), err))
        return false;
    if (!r->ok) {
        snprintf(text, sizeof text, "step %" PRId64 " could not be saved: %.500s", r->step, r->why);
        event_add(c, "alert", "controller", text, "");
        if (c->state == RUN_STOPPING)
            run_fail(c, "%s", text);
        return true;
    }
    c->ship_due = true;
    snprintf(text, sizeof text, "step %" PRId64 " saved", r->step);
    event_add_facts(c, "checkpoint", "controller", text,
                    json_pack("{s:I, s:s}", "step", (json_int_t)r->step, "path", checkpoints_path(&c->checkpoints, r->step)));
    if (*mval_text(told, "note", text, sizeof text))
        event_add(c, "alert", "controller", text, "");
    /* the one before is kept in reach, in case this one turns out to be broken */
    int64_t keep = checkpoints_before(&c->checkpoints, r->step);
    if (keep <= 0)
        return true;
    ledger_forget(c->ledger, keep);
    return state_save(c, err);
}

/* ---- a load ---- */

/* A trainer's. Only what is wrong in the checkpoint itself marks it as broken: with too little memory, or another model, the run ends
 * and can be resumed from the same checkpoint. The first to fail of several trainers is heard, since they read the same files. */
static void load_failed(struct controller *c, const char *why, bool broken)
{
    struct error err;
    char path[4096], text[640];
    int64_t step = c->loading_step;
    bool had = false;
    if (step < 0)
        return;
    c->loading_step = -1;
    if (broken && step > 0 && (!transaction(c, &err) || !checkpoints_break(&c->checkpoints, c->journal, step, &had, &err)))
        log_error("%s", err.text);
    if (!had || return_find(c, path) < 0) {
        run_fail(c, "%s", why);
        return;
    }
    snprintf(text, sizeof text, "checkpoint of step %" PRId64 " is broken (%.400s); the one before is used", step, why);
    event_add(c, "alert", "controller", text, "");
}

static bool load_done(struct controller *c, const struct mval *told, const struct report *r, struct error *err)
{
    if (r->ok && !lines_take(c, mval_get(told, "lines"), mval_get(told, "files"), err))
        return false;
    if (r->ok && r->worker && !worker_is_away(r->worker) && !levels_take(c, mval_get(told, "levels"), err))
        return false;
    if (r->rank < 0 && !r->ok)
        run_fail(c, "%s: load: %s", r->name, r->why);
    if (r->rank >= 0 && !r->ok)
        load_failed(c, r->why, r->broken);
    if (r->rank >= 0)
        c->loading_step = -1;
    return true;
}

/* ---- all of them ---- */

/* One trainer speaks for all, but in what each does for itself; and one that has left the meeting of the others, or comes from an
 * earlier one, for nobody. */
static bool report_is_one_of_several(const struct controller *c, const struct report *r)
{
    return (r->rank > 0 && r->ok && r->kind != TASK_EVAL) || r->left
           || (r->rank >= 0 && r->round != c->rounds.round && r->kind == TASK_LOAD);
}

static void trainer_left(struct controller *c, const struct report *r)
{
    log_info("%s has left the others in a %s: %s", r->name, task_kind_name(r->kind), r->why);
    if (r->kind == TASK_SAVE && r->incarnation == c->incarnation)    // again, when they have met again
        checkpoints_interrupted(&c->checkpoints);
}

/* Is it the step that the run waits for, or one that it has already? */
static bool step_is_wanted(const struct controller *c, const struct report *r, struct error *err)
{
    if (r->incarnation == c->incarnation && r->round == c->rounds.round && r->step <= c->step + 1)
        return true;
    return error_set(err, ERR_REFUSED,
                     "step %" PRId64 " of incarnation %" PRId64 " is not wanted: the run is at step %" PRId64 " of incarnation %" PRId64,
                     r->step, r->incarnation, c->step, c->incarnation);
}

/* Weights or items that did not come about. */
static void task_failed(struct controller *c, const struct report *r)
{
    struct worker *w = r->worker;
    if (r->kind == TASK_PUBLISH && (!w || !weights_shared_with(c, w, r->version)))
        log_info("%s comes too late for version %" PRId64 ": nobody samples with it any more", r->name, r->version);
    else if (w && r->again && (++w->n_again < AGAIN_MAX || w->lent))
        log_warn("%s did not get version %" PRId64 ": %s", r->name, r->version, r->why);
    else
        run_fail(c, "%s: %s: %s", r->name, task_kind_name(r->kind), r->why);
}

/* What follows from a report. False: it cannot be noted, which ends the run. */
static bool report_take(struct controller *c, const struct mval *told, const struct report *r, struct error *err)
{
    bool of_now = r->incarnation == c->incarnation;
    if (r->kind == TASK_TRAIN && r->ok)
        return r->step <= c->step || step_done(c, told, r->step, err);
    if (r->kind == TASK_SAVE)
        return !of_now || save_done(c, told, r, err);
    if (r->kind == TASK_EVAL && r->ok)
        return part_done(c, r->task, told, err);    // of an earlier incarnation too: its version may not be undone
    if (r->kind == TASK_LOAD)
        return load_done(c, told, r, err);
    if (!r->ok)
        task_failed(c, r);
    else if (r->worker && r->kind == TASK_PUBLISH)
        r->worker->n_again = 0;
    return true;
}

void done_came(struct controller *c, struct request *request, const struct msg_in *in)
{
    struct error err;
    struct report r;
    if (!report_read(c, in->root, &r, &err)) {
        refuse_later(c, request, &err);
        return;
    }
    if (r.worker) {
        r.worker->heard_ms = clock_ms();
        if (r.worker->task == r.task) {    // not told twice
            step_metrics_fetched(&c->metrics, mval_get(in->root, "fetched"));
            r.worker->task = 0;
            r.worker->task_kind = TASK_NONE;
        }
    }
    if (!c->ledger && r.kind != TASK_LOAD) {
        error_set(&err, ERR_REFUSED, "the controller has not loaded its ledger yet");
        refuse_later(c, request, &err);
    } else if (report_is_one_of_several(c, &r)) {
        if (r.left)
            trainer_left(c, &r);
        ok_later(c, request);
    } else if (r.kind == TASK_TRAIN && r.ok && !step_is_wanted(c, &r, &err)) {
        refuse_later(c, request, &err);
    } else if (!report_take(c, in->root, &r, &err)) {
        run_fail(c, "cannot note that a %s has ended: %s", task_kind_name(r.kind), err.text);
        refuse_later(c, request, &err);
    } else {
        ok_later(c, request);
    }
}
