#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base/clock.h"
#include "protocol/base/log.h"
#include "workers/engine/publish/outlet_parts.h"

#define SPIN_MS 200     // a broadcast is looked after without sleeping for so long
#define ALONE_MS 500    // longer than producers that have all waited for this step's weights are apart

/* ---- members (under the lock) ---- */

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

void outlet_member_close(struct outlet *o, struct member *m, const char *why)
{
    if (m->name[0])
        log_info("weights: %s %s", m->name, why);
    reading_end(o, m);
    close(m->fd);
    o->stale = o->stale || m->name[0];
    o->broken = o->broken || m->rank > 0;
    *m = (struct member){ .fd = -1, .want = -1, .sent = -1, .reading = -1 };
}

void outlet_say(struct outlet *o, struct member *m, struct wire w)
{
    w.size_bytes = o->config.bundle->size_bytes;
    if (!wire_send(m->fd, w))
        outlet_member_close(o, m, "does not listen any more");
}

void outlet_say_hashed(struct outlet *o, struct member *m, const struct slot *s, struct wire w)
{
    if (wire_send_hashes(m->fd, s->hash, o->config.bundle->n) && (w.kind != WIRE_SLOT || wire_send_extents(m->fd, &s->from)))
        outlet_say(o, m, w);
    else
        outlet_member_close(o, m, "does not listen any more");
}

bool member_is_sent(const struct outlet *o, const struct member *m)
{
    return m->fd >= 0 && m->name[0] && !m->copies && o->config.way == WAY_NCCL;
}

void outlet_drop_tell(struct outlet *o)
{
    if (!o->drop)
        return;
    o->drop = false;
    for (int i = 0; i < MEMBER_MAX; i++)
        if (o->member[i].fd >= 0) {
            o->member[i].sent = -1;
            outlet_say(o, &o->member[i], (struct wire){ .kind = WIRE_DROP });
        }
}

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
        wire_make_room(fd);
        o->member[i] = (struct member){ .fd = fd, .want = -1, .sent = -1, .reading = -1 };
    }
}

static void member_read(struct outlet *o, struct member *m)
{
    struct wire w;
    int got = 0;
    while (m->fd >= 0 && (got = wire_receive(m->fd, &w, NULL)) > 0) {
        if (w.kind == WIRE_HELLO && (w.size_bytes != o->config.bundle->size_bytes || w.n != o->config.bundle->n)) {
            log_error("weights: '%s' has %" PRIu64 " bytes of weights in %" PRId64 " tensors, the trainer %zu in %" PRId64, w.name,
                      w.size_bytes, w.n, o->config.bundle->size_bytes, o->config.bundle->n);
            got = -1;
            break;
        }
        if (w.kind == WIRE_HELLO) {
            memcpy(m->name, w.name, sizeof m->name);
            m->copies = w.copies;
            o->stale = o->stale || !m->copies;
            log_info("weights: %s is there", m->name);
        } else if (w.kind == WIRE_WANT) {
            m->want = w.version;
            m->want_ms = clock_ms();
        } else if (w.kind == WIRE_TOOK) {
            if (w.lost && m->reading >= 0)    // it is shared again when all whose memory it is are there
                o->slot[m->reading].version = -1;
            reading_end(o, m);
            if (w.version >= 0)
                member_done(o, m, w.version);
            else if (m->confirms)    // it has arrived with another hash: it is sent again when it is wanted again
                m->sent = o->send_version, m->want = m->want == o->send_version ? -1 : m->want;
            m->confirms = false;
        }
    }
    if (got < 0 && m->fd >= 0)
        outlet_member_close(o, m, "has gone");
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
    outlet_drop_tell(o);
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

/* ---- the thread ---- */

/* Give this member the version it wants to copy? Without staging it may have waited too long for others to take part in a broadcast. */
static bool member_copies_now(const struct outlet *o, const struct member *m)
{
    return !member_is_sent(o, m) || outlet_is_scattered(o)
           || (o->in_place && clock_ms() - m->want_ms >= ALONE_MS && o->group != GROUP_SENDING && o->group != GROUP_CONFIRMING);
}

/* True: somebody waits for others. */
static bool serve_copies(struct outlet *o)
{
    bool waits = false;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < MEMBER_MAX; i++) {
        struct member *m = &o->member[i];
        if (m->fd < 0 || m->want < 0 || m->reading >= 0)
            continue;
        int slot = outlet_slot_find(o, m->want);
        int64_t want = m->want;
        if (!member_copies_now(o, m)) {
            waits = waits || slot >= 0;
        } else if (slot >= 0 && o->slot[slot].hashed) {
            struct slot *s = &o->slot[slot];
            m->reading = slot;
            s->n_reader++;
            m->want = -1;
            outlet_say_hashed(o, m, s, (struct wire){ .kind = WIRE_SLOT, .version = want, .once = o->in_place });
        } else if (slot < 0 && outlet_is_gone(o, want)) {
            m->want = -1;
            outlet_say(o, m, (struct wire){ .kind = WIRE_GONE, .version = want });
        }
    }
    pthread_mutex_unlock(&o->lock);
    return waits;
}

void *outlet_main(void *arg)
{
    struct outlet *o = arg;
    for (;;) {
        pthread_mutex_lock(&o->lock);
        bool quit = o->quit;
        pthread_mutex_unlock(&o->lock);
        if (quit)
            break;
        bool at_work = serve_copies(o);
        if (o->config.way == WAY_NCCL) {
            outlet_group_tick(o);
            at_work = outlet_group_serve(o) || at_work;
        }
        events_take(o, at_work);
    }
    outlet_group_end(o);
    return NULL;
}
