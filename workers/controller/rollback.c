#include "workers/controller/rollback.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/cli.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"
#include "workers/controller/weights.h"
#include "workers/engine/trainer/checkpoint.h"

#define UNDOES_MAX ((size_t)4096)    // bytes of what a rollback would undo, in words

/* May the run go back to its beginning? Not when its journal was made again later. */
static bool start_is_there(const struct controller *c)
{
    return c->rebuild_step == 0;
}

static bool target_is_there(const struct controller *c, int64_t step)
{
    return step <= c->step && (step == 0 ? start_is_there(c) : checkpoints_have(&c->checkpoints, step));
}

/* The newest checkpoint of step or earlier; -1: none. */
static int64_t target_before(const struct controller *c, int64_t step)
{
    int64_t best = start_is_there(c) ? 0 : -1;
    for (const struct checkpoint_row *k = checkpoints_next(&c->checkpoints, NULL); k; k = checkpoints_next(&c->checkpoints, k))
        if (k->step <= step && k->step <= c->step)
            best = MAX(best, k->step);
    return best;
}

/* What going back to step would undo, in words. */
static void undoes_say(const struct controller *c, int64_t step, struct buf *out)
{
    struct buf changes = { .max = UNDOES_MAX };
    buf_fmt(out, "%" PRId64 " step%s", c->step - step, c->step - step == 1 ? "" : "s");
    changes_since(&c->changes, step, &changes);
    if (changes.len)
        buf_fmt(out, ", %s", buf_text(&changes));
    buf_release(&changes);
}

/* ---- going back ---- */

/* "80", or "change": before the last change of knobs. */
static bool target_parse(const struct controller *c, const struct mval *args, int64_t *out, struct error *err)
{
    char text[32];
    mval_text(args, "to", text, sizeof text);
    if (strcmp(text, "change") == 0) {
        int64_t made = changes_made_last(&c->changes);
        if (made < 0)
            return error_set(err, ERR_REFUSED, "no knob has been changed in this run");
        *out = target_before(c, made);
        return *out >= 0 || error_set(err, ERR_REFUSED, "no checkpoint is left from before the last change, made at step %" PRId64, made);
    }
    if (!parse_i64(text, out) || *out < 0)
        return error_set(err, ERR_USAGE, "'%s' is neither a checkpoint's step nor 'change'", text);
    if (target_is_there(c, *out))
        return true;
    int64_t near = target_before(c, MIN(*out, c->step));
    if (near < 0)
        return error_set(err, ERR_NOT_FOUND, "there is no checkpoint of step %" PRId64 ", nor an earlier one", *out);
    return error_set(err, ERR_NOT_FOUND,
                     "there is no checkpoint of step %" PRId64 "; the nearest before it: rollcall ctl rollback %" PRId64, *out, near);
}

bool rollback_begin(struct controller *c, struct order *o, const struct mval *args, UNUSED struct effect *effect, struct error *err)
{
    int64_t step;
    if (!c->ledger || c->state == RUN_STARTING)
        return error_set(err, ERR_REFUSED, "the run has not begun yet");
    if (c->orders.stop)
        return error_set(err, ERR_REFUSED, "the run is being stopped");
    if (c->orders.rollback >= 0)
        return error_set(err, ERR_REFUSED, "the run is going back to step %" PRId64 " already", c->orders.rollback);
    if (!target_parse(c, args, &step, err))
        return false;
    c->orders.rollback = step;
    snprintf(c->orders.rollback_who, sizeof c->orders.rollback_who, "%s", o->who);
    return true;
}

/* Settings, schedule and steps as they were at step; what was is in the journal with the same commit. */
static bool rollback_make(struct controller *c, int64_t step, const char *who, struct error *err)
{
    struct effect effect = { 0 };
    char text[160];
    int n_aside = 0;
    bool ok = false;
    int64_t from = c->step;
    workers_tasks_forget(c);
    checkpoints_forgo(&c->checkpoints);
    evals_forgo(&c->evals);
    TRY(transaction(c, err) && changes_void(c, step, &effect, err) && ledger_undo(c, step, err));
    TRY(incarnation_begin(c, step, err) && checkpoints_undo(&c->checkpoints, c->journal, step, c->incarnation, &n_aside, err));
    TRY(evals_load(&c->evals, c->journal, err) && length_set(c, err) && ledger_advance(c, err));
    TRY(c->config.num_trainers == 1 || rounds_begin(c, err));
    step_metrics_restart(&c->metrics);
    alarms_back(c);
    snprintf(text, sizeof text, "back from step %" PRId64 " to %" PRId64 "%s", from, step,
             n_aside ? "; later checkpoints are moved aside" : "");
    event_add_facts(c, "return", who, text, json_pack("{s:I, s:I}", "step", (json_int_t)step, "incarnation", (json_int_t)c->incarnation));
    if (effect.detail)
        event_add(c, "command", who, buf_text(&effect.text), effect.detail);
    if (c->state == RUN_STOPPING)
        state_set(c, RUN_RUNNING, who, "");
    ok = true;
out:
    effect_release(&effect);
    return ok;
}

bool rollback_want(struct controller *c, bool before_change, const char *who)
{
    int64_t step = target_before(c, before_change ? changes_made_last(&c->changes) : c->step - 1);
    if (step < 0 || c->orders.rollback >= 0 || c->orders.stop)
        return false;
    c->orders.rollback = step;
    snprintf(c->orders.rollback_who, sizeof c->orders.rollback_who, "%s", who);
    return true;
}

void rollback_tick(struct controller *c)
{
    struct error err;
    struct buf undone = { .max = UNDOES_MAX };
    int64_t step = c->orders.rollback;
    if (step < 0 || c->checkpoints.saving >= 0 || run_is_over(c))    // a writer would place it among those that are moved aside
        return;
    undoes_say(c, step, &undone);
    snprintf(c->orders.rollback_told, sizeof c->orders.rollback_told, "back at step %" PRId64 "; undone: %.200s", step, buf_text(&undone));
    buf_release(&undone);
    c->orders.rollback = -1;
    if (!rollback_make(c, step, c->orders.rollback_who, &err))
        run_fail(c, "cannot go back to step %" PRId64 ": %s", step, err.text);
}

bool rollback_reached(struct controller *c, UNUSED const struct order *o, char *text, size_t size)
{
    snprintf(text, size, "%s", c->orders.rollback_told);
    return c->orders.rollback < 0 && !run_is_over(c);
}

/* ---- pins ---- */

static bool pin_set(struct controller *c, const struct mval *args, bool pinned, struct effect *effect, struct error *err)
{
    int64_t step = mval_i64(mval_get(args, "step"), -1);
    if (!checkpoints_have(&c->checkpoints, step))
        return error_set(err, ERR_NOT_FOUND, "there is no checkpoint of step %" PRId64, step);
    return checkpoint_pin(checkpoints_path(&c->checkpoints, step), pinned, err)
           && (buf_fmt(&effect->text, "the checkpoint of step %" PRId64 " %s", step,
                       pinned ? "stays until it is unpinned" : "is pinned no more")
               || error_set(err, ERR_NO_MEMORY, "no memory"));
}

bool pin_begin(struct controller *c, UNUSED struct order *o, const struct mval *args, struct effect *effect, struct error *err)
{
    return pin_set(c, args, true, effect, err);
}

bool unpin_begin(struct controller *c, UNUSED struct order *o, const struct mval *args, struct effect *effect, struct error *err)
{
    return pin_set(c, args, false, effect, err);
}

/* ---- the list ---- */

static void changes_write(const struct controller *c, int64_t step, struct msg_out *m)
{
    struct buf changes = { .max = UNDOES_MAX };
    changes_since(&c->changes, step, &changes);
    msg_str(m, "changes", buf_text(&changes));
    buf_release(&changes);
}

static void row_write(const struct controller *c, const struct checkpoint_row *row, struct msg_out *m)
{
    struct error why;
    int64_t size_bytes;
    bool whole = checkpoint_measure(row->path, &size_bytes, &why);
    msg_map(m, NULL);
    msg_i64(m, "step", row->step);
    msg_str(m, "state", whole ? "whole" : "broken");
    if (whole)
        msg_i64(m, "size_bytes", size_bytes);
    msg_bool(m, "pinned", checkpoint_is_pinned(row->path));
    msg_str(m, "why", row->why);
    msg_f64(m, "time", row->wall_s);
    msg_str(m, "path", row->path);
    changes_write(c, row->step, m);
    msg_end(m);
}

void checkpoints_asked(struct controller *c, struct request *r, UNUSED const struct msg_in *in)
{
    struct msg_out m = MSG_OUT_INIT;
    int64_t made = changes_made_last(&c->changes), before = made >= 0 ? target_before(c, made) : -1;
    msg_begin(&m, MSG_OK);
    msg_list(&m, "checkpoints");
    for (const struct checkpoint_row *k = checkpoints_next(&c->checkpoints, NULL); k; k = checkpoints_next(&c->checkpoints, k))
        row_write(c, k, &m);
    if (start_is_there(c)) {
        msg_map(&m, NULL);
        msg_i64(&m, "step", 0);
        msg_str(&m, "state", "start");
        msg_str(&m, "why", "the model the run began with");
        changes_write(c, 0, &m);
        msg_end(&m);
    }
    msg_end(&m);
    msg_i64(&m, "step", c->step);
    if (before >= 0)
        msg_i64(&m, "before_change", before);
    answer_later(c, r, &m);
}
