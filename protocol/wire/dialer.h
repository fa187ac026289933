/* dialer.h - a connection to another host that is asked: TLS with the join token's certificates, and in it nng's requests
 *
 * The other half of front.h; nng has no part in it. One thread, made by dialer_new, owns the connection. It looks the address up, connects,
 * shakes hands, sends requests and receives answers; when the connection ends it dials again, at once at first and then after pauses
 * that double. Each of these steps has a limit and a name, which dialer_step tells.
 *
 * A request is sent once. When its connection ends before the answer has come, it has failed; one that has not been sent waits for the
 * next connection. The other functions are for the transport's loop thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/wire/join_token.h"

struct dialer;
/* A request; the owner embeds it in a struct of its own, and sets the first two. */
struct dialed {
    const void *data;    // (len) the owner's, until it has been told or has taken the request back
    size_t len;
    struct dialed *next;    // these are the dialer's
    uint32_t id;
};
/* Called by the dialer's thread, and not after dialer_free: q has its answer, which is borrowed for the call. NULL: its connection has ended
 * without one. */
typedef void dialer_tell(struct dialed *q, const void *data, size_t len);

/* Dial address, HOST:PORT. NULL: see err. */
struct dialer *dialer_new(const char *address, const struct join_identity *id, dialer_tell *tell, struct error *err);
bool dialer_is_in(const struct dialer *d);         // there is a connection, and both sides have shown the token
bool dialer_is_strange(const struct dialer *d);    // there is none, since one side does not accept the other's token
/* What it is doing now, "looking its name up", and why the last connection failed. */
void dialer_step(struct dialer *d, char *out, size_t size);
void dialer_ask(struct dialer *d, struct dialed *q);
/* Its owner waits no more. False: it is not here, since it has been told. True: it will not be. */
bool dialer_take_back(struct dialer *d, struct dialed *q);
/* One that has not been sent, the oldest first, back to its owner; NULL: there is none. */
struct dialed *dialer_unsent(struct dialer *d);
/* Do not dial again when this connection ends. */
void dialer_retire(struct dialer *d);
/* Waits for nothing. What was asked belongs to its owner. NULL is fine. */
void dialer_free(struct dialer *d);
