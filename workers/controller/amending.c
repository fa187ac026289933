#include "workers/controller/amending.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "protocol/record/group_msg.h"
#include "workers/controller/controller.h"

/* A batch that is being trained on has been given to the trainers. */
bool amend_open(struct controller *c, int64_t item, struct error *err)
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

static bool is_among(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* Copy the members of a map, but for n of them. */
static void members_copy(struct msg_out *m, const struct mval *map, const char *const *without, int n)
{
    for (int64_t k = 0; k < mval_n(map); k++) {
        char key[64];
        size_t len = 0;
        const char *name = mval_key(map, k, &len);
        snprintf(key, sizeof key, "%.*s", (int)MIN(len, sizeof key - 1), name ? name : "");
        if (!is_among(without, n, key))
            msg_copy(m, key, mval_at(map, k));
    }
}

bool amend_begin(struct controller *c, int64_t item, const struct mval *group, const char *const *members, int n,
                 void (*write)(struct msg_out *m, int64_t i, void *ctx), void *ctx, struct error *err)
{
    static const char *const own[] = { "v", "t", "samples", "arrived" };    // msg_begin writes the first two
    const struct mval *samples = mval_get(group, "samples");
    struct msg_in in = { 0 };
    struct msg_out m = MSG_OUT_INIT;
    struct group_summary sum;
    bool ok = false;
    TRY(amend_open(c, item, err));
    if (storage_holds(c, item)) {    // a change of what is on disk would undo that one
        error_set(err, ERR_REFUSED, "the group of item %" PRId64 " is being changed already", item);
        goto out;
    }
    msg_begin(&m, MSG_GROUP);
    members_copy(&m, group, own, ARRAY_SIZE(own));
    msg_i64(&m, "arrived", group_arrival(&ledger_find(c->ledger, item)->summary));    // it keeps its place among those that wait
    msg_list(&m, "samples");
    for (int64_t i = 0; i < mval_n(samples); i++) {
        msg_map(&m, NULL);
        members_copy(&m, mval_at(samples, i), members, n);
        write(&m, i, ctx);
        msg_end(&m);
    }
    msg_end(&m);
    TRY(msg_finish(&m, err) && msg_read_request(&in, m.buf.data, m.buf.len, err) && group_summary_read(in.root, &sum, err));
    ok = storage_put(c, NULL, item, &sum, m.buf.data, m.buf.len, err);
out:
    msg_in_release(&in);
    msg_release(&m);
    return ok;
}

void amend_note(struct controller *c, int64_t item, const struct group_summary *sum)
{
    struct error err;
    if (run_is_over(c) || !amend_open(c, item, &err))    // the command's answer says so
        return;
    ledger_amend(c->ledger, item, sum);
    if (!item_write(c, ledger_find(c->ledger, item), &err) || !number_put(c, "rollout_bytes", sum->file_offset + sum->file_bytes, &err)
        || !ledger_advance(c, &err))
        run_fail(c, "cannot change the group of item %" PRId64 ": %s", item, err.text);
}
