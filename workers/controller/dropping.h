/* dropping.h - an operator leaves a group out of training
 *
 * All samples of a group that is back count as left out: they are in no mean, no spread and no loss (amending.h). An item that is not
 * back is stopped, in the journal at once: its rollout step is cut without it, as without a filtered group. Workers are told, so that
 * they sample it no longer; a group of it that comes all the same is known and not used. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define DROPPED_MAX 16    // items that workers are told of; an older one costs only the tokens that are still drawn for it

struct controller;
struct msg_out;
struct dropping {
    int64_t item[DROPPED_MAX];    // ring
    int64_t n;                    // all that were dropped while not back, since the controller started
};
/* Add the list dropped to a task: the last items that were dropped while they were not back. */
void drops_write(const struct controller *c, struct msg_out *m);
/* Begin to drop the group of item: its new record is on the way to the disk, or the item is stopped. ERR_REFUSED: it is being or was
 * trained on, or is not back in a run whose samples cannot be stopped, or in a batch that has been cut. */
MUST_USE bool drop_begin(struct controller *c, int64_t item, const char *who, struct error *err);
/* Says whether the drop of item is over, and how: in text. */
bool drop_over(struct controller *c, int64_t item, char *text, size_t size);
