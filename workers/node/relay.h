/* relay.h - requests passed on to another process, and its answers passed back
 *
 * A request that comes in is asked of a peer, again and again until it is answered or its time is over: an answer may be lost
 * on its way, and whatever is relayed may be asked twice (protocol/wire/README.md, rule 3). Owned by the process's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/wire/transport.h"

#define RELAYS_MAX 192

struct relay {
    struct request *request;    // who waits; NULL, and not open: this place is free
    struct peer *to;
    enum msg_type type;
    struct msg_out msg;    // finished
    int64_t limit_ms, again_ms;
    bool open;         // asked, not answered; with no request: an answer that nobody waits for may still come
    char owner[64];    // the node that the request came from; "": not said
};
struct relays {
    struct relay relay[RELAYS_MAX];
};
/* Pass msg (finished; its bytes are copied) on for r, for at most limit_ms; owner: see relays_drop, or "". On failure (ERR_FULL) r is
 * the caller's. */
MUST_USE bool relay_add(struct relays *rs, struct peer *to, struct request *r, enum msg_type type, const struct msg_out *msg,
                        int64_t limit_ms, const char *owner, struct error *err);
/* The owner has gone: what it has asked is not asked again. */
void relays_drop(struct relays *rs, const char *owner);
/* The relay that ev answers; NULL: none, or it has failed and is asked again. Then call relay_end or relay_take. */
struct relay *relay_answered(struct relays *rs, const struct net_event *ev);
/* Answer as it came, and be done with it. */
void relay_end(struct relay *x, const struct net_event *ev);
/* Give the request back to the caller. */
struct request *relay_take(struct relay *x);
/* Ask what is due; let go of what is too late: its asker runs into its own limit. */
void relays_tick(struct relays *rs);
/* When it must be called next, on the monotonic clock; INT64_MAX: not before something comes. */
int64_t relays_due(const struct relays *rs);
void relays_release(struct relays *rs);
#define RELAY_TAG ((uint64_t)1 << 32)    // tags of relays are these and above
