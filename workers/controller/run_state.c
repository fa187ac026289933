#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/random.h>
#include "kernels/collective/collective.h"
#include "protocol/base/cli.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/run/journal_rebuild.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/run_owner.h"
#include "workers/engine/data/identity.h"
#include "workers/engine/trainer/ranks.h"
#include "workers/controller/controller.h"
#include "protocol/run/group_msg.h"

bool run_is_over(const struct controller *c)
{
    return run_state_is_over(c->state);
}

bool transaction(struct controller *c, struct error *err)
{
    if (c->in_transaction)
        return true;
    c->in_transaction = journal_begin(c->journal, err);
    return c->in_transaction;
}

void publish(struct controller *c, const char *topic, void (*body)(struct controller *c, struct msg_out *m))
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    if (peer_n_open(c->process.agent) > 64)    // the agent is away: telemetry may be lost
        return;
    msg_begin(&m, MSG_PUBLISH);
    msg_str(&m, "topic", topic);
    msg_map(&m, "body");
    body(c, &m);
    msg_end(&m);
    if (!msg_finish(&m, &err) || !peer_ask(c->process.agent, &m, 2000, 0, &err))
        log_debug("not published: %s", err.text);
    msg_release(&m);
}

void event_add(struct controller *c, const char *kind, const char *who, const char *text, const char *detail)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    log_info("%s: %s", kind, text);
    if (!transaction(c, &err) || !journal_event_add(c->journal, c->incarnation, c->step, kind, who, text, detail, &err))
        log_error("event not written: %s", err.text);
    if (peer_n_open(c->process.agent) > 64)
        return;
    msg_begin(&m, MSG_PUBLISH);
    msg_str(&m, "topic", "event");
    msg_map(&m, "body");
    msg_f64(&m, "time", clock_wall_s());
    msg_i64(&m, "step", c->step);
    msg_str(&m, "kind", kind);
    msg_str(&m, "who", who);
    msg_str(&m, "text", text);
    if (detail[0])
        msg_str(&m, "detail", detail);
    msg_end(&m);
    if (!msg_finish(&m, &err) || !peer_ask(c->process.agent, &m, 2000, 0, &err))
        log_debug("not published: %s", err.text);
    msg_release(&m);
}

void event_add_facts(struct controller *c, const char *kind, const char *who, const char *text, json_t *facts)
{
    char *detail = facts ? json_dumps(facts, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    event_add(c, kind, who, text, detail ? detail : "");
    free(detail);
    json_decref(facts);
}

void state_set(struct controller *c, enum run_state state, const char *who, const char *text)
{
    if (c->state == state)
        return;
    char line[1200];
    snprintf(line, sizeof line, "%s%s%s", run_state_name(state), text[0] ? ": " : "", text);
    c->state = state;
    if (text != c->reason)    // a reason that stays must not be printed onto itself
        snprintf(c->reason, sizeof c->reason, "%s", text);
    event_add_facts(c, "state", who, line, run_state_facts(state, text));
    if (run_is_over(c)) {
        c->ended_ms = clock_ms();
        orders_refuse_all(c, "the run has ended");
    }
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

/* ---- settings and their changes ---- */

void config_at(const struct controller *c, int64_t step, int64_t rollout_step, struct run_config *out)
{
    struct error err;
    *out = c->config;
    for (int64_t i = 0; i < c->n_change; i++) {
        const struct knob_change *k = &c->change[i];
        bool holds = k->knob->applies == APPLY_NEXT_STEP      ? k->step <= step
                     : k->knob->applies == APPLY_NEXT_ROLLOUT ? k->rollout_step <= rollout_step
                                                              : true;
        if (holds && !run_config_set(out, k->knob->name, k->value, FROM_COMMAND, NULL, &err))
            log_error("an earlier change cannot be taken: %s", err.text);
    }
}

void knobs_write(const struct controller *c, int64_t step, int64_t rollout_step, struct msg_out *m)
{
    struct buf text = BUF_INIT;
    struct run_config *then = malloc(sizeof *then);
    msg_map(m, "knobs");
    if (then) {
        config_at(c, step, rollout_step, then);
        for (int i = 0; i < n_knobs; i++)
            if (knob_is_live(&knobs[i]) && then->source[i] == FROM_COMMAND)
                msg_str(m, knobs[i].name, knob_text(&knobs[i], then, &text));
    }
    msg_end(m);
    free(then);
    buf_release(&text);
}

bool changes_save(struct controller *c, struct error *err)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < c->n_change; i++)
        json_array_append_new(list, json_pack("{s:I,s:I,s:I,s:s,s:s,s:s}", "step", (json_int_t)c->change[i].step, "rollout_step",
                                              (json_int_t)c->change[i].rollout_step, "group", (json_int_t)c->change[i].group, "name",
                                              c->change[i].knob->name, "value", c->change[i].value, "before", c->change[i].before));
    char *text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    if (!text)
        return error_set(err, ERR_NO_MEMORY, "no memory for the changes of knobs");
    bool ok = transaction(c, err) && journal_value_put(c->journal, "changes", text, strlen(text), err);
    free(text);
    return ok;
}

static bool changes_load(struct controller *c, struct error *err)
{
    bool found, ok = false;
    struct buf text = BUF_INIT;
    json_error_t jerr;
    json_t *list = NULL, *row;
    size_t i;
    TRY(journal_value_get(c->journal, "changes", &text, &found, err));
    if (!found) {
        ok = true;
        goto out;
    }
    list = json_loadb(text.data, text.len, 0, &jerr);
    c->change = calloc(MAX(json_array_size(list), (size_t)1), sizeof *c->change);
    if (!list || !c->change) {
        error_set(err, ERR_DATA, "the journal's changes of knobs cannot be read");
        goto out;
    }
    c->change_cap = (int64_t)MAX(json_array_size(list), (size_t)1);
    json_array_foreach(list, i, row)
    {
        struct knob_change *k = &c->change[c->n_change];
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *value = json_string_value(json_object_get(row, "value"));
        const char *before = json_string_value(json_object_get(row, "before"));
        TRY(name && value && before && (k->knob = knob_find(name, err)));
        k->step = json_integer_value(json_object_get(row, "step"));
        k->rollout_step = json_integer_value(json_object_get(row, "rollout_step"));
        k->group = json_integer_value(json_object_get(row, "group"));
        snprintf(k->value, sizeof k->value, "%s", value);
        snprintf(k->before, sizeof k->before, "%s", before);
        c->change_group = MAX(c->change_group, k->group);
        c->n_change++;
    }
    ok = true;
out:
    json_decref(list);
    buf_release(&text);
    return ok;
}

/* ---- building the state ---- */

bool number_get(struct controller *c, const char *name, int64_t otherwise, int64_t *out, struct error *err)
{
    bool found;
    struct buf text = BUF_INIT;
    bool ok = journal_value_get(c->journal, name, &text, &found, err);
    *out = otherwise;
    if (ok && found && !parse_i64(buf_text(&text), out))
        ok = error_set(err, ERR_DATA, "the journal's value '%s' is not a number", name);
    buf_release(&text);
    return ok;
}

bool number_put(struct controller *c, const char *name, int64_t v, struct error *err)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%" PRId64, v);
    return transaction(c, err) && journal_value_put(c->journal, name, text, (size_t)n, err);
}

static bool checkpoint_restore_row(void *arg, const struct journal_checkpoint *row)
{
    struct controller *c = arg;
    if (strcmp(row->state, "removed") == 0)
        return true;
    if (c->n_checkpoint == CHECKPOINT_MAX) {
        memmove(c->checkpoint, c->checkpoint + 1, (CHECKPOINT_MAX - 1) * sizeof *c->checkpoint);
        c->n_checkpoint--;
    }
    struct checkpoint_row *k = &c->checkpoint[c->n_checkpoint++];
    *k = (struct checkpoint_row){ .step = row->step, .complete = strcmp(row->state, "complete") == 0 };
    snprintf(k->path, sizeof k->path, "%s", row->path);
    return true;
}

static bool eval_restore_row(void *arg, const struct journal_eval *row)
{
    struct controller *c = arg;
    int i = 0;
    while (i < c->n_eval && strcmp(c->eval[i].set, row->set) != 0)
        i++;
    if (i == EVAL_SET_MAX)
        return true;
    if (i == c->n_eval)
        c->n_eval++;
    snprintf(c->eval[i].set, sizeof c->eval[i].set, "%s", row->set);
    c->eval[i].step = row->step;
    c->eval[i].n = row->n;
    c->eval[i].mean = row->mean;
    return true;
}

/* From here on incarnation makes the steps beyond from; those that others have made there are undone. */
static bool line_turn(struct controller *c, int64_t incarnation, int64_t from, struct error *err)
{
    if (c->n_line == c->line_cap) {
        int64_t cap = MAX(2 * c->line_cap, (int64_t)16);
        struct line_part *p = realloc(c->line, (size_t)cap * sizeof *p);
        if (!p)
            return error_set(err, ERR_NO_MEMORY, "no memory for the controller");
        c->line = p;
        c->line_cap = cap;
    }
    while (c->n_line > 0 && c->line[c->n_line - 1].from >= from)
        c->n_line--;
    c->line[c->n_line++] = (struct line_part){ incarnation, from };
    return true;
}

struct line_restore {
    struct controller *c;
    struct error *err;
    bool ok;
};

static bool line_restore_row(void *arg, int64_t incarnation, int64_t from)
{
    struct line_restore *r = arg;
    return r->ok = line_turn(r->c, incarnation, from, r->err);
}

int64_t version_made(const struct controller *c, int64_t version)
{
    for (int64_t i = c->n_line - 1; i >= 0; i--)
        if (c->line[i].from < version)
            return c->line[i].incarnation;
    return 0;
}

/* What the run is made of is in the journal; what has been changed on purpose since (train --accept-changed) is an event. */
static bool identity_note(struct controller *c, struct error *err)
{
    struct buf text = BUF_INIT;
    bool found, ok = false;
    json_error_t je;
    char changed[512], line[600];
    json_t *was = NULL, *is = NULL;
    char *now = NULL;
    TRY(identity_read(c->process.run_dir, &is, err) && journal_value_get(c->journal, "identity", &text, &found, err));
    now = is ? json_dumps(is, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    was = found ? json_loadb(text.data, text.len, 0, &je) : NULL;
    if (now && identity_changed(was, is, changed, sizeof changed)) {
        snprintf(line, sizeof line, "not what the run was begun with, on purpose: %s", changed);
        event_add(c, "alert", "train --accept-changed", line, "");
    }
    ok = !now || (found && strcmp(now, buf_text(&text)) == 0)
         || (transaction(c, err) && journal_value_put(c->journal, "identity", now, strlen(now), err));
out:
    free(now);
    json_decref(was);
    json_decref(is);
    buf_release(&text);
    return ok;
}

/* The groups' file up to where the journal names them (known, bytes; -1: it has named none yet). What stands after that is whole, but no
 * group of the run: its controller died before it was noted, and its worker sends it again or samples it again. */
static bool rollouts_open(struct controller *c, int64_t known, struct error *err)
{
    struct rollout_opened opened;
    if (!(c->rollouts = rollout_file_open(c->rollout_path, MAX(known, (int64_t)0), &opened, err)))
        return false;
    if (opened.lost_bytes > 0)
        log_warn("'%s' is %" PRId64 " bytes shorter than what had been written", c->rollout_path, opened.lost_bytes);
    if (opened.damaged_bytes > 0)
        log_warn("%" PRId64 " bytes at the end of '%s' are no records", opened.damaged_bytes, c->rollout_path);
    if (opened.cut_bytes > 0)
        log_warn("cut %" PRId64 " bytes of a half-written group from '%s'", opened.cut_bytes, c->rollout_path);
    if (known < 0)
        return number_put(c, "rollout_bytes", opened.size_bytes, err);
    if (opened.size_bytes <= known)
        return true;
    log_info("cut %" PRId64 " groups from '%s' that had not been noted", opened.n_record, c->rollout_path);
    return rollout_file_cut(c->rollouts, known, err);
}

bool controller_open(struct controller *c, const char *run_dir, struct error *err)
{
    char path[4200];
    c->checkpoint = calloc(CHECKPOINT_MAX, sizeof *c->checkpoint);
    if (!c->checkpoint)
        return error_set(err, ERR_NO_MEMORY, "no memory for the controller");
    c->state = RUN_STARTING;
    c->started_ms = c->step_ms = clock_ms();
    c->save_wanted = c->saving = c->eval_wanted = c->evaluating = c->loading_step = -1;
    run_config_init(&c->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    if (!run_config_read(&c->config, path, err))
        return false;
    if (c->config.save_dir[0])
        snprintf(c->checkpoint_dir, sizeof c->checkpoint_dir, "%s", c->config.save_dir);
    else
        snprintf(c->checkpoint_dir, sizeof c->checkpoint_dir, "%s/checkpoints", run_dir);
    snprintf(path, sizeof path, "%s/rollouts", c->config.rollout_save_dir[0] ? c->config.rollout_save_dir : run_dir);
    if (c->config.rollout_save_dir[0])
        snprintf(path, sizeof path, "%s", c->config.rollout_save_dir);
    char id[RUN_ID_BYTES];
    if (!run_id_read(run_dir, id, err) || !folder_take(path, "rollout_save_dir", run_dir, id, err)
        || !folder_take(c->checkpoint_dir, "save_dir", run_dir, id, err))
        return false;
    snprintf(c->rollout_path, sizeof c->rollout_path, "%.4100s/groups.zst", path);
    if (!(c->log = rollout_log_open(path, err)))
        return false;
    if (!(c->journal = journal_open(run_dir, err)))
        return false;
    int64_t rollout_bytes;
    if (!changes_load(c, err) || !journal_checkpoints_read(c->journal, checkpoint_restore_row, c, err)
        || !journal_evals_read(c->journal, eval_restore_row, c, err) || !journal_last_step(c->journal, &c->step, err)
        || !number_get(c, "incarnation", 0, &c->incarnation, err) || !number_get(c, "n_row", 0, &c->n_row, err)
        || !number_get(c, "rollout_bytes", -1, &rollout_bytes, err) || !counts_load(c, err) || !number_get(c, "round", 0, &c->round, err)
        || !number_get(c, "begun", -1, &c->begun, err) || !number_get(c, REBUILD_STEP, 0, &c->rebuild_step, err)
        || !number_get(c, REBUILD_ITEM, 0, &c->rebuild_item, err))
        return false;
    if (c->config.num_trainers == 1) {    // an earlier life may have had more
        c->round = 0;
        c->begun = -1;
    }
    config_at(c, INT64_MAX, INT64_MAX, &c->now);
    if (!orders_resumed_read(c, err))
        return false;
    c->max_steps = c->now.max_steps;
    if (!rollouts_open(c, rollout_bytes, err) || !storage_open(c, err))
        return false;
    if (c->incarnation == 0) {
        if (!transaction(c, err) || (c->incarnation = journal_incarnation_begin(c->journal, c->step, err)) < 0
            || !number_put(c, "incarnation", c->incarnation, err))
            return false;
    }
    struct line_restore r = { c, err, true };
    if (!journal_incarnations_read(c->journal, line_restore_row, &r, err) || !r.ok)
        return false;
    if (!identity_note(c, err))
        return false;
    orders_restore(c);
    return (c->n_row == 0 || ledger_prepare(c, c->n_row, err)) && orders_resumed_apply(c, err);
}

static void round_call_off(const struct controller *c);

void controller_close(struct controller *c)
{
    round_call_off(c);
    for (int i = 0; i < c->n_answer; i++)
        msg_release(&c->answer[i].msg);
    free(c->answer);
    for (int i = 0; i < RECENT_MAX; i++)
        buf_release(&c->recent[i]);
    buf_release(&c->lines);
    buf_release(&c->line_files);
    if (c->in_transaction)
        journal_rollback(c->journal);
    storage_close(c);
    journal_close(c->journal);
    rollout_file_close(c->rollouts);
    while (c->log && c->ledger && rollout_log_turn(c->log, c->ledger, c->rollout_path, c->now.rollout_log_interval))
        ;
    rollout_log_close(c->log);
    ledger_free(c->ledger);
    free(c->checkpoint);
    free(c->change);
    free(c->line);
    free(c->resumed);
    server_free(c->server);
    c->server = NULL;
}

struct restore {
    struct controller *c;
    struct error *err;
    bool ok;
    struct ledger *ledger;    // that is being built
    int64_t n_lost;           // groups whose records are damaged or missing
    struct error lost;        // the first of them
};

/* The journal keeps fate and place; what the filters and metrics need of a group is read from its record. */
static bool item_restore(void *arg, const struct journal_item *row)
{
    struct restore *r = arg;
    static const enum ledger_fate fates[] = { [ITEM_ISSUED] = LEDGER_ISSUED,
                                              [ITEM_RETURNED] = LEDGER_RETURNED,
                                              [ITEM_FILTERED] = LEDGER_FILTERED,
                                              [ITEM_STALE] = LEDGER_STALE,
                                              [ITEM_TRAINED] = LEDGER_TRAINED };
    struct ledger_item item = { .item = row->item,
                                .row = row->prompt_row,
                                .rollout_step = row->rollout_step,
                                .version = row->weight_version,
                                .batch = row->step > 0 ? row->step - 1 : -1 };
    if ((size_t)row->fate >= ARRAY_SIZE(fates)) {
        r->ok = error_set(r->err, ERR_DATA, "the journal gives item %" PRId64 " the unknown fate %d", row->item, (int)row->fate);
        return false;
    }
    item.fate = fates[row->fate];
    if (item.fate != LEDGER_ISSUED) {
        struct buf record = BUF_INIT;
        struct msg_in in;
        r->ok = rollout_file_read(r->c->rollout_path, row->file_offset, row->file_bytes, &record, r->err)
                && msg_read_request(&in, record.data, record.len, r->err);
        if (r->ok) {
            r->ok = group_summary_read(in.root, &item.summary, r->err);
            msg_in_release(&in);
        }
        buf_release(&record);
        item.summary.file_offset = row->file_offset;
        item.summary.file_bytes = row->file_bytes;
        if (!r->ok && r->err->code == ERR_DATA) {
            if (r->n_lost++ == 0)
                r->lost = *r->err;
            item.summary = (struct group_summary){ 0 };
            item.lost = r->ok = true;
        }
        if (!r->ok) {
            error_wrap(r->err, "while reading group %" PRId64 " again", row->item);
            return false;
        }
    }
    r->ok = ledger_restore_item(r->ledger, &item, r->err);
    return r->ok;
}

bool state_save(struct controller *c, struct error *err)
{
    struct ledger_state s;
    ledger_state(c->ledger, &s);
    json_t *after = json_array();
    for (size_t i = 0; i < ARRAY_SIZE(s.after); i++)
        json_array_append_new(after, json_integer(s.after[i]));
    json_t *o = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "floor", (json_int_t)s.floor, "n_cut", (json_int_t)s.n_cut, "n_batch",
                          (json_int_t)s.n_batch, "n_open", (json_int_t)s.n_open, "n_item", (json_int_t)s.n_item, "first",
                          (json_int_t)ledger_first(c->ledger), "after", after);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text)
        return error_set(err, ERR_NO_MEMORY, "no memory for the ledger's state");
    bool ok = transaction(c, err) && journal_value_put(c->journal, "ledger", text, strlen(text), err);
    free(text);
    return ok;
}

bool length_set(struct controller *c, struct error *err)
{
    struct run_plan plan;
    struct ledger_counts n;
    c->max_steps = c->now.max_steps;
    if (!c->ledger)
        return true;
    if (c->max_steps > 0) {
        ledger_item_max_set(c->ledger, INT64_MAX / 2);
        return true;
    }
    if (!run_plan_make(&plan, &c->config, c->n_row, err))
        return false;
    int64_t n_item = c->config.num_episodes * plan.rollout_steps_per_episode * plan.prompts_per_rollout_step;
    ledger_item_max_set(c->ledger, n_item);
    ledger_counts(c->ledger, 1, &n);
    /* as many as the data still give in batches of today's size; the data decide, filtered groups make it fewer */
    c->max_steps = n.n_batch + (MAX(n_item - n.n_item, (int64_t)0) + n.unbatched) / (c->now.train_batch_size * c->config.num_trainers);
    return true;
}

/* Items that are opened at once: a rollout step's; free-running: as many as a batch takes. */
static int64_t open_n(const struct controller *c, const struct run_config *at)
{
    return c->config.free_running ? at->train_batch_size * c->config.num_trainers : at->inference_batch_size * c->config.num_inferencer;
}

/* The ledger as the journal has it, with the items from first on; first < 0: from where the run held them. NULL: see r->err. */
static struct ledger *ledger_load(struct controller *c, int64_t n_row, int64_t first, struct restore *r)
{
    bool found, ok = false;
    struct buf text = BUF_INIT;
    json_t *o = NULL;
    json_error_t jerr;
    struct ledger_state s = { 0 };
    struct ledger *l = NULL;
    struct ledger_rules rules = { .seed = c->config.seed,
                                  .n_row = n_row,
                                  .shuffle = c->config.shuffle,
                                  .n_behind = c->config.n_behind,
                                  .free = c->config.free_running,
                                  .max_age = c->config.max_staleness };
    if (!(r->ledger = l = ledger_new(&rules, r->err)))
        return NULL;
    TRY(journal_value_get(c->journal, "ledger", &text, &found, r->err));
    if (found) {
        o = json_loadb(text.data, text.len, 0, &jerr);
        json_t *after = json_object_get(o, "after");
        if (!o || json_array_size(after) != ARRAY_SIZE(s.after)) {
            error_set(r->err, ERR_DATA, "the journal's ledger cannot be read");
            goto out;
        }
        s.n_cut = json_integer_value(json_object_get(o, "n_cut"));
        s.n_batch = json_integer_value(json_object_get(o, "n_batch"));
        s.n_open = json_integer_value(json_object_get(o, "n_open"));
        s.n_item = json_integer_value(json_object_get(o, "n_item"));
        s.floor = first < 0 ? json_integer_value(json_object_get(o, "floor")) : c->rebuild_step;
        first = first < 0 ? json_integer_value(json_object_get(o, "first")) : first;
        for (size_t i = 0; i < ARRAY_SIZE(s.after); i++)
            s.after[i] = json_integer_value(json_array_get(after, i));
        TRY(journal_items_read(c->journal, first, item_restore, r, r->err) && r->ok);
        ledger_restore_state(l, &s);
    } else if (c->rebuild_step > 0) {
        ledger_begin_at(l, c->rebuild_step, c->rebuild_item / open_n(c, &c->now), c->rebuild_item);
    }
    buf_clear(&text);
    TRY(journal_value_get(c->journal, "quarantine", &text, &found, r->err));
    for (const char *at = buf_text(&text); found && *at; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL))
        ledger_forbid(l, strtoll(at, NULL, 10));
    ok = true;
out:
    json_decref(o);
    buf_release(&text);
    if (!ok)
        ledger_free(l);
    return ok ? l : NULL;
}

bool ledger_prepare(struct controller *c, int64_t n_row, struct error *err)
{
    struct restore r = { .c = c, .err = err, .ok = true };
    if (!(c->ledger = ledger_load(c, n_row, -1, &r)))
        return false;
    c->n_row = n_row;
    buf_clear(&c->lines);
    bool found;
    buf_clear(&c->line_files);
    return number_put(c, "n_row", n_row, err) && journal_value_get(c->journal, "lines", &c->lines, &c->lines_told, err)
           && journal_value_get(c->journal, "line_files", &c->line_files, &found, err) && length_set(c, err)
           && (r.n_lost == 0 || groups_lost(c, r.n_lost, &r.lost, err)) && ledger_advance(c, err);
}

/* Hold all items again that the run has had, from the journal, so that it can go back further than it kept in reach. */
static bool ledger_reload(struct controller *c, struct error *err)
{
    struct restore r = { .c = c, .err = err, .ok = true };
    struct ledger *all = ledger_load(c, c->n_row, c->rebuild_item, &r);
    if (!all)
        return false;
    ledger_free(c->ledger);
    c->ledger = all;
    if (!length_set(c, err))
        return false;
    log_info("all items are held again, %" PRId64 " of their groups cannot be read", r.n_lost);
    return state_save(c, err);
}

/* ---- the ledger and the journal move together ---- */

struct put {
    struct controller *c;
    struct error *err;
    bool ok;
};

static void item_put(void *ctx, const struct ledger_item *i)
{
    struct put *p = ctx;
    static const enum item_fate fates[] = {
        [LEDGER_ISSUED] = ITEM_ISSUED,     [LEDGER_LEASED] = ITEM_ISSUED, [LEDGER_RETURNED] = ITEM_RETURNED,
        [LEDGER_FILTERED] = ITEM_FILTERED, [LEDGER_STALE] = ITEM_STALE,   [LEDGER_TRAINED] = ITEM_TRAINED
    };
    struct journal_item row = {
        .item = i->item,
        .prompt_row = i->row,
        .rollout_step = i->rollout_step,
        .weight_version = i->version,
        .fate = fates[i->fate],
        .step = i->batch + 1,
        .reward_mean = i->summary.n_scored > 0 ? i->summary.reward_sum / (double)i->summary.n_scored : NAN,
        .file_offset = i->summary.file_bytes > 0 ? i->summary.file_offset : -1,
        .file_bytes = i->summary.file_bytes > 0 ? i->summary.file_bytes : -1,
    };
    p->ok = p->ok && transaction(p->c, p->err) && journal_item_put(p->c->journal, &row, p->err);
}

bool item_write(struct controller *c, const struct ledger_item *i, struct error *err)
{
    struct put p = { c, err, true };
    item_put(&p, i);
    if (p.ok && i->summary.file_bytes > 0 && i->fate == LEDGER_RETURNED && i->batch < 0)
        p.ok = number_put(c, "rollout_bytes", i->summary.file_offset + i->summary.file_bytes, err);
    return p.ok;
}

/* Open the next rollout step if it may be; at is scratch. */
static bool open_next(struct controller *c, struct run_config *at, struct put *p)
{
    int64_t first;
    struct ledger_state s;
    ledger_state(c->ledger, &s);
    config_at(c, s.n_batch, s.n_open, at);
    int64_t n = open_n(c, at);
    if ((c->max_steps > 0 && s.n_batch >= c->max_steps) || !ledger_open(c->ledger, n, &first))
        return false;
    for (int64_t i = first; i < first + n; i++)
        item_put(p, ledger_find(c->ledger, i));
    return true;
}

/* Cut the oldest open rollout step, if it is all there; free-running: form the batch that the trainer waits for. */
static bool cut_next(struct controller *c, struct run_config *at, struct put *p)
{
    struct ledger_state s;
    ledger_state(c->ledger, &s);
    config_at(c, s.n_batch, s.n_cut, at);
    struct ledger_cut cut = { .batch_size = at->train_batch_size * c->config.num_trainers,
                              .dynamic = at->dynamic_batching,
                              .filter = run_config_filter(at) };
    if (c->config.free_running)
        return s.n_batch == c->step && s.n_batch < c->max_steps && ledger_form(c->ledger, &cut, item_put, p);
    if (!ledger_can_cut(c->ledger))
        return false;
    ledger_cut(c->ledger, &cut, item_put, p);
    return true;
}

bool ledger_advance(struct controller *c, struct error *err)
{
    struct run_config *at = malloc(sizeof *at);
    struct put p = { c, err, true };
    bool cut, opened, moved = false, free_running = c->config.free_running;
    if (!at)
        return error_set(err, ERR_NO_MEMORY, "no memory for settings");
    do {    // in logical time all that can be opened is, before anything is cut; else what leaves makes room first
        cut = free_running && cut_next(c, at, &p);
        opened = open_next(c, at, &p);
        cut = cut || (!free_running && !opened && cut_next(c, at, &p));
        moved = moved || cut || opened;
    } while (cut || opened);
    free(at);
    if (moved)
        ledger_let_go(c->ledger);
    return p.ok && (!moved || state_save(c, err));
}

bool ledger_step_done(struct controller *c, int64_t batch, struct error *err)
{
    struct put p = { c, err, true };
    ledger_trained(c->ledger, batch, item_put, &p);
    return p.ok;
}

/* ---- returning ---- */

int64_t return_target(struct controller *c, char path[4096])
{
    for (int i = c->n_checkpoint - 1; i >= 0; i--) {
        struct checkpoint_row *k = &c->checkpoint[i];
        if (k->complete && k->step <= c->step && path_is_dir(k->path) && (!c->ledger || ledger_can_return(c->ledger, k->step))) {
            snprintf(path, 4096, "%s", k->path);
            return k->step;
        }
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

bool controller_return(struct controller *c, int64_t step, struct error *err)
{
    struct put p = { c, err, true };
    for (int i = 0; i < c->n_worker; i++)
        if (c->worker[i].task_kind != TASK_LOAD)
            c->worker[i].task = 0;
    c->saving = c->evaluating = -1;
    if (c->ledger)
        ledger_return_to(c->ledger, step, item_put, &p);
    if (!p.ok)
        return false;
    if (step == c->step)
        return true;
    char text[128];
    snprintf(text, sizeof text, "back from step %" PRId64 " to %" PRId64, c->step, step);
    if (!transaction(c, err))
        return false;
    int64_t incarnation = journal_incarnation_begin(c->journal, step, err);
    if (incarnation < 0 || !number_put(c, "incarnation", incarnation, err))
        return false;
    for (int64_t v = step + 1; v <= c->step; v++) {    // those steps are made anew, perhaps with other knobs
        char old[4200];
        weights_path(c, v, old, sizeof old);
        unlink(old);
    }
    if (!line_turn(c, incarnation, step, err))
        return false;
    c->incarnation = incarnation;
    c->step = step;
    c->step_ms = clock_ms();
    c->scored = (struct score_sums){ 0 };
    event_add_facts(c, "return", "controller", text,
                    json_pack("{s:I, s:I}", "step", (json_int_t)step, "incarnation", (json_int_t)incarnation));
    if (c->state == RUN_STOPPING && !c->stop_wanted) {    // the last steps are to be made again
        c->save_wanted = c->eval_wanted = -1;
        state_set(c, RUN_RUNNING, "controller", "");
    }
    return true;
}

static void round_call_off(const struct controller *c)
{
    char dir[4200], name[64];
    snprintf(dir, sizeof dir, "%s/sock", c->process.run_dir);
    ranks_name(c->round, name, sizeof name);
    if (c->round)
        collective_call_off(dir, name);
}

static bool round_begin(struct controller *c, struct error *err)
{
    char dir[4200], name[64];
    round_call_off(c);
    if (getrandom(&c->round, sizeof c->round, 0) != sizeof c->round)
        return error_errno(err, "cannot get a random number");
    c->round = (c->round & INT64_MAX) | 1;
    c->round_open = true;
    c->begun = -1;
    snprintf(dir, sizeof dir, "%s/sock", c->process.run_dir);
    ranks_name(c->round, name, sizeof name);
    return collective_call(dir, name, err) && number_put(c, "round", c->round, err) && number_put(c, "begun", c->begun, err);
}

bool trainers_return(struct controller *c, char path[4096])
{
    struct error err;
    int64_t step = return_find(c, path);
    if (step < 0)
        run_fail(c, "no checkpoint in '%s' can be gone on from", c->checkpoint_dir);
    else if (!controller_return(c, step, &err) || (c->config.num_trainers > 1 && !round_begin(c, &err)))
        run_fail(c, "cannot go back to step %" PRId64 ": %s", step, err.text);
    return !run_is_over(c);
}

bool step_begin(struct controller *c, struct error *err)
{
    if (c->config.num_trainers == 1 || c->begun == c->step)
        return true;
    c->begun = c->step;
    return number_put(c, "begun", c->begun, err);
}

bool step_is_open(const struct controller *c)
{
    return workers_in_task(c, TASK_TRAIN) > 0 || c->begun == c->step;
}

bool groups_lost(struct controller *c, int64_t n, const struct error *why, struct error *err)
{
    struct put p = { c, err, true };
    char text[640], path[4096];
    int64_t oldest, n_again = ledger_reissue(c->ledger, &oldest, item_put, &p);
    if (!p.ok)
        return false;
    snprintf(text, sizeof text, "%" PRId64 " group%s cannot be read again, and what is still needed of that is sampled again: %.400s", n,
             n == 1 ? "" : "s", why->text);
    event_add(c, "alert", "controller", text, "");
    /* Weights older than the trainer's may be gone, and several trainers may have begun on a batch: they begin again together. */
    bool back = n_again > 0 && (c->config.num_trainers > 1 || (!c->config.free_running && oldest < c->step));
    (void)(back && trainers_return(c, path));    // it fails the run itself
    return true;
}

/* ---- the end ---- */

static bool data_exhausted(const struct controller *c)
{
    struct ledger_counts n;
    const struct ledger_item *one;
    ledger_counts(c->ledger, open_n(c, &c->now), &n);
    return n.exhausted && n.n_cut == n.n_open && n.issued + n.leased == 0 && ledger_batch(c->ledger, c->step, &one, 1) == 0;
}

static bool saved_at(const struct controller *c, int64_t step)
{
    for (int i = 0; i < c->n_checkpoint; i++)
        if (c->checkpoint[i].step == step && c->checkpoint[i].complete && path_is_dir(c->checkpoint[i].path))
            return true;
    return false;
}

static bool evaluated_at(const struct controller *c, int64_t step)
{
    struct error err;
    struct eval_set set[EVAL_SET_MAX];
    int n = run_config_eval_sets(&c->config, set, &err);
    for (int i = 0; i < n; i++) {
        bool found = false;
        for (int k = 0; k < c->n_eval; k++)
            found = found || (strcmp(c->eval[k].set, set[i].name) == 0 && c->eval[k].step == step);
        if (!found)
            return false;
    }
    return true;
}

/* The run is over by its own plan: has it learned anything? */
static void run_conclude(struct controller *c)
{
    char why[WASTE_TEXT_MAX];
    if (c->total.n_sample > 0 && c->total.n_wasted >= c->total.n_sample)
        run_fail(c, "nothing was learned: %s", waste_text(&c->waste, why, sizeof why));
    else if (c->step == 0 && c->total.n_sample == 0)
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
    if (c->state == RUN_RUNNING && c->ledger) {
        bool last = (c->max_steps > 0 && c->step >= c->max_steps) || data_exhausted(c);
        if ((last || c->stop_wanted) && !step_is_open(c)) {
            if (c->now.save_at_end && !saved_at(c, c->step))
                c->save_wanted = c->step;
            if (!c->stop_wanted && c->now.eval_at_end && !evaluated_at(c, c->step))
                c->eval_wanted = c->step;
            state_set(c, RUN_STOPPING, "controller", c->stop_wanted ? c->reason : "");
        }
    } else if (c->state == RUN_PAUSED && c->stop_wanted) {
        c->pause = PAUSE_NONE;
        state_set(c, RUN_RUNNING, "controller", c->reason);
    } else if (c->state == RUN_STARTING && c->stop_wanted) {
        state_set(c, RUN_STOPPED, "controller", c->reason);
    }
    if (c->state == RUN_STOPPING && c->save_wanted < 0 && c->saving < 0 && c->eval_wanted < 0 && c->evaluating < 0
        && workers_in_task(c, TASK_NONE) == 0) {
        if (c->stop_wanted)
            state_set(c, RUN_STOPPED, "controller", c->reason);
        else
            run_conclude(c);
    }
}
