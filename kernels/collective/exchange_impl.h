/* exchange_impl.h - what exchange.c and exchange_apart.c share; for nobody else */
#pragma once
#include "kernels/collective/collective.h"
#include "kernels/collective/exchange.h"
#include "kernels/ops.h"
#include "kernels/stopwatch.h"

#define COUNT_PUSHED 0
#define COUNT_TAKEN 1
#define COUNT_READY 2
#define TAKES 4                  // sums asked for at a time
#define PUSH_LANES 3             // lanes 1 to 3 push; the rest is for others
#define EXCHANGE_WAIT_MS 50      // between looks at whether the others live, where nothing of our own is under way
#define EXCHANGE_POLL_NS 5000    // between looks at a device

/* Bytes from all to all that a rank has asked for (exchange_apart.c). */
struct job {
    bool fetches;    // a whole piece; else a give
    int piece;
    int64_t give;         // its number
    char *to;             // of a fetch: where the whole piece goes,
    const char *from;     // this rank's shard of it,
    size_t elem_bytes;    // and the size of an element
    bool marked;          // not before `mark`
    struct mark *mark;    // what it sends has been computed, and what it writes over used
};
struct exchange {
    struct exchange_config f;
    int rank, n_rank;
    bool apart;       // no rank reaches another's memory: bytes go from all to all
    bool touching;    // between exchange_begin and exchange_stop
    int64_t shard_max;
    int64_t base, n_grad, total;    // of the step: its first give, its gradients, the give after its last
    int *order;                     // (n_order) the pieces that have elements, as they are given
    int n_order;
    int64_t given, ready, pushing, pushed, taking, taken;
    int64_t *after;                                           // (n_piece) the give after this rank's last one of the piece
    int64_t done[COLLECTIVE_COUNT_N][COLLECTIVE_RANK_MAX];    // the others' counters, as last seen
    int n_mark;
    struct mark **computed;                              // (n_mark) of own gives in turn
    struct mark *copied[EXCHANGE_STAGES][PUSH_LANES];    // of pushes
    struct mark *added[TAKES];
    struct job *job;    // (n_job) apart: in turn
    int n_job;
    int64_t jobs_asked, jobs_ready, jobs_done;
    bool moving;                    // the bytes of job jobs_done are on their way,
    int64_t moving_ns;              // since then
    int64_t *fetched;               // (n_piece) the last job that fetches the piece
    struct mark *idle;              // the device has done what it was asked for before a wait
    struct exchange_stats stats;    // as far as no stopwatch has it
    struct stopwatch *push_watch[PUSH_LANES], *send_watch[PUSH_LANES], *sum_watch, *fetch_watch, *stall_watch;
};

/* Which piece a give is of, and how many ranks give it: not all in the last round. */
int exchange_piece_of(const struct exchange *x, int64_t give);
int exchange_n_given(const struct exchange *x, int64_t give);
/* With n places in turn: the last give before this one whose place it takes. */
int64_t exchange_before_in_place(const struct exchange *x, int64_t give, int n);
float *exchange_slot_of(const struct exchange *x, int64_t give);
/* The place in an owner's stage for what rank `from` gives it. */
float *exchange_stage_of(const struct exchange *x, int owner, int from, int64_t give);
/* Count what this rank sends to another: all of it, and of that what leaves the host. */
void exchange_count(const struct exchange *x, int rank, int64_t n_bytes, int64_t *all, int64_t *host);
/* Another rank's counter as of now; a shared one has 32 bits. */
int64_t exchange_look(struct exchange *x, int rank, int which);
/* Ask for the sum of a give whose pieces have all come; and note those that are made. */
MUST_USE bool exchange_take(struct exchange *x, int64_t give, struct error *err);
MUST_USE bool exchange_takes_look(struct exchange *x, struct error *err);

/* exchange_apart.c; as the functions of exchange.h, for x->apart. */
MUST_USE bool apart_new(struct exchange *x, struct error *err);
void apart_free(struct exchange *x);
MUST_USE bool apart_give(struct exchange *x, struct error *err);    // the next one
MUST_USE bool apart_carry_on(struct exchange *x, bool *moved, struct error *err);
MUST_USE bool apart_slot_wait(struct exchange *x, int64_t n, struct error *err);    // until n gives are pushed and taken
MUST_USE bool apart_end(struct exchange *x, struct error *err);
MUST_USE bool apart_share(struct exchange *x, const struct exchange_parts *p, struct error *err);
