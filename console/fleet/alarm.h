/* alarm.h - what practitioners watch for, as a table of rules over the run's metrics; pure
 *
 * Thresholds from the field's docs and threads are named beside the rule. */
#pragma once
#include "console/fleet/model.h"
struct alarm {
    bool crit;             // else a warning
    char text[160];        // what is wrong, with the number
    const char *remedy;    // what to try first; static, or the model's
};
/* Fill out with at most max alarms that hold now, worst first; returns how many. */
int alarms_check(const struct model *m, int64_t now_ns, struct alarm *out, int max);
