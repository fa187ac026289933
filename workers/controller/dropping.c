#include "workers/controller/dropping.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "protocol/run/group_msg.h"
#include "protocol/run/rollout_file.h"
#include "workers/controller/controller.h"

/* Can the group of an item still be changed? A batch that is being trained on has been given to the trainers. */
static bool is_open(struct controller *c, int64_t item, struct error *err)
{
    const struct ledger_item *i = c->ledger ? ledger_find(c->ledger, item) : NULL;
    const char *why = !i                                       ? "is not among those that wait for training"
                      : i->fate < LEDGER_RETURNED              ? "is still being sampled"
                      : i->fate != LEDGER_RETURNED             ? "has been trained on, or was left out already"
                      : i->batch == c->step && step_is_open(c) ? "is being trained on"
                      : i->lost                                ? "has a damaged record"
                                                               : NULL;
    return !why || error_set(err, ERR_REFUSED, "the group of item %" PRId64 " %s", item, why);
}

/* A sample as it was, but left out. */
static void sample_write(struct msg_out *m, const struct mval *s, const char *reason)
{
    msg_map(m, NULL);
    for (int64_t k = 0; k < mval_n(s); k++) {
        char key[64];
        size_t len = 0;
        const char *name = mval_key(s, k, &len);
        snprintf(key, sizeof key, "%.*s", (int)MIN(len, sizeof key - 1), name ? name : "");
        if (strcmp(key, "score") == 0)
            msg_i64(m, key, SCORE_LEFT_OUT);
        else if (strcmp(key, "reason") == 0)
            msg_str(m, key, reason);
        else
            msg_copy(m, key, mval_at(s, k));
    }
    msg_end(m);
}

/* The group's message with all samples left out. */
static bool message_make(struct msg_out *m, const struct mval *group, const char *who, struct error *err)
{
    const struct mval *samples = mval_get(group, "samples");
    char reason[48];
    snprintf(reason, sizeof reason, "dropped by %.36s", who);
    msg_begin(m, MSG_GROUP);
    for (int64_t k = 0; k < mval_n(group); k++) {
        char key[64];
        size_t len = 0;
        const char *name = mval_key(group, k, &len);
        snprintf(key, sizeof key, "%.*s", (int)MIN(len, sizeof key - 1), name ? name : "");
        if (strcmp(key, "v") != 0 && strcmp(key, "t") != 0 && strcmp(key, "samples") != 0)    // msg_begin writes the first two
            msg_copy(m, key, mval_at(group, k));
    }
    msg_list(m, "samples");
    for (int64_t i = 0; i < mval_n(samples); i++)
        sample_write(m, mval_at(samples, i), reason);
    msg_end(m);
    return msg_finish(m, err);
}

bool drop_begin(struct controller *c, int64_t item, const char *who, struct error *err)
{
    struct buf record = BUF_INIT;
    struct msg_in old = { 0 }, in = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    struct group_summary sum;
    bool ok = false;
    TRY(is_open(c, item, err));
    const struct group_summary *has = &ledger_find(c->ledger, item)->summary;
    if (has->n_scored == 0) {
        error_set(err, ERR_REFUSED, "no sample of item %" PRId64 " is in the loss as it is", item);
        goto out;
    }
    TRY(rollout_file_read(c->rollout_path, has->file_offset, has->file_bytes, &record, err));
    TRY(msg_read_request(&old, record.data, record.len, err));
    TRY(message_make(&m, old.root, who, err));
    TRY(msg_read_request(&in, m.buf.data, m.buf.len, err) && group_summary_read(in.root, &sum, err));
    ok = storage_put(c, NULL, item, &sum, m.buf.data, m.buf.len, err);
out:
    msg_in_release(&old);
    msg_in_release(&in);
    msg_release(&m);
    buf_release(&record);
    return ok;
}

void drop_note(struct controller *c, int64_t item, const struct group_summary *sum)
{
    struct error err;
    if (run_is_over(c) || !is_open(c, item, &err))    // drop_over says so
        return;
    ledger_amend(c->ledger, item, sum);
    if (!item_write(c, ledger_find(c->ledger, item), &err) || !number_put(c, "rollout_bytes", sum->file_offset + sum->file_bytes, &err)
        || !ledger_advance(c, &err))
        run_fail(c, "cannot drop the group of item %" PRId64 ": %s", item, err.text);
}

bool drop_over(struct controller *c, int64_t item, char *text, size_t size)
{
    struct error err;
    const struct ledger_item *i = ledger_find(c->ledger, item);
    if (storage_holds(c, item))
        return false;
    if (i && i->summary.n_scored == 0)
        snprintf(text, size, "item %" PRId64 " is left out of training", item);
    else
        snprintf(text, size, "not dropped: %s", i && !is_open(c, item, &err) ? err.text : "the group went into training before");
    return true;
}
