/* The answer to status, from what the processes and the controller have reported; and once per second, what the processes use. */
#include "workers/agent/agent_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/base/proc_stat.h"

void telemetry_send(struct agent *a, const char *topic, const void *data, size_t len)
{
    publisher_send(a->telemetry, topic, data, len);
    publisher_send(a->view_telemetry, topic, data, len);
}

/* Processor time and memory of a process, from /proc. */
static void child_sample(struct child *c, double passed_s)
{
    struct proc_stat s;
    if (!proc_stat_read(c->pid, &s))
        return;
    double cpu_s = (double)s.cpu_ticks / (double)sysconf(_SC_CLK_TCK);
    if (passed_s > 0 && cpu_s >= c->cpu_s)
        c->cpu_share = (cpu_s - c->cpu_s) / passed_s;
    c->cpu_s = cpu_s;
    c->n_thread = (double)s.n_thread;
    c->rss_mib = (double)s.resident_pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static void alarm_note(void *ctx, const char *text)
{
    note_add(ctx, "alert", "agent", text);
}

/* Once per second: what the processes use, what the node's sampler has, and now and then a sample for the journal. A lost sample is
 * not sent again. */
void telemetry_tick(struct agent *a)
{
    struct node_process process[CHILD_MAX];
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    int n = 0;
    int64_t now = clock_ms();
    if (now - a->sampled_ms <= 1000)
        return;
    double passed_s = a->sampled_ms ? (double)(now - a->sampled_ms) / 1000 : 0;
    a->sampled_ms = now;
    for (int i = 0; i < a->n_child; i++) {
        child_sample(&a->child[i], passed_s);
        if (a->child[i].pid)
            process[n++] = (struct node_process){ a->child[i].pid, a->child[i].cpu_share, a->child[i].rss_mib * (1 << 20),
                                                  a->child[i].n_thread };
    }
    a->self.pid = getpid();
    child_sample(&a->self, passed_s);
    node_watch_tick(a->node, process, n, alarm_note, a);
    if (!a->detail_ms || a->over || (a->kept_ms && (double)(now - a->kept_ms) < 1000 * a->config.telemetry_s))
        return;    // no controller has been heard from yet, or it is not time
    if (node_watch_sample_write(a->node, &m)) {
        if (!msg_finish(&m, &err) || !peer_ask(a->controller, &m, NOTE_LIMIT_MS, TAG_SAMPLE, &err))
            log_debug("a sample is not recorded: %s", err.text);
        a->kept_ms = now;
    }
    msg_release(&m);
}

static void gauges_copy(struct msg_out *m, const struct mval *gauges)
{
    for (int64_t i = 0; i < mval_n(gauges); i++) {
        size_t len;
        char key[64];
        const char *k = mval_key(gauges, i, &len);
        if (!k || len >= sizeof key)
            continue;
        memcpy(key, k, len);
        key[len] = 0;
        msg_copy(m, key, mval_at(gauges, i));
    }
}

void page_read(struct page *p, const struct mval *root)
{
    p->from = MAX(mval_i64(mval_get(root, "from"), 0), (int64_t)0);
    p->limit = MAX(mval_i64(mval_get(root, "limit"), INT64_MAX), (int64_t)0);
    p->whole = !mval_get(root, "from") && !mval_get(root, "limit");
}

static bool same_text(const struct mval *a, const struct mval *b)
{
    size_t n = 0, k = 0;
    const char *x = mval_str(a, &n), *y = mval_str(b, &k);
    return x && y && n == k && memcmp(x, y, n) == 0;
}

/* The processes of other nodes, as reported by the gate, which names them in the order of its nodes. A node without figures, such as a lost
 * one, goes with the first page. */
static void others_write(struct msg_out *m, const struct mval *gate, const struct page *page)
{
    const struct mval *list = mval_get(gate, "processes"), *nodes = mval_get(gate, "nodes");
    int64_t n_node = mval_n(nodes), at = 0;
    for (int64_t k = 0; k < mval_n(list); k++) {
        const struct mval *p = mval_at(list, k), *name = mval_get(p, "node");
        if (page->whole) {
            msg_copy(m, NULL, p);
            continue;
        }
        int64_t i = at;
        while (i < n_node && !same_text(mval_get(mval_at(nodes, i), "node"), name))
            i++;
        at = i < n_node ? i : at;
        if (i < n_node ? i >= page->from && i - page->from < page->limit : page->from == 0)
            msg_copy(m, NULL, p);
    }
}

static void processes_write(struct agent *a, struct msg_out *m, const struct mval *gate, const struct page *page)
{
    int64_t now = clock_ms();
    msg_list(m, "processes");
    for (int i = 0; i < a->n_child; i++) {
        struct child *c = &a->child[i];
        struct msg_in in;
        struct error err;
        char waits[200], plays[64];
        struct run_part part;
        double silent_s = (double)(now - c->heard_ms) / 1000;
        bool heard = c->command != NULL && !c->exporter;
        snprintf(waits, sizeof waits, "%s", c->waits_for);
        if (!c->pid)
            snprintf(waits, sizeof waits,
                     c->failed                                ? "an operator: it has failed; see its log, 'ctl restart' starts it again"
                     : c->exporter && c->next_ms == INT64_MAX ? "ended; see its log"
                                                              : "being restarted");
        else if (heard && silent_s > silence_s(a))
            snprintf(waits, sizeof waits, "no sign of life for %.0f s", silent_s);
        msg_map(m, NULL);
        msg_str(m, "name", c->name);
        msg_str(m, "kind", !c->command ? "keeper" : c->command);
        if (strncmp(c->name, "worker ", 7) == 0 && run_config_part(&a->config, c->name + 7, &part, &err))
            msg_str(m, "plays", run_part_text(&part, plays, sizeof plays));
        msg_i64(m, "pid", c->pid);
        msg_str(m, "phase", c->failed ? "failed" : c->exporter ? "exporting" : !heard ? "watching" : c->phase);
        msg_f64(m, "phase_s", (double)(now - (heard ? c->phase_ms : c->started_ms)) / 1000);
        msg_f64(m, "progress", c->progress);
        msg_str(m, "waits_for", waits);
        msg_str(m, "verdict", heard ? child_verdict(a, c) : c->pid || (c->exporter && !c->failed) ? "ok" : "stuck");
        msg_f64(m, "heard_s", heard ? silent_s : 0);
        msg_i64(m, "restarts", c->n_restart);
        msg_f64(m, "cpu", c->cpu_share);
        msg_f64(m, "rss_mib", c->rss_mib);
        msg_map(m, "gauges");
        if (c->gauges.len && msg_read_request(&in, c->gauges.data, c->gauges.len, &err)) {
            gauges_copy(m, mval_get(in.root, "gauges"));
            msg_in_release(&in);
        }
        if (c->pid)
            node_watch_process_write(a->node, c->pid, m);
        msg_end(m);
        msg_end(m);
    }
    for (int i = 0; i < a->n_child && page->from == 0; i++) {    // environments that post
        struct msg_in in;
        struct error err;
        const struct buf *b = &a->child[i].gauges;
        if (strcmp(a->child[i].name, "gate") == 0 || !b->len || !msg_read_request(&in, b->data, b->len, &err))
            continue;
        others_write(m, in.root, &(struct page){ .whole = true });
        msg_in_release(&in);
    }
    others_write(m, gate, page);
    msg_map(m, NULL);
    msg_str(m, "name", "agent");
    msg_str(m, "kind", "agent");
    msg_i64(m, "pid", getpid());
    msg_str(m, "phase", "watching");
    msg_f64(m, "phase_s", 0);
    msg_str(m, "waits_for", "");
    msg_str(m, "verdict", "ok");
    msg_i64(m, "restarts", a->self.n_restart);
    msg_f64(m, "cpu", a->self.cpu_share);
    msg_f64(m, "rss_mib", a->self.rss_mib);
    msg_end(m);
    msg_end(m);
}

/* The figures of other nodes, as reported by the gate. */
static void nodes_write(struct msg_out *m, const struct mval *gate, const struct page *page)
{
    const struct mval *nodes = mval_get(gate, "nodes");
    int64_t n = mval_n(nodes), from = MIN(page->from, n), to = from + MIN(page->limit, n - from);
    if (!nodes)
        return;
    msg_list(m, "nodes");
    for (int64_t i = from; i < to; i++)
        msg_copy(m, NULL, mval_at(nodes, i));
    msg_end(m);
    if (page->whole)
        return;
    msg_i64(m, "from", from);
    msg_i64(m, "to", to);
    msg_i64(m, "n_nodes", n);
}

/* detail: the controller's fields; NULL: never heard from. */
void status_answer(struct agent *a, struct request *r, const struct page *page, const struct mval *detail, double controller_s)
{
    struct error err;
    struct msg_in in;
    struct msg_out m = MSG_OUT_INIT;
    const struct child *gate = child_find(a, "gate");
    bool others = gate && gate->gauges.len && msg_read_request(&in, gate->gauges.data, gate->gauges.len, &err);
    const char *name = strrchr(a->run_dir, '/');
    msg_begin(&m, MSG_OK);
    msg_str(&m, "name", name ? name + 1 : a->run_dir);
    msg_str(&m, "dir", a->run_dir);
    for (int64_t i = 0; i < mval_n(detail); i++) {
        size_t len;
        char key[64];
        const char *k = mval_key(detail, i, &len);
        if (!k || len >= sizeof key)
            continue;
        memcpy(key, k, len);
        key[len] = 0;
        if (strcmp(key, "v") && strcmp(key, "t") && strcmp(key, "name") && strcmp(key, "dir") && strcmp(key, "processes")
            && strcmp(key, "nodes") && !node_figures_key(key))    // a node's controller is its head, which reports its own
            msg_copy(&m, key, mval_at(detail, i));
    }
    if (!detail) {
        msg_str(&m, "state", "starting");
        msg_i64(&m, "step", 0);
    }
    if (a->failure[0])
        msg_str(&m, "failure", a->failure);
    msg_f64(&m, "controller_s", controller_s);
    processes_write(a, &m, others ? in.root : NULL, page);
    node_watch_status_write(a->node, &m);
    nodes_write(&m, others ? in.root : NULL, page);
    if (others)
        msg_in_release(&in);
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    else
        request_refuse(r, &err);
    msg_release(&m);
}

void status_cached(struct agent *a, struct request *r, const struct page *page)
{
    struct msg_in in;
    struct error err;
    if (a->detail.len && msg_read_request(&in, a->detail.data, a->detail.len, &err)) {
        status_answer(a, r, page, mval_get(in.root, "detail"), (double)(clock_ms() - a->detail_ms) / 1000);
        msg_in_release(&in);
    } else {
        status_answer(a, r, page, NULL, NAN);
    }
}
