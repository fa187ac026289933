/* dropping.h - an operator leaves a group out of training
 *
 * The group keeps its place in the batch, so that nothing else moves, but all its samples count as left out: they are in no mean, no
 * spread and no loss. Its record is written again with that, and the journal names the new one, so that a killed controller, a trainer and
 * a resumed run read the same. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
struct group_summary;
/* Begin to drop the group of item: its new record is on the way to the disk. ERR_REFUSED: it is not back yet, or is being or was
 * trained on. */
MUST_USE bool drop_begin(struct controller *c, int64_t item, const char *who, struct error *err);
/* The new record is on disk: it takes the old one's place, unless the group went into training before. */
void drop_note(struct controller *c, int64_t item, const struct group_summary *sum);
/* Says whether the drop of item is over, and how: in text. */
bool drop_over(struct controller *c, int64_t item, char *text, size_t size);
