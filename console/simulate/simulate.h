/* simulate.h - a feed of made-up events, for looking at the screens without a run
 *
 * The only place where numbers are invented; the run's name says so. Repeatable: the same settings give the same events. Commands
 * take effect as in a real run. */
#pragma once
#include "console/fleet/feed.h"
struct simulate_options {
    int64_t steps;            // of the run
    int64_t done;             // of them at the start
    double step_s;            // seconds per step
    int64_t workers;          // devices
    int64_t stall_after_s;    // the last worker stops making progress then; 0: never
    uint64_t seed;
};
/* Returns the feed; its free frees it. */
struct feed *simulate_new(const struct simulate_options *options, struct run_view *m, int64_t now_ns, struct error *err);
/* The phase of workers at a share of the step, 0 to 1; *began: at which share it has begun. */
const char *simulate_phase(double share, double *began);
