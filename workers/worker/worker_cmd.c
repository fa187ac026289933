/* The worker's process: its loop between controller, scorer and engine.
 *
 * The controller decides, the worker asks: a request for work is out whenever the engine is idle and nothing of ours is on
 * its way (then anything may come), or while it samples and has room (then only more items). What goes out and matters -
 * groups and reports of tasks - is repeated until it has been answered: by item and by task, so twice does no harm. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/log.h"
#include "protocol/run/group_msg.h"
#include "workers/worker/engine.h"
#include "protocol/run/node.h"
#include "workers/process/process.h"
#include "workers/engine/reward/reward.h"

#define FILES_BYTES_MAX ((size_t)1 << 20)    // of the list of the data's files; a longer one is not told
#define LINES_MAX 65536                      // gaps between the usable prompts of a file that are told; with more, no lines are
#define WORK_LIMIT_MS 15000                  // the controller holds a request for work 2 s
#define SCORE_LIMIT_MS 120000
#define SCORE_TRIES 6    // then the samples are left out
#define REPEAT_MS 200
#define OPEN_MAX 48         // of groups at once, to scorer and controller each
#define BUSY_ASK_MS 1000    // while it samples: also a sign of life
#define FULL_ASK_MS 10      // while it samples, and has room for a quarter more
#define FREE_ASK_MS 50      // the same, free-running: new weights are taken in the middle of it
#define REST_MS 1000        // at the end of a run; a controller that was killed then ends it once more, and needs us

enum parcel_kind {
    PARCEL_SCORE,
    PARCEL_GROUP,
    PARCEL_DONE,
};
struct parcel {    // something that has to arrive
    struct parcel *next;
    enum parcel_kind kind;
    uint64_t tag;
    struct report *report;    // score, group
    struct msg_out msg;
    bool open;
    int n_try;
    int64_t again_ms, began_ms;
    bool saved;    // a report of a checkpoint, which is written in the background
};
struct worker_process {
    struct process process;
    struct peer *controller, *scorer;
    struct engine *engine;
    struct run_config config;
    int64_t incarnation;
    struct run_part part;
    bool work_open;
    int64_t work_ms, rest_ms;    // when it asked last; told that the run is over, it does not ask before
    int64_t turned_ms;           // when the last turn began: what was due then has been done
    struct task *fetching;       // a train task whose groups are being fetched
    bool fetch_open;
    int64_t *fetch_item;    // (fetching->n_group) those that are missing from n_fetched on
    int64_t n_fetched, fetch_ms;
    struct parcel *parcels;
    int n_score_open, n_group_open;
    uint64_t next_tag;
};
enum {
    TAG_WORK = 1,
    TAG_FETCH = 2,
    TAG_FIRST = 16,
};

static void wake(void *ctx)
{
    process_wake(&((struct worker_process *)ctx)->process);
}

/* ---- parcels ---- */

static struct parcel *parcel_add(struct worker_process *w, enum parcel_kind kind)
{
    struct parcel *p = calloc(1, sizeof *p);
    BUG_IF(!p, "no memory for a message of %zu bytes", sizeof *p);
    p->kind = kind;
    p->tag = TAG_FIRST + w->next_tag++;
    p->msg = MSG_OUT_INIT;
    p->began_ms = clock_ms();
    struct parcel **at = &w->parcels;
    while (*at)
        at = &(*at)->next;
    *at = p;
    return p;
}

static void parcel_free(struct worker_process *w, struct parcel *p)
{
    for (struct parcel **at = &w->parcels; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    report_free(p->report);
    msg_release(&p->msg);
    free(p);
}

static void parcel_score_make(struct parcel *p)
{
    const struct report *r = p->report;
    msg_begin(&p->msg, MSG_SCORE);
    msg_str(&p->msg, "row", r->row);
    msg_i64(&p->msg, "max_new_tokens", r->group->max_new_tok);
    if (r->eval)
        msg_bool(&p->msg, "eval", true);
    msg_list(&p->msg, "samples");
    for (int32_t i = 0; i < r->group->n_sample; i++) {
        msg_map(&p->msg, NULL);
        msg_str(&p->msg, "text", r->text[i]);
        msg_i64(&p->msg, "n_tok", r->group->sample[i].n_tok);
        msg_i64(&p->msg, "finish", r->group->sample[i].finish);
        msg_end(&p->msg);
    }
    msg_end(&p->msg);
}

static void parcel_group_make(struct parcel *p, int64_t incarnation)
{
    const struct report *r = p->report;
    msg_begin(&p->msg, MSG_GROUP);
    msg_i64(&p->msg, "incarnation", incarnation);
    msg_i64(&p->msg, "made", r->made);
    group_write(&p->msg, r->group, r->prompt_text, (const char *const *)r->text);
}

static void parcels_send(struct worker_process *w)
{
    struct error err;
    int64_t now = clock_ms();
    for (struct parcel *p = w->parcels; p; p = p->next) {
        if (p->open || now < p->again_ms)
            continue;
        bool score = p->kind == PARCEL_SCORE;
        if (score ? w->n_score_open >= OPEN_MAX : w->n_group_open >= OPEN_MAX)
            continue;
        if (peer_ask(score ? w->scorer : w->controller, &p->msg, score ? SCORE_LIMIT_MS : 20000, p->tag, &err)) {
            p->open = true;
            p->n_try++;
            *(score ? &w->n_score_open : &w->n_group_open) += 1;
        } else {
            p->again_ms = now + REPEAT_MS;
        }
    }
}

/* ---- scores ---- */

/* What a scorer says has become of a sample. */
static enum score_state score_read(const struct mval *o)
{
    int64_t score = mval_i64(mval_get(o, "score"), SCORE_ERROR);
    return score >= SCORE_OK && score <= SCORE_ERROR ? (enum score_state)score : SCORE_ERROR;
}

/* A scorer's whole answer on one sample, for an evaluation's records. */
static void output_read(struct reward_output *out, const struct mval *o)
{
    size_t n = 0;
    const void *code = mval_bin(mval_get(o, "tests"), &n);
    out->score = score_read(o);
    out->reward = mval_f64(mval_get(o, "reward"), 0);
    out->format_acc = (float)mval_f64(mval_get(o, "format_acc"), 0);
    out->ans_acc = (float)mval_f64(mval_get(o, "ans_acc"), 0);
    out->verdict = out->ans_acc > 0 ? VERDICT_EQUAL : VERDICT_DIFFERENT;
    mval_text(o, "rule", out->rule, sizeof out->rule);
    mval_text(o, "pred", out->pred, sizeof out->pred);
    mval_text(o, "gold", out->gold, sizeof out->gold);
    out->tests.n = (int16_t)MIN(n, TESTS_KEPT_MAX);
    if (code)
        memcpy(out->tests.code, code, (size_t)out->tests.n);
}

static void scores_take(struct parcel *p, const struct mval *results)
{
    struct group *g = p->report->group;
    for (int32_t i = 0; i < g->n_sample; i++) {
        const struct mval *o = mval_at(results, i), *parts = mval_get(o, "parts");
        struct sample *s = &g->sample[i];
        char rule[48], pred[64];
        if (p->report->out)
            output_read(&p->report->out[i], o);
        s->score = score_read(o);
        s->reward = s->score == SCORE_OK ? mval_f64(mval_get(o, "reward"), 0) : 0;
        s->format_acc = s->score == SCORE_OK ? (float)mval_f64(mval_get(o, "format_acc"), 0) : 0;
        s->ans_acc = s->score == SCORE_OK ? (float)mval_f64(mval_get(o, "ans_acc"), 0) : 0;
        for (int k = 0; k < GROUP_PARTS_MAX; k++)
            s->part[k] = k < mval_n(parts) ? mval_f64(mval_at(parts, k), NAN) : NAN;
        mval_text(o, "rule", rule, sizeof rule);
        mval_text(o, "pred", pred, sizeof pred);
        snprintf(s->reason, sizeof s->reason, "%.30s%s%.16s", rule, pred[0] ? ": " : "", pred);
        g->verify_s += mval_f64(mval_get(o, "us"), 0) * 1e-6;
    }
    g->score_s = (double)(clock_ms() - p->began_ms) / 1000;
}

/* A group that has its scores goes on: to the controller, or back into the evaluation. */
static void group_scored(struct worker_process *w, struct parcel *p)
{
    struct error err;
    struct report *r = p->report;
    w->process.progress++;
    if (r->eval) {
        p->report = NULL;
        parcel_free(w, p);
        engine_scored(w->engine, r);
        return;
    }
    p->kind = PARCEL_GROUP;
    p->n_try = 0;
    p->again_ms = 0;
    parcel_group_make(p, w->incarnation);
    if (!msg_finish(&p->msg, &err)) {
        log_error("group %" PRId64 " cannot be sent: %s", r->group->item, err.text);
        parcel_free(w, p);
    }
}

static void score_failed(struct worker_process *w, struct parcel *p, const struct error *why)
{
    if (p->n_try < SCORE_TRIES) {
        p->again_ms = clock_ms() + REPEAT_MS;
        return;
    }
    log_warn("group %" PRId64 " is left unscored: %s", p->report->group->item, why->text);
    for (int32_t i = 0; i < p->report->group->n_sample; i++) {
        p->report->group->sample[i].score = why->code == ERR_TIMEOUT ? SCORE_TIMEOUT : SCORE_ERROR;
        snprintf(p->report->group->sample[i].reason, sizeof p->report->group->sample[i].reason, "scorer: %.36s", why->text);
    }
    group_scored(w, p);
}

static void parcel_answered(struct worker_process *w, struct net_event *ev)
{
    struct parcel *p = w->parcels;
    struct msg_in in;
    struct error err;
    while (p && p->tag != ev->tag)
        p = p->next;
    if (!p)
        return;
    p->open = false;
    if (p->kind == PARCEL_SCORE) {
        w->n_score_open--;
        if (ev->failed) {
            score_failed(w, p, &ev->err);
        } else if (!msg_read_answer(&in, MSG_SCORE, ev->data, ev->len, &err)) {
            score_failed(w, p, &err);
        } else {
            scores_take(p, mval_get(in.root, "results"));
            msg_in_release(&in);
            group_scored(w, p);
        }
        return;
    }
    w->n_group_open--;
    if (ev->failed) {
        p->again_ms = clock_ms() + REPEAT_MS;
        return;
    }
    if (msg_read_answer(&in, p->kind == PARCEL_GROUP ? MSG_GROUP : MSG_DONE, ev->data, ev->len, &err))
        msg_in_release(&in);
    else
        log_info("not taken by the controller: %s", err.text);
    w->process.progress++;
    parcel_free(w, p);
}

/* ---- reports of the engine ---- */

/* Which line of the data's files each usable prompt stands on. */
static void lines_write(struct worker_process *w, struct msg_out *m)
{
    int64_t(*pair)[2] = calloc(LINES_MAX, sizeof *pair), n = pair ? engine_lines(w->engine, pair, LINES_MAX) : 0;
    if (n > 0)
        msg_bin(m, "lines", pair, (size_t)n * sizeof *pair);
    free(pair);
    struct buf files = { .max = FILES_BYTES_MAX };
    engine_files(w->engine, &files);
    if (n > 0 && files.len > 0 && !files.failed)
        msg_str(m, "files", files.data);
    buf_release(&files);
}

static void done_send(struct worker_process *w, const struct report *r)
{
    struct error err;
    struct parcel *p = parcel_add(w, PARCEL_DONE);
    struct msg_out *m = &p->msg;
    p->saved = r->task_kind == TASK_SAVE;
    msg_begin(m, MSG_DONE);
    msg_str(m, "name", w->process.name);
    msg_i64(m, "task", r->task);
    msg_str(m, "kind", task_kind_name(r->task_kind));
    msg_i64(m, "incarnation", r->incarnation);
    msg_i64(m, "step", r->step);
    msg_i64(m, "rank", w->part.rank);
    msg_i64(m, "round", r->round);
    msg_bool(m, "ok", r->ok);
    if (r->task_kind == TASK_PUBLISH)
        msg_i64(m, "version", r->version);
    if (r->task_kind == TASK_LOAD && r->ok)
        lines_write(w, m);
    if (r->left)
        msg_bool(m, "left", true);
    if (r->again)
        msg_bool(m, "again", true);
    if (r->broken)
        msg_bool(m, "broken", true);
    if (!r->ok)
        msg_str(m, "code", error_code_name(r->code));
    msg_str(m, "error", r->error);
    msg_map(m, "metrics");
    for (int i = 0; i < METRIC_N; i++) {
        if (isnan(r->metric[i]))
            continue;
        BUG_IF(metrics[i].by == BY_CONTROLLER, "'%s' is the controller's to compute", metrics[i].name);
        msg_f64(m, metrics[i].name, r->metric[i]);
    }
    msg_end(m);
    if (r->n_eval > 0) {
        msg_map(m, "eval");
        for (int i = 0; i < r->n_eval; i++) {
            msg_map(m, r->evals[i].set);
            msg_i64(m, "n", r->evals[i].n);
            msg_f64(m, "mean", r->evals[i].mean);
            msg_end(m);
        }
        msg_end(m);
    }
    BUG_IF(!msg_finish(m, &err), "a report does not fit: %s", err.text);
}

static void reports_take(struct worker_process *w)
{
    struct report *r;
    struct error err;
    while ((r = engine_take(w->engine))) {
        if (r->kind == REPORT_DONE) {
            if (!r->ok)
                log_at(r->left || r->again ? LOG_WARN : LOG_ERROR, "%s: %s", task_kind_name(r->task_kind), r->error);
            done_send(w, r);
            report_free(r);
            continue;
        }
        struct parcel *p = parcel_add(w, PARCEL_SCORE);
        p->report = r;
        parcel_score_make(p);
        if (!msg_finish(&p->msg, &err)) {
            p->n_try = SCORE_TRIES;
            score_failed(w, p, &err);
        }
    }
}

/* ---- work ---- */

static void work_ask(struct worker_process *w, const struct engine_look *look, bool busy)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_WORK);
    msg_str(&m, "name", w->process.name);
    msg_i64(&m, "start", w->process.start);
    msg_i64(&m, "incarnation", w->incarnation);
    msg_i64(&m, "step", look->step);
    msg_i64(&m, "version", look->version);
    msg_i64(&m, "made", look->made);
    msg_bool(&m, "produces", w->part.producer >= 0);
    msg_bool(&m, "consumes", w->part.rank >= 0);
    msg_i64(&m, "rank", w->part.rank);
    msg_i64(&m, "round", look->round);
    msg_i64(&m, "items", look->n_item);
    msg_bool(&m, "busy", busy);
    msg_i64(&m, "n_row", look->n_row);
    msg_list(&m, "shared");
    for (int i = 0; i < look->n_shared; i++)
        msg_i64(&m, NULL, look->shared[i]);
    msg_end(&m);
    w->work_ms = clock_ms();
    if (msg_finish(&m, &err) && peer_ask(w->controller, &m, WORK_LIMIT_MS, TAG_WORK, &err))
        w->work_open = true;
    msg_release(&m);
}

static bool config_read_knobs(const struct run_config *base, const struct mval *knobs_map, struct run_config *out, struct error *err)
{
    *out = *base;
    for (int64_t i = 0; i < mval_n(knobs_map); i++) {
        size_t klen, vlen;
        char name[96], value[RUN_JSON_MAX];
        const char *k = mval_key(knobs_map, i, &klen), *v = mval_str(mval_at(knobs_map, i), &vlen);
        if (!k || !v || klen >= sizeof name || vlen >= sizeof value)
            return error_set(err, ERR_DATA, "a task's settings are not NAME and text");
        memcpy(name, k, klen);
        name[klen] = 0;
        memcpy(value, v, vlen);
        value[vlen] = 0;
        if (!run_config_set(out, name, value, FROM_COMMAND, NULL, err))
            return false;
    }
    return true;
}

static bool task_items_read(struct worker_process *w, struct task *t, const struct mval *items, struct error *err)
{
    int64_t n = mval_n(items);
    if (t->kind == TASK_ITEMS) {
        if (!(t->item = calloc((size_t)MAX(n, (int64_t)1), sizeof *t->item)))
            return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " items", n);
        t->n_item = n;
        for (int64_t i = 0; i < n; i++) {
            t->item[i].item = mval_i64(mval_get(mval_at(items, i), "item"), -1);
            t->item[i].row = mval_i64(mval_get(mval_at(items, i), "row"), -1);
        }
        return true;
    }
    free(w->fetch_item);
    w->fetch_item = calloc((size_t)MAX(n, (int64_t)1), sizeof *w->fetch_item);
    t->group = calloc((size_t)MAX(n, (int64_t)1), sizeof *t->group);
    if (!w->fetch_item || !t->group)
        return error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " groups", n);
    t->n_group = n;
    for (int64_t i = 0; i < n; i++)
        w->fetch_item[i] = mval_i64(mval_at(items, i), -1);
    return true;
}

static void work_came(struct worker_process *w, const struct msg_in *in)
{
    struct error err;
    char word[16];
    enum task_kind kind;
    if (!task_kind_find(mval_text(in->root, "kind", word, sizeof word), &kind)) {
        log_error("cannot do '%s': unknown kind of work", word);
        return;
    }
    if (kind == TASK_NONE)
        return;
    if (kind == TASK_STOP) {
        w->rest_ms = clock_ms() + REST_MS;
        return;
    }
    struct task *t = task_new(kind, &err);
    if (!t) {
        log_error("cannot do '%s': %s", word, err.text);
        return;
    }
    w->incarnation = mval_i64(mval_get(in->root, "incarnation"), -1);
    t->incarnation = w->incarnation;
    t->task = mval_i64(mval_get(in->root, "task"), 0);
    t->step = mval_i64(mval_get(in->root, "step"), -1);
    t->version = mval_i64(mval_get(in->root, "version"), -1);
    t->made = mval_i64(mval_get(in->root, "made"), 0);
    t->rollout_step = mval_i64(mval_get(in->root, "rollout_step"), -1);
    t->max_steps = mval_i64(mval_get(in->root, "max_steps"), 0);
    t->round = mval_i64(mval_get(in->root, "round"), 0);
    mval_text(in->root, "path", t->path, sizeof t->path);
    bool ok = config_read_knobs(&w->config, mval_get(in->root, "knobs"), &t->config, &err);
    if (ok && (t->kind == TASK_ITEMS || t->kind == TASK_TRAIN))
        ok = task_items_read(w, t, mval_get(in->root, "items"), &err);
    if (!ok) {
        struct report *r = report_new(t);
        report_fail(r, &err);
        done_send(w, r);
        report_free(r);
        task_free(t);
        return;
    }
    w->process.progress++;
    if (t->kind == TASK_TRAIN) {
        w->fetching = t;
        w->n_fetched = 0;
        w->fetch_ms = 0;
        return;
    }
    engine_put(w->engine, t);
}

/* ---- the groups of a train batch ---- */

static void fetch_ask(struct worker_process *w)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_FETCH);
    msg_list(&m, "items");
    for (int64_t i = w->n_fetched; i < w->fetching->n_group; i++)
        msg_i64(&m, NULL, w->fetch_item[i]);
    msg_end(&m);
    w->fetch_ms = clock_ms() + REPEAT_MS;
    if (msg_finish(&m, &err) && peer_ask(w->controller, &m, WORK_LIMIT_MS, TAG_FETCH, &err))
        w->fetch_open = true;
    msg_release(&m);
}

static void fetch_came(struct worker_process *w, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    struct task *t = w->fetching;
    w->fetch_open = false;
    if (ev->failed || !t)
        return;
    if (!msg_read_answer(&in, MSG_FETCH, ev->data, ev->len, &err)) {
        log_info("the train batch is not to be had: %s", err.text);    // the run has moved on: ask for work again
        task_free(t);
        w->fetching = NULL;
        return;
    }
    const struct mval *groups = mval_get(in.root, "groups");
    for (int64_t i = 0; i < mval_n(groups) && w->n_fetched < t->n_group; i++) {
        struct group *g = group_read(mval_at(groups, i), &err);
        if (!g || g->item != w->fetch_item[w->n_fetched]) {
            log_error("group %" PRId64 ": %s", w->fetch_item[w->n_fetched], g ? "another one came" : err.text);
            group_free(g);
            break;
        }
        t->group[w->n_fetched++] = g;
    }
    msg_in_release(&in);
    if (w->n_fetched == t->n_group) {
        w->fetching = NULL;
        engine_put(w->engine, t);
    }
}

/* ---- the loop ---- */

static void gauges_write(void *ctx, struct msg_out *m)
{
    struct worker_process *w = ctx;
    struct engine_look look;
    engine_look(w->engine, &look);
    msg_i64(m, "step", look.step);
    msg_i64(m, "version", look.version);
    msg_i64(m, "items", look.n_item);
    msg_i64(m, "running", look.n_running);
    msg_f64(m, "tok_per_s", look.tok_per_s);
    if (!isnan(look.publish_ms))
        msg_f64(m, "publish_ms", look.publish_ms);
}

static void phase_tell(struct worker_process *w, const struct engine_look *look)
{
    w->process.progress = MAX(w->process.progress, look->progress);
    if (!look->idle)
        process_phase(&w->process, look->phase, look->waits_for);
    else if (w->n_score_open > 0)
        process_phase(&w->process, "scoring", "scorer");
    else if (w->parcels || w->fetching)
        process_phase(&w->process, "waiting", "controller to take or give groups");
    else
        process_phase(&w->process, "waiting", "controller to give work");
}

static void worker_turn(struct worker_process *w)
{
    struct engine_look look;
    w->turned_ms = clock_ms();
    reports_take(w);
    parcels_send(w);
    if (w->fetching && !w->fetch_open && clock_ms() >= w->fetch_ms)
        fetch_ask(w);
    engine_look(w->engine, &look);
    phase_tell(w, &look);
    if (w->work_open || w->fetching || clock_ms() < w->rest_ms)
        return;
    bool saving_only = true;    // a report of a background save does not keep us from work
    for (const struct parcel *p = w->parcels; p; p = p->next)
        saving_only = saving_only && p->saved;
    int64_t since = clock_ms() - w->work_ms;
    if (look.idle && saving_only)
        work_ask(w, &look, false);
    else if ((look.sampling || (look.idle && w->n_score_open > 0))
             && (since > (w->config.free_running ? FREE_ASK_MS : BUSY_ASK_MS)
                 || (look.sampling && look.n_item * 4 <= look.items_max * 3 && since > FULL_ASK_MS)))
        work_ask(w, &look, true);
}

/* When the next turn has something to do though nothing has come; the engine's thread wakes us when anything of it changes. */
static int64_t worker_due(struct worker_process *w)
{
    struct engine_look look;
    int64_t due = INT64_MAX;
    for (const struct parcel *p = w->parcels; p; p = p->next)
        if (!p->open && p->again_ms > w->turned_ms)    // one that was due and has not been sent waits for an answer to another
            due = MIN(due, p->again_ms);
    if (w->fetching && !w->fetch_open)
        due = MIN(due, w->fetch_ms);
    if (w->work_open || w->fetching)
        return due;
    if (w->turned_ms < w->rest_ms)
        return MIN(due, w->rest_ms);
    engine_look(w->engine, &look);
    if (look.sampling && look.n_item * 4 <= look.items_max * 3)
        return MIN(due, w->work_ms + FULL_ASK_MS + 1);
    if (look.sampling || (look.idle && w->n_score_open > 0))
        return MIN(due, w->work_ms + (w->config.free_running ? FREE_ASK_MS : BUSY_ASK_MS) + 1);
    return look.idle ? MIN(due, w->turned_ms + REPEAT_MS) : due;    // it could not be asked for
}

static bool worker_loop(struct worker_process *w)
{
    struct net_event ev;
    struct msg_in in;
    struct error err;
    while (!process_is_over(&w->process)) {
        int n = 0;
        while (n++ < 64 && process_wait(&w->process, &ev, n == 1 ? process_pause_ms(&w->process, worker_due(w)) : 0)) {
            if (ev.kind == NET_ANSWER && ev.tag == TAG_WORK) {
                w->work_open = false;
                if (!ev.failed && msg_read_answer(&in, MSG_WORK, ev.data, ev.len, &err)) {
                    work_came(w, &in);
                    msg_in_release(&in);
                }
            } else if (ev.kind == NET_ANSWER && ev.tag == TAG_FETCH) {
                fetch_came(w, &ev);
            } else if (ev.kind == NET_ANSWER) {
                parcel_answered(w, &ev);
            }
            net_event_release(&ev);
        }
        worker_turn(w);
    }
    return true;
}

static bool worker_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = NULL;
    char path[4200];
    bool ok = false;
    struct worker_process *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(err, ERR_NO_MEMORY, "no memory for a worker");
    TRY(process_args(argc, argv, "rollcall worker", &run_dir, &name, err));
    log_component(name);
    w->incarnation = -1;
    run_config_init(&w->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    TRY(run_config_read(&w->config, path, err));
    w->config.node_only = node_here(run_dir);
    const char *device = strchr(name, ' ');    // "worker cpu:0"
    if (!device) {
        error_set(err, ERR_USAGE, "'%s' does not name a device, as 'worker cpu:0' does", name);
        goto out;
    }
    TRY(process_init(&w->process, run_dir, name, err));
    process_pace(&w->process, w->config.heartbeat_s);
    TRY(w->controller = peer_new(w->process.transport, "controller", err));
    TRY(w->scorer = peer_new(w->process.transport, "scorer", err));
    TRY(run_config_part(&w->config, device + 1, &w->part, err));
    int64_t n_thread = w->config.threads, n_device = run_config_n_device(&w->config);
    if (n_thread == 0 && n_device > 1)
        n_thread = MAX(sysconf(_SC_NPROCESSORS_ONLN) / n_device, 1);
    TRY(w->engine = engine_new(&w->config, run_dir, device + 1, (int)n_thread, wake, w, err));
    w->process.gauges = gauges_write;
    w->process.ctx = w;
    ok = worker_loop(w);
out:
    if (w->engine) {
        struct engine_look look;
        engine_look(w->engine, &look);
        if (!look.idle)    // in the middle of a computation that nobody wants any more
            _exit(ok ? 0 : 1);
    }
    engine_free(w->engine);
    while (w->parcels)
        parcel_free(w, w->parcels);
    task_free(w->fetching);
    free(w->fetch_item);
    process_release(&w->process);
    free(w);
    return ok;
}

const struct subcommand worker_subcommand = { "worker", worker_cmd, NULL };
