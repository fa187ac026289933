/* front.h - accepts connections for a TLS listener of nng, so that strangers cost little
 *
 * nng sets no limit that works until a connection has shown its certificate: up to 1.10, cancelling the first send of a TLS
 * connection has no effect while the handshake waits for the other side, so a client that connects and stays silent keeps a
 * descriptor for ever. nng has no hook before that point either. So nng listens on a port of 127.0.0.1, and the front on the
 * address that nodes know. A connection is passed on to nng when a whole ClientHello has arrived, and must show the token within
 * FRONT_LIMIT_MS of being accepted. A third of all connections, at most 64, may be waiting for that. When one more arrives, one of the
 * address with the most of them is closed, the oldest that is silent, else the oldest: a stranger pushes out its own connections. A
 * handshake under way is not pushed out by its own address in its first second: of many nodes that connect at once from one address
 * 64 get through, and the others, whose connections are closed, dial again. Closed connections are counted and logged, at most once in
 * ten seconds.
 *
 * A connection that begins with BULK_MAGIC instead is for large data (bulk.h): when its hello is whole it is handed to whom front_bulk
 * names, and the front has nothing more to do with it. The same limits hold until then.
 *
 * One thread, made by front_start, owns the connections; it copies bytes and does not look into them. The other functions are
 * for the transport's loop thread, front_admit for any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define FRONT_LIMIT_MS 10000
struct front;
/* Listen at address, HOST:PORT; a connection must show the token within limit_ms. Nothing is accepted until front_start. Raises the
 * process's limit of open files as far as allowed, and stays within it. NULL: see err (ERR_EXISTS: another process listens there).
 * */
struct front *front_new(const char *address, int64_t limit_ms, struct error *err);
/* Start passing connections on to this port of 127.0.0.1. */
MUST_USE bool front_start(struct front *f, uint16_t port, struct error *err);
/* Hand connections for large data to take(ctx, fd, hello), which has hello for the call; true: it has taken fd, false: it knows of no such
 * caller. Called by the front's thread; once, at any time. Without it they are turned away. */
typedef bool front_take(void *ctx, int fd, const uint8_t *hello);
void front_bulk(struct front *f, front_take *take, void *ctx);
/* Call when the connection that reached nng from this port of 127.0.0.1 has shown the token. Any thread. */
void front_admit(struct front *f, uint16_t port);
/* Has nng left a ClientHello unanswered since front_start or front_target? Then it no longer accepts (listen.h says why). */
bool front_is_deaf(const struct front *f);
/* nng listens on another port from now on; connections that it has from an earlier one go on. */
void front_target(struct front *f, uint16_t port);
/* nng no longer listens on this one: connections to it end now, and another one may have its number. */
void front_forget(struct front *f, uint16_t port);
/* Close connections to this process's nng that did not come through the front: users of this host can find its port. Once per
 * second is enough. */
void front_check(struct front *f);
/* End the thread and all connections, which get what nng has said last. Only after nng's socket has been closed. NULL is fine. */
void front_free(struct front *f);
