/* exchange_apart.c - the exchange of ranks that do not reach each other's memory: everything goes as bytes from all to all
 *
 * What a rank asks for are jobs: to give a piece of its gradient, or to fetch a whole piece of the weights from the shards of all. All
 * ranks ask for the same jobs in the same order, and the bytes of one job are on their way at a time:
 *
 *   jobs_done <= jobs_ready <= jobs_asked
 *
 *  1. A job is ready when what it sends has been computed, and what it writes over used; jobs become ready in their order. How many are,
 *     the others see (COUNT_READY).
 *  2. Its bytes go when it is ready on all ranks, so that no rank waits in the middle of a call for another that computes.
 *  3. A give that has come is added when its turn comes, as where ranks reach each other's memory; its place of the stage is written
 *     again when it has been added.
 *  4. A rank without a gradient in the last round takes part with gives of which nothing is sent: in their turn where it fetches,
 *     else at the end of the round. */
#include <stdlib.h>
#include <time.h>
#include "kernels/collective/exchange_impl.h"
#include "protocol/base/clock.h"

#define FETCHES 8    // jobs that fetch and may wait at once

bool apart_new(struct exchange *x, struct error *err)
{
    x->n_job = x->n_mark + x->f.n_piece + FETCHES;
    x->job = calloc((size_t)x->n_job, sizeof *x->job);
    x->fetched = calloc((size_t)x->f.n_piece, sizeof *x->fetched);
    if (!x->job || !x->fetched)
        return error_set(err, ERR_NO_MEMORY, "no memory for the exchange between ranks");
    for (int i = 0; i < x->n_job; i++)
        if (!(x->job[i].mark = mark_new(x->f.dev, err)))
            return false;
    return true;
}

void apart_free(struct exchange *x)
{
    for (int i = 0; x->job && i < x->n_job; i++)
        mark_free(x->f.dev, x->job[i].mark);
    free(x->job);
    free(x->fetched);
}

/* ---- bytes */
static void give_bytes(const struct exchange *x, const struct job *j, struct collective_bytes *b)
{
    int n = exchange_n_given(x, j->give);
    int64_t first, own = collective_shard(x->f.piece_n[j->piece], x->n_rank, x->rank, &first);
    const float *from = x->rank < n ? exchange_slot_of(x, j->give) : NULL;
    for (int q = 0; q < x->n_rank; q++) {
        int64_t theirs = collective_shard(x->f.piece_n[j->piece], x->n_rank, q, &first);
        if (q == x->rank)
            continue;
        if (from) {
            b->send[q] = from + first;
            b->send_bytes[q] = (size_t)theirs * 4;
        }
        if (q < n) {
            b->recv[q] = exchange_stage_of(x, x->rank, q, j->give);
            b->recv_bytes[q] = (size_t)own * 4;
        }
    }
}

static void fetch_bytes(const struct exchange *x, const struct job *j, struct collective_bytes *b)
{
    int64_t first, own = collective_shard(x->f.piece_n[j->piece], x->n_rank, x->rank, &first);
    for (int q = 0; q < x->n_rank; q++) {
        int64_t theirs = collective_shard(x->f.piece_n[j->piece], x->n_rank, q, &first);
        b->send[q] = j->from;
        b->send_bytes[q] = (size_t)own * j->elem_bytes;
        b->recv[q] = j->to + (size_t)first * j->elem_bytes;
        b->recv_bytes[q] = (size_t)theirs * j->elem_bytes;
    }
}

static void bytes_count(const struct exchange *x, const struct collective_bytes *b, int64_t *all, int64_t *host)
{
    for (int q = 0; q < x->n_rank; q++)
        exchange_count(x, q, (int64_t)b->send_bytes[q], all, host);
}

static bool job_begin(struct exchange *x, struct error *err)
{
    const struct job *j = &x->job[x->jobs_done % x->n_job];
    struct collective_bytes b = { 0 };
    if (j->fetches) {
        fetch_bytes(x, j, &b);
        bytes_count(x, &b, &x->stats.gather_bytes, &x->stats.gather_host_bytes);
    } else {
        give_bytes(x, j, &b);
        bytes_count(x, &b, &x->stats.reduce_bytes, &x->stats.reduce_host_bytes);
    }
    x->moving = true;
    x->moving_ns = clock_ns();
    return collective_begin(x->f.c, &b, err);
}

static void job_end(struct exchange *x)
{
    const struct job *j = &x->job[x->jobs_done++ % x->n_job];
    *(j->fetches ? &x->stats.gather_s : &x->stats.reduce_s) += (double)(clock_ns() - x->moving_ns) * 1e-9;
    x->pushed += !j->fetches;
    x->moving = false;
}

/* ---- carrying on */
/* A rank on which the next job is not ready; -1: there is none, or none such. */
static int late_find(struct exchange *x)
{
    if (x->jobs_done < x->jobs_ready && !x->moving)
        for (int q = 0; q < x->n_rank; q++)
            if (q != x->rank && exchange_look(x, q, COUNT_READY) <= x->jobs_done)
                return q;
    return -1;
}

static bool can_begin(struct exchange *x)
{
    const struct job *j = &x->job[x->jobs_done % x->n_job];
    return !x->moving && x->jobs_done < x->jobs_ready && late_find(x) < 0
           && (j->fetches || x->taken > exchange_before_in_place(x, j->give, EXCHANGE_STAGES));
}

static bool ready_look(struct exchange *x, struct error *err)
{
    for (bool done = true; x->jobs_ready < x->jobs_asked;) {
        const struct job *j = &x->job[x->jobs_ready % x->n_job];
        if (j->marked && !mark_done(x->f.dev, j->mark, &done, err))
            return false;
        if (!done)
            return true;
        collective_count_set(x->f.c, COUNT_READY, (uint32_t)++x->jobs_ready);
    }
    return true;
}

bool apart_carry_on(struct exchange *x, bool *moved, struct error *err)
{
    bool ok = false, done = false;
    int64_t before = x->jobs_ready + x->jobs_done + x->taking + x->taken + x->moving;
    TRY(ready_look(x, err));
    if (x->moving) {
        TRY(collective_poll(x->f.c, 0, &done, err));
        if (done)
            job_end(x);
    }
    TRY(exchange_takes_look(x, err));
    for (; x->taking < x->pushed && x->taking - x->taken < TAKES; x->taking++)
        TRY(exchange_take(x, x->taking, err));
    if (can_begin(x))
        TRY(job_begin(x, err));
    *moved = x->jobs_ready + x->jobs_done + x->taking + x->taken + x->moving != before || done;
    ok = true;
out:
    return ok;
}

/* The device stood still since `began`: since a rank has not computed its part yet, or else for what is on its way. */
static bool wait_note(struct exchange *x, int late, int64_t began, struct error *err)
{
    bool idle;
    if (!mark_done(x->f.dev, x->idle, &idle, err))
        return false;
    if (idle)
        *(late >= 0 ? &x->stats.late_s[late] : &x->stats.exposed_s) += (double)(clock_ns() - began) * 1e-9;
    return true;
}

/* Carry on, and when nothing goes on wait for a moment. */
static bool wait_on(struct exchange *x, struct collective_wait *w, struct error *err)
{
    bool moved, done = false;
    int late = late_find(x);
    uint32_t seen = late < 0 ? 0 : collective_count(x->f.c, late, COUNT_READY);
    int64_t began = clock_ns(), ms = x->f.dev->host_memory ? EXCHANGE_WAIT_MS : 0;
    if (!apart_carry_on(x, &moved, err))
        return false;
    if (moved) {
        collective_wait_end(x->f.c, w);
        return wait_note(x, late, began, err);    // bytes move in it
    }
    if (x->moving) {
        if (!collective_poll(x->f.c, ms, &done, err))
            return false;
        if (done)
            job_end(x);
    } else if (!collective_wait(x->f.c, w, late, COUNT_READY, seen, ms, err)) {
        return false;
    }
    if (ms == 0)
        nanosleep(&(struct timespec){ .tv_nsec = EXCHANGE_POLL_NS }, NULL);
    return wait_note(x, late, began, err);
}

/* What a wait is for. */
typedef bool wanted_fn(const struct exchange *x, int64_t n);
static bool has_room(const struct exchange *x, UNUSED int64_t n)
{
    return x->jobs_asked - x->jobs_done < x->n_job;
}
static bool gives_are_done(const struct exchange *x, int64_t n)
{
    return n <= MIN(x->pushed, x->taken);
}
static bool jobs_are_done(const struct exchange *x, int64_t n)
{
    return x->jobs_done >= n;
}
static bool all_is_added(const struct exchange *x, UNUSED int64_t n)
{
    return x->taken == x->total && x->jobs_done == x->jobs_asked;
}

static bool wait_until(struct exchange *x, wanted_fn *wanted, int64_t n, struct error *err)
{
    struct collective_wait w = { 0 };
    bool ok = wanted(x, n) || mark_set(x->f.dev, x->idle, err);
    while (ok && !wanted(x, n))
        ok = wait_on(x, &w, err);
    collective_wait_end(x->f.c, &w);
    return ok;
}

/* ---- jobs */
static bool job_add(struct exchange *x, const struct job *what, struct error *err)
{
    bool moved;
    if (!wait_until(x, has_room, 0, err))
        return false;
    struct job *j = &x->job[x->jobs_asked % x->n_job];
    struct mark *mark = j->mark;
    *j = *what;
    j->mark = mark;
    if (j->marked && !mark_set(x->f.dev, mark, err))
        return false;
    x->jobs_asked++;
    return apart_carry_on(x, &moved, err);
}

bool apart_give(struct exchange *x, struct error *err)
{
    int64_t give = x->given++;
    return job_add(x, &(struct job){ .piece = exchange_piece_of(x, give), .give = give, .marked = true }, err);
}

bool apart_slot_wait(struct exchange *x, int64_t n, struct error *err)
{
    return wait_until(x, gives_are_done, n, err);
}

bool apart_end(struct exchange *x, struct error *err)
{
    return wait_until(x, all_is_added, 0, err);
}

bool exchange_fetch(struct exchange *x, int piece, const void *own, void *to, size_t elem_bytes, struct error *err)
{
    BUG_IF(!x->apart, "ranks that reach each other's memory fetch for themselves");
    if (!job_add(x, &(struct job){ .fetches = true, .piece = piece, .to = to, .from = own, .elem_bytes = elem_bytes, .marked = true }, err))
        return false;
    x->fetched[piece] = x->jobs_asked;
    return true;
}

bool exchange_await(struct exchange *x, int piece, struct error *err)
{
    return wait_until(x, jobs_are_done, x->fetched[piece], err);
}

/* ---- what all ranks call at once */
static bool all_to_all(struct exchange *x, const struct collective_bytes *b, struct error *err)
{
    int64_t began = clock_ns();
    BUG_IF(x->jobs_done != x->jobs_asked, "bytes from all to all while %d jobs wait", (int)(x->jobs_asked - x->jobs_done));
    bool ok = device_sync(x->f.dev, err) && collective_all_to_all(x->f.c, b, err);
    double s = (double)(clock_ns() - began) * 1e-9;
    x->stats.gather_s += s;
    x->stats.exposed_s += s;
    bytes_count(x, b, &x->stats.gather_bytes, &x->stats.gather_host_bytes);
    return ok;
}

bool apart_share(struct exchange *x, const struct exchange_parts *p, struct error *err)
{
    struct collective_bytes b = { 0 };
    for (int q = 0; q < x->n_rank; q++)
        if (q != x->rank) {
            b.send[q] = p->base + p->at[x->rank];
            b.send_bytes[q] = p->size_bytes[x->rank];
            b.recv[q] = p->base + p->at[q];
            b.recv_bytes[q] = p->size_bytes[q];
        }
    return all_to_all(x, &b, err);
}

bool exchange_collect(struct exchange *x, int piece, int at, float *to, struct error *err)
{
    struct collective_bytes b = { 0 };
    int64_t first, n = x->f.piece_n[piece], own = collective_shard(n, x->n_rank, x->rank, &first);
    BUG_IF(!x->apart, "ranks that reach each other's memory read what they want");
    for (int q = 0; q < x->n_rank; q++) {
        int64_t theirs = collective_shard(n, x->n_rank, q, &first);
        if (at < 0 || at == q) {
            b.send[q] = x->f.sum + x->f.sum_at[piece];
            b.send_bytes[q] = (size_t)own * 4;
        }
        if (at < 0 || at == x->rank) {
            b.recv[q] = to + first;
            b.recv_bytes[q] = (size_t)theirs * 4;
        }
    }
    return all_to_all(x, &b, err);
}

bool exchange_to_first(struct exchange *x, const void *mine, const size_t *size_bytes, void *stage, size_t each, struct error *err)
{
    struct collective_bytes b = { 0 };
    BUG_IF(!x->apart, "ranks that reach each other's memory read what they want");
    if (x->rank > 0) {
        b.send[0] = mine;
        b.send_bytes[0] = size_bytes[x->rank];
    }
    for (int q = 1; q < x->n_rank && x->rank == 0; q++) {
        b.recv[q] = (char *)stage + (size_t)(q - 1) * each;
        b.recv_bytes[q] = size_bytes[q];
    }
    return all_to_all(x, &b, err);
}
