/* posted.h - what an operator must know of the groups that environments post: that they are refused, or come without log-probs
 *
 * Each is said once, and again when the controller has been started again. Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>

struct controller;
struct diagnosis;
struct msg_in;
struct mval;
struct posted {
    bool refusal_told, no_logp_told;
    double n_refused;     // posts refused, as last heard; 0: none, or not heard yet
    double n_before;      // of these, before the last group came
    char refusal[256];    // why the last one was
};
/* The map 'posted' of the door's request for work; NULL is fine. */
void posted_heard(struct controller *c, const struct mval *posted);
/* A group has been taken. */
void posted_taken(struct controller *c, const struct msg_in *group);
/* Are posts refused, and has no group come since? */
bool posted_judge(const struct controller *c, struct diagnosis *d);
