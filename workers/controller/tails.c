#include "workers/controller/tails.h"
#include <inttypes.h>
#include <stdlib.h>
#include "workers/controller/controller.h"
#include "workers/controller/groups.h"

int64_t tails_need(const struct controller *c, const struct run_config *at)
{
    return c->config.over_sample_rate > 0 ? at->inference_batch_size * c->config.num_inferencer : 0;
}

/* As ledger_tail; -1 also when there is no over_sample_rate. */
static int64_t tail_of(const struct controller *c, int64_t rollout_step)
{
    struct run_config *at = c->config.over_sample_rate > 0 && c->ledger ? malloc(sizeof *at) : NULL;
    if (!at)
        return -1;
    config_at(c, -1, rollout_step, at);
    int64_t n_tok = ledger_tail(c->ledger, rollout_step, tails_need(c, at));
    free(at);
    return n_tok;
}

void tails_write(const struct controller *c, struct msg_out *m)
{
    struct ledger_state s;
    if (c->config.over_sample_rate == 0 || !c->ledger)
        return;
    ledger_state(c->ledger, &s);
    msg_list(m, "tails");
    for (int64_t step = s.n_cut; step < s.n_open; step++) {
        int64_t n_tok = tail_of(c, step);
        if (n_tok < 0)
            continue;
        msg_i64(m, NULL, step);
        msg_i64(m, NULL, n_tok);
    }
    msg_end(m);
}

bool tails_passed(const struct controller *c, const struct ledger_item *i, int64_t n_tok)
{
    int64_t tail = tail_of(c, i->rollout_step);
    return tail >= 0 && n_tok > tail;
}

bool tails_stop(struct controller *c, const struct ledger_item *i, int64_t n_drawn, struct error *err)
{
    ledger_stop(c->ledger, i->item);
    step_metrics_stopped(&c->metrics, n_drawn);
    return item_write(c, i, err) && ledger_advance(c, err);
}

void tails_stopped(struct controller *c, struct request *r, const struct msg_in *in)
{
    struct error err;
    bool known;
    int64_t item = mval_i64(mval_get(in->root, "item"), -1);
    if (!group_is_ours(c, r, in, &known))
        return;
    const struct ledger_item *i = ledger_find(c->ledger, item);
    if (known || run_is_over(c)) {
        ok_later(c, r);
    } else if (!tails_passed(c, i, mval_i64(mval_get(in->root, "n_tok"), 0))) {    // groups have been lost since
        ledger_again(c->ledger, item);
        error_set(&err, ERR_REFUSED, "item %" PRId64 " is still wanted", item);
        refuse_later(c, r, &err);
    } else if (!tails_stop(c, i, mval_i64(mval_get(in->root, "drawn"), 0), &err)) {
        run_fail(c, "cannot note that item %" PRId64 " was stopped: %s", item, err.text);
        refuse_later(c, r, &err);
    } else {
        ok_later(c, r);
    }
}
