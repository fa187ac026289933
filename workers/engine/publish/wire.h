/* wire.h - how weights get from the trainer's process to producers' processes on the same host, and the messages between the two sides
 *
 * The trainer's side is an outlet, a producer's an inlet; each has its own thread that talks over a Unix socket in the run's sock/
 * (SOCK_SEQPACKET, one struct wire per packet; a process that dies closes it at once). Versions are keys (version_key).
 *
 * 1. Sharing. With slots, sharing version v copies the trainer's weights into a slot of the outlet, which
 *    keeps it while the trainer goes on. Without slots there is no copy: the weights themselves are shared,
 *    and the trainer withdraws v before it changes them. That is the way where the trainer waits for every
 *    producer anyway (n_behind 0).
 * 2. Where shared weights lie. They may lie in several parts of memory, such as the slices of a trainer's
 *    devices or all trainers' shards (extent.h says what lies where in which part). Then every producer
 *    copies them, since there is nothing whole to broadcast.
 * 3. Taking. A producer takes v between steps, when it wants v. There are two ways:
 *      copy  It opens the memory that v lies in (mem_share_open of ops.h), and each of its devices reads
 *            what it holds. A producer that samples on several devices always does this.
 *      nccl  It takes part in a broadcast (comm.h). With slots the broadcast comes into a staging buffer
 *            ahead of time, or straight into the weights if the producer waits for it already. Without slots
 *            there is no staging: a broadcast begins when all producers want it, and one that waits for the
 *            others too long is given the memory to copy from.
 *    The addresses of weights never change, since CUDA graphs hold them.
 * 4. Checking. Both sides hash each tensor of what was shared and of what has arrived. A version with a
 *    tensor whose hashes differ is not taken.
 * 5. Dying. When a member dies its group is aborted, and built again from the members that are there when
 *    something has to be sent. When the outlet goes, inlets forget what they have staged and come back to the
 *    next one.
 *
 *   inlet -> outlet   HELLO name copies | WANT version | TOOK version (the slot is not read any more; the broadcast has arrived; -1: it
 *                     failed or is not wanted any more; lost: a part could not be opened, so its maker is gone; the version is not given again)
 *   outlet -> inlet   HASHES first n (of what the next SLOT or SENT is about; after it n numbers) | PART first size handle | PLACES first n
 *                     (after it n struct extent; both of the next SLOT) | SLOT version once |
 *                     JOIN id rank n_rank | SEND version bucket (a broadcast begins) | SENT version |
 *                     GONE version (it will not come) | DROP (forget what is staged) */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/collective/comm.h"
#include "kernels/ops.h"
#include "workers/engine/model/extent.h"

/* One number for a version: its optimizer steps and, above them, the incarnation that made it. A step that was undone and repeated
 * is another version, and the versions of a later incarnation are greater than all before. */
static inline int64_t version_key(int64_t made, int64_t step)
{
    return made << 40 | step;
}
static inline int64_t version_step(int64_t key)
{
    return key & (((int64_t)1 << 40) - 1);
}

enum weights_way {
    WAY_FILES,
    WAY_COPY,
    WAY_NCCL,
};
/* "files", "copy", "nccl"; NULL text or "auto": false. */
bool weights_way_parse(const char *text, enum weights_way *way);
const char *weights_way_name(enum weights_way way);

enum wire_kind {
    WIRE_HELLO,
    WIRE_WANT,
    WIRE_TOOK,
    WIRE_HASHES,
    WIRE_PART,
    WIRE_PLACES,
    WIRE_SLOT,
    WIRE_JOIN,
    WIRE_SEND,
    WIRE_SENT,
    WIRE_GONE,
    WIRE_DROP,
};
struct wire {
    uint32_t magic;
    enum wire_kind kind;
    int32_t rank, n_rank;
    int64_t version;
    uint64_t size_bytes, bucket_bytes;
    int64_t first, n;    // HASHES, PLACES: which; PART: first
    bool copies;         // HELLO: it takes no part in broadcasts
    bool once;           // SLOT: its memory may be gone after TOOK, so it is to be closed before
    bool lost;           // TOOK: it could not be opened
    union {
        char name[64];
        struct mem_handle handle;
        struct comm_id id;
    };
};
/* The outlet's listening socket in dir, in place of one left there; -1: see err. */
int wire_listen(const char *dir, struct error *err);
/* Connect to it; -1: nobody listens (yet). */
int wire_connect(const char *dir);
/* Never waits. False: the other side is gone, or does not read. */
bool wire_send(int fd, struct wire m);
bool wire_send_hashes(int fd, const uint64_t *hash, int64_t n);
bool wire_send_extents(int fd, const struct extents *x);    // as PARTs and PLACES
void wire_make_room(int fd);                                // for many tensors' HASHES and PLACES that wait to be read
/* 1: m is filled, and after HASHES and PLACES list too, 0: nothing has arrived, -1: the other side is gone or sent nonsense. list may be NULL for
 * a side that is sent none. */
#define WIRE_HASH_MAX 4096
#define WIRE_PLACE_MAX 1024
union wire_list {
    uint64_t hash[WIRE_HASH_MAX];
    struct extent place[WIRE_PLACE_MAX];
};
int wire_receive(int fd, struct wire *m, union wire_list *list);
