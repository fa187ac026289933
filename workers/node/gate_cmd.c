/* gate_cmd.c - the head's side of other nodes: see node.h
 *
 * One loop. Requests of nodes come in over TLS (only holders of the run's join token get so far); join, node and file are answered
 * here, work, group and done go on to the controller, questions and commands to the agent. Restarting a node's process and
 * dismissing a node are asked here by the agent, on the socket `gate`.
 * What the journal must have (nodes that come and go) is asked of the controller until it has answered. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "console/commands.h"
#include "protocol/base/clock.h"
#include "protocol/base/file.h"
#include "protocol/base/log.h"
#include "protocol/join_token.h"
#include "protocol/run_config.h"
#include "workers/model/model_dir.h"
#include "workers/node/node.h"
#include "workers/node/relay.h"
#include "workers/process.h"
#include "workers/text/digest.h"

#define NODES_MAX 64
#define N_OPEN 160               // requests of nodes held open at once
#define SETTINGS_MAX ((size_t)1 << 20)
#define WORK_LIMIT_MS 12000      // the controller holds a request for work 2 s; the worker gives up after 15
#define GROUP_LIMIT_MS 20000
#define QUESTION_LIMIT_MS 10000
#define COMMAND_LIMIT_S 86400
#define LETTERS_MAX 64
#define FAREWELL_MS 3000         // for every node to hear that it is over
#define STATUS_LIMIT_MS 2000

struct node_seen {
    struct node node;            // name, id, host
    bool here;                   // heard lately
    bool told;                   // it has been ordered to stop
    int64_t start, heard_ms, n_producer;
    char dismissed[200];         // by whom; "": it is welcome
    char restart[64];            // a process of it that an operator wants restarted
    int64_t restart_pid;         // its process id until then
    struct request *restarter;   // who waits for that
    int64_t restart_limit_ms;
    struct buf beat;             // its last message node
};
struct letter {                  // asked of the controller until it has been answered
    struct msg_out msg;          // empty: free
    bool open;
    int64_t again_ms;
};
struct gate {
    struct process process;
    struct run_config config;
    struct peer *controller;
    struct server *nodes, *local;
    struct relays relays;
    struct node_file file[NODE_FILES_MAX];
    int n_file;
    struct buf settings;
    char hash[65], device[16];
    struct node_seen node[NODES_MAX];
    int n_node;
    struct letter letter[LETTERS_MAX];
    char state[32];              // the run's, as its agent tells
    int64_t step, status_ms;
    bool status_open;
    int64_t n_piece;             // pieces of files given
};
enum { TAG_STATUS = 1, TAG_LETTER = 16 };

/* ---- what a node needs ---- */

static void beat_tick(void *ctx)
{
    struct net_event ev;
    struct gate *g = ctx;
    g->process.progress++;
    if (process_wait(&g->process, &ev, 0))    // nothing is open yet: nothing is lost
        net_event_release(&ev);
}

static bool file_add(struct gate *g, const char *name, const char *path, struct error *err)
{
    if (g->n_file == NODE_FILES_MAX)
        return error_set(err, ERR_FULL, "a node would need more than %d files", NODE_FILES_MAX);
    struct node_file *f = &g->file[g->n_file];
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->path, sizeof f->path, "%s", path);
    if (!node_file_name_ok(f->name))
        return error_set(err, ERR_UNSUPPORTED, "'%s' cannot be handed to other nodes: its name is too long or hidden", path);
    if (!node_file_hash(path, f->hash, &f->size_bytes, beat_tick, g, err))
        return false;
    g->n_file++;
    return true;
}

/* Settings, the model's small files and the data; the weights come with each version. */
static bool files_make(struct gate *g, struct error *err)
{
    char path[4300], name[300];
    struct digest d;
    const char *slash = strrchr(g->config.dataset, '/');
    snprintf(path, sizeof path, "%s/run.yaml", g->process.run_dir);
    if (!file_read(&g->settings, path, SETTINGS_MAX, err))
        return false;
    for (int i = 0; model_dir_file(i); i++) {
        snprintf(name, sizeof name, "model/%s", model_dir_file(i));
        if (path_join(path, sizeof path, g->config.model, model_dir_file(i)) && path_exists(path) && !file_add(g, name, path, err))
            return false;
    }
    snprintf(name, sizeof name, "data/%.250s", slash ? slash + 1 : g->config.dataset);
    if (!file_add(g, name, g->config.dataset, err))
        return false;
    digest_init(&d, true);
    digest_add(&d, g->settings.data, g->settings.len);
    for (int i = 0; i < g->n_file; i++) {
        digest_add(&d, g->file[i].name, strlen(g->file[i].name) + 1);
        digest_add(&d, g->file[i].hash, 64);
    }
    digest_hex(&d, g->hash);
    return true;
}

/* ---- letters to the controller ---- */

static struct msg_out *letter_begin(struct gate *g, enum msg_type type)
{
    for (int i = 0; i < LETTERS_MAX; i++)
        if (!g->letter[i].msg.buf.len) {
            g->letter[i] = (struct letter){ .msg = MSG_OUT_INIT };
            msg_begin(&g->letter[i].msg, type);
            return &g->letter[i].msg;
        }
    return NULL;    // the log has it
}

static void event_tell(struct gate *g, const char *kind, const char *who, const char *text)
{
    struct error err;
    struct msg_out *m = letter_begin(g, MSG_PUBLISH);
    log_info("%s", text);
    if (!m)
        return;
    msg_str(m, "topic", "event");
    msg_map(m, "body");
    msg_str(m, "kind", kind);
    msg_str(m, "who", who);
    msg_str(m, "text", text);
    msg_end(m);
    if (!msg_finish(m, &err))
        msg_release(m);
}

static void letters_tick(struct gate *g)
{
    struct error err;
    int64_t now = clock_ms();
    for (int i = 0; i < LETTERS_MAX; i++) {
        struct letter *l = &g->letter[i];
        if (!l->msg.buf.len || l->open || now < l->again_ms)
            continue;
        l->open = peer_ask(g->controller, &l->msg, 5000, TAG_LETTER + (uint64_t)i, &err);
        l->again_ms = now + 200;
    }
}

/* ---- nodes ---- */

static struct node_seen *node_find(struct gate *g, const char *name)
{
    for (int i = 0; i < g->n_node; i++)
        if (strcmp(g->node[i].node.name, name) == 0)
            return &g->node[i];
    return NULL;
}

static void node_gone(struct gate *g, struct node_seen *n, const char *reason)
{
    struct error err;
    n->here = false;
    log_warn("node '%s' has gone: %s", n->node.name, reason);
    struct msg_out *m = letter_begin(g, MSG_GONE);
    if (!m)
        return;
    msg_str(m, "node", n->node.name);
    msg_str(m, "reason", reason);
    if (!msg_finish(m, &err))
        msg_release(m);
}

static void node_remove(struct gate *g, struct node_seen *n)
{
    struct error err;
    if (n->restarter) {
        error_set(&err, ERR_CLOSED, "node '%s' has left", n->node.name);
        request_refuse(n->restarter, &err);
    }
    buf_release(&n->beat);
    *n = g->node[--g->n_node];
    g->node[g->n_node] = (struct node_seen){ 0 };
}

/* A place for a node of this name and id: its own, that of one that has gone, or a new one. NULL: see err. */
static struct node_seen *node_place(struct gate *g, const struct node *who, struct error *err)
{
    struct node_seen *n = node_find(g, who->name);
    if (n && strcmp(n->node.id, who->id) != 0) {
        if (n->here) {
            error_set(err, ERR_EXISTS, "a node called '%s' is here already, from host '%s'; choose another --name", who->name, n->node.host);
            return NULL;
        }
        node_remove(g, n);
        n = NULL;
    }
    for (int i = 0; !n && g->n_node == NODES_MAX && i < g->n_node; i++)
        if (!g->node[i].here)
            node_remove(g, &g->node[i]);
    if (!n && g->n_node == NODES_MAX) {
        error_set(err, ERR_FULL, "%d nodes are here already", NODES_MAX);
        return NULL;
    }
    if (!n) {
        n = &g->node[g->n_node++];
        *n = (struct node_seen){ .node = *who };
    }
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

static bool run_over(const struct gate *g)
{
    return !strcmp(g->state, "finished") || !strcmp(g->state, "failed") || !strcmp(g->state, "stopped");
}

static void join_asked(struct gate *g, struct request *r, const struct msg_in *in)
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
        error_set(&err, ERR_UNSUPPORTED, "this run samples on %s devices, the node has %s: the same seeds would give other bits", g->device, device);
        goto refuse;
    }
    if (run_over(g)) {
        error_set(&err, ERR_REFUSED, "the run has ended (%s)", g->state);
        goto refuse;
    }
    struct node_seen *n = node_find(g, who.name);
    if (n && n->here && strcmp(n->node.id, who.id) != 0) {
        node_place(g, &who, &err);    // says who is there
        goto refuse;
    }
    if (n && strcmp(n->node.id, who.id) == 0)
        n->dismissed[0] = 0;    // it was sent away, and has been told to come again
    msg_begin(&m, MSG_OK);
    msg_str(&m, "name", run ? run + 1 : g->process.run_dir);
    msg_strn(&m, "settings", g->settings.data, g->settings.len);
    msg_str(&m, "hash", g->hash);
    msg_list(&m, "files");
    for (int i = 0; i < g->n_file; i++) {
        msg_map(&m, NULL);
        msg_str(&m, "name", g->file[i].name);
        msg_i64(&m, "size_bytes", g->file[i].size_bytes);
        msg_str(&m, "hash", g->file[i].hash);
        msg_end(&m);
    }
    msg_end(&m);
    if (msg_finish(&m, &err)) {
        log_info("node '%s' of host '%s' asks to join with %" PRId64 " producers", who.name, who.host,
                 mval_i64(mval_get(in->root, "producers"), 0));
        request_answer(r, &m);
        msg_release(&m);
        return;
    }
refuse:
    log_warn("a node is refused: %s", err.text);
    request_refuse(r, &err);
    msg_release(&m);
}

/* The process id of a node's process by its last message; 0: not there. */
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
    snprintf(text, sizeof text, "'%s/%s' lives again, pid %" PRId64, n->node.name, n->restart, pid);
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

static void node_asked(struct gate *g, struct request *r, const struct msg_in *in, const void *data, size_t len)
{
    struct error err;
    struct node who;
    char text[320], reason[300], hash[65];
    const char *order = "go", *why = "";
    struct msg_out m = MSG_OUT_INIT;
    bool leaving = mval_bool(mval_get(in->root, "leaving"), false);
    int64_t start = mval_i64(mval_get(in->root, "start"), 0);
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
    n->heard_ms = clock_ms();
    buf_clear(&n->beat);
    if (len <= (size_t)1 << 20)
        buf_add(&n->beat, data, len);
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
        why = "the run's settings or files are others now";
    } else if (!n->here || n->start != start) {
        snprintf(text, sizeof text, n->here ? "node '%s' (host '%s') lives anew" : "node '%s' (host '%s') has come", n->node.name, n->node.host);
        event_tell(g, "node", "gate", text);
        n->here = true;
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
    if (n->restarter) {
        msg_str(&m, "restart", n->restart);
        msg_i64(&m, "restart_pid", n->restart_pid);
    }
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    else
        request_refuse(r, &err);
    msg_release(&m);
    if (leaving && !n->here)
        node_remove(g, n);
}

static void nodes_tick(struct gate *g)
{
    struct error err;
    int64_t now = clock_ms();
    int64_t silence_ms = (int64_t)(1000 * MAX(g->config.slow_s, 3 * g->config.heartbeat_s));
    for (int i = 0; i < g->n_node; i++) {
        struct node_seen *n = &g->node[i];
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
    }
}

/* For the heartbeat: the processes of all nodes, named NODE/NAME. */
static void processes_write(void *ctx, struct msg_out *m)
{
    struct gate *g = ctx;
    int64_t now = clock_ms();
    for (int i = 0; i < g->n_node; i++) {
        const struct node_seen *n = &g->node[i];
        struct msg_in in;
        struct error err;
        char name[200], waits[120];
        double silent_s = (double)(now - n->heard_ms) / 1000;
        if (!n->here) {
            snprintf(name, sizeof name, "%s/agent", n->node.name);
            snprintf(waits, sizeof waits, "lost: no sign of life for %.0f s", silent_s);
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
            continue;
        }
        if (!n->beat.len || !msg_read_request(&in, n->beat.data, n->beat.len, &err))
            continue;
        const struct mval *list = mval_get(in.root, "processes");
        for (int64_t k = 0; k < MIN(mval_n(list), (int64_t)80); k++) {
            const struct mval *p = mval_at(list, k);
            char own[64];
            snprintf(name, sizeof name, "%s/%s", n->node.name, mval_text(p, "name", own, sizeof own));
            msg_map(m, NULL);
            msg_str(m, "name", name);
            msg_str(m, "node", n->node.name);
            static const char *const same[] = { "kind", "plays", "pid", "phase", "phase_s", "progress", "waits_for", "verdict", "heard_s", "restarts",
                                                "cpu", "rss_mib", "gauges" };
            for (size_t f = 0; f < ARRAY_SIZE(same); f++)
                if (mval_get(p, same[f]))
                    msg_copy(m, same[f], mval_get(p, same[f]));
            msg_end(m);
        }
        msg_in_release(&in);
    }
}

/* ---- files ---- */

static void file_asked(struct gate *g, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct stat st;
    struct msg_out m = MSG_OUT_INIT;
    char name[160], path[4300] = "";
    int fd = -1;
    int64_t version = mval_i64(mval_get(in->root, "version"), -1), offset = mval_i64(mval_get(in->root, "offset"), -1);
    int64_t n = mval_i64(mval_get(in->root, "n_bytes"), 0);
    char *piece = NULL;
    mval_text(in->root, "name", name, sizeof name);
    for (int i = 0; !path[0] && i < g->n_file; i++)
        if (strcmp(g->file[i].name, name) == 0)
            snprintf(path, sizeof path, "%s", g->file[i].path);
    if (!path[0] && version >= 0) {
        snprintf(path, sizeof path, "%s/sock/weights-%" PRId64, g->process.run_dir, version);
        snprintf(name, sizeof name, "weights of version %" PRId64, version);
    }
    if (!path[0] || offset < 0 || n < 1 || n > NODE_PIECE_BYTES) {
        error_set(&err, ERR_DATA, "no file '%s', or not 1 to %" PRId64 " bytes from an offset on", name, NODE_PIECE_BYTES);
        goto refuse;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        error_set(&err, ERR_NOT_FOUND, "the head has no %s (any more)", name);
        goto refuse;
    }
    n = MAX(MIN(n, st.st_size - offset), (int64_t)0);
    piece = malloc((size_t)MAX(n, (int64_t)1));
    ssize_t got = piece ? pread(fd, piece, (size_t)n, offset) : -1;
    if (got != n) {
        error_errno(&err, "cannot read '%s'", path);
        goto refuse;
    }
    msg_begin(&m, MSG_OK);
    msg_i64(&m, "size_bytes", st.st_size);
    msg_i64(&m, "stamp", (int64_t)(((uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec + (uint64_t)st.st_ino) & INT64_MAX));
    msg_bin(&m, "data", piece, (size_t)n);
    if (msg_finish(&m, &err)) {
        request_answer(r, &m);
        g->n_piece++;
        g->process.progress++;
        goto out;
    }
refuse:
    request_refuse(r, &err);
out:
    if (fd >= 0)
        close(fd);
    free(piece);
    msg_release(&m);
}

/* ---- requests ---- */

/* A worker's name must be that of a node that is here. */
static bool worker_known(struct gate *g, const struct mval *root, struct error *err)
{
    char name[120], node[120];
    mval_text(root, "name", name, sizeof name);
    snprintf(node, sizeof node, "%.*s", (int)strcspn(name, "/"), name);
    const struct node_seen *n = strchr(name, '/') ? node_find(g, node) : NULL;
    return (n && n->here && !n->dismissed[0]) || error_set(err, ERR_TIMEOUT, "'%s' is not of a node that is here", name);
}

static void pass_on(struct gate *g, struct net_event *ev, const struct msg_in *in, struct peer *to, int64_t limit_ms)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    if (!buf_add(&m.buf, ev->data, ev->len))
        error_set(&err, ERR_NO_MEMORY, "no memory to pass on %zu bytes", ev->len);
    else if (relay_add(&g->relays, to, ev->request, in->type, &m, limit_ms, &err))
        ev->request = NULL;
    if (ev->request)
        request_refuse(ev->request, &err);
    msg_release(&m);
}

static void request_of_node(struct gate *g, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    switch (in.type) {
    case MSG_JOIN: join_asked(g, ev->request, &in); break;
    case MSG_NODE: node_asked(g, ev->request, &in, ev->data, ev->len); break;
    case MSG_FILE: file_asked(g, ev->request, &in); break;
    case MSG_WORK: case MSG_DONE:
        if (worker_known(g, in.root, &err))
            pass_on(g, ev, &in, g->controller, in.type == MSG_WORK ? WORK_LIMIT_MS : GROUP_LIMIT_MS);
        else
            request_refuse(ev->request, &err);
        break;
    case MSG_GROUP: case MSG_PUBLISH: pass_on(g, ev, &in, g->controller, GROUP_LIMIT_MS); break;
    case MSG_STATUS: case MSG_STEPS: case MSG_EVENTS: case MSG_ROLLOUTS: case MSG_CHECKPOINTS:
        pass_on(g, ev, &in, g->process.agent, QUESTION_LIMIT_MS);
        break;
    case MSG_COMMAND:
        pass_on(g, ev, &in, g->process.agent, (int64_t)(1000 * MIN(MAX(mval_f64(mval_get(in.root, "limit_s"), 600), 0.1), COMMAND_LIMIT_S)) + 2000);
        break;
    case MSG_OK: case MSG_REFUSED: case MSG_HEARTBEAT: case MSG_FETCH: case MSG_SCORE: case MSG_GONE: case MSG_TYPE_COUNT:
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for the gate", msg_specs[in.type].name);
        request_refuse(ev->request, &err);
        break;
    }
    msg_in_release(&in);
}

static void dismiss(struct gate *g, struct request *r, const struct mval *root, struct error *err)
{
    char name[64], who[120], text[160];
    struct msg_out m = MSG_OUT_INIT;
    struct node_seen *n = node_find(g, mval_text(mval_get(root, "args"), "node", name, sizeof name));
    if (!n) {
        error_set(err, ERR_NOT_FOUND, "no node is called '%s'; 'rollcall ctl status' shows them as NODE/PROCESS", name);
        request_refuse(r, err);
        return;
    }
    snprintf(n->dismissed, sizeof n->dismissed, "dismissed by %s", mval_text(root, "who", who, sizeof who));
    snprintf(text, sizeof text, n->here ? "node '%s' is sent away" : "node '%s', which is lost, is forgotten", name);
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
    msg_release(&m);
}

/* From our agent: a command for a node. */
static void request_of_agent(struct gate *g, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    char command[32], process[120], node[120];
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    mval_text(in.root, "command", command, sizeof command);
    if (in.type == MSG_COMMAND && strcmp(command, "dismiss") == 0) {
        dismiss(g, ev->request, in.root, &err);
        goto out;
    }
    mval_text(mval_get(in.root, "args"), "process", process, sizeof process);
    snprintf(node, sizeof node, "%.*s", (int)strcspn(process, "/"), process);
    const char *slash = strchr(process, '/');
    struct node_seen *n = node_find(g, node);
    int64_t pid = n && n->here && slash ? node_process_pid(n, slash + 1) : 0;
    if (in.type != MSG_COMMAND || strcmp(command, "restart") != 0) {
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for the gate", msg_specs[in.type].name);
        request_refuse(ev->request, &err);
    } else if (!pid) {
        error_set(&err, ERR_NOT_FOUND, "no living process of a node is called '%s'; 'rollcall ctl status' lists them", process);
        request_refuse(ev->request, &err);
    } else {
        if (n->restarter)    // asked again, or for another: the newer asker waits
            request_drop(n->restarter);
        if (strcmp(n->restart, slash + 1) != 0) {
            char who[120], text[300];
            snprintf(text, sizeof text, "'%s' (pid %" PRId64 ") is killed and started again", process, pid);
            event_tell(g, "command", mval_text(in.root, "who", who, sizeof who), text);
            n->restart_pid = pid;
        }
        snprintf(n->restart, sizeof n->restart, "%.63s", slash + 1);
        n->restarter = ev->request;
        n->restart_limit_ms = clock_ms() + (int64_t)(1000 * mval_f64(mval_get(in.root, "limit_s"), 60));
    }
out:
    msg_in_release(&in);
}

/* ---- the loop ---- */

static void status_tick(struct gate *g)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    int64_t now = clock_ms();
    if (g->status_open || now - g->status_ms < (int64_t)(1000 * g->config.heartbeat_s))
        return;
    g->status_ms = now;
    msg_begin(&m, MSG_STATUS);
    msg_bool(&m, "fresh", false);
    g->status_open = msg_finish(&m, &err) && peer_ask(g->process.agent, &m, STATUS_LIMIT_MS, TAG_STATUS, &err);
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
    g->config.slow_s = mval_f64(mval_get(mval_get(in.root, "knobs"), "slow_s"), g->config.slow_s);    // it may be changed
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
    } else if (ev->kind == NET_ANSWER && ev->peer == g->process.agent && ev->tag == TAG_STATUS) {
        status_came(g, ev);
    } else if (ev->kind == NET_ANSWER && ev->peer == g->controller && ev->tag >= TAG_LETTER && ev->tag < TAG_LETTER + LETTERS_MAX) {
        struct letter *l = &g->letter[ev->tag - TAG_LETTER];
        l->open = false;
        if (!ev->failed)
            msg_release(&l->msg);
    } else if (ev->kind == NET_ANSWER && (x = relay_answered(&g->relays, ev))) {
        relay_end(x, ev);
    }
}

static bool all_told(const struct gate *g)
{
    for (int i = 0; i < g->n_node; i++)
        if (g->node[i].here && !g->node[i].told)
            return false;
    return true;
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
    status_tick(g);
    g->process.progress++;
}

static bool gate_open(struct gate *g, struct error *err)
{
    char path[4300], address[280], token[JOIN_TOKEN_LEN + 1];
    struct join_identity id;
    snprintf(path, sizeof path, "%s/" NODE_TOKEN_FILE, g->process.run_dir);
    if (!node_address(g->config.listen, "listen", address, err) || !join_token_make(path, err) || !join_token_read(token, path, err)
        || !join_identity_make(&id, token, err) || !files_make(g, err))
        return false;
    snprintf(g->device, sizeof g->device, "%.*s", (int)MIN(strcspn(g->config.devices, ":"), sizeof g->device - 1), g->config.devices);
    snprintf(g->state, sizeof g->state, "starting");
    if (!(g->local = server_new(g->process.transport, "gate", 16, err)) || !(g->controller = peer_new(g->process.transport, "controller", err))
        || !(g->nodes = server_new_tls(g->process.transport, address, &id, N_OPEN, err)))
        return false;
    log_info("nodes join at %s with the token in '%s'", address, path);
    return true;
}

bool gate_cmd(int argc, char **argv, struct error *err)
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
    g->process.processes = processes_write;
    g->process.ctx = g;
    process_phase(&g->process, "listening", "");
    while (!process_is_over(&g->process))
        turn(g, 50);
    process_phase(&g->process, "stopping", "");
    for (int64_t end = clock_ms() + FAREWELL_MS; !all_told(g) && clock_ms() < end;) {
        struct pollfd fd = { .fd = transport_fd(g->process.transport), .events = POLLIN };
        poll(&fd, 1, 20);
        turn(g, 0);
    }
    ok = true;
out:
    for (int i = 0; i < NODES_MAX; i++)
        buf_release(&g->node[i].beat);
    for (int i = 0; i < LETTERS_MAX; i++)
        msg_release(&g->letter[i].msg);
    buf_release(&g->settings);
    process_release(&g->process);
    relays_release(&g->relays);
    free(g);
    return ok;
}
