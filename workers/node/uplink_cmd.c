/* uplink_cmd.c - the node's side of its head: see node.h
 *
 * Answers on the socket `controller` of the node's folder, as a controller would, and passes on: requests for work and reports under
 * the node's name, groups as they are. An order to sample with new weights is kept back until they have been brought here; the
 * worker may ask again meanwhile, the newest request gets the order. To its own agent it tells the run's state in its heartbeat,
 * so the node ends with the run. */
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/run/knobs.h"
#include "protocol/run/run_state.h"
#include "protocol/wire/join_token.h"
#include "protocol/run/run_config.h"
#include "protocol/run/run_failure.h"
#include "workers/host/node_watch.h"
#include "workers/node/fetch.h"
#include "protocol/run/node.h"
#include "workers/node/relay.h"
#include "workers/process/process.h"
#include "workers/engine/publish/publication.h"

#define FETCH_LOOK_MS 20
#define LOOK_MS 1000    // the loop turns so often at least
#define N_OPEN 160
#define WORKERS_MAX 64
#define N_STREAM 4    // connections that weights come over
#define WEIGHTS_MAX ((int64_t)1 << 42)
#define WEIGHTS_KEPT 2    // versions
#define WORK_LIMIT_MS 13000
#define GROUP_LIMIT_MS 19000    // the worker asks again after 20 s
#define QUESTION_LIMIT_MS 10000
#define BEAT_LIMIT_MS 3000
#define FAREWELL_MS 2000
#define FETCH_TAG ((uint64_t)1 << 40)

struct order {                  // "sample with version": kept back until its weights are here
    char worker[64];            // "": free
    int64_t start;              // the worker's life
    struct request *request;    // NULL: the worker has given up and will ask again
    struct buf answer;
    int64_t version, made;    // made: by which incarnation
};
struct uplink {
    struct process process;
    struct run_config config;
    struct node node;
    struct server *server;
    struct peer *head, *stream[N_STREAM];
    struct relays relays;
    struct order order[WORKERS_MAX];
    struct fetch *fetch;
    int64_t fetch_version, fetch_made, fetch_ms;
    uint64_t fetch_tag;
    double mib_per_s;    // of the last weights; NAN: none yet
    struct {
        int64_t version, made;
    } here[WEIGHTS_KEPT];    // newest first; version -1: none
    /* the head */
    char state[32], reason[400];    // of the run, as the head tells; or why the node ends
    int64_t step, beat_ms, heard_ms;
    bool beat_open, status_open, ends;
    struct buf processes;    // the agent's last answer to status
};
enum {
    TAG_BEAT = 1,
    TAG_STATUS,
    TAG_RESTART,
};

/* ---- ending ---- */

static void node_end(struct uplink *u, const char *state, const char *reason)
{
    struct error err;
    if (u->ends)
        return;
    u->ends = true;
    snprintf(u->state, sizeof u->state, "%s", state);
    snprintf(u->reason, sizeof u->reason, "%s", reason);
    log_info("the node ends: %s: %s", state, reason);
    if (run_state_find(state) == RUN_FAILED && !run_failure_write(u->process.run_dir, reason, &err))
        log_error("%s", err.text);
    process_phase(&u->process, state, "");
}

/* ---- the head: a sign of life, and its orders ---- */

static void status_ask(struct uplink *u)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_STATUS);
    msg_bool(&m, "fresh", false);
    u->status_open = msg_finish(&m, &err) && peer_ask(u->process.agent, &m, BEAT_LIMIT_MS, TAG_STATUS, &err);
    msg_release(&m);
}

static void beat_send(struct uplink *u, bool leaving)
{
    struct error err;
    struct msg_in in = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_NODE);
    msg_str(&m, "node", u->node.name);
    msg_str(&m, "id", u->node.id);
    msg_str(&m, "host", u->node.host);
    msg_i64(&m, "start", u->process.start);
    msg_str(&m, "hash", u->node.hash);
    if (leaving) {
        msg_bool(&m, "leaving", true);
        msg_str(&m, "reason", u->reason);
    }
    if (u->processes.len && msg_read_answer(&in, MSG_STATUS, u->processes.data, u->processes.len, &err)) {
        msg_copy(&m, "processes", mval_get(in.root, "processes"));
        msg_map(&m, "figures");
        node_figures_copy(&m, in.root, NULL);
        msg_end(&m);
        msg_in_release(&in);
    } else {
        msg_list(&m, "processes");
        msg_end(&m);
    }
    u->beat_open = msg_finish(&m, &err) && peer_ask(u->head, &m, BEAT_LIMIT_MS, TAG_BEAT, &err);
    msg_release(&m);
}

static void restart_ask(struct uplink *u, const char *name, int64_t pid)
{
    struct error err;
    char id[160];
    struct msg_out m = MSG_OUT_INIT;
    snprintf(id, sizeof id, "head-%s-%" PRId64, name, pid);    // told again every beat until it has been done
    msg_begin(&m, MSG_COMMAND);
    msg_str(&m, "id", id);
    msg_str(&m, "command", "restart");
    msg_map(&m, "args");
    msg_str(&m, "process", name);
    msg_end(&m);
    msg_str(&m, "who", "the head");
    if (msg_finish(&m, &err) && !peer_ask(u->process.agent, &m, 60000, TAG_RESTART, &err))
        log_warn("%s", err.text);
    msg_release(&m);
}

static void beat_came(struct uplink *u, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    char order[16], reason[300], restart[64], path[4200];
    u->beat_open = false;
    if (ev->failed)
        return;
    if (!msg_read_answer(&in, MSG_NODE, ev->data, ev->len, &err)) {
        node_end(u, run_state_name(RUN_FAILED), err.text);
        return;
    }
    u->heard_ms = clock_ms();
    mval_text(in.root, "order", order, sizeof order);
    mval_text(in.root, "reason", reason, sizeof reason);
    if (!u->ends) {
        mval_text(in.root, "state", u->state, sizeof u->state);
        u->step = mval_i64(mval_get(in.root, "step"), 0);
        knobs_watch_take(&u->config, mval_get(in.root, "knobs"));
    }
    if (strcmp(order, "join") == 0) {
        snprintf(path, sizeof path, "%s/" NODE_REJOIN_FILE, u->process.run_dir);
        if (!file_write(path, reason, strlen(reason), &err))
            log_error("%s", err.text);
        node_end(u, run_state_name(RUN_STOPPED), reason);
    } else if (strcmp(order, "stop") == 0) {
        node_end(u, run_state_name(run_state_find(u->state) == RUN_FINISHED ? RUN_FINISHED : RUN_STOPPED), reason);
    } else if (mval_text(in.root, "restart", restart, sizeof restart)[0]) {
        restart_ask(u, restart, mval_i64(mval_get(in.root, "restart_pid"), 0));
    }
    msg_in_release(&in);
}

static void head_tick(struct uplink *u)
{
    int64_t now = clock_ms();
    double silent_s = (double)(now - u->heard_ms) / 1000;
    if (now - u->beat_ms >= (int64_t)(1000 * u->config.heartbeat_s)) {
        u->beat_ms = now;
        if (!u->beat_open)
            beat_send(u, false);
        if (!u->status_open)
            status_ask(u);    // for the next one
    }
    if (u->ends)
        return;
    char text[400];
    snprintf(text, sizeof text, "head %s", u->node.head);
    if (silent_s > u->node.wait_s) {
        snprintf(text, sizeof text, "no sign of life of the head %s for %.0f s", u->node.head, silent_s);
        node_end(u, run_state_name(RUN_FAILED), text);
    } else if (silent_s > MAX(u->config.slow_s, 3 * u->config.heartbeat_s)) {
        process_phase(&u->process, "waiting", text);
    } else if (u->fetch) {
        int64_t size, got = fetch_bytes(u->fetch, &size);
        snprintf(text, sizeof text, "weights of version %" PRId64, u->fetch_version);
        process_phase(&u->process, "fetching", text);
        u->process.progress = MAX(u->process.progress, (double)got);
    } else {
        process_phase(&u->process, "passing on", "");
    }
}

/* ---- weights ---- */

static bool weights_here(const struct uplink *u, int64_t version, int64_t made)
{
    for (int i = 0; i < WEIGHTS_KEPT; i++)
        if (u->here[i].version == version && u->here[i].made == made)
            return true;
    return false;
}

static void weights_came(struct uplink *u)
{
    char path[4200];
    int64_t size;
    double s = (double)(clock_ms() - u->fetch_ms) / 1000;
    if (u->here[WEIGHTS_KEPT - 1].version >= 0) {
        weights_file_path(u->process.run_dir, u->here[WEIGHTS_KEPT - 1].made, u->here[WEIGHTS_KEPT - 1].version, path, sizeof path);
        unlink(path);
    }
    memmove(&u->here[1], &u->here[0], (WEIGHTS_KEPT - 1) * sizeof u->here[0]);
    u->here[0].version = u->fetch_version;
    u->here[0].made = u->fetch_made;
    double mib = (double)fetch_bytes(u->fetch, &size) / (1 << 20);
    u->mib_per_s = mib / MAX(s, 0.001);
    log_debug("weights of version %" PRId64 ": %.1f MiB in %.3f s", u->fetch_version, mib, s);
}

/* Hand the worker its order, with the path the weights have here; or nothing to do, when they are not to be had. */
static void order_end(struct uplink *u, struct order *o, bool have)
{
    struct error err;
    struct msg_in in;
    struct msg_out m = MSG_OUT_INIT;
    char path[4200];
    bool ok = msg_read_answer(&in, MSG_WORK, o->answer.data, o->answer.len, &err);
    BUG_IF(!ok, "an order that was read before cannot be read: %s", err.text);
    msg_begin(&m, MSG_OK);
    msg_str(&m, "kind", have ? "publish" : "none");
    msg_copy(&m, "incarnation", mval_get(in.root, "incarnation"));
    if (have) {
        weights_file_path(u->process.run_dir, o->made, o->version, path, sizeof path);
        msg_copy(&m, "task", mval_get(in.root, "task"));
        msg_copy(&m, "step", mval_get(in.root, "step"));
        msg_i64(&m, "version", o->version);
        msg_i64(&m, "made", o->made);
        msg_str(&m, "path", path);
    } else {
        msg_i64(&m, "task", 0);
    }
    msg_in_release(&in);
    if (msg_finish(&m, &err))
        request_answer(o->request, &m);
    else
        request_refuse(o->request, &err);
    msg_release(&m);
    buf_release(&o->answer);
    *o = (struct order){ 0 };
}

/* When the next turn has something to do though nothing has come. Weights that are on their way are looked after all the time. */
static int64_t uplink_due(const struct uplink *u)
{
    bool busy = u->fetch != NULL;
    for (int i = 0; i < WORKERS_MAX; i++)
        busy = busy || u->order[i].worker[0];
    int64_t beat_ms = u->beat_ms + (int64_t)(1000 * u->config.heartbeat_s);
    return MIN(MIN(relays_due(&u->relays), beat_ms), busy ? clock_ms() + FETCH_LOOK_MS : INT64_MAX);
}

static void orders_tick(struct uplink *u)
{
    struct error err = { 0 };
    char path[4200];
    enum fetch_state state = FETCH_GOES;
    if (u->fetch) {
        fetch_tick(u->fetch);
        state = fetch_state(u->fetch, &err);
        if (state == FETCH_DONE)
            weights_came(u);
        if (state == FETCH_FAILED)
            log_warn("weights of version %" PRId64 " have not come: %s", u->fetch_version, err.text);
    }
    for (int i = 0; i < WORKERS_MAX; i++) {
        struct order *o = &u->order[i];
        if (!o->worker[0])
            continue;
        bool have = weights_here(u, o->version, o->made);
        bool lost = state == FETCH_FAILED && o->version == u->fetch_version && o->made == u->fetch_made;
        if ((have || lost) && o->request)
            order_end(u, o, have);
        else if (lost)
            o->worker[0] = 0;    // nobody waits: the worker asks anew, and so does the controller decide
    }
    if (state != FETCH_GOES) {
        fetch_free(u->fetch);
        u->fetch = NULL;
        if (state == FETCH_FAILED && err.code != ERR_NOT_FOUND && err.code != ERR_CLOSED)
            node_end(u, run_state_name(RUN_FAILED), err.text);
    }
    for (int i = 0; i < WORKERS_MAX && !u->fetch && !u->ends; i++) {
        const struct order *o = &u->order[i];
        if (!o->worker[0] || weights_here(u, o->version, o->made))
            continue;
        weights_file_path(u->process.run_dir, o->made, o->version, path, sizeof path);
        u->fetch_version = o->version;
        u->fetch_made = o->made;
        u->fetch_ms = clock_ms();
        u->fetch_tag += FETCH_TAGS;    // late answers of an earlier one are not taken for this one's
        u->fetch = fetch_new(NULL, o->made, o->version, path, WEIGHTS_MAX, u->stream, N_STREAM, u->fetch_tag, &err);
        if (!u->fetch)
            node_end(u, run_state_name(RUN_FAILED), err.text);
    }
}

/* ---- the workers' requests ---- */

/* Copy a map's fields but those named in but: " name name ". */
static void map_copy(struct msg_out *m, const struct mval *map, const char *but)
{
    for (int64_t i = 0; i < mval_n(map); i++) {
        size_t len;
        char key[64];
        const char *k = mval_key(map, i, &len);
        if (!k || len + 2 >= sizeof key)
            continue;
        snprintf(key, sizeof key, " %.*s ", (int)len, k);
        if (strstr(but, key))
            continue;
        key[len + 1] = 0;
        msg_copy(m, key + 1, mval_at(map, i));
    }
}

/* The request with the worker's name as the head knows it. */
static bool renamed(const struct uplink *u, const struct msg_in *in, struct msg_out *m, struct error *err)
{
    char name[64], full[120];
    mval_text(in->root, "name", name, sizeof name);
    snprintf(full, sizeof full, "%s/%s", u->node.name, name);
    *m = MSG_OUT_INIT;
    msg_begin(m, in->type);
    map_copy(m, in->root, " v t name ");
    msg_str(m, "name", full);
    return msg_finish(m, err);
}

static void work_asked(struct uplink *u, struct net_event *ev, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    char name[64];
    mval_text(in->root, "name", name, sizeof name);
    for (int i = 0; i < WORKERS_MAX; i++) {
        struct order *o = &u->order[i];
        if (!o->worker[0] || strcmp(o->worker, name) != 0)
            continue;
        if (o->request)
            request_drop(o->request);
        o->request = NULL;
        if (o->start == mval_i64(mval_get(in->root, "start"), 0)) {    // its order is on the way
            o->request = ev->request;
            ev->request = NULL;
            return;
        }
        o->worker[0] = 0;    // of a life before
    }
    if (renamed(u, in, &m, &err) && relay_add(&u->relays, u->head, ev->request, MSG_WORK, &m, WORK_LIMIT_MS, "", &err))
        ev->request = NULL;
    else
        request_refuse(ev->request, &err);
    msg_release(&m);
}

/* A task that has failed here is no failure of the run: the node ends. */
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
    map_copy(&m, body, " node who ");
    msg_str(&m, "node", u->node.name);
    msg_str(&m, "who", who);
    msg_end(&m);
    if (msg_finish(&m, &err) && relay_add(&u->relays, u->head, ev->request, MSG_PUBLISH, &m, QUESTION_LIMIT_MS, "", &err))
        ev->request = NULL;
    else
        request_refuse(ev->request, &err);
    msg_release(&m);
}

static void request_came(struct uplink *u, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    u->process.progress++;
    switch (in.type) {
    case MSG_WORK: work_asked(u, ev, &in); break;
    case MSG_GROUP: pass_on(u, ev, &in, false, GROUP_LIMIT_MS); break;
    case MSG_DONE:
        if (mval_bool(mval_get(in.root, "ok"), false) || mval_bool(mval_get(in.root, "again"), false))
            pass_on(u, ev, &in, true, GROUP_LIMIT_MS);
        else
            task_failed(u, ev->request, &in);
        break;
    case MSG_STATUS:
    case MSG_STEPS:
    case MSG_EVENTS:
    case MSG_ROLLOUTS: pass_on(u, ev, &in, false, QUESTION_LIMIT_MS); break;
    case MSG_COMMAND:
        pass_on(u, ev, &in, false, (int64_t)(1000 * MIN(MAX(mval_f64(mval_get(in.root, "limit_s"), 600), 0.1), 86400)) + 2000);
        break;
    case MSG_PUBLISH: publish_pass(u, ev, &in); break;
    case MSG_OK:
    case MSG_REFUSED:
    case MSG_HEARTBEAT:
    case MSG_FETCH:
    case MSG_SCORE:
    case MSG_JOIN:
    case MSG_NODE:
    case MSG_FILE:
    case MSG_GONE:
    case MSG_TYPE_COUNT:
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for a node", msg_specs[in.type].name);
        request_refuse(ev->request, &err);
        break;
    }
    msg_in_release(&in);
}

/* The head's answer to a request for work: most go to the worker as they are. */
static void work_answered(struct uplink *u, struct relay *x, const struct net_event *ev)
{
    struct error err;
    struct msg_in in, asked;
    char kind[16], name[120];
    int64_t start = 0;
    struct order *o = NULL;
    if (!msg_read_answer(&in, MSG_WORK, ev->data, ev->len, &err)) {
        relay_end(x, ev);    // a refusal
        return;
    }
    mval_text(in.root, "kind", kind, sizeof kind);
    if (strcmp(kind, "publish") == 0 && msg_read_request(&asked, x->msg.buf.data, x->msg.buf.len, &err)) {
        mval_text(asked.root, "name", name, sizeof name);
        start = mval_i64(mval_get(asked.root, "start"), 0);
        msg_in_release(&asked);
        for (int i = 0; !o && i < WORKERS_MAX; i++)
            if (!u->order[i].worker[0])
                o = &u->order[i];
    }
    if (!o) {
        relay_end(x, ev);
    } else {
        buf_release(&o->answer);
        *o = (struct order){ .start = start,
                             .version = mval_i64(mval_get(in.root, "version"), -1),
                             .made = mval_i64(mval_get(in.root, "made"), 0) };
        snprintf(o->worker, sizeof o->worker, "%s", name + strlen(u->node.name) + 1);
        if (buf_add(&o->answer, ev->data, ev->len))
            o->request = relay_take(x);
        else
            o->worker[0] = 0;
    }
    msg_in_release(&in);
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
    int64_t size = 0, got = u->fetch ? fetch_bytes(u->fetch, &size) : 0;
    msg_i64(m, "weights_version", u->here[0].version);
    msg_i64(m, "fetched_bytes", got);
    msg_i64(m, "fetch_bytes", size);
    if (!isnan(u->mib_per_s))
        msg_f64(m, "weights_mib_per_s", u->mib_per_s);
}

static void event_take(struct uplink *u, struct net_event *ev)
{
    struct relay *x;
    if (ev->kind == NET_REQUEST) {
        request_came(u, ev);
    } else if (ev->kind != NET_ANSWER) {
        return;
    } else if (ev->peer == u->head && ev->tag == TAG_BEAT) {
        beat_came(u, ev);
    } else if (ev->peer == u->process.agent && ev->tag == TAG_STATUS) {
        u->status_open = false;
        buf_clear(&u->processes);
        if (!ev->failed && ev->len < (size_t)1 << 20)
            buf_add(&u->processes, ev->data, ev->len);
    } else if (ev->tag >= FETCH_TAG) {
        if (u->fetch)
            fetch_answered(u->fetch, ev);
    } else if ((x = relay_answered(&u->relays, ev))) {
        if (x->type == MSG_WORK)
            work_answered(u, x, ev);
        else
            relay_end(x, ev);
    }
}

static bool uplink_open(struct uplink *u, struct error *err)
{
    char path[4300], token[JOIN_TOKEN_LEN + 1];
    struct join_identity id;
    snprintf(path, sizeof path, "%s/" NODE_TOKEN_FILE, u->process.run_dir);
    if (!join_token_read(token, path, err) || !join_identity_make(&id, token, err)
        || !(u->head = peer_new_tls(u->process.transport, u->node.head, &id, err)))
        return false;
    for (int i = 0; i < N_STREAM; i++)
        if (!(u->stream[i] = peer_new_tls(u->process.transport, u->node.head, &id, err)))
            return false;
    return (u->server = server_new(u->process.transport, "controller", N_OPEN, err)) != NULL;
}

/* Tell the head that we go; it does not wait for us then. */
static void farewell(struct uplink *u)
{
    struct net_event ev;
    char reason[400];
    if (!u->ends && run_failure_read(u->process.run_dir, reason, sizeof reason))
        snprintf(u->reason, sizeof u->reason, "%s", reason);
    beat_send(u, true);
    while (u->beat_open && transport_wait(u->process.transport, &ev, FAREWELL_MS)) {
        if (ev.kind == NET_ANSWER && ev.peer == u->head && ev.tag == TAG_BEAT)
            u->beat_open = false;
        else if (ev.kind == NET_REQUEST)
            request_drop(ev.request);
        net_event_release(&ev);
    }
}

static bool uplink_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = "uplink";
    char path[4200];
    bool ok = false;
    struct net_event ev;
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
    for (int i = 0; i < WEIGHTS_KEPT; i++)
        u->here[i].version = -1;
    u->fetch_tag = FETCH_TAG;
    u->mib_per_s = NAN;
    snprintf(u->state, sizeof u->state, "starting");
    TRY(uplink_open(u, err));
    u->process.detail = detail_write;
    u->process.gauges = gauges_write;
    u->process.ctx = u;
    u->heard_ms = clock_ms();
    int64_t looked_ms = clock_ms();
    while (!process_is_over(&u->process)) {
        int n = 0;
        while (n++ < 256
               && process_wait(&u->process, &ev, n == 1 ? process_pause_ms(&u->process, MIN(uplink_due(u), looked_ms + LOOK_MS)) : 0)) {
            event_take(u, &ev);
            net_event_release(&ev);
        }
        if (clock_ms() - looked_ms > 5000)    // we were stopped: the head gets its time again
            u->heard_ms = clock_ms();
        looked_ms = clock_ms();
        relays_tick(&u->relays);
        head_tick(u);
        orders_tick(u);
        u->process.progress++;
    }
    farewell(u);
    ok = true;
out:
    for (int i = 0; i < WORKERS_MAX; i++)
        buf_release(&u->order[i].answer);
    fetch_free(u->fetch);
    buf_release(&u->processes);
    process_release(&u->process);
    relays_release(&u->relays);
    free(u);
    return ok;
}

const struct subcommand uplink_subcommand = { "uplink", uplink_cmd, NULL };
