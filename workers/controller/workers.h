/* workers.h - what the workers of roster.h say and ask, and what each is given
 *
 * A worker asks for work with a request that is held open until there is some (at most HOLD_MS), and reports what it was given as done.
 * One that is lost, starts again or is not heard any more loses what it had: it will be done again. Workers of other nodes are called
 * NODE/NAME. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/controller/roster.h"

struct controller;
struct msg_in;
struct request;
/* Messages of theirs, and of the gate about them. */
void work_asked(struct controller *c, struct request *r, const struct msg_in *in);
void gone_told(struct controller *c, struct request *r, const struct msg_in *in);
/* Give those that wait what can be given. True: this has freed what others may take, so call it again. */
bool workers_tick(struct controller *c);
int64_t workers_due(const struct controller *c);    // when the tick must be called next, on the monotonic clock

/* ---- give.c: what it gets ---- */
/* Answer w's open request by the rules of decide.h. While there is nothing to do it stays open, unless it has been so for too long. */
void worker_serve(struct controller *c, struct worker *w, bool too_long);
