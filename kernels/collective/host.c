/* host.c - memory shared by processes of one host, and comm.h on top of it
 *
 * Shared memory is an anonymous file (memfd): it has no name that could be left behind, and its handle is the maker's process
 * and descriptor, opened through /proc. A group of CPUs is one such file that rank 0 makes: a header and one piece of CHUNK
 * bytes, which rank 0 fills and all others copy out before it is filled again. Atomics in the header count the progress; no thread
 * sleeps on them, comm_poll looks at them. */
#include "kernels/collective/comm.h"
#include <inttypes.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "kernels/host.h"
#include "protocol/base/clock.h"

#define CHUNK ((size_t)4 << 20)

struct host_handle {
    int64_t pid;
    int32_t fd;
};

static void *memfd_map(int fd, size_t size_bytes, const char *what, struct error *err)
{
    void *p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED)
        return p;
    error_errno(err, "cannot map %s, %zu bytes", what, size_bytes);
    return NULL;
}

void *host_mem_share_new(UNUSED struct device *dev, size_t size_bytes, const char *what, struct mem_handle *h, struct error *err)
{
    struct host_handle own = { .pid = getpid(), .fd = memfd_create("rollcall", MFD_CLOEXEC) };
    void *p = NULL;
    if (own.fd < 0 || ftruncate(own.fd, (off_t)MAX(size_bytes, (size_t)1)) != 0)
        error_errno(err, "no shared memory for %s: %zu bytes", what, size_bytes);
    else
        p = memfd_map(own.fd, MAX(size_bytes, (size_t)1), what, err);
    if (!p && own.fd >= 0)
        close(own.fd);
    memset(h, 0, sizeof *h);
    memcpy(h->bytes, &own, sizeof own);
    return p;
}

/* Close the handle of memory that this process has made. */
static void handle_close(const struct mem_handle *h)
{
    struct host_handle own;
    memcpy(&own, h->bytes, sizeof own);
    close(own.fd);
}

void host_mem_share_free(UNUSED struct device *dev, void *p, size_t size_bytes, const struct mem_handle *h)
{
    munmap(p, MAX(size_bytes, (size_t)1));
    handle_close(h);
}

static void *handle_map(const struct mem_handle *h, size_t size_bytes, struct error *err)
{
    struct host_handle other;
    char path[64];
    memcpy(&other, h->bytes, sizeof other);
    snprintf(path, sizeof path, "/proc/%" PRId64 "/fd/%d", other.pid, (int)other.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        error_errno(err, "cannot open the memory of process %" PRId64, other.pid);
        return NULL;
    }
    off_t size = lseek(fd, 0, SEEK_END);    // reading past the end of a shorter file would kill the process
    void *p = NULL;
    if (size < (off_t)size_bytes)
        error_set(err, ERR_DATA, "the memory of process %" PRId64 " has %" PRId64 " bytes, not %zu", other.pid, size, size_bytes);
    else
        p = memfd_map(fd, size_bytes, "another process's memory", err);
    close(fd);
    return p;
}

void *host_mem_share_open(UNUSED struct device *dev, const struct mem_handle *h, size_t size_bytes, struct error *err)
{
    return handle_map(h, size_bytes, err);
}

void host_mem_share_close(UNUSED struct device *dev, const void *p, size_t size_bytes)
{
    munmap((void *)p, size_bytes);
}

/* ---- a group ---- */

struct board {                                  // memory shared by the members
    int64_t made_ns;                            // distinguishes this file from a later one at the same descriptor
    atomic_int n_joined;                        // ranks above 0
    _Atomic uint64_t n_filled;                  // pieces filled by rank 0
    _Atomic uint64_t n_taken[COMM_RANK_MAX];    // pieces copied out, by rank
};
#define BOARD_BYTES ((sizeof(struct board) + 4095) & ~(size_t)4095)
struct host_comm {
    struct comm base;    // first
    struct mem_handle handle;
    struct board *board;
    char *chunk;
    struct comm_broadcast job;
    bool joined, busy;
    size_t done;         // bytes of the job filled or copied out
    uint64_t n_piece;    // pieces filled or copied out since the group began
};

static bool group_available(UNUSED struct device *dev, UNUSED struct error *err)
{
    return true;
}

struct host_id {    // a group's name
    struct mem_handle handle;
    int64_t made_ns;
};

/* From here on the board belongs to rank 0: comm_new finds it again by the handle in the name. */
static bool group_id_make(struct device *dev, struct comm_id *id, struct error *err)
{
    struct host_id own = { .made_ns = clock_ns() };
    _Static_assert(sizeof own <= sizeof id->bytes, "a name fits");
    struct board *b = host_mem_share_new(dev, BOARD_BYTES + CHUNK, "a group", &own.handle, err);
    if (!b)
        return false;
    b->made_ns = own.made_ns;
    munmap(b, BOARD_BYTES + CHUNK);
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, &own, sizeof own);
    return true;
}

static void group_free(struct comm *base)
{
    struct host_comm *c = (struct host_comm *)base;
    if (base->rank == 0)
        host_mem_share_free(base->dev, c->board, BOARD_BYTES + CHUNK, &c->handle);
    else
        munmap(c->board, BOARD_BYTES + CHUNK);
    free(c);
}

/* The board of a group that rank joins; NULL: see err, and rank 0 has given it up. */
static struct board *board_open(const struct host_id *name, int rank, struct error *err)
{
    struct board *b = handle_map(&name->handle, BOARD_BYTES + CHUNK, err);
    if (b && b->made_ns != name->made_ns) {
        error_set(err, ERR_CLOSED, "the group has been given up before rank %d joined it", rank);
        munmap(b, BOARD_BYTES + CHUNK);
        b = NULL;
    }
    if (!b && rank == 0)
        handle_close(&name->handle);
    return b;
}

static struct comm *group_new(struct device *dev, const struct comm_id *id, int n_rank, int rank, struct error *err)
{
    struct host_id name;
    memcpy(&name, id->bytes, sizeof name);
    struct board *board = board_open(&name, rank, err);
    struct host_comm *c = board ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        if (board) {
            error_set(err, ERR_NO_MEMORY, "no memory for a group");
            munmap(board, BOARD_BYTES + CHUNK);
            if (rank == 0)
                handle_close(&name.handle);
        }
        return NULL;
    }
    c->base = (struct comm){ .op = &host_comm_ops, .dev = dev, .n_rank = n_rank, .rank = rank };
    c->handle = name.handle;
    c->board = board;
    c->chunk = (char *)c->board + BOARD_BYTES;
    if (rank > 0)
        atomic_fetch_add(&c->board->n_joined, 1);
    return &c->base;
}

static bool group_broadcast(struct comm *base, const struct comm_broadcast *b, struct error *err)
{
    struct host_comm *c = (struct host_comm *)base;
    if (!c->joined || c->busy)
        return error_set(err, ERR_INTERNAL, "a broadcast was begun while another operation is under way");
    c->job = *b;
    c->done = 0;
    c->busy = true;
    if (base->rank == 0 && b->src)
        memcpy(b->buf, b->src, b->size_bytes);
    return true;
}

/* Fill or copy out one piece, if it is its turn. */
static bool piece_move(struct host_comm *c)
{
    struct board *b = c->board;
    size_t n = MIN(CHUNK, c->job.size_bytes - c->done);
    char *at = (char *)c->job.buf + c->done;
    if (c->base.rank == 0) {
        for (int r = 1; r < c->base.n_rank; r++)
            if (atomic_load(&b->n_taken[r]) < c->n_piece)
                return false;
        memcpy(c->chunk, at, n);
        atomic_store(&b->n_filled, ++c->n_piece);
    } else {
        if (atomic_load(&b->n_filled) == c->n_piece)
            return false;
        memcpy(at, c->chunk, n);
        atomic_store(&b->n_taken[c->base.rank], ++c->n_piece);
    }
    c->done += n;
    return true;
}

static enum comm_state group_poll(struct comm *base, UNUSED struct error *err)
{
    struct host_comm *c = (struct host_comm *)base;
    c->joined = c->joined || base->rank > 0 || atomic_load(&c->board->n_joined) == base->n_rank - 1;
    if (!c->joined)
        return COMM_BUSY;
    if (!c->busy)
        return COMM_READY;
    while (c->done < c->job.size_bytes && piece_move(c))
        ;
    if (c->done < c->job.size_bytes)
        return COMM_BUSY;
    c->busy = false;
    return COMM_READY;
}

static bool group_copied(UNUSED struct comm *base)
{
    return true;
}

const struct comm_ops host_comm_ops = {
    group_available, group_id_make, group_new, group_free, group_poll, group_broadcast, group_copied,
};
