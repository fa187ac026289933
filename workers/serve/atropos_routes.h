/* atropos_routes.h - the routes of Atropos' API server, for web.h
 *
 * What environments and trainers of atroposlib 0.4 send and expect (api/server.py). Differences are in workers/serve/README.md. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "workers/serve/atropos.h"
#include "workers/serve/web.h"

struct atropos_door {
    struct atropos *state;
    bool no_reset;    // refuse /reset_data
    /* in a run, which takes the groups itself */
    const char *run;    // its name; NULL: outside of one
    void *ctx;
    bool (*check)(void *ctx, struct scored *g, struct error *err);    // can it train on g? Sets g->version
    void (*posted)(void *ctx);                                        // called when groups have come
};
extern const struct web_route atropos_routes[];
extern const size_t n_atropos_routes;
/* For struct web_config; ctx is a struct atropos_door. */
void atropos_route_sent(void *ctx, int64_t receipt, bool arrived);
void atropos_route_fail(struct web_answer *a, int status, const char *message);
