/* chart_view.h - what part of a history a chart shows: zoom, pan, cursor, scale and smoothing, and the keys that change them
 *
 * Pure state without the series: the metrics and the devices share it. Owned by a pane. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "console/fleet/run_view.h"
#include "console/tui/keys.h"
#include "console/tui/widget.h"

#define MARKS_MAX 32

struct chart_view {
    int64_t steps;     // shown; 0: the whole history
    int64_t end;       // the step after the last one shown; 0: the newest, and it follows the run
    int64_t cursor;    // step under the time cursor; -1: none
    bool log_scale;
    int smoothing;    // row of the smoothings
};
#define CHART_VIEW_INIT ((struct chart_view){ .cursor = -1 })

/* The steps shown, of a history that has the steps first <= step < n. */
void chart_view_range(const struct chart_view *v, int64_t first, int64_t n, int64_t *from, int64_t *to);
/* The first step of a series that a chart shows: steps are counted from 1, and an empty column for step 0 would say nothing. */
int64_t chart_view_first(const struct series *s);
/* A chart of s by this view, without marks and bounds. */
struct chart chart_view_of(const struct chart_view *v, const struct series *s, int64_t n, enum chart_glyphs glyphs);
/* Zoom, pan, move the cursor, change scale or smoothing; false: req is none of these. n as above. */
bool chart_view_act(struct chart_view *v, enum request req, int64_t n);
/* Put the cursor on a step, in sight. */
void chart_view_go(struct chart_view *v, int64_t step, int64_t n);
/* "mean of 50 steps, logarithmic": what differs from the usual; "": nothing. */
const char *chart_view_note(const struct chart_view *v, char out[64]);

/* The first steps that a change of knobs, or a return to a checkpoint, acts on; newest first; at most MARKS_MAX. */
int marks_find(const struct run_view *m, int64_t mark[MARKS_MAX]);
/* The bounds within which no alarm of the metric holds, as far as they are fixed: in c. */
void band_find(const struct run_view *m, const char *metric, struct chart *c);
