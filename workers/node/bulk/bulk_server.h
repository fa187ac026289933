/* bulk_server.h - the head's side of weights for other machines: versions' files over bulk connections (protocol/wire/bulk.h)
 *
 * A node is offered a version: it gets a ticket over TLS, connects with it as often as the offer allows, and asks for blocks (delta.h) of
 * the file in any order. When it names a version that it has, and the head has the same one (both files' keys are equal), a block is sent
 * as its differences from that one's block wherever that is smaller. What was written for one node is kept for the others, up to a bound.
 * The files of the two versions that were asked for last stay mapped, so that the trainer may remove them. What was written for earlier versions
 * stays for a while: a node that is several versions late gets a block as a chain of differences, each with the hash of
 * what it leads to, where all of them together are smaller than the block.
 *
 *   node -> head   WANT first n (u32 each): these blocks | DONE: the offer is over
 *   head -> node   LINK* BLOCK: index (u32), kind (u8), 3 zeros, delta_hash of the result (u64), then what delta_decode reads. A link leads
 *                  from the node's block, or the link before, to that of a version between; the block from there to the one that is offered
 *
 * Owned by one thread, which calls all but bulk_server_connection (any thread); each connection has a thread of its own, because
 * compressing, encrypting and reading a file that is not in memory take long. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/wire/bulk.h"

#define BULK_OFFERS_MAX 24         // at a time
#define BULK_CONNECTIONS_EACH 8    // of an offer
#define BULK_LINKS_MAX 8           // of a block
enum bulk_record {
    BULK_WANT = 1,
    BULK_BLOCK,
    BULK_DONE,
    BULK_LINK,
};
struct bulk_want {
    uint32_t first, n;    // blocks
};
struct bulk_block {
    uint32_t index;
    uint8_t kind, zero[3];    // enum delta_kind
    uint64_t hash;
};
struct bulk_offer {
    struct bulk_ticket ticket;
    int64_t size_bytes;    // of the file
    uint64_t key;          // of its contents (weights_file_key)
    bool has_base;         // blocks may come as differences
};
struct bulk_server;
struct bulk_server *bulk_server_new(struct error *err);
void bulk_server_free(struct bulk_server *s);    // ends its connections; NULL is fine
/* Offer the file path to a node that has base_path with base_key (NULL: nothing), and that knows links or not. ERR_NOT_FOUND: there is no
 * such file; ERR_DATA: it does not hold weights; ERR_FULL: BULK_OFFERS_MAX are open, ask again. An offer that nobody uses ends after some seconds. */
MUST_USE bool bulk_server_offer(struct bulk_server *s, const char *path, const char *base_path, uint64_t base_key, bool links,
                                struct bulk_offer *out, struct error *err);
/* As bulk_server_offer, for any file that nobody changes while it is there, and which goes whole. Its key says which file it is, not what
 * it holds. */
MUST_USE bool bulk_server_offer_file(struct bulk_server *s, const char *path, struct bulk_offer *out, struct error *err);
/* Serve the connection fd, from which hello (BULK_HELLO_BYTES) has been read, and take it. False: it has no offer, or too many connections;
 * fd stays the caller's. server: a struct bulk_server. */
bool bulk_server_connection(void *server, int fd, const uint8_t *hello);
/* End offers that are not used. */
void bulk_server_tick(struct bulk_server *s);
int64_t bulk_server_due(struct bulk_server *s);    // when that must be called next, on the monotonic clock; INT64_MAX: not before an offer
struct bulk_server_look {
    int n_connection;
    int64_t sent_bytes, block_bytes;    // on the wire, and of the blocks that went; since the start
};
void bulk_server_look(struct bulk_server *s, struct bulk_server_look *out);
