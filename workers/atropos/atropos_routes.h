/* atropos_routes.h - the routes of Atropos' API server, for web.h
 *
 * What environments and trainers of atroposlib 0.4 send and expect (api/server.py). Differences are in workers/serve/README.md. */
#pragma once
#include <stdbool.h>
#include "workers/atropos/atropos.h"
#include "workers/http/web.h"

struct atropos_door {
    struct atropos *state;
    bool no_reset;    // refuse /reset_data
    /* in a run, which takes the groups itself */
    const char *run;    // its name; NULL: outside of one
    void *ctx;
    bool (*check)(void *ctx, struct scored *g, struct error *err);    // can it train on g? Sets g->version
    void (*posted)(void *ctx);                                        // called when groups have come
};
/* Have c serve these routes with d, which must outlive the server. What belongs to the listener (address, token, bounds, lock) is
 * left as it is. */
void atropos_routes_set(struct web_config *c, struct atropos_door *d);
