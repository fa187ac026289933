#include "workers/controller/orders.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "workers/controller/controller.h"
#include "workers/controller/dropping.h"
#include "workers/controller/outcomes.h"
#include "workers/controller/rescoring.h"
#include "workers/controller/rollback.h"
#include "workers/controller/workers.h"

static const char *const depth_names[] = {
    [PAUSE_NONE] = "", [PAUSE_ROLLOUTS] = "rollouts", [PAUSE_STEP] = "step", [PAUSE_DRAIN] = "drain"
};

static const char *const depth_says[] = {
    [PAUSE_NONE] = "",
    [PAUSE_ROLLOUTS] = "after the rollouts that were under way",
    [PAUSE_STEP] = "after a whole step",
    [PAUSE_DRAIN] = "after a drain and its checkpoint",
};

const char *pause_depth_name(enum pause_depth depth)
{
    return depth_names[depth];
}

static void lock_restore(struct controller *c);

/* ---- pause and stop survive the controller: one file in the folder of sockets, which is emptied when a run is started ---- */

static void orders_keep(const struct controller *c)
{
    char path[4200], text[128];
    struct error err;
    snprintf(path, sizeof path, "%s/sock/orders", c->process.run_dir);
    if (c->orders.pause == PAUSE_NONE && !c->orders.stop) {
        unlink(path);
        return;
    }
    int n = snprintf(text, sizeof text, "%d %d %s", (int)c->orders.pause, c->orders.stop, c->orders.pause_who);
    if (!file_write(path, text, (size_t)n, &err))
        log_warn("%s", err.text);
}

void orders_restore(struct controller *c)
{
    char path[4200];
    struct error err;
    struct buf text = BUF_INIT;
    int pause = 0, stop = 0, who_at = 0;
    snprintf(path, sizeof path, "%s/sock/orders", c->process.run_dir);
    if (path_exists(path) && file_read(&text, path, 128, &err) && sscanf(buf_text(&text), "%d %d %n", &pause, &stop, &who_at) == 2
        && pause >= PAUSE_NONE && pause <= PAUSE_DRAIN) {
        c->orders.pause = (enum pause_depth)pause;
        c->orders.stop = stop;
        if (who_at)
            snprintf(c->orders.pause_who, sizeof c->orders.pause_who, "%.63s", buf_text(&text) + who_at);
        if (stop)
            snprintf(c->reason, sizeof c->reason, "stopped by an operator");
    }
    buf_release(&text);
    lock_restore(c);
}

void orders_pause(struct controller *c, enum pause_depth depth, const char *who)
{
    if (c->orders.pause != PAUSE_NONE)
        return;
    c->orders.pause = depth;
    snprintf(c->orders.pause_who, sizeof c->orders.pause_who, "%.63s", who);
    orders_keep(c);
}

/* ---- the lock, which survives the controller in the same folder ---- */

static void lock_keep(const struct controller *c)
{
    char path[4200], text[256];
    struct error err;
    snprintf(path, sizeof path, "%s/sock/lock", c->process.run_dir);
    if (!c->orders.lock.holder[0]) {
        unlink(path);
        return;
    }
    int n = snprintf(text, sizeof text, "%.0f %s", c->orders.lock.since_s, c->orders.lock.holder);
    if (!file_write(path, text, (size_t)n, &err))
        log_warn("%s", err.text);
}

static void lock_restore(struct controller *c)
{
    char path[4200];
    struct error err;
    struct buf text = BUF_INIT;
    struct control_lock *l = &c->orders.lock;
    snprintf(path, sizeof path, "%s/sock/lock", c->process.run_dir);
    if (path_exists(path) && file_read(&text, path, 256, &err) && sscanf(buf_text(&text), "%lf %127[^\n]", &l->since_s, l->holder) != 2)
        *l = (struct control_lock){ 0 };
    buf_release(&text);
}

static bool lock_begin(struct controller *c, struct order *o, const struct mval *args, struct effect *effect, struct error *err)
{
    char how[16];
    struct control_lock *l = &c->orders.lock;
    bool other = l->holder[0] && strcmp(l->holder, o->who) != 0;
    if (other && !o->force && strcmp(mval_text(args, "how", how, sizeof how), "force") != 0)
        return control_lock_lets(l, o->who, "lock", false, clock_wall_s(), err);
    buf_fmt(&effect->text, "%s has control of the run", o->who);
    if (other)
        buf_fmt(&effect->text, ", taken from %s", l->holder);
    if (!l->holder[0] || other)
        l->since_s = clock_wall_s();
    snprintf(l->holder, sizeof l->holder, "%s", o->who);
    lock_keep(c);
    return true;
}

static bool unlock_begin(struct controller *c, UNUSED struct order *o, UNUSED const struct mval *args, struct effect *effect,
                         struct error *err)
{
    struct control_lock *l = &c->orders.lock;
    if (!l->holder[0])
        return error_set(err, ERR_REFUSED, "nobody has taken the control of the run");
    buf_fmt(&effect->text, "%s has given back control of the run", l->holder);
    *l = (struct control_lock){ 0 };
    lock_keep(c);
    return true;
}

static bool note_begin(UNUSED struct controller *c, UNUSED struct order *o, const struct mval *args, struct effect *effect,
                       UNUSED struct error *err)
{
    char text[192];
    if (!mval_text(args, "text", text, sizeof text)[0])
        return error_set(err, ERR_USAGE, "'note' needs a text");
    buf_fmt(&effect->text, "note: %s", text);
    json_t *facts = json_pack("{s:s}", "note", text);
    effect->detail = facts ? json_text_dump(facts, JSON_COMPACT) : NULL;    // NULL: the text says it
    json_decref(facts);
    return true;
}

/* Does the lock let this command through? What overrides it is in the audit trail. */
static bool lock_lets(struct controller *c, const struct order *o, const char *name, struct error *err)
{
    char text[320];
    const struct control_lock *l = &c->orders.lock;
    if (strcmp(name, "lock") == 0 || strcmp(name, "note") == 0)    // one says itself whom it is taken from, the other changes nothing
        return true;
    if (!control_lock_lets(l, o->who, name, o->force, clock_wall_s(), err))
        return false;
    if (o->force && l->holder[0] && strcmp(l->holder, o->who) != 0) {
        snprintf(text, sizeof text, "'%s' in spite of the control that %s has", name, l->holder);
        event_add(c, "command", o->who, text, "");
    }
    return true;
}

/* ---- set, revert, quarantine: they take effect at once ---- */

/* The first optimizer step that can still be another: one that is under way keeps its settings. */
static int64_t next_step(const struct controller *c)
{
    return c->step + (step_is_open(c) ? 1 : 0);
}

static bool word_copy(char *to, size_t size, const char *from, size_t len)
{
    if (!from || len >= size)
        return false;
    memcpy(to, from, len);
    to[len] = 0;
    return true;
}

static bool set_begin(struct controller *c, UNUSED struct order *o, const struct mval *args, struct effect *effect, struct error *err)
{
    enum { WORD_MAX = RUN_TEXT_MAX > 512 ? 512 : RUN_TEXT_MAX };
    char words[CHANGES_AT_ONCE][2][WORD_MAX];
    const char *name[CHANGES_AT_ONCE], *value[CHANGES_AT_ONCE];
    const struct mval *values = mval_get(args, "values");
    int n = (int)MIN(mval_n(values), (int64_t)CHANGES_AT_ONCE + 1);
    if (n < 1 || n > CHANGES_AT_ONCE)
        return error_set(err, ERR_USAGE, "'set' needs 1 to %d values as NAME=VALUE", CHANGES_AT_ONCE);
    for (int i = 0; i < n; i++) {
        size_t klen = 0, vlen = 0;
        const char *k = mval_key(values, i, &klen), *v = mval_str(mval_at(values, i), &vlen);
        if (!word_copy(words[i][0], WORD_MAX, k, klen) || !word_copy(words[i][1], WORD_MAX, v, vlen))
            return error_set(err, ERR_USAGE, "value %d of 'set' is not a NAME and a text of at most %d bytes", i + 1, WORD_MAX - 1);
        name[i] = words[i][0];
        value[i] = words[i][1];
    }
    return changes_make(c, name, value, n, next_step(c), effect, err);
}

static bool revert_begin(struct controller *c, UNUSED struct order *o, UNUSED const struct mval *args, struct effect *effect,
                         struct error *err)
{
    return changes_undo(c, next_step(c), effect, err);
}

static bool quarantine_begin(struct controller *c, UNUSED struct order *o, const struct mval *args, struct effect *effect,
                             struct error *err)
{
    return quarantine_add(c, mval_i64(mval_get(args, "line"), -1), &effect->text, err);
}

static bool drop_order_begin(struct controller *c, struct order *o, const struct mval *args, UNUSED struct effect *effect,
                             struct error *err)
{
    o->item = mval_i64(mval_get(args, "item"), -1);
    return drop_begin(c, o->item, o->who, err);
}

static bool drop_reached(struct controller *c, const struct order *o, char *text, size_t size)
{
    return drop_over(c, o->item, text, size);
}

static void orders_answer(struct controller *c);

static bool rescore_order_begin(struct controller *c, struct order *o, const struct mval *args, UNUSED struct effect *effect,
                                struct error *err)
{
    o->item = mval_i64(mval_get(args, "item"), -1);
    orders_answer(c);    // one that has ended in this turn of the loop, before its outcome is gone
    return rescore_begin(c, o->item, err);
}

static bool rescore_reached(struct controller *c, const struct order *o, char *text, size_t size)
{
    return rescore_over(c, o->item, text, size);
}

/* ---- pause and resume ---- */

static bool depth_parse(const struct mval *args, enum pause_depth *out, struct error *err)
{
    char text[32];
    mval_text(args, "depth", text, sizeof text);
    *out = PAUSE_STEP;
    if (!text[0])
        return true;
    for (int d = PAUSE_ROLLOUTS; d <= PAUSE_DRAIN; d++)
        if (strcmp(depth_names[d], text) == 0) {
            *out = (enum pause_depth)d;
            return true;
        }
    return error_set(err, ERR_USAGE, "unknown depth '%s'; it is rollouts, step or drain", text);
}

static bool pause_begin(struct controller *c, struct order *o, const struct mval *args, UNUSED struct effect *effect, struct error *err)
{
    if (!depth_parse(args, &o->depth, err))
        return false;
    if (c->state == RUN_PAUSED && c->orders.pause != o->depth)    // another depth: what it still allows may go on first
        state_set(c, RUN_RUNNING, o->who, "");
    c->orders.pause = o->depth;
    c->orders.pause_who[0] = 0;
    return true;
}

static bool pause_reached(struct controller *c, const struct order *o, char *text, size_t size)
{
    snprintf(text, size, "paused at step %" PRId64 " (depth %s)", c->step, depth_names[o->depth]);
    return c->state == RUN_PAUSED;
}

static bool resume_begin(struct controller *c, struct order *o, UNUSED const struct mval *args, UNUSED struct effect *effect,
                         UNUSED struct error *err)
{
    c->orders.pause = PAUSE_NONE;
    if (c->state == RUN_PAUSED)
        state_set(c, RUN_RUNNING, o->who, "");
    return true;
}

static bool resume_reached(struct controller *c, UNUSED const struct order *o, char *text, size_t size)
{
    snprintf(text, size, "running from step %" PRId64, c->step);
    return c->state == RUN_RUNNING && c->orders.pause == PAUSE_NONE;
}

/* ---- checkpoint, eval, stop ---- */

static bool checkpoint_begin(struct controller *c, struct order *o, UNUSED const struct mval *args, UNUSED struct effect *effect,
                             UNUSED struct error *err)
{
    checkpoints_want(&c->checkpoints, c->step, o->who);
    return true;
}

static bool checkpoint_reached(struct controller *c, const struct order *o, char *text, size_t size)
{
    snprintf(text, size, "step %" PRId64 " is saved", checkpoints_last(&c->checkpoints));
    return checkpoints_idle(&c->checkpoints) && checkpoints_reach(&c->checkpoints, o->step);
}

static bool eval_begin(struct controller *c, UNUSED struct order *o, UNUSED const struct mval *args, UNUSED struct effect *effect,
                       struct error *err)
{
    if (!c->now.eval_dataset[0])
        return error_set(err, ERR_REFUSED, "the run has no evaluation set; 'eval_dataset' names them, from the start on");
    evals_want(&c->evals, c->step);
    return true;
}

static bool eval_reached(struct controller *c, UNUSED const struct order *o, char *text, size_t size)
{
    snprintf(text, size, "evaluated at step %" PRId64, c->step);
    return evals_idle(&c->evals);
}

static bool stop_begin(struct controller *c, struct order *o, UNUSED const struct mval *args, UNUSED struct effect *effect,
                       UNUSED struct error *err)
{
    c->orders.stop = true;
    snprintf(c->reason, sizeof c->reason, "stopped by %s", o->who);
    return true;
}

/* Its answer comes with the end of the run: orders_end. */
static bool stop_reached(UNUSED struct controller *c, UNUSED const struct order *o, UNUSED char *text, UNUSED size_t size)
{
    return false;
}

/* ---- all of them ---- */

/* The controller's commands; names, arguments and time limits are in command_specs (protocol/wire/message.h), the agent has the rest. */
static const struct order_row {
    const char *name;
    /* False: it is refused. What takes effect at once says in effect what it has done. */
    bool (*begin)(struct controller *c, struct order *o, const struct mval *args, struct effect *effect, struct error *err);
    /* Has it taken effect? Then text says how. NULL: at once. */
    bool (*reached)(struct controller *c, const struct order *o, char *text, size_t size);
} rows[] = {
    { "pause", pause_begin, pause_reached },
    { "resume", resume_begin, resume_reached },
    { "set", set_begin, NULL },
    { "revert", revert_begin, NULL },
    { "checkpoint", checkpoint_begin, checkpoint_reached },
    { "eval", eval_begin, eval_reached },
    { "stop", stop_begin, stop_reached },
    { "quarantine", quarantine_begin, NULL },
    { "drop", drop_order_begin, drop_reached },
    { "rescore", rescore_order_begin, rescore_reached },
    { "rollback", rollback_begin, rollback_reached },
    { "pin", pin_begin, NULL },
    { "unpin", unpin_begin, NULL },
    { "note", note_begin, NULL },
    { "lock", lock_begin, NULL },
    { "unlock", unlock_begin, NULL },
    { "ack", ack_begin, NULL },
    { "mute", mute_begin, NULL },
    { "unmute", unmute_begin, NULL },
};

static const struct order_row *row_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

/* Begin a command that is new. False: it is refused, which is its outcome. */
static bool order_begin(struct controller *c, struct order *o, const char *name, const struct mval *args, struct error *err)
{
    struct effect effect = { 0 };
    if (run_is_over(c))
        return error_set(err, ERR_REFUSED, "the run has ended (%s)", run_state_name(c->state));
    if (!o->row)
        return error_set(err, ERR_UNSUPPORTED, "'%s' is carried out by the agent", name);
    if (!lock_lets(c, o, name, err))
        return false;
    bool ok = o->row->begin(c, o, args, &effect, err);
    if (ok && o->row->reached) {
        orders_keep(c);
        c->orders.pending[c->orders.n++] = *o;
    } else if (ok) {
        outcome_ok(c, o->request, o->id, o->who, buf_text(&effect.text), effect.detail ? effect.detail : "");
    }
    effect_release(&effect);
    return ok;
}

/* Asked again while it waits: the newer asker gets the answer. */
static bool order_asked_again(struct controller *c, const char *id, struct request *r)
{
    for (int i = 0; i < c->orders.n; i++)
        if (strcmp(c->orders.pending[i].id, id) == 0) {
            request_drop(c->orders.pending[i].request);
            c->orders.pending[i].request = r;
            return true;
        }
    return false;
}

void command_came(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    char name[32];
    bool known = false;
    struct order o = { .request = r, .step = c->step };
    mval_text(in->root, "id", o.id, sizeof o.id);
    mval_text(in->root, "who", o.who, sizeof o.who);
    const struct command_spec *spec = command_find(mval_text(in->root, "command", name, sizeof name), &err);
    if (!spec || !outcome_again(c, r, o.id, &known, &err)) {
        refuse_later(c, r, &err);
        return;
    }
    if (known || order_asked_again(c, o.id, r))
        return;
    if (c->orders.n == ORDERS_MAX && !run_is_over(c)) {
        error_set(&err, ERR_FULL, "%d commands wait already", c->orders.n);
        refuse_later(c, r, &err);
        return;
    }
    o.row = row_find(name);
    o.force = mval_bool(mval_get(in->root, "force"), false);
    o.limit_ms = clock_ms() + command_limit_ms(in->root, spec->limit_s);
    if (!order_begin(c, &o, name, mval_get(in->root, "args"), &err))
        outcome_failed(c, r, o.id, o.who, &err);
}

void orders_end(struct controller *c)
{
    struct error err;
    char text[128];
    for (int i = 0; i < c->orders.n; i++) {
        const struct order *o = &c->orders.pending[i];
        if (strcmp(o->row->name, "stop") == 0 && c->state != RUN_FAILED) {
            snprintf(text, sizeof text, "the run has ended at step %" PRId64, c->step);
            outcome_ok(c, o->request, o->id, o->who, text, "");
            continue;
        }
        error_set(&err, ERR_REFUSED, "'%s' has not taken effect: the run has ended", o->row->name);
        outcome_failed(c, o->request, o->id, o->who, &err);
    }
    c->orders.n = 0;
}

const char *orders_first(const struct controller *c)
{
    return c->orders.n > 0 ? c->orders.pending[0].row->name : NULL;
}

/* ---- the clock ---- */

/* What was on its way has come back, and what could be trained on with it has been. */
static bool drained(const struct controller *c)
{
    struct ledger_counts n;
    const struct ledger_item *one;
    ledger_counts(c->ledger, 1, &n);
    return n.leased == 0 && !step_is_open(c)
           && (c->step >= c->max_steps || !ledger_version_done(c->ledger, c->step) || ledger_batch(c->ledger, c->step, &one, 1) == 0);
}

/* What a drained run holds is on disk, or could not be written and an alert has said so. The checkpoint is requested only now, because a
 * step that was running when the drain was requested belongs to it. */
static bool drain_is_saved(struct controller *c)
{
    if (!checkpoints_idle(&c->checkpoints))
        return false;
    if (checkpoints_tried(&c->checkpoints, c->step))
        return true;
    checkpoints_want(&c->checkpoints, c->step, "pause drain");
    return false;
}

static bool depth_is_reached(struct controller *c)
{
    switch (c->orders.pause) {
    case PAUSE_NONE: return false;
    case PAUSE_STEP: return !c->ledger || !step_is_open(c);
    case PAUSE_ROLLOUTS: return !c->ledger || drained(c);
    case PAUSE_DRAIN: return (!c->ledger || drained(c)) && drain_is_saved(c);
    }
    return false;
}

int64_t orders_due(const struct controller *c)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < c->orders.n; i++)
        due = MIN(due, c->orders.pending[i].limit_ms);
    return due;
}

/* Its time limit has passed. */
static void order_late(struct controller *c, const struct order *o)
{
    struct error err;
    char who[256];
    workers_late(c, who, sizeof who);
    error_set(&err, ERR_TIMEOUT, "'%s' has not taken effect in time; it waits for %s", o->row->name, who);
    outcome_failed(c, o->request, o->id, o->who, &err);
}

/* Answer what has taken effect, and what is too late. */
static void orders_answer(struct controller *c)
{
    char text[512];
    for (int i = 0; i < c->orders.n;) {
        struct order o = c->orders.pending[i];
        bool reached = o.row->reached(c, &o, text, sizeof text);
        if (!reached && clock_ms() < o.limit_ms) {
            i++;
            continue;
        }
        c->orders.pending[i] = c->orders.pending[--c->orders.n];
        if (reached)
            outcome_ok(c, o.request, o.id, o.who, text, "");
        else
            order_late(c, &o);
    }
}

void orders_tick(struct controller *c)
{
    char text[128];
    const char *who = c->orders.pause_who;
    if (c->state == RUN_RUNNING && !c->orders.stop && depth_is_reached(c)) {
        snprintf(text, sizeof text, "%s%s%s", who, who[0] ? " paused it, " : "", depth_says[c->orders.pause]);
        state_set(c, RUN_PAUSED, who[0] ? who : "controller", text);
    }
    orders_answer(c);
}
