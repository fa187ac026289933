/* worker_parcels.c - reliable delivery: groups to the scorer and then to the controller, turns to the scorer, reports to the
 * controller
 *
 * A parcel is resent until it has been answered. A group is the same parcel on both ways. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include "protocol/base/clock.h"
#include "protocol/base/json_text.h"
#include "protocol/base/log.h"
#include "protocol/record/group_msg.h"
#include "protocol/record/prompt_lines.h"
#include "workers/engine/reward/environment_pool.h"
#include "workers/engine/reward/reward.h"
#include "workers/engine/sampler/eval.h"
#include "workers/worker/worker_parts.h"

#define FILES_BYTES_MAX ((size_t)1 << 20)       // of the list of the data's files; a longer one is not sent
#define RECORDS_BYTES_MAX ((size_t)32 << 20)    // of an evaluation's answers to a prompt; more are not kept
#define SCORE_TRIES 6                           // after that the samples are left out
#define GROUP_LIMIT_MS 20000
#define OPEN_MAX 48          // groups at once, to scorer and to controller
#define TURN_OPEN_MAX 256    // turns at once; half of them may be beginnings, which wait where only so many can be played at once

static struct parcel *parcel_add(struct worker_process *w, enum parcel_kind kind)
{
    struct parcel *p = calloc(1, sizeof *p);
    BUG_IF(!p, "no memory for a message of %zu bytes", sizeof *p);
    p->kind = kind;
    p->tag = TAG_FIRST + w->next_tag++;
    p->msg = MSG_OUT_INIT;
    p->began_ms = clock_ms();
    struct parcel **at = &w->parcels;
    while (*at)
        at = &(*at)->next;
    *at = p;
    return p;
}

static void parcel_free(struct worker_process *w, struct parcel *p)
{
    for (struct parcel **at = &w->parcels; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    report_free(p->report);
    msg_release(&p->msg);
    free(p);
}

static void parcel_score_make(struct parcel *p, bool environment)
{
    const struct report *r = p->report;
    struct buf transcript = BUF_INIT;
    msg_begin(&p->msg, MSG_SCORE);
    msg_str(&p->msg, "row", r->row);
    msg_i64(&p->msg, "max_new_tokens", r->group->max_new_tok);
    if (r->eval.id)
        msg_bool(&p->msg, "eval", true);
    msg_list(&p->msg, "samples");
    for (int32_t i = 0; i < r->group->n_sample; i++) {
        msg_map(&p->msg, NULL);
        msg_str(&p->msg, "text", r->last[i]);
        msg_i64(&p->msg, "n_tok", r->group->sample[i].n_tok);
        msg_i64(&p->msg, "finish", r->group->sample[i].finish);
        if (environment) {
            buf_clear(&transcript);
            buf_str(&transcript, r->prompt_text);
            buf_str(&transcript, r->text[i]);
            msg_str(&p->msg, "transcript", buf_text(&transcript));
            p->msg.buf.failed |= transcript.failed;
            msg_f64(&p->msg, "reward", r->group->sample[i].reward);
            msg_f64(&p->msg, "ans_acc", (double)r->group->sample[i].ans_acc);
        }
        msg_end(&p->msg);
    }
    msg_end(&p->msg);
    buf_release(&transcript);
}

static void parcel_turn_make(const struct worker_process *w, struct parcel *p)
{
    const struct turn *t = &p->report->turn->turn;
    char from[128];
    msg_begin(&p->msg, MSG_TURN);
    msg_i64(&p->msg, "item", t->item);
    msg_i64(&p->msg, "sample", t->sample);
    msg_i64(&p->msg, "seed", t->seed);
    msg_str(&p->msg, "row", t->row);
    msg_list(&p->msg, "texts");
    for (int64_t i = 0; i < t->n_text; i++)
        msg_str(&p->msg, NULL, t->text[i]);
    msg_end(&p->msg);
    if (!run_config_harness(&w->config))
        return;
    snprintf(from, sizeof from, "%s/%" PRIx64, w->process.name, (uint64_t)w->process.start);
    msg_str(&p->msg, "from", from);
    msg_i64(&p->msg, "serial", t->serial);
    msg_i64(&p->msg, "oldest", t->oldest);
}

static void parcel_stopped_make(struct parcel *p)
{
    const struct report *r = p->report;
    msg_begin(&p->msg, MSG_STOPPED);
    msg_i64(&p->msg, "item", r->stopped.item);
    msg_i64(&p->msg, "version", r->stopped.version);
    msg_i64(&p->msg, "made", r->made);
    msg_i64(&p->msg, "n_tok", r->stopped.n_tok);
    msg_i64(&p->msg, "drawn", r->stopped.n_drawn);
}

static void number_write(struct msg_out *m, const char *name, double value)
{
    if (!isnan(value))
        msg_f64(m, name, value);
}

static void sampled_write(struct msg_out *m, const struct sampled *s)
{
    msg_map(m, "sampled");
    msg_f64(m, "generate_s", s->generate_s);
    msg_f64(m, "tail_s", s->tail_s);
    number_write(m, "gap_s", s->gap_s);
    msg_i64(m, "n_tok", s->n_tok);
    msg_i64(m, "n_draft", s->n_draft);
    msg_i64(m, "n_accepted", s->n_accepted);
    msg_i64(m, "n_put_back", s->n_put_back);
    number_write(m, "flops", s->flops);
    number_write(m, "flops_most", s->flops_most);
    number_write(m, "bytes", s->bytes);
    number_write(m, "bytes_most", s->bytes_most);
    msg_end(m);
}

static void parcel_group_make(struct parcel *p, int64_t incarnation)
{
    const struct report *r = p->report;
    msg_begin(&p->msg, MSG_GROUP);
    msg_i64(&p->msg, "incarnation", incarnation);
    msg_i64(&p->msg, "made", r->made);
    struct group_texts texts = { .prompt = r->prompt_text, .sample = (const char *const *)r->text, .piece = r->piece };
    if (r->rubrics)
        msg_str(&p->msg, "rubrics", r->rubrics);
    if (r->sampled.n_tok > 0)
        sampled_write(&p->msg, &r->sampled);
    group_write(&p->msg, r->group, &texts);
}

/* An evaluation's answers to a prompt: what they count, and a line of its records for each. */
static void parcel_evaluated_make(struct parcel *p, const char *run_id)
{
    const struct report *r = p->report;
    struct error err;
    struct buf lines = { .max = RECORDS_BYTES_MAX };
    json_t *row = json_str_read(r->row, JSON_ALLOW_NUL, NULL);
    msg_begin(&p->msg, MSG_EVALUATED);
    msg_i64(&p->msg, "eval", r->eval.id);
    msg_str(&p->msg, "set", r->eval.set);
    msg_i64(&p->msg, "row", r->group->prompt_row);
    msg_i64(&p->msg, "n", r->eval.n);
    msg_list(&p->msg, "samples");
    for (int32_t i = 0; i < r->group->n_sample; i++) {
        const struct sample *s = &r->group->sample[i];
        const struct reward_output *out = &r->out[i];
        struct eval_record record = { .prompt = r->prompt_text,
                                      .prediction = r->text[i],
                                      .prediction_len = (int64_t)strlen(r->text[i]),
                                      .row = row,
                                      .prompt_row = r->group->prompt_row,
                                      .sample = i,
                                      .n_tok = s->n_tok,
                                      .finish = s->finish,
                                      .out = out,
                                      .run = run_id };
        if (!eval_record_line(&lines, &record, &err))
            log_warn("an evaluation's record: %s", err.text);
        msg_map(&p->msg, NULL);
        msg_i64(&p->msg, "score", out->score);
        msg_f64(&p->msg, "reward", out->reward);
        if (!isnan(out->format_acc))
            msg_f64(&p->msg, "format_acc", (double)out->format_acc);
        if (out->score != SCORE_OK || eval_judged(out))
            msg_bool(&p->msg, "correct", eval_correct(out));
        msg_i64(&p->msg, "n_tok", s->n_tok);
        msg_i64(&p->msg, "finish", s->finish);
        msg_end(&p->msg);
    }
    msg_end(&p->msg);
    msg_str(&p->msg, "records", lines.failed ? "" : buf_text(&lines));
    buf_release(&lines);
    json_decref(row);
}

/* Where a parcel goes, for how long at most, and how many of its kind are on the way. */
static struct peer *parcel_way(struct worker_process *w, const struct parcel *p, int **n_open, int64_t *limit_ms, int *most)
{
    int64_t score_ms = (int64_t)(1000 * w->config.score_timeout_s);
    switch (p->kind) {
    case PARCEL_SCORE: *n_open = &w->n_score_open, *limit_ms = score_ms, *most = OPEN_MAX; return w->scorer;
    case PARCEL_TURN:
        *n_open = &w->n_turn_open, *most = TURN_OPEN_MAX;
        *limit_ms = score_ms + 2 * (int64_t)(w->config.environment_timeout_s * 1000);
        return w->scorer;
    case PARCEL_GROUP:
    case PARCEL_STOPPED:
    case PARCEL_EVALUATED:
    case PARCEL_DONE: break;
    }
    *n_open = &w->n_group_open, *limit_ms = GROUP_LIMIT_MS, *most = OPEN_MAX;
    return w->controller;
}

void parcels_send(struct worker_process *w)
{
    struct error err;
    int64_t now = clock_ms(), limit_ms;
    int *n_open, most;
    for (struct parcel *p = w->parcels; p; p = p->next) {
        if (p->open || now < p->again_ms)
            continue;
        struct peer *to = parcel_way(w, p, &n_open, &limit_ms, &most);
        bool begins = p->kind == PARCEL_TURN && p->report->turn->turn.n_text == 0;
        if (*n_open >= most || (begins && w->n_begin_open >= most / 2))
            continue;
        if (peer_ask(to, &p->msg, limit_ms, p->tag, &err)) {
            p->open = true;
            p->n_try++;
            ++*n_open;
            w->n_begin_open += begins;
        } else {
            p->again_ms = now + REPEAT_MS;
        }
    }
}

/* ---- scores ---- */

/* The result of a sample according to the scorer. */
static enum score_state score_read(const struct mval *o)
{
    int64_t score = mval_i64(mval_get(o, "score"), SCORE_ERROR);
    return score >= SCORE_OK && score <= SCORE_ERROR ? (enum score_state)score : SCORE_ERROR;
}

/* A scorer's whole answer on one sample, for an evaluation's records. */
static void output_read(struct reward_output *out, const struct mval *o)
{
    size_t n = 0;
    const void *code = mval_bin(mval_get(o, "tests"), &n);
    out->score = score_read(o);
    out->reward = mval_f64(mval_get(o, "reward"), 0);
    out->format_acc = (float)mval_f64(mval_get(o, "format_acc"), NAN);
    out->ans_acc = (float)mval_f64(mval_get(o, "ans_acc"), NAN);
    out->verdict = out->ans_acc > 0 ? VERDICT_EQUAL : VERDICT_DIFFERENT;
    mval_text(o, "rule", out->rule, sizeof out->rule);
    mval_text(o, "pred", out->pred, sizeof out->pred);
    mval_text(o, "gold", out->gold, sizeof out->gold);
    out->tests.n = (int16_t)MIN(n, TESTS_KEPT_MAX);
    if (code)
        memcpy(out->tests.code, code, (size_t)out->tests.n);
}

static void scores_take(struct parcel *p, const struct mval *results)
{
    struct group *g = p->report->group;
    for (int32_t i = 0; i < g->n_sample; i++) {
        const struct mval *o = mval_at(results, i);
        struct sample *s = &g->sample[i];
        struct reward_output *out = p->report->out ? &p->report->out[i] : NULL;
        if (out)
            output_read(out, o);
        if (s->score != SCORE_NONE) {    // the environment has left it out
            if (out)
                snprintf(out->rule, sizeof out->rule, "%s", s->reason);
            if (out)
                out->score = s->score;
            continue;
        }
        sample_score_read(s, o);
        if (!g->gold[0])
            mval_text(o, "gold", g->gold, sizeof g->gold);
        g->verify_s += mval_f64(mval_get(o, "us"), 0) * 1e-6;
    }
    g->score_s = (double)(clock_ms() - p->began_ms) / 1000;
}

/* Pass a scored group on to the controller. */
static void group_scored(struct worker_process *w, struct parcel *p)
{
    struct error err;
    struct report *r = p->report;
    w->process.progress++;
    p->kind = r->eval.id ? PARCEL_EVALUATED : PARCEL_GROUP;
    p->n_try = 0;
    p->again_ms = 0;
    if (r->eval.id)
        parcel_evaluated_make(p, w->run_id);
    else
        parcel_group_make(p, w->incarnation);
    if (!msg_finish(&p->msg, &err)) {
        log_error("group %" PRId64 " cannot be sent: %s", r->group->item, err.text);
        parcel_free(w, p);
    }
}

static void score_failed(struct worker_process *w, struct parcel *p, const struct error *why)
{
    if (p->n_try < SCORE_TRIES) {
        p->again_ms = clock_ms() + REPEAT_MS;
        return;
    }
    log_warn("group %" PRId64 " is left unscored: %s", p->report->group->item, why->text);
    for (int32_t i = 0; i < p->report->group->n_sample; i++) {
        p->report->group->sample[i].score = why->code == ERR_TIMEOUT ? SCORE_TIMEOUT : SCORE_ERROR;
        snprintf(p->report->group->sample[i].reason, sizeof p->report->group->sample[i].reason, "scorer: %.36s", why->text);
        if (p->report->out) {    // an evaluation's record says it, too
            p->report->out[i].score = p->report->group->sample[i].score;
            snprintf(p->report->out[i].rule, sizeof p->report->out[i].rule, "%s", p->report->group->sample[i].reason);
        }
    }
    group_scored(w, p);
}

/* Give an answered turn back to the engine. */
static void turn_done(struct worker_process *w, struct parcel *p)
{
    struct report *r = p->report;
    p->report = NULL;
    parcel_free(w, p);
    w->process.progress++;
    engine_answered(w->engine, r);
}

static void turn_failed(struct worker_process *w, struct parcel *p, const struct error *why)
{
    struct turn_answer *a = &p->report->turn->answer;
    if (p->n_try < SCORE_TRIES) {
        p->again_ms = clock_ms() + REPEAT_MS;
        return;
    }
    a->state = why->code == ERR_TIMEOUT ? SCORE_TIMEOUT : SCORE_ERROR;
    snprintf(a->reason, sizeof a->reason, "scorer: %.36s", why->text);
    turn_done(w, p);
}

static void turn_answered(struct worker_process *w, struct parcel *p, const struct net_event *ev)
{
    struct msg_in in;
    struct error err;
    struct turn_answer *a = &p->report->turn->answer;
    size_t len;
    w->n_turn_open--;
    w->n_begin_open -= p->report->turn->turn.n_text == 0;
    if (ev->failed) {
        turn_failed(w, p, &ev->err);
        return;
    }
    if (!msg_read_answer(&in, MSG_TURN, ev->data, ev->len, &err)) {
        turn_failed(w, p, &err);
        return;
    }
    if (mval_bool(mval_get(in.root, "later"), false)) {
        msg_in_release(&in);
        p->n_try = 0;
        w->process.progress++;
        return;
    }
    const char *json = mval_str(mval_get(in.root, "answer"), &len);
    a->state = score_read(in.root);
    mval_text(in.root, "reason", a->reason, sizeof a->reason);
    a->json = json ? strndup(json, len) : NULL;
    if (!a->json && a->state == SCORE_OK)
        a->state = SCORE_ERROR;
    msg_in_release(&in);
    turn_done(w, p);
}

void parcel_answered(struct worker_process *w, struct net_event *ev)
{
    struct parcel *p = w->parcels;
    struct msg_in in;
    struct error err;
    while (p && p->tag != ev->tag)
        p = p->next;
    if (!p)
        return;
    p->open = false;
    if (p->kind == PARCEL_TURN) {
        turn_answered(w, p, ev);
        return;
    }
    if (p->kind == PARCEL_SCORE) {
        w->n_score_open--;
        if (ev->failed) {
            score_failed(w, p, &ev->err);
        } else if (!msg_read_answer(&in, MSG_SCORE, ev->data, ev->len, &err)) {
            score_failed(w, p, &err);
        } else {
            scores_take(p, mval_get(in.root, "results"));
            size_t len;
            const char *rubrics = mval_str(mval_get(in.root, "rubrics"), &len);
            if (rubrics && !p->report->rubrics)
                p->report->rubrics = strndup(rubrics, len);
            msg_in_release(&in);
            group_scored(w, p);
        }
        return;
    }
    w->n_group_open--;
    if (ev->failed) {
        p->again_ms = clock_ms() + REPEAT_MS;
        return;
    }
    const enum msg_type type[] = {
        [PARCEL_GROUP] = MSG_GROUP, [PARCEL_STOPPED] = MSG_STOPPED, [PARCEL_EVALUATED] = MSG_EVALUATED, [PARCEL_DONE] = MSG_DONE
    };
    if (msg_read_answer(&in, type[p->kind], ev->data, ev->len, &err))
        msg_in_release(&in);
    else
        log_info("not taken by the controller: %s", err.text);
    w->process.progress++;
    parcel_free(w, p);
}

/* ---- reports of the engine ---- */

/* The line of each usable prompt in the data's files. */
static void lines_write(struct worker_process *w, struct msg_out *m)
{
    int64_t(*pair)[2] = calloc(PROMPT_LINES_MAX, sizeof *pair), n = pair ? engine_lines(w->engine, pair, PROMPT_LINES_MAX) : -1;
    if (n >= 0)
        msg_bin(m, "lines", pair, (size_t)n * sizeof *pair);
    free(pair);
    if (w->config.curriculum_levels > 1 && n >= 0) {
        int64_t n_level;
        const uint8_t *level = engine_levels(w->engine, &n_level);
        msg_bin(m, "levels", level, (size_t)n_level);
    }
    struct buf files = { .max = FILES_BYTES_MAX };
    engine_files(w->engine, &files);
    if (n > 0 && files.len > 0 && !files.failed)
        msg_str(m, "files", files.data);
    buf_release(&files);
}

void done_send(struct worker_process *w, const struct report *r)
{
    struct error err;
    struct parcel *p = parcel_add(w, PARCEL_DONE);
    struct msg_out *m = &p->msg;
    p->saved = r->task_kind == TASK_SAVE;
    msg_begin(m, MSG_DONE);
    msg_str(m, "name", w->process.name);
    msg_i64(m, "task", r->task);
    msg_str(m, "kind", task_kind_name(r->task_kind));
    msg_i64(m, "incarnation", r->incarnation);
    msg_i64(m, "step", r->step);
    msg_i64(m, "rank", w->part.rank);
    msg_i64(m, "round", r->round);
    msg_bool(m, "ok", r->ok);
    if (r->task_kind == TASK_PUBLISH)
        msg_i64(m, "version", r->version);
    if (r->task_kind == TASK_LOAD && r->ok)
        lines_write(w, m);
    if (r->left)
        msg_bool(m, "left", true);
    if (r->again)
        msg_bool(m, "again", true);
    if (r->broken)
        msg_bool(m, "broken", true);
    if (!r->ok)
        msg_str(m, "code", error_code_name(r->code));
    msg_str(m, "error", r->error);
    if (r->note[0])
        msg_str(m, "note", r->note);
    if (r->n_left_item > 0) {
        msg_list(m, "left_out");
        for (int64_t i = 0; i < MIN(r->n_left_item, LEFT_TOLD_MAX); i++) {
            msg_map(m, NULL);
            msg_i64(m, "item", r->left_item[i].item);
            msg_str(m, "why", r->left_item[i].why);
            msg_end(m);
        }
        msg_end(m);
        msg_i64(m, "n_left_out", r->n_left_item);
    }
    msg_map(m, "metrics");
    for (int i = 0; i < METRIC_N; i++) {
        if (isnan(r->metric[i]))
            continue;
        BUG_IF(metrics[i].by == BY_CONTROLLER, "'%s' is the controller's to compute", metrics[i].name);
        msg_f64(m, metrics[i].name, r->metric[i]);
    }
    for (int q = 0; q < r->n_rank; q++) {
        char name[64];
        snprintf(name, sizeof name, "%s/%d", metrics[M_RANKS_IDLE_S].name, q);
        msg_f64(m, name, r->rank_idle_s[q]);
    }
    for (int q = 0; q < r->n_stage; q++) {
        char name[64];
        snprintf(name, sizeof name, "%s/%d", metrics[M_STAGES_IDLE_S].name, q);
        msg_f64(m, name, r->stage_idle_s[q]);
    }
    msg_end(m);
    if (r->histogram) {
        struct buf packed = BUF_INIT;
        histograms_pack(&packed, r->histogram);
        if (!packed.failed)
            msg_bin(m, "histograms", buf_text(&packed), packed.len);
        buf_release(&packed);
    }
    if (r->task_kind == TASK_EVAL && r->ok) {
        msg_map(m, "eval");
        for (int i = 0; i < r->n_told; i++) {
            msg_map(m, r->told[i].set);
            msg_i64(m, "n", r->told[i].n);
            msg_list(m, "dropped");
            for (int64_t k = 0; k < r->told[i].n_dropped; k++)
                msg_i64(m, NULL, r->told[i].dropped[k]);
            msg_end(m);
            msg_end(m);
        }
        msg_end(m);
    }
    BUG_IF(!msg_finish(m, &err), "a report does not fit: %s", err.text);
}

void backlog_show(struct worker_process *w)
{
    int64_t n = 0;
    for (const struct parcel *p = w->parcels; p; p = p->next)
        n += p->kind == PARCEL_SCORE && p->report->eval.id != 0;
    engine_backlog(w->engine, n);
}

void reports_take(struct worker_process *w)
{
    struct report *r;
    struct error err;
    while ((r = engine_take(w->engine))) {
        if (r->kind == REPORT_DONE) {
            if (!r->ok)
                log_at(r->left || r->again ? LOG_WARN : LOG_ERROR, "%s: %s", task_kind_name(r->task_kind), r->error);
            done_send(w, r);
            report_free(r);
            continue;
        }
        if (r->kind == REPORT_STOPPED) {
            struct parcel *stopped = parcel_add(w, PARCEL_STOPPED);
            stopped->report = r;
            parcel_stopped_make(stopped);
            BUG_IF(!msg_finish(&stopped->msg, &err), "a report does not fit: %s", err.text);
            continue;
        }
        bool turn = r->kind == REPORT_TURN;
        struct parcel *p = parcel_add(w, turn ? PARCEL_TURN : PARCEL_SCORE);
        p->report = r;
        if (turn)
            parcel_turn_make(w, p);
        else
            parcel_score_make(p, w->config.environment[0]);
        if (!msg_finish(&p->msg, &err)) {
            p->n_try = SCORE_TRIES;
            (turn ? turn_failed : score_failed)(w, p, &err);
        }
    }
}

int64_t parcels_due(const struct worker_process *w)
{
    int64_t due = INT64_MAX;
    for (const struct parcel *p = w->parcels; p; p = p->next)
        if (!p->open && p->again_ms > w->turned_ms)    // one that was due and not sent is waiting for another one's answer
            due = MIN(due, p->again_ms);
    return due;
}

void parcels_release(struct worker_process *w)
{
    while (w->parcels)
        parcel_free(w, w->parcels);
}
