/* tls_link.h - one end of a connection to another host as nng makes them, without nng: TLS 1.2, and in it nng's messages
 *
 * No threads, and a socket only in tls_link_send: bytes from the other side go in, bytes for it come out. The TLS is OpenSSL's, the messages are those of nng's
 * "tls+tcp" with its patterns REQ and REP (SP over TCP, https://nanomsg.org/rfcs/sp-tcp-v1.txt, and sp-request-reply-01). Both sides show
 * certificates; each must have one for its key that was signed by a key that the other trusts (join_token.h), whatever the clocks say. A
 * side may be used for many links; a link belongs to one thread at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/wire/join_token.h"

struct tls_side;    // our identity, and those that we trust
struct tls_link;
enum tls_role {
    TLS_ANSWERS,    // it has been dialed, and is asked (REP)
    TLS_ASKS,       // it has dialed (REQ)
};
/* Where an answer goes: the numbers that precede a request, the asker's own last. */
#define TLS_TRACE_MAX 8
struct tls_trace {
    uint8_t byte[4 * TLS_TRACE_MAX];
    size_t len;
};
struct tls_message {
    struct tls_trace trace;
    const uint8_t *data;    // (len) borrowed until the link is called again
    size_t len;
};
struct tls_side *tls_side_new(const struct join_identity *id, enum tls_role role, struct error *err);
void tls_side_free(struct tls_side *s);
/* A link that begins; it may outlive s. NULL: no memory. */
struct tls_link *tls_link_new(const struct tls_side *s);
void tls_link_free(struct tls_link *l);
/* Bytes have come from the other side. False: the connection is of no use any more (what tls_link_bytes has may still be sent). */
MUST_USE bool tls_link_take(struct tls_link *l, const void *data, size_t len, struct error *err);
bool tls_link_is_strange(const struct tls_link *l);    // the handshake has failed, since one side does not accept the other's token
bool tls_link_is_in(const struct tls_link *l);         // the other side has shown that it may be here, and has greeted
/* The next whole message. *came false: there is none yet. False: what has come is no message. */
MUST_USE bool tls_link_next(struct tls_link *l, struct tls_message *m, bool *came, struct error *err);
/* Send a message, as soon as both sides are in. False: no memory. */
MUST_USE bool tls_link_say(struct tls_link *l, const struct tls_trace *trace, const void *data, size_t len);
size_t tls_link_waiting(const struct tls_link *l);    // bytes of messages that are still to be sent
/* Bytes for the other side, borrowed until the next call; n of them are on their way. NULL: there are none now. */
const uint8_t *tls_link_bytes(struct tls_link *l, size_t *len);
void tls_link_sent(struct tls_link *l, size_t n);
/* Send through a socket what it takes now, without waiting. False: the connection is broken. */
MUST_USE bool tls_link_send(struct tls_link *l, int fd);
