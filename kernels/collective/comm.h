/* comm.h - moving memory between the devices of several processes: broadcast in buckets, bytes from all to all
 *
 * A comm is one process's membership in a group of n_rank, one device per process: NCCL between GPUs (nccl.cu), shared memory
 * between CPUs of one host (host.c). Nothing here waits: calls begin an operation and comm_poll advances it, so that the caller
 * sets the time limits and can check on the members meanwhile. When a member has died, the others comm_free theirs, which aborts
 * the operation under way, and build a new group. Work runs on the comm's own streams, never on the device's. One thread at a time
 * uses a comm; it need not be the one that drives the device. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define COMM_ID_BYTES 128
#define COMM_RANK_MAX 64
#define COMM_BUCKET_MAX 4096    // most buckets in one broadcast
struct device;                  // kernels/ops.h
struct comm;
struct comm_id {
    uint8_t bytes[COMM_ID_BYTES];
};
struct comm_broadcast {
    void *buf;          // (size_bytes) device: sent by rank 0, filled on the others
    const void *src;    // rank 0: (size_bytes) device, copied into buf bucket by bucket before each is sent; NULL: buf already holds it
    size_t size_bytes;
    size_t bucket_bytes;    // a multiple of 256; the same on all ranks
};
/* For each rank what goes to it and comes from it (device; n_rank of each; borrowed until it is done); the own parts are not looked at. */
struct comm_exchange {
    const void *const *send;
    void *const *recv;
    const size_t *send_bytes, *recv_bytes;
};
enum comm_state {
    COMM_BUSY,
    COMM_READY,
    COMM_FAILED,
};

/* Can this device join a group? False: err says what is missing. */
MUST_USE bool comm_available(struct device *dev, struct error *err);
/* Make a new group's name: rank 0 calls this, passes the name to the others, and joins it with comm_new, which takes what the name holds,
 * also when it fails. */
MUST_USE bool comm_id_make(struct device *dev, struct comm_id *id, struct error *err);
/* Start joining; comm_poll says when all have joined. NULL: see err. */
struct comm *comm_new(struct device *dev, const struct comm_id *id, int n_rank, int rank, struct error *err);
/* Aborts an operation under way; NULL is fine. Where a library does not end it in time (nccl.cu), the process ends: its memory is still
 * in use. */
void comm_free(struct comm *c);
/* Make progress. COMM_READY: joined, or the broadcast or exchange is complete here (sent and received). COMM_FAILED: err says why; only
 * comm_free may follow. */
enum comm_state comm_poll(struct comm *c, struct error *err);
/* Start a broadcast from rank 0; c must be ready. All ranks call it for the same number of bytes. */
MUST_USE bool comm_broadcast(struct comm *c, const struct comm_broadcast *b, struct error *err);
/* Start to send to all and to receive from all; c must be ready, and what is sent computed. All ranks call it; what one sends is as long
 * as what the other awaits. ERR_UNSUPPORTED between CPUs. */
MUST_USE bool comm_exchange(struct comm *c, const struct comm_exchange *x, struct error *err);
bool comm_copied(struct comm *c);    // rank 0: src is no longer read (all of it is in buf)

/* A back end's functions, in its struct ops. */
struct comm_ops {
    bool (*available)(struct device *, struct error *);
    bool (*id_make)(struct device *, struct comm_id *, struct error *);
    struct comm *(*new_)(struct device *, const struct comm_id *, int n_rank, int rank, struct error *);
    void (*free_)(struct comm *);
    enum comm_state (*poll)(struct comm *, struct error *);
    bool (*broadcast)(struct comm *, const struct comm_broadcast *, struct error *);
    bool (*copied)(struct comm *);
    bool (*exchange)(struct comm *, const struct comm_exchange *, struct error *);    // NULL: not offered
};
/* The first member of every back end's comm. */
struct comm {
    const struct comm_ops *op;
    struct device *dev;
    int n_rank, rank;
};
