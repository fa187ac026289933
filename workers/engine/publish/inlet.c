/* One lock guards what both threads see; the group belongs to the inlet's thread. A version is taken in one of three ways, told
 * to the device's thread by the state of its want:
 *   asked -> staged     it is in the staging buffer: copy it            (way nccl, received before it was wanted)
 *   asked -> direct -> done   it is received straight into the weights    (way nccl, wanted before it was sent)
 *   asked -> slot       copy it from the outlet's memory, then say so   (way copy, slices, or too long alone)
 * and failed, with the reason, from anywhere. The tensors' hashes come before what they belong to (SLOT, SENT); the device's thread
 * compares them with what is in the weights at the end. */
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
#include "protocol/base/hold.h"
#include "protocol/base/log.h"
#include "protocol/base/thread.h"

#define CONNECT_MS 100    // between two looks for an outlet
#define LIMIT_MS 60000    // of the outlet
#define SPIN_MS 200
#define MAPPED_MAX EXTENT_PART_MAX       // of each device
#define PLACES_MAX ((int64_t)1 << 20)    // areas of a version
#define ANNOUNCED_MAX 4                  // the outlet begins one broadcast when its end of the last is over: 2

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
    bool sent;       // ... and that has left it, with these hashes; small ones have before we begin
    bool dropped;    // the outlet has forgotten it since: it counts no more
    uint64_t bucket_bytes;
    uint64_t *hash;    // (bundle.n) owned
};
struct mapped {
    struct mem_handle handle;
    void *mem;
    size_t size_bytes;
};
struct offered {          // where a version lies in the trainers' memory; the parts' mem is not used
    struct extent *at;    // (room) owned
    int64_t n, room;
    struct extent_part part[EXTENT_PART_MAX];
    int n_part;
};
struct inlet {
    struct inlet_config config;
    struct device *dev[PLACE_MAX];
    char dir[4096], name[64];
    bool copies;      // it takes no part in broadcasts
    void *staging;    // (bundle.size_bytes) device; NULL: config.staged is false, or it copies
    struct hasher *hasher;
    uint64_t *hashes;    // memory of all hashes below; owned
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
    uint64_t *want_hash;    // (bundle.n)
    struct offered slot;
    bool slot_once;
    struct error want_err;
    int64_t staged;           // -1: nothing
    uint64_t *staged_hash;    // (bundle.n)
    bool copying;             // the device's thread copies out of staging
    bool quit;
    /* the thread's own */
    struct comm *comm;
    enum group group;
    int64_t group_ms;
    struct announced announced[ANNOUNCED_MAX];    // (n_announced) oldest first; [0] is received when the group is receiving
    int n_announced;
    bool direct;                    // into the weights themselves
    uint64_t *come;                 // (bundle.n) what has come for the next SLOT or SENT
    struct offered come_offered;    // likewise, for the next SLOT
    union wire_list *packet;        // owned
    /* the device's thread's own: slots of this connection, as each device sees them */
    struct mapped mapped[PLACE_MAX][MAPPED_MAX];
    int n_mapped;
    int64_t mapped_connection;
};

static void wake(struct inlet *in)
{
    uint64_t one = 1;
    ssize_t n = write(in->wake_fd, &one, sizeof one);
    (void)n;
}

static size_t hash_bytes(const struct inlet *in)
{
    return (size_t)in->config.bundle->n * sizeof(uint64_t);
}

/* With the lock. hash: of the version's tensors. */
static void want_end(struct inlet *in, enum want state, const uint64_t *hash)
{
    in->want = state;
    if (hash)
        memcpy(in->want_hash, hash, hash_bytes(in));
    pthread_cond_broadcast(&in->changed);
}

static void want_fail(struct inlet *in, enum error_code code, const char *why)
{
    if (in->want != WANT_ASKED && in->want != WANT_DIRECT)
        return;
    error_set(&in->want_err, code, "%s", why);
    want_end(in, WANT_FAILED, NULL);
}

static void say(struct inlet *in, struct wire w)
{
    w.size_bytes = in->config.bundle->size_bytes;
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
    in->comm = comm_new(in->dev[0], &w->id, w->n_rank, w->rank, &err);
    if (!in->comm) {    // the outlet may have given this group up before we could join it: another one is built with us
        connection_close(in, err.text, true);
        return;
    }
    in->group = GROUP_JOINING;
    in->group_ms = clock_ms();
}

/* Begin to receive what was announced, once it is wanted or the staging buffer is free. */
static void receive_begin(struct inlet *in)
{
    struct error err = { 0 };
    struct comm_broadcast b = { .size_bytes = in->config.bundle->size_bytes, .bucket_bytes = in->announced[0].bucket_bytes };
    pthread_mutex_lock(&in->lock);
    in->direct = in->want == WANT_ASKED && in->want_version == in->announced[0].version;
    // staged: it has been told to copy, and has not begun
    if (!in->direct && (!in->staging || in->copying || in->want == WANT_STAGED)) {
        bool never = !in->staging && in->announced[0].dropped;
        pthread_mutex_unlock(&in->lock);
        if (never)
            connection_close(in, "a broadcast comes too late, and there is no room for it", true);
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
    struct announced a = in->announced[0];
    pthread_mutex_lock(&in->lock);
    if (a.dropped && in->direct) {
        want_fail(in, ERR_CLOSED, "the trainer has gone back to an earlier step");
    } else if (in->direct) {
        want_end(in, WANT_DONE, a.hash);
    } else if (!a.dropped) {
        in->staged = a.version;
        memcpy(in->staged_hash, a.hash, hash_bytes(in));
        if (in->want == WANT_ASKED && in->want_version == a.version)
            want_end(in, WANT_STAGED, a.hash);
    }
    say(in, (struct wire){ .kind = WIRE_TOOK, .version = a.dropped ? -1 : a.version });
    pthread_mutex_unlock(&in->lock);
    in->group = GROUP_READY;
    in->direct = false;
    memmove(in->announced, in->announced + 1, (ANNOUNCED_MAX - 1) * sizeof a);
    in->announced[ANNOUNCED_MAX - 1] = (struct announced){ .hash = a.hash };
    in->n_announced--;
}

/* Longer than the outlet's own limit, so that the outlet gives up first and says so. */
static int64_t group_limit_ms(const struct inlet *in)
{
    return (in->config.limit_ms > 0 ? in->config.limit_ms : LIMIT_MS) * 5 / 2;
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
        if (s == COMM_BUSY && clock_ms() - in->group_ms > group_limit_ms(in)) {
            error_set(&err, ERR_TIMEOUT, "%s has taken %d s", in->group == GROUP_JOINING ? "joining the group" : "a broadcast",
                      (int)(group_limit_ms(in) / 1000));
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

/* False: they do not follow what has come, or there are too many. */
static bool places_come(struct inlet *in, const struct wire *w)
{
    struct offered *o = &in->come_offered;
    if (w->first != o->n || w->n > PLACES_MAX - o->n)
        return false;
    if (o->n + w->n > o->room) {
        int64_t room = MAX(2 * o->room, o->n + w->n);
        struct extent *at = realloc(o->at, (size_t)room * sizeof *at);
        if (!at)
            return false;
        o->at = at;
        o->room = room;
    }
    memcpy(o->at + o->n, in->packet->place, (size_t)w->n * sizeof *o->at);
    o->n += w->n;
    return true;
}

/* With the lock: the version lies where the messages before this one say. */
static void slot_came(struct inlet *in, const struct wire *w)
{
    const struct offered *come = &in->come_offered;
    bool whole = extents_are_whole(in->config.bundle, &(struct extents){ come->n, come->at, come->n_part, come->part });
    if (whole && in->want == WANT_ASKED && in->want_version == w->version) {
        struct offered free_now = in->slot;
        in->slot = in->come_offered;
        in->come_offered = free_now;
        in->slot_once = w->once;
        want_end(in, WANT_SLOT, in->come);
    } else {
        say(in, (struct wire){ .kind = WIRE_TOOK, .version = -1 });    // not wanted any more, or not a version
    }
    in->come_offered.n = in->come_offered.n_part = 0;
}

static void message_came(struct inlet *in, const struct wire *w)
{
    char text[96];
    switch (w->kind) {
    case WIRE_JOIN: group_join(in, w); return;
    case WIRE_SEND:
        if (in->n_announced == ANNOUNCED_MAX)
            break;
        in->announced[in->n_announced] = (struct announced){ .version = w->version,
                                                             .bucket_bytes = w->bucket_bytes,
                                                             .hash = in->announced[in->n_announced].hash };
        in->n_announced++;
        return;
    case WIRE_HASHES:
        if (w->n > in->config.bundle->n || w->first > in->config.bundle->n - w->n)
            break;
        memcpy(in->come + w->first, in->packet->hash, (size_t)w->n * sizeof *in->come);
        return;
    case WIRE_PART:
        if (w->first != in->come_offered.n_part || w->first == EXTENT_PART_MAX)
            break;
        in->come_offered.part[in->come_offered.n_part++] = (struct extent_part){ .size_bytes = w->size_bytes, .handle = w->handle };
        return;
    case WIRE_PLACES:
        if (!places_come(in, w))
            break;
        return;
    case WIRE_SENT:
        for (int i = 0; i < in->n_announced; i++)
            if (!in->announced[i].sent) {
                in->announced[i].sent = true;
                memcpy(in->announced[i].hash, in->come, hash_bytes(in));
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
        } else if (w->kind == WIRE_SLOT) {
            slot_came(in, w);
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
    struct wire hello = { .kind = WIRE_HELLO, .n = in->config.bundle->n, .copies = in->copies };
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
    while (in->fd >= 0 && (got = wire_receive(in->fd, &w, in->packet)) > 0)
        message_came(in, &w);
    if (got < 0 && in->fd >= 0)
        connection_end(in, "the trainer's process is gone");
}

static void *inlet_main(void *arg)
{
    struct inlet *in = arg;
    connect_try(in);
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

/* Places for the hashes of all versions that may be told of at a time. */
static bool hashes_new(struct inlet *in, struct error *err)
{
    uint64_t **all[] = { &in->want_hash, &in->staged_hash, &in->come };
    size_t n = (size_t)in->config.bundle->n;
    uint64_t *at = in->hashes = calloc(n * (ARRAY_SIZE(all) + ANNOUNCED_MAX), sizeof *at);
    if (!at || !(in->packet = malloc(sizeof *in->packet)))
        return error_set(err, ERR_NO_MEMORY, "no memory for hashes");
    for (size_t i = 0; i < ARRAY_SIZE(all); i++, at += n)
        *all[i] = at;
    for (int i = 0; i < ANNOUNCED_MAX; i++, at += n)
        in->announced[i].hash = at;
    return true;
}

struct inlet *inlet_new(const struct inlet_config *config, struct error *err)
{
    bool ok = false;
    struct inlet *in = calloc(1, sizeof *in);
    if (!in) {
        error_set(err, ERR_NO_MEMORY, "no memory for an inlet");
        return NULL;
    }
    BUG_IF(config->n_device < 1 || config->n_device > PLACE_MAX, "an inlet of %d devices", config->n_device);
    in->config = *config;
    memcpy(in->dev, config->dev, (size_t)config->n_device * sizeof(struct device *));
    in->config.dev = in->dev;
    in->copies = config->way == WAY_COPY || config->n_device > 1;
    snprintf(in->dir, sizeof in->dir, "%s", config->dir);
    snprintf(in->name, sizeof in->name, "%s", config->name);
    in->fd = in->wake_fd = -1;
    in->staged = -1;
    pthread_mutex_init(&in->lock, NULL);
    clock_cond_init(&in->changed);
    TRY(hashes_new(in, err));
    if (!in->copies) {
        TRY(comm_available(in->dev[0], err));
        TRY(!config->staged || (in->staging = mem_new(in->dev[0], config->bundle->size_bytes, "published weights", err)));
    }
    TRY(in->hasher = hasher_new(config->bundle, in->dev, config->n_device, err));
    if ((in->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || (errno = thread_start(&in->thread, inlet_main, in)) != 0) {
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

size_t inlet_bytes(const struct inlet *in)
{
    return in->staging ? in->config.bundle->size_bytes : 0;
}

static void unmap_all(struct inlet *in)
{
    struct error ignored;
    for (int q = in->config.n_device - 1; q >= 0; q--)
        for (int i = 0; i < in->n_mapped; i++)
            if (in->mapped[q][i].mem && device_enter(in->dev[q], &ignored))
                mem_share_close(in->dev[q], in->mapped[q][i].mem, in->mapped[q][i].size_bytes);
    memset(in->mapped, 0, sizeof in->mapped);
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
    mem_free(in->dev[0], in->staging);
    hasher_free(in->hasher);
    free(in->hashes);
    free(in->packet);
    free(in->slot.at);
    free(in->come_offered.at);
    pthread_mutex_destroy(&in->lock);
    pthread_cond_destroy(&in->changed);
    free(in);
}

/* The number of a part of memory among what is mapped; it is opened once per connection. -1: it is not there any more, or see err. */
static int part_map(struct inlet *in, const struct extent_part *part, struct error *err)
{
    int i = 0;
    while (i < in->n_mapped && memcmp(&in->mapped[0][i].handle, &part->handle, sizeof part->handle) != 0)
        i++;
    in->n_mapped = MAX(in->n_mapped, i + 1);
    for (int q = in->config.n_device - 1; q >= 0; q--) {
        struct mapped *m = &in->mapped[q][i];
        m->handle = part->handle;
        m->size_bytes = part->size_bytes;
        if (!m->mem && (!device_enter(in->dev[q], err) || !(m->mem = mem_share_open(in->dev[q], &part->handle, part->size_bytes, err))))
            return -1;
    }
    return i;
}

/* Where each of this process's devices sees the slot's parts, into part, by device. ERR_CLOSED: the memory of one has gone. */
static bool slot_map(struct inlet *in, int64_t connection, struct extent_part (*part)[EXTENT_PART_MAX], struct error *err)
{
    const struct offered *slot = &in->slot;
    if (in->mapped_connection != connection || in->n_mapped + slot->n_part > MAPPED_MAX)
        unmap_all(in);
    in->mapped_connection = connection;
    for (int k = 0; k < slot->n_part; k++) {
        int i = part_map(in, &slot->part[k], err);
        if (i < 0) {
            if (err->code != ERR_UNSUPPORTED)    // whose memory it is has gone, and all trainers begin again
                err->code = ERR_CLOSED;
            return false;
        }
        for (int q = 0; q < in->config.n_device; q++) {
            part[q][k] = slot->part[k];
            part[q][k].mem = in->mapped[q][i].mem;
        }
    }
    return true;
}

/* *lost: its memory is not there. */
static bool slot_copy(struct inlet *in, int64_t connection, const struct places *places, bool *lost, struct error *err)
{
    struct extent_part part[PLACE_MAX][EXTENT_PART_MAX];
    struct extents src[PLACE_MAX];
    for (int q = 0; q < PLACE_MAX; q++)
        src[q] = (struct extents){ in->slot.n, in->slot.at, in->slot.n_part, part[q] };
    bool ok = slot_map(in, connection, part, err);
    *lost = !ok && err->code == ERR_CLOSED;
    ok = ok && places_fill(in->config.bundle, places, src, err) && places_sync(places, err);
    if (in->slot_once || !ok)
        unmap_all(in);
    return ok;
}

/* With the lock: wait until the want has an answer. False: the limit is over, and nothing writes to its memory any more. */
static bool want_wait(struct inlet *in, int64_t limit_ms)
{
    struct timespec end = clock_after(limit_ms);
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

bool inlet_take(struct inlet *in, const struct places *places, int64_t version, int64_t limit_ms, uint64_t *hash, struct error *err)
{
    struct device *dev = in->dev[0];
    if (!places_sync(places, err))    // nothing reads the weights from here on
        return false;
    pthread_mutex_lock(&in->lock);
    if (in->staged == version) {
        want_end(in, WANT_STAGED, in->staged_hash);
    } else {
        in->want = WANT_ASKED;
        in->want_version = version;
        in->want_dst = places->at[0].mem;
        say(in, (struct wire){ .kind = WIRE_WANT, .version = version });
    }
    bool ok = want_wait(in, limit_ms)
              || error_set(err, ERR_TIMEOUT, "version %" PRId64 " has not arrived from the trainer in %" PRId64 " s%s",
                           version_step(version), limit_ms / 1000, in->fd < 0 ? ": its process is gone" : "");
    enum want state = in->want;
    int64_t connection = in->connection;
    in->want = WANT_NOTHING;
    in->copying = state == WANT_STAGED;
    if (state == WANT_FAILED) {
        *err = in->want_err;
        ok = false;
    }
    pthread_mutex_unlock(&in->lock);
    if (!ok)
        return false;
    bool lost = false;
    if (state == WANT_STAGED)
        ok = mem_copy(dev, places->at[0].mem, in->staging, in->config.bundle->size_bytes, COPY_D2D, err) && device_sync(dev, err);
    else if (state == WANT_SLOT)
        ok = slot_copy(in, connection, places, &lost, err);
    hold_point("taken");    // the bytes are here, and nobody has said so
    bool right = ok && bundle_check(in->hasher, places, in->want_hash, version_step(version), err);
    *hash = bundle_hash_join(in->want_hash, in->config.bundle->n);
    pthread_mutex_lock(&in->lock);
    in->copying = false;
    if (state == WANT_STAGED && !right && in->staged == version)
        in->staged = -1;    // it is to be sent again
    if (state == WANT_SLOT && in->connection == connection)
        say(in, (struct wire){ .kind = WIRE_TOOK, .version = right ? version : -1, .lost = lost });
    pthread_mutex_unlock(&in->lock);
    if (state == WANT_STAGED)
        wake(in);    // the next broadcast may be waiting for the staging buffer
    return right;
}
