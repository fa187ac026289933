/* widget.h - the elements of screens: charts, bars, lanes, and the formats of numbers and times
 *
 * Pure: each draws into the rectangle it is given and reads nothing but its arguments. */
#pragma once
#include "protocol/base/clock.h"    // duration_format
#include "protocol/record/series.h"
#include "console/tui/cells.h"

enum chart_glyphs {
    GLYPHS_BRAILLE,
    GLYPHS_BLOCK,
    GLYPHS_ASCII,
};
struct chart_line {    // another series in the same chart: its smoothed line alone
    const struct series *series;
    bool own_scale;    // from its own minimum to its maximum, instead of the chart's axis
    char letter;       // written on the line now and then, so that lines are told apart without colour
    enum role role;
    int64_t (*step_of)(const void *arg, int64_t step);    // the series' step at a step of the chart, growing with it; NULL: the same
    const void *arg;
};
struct chart {
    const struct series *series;      // NULL: no data
    int64_t from, to;                 // steps shown: from <= step < to
    const struct chart_line *line;    // (n_line) drawn besides series; the chart's range holds those without a scale of their own
    int n_line;
    bool log_scale;         // values of 0 and less stay blank
    int64_t smooth;         // the line is a mean over this many steps; 0: over 1/24 of the range
    double tick_s;          // 0: the axis counts steps; else it shows times, and a step of the series lasts this many seconds
    const int64_t *mark;    // (n_mark) steps with a change, drawn as a line and a sign on the axis
    int n_mark;
    int64_t cursor;      // step under the time cursor; -1: none
    double low, high;    // bounds beyond which an alarm begins, drawn where they are in range; NAN: none
    enum chart_glyphs glyphs;
};
/* The values of a range of steps as a line (a mean over 1/24 of the range) over the single values, with axes when there is
 * room. Several steps in one column are shown as their range from minimum to maximum, so that spikes stay visible. NAN stays blank. */
void chart_draw(struct cells *out, struct rect r, const struct chart *c);
/* The means of equal parts of the steps from <= step < to, one per cell, as bars of eighths in row r.y; ASCII: digits 0 to 9. */
void spark_draw(struct cells *out, struct rect r, const struct series *s, int64_t from, int64_t to, enum chart_glyphs glyphs);
/* The value range of a chart: the smallest round range that contains [min, max]. */
void chart_range(double min, double max, double *lo, double *hi);
/* A bar that is `share` full (NAN: unknown, all empty), in row r.y. */
void gauge_draw(struct cells *out, struct rect r, double share, enum chart_glyphs glyphs);

/* Numbers of any size in at most 6 columns: "0.734", "12.3k", "1.2e-5", "-". */
const char *value_format(char out[16], double v);
/* "512", "3.4 MiB", "1.2 GiB". */
const char *bytes_format(char out[16], double bytes);
