/* One lock guards what both threads see; the group belongs to the inlet's thread. A version is taken in one of three ways, told
 * to the device's thread by the state of its want:
 *   asked -> staged     it is in the staging buffer: copy it            (way nccl, received before it was wanted)
 *   asked -> direct -> done   it is received straight into the weights    (way nccl, wanted before it was sent)
 *   asked -> slot       copy it from the outlet's memory, then say so   (way copy)
 * and failed, with the reason, from anywhere. A broadcast counts when what has arrived and the outlet's SENT have one hash. */
#include "workers/engine/publish/inlet.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"

#define CONNECT_MS 100           // between two looks for an outlet
#define GROUP_LIMIT_MS 150000    // longer than the outlet's own limit, so that the outlet gives up first and says so
#define SPIN_MS 200
#define MAPPED_MAX 16
#define ANNOUNCED_MAX 4    // the outlet begins one broadcast when its end of the last is over: 2

enum want {
    WANT_NOTHING,
    WANT_ASKED,
    WANT_DIRECT,
    WANT_STAGED,
    WANT_SLOT,
    WANT_DONE,
    WANT_FAILED,
};
enum group {
    GROUP_NONE,
    GROUP_JOINING,
    GROUP_READY,
    GROUP_RECEIVING,
    GROUP_RECEIVED,
};
struct announced {    // a broadcast that the outlet has announced
    int64_t version;
    bool sent;       // ... and that has left it, with this hash; small ones have before we begin
    bool dropped;    // the outlet has forgotten it since: it counts no more
    uint64_t hash, bucket_bytes;
};
struct mapped {
    struct mem_handle handle;
    const void *mem;
};
struct inlet {
    struct inlet_config config;
    char dir[4096], name[64];
    void *staging;     // (size_bytes) device; way nccl
    uint64_t *hash;    // (1) device
    int wake_fd;
    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;    // guards: fd's writing, want*, staged*, copying, quit, connection
    pthread_cond_t changed;
    int fd;                // -1: not connected
    int64_t connection;    // counts them
    enum want want;
    int64_t want_version;
    void *want_dst;
    bool want_cancelled;    // the device's thread has waited long enough
    uint64_t want_hash;
    struct mem_handle slot;
    struct error want_err;
    int64_t staged;    // -1: nothing
    uint64_t staged_hash;
    bool copying;    // the device's thread copies out of staging
    bool quit;
    /* the thread's own */
    struct comm *comm;
    enum group group;
    int64_t group_ms;
    struct announced announced[ANNOUNCED_MAX];    // (n_announced) oldest first; [0] is received when the group is receiving
    int n_announced;
    bool direct;    // into the weights themselves
    /* the device's thread's own: slots of this connection */
    struct mapped mapped[MAPPED_MAX];
    int n_mapped;
    int64_t mapped_connection;
};

static void wake(struct inlet *in)
{
    uint64_t one = 1;
    ssize_t n = write(in->wake_fd, &one, sizeof one);
    (void)n;
}

/* With the lock. */
static void want_end(struct inlet *in, enum want state, uint64_t hash)
{
    in->want = state;
    in->want_hash = hash;
    pthread_cond_broadcast(&in->changed);
}

static void want_fail(struct inlet *in, enum error_code code, const char *why)
{
    if (in->want != WANT_ASKED && in->want != WANT_DIRECT)
        return;
    error_set(&in->want_err, code, "%s", why);
    want_end(in, WANT_FAILED, 0);
}

static void say(struct inlet *in, struct wire w)
{
    w.size_bytes = in->config.size_bytes;
    if (in->fd >= 0)
        (void)wire_send(in->fd, w);    // a dead peer is noticed when reading
}

/* ---- the group (the thread) ---- */

static void group_end(struct inlet *in)
{
    comm_free(in->comm);
    in->comm = NULL;
    in->group = GROUP_NONE;
    in->n_announced = 0;
    in->direct = false;
}

/* wait_on: a version that is asked for is asked for again at the next connection. */
static void connection_close(struct inlet *in, const char *why, bool wait_on)
{
    group_end(in);
    pthread_mutex_lock(&in->lock);
    if (in->fd >= 0) {
        log_info("weights: %s", why);
        close(in->fd);
    }
    in->fd = -1;
    in->staged = -1;    // after a restart the trainer may share something else
    if (!wait_on)
        want_fail(in, ERR_CLOSED, why);
    pthread_mutex_unlock(&in->lock);
}

static void connection_end(struct inlet *in, const char *why)
{
    connection_close(in, why, false);
}

static void group_join(struct inlet *in, const struct wire *w)
{
    struct error err = { 0 };
    bool was_direct = in->direct;
    group_end(in);
    pthread_mutex_lock(&in->lock);
    if (was_direct && in->want == WANT_DIRECT)    // cut off in the middle: it is sent again
        in->want = WANT_ASKED;
    pthread_mutex_unlock(&in->lock);
    in->comm = comm_new(in->config.dev, &w->id, w->n_rank, w->rank, &err);
    if (!in->comm) {    // the outlet may have given this group up before we could join it: another one is built with us
        connection_close(in, err.text, true);
        return;
    }
    in->group = GROUP_JOINING;
    in->group_ms = clock_ms();
}

/* Begin to receive what was announced, once the staging buffer is free. */
static void receive_begin(struct inlet *in)
{
    struct error err = { 0 };
    struct comm_broadcast b = { .size_bytes = in->config.size_bytes, .bucket_bytes = in->announced[0].bucket_bytes };
    pthread_mutex_lock(&in->lock);
    in->direct = in->want == WANT_ASKED && in->want_version == in->announced[0].version;
    if (!in->direct && (in->copying || in->want == WANT_STAGED)) {    // the latter: it has been told to copy, and has not begun
        pthread_mutex_unlock(&in->lock);
        return;
    }
    if (in->direct)
        in->want = WANT_DIRECT;
    else
        in->staged = -1;
    b.buf = in->direct ? in->want_dst : in->staging;
    pthread_mutex_unlock(&in->lock);
    in->group = GROUP_RECEIVING;
    in->group_ms = clock_ms();
    if (!comm_broadcast(in->comm, &b, &err))
        connection_end(in, err.text);
}

/* It has arrived and the outlet has said what it sent. */
static void receive_end(struct inlet *in)
{
    uint64_t hash = comm_hash(in->comm);
    const struct announced a = in->announced[0];
    bool counts = !a.dropped, right = counts && a.hash == hash;
    pthread_mutex_lock(&in->lock);
    if (counts && !right) {
        char text[160];
        snprintf(text, sizeof text, "version %" PRId64 " arrived with hash %016" PRIx64 " and was sent with %016" PRIx64,
                 version_step(a.version), hash, a.hash);
        log_error("weights: %s", text);
        want_fail(in, ERR_DATA, text);
    } else if (!counts && in->direct) {
        want_fail(in, ERR_CLOSED, "the trainer has gone back to an earlier step");
    } else if (right && in->direct) {
        want_end(in, WANT_DONE, hash);
    } else if (right) {
        in->staged = a.version;
        in->staged_hash = hash;
        if (in->want == WANT_ASKED && in->want_version == a.version)
            want_end(in, WANT_STAGED, hash);
    }
    say(in, (struct wire){ .kind = WIRE_TOOK, .version = right ? a.version : -1 });
    pthread_mutex_unlock(&in->lock);
    in->group = GROUP_READY;
    in->direct = false;
    memmove(in->announced, in->announced + 1, (size_t)--in->n_announced * sizeof a);
}

static void group_tick(struct inlet *in)
{
    struct error err = { 0 };
    if (in->group == GROUP_NONE)
        return;
    pthread_mutex_lock(&in->lock);
    bool cancelled = in->want_cancelled && in->want == WANT_DIRECT;
    pthread_mutex_unlock(&in->lock);
    if (cancelled) {
        connection_end(in, "waiting for a version has taken too long");
        return;
    }
    if (in->group == GROUP_JOINING || in->group == GROUP_RECEIVING) {
        enum comm_state s = comm_poll(in->comm, &err);
        if (s == COMM_BUSY && clock_ms() - in->group_ms > GROUP_LIMIT_MS) {
            error_set(&err, ERR_TIMEOUT, "%s has taken %d s", in->group == GROUP_JOINING ? "joining the group" : "a broadcast",
                      GROUP_LIMIT_MS / 1000);
            s = COMM_FAILED;
        }
        if (s == COMM_FAILED) {
            connection_end(in, err.text);
            return;
        }
        if (s == COMM_READY)
            in->group = in->group == GROUP_JOINING ? GROUP_READY : GROUP_RECEIVED;
    }
    if (in->group == GROUP_RECEIVED && in->announced[0].sent)
        receive_end(in);
    if (in->group == GROUP_READY && in->n_announced > 0)
        receive_begin(in);
}

/* ---- the connection (the thread) ---- */

static void message_came(struct inlet *in, const struct wire *w)
{
    char text[96];
    switch (w->kind) {
    case WIRE_JOIN: group_join(in, w); return;
    case WIRE_SEND:
        if (in->n_announced == ANNOUNCED_MAX)
            break;
        in->announced[in->n_announced++] = (struct announced){ .version = w->version, .bucket_bytes = w->bucket_bytes };
        return;
    case WIRE_SENT:
        for (int i = 0; i < in->n_announced; i++)
            if (!in->announced[i].sent) {
                in->announced[i].sent = true;
                in->announced[i].hash = w->hash;
                return;
            }
        break;
    case WIRE_SLOT:
    case WIRE_GONE:
    case WIRE_DROP:
        pthread_mutex_lock(&in->lock);
        if (w->kind == WIRE_DROP) {
            in->staged = -1;
            for (int i = 0; i < in->n_announced; i++)
                in->announced[i].dropped = true;
        } else if (in->want == WANT_ASKED && in->want_version == w->version && w->kind == WIRE_SLOT) {
            in->slot = w->handle;
            want_end(in, WANT_SLOT, w->hash);
        } else if (w->kind == WIRE_SLOT) {
            say(in, (struct wire){ .kind = WIRE_TOOK, .version = -1 });    // not wanted any more
        } else if (in->want_version == w->version) {
            snprintf(text, sizeof text, "the trainer has no version %" PRId64 " any more", version_step(w->version));
            want_fail(in, ERR_NOT_FOUND, text);
        }
        pthread_mutex_unlock(&in->lock);
        return;
    case WIRE_HELLO:
    case WIRE_WANT:
    case WIRE_TOOK: break;
    }
    connection_end(in, "the trainer's process sent a message that makes no sense here");
}

static void connect_try(struct inlet *in)
{
    int fd = wire_connect(in->dir);
    if (fd < 0)
        return;
    pthread_mutex_lock(&in->lock);
    struct wire hello = { .kind = WIRE_HELLO };
    snprintf(hello.name, sizeof hello.name, "%s", in->name);
    in->fd = fd;
    in->connection++;
    say(in, hello);
    if (in->want == WANT_ASKED)
        say(in, (struct wire){ .kind = WIRE_WANT, .version = in->want_version });
    pthread_mutex_unlock(&in->lock);
}

static void events_take(struct inlet *in)
{
    struct wire w;
    struct pollfd fd[2] = { { .fd = in->wake_fd, .events = POLLIN }, { .fd = in->fd, .events = POLLIN } };
    bool at_work = in->group == GROUP_JOINING || in->group == GROUP_RECEIVING || (in->group == GROUP_READY && in->n_announced > 0);
    bool spin = in->group == GROUP_RECEIVING && clock_ms() - in->group_ms < SPIN_MS;
    int n = poll(fd, 2, spin ? 0 : at_work ? 1 : in->fd < 0 ? CONNECT_MS : -1);
    uint64_t count;
    if (n > 0 && fd[0].revents && read(in->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
        log_warn("weights: cannot read the wake-up counter");
    if (in->fd < 0) {
        connect_try(in);
        return;
    }
    if (n <= 0 || !fd[1].revents)
        return;
    int got = 0;
    while (in->fd >= 0 && (got = wire_receive(in->fd, &w)) > 0)
        message_came(in, &w);
    if (got < 0 && in->fd >= 0)
        connection_end(in, "the trainer's process is gone");
}

static void *inlet_main(void *arg)
{
    struct inlet *in = arg;
    for (;;) {
        pthread_mutex_lock(&in->lock);
        bool quit = in->quit;
        pthread_mutex_unlock(&in->lock);
        if (quit)
            break;
        group_tick(in);
        events_take(in);
    }
    connection_end(in, "the inlet is closed");
    return NULL;
}

/* ---- the device's thread ---- */

struct inlet *inlet_new(const struct inlet_config *config, struct error *err)
{
    bool ok = false;
    struct inlet *in = calloc(1, sizeof *in);
    if (!in) {
        error_set(err, ERR_NO_MEMORY, "no memory for an inlet");
        return NULL;
    }
    pthread_condattr_t attr;
    in->config = *config;
    snprintf(in->dir, sizeof in->dir, "%s", config->dir);
    snprintf(in->name, sizeof in->name, "%s", config->name);
    in->fd = in->wake_fd = -1;
    in->staged = -1;
    pthread_mutex_init(&in->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&in->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (config->way == WAY_NCCL) {
        TRY(comm_available(config->dev, err));
        TRY(in->staging = mem_new(config->dev, config->size_bytes, "published weights", err));
    }
    TRY(in->hash = mem_new(config->dev, sizeof *in->hash, "a hash", err));
    if ((in->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || pthread_create(&in->thread, NULL, inlet_main, in) != 0) {
        error_errno(err, "cannot start the thread that receives weights");
        goto out;
    }
    in->thread_runs = ok = true;
out:
    if (!ok) {
        inlet_free(in);
        return NULL;
    }
    return in;
}

static void unmap_all(struct inlet *in)
{
    for (int i = 0; i < in->n_mapped; i++)
        mem_share_close(in->config.dev, in->mapped[i].mem, in->config.size_bytes);
    in->n_mapped = 0;
}

void inlet_free(struct inlet *in)
{
    if (!in)
        return;
    if (in->thread_runs) {
        pthread_mutex_lock(&in->lock);
        in->quit = true;
        pthread_mutex_unlock(&in->lock);
        wake(in);
        pthread_join(in->thread, NULL);
    }
    unmap_all(in);
    if (in->wake_fd >= 0)
        close(in->wake_fd);
    mem_free(in->config.dev, in->staging);
    mem_free(in->config.dev, in->hash);
    pthread_mutex_destroy(&in->lock);
    pthread_cond_destroy(&in->changed);
    free(in);
}

/* The outlet's slot as this process reads it; opened once per connection. */
static const void *slot_map(struct inlet *in, const struct mem_handle *h, int64_t connection, struct error *err)
{
    if (in->mapped_connection != connection || in->n_mapped == MAPPED_MAX)
        unmap_all(in);
    in->mapped_connection = connection;
    for (int i = 0; i < in->n_mapped; i++)
        if (memcmp(&in->mapped[i].handle, h, sizeof *h) == 0)
            return in->mapped[i].mem;
    const void *mem = mem_share_open(in->config.dev, h, in->config.size_bytes, err);
    if (mem)
        in->mapped[in->n_mapped++] = (struct mapped){ *h, mem };
    return mem;
}

static bool slot_copy(struct inlet *in, const struct mem_handle *h, int64_t connection, void *weights, int64_t version, uint64_t want,
                      struct error *err)
{
    struct device *dev = in->config.dev;
    uint64_t hash = 0;
    const void *mem = slot_map(in, h, connection, err);
    if (!mem || !mem_copy(dev, weights, mem, in->config.size_bytes, COPY_D2D, err)
        || !OP(dev, err, mem_hash, .hash = in->hash, .x = weights, .size_bytes = in->config.size_bytes)
        || !mem_copy(dev, &hash, in->hash, sizeof hash, COPY_D2H, err) || !device_sync(dev, err))
        return false;
    return hash == want
           || error_set(err, ERR_DATA, "version %" PRId64 " was copied with hash %016" PRIx64 " and shared with %016" PRIx64,
                        version_step(version), hash, want);
}

/* With the lock: wait until the want has an answer. False: the limit is over, and nothing writes to its memory any more. */
static bool want_wait(struct inlet *in, int64_t limit_ms)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += limit_ms / 1000;
    end.tv_nsec += limit_ms % 1000 * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    bool late = false;
    while ((in->want == WANT_ASKED || in->want == WANT_DIRECT) && !late)
        late = pthread_cond_timedwait(&in->changed, &in->lock, &end) != 0;
    in->want_cancelled = true;
    if (in->want == WANT_DIRECT)
        wake(in);
    while (in->want == WANT_DIRECT)    // the thread aborts the group
        pthread_cond_wait(&in->changed, &in->lock);
    in->want_cancelled = false;
    return in->want != WANT_ASKED;
}

bool inlet_take(struct inlet *in, void *weights, int64_t version, int64_t limit_ms, uint64_t *hash, struct error *err)
{
    struct device *dev = in->config.dev;
    if (!device_sync(dev, err))    // nothing reads the weights from here on
        return false;
    pthread_mutex_lock(&in->lock);
    if (in->staged == version) {
        want_end(in, WANT_STAGED, in->staged_hash);
    } else {
        in->want = WANT_ASKED;
        in->want_version = version;
        in->want_dst = weights;
        say(in, (struct wire){ .kind = WIRE_WANT, .version = version });
    }
    bool ok = want_wait(in, limit_ms)
              || error_set(err, ERR_TIMEOUT, "version %" PRId64 " has not arrived from the trainer in %" PRId64 " s%s",
                           version_step(version), limit_ms / 1000, in->fd < 0 ? ": its process is gone" : "");
    enum want state = in->want;
    int64_t connection = in->connection;
    in->want = WANT_NOTHING;
    in->copying = state == WANT_STAGED;
    *hash = in->want_hash;
    if (state == WANT_FAILED) {
        *err = in->want_err;
        ok = false;
    }
    pthread_mutex_unlock(&in->lock);
    if (!ok)
        return false;
    if (state == WANT_STAGED)
        ok = mem_copy(dev, weights, in->staging, in->config.size_bytes, COPY_D2D, err) && device_sync(dev, err);
    else if (state == WANT_SLOT)
        ok = slot_copy(in, &in->slot, connection, weights, version, *hash, err);
    pthread_mutex_lock(&in->lock);
    in->copying = false;
    if (state == WANT_SLOT && in->connection == connection)
        say(in, (struct wire){ .kind = WIRE_TOOK, .version = ok ? version : -1 });
    pthread_mutex_unlock(&in->lock);
    if (state == WANT_STAGED)
        wake(in);    // the next broadcast may be waiting for the staging buffer
    return ok;
}
