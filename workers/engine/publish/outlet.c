/* One lock guards slots and members' wants; the group (comm) belongs to the outlet's thread alone, which never holds the lock
 * over a call to it. What the thread does with a slot is counted in n_reader, and outlet_share waits until nobody reads the
 * slot that it fills. The group:  none -> building -> ready -> sending -> confirming -> ready, and from anywhere to none when a
 * member goes or a limit is over; who comes is let in before the next sending. Confirming: sent, but not every member has said that
 * it has it, so that nobody's group is taken from under it. A share that finds producers connected is given to the thread, which copies bucket by bucket while it
 * sends; when that fails, or nobody is there, the device's thread makes the copy itself. */
#include "workers/engine/publish/outlet.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"

#define MEMBER_MAX (COMM_RANK_MAX - 1)
#define LIMIT_MS 60000
/* Two H200, NVLink, 2026-11: 15.2 GB take 44.1 ms in buckets of 512 MiB, 44.5 of 256 or 1024, against 41.2 bare; smaller ones wait
 * for each other's beginnings. */
#define BUCKET_CUDA ((size_t)512 << 20)
#define BUCKET_HOST ((size_t)16 << 20)
#define SPIN_MS 200       // a broadcast is looked after without sleeping for so long
#define FAILURES_MAX 3    // of groups in a row, until everybody is sent away

struct slot {
    void *mem;
    struct mem_handle handle;
    int64_t version;    // -1: none
    uint64_t hash;      // way copy: of the whole
    int n_reader;
};
struct member {
    int fd;           // -1: free
    char name[64];    // "" : has not said it yet
    int64_t want;     // -1: nothing
    int64_t sent;     // newest version that it has been sent; -1: none
    int reading;      // the slot it copies from; -1: none
    int rank;         // in the group; 0: in none
    bool confirms;    // it has not said yet that it has what was sent
};
enum group {
    GROUP_NONE,
    GROUP_BUILDING,
    GROUP_READY,
    GROUP_SENDING,
    GROUP_CONFIRMING,
};
enum share {
    SHARE_NONE,
    SHARE_ASKED,
    SHARE_RUNS,
    SHARE_COPIED,
    SHARE_FAILED,
};
struct outlet {
    struct outlet_config config;
    char dir[4096];
    int listen_fd, wake_fd;
    uint64_t *hash;    // (1) device
    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;    // guards: slot, member, share*, look, drop, quit
    pthread_cond_t changed;
    struct slot slot[OUTLET_SLOT_MAX];
    struct member member[MEMBER_MAX];
    enum share share;
    int share_slot;
    int64_t share_version;
    const void *share_src;
    int64_t shared_ns;    // when the last share began
    struct outlet_look look;
    bool drop;    // members are to be told to forget
    bool quit;
    /* the thread's own */
    struct comm *comm;
    enum group group;
    bool stale;     // members have come or gone since it was built
    bool broken;    // one of the group has gone
    int send_slot, n_failed;
    int64_t send_version, group_ms, group_limit_ms;
};

static int64_t limit_ms(const struct outlet *o)
{
    return o->config.limit_ms > 0 ? o->config.limit_ms : LIMIT_MS;
}

static void wake(struct outlet *o)
{
    uint64_t one = 1;
    ssize_t n = write(o->wake_fd, &one, sizeof one);
    (void)n;
}

static struct timespec deadline(int64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* ---- slots (under the lock) ---- */

static int slot_find(const struct outlet *o, int64_t version)
{
    for (int i = 0; i < o->config.n_slot; i++)
        if (version >= 0 && o->slot[i].version == version)
            return i;
    return -1;
}

static int64_t newest(const struct outlet *o)
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

static void member_done(struct outlet *o, struct member *m, int64_t version)
{
    m->sent = version;
    if (m->want == version)
        m->want = -1;
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].fd >= 0 && o->member[i].name[0] && o->member[i].sent != version)
            return;
    o->look.version = version;
    o->look.ms = (double)(clock_ns() - o->shared_ns) / 1e6;
}

static void reading_end(struct outlet *o, struct member *m)
{
    if (m->reading >= 0) {
        o->slot[m->reading].n_reader--;
        m->reading = -1;
        pthread_cond_broadcast(&o->changed);
    }
}

static void member_close(struct outlet *o, struct member *m, const char *why)
{
    if (m->name[0])
        log_info("weights: %s %s", m->name, why);
    reading_end(o, m);
    close(m->fd);
    o->stale = o->stale || m->name[0];
    o->broken = o->broken || m->rank > 0;
    *m = (struct member){ .fd = -1, .want = -1, .sent = -1, .reading = -1 };
}

static void say(struct outlet *o, struct member *m, struct wire w)
{
    w.size_bytes = o->config.size_bytes;
    if (!wire_send(m->fd, w))
        member_close(o, m, "does not listen any more");
}

/* ---- the group (the thread, without the lock where it calls comm) ---- */

static void group_end(struct outlet *o)
{
    struct comm *c = o->comm;
    enum group was = o->group;
    o->comm = NULL;
    o->group = GROUP_NONE;
    o->broken = false;
    comm_free(c);
    pthread_mutex_lock(&o->lock);
    if (was == GROUP_SENDING)
        o->slot[o->send_slot].n_reader--;
    if (o->share == SHARE_RUNS || o->share == SHARE_ASKED)
        o->share = SHARE_FAILED;
    for (int i = 0; i < MEMBER_MAX; i++)
        o->member[i].rank = o->member[i].confirms = 0;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

static void group_fail(struct outlet *o, const char *why)
{
    log_warn("weights: the group is given up: %s", why);
    group_end(o);
    if (++o->n_failed < FAILURES_MAX)
        return;
    o->n_failed = 0;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].fd >= 0)
            member_close(o, &o->member[i], "is sent away: no group could be built with it");
    pthread_mutex_unlock(&o->lock);
}

static void group_build(struct outlet *o)
{
    struct error err = { 0 };
    struct comm_id id;
    int n = 1;
    group_end(o);
    o->stale = false;
    if (!comm_id_make(o->config.dev, &id, &err)) {
        group_fail(o, err.text);
        return;
    }
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].fd >= 0 && o->member[i].name[0])
            o->member[i].rank = n++;
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].rank)
            say(o, &o->member[i], (struct wire){ .kind = WIRE_JOIN, .rank = o->member[i].rank, .n_rank = n, .id = id });
    pthread_mutex_unlock(&o->lock);
    o->comm = comm_new(o->config.dev, &id, n, 0, &err);
    if (!o->comm) {
        group_fail(o, err.text);
        return;
    }
    o->group = GROUP_BUILDING;
    o->group_ms = clock_ms();
    o->group_limit_ms = limit_ms(o);
    log_info("weights: building a group of %d by %s", n, weights_way_name(o->config.way));
}

/* With the lock, before anything newer is sent: members forget what was shared before outlet_forget. */
static void drop_tell(struct outlet *o)
{
    if (!o->drop)
        return;
    o->drop = false;
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].fd >= 0) {
            o->member[i].sent = -1;
            say(o, &o->member[i], (struct wire){ .kind = WIRE_DROP });
        }
}

/* Begin to send slot, or the share that is asked for (slot -1). */
static void send_begin(struct outlet *o, int slot)
{
    struct error err = { 0 };
    struct comm_broadcast b = { .size_bytes = o->config.size_bytes, .bucket_bytes = o->config.bucket_bytes };
    pthread_mutex_lock(&o->lock);
    drop_tell(o);
    if (slot < 0) {
        if (o->share != SHARE_ASKED) {
            pthread_mutex_unlock(&o->lock);
            return;
        }
        o->share = SHARE_RUNS;
        slot = o->share_slot;
        b.src = o->share_src;
        o->send_version = o->share_version;
    } else {
        o->send_version = o->slot[slot].version;
    }
    b.buf = o->slot[slot].mem;
    o->slot[slot].n_reader++;
    o->send_slot = slot;
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].rank) {
            o->member[i].confirms = true;
            say(o, &o->member[i], (struct wire){ .kind = WIRE_SEND, .version = o->send_version, .bucket_bytes = b.bucket_bytes });
        }
    pthread_mutex_unlock(&o->lock);
    o->group = GROUP_SENDING;
    o->group_ms = clock_ms();
    if (!comm_broadcast(o->comm, &b, &err))
        group_fail(o, err.text);
}

static void send_end(struct outlet *o)
{
    uint64_t hash = comm_hash(o->comm);
    o->group = GROUP_CONFIRMING;
    pthread_mutex_lock(&o->lock);
    o->slot[o->send_slot].n_reader--;
    drop_tell(o);
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].rank)
            say(o, &o->member[i], (struct wire){ .kind = WIRE_SENT, .version = o->send_version, .hash = hash });
    o->look.hash = hash;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

/* Have all members what was sent? */
static bool all_confirmed(struct outlet *o)
{
    bool all = true;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MEMBER_MAX; i++)
        all = all && !o->member[i].confirms;
    pthread_mutex_unlock(&o->lock);
    return all;
}

static void group_tick(struct outlet *o)
{
    struct error err = { 0 };
    if (o->group == GROUP_NONE)
        return;
    if (o->broken) {
        log_info("weights: a member of the group has gone");
        group_end(o);
        return;
    }
    if (o->group == GROUP_READY)
        return;
    pthread_mutex_lock(&o->lock);
    bool copies = o->share == SHARE_RUNS;
    pthread_mutex_unlock(&o->lock);
    enum comm_state s = o->group != GROUP_CONFIRMING ? comm_poll(o->comm, &err) : all_confirmed(o) ? COMM_READY : COMM_BUSY;
    if (copies && s != COMM_FAILED && comm_copied(o->comm)) {
        pthread_mutex_lock(&o->lock);
        o->slot[o->send_slot].version = o->send_version;
        o->share = SHARE_COPIED;
        pthread_cond_broadcast(&o->changed);
        pthread_mutex_unlock(&o->lock);
    }
    if (s == COMM_FAILED) {
        group_fail(o, err.text);
    } else if (s == COMM_READY && o->group == GROUP_BUILDING) {
        o->group = GROUP_READY;
        pthread_mutex_lock(&o->lock);
        pthread_mutex_unlock(&o->lock);
        log_info("weights: the group stands after %" PRId64 " ms", clock_ms() - o->group_ms);
    } else if (s == COMM_READY && o->group == GROUP_SENDING) {
        send_end(o);
    } else if (s == COMM_READY) {
        o->group = GROUP_READY;
        o->n_failed = 0;
    } else if (clock_ms() - o->group_ms > o->group_limit_ms) {
        char text[200];
        snprintf(text, sizeof text, "%s has waited for all producers to take part for %" PRId64 " s",
                 o->group == GROUP_BUILDING ? "building it" : "a broadcast", o->group_limit_ms / 1000);
        group_fail(o, text);
    }
}

/* ---- serving ---- */

/* What has to be sent next: a slot, -1: the share asked for, -2: nothing. */
static int send_choose(struct outlet *o)
{
    int choice = -2;
    bool some = false;
    pthread_mutex_lock(&o->lock);
    int64_t last = newest(o);
    for (int i = 0; i < MEMBER_MAX; i++) {
        struct member *m = &o->member[i];
        if (m->fd < 0 || !m->name[0])
            continue;
        some = true;
        int slot = slot_find(o, m->want);
        if (slot >= 0) {
            choice = slot;
        } else if (m->want >= 0 && m->want < last) {
            int64_t gone = m->want;
            m->want = -1;
            say(o, m, (struct wire){ .kind = WIRE_GONE, .version = gone });
        } else if (choice == -2 && last >= 0 && m->sent < last) {
            choice = slot_find(o, last);
        }
    }
    if (o->share == SHARE_ASKED) {
        choice = some ? -1 : -2;
        if (!some) {
            o->share = SHARE_FAILED;    // nobody is there (any more): the other thread copies
            pthread_cond_broadcast(&o->changed);
        }
    }
    pthread_mutex_unlock(&o->lock);
    return choice;
}

/* True: there is something to be sent, or it is under way. */
static bool serve_group(struct outlet *o)
{
    int choice;
    if (o->group != GROUP_NONE && o->group != GROUP_READY)
        return true;
    if ((choice = send_choose(o)) == -2)
        return false;
    if (o->group == GROUP_NONE || o->stale)
        group_build(o);
    else
        send_begin(o, choice);
    return true;
}

static void serve_copies(struct outlet *o)
{
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MEMBER_MAX; i++) {
        struct member *m = &o->member[i];
        if (m->fd < 0 || m->want < 0 || m->reading >= 0)
            continue;
        int slot = slot_find(o, m->want);
        int64_t want = m->want;
        if (slot >= 0) {
            struct slot *s = &o->slot[slot];
            m->reading = slot;
            s->n_reader++;
            m->want = -1;
            say(o, m, (struct wire){ .kind = WIRE_SLOT, .version = want, .hash = s->hash, .handle = s->handle });
        } else if (want < newest(o)) {
            m->want = -1;
            say(o, m, (struct wire){ .kind = WIRE_GONE, .version = want });
        }
    }
    pthread_mutex_unlock(&o->lock);
}

/* ---- members (under the lock) ---- */

static void accept_all(struct outlet *o)
{
    int fd;
    while ((fd = accept4(o->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        int i = 0;
        while (i < MEMBER_MAX && o->member[i].fd >= 0)
            i++;
        if (i == MEMBER_MAX) {
            log_warn("weights: %d producers are connected already", MEMBER_MAX);
            close(fd);
            continue;
        }
        o->member[i] = (struct member){ .fd = fd, .want = -1, .sent = -1, .reading = -1 };
    }
}

static void member_read(struct outlet *o, struct member *m)
{
    struct wire w;
    int got = 0;
    while (m->fd >= 0 && (got = wire_receive(m->fd, &w)) > 0) {
        if (w.kind == WIRE_HELLO && w.size_bytes != o->config.size_bytes) {
            log_error("weights: '%s' has %" PRIu64 " bytes of weights, the trainer %zu", w.name, w.size_bytes, o->config.size_bytes);
            got = -1;
            break;
        }
        if (w.kind == WIRE_HELLO) {
            memcpy(m->name, w.name, sizeof m->name);
            o->stale = true;
            log_info("weights: %s is there", m->name);
        } else if (w.kind == WIRE_WANT) {
            m->want = w.version;
        } else if (w.kind == WIRE_TOOK) {
            reading_end(o, m);
            if (w.version >= 0)
                member_done(o, m, w.version);
            else if (m->confirms)    // it has arrived with another hash: it is sent again when it is wanted again
                m->sent = o->send_version, m->want = m->want == o->send_version ? -1 : m->want;
            m->confirms = false;
        }
    }
    if (got < 0 && m->fd >= 0)
        member_close(o, m, "has gone");
}

/* Wait for something to happen; while a group is at work only look, for a while without sleeping. */
static void events_take(struct outlet *o, bool at_work)
{
    struct pollfd fd[MEMBER_MAX + 2];
    struct member *whose[MEMBER_MAX + 2] = { NULL };
    int n = 2;
    fd[0] = (struct pollfd){ .fd = o->wake_fd, .events = POLLIN };
    fd[1] = (struct pollfd){ .fd = o->listen_fd, .events = POLLIN };
    pthread_mutex_lock(&o->lock);
    drop_tell(o);
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].fd >= 0) {
            whose[n] = &o->member[i];
            fd[n++] = (struct pollfd){ .fd = o->member[i].fd, .events = POLLIN };
        }
    pthread_mutex_unlock(&o->lock);
    bool spin = (o->group == GROUP_SENDING || o->group == GROUP_CONFIRMING) && clock_ms() - o->group_ms < SPIN_MS;
    if (poll(fd, (nfds_t)n, spin ? 0 : at_work ? 1 : -1) <= 0)
        return;
    uint64_t count;
    if (fd[0].revents && read(o->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
        log_warn("weights: cannot read the wake-up counter");
    pthread_mutex_lock(&o->lock);
    for (int i = 2; i < n; i++)
        if (fd[i].revents && whose[i]->fd >= 0)
            member_read(o, whose[i]);
    if (fd[1].revents)
        accept_all(o);
    pthread_mutex_unlock(&o->lock);
}

static void *outlet_main(void *arg)
{
    struct outlet *o = arg;
    for (;;) {
        pthread_mutex_lock(&o->lock);
        bool quit = o->quit;
        pthread_mutex_unlock(&o->lock);
        if (quit)
            break;
        bool at_work = false;
        if (o->config.way == WAY_NCCL) {
            group_tick(o);
            at_work = serve_group(o);
        } else {
            serve_copies(o);
        }
        events_take(o, at_work);
    }
    group_end(o);
    return NULL;
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
    pthread_condattr_t attr;
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
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&o->changed, &attr);
    pthread_condattr_destroy(&attr);
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
    struct timespec end = deadline(2 * limit_ms(o));    // a group that cannot be built is given up before
    while (o->slot[slot].n_reader > 0)
        if (pthread_cond_timedwait(&o->changed, &o->lock, &end) != 0 && o->slot[slot].n_reader > 0) {
            const char *who = "the group of producers";
            for (int i = 0; i < MEMBER_MAX; i++)
                if (o->member[i].fd >= 0 && o->member[i].reading == slot)
                    who = o->member[i].name;
            return error_set(err, ERR_TIMEOUT, "%s has been taking version %" PRId64 " for %" PRId64 " s", who,
                             version_step(o->slot[slot].version), 2 * limit_ms(o) / 1000);
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
    if (slot_find(o, version) >= 0) {
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
    int slot = slot_find(o, version);
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
            out->n_waiting += o->member[i].want > newest(o);
        }
    pthread_mutex_unlock(&o->lock);
}
