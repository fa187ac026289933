/* gate_cmd.c - the head's side of other nodes: see node.h
 *
 * One loop. Requests from nodes arrive over TLS (only holders of the run's join token get this far). join, node and file are
 * answered here; work, group and done are passed on to the controller, questions and commands to the agent (of lent machines less, and
 * written again: gate_lent.c). The agent asks the
 * gate, on the socket `gate`, to restart a node's process, to dismiss a node or to replace a token. What the journal must have (nodes
 * that come and go) is sent to the controller until it has answered. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/subcommand.h"
#include "protocol/run/run_state.h"
#include "protocol/settings/knobs.h"
#include "workers/node/gate_parts.h"

#define WORK_LIMIT_MS 12000    // the controller holds a request for work 2 s; the worker gives up after 15
#define GROUP_LIMIT_MS 20000
#define QUESTION_LIMIT_MS 10000
#define FAREWELL_MS 3000    // time for every node to hear that the run is over
#define STATUS_LIMIT_MS 2000
#define STATUS_TAG 1

bool run_over(const struct gate *g)
{
    return run_state_is_over(run_state_find(g->state));
}

/* ---- requests ---- */

/* A worker's name must belong to a node that is present. */
static bool worker_known(struct gate *g, const struct mval *root, char node[64], struct error *err)
{
    char name[120];
    mval_text(root, "name", name, sizeof name);
    snprintf(node, 64, "%.*s", (int)strcspn(name, "/"), name);
    const struct node_seen *n = strchr(name, '/') ? node_find(g, node) : NULL;
    return (n && n->here && !n->dismissed[0]) || error_set(err, ERR_TIMEOUT, "'%s' does not belong to a node of this run", name);
}

/* A trainer's rank must be its node's. */
static bool trainer_known(struct gate *g, const struct mval *root, const char *node, struct error *err)
{
    int64_t rank = mval_i64(mval_get(root, "rank"), -1);
    const struct node_seen *n = rank < 0 ? NULL : node_find(g, node);
    return rank < 0 || (n && seat_has(g, &n->node, rank))
           || error_set(err, ERR_TIMEOUT, "trainer %" PRId64 " is not on node '%s'", rank, node);
}

/* lent: the node that it comes from, when that is a lent machine; "": it is none. */
static void pass_on(struct gate *g, struct net_event *ev, const struct msg_in *in, const char *lent, struct peer *to, int64_t limit_ms,
                    const char *owner)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    bool ok = lent[0] ? lent_write(&m, in, lent, &err)
                      : buf_add(&m.buf, ev->data, ev->len) || error_set(&err, ERR_NO_MEMORY, "no memory to pass on %zu bytes", ev->len);
    if (ok && relay_add(&g->relays, to, ev->request, in->type, &m, limit_ms, owner, &err))
        ev->request = NULL;
    if (ev->request)
        request_refuse(ev->request, &err);
    msg_release(&m);
}

/* ---- what nodes send; lent as in pass_on */
static void join_came(struct gate *g, struct net_event *ev, const struct msg_in *in, UNUSED const char *lent)
{
    join_asked(g, ev->request, in);
}

static void node_came(struct gate *g, struct net_event *ev, const struct msg_in *in, UNUSED const char *lent)
{
    node_asked(g, ev->request, in);
}

static void file_came(struct gate *g, struct net_event *ev, const struct msg_in *in, UNUSED const char *lent)
{
    file_asked(g, ev->request, in);
}

static void weights_came(struct gate *g, struct net_event *ev, const struct msg_in *in, UNUSED const char *lent)
{
    weights_asked(g, ev->request, in);
}

/* A worker asks for work, or has done a task. */
static void work_came(struct gate *g, struct net_event *ev, const struct msg_in *in, const char *lent)
{
    struct error err;
    char node[64];
    if (worker_known(g, in->root, node, &err) && trainer_known(g, in->root, node, &err))
        pass_on(g, ev, in, lent, g->controller, in->type == MSG_WORK ? WORK_LIMIT_MS : GROUP_LIMIT_MS, node);
    else
        request_refuse(ev->request, &err);
}

static void fetch_came(struct gate *g, struct net_event *ev, const struct msg_in *in, const char *lent)
{
    pass_on(g, ev, in, lent, g->controller, WORK_LIMIT_MS, "");
}

static void result_came(struct gate *g, struct net_event *ev, const struct msg_in *in, const char *lent)
{
    pass_on(g, ev, in, lent, g->controller, GROUP_LIMIT_MS, "");
}

static void question_came(struct gate *g, struct net_event *ev, const struct msg_in *in, const char *lent)
{
    pass_on(g, ev, in, lent, g->process.agent, QUESTION_LIMIT_MS, "");
}

static void command_came(struct gate *g, struct net_event *ev, const struct msg_in *in, const char *lent)
{
    pass_on(g, ev, in, lent, g->process.agent, command_limit_ms(in->root, COMMAND_LIMIT_S) + 2000, "");
}

/* What is not here is not for the gate; nodes do not evaluate. A handler takes the request. */
// clang-format off
static void (*const handlers[MSG_TYPE_COUNT])(struct gate *g, struct net_event *ev, const struct msg_in *in, const char *lent) = {
    [MSG_JOIN] = join_came,
    [MSG_NODE] = node_came,
    [MSG_FILE] = file_came,
    [MSG_WEIGHTS] = weights_came,
    [MSG_WORK] = work_came,
    [MSG_DONE] = work_came,
    [MSG_FETCH] = fetch_came,
    [MSG_GROUP] = result_came,
    [MSG_STOPPED] = result_came,
    [MSG_PUBLISH] = result_came,
    [MSG_STATUS] = question_came,
    [MSG_KEPT] = question_came,
    [MSG_STEPS] = question_came,
    [MSG_EVENTS] = question_came,
    [MSG_ROLLOUTS] = question_came,
    [MSG_CHECKPOINTS] = question_came,
    [MSG_COMMAND] = command_came,
};
// clang-format on

static void request_of_node(struct gate *g, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    const char *lent = "";    // the machine's node, when it is a lent one
    if (!right_check(g, ev->request, &in, &lent, &err)) {
        log_warn("a request is refused: %s", err.text);
        request_refuse(ev->request, &err);
        msg_in_release(&in);
        return;
    }
    if (handlers[in.type]) {
        handlers[in.type](g, ev, &in, lent);
    } else {
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for the gate", msg_specs[in.type].name);
        request_refuse(ev->request, &err);
    }
    msg_in_release(&in);
}

/* From our agent: a command for a node. */
static void request_of_agent(struct gate *g, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    if (in.type == MSG_COMMAND) {
        node_command(g, ev->request, &in);
    } else {
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for the gate", msg_specs[in.type].name);
        request_refuse(ev->request, &err);
    }
    msg_in_release(&in);
}

/* ---- the loop ---- */

static int64_t status_due(const struct gate *g)
{
    return g->status_open ? INT64_MAX : g->status_ms + (int64_t)(1000 * g->config.heartbeat_s);
}

static void status_tick(struct gate *g)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    int64_t now = clock_ms();
    if (now < status_due(g))
        return;
    g->status_ms = now;
    msg_begin(&m, MSG_STATUS);
    msg_bool(&m, "fresh", false);
    msg_i64(&m, "from", NODES_MAX);    // of no other node: they are ours
    msg_i64(&m, "limit", 1);
    g->status_open = msg_finish(&m, &err) && peer_ask(g->process.agent, &m, STATUS_LIMIT_MS, STATUS_TAG, &err);
    msg_release(&m);
}

static void status_came(struct gate *g, const struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    g->status_open = false;
    if (ev->failed || !msg_read_answer(&in, MSG_STATUS, ev->data, ev->len, &err))
        return;
    mval_text(in.root, "state", g->state, sizeof g->state);
    g->step = mval_i64(mval_get(in.root, "step"), 0);
    knobs_watch_take(&g->config, mval_get(in.root, "knobs"));    // they may have been changed since,
    g->nodes_look_ms = 0;                                        // and nodes are late earlier
    msg_in_release(&in);
}

static void event_take(struct gate *g, struct net_event *ev)
{
    struct relay *x;
    if (ev->kind == NET_REQUEST) {
        g->process.progress++;
        if (request_server(ev->request) == g->local)
            request_of_agent(g, ev);
        else
            request_of_node(g, ev);
    } else if (ev->kind == NET_ANSWER && ev->peer == g->process.agent && ev->tag == STATUS_TAG) {
        status_came(g, ev);
    } else if (ev->kind == NET_ANSWER && !letter_answered(g, ev) && (x = relay_answered(&g->relays, ev))) {
        relay_end(x, ev);
    }
}

static int64_t gate_due(const struct gate *g)
{
    int64_t due = MIN(MIN(relays_due(&g->relays), letters_due(g)), MIN(nodes_due(g), tokens_due(g)));
    return MIN(due, MIN(status_due(g), bulk_server_due(g->bulk)));
}

static void turn(struct gate *g, int64_t timeout_ms)
{
    struct net_event ev;
    int n = 0;
    while (n++ < 256 && process_wait(&g->process, &ev, n == 1 ? timeout_ms : 0)) {
        event_take(g, &ev);
        net_event_release(&ev);
    }
    relays_tick(&g->relays);
    letters_tick(g);
    nodes_tick(g);
    tokens_tick(g);
    status_tick(g);
    bulk_server_tick(g->bulk);
    g->process.progress++;
}

static void gauges_write(void *ctx, struct msg_out *m)
{
    struct bulk_server_look look;
    bulk_server_look(((const struct gate *)ctx)->bulk, &look);
    msg_i64(m, "weights_sent_bytes", look.sent_bytes);
    msg_i64(m, "weights_connections", look.n_connection);
    if (look.sent_bytes > 0)
        msg_f64(m, "weights_delta_ratio", (double)look.block_bytes / (double)look.sent_bytes);
}

static bool gate_open(struct gate *g, struct error *err)
{
    snprintf(g->device, sizeof g->device, "%.*s", (int)MIN(strcspn(g->config.devices, ":"), sizeof g->device - 1), g->config.devices);
    snprintf(g->state, sizeof g->state, "starting");
    g->opened_ms = clock_ms();
    bool lends = g->config.listen_lent[0];
    return door_token(g, DOOR_NODES, err) && (!lends || door_token(g, DOOR_LENT, err)) && files_make(g, err)
           && (g->bulk = bulk_server_new(err)) && (g->local = server_new(g->process.transport, "gate", 16, err))
           && (g->controller = peer_new(g->process.transport, "controller", err)) && door_open(g, DOOR_NODES, g->config.listen, err)
           && (!lends || door_open(g, DOOR_LENT, g->config.listen_lent, err));
}

static bool gate_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = "gate";
    char path[4200];
    bool ok = false;
    struct gate *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, ERR_NO_MEMORY, "no memory for the gate");
    TRY(process_args(argc, argv, "rollcall gate", &run_dir, &name, err));
    log_component(name);
    run_config_init(&g->config);
    snprintf(path, sizeof path, "%s/run.yaml", run_dir);
    TRY(run_config_read(&g->config, path, err));
    TRY(process_init(&g->process, run_dir, name, err));
    process_pace(&g->process, g->config.heartbeat_s);
    TRY(gate_open(g, err));
    g->process.nodes = nodes_write;
    g->process.gauges = gauges_write;
    g->process.ctx = g;
    process_phase(&g->process, "listening", "");
    while (!process_is_over(&g->process))
        turn(g, process_pause_ms(&g->process, gate_due(g)));
    process_phase(&g->process, "stopping", "");
    for (int64_t end = clock_ms() + FAREWELL_MS; !nodes_told(g) && clock_ms() < end;) {
        struct pollfd fd = { .fd = transport_fd(g->process.transport), .events = POLLIN };
        poll(&fd, 1, 20);
        turn(g, 0);
    }
    ok = true;
out:
    for (int i = 0; i < g->n_node; i++)
        node_release(&g->node[i]);
    free(g->node);
    for (int i = 0; i < LETTERS_MAX; i++)
        msg_release(&g->letter[i].msg);
    buf_release(&g->settings);
    process_release(&g->process);
    bulk_server_free(g->bulk);    // after the front, which hands it connections
    relays_release(&g->relays);
    free(g);
    return ok;
}

const struct subcommand gate_subcommand = { "gate", gate_cmd, NULL };
