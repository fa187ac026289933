/* tcp.c - CPU ranks with a connection between each two (tcp_meet.h)
 *
 * 1. What travels is a frame: 16 bytes of head, then at most COLLECTIVE_GATHER_MAX bytes, or a part of as many as both ends have agreed on
 *    by making the same call. Anything else ends the meeting.
 * 2. Nothing is sent or received but in calls: a rank that computes leaves what comes to the kernel. Every rank makes the same calls in
 *    the same order, so at most two barriers and one head of bytes to come can lie there unread; of counters only the newest is sent.
 * 3. Bytes are read to where they belong. Those of a call that this rank has not made yet are left where they are (`held`).
 * 4. A connection that ends is a rank that has died, unless it said before that it leaves. What it sent before still counts.
 * 5. When a call fails, this rank tells the others that it leaves, so that theirs end too, and which rank gave up first and why, if it knows.
 *    Bytes under way end with the part that has been begun, so that these last words are understood, and they are waited for until the
 *    others' kernels have them: what a connection loses when it is closed is what they have not got. */
#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "kernels/collective/kinds.h"
#include "kernels/collective/tcp_meet.h"
#include "kernels/ops.h"
#include "protocol/base/clock.h"

#define TICK_MS 50
#define TELL_MS 100     // a wait this long is reported to the operator
#define OUT_MAX 4096    // bytes of small frames that wait to be sent to one rank: see 2
#define PART_MAX ((size_t)1 << 18)
#define WORDS_MS 1000    // for last words to come to the others' kernels, where one does not read

enum frame_kind {
    FRAME_MEET = 1,    // a barrier: which = its number; size bytes follow
    FRAME_COUNT,       // counter `which` is size
    FRAME_BYTES,       // which = the number of the call; size bytes are to come
    FRAME_PART,        // size of them follow, at most PART_MAX
    FRAME_LEAVE,
    FRAME_GIVE_UP,    // which = the rank that gave up first; why (size) follows
};
struct frame {
    uint32_t kind, which;
    uint64_t size;
};
enum gone {
    HERE,
    GONE_DIED,
    GONE_LEFT,
    GONE_BROKEN,    // it sent what no rank sends
    GONE_SIZE,      // more or fewer bytes than are awaited
};
struct peer {
    int fd;    // -1: this rank
    enum gone gone;
    bool leaves;          // it has said so
    bool told;            // this rank's last words have been put into out
    struct frame head;    // being received
    size_t head_got;
    char *to;    // the rest of the frame goes there
    size_t to_left;
    bool held;                              // head is of a call to come
    char meet[2][COLLECTIVE_GATHER_MAX];    // by turns
    char words[COLLECTIVE_WHY_MAX];         // of FRAME_GIVE_UP; 0 behind them
    uint32_t met;                           // barriers it has reached
    int64_t met_ns;                         // when the last of them was read
    uint32_t count[COLLECTIVE_COUNT_ALL];
    bool count_new[COLLECTIVE_COUNT_ALL];    // this rank's, to be sent to it
    char out[OUT_MAX];
    size_t out_at, out_n;
    const char *from;               // bytes to send after out,
    size_t from_left, part_left;    // and of the part that has been begun
    uint64_t awaits;                // of the call under way: bytes
    char *in;                       // where the next part of them goes,
    uint64_t in_left;               // and how many are to come in it and those after it
    bool came;                      // they have
};
struct tcp {
    struct collective base;
    int64_t wait_ms;
    void (*waits)(void *ctx, int rank);
    bool over;
    int cause_rank;    // the rank that gave up first, and why; -1: none has
    char why[COLLECTIVE_WHY_MAX];
    uint32_t seq, call;    // barriers reached, calls for bytes made
    bool moving;           // one is under way
    struct collective_wait move_wait;
    struct collective_bytes move;
    uint32_t count[COLLECTIVE_COUNT_ALL];    // this rank's
    struct peer peer[];                      // (n_rank)
};

/* ---- sending */
static void frame_put(struct peer *p, uint32_t kind, uint32_t which, uint64_t size, const void *data)
{
    struct frame f = { kind, which, size };
    size_t n = kind == FRAME_MEET || kind == FRAME_GIVE_UP ? (size_t)size : 0;
    if (p->out_at > 0) {
        memmove(p->out, p->out + p->out_at, p->out_n - p->out_at);
        p->out_n -= p->out_at;
        p->out_at = 0;
    }
    BUG_IF(p->out_n + sizeof f + n > OUT_MAX, "%zu bytes of frames to one rank", p->out_n);
    memcpy(p->out + p->out_n, &f, sizeof f);
    if (n > 0)
        memcpy(p->out + p->out_n + sizeof f, data, n);
    p->out_n += sizeof f + n;
}

/* Counters go when there is room, or now: only the newest value of each. Not within a part of bytes, whose head is out already. */
static void counts_put(struct tcp *t, struct peer *p, bool now)
{
    for (int i = 0; i < COLLECTIVE_COUNT_ALL; i++)
        if (p->count_new[i] && p->part_left == 0 && (now || p->out_n - p->out_at < OUT_MAX / 4)) {
            p->count_new[i] = false;
            frame_put(p, FRAME_COUNT, (uint32_t)i, t->count[i], NULL);
        }
}

static bool unsent(const struct peer *p)
{
    bool counts = false;
    for (int i = 0; i < COLLECTIVE_COUNT_ALL; i++)
        counts = counts || p->count_new[i];
    return p->out_n > p->out_at || p->from_left > 0 || counts;
}

/* Send what the connection takes now. That it has ended shows when it is read. */
static bool flush(struct tcp *t, struct peer *p)
{
    bool moved = false;
    for (;;) {
        counts_put(t, p, false);
        if (p->out_n == p->out_at && p->part_left == 0 && p->from_left > 0) {
            p->part_left = MIN(p->from_left, PART_MAX);
            frame_put(p, FRAME_PART, t->call, p->part_left, NULL);
        }
        bool small = p->out_n > p->out_at;
        size_t n = small ? p->out_n - p->out_at : p->part_left;
        ssize_t k = n > 0 ? send(p->fd, small ? p->out + p->out_at : p->from, n, MSG_NOSIGNAL) : 0;
        if (k <= 0)
            return moved;
        moved = true;
        if (small) {
            p->out_at += (size_t)k;
        } else {
            p->from += k;
            p->from_left -= (size_t)k;
            p->part_left -= (size_t)k;
        }
    }
}

/* ---- receiving */
static void bytes_take(struct tcp *t, int q)
{
    struct peer *p = &t->peer[q];
    p->held = false;
    if (p->head.which != t->call)
        p->gone = GONE_BROKEN;
    else if (p->head.size != p->awaits)
        p->gone = GONE_SIZE;
    p->in = t->move.recv[q];
    p->in_left = p->gone == HERE ? p->awaits : 0;
    p->came = p->gone == HERE && p->awaits == 0;
}

/* The last words of a rank that gave up are here, or another's that it passes on. */
static void cause_take(struct tcp *t, int rank, const char *why)
{
    if (t->cause_rank < 0)
        snprintf(t->why, sizeof t->why, "%s", why);
    t->cause_rank = t->cause_rank < 0 ? rank : t->cause_rank;
}

/* A head has come. */
static void head_take(struct tcp *t, int q)
{
    struct peer *p = &t->peer[q];
    const struct frame *f = &p->head;
    p->head_got = 0;
    switch (f->kind) {
    case FRAME_MEET:
        if (f->size > COLLECTIVE_GATHER_MAX || f->which != p->met + 1 || f->which > t->seq + 1) {
            p->gone = GONE_BROKEN;
            return;
        }
        p->to = p->meet[f->which % 2];
        p->to_left = (size_t)f->size;
        if (f->size > 0)
            return;
        p->met++;
        p->met_ns = clock_ns();
        return;
    case FRAME_COUNT:
        if (f->which >= COLLECTIVE_COUNT_ALL)
            p->gone = GONE_BROKEN;
        else
            p->count[f->which] = (uint32_t)f->size;
        return;
    case FRAME_BYTES:
        if (t->moving && !p->came)
            bytes_take(t, q);
        else
            p->held = true;
        return;
    case FRAME_PART:
        if (f->size == 0 || f->size > PART_MAX || f->size > p->in_left || f->which != t->call) {
            p->gone = GONE_BROKEN;
            return;
        }
        p->to = p->in;
        p->to_left = (size_t)f->size;
        p->in += f->size;
        p->in_left -= f->size;
        return;
    case FRAME_LEAVE: p->leaves = true; return;
    case FRAME_GIVE_UP:
        if (f->size == 0 || f->size >= COLLECTIVE_WHY_MAX || f->which >= (uint32_t)t->base.n_rank) {
            p->gone = GONE_BROKEN;
            return;
        }
        p->to = p->words;
        p->to_left = (size_t)f->size;
        return;
    default: p->gone = GONE_BROKEN; return;
    }
}

static void body_end(struct tcp *t, struct peer *p)
{
    if (p->head.kind == FRAME_PART) {
        p->came = p->in_left == 0;
        return;
    }
    if (p->head.kind == FRAME_GIVE_UP) {
        p->leaves = true;
        cause_take(t, (int)p->head.which, p->words);
        return;
    }
    p->met++;
    p->met_ns = clock_ns();
}

/* Once it is over, what comes is dropped: the memory that it belongs in may be gone. */
static bool receive(struct tcp *t, int q)
{
    struct peer *p = &t->peer[q];
    char dropped[4096];
    bool moved = false;
    while (p->gone == HERE && (t->over || !p->held)) {
        bool body = p->to_left > 0;
        ssize_t k = t->over ? recv(p->fd, dropped, sizeof dropped, 0)
                    : body  ? recv(p->fd, p->to, p->to_left, 0)
                            : recv(p->fd, (char *)&p->head + p->head_got, sizeof p->head - p->head_got, 0);
        if (k < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (k <= 0) {
            p->gone = p->leaves ? GONE_LEFT : GONE_DIED;
            break;
        }
        moved = true;
        if (t->over)
            continue;
        if (body) {
            p->to += k;
            p->to_left -= (size_t)k;
            if (p->to_left == 0)
                body_end(t, p);
        } else if ((p->head_got += (size_t)k) == sizeof p->head) {
            head_take(t, q);
        }
    }
    return moved;
}

/* Send and receive what can be, after a wait of at most ms for something to do. */
static bool pump(struct tcp *t, int64_t ms)
{
    struct pollfd p[COLLECTIVE_RANK_MAX];
    bool moved = false;
    for (int q = 0; q < t->base.n_rank; q++) {
        const struct peer *o = &t->peer[q];
        short events = (short)((o->held && !t->over ? 0 : POLLIN) | (unsent(o) ? POLLOUT : 0));
        p[q] = (struct pollfd){ .fd = o->gone == HERE && events ? o->fd : -1, .events = events };
    }
    if (poll(p, (nfds_t)t->base.n_rank, (int)ms) <= 0)
        return false;
    for (int q = 0; q < t->base.n_rank; q++) {
        if (p[q].revents & POLLOUT)
            moved = flush(t, &t->peer[q]) || moved;
        if (p[q].revents & (POLLIN | POLLHUP | POLLERR))
            moved = receive(t, q) || moved;
    }
    return moved;
}

/* ---- waiting */
/* Has a rank's kernel all of what this one says last? */
static bool words_are_there(const struct peer *p)
{
    int n = 0;
    return p->fd < 0 || p->gone != HERE || (p->told && p->out_n == p->out_at && (ioctl(p->fd, SIOCOUTQ, &n) != 0 || n == 0));
}

/* What this rank says last, when the part of bytes that it sends is at its end; what follows of them never comes. */
static void words_put(struct tcp *t, struct peer *p)
{
    p->from_left = p->part_left;
    flush(t, p);
    if (p->told || p->part_left > 0)
        return;
    p->told = true;
    frame_put(p, t->cause_rank < 0 ? FRAME_LEAVE : FRAME_GIVE_UP, (uint32_t)MAX(t->cause_rank, 0), strlen(t->why), t->why);
    flush(t, p);
}

static void leave_tell(struct tcp *t)
{
    int64_t end = clock_ms() + WORDS_MS;
    if (t->over)
        return;
    t->over = true;
    for (bool all = false; !all && clock_ms() < end;) {
        all = true;
        for (int q = 0; q < t->base.n_rank; q++) {
            struct peer *p = &t->peer[q];
            if (p->fd >= 0 && p->gone == HERE)
                words_put(t, p);
            all = all && words_are_there(p);
        }
        if (!all)    // it reads, too, so that nobody waits for us to do it
            pump(t, 1);
    }
    for (int q = 0; q < t->base.n_rank; q++)
        if (t->peer[q].fd >= 0)
            shutdown(t->peer[q].fd, SHUT_WR);
}

/* A call of this rank's has failed: the others, which may have to wait for it, learn why. That a rank has gone they see themselves. */
static void call_failed(struct tcp *t, const struct error *err)
{
    if (!t->over && err->code != ERR_CLOSED)
        cause_take(t, t->base.rank, err->text);
    leave_tell(t);
    t->moving = false;
}

static void tcp_abandon(struct collective *c, int rank, const char *why)
{
    struct tcp *t = (struct tcp *)c;
    cause_take(t, rank, why);
    leave_tell(t);
    t->moving = false;
}

static const char *tcp_cause(const struct collective *c, int *rank)
{
    const struct tcp *t = (const struct tcp *)c;
    *rank = t->cause_rank;
    return t->cause_rank < 0 ? NULL : t->why;
}

static bool gone_say(const struct tcp *t, int q, struct error *err)
{
    char name[64];
    const struct peer *p = &t->peer[q];
    collective_name(&t->base, q, name, sizeof name);
    switch (p->gone) {
    case GONE_DIED: return error_set(err, ERR_CLOSED, "%s has died", name);
    case GONE_BROKEN: return error_set(err, ERR_DATA, "%s has sent what no rank sends", name);
    case GONE_SIZE:
        return error_set(err, ERR_DATA, "%s sends %" PRIu64 " bytes where %" PRIu64 " are awaited", name, p->head.size, p->awaits);
    case HERE:
    case GONE_LEFT: break;
    }
    return error_set(err, ERR_CLOSED, "another rank has left");
}

/* What we wait for. A rank that has gone after it had done all of it hinders no other. */
enum awaited {
    AWAIT_ANYTHING,
    AWAIT_BARRIER,
    AWAIT_BYTES,
};
static bool has_done(const struct tcp *t, int q, enum awaited what)
{
    const struct peer *p = &t->peer[q];
    return (what == AWAIT_BARRIER && (int32_t)(p->met - t->seq) >= 0)
           || (what == AWAIT_BYTES && p->came && p->from_left == 0 && p->out_n == p->out_at);
}

/* A rank that has gone: rather one that died than one that left, since the others leave when one dies. -1: none has. */
static int gone_find(const struct tcp *t, enum awaited what)
{
    int left = -1;
    for (int q = 0; q < t->base.n_rank; q++) {
        const struct peer *p = &t->peer[q];
        if ((p->gone == HERE && !p->leaves) || has_done(t, q, what))
            continue;
        if (p->gone != HERE && p->gone != GONE_LEFT)
            return q;
        left = left < 0 ? q : left;
    }
    return left;
}

/* As gone_find, after a rank has left, which may be the first to know of another one's death: in a moment this one knows, too. */
static int gone_wait(struct tcp *t, enum awaited what)
{
    int64_t end = clock_ms() + TICK_MS, left;
    int gone = gone_find(t, what);
    while (gone >= 0 && t->cause_rank < 0 && (t->peer[gone].gone == HERE || t->peer[gone].gone == GONE_LEFT)
           && (left = end - clock_ms()) > 0) {
        pump(t, left);
        gone = gone_find(t, what);
    }
    return gone;
}

/* A moment of waiting for rank, which has not done what it must; not when somebody has gone before. *moved: something came or went. */
static bool wait_more(struct tcp *t, struct collective_wait *w, enum awaited what, int rank, int64_t ms, bool *moved, struct error *err)
{
    char name[64];
    int64_t now = clock_ms();
    int gone = gone_wait(t, what);
    w->began_ms = w->began_ms ? w->began_ms : now;
    if (t->over || t->cause_rank >= 0)
        return collective_over(&t->base, err);
    if (gone >= 0)
        return gone_say(t, gone, err);
    if (rank < 0)
        return true;
    if (now - w->began_ms >= t->wait_ms) {
        if (pump(t, 0)) {    // what came before the limit had passed, or that somebody had died, counts
            *moved = true;
            return true;
        }
        return error_set(err, ERR_TIMEOUT, "%s has not come in %" PRId64 " s", collective_name(&t->base, rank, name, sizeof name),
                         (t->wait_ms + 999) / 1000);
    }
    if (t->waits && w->told != rank + 1 && now - w->began_ms >= TELL_MS) {
        w->told = rank + 1;
        t->waits(t->base.ctx, rank);
    }
    *moved = pump(t, MIN(MIN(ms, (int64_t)TICK_MS), MAX(t->wait_ms - (now - w->began_ms), 0)));
    return true;
}

static void tcp_wait_end(struct collective *c, struct collective_wait *w)
{
    struct tcp *t = (struct tcp *)c;
    if (w->told)
        t->waits(c->ctx, -1);
    *w = (struct collective_wait){ 0 };
}

static void tcp_count_set(struct collective *c, int which, uint32_t value)
{
    struct tcp *t = (struct tcp *)c;
    t->count[which] = value;
    for (int q = 0; q < c->n_rank; q++)
        if (t->peer[q].fd >= 0 && t->peer[q].gone == HERE && !t->over) {
            t->peer[q].count_new[which] = true;
            flush(t, &t->peer[q]);
        }
}

static uint32_t tcp_count(const struct collective *c, int rank, int which)
{
    struct tcp *t = (struct tcp *)c;
    if (rank == c->rank)
        return t->count[which];
    pump(t, 0);
    return t->peer[rank].count[which];
}

static bool tcp_wait(struct collective *c, struct collective_wait *w, int rank, int which, uint32_t seen, int64_t ms, struct error *err)
{
    struct tcp *t = (struct tcp *)c;
    bool moved;
    pump(t, 0);
    if (rank >= 0 && tcp_count(c, rank, which) != seen)    // it may have come that far before it left
        return true;
    return wait_more(t, w, AWAIT_ANYTHING, rank, ms, &moved, err);
}

/* ---- barriers */
static bool tcp_gather(struct collective *c, const void *mine, size_t size_bytes, void *all, struct error *err)
{
    struct tcp *t = (struct tcp *)c;
    struct collective_wait w = { 0 };
    bool ok = !t->over || collective_over(c, err), moved;
    BUG_IF(t->moving, "a barrier while bytes are on their way");
    pump(t, 0);    // a rank that is there already has not come last
    int64_t last_ns = clock_ns();
    c->last = c->rank;
    t->seq++;
    for (int q = 0; q < c->n_rank && ok; q++)
        if (q != c->rank && t->peer[q].gone == HERE) {
            frame_put(&t->peer[q], FRAME_MEET, t->seq, size_bytes, mine);
            flush(t, &t->peer[q]);
        }
    for (int q = 0; q < c->n_rank && ok; q++) {
        while (ok && q != c->rank && (int32_t)(t->peer[q].met - t->seq) < 0)
            ok = wait_more(t, &w, AWAIT_BARRIER, q, TICK_MS, &moved, err);
        if (ok && q != c->rank && t->peer[q].met_ns > last_ns) {
            last_ns = t->peer[q].met_ns;
            c->last = q;
        }
    }
    tcp_wait_end(c, &w);
    if (!ok)
        call_failed(t, err);
    for (int q = 0; q < c->n_rank && ok; q++)
        memcpy((char *)all + (size_t)q * size_bytes, q == c->rank ? mine : t->peer[q].meet[t->seq % 2], size_bytes);
    return ok;
}

/* ---- bytes */
static bool tcp_begin(struct collective *c, const struct collective_bytes *b, struct error *err)
{
    struct tcp *t = (struct tcp *)c;
    BUG_IF(t->moving, "bytes were begun while others are on their way");
    if (t->over)
        return collective_over(c, err);
    t->move = *b;
    t->move_wait = (struct collective_wait){ 0 };
    t->moving = true;
    t->call++;
    for (int q = 0; q < c->n_rank; q++) {
        struct peer *p = &t->peer[q];
        p->awaits = b->recv_bytes[q];
        p->came = q == c->rank;
        if (q == c->rank || p->gone != HERE)
            continue;
        if (p->held)
            bytes_take(t, q);
        counts_put(t, p, true);    // before the head, behind which a rank that has not made the call yet reads nothing
        frame_put(p, FRAME_BYTES, t->call, b->send_bytes[q], NULL);
        p->from = b->send[q];
        p->from_left = b->send_bytes[q];
        flush(t, p);
    }
    return true;
}

/* A rank that has not sent or not taken all; -1: all have. */
static int move_late(const struct tcp *t)
{
    for (int q = 0; q < t->base.n_rank; q++)
        if (!t->peer[q].came)
            return q;
    for (int q = 0; q < t->base.n_rank; q++)
        if (t->peer[q].fd >= 0 && (t->peer[q].from_left > 0 || t->peer[q].out_n > t->peer[q].out_at))
            return q;
    return -1;
}

static bool tcp_poll(struct collective *c, int64_t ms, bool *done, struct error *err)
{
    struct tcp *t = (struct tcp *)c;
    int64_t end = clock_ms() + ms;
    bool ok = true, moved = pump(t, 0);
    int late;
    *done = false;
    while (ok && (late = move_late(t)) >= 0) {
        int64_t left = end - clock_ms();
        if (moved)
            tcp_wait_end(c, &t->move_wait);
        moved = false;
        ok = wait_more(t, &t->move_wait, AWAIT_BYTES, late, MAX(left, 0), &moved, err);
        if (left <= 0)
            break;
    }
    if (!ok) {
        tcp_wait_end(c, &t->move_wait);
        call_failed(t, err);
    } else if (move_late(t) < 0) {
        tcp_wait_end(c, &t->move_wait);
        t->moving = false;
        *done = true;
    }
    return ok;
}

/* ---- coming and going */
static void tcp_touches(UNUSED struct collective *c, UNUSED bool now)
{
}

static void tcp_leave(struct collective *c)
{
    struct tcp *t = (struct tcp *)c;
    pump(t, 0);    // what was not read would make the others lose what they have not read yet
    leave_tell(t);
    for (int q = 0; q < c->n_rank; q++)
        if (t->peer[q].fd >= 0)
            close(t->peer[q].fd);
    free(t);
}

static struct collective *tcp_join(const struct collective_config *config, struct error *err)
{
    struct tcp *t = NULL;
    int fd[COLLECTIVE_RANK_MAX], file = -1;
    char path[4200];
    if (config->dev && !config->dev->host_memory)
        error_set(err, ERR_UNSUPPORTED, "ranks meet over tcp on CPUs; for %s there are ipc, local and nccl", config->dev->name);
    else if (!(t = calloc(1, sizeof *t + (size_t)config->n_rank * sizeof t->peer[0])))
        error_set(err, ERR_NO_MEMORY, "no memory for the exchange between ranks");
    if (!t)
        return NULL;
    t->base = (struct collective){ .kind = &collective_tcp,
                                   .rank = config->rank,
                                   .n_rank = config->n_rank,
                                   .dev = config->dev,
                                   .name = config->name_of,
                                   .ctx = config->ctx };
    t->cause_rank = -1;
    t->wait_ms = config->join_ms;    // for the last of joining, too
    t->waits = config->waits;
    if (!tcp_meet(&t->base, config, fd, &file, err)) {
        free(t);
        return NULL;
    }
    for (int q = 0; q < config->n_rank; q++)
        t->peer[q].fd = fd[q];
    char none = 0, all[COLLECTIVE_RANK_MAX];
    bool ok = tcp_gather(&t->base, &none, 1, all, err);    // all have all their connections
    t->wait_ms = config->wait_ms;
    snprintf(path, sizeof path, "%s/%s", config->dir, config->name);
    if (config->rank == 0 && !tcp_meet_called_off(path, file))
        unlink(path);
    close(file);
    if (ok)
        return &t->base;
    tcp_leave(&t->base);
    return NULL;
}

const struct collective_kind collective_tcp = {
    .name = "tcp",
    .join = tcp_join,
    .abandon = tcp_abandon,
    .cause = tcp_cause,
    .leave = tcp_leave,
    .touches = tcp_touches,
    .count_set = tcp_count_set,
    .count = tcp_count,
    .wait = tcp_wait,
    .wait_end = tcp_wait_end,
    .gather = tcp_gather,
    .begin = tcp_begin,
    .poll = tcp_poll,
};
