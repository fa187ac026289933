/* amending.h - an operator changes the group of an item that waits for training
 *
 * The group keeps its place in the batch, so that nothing else moves. Its record is written again with the change, and the journal names
 * the new one, so that a killed controller, a trainer and a resumed run read the same. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/wire/message.h"

struct controller;
struct group_summary;
/* Can the group of an item still be changed? ERR_REFUSED: it is not back yet, or is being or was trained on. */
MUST_USE bool amend_open(struct controller *c, int64_t item, struct error *err);
/* Begin: its new record, the message `group` with other members of its samples, is on the way to the disk. The n members named in
 * members are left out of each sample; write adds them to sample i. ERR_REFUSED: as amend_open, or another change is on its way. */
MUST_USE bool amend_begin(struct controller *c, int64_t item, const struct mval *group, const char *const *members, int n,
                          void (*write)(struct msg_out *m, int64_t i, void *ctx), void *ctx, struct error *err);
/* The new record is on disk: it takes the old one's place, unless the group went into training before. */
void amend_note(struct controller *c, int64_t item, const struct group_summary *sum);
