/* board.c - turns, by atomics in a shared file and futexes on them
 *
 * A reader says that it is busy and then looks whether the weights are wanted; the trainer says that it wants them and then looks which side is
 * busy. Both are sequentially consistent, so at least one sees the other (Dekker). `writing` is odd while they change, and only grows, so
 * a reader that was not waited for sees a change that began after its hold, even when that is over. */
#include "workers/engine/publish/board.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/file.h"

#define BOARD_MAGIC UINT64_C(0x31647261626c6372)    // "rclbard1"
#define LOOK_MS 50                                  // between two looks at which side lives

struct shared {
    uint64_t magic;
    _Atomic int64_t version;
    _Atomic uint32_t wanted;     // 1: readers are asked to let go
    _Atomic uint32_t writing;    // odd: the weights change
    _Atomic uint32_t let_go;     // how often a reader has
    _Atomic uint32_t busy[BOARD_READERS];
};
struct board {
    struct shared *s;
    int fd;
    char path[4160];
    bool writes;         // this is the trainer's
    bool changing;       // the trainer's: since board_change
    bool held;           // a reader's
    int place;           // a reader's
    uint32_t writing;    // a reader's: as it was when it was held
};

static struct flock byte_of(short type, int at)
{
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };
}

static bool lock_take(const struct board *b, int at)
{
    struct flock l = byte_of(F_WRLCK, at);
    return fcntl(b->fd, F_OFD_SETLK, &l) == 0;
}

/* Does anybody else hold this byte? */
static bool lock_lives(const struct board *b, int at)
{
    struct flock l = byte_of(F_WRLCK, at);
    return fcntl(b->fd, F_OFD_GETLK, &l) == 0 && l.l_type != F_UNLCK;
}

/* Until *word is not `was`, or somebody calls, or the time is over. */
static void word_wait(_Atomic uint32_t *word, uint32_t was, int64_t ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    syscall(SYS_futex, word, FUTEX_WAIT, was, &t, NULL, 0);
}

static void word_call(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Map the file that b->fd has. */
static bool board_map(struct board *b, struct error *err)
{
    off_t size = lseek(b->fd, 0, SEEK_END);
    if (size < (off_t)sizeof *b->s)
        return error_set(err, ERR_DATA, "'%s' is no board of a trainer", b->path);
    void *p = mmap(NULL, sizeof *b->s, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (p == MAP_FAILED)
        return error_errno(err, "cannot map '%s'", b->path);
    b->s = p;
    return true;
}

static struct board *board_alloc(const char *path, struct error *err)
{
    struct board *b = calloc(1, sizeof *b);
    if (!b) {
        error_set(err, ERR_NO_MEMORY, "no memory for the board '%s'", path);
        return NULL;
    }
    b->fd = -1;
    if (snprintf(b->path, sizeof b->path, "%s", path) >= (int)sizeof b->path) {
        error_set(err, ERR_USAGE, "the path '%.200s...' is too long", path);
        free(b);
        return NULL;
    }
    return b;
}

/* Free what was half made; returns NULL. */
static struct board *board_drop(struct board *b)
{
    board_free(b);
    return NULL;
}

/* ---- the trainer */
static bool board_make(struct board *b, int64_t version, struct error *err)
{
    b->fd = file_create(b->path, O_RDWR | O_TRUNC, 0600, err);    // a process that has joined an earlier trainer's board keeps that file
    b->writes = b->fd >= 0;
    if (b->fd < 0)
        return false;
    if (ftruncate(b->fd, sizeof *b->s) != 0)
        return error_errno(err, "cannot make '%s'", b->path);
    if (!board_map(b, err))
        return false;
    if (!lock_take(b, 0))
        return error_errno(err, "cannot lock '%s'", b->path);
    atomic_store(&b->s->version, version);
    b->s->magic = BOARD_MAGIC;
    return true;
}

struct board *board_new(const char *path, int64_t version, struct error *err)
{
    struct board *b = board_alloc(path, err);
    return b && !board_make(b, version, err) ? board_drop(b) : b;
}

static int busy_count(const struct board *b)
{
    int n = 0;
    for (int i = 0; i < BOARD_READERS; i++)
        n += atomic_load(&b->s->busy[i]) && lock_lives(b, 1 + i);
    return n;
}

bool board_has_readers(const struct board *b)
{
    for (int i = 0; i < BOARD_READERS; i++)
        if (lock_lives(b, 1 + i))
            return true;
    return false;
}

int board_change(struct board *b, int64_t limit_ms)
{
    int64_t end = clock_ms() + limit_ms;
    int n = 0;
    if (b->changing)
        return 0;
    b->changing = true;
    atomic_store(&b->s->wanted, 1);
    for (;;) {
        uint32_t seen = atomic_load(&b->s->let_go);
        int64_t left = end - clock_ms();
        n = busy_count(b);
        if (n == 0 || left <= 0)
            break;
        word_wait(&b->s->let_go, seen, MIN(left, (int64_t)LOOK_MS));    // one that dies does not call
    }
    atomic_fetch_add(&b->s->writing, 1);
    return n;
}

void board_changed(struct board *b, int64_t version)
{
    if (!b->changing)
        return;
    b->changing = false;
    atomic_store(&b->s->version, version);
    atomic_fetch_add(&b->s->writing, 1);
    atomic_store(&b->s->wanted, 0);
    word_call(&b->s->wanted);
}

/* ---- a server */
static bool board_enter(struct board *b, struct error *err)
{
    b->fd = open(b->path, O_RDWR | O_CLOEXEC);
    if (b->fd < 0)
        return error_errno(err, "cannot open '%s'", b->path);
    if (!board_map(b, err))
        return false;
    if (!board_lives(b))
        return error_set(err, ERR_NOT_FOUND, "the trainer that made '%s' has gone", b->path);
    if (b->s->magic != BOARD_MAGIC)
        return error_set(err, ERR_DATA, "'%s' is no board of a trainer", b->path);
    while (b->place < BOARD_READERS && !lock_take(b, 1 + b->place))
        b->place++;
    if (b->place == BOARD_READERS)
        return error_set(err, ERR_FULL, "%d servers compute with the weights of '%s' already", BOARD_READERS, b->path);
    atomic_store(&b->s->busy[b->place], 0);    // of one that has died
    return true;
}

struct board *board_join(const char *path, struct error *err)
{
    struct board *b = board_alloc(path, err);
    return b && !board_enter(b, err) ? board_drop(b) : b;
}

bool board_lives(const struct board *b)
{
    return lock_lives(b, 0);
}

bool board_wanted(const struct board *b)
{
    return atomic_load(&b->s->wanted);
}

bool board_is_held(const struct board *b)
{
    return b->held;
}

bool board_clean(const struct board *b)
{
    return atomic_load(&b->s->writing) == b->writing;
}

int64_t board_version(const struct board *b)
{
    return atomic_load(&b->s->version);
}

static void let_go(struct board *b)
{
    atomic_store(&b->s->busy[b->place], 0);
    atomic_fetch_add(&b->s->let_go, 1);
    word_call(&b->s->let_go);
}

enum board_turn board_hold(struct board *b, int64_t wait_ms)
{
    int64_t end = clock_ms() + wait_ms;
    for (;;) {
        if (!board_lives(b)) {
            board_release(b);
            return BOARD_GONE;
        }
        if (b->held)
            return BOARD_HELD;
        atomic_store(&b->s->busy[b->place], 1);
        uint32_t writing = atomic_load(&b->s->writing);
        if (!board_wanted(b) && writing % 2 == 0) {
            b->writing = writing;
            b->held = true;
            return BOARD_HELD;
        }
        let_go(b);
        int64_t left = end - clock_ms();
        if (left <= 0)
            return BOARD_LATER;
        word_wait(&b->s->wanted, 1, MIN(left, (int64_t)LOOK_MS));
    }
}

void board_release(struct board *b)
{
    if (!b->held)
        return;
    b->held = false;
    let_go(b);
}

void board_free(struct board *b)
{
    if (!b)
        return;
    if (b->s && !b->writes)
        board_release(b);
    if (b->writes)
        unlink(b->path);
    if (b->s)
        munmap(b->s, sizeof *b->s);
    if (b->fd >= 0)
        close(b->fd);    // and with it the lock
    free(b);
}
