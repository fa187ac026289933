#include "console/simulate/crowd_join.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "console/simulate/crowd_links.h"
#include "console/simulate/crowd_parts.h"
#include "protocol/base/clock.h"
#include "protocol/wire/join_token.h"

#define JOIN_LIMIT_S 240
#define ASK_MS 20000
#define CONNECT_AT_ONCE 16    // all come from one address, and a head's front closes those of one that has many in its hall
#define LEAVE_MS 5000
#define TURN_MS 5    // at most, until what is due is looked for
#define STATUS_EVERY_MS 1000
/* A member's rounds are its signs of life. In every second round its worker asks for work, and in every thirtieth figures go into the
 * journal: with 2 rounds per second (heartbeat_s) that is once per second, and once in 15 s (telemetry_s). */
#define WORK_ROUNDS 2
#define FIGURES_ROUNDS 30

enum ask {
    ASK_BEAT,
    ASK_FIGURES,
    ASK_WORK,
    ASK_STATUS,    // of the first node: of the head, too
};
struct member {
    bool in, left;    // it has been told to go; that it may leave
    bool leaving;     // it has said that it leaves
    bool open[CROWD_TAGS];
    int64_t due_ms, work_ns;    // when its next round is; when its worker asked
    int64_t round;
};
struct crowd {
    const struct crowd_join_options *o;
    struct crowd_links *links;
    struct member *member;    // (n) owned
    int64_t n, n_begun, n_in, n_left;
    char hash[65];    // of the run's settings, from the answer to join
    bool measures, leaves;
    double measured_s;
    double *work_ms;    // (n_work) owned: how long each answer took
    int64_t n_work, work_cap, n_beat, n_failed;
    int64_t status_ms;
    double head_cores, most_cores;    // sum over n_status answers; the most of one
    int64_t n_status;
    double cores[4];    // sums: gate, controller, agent, others
    struct error why;
};
static const char *const parts[] = { "gate", "controller", "agent" };

static volatile sig_atomic_t signalled;

static void on_signal(UNUSED int sig)
{
    signalled = 1;
}

static void who_write(struct msg_out *m, int64_t i)
{
    char text[40];
    snprintf(text, sizeof text, "crowd-%04" PRId64, i);
    msg_str(m, "node", text);
    snprintf(text, sizeof text, "%032" PRIx64, (uint64_t)i + 1);
    msg_str(m, "id", text);
    msg_str(m, "host", "simulated");
}

static void more_connect(struct crowd *c)
{
    int64_t waiting = 0;
    for (int64_t i = 0; i < c->n_begun; i++)
        waiting += !crowd_link_is_in(c->links, i);
    for (; waiting < CONNECT_AT_ONCE && c->n_begun < c->n; waiting++, c->n_begun++)
        crowd_link_dial(c->links, c->n_begun);
}

/* The answer to join; a failed one is asked again. */
static bool hash_take(void *ctx, const struct crowd_answer *a)
{
    struct crowd *c = ctx;
    struct msg_in in;
    if (a->failed)
        return true;
    if (!msg_read_answer(&in, MSG_JOIN, a->data, a->len, &c->why))
        return false;
    mval_text(in.root, "hash", c->hash, sizeof c->hash);
    msg_in_release(&in);
    return true;
}

/* What the head must know of the run's settings: asked once, for all. */
static bool hash_ask(struct crowd *c)
{
    struct msg_out m = MSG_OUT_INIT;
    int64_t end = clock_ms() + ASK_MS;
    msg_begin(&m, MSG_JOIN);
    who_write(&m, 0);
    msg_str(&m, "device", "cpu");
    msg_i64(&m, "producers", 0);    // without a device it has no place for a trainer, which a real node would then wait for
    bool ok = msg_finish(&m, &c->why);
    while (ok && !c->hash[0]) {
        crowd_link_ask(c->links, 0, ASK_BEAT, &m);    // false: it is not connected, or has been asked
        ok = crowd_links_turn(c->links, TURN_MS, hash_take, c);
        if (ok && crowd_links_are_strange(c->links))
            ok = error_set(&c->why, ERR_REFUSED, "'%s' does not accept this join token", c->o->address);
        else if (ok && !c->hash[0] && (signalled || clock_ms() > end))
            ok = error_set(&c->why, ERR_TIMEOUT, "'%s' has not answered in time%s", c->o->address,
                           crowd_link_is_in(c->links, 0) ? "" : "; it is not there");
    }
    msg_release(&m);
    return ok;
}

static bool member_ask(struct crowd *c, int64_t i, enum ask what, struct msg_out *m)
{
    struct error err;
    bool ok = msg_finish(m, &err) && crowd_link_ask(c->links, i, (int)what, m);
    c->member[i].open[what] = ok;
    c->n_failed += !ok && c->measures;
    msg_release(m);
    return ok;
}

static void figures_write(struct msg_out *m, int64_t i)
{
    msg_map(m, "host");
    msg_f64(m, "cpu_percent", 20 + (double)(i % 50));
    msg_f64(m, "mem_used_bytes", 64e9);
    msg_f64(m, "mem_total_bytes", 512e9);
    msg_end(m);
    msg_list(m, "devices");
    msg_map(m, NULL);
    msg_str(m, "name", "gpu 0");
    msg_str(m, "what", "simulated");
    msg_str(m, "state", "ok");
    msg_map(m, "figures");
    msg_f64(m, "util_percent", 90);
    msg_f64(m, "mem_used_bytes", 70e9);
    msg_f64(m, "temp_celsius", 60 + (double)(i % 20));
    msg_f64(m, "power_watts", 600);
    msg_end(m);
    msg_end(m);
    msg_end(m);
}

static bool beat(struct crowd *c, int64_t i, bool leaving)
{
    static const char *const kinds[] = { "agent", "keeper", "uplink", "scorer", "worker" };
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_NODE);
    who_write(&m, i);
    msg_i64(&m, "start", 1);
    msg_str(&m, "hash", c->hash);
    if (leaving) {
        msg_bool(&m, "leaving", true);
        msg_str(&m, "reason", "the simulation is over");
    }
    msg_list(&m, "processes");
    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
        msg_map(&m, NULL);
        msg_str(&m, "name", k == ARRAY_SIZE(kinds) - 1 ? "worker cpu:0" : kinds[k]);
        msg_str(&m, "kind", kinds[k]);
        msg_i64(&m, "pid", 1000 + (int64_t)k);
        msg_str(&m, "phase", "running");
        msg_f64(&m, "phase_s", 1);
        msg_f64(&m, "progress", 1);
        msg_str(&m, "verdict", "ok");
        msg_end(&m);
    }
    msg_end(&m);
    msg_map(&m, "figures");
    figures_write(&m, i);
    msg_end(&m);
    return member_ask(c, i, ASK_BEAT, &m);
}

static void figures_send(struct crowd *c, int64_t i)
{
    struct msg_out m = MSG_OUT_INIT;
    char text[40];
    snprintf(text, sizeof text, "crowd-%04" PRId64, i);
    msg_begin(&m, MSG_PUBLISH);
    msg_str(&m, "topic", "sample");
    msg_map(&m, "body");
    msg_str(&m, "node", text);
    msg_f64(&m, "time", clock_wall_s());
    msg_map(&m, "figures");
    msg_f64(&m, "host/cpu_percent", 20 + (double)(i % 50));
    msg_f64(&m, "gpu/0/util_percent", 90);
    msg_f64(&m, "gpu/0/mem_used_bytes", 70e9);
    msg_end(&m);
    msg_end(&m);
    member_ask(c, i, ASK_FIGURES, &m);
}

static void work_ask(struct crowd *c, int64_t i)
{
    struct msg_out m = MSG_OUT_INIT;
    char name[64];
    snprintf(name, sizeof name, "crowd-%04" PRId64 "/worker cpu:0", i);
    msg_begin(&m, MSG_WORK);
    msg_str(&m, "name", name);
    msg_i64(&m, "start", 1);
    msg_i64(&m, "incarnation", -1);
    msg_i64(&m, "step", -1);
    msg_i64(&m, "version", -1);
    msg_i64(&m, "made", 0);
    msg_bool(&m, "produces", true);
    msg_bool(&m, "consumes", false);
    msg_i64(&m, "items", 0);
    msg_bool(&m, "busy", true);
    c->member[i].work_ns = clock_ns();
    member_ask(c, i, ASK_WORK, &m);
}

/* What is due of each member. */
static void members_tick(struct crowd *c, int64_t now)
{
    for (int64_t i = 0; i < c->n_begun; i++) {
        struct member *n = &c->member[i];
        if (now < n->due_ms || !crowd_link_is_in(c->links, i))
            continue;
        n->due_ms = MAX(n->due_ms + (int64_t)(1000 * c->o->period_s), now - 1000);
        if (!n->open[ASK_BEAT])
            beat(c, i, false);
        if (n->in && !n->open[ASK_FIGURES] && (n->round + i) % FIGURES_ROUNDS == 0)
            figures_send(c, i);
        if (n->in && !n->open[ASK_WORK] && (n->round + i) % WORK_ROUNDS == 0)
            work_ask(c, i);
        n->round++;
    }
}

/* The head's processes, by the agent's own count; workers do the run's work, whoever is there. */
static void status_ask(struct crowd *c, int64_t now)
{
    struct msg_out m = MSG_OUT_INIT;
    if (c->member[0].open[ASK_STATUS] || now < c->status_ms + STATUS_EVERY_MS)
        return;
    c->status_ms = now;
    msg_begin(&m, MSG_STATUS);
    msg_bool(&m, "fresh", false);
    msg_i64(&m, "from", c->n);    // no other nodes
    msg_i64(&m, "limit", 1);
    member_ask(c, 0, ASK_STATUS, &m);
}

static void status_take(struct crowd *c, const struct mval *root)
{
    const struct mval *list = mval_get(root, "processes");
    double sum = 0;
    for (int64_t i = 0; i < mval_n(list); i++) {
        char name[64], kind[32];
        const struct mval *p = mval_at(list, i);
        mval_text(p, "name", name, sizeof name);
        if (strchr(name, '/') || strcmp(mval_text(p, "kind", kind, sizeof kind), "worker") == 0)
            continue;
        double cpu = mval_f64(mval_get(p, "cpu"), 0);
        size_t k = 0;
        while (k < ARRAY_SIZE(parts) && strcmp(parts[k], name) != 0)
            k++;
        c->cores[k] += cpu;
        sum += cpu;
    }
    c->head_cores += sum;
    c->most_cores = fmax(c->most_cores, sum);
    c->n_status++;
}

static bool work_note(struct crowd *c, const struct member *n)
{
    if (c->n_work == c->work_cap) {
        int64_t cap = MAX(2 * c->work_cap, (int64_t)4096);
        double *grown = realloc(c->work_ms, (size_t)cap * sizeof *grown);
        if (!grown)
            return error_set(&c->why, ERR_NO_MEMORY, "no memory for %" PRId64 " times", cap);
        c->work_ms = grown;
        c->work_cap = cap;
    }
    c->work_ms[c->n_work++] = (double)(clock_ns() - n->work_ns) / 1e6;
    return true;
}

/* An answer. False: a node was refused. */
static bool answer_take(void *ctx, const struct crowd_answer *a)
{
    struct crowd *c = ctx;
    struct msg_in in;
    struct error err;
    char order[16];
    struct member *n = &c->member[a->link];
    n->open[a->tag] = false;
    if (a->failed) {
        n->leaving = n->leaving && a->tag != ASK_BEAT;
        c->n_failed += c->measures;
        return true;    // the next round asks again
    }
    if (a->tag == ASK_STATUS && c->measures && msg_read_answer(&in, MSG_STATUS, a->data, a->len, &err)) {
        status_take(c, in.root);
        msg_in_release(&in);
    }
    if (a->tag == ASK_WORK && c->measures)
        return work_note(c, n);
    if (a->tag != ASK_BEAT)
        return true;
    c->n_beat += c->measures;
    if (c->leaves) {    // else it is the answer to a sign of life from before
        c->n_left += n->leaving && !n->left;
        n->left = n->left || n->leaving;
        return true;
    }
    if (!msg_read_answer(&in, MSG_NODE, a->data, a->len, &c->why))
        return false;
    bool goes = strcmp(mval_text(in.root, "order", order, sizeof order), "go") == 0;
    c->n_in += goes && !n->in;
    n->in = n->in || goes;
    msg_in_release(&in);
    return goes || error_set(&c->why, ERR_CLOSED, "the head has told node crowd-%04" PRId64 " to %s", a->link, order);
}

static bool answers_take(struct crowd *c)
{
    return crowd_links_turn(c->links, TURN_MS, answer_take, c);
}

static bool all_join(struct crowd *c)
{
    int64_t began = clock_ms(), period_ms = (int64_t)(1000 * c->o->period_s);
    while (c->n_in < c->n) {
        int64_t before = c->n_begun, now = clock_ms();
        if (signalled)
            return error_set(&c->why, ERR_STOPPED, "stopped by a signal");
        if (now > began + (int64_t)JOIN_LIMIT_S * 1000)
            return error_set(&c->why, ERR_TIMEOUT, "%" PRId64 " of %" PRId64 " nodes are in after %d s", c->n_in, c->n, JOIN_LIMIT_S);
        more_connect(c);
        for (int64_t i = before; i < c->n_begun; i++)    // at once now, and then each in its place within a period
            c->member[i].due_ms = now - period_ms + period_ms * i / c->n;
        members_tick(c, now);
        if (!answers_take(c))
            return false;
    }
    printf("%" PRId64 " nodes are in, after %.1f s\n", c->n, (double)(clock_ms() - began) / 1000);
    fflush(stdout);
    return true;
}

static bool measure(struct crowd *c)
{
    int64_t began = clock_ms(), end = began + (int64_t)(1000 * c->o->measure_s);
    c->measures = true;
    for (int64_t now; !signalled && (now = clock_ms()) < end;) {
        members_tick(c, now);
        status_ask(c, now);
        if (!answers_take(c))
            return false;
    }
    c->measures = false;
    c->measured_s = (double)(clock_ms() - began) / 1000;
    return true;
}

static void all_leave(struct crowd *c)
{
    int64_t end = clock_ms() + LEAVE_MS;
    c->leaves = true;
    while (c->n_left < c->n && clock_ms() < end) {
        int n = 0;
        for (int64_t i = 0; i < c->n && n < 64; i++)
            if (!c->member[i].leaving && !c->member[i].open[ASK_BEAT])    // one thing is asked at a time
                n += c->member[i].leaving = beat(c, i, true);
        if (!answers_take(c))
            return;
    }
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool figures_print(struct crowd *c)
{
    double s = c->measured_s, n = (double)MAX(c->n_status, (int64_t)1);
    if (c->n_work == 0 || c->n_status == 0)
        return error_set(&c->why, ERR_TIMEOUT,
                         "the head has answered %" PRId64 " requests for work and %" PRId64 " for its state in %.0f s", c->n_work,
                         c->n_status, s);
    qsort(c->work_ms, (size_t)c->n_work, sizeof *c->work_ms, rising);
    double p50 = c->work_ms[c->n_work / 2], p99 = c->work_ms[c->n_work * 99 / 100], cores = c->head_cores / n;
    printf("%.0f s: %.0f signs of life and %.0f requests for work per second; %" PRId64 " were not answered\n", s, (double)c->n_beat / s,
           (double)c->n_work / s, c->n_failed);
    printf("work answered within %.2f ms (half), %.2f ms (99 of 100), %.2f ms (all); the bar is %g ms for 99 of 100: %s\n", p50, p99,
           c->work_ms[c->n_work - 1], CROWD_WORK_MS, p99 <= CROWD_WORK_MS ? "kept" : "MISSED");
    printf("head uses %.2f cores, at most %.2f: gate %.2f, controller %.2f, agent %.2f, others %.2f; the bar is %g: %s\n", cores,
           c->most_cores, c->cores[0] / n, c->cores[1] / n, c->cores[2] / n, c->cores[3] / n, CROWD_HEAD_CORES,
           cores <= CROWD_HEAD_CORES ? "kept" : "MISSED");
    fflush(stdout);
    return (p99 <= CROWD_WORK_MS && cores <= CROWD_HEAD_CORES)
           || error_set(&c->why, ERR_REFUSED, "the head does not keep its bars for %" PRId64 " nodes", c->n);
}

bool crowd_join(const struct crowd_join_options *o, struct error *err)
{
    struct crowd c = { .o = o, .n = o->nodes };
    struct join_identity id;
    struct sigaction sa = { .sa_handler = on_signal };
    bool ok = false;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    c.member = calloc((size_t)c.n, sizeof *c.member);
    if (!c.member) {
        error_set(&c.why, ERR_NO_MEMORY, "no memory for %" PRId64 " nodes", c.n);
        goto out;
    }
    ok = crowd_descriptors(c.n, &c.why) && join_identity_make(&id, o->token, NULL, &c.why)
         && (c.links = crowd_links_new(o->address, &id, c.n, ASK_MS, &c.why)) != NULL;
    if (!ok)
        goto out;
    more_connect(&c);
    ok = hash_ask(&c) && all_join(&c) && measure(&c);
    if (ok) {
        all_leave(&c);
        ok = figures_print(&c);
    }
out:
    if (!ok)
        *err = c.why;
    crowd_links_free(c.links);
    free(c.member);
    free(c.work_ms);
    return ok;
}
