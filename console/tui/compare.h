/* compare.h - another run in the charts of this one: its values by step, or by the time since its first step
 *
 * Owned by the console (app.h), which calls compare_update after news. */
#pragma once
#include "console/fleet/run_view.h"
#include "console/tui/widget.h"

#define COMPARE_LETTER 'w'
struct run_clock {    // when each step of a run ended, by the time its steps took
    double *end_s;    // (n) seconds since its first step began; owned
    int64_t n, cap;
};
struct compare {
    const struct run_view *model;    // of the other run, borrowed; NULL: there is none
    bool by_time;
    struct run_clock here, there;
};
void compare_release(struct compare *c);
/* After news of either run; here: the run that is shown. */
void compare_update(struct compare *c, const struct run_view *here);
/* The other run's values of a metric, as a line for a chart of this run's; false: it has none. */
bool compare_line(const struct compare *c, const char *metric, struct chart_line *out);
/* The steps of a chart that holds both runs; n: this run's. */
int64_t compare_steps(const struct compare *c, int64_t n);
/* The other run's value at a step of this one; NAN: unknown. */
double compare_value(const struct compare *c, const char *metric, int64_t step);
