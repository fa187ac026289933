/* rubrics.h - evolving rubrics of the items inside the sampler, from their task to their score request
 *
 * Owned by the engine's thread; empty without apply_evolving_rubric_reward. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

struct engine;
struct report;
struct task_item;
MUST_USE bool rubrics_note(struct engine *e, struct task_item *item, struct error *err);    // takes item->rubrics
/* Put those of the report's item into its row, for the scorer, and forget them. */
MUST_USE bool rubrics_give(struct engine *e, struct report *r, struct error *err);
void rubrics_drop(struct engine *e, int64_t item);
void rubrics_clear(struct engine *e);
