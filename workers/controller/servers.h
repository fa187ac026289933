/* servers.h - servers outside the run, from which environments draw, that have not got the newest weights
 *
 * The first trainer says with each request for work which those are. One that stays so for slow_s is an alert and the doctor's sentence;
 * for engine_patience_s, and the run fails: what environments post comes from a model that is not the run's, or they post nothing at all.
 * Owned by the controller's loop thread. */
#pragma once
#include <stdbool.h>

#define SERVERS_MAX 16    // that are looked at; more are as bad

struct controller;
struct diagnosis;
struct mval;
struct server_seen {
    char name[320];       // with "the server at"
    char trouble[200];    // why
    double behind_s;
    bool told;    // by an alert
};
struct servers {
    struct server_seen server[SERVERS_MAX];    // (n) without the newest weights, as last heard
    int n;
};
/* The list 'servers' of the first trainer's request for work; NULL: it has not said. */
void servers_heard(struct controller *c, const struct mval *list);
/* Has one been without the newest weights for slow_s? */
bool servers_judge(const struct controller *c, struct diagnosis *d);
