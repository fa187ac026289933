/* The nodes: which may join, which are present, which have left, and what operators ask of them. */
#include "workers/node/gate_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/name_hash.h"
#include "protocol/settings/knobs.h"
#include "workers/host/node_watch.h"

#define LETTER_WAIT_MS 200    // until a letter may be free
#define JOINING_MS 10000      // from a node's question to its first sign of life, unless it has much to fetch
#define BEAT_BYTES_MAX ((size_t)1 << 20)
#define RETURN_MS 2000    // for nodes to find a gate that has opened again: they try every 250 ms

struct node_seen *node_find(struct gate *g, const char *name)
{
    uint32_t key = name_hash(name, strlen(name));
    for (int i = 0; i < g->n_node; i++)
        if (g->name_key[i] == key && strcmp(g->node[i].node.name, name) == 0)
            return &g->node[i];
    return NULL;
}

/* The controller must hear of it, or the node's items would never be issued again: while no letter is free the node counts as present, and
 * its silence leads here again. */
static void node_gone(struct gate *g, struct node_seen *n, const char *reason)
{
    struct error err;
    struct msg_out *m = letter_begin(g, MSG_GONE);
    if (!m)
        return;
    n->here = false;
    log_warn("node '%s' is gone: %s", n->node.name, reason);
    seat_free(g, &n->node);
    relays_drop(&g->relays, n->node.name);    // sent again, it would arrive after the news that the node left, and be given work
    msg_str(m, "node", n->node.name);
    msg_str(m, "reason", reason);
    if (!msg_finish(m, &err))
        msg_release(m);
}

void node_release(struct node_seen *n)
{
    buf_release(&n->beat);
    msg_release(&n->processes);
    msg_release(&n->figures);
}

static void node_remove(struct gate *g, struct node_seen *n)
{
    struct error err;
    if (n->restarter) {
        error_set(&err, ERR_CLOSED, "node '%s' has left", n->node.name);
        request_refuse(n->restarter, &err);
    }
    node_release(n);
    g->name_key[n - g->node] = g->name_key[g->n_node - 1];
    *n = g->node[--g->n_node];
    g->node[g->n_node] = (struct node_seen){ 0 };
}

/* A place after the last. NULL: see err. */
static struct node_seen *node_add(struct gate *g, const struct node *who, struct error *err)
{
    if (g->n_node == g->node_cap) {
        int cap = MIN(MAX(2 * g->node_cap, 16), NODES_MAX);
        struct node_seen *grown = realloc(g->node, (size_t)cap * sizeof *grown);
        if (!grown) {
            error_set(err, ERR_NO_MEMORY, "no memory for %d nodes", cap);
            return NULL;
        }
        g->node = grown;
        g->node_cap = cap;
    }
    g->name_key[g->n_node] = name_hash(who->name, strlen(who->name));
    struct node_seen *n = &g->node[g->n_node++];
    *n = (struct node_seen){ .node = *who, .processes = MSG_OUT_INIT, .figures = MSG_OUT_INIT };
    return n;
}

/* Find a place for a node with this name and id: its own, that of a node that is gone, or a new one. NULL: see err. */
static struct node_seen *node_place(struct gate *g, const struct node *who, struct error *err)
{
    struct node_seen *n = node_find(g, who->name);
    if (n && strcmp(n->node.id, who->id) != 0) {
        if (n->here) {
            error_set(err, ERR_EXISTS, "a node called '%s' has already joined, from host '%s'; choose another --name", who->name,
                      n->node.host);
            return NULL;
        }
        node_remove(g, n);
        n = NULL;
    }
    for (int i = 0; !n && g->n_node == NODES_MAX && i < g->n_node; i++)
        if (!g->node[i].here)
            node_remove(g, &g->node[i]);
    if (!n && g->n_node == NODES_MAX) {
        error_set(err, ERR_FULL, "%d nodes have already joined", NODES_MAX);
        return NULL;
    }
    if (!n && !(n = node_add(g, who, err)))
        return NULL;
    snprintf(n->node.host, sizeof n->node.host, "%s", who->host);
    return n;
}

static bool who_read(const struct mval *root, struct node *who, struct error *err)
{
    *who = (struct node){ 0 };
    size_t len = 0;
    const char *name = mval_str(mval_get(root, "node"), &len);
    if (!name || len > NODE_NAME_MAX)
        return error_set(err, ERR_DATA, "a node's name is at most %d bytes", NODE_NAME_MAX);
    mval_text(root, "node", who->name, sizeof who->name);
    mval_text(root, "id", who->id, sizeof who->id);
    mval_text(root, "host", who->host, 65);
    return node_name_check(who->name, err) && (strlen(who->id) == 32 || error_set(err, ERR_DATA, "a node's id is 32 hexadecimal digits"));
}

/* It is about to come: a run that ends meanwhile has to tell it. */
static void joining_note(struct gate *g, const struct node *who)
{
    struct error ignored;
    struct node_seen *n = node_place(g, who, &ignored);
    if (!n)
        return;
    n->asked_ms = clock_ms();
    n->told = false;
}

void join_asked(struct gate *g, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct node who;
    char device[16];
    struct msg_out m = MSG_OUT_INIT;
    const char *run = strrchr(g->process.run_dir, '/');
    if (!who_read(in->root, &who, &err))
        goto refuse;
    mval_text(in->root, "device", device, sizeof device);
    if (strcmp(device, g->device) != 0) {
        error_set(&err, ERR_UNSUPPORTED, "this run samples on %s devices, the node has %s: the same seeds would give different bits",
                  g->device, device);
        goto refuse;
    }
    if (run_over(g)) {
        error_set(&err, ERR_REFUSED, "the run has ended (%s)", g->state);
        goto refuse;
    }
    struct node_seen *n = node_find(g, who.name);
    if (n && n->here && strcmp(n->node.id, who.id) != 0) {
        node_place(g, &who, &err);    // this names the node
        goto refuse;
    }
    if (n && strcmp(n->node.id, who.id) == 0)
        n->dismissed[0] = 0;    // it was dismissed, and is asked to join again
    int64_t n_device = mval_i64(mval_get(in->root, "producers"), 0), first = -1;
    if (!gate_lent(g, r))    // a lent machine does not train
        first = seat_give(g, &who, n_device);
    msg_begin(&m, MSG_OK);
    msg_str(&m, "name", run ? run + 1 : g->process.run_dir);
    msg_i64(&m, "first_trainer", first);
    msg_strn(&m, "settings", g->settings.data, g->settings.len);
    msg_str(&m, "hash", g->hash);
    msg_list(&m, "files");
    for (int i = 0; i < (first < 0 ? g->n_common : g->n_file); i++) {
        msg_map(&m, NULL);
        msg_str(&m, "name", g->file[i].name);
        msg_i64(&m, "size_bytes", g->file[i].size_bytes);
        msg_str(&m, "hash", g->file[i].hash);
        msg_end(&m);
    }
    msg_end(&m);
    if (msg_finish(&m, &err)) {
        log_info("node '%s' on host '%s' asks to join with %" PRId64 " devices; first trainer there: %" PRId64, who.name, who.host,
                 n_device, first);
        joining_note(g, &who);
        request_answer(r, &m);
        msg_release(&m);
        return;
    }
refuse:
    log_warn("a node is refused: %s", err.text);
    request_refuse(r, &err);
    msg_release(&m);
}

/* The process id of a node's process from its last message; 0: there is none. */
static int64_t node_process_pid(const struct node_seen *n, const char *name)
{
    struct msg_in in;
    struct error err;
    int64_t pid = 0;
    if (!n->beat.len || !msg_read_request(&in, n->beat.data, n->beat.len, &err))
        return 0;
    const struct mval *list = mval_get(in.root, "processes");
    for (int64_t i = 0; i < mval_n(list); i++) {
        char text[64];
        if (strcmp(mval_text(mval_at(list, i), "name", text, sizeof text), name) == 0)
            pid = mval_i64(mval_get(mval_at(list, i), "pid"), 0);
    }
    msg_in_release(&in);
    return pid;
}

static void restarter_answer(struct node_seen *n, int64_t pid)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    char text[160];
    snprintf(text, sizeof text, "'%s/%s' is running again, pid %" PRId64, n->node.name, n->restart, pid);
    msg_begin(&m, MSG_OK);
    msg_str(&m, "effect", text);
    msg_i64(&m, "step", 0);
    if (msg_finish(&m, &err))
        request_answer(n->restarter, &m);
    else
        request_refuse(n->restarter, &err);
    msg_release(&m);
    n->restarter = NULL;
    n->restart[0] = 0;
}

static void process_write(struct msg_out *m, const char *node, const struct mval *p)
{
    static const char *const same[] = { "kind",    "plays",   "pid",      "phase", "phase_s", "progress", "waits_for",
                                        "verdict", "heard_s", "restarts", "cpu",   "rss_mib", "gauges" };
    char name[200], own[64];
    snprintf(name, sizeof name, "%s/%s", node, mval_text(p, "name", own, sizeof own));
    msg_map(m, NULL);
    msg_str(m, "name", name);
    msg_str(m, "node", node);
    for (size_t f = 0; f < ARRAY_SIZE(same); f++)
        if (mval_get(p, same[f]))
            msg_copy(m, same[f], mval_get(p, same[f]));
    msg_end(m);
}

/* What a node has said of itself: as it came, and as our heartbeats pass it on. That is made here, a node at a time: made for all nodes
 * at once it would keep the others waiting for 10 ms and more. */
static void beat_keep(struct node_seen *n, const struct msg_in *in)
{
    const struct mval *list = mval_get(in->root, "processes"), *figures = mval_get(in->root, "figures");
    buf_clear(&n->beat);
    msg_values_begin(&n->processes);
    msg_values_begin(&n->figures);
    if (in->len > BEAT_BYTES_MAX)
        return;
    buf_add(&n->beat, in->data, in->len);
    for (int64_t k = 0; k < MIN(mval_n(list), (int64_t)80); k++)
        process_write(&n->processes, n->node.name, mval_at(list, k));
    if (!figures)
        return;
    msg_map(&n->figures, NULL);
    node_figures_copy(&n->figures, figures, n->node.name);
    msg_end(&n->figures);
}

/* Tell the operator that a node is there, and which trainers are on it, or why none are that it could have. */
static void arrival_tell(struct gate *g, const struct node_seen *n, int64_t first, int64_t n_device)
{
    char text[600], trainers[64];
    int64_t needs = first >= 0 || n->lent ? 0 : seat_missed(g, n_device, &first);
    int64_t last = first + run_config_trainers_at(&g->config, MAX(first, (int64_t)0)) - 1;
    if (first == last)
        snprintf(trainers, sizeof trainers, "trainer %" PRId64, first);
    else
        snprintf(trainers, sizeof trainers, "trainers %" PRId64 " to %" PRId64, first, last);
    int at = snprintf(text, sizeof text, "node '%s' (host '%s') has %s", n->node.name, n->node.host, n->here ? "restarted" : "joined");
    if (needs > 0)
        snprintf(text + at, sizeof text - (size_t)at, ", and only samples: for %s it needs %" PRId64 " devices, and has %" PRId64, trainers,
                 needs, n_device);
    else if (first >= 0)
        snprintf(text + at, sizeof text - (size_t)at, ", with %s", trainers);
    event_tell(g, "node", "gate", text);
}

static int64_t silence_ms_of(const struct gate *g)
{
    return (int64_t)(1000 * MAX(g->config.slow_s, 3 * g->config.heartbeat_s));
}

void node_asked(struct gate *g, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct node who;
    char reason[300], hash[65];
    const char *order = "go", *why = "";
    struct msg_out m = MSG_OUT_INIT;
    bool leaving = mval_bool(mval_get(in->root, "leaving"), false);
    int64_t start = mval_i64(mval_get(in->root, "start"), 0), first = mval_i64(mval_get(in->root, "first_trainer"), -1);
    if (!who_read(in->root, &who, &err)) {
        request_refuse(r, &err);
        return;
    }
    mval_text(in->root, "hash", hash, sizeof hash);
    struct node_seen *n = node_place(g, &who, &err);
    if (!n) {
        log_warn("a node is refused: %s", err.text);
        request_refuse(r, &err);
        return;
    }
    n->lent = gate_lent(g, r);
    if (n->connection[0] != request_connection(r) && n->connection[1] != request_connection(r)) {
        n->connection[1] = n->connection[0];
        n->connection[0] = request_connection(r);
    }
    mval_text(in->root, "token", n->token_id, sizeof n->token_id);
    n->heard_ms = clock_ms();
    beat_keep(n, in);
    mval_text(in->root, "reason", reason, sizeof reason);
    if (leaving) {
        order = "stop";
        n->told = true;
        if (n->here)
            node_gone(g, n, reason[0] ? reason : "it was asked to leave");
    } else if (n->dismissed[0]) {
        order = "stop";
        why = n->dismissed;
        n->told = true;
    } else if (run_over(g) || process_is_over(&g->process)) {
        order = "stop";
        why = "the run has ended";
        n->told = true;
    } else if (strcmp(hash, g->hash) != 0) {
        order = "join";
        why = "the run's settings or files have changed";
    } else if (first >= 0 && (n->lent || !seat_hold(g, &who, first))) {
        order = "join";
        why = "its trainers are on another node now";
    } else if (first < 0 && !n->lent && seat_spare(g, &who, mval_i64(mval_get(in->root, "devices"), 0))) {
        order = "join";
        why = "trainers of the run are to be here now";
    } else if (!n->here || n->start != start) {
        arrival_tell(g, n, first, mval_i64(mval_get(in->root, "devices"), 0));
        n->here = true;
        g->nodes_look_ms = MIN(g->nodes_look_ms, n->heard_ms + silence_ms_of(g) + 1);
        n->start = start;
        n->told = false;
    }
    if (n->restarter) {
        int64_t pid = node_process_pid(n, n->restart);
        if (pid && pid != n->restart_pid)
            restarter_answer(n, pid);
    }
    msg_begin(&m, MSG_OK);
    msg_str(&m, "order", order);
    msg_str(&m, "reason", why);
    msg_str(&m, "state", g->state);
    msg_i64(&m, "step", g->step);
    msg_map(&m, "knobs");
    knobs_watch_write(&g->config, &m);
    msg_end(&m);
    if (n->restarter) {
        msg_str(&m, "restart", n->restart);
        msg_i64(&m, "restart_pid", n->restart_pid);
    }
    if (token_news(g, n))
        msg_str(&m, "token", token_news(g, n));
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    else
        request_refuse(r, &err);
    msg_release(&m);
    if (leaving && !n->here)
        node_remove(g, n);
}

int64_t nodes_known_ms(const struct gate *g)
{
    return g->opened_ms + RETURN_MS + (int64_t)(3000 * g->config.heartbeat_s);
}

int64_t nodes_due(const struct gate *g)
{
    return g->nodes_look_ms;
}

void nodes_tick(struct gate *g)
{
    struct error err;
    int64_t now = clock_ms(), silence_ms = silence_ms_of(g);
    if (now < g->nodes_look_ms)
        return;
    g->nodes_look_ms = INT64_MAX;
    for (int i = 0; i < g->n_node; i++) {
        struct node_seen *n = &g->node[i];
        for (size_t k = 0; n->here && k < ARRAY_SIZE(n->connection); k++)
            n->heard_ms = MAX(n->heard_ms, connection_heard_ms(g->process.transport, n->connection[k]));
        if (n->here && now - n->heard_ms > silence_ms) {
            char text[100];
            snprintf(text, sizeof text, "no sign of life for %.0f s", (double)(now - n->heard_ms) / 1000);
            node_gone(g, n, text);
        }
        if (n->restarter && now > n->restart_limit_ms) {
            error_set(&err, ERR_TIMEOUT, "'%s/%s' has not come back in time", n->node.name, n->restart);
            request_refuse(n->restarter, &err);
            n->restarter = NULL;
            n->restart[0] = 0;
        }
        int64_t at = n->heard_ms + silence_ms + 1;
        if (n->here)
            g->nodes_look_ms = MIN(g->nodes_look_ms, at > now ? at : now + LETTER_WAIT_MS);    // overdue: it waits for a letter
        if (n->restarter)
            g->nodes_look_ms = MIN(g->nodes_look_ms, n->restart_limit_ms + 1);
    }
}

static void node_dismiss(struct gate *g, struct request *r, const struct mval *root, struct error *err)
{
    char name[64], who[120], text[160];
    struct msg_out m = MSG_OUT_INIT;
    struct node_seen *n = node_find(g, mval_text(mval_get(root, "args"), "node", name, sizeof name));
    if (!n || n->heard_ms == 0) {    // or one has only asked to join, and would come in spite of this
        error_set(err, ERR_NOT_FOUND, "no node is called '%s'; 'rollcall ctl status' shows them as NODE/PROCESS", name);
        request_refuse(r, err);
        return;
    }
    snprintf(n->dismissed, sizeof n->dismissed, "dismissed by %s", mval_text(root, "who", who, sizeof who));
    snprintf(text, sizeof text, n->here ? "node '%s' is dismissed" : "node '%s', which was lost, is forgotten", name);
    event_tell(g, "command", who, text);
    if (n->here)
        node_gone(g, n, n->dismissed);
    else
        node_remove(g, n);
    msg_begin(&m, MSG_OK);
    msg_str(&m, "effect", text);
    msg_i64(&m, "step", g->step);
    if (msg_finish(&m, err))
        request_answer(r, &m);
    else
        request_refuse(r, err);
    msg_release(&m);
}

/* Kill a node's process, which its agent restarts; answered when it is running again. */
static void node_restart(struct gate *g, struct request *r, const struct mval *root)
{
    struct error err;
    char process[120], node[120], who[120], text[300];
    mval_text(mval_get(root, "args"), "process", process, sizeof process);
    snprintf(node, sizeof node, "%.*s", (int)strcspn(process, "/"), process);
    const char *slash = strchr(process, '/');
    struct node_seen *n = node_find(g, node);
    int64_t pid = n && n->here && slash ? node_process_pid(n, slash + 1) : 0;
    if (!pid) {
        error_set(&err, ERR_NOT_FOUND, "no living process of a node is called '%s'; 'rollcall ctl status' lists them", process);
        request_refuse(r, &err);
        return;
    }
    if (n->restarter)    // asked again, or for another process: the newer request waits
        request_drop(n->restarter);
    if (strcmp(n->restart, slash + 1) != 0) {
        snprintf(text, sizeof text, "'%s' (pid %" PRId64 ") is killed and restarted", process, pid);
        event_tell(g, "command", mval_text(root, "who", who, sizeof who), text);
        n->restart_pid = pid;
    }
    snprintf(n->restart, sizeof n->restart, "%.63s", slash + 1);
    n->restarter = r;
    n->restart_limit_ms = clock_ms() + command_limit_ms(root, 60);
    g->nodes_look_ms = MIN(g->nodes_look_ms, n->restart_limit_ms + 1);
}

void node_command(struct gate *g, struct request *r, const struct msg_in *in)
{
    struct error err;
    char command[32];
    mval_text(in->root, "command", command, sizeof command);
    if (strcmp(command, "dismiss") == 0) {
        node_dismiss(g, r, in->root, &err);
    } else if (strcmp(command, "restart") == 0) {
        node_restart(g, r, in->root);
    } else if (strcmp(command, "rotate-token") == 0) {
        token_rotate(g, r, in);
    } else {
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for the gate", command);
        request_refuse(r, &err);
    }
}

static void lost_write(struct msg_out *m, const struct node_seen *n)
{
    char name[200], waits[120];
    double silent_s = (double)(clock_ms() - n->heard_ms) / 1000;
    snprintf(name, sizeof name, "%s/agent", n->node.name);
    snprintf(waits, sizeof waits, "no sign of life for %.0f s", silent_s);
    msg_map(m, NULL);
    msg_str(m, "name", name);
    msg_str(m, "node", n->node.name);
    msg_str(m, "kind", "agent");
    msg_i64(m, "pid", 0);
    msg_str(m, "phase", "lost");
    msg_f64(m, "phase_s", silent_s);
    msg_str(m, "waits_for", waits);
    msg_str(m, "verdict", "stuck");
    msg_end(m);
}

void nodes_write(void *ctx, struct msg_out *m)
{
    const struct gate *g = ctx;
    msg_list(m, "processes");
    for (int i = 0; i < g->n_node; i++) {
        const struct node_seen *n = &g->node[i];
        if (n->heard_ms > 0 && !n->here)    // else it has only asked to join
            lost_write(m, n);
        else if (n->heard_ms > 0)
            msg_values_add(m, &n->processes);
    }
    msg_end(m);
    msg_list(m, "nodes");
    for (int i = 0; i < g->n_node; i++)
        if (g->node[i].here)
            msg_values_add(m, &g->node[i].figures);
    msg_end(m);
}

bool nodes_told(const struct gate *g)
{
    int64_t now = clock_ms();
    for (int i = 0; i < g->n_node; i++) {
        const struct node_seen *n = &g->node[i];
        bool joining = n->asked_ms > 0 && now - n->asked_ms < JOINING_MS;
        if ((n->here || joining) && !n->told)
            return false;
    }
    return true;
}
