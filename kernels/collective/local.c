/* local.c - ranks of one host that share a mapped file: the kinds ipc, whose ranks may also open memory that others offer, and local
 *
 * 1. The file is the meeting's name while the ranks join; rank 0 removes it when every rank has mapped it. After that the kernel
 *    frees its pages with the last member, however it ends: kill -9 leaves nothing behind.
 * 2. member[q].arrived counts the barriers rank q has reached, and is a futex. 1: the rank has joined; 2: it has seen that all have joined.
 * 3. Between two barriers a rank writes only its own part of the memory, and reads only what was written before the last barrier.
 * 4. Large arrays go in chunks, so the memory does not grow with them and stays in the processors' caches: every rank copies a piece of its
 *    shard into its slot, and then all ranks' pieces from theirs.
 *    Bytes from all to all go the same way, in rounds: a rank fills its slot when all have taken what it held in the round before, and
 *    takes from the others' slots what they have filled; two counters say how far it is, so that a rank may look without waiting.
 * 5. `over` never becomes false again. A rank sets it when it leaves, when a wait fails or when it finds another rank dead. One that gives
 *    up, or whose call fails, writes why before, unless another one has. */
#include "kernels/collective/kinds.h"
#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "kernels/ops.h"
#include "protocol/base/clock.h"

#define CHUNK ((int64_t)1 << 20)    // floats processed at a time
#define TICK_MS 50                  // between checks whether the others are alive
#define TELL_MS 100                 // a wait this long is reported to the operator
#define TOUCH_MS 5000               // to wait for a rank that touches our memory when we leave; it takes milliseconds

/* Counters besides those of collective_count_set: rounds of bytes. */
#define COUNT_FILLED COLLECTIVE_COUNT_ALL
#define COUNT_TAKEN (COLLECTIVE_COUNT_ALL + 1)
struct member {
    _Alignas(64) _Atomic uint32_t arrived;
    _Atomic int32_t pid;                                 // valid from arrived 1 on
    _Atomic uint32_t touches;                            // is reading the others' memory now; a futex
    _Atomic uint32_t count[COLLECTIVE_COUNT_ALL + 2];    // each a futex
    _Atomic int64_t at_ns[2];                            // when it reached a barrier (clock_ns), by turns
};
enum cause {
    CAUSE_NONE,
    CAUSE_COMES,    // somebody writes it
    CAUSE_IS,
};
struct meeting {                // the mapped file: this, then small, slot
    _Atomic uint32_t n_rank;    // 0: nobody has joined yet
    _Atomic uint32_t over;
    struct member member[COLLECTIVE_RANK_MAX];
    _Atomic uint32_t cause;
    int32_t cause_rank;    // the rank that gave up first, and why; from CAUSE_IS on
    char why[COLLECTIVE_WHY_MAX];
};
struct local {
    struct collective base;
    struct device *dev;
    char path[4200];
    int fd;    // of the meeting's file until all have joined; then -1
    struct meeting *m;
    size_t size_bytes;
    char *small;     // (2, n_rank, COLLECTIVE_GATHER_MAX)
    float *slot;     // (n_rank, CHUNK) what each rank gives
    uint32_t seq;    // barriers reached
    uint32_t n_gather;
    int pidfd[COLLECTIVE_RANK_MAX];
    int64_t wait_ms;
    void (*waits)(void *ctx, int rank);
    struct {    // bytes on their way
        struct collective_bytes b;
        uint32_t round, end;    // the round under way, and that after the last; every rank counts alike
        uint32_t first;         // of this time's
        bool filled;            // the round's slot
        struct collective_wait w;
    } move;
};

static size_t part_bytes(size_t n)
{
    return (n + 4095) / 4096 * 4096;
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

static void over_set(struct local *l)
{
    atomic_store(&l->m->over, 1);
    for (int q = 0; q < l->base.n_rank; q++)
        futex_wake(&l->m->member[q].arrived);
}

static const char *local_cause(const struct collective *c, int *rank)
{
    const struct meeting *m = ((const struct local *)c)->m;
    if (atomic_load(&m->cause) != CAUSE_IS)
        return NULL;
    *rank = m->cause_rank;
    return m->why;
}

static void local_abandon(struct collective *c, int rank, const char *why)
{
    struct local *l = (struct local *)c;
    uint32_t none = CAUSE_NONE;
    if (!atomic_load(&l->m->over) && atomic_compare_exchange_strong(&l->m->cause, &none, CAUSE_COMES)) {
        l->m->cause_rank = rank;
        snprintf(l->m->why, sizeof l->m->why, "%s", why);
        atomic_store(&l->m->cause, CAUSE_IS);
    }
    over_set(l);
}

/* A call of this rank's has failed: the others learn why, unless it was over before. */
static void call_failed(struct local *l, const struct error *err)
{
    if (!atomic_load(&l->m->over))
        local_abandon(&l->base, l->base.rank, err->text);
}

static bool behind(const struct local *l, int q, uint32_t seq)
{
    return (int32_t)(atomic_load(&l->m->member[q].arrived) - seq) < 0;
}

/* Has a joined member's process ended? False when that cannot be determined. */
static bool member_dead(struct local *l, int q)
{
    pid_t pid = atomic_load(&l->m->member[q].arrived) ? atomic_load(&l->m->member[q].pid) : 0;
    if (!pid || pid == getpid())
        return false;
    if (l->pidfd[q] < 0 && (l->pidfd[q] = (int)syscall(SYS_pidfd_open, pid, 0)) < 0 && errno != ESRCH)
        return false;    // no such call on this kernel: the time limit of the wait remains
    struct pollfd p = { .fd = l->pidfd[q], .events = POLLIN };
    return l->pidfd[q] < 0 || poll(&p, 1, 0) > 0;
}

/* A member that has died before it reached barrier seq; -1: none. */
static int dead_find(struct local *l, uint32_t seq)
{
    for (int q = 0; q < l->base.n_rank; q++)
        if (behind(l, q, seq) && member_dead(l, q) && behind(l, q, seq))    // it may have arrived before it died
            return q;
    return -1;
}

/* Has the meeting's file been removed or replaced? */
static bool called_off(const struct local *l)
{
    struct stat ours, there;
    return fstat(l->fd, &ours) != 0 || stat(l->path, &there) != 0 || ours.st_ino != there.st_ino || ours.st_dev != there.st_dev;
}

static bool wait_one(struct local *l, int q, uint32_t seq, int64_t end_ms, int *told, struct error *err)
{
    int64_t began = clock_ms();
    char name[64];
    for (;;) {
        int64_t now = clock_ms();    // before the looks: what they find missing was so when the limit had passed
        uint32_t value = atomic_load(&l->m->member[q].arrived);
        if ((int32_t)(value - seq) >= 0)
            return true;
        if (atomic_load(&l->m->over))
            return collective_over(&l->base, err);
        int dead = dead_find(l, seq);
        if (dead >= 0)
            return error_set(err, ERR_CLOSED, "%s has died", collective_name(&l->base, dead, name, sizeof name));
        if (l->fd >= 0 && seq == 1 && called_off(l))
            return error_set(err, ERR_CLOSED, "the meeting of the ranks was called off");
        if (now >= end_ms)
            return error_set(err, ERR_TIMEOUT, "%s has not arrived within %" PRId64 " s", collective_name(&l->base, q, name, sizeof name),
                             (end_ms - began + 999) / 1000);
        if (l->waits && *told != q && now - began >= TELL_MS)
            l->waits(l->base.ctx, *told = q);
        futex_wait(&l->m->member[q].arrived, value, MIN(end_ms - now, (int64_t)TICK_MS));
    }
}

/* Announce that we have reached the next barrier, and wait until all have. */
static bool barrier(struct local *l, int64_t limit_ms, struct error *err)
{
    int told = -1;
    bool ok = true;
    if (atomic_load(&l->m->over))    // also when this rank itself has given up: then it comes no more
        return collective_over(&l->base, err);
    uint32_t seq = ++l->seq;
    int64_t end = clock_ms() + limit_ms;
    atomic_store(&l->m->member[l->base.rank].at_ns[seq % 2], clock_ns());
    atomic_store(&l->m->member[l->base.rank].arrived, seq);
    futex_wake(&l->m->member[l->base.rank].arrived);
    for (int q = 0; q < l->base.n_rank && ok; q++)
        ok = wait_one(l, q, seq, end, &told, err);
    if (told >= 0)
        l->waits(l->base.ctx, -1);
    for (int q = 0; q < l->base.n_rank && ok; q++)    // nobody is two barriers further before this rank reaches the next
        if (q == 0 || atomic_load(&l->m->member[q].at_ns[seq % 2]) > atomic_load(&l->m->member[l->base.last].at_ns[seq % 2]))
            l->base.last = q;
    if (!ok)
        call_failed(l, err);
    return ok;
}

static void local_touches(struct collective *c, bool now)
{
    struct local *l = (struct local *)c;
    atomic_store(&l->m->member[c->rank].touches, now);
    if (!now)
        futex_wake(&l->m->member[c->rank].touches);
}

static void local_count_set(struct collective *c, int which, uint32_t value)
{
    struct local *l = (struct local *)c;
    atomic_store(&l->m->member[c->rank].count[which], value);
    futex_wake(&l->m->member[c->rank].count[which]);
}

static uint32_t local_count(const struct collective *c, int rank, int which)
{
    return atomic_load(&((const struct local *)c)->m->member[rank].count[which]);
}

static bool local_wait(struct collective *c, struct collective_wait *w, int rank, int which, uint32_t seen, int64_t ms, struct error *err)
{
    struct local *l = (struct local *)c;
    char name[64];
    int64_t now = clock_ms();
    w->began_ms = w->began_ms ? w->began_ms : now;
    if (atomic_load(&l->m->over))
        return collective_over(c, err);
    if (rank < 0)
        return true;
    if (member_dead(l, rank) && local_count(c, rank, which) == seen)    // it may have come that far before it died
        return error_set(err, ERR_CLOSED, "%s has died", collective_name(c, rank, name, sizeof name));
    if (now - w->began_ms >= l->wait_ms && local_count(c, rank, which) == seen)
        return error_set(err, ERR_TIMEOUT, "%s has not come in %" PRId64 " s", collective_name(c, rank, name, sizeof name),
                         (l->wait_ms + 999) / 1000);
    if (l->waits && w->told != rank + 1 && now - w->began_ms >= TELL_MS) {
        w->told = rank + 1;
        l->waits(l->base.ctx, rank);
    }
    if (ms > 0)
        futex_wait(&l->m->member[rank].count[which], seen, MIN(ms, (int64_t)TICK_MS));
    return true;
}

static void local_wait_end(struct collective *c, struct collective_wait *w)
{
    struct local *l = (struct local *)c;
    if (w->told)
        l->waits(l->base.ctx, -1);
    *w = (struct collective_wait){ 0 };
}

/* Until no living member touches our memory; none begins to, since it is over. */
static void touchers_wait(struct local *l)
{
    int64_t end = clock_ms() + TOUCH_MS;
    for (int q = 0; q < l->base.n_rank; q++) {
        struct member *m = &l->m->member[q];
        while (q != l->base.rank && atomic_load(&m->touches) && clock_ms() < end && !member_dead(l, q))
            futex_wait(&m->touches, 1, TICK_MS);
    }
}

static void local_leave(struct collective *c)
{
    struct local *l = (struct local *)c;
    if (l->m) {
        over_set(l);
        touchers_wait(l);
        munmap(l->m, l->size_bytes);
    }
    if (l->fd >= 0) {    // it has not been able to start
        if (!called_off(l))
            unlink(l->path);
        close(l->fd);
    }
    for (int q = 0; q < COLLECTIVE_RANK_MAX; q++)
        if (l->pidfd[q] >= 0)
            close(l->pidfd[q]);
    free(l);
}

static bool file_take(struct local *l, struct error *err)
{
    size_t n = (size_t)l->base.n_rank, head = part_bytes(sizeof *l->m), small = part_bytes(2 * n * COLLECTIVE_GATHER_MAX);
    l->size_bytes = head + small + n * CHUNK * sizeof(float);
    l->fd = open(l->path, O_RDWR | O_CLOEXEC);
    if (l->fd < 0 && errno == ENOENT)
        return error_set(err, ERR_CLOSED, "the meeting of the ranks was called off");
    if (l->fd < 0)
        return error_errno(err, "cannot open '%s'", l->path);
    /* blocks now: a full disk would be a SIGBUS later */
    if (fallocate(l->fd, 0, 0, (off_t)l->size_bytes) != 0 && (errno != EOPNOTSUPP || ftruncate(l->fd, (off_t)l->size_bytes) != 0))
        return error_errno(err, "cannot take %zu bytes for the exchange between ranks in '%s'", l->size_bytes, l->path);
    char *p = mmap(NULL, l->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0);
    if (p == MAP_FAILED)
        return error_errno(err, "cannot map '%s'", l->path);
    l->m = (struct meeting *)(void *)p;
    l->small = p + head;
    l->slot = (float *)(void *)(p + head + small);
    return true;
}

static struct collective *local_join(const struct collective_config *config, struct error *err)
{
    bool ok = false;
    uint32_t n = 0;
    int32_t nobody = 0;
    struct local *l = calloc(1, sizeof *l);
    if (!l) {
        error_set(err, ERR_NO_MEMORY, "no memory for the exchange between ranks");
        return NULL;
    }
    l->base = (struct collective){ .kind = strcmp(config->kind, collective_ipc.name) == 0 ? &collective_ipc : &collective_local,
                                   .rank = config->rank,
                                   .n_rank = config->n_rank,
                                   .dev = config->dev,
                                   .name = config->name_of,
                                   .ctx = config->ctx };
    l->dev = config->dev;
    l->fd = -1;
    for (int q = 0; q < COLLECTIVE_RANK_MAX; q++)
        l->pidfd[q] = -1;
    l->wait_ms = config->wait_ms;
    l->waits = config->waits;
    snprintf(l->path, sizeof l->path, "%s/%s", config->dir, config->name);
    TRY(file_take(l, err));
    if (!atomic_compare_exchange_strong(&l->m->n_rank, &n, (uint32_t)config->n_rank) && n != (uint32_t)config->n_rank) {
        error_set(err, ERR_USAGE, "rank %d was told that there are %d ranks, the others %u", config->rank, config->n_rank, n);
        goto out;
    }
    if (!atomic_compare_exchange_strong(&l->m->member[config->rank].pid, &nobody, (int32_t)getpid())) {
        error_set(err, ERR_EXISTS, "rank %d has joined already, as process %d", config->rank, (int)nobody);
        goto out;
    }
    TRY(barrier(l, config->join_ms, err) && barrier(l, config->join_ms, err));
    if (config->rank == 0)
        unlink(l->path);
    close(l->fd);
    l->fd = -1;
    ok = true;
out:
    if (!ok)
        local_leave(&l->base);
    return ok ? &l->base : NULL;
}

static bool local_gather(struct collective *c, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    struct local *l = (struct local *)c;
    /* Two places used in turn: when a place is written again, its slowest reader has finished. */
    char *place = l->small + (size_t)(l->n_gather++ % 2) * (size_t)c->n_rank * COLLECTIVE_GATHER_MAX;
    memcpy(place + (size_t)c->rank * COLLECTIVE_GATHER_MAX, mine, size_bytes);
    if (!barrier(l, l->wait_ms, err))
        return false;
    for (int q = 0; q < c->n_rank; q++)
        memcpy((char *)all + (size_t)q * size_bytes, place + (size_t)q * COLLECTIVE_GATHER_MAX, size_bytes);
    return true;
}

/* ---- bytes */
/* Bytes that a rank's slot holds for each rank. */
static size_t room(const struct local *l)
{
    return (size_t)(CHUNK / l->base.n_rank) * sizeof(float);
}

/* What of n bytes goes in a round; *from: where it begins. */
static size_t part_of(const struct local *l, size_t n, size_t *from)
{
    *from = (size_t)(l->move.round - l->move.first) * room(l);
    return *from < n ? MIN(n - *from, room(l)) : 0;
}

static char *slot_at(const struct local *l, int from, int to)
{
    return (char *)(l->slot + from * CHUNK) + (size_t)to * room(l);
}

static bool local_begin(struct collective *c, const struct collective_bytes *b, struct error *err)
{
    struct local *l = (struct local *)c;
    uint64_t mine[COLLECTIVE_RANK_MAX], all[COLLECTIVE_RANK_MAX * COLLECTIVE_RANK_MAX], most = 0;
    for (int q = 0; q < c->n_rank; q++)
        mine[q] = q == c->rank ? 0 : b->send_bytes[q];    // the own part is there already
    if (!collective_gather(c, mine, (size_t)c->n_rank * sizeof mine[0], all, err))
        return false;
    for (int q = 0; q < c->n_rank * c->n_rank; q++)
        most = MAX(most, all[q]);
    l->move.b = *b;
    l->move.first = l->move.round;
    l->move.end = l->move.round + (uint32_t)((most + room(l) - 1) / room(l));
    l->move.filled = false;
    if (collective_bytes_agree(c, b, all, err))
        return true;
    call_failed(l, err);
    return false;
}

static bool slot_fill(struct local *l, struct error *err)
{
    for (int q = 0; q < l->base.n_rank; q++) {
        size_t from, n = part_of(l, l->move.b.send_bytes[q], &from);
        if (q != l->base.rank && n > 0
            && !mem_copy(l->dev, slot_at(l, l->base.rank, q), (const char *)l->move.b.send[q] + from, n, COPY_D2H, err))
            return false;
    }
    return device_sync(l->dev, err);
}

static bool slots_take(struct local *l, struct error *err)
{
    for (int q = 0; q < l->base.n_rank; q++) {
        size_t from, n = part_of(l, l->move.b.recv_bytes[q], &from);
        if (q != l->base.rank && n > 0
            && !mem_copy(l->dev, (char *)l->move.b.recv[q] + from, slot_at(l, q, l->base.rank), n, COPY_H2D, err))
            return false;
    }
    return device_sync(l->dev, err);
}

/* A rank whose counter is below this, and what it was: a wait must sleep on that value, or misses a rise that comes between two
 * looks. -1: none is. */
static int behind_find(const struct local *l, int which, uint32_t count, uint32_t *seen)
{
    for (int q = 0; q < l->base.n_rank; q++)
        if (q != l->base.rank && (int32_t)((*seen = atomic_load(&l->m->member[q].count[which])) - count) < 0)
            return q;
    return -1;
}

/* The next thing of a round, when its time has come; else *late is the rank to wait for. */
static bool round_go_on(struct local *l, int *late, int *which, uint32_t *seen, struct error *err)
{
    uint32_t round = l->move.round;
    *which = l->move.filled ? COUNT_FILLED : COUNT_TAKEN;
    if ((*late = behind_find(l, *which, l->move.filled ? round + 1 : round, seen)) >= 0)
        return true;
    if (!(l->move.filled ? slots_take(l, err) : slot_fill(l, err)))
        return false;
    local_count_set(&l->base, *which == COUNT_FILLED ? COUNT_TAKEN : COUNT_FILLED, round + 1);
    l->move.round += l->move.filled;
    l->move.filled = !l->move.filled;
    return true;
}

static bool local_poll(struct collective *c, int64_t ms, bool *done, struct error *err)
{
    struct local *l = (struct local *)c;
    int64_t end = clock_ms() + ms;
    bool ok = true, over = false;
    *done = false;
    while (ok && !*done && !over) {
        int late, which = COUNT_TAKEN;
        uint32_t seen = 0;
        if (l->move.round != l->move.end) {
            ok = round_go_on(l, &late, &which, &seen, err);
        } else {    // until all have taken from this rank's slot
            late = behind_find(l, COUNT_TAKEN, l->move.end, &seen);
            *done = late < 0;
        }
        if (ok && late >= 0) {
            over = clock_ms() >= end;
            ok = local_wait(c, &l->move.w, late, which, seen, over ? 0 : TICK_MS, err);
        } else {
            local_wait_end(c, &l->move.w);
        }
    }
    if (!ok)
        call_failed(l, err);
    return ok;
}

/* ---- shards */
static bool local_all_gather(struct collective *c, float *x, const float *own, int64_t n, struct error *err)
{
    struct local *l = (struct local *)c;
    int64_t first, most = collective_shard(n, c->n_rank, 0, &first);
    for (int64_t at = 0; at < most; at += CHUNK) {
        int64_t m = MIN(collective_shard(n, c->n_rank, c->rank, &first) - at, CHUNK);
        if (m > 0 && !mem_copy(l->dev, l->slot + c->rank * CHUNK, own + at, (size_t)m * sizeof *x, COPY_D2H, err))
            return false;
        if (!device_sync(l->dev, err) || !barrier(l, l->wait_ms, err))
            return false;
        for (int q = 0; q < c->n_rank; q++) {
            m = MIN(collective_shard(n, c->n_rank, q, &first) - at, CHUNK);
            if (m > 0 && !mem_copy(l->dev, x + first + at, l->slot + q * CHUNK, (size_t)m * sizeof *x, COPY_H2D, err))
                return false;
        }
        if (!device_sync(l->dev, err) || !barrier(l, l->wait_ms, err))
            return false;
    }
    return true;
}

const struct collective_kind collective_local = {
    .name = "local",
    .join = local_join,
    .abandon = local_abandon,
    .cause = local_cause,
    .leave = local_leave,
    .touches = local_touches,
    .count_set = local_count_set,
    .count = local_count,
    .wait = local_wait,
    .wait_end = local_wait_end,
    .gather = local_gather,
    .begin = local_begin,
    .poll = local_poll,
    .all_gather = local_all_gather,
};
const struct collective_kind collective_ipc = {
    .name = "ipc",
    .shares = true,
    .join = local_join,
    .abandon = local_abandon,
    .cause = local_cause,
    .leave = local_leave,
    .touches = local_touches,
    .count_set = local_count_set,
    .count = local_count,
    .wait = local_wait,
    .wait_end = local_wait_end,
    .gather = local_gather,
    .begin = local_begin,
    .poll = local_poll,
    .all_gather = local_all_gather,
};
