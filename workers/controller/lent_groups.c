#include "workers/controller/lent_groups.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "protocol/record/group_claims.h"
#include "workers/controller/controller.h"

static bool was_given(const struct controller *c, const struct ledger_item *i, const char *node)
{
    for (int k = 0; k < c->workers.n; k++) {
        const struct worker *w = &c->workers.worker[k];
        if (worker_is_of(w, node) && ledger_was_given(c->ledger, i->item, worker_id(c, w)))
            return true;
    }
    return false;
}

/* Count it, and tell the operator now and then, however many there are. */
static bool refused(struct controller *c, const char *node, int64_t item, struct error *err)
{
    char text[640];
    int64_t n = ++c->counts.total.n_refused;
    struct error why = *err;
    snprintf(text, sizeof text, "what lent node '%s' sends for item %" PRId64 " is refused: %.300s (%" PRId64 " refused so far)", node,
             item, why.text, n);
    if ((n & (n - 1)) == 0)
        event_add(c, "node", "controller", text, "");
    return error_set(err, ERR_REFUSED, "item %" PRId64 ": %.900s", item, why.text);
}

bool lent_refused(struct controller *c, const struct msg_in *in, int64_t item, struct error *err)
{
    char node[64];
    return mval_text(in->root, "lent", node, sizeof node)[0] ? refused(c, node, item, err) : false;
}

bool lent_owns(struct controller *c, const struct msg_in *in, const struct ledger_item *i, struct error *err)
{
    char node[64];
    if (!mval_text(in->root, "lent", node, sizeof node)[0] || was_given(c, i, node))
        return true;
    const struct worker *has = i->worker > 0 ? &c->workers.worker[i->worker - 1] : NULL;
    error_set(err, ERR_REFUSED, "it has not been given to this node%s%s", has ? " but to " : "", has ? has->name : "");
    return refused(c, node, i->item, err);
}

static struct group_claims claims_of(const struct controller *c, const struct ledger_item *i, const struct run_config *at)
{
    return (struct group_claims){ .row = i->row,
                                  .rollout_step = i->rollout_step,
                                  .version_low = c->config.free_running ? 0 : i->version,
                                  .version_high = c->config.free_running ? c->step : i->version,
                                  .n_sample = at->num_generations,
                                  .n_prompt_max = at->max_prompt_tokens,
                                  .n_tok_max = run_config_length(at, i->rollout_step),
                                  .n_id = c->n_id,
                                  .temperature = run_config_temperature(at, i->rollout_step),
                                  .top_p = at->top_p,
                                  .top_k = at->top_k };
}

bool lent_claims_check(struct controller *c, const struct msg_in *in, const struct ledger_item *i, struct error *err)
{
    char node[64];
    if (!mval_text(in->root, "lent", node, sizeof node)[0])
        return true;
    struct run_config *at = malloc(sizeof *at);
    if (!at)
        return error_set(err, ERR_NO_MEMORY, "no memory to look at the group of item %" PRId64, i->item);
    config_at(c, -1, i->rollout_step, at);
    struct group_claims may = claims_of(c, i, at);
    bool ok = group_claims_check(in->root, &may, err) && rubrics_check(mval_get(in->root, "rubrics"), err);
    free(at);
    return ok || refused(c, node, i->item, err);
}
