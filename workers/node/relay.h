/* relay.h - pass requests on to another process, and its answers back
 *
 * An incoming request is sent to a peer repeatedly until it is answered or its time is over: an answer may get lost, and everything
 * that is relayed may be asked twice (protocol/wire/README.md, rule 3). Owned by the process's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/wire/transport.h"

#define RELAYS_MAX 4096

struct relay {
    struct request *request;    // the waiting request; NULL, and not open: this place is free
    struct peer *to;
    enum msg_type type;
    struct msg_out msg;    // finished
    int64_t limit_ms, again_ms;
    bool open;         // sent, not answered; without request: an answer that nobody waits for may still come
    char owner[64];    // the node that the request came from; "": not given
};
struct relays {
    struct relay *relay;    // (n) owned; places are used again, and more are made when none is free, up to RELAYS_MAX
    int n;
};
/* Pass msg (finished; its bytes are copied) on for r, for at most limit_ms and the time that its bytes take on a slow link; owner: see
 * relays_drop, or "". When the same message from the same connection is on its way already, r gets its answer in place of the earlier request.
 * On failure (ERR_FULL) r stays the caller's. */
MUST_USE bool relay_add(struct relays *rs, struct peer *to, struct request *r, enum msg_type type, const struct msg_out *msg,
                        int64_t limit_ms, const char *owner, struct error *err);
/* The owner is gone: do not send its requests again. */
void relays_drop(struct relays *rs, const char *owner);
/* The relay that ev answers; NULL: none, or it failed and will be sent again. Then call relay_end or relay_take. */
struct relay *relay_answered(struct relays *rs, const struct net_event *ev);
/* Pass the answer back unchanged, and free the relay. */
void relay_end(struct relay *x, const struct net_event *ev);
/* Send it again soon: it has been answered, but not for good. */
void relay_again(struct relay *x);
/* Give the request back to the caller. */
struct request *relay_take(struct relay *x);
/* Send what is due; drop what is too late: its asker times out by itself. */
void relays_tick(struct relays *rs);
/* When relays_tick must be called next, on the monotonic clock; INT64_MAX: not before something arrives. */
int64_t relays_due(const struct relays *rs);
void relays_release(struct relays *rs);
int64_t relays_bytes(const struct relays *rs);    // of the requests that are not answered yet
#define RELAY_TAG ((uint64_t)1 << 32)             // tags of relays are these and above
