/* doctor.h - one sentence on what limits a run now, or what is broken, and what to do; pure
 *
 * Ordered rules: faults come before bottlenecks. Shares of time are means over the last steps (DOCTOR_STEPS). */
#pragma once
#include "console/fleet/model.h"

#define DOCTOR_STEPS 16

enum diagnosis_kind {
    DIAGNOSIS_NONE,     // nothing can be said yet, or the run has recorded its own end
    DIAGNOSIS_BOUND,    // it works; this takes most of the time
    DIAGNOSIS_WARN,
    DIAGNOSIS_CRIT,
};
struct diagnosis {
    enum diagnosis_kind kind;
    char text[280];      // the diagnosis, with its figures
    char remedy[320];    // what to do; "": nothing
    const char *knob;    // the setting to look at first, or NULL
    const char *name;    // "generation", "training", "alarm" ...; static. Its figures change, this does not; NULL with DIAGNOSIS_NONE
};
struct diagnosis doctor_say(const struct model *m, int64_t now_ns);
