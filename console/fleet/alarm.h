/* alarm.h - all that is wrong with a run at this moment, as a console sees it; pure
 *
 * The run's own alarms (protocol/settings/alarm_book.h) are judged by its controller; what only somebody outside can see is added here: an
 * agent that does not answer, a process that is slow, stuck or silent, a GPU that is lost, failing or slowed, a run that has failed. */
#pragma once
#include "console/fleet/run_view.h"
struct alarm {
    bool crit;             // else a warning
    bool rule;             // of the run's alarm book, else seen from outside
    char text[240];        // what is wrong, with the value
    const char *remedy;    // what to try first; static, or the model's
};
/* Fill out with at most max current alarms, worst first; returns how many there are. */
int alarms_check(const struct run_view *m, int64_t now_ns, struct alarm *out, int max);
