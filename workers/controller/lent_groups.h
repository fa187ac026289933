/* lent_groups.h - groups of machines that may only sample ('listen_lent'): whose items they may return, and what they may claim of them
 *
 * The gate writes the node's name into such a machine's messages, as `lent`. A group is its own when the item was given to one of its
 * workers and to nobody since; one that is not is refused, as is one that claims what cannot be (group_claims.h). Nothing is lost by
 * that: the item stays with whoever has it, or is given again, and the same seeds make the same bytes. What was given is not in the
 * journal, so after a controller's death such machines sample what they had once more. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
struct ledger_item;
struct msg_in;
/* Messages `group` and `stopped`: may the sender speak for item i, which is out? A refusal is counted, and told the operator at the first one
 * and whenever their number has doubled. */
MUST_USE bool lent_owns(struct controller *c, const struct msg_in *in, const struct ledger_item *i, struct error *err);
/* Refuse what a lent machine sent for an item, because of *err: counted and told as above. err is passed on as it is when a trusted worker
 * has sent it. Returns false. */
bool lent_refused(struct controller *c, const struct msg_in *in, int64_t item, struct error *err);
/* A `group` of item i: can it be what it claims to be? Always, when a trusted worker has sent it. A refusal is counted as above. */
MUST_USE bool lent_claims_check(struct controller *c, const struct msg_in *in, const struct ledger_item *i, struct error *err);
