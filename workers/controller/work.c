/* What workers ask and report. One rule decides what a free worker does next: worker_decide. */
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
#include "workers/controller/controller.h"
#include "protocol/run/group_msg.h"
#include "workers/engine/publish/publication.h"

#define SILENT_MS 20000    // a worker unheard for so long loses its leases
#define AWAY_MS 60000      // one of another node unheard for so long is given no weights
#define ROLLOUT_MS 200     // between groups published on telemetry
#define AGAIN_MAX 20       // weights that did not come to a worker, in a row
#define FETCH_BYTES ((size_t)32 << 20)

int64_t workers_in_task(const struct controller *c, enum task_kind kind)
{
    int64_t n = 0;
    for (int i = 0; i < c->n_worker; i++)
        n += c->worker[i].task != 0 && (kind == TASK_NONE || c->worker[i].task_kind == kind);
    return n;
}

/* Workers of other nodes are called NODE/NAME. */
static bool worker_is_away(const struct worker *w)
{
    return strchr(w->name, '/') != NULL;
}

static struct worker *worker_find(struct controller *c, const char *name)
{
    for (int i = 0; i < c->n_worker; i++)
        if (strcmp(c->worker[i].name, name) == 0)
            return &c->worker[i];
    return NULL;
}

static int worker_id(const struct controller *c, const struct worker *w)
{
    return (int)(w - c->worker) + 1;
}

/* What a worker was doing is lost: it will be done again. */
static void worker_lost(struct controller *c, struct worker *w)
{
    if (w->held)
        request_drop(w->held);
    w->held = NULL;
    if (c->ledger)
        ledger_lease_end(c->ledger, worker_id(c, w));
    if (w->rank == 0 && c->saving >= 0) {
        c->save_wanted = MAX(c->save_wanted, c->saving);
        c->saving = -1;
    }
    if (c->evaluating >= 0 && w->task_kind == TASK_EVAL) {
        c->eval_wanted = c->evaluating;
        c->evaluating = -1;
    }
    if (w->task_kind == TASK_LOAD)
        c->loading_step = -1;
    w->task = 0;
    w->task_kind = TASK_NONE;
}

static bool trainer_in_step(const struct controller *c, const struct worker *w)
{
    return w->step == c->step && w->incarnation == c->incarnation && w->round == c->round;
}

/* It has made the step that the first trainer's report is still to come of. */
static bool trainer_is_ahead(const struct controller *c, const struct worker *w)
{
    return w->rank > 0 && w->step == c->step + 1 && c->begun == c->step && w->incarnation == c->incarnation && w->round == c->round;
}

void work_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    char name[64];
    struct worker *w = worker_find(c, mval_text(in->root, "name", name, sizeof name));
    int64_t start = mval_i64(mval_get(in->root, "start"), 0);
    for (int i = 0; !w && i < c->n_worker; i++)
        if (!c->worker[i].name[0])    // of a node that has gone
            w = &c->worker[i];
    if (!w && c->n_worker == WORKER_MAX) {
        error_set(&err, ERR_FULL, "%d workers are known already", WORKER_MAX);
        refuse_later(c, r, &err);
        return;
    }
    if (!w)
        w = &c->worker[c->n_worker++];
    if (!w->name[0]) {
        *w = (struct worker){ .rank = -1 };
        snprintf(w->name, sizeof w->name, "%s", name);
    }
    if (w->start != start) {
        if (w->start)
            log_info("%s lives anew", w->name);
        worker_lost(c, w);
        w->start = start;
    }
    if (w->held)
        request_drop(w->held);    // an older request of the same life: its asker has given up
    w->held = r;
    w->held_ms = w->heard_ms = clock_ms();
    w->incarnation = mval_i64(mval_get(in->root, "incarnation"), -1);
    w->step = mval_i64(mval_get(in->root, "step"), -1);
    w->version = mval_i64(mval_get(in->root, "version"), -1);
    w->made = mval_i64(mval_get(in->root, "made"), 0);
    w->produces = mval_bool(mval_get(in->root, "produces"), false);
    w->consumes = mval_bool(mval_get(in->root, "consumes"), false);
    w->rank = mval_i64(mval_get(in->root, "rank"), w->consumes ? 0 : -1);
    w->round = mval_i64(mval_get(in->root, "round"), 0);
    w->items = mval_i64(mval_get(in->root, "items"), 0);
    w->busy = mval_bool(mval_get(in->root, "busy"), false);
    const struct mval *shared = mval_get(in->root, "shared");
    w->n_shared = (int)MIN(mval_n(shared), (int64_t)ARRAY_SIZE(w->shared));
    for (int i = 0; i < w->n_shared; i++)
        w->shared[i] = mval_i64(mval_at(shared, i), -1);
    if (!w->busy) {    // whatever it was given is over
        if (w->task && w->task_kind == TASK_EVAL && c->evaluating >= 0) {
            c->eval_wanted = c->evaluating;
            c->evaluating = -1;
        }
        w->task = 0;
        w->task_kind = TASK_NONE;
        if (c->ledger)
            ledger_lease_end(c->ledger, worker_id(c, w));
    }
    int64_t n_row = mval_i64(mval_get(in->root, "n_row"), 0);
    if (n_row > 0 && worker_is_away(w) && n_row != c->n_row) {    // a node must not make the run fail, nor begin it
        w->held = NULL;
        error_set(&err, ERR_REFUSED, "%s has %" PRId64 " usable prompts, the run has %" PRId64, w->name, n_row, c->n_row);
        refuse_later(c, r, &err);
        return;
    }
    if (n_row > 0 && c->n_row > 0 && n_row != c->n_row)
        run_fail(c,
                 "the dataset '%s' has %" PRId64 " usable prompts now and had %" PRId64 " when the run began; a run cannot go on "
                 "with other data",
                 c->config.dataset, n_row, c->n_row);
    else if (n_row > 0 && !c->ledger && !ledger_prepare(c, n_row, &err))
        run_fail(c, "%s", err.text);
    if (w->consumes && trainer_in_step(c, w))
        c->round_open = false;
    if (c->state == RUN_STARTING && c->ledger && w->consumes && trainer_in_step(c, w)) {
        state_set(c, RUN_RUNNING, "controller", "");
        if (run_config_travels(&c->config)) {
            enum weights_way way = WAY_FILES;
            char text[96];
            (void)weights_way_parse(c->config.weights, &way);
            snprintf(text, sizeof text, "weights get to samplers on other devices by %s", weights_way_name(way));
            event_add(c, "weights", "controller", text, "");
        }
        if (c->step == 0 && c->n_eval == 0 && c->now.eval_interval > 0)
            c->eval_wanted = 0;
    }
}

/* Workers of another node are called NODE/NAME. */
void gone_told(struct controller *c, struct request *r, const struct msg_in *in)
{
    char node[64], reason[300], text[480];
    int n = 0;
    mval_text(in->root, "node", node, sizeof node);
    mval_text(in->root, "reason", reason, sizeof reason);
    for (int i = 0; i < c->n_worker; i++) {
        struct worker *w = &c->worker[i];
        size_t len = strlen(node);
        if (!len || strncmp(w->name, node, len) != 0 || w->name[len] != '/')
            continue;
        worker_lost(c, w);
        w->name[0] = 0;
        w->start = 0;
        n++;
    }
    snprintf(text, sizeof text, "node '%s' has gone, with %d workers: %s", node, n, reason);
    event_add(c, "node", "gate", text, "");
    ok_later(c, r);
}

/* ---- deciding ---- */

static bool others_sample_away(const struct controller *c)
{
    for (int i = 0; i < c->n_worker; i++)
        if (c->worker[i].start && worker_is_away(&c->worker[i]) && clock_ms() - c->worker[i].heard_ms < AWAY_MS)
            return true;
    return false;
}

/* Does anybody sample but with its own trainer's present weights? Then they are put where others find them. */
static bool others_sample(const struct controller *c)
{
    return run_config_travels(&c->config) || others_sample_away(c);
}

/* Do weights get to this host's samplers out of the first trainer's memory (copy, nccl)? Other nodes have files always. */
static bool weights_by_memory(const struct controller *c)
{
    enum weights_way way;
    return run_config_travels(&c->config) && weights_way_parse(c->config.weights, &way) && way != WAY_FILES;
}

void weights_path(const struct controller *c, int64_t version, char *out, size_t size)
{
    weights_file_path(c->process.run_dir, version_made(c, version), version, out, size);
}

/* Does w sample with weights of a step that has been undone? */
static bool version_undone(const struct controller *c, const struct worker *w)
{
    return w->version >= 0 && w->made != version_made(c, w->version);
}

/* The first trainer, when what it keeps belongs to the present incarnation; else NULL. */
static const struct worker *sharer(const struct controller *c)
{
    for (int i = 0; i < c->n_worker; i++)
        if (c->worker[i].rank == 0 && c->worker[i].incarnation == c->incarnation && c->worker[i].round == c->round)
            return &c->worker[i];
    return NULL;
}

static bool weights_in_memory(const struct controller *c, int64_t version)
{
    const struct worker *w = sharer(c);
    for (int i = 0; w && i < w->n_shared; i++)
        if (w->shared[i] == version)
            return true;
    return false;
}

static bool weights_in_file(const struct controller *c, int64_t version)
{
    char path[4200];
    weights_path(c, version, path, sizeof path);
    return path_exists(path);
}

/* Can w have them? */
static bool weights_shared_with(const struct controller *c, const struct worker *w, int64_t version)
{
    return weights_by_memory(c) && !worker_is_away(w) ? weights_in_memory(c, version) : weights_in_file(c, version);
}

/* Can everybody have them who samples now? */
static bool weights_shared(const struct controller *c, int64_t version)
{
    bool memory = weights_by_memory(c);
    return (!memory || weights_in_memory(c, version)) && ((memory && !others_sample_away(c)) || weights_in_file(c, version));
}

/* As weights_shared_with, or they are being shared now: who takes them out of memory may wait for them already. */
static bool weights_coming(const struct controller *c, const struct worker *w, int64_t version)
{
    const struct worker *from = sharer(c);
    return weights_shared_with(c, w, version)
           || (weights_by_memory(c) && !worker_is_away(w) && from && from->task_kind == TASK_SHARE && from->task_step == version);
}

/* Can the present version be shared, in memory in place of one that nobody will want? Free-running, nobody insists on an older one. */
static bool weights_room(const struct controller *c, const struct worker *w)
{
    if (!weights_by_memory(c) || weights_in_memory(c, c->step) || c->config.free_running)
        return true;
    int64_t wanted = ledger_version_wanted(c->ledger), oldest = INT64_MAX;
    for (int i = 0; i < w->n_shared; i++)
        oldest = MIN(oldest, w->shared[i]);
    return w->n_shared < MAX(c->config.n_behind, (int64_t)1) || wanted < 0 || oldest < wanted;
}

/* Remove the files of versions that nobody will want. */
static void weights_forget(const struct controller *c, int64_t step)
{
    char path[4200];
    int64_t wanted = c->ledger ? ledger_version_wanted(c->ledger) : -1;
    for (int64_t v = step - 1; v >= 0 && v >= step - 64; v--)    // some were never shared
        if (wanted < 0 || v < wanted) {
            weights_path(c, v, path, sizeof path);
            unlink(path);
        }
}

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

/* A trainer that is not in step loads what all trainers go back to. It joins the others who are on their way there, unless it has
 * been on that way before and has left it. */
static void load_give(struct controller *c, struct worker *w)
{
    char path[4096];
    struct msg_out m;
    if (c->round_open && w->given_round != c->round)
        return_target(c, path);
    else if (!trainers_return(c, path))
        return;
    c->loading_step = c->step;
    w->given_round = c->round;
    log_info("%s loads step %" PRId64 " from '%s'", w->name, c->step, path[0] ? path : c->config.model);
    task_begin(c, w, &m, TASK_LOAD, c->step);
    msg_str(&m, "path", path);
    msg_i64(&m, "made", version_made(c, c->step));
    msg_i64(&m, "round", c->round);
    task_give(c, w, &m);
}

/* How many more items w may hold, by the settings of the next one's rollout step; 0: none waits for it. */
static int64_t items_room(const struct controller *c, const struct worker *w)
{
    const struct ledger_item *next = ledger_next(c->ledger, w->version);
    struct run_config *at = next ? malloc(sizeof *at) : NULL;
    if (!at)
        return 0;
    config_at(c, -1, next->rollout_step, at);
    int64_t most = MIN(at->inference_microbatch_size, c->config.inference_microbatch_size);    // before a resume it may have been more
    free(at);
    return MAX(most - w->items, (int64_t)0);
}

static void items_give(struct controller *c, struct worker *w, int64_t room)
{
    struct msg_out m;
    const struct ledger_item *i = ledger_lease(c->ledger, w->version, worker_id(c, w));
    int64_t s = i->rollout_step, n = 0;
    bool fresh = w->task == 0;
    int64_t task = w->task;
    task_begin(c, w, &m, TASK_ITEMS, w->step);
    if (!fresh)
        w->task = task;    // more of the same
    msg_i64(&m, "rollout_step", s);
    msg_i64(&m, "version", i->version);
    msg_list(&m, "items");
    while (i) {
        msg_map(&m, NULL);
        msg_i64(&m, "item", i->item);
        msg_i64(&m, "row", i->row);
        msg_end(&m);
        if (++n >= room)
            break;
        i = ledger_lease_of(c->ledger, w->version, s, worker_id(c, w));
    }
    msg_end(&m);
    knobs_write(c, -1, s, &m);
    task_give(c, w, &m);
}

static void train_give(struct controller *c, struct worker *w)
{
    const struct ledger_item *item[BATCH_MAX];
    struct msg_out m;
    struct error err;
    struct run_plan plan;
    struct run_config *at = malloc(sizeof *at);
    int64_t n = ledger_batch(c->ledger, c->step, item, ARRAY_SIZE(item));
    int64_t rollout_step = n > 0 ? item[n - 1]->rollout_step : -1;    // the newest: what is told of sampling is true of it
    if (at)
        config_at(c, c->step, rollout_step, at);
    if (!at || !run_plan_make(&plan, at, c->n_row, &err) || !step_begin(c, &err)) {
        run_fail(c, "cannot begin step %" PRId64 ": %s", c->step + 1, at ? err.text : "no memory");
        free(at);
        return;
    }
    free(at);
    task_begin(c, w, &m, TASK_TRAIN, c->step);
    msg_i64(&m, "max_steps", plan.total_steps);
    msg_list(&m, "items");
    for (int64_t k = 0; k < n; k++)
        msg_i64(&m, NULL, item[k]->item);
    msg_end(&m);
    knobs_write(c, c->step, rollout_step, &m);
    task_give(c, w, &m);
}

static void simple_give(struct controller *c, struct worker *w, enum task_kind kind, int64_t step)
{
    struct msg_out m;
    task_begin(c, w, &m, kind, step);
    if (kind == TASK_SAVE)
        msg_str(&m, "path", c->checkpoint_dir);
    if (kind == TASK_PUBLISH || kind == TASK_SHARE) {
        char path[4200];
        weights_path(c, step, path, sizeof path);
        msg_i64(&m, "version", step);
        msg_i64(&m, "made", version_made(c, step));
        if (kind == TASK_PUBLISH || !weights_by_memory(c) || others_sample_away(c))
            msg_str(&m, "path", path);
    }
    if (kind == TASK_EVAL || kind == TASK_SAVE)
        knobs_write(c, c->step, INT64_MAX, &m);
    task_give(c, w, &m);
}

/* Does the first trainer sample with a copy of the present weights, when nobody else needs them? */
static bool sampler_is_fresh(const struct controller *c)
{
    for (int i = 0; i < c->n_worker; i++)
        if (c->worker[i].rank == 0)
            return c->config.n_behind > 0 && c->worker[i].version == c->step;
    return false;
}

/* Is the next optimizer step to be made now? Its batch must be there, and nobody may need the weights that it changes. */
static bool step_is_due(const struct controller *c)
{
    const struct ledger_item *one;
    bool shared = weights_shared(c, c->step);
    bool may_leave = shared
                     || (!c->config.free_running
                         && (ledger_version_done(c->ledger, c->step) || (!others_sample(c) && sampler_is_fresh(c))));
    return c->state == RUN_RUNNING && !c->stop_wanted && c->evaluating < 0 && c->pause != PAUSE_STEP && c->step < c->max_steps && may_leave
           && ledger_batch(c->ledger, c->step, &one, 1) > 0;
}

/* The whole order of things for one worker that waits for work; leaves it waiting when there is none. */
static void worker_decide(struct controller *c, struct worker *w)
{
    if (run_is_over(c)) {
        simple_give(c, w, TASK_STOP, c->step);
        return;
    }
    bool stopping = c->stop_wanted || c->state == RUN_STOPPING, first = w->rank == 0;
    bool in_step = w->consumes ? trainer_in_step(c, w) : w->step >= 0;
    bool several = others_sample(c), to_be_made = c->config.num_trainers > 1 && c->begun == c->step;
    bool undone = version_undone(c, w);
    if (w->busy && (stopping || !in_step || undone)) {
        simple_give(c, w, TASK_CANCEL, c->step);
        return;
    }
    if (c->config.free_running && !w->consumes && in_step && !stopping && (w->version != c->step || undone) && c->ledger
        && weights_shared(c, c->step)) {    // in the middle of what it samples, too
        simple_give(c, w, TASK_PUBLISH, c->step);
        return;
    }
    if (!w->busy) {
        if (!in_step && !w->consumes) {
            simple_give(c, w, TASK_LOAD, 0);
            return;
        }
        if (!in_step && trainer_is_ahead(c, w))
            goto none;
        if (!in_step) {
            load_give(c, w);
            return;
        }
        if (!c->ledger)
            goto none;
        if (!w->consumes) {    // it samples with what the trainer has shared
            int64_t version = ledger_version_issued(c->ledger);
            if (!c->config.free_running && c->state == RUN_RUNNING && !stopping && version >= 0
                && (undone || !ledger_issued(c->ledger, w->version)) && weights_coming(c, w, version)) {
                simple_give(c, w, TASK_PUBLISH, version);
                return;
            }
        } else if (first && several && !stopping && (c->config.free_running || !ledger_version_done(c->ledger, c->step))
                   && !weights_shared(c, c->step) && weights_room(c, w)) {
            simple_give(c, w, TASK_SHARE, c->step);
            return;
        }
        if (c->save_wanted >= 0 && c->saving < 0 && first) {
            c->saving = c->step;
            c->save_wanted = -1;
            simple_give(c, w, TASK_SAVE, c->step);
            return;
        }
        if (c->eval_wanted >= 0 && c->evaluating < 0 && first) {
            c->evaluating = c->step;
            c->eval_wanted = -1;
            simple_give(c, w, TASK_EVAL, c->step);
            return;
        }
        if (w->consumes && w->produces && c->state == RUN_RUNNING && w->version != w->step && ledger_version_issued(c->ledger) == w->step) {
            simple_give(c, w, TASK_PUBLISH, w->step);
            return;
        }
        if (w->consumes && w->produces && c->config.n_behind > 0 && c->state == RUN_RUNNING && !stopping) {
            int64_t version = ledger_version_issued(c->ledger);
            if (version >= 0 && version != w->version && !ledger_issued(c->ledger, w->version) && weights_shared_with(c, w, version)) {
                simple_give(c, w, TASK_PUBLISH, version);
                return;
            }
        }
        if (w->consumes && (to_be_made || (first && step_is_due(c)))) {
            train_give(c, w);
            return;
        }
    }
    /* Several trainers would wait for the one that samples on. */
    bool awaited = w->consumes && c->config.num_trainers > 1 && c->ledger && (to_be_made || step_is_due(c));
    if (c->ledger && c->state == RUN_RUNNING && !stopping && c->pause == PAUSE_NONE && w->produces && !awaited && w->version >= 0
        && !undone) {
        int64_t room = items_room(c, w);
        if (room > 0) {
            items_give(c, w, room);
            return;
        }
    }
none:
    if (w->busy || clock_ms() - w->held_ms >= HOLD_MS)
        simple_give(c, w, TASK_NONE, c->step);
}

int64_t work_due(const struct controller *c)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < c->n_worker; i++) {
        const struct worker *w = &c->worker[i];
        const int64_t at[] = { w->held ? w->held_ms + HOLD_MS : INT64_MAX, w->heard_ms + SILENT_MS + 1, w->heard_ms + AWAY_MS };
        for (size_t k = 0; k < ARRAY_SIZE(at); k++)
            if (at[k] > c->worked_ms)    // what was before has been seen to
                due = MIN(due, at[k]);
    }
    return due;
}

bool work_tick(struct controller *c)
{
    bool leases_ended = false;
    int64_t now = c->worked_ms = clock_ms();
    for (int i = 0; i < c->n_worker; i++) {
        struct worker *w = &c->worker[i];
        if (w->held) {
            worker_decide(c, w);
        } else if (c->ledger && now - w->heard_ms > SILENT_MS && ledger_lease_end(c->ledger, worker_id(c, w)) > 0) {
            log_warn("%s has been silent for %d s: its items are issued again", w->name, SILENT_MS / 1000);
            leases_ended = true;
        }
    }
    return leases_ended;
}

/* ---- groups ---- */

static void rollout_body(struct controller *c, struct msg_out *m)
{
    const struct buf *b = &c->recent[(c->n_recent - 1) % RECENT_MAX];
    struct msg_in in;
    struct error err;
    if (!msg_read_request(&in, b->data, b->len, &err))
        return;
    msg_copy(m, "item", mval_get(in.root, "item"));
    msg_copy(m, "step", mval_get(in.root, "version"));
    line_write(c, m, mval_get(in.root, "row"));
    msg_copy(m, "prompt_text", mval_get(in.root, "prompt_text"));
    msg_copy(m, "samples", mval_get(in.root, "samples"));
    msg_in_release(&in);
}

static void recent_add(struct controller *c, int64_t item, const void *data, size_t len)
{
    struct buf *b = &c->recent[c->n_recent % RECENT_MAX];
    if (len > (size_t)1 << 20)
        return;
    buf_clear(b);
    if (!buf_add(b, data, len))
        return;
    c->recent_item[c->n_recent % RECENT_MAX] = item;
    c->n_recent++;
    if (clock_ms() - c->rollout_ms >= ROLLOUT_MS) {    // for the screen a few are enough
        c->rollout_ms = clock_ms();
        publish(c, "rollout", rollout_body);
    }
}

/* Why the last of a group's samples that were left out was so; "" when all were scored. */
static const char *left_out_reason(const struct mval *samples, char *out, size_t size)
{
    out[0] = 0;
    for (int64_t i = 0; i < mval_n(samples); i++)
        if (mval_i64(mval_get(mval_at(samples, i), "score"), SCORE_OK) != SCORE_OK)
            mval_text(mval_at(samples, i), "reason", out, size);
    return out;
}

/* Groups that nothing can be learned from must not go by in silence, and not for ever. */
static void waste_look(struct controller *c, const struct group_summary *group, const struct mval *samples)
{
    struct waste *w = &c->waste;
    char why[64], text[WASTE_TEXT_MAX];
    struct batch_filter filter = run_config_filter(&c->now);
    waste_add(w, group, &filter, left_out_reason(samples, why, sizeof why));
    if (c->now.waste_limit > 0 && w->n_sample >= c->now.waste_limit) {
        run_fail(c, "%s (waste_limit is %" PRId64 ")", waste_text(w, text, sizeof text), c->now.waste_limit);
    } else if (c->now.waste_alert > 0 && w->n_sample >= c->now.waste_alert && !w->told) {
        w->told = 1;
        event_add(c, "alert", "controller", waste_text(w, text, sizeof text), "");
    }
}

/* Is the group that in tells of known, or wanted? False: neither, and r is refused. */
static bool group_is_ours(struct controller *c, struct request *r, const struct msg_in *in, bool *known)
{
    struct error err;
    int64_t item = mval_i64(mval_get(in->root, "item"), -1), version = mval_i64(mval_get(in->root, "version"), -1);
    bool undone = mval_i64(mval_get(in->root, "made"), 0) != version_made(c, version);
    const struct ledger_item *i = c->ledger ? ledger_find(c->ledger, item) : NULL;
    *known = i ? i->fate != LEDGER_ISSUED && i->fate != LEDGER_LEASED : c->ledger && item >= 0 && item < ledger_first(c->ledger);
    if (*known || (i && (c->config.free_running || (i->version == version && !undone))))
        return true;
    error_set(&err, ERR_REFUSED, "item %" PRId64 " at version %" PRId64 " is not wanted", item, version);
    refuse_later(c, r, &err);
    return false;
}

static void group_taken(struct controller *c, struct request *r)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    answer_later(c, r, &m);
}

void group_came(struct controller *c, struct request *r, const struct msg_in *in, const void *data, size_t len)
{
    struct error err;
    struct group_summary sum;
    bool known;
    if (!group_is_ours(c, r, in, &known))
        return;
    if (known) {
        group_taken(c, r);
        return;
    }
    if (!group_summary_read(in->root, &sum, &err)) {
        refuse_later(c, r, &err);
        return;
    }
    if (run_is_over(c) || !storage_put(c, r, mval_i64(mval_get(in->root, "item"), -1), &sum, data, len, &err)) {
        if (!run_is_over(c))
            run_fail(c, "cannot keep a rollout group: %s", err.text);
        error_set(&err, ERR_REFUSED, "the run has ended");
        refuse_later(c, r, &err);
    }
}

void group_note(struct controller *c, struct request *r, const struct msg_in *in, const struct group_summary *sum, const void *data,
                size_t len)
{
    struct error err;
    bool known;
    int64_t item = mval_i64(mval_get(in->root, "item"), -1), version = mval_i64(mval_get(in->root, "version"), -1);
    if (!group_is_ours(c, r, in, &known))    // the run has gone back meanwhile
        return;
    if (!known && run_is_over(c)) {
        error_set(&err, ERR_REFUSED, "the run has ended");
        refuse_later(c, r, &err);
        return;
    }
    if (!known) {
        if (ledger_return(c->ledger, item, version, sum) != LEDGER_NEW || !item_write(c, ledger_find(c->ledger, item), &err)
            || !ledger_advance(c, &err)) {
            run_fail(c, "cannot note group %" PRId64 ": %s", item, err.text);
            refuse_later(c, r, &err);
            return;
        }
        totals_add(c, sum);
        c->scored.wait_s += sum->score_s;
        c->scored.response_s += sum->score_s * (double)sum->n_sample;
        c->scored.verify_s += sum->verify_s;
        c->scored.n += sum->n_sample;
        recent_add(c, item, data, len);
        waste_look(c, sum, mval_get(in->root, "samples"));
        if (!counts_keep(c, &err)) {
            run_fail(c, "cannot note group %" PRId64 ": %s", item, err.text);
            refuse_later(c, r, &err);
            return;
        }
    }
    group_taken(c, r);
}

void fetch_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    struct buf record = BUF_INIT;
    const struct mval *items = mval_get(in->root, "items");
    bool ok = true;
    msg_begin(&m, MSG_OK);
    msg_list(&m, "groups");
    for (int64_t k = 0; k < mval_n(items) && m.buf.len < FETCH_BYTES && ok; k++) {
        struct msg_in group;
        const struct ledger_item *i = c->ledger ? ledger_find(c->ledger, mval_i64(mval_at(items, k), -1)) : NULL;
        if (!i || i->summary.file_bytes == 0) {
            ok = error_set(&err, ERR_NOT_FOUND, "item %" PRId64 " has no group here", mval_i64(mval_at(items, k), -1));
            break;
        }
        buf_clear(&record);
        ok = rollout_file_read(c->rollout_path, i->summary.file_offset, i->summary.file_bytes, &record, &err)
             && msg_read_request(&group, record.data, record.len, &err);
        if (ok) {
            msg_copy(&m, NULL, group.root);
            msg_in_release(&group);
        } else if (err.code == ERR_DATA && i->fate == LEDGER_RETURNED) {    // it was well when it was written
            struct error why = err;
            ledger_lose(c->ledger, i->item);
            if (!groups_lost(c, 1, &why, &err))
                run_fail(c, "cannot have a lost group sampled again: %s", err.text);
        }
    }
    msg_end(&m);
    buf_release(&record);
    if (ok)
        answer_later(c, r, &m);
    else
        refuse_later(c, r, &err);
    msg_release(&m);
}

/* ---- tasks that end ---- */

static void metric_put(struct controller *c, const char *name, double value)
{
    int i = 0;
    while (i < c->n_metric && strcmp(c->metric_name[i], name) != 0)
        i++;
    if (i == (int)ARRAY_SIZE(c->metric))
        return;
    if (i == c->n_metric) {
        snprintf(c->metric_name[i], sizeof c->metric_name[i], "%s", name);
        c->metric[i].name = c->metric_name[i];
        c->n_metric++;
    }
    c->metric[i].value = value;
}

/* One of the controller's own. */
static void metric_own(struct controller *c, enum metric_id id, double value)
{
    BUG_IF(metrics[id].by != BY_CONTROLLER, "'%s' is not the controller's to compute", metrics[id].name);
    metric_put(c, metrics[id].name, value);
}

/* What the ledger knows of the groups that went by since the step before. */
static void batch_metrics(struct controller *c, int64_t batch)
{
    const struct ledger_item *item[BATCH_MAX];
    int64_t n = ledger_batch_seen(c->ledger, batch, item, ARRAY_SIZE(item));
    struct group_summary s = { 0 };
    int64_t same = 0, filtered = 0, newest = 0;
    struct ledger_counts counts;
    for (int64_t k = 0; k < n; k++) {
        const struct group_summary *g = &item[k]->summary;
        s.n_sample += g->n_sample;
        s.n_scored += g->n_scored;
        s.n_truncated += g->n_truncated;
        s.n_left_out += g->n_left_out;
        s.n_tok += g->n_tok;
        s.n_tok_max = MAX(s.n_tok_max, g->n_tok_max);
        s.reward_sum += g->reward_sum;
        s.reward_sum2 += g->reward_sum2;
        s.format_sum += g->format_sum;
        s.ans_sum += g->ans_sum;
        same += !(g->reward_low < g->reward_high);
        filtered += item[k]->fate == LEDGER_FILTERED;
        newest = MAX(newest, item[k]->rollout_step);
    }
    double scored = s.n_scored > 0 ? (double)s.n_scored : NAN, samples = s.n_sample > 0 ? (double)s.n_sample : NAN;
    double mean = s.reward_sum / scored;
    metric_own(c, M_REWARD, mean);
    metric_own(c, M_REWARD_STD, sqrt(fmax(s.reward_sum2 / scored - mean * mean, 0)));
    metric_own(c, M_FORMAT_ACC, s.format_sum / scored);
    metric_own(c, M_ANS_ACC, s.ans_sum / scored);
    metric_own(c, M_RESPONSE_LENGTH, (double)s.n_tok / samples);
    metric_own(c, M_LENGTH_MAX, (double)s.n_tok_max);
    metric_own(c, M_TRUNCATED, (double)s.n_truncated / samples);
    metric_own(c, M_LEFT_OUT, (double)s.n_left_out / samples);
    metric_own(c, M_NO_SPREAD, n > 0 ? (double)same / (double)n : NAN);
    metric_own(c, M_FILTERED, n > 0 ? (double)filtered / (double)n : NAN);
    ledger_counts(c->ledger, 1, &counts);
    metric_own(c, M_BUFFER_DEPTH, (double)counts.returned);
    metric_own(c, M_ROLLOUT_STEP, (double)newest);
    metric_own(c, M_EPISODE, n > 0 ? (double)(item[n - 1]->item / c->n_row) : NAN);
    metric_own(c, M_TOKENS_TOTAL, (double)c->total.n_tok);
    metric_own(c, M_SAMPLES_TOTAL, (double)c->total.n_sample);
}

/* What the groups know of their scoring that came in the step_s seconds since the step before. */
static void score_metrics(struct controller *c, double step_s)
{
    const struct score_sums *s = &c->scored;
    metric_own(c, M_SCORE_S, s->wait_s);
    metric_own(c, M_SCORE_LATENCY_MS, s->n > 0 ? 1000 * s->verify_s / (double)s->n : NAN);
    metric_own(c, M_SCORE_QUEUE, step_s > 0 ? s->response_s / step_s : NAN);    // Little's law: number = rate x wait
    metric_own(c, M_SCORE_TIMEOUTS, (double)c->total.n_timeout);
    metric_own(c, M_SCORE_ERRORS, (double)c->total.n_error);
    c->scored = (struct score_sums){ 0 };
}

static void step_body(struct controller *c, struct msg_out *m)
{
    msg_i64(m, "step", c->step);
    msg_i64(m, "incarnation", c->incarnation);
    msg_f64(m, "time", clock_wall_s());
    msg_map(m, "metrics");
    for (int i = 0; i < c->n_metric; i++)
        msg_f64(m, c->metric_name[i], c->metric[i].value);
    msg_end(m);
}

static bool train_done(struct controller *c, const struct msg_in *in, int64_t step, struct error *err)
{
    const struct mval *given = mval_get(in->root, "metrics");
    int64_t now = clock_ms();
    c->n_metric = 0;
    for (int64_t k = 0; k < mval_n(given); k++) {
        size_t len;
        char name[96];
        const char *key = mval_key(given, k, &len);
        if (!key || len >= sizeof name)
            continue;
        memcpy(name, key, len);
        name[len] = 0;
        if (!metric_is_controllers(name))    // what the ledger knows of all groups, one worker cannot know
            metric_put(c, name, mval_f64(mval_at(given, k), NAN));
    }
    batch_metrics(c, step - 1);
    double s = (double)(now - c->step_ms) / 1000;
    metric_own(c, M_STEP_S, s);
    score_metrics(c, s);
    /* a worker measured these, and told them when the save was done */
    metric_put(c, metrics[M_CHECKPOINT_STALL_S].name, c->save_stall_s);
    metric_put(c, metrics[M_CHECKPOINT_WRITE_S].name, c->save_write_s);
    if (c->host_mem_bytes > 0)
        metric_own(c, M_HOST_MEM_GIB, c->host_mem_bytes / (1 << 30));
    c->step_s_mean = c->step_s_mean > 0 ? 0.8 * c->step_s_mean + 0.2 * s : s;
    c->step_ms = now;
    if (!transaction(c, err) || !journal_step_add(c->journal, c->incarnation, step, clock_wall_s(), c->metric, c->n_metric, err)
        || !ledger_step_done(c, step - 1, err))
        return false;
    c->step = step;
    weights_forget(c, c->config.free_running ? step - 1 : step);    // free-running, somebody may be taking the last ones
    if (c->config.free_running && !ledger_advance(c, err))
        return false;
    publish(c, "step", step_body);
    if (c->now.save_interval > 0 && step % c->now.save_interval == 0)
        c->save_wanted = step;
    if (c->now.eval_interval > 0 && step % c->now.eval_interval == 0)
        c->eval_wanted = step;
    return true;
}

static struct checkpoint_row *checkpoint_row(struct controller *c, int64_t step)
{
    for (int i = 0; i < c->n_checkpoint; i++)
        if (c->checkpoint[i].step == step) {    // written anew: it becomes the newest
            struct checkpoint_row k = c->checkpoint[i];
            memmove(&c->checkpoint[i], &c->checkpoint[i + 1], (size_t)(c->n_checkpoint - 1 - i) * sizeof k);
            c->checkpoint[c->n_checkpoint - 1] = k;
            return &c->checkpoint[c->n_checkpoint - 1];
        }
    if (c->n_checkpoint == CHECKPOINT_MAX) {
        memmove(c->checkpoint, c->checkpoint + 1, (CHECKPOINT_MAX - 1) * sizeof *c->checkpoint);
        c->n_checkpoint--;
    }
    c->checkpoint[c->n_checkpoint] = (struct checkpoint_row){ .step = step };
    return &c->checkpoint[c->n_checkpoint++];
}

static bool save_done(struct controller *c, const struct msg_in *in, int64_t step, bool ok, const char *why, struct error *err)
{
    const struct mval *given = mval_get(in->root, "metrics");
    struct checkpoint_row *k = checkpoint_row(c, step);
    char text[640];
    if (c->saving == step)
        c->saving = -1;
    k->complete = ok;
    c->save_stall_s = mval_f64(mval_get(given, metrics[M_CHECKPOINT_STALL_S].name), NAN);
    c->save_write_s = mval_f64(mval_get(given, metrics[M_CHECKPOINT_WRITE_S].name), NAN);
    snprintf(k->path, sizeof k->path, "%.4000s/step-%06" PRId64, c->checkpoint_dir, step);
    if (!transaction(c, err)
        || !journal_checkpoint_put(c->journal, step, k->path, ok ? "complete" : "broken", c->save_stall_s, c->save_write_s, err))
        return false;
    snprintf(text, sizeof text, ok ? "step %" PRId64 " saved" : "step %" PRId64 " could not be saved: %.500s", step, why);
    json_t *o = ok ? json_pack("{s:I, s:s}", "step", (json_int_t)step, "path", k->path) : NULL;
    event_add_facts(c, ok ? "checkpoint" : "alert", "controller", text, o);
    if (!ok) {
        if (c->state == RUN_STOPPING)
            run_fail(c, "%s", text);
        return true;
    }
    /* the one before is kept in reach, in case this one turns out to be broken */
    int64_t keep = -1;
    for (int i = c->n_checkpoint - 2; i >= 0 && keep < 0; i--)
        if (c->checkpoint[i].complete && c->checkpoint[i].step < step)
            keep = c->checkpoint[i].step;
    if (keep > 0) {
        ledger_forget(c->ledger, keep);
        return state_save(c, err);
    }
    return true;
}

static bool eval_done(struct controller *c, const struct msg_in *in, int64_t step, struct error *err)
{
    const struct mval *sets = mval_get(in->root, "eval");
    c->evaluating = -1;
    for (int64_t k = 0; k < mval_n(sets); k++) {
        size_t len;
        char name[64], text[160];
        const char *key = mval_key(sets, k, &len);
        const struct mval *v = mval_at(sets, k);
        if (!key || len >= sizeof name)
            continue;
        memcpy(name, key, len);
        name[len] = 0;
        int64_t n = mval_i64(mval_get(v, "n"), 0);
        double mean = mval_f64(mval_get(v, "mean"), NAN);
        if (!transaction(c, err) || !journal_eval_put(c->journal, c->incarnation, step, name, n, mean, "{}", err))
            return false;
        int i = 0;
        while (i < c->n_eval && strcmp(c->eval[i].set, name) != 0)
            i++;
        if (i < EVAL_SET_MAX) {
            c->n_eval = MAX(c->n_eval, i + 1);
            snprintf(c->eval[i].set, sizeof c->eval[i].set, "%s", name);
            c->eval[i].step = step;
            c->eval[i].n = n;
            c->eval[i].mean = mean;
        }
        snprintf(text, sizeof text, "%s %.4f of %" PRId64 " at step %" PRId64, name, mean, n, step);
        json_t *o = json_pack("{s:I, s:s, s:I}", "step", (json_int_t)step, "set", name, "n", (json_int_t)n);
        if (isfinite(mean))
            json_object_set_new(o, "mean", json_real(mean));
        event_add_facts(c, "eval", "controller", text, o);
    }
    return true;
}

/* A trainer's load. Only what is wrong in the checkpoint itself (broken) marks it so: with too little memory, or another model, the run ends
 * and can be gone on from the same checkpoint. The first to fail of several is heard, they read the same files. */
static void load_failed(struct controller *c, const char *why, bool broken)
{
    struct error err;
    char path[4096];
    int64_t step = c->loading_step;
    if (step < 0)
        return;
    c->loading_step = -1;
    for (int i = 0; i < c->n_checkpoint; i++)
        if (broken && step > 0 && c->checkpoint[i].step == step && c->checkpoint[i].complete) {
            c->checkpoint[i].complete = false;
            if (!transaction(c, &err) || !journal_checkpoint_put(c->journal, step, c->checkpoint[i].path, "broken", NAN, NAN, &err))
                log_error("%s", err.text);
            if (return_find(c, path) >= 0) {
                char text[640];
                snprintf(text, sizeof text, "checkpoint of step %" PRId64 " is broken (%.400s); the one before is used", step, why);
                event_add(c, "alert", "controller", text, "");
                return;
            }
        }
    run_fail(c, "%s", why);
}

void done_came(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err = { 0 };
    char name[64], word[16], why[512];
    enum task_kind kind;
    bool good = true, ok = mval_bool(mval_get(in->root, "ok"), false);
    int64_t task = mval_i64(mval_get(in->root, "task"), 0), step = mval_i64(mval_get(in->root, "step"), -1);
    int64_t incarnation = mval_i64(mval_get(in->root, "incarnation"), -1);
    int64_t rank = mval_i64(mval_get(in->root, "rank"), 0), round = mval_i64(mval_get(in->root, "round"), 0);
    bool left = mval_bool(mval_get(in->root, "left"), false);
    struct worker *w = worker_find(c, mval_text(in->root, "name", name, sizeof name));
    if (!task_kind_find(mval_text(in->root, "kind", word, sizeof word), &kind)) {
        error_set(&err, ERR_REFUSED, "a '%s' is no kind of work", word);
        refuse_later(c, r, &err);
        return;
    }
    mval_text(in->root, "error", why, sizeof why);
    int64_t version = mval_i64(mval_get(in->root, "version"), -1);    // what w has been given since may be newer
    if (w)
        w->heard_ms = clock_ms();
    if (w && w->task == task) {
        w->task = 0;
        w->task_kind = TASK_NONE;
    }
    if (!c->ledger && kind != TASK_LOAD) {
        error_set(&err, ERR_REFUSED, "the controller has not loaded its ledger yet");
        refuse_later(c, r, &err);
        return;
    }
    if ((rank > 0 && ok) || left || (rank >= 0 && round != c->round && kind == TASK_LOAD)) {
        if (left && kind == TASK_SAVE && incarnation == c->incarnation && c->saving >= 0) {    // again, when they have met again
            c->save_wanted = MAX(c->save_wanted, c->saving);
            c->saving = -1;
        }
        if (left)
            log_info("%s has left the others in a %s: %s", name, word, why);
    } else if (kind == TASK_TRAIN && ok) {
        if (incarnation != c->incarnation || round != c->round || step > c->step + 1) {
            error_set(&err, ERR_REFUSED,
                      "step %" PRId64 " of incarnation %" PRId64 " is not wanted: the run is at step %" PRId64 " of incarnation %" PRId64,
                      step, incarnation, c->step, c->incarnation);
            refuse_later(c, r, &err);
            return;
        }
        if (step == c->step + 1)
            good = train_done(c, in, step, &err);
    } else if (kind == TASK_SAVE) {
        if (incarnation == c->incarnation)
            good = save_done(c, in, step, ok, why, &err);
    } else if (kind == TASK_EVAL && ok) {
        if (incarnation == c->incarnation && c->evaluating >= 0)
            good = eval_done(c, in, step, &err);
    } else if (kind == TASK_LOAD) {
        if (ok)
            good = lines_take(c, mval_get(in->root, "lines"), mval_get(in->root, "files"), &err);
        if (rank >= 0) {
            if (!ok)
                load_failed(c, why, mval_bool(mval_get(in->root, "broken"), false));
            c->loading_step = -1;
        } else if (!ok) {
            run_fail(c, "%s: load: %s", name, why);
        }
    } else if (kind == TASK_PUBLISH && !ok && (!w || !weights_shared_with(c, w, version))) {
        log_info("%s comes too late for version %" PRId64 ": nobody samples with it any more", name, version);
    } else if (w && !ok && mval_bool(mval_get(in->root, "again"), false) && ++w->n_again < AGAIN_MAX) {
        log_warn("%s did not get version %" PRId64 ": %s", name, version, why);
    } else if (!ok) {
        run_fail(c, "%s: %s: %s", name, word, why);
    } else if (w && kind == TASK_PUBLISH) {
        w->n_again = 0;
    }
    if (!good) {
        run_fail(c, "cannot note that a %s has ended: %s", word, err.text);
        refuse_later(c, r, &err);
        return;
    }
    ok_later(c, r);
}
