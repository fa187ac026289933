/* crowd_links.h - the connections of many made-up nodes to one head, all on the thread that calls
 *
 * A node has nng for its connection. For a thousand of them in one process nng's threads wait for each other, and what is measured then is
 * their queue and not the head's. So here are the same bytes without nng (tls_link.h), an epoll, and nothing between an answer's arrival and
 * its being taken but those that arrived before it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/wire/join_token.h"
#include "protocol/wire/message.h"

#define CROWD_TAGS 4    // requests open at one link, each under its own number
struct crowd_links;
struct crowd_answer {
    int64_t link;    // from 0
    int tag;         // as it was asked
    bool failed;     // none came: the connection was lost, or limit_ms has passed
    const void *data;
    size_t len;
};
typedef bool crowd_take(void *ctx, const struct crowd_answer *a);
/* Room for n links to address, HOST:PORT. A request that is not answered in limit_ms fails, with its connection. NULL: see err. */
struct crowd_links *crowd_links_new(const char *address, const struct join_identity *id, int64_t n, int64_t limit_ms, struct error *err);
void crowd_links_free(struct crowd_links *l);
void crowd_link_dial(struct crowd_links *l, int64_t i);    // now, and again whenever it is lost
bool crowd_link_is_in(const struct crowd_links *l, int64_t i);
bool crowd_links_are_strange(const struct crowd_links *l);    // a handshake has failed: one of both sides has another token
/* Send m; the answer comes with i and tag. False: it is not connected, or this tag is open. */
bool crowd_link_ask(struct crowd_links *l, int64_t i, int tag, const struct msg_out *m);
/* Wait up to timeout_ms until something comes, and take what has. False: take has said so, and what had come with it is lost. */
MUST_USE bool crowd_links_turn(struct crowd_links *l, int timeout_ms, crowd_take *take, void *ctx);
