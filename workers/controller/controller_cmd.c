/* The controller's process: one loop. See controller.h for its invariants. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/subcommand.h"
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/run/telemetry.h"
#include "workers/controller/controller.h"

#define CONTROLLER_WAITING 96    // requests held open at once
#define LOOK_MS 1000             // whether our place is still ours
#define SAMPLE_FIGURES (HOST_FIELD_N + NODE_GPUS * GPU_FIELD_N)

void answer_later(struct controller *c, struct request *r, struct msg_out *m)
{
    struct error err;
    if (!msg_finish(m, &err)) {
        refuse_later(c, r, &err);
        msg_release(m);
        return;
    }
    if (c->n_answer == c->answer_cap) {
        int cap = MAX(2 * c->answer_cap, 64);
        struct answer *p = realloc(c->answer, (size_t)cap * sizeof *p);
        if (!p) {
            request_drop(r);
            msg_release(m);
            return;
        }
        c->answer = p;
        c->answer_cap = cap;
    }
    c->answer[c->n_answer++] = (struct answer){ r, *m };
    *m = MSG_OUT_INIT;
}

void refuse_later(struct controller *c, struct request *r, const struct error *why)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_REFUSED);
    msg_str(&m, "code", error_code_name(why->code));
    msg_str(&m, "reason", why->text);
    answer_later(c, r, &m);
}

void ok_later(struct controller *c, struct request *r)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    answer_later(c, r, &m);
}

/* Invariant 1. When the journal cannot be written nothing that depends on it is acknowledged, and the run fails. */
static void commit_and_answer(struct controller *c)
{
    struct error err;
    bool ok = true;
    if (c->in_transaction) {
        c->in_transaction = false;
        ok = journal_commit(c->journal, &err);
        if (!ok) {
            journal_rollback(c->journal);
            run_fail(c, "the journal cannot be written: %s", err.text);
        }
    }
    if (c->n_answer > 0)
        hold_point("answering");
    for (int i = 0; i < c->n_answer; i++) {
        if (ok)
            request_answer(c->answer[i].request, &c->answer[i].msg);
        else
            request_refuse(c->answer[i].request, &err);
        msg_release(&c->answer[i].msg);
    }
    c->n_answer = 0;
    if (!c->in_transaction)    // a failed commit has begun the next one, with the event that says so
        journal_rest(c->journal);
}

static void status_asked(struct controller *c, struct request *r);

/* A node's figures. Losing one is no failure of the run: the journal's own trouble shows in what must not be lost. */
static void sample_told(struct controller *c, const struct mval *body)
{
    char node[256], name[SAMPLE_FIGURES][64];
    struct journal_metric figure[SAMPLE_FIGURES];
    const struct mval *figures = mval_get(body, "figures");
    struct error err;
    int n = 0;
    for (int64_t i = 0; i < mval_n(figures) && n < SAMPLE_FIGURES; i++) {
        size_t len;
        int gpu;
        const char *key = mval_key(figures, i, &len);
        snprintf(name[n], sizeof name[n], "%.*s", key ? (int)MIN(len, sizeof name[n] - 1) : 0, key ? key : "");
        if (telemetry_find(name[n], &gpu)) {
            figure[n] = (struct journal_metric){ name[n], mval_f64(mval_at(figures, i), NAN) };
            n++;
        }
    }
    if (!transaction(c, &err)
        || !journal_sample_add(c->journal, mval_text(body, "node", node, sizeof node), mval_f64(mval_get(body, "time"), clock_wall_s()),
                               figure, n, &err))
        log_warn("a sample is not kept: %s", err.text);
    c->host_mem_bytes = mval_f64(mval_get(figures, "host/run_mem_bytes"), c->host_mem_bytes);
}

/* The agent has something for the journal. */
static void event_told(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    char topic[32], id[128], kind[32], who[128], text[512];
    const struct mval *body = mval_get(in->root, "body");
    struct buf known = BUF_INIT;
    bool found = false;
    if (strcmp(mval_text(in->root, "topic", topic, sizeof topic), "sample") == 0) {
        sample_told(c, body);
        ok_later(c, r);
        return;
    }
    if (strcmp(topic, "event") != 0) {
        error_set(&err, ERR_UNSUPPORTED, "the controller takes events, not '%s'", topic);
        refuse_later(c, r, &err);
        return;
    }
    bool has_id = mval_text(body, "id", id, sizeof id)[0] != 0;
    if (has_id
        && !(transaction(c, &err) && journal_command_get(c->journal, id, &known, &found, &err)
             && (found || journal_command_put(c->journal, id, "told", &err)))) {
        refuse_later(c, r, &err);
    } else {
        if (!found)
            event_add(c, mval_text(body, "kind", kind, sizeof kind), mval_text(body, "who", who, sizeof who),
                      mval_text(body, "text", text, sizeof text), "");
        ok_later(c, r);
    }
    buf_release(&known);
}

static void request_dispatch(struct controller *c, struct net_event *ev)
{
    struct error err;
    struct msg_in in;
    if (!msg_read_request(&in, ev->data, ev->len, &err)) {
        refuse_later(c, ev->request, &err);
        return;
    }
    switch (in.type) {
    case MSG_WORK: work_asked(c, ev->request, &in); break;
    case MSG_GROUP: group_came(c, ev->request, &in, ev->data, ev->len); break;
    case MSG_FETCH: fetch_asked(c, ev->request, &in); break;
    case MSG_DONE: done_came(c, ev->request, &in); break;
    case MSG_GONE: gone_told(c, ev->request, &in); break;
    case MSG_COMMAND: command_came(c, ev->request, &in); break;
    case MSG_STEPS: steps_asked(c, ev->request, &in); break;
    case MSG_EVENTS: events_asked(c, ev->request, &in); break;
    case MSG_ROLLOUTS: rollouts_asked(c, ev->request, &in); break;
    case MSG_STATUS: status_asked(c, ev->request); break;
    case MSG_PUBLISH: event_told(c, ev->request, &in); break;
    case MSG_HEARTBEAT:
    case MSG_SCORE:
    case MSG_JOIN:
    case MSG_NODE:
    case MSG_FILE:
    case MSG_OK:
    case MSG_REFUSED:
    case MSG_TYPE_COUNT:
        error_set(&err, ERR_UNSUPPORTED, "'%s' is not for the controller", msg_specs[in.type].name);
        refuse_later(c, ev->request, &err);
        break;
    }
    msg_in_release(&in);
}

static void knob_values_write(const struct run_config *now, struct msg_out *m)
{
    msg_map(m, "knobs");
    for (int i = 0; i < n_knobs; i++)
        knob_types[knobs[i].type].send(&knobs[i], (const char *)now + knobs[i].offset, m);
    msg_end(m);
}

/* The heartbeat's detail: the fields of the answer to status that are the controller's. */
static void detail_write(void *ctx, struct msg_out *m)
{
    static const char *const depth_names[] = { "", "rollouts", "step", "drain" };
    struct controller *c = ctx;
    msg_str(m, "state", run_state_name(c->state));
    msg_str(m, "reason", c->reason);
    if (c->waste.told && !run_is_over(c)) {
        char alert[WASTE_TEXT_MAX];
        msg_str(m, "alert", waste_text(&c->waste, alert, sizeof alert));
    }
    msg_str(m, "pause_depth", depth_names[c->pause]);
    msg_i64(m, "step", c->step);
    msg_i64(m, "max_steps", c->max_steps);
    msg_i64(m, "incarnation", c->incarnation);
    msg_f64(m, "elapsed_s", (double)(clock_ms() - c->started_ms) / 1000);
    if (c->step_s_mean > 0) {
        msg_f64(m, "step_s", c->step_s_mean);
        if (c->max_steps > 0)
            msg_f64(m, "left_s", c->step_s_mean * (double)(c->max_steps - c->step));
    }
    knob_values_write(&c->now, m);
    if (c->ledger) {
        struct ledger_counts counts;
        ledger_counts(c->ledger, 1, &counts);
        msg_i64(m, "rollout_step", counts.n_cut);
        msg_map(m, "buffer");
        msg_i64(m, "issued", counts.issued + counts.leased);
        msg_i64(m, "generating", counts.leased);
        msg_i64(m, "returned", counts.returned);
        msg_i64(m, "waiting", counts.pool);
        msg_i64(m, "filtered", counts.filtered);
        if (c->config.free_running)
            msg_i64(m, "stale", counts.stale);
        msg_i64(m, "trained", counts.trained);
        msg_i64(m, "items", counts.n_item);
        msg_end(m);
    }
    msg_map(m, "metrics");
    for (int i = 0; i < c->n_metric; i++)
        msg_f64(m, c->metric_name[i], c->metric[i].value);
    msg_end(m);
    msg_map(m, "eval");
    for (int i = 0; i < c->n_eval; i++) {
        msg_map(m, c->eval[i].set);
        msg_i64(m, "step", c->eval[i].step);
        msg_i64(m, "n", c->eval[i].n);
        msg_f64(m, "mean", c->eval[i].mean);
        msg_end(m);
    }
    msg_end(m);
    for (int i = c->n_checkpoint - 1; i >= 0; i--)
        if (c->checkpoint[i].complete) {
            msg_i64(m, "checkpoint", c->checkpoint[i].step);
            break;
        }
}

/* The controller's half; the agent adds the processes. */
static void status_asked(struct controller *c, struct request *r)
{
    struct msg_out m = MSG_OUT_INIT;
    msg_begin(&m, MSG_OK);
    msg_str(&m, "name", "");
    msg_str(&m, "dir", c->process.run_dir);
    detail_write(c, &m);
    msg_list(&m, "processes");
    msg_end(&m);
    answer_later(c, r, &m);
}

static void phase_tell(struct controller *c)
{
    char waits[160] = "";
    if (c->state == RUN_STARTING)
        snprintf(waits, sizeof waits, "a worker that has loaded the model");
    else if (c->n_pending > 0)
        snprintf(waits, sizeof waits, "command '%s' to take effect", c->pending[0].name);
    process_phase(&c->process, run_state_name(c->state), waits);
}

/* When the next turn has something to do though nothing has come. */
static int64_t controller_due(const struct controller *c)
{
    return MIN(work_due(c), MIN(orders_due(c), storage_due(c)));
}

static bool controller_cmd(int argc, char **argv, struct error *err)
{
    const char *run_dir = NULL, *name = "controller";
    struct net_event ev;
    if (!process_args(argc, argv, "rollcall controller", &run_dir, &name, err))
        return false;
    log_component(name);
    struct controller *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, ERR_NO_MEMORY, "no memory for the controller");
    bool ok = false;
    TRY(process_init(&c->process, run_dir, name, err));
    c->process.detail = detail_write;
    c->process.ctx = c;
    TRY(controller_open(c, run_dir, err));
    process_pace(&c->process, c->config.heartbeat_s);
    TRY(c->server = server_new(c->process.transport, "controller", CONTROLLER_WAITING, err));
    log_info("run '%s' at step %" PRId64 " of %" PRId64 ", incarnation %" PRId64, run_dir, c->step, c->max_steps, c->incarnation);
    int64_t looked_ms = clock_ms();
    bool again = true;    // the last turn changed something, which its earlier parts have not seen
    while (!process_is_over(&c->process)) {
        int n = 0;
        int64_t pause_ms = again ? 0 : process_pause_ms(&c->process, MIN(controller_due(c), looked_ms + LOOK_MS));
        again = false;
        while (n++ < 256 && process_wait(&c->process, &ev, n == 1 ? pause_ms : 0)) {
            again = true;
            if (ev.kind == NET_REQUEST)
                request_dispatch(c, &ev);
            net_event_release(&ev);
        }
        storage_note(c);
        run_tick(c);
        again = work_tick(c) || again;
        orders_tick(c);
        storage_tick(c);
        again = again || c->in_transaction || c->n_answer > 0;
        commit_and_answer(c);
        if (c->ledger)    // after the answers: nobody waits for it
            again = rollout_log_turn(c->log, c->ledger, c->rollout_path, c->now.rollout_log_interval) || again;
        phase_tell(c);
        c->process.progress++;    // its work is to turn this loop: it is late only when it is not heard
        if (clock_ms() >= looked_ms + LOOK_MS) {
            looked_ms = clock_ms();
            if (!server_is_ours(c->server)) {
                log_error("another controller has taken our place; ending");
                _exit(1);
            }
        }
    }
    log_info("ends at step %" PRId64 ", %s", c->step, run_state_name(c->state));
    ok = true;
out:
    controller_close(c);
    process_release(&c->process);
    free(c);
    return ok;
}

const struct subcommand controller_subcommand = { "controller", controller_cmd, NULL };
