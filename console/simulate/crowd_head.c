/* The head of a made-up fleet: answers consoles and ctl from a simulated model, and takes the reports of the nodes' agents.
 *
 * A pause or resume is handed to every agent as the answer to its open request for work; the command is answered when the heartbeat
 * of each has said so. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/simulate/crowd_parts.h"
#include "protocol/base/clock.h"
#include "protocol/wire/run_door.h"

#define AGENT_WAITS 64
#define HOLD_NS ((int64_t)2000000000)
#define STEPS_MOST 5000

struct reporter {            // a node's agent, as the head knows it
    struct buf beat;         // its last heartbeat
    struct request *work;    // its open request; NULL: none
    int64_t work_ns;         // since when
    bool paused;             // as it was last told
    bool waits;              // as its last heartbeat says
};
struct open_change {            // a pause or resume that waits for the agents
    struct request *request;    // NULL: none
    bool paused;
    int64_t begin_ns, limit_ns;
};
struct crowd_head {
    struct crowd_options options;
    const char *run_dir;
    struct server *agent, *gate, *view;
    struct publisher *telemetry, *view_telemetry;
    struct run_view *model;
    struct feed *feed;
    struct open_change change;
    struct reporter *reporter;           // (options.agents); owned
    int64_t step, n_event, n_rollout;    // of the model, published
    bool paused;
};

/* The series that have values, by their number among those of the model. */
static int series_list(struct run_view *m, const struct series *out[], const char *name[], int max)
{
    int n = 0;
    for (int i = 0; i < METRIC_N && n < max; i++)
        if (m->metric[i].n > 0) {
            name[n] = metrics[i].name;
            out[n++] = &m->metric[i];
        }
    return n;
}

static void steps_write(struct crowd_head *h, struct msg_out *m, int64_t from, int64_t limit)
{
    const struct series *series[METRIC_N];
    const char *name[METRIC_N];
    int w = series_list(h->model, series, name, METRIC_N);
    from = MAX(from, (int64_t)1);
    int64_t n = MAX(MIN(h->model->n_step - from, MIN(limit, (int64_t)STEPS_MOST)), (int64_t)0);
    int64_t *step = calloc((size_t)n + 1, sizeof(*step));
    double *wall = calloc((size_t)n + 1, sizeof(*wall)), *value = calloc((size_t)(n * w) + 1, sizeof(*value));
    if (!step || !wall || !value)
        n = 0;
    double now_s = clock_wall_s();
    for (int64_t i = 0; i < n; i++) {
        step[i] = from + i;
        wall[i] = now_s - (double)(h->model->step - step[i]) * h->options.run.step_s;
        for (int k = 0; k < w; k++)
            value[i * w + k] = series_at(series[k], step[i]);
    }
    msg_list(m, "names");
    for (int k = 0; k < w; k++)
        msg_str(m, NULL, name[k]);
    msg_end(m);
    msg_bin(m, "step", step, (size_t)n * sizeof(*step));
    msg_bin(m, "time", wall, (size_t)n * sizeof(*wall));
    msg_bin(m, "value", value, (size_t)(n * w) * sizeof(*value));
    msg_bool(m, "more", from + n < h->model->n_step);
    free(step);
    free(wall);
    free(value);
}

static void group_write(struct msg_out *m, const struct rollout_view *g)
{
    msg_i64(m, "item", g->item);
    msg_i64(m, "step", g->step);
    msg_i64(m, "line", g->item + 1);
    msg_str(m, "prompt_text", g->prompt);
    msg_list(m, "samples");
    for (int i = 0; i < g->n_sample; i++) {
        msg_map(m, NULL);
        msg_str(m, "text", g->sample[i].text);
        msg_f64(m, "reward", g->sample[i].reward);
        msg_i64(m, "score", 1);
        msg_i64(m, "n_tok", g->sample[i].n_tok);
        msg_i64(m, "finish", g->sample[i].cut);
        msg_str(m, "reason", g->sample[i].reason);
        msg_end(m);
    }
    msg_end(m);
}

static void rollouts_write(struct crowd_head *h, struct msg_out *m, int64_t limit)
{
    const struct rollout_view *g;
    msg_list(m, "groups");
    for (int64_t i = 0; i < limit && (g = view_rollout_at(h->model, i)) != NULL; i++) {
        msg_map(m, NULL);
        group_write(m, g);
        msg_end(m);
    }
    msg_end(m);
}

static void event_write(struct msg_out *m, const struct event_view *e)
{
    msg_i64(m, "id", e->id);
    msg_f64(m, "time", e->time_s);
    msg_i64(m, "step", e->step);
    msg_str(m, "kind", e->kind);
    msg_str(m, "who", e->who);
    msg_str(m, "text", e->text);
    msg_str(m, "detail", e->change.kind == CHANGE_SETTINGS ? "{\"changes\":[]}" : "");
}

static void events_write(struct crowd_head *h, struct msg_out *m, int64_t after)
{
    int64_t i = 0;
    const struct event_view *e;
    while ((e = view_event_at(h->model, i)) != NULL && e->id > after)
        i++;
    msg_list(m, "events");
    while (i-- > 0) {
        msg_map(m, NULL);
        event_write(m, view_event_at(h->model, i));
        msg_end(m);
    }
    msg_end(m);
}

static void checkpoints_write(struct crowd_head *h, struct msg_out *m)
{
    const struct run_view *of = h->model;
    msg_list(m, "checkpoints");
    for (int i = 0; i < of->n_saved; i++) {
        const struct saved_view *s = &of->saved[i];
        msg_map(m, NULL);
        msg_i64(m, "step", s->step);
        msg_str(m, "state", s->state);
        msg_i64(m, "size_bytes", s->size_bytes);
        msg_bool(m, "pinned", s->pinned);
        msg_str(m, "why", s->why);
        msg_f64(m, "time", s->time_s);
        msg_str(m, "path", s->path);
        msg_str(m, "changes", s->changes);
        msg_end(m);
    }
    msg_end(m);
    msg_i64(m, "step", of->step);
    msg_i64(m, "before_change", of->before_change);
}

static void alarms_write(const struct run_view *of, struct msg_out *m)
{
    msg_list(m, "alarms");
    for (int i = 0; i < of->n_alarm; i++) {
        const struct alarm_view *a = &of->alarm[i];
        msg_map(m, NULL);
        msg_str(m, "name", a->name);
        msg_str(m, "state", alarm_state_name(a->state));
        msg_bool(m, "critical", a->critical);
        msg_str(m, "metric", a->metric);
        msg_str(m, "when", alarm_when_name(a->when));
        msg_f64(m, "limit", a->limit);
        msg_i64(m, "steps", a->steps);
        msg_str(m, "text", a->text);
        msg_str(m, "remedy", a->remedy);
        msg_str(m, "actions", a->actions);
        msg_i64(m, "step", a->step);
        msg_end(m);
    }
    msg_end(m);
}

/* The head's own processes, then those of the nodes from..to-1, copied from their heartbeats. */
static void fleet_write(struct crowd_head *h, struct msg_out *m, int64_t from, int64_t to)
{
    struct msg_in in;
    struct error err;
    msg_list(m, "processes");
    for (int i = 0; i < h->model->n_proc; i++) {
        const struct proc *p = &h->model->proc[i];
        msg_map(m, NULL);
        msg_str(m, "name", p->name);
        msg_str(m, "kind", p->kind);
        msg_i64(m, "pid", p->pid);
        msg_str(m, "phase", p->phase);
        msg_f64(m, "phase_s", p->phase_s);
        msg_f64(m, "progress", p->progress);
        msg_str(m, "waits_for", p->waits_for);
        msg_str(m, "verdict", "ok");
        msg_i64(m, "restarts", 0);
        msg_end(m);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = from; i < to; i++) {
            const struct buf *b = &h->reporter[i].beat;
            if (b->len == 0 || !msg_read_request(&in, b->data, b->len, &err))
                continue;
            const struct mval *list = mval_get(in.root, pass == 0 ? "processes" : "nodes");
            for (int64_t k = 0; k < mval_n(list); k++)
                msg_copy(m, NULL, mval_at(list, k));
            msg_in_release(&in);
        }
        msg_end(m);
        if (pass == 0)
            msg_list(m, "nodes");
    }
}

static void status_write(struct crowd_head *h, struct msg_out *m, int64_t from, int64_t limit)
{
    const struct run_view *of = h->model;
    const char *base = strrchr(h->run_dir, '/');
    msg_str(m, "name", base && base[1] ? base + 1 : h->run_dir);
    msg_str(m, "dir", h->run_dir);
    msg_str(m, "state", run_state_name(of->state));
    msg_str(m, "reason", of->reason);
    msg_str(m, "pause_depth", of->pause_depth);
    msg_i64(m, "step", of->step);
    msg_i64(m, "max_steps", of->max_steps);
    msg_i64(m, "incarnation", 1);
    msg_f64(m, "elapsed_s", of->elapsed_s);
    msg_f64(m, "step_s", of->step_s);
    msg_f64(m, "left_s", of->left_s);
    msg_i64(m, "checkpoint", of->checkpoint);
    msg_str(m, "undo", of->undo);
    msg_map(m, "knobs");
    for (int i = 0; i < n_knobs; i++)
        msg_str(m, knobs[i].name, of->knob[i].text);
    msg_end(m);
    msg_map(m, "eval");
    for (int i = 0; i < of->n_eval; i++) {
        msg_map(m, of->eval[i].set);
        msg_i64(m, "step", of->eval[i].step);
        msg_i64(m, "n", of->eval[i].n);
        msg_f64(m, "mean", of->eval[i].mean);
        msg_end(m);
    }
    msg_end(m);
    if (of->lock.holder[0]) {
        msg_map(m, "lock");
        msg_str(m, "holder", of->lock.holder);
        msg_f64(m, "since", of->lock.since_s);
        msg_end(m);
    }
    alarms_write(of, m);
    msg_f64(m, "controller_s", 0);
    msg_i64(m, "from", from);
    int64_t to = from + MIN(limit, h->options.agents - from);
    msg_i64(m, "to", to);
    msg_i64(m, "n_nodes", h->options.agents);
    fleet_write(h, m, from, to);
}

/* ---- commands ---- */

static void effect_answer(struct crowd_head *h, struct request *r, const char *effect)
{
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    msg_begin(&m, MSG_OK);
    msg_str(&m, "effect", effect);
    msg_i64(&m, "step", h->model->step + 1);
    if (msg_finish(&m, &err))
        request_answer(r, &m);
    else
        request_refuse(r, &err);
    msg_release(&m);
}

static void change_look(struct crowd_head *h, int64_t now_ns)
{
    struct open_change *o = &h->change;
    int64_t n = 0, late = -1;
    char effect[160];
    if (!o->request)
        return;
    for (int64_t i = 0; i < h->options.agents; i++) {
        n += h->reporter[i].waits == o->paused;
        if (h->reporter[i].waits != o->paused)
            late = i;
    }
    if (n < h->options.agents && now_ns < o->limit_ns)
        return;
    if (n < h->options.agents) {
        char name[32];
        struct error err = { 0 };
        error_set(&err, ERR_TIMEOUT, "%" PRId64 " of %" PRId64 " agents have not answered, '%s' among them", h->options.agents - n,
                  h->options.agents, crowd_node_name(name, late));
        request_refuse(o->request, &err);
    } else {
        snprintf(effect, sizeof(effect), "%s after step %" PRId64 "; %" PRId64 " agents have acknowledged it in %.0f ms",
                 o->paused ? "paused" : "running", h->model->step, n, (double)(now_ns - o->begin_ns) * 1e-6);
        effect_answer(h, o->request, effect);
    }
    o->request = NULL;
}

static void work_answer(struct crowd_head *h, struct reporter *r)
{
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    msg_begin(&m, MSG_OK);
    msg_str(&m, "kind", h->paused ? "none" : "items");
    msg_i64(&m, "task", 0);
    msg_i64(&m, "incarnation", 1);
    if (msg_finish(&m, &err))
        request_answer(r->work, &m);
    else
        request_drop(r->work);
    msg_release(&m);
    r->work = NULL;
    r->paused = h->paused;
}

static void pause_tell(struct crowd_head *h, bool paused)
{
    h->paused = paused;
    for (int64_t i = 0; i < h->options.agents; i++)
        if (h->reporter[i].work)
            work_answer(h, &h->reporter[i]);
}

static void command_came(struct crowd_head *h, struct request *r, const struct msg_in *in, int64_t now_ns)
{
    struct error err = { 0 };
    struct command c = { .n_arg = 0 };
    char text[160], who[64];
    const struct mval *args = mval_get(in->root, "args");
    mval_text(in->root, "command", c.name, sizeof(c.name));
    for (int64_t i = 0; i < mval_n(args) && c.n_arg < COMMAND_ARGS; i++, c.n_arg++) {
        size_t len;
        const char *key = mval_key(args, i, &len);
        snprintf(c.arg[c.n_arg].key, sizeof(c.arg[0].key), "%.*s", key ? (int)MIN(len, sizeof(c.arg[0].key) - 1) : 0, key ? key : "");
        mval_text(args, c.arg[c.n_arg].key, c.arg[c.n_arg].value, sizeof(c.arg[0].value));
    }
    snprintf(text, sizeof(text), "%s%s%s (%s)", c.name, c.n_arg ? " " : "", c.n_arg ? c.arg[0].value : "",
             mval_text(in->root, "who", who, sizeof(who)));
    bool pause = strcmp(c.name, "pause") == 0, resume = strcmp(c.name, "resume") == 0;
    if ((pause || resume) && h->change.request) {
        error_set(&err, ERR_REFUSED, "another pause or resume is under way");
        request_refuse(r, &err);
    } else if (!h->feed->command(h->feed, h->model, &c, text, now_ns, &err)) {
        request_refuse(r, &err);
    } else if (pause || resume) {
        h->change = (struct open_change){
            .request = r, .paused = pause, .begin_ns = now_ns, .limit_ns = now_ns + 1000000 * command_limit_ms(in->root, 30)
        };
        pause_tell(h, pause);
    } else {
        effect_answer(h, r, "a simulated run: nothing has happened");
    }
}

/* ---- requests ---- */

static struct reporter *reporter_find(struct crowd_head *h, const struct msg_in *in)
{
    char name[64];
    int64_t i = 0;
    mval_text(in->root, "name", name, sizeof(name));
    if (sscanf(name, "node-%" SCNd64 "/agent", &i) != 1 || i < 1 || i > h->options.agents)
        return NULL;
    return &h->reporter[i - 1];
}

/* Begin a message to all consoles; publish sends it. */
static void begin(struct msg_out *m, const char *topic)
{
    msg_begin(m, MSG_PUBLISH);
    msg_str(m, "topic", topic);
    msg_map(m, "body");
}

static void publish(struct crowd_head *h, const char *topic, struct msg_out *m)
{
    struct error err;
    msg_end(m);
    if (msg_finish(m, &err)) {
        publisher_send(h->telemetry, topic, m->buf.data, m->buf.len);
        publisher_send(h->view_telemetry, topic, m->buf.data, m->buf.len);
    }
    msg_release(m);
}

/* Publish it to the consoles, as an agent does. */
static void beat_publish(struct crowd_head *h, const struct msg_in *in)
{
    static const char *const keys[] = { "name", "phase", "phase_s", "progress", "waits_for" };
    struct msg_out m = MSG_OUT_INIT;
    begin(&m, "process");
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        msg_copy(&m, keys[i], mval_get(in->root, keys[i]));
    publish(h, "process", &m);
}

static void beat_came(struct crowd_head *h, struct net_event *ev, const struct msg_in *in)
{
    struct reporter *r = reporter_find(h, in);
    struct msg_out m = MSG_OUT_INIT;
    struct error err;
    char phase[24];
    if (r) {
        if (mval_get(in->root, "processes")) {
            buf_clear(&r->beat);
            buf_add(&r->beat, ev->data, ev->len);
        }
        r->waits = strcmp(mval_text(in->root, "phase", phase, sizeof(phase)), "waiting") == 0;
        beat_publish(h, in);
    }
    msg_begin(&m, MSG_OK);
    msg_str(&m, "order", r ? "go" : "stop");
    if (msg_finish(&m, &err))
        request_answer(ev->request, &m);
    else
        request_drop(ev->request);
    msg_release(&m);
}

static void work_came(struct crowd_head *h, struct net_event *ev, const struct msg_in *in, int64_t now_ns)
{
    struct reporter *r = reporter_find(h, in);
    if (!r || r->work) {
        request_drop(ev->request);
        return;
    }
    r->work = ev->request;
    r->work_ns = now_ns;
    if (r->paused != h->paused)
        work_answer(h, r);
}

/* Questions of consoles and ctl. */
static void question_answer(struct crowd_head *h, struct request *r, const struct msg_in *in)
{
    struct msg_out m = MSG_OUT_INIT;
    struct error err = { 0 };
    int64_t limit = mval_i64(mval_get(in->root, "limit"), INT64_MAX);
    msg_begin(&m, MSG_OK);
    switch ((int)in->type) {
    case MSG_STATUS:
        status_write(h, &m, MAX(MIN(mval_i64(mval_get(in->root, "from"), 0), h->options.agents), (int64_t)0), MAX(limit, (int64_t)0));
        break;
    case MSG_STEPS: steps_write(h, &m, mval_i64(mval_get(in->root, "from"), 0), limit); break;
    case MSG_EVENTS: events_write(h, &m, mval_i64(mval_get(in->root, "after"), 0)); break;
    case MSG_ROLLOUTS: rollouts_write(h, &m, limit); break;
    case MSG_CHECKPOINTS: checkpoints_write(h, &m); break;
    default: error_set(&err, ERR_REFUSED, "a simulated run does not know '%s'", msg_specs[in->type].name); break;
    }
    if (err.text[0] || !msg_finish(&m, &err))
        request_refuse(r, &err);
    else
        request_answer(r, &m);
    msg_release(&m);
}

void crowd_head_asked(struct crowd_head *h, struct net_event *ev, int64_t now_ns)
{
    struct msg_in in;
    struct error err;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        request_refuse(ev->request, &err);
        return;
    }
    bool looks = request_server(ev->request) == h->view;
    if (looks && (in.type == MSG_HEARTBEAT || in.type == MSG_WORK || in.type == MSG_COMMAND)) {
        error_set(&err, ERR_REFUSED, "a read-only view cannot change the run; only its owner can, without --read-only");
        request_refuse(ev->request, &err);
    } else if (in.type == MSG_HEARTBEAT) {
        beat_came(h, ev, &in);
    } else if (in.type == MSG_WORK) {
        work_came(h, ev, &in, now_ns);
    } else if (in.type == MSG_COMMAND) {
        command_came(h, ev->request, &in, now_ns);
    } else {
        question_answer(h, ev->request, &in);
    }
    msg_in_release(&in);
}

/* ---- the run goes on ---- */

static void news_publish(struct crowd_head *h)
{
    struct run_view *of = h->model;
    const struct series *series[METRIC_N];
    const char *name[METRIC_N];
    for (; h->step < of->step; h->step++) {
        struct msg_out m = MSG_OUT_INIT;
        int w = series_list(of, series, name, METRIC_N);
        begin(&m, "step");
        msg_i64(&m, "step", h->step + 1);
        msg_f64(&m, "time", clock_wall_s());
        msg_i64(&m, "incarnation", 1);
        msg_map(&m, "metrics");
        for (int k = 0; k < w; k++)
            msg_f64(&m, name[k], series_at(series[k], h->step + 1));
        msg_end(&m);
        publish(h, "step", &m);
    }
    for (; h->n_event < of->n_event; h->n_event++) {
        struct msg_out m = MSG_OUT_INIT;
        begin(&m, "event");
        event_write(&m, view_event_at(of, of->n_event - 1 - h->n_event));
        publish(h, "event", &m);
    }
    for (; h->n_rollout < of->n_rollout; h->n_rollout++) {
        struct msg_out m = MSG_OUT_INIT;
        const struct rollout_view *g = view_rollout_at(of, of->n_rollout - 1 - h->n_rollout);
        if (!g)
            continue;
        begin(&m, "rollout");
        group_write(&m, g);
        publish(h, "rollout", &m);
    }
}

void crowd_head_tick(struct crowd_head *h, int64_t now_ns)
{
    if (now_ns >= h->feed->due_ns(h->feed))
        h->feed->pump(h->feed, h->model, now_ns);
    news_publish(h);
    for (int64_t i = 0; i < h->options.agents; i++)
        if (h->reporter[i].work && now_ns - h->reporter[i].work_ns > HOLD_NS)
            work_answer(h, &h->reporter[i]);
    change_look(h, now_ns);
}

struct crowd_head *crowd_head_new(const struct crowd_options *o, const char *run_dir, struct transport *t, struct error *err)
{
    struct simulate_options run = o->run;
    struct crowd_head *h = calloc(1, sizeof(*h));
    if (h)
        h->reporter = calloc((size_t)o->agents, sizeof(*h->reporter));
    if (!h || !h->reporter) {
        free(h);
        error_set(err, ERR_NO_MEMORY, "no memory for the simulation");
        return NULL;
    }
    h->options = *o;
    h->run_dir = run_dir;
    run.workers = 0;    // they are the nodes'
    if (!(h->model = view_new(err)) || !(h->feed = simulate_new(&run, h->model, clock_ns(), err))
        || !(h->agent = server_new(t, "agent", AGENT_WAITS, err))
        || !(h->gate = server_new(t, CROWD_GATE, 2 * (int)o->agents + AGENT_WAITS, err))
        || !(h->telemetry = publisher_new(t, "telemetry", err)) || !run_view_make(t, run_dir, "", err)
        || !(h->view = server_new(t, "view", AGENT_WAITS, err)) || !(h->view_telemetry = publisher_new(t, "view-telemetry", err))) {
        crowd_head_free(h);
        return NULL;
    }
    h->step = h->model->step;
    h->n_event = h->model->n_event;
    h->n_rollout = h->model->n_rollout;
    return h;
}

void crowd_head_free(struct crowd_head *h)
{
    if (!h)
        return;
    for (int64_t i = 0; i < h->options.agents; i++) {
        if (h->reporter[i].work)
            request_drop(h->reporter[i].work);
        buf_release(&h->reporter[i].beat);
    }
    if (h->change.request)
        request_drop(h->change.request);
    publisher_free(h->telemetry);
    publisher_free(h->view_telemetry);
    server_free(h->view);
    server_free(h->gate);
    server_free(h->agent);
    if (h->feed)
        h->feed->free(h->feed);
    fleet_model_free(h->model);
    free(h->reporter);
    free(h);
}
