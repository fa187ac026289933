#include "workers/controller/dropping.h"
#include <inttypes.h>
#include <stdio.h>
#include "protocol/run/group_msg.h"
#include "protocol/run/rollout_file.h"
#include "workers/controller/amending.h"
#include "workers/controller/controller.h"

static void left_out_write(struct msg_out *m, UNUSED int64_t i, void *reason)
{
    msg_i64(m, "score", SCORE_LEFT_OUT);
    msg_str(m, "reason", reason);
}

bool drop_begin(struct controller *c, int64_t item, const char *who, struct error *err)
{
    static const char *const members[] = { "score", "reason" };
    struct buf record = BUF_INIT;
    struct msg_in old = { 0 };
    char reason[48];
    bool ok = false;
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
    if (storage_holds(c, item))
        return false;
    if (i && i->summary.n_scored == 0)
        snprintf(text, size, "item %" PRId64 " is left out of training", item);
    else
        snprintf(text, size, "not dropped: %s", i && !amend_open(c, item, &err) ? err.text : "the group went into training before");
    return true;
}
