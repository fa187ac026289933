/* rollback.h - going back to a checkpoint on an operator's word: what is there, what would be undone, and the going back
 *
 * A new incarnation continues from the checkpoint's step, in place. Undone are the later steps, the changes of knobs asked for since,
 * and all that was sampled with later weights (ledger_rewind), so the run goes on as if they had never been. Later checkpoints are
 * moved aside. A trainer that dies is another matter (returning.h): that keeps changes and groups. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "protocol/base/error.h"

struct controller;
struct effect;
struct msg_in;
struct mval;
struct order;
struct request;
/* The commands rollback, pin and unpin (orders.c). A rollback waits while a checkpoint is being written. */
MUST_USE bool rollback_begin(struct controller *c, struct order *o, const struct mval *args, struct effect *effect, struct error *err);
bool rollback_reached(struct controller *c, const struct order *o, char *text, size_t size);
/* The run itself wants to go back: to before the last change of knobs, or to the newest checkpoint before now. False: there is none. */
bool rollback_want(struct controller *c, bool before_change, const char *who);
void rollback_tick(struct controller *c);    // each turn of the loop: goes back, when that is wanted and no checkpoint is being written
MUST_USE bool pin_begin(struct controller *c, struct order *o, const struct mval *args, struct effect *effect, struct error *err);
MUST_USE bool unpin_begin(struct controller *c, struct order *o, const struct mval *args, struct effect *effect, struct error *err);
/* The checkpoints that can be gone back to, and what each would undo. */
void checkpoints_asked(struct controller *c, struct request *r, const struct msg_in *in);
