#include "protocol/wire/front_queue.h"
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool front_queue_init(struct front_queue *q, struct error *err)
{
    *q = (struct front_queue){ .event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
    q->last = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    return q->event_fd >= 0 || error_errno(err, "cannot make an eventfd");
}

void front_queue_release(struct front_queue *q)
{
    if (q->event_fd >= 0)
        close(q->event_fd);
    tls_side_free(q->side);
    pthread_mutex_destroy(&q->lock);
}

void front_queue_wake(struct front_queue *q)
{
    uint64_t one = 1;
    ssize_t n = write(q->event_fd, &one, sizeof one);
    (void)n;
}

struct tls_link *front_queue_link(struct front_queue *q, int64_t *era, bool *open)
{
    pthread_mutex_lock(&q->lock);
    *open = q->side != NULL;
    struct tls_link *link = *open ? tls_link_new(q->side) : NULL;
    *era = q->era;
    pthread_mutex_unlock(&q->lock);
    return link;
}

static bool room_to_hear(struct front_queue *q)
{
    return atomic_load(&q->n_held) < q->held_max;
}

bool front_queue_hear(struct front_queue *q, uint64_t connection, struct tls_link *link, bool *stalled)
{
    struct error err;
    struct tls_message m;
    for (bool came = true; came;) {
        if (!room_to_hear(q)) {
            *stalled = true;
            atomic_store(&q->stalled, true);
            if (!room_to_hear(q))    // else it was answered before it could see the flag
                return true;
        }
        *stalled = false;
        if (!tls_link_next(link, &m, &came, &err) || (came && !q->hear(q->hear_ctx, connection, &m)))
            return false;
        if (came)
            atomic_fetch_add(&q->n_held, 1);
    }
    return true;
}

struct said *front_queue_take(struct front_queue *q, int64_t *cut_era)
{
    uint64_t n;
    pthread_mutex_lock(&q->lock);
    struct said *first = q->first;
    q->first = NULL;
    q->last = &q->first;
    q->woken = false;
    *cut_era = q->cut_era;
    ssize_t got = read(q->event_fd, &n, sizeof n);
    (void)got;
    pthread_mutex_unlock(&q->lock);
    return first;
}

bool front_queue_room(struct front_queue *q)
{
    return atomic_exchange(&q->stalled, false);
}

static void held_less(struct front_queue *q)
{
    atomic_fetch_sub(&q->n_held, 1);
    if (atomic_load(&q->stalled))
        front_queue_wake(q);
}

void front_queue_answer(struct front_queue *q, uint64_t connection, const struct tls_trace *trace, const void *data, size_t len)
{
    struct said *s = malloc(sizeof *s + len);
    if (s) {    // else the asker's time limit passes
        *s = (struct said){ .connection = connection, .trace = *trace, .len = len };
        memcpy(s->data, data, len);
        pthread_mutex_lock(&q->lock);
        *q->last = s;
        q->last = &s->next;
        bool wake = !q->woken;
        q->woken = true;
        pthread_mutex_unlock(&q->lock);
        if (wake)
            front_queue_wake(q);
    }
    held_less(q);
}

void front_queue_drop(struct front_queue *q)
{
    held_less(q);
}

void front_queue_identity(struct front_queue *q, struct tls_side *side)
{
    pthread_mutex_lock(&q->lock);
    struct tls_side *past = q->side;
    q->side = side;
    q->era++;
    pthread_mutex_unlock(&q->lock);
    tls_side_free(past);    // its connections keep what they need
}

void front_queue_cut(struct front_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->cut_era = q->era;
    pthread_mutex_unlock(&q->lock);
    front_queue_wake(q);
}
