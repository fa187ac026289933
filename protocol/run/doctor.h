/* doctor.h - one sentence on what limits a run now, or what is broken, and what to do; pure
 *
 * Ordered rules over the shares of a step's time, means over the last steps (DOCTOR_STEPS). The controller judges a live run; a console
 * judges what it alone has: a finished run's record, or a simulation. */
#pragma once
#include <stdbool.h>
#include "protocol/settings/metrics.h"

#define DOCTOR_STEPS 16
#define DOCTOR_LATE_STEPS 4    // from how many steps on one trainer is the one that is always late

struct run_config;

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
/* What the rules ask for; arg is the caller's. */
struct doctor_source {
    double (*value)(const void *arg, enum metric_id id, int back);    // of the step `back` steps before the last one; NAN: it has none
    const struct run_config *config;                                  // to name trainers by their devices; NULL: by their numbers
    const void *arg;
};
/* What takes most of a step. False: nothing can be said yet. */
bool doctor_bound(const struct doctor_source *from, struct diagnosis *d);
/* Before the first step: groups that are back, filtered among them, and being sampled. False: there are none. */
bool doctor_groups(double back, double filtered, double sampled, struct diagnosis *d);
void doctor_paused(struct diagnosis *d);
const char *diagnosis_kind_name(enum diagnosis_kind k);    // "bound", "warn", "crit"; "" for none
enum diagnosis_kind diagnosis_kind_find(const char *name);
void diagnosis_name(struct diagnosis *d, const char *name);    // sets name, and knob, from a name that was told
