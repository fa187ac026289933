/* front_queue.h - what a front's two threads pass to each other: requests one way, and answers and identities to trust the other
 *
 * Only for front.c. Requests are handed on by the front's thread itself, as many as may be without an answer; a link that has more is
 * stalled. An answer waits here until the front's thread takes it, woken by event_fd. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "protocol/base/error.h"
#include "protocol/wire/front.h"
#include "protocol/wire/tls_link.h"

struct said {    // an answer
    struct said *next;
    uint64_t connection;
    struct tls_trace trace;
    size_t len;
    uint8_t data[];
};
struct front_queue {
    int event_fd;        // readable when there is something for the front's thread
    front_hear *hear;    // these three are set before the thread begins
    void *hear_ctx;
    int held_max;
    atomic_int n_held;       // requests without an answer
    atomic_bool stalled;     // a link waits until there are fewer
    pthread_mutex_t lock;    // guards: first, last, woken, side, era, cut_era
    struct said *first, **last;
    bool woken;               // event_fd has been written since the front's thread looked
    struct tls_side *side;    // NULL: nobody is let in
    int64_t era, cut_era;     // of side; connections of earlier ones than cut_era are to end
};
MUST_USE bool front_queue_init(struct front_queue *q, struct error *err);    // q is to be released either way
void front_queue_release(struct front_queue *q);
void front_queue_wake(struct front_queue *q);    // any thread

/* ---- the front's thread ---- */

/* A link for one that has called; it is let in by the identity of *era. NULL: no memory, or with *open false nobody is let in. */
struct tls_link *front_queue_link(struct front_queue *q, int64_t *era, bool *open);
/* Pass on the whole requests that a connection's link has. *stalled: there is no room for more. False: it is of no use any more. */
MUST_USE bool front_queue_hear(struct front_queue *q, uint64_t connection, struct tls_link *link, bool *stalled);
/* The answers given since the last call, in their order, the caller's to free; and cut_era. */
struct said *front_queue_take(struct front_queue *q, int64_t *cut_era);
/* Are stalled links to be asked again? Once for each time. */
bool front_queue_room(struct front_queue *q);

/* ---- the loop's thread; front.h says what they do ---- */

void front_queue_answer(struct front_queue *q, uint64_t connection, const struct tls_trace *trace, const void *data, size_t len);
void front_queue_drop(struct front_queue *q);
void front_queue_identity(struct front_queue *q, struct tls_side *side);    // takes side
void front_queue_cut(struct front_queue *q);
