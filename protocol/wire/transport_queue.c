#include "protocol/wire/transport_parts.h"
#include <sys/eventfd.h>
#include <unistd.h>

#define HEARD_MAX 8192    // publications in the queue; later ones are dropped

bool entry_queue_init(struct entry_queue *q, struct error *err)
{
    *q = (struct entry_queue){ .event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
    q->last = &q->first;
    if (q->event_fd < 0)
        return error_errno(err, "cannot make an eventfd");
    pthread_mutex_init(&q->lock, NULL);
    return true;
}

void entry_queue_release(struct entry_queue *q)
{
    close(q->event_fd);
    pthread_mutex_destroy(&q->lock);
}

void entry_wake(struct entry_queue *q)
{
    uint64_t one = 1;
    ssize_t n = write(q->event_fd, &one, sizeof one);    // fails only when the counter is full, and then it is readable anyway
    (void)n;
}

void entry_push(struct entry_queue *q, struct queue_entry *e)
{
    e->next = NULL;
    pthread_mutex_lock(&q->lock);
    *q->last = e;
    q->last = &e->next;
    if (e->kind == ENTRY_HEARD)
        q->n_heard++;
    bool wake = !q->woken;
    q->woken = true;
    pthread_mutex_unlock(&q->lock);
    if (wake)
        entry_wake(q);
}

struct queue_entry *entry_pop(struct entry_queue *q)
{
    uint64_t n;
    pthread_mutex_lock(&q->lock);
    struct queue_entry *e = q->first;
    if (!e) {
        ssize_t got = read(q->event_fd, &n, sizeof n);    // the next push wakes us again
        (void)got;
        q->woken = false;
    } else {
        q->first = e->next;
        if (!q->first)
            q->last = &q->first;
        if (e->kind == ENTRY_HEARD)
            q->n_heard--;
    }
    pthread_mutex_unlock(&q->lock);
    return e;
}

bool entry_room(struct entry_queue *q)
{
    pthread_mutex_lock(&q->lock);
    bool room = q->n_heard < HEARD_MAX;
    pthread_mutex_unlock(&q->lock);
    return room;
}

void entry_remove(struct entry_queue *q, bool (*owned)(const struct queue_entry *e, const void *owner), const void *owner,
                  void (*release)(struct queue_entry *e))
{
    struct queue_entry *removed = NULL;
    pthread_mutex_lock(&q->lock);
    for (struct queue_entry **at = &q->first; *at;) {
        struct queue_entry *e = *at;
        if (!owned(e, owner)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        if (e->kind == ENTRY_HEARD)
            q->n_heard--;
        e->next = removed;
        removed = e;
    }
    q->last = &q->first;
    while (*q->last)
        q->last = &(*q->last)->next;
    pthread_mutex_unlock(&q->lock);
    while (removed) {
        struct queue_entry *e = removed;
        removed = e->next;
        if (release)
            release(e);
    }
}
