/* ranks_view.h - how several trainers, or the stages of one, share the work: their layout, what they exchange, and which one waits for which; pure */
#pragma once
#include "console/tui/cells.h"
#include "console/fleet/run_view.h"

/* Rows that ranks_draw fills; 0: the run has one trainer on one device or one team, or has not made a step yet. */
int ranks_rows(const struct run_view *m);
void ranks_draw(const struct run_view *m, struct cells *c, struct rect r);
/* "2 trainers, zero_stage 1, producers on 2 devices each", or "trainer in 4 stages"; returns out, "" where ranks_rows is 0. */
const char *ranks_layout(const struct run_view *m, char *out, size_t size);
