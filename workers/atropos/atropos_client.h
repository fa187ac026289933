/* atropos_client.h - a trainer of somebody else's Atropos API server
 *
 * It registers, asks for batches while its owner wants groups, and hands these over. It follows the example trainer of atroposlib 0.4
 * in what it sends. The differences: a batch is asked for only when it is wanted, so that groups do not age here; a server that is away,
 * or has forgotten its trainer, is asked again without end, and what stands in the way is said once; an answer may take long as long as
 * bytes come. A server takes a batch out of its queue before it sends it, so a batch that is lost on the way is lost (rollcall's own server
 * hands it out again).
 *
 * A thread of its own, which calls the owner's functions. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "workers/atropos/atropos.h"

struct atropos_client_config {
    const char *url;           // http://HOST:PORT without a slash at its end; borrowed, as token_file
    const char *token_file;    // whose first line is sent as a bearer token; NULL: none
    struct atropos_trainer trainer;
    /* Is another batch wanted now? Then *step is the run's. */
    bool (*wants)(void *ctx, int64_t *step);
    /* Keep these groups (*n), but for those that are of no use, which leave the list; takes the references. False: nothing is kept, and
     * what is left of the list is to be given again. */
    bool (*take)(void *ctx, struct scored **g, int64_t *n, struct error *err);
    /* What it waits for, when that changes: "" when all is well. */
    void (*says)(void *ctx, const char *text);
    void *ctx;
};
struct atropos_client;
/* Starts the thread. config is copied. NULL: see err. */
struct atropos_client *atropos_client_new(const struct atropos_client_config *config, struct error *err);
void atropos_client_free(struct atropos_client *c);    // ends the thread, in the middle of a request too; NULL is fine
void atropos_client_wake(struct atropos_client *c);    // perhaps a batch is wanted now; any thread, NULL is fine
/* An answer to GET /batch as groups: (*n) references for scored_drop in *group (returned; for free). *n 0 and *group NULL: there is no
 * batch now. registered: false when the server knows no trainer. ERR_DATA: it is no such answer, or a group that cannot be read. */
MUST_USE bool atropos_batch_read(const char *text, size_t len, struct scored ***group, int64_t *n, bool *registered, struct error *err);
