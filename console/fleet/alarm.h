/* alarm.h - what practitioners watch for, as a table of rules over the run's metrics; pure
 *
 * Thresholds taken from other projects' docs and threads are cited next to the rule. */
#pragma once
#include "console/fleet/model.h"
struct alarm {
    bool crit;             // else a warning
    char text[160];        // what is wrong, with the value
    const char *remedy;    // what to try first; static, or the model's
};
/* Fill out with at most max current alarms, worst first; returns how many. */
int alarms_check(const struct model *m, int64_t now_ns, struct alarm *out, int max);
