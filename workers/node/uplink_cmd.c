/* uplink_cmd.c - the node's connection to its head: see node.h
 *
 * Answers on the socket `controller` of the node's folder, as a controller would, and forwards to the head: requests for work and
 * reports under the node's name, groups unchanged. An order to sample with new weights is held back until the weights have been
 * fetched; the worker may ask again meanwhile, and its newest request gets the order. It reports the run's state to its own agent
 * in its heartbeat, so the node ends with the run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/base/subcommand.h"
#include "protocol/run/run_failure.h"
#include "protocol/run/run_state.h"
#include "protocol/settings/knobs.h"
#include "protocol/wire/join_token.h"
#include "workers/node/uplink_parts.h"
#include "workers/node/weights_fetch.h"

#define LOOK_MS 1000    // the loop turns at least this often
#define N_OPEN 160
#define WORK_LIMIT_MS 13000
#define GROUP_LIMIT_MS 19000    // the worker asks again after 20 s
#define QUESTION_LIMIT_MS 10000
#define FAREWELL_MS 2000

/* ---- the workers' requests ---- */

/* The request with the worker's name as the head knows it, and what the node itself adds. */
static bool renamed(struct uplink *u, const struct msg_in *in, struct msg_out *m, struct error *err)
{
    char name[64], full[120];
    mval_text(in->root, "name", name, sizeof name);
    snprintf(full, sizeof full, "%s/%s", u->node.name, name);
    *m = MSG_OUT_INIT;
    msg_begin(m, in->type);
    msg_copy_but(m, in->root, " v t name fetched ");
    msg_str(m, "name", full);
    if (in->type == MSG_DONE && mval_bool(mval_get(in->root, "ok"), false))
        weights_fetched_write(u, mval_i64(mval_get(in->root, "version"), -1), m);
    return msg_finish(m, err);
}

static void work_asked(struct uplink *u, struct net_event *ev, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    if (weights_order_asked(u, ev, in))
        return;
    if (renamed(u, in, &m, &err) && relay_add(&u->relays, u->head, ev->request, MSG_WORK, &m, WORK_LIMIT_MS, "", &err))
        ev->request = NULL;
    else
        request_refuse(ev->request, &err);
    msg_release(&m);
}

/* A task that has failed here does not fail the run: the node ends. */
static void task_failed(struct uplink *u, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    char name[64], kind[16], why[300], text[400];
    mval_text(in->root, "name", name, sizeof name);
    mval_text(in->root, "kind", kind, sizeof kind);
    mval_text(in->root, "error", why, sizeof why);
    snprintf(text, sizeof text, "%s: %s: %s", name, kind, why);
    node_end(u, run_state_name(RUN_FAILED), text);
    msg_begin(&m, MSG_OK);
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    else
        request_refuse(r, &err);
    msg_release(&m);
}

static void pass_on(struct uplink *u, struct net_event *ev, const struct msg_in *in, bool rename, int64_t limit_ms)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    bool ok = rename ? renamed(u, in, &m, &err)
                     : buf_add(&m.buf, ev->data, ev->len) || error_set(&err, ERR_NO_MEMORY, "no memory to pass on %zu bytes", ev->len);
    if (ok && relay_add(&u->relays, u->head, ev->request, in->type, &m, limit_ms, "", &err))
        ev->request = NULL;
    else
        request_refuse(ev->request, &err);
    msg_release(&m);
}

/* Events and samples of the node's agent go into the run's journal under the node's name. */
static void publish_pass(struct uplink *u, struct net_event *ev, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    const struct mval *body = mval_get(in->root, "body");
    char text[128], who[192];
    snprintf(who, sizeof who, "%s/%s", u->node.name, mval_text(body, "who", text, sizeof text));
    msg_begin(&m, MSG_PUBLISH);
    msg_copy(&m, "topic", mval_get(in->root, "topic"));
    msg_map(&m, "body");
    msg_copy_but(&m, body, " node who ");
    msg_str(&m, "node", u->node.name);
    msg_str(&m, "who", who);
    msg_end(&m);
    if (msg_finish(&m, &err) && relay_add(&u->relays, u->head, ev->request, MSG_PUBLISH, &m, QUESTION_LIMIT_MS, "", &err))
        ev->request = NULL;
    else
        request_refuse(ev->request, &err);
    msg_release(&m);
}

static void result_came(struct uplink *u, struct net_event *ev, const struct msg_in *in)
{
    pass_on(u, ev, in, false, GROUP_LIMIT_MS);
}

static void done_came(struct uplink *u, struct net_event *ev, const struct msg_in *in)
{
    if (mval_bool(mval_get(in->root, "ok"), false) || mval_bool(mval_get(in->root, "again"), false)
        || mval_bool(mval_get(in->root, "left"), false))
        pass_on(u, ev, in, true, GROUP_LIMIT_MS);
    else
        task_failed(u, ev->request, in);
}

static void question_came(struct uplink *u, struct net_event *ev, const struct msg_in *in)
{
    pass_on(u, ev, in, false, QUESTION_LIMIT_MS);
}

static void command_came(struct uplink *u, struct net_event *ev, const struct msg_in *in)
{
    pass_on(u, ev, in, false, command_limit_ms(in->root, COMMAND_LIMIT_S) + 2000);
}

/* What is not here is not for a node. A handler takes the request. */
// clang-format off
static void (*const handlers[MSG_TYPE_COUNT])(struct uplink *u, struct net_event *ev, const struct msg_in *in) = {
    [MSG_WORK] = work_asked,
    [MSG_GROUP] = result_came,
    [MSG_STOPPED] = result_came,
    [MSG_FETCH] = result_came,
    [MSG_DONE] = done_came,
    [MSG_STATUS] = question_came,
    [MSG_STEPS] = question_came,
    [MSG_EVENTS] = question_came,
    [MSG_ROLLOUTS] = question_came,
    [MSG_CHECKPOINTS] = question_came,
    [MSG_COMMAND] = command_came,
    [MSG_PUBLISH] = publish_pass,
};
// clang-format on

static void request_came(struct uplink *u, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    u->process.progress++;
    if (handlers[in.type]) {
        handlers[in.type](u, ev, &in);
    } else {
        error_set(&err, ERR_UNSUPPORTED, "a node does not answer '%s'", msg_specs[in.type].name);
        request_refuse(ev->request, &err);
    }
    msg_in_release(&in);
}

/* The head's answer to a request for work: most are passed to the worker unchanged. */
static void work_answered(struct uplink *u, struct relay *x, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    char kind[16], path[4096];
    if (!msg_read_answer(&in, MSG_WORK, ev->data, ev->len, &err)) {
        relay_end(x, ev);    // a refusal
        return;
    }
    mval_text(in.root, "kind", kind, sizeof kind);
    bool loads = strcmp(kind, task_kind_name(TASK_LOAD)) == 0;
    if (loads)
        meeting_follow(u, mval_i64(mval_get(in.root, "round"), 0));
    if (strcmp(kind, task_kind_name(TASK_SAVE)) == 0)
        hold_point("passing");    // the controller has given it, and the worker does not know of it
    mval_text(in.root, "path", path, sizeof path);
    bool needs = loads ? path[0] != 0 : strcmp(kind, task_kind_name(TASK_PUBLISH)) == 0;
    if (!needs || !weights_order_keep(u, x, ev, &in))
        relay_end(x, ev);
    msg_in_release(&in);
}

/* The gate does not know yet that this connection is ours: the next sign of life says so, and then what was asked is asked again. */
static bool is_strange_there(const struct relay *x, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (x->type != MSG_WORK && x->type != MSG_DONE && x->type != MSG_GROUP && x->type != MSG_STOPPED && x->type != MSG_PUBLISH)
        return false;
    if (!msg_read_answer(&in, x->type, ev->data, ev->len, &err))
        return err.code == ERR_CLOSED;
    msg_in_release(&in);
    return false;
}

static void relayed_answered(struct uplink *u, struct relay *x, const struct net_event *ev)
{
    if (is_strange_there(x, ev)) {
        relay_again(x);
        u->introduce = true;
        u->beat_ms = 0;
    } else if (x->type == MSG_WORK) {
        work_answered(u, x, ev);
    } else {
        relay_end(x, ev);
    }
}

/* ---- the loop ---- */

static void detail_write(void *ctx, struct msg_out *m)
{
    const struct uplink *u = ctx;
    msg_str(m, "state", u->state);
    msg_str(m, "reason", u->reason);
    msg_i64(m, "step", u->step);
    msg_map(m, "knobs");
    knobs_watch_write(&u->config, m);
    msg_end(m);
}

static void gauges_write(void *ctx, struct msg_out *m)
{
    const struct uplink *u = ctx;
    struct weights_fetch_look look = { 0 };
    if (u->fetch)
        weights_fetch_look(u->fetch, &look);
    msg_i64(m, "weights_version", u->here[0].left ? -1 : u->here[0].version);
    msg_i64(m, "fetched_bytes", look.done_bytes);
    msg_i64(m, "fetch_bytes", look.size_bytes);
    msg_i64(m, "weights_wire_bytes", u->wire_bytes + look.wire_bytes);
    msg_i64(m, "beats_lost", u->n_beat_lost);
    msg_i64(m, "open_bytes", relays_bytes(&u->relays));
    if (!isnan(u->answer_ms))
        msg_f64(m, "head_answer_ms", u->answer_ms);
    if (isnan(u->mib_per_s))
        return;
    msg_f64(m, "weights_mib_per_s", u->mib_per_s);
    msg_f64(m, "weights_delta_ratio", u->delta_ratio);
    msg_f64(m, "weights_s", u->fetch_s);
}

static void event_take(struct uplink *u, struct net_event *ev)
{
    struct relay *x;
    if (ev->kind == NET_REQUEST) {
        request_came(u, ev);
    } else if (ev->kind != NET_ANSWER) {
        return;
    } else if (ev->tag == TAG_BEAT && (ev->peer == u->head || ev->peer == u->pulse)) {
        beat_came(u, ev);
    } else if (ev->peer == u->head && meeting_came(u, ev)) {
        return;
    } else if (ev->peer == u->process.agent && ev->tag == TAG_STATUS) {
        status_came(u, ev);
    } else if (ev->tag >= FETCH_TAG) {
        if (u->fetch)
            weights_fetch_answered(u->fetch, ev);
        trainers_answered(u, ev);
    } else if ((x = relay_answered(&u->relays, ev))) {
        relayed_answered(u, x, ev);
    }
}

static bool uplink_open(struct uplink *u, struct error *err)
{
    struct join_identity id;
    if (!uplink_token_read(u, err) || !join_identity_make(&id, u->token, NULL, err)
        || !(u->head = peer_new_tls(u->process.transport, u->node.head, &id, err))
        || !(u->pulse = peer_new_tls(u->process.transport, u->node.head, &id, err)))
        return false;
    for (int i = 0; i < N_STREAM; i++)
        if (!(u->stream[i] = peer_new_tls(u->process.transport, u->node.head, &id, err)))
            return false;
    u->token_new = false;
    u->introduce = true;
    return (u->server = server_new(u->process.transport, "controller", N_OPEN, err)) != NULL;
}

static void beat_wait(struct uplink *u, int64_t until_ms)
{
    struct net_event ev;
    while (u->beat_open && transport_wait(u->process.transport, &ev, MAX(until_ms - clock_ms(), (int64_t)0))) {
        if (ev.kind == NET_ANSWER && ev.tag == TAG_BEAT && (ev.peer == u->head || ev.peer == u->pulse))
            u->beat_open = false;
        else if (ev.kind == NET_REQUEST)
            request_drop(ev.request);
        net_event_release(&ev);
    }
}

/* Tell the head that the node leaves, so that it does not wait for it; not when its run is over: then it ends itself, and would not
 * answer. A beat that is still open goes first: arriving after the farewell, it would look like a node that has come. */
static void farewell(struct uplink *u)
{
    char reason[400];
    if (u->over)
        return;
    if (!u->ends && run_failure_read(u->process.run_dir, reason, sizeof reason))
        snprintf(u->reason, sizeof u->reason, "%s", reason);
    beat_wait(u, clock_ms() + FAREWELL_MS);
    beat_send(u, true);
    beat_wait(u, clock_ms() + FAREWELL_MS);
}

static void uplink_turn(struct uplink *u)
{
    relays_tick(&u->relays);
    head_tick(u);
    trainers_tick(u);
    weights_tick(u);
    u->process.progress++;
}

static void uplink_loop(struct uplink *u)
{
    struct net_event ev;
    int64_t looked_ms = clock_ms();
    while (!process_is_over(&u->process)) {
        int n = 0;
        int64_t due = MIN(MIN(relays_due(&u->relays), looked_ms + LOOK_MS), MIN(MIN(head_due(u), trainers_due(u)), weights_due(u)));
        while (n++ < 256 && process_wait(&u->process, &ev, n == 1 ? process_pause_ms(&u->process, due) : 0)) {
            event_take(u, &ev);
            net_event_release(&ev);
        }
        if (clock_ms() - looked_ms > 5000)    // this process was stopped: the head gets its time again
            u->heard_ms = clock_ms();
        looked_ms = clock_ms();
        uplink_turn(u);
    }
}

static bool uplink_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = "uplink";
    char path[4200];
    bool ok = false;
    struct uplink *u = calloc(1, sizeof *u);
    if (!u)
        return error_set(err, ERR_NO_MEMORY, "no memory for the uplink");
    TRY(process_args(argc, argv, "rollcall uplink", &run_dir, &name, err));
    log_component(name);
    run_config_init(&u->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    TRY(run_config_read(&u->config, path, err) && node_read(&u->node, run_dir, err));
    TRY(process_init(&u->process, run_dir, name, err));
    process_pace(&u->process, u->config.heartbeat_s);
    weights_find(u);
    u->fetch_tag = FETCH_TAG;
    u->mib_per_s = u->delta_ratio = u->fetch_s = u->answer_ms = NAN;
    u->fetched.version = -1;
    snprintf(u->state, sizeof u->state, "starting");
    TRY(uplink_open(u, err));
    u->process.detail = detail_write;
    u->process.gauges = gauges_write;
    u->process.ctx = u;
    u->heard_ms = clock_ms();
    meeting_find(u);
    uplink_loop(u);
    farewell(u);
    ok = true;
out:
    weights_release(u);
    trainers_release(u);
    buf_release(&u->processes);
    process_release(&u->process);
    relays_release(&u->relays);
    free(u);
    return ok;
}

const struct subcommand uplink_subcommand = { "uplink", uplink_cmd, NULL };
