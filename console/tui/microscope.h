/* microscope.h - the text of a rollout group: its samples one below the other or side by side, and every token's numbers
 *
 * The rollouts pane owns one. Drawing is pure. r is always the rectangle of the text alone. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/record/rollout_view.h"
#include "console/tui/cells.h"

enum paint {    // what the tokens of a text are coloured by
    PAINT_NONE,
    PAINT_LOGP,
    PAINT_ENTROPY,
    PAINT_VERSION,
    PAINT_N,
};
struct microscope {
    const char *filter;    // samples that it looks for have a star; borrowed
    bool beside;           // the samples stand side by side
    int top;               // first row drawn
    int sample;            // chosen among the group's
    enum paint paint;
    int64_t token;    // under the cursor, with a paint
};
/* Draw the group's text; returns all its rows. c NULL: only count them. */
int microscope_draw(const struct microscope *o, struct cells *c, struct rect r, const struct rollout_view *g);
/* The numbers of the token under the cursor, in one row. */
void microscope_token_draw(const struct microscope *o, struct cells *c, struct rect r, const struct rollout_view *g);
bool microscope_has_tokens(const struct sample_view *s, enum paint paint);    // enough is kept of them to paint them
/* Choose the next sample, or the one before. */
void microscope_sample_go(struct microscope *o, struct rect r, const struct rollout_view *g, bool forward);
/* Move the cursor among the tokens of the group. */
void microscope_token_go(struct microscope *o, struct rect r, const struct rollout_view *g, bool forward);
