/* outlet.c - see outlet.h; the device's thread is here, the outlet's own in outlet_serve.c and outlet_group.c
 *
 * One lock guards slots and members' wants. The group (comm) belongs to the outlet's thread alone, which never holds the lock over
 * a call to it. What the thread does with a slot is counted in n_reader, and outlet_share waits until nobody reads the slot that it
 * fills.
 * The group: none -> building -> ready -> sending -> confirming -> ready, and from anywhere to none when a member goes or a limit
 * is over; a producer that comes is let in before the next sending. Confirming: all is sent, but not every member has said that it
 * has it, and nobody's group is taken from under it.
 * A share that finds producers connected is given to the thread, which copies bucket by bucket while it sends. When that fails, or
 * no producer is connected, the device's thread makes the copy itself. It hashes the tensors meanwhile; nobody is told that a version has
 * been sent, or where it is, before that is done.
 * Without slots (in_place) there is one slot, whose memory is the trainer's weights: sharing only hashes them, and a reader is waited for
 * when the version is withdrawn. */
#include "workers/engine/publish/outlet.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/thread.h"
#include "workers/engine/publish/outlet_parts.h"

#define LIMIT_MS 60000
/* Two H200, NVLink, 2026-11: 15.2 GB take 44.1 ms in buckets of 512 MiB, 44.5 of 256 or 1024, against 41.2 bare; smaller ones spend
 * time waiting for each other to start. */
#define BUCKET_CUDA ((size_t)512 << 20)
#define BUCKET_HOST ((size_t)16 << 20)

int64_t outlet_limit_ms(const struct outlet *o)
{
    return o->config.limit_ms > 0 ? o->config.limit_ms : LIMIT_MS;
}

static void wake(struct outlet *o)
{
    uint64_t one = 1;
    ssize_t n = write(o->wake_fd, &one, sizeof one);
    (void)n;
}

/* ---- slots (under the lock) ---- */

int outlet_slot_find(const struct outlet *o, int64_t version)
{
    for (int i = 0; i < o->config.n_slot; i++)
        if (version >= 0 && o->slot[i].version == version)
            return i;
    return -1;
}

int64_t outlet_newest(const struct outlet *o)
{
    int64_t v = -1;
    for (int i = 0; i < o->config.n_slot; i++)
        v = MAX(v, o->slot[i].version);
    return v;
}

bool outlet_is_gone(const struct outlet *o, int64_t version)
{
    return version < outlet_newest(o) || version <= o->withdrawn;
}

bool outlet_is_scattered(const struct outlet *o)
{
    return o->in_place && o->slot[0].from.n > 1;
}

static int slot_oldest(const struct outlet *o)
{
    int oldest = 0;
    for (int i = 1; i < o->config.n_slot; i++)
        if (o->slot[i].version < o->slot[oldest].version)
            oldest = i;
    return oldest;
}

/* ---- the device's thread ---- */

static bool slot_new(struct device *dev, struct slot *s, size_t size, struct error *err)
{
    struct mem_handle h;
    void *mem = mem_share_new(dev, size, "weights to be published", &h, err);
    if (!mem)
        return false;
    s->from = extents_whole(&s->whole, &s->part, mem, size);
    s->part.handle = h;
    return OP(dev, err, mem_fill, .y = mem, .size_bytes = size);    // slices bring no gaps between tensors, which hold 0
}

struct outlet *outlet_new(const struct outlet_config *config, struct error *err)
{
    bool ok = false;
    if (config->n_slot < 0 || config->n_slot > OUTLET_SLOT_MAX) {
        error_set(err, ERR_SHAPE, "an outlet of %d slots; it has 0 to %d", config->n_slot, OUTLET_SLOT_MAX);
        return NULL;
    }
    struct outlet *o = calloc(1, sizeof *o);
    if (!o) {
        error_set(err, ERR_NO_MEMORY, "no memory for an outlet");
        return NULL;
    }
    size_t size = config->bundle->size_bytes;
    o->config = *config;
    o->in_place = config->n_slot == 0;
    o->config.n_slot = MAX(config->n_slot, 1);
    snprintf(o->dir, sizeof o->dir, "%s", config->dir);
    o->config.dir = o->dir;
    if (o->config.bucket_bytes == 0)
        o->config.bucket_bytes = MAX(config->dev->kind == DEVICE_CUDA ? BUCKET_CUDA : BUCKET_HOST,
                                     (size / COMM_BUCKET_MAX + 256) / 256 * 256);
    o->listen_fd = o->wake_fd = -1;
    o->look.version = o->withdrawn = -1;
    for (int i = 0; i < MEMBER_MAX; i++)
        o->member[i] = (struct member){ .fd = -1 };
    pthread_mutex_init(&o->lock, NULL);
    clock_cond_init(&o->changed);
    for (int i = 0; i < o->config.n_slot; i++) {
        struct slot *s = &o->slot[i];
        s->version = -1;
        if (!(s->hash = calloc((size_t)config->bundle->n, sizeof *s->hash))) {
            error_set(err, ERR_NO_MEMORY, "no memory for hashes");
            goto out;
        }
        TRY(o->in_place || slot_new(config->dev, s, size, err));
    }
    TRY(o->hasher = hasher_new(config->bundle, &config->dev, 1, err));
    if (config->way == WAY_NCCL)
        TRY(comm_available(config->dev, err));
    TRY((o->listen_fd = wire_listen(config->dir, err)) >= 0);
    if ((o->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || (errno = thread_start(&o->thread, outlet_main, o)) != 0) {
        error_errno(err, "cannot start the thread that publishes weights");
        goto out;
    }
    o->thread_runs = ok = true;
out:
    if (!ok) {
        outlet_free(o);
        return NULL;
    }
    return o;
}

void outlet_free(struct outlet *o)
{
    if (!o)
        return;
    if (o->thread_runs) {
        pthread_mutex_lock(&o->lock);
        o->quit = true;
        pthread_mutex_unlock(&o->lock);
        wake(o);
        pthread_join(o->thread, NULL);
    }
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].fd >= 0)
            close(o->member[i].fd);
    if (o->listen_fd >= 0)
        close(o->listen_fd);
    if (o->wake_fd >= 0)
        close(o->wake_fd);
    hasher_free(o->hasher);
    for (int i = 0; i < o->config.n_slot; i++) {
        if (!o->in_place && o->slot[i].part.mem)
            mem_share_free(o->config.dev, (void *)o->slot[i].part.mem, o->config.bundle->size_bytes, &o->slot[i].part.handle);
        free(o->slot[i].hash);
    }
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->changed);
    free(o);
}

/* Wait, with the lock, until nobody reads the slot, which has or had this version. */
static bool slot_wait(struct outlet *o, const struct slot *s, int64_t version, struct error *err)
{
    struct timespec end = clock_after(2 * outlet_limit_ms(o));    // a group that cannot be built is given up before
    while (s->n_reader > 0)
        if (pthread_cond_timedwait(&o->changed, &o->lock, &end) != 0 && s->n_reader > 0) {
            const char *who = "the group of producers";
            for (int i = 0; i < MEMBER_MAX; i++)
                if (o->member[i].fd >= 0 && o->member[i].reading == s - o->slot)
                    who = o->member[i].name;
            return error_set(err, ERR_TIMEOUT, "%s has been taking version %" PRId64 " for %" PRId64 " s", who, version_step(version),
                             2 * outlet_limit_ms(o) / 1000);
        }
    return true;
}

/* With the lock: the outlet's thread begins to copy and to send. */
static void share_send_begin(struct outlet *o, int slot, const void *weights, int64_t version)
{
    o->share = SHARE_ASKED;
    o->share_slot = slot;
    o->share_version = version;
    o->share_src = weights;
}

/* With the lock. True: the slot is full and the weights may change. */
static bool share_send_end(struct outlet *o)
{
    while (o->share == SHARE_ASKED || o->share == SHARE_RUNS)    // ends: each of the thread's own waits has a limit
        pthread_cond_wait(&o->changed, &o->lock);
    bool copied = o->share == SHARE_COPIED;
    o->share = SHARE_NONE;
    return copied;
}

/* The slot = what lies elsewhere. */
static bool slot_gather(struct outlet *o, struct slot *s, const struct extents *from, struct error *err)
{
    struct places to;
    places_of_whole(&to, o->config.dev, (void *)s->part.mem, o->config.bundle);
    return places_fill(o->config.bundle, &to, from, err) && device_sync(o->config.dev, err);
}

/* Fill a slot that has no version, and hash it. */
static bool slot_fill(struct outlet *o, struct slot *s, const struct extents *from, bool sends, struct error *err)
{
    bool copied = o->in_place || from->n > 1, ok = o->in_place || from->n == 1 || slot_gather(o, s, from, err);
    ok = ok && bundle_hash_extents(o->hasher, copied ? &s->from : from, s->hash, err);
    pthread_mutex_lock(&o->lock);
    s->hashed = true;    // should it have failed, what is sent with these numbers is not taken
    wake(o);
    if (sends)
        copied = share_send_end(o);
    if (!ok)
        s->version = -1;    // nobody takes what was sent; a second try sends it again
    pthread_mutex_unlock(&o->lock);
    return ok && (copied || slot_gather(o, s, from, err));
}

/* With the lock: the slot is where the weights are. */
static void slot_borrow(struct slot *s, const struct extents *from)
{
    s->from = *from;
    if (from->n > 1)
        return;
    s->whole = from->at[0];    // whose table need not outlive the call
    s->part = from->part[s->whole.part];
    s->whole.part = 0;
    s->from = (struct extents){ 1, &s->whole, 1, &s->part };
}

bool outlet_share_extents(struct outlet *o, const struct extents *from, int64_t version, struct error *err)
{
    bool some = false;
    if (!device_sync(o->config.dev, err))
        return false;
    pthread_mutex_lock(&o->lock);
    if (outlet_slot_find(o, version) >= 0) {
        pthread_mutex_unlock(&o->lock);
        return true;
    }
    struct slot *s = &o->slot[slot_oldest(o)];
    bool ok = slot_wait(o, s, s->version, err);
    if (ok) {
        s->version = -1;
        s->hashed = false;
        if (o->in_place)
            slot_borrow(s, from);
        o->shared_ns = clock_ns();
        for (int i = 0; i < MEMBER_MAX && !o->in_place && from->n == 1; i++)    // else it is sent from the slot
            some = some || member_is_sent(o, &o->member[i]);
        if (some)
            share_send_begin(o, (int)(s - o->slot), extent_mem(from, 0), version);
    }
    pthread_mutex_unlock(&o->lock);
    wake(o);
    if (!ok || !slot_fill(o, s, from, some, err))
        return false;
    pthread_mutex_lock(&o->lock);
    s->version = version;
    o->look.hash = bundle_hash_join(s->hash, o->config.bundle->n);
    pthread_mutex_unlock(&o->lock);
    wake(o);
    return true;
}

bool outlet_share(struct outlet *o, void *weights, const struct mem_handle *h, int64_t version, struct error *err)
{
    struct extent at;
    struct extent_part part;
    struct extents whole = extents_whole(&at, &part, weights, o->config.bundle->size_bytes);
    if (h)
        part.handle = *h;
    return outlet_share_extents(o, &whole, version, err);
}

bool outlet_withdraw(struct outlet *o, struct error *err)
{
    if (!o->in_place)
        return true;
    struct slot *s = &o->slot[0];
    pthread_mutex_lock(&o->lock);
    int64_t version = s->version;
    s->version = -1;    // nobody begins to read it
    o->withdrawn = MAX(o->withdrawn, version);
    bool ok = slot_wait(o, s, version, err);
    pthread_mutex_unlock(&o->lock);
    wake(o);    // somebody may want it still
    return ok;
}

bool outlet_copy(struct outlet *o, const struct places *places, int64_t version, struct error *err)
{
    struct extents src[PLACE_MAX];
    pthread_mutex_lock(&o->lock);
    int slot = outlet_slot_find(o, version);
    pthread_mutex_unlock(&o->lock);
    if (slot < 0)
        return error_set(err, ERR_NOT_FOUND, "version %" PRId64 " is not kept any more", version_step(version));
    for (int q = 0; q < PLACE_MAX; q++)
        src[q] = o->slot[slot].from;    // only this thread writes it
    return places_sync(places, err) && places_fill(o->config.bundle, places, src, err) && places_sync(places, err);
}

int outlet_versions(struct outlet *o, int64_t version[OUTLET_SLOT_MAX])
{
    int n = 0;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < o->config.n_slot; i++)
        if (o->slot[i].version >= 0)
            version[n++] = o->slot[i].version;
    pthread_mutex_unlock(&o->lock);
    return n;
}

void outlet_forget(struct outlet *o)
{
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < o->config.n_slot; i++)
        o->slot[i].version = -1;
    o->withdrawn = -1;
    o->drop = true;    // told before a broadcast that is under way is confirmed: what arrives does not count
    pthread_mutex_unlock(&o->lock);
    wake(o);
}

void outlet_look(struct outlet *o, struct outlet_look *out)
{
    pthread_mutex_lock(&o->lock);
    *out = o->look;
    out->n_member = out->n_waiting = 0;
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].fd >= 0 && o->member[i].name[0]) {
            out->n_member++;
            out->n_waiting += o->member[i].want > outlet_newest(o);
        }
    pthread_mutex_unlock(&o->lock);
}
