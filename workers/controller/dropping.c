#include "workers/controller/dropping.h"
#include <inttypes.h>
#include <stdio.h>
#include "protocol/record/group_msg.h"
#include "protocol/record/rollout_file.h"
#include "workers/controller/amending.h"
#include "workers/controller/controller.h"

static void left_out_write(struct msg_out *m, UNUSED int64_t i, void *reason)
{
    msg_i64(m, "score", SCORE_LEFT_OUT);
    msg_str(m, "reason", reason);
}

static bool is_out(const struct ledger_item *i)
{
    return i && (i->fate == LEDGER_ISSUED || i->fate == LEDGER_LEASED);
}

/* Drop item i, which is not back. */
static bool drop_out(struct controller *c, const struct ledger_item *i, struct error *err)
{
    int64_t item = i->item;
    if (c->config.environment[0] || run_config_posted(&c->config))
        return error_set(err, ERR_REFUSED,
                         "the group of item %" PRId64 " is not back, and what an environment plays cannot be dropped before that", item);
    if (i->batch >= 0)    // it was lost and is sampled again (ledger_reissue)
        return error_set(err, ERR_REFUSED,
                         "the group of item %" PRId64 " belongs to a train batch and is sampled again for it; drop it when it is back",
                         item);
    ledger_stop(c->ledger, item);
    c->dropping.item[c->dropping.n++ % DROPPED_MAX] = item;
    if (item_write(c, i, err) && ledger_advance(c, err))
        return true;
    run_fail(c, "cannot note that item %" PRId64 " was dropped: %s", item, err->text);
    return false;
}

static bool was_dropped_out(const struct ledger_item *i)
{
    return i && i->fate == LEDGER_STOPPED && i->summary.file_bytes == 0;
}

void drops_write(const struct controller *c, struct msg_out *m)
{
    const struct dropping *d = &c->dropping;
    if (d->n == 0 || !c->ledger)
        return;
    msg_list(m, "dropped");
    for (int64_t k = MAX(d->n - DROPPED_MAX, (int64_t)0); k < d->n; k++)
        if (was_dropped_out(ledger_find(c->ledger, d->item[k % DROPPED_MAX])))    // else a rollback has it sampled again
            msg_i64(m, NULL, d->item[k % DROPPED_MAX]);
    msg_end(m);
}

bool drop_begin(struct controller *c, int64_t item, const char *who, struct error *err)
{
    static const char *const members[] = { "score", "reason" };
    struct buf record = BUF_INIT;
    struct msg_in old = { 0 };
    char reason[48];
    bool ok = false;
    const struct ledger_item *i = c->ledger ? ledger_find(c->ledger, item) : NULL;
    if (is_out(i))
        return drop_out(c, i, err);
    TRY(amend_open(c, item, err));
    const struct group_summary *has = &ledger_find(c->ledger, item)->summary;
    if (has->n_scored == 0) {
        error_set(err, ERR_REFUSED, "no sample of item %" PRId64 " is in the loss as it is", item);
        goto out;
    }
    snprintf(reason, sizeof reason, "dropped by %.36s", who);
    TRY(rollout_file_read(c->rollout_path, has->file_offset, has->file_bytes, &record, err));
    TRY(msg_read_request(&old, record.data, record.len, err));
    ok = amend_begin(c, item, old.root, members, ARRAY_SIZE(members), left_out_write, reason, err);
out:
    msg_in_release(&old);
    buf_release(&record);
    return ok;
}

bool drop_over(struct controller *c, int64_t item, char *text, size_t size)
{
    struct error err;
    const struct ledger_item *i = ledger_find(c->ledger, item);
    if (was_dropped_out(i)) {
        snprintf(text, size, "item %" PRId64 " is dropped: it is sampled no further, and its rollout step goes on without it", item);
        return true;
    }
    if (storage_holds(c, item))
        return false;
    if (i && i->summary.n_scored == 0)
        snprintf(text, size, "item %" PRId64 " is left out of training", item);
    else
        snprintf(text, size, "not dropped: %s", i && !amend_open(c, item, &err) ? err.text : "the group went into training before");
    return true;
}
