/* fetch.h - a file of the head, brought here in pieces over several connections
 *
 * Several pieces are asked for at once, spread over the peers given: one TLS connection is encrypted by one core. The file
 * grows under a name of its own and is renamed when it is whole. Owned by the process's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/wire/transport.h"

struct fetch;
/* Begin to bring the file name (NULL: the weights of version, made by incarnation made) to path; at most size_max bytes. tag:
 * fetch_answered takes answers with tags from it on, FETCH_TAGS of them. NULL: see err. */
struct fetch *fetch_new(const char *name, int64_t made, int64_t version, const char *path, int64_t size_max, struct peer *const *peer,
                        int n_peer, uint64_t tag, struct error *err);
void fetch_free(struct fetch *f);    // what has not been finished is removed; NULL is fine
#define FETCH_TAGS 8
/* Ask for what is due. */
void fetch_tick(struct fetch *f);
/* Take an answer; true: it was ours. */
bool fetch_answered(struct fetch *f, const struct net_event *ev);
enum fetch_state {
    FETCH_GOES,
    FETCH_DONE,
    FETCH_FAILED,
};
/* err is filled when it has failed: ERR_NOT_FOUND when the head does not have it (any more). */
enum fetch_state fetch_state(const struct fetch *f, struct error *err);
/* Bytes that are here, and of the whole file (0: not known yet). */
int64_t fetch_bytes(const struct fetch *f, int64_t *size_bytes);
