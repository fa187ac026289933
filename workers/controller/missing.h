/* missing.h - trainers of other nodes that have not come, without which no step is made
 *
 * After slow_s they are an event and the doctor's sentence; after join_timeout_s the run fails. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct controller;
struct diagnosis;
struct missing {
    int64_t since_ms;    // clock_ms when one was first missing; 0: all are here
    bool told;           // by an event
    char who[200];       // "trainers 2, 3 of another node have not come", with the hosts that are to bring them; from slow_s on
};
void missing_tick(struct controller *c);    // once a turn
/* Has one been missing for slow_s? */
bool missing_judge(const struct controller *c, struct diagnosis *d);
