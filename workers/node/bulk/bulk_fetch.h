/* bulk_fetch.h - a node's side of weights from the head (bulk_server.h): a version's file, in blocks over several connections
 *
 * Several threads, one per connection, ask for runs of blocks, decrypt them, add differences to the base's blocks, compare each block's
 * hash and write it to its place in a file that is renamed when all are there (fill.h). A connection that ends costs only the blocks that were on
 * their way: a new offer of the same version goes on where the last one ended.
 *
 * Owned by the process's loop thread, which calls everything here; the threads call wake, and nothing else of the owner's. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "workers/node/bulk/bulk_server.h"

struct bulk_fetch_config {
    const char *address;        // the head's HOST:PORT
    const char *path;           // of the file
    const char *base_path;      // of the version that the offer's base is; NULL: none
    const char *spare_path;     // of a file that nobody needs any more, whose place the new one may take (fill.h); NULL: none
    bool plain;                 // any file, as of bulk_server_offer_file: each block's hash is all that is compared
    int64_t size_max;           // bytes that are accepted
    void (*wake)(void *ctx);    // something has changed: look at bulk_fetch_state. From any thread
    void *ctx;
};
struct bulk_fetch;
/* Start fetching what is offered. NULL: see err. */
struct bulk_fetch *bulk_fetch_new(const struct bulk_fetch_config *config, const struct bulk_offer *offer, struct error *err);
/* Ends the threads, which may take as long as a connection needs to fail (BULK_CONNECT_MS); removes an unfinished file. NULL is fine. */
void bulk_fetch_free(struct bulk_fetch *f);
#define BULK_CONNECT_MS 3000
enum bulk_fetch_state {
    BULK_FETCH_GOES,
    BULK_FETCH_CUT,        // its connections have ended: give it another offer with bulk_fetch_again
    BULK_FETCH_NO_BASE,    // as CUT, and the base's bytes are not what its key says: ask for an offer without one
    BULK_FETCH_DONE,
    BULK_FETCH_FAILED,
};
/* err is filled with FAILED, and with CUT and NO_BASE (why). */
enum bulk_fetch_state bulk_fetch_state(struct bulk_fetch *f, struct error *err);
/* Go on with another offer, after CUT or NO_BASE, of a head that may have moved to another address. ERR_DATA: it is of another version's
 * bytes; start over. */
MUST_USE bool bulk_fetch_again(struct bulk_fetch *f, const char *address, const struct bulk_offer *offer, struct error *err);
struct bulk_fetch_look {
    int64_t done_bytes, size_bytes;    // of the file
    int64_t wire_bytes;                // received
    int64_t delta_bytes;               // of the file's bytes, those that came as differences
};
void bulk_fetch_look(struct bulk_fetch *f, struct bulk_fetch_look *out);
