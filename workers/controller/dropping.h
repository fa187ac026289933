/* dropping.h - an operator leaves a group out of training
 *
 * All its samples count as left out: they are in no mean, no spread and no loss (amending.h). Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct controller;
/* Begin to drop the group of item: its new record is on the way to the disk. ERR_REFUSED: it is not back yet, or is being or was
 * trained on. */
MUST_USE bool drop_begin(struct controller *c, int64_t item, const char *who, struct error *err);
/* Says whether the drop of item is over, and how: in text. */
bool drop_over(struct controller *c, int64_t item, char *text, size_t size);
