/* layout.h - from a terminal's size to the rectangles of the screen; pure
 *
 * Rectangles never overlap and never leave the screen; a rectangle without room is empty. Below 40x10 the whole screen is one
 * line of status. */
#pragma once
#include "console/tui/cells.h"
#define LAYOUT_CHARTS 9
struct layout {
    bool tiny;             // only bar exists: one line of status
    struct rect bar;       // run, state, progress
    struct rect tabs;      // panes
    struct rect says;      // what bounds or breaks the run (doctor.h); empty below 12 rows: tabs has it then
    struct rect body;      // the pane
    struct rect line;      // messages, prompt
    struct rect footer;    // keys
};
struct layout layout_make(int w, int h);

struct overview_layout {
    struct rect chart[LAYOUT_CHARTS];
    int n_chart;
    struct rect procs;    // processes, one line each
    struct rect side;     // newest rollout and alarms
};
/* n_proc: processes to show; they get as many lines as there are. */
struct overview_layout layout_overview(struct rect body, int n_proc);
