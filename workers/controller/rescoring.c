#include "workers/controller/rescoring.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/base/json_text.h"
#include "protocol/base/thread.h"
#include "protocol/record/group_msg.h"
#include "protocol/record/prompt_lines.h"
#include "protocol/record/rollout_file.h"
#include "workers/controller/amending.h"
#include "workers/controller/controller.h"
#include "workers/engine/data/dataset.h"

#define SCORE_LIMIT_MS 120000
#define SHOWN_MAX 16    // rewards in the answer; the means are of all samples

/* ---- the row ---- */

/* The row that stands on a line, by halving; -1: none does. */
static int64_t row_on_line(const struct dataset *d, int64_t line)
{
    int64_t lo = 0, hi = dataset_n_row(d);
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (dataset_line(d, mid) < line)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < dataset_n_row(d) && dataset_line(d, lo) == line ? lo : -1;
}

static void *row_read(void *arg)
{
    struct rescoring *r = arg;
    struct dataset_columns columns = { r->config->prompt_column, r->config->answer_column, r->config->prompt_template };
    struct dataset *d = dataset_open(r->config->dataset, &columns, &r->why);
    int64_t i = d ? row_on_line(d, r->line) : -1;
    json_t *row = i >= 0 ? dataset_row(d, i, &r->why) : NULL;
    if (d && i < 0)
        error_set(&r->why, ERR_DATA, "'%.300s' has no row on line %" PRId64, r->config->dataset, r->line);
    if (row && !(r->row = json_text_dump(row, JSON_COMPACT)))
        error_set(&r->why, ERR_NO_MEMORY, "no memory for a row");
    json_decref(row);
    dataset_free(d);
    atomic_store(&r->found, true);
    process_wake(r->process);
    return NULL;
}

/* ---- the group ---- */

struct record_place {
    int64_t item, offset, bytes;
    bool found;
};

/* Has the group another record than the one whose answers the scorer has? It was dropped meanwhile, or sampled again. */
static bool record_is_old(const struct controller *c)
{
    const struct ledger_item *i = c->ledger ? ledger_find(c->ledger, c->rescoring.item) : NULL;
    return i && i->summary.file_offset != c->rescoring.offset;
}

static bool place_take(void *arg, const struct journal_item *i)
{
    struct record_place *p = arg;
    if (i->item == p->item && i->file_bytes > 0) {
        p->offset = i->file_offset;
        p->bytes = i->file_bytes;
        p->found = true;
    }
    return false;
}

static bool record_read(struct controller *c, int64_t item, struct error *err)
{
    struct record_place p = { .item = item };
    buf_clear(&c->rescoring.record);
    if (!journal_items_read(c->journal, item, place_take, &p, err))
        return false;
    if (!p.found)
        return error_set(err, ERR_REFUSED, "item %" PRId64 " has no group that was kept: it is still being sampled, or there is none",
                         item);
    c->rescoring.offset = p.offset;
    return rollout_file_read(c->rollout_path, p.offset, p.bytes, &c->rescoring.record, err);
}

bool rescore_begin(struct controller *c, int64_t item, struct error *err)
{
    struct rescoring *r = &c->rescoring;
    struct msg_in in;
    if (r->stage != RESCORE_NONE && r->stage != RESCORE_OVER)
        return error_set(err, ERR_REFUSED, "the group of item %" PRId64 " is being scored again; one at a time", r->item);
    if (c->config.environment[0] || run_config_posted(&c->config))
        return error_set(err, ERR_REFUSED, "the rewards of this run come from environments, which would have to be played again");
    if (c->config.apply_evolving_rubric_reward)
        return error_set(err, ERR_REFUSED, "the criteria of this run's rewards change with every group, so a group cannot be judged again");
    if (!record_read(c, item, err) || !msg_read_request(&in, r->record.data, r->record.len, err))
        return false;
    r->line = prompt_line(&c->lines.pairs, mval_i64(mval_get(in.root, "row"), -1));
    msg_in_release(&in);
    if (r->line < 0)
        return error_set(err, ERR_REFUSED, "it is not known on which line of '%.300s' the prompt of item %" PRId64 " stands",
                         c->config.dataset, item);
    free(r->row);
    r->row = NULL;
    r->why = (struct error){ 0 };
    r->item = item;
    r->process = &c->process;
    r->config = &c->config;
    atomic_store(&r->found, false);
    if (thread_start(&r->thread, row_read, r) != 0)
        return error_set(err, ERR_NO_MEMORY, "cannot start the thread that reads the data");
    r->stage = RESCORE_READS;
    return true;
}

/* ---- the scorer ---- */

static void over(struct rescoring *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

static void over(struct rescoring *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->text, sizeof r->text, fmt, args);
    va_end(args);
    r->stage = RESCORE_OVER;
}

/* As a worker asks (workers/worker/worker_parcels.c). False: a sample has no text. */
static bool question_make(struct rescoring *r, const struct mval *group, struct msg_out *m, struct error *err)
{
    const struct mval *samples = mval_get(group, "samples");
    msg_begin(m, MSG_SCORE);
    msg_str(m, "row", r->row);
    msg_i64(m, "max_new_tokens", mval_i64(mval_get(group, "max_new_tok"), 0));
    msg_list(m, "samples");
    for (int64_t i = 0; i < mval_n(samples); i++) {
        const struct mval *s = mval_at(samples, i);
        size_t len = 0;
        const char *text = mval_str(mval_get(s, "text"), &len);
        if (!text)
            return error_set(err, ERR_DATA, "its answers were kept without their texts");
        msg_map(m, NULL);
        msg_strn(m, "text", text, len);
        msg_i64(m, "n_tok", mval_i64(mval_get(s, "n_tok"), 0));
        msg_i64(m, "finish", mval_i64(mval_get(s, "finish"), 0));
        msg_end(m);
    }
    msg_end(m);
    return msg_finish(m, err);
}

static void scorer_ask(struct controller *c)
{
    struct rescoring *r = &c->rescoring;
    struct error err = r->why;
    struct msg_in in = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    bool ok = r->row && msg_read_request(&in, r->record.data, r->record.len, &err) && question_make(r, in.root, &m, &err)
              && (r->scorer || (r->scorer = peer_new(c->process.transport, "scorer", &err)))
              && peer_ask(r->scorer, &m, SCORE_LIMIT_MS, ++r->tag, &err);
    r->stage = RESCORE_SCORES;
    if (!ok)
        over(r, "item %" PRId64 " is not scored again: %.300s", r->item, err.text);
    msg_in_release(&in);
    msg_release(&m);
}

/* ---- old and new ---- */

struct rewards {
    char text[160];    // "1 0 -": the dash was left out
    double mean;       // NAN: none is scored
};

static void rewards_add(struct rewards *of, int64_t i, bool scored, double reward)
{
    size_t at = strlen(of->text);
    if (i == SHOWN_MAX)
        snprintf(of->text + at, sizeof of->text - at, " ...");
    if (i >= SHOWN_MAX)
        return;
    if (scored)
        snprintf(of->text + at, sizeof of->text - at, "%s%.3g", i ? " " : "", reward);
    else
        snprintf(of->text + at, sizeof of->text - at, "%s-", i ? " " : "");
}

static void score_write(struct msg_out *m, int64_t i, void *samples)
{
    sample_score_write(m, &((const struct sample *)samples)[i]);
}

/* Note in r->shown what the rewards were and would be; is any of them, or of their reasons, another? */
static bool rewards_compare(struct rescoring *r, const struct mval *samples, const struct sample *now)
{
    struct rewards was = { .mean = 0 }, is = { .mean = 0 };
    int64_t n = mval_n(samples), n_was = 0, n_is = 0;
    bool other = false;
    for (int64_t i = 0; i < n; i++) {
        const struct mval *s = mval_at(samples, i);
        char reason[48];
        bool scored = mval_i64(mval_get(s, "score"), 0) == SCORE_OK, scores = now[i].score == SCORE_OK;
        double reward = mval_f64(mval_get(s, "reward"), 0);
        rewards_add(&was, i, scored, reward);
        rewards_add(&is, i, scores, now[i].reward);
        was.mean += scored ? reward : 0;
        is.mean += scores ? now[i].reward : 0;
        n_was += scored;
        n_is += scores;
        other = other || scored != scores || (scores && reward != now[i].reward)
                || strcmp(mval_text(s, "reason", reason, sizeof reason), now[i].reason) != 0;
    }
    snprintf(r->shown, sizeof r->shown, "rewards %s, mean %.4g; before: %s, mean %.4g", is.text, n_is ? is.mean / (double)n_is : NAN,
             was.text, n_was ? was.mean / (double)n_was : NAN);
    return other;
}

/* Replace what can be replaced. */
static void scores_take(struct controller *c, const struct mval *group, const struct mval *results)
{
    static const char *const members[] = { "score", "reward", "format_acc", "ans_acc", "parts", "reason" };
    struct rescoring *r = &c->rescoring;
    const struct mval *samples = mval_get(group, "samples");
    int64_t n = mval_n(samples);
    struct error err;
    struct sample *now = calloc((size_t)MAX(n, (int64_t)1), sizeof *now);
    if (!now || mval_n(results) != n) {
        over(r, "item %" PRId64 " is not scored again: %s", r->item, now ? "the scorer has answered for other samples" : "no memory");
        free(now);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        sample_score_read(&now[i], mval_at(results, i));
    bool other = rewards_compare(r, samples, now);
    if (record_is_old(c))
        over(r, "item %" PRId64 " is not changed, only shown: %s (its group was changed meanwhile)", r->item, r->shown);
    else if (!other)
        over(r, "item %" PRId64 " is scored as before: %s", r->item, r->shown);
    else if (!amend_open(c, r->item, &err))
        over(r, "item %" PRId64 " is not changed, only shown: %s (%s)", r->item, r->shown, err.text);
    else if (!amend_begin(c, r->item, group, members, ARRAY_SIZE(members), score_write, now, &err))
        over(r, "item %" PRId64 " is not changed: %.300s", r->item, err.text);
    else
        r->stage = RESCORE_KEEPS;
    free(now);
}

void rescore_answered(struct controller *c, const struct net_event *ev)
{
    struct rescoring *r = &c->rescoring;
    struct msg_in in, group;
    struct error err = ev->err;
    if (!r->scorer || ev->peer != r->scorer || ev->tag != r->tag || r->stage != RESCORE_SCORES)
        return;
    if (ev->failed || !msg_read_answer(&in, MSG_SCORE, ev->data, ev->len, &err)) {
        over(r, "item %" PRId64 " is not scored again: %.300s", r->item, err.text);
        return;
    }
    if (msg_read_request(&group, r->record.data, r->record.len, &err)) {
        scores_take(c, group.root, mval_get(in.root, "results"));
        msg_in_release(&group);
    } else {
        over(r, "item %" PRId64 " is not scored again: %.300s", r->item, err.text);
    }
    msg_in_release(&in);
}

void rescore_tick(struct controller *c)
{
    struct rescoring *r = &c->rescoring;
    if (r->stage == RESCORE_READS && atomic_load(&r->found)) {
        pthread_join(r->thread, NULL);
        scorer_ask(c);
    }
    if (r->stage == RESCORE_KEEPS && !storage_holds(c, r->item)) {
        struct error err;
        if (amend_open(c, r->item, &err))
            over(r, "item %" PRId64 " has new %s", r->item, r->shown);
        else
            over(r, "item %" PRId64 " is not changed, only shown: %s (%s)", r->item, r->shown, err.text);
    }
}

bool rescore_over(struct controller *c, int64_t item, char *text, size_t size)
{
    const struct rescoring *r = &c->rescoring;
    if (r->item != item || r->stage != RESCORE_OVER)
        return false;
    snprintf(text, size, "%s", r->text);
    return true;
}

void rescore_release(struct rescoring *r)
{
    if (r->stage == RESCORE_READS)
        pthread_join(r->thread, NULL);
    peer_free(r->scorer);
    buf_release(&r->record);
    free(r->row);
    *r = (struct rescoring){ 0 };
}
