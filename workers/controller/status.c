#include "workers/controller/status.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "protocol/run/telemetry.h"
#include "workers/controller/controller.h"

#define SAMPLE_FIGURES (HOST_FIELD_N + NODE_GPUS * GPU_FIELD_N)

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
    step_metrics_host(&c->metrics, mval_f64(mval_get(figures, "host/run_mem_bytes"), c->metrics.host_mem_bytes));
}

/* The agent has something for the journal. */
void event_told(struct controller *c, struct request *r, const struct msg_in *in)
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

static void knob_values_write(const struct run_config *now, struct msg_out *m)
{
    msg_map(m, "knobs");
    for (int i = 0; i < n_knobs; i++)
        knob_types[knobs[i].type].send(&knobs[i], (const char *)now + knobs[i].offset, m);
    msg_end(m);
}

static void buffer_write(const struct controller *c, struct msg_out *m)
{
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

void detail_write(void *ctx, struct msg_out *m)
{
    struct controller *c = ctx;
    msg_str(m, "state", run_state_name(c->state));
    msg_str(m, "reason", c->reason);
    if (c->counts.waste.told && !run_is_over(c)) {
        char alert[WASTE_TEXT_MAX];
        msg_str(m, "alert", waste_text(&c->counts.waste, alert, sizeof alert));
    }
    if (c->orders.lock.holder[0]) {
        msg_map(m, "lock");
        msg_str(m, "holder", c->orders.lock.holder);
        msg_f64(m, "since", c->orders.lock.since_s);
        msg_end(m);
    }
    alarms_write(c, m);
    doctor_write(c, m);
    msg_str(m, "pause_depth", pause_depth_name(c->orders.pause));
    msg_i64(m, "step", c->step);
    msg_i64(m, "max_steps", c->max_steps);
    msg_i64(m, "incarnation", c->incarnation);
    msg_f64(m, "elapsed_s", c->elapsed_before_s + (double)(clock_ms() - c->started_ms) / 1000);
    double step_s = c->metrics.step_s_mean, left_s = INFINITY;
    if (step_s > 0) {
        msg_f64(m, "step_s", step_s);
        if (c->max_steps > 0)
            left_s = step_s * (double)(c->max_steps - c->step);
    }
    if (c->now.max_hours > 0)
        left_s = fmin(left_s, fmax(3600 * c->now.max_hours - run_used_s(c), 0));
    if (isfinite(left_s))
        msg_f64(m, "left_s", left_s);
    knob_values_write(&c->now, m);
    if (c->ledger)
        buffer_write(c, m);
    if (levels_on(c))
        levels_write(c, m);
    step_metrics_write(&c->metrics, m);
    evals_write(&c->evals, m);
    struct buf undo = { .max = 1024 };
    changes_undo_say(&c->changes, &undo);
    msg_str(m, "undo", buf_text(&undo));
    buf_release(&undo);
    int64_t newest = checkpoints_newest(&c->checkpoints);
    if (newest >= 0)
        msg_i64(m, "checkpoint", newest);
}

/* The controller's half; the agent adds the processes. */
void status_asked(struct controller *c, struct request *r, UNUSED const struct msg_in *in)
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
