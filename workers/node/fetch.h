/* fetch.h - fetch a file from the head, in pieces over several connections
 *
 * Several pieces are requested at once, spread over the given peers, since one core encrypts one TLS connection. The file grows
 * under a temporary name and is renamed when it is complete. Owned by the process's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/wire/transport.h"

struct fetch;
/* Start fetching the file name (NULL: the weights of version, made by incarnation made) to path; at most size_max bytes.
 * fetch_answered takes answers with the FETCH_TAGS tags from tag on. NULL: see err. */
struct fetch *fetch_new(const char *name, int64_t made, int64_t version, const char *path, int64_t size_max, struct peer *const *peer,
                        int n_peer, uint64_t tag, struct error *err);
void fetch_free(struct fetch *f);    // removes an unfinished file; NULL is fine
#define FETCH_TAGS 8
/* Send the requests that are due. */
void fetch_tick(struct fetch *f);
/* When it must be called next, on the monotonic clock; INT64_MAX: not before an answer comes. */
int64_t fetch_due(const struct fetch *f);
/* Handle an answer; true: it was for this fetch. */
bool fetch_answered(struct fetch *f, const struct net_event *ev);
enum fetch_state {
    FETCH_GOES,
    FETCH_DONE,
    FETCH_FAILED,
};
/* err is filled when it has failed: ERR_NOT_FOUND when the head does not have the file, or no longer has it. */
enum fetch_state fetch_state(const struct fetch *f, struct error *err);
/* Bytes received, and of the whole file (0: not known yet). */
int64_t fetch_bytes(const struct fetch *f, int64_t *size_bytes);
