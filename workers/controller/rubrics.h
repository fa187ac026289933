/* rubrics.h - evolving rubrics: kept with each group, given to later items of the same prompt
 *
 * Rubrics change with what the judge answers, so what an item is judged by is fixed like everything else of it: by the groups of the
 * rollout steps that had been cut when its own was opened. The journal has what each group's rubric became, in the transaction that has
 * the group; nothing is kept in memory. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
struct ledger_item;
struct msg_in;
struct msg_out;
struct mval;
/* Can the field 'rubrics' of a group be read? NULL is fine. */
MUST_USE bool rubrics_check(const struct mval *told, struct error *err);
/* A group has come: note what its prompt's rubric becomes, and count it. */
MUST_USE bool rubrics_take(struct controller *c, const struct ledger_item *i, const struct msg_in *in, struct error *err);
/* Add those that item i is judged by to its entry of a task, if there are any. */
MUST_USE bool rubrics_write(struct controller *c, const struct ledger_item *i, struct msg_out *m, struct error *err);
/* Items from first to last do not count (any more). */
MUST_USE bool rubrics_forget(struct controller *c, int64_t first, int64_t last, struct error *err);
