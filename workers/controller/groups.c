#include "workers/controller/groups.h"
#include <inttypes.h>
#include "protocol/record/group_msg.h"
#include "workers/controller/controller.h"
#include "workers/controller/lent_groups.h"

#define FETCH_BYTES ((size_t)32 << 20)    // of groups in one answer

/* Why the last of a group's samples that were left out was so; "" when all were scored. */
static const char *left_out_reason(const struct mval *samples, char *out, size_t size)
{
    out[0] = 0;
    for (int64_t i = 0; i < mval_n(samples); i++)
        if (mval_i64(mval_get(mval_at(samples, i), "score"), SCORE_OK) != SCORE_OK)
            mval_text(mval_at(samples, i), "reason", out, size);
    return out;
}

/* Groups that nothing can be learned from must not go by in silence, and not for ever. */
static void waste_look(struct controller *c, const struct group_summary *group, const struct batch_filter *filter,
                       const struct mval *samples)
{
    struct waste *w = &c->counts.waste;
    char why[64], text[WASTE_TEXT_MAX];
    waste_add(w, group, filter, left_out_reason(samples, why, sizeof why));
    if (c->now.waste_limit > 0 && w->n_sample >= c->now.waste_limit) {
        run_fail(c, "%s (waste_limit is %" PRId64 ")", waste_text(w, text, sizeof text), c->now.waste_limit);
    } else if (c->now.waste_alert > 0 && w->n_sample >= c->now.waste_alert && !w->told) {
        w->told = 1;
        event_add(c, "alert", "controller", waste_text(w, text, sizeof text), "");
    }
}

bool group_is_ours(struct controller *c, struct request *r, const struct msg_in *in, bool *known)
{
    struct error err;
    int64_t item = mval_i64(mval_get(in->root, "item"), -1), version = mval_i64(mval_get(in->root, "version"), -1);
    bool undone = mval_i64(mval_get(in->root, "made"), 0) != lineage_made(&c->lineage, version);
    const struct ledger_item *i = c->ledger ? ledger_find(c->ledger, item) : NULL;
    *known = i ? i->fate != LEDGER_ISSUED && i->fate != LEDGER_LEASED : c->ledger && item >= 0 && item < ledger_first(c->ledger);
    if (*known)
        return true;
    if (!i || (!c->config.free_running && (i->version != version || undone))) {
        error_set(&err, ERR_REFUSED, "item %" PRId64 " at version %" PRId64 " is not wanted", item, version);
        lent_refused(c, in, item, &err);
    } else if (lent_owns(c, in, i, &err)) {
        return true;
    }
    refuse_later(c, r, &err);
    return false;
}

void group_came(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct group_summary sum;
    bool known;
    if (!group_is_ours(c, r, in, &known))
        return;
    if (known) {
        ok_later(c, r);
        return;
    }
    int64_t item = mval_i64(mval_get(in->root, "item"), -1);
    if (!group_summary_read(in->root, &sum, &err)) {
        lent_refused(c, in, item, &err);
        refuse_later(c, r, &err);
        return;
    }
    const struct ledger_item *i = ledger_find(c->ledger, item);
    if (!lent_claims_check(c, in, i, &err)) {
        refuse_later(c, r, &err);
        return;
    }
    if (!run_is_over(c) && tails_passed(c, i, sum.n_tok_max)) {    // it has come too late
        if (!tails_stop(c, i, sum.n_tok, &err))
            run_fail(c, "cannot note that item %" PRId64 " was stopped: %s", item, err.text);
        ok_later(c, r);
        return;
    }
    if (run_is_over(c) || !storage_put(c, r, item, &sum, in->data, in->len, &err)) {
        if (!run_is_over(c))
            run_fail(c, "cannot keep a rollout group: %s", err.text);
        error_set(&err, ERR_REFUSED, "the run has ended");
        refuse_later(c, r, &err);
    }
}

/* Everything that changes with a new group, in one transaction. */
static bool group_take(struct controller *c, const struct msg_in *in, const struct group_summary *sum, const void *data, size_t len,
                       struct error *err)
{
    int64_t item = mval_i64(mval_get(in->root, "item"), -1), version = mval_i64(mval_get(in->root, "version"), -1);
    if (ledger_return(c->ledger, item, version, sum) != LEDGER_NEW)
        return error_set(err, ERR_REFUSED, "it is known, or not of this run");
    const struct ledger_item *i = ledger_find(c->ledger, item);
    if (!item_write(c, i, err) || !rubrics_take(c, i, in, err) || !ledger_advance(c, err))
        return false;
    struct batch_filter filter = run_config_filter(&c->now);
    counts_add(&c->counts, sum, &filter);
    step_metrics_group(&c->metrics, sum);
    step_metrics_sampled(&c->metrics, mval_get(in->root, "sampled"));
    recent_add(c, data, len);
    waste_look(c, sum, &filter, mval_get(in->root, "samples"));
    posted_taken(c, in);
    return counts_keep(c, err);
}

void group_note(struct controller *c, struct request *r, const struct msg_in *in, const struct group_summary *sum, const void *data,
                size_t len)
{
    struct error err;
    bool known;
    if (!group_is_ours(c, r, in, &known))    // the run has gone back meanwhile
        return;
    if (!known && run_is_over(c)) {
        error_set(&err, ERR_REFUSED, "the run has ended");
        refuse_later(c, r, &err);
    } else if (!known && !group_take(c, in, sum, data, len, &err)) {
        run_fail(c, "cannot note group %" PRId64 ": %s", mval_i64(mval_get(in->root, "item"), -1), err.text);
        refuse_later(c, r, &err);
    } else {
        ok_later(c, r);
    }
}

/* Add the group of an item to an answer. False with ERR_DATA: its record is damaged or missing, though it was whole once. */
static bool group_add(struct controller *c, const struct ledger_item *i, struct msg_out *m, struct error *err)
{
    struct buf record = BUF_INIT;
    struct msg_in group;
    bool ok = rollout_file_read(c->rollout_path, i->summary.file_offset, i->summary.file_bytes, &record, err)
              && msg_read_request(&group, record.data, record.len, err);
    if (ok) {
        msg_copy(m, NULL, group.root);
        msg_in_release(&group);
    }
    buf_release(&record);
    return ok;
}

void fetch_asked(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    struct msg_out m = MSG_OUT_INIT;
    const struct mval *items = mval_get(in->root, "items");
    bool ok = true;
    msg_begin(&m, MSG_OK);
    msg_list(&m, "groups");
    for (int64_t k = 0; k < mval_n(items) && m.buf.len < FETCH_BYTES && ok; k++) {
        const struct ledger_item *i = c->ledger ? ledger_find(c->ledger, mval_i64(mval_at(items, k), -1)) : NULL;
        if (!i || i->summary.file_bytes == 0) {
            ok = error_set(&err, ERR_NOT_FOUND, "item %" PRId64 " has no group here", mval_i64(mval_at(items, k), -1));
        } else if (!(ok = group_add(c, i, &m, &err)) && err.code == ERR_DATA && i->fate == LEDGER_RETURNED) {
            struct error why = err;
            ledger_lose(c->ledger, i->item);
            if (!groups_lost(c, 1, &why, &err))
                run_fail(c, "cannot have a lost group sampled again: %s", err.text);
        }
    }
    msg_end(&m);
    answer_or_refuse_later(c, r, ok, &m, &err);
}
