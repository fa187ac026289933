/* weights_fetch.h - one version of the weights from the head, or a large file of a checkpoint, the fastest way that there is
 *
 * Asks the gate for an offer and fetches over bulk connections (bulk_fetch.h), as differences from a version that is here when the head has
 * that one, too; asks again when connections are cut, and goes on with what has arrived. Where such connections bring nothing although
 * the gate answers (something between the machines lets only TLS pass), and with a gate that does not know them, the file comes in
 * pieces (fetch.h). Owned by the process's loop thread. */
#pragma once
#include "workers/node/fetch.h"

struct weights_fetch_config {
    struct peer *head, *const *stream;    // the side that is asked; n_stream connections for pieces. Borrowed
    int n_stream;
    const char *address;    // of the head, HOST:PORT; borrowed, and read again with each offer
    const char *path;       // of the file
    const char *name;       // of a checkpoint's file, as in message file; NULL: weights
    int64_t version, made;
    const char *base_path;    // of a version that is here; NULL: none
    int64_t base_version, base_made;
    const char *spare_path;     // as bulk_fetch's; borrowed for the call
    uint64_t tag;               // answers with this tag and the next WEIGHTS_FETCH_TAGS - 1 are this fetch's
    void (*wake)(void *ctx);    // call weights_fetch_tick soon; from any thread
    void *ctx;
};
#define WEIGHTS_FETCH_TAGS (FETCH_TAGS + 1)
struct weights_fetch;
struct weights_fetch *weights_fetch_new(const struct weights_fetch_config *config, struct error *err);
void weights_fetch_free(struct weights_fetch *w);    // removes an unfinished file; NULL is fine
/* Send what is due, and take note of what has happened. */
void weights_fetch_tick(struct weights_fetch *w);
int64_t weights_fetch_due(const struct weights_fetch *w);    // when that must be called next, on the monotonic clock
bool weights_fetch_answered(struct weights_fetch *w, const struct net_event *ev);    // true: the answer was for this fetch
/* As fetch_state. */
enum fetch_state weights_fetch_state(const struct weights_fetch *w, struct error *err);
struct weights_fetch_look {
    int64_t done_bytes, size_bytes;    // of the file; 0: not known yet
    int64_t wire_bytes;                // received
};
void weights_fetch_look(const struct weights_fetch *w, struct weights_fetch_look *out);
