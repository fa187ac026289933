/* rollcall environments (internal): the door of a run that trains on what environments post
 *
 * To environments it is Atropos' API server (atropos_routes.h), or the trainer of another such server that they post to
 * (atropos_client.h): a batch fetched there is posted here. To the controller it is a worker that produces: it asks for work,
 * and each item it is given gets the oldest posted group that waits. Two threads share the posted groups under door.lock:
 * the HTTP server's (or the client's) posts and answers, this one gives groups to items.
 *
 * Each group is trained on once:
 * 1. A post is answered when it is in the log, RUN/environments (atropos_log.h).
 * 2. That a group belongs to an item is in the log before the group is sent. After a kill the same group is sent for the same item,
 *    and the controller recognises the item.
 * 3. The group leaves the log when the controller has acknowledged it, so it is in the rollout file and the journal by then. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/bearer.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/base/secret.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/tcp.h"
#include "protocol/base/utf8.h"
#include "protocol/record/drawn_book.h"
#include "protocol/record/group_msg.h"
#include "protocol/run/run_state.h"
#include "protocol/settings/run_config.h"
#include "workers/atropos/atropos.h"
#include "workers/atropos/atropos_client.h"
#include "workers/atropos/atropos_group.h"
#include "workers/atropos/atropos_routes.h"
#include "workers/engine/model/config.h"
#include "workers/engine/text/tokenizer.h"
#include "workers/engine/trainer/loss.h"
#include "workers/http/web.h"
#include "workers/process/process.h"

#define GROUPS_BYTES ((size_t)1 << 30)    // that wait; more are answered with 503
#define BODY_BYTES ((size_t)64 << 20)     // of one post
#define CONNECTIONS 512
#define ENV_EXPIRE_MS 120000
#define ENV_SILENT_S 30    // one that has neither asked nor posted for so long is called slow
#define ENVS_SHOWN 32
#define WORK_LIMIT_MS 15000    // the controller holds a request for work for 2 s
#define GROUP_LIMIT_MS 20000
#define ASK_MS 1000       // between two requests for work while items wait for groups: a sign of life
#define ROOM_ASK_MS 20    // the same when there is room for more
#define REPEAT_MS 200     // before another try to send something
#define REST_MS 1000      // at the end of a run
#define LEASE_MAX 1024    // items at once

/* An item that the controller gave. */
struct lease {
    int64_t item;
    bool has_group;    // which is in msg
    struct msg_out msg;
    bool open;           // it is being sent
    int64_t again_ms;    // not to be sent before
    uint64_t tag;
};
struct door {
    struct process process;
    struct peer *controller;
    struct run_config config;
    struct posted_rules rules;
    struct drawn_book *book;    // owned; NULL: none can be opened
    pthread_mutex_t lock;       // guards: routes.state, step, n_hungry, hindrance
    struct atropos_door routes;
    struct web *web;                  // one of these two
    struct atropos_client *client;    //
    int64_t step;                     // the run's, as last heard
    int n_hungry;                     // items without a group, for the client
    char hindrance[160];              // what the client waits for; "": a batch
    /* used by the loop */
    struct lease lease[LEASE_MAX];
    int n_lease;
    int64_t incarnation, version, made, loaded;    // as the controller said; -1: not yet
    bool work_open, done_open;
    struct msg_out done;    // a report that is still to be answered; empty: none
    int64_t work_ms, rest_ms, done_ms;
    uint64_t next_tag;
    int64_t n_group;    // that the controller has taken
};
enum {
    TAG_WORK = 1,
    TAG_DONE = 2,
    TAG_FIRST = 16,
};

/* The version of the weights that drew a posted group: what the group names; else what a server of this run drew its tokens with; else the
 * oldest that the servers have which the run gives weights to; else the run's own. */
static int64_t version_of(const struct door *d, const struct scored *posted, const struct group *g)
{
    int64_t version = posted_version(posted, d->step);
    version = version >= 0 ? version : drawn_book_find(d->book, g);    // which may be newer than the step that was last heard of
    version = version >= 0 ? version : drawn_book_given(d->book);
    return version >= 0 ? version : d->step;
}

/* ---- called by the routes, with the lock held */
static bool group_fits(void *ctx, struct scored *g, struct error *err)
{
    struct door *d = ctx;
    struct group *made = posted_group(g, &d->rules, 0, err);
    if (made)
        g->version = version_of(d, g, made);
    group_free(made);
    return made;
}

static void groups_posted(void *ctx)
{
    process_wake(&((struct door *)ctx)->process);
}

/* ---- called by the client's thread */
static bool batch_wanted(void *ctx, int64_t *step)
{
    struct door *d = ctx;
    pthread_mutex_lock(&d->lock);
    *step = d->step;
    bool wanted = d->n_hungry > 0 && atropos_queued(d->routes.state) == 0;    // more would only age here
    pthread_mutex_unlock(&d->lock);
    return wanted;
}

/* Drop the groups that cannot be trained on: there is nobody to tell but the operator. Lock held. */
static void groups_sift(struct door *d, struct scored **g, int64_t *n)
{
    struct error err, why = { 0 };
    int64_t kept = 0, came = *n;
    for (int64_t i = 0; i < came; i++) {
        if (group_fits(d, g[i], &err)) {
            g[kept++] = g[i];
        } else {
            why = kept == i ? err : why;    // the first
            atropos_refused(d->routes.state, g[i]->env_id, err.text);
            scored_drop(g[i]);
        }
    }
    *n = kept;
    if (kept < came)
        log_warn("%" PRId64 " of a batch's %" PRId64 " groups cannot be trained on; the first: %s", came - kept, came, why.text);
}

static bool batch_take(void *ctx, struct scored **g, int64_t *n, struct error *err)
{
    struct door *d = ctx;
    struct atropos_posted posted;
    pthread_mutex_lock(&d->lock);
    groups_sift(d, g, n);
    for (int64_t i = 0; i < *n; i++)
        scored_hold(g[i]);    // the state's references; the client's are dropped when it has them
    bool ok = *n == 0 || atropos_post(d->routes.state, g, *n, &posted, err);
    for (int64_t i = 0; ok && i < *n; i++)
        scored_drop(g[i]);
    pthread_mutex_unlock(&d->lock);
    process_wake(&d->process);
    return ok;
}

static void client_says(void *ctx, const char *text)
{
    struct door *d = ctx;
    pthread_mutex_lock(&d->lock);
    snprintf(d->hindrance, sizeof d->hindrance, "%s", text);
    pthread_mutex_unlock(&d->lock);
    process_wake(&d->process);
}

/* ---- groups for items */
static void lease_drop(struct door *d, struct lease *l)
{
    msg_release(&l->msg);
    d->n_lease--;
    memmove(l, l + 1, (size_t)(d->lease + d->n_lease - l) * sizeof *l);    // in order, as groups are given to them
}

static void lease_add(struct door *d, int64_t item)
{
    for (int i = 0; i < d->n_lease; i++)
        if (d->lease[i].item == item)
            return;
    if (d->n_lease < LEASE_MAX)
        d->lease[d->n_lease++] = (struct lease){ .item = item, .msg = MSG_OUT_INIT, .tag = TAG_FIRST + d->next_tag++ };
}

static void group_put(const struct door *d, struct lease *l, const struct group *g)
{
    msg_begin(&l->msg, MSG_GROUP);
    msg_i64(&l->msg, "incarnation", d->incarnation);
    group_write(&l->msg, g, NULL);
}

/* The oldest group that waits is the item's. False: none waits. */
static bool lease_fill(struct door *d, struct lease *l)
{
    struct error err;
    const struct scored *posted;
    struct group *g = NULL;
    pthread_mutex_lock(&d->lock);
    bool ok = atropos_take(d->routes.state, l->item, &posted, &err), none = ok && !posted;
    if (ok && posted)
        g = posted_group(posted, &d->rules, l->item, &err);
    if (ok && posted && !g && err.code == ERR_DATA) {    // it was accepted by an earlier version's rules
        log_warn("item %" PRId64 " is left out: the group that was posted for it cannot be trained on: %s", l->item, err.text);
        g = posted_none(l->item, posted->version, &err);
    }
    pthread_mutex_unlock(&d->lock);
    if (none)
        return false;
    if (!g) {
        log_warn("item %" PRId64 " gets no group: %s", l->item, err.text);
        return false;
    }
    group_put(d, l, g);
    group_free(g);
    l->has_group = msg_finish(&l->msg, &err);
    if (!l->has_group)
        log_error("the group of item %" PRId64 " cannot be sent: %s", l->item, err.text);
    d->process.progress++;
    return l->has_group;
}

static void leases_tick(struct door *d)
{
    struct error err;
    int64_t now = clock_ms();
    bool none = false;
    int n_hungry = 0;
    for (int i = 0; i < d->n_lease; i++) {
        struct lease *l = &d->lease[i];
        if (!l->has_group && (none || !lease_fill(d, l))) {
            none = true;    // the oldest group is the oldest item's
            n_hungry++;
            continue;
        }
        if (l->open || now < l->again_ms)
            continue;
        l->open = peer_ask(d->controller, &l->msg, GROUP_LIMIT_MS, l->tag, &err);
        l->again_ms = now + REPEAT_MS;
    }
    pthread_mutex_lock(&d->lock);
    bool hungrier = n_hungry > 0 && d->n_hungry == 0;
    d->n_hungry = n_hungry;
    pthread_mutex_unlock(&d->lock);
    if (hungrier)
        atropos_client_wake(d->client);
}

/* The controller has taken an item's group, or does not want it. */
static void group_answered(struct door *d, const struct net_event *ev)
{
    struct msg_in in;
    struct error err;
    struct lease *l = NULL;
    for (int i = 0; i < d->n_lease && !l; i++)
        l = d->lease[i].tag == ev->tag ? &d->lease[i] : NULL;
    if (!l)
        return;
    l->open = false;
    l->again_ms = clock_ms() + REPEAT_MS;
    if (ev->failed)
        return;    // sent again
    bool taken = msg_read_answer(&in, MSG_GROUP, ev->data, ev->len, &err);
    pthread_mutex_lock(&d->lock);
    if (taken) {
        atropos_sent(d->routes.state, l->item, true);
        d->n_group++;
    } else {
        struct error why;
        log_info("item %" PRId64 " is not wanted, so its group waits for another one: %s", l->item, err.text);
        if (!atropos_give_back(d->routes.state, l->item, &why))
            log_error("the group of item %" PRId64 " cannot be given back: %s", l->item, why.text);
    }
    pthread_mutex_unlock(&d->lock);
    if (taken)
        msg_in_release(&in);
    d->process.progress++;
    lease_drop(d, l);
}

/* ---- work */
static void work_ask(struct door *d)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_WORK);
    msg_str(&m, "name", d->process.name);
    msg_i64(&m, "start", d->process.start);
    msg_i64(&m, "incarnation", d->incarnation);
    msg_i64(&m, "step", d->loaded);
    msg_i64(&m, "version", d->version);
    msg_i64(&m, "made", d->made);
    msg_bool(&m, "produces", true);
    msg_bool(&m, "consumes", false);
    msg_i64(&m, "items", d->n_lease);
    msg_bool(&m, "busy", d->n_lease > 0);
    struct atropos_look all, one;
    char refusal[ATROPOS_REFUSAL_MAX];
    pthread_mutex_lock(&d->lock);
    atropos_looks(d->routes.state, &one, 0, &all);
    snprintf(refusal, sizeof refusal, "%s", atropos_refusal(d->routes.state));
    int64_t n_env = atropos_n_env(d->routes.state);
    pthread_mutex_unlock(&d->lock);
    msg_map(&m, "posted");
    msg_i64(&m, "environments", n_env);
    msg_f64(&m, "per_min", all.per_min);
    msg_i64(&m, "waiting", all.n_waiting);
    msg_f64(&m, "age", all.age);
    msg_i64(&m, "refused", all.n_refused);
    msg_str(&m, "refusal", refusal);
    msg_i64(&m, "full", all.n_full);
    msg_end(&m);
    d->work_ms = clock_ms();
    if (msg_finish(&m, &err) && peer_ask(d->controller, &m, WORK_LIMIT_MS, TAG_WORK, &err))
        d->work_open = true;
    msg_release(&m);
}

/* Report that a task has ended; there is nothing to load or to publish here. */
static void done_put(struct door *d, const struct mval *task, enum task_kind kind)
{
    struct error err;
    struct msg_out *m = &d->done;
    msg_release(m);
    *m = MSG_OUT_INIT;
    msg_begin(m, MSG_DONE);
    msg_str(m, "name", d->process.name);
    msg_i64(m, "task", mval_i64(mval_get(task, "task"), 0));
    msg_str(m, "kind", task_kind_name(kind));
    msg_i64(m, "incarnation", d->incarnation);
    msg_i64(m, "step", mval_i64(mval_get(task, "step"), 0));
    msg_i64(m, "rank", -1);
    msg_i64(m, "round", mval_i64(mval_get(task, "round"), 0));
    msg_bool(m, "ok", true);
    if (kind == TASK_PUBLISH)
        msg_i64(m, "version", d->version);
    msg_map(m, "metrics");
    msg_end(m);
    BUG_IF(!msg_finish(m, &err), "a report does not fit: %s", err.text);
}

static void leases_cancel(struct door *d)
{
    for (int i = d->n_lease - 1; i >= 0; i--)
        if (!d->lease[i].has_group)    // the others are on their way, and are known or refused
            lease_drop(d, &d->lease[i]);
}

static void items_came(struct door *d, const struct mval *items)
{
    for (int64_t i = 0; i < mval_n(items); i++)
        lease_add(d, mval_i64(mval_get(mval_at(items, i), "item"), -1));
}

static void work_came(struct door *d, const struct mval *task)
{
    char word[16];
    enum task_kind kind;
    int64_t step = mval_i64(mval_get(task, "step"), -1);
    if (!task_kind_find(mval_text(task, "kind", word, sizeof word), &kind)) {
        log_error("cannot do '%s': unknown kind of work", word);
        return;
    }
    d->incarnation = mval_i64(mval_get(task, "incarnation"), d->incarnation);
    if (kind == TASK_STOP) {
        d->rest_ms = clock_ms() + REST_MS;
    } else if (kind == TASK_CANCEL) {
        leases_cancel(d);
    } else if (kind == TASK_ITEMS) {
        items_came(d, mval_get(task, "items"));
    } else if (kind == TASK_LOAD || kind == TASK_PUBLISH) {
        d->version = kind == TASK_LOAD ? 0 : mval_i64(mval_get(task, "version"), 0);
        d->made = mval_i64(mval_get(task, "made"), 0);
        d->loaded = 0;
        done_put(d, task, kind);
    }
    if ((kind == TASK_NONE || kind == TASK_PUBLISH) && step >= 0) {
        pthread_mutex_lock(&d->lock);
        if (step < d->step)    // the run has gone back, so versions have another meaning
            drawn_book_clear(d->book);
        d->step = step;
        atropos_step_set(d->routes.state, step);
        pthread_mutex_unlock(&d->lock);
    }
}

static void answer_came(struct door *d, const struct net_event *ev)
{
    struct msg_in in;
    struct error err;
    if (ev->tag >= TAG_FIRST) {
        group_answered(d, ev);
    } else if (ev->tag == TAG_DONE) {
        d->done_open = false;
        if (!ev->failed)
            msg_release(&d->done);    // taken, or not wanted any more
    } else {
        d->work_open = false;
        if (ev->failed || !msg_read_answer(&in, MSG_WORK, ev->data, ev->len, &err))
            return;
        work_came(d, in.root);
        msg_in_release(&in);
    }
}

static int64_t ask_pause_ms(const struct door *d)
{
    return d->n_lease * 4 <= d->config.inference_microbatch_size * 3 ? ROOM_ASK_MS : ASK_MS;
}

static void work_tick(struct door *d)
{
    struct error err;
    int64_t now = clock_ms();
    if (d->done.buf.len > 0 && !d->done_open && now >= d->done_ms) {
        d->done_open = peer_ask(d->controller, &d->done, GROUP_LIMIT_MS, TAG_DONE, &err);
        d->done_ms = now + REPEAT_MS;
    }
    if (d->work_open || d->done.buf.len > 0 || now < d->rest_ms)
        return;
    if (d->n_lease == 0 ? now - d->work_ms >= ROOM_ASK_MS : now - d->work_ms >= ask_pause_ms(d))
        work_ask(d);
}

static int64_t door_due(const struct door *d)
{
    int64_t due = d->work_open ? INT64_MAX : MAX(d->work_ms + (d->n_lease ? ask_pause_ms(d) : ROOM_ASK_MS), d->rest_ms);
    if (d->done.buf.len > 0 && !d->done_open)
        due = MIN(due, d->done_ms);
    for (int i = 0; i < d->n_lease; i++)
        if (d->lease[i].has_group && !d->lease[i].open)
            due = MIN(due, d->lease[i].again_ms);
    return due;
}

static void door_tell(struct door *d)
{
    bool sends = false;
    char hindrance[sizeof d->hindrance];
    pthread_mutex_lock(&d->lock);
    memcpy(hindrance, d->hindrance, sizeof hindrance);
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < d->n_lease; i++)
        sends = sends || d->lease[i].has_group;
    if (sends)
        process_phase(&d->process, "waiting", "controller to take groups");
    else if (d->n_lease > 0 && d->client)
        process_phase(&d->process, "waiting", hindrance[0] ? hindrance : "the Atropos API to form a batch");
    else if (d->n_lease > 0)
        process_phase(&d->process, "waiting", "environments to post groups");
    else
        process_phase(&d->process, "waiting", "controller to give items");
}

static void door_loop(struct door *d)
{
    struct net_event ev;
    while (!process_is_over(&d->process)) {
        int n = 0;
        int64_t due = door_due(d);
        while (n++ < 64 && process_wait(&d->process, &ev, n == 1 ? process_pause_ms(&d->process, due) : 0)) {
            if (ev.kind == NET_ANSWER)
                answer_came(d, &ev);
            net_event_release(&ev);
        }
        leases_tick(d);
        work_tick(d);
        door_tell(d);
    }
}

/* What came, as figures of an open map. */
static void look_write(struct msg_out *m, const struct atropos_look *l)
{
    msg_i64(m, "groups", l->n_group);
    msg_f64(m, "per minute", l->per_min);
    msg_i64(m, "waiting", l->n_waiting);
    if (!isnan(l->age))
        msg_f64(m, "steps old", l->age);
    msg_i64(m, "refused", l->n_refused);
    msg_i64(m, "had no room", l->n_full);
}

static void gauges_write(void *ctx, struct msg_out *m)
{
    struct door *d = ctx;
    struct atropos_look all, one;
    pthread_mutex_lock(&d->lock);
    int64_t n_env = atropos_n_env(d->routes.state);
    atropos_looks(d->routes.state, &one, 0, &all);
    pthread_mutex_unlock(&d->lock);
    msg_i64(m, "environments", n_env);
    look_write(m, &all);
    msg_i64(m, "items", d->n_lease);
    msg_i64(m, "trained on", d->n_group);
}

/* A row for each environment among the processes, though they are other people's: what the operator wants to know is the same. */
static void environments_write(void *ctx, struct msg_out *m)
{
    struct door *d = ctx;
    struct atropos_look all, one[ENVS_SHOWN];
    char name[64];
    msg_list(m, "processes");
    pthread_mutex_lock(&d->lock);
    int64_t n = atropos_looks(d->routes.state, one, ENVS_SHOWN, &all);
    for (int64_t i = 0; i < n; i++) {
        bool silent = one[i].silent_s > ENV_SILENT_S;
        utf8_copy(name, sizeof name, one[i].name, strlen(one[i].name));
        msg_map(m, NULL);
        msg_str(m, "name", name);
        msg_str(m, "kind", "environment");
        msg_i64(m, "pid", 0);
        msg_str(m, "phase", !one[i].counts ? "gone" : silent ? "silent" : "posting");
        msg_f64(m, "phase_s", one[i].silent_s);
        msg_f64(m, "progress", (double)one[i].n_group);
        msg_str(m, "waits_for", "");
        msg_str(m, "verdict", one[i].counts && silent ? "slow" : "ok");
        msg_f64(m, "heard_s", one[i].silent_s);
        msg_i64(m, "restarts", 0);
        msg_map(m, "gauges");
        look_write(m, &one[i]);
        msg_end(m);
        msg_end(m);
    }
    pthread_mutex_unlock(&d->lock);
    msg_end(m);
}

/* ---- starting */
/* What the run is to environments: their trainer. */
static void trainer_of(const struct door *d, struct atropos_trainer *t)
{
    const struct run_config *c = &d->config;
    *t = (struct atropos_trainer){ .batch_size = c->train_batch_size * c->num_trainers * c->num_generations,
                                   .max_token_len = d->rules.max_seq_tok,
                                   .save_interval = c->save_interval,
                                   .num_steps = c->max_steps };
    snprintf(t->group, sizeof t->group, "%s", c->wandb_group[0] ? c->wandb_group : c->name);
    snprintf(t->project, sizeof t->project, "%s", c->project);
    snprintf(t->checkpoint_dir, sizeof t->checkpoint_dir, "%s", c->save_dir[0] ? c->save_dir : d->process.run_dir);
}

static bool state_open(struct door *d, struct error *err)
{
    char dir[4200];
    int64_t taken[LEASE_MAX];
    struct atropos_trainer t;
    struct atropos_config config = { .dir = dir, .max_bytes = GROUPS_BYTES, .env_expire_ms = ENV_EXPIRE_MS };
    snprintf(dir, sizeof dir, "%s/environments", d->process.run_dir);
    trainer_of(d, &t);
    if (!(d->routes.state = atropos_new(&config, err)) || !atropos_begin(d->routes.state, &t, err))
        return false;
    for (int64_t i = 0, n = atropos_taken(d->routes.state, taken, LEASE_MAX); i < n; i++)
        lease_add(d, taken[i]);    // sent, and perhaps taken, before this process began
    return true;
}

static bool web_open(struct door *d, const struct environments *e, char token[BEARER_MAX], struct error *err)
{
    struct web_config config = { .address = e->listen,
                                 .allowed_hosts = d->config.allowed_hosts,
                                 .lock = &d->lock,
                                 .token = e->token_file[0] ? token : NULL,
                                 .max_connections = CONNECTIONS,
                                 .max_body_bytes = BODY_BYTES,
                                 .max_bodies_bytes = 8 * BODY_BYTES,
                                 .head_ms = 15000,
                                 .body_ms = 60000,
                                 .idle_ms = 75000 };
    atropos_routes_set(&config, &d->routes);
    if (e->token_file[0]) {
        secret_process();
        if (!bearer_read(token, e->token_file, err))
            return false;
    }
    if ((config.listen_fd = tcp_listen(e->listen, err)) < 0 || !(d->web = web_new(&config, err)))
        return error_wrap(err, "environments cannot post at '%s'", e->listen);
    log_info("environments post at http://%s", e->listen);
    return true;
}

static bool client_open(struct door *d, const struct environments *e, struct error *err)
{
    struct atropos_client_config config = { .url = e->url,
                                            .token_file = e->token_file[0] ? e->token_file : NULL,
                                            .wants = batch_wanted,
                                            .take = batch_take,
                                            .says = client_says,
                                            .ctx = d };
    trainer_of(d, &config.trainer);
    if (e->token_file[0])
        secret_process();
    return (d->client = atropos_client_new(&config, err)) != NULL;
}

static void door_free(struct door *d)
{
    atropos_client_free(d->client);
    if (d->web)
        web_close(d->web);
    web_free(d->web);
    while (d->n_lease > 0)
        lease_drop(d, &d->lease[0]);
    msg_release(&d->done);
    atropos_free(d->routes.state);
    drawn_book_close(d->book);
    process_release(&d->process);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static void book_open(struct door *d)
{
    struct error err;
    char path[4200];
    if (!drawn_book_path(&d->config, d->process.run_dir, path, sizeof path))
        return;
    if (!(d->book = drawn_book_open(path, &err)))
        log_warn("groups without 'weight_version' are dated by their arrival: %s", err.text);
}

static bool environments_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = NULL;
    char path[4200], token[BEARER_MAX];
    struct environments e;
    struct model_config shape;
    struct tokenizer *tokenizer;
    struct trainer_hyper hyper;
    bool ok = false;
    struct door *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(err, ERR_NO_MEMORY, "no memory for the environments' door");
    d->done = MSG_OUT_INIT;
    d->incarnation = d->version = d->loaded = -1;
    pthread_mutex_init(&d->lock, NULL);
    TRY(process_args(argc, argv, "rollcall environments", &run_dir, &name, err));
    log_component(name);
    run_config_init(&d->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    TRY(run_config_read(&d->config, path, err) && run_config_environments(&d->config, &e, err));
    TRY(config_load(&shape, d->config.model, err));
    TRY(tokenizer = tokenizer_load(run_config_tokenizer(&d->config), err));
    trainer_hyper_of(&hyper, &d->config, 0, d->config.max_steps);
    d->rules = (struct posted_rules){ .max_seq_tok = d->config.max_prompt_tokens + d->config.max_new_tokens,
                                      .n_id = MIN((int64_t)tokenizer_n_id(tokenizer), shape.vocab),
                                      .needs_logp = loss_needs_sampled(&hyper) };
    tokenizer_free(tokenizer);
    d->routes = (struct atropos_door){ .run = d->config.name, .ctx = d, .check = group_fits, .posted = groups_posted };
    TRY(process_init(&d->process, run_dir, name, err));
    process_pace(&d->process, d->config.heartbeat_s);
    TRY(!d->config.enable_profiling || process_profile(&d->process, err));
    TRY(d->controller = peer_new(d->process.transport, "controller", err));
    TRY(state_open(d, err));
    book_open(d);
    TRY(e.url[0] ? client_open(d, &e, err) : web_open(d, &e, token, err));
    d->process.gauges = gauges_write;
    d->process.nodes = environments_write;
    d->process.ctx = d;
    door_loop(d);
    ok = true;
out:
    door_free(d);
    return ok;
}

const struct subcommand environments_subcommand = { "environments", environments_cmd, NULL };
