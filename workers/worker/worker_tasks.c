/* worker_tasks.c - asking for work, and the tasks that come; see worker_cmd.c for when it is asked for */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/record/group_msg.h"
#include "workers/worker/worker_parts.h"

#define SERVERS_TOLD_MAX 16
#define WORK_LIMIT_MS 15000    // the controller holds a request for work for 2 s
#define BUSY_ASK_MS 1000       // while it samples; also serves as a sign of life
#define FULL_ASK_MS 10         // while it samples, and has room for a quarter more, or for another version
#define FREE_ASK_MS 50         // the same where news may come in between: free-running new weights, with over_sample_rate tails
#define REST_MS 1000           // at the end of a run: a controller killed then ends the run once more, and needs the worker for that

/* The servers outside that have not got the newest weights, which only the first trainer knows. */
static void servers_write(struct worker_process *w, struct msg_out *m)
{
    struct engine_server s[SERVERS_TOLD_MAX];
    int n = engine_servers(w->engine, s, ARRAY_SIZE(s));
    msg_list(m, "servers");
    for (int i = 0; i < n; i++) {
        msg_map(m, NULL);
        msg_str(m, "name", s[i].name);
        msg_str(m, "trouble", s[i].trouble);
        msg_f64(m, "behind_s", s[i].behind_s);
        msg_end(m);
    }
    msg_end(m);
}

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
    if (look->ending >= 0) {
        msg_i64(&m, "ending", look->ending);
        msg_i64(&m, "ending_made", look->ending_made);
    }
    msg_bool(&m, "gap", look->gap);
    msg_bool(&m, "produces", w->part.producer >= 0 && !look->away);
    msg_bool(&m, "consumes", w->part.rank >= 0);
    msg_i64(&m, "rank", w->part.rank);
    msg_i64(&m, "round", look->round);
    msg_i64(&m, "saves", look->saves);
    msg_i64(&m, "items", look->n_item);
    msg_bool(&m, "busy", busy);
    msg_i64(&m, "n_row", look->n_row);
    msg_i64(&m, "n_id", look->n_id);
    msg_list(&m, "shared");
    for (int i = 0; i < look->n_shared; i++)
        msg_i64(&m, NULL, look->shared[i]);
    msg_end(&m);
    msg_i64(&m, "keeps", look->n_keeps);
    if (run_config_posted(&w->config) && w->part.rank == 0)
        servers_write(w, &m);
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
            size_t len;
            const char *rubrics = mval_str(mval_get(mval_at(items, i), "rubrics"), &len);
            if (rubrics && !(t->item[i].rubrics = strndup(rubrics, len)))
                return error_set(err, ERR_NO_MEMORY, "no memory for the rubrics of item %" PRId64, t->item[i].item);
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

/* The task that in describes; on failure it holds what could be read. */
static bool task_read(struct worker_process *w, struct task *t, const struct msg_in *in, struct error *err)
{
    t->incarnation = w->incarnation;
    t->task = mval_i64(mval_get(in->root, "task"), 0);
    t->step = mval_i64(mval_get(in->root, "step"), -1);
    t->version = mval_i64(mval_get(in->root, "version"), -1);
    t->made = mval_i64(mval_get(in->root, "made"), 0);
    t->rollout_step = mval_i64(mval_get(in->root, "rollout_step"), -1);
    t->level = mval_i64(mval_get(in->root, "level"), -1);
    t->max_steps = mval_i64(mval_get(in->root, "max_steps"), 0);
    t->round = mval_i64(mval_get(in->root, "round"), 0);
    t->save = mval_i64(mval_get(in->root, "save"), 0);
    t->eval = mval_i64(mval_get(in->root, "eval"), 0);
    t->part = mval_i64(mval_get(in->root, "part"), 0);
    t->n_part = MAX(mval_i64(mval_get(in->root, "parts"), 1), (int64_t)1);
    mval_text(in->root, "path", t->path, sizeof t->path);
    return config_read_knobs(&w->config, mval_get(in->root, "knobs"), &t->config, err)
           && ((t->kind != TASK_ITEMS && t->kind != TASK_TRAIN) || task_items_read(w, t, mval_get(in->root, "items"), err));
}

static void tails_read(struct worker_process *w, const struct mval *list)
{
    struct tail tail[TAIL_MAX];
    int n = (int)MIN(mval_n(list) / 2, (int64_t)TAIL_MAX);
    for (int i = 0; i < n; i++)
        tail[i] = (struct tail){ mval_i64(mval_at(list, 2 * i), -1), mval_i64(mval_at(list, 2 * i + 1), INT64_MAX) };
    if (w->config.over_sample_rate > 0)
        engine_tails(w->engine, tail, n);
}

static void dropped_read(struct worker_process *w, const struct mval *list)
{
    int64_t item[DROPPED_TOLD_MAX];
    int n = (int)MIN(mval_n(list), (int64_t)DROPPED_TOLD_MAX);
    for (int i = 0; i < n; i++)
        item[i] = mval_i64(mval_at(list, i), -1);
    engine_dropped(w->engine, item, n);
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
    tails_read(w, mval_get(in->root, "tails"));
    dropped_read(w, mval_get(in->root, "dropped"));
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
    if (!task_read(w, t, in, &err)) {
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

void tasks_answered(struct worker_process *w, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    w->work_open = false;
    if (ev->failed || !msg_read_answer(&in, MSG_WORK, ev->data, ev->len, &err))
        return;
    work_came(w, &in);
    msg_in_release(&in);
}

/* ---- the groups of a train batch ---- */

static void fetch_ask(struct worker_process *w)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_FETCH);
    msg_str(&m, "name", w->process.name);    // or the gate would take what two trainers of a node ask for one request that is repeated
    msg_list(&m, "items");
    for (int64_t i = w->n_fetched; i < w->fetching->n_group; i++)
        msg_i64(&m, NULL, w->fetch_item[i]);
    msg_end(&m);
    w->fetch_ms = clock_ms() + REPEAT_MS;
    if (msg_finish(&m, &err) && peer_ask(w->controller, &m, WORK_LIMIT_MS, TAG_FETCH, &err))
        w->fetch_open = true;
    msg_release(&m);
}

void groups_answered(struct worker_process *w, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    struct task *t = w->fetching;
    w->fetch_open = false;
    if (ev->failed || !t)
        return;
    if (!msg_read_answer(&in, MSG_FETCH, ev->data, ev->len, &err)) {
        log_info("the train batch is not to be had: %s", err.text);    // the run has moved on, so ask for work again
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

/* ---- when ---- */

/* While the engine has work: time from the last request until the next is due. -1: no more work is wanted. */
static int64_t ask_pause_ms(const struct worker_process *w, const struct engine_look *look)
{
    if (look->taking && !w->config.free_running)    // what it asks for depends on the version
        return -1;
    if (look->sampling && (look->gap || look->n_item * 4 <= look->items_max * 3))
        return FULL_ASK_MS;
    if (look->sampling || (look->idle && w->n_score_open > 0))
        return w->config.free_running || w->config.over_sample_rate > 0 ? FREE_ASK_MS : BUSY_ASK_MS;
    return -1;
}

/* Is nothing on the way except reports of checkpoints? Those are written in the background and do not delay work. */
static bool only_saves(const struct worker_process *w)
{
    bool only = true;
    for (const struct parcel *p = w->parcels; p; p = p->next)
        only = only && p->saved;
    return only;
}

void tasks_tick(struct worker_process *w, const struct engine_look *look)
{
    int64_t now = clock_ms();
    if (w->fetching && !w->fetch_open && now >= w->fetch_ms)
        fetch_ask(w);
    if (w->work_open || w->fetching || now < w->rest_ms)
        return;
    int64_t pause_ms = ask_pause_ms(w, look);
    if (look->idle && only_saves(w))
        work_ask(w, look, false);
    else if (pause_ms >= 0 && now - w->work_ms > pause_ms)
        work_ask(w, look, true);
}

int64_t tasks_due(const struct worker_process *w)
{
    struct engine_look look;
    if (w->fetching)
        return w->fetch_open ? INT64_MAX : w->fetch_ms;
    if (w->work_open)
        return INT64_MAX;
    if (w->turned_ms < w->rest_ms)
        return w->rest_ms;
    engine_look(w->engine, &look);
    int64_t pause_ms = ask_pause_ms(w, &look);
    if (pause_ms >= 0)
        return w->work_ms + pause_ms + 1;
    return look.idle ? w->turned_ms + REPEAT_MS : INT64_MAX;    // idle: the request could not be sent
}
