/* front.h - where other hosts connect: TLS with the join token's certificates, nng's requests in it, and connections for large data
 *
 * Other hosts dial with dialer.h, those of older versions with nng; here nng has no part. It set no limit that works until a connection has shown its
 * certificate, and handed each message through four threads: 0.25 ms of a processor for each request, as measured with 1000 nodes.
 *
 * A handshake begins when a whole ClientHello has arrived; the other side must show the token within FRONT_LIMIT_MS of being accepted. A third
 * of all connections, at most 64, may be waiting for that. When one more arrives, one of the address with the most of them is closed, the
 * oldest that is silent, else the oldest: a stranger pushes out its own connections. A handshake under way is not pushed out by its own
 * address in its first second: of many nodes that connect at once from one address 64 get through, and the others, whose connections are
 * closed, dial again. Closed connections are counted and logged, at most once in ten seconds.
 *
 * A connection that begins with BULK_MAGIC instead is for large data (bulk.h): when its hello is whole it is handed to what front_bulk
 * names, and the front has nothing more to do with it. Until then these limits hold.
 *
 * One thread, made by front_start, owns the connections. The other functions are for the transport's loop thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/wire/tls_link.h"

#define FRONT_LIMIT_MS 10000
struct front;
/* Listen at address, HOST:PORT; a connection must show the token within limit_ms. Nothing is accepted until front_start. Raises the
 * process's limit of open files as far as allowed, and stays within it. NULL: see err (ERR_EXISTS: another process listens there).
 * */
struct front *front_new(const char *address, int64_t limit_ms, struct error *err);
/* Pass requests to hear(ctx, connection, message): the message is borrowed, the number is of no other connection, and false ends it. Called
 * by the front's thread. At most held_max may be without front_answer or front_drop; then the others are not read. Before front_start. */
typedef bool front_hear(void *ctx, uint64_t connection, const struct tls_message *m);
void front_requests(struct front *f, int held_max, front_hear *hear, void *ctx);
/* From now on let in those that id trusts: connections that there are stay until front_cut. Before it nobody is let in. On failure nothing
 * has changed. */
MUST_USE bool front_identity(struct front *f, const struct join_identity *id, struct error *err);
void front_cut(struct front *f);    // end the connections that were let in before the last front_identity
MUST_USE bool front_start(struct front *f, struct error *err);
/* Answer a request; the bytes are copied. One whose connection has gone is forgotten. */
void front_answer(struct front *f, uint64_t connection, const struct tls_trace *trace, const void *data, size_t len);
void front_drop(struct front *f);    // a request gets no answer
/* When bytes last came by this connection (clock_ms), whether or not they have made a whole message yet. 0: it is not one of the front's any
 * more. */
int64_t front_heard_ms(const struct front *f, uint64_t connection);
/* Hand connections for large data to take(ctx, fd, hello), which has hello for the call; true: it has taken fd, false: it knows of no such
 * caller. Called by the front's thread; once, at any time. Without it they are turned away. */
typedef bool front_take(void *ctx, int fd, const uint8_t *hello);
void front_bulk(struct front *f, front_take *take, void *ctx);
/* End the thread and all connections, which get what they have been answered last. NULL is fine. */
void front_free(struct front *f);
