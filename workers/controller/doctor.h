/* doctor.h - what the controller says of the run in one sentence (protocol/run/doctor.h): in status, and as an event when it changes
 *
 * Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/run/doctor.h"

struct controller;
struct journal_step;
struct msg_out;
struct doctor {
    double past[METRIC_N][DOCTOR_STEPS];    // (n) of each metric in the table, in no order
    int n, at;                              // at: the next one's place
    const char *told;                       // name of what the last event said; NULL: none has
    int64_t told_step;
};
void doctor_past(struct doctor *d, const struct journal_step *s);    // a step from the journal, or the one just made
void doctor_step(struct controller *c);                              // a step is done
void doctor_end(struct controller *c);                               // the run is about to be over: its last words
void doctor_write(const struct controller *c, struct msg_out *m);    // the map doctor, as status has it
