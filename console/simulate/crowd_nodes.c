/* The nodes' agents of a made-up fleet: each over its own connection, a heartbeat now and then and a request for work. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/simulate/crowd_parts.h"
#include "protocol/base/clock.h"
#include "protocol/base/mix64.h"

#define ASK_MS 5000
enum fault {    // what is wrong with one GPU of a node
    FAULT_NONE,
    FAULT_LOST,
    FAULT_HOT,
    FAULT_ERRORS,
    FAULT_STUCK,
};
struct node {
    char name[32];
    struct peer *peer;
    enum fault fault;
    int64_t fault_gpu;
    uint64_t random;
    bool beats, again, works;    // a heartbeat is on its way; another is due when it is answered; a request for work is open
    bool paused;
    int64_t beat_ns;    // when next
    double progress;
};
struct crowd_nodes {
    struct crowd_options options;
    int64_t start_ns;
    const char *phase;    // of all that are not paused
    int64_t phase_ns;     // since when
    int64_t n;
    struct node *node;    // (n); owned
};

const char *crowd_node_name(char out[32], int64_t i)
{
    snprintf(out, 32, "node-%04" PRId64, i + 1);
    return out;
}

/* -spread .. spread */
static double jitter(struct node *n, double spread)
{
    return ((double)(mix64_next(&n->random) >> 11) * 0x1p-52 - 1) * spread;
}

static void process_write(const struct crowd_nodes *c, struct node *n, struct msg_out *m, int64_t gpu, int64_t now_ns)
{
    char name[64], plays[48];
    bool stuck = n->fault == FAULT_STUCK && gpu == n->fault_gpu, agent = gpu < 0;
    double phase_s = (double)(now_ns - (stuck ? c->start_ns : c->phase_ns)) * 1e-9;
    snprintf(name, sizeof(name), agent ? "%s/agent" : "%s/worker cuda:%" PRId64, n->name, gpu);
    snprintf(plays, sizeof(plays), "trainer %" PRId64 ", producer %" PRId64, MAX(gpu, (int64_t)0), MAX(gpu, (int64_t)0));
    msg_map(m, NULL);
    msg_str(m, "name", name);
    msg_str(m, "node", n->name);
    msg_str(m, "kind", agent ? "agent" : "worker");
    if (!agent)
        msg_str(m, "plays", plays);
    msg_i64(m, "pid", 4000 + gpu);
    msg_str(m, "phase", agent ? "watching" : stuck ? "training" : n->paused ? "waiting" : c->phase);
    msg_f64(m, "phase_s", phase_s);
    msg_f64(m, "progress", stuck ? 0 : n->progress);
    msg_str(m, "waits_for", !agent && n->paused && !stuck ? "controller: work" : "");
    msg_str(m, "verdict", stuck && phase_s > 4 ? "stuck" : "ok");
    msg_f64(m, "heard_s", 0);
    msg_i64(m, "restarts", 0);
    msg_f64(m, "cpu", agent ? 0.02 : 0.97);
    msg_f64(m, "rss_mib", agent ? 24 : 2900 + jitter(n, 90));
    msg_map(m, "gauges");
    msg_end(m);
    msg_end(m);
}

static void device_write(struct node *n, struct msg_out *m, int64_t gpu, bool busy)
{
    char name[16];
    enum fault f = gpu == n->fault_gpu ? n->fault : FAULT_NONE;
    snprintf(name, sizeof(name), "gpu %" PRId64, gpu);
    msg_map(m, NULL);
    msg_str(m, "name", name);
    msg_str(m, "what", "NVIDIA H200");
    msg_str(m, "state", f == FAULT_LOST ? "lost" : "ok");
    msg_str(m, "throttle", f == FAULT_HOT ? "heat" : "");
    msg_map(m, "figures");
    if (f != FAULT_LOST) {
        msg_f64(m, "util_percent", f == FAULT_STUCK ? 0 : busy ? 88 + jitter(n, 11) : 0);
        msg_f64(m, "mem_used_bytes", 118e9 + jitter(n, 9e9));
        msg_f64(m, "mem_total_bytes", 150754820096.0);
        msg_f64(m, "temp_celsius", f == FAULT_HOT ? 91 : (busy ? 66 : 41) + jitter(n, 6));
        msg_f64(m, "power_watts", busy ? 610 + jitter(n, 80) : 115);
        msg_f64(m, "power_limit_watts", 700);
        msg_f64(m, "sm_clock_mhz", f == FAULT_HOT ? 1245 : 1980);
        msg_f64(m, "ecc_uncorrected", f == FAULT_ERRORS ? 2 : 0);
    }
    msg_end(m);
    msg_end(m);
}

static void node_write(const struct crowd_nodes *c, struct node *n, struct msg_out *m, int64_t now_ns)
{
    msg_list(m, "processes");
    for (int64_t gpu = -1; gpu < c->options.gpus; gpu++)
        process_write(c, n, m, gpu, now_ns);
    msg_end(m);
    msg_list(m, "nodes");
    msg_map(m, NULL);
    msg_str(m, "node", n->name);
    msg_map(m, "host");
    msg_f64(m, "cpu_percent", 22 + jitter(n, 9));
    msg_f64(m, "mem_used_bytes", 300e9 + jitter(n, 40e9));
    msg_f64(m, "mem_total_bytes", 2.1e12);
    msg_f64(m, "disk_percent", 41);
    msg_end(m);
    msg_list(m, "devices");
    for (int64_t gpu = 0; gpu < c->options.gpus; gpu++)
        device_write(n, m, gpu, !n->paused);
    msg_end(m);
    msg_end(m);
    msg_end(m);
}

/* whole: with the node's processes and devices. A change of phase is told at once, and alone. */
static void beat_send(struct crowd_nodes *c, int64_t i, bool whole, int64_t now_ns)
{
    struct node *n = &c->node[i];
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    char name[64];
    if (n->beats) {
        n->again |= !whole;
        return;
    }
    if (whole)
        n->beat_ns = now_ns + (int64_t)(1e9 / c->options.rate);
    snprintf(name, sizeof(name), "%s/agent", n->name);
    n->progress += n->paused ? 0 : 1;
    msg_begin(&m, MSG_HEARTBEAT);
    msg_str(&m, "name", name);
    msg_i64(&m, "pid", 4000 + i);
    msg_i64(&m, "start", 1 + i);
    msg_str(&m, "phase", n->paused ? "waiting" : c->phase);
    msg_f64(&m, "phase_s", (double)(now_ns - c->phase_ns) * 1e-9);
    msg_f64(&m, "progress", n->progress);
    msg_str(&m, "waits_for", n->paused ? "controller: work" : "");
    if (whole)
        node_write(c, n, &m, now_ns);
    n->beats = msg_finish(&m, &err) && peer_ask(n->peer, &m, ASK_MS, (uint64_t)(2 * i), &err);
    msg_release(&m);
}

static void work_ask(struct crowd_nodes *c, int64_t i)
{
    struct node *n = &c->node[i];
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    char name[64];
    if (n->works)
        return;
    snprintf(name, sizeof(name), "%s/agent", n->name);
    msg_begin(&m, MSG_WORK);
    msg_str(&m, "name", name);
    msg_i64(&m, "start", 1 + i);
    msg_i64(&m, "incarnation", 1);
    msg_i64(&m, "step", 0);
    msg_i64(&m, "version", 0);
    msg_i64(&m, "made", 0);
    msg_bool(&m, "produces", true);
    msg_bool(&m, "consumes", true);
    msg_i64(&m, "items", 0);
    msg_list(&m, "shared");
    msg_end(&m);
    n->works = msg_finish(&m, &err) && peer_ask(n->peer, &m, ASK_MS, (uint64_t)(2 * i + 1), &err);
    msg_release(&m);
}

void crowd_nodes_answered(struct crowd_nodes *c, const struct net_event *ev, int64_t now_ns)
{
    int64_t i = (int64_t)(ev->tag / 2);
    struct msg_in in;
    struct error err;
    char kind[16] = "";
    if (i >= c->n)
        return;
    struct node *n = &c->node[i];
    if (ev->tag % 2 == 0) {
        n->beats = false;
        if (n->again)
            beat_send(c, i, false, now_ns);
        n->again = false;
        return;
    }
    n->works = false;
    if (!ev->failed && msg_read_answer(&in, MSG_WORK, ev->data, ev->len, &err)) {
        mval_text(in.root, "kind", kind, sizeof(kind));
        msg_in_release(&in);
        bool paused = strcmp(kind, "items") != 0;
        if (paused != n->paused) {    // a change of phase is reported at once
            n->paused = paused;
            beat_send(c, i, false, now_ns);
        }
    }
    work_ask(c, i);
}

void crowd_nodes_tick(struct crowd_nodes *c, int64_t now_ns)
{
    double steps = (double)(now_ns - c->start_ns) * 1e-9 / c->options.run.step_s, began;
    const char *phase = simulate_phase(steps - (double)(int64_t)steps, &began);
    if (strcmp(phase, c->phase) != 0) {
        c->phase = phase;
        c->phase_ns = now_ns;
    }
    for (int64_t i = 0; i < c->n; i++) {
        if (now_ns >= c->node[i].beat_ns)
            beat_send(c, i, true, now_ns);
        work_ask(c, i);
    }
}

struct crowd_nodes *crowd_nodes_new(const struct crowd_options *o, struct transport *t, int64_t now_ns, struct error *err)
{
    struct crowd_nodes *c = calloc(1, sizeof(*c));
    if (c)
        c->node = calloc((size_t)o->agents, sizeof(*c->node));
    if (!c || !c->node) {
        free(c);
        error_set(err, ERR_NO_MEMORY, "no memory for %" PRId64 " agents", o->agents);
        return NULL;
    }
    c->options = *o;
    c->start_ns = c->phase_ns = now_ns;
    c->phase = "";
    for (; c->n < o->agents; c->n++) {
        struct node *n = &c->node[c->n];
        crowd_node_name(n->name, c->n);
        n->random = o->run.seed * 0x9e3779b97f4a7c15u + (uint64_t)c->n;
        uint64_t draw = mix64_next(&n->random);
        n->fault = draw % 97 == 0   ? FAULT_LOST
                   : draw % 61 == 0 ? FAULT_HOT
                   : draw % 89 == 0 ? FAULT_ERRORS
                   : draw % 83 == 0 ? FAULT_STUCK
                                    : FAULT_NONE;
        n->fault_gpu = (int64_t)(draw >> 32) % o->gpus;
        n->beat_ns = now_ns + (int64_t)(1e9 / o->rate * (double)c->n / (double)o->agents);    // spread over the interval
        if (!(n->peer = peer_new(t, CROWD_GATE, err))) {
            crowd_nodes_free(c);
            return NULL;
        }
    }
    return c;
}

void crowd_nodes_free(struct crowd_nodes *c)
{
    if (!c)
        return;
    for (int64_t i = 0; i < c->n; i++)
        peer_free(c->node[i].peer);
    free(c->node);
    free(c);
}
