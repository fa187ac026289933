/* save.h - what an operator takes along: the screen as text or SVG, series as CSV
 *
 * Each refuses to replace a file. */
#pragma once
#include "protocol/record/series.h"
#include "console/tui/cells.h"
#include "console/tui/theme.h"

/* The cells as lines of text, or as a picture when path ends in ".svg". */
MUST_USE bool save_screen(const struct cells *c, const struct theme *theme, const char *path, struct error *err);
struct save_column {
    const char *name;
    const struct series *series;
};
/* A row per step from <= step < to: the step, and the value of each column; unknown ones stay empty. */
MUST_USE bool save_series(const struct save_column *column, int n, int64_t from, int64_t to, const char *path, struct error *err);
