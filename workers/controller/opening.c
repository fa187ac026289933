/* Building the controller's state from the run's directory and journal. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/record/journal_rebuild.h"
#include "protocol/run/run_owner.h"
#include "workers/controller/controller.h"
#include "workers/controller/evaluating.h"
#include "workers/engine/data/identity.h"

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
    now = is ? json_text_dump(is, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    was = found ? json_text_read(text.data, text.len, 0, &je) : NULL;
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

/* Where checkpoints and rollouts go; nobody else may use these folders. */
static bool folders_take(struct controller *c, const char *run_dir, struct error *err)
{
    char rollouts[4200], id[RUN_ID_BYTES];
    if (c->config.save_dir[0])
        snprintf(c->checkpoints.dir, sizeof c->checkpoints.dir, "%s", c->config.save_dir);
    else
        snprintf(c->checkpoints.dir, sizeof c->checkpoints.dir, "%s/checkpoints", run_dir);
    if (c->config.rollout_save_dir[0])
        snprintf(rollouts, sizeof rollouts, "%s", c->config.rollout_save_dir);
    else
        snprintf(rollouts, sizeof rollouts, "%s/rollouts", run_dir);
    if (!run_id_read(run_dir, id, err) || !folder_take(rollouts, "rollout_save_dir", run_dir, id, err)
        || !folder_take(c->checkpoints.dir, "save_dir", run_dir, id, err))
        return false;
    snprintf(c->rollout_path, sizeof c->rollout_path, "%.4100s/groups.zst", rollouts);
    return (c->log = rollout_log_open(rollouts, err)) != NULL;
}

static bool first_event(void *arg, const struct journal_event *e)
{
    struct controller *c = arg;
    c->elapsed_before_s = fmax(clock_wall_s() - e->wall_s, 0);
    return false;
}

/* What the journal has of the run. *rollout_bytes: up to where it names groups in their file; -1: it has named none yet. */
static bool journal_load(struct controller *c, int64_t *rollout_bytes, struct error *err)
{
    return changes_load(c, err) && checkpoints_load(&c->checkpoints, c->journal, err) && evals_load(&c->evals, c->journal, err)
           && journal_last_step(c->journal, &c->step, err) && number_get(c, "incarnation", 0, &c->incarnation, err)
           && number_get(c, "n_row", 0, &c->n_row, err) && number_get(c, "rollout_bytes", -1, rollout_bytes, err) && counts_load(c, err)
           && journal_events_read(c->journal, 0, NULL, first_event, c, err) && rounds_load(c, err)
           && number_get(c, REBUILD_STEP, 0, &c->rebuild_step, err) && number_get(c, REBUILD_ITEM, 0, &c->rebuild_item, err)
           && number_get(c, "used_ms", 0, &c->used_before_ms, err) && evaluating_load(c, err);
}

/* The first controller of a run begins its first incarnation. */
static bool incarnation_load(struct controller *c, struct error *err)
{
    if (c->incarnation == 0
        && (!transaction(c, err) || (c->incarnation = journal_incarnation_begin(c->journal, c->step, err)) < 0
            || !number_put(c, "incarnation", c->incarnation, err)))
        return false;
    return lineage_load(&c->lineage, c->journal, err);
}

bool controller_open(struct controller *c, const char *run_dir, struct error *err)
{
    char path[4200];
    int64_t rollout_bytes;
    c->state = RUN_STARTING;
    c->started_ms = c->used_kept_ms = clock_ms();
    c->loading_step = -1;
    c->orders.rollback = -1;
    evals_init(&c->evals);
    step_metrics_restart(&c->metrics);
    run_config_init(&c->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    if (!checkpoints_init(&c->checkpoints, err) || !run_config_read(&c->config, path, err) || !folders_take(c, run_dir, err))
        return false;
    if (!(c->journal = journal_open(run_dir, err)) || !journal_load(c, &rollout_bytes, err))
        return false;
    config_at(c, INT64_MAX, INT64_MAX, &c->now);
    if (!resumed_read(c, err))
        return false;
    c->max_steps = c->now.max_steps;
    if (!rollouts_open(c, rollout_bytes, err) || !storage_open(c, err) || !incarnation_load(c, err) || !identity_note(c, err))
        return false;
    if (!alarms_open(c, err))
        return false;
    orders_restore(c);
    c->ship_due = true;
    return (c->n_row == 0 || ledger_prepare(c, c->n_row, err)) && resumed_apply(c, err);
}

void controller_close(struct controller *c)
{
    rescore_release(&c->rescoring);
    rounds_call_off(c);
    answers_release(&c->answers);
    recent_release(&c->recent);
    lines_release(&c->lines);
    solved_release(&c->solved);
    levels_release(&c->levels);
    if (c->in_transaction)
        journal_rollback(c->journal);
    storage_close(c);
    journal_close(c->journal);
    rollout_file_close(c->rollouts);
    while (c->log && c->ledger && rollout_log_turn(c->log, c->ledger, c->rollout_path, c->now.rollout_log_interval))
        ;
    rollout_log_close(c->log);
    ledger_free(c->ledger);
    checkpoints_release(&c->checkpoints);
    evals_release(&c->evals);
    changes_release(&c->changes);
    lineage_release(&c->lineage);
    resumed_free(c->resumed);
    server_free(c->server);
    c->server = NULL;
}
