/* bulk.h - one connection for large data between two machines: encrypted records, faster than TLS through nng
 *
 * A partner that is known over TLS is given a ticket there: a name and a key, both random. It connects to the same address and shows the
 * ticket's name; both sides say a random number, and derive the two directions' keys from ticket and numbers (HKDF-SHA256, RFC 5869). Each
 * record is sealed by AES-128-GCM (NIST SP 800-38D) with its number as the nonce, so that none can be read, changed, left out, repeated or
 * moved to another connection. What does not fit is the end of the connection: whoever wants more connects again, and asks for what is
 * missing.
 *
 *   hello    "RCB1", name (16), the caller's number (32)
 *   answer   "RCB1", the other side's number (32)
 *   record   bytes (u32), type (u8), 3 zeros; as many bytes, encrypted; tag (16)          numbers little-endian, both ways
 *
 * Every wait has a time limit, after which the connection has failed. One thread per connection; bulk_cut may be called by others. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define BULK_MAGIC "RCB1"
#define BULK_NAME_BYTES 16
#define BULK_KEY_BYTES 32
#define BULK_HELLO_BYTES (4 + BULK_NAME_BYTES + 32)
#define BULK_RECORD_MAX (((size_t)256 << 10) + 64)    // bytes of one record
struct bulk_ticket {
    uint8_t name[BULK_NAME_BYTES], key[BULK_KEY_BYTES];
};
MUST_USE bool bulk_ticket_make(struct bulk_ticket *t, struct error *err);

struct bulk;
/* Connect to address, HOST:PORT, with a ticket. limit_ms: of each wait. NULL: see err. */
struct bulk *bulk_connect(const char *address, const struct bulk_ticket *t, int64_t limit_ms, struct error *err);
/* The other side, when hello (BULK_HELLO_BYTES) has been read from fd and the ticket of that name found. Takes fd; on
 * failure it stays the caller's. The first record that is received proves that the caller has the ticket. */
struct bulk *bulk_accept(int fd, const uint8_t *hello, const struct bulk_ticket *t, int64_t limit_ms, struct error *err);
void bulk_free(struct bulk *b);                       // closes the connection without sending what has not been flushed; NULL is fine
void bulk_limit(struct bulk *b, int64_t limit_ms);    // of each wait from now on
/* A record of a head and a body (either may be of 0 bytes), together at most BULK_RECORD_MAX. It may stay here until bulk_flush. */
MUST_USE bool bulk_send(struct bulk *b, uint8_t type, const void *head, size_t head_len, const void *body, size_t body_len,
                        struct error *err);
MUST_USE bool bulk_flush(struct bulk *b, struct error *err);
/* The next record; its bytes (len of them) are borrowed until the next call. ERR_CLOSED: the connection has ended; ERR_TIMEOUT; ERR_DATA:
 * what arrived is no record of this connection. */
MUST_USE bool bulk_receive(struct bulk *b, uint8_t *type, const void **data, size_t *len, struct error *err);
/* End the connection: whoever waits in it fails. Any thread, while the connection exists. */
void bulk_cut(struct bulk *b);
int64_t bulk_sent(const struct bulk *b);    // bytes on the wire
int64_t bulk_received(const struct bulk *b);
