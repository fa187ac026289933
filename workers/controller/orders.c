/* What operators ask. A command is carried out once by its id and answered when it has taken effect; what takes time waits in
 * pending, with its limit and, when that passes, the name of whoever is late. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/run/prompt_lines.h"
#include "protocol/run/resume_flags.h"
#include "workers/controller/controller.h"

#define STEPS_MAX 20000    // rows in one answer
#define EVENTS_MAX 1000
#define OUTCOME_MAX ((size_t)1 << 16)    // of one command, in words

static const char *const depth_names[] = { "", "rollouts", "step", "drain" };

/* The outcome as it is remembered and told again: "+step text" or "-code text". */
static void outcome_answer(struct controller *c, struct request *r, const char *outcome)
{
    struct msg_out m = MSG_OUT_INIT;
    const char *text = strchr(outcome, ' ') ? strchr(outcome, ' ') + 1 : "";
    if (outcome[0] == '+') {
        msg_begin(&m, MSG_OK);
        msg_str(&m, "effect", text);
        msg_i64(&m, "step", strtoll(outcome + 1, NULL, 10));
    } else {
        char code[32];
        snprintf(code, sizeof code, "%.*s", (int)MIN((size_t)(text - outcome - 2), sizeof code - 1), outcome + 1);
        msg_begin(&m, MSG_REFUSED);
        msg_str(&m, "code", code);
        msg_str(&m, "reason", text);
    }
    answer_later(c, r, &m);
}

static void outcome_set(struct controller *c, struct request *r, const char *id, const char *who, const char *outcome, const char *detail)
{
    struct error err;
    event_add(c, "command", who, strchr(outcome, ' ') ? strchr(outcome, ' ') + 1 : outcome, detail);
    if (!transaction(c, &err) || !journal_command_put(c->journal, id, outcome, &err))
        log_error("a command's outcome is not kept: %s", err.text);
    if (r)
        outcome_answer(c, r, outcome);
}

/* detail: of the event, JSON or "". */
static void command_ok_with(struct controller *c, struct request *r, const char *id, const char *who, int64_t step, const char *text,
                            const char *detail)
{
    struct buf outcome = BUF_INIT;
    struct error err;
    if (buf_fmt(&outcome, "+%" PRId64 " %s", step, text)) {
        outcome_set(c, r, id, who, buf_text(&outcome), detail);
    } else {
        error_set(&err, ERR_NO_MEMORY, "it has taken effect, but there is no memory to say it: %.200s", text);
        refuse_later(c, r, &err);
    }
    buf_release(&outcome);
}

static void command_ok(struct controller *c, struct request *r, const char *id, const char *who, int64_t step, const char *text)
{
    command_ok_with(c, r, id, who, step, text, "");
}

static void command_fail(struct controller *c, struct request *r, const char *id, const char *who, const struct error *err)
{
    char outcome[1200];
    snprintf(outcome, sizeof outcome, "-%s %.1023s", error_code_name(err->code), err->text);
    outcome_set(c, r, id, who, outcome, "");
}

void orders_refuse_all(struct controller *c, const char *why)
{
    struct error err;
    for (int i = 0; i < c->n_pending; i++) {
        struct pending_command *p = &c->pending[i];
        if (strcmp(p->name, "stop") == 0 && c->state != RUN_FAILED) {
            char text[128];
            snprintf(text, sizeof text, "the run has ended at step %" PRId64, c->step);
            command_ok(c, p->request, p->id, p->who, c->step, text);
            continue;
        }
        error_set(&err, ERR_REFUSED, "'%s' has not taken effect: %s", p->name, why);
        command_fail(c, p->request, p->id, p->who, &err);
    }
    c->n_pending = 0;
}

/* Pause and stop survive a killed controller: one file in the folder that belongs to this life of the run. */
static void orders_keep(struct controller *c)
{
    char path[4200], text[64];
    struct error err;
    snprintf(path, sizeof path, "%s/sock/orders", c->process.run_dir);
    if (c->pause == PAUSE_NONE && !c->stop_wanted) {
        unlink(path);
        return;
    }
    int n = snprintf(text, sizeof text, "%d %d", (int)c->pause, c->stop_wanted);
    if (!file_write(path, text, (size_t)n, &err))
        log_warn("%s", err.text);
}

void orders_restore(struct controller *c)
{
    char path[4200];
    struct error err;
    struct buf text = BUF_INIT;
    int pause = 0, stop = 0;
    snprintf(path, sizeof path, "%s/sock/orders", c->process.run_dir);
    if (path_exists(path) && file_read(&text, path, 64, &err) && sscanf(buf_text(&text), "%d %d", &pause, &stop) == 2 && pause >= PAUSE_NONE
        && pause <= PAUSE_DRAIN) {
        c->pause = (enum pause_depth)pause;
        c->stop_wanted = stop;
        if (stop)
            snprintf(c->reason, sizeof c->reason, "stopped by an operator");
    }
    buf_release(&text);
}

/* ---- commands that take effect at once ---- */

/* next: the first optimizer step that can still be another. */
static bool change_add(struct controller *c, const struct knob *k, const char *value, const char *before, int64_t next, struct error *err)
{
    struct ledger_state s = { 0 };
    if (c->n_change == c->change_cap) {
        int64_t cap = MAX(2 * c->change_cap, (int64_t)16);
        struct knob_change *p = realloc(c->change, (size_t)cap * sizeof *p);
        if (!p)
            return error_set(err, ERR_NO_MEMORY, "no memory for a change of '%s'", k->name);
        c->change = p;
        c->change_cap = cap;
    }
    if (c->ledger)
        ledger_state(c->ledger, &s);
    struct knob_change *n = &c->change[c->n_change++];
    /* batches that are cut and rollout steps that are open keep what they were made with */
    bool shapes = strcmp(k->name, "train_batch_size") == 0 || strcmp(k->name, "filter_range") == 0
                  || strcmp(k->name, "filter_no_spread") == 0;
    *n = (struct knob_change){
        .step = shapes ? MAX(s.n_batch, next) : next, .rollout_step = s.n_open, .knob = k, .group = c->change_group
    };
    snprintf(n->value, sizeof n->value, "%s", value);
    snprintf(n->before, sizeof n->before, "%s", before);
    return true;
}

/* The changes of one command as its event has them: {"changes":[{"name","before","value","from"}]}; returns text for free, NULL
 * without memory. */
static char *changes_detail(json_t *changes)
{
    json_t *o = json_pack("{s:o}", "changes", changes);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

/* text gets the changes in words; *detail as JSON, for free, NULL when there is no memory for that. */
static bool knobs_set(struct controller *c, const char *const *name, const char *const *value, int n, int64_t next_step, struct buf *text,
                      char **detail, struct error *err)
{
    struct run_config *next = malloc(sizeof *next);
    struct buf before = BUF_INIT, after = BUF_INIT;
    json_t *changes = json_array();
    bool ok = false;
    if (!next || !changes) {
        error_set(err, ERR_NO_MEMORY, "no memory for settings");
        goto out;
    }
    TRY(knobs_propose(&c->config, &c->now, name, value, n, next, err));
    struct run_plan plan;
    TRY(c->n_row == 0 || run_plan_make(&plan, next, c->n_row, err));
    c->change_group++;
    for (int i = 0; i < n; i++) {
        const struct knob *k = knob_find(name[i], err);
        knob_text(k, &c->now, &before);
        knob_text(k, next, &after);
        TRY(change_add(c, k, buf_text(&after), buf_text(&before), next_step, err));
        const struct knob_change *added = &c->change[c->n_change - 1];
        char from[64] = "now";
        if (k->applies == APPLY_NEXT_STEP)
            snprintf(from, sizeof from, "optimizer step %" PRId64, added->step + 1);
        else if (k->applies == APPLY_NEXT_ROLLOUT)
            snprintf(from, sizeof from, "rollout step %" PRId64, added->rollout_step + 1);
        buf_fmt(text, "%s%s: %s -> %s from %s on", i ? "; " : "", k->name, buf_text(&before), buf_text(&after), from);
        json_array_append_new(changes, json_pack("{s:s, s:s, s:s, s:s}", "name", k->name, "before", buf_text(&before), "value",
                                                 buf_text(&after), "from", from));
        const char *idle = knob_idle(k, next);
        if (idle)
            buf_fmt(text, " (without effect: %s)", idle);
    }
    TRY(changes_save(c, err));
    c->now = *next;
    TRY(length_set(c, err));
    ok = !c->ledger || ledger_advance(c, err);
    *detail = ok ? changes_detail(json_incref(changes)) : NULL;
out:
    json_decref(changes);
    free(next);
    buf_release(&before);
    buf_release(&after);
    return ok;
}

/* A step that is under way keeps its settings. */
static int64_t next_step(const struct controller *c)
{
    return c->step + (step_is_open(c) ? 1 : 0);
}

static void set_command(struct controller *c, struct request *r, const char *id, const char *who, const struct mval *args)
{
    const char *name[64], *value[64];
    static const int max = 64;
    char words[64][2][RUN_TEXT_MAX > 512 ? 512 : RUN_TEXT_MAX];
    struct buf text = { .max = OUTCOME_MAX };
    char *detail = NULL;
    struct error err;
    const struct mval *values = mval_get(args, "values");
    int n = (int)MIN(mval_n(values), (int64_t)max + 1);
    bool ok = n > 0 && n <= max;
    if (!ok)
        error_set(&err, ERR_USAGE, "'set' needs 1 to %d values as NAME=VALUE", max);
    for (int i = 0; ok && i < n; i++) {
        size_t klen = 0, vlen = 0;
        const char *k = mval_key(values, i, &klen), *v = mval_str(mval_at(values, i), &vlen);
        if (!k || !v || klen >= sizeof words[i][0] || vlen >= sizeof words[i][1])
            ok = error_set(&err, ERR_USAGE, "value %d of 'set' is not a NAME and a text of at most %zu bytes", i + 1,
                           sizeof words[i][1] - 1);
        else {
            memcpy(words[i][0], k, klen);
            words[i][0][klen] = 0;
            memcpy(words[i][1], v, vlen);
            words[i][1][vlen] = 0;
            name[i] = words[i][0];
            value[i] = words[i][1];
        }
    }
    if (ok && knobs_set(c, name, value, n, next_step(c), &text, &detail, &err))
        command_ok_with(c, r, id, who, c->step, buf_text(&text), detail ? detail : "");
    else
        command_fail(c, r, id, who, &err);
    buf_release(&text);
    free(detail);
}

static void revert_command(struct controller *c, struct request *r, const char *id, const char *who)
{
    const char *name[64], *value[64];
    char *detail = NULL;
    struct buf text = { .max = OUTCOME_MAX };
    struct error err;
    int n = 0;
    int64_t group = c->n_change > 0 ? c->change[c->n_change - 1].group : -1;
    struct knob_change *copy = calloc(64, sizeof *copy);
    for (int64_t i = c->n_change - 1; copy && i >= 0 && c->change[i].group == group && n < 64; i--, n++) {
        copy[n] = c->change[i];
        name[n] = copy[n].knob->name;
        value[n] = copy[n].before;
    }
    if (n == 0)
        error_set(&err, ERR_REFUSED, "no knob has been changed in this run");
    if (n > 0 && knobs_set(c, name, value, n, next_step(c), &text, &detail, &err))
        command_ok_with(c, r, id, who, c->step, buf_text(&text), detail ? detail : "");
    else
        command_fail(c, r, id, who, &err);
    buf_release(&text);
    free(detail);
    free(copy);
}

/* Of several words on one knob, the first start's run.yaml and the last value count. */
static bool flag_take(void *arg, const char *name, const char *before, const char *value, struct error *err)
{
    struct controller *c = arg;
    const struct knob *k = knob_find(name, err);
    if (!k)
        return false;
    if (!c->resumed) {
        if (!(c->resumed = calloc(1, sizeof *c->resumed)))
            return error_set(err, ERR_NO_MEMORY, "no memory for settings");
        c->resumed->was = c->resumed->wanted = c->config;
    }
    bool known = c->resumed->given[k - knobs];
    c->resumed->given[k - knobs] = true;
    return (known || run_config_set(&c->resumed->was, name, before, FROM_FILE, NULL, err))
           && run_config_set(&c->resumed->wanted, name, value, FROM_COMMAND, NULL, err);
}

bool orders_resumed_read(struct controller *c, struct error *err)
{
    if (!resume_flags_read(c->process.run_dir, flag_take, c, err))
        return false;
    if (!c->resumed)
        return true;
    struct run_config *with = malloc(sizeof *with);
    if (!with)
        return error_set(err, ERR_NO_MEMORY, "no memory for settings");
    *with = c->config;
    c->config = c->resumed->was;
    config_at(c, INT64_MAX, INT64_MAX, &c->now);
    c->config = *with;
    free(with);
    return true;
}

bool orders_resumed_apply(struct controller *c, struct error *err)
{
    char *detail = NULL;
    const char *name[KNOB_MAX];
    struct buf value[KNOB_MAX] = { 0 }, was = BUF_INIT, text = { .max = OUTCOME_MAX };
    const char *values[KNOB_MAX];
    char path[4096];
    int n = 0;
    bool ok = true;
    if (!c->resumed)
        return true;
    int64_t from = return_target(c, path);
    for (int i = 0; i < n_knobs; i++) {
        if (!c->resumed->given[i])
            continue;
        values[n] = knob_text(&knobs[i], &c->resumed->wanted, &value[n]);
        if (strcmp(values[n], knob_text(&knobs[i], &c->now, &was)) != 0)
            name[n++] = knobs[i].name;
    }
    if (n > 0 && !knobs_set(c, name, values, n, from >= 0 ? from : c->step, &text, &detail, err))
        run_fail(c, "the settings given at resume cannot be taken: %s", err->text);
    else if (n > 0)
        event_add(c, "command", "train --resume", buf_text(&text), detail ? detail : "");
    if (c->in_transaction) {
        c->in_transaction = false;
        ok = journal_commit(c->journal, err);
    }
    if (ok)
        resume_flags_remove(c->process.run_dir);    // killed before: what holds already is not set again
    free(c->resumed);
    c->resumed = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(value); i++)
        buf_release(&value[i]);
    buf_release(&was);
    buf_release(&text);
    free(detail);
    return ok;
}

/* ---- prompts and the lines of the data's file that they stand on ---- */

void line_write(const struct controller *c, struct msg_out *m, const struct mval *row)
{
    int64_t line = prompt_line(&c->lines, mval_i64(row, -1));
    if (line > 0)
        msg_i64(m, "line", line);
}

/* A line by the file that it stands in: " ('PATH', line or row N)", "" when there is but one. Returns out. */
static const char *line_file(const struct controller *c, int64_t line, char *out, size_t size)
{
    const char *found = NULL;
    int64_t first = 0;
    out[0] = 0;
    for (const char *at = buf_text(&c->line_files), *end; (end = strchr(at, '\n')); at = end + 1) {
        int64_t from = strtoll(at, NULL, 10);
        const char *path = strchr(at, ' ');
        if (path && path < end && from <= line) {
            found = path + 1;
            first = from;
        }
    }
    if (found)
        snprintf(out, size, " ('%.*s', line or row %" PRId64 ")", (int)MIN(strcspn(found, "\n"), (size_t)400), found, line - first + 1);
    return out;
}

bool lines_take(struct controller *c, const struct mval *told, const struct mval *files, struct error *err)
{
    size_t len = 0, files_len = 0;
    const void *pair = told ? mval_bin(told, &len) : NULL;
    const char *list = files ? mval_str(files, &files_len) : NULL;
    if (list && (files_len != c->line_files.len || memcmp(c->line_files.data, list, files_len) != 0)) {
        buf_clear(&c->line_files);
        if (!buf_add(&c->line_files, list, files_len))
            return error_set(err, ERR_NO_MEMORY, "no memory for the names of the data's files");
        if (!transaction(c, err) || !journal_value_put(c->journal, "line_files", list, files_len, err))
            return false;
    }
    if (!pair || len % (2 * sizeof(int64_t)) != 0 || (c->lines_told && len == c->lines.len && memcmp(buf_text(&c->lines), pair, len) == 0))
        return true;
    c->lines_told = true;
    buf_clear(&c->lines);
    if (!buf_add(&c->lines, pair, len))
        return error_set(err, ERR_NO_MEMORY, "no memory for where the prompts stand");
    return transaction(c, err) && journal_value_put(c->journal, "lines", pair, len, err);
}

static void quarantine_command(struct controller *c, struct request *r, const char *id, const char *who, const struct mval *args)
{
    struct error err;
    struct buf list = BUF_INIT;
    char text[640], where[512];
    bool found, ok = false;
    int64_t line = mval_i64(mval_get(args, "line"), -1), row = prompt_on_line(&c->lines, c->n_row, line);
    if (!c->ledger || !c->lines_told)
        error_set(&err, ERR_REFUSED, "no worker has loaded the data yet");
    else if (c->lines.len == 0)
        error_set(
            &err, ERR_REFUSED,
            "'%.600s' has unusable lines in more than %d places (blank, or with too long a prompt), so that its prompts cannot be found "
            "by line; raise max_prompt_tokens, or leave these lines out of the file",
            c->config.dataset, PROMPT_LINES_MAX);
    else if (row < 0)
        error_set(&err, ERR_USAGE,
                  "no prompt of this run stands on line %" PRId64 " of '%.600s': it is blank, its prompt is too long, or the "
                  "file ends before it",
                  line, c->config.dataset);
    else if (!ledger_forbid(c->ledger, row))
        error_set(&err, ERR_REFUSED, "the prompt on line %" PRId64 "%s is in quarantine already, or the last one left", line,
                  line_file(c, line, where, sizeof where));
    else
        ok = journal_value_get(c->journal, "quarantine", &list, &found, &err);
    if (ok
        && !(buf_fmt(&list, "%" PRId64 "\n", row) && transaction(c, &err)
             && journal_value_put(c->journal, "quarantine", list.data, list.len, &err)))
        ok = false;
    snprintf(text, sizeof text, "the prompt on line %" PRId64 "%s is issued no more", line, line_file(c, line, where, sizeof where));
    if (ok)
        command_ok(c, r, id, who, c->step, text);
    else
        command_fail(c, r, id, who, &err);
    buf_release(&list);
}

/* ---- commands that take time ---- */

static bool pause_reached(const struct controller *c, enum pause_depth depth)
{
    struct ledger_counts n;
    const struct ledger_item *one;
    if (!c->ledger)
        return true;
    ledger_counts(c->ledger, 1, &n);
    switch (depth) {
    case PAUSE_NONE: return true;
    case PAUSE_STEP: return !step_is_open(c);
    case PAUSE_DRAIN:
    case PAUSE_ROLLOUTS: break;
    }
    /* what was on its way has come back, and what could be trained on with it has been */
    return n.leased == 0 && !step_is_open(c)
           && (c->step >= c->max_steps || !ledger_version_done(c->ledger, c->step) || ledger_batch(c->ledger, c->step, &one, 1) == 0);
}

static bool saved(const struct controller *c, int64_t step)
{
    for (int i = 0; i < c->n_checkpoint; i++)
        if (c->checkpoint[i].step >= step && c->checkpoint[i].complete)
            return true;
    return false;
}

/* What a drained run holds is on disk, or could not be written, which has been told. Wants it saved otherwise: only now, since a step
 * that was under way when draining was asked for belongs to it. */
static bool drain_is_saved(struct controller *c)
{
    if (c->saving >= 0 || c->save_wanted >= 0)
        return false;
    for (int i = 0; i < c->n_checkpoint; i++)
        if (c->checkpoint[i].step == c->step)
            return true;
    c->save_wanted = c->step;
    return false;
}

/* Has a waiting command taken effect? Then text says how. */
static bool command_reached(struct controller *c, const struct pending_command *p, char *text, size_t size)
{
    if (strcmp(p->name, "pause") == 0) {
        if (c->state != RUN_PAUSED)
            return false;
        snprintf(text, size, "paused at step %" PRId64 " (depth %s)", c->step, depth_names[p->depth]);
        return true;
    }
    if (strcmp(p->name, "resume") == 0) {
        snprintf(text, size, "running from step %" PRId64, c->step);
        return c->state == RUN_RUNNING && c->pause == PAUSE_NONE;
    }
    if (strcmp(p->name, "checkpoint") == 0) {
        snprintf(text, size, "step %" PRId64 " is saved", c->n_checkpoint ? c->checkpoint[c->n_checkpoint - 1].step : 0);
        return c->saving < 0 && c->save_wanted < 0 && saved(c, p->step);
    }
    if (strcmp(p->name, "eval") == 0) {
        snprintf(text, size, "evaluated at step %" PRId64, c->step);
        return c->evaluating < 0 && c->eval_wanted < 0;
    }
    return false;    // stop: answered by orders_refuse_all when the run has ended
}

/* What keeps a command waiting: all workers with a task, since one of them may wait for the others; which is late, the agent adds. */
static void late_name(const struct controller *c, char *out, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < c->n_worker && at < size; i++)
        if (c->worker[i].task)
            at += (size_t)snprintf(out + at, size - at, "%s%s in '%s'", at ? ", " : "", c->worker[i].name,
                                   task_kind_name(c->worker[i].task_kind));
    if (at == 0)
        snprintf(out, size, c->n_worker ? "%s, which has not asked for work" : "no worker is there", c->n_worker ? c->worker[0].name : "");
}

int64_t orders_due(const struct controller *c)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < c->n_pending; i++)
        due = MIN(due, c->pending[i].limit_ms);
    return due;
}

void orders_tick(struct controller *c)
{
    char text[256];
    if (c->state == RUN_RUNNING && c->pause != PAUSE_NONE && !c->stop_wanted && pause_reached(c, c->pause)
        && (c->pause != PAUSE_DRAIN || drain_is_saved(c))) {
        snprintf(text, sizeof text, "depth %s", depth_names[c->pause]);
        state_set(c, RUN_PAUSED, "controller", text);
    }
    for (int i = 0; i < c->n_pending;) {
        struct pending_command p = c->pending[i];
        bool reached = command_reached(c, &p, text, sizeof text), late = clock_ms() >= p.limit_ms;
        if (!reached && !late) {
            i++;
            continue;
        }
        c->pending[i] = c->pending[--c->n_pending];
        if (reached) {
            command_ok(c, p.request, p.id, p.who, c->step, text);
        } else {
            struct error err;
            late_name(c, text, sizeof text);
            error_set(&err, ERR_TIMEOUT, "'%s' has not taken effect in time; it waits for %s", p.name, text);
            command_fail(c, p.request, p.id, p.who, &err);
        }
    }
}

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

void command_came(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct buf outcome = BUF_INIT;
    bool known = false;
    struct pending_command p = { .request = r };
    const struct mval *args = mval_get(in->root, "args");
    mval_text(in->root, "id", p.id, sizeof p.id);
    mval_text(in->root, "command", p.name, sizeof p.name);
    mval_text(in->root, "who", p.who, sizeof p.who);
    const struct command_spec *spec = command_find(p.name, &err);
    if (!spec || !transaction(c, &err) || !journal_command_get(c->journal, p.id, &outcome, &known, &err)) {
        refuse_later(c, r, &err);
        goto out;
    }
    if (known) {
        outcome_answer(c, r, buf_text(&outcome));
        goto out;
    }
    for (int i = 0; i < c->n_pending; i++)
        if (strcmp(c->pending[i].id, p.id) == 0) {    // asked again while it waits: the newer asker gets the answer
            request_drop(c->pending[i].request);
            c->pending[i].request = r;
            goto out;
        }
    if (run_is_over(c)) {
        error_set(&err, ERR_REFUSED, "the run has ended (%s)", run_state_name(c->state));
        command_fail(c, r, p.id, p.who, &err);
        goto out;
    }
    if (c->n_pending == (int)ARRAY_SIZE(c->pending)) {
        error_set(&err, ERR_FULL, "%d commands wait already", c->n_pending);
        refuse_later(c, r, &err);
        goto out;
    }
    p.limit_ms = clock_ms() + (int64_t)(1000 * mval_f64(mval_get(in->root, "limit_s"), spec->limit_s));
    p.step = c->step;
    if (strcmp(p.name, "set") == 0) {
        set_command(c, r, p.id, p.who, args);
        goto out;
    }
    if (strcmp(p.name, "quarantine") == 0) {
        quarantine_command(c, r, p.id, p.who, args);
        goto out;
    }
    if (strcmp(p.name, "revert") == 0) {
        revert_command(c, r, p.id, p.who);
        goto out;
    }
    if (strcmp(p.name, "pause") == 0) {
        if (!depth_parse(args, &p.depth, &err)) {
            command_fail(c, r, p.id, p.who, &err);
            goto out;
        }
        if (c->state == RUN_PAUSED && c->pause != p.depth)    // another depth: what it still allows may go on first
            state_set(c, RUN_RUNNING, p.who, "");
        c->pause = p.depth;
    } else if (strcmp(p.name, "resume") == 0) {
        c->pause = PAUSE_NONE;
        if (c->state == RUN_PAUSED)
            state_set(c, RUN_RUNNING, p.who, "");
    } else if (strcmp(p.name, "checkpoint") == 0) {
        c->save_wanted = c->step;
    } else if (strcmp(p.name, "eval") == 0) {
        c->eval_wanted = c->step;
    } else if (strcmp(p.name, "stop") == 0) {
        c->stop_wanted = true;
        snprintf(c->reason, sizeof c->reason, "stopped by %s", p.who);
    } else {
        error_set(&err, ERR_UNSUPPORTED, "'%s' is carried out by the agent", p.name);
        command_fail(c, r, p.id, p.who, &err);
        goto out;
    }
    orders_keep(c);
    c->pending[c->n_pending++] = p;
out:
    buf_release(&outcome);
}

/* ---- questions ---- */

struct journal_step_copy {
    int64_t step;
    double wall_s;
    int32_t *name;    // (n) index into names
    double *value;
    int n;
};

struct steps_reader {
    struct journal_step_copy *row;
    int64_t n, cap, from, limit, last_step;
    char (*names)[96];
    int n_names;
    bool more, ok;
};

static bool step_row(void *arg, const struct journal_step *s)
{
    struct steps_reader *r = arg;
    if (s->step < r->from)
        return true;
    if (r->n == r->limit) {
        r->more = true;
        return false;
    }
    if (r->n == r->cap) {
        int64_t cap = MAX(2 * r->cap, (int64_t)256);
        void *p = realloc(r->row, (size_t)cap * sizeof *r->row);
        if (!p)
            return r->ok = false;
        r->row = p;
        r->cap = cap;
    }
    struct journal_step_copy *c = &r->row[r->n];
    *c = (struct journal_step_copy){ .step = s->step, .wall_s = s->wall_s, .n = s->n };
    c->name = malloc((size_t)MAX(s->n, 1) * sizeof *c->name);
    c->value = malloc((size_t)MAX(s->n, 1) * sizeof *c->value);
    r->n++;
    if (!c->name || !c->value)
        return r->ok = false;
    for (int i = 0; i < s->n; i++) {
        int k = i < r->n_names && strcmp(r->names[i], s->metric[i].name) == 0 ? i : 0;    // rows usually agree
        while (k < r->n_names && strcmp(r->names[k], s->metric[i].name) != 0)
            k++;
        if (k == 256) {
            k = -1;
        } else if (k == r->n_names) {
            snprintf(r->names[k], sizeof r->names[k], "%s", s->metric[i].name);
            r->n_names++;
        }
        c->name[i] = k;
        c->value[i] = s->metric[i].value;
    }
    return true;
}

void steps_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    struct steps_reader s = { .from = mval_i64(mval_get(in->root, "from"), 0), .ok = true };
    s.limit = MIN(MAX(mval_i64(mval_get(in->root, "limit"), STEPS_MAX), 1), STEPS_MAX);
    s.names = calloc(256, sizeof *s.names);
    if (!s.names || !journal_steps_read(c->journal, 0, step_row, &s, &err) || !s.ok) {
        if (!s.names || !s.ok)
            error_set(&err, ERR_NO_MEMORY, "no memory for past steps");
        refuse_later(c, r, &err);
        goto out;
    }
    msg_begin(&m, MSG_OK);
    msg_list(&m, "names");
    for (int i = 0; i < s.n_names; i++)
        msg_str(&m, NULL, s.names[i]);
    msg_end(&m);
    size_t n = (size_t)s.n, w = (size_t)s.n_names;
    int64_t *step = calloc(MAX(n, (size_t)1), sizeof *step);
    double *wall = calloc(MAX(n, (size_t)1), sizeof *wall), *value = calloc(MAX(n * w, (size_t)1), sizeof *value);
    if (step && wall && value) {
        for (size_t i = 0; i < n * w; i++)
            value[i] = NAN;
        for (size_t i = 0; i < n; i++) {
            step[i] = s.row[i].step;
            wall[i] = s.row[i].wall_s;
            for (int k = 0; k < s.row[i].n; k++)
                if (s.row[i].name[k] >= 0)
                    value[i * w + (size_t)s.row[i].name[k]] = s.row[i].value[k];
        }
        msg_bin(&m, "step", step, n * sizeof *step);
        msg_bin(&m, "time", wall, n * sizeof *wall);
        msg_bin(&m, "value", value, n * w * sizeof *value);
        msg_bool(&m, "more", s.more);
        answer_later(c, r, &m);
    } else {
        error_set(&err, ERR_NO_MEMORY, "no memory for past steps");
        refuse_later(c, r, &err);
    }
    free(step);
    free(wall);
    free(value);
out:
    for (int64_t i = 0; i < s.n; i++) {
        free(s.row[i].name);
        free(s.row[i].value);
    }
    free(s.row);
    free(s.names);
    msg_release(&m);
}

struct events_reader {
    struct msg_out *m;
    int64_t skip;
};

static bool event_count(void *arg, UNUSED const struct journal_event *e)
{
    ++*(int64_t *)arg;
    return true;
}

static bool event_row(void *arg, const struct journal_event *e)
{
    struct events_reader *r = arg;
    if (r->skip-- > 0)
        return true;
    msg_map(r->m, NULL);
    msg_i64(r->m, "id", e->seq);
    msg_f64(r->m, "time", e->wall_s);
    msg_i64(r->m, "step", e->step);
    msg_str(r->m, "kind", e->kind);
    msg_str(r->m, "who", e->who);
    msg_str(r->m, "text", e->text);
    if (e->detail[0])
        msg_str(r->m, "detail", e->detail);
    msg_end(r->m);
    return true;
}

void events_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    int64_t after = mval_i64(mval_get(in->root, "after"), 0), n = 0;
    int64_t limit = MIN(MAX(mval_i64(mval_get(in->root, "limit"), EVENTS_MAX), 1), EVENTS_MAX);
    struct events_reader reader = { .m = &m };
    bool ok = journal_events_read(c->journal, after, NULL, event_count, &n, &err);
    reader.skip = n - limit;
    msg_begin(&m, MSG_OK);
    msg_list(&m, "events");
    ok = ok && journal_events_read(c->journal, after, NULL, event_row, &reader, &err);
    msg_end(&m);
    if (ok)
        answer_later(c, r, &m);
    else
        refuse_later(c, r, &err);
    msg_release(&m);
}

void rollouts_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    int64_t limit = mval_i64(mval_get(in->root, "limit"), RECENT_MAX);
    msg_begin(&m, MSG_OK);
    msg_list(&m, "groups");
    for (int64_t k = c->n_recent - 1; k >= 0 && k >= c->n_recent - MIN(limit, (int64_t)RECENT_MAX); k--) {
        const struct buf *b = &c->recent[k % RECENT_MAX];
        struct msg_in g;
        if (!msg_read_request(&g, b->data, b->len, &err))
            continue;
        msg_map(&m, NULL);
        msg_copy(&m, "item", mval_get(g.root, "item"));
        msg_copy(&m, "step", mval_get(g.root, "version"));
        line_write(c, &m, mval_get(g.root, "row"));
        msg_copy(&m, "prompt_text", mval_get(g.root, "prompt_text"));
        msg_copy(&m, "samples", mval_get(g.root, "samples"));
        msg_end(&m);
        msg_in_release(&g);
    }
    msg_end(&m);
    answer_later(c, r, &m);
}
