/* collective.h - ranks of one computation that meet: what each gives comes to all, and bytes from all to all
 *
 * A struct collective is one rank's end of a group that has met once, by name, and stays together until a member leaves or dies.
 * Then it is over for all of them: every call fails with ERR_CLOSED, and they meet again under another name. A rank with a failure of
 * its own gives up (collective_abandon), so that the others learn why; one whose barrier or bytes fail has told them. All ranks make the
 * same calls in the same order with the same sizes. One thread per rank. Kinds:
 *
 *   ipc     ranks of one host; they open each other's memory where they offer it (CPUs shared memory, GPUs CUDA IPC)    local.c
 *   local   the same, but everything goes through host memory that all map
 *   tcp     CPUs over sockets, each pair of ranks one connection; each has proved that it knows the meeting's key          tcp.c
 *   nccl    GPUs; NCCL moves bytes and adds nothing; all but bytes goes as in local, or with an address as in tcp        nccl_kind.c
 *
 * Promises of every kind:
 *  1. Nothing is computed here, nor by a library that carries the bytes: sums are exchange.h's, in rank order.
 *  2. No wait is longer than its limit: ERR_TIMEOUT names the rank that is late. When a member dies, or gives up, the others' waits end
 *    within a fraction of a second.
 *  3. Once all have joined, the meeting leaves nothing with a name; a failed meeting may leave a small file in dir. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "protocol/base/error.h"

#define COLLECTIVE_RANK_MAX 64
#define COLLECTIVE_GATHER_MAX ((size_t)1024)    // bytes each rank may give to collective_gather
#define COLLECTIVE_SECRET_MAX 256
#define COLLECTIVE_FILE_MAX 1024    // bytes of a meeting's file
#define COLLECTIVE_WHY_MAX 512      // bytes of why a rank gives up, cut to that; with its 0

struct collective_config {
    const char *kind;    // a name of the table above
    const char *dir;     // a folder where the ranks meet, e.g. the run's sock/; of this host, with tcp of all ranks' hosts
    const char *name;    // the meeting's name: used once
    int rank, n_rank;
    struct device *dev;     // whose memory is sent; borrowed as long as the collective lives. NULL: nothing is sent but by gather
    const char *address;    // tcp, nccl: where this rank listens, "*": at all addresses of this host; the others reach it at the address
                            // that it reaches rank 0 from. NULL: 127.0.0.1, that is, all are on this host
    void *secret;    // (secret_bytes, at most COLLECTIVE_SECRET_MAX) tcp: rank 0's, which the others get with the meeting's key; or NULL
    size_t secret_bytes;
    int64_t join_ms, wait_ms;    // time limits: until all have joined, and for each wait after that
    /* Called on the rank's thread with the awaited rank when a wait has lasted a moment, and with -1 when it is over; or NULL. */
    void (*waits)(void *ctx, int rank);
    /* What errors call a rank, written to out and returned; NULL: "rank 1". */
    const char *(*name_of)(void *ctx, int rank, char *out, size_t size);
    void *ctx;
};
struct collective;
/* Call a meeting, or call it off; for the process that decides which ranks meet. The name is a small file in dir, which the ranks
 * remove when all have joined. A rank that joins a meeting that was called off, or waits in it for the others, gets ERR_CLOSED. */
MUST_USE bool collective_call(const char *dir, const char *name, struct error *err);
void collective_call_off(const char *dir, const char *name);
/* The meeting's file for ranks of another host: text (n bytes, of the file of tcp's rank 0) with `host` for the address of rank 0, as that
 * host reaches it, to out. Returns its length; 0: rank 0 has not written it yet, or it is no such file. */
size_t collective_file_for(const char *text, size_t n, const char *host, char out[COLLECTIVE_FILE_MAX]);
/* Join a meeting: returns when all n_rank have joined. NULL: see err; then the meeting is over for the others too. The texts are copied. */
struct collective *collective_join(const struct collective_config *config, struct error *err);
/* Leave; ranks that wait for us, now or later, get ERR_CLOSED. NULL is fine. */
void collective_leave(struct collective *c);
/* Give up n meetings of this rank's (of which NULLs are skipped): they are over at once, and the others' waits in them, now or later, end
 * with ERR_CLOSED and "rank 1 gave up: <why>". Where another rank has given up any of them before, all are told that one's words: the first
 * cause. May take a second where a rank does not read; nothing but collective_leave may follow. */
void collective_abandon(struct collective *const *c, int n, const char *why);
const char *collective_name(const struct collective *c, int rank, char *out, size_t size);    // for messages; returns out
int collective_rank(const struct collective *c);
int collective_n_rank(const struct collective *c);

/* all (n_rank x size_bytes, host) = every rank's mine (size_bytes, host; at most COLLECTIVE_GATHER_MAX), in rank order. */
MUST_USE bool collective_gather(struct collective *c, const void *mine, size_t size_bytes, void *all, struct error *err);
/* The rank that came last to it. */
int collective_last(const struct collective *c);
/* Rank r's shard of n elements: begins at *first; returns its length. Shards begin at multiples of SUMSQ_BLOCK (ops.h); rank 0's
 * is the longest, and the last ones may be empty. */
int64_t collective_shard(int64_t n, int n_rank, int r, int64_t *first);
/* Let the other ranks read and write this memory (of mem_share_new, h its handle) until collective_leave. All ranks call it with the
 * same size, each for its own. Where one of them cannot open the others' (another kind of device, no access from GPU to GPU),
 * nothing is shared and nothing fails. After leaving, memory that was offered may be freed. */
MUST_USE bool collective_offer(struct collective *c, void *mem, size_t size_bytes, const struct mem_handle *h, struct error *err);
/* As collective_offer, for host memory (of host_share_new), which any rank of the host can open. */
MUST_USE bool collective_offer_host(struct collective *c, void *mem, size_t size_bytes, const struct mem_handle *h, struct error *err);
/* Where this rank sees what another rank has offered, at the same place as p lies in what this rank has; NULL: p was not offered. */
void *collective_peer(const struct collective *c, const void *p, int rank);
/* What others open with what `rank` has offered of which this rank's part begins at p; NULL: no part of what was offered does. */
const struct mem_handle *collective_handle(const struct collective *c, const void *p, int rank);
/* Can the ranks reach each other's memory? All call it. */
MUST_USE bool collective_reaches(struct collective *c, bool *yes, struct error *err);
/* Before this rank touches memory of the others, and after: a rank that leaves meanwhile waits for it. What was asked of the device's lanes
 * is done before the end. Such times may overlap: the others wait for the end of the last one. */
MUST_USE bool collective_touch_begin(struct collective *c, struct error *err);
void collective_touch_end(struct collective *c);
/* What a rank sends to each rank and gets from each, itself included; the memory is the device's, and any of it may be empty. */
struct collective_bytes {
    const void *send[COLLECTIVE_RANK_MAX];
    void *recv[COLLECTIVE_RANK_MAX];
    size_t send_bytes[COLLECTIVE_RANK_MAX], recv_bytes[COLLECTIVE_RANK_MAX];
};
/* All to all: begin, and look until it is done; meanwhile nothing else is asked of c, and the memory stays as it is. What is sent must
 * have been computed (device_sync). Beginning may wait for the others. ERR_DATA: another rank sends more or less than this one awaits.
 * b is copied. */
MUST_USE bool collective_begin(struct collective *c, const struct collective_bytes *b, struct error *err);
/* A moment, at most ms; 0 only looks. *done: what the others sent is here, and what this rank sent them may be changed; its own part
 * comes in the device's order. Fails as collective_wait does; the limit counts from when something last moved. */
MUST_USE bool collective_poll(struct collective *c, int64_t ms, bool *done, struct error *err);
MUST_USE bool collective_all_to_all(struct collective *c, const struct collective_bytes *b,
                                    struct error *err);    // both, to the end, and the device's
/* x (n) of every rank = the shards that all ranks have at own, end to end. Waits for all ranks. */
MUST_USE bool collective_all_gather(struct collective *c, float *x, const float *own, int64_t n, struct error *err);

/* Counters that every rank has, all ranks read, and only rise (modulo 2^32); what one rank wrote before it set a counter is seen by one that
 * reads the counter. */
#define COLLECTIVE_COUNT_N 3
void collective_count_set(struct collective *c, int which, uint32_t value);
uint32_t collective_count(const struct collective *c, int rank, int which);
/* A wait that looks again and again, for a rank or a device. */
struct collective_wait {
    int64_t began_ms;    // 0: not begun
    int told;            // 1 + the rank that the operator is told of; 0: none
};
/* A moment of waiting until rank's counter is no longer seen: at most ms, 0 only looks. ERR_CLOSED: the meeting is over. ERR_TIMEOUT:
 * the wait has taken longer than its limit; rank is named. rank -1: for this rank's own device, only the meeting is looked at. */
MUST_USE bool collective_wait(struct collective *c, struct collective_wait *w, int rank, int which, uint32_t seen, int64_t ms,
                              struct error *err);
void collective_wait_end(struct collective *c, struct collective_wait *w);

/* More counters, for a kind that lies over another one (late.h). */
#define COLLECTIVE_COUNT_BEATS COLLECTIVE_COUNT_N
#define COLLECTIVE_COUNT_DONE (COLLECTIVE_COUNT_N + 1)
#define COLLECTIVE_COUNT_ALL (COLLECTIVE_COUNT_N + 2)
/* What a kind implements; its own struct starts with struct collective. */
struct collective_kind {
    const char *name;
    bool shares;    // ranks may open each other's memory
    struct collective *(*join)(const struct collective_config *config, struct error *err);
    void (*abandon)(struct collective *c, int rank, const char *why);    // the rank that gave up first, as far as this one knows
    const char *(*cause)(const struct collective *c, int *rank);         // why a rank gave up, and which; NULL: none has
    void (*leave)(struct collective *c);                // when no rank reads this rank's memory any more, or a limit has passed
    void (*touches)(struct collective *c, bool now);    // this rank touches the others' memory from now on, or no longer
    void (*count_set)(struct collective *c, int which, uint32_t value);
    uint32_t (*count)(const struct collective *c, int rank, int which);
    bool (*wait)(struct collective *c, struct collective_wait *w, int rank, int which, uint32_t seen, int64_t ms, struct error *err);
    void (*wait_end)(struct collective *c, struct collective_wait *w);
    bool (*gather)(struct collective *c, const void *mine, size_t size_bytes, void *all, struct error *err);
    bool (*begin)(struct collective *c, const struct collective_bytes *b, struct error *err);
    bool (*poll)(struct collective *c, int64_t ms, bool *done, struct error *err);
    bool (*all_gather)(struct collective *c, float *x, const float *own, int64_t n, struct error *err);    // NULL: made of bytes
};
/* For kinds: does what the others send (all: n_rank x n_rank, by sender and receiver) suit what this rank awaits? ERR_DATA: no. */
MUST_USE bool collective_bytes_agree(const struct collective *c, const struct collective_bytes *b, const uint64_t *all, struct error *err);
/* For kinds: it is over; ERR_CLOSED with the cause. Returns false. */
bool collective_over(const struct collective *c, struct error *err);
#define COLLECTIVE_OFFER_MAX 4
struct collective {
    const struct collective_kind *kind;
    int rank, n_rank;
    struct device *dev;
    const char *(*name)(void *ctx, int rank, char *out, size_t size);    // as in the config, with its ctx
    void *ctx;
    int last;    // the rank that came last to the last gather
    struct offer {
        size_t size_bytes;
        bool host;                        // host_share_open's memory, else mem_share_open's
        char *of[COLLECTIVE_RANK_MAX];    // where this rank sees every rank's memory; its own where it is
        struct mem_handle handle[COLLECTIVE_RANK_MAX];
    } offer[COLLECTIVE_OFFER_MAX];
    int n_offer;
    int n_touch;    // times of touching others' memory that have begun and not ended
};
