/* outlet.c - see outlet.h; the device's thread is here, the outlet's own in outlet_serve.c and outlet_group.c
 *
 * One lock guards slots and members' wants. The group (comm) belongs to the outlet's thread alone, which never holds the lock over
 * a call to it. What the thread does with a slot is counted in n_reader, and outlet_share waits until nobody reads the slot that it
 * fills.
 * The group: none -> building -> ready -> sending -> confirming -> ready, and from anywhere to none when a member goes or a limit
 * is over; a producer that comes is let in before the next sending. Confirming: all is sent, but not every member has said that it
 * has it, and nobody's group is taken from under it.
 * A share that finds producers connected is given to the thread, which copies bucket by bucket while it sends. When that fails, or
 * no producer is connected, the device's thread makes the copy itself. */
#include "workers/engine/publish/outlet.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "protocol/base/clock.h"
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

static int slot_oldest(const struct outlet *o)
{
    int oldest = 0;
    for (int i = 1; i < o->config.n_slot; i++)
        if (o->slot[i].version < o->slot[oldest].version)
            oldest = i;
    return oldest;
}

/* ---- the device's thread ---- */

struct outlet *outlet_new(const struct outlet_config *config, struct error *err)
{
    bool ok = false;
    struct outlet *o = calloc(1, sizeof *o);
    if (!o || config->n_slot < 1 || config->n_slot > OUTLET_SLOT_MAX) {
        error_set(err, o ? ERR_SHAPE : ERR_NO_MEMORY, "an outlet of %d slots; it has 1 to %d", config->n_slot, OUTLET_SLOT_MAX);
        free(o);
        return NULL;
    }
    o->config = *config;
    snprintf(o->dir, sizeof o->dir, "%s", config->dir);
    o->config.dir = o->dir;
    if (o->config.bucket_bytes == 0)
        o->config.bucket_bytes = MAX(config->dev->kind == DEVICE_CUDA ? BUCKET_CUDA : BUCKET_HOST,
                                     (config->size_bytes / COMM_BUCKET_MAX + 256) / 256 * 256);
    o->listen_fd = o->wake_fd = -1;
    o->look.version = -1;
    for (int i = 0; i < MEMBER_MAX; i++)
        o->member[i] = (struct member){ .fd = -1 };
    pthread_mutex_init(&o->lock, NULL);
    clock_cond_init(&o->changed);
    for (int i = 0; i < config->n_slot; i++) {
        o->slot[i].version = -1;
        TRY(o->slot[i].mem = mem_share_new(config->dev, config->size_bytes, "weights to be published", &o->slot[i].handle, err));
    }
    TRY(o->hash = mem_new(config->dev, sizeof *o->hash, "a hash", err));
    if (config->way == WAY_NCCL)
        TRY(comm_available(config->dev, err));
    TRY((o->listen_fd = wire_listen(config->dir, err)) >= 0);
    if ((o->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || pthread_create(&o->thread, NULL, outlet_main, o) != 0) {
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
    mem_free(o->config.dev, o->hash);
    for (int i = 0; i < o->config.n_slot; i++)
        mem_share_free(o->config.dev, o->slot[i].mem, o->config.size_bytes, &o->slot[i].handle);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->changed);
    free(o);
}

/* Wait, with the lock, until nobody reads the slot. */
static bool slot_wait(struct outlet *o, int slot, struct error *err)
{
    struct timespec end = clock_after(2 * outlet_limit_ms(o));    // a group that cannot be built is given up before
    while (o->slot[slot].n_reader > 0)
        if (pthread_cond_timedwait(&o->changed, &o->lock, &end) != 0 && o->slot[slot].n_reader > 0) {
            const char *who = "the group of producers";
            for (int i = 0; i < MEMBER_MAX; i++)
                if (o->member[i].fd >= 0 && o->member[i].reading == slot)
                    who = o->member[i].name;
            return error_set(err, ERR_TIMEOUT, "%s has been taking version %" PRId64 " for %" PRId64 " s", who,
                             version_step(o->slot[slot].version), 2 * outlet_limit_ms(o) / 1000);
        }
    return true;
}

/* With the lock: the outlet's thread copies and sends. True: the slot is full and the weights may change. */
static bool share_send(struct outlet *o, int slot, const void *weights, int64_t version)
{
    o->share = SHARE_ASKED;
    o->share_slot = slot;
    o->share_version = version;
    o->share_src = weights;
    wake(o);
    while (o->share == SHARE_ASKED || o->share == SHARE_RUNS)    // ends: each of the thread's own waits has a limit
        pthread_cond_wait(&o->changed, &o->lock);
    bool copied = o->share == SHARE_COPIED;
    o->share = SHARE_NONE;
    return copied;
}

bool outlet_share(struct outlet *o, const void *weights, int64_t version, struct error *err)
{
    bool ok, copied = false, some = false;
    uint64_t hash = 0;
    if (!device_sync(o->config.dev, err))
        return false;
    pthread_mutex_lock(&o->lock);
    if (outlet_slot_find(o, version) >= 0) {
        pthread_mutex_unlock(&o->lock);
        return true;
    }
    int slot = slot_oldest(o);
    ok = slot_wait(o, slot, err);
    if (ok) {
        o->slot[slot].version = -1;
        o->shared_ns = clock_ns();
        for (int i = 0; i < MEMBER_MAX; i++)
            some = some || (o->member[i].fd >= 0 && o->member[i].name[0]);
        copied = o->config.way == WAY_NCCL && some && share_send(o, slot, weights, version);
    }
    pthread_mutex_unlock(&o->lock);
    struct device *dev = o->config.dev;
    void *mem = o->slot[slot].mem;
    ok = ok && (copied || mem_copy(dev, mem, weights, o->config.size_bytes, COPY_D2D, err));
    if (ok && o->config.way == WAY_COPY)
        ok = OP(dev, err, mem_hash, .hash = o->hash, .x = mem, .size_bytes = o->config.size_bytes)
             && mem_copy(dev, &hash, o->hash, sizeof hash, COPY_D2H, err);
    ok = ok && (copied || device_sync(dev, err));
    if (!ok || copied)
        return ok;
    pthread_mutex_lock(&o->lock);
    o->slot[slot].version = version;
    o->slot[slot].hash = hash;
    if (o->config.way == WAY_COPY)
        o->look.hash = hash;
    pthread_mutex_unlock(&o->lock);
    wake(o);
    return true;
}

bool outlet_copy(struct outlet *o, void *dst, int64_t version, struct error *err)
{
    pthread_mutex_lock(&o->lock);
    int slot = outlet_slot_find(o, version);
    pthread_mutex_unlock(&o->lock);
    if (slot < 0)
        return error_set(err, ERR_NOT_FOUND, "version %" PRId64 " is not kept any more", version_step(version));
    return mem_copy(o->config.dev, dst, o->slot[slot].mem, o->config.size_bytes, COPY_D2D, err);
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
